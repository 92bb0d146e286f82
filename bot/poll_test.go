package bot

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"breakerbot/bot/telegramtest"
)

func TestPoisonUpdatesAreSkipped(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.server.Push("message", `{"update_id": %d, "message": {"message_id": "no number", "chat": 7}}`)
	d.server.Push("message", `{"update_id": %d, "message": [1, 2]}`)
	d.server.Push("callback_query", `{"update_id": %d, "callback_query": {"id": "x", "from": {"id": 1}}}`)
	d.server.Push("message", `{"no_number": true}`)
	d.run(t)
	contains(t, d.say(t, reader, group, "/help"), "/status")
}

func TestPanicDoesNotBlockUpdates(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.commands.cfg.Top = func(context.Context, string) (string, error) { panic("a bug") }
	d.run(t)
	d.silence(t, "a panic", d.server.Command(reader, group, "/top"))
	contains(t, d.say(t, reader, group, "/help"), "/status")
}

// TestHandledBeforeConfirmed: an update is confirmed by the poll after it, once
// its answer is out.
func TestHandledBeforeConfirmed(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	release := make(chan struct{})
	entered := make(chan struct{})
	d.commands.cfg.Top = func(context.Context, string) (string, error) { close(entered); <-release; return "top", nil }
	d.run(t)
	id := d.server.Command(reader, group, "/top")
	<-entered
	for _, r := range d.server.Requests("getUpdates") {
		if r.Params.Get("offset") > itoa(id) {
			t.Errorf("confirmed with offset %s before it was handled", r.Params.Get("offset"))
		}
	}
	close(release)
	if err := d.server.WaitConfirmed(d.ctx, id); err != nil {
		t.Fatal(err)
	}
	if len(d.server.Messages()) != 1 {
		t.Error("confirmed without an answer")
	}
}

func TestStopDuringALongPoll(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx, cancel := context.WithCancel(d.ctx)
	done := make(chan struct{})
	go func() { defer close(done); d.poller.Run(ctx) }()
	if err := d.server.WaitPolling(d.ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cancel()
	<-done
	if took := time.Since(began); took > time.Second {
		t.Errorf("stopped after %s", took)
	}
}

func TestSecondPollerBacksOff(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var logs bytes.Buffer
	d.poller.cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
	d.poller.pause, d.poller.pauseMax = time.Millisecond, 8*time.Millisecond
	d.server.Fail(telegramtest.Fault{Method: "getUpdates", Times: 6, Code: 409, Description: "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"})
	ctx, cancel := context.WithCancel(d.ctx)
	done := make(chan struct{})
	go func() { defer close(done); d.poller.Run(ctx) }()
	contains(t, d.say(t, reader, group, "/help"), "/status")
	cancel()
	<-done
	if n := strings.Count(logs.String(), "polling telegram fails"); n != 1 {
		t.Errorf("%d log lines for one conflict:\n%s", n, &logs)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{1: 5 * time.Second, 2: 10 * time.Second, 4: 40 * time.Second, 5: time.Minute, 5000: time.Minute} {
		if got := backoff(n, 5*time.Second, time.Minute); got != want {
			t.Errorf("after %d failures %s, want %s", n, got, want)
		}
	}
}

func TestWebhookIsDeleted(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.server.SetWebhook()
	d.run(t)
	contains(t, d.say(t, reader, group, "/help"), "/status")
	if n := len(d.server.Requests("deleteWebhook")); n != 1 {
		t.Errorf("%d times deleteWebhook", n)
	}
}

func TestWrongTokenDoesNotSpin(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.server.Fail(telegramtest.Fault{Times: -1, Code: 401, Description: "Unauthorized"})
	logs := make(lines, 10)
	d.poller.cfg.Log = slog.New(slog.NewTextHandler(logs, nil))
	ctx, cancel := context.WithCancel(d.ctx)
	done := make(chan struct{})
	go func() { defer close(done); d.poller.Run(ctx) }()
	if line := <-logs; !strings.Contains(line, "does not answer yet") {
		t.Errorf("log %s", line)
	}
	if !d.tg.Health().Unusable {
		t.Errorf("health %+v", d.tg.Health())
	}
	cancel()
	<-done
	if n := len(d.server.Requests("")); n != 1 {
		t.Errorf("%d requests with a wrong token", n)
	}
}

// lines hands on what is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestCommandsThatCannotBeRegistered(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.server.Fail(telegramtest.Fault{Method: "setMyCommands", Code: 400, Description: "Bad Request: BOT_COMMAND_INVALID"})
	d.run(t)
	contains(t, d.say(t, reader, group, "/help"), "/status")
}

// TestJoinsLater starts the poller while nothing listens.
func TestJoinsLater(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	proxy := &later{ready: make(chan struct{}), tried: make(chan struct{}, 1), to: d.server.URL}
	d.tg = newClient(t, d.server.URL, func(cfg *TelegramConfig) { cfg.Transport = proxy })
	d.poller.cfg.Telegram, d.commands.cfg.Telegram = d.tg, d.tg
	d.poller.pause = 5 * time.Millisecond
	d.run(t)
	<-proxy.tried
	if h := d.tg.Health(); h.Username != "" {
		t.Errorf("health %+v", h)
	}
	close(proxy.ready)
	contains(t, d.say(t, reader, group, "/status@"+telegramtest.Username), "breakers")
}

// later refuses connections until it is ready.
type later struct {
	ready, tried chan struct{}
	to           string
	transport    http.Transport
}

func (l *later) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case <-l.ready:
		l.transport.DisableKeepAlives = true
		return l.transport.RoundTrip(req)
	default:
	}
	select {
	case l.tried <- struct{}{}:
	default:
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
}
