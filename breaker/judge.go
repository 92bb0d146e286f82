package breaker

import (
	"strings"
	"time"
)

// judge makes the judgements that need history: whether a time-out was the
// caller's haste, whether an unreachable machine is the caller's own network,
// and whether a silent local model is only being loaded. History goes by the
// ends of the calls.
type judge struct {
	targets  map[target]*answers
	agents   map[string]*contacts
	machines map[string]*[2]contact
}

type target struct{ machine, model string }

// answers is what a target has answered lately, in minutes.
type answers struct {
	minutes  [hasteMinutes]answerMinute
	last     instant // the last answer's end
	coldFrom instant // the first time-out of the present cold start
}

type answerMinute struct {
	index   int64
	n       int
	fastest time.Duration
}

// contacts is what an agent has reached and failed to reach lately.
type contacts struct {
	reached instant
	failed  []contact // unreachable, oldest first
}

type contact struct {
	who string // a machine, or an agent
	at  instant
}

const (
	hasteMinutes = 10
	hasteAnswers = 5
	offlineSpan  = instant(2 * time.Minute)
	coldAfter    = instant(5 * time.Minute)
	coldFor      = instant(3 * time.Minute)
	maxHistory   = 100_000 // targets, agents, machines each
	maxFailed    = 64      // unreachable machines kept for an agent
	minute       = instant(time.Minute)
)

// savedLately is the stored form of one of them: Kind says which. Fields are
// only ever added; a meaning that changes gets a new name.
type savedLately struct {
	Kind    string  `json:"kind"` // agent, machine or target
	Agent   string  `json:"agent,omitempty"`
	Machine string  `json:"machine,omitempty"`
	Model   string  `json:"model,omitempty"`
	At      instant `json:"at"`
}

func (s *savedLately) key() string {
	return strings.Join([]string{s.Kind, s.Agent, s.Machine, s.Model}, "\x1f")
}

func newJudge() judge {
	return judge{map[target]*answers{}, map[string]*contacts{}, map[string]*[2]contact{}}
}

// notReached are the causes after which nobody can say that the machine was
// reached: what the built-in reachability rule counts as failure or ignores.
var notReached = func() causeSet {
	set, _, _ := parseCauseSet([]string{
		"refused", "unreachable", "connect_timeout", "tls", "timeout", "reset", "neutral", "caller_timeout", "caller_offline",
	})
	return set
}()

// cause gives the outcome its final cause and takes it into the history.
func (j *judge) cause(o *Outcome, ended instant, local bool) Cause {
	cause := o.Cause
	switch cause {
	case Timeout:
		a := j.answers(o)
		if o.Timeout > 0 && a.hasty(ended, o.Timeout) {
			return CallerTimeout
		}
		if local && ended-a.last >= coldAfter {
			if a.coldFrom == 0 || a.coldFrom < a.last {
				a.coldFrom = ended
			}
			if ended-a.coldFrom < coldFor {
				return Loading
			}
		}
	case Unreachable:
		if j.offline(o.Agent, o.Machine, ended) {
			return CallerOffline
		}
	case OK:
		a := j.answers(o)
		a.last = max(a.last, ended)
		a.coldFrom = 0
		a.add(ended, o.Duration)
	}
	if !notReached.has(cause) {
		j.reached(o.Agent, o.Machine, ended)
	}
	return cause
}

func (j *judge) answers(o *Outcome) *answers {
	key := target{o.Machine, o.Model}
	a := j.targets[key]
	if a == nil {
		bound(j.targets)
		a = &answers{}
		j.targets[key] = a
	}
	return a
}

// bound empties a map that has grown to its bound: what is lost is ten minutes
// of hints, and only under a flood of invented names.
func bound[K comparable, V any](m map[K]V) {
	if len(m) >= maxHistory {
		clear(m)
	}
}

func (a *answers) add(ended instant, took time.Duration) {
	i := int64(ended / minute)
	m := &a.minutes[i%hasteMinutes]
	if m.index > i {
		return // older than anything that is kept
	}
	if m.index < i || m.n == 0 {
		*m = answerMinute{index: i, fastest: took}
	}
	m.n++
	m.fastest = min(m.fastest, took)
}

// hasty tells whether a limit was below the fastest of enough answers.
func (a *answers) hasty(ended instant, limit time.Duration) bool {
	now, n := int64(ended/minute), 0
	for _, m := range a.minutes {
		if m.index > now-hasteMinutes && m.index <= now && m.n > 0 {
			if m.fastest <= limit {
				return false
			}
			n += m.n
		}
	}
	return n >= hasteAnswers
}

func (j *judge) agent(name string) *contacts {
	c := j.agents[name]
	if c == nil {
		bound(j.agents)
		c = &contacts{}
		j.agents[name] = c
	}
	return c
}

func (j *judge) reached(agent, machine string, at instant) {
	c := j.agent(agent)
	c.reached = max(c.reached, at)
	m := j.machines[machine]
	if m == nil {
		bound(j.machines)
		m = &[2]contact{}
		j.machines[machine] = m
	}
	if m[0].who == agent || m[0].who == "" {
		m[0] = contact{agent, max(m[0].at, at)}
		return
	}
	if at >= m[0].at {
		m[0], m[1] = contact{agent, at}, m[0]
	} else if at >= m[1].at {
		m[1] = contact{agent, at}
	}
}

// offline takes an unreachable machine into the agent's history and tells
// whether the fault is the agent's own network.
func (j *judge) offline(agent, machine string, at instant) bool {
	c := j.agent(agent)
	kept := c.failed[:0]
	for _, f := range c.failed {
		if at-f.at <= offlineSpan && len(kept) < maxFailed {
			kept = append(kept, f)
		}
	}
	c.failed = append(kept, contact{machine, at})
	if c.reached != 0 && at-c.reached <= offlineSpan {
		return false
	}
	first, others := at, false
	for _, f := range c.failed {
		first = min(first, f.at)
		others = others || f.who != machine
	}
	if !others { // fewer than two machines
		return false
	}
	for _, f := range c.failed {
		if m := j.machines[f.who]; m != nil {
			for _, reach := range m {
				if reach.who != "" && reach.who != agent && reach.at > first {
					return true
				}
			}
		}
	}
	return false
}
