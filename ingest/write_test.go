package ingest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"breakerbot/breaker"
)

func TestWriteInDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Tokens = []Token{{Name: "coder", Secret: "s3cret", Scope: ScopeReport}, {Name: "looker", Secret: "l00k", Scope: ScopeRead | ScopeOperate}}
	})
	as := func(secret, method, path, body string) answer {
		return w.do(method, path, typeJSON, body, "Authorization", "Bearer "+secret)
	}
	coder := func(method, path, body string) answer { return as("s3cret", method, path, body) }
	ended := func(key, cause string) answer {
		return coder("POST", "/v1/outcomes", `{"agent":"a","machine":"10.0.0.9:11434","model":"m","write":true,"idempotency_key":"`+key+`","cause":"`+cause+`","age_ms":250}`)
	}
	ended("job/7", "refused").is(200, "verdicts.0.in_doubt", nil)
	ended("job/7", "timeout").is(200, "verdicts.0.in_doubt", true, "verdicts.0.cause", "timeout", "verdicts.0.class", "transport")
	coder("POST", "/v1/permits", `{"agent":"b","machine":"mac-mini","model":"m","idempotency_key":"job/7"}`).
		is(200, "allowed", false, "permit", nil, "reason", "write_in_doubt", "retry_at", "2026-03-02T14:02:00.000Z", "retry_after_ms", 86400000-250,
			"write.idempotency_key", "job/7", "write.state", "in_doubt", "write.machine", "gpu-box", "write.model", "m", "write.provider", "lab", "write.agent", "a",
			"write.cause", "timeout", "write.at", "2026-03-01T14:02:00.000Z", "write.until", "2026-03-02T14:02:00.000Z", "write.settled_at", nil, "write.settled_by", nil)
	coder("POST", "/v1/permits", `{"agent":"b","machine":"mac-mini","model":"m","idempotency_key":"job/8"}`).is(200, "allowed", true, "write", nil)
	coder("POST", "/v1/route", `{"agent":"b","chain":"code","idempotency_key":"job/7"}`).
		is(200, "degraded", true, "target", nil, "reason", "write_in_doubt", "write.machine", "gpu-box", "write.state", "in_doubt", "skipped.2.reason", "write_in_doubt")
	coder("GET", "/v1/writes/job%2F7", "").is(200, "state", "in_doubt", "machine", "gpu-box", "retry_after_ms", 86400000-250)

	// Who may: whoever reports.
	as("l00k", "GET", "/v1/writes/job%2F7", "").problem(403, "report is needed")
	as("l00k", "PUT", "/v1/writes/job%2F7", `{"result":"applied"}`).problem(403)

	w.pass(time.Minute)
	waits := w.disk.waits.Load()
	coder("PUT", "/v1/writes/job%2F7", `{"result":"not_applied"}`).
		is(200, "state", "not_applied", "settled_at", "2026-03-01T14:03:00.250Z", "settled_by", "coder", "retry_after_ms", nil, "durable", true, "machine", "gpu-box")
	if w.disk.waits.Load() != waits+1 {
		t.Error("the result did not wait for the disk")
	}
	w.pass(time.Minute)
	coder("PUT", "/v1/writes/job%2F7", `{"result":"not_applied"}`).is(200, "state", "not_applied", "settled_at", "2026-03-01T14:03:00.250Z")
	coder("PUT", "/v1/writes/job%2F7", `{"result":"applied"}`).problem(409, "reconciled already, as not_applied").
		is(409, "write.state", "not_applied", "write.settled_by", "coder", "write.settled_at", "2026-03-01T14:03:00.250Z")
	coder("POST", "/v1/permits", `{"agent":"b","machine":"mac-mini","model":"m","idempotency_key":"job/7"}`).
		is(200, "allowed", true, "write.state", "not_applied", "write.machine", "gpu-box")
	coder("POST", "/v1/route", `{"agent":"b","chain":"code","idempotency_key":"job/7"}`).
		is(200, "degraded", false, "target.machine", "gpu-box", "write.state", "not_applied")

	// Nobody looks: it expires, is known for another day, and may still be said.
	ended("job/9", "gateway_timeout").is(200, "verdicts.0.in_doubt", true)
	w.disk.broken.Store(true)
	ended("job/10", "reset").is(202, "verdicts.0.in_doubt", true)
	coder("PUT", "/v1/writes/job%2F10", `{"result":"applied"}`).is(202, "durable", false, "state", "applied")
	w.disk.broken.Store(false)
	w.pass(24 * time.Hour)
	coder("GET", "/v1/writes/job%2F9", "").is(200, "state", "expired", "cause", "gateway_timeout", "retry_after_ms", nil)
	coder("POST", "/v1/permits", `{"agent":"b","machine":"mac-mini","model":"m","idempotency_key":"job/9"}`).is(200, "allowed", true, "write.state", "expired")
	w.pass(24 * time.Hour)
	coder("GET", "/v1/writes/job%2F9", "").problem(404, "nothing is held for it")
	coder("PUT", "/v1/writes/job%2F9", `{"result":"applied"}`).problem(404, "within the last 2 d")
	coder("PUT", "/v1/writes/never", `{"result":"applied"}`).problem(404)
	coder("GET", "/v1/writes/job%2F9?x=1", "").problem(400, "there is none here")

	// All of them.
	ended("job/10", "timeout").is(200)
	coder("PUT", "/v1/writes/job%2F10", `{"result":"applied"}`).is(200)
	w.pass(time.Second)
	ended("job/11", "timeout").is(200)
	w.pass(time.Second)
	ended("job/12", "stalled").is(200)
	for query, want := range map[string]string{
		"state=in_doubt":                             "job/12 in_doubt, job/11 in_doubt",
		"agent=a&machine=10.0.0.9:11434&limit=1":     "job/12 in_doubt",
		"state=applied,expired":                      "job/10 applied",
		"machine=mac-mini":                           "",
		"agent=a&state=applied&state=in_doubt&limit": "job/12 in_doubt, job/11 in_doubt, job/10 applied",
	} {
		var body WritesBody
		if err := json.Unmarshal([]byte(coder("GET", "/v1/writes?"+query, "").is(200).body), &body); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range body.Writes {
			got = append(got, w.IdempotencyKey+" "+string(w.State))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("writes with %s are %q, want %s", query, got, want)
		}
	}
	coder("GET", "/v1/writes?state=open", "").problem(400, `state: is \"open\": in_doubt, applied, not_applied or expired is needed`)
	coder("GET", "/v1/writes?limit=0", "").problem(400, "a number from 1 to 1000 is needed")
	coder("GET", "/v1/writes?machine=%00", "").problem(400, "machine: ", "control character")
	coder("GET", "/v1/writes?key=x", "").problem(400, "is not known")
	as("l00k", "GET", "/v1/writes", "").problem(403)

	// What cannot be taken.
	coder("PUT", "/v1/writes/x", `{}`).problem(422, "result: is missing")
	coder("PUT", "/v1/writes/x", `{"result":true}`).problem(422, "is the boolean true: applied or not_applied is needed")
	coder("PUT", "/v1/writes/x", `{"result":"maybe"}`).problem(422, `is the string \"maybe\": applied or not_applied is needed`)
	coder("PUT", "/v1/writes/x", `{"result":"applied","by":"me"}`).problem(422, "by", "nearest known field is result")
	w.do("PUT", "/v1/writes/x", "text/plain", `{"result":"applied"}`, "Authorization", "Bearer s3cret").problem(415)
	coder("GET", "/v1/writes/"+strings.Repeat("k", 129), "").problem(400, "is 129 bytes long: at most 128 are allowed")
	coder("GET", "/v1/writes/a%00b", "").problem(400, "control character")
	coder("GET", "/v1/writes/a%FFb", "").problem(400, "not valid UTF-8")
	as("l00k", "GET", "/metrics", "").says("breakerbot_writes_in_doubt 2", `breakerbot_writes_in_doubt_total{cause="timeout",machine="gpu-box",model="m"} 3`,
		`breakerbot_permits_total{decision="write_in_doubt"} 1`)
}

func TestWritesBeforeTheStateIsRestored(t *testing.T) {
	t.Parallel()
	w := shutWorld(t)
	w.get("/v1/writes/k").problem(503, notReady)
	w.do("PUT", "/v1/writes/k", typeJSON, `{"result":"applied"}`).problem(503, notReady)
}

func TestDecodeWrite(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{`{"idempotency_key":"k","result":"applied"}`: true, `{"idempotency_key":"k","result":"not_applied"}`: false} {
		if key, applied, errs := DecodeWrite(json.RawMessage(raw)); key != "k" || applied != want || errs != nil {
			t.Errorf("%s: %q %v %v", raw, key, applied, errs)
		}
	}
	for raw, want := range map[string]string{
		`{"result":"applied"}`:                                 "idempotency_key: is missing",
		`{"idempotency_key":"","result":"applied"}`:            "idempotency_key: is missing",
		`{"idempotency_key":7,"result":"applied"}`:             "idempotency_key: is the number 7",
		`{"idempotency_key":"k"}`:                              "result: is missing",
		`{"idempotency_key":"k","result":"applied","cause":1}`: "cause: is not known",
		`x`: "line 1, column 1",
	} {
		if _, _, errs := DecodeWrite(json.RawMessage(raw)); len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%s: %v, want %s", raw, errs, want)
		}
	}
}

// A write that nobody can hold, and a key that means nothing, are told.
func TestHalfMarkedWritesWarn(t *testing.T) {
	t.Parallel()
	for body, path := range map[string]string{
		`{"agent": "a", "machine": "m", "cause": "timeout", "write": true}`:                                "idempotency_key",
		`{"agent": "a", "machine": "m", "cause": "timeout", "idempotency_key": "k"}`:                       "write",
		`{"agent": "a", "machine": "m", "cause": "timeout", "write": true, "idempotency_key": "k"}`:        "",
		`{"agent": "a", "machine": "m", "cause": "ok", "write": false, "duration_ms": 5, "stream": false}`: "",
	} {
		_, errs, warnings := Decoder{}.Outcome([]byte(body), time.Time{})
		var got strings.Builder
		for _, w := range warnings {
			got.WriteString(w.Path)
		}
		if len(errs) > 0 || got.String() != path {
			t.Errorf("%s: errors %v, warnings %+v, want one about %q", body, errs, warnings, path)
		}
	}
}

// Until the state is there, nobody can say whether a write is in doubt: asks
// with a key are refused even where others are allowed.
func TestKeysWaitForTheState(t *testing.T) {
	t.Parallel()
	chains, err := breaker.New(breaker.Config{Chains: map[string]breaker.Chain{"code": {Targets: []breaker.Target{{Machine: "gpu"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	handler := New(Options{StartOpen: true, Chains: chains}).Handler()
	for _, tc := range []struct{ path, body, want string }{
		{"/v1/permits", `{"agent": "a", "machine": "gpu"}`, `"allowed":true`},
		{"/v1/permits", `{"agent": "a", "machine": "gpu", "idempotency_key": "k"}`, `"allowed":false,"probe":false,"state":"unknown","reason":"starting"`},
		{"/v1/route", `{"agent": "a", "chain": "code"}`, `"degraded":false`},
		{"/v1/route", `{"agent": "a", "chain": "code", "idempotency_key": "k"}`, `"reason":"starting"`},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+tc.path, strings.NewReader(tc.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s %s: %d %s, want %s", tc.path, tc.body, w.Code, w.Body, tc.want)
		}
	}
}
