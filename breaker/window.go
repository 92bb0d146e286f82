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

// calls is a window over the last N calls. Agents and models of the failures
// are kept only where the rule asks for witnesses of them.
type calls struct {
	causes   []Cause // a ring; zero is a success
	agents   []string
	models   []string
	head     int // the oldest, once the ring is full
	failures int
	last     instant // of the last counted call
}

func (w *calls) empty() { *w = calls{} }

// stale tells whether a quiet hour has emptied the window.
func (w *calls) stale(now instant) bool { return len(w.causes) > 0 && now-w.last >= quiet }

func (w *calls) add(r *rule, now instant, failure Cause, agent, model string) {
	if w.stale(now) {
		w.empty()
	}
	w.last = now
	size := r.Trip.Window.Calls
	i := len(w.causes)
	if i < size {
		w.causes = append(w.causes, failure)
		if r.Trip.Witnesses > 1 {
			w.agents = append(w.agents, agent)
		}
		if r.Trip.Models > 1 {
			w.models = append(w.models, model)
		}
	} else {
		i = w.head
		w.head++
		if w.head == size {
			w.head = 0
		}
		if w.causes[i] != 0 {
			w.failures--
		}
		w.causes[i] = failure
		if r.Trip.Witnesses > 1 {
			w.agents[i] = agent
		}
		if r.Trip.Models > 1 {
			w.models[i] = model
		}
	}
	if failure != 0 {
		w.failures++
	}
}

// witnesses lists distinct agents and models of the failures, up to what the
// rule asks for.
func (w *calls) witnesses(t *Trip) (agents, models []string) {
	for i, c := range w.causes {
		if c == 0 {
			continue
		}
		if w.agents != nil {
			agents = insert(agents, w.agents[i], t.Witnesses)
		}
		if w.models != nil {
			models = insert(models, w.models[i], t.Models)
		}
	}
	return agents, models
}

func (w *calls) tally() tally {
	var t tally
	for _, c := range w.causes {
		if c != 0 {
			t.add(c, 1)
		}
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

func (w *calls) save() *savedCalls {
	if len(w.causes) == 0 {
		return nil
	}
	s := &savedCalls{Last: w.last}
	for i := range w.causes {
		i = (i + w.head) % len(w.causes)
		run := callRun{Cause: w.causes[i], N: 1}
		if w.agents != nil {
			run.Agent = w.agents[i]
		}
		if w.models != nil {
			run.Model = w.models[i]
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

func (s *savedCalls) restore(r *rule) calls {
	var w calls
	if s == nil || r.Trip.Window.Calls == 0 {
		return w
	}
	for _, run := range s.Runs {
		for range min(run.N, maxWindowCalls) {
			w.add(r, s.Last, run.Cause, run.Agent, run.Model)
		}
	}
	return w
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

// window is what a rate is taken over; at most one of the two is in use.
type window struct {
	calls calls
	span  span
}

func (w *window) empty() { *w = window{} }

func (w *window) add(r *rule, now, ended instant, failure Cause, agent, model string) {
	switch {
	case r.Trip.Window.Calls > 0:
		w.calls.add(r, now, failure, agent, model)
	case r.Trip.Window.Span > 0:
		w.span.add(r, now, ended, failure, agent, model)
	}
}

// count is what a reader at now sees; it changes nothing.
func (w *window) count(r *rule, now instant) (calls, failures int) {
	if r.Trip.Window.Span > 0 {
		for _, b := range w.span.alive(r, now) {
			calls += b.Calls
			for _, f := range b.Failed {
				failures += f.N
			}
		}
		return calls, failures
	}
	if w.calls.stale(now) {
		return 0, 0
	}
	return len(w.calls.causes), w.calls.failures
}

func (w *window) tally(r *rule, now instant) tally {
	if r.Trip.Window.Span == 0 {
		return w.calls.tally()
	}
	var t tally
	for _, b := range w.span.alive(r, now) {
		for _, f := range b.Failed {
			t.add(f.Cause, f.N)
		}
	}
	return t
}

func (w *window) witnesses(r *rule, now instant) (agents, models []string) {
	if r.Trip.Window.Span == 0 {
		return w.calls.witnesses(&r.Trip)
	}
	for _, b := range w.span.alive(r, now) {
		for _, a := range b.Agents {
			agents = insert(agents, a, r.Trip.Witnesses)
		}
		for _, m := range b.Models {
			models = insert(models, m, r.Trip.Models)
		}
	}
	return agents, models
}

// MarshalJSON writes the buckets.
func (w span) MarshalJSON() ([]byte, error) { return json.Marshal(w.buckets) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (w *span) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &w.buckets) }
