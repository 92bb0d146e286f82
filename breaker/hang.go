package breaker

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"
)

// A machine that hangs may take its agents with it: they wait, and nobody
// reports. So a sample of the permits that were granted with a time-out is
// followed. One whose word has not come LeaseMargin after its time-out is lost.
// Permits get lost for other reasons too, such as agents that crash or report
// carelessly; so losses are counted as time-outs only once there are more of
// them than chance explains, and only of agents that are known to report.

const (
	maxSampledOf = 16     // permits of a target followed at a time
	maxSampled   = 10_000 // of all targets
	sampleSpan   = instant(10 * time.Minute)
	maxSettled   = 20 // followed permits of a target that the share is taken of
	// chance is the probability below which losses are no chance any more.
	chance = 1e-4
	// A target without a history loses priorLost of priorAll permits.
	priorLost, priorAll = 0.5, 20
	// maxLongRun is when the long run of a target is halved, so that it forgets.
	maxLongRun = 1000
)

// sample is a permit that is followed.
type sample struct {
	pass     pass
	agent    string
	provider string
	target   *target
	timeout  time.Duration
	deadline instant
	index    int // in the heap
}

// settled is what became of a followed permit.
type settled struct {
	Num     uint64        `json:"num"`
	Era     uint64        `json:"era"`
	Granted instant       `json:"granted"`
	Timeout time.Duration `json:"timeout"`
	Agent   string        `json:"agent"`
	// Provider completes the labels of the call.
	Provider string  `json:"provider"`
	At       instant `json:"at"`
	Lost     bool    `json:"lost,omitempty"`
	// Told is true once the loss was counted, or its word came after all.
	Told bool `json:"told,omitempty"`
}

func (s *settled) pass() pass { return pass{era: s.Era, num: s.Num, at: s.Granted} }

// permits is what is known of the permits of one target.
type permits struct {
	out    []*sample // under way
	recent []settled // the last maxSettled, oldest first
	// words and losts count what has left recent: how it usually is.
	words, losts float64
}

// samples are the permits followed, by deadline and by number.
type samples struct {
	queue sampleQueue
	byNum map[uint64]*sample
}

type sampleQueue []*sample

func (q sampleQueue) Len() int { return len(q) }
func (q sampleQueue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].deadline, q[j].deadline), cmp.Compare(q[i].pass.num, q[j].pass.num)) < 0
}
func (q sampleQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is for container/heap.
func (q *sampleQueue) Push(x any) {
	s := x.(*sample)
	s.index = len(*q)
	*q = append(*q, s)
}

// Pop is for container/heap.
func (q *sampleQueue) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return s
}

// next is the first deadline.
func (s *samples) next() instant {
	if len(s.queue) == 0 {
		return math.MaxInt64
	}
	return s.queue[0].deadline
}

// follow puts a plain permit under observation, when its agent is known to give
// words of its permits and there is room.
func (e *Engine) follow(ct *circuit, ask *Ask, p pass) {
	agent := e.judge.agent(ask.Agent)
	agent.word = e.now
	t := ct.target
	if agent.returned == 0 || e.now-agent.returned > instant(HeardFor) || len(e.samples.queue) >= maxSampled ||
		t.permits != nil && len(t.permits.out) >= maxSampledOf {
		return
	}
	s := &sample{
		pass: p, agent: agent.agent, provider: ask.Provider, target: t, timeout: ask.Timeout,
		deadline: e.now + instant(ask.Timeout+LeaseMargin),
	}
	e.addSample(s)
	e.judge.touchTarget(t)
}

func (e *Engine) addSample(s *sample) {
	if s.target.permits == nil {
		s.target.permits = &permits{}
	}
	s.target.permits.out = append(s.target.permits.out, s)
	heap.Push(&e.samples.queue, s)
	e.samples.byNum[s.pass.num] = s
}

func (e *Engine) dropSample(s *sample) {
	out := &s.target.permits.out
	*out = slices.DeleteFunc(*out, func(other *sample) bool { return other == s })
	heap.Remove(&e.samples.queue, s.index)
	delete(e.samples.byNum, s.pass.num)
	e.judge.touchTarget(s.target)
}

// word notes that a permit's word has come from its agent. It tells whether the
// permit had been counted as lost by then.
func (e *Engine) word(ct *circuit, agent string, p pass) (counted bool) {
	if agent != "" {
		c := e.judge.agent(agent)
		c.word, c.returned = e.now, e.now
		e.judge.touchAgent(c)
	}
	if p.probe {
		return false
	}
	if s := e.samples.byNum[p.num]; s != nil && s.pass == p {
		e.dropSample(s)
		s.target.permits.settle(s, e.now, false)
		return false
	}
	if ct == nil || ct.target.permits == nil {
		return false
	}
	for i := range ct.target.permits.recent {
		if s := &ct.target.permits.recent[i]; s.pass() == p && s.Lost {
			counted, s.Told = s.Told, true
			e.judge.touchTarget(ct.target)
		}
	}
	return counted
}

// settle takes what became of a followed permit into the target's record.
func (w *permits) settle(s *sample, at instant, lost bool) {
	gone := 0
	for gone < len(w.recent) && (at-w.recent[gone].At > sampleSpan || len(w.recent)-gone >= maxSettled) {
		if w.recent[gone].Lost {
			w.losts++
		} else {
			w.words++
		}
		gone++
	}
	w.recent = append(w.recent[:0], w.recent[gone:]...)
	if w.words+w.losts > maxLongRun {
		w.words, w.losts = w.words/2, w.losts/2
	}
	w.recent = append(w.recent, settled{
		Num: s.pass.num, Era: s.pass.era, Granted: s.pass.at, Timeout: s.timeout,
		Agent: s.agent, Provider: s.provider, At: at, Lost: lost,
	})
}

// loseSamples settles the permits whose word should have come by now.
func (e *Engine) loseSamples() {
	for e.samples.next() <= e.now {
		s := e.samples.queue[0]
		e.dropSample(s)
		w := s.target.permits
		w.settle(s, e.now, true)
		lost := w.beyondChance()
		if lost == 0 || !e.witnessed(w) {
			continue
		}
		for i := range w.recent {
			if w.recent[i].Lost && !w.recent[i].Told {
				w.recent[i].Told = true
				e.countLost(s.target, w.recent[i], lost, len(w.recent))
			}
		}
	}
}

// beyondChance is how many of the recent permits were lost when that is more
// than chance explains, otherwise 0: the upper tail of the binomial
// distribution of n permits at the share that the target usually loses,
// P(X ≥ k) = Σ C(n,i) p^i (1−p)^(n−i), is below chance.
func (w *permits) beyondChance() int {
	k := 0
	for _, s := range w.recent {
		if s.Lost {
			k++
		}
	}
	p := (w.losts + priorLost) / (w.words + w.losts + priorAll)
	if tail(len(w.recent), k, p) >= chance {
		return 0
	}
	return k
}

// tail is P(X ≥ k) of a binomial distribution.
func tail(n, k int, p float64) float64 {
	sum, c := 0.0, 1.0 // c is C(n,i)
	for i := 0; i <= n; i++ {
		if i >= k {
			sum += c * math.Pow(p, float64(i)) * math.Pow(1-p, float64(n-i))
		}
		c = c * float64(n-i) / float64(i+1)
	}
	return sum
}

// witnessed tells whether the losses are the target's and not of one agent that
// died: two agents lost permits, or the one has been heard of since it should
// have given its word.
func (e *Engine) witnessed(w *permits) bool {
	first := ""
	for _, s := range w.recent {
		if !s.Lost {
			continue
		}
		if first != "" && s.Agent != first {
			return true
		}
		first = s.Agent
		if e.judge.agent(s.Agent).word >= s.Granted+instant(s.Timeout) {
			return true
		}
	}
	return false
}

// countLost counts a lost permit as a time-out, as if its agent had reported it.
func (e *Engine) countLost(t *target, s settled, lost, of int) {
	o := Outcome{
		Labels: Labels{Agent: s.Agent, Machine: t.of.Machine, Model: t.of.Model, Provider: s.Provider},
		Cause:  Timeout, Duration: time.Duration(e.now - s.Granted), Timeout: s.Timeout,
		Error: fmt.Sprintf("no word of a permit granted %s ago with a time-out of %s: %d of the last %d followed permits were lost",
			Duration(time.Duration(e.now-s.Granted).Round(time.Second)), Duration(s.Timeout), lost, of),
	}
	c := call{Outcome: &o, cause: o.Cause, verdict: &Verdict{}, pass: s.pass(), hasPass: true, started: s.Granted, ended: e.now}
	e.apply(e.circuit(&o.Labels), &c)
}

// savedPermits is the stored form of a target's permits.
type savedPermits struct {
	Out    []settled `json:"out,omitempty"` // under way: At is the deadline
	Recent []settled `json:"recent,omitempty"`
	Words  float64   `json:"words,omitempty"`
	Losts  float64   `json:"losts,omitempty"`
}

func (w *permits) save() *savedPermits {
	if w == nil {
		return nil
	}
	s := &savedPermits{Recent: slices.Clone(w.recent), Words: w.words, Losts: w.losts}
	for _, o := range w.out {
		s.Out = append(s.Out, settled{
			Num: o.pass.num, Era: o.pass.era, Granted: o.pass.at, Timeout: o.timeout,
			Agent: o.agent, Provider: o.provider, At: o.deadline,
		})
	}
	return s
}

// restorePermits gives a target its permits back.
func (e *Engine) restorePermits(t *target, s *savedPermits) {
	if s == nil {
		return
	}
	t.permits = &permits{recent: s.Recent, words: s.Words, losts: s.Losts}
	for _, o := range s.Out {
		e.addSample(&sample{pass: o.pass(), agent: o.Agent, provider: o.Provider, target: t, timeout: o.Timeout, deadline: o.At})
	}
}
