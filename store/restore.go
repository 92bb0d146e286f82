package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/bot"
	"breakerbot/breaker"
)

// Load reads what an engine is restored from, as of the last commit, with the
// latest idsMax of the calls heard of within breaker.HeardFor before now, what
// is known of writes, what was done lately, and the key that signs permits,
// which the first call on a database makes.
func (db *DB) Load(ctx context.Context, now time.Time, idsMax int) (snap breaker.Snapshot, key []byte, err error) {
	key = make([]byte, 32)
	rand.Read(key) // never fails
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO journal (position, clock, permit_key) VALUES (0, '{}', $1)
			ON CONFLICT (only_row) DO NOTHING`, key)
		if err != nil {
			return fmt.Errorf("make the journal's row: %w", err)
		}
		var position uint64
		var text []byte
		err = tx.QueryRow(ctx, "SELECT position, clock, permit_key FROM journal FOR UPDATE").Scan(&position, &text, &key)
		if err != nil {
			return fmt.Errorf("read the journal's row: %w", err)
		}
		if err := json.Unmarshal(text, &snap.Clock); err != nil {
			return fmt.Errorf("read the engine's clock: %w", err)
		}
		if snap.Clock.Seq != position {
			return fmt.Errorf("the journal stands at %d and the engine's clock at %d: the row of table journal was changed by hand", position, snap.Clock.Seq)
		}
		rows, err := tx.Query(ctx, "SELECT name, saved FROM breakers ORDER BY name")
		if err != nil {
			return fmt.Errorf("read the breakers: %w", err)
		}
		snap.States, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s breaker.Saved, err error) {
			var name string
			if err := row.Scan(&name, &text); err != nil {
				return s, fmt.Errorf("read the breakers: %w", err)
			}
			if err := json.Unmarshal(text, &s); err != nil {
				return s, fmt.Errorf("read breaker %s: %w", name, err)
			}
			return s, nil
		})
		if err != nil {
			return err
		}
		if snap.Heard, err = heard(ctx, tx, now, idsMax); err != nil {
			return err
		}
		if snap.Writes, err = writes(ctx, tx, now); err != nil {
			return err
		}
		snap.Lately, err = lately(ctx, tx, now)
		return err
	})
	return snap, key, err
}

// heard lists the calls that words were heard of, oldest first.
func heard(ctx context.Context, tx pgx.Tx, now time.Time, limit int) ([]breaker.Heard, error) {
	rows, err := tx.Query(ctx, `
		SELECT call, at FROM (SELECT call, at FROM heard WHERE at >= $1 ORDER BY at DESC LIMIT $2) latest ORDER BY at`,
		now.Add(-breaker.HeardFor), limit)
	if err != nil {
		return nil, fmt.Errorf("read the calls heard of: %w", err)
	}
	var list []breaker.Heard
	var call []byte
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&call, &at}, func() error {
		h := breaker.Heard{At: at}
		copy(h.Call[:], call)
		list = append(list, h)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the calls heard of: %w", err)
	}
	return list, nil
}

// OpenIncidents lists what the alert policy has to know of after a restart,
// oldest first: incidents that are open, and those that share an alert with an
// open one.
func (db *DB) OpenIncidents(ctx context.Context) ([]bot.OpenIncident, error) {
	rows, err := db.pool.Query(ctx, `
		SELECT id, coalesce(alert_id, 0), rule, agent, machine, model, provider, opened_at, closed_at
		FROM incidents
		WHERE closed_at IS NULL OR alert_id IN (SELECT alert_id FROM incidents WHERE closed_at IS NULL)
		ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read open incidents: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o bot.OpenIncident, err error) {
		l := &o.Labels
		err = row.Scan(&o.ID, &o.Alert, &o.Rule, &l.Agent, &l.Machine, &l.Model, &l.Provider, when{&o.OpenedAt}, when{&o.ClosedAt})
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("read open incidents: %w", err)
	}
	return list, nil
}

// when scans a time as UTC, null as the zero time.
type when struct{ to *time.Time }

func (w when) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*w.to = time.Time{}
	case time.Time:
		*w.to = v.UTC()
	default:
		return fmt.Errorf("a time is %T", src)
	}
	return nil
}
