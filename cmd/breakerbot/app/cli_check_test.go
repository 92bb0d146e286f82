package app

import (
	"strings"
	"testing"
)

func TestCheckPrintsWhatIsInForce(t *testing.T) {
	t.Parallel()
	cfg, wrong := load(t, whole, nil)
	if wrong != nil {
		t.Fatal(wrong)
	}
	var out strings.Builder
	if err := runCheck(&out, cfg); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"listen           0.0.0.0:9000",
		"database         Postgres bb at db port 5432, as bb",
		"time zone        Europe/Berlin",
		"tokens           coder (report)",
		"                 ops (read, operate)",
		"telegram         token is set, http://127.0.0.1:8081",
		"chats            -1001234 topic 7 (alerts)",
		"                 55 (alerts, digest)",
		"operators        111, 222",
		"alerts           trips after 10s; still open after 5m, 2h",
		"digest           30 7 * * 1-5 (minute, hour, weekdays), none on quiet days",
		"machines         gpu-box, local, provider lab, also called 10.0.0.9:11434, health check http://gpu-box:11434/api/tags?…",
		"chat            api.example                       cloud",
		"code            gpu-box qwen3-30b                 lab             high      32768      private, vision       full quality, slow",
		"                mac-mini qwen3-4b                 mac-mini        low",
		"chat: max_hops 2; degraded for 10m at most; never the same provider after nothing",
		"code: max_hops 1; degraded for 5m at most; never the same provider after quota",
		"kept             outcomes 7d, counts 732h, transitions for ever",
		"gpu-box               qwen3-*                   at least 50 characters; a JSON Schema; the fields decision, case.id;",
		`                                                allowed values of decision; at least 20 ms; or just "yes", "no"`,
		"*                     free                      none",
		"without database permits are refused until the state is restored",
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if strings.Contains(out.String(), "s3cret") {
		t.Error("a secret is printed")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestRulesTable(t *testing.T) {
	t.Parallel()
	cfg, wrong := load(t, "rules: [{name: mine, match: {model: \"q*\"}, scope: [model], failures: [slow_first_token], slow_first_token_after: 2s, mode: observe, concurrent: 2, cooldown: {jitter: 0.1}}]", nil)
	if wrong != nil {
		t.Fatal(wrong)
	}
	var out strings.Builder
	describeRules(&out, cfg.Rules)
	want := `RULE            SCOPE      FAILURES              IGNORES                   TRIPS ON                    COOLDOWN                PROBES
reachability    machine    refused,              neutral, caller_timeout,  3 in a row                  1m                      1
                           unreachable,          caller_offline, timeout,
                           connect_timeout, tls  reset
`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("table begins otherwise:\n%s", out.String())
	}
	for _, part := range []string{"3 in a row, or ≥ 50% of", "or quota at", "Retry-After of 10s or more", "1m ×2 up to 10m;", "bad_gateway,", "mine model=q*", "(observe)", "1, 2 at once", "up to 10% longer", "2 witnesses", "of 2 models"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("missing: %s", part)
		}
	}
	for line := range strings.Lines(out.String()) {
		if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
			t.Errorf("spaces at the end of %q", line)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
