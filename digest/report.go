package digest

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"breakerbot/breaker"
)

// The editions of a report.
const (
	EditionDaily   = "daily"   // sent at its time, one for each chat and local day
	EditionPreview = "preview" // asked for; uses nothing up
)

// LateAfter is how long after its time a digest says that it is late.
const LateAfter = 10 * time.Minute

// MinCalls is the number of calls from which on a failure rate means anything.
const MinCalls = 20

// nearMiss is the failure rate's lower bound from which on a machine or model
// is worth a row though nothing of it has tripped.
const nearMiss = 0.01

// Millis is a span of time that JSON carries as whole milliseconds.
type Millis time.Duration

// MarshalJSON writes whole milliseconds.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(m).Milliseconds())
}

// UnmarshalJSON reads whole milliseconds.
func (m *Millis) UnmarshalJSON(data []byte) error {
	var n int64
	if err := json.Unmarshal(data, &n); err != nil {
		return fmt.Errorf("read milliseconds %s: %w", cut(string(data), 40), err)
	}
	*m = Millis(time.Duration(n) * time.Millisecond)
	return nil
}

// String is the span as messages write it, such as 1 h 12 m.
func (m Millis) String() string { return span(time.Duration(m)) }

// Kind says in what way something was out of order, so that a person knows where
// to look first.
type Kind string

// The kinds.
const (
	KindUnreachable Kind = "unreachable" // no connection: off, rebooting, network
	KindHung        Kind = "hung"        // connects and then says nothing
	KindErroring    Kind = "erroring"    // answers with errors or breaks off
	KindSlow        Kind = "slow"        // good answers, too late
	KindGarbage     Kind = "garbage"     // answers that must not be used
	KindLimited     Kind = "limited"     // the account: rate limit, quota, rights, overload
	KindMixed       Kind = "mixed"       // several of these, none before the others
)

// Report is a digest's content: everything that its forms show, in the order in
// which they show it.
type Report struct {
	Edition     string    `json:"edition"`
	GeneratedAt time.Time `json:"generated_at"`
	DueAt       time.Time `json:"due_at,omitzero"` // zero for a preview
	// LateBy is how long after DueAt the report was made; zero up to LateAfter.
	LateBy Millis `json:"late_ms,omitempty"`
	Zone   string `json:"zone"`
	// Window is half-open: what happened at Window.To is the next one's.
	Window Window `json:"window"`
	Before Window `json:"before"`
	// Quiet is a window with calls, without anything open in it at any time, and
	// with every alert delivered.
	Quiet bool `json:"quiet"`
	// NoData is a window of which nothing is known: nobody reported a call or
	// asked for a permit, and nothing was open. It is not the same as no trips.
	NoData bool `json:"no_data"`
	// HistoryFrom is set when history begins within the window, which is then
	// known only in part.
	HistoryFrom time.Time `json:"history_from,omitzero"`
	Totals      Totals    `json:"totals"`
	// TotalsBefore is nil when history does not cover the window before; then no
	// row has a change either.
	TotalsBefore *Totals `json:"totals_before,omitempty"`

	Machines  []Row         `json:"machines"`
	Models    []Row         `json:"models"`
	Accounts  []Row         `json:"accounts"`
	Agents    []AgentRow    `json:"agents"`
	Incidents []IncidentRow `json:"incidents"`

	// Undelivered are alerts of the window that reached no chat.
	Undelivered int `json:"undelivered_alerts"`
}

// Totals are sums over a window. Those of adjacent windows add up to the sums
// over both, except for what is open at a moment: Carried, CarriedOutages and
// StillOpen.
type Totals struct {
	Outages int `json:"outages"` // of machines, begun in the window
	Trips   int `json:"trips"`   // incidents begun in the window
	Carried int `json:"carried"` // incidents open at the window's beginning
	// CarriedOutages are outages that had begun before the window.
	CarriedOutages int `json:"carried_outages"`
	// OpenTime is the time in which anything was open: the union of all
	// incidents, not their sum.
	OpenTime  Millis `json:"open_ms"`
	StillOpen int    `json:"still_open"` // incidents open at GeneratedAt

	Calls        int64 `json:"calls"`         // that went out to a machine
	Failed       int64 `json:"calls_failed"`  // by fault of a machine, model or account
	CallerFaults int64 `json:"caller_faults"` // by fault of the agent
	Refused      int64 `json:"refused"`       // permits refused
	Rerouted     int64 `json:"rerouted"`      // calls served as fallback
	Cached       int64 `json:"cached"`        // turns served from a cache
	Degraded     int64 `json:"degraded"`      // turns answered without any model
	Rejected     int64 `json:"rejected"`      // turns that agents gave up unserved
	// WaitingSpent is the sum of the durations of the failed calls.
	WaitingSpent Millis `json:"waiting_spent_ms"`
	// WaitingSaved estimates the waiting that refusals made needless: for each
	// machine and model, permits refused because a breaker was open or its probe
	// in flight × the mean duration of the failed calls to it in this window;
	// the machine's mean, else that of all, where none to it failed. An agent that
	// asks again is counted again, so it is what the same number of calls would
	// have cost, not hours by the clock.
	WaitingSaved Millis  `json:"waiting_saved_ms"`
	CostUSD      float64 `json:"cost_usd"`
}

// Row is one machine, model or account in its ranking.
type Row struct {
	Rank    int    `json:"rank"` // from 1
	Name    string `json:"name"`
	Machine string `json:"machine,omitempty"` // on which a model runs

	Outages int `json:"outages"` // of a machine, begun in the window
	Trips   int `json:"trips"`   // incidents begun in the window; of a model its own
	// Carried are outages (of models and accounts, incidents) that had begun
	// before the window and lasted into it.
	Carried int `json:"carried"`
	// Excused are a model's trips that its machine's outage explains.
	Excused   int    `json:"excused,omitempty"`
	OpenTime  Millis `json:"open_ms"`
	StillOpen bool   `json:"still_open"`

	Calls int64 `json:"calls"`
	// Judged are the calls that say something about this row: its failures and
	// the calls that it did right. FailureRate is Failed/Judged, and
	// FailureRateLow the lower bound of its 95 % Wilson interval, both zero below
	// MinCalls.
	Judged         int64   `json:"judged"`
	Failed         int64   `json:"failed"`
	FailureRate    float64 `json:"failure_rate"`
	FailureRateLow float64 `json:"failure_rate_low"`
	Refused        int64   `json:"refused"`
	// NearMiss is a row that never tripped and yet fails in more than 1 % of its
	// calls, with 95 % confidence.
	NearMiss bool `json:"near_miss"`

	Causes []breaker.CauseCount `json:"causes"` // of Failed, most frequent first
	Kind   Kind                 `json:"kind,omitempty"`
	Why    string               `json:"why,omitempty"`
	Change *Change              `json:"change,omitempty"`
	Spans  []Span               `json:"spans"` // when it was open within the window

	begun          int    // what the ranking goes by: outages, or else trips
	outages, trips int    // that touch the window
	kinds          []Kind // longest first
	why            []breaker.CauseCount
}

// Flaky tells whether the row has something to tell, so that the short forms
// show it.
func (r Row) Flaky() bool { return r.begun > 0 || r.NearMiss }

// Change is a row's difference to the window before; more is worse. What had
// begun before a window and lasted into it counts in both, so that an outage
// that goes on is no improvement.
type Change struct {
	Outages  int    `json:"outages"`
	Trips    int    `json:"trips"`
	OpenTime Millis `json:"open_ms"`
}

// Span is a part of the window in which something was open.
type Span struct {
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Kind      Kind      `json:"kind,omitempty"`
	StillOpen bool      `json:"still_open"`
}

// AgentRow is one agent's own faults, which are held against no machine.
type AgentRow struct {
	Name   string               `json:"name"`
	Calls  int64                `json:"calls"`
	Faults int64                `json:"faults"`
	Trips  int                  `json:"trips"` // of rules whose scope is the agent alone
	Causes []breaker.CauseCount `json:"causes"`
}

// IncidentRow is one incident as far as it lies in the window.
type IncidentRow struct {
	Ref     string `json:"ref"`
	ID      uint64 `json:"id"`
	Breaker string `json:"breaker"`
	Rule    string `json:"rule"`
	breaker.Labels
	OpenedAt time.Time `json:"opened_at"`
	ClosedAt time.Time `json:"closed_at,omitzero"` // zero while it lasts
	// From and To are its part within the window.
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	OpenTime  Millis    `json:"open_ms"`    // from From to To
	Carried   bool      `json:"carried"`    // begun before the window
	StillOpen bool      `json:"still_open"` // at GeneratedAt
	Openings  int       `json:"openings"`   // the trip, and each failed probe
	Refused   int       `json:"refused"`    // permits, in its whole life
	// Blame is what it is held against: machine, model, account or agent.
	Blame  string               `json:"blame"`
	Kind   Kind                 `json:"kind"`
	Causes []breaker.CauseCount `json:"causes"`
	Why    string               `json:"why"` // the incident's own sentence
}

// Options say for what a report is made.
type Options struct {
	Edition string    // empty is EditionPreview
	Due     time.Time // when it should have been sent; zero for a preview
}

// Build makes the report of a window out of the numbers of the window and the
// one before it. It is pure: the same numbers, in whatever order, give the same
// report. Incidents are cut at the window's bounds; one that lasts is counted up
// to the window's end, or up to now when that is earlier.
//
// The ranking is meant to be fair, and so that the same mishap is not told three
// times:
//
//   - Incidents of one machine that overlap or touch are one outage, named by
//     what the machine itself did where one of them is the machine's, otherwise by
//     the kind that lasted longest.
//   - A model's trip that its machine's own outage explains is the machine's. It
//     is explained when all its causes are of class transport, it opened no more
//     than explainLead before that outage and within it, and closed no more than
//     explainTail after it: a hung machine trips its models' breakers before its
//     own, and each of them closes only at its own next probe.
//   - A model is not blamed for calls that never reached it, nor for time-outs on
//     a machine that hung in the window.
//   - Rate limits, quota, overload and rights are an account's, and stand apart.
//   - What an agent did wrong is counted for the agent and nowhere else.
//
// Machines are ranked by outages, then open time, then the lower bound of the
// 95 % confidence interval of the failure rate once there are MinCalls calls,
// then name; models and accounts the same with their own trips. The bound is
// Wilson's score interval, so that 2 failures of 3 calls do not stand above 200
// of 1,000: E. B. Wilson, "Probable inference, the law of succession, and
// statistical inference", JASA 22 (1927) 209-212; recommended for small numbers
// by L. D. Brown, T. T. Cai and A. DasGupta, "Interval estimation for a binomial
// proportion", Statistical Science 16 (2001) 101-133; for ranking by E. Miller,
// "How not to sort by average rating" (2009).
func Build(data Data, w, before Window, now time.Time, loc *time.Location, opt Options) Report {
	if loc == nil {
		loc = time.UTC
	}
	if opt.Edition == "" {
		opt.Edition = EditionPreview
	}
	r := Report{
		Edition:     opt.Edition,
		GeneratedAt: now.In(loc),
		Zone:        zoneName(w.To.In(loc)),
		Window:      Window{From: w.From.In(loc), To: w.To.In(loc)},
		Before:      Window{From: before.From.In(loc), To: before.To.In(loc)},
		Undelivered: data.Undelivered,
	}
	if !opt.Due.IsZero() {
		r.DueAt = opt.Due.In(loc)
		if late := now.Sub(opt.Due); late > LateAfter {
			r.LateBy = Millis(late)
		}
	}
	if h := data.HistoryFrom; h.After(w.From) && h.Before(w.To) {
		r.HistoryFrom = h.In(loc)
	}

	cur := tallyUp(data.Incidents, data.Counts, data.Refusals, w, now)
	r.Totals = cur.totals()
	var prior *tally
	if !data.HistoryFrom.IsZero() && !data.HistoryFrom.After(before.From) {
		prior = tallyUp(data.Incidents, data.CountsBefore, data.RefusalsBefore, before, now)
		totals := prior.totals()
		r.TotalsBefore = &totals
	}
	r.Machines = rows(cur, prior, (*tally).machineRows, loc)
	r.Models = rows(cur, prior, (*tally).modelRows, loc)
	r.Accounts = rows(cur, prior, (*tally).accountRows, loc)
	r.Agents = cur.agentRows()
	r.Incidents = cur.incidentRows(loc)

	t := r.Totals
	idle := t.Calls+t.Cached+t.Degraded+t.Rejected+t.Refused == 0
	calm := len(r.Incidents) == 0 && r.Undelivered == 0
	r.NoData, r.Quiet = calm && idle, calm && !idle
	return r
}

// zoneName is how the zone of a time is called: the computer's own has no name
// but its abbreviation.
func zoneName(t time.Time) string {
	if t.Location() == time.Local {
		name, _ := t.Zone()
		return name
	}
	return t.Location().String()
}

// JSON is the report as GET /v1/digest answers it, indented, with a newline at
// its end.
func JSON(r Report) ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write digest of %s as JSON: %w", r.Window.To.Format(time.DateOnly), err)
	}
	return append(data, '\n'), nil
}

// wilsonLow is the lower bound of the 95 % Wilson score interval for so many
// failures in n calls; zero without calls.
func wilsonLow(failed, n int64) float64 {
	if n <= 0 || failed <= 0 {
		return 0
	}
	const z = 1.959963984540054 // the normal distribution's 97.5 % quantile
	total := float64(n)
	p := min(float64(failed)/total, 1)
	centre := p + z*z/(2*total)
	margin := z * math.Sqrt(p*(1-p)/total+z*z/(4*total*total))
	return max(0, (centre-margin)/(1+z*z/total))
}
