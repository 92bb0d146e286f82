package breaker

import (
	"hash/maphash"
	"slices"
	"strings"
)

// circuit is what calls with the same labels pass through, with shortcuts to
// everything that they touch.
type circuit struct {
	labels   Labels
	next     *circuit // with the same place in the table
	set      *ruleSet
	breakers []*breaker  // for each rule of the set; nil where there is none yet
	first    [1]*breaker // the memory of a single one
	target   *target
	refusal  *refusal // the last one, nil for none
	asked    int32    // where answers are counted, good for one drain
	askedIn  uint32   // which it was
	made     uint32   // the engine's counters when the shortcuts were set
	gone     uint32
	cleared  uint32
	full     bool // no breaker is missing
	local    bool
}

// ruleSet is the rules that a call passes through: of each name the first whose
// match fits. Circuits with the same ones share it.
type ruleSet struct {
	rules []*rule
	// lists are the names of the rules in a mask, made once for each.
	lists map[uint64][]string
	mask  uint64 // of the last
	last  []string
}

// maxRules is the number of different names of rules: counted ones are bits.
const maxRules = 64

// maxLists bounds the lists that a set keeps; over it they are made anew.
const maxLists = 1024

// counted lists the names of the rules in mask, never nil. The list is shared.
func (s *ruleSet) counted(mask uint64) []string {
	if mask == s.mask && s.last != nil {
		return s.last
	}
	list, ok := s.lists[mask]
	if !ok {
		list = make([]string, 0, len(s.rules))
		for i, r := range s.rules {
			if mask>>i&1 == 1 {
				list = append(list, r.Name)
			}
		}
		list = list[:len(list):len(list)]
		if len(s.lists) < maxLists {
			s.lists[mask] = list
		}
	}
	s.mask, s.last = mask, list
	return list
}

// circuits is a hash table of circuits by their labels, chained through them.
// It is what every call begins with, and half as big as a map of labels.
type circuits struct {
	table []*circuit // its length is a power of two
	n     int
}

var hashSeed = maphash.MakeSeed()

// hash of labels; those that are commonly absent or equal cost nothing. An agent
// counts only when it is asked for.
func (l *Labels) hash(agents bool) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := maphash.String(hashSeed, l.Machine)
	if l.Model != "" {
		h = h*odd ^ maphash.String(hashSeed, l.Model)
	}
	if l.Provider != l.Machine {
		h = h*odd ^ maphash.String(hashSeed, l.Provider)
	}
	if agents && l.Agent != "" {
		h = h*odd ^ maphash.String(hashSeed, l.Agent)
	}
	return h ^ h>>32
}

func (c *circuits) find(l *Labels, agents bool, hash uint64) *circuit {
	if len(c.table) == 0 {
		return nil
	}
	ct := c.table[hash&uint64(len(c.table)-1)]
	for ct != nil && !ct.is(l, agents) {
		ct = ct.next
	}
	return ct
}

func (ct *circuit) is(l *Labels, agents bool) bool {
	return ct.labels.Machine == l.Machine && ct.labels.Model == l.Model && ct.labels.Provider == l.Provider &&
		(!agents || ct.labels.Agent == l.Agent)
}

func (c *circuits) insert(ct *circuit, hash uint64) {
	if c.n >= len(c.table) {
		old := c.table
		c.table = make([]*circuit, max(64, 2*len(old)))
		for _, list := range old {
			for list != nil {
				next := list.next
				c.link(list, list.labels.hash(true))
				list = next
			}
		}
	}
	c.link(ct, hash)
	c.n++
}

func (c *circuits) link(ct *circuit, hash uint64) {
	at := &c.table[hash&uint64(len(c.table)-1)]
	ct.next, *at = *at, ct
}

// each calls yield with every circuit, in no order.
func (c *circuits) each(yield func(*circuit) bool) {
	for _, ct := range c.table {
		for ; ct != nil; ct = ct.next {
			if !yield(ct) {
				return
			}
		}
	}
}

// circuitKey is what circuits are told apart by: an agent matters only where a
// rule has it in its scope.
func (e *Engine) circuitKey(l *Labels) Labels {
	key := *l
	if !e.agents {
		key.Agent = ""
	}
	return key
}

// circuit finds or makes the circuit of these canonical labels.
func (e *Engine) circuit(l *Labels) *circuit {
	hash := l.hash(e.agents)
	ct := e.circuits.find(l, e.agents, hash)
	var own *target
	if ct == nil {
		key := e.circuitKey(l)
		if e.circuits.n >= maxCircuits {
			e.circuits = circuits{}
		}
		ct, own = e.newCircuit(&key)
		ct.cleared = uint32(e.judge.cleared) - 1
		e.circuits.insert(ct, hash)
	}
	e.refresh(ct)
	if cleared := uint32(e.judge.cleared); ct.cleared != cleared {
		ct.target = e.judge.target(&ct.labels, own)
		ct.cleared = cleared
	}
	return ct
}

// look is circuit for a reader, who leaves no trace.
func (e *Engine) look(l *Labels) *circuit {
	ct := e.circuits.find(l, e.agents, l.hash(e.agents))
	if ct == nil {
		key := e.circuitKey(l)
		ct, _ = e.newCircuit(&key)
	}
	e.refresh(ct)
	return ct
}

// cell is a circuit and its target in one piece of memory.
type cell struct {
	circuit
	own target
}

// newCircuit makes a circuit, and beside it the memory for its target.
func (e *Engine) newCircuit(key *Labels) (*circuit, *target) {
	c := &cell{circuit: circuit{labels: key.clone(), made: e.made - 1, gone: e.gone, local: e.machines[key.Machine].Local}}
	ct := &c.circuit
	var id strings.Builder
	var rules []*rule
	for i, r := range e.rules {
		sameName := func(other *rule) bool { return other.Name == r.Name }
		if r.covers(key) && !slices.ContainsFunc(rules, sameName) {
			rules = append(rules, r)
			id.WriteRune(rune(i))
		}
	}
	if ct.set = e.sets[id.String()]; ct.set == nil {
		ct.set = &ruleSet{rules: rules, lists: make(map[uint64][]string)}
		e.sets[id.String()] = ct.set
	}
	if ct.breakers = ct.first[:]; len(rules) != 1 {
		ct.breakers = make([]*breaker, len(rules))
	}
	return ct, &c.own
}

// clone copies the labels into one piece of memory of their own, so that what
// they came in is not kept.
func (l *Labels) clone() Labels {
	var b strings.Builder
	own := [...]*string{&l.Machine, &l.Model, &l.Provider, &l.Agent}
	for i, label := range own {
		if i != 2 || l.Provider != l.Machine {
			b.WriteString(*label)
		}
	}
	text := b.String()
	var c Labels
	c.Machine, text = text[:len(l.Machine)], text[len(l.Machine):]
	c.Model, text = text[:len(l.Model)], text[len(l.Model):]
	if c.Provider = c.Machine; l.Provider != l.Machine {
		c.Provider, text = text[:len(l.Provider)], text[len(l.Provider):]
	}
	c.Agent = text
	return c
}

// refresh finds breakers that other circuits have made meanwhile, and drops
// those that were evicted.
func (e *Engine) refresh(ct *circuit) {
	if ct.gone == e.gone && (ct.full || ct.made == e.made) {
		return
	}
	ct.full = true
	for i, r := range ct.set.rules {
		ct.breakers[i] = r.find(&ct.labels)
		ct.full = ct.full && ct.breakers[i] != nil
	}
	ct.made, ct.gone = e.made, e.gone
}

// member is the circuit's breaker of its i-th rule, made when the call is the
// first that the rule counts; nil when there is none and none is needed.
func (e *Engine) member(ct *circuit, i int, c *call) *breaker {
	r := ct.set.rules[i]
	if _, _, ignored := r.takes(c); ignored || c.tooOld {
		return nil
	}
	b := e.breaker(r, &ct.labels)
	if b == nil {
		c.verdict.Uncounted = append(c.verdict.Uncounted, r.Name)
		return nil
	}
	ct.breakers[i] = b
	return b
}

// find is the rule's breaker for calls with these labels, nil for none.
func (r *rule) find(l *Labels) *breaker {
	key := r.key(l)
	b := r.breakers[key.hash(true)]
	for b != nil && b.labels() != key {
		b = b.next
	}
	return b
}

func (r *rule) insert(b *breaker) {
	key := b.labels()
	hash := key.hash(true)
	b.next = r.breakers[hash]
	r.breakers[hash] = b
	r.size++
}

func (r *rule) remove(b *breaker) {
	key := b.labels()
	hash := key.hash(true)
	first := r.breakers[hash]
	switch {
	case first == b && b.next == nil:
		delete(r.breakers, hash)
	case first == b:
		r.breakers[hash] = b.next
	default:
		for first.next != b {
			first = first.next
		}
		first.next = b.next
	}
	b.next = nil
	r.size--
}

// each calls yield with every breaker of the rule, in no order.
func (r *rule) each(yield func(*breaker) bool) {
	for _, b := range r.breakers {
		for ; b != nil; b = b.next {
			if !yield(b) {
				return
			}
		}
	}
}

// every calls yield with every breaker, in no order.
func (e *Engine) every(yield func(*breaker) bool) {
	for _, r := range e.rules {
		for b := range r.each {
			if !yield(b) {
				return
			}
		}
	}
}
