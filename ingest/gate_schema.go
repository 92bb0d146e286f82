package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// The bounds of schemas.
const (
	maxSchemaBytes = 64 << 10 // as JSON
	// maxPatternSteps bounds a regular expression by its compiled size, since
	// matching costs at most that size for each byte of a text.
	maxPatternSteps = 2000
	// maxSchemaWork bounds what one answer may cost, in schemas applied to
	// values: the library goes through all branches, and nested branches that
	// recurse double with each level of an answer.
	maxSchemaWork = 200_000
)

// schemaURL is the name that a gate's schema has for the library.
const schemaURL = "gate:///schema"

// gateSchema is a compiled schema. It holds no state.
type gateSchema struct {
	compiled *jsonschema.Schema
	text     bool // it is of type string: for the text of an answer itself
	// work is, for each depth of an answer, how many schemas are applied at most
	// to one of its values there.
	work [maxDepth + 1]int
}

// schemaError is what is wrong with a schema; path leads into it, in the form
// of a configuration's keys.
type schemaError struct{ path, text string }

// compileSchema checks and compiles a schema. Nothing is ever fetched or read
// for it: it may refer to itself and to the meta-schemas only.
func compileSchema(doc any) (*gateSchema, *schemaError) {
	doc, err := plainJSON(doc)
	if err != nil {
		return nil, &schemaError{"", err.Error()}
	}
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, &schemaError{"", "is no JSON Schema: an object is needed, or true or false"}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, &schemaError{"", err.Error()}
	}
	if len(text) > maxSchemaBytes {
		return nil, &schemaError{"", fmt.Sprintf("is %d bytes long: at most %d are allowed", len(text), maxSchemaBytes)}
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(boundedRegexp)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, &schemaError{"", err.Error()}
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return nil, describeSchemaError(err)
	}
	s := &gateSchema{compiled: compiled, text: compiled.Types != nil && slices.Equal(compiled.Types.ToStrings(), []string{"string"})}
	if err := s.countWork(); err != nil {
		return nil, &schemaError{"", err.Error()}
	}
	return s, nil
}

// noLoader refuses whatever a schema refers to outside of itself.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) { return nil, errors.New("nothing is fetched") }

// boundedRegexp compiles patterns with Go's engine, whose time is linear.
func boundedRegexp(pattern string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if len(prog.Inst) > maxPatternSteps {
		return nil, fmt.Errorf("is too large: it compiles to %d steps, at most %d are allowed", len(prog.Inst), maxPatternSteps)
	}
	return regexp.Compile(pattern)
}

var english = message.NewPrinter(language.English)

// describeSchemaError turns the library's error into a place and a sentence.
func describeSchemaError(err error) *schemaError {
	if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return &schemaError{"", fmt.Sprintf("refers to %q: only references inside of the schema (#/…) are possible, nothing is fetched or read", strings.TrimPrefix(load.URL, "gate:///"))}
	}
	if pattern, ok := errors.AsType[*jsonschema.InvalidRegexError](err); ok {
		return &schemaError{"", fmt.Sprintf("the pattern %q %s", excerpt(pattern.Regex), strings.TrimPrefix(pattern.Err.Error(), "error parsing regexp: "))}
	}
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if why, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			leaf := firstLeaf(why)
			return &schemaError{keyPath(leaf.InstanceLocation), leaf.ErrorKind.LocalizedString(english)}
		}
	}
	return &schemaError{"", strings.ReplaceAll(err.Error(), schemaURL, "")}
}

// firstLeaf is the innermost error that comes first by its place, so that of
// the many errors of one answer always the same one is told.
func firstLeaf(err *jsonschema.ValidationError) *jsonschema.ValidationError {
	if len(err.Causes) == 0 {
		return err
	}
	var first *jsonschema.ValidationError
	for _, cause := range err.Causes {
		leaf := firstLeaf(cause)
		if first == nil || compareLeaves(leaf, first) < 0 {
			first = leaf
		}
	}
	return first
}

func compareLeaves(a, b *jsonschema.ValidationError) int {
	if c := slices.Compare(a.InstanceLocation, b.InstanceLocation); c != 0 {
		return c
	}
	return slices.Compare(append(a.ErrorKind.KeywordPath(), a.SchemaURL), append(b.ErrorKind.KeywordPath(), b.SchemaURL))
}

// keyPath spells a place in a schema as the configuration's keys are spelled.
func keyPath(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		_, err := strconv.Atoi(token)
		switch {
		case err == nil:
			b.WriteString("[" + token + "]")
		case strings.ContainsFunc(token, func(r rune) bool { return r >= 0x80 || !isWordByte(byte(r|0x20)) && r != '-' }):
			b.WriteString("[" + strconv.Quote(excerpt(token)) + "]")
		default:
			b.WriteString("." + token)
		}
	}
	return b.String()
}

// refuses says how a value breaks the schema, "" when it does not; values and
// depth are its size. The sentence names fields and keywords, no values.
func (s *gateSchema) refuses(v any, values, depth int) string {
	if work := values * slices.Max(s.work[:depth+1]); work > maxSchemaWork {
		return fmt.Sprintf("the response is too large for its schema: %d steps to check it, at most %d are made", work, maxSchemaWork)
	}
	err := s.compiled.Validate(v)
	if err == nil {
		return ""
	}
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return "the response breaks its schema"
	}
	leaf := firstLeaf(invalid)
	where := "the response"
	if len(leaf.InstanceLocation) > 0 {
		where = "the field " + excerpt(strings.Join(leaf.InstanceLocation, "."))
	}
	return where + " breaks its schema: " + keyword(leaf.ErrorKind)
}

// keyword names what a value breaks. The library's own sentences quote values.
func keyword(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return fmt.Sprintf("it is %s, %s is needed", k.Got, strings.Join(k.Want, " or "))
	case *kind.Required:
		return "it lacks " + names(k.Missing)
	case *kind.DependentRequired:
		return "it lacks " + names(k.Missing)
	case *kind.Dependency:
		return "it lacks " + names(k.Missing)
	case *kind.AdditionalProperties:
		return "it has additional fields"
	case *kind.Format:
		return "its format is not " + excerpt(k.Want)
	case *kind.FalseSchema:
		return "it may not be there"
	case *kind.Enum, *kind.Const:
		return "it has another value (" + k.KeywordPath()[0] + ")"
	}
	if path := k.KeywordPath(); len(path) > 0 {
		return path[0]
	}
	return "it is not valid"
}

func names(list []string) string {
	list = slices.Sorted(slices.Values(list))
	if len(list) > 3 {
		list = append(list[:3:3], "…")
	}
	return excerpt(strings.Join(list, ", "))
}

// countWork fills in work, an upper bound: for each depth the schemas applied
// in place there, and those that the schemas one level up apply to what is
// inside of them.
func (s *gateSchema) countWork() error {
	all := []*jsonschema.Schema{s.compiled}
	known := map[*jsonschema.Schema]bool{s.compiled: true}
	for i := 0; i < len(all); i++ {
		if all[i].DynamicRef != nil || all[i].RecursiveRef != nil {
			return errors.New("has $dynamicRef or $recursiveRef: only $ref can be used")
		}
		place, inside, fields := applied(all[i])
		for _, one := range slices.Concat(place, inside, fields) {
			if !known[one] {
				known[one] = true
				all = append(all, one)
			}
		}
	}
	var above map[*jsonschema.Schema]int
	for depth := range s.work {
		c := &workCounter{above: above, here: make(map[*jsonschema.Schema]int, len(all))}
		for _, one := range all {
			if _, err := c.count(one); err != nil {
				return err
			}
		}
		s.work[depth], above = c.here[s.compiled], c.here
	}
	return nil
}

// workCounter counts for one depth below each schema; above has the counts for
// a depth of one less, nil at depth 0.
type workCounter struct {
	above, here map[*jsonschema.Schema]int
}

const counting = -1

func (c *workCounter) count(s *jsonschema.Schema) (int, error) {
	if n, done := c.here[s]; done {
		if n == counting {
			return 0, fmt.Errorf("%s refers back to itself without going into a field or an element", strings.TrimPrefix(s.Location, schemaURL))
		}
		return n, nil
	}
	c.here[s] = counting
	place, inside, fields := applied(s)
	n := 0
	if c.above == nil {
		n = 1 + len(s.PatternProperties)
		if s.Enum != nil {
			n += len(s.Enum.Values) / 16 // comparing is far cheaper than applying
		}
	}
	for _, one := range place {
		m, err := c.count(one)
		if err != nil {
			return 0, err
		}
		n = min(n+m, maxSchemaWork+1)
	}
	most := 0
	for _, one := range fields {
		most = max(most, c.above[one])
	}
	n += most
	for _, one := range inside {
		n = min(n+c.above[one], maxSchemaWork+1)
	}
	c.here[s] = n
	return n, nil
}

// applied lists the schemas that a schema applies to the value that it is
// about, to everything inside of that, and each to one field or element only.
func applied(s *jsonschema.Schema) (place, inside, fields []*jsonschema.Schema) {
	add := func(list *[]*jsonschema.Schema, more ...*jsonschema.Schema) {
		for _, one := range more {
			if one != nil {
				*list = append(*list, one)
			}
		}
	}
	add(&place, s.Ref, s.Not, s.If, s.Then, s.Else)
	add(&place, slices.Concat(s.AllOf, s.AnyOf, s.OneOf)...)
	add(&place, slices.Collect(maps.Values(s.DependentSchemas))...)
	for _, dependency := range s.Dependencies {
		if one, ok := dependency.(*jsonschema.Schema); ok {
			add(&place, one)
		}
	}
	add(&inside, s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems)
	add(&inside, slices.Collect(maps.Values(s.PatternProperties))...)
	for _, v := range [...]any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch v := v.(type) {
		case *jsonschema.Schema:
			add(&inside, v)
		case []*jsonschema.Schema:
			add(&fields, v...)
		}
	}
	add(&fields, slices.Collect(maps.Values(s.Properties))...)
	add(&fields, s.PrefixItems...)
	return place, inside, fields
}
