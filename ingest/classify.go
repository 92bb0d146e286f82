package ingest

import (
	"net/http"
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
	resetOnly        bool      // retryAfter is when some contingent is full again
	ended            time.Time // of the call: dates in waits count from it
	local            bool      // the machine is one of ours

	inside   bool      // the answer's status was a 2xx
	status   int       // the one that counts: of the answer, or of the error inside it
	rawText  string    // the error, bounded
	text     string    // the same in lower case, without stack and addresses: what phrases are looked for in
	trigrams *trigrams // of text; nil when there is none
	codes    []string  // every code and type known, lower case
	codeText string    // the same in one piece, for phrases
}

// classify finds the cause by the table of signals, and completes the wait
// that the error text states. The judgements that need history are made later
// by the engine: it may still find that a time-out was the caller's own.
func classify(s *seen) breaker.Cause {
	s.prepare()
	return signals[firstMatch(s, 0)].cause
}

// firstMatch is the first row from the given one on that matches; the last row
// always does.
func firstMatch(s *seen, from int) int {
	for ; from < len(signals)-1 && !signals[from].matches(s); from++ {
	}
	return from
}

func (g *signal) matches(s *seen) bool {
	if g.list != nil && s.text == "" || g.codes != nil && s.codes == nil {
		return false // spares most calls most of the table
	}
	return g.status.hold(s.status) &&
		(g.codes == nil || slices.ContainsFunc(s.codes, func(c string) bool { return slices.Contains(g.codes, c) })) &&
		(g.phases == nil || slices.Contains(g.phases, s.Phase)) &&
		(g.finishes == nil || slices.Contains(g.finishes, s.FinishReason)) &&
		(g.list == nil || g.list.in(s)) &&
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
	gist := ""
	if text := strings.TrimSpace(s.Error); !noError[text] {
		s.rawText, gist = bothEnds(text), bothEnds(withoutStack(text))
	}
	s.addCode(s.ErrorType)
	s.addCode(s.ErrorCode)
	s.inside = s.status/100 == 2
	if s.rawText == "" && s.Response != nil && (s.inside || s.status == 0) {
		s.rawText = errorInside(s.Response)
		gist = bothEnds(s.rawText)
	}
	embedded := 0
	if body := jsonBody(s.rawText); body != nil {
		embedded = s.readBody(body, 0)
	}
	lower := lowerASCII(gist)
	for _, lead := range codeLeads {
		if _, after, found := strings.Cut(lower, lead); found {
			end := 0
			for end < len(after) && isWordByte(after[end]) {
				end++
			}
			s.addCode(after[:end])
		}
	}
	s.text = withoutAddresses(lower)
	if s.text != "" {
		s.trigrams = new(trigrams)
		s.trigrams.add(s.text)
	}
	s.codeText = strings.Join(s.codes, " ")
	if (s.inside || s.status == 0) && hasError(s) {
		for _, code := range s.codes {
			if n, err := strconv.Atoi(code); err == nil && 400 <= n && n <= 599 {
				embedded = n
			}
		}
		if embedded == 0 {
			embedded = statusInWords(gist, lower)
		}
		// The error inside a 200 is judged as if it had come without a status,
		// or with the one that it states.
		s.status = embedded
	}
	if s.rawText != "" {
		s.waitFor(s.rawText)
	}
}

// waitFor takes the wait that an error text states, if it is the longer one.
// When a contingent is full again matters only to who ran into its limit.
func (s *seen) waitFor(text string) {
	wait, isReset, ok := waitInText(text, s.ended)
	switch {
	case !ok || s.retryAfterSet && wait <= s.retryAfter:
	case isReset && s.status != 0 && s.status != 429 && s.status != 503 && s.status != 529:
	default:
		s.resetOnly = isReset && !s.retryAfterSet
		s.retryAfter, s.retryAfterSet = wait, true
	}
}

// codeLeads are the words before the codes that gRPC and the clients of AWS put
// into their sentences.
var codeLeads = []string{"rpc error: code = ", "statuscode.", "error occurred ("}

// noError are the texts and codes by which agents say that there was none.
var noError = words("", "0", "200", "none", "None", "null", "nil", "<nil>", "undefined", "ok", "OK", "success")

// addCode adds a code or a type, of a class with its modules also the bare
// name, and each also without its underscores: whether it is httpx.ReadTimeout
// or ReadTimeout, RESOURCE_EXHAUSTED or ResourceExhausted is the client's habit.
func (s *seen) addCode(code string) {
	if noError[code] || code == "error" {
		return
	}
	add := func(code string) {
		if code != "" && !slices.Contains(s.codes, code) {
			s.codes = append(s.codes, code)
		}
	}
	bare := code[strings.LastIndexByte(code, '.')+1:]
	add(code)
	add(bare)
	if strings.IndexByte(bare, '_') >= 0 {
		add(strings.ReplaceAll(bare, "_", ""))
	}
}

// bothEnds bounds an error text to maxErrorText: the message of a trace stands
// at its end, that of a log at its beginning.
func bothEnds(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return text[:maxErrorText/2] + "\n" + text[len(text)-maxErrorText/2+1:]
}

// withoutStack is an error text without the lines of a stack trace: the names of
// functions and the lines of code in it are nobody's error.
func withoutStack(text string) string {
	python := strings.Contains(text, "Traceback (most recent call last)")
	if !python && !strings.Contains(text, "\n    at ") && !strings.Contains(text, "\n\tat ") {
		return text
	}
	var b strings.Builder
	b.Grow(len(text))
	for line := range strings.Lines(text) {
		inner := line
		if python { // an exception group draws its branches with | and +
			if bare := strings.TrimLeft(line, " |+-"); strings.HasPrefix(strings.TrimLeft(line, " "), "|") {
				inner = line[strings.LastIndexByte(line[:len(line)-len(bare)], '|')+1:]
				inner = strings.TrimPrefix(inner, " ")
			}
		}
		if python && strings.HasPrefix(inner, "  ") || strings.HasPrefix(strings.TrimLeft(inner, " \t"), "at ") {
			continue
		}
		b.WriteString(inner)
	}
	return b.String()
}

// withoutAddresses is a text in lower case without its URLs and the names of
// hosts: a machine may be called rate-limit-proxy, and a path have a timeout.
func withoutAddresses(lower string) string {
	for _, lead := range addressLeads {
		if !strings.Contains(lower, lead) {
			continue
		}
		var b strings.Builder
		b.Grow(len(lower))
		rest := lower
		for {
			before, after, found := strings.Cut(rest, lead)
			b.WriteString(before)
			if !found {
				break
			}
			b.WriteString(lead)
			end := strings.IndexAny(after, " \t\r\n\"'<>,;)]}\\")
			if end < 0 {
				end = len(after)
			}
			if strings.HasSuffix(after[:end], ":") { // "lookup gpu-box: no such host"
				end--
			}
			rest = after[end:]
		}
		lower = b.String()
	}
	return lower
}

var addressLeads = []string{"://", "dial tcp: lookup ", "host='", "with url: ", "getaddrinfo enotfound ", "getaddrinfo eai_again ", "cannot connect to host ", "could not resolve host: ", "failed to connect to "}

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

// statusLeads are the words before a status in the sentences of clients.
var statusLeads = []string{"error code", "status code", "statuscode", "status", "code", "http", "https", "http error", "server error", "client error", "response", "returned error", "returned an error", "api error", "googleapi: error"}

// statusInWords finds a status in the words of a client library, such as
// "Error code: 429 - {…}", "502 Bad Gateway" or "429, message='Too Many Requests'"; 0
// when there is none. Text is what lower is with its capitals: clients of
// OpenAI put the server's sentence behind the bare number.
func statusInWords(text, lower string) int {
	for i := 0; i+3 <= len(lower); i++ {
		if lower[i] != '4' && lower[i] != '5' || !isDigit(lower[i+1]) || !isDigit(lower[i+2]) || i > 0 && isWordByte(lower[i-1]) || i+3 < len(lower) && isWordByte(lower[i+3]) {
			continue
		}
		if afterLead(lower[:i]) || beforeReason(lower, i) || startsStatus(text, lower, i) || strings.HasPrefix(lower[i+3:], " error responses") {
			n, _ := strconv.Atoi(lower[i : i+3])
			return n
		}
		i += 2
	}
	return 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// afterLead tells that before ends with one of statusLeads and what stands
// between a name and its value.
func afterLead(before string) bool {
	before = before[max(0, len(before)-leadSpan):]
	lead := strings.TrimRight(strings.TrimRight(before, `"'(`), " :=")
	if len(lead) == len(before) || lead == "" {
		return false
	}
	lead = strings.TrimRight(lead, `"'`)
	if i := strings.LastIndexByte(lead, '/'); i >= 0 && strings.Trim(lead[i+1:], "0123456789.") == "" {
		lead = lead[:i] // http/1.1
	}
	for _, word := range statusLeads {
		if strings.HasSuffix(lead, word) && (len(lead) == len(word) || !isWordByte(lead[len(lead)-len(word)-1])) {
			return true
		}
	}
	return false
}

// leadSpan is more than the longest lead and what follows it, in bytes.
const leadSpan = 40

// beforeReason tells that the number at i is followed by the reason phrase of
// the status that it then is: "[400 Bad Request]", "404 (Not Found)".
func beforeReason(lower string, i int) bool {
	n, _ := strconv.Atoi(lower[i : i+3])
	reason := lowerASCII(http.StatusText(n))
	return reason != "" && strings.HasPrefix(strings.TrimLeft(lower[i+3:], " :()"), reason)
}

// startsStatus tells that the number at i begins the text, after the class of
// the error if any, and that what follows makes it a status.
func startsStatus(text, lower string, i int) bool {
	if i > 0 {
		class, ok := strings.CutSuffix(lower[:i], ": ")
		if !ok || strings.ContainsFunc(class, func(r rune) bool { return r != '.' && (r >= 0x80 || !isWordByte(byte(r))) }) {
			return false
		}
	}
	rest := strings.TrimLeft(lower[i+3:], " :")
	if strings.HasPrefix(rest, ", message=") {
		return true // aiohttp
	}
	if rest == "" || len(rest) == len(lower)-i-3 {
		return false
	}
	if strings.HasPrefix(rest, "server error") || strings.HasPrefix(rest, "client error") || strings.HasPrefix(rest, "status code") {
		return true
	}
	n, _ := strconv.Atoi(lower[i : i+3])
	first := text[len(text)-len(rest)]
	return (http.StatusText(n) != "" || n >= 520) && (first == '{' || 'A' <= first && first <= 'Z')
}
