//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// TestMain doubles as the program that starts a server and dies, for the tests
// of what becomes of the server then.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PGSERVER_TEST_DIR"); dir != "" {
		s, err := Start(context.Background(), Options{DataDir: dir, FsyncOff: true, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("up", s.process())
		select {}
	}
	goleak.VerifyTestMain(m)
}

// folder is a short folder that user postgres may enter, which t.TempDir is
// not when root runs the tests.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bb-pgserver-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func quiet(dir string) Options {
	return Options{DataDir: dir, FsyncOff: true, Log: slog.New(slog.DiscardHandler)}
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), quiet(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestDataOutlivesTheServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "data")
	s := start(t, dir)
	exec1(t, s.URL(), "CREATE TABLE kept (n int)")

	_, err := Start(t.Context(), quiet(dir))
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("a second start on the folder: %v, want ErrInUse with our pid", err)
	}
	pid := s.process()
	for range 2 {
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if alive(pid) {
		t.Errorf("the server %d runs after Stop", pid)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres", "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server did not stop cleanly: %v", err)
	}
	s = start(t, dir)
	exec1(t, s.URL(), "INSERT INTO kept VALUES (1)")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "postgres.new-") {
			t.Errorf("initdb left %s", e.Name())
		}
	}
}

func TestNoTCPAndAPrivateSocket(t *testing.T) {
	t.Parallel()
	s := start(t, folder(t))
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var listen string
	if err := conn.QueryRow(t.Context(), "SHOW listen_addresses").Scan(&listen); err != nil || listen != "" {
		t.Errorf("listen_addresses is %q (%v), want none", listen, err)
	}
	info, err := os.Stat(s.sockets)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's folder has mode %v (%v), want 0700", info.Mode(), err)
	}
	if os.Geteuid() == 0 {
		st := info.Sys().(*syscall.Stat_t)
		if st.Uid == 0 {
			t.Error("the server's folder belongs to root")
		}
	}
}

func TestALongFolderGetsAShortSocket(t *testing.T) {
	t.Parallel()
	s := start(t, filepath.Join(folder(t), strings.Repeat("long", 30)))
	if !strings.HasPrefix(s.sockets, "/tmp/breakerbot-") {
		t.Errorf("the socket is in %s", s.sockets)
	}
	exec1(t, s.URL(), "SELECT 1")
}

// waitLog is a handler that closes its channel at the first record with the
// message waited for.
type waitLog struct {
	slog.Handler
	message string
	seen    chan struct{}
}

func (w waitLog) Enabled(context.Context, slog.Level) bool { return true }

func (w waitLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.message {
		close(w.seen)
	}
	return nil
}

func TestAChildThatDiesIsStartedAgain(t *testing.T) {
	t.Parallel()
	back := make(chan struct{})
	o := quiet(folder(t))
	o.Log = slog.New(waitLog{slog.DiscardHandler, "built-in PostgreSQL is back", back})
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(context.Background())
	exec1(t, s.URL(), "CREATE TABLE kept (n int)")
	first := s.process()
	s.signal(syscall.SIGKILL)
	select {
	case <-back:
	case <-time.After(time.Minute):
		t.Fatal("the server did not come back")
	}
	if second := s.process(); second == first || second == 0 {
		t.Errorf("the process was %d and is %d", first, second)
	}
	exec1(t, s.URL(), "INSERT INTO kept VALUES (1)")
}

func TestStopUnderLoadQuitsWhenTimeIsUp(t *testing.T) {
	t.Parallel()
	s := start(t, folder(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	pid := s.process()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Errorf("process %d is still there", pid)
	}
}

// program runs this test binary as a server's owner and returns it with the
// server's pid.
func program(t *testing.T, dir string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PGSERVER_TEST_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var pid int
	if _, err := fmt.Fscanf(out, "up %d\n", &pid); err != nil {
		t.Fatalf("the program did not start a server: %v", err)
	}
	return cmd, pid
}

func TestTheServerDiesWithItsKilledParent(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	cmd, pid := program(t, dir)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	// The next start waits for one that is shutting down, or uses it.
	s := start(t, dir)
	exec1(t, s.URL(), "SELECT 1")
	if s.process() == pid {
		t.Errorf("the server %d is still the first one's", pid)
	}
}

func TestASurvivorIsUsedAndStopped(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, dir)
	exec1(t, s.URL(), "CREATE TABLE kept (n int)")
	args := s.settings()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	orphan := exec.Command(filepath.Join(s.bin, "postgres"), args...)
	orphan.Env = serverEnv()
	orphan.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- orphan.Wait() }()
	for {
		if pid, _, err := readPIDFile(s.pgdata); err == nil && pid == orphan.Process.Pid {
			break
		}
		time.Sleep(pollEvery) // a file of another process: nothing tells of it
	}
	next := start(t, dir)
	if next.process() != orphan.Process.Pid {
		t.Errorf("the survivor is %d, used is %d", orphan.Process.Pid, next.process())
	}
	exec1(t, next.URL(), "INSERT INTO kept VALUES (1)")
	if err := next.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the survivor ended with %v", err)
	}
}

func TestASurvivorThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, dir)
	args := s.settings()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	orphan := exec.Command(filepath.Join(s.bin, "postgres"), args...)
	orphan.Env = serverEnv()
	orphan.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if pid, _, err := readPIDFile(s.pgdata); err == nil && pid == orphan.Process.Pid {
			break
		}
		time.Sleep(pollEvery)
	}
	back := make(chan struct{})
	o := quiet(dir)
	o.Log = slog.New(waitLog{slog.DiscardHandler, "built-in PostgreSQL is back", back})
	next, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Stop(context.Background())
	orphan.Process.Signal(syscall.SIGINT)
	orphan.Wait()
	select {
	case <-back:
	case <-time.After(time.Minute):
		t.Fatal("nothing replaced the survivor")
	}
	exec1(t, next.URL(), "SELECT 1")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	t.Run("another version", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		if err := os.Mkdir(filepath.Join(dir, "postgres"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "postgres", "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), quiet(dir))
		if err == nil || !strings.Contains(err.Error(), "made by PostgreSQL 9 and can be opened by no other") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no cluster", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		if err := os.Mkdir(filepath.Join(dir, "postgres"), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), quiet(dir))
		if err == nil || !strings.Contains(err.Error(), "exists and is no cluster: move it away") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a parent that the server's user cannot enter", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			// Then there is only one user: whoever made the folder.
			if mayEnter(0o700, 1, 1, &syscall.Credential{Uid: 2, Gid: 2}) {
				t.Error("a private folder of somebody else is not enterable")
			}
			return
		}
		shut := filepath.Join(folder(t), "shut")
		if err := os.Mkdir(shut, 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), quiet(filepath.Join(shut, "data")))
		if err == nil || !strings.Contains(err.Error(), "cannot enter "+shut+":") {
			t.Errorf("got %v, want an error that names %s", err, shut)
		}
	})
	t.Run("an open socket folder", func(t *testing.T) {
		t.Parallel()
		dir := folder(t)
		if err := os.Mkdir(filepath.Join(dir, "run"), 0o777); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), quiet(dir))
		if err == nil || !strings.Contains(err.Error(), "/run ") {
			t.Errorf("got %v, want a refusal of the folder", err)
		}
	})
}

func TestMayEnter(t *testing.T) {
	t.Parallel()
	cred := &syscall.Credential{Uid: 5, Gid: 50, Groups: []uint32{51}}
	for _, test := range []struct {
		mode     os.FileMode
		uid, gid uint32
		want     bool
	}{
		{0o700, 5, 0, true},
		{0o677, 5, 0, false},
		{0o710, 0, 50, true},
		{0o710, 0, 51, true},
		{0o701, 0, 51, false},
		{0o701, 0, 0, true},
		{0o770, 0, 0, false},
	} {
		if got := mayEnter(test.mode, test.uid, test.gid, cred); got != test.want {
			t.Errorf("mayEnter(%o, %d, %d) = %v", test.mode, test.uid, test.gid, got)
		}
	}
}
