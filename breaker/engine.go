package breaker

import (
	"errors"
	"time"
)

type savedState struct{}

func (s *Saved) fill() {}

// Machine is what the configuration says of one machine.
type Machine struct {
	Provider string
	Aliases  []string
	Local    bool
}

// Config is what an engine is made of.
type Config struct {
	Rules       []Rule // in order of precedence; see Rules
	Machines    map[string]Machine
	MaxAge      time.Duration // 0: DefaultMaxAge
	IDsMax      int           // 0: DefaultIDsMax
	MaxBreakers int           // per rule; 0: DefaultMaxBreakers
	Key         []byte        // signs permits; 32 bytes
}

// ErrBadPermit is the error for a permit that this pool never gave out.
var ErrBadPermit = errors.New("unknown permit")

// Engine runs the breakers. All methods are safe for concurrent use.
type Engine struct{}

func New(cfg Config) (*Engine, error)                                       { panic("todo") }
func (e *Engine) Report(now time.Time, batch []Outcome) ([]Verdict, uint64) { panic("todo") }
func (e *Engine) Ask(now time.Time, ask Ask) (Grant, uint64)                { panic("todo") }

// Release gives a permit back; duplicate is true when its word was heard before.
func (e *Engine) Release(now time.Time, permit string) (duplicate bool, seq uint64, err error) {
	panic("todo")
}

// Extend gives the new deadline of a probe's lease (zero for a plain permit).
func (e *Engine) Extend(now time.Time, permit string, timeout time.Duration) (expires time.Time, seq uint64, err error) {
	panic("todo")
}
func (e *Engine) Control(now time.Time, c Control) (View, uint64, error) { panic("todo") }
func (e *Engine) Advance(now time.Time)                                  { panic("todo") }
func (e *Engine) Circuit(now time.Time, l Labels) Circuit                { panic("todo") } // Breakers: all that exist
// Circuits lists known circuits; empty labels match all, states empty matches all.
func (e *Engine) Circuits(now time.Time, l Labels, states ...State) []Circuit { panic("todo") }

// Breakers lists breakers, by name.
func (e *Engine) Breakers(now time.Time, l Labels, states ...State) []View { panic("todo") }
func (e *Engine) Breaker(now time.Time, name string) (View, bool)          { panic("todo") }
func (e *Engine) Canonical(l Labels) Labels                                { panic("todo") }
func (e *Engine) Rules() []Rule                                            { panic("todo") }

// Drain takes everything that happened since the last Drain.
func (e *Engine) Drain() Batch { panic("todo") }

// Backlog counts transitions, outcomes and asks waiting for Drain.
func (e *Engine) Backlog() int { panic("todo") }

// Restore sets a new engine to what was saved.
func (e *Engine) Restore(states []Saved, clock Clock) error { panic("todo") }

// Save is the whole state, by name.
func (e *Engine) Save() ([]Saved, Clock) { panic("todo") }
