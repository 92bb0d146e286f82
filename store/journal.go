package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"breakerbot/bot"
	"breakerbot/breaker"
)

// ErrAway is the error of Wait while the database takes nothing: what was
// applied is on its way there and will be written in order once it is back.
var ErrAway = errors.New("the database is away")

// Engine is what the journal needs of breaker.Engine.
type Engine interface {
	Drain() breaker.Batch
	Reuse(breaker.Batch)
	Backlog() int
}

// Policy is what the journal needs of bot.Alerts. The journal calls it in the
// engine's order and never from two goroutines at a time.
type Policy interface {
	Plan([]breaker.Transition) bot.Plan
	Tick(now time.Time) bot.Plan
}

// JournalOptions are the parts that a Journal joins.
type JournalOptions struct {
	DB     *DB
	Engine Engine
	Policy Policy
	// Max bounds the transitions, outcomes and asks that wait to be written;
	// zero is DefaultJournalMax.
	Max int
	// Every is the time between two ticks of Run; zero is a second, below zero
	// leaves the ticks to Flush.
	Every time.Duration
	// Advance is called at each tick before the engine is drained, such as
	// breaker.Engine's; nil is nothing.
	Advance func(now time.Time)
	// Now is the clock that ticks are dated by; nil is time.Now.
	Now func() time.Time
	// OnCommit is called after each commit, from the goroutine that made it: the
	// outbox may hold something new. It must not block; nil is nobody.
	OnCommit func()
	Log      *slog.Logger // nil is slog's default
	// Registerer gets the journal's metrics; nil is nobody. MaxSeries bounds
	// the breakers that have series of their own; zero is DefaultMaxSeries.
	Registerer prometheus.Registerer
	MaxSeries  int
}

const (
	// DefaultJournalMax is the bound of the queue unless told otherwise.
	DefaultJournalMax = 200_000
	// DefaultMaxSeries is the bound of the series unless told otherwise.
	DefaultMaxSeries = 20_000

	retryFirst = 100 * time.Millisecond
	retryMax   = 2 * time.Second
	// A try may take tryFirst; one that ran out of time lets the next take
	// twice as long, up to tryMax, since a long queue takes long.
	tryFirst = 10 * time.Second
	tryMax   = 2 * time.Minute
	// slowAfter is how long a try may last before waiting for it is given up.
	slowAfter = 2 * time.Second
	// logLost bounds the log lines for transitions lost at stop.
	logLost = 1000
)

// Journal writes what the engine did, in the engine's order, and what the alert
// policy wants said about it, in the same transaction. While one transaction
// runs the next one gathers. Its methods are safe for concurrent use.
type Journal struct {
	o    JournalOptions
	kick chan struct{} // one waiting signal is enough

	gathering sync.Mutex    // Advance, Drain, Plan and Tick, in one order
	writing   chan struct{} // holds one token while a group is written
	life      context.Context
	end       context.CancelFunc

	mu        sync.Mutex
	began     bool // committed is known
	committed uint64
	head      *group // being written, or to be tried again as it is
	tail      *group // gathered behind it
	tryLimit  time.Duration
	trying    time.Time // since when a try runs; zero: none
	away      bool
	awaySince time.Time
	refused   bool          // the database's refusal has been logged
	changed   chan struct{} // closed and made anew when committed or away change

	metrics *journalMetrics
}

// NewJournal makes the journal of an engine that was restored from this
// database, or is new like it. It does nothing until Run, Flush or Close.
func NewJournal(o JournalOptions) *Journal {
	if o.Max <= 0 {
		o.Max = DefaultJournalMax
	}
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.MaxSeries <= 0 {
		o.MaxSeries = DefaultMaxSeries
	}
	j := &Journal{
		o:        o,
		kick:     make(chan struct{}, 1),
		writing:  make(chan struct{}, 1),
		tryLimit: tryFirst,
		changed:  make(chan struct{}),
	}
	j.life, j.end = context.WithCancel(context.Background())
	j.metrics = newJournalMetrics(j)
	return j
}

// Kick makes Run write what the engine holds, without waiting for the tick.
func (j *Journal) Kick() {
	select {
	case j.kick <- struct{}{}:
	default:
	}
}

// Wait returns nil when everything up to the engine's number seq is committed.
// While the database is known to be away it returns ErrAway at once, otherwise
// the error of ctx when that ends first.
func (j *Journal) Wait(ctx context.Context, seq uint64) error {
	for {
		j.mu.Lock()
		committed, away, changed := j.committed, j.away, j.changed
		j.mu.Unlock()
		switch {
		case committed >= seq:
			return nil
		case away:
			return ErrAway
		}
		j.Kick()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Away tells whether the database takes nothing, and since when.
func (j *Journal) Away() (since time.Time, away bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.awaySince, j.away
}

// Full tells whether as much waits as may wait. Whoever asks before applying
// may overshoot the bound by what is applied at the same moment.
func (j *Journal) Full() bool { return j.waiting() >= j.o.Max }

// waiting counts the entries that are not committed.
func (j *Journal) waiting() int {
	n := j.o.Engine.Backlog()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range []*group{j.head, j.tail} {
		if g != nil {
			n += g.entries
		}
	}
	return n
}

// lag is the age of the oldest entry that is not committed.
func (j *Journal) lag() time.Duration {
	now := j.o.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range []*group{j.head, j.tail} {
		if g != nil {
			return max(now.Sub(g.since), 0)
		}
	}
	return 0
}

// gather puts what has happened behind what waits. A tick also moves the engine
// and the policy to now.
func (j *Journal) gather(now time.Time, tick bool) {
	j.gathering.Lock()
	defer j.gathering.Unlock()
	if tick && j.o.Advance != nil {
		j.o.Advance(now)
	}
	b := j.o.Engine.Drain()
	inputs, err := b.Inputs.AppendBinary(nil)
	if err != nil { // which it promises not to give
		j.o.Log.Error("encode inputs", "err", err)
	}
	var plans []bot.Plan
	if len(b.Transitions) > 0 {
		plans = append(plans, j.o.Policy.Plan(b.Transitions))
	}
	if tick {
		plans = append(plans, j.o.Policy.Tick(now))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.began {
		j.began = true
		j.committed = max(j.committed, b.From)
	}
	g := j.tail
	if g == nil {
		g = newGroup(b.From, b.Clock)
		g.since = now
	}
	g.now = now
	if !b.Empty() {
		g.add(b)
		g.addInputs(inputs)
		// What is counted is done with; the states are when they are written.
		j.o.Engine.Reuse(breaker.Batch{Outcomes: b.Outcomes, Asks: b.Asks, Inputs: b.Inputs})
		b.Outcomes, b.Asks, b.Inputs = nil, nil, breaker.Inputs{}
		g.last = b
	}
	for _, p := range plans {
		g.addPlan(p)
	}
	if !g.empty() {
		j.tail = g
	}
}

// next is the group to write now, nil when nothing waits.
func (j *Journal) next() *group {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.head == nil {
		j.head, j.tail = j.tail, nil
	}
	return j.head
}

// lockWriting takes the right to write; false when ctx ends first.
func (j *Journal) lockWriting(ctx context.Context) bool {
	select {
	case j.writing <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (j *Journal) unlockWriting() { <-j.writing }

// try writes the next group, under the right to write. A connection that was
// lost and a deadlock are tried again at once before the database counts as
// away.
func (j *Journal) try(ctx context.Context) error {
	g := j.next()
	if g == nil {
		return nil
	}
	var err error
	for range 3 {
		j.mu.Lock()
		limit := j.tryLimit
		j.trying = time.Now()
		j.mu.Unlock()
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, limit)
		err = j.o.DB.write(limited, g)
		timeout := limited.Err() != nil && ctx.Err() == nil
		cancel()
		g.tried = true
		j.mu.Lock()
		j.trying = time.Time{}
		if timeout {
			j.tryLimit = min(limit*2, tryMax)
		}
		j.mu.Unlock()
		if err == nil {
			j.metrics.commit.Observe(time.Since(began).Seconds())
			j.commit(g)
			return nil
		}
		if timeout || ctx.Err() != nil || !transient(err) {
			break
		}
	}
	j.goneAway(err)
	return err
}

// transient tells whether trying again at once is worth it.
func transient(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case "40001", "40P01", "57P01", "25P03": // serialization, deadlock, terminated, idle for too long
			return true
		}
		return false
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return !connecting && !errors.Is(err, errForeign)
}

// commit takes a group that is in the database off the queue and wakes whoever
// waits for it.
func (j *Journal) commit(g *group) {
	rows := j.waiting()
	j.mu.Lock()
	j.head = nil
	j.committed = max(j.committed, g.to)
	j.tryLimit = tryFirst
	was, since := j.away, j.awaySince
	j.away, j.refused = false, false
	j.wake()
	j.mu.Unlock()
	defer j.o.Engine.Reuse(g.last)
	if was {
		j.o.Log.Info("the database is back", "away", time.Since(since).Round(time.Millisecond), "rows_waiting", rows)
	}
	j.metrics.committed(g)
	if g.unrecorded > 0 {
		j.o.Log.Warn("fallbacks and degraded answers were given and not recorded: the database was away for too long", "routes", g.unrecorded, "recorded", len(g.routes))
	}
	if j.o.OnCommit != nil {
		j.o.OnCommit()
	}
}

// wake tells all waiters to look again. The caller holds mu.
func (j *Journal) wake() {
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *Journal) goneAway(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.away {
		j.away, j.awaySince = true, time.Now()
		j.wake()
		j.o.Log.Warn("the database is away, decisions go on from memory", "err", err)
	}
	// One that answers and refuses will not get better by itself.
	if refusal(err) && !j.refused {
		j.refused = true
		j.o.Log.Error("the database refuses the journal, which waits", "err", err)
	}
}

func refusal(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code[:2] {
		case "22", "23", "42", "54":
			return true
		}
	}
	return errors.Is(err, errForeign)
}

// checkSlow gives up waiting for a try that lasts: its database hangs.
func (j *Journal) checkSlow() {
	j.mu.Lock()
	hangs := !j.trying.IsZero() && time.Since(j.trying) > slowAfter
	j.mu.Unlock()
	if hangs {
		j.goneAway(fmt.Errorf("a transaction has lasted over %v", slowAfter))
	}
}

// Run writes until ctx ends: at once when kicked, and at each tick. It leaves
// what waits then to Close.
func (j *Journal) Run(ctx context.Context) {
	var tick <-chan time.Time
	if j.o.Every > 0 {
		ticker := time.NewTicker(j.o.Every)
		defer ticker.Stop()
		tick = ticker.C
	}
	result := make(chan error, 1)
	writing := false
	wait := retryFirst
	var retry <-chan time.Time
	for {
		if !writing && retry == nil && j.next() != nil {
			writing = true
			go func() {
				if !j.lockWriting(j.life) {
					result <- j.life.Err()
					return
				}
				defer j.unlockWriting()
				result <- j.try(j.life)
			}()
		}
		select {
		case <-ctx.Done():
			return
		case <-j.kick:
			if !writing && retry == nil {
				j.gather(j.o.Now(), false)
			}
		case <-tick:
			j.gather(j.o.Now(), true)
			j.checkSlow()
		case err := <-result:
			writing = false
			if err != nil {
				// Half of it fixed, half by chance, so that many do not come at once.
				retry = time.After(wait/2 + rand.N(wait/2))
				wait = min(wait*2, retryMax)
				continue
			}
			wait = retryFirst
			j.gather(j.o.Now(), false) // who kicked meanwhile was not heard
		case <-retry:
			retry = nil
		}
	}
}

// Flush is one tick, done when it returns: everything that has happened is
// gathered and committed. Its error is that of the write; what could not be
// written waits for the next Flush. It goes together with Run.
func (j *Journal) Flush(ctx context.Context, now time.Time) error {
	j.gather(now, true)
	return j.drain(ctx)
}

// drain writes all that is gathered, or returns the first error.
func (j *Journal) drain(ctx context.Context) error {
	if !j.lockWriting(ctx) {
		return fmt.Errorf("write the journal: %w", context.Cause(ctx))
	}
	defer j.unlockWriting()
	for j.next() != nil {
		if err := j.try(ctx); err != nil {
			return fmt.Errorf("write the journal: %w", err)
		}
	}
	return nil
}

// Close writes what is left, trying until ctx ends, and ends what Run may still
// be at; call it when nothing is applied to the engine any more and Run has
// returned. The error counts what could not be written; the transitions among
// it are logged, so that they can be found.
func (j *Journal) Close(ctx context.Context) error {
	defer j.end()
	j.gather(j.o.Now(), false)
	var err error
	for wait := retryFirst; ; wait = min(wait*2, retryMax) {
		if err = j.drain(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return j.lost(err)
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

// lost says what will never be written.
func (j *Journal) lost(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.away = true
	j.wake()
	transitions, others := 0, 0
	for _, g := range []*group{j.head, j.tail} {
		if g == nil {
			continue
		}
		for i := range g.transitions {
			if transitions++; transitions <= logLost {
				t := &g.transitions[i]
				j.o.Log.Error("transition lost", "at", t.At, "breaker", t.Breaker, "era", t.Era, "from", t.From, "to", t.To, "reason", t.Reason, "cause", t.Cause)
			}
		}
		others += g.entries - len(g.transitions)
	}
	return fmt.Errorf("stop the journal with %d transitions and %d outcomes and permits unwritten: %w", transitions, others, err)
}
