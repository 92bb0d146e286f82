package ingest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"breakerbot/breaker"
)

// testChains are the chains of every world.
var testChains = map[string]breaker.Chain{
	"code": {Targets: []breaker.Target{
		{Machine: "mac-mini", Model: "m", Tier: "low"},
		{Machine: "10.0.0.9:11434", Model: "m", Tier: "high", Tags: []string{"private"}, Context: 32768, Note: "full quality"},
		{Machine: "api", Model: "m", Provider: "cloud", Tier: "high", Context: 200000},
	}},
	"chat": {Targets: []breaker.Target{{Machine: "mac-mini", Model: "m"}}},
}

func TestDecodeRoute(t *testing.T) {
	t.Parallel()
	ask, errs, warnings := DecodeRoute(json.RawMessage(`{"agent":"a","chain":"code","tried":[{"machine":"gpu","model":"x","cause":"timeout"},{"machine":"mac","tier":"low"}],
		"request_id":"r","timeout_ms":1500,"tags":["private","vision"],"min_context":8000,"idempotency_key":"k","model":"x"}`))
	want := breaker.RouteAsk{
		Agent: "a", Chain: "code", Tried: []breaker.Tried{{Machine: "gpu", Model: "x", Cause: breaker.Timeout}, {Machine: "mac"}},
		RequestID: "r", Timeout: 1500 * time.Millisecond, Tags: []string{"private", "vision"}, MinContext: 8000, IdempotencyKey: "k",
	}
	if errs != nil || !reflect.DeepEqual(ask, want) {
		t.Errorf("got  %+v %v\nwant %+v", ask, errs, want)
	}
	if len(warnings) != 2 || warnings[0].Path != "model" || warnings[1].Path != "tried[1].tier" {
		t.Errorf("warnings %v, want of model and tried[1].tier", warnings)
	}
	many := func(one string, n int) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	for raw, want := range map[string]string{
		`{"agent":"a","chain":""}`:                               "chain: is missing",
		`{"chain":"code"}`:                                       "agent: is missing",
		`{"agent":"a","chain":7}`:                                "chain: is the number 7: a string is needed",
		`{"agent":"a","chain":"c","tried":{}}`:                   "tried: is an object: an array of objects with machine, model and cause is needed",
		`{"agent":"a","chain":"c","tried":["gpu"]}`:              `tried[0]: is the string "gpu": an object`,
		`{"agent":"a","chain":"c","tried":[{},{"machine":"m"}]}`: "tried[0].machine: is missing",
		`{"agent":"a","chain":"c","tried":[{"machine":"m"},{"machine":"m","cause":"slain"}]}`:                 `tried[1].cause: unknown cause "slain": known are ok, refused`,
		`{"agent":"a","chain":"c","tried":` + many(`{"machine":"m"}`, breaker.MaxTried+1) + `}`:               "tried: has more than 64 targets: at most 64 are allowed",
		`{"agent":"a","chain":"c","tags":"private"}`:                                                          `tags: is the string "private": an array of strings is needed`,
		`{"agent":"a","chain":"c","tags":["a",1]}`:                                                            "tags: [1] is the number 1: a string is needed",
		`{"agent":"a","chain":"c","tags":["a","` + strings.Repeat("x", 129) + `"]}`:                           "tags: [1] has 129 characters: at most 128 are allowed",
		`{"agent":"a","chain":"c","tags":` + many(`"t"`, maxTags+1) + `}`:                                     "tags: has more than 32 tags: at most 32 are allowed",
		`{"agent":"a","chain":"c","min_context":-1}`:                                                          "min_context: is -1: it must not be negative",
		`{"agent":"a","chain":"c","min_context":1.5}`:                                                         "min_context: is 1.5: a whole number is needed",
		`{"agent":"a","chain":"c","min_context":1e9}`:                                                         "min_context: is 1e9: at most 100000000 is allowed",
		`{"agent":"a","chain":"c","idempotency_key":"` + strings.Repeat("k", 129) + `"}`:                      "idempotency_key: is 129 bytes long",
		`{"agent":"a","chain":"c","timeout_ms":86400001}`:                                                     "timeout_ms: is 86400001 ms",
		`{"agent":"a","chain":"c","request_id":7}`:                                                            "request_id: is the number 7",
		`{"agent":"a","chain":"c","tried":` + strings.Repeat("[", maxDepth+1) + strings.Repeat("]", 65) + `}`: "nests 66 deep: at most 64 are allowed",
		`[`: "line 1, column 2",
	} {
		if _, errs, _ := DecodeRoute(json.RawMessage(raw)); len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%s: %v, want %s", excerpt(raw), errs, want)
		}
	}
	if ask, errs, _ := DecodeRoute(json.RawMessage(`{"agent":"a","chain":"c","tried":` + many(`{"machine":"m"}`, breaker.MaxTried) + `,"tags":` + many(`"t"`, maxTags) + `}`)); errs != nil || len(ask.Tried) != 64 || len(ask.Tags) != 32 {
		t.Errorf("as many as may be: %v", errs)
	}
	_, errs, _ = DecodeRoute(json.RawMessage(`{"agent":"a","chain":"c","tried":` + many(`{}`, 60) + `}`))
	if len(errs) != maxItemErrors {
		t.Errorf("%d errors, want %d", len(errs), maxItemErrors)
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	route := func(more string) answer { return w.post("/v1/route", `{"agent":"a","chain":"code"`+more+`}`) }
	first := route(`,"requestid":"r"`).
		is(200, "target.machine", "gpu-box", "target.model", "m", "target.provider", "lab", "target.tier", "high", "target.note", "full quality", "target.context", 32768,
			"probe", false, "state", "closed", "expires_at", nil, "hop", 0, "degraded", false, "until", nil, "retry_after_ms", nil, "reason", nil, "write", nil,
			"warnings.0.path", "requestid").says(`"skipped":[]`).json("permit").(string)
	if w.disk.waits.Load() != 0 {
		t.Error("a plain permit waited for the disk")
	}
	w.post("/v1/outcomes", `{"agent":"a","machine":"gpu-box","model":"m","cause":"refused","permit":"`+first+`"}`).is(200, "verdicts.0.duplicate", false)
	w.post("/v1/outcomes", `{"agent":"a","machine":"gpu-box","model":"m","cause":"ok","permit":"`+first+`"}`).is(200, "verdicts.0.duplicate", true)

	w.trip("gpu-box")
	route(``).is(200, "target.machine", "api", "target.provider", "cloud", "target.note", nil, "hop", 1, "degraded", false, "reason", "open",
		"skipped.0.machine", "gpu-box", "skipped.0.model", "m", "skipped.0.provider", "lab", "skipped.0.reason", "open", "skipped.0.cause", "refused",
		"skipped.0.retry_at", "2026-03-01T14:02:30.250Z", "skipped.0.retry_after_ms", 30000)
	route(`,"tried":[{"machine":"api","cause":"rate_limited"}]`).is(200, "target.machine", "mac-mini", "target.provider", "mac-mini", "target.tier", "low", "hop", 2,
		"skipped.1.reason", "tried", "skipped.1.cause", "rate_limited", "skipped.1.retry_at", nil, "skipped.1.retry_after_ms", nil)
	route(`,"tags":["private"]`).is(200, "target", nil, "permit", nil, "state", nil, "probe", false, "degraded", true, "until", "2026-03-01T14:02:30.250Z", "retry_after_ms", 30000,
		"reason", "nothing_left", "skipped.1.reason", "tags", "skipped.2.reason", "tags")
	route(`,"min_context":1000000`).is(200, "target.machine", "mac-mini", "skipped.1.reason", "context")
	if w.disk.waits.Load() != 5 {
		t.Errorf("%d waits for the disk, want those of the five outcomes", w.disk.waits.Load())
	}

	w.pass(31 * time.Second)
	probe := route(`,"request_id":"turn-1","timeout_ms":5000`).
		is(200, "target.machine", "gpu-box", "probe", true, "state", "half_open", "expires_at", "2026-03-01T14:02:46.250Z", "hop", 0).json("permit").(string)
	if w.disk.waits.Load() != 6 {
		t.Error("a probe did not wait for the disk")
	}
	route(`,"request_id":"turn-2"`).is(200, "target.machine", "api", "skipped.0.reason", "probe_in_flight", "skipped.0.retry_after_ms", 5000)
	if again := route(`,"request_id":"turn-1"`).json("permit"); again != probe {
		t.Errorf("the same turn got %v, want %s", again, probe)
	}
	w.disk.broken.Store(true) // a probe is granted all the same, after AckTimeout
	w.post("/v1/permits/"+probe+"/release", ``).is(200)
	route(``).is(200, "probe", true)

	w.post("/v1/route", `{"agent":"a","chain":"chess"}`).problem(422, "chain: unknown chain", "known are chat, code", `"path":"chain"`)
	w.post("/v1/route", `{"agent":"a"}`).problem(422, "chain: is missing")
	w.post("/v1/route", `{`).problem(400, "line 1, column 2")
	w.do("POST", "/v1/route", "text/plain", `{}`).problem(415)
	w.get("/metrics").says(`breakerbot_routes_total{answer="first",chain="code"} 4`, `breakerbot_routes_total{answer="fallback",chain="code"} 4`,
		`breakerbot_routes_total{answer="degraded",chain="code"} 1`)
}

func TestChains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.get("/v1/chains").is(200, "chains.code.max_hops", 2, "chains.code.degraded_for", "10m", "chains.code.avoid_provider_after.0", "rate_limited",
		"chains.code.targets.0.machine", "gpu-box", "chains.code.targets.0.provider", "lab", "chains.code.targets.0.tags.0", "private",
		"chains.code.targets.1.machine", "api", "chains.code.targets.2.machine", "mac-mini", "chains.chat.targets.0.machine", "mac-mini")
	w.get("/v1/chains?name=code").problem(400, "there is none here")
}

func TestRoutesBeforeTheStateIsRestored(t *testing.T) {
	t.Parallel()
	chains, err := breaker.New(breaker.Config{Chains: testChains, Machines: map[string]breaker.Machine{"gpu-box": {Provider: "lab", Aliases: []string{"10.0.0.9:11434"}}}})
	if err != nil {
		t.Fatal(err)
	}
	open := shutWorld(t, func(o *Options) { o.StartOpen, o.Chains = true, chains })
	open.post("/v1/route", `{"agent":"a","chain":"code"}`).is(200, "target.machine", "gpu-box", "target.provider", "lab", "state", "unknown", "permit", nil, "probe", false, "hop", 0)
	open.post("/v1/route", `{"agent":"a","chain":"code","tried":[{"machine":"gpu-box","cause":"refused"},{"machine":"api","cause":"quota"}]}`).
		is(200, "target.machine", "mac-mini", "state", "unknown", "permit", nil, "hop", 2, "skipped.0.reason", "tried")
	open.post("/v1/route", `{"agent":"a","chain":"code","min_context":500000,"tags":["vision"]}`).is(200, "degraded", true, "state", nil, "reason", "nothing_left")
	open.post("/v1/route", `{"agent":"a","chain":"chess"}`).problem(422, "known are chat, code")
	if n := chains.Backlog(); n != 0 {
		t.Errorf("%d entries are kept of what is not to be recorded", n)
	}
	shut := shutWorld(t, func(o *Options) { o.Chains = chains })
	shut.post("/v1/route", `{"agent":"a","chain":"code"}`).is(200, "target", nil, "permit", nil, "degraded", true, "reason", "starting", "retry_after_ms", 1000, "until", "2026-03-01T14:02:01.250Z")
	shut.post("/v1/route", `{"agent":"a","chain":"chess"}`).problem(422, "known are chat, code")
	shut.get("/v1/chains").problem(503, notReady)
	shut.get("/metrics").says(`breakerbot_routes_total{answer="degraded",chain="code"} 1`)
	shutWorld(t).post("/v1/route", `{"agent":"a","chain":"code"}`).problem(422, "known are none")
}

func TestRoutesAreCountedWithinTheSeriesBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.MaxSeries = 20 })
	var body strings.Builder
	for i := range 30 {
		fmt.Fprintf(&body, `{"agent":"a","machine":"m%d","http_status":200}`+"\n", i)
	}
	w.do("POST", "/v1/outcomes", typeNDJSON, body.String()).is(200)
	w.post("/v1/route", `{"agent":"a","chain":"code"}`).is(200)
	w.get("/metrics").says(`breakerbot_routes_total{answer="first",chain="other"} 1`)
}

// FuzzDecodeRoute holds that any input ends, that what is taken keeps its
// bounds, and that whatever is taken can be answered.
func FuzzDecodeRoute(f *testing.F) {
	f.Add([]byte(`{"agent":"a","chain":"code","tried":[{"machine":"gpu-box","model":"m","cause":"quota"},{"machine":"api"}],"tags":["private"],"min_context":7,"idempotency_key":"k","request_id":"r","timeout_ms":5}`))
	f.Add([]byte(`{"agent":"a","chain":"code","tried":[[]],"tags":[{}]}`))
	f.Add([]byte(`{"agent":"a","chain":"code","tried":[{"machine":"mac-mini"},{"machine":"mac-mini"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ask, errs, warnings := DecodeRoute(raw)
		for _, list := range [][]string{messages(errs), warningMessages(warnings)} {
			for _, m := range list {
				if !utf8.ValidString(m) || len(m) > 2000 {
					t.Fatalf("message %q", m)
				}
			}
		}
		if len(errs) > 0 {
			return
		}
		if breaker.CheckLabel(ask.Agent) != nil || breaker.CheckLabel(ask.Chain) != nil || len(ask.Tried) > breaker.MaxTried || len(ask.Tags) > maxTags ||
			ask.MinContext < 0 || ask.MinContext > maxContext || len(ask.IdempotencyKey) > maxID || len(ask.RequestID) > maxID || ask.Timeout < 0 {
			t.Fatalf("%+v", ask)
		}
		for _, tried := range ask.Tried {
			if breaker.CheckLabel(tried.Machine) != nil {
				t.Fatalf("tried %+v", tried)
			}
		}
		e, err := breaker.New(breaker.Config{Chains: testChains})
		if err != nil {
			t.Fatal(err)
		}
		route, _, err := e.Route(t0, ask)
		if err != nil {
			return // a chain that there is not
		}
		if body := RouteJSON(route, t0); body.Degraded != (body.Target == nil) || body.Degraded != (body.Permit == "") || body.Hop < 0 || body.Degraded && body.Reason == "" {
			t.Fatalf("%+v", body)
		}
	})
}
