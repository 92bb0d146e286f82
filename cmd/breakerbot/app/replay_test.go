package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The scripts say exactly what the engine's rules mean; each holds.
func TestVectors(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/vectors/*.ndjson")
	if err != nil || len(scripts) < 80 {
		t.Fatalf("%d scripts, %v: at least 80 are kept", len(scripts), err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".ndjson"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(script)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := runReplay(bytes.NewReader(text), &out, true, nil); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if strings.HasPrefix(out.String(), "0 of 0") {
				t.Fatal("the script expects nothing")
			}
		})
	}
}

func TestReplayTellsWhatDiffers(t *testing.T) {
	t.Parallel()
	const script = `{"builtin_rules": true}
{"t": 0, "outcome": {"agent": "a", "machine": "m", "cause": "ok"}, "expect": {"result": {"state": "open", "counted": ["reachability"], "nonsense": 1}}}
`
	var out bytes.Buffer
	err := runReplay(strings.NewReader(script), &out, true, nil)
	if !errors.Is(err, errDiffers) {
		t.Fatalf("error %v, want errDiffers", err)
	}
	for _, want := range []string{"line 2: ", `result.state is "closed", expected "open"`, "result.counted is [", "result.nonsense is missing, expected 1", "0 of 1 expectations hold"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestReplayPrintsOneLineForEach(t *testing.T) {
	t.Parallel()
	const script = `{"t": 0, "outcome": {"agent": "a", "machine": "m", "cause": "refused"}}
{"t": 0, "outcome": {"agent": "a", "machine": "m", "cause": "refused"}}

{"t": 0.5, "outcome": {"agent": "a", "machine": "m", "cause": "refused"}}
{"t": 60.5, "permit": {"agent": "a", "machine": "m"}, "as": "p"}
{"t": 61, "extend": "$p", "timeout_ms": 1000}
{"t": 61, "release": "$p"}
{"t": 62, "control": {"breaker": "reachability{machine=m}", "op": "reset", "actor": "me"}}
{"t": 63, "circuit": {"machine": "m"}}
`
	var out bytes.Buffer
	if err := runReplay(strings.NewReader(script), &out, false, nil); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 8 {
		t.Fatalf("%d lines, want 8:\n%s", len(lines), out.String())
	}
	var trip scriptAnswer
	if err := json.Unmarshal([]byte(lines[2]), &trip); err != nil {
		t.Fatal(err)
	}
	if trip.Line != 4 || trip.T != 0.5 || len(trip.Transitions) != 1 || trip.Transitions[0].Reason != "tripped" {
		t.Errorf("the third outcome printed %s", lines[2])
	}
	if !strings.Contains(lines[6], `"actor":"me"`) || !strings.Contains(lines[7], `"state":"closed"`) {
		t.Errorf("the reset printed %s, the circuit %s", lines[6], lines[7])
	}
}

func TestReplayScriptErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ script, want string }{
		"no JSON":       {"{\"builtin_rules\": true}\n{nonsense}", "line 2: "},
		"no t":          {"{\"builtin_rules\": true}\n{\"outcome\": {}}", "line 2: t is missing"},
		"long hold":     {`{"t": 0, "control": {"breaker": "r{machine=m}", "op": "hold-open", "for_ms": 18446744073710}}`, "line 1: control: for_ms: 18446744073710 is out of range"},
		"long timeout":  {"{\"t\": 0, \"permit\": {\"agent\": \"a\", \"machine\": \"m\"}, \"as\": \"p\"}\n{\"t\": 0, \"extend\": \"$p\", \"timeout_ms\": -1}", "line 2: extend: timeout_ms: -1 is out of range"},
		"falling t":     {"{\"t\": 5, \"restart\": {}}\n{\"t\": 4, \"restart\": {}}", "line 2: t: 4 is before 5"},
		"no action":     {"{\"t\": 5}", "line 1: 0 actions"},
		"two actions":   {"{\"t\": 5, \"restart\": {}, \"circuit\": {\"machine\": \"m\"}}", "line 1: 2 actions"},
		"unknown key":   {"{\"t\": 5, \"reset\": {}}", `unknown field "reset"`},
		"no alias":      {"{\"t\": 5, \"release\": \"$p\"}", `line 1: release: no line above has as "p"`},
		"bad outcome":   {"{\"t\": 5, \"outcome\": {\"agent\": \"a\", \"machine\": \"m\", \"cause\": \"boom\"}}", "line 1: outcome: cause"},
		"bad rule":      {"{\"rules\": [{\"name\": \"r\"}]}", "line 1: "},
		"unknown rule":  {"{\"t\": 1, \"control\": {\"breaker\": \"x{machine=m}\", \"op\": \"reset\"}}", `unknown rule "x"`},
		"bad chain":     {"{\"chains\": {\"c\": {\"targets\": []}}}", "chains.c.targets: there are 0"},
		"unknown chain": {"{\"t\": 1, \"route\": {\"agent\": \"a\", \"chain\": \"c\"}}", `line 1: route: unknown chain "c": known are none`},
		"bad route":     {"{\"t\": 1, \"route\": {\"chain\": \"c\"}}", "line 1: route: agent: is missing"},
		"bad write":     {"{\"t\": 1, \"write\": {\"idempotency_key\": \"k\", \"result\": \"perhaps\"}}", `line 1: write: result: is the string "perhaps"`},
		"no machine":    {"{\"t\": 1, \"health\": {\"answered\": true}}", "line 1: health: machine: is missing"},
	} {
		err := runReplay(strings.NewReader(tc.script), &bytes.Buffer{}, true, nil)
		if err == nil || errors.Is(err, errDiffers) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

// A script that sets nothing up runs under the configuration that is named, and
// one that does runs under its own rules.
func TestReplayUnderAConfiguration(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "breakerbot.yaml")
	rules := "builtin_rules: false\nrules: [{name: quick, scope: [machine], failures: [refused], trip: {consecutive: 1}}]\nmachines: {gpu: {aliases: [box]}}\n"
	if err := os.WriteFile(config, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	const outcome = `{"t": 1, "outcome": {"agent": "a", "machine": "box", "cause": "refused"}}` + "\n"
	for script, want := range map[string]string{
		outcome: `"breaker":"quick{machine=gpu}"`,
		`{"builtin_rules": true}` + "\n" + outcome: `"transitions":[]`,
	} {
		var out, errs bytes.Buffer
		if code := Main([]string{"replay", "--config", config, "-"}, System{In: strings.NewReader(script), Out: &out, Err: &errs, Env: noEnv}); code != exitOK {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("the script\n%sprints\n%swant %s", script, out.String(), want)
		}
	}
	var errs bytes.Buffer
	if code := Main([]string{"replay", "--config", config + ".none", "-"}, System{In: strings.NewReader(outcome), Out: io.Discard, Err: &errs, Env: noEnv}); code != exitUsage {
		t.Errorf("a configuration that is not there: exit code %d, %s", code, errs.String())
	}
}

func noEnv(string) (string, bool) { return "", false }
