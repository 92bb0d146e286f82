package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/bot"
	"breakerbot/digest"
)

var (
	_ digest.Source = (*DB)(nil)
	_ digest.Ledger = (*DB)(nil)
)

// DigestData reads what a report of window w tells and compares with. Counts
// are kept by the minute: a minute belongs to the window in which it begins.
func (db *DB) DigestData(ctx context.Context, w, before digest.Window) (digest.Data, error) {
	var d digest.Data
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		from, to := before.From, w.To
		if w.From.Before(from) {
			from = w.From
		}
		if before.To.After(to) {
			to = before.To
		}
		d.Incidents, err = collectIncidents(tx.Query(ctx, `
			SELECT `+incidentColumns+` FROM incidents i
			WHERE opened_at < $2 AND (closed_at IS NULL OR closed_at >= $1)
			ORDER BY id`, from, to))
		if err != nil {
			return fmt.Errorf("incidents: %w", err)
		}
		if d.Counts, err = readCounts(ctx, tx, w); err != nil {
			return err
		}
		if d.CountsBefore, err = readCounts(ctx, tx, before); err != nil {
			return err
		}
		if d.Refusals, err = readRefusals(ctx, tx, w); err != nil {
			return err
		}
		if d.RefusalsBefore, err = readRefusals(ctx, tx, before); err != nil {
			return err
		}
		// What was not yet due when the window ended is not late.
		err = tx.QueryRow(ctx, `
			SELECT count(*) FROM (
			    SELECT FROM outbox
			    WHERE kind IN ('trip', 'flapping') AND created_at >= $1 AND created_at < $2 AND alert IS NOT NULL
			    GROUP BY alert
			    HAVING NOT bool_or(status = 'delivered') AND bool_or(status <> 'pending' OR next_at < $2)) unheard`, w.From, w.To).Scan(&d.Undelivered)
		if err != nil {
			return fmt.Errorf("undelivered alerts: %w", err)
		}
		d.HistoryFrom, err = readHistoryFrom(ctx, tx)
		return err
	})
	if err != nil {
		return d, fmt.Errorf("read the numbers of a digest: %w", err)
	}
	return d, nil
}

func readCounts(ctx context.Context, tx pgx.Tx, w digest.Window) ([]digest.Count, error) {
	rows, err := tx.Query(ctx, `
		SELECT agent, machine, model, provider, cause, served, sum(calls)::bigint, sum(duration_ms)::bigint, sum(cost_usd)
		FROM outcome_counts WHERE bucket >= $1 AND bucket < $2
		GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6`, w.From, w.To)
	if err != nil {
		return nil, fmt.Errorf("outcome counts: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c digest.Count, err error) {
		var ms int64
		err = row.Scan(&c.Agent, &c.Machine, &c.Model, &c.Provider, word{&c.Cause}, word{&c.Served}, &c.Calls, &ms, &c.CostUSD)
		c.Duration = time.Duration(ms) * time.Millisecond
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("outcome counts: %w", err)
	}
	return list, nil
}

func readRefusals(ctx context.Context, tx pgx.Tx, w digest.Window) ([]digest.Refusal, error) {
	rows, err := tx.Query(ctx, `
		SELECT machine, model, reason, sum(calls)::bigint
		FROM permit_counts WHERE bucket >= $1 AND bucket < $2 AND reason NOT IN ('granted', 'probe')
		GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, w.From, w.To)
	if err != nil {
		return nil, fmt.Errorf("refusals: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r digest.Refusal, err error) {
		err = row.Scan(&r.Machine, &r.Model, &r.Reason, &r.Calls)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("refusals: %w", err)
	}
	return list, nil
}

// HistoryFrom is the time of the first thing ever recorded, zero when there is
// none.
func (db *DB) HistoryFrom(ctx context.Context) (time.Time, error) {
	at, err := readHistoryFrom(ctx, db.pool)
	if err != nil {
		return at, fmt.Errorf("look for the beginning of history: %w", err)
	}
	return at, nil
}

func readHistoryFrom(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (at time.Time, err error) {
	err = q.QueryRow(ctx, `
		SELECT least((SELECT min(at) FROM transitions), (SELECT min(opened_at) FROM incidents),
		             (SELECT min(bucket) FROM outcome_counts), (SELECT min(bucket) FROM permit_counts))`).Scan(when{&at})
	return at, err
}

// Has tells whether this digest was stored already.
func (db *DB) Has(ctx context.Context, destination, edition, day string) (bool, error) {
	var has bool
	err := db.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM digests WHERE destination_id = $1 AND edition = $2 AND day = $3::text::date)`, destination, edition, day).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for the %s digest of %s for %s: %w", edition, day, destination, err)
	}
	return has, nil
}

// Store inserts the digest's row and, unless its text is empty, its silent
// message in one transaction; false means that it existed already.
func (db *DB) Store(ctx context.Context, now time.Time, issue digest.Issue) (stored bool, err error) {
	to := issue.Destination
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO digests (destination_id, edition, day, window_from, window_to, due, created_at)
			VALUES ($1, $2, $3::text::date, $4, $5, $6, $7)
			ON CONFLICT (destination_id, edition, day) DO NOTHING`,
			to.ID, issue.Edition, issue.Day, issue.Window.From, issue.Window.To, issue.Due, now)
		if err != nil {
			return err
		}
		if stored = tag.RowsAffected() == 1; !stored || issue.Text == "" {
			return nil
		}
		payload, err := jsonText(bot.Payload{Text: issue.Text, Silent: true})
		if err != nil {
			return err
		}
		key := fmt.Sprintf("digest/%s/%s/%s", to.ID, issue.Edition, issue.Day)
		var id int64
		err = tx.QueryRow(ctx, insertMessage+" RETURNING id", to.ChatID, to.Thread, string(bot.KindDigest), key, 0, 0, payload, now, now).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("message %s exists without its digest", key)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE digests SET outbox_id = $4 WHERE destination_id = $1 AND edition = $2 AND day = $3::text::date`, to.ID, issue.Edition, issue.Day, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("store the %s digest of %s for %s: %w", issue.Edition, issue.Day, to.ID, err)
	}
	return stored, nil
}
