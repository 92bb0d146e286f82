package breaker

import (
	"fmt"
	"slices"
	"strings"
)

// Cause is one word of the closed vocabulary that says what became of a call.
// The zero value means that nobody has named a cause yet; it prints as "".
type Cause uint8

// Class groups causes by who is to blame, and so by which rules count them.
// The zero value belongs to the zero Cause and prints as "".
type Class uint8

// The classes, in the order in which messages and documents list them.
const (
	_ Class = iota
	// ClassOK is a success.
	ClassOK
	// ClassTransport is a machine or service that did not do its work.
	ClassTransport
	// ClassLatency is a second verdict beside an ok: usable, but slow.
	ClassLatency
	// ClassQuality is an answer that must not be used.
	ClassQuality
	// ClassCapacity is a limit or a full queue: come back later.
	ClassCapacity
	// ClassAccess is an account that may not.
	ClassAccess
	// ClassCaller is the caller's own fault; it never trips anything shared.
	ClassCaller
	// ClassNeutral says nothing about the target; it gives a probe back.
	ClassNeutral
)

// The causes, grouped by class.
const (
	_ Cause = iota
	OK

	Refused
	Unreachable
	ConnectTimeout
	TLS
	Timeout
	Reset
	Stalled
	Truncated
	ServerError
	BadGateway
	Unavailable
	GatewayTimeout
	Crashed

	Slow
	SlowFirstToken

	Empty
	TooShort
	Malformed
	Schema
	MissingField
	BadReference
	TooFast
	Flagged

	RateLimited
	QueueFull
	Overloaded

	Auth
	Forbidden
	Quota
	ModelMissing

	BadRequest
	ContextOverflow
	TooLarge
	ContentBlocked
	Unaffordable
	CallerTimeout
	CallerOffline

	Cancelled
	Loading
	Unknown

	numCauses
)

var classNames = [...]string{"", "ok", "transport", "latency", "quality", "capacity", "access", "caller", "neutral"}

var causeTable = [numCauses]struct {
	name  string
	class Class
}{
	OK: {"ok", ClassOK},

	Refused:        {"refused", ClassTransport},
	Unreachable:    {"unreachable", ClassTransport},
	ConnectTimeout: {"connect_timeout", ClassTransport},
	TLS:            {"tls", ClassTransport},
	Timeout:        {"timeout", ClassTransport},
	Reset:          {"reset", ClassTransport},
	Stalled:        {"stalled", ClassTransport},
	Truncated:      {"truncated", ClassTransport},
	ServerError:    {"server_error", ClassTransport},
	BadGateway:     {"bad_gateway", ClassTransport},
	Unavailable:    {"unavailable", ClassTransport},
	GatewayTimeout: {"gateway_timeout", ClassTransport},
	Crashed:        {"crashed", ClassTransport},

	Slow:           {"slow", ClassLatency},
	SlowFirstToken: {"slow_first_token", ClassLatency},

	Empty:        {"empty", ClassQuality},
	TooShort:     {"too_short", ClassQuality},
	Malformed:    {"malformed", ClassQuality},
	Schema:       {"schema", ClassQuality},
	MissingField: {"missing_field", ClassQuality},
	BadReference: {"bad_reference", ClassQuality},
	TooFast:      {"too_fast", ClassQuality},
	Flagged:      {"flagged", ClassQuality},

	RateLimited: {"rate_limited", ClassCapacity},
	QueueFull:   {"queue_full", ClassCapacity},
	Overloaded:  {"overloaded", ClassCapacity},

	Auth:         {"auth", ClassAccess},
	Forbidden:    {"forbidden", ClassAccess},
	Quota:        {"quota", ClassAccess},
	ModelMissing: {"model_missing", ClassAccess},

	BadRequest:      {"bad_request", ClassCaller},
	ContextOverflow: {"context_overflow", ClassCaller},
	TooLarge:        {"too_large", ClassCaller},
	ContentBlocked:  {"content_blocked", ClassCaller},
	Unaffordable:    {"unaffordable", ClassCaller},
	CallerTimeout:   {"caller_timeout", ClassCaller},
	CallerOffline:   {"caller_offline", ClassCaller},

	Cancelled: {"cancelled", ClassNeutral},
	Loading:   {"loading", ClassNeutral},
	Unknown:   {"unknown", ClassNeutral},
}

var causesByName = func() map[string]Cause {
	m := make(map[string]Cause, numCauses)
	for c := OK; c < numCauses; c++ {
		m[causeTable[c].name] = c
	}
	return m
}()

// Causes lists every cause in the vocabulary's order.
func Causes() []Cause {
	list := make([]Cause, 0, numCauses-1)
	for c := OK; c < numCauses; c++ {
		list = append(list, c)
	}
	return list
}

// Class tells which class the cause belongs to.
func (c Cause) Class() Class {
	if c >= numCauses {
		return 0
	}
	return causeTable[c].class
}

// String is the cause's word, "" for the zero value.
func (c Cause) String() string {
	if c >= numCauses {
		return fmt.Sprintf("cause(%d)", uint8(c))
	}
	return causeTable[c].name
}

// MarshalText writes the cause's word.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a cause's word; "" gives the zero value, and the error
// for an unknown word lists the known ones.
func (c *Cause) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*c = 0
		return nil
	}
	got, err := ParseCause(string(text))
	if err == nil {
		*c = got
	}
	return err
}

// String is the class's word, "" for the zero value.
func (c Class) String() string {
	if int(c) >= len(classNames) {
		return fmt.Sprintf("class(%d)", uint8(c))
	}
	return classNames[c]
}

// MarshalText writes the class's word.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a class's word; the error for an unknown one lists them.
func (c *Class) UnmarshalText(text []byte) error {
	i := slices.Index(classNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown class %q: known are %s", text, strings.Join(classNames[1:], ", "))
	}
	*c = Class(i)
	return nil
}

// ParseCause turns a word into its cause. The error names the word and lists
// the known ones.
func ParseCause(word string) (Cause, error) {
	if c, ok := causesByName[word]; ok {
		return c, nil
	}
	return 0, fmt.Errorf("unknown cause %q: known are %s", word, knownCauses())
}

func knownCauses() string {
	words := make([]string, 0, numCauses-1)
	for c := OK; c < numCauses; c++ {
		words = append(words, causeTable[c].name)
	}
	return strings.Join(words, ", ")
}

// causeSet is a set of causes, one bit each.
type causeSet uint64

func (s causeSet) has(c Cause) bool { return s>>c&1 == 1 }

// parseCauseSet reads causes and classes, as a rule lists them: a named cause
// beats its class, so the second result holds the causes that were named.
func parseCauseSet(words []string) (all, named causeSet, err error) {
	for _, word := range words {
		if c, ok := causesByName[word]; ok {
			all |= 1 << c
			named |= 1 << c
			continue
		}
		class := slices.Index(classNames[:], word)
		if class < 1 {
			return 0, 0, fmt.Errorf("unknown cause or class %q: known classes are %s; known causes are %s",
				word, strings.Join(classNames[1:], ", "), knownCauses())
		}
		for c := OK; c < numCauses; c++ {
			if causeTable[c].class == Class(class) {
				all |= 1 << c
			}
		}
	}
	return all, named, nil
}
