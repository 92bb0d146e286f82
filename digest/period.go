package digest

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Period is a span that somebody asks for: so many hours or days up to now, or
// the calendar day before today. The zero Period is the last 24 hours.
type Period struct {
	hours, days int
	yesterday   bool
	span        time.Duration // any other
}

// Last is the span of this length up to now; zero is the last 24 hours.
func Last(span time.Duration) Period { return Period{span: span} }

// maxDays is the longest period: as long as counts are kept.
const maxDays = 400

// ParsePeriod reads "24h", "7d", "30d", any other whole number of hours or days
// up to 400 days, or "yesterday"; "" is 24h.
func ParsePeriod(arg string) (Period, error) {
	word := strings.ToLower(strings.TrimSpace(arg))
	switch word {
	case "":
		return Period{hours: 24}, nil
	case "yesterday":
		return Period{yesterday: true}, nil
	}
	const right = "right are 24h, 7d, 30d, any whole number of hours or days, or yesterday"
	unit := word[len(word)-1]
	n, err := strconv.ParseUint(word[:len(word)-1], 10, 16)
	if err != nil || unit != 'h' && unit != 'd' || n == 0 {
		return Period{}, fmt.Errorf("parse period %q: %s", cut(arg, 32), right)
	}
	if unit == 'h' && n > maxDays*24 || unit == 'd' && n > maxDays {
		return Period{}, fmt.Errorf("parse period %q: it is longer than %d days, which is as far as counts go back", cut(arg, 32), maxDays)
	}
	if unit == 'h' {
		return Period{hours: int(n)}, nil
	}
	return Period{days: int(n)}, nil
}

// String is the period as ParsePeriod reads it.
func (p Period) String() string {
	switch {
	case p.yesterday:
		return "yesterday"
	case p.days > 0:
		return strconv.Itoa(p.days) + "d"
	case p.span > 0:
		return p.span.String()
	case p.hours > 0:
		return strconv.Itoa(p.hours) + "h"
	default:
		return "24h"
	}
}

// Window is the period's span up to now and the one before it to compare with.
// Hours are exact; days go back to the same time on the wall clock, and
// yesterday is the calendar day in loc, so these may have 23 or 25 hours.
func (p Period) Window(now time.Time, loc *time.Location) (w, before Window) {
	now = now.In(loc)
	today := date(now)
	switch {
	case p.yesterday:
		midnight := daysBefore(today, 0, 0, 0, 0, loc)
		w = Window{From: daysBefore(today, 1, 0, 0, 0, loc), To: midnight}
		return w, Window{From: daysBefore(date(w.From), 1, 0, 0, 0, loc), To: w.From}
	case p.days > 0:
		h, m, s := now.Clock()
		w = Window{From: daysBefore(today, p.days, h, m, s, loc), To: now}
		return w, Window{From: daysBefore(date(w.From), p.days, h, m, s, loc), To: w.From}
	default:
		span := p.span + time.Duration(p.hours)*time.Hour
		if span <= 0 {
			span = 24 * time.Hour
		}
		w = Window{From: now.Add(-span), To: now}
		return w, Window{From: w.From.Add(-span), To: w.From}
	}
}
