package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"breakerbot/bot"
	"breakerbot/breaker"
)

// group is what goes into one transaction: some batches of the engine in a row
// and the plans made for them. It grows until it is first tried; after that it
// stays as it is, because the try may have succeeded without our knowing.
type group struct {
	from, to uint64
	clock    breaker.Clock
	now      time.Time // of the last batch or plan
	entries  int       // transitions, outcomes and asks
	since    time.Time // when its first entry came
	tried    bool

	transitions []breaker.Transition
	last        breaker.Batch // whose memory the engine gets back
	states      map[string]breaker.Saved
	evicted     map[string]bool
	refused     map[uint64]int64 // by incident
	outcomes    map[outcomeKey]*outcomeSum
	asks        map[askKey]int64
	fallbacks   map[fallbackKey]int64
	heard       []breaker.Heard
	writes      map[string]breaker.Write  // by key
	lately      map[string]breaker.Lately // by key
	routes      []breaker.Routed
	unrecorded  int    // routes over maxRoutes
	inputs      []byte // blocks of inputs, each behind its length
	packed      []byte // and as they are stored, once they are tried
	plan        bot.Plan
}

// maxRoutes bounds the fallbacks and degraded answers of a group: routes are
// answered also while the database is away, however long that lasts.
const maxRoutes = 50_000

type outcomeKey struct {
	minute int64 // unix seconds of its beginning
	breaker.Labels
	cause  breaker.Cause
	served breaker.Served
}

type outcomeSum struct {
	calls, slow, late int64
	duration          time.Duration
	durations         [durationBuckets]int64
	cost              float64
}

type askKey struct {
	minute int64
	breaker.Labels
	reason string
}

type fallbackKey struct {
	minute         int64
	agent          string
	from           breaker.Fallback
	machine, model string
	served         breaker.Served
}

// DurationBounds are the upper bounds, inclusive, of the histogram in
// outcome_counts.durations; one more bucket holds what took longer.
var DurationBounds = [...]time.Duration{
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
}

const durationBuckets = len(DurationBounds) + 1

func durationBucket(d time.Duration) int {
	return sort.Search(len(DurationBounds), func(i int) bool { return d <= DurationBounds[i] })
}

func newGroup(at uint64, clock breaker.Clock) *group {
	return &group{
		from: at, to: at, clock: clock,
		states: map[string]breaker.Saved{}, evicted: map[string]bool{}, refused: map[uint64]int64{},
		outcomes: map[outcomeKey]*outcomeSum{}, asks: map[askKey]int64{}, fallbacks: map[fallbackKey]int64{},
		writes: map[string]breaker.Write{}, lately: map[string]breaker.Lately{},
	}
}

func (g *group) empty() bool { return g.from == g.to && g.plan.Empty() }

func minuteOf(at time.Time) int64 { return at.Unix() - mod(at.Unix(), 60) }

func mod(a, b int64) int64 { return ((a % b) + b) % b }

// add puts a batch behind those that are in the group already.
func (g *group) add(b breaker.Batch) {
	g.to, g.clock = b.To, b.Clock
	g.entries += len(b.Transitions) + len(b.Outcomes) + len(b.Asks) + len(b.Heard)
	g.heard = append(g.heard, b.Heard...)
	g.addRoutes(b.Routes)
	known := len(g.writes) + len(g.lately)
	for i := range b.Writes {
		g.writes[b.Writes[i].Key] = b.Writes[i]
	}
	for i := range b.Lately {
		g.lately[b.Lately[i].Key] = b.Lately[i]
	}
	g.entries += len(g.writes) + len(g.lately) - known
	g.transitions = append(g.transitions, b.Transitions...)
	// A name that is evicted and touched in one batch was evicted first: what
	// is evicted last is not touched.
	for _, name := range b.Evicted {
		delete(g.states, name)
		g.evicted[name] = true
	}
	for _, s := range b.States {
		g.states[s.Name] = s
		delete(g.evicted, s.Name)
	}
	for i := range b.Outcomes {
		g.addOutcome(&b.Outcomes[i])
	}
	for i := range b.Asks {
		a := &b.Asks[i]
		n := int64(max(a.N, 1))
		g.asks[askKey{minuteOf(a.At), a.Labels, a.Reason}] += n
		for _, id := range a.Incidents {
			g.refused[id] += n
		}
	}
}

// addRoutes keeps those that came first.
func (g *group) addRoutes(routes []breaker.Routed) {
	fit := min(len(routes), maxRoutes-len(g.routes))
	g.routes = append(g.routes, routes[:fit]...)
	g.entries += fit
	g.unrecorded += len(routes) - fit
}

func (g *group) addOutcome(o *breaker.Applied) {
	key := outcomeKey{minuteOf(o.At), o.Labels, o.Cause, o.Served}
	sum := g.outcomes[key]
	if sum == nil {
		sum = new(outcomeSum)
		g.outcomes[key] = sum
	}
	sum.calls++
	if o.Duration > 0 {
		sum.duration += o.Duration
		sum.durations[durationBucket(o.Duration)]++
	}
	sum.cost += o.CostUSD
	if o.Latency != 0 {
		sum.slow++
	}
	if o.Late {
		sum.late++
	}
	if o.Fallback != (breaker.Fallback{}) {
		g.fallbacks[fallbackKey{key.minute, o.Agent, o.Fallback, o.Machine, o.Model, o.Served}]++
	}
}

// addPlan puts a plan behind those that are in the group already.
func (g *group) addPlan(p bot.Plan) {
	if len(p.Joins) > 0 {
		if g.plan.Joins == nil {
			g.plan.Joins = map[uint64]uint64{}
		}
		maps.Copy(g.plan.Joins, p.Joins)
	}
	g.plan.New = append(g.plan.New, p.New...)
	for alert, due := range p.Touched {
		if g.plan.Touched == nil {
			g.plan.Touched = map[uint64]time.Time{}
		}
		if due.After(g.plan.Touched[alert]) || g.plan.Touched[alert].IsZero() {
			g.plan.Touched[alert] = due
		}
	}
}

// incidentRow is what a group does to one incident: with begin it is a new
// row, otherwise everything but the identity is added to one that exists.
type incidentRow struct {
	id           uint64
	begin        *breaker.Transition
	closedAt     time.Time
	trips        int
	causes       []breaker.CauseCount
	refused      int64
	probesFailed int
	lastProbeAt  time.Time
	lastProbe    breaker.Cause
	byProbe      bool
}

// incidents folds the group's transitions and refusals into one row for each
// incident, in the order of their numbers.
func (g *group) incidents() []*incidentRow {
	rows := map[uint64]*incidentRow{}
	row := func(id uint64) *incidentRow {
		r := rows[id]
		if r == nil {
			r = &incidentRow{id: id}
			rows[id] = r
		}
		return r
	}
	for i := range g.transitions {
		t := &g.transitions[i]
		if t.Incident == 0 {
			continue
		}
		r := row(t.Incident)
		switch {
		case t.Trips():
			r.begin = t
			r.trips++
			if t.Evidence != nil && len(t.Evidence.Causes) > 0 {
				r.addCauses(t.Evidence.Causes...)
			} else if t.Cause != 0 {
				r.addCauses(breaker.CauseCount{Cause: t.Cause, N: 1})
			}
		case t.Reason == breaker.ReasonProbeFailed:
			r.trips++
			r.probesFailed++
			r.lastProbeAt, r.lastProbe = t.At, t.Cause
			if t.Cause != 0 {
				r.addCauses(breaker.CauseCount{Cause: t.Cause, N: 1})
			}
		case t.Reason == breaker.ReasonProbesLost:
			r.trips++
		}
		if t.Closes() {
			r.closedAt = t.At
			r.byProbe = t.Reason == breaker.ReasonProbeOK
		}
	}
	for id, n := range g.refused {
		row(id).refused += n
	}
	list := slices.Collect(maps.Values(rows))
	slices.SortFunc(list, func(a, b *incidentRow) int { return cmp.Compare(a.id, b.id) })
	// An incident whose end nobody told of ends where the breaker's next begins.
	last := map[string]*incidentRow{}
	for _, r := range list {
		if r.begin == nil {
			continue
		}
		if before := last[r.begin.Breaker]; before != nil && before.closedAt.IsZero() {
			before.closedAt = r.begin.At
		}
		last[r.begin.Breaker] = r
	}
	return list
}

func (r *incidentRow) addCauses(causes ...breaker.CauseCount) {
	for _, c := range causes {
		i := slices.IndexFunc(r.causes, func(have breaker.CauseCount) bool { return have.Cause == c.Cause })
		if i < 0 {
			r.causes = append(r.causes, c)
			continue
		}
		r.causes[i].N += c.N
	}
	slices.SortStableFunc(r.causes, func(a, b breaker.CauseCount) int { return cmp.Compare(b.N, a.N) })
}

// text makes a string one that PostgreSQL takes. What comes from outside was
// checked at the door; a stray byte must not stop the journal all the same.
func text(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// jsonText encodes a value as jsonb takes it: without the null character,
// which JSON may hold and jsonb may not.
func jsonText(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if !bytes.Contains(data, []byte(`\u0000`)) {
		return string(data), nil
	}
	var out []byte
	for i := 0; i < len(data); i++ {
		switch {
		case bytes.HasPrefix(data[i:], []byte(`\u0000`)):
			out = append(out, `\ufffd`...)
			i += len(`\u0000`) - 1
		case data[i] == '\\': // an escaped backslash is no beginning
			out = append(out, data[i], data[i+1])
			i++
		default:
			out = append(out, data[i])
		}
	}
	return string(out), nil
}
