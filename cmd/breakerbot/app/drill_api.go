package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"breakerbot/breaker"
)

const (
	// drillAsk is how long one request to the server may take.
	drillAsk = 10 * time.Second
	// drillTries is how often a request is made when the server does not answer
	// or asks to come back; the second and later ones say the same again, which
	// counts once.
	drillTries = 3
	// maxDrillAnswer bounds what is read of an answer.
	maxDrillAnswer = 8 << 20
)

// drillAPI is the running server as an agent uses it.
type drillAPI struct {
	base   string
	token  string
	client *http.Client
}

// newDrillAPI makes a client of the server at an address such as
// http://127.0.0.1:8080, for so many agents at once.
func newDrillAPI(address, token string, agents int) (*drillAPI, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no address: it looks like http://127.0.0.1:8080", clip(address))
	}
	if u.User != nil {
		return nil, errors.New("an address with a name or a password is not taken: --token says who asks")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = agents
	return &drillAPI{base: strings.TrimRight(u.String(), "/"), token: token, client: &http.Client{
		Transport: transport, Timeout: drillAsk,
		// A redirect would take the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// refusal is an answer of the server that is no success.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

// do makes a request and reads its answer into into, nil for one without
// interest. Errors are sentences, and never show the token.
func (a *drillAPI) do(ctx context.Context, method, path string, body, into any) (err error) {
	var content []byte
	if body != nil {
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	for try := 1; ; try++ {
		again, err := a.once(ctx, method, path, content, into)
		if err == nil || !again || try == drillTries || !pause(ctx, time.Duration(try)*200*time.Millisecond) {
			return err
		}
	}
}

func (a *drillAPI) once(ctx context.Context, method, path string, content []byte, into any) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(content))
	if err != nil {
		return false, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("User-Agent", "breakerbot/"+version())
	if content != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return true, fmt.Errorf("%s does not answer: %w: is breakerbot serve running there? --url names another address", a.base, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDrillAnswer))
	if err != nil {
		return true, fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		return resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable, a.refusal(method, path, resp.StatusCode, text)
	}
	if into == nil {
		return false, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("%s answers %s %s with something else than JSON: is it breakerbot?", a.base, method, path)
	}
	return false, nil
}

func (a *drillAPI) refusal(method, path string, status int, text []byte) error {
	var problem struct {
		Detail string `json:"detail"`
	}
	json.Unmarshal(text, &problem)
	detail := orWord(problem.Detail, http.StatusText(status))
	switch status {
	case http.StatusUnauthorized:
		detail = fmt.Sprintf("%s wants a token: %s; --token or BREAKERBOT_TOKEN gives it", a.base, detail)
	case http.StatusForbidden:
		detail = fmt.Sprintf("%s refuses the token: %s", a.base, detail)
	default:
		detail = fmt.Sprintf("%s answers %d to %s %s: %s", a.base, status, method, path, detail)
		if problem.Detail == "" {
			detail += ": is it breakerbot?"
		}
	}
	return &refusal{status, detail}
}

// rules are the rules in force, in their order of precedence.
func (a *drillAPI) rules(ctx context.Context) ([]breaker.Rule, error) {
	var body struct {
		Rules []breaker.Rule `json:"rules"`
	}
	err := a.do(ctx, http.MethodGet, "/v1/rules", nil, &body)
	return body.Rules, err
}

// drillCall is a call as the API has it: the question for a permit, and the
// outcome.
type drillCall struct {
	Agent      string  `json:"agent"`
	Machine    string  `json:"machine"`
	Model      string  `json:"model"`
	TimeoutMS  int64   `json:"timeout_ms"`
	RequestID  string  `json:"request_id,omitempty"`
	Permit     string  `json:"permit,omitempty"`
	DurationMS float64 `json:"duration_ms,omitempty"`
	drillSeen
}

// drillGrant is the answer to a question for a permit.
type drillGrant struct {
	Allowed      bool   `json:"allowed"`
	Permit       string `json:"permit"`
	Probe        bool   `json:"probe"`
	State        string `json:"state"`
	Reason       string `json:"reason"`
	RetryAfterMS int64  `json:"retry_after_ms"`
	Breakers     []struct {
		Rule string `json:"rule"`
	} `json:"breakers"`
}

func (g drillGrant) wait() time.Duration { return time.Duration(g.RetryAfterMS) * time.Millisecond }

// drillVerdict is what the server makes of an outcome.
type drillVerdict struct {
	Cause        string `json:"cause"`
	Class        string `json:"class"`
	State        string `json:"state"`
	RetryAfterMS int64  `json:"retry_after_ms"`
}

func (v drillVerdict) wait() time.Duration { return time.Duration(v.RetryAfterMS) * time.Millisecond }

func (a *drillAPI) permit(ctx context.Context, call drillCall, request string) (drillGrant, error) {
	var g drillGrant
	call.RequestID = request
	err := a.do(ctx, http.MethodPost, "/v1/permits", call, &g)
	return g, err
}

func (a *drillAPI) report(ctx context.Context, call drillCall) (drillVerdict, error) {
	var body struct {
		Verdicts []drillVerdict `json:"verdicts"`
		Rejected []struct {
			Errors []struct{ Path, Message string }
		} `json:"rejected"`
	}
	if err := a.do(ctx, http.MethodPost, "/v1/outcomes", call, &body); err != nil {
		return drillVerdict{}, err
	}
	if len(body.Verdicts) != 1 {
		return drillVerdict{}, fmt.Errorf("%s gives %d verdicts on one outcome, rejected is %v", a.base, len(body.Verdicts), body.Rejected)
	}
	return body.Verdicts[0], nil
}

// release gives a permit back whose call was broken off, also after ctx has
// ended; a probe would otherwise be missing until its lease ends.
func (a *drillAPI) release(ctx context.Context, permit string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	a.once(ctx, http.MethodPost, "/v1/permits/"+url.PathEscape(permit)+"/release", []byte("{}"), nil)
}

// drillBreaker is a breaker of one of the drill's machines.
type drillBreaker struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// reset closes and empties the breakers that the filters find, and gives those
// that it may not reset.
func (a *drillAPI) reset(ctx context.Context, filters []url.Values) (left []drillBreaker, err error) {
	var found []drillBreaker
	for _, filter := range filters {
		var body struct {
			Breakers []drillBreaker `json:"breakers"`
		}
		if err := a.do(ctx, http.MethodGet, "/v1/breakers?"+filter.Encode(), nil, &body); err != nil {
			return nil, err
		}
		for _, b := range body.Breakers {
			if !slices.Contains(found, b) {
				found = append(found, b)
			}
		}
	}
	for i, b := range found {
		err := a.do(ctx, http.MethodPost, "/v1/breakers/"+url.PathEscape(b.Name)+"/reset", map[string]string{"reason": "drill"}, nil)
		if refused, ok := errors.AsType[*refusal](err); ok && refused.status == http.StatusForbidden {
			return found[i:], nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
