package bot

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"breakerbot/breaker"
)

var testAlerts = AlertConfig{
	GroupWait: 5 * time.Second,
	LongOpen:  []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour},
	Manner:    testManner,
	Chats:     []Chat{{ID: -1, Alerts: true}, {ID: -2, Thread: 7, Alerts: true}, {ID: -3, Digest: true}},
}

func testManner(rule string, _ breaker.Labels) Manner {
	return map[string]Manner{
		"latency": {Level: LevelSilent}, "rate-limit": {Level: LevelSilent}, "quiet": {Level: LevelOff},
		"never": {LongOpen: []time.Duration{}}, "early": {LongOpen: []time.Duration{time.Minute}},
	}[rule]
}

// A rule may be told in another way where it is narrowed by a match.
func TestManners(t *testing.T) {
	t.Parallel()
	manner := Manners([]breaker.Rule{
		{Name: "errors", Match: breaker.Match{Machine: "test-*"}, Alerts: breaker.AlertOff},
		{Name: "errors", LongOpen: []breaker.Duration{breaker.Duration(time.Hour)}},
	})
	for machine, want := range map[string]Level{"test-1": LevelOff, "gpu-box": LevelSound} {
		if got := manner.of("errors", breaker.Labels{Machine: machine}); got.Level != want {
			t.Errorf("errors of %s: %s, want %s", machine, got.Level, want)
		}
	}
	if got := manner("errors", breaker.Labels{Machine: "gpu-box"}); len(got.LongOpen) != 1 || got.LongOpen[0] != time.Hour {
		t.Errorf("long-open steps %v, want the rule's own", got.LongOpen)
	}
	if got := manner.of("gone", breaker.Labels{}); got.Level != LevelSound || got.LongOpen != nil {
		t.Errorf("a rule that is gone: %+v, want the defaults", got)
	}
}

func tripped(id uint64, rule string, l breaker.Labels, at time.Time) breaker.Transition {
	return breaker.Transition{At: at, Breaker: breaker.Name(rule, l), Rule: rule, Labels: l,
		From: breaker.Closed, To: breaker.Open, Reason: breaker.ReasonTripped, Era: id, Incident: id}
}

func closes(id, era uint64, at time.Time) breaker.Transition {
	return breaker.Transition{At: at, From: breaker.HalfOpen, To: breaker.Closed, Reason: breaker.ReasonProbeOK, Era: era, Incident: id}
}

var gpu = breaker.Labels{Machine: "gpu-box"}

func onGPU(model string) breaker.Labels { return breaker.Labels{Machine: "gpu-box", Model: model} }

func keys(p Plan) []string {
	var list []string
	for _, m := range p.New {
		list = append(list, m.DedupeKey)
	}
	return list
}

func TestTripMakesOneMessageForEachAlertChat(t *testing.T) {
	t.Parallel()
	a := NewAlerts(testAlerts)
	p := a.Plan([]breaker.Transition{tripped(7, "errors", onGPU("m"), t0)})
	if got, want := keys(p), []string{"trip/7/-1", "trip/7/-2/7"}; !slices.Equal(got, want) {
		t.Fatalf("keys %v, want %v", got, want)
	}
	m := p.New[1]
	if !m.NextAt.Equal(t0.Add(5*time.Second)) || m.Alert != 7 || m.Thread != 7 || m.Payload.Silent || m.Kind != KindTrip {
		t.Errorf("message %+v", m)
	}
	if !maps.Equal(p.Joins, map[uint64]uint64{7: 7}) {
		t.Errorf("joins %v", p.Joins)
	}
}

func TestTripsOfOneMachineShareAnAlert(t *testing.T) {
	t.Parallel()
	a := NewAlerts(testAlerts)
	p := a.Plan([]breaker.Transition{
		tripped(1, "reachability", gpu, t0),
		tripped(2, "errors", onGPU("a"), t0.Add(time.Second)),
		closes(1, 3, t0.Add(2*time.Second)),
		closes(2, 4, t0.Add(2*time.Second)),
		tripped(5, "errors", onGPU("b"), t0.Add(4*time.Second)),                                                          // nothing is open, but the message waits
		tripped(6, "access", breaker.Labels{Provider: "openai"}, t0.Add(4*time.Second)),                                  // an account
		tripped(7, "permission", breaker.Labels{Provider: "openai", Model: "gpt"}, t0.Add(4*time.Second)),                // the same
		tripped(8, "errors", breaker.Labels{Machine: "mac-mini", Model: "a", Provider: "openai"}, t0.Add(4*time.Second)), // another machine
	})
	if want := map[uint64]uint64{1: 1, 2: 1, 5: 1, 6: 6, 7: 6, 8: 8}; !maps.Equal(p.Joins, want) {
		t.Fatalf("joins %v, want %v", p.Joins, want)
	}
	if len(p.New) != 6 {
		t.Errorf("messages %v", keys(p))
	}
	// Much later, while 5 is open: it joins by an edit.
	a.Tick(t0.Add(9 * time.Minute))
	late := a.Plan([]breaker.Transition{tripped(9, "quality", onGPU("c"), t0.Add(9*time.Minute))})
	if len(late.New) != 0 || late.Joins[9] != 1 || late.Touched[1].IsZero() {
		t.Errorf("late trip: %+v", late)
	}
	// Once all is closed the next trip is another alert.
	a.Plan([]breaker.Transition{closes(5, 10, t0.Add(10*time.Minute)), closes(9, 11, t0.Add(10*time.Minute))})
	again := a.Plan([]breaker.Transition{tripped(12, "errors", onGPU("a"), t0.Add(11*time.Minute))})
	if again.Joins[12] != 12 || len(again.New) != 2 {
		t.Errorf("trip after the end: %+v", again)
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		in     []breaker.Transition
		joins  map[uint64]uint64
		silent []bool // of the trip messages to the first chat
	}{
		"off is not told": {
			in: []breaker.Transition{tripped(1, "quiet", gpu, t0)}, joins: nil,
		},
		"silent is silent": {
			in: []breaker.Transition{tripped(1, "latency", onGPU("a"), t0)}, joins: map[uint64]uint64{1: 1}, silent: []bool{true},
		},
		"silent joins one that sounded": {
			in:    []breaker.Transition{tripped(1, "errors", onGPU("a"), t0), tripped(2, "latency", onGPU("a"), at(100))},
			joins: map[uint64]uint64{1: 1, 2: 1}, silent: []bool{false},
		},
		"one that sounds joins a silent one that waits": {
			in:    []breaker.Transition{tripped(1, "latency", onGPU("a"), t0), tripped(2, "errors", onGPU("a"), at(3))},
			joins: map[uint64]uint64{1: 1, 2: 1}, silent: []bool{true}, // the sender lets it sound
		},
		"one that sounds never joins a silent one told": {
			in:    []breaker.Transition{tripped(1, "latency", onGPU("a"), t0), tripped(2, "errors", onGPU("a"), at(100)), tripped(3, "errors", onGPU("b"), at(200))},
			joins: map[uint64]uint64{1: 1, 2: 2, 3: 2}, silent: []bool{true, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := NewAlerts(testAlerts).Plan(c.in)
			if !maps.Equal(p.Joins, c.joins) {
				t.Errorf("joins %v, want %v", p.Joins, c.joins)
			}
			var silent []bool
			for _, m := range p.New {
				if m.ChatID == -1 {
					silent = append(silent, m.Payload.Silent)
				}
			}
			if !slices.Equal(silent, c.silent) {
				t.Errorf("silent %v, want %v", silent, c.silent)
			}
		})
	}
}

func TestOnlyTripsAndClosingMatter(t *testing.T) {
	t.Parallel()
	a := NewAlerts(testAlerts)
	a.Plan([]breaker.Transition{tripped(1, "errors", onGPU("a"), t0)})
	b := breaker.Name("errors", onGPU("a"))
	p := a.Plan([]breaker.Transition{
		{At: t0.Add(time.Minute), Breaker: b, Rule: "errors", Labels: onGPU("a"), From: breaker.Open, To: breaker.HalfOpen, Reason: breaker.ReasonProbeGranted, Era: 2, Incident: 1},
		{At: t0.Add(2 * time.Minute), Breaker: b, Rule: "errors", Labels: onGPU("a"), From: breaker.HalfOpen, To: breaker.Open, Reason: breaker.ReasonProbeFailed, Era: 3, Incident: 1},
		{At: t0.Add(2 * time.Minute), Breaker: "errors{machine=x}", Rule: "errors", From: breaker.Closed, To: breaker.Open, Reason: breaker.ReasonHoldOpen, Era: 4},
		{At: t0.Add(2 * time.Minute), Breaker: "errors{machine=x}", Rule: "errors", From: breaker.Open, To: breaker.Closed, Reason: breaker.ReasonReset, Era: 5},
	})
	if !p.Empty() {
		t.Errorf("plan %+v, want nothing", p)
	}
}

func TestEditsKeepTheirDistance(t *testing.T) {
	t.Parallel()
	a := NewAlerts(testAlerts)
	a.Plan([]breaker.Transition{tripped(1, "errors", onGPU("a"), t0), tripped(2, "errors", onGPU("b"), t0), tripped(3, "errors", onGPU("c"), t0)})
	base := t0.Add(time.Minute)
	for i, want := range []time.Duration{0, 10 * time.Second, 10 * time.Second} {
		at := base.Add(time.Duration(i) * 2 * time.Second)
		p := a.Plan([]breaker.Transition{closes(uint64(i+1), uint64(i+10), at)})
		if got := p.Touched[1].Sub(base); got != want {
			t.Errorf("edit %d due after %s, want %s", i, got, want)
		}
	}
}

func TestLongOpenStepsGoByTheClock(t *testing.T) {
	t.Parallel()
	a := NewAlerts(testAlerts)
	a.Plan([]breaker.Transition{tripped(1, "errors", onGPU("a"), t0)})
	var got []string
	for at := time.Duration(0); at <= 80*time.Hour; at += time.Minute {
		for _, m := range a.Tick(t0.Add(at)).New {
			if m.ChatID == -1 {
				got = append(got, fmt.Sprintf("%s %s %t", at, m.DedupeKey, m.Payload.Silent))
			}
		}
	}
	want := []string{
		"10m0s long/1/10m0s/-1 false", "1h0m0s long/1/1h0m0s/-1 false", "6h0m0s long/1/6h0m0s/-1 false",
		"24h0m0s long/1/24h0m0s/-1 false", "48h0m0s long/1/48h0m0s/-1 false", "72h0m0s long/1/72h0m0s/-1 false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told\n%q, want\n%q", got, want)
	}
	if next := a.Next(); !next.Equal(t0.Add(96 * time.Hour)) {
		t.Errorf("next %s", next)
	}
}

func TestLongOpenCountsFromTheFirstStillOpen(t *testing.T) {
	t.Parallel()
	a := NewAlerts(testAlerts)
	a.Plan([]breaker.Transition{tripped(1, "errors", onGPU("a"), t0), tripped(2, "never", onGPU("a"), t0), tripped(3, "errors", onGPU("b"), t0.Add(8*time.Minute))})
	a.Plan([]breaker.Transition{closes(1, 9, t0.Add(9*time.Minute))})
	if p := a.Tick(t0.Add(17 * time.Minute)); len(p.New) != 0 {
		t.Errorf("told %v after 9 min of the one still open", keys(p))
	}
	if p := a.Tick(t0.Add(18 * time.Minute)); !slices.Equal(keys(p), []string{"long/1/10m0s/-1", "long/1/10m0s/-2/7"}) {
		t.Errorf("told %v", keys(p))
	}
	a.Plan([]breaker.Transition{closes(3, 10, t0.Add(time.Hour))})
	if p := a.Tick(t0.Add(30 * time.Hour)); len(p.New) != 0 {
		t.Errorf("told %v of a rule that is never told again", keys(p))
	}
	early := NewAlerts(testAlerts)
	early.Plan([]breaker.Transition{tripped(1, "early", gpu, t0)})
	if p := early.Tick(t0.Add(time.Minute)); !slices.Contains(keys(p), "long/1/1m0s/-1") {
		t.Errorf("a rule's own step: told %v", keys(p))
	}
}

func TestRestartTellsOnlyTheLatestMissedStep(t *testing.T) {
	t.Parallel()
	open := []OpenIncident{
		{ID: 2, Alert: 1, Rule: "errors", Labels: onGPU("b"), OpenedAt: t0.Add(time.Second)},
		{ID: 1, Alert: 1, Rule: "errors", Labels: onGPU("a"), OpenedAt: t0, ClosedAt: t0.Add(time.Minute)},
		{ID: 5, Rule: "errors", Labels: breaker.Labels{Machine: "mac-mini"}, OpenedAt: t0}, // its rule was off
		{ID: 6, Rule: "quiet", Labels: gpu, OpenedAt: t0},
	}
	a := NewAlerts(testAlerts)
	a.Restore(open)
	p := a.Tick(t0.Add(7 * time.Hour))
	var first []string
	for _, m := range p.New {
		if m.ChatID == -1 {
			first = append(first, m.DedupeKey)
		}
	}
	if want := []string{"long/1/6h0m0s/-1", "long/5/6h0m0s/-1"}; !slices.Equal(first, want) {
		t.Errorf("told %v, want %v", first, want)
	}
	if !maps.Equal(p.Joins, map[uint64]uint64{5: 5}) {
		t.Errorf("joins %v", p.Joins)
	}
	// A restored alert goes on: trips join it, closing edits it.
	p = a.Plan([]breaker.Transition{tripped(8, "errors", onGPU("c"), t0.Add(8*time.Hour)), closes(2, 9, t0.Add(8*time.Hour))})
	if p.Joins[8] != 1 || p.Touched[1].IsZero() || len(p.New) != 0 {
		t.Errorf("after the restart: %+v", p)
	}
}

// TestAlertInvariants runs random lives of a few breakers, with restarts, and
// checks what must hold of everything ever planned.
func TestAlertInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := testAlerts
		cfg.GroupWait = rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Second}).Draw(t, "group_wait")
		rules := []string{"errors", "quality", "latency", "quiet", "never", "early"}
		machines := []breaker.Labels{{Machine: "a"}, {Machine: "b"}, {Provider: "p"}, {Agent: "x"}}
		type life struct {
			id, alert uint64
			rule      string
			l         breaker.Labels
			at        time.Time
		}
		var (
			a     = NewAlerts(cfg)
			now   = t0
			era   uint64
			open  = map[string]life{}
			seen  = map[string]bool{}          // dedupe keys in the outbox
			loud  = map[uint64]bool{}          // alerts whose trip message sounds as it was planned or will when sent
			due   = map[uint64]time.Time{}     // of trip messages
			known = map[uint64]life{}          // every incident ever told
			steps = map[uint64]time.Duration{} // the last step told since the last restart
		)
		apply := func(p Plan) {
			for inc, alert := range p.Joins {
				l, ok := known[inc]
				if !ok {
					t.Fatalf("join of %d, which never tripped", inc)
				}
				if was := l.alert; was != 0 && was != alert {
					t.Fatalf("incident %d moved from alert %d to %d", inc, was, alert)
				}
				first, ok := known[alert]
				if !ok || groupOf(first.l, first.l.Agent) != groupOf(l.l, l.l.Agent) {
					t.Fatalf("incident %d joined alert %d of another group", inc, alert)
				}
				l.alert = alert
				known[inc] = l
				for name, o := range open {
					if o.id == inc {
						o.alert = alert
						open[name] = o
					}
				}
			}
			for _, m := range p.New {
				if seen[m.DedupeKey] {
					if m.Kind == KindTrip {
						t.Fatalf("trip message %s twice", m.DedupeKey)
					}
					continue // only after a restart; the outbox drops it
				}
				seen[m.DedupeKey] = true
				if _, ok := known[m.Alert]; !ok {
					t.Fatalf("message %s of an alert without an incident", m.DedupeKey)
				}
				switch m.Kind {
				case KindTrip:
					due[m.Alert] = m.NextAt
				case KindLongOpen:
					if m.ChatID == -1 {
						if m.Payload.Step <= steps[m.Alert] {
							t.Fatalf("step %s of alert %d after %s", m.Payload.Step, m.Alert, steps[m.Alert])
						}
						steps[m.Alert] = m.Payload.Step
					}
					if !slices.ContainsFunc(slices.Collect(maps.Values(open)), func(o life) bool {
						return o.alert == m.Alert && now.Sub(o.at) >= m.Payload.Step
					}) {
						t.Fatalf("%s: nothing of it is open that long", m.DedupeKey)
					}
				default:
					t.Fatalf("message %s of kind %s", m.DedupeKey, m.Kind)
				}
			}
			for alert := range p.Touched {
				if _, ok := known[alert]; !ok {
					t.Fatalf("touch of alert %d without an incident", alert)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"trip": func(t *rapid.T) {
				rule, l := rapid.SampledFrom(rules).Draw(t, "rule"), rapid.SampledFrom(machines).Draw(t, "labels")
				name := breaker.Name(rule, l)
				if _, is := open[name]; is {
					t.Skip("open already")
				}
				era++
				lf := life{id: era, rule: rule, l: l, at: now}
				open[name], known[era] = lf, lf
				p := a.Plan([]breaker.Transition{tripped(era, rule, l, now)})
				apply(p)
				if testManner(rule, l).Level == LevelOff {
					if !p.Empty() {
						t.Fatalf("a rule that is off made %+v", p)
					}
					return
				}
				alert, ok := p.Joins[era]
				if !ok {
					t.Fatalf("trip %d is in no alert", era)
				}
				if !seen[fmt.Sprintf("trip/%d/-1", alert)] {
					t.Fatalf("alert %d has no message", alert)
				}
				if testManner(rule, l).Level != LevelSilent {
					if !loud[alert] && alert != era && !now.Before(due[alert]) {
						t.Fatalf("trip %d, which has to sound, joined alert %d, told silently", era, alert)
					}
					loud[alert] = true
				}
			},
			"close": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("nothing open")
				}
				name := rapid.SampledFrom(slices.Sorted(maps.Keys(open))).Draw(t, "breaker")
				lf := open[name]
				delete(open, name)
				era++
				p := a.Plan([]breaker.Transition{closes(lf.id, era, now)})
				apply(p)
				if _, touched := p.Touched[lf.alert]; lf.alert != 0 && !touched {
					t.Fatalf("closing %d did not touch alert %d", lf.id, lf.alert)
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{0, 500 * time.Millisecond, time.Second, 7 * time.Second, 9 * time.Minute, time.Hour, 25 * time.Hour}).Draw(t, "passes"))
				apply(a.Tick(now))
				if p := a.Tick(now); len(p.New) != 0 {
					t.Fatalf("the same tick told %v again", keys(p))
				}
			},
			"restart": func(t *rapid.T) {
				var list []OpenIncident
				alive := map[uint64]bool{}
				for _, o := range open {
					alive[o.alert] = true
				}
				for _, o := range known {
					_, is := open[breaker.Name(o.rule, o.l)]
					is = is && open[breaker.Name(o.rule, o.l)].id == o.id
					if !is && (o.alert == 0 || !alive[o.alert]) {
						continue
					}
					inc := OpenIncident{ID: o.id, Alert: o.alert, Rule: o.rule, Labels: o.l, OpenedAt: o.at}
					if !is {
						inc.ClosedAt = now
					}
					list = append(list, inc)
				}
				// What was told is known to the outbox's keys only: a step that was
				// passed over may be told of a younger incident, none twice.
				clear(steps)
				a = NewAlerts(cfg)
				a.Restore(list)
				apply(a.Tick(now))
			},
		})
	})
}
