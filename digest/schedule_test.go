package digest

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func mustZone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := ParseZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func mustSchedule(t testing.TB, spec string) Schedule {
	t.Helper()
	s, err := ParseSchedule(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseSchedule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec         string
		hour, minute int
		weekdays     uint8
	}{
		{"0 8 * * *", 8, 0, 0x7f},
		{"30 7 * * 1-5", 7, 30, 0b0111110},
		{"  05  23  ?  *  mon,FRI ", 23, 5, 0b0100010},
		{"0 0 * * 0", 0, 0, 1},
		{"0 8 */1 * */2", 8, 0, 0b1010101},
		{"@daily", 0, 0, 0x7f},
		{"@midnight", 0, 0, 0x7f},
		{"59 23 * * SUN", 23, 59, 1},
		{"8-8 9-9 * * *", 9, 8, 0x7f},
	} {
		t.Run(tt.spec, func(t *testing.T) {
			t.Parallel()
			s, err := ParseSchedule(tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			if s.hour != tt.hour || s.minute != tt.minute || s.weekdays != tt.weekdays {
				t.Errorf("got %02d:%02d on %07b, want %02d:%02d on %07b", s.hour, s.minute, s.weekdays, tt.hour, tt.minute, tt.weekdays)
			}
			if s.String() != strings.TrimSpace(tt.spec) {
				t.Errorf("String is %q", s)
			}
		})
	}
}

func TestParseScheduleRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ spec, want string }{
		{"", "is empty"},
		{" \t", "is empty"},
		{"TZ=", "timezone"},
		{"CRON_TZ=", "timezone"},
		{"CRON_TZ=Europe/Berlin", "timezone"},
		{"TZ=Europe/Berlin 0 8 * * *", "timezone"},
		{"tz=UTC 0 8 * * *", "timezone"},
		{"  TZ=", "timezone"},
		{"@every 0s", "@daily"},
		{"@every 24h", "@daily"},
		{"@reboot", "@daily"},
		{"@weekly", "weekdays"},
		{"@hourly", "@daily"},
		{"@", "@daily"},
		{"0 8,20 * * *", "fires 2 times a day"},
		{"*/5 * * * *", "fires 288 times a day"},
		{"* * * * *", "fires 1440 times a day"},
		{"0/30 8 * * *", "fires 2 times a day"},
		{"0 8 1 * *", "day of month and month must be *"},
		{"0 8 1-31 * *", "day of month and month must be *"},
		{"0 8 * 6 *", "day of month and month must be *"},
		{"0 8 * * 7", "Sunday is 0 or SUN"},
		{"0 8 * * 5-7", "Sunday is 0 or SUN"},
		{"0 8 * * 1,07", "Sunday is 0 or SUN"},
		{"0 8 * * 8", "above maximum (6)"},
		{"0 24 * * *", "above maximum (23)"},
		{"60 8 * * *", "above maximum (59)"},
		{"eight 8 * * *", "eight"},
		{"-1 8 * * *", "minute (0-59)"},
		{"0 8 * *", "has 4 fields"},
		{"0 0 8 * * *", "has 6 fields"},
		{"08:00", "has 1 fields"},
		{", 8 * * *", "would never fire"},
		{"0 8 * * ,", "would never fire"},
		{"0 8 * * " + strings.Repeat("1,", 200), "at most 256"},
		{"0 8 * * 1/0", "step"},
		{"\xff 8 * * *", "minute (0-59)"},
	} {
		t.Run(tt.spec, func(t *testing.T) {
			t.Parallel()
			s, err := ParseSchedule(tt.spec)
			if err == nil {
				t.Fatalf("accepted as %+v", s)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if len(err.Error()) > 400 {
				t.Errorf("error is %d bytes long", len(err.Error()))
			}
		})
	}
}

func TestParseScheduleNeverPanics(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"TZ=", "CRON_TZ=", "@every", "@", "*", "/", "-", ",", "0", "7", "8", "59", " ", "Zone", "SUN", "?", "99999999999999999999"})
	rapid.Check(t, func(t *rapid.T) {
		spec := strings.Join(rapid.SliceOfN(word, 0, 12).Draw(t, "words"), rapid.SampledFrom([]string{"", " "}).Draw(t, "between"))
		s, err := ParseSchedule(spec)
		if err == nil && s.weekdays == 0 {
			t.Fatalf("%q was accepted and never fires", spec)
		}
	})
}

func TestParseZone(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "Local", "local": "Local", " Europe/Berlin ": "Europe/Berlin", "UTC": "UTC"} {
		if loc, err := ParseZone(name); err != nil || loc.String() != want {
			t.Errorf("ParseZone(%q) = %v, %v, want %s", name, loc, err, want)
		}
	}
	for _, name := range []string{"Berlin", "Europe/Atlantis", "../etc/passwd", "/etc/passwd", strings.Repeat("x", 100), "CET+1", "\x00"} {
		if loc, err := ParseZone(name); err == nil {
			t.Errorf("ParseZone(%q) = %v", name, loc)
		} else if !strings.Contains(err.Error(), "Europe/Berlin") && !strings.Contains(err.Error(), "at most 64") {
			t.Errorf("ParseZone(%q): %q does not say what is right", name, err)
		}
	}
}

// TestDue holds the moments at which clocks jump: the end of a gap, the first of
// two, and never another date.
func TestDue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ zone, spec, day, want string }{
		{"Europe/Berlin", "0 8 * * *", "2026-12-01", "2026-12-01T08:00:00+01:00"},
		{"Europe/Berlin", "30 2 * * *", "2026-03-29", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-25", "2026-10-25T02:30:00+02:00"},
		{"America/New_York", "30 1 * * *", "2026-11-01", "2026-11-01T01:30:00-04:00"},
		{"America/Havana", "0 0 * * *", "2026-03-08", "2026-03-08T01:00:00-04:00"},
		{"America/Havana", "30 0 * * *", "2026-11-01", "2026-11-01T00:30:00-04:00"},
		{"Asia/Beirut", "0 0 * * *", "2026-03-29", "2026-03-29T01:00:00+03:00"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-04", "2026-10-04T02:30:00+11:00"},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-05", "2026-04-05T01:45:00+11:00"},
		{"America/St_Johns", "0 0 * * *", "2010-11-07", "2010-11-07T00:00:00-02:30"},
		{"America/Sao_Paulo", "0 0 * * *", "2018-02-18", "2018-02-18T00:00:00-03:00"},
		{"Pacific/Apia", "0 8 * * *", "2011-12-30", ""},
		{"Pacific/Apia", "0 8 * * *", "2011-12-31", "2011-12-31T08:00:00+14:00"},
		{"UTC", "0 8 * * 1-5", "2026-11-28", ""},
		{"Pacific/Kiritimati", "0 0 * * *", "2026-01-01", "2026-01-01T00:00:00+14:00"},
	} {
		t.Run(tt.zone+" "+tt.day, func(t *testing.T) {
			t.Parallel()
			day, err := time.Parse(time.DateOnly, tt.day)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := mustSchedule(t, tt.spec).Due(day.Year(), day.Month(), day.Day(), mustZone(t, tt.zone))
			if ok != (tt.want != "") || ok && got.Format(time.RFC3339) != tt.want {
				t.Errorf("%s in %s on %s: %s, %t; want %q", tt.spec, tt.zone, tt.day, got.Format(time.RFC3339), ok, tt.want)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, zone, spec, now, day, from, to, before string }{
		{"a plain day", "Europe/Berlin", "0 8 * * *", "2026-12-01T09:00:00+01:00", "2026-12-01", "2026-11-30T08:00:00+01:00", "2026-12-01T08:00:00+01:00", "2026-11-29T08:00:00+01:00"},
		{"right at the time", "Europe/Berlin", "0 8 * * *", "2026-12-01T08:00:00+01:00", "2026-12-01", "2026-11-30T08:00:00+01:00", "2026-12-01T08:00:00+01:00", "2026-11-29T08:00:00+01:00"},
		{"a moment before it", "Europe/Berlin", "0 8 * * *", "2026-12-01T07:59:59+01:00", "2026-11-30", "2026-11-29T08:00:00+01:00", "2026-11-30T08:00:00+01:00", "2026-11-28T08:00:00+01:00"},
		{"23 hours", "Europe/Berlin", "0 8 * * *", "2026-03-29T08:00:00+02:00", "2026-03-29", "2026-03-28T08:00:00+01:00", "2026-03-29T08:00:00+02:00", "2026-03-27T08:00:00+01:00"},
		{"25 hours", "Europe/Berlin", "0 8 * * *", "2026-10-25T08:00:00+01:00", "2026-10-25", "2026-10-24T08:00:00+02:00", "2026-10-25T08:00:00+01:00", "2026-10-23T08:00:00+02:00"},
		{"due in the gap", "Europe/Berlin", "30 2 * * *", "2026-03-29T03:00:00+02:00", "2026-03-29", "2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-27T02:30:00+01:00"},
		{"the day after the gap", "Europe/Berlin", "30 2 * * *", "2026-03-30T03:00:00+02:00", "2026-03-30", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00", "2026-03-28T02:30:00+01:00"},
		{"the second 02:30 is not due again", "Europe/Berlin", "30 2 * * *", "2026-10-25T02:30:00+01:00", "2026-10-25", "2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-23T02:30:00+02:00"},
		{"over the weekend", "Europe/Berlin", "0 8 * * 1-5", "2026-11-30T08:30:00+01:00", "2026-11-30", "2026-11-27T08:00:00+01:00", "2026-11-30T08:00:00+01:00", "2026-11-24T08:00:00+01:00"},
		{"after the weekend", "Europe/Berlin", "0 8 * * 1-5", "2026-12-01T08:30:00+01:00", "2026-12-01", "2026-11-30T08:00:00+01:00", "2026-12-01T08:00:00+01:00", "2026-11-29T08:00:00+01:00"},
		{"once a week", "America/New_York", "0 8 * * 1", "2026-11-03T12:00:00-05:00", "2026-11-02", "2026-10-26T08:00:00-04:00", "2026-11-02T08:00:00-05:00", "2026-10-19T08:00:00-04:00"},
		{"a date that never was", "Pacific/Apia", "0 8 * * *", "2011-12-31T09:00:00+14:00", "2011-12-31", "2011-12-29T08:00:00-10:00", "2011-12-31T08:00:00+14:00", "2011-12-28T08:00:00-10:00"},
		{"its only weekday never was", "Pacific/Apia", "0 8 * * FRI", "2012-01-06T09:00:00+14:00", "2012-01-06", "2011-12-23T08:00:00-10:00", "2012-01-06T08:00:00+14:00", "2011-12-10T08:00:00-10:00"},
		{"the clock went back over midnight", "America/St_Johns", "0 0 * * *", "2010-11-06T23:30:00-03:30", "2010-11-07", "2010-11-06T00:00:00-02:30", "2010-11-07T00:00:00-02:30", "2010-11-05T00:00:00-02:30"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			now, err := time.Parse(time.RFC3339, tt.now)
			if err != nil {
				t.Fatal(err)
			}
			loc, s := mustZone(t, tt.zone), mustSchedule(t, tt.spec)
			w, day, due, ok := s.Window(now, loc)
			if !ok {
				t.Fatal("nothing is due")
			}
			before := s.Before(w, loc)
			got := [...]string{day, w.From.Format(time.RFC3339), w.To.Format(time.RFC3339), before.From.Format(time.RFC3339)}
			if want := [...]string{tt.day, tt.from, tt.to, tt.before}; got != want {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if !due.Equal(w.To) || !before.To.Equal(w.From) {
				t.Errorf("due %s, window %v, before %v", due, w, before)
			}
		})
	}
	if _, _, _, ok := (Schedule{}).Window(time.Now(), time.UTC); ok {
		t.Error("the zero Schedule is due")
	}
}

// TestWindowsTileTime walks through years: each window begins where the last one
// ended, every local date with the weekday has exactly one, and asking at any
// moment gives the window that holds on to it.
func TestWindowsTileTime(t *testing.T) {
	t.Parallel()
	zones := []string{"Europe/Berlin", "America/Havana", "Asia/Beirut", "Australia/Lord_Howe", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Africa/Casablanca", "Pacific/Apia", "UTC"}
	for _, zone := range zones {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			loc := mustZone(t, zone)
			rapid.Check(t, func(t *rapid.T) {
				s := Schedule{
					hour: rapid.IntRange(0, 23).Draw(t, "hour"), minute: rapid.IntRange(0, 59).Draw(t, "minute"),
					weekdays: uint8(rapid.IntRange(1, 0x7f).Draw(t, "weekdays")),
				}
				if rapid.Bool().Draw(t, "near midnight or two") {
					s.hour = rapid.SampledFrom([]int{0, 1, 2, 3, 23}).Draw(t, "small hour")
				}
				start := time.Date(rapid.IntRange(2008, 2030).Draw(t, "year"), time.Month(rapid.IntRange(1, 12).Draw(t, "month")), 3, 12, 0, 0, 0, time.UTC)
				last, _, _, ok := s.Window(start, loc)
				if !ok {
					t.Fatal("nothing due")
				}
				days := map[string]bool{}
				// Asked more often than windows come, the first new answer has to be the
				// neighbour.
				step := time.Duration(rapid.IntRange(4, 20).Draw(t, "step in hours")) * time.Hour
				for now := start; now.Before(start.AddDate(0, 2, 0)); now = now.Add(step) {
					w, day, due, ok := s.Window(now, loc)
					switch {
					case !ok || !due.Equal(w.To) || due.After(now) || !w.From.Before(w.To):
						t.Fatalf("at %s: window %v, due %s, %t", now, w, due, ok)
					case w == last || w.To.Equal(last.To) && w.From.Equal(last.From):
						continue
					case !w.From.Equal(last.To):
						t.Fatalf("window %v does not begin where %v ended", w, last)
					case days[day]:
						t.Fatalf("day %s has two digests", day)
					case due.Format(time.DateOnly) != day:
						t.Fatalf("the digest of %s is due on %s", day, due)
					case s.weekdays>>due.Weekday()&1 == 0:
						t.Fatalf("%s has no digest", due.Weekday())
					}
					if s.weekdays == 0x7f && (w.To.Sub(w.From) < 22*time.Hour || w.To.Sub(w.From) > 26*time.Hour) && zone != "Pacific/Apia" {
						t.Fatalf("window %v has %s", w, w.To.Sub(w.From))
					}
					if before := s.Before(w, loc); !before.To.Equal(w.From) || !before.From.Before(before.To) {
						t.Fatalf("before %v is %v", w, before)
					} else if s.weekdays == 0x7f && !before.From.Equal(last.From) {
						t.Fatalf("before %v is %v, not the window before %v", w, before, last)
					}
					days[day], last = true, w
				}
			})
		})
	}
}

func TestParsePeriod(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{"": "24h", "24h": "24h", "7d": "7d", " 30D ": "30d", "Yesterday": "yesterday", "1h": "1h", "400d": "400d", "9600h": "9600h"} {
		p, err := ParsePeriod(arg)
		if err != nil || p.String() != want {
			t.Errorf("ParsePeriod(%q) = %q, %v, want %q", arg, p, err, want)
		}
	}
	for _, arg := range []string{"d", "h", "0d", "0h", "-1d", "7", "7w", "1.5h", "401d", "9601h", "99999999999d", "tomorrow", "+7d", "7d7d", "７d", "\xff"} {
		if p, err := ParsePeriod(arg); err == nil {
			t.Errorf("ParsePeriod(%q) = %q", arg, p)
		} else if !strings.Contains(err.Error(), "yesterday") && !strings.Contains(err.Error(), "400 days") {
			t.Errorf("ParsePeriod(%q): %q does not say what is right", arg, err)
		}
	}
	if got := (Period{}).String(); got != "24h" {
		t.Errorf("the zero period is %q", got)
	}
}

func TestPeriodWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ zone, now, arg, before, from, to string }{
		{"Europe/Berlin", "2026-12-01T14:05:09+01:00", "", "2026-11-29T14:05:09+01:00", "2026-11-30T14:05:09+01:00", "2026-12-01T14:05:09+01:00"},
		{"Europe/Berlin", "2026-03-29T14:00:00+02:00", "24h", "2026-03-27T13:00:00+01:00", "2026-03-28T13:00:00+01:00", "2026-03-29T14:00:00+02:00"},
		{"Europe/Berlin", "2026-03-30T14:00:00+02:00", "7d", "2026-03-16T14:00:00+01:00", "2026-03-23T14:00:00+01:00", "2026-03-30T14:00:00+02:00"},
		{"Europe/Berlin", "2026-03-30T14:00:00+02:00", "yesterday", "2026-03-28T00:00:00+01:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"America/Havana", "2026-03-09T00:30:00-04:00", "yesterday", "2026-03-07T00:00:00-05:00", "2026-03-08T01:00:00-04:00", "2026-03-09T00:00:00-04:00"},
		{"Asia/Beirut", "2026-10-26T12:00:00+02:00", "yesterday", "2026-10-24T00:00:00+03:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+02:00"},
	} {
		now, err := time.Parse(time.RFC3339, tt.now)
		if err != nil {
			t.Fatal(err)
		}
		p, err := ParsePeriod(tt.arg)
		if err != nil {
			t.Fatal(err)
		}
		w, before := p.Window(now, mustZone(t, tt.zone))
		got := [...]string{before.From.Format(time.RFC3339), w.From.Format(time.RFC3339), w.To.Format(time.RFC3339)}
		if want := [...]string{tt.before, tt.from, tt.to}; got != want || !before.To.Equal(w.From) {
			t.Errorf("%s of %s: %v, want %v", tt.arg, tt.now, got, want)
		}
	}
}
