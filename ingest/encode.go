package ingest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"breakerbot/breaker"
)

// Millis is a time that is written as RFC 3339 in UTC with milliseconds.
type Millis struct{ time.Time }

const millisLayout = "2006-01-02T15:04:05.000Z07:00"

// MarshalJSON writes the time.
func (m Millis) MarshalJSON() ([]byte, error) {
	return m.UTC().AppendFormat(make([]byte, 0, len(millisLayout)+2), `"`+millisLayout+`"`), nil
}

// retryAfterMS is how long to wait from now until at, rounded up, never
// negative; nil when there is no such moment.
func retryAfterMS(at, now time.Time) *int64 {
	if at.IsZero() {
		return nil
	}
	wait := max(0, at.Sub(now))
	ms := int64((wait + time.Millisecond - 1) / time.Millisecond)
	return &ms
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// VerdictBody is a verdict as the API writes it.
type VerdictBody struct {
	Index        *int          `json:"index,omitempty"` // in the request; absent in replays
	Cause        breaker.Cause `json:"cause"`
	Class        breaker.Class `json:"class"`
	Latency      breaker.Cause `json:"latency,omitempty"`
	Counted      []string      `json:"counted"`
	Late         bool          `json:"late"`
	Duplicate    bool          `json:"duplicate"`
	Detail       string        `json:"detail,omitempty"`   // why a gate refused the answer
	InDoubt      bool          `json:"in_doubt,omitempty"` // a write of which nobody knows whether it took effect
	WouldTrip    []string      `json:"would_trip,omitempty"`
	State        breaker.State `json:"state"`
	RetryAt      Millis        `json:"retry_at,omitzero"`
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
}

// VerdictJSON is the verdict as POST /v1/outcomes answers it at now.
func VerdictJSON(v breaker.Verdict, now time.Time) VerdictBody {
	counted := v.Counted
	if counted == nil {
		counted = []string{}
	}
	return VerdictBody{
		Cause: v.Cause, Class: v.Class, Latency: v.Latency, Counted: counted, Late: v.Late, Duplicate: v.Duplicate,
		InDoubt: v.InDoubt, WouldTrip: v.WouldTrip, State: v.State, RetryAt: Millis{v.RetryAt}, RetryAfterMS: retryAfterMS(v.RetryAt, now),
	}
}

// GrantBody is the answer to POST /v1/permits.
type GrantBody struct {
	Allowed      bool          `json:"allowed"`
	Permit       string        `json:"permit,omitempty"`
	Probe        bool          `json:"probe"`
	State        string        `json:"state"` // unknown until the state is restored
	ExpiresAt    Millis        `json:"expires_at,omitzero"`
	Reason       string        `json:"reason,omitempty"`
	RetryAt      Millis        `json:"retry_at,omitzero"`
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
	Breakers     []RefusalBody `json:"breakers,omitempty"`
	Write        *WriteBody    `json:"write,omitempty"` // what is known of the write of the asker's idempotency key
	Warnings     []Warning     `json:"warnings,omitempty"`
}

// RefusalBody is one breaker that refuses a call.
type RefusalBody struct {
	Name         string        `json:"name"`
	Rule         string        `json:"rule"`
	State        breaker.State `json:"state"`
	Cause        breaker.Cause `json:"cause,omitempty"`
	Reason       string        `json:"reason,omitempty"`
	OpenedAt     Millis        `json:"opened_at,omitzero"`
	RetryAt      Millis        `json:"retry_at,omitzero"`
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
}

// GrantJSON is the grant as POST /v1/permits answers it at now.
func GrantJSON(g breaker.Grant, now time.Time) GrantBody {
	body := GrantBody{Allowed: g.Allowed, Permit: g.Permit, Probe: g.Probe, State: g.State.String(), ExpiresAt: Millis{g.ExpiresAt}, Write: writeOrNil(g.Write, now)}
	if !g.Allowed {
		body.Reason, body.RetryAt, body.RetryAfterMS = g.Reason, Millis{g.RetryAt}, retryAfterMS(g.RetryAt, now)
		for _, v := range g.Breakers {
			body.Breakers = append(body.Breakers, RefusalBody{
				Name: v.Name, Rule: v.Rule, State: v.State, Cause: v.Cause, Reason: v.Reason,
				OpenedAt: Millis{v.OpenedAt}, RetryAt: Millis{v.RetryAt}, RetryAfterMS: retryAfterMS(v.RetryAt, now),
			})
		}
	}
	return body
}

// ReleaseBody is the answer to a release.
type ReleaseBody struct {
	Released  bool `json:"released"` // false when the permit's word was heard before
	Duplicate bool `json:"duplicate"`
}

// ExtendBody is the answer to an extension; a plain permit never expires.
type ExtendBody struct {
	ExpiresAt Millis `json:"expires_at,omitzero"`
}

// CircuitBody is a circuit as the API writes it.
type CircuitBody struct {
	breaker.Labels
	State        breaker.State `json:"state"`
	RetryAt      Millis        `json:"retry_at,omitzero"`
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
	Breakers     []BreakerBody `json:"breakers"`
}

// CircuitJSON is the circuit as GET /v1/circuits answers it at now, with the
// breakers that c has.
func CircuitJSON(c breaker.Circuit, now time.Time) CircuitBody {
	body := CircuitBody{Labels: c.Labels, State: c.State, RetryAt: Millis{c.RetryAt}, RetryAfterMS: retryAfterMS(c.RetryAt, now), Breakers: make([]BreakerBody, 0, len(c.Breakers))}
	for _, v := range c.Breakers {
		body.Breakers = append(body.Breakers, BreakerJSON(v, now))
	}
	return body
}

// BreakerBody is one breaker as the API writes it.
type BreakerBody struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
	breaker.Labels
	State        breaker.State    `json:"state"`
	Reason       string           `json:"reason,omitempty"`
	Cause        breaker.Cause    `json:"cause,omitempty"`
	OpenedAt     Millis           `json:"opened_at,omitzero"`
	RetryAt      Millis           `json:"retry_at,omitzero"`
	RetryAfterMS *int64           `json:"retry_after_ms,omitempty"`
	Era          uint64           `json:"era"`
	EraAt        Millis           `json:"era_at,omitzero"`
	Incident     uint64           `json:"incident_id,omitempty"`
	Ref          string           `json:"ref,omitempty"` // the incident's short name in messages
	Run          int              `json:"run"`
	Calls        int              `json:"window_calls"`
	Failures     int              `json:"window_failures"`
	WouldTrip    int              `json:"would_trip,omitempty"`
	Probes       int              `json:"probes_failed,omitempty"`
	Override     *OverrideBody    `json:"override,omitempty"`
	Last         *LastFailureBody `json:"last_failure,omitempty"`
}

// OverrideBody is a control in force.
type OverrideBody struct {
	Op     breaker.Op `json:"op"`
	Actor  string     `json:"actor,omitempty"`
	Reason string     `json:"reason,omitempty"`
	Until  Millis     `json:"until,omitzero"`
}

// LastFailureBody is the last result that a breaker counted as a failure.
type LastFailureBody struct {
	At         Millis        `json:"at"`
	Cause      breaker.Cause `json:"cause"`
	Agent      string        `json:"agent"`
	Model      string        `json:"model,omitempty"`
	Error      string        `json:"error,omitempty"`
	HTTPStatus int           `json:"http_status,omitempty"`
	DurationMS float64       `json:"duration_ms,omitempty"`
}

// BreakerJSON is the breaker as GET /v1/breakers/{name} answers it at now.
func BreakerJSON(v breaker.View, now time.Time) BreakerBody {
	body := BreakerBody{
		Name: v.Name, Rule: v.Rule, Labels: v.Labels, State: v.State, Reason: v.Reason, Cause: v.Cause,
		OpenedAt: Millis{v.OpenedAt}, RetryAt: Millis{v.RetryAt}, RetryAfterMS: retryAfterMS(v.RetryAt, now),
		Era: v.Era, EraAt: Millis{v.EraAt}, Incident: v.Incident, Run: v.Run, Calls: v.Calls, Failures: v.Failures,
		WouldTrip: v.WouldTrip, Probes: v.Probes,
	}
	if v.Incident != 0 {
		body.Ref = breaker.Ref(v.Incident)
	}
	if o := v.Override; o != nil {
		body.Override = &OverrideBody{Op: o.Op, Actor: o.Actor, Reason: o.Reason, Until: Millis{o.Until}}
	}
	if l := v.Last; l != nil {
		body.Last = &LastFailureBody{At: Millis{l.At}, Cause: l.Cause, Agent: l.Agent, Model: l.Model, Error: l.Error, HTTPStatus: l.Status, DurationMS: inMillis(l.Duration)}
	}
	return body
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// EvidenceBody is what a breaker saw when it changed.
type EvidenceBody struct {
	Agent      string               `json:"agent,omitempty"`
	Error      string               `json:"error,omitempty"`
	HTTPStatus int                  `json:"http_status,omitempty"`
	DurationMS float64              `json:"duration_ms,omitempty"`
	Run        int                  `json:"run,omitempty"`
	Calls      int                  `json:"calls,omitempty"`
	Failures   int                  `json:"failures,omitempty"`
	Causes     []breaker.CauseCount `json:"causes,omitempty"`
	Agents     int                  `json:"agents,omitempty"`
	Probes     int                  `json:"probes,omitempty"`
}

func evidenceJSON(e *breaker.Evidence) *EvidenceBody {
	if e == nil {
		return nil
	}
	return &EvidenceBody{
		Agent: e.Agent, Error: e.Error, HTTPStatus: e.HTTPStatus, DurationMS: inMillis(e.Duration), Run: e.Run,
		Calls: e.Calls, Failures: e.Failures, Causes: e.Causes, Agents: e.Agents, Probes: e.Probes,
	}
}

// TransitionBody is one transition as the API writes it.
type TransitionBody struct {
	At      Millis `json:"at"`
	Breaker string `json:"breaker"`
	Rule    string `json:"rule"`
	breaker.Labels
	From     breaker.State `json:"from_state"`
	To       breaker.State `json:"to_state"`
	Cause    breaker.Cause `json:"cause,omitempty"`
	Reason   string        `json:"reason"`
	Detail   string        `json:"detail,omitempty"`
	Evidence *EvidenceBody `json:"evidence,omitempty"`
	Actor    string        `json:"actor,omitempty"`
	Era      uint64        `json:"era"`
	Incident uint64        `json:"incident_id,omitempty"`
	Ref      string        `json:"ref,omitempty"`
	RetryAt  Millis        `json:"retry_at,omitzero"`
}

// TransitionJSON is the transition as GET /v1/transitions answers it.
func TransitionJSON(t breaker.Transition) TransitionBody {
	body := TransitionBody{
		At: Millis{t.At}, Breaker: t.Breaker, Rule: t.Rule, Labels: t.Labels, From: t.From, To: t.To, Cause: t.Cause,
		Reason: t.Reason, Detail: t.Detail, Evidence: evidenceJSON(t.Evidence), Actor: t.Actor, Era: t.Era,
		Incident: t.Incident, RetryAt: Millis{t.RetryAt},
	}
	if t.Incident != 0 {
		body.Ref = breaker.Ref(t.Incident)
	}
	return body
}

// IncidentBody is one incident as the API writes it.
type IncidentBody struct {
	ID      uint64 `json:"id"`
	Ref     string `json:"ref"`
	Breaker string `json:"breaker"`
	Rule    string `json:"rule"`
	breaker.Labels
	OpenedAt Millis               `json:"opened_at"`
	ClosedAt Millis               `json:"closed_at,omitzero"`
	Trips    int                  `json:"trips"`
	Causes   []breaker.CauseCount `json:"causes"`
	Detail   string               `json:"detail,omitempty"`
	Evidence *EvidenceBody        `json:"evidence,omitempty"`
	Refused  int                  `json:"refused"`
}

// IncidentJSON is the incident as GET /v1/incidents answers it.
func IncidentJSON(i breaker.Incident) IncidentBody {
	causes := i.Causes
	if causes == nil {
		causes = []breaker.CauseCount{}
	}
	return IncidentBody{
		ID: i.ID, Ref: breaker.Ref(i.ID), Breaker: i.Breaker, Rule: i.Rule, Labels: i.Labels,
		OpenedAt: Millis{i.OpenedAt}, ClosedAt: Millis{i.ClosedAt}, Trips: i.Trips, Causes: causes,
		Detail: i.Detail, Evidence: evidenceJSON(i.Evidence), Refused: i.Refused,
	}
}

// writeJSON answers with v; an error means that v cannot be written as JSON.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	w.Write(append(body, '\n'))
	return nil
}
