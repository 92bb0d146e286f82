package store

import (
	"context"
	"fmt"
	"time"

	"breakerbot/breaker"
)

// Retention is how long history is kept; zero is for ever.
type Retention struct {
	// Outcomes is for what is kept one by one: the log of inputs, fallbacks and
	// degraded answers.
	Outcomes time.Duration
	Counts   time.Duration
	// Transitions is for transitions, and for incidents by their end and what
	// was told of them. What belongs to an open incident stays.
	Transitions time.Duration
}

// pruneRows bounds one deletion, so that none holds locks for long.
const pruneRows = 10_000

// Prune deletes what is older than its retention and says how many rows that
// were. It works in small steps, so an interrupted one loses nothing.
func (db *DB) Prune(ctx context.Context, now time.Time, keep Retention) (rows int64, err error) {
	type step struct {
		keep time.Duration
		sql  string // of $1, the time before which rows go, and $2, how many
	}
	for _, s := range []step{
		{keep.Counts, "DELETE FROM outcome_counts WHERE ctid IN (SELECT ctid FROM outcome_counts WHERE bucket < $1 LIMIT $2)"},
		{keep.Counts, "DELETE FROM permit_counts WHERE ctid IN (SELECT ctid FROM permit_counts WHERE bucket < $1 LIMIT $2)"},
		{keep.Counts, "DELETE FROM fallback_counts WHERE ctid IN (SELECT ctid FROM fallback_counts WHERE bucket < $1 LIMIT $2)"},
		{breaker.HeardFor, "DELETE FROM heard WHERE call IN (SELECT call FROM heard WHERE at < $1 LIMIT $2)"},
		{keep.Outcomes, "DELETE FROM outcome_log WHERE position IN (SELECT position FROM outcome_log WHERE at < $1 LIMIT $2)"},
		{keep.Outcomes, "DELETE FROM routes WHERE id IN (SELECT id FROM routes WHERE at < $1 LIMIT $2)"},
		{breaker.DoubtFor, "DELETE FROM writes WHERE idempotency_key IN (SELECT idempotency_key FROM writes WHERE until < $1 LIMIT $2)"},
		{breaker.LatelyFor, "DELETE FROM lately WHERE key IN (SELECT key FROM lately WHERE at < $1 LIMIT $2)"},
		{keep.Transitions, `DELETE FROM transitions WHERE id IN (
			SELECT t.id FROM transitions t LEFT JOIN incidents i ON i.id = t.incident_id
			WHERE t.at < $1 AND (i.id IS NULL OR i.closed_at < $1) LIMIT $2)`},
		{keep.Transitions, `DELETE FROM incidents WHERE id IN (
			SELECT i.id FROM incidents i
			WHERE i.closed_at < $1 AND NOT EXISTS (SELECT FROM transitions t WHERE t.incident_id = i.id)
			  AND NOT EXISTS (SELECT FROM incidents o WHERE o.alert_id = i.alert_id AND (o.closed_at IS NULL OR o.closed_at >= $1)) LIMIT $2)`},
		{keep.Transitions, `DELETE FROM outbox WHERE id IN (
			SELECT o.id FROM outbox o
			WHERE o.created_at < $1 AND o.status IN ('delivered', 'failed', 'expired')
			  AND NOT EXISTS (SELECT FROM incidents i WHERE i.alert_id = o.alert)
			  AND NOT EXISTS (SELECT FROM outbox u WHERE u.target = o.id) LIMIT $2)`},
	} {
		if s.keep <= 0 {
			continue
		}
		for {
			tag, err := db.pool.Exec(ctx, s.sql, now.Add(-s.keep), pruneRows)
			if err != nil {
				return rows, fmt.Errorf("delete what is older than %v: %w", s.keep, err)
			}
			rows += tag.RowsAffected()
			if tag.RowsAffected() < pruneRows {
				break
			}
		}
	}
	return rows, nil
}
