package breaker

import (
	"cmp"
	"errors"
	"fmt"
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
	key      []byte
	chains   map[string]*chain

	now      instant
	era      uint64
	permits  uint64
	seq      uint64
	breakers map[*rule]map[Labels]*breaker
	circuits map[Labels]*circuit
	made     int // breakers made or evicted so far, for the circuits' shortcuts
	leases   map[uint64]*lease
	seen     seen
	judge    judge
	doubts   doubts
	timed    map[*breaker]struct{}
	nextDue  instant

	drained     uint64
	transitions []Transition
	outcomes    []Applied
	asks        map[askKey]*Asked
	routes      []Routed
	dirty       []*breaker
	evicted     []string
}

// circuit is what calls with the same labels pass through.
type circuit struct {
	labels   Labels
	rules    []*rule
	breakers []*breaker // nil where there is none yet
	made     int
	local    bool
}

// askKey is what answers to asks are counted by.
type askKey struct {
	labels    Labels
	minute    instant
	reason    string
	incidents [4]uint64
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
		key:      cfg.Key,
		breakers: make(map[*rule]map[Labels]*breaker),
		circuits: make(map[Labels]*circuit),
		leases:   make(map[uint64]*lease),
		seen:     seen{keys: make(map[seenKey]struct{}), max: orElse(cfg.IDsMax, DefaultIDsMax)},
		judge:    newJudge(),
		doubts:   doubts{byKey: make(map[string]*Write)},
		chains:   make(map[string]*chain, len(cfg.Chains)),
		timed:    make(map[*breaker]struct{}),
		nextDue:  math.MaxInt64,
		asks:     make(map[askKey]*Asked),
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
		e.breakers[c] = make(map[Labels]*breaker)
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
	if name, ok := e.aliases[l.Machine]; ok {
		l.Machine = name
	}
	if l.Provider == "" {
		l.Provider = orElse(e.machines[l.Machine].Provider, l.Machine)
	}
	return l
}

// Report takes outcomes in their order, all at now, and gives a verdict for
// each. It makes the labels of the batch canonical in place. What came of them is durable once a Batch that reaches the returned
// number has been written.
func (e *Engine) Report(now time.Time, batch []Outcome) ([]Verdict, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	verdicts := make([]Verdict, len(batch))
	for i := range batch {
		e.report(&batch[i], &verdicts[i])
	}
	return verdicts, e.seq
}

func (e *Engine) report(o *Outcome, v *Verdict) {
	o.Labels = e.Canonical(o.Labels)
	c := call{Outcome: o, cause: o.Cause, verdict: v}
	c.ended = e.now - instant(o.Age)
	c.started = c.ended - instant(o.Duration)
	c.tooOld = o.Age > e.maxAge
	v.Latency = o.Latency
	ct := e.circuit(o.Labels)
	v.Counted = make([]string, 0, len(ct.rules))
	if o.Permit != "" {
		// A permit that is not ours is as good as none: the call happened.
		if p, err := e.check(o.Permit); err == nil {
			c.pass, c.hasPass = p, true
			c.lease = e.leaseOf(p)
		}
	}
	if e.duplicate(&c) {
		v.Duplicate = true
	} else {
		e.seq++
		if o.Served.Called() {
			c.cause = e.judge.cause(o, c.ended, ct.local)
			for i, r := range ct.rules {
				if b := e.member(ct, i, r, &c); b != nil {
					e.take(b, &c)
				}
			}
			v.Late = v.Late || c.tooOld
			v.InDoubt = e.doubt(&c)
		}
		e.settle(c.lease)
		e.outcomes = append(e.outcomes, Applied{
			Labels: o.Labels, At: e.now.time(), Cause: c.cause, Latency: v.Latency, Served: o.Served,
			Fallback: o.Fallback, Duration: o.Duration, CostUSD: o.CostUSD, Late: v.Late,
		})
	}
	v.Cause, v.Class = c.cause, c.cause.Class()
	v.State, v.RetryAt = e.summary(ct)
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
		b.lost = 0
		e.touch(b)
	}
	delete(e.leases, l.Num)
}

// circuitKey is what circuits are told apart by: an agent matters only where a
// rule has it in its scope.
func (e *Engine) circuitKey(l Labels) Labels {
	if !e.agents {
		l.Agent = ""
	}
	return l
}

// circuit finds or makes the circuit of these canonical labels.
func (e *Engine) circuit(l Labels) *circuit {
	key := e.circuitKey(l)
	ct := e.circuits[key]
	if ct == nil {
		if len(e.circuits) >= maxCircuits {
			clear(e.circuits)
		}
		ct = e.newCircuit(key)
		e.circuits[key] = ct
	}
	e.refresh(ct)
	return ct
}

// look is circuit for a reader, who leaves no trace.
func (e *Engine) look(l Labels) *circuit {
	key := e.circuitKey(l)
	ct := e.circuits[key]
	if ct == nil {
		ct = e.newCircuit(key)
	}
	e.refresh(ct)
	return ct
}

func (e *Engine) newCircuit(key Labels) *circuit {
	ct := &circuit{labels: key, made: -1, local: e.machines[key.Machine].Local}
	for _, r := range e.rules {
		sameName := func(other *rule) bool { return other.Name == r.Name }
		if r.covers(&key) && !slices.ContainsFunc(ct.rules, sameName) {
			ct.rules = append(ct.rules, r)
		}
	}
	ct.breakers = make([]*breaker, len(ct.rules))
	return ct
}

// refresh finds breakers that other circuits have made meanwhile.
func (e *Engine) refresh(ct *circuit) {
	if ct.made == e.made {
		return
	}
	for i, r := range ct.rules {
		ct.breakers[i] = e.breakers[r][r.key(&ct.labels)]
	}
	ct.made = e.made
}

// member is the circuit's breaker of this rule, made when the call is the first
// that the rule counts; nil when there is none and none is needed.
func (e *Engine) member(ct *circuit, i int, r *rule, c *call) *breaker {
	if b := ct.breakers[i]; b != nil {
		return b
	}
	if c.tooOld {
		return nil
	}
	if _, _, ignored := r.takes(c); ignored {
		return nil
	}
	b := e.breaker(r, r.key(&ct.labels))
	e.refresh(ct)
	return b
}

// breaker finds or makes the rule's breaker of this key; nil when the rule has
// as many as it may and none can go.
func (e *Engine) breaker(r *rule, key Labels) *breaker {
	of := e.breakers[r]
	if b := of[key]; b != nil {
		return b
	}
	if len(of) >= e.maxOf && !e.evict(r) {
		return nil
	}
	b := &breaker{rule: r, labels: key, name: Name(r.Name, key), used: e.now}
	of[key] = b
	e.made++
	return b
}

// idle is how long a breaker must have been silent to be evicted.
const idle = instant(time.Hour)

// evict drops the longest idle twentieth of the rule's breakers that carry
// nothing worth keeping; false when there is none.
func (e *Engine) evict(r *rule) bool {
	var free []*breaker
	for _, b := range e.breakers[r] {
		decayed := b.closedAt == 0 || int64(b.exponent) <= int64((e.now-b.closedAt)/instant(r.StableAfter))
		if b.state == Closed && b.incident == 0 && b.run == 0 && b.override == nil && decayed && e.now-b.used >= idle {
			free = append(free, b)
		}
	}
	slices.SortFunc(free, func(x, y *breaker) int {
		return cmp.Or(cmp.Compare(x.used, y.used), strings.Compare(x.name, y.name))
	})
	for _, b := range free[:min(len(free), e.maxOf/20+1)] {
		delete(e.breakers[r], b.labels)
		e.evicted = append(e.evicted, b.name)
		b.dirty = false
		e.made++
	}
	return len(free) > 0
}

// touch notes that the breaker's state has to be stored again.
func (e *Engine) touch(b *breaker) {
	if !b.dirty {
		b.dirty = true
		e.dirty = append(e.dirty, b)
	}
}

// Ask answers whether a call may be made. A grant of a probe takes a slot in
// every breaker of the circuit that is due, all or none, and must not be told
// before a Batch that reaches the returned number has been written; everything
// else may be told at once.
func (e *Engine) Ask(now time.Time, ask Ask) (Grant, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	g := e.ask(ask)
	return g, e.seq
}

// ask answers without the number that its effects are durable with.
func (e *Engine) ask(ask Ask) Grant {
	ask.Labels = e.Canonical(ask.Labels)
	ct := e.circuit(ask.Labels)
	held := e.heldWrite(ask.IdempotencyKey)
	if held != nil {
		return e.refuse(ct, ask, e.refusing(ct, ask.Agent), held)
	}
	if l := e.sameRequest(ct, ask); l != nil {
		return Grant{Allowed: true, Permit: e.sign(l.pass()), Probe: true, State: HalfOpen, ExpiresAt: l.Deadline.time(), Write: e.writeNow(ask.IdempotencyKey)}
	}
	var refusing []*breaker
	var needs []*breaker
	for _, b := range ct.breakers {
		if b == nil {
			continue
		}
		switch _, needed, refused := e.stand(b, ask.Agent); {
		case refused:
			refusing = append(refusing, b)
		case needed:
			needs = append(needs, b)
		}
		if b.rule.Trip.Witnesses > 1 && b.state != Closed && ask.Agent != b.failedProber {
			b.otherAsked = e.now
		}
	}
	if len(refusing) > 0 {
		return e.refuse(ct, ask, refusing, nil)
	}
	e.permits++
	e.seq++
	if len(needs) == 0 {
		e.asked(ask.Labels, AskedGranted, nil)
		state, _ := e.summary(ct)
		return Grant{Allowed: true, Permit: e.sign(pass{era: e.era, num: e.permits, at: e.now}), State: state, Write: e.writeNow(ask.IdempotencyKey)}
	}
	for _, b := range needs {
		if b.state == Open {
			e.move(b, HalfOpen, change{reason: ReasonProbeGranted, cause: b.cause, actor: ask.Agent, at: e.now})
		}
	}
	l := &lease{Num: e.permits, Agent: ask.Agent, Request: ask.RequestID, Era: e.era, Granted: e.now, slots: needs}
	var length, longest time.Duration
	for _, b := range needs {
		length = max(length, b.rule.Lease.D())
		longest = max(longest, b.rule.MaxLease.D())
	}
	if ask.Timeout > 0 {
		length = min(ask.Timeout, longest) + LeaseMargin
	}
	l.Max = e.now + instant(longest)
	l.Deadline = min(e.now+instant(length), l.Max)
	e.leases[l.Num] = l
	for _, b := range needs {
		b.leases = append(b.leases, l)
		e.touch(b)
		e.schedule(b)
	}
	e.asked(ask.Labels, AskedProbe, nil)
	return Grant{Allowed: true, Permit: e.sign(l.pass()), Probe: true, State: HalfOpen, ExpiresAt: l.Deadline.time(), Write: e.writeNow(ask.IdempotencyKey)}
}

// refusing are the circuit's breakers that would refuse this agent now.
func (e *Engine) refusing(ct *circuit, agent string) []*breaker {
	var list []*breaker
	for _, b := range ct.breakers {
		if b == nil {
			continue
		}
		if _, _, refused := e.stand(b, agent); refused {
			list = append(list, b)
		}
	}
	return list
}

// sameRequest is the live lease that this request got before, nil if none.
func (e *Engine) sameRequest(ct *circuit, ask Ask) *lease {
	if ask.RequestID == "" {
		return nil
	}
	for _, b := range ct.breakers {
		if b == nil {
			continue
		}
		for _, l := range b.leases {
			if l.Agent == ask.Agent && l.Request == ask.RequestID {
				return l
			}
		}
	}
	return nil
}

// stand says how the breaker stands to an asker: the reason when it refuses,
// or that a probe's slot is needed.
func (e *Engine) stand(b *breaker, agent string) (reason string, needed, refused bool) {
	switch {
	case b.override != nil && b.override.Op == OpHoldOpen:
		return RefusedHeldOpen, false, true
	case b.state == Open && e.now < b.retryAt:
		return RefusedOpen, false, true
	case b.state == HalfOpen && len(b.leases) >= b.rule.Concurrent:
		return RefusedProbeInFlight, false, true
	case b.state == Closed:
		return "", false, false
	case b.rule.Trip.Witnesses > 1 && agent == b.failedProber && b.otherAsked != 0 && e.now-b.otherAsked <= instant(b.rule.Lease):
		return RefusedProbeInFlight, false, true
	}
	return "", true, false
}

// freeAt is when a half-open breaker may have a slot again: at the first lease's
// deadline, but at most AskAgain from now, since a probe may close it any moment.
func (e *Engine) freeAt(b *breaker) instant {
	at := e.now + instant(AskAgain)
	if len(b.leases) < b.rule.Concurrent {
		// The asker's own probe failed; the others have until then to ask.
		return min(at, b.otherAsked+instant(b.rule.Lease))
	}
	for _, l := range b.leases {
		at = min(at, l.Deadline)
	}
	return at
}

// refuse answers an ask that breakers refuse, or a write in doubt.
func (e *Engine) refuse(ct *circuit, ask Ask, refusing []*breaker, held *Write) Grant {
	g := Grant{}
	g.State, _ = e.summary(ct)
	order := []string{RefusedProbeInFlight, RefusedOpen, RefusedHeldOpen, RefusedWriteInDoubt}
	rank, endless := -1, false
	var at instant
	var incidents []uint64
	if held != nil {
		w := *held
		g.Write = &w
		rank, at = len(order)-1, fromTime(held.Until)
	}
	for _, b := range refusing {
		reason, _, _ := e.stand(b, ask.Agent)
		rank = max(rank, slices.Index(order, reason))
		t := b.retryAt // zero under a hold without an end
		if reason == RefusedProbeInFlight {
			t = e.freeAt(b)
		}
		endless = endless || t == 0
		at = max(at, t)
		v := e.view(b)
		v.Reason = reason
		g.Breakers = append(g.Breakers, v)
		if b.incident != 0 {
			incidents = append(incidents, b.incident)
		}
	}
	g.Reason = order[rank]
	if !endless {
		g.RetryAt = at.time()
	}
	e.seq++
	e.asked(ask.Labels, g.Reason, incidents)
	return g
}

// maxAsks bounds the different answers counted between two drains; past it they
// are counted without their labels.
const maxAsks = 100_000

// asked counts an answer, by minute.
func (e *Engine) asked(l Labels, reason string, incidents []uint64) {
	if len(e.asks) >= maxAsks {
		l = Labels{}
	}
	key := askKey{labels: l, minute: e.now / minute, reason: reason}
	copy(key.incidents[:], incidents)
	a := e.asks[key]
	if a == nil {
		a = &Asked{Labels: l, At: e.now.time(), Reason: reason, Incidents: incidents}
		e.asks[key] = a
	}
	a.N++
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
	if e.seen.heard(e.now, p.key()) {
		return true, e.seq, nil
	}
	e.seq++
	e.settle(e.leaseOf(p))
	return false, e.seq, nil
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
	l := e.leaseOf(p)
	if l == nil || l.Expired {
		return time.Time{}, e.seq, ErrLeaseOver
	}
	timeout = min(max(timeout, 0), time.Duration(l.Max-l.Granted))
	l.Deadline = max(l.Deadline, min(e.now+instant(timeout+LeaseMargin), l.Max))
	e.seq++
	for _, b := range l.slots {
		e.touch(b)
	}
	return l.Deadline.time(), e.seq, nil
}

// Control puts a control on a breaker, making it if it was not seen yet. The
// error names what is wrong with the breaker's name or the control.
func (e *Engine) Control(now time.Time, c Control) (View, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	b, err := e.named(c.Breaker)
	if err != nil {
		return View{}, e.seq, err
	}
	if c.For < 0 {
		return View{}, e.seq, fmt.Errorf("for: %s is negative", c.For)
	}
	ch := change{actor: c.Actor, detail: c.Reason, at: e.now}
	until := instant(0)
	if c.For > 0 {
		until = e.now + instant(c.For)
	}
	hold := &override{Op: c.Op, Actor: c.Actor, Reason: c.Reason, Until: until}
	switch c.Op {
	case OpAuto:
		if b.override == nil {
			return e.view(b), e.seq, nil
		}
		ch.reason = ReasonAuto
		b.override = nil
		b.forget()
		e.close(b, ch)
	case OpReset:
		ch.reason = ReasonReset
		b.override = nil
		b.forget()
		e.close(b, ch)
	case OpHoldOpen:
		ch.reason = ReasonHoldOpen
		held := b.override != nil && b.override.Op == OpHoldOpen
		hold.Over = held && b.override.Over || !held && b.state != Closed
		b.override = hold
		if b.incident == 0 {
			b.openedAt = e.now
			b.cause = 0
		}
		e.moveWith(b, Open, ch, func() { b.retryAt = until })
	case OpHoldClosed, OpObserve:
		ch.reason = ReasonHoldClosed
		if c.Op == OpObserve {
			ch.reason = ReasonObserve
		}
		b.override = hold
		e.close(b, ch)
	default:
		return View{}, e.seq, fmt.Errorf("op: unknown control %q: known are %s, %s, %s, %s, %s",
			c.Op, OpReset, OpHoldOpen, OpHoldClosed, OpObserve, OpAuto)
	}
	e.seq++
	return e.view(b), e.seq, nil
}

// named finds or makes the breaker of this name.
func (e *Engine) named(name string) (*breaker, error) {
	ruleName, labels, err := ParseName(name)
	if err != nil {
		return nil, err
	}
	rules := e.byName[ruleName]
	if len(rules) == 0 {
		return nil, fmt.Errorf("breaker %q: unknown rule %q: known are %s", name, ruleName, strings.Join(e.ruleNames(), ", "))
	}
	for _, r := range rules {
		if r.covers(&labels) && r.key(&labels) == labels {
			b := e.breaker(r, labels)
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
	defer e.mu.Unlock()
	if len(e.transitions)+len(e.dirty)+len(e.evicted) > 0 && e.seq == e.drained {
		e.seq++ // brought about by time while somebody only looked
	}
	batch := Batch{From: e.drained, To: e.seq, Transitions: e.transitions, Outcomes: e.outcomes, Routes: e.routes, Writes: e.freshWrites(), Evicted: e.evicted, Clock: e.clock()}
	batch.Heard = e.seen.list(len(e.seen.queue) - e.seen.fresh)
	e.seen.fresh = 0
	for _, a := range e.asks {
		batch.Asks = append(batch.Asks, *a)
	}
	slices.SortFunc(batch.Asks, func(a, b Asked) int {
		return cmp.Or(a.At.Compare(b.At), byLabels(&a.Labels, &b.Labels), cmp.Compare(a.Reason, b.Reason))
	})
	for _, b := range e.dirty {
		if b.dirty {
			batch.States = append(batch.States, b.save())
			b.dirty = false
		}
	}
	e.drained = e.seq
	e.transitions, e.outcomes, e.routes, e.evicted = nil, nil, nil, nil
	clear(e.asks)
	e.dirty = e.dirty[:0]
	return batch
}

// Backlog counts what waits for Drain, in entries.
func (e *Engine) Backlog() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.transitions) + len(e.outcomes) + len(e.routes) + len(e.doubts.fresh) + len(e.asks) + e.seen.fresh
}

func (e *Engine) clock() Clock {
	return Clock{Now: e.now.time(), Era: e.era, Permit: e.permits, Seq: e.seq}
}
