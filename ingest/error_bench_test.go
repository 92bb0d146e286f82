package ingest

import (
	"encoding/json"
	"strings"
	"testing"
)

// BenchmarkDecodeError decodes failures of several shapes, short to long, and
// all of the dialects, beside a success in BenchmarkDecodeOutcome.
func BenchmarkDecodeError(b *testing.B) {
	const labels = `{"agent":"coder-1","machine":"gpu-box","model":"qwen3-30b","duration_ms":812.5,`
	for _, c := range []struct{ name, fields string }{
		{"status", `"http_status":503}`},
		{"refused", `"error":"dial tcp 10.0.0.9:11434: connect: connection refused"}`},
		{"500", `"http_status":500,"error":"{\"error\":{\"message\":\"The server had an error while processing your request\",\"type\":\"server_error\"}}"}`},
		{"429", `"http_status":429,"error":"{\"error\":{\"message\":\"Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000. Please try again in 2.4s.\",\"type\":\"tokens\",\"code\":\"rate_limit_exceeded\"}}"}`},
		{"key", `"http_status":401,"error":"Incorrect API key provided: sk-abcd1234efgh. Authorization: Bearer abcdef"}`},
		{"8k", `"http_status":500,"error":"` + strings.Repeat("a line of a log without a word in it. ", 215) + `"}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			raw := json.RawMessage(labels + c.fields)
			b.ReportAllocs()
			for b.Loop() {
				if _, errs, _ := DecodeOutcome(raw, t0); errs != nil {
					b.Fatal(errs)
				}
			}
		})
	}
	b.Run("dialects", func(b *testing.B) {
		var all []json.RawMessage
		for _, d := range dialects {
			for _, s := range d.signals {
				if s.text != "" {
					all = append(all, s.outcome(b))
				}
			}
		}
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if _, errs, _ := DecodeOutcome(all[n%len(all)], t0); errs != nil {
				b.Fatal(errs)
			}
			n++
		}
	})
}
