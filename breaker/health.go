package breaker

import (
	"slices"
	"strings"
	"time"
)

// reaches tells whether the rule is about whether a machine can be reached: its
// key is the machine alone and unreachable is a failure.
func (r *rule) reaches() bool { return r.scope == scopeMachine && r.fail.has(Unreachable) }

// BootCheck tells the engine what a machine's health check said when the
// service started. A machine that did not answer has its closed reachability
// breaker opened, with cause unreachable and detail as its evidence; an answer
// changes nothing. It returns the names of the breakers opened.
func (e *Engine) BootCheck(now time.Time, machine string, answered bool, detail string) ([]string, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	if answered {
		return nil, e.seq
	}
	return e.bootCheck(machine, detail), e.seq
}

// bootCheck opens the reachability breakers of a machine that did not answer.
func (e *Engine) bootCheck(machine, detail string) []string {
	e.recorded(&inputBootCheck{machine, detail})
	labels := Labels{Machine: e.Canonical(Labels{Machine: machine}).Machine}
	ch := change{
		reason: ReasonBootCheck, detail: "the health check at the start was not answered", cause: Unreachable,
		actor: "health check", at: e.now, evidence: &Evidence{Error: detail, Causes: []CauseCount{{Unreachable, 1}}},
	}
	var opened []string
	seen := make(map[string]bool)
	for _, r := range e.rules {
		if seen[r.Name] || !r.reaches() || !r.covers(&labels) {
			continue
		}
		seen[r.Name] = true
		b := e.breaker(r, &labels)
		if b == nil || b.state != Closed || b.held() != "" {
			continue
		}
		if r.observe {
			b.wouldOpen(e)
			continue
		}
		b.climb(e.now, Unreachable)
		e.open(b, ch)
		opened = append(opened, b.name())
	}
	if len(opened) > 0 {
		e.seq++
	}
	return opened
}

// HealthAnswered tells the engine that a machine's health check was answered:
// its open reachability breakers are due for a probe at once, though not before
// a Retry-After has passed. It closes nothing: only a real call does. It tells
// whether a probe became due earlier.
func (e *Engine) HealthAnswered(now time.Time, machine string) (bool, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	return e.healthAnswered(machine), e.seq
}

func (e *Engine) healthAnswered(machine string) bool {
	earlier := false
	for _, b := range e.unreachable(e.Canonical(Labels{Machine: machine}).Machine) {
		if due := max(e.now, b.failures().floor); due < b.retryAt {
			b.retryAt = due
			e.touch(b)
			earlier = true
		}
	}
	if earlier {
		e.recorded(&inputHealth{machine})
		e.seq++
	}
	return earlier
}

// unreachable are the machine's open reachability breakers whose wait is not
// over and that nobody holds.
func (e *Engine) unreachable(machine string) []*breaker {
	var list []*breaker
	for _, r := range e.rules {
		if !r.reaches() {
			continue
		}
		b := r.find(&Labels{Machine: machine})
		if b != nil && b.state == Open && b.held() == "" && b.retryAt > e.now {
			list = append(list, b)
		}
	}
	return list
}

// Unreachable lists, of the given machines, those that a health check may help:
// their reachability breaker is open and waits for its next probe.
func (e *Engine) Unreachable(now time.Time, machines []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	var list []string
	for _, name := range machines {
		if len(e.unreachable(name)) > 0 {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, strings.Compare)
	return list
}
