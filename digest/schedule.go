package digest

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
	// A static image has no zone files of its own, and a digest's day must not
	// depend on which machine the service happens to run on.
	_ "time/tzdata"

	"github.com/robfig/cron/v3"
)

// Schedule is a time of day on some or all weekdays: at most one firing per
// local day. The zero Schedule fires at midnight on no day at all.
type Schedule struct {
	hour, minute int
	weekdays     uint8 // bit 0 is Sunday
	spec         string
}

// scheduleParser knows the five fields and no descriptor: of those only @daily
// and @midnight mean something here, and @every and TZ= are handled before the
// library sees them, since it panics on some.
var scheduleParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// maxSpec is the longest specification, in bytes; a list of all hours, minutes
// and weekdays is shorter.
const maxSpec = 256

// cronStar is the bit by which the cron library marks a field as unrestricted.
const cronStar = 1 << 63

// ParseSchedule reads a cron line that names one time of day: minute, hour and,
// as its fifth field, weekdays; day of month and month must be *. @daily and
// @midnight mean 00:00. The zone is not part of a schedule, so TZ= is refused;
// each error says what would be right.
func ParseSchedule(spec string) (Schedule, error) {
	fail := func(format string, args ...any) (Schedule, error) {
		return Schedule{}, fmt.Errorf("parse schedule %q: %w", cut(spec, 80), fmt.Errorf(format, args...))
	}
	s := strings.TrimSpace(spec)
	upper := strings.ToUpper(s)
	switch {
	case len(s) > maxSpec:
		return fail("it is %d bytes long: at most %d are allowed", len(s), maxSpec)
	case s == "":
		return fail(`it is empty: a time of day such as "0 8 * * *" (each day at 08:00) is needed`)
	case strings.HasPrefix(upper, "TZ=") || strings.HasPrefix(upper, "CRON_TZ="):
		return fail(`the zone does not belong here: leave out TZ= and set "timezone" instead`)
	case upper == "@DAILY" || upper == "@MIDNIGHT":
		return Schedule{weekdays: 0x7f, spec: s}, nil
	case strings.HasPrefix(s, "@"):
		return fail(`@ words other than @daily do not name one time of day: write minute, hour and weekdays, such as "0 8 * * *" or "30 7 * * 1-5"`)
	}
	fields := strings.Fields(s)
	if len(fields) != 5 {
		return fail(`it has %d fields: five are needed, minute, hour, *, * and weekdays, such as "0 8 * * *"`, len(fields))
	}
	if err := noSundaySeven(fields[4]); err != nil {
		return fail("%w", err)
	}
	parsed, err := scheduleParser.Parse(s)
	if err != nil {
		return fail(`%w: right is minute (0-59), hour (0-23), *, * and weekdays (0-6 or SUN-SAT), such as "0 8 * * 1-5"`, err)
	}
	spans, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return fail(`it names no time of day: write minute, hour and weekdays, such as "0 8 * * *"`)
	}
	if spans.Dom&cronStar == 0 || spans.Month&cronStar == 0 {
		return fail(`day of month and month must be *: a digest is daily, on some or all weekdays, such as "0 8 * * 1"`)
	}
	minutes, hours, weekdays := spans.Minute&^cronStar, spans.Hour&^cronStar, spans.Dow&0x7f
	if minutes == 0 || hours == 0 || weekdays == 0 {
		return fail(`a field names nothing, so it would never fire: right is such as "0 8 * * *"`)
	}
	if n := bits.OnesCount64(minutes) * bits.OnesCount64(hours); n > 1 {
		return fail(`it fires %d times a day: a digest has one time of day, a single minute and a single hour such as "0 8 * * *"`, n)
	}
	return Schedule{
		hour:     bits.TrailingZeros64(hours),
		minute:   bits.TrailingZeros64(minutes),
		weekdays: uint8(weekdays),
		spec:     s,
	}, nil
}

// noSundaySeven refuses the 7 that other crons know as Sunday, also as the end
// of a range, where the library's own words would not help.
func noSundaySeven(field string) error {
	for part := range strings.SplitSeq(field, ",") {
		span, _, _ := strings.Cut(part, "/")
		for end := range strings.SplitSeq(span, "-") {
			if strings.TrimLeft(end, "0") == "7" {
				return fmt.Errorf("weekday %s: Sunday is 0 or SUN here, not 7 (Monday to Sunday is *, Friday to Sunday is 5,6,0)", field)
			}
		}
	}
	return nil
}

// String is the specification as it was given.
func (s Schedule) String() string { return s.spec }

// Due tells when the digest of a local date is due, false on weekdays without
// one and on dates that the zone leaves out. It is the first moment of that
// date at which the clock on the wall shows the scheduled time or later: the
// end of the gap where the clock jumps over it, the first of two where it comes
// twice. (time.Date promises no choice between the two, and in a gap at
// midnight it answers with the evening before.)
func (s Schedule) Due(year int, month time.Month, day int, loc *time.Location) (time.Time, bool) {
	noon := time.Date(year, month, day, 12, 0, 0, 0, time.UTC)
	if s.weekdays>>noon.Weekday()&1 == 0 {
		return time.Time{}, false
	}
	return onClock(year, month, day, s.hour, s.minute, 0, loc)
}

// onClock is the first moment at which the wall clock of loc shows the given
// time of the given date or later; false when that is another date already.
func onClock(year int, month time.Month, day, hour, minute, second int, loc *time.Location) (time.Time, bool) {
	wall := time.Date(year, month, day, hour, minute, second, 0, time.UTC)
	// No zone is further from UTC than this, so the walk begins before.
	at := wall.Add(-36 * time.Hour).In(loc)
	for {
		_, offset := at.Zone()
		_, end := at.ZoneBounds()
		moment := wall.Add(-time.Duration(offset) * time.Second).In(loc)
		if moment.Before(at) {
			moment = at
		}
		if end.IsZero() || moment.Before(end) {
			y, m, d := moment.Date()
			return moment, y == wall.Year() && m == wall.Month() && d == wall.Day()
		}
		at = end
	}
}

// lookBack is how many local days a search for scheduled moments goes back: two
// weekly ones, and one more in case that the zone left out the date of one.
const lookBack = 4 * 7

// Window is the span that the digest due last tells about: from the scheduled
// moment before it up to it, half-open, so that consecutive windows meet without
// overlap or hole and a day may have 23, 24 or 25 hours. Day is the local date
// on which it is due, due the window's end. It is false when the schedule never
// fires.
func (s Schedule) Window(now time.Time, loc *time.Location) (w Window, day string, due time.Time, ok bool) {
	local := now.In(loc)
	year, month, date := local.Date()
	// The day after counts too: where the clock goes back over midnight, a moment
	// of the next date has been before.
	for back := -1; back <= lookBack; back++ {
		d := time.Date(year, month, date-back, 12, 0, 0, 0, time.UTC)
		at, fires := s.Due(d.Year(), d.Month(), d.Day(), loc)
		switch {
		case !fires || at.After(now):
		case due.IsZero():
			due, day = at, d.Format(time.DateOnly)
		default:
			return Window{From: at, To: due}, day, due, true
		}
	}
	return Window{}, "", time.Time{}, false
}

// Before is the window that a digest's window is compared with: as many local
// days, up to its beginning; a date that the zone left out is none. For a digest
// of each day it is the window of the digest before; Monday's digest of the
// working days, which spans the weekend, is compared with the three days before
// Friday's.
func (s Schedule) Before(w Window, loc *time.Location) Window {
	from, days := date(w.From.In(loc)), 0
	for d := date(w.To.In(loc)); d.After(from); d = d.AddDate(0, 0, -1) {
		if _, ok := onClock(d.Year(), d.Month(), d.Day(), s.hour, s.minute, 0, loc); ok {
			days++
		}
	}
	before := Window{From: w.From, To: w.From}
	for d := from; days > 0; {
		d = d.AddDate(0, 0, -1)
		if at, ok := onClock(d.Year(), d.Month(), d.Day(), s.hour, s.minute, 0, loc); ok {
			before.From = at
			days--
		}
	}
	return before
}

// daysBefore is the moment at which the wall clock shows a time of day, so many
// days before a date, or one more for a date that the zone left out.
func daysBefore(date time.Time, days, hour, minute, second int, loc *time.Location) time.Time {
	for {
		d := date.AddDate(0, 0, -days)
		if at, ok := onClock(d.Year(), d.Month(), d.Day(), hour, minute, second, loc); ok {
			return at
		}
		days++
	}
}

// date is the local date of t as midnight in UTC, where dates can be counted.
func date(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// ParseZone reads a zone's name from the IANA database, such as Europe/Berlin;
// "" and "local" are the zone of this machine.
func ParseZone(name string) (*time.Location, error) {
	switch trimmed := strings.TrimSpace(name); {
	case trimmed == "" || strings.EqualFold(trimmed, "local"):
		return time.Local, nil
	case len(trimmed) > 64:
		return nil, fmt.Errorf("parse zone %q: it is %d bytes long: at most 64 are allowed", cut(name, 64), len(trimmed))
	default:
		loc, err := time.LoadLocation(trimmed)
		if err != nil {
			return nil, fmt.Errorf("parse zone %q: no such time zone: an IANA name such as Europe/Berlin, America/New_York or UTC is needed", name)
		}
		return loc, nil
	}
}

// cut shortens a value for an error message.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
