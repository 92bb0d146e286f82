// Package store keeps breakerbot's history and state in PostgreSQL: the journal
// that writes what the engine did, what a restart reads back, the queries of
// the HTTP interface, the outbox of messages and the numbers of digests.
//
// It decides nothing. What a transition is comes from package breaker, what
// people are told from package bot; here both become rows. SQL stands beside
// the code that scans its result, and never reads the database's clock.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"breakerbot/migrations"
)

// connectTimeout bounds one attempt to connect unless the URL says otherwise.
const connectTimeout = 5 * time.Second

// DB is a database of breakerbot's. Its methods are safe for concurrent use.
type DB struct {
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Open connects to the database. The error is one sentence without the
// password: either the URL cannot be read, or nobody answers there. A nil log
// is slog's default.
func Open(ctx context.Context, url string, log *slog.Logger) (*DB, error) {
	if log == nil {
		log = slog.Default()
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err) // pgx hides the password
	}
	params := cfg.ConnConfig.RuntimeParams
	if params["application_name"] == "" {
		host, _ := os.Hostname()
		params["application_name"] = clip(fmt.Sprintf("breakerbot %d@%s", os.Getpid(), host), 63)
	}
	params["timezone"] = "UTC"
	// A connection whose other end has vanished must not hold the journal's row.
	params["idle_in_transaction_session_timeout"] = "15s"
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, unreachable(cfg.ConnConfig, err)
	}
	return &DB{pool: pool, log: log}, nil
}

// Close gives all connections back; it waits for those in use.
func (db *DB) Close() { db.pool.Close() }

// Ping tells whether the database answers, in one sentence.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.pool.Ping(ctx); err != nil {
		return unreachable(db.pool.Config().ConnConfig, err)
	}
	return nil
}

// unreachableError is a failure to connect as one sentence.
type unreachableError struct {
	sentence string
	err      error
}

func (e *unreachableError) Error() string { return e.sentence }
func (e *unreachableError) Unwrap() error { return e.err }

func unreachable(cfg *pgx.ConnConfig, err error) error {
	why := err
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		why = connect.Unwrap()
	}
	text, _, _ := strings.Cut(why.Error(), "\n") // one line for each address tried
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		text = pgErr.Message
	} else if errors.Is(err, context.DeadlineExceeded) {
		text = "no answer in time"
	} else if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	return &unreachableError{fmt.Sprintf("database %q at %s port %d cannot be reached as user %q: %s", cfg.Database, cfg.Host, cfg.Port, cfg.User, text), err}
}

// The keys of the advisory locks: "bb" and a number.
const (
	migrateKey int64 = 0x6262_0001
	serveKey   int64 = 0x6262_0002
)

// Migrate brings the schema up to date. Each migration has its own transaction,
// and a lock lets many callers do it at the same time. It refuses a database
// that a newer breakerbot has migrated.
func (db *DB) Migrate(ctx context.Context) error {
	list, err := migrations.All()
	if err != nil {
		return err
	}
	return db.migrate(ctx, list)
}

func (db *DB) migrate(ctx context.Context, list []migrations.Migration) error {
	for {
		done, err := db.migrateOne(ctx, list)
		if done || err != nil {
			return err
		}
	}
}

// migrateOne applies the first migration that is missing; true means that none
// was.
func (db *DB) migrateOne(ctx context.Context, list []migrations.Migration) (done bool, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", migrateKey); err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS schema_migrations (version integer PRIMARY KEY CHECK (version > 0), name text NOT NULL)"); err != nil {
			return fmt.Errorf("make the table of migrations: %w", err)
		}
		var version int
		if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM schema_migrations").Scan(&version); err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
		if version > len(list) {
			return fmt.Errorf("the database has schema version %d, made by a newer breakerbot than this one, which knows %d: run the newer one, or restore a backup of before", version, len(list))
		}
		if version == len(list) {
			done = true
			return nil
		}
		m := list[version]
		if _, err := tx.Conn().PgConn().Exec(ctx, m.SQL).ReadAll(); err != nil {
			return fmt.Errorf("apply migration %s: %w", m.Name, err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO schema_migrations (version, name) VALUES ($1, $2)", m.Version, m.Name); err != nil {
			return fmt.Errorf("record migration %s: %w", m.Name, err)
		}
		db.log.Info("migration applied", "name", m.Name)
		return nil
	})
	return done, err
}

// clip cuts a string to n bytes at most, never inside a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
