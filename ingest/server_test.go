package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"breakerbot/breaker"
)

var t0 = time.Date(2026, 3, 1, 14, 2, 0, 250e6, time.UTC)

// disk is a Journal that does as it is told and remembers what was waited for.
type disk struct {
	full   atomic.Bool
	broken atomic.Bool // nothing ever becomes durable
	waits  atomic.Int64
}

func (d *disk) Full() bool { return d.full.Load() }

func (d *disk) Wait(ctx context.Context, _ uint64) error {
	d.waits.Add(1)
	if d.broken.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

type badCursorError struct{}

func (badCursorError) Error() string   { return "bad cursor" }
func (badCursorError) BadCursor() bool { return true }

// past is a History with what it was given; it keeps the last filter.
type past struct {
	transitions []breaker.Transition
	incidents   []breaker.Incident
	err         error

	mu     sync.Mutex
	filter breaker.Filter
}

func (p *past) Transitions(_ context.Context, f breaker.Filter) ([]breaker.Transition, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filter = f
	return p.transitions, "next", p.err
}

func (p *past) Incidents(_ context.Context, f breaker.Filter) ([]breaker.Incident, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filter = f
	return p.incidents, "", p.err
}

// world is a server with a real engine and a clock that stands still.
type world struct {
	t       testing.TB
	server  *Server
	handler http.Handler
	engine  *breaker.Engine
	disk    *disk
	past    *past
	reg     *prometheus.Registry
	nanos   atomic.Int64 // since t0
}

func newWorld(t testing.TB, change ...func(*Options)) *world {
	t.Helper()
	w := shutWorld(t, change...)
	w.server.Open(Core{Engine: w.engine, Journal: w.disk, History: w.past})
	return w
}

// shutWorld is a world whose state is not restored yet.
func shutWorld(t testing.TB, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, disk: &disk{}, past: &past{}, reg: prometheus.NewRegistry()}
	engine, err := breaker.New(breaker.Config{
		Rules: []breaker.Rule{{
			Name: "errors", Scope: []string{"machine", "model"}, Failures: []string{"transport"}, Ignores: []string{"caller", "capacity", "access", "quality", "latency"},
			Cooldown: breaker.Cooldown{First: breaker.Duration(30 * time.Second)}, Lease: breaker.Duration(10 * time.Second),
		}},
		Machines: map[string]breaker.Machine{"gpu-box": {Provider: "lab", Aliases: []string{"10.0.0.9:11434"}}},
		Chains:   testChains,
		Key:      []byte("test key"),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.engine = engine
	o := Options{Now: w.now, Registry: w.reg, Version: "test", AckTimeout: time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	w.server = New(o)
	w.handler = w.server.Handler()
	return w
}

func (w *world) now() time.Time         { return t0.Add(time.Duration(w.nanos.Load())) }
func (w *world) pass(d time.Duration)   { w.nanos.Add(int64(d)) }
func (w *world) trip(machine string)    { w.report(machine, "refused", 3) }
func (w *world) get(path string) answer { return w.do(http.MethodGet, path, "", "") }
func (w *world) post(path, body string) answer {
	return w.do(http.MethodPost, path, typeJSON, body)
}

func (w *world) report(machine, cause string, times int) {
	w.t.Helper()
	for range times {
		if a := w.post("/v1/outcomes", fmt.Sprintf(`{"agent":"coder-1","machine":%q,"model":"m","cause":%q,"error":"connection refused","duration_ms":12}`, machine, cause)); a.status != 200 {
			w.t.Fatalf("report %s: %d %s", cause, a.status, a.body)
		}
	}
}

func (w *world) do(method, path, contentType, body string, headers ...string) answer {
	w.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8080"
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return answer{w.t, rec.Code, rec.Header(), rec.Body.String()}
}

type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

// json gives the member of the answer at a path of keys and indices.
func (a answer) json(path ...any) any {
	a.t.Helper()
	var v any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("answer %d is no JSON: %s", a.status, a.body)
	}
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				a.t.Fatalf("no %v in %s", path, a.body)
			}
			v = m[step]
		case int:
			list, ok := v.([]any)
			if !ok || step >= len(list) {
				a.t.Fatalf("no %v in %s", path, a.body)
			}
			v = list[step]
		}
	}
	return v
}

// is checks the status, and members of the answer given as path and value; a
// path is keys joined by dots.
func (a answer) is(status int, members ...any) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	for i := 0; i < len(members); i += 2 {
		var path []any
		for key := range strings.SplitSeq(members[i].(string), ".") {
			if n, err := strconv.Atoi(key); err == nil {
				path = append(path, n)
			} else {
				path = append(path, key)
			}
		}
		got, want := a.json(path...), members[i+1]
		if n, ok := want.(int); ok {
			want = float64(n)
		}
		if got != want {
			a.t.Errorf("%s is %v, want %v: %s", members[i], got, want, a.body)
		}
	}
	return a
}

func (a answer) says(words ...string) answer {
	a.t.Helper()
	for _, word := range words {
		if !strings.Contains(a.body, word) {
			a.t.Errorf("the answer does not say %q: %d %s", word, a.status, a.body)
		}
	}
	return a
}

// problem checks an RFC 9457 answer.
func (a answer) problem(status int, words ...string) answer {
	a.t.Helper()
	a.is(status, "status", status, "title", http.StatusText(status)).says(words...)
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Errorf("the problem's content type is %q", got)
	}
	return a
}

func breakerPath(name string) string { return "/v1/breakers/" + url.PathEscape(name) }

const gpuErrors = "errors{machine=gpu-box,model=m}"

func TestOutcomeSingle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.post("/v1/outcomes", `{"agent":"coder-1","machine":"gpu-box","model":"m","error":"connection refused"}`)
	a.is(200, "accepted", 1, "duplicates", 0, "late", 0, "durable", true,
		"verdicts.0.index", 0, "verdicts.0.cause", "refused", "verdicts.0.class", "transport", "verdicts.0.counted.0", "errors", "verdicts.0.state", "closed")
	if got := a.json("circuits").([]any); len(got) != 0 {
		t.Errorf("a closed circuit is listed: %v", got)
	}
	if got := a.json("rejected").([]any); len(got) != 0 {
		t.Errorf("rejected: %v", got)
	}
	w.report("gpu-box", "refused", 1)
	w.post("/v1/outcomes", `{"agent":"coder-1","machine":"10.0.0.9:11434","model":"m","cause":"refused"}`).
		is(200, "verdicts.0.state", "open", "verdicts.0.retry_at", "2026-03-01T14:02:30.250Z", "verdicts.0.retry_after_ms", 30000,
			"circuits.0.machine", "gpu-box", "circuits.0.provider", "lab", "circuits.0.state", "open", "circuits.0.breakers.0.name", gpuErrors,
			"circuits.0.breakers.0.last_failure.cause", "refused")
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"cancelled"}`).says(`"counted":[]`)
}

func TestOutcomeBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.post("/v1/outcomes", `[
		{"agent":"a","machine":"m","http_status":200,"id":"1"},
		{"agent":7,"machine":"m","duration_ms":"fast"},
		{"agent":"a","machine":"m","http_status":500,"id":"2","age_ms":300000},
		{"agent":"a","machine":"m","http_status":200,"id":"1"},
		{"agent":"a","machine":"m","cause":"exploded"}]`)
	a.is(200, "accepted", 3, "duplicates", 1, "late", 1, "rejected.0.index", 1, "rejected.0.errors.0.path", "agent", "rejected.0.errors.1.path", "duration_ms",
		"rejected.1.index", 4, "rejected.1.errors.0.path", "cause").
		says("is the number 7: a string is needed", `is the string \"fast\": a number of milliseconds is needed`, `unknown cause \"exploded\": known are ok, refused`)
	if a.json("verdicts") != nil {
		t.Errorf("a batch without ?verdicts=all has verdicts")
	}
	w.post("/v1/outcomes?verdicts=all", `[{"agent":"a"},{"agent":"a","machine":"m","http_status":500},{"agent":"a","machine":"m","http_status":200}]`).
		is(200, "verdicts.0.index", 1, "verdicts.0.cause", "server_error", "verdicts.1.index", 2, "verdicts.1.cause", "ok", "rejected.0.errors.0.message", "is missing")
	w.post("/v1/outcomes?verdicts=some", `{}`).problem(400, "verdicts", "only all is known")
	w.post("/v1/outcomes?verdict=all", `{}`).problem(400, "verdict", "verdicts")
}

func TestOutcomeNDJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := "{\"agent\":\"a\",\"machine\":\"m\",\"http_status\":200}\r\n\n{\"agent\":\"a\",,}\n[1]\n{\"agent\":\"a\",\"machine\":\"m\",\"http_status\":500}"
	for _, kind := range []string{"application/x-ndjson", "application/ndjson; charset=UTF-8", "application/jsonl"} {
		w.do("POST", "/v1/outcomes?verdicts=all", kind, body).
			is(200, "accepted", 2, "rejected.0.index", 1, "rejected.1.index", 2, "verdicts.0.index", 0, "verdicts.1.index", 3).
			says("line 3, column 14: invalid character ','", "is an array: an object is needed")
	}
	w.do("POST", "/v1/outcomes", typeNDJSON, "{\n{").problem(422, "none of 2 outcomes is valid", "line 1, column 2", `"path":"[1]"`)
	w.do("POST", "/v1/outcomes", typeNDJSON, " \n\n").problem(400, "the body is empty")
}

func TestOutcomeNotJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		body string
		says string
	}{
		{"", "the body is empty"},
		{"  \n ", "the body is empty"},
		{"{\"agent\": \"a\",\n  \"machine\": m}", "line 2, column 14: invalid character 'm' looking for beginning of value"},
		{"{\"agent\": \"ü\", x", "line 1, column 16: invalid character 'x'"},
		{"{\"agent\": \"a\"", "line 1, column 14: unexpected end of the JSON value"},
		{"[{\"agent\": \"a\"},\n", "line 2, column 1: unexpected end"},
		{"{\"agent\": \"a\"} x", "line 1, column 16: invalid character 'x' after top-level value"},
		{"{\"agent\":\"a\"}\n{\"agent\":\"b\"}", "line 2, column 1: invalid character '{' after top-level value; several outcomes are sent as an array, or with the content type application/x-ndjson"},
		{"{\"duration_ms\": NaN}", "line 1, column 17: invalid character 'N'"},
		{"agent=a&machine=m", "line 1, column 1: invalid character 'a'"},
		{"{'agent': 'a'}", `line 1, column 2: invalid character '\\''`},
		{strings.Repeat("[", 20000), "exceeded max depth"},
	} {
		w.post("/v1/outcomes", c.body).problem(400, c.says)
	}
	w.post("/v1/outcomes", "\xef\xbb\xbf{\"agent\":\"a\",\"machine\":\"m\",\"http_status\":200}").is(200, "accepted", 1)
}

func TestOutcomeNothingValid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.post("/v1/outcomes", `{"agent":"a"}`).problem(422, `"path":"machine"`, "machine: is missing")
	w.post("/v1/outcomes", `"x"`).problem(422, `is the string \"x\": an object is needed`)
	w.post("/v1/outcomes", `[]`).problem(422, "the array is empty")
	w.post("/v1/outcomes", `[{},{"agent":"a"}]`).problem(422, `"path":"[0].agent"`, `"path":"[1].machine"`, `"rejected":[{"index":0`)
	if n, _ := w.engine.Report(w.now(), []breaker.Outcome{}); len(n) != 0 || w.engine.Backlog() != 0 {
		t.Errorf("a refused request reached the engine")
	}
}

func TestOutcomeWarnings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","http_status":200,"durationms":3,"Model":"x","fallback_from":{"machin":"b"}}`).
		is(200, "accepted", 1, "warnings.0.path", "durationms", "warnings.1.path", "Model", "warnings.2.path", "fallback_from.machin").
		says("the nearest known field is duration_ms", "the nearest known field is model", "the nearest known field is machine")
	var many strings.Builder
	for i := range 200 {
		fmt.Fprintf(&many, `{"agent":"a","machine":"m","http_status":200,"x%d":1,"y%d":2}`+"\n", i, i)
	}
	a := w.do("POST", "/v1/outcomes", typeNDJSON, many.String()).is(200, "accepted", 200)
	if n := len(a.json("warnings").([]any)); n != maxBatchWarnings {
		t.Errorf("%d warnings, want %d", n, maxBatchWarnings)
	}
}

func TestOutcomeLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	item := `{"agent":"a","machine":"m","http_status":200}`
	w.do("POST", "/v1/outcomes", typeNDJSON, strings.Repeat(item+"\n", maxItems)).is(200, "accepted", maxItems)
	w.do("POST", "/v1/outcomes", typeNDJSON, strings.Repeat(item+"\n", maxItems+1)).problem(413, "more than 10000 outcomes")
	w.post("/v1/outcomes", "["+strings.TrimSuffix(strings.Repeat(item+",", maxItems+1), ",")+"]").problem(413, "more than 10000 outcomes")
	w.do("POST", "/v1/outcomes", typeNDJSON, strings.Repeat("x\n", maxItems+1)).problem(413, "more than 10000 outcomes")
	w.post("/v1/outcomes", strings.Repeat(" ", maxBody)+item).problem(413, "over 16 MiB unpacked")
	w.post("/v1/permits", strings.Repeat(" ", maxSmallBody)+item).problem(413, "over 64 KiB")
}

var blanks = bytes.Repeat([]byte(" "), 64<<10)

// endless yields white space for ever and counts what was taken.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, blanks)
	e.read += int64(n)
	return n, nil
}

func TestLongBodyIsRefusedEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	send := func(length int64, body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/v1/outcomes", body)
		r.Host, r.ContentLength = "localhost", length
		r.Header.Set("Content-Type", typeJSON)
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		return rec
	}
	told := &endless{}
	if rec := send(50<<20, told); rec.Code != 413 || told.read != 0 {
		t.Errorf("a body that says 50 MB: %d after %d bytes", rec.Code, told.read)
	}
	untold := &endless{}
	if rec := send(-1, untold); rec.Code != 413 || untold.read > maxBody+1<<20 {
		t.Errorf("a body without end: %d after %d bytes", rec.Code, untold.read)
	}
}

func packGzip(t testing.TB, data []byte) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func packZstd(t testing.TB, data []byte, opts ...zstd.EOption) string {
	t.Helper()
	z, err := zstd.NewWriter(nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return string(z.EncodeAll(data, nil))
}

func TestPackedBodies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	item := []byte(`{"agent":"a","machine":"m","http_status":200}`)
	bomb := bytes.Repeat(blanks, 17<<20/len(blanks))
	for coding, pack := range map[string]func([]byte) string{
		"gzip": func(b []byte) string { return packGzip(t, b) },
		"zstd": func(b []byte) string { return packZstd(t, b) },
	} {
		for range 3 { // the readers are used again
			w.do("POST", "/v1/outcomes", typeJSON, pack(item), "Content-Encoding", coding).is(200, "accepted", 1)
		}
		packed := pack(bomb)
		if len(packed) > 1<<20 {
			t.Fatalf("%s: the bomb is %d bytes", coding, len(packed))
		}
		w.do("POST", "/v1/outcomes", typeJSON, packed, "Content-Encoding", coding).problem(413, "over 16 MiB unpacked")
		w.do("POST", "/v1/outcomes", typeJSON, pack(item)[:20], "Content-Encoding", coding).problem(400, "read the body")
		w.do("POST", "/v1/outcomes", typeJSON, "plain text, really", "Content-Encoding", coding).problem(400, "read the body")
		w.do("POST", "/v1/outcomes", typeJSON, pack(item), "Content-Encoding", coding).is(200, "accepted", 1)
	}
	w.do("POST", "/v1/outcomes", typeJSON, packZstd(t, bomb, zstd.WithWindowSize(16<<20), zstd.WithSingleSegment(true)), "Content-Encoding", "zstd").problem(413)
	a := w.do("POST", "/v1/outcomes", typeJSON, "x", "Content-Encoding", "br").problem(415, `\"br\"`, "gzip, zstd or none")
	if got := a.header.Get("Accept-Encoding"); got != "gzip, zstd" {
		t.Errorf("Accept-Encoding is %q", got)
	}
	w.do("POST", "/v1/outcomes", typeJSON, string(item), "Content-Encoding", "identity").is(200, "accepted", 1)
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=utf-16", "application/jsonx"} {
		w.do("POST", "/v1/outcomes", kind, `{"agent":"a","machine":"m","cause":"ok"}`).problem(415, "application/json or application/x-ndjson")
		w.do("POST", "/v1/permits", kind, `{"agent":"a","machine":"m"}`).problem(415, "application/json in UTF-8")
		w.do("POST", breakerPath(gpuErrors)+"/reset", kind, `{}`).problem(415)
	}
	w.do("POST", "/v1/permits", typeNDJSON, `{"agent":"a","machine":"m"}`).problem(415)
	w.do("POST", "/v1/permits", "Application/JSON; Charset=\"UTF-8\"", `{"agent":"a","machine":"m"}`).is(200, "allowed", true)
}

func TestOutcomeDurability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.disk.broken.Store(true)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","id":"1"}`).is(202, "durable", false, "accepted", 1)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","id":"1"}`).is(202, "durable", false, "duplicates", 1)
	w.disk.broken.Store(false)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","id":"1"}`).is(200, "durable", true, "duplicates", 1)
	w.disk.full.Store(true)
	backlog := w.engine.Backlog()
	a := w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok"}`).problem(503, "nothing of this request was applied")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
	}
	if got := w.engine.Backlog(); got != backlog {
		t.Errorf("a refused request was applied")
	}
	w.post("/v1/permits", `{"agent":"a","machine":"m"}`).is(200, "allowed", true)
}

func TestEndedAtGoesByTheSendersClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func(d time.Duration) string { return t0.Add(d).Format(time.RFC3339Nano) }
	// The sender's clock is an hour behind; its call ended a second ago.
	date := t0.Add(-time.Hour).Truncate(time.Second).Format(http.TimeFormat)
	w.do("POST", "/v1/outcomes", typeJSON, `{"agent":"a","machine":"m","cause":"ok","ended_at":"`+at(-time.Hour-time.Second)+`"}`, "Date", date).is(200, "late", 0)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","ended_at":"`+at(-time.Hour)+`"}`).is(200, "late", 1)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","ended_at":"`+at(5*time.Second)+`"}`).is(200, "late", 0)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","age_ms":0,"ended_at":"`+at(-time.Hour)+`"}`).is(200, "late", 0)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok","ended_at":"`+at(25*time.Hour)+`"}`).problem(422, "ended_at", "in the future")
}

func TestPermits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.post("/v1/permits", `{"agent":"a","machine":"gpu-box","model":"m","request_id":"r1","timout_ms":5}`).
		is(200, "allowed", true, "probe", false, "state", "closed", "expires_at", nil, "reason", nil, "warnings.0.path", "timout_ms").says("timeout_ms")
	plain := a.json("permit").(string)
	if w.disk.waits.Load() != 0 {
		t.Errorf("a plain permit waited for the disk")
	}
	w.trip("gpu-box")
	waits := w.disk.waits.Load()
	w.post("/v1/permits", `{"agent":"a","machine":"gpu-box","model":"m"}`).
		is(200, "allowed", false, "permit", nil, "state", "open", "reason", "open", "retry_at", "2026-03-01T14:02:30.250Z", "retry_after_ms", 30000,
			"breakers.0.name", gpuErrors, "breakers.0.rule", "errors", "breakers.0.state", "open", "breakers.0.cause", "refused", "breakers.0.opened_at", "2026-03-01T14:02:00.250Z")
	if w.disk.waits.Load() != waits {
		t.Errorf("a refusal waited for the disk")
	}
	w.pass(30*time.Second + 100*time.Microsecond)
	probe := w.post("/v1/permits", `{"agent":"a","machine":"gpu-box","model":"m","timeout_ms":5000}`).
		is(200, "allowed", true, "probe", true, "state", "half_open", "expires_at", "2026-03-01T14:02:45.250Z").json("permit").(string)
	if w.disk.waits.Load() != waits+1 {
		t.Errorf("a probe did not wait for the disk")
	}
	w.post("/v1/permits", `{"agent":"b","machine":"gpu-box","model":"m"}`).is(200, "allowed", false, "reason", "probe_in_flight", "retry_after_ms", 5000)
	w.post("/v1/permits/"+probe+"/extend", `{"timeout_ms":60000}`).is(200, "expires_at", "2026-03-01T14:03:40.250Z")
	w.do("POST", "/v1/permits/"+probe+"/release", "", "").is(200, "released", true, "duplicate", false)
	w.do("POST", "/v1/permits/"+probe+"/release", "", "").is(200, "released", false, "duplicate", true)
	w.post("/v1/permits/"+probe+"/extend", `{"timeout_ms":60000}`).problem(409, "lease is over")
	w.post("/v1/permits/"+plain+"/extend", `{"timeout_ms":60000}`).is(200, "expires_at", nil)
	w.post("/v1/permits/nonsense/release", ``).problem(404, "not one of this pool's")
	w.post("/v1/permits/"+probe+"/extend", `{}`).problem(422, "timeout_ms: is missing")
	w.post("/v1/permits/"+probe+"/extend", `{"timeout_ms":"x"}`).problem(422, "a number of milliseconds is needed")
	w.post("/v1/permits/"+probe+"/extend", `{"timeout":1}`).problem(422, "timeout_ms")
	w.post("/v1/permits", `{"machine":"m"}`).problem(422, "agent: is missing")
	w.post("/v1/permits", `{`).problem(400, "line 1, column 2")
	w.post("/v1/permits", ``).problem(422, "agent: is missing")

	w.disk.broken.Store(true) // a probe is granted all the same, after AckTimeout
	w.post("/v1/permits", `{"agent":"b","machine":"gpu-box","model":"m"}`).is(200, "allowed", true, "probe", true)
}

func TestReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.report("mac-mini", "ok", 1)
	w.trip("gpu-box")
	w.get("/v1/circuits").is(200, "circuits.0.machine", "gpu-box", "circuits.0.state", "open", "circuits.1.machine", "mac-mini", "circuits.1.state", "closed")
	w.get("/v1/circuits?state=open,half_open").is(200, "circuits.0.machine", "gpu-box", "circuits.0.retry_after_ms", 30000)
	w.get("/v1/circuits?machine=none").says(`{"circuits":[]}`)
	w.get("/v1/breakers").is(200, "breakers.0.name", gpuErrors, "breakers.1.name", "errors{machine=mac-mini,model=m}")
	w.get("/v1/breakers?state=closed").is(200, "breakers.0.machine", "mac-mini")
	w.get("/v1/breakers?state=broken").problem(400, "known are closed, half_open, open")
	w.get("/v1/breakers?machin=x").problem(400, "machin", "machine")
	w.get(breakerPath(gpuErrors)).is(200, "name", gpuErrors, "state", "open", "cause", "refused", "incident_id", 1, "ref", "001", "last_failure.agent", "coder-1",
		"last_failure.error", "connection refused", "last_failure.duration_ms", 12, "opened_at", "2026-03-01T14:02:00.250Z")
	w.get(breakerPath("errors{machine=new,model=m}")).problem(404, "has not been seen")
	w.get(breakerPath("errors")).problem(400, "the braces are missing")
	w.get("/v1/rules").is(200, "rules.0.name", "errors", "rules.0.cooldown.first", "30s")
	w.get("/v1/rules?x=1").problem(400, "there is none here")

	w.post("/v1/outcomes", `{"agent":"a","machine":"host:8080/v1","model":"meta/llama, {70b}","cause":"ok"}`).is(200)
	name := breaker.Name("errors", breaker.Labels{Machine: "host:8080/v1", Model: "meta/llama, {70b}"})
	w.get(breakerPath(name)).is(200, "name", name, "model", "meta/llama, {70b}")
}

// A control on a breaker that nothing has been heard of says so.
func TestControlsOfTheUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.post("/v1/outcomes", `{"agent":"a","machine":"gpu-box","model":"m","cause":"ok"}`).is(200)
	hold := func(name string) answer {
		return w.do("POST", breakerPath(name)+"/hold-open", typeJSON, "")
	}
	misspelt := strings.Replace(gpuErrors, "gpu-box", "gpu-bx", 1)
	hold(misspelt).is(200, "state", "open", "warnings.0.path", "name", "warnings.0.message",
		"breaker "+misspelt+" is made by this: no call has been heard of that it counts; did you mean "+gpuErrors+"?")
	hold(misspelt).is(200, "warnings", nil)
	hold("errors{machine=elsewhere,model=x}").is(200, "warnings.0.message",
		"breaker errors{machine=elsewhere,model=x} is made by this: no call has been heard of that it counts")
	hold(strings.Replace(gpuErrors, "gpu-box", "10.0.0.9:11434", 1)).is(200, "name", gpuErrors, "warnings", nil) // an alias
}

func TestControls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Tokens = []Token{{Name: "anna", Secret: "s3cret", Scope: ScopeOperate | ScopeRead}}
	})
	order := func(op, body string) answer {
		return w.do("POST", breakerPath(gpuErrors)+"/"+op, typeJSON, body, "Authorization", "Bearer s3cret")
	}
	order("hold-open", `{"reason":"driver update","for_ms":60000}`).
		is(200, "state", "open", "reason", "held_open", "durable", true, "override.op", "hold-open", "override.actor", "anna",
			"override.reason", "driver update", "override.until", "2026-03-01T14:03:00.250Z", "retry_after_ms", 60000)
	order("hold-closed", ``).is(200, "state", "closed", "override.op", "hold-closed", "override.until", nil, "warnings", nil)
	order("observe", `{}`).is(200, "override.op", "observe")
	order("auto", `{}`).is(200, "state", "closed", "override", nil)
	order("reset", `{"reason":"again"}`).is(200, "state", "closed")
	order("reset", `{"for_ms":5}`).problem(422, "has no meaning for reset")
	order("hold-open", `{"for_ms":-5}`).problem(422, "for_ms", "must not be negative")
	order("hold-open", `{"reason":"a\u0000b"}`).problem(422, "control character")
	order("hold-open", `{"until":5}`).problem(422, "nearest known field")
	w.disk.broken.Store(true)
	order("reset", ``).is(202, "durable", false)
	w.do("POST", breakerPath("nosuch{machine=m}")+"/reset", typeJSON, "", "Authorization", "Bearer s3cret").problem(400, "unknown rule", "errors")
	order("destroy", ``).problem(404)
	var actors []string
	for _, tr := range w.engine.Drain().Transitions {
		actors = append(actors, tr.Reason+" "+tr.Actor)
	}
	if want := []string{"hold_open anna", "hold_closed anna", "observe anna", "auto anna", "reset anna", "reset anna"}; !slices.Equal(actors, want) {
		t.Errorf("transitions %q, want %q", actors, want)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.past.transitions = []breaker.Transition{{
		At: t0, Breaker: gpuErrors, Rule: "errors", Labels: breaker.Labels{Machine: "gpu-box", Model: "m"}, From: breaker.Closed, To: breaker.Open,
		Cause: breaker.Refused, Reason: breaker.ReasonTripped, Era: 44, Incident: 44, Actor: "coder-1", RetryAt: t0.Add(time.Minute),
		Evidence: &breaker.Evidence{Run: 3, Duration: 1500 * time.Microsecond, Causes: []breaker.CauseCount{{Cause: breaker.Refused, N: 3}}},
	}}
	w.past.incidents = []breaker.Incident{{ID: 44, Breaker: gpuErrors, Rule: "errors", OpenedAt: t0, Trips: 1}}
	w.get("/v1/transitions").is(200, "next_cursor", "next", "transitions.0.from_state", "closed", "transitions.0.to_state", "open", "transitions.0.at", "2026-03-01T14:02:00.250Z",
		"transitions.0.incident_id", 44, "transitions.0.ref", "01c", "transitions.0.evidence.duration_ms", 1.5, "transitions.0.evidence.causes.0.cause", "refused")
	w.get("/v1/incidents").is(200, "incidents.0.id", 44, "incidents.0.ref", "01c", "incidents.0.closed_at", nil, "next_cursor", nil).says(`"causes":[]`)
	w.get("/v1/transitions?since=2026-03-01T00:00:00%2B01:00&until=2026-03-02T00:00:00Z&machine=gpu-box&model=m&limit=7&cursor=abc").is(200)
	want := breaker.Filter{Since: time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC), Until: time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC), Machine: "gpu-box", Model: "m", Limit: 7, Cursor: "abc"}
	got := w.past.filter
	if !got.Since.Equal(want.Since) || !got.Until.Equal(want.Until) || got.Machine != want.Machine || got.Model != want.Model || got.Limit != want.Limit || got.Cursor != want.Cursor {
		t.Errorf("filter %+v, want %+v", got, want)
	}
	w.get("/v1/incidents").is(200)
	if w.past.filter.Limit != defaultPage {
		t.Errorf("default limit %d", w.past.filter.Limit)
	}
	w.get("/v1/transitions?since=yesterday").problem(400, "since", "RFC 3339")
	w.get("/v1/transitions?limit=0").problem(400, "1 to 1000")
	w.get("/v1/transitions?limit=1001").problem(400, "1 to 1000")
	w.get("/v1/transitions?cursor="+strings.Repeat("x", maxCursor+1)).problem(400, "cursor")
	w.get("/v1/transitions?state=open").problem(400, "state")
	w.past.err = fmt.Errorf("read page: %w", badCursorError{})
	w.get("/v1/transitions?cursor=zz").problem(400, "next_cursor")
	w.past.err = errors.New("dial tcp 10.0.0.1:5432: secret detail")
	a := w.get("/v1/incidents").problem(503, "the database does not answer")
	if strings.Contains(a.body, "secret detail") || a.header.Get("Retry-After") == "" {
		t.Errorf("answer %v %s", a.header, a.body)
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	var asked DigestRequest
	w := newWorld(t, func(o *Options) {
		o.Digest = func(_ context.Context, d DigestRequest) (string, []byte, error) {
			asked = d
			return "text/plain; charset=utf-8", []byte("a quiet day"), nil
		}
	})
	a := w.get("/v1/digest")
	if a.status != 200 || a.body != "a quiet day" || asked != (DigestRequest{24 * time.Hour, t0, "json"}) {
		t.Errorf("%d %s for %+v", a.status, a.body, asked)
	}
	w.get("/v1/digest?period=7d&until=2026-03-01T08:00:00Z&format=html")
	if asked != (DigestRequest{7 * 24 * time.Hour, time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC), "html"}) {
		t.Errorf("asked for %+v", asked)
	}
	w.get("/v1/digest?period=2w")
	if asked.Period != 14*24*time.Hour {
		t.Errorf("2w is %s", asked.Period)
	}
	for _, period := range []string{"x", "d", "-1d", "0s", "1s", "401d", "99999999999d", "24"} {
		w.get("/v1/digest?period="+period).problem(400, "period")
	}
	w.get("/v1/digest?format=gif").problem(400, "json, text, html")
	newWorld(t).get("/v1/digest").problem(501, "makes no digests")
}

func TestBeforeTheStateIsRestored(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{true, false} {
		w := shutWorld(t, func(o *Options) {
			o.StartOpen = open
			o.Health = func() []HealthLine { return []HealthLine{{Name: "database", Detail: "no answer for 8 s"}} }
		})
		w.get("/healthz").is(200, "status", "ok", "version", "test")
		if a := w.get("/readyz").problem(503, notReady); a.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
		w.post("/v1/outcomes", `{"agent":"a","machine":"m","cause":"ok"}`).problem(503, notReady)
		w.post("/v1/permits", `{"agent":"a","machine":"m"}`).is(200, "allowed", open, "state", "unknown", "permit", nil)
		w.post("/v1/permits", `{"agent":"a"}`).problem(422, "machine")
		for _, path := range []string{"/v1/circuits", "/v1/breakers", breakerPath(gpuErrors), "/v1/transitions", "/v1/incidents", "/v1/digest", "/v1/rules"} {
			w.get(path).problem(503, notReady)
		}
		w.get("/metrics").says("breakerbot_build_info")
		w.server.Open(Core{Engine: w.engine, Journal: w.disk, History: w.past})
		w.get("/readyz").is(200, "status", "ready", "checks.0.name", "database", "checks.0.ok", false, "checks.0.detail", "no answer for 8 s")
		w.post("/v1/permits", `{"agent":"a","machine":"m"}`).is(200, "allowed", true, "state", "closed")
	}
}

func TestUnknownPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.get("/v2/outcomes").problem(404, "/v1/outcomes", "/readyz")
	w.post("/v1/routes", `{}`).problem(404, "/v1/route")
	w.post("/v1/writes/job-7", `{}`).problem(405, "GET, PUT")
	if a := w.get("/v1/outcomes").problem(405, "POST"); a.header.Get("Allow") != "POST" {
		t.Errorf("Allow is %q", a.header.Get("Allow"))
	}
	w.do("DELETE", "/v1/breakers/x", "", "").problem(405, "GET is")
	if a := w.do("HEAD", "/healthz", "", ""); a.status != 200 {
		t.Errorf("HEAD: %d", a.status)
	}
	w.get("/openapi.yaml").says("openapi: 3.1.0")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.report("10.0.0.9:11434", "refused", 3)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","http_status":200,"id":"1","served":"cache"}`).is(200)
	w.post("/v1/outcomes", `{"agent":"a","machine":"m","http_status":200,"id":"1","served":"cache"}`).is(200, "duplicates", 1)
	w.post("/v1/permits", `{"agent":"a","machine":"gpu-box","model":"m"}`).is(200, "allowed", false)
	w.post("/v1/permits", `{"agent":"a","machine":"m","model":"m"}`).is(200, "allowed", true)
	w.pass(90 * time.Second)
	w.get("/metrics").says(
		`breakerbot_breaker_state{agent="",machine="gpu-box",model="m",provider="",rule="errors"} 2`,
		`breakerbot_open_seconds{agent="",machine="gpu-box",model="m",provider="",rule="errors"} 90`,
		`breakerbot_outcomes_total{cause="refused",class="transport",machine="gpu-box",model="m"} 3`,
		`breakerbot_outcomes_total{cause="ok",class="ok",machine="m",model=""} 1`,
		`breakerbot_served_total{machine="m",model="",served="cache"} 1`,
		`breakerbot_call_duration_seconds_count{machine="gpu-box",model="m",state="closed"} 2`,
		`breakerbot_permits_total{decision="open"} 1`,
		`breakerbot_permits_total{decision="granted"} 1`,
		`breakerbot_http_request_duration_seconds_count{code="200",route="POST /v1/outcomes"} 5`,
		"go_goroutines", "process_cpu_seconds_total", `breakerbot_build_info{version="test"} 1`)
	w.get("/metrics")
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestMetricSeriesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.MaxSeries = 60 })
	var body strings.Builder
	for i := range 500 {
		fmt.Fprintf(&body, `{"agent":"a","machine":"m%d","model":"x","http_status":200,"duration_ms":5}`+"\n", i)
	}
	w.do("POST", "/v1/outcomes", typeNDJSON, body.String()).is(200, "accepted", 500)
	w.report("gpu-box", "refused", 3)
	text := w.get("/metrics").body
	made := 0
	for line := range strings.Lines(text) {
		if strings.Contains(line, `machine="m`) && !strings.HasPrefix(line, "breakerbot_breaker_state") {
			made++
		}
	}
	if made > 60 {
		t.Errorf("%d series of agents' making, at most 60", made)
	}
	answer{t, 200, nil, text}.says(`breakerbot_outcomes_total{cause="ok",class="ok",machine="other",model="other"} 4`,
		`breakerbot_breaker_state{agent="",machine="gpu-box",model="m",provider="",rule="errors"} 2`, "breakerbot_breakers_hidden 442")
}

func TestPanicIsAProblem(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := newWorld(t, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		o.Digest = func(context.Context, DigestRequest) (string, []byte, error) { panic("out of paper") }
	})
	a := w.get("/v1/digest").problem(500, "the server's log says what")
	if strings.Contains(a.body, "paper") || !strings.Contains(log.String(), "out of paper") || !strings.Contains(log.String(), "server_test.go") {
		t.Errorf("answer %s, log %s", a.body, log.String())
	}
	w.get("/metrics").says(`code="500",route="GET /v1/digest"`)
}

func TestHTTPServerHasTimeouts(t *testing.T) {
	t.Parallel()
	s := HTTPServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.IdleTimeout <= 0 || s.WriteTimeout <= s.ReadTimeout || s.MaxHeaderBytes <= 0 {
		t.Errorf("time-outs are missing: %+v", s)
	}
}

// TestOverTheWire sends through a real connection what a recorder cannot show.
func TestOverTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = HTTPServer(w.handler, slog.New(slog.DiscardHandler))
	ts.Start()
	defer ts.Close()
	resp, err := ts.Client().Post(ts.URL+"/v1/outcomes", typeJSON, struct{ io.Reader }{bytes.NewReader(bytes.Repeat([]byte(" "), 50<<20))})
	if err == nil { // the server may have closed before all was sent
		defer resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("50 MB: %s", resp.Status)
		}
	}
	var answers sync.WaitGroup
	var allowed atomic.Int64
	w.trip("gpu-box")
	w.pass(time.Minute)
	for i := range 50 {
		answers.Go(func() {
			resp, err := ts.Client().Post(ts.URL+"/v1/permits", typeJSON, strings.NewReader(fmt.Sprintf(`{"agent":"a%d","machine":"gpu-box","model":"m"}`, i)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var g GrantBody
			if err := json.NewDecoder(resp.Body).Decode(&g); err != nil {
				t.Error(err)
			}
			if g.Allowed {
				allowed.Add(1)
			}
		})
	}
	answers.Wait()
	if n := allowed.Load(); n != 1 {
		t.Errorf("%d of 50 askers got the probe", n)
	}
}

func BenchmarkPostOutcome(b *testing.B) {
	benchmarkPost(b, `{"agent":"coder-1","machine":"gpu-box","model":"qwen3-30b","http_status":200,"duration_ms":812.5,"finish_reason":"stop","output_tokens":180}`, 1)
}

func BenchmarkPostOutcomeError(b *testing.B) {
	benchmarkPost(b, `{"agent":"coder-1","machine":"gpu-box","model":"qwen3-30b","http_status":500,"error":"{\"error\":{\"message\":\"The server had an error while processing your request\",\"type\":\"server_error\"}}","duration_ms":812.5}`, 1)
}

func BenchmarkPostOutcomes1000(b *testing.B) {
	var body strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&body, `{"agent":"coder-%d","machine":"gpu-box","model":"qwen3-30b","http_status":200,"duration_ms":812.5,"finish_reason":"stop","output_tokens":180}`+"\n", i%20)
	}
	benchmarkPost(b, body.String(), 1000)
}

func benchmarkPost(b *testing.B, body string, n int) {
	w := newWorld(b, func(o *Options) { o.Rate, o.Burst = 1e12, 1<<40 })
	kind := typeJSON
	if n > 1 {
		kind = typeNDJSON
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/v1/outcomes", strings.NewReader(body))
		r.Host = "localhost"
		r.Header.Set("Content-Type", kind)
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		if rec.Code != 200 {
			b.Fatal(rec.Body.String())
		}
		w.engine.Drain()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/outcome")
}
