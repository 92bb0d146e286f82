package breaker

import (
	"cmp"
	"slices"
	"time"
)

// summary is the worst state of the circuit's breakers, and the latest time at
// which one of them lets somebody ask again: zero when all are closed or one is
// held without an end.
func (e *Engine) summary(ct *circuit) (State, time.Time) {
	worst, at, endless := Closed, instant(0), false
	for _, b := range ct.breakers {
		if b == nil || b.state == Closed {
			continue
		}
		worst = max(worst, b.state)
		t := e.nextAsk(b)
		endless = endless || t == 0
		at = max(at, t)
	}
	if endless {
		at = 0
	}
	return worst, at.time()
}

// nextAsk is when the next asker may get through: zero for a closed breaker or
// a hold without an end.
func (e *Engine) nextAsk(b *breaker) instant {
	switch {
	case b.state == Open:
		return b.retryAt
	case b.state == HalfOpen && len(b.was().leases) >= b.rule.Concurrent:
		return e.freeAt(b)
	case b.state == HalfOpen:
		return e.now
	}
	return 0
}

// view is the breaker as others see it, now.
func (e *Engine) view(b *breaker) View {
	p := b.was()
	v := View{
		Name: b.name(), Rule: b.rule.Name, Labels: b.labels(), State: b.state,
		OpenedAt: p.openedAt.time(), RetryAt: e.nextAsk(b).time(),
		Era: b.era, EraAt: b.eraAt.time(), Incident: p.incident,
		Run: int(b.run), WouldTrip: int(p.would), Probes: int(p.probes),
	}
	v.Calls, v.Failures = b.inWindow(e.now)
	switch {
	case p.override != nil:
		o := p.override
		v.Override = &Override{Op: o.Op, Actor: o.Actor, Reason: o.Reason, Until: o.Until.time()}
		v.Reason = map[Op]string{OpHoldOpen: RefusedHeldOpen, OpHoldClosed: "held_closed", OpObserve: ReasonObserve}[o.Op]
	case b.rule.observe:
		v.Reason = ReasonObserve
	case b.state == Open:
		v.Reason = RefusedOpen
	case b.state == HalfOpen && len(p.leases) > 0:
		v.Reason = RefusedProbeInFlight
	}
	if b.state != Closed {
		v.Cause = b.cause
	}
	v.Last = b.failures().last.view()
	return v
}

// view is the failure as others see it, nil when there was none.
func (l *lastFailure) view() *LastFailure {
	if l.at == 0 {
		return nil
	}
	return &LastFailure{
		At: l.at.time(), Cause: l.cause, Agent: l.agent, Model: l.model,
		Error: l.text, Status: int(l.status), Duration: l.took,
	}
}

// Circuit looks at one circuit and changes nothing; Breakers are all that
// exist of it.
func (e *Engine) Circuit(now time.Time, l Labels) Circuit {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	e.canonical(&l)
	ct := e.look(&l)
	c := e.circuitView(ct, false)
	c.Agent = l.Agent
	return c
}

func (e *Engine) circuitView(ct *circuit, notClosed bool) Circuit {
	c := Circuit{Labels: ct.labels, Breakers: []View{}}
	c.State, c.RetryAt = e.summary(ct)
	for _, b := range ct.breakers {
		if b != nil && (!notClosed || b.state != Closed) {
			c.Breakers = append(c.Breakers, e.view(b))
		}
	}
	return c
}

// fits tells whether labels have every value that the filter names.
func fits(filter, l *Labels) bool {
	return (filter.Agent == "" || filter.Agent == l.Agent) && (filter.Machine == "" || filter.Machine == l.Machine) &&
		(filter.Model == "" || filter.Model == l.Model) && (filter.Provider == "" || filter.Provider == l.Provider)
}

func byLabels(a, b *Labels) int {
	return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Model, b.Model),
		cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Agent, b.Agent))
}

// Circuits lists the circuits that have been reported on or asked for, by
// machine, model, provider and agent. Empty labels and no states match all;
// Breakers are those that are not closed. An agent matters only where a rule
// has it in its scope.
func (e *Engine) Circuits(now time.Time, filter Labels, states ...State) []Circuit {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	filter = e.circuitKey(&filter)
	if name, ok := e.aliases[filter.Machine]; ok {
		filter.Machine = name
	}
	var found []*circuit
	for ct := range e.circuits.each {
		if fits(&filter, &ct.labels) {
			found = append(found, ct)
		}
	}
	list := make([]Circuit, 0, len(found))
	inTurns(e, found, func(ct *circuit) {
		e.refresh(ct)
		if state, _ := e.summary(ct); len(states) == 0 || slices.Contains(states, state) {
			list = append(list, e.circuitView(ct, true))
		}
	})
	slices.SortFunc(list, func(a, b Circuit) int { return byLabels(&a.Labels, &b.Labels) })
	return list
}

// inTurns does something with each of many things under the engine's lock, which
// the caller holds, and lets others have the lock now and then: a long list is
// not of one moment, and nobody who asks for a permit waits for it.
func inTurns[T any](e *Engine, things []T, do func(T)) {
	for i, thing := range things {
		if i%500 == 499 {
			e.mu.Unlock()
			e.mu.Lock()
		}
		do(thing)
	}
}

// Breakers lists breakers by name. Empty labels and no states match all.
func (e *Engine) Breakers(now time.Time, filter Labels, states ...State) []View {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	if name, ok := e.aliases[filter.Machine]; ok {
		filter.Machine = name
	}
	var found []*breaker
	for b := range e.every {
		if l := b.labels(); fits(&filter, &l) {
			found = append(found, b)
		}
	}
	list := make([]View, 0, len(found))
	inTurns(e, found, func(b *breaker) {
		if len(states) == 0 || slices.Contains(states, b.state) {
			list = append(list, e.view(b))
		}
	})
	slices.SortFunc(list, func(a, b View) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Breaker looks at one breaker; false when it does not exist.
func (e *Engine) Breaker(now time.Time, name string) (View, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	rule, labels, err := ParseName(name)
	if err != nil {
		return View{}, false
	}
	e.unalias(&labels)
	for _, r := range e.byName[rule] {
		if b := r.find(&labels); b != nil && b.labels() == labels {
			return e.view(b), true
		}
	}
	return View{}, false
}
