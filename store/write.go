package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/bot"
	"breakerbot/breaker"
)

// errForeign is in the error of a group that does not follow on what the
// database holds: somebody else has written there.
var errForeign = errors.New("another server has written to this database")

// write commits one group. It returns nil also when an earlier try of the same
// group has turned out to be committed.
func (db *DB) write(ctx context.Context, g *group) error {
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After a commit it does nothing; otherwise the connection is given back
	// clean or closed, even when ctx has ended.
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		tx.Rollback(end)
	}()
	batch := &pgx.Batch{}
	clock, err := jsonText(g.clock)
	if err != nil {
		return fmt.Errorf("encode the clock: %w", err)
	}
	// First, so that a try that is not the first is recognised, and so that two
	// tries of the same group wait for each other.
	batch.Queue("UPDATE journal SET position = $2, clock = CASE WHEN $1 = $2 THEN clock ELSE $3::jsonb END WHERE position = $1",
		int64(g.from), int64(g.to), clock)
	for _, queue := range []func(*pgx.Batch, *group) error{
		queueIncidents, queueTransitions, queueStates, queueCounts, queueHeard, queueWrites, queueRoutes, queueLately, queueLog, queuePlan,
	} {
		if err := queue(batch, g); err != nil {
			return err
		}
	}
	results := tx.SendBatch(ctx, batch)
	tag, err := results.Exec()
	if err == nil && tag.RowsAffected() == 0 {
		results.Close()
		return db.judgePosition(ctx, tx, g)
	}
	if err == nil {
		err = results.Close() // the first error of the rest
	} else {
		results.Close()
	}
	if err != nil {
		return fmt.Errorf("write %d to %d: %w", g.from, g.to, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit %d to %d: %w", g.from, g.to, err)
	}
	return nil
}

// judgePosition says what it means that the journal does not stand where the
// group begins.
func (db *DB) judgePosition(ctx context.Context, tx pgx.Tx, g *group) error {
	tx.Rollback(ctx) // whatever the rest of the batch did
	var position uint64
	switch err := db.pool.QueryRow(ctx, "SELECT position FROM journal").Scan(&position); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("write %d to %d: the journal has no row, Load makes it", g.from, g.to)
	case err != nil:
		return fmt.Errorf("read the journal's position: %w", err)
	case g.tried && position == g.to && g.from < g.to:
		return nil
	}
	return fmt.Errorf("write %d to %d: the journal stands at %d: %w", g.from, g.to, position, errForeign)
}

func queueHeard(batch *pgx.Batch, g *group) error {
	if len(g.heard) == 0 {
		return nil
	}
	calls, at := make([][]byte, len(g.heard)), make([]time.Time, len(g.heard))
	for i := range g.heard {
		calls[i], at[i] = g.heard[i].Call[:], g.heard[i].At
	}
	// A call may come again when it had been forgotten.
	batch.Queue(`
		INSERT INTO heard (call, at) SELECT DISTINCT ON (call) call, at FROM unnest($1::bytea[], $2::timestamptz[]) h (call, at) ORDER BY call, at DESC
		ON CONFLICT (call) DO UPDATE SET at = excluded.at`, calls, at)
	return nil
}

func queueIncidents(batch *pgx.Batch, g *group) error {
	var begun, known []*incidentRow
	for _, r := range g.incidents() {
		if r.begin != nil {
			begun = append(begun, r)
		} else {
			known = append(known, r)
		}
	}
	if n := len(begun); n > 0 {
		ids, trips, refused, failed := make([]int64, n), make([]int32, n), make([]int64, n), make([]int32, n)
		names, rules, details := make([]string, n), make([]string, n), make([]string, n)
		labels := newLabelColumns(n)
		opened, closed, probed := make([]time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
		causes, evidence, probe := make([]string, n), make([]*string, n), make([]*string, n)
		byProbe := make([]int32, n)
		for i, r := range begun {
			t := r.begin
			ids[i], trips[i], refused[i], failed[i] = int64(r.id), int32(r.trips), r.refused, int32(r.probesFailed)
			names[i], rules[i], details[i] = text(t.Breaker), text(t.Rule), text(t.Detail)
			labels.set(i, t.Labels)
			opened[i], closed[i], probed[i] = t.At, orNull(r.closedAt), orNull(r.lastProbeAt)
			probe[i] = causeOrNull(r.lastProbe)
			if r.byProbe {
				byProbe[i] = int32(r.probesFailed + 1)
			}
			var err error
			if causes[i], err = causesText(r.causes); err != nil {
				return fmt.Errorf("encode causes of incident %d: %w", r.id, err)
			}
			if evidence[i], err = evidenceText(t.Evidence); err != nil {
				return fmt.Errorf("encode evidence of incident %d: %w", r.id, err)
			}
		}
		// An open incident whose end was never told, because what would have
		// told it was lost, must not stop the breaker's next one.
		batch.Queue(`
			UPDATE incidents i SET closed_at = greatest(i.opened_at, u.at)
			FROM unnest($1::text[], $2::bigint[], $3::timestamptz[]) u (breaker, id, at)
			WHERE i.breaker = u.breaker AND i.closed_at IS NULL AND i.id <> u.id`, names, ids, opened)
		batch.Queue(`
			INSERT INTO incidents (id, breaker, rule, agent, machine, model, provider, opened_at, closed_at, trips, causes,
			                       detail, evidence, refused, probes_failed, last_probe_at, last_probe, closed_by_probe)
			SELECT id, breaker, rule, agent, machine, model, provider, opened_at, CASE WHEN closed_at IS NOT NULL THEN greatest(closed_at, opened_at) END, trips, causes::jsonb,
			       detail, evidence::jsonb, refused, probes_failed, last_probe_at, last_probe, closed_by_probe
			FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::timestamptz[],
			            $10::int[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::int[], $16::timestamptz[], $17::text[], $18::int[])
			     u (id, breaker, rule, agent, machine, model, provider, opened_at, closed_at, trips, causes,
			        detail, evidence, refused, probes_failed, last_probe_at, last_probe, closed_by_probe)`,
			ids, names, rules, labels.agent, labels.machine, labels.model, labels.provider, opened, closed,
			trips, causes, details, evidence, refused, failed, probed, probe, byProbe)
	}
	if n := len(known); n > 0 {
		ids, trips, refused, failed := make([]int64, n), make([]int32, n), make([]int64, n), make([]int32, n)
		closed, probed := make([]*time.Time, n), make([]*time.Time, n)
		causes, probe, byProbe := make([]string, n), make([]*string, n), make([]bool, n)
		for i, r := range known {
			ids[i], trips[i], refused[i], failed[i] = int64(r.id), int32(r.trips), r.refused, int32(r.probesFailed)
			closed[i], probed[i], probe[i], byProbe[i] = orNull(r.closedAt), orNull(r.lastProbeAt), causeOrNull(r.lastProbe), r.byProbe
			var err error
			if causes[i], err = causesText(r.causes); err != nil {
				return fmt.Errorf("encode causes of incident %d: %w", r.id, err)
			}
		}
		batch.Queue(`
			UPDATE incidents i SET
			    trips = i.trips + u.trips,
			    refused = i.refused + u.refused,
			    probes_failed = i.probes_failed + u.probes_failed,
			    last_probe_at = coalesce(u.last_probe_at, i.last_probe_at),
			    last_probe = CASE WHEN u.last_probe_at IS NULL THEN i.last_probe ELSE u.last_probe END,
			    closed_at = CASE WHEN u.closed_at IS NULL THEN i.closed_at ELSE greatest(u.closed_at, i.opened_at) END,
			    closed_by_probe = CASE WHEN u.by_probe THEN i.probes_failed + u.probes_failed + 1 ELSE i.closed_by_probe END,
			    causes = CASE WHEN u.causes = '[]' THEN i.causes ELSE (
			        SELECT jsonb_agg(jsonb_build_object('cause', cause, 'n', n) ORDER BY n DESC, cause)
			        FROM (SELECT c ->> 'cause' AS cause, sum((c ->> 'n')::bigint) AS n
			              FROM jsonb_array_elements(i.causes || u.causes::jsonb) c GROUP BY 1) sums) END
			FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::int[], $5::timestamptz[], $6::text[], $7::timestamptz[], $8::bool[], $9::text[])
			     u (id, trips, refused, probes_failed, last_probe_at, last_probe, closed_at, by_probe, causes)
			WHERE i.id = u.id`,
			ids, trips, refused, failed, probed, probe, closed, byProbe, causes)
	}
	return nil
}

func queueTransitions(batch *pgx.Batch, g *group) error {
	n := len(g.transitions)
	if n == 0 {
		return nil
	}
	at, retry := make([]time.Time, n), make([]*time.Time, n)
	names, rules, reasons, details, actors := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	from, to := make([]string, n), make([]string, n)
	cause, evidence := make([]*string, n), make([]*string, n)
	era, incident := make([]int64, n), make([]int64, n)
	labels := newLabelColumns(n)
	for i := range g.transitions {
		t := &g.transitions[i]
		at[i], retry[i] = t.At, orNull(t.RetryAt)
		names[i], rules[i], reasons[i], details[i], actors[i] = text(t.Breaker), text(t.Rule), text(t.Reason), text(t.Detail), text(t.Actor)
		from[i], to[i], cause[i] = t.From.String(), t.To.String(), causeOrNull(t.Cause)
		era[i], incident[i] = int64(t.Era), int64(t.Incident)
		labels.set(i, t.Labels)
		var err error
		if evidence[i], err = evidenceText(t.Evidence); err != nil {
			return fmt.Errorf("encode evidence of transition %s#%d: %w", t.Breaker, t.Era, err)
		}
	}
	batch.Queue(`
		INSERT INTO transitions (at, breaker, rule, agent, machine, model, provider, from_state, to_state, cause, reason,
		                         detail, evidence, actor, era, incident_id, retry_at)
		SELECT at, breaker, rule, agent, machine, model, provider, from_state, to_state, cause, reason,
		       detail, evidence::jsonb, actor, era, (SELECT i.id FROM incidents i WHERE i.id = u.incident_id), retry_at
		FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
		            $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::bigint[], $17::timestamptz[])
		     WITH ORDINALITY u (at, breaker, rule, agent, machine, model, provider, from_state, to_state, cause, reason,
		                        detail, evidence, actor, era, incident_id, retry_at, place)
		ORDER BY place`,
		at, names, rules, labels.agent, labels.machine, labels.model, labels.provider, from, to, cause, reasons,
		details, evidence, actors, era, incident, retry)
	return nil
}

func queueStates(batch *pgx.Batch, g *group) error {
	if len(g.evicted) > 0 {
		batch.Queue("DELETE FROM breakers WHERE name = ANY($1)", keys(g.evicted))
	}
	n := len(g.states)
	if n == 0 {
		return nil
	}
	names, rules, states, saved := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	era, retry := make([]int64, n), make([]*time.Time, n)
	labels := newLabelColumns(n)
	for i, name := range keys(g.states) {
		s := g.states[name]
		names[i], rules[i], states[i] = text(name), text(s.Rule), s.State.String()
		era[i], retry[i] = int64(s.Era), orNull(s.RetryAt)
		labels.set(i, s.Labels)
		var err error
		if saved[i], err = jsonText(s); err != nil {
			return fmt.Errorf("encode the state of %s: %w", name, err)
		}
	}
	batch.Queue(`
		INSERT INTO breakers (name, rule, agent, machine, model, provider, state, era, retry_at, saved, updated_at)
		SELECT name, rule, agent, machine, model, provider, state, era, retry_at, saved::jsonb, $11
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::timestamptz[], $10::text[])
		     u (name, rule, agent, machine, model, provider, state, era, retry_at, saved)
		ON CONFLICT (name) DO UPDATE SET
		    rule = excluded.rule, agent = excluded.agent, machine = excluded.machine, model = excluded.model, provider = excluded.provider,
		    state = excluded.state, era = excluded.era, retry_at = excluded.retry_at, saved = excluded.saved, updated_at = excluded.updated_at`,
		names, rules, labels.agent, labels.machine, labels.model, labels.provider, states, era, retry, saved, g.now)
	return nil
}

func queueCounts(batch *pgx.Batch, g *group) error {
	if n := len(g.outcomes); n > 0 {
		minute, labels, causes, served := make([]time.Time, n), newLabelColumns(n), make([]string, n), make([]string, n)
		calls, slow, late, duration := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		durations, cost := make([]string, n), make([]float64, n)
		i := 0
		for k, sum := range g.outcomes {
			minute[i], causes[i], served[i] = time.Unix(k.minute, 0), k.cause.String(), k.served.String()
			labels.set(i, k.Labels)
			calls[i], slow[i], late[i] = sum.calls, sum.slow, sum.late
			duration[i], durations[i], cost[i] = sum.duration.Milliseconds(), arrayText(sum.durations[:]), sum.cost
			i++
		}
		batch.Queue(`
			INSERT INTO outcome_counts (bucket, agent, machine, model, provider, cause, served, calls, duration_ms, durations, cost_usd, slow, late)
			SELECT bucket, agent, machine, model, provider, cause, served, calls, duration_ms, durations::bigint[], cost_usd, slow, late
			FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::text[],
			            $11::float8[], $12::bigint[], $13::bigint[])
			     u (bucket, agent, machine, model, provider, cause, served, calls, duration_ms, durations, cost_usd, slow, late)
			ON CONFLICT (bucket, agent, machine, model, provider, cause, served) DO UPDATE SET
			    calls = outcome_counts.calls + excluded.calls,
			    duration_ms = outcome_counts.duration_ms + excluded.duration_ms,
			    durations = ARRAY(SELECT a + b FROM unnest(outcome_counts.durations, excluded.durations) WITH ORDINALITY both_sums (a, b, place) ORDER BY place),
			    cost_usd = outcome_counts.cost_usd + excluded.cost_usd,
			    slow = outcome_counts.slow + excluded.slow,
			    late = outcome_counts.late + excluded.late`,
			minute, labels.agent, labels.machine, labels.model, labels.provider, causes, served, calls, duration, durations, cost, slow, late)
	}
	if n := len(g.asks); n > 0 {
		minute, labels, reasons, calls := make([]time.Time, n), newLabelColumns(n), make([]string, n), make([]int64, n)
		i := 0
		for k, sum := range g.asks {
			minute[i], reasons[i], calls[i] = time.Unix(k.minute, 0), k.reason, sum
			labels.set(i, k.Labels)
			i++
		}
		batch.Queue(`
			INSERT INTO permit_counts (bucket, agent, machine, model, provider, reason, calls)
			SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[])
			ON CONFLICT (bucket, agent, machine, model, provider, reason) DO UPDATE SET calls = permit_counts.calls + excluded.calls`,
			minute, labels.agent, labels.machine, labels.model, labels.provider, reasons, calls)
	}
	if n := len(g.fallbacks); n > 0 {
		minute, agent, calls := make([]time.Time, n), make([]string, n), make([]int64, n)
		fromMachine, fromModel, fromCause := make([]string, n), make([]string, n), make([]string, n)
		machine, model, served := make([]string, n), make([]string, n), make([]string, n)
		i := 0
		for k, sum := range g.fallbacks {
			minute[i], agent[i], calls[i] = time.Unix(k.minute, 0), text(k.agent), sum
			fromMachine[i], fromModel[i], fromCause[i] = text(k.from.Machine), text(k.from.Model), k.from.Cause.String()
			machine[i], model[i], served[i] = text(k.machine), text(k.model), k.served.String()
			i++
		}
		batch.Queue(`
			INSERT INTO fallback_counts (bucket, agent, from_machine, from_model, from_cause, machine, model, served, calls)
			SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[])
			ON CONFLICT (bucket, agent, from_machine, from_model, from_cause, machine, model, served) DO UPDATE SET calls = fallback_counts.calls + excluded.calls`,
			minute, agent, fromMachine, fromModel, fromCause, machine, model, served, calls)
	}
	return nil
}

// insertUpdate is the end of a statement that asks for edits of delivered
// messages, rows of changed (id, chat_id, thread, alert, payload, due). An edit
// that waits already is asked for again; one on its way is seen by its version
// to be out of date when it is settled.
const insertUpdate = `
	INSERT INTO outbox (chat_id, thread, kind, dedupe_key, alert, target, payload, status, next_at, created_at)
	SELECT chat_id, thread, 'update', 'update/' || id, alert, id,
	       CASE WHEN payload ? 'step' THEN jsonb_build_object('step', payload -> 'step') ELSE '{}' END, 'pending', due, $1
	FROM changed ORDER BY id
	ON CONFLICT (dedupe_key) DO UPDATE SET
	    version = outbox.version + 1,
	    next_at = greatest(outbox.next_at, excluded.next_at),
	    status = CASE outbox.status WHEN 'sending' THEN 'sending' ELSE 'pending' END,
	    attempts = CASE outbox.status WHEN 'sending' THEN outbox.attempts ELSE 0 END`

func queuePlan(batch *pgx.Batch, g *group) error {
	p := &g.plan
	if n := len(p.Joins); n > 0 {
		incidents, alerts := make([]int64, 0, n), make([]int64, 0, n)
		for _, id := range keys(p.Joins) {
			incidents, alerts = append(incidents, int64(id)), append(alerts, int64(p.Joins[id]))
		}
		batch.Queue(`
			UPDATE incidents i SET alert_id = u.alert
			FROM unnest($1::bigint[], $2::bigint[]) u (id, alert) WHERE i.id = u.id`, incidents, alerts)
	}
	for i := range p.New {
		if err := queueMessage(batch, &p.New[i], g.now); err != nil {
			return err
		}
	}
	if n := len(p.Touched); n > 0 {
		alerts, due := make([]int64, 0, n), make([]time.Time, 0, n)
		for _, alert := range keys(p.Touched) {
			alerts, due = append(alerts, int64(alert)), append(due, p.Touched[alert])
		}
		// One that is not delivered yet is rendered when it is sent, which may be
		// just happening, from facts of before this transaction: so it remembers
		// that it is out of date, until it is claimed (and rendered after that)
		// or settled as delivered (and then gets its edit). The row's lock orders
		// this statement, the claim and the settlement.
		batch.Queue(`
			WITH touched AS (
			    UPDATE outbox o SET stale_from = CASE WHEN o.status = 'delivered' THEN NULL ELSE greatest(o.stale_from, u.due) END
			    FROM unnest($2::bigint[], $3::timestamptz[]) u (alert, due)
			    WHERE o.alert = u.alert AND o.kind IN ('trip', 'long_open') AND o.status IN ('pending', 'sending', 'unknown', 'delivered')
			    RETURNING o.id, o.chat_id, o.thread, o.alert, o.payload, o.status, o.message_id, u.due
			), changed AS (
			    SELECT * FROM touched WHERE status = 'delivered' AND message_id IS NOT NULL
			)`+insertUpdate, g.now, alerts, due)
	}
	return nil
}

// queueMessage inserts a message unless its key exists. It goes where its chat
// has moved to.
func queueMessage(batch *pgx.Batch, m *bot.Message, now time.Time) error {
	payload, err := jsonText(m.Payload)
	if err != nil {
		return fmt.Errorf("encode message %s: %w", m.DedupeKey, err)
	}
	created, next := m.CreatedAt, m.NextAt
	if created.IsZero() {
		created = now
	}
	if next.IsZero() {
		next = created
	}
	batch.Queue(insertMessage, m.ChatID, m.Thread, string(m.Kind), text(m.DedupeKey), int64(m.Alert), m.Target, payload, next, created)
	return nil
}

const insertMessage = `
	INSERT INTO outbox (chat_id, thread, kind, dedupe_key, alert, target, payload, next_at, created_at)
	VALUES (coalesce((SELECT moved_to FROM chats WHERE chat_id = $1), $1), $2, $3, $4, nullif($5::bigint, 0), nullif($6::bigint, 0), $7::jsonb, $8, $9)
	ON CONFLICT (dedupe_key) DO NOTHING`

// labelColumns are the four labels of many rows.
type labelColumns struct{ agent, machine, model, provider []string }

func newLabelColumns(n int) labelColumns {
	return labelColumns{make([]string, n), make([]string, n), make([]string, n), make([]string, n)}
}

func (c labelColumns) set(i int, l breaker.Labels) {
	c.agent[i], c.machine[i], c.model[i], c.provider[i] = text(l.Agent), text(l.Machine), text(l.Model), text(l.Provider)
}

func causeOrNull(c breaker.Cause) *string {
	if c == 0 {
		return nil
	}
	return new(c.String())
}

func causesText(causes []breaker.CauseCount) (string, error) {
	if len(causes) == 0 {
		return "[]", nil
	}
	return jsonText(causes)
}

func evidenceText(e *breaker.Evidence) (*string, error) {
	if e == nil {
		return nil, nil
	}
	s, err := jsonText(e)
	return &s, err
}

// arrayText is a one-dimensional array as PostgreSQL reads it: arrays of arrays
// would be flattened by unnest.
func arrayText(values []int64) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(v, 10))
	}
	b.WriteByte('}')
	return b.String()
}

// keys are a map's keys in order, so that rows are always locked in the same.
func keys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
