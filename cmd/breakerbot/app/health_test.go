package app

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"breakerbot/breaker"
)

// healthLab is an engine with the built-in rules on a clock of its own, and
// health checks of some machines.
type healthLab struct {
	*healthChecks
	t      *testing.T
	engine *breaker.Engine
	log    bytes.Buffer
	nanos  atomic.Int64
}

func newHealthLab(t *testing.T, urls map[string]string) *healthLab {
	t.Helper()
	e, err := breaker.New(breaker.Config{Rules: breaker.Builtin(), Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	secrets := make(map[string]Secret)
	for machine, url := range urls {
		secrets[machine] = Secret(url)
	}
	lab := &healthLab{t: t, engine: e}
	now := func() time.Time { return scriptStart.Add(time.Hour + time.Duration(lab.nanos.Load())) }
	lab.healthChecks = newHealthChecks(e, secrets, now, slog.New(slog.NewTextHandler(&lab.log, nil)))
	return lab
}

func (l *healthLab) pass(d time.Duration) { l.nanos.Add(int64(d)) }

func (l *healthLab) breaker(machine string) breaker.View {
	v, _ := l.engine.Breaker(l.now(), "reachability{machine="+machine+"}")
	return v
}

// fail reports a call that the machine refused, three times.
func (l *healthLab) fail(machine string, wait time.Duration) {
	for range 3 {
		l.engine.Report(l.now(), []breaker.Outcome{{Labels: breaker.Labels{Agent: "a", Machine: machine}, Cause: breaker.Refused, RetryAfter: wait}})
	}
}

// answering is a machine that answers with a status, and counts the asks.
func answering(t *testing.T, status *atomic.Int64) (url string, asks *atomic.Int64) {
	asks = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks.Add(1)
		if r.Method != http.MethodGet || !strings.HasPrefix(r.UserAgent(), "breakerbot/") {
			t.Errorf("asked with %s as %s", r.Method, r.UserAgent())
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(server.Close)
	return server.URL, asks
}

func code(n int64) *atomic.Int64 {
	status := new(atomic.Int64)
	status.Store(n)
	return status
}

// nowhere is an address at which nothing listens.
func nowhere(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://me:hunter2@" + l.Addr().String() + "/health?key=hunter2"
}

// mute is an address at which something takes connections, says what it is
// given, and hangs up.
func mute(t *testing.T, says string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			_, _ = conn.Read(buf)
			_, _ = conn.Write([]byte(says))
			conn.Close()
		}
	})
	t.Cleanup(func() { l.Close(); served.Wait() })
	return "http://" + l.Addr().String()
}

func TestHealthAtTheStart(t *testing.T) {
	t.Parallel()
	ok, asks := answering(t, code(200))
	broken, _ := answering(t, code(503))
	moved, movedAsks := answering(t, code(302))
	l := newHealthLab(t, map[string]string{
		"ok": ok, "broken": broken, "moved": moved, "dead": nowhere(t), "closing": mute(t, ""),
		"chatty":   mute(t, strings.Repeat("\x1b[31mnonsense sk-0123456789abcdef0123 ", 1000)+"\r\n\r\n"),
		"endless":  mute(t, "HTTP/1.1 200 OK\r\nX-Long: "+strings.Repeat("x", 1<<20)+"\r\n\r\n"),
		"status":   mute(t, "HTTP/1.1 /hunter2\r\n\r\n"), // what it was asked for
		"header":   mute(t, "HTTP/1.1 200 OK\r\n/hunter2\r\n\r\n"),
		"redirect": mute(t, "HTTP/1.1 302 Found\r\nLocation: http://[/hunter2\r\n\r\n"),
	})
	l.boot(t.Context())
	if asks.Load() != 1 || movedAsks.Load() != 1 {
		t.Errorf("asked %d times, and %d times the one that points elsewhere; want once each", asks.Load(), movedAsks.Load())
	}
	b := l.engine.Drain()
	var opened []string
	for _, tr := range b.Transitions {
		opened = append(opened, tr.Machine)
		if tr.Reason != breaker.ReasonBootCheck || tr.Cause != breaker.Unreachable || !tr.Trips() || tr.Evidence == nil || tr.Evidence.Error == "" {
			t.Errorf("%s: %+v", tr.Machine, tr)
		}
		switch evidence := tr.Evidence.Error; {
		case tr.Machine == "dead" && !strings.Contains(evidence, "connection refused"),
			tr.Machine == "closing" && evidence != "the connection was closed without an answer",
			strings.ContainsAny(evidence, "\x1b\n") || utf8.RuneCountInString(evidence) > 500,
			strings.Contains(evidence, "hunter2") || strings.Contains(evidence, "0123456789abcdef"):
			t.Errorf("%s: evidence %q", tr.Machine, evidence)
		}
	}
	if want := []string{"chatty", "closing", "dead", "endless", "header", "redirect", "status"}; !slices.Equal(opened, want) {
		t.Errorf("opened %q, want %q: any answer in HTTP shows that the machine is there", opened, want)
	}
	for _, want := range []string{"the health check is not answered", "machine=dead", "opened=\"reachability{machine=dead}\"", "machines=10 answered=3"} {
		if !strings.Contains(l.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, l.log.String())
		}
	}
	if strings.Contains(l.log.String(), "hunter2") {
		t.Errorf("the log shows a password:\n%s", l.log.String())
	}
}

// A machine that takes the connection and says nothing delays the start by the
// limit, and several of them do not add up.
func TestHealthAtTheStartIsBounded(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		l := newHealthLab(t, map[string]string{"a": "http://a/", "b": "http://b/", "c": "http://c/"})
		l.now = time.Now
		l.client.Transport = silence{}
		began := time.Now()
		l.boot(t.Context())
		if took := time.Since(began); took != healthLimit {
			t.Errorf("it took %s, want %s", took, healthLimit)
		}
		if b := l.breaker("b"); b.State != breaker.Open {
			t.Errorf("%+v", b)
		}
		if tr := l.engine.Drain().Transitions; len(tr) != 3 || tr[0].Evidence.Error != "no answer within 2s" {
			t.Errorf("%+v", tr)
		}
	})
}

// silence is a network in which nothing is ever answered.
type silence struct{}

func (silence) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestHealthAtTheStartStopped(t *testing.T) {
	t.Parallel()
	l := newHealthLab(t, map[string]string{"dead": nowhere(t)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.boot(ctx)
	if tr := l.engine.Drain().Transitions; len(tr) != 0 {
		t.Errorf("what was not asked is taken for dead: %+v", tr)
	}
}

func TestHealthWhileOpen(t *testing.T) {
	t.Parallel()
	status := code(500)
	url, asks := answering(t, status)
	other, otherAsks := answering(t, code(200))
	l := newHealthLab(t, map[string]string{"gpu": url, "later": other, "fine": other, "dead": nowhere(t)})
	l.fail("gpu", 0)
	l.fail("dead", 0)
	l.fail("later", 90*time.Second)
	l.pass(time.Second)
	before := l.breaker("gpu")
	l.round(t.Context())
	if b := l.breaker("gpu"); asks.Load() != 1 || b.State != breaker.Open || !b.RetryAt.Equal(before.RetryAt) {
		t.Errorf("a machine that answers with a fault of its own: %d asks, %+v", asks.Load(), b)
	}
	if otherAsks.Load() != 1 {
		t.Errorf("%d asks of machines that are fine, and of the one that waits for a Retry-After; want 1", otherAsks.Load())
	}
	status.Store(401)
	l.pass(5 * time.Second)
	l.round(t.Context())
	if b := l.breaker("gpu"); b.State != breaker.Open || !b.RetryAt.Equal(l.now()) {
		t.Errorf("answered again: %+v, want it open and due", b)
	}
	if b := l.breaker("dead"); !b.RetryAt.Equal(scriptStart.Add(time.Hour + time.Minute)) {
		t.Errorf("a silence changed something: %+v", b)
	}
	if b := l.breaker("later"); !b.RetryAt.Equal(scriptStart.Add(time.Hour + 90*time.Second)) {
		t.Errorf("due before its Retry-After: %+v", b)
	}
	if tr := l.engine.Drain().Transitions; len(tr) != 3 {
		t.Errorf("%d transitions, want the three trips alone", len(tr))
	}
	l.round(t.Context())
	if asks.Load() != 2 {
		t.Errorf("%d asks, want none once the probe is due", asks.Load())
	}
	g, _ := l.engine.Ask(l.now(), breaker.Ask{Labels: breaker.Labels{Agent: "a", Machine: "gpu"}})
	if !g.Probe {
		t.Errorf("%+v, want the probe", g)
	}
	if got := strings.Count(l.log.String(), "a probe is due"); got != 1 || !strings.Contains(l.log.String(), "machine=gpu status=401") {
		t.Errorf("the log says %d times that a probe is due:\n%s", got, l.log.String())
	}
}

// A round asks some at the same time and not all, and ends with its context.
func TestHealthRoundIsBounded(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		urls := make(map[string]string)
		for i := range 3 * healthAtOnce {
			urls["m"+string(rune('A'+i))] = "http://m/"
		}
		l := newHealthLab(t, urls)
		crowd := &crowd{}
		l.client.Transport = crowd
		for machine := range urls {
			l.fail(machine, 0)
		}
		l.round(t.Context())
		if crowd.most != healthAtOnce || crowd.asks != 3*healthAtOnce {
			t.Errorf("%d asks, %d at the same time; want %d and %d", crowd.asks, crowd.most, 3*healthAtOnce, healthAtOnce)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var stopped sync.WaitGroup
		stopped.Go(func() { l.round(ctx) })
		synctest.Wait() // the first ones are being asked
		began := time.Now()
		cancel()
		stopped.Wait()
		if took := time.Since(began); took != 0 || crowd.asks > 4*healthAtOnce {
			t.Errorf("stopped after %s and %d asks", took, crowd.asks)
		}
	})
}

// crowd never answers and counts who asks at the same time.
type crowd struct {
	mu              sync.Mutex
	asks, now, most int
}

func (c *crowd) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.asks++
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	<-r.Context().Done()
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
	return nil, r.Context().Err()
}
