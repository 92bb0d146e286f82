package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The bounds of numbers that are kept exactly. Anything longer is rounded to a
// float, so that nobody makes arithmetic with a million digits.
const (
	maxExactDigits   = 64
	maxExactExponent = 400
)

var (
	// errNoJSON is about a text that was never meant as JSON, as far as one can tell.
	errNoJSON  = errors.New("the response is not JSON")
	errNumber  = errors.New("a number is out of range")
	errTooDeep = fmt.Errorf("nests too deep: at most %d are allowed", maxDepth)
)

// document is a response that was read as JSON, and its size.
type document struct {
	value  any
	values int // in it, itself included
	depth  int
}

// readJSON reads a response that is JSON, or whose text holds JSON: all of it,
// or a fenced block in it.
func readJSON(response value, text string) (document, error) {
	raw := []byte(response)
	if response.isString() {
		if raw = jsonIn(text); raw == nil {
			return document{}, errNoJSON
		}
	}
	_, depth := valueEnd(raw, skipSpace(raw, 0))
	if depth > maxDepth {
		return document{}, fmt.Errorf("the response %w", errTooDeep)
	}
	v, err := decodeJSON(raw)
	if err != nil {
		return document{}, fmt.Errorf("the response is not JSON: %w", err)
	}
	return document{v, countValues(v), depth}, nil
}

// jsonIn is the JSON that a text is, or has in its first fenced block; nil when
// there is none.
func jsonIn(text string) []byte {
	if json.Valid([]byte(text)) {
		return []byte(text)
	}
	const fence = "```"
	_, rest, found := strings.Cut(text, fence)
	if !found {
		return nil
	}
	info, rest, found := strings.Cut(rest, "\n")
	if info = strings.ToLower(strings.TrimSpace(info)); !found || info != "" && info != "json" && info != "jsonc" && info != "json5" {
		return nil
	}
	// The block may hold three backticks in a string, and more text may follow it.
	for _, end := range []int{strings.Index(rest, "\n"+fence), strings.LastIndex(rest, fence)} {
		if end >= 0 && json.Valid([]byte(rest[:end])) {
			return []byte(rest[:end])
		}
	}
	return nil
}

// decodeJSON decodes valid JSON into maps, slices, strings, booleans, nil and
// numbers, the latter as json.Number where they are of an ordinary size.
func decodeJSON(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the value")
	}
	return plainJSON(v)
}

// plainJSON bounds the numbers in v, in place, and refuses what is no JSON.
func plainJSON(v any) (any, error) {
	return boundNumbers(v, 0)
}

func boundNumbers(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	var err error
	switch v := v.(type) {
	case nil, bool, string:
		return v, nil
	case map[string]any:
		for key, part := range v {
			if v[key], err = boundNumbers(part, depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
	case []any:
		for i, part := range v {
			if v[i], err = boundNumbers(part, depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
	case json.Number:
		return boundNumber(string(v))
	case float64:
		return boundNumber(strconv.FormatFloat(v, 'g', -1, 64))
	case int64:
		return json.Number(strconv.FormatInt(v, 10)), nil
	case uint64:
		return json.Number(strconv.FormatUint(v, 10)), nil
	case int:
		return json.Number(strconv.Itoa(v)), nil
	}
	return nil, fmt.Errorf("%T is no JSON", v)
}

func boundNumber(text string) (any, error) {
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.Atoi(text[i+1:])
		if err != nil {
			n = maxExactExponent + 1
		}
		mantissa, exponent = text[:i], max(n, -n)
	}
	if !value(text).isNumber() {
		return nil, errNumber // NaN and the infinities
	}
	if len(mantissa) <= maxExactDigits && exponent <= maxExactExponent {
		return json.Number(text), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, errNumber
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, 64)), nil
}

func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, part := range v {
			n += countValues(part)
		}
	case []any:
		for _, part := range v {
			n += countValues(part)
		}
	}
	return n
}

// canonical writes a value of plainJSON so that equal JSON values are equal
// texts: keys in order, numbers by what they are worth.
func canonical(v any) string {
	return string(appendCanonical(nil, v))
}

func appendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		return strconv.AppendQuote(b, v)
	case json.Number:
		return appendNumber(b, string(v))
	case []any:
		b = append(b, '[')
		for _, part := range v {
			b = append(appendCanonical(b, part), ',')
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b = append(strconv.AppendQuote(b, key), ':')
			b = append(appendCanonical(b, v[key]), ',')
		}
		return append(b, '}')
	}
	panic(fmt.Sprintf("no value of JSON: %T", v))
}

// appendNumber writes a number of boundNumber by its digits from the first to
// the last that is not 0, and the exponent of the last.
func appendNumber(b []byte, text string) []byte {
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		exponent, _ = strconv.Atoi(text[i+1:])
		mantissa = text[:i]
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	last := strings.TrimRight(digits, "0")
	if exponent += len(digits) - len(last); last == "" {
		return append(b, '0')
	}
	if negative {
		b = append(b, '-')
	}
	return strconv.AppendInt(append(append(b, last...), 'e'), int64(exponent), 10)
}

// present tells whether the field is there and not null, in every element of
// the lists on its way.
func present(doc any, path string) bool {
	found, missing := false, false
	lookUp(doc, path, func(v any, there bool) {
		there = there && v != nil
		found, missing = found || there, missing || !there
	})
	return found && !missing
}

// lookUp calls visit for each place that the path names: once, or once for
// each element of the lists on the way. A key that holds dots itself is taken
// before the nested fields that it might stand for.
func lookUp(v any, path string, visit func(v any, found bool)) {
	switch v := v.(type) {
	case map[string]any:
		if part, ok := v[path]; ok {
			visit(part, true)
			return
		}
		// The longest key that is there wins, so "a.b.c" finds {"a.b": {"c": …}}.
		for end := strings.LastIndexByte(path, '.'); end > 0; end = strings.LastIndexByte(path[:end], '.') {
			if part, ok := v[path[:end]]; ok {
				lookUp(part, path[end+1:], visit)
				return
			}
		}
		visit(nil, false)
	case []any:
		head, rest, nested := strings.Cut(path, ".")
		if i, err := strconv.Atoi(head); err == nil && i >= 0 && head == strconv.Itoa(i) {
			switch {
			case i >= len(v):
				visit(nil, false)
			case nested:
				lookUp(v[i], rest, visit)
			default:
				visit(v[i], true)
			}
			return
		}
		for _, part := range v {
			lookUp(part, path, visit)
		}
	default:
		visit(nil, false)
	}
}
