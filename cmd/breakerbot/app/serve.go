package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"breakerbot/digest"
	"breakerbot/ingest"
	"breakerbot/store"
	"breakerbot/store/pgserver"
)

const (
	// stopLimit is how long a graceful stop may take in all. intakeLimit is how
	// long requests may take to end, lastLimit how long the steps get that come
	// when the time is up: enough to tell a server of ours to go.
	stopLimit   = 9 * time.Second
	intakeLimit = 3 * time.Second
	lastLimit   = 300 * time.Millisecond
	// startRetry and startRetryMax are the waits between attempts to reach the
	// database at start; startRemind is how often the log says so again.
	startRetry    = 250 * time.Millisecond
	startRetryMax = 5 * time.Second
	startRemind   = time.Minute

	digestEvery = 5 * time.Second
	pruneEvery  = time.Hour
)

// runServe runs the service until ctx ends, then stops it in order: intake,
// journal, sender, pool, own Postgres.
func runServe(ctx context.Context, cfg Config, sys System) (err error) {
	log := slog.New(slog.NewTextHandler(sys.Err, nil))
	if cfg.TokenFile != "" {
		token, created, err := EnsureTokenFile(cfg.TokenFile)
		if err != nil {
			return err
		}
		if created {
			log.Info("token file made; this command prints the token", "command", "breakerbot token --show "+cfg.TokenFile)
		}
		cfg.Tokens = append(cfg.Tokens, token)
	}
	for _, w := range append(cfg.Warnings, UnknownVariables(os.Environ())...) {
		log.Warn(w)
	}
	s, err := newService(cfg, log, time.Now, sys.Out, isTerminal(sys.Out))
	if err != nil {
		return err
	}

	// The listener comes first: a taken port is told at once, and whoever asks
	// meanwhile hears that the state is not restored yet.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w (the key listen, or BREAKERBOT_LISTEN, names another address)", cfg.Listen, err)
	}
	server := ingest.HTTPServer(s.http.Handler(), log)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Close()
	log.Info("listening", "address", listener.Addr().String(), "tokens", len(cfg.Tokens), "version", version())

	stops := &stopper{log: log}
	defer func() { err = errors.Join(err, stops.stop()) }()
	if err := s.start(ctx, stops); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it was ready
		}
		return err
	}
	stops.add("intake", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, intakeLimit)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			log.Warn("connections were cut: their requests took too long to end")
			return server.Close()
		}
		return nil
	})
	log.Info("ready", "address", listener.Addr().String(), "chats", len(s.cfg.Telegram.Chats), "telegram", s.telegram != nil,
		"rules", len(cfg.Rules), "digest", cfg.Digest.Cron, "zone", cfg.Zone.String())
	select {
	case <-ctx.Done():
		log.Info("stopping", "limit", stopLimit)
		return nil
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", cfg.Listen, err)
	}
}

// start brings up the database, restores the state and starts the loops. A
// configured database that does not answer is waited for, however often it
// goes away meanwhile.
func (s *service) start(ctx context.Context, stops *stopper) error {
	url := string(s.cfg.DatabaseURL)
	if url == "" {
		var err error
		if url, err = builtIn(ctx, stops, pgserver.Options{DataDir: s.cfg.DataDir, Log: s.log}); err != nil {
			return err
		}
	}
	var told time.Time
	for wait := startRetry; ; wait = min(wait*2, startRetryMax) {
		away, err := s.connect(ctx, url, stops)
		if err == nil {
			s.run(stops)
			return nil
		}
		if !away {
			return err
		}
		s.waiting(err)
		if now := time.Now(); now.Sub(told) >= startRemind {
			told = now
			s.log.Error("waiting for the database", "error", err, "permits_meanwhile", s.cfg.StartOpen)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// builtIn starts a Postgres of our own and gives its URL.
func builtIn(ctx context.Context, stops *stopper, o pgserver.Options) (url string, err error) {
	pg, err := pgserver.Start(ctx, o)
	if err != nil {
		return "", err
	}
	stops.add("built-in postgres", pg.Stop)
	return pg.URL(), nil
}

// connect opens the database, brings its schema up to date, takes the lock and
// restores the state. away tells that it failed because the database does not
// answer, so that trying again may help; nothing is left of the attempt then.
func (s *service) connect(ctx context.Context, url string, stops *stopper) (away bool, err error) {
	db, err := store.Open(ctx, url, s.log)
	if err != nil {
		return true, err
	}
	var lock *store.Lock
	if err = db.Migrate(ctx); err == nil {
		if lock, err = db.Lock(ctx, nil); err == nil {
			err = s.restore(ctx, db)
		}
	}
	if err != nil {
		away = db.Ping(ctx) != nil
		if lock != nil {
			lock.Release()
		}
		db.Close()
		return away, err
	}
	stops.add("database pool", func(context.Context) error { db.Close(); return nil })
	stops.add("lock", func(context.Context) error { lock.Release(); return nil })
	return false, nil
}

// run starts the loops and tells stops how each one ends.
func (s *service) run(stops *stopper) {
	loop := func(name string, f func(context.Context)) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { f(ctx) })
		stops.add(name, func(context.Context) error {
			cancel()
			wg.Wait()
			return nil
		})
	}
	loop("sender", s.sender.Run)
	loop("digests", func(ctx context.Context) {
		every(ctx, digestEvery, func(now time.Time) {
			if err := s.tellDigests(ctx, now); err != nil && ctx.Err() == nil {
				s.log.Error("digest", "error", err)
			}
		})
	})
	loop("retention", func(ctx context.Context) { every(ctx, pruneEvery, func(now time.Time) { s.prune(ctx, now) }) })
	if s.poller != nil {
		loop("commands", s.poller.Run)
	}
	stops.add("journal", s.journal.Close)
	loop("journal loop", s.journal.Run)
	if len(s.cfg.Health) > 0 {
		loop("health checks", func(ctx context.Context) {
			every(ctx, healthEvery, func(time.Time) { s.checks.round(ctx) })
		})
	}
}

// tellDigests stores the digests that are due. What has happened until now is
// written first, so that nothing is missing from them.
func (s *service) tellDigests(ctx context.Context, now time.Time) error {
	if _, away := s.journal.Away(); away {
		return nil // the journal says so already
	}
	if err := s.journal.Flush(ctx, now); err != nil {
		return err
	}
	return s.digests.Tick(ctx, now)
}

func (s *service) prune(ctx context.Context, now time.Time) {
	keep := store.Retention{Outcomes: s.cfg.Retention.Outcomes, Counts: s.cfg.Retention.Counts, Transitions: s.cfg.Retention.Transitions}
	rows, err := s.db.Prune(ctx, now, keep)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Error("delete what is older than its retention", "error", err)
	case rows > 0:
		s.log.Info("deleted what is older than its retention", "rows", rows)
	}
}

// every calls f at once and then at each tick, until ctx ends.
func every(ctx context.Context, period time.Duration, f func(time.Time)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for now := time.Now(); ; {
		f(now)
		select {
		case <-ctx.Done():
			return
		case now = <-ticker.C:
		}
	}
}

// stopper stops what was started, the last first, all within one limit.
type stopper struct {
	log   *slog.Logger
	steps []stopStep
}

type stopStep struct {
	name string
	do   func(context.Context) error
}

func (s *stopper) add(name string, do func(context.Context) error) {
	s.steps = append(s.steps, stopStep{name, do})
}

// stop does every step, also after one that failed or ran out of time. It may
// be called again and then does nothing.
func (s *stopper) stop() error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	steps := s.steps
	s.steps = nil
	var errs []error
	for _, step := range slices.Backward(steps) {
		done := make(chan error, 1)
		go func() { done <- step.do(ctx) }()
		var err error
		select {
		case err = <-done:
		case <-time.After(max(stopLimit-time.Since(began), lastLimit)):
			err = errors.New("it does not end in time and is left behind")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", step.name, err))
		}
	}
	if len(steps) > 0 {
		s.log.Info("stopped", "took", time.Since(began).Round(time.Millisecond), "errors", len(errs))
	}
	return errors.Join(errs...)
}

// isTerminal tells whether w is a terminal that takes colors.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// runMigrate brings the schema up to date and says so.
func runMigrate(ctx context.Context, cfg Config, sys System) error {
	return withDatabase(ctx, cfg, sys, func(db *store.DB) error {
		if err := db.Migrate(ctx); err != nil {
			return err
		}
		_, err := fmt.Fprintln(sys.Out, "the schema is up to date")
		return err
	})
}

// runDigest prints a report of a period, straight from the database.
func runDigest(ctx context.Context, cfg Config, sys System, args digestCmd) error {
	period, err := digest.ParsePeriod(args.Period)
	if err != nil {
		return usageError{fmt.Errorf("digest: --period: %w", err)}
	}
	now := time.Now()
	until := now
	if args.Until != "" {
		if until, err = time.Parse(time.RFC3339, args.Until); err != nil {
			return usageError{fmt.Errorf("digest: --until: %q is no time: it looks like 2006-01-02T15:04:05Z", args.Until)}
		}
	}
	return withDatabase(ctx, cfg, sys, func(db *store.DB) error {
		if err := db.Migrate(ctx); err != nil {
			return err
		}
		runner := &digest.Runner{Zone: cfg.Zone, Source: db}
		report, err := runner.PreviewUntil(ctx, now, until, period)
		if err != nil {
			return err
		}
		_, body, err := formatDigest(report, args.Format)
		if err != nil {
			return err
		}
		if args.Out != "" {
			return os.WriteFile(args.Out, body, 0o644)
		}
		_, err = sys.Out.Write(body)
		return err
	})
}

// withDatabase opens the configured database for one command. The built-in one
// is started for it, unless a running serve has it: then that one is used.
func withDatabase(ctx context.Context, cfg Config, sys System, f func(*store.DB) error) (err error) {
	log := slog.New(slog.NewTextHandler(sys.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	stops := &stopper{log: log}
	defer func() { err = errors.Join(err, stops.stop()) }()
	url := string(cfg.DatabaseURL)
	if url == "" {
		url, err = builtIn(ctx, stops, pgserver.Options{DataDir: cfg.DataDir, Log: log})
		if errors.Is(err, pgserver.ErrInUse) {
			url, err = pgserver.Attach(ctx, cfg.DataDir)
		}
		if err != nil {
			return err
		}
	}
	db, err := store.Open(ctx, url, log)
	if err != nil {
		return err
	}
	stops.add("database pool", func(context.Context) error { db.Close(); return nil })
	return f(db)
}
