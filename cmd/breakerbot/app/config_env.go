package app

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

const variablePrefix = "BREAKERBOT_"

// variables names the environment variables that are not made of their key:
// those that other tools use too, and those that hold more than one value.
var variables = map[string]string{
	"database_url":       "DATABASE_URL",
	"tokens":             "BREAKERBOT_TOKENS",
	"telegram.token":     "TELEGRAM_TOKEN",
	"telegram.api_url":   "TELEGRAM_API_URL",
	"telegram.chats":     "TELEGRAM_CHAT_ID",
	"telegram.operators": "TELEGRAM_OPERATORS",
}

// setting is a key that can also be given as an environment variable.
type setting struct {
	path, variable string
	index          []int // of its field in rawConfig
}

// settings lists them in the order of the struct: every single value, lists of
// single values separated by commas, and those in variables.
func settings() []setting {
	var list []setting
	var walk func(t reflect.Type, path string, index []int)
	walk = func(t reflect.Type, path string, index []int) {
		for i := range t.NumField() {
			field := t.Field(i)
			key, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			key = join(path, key)
			at := append(slices.Clone(index), i)
			variable, own := variables[key]
			if !own {
				variable = variablePrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
			}
			switch kind := field.Type.Kind(); {
			case own:
			case field.Type == laterType:
				if !laterVariable(key) {
					continue
				}
			case kind == reflect.Struct:
				walk(field.Type, key, at)
				continue
			case kind == reflect.Map, kind == reflect.Slice && field.Type.Elem().Kind() == reflect.Struct:
				continue
			}
			list = append(list, setting{key, variable, at})
		}
	}
	walk(reflect.TypeFor[rawConfig](), "", nil)
	return list
}

func laterVariable(key string) bool {
	for _, row := range notYet {
		if row.path == key {
			return row.isVariable
		}
	}
	return false
}

// fromEnvironment lays the variables over the configuration. An empty variable
// counts as not set, since that is how compose files pass on what is missing.
func fromEnvironment(raw *rawConfig, env func(string) (string, bool), p *problems) {
	for _, s := range settings() {
		text, ok := env(s.variable)
		if !ok || text == "" {
			continue
		}
		p.forget(s.path)
		where := place{variable: s.variable}
		p.places[s.path] = where
		v := reflect.ValueOf(raw).Elem().FieldByIndex(s.index)
		var err error
		switch {
		case s.path == "tokens":
			raw.Tokens = tokensFromText(text, where, p)
		case s.path == "telegram.chats":
			raw.Telegram.Chats = make([]rawChat, 1)
			if err := setText(reflect.ValueOf(&raw.Telegram.Chats[0].ID).Elem(), strings.TrimSpace(text)); err != nil {
				p.add(where, "telegram.chats[0].id", "%v", err)
			}
		case v.Type() == laterType:
			v.Set(reflect.ValueOf(later{text}))
		case v.Kind() == reflect.Slice:
			parts := strings.Split(text, ",")
			v.Set(reflect.MakeSlice(v.Type(), len(parts), len(parts)))
			for i, part := range parts {
				if err := setText(v.Index(i), strings.TrimSpace(part)); err != nil {
					p.add(where, s.path+"["+strconv.Itoa(i)+"]", "%v", err)
				}
			}
		default:
			err = setText(v, text)
		}
		if err != nil {
			p.add(where, s.path, "%v", err)
		}
	}
}

// forget drops what is known of a key that something else takes the place of:
// problems of a value that is not in force are none.
func (p *problems) forget(path string) {
	part := func(s string) bool {
		rest, ok := strings.CutPrefix(s, path)
		return ok && (rest == "" || strings.ContainsRune(".[:", rune(rest[0])))
	}
	maps.DeleteFunc(p.places, func(key string, _ place) bool { return part(key) })
	p.list = slices.DeleteFunc(p.list, func(one problem) bool { return part(one.text) })
}

// tokensFromText reads "name:token:scope+scope,…". Its messages quote nothing
// but names: with a colon too few or too many, anything else may be a secret.
func tokensFromText(text string, where place, p *problems) []rawToken {
	var tokens []rawToken
	for i, entry := range strings.Split(text, ",") {
		name, rest, ok := strings.Cut(strings.TrimSpace(entry), ":")
		if !ok {
			p.add(where, "tokens["+strconv.Itoa(i)+"]", "its entry (not shown) has no colon: name:token:scope+scope is needed")
			name = "" // it may be the token
		}
		token := rawToken{Name: name, Token: Secret(rest), Scopes: []string{ScopeReport}}
		if at := strings.LastIndexByte(rest, ':'); at >= 0 {
			token.Token, token.Scopes = Secret(rest[:at]), strings.Split(rest[at+1:], "+")
			for _, scope := range token.Scopes {
				if !slices.Contains(Scopes(), scope) {
					p.add(where, "tokens["+strconv.Itoa(i)+"].scopes", "what follows the last colon of %s's entry (not shown) are no scopes: known are %s, joined by +",
						strconv.Quote(clip(name)), strings.Join(Scopes(), ", "))
					break
				}
			}
		}
		tokens = append(tokens, token)
	}
	return tokens
}

// ours lists variables with our prefix that are no keys of the configuration.
var ours = []string{"BREAKERBOT_CONFIG", "BREAKERBOT_URL", "BREAKERBOT_TOKEN"}

// UnknownVariables finds, in an environment as os.Environ gives it, variables
// with our prefix that mean nothing, and says for each which one may be meant.
// They are worth a warning and no more: orchestrators set some of their own.
func UnknownVariables(environ []string) []string {
	known := slices.Clone(ours)
	for _, s := range settings() {
		known = append(known, s.variable)
	}
	var unknown []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, variablePrefix) || slices.Contains(known, name) {
			continue
		}
		text := name + " means nothing"
		if guess := didYouMean(name, known); !strings.HasPrefix(guess, "known") {
			text += ": " + guess
		}
		unknown = append(unknown, text)
	}
	slices.Sort(unknown)
	return unknown
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
