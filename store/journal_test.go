package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"breakerbot/bot"
	"breakerbot/breaker"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

func TestAnIncidentFromItsTripToItsEnd(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	db := storetest.Open(t, at1)
	f := &feed{}
	j := journal(t, db, f)

	f.transitions(trip(1))
	flush(t, j, at(1))
	// What follows comes in two more transactions and adds to the row.
	f.put(func(b *breaker.Batch) {
		b.Asks = []breaker.Asked{
			{Labels: gpu, At: at(2), Reason: breaker.RefusedOpen, Incidents: []uint64{1}, N: 40},
			{Labels: gpu, At: at(3), Reason: breaker.AskedGranted, N: 2},
		}
		b.Transitions = []breaker.Transition{
			step(2, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 1),
			step(3, breaker.HalfOpen, breaker.Open, breaker.ReasonProbeFailed, breaker.Timeout, 1),
			step(4, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 1),
			step(5, breaker.HalfOpen, breaker.Open, breaker.ReasonProbesLost, breaker.Timeout, 1),
		}
	})
	flush(t, j, at(5))
	f.transitions(
		step(6, breaker.Open, breaker.HalfOpen, breaker.ReasonProbePassive, 0, 1),
		step(7, breaker.HalfOpen, breaker.Open, breaker.ReasonProbeFailed, breaker.Timeout, 1),
		step(8, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 1),
		step(9, breaker.HalfOpen, breaker.Closed, breaker.ReasonProbeOK, 0, 1),
		trip(10), // the next, in the same transaction as the end of the one before
	)
	flush(t, j, at(10))

	got, ok, err := db.Incident(t.Context(), 1)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if got.Breaker != gpuErrors || got.Labels != gpu || got.Rule != "errors" || !got.OpenedAt.Equal(at(1)) || !got.ClosedAt.Equal(at(9)) {
		t.Errorf("incident 1 is %+v", got)
	}
	if got.Trips != 4 || got.Refused != 40 {
		t.Errorf("trips %d, refused %d; want 4 and 40", got.Trips, got.Refused)
	}
	if want := "[{timeout 3} {refused 2}]"; fmt.Sprint(got.Causes) != want {
		t.Errorf("causes are %v, want %s", got.Causes, want)
	}
	if got.Evidence == nil || got.Evidence.Error != "connection refused" || got.Detail != "step 1" {
		t.Errorf("evidence %+v, detail %q", got.Evidence, got.Detail)
	}
	conn := connect(t, at1)
	if !one[bool](t, conn, "SELECT probes_failed = 2 AND last_probe = 'timeout' AND last_probe_at = $1 AND closed_by_probe = 3 FROM incidents WHERE id = 1", at(7)) {
		t.Error("the probes are not as told")
	}
	open, _, err := db.Incident(t.Context(), 10)
	if err != nil || !open.ClosedAt.IsZero() || open.Trips != 1 {
		t.Errorf("incident 10 is %+v, %v", open, err)
	}
	list, next, err := db.Transitions(t.Context(), breaker.Filter{})
	if err != nil || next != "" || len(list) != 10 {
		t.Fatalf("%d transitions, cursor %q, %v", len(list), next, err)
	}
	for i, tr := range list {
		if int(tr.Era) != 10-i {
			t.Errorf("transition %d has era %d: not in the engine's order", i, tr.Era)
		}
	}
	if first := list[9]; first.Incident != 1 || first.Cause != breaker.Refused || !first.RetryAt.Equal(at(61)) || first.Evidence == nil || first.To != breaker.Open {
		t.Errorf("the trip reads back as %+v", first)
	}
	if n := one[int](t, conn, "SELECT count(*) FROM transitions WHERE cause IS NULL"); n != 5 {
		t.Errorf("%d transitions have no cause, want 5", n)
	}
	of, err := db.BreakerIncidents(t.Context(), gpuErrors, 1)
	if err != nil || len(of) != 1 || of[0].ID != 10 {
		t.Errorf("the breaker's last incident: %v, %v", of, err)
	}
	steps, err := db.BreakerTransitions(t.Context(), gpuErrors, 2)
	if err != nil || len(steps) != 2 || steps[0].Era != 10 || steps[1].Era != 9 {
		t.Errorf("the breaker's last transitions: %v, %v", steps, err)
	}
}

func TestAnIncidentWithoutAnEndDoesNotStopTheNext(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	f := &feed{}
	j := journal(t, db, f)
	f.transitions(trip(1))
	flush(t, j, at(1))
	f.transitions(trip(5), trip(9)) // nothing closed 1 or 5
	flush(t, j, at(9))
	for id, closed := range map[uint64]time.Time{1: at(5), 5: at(9), 9: {}} {
		if got, _, err := db.Incident(t.Context(), id); err != nil || !got.ClosedAt.Equal(closed) {
			t.Errorf("incident %d closed at %v (%v), want %v", id, got.ClosedAt, err, closed)
		}
	}
}

func TestCountsAddUp(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	db := storetest.Open(t, at1)
	f := &feed{}
	j := journal(t, db, f)
	outcome := func(second int, d time.Duration, cause breaker.Cause) breaker.Applied {
		return breaker.Applied{Labels: gpu, At: at(second), Cause: cause, Duration: d, CostUSD: 0.25}
	}
	f.put(func(b *breaker.Batch) {
		late := outcome(10, 50*time.Millisecond, breaker.OK)
		late.Late, late.Latency = true, breaker.Slow
		b.Outcomes = []breaker.Applied{outcome(0, 50*time.Millisecond, breaker.OK), late, outcome(59, 0, breaker.OK), outcome(60, time.Second, breaker.OK), outcome(1, time.Hour, breaker.Timeout)}
	})
	flush(t, j, at(60))
	f.put(func(b *breaker.Batch) {
		b.Outcomes = []breaker.Applied{outcome(30, 51*time.Millisecond, breaker.OK)}
		b.Asks = []breaker.Asked{{Labels: gpu, At: at(30), Reason: breaker.AskedProbe, N: 1}, {Labels: gpu, At: at(31), Reason: breaker.AskedProbe, N: 2}}
	})
	flush(t, j, at(61))
	f.put(func(b *breaker.Batch) {
		b.Asks = []breaker.Asked{{Labels: gpu, At: at(59), Reason: breaker.AskedProbe, N: 3}}
	})
	flush(t, j, at(62))

	conn := connect(t, at1)
	if got := one[string](t, conn, "SELECT concat_ws(' ', calls, duration_ms, durations, cost_usd, slow, late) FROM outcome_counts WHERE bucket = $1 AND cause = 'ok'", at(0)); got != "4 151 {2,1,0,0,0,0,0,0,0,0,0,0,0,0,0} 1 1 1" {
		t.Errorf("the first minute is %s", got)
	}
	if got := one[string](t, conn, "SELECT durations::text FROM outcome_counts WHERE cause = 'timeout'"); got != "{0,0,0,0,0,0,0,0,0,0,0,0,0,0,1}" {
		t.Errorf("an hour is in %s", got)
	}
	if got := one[int](t, conn, "SELECT count(*) FROM outcome_counts"); got != 3 {
		t.Errorf("%d rows of counts, want 3", got)
	}
	if got := one[int64](t, conn, "SELECT calls FROM permit_counts"); got != 6 {
		t.Errorf("%d permits, want 6", got)
	}
	if len(store.DurationBounds)+1 != 15 {
		t.Errorf("the schema has 15 buckets, the code %d", len(store.DurationBounds)+1)
	}
}

func TestStatesAreReplacedAndEvicted(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	f := &feed{}
	j := journal(t, storetest.Open(t, at1), f)
	f.put(func(b *breaker.Batch) {
		b.States = []breaker.Saved{{Name: "a", Rule: "r", State: breaker.Open, Era: 4, RetryAt: at(9)}, {Name: "b", Rule: "r"}, {Name: "c", Rule: "r"}}
	})
	flush(t, j, at(1))
	f.put(func(b *breaker.Batch) {
		b.States = []breaker.Saved{{Name: "a", Rule: "r", State: breaker.HalfOpen, Era: 5}, {Name: "c", Rule: "r", Era: 7}}
		b.Evicted = []string{"b", "c"} // c was made anew afterwards
	})
	flush(t, j, at(2))
	got := one[string](t, connect(t, at1), "SELECT string_agg(concat_ws(' ', name, state, era, retry_at), ', ' ORDER BY name) FROM breakers")
	if want := "a half_open 5, c closed 7"; got != want {
		t.Errorf("the breakers are %s; want %s", got, want)
	}
}

func TestStrayBytesDoNotStopTheJournal(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	f := &feed{}
	j := journal(t, db, f)
	bad := trip(1)
	bad.Actor, bad.Detail = "a\x00b", "cut \xff"
	bad.Evidence.Error = "nul \x00 and \\u0000 as written"
	f.transitions(bad)
	flush(t, j, at(1))
	list, _, err := db.Transitions(t.Context(), breaker.Filter{})
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if got := list[0]; got.Actor != "a\uFFFDb" || got.Detail != "cut \uFFFD" || got.Evidence.Error != "nul \uFFFD and \\u0000 as written" {
		t.Errorf("read back %q, %q, %q", got.Actor, got.Detail, got.Evidence.Error)
	}
}

func TestARestartRestoresTheEngine(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	rules := []breaker.Rule{}
	built := func() *breaker.Engine {
		cfg := breaker.Config{Rules: append(rules, breaker.Builtin()...), Key: bytes.Repeat([]byte{1}, 32)}
		e, err := breaker.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := built()
	snap, key, err := db.Load(t.Context(), at(0), 100)
	if err != nil || len(snap.States) != 0 || len(key) != 32 || snap.Clock != (breaker.Clock{}) {
		t.Fatalf("an empty database loads as %v, %d bytes, %v", snap, len(key), err)
	}
	if err := e.Restore(snap); err != nil {
		t.Fatal(err)
	}
	f := &feed{}
	j := store.NewJournal(store.JournalOptions{DB: db, Engine: e, Policy: f, Advance: e.Advance, Log: slog.New(slog.DiscardHandler)})
	var seq uint64
	for i := range 3 {
		_, seq = e.Report(at(i), []breaker.Outcome{{Labels: breaker.Labels{Agent: "coder", Machine: "gpu-box"}, Cause: breaker.Refused}})
	}
	flush(t, j, at(3))
	if err := j.Wait(t.Context(), seq); err != nil {
		t.Fatal(err)
	}
	before := e.Circuit(at(10), breaker.Labels{Agent: "coder", Machine: "gpu-box"})
	if before.State != breaker.Open {
		t.Fatalf("the circuit is %v after three refused calls", before.State)
	}

	again := built()
	snap, key2, err := db.Load(t.Context(), at(4), 100)
	if err != nil || !bytes.Equal(key, key2) {
		t.Fatalf("the second load: %v, same key %v", err, bytes.Equal(key, key2))
	}
	if err := again.Restore(snap); err != nil {
		t.Fatal(err)
	}
	after := again.Circuit(at(10), breaker.Labels{Agent: "coder", Machine: "gpu-box"})
	if after.State != before.State || !after.RetryAt.Equal(before.RetryAt) || after.RetryAt.IsZero() {
		t.Errorf("restored as %v until %v, was %v until %v", after.State, after.RetryAt, before.State, before.RetryAt)
	}
	// And the journal goes on where the first one stopped.
	j = store.NewJournal(store.JournalOptions{DB: db, Engine: again, Policy: f, Advance: again.Advance, Log: slog.New(slog.DiscardHandler)})
	if _, _, err := again.Control(at(20), breaker.Control{Breaker: "reachability{machine=gpu-box}", Op: breaker.OpReset, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	flush(t, j, at(20))
	open, err := db.OpenIncidents(t.Context())
	if err != nil || len(open) != 0 {
		t.Errorf("open incidents after the reset: %v, %v", open, err)
	}
}

func TestOpenIncidentsComeWithTheirAlert(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	f := &feed{}
	j := journal(t, db, f)
	f.plans = func([]breaker.Transition) bot.Plan { return bot.Plan{Joins: map[uint64]uint64{1: 1, 2: 1, 3: 3}} }
	f.transitions(tripOf("a", 1), tripOf("b", 2), tripOf("c", 3))
	flush(t, j, at(3))
	f.plans = nil
	closing := step(4, breaker.HalfOpen, breaker.Closed, breaker.ReasonProbeOK, 0, 1)
	closing3 := step(5, breaker.HalfOpen, breaker.Closed, breaker.ReasonProbeOK, 0, 3)
	f.transitions(closing, closing3, tripOf("d", 6))
	flush(t, j, at(6))
	got, err := db.OpenIncidents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, o := range got {
		text = append(text, fmt.Sprintf("%d %d %s %v", o.ID, o.Alert, o.Labels.Machine, o.ClosedAt.IsZero()))
	}
	// 1 is over but its alert is not; 3 is over with its alert; 6 has none.
	if want := "1 1 a false, 2 1 b true, 6 0 d true"; strings.Join(text, ", ") != want {
		t.Errorf("got %s; want %s", strings.Join(text, ", "), want)
	}
}

func TestAPlanIsOfOneTransactionWithItsTransitions(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	f := &feed{}
	j := journal(t, storetest.Open(t, at1), f)
	f.plans = func(list []breaker.Transition) bot.Plan {
		return bot.Plan{New: []bot.Message{{ChatID: 1, Kind: "shout", DedupeKey: "k", Alert: list[0].Incident}}} // refused by the table
	}
	seq := f.transitions(trip(1))
	if err := j.Flush(t.Context(), at(1)); err == nil {
		t.Fatal("the table took an unknown kind")
	}
	conn := connect(t, at1)
	if n := one[int](t, conn, "SELECT count(*) FROM transitions"); n != 0 {
		t.Errorf("%d transitions without their alert", n)
	}
	if err := j.Wait(t.Context(), seq); !errors.Is(err, store.ErrAway) {
		t.Errorf("waiting for what the database refuses: %v, want ErrAway", err)
	}
	// It is kept, plan and all, and written once the table takes it.
	execute(t, conn, "ALTER TABLE outbox DROP CONSTRAINT outbox_kind_check")
	flush(t, j, at(2))
	if n := one[int](t, conn, "SELECT (SELECT count(*) FROM transitions) + (SELECT count(*) FROM outbox)"); n != 2 {
		t.Errorf("%d rows, want the transition and its alert", n)
	}
}

func TestDedupeKeysAreForEver(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	f := &feed{}
	j := journal(t, storetest.Open(t, at1), f)
	for range 2 {
		f.plan(bot.Plan{New: []bot.Message{{ChatID: 1, Kind: bot.KindNotice, DedupeKey: "same"}}})
		flush(t, j, at(1))
	}
	if n := one[int](t, connect(t, at1), "SELECT count(*) FROM outbox"); n != 1 {
		t.Errorf("%d messages with one key", n)
	}
}

// A commit whose answer was lost looks to the journal like a failed one. The
// proxy swallows the answer and cuts the connection.
func TestALostAnswerIsNotWrittenTwice(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	p := newProxy(t, at1)
	db := storetest.Open(t, p.url)
	f := &feed{}
	j := journal(t, db, f)
	f.put(func(b *breaker.Batch) {
		b.Transitions = []breaker.Transition{trip(1)}
		b.Outcomes = []breaker.Applied{{Labels: gpu, At: at(1), Cause: breaker.Refused}}
		b.Asks = []breaker.Asked{{Labels: gpu, At: at(1), Reason: breaker.RefusedOpen, Incidents: []uint64{1}, N: 1}}
	})
	p.swallowCommit.Store(true)
	seq := f.seq
	flush(t, j, at(1)) // tried again at once, on another connection
	if p.swallowCommit.Load() {
		t.Fatal("no commit came through the proxy")
	}
	if err := j.Wait(t.Context(), seq); err != nil {
		t.Fatal(err)
	}
	f.transitions(step(2, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 1))
	flush(t, j, at(2))
	conn := connect(t, at1)
	got := one[string](t, conn, "SELECT concat_ws(' ', (SELECT count(*) FROM transitions), (SELECT sum(calls) FROM outcome_counts), (SELECT sum(calls) FROM permit_counts), (SELECT refused FROM incidents), (SELECT position FROM journal))")
	if got != "2 1 1 1 2" {
		t.Errorf("transitions, outcomes, permits, refused, position: %s; want 2 1 1 1 2", got)
	}
}

func TestASecondWriterIsFencedOff(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	db := storetest.Open(t, at1)
	f, g := &feed{}, &feed{}
	j, k := journal(t, db, f), journal(t, db, g)
	f.transitions(trip(1))
	g.transitions(tripOf("other", 2))
	flush(t, j, at(1))
	if err := k.Flush(t.Context(), at(1)); err == nil || !strings.Contains(err.Error(), "another server has written to this database") {
		t.Errorf("the second writer: %v", err)
	}
	if n := one[int](t, connect(t, at1), "SELECT count(*) FROM transitions"); n != 1 {
		t.Errorf("%d transitions, want those of the first only", n)
	}
}

// Backends are cut off at random moments while many write; in the end
// everything is there once and in order.
func TestCutConnectionsLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	at1 := storetest.URL(t)
	db := storetest.Open(t, at1+"&application_name=victim")
	f := &feed{}
	j := journal(t, db, f)
	run(t, j)
	conn := connect(t, at1)
	var era int
	done := make(chan struct{})
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				f.mu.Lock() // the era and the place in the batch go together
				era++
				f.batch.Transitions = append(f.batch.Transitions, tripOf(fmt.Sprint("m", era), era))
				f.batch.Outcomes = append(f.batch.Outcomes, breaker.Applied{Labels: gpu, At: at(0), Cause: breaker.OK})
				f.seq++
				seq := f.seq
				f.mu.Unlock()
				if err := j.Wait(t.Context(), seq); err != nil && !errors.Is(err, store.ErrAway) {
					t.Error(err)
				}
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	cuts := 0
	for cutting := true; cutting && cuts < 30; {
		select {
		case <-done:
			cutting = false
		default:
			cuts += one[int](t, conn, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim' AND state <> 'idle'")
		}
	}
	<-done
	if cuts == 0 {
		t.Error("no connection was cut")
	}
	flush(t, j, at(0))
	if got := one[string](t, conn, "SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE era = place), (SELECT sum(calls) FROM outcome_counts)) FROM (SELECT era, row_number() OVER (ORDER BY id) AS place FROM transitions) t"); got != "400 400 400" {
		t.Errorf("transitions, those in order, outcomes: %s; want 400 400 400", got)
	}
}

func TestPostgresAwayUnderLoad(t *testing.T) {
	t.Parallel()
	server := storetest.Private(t)
	db := storetest.Open(t, server.URL())
	var lines logLines
	commits := make(chan struct{}, 1000)
	f := &feed{}
	reg := prometheus.NewPedanticRegistry()
	j := journal(t, db, f, func(o *store.JournalOptions) {
		o.Log, o.Max, o.Registerer = slog.New(&lines), 50, reg
		o.OnCommit = func() { commits <- struct{}{} }
	})
	run(t, j)
	if err := j.Wait(t.Context(), f.transitions(tripOf("m1", 1))); err != nil {
		t.Fatal(err)
	}
	<-commits
	server.Stop(t)
	seq := f.transitions(tripOf("m2", 2))
	if err := j.Wait(t.Context(), seq); !errors.Is(err, store.ErrAway) {
		t.Fatalf("waiting while it is away: %v", err)
	}
	// Known to be away, it answers at once: no time passes that the test could
	// measure, so the context that has ended already must not be looked at.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Wait(ended, seq); !errors.Is(err, store.ErrAway) {
		t.Errorf("waiting once it is known to be away: %v", err)
	}
	era := 2
	for !j.Full() {
		era++
		seq = f.transitions(tripOf(fmt.Sprint("m", era), era))
	}
	if era != 51 { // m1 is written, m2 to m51 wait
		t.Errorf("the journal of 50 was full with %d waiting", era-1)
	}
	if got, err := testutil.GatherAndCount(reg, "breakerbot_transitions_total"); err != nil || got != 1 {
		t.Errorf("%d series of transitions while away (%v), want that of the one written", got, err)
	}
	server.Start(t)
	<-commits
	for {
		if err := j.Wait(t.Context(), seq); err == nil {
			break
		} else if !errors.Is(err, store.ErrAway) {
			t.Fatal(err)
		}
		select {
		case <-commits:
		case <-t.Context().Done():
		}
	}
	if j.Full() {
		t.Error("it is full although all is written")
	}
	list, _, err := db.Transitions(t.Context(), breaker.Filter{Limit: 1000})
	if err != nil || len(list) != 51 {
		t.Fatalf("%d transitions, %v; want 51", len(list), err)
	}
	for i, tr := range list {
		if int(tr.Era) != 51-i {
			t.Fatalf("place %d has era %d", i, tr.Era)
		}
	}
	if away, back := lines.count("the database is away"), lines.count("the database is back"); away != 1 || back != 1 {
		t.Errorf("%d lines say away and %d back, want one each:\n%s", away, back, lines.String())
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

func TestCloseCountsWhatIsLost(t *testing.T) {
	t.Parallel()
	server := storetest.Private(t)
	db := storetest.Open(t, server.URL())
	var lines logLines
	f := &feed{}
	j := journal(t, db, f, func(o *store.JournalOptions) { o.Log = slog.New(&lines) })
	server.Stop(t)
	f.put(func(b *breaker.Batch) {
		b.Transitions = []breaker.Transition{trip(1), step(2, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 1)}
		b.Outcomes = make([]breaker.Applied, 3)
		b.Asks = []breaker.Asked{{Labels: gpu, At: at(0), Reason: breaker.AskedGranted, N: 1}}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := j.Close(ctx)
	if err == nil || !strings.HasPrefix(err.Error(), "stop the journal with 2 transitions and 4 outcomes and permits unwritten: ") {
		t.Errorf("got %v", err)
	}
	if n := lines.count("transition lost"); n != 2 {
		t.Errorf("%d lost transitions are logged, want 2:\n%s", n, lines.String())
	}
}

func TestCloseWritesWhatIsLeft(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	f := &feed{}
	j := journal(t, db, f)
	f.transitions(trip(1))
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := db.Incident(t.Context(), 1); !ok || err != nil {
		t.Errorf("the incident is there: %v, %v", ok, err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := &feed{}
	j := journal(t, storetest.New(t), f) // nobody runs it
	seq := f.transitions(trip(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has gone")
	cancel(gone)
	if err := j.Wait(ctx, seq); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	f := &feed{}
	j := journal(t, storetest.New(t), f, func(o *store.JournalOptions) { o.Registerer, o.MaxSeries = reg, 1 })
	f.transitions(tripOf("a", 1), tripOf("b", 2), tripOf("c", 3))
	flush(t, j, at(3))
	const head = "# HELP breakerbot_transitions_total Transitions of breakers that are in the database.\n# TYPE breakerbot_transitions_total counter\n"
	const series = `breakerbot_transitions_total{from_state="closed",machine="%s",model="%s",rule="errors",to_state="open"} %d` + "\n"
	want := head + fmt.Sprintf(series, "a", "qwen3-30b", 1) + fmt.Sprintf(series, "other", "other", 2)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "breakerbot_transitions_total"); err != nil {
		t.Error(err)
	}
	f.put(func(b *breaker.Batch) { b.Evicted = []string{tripOf("a", 1).Breaker} })
	flush(t, j, at(4))
	want = head + fmt.Sprintf(series, "other", "other", 2)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "breakerbot_transitions_total"); err != nil {
		t.Error(err)
	}
}

// logLines is a handler that keeps what is logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }
func (l *logLines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logLines) WithGroup(string) slog.Handler            { return l }
func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func (l *logLines) count(begin string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.HasPrefix(line, begin) {
			n++
		}
	}
	return n
}

func BenchmarkJournal(b *testing.B) {
	at1 := storetest.URL(b)
	db, err := store.Open(b.Context(), at1, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, _, err := db.Load(b.Context(), time.Time{}, 0); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("outcomes=%d", size), func(b *testing.B) {
			snap, _, err := db.Load(b.Context(), time.Time{}, 0)
			if err != nil {
				b.Fatal(err)
			}
			f := &feed{seq: snap.Clock.Seq, from: snap.Clock.Seq}
			j := store.NewJournal(store.JournalOptions{DB: db, Engine: f, Policy: f, Log: slog.New(slog.DiscardHandler), Every: -1})
			for b.Loop() {
				f.put(func(batch *breaker.Batch) {
					for i := range size {
						batch.Outcomes = append(batch.Outcomes, breaker.Applied{Labels: breaker.Labels{Agent: "a", Machine: fmt.Sprint("m", i%20), Model: "x"}, At: at(i / 100), Cause: breaker.OK, Duration: time.Second})
					}
				})
				if err := j.Flush(b.Context(), at(0)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "outcomes/s")
		})
		b.Run(fmt.Sprintf("transitions=%d", size), func(b *testing.B) {
			snap, _, err := db.Load(b.Context(), time.Time{}, 0)
			if err != nil {
				b.Fatal(err)
			}
			f := &feed{seq: snap.Clock.Seq, from: snap.Clock.Seq}
			j := store.NewJournal(store.JournalOptions{DB: db, Engine: f, Policy: f, Log: slog.New(slog.DiscardHandler), Every: -1})
			era := int(snap.Clock.Seq) * 10_000
			for b.Loop() {
				f.put(func(batch *breaker.Batch) {
					for range size {
						era++
						t := tripOf(fmt.Sprint("m", era%50), era)
						t.At = at(0)
						batch.Transitions = append(batch.Transitions, t)
					}
				})
				if err := j.Flush(b.Context(), at(0)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "transitions/s")
		})
	}
}
