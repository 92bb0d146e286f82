package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"breakerbot/bot/telegramtest"
	"breakerbot/store/storetest"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "breakerbot-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "breakerbot")
	build := exec.Command("go", "build", "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n%s", build, err, out)
		return 1
	}
	code := m.Run()
	if err := storetest.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	client.CloseIdleConnections()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

const (
	chatID     = -1001
	operatorID = 111
	strangerID = 222
)

// patience bounds every wait of these tests; nothing comes near it when all is
// well.
const patience = time.Minute

var client = &http.Client{Timeout: patience}

// quick is a configuration whose waits a test can sit out.
const quick = `
alerts: {group_wait: 300ms}
rules:
  - name: reachability
    scope: [machine]
    failures: [refused, unreachable, connect_timeout, tls]
    ignores: [neutral, caller_timeout, caller_offline, timeout, reset]
    trip: {consecutive: 3}
    cooldown: {first: %s}
`

// process is a running breakerbot.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	base string
	out  bytes.Buffer

	mu      sync.Mutex
	lines   []string
	changed chan struct{}
	ended   chan struct{}
	err     error
}

// command prepares the program with an environment of its own.
func command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)
	return cmd
}

// launch starts serve without waiting for anything.
func launch(t *testing.T, config string, env ...string) *process {
	t.Helper()
	p := &process{t: t, changed: make(chan struct{}), ended: make(chan struct{})}
	args := []string{"serve"}
	if config != "" {
		args = append(args, "--config", file(t, config))
	}
	// Not t.Context: it ends before the cleanup that stops the process in order.
	p.cmd = command(context.Background(), append([]string{"BREAKERBOT_LISTEN=127.0.0.1:0"}, env...), args...)
	p.cmd.Stdout = &p.out
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the server:\n%s", p.log())
		}
	})
	return p
}

// start starts serve and waits until it is ready.
func start(t *testing.T, config string, env ...string) *process {
	t.Helper()
	p := launch(t, config, env...)
	p.listening()
	p.waitLog("msg=ready")
	return p
}

// listening waits for the address that the server has got.
func (p *process) listening() {
	p.t.Helper()
	line := p.waitLog("msg=listening")
	_, rest, _ := strings.Cut(line, "address=")
	address, _, _ := strings.Cut(rest, " ")
	p.base = "http://" + address
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// waitLog waits for a line of the log with this text.
func (p *process) waitLog(text string) string {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		changed := p.changed
		for _, line := range p.lines {
			if strings.Contains(line, text) {
				p.mu.Unlock()
				return line
			}
		}
		p.mu.Unlock()
		select {
		case <-changed:
		case <-p.ended:
			p.t.Fatalf("the server ended (%v) before it logged %q:\n%s", p.err, text, p.log())
		case <-deadline:
			p.t.Fatalf("the server has not logged %q:\n%s", text, p.log())
		}
	}
}

// kill ends the process without a word, as a power cut does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop asks the process to end and gives its exit code.
func (p *process) stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.wait()
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// wait gives the exit code of a process that ends by itself.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("the server does not end:\n%s", p.log())
	}
	return p.cmd.ProcessState.ExitCode()
}

// call sends a request and gives the status and the decoded answer.
func (p *process) call(method, path string, body any) (int, map[string]any) {
	p.t.Helper()
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		content = strings.NewReader(b)
	case io.Reader:
		content = b
	default:
		text, err := json.Marshal(b)
		if err != nil {
			p.t.Fatal(err)
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.base+path, content)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	answer := map[string]any{}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(text, &answer); err != nil {
			p.t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	} else {
		answer["text"] = string(text)
	}
	return resp.StatusCode, answer
}

// report sends one outcome and gives its verdict.
func (p *process) report(outcome map[string]any) map[string]any {
	p.t.Helper()
	status, answer := p.call("POST", "/v1/outcomes", outcome)
	verdicts, _ := answer["verdicts"].([]any)
	if status != http.StatusOK && status != http.StatusAccepted || len(verdicts) != 1 {
		p.t.Fatalf("POST /v1/outcomes: %d %v", status, answer)
	}
	verdict := verdicts[0].(map[string]any)
	verdict["status"] = status
	return verdict
}

// refusals reports calls that were refused by the machine, in a row.
func (p *process) refusals(machine string, n int) (last map[string]any) {
	p.t.Helper()
	for range n {
		last = p.report(map[string]any{"agent": "coder", "machine": machine, "error": "dial tcp 10.0.0.9:11434: connect: connection refused"})
	}
	return last
}

func (p *process) permit(agent, machine string) map[string]any {
	p.t.Helper()
	status, answer := p.call("POST", "/v1/permits", map[string]any{"agent": agent, "machine": machine})
	if status != http.StatusOK {
		p.t.Fatalf("POST /v1/permits: %d %v", status, answer)
	}
	return answer
}

// sitOut waits as long as the refusal tells the asker to.
func (p *process) sitOut(machine string) {
	p.t.Helper()
	g := p.permit("waiter", machine)
	ms, ok := g["retry_after_ms"].(float64)
	if g["allowed"] != false || !ok {
		p.t.Fatalf("the permit is not refused with a time: %v", g)
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
	case <-p.t.Context().Done():
	}
}

// telegram is a stand-in with the lab's chat and its operator's private one.
func telegram(t *testing.T) *telegramtest.Server {
	tg := telegramtest.New(t)
	tg.AddGroup(chatID)
	tg.AddPrivate(operatorID)
	return tg
}

func withTelegram(tg *telegramtest.Server, more ...string) []string {
	return append([]string{
		"TELEGRAM_TOKEN=" + telegramtest.Token, "TELEGRAM_API_URL=" + tg.URL,
		fmt.Sprintf("TELEGRAM_CHAT_ID=%d", chatID), fmt.Sprintf("TELEGRAM_OPERATORS=%d", operatorID),
	}, more...)
}

// patient bounds a wait for a message.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// message waits for one that has all the words.
func message(t *testing.T, tg *telegramtest.Server, words ...string) telegramtest.Message {
	t.Helper()
	m, err := tg.Wait(patient(t), func(m telegramtest.Message) bool { return hasAll(m.Text, words) })
	if err != nil {
		t.Fatalf("no message with %q: %v", words, err)
	}
	return m
}

func hasAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// rows reads text columns with SQL.
func rows(t *testing.T, url, query string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	result, err := conn.Query(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// postgresOf lists the processes of the built-in Postgres in a data folder.
func postgresOf(t *testing.T, dir string) []int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	server, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{server}
	children, err := exec.CommandContext(t.Context(), "pgrep", "-P", first).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// openTempDir is a folder that Postgres can pass through, which runs as another
// user where the tests are root.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir() // two folders of the test's own
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// untilRows waits until a query gives these rows, for what only the database
// shows.
func untilRows(t *testing.T, url, query string, want ...string) {
	t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(patience)
	for {
		got := rows(t, url, query)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("%s gives %q, want %q", query, got, want)
		}
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "breakerbot.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// once runs a command to its end.
func once(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(ctx, env, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}
