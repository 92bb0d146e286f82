package ingest

import (
	"encoding/json"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"breakerbot/breaker"
)

const (
	// quotaWait is the wait from which on a quota is one: a shorter one is a rate.
	quotaWait = time.Hour
	// queueWait is the longest Retry-After with which a local server means its queue.
	queueWait = time.Second
	// maxRetryAfter bounds a wait that an error text states.
	maxRetryAfter = 366 * 24 * time.Hour
)

// seen is what an agent saw of one call, before it has a cause. The upper-case
// fields are the wire's, the others are worked out of them by prepare.
type seen struct {
	HTTPStatus      int
	Error           string
	ErrorType       string // lower case
	ErrorCode       string // lower case
	Phase           string
	Operation       string // lower case
	FinishReason    string // lower case
	Stream          bool
	StreamDone      bool
	OutputTokens    int64
	ReasoningTokens int64
	ToolCalls       int64
	ResponseChars   int64
	Response        value // nil when it was not sent
	Duration        time.Duration
	FirstToken      time.Duration
	Timeout         time.Duration

	outputTokensSet  bool
	toolCallsSet     bool
	responseCharsSet bool
	retryAfter       time.Duration
	retryAfterSet    bool
	local            bool // the machine is one of ours

	inside   bool     // the answer's status was a 2xx
	status   int      // the one that counts: of the answer, or of the error inside it
	rawText  string   // the error, bounded
	text     string   // the same in lower case
	codes    []string // every code and type known, lower case
	codeText string   // the same in one piece, for phrases
}

// classify finds the cause by the table of signals, and completes the wait
// that the error text states. The judgements that need history are made later
// by the engine: it may still find that a time-out was the caller's own.
func classify(s *seen) breaker.Cause {
	s.prepare()
	for i := range signals {
		if signals[i].matches(s) {
			return signals[i].cause
		}
	}
	return breaker.Unknown
}

func (g *signal) matches(s *seen) bool {
	if g.texts != nil && s.text == "" || g.codes != nil && s.codes == nil {
		return false // spares most calls most of the table
	}
	return g.status.hold(s.status) &&
		(g.codes == nil || slices.ContainsFunc(s.codes, func(c string) bool { return slices.Contains(g.codes, c) })) &&
		(g.phases == nil || slices.Contains(g.phases, s.Phase)) &&
		(g.finishes == nil || slices.Contains(g.finishes, s.FinishReason)) &&
		(g.texts == nil || phraseList(g.texts).in(s.text)) &&
		(g.when == nil || g.when(s))
}

func (c statuses) hold(status int) bool {
	if c.exact == nil && c.to == 0 && !c.none {
		return true
	}
	return status == 0 && c.none || status != 0 && (c.from <= status && status <= c.to || slices.Contains(c.exact, status))
}

// prepare works out status, codes and text: out of a JSON body in the error
// text, out of an error object in the response, out of a status in words.
func (s *seen) prepare() {
	s.status = s.HTTPStatus
	s.rawText = s.Error
	if len(s.rawText) > maxErrorText {
		s.rawText = s.rawText[:maxErrorText]
	}
	s.addCode(s.ErrorType)
	s.addCode(s.ErrorCode)
	s.inside = s.status/100 == 2
	if s.rawText == "" && s.Response != nil {
		s.rawText = errorInside(s.Response)
	}
	embedded := 0
	if body := jsonBody(s.rawText); body != nil {
		embedded = s.readBody(body, 0)
	}
	s.text = strings.ToLower(s.rawText)
	s.codeText = strings.Join(s.codes, " ")
	if (s.inside || s.status == 0) && hasError(s) {
		for _, code := range s.codes {
			if n, err := strconv.Atoi(code); err == nil && 400 <= n && n <= 599 {
				embedded = n
			}
		}
		if embedded == 0 {
			embedded = statusInWords(s.text)
		}
		// The error inside a 200 is judged as if it had come without a status,
		// or with the one that it states.
		s.status = embedded
	}
	if s.status/100 != 2 || s.text != "" {
		if wait, ok := waitInText(s.rawText); ok && (!s.retryAfterSet || wait > s.retryAfter) {
			s.retryAfter, s.retryAfterSet = wait, true
		}
	}
}

func (s *seen) addCode(code string) {
	if code != "" && !slices.Contains(s.codes, code) {
		s.codes = append(s.codes, code)
	}
}

func (s *seen) hasCode(set map[string]bool) bool {
	return slices.ContainsFunc(s.codes, func(c string) bool { return set[c] })
}

// begun tells that the first byte of an answer had come.
func (s *seen) begun() bool {
	return s.Phase == "stream" || s.FirstToken > 0 || s.inside
}

func (s *seen) hasText() bool {
	switch {
	case s.Response != nil:
		return !s.responseBlank()
	case s.responseCharsSet:
		return s.ResponseChars > 0
	}
	return s.outputTokensSet && s.OutputTokens > s.ReasoningTokens
}

func (s *seen) textKnown() bool { return s.Response != nil || s.responseCharsSet || s.outputTokensSet }
func (s *seen) textEmpty() bool { return !s.hasText() }

// responseBlank is for text only: an empty object is something that was said.
func (s *seen) responseBlank() bool {
	return s.Response.isString() && strings.TrimSpace(s.Response.text()) == ""
}

func (s *seen) calledTool() bool {
	if s.toolCallsSet {
		return s.ToolCalls > 0
	}
	switch s.FinishReason {
	case "tool_calls", "tool_use", "function_call", "tool_call":
		return true
	}
	return false
}

// expectsText is false for operations whose answers are not text.
func (s *seen) expectsText() bool {
	switch s.Operation {
	case "embeddings", "embedding", "embed", "rerank", "moderation", "image", "image_generation", "speech", "execute_tool":
		return false
	}
	return true
}

// sawAnything tells that an answer came, though no status was sent.
func (s *seen) sawAnything() bool {
	return s.Response != nil || s.FinishReason != "" || s.StreamDone || s.Phase == "done" || s.responseCharsSet && s.ResponseChars > 0 ||
		s.outputTokensSet && s.OutputTokens > 0 || s.toolCallsSet && s.ToolCalls > 0
}

// jsonBody is the JSON object or array that an error text is, or ends in.
func jsonBody(text string) []byte {
	i := strings.IndexAny(text, "{[")
	if i < 0 {
		return nil
	}
	body := []byte(strings.TrimSpace(text[i:]))
	if !json.Valid(body) {
		return nil
	}
	if _, depth := valueEnd(body, 0); depth > maxDepth {
		return nil
	}
	return body
}

// readBody takes codes and types out of an error body in the dialects of the
// providers, and gives the status that it states, 0 for none. Objects are
// followed only through the keys under which errors nest.
func (s *seen) readBody(body []byte, level int) (status int) {
	v := value(body)
	if level > 6 || len(s.codes) > 32 {
		return 0
	}
	if v.isArray() {
		each(body, func(element value) bool {
			if element.isObject() {
				status = max(status, s.readBody(element, level+1))
			}
			return true
		})
		return status
	}
	if !v.isObject() {
		return 0
	}
	eachMember(body, func(key []byte, v value) {
		switch string(key) {
		case "type", "code", "status", "error_type", "error_code", "reason", "quotaId":
			switch {
			case v.isString():
				if word := strings.ToLower(v.text()); len(word) <= 128 && word != "error" {
					s.addCode(word)
				}
			case v.isNumber():
				if n, err := strconv.Atoi(string(v)); err == nil && 400 <= n && n <= 599 {
					status = n
				} else if err == nil {
					s.addCode(strconv.Itoa(n))
				}
			}
		case "error", "errors", "details", "detail", "response", "innererror", "metadata", "violations", "body", "data":
			if v.isObject() || v.isArray() {
				if n := s.readBody(v, level+1); n != 0 {
					status = n
				}
			}
		}
	})
	return status
}

// errorKeys are the members that an error body may have; an object with any
// other member is an answer that happens to have a field called error.
var errorKeys = words("error", "type", "message", "code", "status", "request_id", "detail", "details", "object", "param", "id", "user_id", "error_type", "done")

// errorInside finds the error that the body of a 200 may hold instead of an
// answer: an error object, an error event or a last line with one. It gives
// the text of that error, "" when there is none.
func errorInside(response value) string {
	if response.isObject() {
		if isErrorBody(response) {
			return string(response)
		}
		return ""
	}
	if !response.isString() {
		return ""
	}
	text := strings.TrimSpace(response.text())
	if i := strings.Index(text, "event: error"); i == 0 || i > 0 && text[i-1] == '\n' {
		_, data, _ := strings.Cut(text[i:], "data:")
		return strings.TrimSpace(data)
	}
	last := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		for _, candidate := range []string{text, last} {
			if body := jsonBody(candidate); body != nil && body[0] == '{' && isErrorBody(body) {
				return candidate
			}
		}
	}
	return ""
}

func isErrorBody(object value) bool {
	isError, only := false, true
	eachMember(object, func(key []byte, v value) {
		only = only && errorKeys[string(key)]
		switch string(key) {
		case "error":
			isError = isError || v.isObject() || v.isString() && v.text() != ""
		case "type":
			isError = isError || v.isString() && v.text() == "error"
		}
	})
	return isError && only
}

var statusPattern = regexp.MustCompile(`(?:error code|status code|statuscode|status|code|https?(?:/[0-9.]+)?|http error|server error|client error|response)["']?[ :=]+["']?([45][0-9][0-9])\b`)
var leadingStatus = regexp.MustCompile(`^(?:[a-z0-9_.]+: )?([45][0-9][0-9])[ :]+([a-z].*)`)

// statusInWords finds a status in the words of a client library, such as
// "Error code: 429 - {…}" or "502 Bad Gateway"; 0 when there is none.
func statusInWords(lower string) int {
	if !strings.ContainsAny(lower, "45") {
		return 0
	}
	if m := statusPattern.FindStringSubmatch(lower); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	if m := leadingStatus.FindStringSubmatch(lower); m != nil {
		n, _ := strconv.Atoi(m[1])
		reason := strings.ToLower(http.StatusText(n))
		if reason != "" && strings.HasPrefix(m[2], reason) || strings.HasPrefix(m[2], "server error") || strings.HasPrefix(m[2], "client error") {
			return n
		}
	}
	return 0
}

var waitPattern = regexp.MustCompile(`(?:retry_?delay|retry[_ -]?after|try again (?:in|after)|retry (?:in|again in)|wait(?: for)?|available in|resets? in)((?:[_-](?:ms|milliseconds|s|secs|seconds))?)["']?[ :={"'~]*(?:seconds["']?[ :=]*)?(?:about |approximately )?([0-9][0-9a-z. ]{0,30})`)

var waitUnits = map[string]time.Duration{
	"ms": time.Millisecond, "millis": time.Millisecond, "millisecond": time.Millisecond, "milliseconds": time.Millisecond,
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
}

// waitInText finds the wait that an error text states, in the wordings of the
// providers; of several the longest.
func waitInText(text string) (time.Duration, bool) {
	lower := strings.ToLower(text)
	if !containsAny(lower, []string{"retry", "try again", "wait", "available in", "reset"}) {
		return 0, false
	}
	var longest time.Duration
	found := false
	for _, m := range waitPattern.FindAllStringSubmatch(lower, 8) {
		if wait, ok := parseWait(m[2], strings.TrimLeft(m[1], "_-")); ok {
			longest, found = max(longest, wait), true
		}
	}
	return longest, found
}

// parseWait reads numbers with units from the start of text, such as 1m30s or
// 20 seconds; a number without a unit has the given one, or seconds.
func parseWait(text, unit string) (time.Duration, bool) {
	var total float64
	found := false
	for {
		text = strings.TrimLeft(text, " ")
		n := 0
		for n < len(text) && (text[n] == '.' || '0' <= text[n] && text[n] <= '9') {
			n++
		}
		number, err := strconv.ParseFloat(strings.TrimRight(text[:n], "."), 64)
		if err != nil {
			return clampWait(total), found
		}
		text = strings.TrimLeft(text[n:], " ")
		n = 0
		for n < len(text) && 'a' <= text[n] && text[n] <= 'z' {
			n++
		}
		per, known := waitUnits[text[:n]]
		switch {
		case known:
			text = text[n:]
		case found: // a number of something else
			return clampWait(total), true
		default:
			if per = waitUnits[unit]; per == 0 {
				per = time.Second
			}
			text = ""
		}
		total += number * float64(per)
		found = true
	}
}

func clampWait(ns float64) time.Duration {
	if ns >= float64(maxRetryAfter) {
		return maxRetryAfter
	}
	return time.Duration(math.Round(ns))
}

// retryAfterText reads a Retry-After that came as text: seconds, a number with
// a unit, or an HTTP date, which counts from the moment ref.
func retryAfterText(text string, ref time.Time) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 0 && !math.IsInf(n, 0) {
		return clampWait(n * float64(time.Second)), true
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return min(d, maxRetryAfter), true
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(ref)), maxRetryAfter), true
	}
	return 0, false
}

// phraseList is a list of phrases, any of which will do.
type phraseList []string

func phrases(list ...string) phraseList { return list }

func words(list ...string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, word := range list {
		set[word] = true
	}
	return set
}

// in tells whether text, which is lower case, holds one of the phrases.
func (list phraseList) in(text string) bool {
	if text == "" {
		return false
	}
	for _, p := range list {
		if hasPhrase(text, p) {
			return true
		}
	}
	return false
}

// hasPhrase looks for p between word boundaries; a * at an end of p opens it.
func hasPhrase(text, p string) bool {
	openLeft, openRight := false, false
	if p[0] == '*' {
		openLeft, p = true, p[1:]
	}
	if p[len(p)-1] == '*' {
		openRight, p = true, p[:len(p)-1]
	}
	for from := 0; ; {
		i := strings.Index(text[from:], p)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(p)
		left := openLeft || start == 0 || !isWordByte(text[start-1]) || !isWordByte(p[0])
		right := openRight || end == len(text) || !isWordByte(text[end]) || !isWordByte(p[len(p)-1])
		if left && right {
			return true
		}
		from = start + 1
	}
}

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c >= 0x80
}
