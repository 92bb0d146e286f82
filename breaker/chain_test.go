package breaker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// lab is a chain over three providers, written out of the order of its tiers.
func lab() map[string]Chain {
	return map[string]Chain{"code": {Targets: []Target{
		{Machine: "mac", Model: "small", Tier: "low", Context: 8_000},
		{Machine: "api", Model: "mini", Provider: "cloud", Tier: "mid", Tags: []string{"vision"}},
		{Machine: "gpu", Model: "big", Provider: "lab", Tier: "high", Tags: []string{"private", "vision"}, Context: 32_000, Note: "full quality"},
		{Machine: "api", Model: "frontier", Provider: "cloud", Tier: "high", Context: 200_000},
	}}}
}

func routing(t *testing.T, chains map[string]Chain) *Engine {
	t.Helper()
	e, err := New(Config{Rules: Builtin(), Key: []byte("k"), Chains: chains, Machines: map[string]Machine{"mac": {Aliases: []string{"mini.local"}}}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// fail trips a target's breakers with three outcomes of a cause.
func fail(e *Engine, now time.Time, machine, model, provider string, cause Cause) {
	for range 3 {
		e.Report(now, []Outcome{{Labels: Labels{Agent: "a", Machine: machine, Model: model, Provider: provider}, Cause: cause}})
	}
}

// skips spells what was passed over: big tried, frontier open.
func skips(r Route) string {
	var list []string
	for _, s := range r.Skipped {
		list = append(list, s.Model+" "+s.Reason)
	}
	return strings.Join(list, ", ")
}

func TestRoute(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		chains  map[string]Chain
		before  func(*Engine)
		ask     RouteAsk
		want    string // the model, "" for degraded
		hop     int
		skipped string
		reason  string
		until   float64
	}{
		"by tier, then as written":          {want: "big"},
		"what the first lacks":              {ask: RouteAsk{MinContext: 100_000}, want: "frontier", hop: 1, skipped: "big context", reason: "context"},
		"no context stated fits everything": {ask: RouteAsk{MinContext: 300_000}, want: "mini", hop: 1, skipped: "big context, frontier context", reason: "context"},
		"all tags are needed": {ask: RouteAsk{Tags: []string{"private", "vision"}, Tried: []Tried{{Machine: "gpu", Model: "big"}}},
			skipped: "big tried, frontier tags, mini tags, small tags", reason: "nothing_left", until: 600},
		"an open one costs no hop": {before: func(e *Engine) {
			fail(e, t0, "gpu", "big", "lab", Refused)
			fail(e, t0, "api", "frontier", "cloud", ServerError)
		}, want: "mini", hop: 1, skipped: "big open, frontier open", reason: "open"},
		"the account of what is open": {before: func(e *Engine) { fail(e, t0, "api", "frontier", "cloud", RateLimited) },
			ask: RouteAsk{Tried: []Tried{{Machine: "gpu", Model: "big", Cause: Timeout}}}, want: "small", hop: 1,
			skipped: "big tried, frontier open, mini provider_avoided", reason: "tried"},
		"only the later ones of what is open": {before: func(e *Engine) { fail(e, t0, "api", "mini", "cloud", RateLimited) },
			ask: RouteAsk{Tried: []Tried{{Machine: "gpu", Model: "big", Cause: Timeout}}}, want: "frontier", hop: 1, skipped: "big tried", reason: "tried"},
		"all of what was tried": {ask: RouteAsk{Tried: []Tried{{Machine: "api", Model: "mini", Cause: Quota}}}, want: "big", hop: 1, reason: "tried"},
		"and so the earlier ones": {ask: RouteAsk{Tried: []Tried{{Machine: "gpu", Model: "big", Cause: Timeout}, {Machine: "api", Model: "mini", Cause: Quota}}},
			want: "small", hop: 2, skipped: "big tried, frontier provider_avoided, mini tried", reason: "tried"},
		"a tried machine without a model": {ask: RouteAsk{Tried: []Tried{{Machine: "api", Cause: Timeout}, {Machine: "gpu", Cause: Timeout}}},
			want: "small", hop: 2, skipped: "big tried, frontier tried, mini tried", reason: "tried"},
		"past the hops": {ask: RouteAsk{Tried: []Tried{{Machine: "gpu", Model: "big"}, {Machine: "api", Model: "frontier"}, {Machine: "api", Model: "mini"}}},
			skipped: "big tried, frontier tried, mini tried, small max_hops", reason: "max_hops", until: 600},
		"a target tried twice is one hop": {ask: RouteAsk{Tried: []Tried{{Machine: "api", Model: "frontier", Cause: Reset}, {Machine: "api", Model: "frontier", Cause: Timeout}, {Machine: "gpu", Model: "big"}}},
			want: "mini", hop: 2, skipped: "big tried, frontier tried", reason: "tried"},
		"by an alias": {ask: RouteAsk{Tried: []Tried{{Machine: "gpu"}, {Machine: "mini.local"}, {Machine: "api", Model: "frontier"}}},
			skipped: "big tried, frontier tried, mini max_hops, small tried", reason: "max_hops", until: 600},
		"nothing left until something is due": {before: func(e *Engine) {
			fail(e, t0, "gpu", "big", "lab", Refused)    // 60 s
			fail(e, t0, "api", "mini", "cloud", Refused) // both of api
			fail(e, t0, "mac", "small", "", ServerError) // 30 s
		}, skipped: "big open, frontier open, mini open, small open", reason: "nothing_left", until: 30},
		"a hold has no end": {before: func(e *Engine) {
			for _, m := range []string{"gpu", "api", "mac"} {
				e.Control(t0, Control{Breaker: "reachability{machine=" + m + "}", Op: OpHoldOpen})
			}
		}, skipped: "big held_open, frontier held_open, mini held_open, small held_open", reason: "nothing_left", until: 600},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chains := tc.chains
			if chains == nil {
				chains = lab()
			}
			e := routing(t, chains)
			if tc.before != nil {
				tc.before(e)
			}
			tc.ask.Agent, tc.ask.Chain = "a", "code"
			e.Drain()
			r, seq, err := e.Route(t0, tc.ask)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if r.Target != nil {
				got = r.Target.Model
			}
			if got != tc.want || r.Degraded != (tc.want == "") || r.Hop != tc.hop && !r.Degraded || r.Grant.Allowed != (tc.want != "") {
				t.Fatalf("%+v, want %q at hop %d", r, tc.want, tc.hop)
			}
			if s := skips(r); s != tc.skipped || r.Reason != tc.reason {
				t.Errorf("skipped %q because of %q, want %q, %q", s, r.Reason, tc.skipped, tc.reason)
			}
			if r.Degraded && !r.Until.Equal(at(tc.until)) {
				t.Errorf("degraded until %s, want %gs", r.Until.Sub(t0), tc.until)
			}
			b := e.Drain()
			if recorded := len(b.Routes) == 1; recorded != (r.Degraded || r.Hop > 0) || b.To != seq {
				t.Fatalf("recorded as %+v up to %d of %d, want fallbacks and degraded answers only", b.Routes, b.To, seq)
			}
			if len(b.Routes) == 1 && (b.Routes[0].Reason != r.Reason || b.Routes[0].Chain != "code" || b.Routes[0].Agent != "a" || b.Routes[0].Target.Model != got) {
				t.Errorf("recorded as %+v", b.Routes[0])
			}
		})
	}
}

func TestRouteTakesTheProbe(t *testing.T) {
	t.Parallel()
	e := routing(t, lab())
	fail(e, t0, "gpu", "big", "lab", Refused)
	route := func(s float64, agent, request string) Route {
		r, _, err := e.Route(at(s), RouteAsk{Agent: agent, Chain: "code", RequestID: request})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := route(60, "a", "turn-1")
	if first.Target.Model != "big" || !first.Grant.Probe || first.Hop != 0 {
		t.Fatalf("the first target is due, and this turn is its probe: %+v", first)
	}
	if r := route(61, "b", "turn-2"); r.Target.Model != "frontier" || r.Skipped[0].Reason != RefusedProbeInFlight || !r.Skipped[0].RetryAt.Equal(at(66)) {
		t.Fatalf("another turn: %+v, want it to go on", r)
	}
	if r := route(62, "a", "turn-1"); r.Grant.Permit != first.Grant.Permit {
		t.Fatalf("the same request: %+v, want the same probe", r)
	}
	r, _, _ := e.Route(at(62), RouteAsk{Agent: "a", Chain: "code", RequestID: "turn-1", Tried: []Tried{{Machine: "gpu", Model: "big"}}})
	if r.Target.Model != "frontier" {
		t.Fatalf("the same request, that has tried its probe: %+v", r)
	}
	v, _ := e.Report(at(63), []Outcome{{Labels: Labels{Agent: "a", Machine: "gpu", Model: "big", Provider: "lab"}, Cause: OK, Permit: first.Grant.Permit}})
	if v[0].State != Closed {
		t.Fatalf("after the probe: %+v", v[0])
	}
}

func TestRouteCountsWhatItRefused(t *testing.T) {
	t.Parallel()
	e := routing(t, lab())
	fail(e, t0, "gpu", "big", "lab", Refused)
	e.Drain()
	for range 5 {
		if _, _, err := e.Route(at(1), RouteAsk{Agent: "a", Chain: "code"}); err != nil {
			t.Fatal(err)
		}
	}
	counts := map[string]int{}
	for _, a := range e.Drain().Asks {
		counts[a.Machine+" "+a.Reason] += a.N
	}
	if counts["gpu open"] != 5 || counts["api granted"] != 5 || len(counts) != 2 {
		t.Fatalf("counted %v", counts)
	}
	if _, _, err := e.Route(t0, RouteAsk{Agent: "a", Chain: "chat"}); !errors.Is(err, ErrUnknownChain) || !strings.Contains(err.Error(), "known are code") {
		t.Fatalf("an unknown chain: %v", err)
	}
}

func TestRouteOfAWriteInDoubt(t *testing.T) {
	t.Parallel()
	e := routing(t, lab())
	report(e, t0, Timeout, func(o *Outcome) { o.Machine, o.Write, o.IdempotencyKey = "gpu", true, "job" })
	r, _, err := e.Route(at(1), RouteAsk{Agent: "a", Chain: "code", IdempotencyKey: "job"})
	if err != nil || !r.Degraded || r.Reason != RefusedWriteInDoubt || r.Write == nil || r.Write.Machine != "gpu" || len(r.Skipped) != 4 {
		t.Fatalf("%+v, %v: want nothing, and the place to ask", r, err)
	}
}

// What is just within the bounds of a chain is allowed, and what is just past
// them is not.
func TestBoundsOfChains(t *testing.T) {
	t.Parallel()
	one := func(change func(*Target)) Chain {
		c := Chain{Targets: []Target{{Machine: "a"}}}
		change(&c.Targets[0])
		return c
	}
	targets := func(n int) Chain {
		var c Chain
		for i := range n {
			c.Targets = append(c.Targets, Target{Machine: fmt.Sprint(i)})
		}
		return c
	}
	hops := func(n int) Chain { c := targets(1); c.MaxHops = &n; return c }
	degraded := func(d Duration) Chain { c := targets(1); c.DegradedFor = d; return c }
	tags := func(n int) Chain {
		return one(func(t *Target) { t.Tags = slices.Repeat([]string{"private"}, n) })
	}
	context := func(n int) Chain { return one(func(t *Target) { t.Context = n }) }
	note := func(n int) Chain { return one(func(t *Target) { t.Note = strings.Repeat("n", n) }) }
	for field, cases := range map[string]struct{ good, bad []Chain }{
		"targets":            {[]Chain{targets(1), targets(MaxTargets)}, []Chain{targets(0), targets(MaxTargets + 1)}},
		"max_hops":           {[]Chain{hops(0), hops(MaxTargets)}, []Chain{hops(-1), hops(MaxTargets + 1)}},
		"degraded_for":       {[]Chain{degraded(Duration(time.Second)), degraded(maxWait)}, []Chain{degraded(Duration(time.Second) - 1), degraded(maxWait + 1)}},
		"targets[0].tags":    {[]Chain{tags(maxTags)}, []Chain{tags(maxTags + 1)}},
		"targets[0].context": {[]Chain{context(0), context(maxContext)}, []Chain{context(-1), context(maxContext + 1)}},
		"targets[0].note":    {[]Chain{note(maxNote)}, []Chain{note(maxNote + 1)}},
	} {
		for _, c := range cases.good {
			if err := c.Validate(); err != nil {
				t.Errorf("%s: %v, want it allowed", field, err)
			}
		}
		for _, c := range cases.bad {
			if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
				t.Errorf("%s: %v, want it refused", field, err)
			}
		}
	}
}

func TestBadChains(t *testing.T) {
	t.Parallel()
	minus := -1
	long := strings.Repeat("x", 2000)
	many := make([]Target, 65)
	for i := range many {
		many[i].Machine = string(rune('A' + i))
	}
	for want, c := range map[string]Chain{
		"targets: there are 0: 1 to 64 are needed":                   {},
		"targets: there are 65":                                      {Targets: many},
		"targets[0].machine: is missing":                             {Targets: []Target{{Model: "m"}}},
		"targets[1].machine: a/b is targets[0] already":              {Targets: []Target{{Machine: "a", Model: "b"}, {Machine: "a", Model: "b"}}},
		"targets[0].model: has 2000 characters: at most 128":         {Targets: []Target{{Machine: "a", Model: long}}},
		"targets[0].note: has 2000 bytes: at most 1000":              {Targets: []Target{{Machine: "a", Note: long}}},
		"targets[0].context: -1 is out of range":                     {Targets: []Target{{Machine: "a", Context: -1}}},
		"max_hops: -1 is out of range: 0 to 64 are allowed":          {MaxHops: &minus, Targets: []Target{{Machine: "a"}}},
		"degraded_for: 1ms is out of range":                          {DegradedFor: Duration(time.Millisecond), Targets: []Target{{Machine: "a"}}},
		"avoid_provider_after: ok is no reason":                      {AvoidProviderAfter: []string{"ok"}, Targets: []Target{{Machine: "a"}}},
		"avoid_provider_after: unknown cause or class \"ratelimit\"": {AvoidProviderAfter: []string{"ratelimit"}, Targets: []Target{{Machine: "a"}}},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestChainsInForce(t *testing.T) {
	t.Parallel()
	c := routing(t, lab()).Chains()["code"]
	var order []string
	for _, target := range c.Targets {
		order = append(order, target.Model)
	}
	if !slices.Equal(order, []string{"big", "frontier", "mini", "small"}) || *c.MaxHops != DefaultMaxHops || c.DegradedFor != DefaultDegradedFor ||
		!slices.Equal(c.AvoidProviderAfter, []string{"rate_limited", "quota", "auth"}) || c.Targets[3].Provider != "mac" {
		t.Fatalf("%+v", c)
	}
}

// A machine of no chain that had enough of the turn's account takes the targets
// of that account with it.
func TestTriedOutsideTheChain(t *testing.T) {
	t.Parallel()
	e, err := New(Config{
		Rules: Builtin(), Key: []byte("k"), Machines: map[string]Machine{"elsewhere": {Provider: "acct"}},
		Chains: map[string]Chain{"code": {Targets: []Target{{Machine: "api", Model: "x", Provider: "acct"}, {Machine: "mini", Model: "y"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for machine, want := range map[string]string{"elsewhere": "mini", "mini": "api"} {
		r, _, err := e.Route(t0, RouteAsk{Agent: "a", Chain: "code", Tried: []Tried{{Machine: machine, Cause: RateLimited}}})
		if err != nil || r.Target == nil || r.Target.Machine != want {
			t.Errorf("after %s was rate-limited: %+v, %v, want %s", machine, r, err, want)
		}
	}
}
