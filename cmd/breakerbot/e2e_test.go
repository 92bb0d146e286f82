package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"breakerbot/bot/telegramtest"
	"breakerbot/store/storetest"
)

// From three refused calls to the recovery, and the commands beside it.
func TestOutage(t *testing.T) {
	t.Parallel()
	url, tg := storetest.URL(t), telegram(t)
	p := start(t, fmt.Sprintf(quick, "2s"), withTelegram(tg, "DATABASE_URL="+url)...)

	if v := p.refusals("gpu-box", 3); v["state"] != "open" || v["cause"] != "refused" {
		t.Fatalf("the third refusal: %v, want open", v)
	}
	alert := message(t, tg, "🔴 OPEN", "gpu-box", "3 calls in a row failed: refused ×3", "connection refused")
	if !alert.Sounded() || alert.Chat != chatID {
		t.Errorf("the alert is silent or elsewhere: %+v", alert)
	}

	p.sitOut("gpu-box")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var probes []string
	refused := map[string]int{}
	for i := range 50 {
		wg.Go(func() {
			g := p.permit(fmt.Sprint("agent-", i), "gpu-box")
			mu.Lock()
			defer mu.Unlock()
			if g["allowed"] == true && g["probe"] == true {
				probes = append(probes, g["permit"].(string))
			} else {
				refused[fmt.Sprint(g["reason"])]++
			}
		})
	}
	wg.Wait()
	if len(probes) != 1 || refused["probe_in_flight"] != 49 {
		t.Fatalf("%d probes and refusals %v, want one probe and 49 times probe_in_flight", len(probes), refused)
	}
	if v := p.report(map[string]any{"agent": "agent-0", "machine": "gpu-box", "http_status": 200, "permit": probes[0]}); v["state"] != "closed" {
		t.Fatalf("the probe's success: %v, want closed", v)
	}
	closed := message(t, tg, "🟢 CLOSED", "gpu-box")
	if closed.ID != alert.ID || closed.Edits() == 0 {
		t.Errorf("the recovery is message %d with %d edits, want the alert %d edited", closed.ID, closed.Edits(), alert.ID)
	}
	if n := len(tg.Messages()); n != 1 {
		t.Errorf("%d messages for one incident, want one: %+v", n, tg.Messages())
	}

	tg.Command(strangerID, chatID, "/status@another_bot")
	tg.Command(strangerID, chatID, "/status@"+telegramtest.Username)
	message(t, tg, "closed")
	tg.Command(operatorID, chatID, "/why nope") // which could be a reference, and is none
	message(t, tg, "Nothing is called nope")

	p.refusals("mac-mini", 3)
	second := message(t, tg, "🔴 OPEN", "mac-mini")
	tg.Command(operatorID, chatID, "/reset mac-mini")
	question := message(t, tg, "mac-mini", "?")
	if len(question.Buttons) == 0 || len(question.Buttons[0]) == 0 {
		t.Fatalf("the question has no buttons: %+v", question)
	}
	confirm := question.Buttons[0][0]
	denied := tg.Press(strangerID, question, confirm.Data)
	if a, err := tg.WaitAnswer(patient(t), denied); err != nil || a.Text == "" {
		t.Errorf("a stranger's press: %+v, %v, want a refusal", a, err)
	}
	if _, b := p.call("GET", "/v1/breakers/reachability%7Bmachine=mac-mini%7D", nil); b["state"] == "closed" {
		t.Fatalf("a stranger has reset the breaker: %v", b)
	}
	if _, err := tg.WaitAnswer(patient(t), tg.Press(operatorID, question, confirm.Data)); err != nil {
		t.Fatal(err)
	}
	reset, err := tg.Wait(patient(t), func(m telegramtest.Message) bool { return m.ID == second.ID && strings.Contains(m.Text, "CLOSED") })
	if err != nil || len(reset.Before) == 0 {
		t.Fatalf("the reset did not edit the alert: %v", err)
	}
	if g := p.permit("coder", "mac-mini"); g["allowed"] != true || g["probe"] != false {
		t.Fatalf("a permit after the reset: %v, want a plain one", g)
	}

	got := rows(t, url, `SELECT machine || ' ' || from_state || '→' || to_state || ' ' || reason || ' ' || coalesce(actor, '') FROM transitions ORDER BY era`)
	want := []string{
		"gpu-box closed→open tripped coder", "gpu-box open→half_open probe_granted", "gpu-box half_open→closed probe_ok agent-0",
		"mac-mini closed→open tripped coder", fmt.Sprintf("mac-mini open→closed reset telegram:%d", operatorID),
	}
	for i := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("rows of transitions:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	if strings.Contains(p.log()+p.out.String(), telegramtest.Token) {
		t.Error("the log holds the bot's token")
	}
	if v := tg.Violations(); len(v) > 0 {
		t.Errorf("Telegram would have been displeased: %v", v)
	}
}

// A power cut while open: the rest of the wait is left, nobody is told twice,
// and the recovery edits the message from before.
func TestKilledWhileOpen(t *testing.T) {
	t.Parallel()
	url, tg := storetest.URL(t), telegram(t)
	config := fmt.Sprintf(quick, "4s")
	p := start(t, config, withTelegram(tg, "DATABASE_URL="+url)...)
	p.refusals("gpu-box", 3)
	alert := message(t, tg, "🔴 OPEN", "gpu-box")
	untilRows(t, url, "SELECT status FROM outbox", "delivered")
	_, before := p.call("GET", "/v1/breakers/reachability%7Bmachine=gpu-box%7D", nil)
	p.kill()

	p = start(t, config, withTelegram(tg, "DATABASE_URL="+url)...)
	_, after := p.call("GET", "/v1/breakers/reachability%7Bmachine=gpu-box%7D", nil)
	if after["state"] != "open" || after["retry_at"] != before["retry_at"] || after["era"] != before["era"] {
		t.Fatalf("after the restart: %v\nbefore: %v", after, before)
	}
	p.sitOut("gpu-box")
	g := p.permit("coder", "gpu-box")
	if g["probe"] != true {
		t.Fatalf("after the wait: %v, want a probe", g)
	}
	if v := p.report(map[string]any{"agent": "coder", "machine": "gpu-box", "http_status": 200, "permit": g["permit"]}); v["state"] != "closed" || v["status"] != 200 {
		t.Fatalf("the probe's success: %v, want closed and on disk", v)
	}
	closed := message(t, tg, "🟢 CLOSED", "gpu-box")
	if closed.ID != alert.ID {
		t.Errorf("the recovery is message %d, want the alert %d edited", closed.ID, alert.ID)
	}
	if n := len(tg.Messages()); n != 1 {
		t.Errorf("%d messages, want the one alert", n)
	}
}

// What stays open is told again by the clock alone: no call comes, and the
// server is killed in between.
func TestStillOpenAcrossARestart(t *testing.T) {
	t.Parallel()
	url, tg := storetest.URL(t), telegram(t)
	config := strings.Replace(fmt.Sprintf(quick, "1h"), "group_wait: 300ms", "group_wait: 300ms, long_open: [3s, 1h]", 1)
	p := start(t, config, withTelegram(tg, "DATABASE_URL="+url)...)
	p.refusals("gpu-box", 3)
	alert := message(t, tg, "🔴 OPEN", "gpu-box")
	untilRows(t, url, "SELECT status FROM outbox", "delivered")
	p.kill()
	start(t, config, withTelegram(tg, "DATABASE_URL="+url)...)
	again := message(t, tg, "⏰ STILL OPEN", "gpu-box")
	if !again.Sounded() || again.ReplyTo != alert.ID {
		t.Errorf("the step is silent or no reply to message %d: %+v", alert.ID, again)
	}
	if n := len(tg.Messages()); n != 2 {
		t.Errorf("%d messages, want the alert and one step", n)
	}
}

// A digest that fell due while the server was down comes once, also when the
// server is started again; a database without history owes none.
func TestDigestOnce(t *testing.T) {
	t.Parallel()
	url, tg := storetest.URL(t), telegram(t)
	due := time.Now().UTC().Add(-2 * time.Minute)
	config := fmt.Sprintf("timezone: UTC\ndigest: {cron: \"%d %d * * *\"}\n", due.Minute(), due.Hour())
	env := withTelegram(tg, "DATABASE_URL="+url)
	p := start(t, config, env...)
	p.report(map[string]any{"agent": "coder", "machine": "gpu-box", "http_status": 200})
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if got := rows(t, url, "SELECT day::text FROM digests"); len(got) != 0 {
		t.Fatalf("digests %q of a database whose history began after they were due", got)
	}
	rows(t, url, `INSERT INTO outcome_counts (bucket, agent, machine, cause, served, calls, durations)
		VALUES (date_trunc('minute', now()) - interval '3 hours', 'coder', 'gpu-box', 'ok', 'primary', 7, array_fill(0::bigint, ARRAY[15])) RETURNING machine`)
	for range 2 {
		p = start(t, config, env...)
		digest := message(t, tg, "Quiet", "no trips in 7 calls")
		if digest.Sounded() {
			t.Error("the digest sounds")
		}
		untilRows(t, url, "SELECT kind || ' ' || status FROM outbox", "digest delivered")
		p.stop()
	}
	if n := len(tg.Messages()); n != 1 {
		t.Errorf("%d messages, want one digest", n)
	}
	want := due.Truncate(time.Minute)
	got := rows(t, url, "SELECT destination_id || ' ' || (extract(epoch FROM window_to - window_from) / 3600)::int || ' h until ' || extract(epoch FROM window_to)::bigint FROM digests")
	if !slices.Equal(got, []string{fmt.Sprintf("chat:%d 24 h until %d", chatID, want.Unix())}) {
		t.Errorf("digests %q, want one of 24 h until %s", got, want)
	}
}

// A probe granted before the crash is the same probe after it.
func TestKilledWithAProbeInFlight(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	config := fmt.Sprintf(quick, "1s")
	p := start(t, config, "DATABASE_URL="+url)
	p.refusals("gpu-box", 3)
	p.sitOut("gpu-box")
	ask := map[string]any{"agent": "coder", "machine": "gpu-box", "request_id": "r1"}
	_, g := p.call("POST", "/v1/permits", ask)
	if g["probe"] != true {
		t.Fatalf("after the wait: %v, want a probe", g)
	}
	p.kill()
	p = start(t, config, "DATABASE_URL="+url)
	if other := p.permit("chat", "gpu-box"); other["reason"] != "probe_in_flight" {
		t.Fatalf("another agent after the restart: %v, want probe_in_flight", other)
	}
	if _, again := p.call("POST", "/v1/permits", ask); again["permit"] != g["permit"] {
		t.Fatalf("the same request after the restart: %v, want the same probe %v", again, g)
	}
	if v := p.report(map[string]any{"agent": "coder", "machine": "gpu-box", "cause": "ok", "permit": g["permit"]}); v["state"] != "closed" {
		t.Fatalf("its success: %v", v)
	}
}

// Postgres goes away: decisions go on, outcomes say 202, and all is written in
// order when it is back.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	pg, tg := storetest.Private(t), telegram(t)
	p := start(t, fmt.Sprintf(quick, "1s"), withTelegram(tg, "DATABASE_URL="+pg.URL())...)
	if v := p.report(map[string]any{"agent": "coder", "machine": "gpu-box", "cause": "ok"}); v["status"] != 200 {
		t.Fatalf("with the database: %v, want 200", v)
	}
	pg.Stop(t)
	if v := p.refusals("gpu-box", 3); v["status"] != 202 || v["state"] != "open" {
		t.Fatalf("without the database: %v, want 202 and open", v)
	}
	p.sitOut("gpu-box")
	g := p.permit("coder", "gpu-box")
	if g["probe"] != true {
		t.Fatalf("a permit without the database: %v, want the probe", g)
	}
	p.report(map[string]any{"agent": "coder", "machine": "gpu-box", "cause": "refused", "permit": g["permit"]})
	if _, ready := p.call("GET", "/readyz", nil); !strings.Contains(fmt.Sprint(ready), "away") {
		t.Errorf("readyz does not tell that the database is away: %v", ready)
	}
	pg.Start(t)
	p.waitLog("database is back")
	message(t, tg, "gpu-box", "OPEN")
	got := rows(t, pg.URL(), "SELECT reason FROM transitions ORDER BY id")
	if want := []string{"tripped", "probe_granted", "probe_failed"}; !slices.Equal(got, want) {
		t.Errorf("transitions %v, want %v in this order", got, want)
	}
	if got := rows(t, pg.URL(), "SELECT sum(calls)::text FROM outcome_counts WHERE machine = 'gpu-box'"); !slices.Equal(got, []string{"5"}) {
		t.Errorf("%v outcomes are counted, want 5", got)
	}
	if got := rows(t, pg.URL(), "SELECT count(*)::text FROM outbox WHERE kind = 'trip'"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("%v trip messages, want 1", got)
	}
}

// The database is not there at the start: one sentence, and then it is.
func TestDatabaseUnreachableAtStart(t *testing.T) {
	t.Parallel()
	pg := storetest.Private(t)
	pg.Stop(t)
	p := launch(t, "start_without_database: closed\n", "DATABASE_URL="+pg.URL())
	p.listening()
	p.waitLog("waiting for the database")
	if status, answer := p.call("GET", "/readyz", nil); status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %v, want 503", status, answer)
	}
	if status, _ := p.call("GET", "/healthz", nil); status != http.StatusOK {
		t.Errorf("healthz: %d, want 200", status)
	}
	if status, answer := p.call("POST", "/v1/outcomes", map[string]any{"agent": "a", "machine": "m", "cause": "ok"}); status != http.StatusServiceUnavailable {
		t.Errorf("outcome: %d %v, want 503", status, answer)
	}
	if g := p.permit("a", "m"); g["allowed"] != false || g["state"] != "unknown" {
		t.Errorf("permit: %v, want not allowed and unknown", g)
	}
	pg.Start(t)
	p.waitLog("msg=ready")
	if g := p.permit("a", "m"); g["allowed"] != true {
		t.Errorf("permit once ready: %v", g)
	}
}

// Without any configuration there is a Postgres of our own, also after a crash.
func TestBuiltInPostgres(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openTempDir(t), "data")
	p := start(t, "", "BREAKERBOT_DATA_DIR="+dir)
	p.refusals("gpu-box", 3)
	code, _, stderr := once(t, []string{"BREAKERBOT_DATA_DIR=" + dir, "BREAKERBOT_LISTEN=127.0.0.1:0"}, "serve")
	if code != 1 || !strings.Contains(stderr, fmt.Sprint(p.cmd.Process.Pid)) {
		t.Errorf("a second serve on the folder: exit code %d, want 1 and the first one's process:\n%s", code, stderr)
	}
	code, stdout, stderr := once(t, []string{"BREAKERBOT_DATA_DIR=" + dir}, "digest")
	if code != 0 || !strings.Contains(stdout, "gpu-box") {
		t.Errorf("digest beside a running serve: exit code %d:\n%s%s", code, stdout, stderr)
	}
	p.kill()
	p = start(t, "", "BREAKERBOT_DATA_DIR="+dir)
	if g := p.permit("coder", "gpu-box"); g["reason"] != "open" {
		t.Fatalf("after kill -9: %v, want open", g)
	}
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	code, stdout, stderr = once(t, []string{"BREAKERBOT_DATA_DIR=" + dir}, "digest", "--format", "json")
	var report struct {
		Totals struct {
			Trips int `json:"trips"`
		} `json:"totals"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || report.Totals.Trips != 1 {
		t.Errorf("digest --format json: exit code %d, %v, %d trips, want one:\n%s%s", code, err, report.Totals.Trips, stdout, stderr)
	}
}

// Messages are printed where there is no Telegram token.
func TestMessagesArePrinted(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	p := start(t, fmt.Sprintf(quick, "1m"), "DATABASE_URL="+url)
	p.refusals("gpu-box", 3)
	untilRows(t, url, "SELECT status FROM outbox", "delivered")
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if out := p.out.String(); !strings.Contains(out, "🔴 OPEN  gpu-box") || !strings.Contains(out, "🔔 sounds") {
		t.Errorf("standard output:\n%s", out)
	}
}

func TestTwoServesOnOneDatabase(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	start(t, "", "DATABASE_URL="+url)
	second := launch(t, "", "DATABASE_URL="+url)
	if code := second.wait(); code != 1 || !strings.Contains(second.log(), "another serve works on this database") {
		t.Errorf("exit code %d, want 1 and a sentence:\n%s", code, second.log())
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, _, stderr := once(t, []string{"BREAKERBOT_LISTEN=" + l.Addr().String(), "BREAKERBOT_DATA_DIR=" + t.TempDir()}, "serve")
	if code != 1 || !strings.Contains(stderr, "address already in use") || !strings.Contains(stderr, "BREAKERBOT_LISTEN") {
		t.Errorf("exit code %d, want 1 and what to do:\n%s", code, stderr)
	}
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config string
		env    []string
		want   []string
	}{
		"unknown key":   {"listen: 127.0.0.1:0\ndigset: {cron: \"0 8 * * *\"}\n", nil, []string{":2:1: ", "digset", "digest"}},
		"bad zone":      {"timezone: Europe/Berln\n", nil, []string{":1:", "timezone", "Europe/Berln"}},
		"bad cron":      {"digest: {cron: \"TZ=\"}\n", nil, []string{":1:", "digest.cron"}},
		"twice a day":   {"digest: {cron: \"0 8,20 * * *\"}\n", nil, []string{"digest.cron"}},
		"every":         {"", []string{"BREAKERBOT_DIGEST_CRON=@every 1h"}, []string{"BREAKERBOT_DIGEST_CRON", "@every"}},
		"open to all":   {"listen: 0.0.0.0:8080\n", nil, []string{"listen", "token"}},
		"several":       {"listen: nowhere\nack_timeout: soon\n", nil, []string{"2 problems", "listen", "ack_timeout"}},
		"unknown cause": {"rules: [{name: r, scope: [machine], failures: [refsed]}]\n", nil, []string{"rules[0].failures", "refsed", "refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"check"}
			if tc.config != "" {
				args = append(args, "--config", file(t, tc.config))
			}
			for _, command := range []string{"check", "serve"} {
				args[0] = command
				code, _, stderr := once(t, tc.env, args...)
				if code != 2 || !hasAll(stderr, tc.want) || strings.Contains(stderr, "panic") {
					t.Errorf("%s: exit code %d, want 2 and %q:\n%s", command, code, tc.want, stderr)
				}
			}
		})
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"help":           {[]string{"--help"}, 0, "serve"},
		"none":           {nil, 0, "Usage: breakerbot"},
		"version":        {[]string{"version"}, 0, "breakerbot "},
		"check":          {[]string{"check"}, 0, "reachability"},
		"token":          {[]string{"token", "coder"}, 0, "bb_"},
		"bad scope":      {[]string{"token", "coder", "root"}, 2, "report"},
		"unknown":        {[]string{"sreve"}, 2, "sreve"},
		"no config":      {[]string{"serve", "--config", "/nowhere.yaml"}, 2, "/nowhere.yaml"},
		"bad period":     {[]string{"digest", "--period", "soon"}, 2, "soon"},
		"no script":      {[]string{"replay", "/nowhere"}, 2, "/nowhere"},
		"health of none": {[]string{"health", "--url", "http://127.0.0.1:1"}, 1, "health"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := once(t, nil, tc.args...)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}

// endless is a body that goes on for n bytes.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	copy(p, bytes.Repeat([]byte(" "), n))
	e.left -= n
	return n, nil
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	p := start(t, "", "DATABASE_URL="+storetest.URL(t))
	for name, tc := range map[string]struct {
		body   any
		status int
		want   []string
	}{
		"malformed":      {"{\"agent\": \"a\",\n \"machine\" \"m\"}", 400, []string{"line 2", "column"}},
		"wrong type":     {`{"agent": "a", "machine": 7, "cause": "ok"}`, 422, []string{"machine"}},
		"long label":     {map[string]any{"agent": "a", "machine": strings.Repeat("m", 129), "cause": "ok"}, 422, []string{"machine", "129", "128"}},
		"unknown cause":  {`{"agent": "a", "machine": "m", "cause": "broken"}`, 422, []string{"broken", "refused"}},
		"too much":       {&endless{50 << 20}, 413, []string{"16"}},
		"one bad of two": {`[{"agent": "a", "machine": "m", "cause": "ok"}, {"agent": "a", "cause": "ok"}]`, 200, []string{"accepted:1", "index:1", "machine"}},
		"unknown field":  {`{"agent": "a", "machine": "m", "cause": "ok", "duration": 5}`, 200, []string{"duration", "duration_ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := p.call("POST", "/v1/outcomes", tc.body)
			if status != tc.status || !hasAll(fmt.Sprint(answer), tc.want) {
				t.Errorf("%d %v, want %d and %q", status, answer, tc.status, tc.want)
			}
		})
	}
	for _, path := range []string{"/v1/transitions?cursor=x", "/v1/incidents?cursor=t1", "/v1/transitions?%zz=1", "/v1/breakers?machin=a"} {
		if status, answer := p.call("GET", path, nil); status != 400 {
			t.Errorf("%s: %d %v, want 400", path, status, answer)
		}
	}
	if status, answer := p.call("GET", "/v1/nothing", nil); status != 404 {
		t.Errorf("an unknown path: %d %v", status, answer)
	}
	if v := p.report(map[string]any{"agent": "a", "machine": "m", "cause": "ok"}); v["cause"] != "ok" {
		t.Errorf("after all that: %v", v)
	}
}

// A graceful stop is quick also while a poll for commands is on its way.
func TestStop(t *testing.T) {
	t.Parallel()
	tg := telegram(t)
	p := start(t, "", withTelegram(tg, "DATABASE_URL="+storetest.URL(t))...)
	if err := tg.WaitPolling(patient(t)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the stop took %s, at most 10s are allowed", took)
	}
	if !strings.Contains(p.log(), "msg=stopped") {
		t.Errorf("the log does not end with the stop:\n%s", p.log())
	}
}

// A second signal ends a stop that somebody holds up.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	p := start(t, "", "DATABASE_URL="+storetest.URL(t))
	dawdle(t, p)
	p.signal(syscall.SIGTERM)
	p.waitLog("msg=stopping")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 1 || !strings.Contains(p.log(), "second signal") || strings.Contains(p.log(), "msg=stopped") {
		t.Errorf("exit code %d, want 1 at once:\n%s", code, p.log())
	}
}

// dawdle begins a request and never ends it.
func dawdle(t *testing.T, p *process) {
	t.Helper()
	slow, err := net.Dial("tcp", strings.TrimPrefix(p.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slow.Close() })
	// The server reads the body only once it has read the head.
	fmt.Fprint(slow, "POST /v1/outcomes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"+
		"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
	if _, err := slow.Read(make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
}

// A call that is told again after a restart is still the same call.
func TestDuplicatesAcrossARestart(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	outcome := map[string]any{"agent": "a", "machine": "m", "cause": "refused", "id": "call-1"}
	p := start(t, "", "DATABASE_URL="+url)
	if v := p.report(outcome); v["duplicate"] != false {
		t.Fatalf("the first word: %v", v)
	}
	for _, end := range []func(){p.kill, func() { p.stop() }} {
		end()
		p = start(t, "", "DATABASE_URL="+url)
		if v := p.report(outcome); v["duplicate"] != true || v["status"] != 200 {
			t.Fatalf("the same again after a restart: %v, want a duplicate", v)
		}
	}
	if got := rows(t, url, "SELECT sum(calls)::text FROM outcome_counts"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("%v outcomes are counted, want one", got)
	}
}

// A database that hangs and a client that dawdles hold no stop up.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openTempDir(t), "data")
	p := start(t, "", "BREAKERBOT_DATA_DIR="+dir)
	p.report(map[string]any{"agent": "a", "machine": "m", "cause": "ok"})
	dawdle(t, p)
	pids := postgresOf(t, dir)
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	if v := p.report(map[string]any{"agent": "a", "machine": "m", "cause": "ok"}); v["status"] != 202 {
		t.Errorf("with a hanging database: %v, want 202", v)
	}
	began := time.Now()
	if code := p.stop(); code != 1 {
		t.Errorf("exit code %d, want 1: something could not be written", code)
	}
	if took := time.Since(began); took > 11*time.Second {
		t.Errorf("the stop took %s, at most 10s are allowed", took)
	}
}

// Every run of the demo prints the same.
func TestDemo(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := once(t, nil, "demo", "--pause", "0")
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, stderr)
	}
	const golden = "testdata/demo.golden"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(stdout), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	got, expected := strings.Split(stdout, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(expected)) {
		if i >= len(got) || i >= len(expected) || got[i] != expected[i] {
			t.Fatalf("line %d differs (UPDATE_GOLDEN=1 accepts it):\n got %q\nwant %q", i+1, at(got, i), at(expected, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(no line)"
}
