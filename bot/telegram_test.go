package bot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"breakerbot/bot/telegramtest"
)

func TestAnswersTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		text string
		want trouble
	}{
		{429, "Too Many Requests: retry after 5", troubleLimited},
		{401, "Unauthorized", troubleConfig},
		{404, "Not Found", troubleConfig},
		{421, "Misdirected Request: unallowed token specified", troubleConfig},
		{301, "", troubleConfig},
		{409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running", troubleConflict},
		{409, "Conflict: terminated by setWebhook request", troubleConflict},
		{409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first", troubleWebhook},
		{400, `Bad Request: can't parse entities: Unsupported start tag "tg-time" at byte offset 3`, troubleTime},
		{400, `Bad Request: can't parse entities: Unsupported start tag "x" at byte offset 3`, troubleMarkup},
		{400, "Bad Request: strings must be encoded in UTF-8", troubleMarkup},
		{400, "Bad Request: message is too long", troubleLong},
		{400, "Bad Request: text is too long", troubleLong},
		{400, "Bad Request: message caption is too long", troubleLong},
		{400, "Bad Request: MEDIA_CAPTION_TOO_LONG", troubleLong},
		{400, "Bad Request: BUTTON_DATA_INVALID", troubleButtons},
		{400, "Bad Request: reply markup is too long", troubleButtons},
		{400, "Bad Request: Can't parse inline keyboard button: text must be non-empty", troubleButtons},
		{400, "Bad Request: object expected as reply markup", troubleButtons},
		{400, "Bad Request: message is not modified: specified new message content and reply markup are exactly the same", troubleSame},
		{400, "Bad Request: message to edit not found", troubleEditGone},
		{400, "Bad Request: message can't be edited", troubleEditGone},
		{400, "Bad Request: MESSAGE_ID_INVALID", troubleEditGone},
		{400, "Bad Request: message to be replied not found", troubleReply},
		{400, "Bad Request: message thread not found", troubleThread},
		{400, "Bad Request: TOPIC_CLOSED", troubleThread},
		{400, "Bad Request: TOPIC_DELETED", troubleThread},
		{400, "Bad Request: group chat was upgraded to a supergroup chat", troubleMoved},
		{400, "Bad Request: chat not found", troubleChat},
		{403, "Forbidden: bot was blocked by the user", troubleChat},
		{403, "Forbidden: bot was kicked from the supergroup chat", troubleChat},
		{403, "Forbidden: user is deactivated", troubleChat},
		{403, "Forbidden: the group chat was deleted", troubleChat},
		{400, "Bad Request: not enough rights to send text messages to the chat", troubleRights},
		{400, "Bad Request: have no write access to the chat", troubleRights},
		{400, "Bad Request: CHAT_WRITE_FORBIDDEN", troubleRights},
		{400, "Bad Request: query is too old and response timeout expired or query ID is invalid", troubleStale},
		{500, "Internal Server Error: restart", troubleUnknown},
		{502, "", troubleUnknown},
		{400, "Bad Request: something new", troubleRejected},
	} {
		if got := classify(c.code, c.text); got != c.want {
			t.Errorf("%d %s: trouble %d, want %d", c.code, c.text, got, c.want)
		}
	}
}

func TestNewTelegramRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]TelegramConfig{
		"token is empty":      {},
		"holds a character":   {Token: "123:a/b"},
		`api_url "ftp://x"`:   {Token: telegramtest.Token, APIURL: "ftp://x"},
		`api_url "localhost"`: {Token: telegramtest.Token, APIURL: "localhost"},
		`/bot[token]"`:        {Token: telegramtest.Token, APIURL: "x/bot" + telegramtest.Token},
	} {
		_, err := NewTelegram(cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
		if err != nil && strings.Contains(err.Error(), telegramtest.Token) {
			t.Errorf("error holds the token: %v", err)
		}
	}
}

// failing is a transport that fails as told and puts the address, with the
// token in it, into its error.
type failing struct{}

func (failing) RoundTrip(req *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("proxy says no to %s", req.URL)
}

// TestTokenNeverPrints makes every kind of request fail in every way that there
// is and looks for the token in errors, logs, health and metrics.
func TestTokenNeverPrints(t *testing.T) {
	t.Parallel()
	var logs bytes.Buffer
	secret := telegramtest.Token
	check := func(where, s string) {
		t.Helper()
		if strings.Contains(s, secret) || strings.Contains(s, "TEST-token") {
			t.Errorf("%s holds the token: %s", where, s)
		}
	}
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := refusing.Addr().String()
	if err := refusing.Close(); err != nil {
		t.Fatal(err)
	}
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]any{"ok": false, "error_code": 400, "description": "Bad Request: no route " + r.URL.Path})
	}))
	defer echo.Close()
	redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1"+r.URL.Path, http.StatusFound)
	}))
	defer redirect.Close()
	cutting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}))
	defer cutting.Close()
	garbage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer garbage.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		url       string
		transport http.RoundTripper
		ctx       context.Context
		want      trouble
	}{
		"refused":   {"http://" + address, nil, t.Context(), troubleOffline},
		"no name":   {"http://no-such-host.invalid", nil, t.Context(), troubleOffline},
		"transport": {"http://127.0.0.1:1", failing{}, t.Context(), troubleOffline},
		"cancelled": {echo.URL, nil, ended, troubleOffline},
		"echo":      {echo.URL, nil, t.Context(), troubleRejected},
		"redirect":  {redirect.URL, nil, t.Context(), troubleConfig},
		"cut":       {cutting.URL, nil, t.Context(), troubleUnknown},
		"garbage":   {garbage.URL, nil, t.Context(), troubleUnknown},
	} {
		registry := prometheus.NewPedanticRegistry()
		tg := newClient(t, c.url, func(cfg *TelegramConfig) {
			cfg.Transport, cfg.Registerer = c.transport, registry
			cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
		})
		var errs []error
		_, err := tg.Send(c.ctx, Outgoing{Chat: 1, HTML: "x"})
		errs = append(errs, err)
		_, err = tg.Send(c.ctx, Outgoing{Chat: 1, HTML: "x", Photo: []byte("png")})
		errs = append(errs, err, tg.Edit(c.ctx, 1, Outgoing{Chat: 1, HTML: "x"}), tg.Ping(c.ctx), tg.Callback(c.ctx, "q", "x", false), tg.setCommands(c.ctx, commandList), tg.deleteWebhook(c.ctx))
		_, err = tg.updates(c.ctx, 0, 0)
		errs = append(errs, err)
		for i, err := range errs {
			if err == nil {
				t.Errorf("%s: request %d succeeded", name, i)
				continue
			}
			if got := troubleOf(err); got != c.want {
				t.Errorf("%s: request %d: trouble %d, want %d: %v", name, i, got, c.want, err)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				check(name, e.Error())
				check(name+" %+v", fmt.Sprintf("%+v %#v", e, e))
			}
		}
		h, err := json.Marshal(tg.Health())
		if err != nil {
			t.Fatal(err)
		}
		check(name+" health", string(h))
		p := NewPoller(PollerConfig{Telegram: tg, Log: slog.New(slog.NewTextHandler(&logs, nil))})
		p.pause = time.Millisecond
		p.rest(ended, errs[0], 1)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		check(name+" metrics", fmt.Sprint(families))
		if len(families) == 0 {
			t.Errorf("%s: no request counted", name)
		}
	}
	check("logs", logs.String())
}

func TestHealthAndMetric(t *testing.T) {
	t.Parallel()
	s := telegramtest.New(t)
	s.AddPrivate(5)
	registry := prometheus.NewPedanticRegistry()
	c := &clock{t: t0}
	tg := newClient(t, s.URL+"/", func(cfg *TelegramConfig) { cfg.Registerer, cfg.Clock = registry, c.now })
	if err := tg.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := tg.Health(); h.Username != telegramtest.Username || !h.OKAt.Equal(t0) || h.Error != "" {
		t.Errorf("health %+v", h)
	}
	c.add(time.Minute)
	s.Fail(telegramtest.Fault{HTML: 502})
	if err := tg.Ping(t.Context()); troubleOf(err) != troubleUnknown || !strings.Contains(err.Error(), "502") {
		t.Errorf("a proxy's page: %v", err)
	}
	if h := tg.Health(); h.Error == "" || !h.ErrorAt.Equal(t0.Add(time.Minute)) || h.Unusable {
		t.Errorf("health %+v", h)
	}
	s.Fail(telegramtest.Fault{Code: 401, Description: "Unauthorized"})
	if err := tg.Ping(t.Context()); troubleOf(err) != troubleConfig || !tg.Health().Unusable {
		t.Errorf("401: %v, health %+v", err, tg.Health())
	}
	// A refusal of one message is an answer, so Telegram is well.
	if _, err := tg.Send(t.Context(), Outgoing{Chat: 999, HTML: "x"}); troubleOf(err) != troubleChat || tg.Health().Error != "" || tg.Health().Unusable {
		t.Errorf("unknown chat: %v, health %+v", err, tg.Health())
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var key strings.Builder
			key.WriteString(f.GetName())
			for _, l := range m.GetLabel() { // by name: code, method
				key.WriteString(" " + l.GetValue())
			}
			got[key.String()] = m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"breakerbot_telegram_requests_total 200 getMe":       1,
		"breakerbot_telegram_requests_total 400 sendMessage": 1,
		"breakerbot_telegram_requests_total 401 getMe":       1,
		"breakerbot_telegram_requests_total 502 getMe":       1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}

func TestPhotoErrorsKeepTheirCode(t *testing.T) {
	t.Parallel()
	s := telegramtest.New(t)
	s.AddPrivate(5)
	tg := newClient(t, s.URL, nil)
	photo := Outgoing{Chat: 5, HTML: "<b>chart</b>", Photo: []byte("not looked at"), Silent: true}
	if _, err := tg.Send(t.Context(), photo); err != nil {
		t.Fatal(err)
	}
	if m := s.Messages()[0]; m.Photo != len(photo.Photo) || m.Text != "chart" || m.Sounded() {
		t.Errorf("message %+v", m)
	}
	s.Fail(telegramtest.Fault{RetryAfter: 34433})
	_, err := tg.Send(t.Context(), photo)
	if troubleOf(err) != troubleLimited || retryAfter(err) != 34433*time.Second {
		t.Errorf("429 of an upload: %v, wait %s", err, retryAfter(err))
	}
}

func TestOldServersWithoutTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.ForgetTime()
	f := factsOf(incident(10, "errors", "m", t0))
	r.trip(f, group)
	r.step(t)
	m := r.only(t)
	if !strings.Contains(m.Text, "opened 14:02") || strings.Contains(m.Source, "tg-time") || !strings.Contains(m.Source, "<code>") {
		t.Errorf("message %q", m.Source)
	}
	r.trip(factsOf(incident(11, "errors", "m", t0)), group)
	r.step(t)
	if n := len(r.server.Requests("sendMessage")); n != 3 {
		t.Errorf("%d requests for two messages, want 3: the server's age is remembered", n)
	}
}
