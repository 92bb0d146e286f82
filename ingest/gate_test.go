package ingest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"breakerbot/breaker"
)

// gateOf reads a gate as the configuration spells it, in JSON.
func gateOf(t testing.TB, text string) Gate {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	var g Gate
	if err := dec.Decode(&g); err != nil {
		t.Fatalf("gate %s: %v", text, err)
	}
	return g
}

func gatesOf(t testing.TB, texts ...string) *Gates {
	t.Helper()
	var list []Gate
	for _, text := range texts {
		list = append(list, gateOf(t, text))
	}
	gates, err := NewGates(list)
	if err != nil {
		t.Fatal(err)
	}
	return gates
}

// gateCases are answers that a gate judges: the outcome without its labels,
// the cause, and what is kept of it.
var gateCases = []struct{ gate, outcome, cause, evidence string }{
	{`{"min_chars": 50}`, `"http_status": 200, "response": "ok then, nope"`, "too_short", "gate: 13 characters, at least 50 are needed"},
	{`{"min_chars": 50}`, `"http_status": 200, "response_chars": 12`, "too_short", "gate: 12 characters, at least 50 are needed"},
	{`{"min_chars": 50}`, `"http_status": 200, "response": "short", "response_chars": 500`, "too_short", "gate: 5 characters, at least 50 are needed"},
	{`{"min_chars": 50}`, `"cause": "ok", "response": "x", "error": "looked odd"`, "too_short", "looked odd"},
	{`{"min_chars": 50, "allow": ["yes"]}`, `"http_status": 200, "response": "Yes."`, "ok", ""},
	{`{"min_chars": 50, "allow": ["yes"]}`, `"http_status": 200, "response_chars": 3`, "too_short", "gate: 3 characters, at least 50 are needed"},
	{`{"min_chars": 5, "allow": ["42"]}`, `"http_status": 200, "response": 42`, "ok", ""},
	{`{"min_duration_ms": 20, "allow": ["yes"]}`, `"http_status": 200, "response": "yes", "duration_ms": 3.25`, "too_fast", "gate: 3.25 ms, at least 20 are needed"},
	{`{"min_duration_ms": 20}`, `"http_status": 200, "duration_ms": 20`, "ok", ""},
	{`{"min_duration_ms": 20}`, `"http_status": 200, "duration_ms": 0`, "ok", ""},
	{`{"required": ["case.id"]}`, `"http_status": 200, "response": {"case": {"id": null}}`, "missing_field", "gate: the field case.id is missing"},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "my secret words"`, "malformed", "gate: the response is not JSON"},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "{\"id\": 1e999}"`, "malformed", "gate: the response is not JSON: a number is out of range"},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "{\"id\": ` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}"`, "malformed", "gate: the response nests too deep: at most 64 are allowed"},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "{\"id\": ` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}"`, "malformed", "gate: the response nests too deep: at most 64 are allowed"},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "~~~\nx\n~~~ ` + "```json\\n{\\\"id\\\": \\\"```\\\"}\\n```" + ` bye"`, "ok", ""},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "` + "```python\\n{}\\n```" + `"`, "malformed", "gate: the response is not JSON"},
	{`{"required": ["id"]}`, `"http_status": 200, "response": "` + "```json\\n{\\\"id\\\": 1" + `"`, "malformed", "gate: the response is not JSON"},
	{`{"required": ["0.id"]}`, `"http_status": 200, "response": [{"id": 1}, {}]`, "ok", ""},
	{`{"required": ["2.id"]}`, `"http_status": 200, "response": [{"id": 1}, {}]`, "missing_field", "gate: the field 2.id is missing"},
	{`{"required": ["1"]}`, `"http_status": 200, "response": ["a", null]`, "missing_field", "gate: the field 1 is missing"},
	{`{"required": ["a.b.c.d"]}`, `"http_status": 200, "response": {"a.b": {"c.d": 0}}`, "ok", ""},
	{`{"allowed": {"id": ["u1"]}}`, `"http_status": 200, "response": {"id": "u2"}`, "bad_reference", "gate: the field id has a value that is not allowed"},
	{`{"allowed": {"id": ["u1"]}}`, `"http_status": 200, "response": {"id": "u1"}, "allowed": {"id": ["u2"]}`, "bad_reference", "gate: the field id has a value that is not allowed"},
	{`{"allowed": {"id": [["a", "b"]]}}`, `"http_status": 200, "response": {"id": ["a", "b"]}`, "ok", ""},
	{`{"allowed": {"id": [["a", "b"]]}}`, `"http_status": 200, "response": {"id": ["b", "a"]}`, "bad_reference", "gate: the field id has a value that is not allowed"},
	{`{"allowed": {"id": [12345678901234567890]}}`, `"http_status": 200, "response": {"id": 12345678901234567891}`, "bad_reference", "gate: the field id has a value that is not allowed"},
	{`{"allowed": {"id": [12345678901234567890]}}`, `"http_status": 200, "response": {"id": 1234567890123456789.0e1}`, "ok", ""},
	{`{"schema": {"properties": {"score": {"type": "number"}}}}`, `"http_status": 200, "response": {"score": "my secret words"}`, "schema", "gate: the field score breaks its schema: it is string, number is needed"},
	{`{"schema": {"required": ["b", "a"]}}`, `"http_status": 200, "response": {}`, "schema", "gate: the response breaks its schema: it lacks a, b"},
	{`{"schema": {"items": {"pattern": "^x"}}}`, `"http_status": 200, "response": ["x", "my secret words"]`, "schema", "gate: the field 1 breaks its schema: pattern"},
	{`{"schema": {"properties": {"a": {"enum": ["x"]}}}}`, `"http_status": 200, "response": {"a": "my secret words"}`, "schema", "gate: the field a breaks its schema: it has another value (enum)"},
	{`{"schema": {"properties": {"at": {"format": "date-time"}}}}`, `"http_status": 200, "response": {"at": "my secret words"}`, "schema", "gate: the field at breaks its schema: its format is not date-time"},
	{`{"schema": {"additionalProperties": false}}`, `"http_status": 200, "response": {"my": "secret words"}`, "schema", "gate: the response breaks its schema: it has additional fields"},
	{`{"schema": {"properties": {"a": false}}}`, `"http_status": 200, "response": {"a": "my secret words"}`, "schema", "gate: the field a breaks its schema: it may not be there"},
	{`{"schema": {"properties": {"n": {"multipleOf": 0.1}}}}`, `"http_status": 200, "response": {"n": 0.3}`, "ok", ""},
	{`{"schema": {"properties": {"n": {"maximum": 5}}}}`, `"http_status": 200, "response": {"n": 1e-999999}`, "ok", ""},
	{`{"schema": {"properties": {"n": {"multipleOf": 7}}}}`, `"http_status": 200, "response": {"n": 1e300}`, "schema", "gate: the field n breaks its schema: multipleOf"},
	{`{"schema": {"type": "string", "maxLength": 9}}`, `"http_status": 200, "response": "approve"`, "ok", ""},
	{`{"schema": {"type": "string", "maxLength": 9}}`, `"http_status": 200, "response": "my secret words"`, "schema", "gate: the response breaks its schema: maxLength"},
	{`{"schema": {"type": "string"}}`, `"http_status": 200, "response": {}`, "schema", "gate: the response breaks its schema: it is object, string is needed"},
	{`{"schema": {"type": "string"}, "required": ["a"]}`, `"http_status": 200, "response": "{\"a\": 1}"`, "ok", ""},
	{`{"schema": false}`, `"http_status": 200, "response": {}`, "schema", "gate: the response breaks its schema: it may not be there"},
	{`{"schema": {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 5, "exclusiveMinimum": true}}`, `"http_status": 200, "response": 5`, "schema", "gate: the response breaks its schema: exclusiveMinimum"},
	{`{"schema": {"$id": "http://example.com/a", "items": {"$ref": "b"}, "$defs": {"b": {"$id": "b", "type": "null"}}}}`, `"http_status": 200, "response": [null, 1]`, "schema", "gate: the field 1 breaks its schema: it is number, null is needed"},
	{`{"required": ["id"]}`, `"http_status": 200, "operation": "rerank", "response": {"x": 1}`, "ok", ""},
	{`{"min_chars": 9}`, `"http_status": 200, "operation": "embeddings", "response_chars": 0, "output_tokens": 1`, "ok", ""},
	{`{"required": ["id"]}`, `"http_status": 200, "operation": "rerank", "response": {"x": 1}, "allowed": {"x": [2]}`, "bad_reference", "gate: the field x has a value that is not allowed"},
	{`{"required": ["id"]}`, `"http_status": 200, "tool_calls": 1, "response": {"x": 1}`, "missing_field", "gate: the field id is missing"},
	{`{"required": ["id"], "min_chars": 99}`, `"http_status": 200, "tool_calls": 1, "response": {"id": 1}`, "ok", ""},
	{`{"min_chars": 9}`, `"http_status": 200, "served": "rejected", "response": "x"`, "ok", ""},
	{`{"min_chars": 9}`, `"http_status": 200, "retry_after_s": 30, "response": "x"`, "too_short", "gate: 1 character, at least 9 are needed"},
	{`{}`, `"http_status": 200, "response": "x", "duration_ms": 0.001`, "ok", ""},
}

func TestGates(t *testing.T) {
	t.Parallel()
	for _, c := range gateCases {
		o, errs, _ := Decoder{Gates: gatesOf(t, c.gate)}.Outcome(json.RawMessage(`{"agent": "a", "machine": "m", `+c.outcome+`}`), t0)
		if errs != nil {
			t.Errorf("%s %s: %v", c.gate, c.outcome, errs)
			continue
		}
		if o.Cause.String() != c.cause || o.Error != c.evidence {
			t.Errorf("%s %s\n  is   %s %q\n  want %s %q", c.gate, c.outcome, o.Cause, o.Error, c.cause, c.evidence)
		}
		if o.RetryAfter != 0 {
			t.Errorf("%s %s: waits %s for a Retry-After, which a 200 has none of", c.gate, c.outcome, o.RetryAfter)
		}
		if strings.Contains(o.Error, "secret words") {
			t.Errorf("%s: the evidence %q quotes the response", c.outcome, o.Error)
		}
	}
}

// Gates match names exactly as rules do.
func TestGlobProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SampledFrom([]rune(`ab/*?[]-\`))
		text := rapid.StringOfN(letters, 0, 6, -1).Draw(t, "glob")
		name := rapid.StringOfN(rapid.SampledFrom([]rune("ab/*")), 0, 6, -1).Draw(t, "name")
		if _, err := path.Match(text, ""); err != nil {
			t.Skip()
		}
		if got, want := newGlob(text).fits(name), (breaker.Match{Machine: text}).Fits(breaker.Labels{Machine: name}); got != want {
			t.Fatalf("%q matches %q: %t, want %t", text, name, got, want)
		}
	})
}

// The same answer gives the same sentence, though the library goes through
// fields in the order of a map.
func TestGateEvidenceIsStable(t *testing.T) {
	t.Parallel()
	fields := make(map[string]any)
	for i := range 20 {
		fields[fmt.Sprintf("f%02d", i)] = map[string]any{"type": "number", "minimum": 5}
	}
	gates, err := NewGates([]Gate{{Schema: map[string]any{"properties": fields, "required": []any{"zz", "aa"}}}})
	if err != nil {
		t.Fatal(err)
	}
	response, _ := json.Marshal(maps.Collect(func(yield func(string, string) bool) {
		for field := range fields {
			if !yield(field, "x") {
				return
			}
		}
	}))
	var all sync.WaitGroup
	for range 4 { // at a time, as requests come
		all.Go(func() {
			for range 25 {
				_, why := gates.find("m", "m").judge(&seen{Response: response}, nil)
				if want := "gate: the response breaks its schema: it lacks aa, zz"; why != want {
					t.Errorf("%q, want %q", why, want)
				}
			}
		})
	}
	all.Wait()
}

func TestFirstGateThatMatches(t *testing.T) {
	t.Parallel()
	gates := gatesOf(t, `{"machine": "gpu", "model": "a", "min_chars": 1}`, `{"machine": "gpu", "model": "org/*", "min_chars": 2}`,
		`{"machine": "gpu", "min_chars": 3}`, `{"model": "a\\*b", "min_chars": 4}`, `{"machine": "g[a-o]*", "min_chars": 5}`)
	for _, c := range []struct {
		machine, model string
		want           int // 0: no gate
	}{
		{"gpu", "a", 1}, {"gpu", "ab", 3}, {"gpu", "org/x/y", 2}, {"gpu", "org", 3}, {"gpu", "", 3}, {"mac", "a", 0}, {"mac", "a*b", 4}, {"mac", "axb", 0}, {"gnu", "x", 5}, {"gqu", "x", 0},
	} {
		got := 0
		if g := gates.find(c.machine, c.model); g != nil {
			got = g.minChars
		}
		if got != c.want {
			t.Errorf("%s %s: gate %d, want %d", c.machine, c.model, got, c.want)
		}
	}
	if (*Gates)(nil).find("m", "m") != nil || (*Gates)(nil).List() == nil {
		t.Error("no gates are one, or their list is nil")
	}
}

func TestGateErrors(t *testing.T) {
	t.Parallel()
	deep := map[string]any{}
	for range 70 {
		deep = map[string]any{"not": deep}
	}
	many := make(map[string][]any)
	for i := range 201 {
		many[fmt.Sprint(i)] = []any{1}
	}
	for _, c := range []struct {
		gate Gate
		want []string
	}{
		{Gate{Machine: strings.Repeat("m", 257)}, []string{"[0].machine: is 257 bytes long: at most 256 are allowed"}},
		{Gate{Model: "[a"}, []string{`[0].model: "[a" is no glob: * and ? and [a-z] are allowed`}},
		{Gate{MinChars: 65537}, []string{"[0].min_chars: 65537 is out of range: 0 to 65536 are allowed, since no longer response is read"}},
		{Gate{MinDurationMS: -1}, []string{"[0].min_duration_ms: -1 is out of range: 0 to 86400000 are allowed"}},
		{Gate{Allow: make([]string, 1001)}, []string{"[0].allow: has 1001 texts: at most 1000 are allowed"}},
		{Gate{Allow: []string{"a", strings.Repeat("ä", 1001)}}, []string{"[0].allow[1]: is 1001 characters long: at most 1000 are allowed"}},
		{Gate{Required: make([]string, 201)}, []string{"[0].required: has 201 fields: at most 200 are allowed"}},
		{Gate{Required: []string{"a.", strings.Repeat("a", 257)}}, []string{`[0].required[0]: "a." is no field`, "is 257 bytes long: at most 256 are allowed"}},
		{Gate{Allowed: many}, []string{"[0].allowed: has 201 fields: at most 200 are allowed"}},
		{Gate{Allowed: map[string][]any{"a": make([]any, 9000), "b": make([]any, 1001)}}, []string{"[0].allowed: has more than 10000 values: that many are allowed, of all fields together"}},
		{Gate{Allowed: map[string][]any{"a": {time.Second}}}, []string{`[0].allowed: value 0 of "a": time.Duration is no JSON`}},
		{Gate{Schema: "object"}, []string{"[0].schema: is no JSON Schema: an object is needed, or true or false"}},
		{Gate{Schema: deep}, []string{"[0].schema: nests too deep: at most 64 are allowed"}},
		{Gate{Schema: map[string]any{"const": strings.Repeat("x", 65536)}}, []string{"[0].schema: is 65548 bytes long: at most 65536 are allowed"}},
		{Gate{Schema: map[string]any{"properties": map[string]any{"a b": map[string]any{"type": "strng"}}}}, []string{`[0].schema.properties["a b"].type: value must be one of`}},
		{Gate{Schema: map[string]any{"allOf": []any{true, map[string]any{"minimum": "1"}}}}, []string{"[0].schema.allOf[1].minimum: got string, want number"}},
		{Gate{Schema: map[string]any{"$ref": "file:///etc/passwd"}}, []string{`[0].schema: refers to "file:///etc/passwd": only references inside of the schema`}},
		{Gate{Schema: map[string]any{"$ref": "http://127.0.0.1:9/x.json"}}, []string{`[0].schema: refers to "http://127.0.0.1:9/x.json": only references inside of the schema`}},
		{Gate{Schema: map[string]any{"$schema": "http://127.0.0.1:9/meta"}}, []string{`[0].schema: refers to "http://127.0.0.1:9/meta": only references inside`}},
		{Gate{Schema: map[string]any{"$ref": "#/$defs/none"}}, []string{"[0].schema: ", "/$defs/none"}},
		{Gate{Schema: map[string]any{"$ref": "#"}}, []string{"[0].schema: # refers back to itself without going into a field or an element"}},
		{Gate{Schema: map[string]any{"items": map[string]any{"$dynamicRef": "#a"}, "$dynamicAnchor": "a"}}, []string{"[0].schema: has $dynamicRef or $recursiveRef: only $ref can be used"}},
		{Gate{Schema: map[string]any{"pattern": "(?=a)"}}, []string{"[0].schema.pattern: '(?=a)' is not valid regex"}},
		{Gate{Schema: map[string]any{"pattern": strings.Repeat("[a-z]{900}", 3)}}, []string{"[0].schema.pattern: ", "steps, at most 2000 are allowed"}},
		{Gate{MinChars: -1, MinDurationMS: -1}, []string{"[0].min_chars: ", "[0].min_duration_ms: "}},
	} {
		_, err := NewGates([]Gate{c.gate})
		if err == nil {
			t.Errorf("%.60v is taken, want %q", c.gate, c.want)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q lacks %q", err, want)
			}
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "[0].") {
				t.Errorf("a line without its place: %q", line)
			}
		}
	}
	if _, err := NewGates(make([]Gate, 1001)); err == nil || err.Error() != "1001 gates are given: at most 1000 are allowed" {
		t.Errorf("error %v", err)
	}
	if _, err := NewGates([]Gate{{Machine: "*"}, {Model: "m"}, {Model: "*"}}); err == nil || !strings.HasPrefix(err.Error(), "[2].machine: the same machine and model have [0]") {
		t.Errorf("error %v", err)
	}
}

// A file that is there and holds a good schema is not read either.
func TestSchemaReadsNoFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(name, []byte(`{"type": "object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	url := "file://" + filepath.ToSlash(name)
	if _, err := NewGates([]Gate{{Schema: map[string]any{"$ref": url}}}); err == nil || !strings.Contains(err.Error(), "[0].schema: refers to "+strconv.Quote(url)) {
		t.Errorf("error %v, want that %s is not read", err, url)
	}
}

// A schema whose branches recurse twice doubles the work with each level of an
// answer; an answer that would take too long is refused instead of checked.
func TestSchemaWorkIsBounded(t *testing.T) {
	t.Parallel()
	twice := `{"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [
		{"properties": {"x": {"$ref": "#/$defs/node"}}, "required": ["no"]}, {"properties": {"x": {"$ref": "#/$defs/node"}}, "required": ["never"]}, {"const": 1}]}}}`
	s := compiled(t, twice)
	if s.work[0] != 5 || s.work[1] != 10 || s.work[2] != 20 {
		t.Errorf("work %v, want 5, 10, 20: each level doubles it", s.work[:3])
	}
	once := compiled(t, `{"type": "object", "properties": {"x": {"$ref": "#"}, "y": {"$ref": "#"}}}`)
	if once.work[0] != 1 || once.work[1] != 2 || once.work[maxDepth] != 2 {
		t.Errorf("work %v, want 1 at the top and 2 below, since a field has one schema", once.work)
	}
	nested := func(depth int) string { return strings.Repeat(`{"x":`, depth) + "1" + strings.Repeat("}", depth) }
	for _, c := range []struct {
		schema *gateSchema
		depth  int
		why    string
	}{
		{s, 3, "the response breaks its schema: it has another value (const)"}, {s, 60, "too large for its schema"}, {once, 60, "it is number, object is needed"},
	} {
		doc, err := readJSON(value(nested(c.depth)), "")
		if err != nil {
			t.Fatal(err)
		}
		if doc.values != c.depth+1 || doc.depth != c.depth {
			t.Errorf("depth %d: read as %d values, %d deep", c.depth, doc.values, doc.depth)
		}
		if why := c.schema.refuses(doc.value, doc.values, doc.depth); !strings.Contains(why, c.why) {
			t.Errorf("depth %d: %q, want %q", c.depth, why, c.why)
		}
	}
}

func compiled(t *testing.T, text string) *gateSchema {
	t.Helper()
	doc, err := decodeJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s, wrong := compileSchema(doc)
	if wrong != nil {
		t.Fatal(wrong.text)
	}
	return s
}

func anyJSON(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.StringOf(rapid.SampledFrom([]rune("ab\"\\é`\n.{}1"))).AsAny(),
		rapid.Map(rapid.IntRange(-20, 20), func(n int) any { return float64(n) / 4 }),
	}
	if depth > 0 {
		inner := anyJSON(depth - 1)
		kinds = append(kinds,
			rapid.Map(rapid.SliceOfN(inner, 0, 4), func(list []any) any { return list }),
			rapid.Map(rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "a.b", "c", "1"}), inner, 0, 4), func(m map[string]any) any { return m }))
	}
	return rapid.OneOf(kinds...)
}

// Values are the same if and only if their canonical texts are, however they
// were written; and a text that holds them, fenced or not, gives them back.
func TestCanonicalProperty(t *testing.T) {
	t.Parallel()
	read := func(t *rapid.T, text []byte) any {
		v, err := decodeJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return v
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyJSON(3).Draw(t, "a"), anyJSON(3).Draw(t, "b")
		one, _ := json.Marshal(a)
		two, _ := json.MarshalIndent(b, "", "  ")
		same := string(one) == string(must(json.Marshal(b)))
		if got := canonical(read(t, one)) == canonical(read(t, two)); got != same {
			t.Fatalf("%s and %s: the same is %t, want %t", one, two, got, same)
		}
		if canonical(read(t, must(json.MarshalIndent(a, " ", "\t")))) != canonical(read(t, one)) {
			t.Fatalf("white space changes %s", one)
		}
		if got := compactJSON(value(two)); got != string(must(json.Marshal(json.RawMessage(two)))) {
			t.Fatalf("compact %s is %s", two, got)
		}
		for _, text := range []string{string(two), "```json\n" + string(two) + "\n```", "So:\n```\n" + string(two) + "\n```\nBye."} {
			doc, err := readJSON(value(must(json.Marshal(text))), text)
			if err != nil || canonical(doc.value) != canonical(read(t, two)) {
				t.Fatalf("%q holds %v, %v", text, doc.value, err)
			}
		}
	})
}

// Numbers are the same if and only if they are worth the same.
func TestCanonicalNumbers(t *testing.T) {
	t.Parallel()
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,2}0{0,3})(\.[0-9]{1,3}0{0,3})?([eE][+-]?0?[0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		if rapid.Bool().Draw(t, "zeros") {
			b = a + "e00"
			if strings.ContainsAny(a, "eE") {
				b = a
			}
		}
		ra, _ := new(big.Rat).SetString(a)
		rb, _ := new(big.Rat).SetString(b)
		one, two := canonical(json.Number(a)), canonical(json.Number(b))
		if (one == two) != (ra.Cmp(rb) == 0) {
			t.Fatalf("%s is %s and %s is %s", a, one, b, two)
		}
		if again, ok := new(big.Rat).SetString(one); !ok || again.Cmp(ra) != 0 {
			t.Fatalf("%s became %s", a, one)
		}
	})
}

// What an answer costs is bounded, whatever fields are looked for in it.
func TestFieldsOfHugeAnswers(t *testing.T) {
	t.Parallel()
	list := func(element string, n int) string { return "[" + strings.Repeat(element+",", n-1) + element + "]" }
	deep := func(n int) string {
		fields := make([]string, n)
		for i := range fields {
			fields[i] = fmt.Sprintf(`"f%d%s":[1]`, i, strings.Repeat(".a", 99))
		}
		return strings.Join(fields, ",")
	}
	for _, c := range []struct {
		name, response, allowed string
		want                    breaker.Cause
	}{
		{"many fields, many values", list("{}", 20_000), deep(100), breaker.BadReference},
		{"many fields, few values", list("{}", 90), deep(100), breaker.OK},
		{"one field, many values", `{"id":` + list("1e400", 10_000) + "}", `"id":[1e400]`, breaker.OK},
		{"one field again and again", `{"id":` + list("1", 10_000) + "}", strings.Repeat(`"id":[2],`, 199) + `"id":[1]`, breaker.OK},
	} {
		raw := `{"agent":"a","machine":"m","cause":"ok","response":` + c.response + `,"allowed":{` + c.allowed + "}}"
		o, errs, _ := DecodeOutcome(json.RawMessage(raw), time.Unix(1e9, 0))
		if o.Cause != c.want || errs != nil {
			t.Errorf("%s: %s %q, %v; want %s", c.name, o.Cause, o.Error, errs, c.want)
		}
	}
	g, err := NewGates([]Gate{{Required: []string{"x" + strings.Repeat(".a", 99)}}})
	if err != nil {
		t.Fatal(err)
	}
	raw := `{"agent":"a","machine":"m","cause":"ok","response":` + list("{}", 20_000) + "}"
	if o, _, _ := (Decoder{Gates: g}).Outcome(json.RawMessage(raw), time.Unix(1e9, 0)); o.Cause != breaker.MissingField || !strings.Contains(o.Error, "too large for its fields") {
		t.Errorf("a required field: %s %q", o.Cause, o.Error)
	}
}

func must(text []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return text
}

// A required field is found exactly where a plain walk finds it.
func TestPresentProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc := anyJSON(3).Draw(t, "doc")
		path := rapid.SampledFrom([]string{"a", "b", "a.b", "a.b.c", "c.a", "1", "a.1", "1.a", "c.1.b"}).Draw(t, "path")
		if got, want := present(doc, path), walk(doc, strings.Split(path, ".")); got != want {
			t.Fatalf("%s in %s: %t, want %t", path, must(json.Marshal(doc)), got, want)
		}
	})
}

// walk is present written another way: all ways to read the names, shortest
// rest first, in lists all elements or the one with that number.
func walk(v any, names []string) bool {
	if len(names) == 0 {
		return v != nil
	}
	switch v := v.(type) {
	case map[string]any:
		for n := len(names); n > 0; n-- {
			if part, ok := v[strings.Join(names[:n], ".")]; ok {
				return walk(part, names[n:])
			}
		}
	case []any:
		if strings.Trim(names[0], "0123456789") == "" {
			for i, part := range v {
				if fmt.Sprint(i) == names[0] {
					return walk(part, names[1:])
				}
			}
			return false
		}
		for _, part := range v {
			if !walk(part, names) {
				return false
			}
		}
		return len(v) > 0
	}
	return false
}

// Whatever a gate asks for, its verdict is one of its causes, and of the
// response only names are kept.
func TestGateProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := Gate{
			MinChars: rapid.IntRange(0, 30).Draw(t, "min_chars"), MinDurationMS: rapid.Int64Range(0, 30).Draw(t, "min_duration_ms"),
			Allow:    rapid.SampledFrom([][]string{nil, {"a"}, {"planted"}}).Draw(t, "allow"),
			Required: rapid.SampledFrom([][]string{nil, {"a"}, {"a.b", "c"}}).Draw(t, "required"),
			Allowed:  rapid.SampledFrom([]map[string][]any{nil, {"a": {1, "x"}}, {"b": {nil}}}).Draw(t, "allowed"),
			Schema: rapid.SampledFrom([]any{nil, true, map[string]any{"type": "string"}, map[string]any{"required": []any{"a"}},
				map[string]any{"additionalProperties": map[string]any{"maxLength": 3}}, map[string]any{"not": map[string]any{"type": "array"}}}).Draw(t, "schema"),
		}
		gates, err := NewGates([]Gate{g})
		if err != nil {
			t.Fatal(err)
		}
		doc := anyJSON(2).Draw(t, "response")
		if m, ok := doc.(map[string]any); ok {
			m["a"] = "planted words"
		}
		s := &seen{Response: must(json.Marshal(doc)), Duration: time.Duration(rapid.IntRange(0, 40).Draw(t, "ms")) * time.Millisecond}
		cause, why := gates.find("m", "m").judge(s, nil)
		known := []breaker.Cause{breaker.OK, breaker.TooShort, breaker.Malformed, breaker.Schema, breaker.MissingField, breaker.BadReference, breaker.TooFast}
		switch {
		case !slices.Contains(known, cause):
			t.Fatalf("cause %s", cause)
		case (cause == breaker.OK) != (why == ""):
			t.Fatalf("%s: %q", cause, why)
		case strings.Contains(why, "planted"):
			t.Fatalf("%q quotes the response", why)
		case cause == breaker.OK && g.MinDurationMS > 0 && s.Duration > 0 && s.Duration.Milliseconds() < g.MinDurationMS:
			t.Fatalf("%s in %s is ok", g.Allow, s.Duration)
		case cause == breaker.TooShort && utf8.RuneCountInString(textOf(s.Response)) >= g.MinChars:
			t.Fatalf("%s is too short", s.Response)
		case cause == breaker.OK && len(g.Allow) == 0 && utf8.RuneCountInString(textOf(s.Response)) < g.MinChars:
			t.Fatalf("%s is not too short", s.Response)
		}
	})
}

func TestGatesOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Gates = gatesOf(t, `{"machine": "gpu-box", "model": "m", "min_chars": 20, "required": ["id"]}`)
		o.Canonical = func(name string) string {
			if name == "10.0.0.9:11434" {
				return "gpu-box"
			}
			return name
		}
		o.Local = func(machine string) bool { return machine == "gpu-box" }
	})
	call := func(id, machine, rest string) string {
		return fmt.Sprintf(`{"agent":"a","id":%q,"machine":%q,"model":"m",%s}`, id, machine, rest)
	}
	w.post("/v1/outcomes", call("1", "10.0.0.9:11434", `"http_status":200,"response":"too brief"`)).is(200, "verdicts.0.cause", "too_short", "verdicts.0.class", "quality")
	w.post("/v1/outcomes", call("1", "gpu-box", `"http_status":200,"response":"too brief"`)).is(200, "verdicts.0.duplicate", true)
	if a := w.post("/v1/outcomes", call("2", "gpu-box", `"cause":"ok","response":{"planted":"my secret words"}`)).is(200, "verdicts.0.cause", "missing_field"); strings.Contains(a.body, "secret") {
		t.Errorf("the answer quotes the response: %s", a.body)
	}
	w.post("/v1/outcomes", call("3", "gpu-box", `"cause":"too_short"`)).is(200, "verdicts.0.cause", "too_short") // the agent's own word
	w.post("/v1/outcomes", call("4", "mac", `"http_status":200,"response":"too brief"`)).is(200, "verdicts.0.cause", "ok")
	w.post("/v1/outcomes", call("5", "10.0.0.9:11434", `"http_status":429,"retry_after_s":1`)).is(200, "verdicts.0.cause", "queue_full")
	w.get("/v1/rules").is(200, "gates.0.machine", "gpu-box", "gates.0.min_chars", 20, "gates.0.required.0", "id", "gates.0.schema", nil)
	w.get("/metrics").says(`breakerbot_gate_failures_total{cause="too_short",machine="gpu-box",model="m"} 1`,
		`breakerbot_gate_failures_total{cause="missing_field",machine="gpu-box",model="m"} 1`)
	newWorld(t).get("/v1/rules").says(`"gates":[]`)
}

// FuzzGate holds that no schema and no response make a gate panic, run long or
// keep what it should not.
func FuzzGate(f *testing.F) {
	for _, c := range gateCases {
		var outcome struct {
			Response json.RawMessage `json:"response"`
			Allowed  json.RawMessage `json:"allowed"`
		}
		if err := json.Unmarshal([]byte("{"+c.outcome+"}"), &outcome); err != nil {
			f.Fatal(err)
		}
		f.Add(c.gate, string(outcome.Response), string(outcome.Allowed))
	}
	f.Add(`{"schema": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}}, {"items": {"$ref": "#/$defs/a"}}]}}}}`, `[[[[[1]]]]]`, ``)
	f.Fuzz(func(t *testing.T, config, response, allowed string) {
		dec := json.NewDecoder(strings.NewReader(config))
		dec.UseNumber()
		var g Gate
		if dec.Decode(&g) != nil {
			return
		}
		gates, err := NewGates([]Gate{g})
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "[0].") {
					t.Fatalf("a line without its place: %q", line)
				}
			}
			return
		}
		raw := `{"agent":"a","machine":"m","cause":"ok"`
		if response != "" {
			raw += `,"response":` + response
		}
		if allowed != "" {
			raw += `,"allowed":` + allowed
		}
		gates.made[0].machine, gates.made[0].model = newGlob(""), newGlob("")
		begun := time.Now()
		o, errs, _ := Decoder{Gates: gates}.Outcome(json.RawMessage(raw+"}"), t0)
		if took := time.Since(begun); took > 5*time.Second {
			t.Fatalf("took %s", took)
		}
		if errs == nil && (o.Cause == breaker.OK) != (o.Error == "") {
			t.Fatalf("%s with evidence %q", o.Cause, o.Error)
		}
	})
}

func BenchmarkGate(b *testing.B) {
	gates := gatesOf(b, `{"model": "other-*"}`, `{"model": "qwen3-*", "min_chars": 50, "allow": ["yes", "no"], "required": ["decision", "case.id"], "min_duration_ms": 20,
		"schema": {"type": "object", "properties": {"decision": {"enum": ["approve", "reject"]}, "case": {"type": "object"}}}}`)
	s := &seen{Response: value(`{"decision": "approve", "case": {"id": 7}, "note": "a note that is long enough"}`), Duration: time.Second}
	b.ReportAllocs()
	for b.Loop() {
		if cause, why := gates.find("gpu-box", "qwen3-30b").judge(s, nil); cause != breaker.OK {
			b.Fatal(why)
		}
	}
}
