package breaker_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"breakerbot/breaker"
	"pgregory.net/rapid"
)

// The engine is held against the reference of model_test.go: random sequences of
// all operations go to both, and whatever they answer must be the same.
//
// A normal run makes 500 sequences; make nightly makes 50,000 of them.

// modelTime is a whole hour, so that the buckets of every window begin there.
var modelTime = time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)

// modelSet is a set of rules under test, with the causes that move them.
type modelSet struct {
	name   string
	rules  func(t *rapid.T) []breaker.Rule
	likely []breaker.Cause
	// alone: only agent a meets the likely causes, and the others do well.
	alone bool
	// quick: no minutes and hours pass, for what is measured by them.
	quick bool
}

func modelSets() []modelSet {
	sec := func(n float64) breaker.Duration { return breaker.Duration(n * float64(time.Second)) }
	always := func(rules ...breaker.Rule) func(*rapid.T) []breaker.Rule {
		return func(*rapid.T) []breaker.Rule { return rules }
	}
	off := false
	transport := []string{"transport"}
	quiet := []string{"neutral", "caller", "capacity", "access", "quality", "latency"}
	short := breaker.Cooldown{First: sec(10), Factor: 2, Max: sec(60)}
	hard := []breaker.Cause{breaker.ServerError, breaker.Timeout, breaker.Refused}

	return []modelSet{
		{name: "builtin", rules: always(breaker.Builtin()...), likely: []breaker.Cause{
			breaker.Refused, breaker.Timeout, breaker.ServerError, breaker.RateLimited, breaker.Quota, breaker.Auth, breaker.Empty,
			breaker.Forbidden, breaker.Unreachable, breaker.Slow, breaker.ModelMissing, breaker.Overloaded, breaker.Reset,
		}},
		{name: "one agent in trouble", rules: always(breaker.Builtin()...), likely: []breaker.Cause{breaker.Unreachable, breaker.Timeout}, alone: true, quick: true},
		{name: "one probe", rules: always(
			breaker.Rule{Name: "r", Scope: []string{"machine"}, Failures: transport, Ignores: quiet, Trip: breaker.Trip{Consecutive: 2},
				Cooldown: short, Lease: sec(10), StableAfter: sec(60)},
		), likely: hard},
		{name: "three probes, two at once", rules: always(
			breaker.Rule{Name: "r", Scope: []string{"machine"}, Failures: transport, Ignores: quiet, Trip: breaker.Trip{Consecutive: 1},
				Cooldown: breaker.Cooldown{First: sec(8), Factor: 1.5, Max: sec(40)}, Probes: 3, Concurrent: 2, Lease: sec(20), MaxLease: sec(60), StableAfter: sec(30)},
		), likely: hard, quick: true},
		{name: "no passive probes", rules: always(
			breaker.Rule{Name: "up", Scope: []string{"machine"}, Failures: []string{"refused"}, Ignores: []string{"neutral"}, Trip: breaker.Trip{Consecutive: 1},
				Cooldown: short, Probes: 2, Lease: sec(15), PassiveProbes: &off},
			breaker.Rule{Name: "err", Scope: []string{"machine", "model"}, Failures: []string{"server_error", "timeout"}, Ignores: []string{"neutral", "refused"},
				Trip: breaker.Trip{Consecutive: 1}, Cooldown: breaker.Cooldown{First: sec(20)}, Lease: sec(5), MaxLease: sec(30)},
		), likely: hard},
		{name: "rate of calls", rules: always(
			breaker.Rule{Name: "r", Scope: []string{"machine"}, Failures: transport, Ignores: quiet,
				Trip: breaker.Trip{Rate: 500_000, Window: breaker.Window{Calls: 6}, MinCalls: 4}, Cooldown: short, Lease: sec(10)},
		), likely: hard},
		{name: "rate of a span", rules: always(
			breaker.Rule{Name: "r", Scope: []string{"machine"}, Failures: transport, Ignores: quiet,
				Trip: breaker.Trip{Rate: 400_000, Window: breaker.Window{Span: 10 * time.Second}, MinCalls: 3}, Cooldown: short, Lease: sec(10)},
			breaker.Rule{Name: "both", Scope: []string{"model"}, Failures: transport, Ignores: []string{"caller"},
				Trip: breaker.Trip{Consecutive: 4, Rate: 750_000, Window: breaker.Window{Span: 5 * time.Minute}, MinCalls: 5}},
		), likely: hard},
		{name: "witnesses", rules: always(
			breaker.Rule{Name: "q", Scope: []string{"machine"}, Failures: []string{"quality"}, Ignores: transport,
				Trip: breaker.Trip{Consecutive: 2, Rate: 300_000, Window: breaker.Window{Calls: 10}, MinCalls: 5, Witnesses: 2}, Cooldown: short, Probes: 2, Lease: sec(60)},
			breaker.Rule{Name: "h", Scope: []string{"machine"}, Failures: []string{"timeout"}, Ignores: []string{"neutral", "quality"},
				Trip: breaker.Trip{Consecutive: 3, Models: 2}, Cooldown: short, Lease: sec(20)},
		), likely: []breaker.Cause{breaker.Empty, breaker.Schema, breaker.Timeout}},
		{name: "yielding", rules: always(
			breaker.Rule{Name: "q", Scope: []string{"machine"}, Failures: []string{"quality"}, Ignores: []string{"neutral"},
				Trip: breaker.Trip{AtOnce: []string{"empty"}, Witnesses: 2}, Cooldown: breaker.Cooldown{First: sec(5)}, Probes: 2, Concurrent: 2, Lease: sec(60), PassiveProbes: &off},
		), likely: []breaker.Cause{breaker.Empty}, quick: true},
		{name: "retry-after", rules: always(
			breaker.Rule{Name: "instead", Scope: []string{"provider", "model"}, Failures: []string{"capacity"}, Ignores: []string{"transport", "access", "caller"},
				Trip: breaker.Trip{Consecutive: 3, OnRetryAfter: sec(10)}, Cooldown: breaker.Cooldown{First: sec(30), Factor: 2, Max: sec(120)}, MaxRetryAfter: sec(300)},
			breaker.Rule{Name: "floor", Scope: []string{"provider"}, Failures: []string{"access", "capacity"}, Ignores: []string{"transport", "caller"},
				Trip: breaker.Trip{Consecutive: 2, AtOnce: []string{"quota"}}, MaxRetryAfter: sec(120),
				Cooldown: breaker.Cooldown{First: sec(20), Factor: 3, Max: sec(200), ByCause: map[string]breaker.Duration{"quota": sec(100), "overloaded": sec(5)}}},
		), likely: []breaker.Cause{breaker.RateLimited, breaker.Overloaded, breaker.Quota, breaker.Auth}},
		{name: "observing", rules: always(
			breaker.Rule{Name: "o", Scope: []string{"machine", "model"}, Match: breaker.Match{Model: "m1"}, Failures: transport, Trip: breaker.Trip{Consecutive: 1}, Mode: breaker.ModeObserve},
			breaker.Rule{Name: "o", Scope: []string{"machine", "model"}, Failures: transport, Trip: breaker.Trip{Consecutive: 3}, Cooldown: short},
			breaker.Rule{Name: "mine", Scope: []string{"agent", "machine"}, Match: breaker.Match{Machine: "b*"}, Failures: []string{"transport", "caller"}, Trip: breaker.Trip{Consecutive: 2}, Cooldown: short},
		), likely: append(hard, breaker.BadRequest)},
		{name: "slow", rules: always(
			breaker.Rule{Name: "slow", Scope: []string{"machine"}, Failures: []string{"slow", "slow_first_token"}, Ignores: []string{"transport", "caller"},
				Trip: breaker.Trip{Rate: 500_000, Window: breaker.Window{Calls: 4}, MinCalls: 3}, SlowAfter: sec(2), SlowFirstTokenAfter: sec(1), Cooldown: short},
			breaker.Rule{Name: "slower", Scope: []string{"machine", "model"}, Failures: []string{"slow", "transport"},
				Trip: breaker.Trip{Consecutive: 2}, SlowAfter: sec(10), Cooldown: short, Probes: 2},
		), likely: append(hard, breaker.Slow, breaker.SlowFirstToken)},
		{name: "drawn", rules: drawModelRules, likely: []breaker.Cause{
			breaker.ServerError, breaker.Timeout, breaker.Refused, breaker.Empty, breaker.RateLimited, breaker.Auth, breaker.Quota, breaker.Slow, breaker.BadRequest,
		}},
	}
}

// drawModelRules draws one to three rules with any of the options.
func drawModelRules(t *rapid.T) []breaker.Rule {
	words := func(label string, from ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 1, 3, rapid.ID).Draw(t, label)
	}
	some := func(label string) bool { return rapid.Bool().Draw(t, label) }
	span := func(label string, low, high int) breaker.Duration {
		return breaker.Duration(rapid.IntRange(low, high).Draw(t, label)) * breaker.Duration(time.Second)
	}
	var rules []breaker.Rule
	for len(rules) < rapid.IntRange(1, 3).Draw(t, "rules") {
		r := breaker.Rule{
			Name:     rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name") + strconv.Itoa(len(rules)),
			Scope:    words("scope", "machine", "model", "provider", "agent"),
			Failures: words("failures", "transport", "quality", "capacity", "timeout", "server_error", "slow", "quota", "refused"),
			Ignores:  words("ignores", "neutral", "caller", "access", "transport", "bad_request", "quality"),
			Probes:   rapid.IntRange(1, 3).Draw(t, "probes"), Concurrent: rapid.IntRange(1, 3).Draw(t, "concurrent"),
			Lease: span("lease", 5, 60), StableAfter: span("stable after", 10, 300), SlowAfter: span("slow after", 1, 5),
			MaxRetryAfter: span("max retry after", 20, 300),
		}
		r.MaxLease = r.Lease + span("max lease", 0, 60)
		if some("observe") && some("really") {
			r.Mode = breaker.ModeObserve
		}
		if some("passive off") {
			off := false
			r.PassiveProbes = &off
		}
		r.Cooldown = breaker.Cooldown{First: span("first", 1, 60), Factor: rapid.SampledFrom([]float64{1, 1.5, 2, 10}).Draw(t, "factor")}
		r.Cooldown.Max = r.Cooldown.First + span("max", 0, 300)
		if some("consecutive") {
			r.Trip.Consecutive = rapid.IntRange(1, 4).Draw(t, "run")
		}
		if some("rate") {
			r.Trip.Rate = breaker.Share(rapid.IntRange(1, 100).Draw(t, "percent") * 10_000)
			r.Trip.MinCalls = rapid.IntRange(1, 8).Draw(t, "min calls")
			r.Trip.Window = breaker.Window{Calls: r.Trip.MinCalls + rapid.IntRange(0, 8).Draw(t, "window")}
			if some("span") {
				r.Trip.Window = breaker.Window{Span: time.Duration(rapid.IntRange(1, 600).Draw(t, "span of")) * time.Second}
			}
		}
		if some("witnesses") && !slices.Contains(r.Scope, "agent") {
			r.Trip.Witnesses = rapid.IntRange(2, 3).Draw(t, "witnesses of")
		}
		if some("models") && !slices.Contains(r.Scope, "model") {
			r.Trip.Models = 2
		}
		if some("on retry-after") {
			r.Trip.OnRetryAfter = span("on retry-after of", 1, 30)
		}
		for _, word := range r.Failures {
			if _, err := breaker.ParseCause(word); err == nil && some("at once") {
				r.Trip.AtOnce = append(r.Trip.AtOnce, word)
			}
			if _, err := breaker.ParseCause(word); err == nil && some("by cause") {
				r.Cooldown.ByCause = map[string]breaker.Duration{word: span("by cause of", 1, 400)}
			}
		}
		if r.Validate() != nil {
			t.Skip("not a rule")
		}
		rules = append(rules, r)
	}
	return rules
}

// modelMachines: one that loads models, one with another name, one on a shared account.
var modelMachines = map[string]breaker.Machine{
	"gpu": {Local: true},
	"box": {Aliases: []string{"10.0.0.9:11434"}},
	"api": {Provider: "lab"},
}

type modelOp int

const (
	modelNothing modelOp = iota // what a shrunk sequence is padded with
	modelAdvance
	modelOutcome
	modelBurst // the same outcome many times
	modelAsk
	modelRelease
	modelExtend
	modelControl
	modelReconcile
	modelRestart
	modelLook
)

// modelStep is one drawn operation. What depends on the state so far, such as
// which permit or which moment, is drawn as a number and resolved as it runs, so
// that a step means something wherever shrinking leaves it.
type modelStep struct {
	op               modelOp
	clock            int // how the time moves before it
	amount           int
	labels           breaker.Labels
	cause            int
	likely           int
	id               int
	permit           int // 0: none
	mislabel         bool
	age, duration    time.Duration
	begin            int // 0: age and duration as drawn; otherwise at a beginning
	beside           time.Duration
	timeout, retry   time.Duration
	firstToken       time.Duration
	served           breaker.Served
	request          int
	control          breaker.Op
	span             time.Duration
	which            int
	n                int
	write            bool
	key              string
	latency, applied bool
}

// GoString keeps the printed draws short; the script says more.
func (s modelStep) GoString() string { return strconv.Itoa(int(s.op)) }

func drawModelStep(t *rapid.T) modelStep {
	weighted := func(label string, pairs ...int) int { // value, weight, ...
		total := 0
		for i := 1; i < len(pairs); i += 2 {
			total += pairs[i]
		}
		n := rapid.IntRange(0, total-1).Draw(t, label)
		for i := 0; ; i += 2 {
			if n -= pairs[i+1]; n < 0 {
				return pairs[i]
			}
		}
	}
	among := func(label string, d ...time.Duration) time.Duration { return rapid.SampledFrom(d).Draw(t, label) }
	s := modelStep{op: modelOp(weighted("op",
		int(modelNothing), 1, int(modelAdvance), 5, int(modelOutcome), 44, int(modelBurst), 4, int(modelAsk), 26, int(modelRelease), 4,
		int(modelExtend), 5, int(modelControl), 4, int(modelReconcile), 1, int(modelRestart), 2, int(modelLook), 2))}
	if s.op == modelNothing {
		return s
	}
	s.clock = weighted("clock", 0, 8, 1, 5, 2, 7, 3, 2, 4, 1, 5, 1)
	switch s.clock {
	case 1:
		s.amount = rapid.IntRange(1, 15_000).Draw(t, "ms")
	case 2:
		s.amount = rapid.IntRange(0, 5).Draw(t, "instant")
		s.beside = among("beside", 0, 0, 0, -1, 1, -time.Millisecond, time.Millisecond)
	case 3:
		s.amount = rapid.IntRange(1, 15).Draw(t, "minutes")
	case 4:
		s.amount = rapid.IntRange(1, 3).Draw(t, "hours")
	case 5:
		s.amount = rapid.IntRange(1, 600).Draw(t, "back")
	}
	if s.op == modelAdvance {
		return s
	}
	s.labels = breaker.Labels{
		Agent:    rapid.SampledFrom([]string{"a", "a", "b", "c"}).Draw(t, "agent"),
		Machine:  rapid.SampledFrom([]string{"box", "box", "box", "10.0.0.9:11434", "gpu", "gpu", "api"}).Draw(t, "machine"),
		Model:    rapid.SampledFrom([]string{"m1", "m1", "m1", "m2", "m2", ""}).Draw(t, "model"),
		Provider: rapid.SampledFrom([]string{"", "", "", "", "lab", "acct"}).Draw(t, "provider"),
	}
	switch s.op {
	case modelOutcome, modelBurst:
		s.likely = weighted("likely", 0, 3, 1, 6, 2, 1)
		s.cause = rapid.IntRange(0, 99).Draw(t, "cause")
		s.age = among("age", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, time.Second, 9*time.Second, time.Minute, 2*time.Minute, 2*time.Minute+time.Nanosecond, 10*time.Minute)
		s.duration = among("duration", 0, 0, 0, 500*time.Millisecond, time.Second, 2*time.Second, 2001*time.Millisecond, 8*time.Second, 31*time.Second)
		s.begin = weighted("begin", 0, 4, 1, 2, 2, 1)
		s.which = rapid.IntRange(0, 3).Draw(t, "beginning")
		if s.clock != 2 {
			s.beside = among("beside", 0, 0, 0, -1, 1)
		}
		if s.op == modelBurst {
			s.n = rapid.IntRange(2, 12).Draw(t, "n")
			return s
		}
		s.permit = weighted("permit", 0, 4, 1, 3, 2, 1, 3, 1, 4, 1, -1, 1)
		s.mislabel = weighted("mislabel", 0, 9, 1, 1) == 1
		s.id = weighted("id", 0, 6, 1, 2, 2, 1)
		s.retry = among("retry-after", 0, 0, 0, 0, 5*time.Second, 10*time.Second, 40*time.Second, 150*time.Second, 2*time.Hour)
		s.timeout = among("timeout", 0, 0, 100*time.Millisecond, 2*time.Second, 9*time.Second)
		s.firstToken = among("first token", 0, 0, time.Second, 1001*time.Millisecond)
		s.served = breaker.Served(weighted("served", 0, 20, 1, 1, 2, 1, 3, 1, 4, 1))
		s.latency = weighted("latency", 0, 12, 1, 1) == 1
		s.write = weighted("write", 0, 9, 1, 1) == 1
		s.key = rapid.SampledFrom([]string{"k1", "k2", ""}).Draw(t, "key")
	case modelAsk:
		s.request = weighted("request", 0, 4, 1, 1, 2, 1, 3, 2)
		s.timeout = among("timeout", 0, 0, 0, time.Second, 20*time.Second, time.Minute, time.Hour)
		s.key = rapid.SampledFrom([]string{"", "", "", "", "", "", "k1", "k2"}).Draw(t, "key")
	case modelRelease:
		s.permit = weighted("permit", 1, 5, 2, 2, 3, 1, 4, 1, -1, 1)
	case modelExtend:
		s.permit = weighted("permit", 1, 5, 2, 2, 3, 1, 4, 1, -1, 1)
		s.timeout = among("timeout", time.Second, 20*time.Second, time.Minute, time.Hour)
	case modelControl:
		s.control = rapid.SampledFrom([]breaker.Op{breaker.OpReset, breaker.OpAuto, breaker.OpAuto, breaker.OpHoldOpen, breaker.OpHoldOpen, breaker.OpHoldClosed, breaker.OpHoldClosed, breaker.OpObserve}).Draw(t, "control")
		s.span = among("for", 0, 0, 10*time.Second, time.Minute, 10*time.Minute)
		s.which = rapid.IntRange(0, 9).Draw(t, "breaker")
	case modelReconcile:
		s.key = rapid.SampledFrom([]string{"k1", "k2"}).Draw(t, "key")
		s.applied = rapid.Bool().Draw(t, "applied")
	}
	return s
}

// modelRun is one sequence as it goes.
type modelRun struct {
	t       *rapid.T
	cfg     breaker.Config
	set     modelSet
	engine  *breaker.Engine
	ref     *refEngine
	reached map[string]bool

	now     time.Time
	script  []modelLine // the sequence so far
	grants  []modelGrant
	asked   breaker.Ask              // last
	ids     int                      // given to calls
	last    map[string]breaker.State // of each breaker, by its transitions
	eras    map[uint64]bool
	highest uint64

	// inputs are what the engine recorded of them, a block for each drain.
	inputs [][]byte
	// log has every call of the engine, to be made again in another one.
	log []func(e *breaker.Engine) any
	did []string // what they answered and what came of them

	transitions []breaker.Transition // all of them
}

// modelLine is a line of a replay script.
type modelLine struct {
	at     time.Time
	fields map[string]any
}

type modelGrant struct {
	permit string
	ref    *refPermit
	labels breaker.Labels
}

func newModelRun(t *rapid.T, set modelSet) *modelRun {
	cfg := breaker.Config{Rules: set.rules(t), Machines: modelMachines, Record: true, Key: []byte("the pool's own secret, of 32 byte")}
	r := &modelRun{
		t: t, cfg: cfg, set: set, reached: make(map[string]bool), now: modelTime,
		last: make(map[string]breaker.State), eras: make(map[uint64]bool),
	}
	r.engine = r.newEngine()
	r.ref = newRefEngine(cfg, func(what string) { r.reached[what] = true })
	r.ref.now = modelTime
	r.engine.Advance(modelTime)
	return r
}

func (r *modelRun) newEngine() *breaker.Engine {
	e, err := breaker.New(r.cfg)
	if err != nil {
		r.t.Fatalf("new engine: %v", err)
	}
	return e
}

// restarted saves an engine as the store does and gives its state to a new one.
func (r *modelRun) restarted(e *breaker.Engine) *breaker.Engine {
	snap := e.Snapshot()
	for i := range snap.States {
		r.binary(&snap.States[i], &breaker.Saved{})
	}
	for i := range snap.Lately {
		r.binary(&snap.Lately[i], &breaker.Lately{})
	}
	after := r.newEngine()
	if err := after.Restore(snap); err != nil {
		r.t.Fatalf("restore: %v", err)
	}
	return after
}

// binary replaces what was saved by what is read of its binary form, which must
// say the same.
func (r *modelRun) binary(saved, read any) {
	data, err := saved.(encoding.BinaryAppender).AppendBinary(nil)
	if err != nil {
		r.t.Fatalf("write %s: %v", asJSON(saved), err)
	}
	if err := read.(encoding.BinaryUnmarshaler).UnmarshalBinary(data); err != nil {
		r.t.Fatalf("read %s: %v", asJSON(saved), err)
	}
	if got, want := asJSON(read), asJSON(saved); got != want {
		r.t.Fatalf("the binary form says something else:\n wrote %s\n read  %s", want, got)
	}
	reflect.ValueOf(saved).Elem().Set(reflect.ValueOf(read).Elem())
}

func snapshot(e *breaker.Engine) string {
	snap := e.Snapshot()
	if len(snap.Lately) == 0 {
		snap.Lately = nil
	}
	return asJSON(snap)
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// fail ends the sequence with the script that leads to it.
func (r *modelRun) fail(format string, args ...any) {
	r.t.Helper()
	var lines []string
	for _, l := range r.script {
		t := strconv.FormatFloat(l.at.Sub(modelTime).Seconds(), 'f', -1, 64)
		lines = append(lines, `{"t": `+t+", "+strings.TrimPrefix(asJSON(l.fields), "{"))
	}
	for _, b := range r.ref.sorted() {
		format += "\n" + strings.ReplaceAll(fmt.Sprintf("%s: %+v", b.name, r.ref.dump(b)), "%", "%%")
	}
	r.t.Fatalf("%s\n\nthe script:\n%s\n%s", fmt.Sprintf(format, args...),
		asJSON(map[string]any{"builtin_rules": false, "rules": r.engine.Rules(), "machines": map[string]any{
			"gpu": map[string]any{"local": true}, "box": map[string]any{"aliases": []string{"10.0.0.9:11434"}}, "api": map[string]any{"provider": "lab"},
		}}), strings.Join(lines, "\n"))
}

// call makes one call of the engine and keeps it for the replay.
func (r *modelRun) call(do func(e *breaker.Engine) any) {
	r.log = append(r.log, do)
	answer := do(r.engine)
	batch := r.engine.Drain()
	if block, _ := batch.Inputs.AppendBinary(nil); len(block) > 0 {
		r.inputs = append(r.inputs, block)
	}
	r.did = append(r.did, told(answer, batch.Transitions))
	r.transitions = append(r.transitions, batch.Transitions...)
	r.check(batch.Transitions)
}

// redo: the inputs that the engine recorded bring another one to the same
// transitions and the same state.
func (r *modelRun) redo() {
	e := r.newEngine()
	e.Advance(modelTime)
	for _, block := range r.inputs {
		var in breaker.Inputs
		if err := in.UnmarshalBinary(block); err != nil {
			r.fail("read the recorded inputs: %v", err)
		}
		if again, _ := in.AppendBinary(nil); !bytes.Equal(again, block) {
			r.fail("recorded inputs read and written again differ:\n first %x\n again %x", block, again)
		}
		e.Redo(in)
	}
	e.Advance(r.ref.now)
	if first, again := asJSON(r.transitions), asJSON(e.Drain().Transitions); first != again {
		r.fail("the recorded inputs come to\n %s\n and not to\n %s", again, first)
	}
	first, again := r.engine.Snapshot(), e.Snapshot()
	again.Clock.Seq = first.Clock.Seq // which counts other things too
	if first, again := asJSON(first), asJSON(again); first != again {
		r.fail("the recorded inputs come to the state\n %s\n and not to\n %s", again, first)
	}
}

// told is an answer and what came of it, as it goes out.
func told(answer any, transitions []breaker.Transition) string {
	if answer == nil && len(transitions) == 0 {
		return ""
	}
	return asJSON(answer) + "\n" + asJSON(transitions)
}

// check holds transitions against the reference and the invariants.
func (r *modelRun) check(got []breaker.Transition) {
	for _, t := range got {
		if from := r.last[t.Breaker]; from != t.From {
			r.fail("%s: the transition %s is from %s, and the one before was to %s", t.Breaker, asJSON(t), t.From, from)
		}
		r.last[t.Breaker] = t.To
		if t.Era <= r.highest {
			r.fail("%s: era %d follows era %d", t.Breaker, t.Era, r.highest)
		}
		r.highest = t.Era
	}
	want := r.ref.take()
	for i := range max(len(got), len(want)) {
		var g, w breaker.Transition
		if i < len(got) {
			g = got[i]
			g.Detail, g.Evidence = "", nil
		}
		if i < len(want) {
			w = want[i]
		}
		if !same(g, w) {
			r.fail("transition %d of the last line:\n engine %s\n model  %s", i, asJSON(g), asJSON(w))
		}
	}
}

// same compares by value, times as moments.
func same(a, b any) bool { return reflect.DeepEqual(a, b) || asJSON(a) == asJSON(b) }

// differ names the fields of two structs that differ.
func differ(got, want any) string {
	if reflect.DeepEqual(got, want) {
		return ""
	}
	var list []string
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if !same(g.Field(i).Interface(), w.Field(i).Interface()) {
			list = append(list, fmt.Sprintf("%s: engine %s, model %s", g.Type().Field(i).Name, asJSON(g.Field(i).Interface()), asJSON(w.Field(i).Interface())))
		}
	}
	return strings.Join(list, "\n")
}

// line adds one line to the script.
func (r *modelRun) line(fields map[string]any) {
	r.script = append(r.script, modelLine{r.now, fields})
}

func (r *modelRun) outcomeFields(o breaker.Outcome, p int) map[string]any {
	m := map[string]any{"agent": o.Agent, "machine": o.Machine, "cause": o.Cause}
	put := func(key string, value any) {
		if v := reflect.ValueOf(value); !v.IsZero() {
			m[key] = value
		}
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	put("model", o.Model)
	put("provider", o.Provider)
	put("id", o.ID)
	put("latency", o.Latency.String())
	put("duration_ms", ms(o.Duration))
	put("first_token_ms", ms(o.FirstToken))
	put("age_ms", ms(o.Age))
	put("retry_after_s", o.RetryAfter.Seconds())
	put("timeout_ms", ms(o.Timeout))
	put("write", o.Write)
	put("idempotency_key", o.IdempotencyKey)
	if o.Served != breaker.ServedPrimary {
		m["served"] = o.Served
	}
	if p >= 0 {
		m["permit"] = "$p" + strconv.Itoa(p)
	} else if o.Permit != "" {
		m["permit"] = o.Permit
	}
	return m
}

// move brings the clock to the step's time.
func (r *modelRun) move(s modelStep) {
	r.now = r.ref.now
	if r.set.quick && (s.clock == 3 || s.clock == 4) {
		s.clock = 1
	}
	switch s.clock {
	case 1:
		r.now = r.now.Add(time.Duration(s.amount) * time.Millisecond)
	case 2:
		list := r.ref.instants()
		if r.set.quick {
			list = slices.DeleteFunc(list, func(at time.Time) bool { return at.Sub(r.now) > time.Minute })
		}
		if len(list) > 0 {
			r.now = list[s.amount%len(list)].Add(s.beside)
		}
	case 3:
		r.now = r.now.Add(time.Duration(s.amount) * time.Minute)
	case 4:
		r.now = r.now.Add(time.Duration(s.amount) * time.Hour)
	case 5:
		r.now = r.now.Add(-time.Duration(s.amount) * time.Second)
	}
	// Calls heard of are forgotten after a day, or later when few come.
	if end := modelTime.Add(breaker.HeardFor); r.now.After(end) {
		r.now = end
	}
}

// grant finds the permit a step means: 1 is the last one, 2 the one before; a
// negative one is forged.
func (r *modelRun) grant(n int) (g modelGrant, index int) {
	if n > 0 && n <= len(r.grants) {
		return r.grants[len(r.grants)-n], len(r.grants) - n
	}
	if n < 0 {
		return modelGrant{permit: "1.2.forged"}, -1
	}
	return modelGrant{}, -1
}

func (r *modelRun) outcome(s modelStep) (breaker.Outcome, modelGrant, int) {
	o := breaker.Outcome{
		Labels: s.labels, Duration: s.duration, Age: s.age, RetryAfter: s.retry, Timeout: s.timeout, FirstToken: s.firstToken,
		Served: s.served, Write: s.write, HTTPStatus: 0,
	}
	if s.write {
		o.IdempotencyKey = s.key
	}
	switch causes := breaker.Causes(); s.likely {
	case 0:
		o.Cause = breaker.OK
	case 1:
		o.Cause = r.set.likely[s.cause%len(r.set.likely)]
	case 2:
		o.Cause = causes[s.cause%len(causes)]
	}
	if s.latency {
		o.Latency = []breaker.Cause{breaker.Slow, breaker.SlowFirstToken}[s.cause%2]
	}
	if r.set.alone {
		o.Cause = breaker.OK
		if o.Agent == "a" {
			o.Cause = r.set.likely[s.cause%len(r.set.likely)]
		}
		o.Timeout, o.Duration = max(o.Timeout, 100*time.Millisecond), max(o.Duration, time.Second)
	}
	// An agent that names slow says ok with that latency verdict; who decodes it
	// has made it so.
	if o.Cause.Class() == breaker.ClassLatency {
		o.Latency, o.Cause = o.Cause, breaker.OK
	}
	switch s.id {
	case 1: // another call
		r.ids++
		o.ID = "c" + strconv.Itoa(r.ids)
	case 2: // a late word about one of the last
		o.ID = "c" + strconv.Itoa(max(1, r.ids-s.which))
	}
	g, index := r.grant(s.permit)
	o.Permit = g.permit
	if g.ref != nil && !s.mislabel {
		o.Labels = g.labels
	}
	// The call began beside a moment at which a breaker changed.
	if begins := r.ref.beginnings(); s.begin > 0 && len(begins) > 0 {
		since := max(0, r.ref.now.Sub(begins[s.which%len(begins)].Add(s.beside)))
		switch s.begin {
		case 1:
			o.Age, o.Duration = 0, since
		case 2:
			o.Age, o.Duration = since, 0
		}
	}
	return o, g, index
}

func (r *modelRun) step(s modelStep) {
	r.move(s)
	now := r.now
	switch s.op {
	case modelAdvance:
		if now.After(r.ref.now) {
			r.line(map[string]any{"circuit": map[string]any{"agent": "a", "machine": "box"}})
		}
		r.ref.advance(now)
		r.call(func(e *breaker.Engine) any { e.Advance(now); return nil })

	case modelOutcome, modelBurst:
		r.ref.advance(now) // so that a call begins beside what this brings about
		r.call(func(e *breaker.Engine) any { e.Advance(now); return nil })
		o, g, index := r.outcome(s)
		for range max(1, s.n) {
			r.line(map[string]any{"outcome": r.outcomeFields(o, index)})
			want := r.ref.report(now, o, g.ref)
			var got breaker.Verdict
			r.call(func(e *breaker.Engine) any {
				v, _ := e.Report(now, []breaker.Outcome{o})
				got = v[0]
				return v
			})
			if diff := differ(got, want); diff != "" {
				r.fail("the last verdict:\n%s", diff)
			}
		}
		r.compareCircuit(o.Labels)

	case modelAsk:
		a := breaker.Ask{Labels: s.labels, Timeout: s.timeout, IdempotencyKey: s.key}
		switch s.request {
		case 0:
		case 3: // the last asker asks the same again
			if r.asked.RequestID != "" {
				a = r.asked
			}
		default:
			a.RequestID = "r" + strconv.Itoa(s.request)
		}
		r.asked = a
		fields := map[string]any{"agent": a.Agent, "machine": a.Machine}
		if a.RequestID != "" {
			fields["request_id"] = a.RequestID
		}
		if a.Timeout > 0 {
			fields["timeout_ms"] = a.Timeout.Milliseconds()
		}
		if a.Model != "" {
			fields["model"] = a.Model
		}
		if a.Provider != "" {
			fields["provider"] = a.Provider
		}
		if a.IdempotencyKey != "" {
			fields["idempotency_key"] = a.IdempotencyKey
		}
		r.line(map[string]any{"permit": fields, "as": "p" + strconv.Itoa(len(r.grants))})
		want, p := r.ref.ask(now, a)
		var got breaker.Grant
		r.call(func(e *breaker.Engine) any { got, _ = e.Ask(now, a); return got })
		r.compareGrant(got, want, p)
		if p != nil {
			r.grants = append(r.grants, modelGrant{got.Permit, p, a.Labels})
		}
		r.compareCircuit(a.Labels)

	case modelRelease:
		g, index := r.grant(s.permit)
		if g.permit == "" {
			return
		}
		r.line(map[string]any{"release": "$p" + strconv.Itoa(index)})
		r.ref.advance(now)
		want := g.ref != nil && r.ref.release(now, g.ref)
		var got bool
		var err error
		r.call(func(e *breaker.Engine) any { got, _, err = e.Release(now, g.permit); return []any{got, err != nil} })
		if (err != nil) != (g.ref == nil) || got != want {
			r.fail("release: engine %v, %v, model %v", got, err, want)
		}

	case modelExtend:
		g, index := r.grant(s.permit)
		if g.permit == "" {
			return
		}
		r.line(map[string]any{"extend": "$p" + strconv.Itoa(index), "timeout_ms": s.timeout.Milliseconds()})
		var want time.Time
		ok := false
		r.ref.advance(now)
		if g.ref != nil {
			want, ok = r.ref.extend(now, g.ref, s.timeout)
		}
		var got time.Time
		var err error
		r.call(func(e *breaker.Engine) any {
			got, _, err = e.Extend(now, g.permit, s.timeout)
			return []any{got, err != nil}
		})
		if (err == nil) != ok || !got.Equal(want) {
			r.fail("extend: engine %v, %v, model %v, %v", got, err, want, ok)
		}

	case modelControl:
		name := "r{machine=new}"
		list := r.ref.sorted()
		if held := slices.DeleteFunc(slices.Clone(list), func(b *refBreaker) bool { return b.override == nil }); s.control == breaker.OpAuto && len(held) > 0 {
			list = held
		}
		if len(list) > 0 && s.which < 8 {
			name = list[s.which%len(list)].name
		} else if rules := r.ref.rulesOf(r.ref.canonical(s.labels)); len(rules) > 0 {
			rule := rules[s.which%len(rules)]
			name = breaker.Name(rule.Name, scopeOf(rule, r.ref.canonical(s.labels)))
		} else {
			return
		}
		c := breaker.Control{Breaker: name, Op: s.control, For: s.span, Actor: "test"}
		r.line(map[string]any{"control": map[string]any{"breaker": name, "op": c.Op, "for_ms": c.For.Milliseconds(), "actor": "test"}})
		r.ref.control(now, c)
		var err error
		r.call(func(e *breaker.Engine) any {
			var v breaker.View
			v, _, err = e.Control(now, c)
			return v
		})
		if err != nil {
			r.fail("control: %v", err)
		}

	case modelReconcile:
		r.line(map[string]any{"write": map[string]any{"idempotency_key": s.key, "result": map[bool]string{true: "applied", false: "not_applied"}[s.applied]}})
		r.ref.advance(now)
		want := r.ref.reconcile(s.key, s.applied)
		var err error
		r.call(func(e *breaker.Engine) any { _, _, err = e.Reconcile(now, s.key, s.applied, "test"); return err != nil })
		if (err == nil) != want {
			r.fail("reconcile: engine %v, model %v", err, want)
		}

	case modelRestart:
		r.line(map[string]any{"restart": map[string]any{}})
		r.ref.advance(now)
		r.call(func(e *breaker.Engine) any { e.Advance(now); return nil })
		before := snapshot(r.engine)
		r.engine = r.restarted(r.engine)
		if after := snapshot(r.engine); after != before {
			r.fail("a restart changes the state:\n before %s\n after  %s", before, after)
		}

	case modelLook:
		// Every call first brings the engine to its own time, and so does a look.
		r.ref.advance(now)
		r.call(func(e *breaker.Engine) any { e.Advance(now); return nil })
		r.look(now, s.labels)
	}
	r.compareViews()
}

// look: reading changes nothing.
func (r *modelRun) look(now time.Time, l breaker.Labels) {
	before := snapshot(r.engine)
	r.engine.Circuit(now, l)
	r.engine.Circuits(now, breaker.Labels{})
	r.engine.Breakers(now, breaker.Labels{}, breaker.Open, breaker.HalfOpen)
	for _, v := range r.engine.Breakers(now, breaker.Labels{}) {
		if one, ok := r.engine.Breaker(now, v.Name); !ok || !same(one, v) {
			r.fail("two looks at %s differ:\n%s", v.Name, differ(one, v))
		}
	}
	if after := snapshot(r.engine); after != before {
		r.fail("a look changes the state:\n before %s\n after  %s", before, after)
	}
	if b := r.engine.Drain(); !b.Empty() {
		r.fail("a look brings about %s", asJSON(b.Transitions))
	}
}

func (r *modelRun) compareGrant(got, want breaker.Grant, p *refPermit) {
	r.t.Helper()
	plain := got
	plain.Permit, plain.Write, plain.Breakers = "", nil, nil
	refused := want
	refused.Breakers = nil
	if diff := differ(plain, refused); diff != "" {
		r.fail("the last grant:\n%s", diff)
	}
	if got.Allowed != (got.Permit != "") {
		r.fail("the last grant: allowed is %v and the permit %q", got.Allowed, got.Permit)
	}
	got.Breakers = slices.Clone(got.Breakers)
	for i := range max(len(got.Breakers), len(want.Breakers)) {
		if i >= len(got.Breakers) || i >= len(want.Breakers) {
			r.fail("the last grant: refusing are\n engine %s\n model  %s", asJSON(got.Breakers), asJSON(want.Breakers))
		}
		if diff := differ(got.Breakers[i], want.Breakers[i]); diff != "" {
			r.fail("the last grant: refused by %s:\n%s", got.Breakers[i].Name, diff)
		}
	}
	if p == nil {
		return
	}
	// The same request has the same permit, any other its own.
	for _, g := range r.grants {
		if (g.permit == got.Permit) != (g.ref == p) {
			r.fail("the last grant: the permit %q is another one's", got.Permit)
		}
	}
}

func (r *modelRun) compareCircuit(l breaker.Labels) {
	got := r.engine.Circuit(r.ref.now, l)
	state, at := r.ref.stateOf(r.ref.canonical(l))
	if got.State != state || !got.RetryAt.Equal(at) {
		r.fail("the circuit of %s: engine %s, %v, model %s, %v", asJSON(l), got.State, got.RetryAt, state, at)
	}
	var names []string
	for _, b := range r.ref.circuit(r.ref.canonical(l)) {
		names = append(names, b.name)
	}
	var gotNames []string
	for _, v := range got.Breakers {
		gotNames = append(gotNames, v.Name)
	}
	if !slices.Equal(names, gotNames) {
		r.fail("the circuit of %s: engine %s, model %s", asJSON(l), gotNames, names)
	}
}

func (r *modelRun) compareViews() {
	got := r.engine.Breakers(r.ref.now, breaker.Labels{})
	want := r.ref.sorted()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i].Name != want[i].name {
			var names []string
			for _, b := range want {
				names = append(names, b.name)
			}
			r.fail("breakers: engine %s\n model %s", asJSON(got), names)
		}
		if diff := differ(got[i], r.ref.view(want[i], r.ref.now)); diff != "" {
			r.fail("%s, looked at after the last line:\n%s", got[i].Name, diff)
		}
		if live := len(r.ref.live(want[i])); live > want[i].rule.Concurrent {
			r.fail("%s: %d leases live", got[i].Name, live)
		}
	}
}

// replay: the same calls give another engine the same answers and transitions,
// byte for byte, however often it is restarted in between.
func (r *modelRun) replay(every int) {
	e := r.newEngine()
	e.Advance(modelTime)
	for i, do := range r.log {
		answer := do(e)
		did := told(answer, e.Drain().Transitions)
		if did != r.did[i] {
			r.fail("call %d again, restarted every %d:\n first %s\n again %s", i, every, r.did[i], did)
		}
		if every > 0 && i%every == every-1 {
			e = r.restarted(e)
		}
	}
	now := r.ref.now
	if first, again := asJSON(r.engine.Breakers(now, breaker.Labels{})), asJSON(e.Breakers(now, breaker.Labels{})); first != again {
		r.fail("replayed, restarted every %d, breakers differ:\n first %s\n again %s", every, first, again)
	}
}

// modelReached is what the sequences of a nightly run must all come to, so that
// the comparison does not pass by staying where nothing happens.
var modelReached = []string{
	breaker.ReasonTripped, breaker.ReasonProbeGranted, breaker.ReasonProbePassive, breaker.ReasonProbeFailed, breaker.ReasonProbesLost,
	breaker.ReasonProbeOK, breaker.ReasonHoldOpen, breaker.ReasonHoldClosed, breaker.ReasonObserve, breaker.ReasonAuto, breaker.ReasonExpired, breaker.ReasonReset,
	"trip_run", "trip_rate", "trip_at_once", "trip_retry_after", "tripped_by_success", "unwitnessed", "would_trip", "held_closed_would_trip",
	"retry_after", "retry_after_extends", "quick_retrip", "clock_set_back", "expired_into_open", "lease_expired", "expired_lease_counts",
	"duplicate", "late_too_old", "late_older_era", "late_before_retry", "late_lease", "passive_half_open", "probe_neutral", "given_back", "released",
	"release_again", "extended", "max_lease", "same_request", "yields", "probe_of_several", "concurrent_probes", "in_doubt",
	"refused_open", "refused_held_open", "refused_probe_in_flight", "refused_write_in_doubt",
	"caller_timeout", "caller_offline", "loading",
}

func TestModel(t *testing.T) {
	var (
		mu      sync.Mutex
		reached = make(map[string]int)
		runs    int
		all     int // groups of sets that ran
		steps   int
	)
	// A few sets of rules share the sequences of one check, which is what keeps
	// the normal run short.
	t.Run("sets", func(t *testing.T) {
		for sets := range slices.Chunk(modelSets(), 3) {
			t.Run(sets[0].name, func(t *testing.T) {
				all++
				t.Parallel()
				rapid.Check(t, func(t *rapid.T) {
					set := sets[rapid.IntRange(0, len(sets)-1).Draw(t, "set")]
					r := newModelRun(t, set)
					for _, s := range rapid.SliceOfN(rapid.Custom(drawModelStep), 60, 200).Draw(t, "steps") {
						r.step(s)
					}
					r.redo()
					r.replay(rapid.SampledFrom([]int{0, 100, 30, 10}).Draw(t, "restarted every"))
					mu.Lock()
					defer mu.Unlock()
					runs++
					steps += len(r.script)
					for what := range r.reached {
						reached[what]++
					}
				})
			})
		}
	})
	if t.Failed() || runs == 0 {
		return
	}
	t.Logf("%d sequences of %d operations", runs, steps/runs)
	for _, what := range slices.Sorted(maps.Keys(reached)) {
		t.Logf("%7d %s", reached[what], what)
	}
	if runs < 3000 || all < len(modelSets())/3 { // the rarest may be missing
		return
	}
	for _, what := range modelReached {
		if reached[what] == 0 {
			t.Errorf("no sequence came to %s", what)
		}
	}
}
