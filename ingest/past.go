package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"breakerbot/breaker"
)

const (
	defaultPage = 100
	maxPage     = 1000
	maxCursor   = 256 // bytes
	// historyWait bounds a look into the database.
	historyWait = 20 * time.Second
	// maxPeriod is the longest span of a digest.
	maxPeriod     = 400 * 24 * time.Hour
	defaultPeriod = 24 * time.Hour
)

// The bodies of the pages.
type (
	// TransitionsBody is the answer of GET /v1/transitions.
	TransitionsBody struct {
		Transitions []TransitionBody `json:"transitions"`
		NextCursor  string           `json:"next_cursor,omitempty"` // absent on the last page
	}
	// IncidentsBody is the answer of GET /v1/incidents.
	IncidentsBody struct {
		Incidents  []IncidentBody `json:"incidents"`
		NextCursor string         `json:"next_cursor,omitempty"`
	}
)

// DigestRequest asks for a report about the span of Period that ends at Until.
type DigestRequest struct {
	Period time.Duration
	Until  time.Time
	Format string // one of DigestFormats
}

// DigestFormats are the formats that GET /v1/digest knows.
var DigestFormats = []string{"json", "text", "html"}

// filter reads the filters of transitions and incidents.
func filter(q url.Values) (breaker.Filter, error) {
	f := breaker.Filter{Machine: q.Get("machine"), Model: q.Get("model"), Cursor: q.Get("cursor")}
	if err := knownQuery(q, "since", "until", "machine", "model", "limit", "cursor"); err != nil {
		return f, err
	}
	for name, into := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := q.Get(name); text != "" {
			at, err := parseTime(name, text)
			if err != nil {
				return f, err
			}
			*into = at
		}
	}
	for name, text := range map[string]string{"machine": f.Machine, "model": f.Model} {
		if text != "" {
			if err := breaker.CheckLabel(text); err != nil {
				return f, badQuery(name, err.Error())
			}
		}
	}
	var err error
	if f.Limit, err = limit(q); err != nil {
		return f, err
	}
	if len(f.Cursor) > maxCursor || strings.ContainsRune(f.Cursor, 0) {
		return f, badCursor()
	}
	return f, nil
}

// limit reads how many a page may have.
func limit(q url.Values) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, badQuery("limit", fmt.Sprintf("is %q: a number from 1 to %d is needed", excerpt(text), maxPage))
	}
	return n, nil
}

func badCursor() error {
	return badQuery("cursor", "is not one that was given out: take next_cursor of the page before")
}

func parseTime(name, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		// A + in a query is a blank unless it was escaped.
		at, err = time.Parse(time.RFC3339, strings.ReplaceAll(text, " ", "+"))
	}
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return time.Time{}, badQuery(name, fmt.Sprintf("is %q: an RFC 3339 time with zone is needed, such as 2026-03-01T14:02:00Z", excerpt(text)))
	}
	return at, nil
}

// parsePeriod reads a Go duration, or a number of days or weeks such as 7d.
func parsePeriod(text string) (time.Duration, error) {
	period, err := time.ParseDuration(text)
	for unit, length := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if number, ok := strings.CutSuffix(text, unit); ok && err != nil {
			var n int
			if n, err = strconv.Atoi(number); err == nil && n < int(maxPeriod/length)+1 {
				period = time.Duration(n) * length
			}
		}
	}
	switch {
	case err != nil:
		return 0, badQuery("period", fmt.Sprintf("is %q: a duration is needed, such as 24h or 7d", excerpt(text)))
	case period < time.Minute || period > maxPeriod:
		return 0, badQuery("period", fmt.Sprintf("is %q: 1m to %dd is possible", excerpt(text), maxPeriod/(24*time.Hour)))
	}
	return period, nil
}

// cursorError is what History says of a cursor that it cannot read.
type cursorError interface {
	error
	BadCursor() bool
}

// historyProblem maps what a look into the database can end in.
func (s *Server) historyProblem(err error) error {
	if bad, ok := errors.AsType[cursorError](err); ok && bad.BadCursor() {
		return badCursor()
	}
	s.Log.Warn("history not readable", "error", err)
	return newProblem(http.StatusServiceUnavailable, "the history cannot be read just now: the database does not answer").retryAfter(5 * time.Second)
}

// readPage reads one page of history, filtered as the query says, with each row
// in the form that the API writes.
func readPage[T, B any](
	s *Server, r *http.Request, read func(History, context.Context, breaker.Filter) ([]T, string, error), form func(T) B,
) (list []B, next string, err error) {
	core, err := s.ready()
	if err != nil {
		return nil, "", err
	}
	f, err := filter(r.URL.Query())
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyWait)
	defer cancel()
	page, next, err := read(core.History, ctx, f)
	if err != nil {
		return nil, "", s.historyProblem(err)
	}
	list = make([]B, 0, len(page))
	for _, row := range page {
		list = append(list, form(row))
	}
	return list, next, nil
}

func (s *Server) getTransitions(w http.ResponseWriter, r *http.Request) error {
	list, next, err := readPage(s, r, History.Transitions, TransitionJSON)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, TransitionsBody{Transitions: list, NextCursor: next})
}

func (s *Server) getIncidents(w http.ResponseWriter, r *http.Request) error {
	list, next, err := readPage(s, r, History.Incidents, IncidentJSON)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, IncidentsBody{Incidents: list, NextCursor: next})
}

func (s *Server) getDigest(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.ready(); err != nil {
		return err
	}
	q := r.URL.Query()
	if err := knownQuery(q, "period", "until", "format"); err != nil {
		return err
	}
	ask := DigestRequest{Period: defaultPeriod, Until: s.Now(), Format: DigestFormats[0]}
	var err error
	if text := q.Get("period"); text != "" {
		if ask.Period, err = parsePeriod(text); err != nil {
			return err
		}
	}
	if text := q.Get("until"); text != "" {
		if ask.Until, err = parseTime("until", text); err != nil {
			return err
		}
	}
	if text := q.Get("format"); text != "" {
		if !slices.Contains(DigestFormats, text) {
			return badQuery("format", fmt.Sprintf("is %q: known are %s", excerpt(text), strings.Join(DigestFormats, ", ")))
		}
		ask.Format = text
	}
	if s.Digest == nil {
		return newProblem(http.StatusNotImplemented, "this service makes no digests")
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyWait)
	defer cancel()
	contentType, body, err := s.Digest(ctx, ask)
	if err != nil {
		return s.historyProblem(err)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:")
	w.Write(body)
	return nil
}
