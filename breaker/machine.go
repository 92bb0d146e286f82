package breaker

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// breaker is one rule applied to one value of its scope.
type breaker struct {
	rule   *rule
	labels Labels
	name   string
	dirty  bool

	state    State
	era      uint64
	eraAt    instant // era 0 has no beginning
	openedAt instant // of the incident, or of the hold
	retryAt  instant // of an open breaker; 0 under a hold without an end
	// floor is the latest time that a Retry-After of this era's failures asked
	// callers to wait for.
	floor    instant
	cause    Cause // of the last opening
	exponent int   // e of the cooldown's ladder
	closedAt instant
	incident uint64
	probes   int // failed in this incident

	run       int
	runCauses tally
	runAgents []string
	runModels []string
	window    window
	last      *LastFailure

	good, lost int
	leases     []*lease
	expired    []*lease // of this era, still without a word
	override   *override

	// agents and models have reported a counted result, kept where the rule asks
	// for witnesses of them.
	agents map[string]instant
	models map[string]instant
	// failedProber is the agent whose probe failed last, otherAsked when somebody
	// else last asked for a permit.
	failedProber string
	otherAsked   instant
	wouldTrip    int
	wouldEra     uint64
	wouldSet     bool
	used         instant // the last counted result or change
}

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
	witnessSpan  = instant(10 * time.Minute)
	maxReporters = 1000
	maxExpired   = 16
	lostRow      = 3
	maxExponent  = 64
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
	verdict *Verdict
}

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
	if cause == OK {
		switch {
		case r.fail.has(Slow) && (c.Latency == Slow || c.Duration > r.SlowAfter.D()):
			cause = Slow
		case r.fail.has(SlowFirstToken) && (c.Latency == SlowFirstToken || r.slowTTFT && c.FirstToken > r.SlowFirstTokenAfter.D()):
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
	own := b.ownLease(c)
	if own != nil {
		b.lost = 0
		e.touch(b)
		b.giveBack(own)
	}
	if c.tooOld || !b.belongs(c) {
		c.verdict.Late = true
		return
	}
	if b.override != nil && b.override.Op == OpHoldOpen {
		return
	}
	switch b.state {
	case Closed:
		if !ignored {
			e.count(b, c, cause, failure)
		}
	case Open:
		if e.now < b.retryAt {
			if failure {
				if at := b.asksFor(c); at > b.retryAt {
					b.retryAt, b.floor = at, at
					e.touch(b)
				}
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
		}
	case HalfOpen:
		switch {
		case own != nil && own.Expired && len(b.leases) > 0:
			c.verdict.Late = true
		case ignored:
		case own != nil, len(b.leases) == 0 && r.passive:
			e.probed(b, c, cause, failure)
		}
	}
}

// ownLease is the lease of this breaker that the call is a word of, live or
// expired; nil when there is none.
func (b *breaker) ownLease(c *call) *lease {
	if c.lease != nil && (slices.Contains(b.leases, c.lease) || slices.Contains(b.expired, c.lease)) {
		return c.lease
	}
	return nil
}

// giveBack frees the slot that the lease holds here.
func (b *breaker) giveBack(l *lease) {
	same := func(other *lease) bool { return other == l }
	b.leases = slices.DeleteFunc(b.leases, same)
	b.expired = slices.DeleteFunc(b.expired, same)
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

// count takes a success or failure into a closed breaker's run and window, and
// trips it when that is enough.
func (e *Engine) count(b *breaker, c *call, cause Cause, failure bool) {
	r, t := b.rule, &b.rule.Trip
	c.verdict.Counted = append(c.verdict.Counted, r.Name)
	e.touch(b)
	b.used = e.now
	if t.Witnesses > 1 {
		b.agents = reported(b.agents, c.Agent, e.now)
	}
	if t.Models > 1 && c.Model != "" {
		b.models = reported(b.models, c.Model, e.now)
	}
	if !failure {
		b.endRun()
		b.window.add(r, e.now, c.ended, 0, "", "")
	} else {
		b.run++
		b.runCauses.add(cause, 1)
		b.runAgents = insert(b.runAgents, c.Agent, t.Witnesses)
		b.runModels = insert(b.runModels, c.Model, t.Models)
		b.window.add(r, e.now, c.ended, cause, c.Agent, c.Model)
		b.floor = max(b.floor, b.asksFor(c))
		b.failed(c, cause)
	}
	if b.override != nil && b.override.Op == OpHoldClosed {
		return
	}
	why := b.trips(c, cause, failure, e.now)
	if why == "" {
		return
	}
	if r.observe || b.override != nil {
		if b.wouldOpen(e) {
			c.verdict.WouldTrip = append(c.verdict.WouldTrip, b.name)
		}
		return
	}
	if !failure {
		cause = b.last.Cause
	}
	b.climb(e.now, cause)
	e.open(b, change{reason: ReasonTripped, detail: why, cause: cause, actor: c.Agent, at: e.now, evidence: b.evidence(e.now)})
}

// wouldOpen notes that an observed breaker would have opened, once per era; it
// tells whether this is the first time.
func (b *breaker) wouldOpen(e *Engine) bool {
	if b.wouldSet && b.wouldEra == b.era {
		return false
	}
	b.wouldSet, b.wouldEra = true, b.era
	b.wouldTrip++
	e.touch(b)
	return true
}

// failed keeps the failure for whoever asks why.
func (b *breaker) failed(c *call, cause Cause) {
	b.last = &LastFailure{
		At: c.ended.time(), Cause: cause, Agent: c.Agent, Model: c.Model,
		Error: c.Error, Status: c.HTTPStatus, Duration: c.Duration,
	}
}

// reported notes when somebody last reported, forgetting who is long silent.
func reported(m map[string]instant, who string, now instant) map[string]instant {
	if m == nil {
		m = make(map[string]instant)
	}
	if _, known := m[who]; !known && len(m) >= maxReporters {
		maps.DeleteFunc(m, func(_ string, at instant) bool { return now-at > witnessSpan })
		if len(m) >= maxReporters {
			return m
		}
	}
	m[who] = now
	return m
}

// enough tells whether the failures' witnesses suffice: as many as are asked
// for, if that many have reported lately.
func enough(need int, failures []string, reporters map[string]instant, now instant) bool {
	if need <= 1 || len(failures) >= need {
		return true
	}
	lately := 0
	for _, at := range reporters {
		if now-at <= witnessSpan {
			lately++
		}
	}
	return lately < need
}

// trips says in a sentence why the breaker trips now, "" when it does not. Of
// several reasons it tells the first of run, at once, Retry-After, rate.
func (b *breaker) trips(c *call, cause Cause, failure bool, now instant) string {
	t := &b.rule.Trip
	if failure {
		if t.Consecutive > 0 && b.run >= t.Consecutive &&
			enough(t.Witnesses, b.runAgents, b.agents, now) && enough(t.Models, b.runModels, b.models, now) {
			if b.run == 1 {
				return "a call failed: " + cause.String()
			}
			return fmt.Sprintf("%d calls in a row failed: %s", b.run, spell(b.runCauses))
		}
		if b.rule.atOnce.has(cause) {
			return cause.String() + " trips at once"
		}
		if t.OnRetryAfter > 0 && c.RetryAfter >= t.OnRetryAfter.D() && b.asksFor(c) > now {
			return fmt.Sprintf("%s with a Retry-After of %s", cause, Duration(c.RetryAfter))
		}
	}
	if t.Rate > 0 {
		calls, failures := b.window.count(b.rule, now)
		if failures > 0 && calls >= t.MinCalls && t.Rate.reached(failures, calls) {
			agents, models := []string(nil), []string(nil)
			if t.Witnesses > 1 || t.Models > 1 {
				agents, models = b.window.witnesses(b.rule, now)
			}
			if enough(t.Witnesses, agents, b.agents, now) && enough(t.Models, models, b.models, now) {
				of := "the last " + t.Window.String()
				if t.Window.Calls > 0 {
					of = fmt.Sprintf("the last %d calls", calls)
				} else {
					of = fmt.Sprintf("%d calls in %s", calls, of)
				}
				return fmt.Sprintf("%d of %s failed: %s", failures, of, spell(b.window.tally(b.rule, now)))
			}
		}
	}
	return ""
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
	calls, failures := b.window.count(b.rule, now)
	ev := &Evidence{Run: b.run, Calls: calls, Failures: failures, Probes: b.probes}
	causes := b.window.tally(b.rule, now)
	if b.run > failures || len(causes) == 0 {
		causes = b.runCauses
	}
	ev.Causes = causes.sorted()
	if b.rule.Trip.Witnesses > 1 {
		agents := slices.Clone(b.runAgents)
		inWindow, _ := b.window.witnesses(b.rule, now)
		ev.Agents = max(len(agents), len(inWindow))
	}
	if l := b.last; l != nil {
		ev.Agent, ev.Error, ev.HTTPStatus, ev.Duration = l.Agent, l.Error, l.Status, l.Duration
	}
	return ev
}

// climb moves the ladder's exponent at a trip: each healthy StableAfter since
// the last closing takes one off, a trip within the first adds one.
func (b *breaker) climb(now instant, cause Cause) {
	if b.closedAt == 0 {
		return
	}
	if healthy := int64((now - b.closedAt) / instant(b.rule.StableAfter)); healthy > 0 {
		b.exponent = int(max(0, int64(b.exponent)-healthy))
		return
	}
	b.step(b.rule.base(cause))
}

// step adds one to the exponent until the cap is reached.
func (b *breaker) step(first Duration) {
	if b.exponent < maxExponent && b.rule.ladder(first, b.exponent) < b.rule.Cooldown.Max.D() {
		b.exponent++
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
func (r *rule) ladder(first Duration, e int) time.Duration {
	wait := float64(first) * math.Pow(r.Cooldown.Factor, float64(e))
	return time.Duration(min(wait, float64(r.Cooldown.Max)))
}

// wait is how long the breaker stays open from at on, and so until when: the
// ladder, lengthened by the jitter, with a Retry-After that still runs as its
// floor. A rule that trips on Retry-After waits for that alone.
func (b *breaker) wait(at instant) instant {
	r := b.rule
	until := at + instant(r.ladder(r.base(b.cause), b.exponent))
	if j := r.Cooldown.Jitter; j > 0 {
		// The share is drawn from the breaker and its era, so that the same inputs
		// give the same waits.
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s#%d", b.name, b.era)
		until += instant(float64(until-at) * j * float64(h.Sum64()>>11) / (1 << 53))
	}
	switch {
	case b.floor <= at:
	case r.Trip.OnRetryAfter > 0:
		return b.floor
	case b.floor > until:
		return b.floor
	}
	return until
}

// probed takes the result of a probe, leased or passive.
func (e *Engine) probed(b *breaker, c *call, cause Cause, failure bool) {
	c.verdict.Counted = append(c.verdict.Counted, b.rule.Name)
	e.touch(b)
	b.used, b.lost = e.now, 0
	if b.rule.Trip.Witnesses > 1 {
		b.agents = reported(b.agents, c.Agent, e.now)
	}
	if failure {
		b.probes++
		b.failedProber = c.Agent
		b.floor = max(b.floor, b.asksFor(c))
		b.failed(c, cause)
		b.step(b.rule.base(cause))
		ev := &Evidence{Agent: c.Agent, Error: c.Error, HTTPStatus: c.HTTPStatus, Duration: c.Duration,
			Causes: []CauseCount{{cause, 1}}, Probes: b.probes}
		e.open(b, change{reason: ReasonProbeFailed, detail: "probe failed: " + cause.String(), cause: cause, actor: c.Agent, at: e.now, evidence: ev})
		return
	}
	b.good++
	if b.good < b.rule.Probes {
		return
	}
	detail := "the probe succeeded"
	if b.rule.Probes > 1 {
		detail = fmt.Sprintf("%d probes in a row succeeded", b.rule.Probes)
	}
	b.closedAt = e.now
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
	if b.incident == 0 {
		b.incident = e.era + 1 // the era that move is about to give
		b.openedAt = ch.at
		b.probes = 0
	}
	e.moveWith(b, Open, ch, func() { b.retryAt = b.wait(ch.at) })
	b.empty()
}

// close moves the breaker to closed, and empties it.
func (e *Engine) close(b *breaker, ch change) {
	e.move(b, Closed, ch)
	b.incident, b.openedAt, b.probes = 0, 0, 0
	b.failedProber, b.otherAsked = "", 0
	b.retryAt = 0
	b.empty()
}

// endRun begins a new run of failures.
func (b *breaker) endRun() {
	b.run, b.runCauses, b.runAgents, b.runModels = 0, b.runCauses[:0], nil, nil
}

// empty forgets what was counted in the era that has ended.
func (b *breaker) empty() {
	b.endRun()
	b.window.empty()
	b.floor = 0
}

// forget is what a person's control does to the ladder.
func (b *breaker) forget() { b.exponent, b.closedAt = 0, 0 }

// move gives the breaker a new state and a new era, and records it.
func (e *Engine) move(b *breaker, to State, ch change) { e.moveWith(b, to, ch, func() {}) }

// moveWith calls settle when the era is there and before the transition is
// recorded, for whatever depends on the one and shows in the other.
func (e *Engine) moveWith(b *breaker, to State, ch change, settle func()) {
	from := b.state
	e.era++
	b.era, b.eraAt, b.state = e.era, ch.at, to
	b.good, b.lost = 0, 0
	for _, l := range slices.Concat(b.leases, b.expired) {
		l.drop(b)
		if len(l.slots) == 0 {
			delete(e.leases, l.Num)
		}
	}
	b.leases, b.expired = nil, nil
	settle()
	b.used = max(b.used, ch.at)
	e.touch(b)
	t := Transition{
		At: ch.at.time(), Breaker: b.name, Rule: b.rule.Name, Labels: b.labels,
		From: from, To: to, Cause: ch.cause, Reason: ch.reason, Detail: ch.detail,
		Evidence: ch.evidence, Actor: ch.actor, Era: b.era, Incident: b.incident,
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
	next := instant(math.MaxInt64)
	for _, l := range b.leases {
		next = min(next, l.Deadline)
	}
	if b.override != nil && b.override.Until != 0 {
		next = min(next, b.override.Until)
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
func (e *Engine) advance(now time.Time) {
	e.now = max(e.now, fromTime(now))
	if e.now < e.nextDue {
		return
	}
	var list []due
	for b := range e.timed {
		for _, l := range b.leases {
			if l.Deadline <= e.now {
				list = append(list, due{l.Deadline, b, l})
			}
		}
		if o := b.override; o != nil && o.Until != 0 && o.Until <= e.now {
			list = append(list, due{o.Until, b, nil})
		}
	}
	slices.SortFunc(list, func(x, y due) int {
		return cmp.Or(cmp.Compare(x.at, y.at), strings.Compare(x.b.name, y.b.name), cmp.Compare(x.num(), y.num()))
	})
	for _, d := range list {
		if d.lease == nil {
			e.endHold(d.b, d.at)
		} else if slices.Contains(d.b.leases, d.lease) {
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
	l.Expired = true
	b.leases = slices.DeleteFunc(b.leases, func(other *lease) bool { return other == l })
	b.expired = append(b.expired, l)
	if len(b.expired) > maxExpired {
		b.giveBack(b.expired[0])
	}
	b.lost++
	e.touch(b)
	if b.lost >= lostRow {
		e.open(b, change{reason: ReasonProbesLost, detail: "three probes in a row were granted and never reported", cause: b.cause, at: l.Deadline})
	}
}

// endHold ends an override at its expiry.
func (e *Engine) endHold(b *breaker, at instant) {
	o := b.override
	b.override = nil
	if o.Op == OpHoldOpen && o.Over {
		e.moveWith(b, Open, change{reason: ReasonExpired, detail: "the hold has expired; a probe is due", at: at}, func() { b.retryAt = at })
		return
	}
	b.forget()
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
