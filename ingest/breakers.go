package ingest

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"breakerbot/breaker"
)

const (
	// maxReason is the longest reason of a control, in bytes.
	maxReason = 500
	// maxHold is the longest hold with an end; one without is possible too.
	maxHold = 366 * 24 * time.Hour
)

// The bodies of the lists.
type (
	// CircuitsBody is the answer of GET /v1/circuits.
	CircuitsBody struct {
		Circuits []CircuitBody `json:"circuits"`
	}
	// BreakersBody is the answer of GET /v1/breakers.
	BreakersBody struct {
		Breakers []BreakerBody `json:"breakers"`
	}
	// RulesBody is the answer of GET /v1/rules.
	RulesBody struct {
		Rules []breaker.Rule `json:"rules"`
		Gates []Gate         `json:"gates"`
	}
)

func badQuery(name, message string) error {
	p := newProblem(http.StatusBadRequest, "query parameter %s: %s", name, message)
	p.Errors = []FieldError{{Path: name, Message: message}}
	return p
}

// knownQuery refuses unknown parameters: a filter with a typing error would
// answer about everything.
func knownQuery(q url.Values, known ...string) error {
	for name := range q {
		if slices.Contains(known, name) {
			continue
		}
		if len(known) == 0 {
			return badQuery(excerpt(name), "is not known: there is none here")
		}
		return badQuery(excerpt(name), fmt.Sprintf("is not known: the nearest known one is %s, all are %s", nearest(excerpt(name), known), strings.Join(known, ", ")))
	}
	return nil
}

var labelQuery = []string{"agent", "machine", "model", "provider", "state"}

// lookup reads the filters of circuits and breakers.
func lookup(r *http.Request) (l breaker.Labels, states []breaker.State, err error) {
	q := r.URL.Query()
	if err := knownQuery(q, labelQuery...); err != nil {
		return l, nil, err
	}
	for i, into := range []*string{&l.Agent, &l.Machine, &l.Model, &l.Provider} {
		if *into = q.Get(labelQuery[i]); *into != "" {
			if err := breaker.CheckLabel(*into); err != nil {
				return l, nil, badQuery(labelQuery[i], err.Error())
			}
		}
	}
	for _, list := range q["state"] {
		for word := range strings.SplitSeq(list, ",") {
			var state breaker.State
			if err := state.UnmarshalText([]byte(word)); err != nil {
				return l, nil, badQuery("state", err.Error())
			}
			states = append(states, state)
		}
	}
	return l, states, nil
}

// look lists what the engine has, filtered as the query says, each in the form
// that the API writes.
func look[T, B any](
	s *Server, r *http.Request, list func(*breaker.Engine, time.Time, breaker.Labels, ...breaker.State) []T, form func(T, time.Time) B,
) ([]B, error) {
	core, err := s.ready()
	if err != nil {
		return nil, err
	}
	l, states, err := lookup(r)
	if err != nil {
		return nil, err
	}
	now := s.Now()
	bodies := []B{}
	for _, one := range list(core.Engine, now, l, states...) {
		bodies = append(bodies, form(one, now))
	}
	return bodies, nil
}

func (s *Server) getCircuits(w http.ResponseWriter, r *http.Request) error {
	list, err := look(s, r, (*breaker.Engine).Circuits, CircuitJSON)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, CircuitsBody{Circuits: list})
}

func (s *Server) getBreakers(w http.ResponseWriter, r *http.Request) error {
	list, err := look(s, r, (*breaker.Engine).Breakers, BreakerJSON)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, BreakersBody{Breakers: list})
}

func (s *Server) getBreaker(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	now := s.Now()
	name := r.PathValue("name")
	v, ok := core.Engine.Breaker(now, name)
	if !ok {
		if _, _, err := breaker.ParseName(name); err != nil {
			return badName(err)
		}
		return newProblem(http.StatusNotFound, "breaker %q has not been seen", excerpt(name))
	}
	return writeJSON(w, http.StatusOK, BreakerJSON(v, now))
}

func badName(err error) error {
	p := newProblem(http.StatusBadRequest, "%s", err)
	p.Errors = []FieldError{{Path: "name", Message: err.Error()}}
	return p
}

// order is the body of a control.
type order struct {
	reason string
	hold   time.Duration
}

var orderFields = newFields(
	field[order]{"reason", false, func(o *order, v value) (message string) {
		o.reason, message = readText(v, maxReason)
		return message
	}},
	field[order]{"for_ms", false, func(o *order, v value) (message string) {
		o.hold, message = readMillis(v, maxHold)
		return message
	}},
)

// ControlBody is the answer to a control: the breaker afterwards.
type ControlBody struct {
	BreakerBody
	Durable  bool      `json:"durable"`
	Warnings []Warning `json:"warnings,omitempty"`
}

// control is the handler that puts op on a breaker, in the token's name.
func control(op breaker.Op) func(*Server, http.ResponseWriter, *http.Request) error {
	return func(s *Server, w http.ResponseWriter, r *http.Request) error {
		core, err := s.ready()
		if err != nil {
			return err
		}
		var in order
		if err := decodeSmall(w, r, orderFields, &in); err != nil {
			return err
		}
		if in.hold > 0 && (op == breaker.OpReset || op == breaker.OpAuto) {
			return invalid([]FieldError{{Path: "for_ms", Message: fmt.Sprintf("has no meaning for %s: leave it out", op)}})
		}
		now := s.Now()
		v, seq, err := core.Engine.Control(now, breaker.Control{Breaker: r.PathValue("name"), Op: op, For: in.hold, Actor: actor(r), Reason: scrub(in.reason)})
		if err != nil {
			return badName(err)
		}
		s.Log.Info("control", "op", string(op), "breaker", v.Name, "actor", actor(r), "for", in.hold)
		body := ControlBody{BreakerBody: BreakerJSON(v, now), Durable: s.durable(r.Context(), core, seq)}
		if v.Made {
			body.Warnings = []Warning{{Path: "name", Message: unseen(core.Engine, now, v)}}
		}
		status := http.StatusOK
		if !body.Durable {
			status = http.StatusAccepted
		}
		return writeJSON(w, status, body)
	}
}

// unseen says that a control made its breaker, which may be a typing error.
func unseen(e *breaker.Engine, now time.Time, v breaker.View) string {
	message := fmt.Sprintf("breaker %s is made by this: no call has been heard of that it counts", v.Name)
	var known []string
	for _, other := range e.Breakers(now, breaker.Labels{}) {
		if other.Rule == v.Rule && other.Name != v.Name && len(known) < maxCompared {
			known = append(known, other.Name)
		}
	}
	if near, edits := Nearest(v.Name, known); edits <= 3 {
		message += "; did you mean " + near + "?"
	}
	return message
}

// maxCompared bounds the names that one is compared with.
const maxCompared = 2000

func (s *Server) getRules(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	if err := knownQuery(r.URL.Query()); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, RulesBody{Rules: core.Engine.Rules(), Gates: s.Gates.List()})
}
