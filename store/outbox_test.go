package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"breakerbot/bot"
	"breakerbot/breaker"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

// mail is a database with an outbox that is filled through the journal.
type mail struct {
	*store.DB
	t    *testing.T
	conn *pgx.Conn
	f    *feed
	j    *store.Journal
}

func newMail(t *testing.T) *mail {
	t.Helper()
	url := storetest.URL(t)
	m := &mail{DB: storetest.Open(t, url), t: t, conn: connect(t, url), f: &feed{}}
	m.j = journal(t, m.DB, m.f)
	return m
}

func (m *mail) write(p bot.Plan, now time.Time) {
	m.t.Helper()
	m.f.plan(p)
	flush(m.t, m.j, now)
}

// trip is alert 1 with its trip message to chat -5, written.
func (m *mail) trip() {
	m.t.Helper()
	m.f.transitions(trip(1))
	m.write(bot.Plan{
		Joins: map[uint64]uint64{1: 1},
		New:   []bot.Message{{ChatID: -5, Thread: 7, Kind: bot.KindTrip, DedupeKey: "trip/1/-5", Alert: 1, NextAt: at(5)}},
	}, at(1))
}

func (m *mail) claim(now time.Time) []bot.Message {
	m.t.Helper()
	list, err := m.Claim(m.t.Context(), now, 10, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}

// claimOne claims and expects one message.
func (m *mail) claimOne(now time.Time) bot.Message {
	m.t.Helper()
	list := m.claim(now)
	if len(list) != 1 {
		m.t.Fatalf("claimed %d messages at %v, want 1: %+v", len(list), now, list)
	}
	return list[0]
}

func (m *mail) settle(now time.Time, s bot.Settlement) {
	m.t.Helper()
	if err := m.Settle(m.t.Context(), now, s); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mail) delivered(now time.Time, msg bot.Message, id int64) {
	m.t.Helper()
	m.settle(now, bot.Settlement{ID: msg.ID, Version: msg.Version, Status: bot.StatusDelivered, MessageID: id})
}

// rows tells kind, status and version of every row.
func (m *mail) rows() string {
	m.t.Helper()
	return one[string](m.t, m.conn, "SELECT coalesce(string_agg(concat_ws(' ', kind, status, version), ', ' ORDER BY id), '') FROM outbox")
}

func (m *mail) want(rows string) {
	m.t.Helper()
	if got := m.rows(); got != rows {
		m.t.Errorf("the outbox is %q, want %q", got, rows)
	}
}

func touched(seconds int) bot.Plan { return bot.Plan{Touched: map[uint64]time.Time{1: at(seconds)}} }

func TestClaimTakesWhatIsDueTheUrgentFirst(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	var p bot.Plan
	for i, kind := range []bot.Kind{bot.KindDigest, bot.KindNotice, bot.KindLongOpen, bot.KindTrip, bot.KindTrip} {
		p.New = append(p.New, bot.Message{ChatID: int64(i), Kind: kind, DedupeKey: fmt.Sprint(i), NextAt: at(10 - i), CreatedAt: at(1)})
	}
	p.New = append(p.New, bot.Message{ChatID: 9, Kind: bot.KindTrip, DedupeKey: "later", NextAt: at(99)},
		bot.Message{ChatID: 66, Kind: bot.KindTrip, DedupeKey: "skipped", NextAt: at(1)})
	m.write(p, at(1))
	if next, err := m.NextDue(t.Context(), []int64{66}); err != nil || !next.Equal(at(6)) {
		t.Errorf("the next is due at %v (%v), want %v", next, err, at(6))
	}
	if list := m.claim(at(0)); len(list) != 0 {
		t.Errorf("claimed %v before it was due", list)
	}
	list, err := m.Claim(t.Context(), at(20), 4, []int64{66})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, c := range list {
		keys = append(keys, c.DedupeKey)
		if c.Status != bot.StatusSending || c.Attempts != 1 || c.Repeat {
			t.Errorf("claimed as %+v", c)
		}
	}
	if got := strings.Join(keys, " "); got != "4 3 2 1" {
		t.Errorf("claimed %s, want 4 3 2 1", got)
	}
	if rest, err := m.Claim(t.Context(), at(20), 10, []int64{66}); err != nil || len(rest) != 1 || rest[0].DedupeKey != "0" || !rest[0].CreatedAt.Equal(at(1)) {
		t.Errorf("the rest is %+v, %v", rest, err)
	}
	if got := testutil.ToFloat64(m.OutboxPending()); got != 7 {
		t.Errorf("%v messages are pending, want 7", got)
	}
}

func TestTwoClaimersNeverGetTheSame(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	var p bot.Plan
	for i := range 200 {
		p.New = append(p.New, bot.Message{ChatID: 1, Kind: bot.KindNotice, DedupeKey: fmt.Sprint(i), NextAt: at(1)})
	}
	m.write(p, at(1))
	var mu sync.Mutex
	seen := map[int64]int{}
	var claimers sync.WaitGroup
	for range 4 {
		claimers.Go(func() {
			for {
				list, err := m.Claim(t.Context(), at(2), 7, nil)
				if err != nil || len(list) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				for _, c := range list {
					seen[c.ID]++
				}
				mu.Unlock()
			}
		})
	}
	claimers.Wait()
	if len(seen) != 200 {
		t.Errorf("%d messages were claimed, want 200", len(seen))
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("message %d was claimed %d times", id, n)
		}
	}
}

func TestPayloadsComeBackWhole(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	want := bot.Payload{Text: "<b>5 < 6 &amp; \x00 ä</b>", Silent: true, Step: time.Hour, Photo: []byte{0, 1, 255}}
	m.write(bot.Plan{New: []bot.Message{{ChatID: -5, Thread: 7, Kind: bot.KindNotice, DedupeKey: "k", Payload: want}}}, at(1))
	got := m.claimOne(at(1))
	want.Text = "<b>5 < 6 &amp; \uFFFD ä</b>"
	if fmt.Sprint(got.Payload) != fmt.Sprint(want) || got.ChatID != -5 || got.Thread != 7 || got.Alert != 0 {
		t.Errorf("got %+v, want payload %+v", got, want)
	}
}

func TestSettlements(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	m.settle(at(6), bot.Settlement{ID: msg.ID, Status: bot.StatusPending, NextAt: at(30), Error: "429"})
	if list := m.claim(at(29)); len(list) != 0 {
		t.Errorf("claimed %v while its chat has to wait", list)
	}
	msg = m.claimOne(at(30))
	if msg.Repeat || msg.Attempts != 2 {
		t.Errorf("after a definite refusal it is %+v", msg)
	}
	m.settle(at(31), bot.Settlement{ID: msg.ID, Status: bot.StatusUnknown, NextAt: at(60), Error: "EOF"})
	msg = m.claimOne(at(60))
	if !msg.Repeat {
		t.Error("after an unknown result it is no repeat")
	}
	m.settle(at(61), bot.Settlement{ID: msg.ID, Status: bot.StatusPending, NextAt: at(70)})
	if msg = m.claimOne(at(70)); !msg.Repeat {
		t.Error("that an earlier attempt may have been delivered is forgotten")
	}
	m.delivered(at(71), msg, 500)
	m.want("trip delivered 0")
	// The answer to the settlement was lost, it comes again, and a late one too.
	m.delivered(at(72), msg, 501)
	m.settle(at(73), bot.Settlement{ID: msg.ID, Status: bot.StatusFailed})
	m.want("trip delivered 0")
	if id := one[int64](t, m.conn, "SELECT message_id FROM outbox"); id != 500 {
		t.Errorf("Telegram's id is %d, want 500", id)
	}
	if err := m.Settle(t.Context(), at(1), bot.Settlement{ID: 12345, Status: bot.StatusFailed}); err == nil {
		t.Error("a row that is not there was settled")
	}
}

func TestUpdatesOfAnAlertMerge(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	m.delivered(at(6), msg, 500)
	m.write(bot.Plan{New: []bot.Message{{ChatID: -5, Kind: bot.KindLongOpen, DedupeKey: "long/1", Alert: 1, NextAt: at(7), Payload: bot.Payload{Step: time.Hour}},
		{ChatID: -5, Kind: bot.KindNotice, DedupeKey: "notice"}}}, at(7))
	for _, c := range m.claim(at(7)) {
		m.delivered(at(8), c, 600)
	}
	m.write(touched(20), at(10))
	m.write(touched(15), at(11)) // no earlier than either
	m.write(bot.Plan{Touched: map[uint64]time.Time{2: at(1)}}, at(12))
	m.want("trip delivered 0, long_open delivered 0, notice delivered 0, update pending 1, update pending 1")
	if list := m.claim(at(19)); len(list) != 0 {
		t.Errorf("claimed %v too early", list)
	}
	edits := m.claim(at(20))
	if len(edits) != 2 {
		t.Fatalf("claimed %d edits, want 2", len(edits))
	}
	edit, step := edits[0], edits[1]
	if edit.Target != msg.ID || edit.MessageID != 500 || edit.Alert != 1 || edit.ChatID != -5 || edit.Thread != 7 || edit.Payload.Step != 0 || edit.Version != 1 {
		t.Errorf("the edit of the trip is %+v", edit)
	}
	if step.MessageID != 600 || step.Payload.Step != time.Hour {
		t.Errorf("the edit of the step is %+v", step)
	}
	// Asked for again while it is on its way: not to be claimed twice, and not
	// done when the older edit is.
	m.write(touched(30), at(21))
	if list := m.claim(at(99)); len(list) != 0 {
		t.Errorf("claimed %v, which is on its way", list)
	}
	m.delivered(at(22), edit, 0)
	m.settle(at(22), bot.Settlement{ID: step.ID, Version: step.Version, Status: bot.StatusPending, NextAt: at(50), Error: "429"})
	if list := m.claim(at(29)); len(list) != 0 {
		t.Errorf("claimed %v before the time asked for", list)
	}
	again := m.claimOne(at(30))
	if again.ID != edit.ID || again.Version != 2 || again.MessageID != 500 {
		t.Errorf("the edit comes again as %+v", again)
	}
	m.delivered(at(31), again, 0)
	if late := m.claimOne(at(50)); late.ID != step.ID || late.Version != 2 {
		t.Errorf("the edit that had to wait comes as %+v", late)
	} else {
		m.delivered(at(51), late, 0)
	}
	m.want("trip delivered 0, long_open delivered 0, notice delivered 0, update delivered 2, update delivered 2")
	if next, err := m.NextDue(t.Context(), nil); err != nil || !next.IsZero() {
		t.Errorf("the next is due at %v, %v; want nothing", next, err)
	}
}

func TestAnAlertTouchedBeforeItsTripIsSentNeedsNoUpdate(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	m.write(touched(3), at(2))
	msg := m.claimOne(at(5)) // and rendered after this
	m.delivered(at(6), msg, 500)
	m.want("trip delivered 0")
}

func TestAnAlertTouchedWhileItsTripIsSentGetsItsUpdate(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5)) // rendered from the facts of now
	m.write(touched(8), at(6))
	m.write(touched(7), at(6))
	m.want("trip sending 0")
	m.delivered(at(7), msg, 500)
	m.want("trip delivered 0, update pending 0")
	if list := m.claim(at(7)); len(list) != 0 {
		t.Errorf("claimed %v before the time asked for", list)
	}
	if edit := m.claimOne(at(8)); edit.MessageID != 500 || edit.Target != msg.ID {
		t.Errorf("the edit is %+v", edit)
	}
}

func TestATripThatIsSentAgainIsUpToDate(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	m.write(touched(8), at(6))
	m.settle(at(7), bot.Settlement{ID: msg.ID, Status: bot.StatusPending, NextAt: at(9)})
	msg = m.claimOne(at(9)) // rendered anew
	m.delivered(at(10), msg, 500)
	m.want("trip delivered 0")
}

// The touch and the settlement of the delivered trip come at the same moment.
// Whatever the order, an update follows: nobody has seen what was touched.
func TestTouchAndSettlementAtTheSameMoment(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	// The settlement holds the row, uncommitted, when the touch comes.
	url := m.conn.Config().ConnString()
	settling := connect(t, url)
	execute(t, settling, "BEGIN")
	execute(t, settling, "UPDATE outbox SET status = 'delivered', message_id = 500 WHERE id = $1", msg.ID)
	m.f.plan(touched(8))
	done := make(chan error, 1)
	go func() { done <- m.j.Flush(context.Background(), at(6)) }()
	waitForLock(t, m.conn)
	execute(t, settling, "COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	m.want("trip delivered 0, update pending 0")

	// The touch holds the row, uncommitted, when the settlement comes.
	n := newMail(t)
	n.trip()
	msg = n.claimOne(at(5))
	touching := connect(t, n.conn.Config().ConnString())
	execute(t, touching, "BEGIN")
	execute(t, touching, "UPDATE outbox SET stale_from = $1 WHERE id = $2", at(8), msg.ID)
	go func() {
		done <- n.Settle(context.Background(), at(7), bot.Settlement{ID: msg.ID, Status: bot.StatusDelivered, MessageID: 500})
	}()
	waitForLock(t, n.conn)
	execute(t, touching, "COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n.want("trip delivered 0, update pending 0")
}

// waitForLock returns when a session of this database waits for another.
func waitForLock(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for !one[bool](t, conn, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')") {
		if t.Context().Err() != nil {
			t.Fatal("nobody waits")
		}
	}
}

// A sender and a policy that touches go on at the same time; in the end the
// last touch has been followed by a claim.
func TestNoTouchIsForgotten(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	const rounds = 60
	var lastClaim, touches int64
	done := make(chan struct{})
	facts := func() int64 { // what a rendering would see
		var n int64
		if err := m.conn.QueryRow(t.Context(), "SELECT refused FROM incidents WHERE id = 1").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	var sender sync.WaitGroup
	step := func() (worked bool) {
		list, err := m.Claim(t.Context(), at(1000), 10, nil)
		if err != nil {
			t.Error(err)
			return false
		}
		for _, c := range list {
			lastClaim = facts()
			if err := m.Settle(t.Context(), at(1000), bot.Settlement{ID: c.ID, Version: c.Version, Status: bot.StatusDelivered, MessageID: 500}); err != nil {
				t.Error(err)
			}
		}
		return len(list) > 0
	}
	sender.Go(func() {
		for {
			step()
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for range rounds {
		touches++
		m.f.put(func(b *breaker.Batch) {
			b.Asks = []breaker.Asked{{Labels: gpu, At: at(1), Reason: breaker.RefusedOpen, Incidents: []uint64{1}, N: 1}}
		})
		m.write(touched(6), at(6))
	}
	close(done)
	sender.Wait()
	for step() {
	}
	if lastClaim != touches {
		t.Errorf("the last message shows %d, the facts are %d", lastClaim, touches)
	}
}

func TestWhatWasOnItsWayAtTheEndIsUnknown(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	m.delivered(at(5), msg, 500)
	m.write(touched(6), at(6))
	m.write(bot.Plan{New: []bot.Message{{ChatID: -5, Kind: bot.KindNotice, DedupeKey: "n"}}}, at(6))
	if n := len(m.claim(at(6))); n != 2 {
		t.Fatalf("claimed %d messages, want 2", n)
	}
	if n, err := m.ResumeOutbox(t.Context(), at(9)); err != nil || n != 2 {
		t.Fatalf("resumed %d, %v; want 2", n, err)
	}
	m.want("trip delivered 0, update pending 0, notice unknown 0")
	for _, c := range m.claim(at(9)) {
		if c.Repeat != (c.Kind == bot.KindNotice) {
			t.Errorf("%s comes with repeat %v", c.Kind, c.Repeat)
		}
	}
}

func TestAMovedChat(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	m.delivered(at(6), msg, 500)
	m.write(touched(7), at(6))
	m.write(bot.Plan{New: []bot.Message{{ChatID: -5, Kind: bot.KindNotice, DedupeKey: "waiting", NextAt: at(7)}}}, at(6))
	if err := m.ChatMoved(t.Context(), -5, -1005); err != nil {
		t.Fatal(err)
	}
	if err := m.ChatMoved(t.Context(), -1005, -1006); err != nil {
		t.Fatal(err)
	}
	m.want("trip delivered 0, update expired 0, notice pending 0")
	// The configuration still says -5.
	m.write(bot.Plan{New: []bot.Message{{ChatID: -5, Kind: bot.KindNotice, DedupeKey: "new", NextAt: at(8)}}, Touched: touched(8).Touched}, at(8))
	m.want("trip delivered 0, update expired 0, notice pending 0, notice pending 0")
	for _, c := range m.claim(at(8)) {
		if c.ChatID != -1006 {
			t.Errorf("%s goes to %d, want -1006", c.DedupeKey, c.ChatID)
		}
	}
	if f, err := m.Facts(t.Context(), at(9), 1, -5); err != nil || f.TripMessage != 0 {
		t.Errorf("the trip's message is %d (%v), want none", f.TripMessage, err)
	}
	if err := m.ChatMoved(t.Context(), 4, 4); err == nil {
		t.Error("a chat moved to itself")
	}
	if moved, err := m.MovedChats(t.Context()); err != nil || moved[-5] != -1006 || moved[-1005] != -1006 {
		t.Errorf("moved chats %v (%v), want both old ids to lead to -1006", moved, err)
	}
	// And back, which must not send messages round in a circle.
	if err := m.ChatMoved(t.Context(), -1006, -5); err != nil {
		t.Fatal(err)
	}
	m.write(bot.Plan{New: []bot.Message{{ChatID: -5, Kind: bot.KindTrip, DedupeKey: "home", NextAt: at(1)}}}, at(8))
	if c := m.claimOne(at(8)); c.ChatID != -5 {
		t.Errorf("the message goes to %d, want -5", c.ChatID)
	}
}

func TestAForgottenMessageIsNotEdited(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	m.trip()
	msg := m.claimOne(at(5))
	m.delivered(at(6), msg, 500)
	m.write(touched(7), at(6))
	edit := m.claimOne(at(7))
	m.write(touched(8), at(7))
	if err := m.ForgetMessage(t.Context(), edit.Target); err != nil {
		t.Fatal(err)
	}
	m.settle(at(8), bot.Settlement{ID: edit.ID, Version: edit.Version, Status: bot.StatusDelivered, MessageID: 900})
	if again := m.claimOne(at(8)); again.MessageID != 0 {
		t.Errorf("the edit that was asked for meanwhile names message %d", again.MessageID)
	}
	m.write(touched(9), at(9))
	if next, err := m.NextDue(t.Context(), nil); err != nil || !next.IsZero() {
		t.Errorf("an edit is due at %v, %v", next, err)
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	m := newMail(t)
	// Yesterday, today before, the alert's own two, and one afterwards.
	yesterday := trip(1)
	yesterday.At = t0.Add(-20 * time.Hour)
	closing := func(era, incident int) breaker.Transition {
		return step(era, breaker.HalfOpen, breaker.Closed, breaker.ReasonProbeOK, 0, incident)
	}
	closed := closing(2, 1)
	closed.At = yesterday.At.Add(time.Minute)
	other := tripOf("gpu-box", 11)
	other.Rule, other.Labels = "access", breaker.Labels{Provider: "lab"}
	other.Breaker = breaker.Name(other.Rule, other.Labels)
	other.RetryAt = at(3611)
	m.f.transitions(yesterday, closed, trip(3), closing(4, 3), trip(10), other,
		step(12, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 10),
		step(20, breaker.HalfOpen, breaker.Open, breaker.ReasonProbeFailed, breaker.Timeout, 10))
	m.f.put(func(b *breaker.Batch) {
		ask := func(agent, reason string, n int) breaker.Asked {
			a := breaker.Asked{Labels: gpu, At: at(30), Reason: reason, N: n}
			a.Agent = agent
			if reason == breaker.RefusedOpen {
				a.Incidents = []uint64{10}
			}
			return a
		}
		b.Asks = []breaker.Asked{ask("a", breaker.RefusedOpen, 5), ask("b", breaker.RefusedOpen, 2), ask("c", breaker.AskedGranted, 9)}
		outcome := func(agent string, cause breaker.Cause, from breaker.Fallback) breaker.Applied {
			o := breaker.Applied{Labels: gpu, At: at(30), Cause: cause, Fallback: from}
			o.Agent = agent
			if from.Machine != "" {
				o.Machine, o.Model, o.Served = "mac-mini", "small", breaker.ServedFallback
			}
			return o
		}
		mine := breaker.Fallback{Machine: "gpu-box", Model: "qwen3-30b", Cause: breaker.Refused}
		b.Outcomes = []breaker.Applied{
			outcome("d", breaker.Refused, breaker.Fallback{}), outcome("e", breaker.OK, breaker.Fallback{}),
			outcome("f", breaker.OK, mine), outcome("f", breaker.OK, mine),
			outcome("f", breaker.OK, breaker.Fallback{Machine: "gpu-box", Model: "another"}),
		}
		// A provider is the machine where none is named; lab is another.
		b.States = []breaker.Saved{
			{Name: gpuErrors, Rule: "errors", State: breaker.Open, Era: 20, RetryAt: at(80)},
			{Name: other.Breaker, Rule: "access", State: breaker.Open, Era: 11, RetryAt: at(3611)},
		}
	})
	m.write(bot.Plan{
		Joins: map[uint64]uint64{10: 10, 11: 10},
		New:   []bot.Message{{ChatID: -5, Kind: bot.KindTrip, DedupeKey: "t", Alert: 10}, {ChatID: -6, Kind: bot.KindTrip, DedupeKey: "u", Alert: 10}},
	}, at(31))
	for _, c := range m.claim(at(31)) {
		m.delivered(at(31), c, -c.ChatID*100)
	}
	f, err := m.Facts(t.Context(), at(40), 10, -6)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Incidents) != 2 || f.Incidents[0].ID != 10 || f.Incidents[1].ID != 11 || f.Incidents[0].Refused != 7 {
		t.Errorf("the incidents are %+v", f.Incidents)
	}
	f.Incidents = nil
	want := bot.AlertFacts{Alert: 10, Refused: 7, Rerouted: 2, Agents: 3, TripsToday: 2, ProbesFailed: 1, LastProbeAt: at(20), LastProbe: breaker.Timeout,
		TripMessage: 600, NextProbeAt: at(80)}
	if fmt.Sprintf("%+v", f) != fmt.Sprintf("%+v", want) {
		t.Errorf("the facts are\n%+v, want\n%+v", f, want)
	}
	// In a zone where midnight lies between, the earlier one was yesterday.
	zone := time.FixedZone("there", 10*3600-5)
	if f, err = m.Facts(t.Context(), at(40).In(zone), 10, -6); err != nil || f.TripsToday != 1 {
		t.Errorf("in %v it is the trip number %d, %v; want 1", zone, f.TripsToday, err)
	}
	m.f.transitions(step(81, breaker.Open, breaker.HalfOpen, breaker.ReasonProbeGranted, 0, 10), closing(82, 10))
	flush(t, m.j, at(82))
	if f, err = m.Facts(t.Context(), at(90), 10, -7); err != nil || f.ClosedByProbe != 2 || f.TripMessage != 0 || !f.NextProbeAt.Equal(at(3611)) {
		t.Errorf("closed by probe %d, trip message %d, next probe at %v, %v", f.ClosedByProbe, f.TripMessage, f.NextProbeAt, err)
	}
	if f, err = m.Facts(t.Context(), at(90), 77, -5); err != nil || len(f.Incidents) != 0 {
		t.Errorf("facts of an alert that is none: %+v, %v, want nothing", f, err)
	}
}
