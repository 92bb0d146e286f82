package bot

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// urgency is a class of messages. Each class leaves some of a chat's budget to
// the more urgent ones.
type urgency int

const (
	urgentAlert  urgency = 1 // trips, long-open steps, notices
	urgentAnswer urgency = 2 // to commands
	urgentEdit   urgency = 3 // edits, digests
)

func (k Kind) urgency() urgency {
	switch k {
	case KindUpdate, KindDigest:
		return urgentEdit
	case KindAnswer:
		return urgentAnswer
	}
	return urgentAlert
}

// Budget keeps within what Telegram lets a bot send: about one message a second
// to a chat with short bursts, 20 a minute to a group, 30 a second in all; and
// it keeps a chat waiting that was told to. It runs on real time, is shared by
// everything that sends or edits, and is safe for concurrent use. A nil Budget
// has no limits.
type Budget struct {
	now func() time.Time

	mu    sync.Mutex
	all   *rate.Limiter
	chats map[int64]*chatBudget
}

type chatBudget struct {
	second *rate.Limiter
	minute *rate.Limiter // of groups
	paused time.Time
	used   time.Time
}

// NewBudget makes a full budget; now is the real clock, nil for time.Now.
func NewBudget(now func() time.Time) *Budget {
	if now == nil {
		now = time.Now
	}
	return &Budget{now: now, all: rate.NewLimiter(25, 5), chats: make(map[int64]*chatBudget)}
}

// take takes one request to a chat from the budget, or tells how long to wait
// before asking again.
func (b *Budget) take(chat int64, u urgency) (wait time.Duration) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	c := b.chat(chat, now)
	if wait := b.wait(c, u, now); wait > 0 {
		return wait
	}
	c.spend(now)
	b.all.AllowN(now, 1)
	return 0
}

// spend notes a request that was made without asking: the second try of the
// same message. It never waits; the next message does.
func (b *Budget) spend(chat int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.chat(chat, now).spend(now)
	b.all.ReserveN(now, 1)
}

// pause keeps a chat waiting, as long as Telegram says.
func (b *Budget) pause(chat int64, d time.Duration) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if c, until := b.chat(chat, now), now.Add(d); until.After(c.paused) {
		c.paused = until
	}
}

// full is how long every chat has to wait.
func (b *Budget) full() time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return until(b.all, 1, b.now())
}

// waiting lists the chats to which even the most urgent message has to wait.
func (b *Budget) waiting() map[int64]time.Duration {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	waiting := make(map[int64]time.Duration)
	for id, c := range b.chats {
		if wait := c.wait(urgentAlert, now); wait > 0 {
			waiting[id] = wait
		}
	}
	return waiting
}

// await takes one request from the budget as soon as it has one.
func (b *Budget) await(ctx context.Context, chat int64, u urgency) error {
	for {
		wait := b.take(chat, u)
		if wait == 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

func (b *Budget) wait(c *chatBudget, u urgency, now time.Time) time.Duration {
	return max(c.wait(u, now), until(b.all, 1, now))
}

// maxBudgets bounds how many chats are remembered: strangers get a refusal each.
const maxBudgets = 1000

func (b *Budget) chat(id int64, now time.Time) *chatBudget {
	c := b.chats[id]
	if c == nil {
		if len(b.chats) >= maxBudgets {
			for other, o := range b.chats {
				if now.Sub(o.used) > time.Minute && now.After(o.paused) {
					delete(b.chats, other)
				}
			}
		}
		c = &chatBudget{second: rate.NewLimiter(1, 3)}
		if id < 0 {
			// At most rate × 60 s + burst in any minute: 20.
			c.minute = rate.NewLimiter(0.25, 5)
		}
		b.chats[id] = c
	}
	c.used = now
	return c
}

func (c *chatBudget) wait(u urgency, now time.Time) time.Duration {
	wait := max(c.paused.Sub(now), until(c.second, u, now))
	if c.minute != nil {
		wait = max(wait, until(c.minute, u, now))
	}
	return wait
}

func (c *chatBudget) spend(now time.Time) {
	c.second.ReserveN(now, 1)
	if c.minute != nil {
		c.minute.ReserveN(now, 1)
	}
}

// until is how long a limiter needs to hold that many requests, 0 when it does.
func until(l *rate.Limiter, n urgency, now time.Time) time.Duration {
	missing := float64(n) - l.TokensAt(now)
	if missing <= 1e-6 {
		return 0
	}
	return time.Duration(missing/float64(l.Limit())*float64(time.Second)) + time.Millisecond
}
