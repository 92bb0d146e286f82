package digest

import (
	"fmt"
	"strings"
)

// maxText is how long a text becomes: Telegram takes 4096 characters after the
// tags are parsed, and a repeat gets a mark in front.
const maxText = 4000

// maxSource is the same for the text with its tags, in bytes, of which Telegram
// takes 32,768.
const maxSource = 30000

// rowLimits are how many rows of each section a text shows.
type rowLimits struct{ machines, models, accounts, agents, incidents int }

// shrink takes a row from the section that can best spare one; false when
// nothing but the headline and the worst machine is left.
func (l *rowLimits) shrink() bool {
	for _, s := range []struct {
		rows *int
		keep int
	}{
		{&l.incidents, 3}, {&l.agents, 1}, {&l.accounts, 1}, {&l.models, 3}, {&l.machines, 3},
		{&l.incidents, 0}, {&l.agents, 0}, {&l.accounts, 0}, {&l.models, 0}, {&l.machines, 1},
	} {
		if *s.rows > s.keep {
			*s.rows--
			return true
		}
	}
	return false
}

// Text is the report as a Telegram message in HTML mode, within the length of
// one message: sections lose whole rows until it fits and say how many. A quiet
// day, and a day of which nothing is known, is one line.
func Text(r Report) string {
	if r.Quiet || r.NoData {
		return r.oneLine()
	}
	limits := rowLimits{machines: 6, models: 6, accounts: 4, agents: 3, incidents: 12}
	for {
		text := r.render(limits)
		if fits(text) || !limits.shrink() {
			return text
		}
	}
}

// Ranking is the text of the machines and models alone, as /top shows it.
func Ranking(r Report) string {
	day, times := r.label()
	head := fmt.Sprintf("🏆 <b>Flakiest %s</b> · %s %s (%s)", day, times, esc(r.Zone), r.length())
	limits := rowLimits{machines: 10, models: 10, accounts: 5}
	for {
		sections := r.sections(limits)
		switch {
		case r.NoData:
			sections = []string{"No data: nobody reported a call in this time."}
		case len(sections) == 0:
			sections = []string{"Nothing tripped, and nothing fails in more than 1 % of its calls."}
		}
		text := strings.Join(append([]string{head + r.sinceText()}, sections...), "\n\n")
		if fits(text) || !limits.shrink() {
			return text
		}
	}
}

func fits(text string) bool { return len(text) <= maxSource && parsedLen(text) <= maxText }

// parsedLen counts what is left when the tags are gone and entities are one
// character each, which is what Telegram limits.
func parsedLen(text string) int {
	n, tag, entity := 0, false, false
	for _, r := range text {
		switch {
		case tag:
			tag = r != '>'
		case entity:
			entity = r != ';'
		case r == '<':
			tag = true
		default:
			entity = r == '&'
			n++
		}
	}
	return n
}

// oneLine is the proof of life of a day without trips.
func (r Report) oneLine() string {
	day, times := r.label()
	where := fmt.Sprintf("%s · %s %s (%s)", day, times, esc(r.Zone), r.length())
	if r.NoData {
		why := "nobody reported a call, which is not the same as no trips"
		if r.Totals.Calls == 0 && r.HistoryFrom.IsZero() && r.TotalsBefore != nil && r.TotalsBefore.Calls > 0 {
			why = "nobody reported a call (" + number(r.TotalsBefore.Calls) + " in the time before): not the same as no trips"
		}
		return "⚪ <b>No data</b> " + where + ": " + why + r.lateText()
	}
	t := r.Totals
	parts := []string{"no trips in " + counted(t.Calls, "call")}
	if t.Failed > 0 {
		parts = append(parts, number(t.Failed)+" failed")
	}
	if t.Degraded > 0 {
		parts = append(parts, counted(t.Degraded, "degraded turn"))
	}
	for _, row := range append(r.Machines[:min(1, len(r.Machines)):1], r.Models[:min(1, len(r.Models))]...) {
		if row.NearMiss {
			parts = append(parts, fmt.Sprintf("weakest %s: %s failed", code(row.Name), percent(row.FailureRate)))
			break
		}
	}
	return "🟢 <b>Quiet</b> " + where + ": " + strings.Join(parts, " · ") + r.sinceText() + r.lateText()
}

// lateText admits a digest that comes late, in the line that it is added to.
func (r Report) lateText() string {
	if r.LateBy == 0 {
		return ""
	}
	return fmt.Sprintf(" · ⏰ %s late", r.LateBy)
}

// sinceText says when only a part of the window is known.
func (r Report) sinceText() string {
	if r.HistoryFrom.IsZero() {
		return ""
	}
	return " · history begins " + r.when(r.HistoryFrom)
}

// render writes the message with so many rows.
func (r Report) render(l rowLimits) string {
	day, times := r.label()
	parts := []string{
		fmt.Sprintf("🗞 <b>Digest %s</b> · %s %s (%s)", day, times, esc(r.Zone), r.length()) + r.sinceText() + r.lateText() +
			"\n\n" + strings.Join(r.summary(), "\n"),
	}
	parts = append(parts, r.sections(l)...)
	if text := r.agentText(l.agents); text != "" {
		parts = append(parts, text)
	}
	if text := r.incidentText(l.incidents); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n\n")
}

// summary says in a few lines what happened, the worst first.
func (r Report) summary() []string {
	t := r.Totals
	var lines []string
	lines = append(lines, r.happened())
	if worst, ok := r.worst(); ok {
		lines = append(lines, "Worst: "+worst)
	}
	lines = append(lines, r.openNow()...)
	if t.Calls > 0 {
		line := counted(t.Calls, "call")
		if t.Failed > 0 {
			line += fmt.Sprintf(", %s failed", number(t.Failed))
			if t.WaitingSpent > 0 {
				line += fmt.Sprintf(" (%s of waiting)", t.WaitingSpent)
			}
		}
		lines = append(lines, line)
	} else {
		lines = append(lines, "No calls were reported")
	}
	if t.Refused > 0 {
		line := number(t.Refused) + " refused at once"
		if t.WaitingSaved > 0 {
			line += fmt.Sprintf(" ≈ %s of waiting saved", t.WaitingSaved)
		}
		lines = append(lines, line)
	}
	var served []string
	for _, s := range []struct {
		n    int64
		word string
	}{{t.Rerouted, "rerouted"}, {t.Cached, "from cache"}, {t.Degraded, "degraded"}, {t.Rejected, "given up"}} {
		if s.n > 0 {
			served = append(served, number(s.n)+" "+s.word)
		}
	}
	if len(served) > 0 {
		lines = append(lines, strings.Join(served, " · "))
	}
	if r.Undelivered > 0 {
		lines = append(lines, fmt.Sprintf("⚠️ %s of this time reached no chat", counted(r.Undelivered, "alert")))
	}
	return lines
}

// happened is the first line: outages, or trips where no machine had any.
func (r Report) happened() string {
	t := r.Totals
	machines, carried := 0, t.CarriedOutages
	for _, row := range r.Machines {
		machines += btoi(row.outages > 0)
	}
	var line string
	switch {
	case t.Outages > 0 && carried > 0:
		line = fmt.Sprintf("<b>%s, %s from before</b> on %s", counted(t.Outages, "new outage"), number(int64(carried)), counted(machines, "machine"))
	case t.Outages > 0:
		line = fmt.Sprintf("<b>%s on %s</b>", counted(t.Outages, "outage"), counted(machines, "machine"))
	case carried > 0:
		line = fmt.Sprintf("<b>No new outage, %s from before</b>", number(int64(carried)))
	case t.Trips+t.Carried > 0:
		line = fmt.Sprintf("<b>%s, no outage</b>", counted(t.Trips+t.Carried, "trip"))
	default:
		line = "<b>No trips</b>"
	}
	if t.OpenTime > 0 {
		line += fmt.Sprintf(" · %s open", t.OpenTime)
	}
	if b := r.TotalsBefore; b != nil {
		was := b.Trips + b.Carried
		if outages := b.Outages + b.CarriedOutages; outages+t.Outages+carried > 0 {
			was = outages
		}
		switch {
		case was > 0:
			line += fmt.Sprintf(" (before: %s · %s)", number(int64(was)), b.OpenTime)
		case t.Trips+t.Carried > 0:
			line += " (before: none)"
		}
	}
	return line
}

// worst names what stands first in the rankings, and why.
func (r Report) worst() (string, bool) {
	for _, list := range [][]Row{r.Machines, r.Models, r.Accounts} {
		if len(list) > 0 && list[0].begun > 0 {
			row := list[0]
			name := code(row.Name)
			if row.Machine != "" {
				name = code(row.Machine) + " → " + name
			}
			return name + " " + esc(row.reason(2)), true
		}
	}
	return "", false
}

// openNow lists the incidents that last, the oldest first.
func (r Report) openNow() []string {
	const most = 3
	var lines []string
	n := 0
	for _, in := range r.Incidents {
		if !in.StillOpen {
			continue
		}
		if n++; n <= most {
			lines = append(lines, fmt.Sprintf("🔴 still open: %s since %s (%s) #%s",
				in.subject(), r.when(in.OpenedAt), span(r.GeneratedAt.Sub(in.OpenedAt)), in.Ref))
		}
	}
	if n > most {
		lines = append(lines, fmt.Sprintf("🔴 +%s still open", number(int64(n-most))))
	}
	return lines
}

// subject is what an incident is about, as alerts name it.
func (in IncidentRow) subject() string {
	var names []string
	for _, name := range []string{in.Agent, in.Provider, in.Machine, in.Model} {
		// The provider of most machines is the machine.
		if name != "" && (name != in.Provider || len(names) == 0 || names[len(names)-1] != code(name)) {
			names = append(names, code(name))
		}
	}
	if len(names) == 0 {
		return code(in.Breaker)
	}
	return strings.Join(names, " → ")
}

// sections are the rankings, each a heading and a block of fixed width.
func (r Report) sections(l rowLimits) []string {
	var list []string
	for _, s := range []struct {
		title, noun string
		rows        []Row
		most        int
	}{
		{"Machines", "outage", r.Machines, l.machines},
		{"Models", "trip", r.Models, l.models},
		{"Accounts", "trip", r.Accounts, l.accounts},
	} {
		var flaky []Row
		for _, row := range s.rows {
			if row.Flaky() {
				flaky = append(flaky, row)
			}
		}
		if len(flaky) == 0 {
			continue
		}
		text := "<b>" + s.title + "</b>"
		if s.most <= 0 {
			list = append(list, text+fmt.Sprintf(": %s, see /top", number(int64(len(flaky)))))
			continue
		}
		var lines []string
		for _, row := range flaky[:min(s.most, len(flaky))] {
			lines = append(lines, row.lines(s.noun)...)
		}
		if more := len(flaky) - s.most; more > 0 {
			lines = append(lines, fmt.Sprintf("+%s more", number(int64(more))))
		}
		list = append(list, text+"\n<pre>"+esc(strings.Join(lines, "\n"))+"</pre>")
	}
	return list
}

// lines writes a row in the columns of a phone: name and change, what happened,
// why, and what share of the calls failed.
func (r Row) lines(noun string) []string {
	rank := fmt.Sprintf("%d ", r.Rank)
	indent := strings.Repeat(" ", len(rank))
	change := r.Change.mark(noun)
	first := rank + fit(r.Name, columns-len(rank))
	var facts []string
	switch room := columns - cellsOf(first) - cellsOf(change); {
	case change == "":
	case room > 0:
		first += strings.Repeat(" ", room) + change
	default: // a long name needs its line for itself
		facts = append(facts, change)
	}
	n := r.Trips
	if noun == "outage" {
		n = r.Outages
	}
	if n > 0 {
		facts = append(facts, counted(n, noun))
	}
	if r.Carried > 0 {
		facts = append(facts, number(int64(r.Carried))+" from before")
	}
	if r.OpenTime > 0 || r.begun > 0 {
		facts = append(facts, r.OpenTime.String())
	}
	if r.StillOpen {
		facts = append(facts, "still open")
	}
	if r.NearMiss {
		facts = append(facts, "no "+noun)
	}
	if r.Machine != "" {
		facts = append(facts, "on "+fit(r.Machine, columns-len(indent)-3))
	}
	lines := append([]string{first}, flow(facts, " · ", indent)...)

	var why []string
	kinds := r.kinds
	if r.plainKind() {
		kinds = nil
	}
	for i, k := range kinds[:min(3, len(kinds))] {
		word := string(k)
		if i > 0 {
			word = "+ " + word
		}
		why = append(why, word)
	}
	if len(r.why) > 0 && len(why) > 0 {
		why[len(why)-1] += ":"
	}
	for i, c := range r.why[:min(3, len(r.why))] {
		word := causeWord(c)
		if i+1 < min(3, len(r.why)) {
			word += ","
		}
		why = append(why, word)
	}
	lines = append(lines, flow(why, " ", indent)...)
	if r.Failed > 0 && r.Judged >= MinCalls {
		lines = append(lines, flow([]string{
			number(r.Failed) + " of " + number(r.Judged), "failed", "(" + percent(r.FailureRate) + ")",
		}, " ", indent)...)
	}
	return lines
}

// flow sets pieces into lines of the phone's width, breaking only between them.
func flow(pieces []string, sep, indent string) []string {
	var lines []string
	for _, p := range pieces {
		if n := len(lines); n > 0 && cellsOf(lines[n-1])+cellsOf(sep)+cellsOf(p) <= columns {
			lines[n-1] += sep + p
			continue
		}
		lines = append(lines, indent+p)
	}
	return lines
}

// mark shows a change in a few columns: ▲ is worse. It is empty where nothing
// changed by a minute, or nothing is known.
func (c *Change) mark(noun string) string {
	if c == nil {
		return ""
	}
	n := c.Trips
	if noun == "outage" {
		n = c.Outages
	}
	const minute = 60e9
	switch {
	case n > 0:
		return "▲ +" + number(int64(n))
	case n < 0:
		return "▼ " + number(int64(n))
	case c.OpenTime >= minute:
		return "▲ +" + c.OpenTime.String()
	case c.OpenTime <= -minute:
		return "▼ " + c.OpenTime.String()
	}
	return ""
}

// agentText lists the callers' own faults.
func (r Report) agentText(most int) string {
	if len(r.Agents) == 0 || most <= 0 {
		return ""
	}
	lines := []string{"<b>Agents' own faults</b> (held against nobody else)"}
	for _, a := range r.Agents[:min(most, len(r.Agents))] {
		line := code(a.Name) + " " + number(a.Faults) + " of " + counted(a.Calls, "call")
		if a.Trips > 0 {
			line += ", " + counted(a.Trips, "trip")
		}
		if list := causeList(a.Causes, 3); list != "" {
			line += ": " + esc(list)
		}
		lines = append(lines, line)
	}
	if more := len(r.Agents) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("+%s more", number(int64(more))))
	}
	return strings.Join(lines, "\n")
}

// incidentText lists what tripped, when, how long and why, folded away.
func (r Report) incidentText(most int) string {
	if len(r.Incidents) == 0 || most <= 0 {
		return ""
	}
	lines := []string{"<b>What tripped</b>"}
	// The longest list is kept readable by leaving out the oldest: the newest are
	// those that one still can do something about.
	from := max(0, len(r.Incidents)-most)
	if from > 0 {
		lines = append(lines, fmt.Sprintf("+%s earlier", number(int64(from))))
	}
	for _, in := range r.Incidents[from:] {
		lines = append(lines, r.incidentLine(in))
	}
	return "<blockquote expandable>" + strings.Join(lines, "\n") + "</blockquote>"
}

func (r Report) incidentLine(in IncidentRow) string {
	var b strings.Builder
	b.WriteString(r.when(in.OpenedAt))
	switch {
	case in.StillOpen:
		b.WriteString(" still open")
	case daysBetween(in.OpenedAt, in.ClosedAt) == 0:
		b.WriteString("–" + in.ClosedAt.Format("15:04"))
	case strings.Contains(r.when(in.OpenedAt), " "):
		b.WriteString(" – " + in.ClosedAt.Format("Mon 15:04"))
	default:
		b.WriteString("–" + r.when(in.ClosedAt))
	}
	b.WriteString(" (" + in.OpenTime.String())
	if in.Carried || in.ClosedAt.After(r.Window.To) {
		b.WriteString(" of it in this window")
	}
	fmt.Fprintf(&b, ") %s %s", in.subject(), esc(string(in.Kind)))
	if why := strings.TrimSpace(in.Why); why != "" {
		b.WriteString(": " + esc(sentence(why, 140)))
	}
	if in.Refused > 0 {
		b.WriteString(" · " + number(int64(in.Refused)) + " refused")
	}
	if in.Blame == blameMachine && in.Model != "" {
		b.WriteString(" · with its machine")
	}
	return b.String()
}
