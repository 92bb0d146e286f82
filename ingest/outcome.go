package ingest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"breakerbot/breaker"
)

// The bounds of an outcome's fields.
const (
	maxID         = 128 // bytes of id, request_id and idempotency_key
	maxPermit     = 512 // bytes
	maxWord       = 128 // bytes of error_type, error_code, operation, finish_reason
	maxResponse   = 64 << 10
	maxCount      = 1_000_000_000
	maxCostUSD    = 1_000_000
	maxCallTime   = 24 * time.Hour
	maxCallAge    = 31 * 24 * time.Hour
	maxClockAhead = 24 * time.Hour
)

var phaseNames = []string{"dns", "connect", "tls", "request", "headers", "stream", "done"}

// wireOutcome is an outcome as it was sent.
type wireOutcome struct {
	seen
	out        breaker.Outcome
	ageSet     bool
	endedAt    time.Time
	waitText   string
	hasWaitTxt bool
	fallback   value
	allowed    []allowedField
}

// outcomeFields are the fields of an outcome on the wire, in the order in which
// errors are told. The API description lists the same.
var outcomeFields = newFields(
	field[wireOutcome]{"agent", true, setLabel(func(w *wireOutcome) *string { return &w.out.Agent })},
	field[wireOutcome]{"machine", true, setLabel(func(w *wireOutcome) *string { return &w.out.Machine })},
	field[wireOutcome]{"model", false, setOptionalLabel(func(w *wireOutcome) *string { return &w.out.Model })},
	field[wireOutcome]{"provider", false, setOptionalLabel(func(w *wireOutcome) *string { return &w.out.Provider })},
	field[wireOutcome]{"id", false, setText(maxID, func(w *wireOutcome) *string { return &w.out.ID })},
	field[wireOutcome]{"cause", false, func(w *wireOutcome, v value) string { return readCause(v, &w.out.Cause) }},
	field[wireOutcome]{"http_status", false, func(w *wireOutcome, v value) string {
		n, message := readCount(v, 599)
		if message == "" && n != 0 && n < 100 || message != "" && v.isNumber() {
			message = fmt.Sprintf("is %s: a status from 100 to 599 is needed, or 0 for none", excerpt(string(v)))
		}
		w.HTTPStatus = int(n)
		return message
	}},
	field[wireOutcome]{"error", false, func(w *wireOutcome, v value) string {
		if !v.isString() {
			return wrongKind(v, "a string")
		}
		w.Error = v.text()
		return ""
	}},
	field[wireOutcome]{"error_type", false, setWord(func(w *wireOutcome) *string { return &w.ErrorType })},
	field[wireOutcome]{"error_code", false, setWord(func(w *wireOutcome) *string { return &w.ErrorCode })},
	field[wireOutcome]{"phase", false, func(w *wireOutcome, v value) string {
		word, message := readText(v, maxWord)
		if message == "" && word != "" && !slices.Contains(phaseNames, word) {
			message = fmt.Sprintf("is %q: known are %s", excerpt(word), strings.Join(phaseNames, ", "))
		}
		w.Phase = word
		return message
	}},
	field[wireOutcome]{"duration_ms", false, setMillis(maxCallTime, func(w *wireOutcome) *time.Duration { return &w.Duration })},
	field[wireOutcome]{"first_token_ms", false, setMillis(maxCallTime, func(w *wireOutcome) *time.Duration { return &w.FirstToken })},
	field[wireOutcome]{"age_ms", false, func(w *wireOutcome, v value) (message string) {
		w.out.Age, message = readMillis(v, maxCallAge)
		w.ageSet = true
		return message
	}},
	field[wireOutcome]{"ended_at", false, func(w *wireOutcome, v value) string {
		at, message := readTime(v)
		w.endedAt = at
		return message
	}},
	field[wireOutcome]{"retry_after_s", false, func(w *wireOutcome, v value) string {
		switch {
		case v.isString(): // a header as it came
			w.waitText, w.hasWaitTxt = v.text(), true
			return ""
		case v.isNumber():
			n, message := readNumber(v, "a number of seconds", maxRetryAfter.Seconds())
			w.retryAfter, w.retryAfterSet = clampWait(n*float64(time.Second)), true
			return message
		}
		return wrongKind(v, "a number of seconds or the text of a Retry-After header")
	}},
	field[wireOutcome]{"permit", false, setText(maxPermit, func(w *wireOutcome) *string { return &w.out.Permit })},
	field[wireOutcome]{"request_id", false, checkText(maxID)},
	field[wireOutcome]{"operation", false, setWord(func(w *wireOutcome) *string { return &w.Operation })},
	field[wireOutcome]{"stream", false, setBool(func(w *wireOutcome) *bool { return &w.Stream })},
	field[wireOutcome]{"stream_done", false, setBool(func(w *wireOutcome) *bool { return &w.StreamDone })},
	field[wireOutcome]{"finish_reason", false, setWord(func(w *wireOutcome) *string { return &w.FinishReason })},
	field[wireOutcome]{"output_tokens", false, setCount(func(w *wireOutcome) (*int64, *bool) { return &w.OutputTokens, &w.outputTokensSet })},
	field[wireOutcome]{"reasoning_tokens", false, setCount(func(w *wireOutcome) (*int64, *bool) { return &w.ReasoningTokens, nil })},
	field[wireOutcome]{"tool_calls", false, setCount(func(w *wireOutcome) (*int64, *bool) { return &w.ToolCalls, &w.toolCallsSet })},
	field[wireOutcome]{"response", false, func(w *wireOutcome, v value) string {
		if len(v) > maxResponse {
			return fmt.Sprintf("is %d bytes long: at most %d are allowed", len(v), maxResponse)
		}
		w.Response = v
		return ""
	}},
	field[wireOutcome]{"response_chars", false, setCount(func(w *wireOutcome) (*int64, *bool) { return &w.ResponseChars, &w.responseCharsSet })},
	field[wireOutcome]{"allowed", false, func(w *wireOutcome, v value) (message string) {
		w.allowed, message = readAllowed(v)
		return message
	}},
	field[wireOutcome]{"timeout_ms", false, setMillis(maxCallTime, func(w *wireOutcome) *time.Duration { return &w.Timeout })},
	field[wireOutcome]{"write", false, setBool(func(w *wireOutcome) *bool { return &w.out.Write })},
	field[wireOutcome]{"idempotency_key", false, setText(maxID, func(w *wireOutcome) *string { return &w.out.IdempotencyKey })},
	field[wireOutcome]{"served", false, func(w *wireOutcome, v value) string {
		word, message := readText(v, maxWord)
		if message == "" {
			if err := w.out.Served.UnmarshalText([]byte(word)); err != nil {
				message = err.Error()
			}
		}
		return message
	}},
	field[wireOutcome]{"fallback_from", false, func(w *wireOutcome, v value) string { w.fallback = v; return "" }},
	field[wireOutcome]{"cost_usd", false, func(w *wireOutcome, v value) (message string) {
		w.out.CostUSD, message = readNumber(v, "a number of US dollars", maxCostUSD)
		return message
	}},
)

var fallbackFields = newFields(
	field[breaker.Fallback]{"machine", false, setOptionalLabel(func(f *breaker.Fallback) *string { return &f.Machine })},
	field[breaker.Fallback]{"model", false, setOptionalLabel(func(f *breaker.Fallback) *string { return &f.Model })},
	field[breaker.Fallback]{"cause", false, func(f *breaker.Fallback, v value) string { return readCause(v, &f.Cause) }},
)

// askFields are the fields of the question for a permit.
var askFields = newFields(
	field[breaker.Ask]{"agent", true, setLabel(func(a *breaker.Ask) *string { return &a.Agent })},
	field[breaker.Ask]{"machine", true, setLabel(func(a *breaker.Ask) *string { return &a.Machine })},
	field[breaker.Ask]{"model", false, setOptionalLabel(func(a *breaker.Ask) *string { return &a.Model })},
	field[breaker.Ask]{"provider", false, setOptionalLabel(func(a *breaker.Ask) *string { return &a.Provider })},
	field[breaker.Ask]{"request_id", false, setText(maxID, func(a *breaker.Ask) *string { return &a.RequestID })},
	field[breaker.Ask]{"timeout_ms", false, setMillis(maxCallTime, func(a *breaker.Ask) *time.Duration { return &a.Timeout })},
	field[breaker.Ask]{"idempotency_key", false, setText(maxID, func(a *breaker.Ask) *string { return &a.IdempotencyKey })},
)

// Decoder turns what agents send into what the engine takes. The zero value is
// ready to use.
type Decoder struct {
	// Local tells whether a machine is one of the lab's own, whose short
	// Retry-After means a taken slot. Nil: none is.
	Local func(machine string) bool
	// Canonical maps an alias onto the name of its machine, under which Local and
	// Gates know it. Nil: every name is a machine's own.
	Canonical func(machine string) string
	// Gates are what answers have to pass before they count as ok. Nil: none; the
	// values that an outcome itself allows are checked all the same.
	Gates *Gates
}

// DecodeOutcome is the zero Decoder's Outcome.
func DecodeOutcome(raw json.RawMessage, now time.Time) (breaker.Outcome, []FieldError, []Warning) {
	return Decoder{}.Outcome(raw, now)
}

// DecodeAsk reads the question for a permit. Errors leave the question unusable.
func DecodeAsk(raw json.RawMessage) (breaker.Ask, []FieldError, []Warning) {
	if err := syntaxError(raw, 1); err != nil {
		return breaker.Ask{}, []FieldError{{Message: err.Error()}}, nil
	}
	var ask breaker.Ask
	rep := report{warnLeft: maxItemWarnings}
	askFields.decode(raw, &ask, &rep)
	return ask, rep.errors, rep.warnings
}

// Outcome reads one outcome and classifies it; now is the moment that an
// ended_at is held against. With errors the outcome must not be used; warnings
// are about fields that were left out.
func (d Decoder) Outcome(raw json.RawMessage, now time.Time) (breaker.Outcome, []FieldError, []Warning) {
	if err := syntaxError(raw, 1); err != nil {
		return breaker.Outcome{}, []FieldError{{Message: err.Error()}}, nil
	}
	o, _, errs, warnings := d.outcome(raw, now, maxItemWarnings)
	return o, errs, warnings
}

// outcome is Outcome for text that is known to be valid JSON, with a bound on
// the warnings. It also tells whether a gate refused the answer.
func (d Decoder) outcome(raw []byte, now time.Time, maxWarnings int) (o breaker.Outcome, refused bool, errs []FieldError, warnings []Warning) {
	var w wireOutcome
	rep := report{warnLeft: min(maxItemWarnings, maxWarnings)}
	outcomeFields.decode(raw, &w, &rep)
	if w.fallback != nil {
		rep.prefix = "fallback_from."
		if w.fallback.isObject() {
			fallbackFields.decode(w.fallback, &w.out.Fallback, &rep)
		} else {
			rep.prefix = ""
			rep.fail("fallback_from", wrongKind(w.fallback, "an object with machine, model and cause"))
		}
		rep.prefix = ""
	}
	if !w.endedAt.IsZero() && !w.ageSet {
		age := now.Sub(w.endedAt)
		switch {
		case age < -maxClockAhead:
			rep.fail("ended_at", fmt.Sprintf("is %s, in the future: at most %s ahead is allowed", w.endedAt.Format(time.RFC3339), spell(maxClockAhead)))
		case age > maxCallAge:
			rep.fail("ended_at", fmt.Sprintf("is %s: at most %s ago is allowed", w.endedAt.Format(time.RFC3339), spell(maxCallAge)))
		}
		w.out.Age = max(0, age)
	}
	w.ended = now.Add(-w.out.Age)
	if w.hasWaitTxt {
		wait, ok := retryAfterText(w.waitText, w.ended)
		if !ok {
			rep.fail("retry_after_s", fmt.Sprintf("is the string %q: a number of seconds or the text of a Retry-After header is needed", excerpt(w.waitText)))
		}
		w.retryAfter, w.retryAfterSet = wait, true
	}
	if len(rep.errors) > 0 {
		return breaker.Outcome{}, false, rep.errors, rep.warnings
	}
	switch o := &w.out; {
	case o.Write && o.IdempotencyKey == "":
		rep.warn("idempotency_key", "is missing: without one a write whose answer does not come cannot be held")
	case !o.Write && o.IdempotencyKey != "":
		rep.warn("write", "is not true: the idempotency_key has no effect on a call that is not marked as a write")
	}
	refused = w.finish(d)
	return w.out, refused, nil, rep.warnings
}

// finish names the cause and carries over what the engine wants to know. It
// tells whether a gate refused what would otherwise be ok.
func (w *wireOutcome) finish(d Decoder) (refused bool) {
	o := &w.out
	machine := o.Machine
	if d.Canonical != nil {
		machine = d.Canonical(machine)
	}
	w.local = d.Local != nil && d.Local(machine)
	switch o.Cause {
	case 0:
		if o.Served.Called() || w.HTTPStatus != 0 || w.Error != "" || w.ErrorType != "" || w.ErrorCode != "" {
			o.Cause = classify(&w.seen)
		} else {
			o.Cause = breaker.OK // a cache or a refusal has nothing to classify
		}
	case breaker.Slow, breaker.SlowFirstToken:
		o.Latency, o.Cause = o.Cause, breaker.OK
	default:
		w.status = w.HTTPStatus
		w.waitFor(bothEnds(w.Error))
	}
	if o.Cause != breaker.OK {
		o.RetryAfter = w.retryAfter
	}
	o.Duration, o.FirstToken, o.Timeout = w.Duration, w.FirstToken, w.Timeout
	o.HTTPStatus = w.HTTPStatus
	if o.Cause == breaker.OK && o.Served.Called() {
		cause, why := d.Gates.find(machine, o.Model).judge(&w.seen, w.allowed)
		if refused = cause != breaker.OK; refused {
			o.Cause, o.Latency = cause, 0
			if w.Error == "" {
				w.Error = why
			}
		}
	}
	if w.Error == "" && o.Cause != breaker.OK && (w.ErrorType != "" || w.ErrorCode != "") {
		w.Error = strings.TrimSpace(w.ErrorType + " " + w.ErrorCode)
	}
	o.Error = Evidence(w.Error)
	return refused
}

func setLabel[T any](place func(*T) *string) func(*T, value) string {
	return func(t *T, v value) string {
		if !v.isString() {
			return wrongKind(v, "a string")
		}
		s := v.text()
		if err := breaker.CheckLabel(s); err != nil {
			return err.Error()
		}
		*place(t) = s
		return ""
	}
}

// setOptionalLabel takes "" as not named.
func setOptionalLabel[T any](place func(*T) *string) func(*T, value) string {
	set := setLabel(place)
	return func(t *T, v value) string {
		if string(v) == `""` {
			return ""
		}
		return set(t, v)
	}
}

func setText[T any](limit int, place func(*T) *string) func(*T, value) string {
	return func(t *T, v value) (message string) {
		*place(t), message = readText(v, limit)
		return message
	}
}

func checkText(limit int) func(*wireOutcome, value) string {
	return func(_ *wireOutcome, v value) string { _, message := readText(v, limit); return message }
}

func setWord(place func(*wireOutcome) *string) func(*wireOutcome, value) string {
	return func(w *wireOutcome, v value) (message string) {
		*place(w), message = readWord(v, maxWord)
		return message
	}
}

func setBool(place func(*wireOutcome) *bool) func(*wireOutcome, value) string {
	return func(w *wireOutcome, v value) (message string) {
		*place(w), message = readBool(v)
		return message
	}
}

func setMillis[T any](most time.Duration, place func(*T) *time.Duration) func(*T, value) string {
	return func(t *T, v value) (message string) {
		*place(t), message = readMillis(v, most)
		return message
	}
}

func setCount(place func(*wireOutcome) (*int64, *bool)) func(*wireOutcome, value) string {
	return func(w *wireOutcome, v value) (message string) {
		n, given := place(w)
		*n, message = readCount(v, maxCount)
		if given != nil {
			*given = true
		}
		return message
	}
}

func readCause(v value, into *breaker.Cause) string {
	if !v.isString() {
		return wrongKind(v, "a string")
	}
	word := v.text()
	if word == "" {
		return ""
	}
	cause, err := breaker.ParseCause(word)
	if err != nil {
		if len(word) > maxExcerpt {
			_, err = breaker.ParseCause(excerpt(word))
		}
		return err.Error()
	}
	*into = cause
	return ""
}

func readTime(v value) (time.Time, string) {
	if !v.isString() {
		return time.Time{}, wrongKind(v, "an RFC 3339 time with zone")
	}
	at, err := time.Parse(time.RFC3339, v.text())
	if err != nil {
		return time.Time{}, fmt.Sprintf("is the string %q: an RFC 3339 time with zone is needed, such as 2026-03-01T14:02:00.250Z", excerpt(v.text()))
	}
	if at.Year() < 1970 || at.Year() > 2200 {
		return time.Time{}, fmt.Sprintf("is %s: a time of the years 1970 to 2200 is needed", excerpt(v.text()))
	}
	return at, ""
}
