package app

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"breakerbot/breaker"
)

// advised runs the command and gives what it prints.
func advised(args ...string) (code int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	code = Main(append([]string{"advise"}, args...), System{Out: &stdout, Err: &stderr, Env: func(string) (string, bool) { return "", false }})
	return code, stdout.String(), stderr.String()
}

// What is advised is what the configuration makes of its YAML.
func TestAdviceIsAConfiguration(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"worked":       {"--rate", "20/s", "--react", "15s", "--failures", "2%", "--recovery", "4m", "--tolerance", "30m"},
		"thin":         {"--rate", "5/min", "--recovery", "4m"},
		"odd waits":    {"--rate", "7.3/s", "--recovery", "1234ms", "--tolerance", "1999ms", "--react", "1s"},
		"odd share":    {"--rate", "500/s", "--recovery", "1h", "--tolerance", "2h", "--failures", "3.1415%"},
		"new rule":     {"--rate", "20/s", "--recovery", "4m", "--name", "loans", "--scope", "agent,machine"},
		"latency":      {"--rate", "20/s", "--recovery", "4m", "--name", "latency"},
		"access":       {"--rate", "20/s", "--recovery", "4m", "--name", "access"},
		"rate-limit":   {"--rate", "20/s", "--recovery", "4m", "--name", "rate-limit", "--no-warm-up"},
		"never fails":  {"--rate", "20/s", "--recovery", "4m", "--normal", "0"},
		"never fails%": {"--rate", "20/s", "--recovery", "4m", "--normal", "0.0%"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, text, errOut := advised(append(args, "--format", "json")...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, errOut)
			}
			var advice struct {
				Advice []struct {
					Name, Value string
					Why         []string
				}
				Rule breaker.Rule
			}
			if err := json.Unmarshal([]byte(text), &advice); err != nil {
				t.Fatal(err)
			}
			if len(advice.Advice) != 5 || len(advice.Advice[4].Why) == 0 {
				t.Errorf("%d parts: %+v", len(advice.Advice), advice.Advice)
			}
			code, rule, errOut := advised(append(args, "--format", "yaml")...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, errOut)
			}
			code, text, _ = advised(args...)
			if code != exitOK || !strings.HasSuffix(text, "\n\n"+rule) {
				t.Errorf("exit code %d, and the rule is not the text's end:\n%s", code, text)
			}
			cfg, err := load(t, rule, nil)
			if err != nil {
				t.Fatalf("%v in\n%s", err, rule)
			}
			found := 0
			for _, r := range cfg.Rules {
				if r.Name == advice.Rule.Name {
					found++
					if !reflect.DeepEqual(r.WithDefaults(), advice.Rule.WithDefaults()) {
						t.Errorf("advised is\n%+v\nin force is\n%+v", advice.Rule.WithDefaults(), r.WithDefaults())
					}
				}
			}
			if found != 1 {
				t.Errorf("%d rules of that name are in force", found)
			}
		})
	}
}

func TestAdviseText(t *testing.T) {
	t.Parallel()
	_, text, _ := advised("--rate", "20/s", "--recovery", "4m")
	for _, part := range []string{
		"20/s calls; to react within 15s to 2% of failures (0.1% are normal); back in 4m, missed for at most 30m:\n",
		"\nwindow       300 calls\n  - At 20/s, the 15s within which the breaker shall react are 300 calls.\n",
		"\nfalse trips  at most 2.8% a day, once in 36 days\n",
		"It takes the place of the built-in rule errors.\n\nrules:\n  - name: errors\n    scope: [machine, model]\n",
		"    trip: {consecutive: 3, rate: 2%, window: 300 calls, min_calls: 300}\n    cooldown: {first: 5m, ",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the text lacks %q", part)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 130 {
			t.Errorf("%d characters in the line %q", len(line), line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	if _, text, _ := advised("--rate", "20/s", "--recovery", "4m", "--name", "loans"); !strings.Contains(text, "It comes beside the built-in rules") {
		t.Errorf("a new rule is not told apart:\n%s", text)
	}
}

func TestAdviseUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"missing flags: --recovery":                                      {"--rate", "20/s"},
		`"20" is no rate of calls`:                                       {"--rate", "20", "--recovery", "4m"},
		`"200%" is no rate`:                                              {"--rate", "20/s", "--recovery", "4m", "--failures", "200%"},
		"recovery: 40m is not shorter than the tolerance of 30m":         {"--rate", "20/s", "--recovery", "40m"},
		`advise: normal: "often" is no rate`:                             {"--rate", "20/s", "--recovery", "4m", "--normal", "often"},
		`advise: normal: "" is no rate`:                                  {"--rate", "20/s", "--recovery", "4m", "--normal", ""},
		`advise: rule errors: scope: unknown label "city": known are `:   {"--rate", "20/s", "--recovery", "4m", "--scope", "city"},
		"--format must be one of":                                        {"--rate", "20/s", "--recovery", "4m", "--format", "png"},
		"failures: 2% is not over the usual share of 3%: a healthy serv": {"--rate", "20/s", "--recovery", "4m", "--normal", "3%"},
	} {
		if code, out, errOut := advised(args...); code != exitUsage || !strings.Contains(errOut, want) || out != "" {
			t.Errorf("%v: exit code %d, %q, want 2 with %q", args, code, errOut, want)
		}
	}
}
