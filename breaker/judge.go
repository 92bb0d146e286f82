package breaker

import (
	"slices"
	"time"
)

// judge makes the judgements that need history: whether a time-out was the
// caller's haste, whether an unreachable machine is the caller's own network,
// and whether a silent local model is only being loaded. History goes by the
// ends of the calls.
type judge struct {
	targets  map[uint64]*target // by the hash of machine and model
	known    int                // targets there are
	agents   map[string]*contacts
	machines map[string]*reach
	latest   *contacts // of the agent that reported last, to find it at once
	touched  []remembered
	// cleared counts how often a bound was reached and everything forgotten.
	cleared int
}

// target is what a machine's model has answered lately, by the minute.
type target struct {
	of       *Labels        // of a call to it
	next     *target        // with the same hash
	reach    *reach         // of its machine
	recent   answerMinute   // the latest minute with an answer
	older    []answerMinute // those before it, at most hasteMinutes, in no order
	last     instant        // the last answer's end
	coldFrom instant        // the first time-out of the present cold start
	permits  *permits       // nil: none was followed
	dirty    bool
}

type answerMinute struct {
	Fastest time.Duration `json:"fastest"`
	Index   int32         `json:"i"` // minutes since 1970
	N       uint32        `json:"n"`
	Last    instant       `json:"last,omitempty"` // the end of the latest of them
}

// contacts is what an agent has reached and failed to reach lately.
type contacts struct {
	agent   string
	reached instant
	failed  []contact // unreachable machines, oldest first
	// word is when the agent last took a permit or reported by one, returned when
	// it last gave a permit's word; both only where permits are followed.
	word, returned instant
	dirty          bool
}

// reach is which two agents have reached a machine last.
type reach struct {
	machine string
	by      [2]contact
	dirty   bool
}

// contact is a machine, or an agent, and when.
type contact struct {
	Who string  `json:"who"`
	At  instant `json:"at"`
}

// remembered is a target, an agent's contacts or a machine's reach.
type remembered interface {
	// copy copies it for whoever writes it.
	copy(*copier) savedLately
	// taken notes that it was.
	taken()
}

const (
	hasteMinutes = 10
	hasteSpan    = hasteMinutes * minute
	hasteAnswers = 5
	offlineSpan  = instant(2 * time.Minute)
	coldAfter    = instant(5 * time.Minute)
	coldFor      = instant(3 * time.Minute)
	maxHistory   = 100_000                   // targets, agents, machines each
	maxFailed    = 64                        // unreachable machines kept for an agent
	keepFailed   = instant(15 * time.Minute) // calls may be told late
	minute       = instant(time.Minute)
)

func newJudge() judge {
	return judge{targets: map[uint64]*target{}, agents: map[string]*contacts{}, machines: map[string]*reach{}}
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
func (j *judge) cause(o *Outcome, ct *circuit, ended instant) Cause {
	cause := o.Cause
	t := ct.target
	switch cause {
	case Timeout:
		loads := ct.local && t.silent(ended)
		if loads {
			j.cold(t, ended)
		}
		switch {
		case o.Timeout > 0 && t.hasty(ended, o.Timeout):
			return CallerTimeout
		case loads && ended-t.coldFrom < coldFor:
			return Loading
		}
	case Unreachable:
		if j.offline(o.Agent, o.Machine, ended) {
			return CallerOffline
		}
	case OK:
		t.last = max(t.last, ended)
		if o.Duration > 0 { // one of an unknown length says nothing of speed
			t.add(ended, o.Duration)
		}
		j.touchTarget(t)
	}
	if !notReached.has(cause) {
		j.reached(o.Agent, t.reach, ended)
	}
	return cause
}

// silent tells whether the model had not answered for long at that time.
func (t *target) silent(at instant) bool { return t.last == 0 || at-t.last >= coldAfter }

// cold takes a time-out into the present cold start: it began with the first of
// them, by their ends, unless an answer told later came too shortly before it.
func (j *judge) cold(t *target, ended instant) {
	if t.coldFrom == 0 || ended < t.coldFrom || !t.silent(t.coldFrom) {
		t.coldFrom = ended
		j.touchTarget(t)
	}
}

func (j *judge) touchTarget(t *target) {
	if !t.dirty {
		t.dirty = true
		j.touched = append(j.touched, t)
	}
}

// room makes sure that one more fits: what is lost at the bound is minutes of
// hints, and only under a flood of invented names.
func (j *judge) room(n int) {
	if n >= maxHistory {
		touched, cleared := j.touched, j.cleared
		*j = newJudge()
		j.touched, j.cleared = touched, cleared+1
	}
}

// target finds or makes the target of calls with these labels, which are kept.
// Made is the memory that a new one takes; nil for its own.
func (j *judge) target(l *Labels, made *target) *target {
	hash := (&Labels{Machine: l.Machine, Model: l.Model, Provider: l.Machine}).hash(false)
	t := j.targets[hash]
	for t != nil && (t.of.Machine != l.Machine || t.of.Model != l.Model) {
		t = t.next
	}
	if t == nil {
		j.room(j.known)
		if t = made; t == nil {
			t = &target{}
		}
		*t = target{of: l, reach: j.machine(l.Machine)}
		t.next, j.targets[hash] = j.targets[hash], t
		j.known++
	}
	return t
}

func (j *judge) agent(name string) *contacts {
	if j.latest != nil && j.latest.agent == name {
		return j.latest
	}
	c := j.agents[name]
	if c == nil {
		j.room(len(j.agents))
		c = &contacts{agent: name}
		j.agents[name] = c
	}
	j.latest = c
	return c
}

func (j *judge) machine(name string) *reach {
	m := j.machines[name]
	if m == nil {
		j.room(len(j.machines))
		m = &reach{machine: name}
		j.machines[name] = m
	}
	return m
}

func (t *target) add(ended instant, took time.Duration) {
	index := int32(ended / minute)
	now := answerMinute{Fastest: took, Index: index, N: 1, Last: ended}
	switch m := &t.recent; {
	case m.N == 0:
		*m = now
	case m.Index == index:
		m.add(now)
	case m.Index < index:
		now, *m = *m, now
		fallthrough
	default:
		t.remember(now)
	}
}

// remember takes a minute among the older ones.
func (t *target) remember(minute answerMinute) {
	oldest := 0
	for i := range t.older {
		m := &t.older[i]
		if m.Index == minute.Index {
			m.add(minute)
			return
		}
		if m.Index < t.older[oldest].Index {
			oldest = i
		}
	}
	switch {
	case len(t.older) < hasteMinutes:
		t.older = append(t.older, minute)
	case t.older[oldest].Index < minute.Index:
		t.older[oldest] = minute
	}
}

func (m *answerMinute) add(other answerMinute) {
	m.N += other.N
	m.Fastest = min(m.Fastest, other.Fastest)
	m.Last = max(m.Last, other.Last)
}

// hasty tells whether a limit was below the fastest of enough answers.
func (t *target) hasty(ended instant, limit time.Duration) bool {
	now, n := int32(ended/minute), uint32(0)
	within := func(m answerMinute) bool {
		return m.N > 0 && m.Index <= now && ended-m.Last <= hasteSpan
	}
	for _, m := range t.older {
		if within(m) {
			if m.Fastest <= limit {
				return false
			}
			n += m.N
		}
	}
	if within(t.recent) {
		if t.recent.Fastest <= limit {
			return false
		}
		n += t.recent.N
	}
	return n >= hasteAnswers
}

func (j *judge) touchAgent(c *contacts) {
	if !c.dirty {
		c.dirty = true
		j.touched = append(j.touched, c)
	}
}

func (j *judge) reached(agent string, m *reach, at instant) {
	c := j.agent(agent)
	c.reached = max(c.reached, at)
	j.touchAgent(c)
	if !m.dirty {
		m.dirty = true
		j.touched = append(j.touched, m)
	}
	first, second := &m.by[0], &m.by[1]
	switch {
	case first.Who == c.agent || first.Who == "":
		*first = contact{c.agent, max(first.At, at)}
	case at >= first.At:
		*first, *second = contact{c.agent, at}, *first
	case at >= second.At:
		*second = contact{c.agent, at}
	}
}

// offline takes an unreachable machine into the agent's history and tells
// whether the fault is the agent's own network.
func (j *judge) offline(agent, machine string, at instant) bool {
	c := j.agent(agent)
	// Calls are told out of order: what is too old for this one may be young
	// enough for the next.
	c.failed = slices.DeleteFunc(c.failed, func(f contact) bool { return at-f.At > keepFailed })
	c.failed = append(c.failed, contact{machine, at})
	if len(c.failed) > maxFailed {
		c.failed = slices.Delete(c.failed, 0, 1)
	}
	j.touchAgent(c)
	if c.reached != 0 && at-c.reached <= offlineSpan {
		return false
	}
	lately := func(f contact) bool { return at-f.At <= offlineSpan }
	first, others := at, false
	for _, f := range c.failed {
		if lately(f) {
			first = min(first, f.At)
			others = others || f.Who != machine
		}
	}
	if !others { // fewer than two machines
		return false
	}
	for _, f := range c.failed {
		if !lately(f) {
			continue
		}
		if m := j.machines[f.Who]; m != nil {
			for _, reach := range m.by {
				if reach.Who != "" && reach.Who != agent && reach.At > first {
					return true
				}
			}
		}
	}
	return false
}

// savedLately is the stored form of what is remembered: Kind says of what.
// Fields are only ever added; a meaning that changes gets a new name.
type savedLately struct {
	Kind     string         `json:"kind"` // agent, machine or target
	Name     string         `json:"name"`
	Model    string         `json:"model,omitempty"`
	At       instant        `json:"at"` // of the last of it
	Minutes  []answerMinute `json:"minutes,omitempty"`
	ColdFrom instant        `json:"cold_from,omitempty"`
	Failed   []contact      `json:"failed,omitempty"`
	By       []contact      `json:"by,omitempty"`
	Permits  *savedPermits  `json:"permits,omitempty"`
	Word     instant        `json:"word,omitempty"`
	Returned instant        `json:"returned,omitempty"`
}

const (
	kindAgent   = "agent"
	kindMachine = "machine"
	kindTarget  = "target"
)

func (t *target) copy(c *copier) savedLately {
	minutes := put(c, &c.minutes, t.older...)
	if t.recent.N > 0 {
		minutes = put(c, &c.minutes, append(minutes, t.recent)...)
	}
	return savedLately{Kind: kindTarget, Name: t.of.Machine, Model: t.of.Model, At: t.last, Minutes: minutes, ColdFrom: t.coldFrom, Permits: t.permits.save()}
}

func (a *contacts) copy(c *copier) savedLately {
	return savedLately{Kind: kindAgent, Name: a.agent, At: a.reached, Failed: put(c, &c.contacts, a.failed...), Word: a.word, Returned: a.returned}
}

func (m *reach) copy(c *copier) savedLately {
	n := 0
	for n < len(m.by) && m.by[n].Who != "" {
		n++
	}
	return savedLately{Kind: kindMachine, Name: m.machine, At: max(m.by[0].At, m.by[1].At), By: put(c, &c.contacts, m.by[:n]...)}
}

// drain copies what was touched since the last time.
func (j *judge) drain(c *copier) {
	c.lately = slices.Grow(c.lately, len(j.touched))
	for _, r := range j.touched {
		c.lately = append(c.lately, r.copy(c))
		r.taken()
	}
	j.touched = emptied(j.touched)
}

// all copies what is remembered, as far as anything is known.
func (j *judge) all(c *copier) {
	for _, t := range j.targets {
		for ; t != nil; t = t.next {
			if t.last == 0 && t.coldFrom == 0 && t.permits == nil {
				continue
			}
			c.lately = append(c.lately, t.copy(c))
		}
	}
	for _, a := range j.agents {
		if a.reached != 0 || len(a.failed) > 0 || a.word != 0 {
			c.lately = append(c.lately, a.copy(c))
		}
	}
	for _, m := range j.machines {
		if m.by[0].Who != "" {
			c.lately = append(c.lately, m.copy(c))
		}
	}
}

// emptied is the list without its entries, and without its memory when that is
// more than most batches need.
func emptied[T any](list []T) []T {
	if cap(list) > maxSpare {
		return nil
	}
	clear(list)
	return list[:0]
}

func (t *target) taken()   { t.dirty = false }
func (a *contacts) taken() { a.dirty = false }
func (m *reach) taken()    { m.dirty = false }

// restoreLately takes back what is remembered.
func (e *Engine) restoreLately(list []Lately) {
	j := &e.judge
	for i := range list {
		s := list[i].full
		switch s.Kind {
		case kindTarget:
			t := j.target(&Labels{Machine: s.Name, Model: s.Model}, nil)
			t.last, t.coldFrom = s.At, s.ColdFrom
			if n := len(s.Minutes); n > 0 {
				t.recent, t.older = s.Minutes[n-1], slices.Clone(s.Minutes[:n-1])
			}
			e.restorePermits(t, s.Permits)
		case kindAgent:
			c := j.agent(s.Name)
			c.reached, c.failed, c.word, c.returned = s.At, slices.Clone(s.Failed), s.Word, s.Returned
		case kindMachine:
			copy(j.machine(s.Name).by[:], s.By)
		}
	}
}
