package breaker

import (
	"fmt"
	"strings"
)

// Name is a breaker's name: rule{machine=gpu-box,model=m}, the labels of the
// rule's scope in the order agent, machine, model, provider, with \ , = { }
// escaped by a backslash.
func Name(rule string, l Labels) string { return string(appendName(nil, rule, &l)) }

// appendName appends what Name gives.
func appendName(to []byte, rule string, l *Labels) []byte {
	to = append(to, rule...)
	sep := byte('{')
	for i, value := range [...]string{l.Agent, l.Machine, l.Model, l.Provider} {
		if value == "" {
			continue
		}
		to = append(to, sep)
		sep = ','
		to = append(to, scopeWords[i]...)
		to = append(to, '=')
		start := 0
		for i := range len(value) {
			switch value[i] {
			case '\\', ',', '=', '{', '}':
				to = append(append(to, value[start:i]...), '\\')
				start = i
			}
		}
		to = append(to, value[start:]...)
	}
	if sep == '{' {
		to = append(to, sep)
	}
	return append(to, '}')
}

// ParseName reads what Name wrote.
func ParseName(name string) (rule string, l Labels, err error) {
	bad := func(what string) (string, Labels, error) {
		return "", Labels{}, fmt.Errorf("breaker %q: %s: a name looks like errors{machine=gpu-box,model=m}", name, what)
	}
	rule, rest, ok := strings.Cut(name, "{")
	if !ok || rule == "" || !strings.HasSuffix(rest, "}") {
		return bad("the braces are missing")
	}
	rest = rest[:len(rest)-1]
	var field, key strings.Builder
	put := func() error {
		k, v := key.String(), field.String()
		key.Reset()
		field.Reset()
		var at *string
		switch k {
		case "agent":
			at = &l.Agent
		case "machine":
			at = &l.Machine
		case "model":
			at = &l.Model
		case "provider":
			at = &l.Provider
		default:
			return fmt.Errorf("unknown label %q: known are %s", k, strings.Join(scopeWords[:], ", "))
		}
		if *at != "" {
			return fmt.Errorf("label %q is given twice", k)
		}
		if err := CheckLabel(v); err != nil {
			return fmt.Errorf("label %s %w", k, err)
		}
		*at = v
		return nil
	}
	into, escaped := &key, false
	for _, r := range rest {
		switch {
		case escaped:
			into.WriteRune(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '=' && into == &key:
			into = &field
		case r == ',' && into == &field:
			if err := put(); err != nil {
				return bad(err.Error())
			}
			into = &key
		case strings.ContainsRune(",={}", r):
			return bad(fmt.Sprintf("%q stands without a backslash", r))
		default:
			into.WriteRune(r)
		}
	}
	if escaped || into == &key {
		return bad("it ends too early")
	}
	if err := put(); err != nil {
		return bad(err.Error())
	}
	return rule, l, nil
}
