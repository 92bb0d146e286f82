package breaker

import (
	"math"
	"strings"
	"testing"
	"time"
)

// watching is an engine that follows permits, with agents that are known to
// report by them.
func watching(t *testing.T, agents ...string) *Engine {
	t.Helper()
	e, err := New(Config{Rules: Builtin(), Key: []byte("k"), WatchPermits: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, agent := range agents {
		g := askFor(e, t0, agent, "m")
		report(e, t0, OK, by(g.Permit), func(o *Outcome) { o.Agent, o.Model = agent, "x" })
	}
	return e
}

// askFor asks for a call that may take 20 s.
func askFor(e *Engine, now time.Time, agent, machine string) Grant {
	g, _ := e.Ask(now, Ask{Labels: Labels{Agent: agent, Machine: machine, Model: "x"}, Timeout: 20 * time.Second})
	return g
}

func TestPermitsThatNeverComeBackAreTimeouts(t *testing.T) {
	t.Parallel()
	e := watching(t, "a", "b")
	for i, agent := range []string{"a", "b", "a"} {
		askFor(e, at(float64(10+i)), agent, "m")
	}
	e.Drain()
	e.Advance(at(41.9))
	if c := e.Circuit(at(41.9), Labels{Machine: "m", Model: "x"}); c.State != Closed {
		t.Fatalf("before the third is lost: %s", c.State)
	}
	e.Advance(at(42))
	b := e.Drain()
	if len(b.Transitions) != 2 {
		t.Fatalf("transitions %+v, want hangs and errors tripped when the third was lost", b.Transitions)
	}
	for i, name := range []string{"hangs{machine=m}", "errors{machine=m,model=x}"} {
		if tr := b.Transitions[i]; tr.Breaker != name || tr.Cause != Timeout || !tr.At.Equal(at(42)) {
			t.Errorf("transition %+v, want %s tripped with timeout", tr, name)
		}
	}
	if ev := b.Transitions[0].Evidence; !strings.Contains(ev.Error, "granted 30s ago with a time-out of 20s: 3 of the last") {
		t.Errorf("evidence %q", ev.Error)
	}
	if len(b.Outcomes) != 3 || b.Outcomes[0].Cause != Timeout || b.Outcomes[0].Duration != 32*time.Second {
		t.Errorf("statistics %+v, want three time-outs", b.Outcomes)
	}
}

func TestLostPermits(t *testing.T) {
	t.Parallel()
	tripped := func(e *Engine) bool {
		for _, tr := range e.Drain().Transitions {
			if tr.Reason == ReasonTripped {
				return true
			}
		}
		return false
	}
	t.Run("of an agent that never reports by permit", func(t *testing.T) {
		t.Parallel()
		e := watching(t)
		for i := range 10 {
			askFor(e, at(float64(i)), "a", "m")
			askFor(e, at(float64(i)), "b", "m")
		}
		e.Advance(at(600))
		if tripped(e) {
			t.Fatal("permits of agents that are not known to report were counted")
		}
	})
	t.Run("of one agent that died", func(t *testing.T) {
		t.Parallel()
		e := watching(t, "a", "b")
		for range 5 {
			askFor(e, at(10), "a", "m")
		}
		report(e, at(200), OK, func(o *Outcome) { o.Agent, o.Model = "b", "x" })
		if e.Advance(at(600)); tripped(e) {
			t.Fatal("the permits that an agent died with were counted")
		}
	})
	t.Run("of one agent that goes on elsewhere", func(t *testing.T) {
		t.Parallel()
		e := watching(t, "a")
		for i := range 3 {
			askFor(e, at(float64(10+i)), "a", "m")
		}
		g := askFor(e, at(35), "a", "n")
		report(e, at(36), OK, by(g.Permit), func(o *Outcome) { o.Machine, o.Model = "n", "x" })
		if e.Advance(at(60)); !tripped(e) {
			t.Fatal("a machine that swallows an agent's calls was not seen")
		}
	})
	t.Run("as many as usual", func(t *testing.T) {
		t.Parallel()
		e := watching(t, "a", "b")
		for i := range 400 { // every fourth is lost, always
			now := at(float64(10 + 10*i))
			g := askFor(e, now, "a", "m")
			if i%4 != 0 {
				report(e, now.Add(time.Second), OK, by(g.Permit), func(o *Outcome) { o.Model = "x" })
			}
		}
		counted := 0
		for _, o := range e.Drain().Outcomes {
			if o.Cause == Timeout {
				counted++
			}
		}
		if counted > 20 { // those of the first hour, before the share was known
			t.Fatalf("%d of 100 usual losses were counted", counted)
		}
	})
	t.Run("whose word comes later", func(t *testing.T) {
		t.Parallel()
		e := watching(t, "a", "b")
		first := askFor(e, at(10), "a", "m")
		askFor(e, at(11), "b", "m")
		// The first is lost, but not yet beyond chance when its own word comes.
		v := report(e, at(40.5), Timeout, by(first.Permit), func(o *Outcome) { o.Model, o.Duration = "x", 30*time.Second })
		if v.Duplicate {
			t.Fatal("the first word of a lost permit that was not counted is no duplicate")
		}
		askFor(e, at(12), "a", "m")
		askFor(e, at(13), "b", "m")
		e.Advance(at(100))
		timeouts := 0
		for _, o := range e.Drain().Outcomes {
			if o.Cause == Timeout {
				timeouts++
			}
		}
		if timeouts != 4 {
			t.Fatalf("%d time-outs in the statistics, want one for each of four calls", timeouts)
		}
	})
	t.Run("that was counted", func(t *testing.T) {
		t.Parallel()
		e := watching(t, "a", "b")
		var last Grant
		for i, agent := range []string{"a", "b", "a"} {
			last = askFor(e, at(float64(10+i)), agent, "m")
		}
		e.Advance(at(60))
		if v := report(e, at(61), Timeout, by(last.Permit), func(o *Outcome) { o.Model = "x" }); !v.Duplicate {
			t.Fatalf("a call was counted twice: %+v", v)
		}
	})
}

func TestFollowedPermitsAreBounded(t *testing.T) {
	t.Parallel()
	e := watching(t, "a")
	for i := range 1000 {
		askFor(e, at(10+float64(i)/1000), "a", "m")
	}
	if n := len(e.samples.queue); n != maxSampledOf || len(e.samples.byNum) != n {
		t.Fatalf("%d permits are followed, %d by number, want %d", n, len(e.samples.byNum), maxSampledOf)
	}
}

func TestBinomialTail(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n, k int
		p    float64
		want float64
	}{{3, 3, 0.5, 0.125}, {10, 0, 0.3, 1}, {20, 3, 0.05, 0.07548}, {10, 10, 0.1, 1e-10}, {20, 20, 0.5, 9.5367e-7}} {
		if got := tail(tc.n, tc.k, tc.p); math.Abs(got-tc.want) > tc.want*1e-3 {
			t.Errorf("P(X >= %d) of %d at %g = %g, want %g", tc.k, tc.n, tc.p, got, tc.want)
		}
	}
}

// Only permits of agents that have given a word of one within a day are followed.
func TestWhosePermitsAreFollowed(t *testing.T) {
	t.Parallel()
	for since, followed := range map[time.Duration]int{time.Minute: 1, HeardFor: 1, HeardFor + 1: 0} {
		e := watching(t, "a")
		askFor(e, t0.Add(since), "stranger", "m")
		askFor(e, t0.Add(since), "a", "m")
		if n := len(e.samples.queue); n != followed {
			t.Errorf("%s after its last word %d permits are followed, want %d", since, n, followed)
		}
	}
}

// What became of the last permits is kept for ten minutes and up to twenty of
// them; what leaves counts in the long run, which forgets by halves.
func TestRecordOfPermits(t *testing.T) {
	t.Parallel()
	start := fromTime(t0)
	settle := func(w *permits, n int, at instant, lost bool) {
		for range n {
			w.settle(&sample{}, at, lost)
		}
	}
	var w permits
	settle(&w, maxSettled, start, false)
	settle(&w, 1, start+sampleSpan, true)
	if len(w.recent) != maxSettled || w.words != 1 || w.losts != 0 {
		t.Errorf("one more than fit: %d recent, %g words and %g losses before them", len(w.recent), w.words, w.losts)
	}
	settle(&w, 1, start+sampleSpan+1, false)
	if len(w.recent) != 2 || w.words != maxSettled || w.losts != 0 {
		t.Errorf("past ten minutes: %d recent, %g words and %g losses before them", len(w.recent), w.words, w.losts)
	}
	settle(&w, 1, start+3*sampleSpan, false)
	if len(w.recent) != 1 || w.words != maxSettled+1 || w.losts != 1 {
		t.Errorf("long after: %d recent, %g words and %g losses before them", len(w.recent), w.words, w.losts)
	}
	w = permits{words: maxLongRun - 1, losts: 1}
	settle(&w, 1, start, false)
	if w.words != maxLongRun-1 || w.losts != 1 {
		t.Errorf("a full long run: %g words, %g losses, want it whole", w.words, w.losts)
	}
	settle(&w, 1, start+2*sampleSpan, false)
	if w.words != maxLongRun/2 || w.losts != 0.5 {
		t.Errorf("one more: %g words, %g losses, want half of them", w.words, w.losts)
	}
}

// The word of one permit says nothing of another that was counted as lost.
func TestWordOfAnotherPermit(t *testing.T) {
	t.Parallel()
	e := watching(t, "a", "b")
	other, _ := e.Ask(at(5), Ask{Labels: Labels{Agent: "a", Machine: "m", Model: "x"}}) // without a time-out, so it is not followed
	lost := askFor(e, at(10), "a", "m")
	askFor(e, at(11), "b", "m")
	askFor(e, at(12), "a", "m")
	e.Advance(at(60))
	word := func(permit string) bool {
		return report(e, at(61), Timeout, by(permit), func(o *Outcome) { o.Model = "x" }).Duplicate
	}
	if word(other.Permit) {
		t.Error("the word of a permit that was not followed is taken for a second one")
	}
	if !word(lost.Permit) {
		t.Error("a time-out that was counted when its permit was lost counts twice")
	}
}

// One agent's losses count when it was heard of after it should have given its
// word, to the moment: otherwise it may have died.
func TestOneAgentsLosses(t *testing.T) {
	t.Parallel()
	for heard, counted := range map[time.Duration]int{20 * time.Second: 3, 20*time.Second - 1: 0} {
		e := watching(t, "a")
		for range 3 {
			askFor(e, at(10), "a", "m")
		}
		askFor(e, at(10).Add(heard), "a", "elsewhere")
		e.Advance(at(40))
		v, _ := e.Breaker(at(40), "errors{machine=m,model=x}")
		if trips := v.State == Open; trips != (counted > 0) {
			t.Errorf("heard of %s after it was granted: %+v, want %d time-outs counted", heard, v, counted)
		}
	}
}
