package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/breaker"
)

// queueRoutes inserts the fallbacks and degraded answers in the engine's order.
func queueRoutes(batch *pgx.Batch, g *group) error {
	n := len(g.routes)
	if n == 0 {
		return nil
	}
	at, until := make([]time.Time, n), make([]*time.Time, n)
	chains, tiers, reasons, skipped := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	hops, degraded := make([]int32, n), make([]bool, n)
	labels := newLabelColumns(n)
	for i := range g.routes {
		r := &g.routes[i]
		at[i], until[i] = r.At, orNull(r.Until)
		chains[i], tiers[i], reasons[i] = text(r.Chain), text(r.Tier), text(r.Reason)
		hops[i], degraded[i] = int32(r.Hop), r.Degraded
		target := r.Target
		target.Agent = r.Agent
		labels.set(i, target)
		list := r.Skipped
		if list == nil {
			list = []breaker.Skipped{}
		}
		var err error
		if skipped[i], err = jsonText(list); err != nil {
			return fmt.Errorf("encode what a route of chain %s passed over: %w", r.Chain, err)
		}
	}
	batch.Queue(`
		INSERT INTO routes (at, agent, chain, machine, model, provider, tier, hop, degraded, until, reason, skipped)
		SELECT at, agent, chain, machine, model, provider, tier, hop, degraded, until, reason, skipped::jsonb
		FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[], $9::bool[], $10::timestamptz[],
		            $11::text[], $12::text[])
		     WITH ORDINALITY u (at, agent, chain, machine, model, provider, tier, hop, degraded, until, reason, skipped, place)
		ORDER BY place`,
		at, labels.agent, chains, labels.machine, labels.model, labels.provider, tiers, hops, degraded, until, reasons, skipped)
	return nil
}

// queueWrites puts down the writes in doubt as they are now.
func queueWrites(batch *pgx.Batch, g *group) error {
	n := len(g.writes)
	if n == 0 {
		return nil
	}
	names, causes, states, by := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	at, until, settled := make([]time.Time, n), make([]time.Time, n), make([]*time.Time, n)
	labels := newLabelColumns(n)
	for i, key := range keys(g.writes) {
		w := g.writes[key]
		names[i], causes[i], states[i], by[i] = text(key), w.Cause.String(), string(w.State), text(w.SettledBy)
		at[i], until[i], settled[i] = w.At, w.Until, orNull(w.SettledAt)
		labels.set(i, w.Labels)
	}
	batch.Queue(`
		INSERT INTO writes (idempotency_key, agent, machine, model, provider, cause, at, until, state, settled_at, settled_by)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::timestamptz[],
		                     $9::text[], $10::timestamptz[], $11::text[])
		ON CONFLICT (idempotency_key) DO UPDATE SET
		    agent = excluded.agent, machine = excluded.machine, model = excluded.model, provider = excluded.provider, cause = excluded.cause,
		    at = excluded.at, until = excluded.until, state = excluded.state, settled_at = excluded.settled_at, settled_by = excluded.settled_by`,
		names, labels.agent, labels.machine, labels.model, labels.provider, causes, at, until, states, settled, by)
	return nil
}

// writes lists what is known of writes at now, by key: those in doubt and those
// whose time is over and not forgotten yet. Of too many the latest are left.
func writes(ctx context.Context, tx pgx.Tx, now time.Time) ([]breaker.Write, error) {
	rows, err := tx.Query(ctx, `
		SELECT * FROM (
		    SELECT idempotency_key, agent, machine, model, provider, cause, at, until, state, settled_at, settled_by
		    FROM writes WHERE until > $1 ORDER BY until DESC LIMIT $2) latest
		ORDER BY idempotency_key COLLATE "C"`, now.Add(-breaker.DoubtFor), breaker.MaxWrites)
	if err != nil {
		return nil, fmt.Errorf("read the writes in doubt: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w breaker.Write, err error) {
		var cause string
		l := &w.Labels
		err = row.Scan(&w.Key, &l.Agent, &l.Machine, &l.Model, &l.Provider, &cause, when{&w.At}, when{&w.Until}, &w.State, when{&w.SettledAt}, &w.SettledBy)
		if err != nil {
			return w, err
		}
		if w.Cause, err = breaker.ParseCause(cause); err != nil {
			return w, fmt.Errorf("key %q: %w", w.Key, err)
		}
		return w, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the writes in doubt: %w", err)
	}
	return list, nil
}

// queueLately puts down what was done lately as it is now.
func queueLately(batch *pgx.Batch, g *group) error {
	n := len(g.lately)
	if n == 0 {
		return nil
	}
	names, at, saved := make([]string, n), make([]time.Time, n), make([]string, n)
	for i, key := range keys(g.lately) {
		l := g.lately[key]
		names[i], at[i] = text(key), l.At
		var err error
		if saved[i], err = jsonText(l); err != nil {
			return fmt.Errorf("encode what was done lately by %q: %w", key, err)
		}
	}
	batch.Queue(`
		INSERT INTO lately (key, at, saved) SELECT key, at, saved::jsonb FROM unnest($1::text[], $2::timestamptz[], $3::text[]) u (key, at, saved)
		ON CONFLICT (key) DO UPDATE SET at = excluded.at, saved = excluded.saved`, names, at, saved)
	return nil
}

// lately lists what was done within breaker.LatelyFor before now, by key.
func lately(ctx context.Context, tx pgx.Tx, now time.Time) ([]breaker.Lately, error) {
	rows, err := tx.Query(ctx, `SELECT key, at, saved FROM lately WHERE at > $1 ORDER BY key COLLATE "C"`, now.Add(-breaker.LatelyFor))
	if err != nil {
		return nil, fmt.Errorf("read what was done lately: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l breaker.Lately, err error) {
		var key string
		var at time.Time
		var saved []byte
		if err := row.Scan(&key, when{&at}, &saved); err != nil {
			return l, err
		}
		if err := json.Unmarshal(saved, &l); err != nil {
			return l, fmt.Errorf("key %q: %w", key, err)
		}
		l.At = at
		return l, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what was done lately: %w", err)
	}
	return list, nil
}
