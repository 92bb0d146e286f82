package ingest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestWaitDialects is about each way in which a wait is stated, alone and
// beside another one; t0 is 2026-03-01 14:02:00.25 UTC.
func TestWaitDialects(t *testing.T) {
	t.Parallel()
	const quarter = 250 * time.Millisecond
	for _, c := range []struct {
		fields, text string
		want         time.Duration
	}{
		// In words.
		{"", "Please try again in 1m30s.", 90 * time.Second},
		{"", "Please try again in 7m12.5s. Visit https://example.com", 7*time.Minute + 12500*time.Millisecond},
		{"", "Please try again in 1h2m3s", time.Hour + 2*time.Minute + 3*time.Second},
		{"", "Please try again in 2 hours and 5 minutes.", 2*time.Hour + 5*time.Minute},
		{"", "Please try again in 1 minute, 30 seconds", 90 * time.Second},
		{"", "Please retry in 36.180384437s.", 36180384437},
		{"", "Please retry after 26 seconds.", 26 * time.Second},
		{"", "Rate limited, retry after 17", 17 * time.Second},
		{"", "Too many requests, please wait 60 seconds before trying again.", time.Minute},
		{"", "Please wait at least 5 min", 5 * time.Minute},
		{"", "Your limit resets in 3h", 3 * time.Hour},
		{"", "will be available again in 20m", 20 * time.Minute},
		{"", "You will regain access on 2026-03-02 at 00:00 UTC.", 10*time.Hour - 2*time.Minute - quarter},
		{"", "try again in 20s, or try again in 50s, or try again in 30s", 50 * time.Second},

		{"", "Please try again in 1m12.5s.", 72500 * time.Millisecond},
		{"", "try again in 449.999999ms", 449999999 * time.Nanosecond},
		{"", "Request was throttled. Expected available in 86 seconds.", 86 * time.Second},
		{"", "request reached max request: 3, please try again after 1 seconds", time.Second},
		{"", "Too many requests. Try again at 2026-03-01T14:03:30Z.", 90*time.Second - quarter},
		{"", "Your limit will reset at 2026-03-01T14:03:30.25Z", 90 * time.Second},
		{"", "Claude AI usage limit reached|1772373780", time.Minute - quarter},

		// As fields and headers.
		{"", `{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}]}}`, 36 * time.Second},
		{"", `{'error': {'details': [{'retryDelay': '36.5s'}]}}`, 36500 * time.Millisecond},
		{"", `{"error":{"message":"{\"retryDelay\": \"36s\"}"}}`, 36 * time.Second},
		{"", "retry_delay {\n  seconds: 36\n}", 36 * time.Second},
		{"", "headers: {'retry-after': '20', 'x-request-id': '99'}", 20 * time.Second},
		{"", "Retry-After: 20 x-request-id: 99", 20 * time.Second},
		{"", "map[Retry-After:[20] Server:[cloudflare]]", 20 * time.Second},
		{"", "retry-after-ms: 1500", 1500 * time.Millisecond},
		{"", `{"retry_after_seconds": 2.5}`, 2500 * time.Millisecond},
		{"", `{"retryAfterMs": 1500}`, 1500 * time.Millisecond},
		{"", `{"retryDelay":{"seconds":"36","nanos":0}}`, 36 * time.Second},
		{"", "[('retry-after', '20'), ('server', 'cloudflare')]", 20 * time.Second},
		{"", "[(b'Retry-After', b'20')]", 20 * time.Second},
		{"", "{retry-after=[20], server=[nginx]}", 20 * time.Second},
		{"", "retry-after-ms: 1500, retry-after: 2", 2 * time.Second},
		{"", "retry-after-ms: 2500, retry-after: 2", 2500 * time.Millisecond},
		{"", "retry-after: 0.35", 350 * time.Millisecond},
		{"", "Retry-After: 1772373780", time.Minute - quarter},
		{"", `{"error":{"type":"usage_limit_reached","resets_in_seconds":1200}}`, 20 * time.Minute},
		{"", `{"error":{"type":"usage_limit_reached","resets_at":1772373780}}`, time.Minute - quarter},
		{"", "Retry-After: Sun, 01 Mar 2026 14:03:30 GMT", 90*time.Second - quarter},
		{"", "Retry-After: Sun, 01 Mar 2026 14:00:00 GMT", 0},

		// When a contingent is full again.
		{"", "x-ratelimit-reset-requests: 1s, x-ratelimit-reset-tokens: 6m0s", 6 * time.Minute},
		{"", "x-ratelimit-reset-tokens: 7.66s", 7660 * time.Millisecond},
		{"", "anthropic-ratelimit-tokens-reset: 2026-03-01T14:03:30Z", 90*time.Second - quarter},
		{"", `{"headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1772373780000"}}`, time.Minute - quarter},
		{"", "X-RateLimit-Reset: 1772373780", time.Minute - quarter},
		{"", "RateLimit-Reset: 30", 30 * time.Second},
		{"", "ratelimit: limit=100, remaining=0, reset=30", 30 * time.Second},
		{"", "x-rate-limit-reset: 1772373780", time.Minute - quarter},
		{"", "x-ratelimit-reset-after: 1.5", 1500 * time.Millisecond},
		{"", "'x-ratelimit-reset-requests': '17ms'", 17 * time.Millisecond},
		{"", "X-RateLimit-Reset: 1741305600", 0},                                        // is over
		{"", "retry-after: 5, x-ratelimit-reset-tokens: 6m0s", 5 * time.Second},         // may be the contingent that is not used up
		{`"http_status": 500`, "x-ratelimit-reset-tokens: 6m0s", 0},                     // has nothing to do with it
		{`"http_status": 500`, "overheated, retry after 30 seconds", 30 * time.Second},  // has
		{`"cause": "server_error", "http_status": 500`, "x-ratelimit-reset: 360000", 0}, // the same for a cause that was named

		// Both: the longer one.
		{`"http_status": 429, "retry_after_s": 5`, "try again in 20s", 20 * time.Second},
		{`"http_status": 429, "retry_after_s": 30`, "try again in 20s", 30 * time.Second},
		{`"http_status": 429, "retry_after_s": "5"`, "try again in 20s", 20 * time.Second},
		{`"http_status": 429, "retry_after_s": "Sun, 01 Mar 2026 14:03:30 GMT"`, "try again in 20s", 90*time.Second - quarter},
		{`"http_status": 429, "retry_after_s": "Sun, 01 Mar 2026 14:03:30 GMT"`, "try again in 20m", 20 * time.Minute},
		{`"cause": "rate_limited", "retry_after_s": 5`, "try again in 20s", 20 * time.Second},
		{`"cause": "rate_limited", "retry_after_s": 30`, "try again in 20s", 30 * time.Second},

		// A field as it came; dates count from the end of the call.
		{`"retry_after_s": " 20 "`, "", 20 * time.Second},
		{`"retry_after_s": "1m30s"`, "", 90 * time.Second},
		{`"retry_after_s": "350ms"`, "", 350 * time.Millisecond},
		{`"retry_after_s": "2 minutes"`, "", 2 * time.Minute},
		{`"retry_after_s": "2026-03-01T14:03:30Z"`, "", 90*time.Second - quarter},
		{`"retry_after_s": "Sun, 01 Mar 2026 14:03:30 GMT", "age_ms": 60250`, "", 150 * time.Second},
		{`"retry_after_s": "Sun, 01 Mar 2026 14:03:30 GMT", "ended_at": "2026-03-01T14:01:00Z"`, "", 150 * time.Second},
		{`"age_ms": 60250`, "Retry-After: Sun, 01 Mar 2026 14:03:30 GMT", 150 * time.Second},

		{`"retry_after_s": "Sunday, 01-Mar-26 14:03:30 GMT"`, "", 90*time.Second - quarter},
		{`"retry_after_s": "Sun Mar  1 14:03:30 2026"`, "", 90*time.Second - quarter},
		{`"retry_after_s": "1772373780"`, "", time.Minute - quarter},

		// Absurd ones.
		{`"retry_after_s": "99999999999999"`, "", maxRetryAfter},
		{`"retry_after_s": "1e400"`, "", maxRetryAfter},
		{`"retry_after_s": "99999999999h"`, "", maxRetryAfter},
		{`"retry_after_s": "Fri, 31 Dec 2199 23:59:59 GMT"`, "", maxRetryAfter},
		{"", "try again in 99999999999999999999999999999999999999999999999999 days", maxRetryAfter},
		{"", "x-ratelimit-reset: 9999999999", maxRetryAfter},
		{`"retry_after_s": "Wed, 01 Jan 2020 00:00:00 GMT"`, "", 0},

		{`"retry_after_s": "Infinity"`, "", maxRetryAfter},
		{`"retry_after_s": "0"`, "", 0},
		{"", "retry-after: -5", 0},
		{"", "retry-after: 1772373000", 0}, // is over
		{"", `{"retryDelay": "-36s"}`, 0},
		{"", "try again in -5 seconds", 0},
		{"", "x-ratelimit-reset: -1", 0},

		// No waits.
		{"", "Retry after 3 attempts failed", 0},
		{"", "try again in a minute", 0},
		{"", "wait 5 requests, then come back", 0},
		{"", "await 20 s", 0},
		{"", "Timed out waiting 300 s for the runner", 0},
		{"", "reset 20 connections", 0},
		{"", "retry-after: soon", 0},
		{"", `{"retry_after": null, "status": 429}`, 0},
		{"", "Your limit resets at 14:03", 0}, // of which zone?
		{"", "try again at 3pm", 0},
	} {
		fields := c.fields
		if fields == "" {
			fields = `"http_status": 429`
		} else if c.text == "" || fields == `"age_ms": 60250` {
			fields += `, "http_status": 429`
		}
		raw := dialectSignal{fields: fields, text: c.text}.outcome(t)
		o, errs, _ := DecodeOutcome(raw, t0)
		if errs != nil || o.RetryAfter != c.want {
			t.Errorf("%s\n  waits %s %v, want %s", raw, o.RetryAfter, errs, c.want)
		}
	}
}

// TestWaitsAreBounded holds that no text at all makes a wait that is negative,
// or longer than the bound.
func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lead := rapid.SampledFrom([]string{"retry-after: ", "try again in ", "retryDelay\":\"", "x-ratelimit-reset: ", "retry_after_ms=", "wait ", ""}).Draw(t, "lead")
		text := lead + rapid.StringMatching(`[0-9.]{0,40} ?(ms|s|m|h|days|weeks|GMT|-)?[0-9hms.:TZ -]{0,30}`).Draw(t, "wait")
		for _, field := range []string{"error", "retry_after_s"} {
			raw, err := json.Marshal(map[string]any{"agent": "a", "machine": "m", "http_status": 429, field: text})
			if err != nil {
				t.Fatal(err)
			}
			if o, errs, _ := DecodeOutcome(raw, t0); errs == nil && (o.RetryAfter < 0 || o.RetryAfter > maxRetryAfter) {
				t.Fatalf("%s waits %s", raw, o.RetryAfter)
			}
		}
	})
}

// TestDurationsAreReadBack holds that every duration, as Go and most servers
// write it, is read as the same one.
func TestDurationsAreReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := time.Duration(rapid.Int64Range(1, int64(100*time.Hour/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
		for _, text := range []string{
			fmt.Sprintf("Please try again in %s.", want),
			fmt.Sprintf(`{"retryDelay": "%s"}`, want),
			fmt.Sprintf("retry_after_ms: %d", want.Milliseconds()),
			fmt.Sprintf("retry after %.3f seconds", want.Seconds()),
		} {
			got, _, ok := waitInText(text, t0)
			if !ok || (got-want).Abs() > time.Microsecond {
				t.Fatalf("%q waits %s, want %s", text, got, want)
			}
		}
	})
}
