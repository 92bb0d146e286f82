package ingest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"breakerbot/breaker"
)

// maxItems is the most outcomes of one request.
const maxItems = 10_000

// maxToldErrors bounds the field errors in the problem of a whole batch; the
// rejected items have all of theirs.
const maxToldErrors = 100

// OutcomesBody is the answer to POST /v1/outcomes.
type OutcomesBody struct {
	Accepted   int           `json:"accepted"` // duplicates included
	Duplicates int           `json:"duplicates"`
	Late       int           `json:"late"`
	Rejected   []Rejected    `json:"rejected"`
	Durable    bool          `json:"durable"`
	Verdicts   []VerdictBody `json:"verdicts,omitempty"`
	Circuits   []CircuitBody `json:"circuits"`
	Warnings   []Warning     `json:"warnings,omitempty"`
}

// batch is the outcomes of one request, as far as they could be taken.
type batch struct {
	single   bool
	outcomes []breaker.Outcome
	index    []int  // of each outcome in the request
	refused  []bool // by a gate, for each outcome
	rejected []Rejected
	warnings []Warning
	items    int
}

// postOutcomes applies what it can of a request's outcomes in one go.
func (s *Server) postOutcomes(w http.ResponseWriter, r *http.Request) error {
	core, err := s.ready()
	if err != nil {
		return err
	}
	if core.Journal.Full() {
		return newProblem(http.StatusServiceUnavailable, "the journal is full because the database does not answer: nothing of this request was applied").retryAfter(startRetry)
	}
	query := r.URL.Query()
	if err := knownQuery(query, "verdicts"); err != nil {
		return err
	}
	all := query.Get("verdicts") == "all"
	if v := query.Get("verdicts"); v != "" && !all {
		return badQuery("verdicts", fmt.Sprintf("is %q: only all is known", excerpt(v)))
	}
	b, err := readBody(w, r, maxBody, true)
	if err != nil {
		return err
	}
	now := s.Now()
	in, err := s.decodeBatch(&b, senderClock(r, now))
	b.release()
	if err != nil {
		return err
	}
	verdicts, seq := core.Engine.Report(now, in.outcomes)
	answer := OutcomesBody{Rejected: in.rejected, Warnings: in.warnings, Circuits: []CircuitBody{}}
	if answer.Rejected == nil {
		answer.Rejected = []Rejected{}
	}
	touched := make(map[breaker.Labels]bool)
	for i := range verdicts {
		v, o := &verdicts[i], &in.outcomes[i]
		answer.Accepted++
		if v.Duplicate {
			answer.Duplicates++
		} else {
			s.metrics.outcome(o.Labels, o, v)
			if in.refused[i] {
				s.metrics.gateFailure(o.Labels, o.Cause)
			}
			if v.InDoubt {
				s.metrics.inDoubt(o.Labels, v.Cause)
			}
		}
		if v.Late {
			answer.Late++
		}
		for _, rule := range v.Uncounted {
			if len(answer.Warnings) < maxBatchWarnings {
				answer.Warnings = append(answer.Warnings, Warning{Index: in.index[i], Message: fmt.Sprintf(
					"rule %s has %d breakers, as many as it may, and none that has been idle for an hour: this call was not counted by it", rule, breaker.DefaultMaxBreakers)})
			}
		}
		if in.single || all {
			body := VerdictJSON(*v, now)
			body.Index = &in.index[i]
			if in.refused[i] {
				body.Detail = o.Error
			}
			answer.Verdicts = append(answer.Verdicts, body)
		}
		if !touched[o.Labels] {
			touched[o.Labels] = true
			if c := core.Engine.Circuit(now, o.Labels); c.State != breaker.Closed {
				answer.Circuits = append(answer.Circuits, CircuitJSON(notClosed(c), now))
			}
		}
	}
	answer.Durable = s.durable(r.Context(), core, seq)
	status := http.StatusOK
	if !answer.Durable {
		status = http.StatusAccepted
	}
	return writeJSON(w, status, answer)
}

// durable waits until seq is on disk, for AckTimeout at most.
func (s *Server) durable(ctx context.Context, core *Core, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, s.AckTimeout)
	defer cancel()
	return core.Journal.Wait(ctx, seq) == nil
}

// notClosed leaves only the breakers that are why the circuit is not closed.
func notClosed(c breaker.Circuit) breaker.Circuit {
	kept := c.Breakers[:0:0]
	for _, v := range c.Breakers {
		if v.State != breaker.Closed {
			kept = append(kept, v)
		}
	}
	c.Breakers = kept
	return c
}

// senderClock is the moment of the request by its sender's clock, if it says so.
func senderClock(r *http.Request, now time.Time) time.Time {
	if at, err := http.ParseTime(r.Header.Get("Date")); err == nil {
		return at
	}
	return now
}

// decodeBatch takes a body apart. The error is a problem for the whole of it:
// no JSON, too many items, or nothing valid.
func (s *Server) decodeBatch(b *body, now time.Time) (*batch, error) {
	in := &batch{}
	data := b.data
	start := skipSpace(data, 0)
	if start == len(data) {
		return nil, newProblem(http.StatusBadRequest, "the body is empty: an outcome, an array of outcomes, or NDJSON is needed")
	}
	switch {
	case b.ndjson:
		line := 0
		for len(data) > 0 {
			var text []byte
			text, data, _ = bytes.Cut(data, []byte("\n"))
			line++
			if skipSpace(text, 0) == len(text) {
				continue
			}
			if in.items == maxItems {
				return nil, tooMany()
			}
			if err := syntaxError(text, line); err != nil {
				in.refuse([]FieldError{{Message: err.Error()}})
				continue
			}
			in.add(s.decoder, text, now)
		}
	default:
		if err := syntaxError(data, 1); err != nil {
			p := newProblem(http.StatusBadRequest, "%s", err)
			if data[start] == '{' && bytes.Contains(data, []byte("\n{")) {
				p.Detail += "; several outcomes are sent as an array, or with the content type " + typeNDJSON
			}
			return nil, p
		}
		if data[start] != '[' {
			in.single = true
			in.add(s.decoder, data[start:], now)
			break
		}
		enough := true
		each(data, func(element value) bool {
			if enough = in.items < maxItems; enough {
				in.add(s.decoder, element, now)
			}
			return enough
		})
		if !enough {
			return nil, tooMany()
		}
		if in.items == 0 {
			return nil, newProblem(http.StatusUnprocessableEntity, "the array is empty: at least one outcome is needed")
		}
	}
	if len(in.outcomes) > 0 {
		return in, nil
	}
	return nil, in.nothingValid()
}

func tooMany() error {
	return newProblem(http.StatusRequestEntityTooLarge, "there are more than %d outcomes: send them in several parts", maxItems)
}

func (in *batch) add(d Decoder, raw []byte, now time.Time) {
	o, refused, errs, warnings := d.outcome(raw, now, maxBatchWarnings-len(in.warnings))
	for i := range warnings {
		warnings[i].Index = in.items
	}
	in.warnings = append(in.warnings, warnings...)
	if len(errs) > 0 {
		in.refuse(errs)
		return
	}
	in.outcomes = append(in.outcomes, o)
	in.index = append(in.index, in.items)
	in.refused = append(in.refused, refused)
	in.items++
}

func (in *batch) refuse(errs []FieldError) {
	in.rejected = append(in.rejected, Rejected{Index: in.items, Errors: errs})
	in.items++
}

// nothingValid is the problem of a batch of which no item can be taken.
func (in *batch) nothingValid() error {
	if in.single {
		p := invalid(in.rejected[0].Errors)
		p.Warnings = in.warnings
		return p
	}
	var told []FieldError
	for _, item := range in.rejected {
		for _, e := range item.Errors {
			if len(told) == maxToldErrors {
				break
			}
			path := fmt.Sprintf("[%d]", item.Index)
			if e.Path != "" {
				path += "." + e.Path
			}
			told = append(told, FieldError{Path: path, Message: e.Message})
		}
	}
	if len(told) == 0 {
		return newProblem(http.StatusUnprocessableEntity, "the body holds no outcome")
	}
	p := invalid(told)
	p.Detail = fmt.Sprintf("none of %d outcomes is valid: %s", in.items, told[0].Error())
	p.Rejected, p.Warnings = in.rejected, in.warnings
	return p
}
