package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"breakerbot/breaker"
)

// Pages have defaultPage rows when nobody says, and at most maxPage.
const (
	defaultPage = 100
	maxPage     = 1000
)

// ErrBadCursor is in the error for a cursor that no page of the list gave out.
var ErrBadCursor error = badCursor{}

type badCursor struct{}

func (badCursor) Error() string { return "cursor is none of this list's" }

// BadCursor tells those who know no store that the fault is the caller's.
func (badCursor) BadCursor() bool { return true }

// A cursor is the kind of list and the number of the page's last row, so that
// a page is found by its key and rows added meanwhile shift nothing.
const (
	transitionsCursor = "t"
	incidentsCursor   = "i"
)

func readCursor(kind, cursor string) (before int64, err error) {
	if cursor == "" {
		return 1<<63 - 1, nil
	}
	number, ok := strings.CutPrefix(cursor, kind)
	if before, err = strconv.ParseInt(number, 36, 64); !ok || err != nil || before <= 0 {
		return 0, fmt.Errorf("%w: %q", ErrBadCursor, clip(cursor, 50))
	}
	return before, nil
}

func writeCursor(kind string, last int64) string { return kind + strconv.FormatInt(last, 36) }

func pageSize(limit int) int {
	if limit <= 0 {
		return defaultPage
	}
	return min(limit, maxPage)
}

// filterArgs are the arguments $1 to $6 of a filtered list. The row after the
// page is read too: it tells whether there is a next one.
func filterArgs(f breaker.Filter, before int64) []any {
	return []any{before, orNull(f.Since), orNull(f.Until), f.Machine, f.Model, pageSize(f.Limit) + 1}
}

// orNull makes null of the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

const transitionColumns = `at, breaker, rule, agent, machine, model, provider, from_state, to_state,
	coalesce(cause, ''), reason, detail, evidence, actor, era, coalesce(incident_id, 0), retry_at`

func scanTransition(row pgx.CollectableRow, before ...any) (t breaker.Transition, err error) {
	var from, to, cause string
	var evidence []byte
	err = row.Scan(append(before, when{&t.At}, &t.Breaker, &t.Rule, &t.Agent, &t.Machine, &t.Model, &t.Provider, &from, &to,
		&cause, &t.Reason, &t.Detail, &evidence, &t.Actor, &t.Era, &t.Incident, when{&t.RetryAt})...)
	if err != nil {
		return t, err
	}
	if err := errors.Join(t.From.UnmarshalText([]byte(from)), t.To.UnmarshalText([]byte(to)), t.Cause.UnmarshalText([]byte(cause))); err != nil {
		return t, err
	}
	if evidence != nil {
		t.Evidence = new(breaker.Evidence)
		err = json.Unmarshal(evidence, t.Evidence)
	}
	return t, err
}

// Transitions is one page of what the breakers did, newest first, and the
// cursor of the next page, "" on the last. The error has ErrBadCursor in it
// when the filter's cursor is not one of these.
func (db *DB) Transitions(ctx context.Context, f breaker.Filter) ([]breaker.Transition, string, error) {
	before, err := readCursor(transitionsCursor, f.Cursor)
	if err != nil {
		return nil, "", err
	}
	rows, err := db.pool.Query(ctx, `
		SELECT id, `+transitionColumns+`
		FROM transitions
		WHERE id < $1 AND ($2::timestamptz IS NULL OR at >= $2) AND ($3::timestamptz IS NULL OR at < $3)
		  AND ($4::text = '' OR machine = $4) AND ($5::text = '' OR model = $5)
		ORDER BY id DESC LIMIT $6`, filterArgs(f, before)...)
	if err != nil {
		return nil, "", fmt.Errorf("read transitions: %w", err)
	}
	var ids []int64
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (breaker.Transition, error) {
		var id int64
		t, err := scanTransition(row, &id)
		ids = append(ids, id)
		return t, err
	})
	if err != nil {
		return nil, "", fmt.Errorf("read transitions: %w", err)
	}
	n := pageSize(f.Limit)
	if len(list) <= n {
		return list, "", nil
	}
	return list[:n], writeCursor(transitionsCursor, ids[n-1]), nil
}

// BreakerTransitions lists the last transitions of one breaker, newest first.
func (db *DB) BreakerTransitions(ctx context.Context, name string, limit int) ([]breaker.Transition, error) {
	rows, err := db.pool.Query(ctx, `
		SELECT `+transitionColumns+` FROM transitions WHERE breaker = $1 ORDER BY era DESC LIMIT $2`, name, pageSize(limit))
	if err != nil {
		return nil, fmt.Errorf("read transitions of %s: %w", name, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (breaker.Transition, error) { return scanTransition(row) })
	if err != nil {
		return nil, fmt.Errorf("read transitions of %s: %w", name, err)
	}
	return list, nil
}

const incidentColumns = `i.id, i.breaker, i.rule, i.agent, i.machine, i.model, i.provider, i.opened_at, i.closed_at,
	i.trips, i.causes, i.detail, i.evidence, i.refused`

func scanIncident(row pgx.CollectableRow, after ...any) (i breaker.Incident, err error) {
	var causes, evidence []byte
	err = row.Scan(append([]any{&i.ID, &i.Breaker, &i.Rule, &i.Agent, &i.Machine, &i.Model, &i.Provider, when{&i.OpenedAt}, when{&i.ClosedAt},
		&i.Trips, &causes, &i.Detail, &evidence, &i.Refused}, after...)...)
	if err != nil {
		return i, err
	}
	if err := json.Unmarshal(causes, &i.Causes); err != nil {
		return i, fmt.Errorf("causes of incident %d: %w", i.ID, err)
	}
	if evidence != nil {
		i.Evidence = new(breaker.Evidence)
		if err := json.Unmarshal(evidence, i.Evidence); err != nil {
			return i, fmt.Errorf("evidence of incident %d: %w", i.ID, err)
		}
	}
	return i, nil
}

func collectIncidents(rows pgx.Rows, err error) ([]breaker.Incident, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (breaker.Incident, error) { return scanIncident(row) })
}

// Incidents is one page of incidents, by the time of their opening, newest
// first, and the cursor of the next page, "" on the last. The error has
// ErrBadCursor in it when the filter's cursor is not one of these.
func (db *DB) Incidents(ctx context.Context, f breaker.Filter) ([]breaker.Incident, string, error) {
	before, err := readCursor(incidentsCursor, f.Cursor)
	if err != nil {
		return nil, "", err
	}
	list, err := collectIncidents(db.pool.Query(ctx, `
		SELECT `+incidentColumns+`
		FROM incidents i
		WHERE id < $1 AND ($2::timestamptz IS NULL OR opened_at >= $2) AND ($3::timestamptz IS NULL OR opened_at < $3)
		  AND ($4::text = '' OR machine = $4) AND ($5::text = '' OR model = $5)
		ORDER BY id DESC LIMIT $6`, filterArgs(f, before)...))
	if err != nil {
		return nil, "", fmt.Errorf("read incidents: %w", err)
	}
	n := pageSize(f.Limit)
	if len(list) <= n {
		return list, "", nil
	}
	return list[:n], writeCursor(incidentsCursor, int64(list[n-1].ID)), nil
}

// Incident reads one incident by its number; false when there is none.
func (db *DB) Incident(ctx context.Context, id uint64) (breaker.Incident, bool, error) {
	if id > 1<<63-1 {
		return breaker.Incident{}, false, nil
	}
	list, err := collectIncidents(db.pool.Query(ctx, "SELECT "+incidentColumns+" FROM incidents i WHERE id = $1", id))
	if err != nil {
		return breaker.Incident{}, false, fmt.Errorf("read incident %d: %w", id, err)
	}
	if len(list) == 0 {
		return breaker.Incident{}, false, nil
	}
	return list[0], true, nil
}

// BreakerIncidents lists the last incidents of one breaker, newest first.
func (db *DB) BreakerIncidents(ctx context.Context, name string, limit int) ([]breaker.Incident, error) {
	list, err := collectIncidents(db.pool.Query(ctx, `
		SELECT `+incidentColumns+` FROM incidents i WHERE breaker = $1 ORDER BY id DESC LIMIT $2`, name, pageSize(limit)))
	if err != nil {
		return nil, fmt.Errorf("read incidents of %s: %w", name, err)
	}
	return list, nil
}
