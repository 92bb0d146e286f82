package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"breakerbot/breaker"
)

func TestDecodeOutcomeWhole(t *testing.T) {
	t.Parallel()
	raw := `{"agent":"coder-1","machine":"gpu\u002dbox","model":"m","provider":"lab","id":"c1","cause":"refused","http_status":502,
		"error":"Bearer abcdefgh was refused","error_type":"X","error_code":7,"phase":"headers","duration_ms":812.5,"first_token_ms":1,"age_ms":1500,
		"retry_after_s":20,"permit":"p","request_id":"r","operation":"chat","stream":true,"stream_done":true,"finish_reason":"stop","output_tokens":3,
		"reasoning_tokens":1,"tool_calls":0,"response":{"a":[1,2,{"b":"]}"}]},"response_chars":3,"allowed":{"x":["a"]},"timeout_ms":30000,"write":true,
		"idempotency_key":"k","served":"fallback","fallback_from":{"machine":"mac","model":"big","cause":"timeout"},"cost_usd":0.0123}`
	o, errs, warnings := DecodeOutcome(json.RawMessage(raw), t0)
	if errs != nil || warnings != nil {
		t.Fatalf("errors %v, warnings %v", errs, warnings)
	}
	want := breaker.Outcome{
		Labels: breaker.Labels{Agent: "coder-1", Machine: "gpu-box", Model: "m", Provider: "lab"}, ID: "c1", Cause: breaker.Refused,
		Duration: 812500 * time.Microsecond, FirstToken: time.Millisecond, Age: 1500 * time.Millisecond, RetryAfter: 20 * time.Second, Timeout: 30 * time.Second,
		Permit: "p", Served: breaker.ServedFallback, Fallback: breaker.Fallback{Machine: "mac", Model: "big", Cause: breaker.Timeout},
		HTTPStatus: 502, Error: "Bearer [redacted] was refused", CostUSD: 0.0123, Write: true, IdempotencyKey: "k",
	}
	if o != want {
		t.Errorf("got  %+v\nwant %+v", o, want)
	}
}

func manyFields(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`"f%d": []`, i))
	}
	return strings.Join(list, ",")
}

func TestDecodeOutcomeErrors(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 129)
	for _, c := range []struct{ json, path, message string }{
		{`"agent": ""`, "agent", "is missing: 1 to 128 characters are needed"},
		{`"agent": null`, "agent", "is missing"},
		{`"agent": true`, "agent", "is the boolean true: a string is needed"},
		{`"agent": "` + long + `"`, "agent", "has 129 characters: at most 128 are allowed"},
		{`"machine": "a\u0007b"`, "machine", "control character"},
		{`"machine": ["m"]`, "machine", "is an array: a string is needed"},
		{"\"machine\": \"\xff\"", "machine", "is not valid UTF-8"},
		{`"model": 3`, "model", "is the number 3: a string is needed"},
		{`"provider": {}`, "provider", "is an object: a string is needed"},
		{`"id": "` + long + `"`, "id", "is 129 bytes long: at most 128 are allowed"},
		{`"id": 12`, "id", "is the number 12: a string is needed"},
		{`"cause": "boom"`, "cause", `unknown cause "boom": known are ok, refused, unreachable`},
		{`"cause": 3`, "cause", "is the number 3"},
		{`"http_status": "503"`, "http_status", `is the string "503": a whole number is needed`},
		{`"http_status": 42`, "http_status", "is 42: a status from 100 to 599 is needed, or 0 for none"},
		{`"http_status": 600`, "http_status", "is 600: a status from 100 to 599"},
		{`"http_status": 200.5`, "http_status", "is 200.5: a status from 100 to 599"},
		{`"http_status": -1`, "http_status", "is -1: a status from 100 to 599"},
		{`"error": {"message": "x"}`, "error", "is an object: a string is needed"},
		{`"error_code": []`, "error_code", "is an array: a string or a number is needed"},
		{`"phase": "middle"`, "phase", `is "middle": known are dns, connect, tls, request, headers, stream, done`},
		{`"duration_ms": "fast"`, "duration_ms", `is the string "fast": a number of milliseconds is needed`},
		{`"duration_ms": -1`, "duration_ms", "is -1: it must not be negative"},
		{`"duration_ms": 86400001`, "duration_ms", "is 86400001 ms: at most 86400000 (1 d) is allowed"},
		{`"duration_ms": 1e999`, "duration_ms", "is 1e999 ms: at most 86400000 (1 d) is allowed"},
		{`"duration_ms": -1e999`, "duration_ms", "-1e999"},
		{`"first_token_ms": false`, "first_token_ms", "is the boolean false"},
		{`"age_ms": 99999999999999`, "age_ms", "at most 2678400000 (31 d) is allowed"},
		{`"ended_at": "yesterday"`, "ended_at", `is the string "yesterday": an RFC 3339 time with zone is needed`},
		{`"ended_at": "2026-03-01T14:02:00"`, "ended_at", "RFC 3339"},
		{`"ended_at": 1772373720`, "ended_at", "is the number 1772373720: an RFC 3339 time"},
		{`"ended_at": "2020-03-01T14:02:00Z"`, "ended_at", "at most 31 d ago is allowed"},
		{`"ended_at": "2030-03-01T14:02:00Z"`, "ended_at", "in the future: at most 1 d ahead is allowed"},
		{`"retry_after_s": "soon"`, "retry_after_s", `is the string "soon": a number of seconds or the text of a Retry-After header is needed`},
		{`"retry_after_s": true`, "retry_after_s", "a number of seconds or the text of a Retry-After header is needed"},
		{`"retry_after_s": -3`, "retry_after_s", "must not be negative"},
		{`"retry_after_s": 99999999`, "retry_after_s", "at most 31622400 is allowed"},
		{`"permit": "` + strings.Repeat("p", 513) + `"`, "permit", "at most 512 are allowed"},
		{`"stream": "yes"`, "stream", `is the string "yes": true or false is needed`},
		{`"output_tokens": 1.5`, "output_tokens", "is 1.5: a whole number is needed"},
		{`"tool_calls": [{}]`, "tool_calls", "is an array: a whole number is needed"},
		{`"response_chars": 1e10`, "response_chars", "at most 1000000000 is allowed"},
		{`"response": "` + strings.Repeat("x", maxResponse) + `"`, "response", "at most 65536 are allowed"},
		{`"response": ` + strings.Repeat("[", 70) + strings.Repeat("]", 70), "", "nests 71 deep: at most 64 are allowed"},
		{`"allowed": ["a"]`, "allowed", "is an array: an object of field names with arrays of allowed values is needed"},
		{`"allowed": {"id": "a"}`, "allowed", `has the string "a" under "id"`},
		{`"allowed": {"` + strings.Repeat("k", 257) + `": []}`, "allowed", "of 257 bytes: at most 256 are allowed"},
		{`"allowed": {"id": [1e999]}`, "allowed", `has a value under "id" that cannot be compared: a number is out of range`},
		{`"allowed": {"id": [` + strings.Repeat("1,", 10_000) + `1]}`, "allowed", "has more than 10000 values: that many are allowed, of all fields together"},
		{`"allowed": {"id": ["` + strings.Repeat("x", 1<<20) + `"]}`, "allowed", "bytes long: at most 1048576 are allowed"},
		{`"allowed": {` + manyFields(201) + `}`, "allowed", "has more than 200 fields: that many are allowed"},
		{`"timeout_ms": []`, "timeout_ms", "is an array"},
		{`"write": 1`, "write", "true or false is needed"},
		{`"idempotency_key": "` + long + `"`, "idempotency_key", "at most 128"},
		{`"served": "twice"`, "served", `unknown served "twice": known are primary, fallback, cache, degraded, rejected`},
		{`"fallback_from": "mac"`, "fallback_from", "an object with machine, model and cause is needed"},
		{`"fallback_from": {"cause": "boom"}`, "fallback_from.cause", "unknown cause"},
		{`"fallback_from": {"machine": 4}`, "fallback_from.machine", "is the number 4"},
		{`"cost_usd": -0.1`, "cost_usd", "must not be negative"},
		{`"cost_usd": "1"`, "cost_usd", `is the string "1": a number of US dollars is needed`},
		{`"duration_ms": "Bearer abcdefgh"`, "duration_ms", "Bearer [redacted]"},
	} {
		raw := `{"agent": "a", "machine": "m", ` + c.json + `}` // the second of two equal keys counts
		o, errs, _ := DecodeOutcome(json.RawMessage(raw), t0)
		if len(errs) != 1 || errs[0].Path != c.path || !strings.Contains(errs[0].Message, c.message) {
			t.Errorf("%.80s: %v, want %s: %s", c.json, errs, c.path, c.message)
		}
		if o != (breaker.Outcome{}) {
			t.Errorf("%.80s: an outcome in spite of errors", c.json)
		}
	}
}

func TestDecodeOutcomeTakes(t *testing.T) {
	t.Parallel()
	for _, c := range []string{
		`"http_status": 0`, `"http_status": 2e2`, `"model": ""`, `"provider": null`, `"id": ""`, `"duration_ms": 0`, `"duration_ms": 86400000`,
		`"error_code": 1113`, `"ended_at": "2026-03-01T15:02:00+01:00"`, `"served": ""`, `"served": null`, `"fallback_from": null`, `"fallback_from": {}`,
		`"cause": "ok", "cause": "timeout"`, `"response": [], "response": null`, `"allowed": {}`, `"agent": 5, "agent": "b"`, `"\u0069d": "x"`, `"phase": ""`,
	} {
		if _, errs, warnings := DecodeOutcome(json.RawMessage(`{"agent":"a","machine":"m",`+c+`}`), t0); errs != nil || warnings != nil {
			t.Errorf("%s: errors %v, warnings %v", c, errs, warnings)
		}
	}
	if o, _, _ := DecodeOutcome(json.RawMessage(`{"agent":"`+strings.Repeat("ü", 128)+`","machine":"m","cause":"ok"}`), t0); utf8.RuneCountInString(o.Agent) != 128 {
		t.Errorf("128 characters in 256 bytes were not taken")
	}
}

func TestDecodeBoundsWhatItTells(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&many, `,"k%d":%d`, i, i)
	}
	_, errs, warnings := DecodeOutcome(json.RawMessage(`{"agent":"a","machine":"m"`+many.String()+`}`), t0)
	if errs != nil || len(warnings) != maxItemWarnings {
		t.Errorf("errors %v, %d warnings, want %d", errs, len(warnings), maxItemWarnings)
	}
	_, _, warnings = DecodeOutcome(json.RawMessage(`{"agent":"a","machine":"m","`+strings.Repeat("z", 1<<16)+`":1}`), t0)
	if len(warnings) != 1 || len(warnings[0].Path) > 4*maxExcerpt {
		t.Errorf("a long key came back whole")
	}
}

func TestDecodeAsk(t *testing.T) {
	t.Parallel()
	ask, errs, warnings := DecodeAsk(json.RawMessage(`{"agent":"a","machine":"m","model":"x","provider":"p","request_id":"r","timeout_ms":1500,"idempotency_key":"k","tier":"high"}`))
	if errs != nil || len(warnings) != 1 || ask != (breaker.Ask{Labels: breaker.Labels{Agent: "a", Machine: "m", Model: "x", Provider: "p"}, RequestID: "r", Timeout: 1500 * time.Millisecond, IdempotencyKey: "k"}) {
		t.Errorf("%+v %v %v", ask, errs, warnings)
	}
	for raw, want := range map[string]string{
		`{`: "line 1, column 2", `[]`: "an object is needed", `{"agent":"a"}`: "machine: is missing", `{"agent":"a","machine":"m","timeout_ms":"1"}`: "timeout_ms: is the string",
	} {
		if _, errs, _ := DecodeAsk(json.RawMessage(raw)); len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%s: %v, want %s", raw, errs, want)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"durationms": "duration_ms", "latency_ms": "agent", "Agent": "agent", "status": "http_status", "retry_after": "retry_after_s", "firstTokenMs": "first_token_ms", "": "id"} {
		got := nearest(word, outcomeFields.names)
		if word == "latency_ms" { // only that it answers with a known one
			if _, ok := outcomeFields.index[got]; !ok {
				t.Errorf("nearest(%q) is %q, which is not known", word, got)
			}
			continue
		}
		if word == "status" {
			if levenshtein(word, got) > levenshtein(word, "http_status") {
				t.Errorf("nearest(%q) is %q", word, got)
			}
			continue
		}
		if got != want {
			t.Errorf("nearest(%q) is %q, want %q", word, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		d    int
	}{{"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}, {"über", "uber", 1}} {
		if got := levenshtein(c.a, c.b); got != c.d {
			t.Errorf("levenshtein(%q, %q) is %d, want %d", c.a, c.b, got, c.d)
		}
	}
}

// FuzzDecodeOutcome holds what must be true of any input: it ends, an outcome
// and errors exclude each other, and what is taken keeps its bounds. Walking
// JSON here has to agree with encoding/json.
func FuzzDecodeOutcome(f *testing.F) {
	for _, c := range signalCases {
		f.Add([]byte(`{"agent":"a","machine":"m",` + c.json + `}`))
	}
	for _, s := range []string{`{}`, `[]`, `null`, `{"a":{"b":[1,"\"}",{}]}}`, `{"agent":"\ud800","machine":"m"}`, "{\"agent\":\"a\",\n\"machine\":\"m\"", `{"retry_after_s":"Sun, 01 Mar 2026 14:03:30 GMT"}`} {
		f.Add([]byte(s))
	}
	for _, c := range gateCases {
		f.Add([]byte(`{"agent":"a","machine":"m",` + c.outcome + `}`))
	}
	gates, err := NewGates([]Gate{{
		MinChars: 5, Allow: []string{"yes"}, Schema: map[string]any{"properties": map[string]any{"n": map[string]any{"minimum": 0}}},
		Required: []string{"a.b"}, Allowed: map[string][]any{"a.b": {1, "x"}}, MinDurationMS: 5,
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, errs, warnings := Decoder{Gates: gates}.Outcome(raw, t0)
		if !json.Valid(raw) {
			if len(errs) != 1 || !strings.HasPrefix(errs[0].Message, "line ") {
				t.Fatalf("invalid JSON: %v", errs)
			}
			return
		}
		for _, list := range [][]string{messages(errs), warningMessages(warnings)} {
			for _, m := range list {
				if !utf8.ValidString(m) || len(m) > 2000 {
					t.Fatalf("message %q", m)
				}
			}
		}
		for _, e := range errs {
			if field, _, _ := strings.Cut(e.Path, "."); field != "" && !slices.Contains(outcomeFields.names, field) {
				t.Fatalf("an error about %q, which is no field", e.Path)
			}
		}
		if len(errs) > 0 {
			if o != (breaker.Outcome{}) {
				t.Fatalf("an outcome in spite of %v", errs)
			}
			return
		}
		if o.Cause.String() == "" || o.Cause.Class() == breaker.ClassLatency {
			t.Fatalf("cause %v", o.Cause)
		}
		for _, d := range []time.Duration{o.Age, o.Duration, o.FirstToken, o.RetryAfter, o.Timeout} {
			if d < 0 || d > maxRetryAfter {
				t.Fatalf("duration %s", d)
			}
		}
		if !utf8.ValidString(o.Error) || utf8.RuneCountInString(o.Error) > maxEvidence || len(o.ID) > maxID || len(o.Permit) > maxPermit {
			t.Fatalf("outcome %+v", o)
		}
		if breaker.CheckLabel(o.Agent) != nil || breaker.CheckLabel(o.Machine) != nil {
			t.Fatalf("labels %+v", o.Labels)
		}
		var std map[string]json.RawMessage
		if err := json.Unmarshal(raw, &std); err != nil {
			t.Fatalf("taken, though encoding/json says %v", err)
		}
		mine := map[string]json.RawMessage{}
		eachMember(raw, func(key []byte, v value) { mine[strings.ToValidUTF8(string(key), "\ufffd")] = json.RawMessage(v) })
		for key, v := range std {
			if utf8.Valid(raw) && !bytes.Equal(mine[key], v) {
				t.Fatalf("member %q is %q, want %q", key, mine[key], v)
			}
		}
	})
}

func messages(errs []FieldError) (list []string) {
	for _, e := range errs {
		list = append(list, e.Error())
	}
	return list
}

func warningMessages(warnings []Warning) (list []string) {
	for _, w := range warnings {
		list = append(list, w.Path, w.Message)
	}
	return list
}

// FuzzScrub holds that evidence is bounded, printable and stable.
func FuzzScrub(f *testing.F) {
	for _, s := range []string{"Bearer abc", "sk-0123456789", "http://a:b@c", "api_key=x", "1234567:" + strings.Repeat("A", 35), "\xff\x00", strings.Repeat("€ ", 600)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Evidence(s)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > maxEvidence || strings.ContainsAny(got, "\x00\n\r\t\x1b\x7f") {
			t.Fatalf("Evidence(%q) is %q", s, got)
		}
	})
}

func BenchmarkDecodeOutcome(b *testing.B) {
	raw := json.RawMessage(`{"agent":"coder-1","machine":"gpu-box","model":"qwen3-30b","http_status":200,"duration_ms":812.5,"finish_reason":"stop","output_tokens":180}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, errs, _ := DecodeOutcome(raw, t0); errs != nil {
			b.Fatal(errs)
		}
	}
}
