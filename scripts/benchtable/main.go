// Command benchtable reads what `go test -bench` printed for package breaker
// from standard input and writes what `make bench-engine` shows: medians of the
// engine's benchmarks beside those of gobreaker and failsafe-go from the same
// run, their ratios, and which goals are met or by how much they are missed. It
// fails when a benchmark failed or a goal's numbers are not there, and not when
// a goal is missed: a busy machine must not break a build.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchtable:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	r, err := parse(in)
	if err != nil {
		return err
	}
	err = errors.Join(r.table(out), r.goals(out))
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if len(r.missing) > 0 {
		return fmt.Errorf("not measured: %s", strings.Join(r.missing, ", "))
	}
	return nil
}

// results are the values of each benchmark, by its name without the word
// Benchmark and the number of processors, and by unit.
type results struct {
	machine []string // the lines about it: goos, goarch, cpu
	values  map[string]map[string][]float64
	missing []string // asked for in vain
}

var processors = regexp.MustCompile(`-\d+$`)

// parse reads the standard format of Go's benchmarks, see
// https://go.dev/design/14313-benchmark-format. The error tells a benchmark
// that failed, a line that cannot be read, or that there was none.
func parse(in io.Reader) (*results, error) {
	r := &results{values: make(map[string]map[string][]float64)}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "FAIL") || strings.HasPrefix(strings.TrimSpace(line), "--- FAIL"):
			return nil, fmt.Errorf("line %d: the benchmarks failed: %s", n, strings.TrimSpace(line))
		case strings.HasPrefix(line, "goos:"), strings.HasPrefix(line, "goarch:"), strings.HasPrefix(line, "cpu:"):
			if !slices.Contains(r.machine, line) {
				r.machine = append(r.machine, line)
			}
		case len(fields) >= 4 && len(fields)%2 == 0 && strings.HasPrefix(line, "Benchmark"):
			name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
			if r.values[name] == nil {
				r.values[name] = make(map[string][]float64)
			}
			for i := 2; i < len(fields); i += 2 {
				v, err := strconv.ParseFloat(fields[i], 64)
				if err != nil {
					return nil, fmt.Errorf("line %d: read %s of %s: %w", n, fields[i+1], name, err)
				}
				r.values[name][fields[i+1]] = append(r.values[name][fields[i+1]], v)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read benchmarks: %w", err)
	}
	if len(r.values) == 0 {
		return nil, errors.New("read benchmarks: there is none: pipe the output of go test -bench in")
	}
	return r, nil
}

// median of a benchmark's values in this unit; false when there is none.
func (r *results) median(name, unit string) (float64, bool) {
	v := slices.Sorted(slices.Values(r.values[name][unit]))
	if len(v) == 0 {
		return 0, false
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2, true
}

// per is the median for one call: of a batch, its part. Without the drains it
// is what the call alone costs.
func (r *results) per(name, unit string, drains bool) (float64, bool) {
	v, ok := r.median(name, unit)
	if !ok {
		return 0, false
	}
	if drain, has := r.median(name, "drain-"+unit); has && !drains {
		v = max(v-drain, 0)
	}
	if one, has := r.median(name, "ns/outcome"); has {
		if whole, _ := r.median(name, "ns/op"); whole > 0 {
			v *= one / whole
		}
	}
	return v, true
}

// works are the rows of the table: the same work in all three, "" where one of
// them has nothing like it.
var works = []struct{ title, engine, gobreaker, failsafe string }{
	{"success, one rule", "report", "execute", "record"},
	{"one failure in four", "report-failing", "execute-failing", "record-failing"},
	{"success with an id", "report-id", "execute", "record"},
	{"success, in batches of 100", "report-batch100", "execute", "record"},
	{"success, all rules", "report-all-rules", "execute", "record"},
	{"one failure in four, all rules", "report-all-rules-failing", "execute-failing", "record-failing"},
	{"all rules, in batches of 100", "report-all-rules-batch100", "execute", "record"},
	{"open refusal", "open", "open", "open"},
	{"permit", "permit", "permit", "permit"},
	{"permit and its word", "permit-report", "permit-report", "permit-report"},
	{"trip, probe, close", "half-open", "half-open", "half-open"},
	{"count ring without look-up", "", "", "ring"},
}

var sizes = []string{"one-hot", "10k"}

func (r *results) table(out io.Writer) error {
	for _, line := range r.machine {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintln(out, "medians of one call in ns, with (allocations); the engine's include Drain, told apart beside them")
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tbreakers\tengine\tof it Drain\tgobreaker\tfailsafe-go\t÷ gobreaker\t÷ failsafe-go")
	for _, size := range sizes {
		for _, work := range works {
			names := [...]string{"Engine/" + work.engine + "/" + size, "Gobreaker/" + work.gobreaker + "/" + size, "Failsafe/" + work.failsafe + "/" + size}
			all, has := r.per(names[0], "ns/op", true)
			bare, _ := r.per(names[0], "ns/op", false)
			drain := "–"
			if has {
				drain = number(all - bare)
			}
			ratios := [2]string{"–", "–"}
			for i, name := range names[1:] {
				if base, ok := r.per(name, "ns/op", true); ok && has && base > 0 {
					ratios[i] = fmt.Sprintf("%.2f", all/base)
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", work.title, size,
				r.cell(names[0]), drain, r.cell(names[1]), r.cell(names[2]), ratios[0], ratios[1])
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, m := range [...]struct{ name, unit, title string }{
		{"Memory/engine", "B/breaker", "bytes a breaker, window of 100 successes"},
		{"Memory/engine-failing", "B/breaker", "bytes a breaker, five of the 100 failed"},
		{"Memory/gobreaker", "B/breaker", "bytes a breaker, gobreaker"},
		{"Memory/failsafe", "B/breaker", "bytes a breaker, failsafe-go"},
		{"Restore/saved", "snapshot-s", "seconds to save a million breakers"},
	} {
		if v, ok := r.median(m.name, m.unit); ok {
			fmt.Fprintf(out, "%s: %s\n", m.title, number(v))
		}
	}
	_, err := fmt.Fprintln(out)
	return err
}

// cell is a benchmark's time and allocations.
func (r *results) cell(name string) string {
	ns, ok := r.per(name, "ns/op", true)
	if !ok {
		return "–"
	}
	allocs, _ := r.per(name, "allocs/op", true)
	return fmt.Sprintf("%s (%s)", number(ns), number(allocs))
}

// goal is a bound on a number, or on its ratio to another benchmark's.
type goal struct {
	title      string
	name, unit string
	base       string // "": the bound is absolute
	most       float64
	below      bool // whether reaching the bound misses it
}

var goals = []goal{
	{"one rule among 10,000 ÷ gobreaker's Execute", "Engine/report/10k", "ns/op", "Gobreaker/execute/10k", 0.5, false},
	{"one rule among 10,000 ÷ failsafe-go's count ring", "Engine/report/10k", "ns/op", "Failsafe/ring/10k", 1.5, false},
	{"one rule among 10,000, allocations", "Engine/report/10k", "allocs/op", "", 0, false},
	{"all rules, one hot breaker, ns", "Engine/report-all-rules/one-hot", "ns/op", "", 400, false},
	{"all rules among 10,000, ns", "Engine/report-all-rules/10k", "ns/op", "", 400, false},
	{"all rules among 10,000, allocations", "Engine/report-all-rules/10k", "allocs/op", "", 0, false},
	{"open refusal, one hot breaker, ns", "Engine/open/one-hot", "ns/op", "", 60, false},
	{"open refusal among 10,000, ns", "Engine/open/10k", "ns/op", "", 60, false},
	{"bytes a breaker, window of 100 successes", "Memory/engine", "B/breaker", "", 600, false},
	{"bytes a breaker, five of the 100 failed", "Memory/engine-failing", "B/breaker", "", 600, false},
	{"a million breakers restored, s", "Restore/saved", "restore-s", "", 3, true},
	{"a million breakers decoded and restored, s", "Restore/stored", "restore-s", "", 3, true},
}

// goals writes which are met, with the drains and, where there are any, without.
func (r *results) goals(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "goal\tbound\tmeasured\t\twithout Drain\t")
	for _, g := range goals {
		bound := "≤ "
		if g.below {
			bound = "< "
		}
		bound += number(g.most)
		measured, ok := r.measure(g, true)
		if !ok {
			fmt.Fprintf(w, "%s\t%s\tnot measured\t\t\t\n", g.title, bound)
			r.missing = append(r.missing, g.title)
			continue
		}
		bare, verdict := "", ""
		if _, drains := r.median(g.name, "drain-"+g.unit); drains {
			v, _ := r.measure(g, false)
			bare, verdict = number(v), g.judge(v)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", g.title, bound, number(measured), g.judge(measured), bare, verdict)
	}
	return w.Flush()
}

// measure is the goal's number; false when a benchmark of it was not run.
func (r *results) measure(g goal, drains bool) (float64, bool) {
	v, ok := r.per(g.name, g.unit, drains)
	if !ok || g.base == "" {
		return v, ok
	}
	base, ok := r.per(g.base, g.unit, true)
	return v / base, ok && base > 0
}

// judge says whether the bound is kept, or how far it is away.
func (g goal) judge(v float64) string {
	switch c := cmp.Compare(v, g.most); {
	case c < 0, c == 0 && !g.below:
		return "met"
	case g.most == 0:
		return "missed by " + number(v)
	default:
		return fmt.Sprintf("missed: %.2f × the bound", v/g.most)
	}
}

// number prints three digits that matter, and whole numbers as they are.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(v, 'f', 2, 64), "0"), ".")
}
