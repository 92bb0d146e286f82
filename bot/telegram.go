package bot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tgbotapi "github.com/go-telegram-bot-api/telegram-bot-api/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// The time-outs of requests. A long poll is asked to last pollFor.
const (
	sendTimeout = 15 * time.Second
	pollTimeout = 60 * time.Second
	pollFor     = 50 * time.Second
)

// maxAnswer is the longest answer that is read; a full batch of updates is
// about 4 MB.
const maxAnswer = 16 << 20

// TelegramConfig is what a client of the Bot API is made of.
type TelegramConfig struct {
	Token  string
	APIURL string // empty: https://api.telegram.org
	Log    *slog.Logger
	// Registerer gets breakerbot_telegram_requests_total; nil for none.
	Registerer prometheus.Registerer
	// Transport carries the requests; nil: one of its own.
	Transport http.RoundTripper
	// Clock dates what Health tells; nil: time.Now.
	Clock func() time.Time
}

// Telegram is a client of the Bot API. It is a Messenger, and safe for
// concurrent use. Making one does not talk to Telegram, so that a service starts
// while Telegram is away. No error, log line or metric of it holds the token.
type Telegram struct {
	token     string
	endpoint  string
	log       *slog.Logger
	now       func() time.Time
	transport http.RoundTripper
	idle      interface{ CloseIdleConnections() } // nil when the transport is not ours
	requests  *prometheus.CounterVec
	noTime    atomic.Bool // the server does not know tg-time

	mu     sync.Mutex
	health Health
}

// Health is how the last requests to Telegram went.
type Health struct {
	Username string    `json:"username,omitempty"` // without @; empty until getMe was answered
	OKAt     time.Time `json:"ok_at,omitzero"`     // the last answer that was no trouble of transport or configuration
	ErrorAt  time.Time `json:"error_at,omitzero"`
	Error    string    `json:"error,omitempty"` // of the last such trouble, kept until an OK
	// Unusable is true while Telegram refuses the token or the address is none
	// of a Bot API: only a new configuration helps.
	Unusable bool `json:"unusable,omitempty"`
}

// NewTelegram makes a client. The error names what is wrong with the
// configuration, without the token.
func NewTelegram(cfg TelegramConfig) (*Telegram, error) {
	if cfg.Token == "" {
		return nil, errors.New("telegram token is empty: BotFather gives one that looks like 123456:ABC-DEF")
	}
	if strings.ContainsAny(cfg.Token, "/?#% \t\r\n") {
		return nil, errors.New("telegram token holds a character that no token has: it looks like 123456:ABC-DEF")
	}
	base := cmp.Or(cfg.APIURL, "https://api.telegram.org")
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("telegram api_url %q: an address like https://api.telegram.org is needed", redact(base, cfg.Token))
	}
	t := &Telegram{
		token: cfg.Token,
		// The library fills in token and method with Sprintf.
		endpoint:  strings.ReplaceAll(strings.TrimRight(base, "/"), "%", "%%") + "/bot%s/%s",
		log:       cfg.Log,
		now:       cfg.Clock,
		transport: cfg.Transport,
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if t.now == nil {
		t.now = time.Now
	}
	if t.transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.ResponseHeaderTimeout = pollTimeout
		t.transport, t.idle = own, own
	}
	t.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "breakerbot_telegram_requests_total",
		Help: "Requests to the Bot API by method and code; code none is for those without an answer.",
	}, []string{"method", "code"})
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(t.requests); err != nil {
			return nil, fmt.Errorf("register telegram metrics: %w", err)
		}
	}
	return t, nil
}

// Close lets go of idle connections. Requests in flight are not its matter.
func (t *Telegram) Close() {
	if t.idle != nil {
		t.idle.CloseIdleConnections()
	}
}

// Health tells how the last requests went.
func (t *Telegram) Health() Health {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.health
}

// Send sends a message and gives its id.
func (t *Telegram) Send(ctx context.Context, m Outgoing) (int64, error) {
	p := make(tgbotapi.Params)
	p.AddNonZero64("chat_id", m.Chat)
	if m.Thread > 1 { // 1 is General, which must be left out
		p.AddNonZero("message_thread_id", m.Thread)
	}
	p.AddBool("disable_notification", m.Silent)
	if m.ReplyTo != 0 {
		p.AddNonZero64("reply_to_message_id", m.ReplyTo)
		p.AddBool("allow_sending_without_reply", true)
	}
	var (
		raw json.RawMessage
		err error
	)
	if err := t.content(p, m); err != nil {
		return 0, err
	}
	if len(m.Photo) > 0 {
		raw, err = t.upload(ctx, "sendPhoto", p, tgbotapi.RequestFile{
			Name: "photo", Data: tgbotapi.FileBytes{Name: "chart.png", Bytes: m.Photo},
		})
	} else {
		raw, err = t.call(ctx, "sendMessage", p)
	}
	if err != nil {
		return 0, t.learn(err)
	}
	var sent struct {
		ID int64 `json:"message_id"`
	}
	if err := json.Unmarshal(raw, &sent); err != nil {
		return 0, &Error{Method: "sendMessage", Reason: "the answer is no message", trouble: troubleUnknown}
	}
	return sent.ID, nil
}

// Edit replaces text and buttons of a message. One that says the same already
// is a success.
func (t *Telegram) Edit(ctx context.Context, id int64, m Outgoing) error {
	p := make(tgbotapi.Params)
	p.AddNonZero64("chat_id", m.Chat)
	p.AddNonZero64("message_id", id)
	if err := t.content(p, m); err != nil {
		return err
	}
	_, err := t.call(ctx, "editMessageText", p)
	if troubleOf(err) == troubleSame {
		return nil
	}
	return t.learn(err)
}

// Callback answers the press of a button, at most 200 characters, as an alert
// when it should not be missed. A press too old to answer is no error.
func (t *Telegram) Callback(ctx context.Context, id, text string, alert bool) error {
	p := make(tgbotapi.Params)
	p["callback_query_id"] = id
	p.AddNonEmpty("text", cut(clean(text), 200))
	p.AddBool("show_alert", alert)
	_, err := t.call(ctx, "answerCallbackQuery", p)
	if troubleOf(err) == troubleStale {
		return nil
	}
	return err
}

// Ping asks Telegram who the bot is: the definite sign of life after requests
// whose fate is unknown.
func (t *Telegram) Ping(ctx context.Context) error {
	raw, err := t.call(ctx, "getMe", nil)
	if err != nil {
		return err
	}
	var me struct {
		Username string `json:"username"`
	}
	if err := json.Unmarshal(raw, &me); err != nil || me.Username == "" {
		return &Error{Method: "getMe", Reason: "the answer is no user: is this a Bot API?", trouble: troubleUnknown}
	}
	t.mu.Lock()
	t.health.Username = me.Username
	t.mu.Unlock()
	return nil
}

// content puts text and buttons into a request. A message without buttons has
// no reply_markup at all: an empty keyboard of the library marshals to null,
// which servers refuse.
func (t *Telegram) content(p tgbotapi.Params, m Outgoing) error {
	text, field := m.HTML, "text"
	if len(m.Photo) > 0 {
		field = "caption"
	} else {
		p.AddBool("disable_web_page_preview", true)
	}
	switch {
	case m.Plain:
		text = clean(Plain(text))
	default:
		if t.noTime.Load() {
			text = stripTag(text, "tg-time")
		}
		p["parse_mode"] = tgbotapi.ModeHTML
	}
	p[field] = text
	if len(m.Buttons) == 0 {
		return nil
	}
	type key struct {
		Text string `json:"text"`
		Data string `json:"callback_data"`
	}
	rows := make([][]key, 0, len(m.Buttons))
	for _, row := range m.Buttons {
		keys := make([]key, 0, len(row))
		for _, b := range row {
			keys = append(keys, key(b))
		}
		rows = append(rows, keys)
	}
	markup, err := json.Marshal(map[string]any{"inline_keyboard": rows})
	if err != nil {
		return fmt.Errorf("marshal keyboard: %w", err)
	}
	p["reply_markup"] = string(markup)
	return nil
}

// learn remembers from an error what the server cannot do.
func (t *Telegram) learn(err error) error {
	if troubleOf(err) == troubleTime && !t.noTime.Swap(true) {
		t.log.Info("this Bot API server does not know tg-time: times are printed in the configured zone")
	}
	return err
}

// call makes a request with the time-out of a send.
func (t *Telegram) call(ctx context.Context, method string, p tgbotapi.Params) (json.RawMessage, error) {
	return t.request(ctx, sendTimeout, method, func(api *tgbotapi.BotAPI) (*tgbotapi.APIResponse, error) {
		return api.MakeRequest(method, p)
	})
}

func (t *Telegram) upload(ctx context.Context, method string, p tgbotapi.Params, file tgbotapi.RequestFile) (json.RawMessage, error) {
	return t.request(ctx, sendTimeout, method, func(api *tgbotapi.BotAPI) (*tgbotapi.APIResponse, error) {
		return api.UploadFiles(method, p, []tgbotapi.RequestFile{file})
	})
}

func (t *Telegram) request(ctx context.Context, limit time.Duration, method string, do func(*tgbotapi.BotAPI) (*tgbotapi.APIResponse, error)) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d := &doer{ctx: ctx, transport: t.transport}
	api := &tgbotapi.BotAPI{Token: t.token, Client: d} // NewBotAPI would call getMe
	api.SetAPIEndpoint(t.endpoint)
	resp, err := do(api)
	e := t.failure(ctx, method, d, resp, err)
	t.note(method, d.status, e)
	if e != nil {
		return nil, e
	}
	return resp.Result, nil
}

// failure reads what a request came to; nil is a success.
func (t *Telegram) failure(ctx context.Context, method string, d *doer, resp *tgbotapi.APIResponse, err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Method: method, Code: d.status}
	if api, ok := errors.AsType[*tgbotapi.Error](err); ok {
		// Uploads leave the code out of the error, not out of the answer.
		e.Code = cmp.Or(api.Code, resp.ErrorCode, d.status)
		e.Reason = redact(api.Message, t.token)
		e.RetryAfter = time.Duration(api.RetryAfter) * time.Second
		e.MoveTo = api.MigrateToChatID
		e.trouble = classify(e.Code, e.Reason)
		if e.MoveTo != 0 {
			e.trouble = troubleMoved
		}
	} else if d.status >= 300 {
		// A proxy's page: only the status means anything.
		e.Reason = "the answer is none of a Bot API: " + http.StatusText(d.status)
		e.trouble = classify(d.status, "")
	} else {
		e.Reason = redact(plainCause(err), t.token)
		e.trouble = troubleOffline
		if d.wrote.Load() {
			e.trouble = troubleUnknown
		}
		if cause := ctx.Err(); cause != nil {
			e.cause = cause
		}
	}
	if e.trouble == troubleLimited {
		e.RetryAfter = cmp.Or(e.RetryAfter, d.retryAfter, time.Second)
	}
	return e
}

// plainCause leaves the address, and the token in it, out of a transport error.
func plainCause(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err.Error()
	}
	return err.Error()
}

func redact(s, token string) string {
	s = strings.ReplaceAll(s, token, "[token]")
	s = strings.ReplaceAll(s, url.PathEscape(token), "[token]")
	return strings.ReplaceAll(s, url.QueryEscape(token), "[token]")
}

func (t *Telegram) note(method string, status int, e *Error) {
	code := "none"
	switch {
	case e != nil && e.Code != 0:
		code = strconv.Itoa(e.Code)
	case status != 0:
		code = strconv.Itoa(status)
	}
	t.requests.WithLabelValues(method, code).Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e != nil {
		switch e.trouble {
		case troubleConfig, troubleOffline, troubleUnknown:
			if errors.Is(e.cause, context.Canceled) {
				return // ours
			}
			t.health.ErrorAt, t.health.Error = t.now(), e.Error()
			t.health.Unusable = e.trouble == troubleConfig
			return
		}
	}
	t.health.OKAt, t.health.Error, t.health.Unusable = t.now(), "", false
}

// doer carries one request of the library: it adds what the library lacks, a
// context, a bound on the answer, and the word whether anything was written.
type doer struct {
	ctx        context.Context
	transport  http.RoundTripper
	wrote      atomic.Bool
	status     int
	retryAfter time.Duration
}

// Do sends the request. Redirects are not followed: a POST would turn into a
// GET elsewhere, with the token in its address.
func (d *doer) Do(req *http.Request) (*http.Response, error) {
	trace := &httptrace.ClientTrace{
		GetConn:      func(string) { d.wrote.Store(false) }, // a repeat on a new connection: nothing was written before
		WroteHeaders: func() { d.wrote.Store(true) },
	}
	resp, err := d.transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(d.ctx, trace)))
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the library's upload writes into a pipe until somebody closes it
		}
		return nil, err
	}
	d.status = resp.StatusCode
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		d.retryAfter = time.Duration(s) * time.Second
	}
	resp.Body = &answer{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}

// answer is a bounded body that reads what a JSON decoder has left before it is
// closed, so that the connection is used again.
type answer struct {
	io.Reader
	body io.Closer
}

func (a *answer) Close() error {
	_, _ = io.CopyN(io.Discard, a.Reader, 4096) // best effort
	return a.body.Close()
}

// update is one thing that happened, as far as the bot cares.
type update struct {
	ID       int64          `json:"update_id"`
	Message  *message       `json:"message"`
	Callback *callbackQuery `json:"callback_query"`
	Member   *memberUpdate  `json:"my_chat_member"`
}

type message struct {
	ID            int64    `json:"message_id"`
	Date          int64    `json:"date"` // 0 when the message is inaccessible
	From          *user    `json:"from"` // absent in channels
	SenderChat    *chat    `json:"sender_chat"`
	Chat          chat     `json:"chat"`
	Thread        int      `json:"message_thread_id"`
	IsTopic       bool     `json:"is_topic_message"`
	Text          string   `json:"text"`
	Entities      []entity `json:"entities"`
	MigrateTo     int64    `json:"migrate_to_chat_id"`
	MigrateFrom   int64    `json:"migrate_from_chat_id"`
	ForwardOrigin any      `json:"forward_origin"`
}

type user struct {
	ID        int64  `json:"id"`
	IsBot     bool   `json:"is_bot"`
	FirstName string `json:"first_name"`
	Username  string `json:"username"`
}

type chat struct {
	ID   int64  `json:"id"`
	Type string `json:"type"`
}

type entity struct {
	Type   string `json:"type"`
	Offset int    `json:"offset"` // in UTF-16 code units
	Length int    `json:"length"`
}

type callbackQuery struct {
	ID      string   `json:"id"`
	From    user     `json:"from"`
	Message *message `json:"message"`
	Data    string   `json:"data"`
}

type memberUpdate struct {
	Chat chat `json:"chat"`
	New  struct {
		Status string `json:"status"`
	} `json:"new_chat_member"`
}

// updates long-polls for what comes after offset-1. Updates are raw: one that
// cannot be read must not block the others.
func (t *Telegram) updates(ctx context.Context, offset int64, wait time.Duration) ([]json.RawMessage, error) {
	p := tgbotapi.Params{
		// Absent, it would keep whatever another program has set.
		"allowed_updates": `["message","callback_query","my_chat_member"]`,
		"timeout":         strconv.Itoa(int(wait / time.Second)),
	}
	p.AddNonZero64("offset", offset)
	raw, err := t.request(ctx, pollTimeout, "getUpdates", func(api *tgbotapi.BotAPI) (*tgbotapi.APIResponse, error) {
		return api.MakeRequest("getUpdates", p)
	})
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&list); err != nil {
		return nil, &Error{Method: "getUpdates", Reason: "the answer is no list of updates", trouble: troubleUnknown}
	}
	return list, nil
}

func (t *Telegram) deleteWebhook(ctx context.Context) error {
	_, err := t.call(ctx, "deleteWebhook", nil) // updates that wait are kept
	return err
}

func (t *Telegram) setCommands(ctx context.Context, commands []command) error {
	type entry struct {
		Command     string `json:"command"`
		Description string `json:"description"`
	}
	list := make([]entry, 0, len(commands))
	for _, c := range commands {
		list = append(list, entry{c.name, c.help})
	}
	body, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("marshal commands: %w", err)
	}
	_, err = t.call(ctx, "setMyCommands", tgbotapi.Params{"commands": string(body)})
	return err
}
