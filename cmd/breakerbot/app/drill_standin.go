package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxStandInBody bounds what is read of a request or an answer of the stand-in.
const maxStandInBody = 64 << 10

// standIn is an endpoint on loopback that answers like a model, or fails in the
// way of its kind.
type standIn struct {
	kind   drillKind
	client *http.Client
	ended  chan struct{} // lets go of calls that hang

	// turning lets calls under way end before nobody listens any more: they would
	// be cut off, which is another failure than the one to be seen.
	turning sync.RWMutex

	mu      sync.Mutex
	server  *http.Server // nil while nobody listens
	addr    string
	failing bool
}

func newStandIn(kind drillKind) *standIn {
	return &standIn{
		kind: kind, ended: make(chan struct{}),
		// A connection kept from before would not show that nobody listens any more.
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxStandInBody}},
	}
}

func (s *standIn) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listen("127.0.0.1:0")
}

// listen serves at the address; s.mu is held.
func (s *standIn) listen(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s.addr = listener.Addr().String()
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 5 * time.Second}
	go s.server.Serve(listener)
	return nil
}

// fail makes every call fail from now on.
func (s *standIn) fail() {
	s.turning.Lock()
	defer s.turning.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = true
	if s.kind.name != "refused" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		s.server.Close()
	}
	s.server = nil
}

// recover answers again, on the same port unless somebody else has taken it.
func (s *standIn) recover() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = false
	if s.server != nil {
		return nil
	}
	if s.listen(s.addr) == nil {
		return nil
	}
	return s.listen("127.0.0.1:0")
}

func (s *standIn) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	if s.server != nil {
		s.server.Close()
	}
	s.client.CloseIdleConnections()
}

func (s *standIn) now() (addr string, failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr, s.failing
}

// chat is as much of an answer of a model as agents look at.
type chat struct {
	Choices []chatChoice `json:"choices"`
}

type chatChoice struct {
	Message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"message"`
	FinishReason string `json:"finish_reason"`
}

// ServeHTTP answers as a model would.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, io.LimitReader(r.Body, maxStandInBody))
	_, failing := s.now()
	w.Header().Set("Content-Type", "application/json")
	var answer chat
	answer.Choices = make([]chatChoice, 1)
	c := &answer.Choices[0]
	c.Message.Role, c.FinishReason = "assistant", "stop"
	c.Message.Content = "This is the answer of the stand-in of a drill, which is as long as an answer usually is."
	switch {
	case !failing:
	case s.kind.name == "hung":
		select {
		case <-r.Context().Done():
		case <-s.ended:
		}
		return
	case s.kind.name == "errors":
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, `{"error": {"message": "the stand-in of the drill fails", "type": "server_error"}}`)
		return
	case s.kind.name == "empty":
		c.Message.Content = ""
	}
	json.NewEncoder(w).Encode(answer)
}

// drillSeen is what an agent saw of its call: raw, without a cause.
type drillSeen struct {
	HTTPStatus   int     `json:"http_status,omitempty"`
	Error        string  `json:"error,omitempty"`
	Response     *string `json:"response,omitempty"`
	FinishReason string  `json:"finish_reason,omitempty"`
}

// call asks the stand-in for a completion, as an agent does.
func (s *standIn) call(ctx context.Context, timeout time.Duration) drillSeen {
	s.turning.RLock()
	defer s.turning.RUnlock()
	addr, _ := s.now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions",
		bytes.NewReader([]byte(`{"model": "drill", "messages": [{"role": "user", "content": "Are you there?"}]}`)))
	if err != nil {
		return drillSeen{Error: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return drillSeen{Error: err.Error()}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStandInBody))
	if err != nil {
		return drillSeen{HTTPStatus: resp.StatusCode, Error: err.Error()}
	}
	seen := drillSeen{HTTPStatus: resp.StatusCode}
	if resp.StatusCode != http.StatusOK {
		seen.Error = string(body)
		return seen
	}
	var answer chat
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Choices) == 0 {
		seen.Error = errors.Join(errors.New("the answer is no completion"), err).Error()
		return seen
	}
	seen.Response, seen.FinishReason = &answer.Choices[0].Message.Content, answer.Choices[0].FinishReason
	return seen
}
