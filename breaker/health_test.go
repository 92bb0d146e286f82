package breaker

import (
	"slices"
	"testing"
	"time"
)

func TestBootCheck(t *testing.T) {
	t.Parallel()
	cfg := Config{Rules: Builtin(), Key: []byte("k"), Machines: map[string]Machine{"gpu": {Aliases: []string{"10.0.0.9"}}}}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if opened, _ := e.BootCheck(t0, "mac", true, ""); len(opened) != 0 {
		t.Fatalf("a machine that answers: %v", opened)
	}
	opened, seq := e.BootCheck(t0, "10.0.0.9", false, "connection refused")
	if !slices.Equal(opened, []string{"reachability{machine=gpu}"}) {
		t.Fatalf("opened %v", opened)
	}
	b := e.Drain()
	if len(b.Transitions) != 1 || b.To != seq {
		t.Fatalf("%+v", b)
	}
	tr := b.Transitions[0]
	if tr.Reason != ReasonBootCheck || tr.Cause != Unreachable || !tr.Trips() || tr.Evidence.Error != "connection refused" || !tr.RetryAt.Equal(at(60)) {
		t.Fatalf("%+v", tr)
	}
	if opened, _ := e.BootCheck(at(1), "gpu", false, ""); len(opened) != 0 {
		t.Fatal("an open breaker was opened again")
	}
	if g := ask2(e, at(2), "gpu"); g.Allowed {
		t.Fatal("a machine that did not answer is called")
	}
	// Only a real call closes it.
	if earlier, _ := e.HealthAnswered(at(3), "gpu"); !earlier {
		t.Fatal("the answered check brought nothing forward")
	}
	if c := e.Circuit(at(3), Labels{Machine: "gpu", Model: "x"}); c.State != Open {
		t.Fatalf("a health check changed the state to %s", c.State)
	}
	g := ask2(e, at(3), "gpu")
	if !g.Probe {
		t.Fatalf("%+v, want the probe", g)
	}
	if v := report(e, at(4), OK, by(g.Permit), func(o *Outcome) { o.Machine = "gpu" }); v.State != Closed {
		t.Fatalf("%+v", v)
	}
}

func ask2(e *Engine, now time.Time, machine string) Grant {
	g, _ := e.Ask(now, Ask{Labels: Labels{Agent: "a", Machine: machine}})
	return g
}

func TestBootCheckLeavesOverridesAndObservers(t *testing.T) {
	t.Parallel()
	reach := Builtin()[0]
	reach.Mode = ModeObserve
	e := newEngine(t, reach)
	if opened, _ := e.BootCheck(t0, "m", false, ""); len(opened) != 0 {
		t.Fatal("a rule that only observes was opened")
	}
	if v, _ := e.Breaker(t0, "reachability{machine=m}"); v.WouldTrip != 1 {
		t.Fatalf("%+v, want it noted", v)
	}
	e = newEngine(t, Builtin()...)
	if _, _, err := e.Control(t0, Control{Breaker: "reachability{machine=m}", Op: OpHoldClosed}); err != nil {
		t.Fatal(err)
	}
	if opened, _ := e.BootCheck(t0, "m", false, ""); len(opened) != 0 {
		t.Fatal("a hold was undone")
	}
}

func TestHealthAnsweredShortensOnlyReachability(t *testing.T) {
	t.Parallel()
	e := newEngine(t, Builtin()...)
	limited := func(o *Outcome) { o.RetryAfter = 90 * time.Second }
	for range 3 {
		report(e, t0, Refused, func(o *Outcome) { o.Machine = "plain" })
		report(e, t0, Refused, limited, func(o *Outcome) { o.Machine = "later" })
	}
	for range 3 {
		report(e, t0, ServerError, func(o *Outcome) { o.Machine, o.Model = "plain", "x" })
	}
	names := []string{"plain", "later", "other"}
	if got := e.Unreachable(at(1), names); !slices.Equal(got, []string{"later", "plain"}) {
		t.Fatalf("to be asked: %v", got)
	}
	retry := func(name string) float64 {
		v, _ := e.Breaker(at(2), name)
		return v.RetryAt.Sub(t0).Seconds()
	}
	if earlier, _ := e.HealthAnswered(at(2), "plain"); !earlier || retry("reachability{machine=plain}") != 2 || retry("errors{machine=plain,model=x}") != 30 {
		t.Errorf("due at %g and %g, want now and as before", retry("reachability{machine=plain}"), retry("errors{machine=plain,model=x}"))
	}
	if earlier, _ := e.HealthAnswered(at(2), "later"); earlier || retry("reachability{machine=later}") != 90 {
		t.Errorf("due at %g, want not before the Retry-After", retry("reachability{machine=later}"))
	}
	if earlier, _ := e.HealthAnswered(at(2), "other"); earlier {
		t.Error("a machine that nobody heard of")
	}
	if got := e.Unreachable(at(2), names); !slices.Equal(got, []string{"later"}) {
		t.Errorf("to be asked after one is due: %v", got)
	}
}
