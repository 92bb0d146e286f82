package bot

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"breakerbot/bot/telegramtest"
	"breakerbot/breaker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outbox is an Outbox in memory that keeps the contract of outbox.go.
type outbox struct {
	mu      sync.Mutex
	rows    []*Message
	facts   map[uint64]*AlertFacts
	settled []Settlement
	claimed chan struct{} // when set, told of each claim that found nothing
	err     error
}

func newOutbox() *outbox { return &outbox{facts: make(map[uint64]*AlertFacts)} }

// add inserts a row as it stands and gives its id.
func (o *outbox) add(m Message) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	m.ID = int64(len(o.rows) + 1)
	m.Status = cmp.Or(m.Status, StatusPending)
	o.rows = append(o.rows, &m)
	return m.ID
}

// write applies a plan as the journal's transaction does.
func (o *outbox) write(p Plan) {
	for _, m := range p.New {
		o.mu.Lock()
		known := slices.ContainsFunc(o.rows, func(r *Message) bool { return r.DedupeKey == m.DedupeKey })
		o.mu.Unlock()
		if !known {
			o.add(m)
		}
	}
	for alert, due := range p.Touched {
		o.mu.Lock()
		var add []Message
		for _, r := range o.rows {
			if r.Alert != alert || (r.Kind != KindTrip && r.Kind != KindLongOpen) || r.Status != StatusDelivered {
				continue
			}
			key := "update/" + itoa(r.ID)
			i := slices.IndexFunc(o.rows, func(r *Message) bool { return r.DedupeKey == key })
			if i < 0 {
				add = append(add, Message{ChatID: r.ChatID, Thread: r.Thread, Kind: KindUpdate, DedupeKey: key, Alert: alert, Target: r.ID,
					Payload: Payload{Step: r.Payload.Step}, NextAt: due, CreatedAt: due})
				continue
			}
			o.rows[i].Version++
			o.rows[i].Status, o.rows[i].NextAt = StatusPending, due
		}
		o.mu.Unlock()
		for _, m := range add {
			o.add(m)
		}
	}
}

var claimOrder = map[Kind]int{KindTrip: 0, KindLongOpen: 1, KindNotice: 2, KindDigest: 3, KindUpdate: 4}

func (o *outbox) Claim(_ context.Context, now time.Time, limit int, skip []int64) ([]Message, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	var due []*Message
	for _, r := range o.rows {
		if (r.Status == StatusPending || r.Status == StatusUnknown) && !r.NextAt.After(now) && !slices.Contains(skip, r.ChatID) {
			due = append(due, r)
		}
	}
	slices.SortStableFunc(due, func(a, b *Message) int {
		return cmp.Or(claimOrder[a.Kind]-claimOrder[b.Kind], a.NextAt.Compare(b.NextAt))
	})
	var list []Message
	for _, r := range due[:min(limit, len(due))] {
		r.Repeat = r.Status == StatusUnknown
		r.Status = StatusSending
		r.Attempts++
		m := *r
		if m.Kind == KindUpdate {
			m.MessageID = o.rows[m.Target-1].MessageID
		}
		list = append(list, m)
	}
	if len(list) == 0 && o.claimed != nil {
		select {
		case o.claimed <- struct{}{}:
		default:
		}
	}
	return list, nil
}

func (o *outbox) Settle(_ context.Context, _ time.Time, s Settlement) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settled = append(o.settled, s)
	r := o.rows[s.ID-1]
	r.NextAt = s.NextAt
	if r.Status = s.Status; r.Version != s.Version {
		r.Status = StatusPending
	}
	if s.MessageID != 0 {
		r.MessageID = s.MessageID
	}
	return nil
}

func (o *outbox) Facts(_ context.Context, _ time.Time, alert uint64, chat int64) (AlertFacts, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, ok := o.facts[alert]
	if !ok {
		return AlertFacts{Alert: alert}, nil
	}
	facts := *f
	for _, r := range o.rows {
		if r.Alert == alert && r.Kind == KindTrip && r.ChatID == chat {
			facts.TripMessage = r.MessageID
		}
	}
	return facts, nil
}

func (o *outbox) ChatMoved(_ context.Context, from, to int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.rows {
		if r.ChatID == from {
			r.ChatID, r.MessageID = to, 0
		}
	}
	return nil
}

func (o *outbox) ForgetMessage(_ context.Context, id int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rows[id-1].MessageID = 0
	return nil
}

func (o *outbox) row(id int64) Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *o.rows[id-1]
}

func (o *outbox) set(f AlertFacts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.facts[f.Alert] = &f
}

// t0 is when the tests begin: 14:02 on a Monday, in UTC.
var t0 = time.Date(2026, 11, 30, 14, 2, 0, 0, time.UTC)

// incident is an open incident of the rule on gpu-box.
func incident(id uint64, rule, model string, at time.Time) breaker.Incident {
	l := breaker.Labels{Machine: "gpu-box", Model: model}
	return breaker.Incident{
		ID: id, Breaker: breaker.Name(rule, l), Rule: rule, Labels: l, OpenedAt: at, Trips: 1,
		Causes:   []breaker.CauseCount{{Cause: breaker.Refused, N: 2}, {Cause: breaker.Timeout, N: 1}},
		Detail:   "3 calls in a row failed: refused ×2, timeout",
		Evidence: &breaker.Evidence{Agent: "coder-1", Error: "connection refused", Run: 3},
	}
}

func factsOf(incidents ...breaker.Incident) AlertFacts {
	return AlertFacts{Alert: incidents[0].ID, Incidents: incidents, TripsToday: 1}
}

func closed(inc breaker.Incident, at time.Time) breaker.Incident {
	inc.ClosedAt = at
	return inc
}

// clock is a clock that a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
	return c.t
}

// rig is a sender on a stand-in, with a clock that the test moves.
type rig struct {
	*clock
	server *telegramtest.Server
	tg     *Telegram
	box    *outbox
	roster *Roster
	budget *Budget
	sender *Sender
	ctx    context.Context
}

const (
	group   = int64(-1001)
	private = int64(77)
)

func newRig(t *testing.T, chats ...Chat) *rig {
	t.Helper()
	if len(chats) == 0 {
		chats = []Chat{{ID: group, Alerts: true}}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	r := &rig{clock: &clock{t: t0}, server: telegramtest.New(t), box: newOutbox(), ctx: ctx}
	r.server.AddGroup(group)
	r.server.AddPrivate(private)
	r.tg = newClient(t, r.server.URL, nil)
	r.roster = NewRoster(chats, []int64{private})
	r.budget = NewBudget(r.now)
	r.sender = NewSender(SenderConfig{
		Outbox: r.box, Messenger: r.tg, Roster: r.roster, Budget: r.budget, Clock: r.now, Zone: time.UTC,
		Manner: testManner,
	})
	return r
}

func newClient(t *testing.T, url string, change func(*TelegramConfig)) *Telegram {
	t.Helper()
	cfg := TelegramConfig{Token: telegramtest.Token, APIURL: url}
	if change != nil {
		change(&cfg)
	}
	tg, err := NewTelegram(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tg.Close)
	return tg
}

// step steps the sender at the clock's time.
func (r *rig) step(t *testing.T) time.Time {
	t.Helper()
	next, err := r.sender.Step(r.ctx, r.now())
	if err != nil {
		t.Fatalf("step: %v", err)
	}
	return next
}

// trip puts the trip message of an alert into the outbox.
func (r *rig) trip(f AlertFacts, chat int64) int64 {
	r.box.set(f)
	return r.box.add(Message{ChatID: chat, Kind: KindTrip, DedupeKey: "trip/" + itoa(int64(f.Alert)) + "/" + itoa(chat), Alert: f.Alert, NextAt: r.now(), CreatedAt: r.now()})
}

// touch asks for an edit of what was delivered of an alert.
func (r *rig) touch(f AlertFacts) {
	r.box.set(f)
	r.box.write(Plan{Touched: map[uint64]time.Time{f.Alert: r.now()}})
}

func (r *rig) only(t *testing.T) telegramtest.Message {
	t.Helper()
	list := r.server.Messages()
	if len(list) != 1 {
		t.Fatalf("%d messages, want 1:\n%s", len(list), r.server)
	}
	return list[0]
}
