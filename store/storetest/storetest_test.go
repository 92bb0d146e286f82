//go:build unix

package storetest_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

func count(t *testing.T, url, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	a, b := storetest.URL(t), storetest.URL(t)
	count(t, a, "WITH x AS (INSERT INTO chats (chat_id) VALUES (1) RETURNING 1) SELECT count(*) FROM x")
	if n := count(t, a, "SELECT count(*) FROM chats"); n != 1 {
		t.Errorf("the first database has %d rows, want 1", n)
	}
	if n := count(t, b, "SELECT count(*) FROM chats"); n != 0 {
		t.Errorf("the second database sees %d rows of the first", n)
	}
	if n := count(t, storetest.EmptyURL(t), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
		t.Errorf("the empty database has %d tables", n)
	}
}

func TestAPrivateServerKeepsItsData(t *testing.T) {
	t.Parallel()
	s := storetest.Private(t)
	before := s.URL()
	count(t, before, "WITH x AS (INSERT INTO chats (chat_id) VALUES (1) RETURNING 1) SELECT count(*) FROM x")
	s.Stop(t)
	if conn, err := pgx.Connect(t.Context(), before); err == nil {
		conn.Close(t.Context())
		t.Error("the server answers after Stop")
	}
	s.Start(t)
	if s.URL() != before {
		t.Errorf("the URL was %s and is %s", before, s.URL())
	}
	if n := count(t, before, "SELECT count(*) FROM chats"); n != 1 {
		t.Errorf("%d rows after the restart, want 1", n)
	}
}

// TestHang is the test in which the killed binary of the test below stands.
func TestHang(t *testing.T) {
	if os.Getenv("STORETEST_DIE") == "" {
		return
	}
	fmt.Println("url", storetest.URL(t))
	select {}
}

func TestAKilledBinaryLeavesNothing(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHang$")
	cmd.Env = append(os.Environ(), "STORETEST_DIE=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var at string
	lines := bufio.NewScanner(out)
	for at == "" && lines.Scan() {
		at, _ = strings.CutPrefix(lines.Text(), "url ")
	}
	u, err := url.Parse(at)
	if err != nil || u.Query().Get("host") == "" {
		t.Fatalf("the binary gave no URL: %q %v", at, err)
	}
	sockets := u.Query().Get("host")
	dir := filepath.Dir(filepath.Dir(sockets))
	text, err := os.ReadFile(filepath.Join(dir, "data", "postgres", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	// Its reaper is nobody's child: only the folder tells that it is done.
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); syscall.Kill(pid, 0) == nil && !strings.Contains(string(state), ") Z ") {
		t.Errorf("the server %d is still there", pid)
	}
}
