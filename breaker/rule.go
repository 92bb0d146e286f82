package breaker

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rule is a breaker policy, as the configuration spells it. Fields left out
// have the defaults that WithDefaults fills in.
type Rule struct {
	Name  string   `yaml:"name" json:"name"`
	Match Match    `yaml:"match,omitempty" json:"match,omitzero"`
	Scope []string `yaml:"scope" json:"scope"` // of agent, machine, model, provider
	// Failures and Ignores list causes and classes; a cause named in one beats
	// its class in the other. Neutral causes are always ignored. Everything else
	// is a success.
	Failures []string `yaml:"failures" json:"failures"`
	Ignores  []string `yaml:"ignores,omitempty" json:"ignores,omitempty"`
	Trip     Trip     `yaml:"trip,omitempty" json:"trip"`
	// SlowAfter and SlowFirstTokenAfter turn an ok into slow or slow_first_token,
	// strictly over the limit, where the rule has that cause as a failure. Zero
	// SlowFirstTokenAfter is off.
	SlowAfter           Duration `yaml:"slow_after,omitempty" json:"slow_after,omitzero"`
	SlowFirstTokenAfter Duration `yaml:"slow_first_token_after,omitempty" json:"slow_first_token_after,omitzero"`
	// Mode is "" or "observe": record what would have tripped, refuse nothing.
	Mode string `yaml:"mode,omitempty" json:"mode,omitempty"`
	// Alerts is "" (sound), "sound", "silent" or "off".
	Alerts   string     `yaml:"alerts,omitempty" json:"alerts,omitempty"`
	LongOpen []Duration `yaml:"long_open,omitempty" json:"long_open,omitempty"` // empty: the steps of alerts.long_open
	Disabled bool       `yaml:"disabled,omitempty" json:"disabled,omitempty"`
	Cooldown Cooldown   `yaml:"cooldown,omitempty" json:"cooldown"`
	// MaxRetryAfter caps what a Retry-After may ask for.
	MaxRetryAfter Duration `yaml:"max_retry_after,omitempty" json:"max_retry_after,omitzero"`
	Probes        int      `yaml:"probes,omitempty" json:"probes"`         // successes in a row that close
	Concurrent    int      `yaml:"concurrent,omitempty" json:"concurrent"` // probes at a time
	// Lease is how long a probe may take when its caller gives no time-out;
	// MaxLease bounds every lease, extensions included.
	Lease    Duration `yaml:"lease,omitempty" json:"lease"`
	MaxLease Duration `yaml:"max_lease,omitempty" json:"max_lease"`
	// PassiveProbes lets a reported call count as the probe; nil is on.
	PassiveProbes *bool    `yaml:"passive_probes,omitempty" json:"passive_probes,omitempty"`
	StableAfter   Duration `yaml:"stable_after,omitempty" json:"stable_after"`
}

// Match narrows a rule to labels of its scope by globs; "" matches all.
type Match struct {
	Machine  string `yaml:"machine,omitempty" json:"machine,omitempty"`
	Model    string `yaml:"model,omitempty" json:"model,omitempty"`
	Provider string `yaml:"provider,omitempty" json:"provider,omitempty"`
	Agent    string `yaml:"agent,omitempty" json:"agent,omitempty"`
}

// Fits tells whether the labels match every glob that is given.
func (m Match) Fits(l Labels) bool {
	return globs(m.Agent, l.Agent) && globs(m.Machine, l.Machine) && globs(m.Model, l.Model) && globs(m.Provider, l.Provider)
}

// Trip says when a closed breaker opens. With nothing of Consecutive, Rate,
// AtOnce and OnRetryAfter given it is three failures in a row.
type Trip struct {
	Consecutive int    `yaml:"consecutive,omitempty" json:"consecutive,omitempty"`
	Rate        Share  `yaml:"rate,omitempty" json:"rate,omitzero"`
	Window      Window `yaml:"window,omitempty" json:"window,omitzero"`
	MinCalls    int    `yaml:"min_calls,omitempty" json:"min_calls,omitempty"`
	// Witnesses is the number of agents whose failures a trip needs, if that many
	// have reported in the last ten minutes; Models says the same of models.
	Witnesses    int      `yaml:"witnesses,omitempty" json:"witnesses,omitempty"`
	Models       int      `yaml:"models,omitempty" json:"models,omitempty"`
	AtOnce       []string `yaml:"at_once,omitempty" json:"at_once,omitempty"`
	OnRetryAfter Duration `yaml:"on_retry_after,omitempty" json:"on_retry_after,omitzero"`
}

// Cooldown says how long an open breaker waits: First × Factor^e, at most Max,
// ByCause in place of First, lengthened by up to Jitter of itself.
type Cooldown struct {
	First   Duration            `yaml:"first,omitempty" json:"first"`
	Factor  float64             `yaml:"factor,omitempty" json:"factor"`
	Max     Duration            `yaml:"max,omitempty" json:"max"`
	Jitter  float64             `yaml:"jitter,omitempty" json:"jitter,omitempty"`
	ByCause map[string]Duration `yaml:"by_cause,omitempty" json:"by_cause,omitempty"`
}

// Duration is a time.Duration that reads and prints as "60s" or "10m".
type Duration time.Duration

// D is the duration as the standard library has it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String prints the duration without zero units: 10m, not 10m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes what String prints.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a Go duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration: it looks like 60s or 10m", text)
	}
	*d = Duration(v)
	return nil
}

// Share is a part of one in millionths, so that comparing it with a count
// needs no rounding. Zero is none.
type Share uint32

const wholeShare = 1_000_000

// String prints a percentage.
func (s Share) String() string {
	return strconv.FormatFloat(float64(s)/wholeShare*100, 'f', -1, 64) + "%"
}

// MarshalText writes what String prints.
func (s Share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads "50%" or "0.5", over 0 and at most 1.
func (s *Share) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(strings.TrimSpace(string(text)), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || math.IsNaN(v) || v <= 0 || v > 1 {
		return fmt.Errorf("%q is no rate: it looks like 50%% or 0.5, over 0 and at most 100%%", text)
	}
	*s = Share(math.Round(v * wholeShare))
	return nil
}

// reached tells whether failures of calls are at least this share.
func (s Share) reached(failures, calls int) bool {
	return uint64(failures)*wholeShare >= uint64(s)*uint64(calls)
}

// Window is what a rate is taken over: the last Calls calls, or a Span.
type Window struct {
	Calls int
	Span  time.Duration
}

// String prints "100 calls" or a duration.
func (w Window) String() string {
	if w.Span > 0 {
		return Duration(w.Span).String()
	}
	return strconv.Itoa(w.Calls) + " calls"
}

// IsZero tells whether no window was given.
func (w Window) IsZero() bool { return w == Window{} }

// MarshalText writes what String prints.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads "100 calls" or a duration.
func (w *Window) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if number, ok := strings.CutSuffix(s, "calls"); ok {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 1 || n > maxWindowCalls {
			return fmt.Errorf("%q is no window: calls are 1 to %d", text, maxWindowCalls)
		}
		*w = Window{Calls: n}
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second || d > maxSpan {
		return fmt.Errorf("%q is no window: it looks like \"100 calls\" or 5m, at least 1s and at most %s", text, Duration(maxSpan))
	}
	*w = Window{Span: d}
	return nil
}

const (
	maxWindowCalls = 10_000
	maxSpan        = 24 * time.Hour
	maxRuleName    = 64
	maxWait        = Duration(30 * 24 * time.Hour)
)

// Builtin is the list of rules that ship.
func Builtin() []Rule {
	sec, min := Duration(time.Second), Duration(time.Minute)
	list := func(words ...string) []string { return words }
	return []Rule{
		{
			Name: "reachability", Scope: []string{"machine"},
			Failures: list("refused", "unreachable", "connect_timeout", "tls"),
			Ignores:  list("neutral", "caller_timeout", "caller_offline", "timeout", "reset"),
			Trip:     Trip{Consecutive: 3},
		},
		{
			Name: "hangs", Scope: []string{"machine"},
			Failures: list("timeout"),
			Ignores:  list("neutral", "caller_timeout", "caller_offline", "refused", "unreachable", "connect_timeout", "tls", "reset"),
			Trip:     Trip{Consecutive: 3, Models: 2},
		},
		{
			Name: "errors", Scope: []string{"machine", "model"},
			Failures: list("transport", "model_missing"),
			Ignores:  list("refused", "unreachable", "connect_timeout", "tls", "capacity", "access", "caller", "neutral"),
			Trip:     Trip{Consecutive: 3, Rate: wholeShare / 2, Window: Window{Calls: 100}, MinCalls: 20},
			Cooldown: Cooldown{First: 60 * sec, Factor: 2, Max: 10 * min, ByCause: map[string]Duration{
				"server_error": 30 * sec, "bad_gateway": 30 * sec, "unavailable": 30 * sec,
			}},
		},
		{
			Name: "quality", Scope: []string{"machine", "model"},
			Failures: list("quality"),
			Ignores:  list("transport", "capacity", "access", "caller", "neutral"),
			Trip:     Trip{Consecutive: 3, Rate: wholeShare / 5, Window: Window{Calls: 50}, MinCalls: 20, Witnesses: 2},
			Cooldown: Cooldown{First: 5 * min}, Probes: 3,
		},
		{
			Name: "latency", Scope: []string{"machine", "model"},
			Failures:  list("slow", "slow_first_token"),
			Ignores:   list("transport", "quality", "capacity", "access", "caller", "neutral"),
			Trip:      Trip{Rate: wholeShare / 2, Window: Window{Calls: 20}, MinCalls: 10},
			SlowAfter: 30 * sec, Alerts: AlertSilent,
			Cooldown: Cooldown{First: 2 * min}, Probes: 3,
		},
		{
			Name: "rate-limit", Scope: []string{"model", "provider"},
			Failures: list("rate_limited", "queue_full", "overloaded"),
			Ignores:  list("transport", "latency", "access", "caller", "neutral"),
			Trip:     Trip{Consecutive: 3, OnRetryAfter: 10 * sec}, Alerts: AlertSilent,
			Cooldown: Cooldown{First: 5 * min},
		},
		{
			Name: "access", Scope: []string{"provider"},
			Failures: list("auth", "quota"),
			Ignores:  list("transport", "latency", "quality", "capacity", "access", "caller", "neutral"),
			Trip:     Trip{Consecutive: 3, Witnesses: 2, AtOnce: []string{"quota"}},
			Cooldown: Cooldown{First: 60 * min, Max: 60 * min},
		},
		{
			Name: "permission", Scope: []string{"model", "provider"},
			Failures: list("forbidden"),
			Ignores:  list("transport", "latency", "quality", "capacity", "access", "caller", "neutral"),
			Trip:     Trip{Consecutive: 3},
			Cooldown: Cooldown{First: 10 * min},
		},
	}
}

// The levels of a rule's alerts.
const (
	AlertSound  = "sound"
	AlertSilent = "silent"
	AlertOff    = "off"
)

// ModeObserve is the mode of a rule that refuses nothing.
const ModeObserve = "observe"

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// WithDefaults fills in what was left out.
func (r Rule) WithDefaults() Rule {
	t := &r.Trip
	if t.Consecutive == 0 && t.Rate == 0 && len(t.AtOnce) == 0 && t.OnRetryAfter == 0 {
		t.Consecutive = 3
	}
	if t.Rate > 0 {
		if t.Window.IsZero() {
			t.Window = Window{Calls: 100}
		}
		if t.MinCalls == 0 {
			if t.MinCalls = 20; t.Window.Calls > 0 {
				t.MinCalls = min(20, t.Window.Calls)
			}
		}
	}
	r.SlowAfter = orElse(r.SlowAfter, Duration(30*time.Second))
	r.Alerts = orElse(r.Alerts, AlertSound)
	r.Cooldown.First = orElse(r.Cooldown.First, Duration(time.Minute))
	r.Cooldown.Factor = orElse(r.Cooldown.Factor, 1)
	r.Cooldown.Max = orElse(r.Cooldown.Max, max(Duration(10*time.Minute), r.Cooldown.First))
	r.MaxRetryAfter = orElse(r.MaxRetryAfter, Duration(time.Hour))
	r.Probes = orElse(r.Probes, 1)
	r.Concurrent = orElse(r.Concurrent, 1)
	r.Lease = orElse(r.Lease, Duration(2*time.Minute))
	r.MaxLease = orElse(r.MaxLease, max(Duration(30*time.Minute), r.Lease))
	r.StableAfter = orElse(r.StableAfter, Duration(10*time.Minute))
	if r.PassiveProbes == nil {
		on := true
		r.PassiveProbes = &on
	}
	return r
}

// Validate says everything that is wrong with the rule, each with the field's
// path, its value and what would be right; nil when it can be compiled.
func (r Rule) Validate() error {
	_, err := compile(r)
	return err
}

var scopeWords = [...]string{"agent", "machine", "model", "provider"}

// scopeMask has one bit for each label, in the order of scopeWords.
type scopeMask uint8

const (
	scopeAgent scopeMask = 1 << iota
	scopeMachine
	scopeModel
	scopeProvider
)

// rule is a Rule made ready for use.
type rule struct {
	Rule
	scope  scopeMask
	fail   causeSet
	ignore causeSet
	atOnce causeSet
	// slow and slowFirst say that the rule names these as failures, measures that
	// it names one of them.
	slow, slowFirst, measures bool
	watches                   bool // asks for witnesses or models
	yields                    bool // a failed probe's agent leaves the next to others
	// asked says that an ask of a closed breaker may still matter when its agent's
	// probe has failed: the waits in between may be shorter than the lease.
	asked    bool
	observe  bool
	passive  bool
	byCause  map[Cause]Duration
	breakers map[uint64]*breaker // by the hash of their labels
	size     int
	// fullUntil is a moment before which no breaker can be evicted.
	fullUntil instant
}

// compile checks the rule and makes it ready. A disabled rule needs a name only.
func compile(r Rule) (*rule, error) {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if r.Name == "" || len(r.Name) > maxRuleName || strings.Trim(r.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != "" {
		bad("name", "%q is no rule name: 1 to %d of letters, digits, _, - and . are allowed", r.Name, maxRuleName)
	}
	if r.Disabled {
		return nil, errors.Join(errs...)
	}
	r = r.WithDefaults()
	c := &rule{Rule: r, observe: r.Mode == ModeObserve, passive: *r.PassiveProbes}

	for _, word := range r.Scope {
		i := slices.Index(scopeWords[:], word)
		switch {
		case i < 0:
			bad("scope", "unknown label %q: known are %s", word, strings.Join(scopeWords[:], ", "))
		case c.scope&(1<<i) != 0:
			bad("scope", "%q is named twice", word)
		default:
			c.scope |= 1 << i
		}
	}
	if len(r.Scope) == 0 {
		bad("scope", "is missing: at least one of %s is needed", strings.Join(scopeWords[:], ", "))
	}
	for i, glob := range [...]string{r.Match.Agent, r.Match.Machine, r.Match.Model, r.Match.Provider} {
		if glob == "" {
			continue
		}
		field := "match." + scopeWords[i]
		if _, err := path.Match(glob, ""); err != nil {
			bad(field, "%q is no glob: * and ? and [a-z] are allowed", glob)
		}
		if c.scope&(1<<i) == 0 {
			bad(field, "%q is not a label of the scope (%s)", scopeWords[i], strings.Join(r.Scope, ", "))
		}
	}

	fail, failNamed, failErr := parseCauseSet(r.Failures)
	if failErr != nil {
		bad("failures", "%w", failErr)
	}
	ignore, ignoreNamed, err := parseCauseSet(r.Ignores)
	if err != nil {
		bad("ignores", "%w", err)
	}
	c.fail = failNamed | fail&^ignoreNamed
	c.ignore = ignoreNamed | ignore&^failNamed
	neutral, _, _ := parseCauseSet([]string{ClassNeutral.String()})
	switch {
	case failErr != nil:
	case len(r.Failures) == 0:
		bad("failures", "is missing: at least one cause or class is needed")
	case fail&neutral != 0:
		bad("failures", "%s is neutral and can be no failure", (fail & neutral).first())
	case fail.has(OK):
		bad("failures", "ok can be no failure")
	case c.fail&c.ignore != 0:
		bad("ignores", "%s is a failure too", (c.fail & c.ignore).first())
	case c.fail == 0:
		bad("failures", "nothing is left of them: all are in ignores")
	}
	c.ignore |= neutral
	c.slow, c.slowFirst = c.fail.has(Slow), c.fail.has(SlowFirstToken)
	c.measures = c.slow || c.slowFirst
	c.yields = r.Trip.Witnesses > 1
	c.watches = c.yields || r.Trip.Models > 1
	shortest := r.Cooldown.First
	for _, d := range r.Cooldown.ByCause {
		shortest = min(shortest, d)
	}
	// A Retry-After may stand in for the first wait, and a health check end it.
	c.asked = c.yields && (min(shortest, r.Cooldown.Max) < r.Lease || r.Trip.OnRetryAfter > 0 || c.reaches())
	c.breakers = make(map[uint64]*breaker)

	t := r.Trip
	between := func(field string, v, low, high int) {
		if v < low || v > high {
			bad(field, "%d is out of range: %d to %d are allowed", v, low, high)
		}
	}
	between("trip.consecutive", t.Consecutive, 0, 10_000)
	between("trip.min_calls", t.MinCalls, 0, maxWindowCalls)
	between("trip.witnesses", t.Witnesses, 0, 16)
	between("trip.models", t.Models, 0, 16)
	between("probes", r.Probes, 1, 100)
	between("concurrent", r.Concurrent, 1, 100)
	if t.Rate > wholeShare {
		bad("trip.rate", "%s is over 100%%", t.Rate)
	}
	if t.Rate == 0 && (!t.Window.IsZero() || t.MinCalls > 0) {
		bad("trip.rate", "is missing: window and min_calls belong to a rate")
	}
	if t.Rate > 0 && t.Window.Calls > 0 && t.MinCalls > t.Window.Calls {
		bad("trip.min_calls", "%d is more than the window of %s ever holds", t.MinCalls, t.Window)
	}
	if t.Models > 0 && c.scope&scopeModel != 0 {
		bad("trip.models", "%d makes no sense with model in the scope", t.Models)
	}
	if t.Witnesses > 1 && c.scope&scopeAgent != 0 {
		bad("trip.witnesses", "%d makes no sense with agent in the scope", t.Witnesses)
	}
	atOnce, _, err := parseCauseSet(t.AtOnce)
	if err != nil {
		bad("trip.at_once", "%w", err)
	} else if atOnce&^c.fail != 0 {
		bad("trip.at_once", "%s is no failure of this rule", (atOnce &^ c.fail).first())
	}
	c.atOnce = atOnce

	if !slices.Contains([]string{"", ModeObserve}, r.Mode) {
		bad("mode", "%q is unknown: only observe can be given", r.Mode)
	}
	if !slices.Contains([]string{AlertSound, AlertSilent, AlertOff}, r.Alerts) {
		bad("alerts", "%q is unknown: known are sound, silent, off", r.Alerts)
	}
	wait := func(field string, d, low, high Duration) {
		if d < low || d > high {
			bad(field, "%s is out of range: %s to %s are allowed", d, low, high)
		}
	}
	sec := Duration(time.Second)
	wait("slow_after", r.SlowAfter, Duration(time.Millisecond), maxWait)
	wait("slow_first_token_after", r.SlowFirstTokenAfter, 0, maxWait)
	wait("trip.on_retry_after", t.OnRetryAfter, 0, maxWait)
	wait("cooldown.first", r.Cooldown.First, sec, maxWait)
	wait("cooldown.max", r.Cooldown.Max, sec, maxWait)
	wait("max_retry_after", r.MaxRetryAfter, sec, maxWait)
	wait("lease", r.Lease, sec, maxWait)
	wait("max_lease", r.MaxLease, r.Lease, maxWait)
	wait("stable_after", r.StableAfter, sec, maxWait)
	if f := r.Cooldown.Factor; !(f >= 1 && f <= 100) {
		bad("cooldown.factor", "%v is out of range: 1 to 100 are allowed", f)
	}
	if j := r.Cooldown.Jitter; !(j >= 0 && j <= 1) {
		bad("cooldown.jitter", "%v is out of range: 0 to 1 (a share of the wait) are allowed", j)
	}
	if r.Cooldown.First > r.Cooldown.Max {
		bad("cooldown.first", "%s is more than cooldown.max, %s", r.Cooldown.First, r.Cooldown.Max)
	}
	for i, step := range r.LongOpen {
		wait("long_open["+strconv.Itoa(i)+"]", step, sec, maxWait)
		if i > 0 && step <= r.LongOpen[i-1] {
			bad("long_open["+strconv.Itoa(i)+"]", "%s does not follow %s: the steps must rise", step, r.LongOpen[i-1])
		}
	}
	for _, word := range slices.Sorted(maps.Keys(r.Cooldown.ByCause)) {
		field := "cooldown.by_cause." + word
		cause, err := ParseCause(word)
		if err != nil {
			bad(field, "%w", err)
			continue
		}
		if !c.fail.has(cause) {
			bad(field, "%s is no failure of this rule", word)
		}
		wait(field, r.Cooldown.ByCause[word], sec, maxWait)
		if c.byCause == nil {
			c.byCause = make(map[Cause]Duration)
		}
		c.byCause[cause] = r.Cooldown.ByCause[word]
	}
	return c, errors.Join(errs...)
}

// first is the set's first cause, in the vocabulary's order.
func (s causeSet) first() Cause {
	for c := OK; c < numCauses; c++ {
		if s.has(c) {
			return c
		}
	}
	return 0
}

// covers tells whether the rule sees calls with these labels: its scope is
// filled and its match fits.
func (r *rule) covers(l *Labels) bool {
	if r.scope&scopeAgent != 0 && l.Agent == "" || r.scope&scopeMachine != 0 && l.Machine == "" ||
		r.scope&scopeModel != 0 && l.Model == "" || r.scope&scopeProvider != 0 && l.Provider == "" {
		return false
	}
	return r.Match.Fits(*l)
}

func globs(glob, value string) bool {
	if glob == "" || glob == "*" {
		return true
	}
	// A model's name may hold slashes, which path.Match lets no * cross.
	ok, _ := path.Match(strings.ReplaceAll(glob, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00"))
	return ok
}

// key keeps the labels of the rule's scope.
func (r *rule) key(l *Labels) Labels {
	var k Labels
	if r.scope&scopeAgent != 0 {
		k.Agent = l.Agent
	}
	if r.scope&scopeMachine != 0 {
		k.Machine = l.Machine
	}
	if r.scope&scopeModel != 0 {
		k.Model = l.Model
	}
	if r.scope&scopeProvider != 0 {
		k.Provider = l.Provider
	}
	return k
}
