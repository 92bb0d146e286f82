package breaker

import (
	"encoding/json"
	"fmt"
	"time"
)

// The reasons of transitions, as the tables and messages spell them.
const (
	ReasonTripped      = "tripped"
	ReasonBootCheck    = "boot_check"
	ReasonProbeGranted = "probe_granted"
	ReasonProbePassive = "probe_passive"
	ReasonProbeFailed  = "probe_failed"
	ReasonProbesLost   = "probes_lost"
	ReasonProbeOK      = "probe_ok"
	ReasonHoldOpen     = "hold_open"
	ReasonHoldClosed   = "hold_closed"
	ReasonObserve      = "observe"
	ReasonAuto         = "auto"
	ReasonExpired      = "expired"
	ReasonReset        = "reset"
)

// Transition is one change of state, or one control, of one breaker.
type Transition struct {
	At      time.Time `json:"at"`
	Breaker string    `json:"breaker"`
	Rule    string    `json:"rule"`
	Labels
	From     State     `json:"from_state"`
	To       State     `json:"to_state"`
	Cause    Cause     `json:"cause,omitempty"` // zero for controls
	Reason   string    `json:"reason"`
	Detail   string    `json:"detail,omitempty"` // a sentence for people
	Evidence *Evidence `json:"evidence,omitempty"`
	Actor    string    `json:"actor,omitempty"` // who put the control, or whose call it was
	Era      uint64    `json:"era"`
	// Incident is the incident's number: the era of the trip that began it.
	// Zero for a hold or reset outside an incident.
	Incident uint64    `json:"incident_id,omitempty"`
	RetryAt  time.Time `json:"retry_at,omitzero"` // of an open breaker
}

// Trips tells whether the transition begins an incident.
func (t Transition) Trips() bool {
	return t.Incident != 0 && t.Incident == t.Era
}

// Closes tells whether the transition ends an incident.
func (t Transition) Closes() bool {
	return t.Incident != 0 && t.To == Closed
}

// Evidence is what a breaker saw when it changed.
type Evidence struct {
	Agent      string        `json:"agent,omitempty"` // of the last failure
	Error      string        `json:"error,omitempty"` // of the last failure, scrubbed
	HTTPStatus int           `json:"http_status,omitempty"`
	Duration   time.Duration `json:"duration_ns,omitempty"`
	Run        int           `json:"run,omitempty"`      // failures in a row
	Calls      int           `json:"calls,omitempty"`    // in the window
	Failures   int           `json:"failures,omitempty"` // in the window
	Causes     []CauseCount  `json:"causes,omitempty"`   // most frequent first
	Agents     int           `json:"agents,omitempty"`   // distinct, where the rule has witnesses
	Probes     int           `json:"probes,omitempty"`   // failed so far in this incident
}

// CauseCount is a cause and how often it came.
type CauseCount struct {
	Cause Cause `json:"cause"`
	N     int   `json:"n"`
}

// Incident is a breaker's time from its trip until it closes again.
type Incident struct {
	ID      uint64 `json:"id"`
	Breaker string `json:"breaker"`
	Rule    string `json:"rule"`
	Labels
	OpenedAt time.Time    `json:"opened_at"`
	ClosedAt time.Time    `json:"closed_at,omitzero"` // zero while it lasts
	Trips    int          `json:"trips"`              // openings: the first and each after a probe
	Causes   []CauseCount `json:"causes"`
	Detail   string       `json:"detail,omitempty"`
	Evidence *Evidence    `json:"evidence,omitempty"`
	// Refused counts the permits refused because of it, so far.
	Refused int `json:"refused"`
}

// Ref is the incident's short name in messages and commands, without the #:
// its number in base 32, at least three digits, never reused.
func Ref(incident uint64) string {
	const digits = "0123456789abcdefghjkmnpqrstvwxyz" // Crockford: no i, l, o, u
	var buf [13]byte
	i := len(buf)
	for incident > 0 || len(buf)-i < 3 {
		i--
		buf[i] = digits[incident&31]
		incident >>= 5
	}
	return string(buf[i:])
}

// ParseRef reads what Ref wrote, with or without the #, in either case.
func ParseRef(ref string) (uint64, error) {
	s := ref
	if len(s) > 0 && s[0] == '#' {
		s = s[1:]
	}
	if len(s) < 1 || len(s) > 12 {
		return 0, fmt.Errorf("%q is no reference: it looks like #01c", ref)
	}
	var n uint64
	for _, r := range []byte(s) {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		var v byte
		switch {
		case '0' <= r && r <= '9':
			v = r - '0'
		case r == 'o':
			v = 0
		case r == 'i' || r == 'l':
			v = 1
		case 'a' <= r && r <= 'h':
			v = r - 'a' + 10
		case 'j' <= r && r <= 'k':
			v = r - 'j' + 18
		case 'm' <= r && r <= 'n':
			v = r - 'm' + 20
		case 'p' <= r && r <= 't':
			v = r - 'p' + 22
		case 'v' <= r && r <= 'z':
			v = r - 'v' + 27
		default:
			return 0, fmt.Errorf("%q is no reference: it looks like #01c", ref)
		}
		n = n<<5 | uint64(v)
	}
	return n, nil
}

// Filter narrows a look at transitions or incidents. Zero fields mean all.
type Filter struct {
	Since, Until time.Time // half-open: Since ≤ at < Until
	Machine      string
	Model        string
	Limit        int    // rows of a page
	Cursor       string // of the page before
}

// View is one breaker as others see it.
type View struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
	Labels
	State State `json:"state"`
	// Reason is held_open, held_closed or observe under an override, otherwise
	// open or probe_in_flight when the breaker is not closed.
	Reason    string       `json:"reason,omitempty"`
	Cause     Cause        `json:"cause,omitempty"` // of its last opening
	OpenedAt  time.Time    `json:"opened_at,omitzero"`
	RetryAt   time.Time    `json:"retry_at,omitzero"`
	Era       uint64       `json:"era"`
	EraAt     time.Time    `json:"era_at,omitzero"`
	Incident  uint64       `json:"incident_id,omitempty"`
	Run       int          `json:"run"`
	Calls     int          `json:"window_calls"`
	Failures  int          `json:"window_failures"`
	WouldTrip int          `json:"would_trip,omitempty"` // eras in which an observed breaker would have tripped
	Probes    int          `json:"probes_failed,omitempty"`
	Override  *Override    `json:"override,omitempty"`
	Last      *LastFailure `json:"last_failure,omitempty"`
	// Made is true where Control has just made the breaker: no call has been heard
	// of that it counts, so its name may be mistyped.
	Made bool `json:"-"`
}

// Override is a control in force.
type Override struct {
	Op     Op        `json:"op"`
	Actor  string    `json:"actor,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero: until somebody ends it
}

// LastFailure is the last result that a breaker counted as a failure.
type LastFailure struct {
	At       time.Time     `json:"at"`
	Cause    Cause         `json:"cause"`
	Agent    string        `json:"agent"`
	Model    string        `json:"model,omitempty"`
	Error    string        `json:"error,omitempty"`
	Status   int           `json:"http_status,omitempty"`
	Duration time.Duration `json:"duration_ns,omitempty"`
}

// Circuit is what a call with these labels passes through.
type Circuit struct {
	Labels
	State    State     `json:"state"`
	RetryAt  time.Time `json:"retry_at,omitzero"`
	Breakers []View    `json:"breakers"` // those that are not closed, or all when asked for
}

// Applied is one outcome as it went into the statistics.
type Applied struct {
	Labels
	At       time.Time // when the engine applied it
	Cause    Cause
	Latency  Cause
	Served   Served
	Fallback Fallback
	Duration time.Duration
	CostUSD  float64
	Late     bool
}

// Asked is how often an ask was answered in one way within a minute.
type Asked struct {
	Labels
	At     time.Time // of the first
	Reason string    // granted, probe, or a refusal's reason
	// Incidents are those whose breakers refused.
	Incidents []uint64
	N         int // how many such answers
}

// The reasons under which an Asked counts grants.
const (
	AskedGranted = "granted"
	AskedProbe   = "probe"
)

// Heard is a call that a word has come of, so that a second one is known for a
// duplicate: a digest of the agent and its id, or of the permit.
type Heard struct {
	Call [16]byte
	At   time.Time
}

// HeardFor is how long a call is remembered, if as many fit.
const HeardFor = 24 * time.Hour

// Batch is everything that has happened since the last Drain, in the engine's
// order. From and To are its place in that order: the next batch's From is
// this one's To.
type Batch struct {
	From, To    uint64
	Transitions []Transition
	Outcomes    []Applied
	Asks        []Asked
	Heard       []Heard  // calls that a first word came of
	States      []Saved  // breakers touched, as they are at To
	Writes      []Write  // put in doubt or reconciled, as they are at To
	Lately      []Lately // touched, as they are at To
	Routes      []Routed
	Evicted     []string
	Inputs      Inputs // where the engine records them
	Clock       Clock
	memory      *copier // of States and Lately, for Reuse
}

// Empty tells whether there is nothing to write.
func (b Batch) Empty() bool { return b.From == b.To }

// Clock is what the engine counts: its time and its numbers, none ever reused.
type Clock struct {
	Now    time.Time `json:"now"`
	Era    uint64    `json:"era"`
	Permit uint64    `json:"permit"`
	Seq    uint64    `json:"seq"`
}

// Snapshot is everything that an engine knows, to be stored and given back to
// Restore.
type Snapshot struct {
	States []Saved  `json:"states"` // by name
	Clock  Clock    `json:"clock"`
	Heard  []Heard  `json:"heard"`  // oldest first
	Writes []Write  `json:"writes"` // by key
	Lately []Lately `json:"lately"` // by key
}

// Lately is what an agent, a machine or a target has done in the last minutes,
// for the judgements that need history. Key is unique, and At the time of its
// last change; the rest is in its JSON form.
type Lately struct {
	Key  string
	At   time.Time
	full *savedLately
}

// LatelyFor is how long what was done lately matters to anybody.
const LatelyFor = 24 * time.Hour

// MarshalJSON writes the whole of it.
func (l Lately) MarshalJSON() ([]byte, error) { return json.Marshal(l.full) }

// UnmarshalJSON reads what MarshalJSON wrote, of this version or an older one.
func (l *Lately) UnmarshalJSON(data []byte) error {
	full := &savedLately{}
	if err := json.Unmarshal(data, full); err != nil {
		return err
	}
	*l = Lately{Key: string(full.appendKey(nil)), full: full}
	return nil
}

// Saved is a breaker's whole state, to be stored and given back to Restore.
// Only Name, Rule, Labels, State, Era and RetryAt are for others to read; the
// rest is in State's JSON form.
type Saved struct {
	Name string
	Rule string
	Labels
	State   State
	Era     uint64
	RetryAt time.Time
	// kept is a copy from a running engine, full what was read; one is set.
	kept *breaker
	full *savedState
}

// MarshalJSON writes the whole state.
func (s Saved) MarshalJSON() ([]byte, error) { return json.Marshal(s.whole()) }

// UnmarshalJSON reads what MarshalJSON wrote, of this version or an older one.
func (s *Saved) UnmarshalJSON(data []byte) error {
	f := &savedState{}
	if err := json.Unmarshal(data, f); err != nil {
		return err
	}
	*s = Saved{f.Name, f.Rule, f.Labels, f.State, f.Era, f.RetryAt.time(), nil, f}
	return nil
}
