//go:build unix

package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// startLimit bounds how long a server may take until it answers; after a
	// crash it replays its log first.
	startLimit = 5 * time.Minute
	pollEvery  = 20 * time.Millisecond
	// quitLimit is what a server gets to end after SIGQUIT, and to answer at
	// all when its pid file says that it runs.
	quitLimit = 5 * time.Second
	// A child that dies is started again after restartFirst, doubling up to
	// restartMax; one that lived for restartMax starts over.
	restartFirst = 100 * time.Millisecond
	restartMax   = 10 * time.Second
	// socketPathMax is what sockaddr_un holds on every system, less the end.
	socketPathMax = 103
	// cannotConnectNow is the error of a server that starts or stops.
	cannotConnectNow = "57P03"
)

// Server is a PostgreSQL that runs for us. Its methods are safe for
// concurrent use.
type Server struct {
	log     *slog.Logger
	lock    *os.File
	bin     string
	pgdata  string
	sockets string
	cred    *syscall.Credential
	fsync   bool

	quit chan struct{} // closed by the first Stop
	once sync.Once
	dead chan struct{} // closed when the server is gone for good

	mu  sync.Mutex
	pid int // of the child or survivor, 0 between restarts
}

// Start makes the cluster when there is none, starts the server and returns
// when it answers. A server that an earlier process left on the same data is
// used as it is. The error is one sentence that says what to do; ctx bounds
// the start only, not the server's life.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.DataDir == "" {
		o.DataDir = DefaultDataDir()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start the built-in PostgreSQL in %s: %w", o.DataDir, err)
	}
	s := &Server{
		log:    o.Log,
		pgdata: filepath.Join(dir, "postgres"),
		fsync:  !o.FsyncOff,
		quit:   make(chan struct{}),
		dead:   make(chan struct{}),
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := s.start(ctx, dir); err != nil {
		if s.lock != nil {
			s.lock.Close()
		}
		return nil, fmt.Errorf("start the built-in PostgreSQL in %s: %w", dir, err)
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, dir string) error {
	if os.Geteuid() == 0 {
		cred, err := serverUser()
		if err != nil {
			return err
		}
		s.cred = cred
	}
	if err := makeDir(dir, 0o711, nil); err != nil {
		return err
	}
	if err := s.lockDir(dir); err != nil {
		return err
	}
	if s.cred != nil {
		if err := enterable(dir, s.cred); err != nil {
			return err
		}
	}
	if err := s.socketDir(dir); err != nil {
		return err
	}
	major, err := clusterVersion(s.pgdata)
	if err != nil {
		return err
	}
	in, err := find(ctx, places(), major)
	if err != nil {
		return err
	}
	s.bin = in.bin
	if major == 0 {
		if err := s.initdb(ctx); err != nil {
			return err
		}
	}
	survivor, err := s.adopt(ctx)
	if err != nil {
		return err
	}
	ready := make(chan error, 1)
	go s.run(survivor, ready)
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = fmt.Errorf("it does not answer: %w", context.Cause(ctx))
	}
	if err == nil {
		err = s.createDatabase(ctx)
	}
	if err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitLimit)
		defer cancel()
		s.Stop(stop)
		return err
	}
	s.log.Info("built-in PostgreSQL is ready", "data", s.pgdata, "version", in.major)
	return nil
}

// URL is how pgx reaches the database.
func (s *Server) URL() string { return s.urlOf(s.sockets, database) }

func (s *Server) urlOf(sockets, db string) string {
	return "postgres://" + user + "@/" + db + "?" + url.Values{"host": {sockets}, "port": {port}}.Encode()
}

// Stop ends the server: open transactions are rolled back, everything
// committed is kept. When ctx ends first the server is told to quit at once,
// which costs it a recovery at the next start. It may be called again.
func (s *Server) Stop(ctx context.Context) error {
	s.once.Do(func() { close(s.quit) })
	select {
	case <-s.dead:
	case <-ctx.Done():
		s.signal(syscall.SIGQUIT)
		select {
		case <-s.dead:
		case <-time.After(quitLimit):
			return fmt.Errorf("stop the built-in PostgreSQL in %s: process %d does not end", s.pgdata, s.process())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	if filepath.Dir(s.sockets) != filepath.Dir(s.pgdata) {
		os.Remove(s.sockets) // empty by now; the next start makes it anew
	}
	s.lock.Close() // the lock goes with the last descriptor
	s.lock = nil
	return nil
}

func (s *Server) process() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

func (s *Server) setProcess(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

func (s *Server) signal(sig syscall.Signal) {
	if pid := s.process(); pid > 0 {
		syscall.Kill(pid, sig) // gone already is as good
	}
}

// watch waits for the end of a server that is nobody's child any more and
// tells whether Stop asked for it. Its end shows in its pid file, which it
// removes last.
func (s *Server) watch(survivor int) (stopped bool) {
	defer s.setProcess(0)
	quit := s.quit
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-quit:
			s.signal(syscall.SIGINT)
			quit, stopped = nil, true
		case <-poll.C:
			if pid, _, err := readPIDFile(s.pgdata); err != nil || pid != survivor || !alive(survivor) {
				return stopped
			}
		}
	}
}

// run starts the server and starts it again whenever it dies, until Stop. It
// begins with watching the survivor when there is one. It tells ready once,
// when the first server answers or is known not to. The thread is locked
// because its end would look like ours to the child.
func (s *Server) run(survivor int, ready chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.dead)
	if survivor != 0 {
		ready <- nil
		ready = nil
		if s.watch(survivor) {
			return
		}
		s.log.Error("the PostgreSQL that an earlier process left has died and is started again", "data", s.pgdata)
	}
	wait := restartFirst
	for {
		began := time.Now()
		err := s.serveOnce(func() {
			if ready != nil {
				ready <- nil
				ready = nil
				return
			}
			s.log.Info("built-in PostgreSQL is back", "data", s.pgdata)
		})
		select {
		case <-s.quit:
			return
		default:
		}
		if ready != nil {
			ready <- err
			return
		}
		if time.Since(began) > restartMax {
			wait = restartFirst
		}
		s.log.Error("built-in PostgreSQL has died and is started again", "data", s.pgdata, "err", err, "in", wait)
		select {
		case <-s.quit:
			return
		case <-time.After(wait):
		}
		wait = min(wait*2, restartMax)
	}
}

// serveOnce runs one server to its end, calling up when it first answers.
func (s *Server) serveOnce(up func()) error {
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), s.settings()...)
	cmd.Dir = s.pgdata
	cmd.Env = serverEnv()
	cmd.SysProcAttr = childAttr(s.cred)
	out, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for the server's log: %w", err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		out.Close()
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	s.setProcess(cmd.Process.Pid)

	said := &lastLines{log: s.log}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer out.Close()
		said.read(out)
	})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	finish := func(err error) error {
		s.setProcess(0)
		// Backends that lost their server hold the log open until they notice.
		cut := time.AfterFunc(quitLimit, func() { out.Close() })
		reading.Wait()
		cut.Stop()
		if text := said.String(); text != "" {
			return fmt.Errorf("the server ended (%v): %s", exitText(err), text)
		}
		return fmt.Errorf("the server ended (%v)", exitText(err))
	}

	quit := s.quit
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for answered := false; ; {
		tick := poll.C
		if answered {
			tick = nil
		}
		select {
		case err := <-ended:
			return finish(err)
		case <-quit:
			cmd.Process.Signal(syscall.SIGINT)
			quit = nil
		case <-tick:
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			if err := s.ping(ctx, s.sockets); err == nil {
				answered = true
				up()
			}
			cancel()
		}
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// settings are the server's arguments. They win over postgresql.conf, so a
// hand on that file cannot open a port.
func (s *Server) settings() []string {
	set := []string{
		"listen_addresses=",
		"port=" + port,
		"unix_socket_directories=" + s.sockets,
		"unix_socket_permissions=0700",
		"logging_collector=off",
		"log_destination=stderr",
		"log_min_messages=warning",
		"log_line_prefix=",
		"timezone=UTC",
	}
	if !s.fsync {
		set = append(set, "fsync=off", "full_page_writes=off", "max_connections=300", "autovacuum=off")
	}
	args := []string{"-D", s.pgdata}
	for _, one := range set {
		args = append(args, "-c", one)
	}
	return args
}

// serverEnv is ours without what would lead the server or initdb elsewhere.
func serverEnv() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, one := range os.Environ() {
		name, _, _ := strings.Cut(one, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "LC_") || name == "LANG" || name == "TZ" ||
			strings.Contains(name, "TOKEN") || name == "DATABASE_URL" {
			continue
		}
		env = append(env, one)
	}
	return env
}

// initdb makes the cluster under a temporary name and renames it, so that a
// folder of the final name is always whole. What an interrupted one left is
// ours and unused, and stays for a person to look at.
func (s *Server) initdb(ctx context.Context) error {
	tmp, err := os.MkdirTemp(filepath.Dir(s.pgdata), "postgres.new-")
	if err != nil {
		return fmt.Errorf("make a folder for the cluster: %w", err)
	}
	done := false
	defer func() {
		if !done {
			os.RemoveAll(tmp) // made above, never in use
		}
	}()
	if s.cred != nil {
		if err := os.Chown(tmp, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return fmt.Errorf("give %s to the server's user: %w", tmp, err)
		}
	}
	args := []string{"-D", tmp, "-U", user, "-A", "trust", "-E", "UTF8", "--locale=C"}
	if !s.fsync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), args...)
	cmd.Dir = tmp
	cmd.Env = serverEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.cred}
	cmd.WaitDelay = time.Second
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, strings.TrimSpace(tail(string(text), 500)))
	}
	if err := os.Rename(tmp, s.pgdata); err != nil {
		return fmt.Errorf("put the new cluster in place: %w", err)
	}
	done = true
	return nil
}

// createDatabase makes our database on the first start.
func (s *Server) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.urlOf(s.sockets, "postgres"))
	if err != nil {
		return fmt.Errorf("connect to the new server: %w", err)
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", database).Scan(&there); err != nil {
		return fmt.Errorf("look for database %s: %w", database, err)
	}
	if there {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return fmt.Errorf("create database %s: %w", database, err)
	}
	return nil
}

// ping returns nil when the server behind the sockets answers and works on our
// data.
func (s *Server) ping(ctx context.Context, sockets string) error {
	conn, err := pgx.Connect(ctx, s.urlOf(sockets, "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var data string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return err
	}
	if !sameFile(data, s.pgdata) {
		return fmt.Errorf("the server behind %s works on %s", sockets, data)
	}
	return nil
}

func sameFile(a, b string) bool {
	ia, erra := os.Stat(a)
	ib, errb := os.Stat(b)
	return erra == nil && errb == nil && os.SameFile(ia, ib)
}

// adopt looks for a server that an earlier process of ours left running on
// this data, and uses its sockets. One that is on its way up or down is waited
// for. Zero means that none runs; a stale pid file is left to the server,
// which judges it better.
func (s *Server) adopt(ctx context.Context) (survivor int, err error) {
	for silent := time.Now(); ; {
		pid, sockets, err := readPIDFile(s.pgdata)
		if errors.Is(err, os.ErrNotExist) || err == nil && !alive(pid) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read who serves the data: %w", err)
		}
		err = s.ping(ctx, sockets)
		if err == nil {
			s.sockets = sockets
			s.setProcess(pid)
			s.log.Info("using the PostgreSQL that an earlier process left", "data", s.pgdata, "pid", pid)
			return pid, nil
		}
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == cannotConnectNow {
			silent = time.Now()
		} else if !isPostgres(pid) || time.Since(silent) > quitLimit {
			// Either the pid belongs to another program by now, or nobody
			// listens there: the server that we start can tell.
			return 0, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("process %d works on the data and does not answer (%w): stop it with `kill -INT %d`", pid, err, pid)
		case <-time.After(pollEvery):
		}
	}
}

// isPostgres tells whether the process may be a server; true where that
// cannot be seen.
func isPostgres(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return alive(pid)
	}
	return strings.HasPrefix(string(name), "postgres")
}

// readPIDFile reads the server's process and socket folder.
func readPIDFile(pgdata string) (pid int, sockets string, err error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return 0, "", err
	}
	lines := strings.Split(string(text), "\n")
	pid, err = strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 {
		return 0, "", fmt.Errorf("postmaster.pid begins with %q instead of a process", lines[0])
	}
	if len(lines) > 4 {
		sockets, _, _ = strings.Cut(lines[4], ",")
	}
	return pid, strings.TrimSpace(sockets), nil
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// clusterVersion is the major version that made the cluster, 0 when there is
// none.
func clusterVersion(pgdata string) (int, error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(pgdata); err == nil {
			return 0, fmt.Errorf("%s exists and is no cluster: move it away", pgdata)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the cluster's version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION says %q, which is no version", pgdata, text)
	}
	return major, nil
}

// lockDir keeps a second process of ours off the folder. The kernel drops the
// lock when its holder dies, so the file's being there means nothing.
func (s *Server) lockDir(dir string) error {
	name := filepath.Join(dir, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", name, err)
		}
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		return fmt.Errorf("%w by process %s: stop that one, or choose another data folder", ErrInUse, strings.TrimSpace(string(holder)))
	}
	s.lock = f
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	return nil
}

// socketDir makes the private folder of the socket: in the data folder, or
// under the temporary one when the socket's path would be too long there.
func (s *Server) socketDir(dir string) error {
	s.sockets = filepath.Join(dir, "run")
	if len(s.sockets)+len("/.s.PGSQL."+port) > socketPathMax {
		h := fnv.New64a()
		h.Write([]byte(dir))
		s.sockets = filepath.Join("/tmp", fmt.Sprintf("breakerbot-%d-%x", os.Geteuid(), h.Sum64()))
	}
	return makeDir(s.sockets, 0o700, s.cred)
}

// makeDir makes a folder for the server's user, and refuses one that belongs
// to somebody else: it would be theirs to read. A folder that exists keeps its
// owner and mode.
func makeDir(dir string, mode os.FileMode, cred *syscall.Credential) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	owner := os.Geteuid()
	if cred != nil {
		owner = int(cred.Uid)
	}
	switch err := os.Mkdir(dir, mode); {
	case err == nil:
		if err := os.Chmod(dir, mode); err != nil { // whatever the umask says
			return err
		}
		if cred != nil {
			return os.Chown(dir, int(cred.Uid), int(cred.Gid))
		}
		return nil
	case !errors.Is(err, os.ErrExist):
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder", dir)
	}
	if mode == 0o700 {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != owner {
			return fmt.Errorf("%s belongs to user %d, not to %d: move it away", dir, st.Uid, owner)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return fmt.Errorf("%s can be entered by others: `chmod 700 %s`", dir, dir)
		}
	}
	return nil
}

// serverUser is who runs the server when we are root, which it refuses to be.
func serverUser() (*syscall.Credential, error) {
	const name = "postgres"
	u, err := osuser.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no user %s to run it as (%w): run as another user, or set DATABASE_URL", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read the id of user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read the group of user %s: %w", name, err)
	}
	cred := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if groups, err := u.GroupIds(); err == nil {
		for _, g := range groups {
			if id, err := strconv.ParseUint(g, 10, 32); err == nil {
				cred.Groups = append(cred.Groups, uint32(id))
			}
		}
	}
	return cred, nil
}

// enterable says which folder on the way to dir the server's user cannot
// enter, nil when it can enter all of them.
func enterable(dir string, cred *syscall.Credential) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for at := real; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && !mayEnter(info.Mode(), st.Uid, st.Gid, cred) {
			return fmt.Errorf("user %d, which runs PostgreSQL when root starts it, cannot enter %s: choose a data folder outside it, or `chmod o+x %s`", cred.Uid, at, at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func mayEnter(mode os.FileMode, uid, gid uint32, cred *syscall.Credential) bool {
	if uid == cred.Uid {
		return mode&0o100 != 0
	}
	if gid == cred.Gid {
		return mode&0o010 != 0
	}
	if slices.Contains(cred.Groups, gid) {
		return mode&0o010 != 0
	}
	return mode&0o001 != 0
}

// lastLines keeps the end of the server's log for the error of its death and
// hands every line to the log.
type lastLines struct {
	log *slog.Logger

	mu    sync.Mutex
	lines []string
}

func (l *lastLines) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		level := slog.LevelDebug
		if strings.HasPrefix(line, "PANIC:") || strings.HasPrefix(line, "WARNING:") {
			level = slog.LevelWarn
		}
		l.log.Log(context.Background(), level, "PostgreSQL says", "line", line)
		l.mu.Lock()
		l.lines = append(l.lines, line)
		if len(l.lines) > 5 {
			l.lines = l.lines[1:]
		}
		l.mu.Unlock()
	}
	io.Copy(io.Discard, r) // after a line too long to be one
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return tail(strings.Join(l.lines, " · "), 500)
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + strings.ToValidUTF8(s[len(s)-n:], "")
	}
	return s
}
