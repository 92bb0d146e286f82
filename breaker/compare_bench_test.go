package breaker_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/sony/gobreaker/v2"

	"breakerbot/breaker"
)

// The benchmarks compare one Engine with breakers of gobreaker and failsafe-go
// on the same work. A breaker is always found by name, by strings other than
// those it was made with, as they come out of a request, among one or 10,000 of
// them in an order that no cache foresees; only failsafe/ring leaves that out.
// The Engine's numbers include a Drain after every drainEvery calls, as a
// journal does it; drain-ns/op and drain-allocs/op tell its share.

// drainEvery is how many outcomes and questions a Drain takes.
const drainEvery = 1024

// sizes are the numbers of breakers that a benchmark runs among.
var sizes = []struct {
	name string
	n    int
}{{"one-hot", 1}, {"10k", 10_000}}

var (
	benchKey  = []byte("a key for the comparison's permits")
	benchTime = time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	errBench  = errors.New("the call failed")
)

// at is the time of the benchmark's i-th call.
func at(i int) time.Time { return benchTime.Add(time.Duration(i) * time.Microsecond) }

// walk visits n places in an order without neighbours.
type walk struct{ at, stride, n int }

// newWalk strides by a prime that divides none of the sizes.
func newWalk(n int) walk { return walk{0, 7919 % n, n} }

func (w *walk) next() int {
	if w.at += w.stride; w.at >= w.n {
		w.at -= w.n
	}
	return w.at
}

// benchLabels names n targets, in strings of their own.
func benchLabels(n int) []breaker.Labels {
	labels := make([]breaker.Labels, n)
	for i := range labels {
		labels[i] = breaker.Labels{
			Agent:   fmt.Sprintf("coder-%02d", i%32),
			Machine: fmt.Sprintf("gpu-node-%04d.lab.example", i/8),
			Model:   fmt.Sprintf("qwen3-30b-a3b-instruct-%d", i%8),
		}
	}
	return labels
}

// benchKeys are the names behind which the other libraries' breakers are found.
func benchKeys(n int) []string {
	keys := make([]string, n)
	for i, l := range benchLabels(n) {
		keys[i] = l.Machine + "/" + l.Model
	}
	return keys
}

// byName finds breakers as a program with many of them does.
type byName[B any] struct {
	mu sync.RWMutex
	m  map[string]B
}

func newByName[B any](n int, build func() B) *byName[B] {
	f := &byName[B]{m: make(map[string]B, n)}
	for _, key := range benchKeys(n) {
		f.m[key] = build()
	}
	return f
}

func (f *byName[B]) get(key string) B {
	f.mu.RLock()
	b := f.m[key]
	f.mu.RUnlock()
	return b
}

// oneRule is the policy that all three can have: half of the last 100 calls
// once 20 are in, for gobreaker half of all calls.
func oneRule(change ...func(*breaker.Rule)) []breaker.Rule {
	r := breaker.Rule{
		Name: "errors", Scope: []string{"machine", "model"}, Failures: []string{"transport"},
		Trip:     breaker.Trip{Rate: 500_000, Window: breaker.Window{Calls: 100}, MinCalls: 20},
		Cooldown: breaker.Cooldown{First: breaker.Duration(time.Hour)},
	}
	for _, f := range change {
		f(&r)
	}
	return []breaker.Rule{r}
}

// atFirst trips at a failure and may be probed a second later.
func atFirst(r *breaker.Rule) {
	r.Trip = breaker.Trip{Consecutive: 1}
	r.Cooldown = breaker.Cooldown{First: breaker.Duration(time.Second)}
}

// waitsLong opens at a failure for longer than a benchmark's time runs.
func waitsLong(r *breaker.Rule) {
	r.Trip = breaker.Trip{Consecutive: 1}
	r.Cooldown = breaker.Cooldown{First: breaker.Duration(30 * 24 * time.Hour)}
}

// halfOfCalls is oneRule's policy in gobreaker.
func halfOfCalls(c gobreaker.Counts) bool {
	return c.TotalSuccesses+c.TotalFailures >= 20 && c.TotalFailures*2 >= c.TotalSuccesses+c.TotalFailures
}

// fails tells whether the i-th call of a benchmark among n fails: one in four
// of each breaker's calls, which trips no policy here.
func fails(i, n int) bool { return i/n%4 == 3 }

// benchEngine is an Engine under load, with what its drains take. The timer is
// stopped while that is measured.
type benchEngine struct {
	*breaker.Engine
	b        *testing.B // nil while preparing
	verdicts []breaker.Verdict
	calls    int
	drains   time.Duration
	allocs   uint64
	mem      [2]runtime.MemStats
}

func newBenchEngine(b *testing.B, rules []breaker.Rule) *benchEngine {
	b.Helper()
	e, err := breaker.New(breaker.Config{Rules: rules, Key: benchKey})
	if err != nil {
		b.Fatal(err)
	}
	return &benchEngine{Engine: e}
}

// report is the one place where the benchmarks tell the Engine of outcomes.
func (e *benchEngine) report(now time.Time, batch []breaker.Outcome) []breaker.Verdict {
	e.verdicts, _ = e.AppendReport(e.verdicts[:0], now, batch)
	e.count(len(batch))
	return e.verdicts
}

// count drains when it is time to. Whoever asks calls Ask and then this: a
// helper in between would have the grant copied once more.
func (e *benchEngine) count(calls int) {
	if e.calls += calls; e.calls >= drainEvery {
		e.calls -= drainEvery
		e.drain()
	}
}

// drain takes what happened and throws it away.
func (e *benchEngine) drain() {
	if e.b == nil {
		e.Drain()
		return
	}
	e.b.StopTimer()
	runtime.ReadMemStats(&e.mem[0])
	e.b.StartTimer()
	start := time.Now()
	e.Reuse(e.Drain())
	e.drains += time.Since(start)
	e.b.StopTimer()
	runtime.ReadMemStats(&e.mem[1])
	e.allocs += e.mem[1].Mallocs - e.mem[0].Mallocs
	e.b.StartTimer()
}

// start ends the preparations, and what follows is measured.
func (e *benchEngine) start(b *testing.B) {
	e.Drain()
	e.b, e.calls = b, 0
	runtime.GC()
	b.ReportAllocs()
}

// stop tells the share of the drains, which is in ns/op and allocs/op too.
func (e *benchEngine) stop(b *testing.B, perOp int) {
	b.ReportMetric(float64(e.drains.Nanoseconds())/float64(b.N), "drain-ns/op")
	b.ReportMetric(float64(e.allocs)/float64(b.N), "drain-allocs/op")
	e.b = nil
	if perOp > 1 {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*perOp), "ns/outcome")
	}
}

// warm fills every window, so that what is measured is the steady state.
func (e *benchEngine) warm(b *testing.B, labels []breaker.Labels) {
	b.Helper()
	batch := make([]breaker.Outcome, 1)
	for i := range labels {
		for range 100 {
			batch[0] = breaker.Outcome{Labels: labels[i], Cause: breaker.OK, Duration: time.Second}
			e.report(benchTime, batch)
		}
	}
	if v := e.verdicts[0]; len(v.Counted) == 0 || v.State != breaker.Closed {
		b.Fatalf("warming up: %+v, want it counted and closed", v)
	}
}

// allSeen fails unless every breaker is in this state at the end, so that no
// benchmark measures something else than it says.
func (e *benchEngine) allSeen(b *testing.B, now time.Time, want breaker.State, n int) {
	b.Helper()
	if got := len(e.Breakers(now, breaker.Labels{}, want)); got < n {
		b.Fatalf("%d of %d breakers are %s", got, n, want)
	}
}

func BenchmarkEngine(b *testing.B) {
	for _, size := range sizes {
		n := size.n
		reports := func(name string, rules []breaker.Rule, per int, change func(i int, o *breaker.Outcome)) {
			b.Run(name+"/"+size.name, func(b *testing.B) {
				e := newBenchEngine(b, rules)
				e.warm(b, benchLabels(n))
				labels := benchLabels(n)
				batch := make([]breaker.Outcome, per)
				for i := range batch {
					batch[i] = breaker.Outcome{Duration: time.Second}
				}
				places := newWalk(n)
				e.start(b)
				i := 0
				for b.Loop() {
					for k := range batch {
						o := &batch[k]
						o.Labels, o.Cause = labels[places.next()], breaker.OK
						if change != nil {
							change(i, o)
						}
						i++
					}
					e.report(at(i), batch)
				}
				e.stop(b, per)
				e.allSeen(b, at(i), breaker.Closed, n)
			})
		}
		failing := func(i int, o *breaker.Outcome) {
			if fails(i, n) {
				o.Cause = breaker.ServerError
			}
		}
		ids := make([]byte, 0, 32)
		withID := func(i int, o *breaker.Outcome) {
			ids = fmt.Appendf(ids[:0], "call-%016x", i)
			o.ID = string(ids)
		}
		reports("report", oneRule(), 1, nil)
		reports("report-failing", oneRule(), 1, failing)
		reports("report-id", oneRule(), 1, withID)
		reports("report-batch100", oneRule(), 100, nil)
		reports("report-all-rules", breaker.Builtin(), 1, nil)
		reports("report-all-rules-failing", breaker.Builtin(), 1, failing)
		reports("report-all-rules-batch100", breaker.Builtin(), 100, nil)

		b.Run("open/"+size.name, func(b *testing.B) {
			e := newBenchEngine(b, oneRule(waitsLong))
			for _, l := range benchLabels(n) {
				e.report(benchTime, []breaker.Outcome{{Labels: l, Cause: breaker.ServerError}})
			}
			labels := benchLabels(n)
			places := newWalk(n)
			e.start(b)
			i := 0
			for b.Loop() {
				if g, _ := e.Ask(at(i), breaker.Ask{Labels: labels[places.next()]}); g.Allowed {
					b.Fatal("an open breaker lets a call through")
				}
				e.count(1)
				i++
			}
			e.stop(b, 1)
			e.allSeen(b, at(i), breaker.Open, n)
		})
		b.Run("permit/"+size.name, func(b *testing.B) {
			e := newBenchEngine(b, oneRule())
			e.warm(b, benchLabels(n))
			labels := benchLabels(n)
			places := newWalk(n)
			e.start(b)
			i := 0
			for b.Loop() {
				if g, _ := e.Ask(at(i), breaker.Ask{Labels: labels[places.next()]}); !g.Allowed || g.Probe {
					b.Fatalf("a closed breaker answers %+v", g)
				}
				e.count(1)
				i++
			}
			e.stop(b, 1)
		})
		b.Run("permit-report/"+size.name, func(b *testing.B) {
			e := newBenchEngine(b, oneRule())
			e.warm(b, benchLabels(n))
			labels := benchLabels(n)
			batch := []breaker.Outcome{{Duration: time.Second}}
			places := newWalk(n)
			e.start(b)
			i := 0
			for b.Loop() {
				l := labels[places.next()]
				batch[0].Labels, batch[0].Cause = l, breaker.OK
				g, _ := e.Ask(at(i), breaker.Ask{Labels: l})
				e.count(1)
				batch[0].Permit = g.Permit
				if v := e.report(at(i), batch); v[0].Duplicate {
					b.Fatal("the first word of a permit is called a duplicate")
				}
				i++
			}
			e.stop(b, 1)
			e.allSeen(b, at(i), breaker.Closed, n)
		})
		b.Run("half-open/"+size.name, func(b *testing.B) {
			e := newBenchEngine(b, oneRule(atFirst))
			labels := benchLabels(n)
			batch := []breaker.Outcome{{}}
			for i := range labels {
				batch[0] = breaker.Outcome{Labels: labels[i], Cause: breaker.OK}
				e.report(benchTime, batch)
			}
			places := newWalk(n)
			e.start(b)
			i := 0
			now := benchTime
			for b.Loop() {
				l := labels[places.next()]
				batch[0] = breaker.Outcome{Labels: l, Cause: breaker.ServerError}
				e.report(now, batch)
				now = now.Add(time.Second)
				g, _ := e.Ask(now, breaker.Ask{Labels: l})
				e.count(1)
				batch[0] = breaker.Outcome{Labels: l, Cause: breaker.OK, Permit: g.Permit}
				if v := e.report(now, batch); !g.Probe || v[0].State != breaker.Closed {
					b.Fatalf("the probe %+v left the circuit %s", g, v[0].State)
				}
				i++
			}
			e.stop(b, 1)
			e.allSeen(b, now, breaker.Closed, n)
		})
	}
}

func BenchmarkGobreaker(b *testing.B) {
	type cb = gobreaker.CircuitBreaker[any]
	type tscb = gobreaker.TwoStepCircuitBreaker[any]
	succeed := func() (any, error) { return nil, nil }
	fail := func() (any, error) { return nil, errBench }
	closed := gobreaker.Settings{ReadyToTrip: halfOfCalls}
	open := gobreaker.Settings{ReadyToTrip: inRow(1), Timeout: 1000 * time.Hour}
	for _, size := range sizes {
		n := size.n
		executes := func(name string, settings gobreaker.Settings, req func(i int) (func() (any, error), error)) {
			b.Run(name+"/"+size.name, func(b *testing.B) {
				find := newByName(n, func() *cb { return gobreaker.NewCircuitBreaker[any](settings) })
				for key := range find.m {
					if settings.Timeout > 0 {
						_, _ = find.get(key).Execute(fail)
					}
				}
				keys := benchKeys(n)
				places := newWalk(n)
				runtime.GC()
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					call, want := req(i)
					if _, err := find.get(keys[places.next()]).Execute(call); err != want {
						b.Fatalf("%v, want %v", err, want)
					}
					i++
				}
			})
		}
		executes("execute", closed, func(int) (func() (any, error), error) { return succeed, nil })
		executes("execute-failing", closed, func(i int) (func() (any, error), error) {
			if fails(i, n) {
				return fail, errBench
			}
			return succeed, nil
		})
		executes("open", open, func(int) (func() (any, error), error) { return succeed, gobreaker.ErrOpenState })

		b.Run("permit/"+size.name, func(b *testing.B) {
			find := newByName(n, func() *tscb { return gobreaker.NewTwoStepCircuitBreaker[any](closed) })
			keys := benchKeys(n)
			places := newWalk(n)
			runtime.GC()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := find.get(keys[places.next()]).Allow(); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
		b.Run("permit-report/"+size.name, func(b *testing.B) {
			find := newByName(n, func() *tscb { return gobreaker.NewTwoStepCircuitBreaker[any](closed) })
			keys := benchKeys(n)
			places := newWalk(n)
			runtime.GC()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				done, err := find.get(keys[places.next()]).Allow()
				if err != nil {
					b.Fatal(err)
				}
				done(nil)
				i++
			}
		})
		// It reads the wall clock, so its cooldown is the shortest there is.
		b.Run("half-open/"+size.name, func(b *testing.B) {
			s := gobreaker.Settings{ReadyToTrip: inRow(1), Timeout: 1}
			find := newByName(n, func() *tscb { return gobreaker.NewTwoStepCircuitBreaker[any](s) })
			keys := benchKeys(n)
			places := newWalk(n)
			runtime.GC()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				key := keys[places.next()]
				done, err := find.get(key).Allow()
				if err != nil {
					b.Fatal(err)
				}
				done(errBench)
				probe, err := find.get(key).Allow()
				for err != nil {
					probe, err = find.get(key).Allow()
				}
				probe(nil)
				i++
			}
			if got := find.get(keys[0]).State(); got != gobreaker.StateClosed {
				b.Fatalf("a breaker is %s at the end, want closed", got)
			}
		})
	}
}

func BenchmarkFailsafe(b *testing.B) {
	type cb = circuitbreaker.CircuitBreaker[any]
	closed := func() cb { return circuitbreaker.NewBuilder[any]().WithFailureThresholdRatio(50, 100).Build() }
	for _, size := range sizes {
		n := size.n
		// The nearest to its count ring that can be reached from outside: a result
		// recorded in a breaker that is at hand.
		b.Run("ring/"+size.name, func(b *testing.B) {
			rings := make([]cb, n)
			for i := range rings {
				rings[i] = closed()
			}
			places := newWalk(n)
			runtime.GC()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				rings[places.next()].RecordSuccess()
				i++
			}
		})
		loops := func(name string, build func() cb, do func(i int, found cb) bool) {
			b.Run(name+"/"+size.name, func(b *testing.B) {
				find := newByName(n, build)
				keys := benchKeys(n)
				places := newWalk(n)
				runtime.GC()
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if !do(i, find.get(keys[places.next()])) {
						b.Fatal("the breaker answers otherwise than it should")
					}
					i++
				}
			})
		}
		loops("record", closed, func(_ int, found cb) bool { found.RecordSuccess(); return true })
		loops("record-failing", closed, func(i int, found cb) bool {
			if fails(i, n) {
				found.RecordFailure()
			} else {
				found.RecordSuccess()
			}
			return true
		})
		loops("permit", closed, func(_ int, found cb) bool { return found.TryAcquirePermit() })
		loops("permit-report", closed, func(_ int, found cb) bool {
			allowed := found.TryAcquirePermit()
			found.RecordSuccess()
			return allowed
		})
		loops("open", func() cb {
			opened := circuitbreaker.NewBuilder[any]().WithDelay(1000 * time.Hour).Build()
			opened.Open()
			return opened
		}, func(_ int, found cb) bool { return !found.TryAcquirePermit() })
		loops("half-open", func() cb {
			return circuitbreaker.NewBuilder[any]().WithDelay(0).WithSuccessThreshold(1).Build()
		}, func(_ int, found cb) bool {
			found.RecordFailure()
			allowed := found.TryAcquirePermit()
			found.RecordSuccess()
			return allowed && found.IsClosed()
		})
	}
}

// heap is what is in use, garbage collected.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkMemory measures bytes a breaker among 100,000, the names' strings,
// the map that finds them and whatever else is kept of them included.
func BenchmarkMemory(b *testing.B) {
	const n = 100_000
	measure := func(b *testing.B, build func() any) {
		for b.Loop() {
			before := heap()
			kept := build()
			after := heap()
			runtime.KeepAlive(kept)
			b.ReportMetric(float64(after-before)/n, "B/breaker")
		}
	}
	// One call in failEvery has failed, 0 being none.
	engine := func(b *testing.B, failEvery int) {
		measure(b, func() any {
			e := newBenchEngine(b, oneRule())
			batch := make([]breaker.Outcome, 100)
			for _, l := range benchLabels(n) {
				for k := range batch {
					batch[k] = breaker.Outcome{Labels: l, Cause: breaker.OK, Duration: time.Second}
					if failEvery > 0 && k%failEvery == failEvery-1 {
						batch[k].Cause, batch[k].HTTPStatus = breaker.ServerError, 500
						batch[k].Error = strings.Repeat("an error of some length; ", 3)
					}
				}
				e.report(benchTime, batch)
			}
			e.Drain()
			if v := e.Breakers(benchTime, breaker.Labels{Machine: "gpu-node-0007.lab.example"}); len(v) != 8 || v[0].Calls != 100 {
				b.Fatalf("the breakers of one machine are %+v, want 8 with 100 calls", v)
			}
			e.verdicts = nil
			return e
		})
	}
	b.Run("engine", func(b *testing.B) { engine(b, 0) })
	b.Run("engine-failing", func(b *testing.B) { engine(b, 20) })
	b.Run("gobreaker", func(b *testing.B) {
		measure(b, func() any {
			return newByName(n, func() *gobreaker.CircuitBreaker[any] {
				return gobreaker.NewCircuitBreaker[any](gobreaker.Settings{ReadyToTrip: halfOfCalls})
			})
		})
	})
	b.Run("failsafe", func(b *testing.B) {
		measure(b, func() any {
			return newByName(n, func() circuitbreaker.CircuitBreaker[any] {
				return circuitbreaker.NewBuilder[any]().WithFailureThresholdRatio(50, 100).Build()
			})
		})
	})
}

// BenchmarkRestore restores a million breakers with windows of 100 calls, five
// of them failed: from the form that Snapshot gives, and from the binary form
// that is stored of each. It wants some gigabytes, and is left out when short.
func BenchmarkRestore(b *testing.B) {
	if testing.Short() {
		b.Skip("a million breakers take their time")
	}
	const n = 1_000_000
	cfg := breaker.Config{Rules: oneRule(), Key: benchKey, MaxBreakers: n}
	clock, rows := savedRows(b, cfg, n)
	decode := func() breaker.Snapshot {
		snap := breaker.Snapshot{Clock: clock, States: make([]breaker.Saved, n)}
		for i, row := range rows {
			if err := snap.States[i].UnmarshalBinary(row); err != nil {
				b.Fatal(err)
			}
		}
		return snap
	}
	restore := func(b *testing.B, get func() breaker.Snapshot) *breaker.Engine {
		e, err := breaker.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		start := time.Now()
		if err := e.Restore(get()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "restore-s")
		l := breaker.Labels{Machine: fmt.Sprintf(savedMachine, n-1), Model: "qwen3-30b-a3b-instruct-0"}
		if v, ok := e.Breaker(benchTime, breaker.Name("errors", l)); !ok || v.Calls != 100 || v.Failures != 5 {
			b.Fatalf("the last of the restored breakers is %+v, want 5 failures of 100 calls", v)
		}
		return e
	}
	b.Run("stored", func(b *testing.B) {
		for b.Loop() {
			restore(b, decode)
		}
	})
	b.Run("saved", func(b *testing.B) {
		snap := decode()
		for b.Loop() {
			e := restore(b, func() breaker.Snapshot { return snap })
			start := time.Now()
			if got := len(e.Snapshot().States); got != n {
				b.Fatalf("the snapshot has %d breakers, want %d", got, n)
			}
			b.ReportMetric(time.Since(start).Seconds(), "snapshot-s")
		}
	})
}

// savedMachine is the name of the i-th machine that savedRows makes.
const savedMachine = "gpu-node-%07d.lab.example"

// savedRows makes the saved form of n breakers out of a hundred real ones,
// whose windows differ, by giving them other machines' names.
func savedRows(b *testing.B, cfg breaker.Config, n int) (breaker.Clock, [][]byte) {
	b.Helper()
	e, err := breaker.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	const samples = 100
	for i := range samples {
		batch := make([]breaker.Outcome, 100)
		for k := range batch {
			batch[k] = breaker.Outcome{
				Labels: breaker.Labels{Agent: "coder-07", Machine: fmt.Sprintf(savedMachine, i), Model: "qwen3-30b-a3b-instruct-0"},
				Cause:  breaker.OK, Duration: time.Second,
			}
			if k*7%20 == i%20 {
				batch[k].Cause, batch[k].HTTPStatus, batch[k].Error = breaker.ServerError, 500, "internal server error"
			}
		}
		e.Report(benchTime, batch)
	}
	snap := e.Snapshot() // by name, and so in the order of their numbers
	var forms [samples][]byte
	for i := range forms {
		if forms[i], err = snap.States[i].AppendBinary(nil); err != nil {
			b.Fatal(err)
		}
	}
	rows := make([][]byte, n)
	for i := range rows {
		rows[i] = bytes.ReplaceAll(forms[i%samples], fmt.Appendf(nil, savedMachine, i%samples), fmt.Appendf(nil, savedMachine, i))
	}
	return snap.Clock, rows
}
