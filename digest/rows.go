package digest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"breakerbot/breaker"
)

// rows ranks one kind of row and compares each with the window before, when
// that is known.
func rows(cur, prior *tally, of func(*tally) []Row, loc *time.Location) []Row {
	list := of(cur)
	slices.SortFunc(list, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(b.begun, a.begun),
			cmp.Compare(b.OpenTime, a.OpenTime),
			cmp.Compare(b.FailureRateLow, a.FailureRateLow),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Machine, b.Machine))
	})
	var earlier map[target]Row
	if prior != nil {
		earlier = map[target]Row{}
		for _, r := range of(prior) {
			earlier[target{r.Machine, r.Name}] = r
		}
	}
	for i := range list {
		r := &list[i]
		r.Rank = i + 1
		for j := range r.Spans {
			r.Spans[j].From, r.Spans[j].To = r.Spans[j].From.In(loc), r.Spans[j].To.In(loc)
		}
		if earlier != nil {
			was := earlier[target{r.Machine, r.Name}]
			r.Change = &Change{Outages: r.outages - was.outages, Trips: r.trips - was.trips, OpenTime: r.OpenTime - was.OpenTime}
		}
	}
	if list == nil {
		list = []Row{}
	}
	return list
}

func (t *tally) machineRows() []Row {
	names := map[string]bool{}
	for name, n := range t.byMachine {
		names[name] = n.calls+n.refused > 0
	}
	for name, events := range t.machines {
		if slices.ContainsFunc(events, func(e event) bool { return e.in(t.w) }) {
			names[name] = true
		}
	}
	var list []Row
	for name, known := range names {
		if !known || name == "" {
			continue
		}
		r := Row{Name: name}
		events := t.machines[name]
		for _, s := range stretches(events) {
			if !s.in(t.w) {
				continue
			}
			r.addSpan(s, s.kind(), t.w)
			if begins(s.from, t.w) {
				r.Outages++
			} else {
				r.Carried++
			}
		}
		in := eventsIn(events, t.w)
		for _, e := range in {
			r.Trips += btoi(begins(e.OpenedAt, t.w))
		}
		r.outages, r.trips = r.Outages+r.Carried, len(in)
		r.begun = r.outages
		r.complete(t.byMachine[name], in)
		list = append(list, r)
	}
	return list
}

func (t *tally) modelRows() []Row {
	names := map[target]bool{}
	for name := range t.byTarget {
		names[name] = true
	}
	for name := range t.models {
		names[name] = true
	}
	for name, n := range t.excused {
		names[name] = names[name] || n > 0
	}
	var list []Row
	for name, known := range names {
		if known {
			r := Row{Name: name.model, Machine: name.machine, Excused: t.excused[name]}
			r.ownTrips(t.models[name], t.w)
			r.complete(t.byTarget[name], t.models[name])
			list = append(list, r)
		}
	}
	return list
}

// accountRows leaves out accounts without any trouble: most of them are only
// machines that nobody pays for.
func (t *tally) accountRows() []Row {
	names := map[string]bool{}
	for name, n := range t.byAccount {
		names[name] = n.failed > 0
	}
	for name := range t.accounts {
		names[name] = true
	}
	var list []Row
	for name, troubled := range names {
		if troubled {
			r := Row{Name: name}
			r.ownTrips(t.accounts[name], t.w)
			r.complete(t.byAccount[name], t.accounts[name])
			list = append(list, r)
		}
	}
	return list
}

// ownTrips counts incidents one by one and their time together.
func (r *Row) ownTrips(events []event, w Window) {
	for _, s := range stretches(events) {
		r.addSpan(s, s.kind(), w)
	}
	for _, e := range events {
		if begins(e.OpenedAt, w) {
			r.Trips++
		} else {
			r.Carried++
		}
	}
	r.trips = r.Trips + r.Carried
	r.begun = r.trips
}

func (r *Row) addSpan(s stretch, kind Kind, w Window) {
	from, to := clip(s.from, s.to, w)
	r.Spans = append(r.Spans, Span{From: from, To: to, Kind: kind, StillOpen: s.open})
	r.OpenTime += Millis(to.Sub(from))
	r.StillOpen = r.StillOpen || s.open
}

// complete fills in what the calls say and why. n is nil where there was none.
func (r *Row) complete(n *numbers, events []event) {
	if n == nil {
		n = new(numbers)
	}
	r.Calls, r.Judged, r.Failed, r.Refused = n.calls, n.judged, n.failed, n.refused
	if n.judged >= MinCalls {
		r.FailureRate = float64(n.failed) / float64(n.judged)
		r.FailureRateLow = wilsonLow(n.failed, n.judged)
	}
	r.NearMiss = r.begun == 0 && r.FailureRateLow > nearMiss
	r.Causes = mostFrequent(n.causes)
	if r.Spans == nil {
		r.Spans = []Span{}
	}

	lengths := map[Kind]time.Duration{}
	for _, s := range r.Spans {
		lengths[s.Kind] += s.To.Sub(s.From)
	}
	r.kinds = slices.SortedFunc(maps.Keys(lengths), func(a, b Kind) int {
		return cmp.Or(cmp.Compare(lengths[b], lengths[a]), cmp.Compare(a, b))
	})
	switch len(r.kinds) {
	case 0:
	case 1:
		r.Kind = r.kinds[0]
	default:
		r.Kind = KindMixed
	}

	// The reasons are the calls that failed in this way. Where no such call was
	// counted (it was slow, or came before the window) the incidents know.
	r.why = ofKinds(r.Causes, r.kinds)
	if len(r.why) == 0 {
		sum := map[breaker.Cause]int64{}
		for _, e := range events {
			for _, c := range e.Causes {
				sum[c.Cause] += int64(c.N)
			}
		}
		r.why = ofKinds(mostFrequent(sum), r.kinds)
	}
	r.Why = r.reason(3)
}

// reason says kind and causes, at most so many, such as unreachable (refused ×37).
func (r *Row) reason(causes int) string {
	words := make([]string, 0, len(r.kinds))
	for _, k := range r.kinds {
		words = append(words, string(k))
	}
	kinds := strings.Join(words, " + ")
	list := causeList(r.why, causes)
	switch {
	case list == "":
		return kinds
	case r.plainKind():
		return list
	case kinds == "":
		return list
	default:
		return kinds + " (" + list + ")"
	}
}

// plainKind tells whether kind and cause are the same word, such as unreachable,
// which need not be said twice.
func (r *Row) plainKind() bool {
	return len(r.kinds) == 1 && len(r.why) == 1 && r.why[0].Cause.String() == string(r.kinds[0])
}

// causeList is the first causes with their counts, such as refused ×2, timeout.
func causeList(causes []breaker.CauseCount, most int) string {
	words := make([]string, 0, most)
	for _, c := range causes[:min(most, len(causes))] {
		words = append(words, causeWord(c))
	}
	if more := len(causes) - most; more > 0 {
		words = append(words, fmt.Sprintf("+%d more", more))
	}
	return strings.Join(words, ", ")
}

func causeWord(c breaker.CauseCount) string {
	if c.N <= 1 {
		return c.Cause.String()
	}
	return c.Cause.String() + " ×" + number(int64(c.N))
}

// ofKinds keeps the causes that make up one of the kinds; all of them where the
// kinds do not tell them apart.
func ofKinds(causes []breaker.CauseCount, kinds []Kind) []breaker.CauseCount {
	if len(kinds) == 0 || slices.Contains(kinds, KindMixed) {
		return causes
	}
	var list []breaker.CauseCount
	for _, c := range causes {
		if slices.Contains(kinds, kindOf(c.Cause)) {
			list = append(list, c)
		}
	}
	return list
}

// mostFrequent lists causes by their count, then in the vocabulary's order.
func mostFrequent(counts map[breaker.Cause]int64) []breaker.CauseCount {
	list := make([]breaker.CauseCount, 0, len(counts))
	for c, n := range counts {
		list = append(list, breaker.CauseCount{Cause: c, N: int(n)})
	}
	slices.SortFunc(list, func(a, b breaker.CauseCount) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Cause, b.Cause))
	})
	return list
}

func eventsIn(events []event, w Window) []event {
	var list []event
	for _, e := range events {
		if e.in(w) {
			list = append(list, e)
		}
	}
	return list
}

func (t *tally) agentRows() []AgentRow {
	list := []AgentRow{}
	names := map[string]bool{}
	for name, n := range t.byAgent {
		names[name] = n.failed > 0
	}
	for name, trips := range t.agents {
		names[name] = names[name] || trips > 0
	}
	for name, known := range names {
		if !known {
			continue
		}
		n := t.byAgent[name]
		if n == nil {
			n = new(numbers)
		}
		list = append(list, AgentRow{Name: name, Calls: n.calls, Faults: n.failed, Trips: t.agents[name], Causes: mostFrequent(n.causes)})
	}
	slices.SortFunc(list, func(a, b AgentRow) int {
		return cmp.Or(cmp.Compare(b.Trips, a.Trips), cmp.Compare(b.Faults, a.Faults), cmp.Compare(a.Name, b.Name))
	})
	return list
}

func (t *tally) incidentRows(loc *time.Location) []IncidentRow {
	list := make([]IncidentRow, 0, len(t.events))
	for _, e := range t.events {
		from, to := clip(e.OpenedAt, e.end, t.w)
		row := IncidentRow{
			Ref: breaker.Ref(e.ID), ID: e.ID, Breaker: e.Breaker, Rule: e.Rule, Labels: e.Labels,
			OpenedAt: e.OpenedAt.In(loc), From: from.In(loc), To: to.In(loc), OpenTime: Millis(to.Sub(from)),
			Carried: e.OpenedAt.Before(t.w.From), StillOpen: e.open,
			Openings: e.Trips, Refused: e.Refused, Blame: e.blame, Kind: e.kind, Causes: slices.Clone(e.Causes), Why: e.Detail,
		}
		if !e.open {
			row.ClosedAt = e.ClosedAt.In(loc)
		}
		if e.excused {
			row.Blame = blameMachine
		}
		if row.Causes == nil {
			row.Causes = []breaker.CauseCount{}
		}
		if row.Why == "" {
			row.Why = causeList(row.Causes, 3)
		}
		list = append(list, row)
	}
	return list
}
