package ingest

import (
	"errors"
	"net/http"
	"time"

	"breakerbot/breaker"
)

// stateUnknown is the state of every circuit before the state is restored.
const stateUnknown = "unknown"

// reasonStarting is why a permit is refused before the state is restored.
const reasonStarting = "starting"

// readObject reads a small JSON body; an empty one is an empty object.
func readObject(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := readBody(w, r, maxSmallBody, false)
	if err != nil {
		return nil, err
	}
	data := append([]byte(nil), b.data...)
	b.release()
	if skipSpace(data, 0) == len(data) {
		return []byte("{}"), nil
	}
	if err := syntaxError(data, 1); err != nil {
		return nil, newProblem(http.StatusBadRequest, "%s", err)
	}
	return data, nil
}

// postPermits answers whether a call may be made. Only a granted probe waits
// for the disk: a restart must know of it.
func (s *Server) postPermits(w http.ResponseWriter, r *http.Request) error {
	data, err := readObject(w, r)
	if err != nil {
		return err
	}
	ask, errs, warnings := DecodeAsk(data)
	if len(errs) > 0 {
		return invalid(errs)
	}
	core := s.core.Load()
	if core == nil {
		// A write may be in doubt, and nobody can say so yet: that one has to wait.
		body := GrantBody{Allowed: s.StartOpen && ask.IdempotencyKey == "", State: stateUnknown, Warnings: warnings}
		if !body.Allowed {
			ms := startRetry.Milliseconds()
			body.Reason, body.RetryAfterMS = reasonStarting, &ms
		}
		s.metrics.permits.WithLabelValues(stateUnknown).Inc()
		return writeJSON(w, http.StatusOK, body)
	}
	now := s.Now()
	grant, seq := core.Engine.Ask(now, ask)
	decision := grant.Reason
	switch {
	case grant.Probe:
		decision = breaker.AskedProbe
		s.durable(r.Context(), core, seq)
	case grant.Allowed:
		decision = breaker.AskedGranted
	}
	s.metrics.permits.WithLabelValues(decision).Inc()
	body := GrantJSON(grant, now)
	body.Warnings = warnings
	return writeJSON(w, http.StatusOK, body)
}

func (s *Server) postRelease(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	var rep struct{}
	if err := decodeSmall(w, r, newFields[struct{}](), &rep); err != nil {
		return err
	}
	duplicate, _, err := core.Engine.Release(s.Now(), r.PathValue("permit"))
	if err != nil {
		return permitProblem(err)
	}
	return writeJSON(w, http.StatusOK, ReleaseBody{Released: !duplicate, Duplicate: duplicate})
}

// extension is the body of an extension.
type extension struct{ timeout time.Duration }

var extendFields = newFields(
	field[extension]{"timeout_ms", true, func(e *extension, v value) (message string) {
		e.timeout, message = readMillis(v, maxCallTime)
		return message
	}},
)

func (s *Server) postExtend(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	var in extension
	if err := decodeSmall(w, r, extendFields, &in); err != nil {
		return err
	}
	expires, _, err := core.Engine.Extend(s.Now(), r.PathValue("permit"), in.timeout)
	if err != nil {
		return permitProblem(err)
	}
	return writeJSON(w, http.StatusOK, ExtendBody{ExpiresAt: Millis{expires}})
}

func permitProblem(err error) error {
	switch {
	case errors.Is(err, breaker.ErrBadPermit):
		return newProblem(http.StatusNotFound, "the permit is not one of this pool's")
	case errors.Is(err, breaker.ErrLeaseOver):
		return newProblem(http.StatusConflict, "the probe's lease is over: ask for a new permit")
	}
	return err
}

// decodeSmall reads a body of a few known fields. Here unknown ones are an
// error: there is no answer that a warning could stand in.
func decodeSmall[T any](w http.ResponseWriter, r *http.Request, f *fields[T], into *T) error {
	data, err := readObject(w, r)
	if err != nil {
		return err
	}
	if errs := decodeKnown(data, f, into); len(errs) > 0 {
		return invalid(errs)
	}
	return nil
}

// decodeKnown reads an object of which an unknown field is an error.
func decodeKnown[T any](data []byte, f *fields[T], into *T) []FieldError {
	rep := report{warnLeft: maxItemWarnings}
	f.decode(data, into, &rep)
	for _, warning := range rep.warnings {
		rep.fail(warning.Path, warning.Message)
	}
	return rep.errors
}
