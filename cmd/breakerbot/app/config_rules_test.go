package app

import (
	"slices"
	"testing"

	"breakerbot/breaker"
)

func TestMergeRules(t *testing.T) {
	t.Parallel()
	rule := func(name, machine string, disabled bool) breaker.Rule {
		return breaker.Rule{Name: name, Match: breaker.Match{Machine: machine}, Disabled: disabled}
	}
	builtin := []breaker.Rule{rule("a", "", false), rule("b", "", false), rule("c", "", false)}
	for name, tc := range map[string]struct {
		builtin, own []breaker.Rule
		want         []string
	}{
		"nothing own":                        {builtin, nil, []string{"a", "b", "c"}},
		"replaced in its place":              {builtin, []breaker.Rule{rule("b", "", false)}, []string{"a", "b", "c"}},
		"added at the end":                   {builtin, []breaker.Rule{rule("d", "", false)}, []string{"a", "b", "c", "d"}},
		"removed":                            {builtin, []breaker.Rule{rule("b", "", true)}, []string{"a", "c"}},
		"a match stands before the built-in": {builtin, []breaker.Rule{rule("b", "x", false), rule("b", "y", false)}, []string{"a", "b@x", "b@y", "b", "c"}},
		"a match before a replacement":       {builtin, []breaker.Rule{rule("b", "", false), rule("b", "x", false)}, []string{"a", "b@x", "b", "c"}},
		"a match alone after a removal":      {builtin, []breaker.Rule{rule("b", "", true), rule("b", "x", false)}, []string{"a", "b@x", "c"}},
		"only own ones":                      {nil, []breaker.Rule{rule("z", "", false), rule("a", "x", false)}, []string{"z", "a@x"}},
		"all removed":                        {builtin[:1], []breaker.Rule{rule("a", "", true)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ruleNames(mergeRules(tc.builtin, tc.own)); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	own := rule("b", "", false)
	own.Scope = []string{"machine"}
	if merged := mergeRules(builtin, []breaker.Rule{own}); len(merged[1].Scope) != 1 {
		t.Error("the built-in rule is still in the place of the own one")
	}
}

// A rule with a built-in one's name that only says how it differs keeps the
// rest.
func TestRulesInherit(t *testing.T) {
	t.Parallel()
	builtin := map[string]breaker.Rule{}
	for _, r := range breaker.Builtin() {
		builtin[r.Name] = r
	}
	observed := inherit(breaker.Rule{Name: "latency", Mode: breaker.ModeObserve})
	if want := builtin["latency"]; observed.Mode != breaker.ModeObserve || observed.SlowAfter != want.SlowAfter || observed.Trip.Rate != want.Trip.Rate {
		t.Errorf("latency, observed: %+v", observed)
	}
	stricter := inherit(breaker.Rule{Name: "errors", Match: breaker.Match{Model: "qwen*"}, Trip: breaker.Trip{Consecutive: 1}})
	if stricter.Trip.Consecutive != 1 || stricter.Trip.MinCalls != 20 || stricter.Cooldown.Factor != 2 || stricter.Match.Model != "qwen*" {
		t.Errorf("errors, stricter: %+v", stricter)
	}
	if err := stricter.Validate(); err != nil {
		t.Errorf("errors, stricter: %v", err)
	}
	for _, own := range []breaker.Rule{
		{Name: "errors", Scope: []string{"machine"}, Failures: []string{"reset"}}, {Name: "mine"}, {Name: "errors", Disabled: true},
	} {
		if got := inherit(own); got.Trip.Rate != 0 || got.Cooldown.Factor != 0 {
			t.Errorf("%+v became %+v, want it as it is", own, got)
		}
	}
	if breaker.Builtin()[2].Trip.Consecutive != 3 {
		t.Error("the built-in rule itself has changed")
	}
}
