package breaker

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Labels say who calls what: the four names a rule's scope may be made of.
// Empty means that the call did not name it, so rules whose scope needs it do
// not see the call.
type Labels struct {
	Agent    string `json:"agent,omitempty"`
	Machine  string `json:"machine,omitempty"`
	Model    string `json:"model,omitempty"`
	Provider string `json:"provider,omitempty"`
}

// MaxLabel is the longest label, in characters.
const MaxLabel = 128

// CheckLabel says what is wrong with a label's value, nil when it is 1 to
// MaxLabel characters of valid UTF-8 without control characters.
func CheckLabel(value string) error {
	switch n := utf8.RuneCountInString(value); {
	case value == "":
		return fmt.Errorf("is missing: 1 to %d characters are needed", MaxLabel)
	case !utf8.ValidString(value):
		return fmt.Errorf("is not valid UTF-8")
	case n > MaxLabel:
		return fmt.Errorf("has %d characters: at most %d are allowed", n, MaxLabel)
	case strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("%q holds a control character", value)
	}
	return nil
}

// Served says where the answer that an agent used came from.
type Served uint8

// The ways a turn can be served. Only primary and fallback are calls that
// reached a machine; the other three are shown to no rule.
const (
	ServedPrimary Served = iota // also when nothing was said
	ServedFallback
	ServedCache
	ServedDegraded
	ServedRejected
)

var servedNames = [...]string{"primary", "fallback", "cache", "degraded", "rejected"}

// String is the word of the contract.
func (s Served) String() string {
	if int(s) >= len(servedNames) {
		return fmt.Sprintf("served(%d)", uint8(s))
	}
	return servedNames[s]
}

// Called tells whether a machine was reached for this outcome.
func (s Served) Called() bool { return s <= ServedFallback }

// MarshalText writes the word.
func (s Served) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word, "" being primary.
func (s *Served) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*s = ServedPrimary
		return nil
	}
	for i, name := range servedNames {
		if name == string(text) {
			*s = Served(i)
			return nil
		}
	}
	return fmt.Errorf("unknown served %q: known are %s", text, strings.Join(servedNames[:], ", "))
}

// Fallback names the target that a call replaced, and what had become of it.
type Fallback struct {
	Machine string `json:"machine,omitempty"`
	Model   string `json:"model,omitempty"`
	Cause   Cause  `json:"cause,omitempty"`
}

// Outcome is what one call came to, already classified. Only Agent, Machine
// and Cause are needed; everything else is zero when unknown.
type Outcome struct {
	Labels
	ID    string // the agent's own id of the call, ≤ 128 bytes
	Cause Cause
	// Latency is Slow or SlowFirstToken when the agent named it; rules also
	// measure for themselves.
	Latency    Cause
	Duration   time.Duration
	FirstToken time.Duration
	Age        time.Duration // since the call ended
	RetryAfter time.Duration // from the end of the call
	Timeout    time.Duration // the caller's own limit
	Permit     string
	Served     Served
	Fallback   Fallback
	HTTPStatus int
	Error      string // already cut and scrubbed
	CostUSD    float64
	// Write and IdempotencyKey mark a call whose effect must not happen twice.
	Write          bool
	IdempotencyKey string
}

// Verdict is what the engine made of one outcome.
type Verdict struct {
	Cause     Cause
	Class     Class
	Latency   Cause    // zero when the call was fast enough for every rule
	Counted   []string // rules that took it as success or failure, never nil
	Late      bool
	Duplicate bool
	// Uncounted are rules that have as many breakers as they may, none of which
	// can go, so that they did not see the call.
	Uncounted []string
	InDoubt   bool     // it was a write and nobody knows whether it took effect
	WouldTrip []string // observed breakers that would have tripped
	State     State    // of the circuit, afterwards
	// RetryAt is the latest time at which a breaker of the circuit lets the next
	// probe through; zero while it is closed or held without an end.
	RetryAt time.Time
}

// State is the state of a breaker, or of a circuit: the worst of its breakers.
type State uint8

// The states, from best to worst.
const (
	Closed State = iota
	HalfOpen
	Open
)

var stateNames = [...]string{"closed", "half_open", "open"}

// String is the word of the contract.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return fmt.Sprintf("state(%d)", uint8(s))
	}
	return stateNames[s]
}

// MarshalText writes the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word.
func (s *State) UnmarshalText(text []byte) error {
	for i, name := range stateNames {
		if name == string(text) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("unknown state %q: known are %s", text, strings.Join(stateNames[:], ", "))
}

// Ask is the question whether a call may be made.
type Ask struct {
	Labels
	RequestID string        // the agent's own; the same one gets the same probe
	Timeout   time.Duration // sets the lease of a probe, plus LeaseMargin
	// IdempotencyKey of a write: refused while one with this key is in doubt.
	IdempotencyKey string
}

// LeaseMargin is what a probe's lease lasts longer than the caller's time-out.
const LeaseMargin = 10 * time.Second

// AskAgain is the longest time for which an asker is sent away because of a
// probe in flight: it may close the breaker at any moment.
const AskAgain = 5 * time.Second

// The reasons for a refusal.
const (
	RefusedOpen          = "open"
	RefusedProbeInFlight = "probe_in_flight"
	RefusedHeldOpen      = "held_open"
	RefusedWriteInDoubt  = "write_in_doubt"
)

// Grant is the answer to an Ask.
type Grant struct {
	Allowed   bool
	Permit    string // only when allowed
	Probe     bool
	State     State
	ExpiresAt time.Time // of a probe's lease, otherwise zero
	Reason    string    // only when refused
	RetryAt   time.Time // only when refused; zero for a hold without an end
	Breakers  []View    // those that refuse
	// Write is what is known of the write that the ask's idempotency key names;
	// nil when nothing is. Refused with RefusedWriteInDoubt, it says where to ask.
	Write *Write
}

// Op is a control that a person puts on a breaker.
type Op string

// The controls.
const (
	OpReset      Op = "reset"
	OpHoldOpen   Op = "hold-open"
	OpHoldClosed Op = "hold-closed"
	OpObserve    Op = "observe"
	OpAuto       Op = "auto"
)

var ops = []Op{OpReset, OpHoldOpen, OpHoldClosed, OpObserve, OpAuto}

func opNames() string {
	names := make([]string, len(ops))
	for i, op := range ops {
		names[i] = string(op)
	}
	return strings.Join(names, ", ")
}

// Control asks for one Op on one breaker, by its name.
type Control struct {
	Breaker string
	Op      Op
	For     time.Duration // of a hold or observe; zero is without an end
	Actor   string
	Reason  string
}
