package breaker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Chain is a list of targets that can stand in for each other, as the
// configuration spells it.
type Chain struct {
	// MaxHops is how many targets beyond the first a turn may try; nil is
	// DefaultMaxHops.
	MaxHops *int `yaml:"max_hops,omitempty" json:"max_hops"`
	// DegradedFor is how long a turn that found nothing stays degraded at most; 0
	// is DefaultDegradedFor.
	DegradedFor Duration `yaml:"degraded_for,omitempty" json:"degraded_for"`
	// AvoidProviderAfter lists the causes after which no other target of the same
	// provider is tried; nil is rate_limited, quota and auth, an empty list none.
	AvoidProviderAfter []string `yaml:"avoid_provider_after,omitempty" json:"avoid_provider_after"`
	Targets            []Target `yaml:"targets" json:"targets"`
}

// Target is one member of a chain.
type Target struct {
	Machine  string `yaml:"machine" json:"machine"`
	Model    string `yaml:"model,omitempty" json:"model,omitempty"`
	Provider string `yaml:"provider,omitempty" json:"provider,omitempty"` // "": the machine's
	// Tier ranks the target: high, mid, low, then others as they appear. Within a
	// tier the order is the written one.
	Tier    string   `yaml:"tier,omitempty" json:"tier,omitempty"`
	Tags    []string `yaml:"tags,omitempty" json:"tags,omitempty"`
	Context int      `yaml:"context,omitempty" json:"context,omitempty"` // in tokens; 0: not stated, fits every request
	Note    string   `yaml:"note,omitempty" json:"note,omitempty"`       // for the agent's prompt
}

// The defaults and bounds of chains.
const (
	DefaultMaxHops     = 2
	DefaultDegradedFor = Duration(10 * time.Minute)
	MaxTargets         = 64  // of a chain
	MaxTried           = 64  // of a turn
	MaxChains          = 256 // of a configuration
	maxTags            = 32
	maxNote            = 1000 // bytes
	maxContext         = 100_000_000
)

var defaultAvoid = []string{"rate_limited", "quota", "auth"}

// chain is a Chain made ready: its targets in the order in which they are tried.
type chain struct {
	Chain
	name    string
	targets []chainTarget
	avoid   causeSet
}

type chainTarget struct {
	Target        // canonical
	labels Labels // without the agent
}

// Validate says everything that is wrong with the chain, each with the field's
// path, its value and what would be right.
func (c Chain) Validate() error {
	_, err := compileChain("", c, func(l Labels) Labels { return l })
	return err
}

// compileChain checks a chain and makes it ready.
func compileChain(name string, c Chain, canonical func(Labels) Labels) (*chain, error) {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.MaxHops == nil {
		hops := DefaultMaxHops
		c.MaxHops = &hops
	}
	c.DegradedFor = orElse(c.DegradedFor, DefaultDegradedFor)
	if c.AvoidProviderAfter == nil {
		c.AvoidProviderAfter = defaultAvoid
	}
	if h := *c.MaxHops; h < 0 || h > MaxTargets {
		bad("max_hops", "%d is out of range: 0 to %d are allowed", h, MaxTargets)
	}
	if d := c.DegradedFor; d < Duration(time.Second) || d > maxWait {
		bad("degraded_for", "%s is out of range: %s to %s are allowed", d, Duration(time.Second), maxWait)
	}
	avoid, _, err := parseCauseSet(c.AvoidProviderAfter)
	if err != nil {
		bad("avoid_provider_after", "%w", err)
	}
	if avoid.has(OK) {
		bad("avoid_provider_after", "ok is no reason to avoid anybody")
	}
	if n := len(c.Targets); n < 1 || n > MaxTargets {
		bad("targets", "there are %d: 1 to %d are needed", n, MaxTargets)
	}
	ready := &chain{Chain: c, name: name, avoid: avoid}
	ready.Targets = slices.Clone(c.Targets)
	places := make(map[Labels]int)
	for i := range ready.Targets {
		t := &ready.Targets[i]
		at := "targets[" + strconv.Itoa(i) + "]."
		for _, label := range [...]struct{ field, value string }{
			{"machine", t.Machine}, {"model", orElse(t.Model, "-")}, {"provider", orElse(t.Provider, "-")}, {"tier", orElse(t.Tier, "-")},
		} {
			if err := CheckLabel(label.value); err != nil {
				bad(at+label.field, "%w", err)
			}
		}
		if len(t.Tags) > maxTags {
			bad(at+"tags", "there are %d: at most %d are allowed", len(t.Tags), maxTags)
		}
		for j, tag := range t.Tags {
			if err := CheckLabel(tag); err != nil {
				bad(at+"tags["+strconv.Itoa(j)+"]", "%w", err)
			}
		}
		if t.Context < 0 || t.Context > maxContext {
			bad(at+"context", "%d is out of range: 0 to %d tokens are allowed", t.Context, maxContext)
		}
		if len(t.Note) > maxNote {
			bad(at+"note", "has %d bytes: at most %d are allowed", len(t.Note), maxNote)
		}
		l := canonical(Labels{Machine: t.Machine, Model: t.Model, Provider: t.Provider})
		t.Machine, t.Provider = l.Machine, l.Provider
		if first, twice := places[l]; twice {
			bad(at+"machine", "%s is targets[%d] already", t.name(), first)
		}
		places[l] = i
		ready.targets = append(ready.targets, chainTarget{*t, l})
	}
	rank := tierRanks(ready.Targets)
	slices.SortStableFunc(ready.targets, func(a, b chainTarget) int { return cmp.Compare(rank[a.Tier], rank[b.Tier]) })
	return ready, errors.Join(errs...)
}

// tierRanks ranks the tiers that appear.
func tierRanks(targets []Target) map[string]int {
	rank := map[string]int{"high": 0, "mid": 1, "low": 2}
	for _, t := range targets {
		if _, known := rank[t.Tier]; !known {
			rank[t.Tier] = len(rank)
		}
	}
	return rank
}

func (t *Target) name() string {
	if t.Model == "" {
		return t.Machine
	}
	return t.Machine + "/" + t.Model
}

// Chains lists the chains in force by name, with their defaults filled in, and
// targets in the order in which they are tried.
func (e *Engine) Chains() map[string]Chain {
	list := make(map[string]Chain, len(e.chains))
	for name, ch := range e.chains {
		c := ch.Chain
		c.Targets = make([]Target, 0, len(ch.targets))
		for _, t := range ch.targets {
			c.Targets = append(c.Targets, t.Target)
		}
		list[name] = c
	}
	return list
}

// RouteAsk is the question which target of a chain to call.
type RouteAsk struct {
	Agent          string
	Chain          string
	Tried          []Tried // what this turn has called already
	RequestID      string  // the same one gets the same probe, on whichever target
	Timeout        time.Duration
	Tags           []string // a target needs all of them
	MinContext     int      // in tokens
	IdempotencyKey string
}

// Tried is a target that a turn has called, and what became of that. An empty
// model means all of the machine's.
type Tried struct {
	Machine string `json:"machine"`
	Model   string `json:"model,omitempty"`
	Cause   Cause  `json:"cause,omitempty"`
}

// The reasons for which a route passes over a target, beside those of refusals.
const (
	SkippedTried    = "tried"
	SkippedProvider = "provider_avoided"
	SkippedTags     = "tags"
	SkippedContext  = "context"
	SkippedHops     = "max_hops"
)

// Skipped is a target that a route passed over.
type Skipped struct {
	Machine  string    `json:"machine"`
	Model    string    `json:"model,omitempty"`
	Provider string    `json:"provider,omitempty"`
	Reason   string    `json:"reason"`
	Cause    Cause     `json:"cause,omitempty"`   // of what is open or was tried
	RetryAt  time.Time `json:"retry_at,omitzero"` // zero where waiting does not help
}

// Route is the answer to a RouteAsk: a target with its grant, or that the turn
// is degraded until a moment.
type Route struct {
	Target   *Target // nil when degraded
	Grant    Grant   // of the target; its zero value when degraded
	Hop      int
	Degraded bool
	Until    time.Time // of a degraded turn
	// Reason is why the turn is degraded or not at its first call: what became of
	// the chain's first target that was passed over; "" otherwise.
	Reason  string
	Skipped []Skipped
	Write   *Write // for which the key's permits are held
}

// Routed is a fallback or a degraded answer, as it is recorded.
type Routed struct {
	At       time.Time
	Agent    string
	Chain    string
	Target   Labels // empty when degraded
	Tier     string
	Hop      int
	Degraded bool
	Until    time.Time
	Reason   string
	Skipped  []Skipped
}

// ErrUnknownChain is for a chain that the configuration does not have.
var ErrUnknownChain = errors.New("unknown chain")

// Route picks the first target of a chain that is worth calling and takes its
// permit, as Ask does; the wait for a Batch is the same.
//
// Targets are tried by tier, then as written. Passed over are those that this
// turn has tried, that lack a tag or context, whose circuit refuses, and those
// whose provider has had a cause of AvoidProviderAfter: all of its targets when
// this turn had it, the later ones when it is why an earlier target refuses.
// The hop is the number of targets tried other than the chain's first, plus one
// if the answer is not the first; past MaxHops, or with nothing left, the turn
// is degraded for DegradedFor or until something may be asked again.
func (e *Engine) Route(now time.Time, ask RouteAsk) (Route, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	r, ok := e.routeNow(ask)
	if !ok {
		return Route{}, e.seq, fmt.Errorf("%w %q: known are %s", ErrUnknownChain, ask.Chain, e.chainNames())
	}
	return r, e.seq, nil
}

// routeNow is Route at the engine's time; false for an unknown chain.
func (e *Engine) routeNow(ask RouteAsk) (Route, bool) {
	ch := e.chains[ask.Chain]
	if ch == nil {
		return Route{}, false
	}
	e.recorded(&inputRoute{ask})
	t := turn{e: e, ch: ch, ask: ask, avoided: make(map[string]bool)}
	return t.route(), true
}

func (e *Engine) chainNames() string {
	if len(e.chains) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(e.chains)), ", ")
}

// turn is one answer of Route in the making.
type turn struct {
	e        *Engine
	ch       *chain
	ask      RouteAsk
	hops     int             // tried targets other than the first
	avoided  map[string]bool // providers
	earliest instant         // at which something skipped may be asked again
	skipped  []Skipped
}

func (t *turn) asking(target *chainTarget) Ask {
	l := target.labels
	l.Agent = t.ask.Agent
	return Ask{Labels: l, RequestID: t.ask.RequestID, Timeout: t.ask.Timeout, IdempotencyKey: t.ask.IdempotencyKey}
}

func (t *turn) route() Route {
	e := t.e
	e.seq++ // what was refused on the way counts too
	if w := e.heldWrite(t.ask.IdempotencyKey); w != nil {
		for i := range t.ch.targets {
			t.skip(&t.ch.targets[i], Skipped{Reason: RefusedWriteInDoubt, Cause: w.Cause, RetryAt: w.Until})
		}
		r := t.degraded(RefusedWriteInDoubt)
		c := *w
		r.Write = &c
		return r
	}
	t.noteTried()
	// The same request has its probe already.
	for i := range t.ch.targets {
		target := &t.ch.targets[i]
		if _, tried := t.triedCause(target); tried {
			continue
		}
		if ask := t.asking(target); ask.RequestID != "" && e.circuit(&ask.Labels).sameRequest(&ask) != nil {
			return t.take(i, &ask)
		}
	}
	overHops := false
	for i := range t.ch.targets {
		target := &t.ch.targets[i]
		ask := t.asking(target)
		avoided, refused := t.avoided[target.Provider], false
		for _, b := range e.circuit(&ask.Labels).breakers {
			if b == nil {
				continue
			}
			if reason, _ := e.stand(b, ask.Agent); reason != "" {
				refused = true
				t.avoided[target.Provider] = t.avoided[target.Provider] || t.ch.avoid.has(b.cause)
			}
		}
		cause, tried := t.triedCause(target)
		switch {
		case tried:
			t.skip(target, Skipped{Reason: SkippedTried, Cause: cause})
		case t.lacksTag(target):
			t.skip(target, Skipped{Reason: SkippedTags})
		case target.Context > 0 && target.Context < t.ask.MinContext:
			t.skip(target, Skipped{Reason: SkippedContext})
		case avoided:
			t.skip(target, Skipped{Reason: SkippedProvider})
		case refused:
			var g Grant
			e.ask(&ask, &g) // counts the refusal
			s := Skipped{Reason: g.Reason, RetryAt: g.RetryAt}
			for _, v := range g.Breakers {
				s.Cause = orElse(s.Cause, v.Cause)
			}
			t.skip(target, s)
		case t.hop(i) > *t.ch.MaxHops:
			overHops = true
			t.skip(target, Skipped{Reason: SkippedHops})
		default:
			return t.take(i, &ask)
		}
	}
	if overHops {
		return t.degraded(SkippedHops)
	}
	return t.degraded("nothing_left")
}

// noteTried counts the turn's hops and the providers that it has to avoid.
func (t *turn) noteTried() {
	first := &t.ch.targets[0]
	counted := make(map[Tried]bool)
	for _, tried := range t.ask.Tried {
		tried.Machine = t.e.Canonical(Labels{Machine: tried.Machine}).Machine
		if t.ch.avoid.has(tried.Cause) {
			provider := t.e.Canonical(Labels{Machine: tried.Machine}).Provider
			for i := range t.ch.targets {
				if target := &t.ch.targets[i]; target.is(tried) {
					t.avoided[target.Provider] = true
					provider = ""
				}
			}
			if provider != "" { // a target of no chain: its machine's provider
				t.avoided[provider] = true
			}
		}
		tried.Cause = 0
		if !first.is(tried) && !counted[tried] {
			counted[tried] = true
			t.hops++
		}
	}
}

func (c *chainTarget) is(tried Tried) bool {
	return c.Machine == tried.Machine && (tried.Model == "" || c.Model == tried.Model)
}

// triedCause tells whether this turn has tried the target, and what came of it.
func (t *turn) triedCause(target *chainTarget) (cause Cause, tried bool) {
	for _, one := range t.ask.Tried {
		one.Machine = t.e.Canonical(Labels{Machine: one.Machine}).Machine
		if target.is(one) {
			cause, tried = orElse(one.Cause, cause), true
		}
	}
	return cause, tried
}

func (t *turn) lacksTag(target *chainTarget) bool {
	return slices.ContainsFunc(t.ask.Tags, func(tag string) bool { return !slices.Contains(target.Tags, tag) })
}

// hop is what the i-th target would cost.
func (t *turn) hop(i int) int {
	if i == 0 {
		return t.hops
	}
	return t.hops + 1
}

func (t *turn) skip(target *chainTarget, s Skipped) {
	s.Machine, s.Model, s.Provider = target.Machine, target.Model, target.Provider
	t.skipped = append(t.skipped, s)
	if at := fromTime(s.RetryAt); at != 0 && (t.earliest == 0 || at < t.earliest) {
		t.earliest = at
	}
}

// take answers with the i-th target, and records it when it is a fallback.
func (t *turn) take(i int, ask *Ask) Route {
	target := t.ch.targets[i].Target
	r := Route{Target: &target, Hop: t.hop(i), Skipped: t.skipped}
	t.e.ask(ask, &r.Grant)
	if r.Hop > 0 {
		r.Reason = SkippedTried
		if len(t.skipped) > 0 {
			r.Reason = t.skipped[0].Reason
		}
		l := t.ch.targets[i].labels
		t.record(r, l, target.Tier)
	}
	return r
}

func (t *turn) degraded(reason string) Route {
	until := t.e.now + instant(t.ch.DegradedFor)
	if t.earliest != 0 {
		until = min(until, t.earliest)
	}
	r := Route{Degraded: true, Until: until.time(), Hop: t.hops, Reason: reason, Skipped: t.skipped}
	t.record(r, Labels{}, "")
	return r
}

func (t *turn) record(r Route, target Labels, tier string) {
	e := t.e
	e.routes = append(e.routes, Routed{
		At: e.now.time(), Agent: t.ask.Agent, Chain: t.ch.name, Target: target, Tier: tier, Hop: r.Hop,
		Degraded: r.Degraded, Until: r.Until, Reason: r.Reason, Skipped: r.Skipped,
	})
}
