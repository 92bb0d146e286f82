package breaker

import (
	"fmt"
	"maps"
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
	OtherAsked   instant            `json:"other_asked,omitempty"`
	WouldTrip    int                `json:"would_trip,omitempty"`
	WouldSet     bool               `json:"would_set,omitempty"`
	WouldEra     uint64             `json:"would_era,omitempty"`
	Used         instant            `json:"used,omitempty"`
}

// save copies the breaker's whole state, sharing nothing that changes.
func (b *breaker) save() Saved {
	s := savedState{
		Name: b.name, Rule: b.rule.Name, Labels: b.labels,
		State: b.state, Era: b.era, EraAt: b.eraAt, OpenedAt: b.openedAt, RetryAt: b.retryAt, Floor: b.floor,
		Cause: b.cause, Exponent: b.exponent, ClosedAt: b.closedAt, Incident: b.incident, Probes: b.probes,
		Run: b.run, RunCauses: slices.Clone(b.runCauses), RunAgents: slices.Clone(b.runAgents), RunModels: slices.Clone(b.runModels),
		Calls: b.window.calls.save(), Good: b.good, Lost: b.lost,
		Agents: maps.Clone(b.agents), Models: maps.Clone(b.models),
		FailedProber: b.failedProber, OtherAsked: b.otherAsked,
		WouldTrip: b.wouldTrip, WouldSet: b.wouldSet, WouldEra: b.wouldEra, Used: b.used,
	}
	if len(b.window.span.buckets) > 0 {
		w := b.window.span.clone()
		s.Span = &w
	}
	if b.last != nil {
		last := *b.last
		s.Last = &last
	}
	if b.override != nil {
		o := *b.override
		s.Override = &o
	}
	for _, l := range slices.Concat(b.leases, b.expired) {
		c := *l
		c.slots = nil
		s.Leases = append(s.Leases, c)
	}
	saved := Saved{full: s}
	saved.fill()
	return saved
}

// fill copies what others may read out of the whole.
func (s *Saved) fill() {
	f := &s.full
	s.Name, s.Rule, s.Labels, s.State, s.Era, s.RetryAt = f.Name, f.Rule, f.Labels, f.State, f.Era, f.RetryAt.time()
}

// Snapshot is everything that the engine knows, as of now.
func (e *Engine) Snapshot() Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	snap := Snapshot{Clock: e.clock(), Heard: e.seen.list(0), Writes: e.writes()}
	for _, of := range e.breakers {
		for _, b := range of {
			snap.States = append(snap.States, b.save())
		}
	}
	slices.SortFunc(snap.States, func(a, b Saved) int { return strings.Compare(a.Name, b.Name) })
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
	if len(e.circuits) > 0 || e.seq > 0 {
		return fmt.Errorf("restore: the engine is in use already")
	}
	clock := snap.Clock
	e.now, e.era, e.permits = fromTime(clock.Now), clock.Era, clock.Permit
	e.seq, e.drained = clock.Seq, clock.Seq
	for i := range snap.States {
		s := &snap.States[i].full
		if s.Era > e.era {
			return fmt.Errorf("restore %s: era %d is past the engine's counter, %d", s.Name, s.Era, e.era)
		}
		r := e.ruleOf(s)
		if r == nil {
			e.orphan(s)
			continue
		}
		b := s.restore(r, e.leases)
		e.breakers[r][b.labels] = b
		if r.observe && b.state != Closed && b.override == nil {
			e.close(b, change{reason: ReasonObserve, detail: "the rule only observes now", actor: "configuration", at: e.now})
		}
		e.schedule(b)
	}
	e.made++
	for _, of := range e.breakers {
		for _, b := range of {
			if l := b.labels; l.Machine != "" {
				e.circuit(e.Canonical(l))
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
	b := &breaker{
		rule: r, labels: s.Labels, name: s.Name,
		state: s.State, era: s.Era, eraAt: s.EraAt, openedAt: s.OpenedAt, retryAt: s.RetryAt, floor: s.Floor,
		cause: s.Cause, exponent: s.Exponent, closedAt: s.ClosedAt, incident: s.Incident, probes: s.Probes,
		run: s.Run, runCauses: s.RunCauses, runAgents: s.RunAgents, runModels: s.RunModels,
		last: s.Last, good: s.Good, lost: s.Lost, override: s.Override,
		agents: s.Agents, models: s.Models, failedProber: s.FailedProber, otherAsked: s.OtherAsked,
		wouldTrip: s.WouldTrip, wouldSet: s.WouldSet, wouldEra: s.WouldEra, used: s.Used,
	}
	b.window.calls = s.Calls.restore(r)
	if s.Span != nil && r.Trip.Window.Span > 0 {
		b.window.span = *s.Span
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
			b.expired = append(b.expired, l)
		} else {
			b.leases = append(b.leases, l)
		}
	}
	return b
}
