package breaker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/sony/gobreaker/v2"
	"pgregory.net/rapid"

	"breakerbot/breaker"
)

// word is what becomes of a call that was let through.
type word int

const (
	succeeded word = iota
	failed
	unused // given back: the call was never made
)

// The errors that gobreaker is told of; its settings exclude errUnused.
var (
	errFailed = errors.New("the call failed")
	errUnused = errors.New("the call was not made")
)

// party is a breaker as its caller knows it. The time is that of the bubble
// that the test runs in, so that time.Now is the same for all parties.
type party interface {
	// ask tells whether a call may be made, and gives what takes its word.
	ask() (done func(word), allowed bool)
	// seen is the state as one who asks would find it: closed, open while every
	// call is refused until a time, half-open from then on.
	seen() string
}

// engine is an Engine with one rule that has one breaker.
type engine struct {
	*breaker.Engine
	t      testing.TB
	labels breaker.Labels
}

// The wait of the rows; differentials draw theirs.
const cooldown = 30 * time.Second

// newEngine makes an engine whose rule trips as told, waits for cooldown and
// then lets one probe through, whose lease outlives every test but those that
// set another.
func newEngine(t testing.TB, trip breaker.Trip, change ...func(*breaker.Rule)) *engine {
	t.Helper()
	rule := breaker.Rule{
		Name: "r", Scope: []string{"machine"}, Failures: []string{"transport"}, Trip: trip,
		Cooldown: breaker.Cooldown{First: breaker.Duration(cooldown)},
		Lease:    breaker.Duration(24 * time.Hour),
	}
	for _, f := range change {
		f(&rule)
	}
	e, err := breaker.New(breaker.Config{Rules: []breaker.Rule{rule}, Key: []byte("a key for the comparison's permits")})
	if err != nil {
		t.Fatal(err)
	}
	return &engine{e, t, breaker.Labels{Agent: "a", Machine: "m"}}
}

func (e *engine) ask() (func(word), bool) {
	g, _ := e.Ask(time.Now(), breaker.Ask{Labels: e.labels})
	return func(w word) { e.settle(w, g.Permit) }, g.Allowed
}

// settle says the word of a call, "" being one that nobody asked about.
func (e *engine) settle(w word, permit string) {
	o := breaker.Outcome{Labels: e.labels, Permit: permit, Cause: breaker.OK}
	switch w {
	case failed:
		o.Cause = breaker.ServerError
	case unused:
		if _, _, err := e.Release(time.Now(), permit); err != nil {
			e.t.Errorf("release: %v", err)
		}
		return
	}
	e.Report(time.Now(), []breaker.Outcome{o})
}

// hear reports calls that nobody asked about.
func (e *engine) hear(words ...word) {
	for _, w := range words {
		e.settle(w, "")
	}
}

func (e *engine) seen() string {
	now := time.Now()
	c := e.Circuit(now, e.labels)
	switch {
	case c.State == breaker.Closed:
		return "closed"
	case c.State == breaker.Open && now.Before(c.RetryAt):
		return "open"
	}
	return "half-open"
}

// view is the breaker, zero as long as it is not needed.
func (e *engine) view() breaker.View {
	v, _ := e.Breaker(time.Now(), "r{machine=m}")
	return v
}

// twoStep is gobreaker's breaker for callers who ask first.
type twoStep struct {
	*gobreaker.TwoStepCircuitBreaker[any]
}

// newTwoStep makes one that waits for cooldown, if the settings say nothing else.
func newTwoStep(s gobreaker.Settings) twoStep {
	if s.Timeout == 0 {
		s.Timeout = cooldown
	}
	s.IsExcluded = func(err error) bool { return errors.Is(err, errUnused) }
	return twoStep{gobreaker.NewTwoStepCircuitBreaker[any](s)}
}

func (b twoStep) ask() (func(word), bool) {
	done, err := b.Allow()
	return func(w word) { done([...]error{succeeded: nil, failed: errFailed, unused: errUnused}[w]) }, err == nil
}

// execute is what Execute does: the call and its word in one, if it is let through.
func (b twoStep) execute(words ...word) {
	for _, w := range words {
		if done, ok := b.ask(); ok {
			done(w)
		}
	}
}

func (b twoStep) seen() string { return b.State().String() }

// inRow trips after n failures in a row.
func inRow(n int) func(gobreaker.Counts) bool {
	return func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(n) }
}

// shareOf trips at a share of failures, once so many calls are counted.
func shareOf(rate breaker.Share, minCalls int) func(gobreaker.Counts) bool {
	return func(c gobreaker.Counts) bool {
		calls := uint64(c.TotalSuccesses) + uint64(c.TotalFailures)
		return calls >= uint64(minCalls) && uint64(c.TotalFailures)*1_000_000 >= uint64(rate)*calls
	}
}

// standalone is a breaker of failsafe-go used without its executions.
type standalone struct {
	circuitbreaker.CircuitBreaker[any]
}

// newStandalone makes one that waits for cooldown and closes after one success
// of one probe, if the change says nothing else.
func newStandalone(change func(circuitbreaker.Builder[any])) standalone {
	b := circuitbreaker.NewBuilder[any]().WithDelay(cooldown).WithSuccessThreshold(1)
	change(b)
	return standalone{b.Build()}
}

func (b standalone) ask() (func(word), bool) {
	return func(w word) { b.hear(w) }, b.TryAcquirePermit()
}

// hear records results; its breaker cannot tell whose they are.
func (b standalone) hear(words ...word) {
	for _, w := range words {
		switch w {
		case succeeded:
			b.RecordSuccess()
		case failed:
			b.RecordFailure()
		}
	}
}

func (b standalone) seen() string {
	if b.IsOpen() && b.RemainingDelay() == 0 {
		return "half-open"
	}
	return b.State().String()
}

// op is one kind of step of a differential test.
type op int

const (
	opAsk     op = iota // ask, and keep the call in flight
	opSettle            // say the word of a call in flight
	opCall              // ask, and say the word at once
	opUnasked           // a call that nobody asked about
	opWait
)

// step is what happens to all parties alike.
type step struct {
	op    op
	word  word
	which int // of the calls in flight
	wait  int // seconds, for opWait
}

// pair is an engine and another library's breaker, made to the same policy.
type pair struct {
	engine *engine
	other  party
	// unasked lets a call through the other that nobody asked about; nil where it
	// has no such thing.
	unasked func(word)
	// lateIsHeard marks a library that takes a late word as one of its present
	// state: it is not told of any.
	lateIsHeard bool
	// bend changes a word where the policies are known to part, given the window
	// that it falls into; nil changes none.
	bend func(calls, failures int, w word) word
}

// inFlight is a call that both parties let through.
type inFlight struct {
	engine, other func(word)
	era           uint64
}

// coverage counts what a differential test came by: one that never trips a
// breaker compares nothing.
type coverage struct{ opened, reopened, closed, refused, late int }

// run takes both parties through the steps, in a bubble of its own, and says at
// which step they parted.
func run(t *testing.T, build func(testing.TB) pair, steps []step, seen *coverage) (err error) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t)
		var calls []inFlight
		state := p.engine.seen()
		ask := func() (inFlight, bool, error) {
			done, allowed := p.engine.ask()
			theirs, allowedToo := p.other.ask()
			if allowed != allowedToo {
				return inFlight{}, false, fmt.Errorf("allowed is %t by the engine and %t by the other", allowed, allowedToo)
			}
			if !allowed {
				seen.refused++
			}
			return inFlight{done, theirs, p.engine.view().Era}, allowed, nil
		}
		bend := func(w word) word {
			if v := p.engine.view(); p.bend != nil && w != unused && v.State == breaker.Closed {
				return p.bend(v.Calls, v.Failures, w)
			}
			return w
		}
		settle := func(c inFlight, w word) {
			late := c.era != p.engine.view().Era
			if late {
				seen.late++
			} else {
				w = bend(w)
			}
			c.engine(w)
			if !late || !p.lateIsHeard {
				c.other(w)
			}
		}
		take := func(s step) error {
			switch s.op {
			case opAsk, opCall:
				c, allowed, err := ask()
				switch {
				case err != nil || !allowed:
					return err
				case s.op == opCall:
					settle(c, s.word)
				default:
					calls = append(calls, c)
				}
			case opSettle:
				if len(calls) > 0 {
					i := s.which % len(calls)
					c := calls[i]
					calls = append(calls[:i], calls[i+1:]...)
					settle(c, s.word)
				}
			case opUnasked:
				w := bend(s.word)
				p.engine.hear(w)
				p.unasked(w)
			case opWait:
				time.Sleep(time.Duration(s.wait) * time.Second)
			}
			return nil
		}
		for i, s := range steps {
			if err = take(s); err == nil && p.engine.seen() != p.other.seen() {
				err = fmt.Errorf("the engine is %s and the other %s", p.engine.seen(), p.other.seen())
			}
			if err != nil {
				err = fmt.Errorf("step %d, %+v: %w", i, s, err)
				return
			}
			before := state
			state = p.engine.seen()
			switch {
			case before == state:
			case state == "closed":
				seen.closed++
			case state == "open" && before == "closed":
				seen.opened++
			case state == "open":
				seen.reopened++
			}
		}
	})
	return err
}

// drawSteps draws a sequence out of these operations, whose words are failures
// more or less often.
func drawSteps(t *rapid.T, words []word, ops ...op) []step {
	failures := rapid.IntRange(1, 9).Draw(t, "failures of ten")
	one := rapid.Custom(func(t *rapid.T) step {
		s := step{op: rapid.SampledFrom(ops).Draw(t, "op"), which: rapid.IntRange(0, 9).Draw(t, "which")}
		switch {
		case s.op == opWait:
			s.wait = rapid.SampledFrom([]int{1, 2, 3, 8, 20, 40}).Draw(t, "wait")
		case s.op == opUnasked:
			s.word = rapid.SampledFrom(words[:2]).Draw(t, "word")
		default:
			s.word = rapid.SampledFrom(words).Draw(t, "word")
		}
		if s.word == succeeded && rapid.IntRange(0, 9).Draw(t, "fails") < failures {
			s.word = failed
		}
		return s
	})
	return rapid.SliceOfN(one, 60, 90).Draw(t, "steps")
}

// The words that each library has.
var (
	allWords    = []word{succeeded, failed, unused}
	withoutBack = []word{succeeded, failed}
)

// drawWait draws a cooldown that ends between whole seconds, the only times at
// which anything happens: the libraries part at its very end.
func drawWait(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(1, 30).Draw(t, "cooldown"))*time.Second + time.Second/2
}

func waits(d time.Duration) func(*breaker.Rule) {
	return func(r *breaker.Rule) { r.Cooldown.First = breaker.Duration(d) }
}

// reached tells whether failures of calls are at least the share.
func reached(rate breaker.Share, failures, calls int) bool {
	return failures > 0 && uint64(failures)*1_000_000 >= uint64(rate)*uint64(calls)
}

// failToFill makes a success that would complete a trip a failure, since
// gobreaker asks ReadyToTrip after failures only.
func failToFill(rate breaker.Share, minCalls int) func(calls, failures int, w word) word {
	return func(calls, failures int, w word) word {
		if w == succeeded && calls+1 >= minCalls && reached(rate, failures, calls+1) {
			return failed
		}
		return w
	}
}

// TestSameStates takes random sequences of questions, results, silences and
// late words through an Engine and through another library's breaker of the
// same policy: the answers and, after each step, the states are the same. What
// is left out, and why, stands with TestDifferences.
func TestSameStates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		words []word
		ops   []op
		draw  func(*rapid.T) func(testing.TB) pair
		late  bool // whether calls stay in flight across transitions
	}{
		{
			name: "gobreaker/consecutive", words: allWords, late: true,
			ops: []op{opAsk, opSettle, opSettle, opCall, opCall, opUnasked, opWait},
			draw: func(t *rapid.T) func(testing.TB) pair {
				n, wait := rapid.IntRange(1, 5).Draw(t, "consecutive"), drawWait(t)
				return func(t testing.TB) pair {
					other := newTwoStep(gobreaker.Settings{Timeout: wait, ReadyToTrip: inRow(n)})
					return pair{
						engine: newEngine(t, breaker.Trip{Consecutive: n}, waits(wait)),
						other:  other, unasked: func(w word) { other.execute(w) },
					}
				}
			},
		},
		{
			// A window that never fills is the whole of a generation's counts.
			name: "gobreaker/rate of all calls", words: allWords, late: true,
			ops: []op{opAsk, opSettle, opSettle, opCall, opCall, opUnasked, opWait},
			draw: func(t *rapid.T) func(testing.TB) pair {
				rate := breaker.Share(rapid.IntRange(1, 20).Draw(t, "rate in 5%") * 50_000)
				minCalls, wait := rapid.IntRange(1, 12).Draw(t, "min_calls"), drawWait(t)
				n := rapid.SampledFrom([]int{0, 3, 6}).Draw(t, "consecutive")
				return func(t testing.TB) pair {
					share, row := shareOf(rate, minCalls), inRow(n)
					other := newTwoStep(gobreaker.Settings{Timeout: wait, ReadyToTrip: func(c gobreaker.Counts) bool {
						return share(c) || n > 0 && row(c)
					}})
					trip := breaker.Trip{Consecutive: n, Rate: rate, Window: breaker.Window{Calls: 10_000}, MinCalls: minCalls}
					return pair{
						engine: newEngine(t, trip, waits(wait)),
						other:  other, unasked: func(w word) { other.execute(w) },
						bend: failToFill(rate, minCalls),
					}
				}
			},
		},
		{
			// Everything happens at whole seconds, so that the buckets of both begin
			// together, and each call ends when it starts.
			name: "gobreaker/rate over a span", words: allWords,
			ops: []op{opCall, opCall, opCall, opUnasked, opWait},
			draw: func(t *rapid.T) func(testing.TB) pair {
				rate := breaker.Share(rapid.IntRange(1, 20).Draw(t, "rate in 5%") * 50_000)
				minCalls, wait := rapid.IntRange(1, 8).Draw(t, "min_calls"), drawWait(t)
				return func(t testing.TB) pair {
					other := newTwoStep(gobreaker.Settings{
						Timeout: wait, Interval: 10 * time.Second, BucketPeriod: time.Second, ReadyToTrip: shareOf(rate, minCalls),
					})
					trip := breaker.Trip{Rate: rate, Window: breaker.Window{Span: 10 * time.Second}, MinCalls: minCalls}
					return pair{
						engine: newEngine(t, trip, waits(wait)),
						other:  other, unasked: func(w word) { other.execute(w) },
						bend: failToFill(rate, minCalls),
					}
				}
			},
		},
		{
			name: "failsafe/consecutive", words: withoutBack, late: true,
			ops: []op{opAsk, opSettle, opSettle, opCall, opCall, opWait},
			draw: func(t *rapid.T) func(testing.TB) pair {
				n, wait := rapid.IntRange(1, 5).Draw(t, "consecutive"), drawWait(t)
				return func(t testing.TB) pair {
					return pair{
						engine: newEngine(t, breaker.Trip{Consecutive: n}, waits(wait)),
						other: newStandalone(func(b circuitbreaker.Builder[any]) {
							b.WithFailureThreshold(uint(n)).WithDelay(wait)
						}),
						lateIsHeard: true,
					}
				}
			},
		},
		{
			name: "failsafe/rate of the last calls", words: withoutBack, late: true,
			ops: []op{opAsk, opSettle, opSettle, opCall, opCall, opCall, opWait},
			draw: func(t *rapid.T) func(testing.TB) pair {
				window := rapid.IntRange(1, 12).Draw(t, "window")
				most, wait := rapid.IntRange(1, window).Draw(t, "failures"), drawWait(t)
				return func(t testing.TB) pair {
					trip := breaker.Trip{
						Rate:   breaker.Share(most * 1_000_000 / window),
						Window: breaker.Window{Calls: window}, MinCalls: window,
					}
					return pair{
						engine: newEngine(t, trip, waits(wait)),
						other: newStandalone(func(b circuitbreaker.Builder[any]) {
							b.WithFailureThresholdRatio(uint(most), uint(window)).WithDelay(wait)
						}),
						lateIsHeard: true,
						// Its ring trips before it is full; ours waits for the minimum.
						bend: func(calls, failures int, w word) word {
							if w == failed && calls+1 < window && failures+1 >= most {
								return succeeded
							}
							return w
						},
					}
				}
			},
		},
		{
			// Its rates are rounded to hundredths, which says nothing below 100 calls
			// when the threshold is a half.
			name: "failsafe/rate over a span", words: withoutBack, late: true,
			ops: []op{opAsk, opSettle, opSettle, opCall, opCall, opWait},
			draw: func(t *rapid.T) func(testing.TB) pair {
				half := rapid.IntRange(1, 2).Draw(t, "rate in 50%")
				minCalls, wait := rapid.IntRange(1, 8).Draw(t, "min_calls"), drawWait(t)
				return func(t testing.TB) pair {
					trip := breaker.Trip{Rate: breaker.Share(half * 500_000), Window: breaker.Window{Span: 10 * time.Second}, MinCalls: minCalls}
					return pair{
						engine: newEngine(t, trip, waits(wait)),
						other: newStandalone(func(b circuitbreaker.Builder[any]) {
							b.WithFailureRateThreshold(float64(half)/2, uint(minCalls), 10*time.Second).WithDelay(wait)
						}),
						lateIsHeard: true,
					}
				}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var seen coverage
			rapid.Check(t, func(rt *rapid.T) {
				build := c.draw(rt)
				if err := run(t, build, drawSteps(rt, c.words, c.ops...), &seen); err != nil {
					rt.Fatal(err)
				}
			})
			t.Logf("came by %+v", seen)
			if seen.opened == 0 || seen.reopened == 0 || seen.closed == 0 || seen.refused == 0 || c.late && seen.late == 0 {
				t.Errorf("the sequences never came by one of these: %+v", seen)
			}
		})
	}
}

// TestDifferences shows where an Engine, gobreaker v2 and failsafe-go part when
// they are given the same policy. The first column names the subtest; "as the
// engine" means that the library does the same, "–" that it has nothing like it.
//
//	                          engine                             gobreaker v2                       failsafe-go
//	end of the cooldown       a probe passes at its end          only after it (Before)             as the engine
//	reading the state         changes nothing                    moves open to half-open and        as the engine; State() says open
//	                                                             calls OnStateChange                until somebody asks
//	success fills minimum     trips: the share is what counts    does not: ReadyToTrip is asked     as the engine
//	                                                             after failures only
//	old calls                 leave a window of N calls          count for ever (Interval 0)        as the engine
//	window not full           waits for min_calls                as ReadyToTrip has it              a ratio trips on the Nth failure,
//	                                                                                                however few calls there were
//	hour of silence           empties a window of calls          changes nothing                    changes nothing
//	run over an interval      has no end but a success           Interval clears it, and forgets    –
//	                                                             the calls in flight
//	run over buckets          has no end but a success           loses what is in buckets that go   –
//	bucket of a long call     that in which it ended             that in which it was let through   as the engine
//	begin of the buckets      the clock's                        the generation's                   as the engine
//	share just below          does not trip: no rounding         as ReadyToTrip has it              rounded to hundredths, so 49.75 %
//	                                                                                                reach a threshold of 50 %
//	second word of a call     is a duplicate                     counts again                       counts again: calls have no names
//	late word                 moves nothing: the call is older   as the engine (generations)        counts as the probe's own
//	                          than the era
//	late word and slots       a slot is its lease's own          as the engine                      frees a slot that another holds
//	lost probe                its lease ends; the next passes    half-open for ever                 half-open for ever
//	unused probe              is given back                      as the engine, by IsExcluded       – (stands for a lost one)
//	several probes            one at a time (concurrent)         as many at once as have to         as many at once as have to
//	                                                             succeed (MaxRequests)              succeed
//	half-open left alone      one probe, one failure re-opens    as the engine                      the failure threshold holds there
//	                                                                                                too: three pass, two may fail
//	unasked, probe due        is the probe (passive_probes)      – (Execute asks)                   moves nothing
//	failures while open       are counted nowhere                are not let through                go on counting in Metrics
//	reading a silent span     sees it empty                      sees the old counts                sees the old counts
func TestDifferences(t *testing.T) {
	t.Parallel()
	const half = breaker.Share(500_000)
	lastFour := breaker.Trip{Rate: half, Window: breaker.Window{Calls: 4}, MinCalls: 4}
	span := func(rate breaker.Share, minCalls int) breaker.Trip {
		return breaker.Trip{Rate: rate, Window: breaker.Window{Span: 10 * time.Second}, MinCalls: minCalls}
	}
	twoOfFour := func(b circuitbreaker.Builder[any]) { b.WithFailureThresholdRatio(2, 4) }
	once := func(b circuitbreaker.Builder[any]) { b.WithFailureThreshold(1) }
	// tripped are all three, tripped by one failure.
	tripped := func(t *testing.T, change ...func(*breaker.Rule)) (*engine, twoStep, standalone) {
		e := newEngine(t, breaker.Trip{Consecutive: 1}, change...)
		g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(1)})
		f := newStandalone(once)
		e.hear(failed)
		g.execute(failed)
		f.hear(failed)
		states(t, "open", e, g, f)
		return e, g, f
	}
	for _, row := range []struct {
		name string
		show func(*testing.T)
	}{
		{"end of the cooldown", func(t *testing.T) {
			e, g, f := tripped(t)
			time.Sleep(cooldown)
			allows(t, true, e, f)
			allows(t, false, g)
			time.Sleep(time.Nanosecond)
			allows(t, true, g)
		}},
		{"reading the state", func(t *testing.T) {
			e, _, f := tripped(t)
			var moved []string
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(1), OnStateChange: func(_ string, from, to gobreaker.State) {
				moved = append(moved, fmt.Sprintf("%s to %s", from, to))
			}})
			g.execute(failed)
			time.Sleep(cooldown + 1)
			moved = nil
			if g.State(); fmt.Sprint(moved) != "[open to half-open]" {
				t.Errorf("gobreaker: reading moved %v, want open to half-open", moved)
			}
			if got := f.State(); got != circuitbreaker.OpenState {
				t.Errorf("failsafe-go: reading finds %s, want open", got)
			}
			before := e.view()
			e.Circuit(time.Now(), e.labels)
			if v := e.view(); v.State != breaker.Open || v.Era != before.Era {
				t.Errorf("engine: reading moved %s, era %d, to %s, era %d", before.State, before.Era, v.State, v.Era)
			}
		}},
		{"success fills minimum", func(t *testing.T) {
			e := newEngine(t, lastFour)
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(half, 4)})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureRateThreshold(0.5, 4, 10*time.Second) })
			words := []word{failed, failed, succeeded, succeeded}
			e.hear(words...)
			g.execute(words...)
			f.hear(words...)
			states(t, "open", e, f)
			states(t, "closed", g)
			g.execute(failed)
			states(t, "open", g)
		}},
		{"old calls", func(t *testing.T) {
			e := newEngine(t, lastFour)
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(half, 4)})
			f := newStandalone(twoOfFour)
			for range 100 {
				e.hear(succeeded)
				g.execute(succeeded)
				f.hear(succeeded)
			}
			e.hear(failed, failed)
			g.execute(failed, failed)
			f.hear(failed, failed)
			states(t, "open", e, f)
			states(t, "closed", g)
		}},
		{"window not full", func(t *testing.T) {
			e, f := newEngine(t, lastFour), newStandalone(twoOfFour)
			e.hear(failed, failed)
			f.hear(failed, failed)
			states(t, "closed", e)
			states(t, "open", f)
			e.hear(succeeded, succeeded)
			states(t, "open", e)
		}},
		{"hour of silence", func(t *testing.T) {
			e := newEngine(t, lastFour)
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(half, 4)})
			f := newStandalone(twoOfFour)
			for i, words := range [][]word{{succeeded, succeeded, failed}, {failed}} {
				time.Sleep(time.Duration(i) * time.Hour)
				e.hear(words...)
				g.execute(words...)
				f.hear(words...)
			}
			states(t, "closed", e)
			states(t, "open", g, f)
			if v := e.view(); v.Calls != 1 {
				t.Errorf("engine: the window holds %d calls after the silence, want 1", v.Calls)
			}
		}},
		{"run over an interval", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 3})
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(3), Interval: 10 * time.Second})
			ours, _ := e.ask()
			theirs, _ := g.ask()
			e.hear(failed)
			g.execute(failed)
			time.Sleep(11 * time.Second)
			ours(failed)
			theirs(failed)
			if c := g.Counts(); c.TotalFailures != 0 {
				t.Errorf("gobreaker: %d failures are counted after the interval, want 0: the call in flight is forgotten", c.TotalFailures)
			}
			e.hear(failed)
			g.execute(failed)
			states(t, "open", e)
			states(t, "closed", g)
		}},
		{"run over buckets", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 3})
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(3), Interval: 10 * time.Second, BucketPeriod: time.Second})
			for range 3 {
				e.hear(failed)
				g.execute(failed)
				time.Sleep(5 * time.Second)
			}
			states(t, "open", e)
			states(t, "closed", g)
		}},
		{"bucket of a long call", func(t *testing.T) {
			const all = breaker.Share(1_000_000)
			e := newEngine(t, span(all, 3))
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(all, 3), Interval: 10 * time.Second, BucketPeriod: time.Second})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureRateThreshold(1, 3, 10*time.Second) })
			var done []func(word)
			for _, p := range []party{e, g, f} {
				d, _ := p.ask()
				done = append(done, d)
			}
			time.Sleep(9 * time.Second)
			for _, d := range done {
				d(failed)
			}
			time.Sleep(3 * time.Second)
			e.hear(failed, failed)
			g.execute(failed, failed)
			f.hear(failed, failed)
			states(t, "open", e, f)
			states(t, "closed", g)
		}},
		{"begin of the buckets", func(t *testing.T) {
			const all = breaker.Share(1_000_000)
			time.Sleep(500 * time.Millisecond) // bubbles begin at a whole second
			e := newEngine(t, span(all, 2))
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(all, 2), Interval: 10 * time.Second, BucketPeriod: time.Second})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureRateThreshold(1, 2, 10*time.Second) })
			for _, wait := range []time.Duration{400 * time.Millisecond, 9300 * time.Millisecond} {
				time.Sleep(wait) // to 0.9 s and to 10.2 s: the first second has gone, or its ten have not
				e.hear(failed)
				g.execute(failed)
				f.hear(failed)
			}
			states(t, "closed", e, f)
			states(t, "open", g)
		}},
		{"share just below", func(t *testing.T) {
			e := newEngine(t, span(half, 199))
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(half, 199)})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureRateThreshold(0.5, 199, 10*time.Second) })
			for i := range 199 {
				w := succeeded
				if i >= 100 {
					w = failed
				}
				e.hear(w)
				g.execute(w)
				f.hear(w)
			}
			states(t, "closed", e, g)
			states(t, "open", f)
		}},
		{"second word of a call", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 3})
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(3)})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureThreshold(3) })
			for _, p := range []party{e, g, f} {
				done, _ := p.ask()
				for range 3 {
					done(failed)
				}
			}
			states(t, "closed", e)
			states(t, "open", g, f)
		}},
		{"late word", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 1})
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(1)})
			f := newStandalone(once)
			for _, p := range []party{e, g, f} {
				slow, _ := p.ask()
				slower, _ := p.ask()
				quick, _ := p.ask()
				quick(failed)
				time.Sleep(cooldown + 1)
				probe, allowed := p.ask()
				if !allowed {
					t.Fatalf("%T: no probe after the cooldown", p)
				}
				slow(failed)
				if p == party(f) {
					states(t, "open", p) // the probe is still under way
					continue
				}
				states(t, "half-open", p)
				probe(succeeded)
				slower(failed)
				states(t, "closed", p)
			}
		}},
		{"late word and slots", func(t *testing.T) {
			two := func(r *breaker.Rule) { r.Probes, r.Concurrent = 2, 2 }
			e := newEngine(t, breaker.Trip{Consecutive: 1}, two)
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(1), MaxRequests: 2})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureThreshold(1).WithSuccessThreshold(2) })
			for _, p := range []party{e, g, f} {
				slow, _ := p.ask()
				quick, _ := p.ask()
				quick(failed)
				time.Sleep(cooldown + 1)
				allows(t, true, p)
				allows(t, true, p)
				allows(t, false, p)
				slow(succeeded)
				allows(t, p == party(f), p)
			}
		}},
		{"lost probe", func(t *testing.T) {
			e, g, f := tripped(t, func(r *breaker.Rule) { r.Lease = breaker.Duration(10 * time.Second) })
			time.Sleep(cooldown + 1)
			allows(t, true, e, g, f)
			allows(t, false, e, g, f)
			time.Sleep(10 * time.Second)
			allows(t, true, e)
			allows(t, false, g, f)
			time.Sleep(1000 * time.Hour)
			allows(t, true, e)
			allows(t, false, g, f)
		}},
		{"unused probe", func(t *testing.T) {
			e, g, f := tripped(t)
			time.Sleep(cooldown + 1)
			for _, p := range []party{e, g, f} {
				done, allowed := p.ask()
				if !allowed {
					t.Fatalf("%T: no probe after the cooldown", p)
				}
				done(unused)
				states(t, "half-open", p)
			}
			allows(t, true, e, g)
			allows(t, false, f)
		}},
		{"several probes", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 1}, func(r *breaker.Rule) { r.Probes = 3 })
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(1), MaxRequests: 3})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureThreshold(1).WithSuccessThreshold(3) })
			e.hear(failed)
			g.execute(failed)
			f.hear(failed)
			time.Sleep(cooldown + 1)
			probe, _ := e.ask()
			allows(t, false, e)
			for i := range 3 {
				states(t, "half-open", e)
				probe(succeeded)
				if i < 2 {
					probe, _ = e.ask()
				}
			}
			states(t, "closed", e)
			for range 3 {
				allows(t, true, g, f)
			}
			allows(t, false, g, f)
		}},
		{"half-open left alone", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 3})
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(3)})
			f := standalone{circuitbreaker.NewBuilder[any]().WithDelay(cooldown).WithFailureThreshold(3).Build()}
			e.hear(failed, failed, failed)
			g.execute(failed, failed, failed)
			f.hear(failed, failed, failed)
			time.Sleep(cooldown + 1)
			var done []func(word)
			for _, p := range []party{e, g, f, f, f} {
				d, allowed := p.ask()
				if !allowed {
					t.Fatalf("%T refuses after the cooldown", p)
				}
				done = append(done, d)
			}
			allows(t, false, e, g, f)
			for _, d := range done[:4] {
				d(failed)
			}
			states(t, "open", e, g)
			states(t, "half-open", f)
			done[4](failed)
			f.hear(failed)
			states(t, "open", f)
		}},
		{"unasked, probe due", func(t *testing.T) {
			e, _, f := tripped(t)
			time.Sleep(cooldown)
			e.hear(succeeded)
			f.hear(succeeded)
			states(t, "closed", e)
			if got := f.State(); got != circuitbreaker.OpenState {
				t.Errorf("failsafe-go is %s, want open: nobody asked", got)
			}
		}},
		{"failures while open", func(t *testing.T) {
			e := newEngine(t, breaker.Trip{Consecutive: 2})
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: inRow(2)})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureThresholdRatio(2, 10) })
			for range 5 {
				e.hear(failed)
				g.execute(failed)
				f.hear(failed)
			}
			states(t, "open", e, g, f)
			if v, c, m := e.view(), g.Counts(), f.Metrics(); v.Run != 0 || c.TotalFailures != 0 || m.Failures() != 5 {
				t.Errorf("failures counted while open: engine %d, gobreaker %d, failsafe-go %d, want 0, 0 and 5", v.Run, c.TotalFailures, m.Failures())
			}
		}},
		{"reading a silent span", func(t *testing.T) {
			e := newEngine(t, span(half, 10))
			g := newTwoStep(gobreaker.Settings{ReadyToTrip: shareOf(half, 10), Interval: 10 * time.Second, BucketPeriod: time.Second})
			f := newStandalone(func(b circuitbreaker.Builder[any]) { b.WithFailureRateThreshold(0.5, 10, 10*time.Second) })
			e.hear(failed)
			g.execute(failed)
			f.hear(failed)
			if v := e.view(); v.Failures != 1 {
				t.Errorf("engine: %d failures are read at once, want 1", v.Failures)
			}
			time.Sleep(time.Minute)
			if v, c, m := e.view(), g.Counts(), f.Metrics(); v.Failures != 0 || c.TotalFailures != 1 || m.Failures() != 1 {
				t.Errorf("failures read after a silent minute: engine %d, gobreaker %d, failsafe-go %d, want 0, 1 and 1", v.Failures, c.TotalFailures, m.Failures())
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, row.show)
		})
	}
}

// states tells whether the parties are all seen in this state.
func states(t *testing.T, want string, parties ...party) {
	t.Helper()
	for _, p := range parties {
		if got := p.seen(); got != want {
			t.Errorf("%T is %s, want %s", p, got, want)
		}
	}
}

// allows asks each party, which has to answer so.
func allows(t *testing.T, want bool, parties ...party) {
	t.Helper()
	for _, p := range parties {
		if _, got := p.ask(); got != want {
			t.Errorf("%T: allowed is %t, want %t", p, got, want)
		}
	}
}
