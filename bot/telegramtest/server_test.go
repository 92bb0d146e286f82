package telegramtest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client keeps no connection, so that none looks like a leak.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func TestParse(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"plain & bare > signs":                         "plain & bare > signs",
		"<b>a</b> <i>b</i> &lt;x&gt; &amp;amp; &quot;": "a b <x> &amp; \"",
		"&nbsp; stays, &#34; and &#x41; do not":        "&nbsp; stays, \" and A do not",
		"<a href=\"http://x/?a=1&amp;b=2\">link</a>":   "link",
		"<blockquote expandable>a\nb</blockquote>":     "a\nb",
		`<tg-time unix="1" format="wDT">x</tg-time>`:   "x",
		"<B>upper</b>":                    "upper",
		"<b>short</>":                     "short",
		"a < b":                           `!can't parse entities: Unsupported start tag "" at byte offset 2`,
		"é<x>":                            `!can't parse entities: Unsupported start tag "x" at byte offset 2`,
		"<b":                              "!can't parse entities: Unclosed start tag at byte offset 0",
		"<b>x":                            `!can't parse entities: Can't find end tag corresponding to start tag "b"`,
		"x</b>":                           "!can't parse entities: Unexpected end tag at byte offset 1",
		"<b>x</i>":                        `!can't parse entities: Unmatched end tag at byte offset 4, expected "</b>", found "</i>"`,
		"<b>x</b":                         "!can't parse entities: Unclosed end tag at byte offset 4",
		"<span>x</span>":                  `!can't parse entities: Tag "span" must have class "tg-spoiler" at byte offset 0`,
		"<ul>x</ul>":                      `!can't parse entities: Unsupported start tag "ul" at byte offset 0`,
		"x<br>":                           `!can't parse entities: Unsupported start tag "br" at byte offset 1`,
		`<tg-time format="t">x</tg-time>`: "!can't parse entities: Invalid Unix time at byte offset 0",
		`<tg-time unix="1" format="q">x</tg-time>`: "!can't parse entities: Invalid date-time format at byte offset 0",
	} {
		got, _, err := Parse(source)
		if err != nil {
			got = "!" + strings.TrimPrefix(err.Error(), "Bad Request: ")
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", source, got, want)
		}
	}
	_, entities, err := Parse("🔴 <b>x</b>")
	if err != nil || len(entities) != 1 || entities[0].Offset != 3 || entities[0].Length != 1 {
		t.Errorf("offsets count UTF-16 units: %+v, %v", entities, err)
	}
}

type reply struct {
	OK          bool
	Result      json.RawMessage
	ErrorCode   int `json:"error_code"`
	Description string
	Parameters  struct {
		RetryAfter int   `json:"retry_after"`
		MoveTo     int64 `json:"migrate_to_chat_id"`
	}
}

func call(t *testing.T, s *Server, method string, params ...string) reply {
	t.Helper()
	r, err := try(t.Context(), s, method, params...)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return r
}

func try(ctx context.Context, s *Server, method string, params ...string) (reply, error) {
	v := url.Values{}
	for i := 0; i < len(params); i += 2 {
		v.Set(params[i], params[i+1])
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/bot"+Token+"/"+method, strings.NewReader(v.Encode()))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	var r reply
	return r, json.Unmarshal(body, &r)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.AddGroup(-1)
	s.AddForum(-2, 7)
	s.AddPrivate(3)
	s.Block(3, 403, "Forbidden: bot was blocked by the user")
	preview := []string{"disable_web_page_preview", "true"}
	send := func(chat string, more ...string) []string {
		return append(append([]string{"sendMessage", "chat_id", chat}, more...), preview...)
	}
	first := call(t, s, "sendMessage", send("-1", "text", "hello", "parse_mode", "HTML")[1:]...)
	if !first.OK {
		t.Fatalf("first message: %+v", first)
	}
	for _, c := range []struct {
		request []string
		want    string
	}{
		{send("-1", "text", " \n "), "message text is empty"},
		{send("-1", "text", strings.Repeat("é", 4097)), "message is too long"},
		{send("-1", "text", strings.Repeat("&lt;", 4096), "parse_mode", "HTML"), ""},
		{send("-1", "text", strings.Repeat("é", 20000)), "text is too long"},
		{send("-1", "text", "<x>", "parse_mode", "HTML"), `can't parse entities: Unsupported start tag "x" at byte offset 0`},
		{send("-1", "text", "\xff"), "strings must be encoded in UTF-8: text"},
		{send("-9", "text", "x"), "chat not found"},
		{send("", "text", "x"), "chat_id is empty"},
		{send("3", "text", "x"), "Forbidden: bot was blocked by the user"},
		{send("-1", "text", "x", "message_thread_id", "1"), "message thread not found"},
		{send("-2", "text", "x", "message_thread_id", "8"), "message thread not found"},
		{send("-2", "text", "x", "message_thread_id", "7"), ""},
		{send("-1", "text", "x", "reply_markup", `{"inline_keyboard":null}`), `can't parse inline keyboard: field "inline_keyboard" must be of type Array`},
		{send("-1", "text", "x", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":"`+strings.Repeat("é", 33)+`"}]]}`), "BUTTON_DATA_INVALID"},
		{send("-1", "text", "x", "reply_markup", `{"inline_keyboard":[[{"text":"","callback_data":"a"}]]}`), "can't parse inline keyboard button: text must be non-empty"},
		{send("-1", "text", "x", "reply_markup", `null`), "object expected as reply markup"},
		{send("-1", "text", "x", "reply_to_message_id", "999"), "message to be replied not found"},
		{send("-1", "text", "x", "reply_to_message_id", "999", "allow_sending_without_reply", "true"), ""},
		{[]string{"editMessageText", "chat_id", "-1", "message_id", "1", "text", "hello\n"}, "message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message"},
		{[]string{"editMessageText", "chat_id", "-1", "message_id", "77", "text", "x"}, "message to edit not found"},
		{[]string{"editMessageText", "chat_id", "-1", "message_id", "1", "text", "other"}, ""},
		{[]string{"editMessageReplyMarkup", "chat_id", "-1", "message_id", "1", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":"b"}]]}`}, ""},
		{[]string{"answerCallbackQuery", "callback_query_id", "none"}, "query is too old and response timeout expired or query ID is invalid"},
		{[]string{"setMyCommands", "commands", `[{"command":"Bad-Name","description":"x"}]`}, "BOT_COMMAND_INVALID"},
		{[]string{"getChat", "chat_id", "-2"}, ""},
	} {
		r := call(t, s, c.request[0], c.request[1:]...)
		if got := strings.TrimPrefix(r.Description, "Bad Request: "); got != c.want || r.OK != (c.want == "") {
			t.Errorf("%.120q:\n got %s\nwant %s", c.request, got, c.want)
		}
	}
	s.Migrate(-1, -100, false)
	if r := call(t, s, "sendMessage", send("-1", "text", "x")[1:]...); r.Parameters.MoveTo != -100 {
		t.Errorf("a send to a group that has moved: %+v", r)
	}
	if r := call(t, s, "editMessageText", "chat_id", "-1", "message_id", "1", "text", "y"); r.Description != "Bad Request: message to edit not found" {
		t.Errorf("an edit in a group that has moved: %+v", r)
	}
	if m := s.Messages()[0]; m.Text != "other" || m.Edits() != 2 || m.Before[0].Text != "hello" || len(m.Before[1].Buttons) != 0 || len(m.Buttons) != 1 {
		t.Errorf("history %+v", m)
	}
}

func TestWrongTokenAndMethod(t *testing.T) {
	t.Parallel()
	s := New(t)
	for path, want := range map[string]int{"/bot1:x/getMe": 401, "/nothing": 404, "/bot" + Token: 404} {
		resp, err := client.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

const kinds = `["message","callback_query"]`

func TestUpdates(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.AddGroup(-1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	type result struct {
		reply
		err error
	}
	poll := func(params ...string) <-chan result {
		c := make(chan result, 1)
		go func() {
			r, err := try(ctx, s, "getUpdates", append(params, "allowed_updates", kinds)...)
			c <- result{r, err}
		}()
		return c
	}
	older := poll("timeout", "50")
	if err := s.WaitPolling(ctx); err != nil {
		t.Fatal(err)
	}
	newer := poll("timeout", "50")
	if r := <-older; r.ErrorCode != 409 || !strings.Contains(r.Description, "terminated by other getUpdates request") {
		t.Errorf("the older of two pollers got %+v", r)
	}
	s.Send(Sent{User: 1, Chat: -1, Text: "/x", Edited: true}) // not allowed: never delivered
	id := s.Command(1, -1, "/status@bot now")
	r := <-newer
	var list []struct {
		ID      int64 `json:"update_id"`
		Message struct{ Entities []Entity }
	}
	if err := json.Unmarshal(r.Result, &list); err != nil || len(list) != 1 || list[0].ID != id {
		t.Fatalf("updates %s, %v", r.Result, err)
	}
	if e := list[0].Message.Entities; len(e) != 1 || e[0].Type != "bot_command" || e[0].Length != len("/status@bot") {
		t.Errorf("entities %+v", e)
	}
	if r := <-poll("timeout", "0"); !strings.Contains(string(r.Result), "/status") {
		t.Errorf("an unconfirmed update is gone: %s", r.Result)
	}
	if r := <-poll("timeout", "0", "offset", "99999"); string(r.Result) != "[]" {
		t.Errorf("confirmed updates: %s", r.Result)
	}
	if err := s.WaitConfirmed(ctx, id); err != nil {
		t.Error(err)
	}
	s.SetWebhook()
	if r := <-poll("timeout", "0"); r.ErrorCode != 409 || !strings.Contains(r.Description, "webhook is active") {
		t.Errorf("polling with a webhook: %+v", r)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.AddGroup(-1)
	s.AddGroup(-2)
	params := func(chat string) []string {
		return []string{"chat_id", chat, "text", "x", "disable_web_page_preview", "true"}
	}
	s.Fail(Fault{Method: "sendMessage", Chat: -1, RetryAfter: 7})
	if r := call(t, s, "sendMessage", params("-2")...); !r.OK {
		t.Errorf("another chat: %+v", r)
	}
	if r := call(t, s, "sendMessage", params("-1")...); r.ErrorCode != 429 || r.Parameters.RetryAfter != 7 {
		t.Errorf("429: %+v", r)
	}
	s.Fail(Fault{Drop: true, Deliver: true})
	if _, err := try(t.Context(), s, "sendMessage", params("-1")...); err == nil {
		t.Error("a dropped connection answered")
	}
	if n := len(s.Messages()); n != 2 {
		t.Errorf("%d messages: one was delivered without an answer", n)
	}
	s.Fail(Fault{HTML: 502, Times: -1})
	for range 3 {
		if _, err := try(t.Context(), s, "getMe"); err == nil {
			t.Error("a proxy's page was JSON")
		}
	}
	s.ClearFaults()
	if r := call(t, s, "getMe"); !r.OK {
		t.Errorf("after the faults: %+v", r)
	}
}

func TestViolations(t *testing.T) {
	t.Parallel()
	s := New(testing.TB(silent{t}))
	defer s.Close()
	s.AddGroup(-1)
	call(t, s, "getUpdates", "timeout", "0")
	call(t, s, "sendMessage", "chat_id", "-1", "text", "x", "txet", "y")
	call(t, s, "sendMesage")
	if got := s.Violations(); len(got) != 4 {
		t.Errorf("violations %q", got)
	}
}

// silent is a test whose end reports nothing.
type silent struct{ *testing.T }

func (silent) Cleanup(func()) {}
