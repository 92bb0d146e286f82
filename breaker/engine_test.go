package breaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return t0.Add(time.Duration(seconds * float64(time.Second)))
}

// plainRule trips on three transport failures in a row and waits 30 s.
func plainRule(change ...func(*Rule)) Rule {
	r := Rule{
		Name: "r", Scope: []string{"machine"}, Failures: []string{"transport"},
		Ignores:  []string{"caller", "capacity", "access", "quality", "latency"},
		Trip:     Trip{Consecutive: 3},
		Cooldown: Cooldown{First: Duration(30 * time.Second)},
		Lease:    Duration(10 * time.Second),
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func newEngine(t testing.TB, rules ...Rule) *Engine {
	t.Helper()
	e, err := New(Config{Rules: rules, Key: []byte("test key")})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func report(e *Engine, now time.Time, cause Cause, change ...func(*Outcome)) Verdict {
	o := Outcome{Labels: Labels{Agent: "a", Machine: "m"}, Cause: cause}
	for _, f := range change {
		f(&o)
	}
	v, _ := e.Report(now, []Outcome{o})
	return v[0]
}

func trip(t *testing.T, e *Engine, now time.Time) {
	t.Helper()
	for range 3 {
		report(e, now, ServerError)
	}
	if c := e.Circuit(now, Labels{Machine: "m"}); c.State != Open {
		t.Fatalf("state after three failures = %s, want open", c.State)
	}
}

func ask(e *Engine, now time.Time, agent string) Grant {
	g, _ := e.Ask(now, Ask{Labels: Labels{Agent: agent, Machine: "m"}})
	return g
}

func by(permit string) func(*Outcome) { return func(o *Outcome) { o.Permit = permit } }

func TestOneProbeForManyAskersAtOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var probes, refused int
	for i := range 200 {
		wg.Go(func() {
			g := ask(e, at(30), fmt.Sprint("agent-", i))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case g.Allowed && g.Probe:
				probes++
			case g.Reason == RefusedProbeInFlight && g.RetryAt.Equal(at(35)):
				refused++
			}
		})
	}
	wg.Wait()
	if probes != 1 || refused != 199 {
		t.Fatalf("%d probes and %d refusals until +5 s, want 1 and 199", probes, refused)
	}
}

func TestProbeTakesASlotInEveryBreakerThatIsDueOrNone(t *testing.T) {
	t.Parallel()
	second := plainRule(func(r *Rule) {
		r.Name = "s"
		r.Scope = []string{"model"}
		r.Cooldown.First = Duration(60 * time.Second)
	})
	e := newEngine(t, plainRule(), second)
	labels := Labels{Agent: "a", Machine: "m", Model: "x"}
	for range 3 {
		e.Report(t0, []Outcome{{Labels: labels, Cause: ServerError}})
	}
	if g, _ := e.Ask(at(31), Ask{Labels: labels}); g.Allowed || g.Reason != RefusedOpen || !g.RetryAt.Equal(at(60)) {
		t.Fatalf("while one of two still waits: %+v, want refused until +60 s", g)
	}
	if v, _ := e.Breaker(at(31), "r{machine=m}"); v.State != Open {
		t.Fatalf("the refused ask moved r to %s", v.State)
	}
	g, _ := e.Ask(at(60), Ask{Labels: labels})
	if !g.Probe {
		t.Fatalf("with both due: %+v, want a probe", g)
	}
	for _, name := range []string{"r{machine=m}", "s{model=x}"} {
		if v, _ := e.Breaker(at(60), name); v.State != HalfOpen || v.Reason != RefusedProbeInFlight {
			t.Errorf("%s = %s (%s), want half_open with a probe in flight", name, v.State, v.Reason)
		}
	}
	e.Report(at(61), []Outcome{{Labels: labels, Cause: OK, Permit: g.Permit}})
	for _, name := range []string{"r{machine=m}", "s{model=x}"} {
		if v, _ := e.Breaker(at(61), name); v.State != Closed {
			t.Errorf("%s = %s after the probe's success, want closed", name, v.State)
		}
	}
}

func TestHoldExpiresAtItsDeadline(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	if _, _, err := e.Control(at(1), Control{Breaker: "r{machine=m}", Op: OpHoldOpen, For: time.Minute, Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	e.Drain()
	if g := ask(e, at(40), "a"); g.Reason != RefusedHeldOpen || !g.RetryAt.Equal(at(61)) {
		t.Fatalf("under the hold: %+v", g)
	}
	e.Advance(at(100))
	trs := e.Drain().Transitions
	if len(trs) != 1 || trs[0].Reason != ReasonExpired || !trs[0].At.Equal(at(61)) || trs[0].To != Open || trs[0].Incident == 0 {
		t.Fatalf("transitions at the expiry: %+v, want one at +61 s, open, of the same incident", trs)
	}
	if g := ask(e, at(100), "a"); !g.Probe {
		t.Fatalf("after the expiry: %+v, want a probe", g)
	}

	if _, _, err := e.Control(at(101), Control{Breaker: "r{machine=n}", Op: OpHoldOpen, For: time.Second}); err != nil {
		t.Fatal(err)
	}
	e.Advance(at(102))
	if v, _ := e.Breaker(at(102), "r{machine=n}"); v.State != Closed || v.Override != nil {
		t.Fatalf("a hold over a closed breaker expired into %+v, want closed", v)
	}
}

func TestClockSetBackStopsNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, at(0))
	if g := ask(e, at(30), "a"); !g.Probe {
		t.Fatalf("when due: %+v", g)
	}
	if v := report(e, at(-500), OK); v.State != HalfOpen {
		t.Fatalf("a report from an earlier clock: %+v", v)
	}
	if g := ask(e, at(40), "a"); !g.Probe {
		t.Fatalf("after the lease: %+v", g)
	}
}

func TestIncidentsAreNumberedByTheirTrip(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	g := ask(e, at(30), "a")
	report(e, at(31), Refused, by(g.Permit))
	g = ask(e, at(61), "b")
	report(e, at(62), OK, by(g.Permit))
	var reasons []string
	var incident uint64
	last := uint64(0)
	for _, tr := range e.Drain().Transitions {
		reasons = append(reasons, tr.Reason)
		if tr.Era <= last {
			t.Errorf("era %d follows %d", tr.Era, last)
		}
		last = tr.Era
		if tr.Trips() {
			incident = tr.Incident
		}
		if tr.Incident != incident || incident == 0 {
			t.Errorf("%s belongs to incident %d, want %d", tr.Reason, tr.Incident, incident)
		}
		if got, want := tr.Closes(), tr.Reason == ReasonProbeOK; got != want {
			t.Errorf("%s closes = %t, want %t", tr.Reason, got, want)
		}
	}
	want := []string{ReasonTripped, ReasonProbeGranted, ReasonProbeFailed, ReasonProbeGranted, ReasonProbeOK}
	if !slices.Equal(reasons, want) {
		t.Fatalf("reasons %v, want %v", reasons, want)
	}
}

func TestTripTellsWhy(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		rule   Rule
		report []Outcome
		want   string
	}{
		{"run", plainRule(), []Outcome{{Cause: Refused}, {Cause: Timeout}, {Cause: Refused}}, "3 calls in a row failed: refused ×2, timeout"},
		{"one", plainRule(func(r *Rule) { r.Trip.Consecutive = 1 }), []Outcome{{Cause: Refused}}, "a call failed: refused"},
		{"at once", plainRule(func(r *Rule) { r.Failures = []string{"quota"}; r.Trip = Trip{AtOnce: []string{"quota"}} }), []Outcome{{Cause: Quota}}, "quota trips at once"},
		{"retry after", plainRule(func(r *Rule) {
			r.Failures, r.Ignores = []string{"capacity"}, nil
			r.Trip = Trip{OnRetryAfter: Duration(10 * time.Second)}
		}), []Outcome{{Cause: RateLimited, RetryAfter: 9 * time.Second}, {Cause: RateLimited, RetryAfter: 20 * time.Second}}, "rate_limited with a Retry-After of 20s"},
		{"rate", plainRule(func(r *Rule) { r.Trip = Trip{Rate: wholeShare / 2, Window: Window{Calls: 10}, MinCalls: 4} }),
			[]Outcome{{Cause: OK}, {Cause: Refused}, {Cause: OK}, {Cause: Refused}}, "2 of the last 4 calls failed: refused ×2"},
		{"rate over time", plainRule(func(r *Rule) {
			r.Trip = Trip{Rate: wholeShare / 2, Window: Window{Span: time.Minute}, MinCalls: 2}
		}), []Outcome{{Cause: OK}, {Cause: Refused}}, "1 of 2 calls in the last 1m failed: refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, tc.rule)
			for i := range tc.report {
				tc.report[i].Labels = Labels{Agent: "a", Machine: "m"}
				e.Report(at(float64(i)), tc.report[i:i+1])
			}
			trs := e.Drain().Transitions
			if len(trs) != 1 || trs[0].Detail != tc.want || !trs[0].Trips() {
				t.Fatalf("transitions %+v, want one trip with detail %q", trs, tc.want)
			}
			if trs[0].Evidence == nil || trs[0].Evidence.Agent != "a" || len(trs[0].Evidence.Causes) == 0 {
				t.Fatalf("evidence %+v, want the last failure and its causes", trs[0].Evidence)
			}
		})
	}
}

func TestRetryAfterThatIsOverTripsNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule(func(r *Rule) {
		r.Failures, r.Ignores = []string{"capacity"}, nil
		r.Trip = Trip{OnRetryAfter: Duration(10 * time.Second)}
	}))
	v := report(e, at(0), RateLimited, func(o *Outcome) { o.RetryAfter, o.Age = 20*time.Second, 30*time.Second })
	if v.State != Closed {
		t.Fatalf("state %s, want closed: the wait ended 10 s ago", v.State)
	}
}

func TestFirstMatchingRuleOfANameWins(t *testing.T) {
	t.Parallel()
	strict := plainRule(func(r *Rule) { r.Match.Machine = "gpu-*"; r.Trip.Consecutive = 1 })
	e := newEngine(t, strict, plainRule())
	for _, tc := range []struct {
		machine string
		want    State
	}{{"gpu-box", Open}, {"mac-mini", Closed}} {
		v, _ := e.Report(t0, []Outcome{{Labels: Labels{Agent: "a", Machine: tc.machine}, Cause: Refused}})
		if v[0].State != tc.want {
			t.Errorf("%s after one failure: %s, want %s", tc.machine, v[0].State, tc.want)
		}
	}
	if _, err := New(Config{Rules: []Rule{strict, plainRule(func(r *Rule) { r.Scope = []string{"model"} })}}); err == nil ||
		!strings.Contains(err.Error(), "scope") {
		t.Errorf("two scopes under one name: error %v, want one about the scope", err)
	}
}

func TestGlobCrossesSlashes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		glob, value string
		want        bool
	}{
		{"*", "a/b", true}, {"qwen/*", "qwen/qwen3/30b", true}, {"qwen*", "qwen/x", true},
		{"gpu-?", "gpu-1", true}, {"gpu-?", "gpu-12", false}, {"", "x", true}, {"[ab]x", "bx", true},
	} {
		if got := globs(tc.glob, tc.value); got != tc.want {
			t.Errorf("%q matches %q = %t, want %t", tc.glob, tc.value, got, tc.want)
		}
	}
}

func TestAliasesAndProviders(t *testing.T) {
	t.Parallel()
	e, err := New(Config{Rules: Builtin(), Machines: map[string]Machine{"gpu-box": {Provider: "lab", Aliases: []string{"10.0.0.9:11434"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		e.Report(t0, []Outcome{{Labels: Labels{Agent: "a", Machine: "10.0.0.9:11434", Model: "x"}, Cause: Refused}})
	}
	if c := e.Circuits(t0, Labels{Machine: "10.0.0.9:11434"}); len(c) != 1 || c[0].Machine != "gpu-box" || c[0].Provider != "lab" || c[0].State != Open {
		t.Fatalf("circuits %+v, want one of gpu-box on lab, open", c)
	}
	_, err = New(Config{Machines: map[string]Machine{"a": {Aliases: []string{"b"}}, "b": {}}})
	if err == nil || !strings.Contains(err.Error(), "machines.a.aliases") {
		t.Fatalf("an alias that is a machine: error %v", err)
	}
}

func TestPermits(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	g := ask(e, t0, "a")
	if !g.Allowed || g.Permit == "" {
		t.Fatalf("grant %+v", g)
	}
	other, _ := New(Config{Rules: []Rule{plainRule()}, Key: []byte("another key")})
	for name, permit := range map[string]string{"another pool's": ask(other, t0, "a").Permit, "empty": "", "cut": g.Permit[:10],
		"changed": strings.Map(func(r rune) rune {
			if r == 'A' {
				return 'B'
			}
			return r
		}, g.Permit), "long": strings.Repeat("A", 500)} {
		if _, _, err := e.Release(t0, permit); !errors.Is(err, ErrBadPermit) {
			t.Errorf("release of %s permit: %v, want ErrBadPermit", name, err)
		}
	}
	if duplicate, _, err := e.Release(t0, g.Permit); duplicate || err != nil {
		t.Fatalf("first release: %t, %v", duplicate, err)
	}
	if duplicate, _, err := e.Release(t0, g.Permit); !duplicate || err != nil {
		t.Fatalf("second release: %t, %v, want a duplicate", duplicate, err)
	}
	if v := report(e, t0, ServerError, by(g.Permit)); !v.Duplicate {
		t.Fatalf("a word after the release: %+v, want a duplicate", v)
	}
}

func TestSecondWordsAreKnownAfterARestart(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	id := func(o *Outcome) { o.ID = "call-1" }
	g := ask(e, t0, "a")
	report(e, t0, Refused, id)
	report(e, t0, Refused, by(g.Permit))
	batch := e.Drain()
	if len(batch.Heard) != 2 || len(e.Drain().Heard) != 0 {
		t.Fatalf("%d calls heard of, want two, once", len(batch.Heard))
	}
	snap := e.Snapshot()
	snap.Heard = batch.Heard
	again := newEngine(t, plainRule())
	if err := again.Restore(snap); err != nil {
		t.Fatal(err)
	}
	for name, word := range map[string]func(*Outcome){"id": id, "permit": by(g.Permit)} {
		if v := report(again, at(1), Refused, word); !v.Duplicate {
			t.Errorf("the second word of the %s: %+v, want a duplicate", name, v)
		}
	}
	if len(again.Drain().Heard) != 0 {
		t.Error("restored calls are to be stored again")
	}
	if v := report(again, at(25*3600), Refused, id); !v.Duplicate {
		t.Errorf("nothing newer came, so nothing was forgotten: %+v", v)
	}
	report(again, at(25*3600), Refused, func(o *Outcome) { o.ID = "call-2" })
	if v := report(again, at(25*3600), Refused, id); v.Duplicate {
		t.Errorf("after a day: %+v, want it forgotten", v)
	}
}

// After a crash numbers that were never stored are given out again: the same
// number in another permit is another call.
func TestNumberAloneIsNoLease(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	snap := e.Snapshot()
	lost, _ := e.Ask(at(1), Ask{Labels: Labels{Agent: "a", Machine: "other"}})
	again := newEngine(t, plainRule())
	if err := again.Restore(snap); err != nil {
		t.Fatal(err)
	}
	if g := ask(again, at(30), "b"); !g.Probe {
		t.Fatalf("after the restart: %+v, want the probe", g)
	}
	if _, _, err := again.Release(at(31), lost.Permit); err != nil {
		t.Fatal(err)
	}
	report(again, at(31), OK, by(lost.Permit), func(o *Outcome) { o.Machine = "other" })
	if g := ask(again, at(32), "c"); g.Allowed {
		t.Fatalf("a stranger's permit has ended the probe: %+v", g)
	}
}

func TestExtendNeverShortensAndNeverPassesMaxLease(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule(func(r *Rule) { r.MaxLease = Duration(time.Minute) }))
	trip(t, e, t0)
	g := ask(e, at(30), "a")
	for _, tc := range []struct {
		at      float64
		timeout time.Duration
		want    float64
	}{{31, 0, 41}, {32, 5 * time.Second, 47}, {33, time.Second, 47}, {40, time.Hour, 90}} {
		got, _, err := e.Extend(at(tc.at), g.Permit, tc.timeout)
		if err != nil || !got.Equal(at(tc.want)) {
			t.Errorf("extend at +%gs by %s: %s, %v, want +%gs", tc.at, tc.timeout, got.Sub(t0), err, tc.want)
		}
	}
	if _, _, err := e.Extend(at(90), g.Permit, time.Hour); !errors.Is(err, ErrLeaseOver) {
		t.Errorf("extend of an expired lease: %v, want ErrLeaseOver", err)
	}
	plain, _ := e.Ask(at(90), Ask{Labels: Labels{Agent: "a", Machine: "other"}})
	if got, _, err := e.Extend(at(90), plain.Permit, time.Hour); err != nil || !got.IsZero() {
		t.Errorf("extend of a plain permit: %s, %v, want no deadline", got, err)
	}
}

func TestWitnessOfAFailedProbeGivesOthersTheNextOne(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule(func(r *Rule) { r.Trip.Witnesses = 2 }))
	trip(t, e, t0)
	g := ask(e, at(30), "a")
	report(e, at(31), ServerError, by(g.Permit))
	if g := ask(e, at(60), "b"); g.Reason != RefusedOpen {
		t.Fatalf("b before the wait is over: %+v", g)
	}
	if g := ask(e, at(61), "a"); g.Allowed || g.Reason != RefusedProbeInFlight {
		t.Fatalf("a, whose probe failed, while b has asked: %+v, want refused", g)
	}
	if g := ask(e, at(62), "b"); !g.Probe {
		t.Fatalf("b: %+v, want the probe", g)
	}
}

func TestObservingRuleRefusesNothingAndCounts(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule(func(r *Rule) { r.Mode = ModeObserve }))
	var would []string
	for range 6 {
		would = append(would, report(e, t0, ServerError).WouldTrip...)
	}
	if !slices.Equal(would, []string{"r{machine=m}"}) {
		t.Fatalf("would_trip %v, want the breaker once per era", would)
	}
	if g := ask(e, t0, "a"); !g.Allowed || g.Probe {
		t.Fatalf("ask: %+v, want a plain grant", g)
	}
	if v, _ := e.Breaker(t0, "r{machine=m}"); v.WouldTrip != 1 || v.State != Closed || v.Reason != ReasonObserve {
		t.Fatalf("view %+v", v)
	}
	if trs := e.Drain().Transitions; len(trs) != 0 {
		t.Fatalf("transitions %+v, want none", trs)
	}
}

func TestHistoryJudges(t *testing.T) {
	t.Parallel()
	at := func(s float64) instant { return fromTime(at(s)) }
	judged := func(j *judge, o Outcome, ended instant, local bool) Cause {
		ct := &circuit{target: j.target(&Labels{Machine: o.Machine, Model: o.Model}, nil), local: local}
		return j.cause(&o, ct, ended)
	}
	t.Run("caller offline", func(t *testing.T) {
		t.Parallel()
		j := newJudge()
		un := func(agent, machine string, s float64) Cause {
			return judged(&j, Outcome{Labels: Labels{Agent: agent, Machine: machine}, Cause: Unreachable}, at(s), false)
		}
		ok := func(agent, machine string, s float64) {
			judged(&j, Outcome{Labels: Labels{Agent: agent, Machine: machine}, Cause: OK}, at(s), false)
		}
		if got := un("a", "m", 0); got != Unreachable {
			t.Fatalf("one machine: %s", got)
		}
		ok("b", "m", 1)
		if got := un("a", "m", 2); got != Unreachable {
			t.Fatalf("still one machine: %s", got)
		}
		if got := un("a", "n", 3); got != CallerOffline {
			t.Fatalf("two machines, another agent reached one since: %s", got)
		}
		if got := un("c", "n", 4); got != Unreachable {
			t.Fatalf("another agent's first: %s", got)
		}
		ok("a", "p", 5)
		if got := un("a", "n", 6); got != Unreachable {
			t.Fatalf("it has reached something: %s", got)
		}
		if got := un("a", "n", 300); got != Unreachable {
			t.Fatalf("two minutes later: %s", got)
		}
	})
	t.Run("cold model", func(t *testing.T) {
		t.Parallel()
		j := newJudge()
		out := func(cause Cause, s float64) Cause {
			return judged(&j, Outcome{Labels: Labels{Agent: "a", Machine: "m", Model: "x"}, Cause: cause}, at(s), true)
		}
		for _, tc := range []struct {
			at   float64
			in   Cause
			want Cause
		}{{0, OK, OK}, {299, Timeout, Timeout}, {301, Timeout, Loading}, {400, Timeout, Loading}, {482, Timeout, Timeout}, {500, OK, OK}, {510, Timeout, Timeout}, {801, Timeout, Loading}} {
			if got := out(tc.in, tc.at); got != tc.want {
				t.Errorf("%s at +%gs became %s, want %s", tc.in, tc.at, got, tc.want)
			}
		}
	})
}

// A flood of new names leaves open breakers, holds and runs as they are.
func TestFloodOfNames(t *testing.T) {
	t.Parallel()
	e, err := New(Config{Rules: []Rule{plainRule()}, MaxBreakers: 20, Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	trip(t, e, t0)
	if _, _, err := e.Control(t0, Control{Breaker: "r{machine=held}", Op: OpHoldClosed}); err != nil {
		t.Fatal(err)
	}
	report(e, t0, Refused, func(o *Outcome) { o.Machine = "run" })
	before := words(e.Breakers(at(4000), Labels{}))
	for i := range 1000 {
		report(e, at(4000), OK, func(o *Outcome) { o.Machine = fmt.Sprint("flood-", i) })
	}
	var after []View
	for _, v := range e.Breakers(at(4000), Labels{}) {
		if !strings.HasPrefix(v.Machine, "flood-") {
			after = append(after, v)
		}
	}
	if got := words(after); got != before {
		t.Fatalf("after a flood:\n%s\nbefore:\n%s", got, before)
	}
	if n := len(e.Breakers(at(4000), Labels{})); n != 20 {
		t.Fatalf("%d breakers, want as many as there may be, 20", n)
	}
	if _, _, err := e.Control(at(4000), Control{Breaker: "r{machine=one more}", Op: OpHoldOpen}); err == nil || !strings.Contains(err.Error(), "20 breakers") {
		t.Fatalf("a control over the bound: %v", err)
	}
}

func TestEvictionKeepsWhatMatters(t *testing.T) {
	t.Parallel()
	e, err := New(Config{Rules: []Rule{plainRule()}, MaxBreakers: 3})
	if err != nil {
		t.Fatal(err)
	}
	on := func(machine string, cause Cause, s float64) Verdict {
		v, _ := e.Report(at(s), []Outcome{{Labels: Labels{Agent: "a", Machine: machine}, Cause: cause}})
		return v[0]
	}
	on("run", Refused, 0)
	on("old", OK, 1)
	on("older", OK, 0.5)
	if v := on("new", OK, 10); len(v.Counted) != 0 || !slices.Equal(v.Uncounted, []string{"r"}) {
		t.Fatalf("a fourth breaker before anything is idle: %+v", v)
	}
	if v := on("new", OK, 3601); len(v.Counted) != 1 || v.Uncounted != nil {
		t.Fatalf("a fourth breaker after an hour counted %v, want r", v.Counted)
	}
	batch := e.Drain()
	if !slices.Equal(batch.Evicted, []string{"r{machine=older}"}) {
		t.Fatalf("evicted %v, want the longest idle without a run", batch.Evicted)
	}
	for _, s := range batch.States {
		if s.Name == "r{machine=older}" {
			t.Error("an evicted breaker's state is still to be stored")
		}
	}
}

func TestDrainIsContiguous(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	a := e.Drain()
	if a.From != 0 || a.To != 3 || len(a.Transitions) != 1 || len(a.Outcomes) != 3 || len(a.States) != 1 {
		t.Fatalf("first batch %d–%d: %d transitions, %d outcomes, %d states", a.From, a.To, len(a.Transitions), len(a.Outcomes), len(a.States))
	}
	if b := e.Drain(); !b.Empty() || b.From != a.To {
		t.Fatalf("nothing happened, yet the batch is %d–%d", b.From, b.To)
	}
	g := ask(e, at(30), "a")
	if b := e.Drain(); b.From != a.To || len(b.Asks) != 1 || b.Asks[0].Reason != AskedProbe || b.Asks[0].N != 1 {
		t.Fatalf("asks %+v", b.Asks)
	}
	// Time alone moves something while somebody only looks.
	_ = g
	e.Circuit(at(41), Labels{Machine: "m"})
	if b := e.Drain(); b.Empty() || len(b.States) != 1 {
		t.Fatalf("an expired lease: batch %d–%d with %d states, want one", b.From, b.To, len(b.States))
	}
}

func TestRestoreClosesWhatHasNoRuleAnyMore(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	snap := e.Snapshot()
	next := newEngine(t, plainRule(func(r *Rule) { r.Name = "other" }))
	if err := next.Restore(snap); err != nil {
		t.Fatal(err)
	}
	batch := next.Drain()
	if len(batch.Transitions) != 1 || !batch.Transitions[0].Closes() || !slices.Equal(batch.Evicted, []string{"r{machine=m}"}) || batch.Empty() {
		t.Fatalf("batch %+v, want the incident closed and the breaker forgotten", batch)
	}
	observing := newEngine(t, plainRule(func(r *Rule) { r.Mode = ModeObserve }))
	if err := observing.Restore(snap); err != nil {
		t.Fatal(err)
	}
	if g := ask(observing, at(1), "a"); !g.Allowed {
		t.Fatalf("a rule that only observes now refuses: %+v", g)
	}
	if err := observing.Restore(snap); err == nil {
		t.Fatal("an engine in use was restored")
	}
}

// step is one input of a random script.
type step struct {
	kind   int
	at     float64
	labels Labels
	cause  Cause
	age    time.Duration
	took   time.Duration
	retry  time.Duration
	permit int // index among the grants so far, -1 for none
	op     Op
	hold   time.Duration
}

func drawSteps(t *rapid.T) []step {
	causes := []Cause{OK, OK, ServerError, Refused, Timeout, Empty, RateLimited, Quota, Cancelled, BadRequest}
	ops := []Op{OpReset, OpHoldOpen, OpHoldClosed, OpObserve, OpAuto}
	n := rapid.IntRange(1, 120).Draw(t, "steps")
	steps := make([]step, n)
	clock := 0.0
	for i := range steps {
		clock += rapid.SampledFrom([]float64{0, 0.5, 1, 5, 31, 61, 130, 700}).Draw(t, "dt")
		steps[i] = step{
			kind: rapid.SampledFrom([]int{0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7}).Draw(t, "kind"), at: clock,
			labels: Labels{Agent: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "agent"), Machine: "m", Model: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "model")},
			cause:  rapid.SampledFrom(causes).Draw(t, "cause"),
			age:    time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * 50 * time.Second,
			took:   time.Duration(rapid.IntRange(0, 2).Draw(t, "took")) * 20 * time.Second,
			retry:  time.Duration(rapid.IntRange(0, 2).Draw(t, "retry")) * 15 * time.Second,
			permit: rapid.IntRange(-1, 5).Draw(t, "permit"),
			op:     rapid.SampledFrom(ops).Draw(t, "op"),
			hold:   time.Duration(rapid.IntRange(0, 2).Draw(t, "hold")) * time.Minute,
		}
	}
	return steps
}

// do applies a step and says what came of it, in words that can be compared.
func (s step) do(e *Engine, permits *[]string) string {
	now := at(s.at)
	permit := ""
	if s.permit >= 0 && len(*permits) > 0 {
		permit = (*permits)[len(*permits)-1-s.permit%len(*permits)]
	}
	switch s.kind {
	case 0:
		v, _ := e.Report(now, []Outcome{{Labels: s.labels, Cause: s.cause, Age: s.age, Duration: s.took, RetryAfter: s.retry, Permit: permit,
			Write: s.op == OpReset, IdempotencyKey: "job"}})
		return words(v[0])
	case 1:
		a := Ask{Labels: s.labels, Timeout: s.took}
		if s.op == OpAuto {
			a.IdempotencyKey = "job"
		}
		g, _ := e.Ask(now, a)
		if g.Allowed {
			*permits = append(*permits, g.Permit)
		}
		return words(g)
	case 2:
		if permit == "" {
			return ""
		}
		duplicate, _, err := e.Release(now, permit)
		return fmt.Sprint(duplicate, err)
	case 3:
		v, _, err := e.Control(now, Control{Breaker: "reachability{machine=m}", Op: s.op, For: s.hold, Actor: "t"})
		return words(v) + fmt.Sprint(err)
	case 5:
		r, _, err := e.Route(now, RouteAsk{Agent: s.labels.Agent, Chain: "code", Timeout: s.took,
			Tried: []Tried{{Machine: "m", Model: s.labels.Model, Cause: s.cause}}[:int(s.age/(50*time.Second))%2]})
		if r.Grant.Allowed {
			*permits = append(*permits, r.Grant.Permit)
		}
		return words(r) + fmt.Sprint(err)
	case 6:
		w, _, err := e.Reconcile(now, "job", s.op == OpAuto, "t")
		return words(w) + fmt.Sprint(err)
	case 7:
		if s.op == OpReset {
			opened, _ := e.BootCheck(now, "m", false, "no answer")
			return words(opened)
		}
		earlier, _ := e.HealthAnswered(now, "m")
		return fmt.Sprint(earlier)
	}
	e.Advance(now)
	return words(e.Breakers(now, Labels{}))
}

func words(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func randomRules() []Rule {
	return append(Builtin(), plainRule(func(r *Rule) {
		r.Trip = Trip{Rate: wholeShare / 2, Window: Window{Span: 2 * time.Minute}, MinCalls: 3, Witnesses: 2}
		r.Concurrent, r.Probes, r.Cooldown.Factor, r.Cooldown.Jitter = 2, 2, 2, 0.1
	}))
}

// randomConfig has a bit of everything.
func randomConfig() Config {
	return Config{Rules: randomRules(), Key: []byte("k"), WatchPermits: true, Record: true, Chains: map[string]Chain{"code": {Targets: []Target{
		{Machine: "m", Model: "x", Tier: "high"}, {Machine: "m", Model: "y", Tier: "low"}, {Machine: "n", Model: "x", Tier: "low"},
	}}}}
}

// A restart between any two inputs changes nothing of what follows, and the
// inputs as they were recorded come to the same again.
func TestRestartIsInvisible(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := randomConfig()
		steady, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		restarted, _ := New(cfg)
		again, _ := New(cfg)
		var did []Transition
		var p1, p2 []string
		for i, s := range drawSteps(t) {
			want, got := s.do(steady, &p1), s.do(restarted, &p2)
			if got != want {
				t.Fatalf("step %d %+v:\n got %s\nwant %s", i, s, got, want)
			}
			a, b := steady.Drain(), restarted.Drain()
			if x, y := words(a.Transitions), words(b.Transitions); x != y {
				t.Fatalf("step %d transitions:\n got %s\nwant %s", i, y, x)
			}
			did = append(did, a.Transitions...)
			recorded, _ := a.Inputs.AppendBinary(nil)
			var inputs Inputs
			if err := inputs.UnmarshalBinary(recorded); err != nil || inputs.Len() != a.Inputs.Len() {
				t.Fatalf("step %d: %d recorded inputs read as %d, error %v", i, a.Inputs.Len(), inputs.Len(), err)
			}
			again.Redo(inputs)
			if rapid.Bool().Draw(t, "restart") {
				text, err := json.Marshal(restarted.Snapshot())
				if err != nil {
					t.Fatal(err)
				}
				next, _ := New(cfg)
				var snap Snapshot
				if err := json.Unmarshal(text, &snap); err != nil {
					t.Fatal(err)
				}
				if err := next.Restore(snap); err != nil {
					t.Fatal(err)
				}
				restarted = next
			}
		}
		again.advanceTo(steady.now)
		if got, want := words(again.Drain().Transitions), words(did); got != want {
			t.Fatalf("made again, the inputs come to\n%s\nwant %s", got, want)
		}
		got, want := again.Snapshot(), steady.Snapshot()
		got.Clock.Seq = want.Clock.Seq // which counts other things too
		if got, want := words(got), words(want); got != want {
			t.Fatalf("made again, the inputs come to the state\n%s\nwant %s", got, want)
		}
	})
}

// What holds at every moment, whatever happens.
func TestInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e, err := New(Config{Rules: randomRules(), Key: []byte("k")})
		if err != nil {
			t.Fatal(err)
		}
		var permits []string
		state := map[string]State{}
		open := map[string]uint64{}
		var era uint64
		for _, s := range drawSteps(t) {
			s.do(e, &permits)
			for _, tr := range e.Drain().Transitions {
				if tr.Era <= era {
					t.Fatalf("era %d after %d", tr.Era, era)
				}
				era = tr.Era
				if tr.From != state[tr.Breaker] {
					t.Fatalf("%s goes from %s, but was %s", tr.Breaker, tr.From, state[tr.Breaker])
				}
				state[tr.Breaker] = tr.To
				if tr.Trips() {
					if open[tr.Breaker] != 0 || tr.From != Closed {
						t.Fatalf("%s trips from %s within incident %d", tr.Breaker, tr.From, open[tr.Breaker])
					}
					open[tr.Breaker] = tr.Incident
				}
				if tr.Incident != open[tr.Breaker] {
					t.Fatalf("%s: %s belongs to incident %d, but %d is open", tr.Breaker, tr.Reason, tr.Incident, open[tr.Breaker])
				}
				if tr.Closes() {
					open[tr.Breaker] = 0
				}
				if tr.To == Open && tr.Reason != ReasonHoldOpen && tr.RetryAt.Before(tr.At) {
					t.Fatalf("%s opens at %s until %s", tr.Breaker, tr.At, tr.RetryAt)
				}
			}
			e.mu.Lock()
			for b := range e.every {
				p := b.was()
				if len(p.leases) > b.rule.Concurrent {
					t.Fatalf("%s has %d leases, at most %d may live", b.name(), len(p.leases), b.rule.Concurrent)
				}
				if b.state != HalfOpen && len(p.leases)+len(p.expired) > 0 {
					t.Fatalf("%s is %s and has leases", b.name(), b.state)
				}
				if b.state != state[b.name()] {
					t.Fatalf("%s is %s, its transitions say %s", b.name(), b.state, state[b.name()])
				}
				for _, l := range p.leases {
					if e.leases[l.Num] != l || !slices.Contains(l.slots, b) {
						t.Fatalf("%s has a lease that the engine does not know", b.name())
					}
				}
			}
			if !reflect.DeepEqual(noFaults, faults{}) || !reflect.DeepEqual(noPast, past{}) || !reflect.DeepEqual(noWatchers, watchers{}) {
				t.Fatal("what all healthy breakers share was written to")
			}
			e.mu.Unlock()
		}
	})
}

func BenchmarkReport(b *testing.B) {
	e := newEngine(b, Builtin()...)
	batch := []Outcome{{Labels: Labels{Agent: "a", Machine: "gpu-box", Model: "qwen3-30b"}, Cause: OK, Duration: time.Second}}
	now := t0
	var verdicts []Verdict
	for i := 0; b.Loop(); i++ {
		now = now.Add(time.Microsecond)
		verdicts, _ = e.AppendReport(verdicts[:0], now, batch)
		if i%1000 == 0 {
			e.Reuse(e.Drain())
		}
	}
}

func BenchmarkAsk(b *testing.B) {
	e := newEngine(b, Builtin()...)
	ask := Ask{Labels: Labels{Agent: "a", Machine: "gpu-box", Model: "qwen3-30b"}}
	e.Report(t0, []Outcome{{Labels: ask.Labels, Cause: OK}})
	now := t0
	for i := 0; b.Loop(); i++ {
		now = now.Add(time.Microsecond)
		e.Ask(now, ask)
		if i%1000 == 0 {
			e.Drain()
		}
	}
}

func BenchmarkRefusal(b *testing.B) {
	e := newEngine(b, Builtin()...)
	ask := Ask{Labels: Labels{Agent: "a", Machine: "gpu-box", Model: "qwen3-30b"}}
	for range 3 {
		e.Report(t0, []Outcome{{Labels: ask.Labels, Cause: Refused}})
	}
	for i := 0; b.Loop(); i++ {
		now := t0.Add(time.Duration(i%1000) * time.Microsecond)
		if g, _ := e.Ask(now, ask); g.Allowed {
			b.Fatal("allowed")
		}
		if i%1000 == 0 {
			e.Drain()
		}
	}
}

// A window comes back as it was, and the latest of it when the rule's has
// become smaller meanwhile.
func TestWindowsAfterARestart(t *testing.T) {
	t.Parallel()
	window := func(n int) Rule {
		return plainRule(func(r *Rule) {
			r.Mode = ModeObserve
			r.Trip = Trip{Rate: wholeShare, Window: Window{Calls: n}, MinCalls: n, Witnesses: 2}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 200).Draw(t, "size")
		failed := rapid.SliceOfN(rapid.Bool(), 0, 300).Draw(t, "failed")
		after := rapid.IntRange(1, 200).Draw(t, "size after")
		e, _ := New(Config{Rules: []Rule{window(size)}})
		for _, bad := range failed {
			cause := OK
			if bad {
				cause = Refused
			}
			report(e, t0, cause)
		}
		again, _ := New(Config{Rules: []Rule{window(after)}})
		if err := again.Restore(e.Snapshot()); err != nil {
			t.Fatal(err)
		}
		more := rapid.SliceOfN(rapid.Bool(), 0, 50).Draw(t, "more")
		for _, bad := range more {
			cause := OK
			if bad {
				cause = Timeout
			}
			report(again, t0, cause)
		}
		want := append(failed[max(0, len(failed)-min(size, after)):], more...)
		want = want[max(0, len(want)-after):]
		failures := 0
		for _, bad := range want {
			if bad {
				failures++
			}
		}
		v, _ := again.Breaker(t0, "r{machine=m}")
		if v.Calls != len(want) || v.Failures != failures {
			t.Fatalf("%d failures of %d calls, want %d of %d", v.Failures, v.Calls, failures, len(want))
		}
	})
}

// Between the answer to "is it open" and "is it due" there is no gap: the
// moment of retry_at itself is due, for askers and for reporters.
func TestTheMomentOfRetryAt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		when float64
		took time.Duration
		want State
		late bool
	}{
		"a call that started then":                 {30, 0, Closed, false},
		"a call that started a moment before":      {30, time.Nanosecond, Open, true},
		"a call before":                            {29.999, 0, Open, false},
		"a call that started then and ended later": {40, 10 * time.Second, Closed, false},
	} {
		e := newEngine(t, plainRule())
		trip(t, e, t0)
		v := report(e, at(tc.when), OK, func(o *Outcome) { o.Duration = tc.took })
		if v.State != tc.want || v.Late != tc.late {
			t.Errorf("%s: %+v, want %s, late %v", name, v, tc.want, tc.late)
		}
	}
	e := newEngine(t, plainRule())
	trip(t, e, t0)
	if g := ask(e, at(30).Add(-1), "a"); g.Allowed {
		t.Errorf("a nanosecond before: %+v", g)
	}
	if g := ask(e, at(30), "a"); !g.Probe {
		t.Errorf("then: %+v, want the probe", g)
	}
}

// One witness and one model are as good as none asked for.
func TestOneWitness(t *testing.T) {
	t.Parallel()
	e := newEngine(t, plainRule(func(r *Rule) { r.Trip.Witnesses, r.Trip.Models = 1, 1 }))
	trip(t, e, t0)
	g := ask(e, at(30), "a")
	report(e, at(31), Refused, by(g.Permit))
	if g := ask(e, at(61), "a"); !g.Probe {
		t.Fatalf("%+v, want the only agent to probe again", g)
	}
}
