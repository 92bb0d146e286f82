package breaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"
)

func writing(key string) func(*Outcome) {
	return func(o *Outcome) { o.Write, o.IdempotencyKey = true, key }
}

func askToWrite(e *Engine, now time.Time, machine, key string) Grant {
	g, _ := e.Ask(now, Ask{Labels: Labels{Agent: "b", Machine: machine}, IdempotencyKey: key})
	return g
}

func TestWhichWritesAreInDoubt(t *testing.T) {
	t.Parallel()
	for _, cause := range Causes() {
		e := newEngine(t, plainRule())
		want := cause == Timeout || cause == GatewayTimeout || cause == Reset || cause == Stalled || cause == Truncated
		if v := report(e, t0, cause, writing("k")); v.InDoubt != want || v.Cause != cause {
			t.Errorf("a write that came to %s: %+v, want in doubt %v", cause, v, want)
		}
		if g := askToWrite(e, at(1), "elsewhere", "k"); g.Allowed == want {
			t.Errorf("a permit after %s: %+v", cause, g)
		}
	}
	e := newEngine(t, plainRule())
	for name, change := range map[string]func(*Outcome){
		"no write":          func(o *Outcome) { o.IdempotencyKey = "k" },
		"no key":            func(o *Outcome) { o.Write = true },
		"of a day ago":      func(o *Outcome) { writing("k")(o); o.Age = 24 * time.Hour },
		"answered by cache": func(o *Outcome) { writing("k")(o); o.Served = ServedCache },
	} {
		if v := report(e, t0, Timeout, change); v.InDoubt {
			t.Errorf("%s is in doubt", name)
		}
	}
	if v := report(e, t0, Timeout, writing("late"), func(o *Outcome) { o.Age = time.Hour }); !v.InDoubt || !v.Late {
		t.Errorf("a late write: %+v, want it in doubt all the same", v)
	}
	if g := askToWrite(e, at(23*3600-1), "elsewhere", "late"); g.Allowed || !g.RetryAt.Equal(at(23*3600)) {
		t.Errorf("a day after the call ended less a second: %+v", g)
	}
	if g := askToWrite(e, at(23*3600), "elsewhere", "late"); !g.Allowed || g.Write.State != WriteExpired {
		t.Errorf("a day after the call ended: %+v, want it allowed and the write told as expired", g)
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	report(e, t0, Timeout, writing("k"))
	if g := askToWrite(e, at(1), "elsewhere", "k"); g.Allowed || g.Reason != RefusedWriteInDoubt || g.State != Closed ||
		g.Write == nil || g.Write.Machine != "m" || g.Write.Agent != "a" || g.Write.Cause != Timeout {
		t.Fatalf("%+v %+v, want refused with the place to ask", g, g.Write)
	}
	if _, _, err := e.Reconcile(at(2), "other", true, "b"); !errors.Is(err, ErrUnknownWrite) {
		t.Errorf("an unknown key: %v", err)
	}
	e.Drain()
	w, seq, err := e.Reconcile(at(2), "k", false, "b")
	if err != nil || w.State != WriteNotApplied || w.SettledBy != "b" || !w.SettledAt.Equal(at(2)) {
		t.Fatalf("%+v, %v", w, err)
	}
	if b := e.Drain(); len(b.Writes) != 1 || b.Writes[0] != w || b.To != seq {
		t.Errorf("to be stored: %+v", b.Writes)
	}
	if again, _, err := e.Reconcile(at(3), "k", false, "c"); err != nil || again != w {
		t.Errorf("the same answer again: %+v, %v", again, err)
	}
	if stands, _, err := e.Reconcile(at(3), "k", true, "c"); !errors.Is(err, ErrWriteSettled) || stands != w {
		t.Errorf("the other answer: %+v, %v", stands, err)
	}
	if g := askToWrite(e, at(4), "elsewhere", "k"); !g.Allowed || g.Write.State != WriteNotApplied {
		t.Errorf("once reconciled: %+v", g)
	}
	if v := report(e, at(5), Timeout, writing("k"), func(o *Outcome) { o.Age = 4 * time.Second }); v.InDoubt {
		t.Errorf("a call that ended before somebody looked: %+v", v)
	}
	report(e, at(5), Reset, writing("k"))
	if v := report(e, at(6), Timeout, writing("k"), func(o *Outcome) { o.Machine, o.Age = "n", 20*time.Hour }); !v.InDoubt {
		t.Errorf("an older call of a key in doubt: %+v", v)
	}
	if g := askToWrite(e, at(6), "elsewhere", "k"); g.Allowed || g.Write.State != WriteInDoubt || !g.Write.SettledAt.IsZero() || g.Write.Machine != "m" || !g.RetryAt.Equal(at(5+24*3600)) {
		t.Errorf("in doubt a second time: %+v", g)
	}
	if w, _, err := e.Reconcile(at(30*3600), "k", true, "b"); err != nil || w.State != WriteApplied {
		t.Errorf("reconciled after it expired: %+v, %v", w, err)
	}
	if _, known := e.Write(at(49*3600), "k"); known {
		t.Error("a day after its time the key is still known")
	}
}

func TestDoubtComesBeforeOtherRefusals(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	report(e, t0, Timeout, writing("k"))
	if _, _, err := e.Control(t0, Control{Breaker: "r{machine=n}", Op: OpHoldOpen}); err != nil {
		t.Fatal(err)
	}
	g := askToWrite(e, at(1), "n", "k")
	if g.Reason != RefusedWriteInDoubt || g.State != Open || len(g.Breakers) != 1 || !g.RetryAt.IsZero() {
		t.Fatalf("%+v, want the doubt told first, the hold too, and no time", g)
	}
	if g := askToWrite(e, at(1), "n", ""); g.Reason != RefusedHeldOpen || g.Write != nil {
		t.Fatalf("without the key: %+v", g)
	}
	report(e, at(2), Timeout, writing("k2"))
	if _, _, err := e.Reconcile(at(3), "k2", true, "b"); err != nil {
		t.Fatal(err)
	}
	if g := askToWrite(e, at(4), "n", "k2"); g.Reason != RefusedHeldOpen || g.Write == nil || g.Write.State != WriteApplied {
		t.Fatalf("held, of a write that is settled: %+v", g)
	}
}

func TestWritesSurviveARestartAndAreBounded(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	for i := range MaxWrites + 10 {
		report(e, at(float64(i)/1000), Timeout, writing(fmt.Sprint("k", i)), func(o *Outcome) { o.Machine = fmt.Sprint(i % 10) })
	}
	if n := len(e.doubts.byKey); n > MaxWrites || n < MaxWrites*9/10 {
		t.Fatalf("%d writes are known, want most of %d", n, MaxWrites)
	}
	text, err := json.Marshal(e.Snapshot().Writes)
	if err != nil {
		t.Fatal(err)
	}
	var snap Snapshot
	if err := json.Unmarshal(text, &snap.Writes); err != nil {
		t.Fatal(err)
	}
	again := newEngine(t, plainRule())
	if err := again.Restore(snap); err != nil {
		t.Fatal(err)
	}
	last := fmt.Sprint("k", MaxWrites+9)
	for key, held := range map[string]bool{"k0": false, last: true} {
		if g := askToWrite(again, at(200), "elsewhere", key); g.Allowed == held {
			t.Errorf("%s after the restart: %+v, want held %v", key, g, held)
		}
	}
}

// What ended when somebody looked was seen by who looked; of two calls that ended
// together, the first that was told of holds the key.
func TestMomentsOfWrites(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	report(e, t0, Timeout, writing("k"))
	if _, _, err := e.Reconcile(at(10), "k", false, "ops"); err != nil {
		t.Fatal(err)
	}
	if v := report(e, at(10), Timeout, writing("k")); v.InDoubt {
		t.Errorf("a call that ended when somebody looked: %+v", v)
	}
	if v := report(e, at(10).Add(1), Timeout, writing("k")); !v.InDoubt {
		t.Errorf("a call that ended after that: %+v", v)
	}
	report(e, at(10).Add(1), Timeout, writing("k"), func(o *Outcome) { o.Machine = "other" })
	if w, ok := e.Write(at(11), "k"); !ok || w.Machine != "m" || w.State != WriteInDoubt {
		t.Errorf("of two that ended together, %+v is known, want the first", w)
	}
}
