package breaker

import (
	"testing"
	"time"
)

// Each rule that names slow or slow_first_token measures for itself, strictly
// over its limit; an agent may name them too.
func TestSlow(t *testing.T) {
	t.Parallel()
	rule := func(failures []string, after, first time.Duration) Rule {
		return plainRule(func(r *Rule) {
			r.Failures, r.Ignores = failures, []string{"caller"}
			r.SlowAfter, r.SlowFirstTokenAfter = Duration(after), Duration(first)
			r.Trip = Trip{Consecutive: 1}
		})
	}
	slow := rule([]string{"slow"}, 10*time.Second, 2*time.Second)
	first := rule([]string{"slow_first_token"}, 10*time.Second, 2*time.Second)
	firstOff := rule([]string{"slow_first_token"}, 10*time.Second, 0)
	both := rule([]string{"slow", "slow_first_token"}, 10*time.Second, 2*time.Second)
	neither := rule([]string{"timeout"}, 10*time.Second, 2*time.Second)
	for name, tc := range map[string]struct {
		rule   Rule
		change func(*Outcome)
		want   Cause // the latency told; 0: none
		trips  bool
	}{
		"at the limit":                     {slow, func(o *Outcome) { o.Duration = 10 * time.Second }, 0, false},
		"over the limit":                   {slow, func(o *Outcome) { o.Duration = 10*time.Second + 1 }, Slow, true},
		"under the limit":                  {slow, func(o *Outcome) { o.Duration = time.Second }, 0, false},
		"named":                            {slow, func(o *Outcome) { o.Latency = Slow }, Slow, true},
		"another latency named":            {slow, func(o *Outcome) { o.Latency = SlowFirstToken }, SlowFirstToken, false},
		"its first token is not asked for": {slow, func(o *Outcome) { o.FirstToken = time.Minute }, 0, false},
		"first token at the limit":         {first, func(o *Outcome) { o.FirstToken = 2 * time.Second }, 0, false},
		"first token over the limit":       {first, func(o *Outcome) { o.FirstToken = 2*time.Second + 1 }, SlowFirstToken, true},
		"first token named":                {first, func(o *Outcome) { o.Latency = SlowFirstToken }, SlowFirstToken, true},
		"its duration is not asked for":    {first, func(o *Outcome) { o.Duration = time.Hour }, 0, false},
		"first token without a limit":      {firstOff, func(o *Outcome) { o.FirstToken = time.Hour }, 0, false},
		"named without a limit":            {firstOff, func(o *Outcome) { o.Latency = SlowFirstToken }, SlowFirstToken, true},
		"both are told as slow":            {both, func(o *Outcome) { o.Duration, o.FirstToken = time.Minute, time.Minute }, Slow, true},
		"first token of both":              {both, func(o *Outcome) { o.FirstToken = time.Minute }, SlowFirstToken, true},
		"a rule that names neither":        {neither, func(o *Outcome) { o.Duration, o.FirstToken = time.Hour, time.Hour }, 0, false},
		"what is named stays told":         {neither, func(o *Outcome) { o.Latency = Slow }, Slow, false},
		"only an ok is slow":               {both, func(o *Outcome) { o.Cause, o.Duration = BadRequest, time.Hour }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, tc.rule)
			v := report(e, t0, OK, tc.change)
			if v.Latency != tc.want || (v.State == Open) != tc.trips {
				t.Fatalf("%+v, want latency %q and tripped %v", v, tc.want, tc.trips)
			}
			if v.State == Open {
				if view, _ := e.Breaker(t0, "r{machine=m}"); view.Cause != tc.want {
					t.Errorf("opened by %s, want %s", view.Cause, tc.want)
				}
			}
		})
	}
}

// The latency that a rule measured first is the one told, whatever later rules
// make of the call.
func TestSlowForSeveralRules(t *testing.T) {
	t.Parallel()
	named := func(name, cause string, after time.Duration) Rule {
		return plainRule(func(r *Rule) {
			r.Name, r.Failures, r.Ignores, r.SlowAfter, r.SlowFirstTokenAfter = name, []string{cause}, nil, Duration(after), Duration(after)
		})
	}
	e := newEngine(t, named("strict", "slow", time.Second), named("patient", "slow", time.Minute), named("first", "slow_first_token", time.Second))
	v := report(e, t0, OK, func(o *Outcome) { o.Duration, o.FirstToken = 10*time.Second, 10*time.Second })
	if v.Latency != Slow || len(v.Counted) != 3 {
		t.Fatalf("%+v, want slow, counted by all", v)
	}
	for rule, run := range map[string]int{"strict": 1, "patient": 0, "first": 1} {
		if view, _ := e.Breaker(t0, rule+"{machine=m}"); view.Run != run {
			t.Errorf("%s has a run of %d, want %d", rule, view.Run, run)
		}
	}
}
