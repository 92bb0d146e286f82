package digest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"breakerbot/breaker"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Source and a Ledger that keep everything in memory.
type memory struct {
	mu      sync.Mutex
	data    Data
	issues  map[string]Issue // by destination, edition and day
	order   []string
	windows []Window
	trouble func(step, destination string) error
}

func newMemory(data Data) *memory { return &memory{data: data, issues: map[string]Issue{}} }

func (m *memory) fails(step, destination string) error {
	if m.trouble == nil {
		return nil
	}
	return m.trouble(step, destination)
}

func (m *memory) DigestData(_ context.Context, w, _ Window) (Data, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.windows = append(m.windows, w)
	return m.data, m.fails("data", "")
}

func (m *memory) HistoryFrom(context.Context) (time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data.HistoryFrom, m.fails("history", "")
}

func (m *memory) Has(_ context.Context, destination, edition, day string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fails("has", destination); err != nil {
		return false, err
	}
	_, ok := m.issues[destination+"|"+edition+"|"+day]
	return ok, nil
}

func (m *memory) Store(_ context.Context, _ time.Time, issue Issue) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fails("store", issue.Destination.ID); err != nil {
		return false, err
	}
	key := issue.Destination.ID + "|" + issue.Edition + "|" + issue.Day
	if _, ok := m.issues[key]; ok {
		return false, nil
	}
	m.issues[key] = issue
	m.order = append(m.order, key)
	return true, nil
}

func runner(t testing.TB, m *memory, log *strings.Builder) *Runner {
	t.Helper()
	r := &Runner{
		Schedule: mustSchedule(t, "0 8 * * *"), Zone: mustZone(t, "Europe/Berlin"), QuietDays: true,
		Destinations: []Destination{{ID: "chat:1", ChatID: 1}, {ID: "chat:2/7", ChatID: 2, Thread: 7}, {ID: "chat:3", ChatID: 3}},
		Source:       m, Ledger: m,
	}
	if log != nil {
		r.Log = slog.New(slog.NewTextHandler(log, nil))
	}
	return r
}

// TestTickOncePerDay ticks its way through a year with both clock changes.
func TestTickOncePerDay(t *testing.T) {
	t.Parallel()
	m := newMemory(Data{HistoryFrom: moment(t, "2025-12-31T12:00:00+01:00")})
	r := runner(t, m, nil)
	r.Schedule = mustSchedule(t, "30 2 * * *")
	now, end := moment(t, "2026-01-01T00:00:00+01:00"), moment(t, "2027-01-01T00:00:00+01:00")
	for ; now.Before(end); now = now.Add(20 * time.Minute) {
		if err := r.Tick(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.issues) != 3*365 || len(m.windows) != 365 {
		t.Errorf("%d digests out of %d reports, want %d out of 365", len(m.issues), len(m.windows), 3*365)
	}
	for i := 1; i < len(m.windows); i++ {
		if !m.windows[i].From.Equal(m.windows[i-1].To) {
			t.Errorf("window %v does not follow on %v", m.windows[i], m.windows[i-1])
		}
	}
	issue := m.issues["chat:2/7|daily|2026-03-29"]
	if issue.Destination.Thread != 7 || issue.Due.Format(time.RFC3339) != "2026-03-29T03:00:00+02:00" || !issue.Window.To.Equal(issue.Due) || !strings.Contains(issue.Text, "02:30–03:00 Europe/Berlin (23 h 30 m)") {
		t.Errorf("the digest of the short night is %+v", issue)
	}
	// Another runner, as after a restart, finds the rows.
	before := len(m.order)
	again := runner(t, m, nil)
	again.Schedule = r.Schedule
	if err := again.Tick(t.Context(), now); err != nil || len(m.order) != before {
		t.Errorf("after a restart: %v, %d new digests", err, len(m.order)-before)
	}
}

func TestTickWhenLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		late   time.Duration
		stored bool
		text   string
	}{
		{0, true, ""}, {10 * time.Minute, true, ""}, {11 * time.Minute, true, "⏰ 11 m late"}, {6 * time.Hour, true, "⏰ 6 h late"},
		{6*time.Hour + time.Second, false, ""}, {23 * time.Hour, false, ""},
	} {
		t.Run(tt.late.String(), func(t *testing.T) {
			t.Parallel()
			m := newMemory(quietDay(t).data)
			var log strings.Builder
			r := runner(t, m, &log)
			now := moment(t, "2026-12-01T08:00:00+01:00").Add(tt.late)
			for range 3 {
				if err := r.Tick(t.Context(), now); err != nil {
					t.Fatal(err)
				}
			}
			issue, ok := m.issues["chat:1|daily|2026-12-01"]
			if ok != tt.stored || len(m.issues) != 3*btoi(tt.stored) {
				t.Fatalf("stored %v", m.order)
			}
			if strings.Contains(issue.Text, "late") != (tt.text != "") || !strings.Contains(issue.Text, tt.text) {
				t.Errorf("text is %q", issue.Text)
			}
			if n := strings.Count(log.String(), "digest given up"); n != 3*btoi(!tt.stored) {
				t.Errorf("%d lines of the log say that it was given up, one for each destination is right:\n%s", n, log.String())
			}
			// The next day is on time again, whatever became of this one.
			if err := r.Tick(t.Context(), moment(t, "2026-12-02T08:00:00+01:00")); err != nil {
				t.Fatal(err)
			}
			if next, ok := m.issues["chat:1|daily|2026-12-02"]; !ok || !next.Window.From.Equal(moment(t, "2026-12-01T08:00:00+01:00")) {
				t.Errorf("the next digest is %+v, %t", next, ok)
			}
		})
	}
}

func TestTickOwesNothingWithoutHistory(t *testing.T) {
	t.Parallel()
	due := moment(t, "2026-12-01T08:00:00+01:00")
	for _, tt := range []struct {
		name    string
		history time.Time
		stored  int
	}{
		{"empty", time.Time{}, 0}, {"begins at the due time", due, 0}, {"begins after it", due.Add(time.Minute), 0}, {"begins just before", due.Add(-time.Second), 3},
	} {
		m := newMemory(Data{HistoryFrom: tt.history})
		if err := runner(t, m, nil).Tick(t.Context(), due.Add(5*time.Minute)); err != nil || len(m.issues) != tt.stored {
			t.Errorf("%s: %d digests, %v", tt.name, len(m.issues), err)
		}
	}
}

func TestTickWithoutQuietDays(t *testing.T) {
	t.Parallel()
	now := moment(t, "2026-12-01T08:00:00+01:00")
	for name, tt := range map[string]struct {
		data   Data
		silent bool
	}{
		"quiet": {quietDay(t).data, true}, "bad": {badDay(t).data, false}, "no data": {Data{HistoryFrom: now.AddDate(0, -1, 0)}, false},
	} {
		m := newMemory(tt.data)
		r := runner(t, m, nil)
		r.QuietDays = false
		if err := r.Tick(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		issue, ok := m.issues["chat:1|daily|2026-12-01"]
		if !ok || (issue.Text == "") != tt.silent {
			t.Errorf("%s: stored %t with text %q", name, ok, issue.Text)
		}
		// Trouble that becomes known later does not bring the day back.
		m.data = badDay(t).data
		if err := r.Tick(t.Context(), now.Add(time.Hour)); err != nil || len(m.order) != 3 {
			t.Errorf("%s: %v after an hour: %v", name, m.order, err)
		}
	}
}

func TestTickTroubleOfOneLeavesTheOthers(t *testing.T) {
	t.Parallel()
	now := moment(t, "2026-12-01T08:00:00+01:00")
	broken := errors.New("broken")
	for _, tt := range []struct {
		name    string
		trouble func(step, destination string) error
		stored  int
		want    []string
	}{
		{"store fails", func(step, d string) error {
			if step == "store" && d == "chat:1" {
				return broken
			}
			return nil
		}, 2, []string{"digest of 2026-12-01 for chat:1: store: broken"}},
		{"look-up fails", func(step, d string) error {
			if step == "has" && d == "chat:2/7" {
				return broken
			}
			return nil
		}, 2, []string{"digest of 2026-12-01 for chat:2/7: look up: broken"}},
		{"store panics", func(step, d string) error {
			if step == "store" && d == "chat:1" {
				panic("aaah")
			}
			return nil
		}, 2, []string{"digest of 2026-12-01 for chat:1: panic: aaah"}},
		{"numbers fail", func(step, _ string) error {
			if step == "data" {
				return broken
			}
			return nil
		}, 0, []string{"for chat:1: read numbers from 2026-11-30T08:00:00+01:00", "for chat:3: read numbers"}},
		{"numbers panic", func(step, _ string) error {
			if step == "data" {
				panic("aaah")
			}
			return nil
		}, 0, []string{"for chat:1: panic: aaah", "for chat:3: panic: aaah"}},
		{"history fails", func(step, _ string) error {
			if step == "history" {
				return broken
			}
			return nil
		}, 0, []string{"read beginning of history: broken"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMemory(badDay(t).data)
			m.trouble = tt.trouble
			r := runner(t, m, nil)
			err := r.Tick(t.Context(), now)
			if err == nil || len(m.issues) != tt.stored {
				t.Fatalf("%d digests, error %v", len(m.issues), err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			m.trouble = nil
			if err := r.Tick(t.Context(), now.Add(time.Minute)); err != nil || len(m.issues) != 3 {
				t.Errorf("when all is well again: %d digests, %v", len(m.issues), err)
			}
		})
	}
}

func TestTickStopsWithItsContext(t *testing.T) {
	t.Parallel()
	m := newMemory(badDay(t).data)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := runner(t, m, nil).Tick(ctx, moment(t, "2026-12-01T08:00:00+01:00")); !errors.Is(err, context.Canceled) || len(m.issues) != 0 {
		t.Errorf("%d digests, %v", len(m.issues), err)
	}
	if err := (&Runner{Source: m, Ledger: m}).Tick(t.Context(), noon); err != nil {
		t.Errorf("a runner without a schedule: %v", err)
	}
}

// TestTickTwoRunners lets two replicas tick at once: each digest exists once.
func TestTickTwoRunners(t *testing.T) {
	t.Parallel()
	m := newMemory(badDay(t).data)
	now := moment(t, "2026-12-01T08:00:00+01:00")
	shared := runner(t, m, nil)
	var wg sync.WaitGroup
	for _, r := range []*Runner{shared, shared, runner(t, m, nil), runner(t, m, nil)} {
		wg.Go(func() {
			if err := r.Tick(t.Context(), now); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(m.order) != 3 {
		t.Errorf("stored %v", m.order)
	}
}

func TestPreview(t *testing.T) {
	t.Parallel()
	m := newMemory(badDay(t).data)
	r := runner(t, m, nil)
	now := moment(t, "2026-12-01T14:05:00+01:00")
	p, err := ParsePeriod("24h")
	if err != nil {
		t.Fatal(err)
	}
	rep, err := r.Preview(t.Context(), now, p)
	if err != nil {
		t.Fatal(err)
	}
	if !rep.Window.To.Equal(now) || !rep.Window.From.Equal(now.Add(-24*time.Hour)) || rep.Edition != EditionPreview || rep.Zone != "Europe/Berlin" {
		t.Errorf("window %v of %s in %s", rep.Window, rep.Edition, rep.Zone)
	}
	if text := Text(rep); !strings.HasPrefix(text, "🗞 <b>Digest Mon 30 Nov – Tue 1 Dec</b> · 14:05–14:05 Europe/Berlin (24 h)\n") {
		t.Errorf("headline of %q", text)
	}
	until := now.AddDate(0, 0, -3)
	if rep, err = r.PreviewUntil(t.Context(), now, until, p); err != nil || !rep.Window.To.Equal(until) {
		t.Errorf("until %s: %v, %v", until, rep.Window, err)
	}
	if rep, err = r.PreviewUntil(t.Context(), now, now.AddDate(1, 0, 0), p); err != nil || !rep.Window.To.Equal(now) {
		t.Errorf("until next year: %v, %v", rep.Window, err)
	}
	if len(m.issues) != 0 {
		t.Errorf("previews stored %v", m.order)
	}
	m.trouble = func(string, string) error { return errors.New("broken") }
	if _, err = r.Preview(t.Context(), now, p); err == nil || !strings.Contains(err.Error(), "read numbers from") {
		t.Errorf("error is %v", err)
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	m := newMemory(badDay(t).data)
	r := runner(t, m, nil)
	now := moment(t, "2026-12-01T14:05:00+01:00")
	for arg, want := range map[string]string{"": "(7 d)", "30d": "(30 d)", "24h": "(24 h)"} {
		text, err := r.Top(t.Context(), now, arg)
		if err != nil || !strings.Contains(text, want) || !strings.HasPrefix(text, "🏆 <b>Flakiest ") || !strings.Contains(text, "1 gpu-box") {
			t.Errorf("Top(%q) = %q, %v", arg, text, err)
		}
		checkTelegram(t, text)
	}
	if _, err := r.Top(t.Context(), now, "<b>"); err == nil || !strings.Contains(err.Error(), "7d") {
		t.Errorf("error is %v", err)
	}
	m.data = Data{HistoryFrom: now.AddDate(-1, 0, 0), Counts: []Count{calls("a", "gpu", "q", breaker.OK, 100, time.Second)}}
	if text, err := r.Top(t.Context(), now, ""); err != nil || !strings.HasSuffix(text, "Nothing tripped, and nothing fails in more than 1 % of its calls.") {
		t.Errorf("Top of a quiet week = %q, %v", text, err)
	}
	m.data = Data{}
	if text, err := r.Top(t.Context(), now, ""); err != nil || !strings.Contains(text, "No data") {
		t.Errorf("Top of nothing = %q, %v", text, err)
	}
}
