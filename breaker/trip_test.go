package breaker

import (
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
