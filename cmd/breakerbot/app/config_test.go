package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"breakerbot/bot"
	"breakerbot/breaker"
)

// environment is a lookup over a map, with a home so that there is a default
// data folder.
func environment(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if v, ok := pairs[name]; ok {
			return v, true
		}
		if name == "HOME" {
			return "/home/someone", true
		}
		return "", false
	}
}

// writeConfig makes a file and gives its path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// load reads a configuration from a text; problems come without the file's
// folder.
func load(t *testing.T, text string, env map[string]string) (Config, []string) {
	t.Helper()
	path := writeConfig(t, text)
	cfg, err := LoadConfig(path, environment(env))
	if err == nil {
		return cfg, nil
	}
	wrong, ok := errors.AsType[*ConfigError](err)
	if !ok {
		t.Fatalf("error is no *ConfigError: %v", err)
	}
	list := slices.Clone(wrong.Problems)
	for i := range list {
		list[i] = strings.TrimPrefix(list[i], filepath.Dir(path)+"/")
	}
	return Config{}, list
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"empty": "", "only comments": "# nothing\n", "only nulls": "telegram:\nrules:\nlisten:\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, wrong := load(t, text, nil)
			if wrong != nil {
				t.Fatal(wrong)
			}
			if cfg.Listen != "127.0.0.1:8080" || cfg.DatabaseURL != "" || cfg.Zone != time.Local || !cfg.StartOpen ||
				cfg.AckTimeout != 2*time.Second || cfg.MaxAge != 2*time.Minute || cfg.IDsMax != 4_000_000 || cfg.MetricsMaxSeries != 20_000 ||
				cfg.Telegram.APIURL != "https://api.telegram.org" || cfg.Alerts.GroupWait != 5*time.Second ||
				cfg.Digest != (DigestConfig{Cron: "0 8 * * *", QuietDays: true}) ||
				cfg.Retention != (Retention{Outcomes: 720 * time.Hour, Counts: 9600 * time.Hour}) {
				t.Errorf("defaults are %+v", cfg)
			}
			if !filepath.IsAbs(cfg.DataDir) || !strings.HasSuffix(cfg.DataDir, "breakerbot") {
				t.Errorf("data folder is %q", cfg.DataDir)
			}
			if got, want := ruleNames(cfg.Rules), ruleNames(breaker.Builtin()); !slices.Equal(got, want) {
				t.Errorf("rules are %v, want %v", got, want)
			}
			if cfg.Warnings != nil {
				t.Errorf("warnings: %v", cfg.Warnings)
			}
		})
	}
}

func ruleNames(rules []breaker.Rule) []string {
	var names []string
	for _, rule := range rules {
		name := rule.Name
		if rule.Match.Machine != "" {
			name += "@" + rule.Match.Machine
		}
		names = append(names, name)
	}
	return names
}

const whole = `
listen: 0.0.0.0:9000
database_url: postgres://bb:s3cret-pw@db:5432/bb
data_dir: /srv/bb
timezone: Europe/Berlin
tokens:
  - {name: coder, token: bb_0123456789abcdef, scopes: [report]}
  - name: ops
    token: bb_fedcba9876543210
    scopes: [read, operate]
telegram:
  token: 123456:ABC-def_secret
  api_url: http://127.0.0.1:8081/
  chats: [{id: -1001234, thread: 7, digest: false}, {id: 55, thread: 1}]
  operators: [111, 222]
alerts: {group_wait: 10s, long_open: [5m, 2h], flapping: {trips: 3, within: 30m, quiet: 6h}, recovery: edit}
digest: {cron: "30 7 * * 1-5", quiet_days: false, chart: true, weekly: "", monthly: ""}
builtin_rules: true
rules:
  - name: errors
    match: {machine: "gpu-*"}
    scope: [machine, model]
    failures: [transport]
    trip: {consecutive: 1, rate: 50%, window: 20 calls, min_calls: 5}
    cooldown: {first: 30s, factor: 2, max: 5m, by_cause: {server_error: 10s}}
    passive_probes: false
  - {name: latency, disabled: true}
gates:
  - {machine: gpu-box, model: "qwen3-*", min_chars: 50, allow: ["yes", no], required: [decision, case.id], min_duration_ms: 20,
     allowed: {decision: [approve, reject, 1, null]}, schema: {type: object, properties: {n: {minimum: 0x10, maximum: 1_000, multipleOf: 0.5}}}}
  - {model: free}
chains:
  code:
    max_hops: 1
    degraded_for: 5m
    avoid_provider_after: [quota]
    targets:
      - {machine: mac-mini, model: qwen3-4b, tier: low}
      - {machine: "10.0.0.9:11434", model: qwen3-30b, tier: high, tags: [private, vision], context: 32768, note: "full quality, slow"}
  chat: {avoid_provider_after: [], targets: [{machine: api.example, provider: cloud}]}
machines:
  gpu-box: {health: "http://me:s3cret-pw@gpu-box:11434/api/tags?key=s3cret-pw", local: true, aliases: ["10.0.0.9:11434"], provider: lab}
mutes: []
retention: {outcomes: 7d, counts: 30d12h, transitions: 0}
heartbeat_url: ""
ack_timeout: 500ms
start_without_database: closed
max_age: 1m
ids_max: 5000
metrics_max_series: 300
advertise: ""
`

func TestWholeFile(t *testing.T) {
	t.Parallel()
	cfg, wrong := load(t, whole, nil)
	if wrong != nil {
		t.Fatal(strings.Join(wrong, "\n"))
	}
	if cfg.Listen != "0.0.0.0:9000" || cfg.DatabaseURL != Secret("postgres://bb:s3cret-pw@db:5432/bb") || cfg.DataDir != "/srv/bb" ||
		cfg.Zone.String() != "Europe/Berlin" || cfg.StartOpen || cfg.AckTimeout != 500*time.Millisecond || cfg.MaxAge != time.Minute ||
		cfg.IDsMax != 5000 || cfg.MetricsMaxSeries != 300 {
		t.Errorf("got %+v", cfg)
	}
	if len(cfg.Tokens) != 2 || cfg.Tokens[1].Name != "ops" || cfg.Tokens[1].Secret != Secret("bb_fedcba9876543210") ||
		!slices.Equal(cfg.Tokens[1].Scopes, []string{"read", "operate"}) {
		t.Errorf("tokens: %+v", cfg.Tokens)
	}
	wantChats := []bot.Chat{{ID: -1001234, Thread: 7, Alerts: true}, {ID: 55, Alerts: true, Digest: true}}
	if !slices.Equal(cfg.Telegram.Chats, wantChats) {
		t.Errorf("chats: %+v", cfg.Telegram.Chats)
	}
	if cfg.Telegram.APIURL != "http://127.0.0.1:8081" || !slices.Equal(cfg.Telegram.Operators, []int64{111, 222}) {
		t.Errorf("telegram: %+v", cfg.Telegram)
	}
	if cfg.Retention != (Retention{Outcomes: 168 * time.Hour, Counts: 732 * time.Hour}) {
		t.Errorf("retention: %+v", cfg.Retention)
	}
	if !slices.Equal(cfg.Alerts.LongOpen, []time.Duration{5 * time.Minute, 2 * time.Hour}) {
		t.Errorf("long_open: %v", cfg.Alerts.LongOpen)
	}
	if m := cfg.Machines["gpu-box"]; !m.Local || m.Provider != "lab" || !slices.Equal(m.Aliases, []string{"10.0.0.9:11434"}) {
		t.Errorf("machine: %+v", m)
	}
	want := []string{"reachability", "hangs", "errors@gpu-*", "errors", "quality", "rate-limit", "access", "permission"}
	if got := ruleNames(cfg.Rules); !slices.Equal(got, want) {
		t.Errorf("rules: %v", got)
	}
	if c := cfg.Chains["code"]; *c.MaxHops != 1 || c.DegradedFor.D() != 5*time.Minute || !slices.Equal(c.AvoidProviderAfter, []string{"quota"}) || len(c.Targets) != 2 ||
		c.Targets[1].Context != 32768 || !slices.Equal(c.Targets[1].Tags, []string{"private", "vision"}) || c.Targets[1].Note != "full quality, slow" {
		t.Errorf("chain: %+v", c)
	}
	if c := cfg.Chains["chat"]; c.MaxHops != nil || c.AvoidProviderAfter == nil || len(c.AvoidProviderAfter) != 0 || c.Targets[0].Provider != "cloud" {
		t.Errorf("chain: %+v", c)
	}
	if cfg.Health["gpu-box"] != Secret("http://me:s3cret-pw@gpu-box:11434/api/tags?key=s3cret-pw") || len(cfg.Health) != 1 {
		t.Errorf("health: %d", len(cfg.Health))
	}
	own := cfg.Rules[2]
	if own.Trip.Consecutive != 1 || own.Trip.Rate != 500_000 || own.Trip.Window.Calls != 20 || own.Cooldown.ByCause["server_error"].D() != 10*time.Second ||
		own.Cooldown.Factor != 2 || own.PassiveProbes == nil || *own.PassiveProbes {
		t.Errorf("own rule: %+v", own)
	}
	gates, err := json.Marshal(cfg.Gates.List())
	if err != nil {
		t.Fatal(err)
	}
	if want := `[{"machine":"gpu-box","model":"qwen3-*","allow":["yes","no"],"min_chars":50,` +
		`"schema":{"properties":{"n":{"maximum":1000,"minimum":16,"multipleOf":0.5}},"type":"object"},` +
		`"required":["decision","case.id"],"allowed":{"decision":["approve","reject",1,null]},"min_duration_ms":20},{"model":"free"}]`; string(gates) != want {
		t.Errorf("gates: %s", gates)
	}
}

func TestGatesNeverReached(t *testing.T) {
	t.Parallel()
	cfg, wrong := load(t, "gates: [{model: \"a*\", min_chars: 1}, {machine: \"*\", min_chars: 2}, {model: b}]", nil)
	if wrong != nil {
		t.Fatal(wrong)
	}
	if !slices.ContainsFunc(cfg.Warnings, func(w string) bool { return strings.HasPrefix(w, "gates[2] is never reached: gates[1] matches") }) {
		t.Errorf("warnings: %q", cfg.Warnings)
	}
}

// A few lines of aliases that stand for millions of values are not followed.
func TestGatesAliasesAreBounded(t *testing.T) {
	t.Parallel()
	text := []string{"gates:", "  - schema:", "      enum:", "        - &a0 [x, x, x, x, x, x, x, x, x, x]"}
	for i := range 8 {
		one := fmt.Sprintf("*a%d", i)
		text = append(text, fmt.Sprintf("        - &a%d [%s]", i+1, strings.Join(slices.Repeat([]string{one}, 10), ", ")))
	}
	_, wrong := load(t, strings.Join(text, "\n"), nil)
	if len(wrong) != 1 || !strings.Contains(wrong[0], "gates[0].schema: holds too much: at most 20000 values are allowed") {
		t.Errorf("problems: %q", wrong)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		env  map[string]string
		want []string // prefix … part: the place and key, and a part of the words
	}{
		"unknown key": {
			text: "listen: 127.0.0.1:1\nlissten: x\n",
			want: []string{"b.yaml:2:1: lissten: unknown key: … did you mean listen?"},
		},
		"unknown key after a byte order mark": {
			text: "\ufefflisten: 127.0.0.1:1\nlissten: x\n",
			want: []string{"b.yaml:2:1: lissten: unknown key: … did you mean listen?"},
		},
		"unknown key deep in a rule": {
			text: "rules:\n  - name: errors\n    scope: [machine]\n    failures: [transport]\n    trip: {consecutiv: 4}\n",
			want: []string{"b.yaml:5:12: rules[0].trip.consecutiv: … did you mean consecutive?"},
		},
		"unknown key near nothing": {
			text: "digest: {zzzzzzzz: 1}",
			want: []string{"b.yaml:1:10: digest.zzzzzzzz: unknown key … known are chart, cron, monthly, quiet_days, weekly"},
		},
		"the same key twice": {
			text: "max_age: 1m\nids_max: 5000\nmax_age: 2m\n",
			want: []string{"b.yaml:3:1: max_age: is given twice, first on line 1 … "},
		},
		"the same machine twice": {
			text: "machines:\n  a: {local: true}\n  a: {local: false}\n",
			want: []string{"b.yaml:3:3: machines.a: is given twice, first on line 2 … "},
		},
		"wrong kinds": {
			text: "listen: [1]\nids_max: many\nbuiltin_rules: yes\nrules: {a: 1}\ntelegram: no\nmachines: [a]\nmetrics_max_series: 1.5\n",
			want: []string{
				"b.yaml:1:9: listen: is a list … a text is needed",
				`b.yaml:2:10: ids_max: "many" is a text … a whole number is needed`,
				`b.yaml:3:16: builtin_rules: "yes" is a text … true or false is needed`,
				"b.yaml:4:8: rules: is a mapping … a list is needed",
				"b.yaml:5:11: telegram: is a text … a mapping is needed",
				"b.yaml:6:11: machines: is a list … a mapping is needed",
				`b.yaml:7:21: metrics_max_series: "1.5" … a whole number is needed`,
			},
		},
		"too large a number": {
			text: "ids_max: 99999999999999999999\n",
			want: []string{`b.yaml:1:10: ids_max: "99999999999999999999" … whole number`},
		},
		"durations": {
			text: "ack_timeout: 2\nmax_age: 1 day\nretention: {outcomes: 1h, counts: -3d}\nalerts:\n  group_wait: 1h\n  long_open: [10m, 5m, x]\n",
			want: []string{
				`b.yaml:1:14: ack_timeout: "2" is no duration … 30s`,
				`b.yaml:2:10: max_age: "1 day" is no duration … 7d`,
				"b.yaml:3:23: retention.outcomes: 1h is too short … 24h",
				`b.yaml:3:35: retention.counts: "-3d" is no duration … `,
				"b.yaml:5:15: alerts.group_wait: 1h is out of range … 0s to 10m",
				"b.yaml:6:20: alerts.long_open[1]: 5m does not follow 10m … rise",
				`b.yaml:6:24: alerts.long_open[2]: "x" is no duration … `,
			},
		},
		"zone and cron": {
			text: "timezone: Europe/Berlln\ndigest:\n  cron: \"TZ=\"\n",
			want: []string{
				`b.yaml:1:11: timezone: "Europe/Berlln" is no time zone … Europe/Berlin`,
				`b.yaml:3:9: digest.cron: … "TZ="`,
			},
		},
		"zone outside the folder of zones": {
			text: "timezone: ../../etc/passwd\n",
			want: []string{"b.yaml:1:11: timezone: … is no time zone"},
		},
		"cron that fires twice": {
			text: "digest: {cron: \"0 8,20 * * *\"}\n",
			want: []string{"b.yaml:1:16: digest.cron: … 0 8,20"},
		},
		"open to others without tokens": {
			text: "listen: 0.0.0.0:8080\n",
			want: []string{`b.yaml:1:9: listen: "0.0.0.0:8080" can be reached … breakerbot token NAME`},
		},
		"all interfaces": {
			env:  map[string]string{"BREAKERBOT_LISTEN": ":8080"},
			want: []string{`BREAKERBOT_LISTEN: listen: ":8080" can be reached … 127.0.0.1:8080`},
		},
		"a host name may be anywhere": {
			text: "listen: gpu-box:8080\n",
			want: []string{"b.yaml:1:9: listen: … can be reached"},
		},
		"no port": {
			text: "listen: 127.0.0.1\n",
			want: []string{`b.yaml:1:9: listen: "127.0.0.1" is no address … host:port`},
		},
		"port too high": {
			text: "listen: 127.0.0.1:70000\n",
			want: []string{"b.yaml:1:9: listen: … up to 65535"},
		},
		"tokens": {
			text: `tokens:
  - {name: a, token: bb_0123456789abcdef, scopes: [reprot]}
  - {name: a, token: bb_0123456789abcdef}
  - {name: "a b", token: ""}
  - {name: c, token: "bb_ 0123456789abcdef", scopes: [read, read]}
  - just-a-text
`,
			want: []string{
				`b.yaml:2:51: tokens[0].scopes: "reprot" is no scope … report, read, operate`,
				`b.yaml:3:12: tokens[1].name: "a" is also the name of tokens[0] … `,
				"b.yaml:3:22: tokens[1].token: is the same as that of tokens[0] … ",
				`b.yaml:4:12: tokens[2].name: "a b" holds a space … `,
				"b.yaml:4:26: tokens[2].token: is missing … breakerbot token",
				"b.yaml:5:22: tokens[3].token: its value (not shown) … ",
				"b.yaml:5:54: tokens[3].scopes: read is given twice … ",
				"b.yaml:6:5: tokens[4]: is a text … a mapping is needed",
			},
		},
		"telegram": {
			text: `telegram:
  token: "123:abc/def"
  api_url: ftp://x
  chats: [{id: "@lab"}, {thread: 3}, {id: 5, thread: -1}, {id: 6}, {id: 6, thread: 1}]
  operators: [0, 1087968824, 777000, 4, 4, x]
`,
			want: []string{
				"b.yaml:2:10: telegram.token: its value (not shown) … BotFather",
				"b.yaml:3:12: telegram.api_url: … https://api.telegram.org",
				`b.yaml:4:16: telegram.chats[0].id: "@lab" is a text … a whole number is needed`,
				"b.yaml:4:25: telegram.chats[1].id: is missing … negative for groups",
				"b.yaml:4:54: telegram.chats[2].thread: -1 is no topic … ",
				"b.yaml:4:68: telegram.chats[4]: is the same chat and thread as telegram.chats[3] … ",
				"b.yaml:5:15: telegram.operators[0]: 0 is no user's number … ",
				"b.yaml:5:18: telegram.operators[1]: 1087968824 stands for every anonymous … ",
				"b.yaml:5:30: telegram.operators[2]: 777000 is Telegram … ",
				"b.yaml:5:41: telegram.operators[4]: 4 is given twice … ",
				`b.yaml:5:44: telegram.operators[5]: "x" is a text … `,
			},
		},
		"api_url with a token": {
			text: "telegram: {api_url: \"https://api.telegram.org/bot123:abc\"}\n",
			want: []string{"b.yaml:1:21: telegram.api_url: must end before /bot … telegram.token"},
		},
		"machines": {
			text: "machines:\n  a: {aliases: [b, c], provider: \"x\\ny\"}\n  b: {aliases: [c, \"\"], locl: true}\n",
			want: []string{
				`b.yaml:2:17: machines.a.aliases[0]: "b" already means the machine b … `,
				"b.yaml:2:34: machines.a.provider: … control character",
				`b.yaml:3:17: machines.b.aliases[0]: "c" already means the machine a … `,
				"b.yaml:3:20: machines.b.aliases[1]: is missing … ",
				"b.yaml:3:25: machines.b.locl: unknown key … local",
			},
		},
		"words": {
			text: "start_without_database: maybe\nalerts: {recovery: delete}\nids_max: 5\nmetrics_max_series: 0\n",
			want: []string{
				`b.yaml:1:25: start_without_database: "maybe" is unknown … open`,
				`b.yaml:2:20: alerts.recovery: "delete" is unknown … edit`,
				"b.yaml:3:10: ids_max: 5 is out of range … 1000 to",
				"b.yaml:4:21: metrics_max_series: 0 is out of range … ",
			},
		},
		"rules": {
			text: `rules:
  - name: mine
    scope: [machine, modle]
    failures: [transport, rate_limted]
    trip: {rate: 120%, window: 5 minutes}
  - name: own
    scope: [machine]
    failures: [refused]
    cooldown: {first: 20m, max: 10m}
  - {name: nothing, disabled: true}
  - {name: errors, match: {machine: a}, disabled: true}
  - {name: own, scope: [machine], failures: [refused]}
  - {name: bare}
`,
			want: []string{
				`b.yaml:5:18: rules[0].trip.rate: "120%" is no rate … 50%`,
				`b.yaml:5:32: rules[0].trip.window: "5 minutes" is no window … 100 calls`,
				"b.yaml:9:23: rules[1].cooldown.first: 20m is more than cooldown.max … ",
				`b.yaml:10:12: rules[2].name: "nothing" is no built-in rule … reachability, hangs`,
				"b.yaml:11:51: rules[3].disabled: a rule with a match cannot be disabled … observe",
				`b.yaml:12:12: rules[4].name: "own" is also rules[1] … `,
				"b.yaml:13:5: rules[5].scope: is missing … machine",
				"b.yaml:13:5: rules[5].failures: is missing … cause or class",
			},
		},
		"words in a rule": {
			text: "rules: [{name: mine, scope: [machine, modle], failures: [transport], ignores: [rate_limted]}]\n",
			want: []string{
				`b.yaml:1:29: rules[0].scope: unknown label "modle" … model`,
				`b.yaml:1:79: rules[0].ignores: unknown cause or class "rate_limted" … rate_limited`,
			},
		},
		"features to come": {
			text: `
mutes: [{machine: a}]
heartbeat_url: http://127.0.0.1/
advertise: 10.0.0.1:8080
alerts: {flapping: {trips: 4, within: 30m, quiet: 6h}}
digest: {chart: false, weekly: "0 8 * * 1", monthly: x}
`,
			want: []string{
				"b.yaml:2:8: mutes: is not available … ",
				"b.yaml:3:16: heartbeat_url: is not available … ",
				"b.yaml:4:12: advertise: is not available … ",
				"b.yaml:5:20: alerts.flapping: is not available … ",
				"b.yaml:6:32: digest.weekly: is not available … ",
				"b.yaml:6:54: digest.monthly: is not available … ",
			},
		},
		"chains": {
			text: `
machines: {gpu: {aliases: [box], provider: lab}}
chains:
  code: {targets: []}
  chat:
    max_hops: 65
    degraded_for: 10ms
    avoid_provider_after: [ratelimited]
    targets:
      - {model: m}
      - {machine: gpu, model: m}
      - {machine: box, model: m, provider: lab}
      - {machine: gpu, model: n, context: -1, tags: [a, ""]}
  "": {targets: [{machine: m}]}
  fast: {max_hop: 1, targets: [{machine: m, contxt: 1}]}
`,
			want: []string{
				"b.yaml:4:19: chains.code.targets: there are 0: 1 to 64 are needed … ",
				"b.yaml:6:15: chains.chat.max_hops: 65 is out of range: 0 to 64 … ",
				"b.yaml:7:19: chains.chat.degraded_for: 10ms is out of range … ",
				`b.yaml:8:27: chains.chat.avoid_provider_after: unknown cause or class "ratelimited" … rate_limited`,
				"b.yaml:10:9: chains.chat.targets[0].machine: is missing … 1 to 128",
				"b.yaml:12:19: chains.chat.targets[2].machine: gpu/m is targets[1] already … ",
				"b.yaml:13:43: chains.chat.targets[3].context: -1 is out of range … ",
				"b.yaml:13:57: chains.chat.targets[3].tags[1]: is missing … ",
				`b.yaml:14:3: chains[""]: the chain's name is missing … `,
				"b.yaml:15:10: chains.fast.max_hop: unknown key: … did you mean max_hops?",
				"b.yaml:15:45: chains.fast.targets[0].contxt: unknown key: … did you mean context?",
			},
		},
		"health checks": {
			text: `
machines:
  a: {health: "ftp://me:hunter2@a/"}
  b: {health: "gpu-box:11434"}
  c: {health: "http:///path"}
  d: {health: "http://[::1"}
  e: {health: "https://e/#part"}
  "10.0.0.1": {health: [1]}
`,
			want: []string{
				"b.yaml:3:15: machines.a.health: its value (not shown, it may hold a password) … looks like http://gpu-box:11434/api/tags",
				"b.yaml:4:15: machines.b.health: its value (not shown … ",
				"b.yaml:5:15: machines.c.health: its value (not shown … ",
				"b.yaml:6:15: machines.d.health: its value (not shown … ",
				"b.yaml:7:15: machines.e.health: its value (not shown … ",
				`b.yaml:8:24: machines["10.0.0.1"].health: is a list: a text is needed … `,
			},
		},
		"features to come, by environment": {
			env:  map[string]string{"BREAKERBOT_HEARTBEAT_URL": "http://127.0.0.1/", "BREAKERBOT_DIGEST_CHART": "true", "BREAKERBOT_GATES": "ignored"},
			want: []string{"BREAKERBOT_HEARTBEAT_URL: heartbeat_url: is not available … "},
		},
		"gates": {
			text: `machines: {gpu: {aliases: [box]}}
gates:
  - {machine: "[", min_chars: -1, min_duration_ms: 90000000}
  - {machine: gpu, allow: [" . ", "yes", "Yes."], required: [a..b, a, a]}
  - {machine: gpu, allowed: {a: [], "": [1]}}
  - {machine: box}
  - machine: other
    schema:
      properties:
        id: {type: strng}
  - {machine: p, schema: {pattern: "("}}
  - {machine: r, schema: {$ref: "other.json#/a"}}
  - {machine: t, schema: {$ref: "https://example.com/s"}}
  - {machine: u, schema: [1]}
`,
			want: []string{
				`b.yaml:3:15: gates[0].machine: "[" is no glob … [a-z]`,
				"b.yaml:3:31: gates[0].min_chars: -1 is out of range … 65536",
				"b.yaml:3:52: gates[0].min_duration_ms: 90000000 is out of range … 86400000",
				`b.yaml:4:28: gates[1].allow[0]: "." is no text … empty`,
				`b.yaml:4:42: gates[1].allow[2]: "Yes." stands on the list twice … `,
				`b.yaml:4:62: gates[1].required[0]: "a..b" is no field … nested`,
				`b.yaml:4:71: gates[1].required[2]: "a" is given twice … `,
				"b.yaml:5:15: gates[2].machine: the same machine and model have [1] … only one",
				`b.yaml:5:29: gates[2].allowed: "" is no field … name`,
				`b.yaml:5:29: gates[2].allowed: "a" has no values … list those`,
				`b.yaml:6:15: gates[3].machine: "box" is an alias of the machine gpu … its name`,
				"b.yaml:10:20: gates[4].schema.properties.id.type: value must be one of … string",
				`b.yaml:11:36: gates[5].schema.pattern: '(' is not valid regex … missing`,
				`b.yaml:12:26: gates[6].schema: refers to "other.json" … nothing is fetched`,
				`b.yaml:13:26: gates[7].schema: refers to "https://example.com/s" … nothing is fetched`,
				"b.yaml:14:26: gates[8].schema: is no JSON Schema … true or false",
			},
		},
		"values in gates": {
			text: "gates: [{schema: {a: .nan, c: {d: 1, d: 2}}, allowed: {f: 1}}, {schema: {b: &x [*x]}}]\n",
			want: []string{
				"b.yaml:1:22: gates[0].schema.a: has no form in JSON … a number",
				"b.yaml:1:38: gates[0].schema.c.d: is given twice … line 1",
				"b.yaml:1:59: gates[0].allowed.f: is a number … a list is needed",
				"b.yaml:1:73: gates[1].schema: nests too deep … 64",
			},
		},
		"syntax": {
			text: "listen: \"127.0.0.1:1\nids_max: 1\n",
			want: []string{"b.yaml:1:9: syntax: … quote"},
		},
		"tabs": {
			text: "telegram:\n\ttoken: x\n",
			want: []string{"b.yaml:2:1: syntax: … "},
		},
		"no mapping": {
			text: "- listen\n",
			want: []string{"b.yaml:1:1: is a list … a mapping is needed"},
		},
		"two documents": {
			text: "ids_max: 5000\n---\nids_max: 6000\n",
			want: []string{"b.yaml:3:1: a second document begins here … one is allowed"},
		},
		"merge keys": {
			text: "machines:\n  a: &a {local: true}\n  b:\n    <<: *a\n",
			want: []string{"b.yaml:4:5: machines.b: merge keys … "},
		},
		"alias of nothing": {
			text: "machines:\n  a: *b\n",
			want: []string{"b.yaml:2:6: machines.a: no anchor &b … "},
		},
		"not UTF-8": {
			text: "listen: \xff\n",
			want: []string{"b.yaml:1:1: the file is not UTF-8 … "},
		},
		"database": {
			env:  map[string]string{"DATABASE_URL": "postgres://u:pa ss@h:notaport/db"},
			want: []string{"DATABASE_URL: database_url: its value (not shown) … postgres://"},
		},
		"environment": {
			env: map[string]string{
				"BREAKERBOT_ACK_TIMEOUT": "soon", "BREAKERBOT_DIGEST_QUIET_DAYS": "on", "TELEGRAM_CHAT_ID": "@lab", "TELEGRAM_OPERATORS": "1,x",
				"BREAKERBOT_TIMEZONE": "Mars", "BREAKERBOT_IDS_MAX": "1e6", "BREAKERBOT_ALERTS_LONG_OPEN": "1h,10m",
			},
			want: []string{
				`BREAKERBOT_ACK_TIMEOUT: ack_timeout: "soon" is no duration … `,
				"BREAKERBOT_ALERTS_LONG_OPEN: alerts.long_open[1]: 10m does not follow … ",
				`BREAKERBOT_DIGEST_QUIET_DAYS: digest.quiet_days: "on": true or false … `,
				`BREAKERBOT_IDS_MAX: ids_max: "1e6": a whole number … `,
				`BREAKERBOT_TIMEZONE: timezone: "Mars" is no time zone … `,
				`TELEGRAM_CHAT_ID: telegram.chats[0].id: "@lab": a whole number … `,
				`TELEGRAM_OPERATORS: telegram.operators[1]: "x": a whole number … `,
			},
		},
		"tokens from the environment": {
			env: map[string]string{"BREAKERBOT_TOKENS": "bb_lonelylonelylonely,coder:bb_0123456789abcdef:rep,:x:read"},
			want: []string{
				"BREAKERBOT_TOKENS: tokens[0]: its entry (not shown) … name:token:scope+scope",
				`BREAKERBOT_TOKENS: tokens[1].scopes: what follows the last colon of "coder"'s entry … operate`,
				"BREAKERBOT_TOKENS: tokens[2].name: is missing … ",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := load(t, tc.text, tc.env)
			if len(got) != len(tc.want) {
				t.Fatalf("%d problems, want %d:\n%s", len(got), len(tc.want), strings.Join(got, "\n"))
			}
			for i, want := range tc.want {
				begin, part, ok := strings.Cut(want, "…")
				if !ok || !strings.HasPrefix(got[i], strings.TrimSpace(begin)) || !strings.Contains(got[i], strings.TrimSpace(part)) {
					t.Errorf("problem %d:\n got %s\nwant %s", i, got[i], want)
				}
			}
		})
	}
}

func TestEnvironmentBeatsFile(t *testing.T) {
	t.Parallel()
	cfg, wrong := load(t, whole+"", map[string]string{
		"BREAKERBOT_LISTEN": "127.0.0.1:7000", "DATABASE_URL": "host=/run/pg dbname=x", "BREAKERBOT_DATA_DIR": "~/bb", "BREAKERBOT_TIMEZONE": "UTC",
		"BREAKERBOT_TOKENS": "one:bb_aaaaaaaaaaaaaaaa:read+operate, two:bb_bb:bbbbbbbbbbbbbb:report,three:bb_cccccccccccccccc",
		"TELEGRAM_TOKEN":    "9:zzz", "TELEGRAM_API_URL": "http://127.0.0.1:1", "TELEGRAM_CHAT_ID": "-42", "TELEGRAM_OPERATORS": "7, 8",
		"BREAKERBOT_DIGEST_CRON": "0 9 * * *", "BREAKERBOT_DIGEST_QUIET_DAYS": "true", "BREAKERBOT_ALERTS_GROUP_WAIT": "1s",
		"BREAKERBOT_ALERTS_LONG_OPEN": "1m,2m", "BREAKERBOT_ACK_TIMEOUT": "3s", "BREAKERBOT_MAX_AGE": "", "BREAKERBOT_RETENTION_OUTCOMES": "2d",
		"BREAKERBOT_START_WITHOUT_DATABASE": "open", "BREAKERBOT_BUILTIN_RULES": "false", "BREAKERBOT_TOKEN_FILE": "/data/token",
	})
	if wrong != nil {
		t.Fatal(strings.Join(wrong, "\n"))
	}
	if cfg.Listen != "127.0.0.1:7000" || cfg.DatabaseURL != Secret("host=/run/pg dbname=x") || cfg.DataDir != "/home/someone/bb" || cfg.Zone != time.UTC ||
		cfg.Telegram.Token != Secret("9:zzz") || cfg.Telegram.APIURL != "http://127.0.0.1:1" || cfg.Digest.Cron != "0 9 * * *" || !cfg.Digest.QuietDays ||
		cfg.Alerts.GroupWait != time.Second || cfg.AckTimeout != 3*time.Second || cfg.Retention.Outcomes != 48*time.Hour || !cfg.StartOpen || cfg.TokenFile != "/data/token" {
		t.Errorf("got %+v", cfg)
	}
	if cfg.MaxAge != time.Minute {
		t.Errorf("an empty variable took the place of the file's max_age: %s", cfg.MaxAge)
	}
	if !slices.Equal(cfg.Telegram.Chats, []bot.Chat{{ID: -42, Alerts: true, Digest: true}}) || !slices.Equal(cfg.Telegram.Operators, []int64{7, 8}) {
		t.Errorf("telegram: %+v", cfg.Telegram)
	}
	if !slices.Equal(cfg.Alerts.LongOpen, []time.Duration{time.Minute, 2 * time.Minute}) {
		t.Errorf("long_open: %v", cfg.Alerts.LongOpen)
	}
	var tokens []string
	for _, token := range cfg.Tokens {
		tokens = append(tokens, token.Name+" "+string(token.Secret)+" "+strings.Join(token.Scopes, "+"))
	}
	want := []string{"one bb_aaaaaaaaaaaaaaaa read+operate", "two bb_bb:bbbbbbbbbbbbbb report", "three bb_cccccccccccccccc report"}
	if !slices.Equal(tokens, want) {
		t.Errorf("tokens: %q", tokens)
	}
	if got := ruleNames(cfg.Rules); !slices.Equal(got, []string{"errors@gpu-*"}) {
		t.Errorf("rules: %v", got)
	}
}

func TestAProblemOfAnOverriddenValueIsNone(t *testing.T) {
	t.Parallel()
	cfg, wrong := load(t, "timezone: Mars\nmax_age: [1]\nmax_age_: 1\n", map[string]string{"BREAKERBOT_TIMEZONE": "UTC", "BREAKERBOT_MAX_AGE": "3m"})
	if len(wrong) != 1 || !strings.HasPrefix(wrong[0], "b.yaml:3:1: max_age_: unknown key") {
		t.Errorf("problems: %q, config %+v", wrong, cfg)
	}
}

func TestFileThatIsNotThere(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := LoadConfig("", environment(nil)); err != nil {
		t.Errorf("without a default file: %v", err)
	}
	_, err := LoadConfig("nowhere.yaml", environment(nil))
	if wrong, ok := errors.AsType[*ConfigError](err); !ok || !strings.Contains(wrong.Error(), "nowhere.yaml") {
		t.Errorf("named file missing: %v", err)
	}
	if err := os.Mkdir("folder.yaml", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig("folder.yaml", environment(nil)); err == nil || !strings.Contains(err.Error(), "is a folder") {
		t.Errorf("folder: %v", err)
	}
	if err := os.WriteFile("large.yaml", make([]byte, maxConfigFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig("large.yaml", environment(nil)); err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Errorf("large file: %v", err)
	}
	if err := os.WriteFile(DefaultConfigFile, []byte("tokens: [{name: a, token: bb_0123456789abcdef}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadConfig("", environment(nil))
	if err != nil || cfg.File != DefaultConfigFile || len(cfg.Tokens) != 1 {
		t.Errorf("default file: %+v, %v", cfg, err)
	}
	if len(cfg.Warnings) != 1 || !strings.Contains(cfg.Warnings[0], "chmod 600 breakerbot.yaml") {
		t.Errorf("warnings about a file that all may read: %q", cfg.Warnings)
	}
}

func TestNoHome(t *testing.T) {
	t.Parallel()
	_, err := LoadConfig(writeConfig(t, "data_dir: ~/bb\ntoken_file: ~/t\n"), func(string) (string, bool) { return "", false })
	wrong, ok := errors.AsType[*ConfigError](err)
	if !ok || len(wrong.Problems) != 2 || !strings.Contains(wrong.Problems[0], `:1:11: data_dir: "~/bb": HOME is not set`) ||
		!strings.Contains(wrong.Problems[1], ":2:13: token_file:") {
		t.Errorf("got %v", err)
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	t.Parallel()
	secrets := []string{"s3cret-pw", "bb_0123456789abcdef", "bb_fedcba9876543210", "ABC-def_secret"}
	hides := func(what, text string) {
		t.Helper()
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s:\n%s", what, secret, text)
			}
		}
	}
	cfg, wrong := load(t, whole, nil)
	if wrong != nil {
		t.Fatal(wrong)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
		hides(verb, fmt.Sprintf(verb, cfg))
		hides(verb+" of a pointer", fmt.Sprintf(verb, &cfg.Telegram))
	}
	var out strings.Builder
	if err := runCheck(&out, cfg); err != nil {
		t.Fatal(err)
	}
	hides("check", out.String())

	// Broken in any place, the file's messages stay clean, too.
	for i := 0; i < len(whole); i += 3 {
		broken := whole[:i] + "]{\t" + whole[i:]
		_, wrong := load(t, broken, nil)
		hides("a broken file", strings.Join(wrong, "\n"))
		_, wrong = load(t, whole[:i]+"\n"+whole[i:], nil)
		hides("a file with a line broken", strings.Join(wrong, "\n"))
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := UnknownVariables([]string{"PATH=/bin", "BREAKERBOT_LISTEN=x", "BREAKERBOT_LISTN=x", "BREAKERBOT_PORT=tcp://10.0.0.1:80", "BREAKERBOT_TOKEN=x", "BREAKERBOT_DIGEST_CRON=x"})
	want := []string{"BREAKERBOT_LISTN means nothing: did you mean BREAKERBOT_LISTEN?", "BREAKERBOT_PORT means nothing"}
	if len(got) != 2 || got[0] != want[0] || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("got %q", got)
	}
}

// FuzzConfig holds that no file makes the reader panic, and that whatever it
// accepts can be described.
func FuzzConfig(f *testing.F) {
	f.Add(whole)
	f.Add("a: &a [*a]\ngates: *a\n")
	f.Add("rules:\n- {name: x, scope: [machine], failures: [ok], trip: {rate: .nan}}\n")
	f.Add("? [a]\n: b\n")
	f.Add("!!binary listen: !!str x\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := &problems{file: "f", places: make(map[string]place)}
		raw, cfg := defaults(), Config{}
		decode([]byte(text), raw, p)
		fromEnvironment(raw, environment(nil), p)
		c := &checker{raw: raw, cfg: &cfg, problems: p, env: environment(nil)}
		c.check()
		if p.err() == nil {
			if err := runCheck(new(strings.Builder), cfg); err != nil {
				t.Fatal(err)
			}
		}
	})
}
