package breaker

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"
)

// breaker is one rule applied to one value of its scope. What most of them
// never have stands behind pointers, so that a hundred thousand healthy ones
// are small.
type breaker struct {
	rule *rule
	of   *Labels  // of the call that it was made for; its own are the rule's part
	next *breaker // with the same hash

	era     uint64
	eraAt   instant // era 0 has no beginning
	retryAt instant // of an open breaker; 0 under a hold without an end
	used    instant // the last counted result or change

	calls  *calls    // the window, where the rule has one of calls, else nil
	span   *span     // the window, where the rule has one of time
	faults *faults   // nil before the first failure
	past   *past     // nil before the first change
	who    *watchers // nil where the rule asks for no witnesses

	run     int32  // failures in a row
	changed uint32 // the engine's counter at its last change, for answers that were kept
	state   State
	cause   Cause // of the last opening
	dirty   bool  // waits for Drain
}

// windowed is a breaker with a window of calls of the common sizes, in one piece
// of memory: most of what a call touches stands side by side.
type windowed struct {
	breaker
	window calls
	bits   [2]uint64
}

// newBreaker makes a breaker for calls with these labels, which are kept.
func newBreaker(r *rule, l *Labels) *breaker {
	words := (r.Trip.Window.Calls + 63) / 64
	if words == 0 {
		return &breaker{rule: r, of: l}
	}
	w := &windowed{breaker: breaker{rule: r, of: l}}
	w.calls = &w.window
	if w.window.bits = w.bits[:]; words > len(w.bits) {
		w.window.bits = make([]uint64, words)
	}
	return &w.breaker
}

// faults is what a breaker keeps of its failures.
type faults struct {
	causes tally // of the run
	// floor is the latest time that a Retry-After of the failures since the last
	// closing asked callers to wait for.
	floor instant
	last  lastFailure
}

type lastFailure struct {
	at     instant // zero: there was none
	agent  string
	model  string
	text   string
	took   time.Duration
	status int32
	cause  Cause
}

// past is what a breaker keeps once it has been more than closed.
type past struct {
	openedAt instant // of the incident, or of the hold
	closedAt instant
	incident uint64
	leases   []*lease
	expired  []*lease // of this era, still without a word
	override *override
	wouldEra uint64
	exponent int32 // e of the cooldown's ladder
	probes   int32 // failed in this incident
	good     int32 // probes in a row
	lost     int32 // leases in a row
	would    int32 // eras in which it would have tripped
	wouldSet bool
}

// watchers is what a breaker keeps whose rule asks for witnesses.
type watchers struct {
	// agents and models have reported a counted result, latest first: as many as
	// the rule asks for, since more are never counted.
	agents    []reporter
	models    []reporter
	runAgents []string // of the run
	runModels []string
	window    []witness // of the failures in a window of calls, oldest first
	// failedProber is the agent whose probe failed last, asked the last two agents
	// who asked for a permit.
	failedProber string
	asked        []reporter
}

// reporter is an agent or a model, and when it was last reported on.
type reporter struct {
	who string
	at  instant
}

var (
	noFaults   faults
	noPast     past
	noWatchers watchers
)

// failures is what is kept of the failures, for reading.
func (b *breaker) failures() *faults { return orElse(b.faults, &noFaults) }

// was is the past, for reading.
func (b *breaker) was() *past { return orElse(b.past, &noPast) }

// witnesses is who reported, for reading.
func (b *breaker) witnesses() *watchers { return orElse(b.who, &noWatchers) }

// history is the past, for writing.
func (b *breaker) history() *past {
	if b.past == nil {
		b.past = &past{}
	}
	return b.past
}

// watched is who reported, for writing; nil where the rule asks for nobody.
func (b *breaker) watched() *watchers {
	if b.who == nil && b.rule.watches {
		b.who = &watchers{}
	}
	return b.who
}

// held is the op of the override in force, "" for none.
func (b *breaker) held() Op {
	if b.past == nil || b.past.override == nil {
		return ""
	}
	return b.past.override.Op
}

// yieldsUntil is until when the agent has to leave the next probe to others,
// zero when it need not: its own failed last, and another has asked within the
// lease.
func (b *breaker) yieldsUntil(agent string) instant {
	w := b.who
	if w == nil || !b.rule.yields || agent != w.failedProber {
		return 0
	}
	var until instant
	for _, r := range w.asked {
		if r.who != agent {
			until = max(until, r.at+instant(b.rule.Lease))
		}
	}
	return until
}

func (b *breaker) labels() Labels { return b.rule.key(b.of) }

func (b *breaker) name() string { return Name(b.rule.Name, b.labels()) }

// override is a control in force.
type override struct {
	Op     Op      `json:"op"`
	Actor  string  `json:"actor,omitempty"`
	Reason string  `json:"reason,omitempty"`
	Until  instant `json:"until,omitempty"`
	// Over is true for a hold-open put over a breaker that was not closed: it
	// expires into open, due for a probe.
	Over bool `json:"over,omitempty"`
}

const (
	witnessSpan = instant(10 * time.Minute)
	maxExpired  = 16
	lostRow     = 3
	maxExponent = 64
)

// call is one outcome on its way through its circuit.
type call struct {
	*Outcome
	cause   Cause // after judgement
	started instant
	ended   instant
	pass    pass
	hasPass bool
	lease   *lease // the probe it is a word of
	tooOld  bool
	rule    int    // the place in its circuit of the rule that is asked
	counted uint64 // a bit for each place whose rule took it as success or failure
	verdict *Verdict
}

// count notes that the rule that is asked took the call.
func (c *call) count() { c.counted |= 1 << c.rule }

// belongs tells whether the call started in the breaker's present era.
func (b *breaker) belongs(c *call) bool {
	if b.era == 0 {
		return true
	}
	if c.hasPass {
		return c.pass.era >= b.era
	}
	return c.started >= b.eraAt
}

// takes says how the rule takes the call: the cause it sees, and whether that
// is a failure or ignored.
func (r *rule) takes(c *call) (cause Cause, failure, ignored bool) {
	cause = c.cause
	if cause == OK && r.measures {
		switch {
		case r.slow && (c.Latency == Slow || c.Duration > r.SlowAfter.D()):
			cause = Slow
		case r.slowFirst && (c.Latency == SlowFirstToken || r.SlowFirstTokenAfter > 0 && c.FirstToken > r.SlowFirstTokenAfter.D()):
			cause = SlowFirstToken
		}
		if cause != OK && c.verdict.Latency == 0 {
			c.verdict.Latency = cause
		}
	}
	return cause, r.fail.has(cause), r.ignore.has(cause)
}

// take shows one outcome to one breaker.
func (e *Engine) take(b *breaker, c *call) {
	r := b.rule
	cause, failure, ignored := r.takes(c)
	var own *lease
	if c.lease != nil {
		if own = b.ownLease(c.lease); own != nil {
			b.past.lost = 0
			e.touch(b)
			b.giveBack(own)
		}
	}
	if c.tooOld || !b.belongs(c) {
		c.verdict.Late = true
		return
	}
	switch b.state {
	case Closed:
		switch {
		case ignored:
		case failure:
			e.failure(b, c, cause)
		default:
			e.success(b, c)
		}
	case Open:
		if b.held() == OpHoldOpen {
			return
		}
		if e.now < b.retryAt {
			if failure {
				e.extendWait(b, c)
			}
			return
		}
		started := c.started
		if c.hasPass {
			started = c.pass.at
		}
		switch {
		case started < b.retryAt:
			c.verdict.Late = true
		case !ignored && r.passive:
			e.move(b, HalfOpen, change{reason: ReasonProbePassive, actor: c.Agent, at: e.now, cause: b.cause})
			e.probed(b, c, cause, failure)
		case failure:
			e.extendWait(b, c)
		}
	case HalfOpen:
		live := len(b.was().leases)
		switch {
		case own != nil && own.Expired && live > 0:
			c.verdict.Late = true
		case ignored:
		case own != nil, live == 0 && r.passive:
			e.probed(b, c, cause, failure)
		}
	}
}

// extendWait lets a longer Retry-After extend the wait of an open breaker.
func (e *Engine) extendWait(b *breaker, c *call) {
	if at := b.asksFor(c); at > b.retryAt {
		b.retryAt, b.fault().floor = at, at
		e.touch(b)
	}
}

// ownLease is the lease when the breaker gave it, live or expired, else nil.
func (b *breaker) ownLease(l *lease) *lease {
	if p := b.was(); slices.Contains(p.leases, l) || slices.Contains(p.expired, l) {
		return l
	}
	return nil
}

// giveBack frees the slot that the lease holds here.
func (b *breaker) giveBack(l *lease) {
	same := func(other *lease) bool { return other == l }
	b.past.leases = slices.DeleteFunc(b.past.leases, same)
	b.past.expired = slices.DeleteFunc(b.past.expired, same)
	l.drop(b)
}

// asksFor is the time until which the call's Retry-After asks to wait, counted
// from the end of the call and capped by the rule; zero when it has none.
func (b *breaker) asksFor(c *call) instant {
	if c.RetryAfter <= 0 {
		return 0
	}
	return c.ended + instant(min(c.RetryAfter, b.rule.MaxRetryAfter.D()))
}

// success takes a success into a closed breaker's run and window. It may be the
// call that fills a rate's minimum.
func (e *Engine) success(b *breaker, c *call) {
	c.count()
	e.touch(b)
	b.used = e.now
	if b.rule.watches {
		e.reported(b, c)
	}
	b.endRun()
	b.addCall(e.now, c.ended, 0, "", "")
	if b.rule.Trip.Rate == 0 {
		return
	}
	if why := b.overRate(e.now); why != nil {
		e.trip(b, c, b.failures().last.cause, why())
	}
}

// failure takes a failure into a closed breaker's run and window, and trips it
// when that is enough.
func (e *Engine) failure(b *breaker, c *call, cause Cause) {
	t := &b.rule.Trip
	c.count()
	e.touch(b)
	b.used = e.now
	if b.rule.watches {
		e.reported(b, c)
	}
	f := b.fault()
	b.run++
	f.causes.add(cause, 1)
	if w := b.who; w != nil {
		w.runAgents = insert(w.runAgents, c.Agent, t.Witnesses)
		w.runModels = insert(w.runModels, c.Model, t.Models)
	}
	b.addCall(e.now, c.ended, cause, c.Agent, c.Model)
	f.floor = max(f.floor, b.asksFor(c))
	f.keep(c, cause)
	if why := b.trips(c, cause, e.now); why != "" {
		e.trip(b, c, cause, why)
	}
}

// trip opens a closed breaker, or notes that it would have.
func (e *Engine) trip(b *breaker, c *call, cause Cause, why string) {
	switch held := b.held(); {
	case held == OpHoldClosed:
		return
	case b.rule.observe || held != "":
		if b.wouldOpen(e) {
			c.verdict.WouldTrip = append(c.verdict.WouldTrip, b.name())
		}
		return
	}
	b.climb(e.now, cause)
	e.open(b, change{reason: ReasonTripped, detail: why, cause: cause, actor: c.Agent, at: e.now, evidence: b.evidence(e.now)})
}

// wouldOpen notes that an observed breaker would have opened, once per era; it
// tells whether this is the first time.
func (b *breaker) wouldOpen(e *Engine) bool {
	p := b.history()
	if p.wouldSet && p.wouldEra == b.era {
		return false
	}
	p.wouldSet, p.wouldEra = true, b.era
	p.would++
	e.touch(b)
	return true
}

// fault is what is kept of the failures, for writing.
func (b *breaker) fault() *faults {
	if b.faults == nil {
		b.faults = &faults{}
	}
	return b.faults
}

// keep keeps the failure for whoever asks why.
func (f *faults) keep(c *call, cause Cause) {
	f.last = lastFailure{
		at: c.ended, cause: cause, agent: c.Agent, model: c.Model,
		text: c.Error, status: int32(c.HTTPStatus), took: c.Duration,
	}
}

// reported notes who reported a counted result, as far as the rule asks for that.
func (e *Engine) reported(b *breaker, c *call) {
	t := &b.rule.Trip
	if t.Witnesses > 1 {
		w := b.watched()
		w.agents = reported(w.agents, c.Agent, t.Witnesses, e.now)
	}
	if t.Models > 1 && c.Model != "" {
		w := b.watched()
		w.models = reported(w.models, c.Model, t.Models, e.now)
	}
}

// reported moves who to the front of at most need reporters. Those of one moment
// stand by name, as a restart finds them.
func reported(list []reporter, who string, need int, now instant) []reporter {
	if len(list) > 0 && list[0].who == who {
		list[0].at = now
		return list
	}
	i := slices.IndexFunc(list, func(r reporter) bool { return r.who == who })
	if i < 0 {
		if len(list) < need {
			list = append(list, reporter{})
		}
		i = len(list) - 1
	} else {
		who = list[i].who // the one that is kept already
	}
	copy(list[1:i+1], list[:i])
	list[0] = reporter{who, now}
	for i := 1; i < len(list) && list[i].at == now && list[i].who < who; i++ {
		list[i-1], list[i] = list[i], list[i-1]
	}
	return list
}

// enough tells whether the failures' witnesses suffice: as many as are asked
// for, if that many have reported lately.
func enough(need int, failures []string, reporters []reporter, now instant) bool {
	if need <= 1 || len(failures) >= need {
		return true
	}
	lately := 0
	for _, r := range reporters {
		if now-r.at <= witnessSpan {
			lately++
		}
	}
	return lately < need
}

// runWitnessed tells whether the run's failures have the witnesses that the
// rule asks for.
func (b *breaker) runWitnessed(now instant) bool {
	t, w := &b.rule.Trip, b.witnesses()
	return enough(t.Witnesses, w.runAgents, w.agents, now) && enough(t.Models, w.runModels, w.models, now)
}

// trips says in a sentence why a failure trips the breaker now, "" when it does
// not. Of several reasons it tells the first of run, at once, Retry-After, rate.
func (b *breaker) trips(c *call, cause Cause, now instant) string {
	t := &b.rule.Trip
	if t.Consecutive > 0 && int(b.run) >= t.Consecutive && b.runWitnessed(now) {
		if b.run == 1 {
			return "a call failed: " + cause.String()
		}
		return fmt.Sprintf("%d calls in a row failed: %s", b.run, spell(b.failures().causes))
	}
	if b.rule.atOnce.has(cause) {
		return cause.String() + " trips at once"
	}
	if t.OnRetryAfter > 0 && c.RetryAfter >= t.OnRetryAfter.D() && b.asksFor(c) > now && b.runWitnessed(now) {
		return fmt.Sprintf("%s with a Retry-After of %s", cause, Duration(c.RetryAfter))
	}
	if t.Rate > 0 {
		if why := b.overRate(now); why != nil {
			return why()
		}
	}
	return ""
}

// overRate tells whether the window holds enough calls, failures and witnesses
// to trip: nil when not, otherwise what says so in a sentence.
func (b *breaker) overRate(now instant) func() string {
	t := &b.rule.Trip
	calls, failures := b.inWindow(now)
	if failures == 0 || calls < t.MinCalls || !t.Rate.reached(failures, calls) {
		return nil
	}
	if t.Witnesses > 1 || t.Models > 1 {
		agents, models := b.windowWitnesses(now)
		if w := b.witnesses(); !enough(t.Witnesses, agents, w.agents, now) || !enough(t.Models, models, w.models, now) {
			return nil
		}
	}
	return func() string {
		of := fmt.Sprintf("the last %d calls", calls)
		if t.Window.Span > 0 {
			of = fmt.Sprintf("%d calls in the last %s", calls, t.Window)
		}
		return fmt.Sprintf("%d of %s failed: %s", failures, of, spell(b.windowTally(now)))
	}
}

// spell writes causes as people read them: refused ×2, timeout.
func spell(t tally) string {
	words := make([]string, 0, len(t))
	for _, c := range t.sorted() {
		if c.N == 1 {
			words = append(words, c.Cause.String())
		} else {
			words = append(words, fmt.Sprintf("%s ×%d", c.Cause, c.N))
		}
	}
	return strings.Join(words, ", ")
}

func (b *breaker) evidence(now instant) *Evidence {
	calls, failures := b.inWindow(now)
	f := b.failures()
	ev := &Evidence{Run: int(b.run), Calls: calls, Failures: failures, Probes: int(b.was().probes)}
	causes := b.windowTally(now)
	if int(b.run) > failures || len(causes) == 0 {
		causes = f.causes
	}
	ev.Causes = causes.sorted()
	if b.rule.Trip.Witnesses > 1 {
		inWindow, _ := b.windowWitnesses(now)
		ev.Agents = max(len(b.witnesses().runAgents), len(inWindow))
	}
	if l := &f.last; l.at != 0 {
		ev.Agent, ev.Error, ev.HTTPStatus, ev.Duration = l.agent, l.text, int(l.status), l.took
	}
	return ev
}

// climb moves the ladder's exponent at a trip: each healthy StableAfter since
// the last closing takes one off, a trip within the first adds one.
func (b *breaker) climb(now instant, cause Cause) {
	p := b.was()
	if p.closedAt == 0 {
		return
	}
	if healthy := int64((now - p.closedAt) / instant(b.rule.StableAfter)); healthy > 0 {
		p.exponent = int32(max(0, int64(p.exponent)-healthy))
		return
	}
	b.step(b.rule.base(cause))
}

// step adds one to the exponent until the cap is reached.
func (b *breaker) step(first Duration) {
	p := b.history()
	if p.exponent < maxExponent && b.rule.ladder(first, p.exponent) < b.rule.Cooldown.Max.D() {
		p.exponent++
	}
}

// base is the first wait after this cause.
func (r *rule) base(cause Cause) Duration {
	if d, ok := r.byCause[cause]; ok {
		return d
	}
	return r.Cooldown.First
}

// ladder is first × factor^e, at most Max.
func (r *rule) ladder(first Duration, e int32) time.Duration {
	wait := float64(first) * math.Pow(r.Cooldown.Factor, float64(e))
	return time.Duration(min(wait, float64(r.Cooldown.Max)))
}

// wait is how long the breaker stays open from at on, and so until when: the
// ladder, lengthened by the jitter, with a Retry-After that still runs as its
// floor. A rule that trips on Retry-After waits for that alone.
func (b *breaker) wait(at instant) instant {
	r := b.rule
	until := at + instant(r.ladder(r.base(b.cause), b.was().exponent))
	if j := r.Cooldown.Jitter; j > 0 {
		// The share is drawn from the breaker and its era, so that the same inputs
		// give the same waits.
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s#%d", b.name(), b.era)
		until += instant(float64(until-at) * j * float64(h.Sum64()>>11) / (1 << 53))
	}
	switch floor := b.failures().floor; {
	case floor <= at:
	case r.Trip.OnRetryAfter > 0:
		return floor
	case floor > until:
		return floor
	}
	return until
}

// probed takes the result of a probe, leased or passive.
func (e *Engine) probed(b *breaker, c *call, cause Cause, failure bool) {
	p := b.history()
	c.count()
	e.touch(b)
	b.used, p.lost = e.now, 0
	if b.rule.watches {
		e.reported(b, c)
	}
	if failure {
		p.probes++
		if w := b.watched(); w != nil {
			w.failedProber = c.Agent
		}
		f := b.fault()
		f.floor = max(f.floor, b.asksFor(c))
		f.keep(c, cause)
		b.step(b.rule.base(cause))
		ev := &Evidence{Agent: c.Agent, Error: c.Error, HTTPStatus: c.HTTPStatus, Duration: c.Duration,
			Causes: []CauseCount{{cause, 1}}, Probes: int(p.probes)}
		e.open(b, change{reason: ReasonProbeFailed, detail: "probe failed: " + cause.String(), cause: cause, actor: c.Agent, at: e.now, evidence: ev})
		return
	}
	p.good++
	if int(p.good) < b.rule.Probes {
		return
	}
	detail := "the probe succeeded"
	if b.rule.Probes > 1 {
		detail = fmt.Sprintf("%d probes in a row succeeded", b.rule.Probes)
	}
	p.closedAt = e.now
	e.close(b, change{reason: ReasonProbeOK, detail: detail, cause: c.cause, actor: c.Agent, at: e.now})
}

// change is why a breaker moves.
type change struct {
	reason   string
	detail   string
	cause    Cause
	actor    string
	at       instant
	evidence *Evidence
}

// open moves the breaker to open and sets its wait.
func (e *Engine) open(b *breaker, ch change) {
	b.cause = ch.cause
	if p := b.history(); p.incident == 0 {
		p.incident = e.era + 1 // the era that move is about to give
		p.openedAt = ch.at
		p.probes = 0
	}
	e.moveWith(b, Open, ch, func() { b.retryAt = b.wait(ch.at) })
	b.empty()
}

// close moves the breaker to closed, and empties it.
func (e *Engine) close(b *breaker, ch change) {
	e.move(b, Closed, ch)
	p := b.history()
	p.incident, p.openedAt, p.probes = 0, 0, 0
	if w := b.who; w != nil {
		w.failedProber = ""
	}
	b.retryAt = 0
	b.empty()
	if b.faults != nil {
		b.faults.floor = 0
	}
}

// endRun begins a new run of failures.
func (b *breaker) endRun() {
	if b.run == 0 {
		return
	}
	b.run = 0
	b.faults.causes = b.faults.causes[:0]
	if w := b.who; w != nil {
		w.runAgents, w.runModels = nil, nil
	}
}

// empty forgets what was counted in the era that has ended.
func (b *breaker) empty() {
	b.endRun()
	if b.calls != nil {
		b.calls.empty(b.who)
	}
	b.span = nil
}

// forget is what a person's control does to the ladder.
func (b *breaker) forget() {
	if b.past != nil {
		b.past.exponent, b.past.closedAt = 0, 0
	}
}

// move gives the breaker a new state and a new era, and records it.
func (e *Engine) move(b *breaker, to State, ch change) { e.moveWith(b, to, ch, func() {}) }

// moveWith calls settle when the era is there and before the transition is
// recorded, for whatever depends on the one and shows in the other.
func (e *Engine) moveWith(b *breaker, to State, ch change, settle func()) {
	from := b.state
	e.era++
	b.era, b.eraAt, b.state = e.era, ch.at, to
	p := b.history()
	p.good, p.lost = 0, 0
	for _, l := range slices.Concat(p.leases, p.expired) {
		l.drop(b)
		if len(l.slots) == 0 {
			delete(e.leases, l.Num)
		}
	}
	p.leases, p.expired = nil, nil
	settle()
	b.used = max(b.used, ch.at)
	e.touch(b)
	t := Transition{
		At: ch.at.time(), Breaker: b.name(), Rule: b.rule.Name, Labels: b.labels(),
		From: from, To: to, Cause: ch.cause, Reason: ch.reason, Detail: ch.detail,
		Evidence: ch.evidence, Actor: ch.actor, Era: b.era, Incident: p.incident,
	}
	if to == Open {
		t.RetryAt = b.retryAt.time()
	}
	e.transitions = append(e.transitions, t)
	e.schedule(b)
}

// due is one thing that time alone brings about.
type due struct {
	at    instant
	b     *breaker
	lease *lease // nil: the override ends
}

func (d due) num() uint64 {
	if d.lease == nil {
		return 0
	}
	return d.lease.Num
}

// schedule keeps the breaker among those that time can move.
func (e *Engine) schedule(b *breaker) {
	next, p := instant(math.MaxInt64), b.was()
	for _, l := range p.leases {
		next = min(next, l.Deadline)
	}
	if p.override != nil && p.override.Until != 0 {
		next = min(next, p.override.Until)
	}
	if next == math.MaxInt64 {
		delete(e.timed, b)
		return
	}
	e.timed[b] = struct{}{}
	e.nextDue = min(e.nextDue, next)
}

// advance brings the engine to now, which is never earlier than it was, and
// does what time alone brings about, each at its own deadline.
func (e *Engine) advance(now time.Time) { e.advanceTo(fromTime(now)) }

func (e *Engine) advanceTo(now instant) {
	end := max(e.now, now)
	for {
		next := min(e.nextDue, e.samples.next())
		if next > end {
			break
		}
		e.now = max(e.now, next)
		if e.nextDue <= e.now {
			e.runDue()
		}
		e.loseSamples()
	}
	e.now = end
}

// runDue does what leases and overrides bring about by now.
func (e *Engine) runDue() {
	var list []due
	for b := range e.timed {
		for _, l := range b.past.leases {
			if l.Deadline <= e.now {
				list = append(list, due{l.Deadline, b, l})
			}
		}
		if o := b.past.override; o != nil && o.Until != 0 && o.Until <= e.now {
			list = append(list, due{o.Until, b, nil})
		}
	}
	slices.SortFunc(list, func(x, y due) int {
		return cmp.Or(cmp.Compare(x.at, y.at), strings.Compare(x.b.name(), y.b.name()), cmp.Compare(x.num(), y.num()))
	})
	for _, d := range list {
		if d.lease == nil {
			e.endHold(d.b, d.at)
		} else if slices.Contains(d.b.past.leases, d.lease) {
			e.loseProbe(d.b, d.lease)
		}
	}
	e.nextDue = math.MaxInt64
	for b := range e.timed {
		e.schedule(b)
	}
}

// loseProbe gives the slot of an expired lease back; the third in a row opens
// the breaker again for as long as before.
func (e *Engine) loseProbe(b *breaker, l *lease) {
	p := b.past
	l.Expired = true
	p.leases = slices.DeleteFunc(p.leases, func(other *lease) bool { return other == l })
	p.expired = append(p.expired, l)
	if len(p.expired) > maxExpired {
		b.giveBack(p.expired[0])
	}
	p.lost++
	e.touch(b)
	if p.lost >= lostRow {
		e.open(b, change{reason: ReasonProbesLost, detail: "three probes in a row were granted and never reported", cause: b.cause, at: l.Deadline})
	}
}

// endHold ends an override at its expiry.
func (e *Engine) endHold(b *breaker, at instant) {
	o := b.past.override
	b.past.override = nil
	b.forget()
	if o.Op == OpHoldOpen && o.Over {
		e.moveWith(b, Open, change{reason: ReasonExpired, detail: "the hold has expired; a probe is due", at: at}, func() { b.retryAt = at })
		return
	}
	e.close(b, change{reason: ReasonExpired, detail: "the " + string(o.Op) + " has expired", at: at})
}

func fromTime(t time.Time) instant {
	if t.IsZero() {
		return 0
	}
	return instant(t.UnixNano())
}

// time is the moment in UTC, the zero Time for none.
func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}
