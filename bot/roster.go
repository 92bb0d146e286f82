package bot

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Roster knows the chats and operators of the configuration, and what Telegram
// has told about them since: where a group has moved, which chats cannot be
// reached, which topics are gone. It is safe for concurrent use.
type Roster struct {
	// Moved stores that a group became a supergroup; Outbox.ChatMoved does. It
	// is set before the first use, nil for nothing to store.
	Moved func(ctx context.Context, from, to int64) error

	chats     []Chat
	operators map[int64]bool

	mu     sync.Mutex
	moved  map[int64]int64
	out    map[int64]string // chat → why
	topics map[topic]bool   // gone
}

type topic struct {
	chat   int64
	thread int
}

// NewRoster makes a roster of the configured chats and operators.
func NewRoster(chats []Chat, operators []int64) *Roster {
	r := &Roster{
		chats:     slices.Clone(chats),
		operators: make(map[int64]bool),
		moved:     make(map[int64]int64),
		out:       make(map[int64]string),
		topics:    make(map[topic]bool),
	}
	for _, id := range operators {
		r.operators[id] = true
	}
	return r
}

// Know takes over where groups have moved, as it was stored. It is called
// before the first use.
func (r *Roster) Know(moved map[int64]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.moved, moved)
}

// Operator tells whether a user may change things.
func (r *Roster) Operator(user int64) bool { return r.operators[user] }

// Configured tells whether a chat, by its old or its new id, is served.
func (r *Roster) Configured(chat int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.chats {
		if c.ID == chat || r.current(c.ID) == chat {
			return true
		}
	}
	return false
}

// Out lists the chats that cannot be reached, each with the reason.
func (r *Roster) Out() map[int64]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.out)
}

// address is where messages for a chat and topic go now.
func (r *Roster) address(chat int64, thread int) (int64, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	chat = r.current(chat)
	if thread <= 1 || r.topics[topic{chat, thread}] {
		thread = 0
	}
	return chat, thread
}

func (r *Roster) current(chat int64) int64 {
	for range len(r.moved) {
		to, ok := r.moved[chat]
		if !ok {
			break
		}
		chat = to
	}
	return chat
}

// origins are the ids under which a chat may stand in the outbox.
func (r *Roster) origins(chat int64) []int64 {
	ids := []int64{chat}
	for from := range r.moved {
		if r.current(from) == chat {
			ids = append(ids, from)
		}
	}
	return ids
}

// move notes, and stores, that a group has a new id. A second word of the same
// move changes nothing.
func (r *Roster) move(ctx context.Context, from, to int64) error {
	r.mu.Lock()
	if from == to || r.current(from) == to {
		r.mu.Unlock()
		return nil
	}
	delete(r.moved, to) // no circles
	r.moved[from] = to
	delete(r.out, from)
	r.mu.Unlock()
	if r.Moved == nil {
		return nil
	}
	return r.Moved(ctx, from, to)
}

// loseThread notes that a topic is gone; true when that is news.
func (r *Roster) loseThread(chat int64, thread int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := topic{chat, thread}
	news := !r.topics[t]
	r.topics[t] = true
	return news
}

// lose notes that a chat cannot be reached; true when that is news.
func (r *Roster) lose(chat int64, why string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.out[chat]
	r.out[chat] = why
	return !known
}

// find notes that a chat has given a sign of life; true when it was out.
func (r *Roster) find(chat int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.out[chat]
	delete(r.out, chat)
	return was
}

// skip lists, with all their ids, the chats that are out and the ones given.
func (r *Roster) skip(also map[int64]time.Duration) []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []int64
	for chat := range r.out {
		ids = append(ids, r.origins(chat)...)
	}
	for chat := range also {
		ids = append(ids, r.origins(chat)...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func moveOf(err error) int64 {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.MoveTo
	}
	return 0
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
