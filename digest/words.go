package digest

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/bidi"
	"golang.org/x/text/width"
)

// columns is how many characters of a <pre> block a phone shows in one line.
const columns = 34

// maxMarks is how many combining marks in a row a name keeps: enough for every
// language, too few to climb over the lines above.
const maxMarks = 2

// clean makes a text from outside fit for one line: invisible characters go,
// those that turn the direction of writing first, any white space is one space,
// and a text with letters that run from right to left is isolated, so that it
// cannot rearrange the numbers beside it.
func clean(s string) string {
	var b strings.Builder
	marks, rtl, gap := 0, false, false
	for _, r := range strings.ToValidUTF8(s, "�") {
		switch {
		case unicode.IsSpace(r):
			gap = b.Len() > 0
			continue
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp):
			continue
		case unicode.In(r, unicode.Mn, unicode.Me):
			if marks++; marks > maxMarks {
				continue
			}
		default:
			marks = 0
		}
		if p, _ := bidi.LookupRune(r); p.Class() == bidi.R || p.Class() == bidi.AL {
			rtl = true
		}
		if gap {
			b.WriteByte(' ')
			gap = false
		}
		b.WriteRune(r)
	}
	switch {
	case b.Len() == 0:
		return "?"
	case rtl:
		return "\u2068" + b.String() + "\u2069"
	}
	return b.String()
}

// cells is how many columns a character takes.
func cells(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case width.LookupRune(r).Kind() == width.EastAsianWide, width.LookupRune(r).Kind() == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

func cellsOf(s string) int {
	n := 0
	for _, r := range s {
		n += cells(r)
	}
	return n
}

// fit cleans a name and leaves out its middle when it takes more than so many
// columns: names of models differ at their ends.
func fit(name string, most int) string {
	name = clean(name)
	if cellsOf(name) <= most {
		return name
	}
	inner, isolated := strings.CutPrefix(name, "\u2068")
	inner = strings.TrimSuffix(inner, "\u2069")
	runes := []rune(inner)
	// The end is a third.
	tail, left := len(runes), (most-1)/3
	for tail > 0 && cells(runes[tail-1]) <= left {
		tail--
		left -= cells(runes[tail])
	}
	head, left := 0, most-1-cellsOf(string(runes[tail:]))
	for head < tail && cells(runes[head]) <= left {
		left -= cells(runes[head])
		head++
	}
	short := string(runes[:head]) + "…" + string(runes[tail:])
	if isolated {
		return "\u2068" + short + "\u2069"
	}
	return short
}

// sentence cleans a text of several words and leaves out its end.
func sentence(s string, most int) string {
	s = clean(s)
	inner, isolated := strings.CutPrefix(s, "\u2068")
	inner = strings.TrimSuffix(inner, "\u2069")
	runes := []rune(inner)
	if len(runes) <= most {
		return s
	}
	short := strings.TrimRight(string(runes[:most-1]), " ") + "…"
	if isolated {
		return "\u2068" + short + "\u2069"
	}
	return short
}

func esc(s string) string { return html.EscapeString(s) }

// code is a name as Telegram shows names.
func code(name string) string { return "<code>" + esc(fit(name, 40)) + "</code>" }

// span writes a time as its two largest units: 2 d 3 h, 1 h 12 m, 45 s.
func span(d time.Duration) string {
	pair := func(a time.Duration, unitA string, b time.Duration, unitB string) string {
		if b == 0 {
			return fmt.Sprintf("%s %s", number(int64(a)), unitA)
		}
		return fmt.Sprintf("%s %s %d %s", number(int64(a)), unitA, b, unitB)
	}
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "−" + span(-d)
	case d == 0:
		return "0 s"
	case d < time.Second:
		return "under 1 s"
	case d < time.Minute:
		return pair(d/time.Second, "s", 0, "")
	case d < 10*time.Minute:
		return pair(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	case d < time.Hour:
		return pair(d/time.Minute, "m", 0, "")
	case d < 2*day:
		return pair(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	default:
		return pair(d/day, "d", d%day/time.Hour, "h")
	}
}

// number groups thousands: 1,204.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// counted writes a number with its noun, the plural made by adding s.
func counted[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(int64(n)) + " " + noun + "s"
}

// percent writes a share with two significant digits, and no 0 or 100 that is
// none.
func percent(share float64) string {
	p := share * 100
	switch {
	case p <= 0:
		return "0 %"
	case p < 0.1:
		return "<0.1 %"
	case p < 9.95:
		return strconv.FormatFloat(p, 'f', 1, 64) + " %"
	case p > 99 && p < 100:
		return ">99 %"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
}

// label names the span of a window for people: the day and its two times, or
// two dates with their times when it is longer than a day.
func (r Report) label() (day, times string) {
	from, to := r.Window.From, r.Window.To
	dated := func(t time.Time, layout string) string {
		if t.Year() != r.GeneratedAt.Year() {
			layout += " 2006"
		}
		return t.Format(layout)
	}
	const date, clock = "Mon 2 Jan", "15:04"
	days := daysBetween(from, to)
	switch {
	case days == 1 && from.Format(clock) == "00:00" && to.Format(clock) == "00:00":
		return dated(from, date), "00:00–24:00"
	case r.Edition == EditionDaily && days == 1:
		return dated(to, date), from.Format(clock) + "–" + to.Format(clock)
	case r.Edition == EditionDaily:
		return dated(to, date), dated(from, date) + " " + from.Format(clock) + " – " + dated(to, date) + " " + to.Format(clock)
	case days == 0:
		return dated(to, date), from.Format(clock) + "–" + to.Format(clock)
	default:
		return dated(from, date) + " – " + dated(to, date), from.Format(clock) + "–" + to.Format(clock)
	}
}

// length is how long the window is: in hours up to two days, so that days of 23
// and 25 hours show, then in days.
func (r Report) length() string {
	d := r.Window.To.Sub(r.Window.From)
	days := daysBetween(r.Window.From, r.Window.To)
	if days >= 2 && r.Window.From.Format("15:04") == r.Window.To.Format("15:04") {
		return strconv.Itoa(days) + " d"
	}
	if d%time.Hour == 0 && d < 72*time.Hour {
		return number(int64(d/time.Hour)) + " h"
	}
	return span(d)
}

// daysBetween counts the midnights between two moments, by their own clock.
func daysBetween(from, to time.Time) int {
	return int(date(to).Sub(date(from)) / (24 * time.Hour))
}

// when writes a moment of the window: its time, with its weekday where the
// window is longer than a day and a bit.
func (r Report) when(t time.Time) string {
	switch d := r.Window.To.Sub(r.Window.From); {
	case t.Before(r.Window.From.Add(-6*24*time.Hour)) || d > 7*24*time.Hour:
		return t.Format("2 Jan 15:04")
	case t.Before(r.Window.From) || d > 26*time.Hour:
		return t.Format("Mon 15:04")
	default:
		return t.Format("15:04")
	}
}
