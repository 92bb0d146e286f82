package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/bot"
	"breakerbot/breaker"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// t0 is when the tests begin: a whole minute.
var t0 = time.Date(2026, 3, 2, 14, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

// feed is an Engine and a Policy of hand-made batches and plans.
type feed struct {
	mu    sync.Mutex
	seq   uint64
	from  uint64
	batch breaker.Batch
	plans func([]breaker.Transition) bot.Plan
	ticks func(time.Time) bot.Plan
}

func (f *feed) put(change func(*breaker.Batch)) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.batch)
	f.seq++
	return f.seq
}

func (f *feed) transitions(list ...breaker.Transition) uint64 {
	return f.put(func(b *breaker.Batch) { b.Transitions = append(b.Transitions, list...) })
}

func (f *feed) Drain() breaker.Batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.batch
	b.From, b.To = f.from, f.seq
	b.Clock = breaker.Clock{Now: at(int(f.seq)), Era: f.seq, Seq: f.seq}
	f.from, f.batch = f.seq, breaker.Batch{}
	return b
}

func (f *feed) Reuse(breaker.Batch) {}

func (f *feed) Backlog() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.batch.Transitions) + len(f.batch.Outcomes) + len(f.batch.Asks)
}

func (f *feed) Plan(list []breaker.Transition) bot.Plan {
	if f.plans == nil {
		return bot.Plan{}
	}
	return f.plans(list)
}

func (f *feed) Tick(now time.Time) bot.Plan {
	if f.ticks == nil {
		return bot.Plan{}
	}
	return f.ticks(now)
}

// plan makes a Policy's answer of one plan, given once.
func (f *feed) plan(p bot.Plan) {
	f.ticks = func(time.Time) bot.Plan {
		f.ticks = nil
		return p
	}
}

// journal makes a journal of f on a database that has been loaded.
func journal(t *testing.T, db *store.DB, f *feed, change ...func(*store.JournalOptions)) *store.Journal {
	t.Helper()
	if _, _, err := db.Load(t.Context(), time.Time{}, 0); err != nil {
		t.Fatal(err)
	}
	o := store.JournalOptions{DB: db, Engine: f, Policy: f, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return at(0) }}
	for _, c := range change {
		c(&o)
	}
	return store.NewJournal(o)
}

func flush(t *testing.T, j *store.Journal, now time.Time) {
	t.Helper()
	if err := j.Flush(t.Context(), now); err != nil {
		t.Fatal(err)
	}
}

// run runs the journal until the test ends.
func run(t *testing.T, j *store.Journal) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { j.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := j.Close(end); err != nil {
			t.Error(err)
		}
	})
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// one reads one value with a query.
func one[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

var gpu = breaker.Labels{Machine: "gpu-box", Model: "qwen3-30b"}

const gpuErrors = "errors{machine=gpu-box,model=qwen3-30b}"

// step is a transition of the breaker of gpu.
func step(era int, from, to breaker.State, reason string, cause breaker.Cause, incident int) breaker.Transition {
	return breaker.Transition{
		At: at(era), Breaker: gpuErrors, Rule: "errors", Labels: gpu, From: from, To: to,
		Cause: cause, Reason: reason, Detail: fmt.Sprintf("step %d", era), Era: uint64(era), Incident: uint64(incident), Actor: "coder-1",
	}
}

func trip(era int) breaker.Transition {
	t := step(era, breaker.Closed, breaker.Open, breaker.ReasonTripped, breaker.Refused, era)
	t.RetryAt = at(era + 60)
	t.Evidence = &breaker.Evidence{Agent: "coder-1", Error: "connection refused", Run: 3,
		Causes: []breaker.CauseCount{{Cause: breaker.Refused, N: 2}, {Cause: breaker.Timeout, N: 1}}}
	return t
}

// tripOf is a trip of another machine's breaker.
func tripOf(machine string, era int) breaker.Transition {
	t := trip(era)
	t.Machine = machine
	t.Breaker = breaker.Name("errors", t.Labels)
	return t
}
