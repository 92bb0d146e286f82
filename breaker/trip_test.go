package breaker

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// A Retry-After trips only a rule that says so, from its limit on, and only
// while it still runs.
func TestTripOnRetryAfter(t *testing.T) {
	t.Parallel()
	limit := plainRule(func(r *Rule) { r.Trip = Trip{Consecutive: 3, OnRetryAfter: Duration(10 * time.Second)} })
	for name, tc := range map[string]struct {
		rule   Rule
		change func(*Outcome)
		trips  bool
	}{
		"at the limit":         {limit, func(o *Outcome) { o.RetryAfter = 10 * time.Second }, true},
		"below the limit":      {limit, func(o *Outcome) { o.RetryAfter = 10*time.Second - 1 }, false},
		"none":                 {limit, func(*Outcome) {}, false},
		"still running":        {limit, func(o *Outcome) { o.RetryAfter, o.Age = 20*time.Second, 20*time.Second-1 }, true},
		"over by now":          {limit, func(o *Outcome) { o.RetryAfter, o.Age = 20*time.Second, 20*time.Second }, false},
		"of a success":         {limit, func(o *Outcome) { o.Cause, o.RetryAfter = OK, time.Minute }, false},
		"of an ignored cause":  {limit, func(o *Outcome) { o.Cause, o.RetryAfter = RateLimited, time.Minute }, false},
		"of a rule without it": {plainRule(), func(o *Outcome) { o.RetryAfter = time.Hour }, false},
	} {
		e := newEngine(t, tc.rule)
		if v := report(e, t0, Unavailable, tc.change); (v.State == Open) != tc.trips {
			t.Errorf("%s: %+v, want tripped %v", name, v, tc.trips)
		}
	}
}

// Who reported within the last ten minutes counts, to the moment.
func TestWitnessesAreOfTheLastTenMinutes(t *testing.T) {
	t.Parallel()
	for silence, trips := range map[time.Duration]bool{
		10 * time.Minute:   false, // b still counts: a alone does not suffice
		10*time.Minute + 1: true,
		time.Second:        false,
	} {
		for what, rule := range map[string]Rule{
			"agents": plainRule(func(r *Rule) { r.Trip.Witnesses = 2 }),
			"models": plainRule(func(r *Rule) { r.Trip.Models = 2 }),
		} {
			e := newEngine(t, rule)
			report(e, t0, OK, func(o *Outcome) { o.Agent, o.Model = "b", "y" })
			for range 3 {
				report(e, t0.Add(silence), Refused, func(o *Outcome) { o.Model = "x" })
			}
			if c := e.Circuit(t0.Add(silence), Labels{Machine: "m"}); (c.State == Open) != trips {
				t.Errorf("%s, %s after another reported: %s, want tripped %v", what, silence, c.State, trips)
			}
		}
	}
}

func TestEvidence(t *testing.T) {
	t.Parallel()
	rate := func(r *Rule) {
		r.Trip = Trip{Consecutive: 3, Rate: wholeShare / 2, Window: Window{Calls: 10}, MinCalls: 8, Witnesses: 2}
	}
	e := newEngine(t, plainRule(rate))
	by := func(agent, model string) func(*Outcome) {
		return func(o *Outcome) {
			o.Agent, o.Model, o.Error, o.HTTPStatus, o.Duration = agent, model, "no route to host", 0, 2*time.Second
		}
	}
	report(e, t0, OK)
	report(e, t0, Timeout, by("a", "x"))
	report(e, t0, OK)
	report(e, t0, Refused, by("a", "x"))
	report(e, t0, Refused, by("b", "y"))
	report(e, t0, ServerError, func(o *Outcome) { o.HTTPStatus, o.Error = 500, "boom" })
	trs := e.Drain().Transitions
	if len(trs) != 1 {
		t.Fatalf("%d transitions", len(trs))
	}
	want := &Evidence{
		Agent: "a", Error: "boom", HTTPStatus: 500, Run: 3, Calls: 6, Failures: 4, Agents: 2,
		Causes: []CauseCount{{Refused, 2}, {Timeout, 1}, {ServerError, 1}},
	}
	if !reflect.DeepEqual(trs[0].Evidence, want) || trs[0].Detail != "3 calls in a row failed: refused ×2, server_error" {
		t.Errorf("evidence %+v, %q", trs[0].Evidence, trs[0].Detail)
	}
	// The failures of a run that outgrows its window are those of the run.
	e = newEngine(t, plainRule(func(r *Rule) {
		r.Trip = Trip{Consecutive: 5, Rate: wholeShare, Window: Window{Calls: 2}, MinCalls: 2, Witnesses: 2}
	}))
	report(e, t0, OK, func(o *Outcome) { o.Agent = "b" })
	for _, cause := range []Cause{Refused, Refused, Refused, Timeout} {
		report(e, t0, cause)
	}
	report(e, t0, Timeout, func(o *Outcome) { o.Agent = "b" })
	trs = e.Drain().Transitions
	if len(trs) != 1 || trs[0].Evidence.Run != 5 || trs[0].Evidence.Failures != 2 || !reflect.DeepEqual(trs[0].Evidence.Causes, []CauseCount{{Refused, 3}, {Timeout, 2}}) {
		t.Errorf("%+v %+v, want the causes of the run", trs, trs[0].Evidence)
	}
}

// The ladder climbs with each failed probe until its cap, keeps climbing when
// the breaker trips soon after closing, and comes down with healthy time.
func TestLadder(t *testing.T) {
	t.Parallel()
	rule := plainRule(func(r *Rule) {
		r.Cooldown = Cooldown{First: Duration(10 * time.Second), Factor: 2, Max: Duration(60 * time.Second), ByCause: map[string]Duration{"timeout": Duration(4 * time.Second)}}
		r.StableAfter = Duration(100 * time.Second)
	})
	e := newEngine(t, rule)
	now := t0
	wait := func() float64 {
		v, _ := e.Breaker(now, "r{machine=m}")
		return v.RetryAt.Sub(v.EraAt).Seconds()
	}
	fails := func(cause Cause) {
		for range 3 {
			report(e, now, cause)
		}
	}
	probe := func(cause Cause) {
		v, _ := e.Breaker(now, "r{machine=m}")
		now = v.RetryAt
		g := ask(e, now, "a")
		report(e, now, cause, by(g.Permit))
	}
	is := func(what string, want float64) {
		t.Helper()
		if got := wait(); got != want {
			t.Errorf("%s: waits %g s, want %g", what, got, want)
		}
	}
	fails(Refused)
	is("the first trip", 10)
	for i, want := range []float64{20, 40, 60, 60, 60} {
		probe(Refused)
		is("failed probe "+string(rune('1'+i)), want)
	}
	probe(Timeout)
	is("by cause, one step on", 60)
	probe(OK)
	// The cap was reached at e = 3; the time-out's own ladder took it to 4.
	now = now.Add(399 * time.Second)
	fails(Refused)
	is("after three healthy spans", 20)
	probe(OK)
	now = now.Add(99 * time.Second)
	fails(Refused)
	is("soon after closing", 40)
	probe(OK)
	now = now.Add(100 * time.Second)
	fails(Refused)
	is("after one healthy span", 20)
	probe(OK)
	now = now.Add(time.Hour)
	fails(Refused)
	is("after a long time", 10)
	if _, _, err := e.Control(now, Control{Breaker: "r{machine=m}", Op: OpReset}); err != nil {
		t.Fatal(err)
	}
	fails(Refused)
	is("after a reset, however soon", 10)
	if v, _ := e.Breaker(now, "r{machine=m}"); v.Probes != 0 {
		t.Errorf("%d failed probes in a new incident", v.Probes)
	}
	probe(Refused)
	if v, _ := e.Breaker(now, "r{machine=m}"); v.Probes != 1 {
		t.Errorf("%d failed probes, want 1", v.Probes)
	}
}

// Jitter lengthens by at most its share, and by the same in the same era.
func TestJitter(t *testing.T) {
	t.Parallel()
	jitter := plainRule(func(r *Rule) { r.Cooldown.Jitter = 0.5 })
	different := map[time.Duration]bool{}
	for i := range 50 {
		e := newEngine(t, jitter)
		machine := fmt.Sprint("m", i)
		for range 3 {
			report(e, t0, Refused, func(o *Outcome) { o.Machine = machine })
		}
		v, _ := e.Breaker(t0, Name("r", Labels{Machine: machine}))
		wait := v.RetryAt.Sub(t0)
		if wait < 30*time.Second || wait > 45*time.Second {
			t.Fatalf("waits %s, want 30 s and up to half of it more", wait)
		}
		different[wait] = true
	}
	if len(different) < 40 {
		t.Fatalf("%d different waits of 50", len(different))
	}
}

// Retry-After is a floor for most rules, and the wait itself for those that
// trip on it.
func TestRetryAfterAsFloor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		onRetryAfter Duration
		asked        time.Duration
		want         float64
	}{
		"longer":                    {0, 40 * time.Second, 40},
		"shorter":                   {0, 20 * time.Second, 30},
		"capped":                    {0, 3 * time.Hour, 3600},
		"instead, longer":           {Duration(time.Hour), 40 * time.Second, 40},
		"instead, shorter":          {Duration(time.Hour), 20 * time.Second, 20},
		"instead, none":             {Duration(time.Hour), 0, 30},
		"equal to what it would be": {0, 30 * time.Second, 30},
	} {
		e := newEngine(t, plainRule(func(r *Rule) { r.Trip.OnRetryAfter = tc.onRetryAfter; r.Trip.Consecutive = 3 }))
		for range 3 {
			report(e, t0, Unavailable, func(o *Outcome) { o.RetryAfter = min(tc.asked, 59*time.Minute+59*time.Second) })
			if tc.asked > time.Hour {
				report(e, t0, Unavailable, func(o *Outcome) { o.RetryAfter = tc.asked })
			}
		}
		v, _ := e.Breaker(t0, "r{machine=m}")
		if got := v.RetryAt.Sub(t0).Seconds(); v.State != Open || got != tc.want {
			t.Errorf("%s: %s for %g s, want open for %g", name, v.State, got, tc.want)
		}
	}
}

// A probe's Retry-After outlives it: a health check does not go below it.
func TestRetryAfterOfAFailedProbe(t *testing.T) {
	t.Parallel()
	e := newEngine(t, Builtin()...)
	for range 3 {
		report(e, t0, Refused)
	}
	g := ask(e, at(60), "a")
	report(e, at(60), Refused, by(g.Permit), func(o *Outcome) { o.RetryAfter = 40 * time.Second })
	if earlier, _ := e.HealthAnswered(at(70), "m"); !earlier {
		t.Fatal("nothing was brought forward")
	}
	if v, _ := e.Breaker(at(70), "reachability{machine=m}"); !v.RetryAt.Equal(at(100)) {
		t.Fatalf("due at %s, want when the Retry-After is over", v.RetryAt.Sub(t0))
	}
}
