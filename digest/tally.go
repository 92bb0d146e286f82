package digest

import (
	"cmp"
	"math"
	"slices"
	"time"

	"breakerbot/breaker"
)

// How far a model's incident may stand out of its machine's outage and still be
// explained by it: the failures that trip both come within the lead, and a
// breaker whose probes failed waits up to the built-in rules' longest cooldown.
const (
	explainLead = 2 * time.Minute
	explainTail = 10 * time.Minute
)

// fault says who is to answer for a call.
type fault uint8

const (
	faultUnknown fault = iota // the call says nothing about anybody
	faultNone                 // done right
	faultTarget               // the machine or the model
	faultAccount
	faultCaller
)

// faultOf follows what the built-in rules count: a missing model is its
// machine's trouble though it is told with an access error.
func faultOf(c breaker.Cause) fault {
	switch c.Class() {
	case breaker.ClassOK, breaker.ClassLatency:
		return faultNone
	case breaker.ClassTransport, breaker.ClassQuality:
		return faultTarget
	case breaker.ClassCapacity, breaker.ClassAccess:
		if c == breaker.ModelMissing {
			return faultTarget
		}
		return faultAccount
	case breaker.ClassCaller:
		return faultCaller
	default:
		return faultUnknown
	}
}

// kindOf names what a failure of this cause looks like from outside; "" for
// causes that are nobody's failure but the caller's.
func kindOf(c breaker.Cause) Kind {
	switch c {
	case breaker.Refused, breaker.Unreachable, breaker.ConnectTimeout, breaker.TLS:
		return KindUnreachable
	case breaker.Timeout, breaker.Stalled:
		return KindHung
	case breaker.ModelMissing:
		return KindErroring
	}
	switch c.Class() {
	case breaker.ClassTransport:
		return KindErroring
	case breaker.ClassLatency:
		return KindSlow
	case breaker.ClassQuality:
		return KindGarbage
	case breaker.ClassCapacity, breaker.ClassAccess:
		return KindLimited
	default:
		return ""
	}
}

// builtinKinds names incidents that came without causes.
var builtinKinds = map[string]Kind{
	"reachability": KindUnreachable, "hangs": KindHung, "errors": KindErroring, "quality": KindGarbage,
	"latency": KindSlow, "rate-limit": KindLimited, "access": KindLimited, "permission": KindLimited,
}

// Who an incident is held against.
const (
	blameMachine = "machine"
	blameModel   = "model"
	blameAccount = "account"
	blameAgent   = "agent"
	blameNobody  = "other" // a rule over none of these
)

// event is an incident as the tally looks at it.
type event struct {
	breaker.Incident
	end   time.Time // of the part that is over
	open  bool      // still, as far as is known
	kind  Kind
	blame string
	// excused is a model's incident that its machine's own outage explains.
	excused bool
}

func newEvent(in breaker.Incident, now time.Time) event {
	e := event{Incident: in, end: in.ClosedAt, open: in.ClosedAt.IsZero()}
	if e.open {
		e.end = now
	}
	if e.end.Before(e.OpenedAt) {
		e.end = e.OpenedAt
	}
	weights := map[Kind]int64{}
	for _, c := range in.Causes {
		weights[kindOf(c.Cause)] += int64(max(c.N, 1))
	}
	delete(weights, "")
	e.kind = ruling(weights)
	if e.kind == "" {
		e.kind = builtinKinds[in.Rule]
	}
	if e.kind == "" {
		e.kind = KindMixed
	}
	switch {
	case in.Provider != "" && (in.Machine == "" || e.kind == KindLimited):
		e.blame = blameAccount
	case in.Model != "":
		e.blame = blameModel
	case in.Machine != "":
		e.blame = blameMachine
	case in.Agent != "":
		e.blame = blameAgent
	default:
		e.blame = blameNobody
	}
	return e
}

// ruling is the kind with more than half of the weight, KindMixed when there is
// none, "" when there is no weight at all.
func ruling(weights map[Kind]int64) Kind {
	var sum int64
	for _, n := range weights {
		sum += n
	}
	for k, n := range weights {
		if 2*n > sum {
			return k
		}
	}
	if sum == 0 {
		return ""
	}
	return KindMixed
}

func (e event) in(w Window) bool { return touches(e.OpenedAt, e.end, e.open, w) }

// touches tells whether what lasted from–to has a part in the window; what was
// over within the moment in which it began belongs to that moment.
func touches(from, to time.Time, open bool, w Window) bool {
	return from.Before(w.To) && (to.After(w.From) || open || !from.Before(w.From))
}

// begins tells whether the event is the window's to count.
func begins(at time.Time, w Window) bool { return !at.Before(w.From) && at.Before(w.To) }

// clip is the part of from–to within the window, empty but never negative.
func clip(from, to time.Time, w Window) (time.Time, time.Time) {
	if from.Before(w.From) {
		from = w.From
	}
	if to.After(w.To) {
		to = w.To
	}
	if to.Before(from) {
		to = from
	}
	return from, to
}

// stretch is a row of events that overlap or touch.
type stretch struct {
	from, to time.Time
	open     bool
	events   []event
}

// stretches joins events, which are sorted by opening.
func stretches(events []event) []stretch {
	var list []stretch
	for _, e := range events {
		if n := len(list); n > 0 && (!e.OpenedAt.After(list[n-1].to) || list[n-1].open) {
			last := &list[n-1]
			if e.end.After(last.to) {
				last.to = e.end
			}
			last.open = last.open || e.open
			last.events = append(last.events, e)
			continue
		}
		list = append(list, stretch{from: e.OpenedAt, to: e.end, open: e.open, events: []event{e}})
	}
	return list
}

func (s stretch) in(w Window) bool { return touches(s.from, s.to, s.open, w) }

// length is the time that a stretch takes of the window.
func (s stretch) length(w Window) time.Duration {
	from, to := clip(s.from, s.to, w)
	return to.Sub(from)
}

// kind names an outage: by what the machine itself did, where one of its own
// breakers tripped, otherwise by the kind that lasted longest.
func (s stretch) kind() Kind {
	own := slices.ContainsFunc(s.events, func(e event) bool { return e.blame == blameMachine })
	weights := map[Kind]int64{}
	for _, e := range s.events {
		if !own || e.blame == blameMachine {
			weights[e.kind] += int64(e.end.Sub(e.OpenedAt)/time.Millisecond) + 1
		}
	}
	return ruling(weights)
}

// target is what a call goes to.
type target struct{ machine, model string }

// numbers are a row's calls.
type numbers struct {
	calls, judged, failed int64
	refused               int64
	causes                map[breaker.Cause]int64
}

func (n *numbers) add(c Count, f, mine fault) {
	n.calls += c.Calls
	switch f {
	case faultNone:
		n.judged += c.Calls
	case mine:
		n.judged += c.Calls
		n.failed += c.Calls
		if n.causes == nil {
			n.causes = map[breaker.Cause]int64{}
		}
		n.causes[c.Cause] += c.Calls
	}
}

// tally is everything counted for one window.
type tally struct {
	w   Window
	sum Totals

	events   []event              // with a part in the window, oldest first
	machines map[string][]event   // all of one machine
	models   map[target][]event   // blamed on a model
	accounts map[string][]event   // blamed on an account
	agents   map[string]int       // trips
	excused  map[target]int       // trips that the machine explains
	explains map[string][]stretch // a machine's own outages, unreachable or hung
	hung     map[string]bool      // machines with such an outage of kind hung in the window

	byMachine map[string]*numbers
	byTarget  map[target]*numbers
	byAccount map[string]*numbers
	byAgent   map[string]*numbers

	waits map[target]wait // of failed calls; the model is empty for all of a machine, both for all
}

// wait is what calls took that failed.
type wait struct {
	calls int64
	spent time.Duration
}

func at[K comparable](m map[K]*numbers, key K) *numbers {
	n := m[key]
	if n == nil {
		n = new(numbers)
		m[key] = n
	}
	return n
}

func tallyUp(incidents []breaker.Incident, counts []Count, refusals []Refusal, w Window, now time.Time) *tally {
	t := &tally{
		w:        w,
		machines: map[string][]event{}, models: map[target][]event{}, accounts: map[string][]event{},
		agents: map[string]int{}, excused: map[target]int{}, explains: map[string][]stretch{}, hung: map[string]bool{},
		byMachine: map[string]*numbers{}, byTarget: map[target]*numbers{},
		byAccount: map[string]*numbers{}, byAgent: map[string]*numbers{}, waits: map[target]wait{},
	}
	t.takeIncidents(incidents, now)
	t.takeCounts(counts)
	t.takeRefusals(refusals)
	return t
}

func (t *tally) takeIncidents(incidents []breaker.Incident, now time.Time) {
	var all []event // begun before the window's end, also those that were over before it
	for _, in := range incidents {
		if in.OpenedAt.Before(t.w.To) {
			all = append(all, newEvent(in, now))
		}
	}
	slices.SortFunc(all, func(a, b event) int {
		return cmp.Or(a.OpenedAt.Compare(b.OpenedAt), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Breaker, b.Breaker))
	})

	own := map[string][]event{}
	for _, e := range all {
		if e.blame == blameMachine && (e.kind == KindUnreachable || e.kind == KindHung) {
			own[e.Machine] = append(own[e.Machine], e)
		}
	}
	for machine, events := range own {
		t.explains[machine] = stretches(events)
		t.hung[machine] = slices.ContainsFunc(events, func(e event) bool { return e.kind == KindHung && e.in(t.w) })
	}

	for i := range all {
		e := &all[i]
		isIn, isNew := e.in(t.w), begins(e.OpenedAt, t.w)
		key := target{e.Machine, e.Model}
		if e.blame == blameModel && t.explained(*e) {
			e.excused = true
			t.excused[key] += btoi(isNew)
		}
		if e.Machine != "" && e.blame != blameAccount {
			// Also those that were over before the window: an outage begins with the
			// first of its incidents, wherever that lies.
			t.machines[e.Machine] = append(t.machines[e.Machine], *e)
		}
		if !isIn {
			continue
		}
		t.events = append(t.events, *e)
		switch {
		case isNew:
			t.sum.Trips++
		default:
			t.sum.Carried++
		}
		if e.open {
			t.sum.StillOpen++
		}
		switch e.blame {
		case blameModel:
			if !e.excused {
				t.models[key] = append(t.models[key], *e)
			}
		case blameAccount:
			t.accounts[e.Provider] = append(t.accounts[e.Provider], *e)
		case blameAgent:
			t.agents[e.Agent] += btoi(isNew)
		}
	}
	for _, s := range stretches(t.events) {
		t.sum.OpenTime += Millis(s.length(t.w))
	}
}

// explained tells whether a model's incident is its machine's doing.
func (t *tally) explained(e event) bool {
	for _, c := range e.Causes {
		if c.Cause.Class() != breaker.ClassTransport {
			return false
		}
	}
	return len(e.Causes) > 0 && slices.ContainsFunc(t.explains[e.Machine], func(s stretch) bool {
		return !e.OpenedAt.Before(s.from.Add(-explainLead)) && !e.OpenedAt.After(s.to) &&
			(s.open || !e.end.After(s.to.Add(explainTail)))
	})
}

func (t *tally) takeCounts(counts []Count) {
	for _, c := range counts {
		agent := at(t.byAgent, c.Agent)
		t.sum.CostUSD += c.CostUSD
		switch c.Served {
		case breaker.ServedCache:
			t.sum.Cached += c.Calls
		case breaker.ServedDegraded:
			t.sum.Degraded += c.Calls
		case breaker.ServedRejected:
			t.sum.Rejected += c.Calls
		case breaker.ServedFallback:
			t.sum.Rerouted += c.Calls
		}
		if !c.Served.Called() {
			continue
		}
		f := faultOf(c.Cause)
		t.sum.Calls += c.Calls
		switch f {
		case faultTarget, faultAccount:
			t.sum.Failed += c.Calls
			t.sum.WaitingSpent += Millis(c.Duration)
			t.addWait(target{}, c)
			if c.Machine != "" {
				t.addWait(target{c.Machine, ""}, c)
			}
			if c.Model != "" {
				t.addWait(target{c.Machine, c.Model}, c)
			}
		case faultCaller:
			t.sum.CallerFaults += c.Calls
		}
		agent.add(c, f, faultCaller)
		at(t.byMachine, c.Machine).add(c, f, faultTarget)
		if c.Model != "" {
			mine := f
			if kindOf(c.Cause) == KindUnreachable || c.Cause == breaker.Timeout && t.hung[c.Machine] {
				mine = faultUnknown // it never got the call, or its machine swallowed it
			}
			at(t.byTarget, target{c.Machine, c.Model}).add(c, mine, faultTarget)
		}
		if account := cmp.Or(c.Provider, c.Machine); account != "" {
			at(t.byAccount, account).add(c, f, faultAccount)
		}
	}
}

func (t *tally) addWait(key target, c Count) {
	sum := t.waits[key]
	t.waits[key] = wait{sum.calls + c.Calls, sum.spent + c.Duration}
}

// takeRefusals comes after takeCounts, whose failed calls say what a refused one
// would have taken.
func (t *tally) takeRefusals(refusals []Refusal) {
	var saved float64
	for _, r := range refusals {
		if r.Reason == breaker.AskedGranted || r.Reason == breaker.AskedProbe {
			continue
		}
		t.sum.Refused += r.Calls
		at(t.byMachine, r.Machine).refused += r.Calls
		if r.Model != "" {
			at(t.byTarget, target{r.Machine, r.Model}).refused += r.Calls
		}
		// A hold is a person's doing, and a write in doubt is no call less.
		if r.Reason == breaker.RefusedOpen || r.Reason == breaker.RefusedProbeInFlight {
			saved += float64(r.Calls) * t.meanWait(r.Machine, r.Model)
		}
	}
	t.sum.WaitingSaved = Millis(min(saved, math.MaxInt64/2))
}

// meanWait is the mean duration of the calls to a target that failed, in
// nanoseconds: of its machine or of all where none to itself did.
func (t *tally) meanWait(machine, model string) float64 {
	for _, key := range []target{{machine, model}, {machine, ""}, {}} {
		if sum := t.waits[key]; sum.calls > 0 {
			return float64(sum.spent) / float64(sum.calls)
		}
	}
	return 0
}

// totals completes the sums.
func (t *tally) totals() Totals {
	sum := t.sum
	for _, events := range t.machines {
		for _, s := range stretches(events) {
			switch {
			case begins(s.from, t.w):
				sum.Outages++
			case s.in(t.w):
				sum.CarriedOutages++
			}
		}
	}
	return sum
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
