package bot

import (
	"context"
	"time"

	"breakerbot/breaker"
)

// Kind says what a message of the outbox is for.
type Kind string

// The kinds, as the outbox table spells them.
const (
	KindTrip     Kind = "trip"
	KindLongOpen Kind = "long_open"
	KindUpdate   Kind = "update" // an edit of a message already delivered
	KindFlapping Kind = "flapping"
	KindDigest   Kind = "digest"
	KindNotice   Kind = "notice"
	KindAnswer   Kind = "answer"
)

// Status is where a message of the outbox is on its way.
type Status string

// The statuses. A message is pending until it is claimed; a claimed one that
// nobody settled (the process died) counts as unknown at the next start.
const (
	StatusPending   Status = "pending"
	StatusSending   Status = "sending"
	StatusDelivered Status = "delivered"
	StatusUnknown   Status = "unknown" // perhaps delivered; repeated with a mark
	StatusFailed    Status = "failed"
	StatusExpired   Status = "expired"
)

// Message is one row of the outbox: something to send to, or edit in, one chat.
type Message struct {
	ID        int64
	ChatID    int64
	Thread    int // topic; 0 is none
	Kind      Kind
	DedupeKey string // unique for ever: the same key is never inserted twice
	// Alert is the number of the alert that the message is about: its first
	// incident. Zero for digests and notices. Trips, long-open steps and updates
	// are rendered from the alert's facts when they are sent.
	Alert uint64
	// Target is, of an update, the outbox row whose delivered message it edits.
	Target    int64
	Payload   Payload
	Status    Status
	Attempts  int
	NextAt    time.Time // not to be sent before
	CreatedAt time.Time
	// MessageID is Telegram's, once delivered. Of a claimed update it is the
	// target's, as stored at the claim; zero when that was forgotten.
	MessageID int64
	// Version counts how often an update was asked for again; settling an older
	// version leaves the row pending.
	Version int
	// Repeat is true when an earlier attempt may have been delivered.
	Repeat bool
}

// Payload is what a message carries besides its alert.
type Payload struct {
	Text   string        `json:"text,omitempty"`   // Telegram HTML; empty when rendered from the alert
	Silent bool          `json:"silent,omitempty"` // no sound
	Step   time.Duration `json:"step,omitempty"`   // of a long_open message, and of an update of one
	Photo  []byte        `json:"photo,omitempty"`  // PNG
}

// Plan is what the alert policy wants written, in the transaction of the
// transitions that led to it.
type Plan struct {
	// Joins puts incidents into alerts: incident → alert (its own number when it
	// begins one).
	Joins map[uint64]uint64
	// New are messages to insert; one whose DedupeKey exists already is dropped.
	New []Message
	// Touched are alerts whose delivered trip and long-open messages are out of
	// date: each gets an update, merged with one that still waits, due no earlier
	// than the time given.
	Touched map[uint64]time.Time
}

// Empty tells whether there is nothing to write.
func (p Plan) Empty() bool { return len(p.Joins)+len(p.New)+len(p.Touched) == 0 }

// OpenIncident is an incident that the policy has to know of after a restart:
// one that is open, or one that belongs to an alert with an open one.
type OpenIncident struct {
	ID       uint64
	Alert    uint64
	Rule     string
	Labels   breaker.Labels
	OpenedAt time.Time
	ClosedAt time.Time // zero while open
}

// AlertFacts is everything a message about an alert says, read when it is sent.
type AlertFacts struct {
	Alert     uint64
	Incidents []breaker.Incident // oldest first
	// Refused are permits refused because of the alert's incidents, Rerouted are
	// fallback calls in place of them, Agents are the agents concerned.
	Refused  int
	Rerouted int
	Agents   int
	// TripsToday counts incidents of the same breaker since local midnight, this
	// one included; it is about the first incident.
	TripsToday int
	// ProbesFailed and the last of them, over all incidents.
	ProbesFailed  int
	LastProbeAt   time.Time
	LastProbe     breaker.Cause
	ClosedByProbe int // which probe closed it, 0 when none did
	// NextProbeAt is the earliest time at which a probe may go to one of the
	// breakers still open; zero when unknown or when none is.
	NextProbeAt time.Time
	// TripMessage is Telegram's id of the delivered trip message in the chat
	// asked for, for a long-open step to reply to; 0 when there is none.
	TripMessage int64
}

// Settlement is what became of a claimed message.
type Settlement struct {
	ID        int64
	Version   int // as claimed
	Status    Status
	MessageID int64     // when delivered; 0 leaves what is stored
	NextAt    time.Time // when pending or unknown: next attempt
	Error     string    // the last error, without secrets; "" when delivered
}

// Outbox is what the sender needs of the store.
type Outbox interface {
	// Claim takes up to limit messages that are due, most urgent first (trip,
	// long-open, notice, digest, update; then by time), and marks them as
	// sending. Chats in the skip list are passed over. A message whose status
	// was unknown comes with Repeat set.
	Claim(ctx context.Context, now time.Time, limit int, skip []int64) ([]Message, error)
	// Settle records what became of claimed messages.
	Settle(ctx context.Context, now time.Time, s Settlement) error
	// Facts reads what a message about this alert to this chat says.
	Facts(ctx context.Context, now time.Time, alert uint64, chat int64) (AlertFacts, error)
	// ChatMoved stores that a group became a supergroup: waiting messages go to
	// the new id, ids of delivered ones are forgotten.
	ChatMoved(ctx context.Context, from, to int64) error
	// ForgetMessage drops the Telegram id of a delivered row, so that nothing
	// tries to edit it again.
	ForgetMessage(ctx context.Context, outboxID int64) error
}

// NextDuer is an Outbox that also knows when its next pending message becomes
// due, chats in the skip list aside; the zero time when nothing waits. A sender
// whose outbox lacks it looks again after a second.
type NextDuer interface {
	NextDue(ctx context.Context, skip []int64) (time.Time, error)
}

// Chat is a destination from the configuration.
type Chat struct {
	ID     int64
	Thread int
	Alerts bool
	Digest bool
}
