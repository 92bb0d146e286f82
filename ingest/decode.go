package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The bounds of what is decoded; each stands in the message that it causes.
const (
	maxDepth         = 64  // nested arrays and objects
	maxItemErrors    = 32  // told for one item
	maxItemWarnings  = 10  // told for one item
	maxBatchWarnings = 100 // told for one request
	maxExcerpt       = 40  // characters of a wrong value shown in its error
)

// syntaxError says where JSON ends to be JSON, nil when data is one JSON value.
// Line and column count from one, columns in characters.
func syntaxError(data []byte, firstLine int) error {
	if json.Valid(data) {
		return nil
	}
	var raw json.RawMessage
	err := json.Unmarshal(data, &raw)
	at := len(data)
	message := "unexpected end of the JSON value"
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && !strings.HasPrefix(syntax.Error(), "unexpected end") {
		at = min(len(data), max(0, int(syntax.Offset)-1))
		message = syntax.Error()
	}
	line := firstLine + bytes.Count(data[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(data[bytes.LastIndexByte(data[:at], '\n')+1:at])
	return fmt.Errorf("line %d, column %d: %s", line, column, message)
}

// value is one JSON value inside text that is known to be valid JSON.
type value []byte

// The functions below walk valid JSON only; they check nothing but depth.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func stringEnd(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// valueEnd gives the end of the value that begins at i and how deep it nests.
func valueEnd(b []byte, i int) (end, depth int) {
	open := 0
	for {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			open++
			depth = max(depth, open)
			i++
		case '}', ']':
			open--
			i++
		case ' ', '\t', '\n', '\r', ',', ':':
			i++
		default:
			for i < len(b) && !endsScalar(b[i]) {
				i++
			}
		}
		if open == 0 {
			return i, depth
		}
	}
}

func endsScalar(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '\r', ',', ':', ']', '}':
		return true
	}
	return false
}

// each calls f for every element of the array arr until f says stop.
func each(arr []byte, f func(element value) bool) {
	i := skipSpace(arr, 0) + 1
	for i = skipSpace(arr, i); arr[i] != ']'; i = skipSpace(arr, i) {
		end, _ := valueEnd(arr, i)
		if !f(value(arr[i:end])) {
			return
		}
		if i = skipSpace(arr, end); arr[i] == ',' {
			i++
		}
	}
}

// eachMember calls f for every member of the object obj; key is unquoted.
func eachMember(obj []byte, f func(key []byte, v value)) {
	i := skipSpace(obj, 0) + 1
	for i = skipSpace(obj, i); obj[i] != '}'; i = skipSpace(obj, i) {
		end := stringEnd(obj, i)
		key := obj[i+1 : end-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			var s string
			if json.Unmarshal(obj[i:end], &s) == nil {
				key = []byte(s)
			}
		}
		i = skipSpace(obj, skipSpace(obj, end)+1)
		end, _ = valueEnd(obj, i)
		f(key, value(obj[i:end]))
		if i = skipSpace(obj, end); obj[i] == ',' {
			i++
		}
	}
}

func (v value) isNull() bool   { return v[0] == 'n' }
func (v value) isString() bool { return v[0] == '"' }
func (v value) isObject() bool { return v[0] == '{' }
func (v value) isArray() bool  { return v[0] == '[' }
func (v value) isBool() bool   { return v[0] == 't' || v[0] == 'f' }
func (v value) isNumber() bool { return v[0] == '-' || '0' <= v[0] && v[0] <= '9' }

// text is the string that a string value holds.
func (v value) text() string {
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		return ""
	}
	return s
}

// describe names a value's kind, and the value where it is short, for people.
func (v value) describe() string {
	switch {
	case v.isNull():
		return "null"
	case v.isObject():
		return "an object"
	case v.isArray():
		return "an array"
	case v.isBool():
		return "the boolean " + string(v)
	case v.isString():
		return "the string " + strconv.Quote(excerpt(v.text()))
	default:
		return "the number " + excerpt(string(v))
	}
}

// excerpt cuts s for an error message; nothing secret survives it.
func excerpt(s string) string {
	// What is cut here is no secret that is recognised only by its end: far less
	// than this is told.
	s = scrub(s[:min(len(s), maxErrorText)])
	if utf8.RuneCountInString(s) <= maxExcerpt {
		return s
	}
	return string([]rune(s)[:maxExcerpt]) + "…"
}

// field is one known field of a wire object: set puts the value into its place
// or says what is wrong with it. It is never called with null, which means the
// same as leaving the field out.
type field[T any] struct {
	name     string
	required bool
	set      func(*T, value) string
}

// fields are all known fields of an object, in the order of their errors.
type fields[T any] struct {
	list  []field[T]
	names []string
	index map[string]int
}

const maxFields = 64

func newFields[T any](list ...field[T]) *fields[T] {
	if len(list) > maxFields {
		panic("too many fields for one object")
	}
	f := &fields[T]{list: list, index: make(map[string]int, len(list))}
	for i, one := range list {
		f.index[one.name] = i
		f.names = append(f.names, one.name)
	}
	return f
}

// report gathers what is wrong with one item, bounded.
type report struct {
	prefix   string // before each path, such as "fallback_from."
	errors   []FieldError
	warnings []Warning
	unknown  int
	warnLeft int // how many warnings may still be told
}

func (r *report) fail(path, message string) {
	if len(r.errors) < maxItemErrors {
		r.errors = append(r.errors, FieldError{Path: r.prefix + path, Message: message})
	}
}

func (r *report) warnUnknown(key []byte, known []string) {
	r.unknown++
	if r.warnLeft <= 0 {
		return
	}
	name := excerpt(string(key))
	r.warn(name, fmt.Sprintf("is not known and was left out: the nearest known field is %s", nearest(name, known)))
}

// warn tells something about a field that is no error, as long as there is room.
func (r *report) warn(path, message string) {
	if r.warnLeft <= 0 {
		return
	}
	r.warnLeft--
	r.warnings = append(r.warnings, Warning{Path: r.prefix + path, Message: message})
}

// decode reads the object raw, which must be valid JSON, into into. A key that
// comes twice counts as its last; an unknown one is a warning.
func (f *fields[T]) decode(raw []byte, into *T, rep *report) {
	raw = raw[skipSpace(raw, 0):]
	v := value(raw)
	if !v.isObject() {
		rep.fail("", fmt.Sprintf("is %s: an object is needed", v.describe()))
		return
	}
	if _, depth := valueEnd(raw, 0); depth > maxDepth {
		rep.fail("", fmt.Sprintf("nests %d deep: at most %d are allowed", depth, maxDepth))
		return
	}
	var found [maxFields]value
	eachMember(raw, func(key []byte, v value) {
		if i, ok := f.index[string(key)]; ok {
			found[i] = v
		} else {
			rep.warnUnknown(key, f.names)
		}
	})
	for i, one := range f.list {
		switch v := found[i]; {
		case v == nil || v.isNull():
			if one.required {
				rep.fail(one.name, "is missing")
			}
		default:
			if message := one.set(into, v); message != "" {
				rep.fail(one.name, message)
			}
		}
	}
}

// The setters' building blocks follow: each reads one kind of value and says
// kind, value and what would be right when it is another.

func wrongKind(v value, want string) string {
	return fmt.Sprintf("is %s: %s is needed", v.describe(), want)
}

func readBool(v value) (bool, string) {
	if !v.isBool() {
		return false, wrongKind(v, "true or false")
	}
	return v[0] == 't', ""
}

// readText reads a string of at most limit bytes without control characters,
// which no database or message would bear.
func readText(v value, limit int) (string, string) {
	if !v.isString() {
		return "", wrongKind(v, "a string")
	}
	s := v.text()
	switch {
	case len(s) > limit:
		return "", fmt.Sprintf("is %d bytes long: at most %d are allowed", len(s), limit)
	case !utf8.ValidString(s):
		return "", "is not valid UTF-8"
	case strings.ContainsFunc(s, unicode.IsControl):
		return "", fmt.Sprintf("%q holds a control character", excerpt(s))
	}
	return s, ""
}

// readWord reads a string or a number as lower-case text, cut to limit bytes:
// error codes come as either, and only known ones matter.
func readWord(v value, limit int) (string, string) {
	var s string
	switch {
	case v.isString():
		s = v.text()
	case v.isNumber():
		s = string(v)
	default:
		return "", wrongKind(v, "a string or a number")
	}
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToLower(strings.TrimSpace(s)), ""
}

func readNumber(v value, what string, most float64) (float64, string) {
	if !v.isNumber() {
		return 0, wrongKind(v, what)
	}
	n, err := strconv.ParseFloat(string(v), 64)
	switch {
	case err != nil || n > most:
		return 0, fmt.Sprintf("is %s: at most %s is allowed", excerpt(string(v)), strconv.FormatFloat(most, 'f', -1, 64))
	case n < 0:
		return 0, fmt.Sprintf("is %s: it must not be negative", excerpt(string(v)))
	}
	return n, ""
}

func readCount(v value, most int64) (int64, string) {
	n, message := readNumber(v, "a whole number", float64(most))
	if message == "" && n != math.Trunc(n) {
		message = fmt.Sprintf("is %s: a whole number is needed", excerpt(string(v)))
	}
	return int64(n), message
}

func readMillis(v value, most time.Duration) (time.Duration, string) {
	if !v.isNumber() {
		return 0, wrongKind(v, "a number of milliseconds")
	}
	ms, message := readNumber(v, "", float64(most/time.Millisecond))
	if message != "" {
		if ms, err := strconv.ParseFloat(string(v), 64); err != nil || ms > 0 {
			message = fmt.Sprintf("is %s ms: at most %d (%s) is allowed", excerpt(string(v)), most.Milliseconds(), spell(most))
		}
		return 0, message
	}
	d := time.Duration(math.Round(ms * float64(time.Millisecond)))
	if d == 0 && ms > 0 {
		return 0, fmt.Sprintf("is %s ms: that is less than a nanosecond, and 0 has a meaning of its own", excerpt(string(v)))
	}
	return d, ""
}

// spell writes a whole number of days or hours without the zero parts.
func spell(d time.Duration) string {
	if day := 24 * time.Hour; d%day == 0 {
		return fmt.Sprintf("%d d", d/day)
	}
	return d.String()
}

// Nearest is the known word with the smallest Levenshtein distance to word,
// whatever their case, and that distance; of equals the first.
func Nearest(word string, known []string) (best string, edits int) {
	edits = math.MaxInt
	for _, candidate := range known {
		if d := levenshtein(word, candidate); d < edits {
			best, edits = candidate, d
		}
	}
	return best, edits
}

func nearest(word string, known []string) string {
	best, _ := Nearest(word, known)
	return best
}

func levenshtein(a, b string) int {
	ra, rb := []rune(strings.ToLower(a)), []rune(strings.ToLower(b))
	row := make([]int, len(rb)+1)
	for j := range row {
		row[j] = j
	}
	for i, ca := range ra {
		diagonal := row[0]
		row[0] = i + 1
		for j, cb := range rb {
			substitute := diagonal
			if ca != cb {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(rb)]
}
