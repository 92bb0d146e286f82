package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"breakerbot/bot"
)

var (
	_ bot.Outbox   = (*DB)(nil)
	_ bot.NextDuer = (*DB)(nil)
)

// urgency is how an ORDER BY ranks the kinds, the most urgent first.
const urgency = `array_position(ARRAY['trip', 'flapping', 'long_open', 'answer', 'notice', 'digest', 'update'], kind)`

// due is the condition for a row that waits, chats in $1 aside.
const due = `status IN ('pending', 'unknown') AND chat_id <> ALL ($1)`

// Claim takes up to limit messages that are due and marks them as sending. Two
// callers never get the same one. A row that is claimed is no longer out of
// date: its facts are read after this.
func (db *DB) Claim(ctx context.Context, now time.Time, limit int, skip []int64) ([]bot.Message, error) {
	rows, err := db.pool.Query(ctx, `
		WITH taken AS (
		    SELECT id, row_number() OVER () AS place FROM (
		        SELECT id FROM outbox WHERE `+due+` AND next_at <= $2
		        ORDER BY `+urgency+`, next_at, coalesce(target, id) LIMIT $3 FOR UPDATE SKIP LOCKED) ranked
		)
		UPDATE outbox o SET status = 'sending', attempts = o.attempts + 1, repeat = o.repeat OR o.status = 'unknown', stale_from = NULL
		FROM taken LEFT JOIN outbox waits ON waits.id = taken.id LEFT JOIN outbox target ON target.id = waits.target
		WHERE o.id = taken.id
		RETURNING taken.place, o.id, o.chat_id, o.thread, o.kind, o.dedupe_key, coalesce(o.alert, 0), coalesce(o.target, 0), o.payload,
		          o.status, o.attempts, o.next_at, o.created_at, coalesce(CASE o.kind WHEN 'update' THEN target.message_id ELSE o.message_id END, 0),
		          o.version, o.repeat`, nonNil(skip), now, limit)
	if err != nil {
		return nil, fmt.Errorf("claim messages: %w", err)
	}
	type claimed struct {
		bot.Message
		place int64
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c claimed, err error) {
		m := &c.Message
		var payload []byte
		err = row.Scan(&c.place, &m.ID, &m.ChatID, &m.Thread, &m.Kind, &m.DedupeKey, &m.Alert, &m.Target, &payload,
			&m.Status, &m.Attempts, when{&m.NextAt}, when{&m.CreatedAt}, &m.MessageID, &m.Version, &m.Repeat)
		if err != nil {
			return c, err
		}
		if err := json.Unmarshal(payload, &m.Payload); err != nil {
			return c, fmt.Errorf("payload of message %d: %w", m.ID, err)
		}
		return c, nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim messages: %w", err)
	}
	slices.SortFunc(list, func(a, b claimed) int { return cmp.Compare(a.place, b.place) })
	messages := make([]bot.Message, len(list))
	for i := range list {
		messages[i] = list[i].Message
	}
	return messages, nil
}

// NextDue is when the next waiting message becomes due, chats in the skip list
// aside; the zero time when none waits.
func (db *DB) NextDue(ctx context.Context, skip []int64) (next time.Time, err error) {
	err = db.pool.QueryRow(ctx, "SELECT min(next_at) FROM outbox WHERE "+due, nonNil(skip)).Scan(when{&next})
	if err != nil {
		return next, fmt.Errorf("look for the next message: %w", err)
	}
	return next, nil
}

// Settle records what became of a claimed message. An update that was asked for
// again since its claim waits again, whatever became of the older edit; a
// message whose alert changed since its claim gets an update when it was
// delivered. Settling a message that is settled already changes nothing.
func (db *DB) Settle(ctx context.Context, now time.Time, s bot.Settlement) error {
	next := s.NextAt
	if next.IsZero() {
		next = now
	}
	tag, err := db.pool.Exec(ctx, `
		WITH settled AS (
		    UPDATE outbox SET
		        status = CASE WHEN version = $3 THEN $4 ELSE 'pending' END,
		        attempts = CASE WHEN version = $3 OR $4 IN ('pending', 'unknown') THEN attempts ELSE 0 END,
		        next_at = CASE WHEN $4 IN ('pending', 'unknown') THEN greatest($6, CASE WHEN version = $3 THEN $6 ELSE next_at END) ELSE next_at END,
		        message_id = coalesce(nullif($5::bigint, 0), message_id),
		        last_error = $7, settled_at = $1
		    WHERE id = $2 AND status = 'sending'
		    RETURNING id, chat_id, thread, alert, payload, kind, status, message_id, stale_from
		), changed AS (
		    SELECT id, chat_id, thread, alert, payload, stale_from AS due FROM settled
		    WHERE status = 'delivered' AND kind IN ('trip', 'long_open') AND message_id IS NOT NULL AND stale_from IS NOT NULL
		), asked AS (`+insertUpdate+`)
		SELECT FROM settled`,
		now, s.ID, s.Version, string(s.Status), s.MessageID, next, text(clip(s.Error, 1000)))
	if err != nil {
		return fmt.Errorf("settle message %d as %s: %w", s.ID, s.Status, err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	var status bot.Status
	switch err := db.pool.QueryRow(ctx, "SELECT status FROM outbox WHERE id = $1", s.ID).Scan(&status); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("settle message %d as %s: there is none", s.ID, s.Status)
	case err != nil:
		return fmt.Errorf("settle message %d as %s: %w", s.ID, s.Status, err)
	}
	return nil
}

// ResumeOutbox takes over what an earlier process was sending when it ended:
// whether it was delivered is unknown, and it is due. An update made twice is
// the same edit, so it merely waits again. Call it once at start, under Lock
// and before the first Claim.
func (db *DB) ResumeOutbox(ctx context.Context, now time.Time) (int64, error) {
	tag, err := db.pool.Exec(ctx, `
		UPDATE outbox SET status = CASE kind WHEN 'update' THEN 'pending' ELSE 'unknown' END, next_at = $1
		WHERE status = 'sending'`, now)
	if err != nil {
		return 0, fmt.Errorf("resume messages on their way: %w", err)
	}
	return tag.RowsAffected(), nil
}

// ChatMoved stores that a group became a supergroup: its waiting messages and
// all later ones go to the new id, and the message ids of the old group, which
// mean nothing there, are forgotten along with the edits of them.
func (db *DB) ChatMoved(ctx context.Context, from, to int64) error {
	if from == to || to == 0 {
		return fmt.Errorf("move chat %d to %d: it needs another chat", from, to)
	}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		for _, step := range []struct {
			sql  string
			args []any
		}{
			{"DELETE FROM chats WHERE chat_id = $1", []any{to}}, // it lives, wherever it was said to be
			{"INSERT INTO chats (chat_id, moved_to) VALUES ($1, $2) ON CONFLICT (chat_id) DO UPDATE SET moved_to = excluded.moved_to", []any{from, to}},
			{"UPDATE chats SET moved_to = $2 WHERE moved_to = $1", []any{from, to}},
			// In the order of their ids, as the journal takes them.
			{"SELECT FROM (SELECT id FROM outbox WHERE chat_id = $1 ORDER BY id FOR UPDATE) locked", []any{from}},
			{`UPDATE outbox SET chat_id = $2, message_id = NULL,
			      status = CASE WHEN kind = 'update' AND status IN ('pending', 'unknown') THEN 'expired' ELSE status END
			  WHERE chat_id = $1`, []any{from, to}},
		} {
			if _, err := tx.Exec(ctx, step.sql, step.args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("move chat %d to %d: %w", from, to, err)
	}
	return nil
}

// ForgetMessage drops Telegram's id of a delivered row, so that nothing edits
// it again; waiting edits of it expire. The id of one of its updates names the
// same message.
func (db *DB) ForgetMessage(ctx context.Context, outboxID int64) error {
	_, err := db.pool.Exec(ctx, `
		WITH forgotten AS (
		    UPDATE outbox SET message_id = NULL
		    WHERE id = (SELECT coalesce(target, id) FROM outbox WHERE id = $1)
		    RETURNING id
		)
		UPDATE outbox SET status = 'expired'
		WHERE target IN (SELECT id FROM forgotten) AND status IN ('pending', 'unknown')`, outboxID)
	if err != nil {
		return fmt.Errorf("forget the message of row %d: %w", outboxID, err)
	}
	return nil
}

// concerns is the condition under which a call or an ask of the labels in a row
// of counts would have passed through the incident i while it lasted.
const concerns = `bucket >= date_trunc('minute', i.opened_at) AND (i.closed_at IS NULL OR bucket <= i.closed_at)
	AND (i.agent = '' OR i.agent = c.agent) AND (i.machine = '' OR i.machine = c.machine)
	AND (i.model = '' OR i.model = c.model) AND (i.provider = '' OR i.provider = coalesce(nullif(c.provider, ''), c.machine))`

// Facts reads what a message about this alert to this chat says, all of one
// moment. Midnight, for the trips of the day, is that of now's location.
func (db *DB) Facts(ctx context.Context, now time.Time, alert uint64, chat int64) (bot.AlertFacts, error) {
	f := bot.AlertFacts{Alert: alert}
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		f.Incidents, err = collectIncidents(tx.Query(ctx, "SELECT "+incidentColumns+" FROM incidents i WHERE alert_id = $1 ORDER BY id", int64(alert)))
		if err != nil {
			return fmt.Errorf("incidents: %w", err)
		}
		if len(f.Incidents) == 0 {
			return nil // nothing is recorded of it (any more)
		}
		for _, i := range f.Incidents {
			f.Refused += i.Refused
		}
		first := f.Incidents[0]
		opened := first.OpenedAt.In(now.Location())
		midnight := time.Date(opened.Year(), opened.Month(), opened.Day(), 0, 0, 0, 0, opened.Location())
		// The latest failed probe of all, and the probe that closed the last.
		err = tx.QueryRow(ctx, `
			WITH mine AS (SELECT * FROM incidents WHERE alert_id = $1)
			SELECT (SELECT sum(probes_failed) FROM mine),
			       last.last_probe_at, coalesce(last.last_probe, ''),
			       coalesce((SELECT closed_by_probe FROM mine WHERE closed_at IS NOT NULL ORDER BY closed_at DESC, id DESC LIMIT 1), 0),
			       (SELECT min(b.retry_at) FROM mine JOIN breakers b ON b.name = mine.breaker WHERE mine.closed_at IS NULL AND b.state = 'open'),
			       (SELECT count(*) FROM incidents WHERE breaker = $2 AND opened_at >= $3 AND id <= $4)
			FROM (SELECT 1) one LEFT JOIN LATERAL (
			    SELECT last_probe_at, last_probe FROM mine WHERE last_probe_at IS NOT NULL ORDER BY last_probe_at DESC, id DESC LIMIT 1) last ON true`,
			int64(alert), first.Breaker, midnight, int64(first.ID)).
			Scan(&f.ProbesFailed, when{&f.LastProbeAt}, word{&f.LastProbe}, &f.ClosedByProbe, when{&f.NextProbeAt}, &f.TripsToday)
		if err != nil {
			return fmt.Errorf("probes: %w", err)
		}
		err = tx.QueryRow(ctx, `
			SELECT count(DISTINCT agent) FROM (
			    SELECT c.agent FROM permit_counts c JOIN incidents i ON `+concerns+`
			    WHERE i.alert_id = $1 AND c.reason NOT IN ('granted', 'probe')
			    UNION ALL
			    SELECT c.agent FROM outcome_counts c JOIN incidents i ON `+concerns+`
			    WHERE i.alert_id = $1 AND c.cause <> 'ok' AND c.served IN ('primary', 'fallback')) concerned`, int64(alert)).Scan(&f.Agents)
		if err != nil {
			return fmt.Errorf("agents: %w", err)
		}
		err = tx.QueryRow(ctx, `
			SELECT coalesce(sum(f.calls), 0) FROM fallback_counts f
			WHERE f.served = 'fallback' AND EXISTS (
			    SELECT FROM incidents i
			    WHERE i.alert_id = $1 AND f.bucket >= date_trunc('minute', i.opened_at) AND (i.closed_at IS NULL OR f.bucket <= i.closed_at)
			      AND (i.machine <> '' OR i.model <> '')
			      AND (i.agent = '' OR i.agent = f.agent) AND (i.machine = '' OR i.machine = f.from_machine) AND (i.model = '' OR i.model = f.from_model))`,
			int64(alert)).Scan(&f.Rerouted)
		if err != nil {
			return fmt.Errorf("rerouted calls: %w", err)
		}
		err = tx.QueryRow(ctx, `
			SELECT message_id FROM outbox
			WHERE alert = $1 AND chat_id = coalesce((SELECT moved_to FROM chats WHERE chat_id = $2), $2)
			  AND kind = 'trip' AND message_id IS NOT NULL
			ORDER BY id LIMIT 1`, int64(alert), chat).Scan(&f.TripMessage)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("its trip message: %w", err)
		}
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("read facts of alert %d: %w", alert, err)
	}
	return f, nil
}

// word scans a word of a closed vocabulary.
type word struct {
	to interface{ UnmarshalText([]byte) error }
}

func (w word) Scan(src any) error {
	s, ok := src.(string)
	if !ok {
		return fmt.Errorf("a word is %T", src)
	}
	return w.to.UnmarshalText([]byte(s))
}

func nonNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

// OutboxPending is a gauge of the messages that wait or are on their way. While
// the database cannot be asked it has no value.
func (db *DB) OutboxPending() prometheus.Collector { return outboxPending{db} }

type outboxPending struct{ db *DB }

var outboxPendingDesc = prometheus.NewDesc("breakerbot_outbox_pending", "Messages that wait to be sent or are on their way.", nil, nil)

func (c outboxPending) Describe(ch chan<- *prometheus.Desc) { ch <- outboxPendingDesc }

func (c outboxPending) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var n float64
	err := c.db.pool.QueryRow(ctx, "SELECT count(*)::float8 FROM outbox WHERE status IN ('pending', 'sending', 'unknown')").Scan(&n)
	if err != nil {
		return // an invalid metric would spoil the whole page
	}
	ch <- prometheus.MustNewConstMetric(outboxPendingDesc, prometheus.GaugeValue, n)
}

// MovedChats tells which groups have become supergroups, and where they are now.
func (db *DB) MovedChats(ctx context.Context) (map[int64]int64, error) {
	rows, err := db.pool.Query(ctx, "SELECT chat_id, moved_to FROM chats WHERE moved_to IS NOT NULL")
	if err != nil {
		return nil, fmt.Errorf("read moved chats: %w", err)
	}
	moved := make(map[int64]int64)
	var from, to int64
	_, err = pgx.ForEachRow(rows, []any{&from, &to}, func() error {
		moved[from] = to
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read moved chats: %w", err)
	}
	return moved, nil
}
