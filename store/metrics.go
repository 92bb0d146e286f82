package store

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"breakerbot/breaker"
)

// journalMetrics are the journal's series. They exist without a registry too.
type journalMetrics struct {
	commit      prometheus.Histogram
	transitions *prometheus.CounterVec
	unrecorded  prometheus.Counter

	mu     sync.Mutex
	max    int
	series map[seriesKey]bool
}

// seriesKey is what a breaker's series differ by.
type seriesKey struct{ rule, machine, model string }

func newJournalMetrics(j *Journal) *journalMetrics {
	m := &journalMetrics{
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "breakerbot_journal_commit_seconds",
			Help:    "How long the transactions of the journal take.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "breakerbot_transitions_total",
			Help: "Transitions of breakers that are in the database.",
		}, []string{"rule", "machine", "model", "from_state", "to_state"}),
		unrecorded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "breakerbot_routes_unrecorded_total",
			Help: "Fallbacks and degraded answers that were given and not recorded, because the database was away for too long.",
		}),
		max:    j.o.MaxSeries,
		series: map[seriesKey]bool{},
	}
	if j.o.Registerer == nil {
		return m
	}
	j.o.Registerer.MustRegister(m.commit, m.transitions, m.unrecorded,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "breakerbot_journal_lag_seconds",
			Help: "Age of the oldest entry that is not committed.",
		}, func() float64 { return j.lag().Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "breakerbot_journal_queue_entries",
			Help: "Transitions, outcomes and permits that wait to be committed.",
		}, func() float64 { return float64(j.waiting()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "breakerbot_journal_queue_limit_entries",
			Help: "How many may wait before requests are refused.",
		}, func() float64 { return float64(j.o.Max) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "breakerbot_database_up",
			Help: "1 while the database takes what the journal writes, 0 while it is away.",
		}, func() float64 {
			if _, away := j.Away(); away {
				return 0
			}
			return 1
		}))
	return m
}

// committed counts a group's transitions and what it left out. Breakers beyond the bound share the
// series with the model "other"; an evicted breaker's series go.
func (m *journalMetrics) committed(g *group) {
	m.unrecorded.Add(float64(g.unrecorded))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range g.transitions {
		t := &g.transitions[i]
		key := seriesKey{t.Rule, t.Machine, t.Model}
		if !m.series[key] {
			if len(m.series) < m.max {
				m.series[key] = true
			} else {
				key = seriesKey{t.Rule, "other", "other"}
			}
		}
		m.transitions.WithLabelValues(key.rule, key.machine, key.model, t.From.String(), t.To.String()).Inc()
	}
	for name := range g.evicted {
		rule, labels, err := breaker.ParseName(name)
		key := seriesKey{rule, labels.Machine, labels.Model}
		if err != nil || !m.series[key] {
			continue
		}
		delete(m.series, key)
		m.transitions.DeletePartialMatch(prometheus.Labels{"rule": key.rule, "machine": key.machine, "model": key.model})
	}
}
