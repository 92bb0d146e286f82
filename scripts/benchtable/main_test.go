package main

import (
	"fmt"
	"strings"
	"testing"
)

// measured is a run in which every goal has its numbers. A later line for one
// name is another value of it.
const measured = `goos: linux
goarch: amd64
pkg: breakerbot/breaker
cpu: A Processor
BenchmarkEngine/report/10k-2         	 1000	 300 ns/op	 100 drain-ns/op	 1.25 drain-allocs/op	 90 B/op	 1 allocs/op
BenchmarkEngine/report/10k-2         	 1000	 900 ns/op	 100 drain-ns/op	 1.25 drain-allocs/op	 90 B/op	 1 allocs/op
BenchmarkEngine/report/10k-2         	 1000	 200 ns/op	 100 drain-ns/op	 1.25 drain-allocs/op	 90 B/op	 1 allocs/op
BenchmarkEngine/report-batch100/10k-2	 1000	 20000 ns/op	 5000 drain-ns/op	 200 ns/outcome	 300 allocs/op
BenchmarkEngine/report-all-rules/one-hot-2	 1000	 400 ns/op	 0 drain-ns/op	 0 allocs/op
BenchmarkEngine/report-all-rules/10k-2	 1000	 1000 ns/op	 500 drain-ns/op	 3 drain-allocs/op	 5 allocs/op
BenchmarkEngine/open/one-hot-2       	 1000	 59.5 ns/op	 0 allocs/op
BenchmarkEngine/open/10k-2           	 1000	 61.0 ns/op	 0 allocs/op
BenchmarkGobreaker/execute/10k-2     	 1000	 400 ns/op	 0 allocs/op
BenchmarkGobreaker/execute/10k-2     	 1000	 500 ns/op	 0 allocs/op
BenchmarkFailsafe/ring/10k-2         	 1000	 100 ns/op	 0 allocs/op
BenchmarkMemory/engine-2             	 1	 1000 ns/op	 600 B/breaker
BenchmarkMemory/engine-failing-2     	 1	 1000 ns/op	 750 B/breaker
BenchmarkRestore/saved-2             	 1	 1000 ns/op	 3 restore-s	 1.5 snapshot-s
BenchmarkRestore/stored-2              	 1	 1000 ns/op	 2.999 restore-s
PASS
ok  	breakerbot/breaker	20.225s
`

func table(t *testing.T, in string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(strings.NewReader(in), &out)
	// Columns are padded to their widest cell, which is no matter here.
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n"), err
}

func TestTable(t *testing.T) {
	t.Parallel()
	got, err := table(t, measured)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cpu: A Processor",
		"success, one rule 10k 300 (1) 100 450 (0) – 0.67 –",
		"success, in batches of 100 10k 200 (3) 50 450 (0) – 0.44 –",
		"open refusal one-hot 59.5 (0) 0 – – – –",
		"count ring without look-up 10k – – – 100 (0) – –",
		"bytes a breaker, five of the 100 failed: 750",
		"seconds to save a million breakers: 1.5",

		"one rule among 10,000 ÷ gobreaker's Execute ≤ 0.5 0.67 missed: 1.33 × the bound 0.44 met",
		"one rule among 10,000 ÷ failsafe-go's count ring ≤ 1.5 3 missed: 2.00 × the bound 2 missed: 1.33 × the bound",
		"one rule among 10,000, allocations ≤ 0 1 missed by 1 0 met",
		"all rules, one hot breaker, ns ≤ 400 400 met 400 met",
		"all rules among 10,000, allocations ≤ 0 5 missed by 5 2 missed by 2",
		"open refusal, one hot breaker, ns ≤ 60 59.5 met",
		"open refusal among 10,000, ns ≤ 60 61 missed: 1.02 × the bound",
		"bytes a breaker, window of 100 successes ≤ 600 600 met",
		"a million breakers restored, s < 3 3 missed: 1.00 × the bound",
		"a million breakers decoded and restored, s < 3 3 met",
	} {
		if !strings.Contains("\n"+got+"\n", "\n"+want+"\n") {
			t.Errorf("there is no line %q in:\n%s", want, got)
		}
	}
}

func TestGoalWithoutNumbersFails(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Engine/report/10k", "Gobreaker/execute/10k", "Restore/stored"} {
		var lines []string
		for line := range strings.Lines(measured) {
			if !strings.HasPrefix(line, "Benchmark"+name+"-") {
				lines = append(lines, line)
			}
		}
		got, err := table(t, strings.Join(lines, ""))
		if err == nil || !strings.Contains(err.Error(), "not measured: ") || !strings.Contains(got, "not measured") {
			t.Errorf("without %s: error %v, want one that says what was not measured", name, err)
		}
	}
}

func TestBadInputFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", "there is none"},
		{"PASS\n", "there is none"},
		{measured + "--- FAIL: BenchmarkEngine/open/10k\n", "line 22: the benchmarks failed: --- FAIL: BenchmarkEngine/open/10k"},
		{measured + "FAIL\tbreakerbot/breaker\t1.2s\n", "the benchmarks failed"},
		{"BenchmarkX-2 100 many ns/op\n", "line 1: read ns/op of X"},
	} {
		if _, err := table(t, c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 9, 2}, 3}} {
		var in strings.Builder
		for _, v := range c.values {
			fmt.Fprintf(&in, "BenchmarkX 1 %v ns/op\n", v)
		}
		r, err := parse(strings.NewReader(in.String()))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := r.median("X", "ns/op"); !ok || got != c.want {
			t.Errorf("median of %v = %v, want %v", c.values, got, c.want)
		}
	}
	if _, ok := (&results{}).median("X", "ns/op"); ok {
		t.Error("there is a median of nothing")
	}
}
