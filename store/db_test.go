package store_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"breakerbot/migrations"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

func TestMigrateTwiceAndAtTheSameTime(t *testing.T) {
	t.Parallel()
	at := storetest.EmptyURL(t)
	var all sync.WaitGroup
	for range 4 {
		db := storetest.Open(t, at)
		all.Go(func() {
			for range 2 {
				if err := db.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	list, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, connect(t, at), "SELECT count(*) FROM schema_migrations"); n != len(list) {
		t.Errorf("%d migrations are recorded, want %d", n, len(list))
	}
}

func TestMigrateRefusesANewerDatabase(t *testing.T) {
	t.Parallel()
	at := storetest.URL(t)
	execute(t, connect(t, at), "INSERT INTO schema_migrations VALUES (999, '0999_later.sql')")
	err := storetest.Open(t, at).Migrate(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the database has schema version 999, made by a newer breakerbot") {
		t.Errorf("got %v", err)
	}
}

func TestAFailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	at := storetest.EmptyURL(t)
	db := storetest.Open(t, at)
	err := store.MigrateList(db, t.Context(), []migrations.Migration{
		{Version: 1, Name: "0001_good.sql", SQL: "CREATE TABLE good ()"},
		{Version: 2, Name: "0002_bad.sql", SQL: "CREATE TABLE half (); SELECT 1/0"},
	})
	if err == nil || !strings.HasPrefix(err.Error(), "apply migration 0002_bad.sql: ") {
		t.Fatalf("got %v", err)
	}
	conn := connect(t, at)
	if !one[bool](t, conn, "SELECT to_regclass('good') IS NOT NULL AND to_regclass('half') IS NULL") {
		t.Error("want the first migration whole and nothing of the second")
	}
	if v := one[int](t, conn, "SELECT max(version) FROM schema_migrations"); v != 1 {
		t.Errorf("the schema's version is %d, want 1", v)
	}
}

func TestOpenSaysInOneSentenceWhatIsWrong(t *testing.T) {
	t.Parallel()
	good, err := url.Parse(storetest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	good.User = url.UserPassword("breakerbot", "hush-hush")
	missing := *good
	missing.Path = "/nowhere"
	for name, test := range map[string]struct{ url, want string }{
		"nobody there":  {"postgres://bob:hush-hush@127.0.0.1:1/lab", `database "lab" at 127.0.0.1 port 1 cannot be reached as user "bob": `},
		"no socket":     {"postgres://bob:hush-hush@/lab?host=/nonexistent", `database "lab" at /nonexistent port 5432 cannot be reached as user "bob": `},
		"no database":   {missing.String(), `database "nowhere" does not exist`},
		"no port":       {"postgres://bob:hush-hush@127.0.0.1:x/lab", "read the database URL: "},
		"not a URL":     {"host=127.0.0.1 password=hush-hush port=x", "read the database URL: "},
		"wrong setting": {"postgres://bob:hush-hush@127.0.0.1/lab?pool_max_conns=x", "read the database URL: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := store.Open(t.Context(), test.url, slog.New(slog.DiscardHandler))
			if err == nil {
				db.Close()
				t.Fatal("it opened")
			}
			text := err.Error()
			if !strings.Contains(text, test.want) || strings.Contains(text, "hush-hush") || strings.Contains(text, "\n") {
				t.Errorf("got %q, want one line with %q and without the password", text, test.want)
			}
		})
	}
}

func TestOneServeAtATime(t *testing.T) {
	t.Parallel()
	at := storetest.URL(t)
	first, second := storetest.Open(t, at), storetest.Open(t, at+"&application_name=second")
	lock, err := first.Lock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.LockWithin(second, t.Context(), 300*time.Millisecond)
	if err == nil || !strings.HasPrefix(err.Error(), "another serve works on this database: process ") || !strings.Contains(err.Error(), "breakerbot ") {
		t.Errorf("the second lock: %v, want an error that names the holder", err)
	}
	// The second waits for the first to go.
	got := make(chan error, 1)
	go func() {
		lock, err := second.Lock(t.Context(), nil)
		if err == nil {
			lock.Release()
		}
		got <- err
	}()
	lock.Release()
	lock.Release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestALostLockIsTakenAgain(t *testing.T) {
	t.Parallel()
	at := storetest.URL(t)
	const ours = " FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	told := make(chan bool, 10)
	lock, err := storetest.Open(t, at).Lock(t.Context(), func(held bool) { told <- held })
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	conn := connect(t, at)
	execute(t, conn, "SELECT pg_terminate_backend(pid)"+ours)
	if held := <-told; held {
		t.Fatal("told of a lock held, want of one lost")
	}
	if held := <-told; !held {
		t.Fatal("told of a second loss")
	}
	if n := one[int](t, conn, "SELECT count(*)"+ours); n != 1 {
		t.Errorf("%d locks are held, want 1", n)
	}
}

func TestLockEndsWithItsContext(t *testing.T) {
	t.Parallel()
	at := storetest.URL(t)
	lock, err := storetest.Open(t, at).Lock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	ctx, cancel := context.WithCancel(t.Context())
	second := storetest.Open(t, at)
	done := make(chan error, 1)
	go func() {
		_, err := second.Lock(ctx, nil)
		done <- err
	}()
	cancel()
	if err := <-done; err == nil || strings.Contains(err.Error(), "another serve") {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestConstraintsCarryTheInvariants(t *testing.T) {
	t.Parallel()
	conn := connect(t, storetest.URL(t))
	execute(t, conn, "INSERT INTO incidents (id, breaker, rule, opened_at) VALUES (1, 'b', 'r', $1)", t0)
	execute(t, conn, "INSERT INTO transitions (at, breaker, rule, from_state, to_state, reason, era) VALUES ($1, 'b', 'r', 'closed', 'open', 'tripped', 1)", t0)
	for name, sql := range map[string]string{
		"a second open incident":                  "INSERT INTO incidents (id, breaker, rule, opened_at) VALUES (2, 'b', 'r', $1)",
		"an end before its beginning":             "INSERT INTO incidents (id, breaker, rule, opened_at, closed_at) VALUES (3, 'c', 'r', $1, $1::timestamptz - interval '1 s')",
		"an era twice":                            "INSERT INTO transitions (at, breaker, rule, from_state, to_state, reason, era) VALUES ($1, 'b', 'r', 'open', 'closed', 'reset', 1)",
		"an unknown state":                        "INSERT INTO transitions (at, breaker, rule, from_state, to_state, reason, era) VALUES ($1, 'b', 'r', 'ajar', 'closed', 'reset', 2)",
		"an incident that is none":                "INSERT INTO transitions (at, breaker, rule, from_state, to_state, reason, era, incident_id) VALUES ($1, 'b', 'r', 'open', 'closed', 'reset', 3, 99)",
		"a second journal":                        "INSERT INTO journal (only_row, position, clock, permit_key) SELECT n > 0, 0, '{}', decode(repeat('00', 32), 'hex') FROM generate_series(1, 2) n WHERE $1::timestamptz IS NOT NULL",
		"a short key":                             "INSERT INTO journal (position, clock, permit_key) SELECT 0, '{}', '\\x00' WHERE $1::timestamptz IS NOT NULL",
		"a histogram of another shape":            "INSERT INTO outcome_counts (bucket, cause, served, calls, durations) VALUES ($1, 'ok', 'primary', 1, '{1}')",
		"an update of nothing":                    "INSERT INTO outbox (chat_id, kind, dedupe_key, payload, next_at, created_at) VALUES (1, 'update', 'u', '{}', $1, $1)",
		"a settled write without its time":        "INSERT INTO writes (idempotency_key, cause, at, until, state) VALUES ('k', 'timeout', $1, $1, 'applied')",
		"a write that ends before it was":         "INSERT INTO writes (idempotency_key, cause, at, until, state) VALUES ('k', 'timeout', $1, $1::timestamptz - interval '1 s', 'in_doubt')",
		"a write of an unknown state":             "INSERT INTO writes (idempotency_key, cause, at, until, state) VALUES ('k', 'timeout', $1, $1, 'lost')",
		"a route to nowhere that is not degraded": "INSERT INTO routes (at, chain, hop, degraded, reason) VALUES ($1, 'c', 0, false, 'r')",
		"a degraded route without an end":         "INSERT INTO routes (at, chain, hop, degraded, reason) VALUES ($1, 'c', 0, true, 'r')",
		"an unknown kind":                         "INSERT INTO outbox (chat_id, kind, dedupe_key, payload, next_at, created_at) VALUES (1, 'shout', 's', '{}', $1, $1)",
	} {
		if _, err := conn.Exec(t.Context(), sql, t0); err == nil || !strings.Contains(err.Error(), "SQLSTATE 23") {
			t.Errorf("%s: got %v, want a refusal by a constraint", name, err)
		}
	}
}
