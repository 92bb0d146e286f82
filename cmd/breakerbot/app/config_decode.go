package app

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"breakerbot/ingest"
)

// ConfigError is everything that is wrong with a configuration, found in one
// pass, so that nobody mends it one start at a time.
type ConfigError struct {
	// Problems are sentences for people, each beginning with the place and the
	// key. None holds a secret.
	Problems []string
}

// Error lists all problems, one a line when there are several.
func (e *ConfigError) Error() string {
	if len(e.Problems) == 1 {
		return "configuration: " + e.Problems[0]
	}
	return fmt.Sprintf("configuration: %d problems:\n  %s", len(e.Problems), strings.Join(e.Problems, "\n  "))
}

// place is where a value was given: a position in the file, or a variable.
type place struct {
	line, column int
	variable     string
}

type problem struct {
	place
	text string
}

// problems collects what is wrong while the rest is still being looked at. Its
// places say where each key's value came from.
type problems struct {
	file   string
	places map[string]place
	list   []problem
}

// at adds a problem with the key at this path; a part that was not given is
// placed at what it is a part of.
func (p *problems) at(path, format string, args ...any) {
	where, given := p.places[path]
	for parent := path; !given && parent != ""; {
		parent = parent[:max(strings.LastIndexAny(parent, ".["), 0)]
		where, given = p.places[parent]
	}
	p.add(where, path, format, args...)
}

func (p *problems) add(where place, path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	p.list = append(p.list, problem{where, text})
}

// found tells whether something is wrong with this key or a part of it.
func (p *problems) found(path string) bool {
	return slices.ContainsFunc(p.list, func(one problem) bool {
		rest, ok := strings.CutPrefix(one.text, path)
		return ok && rest != "" && strings.ContainsRune(".[:", rune(rest[0]))
	})
}

// err is nil, or a *ConfigError in the order of the file, variables last.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b problem) int {
		return cmp.Or(strings.Compare(a.variable, b.variable), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	e := new(ConfigError)
	for _, one := range p.list {
		switch {
		case one.variable != "":
			e.Problems = append(e.Problems, one.variable+": "+one.text)
		case one.line > 0:
			e.Problems = append(e.Problems, fmt.Sprintf("%s:%d:%d: %s", p.file, one.line, one.column, one.text))
		default:
			e.Problems = append(e.Problems, one.text)
		}
	}
	return e
}

// later holds the value of a key whose feature this version lacks.
type later struct{ value any }

var (
	laterType    = reflect.TypeFor[later]()
	secretType   = reflect.TypeFor[Secret]()
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// decoder fills structs from YAML and goes on after a problem. The library's
// own decoder ends at the first one, which is why its syntax tree is walked
// here instead.
type decoder struct {
	*problems
	anchors map[string]ast.Node
}

// decode reads one YAML document into the struct that into points to. Keys of
// the file are those of the yaml tags, and no others.
func decode(data []byte, into any, p *problems) {
	if !utf8.Valid(data) {
		p.add(place{line: 1, column: 1}, "", "the file is not UTF-8 text")
		return
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // as some editors begin a file
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		where, text := place{line: 1, column: 1}, "is no YAML"
		if at, ok := errors.AsType[interface {
			error
			GetMessage() string
			GetToken() *token.Token
		}](err); ok {
			where, text = position(at.GetToken()), at.GetMessage()
		}
		p.add(where, "", "syntax: %s", text)
		return
	}
	var root ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			p.add(start(doc.Body), "", "a second document begins here: one is allowed")
			return
		}
		root = doc.Body
	}
	if root == nil {
		return
	}
	d := &decoder{problems: p, anchors: make(map[string]ast.Node)}
	d.value(root, reflect.ValueOf(into).Elem(), "")
}

func position(tk *token.Token) place {
	if tk == nil || tk.Position == nil {
		return place{line: 1, column: 1}
	}
	return place{line: tk.Position.Line, column: tk.Position.Column}
}

// start is where a node begins. A block mapping's own token is the colon of its
// first pair, so its first key is asked.
func start(node ast.Node) place {
	switch n := node.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return start(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return start(n.Key)
	}
	return position(node.GetToken())
}

// resolve looks through anchors, aliases and tags. It gives nil for an alias
// that nothing defines.
func (d *decoder) resolve(node ast.Node, path string) ast.Node {
	switch n := node.(type) {
	case *ast.AnchorNode:
		d.anchors[n.Name.GetToken().Value] = n.Value
		return d.resolve(n.Value, path)
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		target, ok := d.anchors[name]
		if !ok {
			d.add(start(n), path, "no anchor &%s stands before this alias", name)
			return nil
		}
		return d.resolve(target, path)
	case *ast.TagNode:
		return d.resolve(n.Value, path)
	}
	return node
}

// describe names what kind of thing a node is, in words for people.
func describe(node ast.Node) string {
	switch node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "a text"
	case *ast.BoolNode:
		return "true or false"
	}
	return "a number"
}

// scalar is a single value's text; false for mappings and lists.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (d *decoder) value(node ast.Node, v reflect.Value, path string) {
	where := start(node)
	if _, given := d.places[path]; !given {
		d.places[path] = where
	}
	if node = d.resolve(node, path); node == nil {
		return
	}
	if node.Type() == ast.NullType {
		return // as if the key had been left out
	}
	if v.Type() == laterType {
		v.Set(reflect.ValueOf(later{plain(node, 0)}))
		return
	}
	if v.Kind() == reflect.Interface {
		r := &anyReader{decoder: d, root: path, where: where, left: maxAnyValues}
		if one := r.value(node, path, 0); one != nil {
			v.Set(reflect.ValueOf(one))
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	text, single := scalar(node)
	isText := v.Addr().Type().Implements(textType) || v.Type() == durationType || v.Type() == secretType
	switch {
	case isText:
	case v.Kind() == reflect.Struct, v.Kind() == reflect.Map:
		entries, ok := pairs(node)
		if !ok {
			d.add(where, path, "is %s: a mapping is needed", describe(node))
			return
		}
		if v.Kind() == reflect.Map {
			v.Set(reflect.MakeMap(v.Type()))
		}
		d.mapping(entries, v, path)
		return
	case v.Kind() == reflect.Slice:
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			d.add(where, path, "is %s: a list is needed", describe(node))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
		for i, item := range list.Values {
			d.value(item, v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
		return
	}
	if !single {
		d.add(where, path, "is %s: %s is needed", describe(node), needed(v))
		return
	}
	_, quoted := node.(*ast.StringNode)
	if !isText && v.Kind() != reflect.String && quoted {
		d.add(where, path, "%q is a text: %s is needed", clip(text), needed(v))
		return
	}
	if err := setText(v, text); err != nil {
		d.add(where, path, "%v", err)
	}
}

// The bounds of a value of any kind. Aliases are followed, so a few lines could
// stand for a great deal.
const (
	maxAnyValues = 20_000
	maxAnyDepth  = 64
)

// anyReader reads one value of any kind.
type anyReader struct {
	*decoder
	root  string // its path
	where place
	left  int // how many more values it may hold; below zero it is given up
}

// value reads a node as JSON would have it: maps, lists, texts, booleans,
// numbers as json.Number, and nil. The places of all parts are remembered.
func (r *anyReader) value(node ast.Node, path string, depth int) any {
	where := start(node)
	if _, given := r.places[path]; !given {
		r.places[path] = where
	}
	if node = r.resolve(node, path); node == nil || r.left < 0 {
		return nil
	}
	switch r.left--; {
	case depth > maxAnyDepth:
		r.left = -1
		r.add(r.where, r.root, "nests too deep: at most %d are allowed", maxAnyDepth)
		return nil
	case r.left < 0:
		r.add(r.where, r.root, "holds too much: at most %d values are allowed, aliases written out", maxAnyValues)
		return nil
	}
	if entries, ok := pairs(node); ok {
		m := make(map[string]any, len(entries))
		r.entries(entries, path, func(entry *ast.MappingValueNode, key, name string) {
			m[key] = r.value(entry.Value, name, depth+1)
		})
		return m
	}
	switch n := node.(type) {
	case *ast.SequenceNode:
		list := make([]any, len(n.Values))
		for i, item := range n.Values {
			list[i] = r.value(item, path+"["+strconv.Itoa(i)+"]", depth+1)
		}
		return list
	case *ast.NullNode:
		return nil
	case *ast.BoolNode:
		return n.Value
	case *ast.IntegerNode:
		return number(n.GetToken().Value, n.Value)
	case *ast.FloatNode:
		return number(n.GetToken().Value, n.Value)
	case *ast.StringNode, *ast.LiteralNode:
		text, _ := scalar(n)
		return text
	}
	r.add(where, path, "has no form in JSON: a text, a number, true, false, null, a list or a mapping is needed")
	return nil
}

// number keeps a number as it is written where JSON writes it so, and takes its
// value where YAML has more ways, such as 0x10 and 1_000.
func number(text string, v any) any {
	if json.Valid([]byte(text)) {
		return json.Number(text)
	}
	return json.Number(fmt.Sprint(v))
}

func pairs(node ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func (d *decoder) mapping(entries []*ast.MappingValueNode, v reflect.Value, path string) {
	var fields map[string]int
	if v.Kind() == reflect.Struct {
		fields = fieldsOf(v.Type())
	}
	d.entries(entries, path, func(entry *ast.MappingValueNode, key, name string) {
		if v.Kind() == reflect.Map {
			d.places[name] = start(entry.Key)
			item := reflect.New(v.Type().Elem()).Elem()
			d.value(entry.Value, item, name)
			v.SetMapIndex(reflect.ValueOf(key), item)
			return
		}
		i, known := fields[key]
		if !known {
			d.add(start(entry.Key), name, "unknown key: %s", didYouMean(key, slices.Sorted(maps.Keys(fields))))
			return
		}
		d.value(entry.Value, v.Field(i), name)
	})
}

// entries calls f for each entry of a mapping, with its key and its path, and
// tells of those that cannot be read.
func (d *decoder) entries(entries []*ast.MappingValueNode, path string, f func(entry *ast.MappingValueNode, key, name string)) {
	seen := make(map[string]place)
	for _, entry := range entries {
		key, ok := scalar(d.resolve(entry.Key, path))
		where := start(entry.Key)
		switch {
		case entry.Key.IsMergeKey():
			d.add(where, path, "merge keys (<<) are not read: write the keys out")
			continue
		case !ok:
			key = entry.Key.GetToken().Value // null, as in "null: 1"
		}
		name := join(path, key)
		if first, twice := seen[key]; twice {
			d.add(where, name, "is given twice, first on line %d", first.line)
			continue
		}
		seen[key] = where
		f(entry, key, name)
	}
}

// join names a part of a mapping: a key that holds more than a plain word is
// quoted, so that the path can still be read.
func join(path, key string) string {
	plainWord := key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	switch {
	case !plainWord:
		return path + "[" + strconv.Quote(clip(key)) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// fieldsOf maps the keys of a struct to its fields.
func fieldsOf(t reflect.Type) map[string]int {
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); key != "" {
			fields[key] = i
		}
	}
	return fields
}

// plain is a node as any value, only good for telling whether it is the
// default. Aliases and what is nested deeper than any default are never that.
func plain(node ast.Node, depth int) any {
	if list, ok := node.(*ast.SequenceNode); ok {
		return make([]any, len(list.Values))
	}
	if entries, ok := pairs(node); ok && depth < 4 {
		m := make(map[string]any, len(entries))
		for _, entry := range entries {
			m[entry.Key.GetToken().Value] = plain(entry.Value, depth+1)
		}
		return m
	}
	if text, ok := scalar(node); ok {
		return text
	}
	if node.Type() == ast.NullType {
		return nil
	}
	return node
}

// setText reads a single value. Errors quote the text, unless it is a secret.
func setText(v reflect.Value, text string) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		return u.UnmarshalText([]byte(text))
	}
	wrong := fmt.Errorf("%q: %s is needed", clip(text), needed(v))
	switch {
	case v.Type() == durationType:
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return wrong
		}
		v.SetBool(text == "true")
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return wrong
		}
		v.SetInt(n)
	case v.CanFloat():
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return wrong
		}
		v.SetFloat(f)
	default:
		return fmt.Errorf("no single value can be read into %s", v.Type())
	}
	return nil
}

// needed says what a single value has to look like.
func needed(v reflect.Value) string {
	switch {
	case v.Type() == durationType:
		return "a duration such as 30s, 10m or 7d"
	case v.Addr().Type().Implements(textType), v.Kind() == reflect.String:
		return "a text"
	case v.Kind() == reflect.Bool:
		return "true or false"
	case v.CanInt():
		return "a whole number"
	}
	return "a number"
}

// clip keeps messages readable whatever stands in the file.
func clip(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// parseDuration reads Go's durations, and d for days of 24 hours before them.
func parseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is no duration: it looks like 30s, 10m or 7d", clip(text))
	if text == "0" {
		return 0, nil
	}
	rest := text
	var total time.Duration
	if days, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil || n > 36500 {
			return 0, wrong
		}
		total, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return total, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 && total > 0 || d > 36500*24*time.Hour {
		return 0, wrong
	}
	return total + d, nil
}

// days prints a duration as people write it in the file: 30d, 6h, 10m.
func days(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// didYouMean names the known word nearest to an unknown one, or all of them
// when none is near.
func didYouMean(word string, known []string) string {
	if best, edits := ingest.Nearest(word, known); edits <= max(1, len(word)/3) {
		return "did you mean " + best + "?"
	}
	return "known are " + strings.Join(known, ", ")
}
