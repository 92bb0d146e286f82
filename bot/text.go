package bot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"breakerbot/breaker"
)

// Button is one key under a message. Data comes back when it is pressed.
type Button struct {
	Text string
	Data string // 1 to 64 bytes
}

// The actions in callback data, which reads version|action|reference.
const (
	dataVersion = "1"
	actionWhy   = "w"
	actionReset = "r" // asks first
	actionYes   = "y" // the reference is a confirmation's
	actionNo    = "n"
)

func callbackData(action, ref string) string {
	return dataVersion + "|" + action + "|" + ref
}

// machineDown is from how many breakers of one machine on a message speaks of
// the machine.
const machineDown = 3

// maxRows is how many breakers a message lists; Telegram formats about 100
// entities of a message, and a row has up to three.
const maxRows = 30

// wording renders messages. It is pure; its zone is that of printed times, which
// clients that know tg-time replace by the reader's own.
type wording struct {
	zone *time.Location
}

// rendered is a message before it is addressed to anybody.
type rendered struct {
	html    string
	buttons [][]Button
	closed  bool // everything it tells of is over
}

// trip tells of an alert as it stands now; edits of the message say it again.
// late is true for a first delivery: what is closed by then is told as a thing
// of the past.
func (w wording) trip(f AlertFacts, now time.Time, repeat, late bool) rendered {
	all, open := f.Incidents, openOf(f.Incidents)
	switch {
	case len(all) == 0:
		return rendered{html: headline("⚪", "GONE", Code("#"+breaker.Ref(f.Alert)), "", repeat) + "\nnothing is recorded of this alert any more", closed: true}
	case len(open) == 0:
		return w.closed(f, now, repeat, late)
	case len(open) < len(all):
		return w.partly(f, open, now, repeat)
	case len(all) >= machineDown:
		return w.down(f, now, repeat)
	}
	first := all[0]
	var rows []string
	rows = append(rows, headline("🔴", "OPEN", targetOf(all), f.ref(), repeat))
	if len(all) == 1 {
		rows = append(rows, w.why(first)...)
	} else {
		for _, inc := range all {
			rows = append(rows, "• "+rowName(inc)+" · "+Escape(reasonOf(inc)))
		}
	}
	facts := []string{"opened " + w.at(first.OpenedAt, now)}
	if next := nextProbe(f, now); next != "" {
		facts = append(facts, next)
	}
	if f.TripsToday > 0 && len(all) == 1 {
		facts = append(facts, ordinal(f.TripsToday)+" today")
	}
	rows = append(rows, strings.Join(facts, " · "))
	return w.finish(f, rows, false)
}

// down tells of a machine, or an account, as a whole.
func (w wording) down(f AlertFacts, now time.Time, repeat bool) rendered {
	all := f.Incidents
	state := "MACHINE DOWN"
	if all[0].Machine == "" {
		state = "PROVIDER DOWN"
	}
	first, last := span(all)
	rows := []string{
		headline("🔴", state, targetOf(all), f.ref(), repeat),
		fmt.Sprintf("%s: %d of %d breakers open within %s", kindOf(all), len(all), len(all), Span(max(last.Sub(first), time.Second))),
		"causes: " + spellCauses(causesOf(all), 4),
	}
	if ev := lastEvidence(all); ev != nil {
		rows = append(rows, lastWord(ev))
	}
	facts := []string{"opened " + w.at(first, now)}
	if next := nextProbe(f, now); next != "" {
		facts = append(facts, next)
	}
	rows = append(rows, strings.Join(facts, " · "))
	rows = append(rows, w.list(all, func(inc breaker.Incident) string { return Escape(reasonOf(inc)) })...)
	return w.finish(f, rows, false)
}

// partly tells of an alert of which something has recovered.
func (w wording) partly(f AlertFacts, open []breaker.Incident, now time.Time, repeat bool) rendered {
	all := f.Incidents
	first, _ := span(all)
	rows := []string{
		headline("🟠", "RECOVERING", targetOf(all), f.ref(), repeat),
		fmt.Sprintf("%s: %d of %d breakers still open", kindOf(open), len(open), len(all)),
		"causes: " + spellCauses(causesOf(all), 4),
		"opened " + w.at(first, now) + refusedPart(f.Refused),
	}
	rows = append(rows, w.list(all, func(inc breaker.Incident) string {
		if inc.ClosedAt.IsZero() {
			return "🔴 " + Escape(reasonOf(inc))
		}
		return "🟢 closed " + w.at(inc.ClosedAt, now)
	})...)
	return w.finish(f, rows, false)
}

// closed tells that all of it is over.
func (w wording) closed(f AlertFacts, now time.Time, repeat, late bool) rendered {
	all := f.Incidents
	from, _ := span(all)
	until := all[0].ClosedAt
	for _, inc := range all {
		if inc.ClosedAt.After(until) {
			until = inc.ClosedAt
		}
	}
	open := fmt.Sprintf("open %s–%s (%s)", w.at(from, now), w.at(until, now), Span(until.Sub(from)))
	if len(all) > 1 {
		open = fmt.Sprintf("%d breakers · %s", len(all), open)
	}
	cause := "cause: " + spellCauses(causesOf(all), 4)
	if len(causesOf(all)) == 0 {
		cause = "cause: " + Escape(reasonOf(all[0]))
	}
	switch {
	case len(all) > 1:
	case f.ClosedByProbe > 0:
		cause += " · closed by probe " + strconv.Itoa(f.ClosedByProbe)
	default:
		cause += " · closed by hand"
	}
	rows := []string{
		headline("🟢", "CLOSED", targetOf(all), f.ref(), repeat),
		open + refusedPart(f.Refused),
		cause,
	}
	if late {
		rows = append(rows, "it was over before this could be delivered")
	}
	if len(all) > 1 {
		rows = append(rows, w.list(all, func(inc breaker.Incident) string {
			return w.at(inc.OpenedAt, now) + "–" + w.at(inc.ClosedAt, now)
		})...)
	}
	return w.finish(f, rows, true)
}

// longOpen reminds of an alert that is still open after a step.
func (w wording) longOpen(f AlertFacts, step time.Duration, now time.Time, repeat bool) rendered {
	open := openOf(f.Incidents)
	if len(open) == 0 {
		return w.trip(f, now, repeat, false)
	}
	first, _ := span(open)
	rows := []string{headline("⏰", "STILL OPEN "+Span(step), targetOf(f.Incidents), f.ref(), repeat)}
	if len(f.Incidents) > 1 {
		rows = append(rows, fmt.Sprintf("%s: %d of %d breakers still open", kindOf(open), len(open), len(f.Incidents)))
	}
	switch {
	case f.ProbesFailed == 0 && f.Refused == 0:
		rows = append(rows, "no probe has been tried: nobody has called")
	case f.ProbesFailed == 0:
		rows = append(rows, "no probe has reported back yet")
	case f.LastProbeAt.IsZero():
		rows = append(rows, count(f.ProbesFailed, "probe")+" failed")
	default:
		row := count(f.ProbesFailed, "probe") + " failed, last " + Span(now.Sub(f.LastProbeAt)) + " ago"
		if f.LastProbe != 0 {
			row += ": " + f.LastProbe.String()
		}
		rows = append(rows, row)
	}
	facts := []string{"refused calls " + thousands(f.Refused)}
	if f.Agents > 0 {
		facts = append(facts, count(f.Agents, "agent"))
	}
	if f.Rerouted > 0 {
		facts = append(facts, thousands(f.Rerouted)+" rerouted")
	}
	rows = append(rows, strings.Join(facts, " · "), "open since "+w.at(first, now)+" · cause: "+spellCauses(causesOf(open), 3))
	if len(open) > 1 {
		rows = append(rows, w.list(open, func(inc breaker.Incident) string {
			return Escape(reasonOf(inc)) + " · since " + w.at(inc.OpenedAt, now)
		})...)
	}
	return w.finish(f, rows, false)
}

func (w wording) finish(f AlertFacts, rows []string, closed bool) rendered {
	ref := breaker.Ref(f.Alert)
	keys := []Button{{"Why", callbackData(actionWhy, ref)}}
	if !closed {
		keys = append(keys, Button{"Reset…", callbackData(actionReset, ref)})
	}
	return rendered{html: Shorten(strings.Join(rows, "\n"), MaxText), buttons: [][]Button{keys}, closed: closed}
}

// why is what one breaker saw when it tripped.
func (w wording) why(inc breaker.Incident) []string {
	rows := []string{Escape(reasonOf(inc))}
	if inc.Evidence != nil {
		if last := lastWord(inc.Evidence); last != "" {
			rows = append(rows, last)
		}
	}
	return rows
}

// list names the breakers in a folded quotation.
func (w wording) list(incidents []breaker.Incident, say func(breaker.Incident) string) []string {
	var rows []string
	for i, inc := range incidents {
		if i == maxRows {
			rows = append(rows, fmt.Sprintf("+%d more", len(incidents)-i))
			break
		}
		rows = append(rows, rowName(inc)+" · "+say(inc))
	}
	rows[0] = "<blockquote expandable>" + rows[0]
	rows[len(rows)-1] += "</blockquote>"
	return rows
}

// at prints a moment: the time of day, with the date when it is another day's.
func (w wording) at(t, now time.Time) string {
	if t.IsZero() {
		return "?"
	}
	local, today := t.In(w.zone), now.In(w.zone)
	format, layout := "t", "15:04"
	if local.YearDay() != today.YearDay() || local.Year() != today.Year() {
		format, layout = "dt", "2 Jan 15:04"
	}
	return fmt.Sprintf(`<tg-time unix="%d" format="%s">%s</tg-time>`, t.Unix(), format, local.Format(layout))
}

func (f AlertFacts) ref() string { return breaker.Ref(f.Alert) }

func headline(icon, state, target, ref string, repeat bool) string {
	s := icon + " <b>" + Escape(state) + "</b>  " + target
	if ref != "" {
		s += "   #" + ref
	}
	if repeat {
		s += "   (repeat)"
	}
	return s
}

// Code sets a name in a fixed-width face, escaped.
func Code(name string) string { return "<code>" + Escape(name) + "</code>" }

// Target names what a breaker stands for, its labels joined by arrows: the
// account only where there is no machine.
func Target(l breaker.Labels) string {
	var parts []string
	if l.Agent != "" {
		parts = append(parts, Code(l.Agent))
	}
	switch {
	case l.Machine != "":
		parts = append(parts, Code(l.Machine))
	case l.Provider != "":
		parts = append(parts, Code(l.Provider))
	}
	if l.Model != "" {
		parts = append(parts, Code(l.Model))
	}
	if len(parts) == 0 {
		return "everything"
	}
	return strings.Join(parts, " → ")
}

// targetOf names what an alert is about: its only breaker's target, or what its
// breakers have in common.
func targetOf(all []breaker.Incident) string {
	common := all[0].Labels
	for _, inc := range all[1:] {
		if inc.Machine != common.Machine {
			common.Machine = ""
		}
		if inc.Model != common.Model {
			common.Model = ""
		}
		if inc.Provider != common.Provider {
			common.Provider = ""
		}
		if inc.Agent != common.Agent {
			common.Agent = ""
		}
	}
	return Target(common)
}

// rowName is a breaker's name within its machine: the model and the rule.
func rowName(inc breaker.Incident) string {
	if inc.Model != "" {
		return Code(inc.Model) + " " + Escape(inc.Rule)
	}
	return Escape(inc.Rule)
}

func reasonOf(inc breaker.Incident) string {
	if inc.Detail != "" {
		return inc.Detail
	}
	causes := inc.Causes
	ev := inc.Evidence
	if len(causes) == 0 && ev != nil {
		causes = ev.Causes
	}
	spelled := spellCauses(causes, 4)
	switch {
	case ev != nil && ev.Run > 1:
		return fmt.Sprintf("%d calls in a row failed: %s", ev.Run, spelled)
	case ev != nil && ev.Calls > 0:
		return fmt.Sprintf("%d of %d calls failed: %s", ev.Failures, ev.Calls, spelled)
	case spelled != "":
		return spelled
	}
	return "tripped"
}

// lastWord quotes the last failure: last (coder-1): "connection refused". One
// that was no agent's call, such as a health check's, is an error alone.
func lastWord(ev *breaker.Evidence) string {
	who, what := "", "error"
	if ev.Agent != "" {
		who, what = " ("+Escape(ev.Agent)+")", "last"
	}
	switch {
	case ev.Error != "":
		return what + who + `: "` + Escape(cut(strings.Join(strings.Fields(ev.Error), " "), 200)) + `"`
	case ev.HTTPStatus != 0:
		return "last" + who + ": HTTP " + strconv.Itoa(ev.HTTPStatus)
	case ev.Agent != "" && ev.Duration > 0:
		return "last" + who + " after " + Span(ev.Duration)
	}
	return ""
}

func lastEvidence(all []breaker.Incident) *breaker.Evidence {
	for _, inc := range slices.Backward(all) {
		if inc.Evidence != nil && lastWord(inc.Evidence) != "" {
			return inc.Evidence
		}
	}
	return nil
}

func cut(s string, limit int) string {
	r := []rune(s)
	if len(r) <= limit {
		return s
	}
	return string(r[:limit-1]) + "…"
}

func openOf(all []breaker.Incident) []breaker.Incident {
	var open []breaker.Incident
	for _, inc := range all {
		if inc.ClosedAt.IsZero() {
			open = append(open, inc)
		}
	}
	return open
}

// span is the time of the first and of the last trip.
func span(all []breaker.Incident) (first, last time.Time) {
	first, last = all[0].OpenedAt, all[0].OpenedAt
	for _, inc := range all[1:] {
		if inc.OpenedAt.Before(first) {
			first = inc.OpenedAt
		}
		if inc.OpenedAt.After(last) {
			last = inc.OpenedAt
		}
	}
	return first, last
}

// causesOf sums up the causes of incidents, most frequent first. A call is seen
// by several rules, so the sums are taken by rule and the largest counts.
func causesOf(all []breaker.Incident) []breaker.CauseCount {
	byRule := make(map[string]map[breaker.Cause]int)
	for _, inc := range all {
		causes := inc.Causes
		if len(causes) == 0 && inc.Evidence != nil {
			causes = inc.Evidence.Causes
		}
		for _, c := range causes {
			if byRule[inc.Rule] == nil {
				byRule[inc.Rule] = make(map[breaker.Cause]int)
			}
			byRule[inc.Rule][c.Cause] += c.N
		}
	}
	most := make(map[breaker.Cause]int)
	for _, causes := range byRule {
		for cause, n := range causes {
			most[cause] = max(most[cause], n)
		}
	}
	var list []breaker.CauseCount
	for cause, n := range most {
		list = append(list, breaker.CauseCount{Cause: cause, N: n})
	}
	slices.SortFunc(list, func(x, y breaker.CauseCount) int {
		return cmp.Or(cmp.Compare(y.N, x.N), cmp.Compare(x.Cause, y.Cause))
	})
	return list
}

// spellCauses writes "refused ×2, timeout", the first few of them.
func spellCauses(causes []breaker.CauseCount, limit int) string {
	var parts []string
	for i, c := range causes {
		if i == limit {
			parts = append(parts, fmt.Sprintf("+%d more", len(causes)-i))
			break
		}
		word := c.Cause.String()
		if c.N > 1 {
			word += " ×" + thousands(c.N)
		}
		parts = append(parts, word)
	}
	return strings.Join(parts, ", ")
}

// The kinds of outage, in the order in which a tie is broken.
var outageKinds = [...]string{"unreachable", "hung", "erroring", "slow", "garbage", "limited"}

// kindOf names the kind of outage that most of the causes speak for.
func kindOf(all []breaker.Incident) string {
	var votes [len(outageKinds)]int
	for _, c := range causesOf(all) {
		votes[outageKind(c.Cause)] += max(c.N, 1)
	}
	best := slices.Max(votes[:])
	if best == 0 {
		return "open"
	}
	return outageKinds[slices.Index(votes[:], best)]
}

func outageKind(c breaker.Cause) int {
	switch c {
	case breaker.Refused, breaker.Unreachable, breaker.ConnectTimeout, breaker.TLS:
		return 0
	case breaker.Timeout, breaker.Stalled, breaker.GatewayTimeout:
		return 1
	}
	switch c.Class() {
	case breaker.ClassLatency:
		return 3
	case breaker.ClassQuality:
		return 4
	case breaker.ClassCapacity, breaker.ClassAccess:
		if c == breaker.ModelMissing {
			return 2
		}
		return 5
	}
	return 2
}

func nextProbe(f AlertFacts, now time.Time) string {
	switch {
	case f.NextProbeAt.IsZero():
		return ""
	case f.NextProbeAt.After(now):
		return "next probe in " + Span(f.NextProbeAt.Sub(now))
	}
	return "a probe is due"
}

func refusedPart(n int) string {
	if n == 0 {
		return ""
	}
	return " · " + thousands(n) + " refused"
}

// Span writes a duration for people, in at most two units: 20 s, 17 min,
// 1 h 5 min, 2 d 3 h.
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second && d > 0:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d <= time.Minute:
		return strconv.Itoa(int(d.Round(time.Second)/time.Second)) + " s"
	case d < time.Hour:
		m, s := int(d/time.Minute), int(d%time.Minute/time.Second)
		if s != 0 && m < 10 {
			return fmt.Sprintf("%d min %d s", m, s)
		}
		return strconv.Itoa(m) + " min"
	case d < 48*time.Hour:
		return twoUnits(int(d/time.Hour), "h", int(d%time.Hour/time.Minute), "min")
	}
	return twoUnits(int(d/(24*time.Hour)), "d", int(d%(24*time.Hour)/time.Hour), "h")
}

func twoUnits(a int, unit string, b int, small string) string {
	if b == 0 {
		return fmt.Sprintf("%d %s", a, unit)
	}
	return fmt.Sprintf("%d %s %d %s", a, unit, b, small)
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return thousands(n) + " " + noun
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return thousands(n) + suffix
}
