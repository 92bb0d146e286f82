package bot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"breakerbot/bot/telegramtest"
	"breakerbot/breaker"
)

// TestOneMessageThroughItsLife follows the policy's plans through the outbox to
// what people see: a trip, a reminder that answers it, and the recovery of both.
func TestOneMessageThroughItsLife(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	policy := NewAlerts(AlertConfig{GroupWait: 5 * time.Second, LongOpen: []time.Duration{10 * time.Minute}, Chats: []Chat{{ID: group, Alerts: true}}})
	inc := incident(10, "errors", "qwen3-30b", t0)
	r.box.set(factsOf(inc))
	r.box.write(policy.Plan([]breaker.Transition{tripped(10, "errors", inc.Labels, t0)}))
	r.step(t)
	if n := len(r.server.Messages()); n != 0 {
		t.Fatalf("%d messages before group_wait is over", n)
	}
	r.add(5 * time.Second)
	r.step(t)
	trip := r.only(t)
	if !trip.Sounded() || !strings.HasPrefix(trip.Text, "🔴 OPEN  gpu-box → qwen3-30b   #00a\n") {
		t.Fatalf("trip message: %q, sounded %t", trip.Text, trip.Sounded())
	}
	if b, ok := trip.Button("Why"); !ok || b.Data != "1|w|00a" {
		t.Errorf("buttons %+v", trip.Buttons)
	}
	r.box.write(policy.Tick(r.add(10 * time.Minute)))
	r.step(t)
	list := r.server.Messages()
	if len(list) != 2 || list[1].ReplyTo != trip.ID || !list[1].Sounded() || !strings.HasPrefix(list[1].Text, "⏰ STILL OPEN 10 min") {
		t.Fatalf("reminder:\n%s", r.server)
	}
	closedAt := r.add(7 * time.Minute)
	r.box.set(factsOf(closed(inc, closedAt)))
	r.box.write(policy.Plan([]breaker.Transition{closes(10, 12, closedAt)}))
	r.step(t)
	r.add(2 * time.Second) // edits leave room for what is urgent
	r.step(t)
	list = r.server.Messages()
	if len(list) != 2 {
		t.Fatalf("recovery made a message:\n%s", r.server)
	}
	for _, m := range list {
		if !strings.HasPrefix(m.Text, "🟢 CLOSED") || m.Edits() != 1 {
			t.Errorf("message %d after the recovery: %q", m.ID, m.Text)
		}
		if _, ok := m.Button("Reset…"); ok {
			t.Error("a closed alert can be reset")
		}
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	slow := incident(1, "latency", "a", t0)
	for name, c := range map[string]struct {
		facts AlertFacts
		sound bool
	}{
		"silent rule":             {factsOf(slow), false},
		"and one that sounds":     {factsOf(slow, incident(2, "errors", "a", t0)), true},
		"over before delivery":    {factsOf(closed(incident(1, "errors", "a", t0), t0.Add(time.Second))), false},
		"only the silent is left": {factsOf(slow, closed(incident(2, "errors", "a", t0), t0)), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.trip(c.facts, group)
			r.step(t)
			if m := r.only(t); m.Sounded() != c.sound {
				t.Errorf("sounded %t, want %t: %s", m.Sounded(), c.sound, m.Text)
			}
		})
	}
}

// TestAnswersOfTelegram is the table of Telegram's answers, at work.
func TestAnswersOfTelegram(t *testing.T) {
	t.Parallel()
	open := factsOf(incident(10, "errors", "m", t0))
	for name, c := range map[string]struct {
		fault telegramtest.Fault
		first Status // after the first step
		after time.Duration
		want  func(m telegramtest.Message) bool
		sent  int // requests to sendMessage in all
	}{
		"429 waits as told": {
			fault: telegramtest.Fault{RetryAfter: 7200}, first: StatusPending, after: 2*time.Hour + time.Second, sent: 2,
			want: func(m telegramtest.Message) bool { return !strings.Contains(m.Text, "repeat") },
		},
		"entities: plain at once": {
			fault: telegramtest.Fault{Code: 400, Description: "Bad Request: can't parse entities: Unexpected end tag at byte offset 3"}, first: StatusDelivered, sent: 2,
			want: func(m telegramtest.Message) bool { return m.Entities == nil && m.Source == m.Text },
		},
		"too long: shorter": {
			fault: telegramtest.Fault{Code: 400, Description: "Bad Request: message is too long"}, first: StatusDelivered, sent: 2,
			want: func(m telegramtest.Message) bool {
				return strings.HasPrefix(m.Text, "🔴 OPEN") && strings.HasSuffix(m.Text, " more")
			},
		},
		"buttons: without": {
			fault: telegramtest.Fault{Code: 400, Description: "Bad Request: BUTTON_DATA_INVALID"}, first: StatusDelivered, sent: 2,
			want: func(m telegramtest.Message) bool { return m.Buttons == nil },
		},
		"5xx is unknown": {
			fault: telegramtest.Fault{Code: 500, Description: "Internal Server Error: restart"}, first: StatusUnknown, after: time.Minute, sent: 2,
			want: func(m telegramtest.Message) bool { return strings.Contains(m.Text, "(repeat)") },
		},
		"a proxy's page is unknown": {
			fault: telegramtest.Fault{HTML: 504}, first: StatusUnknown, after: time.Minute, sent: 2,
			want: func(m telegramtest.Message) bool { return strings.Contains(m.Text, "(repeat)") },
		},
		"a dropped connection is unknown": {
			fault: telegramtest.Fault{Drop: true}, first: StatusUnknown, after: time.Minute, sent: 2,
			want: func(m telegramtest.Message) bool { return strings.Contains(m.Text, "(repeat)") },
		},
		"rights: tried again slowly": {
			fault: telegramtest.Fault{Code: 400, Description: "Bad Request: CHAT_WRITE_FORBIDDEN"}, first: StatusPending, after: 11 * time.Minute, sent: 2,
			want: func(m telegramtest.Message) bool { return true },
		},
		"anything else fails": {
			fault: telegramtest.Fault{Code: 400, Description: "Bad Request: something new"}, first: StatusFailed, after: time.Hour, sent: 1,
		},
		"401: nothing spins": {
			fault: telegramtest.Fault{Code: 401, Description: "Unauthorized"}, first: StatusPending, after: 100 * time.Second, sent: 2,
			want: func(m telegramtest.Message) bool { return !strings.Contains(m.Text, "repeat") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c.fault.Method = "sendMessage"
			r.server.Fail(c.fault)
			id := r.trip(open, group)
			r.step(t)
			if row := r.box.row(id); row.Status != c.first {
				t.Fatalf("status %s, want %s", row.Status, c.first)
			}
			r.add(c.after / 2)
			r.step(t)
			if c.first != StatusDelivered {
				if n := len(r.server.Requests("sendMessage")); n != 1 {
					t.Errorf("%d requests half the time later, want 1", n)
				}
			}
			r.add(c.after - c.after/2)
			r.step(t)
			if n := len(r.server.Requests("sendMessage")); n != c.sent {
				t.Errorf("%d requests, want %d", n, c.sent)
			}
			if c.want == nil {
				return
			}
			if m := r.only(t); !c.want(m) {
				t.Errorf("message %q (%q)", m.Text, m.Source)
			}
			if row := r.box.row(id); row.Status != StatusDelivered || row.MessageID == 0 {
				t.Errorf("row %+v", row)
			}
		})
	}
}

// TestDoubtWaitsForADefiniteAnswer: delivered, but the answer is lost, and then
// Telegram stays away for a while.
func TestDoubtWaitsForADefiniteAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Fail(telegramtest.Fault{Method: "sendMessage", Drop: true, Deliver: true})
	r.server.Fail(telegramtest.Fault{Method: "getMe", HTML: 502, Times: -1})
	r.trip(factsOf(incident(10, "errors", "m", t0)), group)
	for range 120 { // ten minutes
		r.step(t)
		r.add(5 * time.Second)
	}
	if n := len(r.server.Requests("sendMessage")); n != 1 {
		t.Fatalf("%d sends while nothing is definite", n)
	}
	if n := len(r.server.Requests("getMe")); n < 8 || n > 25 {
		t.Errorf("%d times getMe in ten minutes, want about one a minute", n)
	}
	r.server.ClearFaults()
	r.add(time.Minute)
	r.step(t)
	r.add(time.Hour)
	r.step(t)
	list := r.server.Messages()
	if len(list) != 2 || strings.Contains(list[0].Text, "(repeat)") || !strings.Contains(list[1].Text, "(repeat)") {
		t.Errorf("messages:\n%s", r.server)
	}
}

func TestEditsAfterDoubtAreNotRepeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inc := incident(10, "errors", "m", t0)
	r.trip(factsOf(inc), group)
	r.step(t)
	r.touch(factsOf(closed(inc, r.add(time.Minute))))
	r.server.Fail(telegramtest.Fault{Method: "editMessageText", Drop: true, Deliver: true})
	r.step(t)
	r.add(2 * time.Minute)
	r.step(t) // "message is not modified" is a success
	m := r.only(t)
	if m.Edits() != 1 || strings.Contains(m.Text, "repeat") || len(r.server.Requests("editMessageText")) != 2 {
		t.Errorf("%d edits, %d requests: %q", m.Edits(), len(r.server.Requests("editMessageText")), m.Text)
	}
	if row := r.box.row(2); row.Status != StatusDelivered {
		t.Errorf("update is %s", row.Status)
	}
}

func TestDeletedMessageIsReplacedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inc := incident(10, "errors", "m", t0)
	id := r.trip(factsOf(inc), group)
	r.step(t)
	r.server.DeleteMessage(group, r.only(t).ID)
	for range 3 {
		r.touch(factsOf(closed(inc, r.add(time.Minute))))
		r.step(t)
	}
	m := r.only(t)
	if m.Sounded() || !strings.HasPrefix(m.Text, "🟢 CLOSED") {
		t.Errorf("message %q, sounded %t", m.Text, m.Sounded())
	}
	if row := r.box.row(id); row.MessageID != 0 {
		t.Errorf("the outbox still knows message %d", row.MessageID)
	}
}

func TestMigratedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inc := incident(10, "errors", "m", t0)
	r.trip(factsOf(inc), group)
	r.step(t)
	const super = int64(-100777)
	r.server.Migrate(group, super, false)
	r.add(time.Minute)
	second := r.trip(factsOf(incident(11, "errors", "m", t0)), group)
	r.step(t)
	if row := r.box.row(second); row.ChatID != super || row.Status != StatusDelivered {
		t.Errorf("row %+v", row)
	}
	list := r.server.Messages()
	if len(list) != 2 || list[1].Chat != super {
		t.Fatalf("messages:\n%s", r.server)
	}
	if !r.roster.Configured(super) || !r.roster.Configured(group) {
		t.Error("the new id is not served")
	}
	// Messages made for the old id, by a policy that knows no better, arrive.
	r.add(time.Minute)
	r.trip(factsOf(incident(12, "errors", "m", t0)), group)
	r.step(t)
	if list := r.server.Messages(); len(list) != 3 || list[2].Chat != super {
		t.Errorf("messages:\n%s", r.server)
	}
	if n := len(r.server.Requests("sendMessage")); n != 4 {
		t.Errorf("%d requests, want 4: one refused", n)
	}
}

func TestChatOutOthersGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, Chat{ID: group, Alerts: true}, Chat{ID: private, Alerts: true})
	r.server.Block(private, 403, "Forbidden: bot was blocked by the user")
	f := factsOf(incident(10, "errors", "m", t0))
	id := r.trip(f, private)
	r.trip(f, group)
	for range 5 {
		r.step(t)
		r.add(time.Minute)
	}
	if m := r.only(t); m.Chat != group {
		t.Errorf("message in %d", m.Chat)
	}
	if n := len(r.server.Requests("sendMessage")); n != 2 {
		t.Errorf("%d requests, want 2: a chat that is out is left alone", n)
	}
	if out := r.roster.Out(); !strings.Contains(out[private], "blocked") {
		t.Errorf("out: %v", out)
	}
	r.server.Block(private, 0, "")
	if !r.roster.find(private) {
		t.Fatal("the chat was not out")
	}
	r.step(t)
	if row := r.box.row(id); row.Status != StatusDelivered {
		t.Errorf("row %+v", row)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	const forum = int64(-100500)
	r := newRig(t, Chat{ID: forum, Thread: 7, Alerts: true})
	r.server.AddForum(forum, 7)
	send := func(id uint64, thread int) telegramtest.Message {
		t.Helper()
		r.add(time.Minute)
		r.box.set(factsOf(incident(id, "errors", "m", t0)))
		r.box.add(Message{ChatID: forum, Thread: thread, Kind: KindTrip, DedupeKey: fmt.Sprint(id), Alert: id, CreatedAt: r.now()})
		r.step(t)
		list := r.server.Messages()
		return list[len(list)-1]
	}
	if m := send(10, 7); m.Thread != 7 {
		t.Errorf("thread %d", m.Thread)
	}
	if m := send(11, 1); m.Thread != 0 {
		t.Errorf("General: thread %d", m.Thread)
	}
	r.server.DeleteTopic(forum, 7)
	if m := send(12, 7); m.Thread != 0 || !strings.Contains(m.Text, "topic 7 is gone") {
		t.Errorf("first without its topic: thread %d, %q", m.Thread, m.Text)
	}
	before := len(r.server.Requests("sendMessage"))
	if m := send(13, 7); strings.Contains(m.Text, "is gone") || len(r.server.Requests("sendMessage")) != before+1 {
		t.Errorf("second: %q", m.Text)
	}
}

func TestOfflineBacksOff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Close()
	id := r.trip(factsOf(incident(10, "errors", "m", t0)), group)
	tries := 0
	for range 600 { // ten minutes
		r.step(t)
		r.add(time.Second)
	}
	for _, s := range r.box.settled {
		if s.Status != StatusPending || !strings.Contains(s.Error, "refused") {
			t.Fatalf("settled %+v: nothing was delivered", s)
		}
		tries++
	}
	if tries < 10 || tries > 20 {
		t.Errorf("%d tries in ten minutes", tries)
	}
	if row := r.box.row(id); row.Repeat {
		t.Error("marked as a repeat")
	}
}

// TestBudget holds a burst against what Telegram allows: in a group 20 a minute,
// the urgent ones first.
func TestBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 30 {
		r.box.add(Message{ChatID: group, Kind: KindDigest, DedupeKey: fmt.Sprint("digest", i), Payload: Payload{Text: fmt.Sprint("digest ", i), Silent: true}, CreatedAt: t0})
	}
	r.step(t)
	if n := len(r.server.Messages()); n == 0 || n > 3 {
		t.Errorf("%d digests at once", n)
	}
	r.trip(factsOf(incident(10, "errors", "m", t0)), group)
	next := r.step(t)
	list := r.server.Messages()
	if last := list[len(list)-1]; !strings.HasPrefix(last.Text, "🔴 OPEN") {
		t.Errorf("the trip waits behind digests:\n%s", r.server)
	}
	if !next.After(r.now()) || next.After(r.now().Add(lookAgain)) {
		t.Errorf("next step after %s", next.Sub(r.now()))
	}
	var times []time.Time
	for range 600 {
		r.add(500 * time.Millisecond)
		before := len(r.server.Messages())
		r.step(t)
		for range len(r.server.Messages()) - before {
			times = append(times, r.now())
		}
	}
	if len(times) < 25 {
		t.Errorf("%d messages in five minutes", len(times))
	}
	for i := range times {
		if i >= 20 && times[i].Sub(times[i-20]) < time.Minute {
			t.Fatalf("21 messages within %s", times[i].Sub(times[i-20]))
		}
	}
}

func TestLimitedChatDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, Chat{ID: group, Alerts: true}, Chat{ID: private, Alerts: true})
	r.server.Fail(telegramtest.Fault{Method: "sendMessage", Chat: group, RetryAfter: 30})
	f := factsOf(incident(10, "errors", "m", t0))
	r.trip(f, group)
	r.trip(f, private)
	r.step(t)
	if m := r.only(t); m.Chat != private {
		t.Errorf("message in %d", m.Chat)
	}
	r.add(29 * time.Second)
	r.step(t)
	if n := len(r.server.Messages()); n != 1 {
		t.Errorf("%d messages before the wait is over", n)
	}
	r.add(2 * time.Second)
	r.step(t)
	if n := len(r.server.Messages()); n != 2 {
		t.Errorf("%d messages after the wait", n)
	}
}

func TestWhatIsTooOldExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	add := func(m Message) int64 {
		m.ChatID, m.CreatedAt = group, t0
		return r.box.add(m)
	}
	r.box.set(factsOf(closed(incident(10, "errors", "m", t0), t0.Add(time.Minute))))
	r.box.set(factsOf(incident(11, "errors", "m", t0)))
	digest := add(Message{Kind: KindDigest, DedupeKey: "d", Payload: Payload{Text: "x"}})
	over := add(Message{Kind: KindTrip, DedupeKey: "a", Alert: 10})
	reminder := add(Message{Kind: KindLongOpen, DedupeKey: "b", Alert: 10, Payload: Payload{Step: time.Hour}})
	stillOpen := add(Message{Kind: KindTrip, DedupeKey: "c", Alert: 11})
	r.add(25 * time.Hour)
	r.step(t)
	for id, want := range map[int64]Status{digest: StatusExpired, over: StatusExpired, reminder: StatusExpired, stillOpen: StatusDelivered} {
		if row := r.box.row(id); row.Status != want {
			t.Errorf("row %d (%s) is %s, want %s", id, row.Kind, row.Status, want)
		}
	}
}

func TestOutboxErrorIsReturned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.box.err = errors.New("no database")
	if _, err := r.sender.Step(r.ctx, t0); err == nil || err.Error() != "claim message: no database" {
		t.Errorf("error %v", err)
	}
	if r.sender.Err() == nil {
		t.Error("the sender does not tell")
	}
}

func TestRunSendsWhenWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.box.claimed = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	go func() { defer close(done); r.sender.Run(ctx) }()
	<-r.box.claimed
	r.trip(factsOf(incident(10, "errors", "m", t0)), group)
	r.sender.Wake()
	if _, err := r.server.Wait(r.ctx, func(m telegramtest.Message) bool { return m.Sounded() }); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
}

// TestStopWhileSending: the message in flight is settled, as perhaps delivered.
func TestStopWhileSending(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stop := &stopping{Telegram: r.tg}
	ctx, cancel := context.WithCancel(r.ctx)
	stop.cancel = cancel
	r.sender = NewSender(SenderConfig{Outbox: r.box, Messenger: stop, Roster: r.roster, Clock: r.now})
	id := r.trip(factsOf(incident(10, "errors", "m", t0)), group)
	if _, err := r.sender.Step(ctx, t0); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if row := r.box.row(id); row.Status != StatusUnknown {
		t.Errorf("row is %s", row.Status)
	}
}

// stopping is a Telegram that the service stops while it waits for an answer.
type stopping struct {
	*Telegram
	cancel func()
}

func (s *stopping) Send(ctx context.Context, _ Outgoing) (int64, error) {
	s.cancel()
	return 0, &Error{Method: "sendMessage", Reason: ctx.Err().Error(), trouble: troubleUnknown, cause: ctx.Err()}
}

// dueOutbox knows when its next message is due.
type dueOutbox struct {
	*outbox
	next time.Time
}

func (d dueOutbox) NextDue(context.Context, []int64) (time.Time, error) { return d.next, nil }

func TestStepTellsWhenToComeAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		box  Outbox
		want time.Duration
	}{
		"unknown":       {newOutbox(), time.Second},
		"in an hour":    {dueOutbox{newOutbox(), t0.Add(time.Hour)}, time.Hour},
		"overdue":       {dueOutbox{newOutbox(), t0.Add(-time.Hour)}, 0},
		"nothing waits": {dueOutbox{newOutbox(), time.Time{}}, time.Minute},
	} {
		s := NewSender(SenderConfig{Outbox: c.box, Messenger: NewTerminal(io.Discard, false, nil)})
		next, err := s.Step(t.Context(), t0)
		if err != nil || next.Sub(t0) != c.want {
			t.Errorf("%s: next after %s, %v, want %s", name, next.Sub(t0), err, c.want)
		}
	}
}
