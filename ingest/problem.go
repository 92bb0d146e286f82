package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// FieldError says what is wrong with one field. Path is the field's name as it
// was sent, with [INDEX]. before it in a batch; it is empty for the whole value.
type FieldError struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// Error is path and message as one sentence.
func (e FieldError) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return e.Path + ": " + e.Message
}

// Warning says what was accepted though it is probably not meant so.
type Warning struct {
	Index   int    `json:"index"` // of the item in a batch
	Path    string `json:"path"`
	Message string `json:"message"`
}

// Rejected is one item of a batch that was not applied.
type Rejected struct {
	Index  int          `json:"index"`
	Errors []FieldError `json:"errors"`
}

// problem is an RFC 9457 answer, and the error that leads to it.
type problem struct {
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail,omitempty"`
	Errors   []FieldError `json:"errors,omitempty"`
	Rejected []Rejected   `json:"rejected,omitempty"`
	Warnings []Warning    `json:"warnings,omitempty"`
	Paths    []string     `json:"paths,omitempty"` // of a 404: what exists
	Write    *WriteBody   `json:"write,omitempty"` // of a 409: what stands

	header [][2]string
}

func (p *problem) Error() string {
	return fmt.Sprintf("%d %s: %s", p.Status, p.Title, p.Detail)
}

func newProblem(status int, format string, args ...any) *problem {
	return &problem{Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

// invalid is the 422 for fields that cannot be taken; the detail is the first.
func invalid(errs []FieldError) *problem {
	p := newProblem(http.StatusUnprocessableEntity, "%s", errs[0].Error())
	p.Errors = errs
	return p
}

// with adds a header to the answer.
func (p *problem) with(key, value string) *problem {
	p.header = append(p.header, [2]string{key, value})
	return p
}

// retryAfter adds the header in whole seconds, at least one.
func (p *problem) retryAfter(d time.Duration) *problem {
	seconds := max(1, int64((d+time.Second-1)/time.Second))
	return p.with("Retry-After", strconv.FormatInt(seconds, 10))
}

func (p *problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // cannot be: it holds strings and numbers only
		http.Error(w, p.Detail, p.Status)
		return
	}
	h := w.Header()
	for _, kv := range p.header {
		h.Set(kv[0], kv[1])
	}
	h.Set("Content-Type", "application/problem+json")
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n'))
}

// asProblem maps any error of a handler to its answer. Errors that nobody
// foresaw are a 500 whose cause is for the log and not for the caller.
func asProblem(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	return newProblem(http.StatusInternalServerError, "something went wrong here; the server's log says what")
}
