package digest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// GiveUpAfter is how late a digest may still be sent. After that its window is
// left out: a digest in the evening would be taken for news.
const GiveUpAfter = 6 * time.Hour

// Runner asks at each tick which destination is owed a digest, and makes
// reports of other spans for those who ask. The exported fields are set once,
// before its first use; it may then be used by several goroutines.
type Runner struct {
	Schedule     Schedule       // the zero Schedule is never due
	Zone         *time.Location // of days and of what is printed; nil is UTC
	Destinations []Destination
	Source       Source
	Ledger       Ledger // only Tick needs it
	// QuietDays sends the one line of a quiet day. Without it a quiet digest is
	// stored without a text, so that the day counts as done and a later tick, with
	// other numbers, does not send it after all. A day without data is told either
	// way: nothing is known of it, so it is not a quiet one.
	QuietDays bool
	Log       *slog.Logger // nil is silence

	mu      sync.Mutex
	settled map[string]string // destination → last day that needs nothing more
}

// Tick stores the digest that is due for each destination that has none yet for
// that local day; to be called each minute or so. A digest up to GiveUpAfter
// late is still stored and says so from LateAfter on; a later one is given up
// with one line in the log, and so is owed only what lies in the next window. A
// database whose history begins at or after the due time owes nothing. Trouble
// with one destination, a panic too, leaves the others alone: the error joins
// one for each destination that failed, and the next tick tries those again.
func (r *Runner) Tick(ctx context.Context, now time.Time) error {
	w, day, due, ok := r.Schedule.Window(now, r.zone())
	if !ok {
		return nil
	}
	// Destinations share the window, and so the report, which is made when the
	// first of them turns out to need it.
	report := sync.OnceValues(func() (Report, error) {
		return r.build(ctx, w, r.Schedule.Before(w, r.zone()), now, Options{Edition: EditionDaily, Due: due})
	})
	history := sync.OnceValues(func() (time.Time, error) { return r.Source.HistoryFrom(ctx) })
	var errs []error
	for _, d := range r.Destinations {
		if r.isSettled(d.ID, day) {
			continue
		}
		issue := Issue{Destination: d, Edition: EditionDaily, Day: day, Window: w, Due: due}
		settled, err := r.settle(ctx, now, issue, history, report)
		if err != nil {
			errs = append(errs, fmt.Errorf("digest of %s for %s: %w", day, d.ID, err))
		}
		if settled {
			r.markSettled(d.ID, day)
		}
	}
	return errors.Join(errs...)
}

// settle does one destination's digest; true means that this day needs nothing
// more.
func (r *Runner) settle(
	ctx context.Context, now time.Time, issue Issue, history func() (time.Time, error), report func() (Report, error),
) (settled bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log().ErrorContext(ctx, "digest panicked", "destination", issue.Destination.ID, "day", issue.Day, "panic", p, "stack", string(debug.Stack()))
			settled, err = false, fmt.Errorf("panic: %v", p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	first, err := history()
	if err != nil {
		return false, fmt.Errorf("read beginning of history: %w", err)
	}
	if first.IsZero() || !first.Before(issue.Due) {
		return false, nil // not settled: something older may still be on its way to the disk
	}
	has, err := r.Ledger.Has(ctx, issue.Destination.ID, issue.Edition, issue.Day)
	if err != nil {
		return false, fmt.Errorf("look up: %w", err)
	}
	if has {
		return true, nil
	}
	if late := now.Sub(issue.Due); late > GiveUpAfter {
		r.log().WarnContext(ctx, "digest given up: too late", "destination", issue.Destination.ID, "day", issue.Day,
			"due", issue.Due, "late", late.Round(time.Second), "limit", GiveUpAfter)
		return true, nil
	}
	rep, err := report()
	if err != nil {
		return false, err
	}
	if r.QuietDays || !rep.Quiet {
		issue.Text = Text(rep)
	}
	stored, err := r.Ledger.Store(ctx, now, issue)
	if err != nil {
		return false, fmt.Errorf("store: %w", err)
	}
	if stored {
		r.log().InfoContext(ctx, "digest stored", "destination", issue.Destination.ID, "day", issue.Day,
			"from", issue.Window.From, "to", issue.Window.To, "quiet", rep.Quiet, "no_data", rep.NoData, "sent", issue.Text != "")
	}
	return true, nil
}

// isSettled spares Postgres a question each minute for a day that is done.
func (r *Runner) isSettled(destination, day string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settled[destination] == day
}

func (r *Runner) markSettled(destination, day string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled == nil {
		r.settled = map[string]string{}
	}
	r.settled[destination] = day
}

// Preview is the report of a period that ends now. It uses up no day's digest.
func (r *Runner) Preview(ctx context.Context, now time.Time, p Period) (Report, error) {
	return r.PreviewUntil(ctx, now, now, p)
}

// PreviewUntil is the report of a period that ended at until; a zero until, or
// one after now, is now.
func (r *Runner) PreviewUntil(ctx context.Context, now, until time.Time, p Period) (Report, error) {
	if until.IsZero() || until.After(now) {
		until = now
	}
	w, before := p.Window(until, r.zone())
	return r.build(ctx, w, before, now, Options{Edition: EditionPreview})
}

// Top is the text of /top: the ranking alone. The argument is a period, 7d when
// empty; the error for another word is one for the person who wrote it.
func (r *Runner) Top(ctx context.Context, now time.Time, arg string) (string, error) {
	if arg == "" {
		arg = "7d"
	}
	p, err := ParsePeriod(arg)
	if err != nil {
		return "", err
	}
	rep, err := r.Preview(ctx, now, p)
	if err != nil {
		return "", err
	}
	return Ranking(rep), nil
}

func (r *Runner) build(ctx context.Context, w, before Window, now time.Time, opt Options) (Report, error) {
	data, err := r.Source.DigestData(ctx, w, before)
	if err != nil {
		return Report{}, fmt.Errorf("read numbers from %s to %s: %w", w.From.Format(time.RFC3339), w.To.Format(time.RFC3339), err)
	}
	return Build(data, w, before, now, r.zone(), opt), nil
}

func (r *Runner) zone() *time.Location {
	if r.Zone == nil {
		return time.UTC
	}
	return r.Zone
}

func (r *Runner) log() *slog.Logger {
	if r.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return r.Log
}
