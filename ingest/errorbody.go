package ingest

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// maxBodies is how many braces in an error text are tried as the beginning of
// its body.
const maxBodies = 4

// jsonBody is the first JSON object in an error text, or the first one that is
// one once it is read as Python prints it: the clients of OpenAI and Anthropic
// say "Error code: 429 - {'error': {'code': None}}". Nil when there is none.
func jsonBody(text string) []byte {
	from := 0
	for range maxBodies {
		i := strings.IndexByte(text[from:], '{')
		if i < 0 {
			return nil
		}
		from += i
		if end := objectEnd(text[from:], false); end > 0 && json.Valid([]byte(text[from:from+end])) {
			return bounded([]byte(text[from : from+end]))
		}
		if end := objectEnd(text[from:], true); end > 0 {
			if body := fromRepr(text[from : from+end]); json.Valid(body) {
				return bounded(body)
			}
		}
		from++
	}
	return nil
}

// wholeBody is text as a JSON object, nil when it is none.
func wholeBody(text string) []byte {
	if !strings.HasPrefix(text, "{") || !json.Valid([]byte(text)) {
		return nil
	}
	return bounded([]byte(text))
}

func bounded(body []byte) []byte {
	if _, depth := valueEnd(body, 0); depth > maxDepth {
		return nil
	}
	return body
}

// objectEnd gives the end of the object that text begins with, as far as its
// brackets tell, 0 when it does not end. With single, ' quotes like ".
func objectEnd(text string, single bool) int {
	open := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '{' || c == '[':
			open++
		case c == '}' || c == ']':
			if open--; open == 0 {
				return i + 1
			}
		case c == '"' || c == '\'' && single:
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return 0
}

// fromRepr writes a dict, as Python prints it, as JSON. What is no plain value,
// such as an object in angle brackets, is left as it is and no JSON.
func fromRepr(text string) []byte {
	body := make([]byte, 0, len(text)+16)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"' || c == '\'':
			body = append(body, '"')
			for i++; i < len(text) && text[i] != c; i++ {
				switch {
				case text[i] == '"':
					body = append(body, '\\', '"')
				case text[i] < ' ':
					body = append(body, ' ')
				case text[i] != '\\' || i+1 == len(text):
					body = append(body, text[i])
				default:
					i++
					body = appendEscape(body, text[i])
				}
			}
			body = append(body, '"')
		case 'A' <= c && c <= 'Z':
			rest := text[i:]
			for _, word := range [...][2]string{{"None", "null"}, {"True", "true"}, {"False", "false"}} {
				if strings.HasPrefix(rest, word[0]) {
					body = append(body, word[1]...)
					i += len(word[0])
					break
				}
			}
			if len(rest) == len(text)-i {
				return nil
			}
			i--
		default:
			body = append(body, c)
		}
	}
	return body
}

func appendEscape(body []byte, c byte) []byte {
	switch c {
	case '\'':
		return append(body, '\'')
	case 'x':
		return append(body, `\u00`...) // two digits follow
	case '"', '\\', 'n', 'r', 't', 'u':
		return append(body, '\\', c)
	}
	return append(body, '\\', '\\', c)
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
				if word := v.text(); len(word) <= maxWord {
					s.addCode(lowerASCII(word))
				}
			case v.isNumber():
				if n, err := strconv.Atoi(string(v)); err == nil && 400 <= n && n <= 599 {
					status = n
				} else if err == nil {
					s.addCode(strconv.Itoa(n))
				}
			}
		case "error", "errors", "details", "detail", "response", "innererror", "metadata", "violations", "body", "data", "choices":
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

// apiObjects are the values of a member called object that the bodies of APIs
// have: beside it, an error is one whatever else is there.
var apiObjects = words("error", "response", "chat.completion", "chat.completion.chunk", "text_completion")

// errorInside finds the error that the body of a 200 may hold instead of an
// answer: an error object, an error event or a last line with one. It gives
// the text of that error, "" when there is none. An answer that talks about
// errors, or quotes a stream in which one came, is no error.
func errorInside(response value) string {
	if response.isObject() {
		if isErrorBody(response, false) {
			return string(response)
		}
		return ""
	}
	if !response.isString() {
		return ""
	}
	text := strings.TrimSpace(response.text())
	switch {
	case isEventStream(text):
		return errorEvent(text)
	case strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}"):
		last := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
		for _, candidate := range []string{text, last} {
			if body := wholeBody(candidate); body != nil && isErrorBody(body, false) {
				return candidate
			}
		}
	}
	return ""
}

var eventField = regexp.MustCompile(`^(?:(?:data|event|id|retry|error):|:)`)

// isEventStream tells that each line of text is one of a stream of
// server-sent events.
func isEventStream(text string) bool {
	if !eventField.MatchString(text) {
		return false
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !eventField.MatchString(line) {
			return false
		}
	}
	return true
}

// errorEvent is the first error in a stream of server-sent events.
func errorEvent(text string) string {
	failed := false
	for line := range strings.Lines(text) {
		name, data, _ := strings.Cut(strings.TrimSpace(line), ":")
		data = strings.TrimSpace(data)
		switch name {
		case "event":
			failed = data == "error" || data == "response.failed"
		case "error":
			return data
		case "data":
			if failed {
				return data
			}
			if strings.Contains(data, "error") || strings.Contains(data, "response.failed") {
				if body := wholeBody(data); body != nil && isErrorBody(body, true) {
					return data
				}
			}
		}
	}
	return ""
}

// isErrorBody tells whether an object is an error and no answer; an event, or
// the body of an API, may have other members beside its error.
func isErrorBody(object value, event bool) bool {
	isError, only := false, true
	eachMember(object, func(key []byte, v value) {
		only = only && errorKeys[string(key)]
		switch string(key) {
		case "error":
			isError = isError || v.isObject() || v.isString() && v.text() != ""
		case "type":
			isError = isError || v.isString() && (v.text() == "error" || event && v.text() == "response.failed")
		case "object":
			event = event || v.isString() && apiObjects[v.text()]
			isError = isError || v.isString() && v.text() == "error"
		case "choices":
			isError = isError || anyError(v)
		}
	})
	return isError && (only || event)
}

// anyError tells whether one of the choices of an answer is an error instead.
func anyError(choices value) (found bool) {
	if choices.isArray() {
		each(choices, func(choice value) bool {
			if choice.isObject() {
				eachMember(choice, func(key []byte, v value) { found = found || string(key) == "error" && v.isObject() })
			}
			return !found
		})
	}
	return found
}
