package breaker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// savedState is the stored form of a breaker. Fields are only ever added; a
// meaning that changes gets a new name.
type savedState struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
	Labels
	State    State   `json:"state"`
	Era      uint64  `json:"era"`
	EraAt    instant `json:"era_at,omitempty"`
	OpenedAt instant `json:"opened_at,omitempty"`
	RetryAt  instant `json:"retry_at,omitempty"`
	Floor    instant `json:"floor,omitempty"`
	Cause    Cause   `json:"cause,omitempty"`
	Exponent int     `json:"exponent,omitempty"`
	ClosedAt instant `json:"closed_at,omitempty"`
	Incident uint64  `json:"incident,omitempty"`
	Probes   int     `json:"probes,omitempty"`

	Run       int          `json:"run,omitempty"`
	RunCauses tally        `json:"run_causes,omitempty"`
	RunAgents []string     `json:"run_agents,omitempty"`
	RunModels []string     `json:"run_models,omitempty"`
	Calls     *savedCalls  `json:"calls,omitempty"`
	Span      *span        `json:"span,omitempty"`
	Last      *LastFailure `json:"last,omitempty"`

	Good     int       `json:"good,omitempty"`
	Lost     int       `json:"lost,omitempty"`
	Leases   []lease   `json:"leases,omitempty"` // live and expired
	Override *override `json:"override,omitempty"`

	Agents       map[string]instant `json:"agents,omitempty"`
	Models       map[string]instant `json:"models,omitempty"`
	FailedProber string             `json:"failed_prober,omitempty"`
	// OtherAsked is of snapshots before Asked: when somebody else had asked.
	OtherAsked instant            `json:"other_asked,omitempty"`
	Asked      map[string]instant `json:"asked,omitempty"`
	WouldTrip  int                `json:"would_trip,omitempty"`
	WouldSet   bool               `json:"would_set,omitempty"`
	WouldEra   uint64             `json:"would_era,omitempty"`
	Used       instant            `json:"used,omitempty"`
}

// copier copies breakers for whoever writes them, into a few large pieces of
// memory: it is all that storing costs under the engine's lock.
type copier struct {
	piece     int // how much memory is taken at a time, in breakers
	states    []Saved
	breakers  []breaker
	calls     []calls
	bits      []uint64
	causes    []Cause
	faults    []faults
	pasts     []past
	watchers  []watchers
	reporters []reporter
	lately    []savedLately
	minutes   []answerMinute
	contacts  []contact
	list      []Lately
}

// newCopier makes one for n breakers, out of a used one when there is one.
func newCopier(used *copier, n int) *copier {
	c := used
	if c == nil {
		c = &copier{}
	}
	c.piece = min(n, 1024)
	c.states = slices.Grow(c.states, n)
	return c
}

// used is the copier without its copies, which nobody reads any more; nil when
// it has more memory than most batches need.
func (c *copier) used() *copier {
	if c == nil || cap(c.states) > maxSpare || cap(c.lately) > maxSpare {
		return nil
	}
	return &copier{
		states: emptied(c.states), breakers: emptied(c.breakers), calls: emptied(c.calls), bits: emptied(c.bits), causes: emptied(c.causes),
		faults: emptied(c.faults), pasts: emptied(c.pasts), watchers: emptied(c.watchers), reporters: emptied(c.reporters),
		lately: emptied(c.lately), minutes: emptied(c.minutes), contacts: emptied(c.contacts), list: emptied(c.list),
	}
}

// put copies all of from to the end of a slab and returns the copy. A slab that
// is full is left to its copies, and a larger one begun.
func put[T any](c *copier, slab *[]T, from ...T) []T {
	if len(*slab)+len(from) > cap(*slab) {
		*slab = make([]T, 0, max(c.piece, len(from), min(2*cap(*slab), maxSpare)))
	}
	start := len(*slab)
	*slab = append(*slab, from...)
	return (*slab)[start:len(*slab):len(*slab)]
}

// add copies a breaker's whole state, sharing nothing that changes.
func (c *copier) add(from *breaker) {
	b := &put(c, &c.breakers, *from)[0]
	b.next = nil
	if w := from.calls; w != nil {
		b.calls = &put(c, &c.calls, *w)[0]
		b.calls.bits, b.calls.failed = put(c, &c.bits, w.bits...), put(c, &c.causes, w.failed...)
	}
	if from.span != nil {
		w := from.span.clone()
		b.span = &w
	}
	if f := from.faults; f != nil {
		b.faults = &put(c, &c.faults, *f)[0]
		b.faults.causes = slices.Clone(f.causes)
	}
	if p := from.past; p != nil {
		b.past = &put(c, &c.pasts, *p)[0]
		b.past.leases, b.past.expired = copyLeases(p.leases), copyLeases(p.expired)
		if p.override != nil {
			o := *p.override
			b.past.override = &o
		}
	}
	if w := from.who; w != nil {
		b.who = &put(c, &c.watchers, *w)[0]
		b.who.asked = put(c, &c.reporters, w.asked...)
		b.who.agents, b.who.models = put(c, &c.reporters, w.agents...), put(c, &c.reporters, w.models...)
		b.who.runAgents, b.who.runModels = slices.Clone(w.runAgents), slices.Clone(w.runModels)
		b.who.window = slices.Clone(w.window)
	}
	c.states = append(c.states, Saved{
		Rule: b.rule.Name, Labels: b.labels(), State: b.state, Era: b.era, RetryAt: b.retryAt.time(), kept: b,
	})
}

func copyLeases(list []*lease) []*lease {
	if len(list) == 0 {
		return nil
	}
	copies := make([]*lease, len(list))
	for i, l := range list {
		one := *l
		one.slots = nil
		copies[i] = &one
	}
	return copies
}

// named gives the states with their names, and what was done lately with its
// keys and the time from when on it gets old: nothing here needs a lock.
func (c *copier) named(now instant) ([]Saved, []Lately) {
	var text strings.Builder
	var buf [512]byte
	// add writes a word and gives it. The text holds many, so that none is a piece
	// of memory of its own; what was given stays when the text grows.
	add := func(word []byte) string {
		start := text.Len()
		text.Write(word)
		return text.String()[start:]
	}
	text.Grow(64*len(c.states) + 48*len(c.lately))
	for i := range c.states {
		s := &c.states[i]
		s.Name = add(appendName(buf[:0], s.Rule, &s.Labels))
	}
	for i := range c.lately {
		l := &c.lately[i]
		c.list = append(c.list, Lately{Key: add(l.appendKey(buf[:0])), At: now.time(), full: l})
	}
	return c.states, c.list
}

// appendKey appends a key that is unique: its parts are separated by what no
// label holds.
func (s *savedLately) appendKey(to []byte) []byte {
	to = append(to, s.Kind...)
	to = append(append(to, '\x1f'), s.Name...)
	return append(append(to, '\x1f'), s.Model...)
}

// saved is the stored form of a breaker that nobody changes meanwhile.
func (b *breaker) saved() savedState {
	f, p, w := b.failures(), b.was(), b.witnesses()
	s := savedState{
		Name: b.name(), Rule: b.rule.Name, Labels: b.labels(),
		State: b.state, Era: b.era, EraAt: b.eraAt, OpenedAt: p.openedAt, RetryAt: b.retryAt, Floor: f.floor,
		Cause: b.cause, Exponent: int(p.exponent), ClosedAt: p.closedAt, Incident: p.incident, Probes: int(p.probes),
		Run: int(b.run), RunCauses: f.causes, RunAgents: w.runAgents, RunModels: w.runModels,
		Calls: b.calls.save(b.rule, w.window), Span: b.span, Last: f.last.view(),
		Good: int(p.good), Lost: int(p.lost), Override: p.override,
		Agents: saveReporters(w.agents), Models: saveReporters(w.models),
		FailedProber: w.failedProber, Asked: saveReporters(w.asked),
		WouldTrip: int(p.would), WouldSet: p.wouldSet, WouldEra: p.wouldEra, Used: b.used,
	}
	if b.span != nil && len(b.span.buckets) == 0 {
		s.Span = nil
	}
	for _, l := range slices.Concat(p.leases, p.expired) {
		s.Leases = append(s.Leases, *l)
	}
	return s
}

// whole is the stored form of all of it.
func (s *Saved) whole() *savedState {
	switch {
	case s.full != nil:
		return s.full
	case s.kept != nil:
		full := s.kept.saved()
		return &full
	}
	return &savedState{Name: s.Name, Rule: s.Rule, Labels: s.Labels, State: s.State, Era: s.Era, RetryAt: fromTime(s.RetryAt)}
}

func saveReporters(list []reporter) map[string]instant {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]instant, len(list))
	for _, r := range list {
		m[r.who] = r.at
	}
	return m
}

// restoreReporters gives back the latest need reporters.
func restoreReporters(saved map[string]instant, need int) []reporter {
	var list []reporter
	for who, at := range saved {
		list = append(list, reporter{who, at})
	}
	slices.SortFunc(list, func(a, b reporter) int {
		return cmp.Or(cmp.Compare(b.at, a.at), strings.Compare(a.who, b.who))
	})
	return list[:min(len(list), need)]
}

// Snapshot is everything that the engine knows, as of now.
func (e *Engine) Snapshot() Snapshot {
	e.mu.Lock()
	now, n := e.now, 0
	for _, r := range e.rules {
		n += r.size
	}
	copies := newCopier(nil, n)
	snap := Snapshot{Clock: e.clock(), Heard: e.seen.list(0), Writes: e.writes()}
	for b := range e.every {
		copies.add(b)
	}
	e.judge.all(copies)
	e.mu.Unlock()
	snap.States, snap.Lately = copies.named(now)
	slices.SortFunc(snap.States, func(a, b Saved) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(snap.Lately, func(a, b Lately) int { return strings.Compare(a.Key, b.Key) })
	return snap
}

// Restore sets a new engine to a snapshot. Nothing is decided again: an open
// breaker has the rest of its wait left. What the configuration no longer has a
// rule for is closed with a transition that says so and is forgotten; a rule
// that only observes now opens what it held open. The error names a state that
// contradicts itself.
func (e *Engine) Restore(snap Snapshot) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.circuits.n > 0 || e.seq > 0 {
		return fmt.Errorf("restore: the engine is in use already")
	}
	clock := snap.Clock
	sizes := make(map[*rule]int)
	for i := range snap.States {
		for _, r := range e.byName[snap.States[i].Rule] {
			sizes[r]++
		}
	}
	for r, n := range sizes {
		r.breakers = make(map[uint64]*breaker, min(n, e.maxOf))
	}
	e.now, e.era, e.permits = fromTime(clock.Now), clock.Era, clock.Permit
	e.seq, e.drained = clock.Seq, clock.Seq
	e.recorded(&inputRestart{e.era, e.permits})
	for i := range snap.States {
		s := snap.States[i].whole()
		if s.Era > e.era {
			return fmt.Errorf("restore %s: era %d is past the engine's counter, %d", s.Name, s.Era, e.era)
		}
		r := e.ruleOf(s)
		if r == nil {
			e.orphan(s)
			continue
		}
		b := s.restore(r, e.leases)
		r.insert(b)
		if r.observe && b.state != Closed && b.held() == "" {
			e.close(b, change{reason: ReasonObserve, detail: "the rule only observes now", actor: "configuration", at: e.now})
		}
		e.schedule(b)
	}
	e.made++
	e.restoreLately(snap.Lately)
	for b := range e.every {
		if l := b.labels(); l.Machine != "" && e.circuits.n < maxCircuits {
			e.canonical(&l)
			// The circuit's labels serve for the breaker's own, unless its machine is
			// only another's alias by now.
			if ct := e.circuit(&l); b.rule.key(&ct.labels) == b.labels() {
				b.of = &ct.labels
			}
		}
	}
	for _, c := range snap.Heard {
		e.seen.heard(fromTime(c.At), c.Call)
	}
	e.seen.fresh = 0
	for _, w := range snap.Writes {
		e.doubts.byKey[w.Key] = &w
	}
	return nil
}

// ruleOf is the rule that the saved breaker belongs to now, nil for none.
func (e *Engine) ruleOf(s *savedState) *rule {
	for _, r := range e.byName[s.Rule] {
		if r.covers(&s.Labels) && r.key(&s.Labels) == s.Labels {
			return r
		}
	}
	return nil
}

// orphan closes and forgets a breaker whose rule is gone.
func (e *Engine) orphan(s *savedState) {
	if s.State != Closed || s.Incident != 0 {
		e.era++
		e.transitions = append(e.transitions, Transition{
			At: e.now.time(), Breaker: s.Name, Rule: s.Rule, Labels: s.Labels, From: s.State, To: Closed,
			Reason: ReasonReset, Detail: "the configuration has no such rule any more", Actor: "configuration",
			Era: e.era, Incident: s.Incident,
		})
	}
	e.evicted = append(e.evicted, s.Name)
}

func (s *savedState) restore(r *rule, leases map[uint64]*lease) *breaker {
	labels := s.Labels
	b := newBreaker(r, &labels)
	b.state, b.era, b.eraAt, b.retryAt, b.cause = s.State, s.Era, s.EraAt, s.RetryAt, s.Cause
	b.run, b.used = int32(s.Run), s.Used
	b.restoreCalls(s.Calls)
	if s.Span != nil && r.Trip.Window.Span > 0 {
		w := s.Span.clone()
		b.span = &w
	}
	if s.Last != nil || s.Floor != 0 || s.Run > 0 {
		f := b.fault()
		f.causes, f.floor = slices.Clone(s.RunCauses), s.Floor
		if l := s.Last; l != nil {
			f.last = lastFailure{fromTime(l.At), l.Agent, l.Model, l.Error, l.Duration, int32(l.Status), l.Cause}
		}
	}
	if s.Era != 0 || s.WouldSet {
		*b.history() = past{
			openedAt: s.OpenedAt, closedAt: s.ClosedAt, incident: s.Incident, override: s.Override,
			exponent: int32(s.Exponent), probes: int32(s.Probes), good: int32(s.Good), lost: int32(s.Lost),
			would: int32(s.WouldTrip), wouldSet: s.WouldSet, wouldEra: s.WouldEra,
		}
	}
	if w := b.watched(); w != nil {
		w.agents = restoreReporters(s.Agents, r.Trip.Witnesses)
		w.models = restoreReporters(s.Models, r.Trip.Models)
		w.runAgents, w.runModels = slices.Clone(s.RunAgents), slices.Clone(s.RunModels)
		w.failedProber, w.asked = s.FailedProber, restoreReporters(s.Asked, 2)
		if s.OtherAsked != 0 {
			w.asked = append(w.asked, reporter{at: s.OtherAsked})
		}
	}
	for _, saved := range s.Leases {
		// The same lease may hold slots in several breakers: it is one again.
		l := leases[saved.Num]
		if l == nil {
			l = &lease{}
			*l = saved
			leases[l.Num] = l
		}
		l.slots = append(l.slots, b)
		if l.Expired {
			b.history().expired = append(b.past.expired, l)
		} else {
			b.history().leases = append(b.past.leases, l)
		}
	}
	return b
}
