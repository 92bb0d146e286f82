package bot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"breakerbot/bot/telegramtest"
	"breakerbot/breaker"
)

// desk is commands and poller on a stand-in, with a real engine.
type desk struct {
	*rig
	engine   *breaker.Engine
	commands *Commands
	poller   *Poller
	history  *history
	mu       sync.Mutex
	waited   []uint64
	waitErr  error
}

type history struct {
	mu          sync.Mutex
	incidents   []breaker.Incident
	transitions []breaker.Transition
	err         error
}

func (h *history) Incidents(_ context.Context, f breaker.Filter) ([]breaker.Incident, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var page []breaker.Incident
	for _, inc := range slices.Backward(h.incidents) {
		if f.Machine == "" || inc.Machine == f.Machine {
			page = append(page, inc)
		}
	}
	return page, "", h.err
}

func (h *history) BreakerTransitions(_ context.Context, name string, limit int) ([]breaker.Transition, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var page []breaker.Transition
	for _, t := range slices.Backward(h.transitions) {
		if t.Breaker == name && len(page) < limit {
			page = append(page, t)
		}
	}
	return page, h.err
}

const (
	operator = private // an operator, whose private chat is no alert chat
	reader   = int64(501)
)

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{rig: newRig(t), history: &history{}}
	d.clock.t = time.Now() // commands carry real times
	engine, err := breaker.New(breaker.Config{Rules: breaker.Builtin(), Key: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	d.engine = engine
	d.roster.Moved = d.box.ChatMoved
	d.commands = NewCommands(CommandsConfig{
		Telegram: d.tg, Roster: d.roster, Engine: engine, History: d.history, Facts: d.box.Facts,
		Digest: func(_ context.Context, arg string) (string, error) {
			return "<b>digest</b> of " + Escape(cmp.Or(arg, "24h")), nil
		},
		Top: func(_ context.Context, arg string) (string, error) {
			if arg == "30d" {
				return "", errors.New("database password is hunter2")
			}
			return "top", nil
		},
		Wait: func(_ context.Context, seq uint64) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.waited = append(d.waited, seq)
			return d.waitErr
		},
	})
	d.poller = NewPoller(PollerConfig{Telegram: d.tg, Commands: d.commands, Clock: d.now})
	d.poller.floor = time.Millisecond
	return d
}

// run polls until the test ends.
func (d *desk) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(d.ctx)
	done := make(chan struct{})
	go func() { defer close(done); d.poller.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// fail lets agents report failures of a call until its breakers trip.
func (d *desk) fail(machine, model string, cause breaker.Cause) {
	for i := range 3 {
		d.engine.Report(d.now(), []breaker.Outcome{{
			Labels: breaker.Labels{Agent: fmt.Sprintf("coder-%d", i), Machine: machine, Model: model}, Cause: cause, Error: "dial <tcp>: connection refused",
		}})
	}
	batch := d.engine.Drain()
	for _, tr := range batch.Transitions {
		d.history.mu.Lock()
		d.history.transitions = append(d.history.transitions, tr)
		d.history.mu.Unlock()
		if tr.Trips() {
			d.box.set(AlertFacts{Alert: tr.Incident, Incidents: []breaker.Incident{{
				ID: tr.Incident, Breaker: tr.Breaker, Rule: tr.Rule, Labels: tr.Labels, OpenedAt: tr.At, Detail: tr.Detail, Evidence: tr.Evidence,
			}}})
		}
	}
}

// say sends a text and waits for the answer to it, the next message.
func (d *desk) say(t *testing.T, user, chat int64, text string) telegramtest.Message {
	t.Helper()
	return d.answer(t, func() { d.server.Command(user, chat, text) })
}

func (d *desk) answer(t *testing.T, do func()) telegramtest.Message {
	t.Helper()
	before := len(d.server.Messages())
	do()
	if err := d.server.Until(d.ctx, func() bool { return len(d.server.Messages()) > before }); err != nil {
		t.Fatalf("no answer: %v\n%s", err, d.server)
	}
	return d.server.Messages()[before]
}

// silence checks that an update is handled without any message.
func (d *desk) silence(t *testing.T, what string, update int64) {
	t.Helper()
	before := len(d.server.Messages())
	if err := d.server.WaitConfirmed(d.ctx, update); err != nil {
		t.Fatal(err)
	}
	if list := d.server.Messages(); len(list) != before {
		t.Errorf("%s was answered: %q", what, list[before].Text)
	}
}

func (d *desk) press(t *testing.T, user int64, m telegramtest.Message, data string) telegramtest.Answer {
	t.Helper()
	a, err := d.server.WaitAnswer(d.ctx, d.server.Press(user, m, data))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func contains(t *testing.T, m telegramtest.Message, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(m.Text, w) {
			t.Errorf("no %q in answer:\n%s", w, m.Text)
		}
	}
}

func TestReadingCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run(t)
	contains(t, d.say(t, reader, group, "/status"), "no breakers yet")
	d.fail("gpu-box", "qwen3-30b", breaker.ServerError)
	d.engine.Report(d.now(), []breaker.Outcome{{Labels: breaker.Labels{Agent: "a", Machine: "mac-mini", Model: "qwen3-4b"}, Cause: breaker.OK}})
	m := d.say(t, reader, group, "/status")
	contains(t, m, "🔴 1 open", "gpu-box → qwen3-30b errors", "server_error", "next probe in ")
	if m.Sounded() || m.ReplyTo == 0 {
		t.Errorf("an answer sounds, or answers nothing: %+v", m)
	}
	ref := m.Text[strings.LastIndex(m.Text, "#"):]
	contains(t, d.say(t, reader, group, "/STATUS@Breaker_Test_Bot open"), "🔴 1 open")
	contains(t, d.say(t, reader, group, "/status mac-mini"), "mac-mini: 🟢", "all closed")
	contains(t, d.say(t, reader, group, "/status nowhere"), "Nothing is called nowhere")
	contains(t, d.say(t, reader, group, "/status gpu"), "Perhaps:", "errors{machine=gpu-box,model=qwen3-30b}")
	for _, arg := range []string{"errors{machine=gpu-box,model=qwen3-30b}", "gpu-box", ref, strings.ToUpper(ref), "QWEN3-30B"} {
		contains(t, d.say(t, reader, group, "/why "+arg), "qwen3-30b errors", "dial <tcp>: connection refused", "coder-2")
	}
	contains(t, d.say(t, reader, group, "/why errors{machine=gpu-box,model=qwen3-30b}"), "closed → open: tripped, 3 calls in a row failed: server_error ×3")
	contains(t, d.say(t, reader, group, "/why mac-mini"), "🟢 mac-mini: all ")
	contains(t, d.say(t, reader, group, "/why"), "needs a breaker")
	contains(t, d.say(t, reader, group, "/why #zzz"), "Nothing is called #zzz")
	contains(t, d.say(t, reader, group, "/digest yesterday"), "digest of yesterday")
	contains(t, d.say(t, reader, group, "/digest"), "digest of 24h")
	contains(t, d.say(t, reader, group, "/digest <b>"), "/digest takes yesterday, 7d, 30d or nothing, not <b>.")
	contains(t, d.say(t, reader, group, "/top 7d"), "top")
	if m := d.say(t, reader, group, "/top 30d"); strings.Contains(m.Text, "hunter2") || !strings.Contains(m.Text, "cannot be answered") {
		t.Errorf("an error answered %q", m.Text)
	}
	contains(t, d.say(t, reader, group, "/help"), "/status", "/reset", "for operators")
	contains(t, d.say(t, operator, operator, "/start"), "/status")
	contains(t, d.say(t, operator, operator, "/whatever"), "/status")
	if got := d.server.Commands(); !slices.Contains(got, "status") || !slices.Contains(got, "reset") {
		t.Errorf("registered commands %v", got)
	}
}

func TestResetByButton(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run(t)
	d.fail("gpu-box", "a", breaker.ServerError)
	d.fail("gpu-box", "b", breaker.ServerError)
	question := d.say(t, operator, group, "/reset gpu-box")
	contains(t, question, "Reset 2 breakers of gpu-box?", "errors{machine=gpu-box,model=a} open")
	if first := question.Buttons[0][0]; first.Text != "Yes, reset" {
		t.Errorf("first button %q", first.Text)
	}
	yes := question.Buttons[0][0].Data
	if a := d.press(t, reader, question, yes); !a.Alert || !strings.Contains(a.Text, "Only an operator") {
		t.Errorf("a reader's press: %+v", a)
	}
	if views := d.engine.Breakers(d.now(), breaker.Labels{}, breaker.Open); len(views) != 2 {
		t.Fatalf("%d breakers open before the question is answered", len(views))
	}
	if a := d.press(t, operator, question, yes); a.Text != "Resetting…" {
		t.Errorf("answer %+v", a)
	}
	done, err := d.server.Wait(d.ctx, func(m telegramtest.Message) bool { return m.ID == question.ID && m.Edits() == 1 })
	if err != nil {
		t.Fatal(err)
	}
	contains(t, done, "RESET  2 breakers by User77 (77)")
	if len(done.Buttons) != 0 {
		t.Errorf("buttons stay: %v", done.Buttons)
	}
	if views := d.engine.Breakers(d.now(), breaker.Labels{}, breaker.Open); len(views) != 0 {
		t.Errorf("still open: %v", views)
	}
	for _, tr := range d.engine.Drain().Transitions {
		if tr.Reason != breaker.ReasonReset || tr.Actor != "telegram:77" {
			t.Errorf("transition %+v", tr)
		}
	}
	if len(d.waited) == 0 {
		t.Error("nobody waited for the disk")
	}
	if a := d.press(t, operator, question, yes); !a.Alert || !strings.Contains(a.Text, "answered already") {
		t.Errorf("second press: %+v", a)
	}
	contains(t, d.say(t, operator, group, "/reset gpu-box"), "nothing to reset")
}

func TestButtonsOfAnAlert(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.fail("gpu-box", "a", breaker.ServerError)
	var alert uint64
	for alert = range d.box.facts {
	}
	facts, err := d.box.Facts(d.ctx, d.now(), alert, group)
	if err != nil {
		t.Fatal(err)
	}
	d.trip(facts, group)
	d.step(t)
	m := d.only(t)
	d.run(t)
	why, _ := m.Button("Why")
	contains(t, d.answer(t, func() { d.press(t, reader, m, why.Data) }), "errors{machine=gpu-box,model=a}", "connection refused")
	reset, _ := m.Button("Reset…")
	if a := d.press(t, reader, m, reset.Data); !strings.Contains(a.Text, "Only an operator may change something. Your id is 501.") {
		t.Errorf("a reader's press: %+v", a)
	}
	question := d.answer(t, func() { d.press(t, operator, m, reset.Data) })
	contains(t, question, "Reset 1 breaker of #")
	d.waitErr = errors.New("away")
	no, _ := question.Button("Cancel")
	d.press(t, operator, question, no.Data)
	if _, err := d.server.Wait(d.ctx, func(m telegramtest.Message) bool { return strings.HasPrefix(m.Text, "Not reset") }); err != nil {
		t.Error(err)
	}
	second := d.answer(t, func() { d.press(t, operator, m, reset.Data) })
	d.press(t, operator, second, second.Buttons[0][0].Data)
	if _, err := d.server.Wait(d.ctx, func(m telegramtest.Message) bool { return strings.Contains(m.Text, "not on disk yet") }); err != nil {
		t.Error(err)
	}
	for _, data := range []string{"", "1|w", "2|w|00a", "1|x|00a", "1|y|nothing", "1|w|" + strings.Repeat("0", 61), "1|w|../..", "1|r|"} {
		d.press(t, operator, m, data) // answered, and nothing else happens
	}
	if views := d.engine.Breakers(d.now(), breaker.Labels{}, breaker.Open); len(views) != 0 {
		t.Errorf("still open: %v", views)
	}
}

func TestHoldAndAuto(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run(t)
	contains(t, d.say(t, operator, operator, "/hold errors{machine=gpu box,model=m} 2h driver update"), "🔴 gpu box → m errors", "hold-open by telegram:77", "until ")
	v, ok := d.engine.Breaker(d.now(), "errors{machine=gpu box,model=m}")
	if !ok || v.Override == nil || v.Override.Reason != "driver update" || v.Override.Actor != "telegram:77" {
		t.Errorf("breaker %+v", v)
	}
	contains(t, d.say(t, operator, operator, "/why errors{machine=gpu box,model=m}"), "reason: driver update")
	contains(t, d.say(t, operator, operator, "/auto errors{machine=gpu box,model=m}"), "🟢 gpu box → m errors")
	contains(t, d.say(t, operator, operator, "/hold nonsense"), "Not done: ")
	for _, wrong := range []string{"-1h", "0d", "2hours", "99999999h", "1.5d", "400d"} {
		contains(t, d.say(t, operator, operator, "/hold errors{machine=a,model=b} "+wrong), "A hold of "+wrong+" is none")
	}
	contains(t, d.say(t, operator, operator, "/hold errors{machine=a,model=c} 7d rented out"), "hold-open by telegram:77", "until ", "is the name right?")
	if answer := d.say(t, operator, operator, "/auto errors{machine=a,model=c}"); strings.Contains(answer.Text, "is the name right?") {
		t.Errorf("a breaker that is there is doubted: %s", answer.Text)
	}
	contains(t, d.say(t, operator, operator, "/hold"), "needs a breaker")
	contains(t, d.say(t, reader, group, "/hold errors{machine=a,model=b}"), "Only an operator may change something. Your id is 501.")
}

func TestWhoMayChange(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run(t)
	d.fail("gpu-box", "a", breaker.ServerError)
	send := func(m telegramtest.Sent) func() {
		m.Chat, m.Text = group, "/reset gpu-box"
		return func() { d.server.Send(m) }
	}
	for name, m := range map[string]telegramtest.Sent{
		"reader":                        {User: reader},
		"anonymous admin":               {User: 1087968824, SenderChat: group},
		"linked channel":                {User: 777000, SenderChat: -100999},
		"nobody":                        {NoFrom: true},
		"an operator's id in a channel": {User: operator, SenderChat: -100999},
	} {
		if got := d.answer(t, send(m)); !strings.Contains(got.Text, "Only an operator") {
			t.Errorf("%s: %s", name, got.Text)
		}
	}
	old := d.answer(t, send(telegramtest.Sent{User: operator, At: d.now().Add(-25 * time.Minute)}))
	contains(t, old, "25 min ago", "not carried out")
	if got := d.answer(t, func() {
		d.server.Send(telegramtest.Sent{User: reader, Chat: group, Text: "/status", At: d.now().Add(-time.Hour)})
	}); !strings.Contains(got.Text, "1 open") {
		t.Errorf("an old question: %s", got.Text)
	}
	for name, m := range map[string]telegramtest.Sent{
		"another bot's command": {User: operator, Chat: group, Text: "/reset@other_bot gpu-box"},
		"a longer name":         {User: operator, Chat: group, Text: "/reset@" + telegramtest.Username + "2 gpu-box"},
		"no entity":             {User: operator, Chat: group, Text: "/reset gpu-box", NoEntity: true},
		"not at the beginning":  {User: operator, Chat: group, Text: "please /reset gpu-box"},
		"a forwarded command":   {User: operator, Chat: group, Text: "/reset gpu-box", Forwarded: true},
		"unknown in a group":    {User: operator, Chat: group, Text: "/whatever"},
	} {
		d.silence(t, name, d.server.Send(m))
	}
}

func TestStrangersLearnNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run(t)
	const stranger, elsewhere = int64(666), int64(-100666)
	d.server.AddPrivate(stranger)
	d.server.AddGroup(elsewhere)
	d.fail("gpu-box", "secret-model", breaker.ServerError)
	if got, want := d.say(t, stranger, stranger, "hello").Text, "This bot does not serve this chat.\nchat id 666\nyour id 666"; got != want {
		t.Errorf("refusal %q", got)
	}
	contains(t, d.say(t, stranger, elsewhere, "/status"), "chat id -100666", "your id 666")
	d.silence(t, "a second question", d.server.Command(stranger, stranger, "/status"))
	d.silence(t, "a second question in the group", d.server.Command(stranger, elsewhere, "/why gpu-box"))
	d.silence(t, "talk in a group", d.server.Send(telegramtest.Sent{User: stranger, Chat: elsewhere, Text: "hello"}))
	// An operator is one in private and in configured chats only.
	d.silence(t, "an operator elsewhere", d.server.Command(operator, elsewhere, "/reset gpu-box"))
	if a := d.press(t, stranger, telegramtest.Message{ID: 5, Chat: elsewhere}, "1|w|001"); a.Text != "" {
		t.Errorf("a stranger's press: %+v", a)
	}
	for _, m := range d.server.Messages() {
		if strings.Contains(m.Text, "gpu") || strings.Contains(m.Text, "secret") {
			t.Errorf("told a stranger: %s", m.Text)
		}
	}
}

func TestAnswersStayInTheirTopic(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const forum = int64(-100500)
	d.roster.chats = append(d.roster.chats, Chat{ID: forum, Alerts: true})
	d.server.AddForum(forum, 7)
	d.run(t)
	m := d.answer(t, func() {
		d.server.Send(telegramtest.Sent{User: reader, Chat: forum, Thread: 7, Text: "/status"})
	})
	if m.Thread != 7 {
		t.Errorf("answered in topic %d", m.Thread)
	}
}

func TestChatsComeAndGo(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run(t)
	if err := d.server.WaitConfirmed(d.ctx, d.server.Member(group, "kicked")); err != nil {
		t.Fatal(err)
	}
	if len(d.roster.Out()) != 1 {
		t.Fatalf("out: %v", d.roster.Out())
	}
	if err := d.server.WaitConfirmed(d.ctx, d.server.Member(group, "member")); err != nil {
		t.Fatal(err)
	}
	if len(d.roster.Out()) != 0 {
		t.Errorf("out: %v", d.roster.Out())
	}
	d.roster.lose(group, "blocked")
	d.say(t, reader, group, "/help")
	if len(d.roster.Out()) != 0 {
		t.Errorf("a command is a sign of life, out: %v", d.roster.Out())
	}
	const super = int64(-100888)
	d.server.Migrate(group, super, true)
	contains(t, d.say(t, reader, super, "/help"), "/status")
}
