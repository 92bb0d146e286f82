package store_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"breakerbot/bot"
	"breakerbot/breaker"
	"breakerbot/digest"
)

func TestDigestNumbers(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	if from, err := m.HistoryFrom(t.Context()); err != nil || !from.IsZero() {
		t.Errorf("an empty database has history from %v, %v", from, err)
	}
	if d, err := m.DigestData(t.Context(), digest.Window{From: at(0), To: at(60)}, digest.Window{From: at(-60), To: at(0)}); err != nil || len(d.Counts)+len(d.Incidents)+d.Undelivered != 0 {
		t.Errorf("an empty database has %+v, %v", d, err)
	}
	// Windows: before is minutes -60 to 0, w is minutes 0 to 60.
	minute := func(n int) time.Time { return at(n * 60) }
	incident := func(machine string, era, from, to int) []breaker.Transition {
		open := tripOf(machine, era)
		open.At = minute(from)
		list := []breaker.Transition{open}
		if to != 0 {
			end := open
			end.At, end.From, end.To, end.Reason, end.Era, end.Incident = minute(to), breaker.Open, breaker.Closed, breaker.ReasonReset, uint64(era+1), uint64(era)
			list = append(list, end)
		}
		return list
	}
	m.f.transitions(incident("long-ago", 1, -100, -61)...)
	m.f.transitions(incident("reaches-in", 3, -100, -60)...)
	m.f.transitions(incident("before", 5, -30, -20)...)
	m.f.transitions(incident("inside", 7, 30, 90)...)
	m.f.transitions(incident("open", 9, 59, 0)...)
	m.f.transitions(incident("after", 11, 60, 61)...)
	m.f.put(func(b *breaker.Batch) {
		outcome := func(min int, cause breaker.Cause) breaker.Applied {
			return breaker.Applied{Labels: gpu, At: minute(min), Cause: cause, Served: breaker.ServedFallback, Duration: 1500 * time.Millisecond, CostUSD: 0.5}
		}
		b.Outcomes = []breaker.Applied{outcome(-61, breaker.OK), outcome(-60, breaker.OK), outcome(-1, breaker.OK), outcome(0, breaker.OK),
			outcome(59, breaker.OK), outcome(59, breaker.Timeout), outcome(60, breaker.OK)}
		ask := func(min int, reason string, n int) breaker.Asked {
			return breaker.Asked{Labels: gpu, At: minute(min), Reason: reason, N: n}
		}
		b.Asks = []breaker.Asked{ask(-5, breaker.RefusedOpen, 2), ask(5, breaker.RefusedOpen, 3), ask(6, breaker.RefusedOpen, 4), ask(6, breaker.AskedGranted, 50), ask(6, breaker.AskedProbe, 1), ask(7, breaker.RefusedHeldOpen, 1), ask(60, breaker.RefusedOpen, 100)}
	})
	// Alert 7 is delivered to one chat of two, 9 to none, 11 is not due yet.
	message := func(alert uint64, chat int64, created, due int) bot.Message {
		return bot.Message{ChatID: chat, Kind: bot.KindTrip, DedupeKey: fmt.Sprint(alert, chat), Alert: alert, CreatedAt: minute(created), NextAt: minute(due)}
	}
	m.write(bot.Plan{New: []bot.Message{message(7, 1, 30, 30), message(7, 2, 30, 30), message(9, 1, 59, 59), message(11, 1, 59, 60)}}, minute(59))
	for _, c := range m.claim(minute(59)) {
		if c.Alert == 7 && c.ChatID == 1 {
			m.delivered(minute(59), c, 5)
		} else {
			m.settle(minute(59), bot.Settlement{ID: c.ID, Status: bot.StatusFailed, Error: "403"})
		}
	}
	d, err := m.DigestData(t.Context(), digest.Window{From: minute(0), To: minute(60)}, digest.Window{From: minute(-60), To: minute(0)})
	if err != nil {
		t.Fatal(err)
	}
	var machines []string
	for _, i := range d.Incidents {
		machines = append(machines, i.Machine)
	}
	if got := fmt.Sprint(machines); got != "[reaches-in before inside open]" {
		t.Errorf("the incidents are %s", got)
	}
	count := func(cause breaker.Cause, calls int64) digest.Count {
		return digest.Count{Machine: gpu.Machine, Model: gpu.Model, Cause: cause, Served: breaker.ServedFallback, Calls: calls, Duration: time.Duration(calls) * 1500 * time.Millisecond, CostUSD: float64(calls) / 2}
	}
	for name, pair := range map[string][2]any{
		"counts":          {d.Counts, []digest.Count{count(breaker.OK, 2), count(breaker.Timeout, 1)}},
		"counts before":   {d.CountsBefore, []digest.Count{count(breaker.OK, 2)}},
		"refusals":        {d.Refusals, []digest.Refusal{{Machine: gpu.Machine, Model: gpu.Model, Reason: breaker.RefusedHeldOpen, Calls: 1}, {Machine: gpu.Machine, Model: gpu.Model, Reason: breaker.RefusedOpen, Calls: 7}}},
		"refusals before": {d.RefusalsBefore, []digest.Refusal{{Machine: gpu.Machine, Model: gpu.Model, Reason: breaker.RefusedOpen, Calls: 2}}},
		"undelivered":     {d.Undelivered, 1},
		"history":         {d.HistoryFrom.Equal(minute(-100)), true},
	} {
		if fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]) {
			t.Errorf("%s: got %v, want %v", name, pair[0], pair[1])
		}
	}
}

func TestADigestIsStoredOnce(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	issue := digest.Issue{
		Destination: digest.Destination{ID: "chat:-5/7", ChatID: -5, Thread: 7}, Edition: "daily", Day: "2026-03-02",
		Window: digest.Window{From: at(-86400), To: at(0)}, Due: at(0), Text: "<b>quiet</b>",
	}
	has := func(day string) bool {
		t.Helper()
		got, err := m.Has(t.Context(), issue.Destination.ID, issue.Edition, day)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if has(issue.Day) {
		t.Error("it is there before it was stored")
	}
	var stored atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			ok, err := m.Store(t.Context(), at(1), issue)
			if err != nil {
				t.Error(err)
			}
			if ok {
				stored.Add(1)
			}
		})
	}
	all.Wait()
	if stored.Load() != 1 || !has(issue.Day) || has("2026-03-01") {
		t.Errorf("stored %d times, there %v, the day before there %v", stored.Load(), has(issue.Day), has("2026-03-01"))
	}
	msg := m.claimOne(at(1))
	if msg.Kind != bot.KindDigest || msg.ChatID != -5 || msg.Thread != 7 || msg.Payload.Text != issue.Text || !msg.Payload.Silent {
		t.Errorf("its message is %+v", msg)
	}
	if !one[bool](t, m.conn, "SELECT outbox_id = $1 AND window_from = $2 AND window_to = $3 FROM digests", msg.ID, issue.Window.From, issue.Window.To) {
		t.Error("its row does not tell its message and window")
	}
	issue.Day, issue.Text = "2026-03-03", ""
	if ok, err := m.Store(t.Context(), at(2), issue); !ok || err != nil {
		t.Fatalf("a day without a word: %v, %v", ok, err)
	}
	if list := m.claim(at(2)); len(list) != 0 || !has(issue.Day) {
		t.Errorf("a day without a word: messages %v, there %v", list, has(issue.Day))
	}
	issue.Day = "no day"
	if _, err := m.Store(t.Context(), at(2), issue); err == nil {
		t.Error("a day that is none was stored")
	}
}
