package breaker

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// WriteState is what is known of a write that once was in doubt.
type WriteState string

// The states of a write.
const (
	WriteInDoubt    WriteState = "in_doubt"    // nobody knows; permits for its key are held
	WriteApplied    WriteState = "applied"     // somebody looked: it took effect
	WriteNotApplied WriteState = "not_applied" // somebody looked: it did not
	WriteExpired    WriteState = "expired"     // nobody looked in time; permits are given again
)

// Write is a call marked as a write with an idempotency key whose answer never
// came, so that nobody knows whether it took effect. Sending it elsewhere might
// do it twice; the labels say where to ask.
type Write struct {
	Key    string // the idempotency key, ≤ 128 bytes
	Labels        // of the call
	Cause  Cause
	At     time.Time // when the call ended
	Until  time.Time // permits for the key are held until then, at the latest
	State  WriteState
	// SettledAt and SettledBy say when somebody reconciled it and who; zero
	// before that.
	SettledAt time.Time
	SettledBy string
}

// The bounds of writes in doubt.
const (
	// DoubtFor is how long permits are held for a write that nobody reconciles,
	// and how long afterwards its key is still known.
	DoubtFor = 24 * time.Hour
	// MaxWrites is how many writes are known at a time; over it the oldest that
	// are settled go first, then the oldest.
	MaxWrites = 100_000
)

// The errors of Reconcile.
var (
	// ErrUnknownWrite is for a key that is not of a write in doubt, or no longer.
	ErrUnknownWrite = errors.New("unknown write: none with this idempotency key is or was in doubt")
	// ErrWriteSettled is for a second answer that contradicts the first.
	ErrWriteSettled = errors.New("the write is reconciled already, with the other result")
)

// doubtful are the causes after which a write may have taken effect.
var doubtful = func() causeSet {
	set, _, _ := parseCauseSet([]string{"timeout", "gateway_timeout", "reset", "stalled", "truncated"})
	return set
}()

// doubts are the writes that are or were in doubt, by key.
type doubts struct {
	byKey map[string]*Write
	fresh []*Write // changed since the last Drain
	// swept is when the old ones were last looked for.
	swept instant
}

// doubt notes the call's write as in doubt when its signal leaves that open; a
// judgement about the caller does not change it. It tells whether it did.
func (e *Engine) doubt(c *call) bool {
	if !c.Write || c.IdempotencyKey == "" || !doubtful.has(c.Outcome.Cause) || c.Age >= DoubtFor {
		return false
	}
	d := &e.doubts
	w := d.byKey[c.IdempotencyKey]
	switch {
	case w != nil && !w.SettledAt.IsZero() && c.ended <= fromTime(w.SettledAt):
		return false // whoever looked saw what became of this call too
	case w != nil && c.ended <= fromTime(w.At):
		return true // a later call holds the key for longer
	case w == nil:
		e.sweepWrites()
		w = &Write{}
		d.byKey[c.IdempotencyKey] = w
	}
	*w = Write{
		Key: c.IdempotencyKey, Labels: c.Labels, Cause: c.Outcome.Cause, State: WriteInDoubt,
		At: c.ended.time(), Until: (c.ended + instant(DoubtFor)).time(),
	}
	d.fresh = append(d.fresh, w)
	return true
}

// sweepWrites forgets, at most hourly, writes whose time is long over, and
// makes room when there are as many as there may be.
func (e *Engine) sweepWrites() {
	d := &e.doubts
	if now := e.now.time(); e.now-d.swept >= instant(time.Hour) {
		d.swept = e.now
		for key, w := range d.byKey {
			if now.Sub(w.Until) >= DoubtFor {
				delete(d.byKey, key)
			}
		}
	}
	if len(d.byKey) < MaxWrites {
		return
	}
	list := make([]*Write, 0, len(d.byKey))
	for _, w := range d.byKey {
		list = append(list, w)
	}
	settled := func(w *Write) int {
		if e.heldWrite(w.Key) == nil {
			return 0
		}
		return 1
	}
	slices.SortFunc(list, func(a, b *Write) int {
		return cmp.Or(cmp.Compare(settled(a), settled(b)), a.At.Compare(b.At), cmp.Compare(a.Key, b.Key))
	})
	for _, w := range list[:MaxWrites/20] {
		delete(d.byKey, w.Key)
	}
}

// heldWrite is the write for whose key permits are held now, nil for none.
func (e *Engine) heldWrite(key string) *Write {
	if key == "" {
		return nil
	}
	w := e.doubts.byKey[key]
	if w == nil || w.State != WriteInDoubt || e.now >= fromTime(w.Until) {
		return nil
	}
	return w
}

// writeNow is the write as a reader sees it now; nil when the key is unknown.
func (e *Engine) writeNow(key string) *Write {
	w := e.doubts.byKey[key]
	if w == nil || e.now-fromTime(w.Until) >= instant(DoubtFor) {
		return nil
	}
	c := *w
	if c.State == WriteInDoubt && e.heldWrite(key) == nil {
		c.State = WriteExpired
	}
	return &c
}

// Write looks at what is known of a write; false when nothing is.
func (e *Engine) Write(now time.Time, key string) (Write, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	if w := e.writeNow(key); w != nil {
		return *w, true
	}
	return Write{}, false
}

// Writes lists what is known of the writes of an agent or on a machine that are
// in one of these states, the latest first and at most limit of them. An empty
// label, and no state, mean all.
func (e *Engine) Writes(now time.Time, of Labels, limit int, states ...WriteState) []Write {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	var list []Write
	for key, w := range e.doubts.byKey {
		if of.Agent != "" && of.Agent != w.Agent || of.Machine != "" && of.Machine != w.Machine {
			continue
		}
		if w := e.writeNow(key); w != nil && (len(states) == 0 || slices.Contains(states, w.State)) {
			list = append(list, *w)
		}
	}
	slices.SortFunc(list, func(a, b Write) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Key, b.Key)) })
	return list[:min(len(list), limit)]
}

// WritesInDoubt is for how many writes permits are held now.
func (e *Engine) WritesInDoubt(now time.Time) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	for key := range e.doubts.byKey {
		if e.heldWrite(key) != nil {
			n++
		}
	}
	return n
}

// Reconcile says what became of a write in doubt, so that permits for its key
// are given again. Saying the same twice changes nothing; a late answer, after
// the doubt has expired, is taken. The errors are ErrUnknownWrite and
// ErrWriteSettled, which comes with the write as it stands.
func (e *Engine) Reconcile(now time.Time, key string, applied bool, actor string) (Write, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(now)
	w, err := e.reconcileNow(key, applied, actor)
	return w, e.seq, err
}

// reconcileNow is Reconcile at the engine's time.
func (e *Engine) reconcileNow(key string, applied bool, actor string) (Write, error) {
	known := e.writeNow(key)
	if known == nil {
		return Write{}, ErrUnknownWrite
	}
	state := WriteNotApplied
	if applied {
		state = WriteApplied
	}
	switch known.State {
	case state:
		return *known, nil
	case WriteInDoubt, WriteExpired:
	default:
		return *known, ErrWriteSettled
	}
	e.recorded(&inputReconcile{key, actor, applied})
	w := e.doubts.byKey[key]
	w.State, w.SettledAt, w.SettledBy = state, e.now.time(), actor
	e.doubts.fresh = append(e.doubts.fresh, w)
	e.seq++
	return *w, nil
}

// freshWrites takes the writes changed since the last Drain, each once.
func (e *Engine) freshWrites() []Write {
	var list []Write
	taken := make(map[*Write]bool, len(e.doubts.fresh))
	for _, w := range e.doubts.fresh {
		if !taken[w] {
			taken[w] = true
			list = append(list, *w)
		}
	}
	e.doubts.fresh = nil
	return list
}

// writes lists all that are known, by key.
func (e *Engine) writes() []Write {
	list := make([]Write, 0, len(e.doubts.byKey))
	for _, w := range e.doubts.byKey {
		list = append(list, *w)
	}
	slices.SortFunc(list, func(a, b Write) int { return cmp.Compare(a.Key, b.Key) })
	return list
}
