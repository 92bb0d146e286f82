package app

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"breakerbot/breaker"
	"breakerbot/ingest"
)

// runCheck prints the configuration in force, without secrets, its rules, its
// gates and its chains.
func runCheck(w io.Writer, cfg Config) error {
	var out strings.Builder
	cfg.describe(&out)
	out.WriteString("\nRules, in order of precedence:\n\n")
	describeRules(&out, cfg.Rules)
	if gates := cfg.Gates.List(); len(gates) > 0 {
		out.WriteString("\nGates, of which the first that matches a call checks its answer:\n\n")
		describeGates(&out, gates)
	}
	if len(cfg.Chains) > 0 {
		routing, err := cfg.routing()
		if err != nil {
			return err
		}
		out.WriteString("\nChains, with their targets in the order of trial:\n\n")
		describeChains(&out, routing.Chains())
	}
	for _, warning := range cfg.Warnings {
		fmt.Fprintf(&out, "\nwarning: %s\n", warning)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// describe prints one line for each part of the configuration.
func (c Config) describe(out *strings.Builder) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-16s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("configuration", "%s", orWord(c.File, "no file: defaults and environment"))
	line("listen", "%s", c.Listen)
	line("database", "%s", c.describeDatabase())
	line("data folder", "%s", c.DataDir)
	line("time zone", "%s", c.Zone)
	for i, token := range c.Tokens {
		line(first(i, "tokens"), "%s (%s)", token.Name, strings.Join(token.Scopes, ", "))
	}
	if c.TokenFile != "" {
		line(first(len(c.Tokens), "tokens"), "%s (%s), in %s, made at the first start", tokenFileName, strings.Join(Scopes(), ", "), c.TokenFile)
	} else if len(c.Tokens) == 0 {
		line("tokens", "none: every program on this machine may do everything")
	}

	if c.Telegram.Token == "" {
		line("telegram", "no token: messages are printed to standard output")
	} else {
		line("telegram", "token is set, %s", c.Telegram.APIURL)
	}
	for i, chat := range c.Telegram.Chats {
		var gets []string
		if chat.Alerts {
			gets = append(gets, "alerts")
		}
		if chat.Digest {
			gets = append(gets, "digest")
		}
		where := strconv.FormatInt(chat.ID, 10)
		if chat.Thread != 0 {
			where += " topic " + strconv.Itoa(chat.Thread)
		}
		line(first(i, "chats"), "%s (%s)", where, orWord(strings.Join(gets, ", "), "commands only"))
	}
	if len(c.Telegram.Operators) > 0 {
		line("operators", "%s", joined(c.Telegram.Operators, func(id int64) string { return strconv.FormatInt(id, 10) }))
	}
	line("alerts", "trips after %s; still open after %s", days(c.Alerts.GroupWait), orWord(joined(c.Alerts.LongOpen, days), "nothing: never told again"))
	quiet := "a quiet day is one line"
	if !c.Digest.QuietDays {
		quiet = "none on quiet days"
	}
	line("digest", "%s (minute, hour, weekdays), %s", c.Digest.Cron, quiet)
	for i, name := range sorted(c.Machines) {
		line(first(i, "machines"), "%s", describeMachine(name, c.Machines[name], c.Health[name]))
	}
	kept := "outcomes " + days(c.Retention.Outcomes) + ", counts " + days(c.Retention.Counts) + ", transitions " + days(c.Retention.Transitions)
	line("kept", "%s", strings.ReplaceAll(kept, " 0s", " for ever"))
	start := "allowed"
	if !c.StartOpen {
		start = "refused"
	}
	line("without database", "permits are %s until the state is restored", start)
	line("limits", "outcomes up to %s old move breakers; %d ids and %d metric series are kept; an answer waits %s for the disk",
		days(c.MaxAge), c.IDsMax, c.MetricsMaxSeries, days(c.AckTimeout))
}

func (c Config) describeDatabase() string {
	if c.DatabaseURL == "" {
		return "built-in Postgres in the data folder"
	}
	db, err := pgconn.ParseConfig(string(c.DatabaseURL))
	if err != nil {
		return "Postgres"
	}
	return fmt.Sprintf("Postgres %s at %s port %d, as %s", db.Database, db.Host, db.Port, db.User)
}

func describeMachine(name string, m breaker.Machine, health Secret) string {
	if m.Local {
		name += ", local"
	}
	if m.Provider != "" {
		name += ", provider " + m.Provider
	}
	if len(m.Aliases) > 0 {
		name += ", also called " + strings.Join(m.Aliases, ", ")
	}
	if health != "" {
		name += ", health check " + shownURL(health)
	}
	return name
}

// first names a line and leaves the ones after it blank.
func first(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}

func orWord(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func joined[T any](list []T, text func(T) string) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = text(v)
	}
	return strings.Join(words, ", ")
}

// describeRules prints the rules as a table whose cells are wrapped at spaces.
func describeRules(out *strings.Builder, rules []breaker.Rule) {
	rows := [][]string{{"RULE", "SCOPE", "FAILURES", "IGNORES", "TRIPS ON", "COOLDOWN", "PROBES"}}
	for _, rule := range rules {
		rule = rule.WithDefaults()
		rows = append(rows, []string{
			ruleName(rule), strings.Join(rule.Scope, ", "), strings.Join(rule.Failures, ", "),
			strings.Join(rule.Ignores, ", "), tripWords(rule), cooldownWords(rule.Cooldown), probeWords(rule),
		})
	}
	writeTable(out, rows, 14, 9, 20, 24, 26, 22, 12)
}

func describeGates(out *strings.Builder, gates []ingest.Gate) {
	rows := [][]string{{"MACHINE", "MODEL", "CHECKS"}}
	for _, gate := range gates {
		rows = append(rows, []string{orWord(gate.Machine, "*"), orWord(gate.Model, "*"), gateWords(gate)})
	}
	writeTable(out, rows, 20, 24, 70)
}

// gateWords lists a gate's checks in the order in which they run.
func gateWords(g ingest.Gate) string {
	var checks []string
	check := func(is bool, format string, args ...any) {
		if is {
			checks = append(checks, fmt.Sprintf(format, args...))
		}
	}
	check(g.MinChars > 0, "at least %d characters", g.MinChars)
	check(g.Schema != nil, "a JSON Schema")
	check(len(g.Required) > 0, "the fields %s", strings.Join(g.Required, ", "))
	check(len(g.Allowed) > 0, "allowed values of %s", strings.Join(sorted(g.Allowed), ", "))
	check(g.MinDurationMS > 0, "at least %d ms", g.MinDurationMS)
	if len(checks) == 0 {
		return "none"
	}
	text := strings.Join(checks, "; ")
	if len(g.Allow) > 0 {
		text += "; or just " + joined(g.Allow, strconv.Quote)
	}
	return text
}

// describeChains prints the chains by name, a row for each target.
func describeChains(out *strings.Builder, chains map[string]breaker.Chain) {
	rows := [][]string{{"CHAIN", "TARGET", "PROVIDER", "TIER", "CONTEXT", "TAGS", "NOTE"}}
	for _, name := range sorted(chains) {
		for i, t := range chains[name].Targets {
			target, tokens := t.Machine, ""
			if t.Model != "" {
				target += " " + t.Model
			}
			if t.Context > 0 {
				tokens = strconv.Itoa(t.Context)
			}
			rows = append(rows, []string{first(i, name), target, t.Provider, t.Tier, tokens, strings.Join(t.Tags, ", "), t.Note})
		}
	}
	writeTable(out, rows, 14, 32, 14, 8, 9, 20, 30)
	out.WriteString("\n")
	for _, name := range sorted(chains) {
		c := chains[name]
		fmt.Fprintf(out, "%s: max_hops %d; degraded for %s at most; never the same provider after %s\n",
			name, *c.MaxHops, c.DegradedFor, orWord(strings.Join(c.AvoidProviderAfter, ", "), "nothing"))
	}
}

// writeTable prints rows whose cells are wrapped at spaces to these widths.
func writeTable(out *strings.Builder, rows [][]string, widths ...int) {
	for _, row := range rows {
		cells, height := make([][]string, len(row)), 1
		for i, cell := range row {
			cells[i] = wrap(cell, widths[i])
			height = max(height, len(cells[i]))
		}
		for y := range height {
			var text strings.Builder
			for i, cell := range cells {
				part := ""
				if y < len(cell) {
					part = cell[y]
				}
				text.WriteString(part + strings.Repeat(" ", 2+max(0, widths[i]-utf8.RuneCountInString(part))))
			}
			out.WriteString(strings.TrimRight(text.String(), " ") + "\n")
		}
	}
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

func ruleName(r breaker.Rule) string {
	words := []string{r.Name}
	for _, m := range [][2]string{{"agent", r.Match.Agent}, {"machine", r.Match.Machine}, {"model", r.Match.Model}, {"provider", r.Match.Provider}} {
		if m[1] != "" {
			words = append(words, m[0]+"="+m[1])
		}
	}
	if r.Mode == breaker.ModeObserve {
		words = append(words, "(observe)")
	}
	if r.Alerts != breaker.AlertSound {
		words = append(words, "(alerts "+r.Alerts+")")
	}
	return strings.Join(words, " ")
}

func tripWords(r breaker.Rule) string {
	t := r.Trip
	var ways []string
	if t.Consecutive > 0 {
		ways = append(ways, strconv.Itoa(t.Consecutive)+" in a row")
	}
	if t.Rate > 0 {
		window := "the last " + t.Window.String()
		ways = append(ways, fmt.Sprintf("≥ %s of %s once %d are in", t.Rate, window, t.MinCalls))
	}
	if len(t.AtOnce) > 0 {
		ways = append(ways, strings.Join(t.AtOnce, " or ")+" at once")
	}
	if t.OnRetryAfter > 0 {
		ways = append(ways, "a Retry-After of "+t.OnRetryAfter.String()+" or more")
	}
	text := strings.Join(ways, ", or ")
	if t.Models > 1 {
		text += fmt.Sprintf("; of %d models", t.Models)
	}
	if t.Witnesses > 1 {
		text += fmt.Sprintf("; %d witnesses", t.Witnesses)
	}
	if slices.Contains(r.Failures, "slow") || slices.Contains(r.Failures, "latency") {
		text += "; slow is over " + r.SlowAfter.String()
	}
	if r.SlowFirstTokenAfter > 0 {
		text += "; a slow first token is over " + r.SlowFirstTokenAfter.String()
	}
	return text
}

func cooldownWords(c breaker.Cooldown) string {
	parts := []string{c.First.String()}
	if c.Factor > 1 {
		parts[0] += fmt.Sprintf(" ×%v up to %s", c.Factor, c.Max)
	}
	byWait := make(map[breaker.Duration][]string)
	for _, cause := range sorted(c.ByCause) {
		byWait[c.ByCause[cause]] = append(byWait[c.ByCause[cause]], cause)
	}
	for _, wait := range sorted(byWait) {
		parts = append(parts, strings.Join(byWait[wait], ", ")+" "+wait.String())
	}
	if c.Jitter > 0 {
		parts = append(parts, fmt.Sprintf("up to %v%% longer", c.Jitter*100))
	}
	return strings.Join(parts, "; ")
}

func probeWords(r breaker.Rule) string {
	if r.Concurrent > 1 {
		return fmt.Sprintf("%d, %d at once", r.Probes, r.Concurrent)
	}
	return strconv.Itoa(r.Probes)
}
