package digest

import (
	"context"
	"time"

	"breakerbot/breaker"
)

// Window is the half-open span of time that a digest tells about.
type Window struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Count is calls that ended in one way, summed over a window.
type Count struct {
	Agent    string
	Machine  string
	Model    string
	Provider string
	Cause    breaker.Cause
	Served   breaker.Served
	Calls    int64
	Duration time.Duration // the sum
	CostUSD  float64
}

// Refusal is permits refused, summed over a window.
type Refusal struct {
	Machine string
	Model   string
	Reason  string
	Calls   int64
}

// Data is what a report is made of, as the store reads it.
type Data struct {
	// Incidents overlap the window or the one before it, its beginning included:
	// opened before the window's end, and closed at or after the beginning of the
	// one before, or still open with a zero ClosedAt. In any order.
	Incidents []breaker.Incident
	Counts    []Count
	Refusals  []Refusal
	// Before is the same for the window before this one.
	CountsBefore   []Count
	RefusalsBefore []Refusal
	// Undelivered are alerts of the window that no chat has received.
	Undelivered int
	// HistoryFrom is the time of the first thing ever recorded; zero for an
	// empty database.
	HistoryFrom time.Time
}

// Source reads what a report is made of.
type Source interface {
	DigestData(ctx context.Context, w, before Window) (Data, error)
	// HistoryFrom is the time of the first thing ever recorded, zero when there
	// is none.
	HistoryFrom(ctx context.Context) (time.Time, error)
}

// Destination is one chat's digest.
type Destination struct {
	ID     string // "chat:-1001234" or "chat:-1001234/7" with a topic
	ChatID int64
	Thread int
}

// Issue is one digest that is due, ready to be stored: at most one exists for
// each destination, edition and day.
type Issue struct {
	Destination Destination
	Edition     string // daily
	Day         string // the local date on which it is due, 2006-01-02
	Window      Window
	Due         time.Time
	// Text is Telegram HTML. Empty means that there is nothing to send: the row
	// is stored all the same, without a message, so that the day is done.
	Text string
}

// Ledger remembers which digests exist.
type Ledger interface {
	// Has tells whether this digest was stored already.
	Has(ctx context.Context, destination, edition, day string) (bool, error)
	// Store inserts the digest's row and, unless its text is empty, its silent
	// outbox message in one transaction; false means that it existed already.
	Store(ctx context.Context, now time.Time, issue Issue) (bool, error)
}
