package app

import (
	"slices"
	"strconv"
	"strings"

	"breakerbot/breaker"
)

// mergeRules lays a list of own rules over the built-in ones. An own rule takes
// the place of the built-in one of its name, or comes after all of them when
// its name is new; disabled, it only takes that one away. Own rules with a
// match stand before the rule without one of the same name, in the order
// given, since the first that matches wins. The result has no disabled rules.
func mergeRules(builtin, own []breaker.Rule) []breaker.Rule {
	var names []string
	general := make(map[string]breaker.Rule)
	matched := make(map[string][]breaker.Rule)
	for _, rule := range slices.Concat(builtin, own) {
		if !slices.Contains(names, rule.Name) {
			names = append(names, rule.Name)
		}
		switch {
		case rule.Match == breaker.Match{}:
			general[rule.Name] = rule
		case !rule.Disabled:
			matched[rule.Name] = append(matched[rule.Name], rule)
		}
	}
	var merged []breaker.Rule
	for _, name := range names {
		merged = append(merged, matched[name]...)
		if rule, ok := general[name]; ok && !rule.Disabled {
			merged = append(merged, rule)
		}
	}
	return merged
}

// checkRules checks each own rule by itself and against the others, then puts
// the merged list in force.
func (c *checker) checkRules() {
	builtin := breaker.Builtin()
	var known []string
	for _, rule := range builtin {
		known = append(known, rule.Name)
	}
	if !c.raw.BuiltinRules {
		builtin = nil
	}
	for i, rule := range c.raw.Rules {
		key := "rules[" + strconv.Itoa(i) + "]"
		if c.found(key) {
			continue // a value that could not be read makes more problems than there are
		}
		for _, line := range errorLines(rule.Validate()) {
			field, text, _ := strings.Cut(line, ": ")
			c.at(key+"."+field, "%s", text)
		}
		if rule.Disabled {
			switch {
			case rule.Match != breaker.Match{}:
				c.at(key+".disabled", "a rule with a match cannot be disabled: leave it out, or give it mode: observe")
			case !slices.Contains(known, rule.Name):
				c.at(key+".name", "%q is no built-in rule that could be disabled: those are %s", clip(rule.Name), strings.Join(known, ", "))
			}
		}
		for j, other := range c.raw.Rules[:i] {
			if other.Name == rule.Name && other.Match == rule.Match {
				c.at(key+".name", "%q is also rules[%d], with the same match", clip(rule.Name), j)
			}
		}
	}
	c.cfg.Rules = mergeRules(builtin, c.raw.Rules)
	if len(c.cfg.Rules) == 0 && !c.found("rules") {
		c.warn("no rule is in force: nothing will ever trip")
	}
}

// errorLines takes a joined error apart.
func errorLines(err error) []string {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []string{err.Error()}
	}
	var lines []string
	for _, one := range joined.Unwrap() {
		lines = append(lines, errorLines(one)...)
	}
	return lines
}
