// Package telegramtest is a stand-in for Telegram's Bot API on loopback, as
// strict as the real one: it parses HTML and answers with the real error texts,
// counts code points, refuses null keyboards and long callback data, knows its
// chats and topics, remembers allowed_updates and lets the newer of two pollers
// win. Tests push what people send and wait for what they would see.
//
// It is not for anything but tests, and enforces no rate on its own: a test
// asks for a 429 where it wants one.
package telegramtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// The bot that every server stands for.
const (
	Token    = "123456:TEST-token_of-the-stand-in"
	BotID    = 123456
	Username = "breaker_test_bot"
)

// Button is a key of a message.
type Button struct {
	Text string `json:"text"`
	Data string `json:"callback_data"`
}

// Version is what a message said at one time.
type Version struct {
	Text     string // parsed: what a reader sees
	Source   string // as it was sent
	Entities []Entity
	Buttons  [][]Button
}

// Message is one message of the bot.
type Message struct {
	Version // as it stands now
	ID      int64
	Chat    int64
	Thread  int
	Silent  bool
	ReplyTo int64
	Photo   int       // bytes of the picture
	Before  []Version // what it said before its edits, oldest first
}

// Sounded tells whether somebody's phone rang.
func (m Message) Sounded() bool { return !m.Silent }

// Edits is how often the message was edited.
func (m Message) Edits() int { return len(m.Before) }

// Button finds a key by its text.
func (m Message) Button(text string) (Button, bool) {
	for _, row := range m.Buttons {
		for _, b := range row {
			if b.Text == text {
				return b, true
			}
		}
	}
	return Button{}, false
}

// Answer is what a press of a button was answered.
type Answer struct {
	Query string
	Text  string
	Alert bool
}

// Request is one request that reached the server, in its order.
type Request struct {
	Method string
	Params url.Values
}

// Fault makes requests fail. Zero fields mean: any method, any chat, once.
type Fault struct {
	Method string
	Chat   int64
	Times  int // below zero: until cleared

	Code        int    // Telegram's error, with Description
	Description string // with Code: after "Bad Request: " and so on, as it stands
	RetryAfter  int    // seconds; makes it a 429
	HTML        int    // status of a proxy's HTML page instead of JSON
	Drop        bool   // the connection closes without an answer
	// Deliver does the work all the same, so that only the answer fails.
	Deliver bool
}

// Server is the stand-in. All methods are safe for concurrent use.
type Server struct {
	// URL is what TELEGRAM_API_URL is set to.
	URL string

	http *httptest.Server
	done chan struct{}

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at each change
	chats      map[int64]*room
	messages   []*Message
	gone       map[int64]bool // deleted messages
	answers    []Answer
	queries    map[string]bool // pressed and not yet answered
	requests   []Request
	faults     []*Fault
	updates    []queued
	nextUpdate int64
	nextID     int64
	allowed    []string // nil: the default set
	poll       chan struct{}
	webhook    bool
	timeless   bool
	commands   []string
	violations []string
}

type queued struct {
	id   int64
	kind string
	raw  json.RawMessage
}

type room struct {
	kind    string
	forum   bool
	topics  map[int]bool // true while open
	refusal *apiError
	moved   int64
}

type apiError struct {
	code        int
	description string
	retryAfter  int
	moveTo      int64
}

func (e *apiError) Error() string { return e.description }

func bad(format string, args ...any) *apiError {
	return &apiError{code: 400, description: "Bad Request: " + fmt.Sprintf(format, args...)}
}

// New starts a server that the test's end stops. Requests that no correct
// client makes, such as one with an unknown parameter, fail the test then.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{
		done: make(chan struct{}), changed: make(chan struct{}), chats: make(map[int64]*room),
		queries: make(map[string]bool), gone: make(map[int64]bool), nextUpdate: 1000, nextID: 1,
	}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.http.URL
	tb.Cleanup(func() {
		s.Close()
		for _, v := range s.Violations() {
			tb.Errorf("telegram stand-in: %s", v)
		}
	})
	return s
}

// Close stops the server and ends polls in flight. Closing twice is fine.
func (s *Server) Close() {
	s.mu.Lock()
	select {
	case <-s.done:
		s.mu.Unlock()
		return
	default:
	}
	close(s.done)
	s.mu.Unlock()
	s.http.CloseClientConnections()
	s.http.Close()
}

// Violations lists requests that no correct client makes.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// AddPrivate makes a user who has started the bot; the chat has the user's id.
func (s *Server) AddPrivate(user int64) { s.addChat(user, &room{kind: "private"}) }

// AddGroup makes a group with the bot in it.
func (s *Server) AddGroup(id int64) { s.addChat(id, &room{kind: "group"}) }

// AddForum makes a supergroup with topics.
func (s *Server) AddForum(id int64, topics ...int) {
	r := &room{kind: "supergroup", forum: true, topics: make(map[int]bool)}
	for _, t := range topics {
		r.topics[t] = true
	}
	s.addChat(id, r)
}

func (s *Server) addChat(id int64, r *room) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chats[id] = r
}

// DeleteTopic makes a topic unknown.
func (s *Server) DeleteTopic(chat int64, topic int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.chats[chat].topics, topic)
}

// Block makes a chat refuse the bot, as "Forbidden: bot was blocked by the user"
// with code 403. An empty description ends it.
func (s *Server) Block(chat int64, code int, description string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chats[chat].refusal = nil
	if description != "" {
		s.chats[chat].refusal = &apiError{code: code, description: description}
	}
}

// Migrate turns a group into a supergroup with a new id. Sends to the old one
// fail with the new id, edits only find no message. Without tell, no service
// message says so.
func (s *Server) Migrate(from, to int64, tell bool) {
	s.mu.Lock()
	s.chats[from].moved = to
	s.chats[to] = &room{kind: "supergroup"}
	s.mu.Unlock()
	if tell {
		s.push("message", map[string]any{
			"message_id": s.id(), "date": time.Now().Unix(),
			"chat": map[string]any{"id": from, "type": "group"}, "migrate_to_chat_id": to,
		})
	}
}

// SetWebhook makes polling impossible until the webhook is deleted.
func (s *Server) SetWebhook() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.webhook = true
}

// ForgetTime makes the server as old as one that does not know tg-time.
func (s *Server) ForgetTime() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeless = true
}

// DeleteMessage deletes a message, as a reader may.
func (s *Server) DeleteMessage(chat, id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[id] = true
	s.messages = slices.DeleteFunc(s.messages, func(m *Message) bool { return m.Chat == chat && m.ID == id })
}

// Fail lets the next fitting requests fail; faults are used up in their order.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	s.faults = append(s.faults, &f)
}

// ClearFaults ends all faults.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Sent says who sends something, and how.
type Sent struct {
	User   int64
	Chat   int64
	Text   string
	Thread int
	At     time.Time // zero: now
	// SenderChat is set for anonymous admins and channels.
	SenderChat int64
	NoFrom     bool // a message without from
	NoEntity   bool // the text is no command for Telegram
	Forwarded  bool
	Edited     bool
}

// Command lets a user send a text; a command at its beginning becomes an entity,
// as Telegram makes it. It gives the update's id.
func (s *Server) Command(user, chat int64, text string) int64 {
	return s.Send(Sent{User: user, Chat: chat, Text: text})
}

// Send lets somebody send a text in any way there is.
func (s *Server) Send(m Sent) int64 {
	if m.At.IsZero() {
		m.At = time.Now()
	}
	s.mu.Lock()
	kind := "private"
	if r := s.chats[m.Chat]; r != nil {
		kind = r.kind
	} else if m.Chat < 0 {
		kind = "group"
	}
	s.mu.Unlock()
	body := map[string]any{
		"message_id": s.id(), "date": m.At.Unix(), "text": m.Text,
		"chat": map[string]any{"id": m.Chat, "type": kind},
	}
	if !m.NoFrom {
		body["from"] = map[string]any{"id": m.User, "is_bot": m.User == 1087968824, "first_name": "User" + strconv.FormatInt(m.User, 10)}
	}
	if m.SenderChat != 0 {
		body["sender_chat"] = map[string]any{"id": m.SenderChat, "type": kind}
	}
	if m.Thread != 0 {
		body["message_thread_id"], body["is_topic_message"] = m.Thread, true
	}
	if m.Forwarded {
		body["forward_origin"] = map[string]any{"type": "user", "date": m.At.Unix()}
	}
	if n := commandLength(m.Text); n > 0 && !m.NoEntity {
		body["entities"] = []Entity{{Type: "bot_command", Offset: 0, Length: n}}
	}
	field := "message"
	if m.Edited {
		field = "edited_message"
	}
	return s.push(field, body)
}

func commandLength(text string) int {
	if !strings.HasPrefix(text, "/") {
		return 0
	}
	n := 1
	for n < len(text) && (alnum(text[n]) || text[n] == '_' || text[n] == '@') {
		n++
	}
	if n == 1 {
		return 0
	}
	return n
}

// Press lets a user press a button, or send any data as an odd client can. It
// gives the query's id, to wait for its answer.
func (s *Server) Press(user int64, on Message, data string) string {
	s.mu.Lock()
	id := strconv.FormatInt(s.nextUpdate, 10) + "-query"
	s.queries[id] = true
	kind := "private"
	if r := s.chats[on.Chat]; r != nil {
		kind = r.kind
	}
	s.mu.Unlock()
	message := map[string]any{
		"message_id": on.ID, "date": time.Now().Unix(), "text": on.Text,
		"chat": map[string]any{"id": on.Chat, "type": kind},
	}
	if on.Thread != 0 {
		message["message_thread_id"], message["is_topic_message"] = on.Thread, true
	}
	s.push("callback_query", map[string]any{
		"id": id, "data": data, "message": message, "chat_instance": "1",
		"from": map[string]any{"id": user, "is_bot": false, "first_name": "User" + strconv.FormatInt(user, 10)},
	})
	return id
}

// Member tells the bot of its own standing in a chat: member, kicked, left.
func (s *Server) Member(chat int64, status string) int64 {
	return s.push("my_chat_member", map[string]any{
		"chat": map[string]any{"id": chat, "type": "group"}, "date": time.Now().Unix(),
		"new_chat_member": map[string]any{"status": status},
	})
}

// Push lets an update of any content wait for the bot; %d in it, if any, becomes
// its id, which it gives.
func (s *Server) Push(kind, raw string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.nextUpdate
	s.nextUpdate++
	s.updates = append(s.updates, queued{id: id, kind: kind, raw: json.RawMessage(strings.ReplaceAll(raw, "%d", strconv.FormatInt(id, 10)))})
	s.change()
	return id
}

func (s *Server) push(kind string, body any) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.nextUpdate
	s.nextUpdate++
	raw, err := json.Marshal(map[string]any{"update_id": id, kind: body})
	if err != nil {
		s.violations = append(s.violations, "push update: "+err.Error())
		return id
	}
	s.updates = append(s.updates, queued{id: id, kind: kind, raw: raw})
	s.change()
	return id
}

func (s *Server) id() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	return s.nextID - 1
}

// change wakes everybody who waits; the caller holds the lock.
func (s *Server) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Until waits until a condition holds, looking again after each change. The
// condition runs without the lock and may call any method.
func (s *Server) Until(ctx context.Context, condition func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if condition() {
			return nil
		}
		select {
		case <-changed:
		case <-s.done:
			return errors.New("telegram stand-in is closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Wait waits for a message that, as it then stands, fits. The error lists what
// there is instead.
func (s *Server) Wait(ctx context.Context, fits func(Message) bool) (Message, error) {
	var found Message
	err := s.Until(ctx, func() bool {
		for _, m := range s.Messages() {
			if fits(m) {
				found = m
				return true
			}
		}
		return false
	})
	if err != nil {
		var texts []string
		for _, m := range s.Messages() {
			texts = append(texts, fmt.Sprintf("%d in %d: %q", m.ID, m.Chat, m.Text))
		}
		return Message{}, fmt.Errorf("wait for message: %w; there are: %s", err, strings.Join(texts, "; "))
	}
	return found, nil
}

// WaitAnswer waits for the answer to a press.
func (s *Server) WaitAnswer(ctx context.Context, query string) (Answer, error) {
	var found Answer
	err := s.Until(ctx, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(s.answers, func(a Answer) bool { return a.Query == query })
		if i >= 0 {
			found = s.answers[i]
		}
		return i >= 0
	})
	if err != nil {
		return Answer{}, fmt.Errorf("wait for answer to press %s: %w", query, err)
	}
	return found, nil
}

// WaitConfirmed waits until the bot has confirmed an update, which it does when
// it is done with it.
func (s *Server) WaitConfirmed(ctx context.Context, update int64) error {
	err := s.Until(ctx, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return update < s.nextUpdate && !slices.ContainsFunc(s.updates, func(q queued) bool { return q.id <= update })
	})
	if err != nil {
		return fmt.Errorf("wait for confirmation of update %d: %w", update, err)
	}
	return nil
}

// WaitPolling waits until a poll is waiting for updates.
func (s *Server) WaitPolling(ctx context.Context) error {
	return s.Until(ctx, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.poll != nil
	})
}

// Messages lists the bot's messages in the order in which they were sent.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Message, 0, len(s.messages))
	for _, m := range s.messages {
		c := *m
		c.Before = slices.Clone(m.Before)
		list = append(list, c)
	}
	return list
}

// Requests lists the requests so far, of one method or, for "", of all.
func (s *Server) Requests(method string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Request
	for _, r := range s.requests {
		if method == "" || r.Method == method {
			list = append(list, r)
		}
	}
	return list
}

// Commands lists the registered commands.
func (s *Server) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// known are the methods with the parameters that a correct client may send.
var known = map[string][]string{
	"getMe":                  {},
	"getUpdates":             {"offset", "limit", "timeout", "allowed_updates"},
	"sendMessage":            {"chat_id", "message_thread_id", "text", "parse_mode", "disable_web_page_preview", "link_preview_options", "disable_notification", "reply_to_message_id", "allow_sending_without_reply", "reply_parameters", "reply_markup"},
	"sendPhoto":              {"chat_id", "message_thread_id", "caption", "parse_mode", "disable_notification", "reply_to_message_id", "allow_sending_without_reply", "reply_parameters", "reply_markup"},
	"editMessageText":        {"chat_id", "message_id", "text", "parse_mode", "disable_web_page_preview", "link_preview_options", "reply_markup"},
	"editMessageReplyMarkup": {"chat_id", "message_id", "reply_markup"},
	"answerCallbackQuery":    {"callback_query_id", "text", "show_alert", "cache_time"},
	"deleteWebhook":          {"drop_pending_updates"},
	"setMyCommands":          {"commands", "scope", "language_code"},
	"getChat":                {"chat_id"},
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	token, method, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/bot"), "/")
	if !strings.HasPrefix(r.URL.Path, "/bot") || !ok {
		fail(w, &apiError{code: 404, description: "Not Found"})
		return
	}
	if token != Token {
		fail(w, &apiError{code: 401, description: "Unauthorized"})
		return
	}
	var p url.Values
	photo := 0
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		if err := r.ParseMultipartForm(16 << 20); err != nil {
			fail(w, bad("%s", err))
			return
		}
		p = r.MultipartForm.Value
		for _, files := range r.MultipartForm.File {
			for _, f := range files {
				photo = int(f.Size)
			}
		}
	} else if err := r.ParseForm(); err != nil {
		fail(w, bad("%s", err))
		return
	} else {
		p = r.Form
	}
	params, exists := known[method]
	s.mu.Lock()
	s.requests = append(s.requests, Request{Method: method, Params: p})
	if !exists {
		s.violations = append(s.violations, "unknown method "+method)
	}
	for name := range p {
		if exists && !slices.Contains(params, name) {
			s.violations = append(s.violations, method+" with unknown parameter "+name)
		}
	}
	fault := s.fault(method, number(p, "chat_id"))
	s.change()
	s.mu.Unlock()
	if !exists {
		fail(w, &apiError{code: 404, description: "Not Found: method not found"})
		return
	}
	if fault == nil {
		s.reply(w, s.do(r.Context(), method, p, photo))
		return
	}
	if fault.Deliver {
		_ = s.do(r.Context(), method, p, photo)
	}
	switch {
	case fault.Drop:
		drop(w)
	case fault.HTML != 0:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(fault.HTML)
		_, _ = fmt.Fprintf(w, "<html><body><h1>%d %s</h1></body></html>", fault.HTML, http.StatusText(fault.HTML))
	case fault.RetryAfter > 0:
		fail(w, &apiError{code: 429, description: fmt.Sprintf("Too Many Requests: retry after %d", fault.RetryAfter), retryAfter: fault.RetryAfter})
	default:
		fail(w, &apiError{code: fault.Code, description: fault.Description})
	}
}

// fault takes the first one that fits; the caller holds the lock.
func (s *Server) fault(method string, chat int64) *Fault {
	for i, f := range s.faults {
		if (f.Method != "" && f.Method != method) || (f.Chat != 0 && f.Chat != chat) {
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				s.faults = slices.Delete(s.faults, i, i+1)
			}
		}
		return f
	}
	return nil
}

func drop(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func (s *Server) reply(w http.ResponseWriter, result any) {
	if err, ok := result.(*apiError); ok {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"ok": true, "result": result})
}

func fail(w http.ResponseWriter, e *apiError) {
	body := map[string]any{"ok": false, "error_code": e.code, "description": e.description}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
		body["parameters"] = map[string]any{"retry_after": e.retryAfter}
	}
	if e.moveTo != 0 {
		body["parameters"] = map[string]any{"migrate_to_chat_id": e.moveTo}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.code)
	_ = json.NewEncoder(w).Encode(body)
}

func number(p url.Values, name string) int64 {
	n, _ := strconv.ParseInt(p.Get(name), 10, 64) // 0 is no id of anything
	return n
}

func (s *Server) do(ctx context.Context, method string, p url.Values, photo int) any {
	if method == "getUpdates" {
		return s.getUpdates(ctx, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	for name, values := range p {
		for _, v := range values {
			if !utf8.ValidString(v) {
				return bad("strings must be encoded in UTF-8: %s", name)
			}
		}
	}
	switch method {
	case "getMe":
		return map[string]any{"id": BotID, "is_bot": true, "first_name": "Breaker", "username": Username}
	case "sendMessage", "sendPhoto":
		return s.send(method, p, photo)
	case "editMessageText", "editMessageReplyMarkup":
		return s.edit(method, p)
	case "answerCallbackQuery":
		id := p.Get("callback_query_id")
		if !s.queries[id] {
			return bad("query is too old and response timeout expired or query ID is invalid")
		}
		if utf8.RuneCountInString(p.Get("text")) > 200 {
			return bad("MESSAGE_TOO_LONG")
		}
		delete(s.queries, id)
		s.answers = append(s.answers, Answer{Query: id, Text: p.Get("text"), Alert: p.Get("show_alert") == "true"})
		return true
	case "deleteWebhook":
		s.webhook = false
		return true
	case "setMyCommands":
		var list []struct{ Command, Description string }
		if err := json.Unmarshal([]byte(p.Get("commands")), &list); err != nil {
			return bad("can't parse commands JSON object")
		}
		s.commands = nil
		for _, c := range list {
			if strings.Trim(c.Command, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || c.Command == "" || len(c.Command) > 32 {
				return bad("BOT_COMMAND_INVALID")
			}
			if n := utf8.RuneCountInString(c.Description); n < 1 || n > 256 {
				return bad("BOT_COMMAND_DESCRIPTION_INVALID")
			}
			s.commands = append(s.commands, c.Command)
		}
		return true
	default: // getChat
		id := number(p, "chat_id")
		r := s.chats[id]
		if r == nil {
			return bad("chat not found")
		}
		return map[string]any{"id": id, "type": r.kind, "is_forum": r.forum}
	}
}

func (s *Server) room(p url.Values) (int64, *room, *apiError) {
	if p.Get("chat_id") == "" {
		return 0, nil, bad("chat_id is empty")
	}
	id := number(p, "chat_id")
	r := s.chats[id]
	if r == nil {
		return 0, nil, bad("chat not found")
	}
	return id, r, nil
}

// content reads text and buttons as the server does.
func (s *Server) content(p url.Values, field string, limit int) (Version, *apiError) {
	source := p.Get(field)
	v := Version{Source: source, Text: source}
	if len(source) > 32768 {
		return v, bad("%s is too long", field)
	}
	switch mode := p.Get("parse_mode"); strings.ToLower(mode) {
	case "":
	case "html":
		text, entities, err := parseHTML(source, s.timeless)
		if err != nil {
			return v, err
		}
		v.Text, v.Entities = text, entities
	default:
		s.violations = append(s.violations, "parse_mode "+mode+": only HTML is implemented")
		return v, bad("unsupported parse_mode")
	}
	v.Text = strings.TrimSpace(v.Text)
	switch n := utf8.RuneCountInString(v.Text); {
	case n == 0 && field == "text":
		return v, bad("message text is empty")
	case n > limit && field == "text":
		return v, bad("message is too long")
	case n > limit:
		return v, bad("message caption is too long")
	}
	var err *apiError
	v.Buttons, err = keyboard(p.Get("reply_markup"))
	return v, err
}

func keyboard(raw string) ([][]Button, *apiError) {
	if raw == "" {
		return nil, nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(raw), &object); err != nil || object == nil {
		return nil, bad("object expected as reply markup")
	}
	rows, ok := object["inline_keyboard"]
	if !ok {
		return nil, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(rows, &list); err != nil || list == nil {
		return nil, bad(`can't parse inline keyboard: field "inline_keyboard" must be of type Array`)
	}
	var keys [][]Button
	total := 0
	for _, row := range list {
		var buttons []Button
		if err := json.Unmarshal(row, &buttons); err != nil || buttons == nil {
			return nil, bad("can't parse inline keyboard button: row must be of type Array")
		}
		for _, b := range buttons {
			switch {
			case b.Text == "":
				return nil, bad("can't parse inline keyboard button: text must be non-empty")
			case b.Data == "":
				return nil, bad("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
			case len(b.Data) > 64:
				return nil, bad("BUTTON_DATA_INVALID")
			}
			total++
		}
		if len(buttons) > 8 {
			return nil, bad("reply markup is too long")
		}
		keys = append(keys, buttons)
	}
	if total > 100 {
		return nil, bad("reply markup is too long")
	}
	return keys, nil
}

func (s *Server) send(method string, p url.Values, photo int) any {
	id, r, err := s.room(p)
	switch {
	case err != nil:
		return err
	case r.moved != 0:
		return &apiError{code: 400, description: "Bad Request: group chat was upgraded to a supergroup chat", moveTo: r.moved}
	case r.refusal != nil:
		return r.refusal
	}
	field, limit := "text", 4096
	if method == "sendPhoto" {
		if field, limit = "caption", 1024; photo == 0 {
			return bad("there is no photo in the request")
		}
	} else if p.Get("disable_web_page_preview") != "true" && !strings.Contains(p.Get("link_preview_options"), "is_disabled") {
		s.violations = append(s.violations, "sendMessage with link previews")
	}
	v, err := s.content(p, field, limit)
	if err != nil {
		return err
	}
	m := &Message{Version: v, Chat: id, Silent: p.Get("disable_notification") == "true", Photo: photo}
	if t := p.Get("message_thread_id"); t != "" {
		m.Thread = int(number(p, "message_thread_id"))
		if open, known := r.topics[m.Thread]; !known {
			return bad("message thread not found")
		} else if !open {
			return bad("TOPIC_CLOSED")
		}
	}
	if reply := number(p, "reply_to_message_id"); reply != 0 {
		// Other people's messages are not kept; what the bot deleted is known.
		if s.find(id, reply) != nil || (reply < s.nextID && !s.gone[reply]) {
			m.ReplyTo = reply
		} else if p.Get("allow_sending_without_reply") != "true" {
			return bad("message to be replied not found")
		}
	}
	m.ID = s.nextID
	s.nextID++
	s.messages = append(s.messages, m)
	return s.result(m)
}

func (s *Server) find(chat, id int64) *Message {
	for _, m := range s.messages {
		if m.Chat == chat && m.ID == id {
			return m
		}
	}
	return nil
}

func (s *Server) edit(method string, p url.Values) any {
	id, r, err := s.room(p)
	if err != nil {
		return err
	}
	if r.refusal != nil {
		return r.refusal
	}
	m := s.find(id, number(p, "message_id"))
	if m == nil || r.moved != 0 {
		return bad("message to edit not found")
	}
	var v Version
	if method == "editMessageText" {
		if v, err = s.content(p, "text", 4096); err != nil {
			return err
		}
		if m.Photo > 0 {
			return bad("there is no text in the message to edit")
		}
	} else {
		v = m.Version
		if v.Buttons, err = keyboard(p.Get("reply_markup")); err != nil {
			return err
		}
	}
	if v.Text == m.Text && slices.Equal(v.Entities, m.Entities) && slices.EqualFunc(v.Buttons, m.Buttons, slices.Equal[[]Button]) {
		return bad("message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message")
	}
	m.Before = append(m.Before, m.Version)
	m.Version = v
	return s.result(m)
}

func (s *Server) result(m *Message) any {
	out := map[string]any{
		"message_id": m.ID, "date": time.Now().Unix(), "text": m.Text,
		"chat": map[string]any{"id": m.Chat, "type": s.chats[m.Chat].kind},
		"from": map[string]any{"id": BotID, "is_bot": true, "first_name": "Breaker", "username": Username},
	}
	if m.Thread != 0 {
		out["message_thread_id"], out["is_topic_message"] = m.Thread, true
	}
	return out
}

// maxPoll is the longest that a poll waits, whatever is asked for.
const maxPoll = 50 * time.Second

func (s *Server) getUpdates(ctx context.Context, p url.Values) any {
	mine := make(chan struct{})
	s.mu.Lock()
	if s.webhook {
		s.mu.Unlock()
		return &apiError{code: 409, description: "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"}
	}
	if raw := p.Get("allowed_updates"); raw == "" || raw == "null" {
		s.violations = append(s.violations, "getUpdates without allowed_updates keeps what another program has set")
	} else if err := json.Unmarshal([]byte(raw), &s.allowed); err != nil {
		s.mu.Unlock()
		return bad("can't parse allowed_updates JSON object")
	}
	if s.poll != nil {
		close(s.poll) // the newer wins
	}
	s.poll = mine
	if offset := number(p, "offset"); offset != 0 {
		s.updates = slices.DeleteFunc(s.updates, func(q queued) bool { return q.id < offset })
	}
	s.change()
	s.mu.Unlock()

	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.poll == mine {
			s.poll = nil
			s.change()
		}
	}()
	limit := int(number(p, "limit"))
	if limit < 1 || limit > 100 {
		limit = 100
	}
	timer := time.NewTimer(min(time.Duration(number(p, "timeout"))*time.Second, maxPoll))
	defer timer.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		list := make([]json.RawMessage, 0)
		for _, q := range s.updates {
			if len(list) < limit && (len(s.allowed) == 0 || slices.Contains(s.allowed, q.kind)) {
				list = append(list, q.raw)
			}
		}
		s.mu.Unlock()
		if len(list) > 0 {
			return list
		}
		select {
		case <-changed:
		case <-mine:
			return &apiError{code: 409, description: "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"}
		case <-timer.C:
			return list
		case <-ctx.Done():
			return list
		case <-s.done:
			return list
		}
	}
}

// String lists the messages as a reader would see them, for a failing test.
func (s *Server) String() string {
	var b strings.Builder
	for _, m := range s.Messages() {
		fmt.Fprintf(&b, "— message %d in %d (silent %t, %d edits, reply to %d)\n%s\n", m.ID, m.Chat, m.Silent, m.Edits(), m.ReplyTo, m.Text)
	}
	return b.String()
}
