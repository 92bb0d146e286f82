package ingest

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"breakerbot/breaker"
)

// DefaultMaxSeries bounds the series with labels of agents' making.
const DefaultMaxSeries = 20_000

// otherLabel stands for the values of all series past the bound.
const otherLabel = "other"

// callBuckets are the upper bounds of call durations: an answer of a model
// takes from milliseconds to minutes.
var callBuckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}

// metrics are the numbers that the HTTP side knows.
type metrics struct {
	budget   *budget
	outcomes *prometheus.CounterVec
	gates    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	served   *prometheus.CounterVec
	permits  *prometheus.CounterVec
	routes   *prometheus.CounterVec
	doubts   *prometheus.CounterVec
	http     *prometheus.HistogramVec
}

// newMetrics puts the collectors on the registry. Go's and the process's may be
// there already.
func newMetrics(reg *prometheus.Registry, maxSeries int, version string, breakers func() ([]breaker.View, time.Time), writesInDoubt func() float64) (*metrics, error) {
	if maxSeries <= 0 {
		maxSeries = DefaultMaxSeries
	}
	m := &metrics{
		budget: &budget{max: maxSeries, seen: make(map[string]bool)},
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_outcomes_total", Help: "Outcomes taken, duplicates not counted."}, []string{"machine", "model", "class", "cause"}),
		gates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_gate_failures_total", Help: "Answers that a gate refused, duplicates not counted."}, []string{"machine", "model", "cause"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "breakerbot_call_duration_seconds", Help: "How long calls took, by the state of their circuit afterwards.", Buckets: callBuckets}, []string{"machine", "model", "state"}),
		served: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_served_total", Help: "Where the answers that agents used came from."}, []string{"machine", "model", "served"}),
		permits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_permits_total", Help: "Answers to the question whether a call may be made."}, []string{"decision"}),
		routes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_routes_total", Help: "Answers to the question which target of a chain to call: its first, a fallback, or degraded."}, []string{"chain", "answer"}),
		doubts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_writes_in_doubt_total", Help: "Writes that ended so that nobody knows whether they took effect."}, []string{"machine", "model", "cause"}),
		http: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "breakerbot_http_request_duration_seconds", Help: "How long HTTP requests took.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8)}, []string{"route", "code"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "breakerbot_build_info", Help: "Always 1; the label says what runs.", ConstLabels: prometheus.Labels{"version": version}})
	info.Set(1)
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "breakerbot_writes_in_doubt", Help: "Writes in doubt that nobody has reconciled: permits for their keys are held."}, writesInDoubt)
	states := &stateCollector{breakers: breakers, max: maxSeries}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := reg.Register(c); err != nil {
			if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
				return nil, err
			}
		}
	}
	for _, c := range []prometheus.Collector{m.outcomes, m.gates, m.duration, m.served, m.permits, m.routes, m.doubts, m.http, info, held, states} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// outcome counts one outcome that was no duplicate; labels are canonical.
func (m *metrics) outcome(l breaker.Labels, o *breaker.Outcome, v *breaker.Verdict) {
	class, cause, state, served := v.Class.String(), v.Cause.String(), v.State.String(), o.Served.String()
	machine, model := m.budget.admit(1, "o", l.Machine, l.Model, cause)
	m.outcomes.WithLabelValues(machine, model, class, cause).Inc()
	machine, model = m.budget.admit(1, "s", l.Machine, l.Model, served)
	m.served.WithLabelValues(machine, model, served).Inc()
	if o.Served.Called() && o.Duration > 0 {
		machine, model = m.budget.admit(len(callBuckets)+3, "d", l.Machine, l.Model, state)
		m.duration.WithLabelValues(machine, model, state).Observe(o.Duration.Seconds())
	}
}

// inDoubt counts a write in doubt; labels are canonical.
func (m *metrics) inDoubt(l breaker.Labels, cause breaker.Cause) {
	machine, model := m.budget.admit(1, "w", l.Machine, l.Model, cause.String())
	m.doubts.WithLabelValues(machine, model, cause.String()).Inc()
}

// route counts an answer for a chain, which is one of the configuration.
func (m *metrics) route(chain, answer string) {
	chain, _ = m.budget.admit(1, "r", chain, "", answer)
	m.routes.WithLabelValues(chain, answer).Inc()
}

// gateFailure counts an answer that a gate refused; labels are canonical.
func (m *metrics) gateFailure(l breaker.Labels, cause breaker.Cause) {
	machine, model := m.budget.admit(1, "g", l.Machine, l.Model, cause.String())
	m.gates.WithLabelValues(machine, model, cause.String()).Inc()
}

// budget bounds the number of series over several vectors. What does not fit
// any more is counted under other.
type budget struct {
	max int

	mu   sync.Mutex
	used int
	seen map[string]bool
}

// admit gives the machine and model under which to count: the same ones while
// their series exists or fits, otherwise other. cost is how many series the
// label set makes.
func (b *budget) admit(cost int, vector, machine, model, last string) (string, string) {
	var buf [320]byte
	key := append(buf[:0], vector...)
	for _, part := range [...]string{machine, model, last} {
		key = append(append(key, 0), part...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.seen[string(key)] {
		if b.used+cost > b.max {
			return otherLabel, otherLabel
		}
		b.used += cost
		b.seen[string(key)] = true
	}
	return machine, model
}

// stateCollector reads the breakers at each scrape, so that the series of
// evicted breakers go with them.
type stateCollector struct {
	breakers func() ([]breaker.View, time.Time)
	max      int
}

var (
	breakerLabels = []string{"rule", "agent", "machine", "model", "provider"}
	stateDesc     = prometheus.NewDesc("breakerbot_breaker_state", "State of a breaker: 0 closed, 1 half-open, 2 open.", breakerLabels, nil)
	openDesc      = prometheus.NewDesc("breakerbot_open_seconds", "For how long a breaker has not been closed; absent for closed ones.", breakerLabels, nil)
	hiddenDesc    = prometheus.NewDesc("breakerbot_breakers_hidden", "Breakers without series of their own, because there are too many.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- stateDesc
	ch <- openDesc
	ch <- hiddenDesc
}

// Collect implements prometheus.Collector. Past the bound the closed breakers
// are left out first.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	views, now := c.breakers()
	if len(views) > c.max/2 {
		slices.SortStableFunc(views, func(a, b breaker.View) int { return cmp.Compare(b.State, a.State) })
	}
	left, hidden := c.max, 0
	for _, v := range views {
		cost := 1
		if v.State != breaker.Closed {
			cost = 2
		}
		if left < cost {
			hidden++
			continue
		}
		left -= cost
		labels := []string{v.Rule, v.Agent, v.Machine, v.Model, v.Provider}
		for i := range labels {
			labels[i] = strings.ToValidUTF8(labels[i], "�")
		}
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, float64(v.State), labels...)
		if v.State != breaker.Closed {
			since := v.OpenedAt
			if since.IsZero() {
				since = v.EraAt
			}
			ch <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, max(0, now.Sub(since).Seconds()), labels...)
		}
	}
	ch <- prometheus.MustNewConstMetric(hiddenDesc, prometheus.GaugeValue, float64(hidden))
}
