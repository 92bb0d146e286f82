package breaker

import (
	"encoding/json"
	"slices"
)

// instant is a moment in nanoseconds since 1970, zero meaning none. The engine
// reckons in it: it is a third of a time.Time and knows no zone.
type instant int64

const (
	quiet      = instant(3600e9) // empties a window of calls
	numBuckets = 10
)

// tally counts causes; there are few different ones at a time.
type tally []CauseCount

func (t *tally) add(c Cause, n int) {
	for i := range *t {
		if (*t)[i].Cause == c {
			(*t)[i].N += n
			return
		}
	}
	*t = append(*t, CauseCount{c, n})
}

// sorted is a copy, most frequent first.
func (t tally) sorted() []CauseCount {
	s := slices.Clone(t)
	slices.SortStableFunc(s, func(a, b CauseCount) int { return b.N - a.N })
	return s
}

// insert adds a word to a small set, up to limit.
func insert(set []string, word string, limit int) []string {
	if word == "" || len(set) >= limit || slices.Contains(set, word) {
		return set
	}
	return append(set, word)
}

// calls is a window over the last N calls: a bit for each, and of the failures
// what they were. A healthy window of a hundred calls takes two words.
type calls struct {
	bits   []uint64 // a ring; 1 is a failure
	failed []Cause  // of the failures, oldest first
	n      uint16   // calls in the window
	head   uint16   // the next bit to be written
	last   instant  // of the last counted call
}

// witness is whose call in a window failed, of which model.
type witness struct{ agent, model string }

func (w *calls) empty(by *watchers) {
	w.failed, w.n, w.head, w.last = w.failed[:0], 0, 0, 0
	if by != nil {
		by.window = by.window[:0]
	}
}

// stale tells whether a quiet hour has emptied the window.
func (w *calls) stale(now instant) bool { return w.n > 0 && now-w.last >= quiet }

// add takes a call in; by keeps the witnesses, nil where the rule asks for none.
func (w *calls) add(r *rule, by *watchers, now instant, failure Cause, agent, model string) {
	if w.stale(now) {
		w.empty(by)
	}
	w.last = now
	size := r.Trip.Window.Calls
	word, bit := &w.bits[w.head/64], uint64(1)<<(w.head%64)
	if int(w.n) < size {
		w.n++
	} else if *word&bit != 0 {
		w.failed = w.failed[:copy(w.failed, w.failed[1:])]
		if by != nil {
			by.window = by.window[:copy(by.window, by.window[1:])]
		}
	}
	if failure == 0 {
		*word &^= bit
	} else {
		*word |= bit
		w.failed = append(w.failed, failure)
		if by != nil {
			by.window = append(by.window, witness{agent, model})
		}
	}
	if w.head++; int(w.head) == size {
		w.head = 0
	}
}

func (w *calls) tally() tally {
	var t tally
	for _, c := range w.failed {
		t.add(c, 1)
	}
	return t
}

// callRun is the saved form of equal calls in a row, "" being a success.
type callRun struct {
	Cause Cause  `json:"c,omitempty"`
	Agent string `json:"a,omitempty"`
	Model string `json:"m,omitempty"`
	N     int    `json:"n"`
}

// savedCalls is the saved form of a window of calls, oldest first.
type savedCalls struct {
	Last instant   `json:"last,omitempty"`
	Runs []callRun `json:"runs,omitempty"`
}

func (w *calls) save(r *rule, by []witness) *savedCalls {
	if w == nil || w.n == 0 {
		return nil
	}
	s := &savedCalls{Last: w.last}
	size := r.Trip.Window.Calls
	failure := 0
	for i := range int(w.n) {
		at := (int(w.head) - int(w.n) + i + size) % size
		run := callRun{N: 1}
		if w.bits[at/64]>>(at%64)&1 == 1 {
			run.Cause = w.failed[failure]
			if len(by) > 0 {
				run.Agent, run.Model = by[failure].agent, by[failure].model
				if r.Trip.Witnesses <= 1 {
					run.Agent = ""
				}
				if r.Trip.Models <= 1 {
					run.Model = ""
				}
			}
			failure++
		}
		if n := len(s.Runs); n > 0 {
			before := s.Runs[n-1]
			before.N = 1
			if before == run {
				s.Runs[n-1].N++
				continue
			}
		}
		s.Runs = append(s.Runs, run)
	}
	return s
}

// restoreCalls fills the empty window of a new breaker.
func (b *breaker) restoreCalls(s *savedCalls) {
	if s == nil || b.calls == nil {
		return
	}
	w, by, size := b.calls, b.watched(), b.rule.Trip.Window.Calls
	// A window that has become smaller keeps the latest calls.
	drop := -size
	for _, run := range s.Runs {
		drop += run.N
	}
	for _, run := range s.Runs {
		n := run.N
		if drop > 0 {
			n -= min(n, drop)
			drop -= run.N - n
		}
		if run.Cause != 0 {
			for i := range n {
				at := int(w.n) + i
				w.bits[at/64] |= 1 << (at % 64)
				w.failed = append(w.failed, run.Cause)
				if by != nil {
					by.window = append(by.window, witness{run.Agent, run.Model})
				}
			}
		}
		w.n += uint16(n)
	}
	w.head, w.last = w.n%uint16(size), s.Last
}

// bucket is a tenth of a time window.
type bucket struct {
	Index  int64    `json:"i"` // end of the call ÷ width
	Calls  int      `json:"n"`
	Failed tally    `json:"f,omitempty"`
	Agents []string `json:"a,omitempty"` // of the failures, as far as the rule asks
	Models []string `json:"m,omitempty"`
}

// span is a time window: the bucket of now and the nine before it, oldest
// first, those without a call left out.
type span struct {
	buckets []bucket
}

func (r *rule) bucketIndex(at instant) int64 {
	width := int64(r.Trip.Window.Span) / numBuckets
	i := int64(at) / width
	if int64(at)%width < 0 {
		i--
	}
	return i
}

// alive are the buckets that a reader at now still sees.
func (w *span) alive(r *rule, now instant) []bucket {
	oldest := r.bucketIndex(now) - numBuckets + 1
	i := 0
	for i < len(w.buckets) && w.buckets[i].Index < oldest {
		i++
	}
	return w.buckets[i:]
}

func (w *span) add(r *rule, now, ended instant, failure Cause, agent, model string) {
	w.buckets = w.alive(r, now)
	index := r.bucketIndex(ended)
	if index < r.bucketIndex(now)-numBuckets+1 {
		return
	}
	i, found := slices.BinarySearchFunc(w.buckets, index, func(b bucket, i int64) int { return int(b.Index - i) })
	if !found {
		w.buckets = slices.Insert(w.buckets, i, bucket{Index: index})
	}
	b := &w.buckets[i]
	b.Calls++
	if failure != 0 {
		b.Failed.add(failure, 1)
		b.Agents = insert(b.Agents, agent, r.Trip.Witnesses)
		b.Models = insert(b.Models, model, r.Trip.Models)
	}
}

func (w *span) clone() span {
	c := span{slices.Clone(w.buckets)}
	for i := range c.buckets {
		b := &c.buckets[i]
		b.Failed, b.Agents, b.Models = slices.Clone(b.Failed), slices.Clone(b.Agents), slices.Clone(b.Models)
	}
	return c
}

// addCall takes a call into the window that the rule's rate is taken over.
func (b *breaker) addCall(now, ended instant, failure Cause, agent, model string) {
	r := b.rule
	switch {
	case r.Trip.Window.Calls > 0:
		b.calls.add(r, b.watched(), now, failure, agent, model)
	case r.Trip.Window.Span > 0:
		if b.span == nil {
			b.span = &span{}
		}
		b.span.add(r, now, ended, failure, agent, model)
	}
}

// inWindow is what a reader at now sees; it changes nothing.
func (b *breaker) inWindow(now instant) (calls, failures int) {
	if b.span != nil {
		for _, bucket := range b.span.alive(b.rule, now) {
			calls += bucket.Calls
			for _, f := range bucket.Failed {
				failures += f.N
			}
		}
		return calls, failures
	}
	if b.calls == nil || b.calls.stale(now) {
		return 0, 0
	}
	return int(b.calls.n), len(b.calls.failed)
}

// windowTally counts the causes of the failures in the window.
func (b *breaker) windowTally(now instant) tally {
	var t tally
	if b.calls != nil {
		return b.calls.tally()
	}
	if b.span != nil {
		for _, bucket := range b.span.alive(b.rule, now) {
			for _, f := range bucket.Failed {
				t.add(f.Cause, f.N)
			}
		}
	}
	return t
}

// windowWitnesses lists distinct agents and models of the failures in the
// window, up to what the rule asks for.
func (b *breaker) windowWitnesses(now instant) (agents, models []string) {
	t := &b.rule.Trip
	for _, f := range b.witnesses().window {
		agents = insert(agents, f.agent, t.Witnesses)
		models = insert(models, f.model, t.Models)
	}
	if b.span != nil {
		for _, bucket := range b.span.alive(b.rule, now) {
			for _, a := range bucket.Agents {
				agents = insert(agents, a, t.Witnesses)
			}
			for _, m := range bucket.Models {
				models = insert(models, m, t.Models)
			}
		}
	}
	return agents, models
}

// MarshalJSON writes the buckets.
func (w span) MarshalJSON() ([]byte, error) { return json.Marshal(w.buckets) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (w *span) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &w.buckets) }
