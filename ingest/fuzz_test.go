package ingest

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"breakerbot/breaker"
)

// FuzzClassify holds that whatever an agent saw has a cause, that seeing it
// twice gives the same one, and that a key in its error text is never kept.
func FuzzClassify(f *testing.F) {
	for _, c := range signalCases {
		var o struct {
			Status   int             `json:"http_status"`
			Error    string          `json:"error"`
			Type     string          `json:"error_type"`
			Code     json.RawMessage `json:"error_code"`
			Phase    string          `json:"phase"`
			Finish   string          `json:"finish_reason"`
			Stream   bool            `json:"stream"`
			Response json.RawMessage `json:"response"`
		}
		if err := json.Unmarshal([]byte("{"+c.json+"}"), &o); err != nil {
			f.Fatal(err)
		}
		f.Add(o.Status, o.Error, o.Type, strings.Trim(string(o.Code), `"`), o.Phase, o.Finish, string(o.Response), o.Stream, uint8(len(o.Error)/2))
	}
	f.Add(0, strings.Repeat("a ", 4090), "", "", "", "", "", false, uint8(255))
	keys := []string{"sk-plantedSECRET0123456789", "Bearer plantedSECRET0123456789", "https://u:plantedSECRET@gpu-box/", "api_key=plantedSECRET"}
	f.Fuzz(func(t *testing.T, status int, text, typ, code, phase, finish, response string, stream bool, place uint8) {
		at := len(text) * int(place) / 255
		for at < len(text) && !utf8.RuneStart(text[at]) {
			at++
		}
		for _, key := range keys {
			text := text[:at] + " " + key + " " + text[at:]
			fields := map[string]any{"agent": "a", "machine": "m", "error": text, "error_type": typ, "error_code": code, "stream": stream}
			if status >= 100 && status <= 599 {
				fields["http_status"] = status
			}
			for _, name := range phaseNames {
				if name == phase {
					fields["phase"] = phase
				}
			}
			if json.Valid([]byte(response)) {
				fields["response"] = json.RawMessage(response)
			}
			fields["finish_reason"] = finish
			raw, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			o, errs, _ := DecodeOutcome(raw, t0)
			if errs != nil {
				return // a response that is too long or too deep
			}
			if o.Cause == 0 || o.Cause.String() == "" || o.Cause.Class() == breaker.ClassLatency {
				t.Fatalf("%s has the cause %d", raw, o.Cause)
			}
			if strings.Contains(o.Error, "plantedSECRET") {
				t.Fatalf("%q is kept of %q", o.Error, text)
			}
			if again, _, _ := DecodeOutcome(raw, t0); again != o {
				t.Fatalf("%s is %+v, then %+v", raw, o, again)
			}
		}
	})
}
