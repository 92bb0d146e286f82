package breaker

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Machine is what the configuration says of one machine.
type Machine struct {
	Provider string   // the account it is called on; "" is the machine itself
	Aliases  []string // other names that mean this machine
	// Local machines load models on demand, so a time-out after a long silence is
	// taken as loading for a while.
	Local bool
}

// Config is what an engine is made of.
type Config struct {
	// Rules in their order of precedence: of several with one name, the first
	// whose match fits a call is the one that sees it.
	Rules       []Rule
	Machines    map[string]Machine
	MaxAge      time.Duration // older outcomes move no breaker; 0: DefaultMaxAge
	IDsMax      int           // calls remembered; 0: DefaultIDsMax
	MaxBreakers int           // per rule; 0: DefaultMaxBreakers
	Key         []byte        // signs permits; the pool's own secret
	Chains      map[string]Chain
	// WatchPermits counts permits with a time-out that never come back as
	// time-outs, once there are more of them than chance explains.
	WatchPermits bool
	// Record keeps the calls that may have changed the engine for the next Batch.
	Record bool
}

// The defaults of Config.
const (
	DefaultMaxAge      = 2 * time.Minute
	DefaultIDsMax      = 4_000_000
	DefaultMaxBreakers = 100_000
)

// maxCircuits bounds the circuits remembered for listing and for speed; over it
// they are forgotten and come back with their next call.
const maxCircuits = 200_000

// The errors of Release, Extend and Control.
var (
	// ErrBadPermit is for a permit that this pool never gave out.
	ErrBadPermit = errors.New("unknown permit: it is not one that this pool gave out")
	// ErrLeaseOver is for extending a probe whose lease has ended or been settled.
	ErrLeaseOver = errors.New("the probe's lease is over")
)

// Engine runs the breakers of a pool. It is a deterministic state machine: time
// comes in with every call and never runs backwards in it, and the same calls
// in the same order give the same transitions. All methods are safe for
// concurrent use; one lock covers all of them and nothing slow happens under it.
type Engine struct {
	mu sync.Mutex

	rules    []*rule
	byName   map[string][]*rule
	machines map[string]Machine
	aliases  map[string]string
	agents   bool // whether a rule has agent in its scope
	maxAge   time.Duration
	maxOf    int
	signer   hash.Hash // of permits
	sum      [sha256.Size]byte
	scratch  [256]byte
	chains   map[string]*chain

	now      instant
	era      uint64
	permits  uint64
	seq      uint64
	circuits circuits
	sets     map[string]*ruleSet
	changes  uint32 // of all breakers so far
	made     uint32 // breakers made so far, for circuits that lack some
	gone     uint32 // how often breakers were evicted, for all circuits
	leases   map[uint64]*lease
	seen     seen
	judge    judge
	doubts   doubts
	samples  samples
	watch    bool
	records  bool
	timed    map[*breaker]struct{}
	nextDue  instant

	drained     uint64
	spare       []Applied // the last batch's memory, given back
	spareAsks   []Asked
	spareCopier *copier
	spareInputs Inputs
	inputs      Inputs
	transitions []Transition
	outcomes    []Applied
	asks        []Asked
	askPlaces   map[askKey]int // in asks
	drains      uint32         // one more than there were: places in asks are good for one
	routes      []Routed
	dirty       []*breaker
	evicted     []string
}

// askKey is what answers to asks are counted by.
type askKey struct {
	circuit   *circuit // nil once there are too many
	agent     string
	minute    instant
	incidents uint64 // their sum
	reason    string
}

// New makes an engine without any state. The error tells every rule and
// machine that is wrong.
func New(cfg Config) (*Engine, error) {
	e := &Engine{
		byName:   make(map[string][]*rule),
		machines: cfg.Machines,
		aliases:  make(map[string]string),
		maxAge:   orElse(cfg.MaxAge, DefaultMaxAge),
		maxOf:    orElse(cfg.MaxBreakers, DefaultMaxBreakers),
		signer:   hmac.New(sha256.New, cfg.Key),
		sets:     make(map[string]*ruleSet),
		leases:   make(map[uint64]*lease),
		seen:     seen{keys: make(map[seenKey]struct{}), max: orElse(cfg.IDsMax, DefaultIDsMax)},
		judge:    newJudge(),
		samples:  samples{byNum: make(map[uint64]*sample)},
		watch:    cfg.WatchPermits,
		records:  cfg.Record,
		doubts:   doubts{byKey: make(map[string]*Write)},
		chains:   make(map[string]*chain, len(cfg.Chains)),
		timed:    make(map[*breaker]struct{}),
		nextDue:  math.MaxInt64,

		askPlaces: make(map[askKey]int),
		drains:    1,
	}
	var errs []error
	for i, r := range cfg.Rules {
		if r.Disabled {
			continue
		}
		c, err := compile(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("rules[%d] %q: %w", i, r.Name, err))
			continue
		}
		if same := e.byName[c.Name]; len(same) > 0 && same[0].scope != c.scope {
			errs = append(errs, fmt.Errorf("rules[%d] %q: scope: %s differs from that of the other rule of this name, %s",
				i, r.Name, strings.Join(c.Scope, ", "), strings.Join(same[0].Scope, ", ")))
		}
		e.rules = append(e.rules, c)
		e.byName[c.Name] = append(e.byName[c.Name], c)
		e.agents = e.agents || c.scope&scopeAgent != 0
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Machines)) {
		for _, alias := range cfg.Machines[name].Aliases {
			if _, isMachine := cfg.Machines[alias]; isMachine || e.aliases[alias] != "" {
				errs = append(errs, fmt.Errorf("machines.%s.aliases: %q names another machine already", name, alias))
			}
			e.aliases[alias] = name
		}
	}
	if n := len(e.byName); n > maxRules {
		errs = append(errs, fmt.Errorf("rules: there are %d names: at most %d are allowed", n, maxRules))
	}
	if n := len(cfg.Chains); n > MaxChains {
		errs = append(errs, fmt.Errorf("chains: there are %d: at most %d are allowed", n, MaxChains))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Chains)) {
		ch, err := compileChain(name, cfg.Chains[name], e.Canonical)
		if err != nil {
			errs = append(errs, fmt.Errorf("chains.%s: %w", name, err))
		}
		e.chains[name] = ch
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return e, nil
}

// Rules lists the rules in force, with their defaults filled in.
func (e *Engine) Rules() []Rule {
	list := make([]Rule, 0, len(e.rules))
	for _, r := range e.rules {
		list = append(list, r.Rule)
	}
	return list
}

// Canonical maps a machine's alias onto its name and fills in the provider.
func (e *Engine) Canonical(l Labels) Labels {
	e.canonical(&l)
	return l
}

// unalias puts a machine's name for its alias.
func (e *Engine) unalias(l *Labels) {
	if len(e.aliases) > 0 {
		if name, ok := e.aliases[l.Machine]; ok {
			l.Machine = name
		}
	}
}

func (e *Engine) canonical(l *Labels) {
	e.unalias(l)
	if l.Provider == "" {
		l.Provider = l.Machine
		if len(e.machines) > 0 {
			l.Provider = orElse(e.machines[l.Machine].Provider, l.Machine)
		}
	}
}

// Report takes outcomes in their order, all at now, and gives a verdict for
// each. It makes the labels of the batch canonical in place. What came of them
// is durable once a Batch that reaches the returned number has been written.
func (e *Engine) Report(now time.Time, batch []Outcome) ([]Verdict, uint64) {
	return e.AppendReport(make([]Verdict, 0, len(batch)), now, batch)
}

// AppendReport is Report for callers who keep their memory: the verdicts are
// appended to dst.
func (e *Engine) AppendReport(dst []Verdict, now time.Time, batch []Outcome) ([]Verdict, uint64) {
	n := len(dst)
	dst = slices.Grow(dst, len(batch))[:n+len(batch)]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	for i := range batch {
		e.report(&batch[i], &dst[n+i])
	}
	return dst, e.seq
}

func (e *Engine) report(o *Outcome, v *Verdict) {
	// A permit that is not ours is as good as none: the call happened.
	var p pass
	hasPass := false
	if o.Permit != "" {
		var err error
		p, err = e.check(o.Permit)
		hasPass = err == nil
	}
	e.reportBy(o, v, p, hasPass)
}

// reportBy reports an outcome whose permit, if it has one, says this.
func (e *Engine) reportBy(o *Outcome, v *Verdict, p pass, hasPass bool) {
	e.canonical(&o.Labels)
	*v = Verdict{Latency: o.Latency}
	c := call{Outcome: o, cause: o.Cause, verdict: v}
	c.ended = e.now - instant(o.Age)
	c.started = c.ended - instant(o.Duration)
	c.tooOld = o.Age > e.maxAge
	ct := e.circuit(&o.Labels)
	if hasPass {
		c.pass, c.hasPass = p, true
		c.lease = e.leaseOf(p)
	}
	heard := e.seen.fresh
	v.Duplicate = e.duplicate(&c)
	if e.records && (!v.Duplicate || e.seen.fresh > heard) {
		e.inputs.addOutcome(e.now, o, p, hasPass)
	}
	if !v.Duplicate && e.watch && c.hasPass {
		// A time-out that was counted when its permit was lost counts once.
		v.Duplicate = e.word(ct, o.Agent, c.pass) && o.Cause == Timeout
	}
	if !v.Duplicate {
		e.apply(ct, &c)
	} else if e.seen.fresh > heard {
		e.seq++ // the other name of a call that is known
	}
	v.Counted = ct.set.counted(c.counted)
	v.Cause, v.Class = c.cause, c.cause.Class()
	v.State, v.RetryAt = e.summary(ct)
}

// apply shows a call that is heard of for the first time to its circuit.
func (e *Engine) apply(ct *circuit, c *call) {
	e.seq++
	o, v := c.Outcome, c.verdict
	if o.Served.Called() {
		c.cause = e.judge.cause(o, ct, c.ended)
		for i, b := range ct.breakers {
			if b == nil {
				if b = e.member(ct, i, c); b == nil {
					continue
				}
			}
			c.rule = i
			e.take(b, c)
		}
		v.Late = v.Late || c.tooOld
		v.InDoubt = o.Write && e.doubt(c)
	}
	if c.lease != nil {
		e.settle(c.lease)
	}
	if len(e.outcomes) == cap(e.outcomes) {
		e.outcomes = slices.Grow(e.outcomes, 1)
	}
	// Written in place, over memory that is zero: there is one for every call.
	e.outcomes = e.outcomes[:len(e.outcomes)+1]
	a := &e.outcomes[len(e.outcomes)-1]
	a.Labels, a.At, a.Cause, a.Latency, a.Served = o.Labels, e.now.time(), c.cause, v.Latency, o.Served
	a.Duration, a.CostUSD, a.Late = o.Duration, o.CostUSD, v.Late
	if o.Fallback != (Fallback{}) {
		a.Fallback = o.Fallback
	}
}

// duplicate notes the call's names and tells whether one was known already.
func (e *Engine) duplicate(c *call) bool {
	known := false
	if c.hasPass {
		known = e.seen.heard(e.now, c.pass.key())
	}
	if c.ID != "" {
		known = e.seen.heard(e.now, idKey(c.Agent, c.ID)) || known
	}
	return known
}

// leaseOf is the lease that the permit stands for, nil when it is a plain one or
// its lease is settled. The number alone does not say so: after a crash those
// that were never stored are given out again.
func (e *Engine) leaseOf(p pass) *lease {
	if l := e.leases[p.num]; l != nil && l.pass() == p {
		return l
	}
	return nil
}

// settle ends a lease whose word has come: slots that it still holds are free.
func (e *Engine) settle(l *lease) {
	if l == nil {
		return
	}
	for _, b := range slices.Clone(l.slots) {
		b.giveBack(l)
		b.past.lost = 0
		e.touch(b)
	}
	delete(e.leases, l.Num)
}

// breaker finds or makes the rule's breaker for calls with these labels; nil
// when the rule has as many as it may and none can go. The labels are kept.
func (e *Engine) breaker(r *rule, l *Labels) *breaker {
	if b := r.find(l); b != nil {
		return b
	}
	if r.size >= e.maxOf && !e.evict(r) {
		return nil
	}
	b := newBreaker(r, l)
	b.used = e.now
	r.insert(b)
	e.made++
	return b
}

// idle is how long a breaker must have been silent to be evicted.
const idle = instant(time.Hour)

// evict drops the longest idle twentieth of the rule's breakers that carry
// nothing worth keeping; false when there is none. It does not look again
// before one may have become free, so that a flood of names costs no search each.
func (e *Engine) evict(r *rule) bool {
	if e.now < r.fullUntil {
		return false
	}
	var free []*breaker
	next := e.now + idle // whatever is used or moves from now on is not free before
	for b := range r.each {
		switch at, ok := b.freeAt(); {
		case !ok:
		case at <= e.now:
			free = append(free, b)
		default:
			next = min(next, at)
		}
	}
	if len(free) == 0 {
		r.fullUntil = next
		return false
	}
	slices.SortFunc(free, func(x, y *breaker) int {
		return cmp.Or(cmp.Compare(x.used, y.used), strings.Compare(x.name(), y.name()))
	})
	for _, b := range free[:min(len(free), e.maxOf/20+1)] {
		r.remove(b)
		e.evicted = append(e.evicted, b.name())
		b.dirty = false
		e.gone++
	}
	return true
}

// freeAt is the moment from which on the breaker carries nothing worth keeping,
// if nothing happens to it until then; false when something has to.
func (b *breaker) freeAt() (at instant, ok bool) {
	p := b.was()
	if b.state != Closed || p.incident != 0 || b.run != 0 || p.override != nil {
		return 0, false
	}
	at = b.used + idle
	if p.closedAt != 0 {
		at = max(at, p.closedAt+instant(p.exponent)*instant(b.rule.StableAfter))
	}
	return at, true
}

// touch notes that the breaker's state has to be stored again.
func (e *Engine) touch(b *breaker) {
	e.changes++
	b.changed = e.changes
	e.store(b)
}

// store is touch for what no answer tells of.
func (e *Engine) store(b *breaker) {
	if !b.dirty {
		b.dirty = true
		e.dirty = append(e.dirty, b)
	}
}

// Ask answers whether a call may be made. A grant of a probe takes a slot in
// every breaker of the circuit that is due, all or none, and must not be told
// before a Batch that reaches the returned number has been written; everything
// else may be told at once. The grant's Breakers are shared and must not be
// changed.
func (e *Engine) Ask(now time.Time, ask Ask) (g Grant, seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	e.askNow(&ask, &g)
	return g, e.seq
}

// askNow is Ask, at the engine's time.
func (e *Engine) askNow(ask *Ask, g *Grant) {
	if e.records {
		e.inputs.addAsk(e.now, ask)
	}
	e.ask(ask, g)
}

// ask answers without the number that its effects are durable with.
func (e *Engine) ask(ask *Ask, g *Grant) {
	e.canonical(&ask.Labels)
	ct := e.circuit(&ask.Labels)
	if ask.IdempotencyKey != "" {
		if held := e.heldWrite(ask.IdempotencyKey); held != nil {
			e.refuse(ct, ask, standing{}, held, g)
			return
		}
		g.Write = e.writeNow(ask.IdempotencyKey)
	}
	if ask.RequestID != "" {
		if l := ct.sameRequest(ask); l != nil {
			e.granted(l, g)
			return
		}
	}
	refused, due := false, 0
	var of standing
	for _, b := range ct.breakers {
		if b == nil {
			continue
		}
		if b.rule.yields && (b.state != Closed || b.rule.asked) {
			w := b.watched()
			w.asked = reported(w.asked, ask.Agent, 2, e.now)
			e.store(b)
		}
		if b.state == Closed {
			continue
		}
		of.n++
		of.latest = max(of.latest, b.changed)
		if reason, needed := e.stand(b, ask.Agent); reason != "" {
			refused = true
		} else if needed {
			due++
		}
	}
	switch {
	case refused:
		e.refuse(ct, ask, of, nil, g)
	case due == 0:
		e.permits++
		e.seq++
		e.asks[e.asked(ct, ask, AskedGranted, nil)].N++
		g.Allowed = true
		g.State, _ = e.summary(ct)
		p := pass{era: e.era, num: e.permits, at: e.now}
		g.Permit = e.sign(p)
		if e.watch && ask.Timeout > 0 {
			e.follow(ct, ask, p)
		}
	default:
		e.probe(ct, ask, g)
	}
}

// probe grants a lease of a slot in every breaker that is due.
func (e *Engine) probe(ct *circuit, ask *Ask, g *Grant) {
	e.permits++
	e.seq++
	l := &lease{Num: e.permits, Agent: ask.Agent, Request: ask.RequestID, Machine: ask.Machine, Model: ask.Model, Provider: ask.Provider, Granted: e.now}
	length, shortest := time.Duration(0), time.Duration(math.MaxInt64)
	for _, b := range ct.breakers {
		if b == nil || b.state == Closed {
			continue
		}
		if b.state == Open {
			e.move(b, HalfOpen, change{reason: ReasonProbeGranted, cause: b.cause, actor: ask.Agent, at: e.now})
		}
		l.slots = append(l.slots, b)
		length = max(length, b.rule.Lease.D())
		shortest = min(shortest, b.rule.MaxLease.D()) // none may be held for longer
	}
	if ask.Timeout > 0 {
		length = min(ask.Timeout, shortest) + LeaseMargin
	}
	l.Era = e.era
	l.Max = e.now + instant(shortest)
	l.Deadline = min(e.now+instant(length), l.Max)
	e.leases[l.Num] = l
	for _, b := range l.slots {
		b.past.leases = append(b.past.leases, l)
		e.touch(b)
		e.schedule(b)
	}
	e.asks[e.asked(ct, ask, AskedProbe, nil)].N++
	e.granted(l, g)
}

// granted tells of a probe's lease.
func (e *Engine) granted(l *lease, g *Grant) {
	g.Allowed, g.Probe, g.State = true, true, HalfOpen
	g.Permit, g.ExpiresAt = e.sign(l.pass()), l.Deadline.time()
}

// sameRequest is the live lease that this request got before, nil if none.
func (ct *circuit) sameRequest(ask *Ask) *lease {
	for _, b := range ct.breakers {
		if b == nil || b.past == nil {
			continue
		}
		for _, l := range b.past.leases {
			if l.Agent == ask.Agent && l.Request == ask.RequestID && l.isFor(&ask.Labels) {
				return l
			}
		}
	}
	return nil
}

// stand says how the breaker stands to an asker: the reason when it refuses,
// otherwise whether a probe's slot is needed.
func (e *Engine) stand(b *breaker, agent string) (reason string, needed bool) {
	switch b.state {
	case Closed:
		return "", false
	case Open:
		if b.held() == OpHoldOpen {
			return RefusedHeldOpen, false
		}
		if e.now < b.retryAt {
			return RefusedOpen, false
		}
	case HalfOpen:
		if len(b.past.leases) >= b.rule.Concurrent {
			return RefusedProbeInFlight, false
		}
	}
	if e.now < b.yieldsUntil(agent) {
		return RefusedProbeInFlight, false
	}
	return "", true
}

// freeAt is when a half-open breaker may have a slot again: at the first lease's
// deadline, but at most AskAgain from now, since a probe may close it any moment.
func (e *Engine) freeAt(b *breaker) instant {
	at := e.now + instant(AskAgain)
	leases := b.was().leases
	if len(leases) < b.rule.Concurrent {
		// The asker's own probe failed; the others have until then to ask.
		if until := b.yieldsUntil(b.witnesses().failedProber); until != 0 {
			return min(at, until)
		}
		return at
	}
	for _, l := range leases {
		at = min(at, l.Deadline)
	}
	return at
}

// refusalRank orders the reasons of refusals: the highest is told.
func refusalRank(reason string) int {
	return slices.Index([]string{RefusedProbeInFlight, RefusedOpen, RefusedHeldOpen, RefusedWriteInDoubt}, reason)
}

// standing is what a circuit's breakers that are not closed are known by: how
// many they are, and the latest of their changes. Within a minute, one that
// opens or changes makes the latter larger, and one that closes the former
// smaller.
type standing struct{ n, latest uint32 }

// refusal is an answer that was kept: while nothing about its circuit changes,
// the next asker gets it again.
type refusal struct {
	of     standing
	minute instant
	until  instant // when the first of the open ones is due for a probe
	grant  Grant
	// incidents are those behind it.
	incidents []uint64
	asked     int // the place of what the answer is counted in
	agent     string
	drains    uint32 // when that place was given; zero: never
}

// refuse answers an ask that breakers refuse, or a write in doubt. The answer
// before is given again when the breakers stand as they did.
func (e *Engine) refuse(ct *circuit, ask *Ask, of standing, held *Write, g *Grant) {
	e.seq++
	write := g.Write
	kept := ct.refusal
	if kept != nil && kept.of == of && kept.minute == e.now/minute && e.now < kept.until {
		*g = kept.grant
	} else {
		g.Write = nil
		kept = e.refusalOf(ct, ask.Agent, held, g)
		kept.of, kept.minute, kept.grant = of, e.now/minute, *g
		if e.now < kept.until {
			ct.refusal = kept
		}
	}
	if kept.drains != e.drains || kept.agent != ask.Agent {
		kept.asked, kept.agent, kept.drains = e.asked(ct, ask, g.Reason, kept.incidents), ask.Agent, e.drains
	}
	e.asks[kept.asked].N++
	if held == nil {
		g.Write = write
	}
}

// refusalOf makes the refusal. It is for everybody until the time that it
// gives, which is zero when it is for this agent and this moment only.
func (e *Engine) refusalOf(ct *circuit, agent string, held *Write, g *Grant) *refusal {
	g.State, _ = e.summary(ct)
	kept := &refusal{until: math.MaxInt64}
	rank, endless := -1, false
	var at instant
	if held != nil {
		w := *held
		g.Write = &w
		g.Reason = RefusedWriteInDoubt
		rank, at = refusalRank(g.Reason), fromTime(held.Until)
		kept.until = 0
	}
	for _, b := range ct.breakers {
		if b == nil {
			continue
		}
		reason, _ := e.stand(b, agent)
		if reason == "" {
			if b.state != Closed {
				kept.until = 0
			}
			continue
		}
		if n := refusalRank(reason); n > rank {
			rank, g.Reason = n, reason
		}
		t := b.retryAt // zero under a hold without an end
		if reason == RefusedProbeInFlight {
			t = e.freeAt(b)
			kept.until = 0
		}
		if reason == RefusedOpen {
			kept.until = min(kept.until, b.retryAt)
		}
		endless = endless || t == 0
		at = max(at, t)
		v := e.view(b)
		v.Reason = reason
		if reason == RefusedProbeInFlight {
			v.RetryAt = t.time()
		}
		if v.Calls > 0 {
			kept.until = 0 // a quiet hour may empty the window
		}
		g.Breakers = append(g.Breakers, v)
		if n := b.was().incident; n != 0 {
			kept.incidents = append(kept.incidents, n)
		}
	}
	if !endless {
		g.RetryAt = at.time()
	}
	return kept
}

// maxAsks bounds the different answers counted between two drains; past it they
// are counted without their labels.
const maxAsks = 100_000

// asked is the place where answers of this kind are counted, by minute.
func (e *Engine) asked(ct *circuit, ask *Ask, reason string, incidents []uint64) int {
	l := ask.Labels
	add := func() int {
		e.asks = append(e.asks, Asked{Labels: l, At: e.now.time(), Reason: reason, Incidents: incidents})
		return len(e.asks) - 1
	}
	// Most circuits are asked for by one agent and answer in one way between two
	// drains: the first kind has its place in the circuit.
	if ct.askedIn != e.drains && len(e.asks) < maxAsks {
		ct.askedIn, ct.asked = e.drains, int32(add())
		return int(ct.asked)
	}
	if ct.askedIn == e.drains {
		if a := &e.asks[ct.asked]; a.Agent == ask.Agent && a.Reason == reason && fromTime(a.At)/minute == e.now/minute && slices.Equal(a.Incidents, incidents) {
			return int(ct.asked)
		}
	}
	key := askKey{circuit: ct, agent: ask.Agent, minute: e.now / minute, reason: reason}
	if len(e.asks) >= maxAsks {
		key.circuit, key.agent, l = nil, "", Labels{}
	}
	for _, n := range incidents {
		key.incidents += n
	}
	i, ok := e.askPlaces[key]
	if !ok {
		i = add()
		e.askPlaces[key] = i
	}
	return i
}

// Release gives a permit back unused; duplicate is true when a word of it had
// come before, and then nothing changes.
func (e *Engine) Release(now time.Time, permit string) (duplicate bool, seq uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	p, err := e.check(permit)
	if err != nil {
		return false, e.seq, err
	}
	return e.releaseBy(p), e.seq, nil
}

func (e *Engine) releaseBy(p pass) (duplicate bool) {
	if e.seen.heard(e.now, p.key()) {
		return true
	}
	e.recorded(&inputRelease{p})
	e.seq++
	e.settle(e.leaseOf(p))
	if e.watch {
		e.word(nil, "", p)
	}
	return false
}

// Extend lets a probe's lease run for timeout plus LeaseMargin from now, never
// shorter than it was and never past the rule's MaxLease. A plain permit never
// expires and gives the zero time.
func (e *Engine) Extend(now time.Time, permit string, timeout time.Duration) (expires time.Time, seq uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	p, err := e.check(permit)
	if err != nil {
		return time.Time{}, e.seq, err
	}
	if !p.probe {
		return time.Time{}, e.seq, nil
	}
	l := e.extendBy(p, timeout)
	if l == nil {
		return time.Time{}, e.seq, ErrLeaseOver
	}
	return l.Deadline.time(), e.seq, nil
}

// extendBy is the lease that was extended, nil when it is over.
func (e *Engine) extendBy(p pass, timeout time.Duration) *lease {
	l := e.leaseOf(p)
	if l == nil || l.Expired {
		return nil
	}
	e.recorded(&inputExtend{p, timeout})
	timeout = min(max(timeout, 0), time.Duration(l.Max-l.Granted))
	l.Deadline = max(l.Deadline, min(e.now+instant(timeout+LeaseMargin), l.Max))
	e.seq++
	for _, b := range l.slots {
		e.touch(b)
	}
	return l
}

// Control puts a control on a breaker, making it if it was not seen yet. The
// error names what is wrong with the breaker's name or the control.
func (e *Engine) Control(now time.Time, c Control) (View, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	made := e.made
	b, err := e.controlNow(c)
	if err != nil {
		return View{}, e.seq, err
	}
	v := e.view(b)
	v.Made = e.made != made
	return v, e.seq, nil
}

// controlNow puts a control on a breaker at the engine's time.
func (e *Engine) controlNow(c Control) (*breaker, error) {
	if c.For < 0 {
		return nil, fmt.Errorf("for: %s is negative", c.For)
	}
	if !slices.Contains(ops, c.Op) {
		return nil, fmt.Errorf("op: unknown control %q: known are %s", c.Op, opNames())
	}
	b, err := e.named(c.Breaker)
	if err != nil {
		return nil, err
	}
	e.recorded(&inputControl{c})
	ch := change{actor: c.Actor, detail: c.Reason, at: e.now}
	until := instant(0)
	if c.For > 0 {
		until = e.now + instant(c.For)
	}
	hold := &override{Op: c.Op, Actor: c.Actor, Reason: c.Reason, Until: until}
	switch c.Op {
	case OpAuto:
		if b.held() == "" {
			return b, nil
		}
		ch.reason = ReasonAuto
		b.past.override = nil
		b.forget()
		e.close(b, ch)
	case OpReset:
		ch.reason = ReasonReset
		b.history().override = nil
		b.forget()
		e.close(b, ch)
	case OpHoldOpen:
		ch.reason = ReasonHoldOpen
		p := b.history()
		hold.Over = b.state != Closed
		if b.held() == OpHoldOpen {
			hold.Over = p.override.Over
		}
		p.override = hold
		if p.incident == 0 {
			p.openedAt = e.now
			b.cause = 0
		}
		e.moveWith(b, Open, ch, func() { b.retryAt = until })
	case OpHoldClosed, OpObserve:
		ch.reason = ReasonHoldClosed
		if c.Op == OpObserve {
			ch.reason = ReasonObserve
		}
		b.history().override = hold
		e.close(b, ch)
	}
	e.seq++
	return b, nil
}

// named finds or makes the breaker of this name.
func (e *Engine) named(name string) (*breaker, error) {
	ruleName, labels, err := ParseName(name)
	if err != nil {
		return nil, err
	}
	e.unalias(&labels)
	rules := e.byName[ruleName]
	if len(rules) == 0 {
		return nil, fmt.Errorf("breaker %q: unknown rule %q: known are %s", name, ruleName, strings.Join(e.ruleNames(), ", "))
	}
	for _, r := range rules {
		if r.covers(&labels) && r.key(&labels) == labels {
			b := e.breaker(r, &labels)
			if b == nil {
				return nil, fmt.Errorf("breaker %q: rule %q has %d breakers, as many as it may", name, ruleName, e.maxOf)
			}
			return b, nil
		}
	}
	return nil, fmt.Errorf("breaker %q: rule %q is about exactly these labels: %s", name, ruleName, strings.Join(rules[0].Scope, ", "))
}

func (e *Engine) ruleNames() []string {
	return slices.Sorted(maps.Keys(e.byName))
}

// Advance does what time alone brings about: it is called each second.
func (e *Engine) Advance(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := len(e.dirty)
	e.advance(now)
	if len(e.dirty) > before {
		e.seq++
	}
}

// Drain takes everything that happened since the last Drain, in order.
func (e *Engine) Drain() Batch {
	e.mu.Lock()
	if len(e.transitions)+len(e.dirty)+len(e.evicted)+e.inputs.Len() > 0 && e.seq == e.drained {
		e.seq++ // brought about by time while somebody only looked, or without any effect
	}
	batch := Batch{From: e.drained, To: e.seq, Transitions: e.transitions, Outcomes: e.outcomes, Asks: e.asks, Routes: e.routes, Writes: e.freshWrites(), Evicted: e.evicted, Clock: e.clock()}
	batch.Inputs = e.inputs
	e.inputs, e.spareInputs = e.spareInputs, Inputs{}
	batch.Heard = e.seen.list(len(e.seen.queue) - e.seen.fresh)
	e.seen.fresh = 0
	copies := newCopier(e.spareCopier, len(e.dirty))
	e.spareCopier = nil
	for _, b := range e.dirty {
		if b.dirty {
			copies.add(b)
			b.dirty = false
		}
	}
	e.drained = e.seq
	e.transitions, e.routes, e.evicted = nil, nil, nil
	if e.outcomes = e.spare; e.outcomes == nil {
		e.outcomes = make([]Applied, 0, min(len(batch.Outcomes), 1024))
	}
	e.spare = nil
	if e.asks = e.spareAsks; e.asks == nil {
		e.asks = make([]Asked, 0, min(len(batch.Asks), 1024))
	}
	e.spareAsks = nil
	clear(e.askPlaces)
	e.drains++
	e.dirty = emptied(e.dirty)
	e.judge.drain(copies)
	now := e.now
	e.mu.Unlock()
	batch.States, batch.Lately = copies.named(now)
	batch.memory = copies
	return batch
}

// Reuse gives back the memory of a batch that nobody reads any more, nor any
// part of it.
func (e *Engine) Reuse(batch Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if o := emptied(batch.Outcomes); cap(o) > cap(e.spare) {
		e.spare = o
	}
	if a := emptied(batch.Asks); cap(a) > cap(e.spareAsks) {
		e.spareAsks = a
	}
	if in := batch.Inputs.emptied(); cap(in.order) > cap(e.spareInputs.order) {
		e.spareInputs = in
	}
	if c := batch.memory.used(); c != nil {
		e.spareCopier = c
	}
}

// maxSpare bounds the memory that is kept for the next batch, in entries.
const maxSpare = 16_384

// Backlog counts what waits for Drain, in entries.
func (e *Engine) Backlog() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.transitions) + len(e.outcomes) + len(e.routes) + len(e.doubts.fresh) + len(e.judge.touched) + len(e.asks) + e.seen.fresh
}

func (e *Engine) clock() Clock {
	return Clock{Now: e.now.time(), Era: e.era, Permit: e.permits, Seq: e.seq}
}
