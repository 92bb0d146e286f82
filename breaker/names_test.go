package breaker

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNameRoundTrip(t *testing.T) {
	t.Parallel()
	if got, want := Name("errors", Labels{Machine: `gpu{1}`, Model: `a=b,c\d`}), `errors{machine=gpu\{1\},model=a\=b\,c\\d}`; got != want {
		t.Errorf("name %s, want %s", got, want)
	}
	label := rapid.StringOfN(rapid.RuneFrom([]rune(`ab/:{}=,\é 🙂`)), 1, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		want := Labels{Agent: label.Draw(t, "agent"), Model: label.Draw(t, "model")}
		rule, got, err := ParseName(Name("r", want))
		if err != nil || rule != "r" || got != want {
			t.Fatalf("%q: %q %+v %v, want %+v", Name("r", want), rule, got, err, want)
		}
	})
}

func TestParseNameSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"errors":                         "braces",
		"{machine=m}":                    "braces",
		"errors{machine=m":               "braces",
		"errors{}":                       "ends too early",
		"errors{machine}":                "ends too early",
		"errors{machine=}":               "is missing",
		"errors{machine=a,machine=b}":    "given twice",
		"errors{host=a}":                 `unknown label "host"`,
		"errors{machine=a=b}":            "without a backslash",
		`errors{machine=a\}`:             "ends too early",
		"errors{machine=a\x01}":          "control character",
		"errors{machine=" + long() + "}": "at most 128",
	} {
		if _, _, err := ParseName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", name, err, want)
		}
	}
}

func long() string { return strings.Repeat("x", MaxLabel+1) }

func TestRefRoundTrip(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "000", 1: "001", 31: "00z", 32: "010", 1<<15 - 1: "zzz", 1 << 15: "1000"} {
		if got := Ref(n); got != want {
			t.Errorf("ref of %d = %s, want %s", n, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Max(1<<59).Draw(t, "n")
		if got, err := ParseRef("#" + strings.ToUpper(Ref(n))); err != nil || got != n {
			t.Fatalf("%s: %d %v, want %d", Ref(n), got, err, n)
		}
	})
	if n, err := ParseRef("oil"); err != nil || n != 0<<10|1<<5|1 {
		t.Errorf("look-alikes: %d %v, want them read as 0 1 1", n, err)
	}
	for _, bad := range []string{"", "#", "a-b", "äöü", "uuu", strings.Repeat("1", 13)} {
		if _, err := ParseRef(bad); err == nil {
			t.Errorf("%q was taken for a reference", bad)
		}
	}
}

func TestBuiltinRulesAreValid(t *testing.T) {
	t.Parallel()
	for _, r := range Builtin() {
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
}

// The rows of the vocabulary as the built-in rules take them.
func TestBuiltinRulesTakeCauses(t *testing.T) {
	t.Parallel()
	// f is a failure, s a success, - ignored; rules in the order of Builtin.
	for cause, want := range map[Cause]string{
		OK: "ssssssss", Refused: "f---" + "----", Unreachable: "f-------", ConnectTimeout: "f-------", TLS: "f-------",
		Timeout: "-ff-----", Reset: "--f-----", Stalled: "ssf-----", ServerError: "ssf-----", GatewayTimeout: "ssf-----",
		Slow: "ssssf---", Empty: "sssf-s--", TooFast: "sssf-s--",
		RateLimited: "ss---f--", QueueFull: "ss---f--", Overloaded: "ss---f--",
		Auth: "ss----f-", Quota: "ss----f-", Forbidden: "ss-----f", ModelMissing: "ssf-----",
		BadRequest: "ss------", ContextOverflow: "ss------", CallerTimeout: "--------", CallerOffline: "--------",
		Cancelled: "--------", Loading: "--------", Unknown: "--------",
	} {
		var got strings.Builder
		for _, r := range Builtin() {
			c, err := compile(r)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.fail.has(cause):
				got.WriteByte('f')
			case c.ignore.has(cause):
				got.WriteByte('-')
			default:
				got.WriteByte('s')
			}
		}
		if got.String() != want {
			t.Errorf("%-16s %s, want %s", cause, got.String(), want)
		}
	}
}

func TestRuleErrorsNameTheField(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Rule){
		`name: ""`:                               func(r *Rule) { r.Name = "" },
		`name: "a b"`:                            func(r *Rule) { r.Name = "a b" },
		"scope: is missing":                      func(r *Rule) { r.Scope = nil },
		`scope: unknown label "host"`:            func(r *Rule) { r.Scope = []string{"host"} },
		"scope: \"machine\" is named twice":      func(r *Rule) { r.Scope = []string{"machine", "machine"} },
		`match.model: "model" is not a label`:    func(r *Rule) { r.Match.Model = "x" },
		`match.machine: "[" is no glob`:          func(r *Rule) { r.Match.Machine = "[" },
		`failures: unknown cause or class "boo"`: func(r *Rule) { r.Failures = []string{"boo"} },
		"failures: is missing":                   func(r *Rule) { r.Failures = nil },
		"failures: cancelled is neutral":         func(r *Rule) { r.Failures = []string{"cancelled"} },
		"failures: ok can be no failure":         func(r *Rule) { r.Failures = []string{"ok"} },
		"ignores: refused is a failure too":      func(r *Rule) { r.Ignores = []string{"transport"} },
		"trip.rate: is missing":                  func(r *Rule) { r.Trip.Window = Window{Calls: 5} },
		"trip.min_calls: 20 is more":             func(r *Rule) { r.Trip = Trip{Rate: 1, Window: Window{Calls: 5}, MinCalls: 20} },
		"trip.at_once: quota is no failure":      func(r *Rule) { r.Trip.AtOnce = []string{"quota"} },
		"trip.consecutive: -1 is out of range":   func(r *Rule) { r.Trip.Consecutive = -1 },
		"mode: \"watch\" is unknown":             func(r *Rule) { r.Mode = "watch" },
		"alerts: \"loud\" is unknown":            func(r *Rule) { r.Alerts = "loud" },
		"cooldown.factor: 0.5 is out of range":   func(r *Rule) { r.Cooldown.Factor = 0.5 },
		"cooldown.jitter: 2 is out of range":     func(r *Rule) { r.Cooldown.Jitter = 2 },
		"cooldown.first: 30s is more than":       func(r *Rule) { r.Cooldown.Max = Duration(time.Second) },
		"cooldown.by_cause.empty: empty is no":   func(r *Rule) { r.Cooldown.ByCause = map[string]Duration{"empty": Duration(time.Second)} },
		"long_open[1]: 1m does not follow 1h":    func(r *Rule) { r.LongOpen = []Duration{Duration(time.Hour), Duration(time.Minute)} },
		"probes: 1000 is out of range":           func(r *Rule) { r.Probes = 1000 },
		"lease: 1ns is out of range":             func(r *Rule) { r.Lease = 1 },
	} {
		if err := plainRule(change).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestTextForms(t *testing.T) {
	t.Parallel()
	var d Duration
	var s Share
	var w Window
	for _, tc := range []struct {
		into interface {
			UnmarshalText([]byte) error
			MarshalText() ([]byte, error)
		}
		in, out, bad string
	}{
		{&d, "10m", "10m", ""}, {&d, "3600s", "1h", ""}, {&d, "90s", "1m30s", ""}, {&d, "10 min", "", "no duration"},
		{&s, "50%", "50%", ""}, {&s, "0.125", "12.5%", ""}, {&s, "100%", "100%", ""}, {&s, "0", "", "no rate"}, {&s, "101%", "", "no rate"}, {&s, "NaN", "", "no rate"},
		{&w, "100 calls", "100 calls", ""}, {&w, "5m", "5m", ""}, {&w, "0 calls", "", "1 to 10000"}, {&w, "1ms", "", "at least 1s"},
	} {
		err := tc.into.UnmarshalText([]byte(tc.in))
		if tc.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tc.bad) {
				t.Errorf("%q: error %v, want one with %q", tc.in, err, tc.bad)
			}
			continue
		}
		out, _ := tc.into.MarshalText()
		if err != nil || string(out) != tc.out {
			t.Errorf("%q: %s %v, want %s", tc.in, out, err, tc.out)
		}
	}
}
