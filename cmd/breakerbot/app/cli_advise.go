package app

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"breakerbot/breaker"
	"breakerbot/digest"
)

// adviseWidth is how wide the reasons of an advice are printed.
const adviseWidth = 86

type adviseCmd struct {
	Rate      digest.CallRate `help:"How often the service is called: 20/s, 5/min, 300/h or 40/d." required:"" placeholder:"RATE"`
	React     time.Duration   `help:"How soon a failure that lasts shall open the breaker." default:"15s"`
	Failures  breaker.Share   `help:"Share of failed calls from which on it is an outage." default:"2%"`
	Normal    string          `help:"Usual share of failed calls of the healthy service; 0 when it never fails." default:"0.1%"`
	Recovery  time.Duration   `help:"How long the service takes to come back, by its documentation or experience." required:""`
	Tolerance time.Duration   `help:"How long it can be missed." default:"30m"`
	WarmUp    bool            `help:"First calls after an outage may be slow or fail, so three probes have to succeed; --no-warm-up asks for one." default:"true" negatable:""`
	Name      string          `help:"The rule to advise on: a built-in one keeps its failures and takes its place." default:"errors"`
	Scope     []string        `help:"What has a breaker of its own: agent, machine, model, provider; as the rule says when left out."`
	Format    string          `help:"text, json, or yaml for the rule alone." enum:"text,json,yaml" default:"text"`
}

// run prints thresholds with their reasons; what is wrong with the numbers is
// an error of usage.
func (c adviseCmd) run(w io.Writer) error {
	situation := digest.Situation{
		Rate: c.Rate, React: c.React, Failures: c.Failures, Recovery: c.Recovery, Tolerance: c.Tolerance,
		WarmUp: c.WarmUp, Name: c.Name, Scope: c.Scope,
	}
	// A share may not be zero where it is a threshold; here it may.
	if strings.Trim(strings.TrimSuffix(strings.TrimSpace(c.Normal), "%"), "0.") != "" || c.Normal == "" {
		if err := situation.Normal.UnmarshalText([]byte(c.Normal)); err != nil {
			return usageError{fmt.Errorf("advise: normal: %w", err)}
		}
	}
	advice, err := digest.Advise(situation)
	if err != nil {
		return usageError{fmt.Errorf("advise: %w", err)}
	}
	rule, err := ruleYAML(advice.Rule)
	if err != nil {
		return fmt.Errorf("advise: write the rule: %w", err)
	}
	switch c.Format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(advice)
	case "yaml":
		_, err = io.WriteString(w, rule)
		return err
	}
	_, err = io.WriteString(w, adviceText(situation, advice)+"\n"+rule)
	return err
}

// adviceText is each number with its reasons, and what becomes of the rule.
func adviceText(s digest.Situation, a digest.Advice) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s calls; to react within %s to %s of failures (%s are normal); back in %s, missed for at most %s:\n",
		s.Rate, breaker.Duration(s.React), s.Failures, s.Normal, breaker.Duration(s.Recovery), breaker.Duration(s.Tolerance))
	for _, part := range a.Parts {
		fmt.Fprintf(&out, "\n%-12s %s\n", strings.ReplaceAll(part.Name, "_", " "), part.Value)
		for _, sentence := range part.Why {
			for i, line := range wrap(sentence, adviseWidth) {
				indent := "    "
				if i == 0 {
					indent = "  - "
				}
				out.WriteString(indent + line + "\n")
			}
		}
	}
	out.WriteString("\n")
	replaces := "It comes beside the built-in rules, which stay in force."
	for _, rule := range breaker.Builtin() {
		if rule.Name == a.Rule.Name {
			replaces = "It takes the place of the built-in rule " + rule.Name + "."
		}
	}
	fmt.Fprintf(&out, "As a rule in breakerbot.yaml (breakerbot check shows what is in force). %s\n", replaces)
	return out.String()
}

// ruleYAML is the rule as the configuration has it, with what belongs together
// in one line.
func ruleYAML(r breaker.Rule) (string, error) {
	type compact struct {
		Name       string             `yaml:"name"`
		Scope      []string           `yaml:"scope,flow"`
		Failures   []string           `yaml:"failures,flow"`
		Ignores    []string           `yaml:"ignores,omitempty,flow"`
		Trip       breaker.Trip       `yaml:"trip,flow"`
		SlowAfter  breaker.Duration   `yaml:"slow_after,omitempty"`
		Alerts     string             `yaml:"alerts,omitempty"`
		Cooldown   breaker.Cooldown   `yaml:"cooldown,flow"`
		Probes     int                `yaml:"probes"`
		Concurrent int                `yaml:"concurrent"`
		LongOpen   []breaker.Duration `yaml:"long_open,omitempty,flow"`
	}
	text, err := yaml.MarshalWithOptions(map[string][]compact{"rules": {{
		r.Name, r.Scope, r.Failures, r.Ignores, r.Trip, r.SlowAfter, r.Alerts, r.Cooldown, r.Probes, r.Concurrent, r.LongOpen,
	}}}, yaml.IndentSequence(true))
	return string(text), err
}
