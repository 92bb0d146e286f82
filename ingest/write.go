package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"breakerbot/breaker"
)

// WriteBody is what is known of a write that is or was in doubt: its labels
// say where to ask whether it took effect.
type WriteBody struct {
	IdempotencyKey string `json:"idempotency_key"`
	breaker.Labels
	State        breaker.WriteState `json:"state"`
	Cause        breaker.Cause      `json:"cause"`
	At           Millis             `json:"at"`                       // when the call ended
	Until        Millis             `json:"until"`                    // permits for its key are held until then, at the latest
	RetryAfterMS *int64             `json:"retry_after_ms,omitempty"` // while they are held
	SettledAt    Millis             `json:"settled_at,omitzero"`
	SettledBy    string             `json:"settled_by,omitempty"` // the token's name
}

// WriteJSON is the write as GET /v1/writes/{idempotency_key} answers it at now.
func WriteJSON(w breaker.Write, now time.Time) WriteBody {
	body := WriteBody{
		IdempotencyKey: w.Key, Labels: w.Labels, State: w.State, Cause: w.Cause, At: Millis{w.At}, Until: Millis{w.Until},
		SettledAt: Millis{w.SettledAt}, SettledBy: w.SettledBy,
	}
	if w.State == breaker.WriteInDoubt {
		body.RetryAfterMS = retryAfterMS(w.Until, now)
	}
	return body
}

func writeOrNil(w *breaker.Write, now time.Time) *WriteBody {
	if w == nil {
		return nil
	}
	return new(WriteJSON(*w, now))
}

// WritesBody is the answer to GET /v1/writes.
type WritesBody struct {
	Writes []WriteBody `json:"writes"`
}

// ReconciledBody is the answer to PUT /v1/writes/{idempotency_key}.
type ReconciledBody struct {
	WriteBody
	Durable bool `json:"durable"`
}

// reconciliation is what became of a write.
type reconciliation struct {
	key     string
	applied bool
}

var (
	resultField = field[reconciliation]{"result", true, func(r *reconciliation, v value) string {
		if !v.isString() {
			return wrongKind(v, "applied or not_applied")
		}
		switch word := v.text(); breaker.WriteState(word) {
		case breaker.WriteApplied:
			r.applied = true
		case breaker.WriteNotApplied:
			r.applied = false
		default:
			return fmt.Sprintf("is the string %q: applied or not_applied is needed", excerpt(word))
		}
		return ""
	}}
	keyField = field[reconciliation]{"idempotency_key", true, func(r *reconciliation, v value) string {
		if !v.isString() {
			return wrongKind(v, "a string")
		}
		r.key = v.text()
		return badKey(r.key)
	}}

	// reconcileFields are those of the body of a PUT: its key is in the path.
	reconcileFields = newFields(resultField)
	writeFields     = newFields(keyField, resultField)
)

// badKey says what is wrong with an idempotency key.
func badKey(key string) string {
	switch {
	case key == "":
		return "is missing"
	case len(key) > maxID:
		return fmt.Sprintf("is %d bytes long: at most %d are allowed", len(key), maxID)
	case !utf8.ValidString(key):
		return "is not valid UTF-8"
	case strings.ContainsFunc(key, unicode.IsControl):
		return fmt.Sprintf("%q holds a control character", excerpt(key))
	}
	return ""
}

// DecodeWrite reads an idempotency key and what became of its write, in one
// object. Errors, which are also made of unknown fields, leave it unusable.
func DecodeWrite(raw json.RawMessage) (key string, applied bool, errs []FieldError) {
	if err := syntaxError(raw, 1); err != nil {
		return "", false, []FieldError{{Message: err.Error()}}
	}
	var r reconciliation
	errs = decodeKnown(raw, writeFields, &r)
	return r.key, r.applied, errs
}

// ReconciledJSON is what PUT /v1/writes/{idempotency_key} answers at now to what
// Engine.Reconcile gave: the write, or the problem.
func ReconciledJSON(w breaker.Write, err error, now time.Time) any {
	if err != nil {
		return asProblem(writeProblem(err, w, now))
	}
	return WriteJSON(w, now)
}

// writeProblem says why nothing is known of a write, or why it cannot be
// reconciled: then with what is known.
func writeProblem(err error, w breaker.Write, now time.Time) error {
	switch {
	case errors.Is(err, breaker.ErrUnknownWrite):
		return newProblem(http.StatusNotFound, "no write with this idempotency key is in doubt, or was within the last %s: nothing is held for it", spell(2*breaker.DoubtFor))
	case errors.Is(err, breaker.ErrWriteSettled):
		p := newProblem(http.StatusConflict, "the write is reconciled already, as %s: the first answer stands", w.State)
		p.Write = writeOrNil(&w, now)
		return p
	}
	return err
}

// writeOf is the core and the key that a request about a write names.
func (s *Server) writeOf(r *http.Request) (*Core, string, error) {
	core, err := s.ready()
	if err != nil {
		return nil, "", err
	}
	key := r.PathValue("idempotency_key")
	if message := badKey(key); message != "" {
		p := newProblem(http.StatusBadRequest, "idempotency_key: %s", message)
		p.Errors = []FieldError{{Path: "idempotency_key", Message: message}}
		return nil, "", p
	}
	return core, key, nil
}

var writeStates = []breaker.WriteState{breaker.WriteInDoubt, breaker.WriteApplied, breaker.WriteNotApplied, breaker.WriteExpired}

// getWrites lists writes, the latest first.
func (s *Server) getWrites(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	q := r.URL.Query()
	if err := knownQuery(q, "agent", "machine", "state", "limit"); err != nil {
		return err
	}
	of := breaker.Labels{Agent: q.Get("agent"), Machine: q.Get("machine")}
	for name, label := range map[string]string{"agent": of.Agent, "machine": of.Machine} {
		if label != "" {
			if err := breaker.CheckLabel(label); err != nil {
				return badQuery(name, err.Error())
			}
		}
	}
	var states []breaker.WriteState
	for _, list := range q["state"] {
		for word := range strings.SplitSeq(list, ",") {
			if !slices.Contains(writeStates, breaker.WriteState(word)) {
				return badQuery("state", fmt.Sprintf("is %q: in_doubt, applied, not_applied or expired is needed", excerpt(word)))
			}
			states = append(states, breaker.WriteState(word))
		}
	}
	n, err := limit(q)
	if err != nil {
		return err
	}
	now := s.Now()
	body := WritesBody{Writes: []WriteBody{}}
	for _, one := range core.Engine.Writes(now, core.Engine.Canonical(of), n, states...) {
		body.Writes = append(body.Writes, WriteJSON(one, now))
	}
	return writeJSON(w, http.StatusOK, body)
}

func (s *Server) getWrite(w http.ResponseWriter, r *http.Request) error {
	core, key, err := s.writeOf(r)
	if err != nil {
		return err
	}
	if err := knownQuery(r.URL.Query()); err != nil {
		return err
	}
	now := s.Now()
	known, ok := core.Engine.Write(now, key)
	if !ok {
		return writeProblem(breaker.ErrUnknownWrite, known, now)
	}
	return writeJSON(w, http.StatusOK, WriteJSON(known, now))
}

// putWrite takes what became of a write, in the token's name.
func (s *Server) putWrite(w http.ResponseWriter, r *http.Request) error {
	core, key, err := s.writeOf(r)
	if err != nil {
		return err
	}
	var in reconciliation
	if err := decodeSmall(w, r, reconcileFields, &in); err != nil {
		return err
	}
	now := s.Now()
	known, seq, err := core.Engine.Reconcile(now, key, in.applied, actor(r))
	if err != nil {
		return writeProblem(err, known, now)
	}
	s.Log.Info("write reconciled", "result", string(known.State), "machine", known.Machine, "model", known.Model, "actor", actor(r))
	body := ReconciledBody{WriteBody: WriteJSON(known, now), Durable: s.durable(r.Context(), core, seq)}
	status := http.StatusOK
	if !body.Durable {
		status = http.StatusAccepted
	}
	return writeJSON(w, status, body)
}
