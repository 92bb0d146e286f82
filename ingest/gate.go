package ingest

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"breakerbot/breaker"
)

// The bounds of gates; each stands in the error that it causes.
const (
	maxGates         = 1000
	maxGateGlob      = 256     // bytes of a glob
	maxGateTexts     = 1000    // texts on one allow-list
	maxGateText      = 1000    // characters of one of them
	maxGateFields    = 200     // required fields, or fields with allowed values
	maxGatePath      = 256     // bytes of a field's path
	maxAllowedValues = 10_000  // of all fields together
	maxAllowedBytes  = 1 << 20 // of an outcome's allowed values, as JSON
	// maxFieldWork bounds what one answer may cost, in its values times the names
	// in the paths of the fields that are looked for.
	maxFieldWork = 1_000_000
)

// Gate is a set of cheap checks that an answer has to pass before it counts as
// ok, for the machines and models that its globs match; "" matches all. Of
// several gates the first one that matches is the only one, as with rules, so
// one without any check exempts its calls from those after it.
//
// The checks run in the order of the fields below, and the first that refuses
// names the cause. They run on calls that would otherwise be ok, also where
// the agent itself says ok, slow or slow_first_token; never on what came out
// of a cache or reached nobody. What is not known is not judged:
//
//   - Without a response all of them are skipped but MinChars, which takes the
//     number in response_chars, and MinDuration. A bare number cannot be on the
//     allow-list; with a response it has no say.
//   - A call of a tool has no text: it has no length to check, and what was
//     sent as its response is only looked into when it is JSON. Operations
//     whose answers are not text, such as embeddings, are held against
//     MinDuration and the outcome's own allowed values alone.
//   - A duration of 0 is unknown.
type Gate struct {
	Machine string `yaml:"machine" json:"machine,omitempty"`
	Model   string `yaml:"model" json:"model,omitempty"`
	// Allow lists short texts that are good answers: they pass all the checks but
	// MinDuration. Case, surrounding white space and a final full stop do not
	// matter.
	Allow []string `yaml:"allow" json:"allow,omitempty"`
	// MinChars is the least number of characters, white space at the ends not
	// counted (too_short). An answer that is no string is measured as compact
	// JSON. 0: none.
	MinChars int `yaml:"min_chars" json:"min_chars,omitempty"`
	// Schema is a JSON Schema, an object or a boolean; without $schema one of
	// draft 2020-12. It may refer to itself only. Formats are checked. Nil: none.
	//
	// Where there is a schema, or fields are required or allowed, the answer has
	// to be JSON, or a string that holds JSON, alone or in a fenced block
	// (otherwise malformed). A schema of type string is for the text itself.
	Schema any `yaml:"schema" json:"schema,omitempty"`
	// Required lists fields that must be there and not null (missing_field).
	// Dots lead into nested objects; a list is looked through, each of its
	// elements needs the field, and a number picks one.
	Required []string `yaml:"required" json:"required,omitempty"`
	// Allowed lists the values that fields may have (bad_reference), beside those
	// that the outcome brings itself: an outcome's allowed values are checked
	// whether or not a gate matches. A field that is missing or null has no value
	// to check; each element of a list has to be allowed.
	Allowed map[string][]any `yaml:"allowed" json:"allowed,omitempty"`
	// MinDurationMS refuses what came back faster (too_fast). 0: none.
	MinDurationMS int64 `yaml:"min_duration_ms" json:"min_duration_ms,omitempty"`
}

// Gates are the gates in force. Nil has none. They hold no state: any number
// of goroutines may use them.
type Gates struct {
	list []Gate
	made []*gate
}

// gate is a Gate made ready.
type gate struct {
	machine     glob
	model       glob
	minChars    int
	allow       map[string]bool
	schema      *gateSchema
	required    []string
	allowed     []allowedField
	minDuration time.Duration
}

// allowedField is a field and the values that it may have, as canonical JSON.
type allowedField struct {
	path   string
	values map[string]bool
}

// NewGates makes gates ready; of an empty list it makes nil. The error joins everything that is wrong, each
// with its place in the list, such as "[1].schema.type: …".
func NewGates(list []Gate) (*Gates, error) {
	if len(list) > maxGates {
		return nil, fmt.Errorf("%d gates are given: at most %d are allowed", len(list), maxGates)
	}
	if len(list) == 0 {
		return nil, nil
	}
	gs := &Gates{list: list}
	first := make(map[[2]string]int)
	var errs []error
	for i, g := range list {
		bad := func(field, format string, args ...any) {
			errs = append(errs, fmt.Errorf("[%d].%s: %w", i, field, fmt.Errorf(format, args...)))
		}
		gs.made = append(gs.made, g.prepare(bad))
		key := [2]string{anyGlob(g.Machine), anyGlob(g.Model)}
		if j, twice := first[key]; twice {
			bad("machine", "the same machine and model have [%d], and the first gate that matches is the only one", j)
		} else {
			first[key] = i
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return gs, nil
}

func anyGlob(glob string) string {
	if glob == "" {
		return "*"
	}
	return glob
}

func (g Gate) prepare(bad func(field, format string, args ...any)) *gate {
	made := &gate{
		machine: newGlob(g.Machine), model: newGlob(g.Model), minChars: g.MinChars, required: g.Required, minDuration: time.Duration(g.MinDurationMS) * time.Millisecond,
	}
	for _, glob := range [...][2]string{{"machine", g.Machine}, {"model", g.Model}} {
		if len(glob[1]) > maxGateGlob {
			bad(glob[0], "is %d bytes long: at most %d are allowed", len(glob[1]), maxGateGlob)
		} else if _, err := path.Match(glob[1], ""); err != nil {
			bad(glob[0], "%q is no glob: * and ? and [a-z] are allowed", excerpt(glob[1]))
		}
	}
	if g.MinChars < 0 || g.MinChars > maxResponse {
		bad("min_chars", "%d is out of range: 0 to %d are allowed, since no longer response is read", g.MinChars, maxResponse)
	}
	if most := maxCallTime.Milliseconds(); g.MinDurationMS < 0 || g.MinDurationMS > most {
		bad("min_duration_ms", "%d is out of range: 0 to %d are allowed", g.MinDurationMS, most)
	}

	if len(g.Allow) > maxGateTexts {
		bad("allow", "has %d texts: at most %d are allowed", len(g.Allow), maxGateTexts)
	} else if len(g.Allow) > 0 {
		made.allow = make(map[string]bool, len(g.Allow))
		for i, text := range g.Allow {
			plain := plainText(text)
			switch field := fmt.Sprintf("allow[%d]", i); {
			case plain == "":
				bad(field, "%q is no text: an answer without any is empty", excerpt(text))
			case utf8.RuneCountInString(plain) > maxGateText:
				bad(field, "is %d characters long: at most %d are allowed", utf8.RuneCountInString(plain), maxGateText)
			case made.allow[plain]:
				bad(field, "%q stands on the list twice", excerpt(text))
			}
			made.allow[plain] = true
		}
	}

	if len(g.Required) > maxGateFields {
		bad("required", "has %d fields: at most %d are allowed", len(g.Required), maxGateFields)
	} else {
		for i, field := range g.Required {
			if message := checkPath(field); message != "" {
				bad(fmt.Sprintf("required[%d]", i), "%s", message)
			} else if slices.Contains(g.Required[:i], field) {
				bad(fmt.Sprintf("required[%d]", i), "%q is given twice", excerpt(field))
			}
		}
	}

	if len(g.Allowed) > maxGateFields {
		bad("allowed", "has %d fields: at most %d are allowed", len(g.Allowed), maxGateFields)
	} else {
		left := maxAllowedValues
		for _, field := range slices.Sorted(maps.Keys(g.Allowed)) {
			if message := checkPath(field); message != "" {
				bad("allowed", "%s", message)
				continue
			}
			values := g.Allowed[field]
			if left -= len(values); left < 0 {
				bad("allowed", "has more than %d values: that many are allowed, of all fields together", maxAllowedValues)
				break
			}
			one := allowedField{field, make(map[string]bool, len(values))}
			for i, v := range values {
				plain, err := plainJSON(v)
				if err != nil {
					bad("allowed", "value %d of %q: %w", i, excerpt(field), err)
					continue
				}
				one.values[canonical(plain)] = true
			}
			if len(values) == 0 {
				bad("allowed", "%q has no values: list those that it may have", excerpt(field))
			}
			made.allowed = append(made.allowed, one)
		}
	}

	if g.Schema != nil {
		schema, err := compileSchema(g.Schema)
		if err != nil {
			bad("schema"+err.path, "%s", err.text)
		}
		made.schema = schema
	}
	return made
}

// glob matches names as the rules' globs do, and knows the common ones, which
// are asked for each outcome, without trying patterns.
type glob struct {
	text   string
	plain  bool // text is the name
	prefix bool // text is how the name begins
}

func newGlob(text string) glob {
	const special = `*?[\`
	start, star := strings.CutSuffix(anyGlob(text), "*")
	switch {
	case strings.ContainsAny(start, special):
		return glob{text: text}
	case star:
		return glob{text: start, prefix: true}
	}
	return glob{text: text, plain: true}
}

func (g glob) fits(name string) bool {
	switch {
	case g.plain:
		return g.text == name
	case g.prefix:
		return strings.HasPrefix(name, g.text)
	}
	return breaker.Match{Machine: g.text}.Fits(breaker.Labels{Machine: name})
}

func checkPath(field string) string {
	switch {
	case field == "" || strings.HasPrefix(field, ".") || strings.HasSuffix(field, ".") || strings.Contains(field, ".."):
		return fmt.Sprintf("%q is no field: a name is needed, with dots between the names of nested ones", excerpt(field))
	case len(field) > maxGatePath:
		return fmt.Sprintf("%q is %d bytes long: at most %d are allowed", excerpt(field), len(field), maxGatePath)
	}
	return ""
}

// plainText is the form in which texts are looked for on an allow-list.
func plainText(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	return strings.TrimSpace(strings.TrimSuffix(s, "."))
}

// List gives the gates as they were configured, never nil. They must not be
// changed.
func (gs *Gates) List() []Gate {
	if gs == nil {
		return []Gate{}
	}
	return gs.list
}

// find is the first gate whose globs match, or nil.
func (gs *Gates) find(machine, model string) *gate {
	if gs == nil {
		return nil
	}
	for _, g := range gs.made {
		if g.machine.fits(machine) && g.model.fits(model) {
			return g
		}
	}
	return nil
}

// judge holds an answer against the gate, which may be nil, and against the
// values that the outcome itself allows. It gives the cause and the sentence
// of the check that refuses it, and breaker.OK when none does. The sentence
// names fields and numbers, and nothing else of the response.
func (g *gate) judge(s *seen, own []allowedField) (breaker.Cause, string) {
	if g == nil {
		if len(own) == 0 {
			return breaker.OK, ""
		}
		g = new(gate)
	}
	if cause, why := g.judgeText(s, own); cause != breaker.OK {
		return cause, "gate: " + why
	}
	if g.minDuration > 0 && s.Duration > 0 && s.Duration < g.minDuration {
		return breaker.TooFast, fmt.Sprintf("gate: %s ms, at least %d are needed",
			strconv.FormatFloat(float64(s.Duration)/float64(time.Millisecond), 'g', 6, 64), g.minDuration.Milliseconds())
	}
	return breaker.OK, ""
}

func (g *gate) judgeText(s *seen, own []allowedField) (breaker.Cause, string) {
	isText := s.expectsText()
	if s.Response == nil {
		if isText && !s.calledTool() && s.responseCharsSet && s.ResponseChars < int64(g.minChars) {
			return breaker.TooShort, tooShort(s.ResponseChars, g.minChars)
		}
		return breaker.OK, ""
	}
	text := textOf(s.Response)
	if len(g.allow) > 0 && len(text) <= (maxGateText+2)*utf8.UTFMax && g.allow[plainText(text)] {
		return breaker.OK, ""
	}
	if !isText {
		g = new(gate)
	}
	if n := utf8.RuneCountInString(text); n < g.minChars && !s.calledTool() {
		return breaker.TooShort, tooShort(int64(n), g.minChars)
	}
	if g.schema == nil && len(g.required) == 0 && len(g.allowed) == 0 && len(own) == 0 {
		return breaker.OK, ""
	}
	return g.judgeJSON(s, text, own)
}

func tooShort(n int64, least int) string {
	if n == 1 {
		return fmt.Sprintf("1 character, at least %d are needed", least)
	}
	return fmt.Sprintf("%d characters, at least %d are needed", n, least)
}

func (g *gate) judgeJSON(s *seen, text string, own []allowedField) (breaker.Cause, string) {
	if g.schema != nil && g.schema.text && s.Response.isString() {
		if why := g.schema.refuses(text, 1, 0); why != "" {
			return breaker.Schema, why
		}
		if len(g.required) == 0 && len(g.allowed) == 0 && len(own) == 0 {
			return breaker.OK, ""
		}
	}
	doc, err := readJSON(s.Response, text)
	switch {
	case err == nil:
	case s.calledTool() && errors.Is(err, errNoJSON):
		return breaker.OK, "" // some words beside the call
	default:
		return breaker.Malformed, err.Error()
	}
	if g.schema != nil && !(g.schema.text && s.Response.isString()) {
		if why := g.schema.refuses(doc.value, doc.values, doc.depth); why != "" {
			return breaker.Schema, why
		}
	}
	left := maxFieldWork
	tooLarge := func(field string) bool {
		left -= doc.values * (1 + strings.Count(field, "."))
		return left < 0
	}
	for _, field := range g.required {
		if tooLarge(field) {
			return breaker.MissingField, fmt.Sprintf("the response is too large for its fields: %d steps to look for them are made", maxFieldWork)
		}
		if !present(doc.value, field) {
			return breaker.MissingField, fmt.Sprintf("the field %s is missing", excerpt(field))
		}
	}
	for _, list := range [...][]allowedField{g.allowed, own} {
		for _, field := range list {
			if tooLarge(field.path) {
				return breaker.BadReference, fmt.Sprintf("the response is too large for its fields: %d steps to look for them are made", maxFieldWork)
			}
			if !field.holds(doc.value) {
				return breaker.BadReference, fmt.Sprintf("the field %s has a value that is not allowed", excerpt(field.path))
			}
		}
	}
	return breaker.OK, ""
}

// holds tells whether everything in this field of doc is allowed.
func (f *allowedField) holds(doc any) bool {
	ok := true
	lookUp(doc, f.path, func(v any, found bool) { ok = ok && (!found || v == nil || f.holdsValue(v)) })
	return ok
}

// holdsValue takes a list as its elements, unless it is allowed as a whole.
func (f *allowedField) holdsValue(v any) bool {
	if f.values[canonical(v)] {
		return true
	}
	list, isList := v.([]any)
	return isList && !slices.ContainsFunc(list, func(v any) bool { return !f.values[canonical(v)] })
}

// readAllowed reads the values that an outcome allows; the message says what
// is wrong with them.
func readAllowed(v value) (list []allowedField, message string) {
	const want = "an object of field names with arrays of allowed values"
	if !v.isObject() {
		return nil, wrongKind(v, want)
	}
	if len(v) > maxAllowedBytes {
		return nil, fmt.Sprintf("is %d bytes long: at most %d are allowed", len(v), maxAllowedBytes)
	}
	left := maxAllowedValues
	eachMember(v, func(key []byte, v value) {
		if message != "" {
			return
		}
		name := string(key)
		switch {
		case !v.isArray():
			message = fmt.Sprintf("has %s under %q: %s is needed", v.describe(), excerpt(name), want)
			return
		case len(list) == maxGateFields:
			message = fmt.Sprintf("has more than %d fields: that many are allowed", maxGateFields)
			return
		}
		if len(name) > maxGatePath { // any other name is one that a response may have
			message = fmt.Sprintf("has the field %q of %d bytes: at most %d are allowed", excerpt(name), len(name), maxGatePath)
			return
		}
		field := allowedField{name, make(map[string]bool)}
		each(v, func(element value) bool {
			if left--; left < 0 {
				message = fmt.Sprintf("has more than %d values: that many are allowed, of all fields together", maxAllowedValues)
				return false
			}
			plain, err := decodeJSON(element)
			if err != nil {
				message = fmt.Sprintf("has a value under %q that cannot be compared: %v", excerpt(name), err)
				return false
			}
			field.values[canonical(plain)] = true
			return true
		})
		if i := slices.IndexFunc(list, func(f allowedField) bool { return f.path == name }); i >= 0 {
			list[i] = field // the last one counts
		} else {
			list = append(list, field)
		}
	})
	return list, message
}

// textOf is the text of a response without white space around it: of a string
// its characters, of anything else its compact JSON.
func textOf(response value) string {
	if response.isString() {
		return strings.TrimSpace(response.text())
	}
	return compactJSON(response)
}

func compactJSON(v value) string {
	var b strings.Builder
	b.Grow(len(v))
	for i := 0; i < len(v); {
		switch v[i] {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			end := stringEnd(v, i)
			b.Write(v[i:end])
			i = end
		default:
			b.WriteByte(v[i])
			i++
		}
	}
	return b.String()
}
