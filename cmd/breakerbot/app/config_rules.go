package app

import (
	"reflect"
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

// inherit completes a rule that has a built-in one's name and says neither what
// it is about nor what its failures are: everything that it leaves out is the
// built-in one's. With any of those given it stands for itself.
func inherit(own breaker.Rule) breaker.Rule {
	if own.Disabled || len(own.Scope)+len(own.Failures)+len(own.Ignores) > 0 {
		return own
	}
	for _, rule := range breaker.Builtin() {
		if rule.Name == own.Name {
			overlay(reflect.ValueOf(&rule).Elem(), reflect.ValueOf(own))
			return rule
		}
	}
	return own
}

// overlay sets the fields of a struct that another one of its type has given,
// those of the structs in it one by one.
func overlay(into, given reflect.Value) {
	for i := range given.NumField() {
		switch field := given.Field(i); {
		case field.IsZero():
		case field.Kind() == reflect.Struct && field.Type() != reflect.TypeFor[breaker.Window]():
			overlay(into.Field(i), field)
		default:
			into.Field(i).Set(field)
		}
	}
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
	own := make([]breaker.Rule, len(c.raw.Rules))
	for i, rule := range c.raw.Rules {
		rule = inherit(rule)
		own[i] = rule
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
			case len(rule.Scope) == 0 && !slices.Contains(known, rule.Name): // a word for one of ours
				c.at(key+".name", "%q is no built-in rule that could be disabled: those are %s", clip(rule.Name), strings.Join(known, ", "))
			}
		}
		for j, other := range own[:i] {
			if other.Name == rule.Name && other.Match == rule.Match {
				c.at(key+".name", "%q is also rules[%d], with the same match", clip(rule.Name), j)
			}
		}
	}
	c.cfg.Rules = mergeRules(builtin, own)
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
