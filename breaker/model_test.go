package breaker_test

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"breakerbot/breaker"
)

// refEngine is the reference for breaker.Engine: the same semantics, written to
// be read and not to be fast. It keeps the whole list of what happened and asks
// it again for every answer, so that it has no window to slide, no counter to
// keep in step and nothing to restore. Times come in with every call, as they
// do in the engine.
type refEngine struct {
	rules    []breaker.Rule // with their defaults, in order of precedence
	machines map[string]breaker.Machine
	maxAge   time.Duration

	now         time.Time
	era         uint64 // of the whole engine: the last number given out
	breakers    map[string]*refBreaker
	probes      []*refPermit // all there ever were
	words       []refWord    // of calls, for duplicates
	ended       []refEnded   // calls, for the judgements that need history
	writes      map[string]*refWrite
	transitions []breaker.Transition // since the last take

	// reached collects what happened, for whoever measures how far a test goes.
	reached func(what string)
}

// refBreaker is one rule applied to one value of its scope.
type refBreaker struct {
	rule  breaker.Rule
	name  string
	scope breaker.Labels
	state breaker.State

	era   uint64    // 0: the first, which has no beginning
	eraAt time.Time // when it began

	calls   []refCall   // counted since the windows were emptied
	reports []refReport // who had a result counted, ever

	openedAt time.Time // of the last opening
	cause    breaker.Cause
	retryAt  time.Time
	askedFor time.Time // by a Retry-After of a failure
	incident uint64
	failed   int // probes, in this incident
	last     *breaker.LastFailure

	exponent int       // e of the ladder
	closedAt time.Time // zero: never, or forgotten

	good int // probes in a row, in this era
	lost int // leases in a row that expired, in this era

	failer string // whose probe failed last
	asked  []refAsked

	override  *breaker.Override
	overOpen  bool // the hold was put over an open or half-open breaker
	wouldTrip int  // eras in which it would have tripped
	wouldEra  bool // this era is one of them
}

// refCall is a result that a breaker counted.
type refCall struct {
	at, end      time.Time
	failed       bool
	cause        breaker.Cause
	agent, model string
}

type refReport struct {
	at           time.Time
	agent, model string
}

type refAsked struct {
	at    time.Time
	agent string
}

// refPermit is the answer "go ahead" to one call; with slots it is a probe.
type refPermit struct {
	labels  breaker.Labels
	request string
	era     uint64 // the engine's counter when it was granted
	at      time.Time
	expires time.Time // of the lease
	slots   []*refSlot
	settled bool // a word of it has come
}

// refSlot is a probe's place in one breaker, in the era of the grant.
type refSlot struct {
	b       *refBreaker
	era     uint64
	expired bool // and counted as lost
}

type refWord struct {
	call   string // agent and id
	permit *refPermit
}

// refEnded is a call that reached a machine or tried to, under the cause that
// was reported.
type refEnded struct {
	labels   breaker.Labels
	cause    breaker.Cause
	end      time.Time
	duration time.Duration
}

type refWrite struct {
	until     time.Time
	settledAt time.Time
	applied   bool
}

func newRefEngine(cfg breaker.Config, reached func(string)) *refEngine {
	m := &refEngine{
		machines: cfg.Machines,
		maxAge:   cmp.Or(cfg.MaxAge, 2*time.Minute),
		breakers: make(map[string]*refBreaker),
		writes:   make(map[string]*refWrite),
		reached:  reached,
	}
	for _, r := range cfg.Rules {
		m.rules = append(m.rules, r.WithDefaults())
	}
	return m
}

// take hands out the transitions since the last take.
func (m *refEngine) take() []breaker.Transition {
	t := m.transitions
	m.transitions = nil
	return t
}

// Labels, rules and circuits.

// canonical: an alias means its machine, and the provider is by default the
// machine's, which is by default the machine itself.
func (m *refEngine) canonical(l breaker.Labels) breaker.Labels {
	for name, machine := range m.machines {
		if slices.Contains(machine.Aliases, l.Machine) {
			l.Machine = name
		}
	}
	if l.Provider == "" {
		l.Provider = cmp.Or(m.machines[l.Machine].Provider, l.Machine)
	}
	return l
}

// covers: a rule sees a call that fills its scope and fits its globs.
func covers(r breaker.Rule, l breaker.Labels) bool {
	filled := func(word, value string) bool { return !slices.Contains(r.Scope, word) || value != "" }
	fits := func(glob, value string) bool {
		ok, err := path.Match(cmp.Or(glob, "*"), value)
		return ok && err == nil
	}
	return filled("agent", l.Agent) && filled("machine", l.Machine) && filled("model", l.Model) && filled("provider", l.Provider) &&
		fits(r.Match.Agent, l.Agent) && fits(r.Match.Machine, l.Machine) && fits(r.Match.Model, l.Model) && fits(r.Match.Provider, l.Provider)
}

// rulesOf: the rules that see a call, the first that covers it of each name.
func (m *refEngine) rulesOf(l breaker.Labels) []breaker.Rule {
	var list []breaker.Rule
	for _, r := range m.rules {
		if covers(r, l) && !slices.ContainsFunc(list, func(x breaker.Rule) bool { return x.Name == r.Name }) {
			list = append(list, r)
		}
	}
	return list
}

// scopeOf: the labels of the rule's scope alone.
func scopeOf(r breaker.Rule, l breaker.Labels) breaker.Labels {
	var k breaker.Labels
	for _, word := range r.Scope {
		switch word {
		case "agent":
			k.Agent = l.Agent
		case "machine":
			k.Machine = l.Machine
		case "model":
			k.Model = l.Model
		case "provider":
			k.Provider = l.Provider
		}
	}
	return k
}

// breakerOf: the rule's breaker for a call, nil when there is none yet.
func (m *refEngine) breakerOf(r breaker.Rule, l breaker.Labels) *refBreaker {
	return m.breakers[breaker.Name(r.Name, scopeOf(r, l))]
}

// make: a breaker is made by the first outcome its rule counts, or a control.
func (m *refEngine) make(r breaker.Rule, l breaker.Labels) *refBreaker {
	if b := m.breakerOf(r, l); b != nil {
		return b
	}
	b := &refBreaker{rule: r, scope: scopeOf(r, l)}
	b.name = breaker.Name(r.Name, b.scope)
	m.breakers[b.name] = b
	return b
}

// circuit: the breakers that a call passes through, as far as they exist.
func (m *refEngine) circuit(l breaker.Labels) []*refBreaker {
	var list []*refBreaker
	for _, r := range m.rulesOf(l) {
		if b := m.breakerOf(r, l); b != nil {
			list = append(list, b)
		}
	}
	return list
}

// sorted: all breakers by name.
func (m *refEngine) sorted() []*refBreaker {
	var list []*refBreaker
	for _, b := range m.breakers {
		list = append(list, b)
	}
	slices.SortFunc(list, func(x, y *refBreaker) int { return strings.Compare(x.name, y.name) })
	return list
}

// State changes.

// transit: every transition and every override gives the breaker a new era,
// from one counter that is never used twice; what belongs to an era starts anew.
func (m *refEngine) transit(b *refBreaker, at time.Time, to breaker.State, reason string, cause breaker.Cause, actor string) {
	m.era++
	from := b.state
	b.state, b.era, b.eraAt = to, m.era, at
	if from == breaker.Closed || reason == breaker.ReasonHoldOpen && b.incident == 0 {
		b.openedAt = at // it stays, whatever the probes come to
	}
	b.good, b.lost, b.wouldEra = 0, 0, false
	if reason != breaker.ReasonHoldOpen { // under which they are only looked at
		b.calls = nil
	}
	if reason == breaker.ReasonTripped {
		b.incident = b.era
	}
	t := breaker.Transition{
		At: at, Breaker: b.name, Rule: b.rule.Name, Labels: b.scope, From: from, To: to,
		Cause: cause, Reason: reason, Actor: actor, Era: b.era, Incident: b.incident,
	}
	if to == breaker.Open {
		t.RetryAt = b.retryAt
	}
	if to == breaker.Closed {
		b.incident, b.failed, b.failer = 0, 0, ""
		b.retryAt, b.askedFor, b.openedAt, b.cause = time.Time{}, time.Time{}, time.Time{}, 0
	}
	m.transitions = append(m.transitions, t)
	m.reached(reason)
}

// ladder: first × factor^e, at most max; by_cause replaces first.
func (b *refBreaker) ladder(cause breaker.Cause, e int) time.Duration {
	c := b.rule.Cooldown
	first := c.First
	if d, ok := c.ByCause[cause.String()]; ok {
		first = d
	}
	wait := float64(first) * math.Pow(c.Factor, float64(e))
	return time.Duration(min(wait, float64(c.Max)))
}

// climb: one more step of the ladder, until the cap is reached.
func (b *refBreaker) climb(cause breaker.Cause) {
	if b.ladder(cause, b.exponent) < b.rule.Cooldown.Max.D() {
		b.exponent++
	}
}

// retryAfter: when the Retry-After of a failure ends. It counts from the end of
// the call and is capped; zero when there is none.
func (b *refBreaker) retryAfter(o breaker.Outcome, now time.Time) time.Time {
	if o.RetryAfter <= 0 {
		return time.Time{}
	}
	return now.Add(-o.Age).Add(min(o.RetryAfter, b.rule.MaxRetryAfter.D()))
}

// open: an open breaker waits as the ladder says. A Retry-After is the floor of
// the wait; a rule with on_retry_after waits for it instead. Of all that its
// failures asked for since it last closed, the latest end holds.
func (m *refEngine) open(b *refBreaker, at time.Time, reason string, cause breaker.Cause, actor string) {
	b.retryAt = at.Add(b.ladder(cause, b.exponent))
	if b.askedFor.After(at) {
		m.reached("retry_after")
		if b.rule.Trip.OnRetryAfter > 0 {
			b.retryAt = b.askedFor
		}
		b.retryAt = later(b.retryAt, b.askedFor)
	}
	b.cause = cause
	m.transit(b, at, breaker.Open, reason, cause, actor)
}

// trip: from closed to open. Each healthy stable_after since closing takes a
// step off the ladder; a trip before the first has passed adds one.
func (m *refEngine) trip(b *refBreaker, cause breaker.Cause, actor string) {
	if !b.closedAt.IsZero() {
		healthy := int(m.now.Sub(b.closedAt) / b.rule.StableAfter.D())
		if healthy == 0 {
			b.climb(cause)
			m.reached("quick_retrip")
		} else {
			b.exponent = max(0, b.exponent-healthy)
		}
	}
	m.open(b, m.now, breaker.ReasonTripped, cause, actor)
}

// Time.

// advance: engine time never runs backwards. What time alone brings about, a
// hold that ends or a lease that nobody settled, is dated at its deadline, and
// comes in the order of the deadlines.
func (m *refEngine) advance(now time.Time) {
	if !now.After(m.now) {
		if now.Before(m.now) {
			m.reached("clock_set_back")
		}
		return
	}
	for {
		var (
			at  time.Time
			do  func()
			see = func(deadline time.Time, what func()) {
				if !deadline.After(now) && (do == nil || deadline.Before(at)) {
					at, do = deadline, what
				}
			}
		)
		for _, b := range m.sorted() {
			if b.override != nil && !b.override.Until.IsZero() {
				see(b.override.Until, func() { m.expire(b) })
			}
			for _, p := range m.probes {
				for _, s := range p.slots {
					if s.b == b && s.era == b.era && !p.settled && !s.expired {
						see(p.expires, func() { m.lose(p, s) })
					}
				}
			}
		}
		if do == nil {
			break
		}
		m.now = at
		do()
	}
	m.now = now
}

// expire: an override that ends leaves the breaker closed and empty, but a hold
// put over an open or half-open one leaves it open and due for a probe. The
// ladder is forgotten.
func (m *refEngine) expire(b *refBreaker) {
	op, until := b.override.Op, b.override.Until
	b.override = nil
	if op == breaker.OpHoldOpen && b.overOpen {
		m.reached("expired_into_open")
		b.exponent, b.closedAt = 0, time.Time{}
		b.retryAt = until
		m.transit(b, until, breaker.Open, breaker.ReasonExpired, 0, "")
		return
	}
	b.exponent, b.closedAt = 0, time.Time{}
	m.transit(b, until, breaker.Closed, breaker.ReasonExpired, 0, "")
}

// lose: a lease that expires gives its slot back and moves nothing. The third in
// a row opens the breaker again: the same e and the cause of its last opening.
func (m *refEngine) lose(p *refPermit, s *refSlot) {
	s.expired = true
	m.reached("lease_expired")
	if s.b.lost++; s.b.lost == 3 {
		m.open(s.b, p.expires, breaker.ReasonProbesLost, s.b.cause, "")
	}
}

// live: the leases of a breaker that are neither settled nor over.
func (m *refEngine) live(b *refBreaker) []*refPermit {
	var list []*refPermit
	for _, p := range m.probes {
		for _, s := range p.slots {
			if s.b == b && s.era == b.era && !p.settled && m.now.Before(p.expires) {
				list = append(list, p)
			}
		}
	}
	return list
}

// slotIn: the permit's slot in this breaker and era, nil when it has none.
func (p *refPermit) slotIn(b *refBreaker) *refSlot {
	if p == nil {
		return nil
	}
	for _, s := range p.slots {
		if s.b == b && s.era == b.era {
			return s
		}
	}
	return nil
}

// Outcomes.

// hear remembers a call.
func (m *refEngine) hear(call string, p *refPermit) {
	m.words = append(m.words, refWord{call, p})
}

// heard: a second word about the same call is a duplicate: the same permit, or
// the same id of the same agent.
func (m *refEngine) heard(call string, p *refPermit) bool {
	for _, w := range m.words {
		if call != "" && w.call == call || p != nil && w.permit == p {
			return true
		}
	}
	return false
}

// report takes one outcome; p is the permit that it names, nil when it names
// none or one that is not of this pool.
func (m *refEngine) report(now time.Time, o breaker.Outcome, p *refPermit) breaker.Verdict {
	m.advance(now)
	o.Labels = m.canonical(o.Labels)
	call := ""
	if o.ID != "" {
		call = o.Agent + "\x00" + o.ID
	}
	if m.heard(call, p) {
		m.reached("duplicate")
		m.hear(call, p) // an id and a permit that came together are one call
		v := breaker.Verdict{Cause: o.Cause, Class: o.Cause.Class(), Latency: o.Latency, Duplicate: true, Counted: []string{}}
		v.State, v.RetryAt = m.stateOf(o.Labels)
		return v
	}
	m.hear(call, p)

	// What reached nobody is shown to no rule and gives its permit back.
	if !o.Served.Called() {
		m.giveBack(p)
		v := breaker.Verdict{Cause: o.Cause, Class: o.Cause.Class(), Latency: o.Latency, Counted: []string{}}
		v.State, v.RetryAt = m.stateOf(o.Labels)
		return v
	}

	inDoubt := m.doubt(o) // whoever is to blame for the time-out
	o.Cause = m.judge(o)
	v := breaker.Verdict{Cause: o.Cause, Class: o.Cause.Class(), Counted: []string{}, Latency: o.Latency}
	v.Late = o.Age > m.maxAge // whether or not a rule sees it
	for _, r := range m.rulesOf(o.Labels) {
		if verdict := slowness(r, o); verdict != 0 && (v.Latency == 0 || v.Latency == breaker.SlowFirstToken && o.Latency == 0) {
			v.Latency = verdict
		}
	}
	v.InDoubt = inDoubt

	// A word of a probe ends its lease and the row of the lost ones, whatever
	// comes of it, so what was leased is asked first.
	leased := make(map[*refBreaker]int)
	for _, b := range m.breakers {
		leased[b] = len(m.live(b))
	}
	if p != nil {
		p.settled = true
		for _, s := range p.slots {
			if s.era == s.b.era {
				s.b.lost = 0
			}
		}
	}
	for _, r := range m.rulesOf(o.Labels) {
		m.show(r, o, p, leased, &v)
	}
	v.State, v.RetryAt = m.stateOf(o.Labels)
	return v
}

// giveBack: a word of a permit that says nothing about the machine.
func (m *refEngine) giveBack(p *refPermit) {
	if p == nil {
		return
	}
	p.settled = true
	for _, s := range p.slots {
		if s.era == s.b.era {
			s.b.lost = 0
			m.reached("given_back")
		}
	}
}

// What a rule makes of an outcome.
type taken int

const (
	ignored taken = iota
	success
	failure
)

// slowness: each rule that names slow measures it, strictly over its limit; what
// the agent named counts as well.
func slowness(r breaker.Rule, o breaker.Outcome) breaker.Cause {
	if o.Cause.Class() != breaker.ClassOK {
		return 0
	}
	names := func(c breaker.Cause) bool { return listed(r.Failures, r.Ignores, c) }
	switch {
	case names(breaker.Slow) && (o.Latency == breaker.Slow || o.Duration > r.SlowAfter.D()):
		return breaker.Slow
	case names(breaker.SlowFirstToken) && (o.Latency == breaker.SlowFirstToken ||
		r.SlowFirstTokenAfter > 0 && o.FirstToken > r.SlowFirstTokenAfter.D()):
		return breaker.SlowFirstToken
	}
	return o.Latency
}

// listed: a cause is in a list by its name, or by its class unless the other
// list has its name.
func listed(list, other []string, c breaker.Cause) bool {
	return slices.Contains(list, c.String()) ||
		slices.Contains(list, c.Class().String()) && !slices.Contains(other, c.String())
}

// takes: failure, ignored or, for everything that is neither, success. A neutral
// cause is ignored by every rule.
func takes(r breaker.Rule, o breaker.Outcome) (taken, breaker.Cause) {
	if slow := slowness(r, o); slow != 0 && listed(r.Failures, r.Ignores, slow) {
		return failure, slow
	}
	switch {
	case o.Cause.Class() == breaker.ClassNeutral:
		return ignored, o.Cause
	case listed(r.Failures, r.Ignores, o.Cause):
		return failure, o.Cause
	case listed(r.Ignores, r.Failures, o.Cause):
		return ignored, o.Cause
	}
	return success, o.Cause
}

// show brings one outcome before one rule.
func (m *refEngine) show(r breaker.Rule, o breaker.Outcome, p *refPermit, leased map[*refBreaker]int, v *breaker.Verdict) {
	now := m.now
	as, cause := takes(r, o)
	// A call that ended more than max_age ago is late for every breaker, also for
	// one that is not there yet.
	if o.Age > m.maxAge {
		m.reached("late_too_old")
		return
	}
	b := m.breakerOf(r, o.Labels)
	if b == nil {
		if as == ignored {
			return
		}
		b = m.make(r, o.Labels)
	}

	// A call started when its permit was granted, or as its duration and age say.
	start := now.Add(-o.Age).Add(-o.Duration)
	older := b.era != 0 && start.Before(b.eraAt)
	if p != nil {
		start = p.at
		older = p.era < b.era
	}
	if older {
		v.Late = true
		m.reached("late_older_era")
		return
	}

	counted := func() {
		v.Counted = append(v.Counted, r.Name)
		b.reports = append(b.reports, refReport{now, o.Agent, o.Model})
		if as == failure {
			b.askedFor = later(b.askedFor, b.retryAfter(o, now))
			b.last = &breaker.LastFailure{At: now.Add(-o.Age), Cause: cause, Agent: o.Agent, Model: o.Model, Error: o.Error, Status: o.HTTPStatus, Duration: o.Duration}
		}
	}

	switch {
	case b.override != nil && b.override.Op == breaker.OpHoldOpen:
		// A hold is not moved by anything.

	case b.state == breaker.Closed:
		if as == ignored {
			return
		}
		counted()
		b.calls = append(b.calls, refCall{now, now.Add(-o.Age), as == failure, cause, o.Agent, o.Model})
		if !m.tripping(b, as, o) {
			return
		}
		switch {
		case b.override != nil && b.override.Op == breaker.OpHoldClosed:
			m.reached("held_closed_would_trip")
		case b.observing():
			// It is told once in an era that it would have tripped.
			if !b.wouldEra {
				b.wouldEra = true
				b.wouldTrip++
				v.WouldTrip = append(v.WouldTrip, b.name)
				m.reached("would_trip")
			}
		case as == failure:
			m.trip(b, cause, o.Agent)
		default:
			m.reached("tripped_by_success")
			m.trip(b, b.last.Cause, o.Agent)
		}

	case b.state == breaker.Open:
		if !now.Before(b.retryAt) && start.Before(b.retryAt) {
			v.Late = true
			m.reached("late_before_retry")
			return
		}
		if !start.Before(b.retryAt) && *r.PassiveProbes && as != ignored {
			m.transit(b, now, breaker.HalfOpen, breaker.ReasonProbePassive, b.cause, o.Agent)
			counted()
			m.probed(b, as, cause, o)
			return
		}
		// Nothing else moves an open breaker but a longer Retry-After.
		if ends := b.retryAfter(o, now); as == failure && ends.After(b.retryAt) {
			b.retryAt, b.askedFor = ends, ends
			m.reached("retry_after_extends")
		}

	case b.state == breaker.HalfOpen:
		if s := p.slotIn(b); s != nil {
			// The first word on an expired lease counts while no other is live.
			if s.expired && leased[b] > 0 {
				v.Late = true
				m.reached("late_lease")
				return
			}
			if s.expired {
				m.reached("expired_lease_counts")
			}
			if as != ignored {
				counted()
				m.probed(b, as, cause, o)
			} else {
				m.reached("probe_neutral")
			}
			return
		}
		if leased[b] == 0 && *r.PassiveProbes && as != ignored {
			m.reached("passive_half_open")
			counted()
			m.probed(b, as, cause, o)
		}
	}
}

func (b *refBreaker) observing() bool {
	return b.override == nil && b.rule.Mode == breaker.ModeObserve ||
		b.override != nil && b.override.Op == breaker.OpObserve
}

// probed: so many successes in a row close, one failure opens again and climbs.
func (m *refEngine) probed(b *refBreaker, as taken, cause breaker.Cause, o breaker.Outcome) {
	b.lost = 0 // the word of a passive probe ends the row as well
	if as == failure {
		b.failed++
		b.failer = o.Agent
		b.climb(cause)
		m.open(b, m.now, breaker.ReasonProbeFailed, cause, o.Agent)
		return
	}
	if b.good++; b.good >= b.rule.Probes {
		b.closedAt = m.now
		m.transit(b, m.now, breaker.Closed, breaker.ReasonProbeOK, o.Cause, o.Agent)
	}
}

// run: the failures in a row, the last ones.
func (b *refBreaker) run() []refCall {
	for i := len(b.calls) - 1; i >= 0; i-- {
		if !b.calls[i].failed {
			return b.calls[i+1:]
		}
	}
	return b.calls
}

// window: the calls that the rate is taken over. Of a number of calls, the last
// of them since the last hour without any. Of a span, those that ended in the
// current tenth of it or the nine before, by the clock.
func (b *refBreaker) window(now time.Time) []refCall {
	w := b.rule.Trip.Window
	if w.Span > 0 {
		tenth := func(t time.Time) int64 { return t.UnixNano() / int64(w.Span/10) }
		var in []refCall
		for _, c := range b.calls {
			if tenth(c.end) > tenth(now)-10 {
				in = append(in, c)
			}
		}
		return in
	}
	in := b.calls
	for i, c := range b.calls {
		next := now
		if i+1 < len(b.calls) {
			next = b.calls[i+1].at
		}
		if next.Sub(c.at) >= time.Hour {
			in = b.calls[i+1:]
		}
	}
	return in[max(0, len(in)-w.Calls):]
}

func failuresOf(calls []refCall) []refCall {
	return slices.DeleteFunc(slices.Clone(calls), func(c refCall) bool { return !c.failed })
}

// tripping: whether the result just counted trips the breaker.
func (m *refEngine) tripping(b *refBreaker, as taken, o breaker.Outcome) bool {
	t := b.rule.Trip
	if as == failure {
		_, cause := takes(b.rule, o)
		if t.Consecutive > 0 && len(b.run()) >= t.Consecutive && m.witnessed(b, b.run()) {
			m.reached("trip_run")
			return true
		}
		if listed(t.AtOnce, nil, cause) { // which needs no witness
			m.reached("trip_at_once")
			return true
		}
		if t.OnRetryAfter > 0 && o.RetryAfter >= t.OnRetryAfter.D() && b.retryAfter(o, m.now).After(m.now) && m.witnessed(b, b.run()) {
			m.reached("trip_retry_after")
			return true
		}
	}
	if t.Rate > 0 {
		calls := b.window(m.now)
		failed := failuresOf(calls)
		const whole = 1_000_000
		if len(calls) >= t.MinCalls && len(failed)*whole >= int(t.Rate)*len(calls) && m.witnessed(b, failed) {
			m.reached("trip_rate")
			return true
		}
	}
	return false
}

// witnessed: a trip needs failures of so many agents, and of so many models, if
// that many have had a result counted in the last ten minutes.
func (m *refEngine) witnessed(b *refBreaker, failures []refCall) bool {
	enough := func(need int, ofReport func(refReport) string, ofCall func(refCall) string) bool {
		if need < 2 {
			return true
		}
		reporters, witnesses := make(map[string]bool), make(map[string]bool)
		for _, r := range b.reports {
			if m.now.Sub(r.at) <= 10*time.Minute {
				reporters[ofReport(r)] = true
			}
		}
		for _, c := range failures {
			witnesses[ofCall(c)] = true
		}
		delete(reporters, "") // a call that names no model speaks for none
		delete(witnesses, "")
		if len(reporters) >= need && len(witnesses) < need {
			m.reached("unwitnessed")
			return false
		}
		return true
	}
	return enough(b.rule.Trip.Witnesses, func(r refReport) string { return r.agent }, func(c refCall) string { return c.agent }) &&
		enough(b.rule.Trip.Models, func(r refReport) string { return r.model }, func(c refCall) string { return c.model })
}

// Judgements that need history.

// answered: the target itself said something.
func answered(c breaker.Cause) bool { return c.Class() == breaker.ClassOK }

// reaches: what reachability takes as a success.
func reaches(c breaker.Cause) bool {
	as, _ := takes(breaker.Builtin()[0], breaker.Outcome{Cause: c})
	return as == success
}

func (m *refEngine) judge(o breaker.Outcome) breaker.Cause {
	end := m.now.Add(-o.Age)
	said := refEnded{o.Labels, o.Cause, end, o.Duration}
	judged := o.Cause
	switch o.Cause {
	case breaker.Timeout:
		judged = m.judgeTimeout(o, end)
	case breaker.Unreachable:
		if m.offline(o, end) {
			judged = breaker.CallerOffline
		}
	}
	if judged != o.Cause {
		m.reached(judged.String())
	}
	m.ended = append(m.ended, said)
	return judged
}

// judgeTimeout: the machine's fault, unless the caller was hasty or the model of
// a local machine is being loaded.
func (m *refEngine) judgeTimeout(o breaker.Outcome, end time.Time) breaker.Cause {
	target := func(e refEnded) bool { return e.labels.Machine == o.Machine && e.labels.Model == o.Model }
	// Answers are kept by the minute, and those of one leave together: when the
	// last of them is ten minutes old.
	minute := func(t time.Time) int64 { return t.Unix() / 60 }
	lastOf := make(map[int64]time.Time)
	timed := func(e refEnded) bool {
		return target(e) && answered(e.cause) && e.duration > 0 && minute(e.end) <= minute(end)
	}
	for _, e := range m.ended {
		if timed(e) && e.end.After(lastOf[minute(e.end)]) {
			lastOf[minute(e.end)] = e.end
		}
	}
	n, fastest := 0, time.Duration(math.MaxInt64)
	for _, e := range m.ended {
		if timed(e) && end.Sub(lastOf[minute(e.end)]) <= 10*time.Minute {
			n++
			fastest = min(fastest, e.duration)
		}
	}
	if o.Timeout > 0 && n >= 5 && o.Timeout < fastest {
		return breaker.CallerTimeout
	}
	if m.machines[o.Machine].Local {
		if began := m.coldFrom(o, end); !began.IsZero() && end.Sub(began) < 3*time.Minute {
			return breaker.Loading
		}
	}
	return breaker.Timeout
}

// coldFrom: a cold start begins with the first time-out that ends five minutes
// or more after the last answer. Zero: the target has answered lately. Calls are
// told in any order: an answer told late ends a cold start that began within its
// five minutes, and what was told before is not gone through again.
func (m *refEngine) coldFrom(o breaker.Outcome, end time.Time) time.Time {
	var began, lastAnswer time.Time
	silent := func(at time.Time) bool { return at.Sub(lastAnswer) >= 5*time.Minute }
	for _, e := range append(slices.Clone(m.ended), refEnded{o.Labels, o.Cause, end, 0}) {
		if e.labels.Machine != o.Machine || e.labels.Model != o.Model {
			continue
		}
		if answered(e.cause) {
			lastAnswer = later(lastAnswer, e.end)
		}
		if e.cause == breaker.Timeout && silent(e.end) && (began.IsZero() || e.end.Before(began) || !silent(began)) {
			began = e.end
		}
	}
	if !silent(end) {
		return time.Time{}
	}
	return began
}

// offline: in the last two minutes this agent failed so on two machines and
// reached none, while another reached one of them after its first failure.
func (m *refEngine) offline(o breaker.Outcome, end time.Time) bool {
	recent := func(t time.Time) bool { return end.Sub(t) <= 2*time.Minute }
	failed := map[string]bool{o.Machine: true}
	first := end
	for _, e := range m.ended {
		if e.labels.Agent != o.Agent || !recent(e.end) {
			continue
		}
		if reaches(e.cause) {
			return false
		}
		if e.cause == breaker.Unreachable {
			failed[e.labels.Machine] = true
			if e.end.Before(first) {
				first = e.end
			}
		}
	}
	if len(failed) < 2 {
		return false
	}
	for _, e := range m.ended {
		if e.labels.Agent != o.Agent && failed[e.labels.Machine] && reaches(e.cause) && e.end.After(first) {
			return true
		}
	}
	return false
}

// doubt: nobody knows whether a write that ended so took effect.
func (m *refEngine) doubt(o breaker.Outcome) bool {
	unknown := []breaker.Cause{breaker.Timeout, breaker.GatewayTimeout, breaker.Reset, breaker.Stalled, breaker.Truncated}
	if !o.Write || o.IdempotencyKey == "" || !slices.Contains(unknown, o.Cause) {
		return false
	}
	end := m.now.Add(-o.Age)
	w := m.writes[o.IdempotencyKey]
	if w == nil || !w.settledAt.IsZero() && end.After(w.settledAt) {
		w = &refWrite{}
		m.writes[o.IdempotencyKey] = w
	}
	if !w.settledAt.IsZero() {
		return false // who looked, looked after this call
	}
	w.until = later(w.until, end.Add(24*time.Hour))
	m.reached("in_doubt")
	return true
}

// Asks.

// ask answers whether a call may be made; the permit is nil when it may not.
func (m *refEngine) ask(now time.Time, a breaker.Ask) (breaker.Grant, *refPermit) {
	m.advance(now)
	now = m.now
	a.Labels = m.canonical(a.Labels)

	var (
		refusals  []breaker.View
		reasons   []string
		at        time.Time
		forever   bool
		due       []*refBreaker
		refuse    = func(why string, until time.Time) { reasons = append(reasons, why); at = later(at, until) }
		retryView = func(b *refBreaker) { refusals = append(refusals, m.view(b, now)) }
	)
	if w := m.writes[a.IdempotencyKey]; a.IdempotencyKey != "" && w != nil && w.settledAt.IsZero() && now.Before(w.until) {
		refuse(breaker.RefusedWriteInDoubt, w.until)
	}

	// The same request gets the same probe while its lease lives.
	if a.RequestID != "" && len(reasons) == 0 {
		for _, p := range m.probes {
			if p.request == a.RequestID && p.labels == a.Labels && m.holds(p) {
				m.reached("same_request")
				return breaker.Grant{Allowed: true, Probe: true, State: breaker.HalfOpen, ExpiresAt: p.expires}, p
			}
		}
	}

	circuit := m.circuit(a.Labels)
	for _, b := range circuit {
		switch {
		case b.override != nil && b.override.Op == breaker.OpHoldOpen:
			refuse(breaker.RefusedHeldOpen, b.override.Until)
			forever = forever || b.override.Until.IsZero()
			retryView(b)
		case b.state == breaker.Open && now.Before(b.retryAt):
			refuse(breaker.RefusedOpen, b.retryAt)
			retryView(b)
		case b.state == breaker.HalfOpen && len(m.live(b)) >= b.rule.Concurrent:
			// The next slot is free at the first deadline, or earlier.
			next := now.Add(breaker.AskAgain)
			for _, p := range m.live(b) {
				if p.expires.Before(next) {
					next = p.expires
				}
			}
			refuse(breaker.RefusedProbeInFlight, next)
			retryView(b)
		case b.state != breaker.Closed && !m.yieldsUntil(b, a.Agent).IsZero():
			m.reached("yields")
			until := m.yieldsUntil(b, a.Agent)
			if next := now.Add(breaker.AskAgain); next.Before(until) {
				until = next
			}
			refuse(breaker.RefusedProbeInFlight, until)
			v := m.view(b, now)
			v.Reason = breaker.RefusedProbeInFlight
			v.RetryAt = until
			refusals = append(refusals, v)
		case b.state != breaker.Closed:
			due = append(due, b)
		}
	}
	for _, b := range circuit {
		if !slices.Contains(reasons, breaker.RefusedWriteInDoubt) { // which no breaker could have let through
			b.asked = append(b.asked, refAsked{now, a.Agent})
		}
	}

	if len(reasons) > 0 {
		g := breaker.Grant{Breakers: refusals, RetryAt: at}
		g.State, _ = m.stateOf(a.Labels)
		for _, why := range []string{breaker.RefusedProbeInFlight, breaker.RefusedOpen, breaker.RefusedHeldOpen, breaker.RefusedWriteInDoubt} {
			if slices.Contains(reasons, why) {
				g.Reason = why
				m.reached("refused_" + why)
			}
		}
		if forever {
			g.RetryAt = time.Time{}
		}
		return g, nil
	}

	// A probe takes a slot in each breaker that is due, all or none.
	p := &refPermit{labels: a.Labels, request: a.RequestID, at: now}
	lease := time.Duration(0)
	for _, b := range due {
		if b.state == breaker.Open {
			m.transit(b, now, breaker.HalfOpen, breaker.ReasonProbeGranted, b.cause, a.Agent)
		}
		p.slots = append(p.slots, &refSlot{b: b, era: b.era})
		lease = max(lease, b.rule.Lease.D())
	}
	p.era = m.era
	g := breaker.Grant{Allowed: true}
	g.State, _ = m.stateOf(a.Labels)
	if len(due) > 0 {
		if a.Timeout > 0 {
			lease = a.Timeout + breaker.LeaseMargin
		}
		p.expires = now.Add(min(lease, p.longest()))
		g.Probe, g.ExpiresAt = true, p.expires
		m.probes = append(m.probes, p)
		if len(due) > 1 {
			m.reached("probe_of_several")
		}
		if n := len(m.live(due[0])); n > 1 {
			m.reached("concurrent_probes")
		}
	}
	return g, p
}

// longest: a lease, extensions included, ends after max_lease in each of its
// breakers.
func (p *refPermit) longest() time.Duration {
	var list []time.Duration
	for _, s := range p.slots {
		list = append(list, s.b.rule.MaxLease.D())
	}
	return slices.Min(list)
}

// holds: the permit's lease lives, in some breaker.
func (m *refEngine) holds(p *refPermit) bool {
	for _, s := range p.slots {
		if s.era == s.b.era && !p.settled && m.now.Before(p.expires) {
			return true
		}
	}
	return false
}

// yieldsUntil: with witnesses, an agent whose probe failed gets no second one
// while another has asked within the lease. Zero: it may have it.
func (m *refEngine) yieldsUntil(b *refBreaker, agent string) time.Time {
	if b.rule.Trip.Witnesses < 2 || b.failer != agent {
		return time.Time{}
	}
	var until time.Time
	for _, a := range b.asked {
		end := a.at.Add(b.rule.Lease.D())
		if a.agent != agent && m.now.Before(end) {
			until = end
		}
	}
	return until
}

// release: the call was not made, which is a word of its permit.
func (m *refEngine) release(now time.Time, p *refPermit) (duplicate bool) {
	m.advance(now)
	if m.heard("", p) {
		m.reached("release_again")
		return true
	}
	m.hear("", p)
	m.giveBack(p)
	m.reached("released")
	return false
}

// extend: a lease runs on from now, never shorter than it was and never past
// max_lease. A plain permit never expires. False: there is no lease to extend.
func (m *refEngine) extend(now time.Time, p *refPermit, timeout time.Duration) (time.Time, bool) {
	m.advance(now)
	if len(p.slots) == 0 {
		return time.Time{}, true
	}
	if !m.holds(p) {
		return time.Time{}, false
	}
	until := m.now.Add(timeout + breaker.LeaseMargin)
	if limit := p.at.Add(p.longest()); until.After(limit) {
		until = limit
		m.reached("max_lease")
	}
	if until.After(p.expires) {
		p.expires = until
		m.reached("extended")
	}
	return p.expires, true
}

// Controls.

// control: each but an auto without an override is a transition, also on an
// unchanged state, and makes a breaker that was not seen yet.
func (m *refEngine) control(now time.Time, c breaker.Control) {
	m.advance(now)
	now = m.now
	name, labels, err := breaker.ParseName(c.Breaker)
	if err != nil {
		return
	}
	i := slices.IndexFunc(m.rules, func(r breaker.Rule) bool { return r.Name == name && covers(r, labels) })
	if i < 0 {
		return
	}
	b := m.make(m.rules[i], labels)
	forget := func() { b.exponent, b.closedAt, b.override = 0, time.Time{}, nil }
	switch c.Op {
	case breaker.OpReset:
		forget()
		m.transit(b, now, breaker.Closed, breaker.ReasonReset, 0, c.Actor)
	case breaker.OpAuto:
		if b.override == nil {
			return
		}
		forget()
		m.transit(b, now, breaker.Closed, breaker.ReasonAuto, 0, c.Actor)
	default:
		held := b.override != nil && b.override.Op == breaker.OpHoldOpen
		if !held {
			b.overOpen = b.state != breaker.Closed
		}
		b.override = &breaker.Override{Op: c.Op, Actor: c.Actor, Reason: c.Reason}
		if c.For > 0 {
			b.override.Until = now.Add(c.For)
		}
		switch c.Op {
		case breaker.OpHoldOpen:
			b.retryAt = b.override.Until
			m.transit(b, now, breaker.Open, breaker.ReasonHoldOpen, 0, c.Actor)
		case breaker.OpHoldClosed:
			m.transit(b, now, breaker.Closed, breaker.ReasonHoldClosed, 0, c.Actor)
		case breaker.OpObserve:
			m.transit(b, now, breaker.Closed, breaker.ReasonObserve, 0, c.Actor)
		}
	}
}

// Looks.

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// stateOf: a circuit is as bad as its worst breaker, and lets the next probe
// through when the last of them does.
func (m *refEngine) stateOf(l breaker.Labels) (breaker.State, time.Time) {
	var (
		worst   breaker.State
		at      time.Time
		forever bool
	)
	for _, b := range m.circuit(l) {
		worst = max(worst, b.state)
		v := m.view(b, m.now)
		if b.state != breaker.Closed {
			at = later(at, v.RetryAt)
			forever = forever || v.RetryAt.IsZero() && b.state == breaker.Open
		}
	}
	if forever {
		at = time.Time{}
	}
	return worst, at
}

// view: one breaker as others see it.
func (m *refEngine) view(b *refBreaker, now time.Time) breaker.View {
	window := b.window(now)
	v := breaker.View{
		Name: b.name, Rule: b.rule.Name, Labels: b.scope, State: b.state,
		Cause: b.cause, OpenedAt: b.openedAt, Era: b.era, EraAt: b.eraAt, Incident: b.incident,
		Run: len(b.run()), Calls: len(window), Failures: len(failuresOf(window)),
		WouldTrip: b.wouldTrip, Probes: b.failed, Override: b.override, Last: b.last,
	}
	switch {
	case b.override != nil && b.override.Op == breaker.OpHoldOpen:
		v.Reason, v.RetryAt = breaker.RefusedHeldOpen, b.override.Until
	case b.override != nil && b.override.Op == breaker.OpHoldClosed:
		v.Reason = "held_closed"
	case b.observing():
		v.Reason = breaker.ReasonObserve
	case b.state == breaker.Open:
		v.Reason, v.RetryAt = breaker.RefusedOpen, b.retryAt
	case b.state == breaker.HalfOpen:
		v.RetryAt = now // for whoever asks first
		live := m.live(b)
		if len(live) > 0 {
			v.Reason = breaker.RefusedProbeInFlight
		}
		if len(live) >= b.rule.Concurrent {
			v.RetryAt = now.Add(breaker.AskAgain)
			for _, p := range live {
				if p.expires.Before(v.RetryAt) {
					v.RetryAt = p.expires
				}
			}
		}
	}
	if b.rule.Trip.Rate == 0 {
		v.Calls, v.Failures = 0, 0
	}
	return v
}

// instants: moments at which something may change, for a test that goes to them
// and beside them.
func (m *refEngine) instants() []time.Time {
	var list []time.Time
	add := func(t time.Time) {
		if t.After(m.now) {
			list = append(list, t)
		}
	}
	for _, b := range m.sorted() {
		add(b.retryAt)
		if b.override != nil {
			add(b.override.Until)
		}
		for _, p := range m.live(b) {
			add(p.expires)
		}
		if !b.closedAt.IsZero() {
			add(b.closedAt.Add(b.rule.StableAfter.D()))
			add(b.closedAt.Add(2 * b.rule.StableAfter.D()))
		}
		if n := len(b.calls); n > 0 {
			add(b.calls[n-1].at.Add(time.Hour))
			if span := b.rule.Trip.Window.Span; span > 0 {
				add(b.calls[n-1].end.Truncate(span / 10).Add(span))
			}
		}
		if n := len(b.reports); n > 0 && (b.rule.Trip.Witnesses > 1 || b.rule.Trip.Models > 1) {
			add(b.reports[n-1].at.Add(10 * time.Minute))
		}
	}
	slices.SortFunc(list, time.Time.Compare)
	return slices.CompactFunc(list, time.Time.Equal)
}

// beginnings: moments in the past at which a call may have started, at the edge
// of an era or of a wait.
func (m *refEngine) beginnings() []time.Time {
	var list []time.Time
	for _, b := range m.sorted() {
		for _, t := range []time.Time{b.eraAt, b.retryAt} {
			if !t.IsZero() && !t.After(m.now) && m.now.Sub(t) < time.Hour {
				list = append(list, t)
			}
		}
	}
	slices.SortFunc(list, func(a, b time.Time) int { return b.Compare(a) })
	return slices.CompactFunc(list, time.Time.Equal)
}

// reconcile: somebody says what became of a write. False when none was in doubt,
// or when somebody has said otherwise.
func (m *refEngine) reconcile(key string, applied bool) bool {
	w := m.writes[key]
	if w == nil || !w.settledAt.IsZero() && w.applied != applied {
		return false
	}
	if w.settledAt.IsZero() {
		w.settledAt, w.applied = m.now, applied
	}
	return true
}

// dump: what a breaker holds, for whoever reads a failure.
func (m *refEngine) dump(b *refBreaker) string {
	var live []time.Time
	for _, p := range m.live(b) {
		live = append(live, p.expires)
	}
	return fmt.Sprintf("%s since %s, era %d, retry at %s, e %d, good %d, lost %d, live until %s, failer %q, asked %v", b.state, b.eraAt.Format("15:04:05.999999999"), b.era, b.retryAt.Format("15:04:05.999999999"), b.exponent, b.good, b.lost, live, b.failer, b.asked)
}
