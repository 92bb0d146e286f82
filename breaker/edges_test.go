package breaker

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A limit is hasty when it is below the fastest of five answers of the last ten
// minutes, which are kept by the minute and leave with the last of theirs.
func TestHastyCallers(t *testing.T) {
	t.Parallel()
	type answer struct {
		at   time.Duration
		took time.Duration
		n    int
	}
	const s, m = time.Second, time.Minute
	for name, tc := range map[string]struct {
		answers []answer
		at      time.Duration
		limit   time.Duration
		hasty   bool
	}{
		"below the fastest":                  {[]answer{{0, 4 * s, 5}}, m, 4*s - 1, true},
		"the fastest itself":                 {[]answer{{0, 4 * s, 5}}, m, 4 * s, false},
		"the fastest, of a minute before":    {[]answer{{0, 4 * s, 5}, {m, 5 * s, 5}}, m, 4 * s, false},
		"below one of a minute before":       {[]answer{{0, 4 * s, 5}, {m, 5 * s, 5}}, m, 4*s - 1, true},
		"four answers":                       {[]answer{{0, 4 * s, 4}}, m, s, false},
		"five of two minutes":                {[]answer{{0, 4 * s, 3}, {m, 4 * s, 2}}, m, s, true},
		"ten minutes old":                    {[]answer{{0, 4 * s, 5}}, 10 * m, s, true},
		"older":                              {[]answer{{0, 4 * s, 5}}, 10*m + 1, s, false},
		"one minute of two has left":         {[]answer{{50 * s, 4 * s, 3}, {70 * s, 4 * s, 3}}, 655 * s, s, false},
		"with its fastest":                   {[]answer{{0, s, 3}, {m, 4 * s, 3}, {2 * m, 4 * s, 3}}, 10*m + s, 2 * s, true},
		"told after a later one":             {[]answer{{m, 4 * s, 3}, {0, 4 * s, 2}}, 2 * m, s, true},
		"after the time-out":                 {[]answer{{5 * m, 4 * s, 5}}, 2 * m, s, false},
		"one of a minute told late is older": {[]answer{{0, 4 * s, 4}, {3 * m, 4 * s, 1}, {s, 3 * s, 1}}, 4 * m, 3 * s, false},
	} {
		j := newJudge()
		ct := &circuit{target: j.target(&Labels{Machine: "m"}, nil)}
		for _, a := range tc.answers {
			for range a.n {
				j.cause(&Outcome{Cause: OK, Duration: a.took}, ct, fromTime(t0.Add(a.at)))
			}
		}
		got := j.cause(&Outcome{Cause: Timeout, Timeout: tc.limit}, ct, fromTime(t0.Add(tc.at)))
		if (got == CallerTimeout) != tc.hasty {
			t.Errorf("%s: %s, want hasty %v", name, got, tc.hasty)
		}
	}
}

// A machine's latest callers are two different agents, in whatever order they
// are told, so that an agent's own call does not hide another's.
func TestOwnCallsHideNoWitness(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	on := func(agent, machine string, cause Cause, s float64, age time.Duration) Cause {
		v, _ := e.Report(at(s), []Outcome{{Labels: Labels{Agent: agent, Machine: machine}, Cause: cause, Age: age}})
		return v[0].Cause
	}
	on("a", "m", Unreachable, 200, 0)
	on("b", "m", OK, 201, 0)
	on("a", "m", OK, 202, 152*time.Second)
	if got := on("a", "n", Unreachable, 203, 0); got != CallerOffline {
		t.Errorf("a reaches nothing and b has: %s, want %s", got, CallerOffline)
	}
}

// Calls are known again for a day, or as long as there is room.
func TestCallsHeardOfAreForgotten(t *testing.T) {
	t.Parallel()
	again := func(e *Engine, now time.Time, id string) bool {
		return report(e, now, OK, func(o *Outcome) { o.ID = id }).Duplicate
	}
	e := newEngine(t, plainRule())
	again(e, t0, "day")
	again(e, t0.Add(HeardFor), "at its end")
	if !again(e, t0.Add(HeardFor), "day") {
		t.Error("a day later, to the moment, it is not known")
	}
	again(e, t0.Add(HeardFor+1), "past it")
	if again(e, t0.Add(HeardFor+1), "day") {
		t.Error("after more than a day it is known still")
	}

	e, err := New(Config{Rules: []Rule{plainRule()}, IDsMax: 2, Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	again(e, t0, "1")
	again(e, t0, "2")
	if !again(e, t0, "1") || !again(e, t0, "2") {
		t.Error("two fit, and are not known both")
	}
	again(e, t0, "3")
	if !again(e, t0, "2") || again(e, t0, "1") {
		t.Error("want the oldest forgotten, and only that")
	}
}

func TestBoundsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{maxRules: "", maxRules + 1: "rules: there are 65 names: at most 64 are allowed"} {
		var rules []Rule
		for i := range n {
			rules = append(rules, plainRule(func(r *Rule) { r.Name = fmt.Sprint("r", i) }))
		}
		if _, err := New(Config{Rules: rules}); errText(err) != want {
			t.Errorf("%d rules: %v, want %q", n, err, want)
		}
	}
	for n, want := range map[int]string{MaxChains: "", MaxChains + 1: "chains: there are 257: at most 256 are allowed"} {
		chains := make(map[string]Chain)
		for i := range n {
			chains[fmt.Sprint("c", i)] = lab()["code"]
		}
		if _, err := New(Config{Rules: Builtin(), Chains: chains}); errText(err) != want {
			t.Errorf("%d chains: %v, want %q", n, err, want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A breaker whose ladder has not decayed is not evicted, however idle.
func TestLaddersAreNotEvicted(t *testing.T) {
	t.Parallel()
	e, err := New(Config{Rules: []Rule{plainRule(func(r *Rule) { r.StableAfter = Duration(2 * time.Hour) })}, MaxBreakers: 1, Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	trip(t, e, t0)
	report(e, at(30), ServerError) // a probe that fails: one step of the ladder
	report(e, at(60), OK)
	other := func(now time.Time) int {
		return len(report(e, now, OK, func(o *Outcome) { o.Machine = "n" }).Counted)
	}
	if other(at(60).Add(2*time.Hour-1)) != 0 {
		t.Error("the breaker is gone before its ladder has decayed")
	}
	if other(at(60).Add(2*time.Hour)) != 1 {
		t.Error("the breaker stays when its ladder has decayed")
	}
}

// An answer that is kept is given again only while all breakers stand as they did.
func TestRefusalsAreOfTheMoment(t *testing.T) {
	t.Parallel()
	rule := func(name string, cause string) Rule {
		return plainRule(func(r *Rule) { r.Name, r.Failures, r.Ignores = name, []string{cause}, []string{"neutral", "transport"} })
	}
	e := newEngine(t, rule("x", "refused"), rule("y", "reset"))
	refusing := func(s float64) string {
		var names []string
		for _, v := range ask(e, at(s), "a").Breakers {
			names = append(names, v.Rule+" "+string(v.Reason))
		}
		return strings.Join(names, ", ")
	}
	want := func(s float64, names string) {
		t.Helper()
		for range 2 { // made, and kept
			if got := refusing(s); got != names {
				t.Errorf("at %gs: refused by %q, want %q", s, got, names)
			}
		}
	}
	fall := func(s float64, cause Cause) {
		for range 3 {
			report(e, at(s), cause)
		}
	}
	control := func(s float64, breaker string, op Op) {
		t.Helper()
		if _, _, err := e.Control(at(s), Control{Breaker: breaker, Op: op}); err != nil {
			t.Fatal(err)
		}
	}
	fall(1, Refused)
	want(1, "x open")
	fall(2, Reset)
	want(2, "x open, y open")
	control(3, "x{machine=m}", OpReset)
	want(3, "y open")
	control(4, "y{machine=m}", OpHoldOpen)
	want(4, "y held_open")
	control(5, "y{machine=m}", OpReset)
	fall(5, Refused)
	want(5, "x open")
}

// Permits' words are remembered only where permits are followed, and what a call
// replaced is told with it.
func TestWhatABatchTells(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	g := ask(e, t0, "a")
	instead := Fallback{Machine: "n", Model: "x", Cause: Refused}
	report(e, t0, OK, by(g.Permit), func(o *Outcome) { o.Fallback = instead })
	report(e, t0, OK)
	b := e.Drain()
	for _, l := range b.Lately {
		if l.full.Word != 0 || l.full.Returned != 0 {
			t.Errorf("%s: the word of a permit is remembered: %s", l.Key, words(l))
		}
	}
	if len(b.Outcomes) != 2 || b.Outcomes[0].Fallback != instead || b.Outcomes[1].Fallback != (Fallback{}) {
		t.Errorf("outcomes %+v, want the first in place of %+v and the second of nothing", b.Outcomes, instead)
	}
}
