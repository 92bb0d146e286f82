package store_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"breakerbot/breaker"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

// lab is an engine with the built-in rules and a chain, restored from a
// database as of a moment, and its journal.
func lab(t *testing.T, db *store.DB, now time.Time) (*breaker.Engine, *store.Journal) {
	t.Helper()
	e, err := breaker.New(breaker.Config{Rules: breaker.Builtin(), Key: []byte("k"), Chains: map[string]breaker.Chain{"code": {Targets: []breaker.Target{
		{Machine: "gpu-box", Model: "big", Provider: "lab", Tier: "high"}, {Machine: "mac-mini", Model: "small", Tier: "low"},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	snap, _, err := db.Load(t.Context(), now, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Restore(snap); err != nil {
		t.Fatal(err)
	}
	return e, store.NewJournal(store.JournalOptions{DB: db, Engine: e, Policy: &feed{}, Advance: e.Advance, Log: slog.New(slog.DiscardHandler)})
}

func TestAWriteIsHeldAfterARestart(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db := storetest.Open(t, url)
	e, j := lab(t, db, at(0))
	target := breaker.Labels{Agent: "coder", Machine: "gpu-box", Model: "big", Provider: "lab"}
	for _, key := range []string{"job-1", "job-2", "job-3"} {
		v, _ := e.Report(at(1), []breaker.Outcome{{Labels: target, Cause: breaker.Timeout, Write: true, IdempotencyKey: key, Age: time.Second}})
		if !v[0].InDoubt {
			t.Fatalf("%s: %+v, want it in doubt", key, v[0])
		}
	}
	if _, _, err := e.Reconcile(at(2), "job-2", true, "coder"); err != nil { // in the transaction that puts it down
		t.Fatal(err)
	}
	flush(t, j, at(2))
	if _, _, err := e.Reconcile(at(3), "job-3", false, "an\x00na"); err != nil { // and in one after it
		t.Fatal(err)
	}
	flush(t, j, at(3))

	want := breaker.Write{Key: "job-1", Labels: target, Cause: breaker.Timeout, At: at(0), Until: at(86400), State: breaker.WriteInDoubt}
	e, j = lab(t, db, at(4))
	ask := func(now time.Time, key string) breaker.Grant {
		g, _ := e.Ask(now, breaker.Ask{Labels: breaker.Labels{Agent: "chat", Machine: "mac-mini"}, IdempotencyKey: key})
		return g
	}
	if g := ask(at(5), "job-1"); g.Reason != breaker.RefusedWriteInDoubt || g.Write == nil || *g.Write != want {
		t.Fatalf("after the restart: %+v of %+v, want a refusal of %+v", g, g.Write, want)
	}
	if g := ask(at(5), "job-2"); !g.Allowed || g.Write.State != breaker.WriteApplied || !g.Write.SettledAt.Equal(at(2)) || g.Write.SettledBy != "coder" {
		t.Errorf("one that was applied: %+v of %+v", g, g.Write)
	}
	if w, _, err := e.Reconcile(at(5), "job-3", true, "coder"); err == nil || w.State != breaker.WriteNotApplied || w.SettledBy != "an\uFFFDna" {
		t.Errorf("the other answer: %+v, %v", w, err)
	}
	// In doubt once more, after somebody had looked.
	e.Report(at(6), []breaker.Outcome{{Labels: target, Cause: breaker.Truncated, Write: true, IdempotencyKey: "job-2"}})
	flush(t, j, at(6))
	e, _ = lab(t, db, at(7))
	if g := ask(at(7), "job-2"); g.Reason != breaker.RefusedWriteInDoubt || g.Write.Cause != breaker.Truncated || !g.Write.SettledAt.IsZero() {
		t.Errorf("in doubt again: %+v of %+v", g, g.Write)
	}

	e, _ = lab(t, db, at(86400))
	if w, ok := e.Write(at(86400), "job-1"); !ok || w.State != breaker.WriteExpired {
		t.Errorf("nobody looked: %+v, %v", w, ok)
	}
	snap, _, err := db.Load(t.Context(), at(2*86400), 0)
	if err != nil || len(snap.Writes) != 1 || snap.Writes[0].Key != "job-2" {
		t.Errorf("what is known after two days: %+v, %v; want the one of 6 s", snap.Writes, err)
	}
	if n, err := db.Prune(t.Context(), at(2*86400+1), store.Retention{}); err != nil || n == 0 {
		t.Errorf("deleted %d rows, %v", n, err)
	}
	if got := one[string](t, connect(t, url), "SELECT string_agg(concat_ws(' ', idempotency_key, machine, state), ',') FROM writes"); got != "job-2 gpu-box in_doubt" {
		t.Errorf("writes left: %s", got)
	}
}

func TestRoutesAreRecorded(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db := storetest.Open(t, url)
	e, j := lab(t, db, at(0))
	route := func(second int, tried ...breaker.Tried) {
		t.Helper()
		if _, _, err := e.Route(at(second), breaker.RouteAsk{Agent: "coder", Chain: "code", Tried: tried}); err != nil {
			t.Fatal(err)
		}
	}
	route(0) // the first target is nothing to record
	big := breaker.Tried{Machine: "gpu-box", Model: "big", Cause: breaker.Quota}
	route(1, big)
	route(2, big, breaker.Tried{Machine: "mac-mini"})
	for range 3 {
		e.Report(at(3), []breaker.Outcome{{Labels: breaker.Labels{Agent: "coder", Machine: "gpu-box", Model: "big", Provider: "lab"}, Cause: breaker.Refused}})
	}
	route(3)
	flush(t, j, at(3))
	conn := connect(t, url)
	got := one[string](t, conn, `SELECT string_agg(concat_ws(' ', extract(epoch FROM at - $1)::int, agent, chain, nullif(machine, ''), nullif(model, ''), nullif(provider, ''), nullif(tier, ''),
		hop, degraded, extract(epoch FROM until - $1)::int, reason), E'\n' ORDER BY id) FROM routes`, t0)
	if want := "1 coder code mac-mini small mac-mini low 1 f tried\n2 coder code 1 t 602 nothing_left\n3 coder code mac-mini small mac-mini low 1 f open"; got != want {
		t.Errorf("recorded:\n%s\nwant:\n%s", got, want)
	}
	if got := one[string](t, conn, "SELECT (skipped -> 0)::text FROM routes ORDER BY id LIMIT 1"); got != `{"cause": "quota", "model": "big", "reason": "tried", "machine": "gpu-box", "provider": "lab"}` {
		t.Errorf("passed over: %s", got)
	}
	if got := one[string](t, conn, "SELECT skipped -> 0 ->> 'retry_at' FROM routes ORDER BY id DESC LIMIT 1"); got != "2026-03-02T14:01:03Z" {
		t.Errorf("may be asked again at %s", got)
	}
	seconds := func(keep store.Retention) string {
		if _, err := db.Prune(t.Context(), at(3602), keep); err != nil {
			t.Fatal(err)
		}
		return one[string](t, conn, "SELECT string_agg(extract(epoch FROM at - $1)::int::text, ',' ORDER BY id) FROM routes", t0)
	}
	if got := seconds(store.Retention{Counts: time.Hour, Transitions: time.Hour}); got != "1,2,3" {
		t.Errorf("%s are left, want all", got)
	}
	if got := seconds(store.Retention{Outcomes: time.Hour}); got != "2,3" {
		t.Errorf("%s are left, want the young ones", got)
	}
}

func TestRoutesAreBounded(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	var lines logLines
	reg := prometheus.NewPedanticRegistry()
	f := &feed{}
	j := journal(t, storetest.Open(t, url), f, func(o *store.JournalOptions) { o.Log, o.Registerer = slog.New(&lines), reg })
	const most = 50_000
	f.put(func(b *breaker.Batch) {
		for range most + 3 {
			b.Routes = append(b.Routes, breaker.Routed{At: at(0), Chain: "code", Degraded: true, Until: at(1), Reason: "nothing_left"})
		}
	})
	flush(t, j, at(1))
	if n := one[int](t, connect(t, url), "SELECT count(*) FROM routes"); n != most {
		t.Errorf("%d routes are recorded, want %d", n, most)
	}
	if n := lines.count("fallbacks and degraded answers were given and not recorded: the database was away for too long"); n != 1 {
		t.Errorf("%d lines say what is missing:\n%s", n, lines.String())
	}
	if n, err := testutil.GatherAndCount(reg, "breakerbot_routes_unrecorded_total"); n != 1 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
	if j.Full() {
		t.Error("what is written still waits")
	}
}

// What agents and machines did before a restart counts in the judgements after
// it, and there is one row for each of them however often they change.
func TestWhatWasDoneLatelyComesBack(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db := storetest.Open(t, url)
	e, j := lab(t, db, at(0))
	target := breaker.Labels{Agent: "coder", Machine: "gpu-box", Model: "big"}
	for i := range 6 {
		e.Report(at(i), []breaker.Outcome{{Labels: target, Cause: breaker.OK, Duration: 2 * time.Second}})
		flush(t, j, at(i))
	}
	conn := connect(t, url)
	if got := one[string](t, conn, `SELECT string_agg(saved ->> 'kind', ',' ORDER BY key) FROM lately`); got != "agent,machine,target" {
		t.Errorf("rows of %s, want one of each kind", got)
	}
	if !one[bool](t, conn, "SELECT bool_and(at BETWEEN $1 AND $2) FROM lately", at(0), at(5)) {
		t.Error("the rows are not as old as what they tell of")
	}
	// Judged by the fastest of at least five answers, all from before.
	hasty := breaker.Outcome{Labels: target, Cause: breaker.Timeout, Timeout: time.Second, Duration: time.Second}
	for restarted, want := range map[bool]breaker.Cause{false: breaker.Timeout, true: breaker.CallerTimeout} {
		if e, _ = lab(t, storetest.New(t), at(9)); restarted {
			e, _ = lab(t, db, at(9))
		}
		if v, _ := e.Report(at(10), []breaker.Outcome{hasty}); v[0].Cause != want {
			t.Errorf("restarted %v: %s, want %s", restarted, v[0].Cause, want)
		}
	}
	snap, _, err := db.Load(t.Context(), at(5+86400), 0)
	if err != nil || len(snap.Lately) != 0 {
		t.Errorf("a day later %d are loaded, %v", len(snap.Lately), err)
	}
	if _, err := db.Prune(t.Context(), at(6+86400), store.Retention{}); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, conn, "SELECT count(*) FROM lately"); n != 0 {
		t.Errorf("%d rows are left a day later", n)
	}
}

// Several batches of one transaction have one row for each key, with its last
// word.
func TestWritesAndLatelyOfOneTransaction(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db := storetest.Open(t, url)
	e, j := lab(t, db, at(0))
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 4 {
		target := breaker.Labels{Agent: "coder", Machine: "gpu-box", Model: "big"}
		e.Report(at(i), []breaker.Outcome{{Labels: target, Cause: breaker.Timeout, Write: true, IdempotencyKey: "job", Age: time.Second},
			{Labels: target, Cause: breaker.OK}})
		if err := j.Flush(cut, at(i)); err == nil {
			t.Fatal("a write whose context had ended went through")
		}
	}
	flush(t, j, at(4))
	conn := connect(t, url)
	if got := one[string](t, conn, "SELECT concat_ws(' ', count(*), max(extract(epoch FROM at - $1)::int)) FROM writes", t0); got != "1 2" {
		t.Errorf("rows, and when the last one ended: %s; want 1 2", got)
	}
	if got := one[string](t, conn, "SELECT concat_ws(' ', count(*), count(DISTINCT key)) FROM lately"); got != "3 3" {
		t.Errorf("rows and keys: %s, want those of the agent, the machine and the target", got)
	}
}
