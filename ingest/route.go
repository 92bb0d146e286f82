package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"breakerbot/breaker"
)

// The bounds of a route's fields; that of tried is breaker.MaxTried.
const (
	maxTags    = 32
	maxContext = 100_000_000 // tokens
)

// wireRoute is the question for a target as it was sent.
type wireRoute struct {
	ask   breaker.RouteAsk
	tried value
}

// routeFields are the fields of the question which target of a chain to call.
var routeFields = newFields(
	field[wireRoute]{"agent", true, setLabel(func(w *wireRoute) *string { return &w.ask.Agent })},
	field[wireRoute]{"chain", true, setLabel(func(w *wireRoute) *string { return &w.ask.Chain })},
	field[wireRoute]{"tried", false, func(w *wireRoute, v value) string {
		if !v.isArray() {
			return wrongKind(v, "an array of objects with machine, model and cause")
		}
		w.tried = v
		return ""
	}},
	field[wireRoute]{"request_id", false, setText(maxID, func(w *wireRoute) *string { return &w.ask.RequestID })},
	field[wireRoute]{"timeout_ms", false, setMillis(maxCallTime, func(w *wireRoute) *time.Duration { return &w.ask.Timeout })},
	field[wireRoute]{"tags", false, func(w *wireRoute, v value) (message string) {
		w.ask.Tags, message = readTags(v)
		return message
	}},
	field[wireRoute]{"min_context", false, func(w *wireRoute, v value) string {
		n, message := readCount(v, maxContext)
		w.ask.MinContext = int(n)
		return message
	}},
	field[wireRoute]{"idempotency_key", false, setText(maxID, func(w *wireRoute) *string { return &w.ask.IdempotencyKey })},
)

var triedFields = newFields(
	field[breaker.Tried]{"machine", true, setLabel(func(t *breaker.Tried) *string { return &t.Machine })},
	field[breaker.Tried]{"model", false, setOptionalLabel(func(t *breaker.Tried) *string { return &t.Model })},
	field[breaker.Tried]{"cause", false, func(t *breaker.Tried, v value) string { return readCause(v, &t.Cause) }},
)

func readTags(v value) (tags []string, message string) {
	if !v.isArray() {
		return nil, wrongKind(v, "an array of strings")
	}
	each(v, func(element value) bool {
		switch {
		case len(tags) == maxTags:
			message = fmt.Sprintf("has more than %d tags: at most %d are allowed", maxTags, maxTags)
		case !element.isString():
			message = fmt.Sprintf("[%d] ", len(tags)) + wrongKind(element, "a string")
		default:
			tag := element.text()
			if err := breaker.CheckLabel(tag); err != nil {
				message = fmt.Sprintf("[%d] %v", len(tags), err)
			}
			tags = append(tags, tag)
		}
		return message == ""
	})
	return tags, message
}

// DecodeRoute reads the question for a target of a chain. Errors leave it
// unusable.
func DecodeRoute(raw json.RawMessage) (breaker.RouteAsk, []FieldError, []Warning) {
	if err := syntaxError(raw, 1); err != nil {
		return breaker.RouteAsk{}, []FieldError{{Message: err.Error()}}, nil
	}
	var w wireRoute
	rep := report{warnLeft: maxItemWarnings}
	routeFields.decode(raw, &w, &rep)
	if w.tried != nil {
		each(w.tried, func(element value) bool {
			i := len(w.ask.Tried)
			if i == breaker.MaxTried {
				rep.fail("tried", fmt.Sprintf("has more than %d targets: at most %d are allowed", i, i))
				return false
			}
			var tried breaker.Tried
			if element.isObject() {
				rep.prefix = fmt.Sprintf("tried[%d].", i)
				triedFields.decode(element, &tried, &rep)
				rep.prefix = ""
			} else {
				rep.fail(fmt.Sprintf("tried[%d]", i), wrongKind(element, "an object with machine, model and cause"))
			}
			w.ask.Tried = append(w.ask.Tried, tried)
			return true
		})
	}
	return w.ask, rep.errors, rep.warnings
}

// RouteBody is the answer to POST /v1/route: a target with its permit, or that
// the turn is degraded.
type RouteBody struct {
	Target       *TargetBody   `json:"target,omitempty"` // absent when degraded
	Permit       string        `json:"permit,omitempty"`
	Probe        bool          `json:"probe"`
	State        string        `json:"state,omitempty"` // of the target's circuit; unknown until the state is restored
	ExpiresAt    Millis        `json:"expires_at,omitzero"`
	Hop          int           `json:"hop"`
	Degraded     bool          `json:"degraded"`
	Until        Millis        `json:"until,omitzero"` // of a degraded turn
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
	Reason       string        `json:"reason,omitempty"`
	Skipped      []SkippedBody `json:"skipped"`
	Write        *WriteBody    `json:"write,omitempty"`
	Warnings     []Warning     `json:"warnings,omitempty"`
}

// TargetBody is the target to call.
type TargetBody struct {
	Machine  string `json:"machine"`
	Model    string `json:"model,omitempty"`
	Provider string `json:"provider"`
	Tier     string `json:"tier,omitempty"`
	Note     string `json:"note,omitempty"`    // for the agent's prompt
	Context  int    `json:"context,omitempty"` // in tokens
}

// SkippedBody is a target that a route passed over.
type SkippedBody struct {
	Machine      string        `json:"machine"`
	Model        string        `json:"model,omitempty"`
	Provider     string        `json:"provider"`
	Reason       string        `json:"reason"`
	Cause        breaker.Cause `json:"cause,omitempty"`
	RetryAt      Millis        `json:"retry_at,omitzero"`
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
}

// RouteJSON is the route as POST /v1/route answers it at now.
func RouteJSON(r breaker.Route, now time.Time) RouteBody {
	body := RouteBody{
		Hop: r.Hop, Degraded: r.Degraded, Until: Millis{r.Until}, RetryAfterMS: retryAfterMS(r.Until, now), Reason: r.Reason,
		Skipped: make([]SkippedBody, 0, len(r.Skipped)), Write: writeOrNil(r.Write, now),
	}
	if t := r.Target; t != nil {
		body.Target = &TargetBody{Machine: t.Machine, Model: t.Model, Provider: t.Provider, Tier: t.Tier, Note: t.Note, Context: t.Context}
		body.Permit, body.Probe, body.State, body.ExpiresAt = r.Grant.Permit, r.Grant.Probe, r.Grant.State.String(), Millis{r.Grant.ExpiresAt}
		if body.Write == nil {
			body.Write = writeOrNil(r.Grant.Write, now)
		}
	}
	for _, s := range r.Skipped {
		body.Skipped = append(body.Skipped, SkippedBody{
			Machine: s.Machine, Model: s.Model, Provider: s.Provider, Reason: s.Reason, Cause: s.Cause,
			RetryAt: Millis{s.RetryAt}, RetryAfterMS: retryAfterMS(s.RetryAt, now),
		})
	}
	return body
}

// The answers that routes are counted by.
const (
	routedFirst    = "first"
	routedFallback = "fallback"
	routedDegraded = "degraded"
)

// routed names the answer for the metrics.
func (r *RouteBody) routed() string {
	switch {
	case r.Degraded:
		return routedDegraded
	case r.Hop > 0:
		return routedFallback
	}
	return routedFirst
}

// postRoute picks a target. As with permits, only a granted probe waits for the
// disk.
func (s *Server) postRoute(w http.ResponseWriter, r *http.Request) error {
	data, err := readObject(w, r)
	if err != nil {
		return err
	}
	ask, errs, warnings := DecodeRoute(data)
	if len(errs) > 0 {
		return invalid(errs)
	}
	now := s.Now()
	var body RouteBody
	if core := s.core.Load(); core != nil {
		route, seq, err := core.Engine.Route(now, ask)
		if err != nil {
			return routeProblem(err)
		}
		if route.Grant.Probe {
			s.durable(r.Context(), core, seq)
		}
		body = RouteJSON(route, now)
	} else if body, err = s.routeUnrestored(now, ask); err != nil {
		return err
	}
	s.metrics.route(ask.Chain, body.routed())
	body.Warnings = warnings
	return writeJSON(w, http.StatusOK, body)
}

// routeUnrestored answers before the state is there: by the chain alone and
// without a permit where permits are allowed, otherwise degraded.
func (s *Server) routeUnrestored(now time.Time, ask breaker.RouteAsk) (RouteBody, error) {
	route, _, err := s.Chains.Route(now, ask)
	s.Chains.Drain() // nothing of it is to be kept
	if err != nil {
		return RouteBody{}, routeProblem(err)
	}
	if !s.StartOpen || ask.IdempotencyKey != "" { // its write may be in doubt
		until := now.Add(startRetry)
		return RouteBody{Degraded: true, Until: Millis{until}, RetryAfterMS: retryAfterMS(until, now),
			Reason: reasonStarting, Skipped: []SkippedBody{}}, nil
	}
	body := RouteJSON(route, now)
	if body.Permit = ""; body.Target != nil {
		body.State = stateUnknown
	}
	return body, nil
}

func routeProblem(err error) error {
	if errors.Is(err, breaker.ErrUnknownChain) {
		return invalid([]FieldError{{Path: "chain", Message: err.Error()}})
	}
	return err
}

// ChainsBody is the answer of GET /v1/chains.
type ChainsBody struct {
	Chains map[string]breaker.Chain `json:"chains"` // targets in the order in which they are tried
}

func (s *Server) getChains(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	if err := knownQuery(r.URL.Query()); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, ChainsBody{Chains: core.Engine.Chains()})
}
