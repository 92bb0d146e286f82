// Package storetest gives each test a PostgreSQL database of its own, on a
// server that the test binary starts when the first test asks and that ends
// with the binary, however that ends. It never skips a test.
//
// It is for tests only, and keeps nothing: the server does not sync.
package storetest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"breakerbot/store"
	"breakerbot/store/pgserver"
)

// template is the migrated database that the tests' own are copies of.
const template = "template_breakerbot"

// shared is the binary's one server.
var shared struct {
	once   sync.Once
	err    error
	server *Server
	number atomic.Int64
}

// URL makes a migrated, empty database and returns how to reach it. It is
// dropped when the test ends.
func URL(t testing.TB) string { return clone(t, template) }

// EmptyURL is like URL, without any table.
func EmptyURL(t testing.TB) string { return clone(t, "template0") }

// New opens a migrated, empty database; it is closed and dropped when the test
// ends.
func New(t testing.TB) *store.DB {
	t.Helper()
	return Open(t, URL(t))
}

// Open opens a database until the test ends.
func Open(t testing.TB, url string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// Main runs a package's tests, ends the server, and fails when goroutines are
// left over. Without it the server ends all the same.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if err := Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Stop ends the binary's server and removes its data, if it was ever started.
// Call it after the last test, such as in TestMain.
func Stop() error {
	shared.once.Do(func() { shared.err = fmt.Errorf("the test server was stopped") })
	if shared.server == nil {
		return nil
	}
	return shared.server.close()
}

func clone(t testing.TB, from string) string {
	t.Helper()
	shared.once.Do(func() {
		if shared.server, shared.err = start(); shared.err == nil {
			shared.err = makeTemplate(shared.server.URL())
		}
	})
	if shared.err != nil {
		t.Fatalf("start a PostgreSQL server for tests: %v", shared.err)
	}
	name := fmt.Sprintf("t%d", shared.number.Add(1))
	admin := shared.server.URL()
	if err := execute(t.Context(), admin, "CREATE DATABASE "+name+" TEMPLATE "+from); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := execute(context.Background(), admin, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func makeTemplate(admin string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := execute(ctx, admin, "CREATE DATABASE "+template); err != nil {
		return err
	}
	u, err := url.Parse(admin)
	if err != nil {
		return err
	}
	u.Path = "/" + template
	db, err := store.Open(ctx, u.String(), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer db.Close() // before the first copy: a template must have no connection
	return db.Migrate(ctx)
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// Server is a PostgreSQL of a test's own, which it may stop and start.
type Server struct {
	dir     string
	running *pgserver.Server
	reaper  *exec.Cmd
	leash   io.Closer
}

// Private starts a server that no other test sees, with one migrated database.
// It ends with the test.
func Private(t testing.TB) *Server {
	t.Helper()
	s, err := start()
	if err != nil {
		t.Fatalf("start a PostgreSQL server for a test: %v", err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	db, err := store.Open(t.Context(), s.URL(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// URL is how to reach the server's database, the same after each Start.
func (s *Server) URL() string { return s.running.URL() }

// Stop ends the server as a restart of its machine would: connections are cut,
// nothing committed is lost.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.running.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Start starts the server again after Stop.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) run() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.running, err = pgserver.Start(ctx, pgserver.Options{
		DataDir:  filepath.Join(s.dir, "data"),
		Log:      slog.New(slog.DiscardHandler),
		FsyncOff: true,
	})
	return err
}

// reap waits until its standard input ends, which is when this process has
// ended or says so, then for the server to end, and removes the folder.
const reap = `
read -r _
pid=$(head -n 1 "$1/data/postgres/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
	kill -INT "$pid" 2>/dev/null
	n=0
	while kill -0 "$pid" 2>/dev/null && [ -e "$1/data/postgres/postmaster.pid" ]; do
		n=$((n + 1))
		[ "$n" -eq 100 ] && kill -QUIT "$pid"
		[ "$n" -ge 200 ] && exit 1
		sleep 0.1
	done
fi
rm -rf "$1"
`

// start makes a folder and a server in it, and a shell that removes the folder
// once this process is gone, even by a signal that nothing can catch.
func start() (*Server, error) {
	// Not the test's own folder: user postgres has to get in when root tests.
	dir, err := os.MkdirTemp("", "breakerbot-test-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	s := &Server{dir: dir, reaper: exec.Command("/bin/sh", "-c", reap, "sh", dir)}
	s.reaper.Dir = "/"
	s.reaper.SysProcAttr = ownGroup() // Ctrl-C is for the tests
	if s.leash, err = s.reaper.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.reaper.Start(); err != nil {
		return nil, err
	}
	if err := s.run(); err != nil {
		s.leash.Close()
		s.reaper.Wait()
		return nil, err
	}
	return s, nil
}

// close ends the server and waits until its folder is gone.
func (s *Server) close() error {
	err := s.running.Stop(context.Background())
	s.leash.Close()
	if reaped := s.reaper.Wait(); err == nil && reaped != nil {
		err = fmt.Errorf("remove %s: %w", s.dir, reaped)
	}
	return err
}
