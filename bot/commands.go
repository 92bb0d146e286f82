package bot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"breakerbot/breaker"
)

const (
	// staleCommand is how old a command may be that changes something.
	staleCommand = 10 * time.Minute
	// confirmWithin is how long a question waits for its button.
	confirmWithin = 10 * time.Minute
	// maxConfirmations bounds the questions that wait.
	maxConfirmations = 200
	// maxRefused bounds the chats that got a refusal; later ones get none.
	maxRefused = 1000
	// maxNamed is how many breakers a question or an answer lists by name.
	maxNamed = 10
)

// The users in whose name Telegram sends what has no person behind it.
const (
	anonymousAdmin = 1087968824
	linkedChannel  = 777000
)

// Engine is what the commands need of breaker.Engine.
type Engine interface {
	Breakers(now time.Time, l breaker.Labels, states ...breaker.State) []breaker.View
	Breaker(now time.Time, name string) (breaker.View, bool)
	Control(now time.Time, c breaker.Control) (breaker.View, uint64, error)
}

var _ Engine = (*breaker.Engine)(nil)

// History reads what has happened, newest first.
type History interface {
	Incidents(ctx context.Context, f breaker.Filter) (page []breaker.Incident, next string, err error)
	BreakerTransitions(ctx context.Context, name string, limit int) ([]breaker.Transition, error)
}

// CommandsConfig is what answering commands takes.
type CommandsConfig struct {
	Telegram *Telegram
	Roster   *Roster
	Budget   *Budget // the sender's
	Engine   Engine
	History  History
	// Facts is the outbox's: what there is to say of an alert.
	Facts func(ctx context.Context, now time.Time, alert uint64, chat int64) (AlertFacts, error)
	// Digest and Top give Telegram HTML for an argument that was checked:
	// "", yesterday, 7d or 30d, and 7d or 30d.
	Digest func(ctx context.Context, arg string) (html string, err error)
	Top    func(ctx context.Context, arg string) (html string, err error)
	// Wait returns once the engine's sequence number is on disk; nil: at once.
	Wait func(ctx context.Context, seq uint64) error
	// Wake tells the sender that a chat can be reached again; nil: nobody.
	Wake func()
	Zone *time.Location // of printed times; nil: UTC
	Log  *slog.Logger
}

// Commands answers what people send. Answers go out directly, not through the
// outbox: a question that nobody could answer in time is asked again by whoever
// needs it. One goroutine, the poller's, hands it updates.
//
// Reading needs a configured chat, or an operator in private; changing needs an
// operator, checked again when a button is pressed. Everybody else gets one
// refusal with the ids that a configuration would need, and nothing else.
type Commands struct {
	cfg   CommandsConfig
	words wording

	mu        sync.Mutex
	questions map[string]question
	refused   map[int64]bool
}

// question is a change that waits for its button.
type question struct {
	chat     int64
	what     string // Telegram HTML
	breakers []string
	at       time.Time
}

type command struct {
	name, help string
}

var commandList = []command{
	{"status", "what is open: /status [open|machine|model]"},
	{"why", "why it is open: /why BREAKER, MACHINE or #ref"},
	{"top", "the flakiest machines and models: /top [7d|30d]"},
	{"digest", "the digest: /digest [yesterday|7d|30d]"},
	{"reset", "close breakers: /reset BREAKER, MACHINE or #ref"},
	{"hold", "keep a breaker open: /hold BREAKER [FOR] [REASON]"},
	{"auto", "end a hold: /auto BREAKER"},
	{"help", "what this bot does"},
}

// NewCommands makes an answerer.
func NewCommands(cfg CommandsConfig) *Commands {
	if cfg.Zone == nil {
		cfg.Zone = time.UTC
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Commands{cfg: cfg, words: wording{zone: cfg.Zone}, questions: make(map[string]question), refused: make(map[int64]bool)}
}

// asker is where a question came from and what it may do.
type asker struct {
	chat    int64
	thread  int
	private bool
	message int64 // the command's, or the one with the button
	user    int64 // 0 when there is no person behind it
	name    string
	read    bool
	change  bool
}

func (c *Commands) handle(ctx context.Context, now time.Time, u update) {
	switch {
	case u.Message != nil:
		c.message(ctx, now, u.Message)
	case u.Callback != nil:
		c.pressed(ctx, now, u.Callback)
	case u.Member != nil:
		c.member(u.Member)
	}
}

func (c *Commands) asker(ch chat, thread int, from *user) asker {
	a := asker{chat: ch.ID, thread: thread, private: ch.Type == "private"}
	if from != nil && from.ID != anonymousAdmin && from.ID != linkedChannel && !from.IsBot {
		a.user, a.name = from.ID, from.FirstName
	}
	operator := a.user != 0 && c.cfg.Roster.Operator(a.user)
	a.read = c.cfg.Roster.Configured(ch.ID) || (a.private && operator)
	a.change = a.read && operator
	return a
}

func (c *Commands) message(ctx context.Context, now time.Time, m *message) {
	switch {
	case m.MigrateTo != 0:
		c.moved(ctx, m.Chat.ID, m.MigrateTo)
		return
	case m.MigrateFrom != 0:
		c.moved(ctx, m.MigrateFrom, m.Chat.ID)
		return
	case m.ForwardOrigin != nil:
		return // somebody else's words
	}
	thread := 0
	if m.IsTopic {
		thread = m.Thread
	}
	a := c.asker(m.Chat, thread, m.From)
	a.message = m.ID
	if m.SenderChat != nil {
		a.user, a.change = 0, false
	}
	name, arg, ours := parseCommand(m, c.cfg.Telegram.Health().Username)
	if !a.read {
		if ours || (a.private && m.Text != "") {
			c.refuse(ctx, now, a)
		}
		return
	}
	if !ours {
		return
	}
	if c.cfg.Roster.find(a.chat) && c.cfg.Wake != nil {
		c.cfg.Wake()
	}
	switch name {
	case "reset", "hold", "auto":
		sent := time.Unix(m.Date, 0)
		if now.Sub(sent) > staleCommand {
			c.say(ctx, now, a, fmt.Sprintf("/%s was sent at %s, %s ago, and was <b>not carried out</b>. Send it again if it still holds.",
				name, c.words.at(sent, now), Span(now.Sub(sent))))
			return
		}
		if !c.mayChange(ctx, now, a) {
			return
		}
	}
	c.cfg.Log.Info("command", "name", name, "chat", a.chat, "user", a.user)
	switch name {
	case "status":
		c.status(ctx, now, a, arg)
	case "why":
		c.why(ctx, now, a, arg)
	case "reset":
		c.reset(ctx, now, a, arg)
	case "hold":
		c.hold(ctx, now, a, arg)
	case "auto":
		c.auto(ctx, now, a, arg)
	case "top":
		c.report(ctx, now, a, "top", arg, c.cfg.Top, "7d", "30d")
	case "digest":
		c.report(ctx, now, a, "digest", arg, c.cfg.Digest, "yesterday", "7d", "30d")
	case "start", "help":
		c.help(ctx, now, a)
	default:
		if a.private || strings.Contains(firstWord(m.Text), "@") {
			c.help(ctx, now, a)
		}
	}
}

// parseCommand reads a command of ours: only an entity at the very beginning
// is one, and a name after @ has to be the bot's.
func parseCommand(m *message, username string) (name, arg string, ours bool) {
	for _, e := range m.Entities {
		if e.Type != "bot_command" || e.Offset != 0 {
			continue
		}
		units := utf16.Encode([]rune(m.Text))
		if e.Length < 2 || e.Length > len(units) {
			return "", "", false
		}
		word := string(utf16.Decode(units[1:e.Length]))
		arg = strings.TrimSpace(string(utf16.Decode(units[e.Length:])))
		name, to, named := strings.Cut(word, "@")
		if named && !strings.EqualFold(to, username) {
			return "", "", false
		}
		return strings.ToLower(name), arg, true
	}
	return "", "", false
}

func firstWord(s string) string {
	if f := strings.Fields(s); len(f) > 0 {
		return f[0]
	}
	return ""
}

func (c *Commands) moved(ctx context.Context, from, to int64) {
	if !c.cfg.Roster.Configured(from) {
		return
	}
	if err := c.cfg.Roster.move(ctx, from, to); err != nil {
		c.cfg.Log.Error("group became a supergroup, storing its new id fails", "from", from, "to", to, "error", err)
		return
	}
	c.cfg.Log.Warn("group became a supergroup: put the new id into the configuration", "from", from, "to", to)
}

func (c *Commands) member(m *memberUpdate) {
	if !c.cfg.Roster.Configured(m.Chat.ID) {
		return
	}
	switch m.New.Status {
	case "left", "kicked":
		if c.cfg.Roster.lose(m.Chat.ID, "the bot was removed or blocked") {
			c.cfg.Log.Error("the bot was removed from a configured chat", "chat", m.Chat.ID)
		}
	default:
		if c.cfg.Roster.find(m.Chat.ID) {
			c.cfg.Log.Info("the bot is back in a configured chat", "chat", m.Chat.ID)
			if c.cfg.Wake != nil {
				c.cfg.Wake()
			}
		}
	}
}

func (c *Commands) refuse(ctx context.Context, now time.Time, a asker) {
	c.mu.Lock()
	told := c.refused[a.chat] || len(c.refused) >= maxRefused
	if !told {
		c.refused[a.chat] = true
	}
	c.mu.Unlock()
	if told {
		return
	}
	text := fmt.Sprintf("This bot does not serve this chat.\nchat id <code>%d</code>", a.chat)
	if a.user != 0 {
		text += fmt.Sprintf("\nyour id <code>%d</code>", a.user)
	}
	c.cfg.Log.Warn("stranger refused", "chat", a.chat, "user", a.user)
	c.say(ctx, now, a, text)
}

// mayChange tells whether the asker may, and if not says so.
func (c *Commands) mayChange(ctx context.Context, now time.Time, a asker) bool {
	if a.change {
		return true
	}
	text := "Only an operator may change something."
	if a.user == 0 {
		text += " Who writes as a group or a channel is nobody in particular: write as yourself."
	} else {
		text += fmt.Sprintf(" Your id is <code>%d</code>.", a.user)
	}
	c.say(ctx, now, a, text)
	return false
}

func (c *Commands) help(ctx context.Context, now time.Time, a asker) {
	rows := []string{"This bot tells when a circuit breaker trips or stays open."}
	for _, cmd := range commandList {
		if cmd.name != "help" {
			rows = append(rows, "/"+cmd.name+" — "+Escape(cmd.help))
		}
	}
	if !a.change {
		rows = append(rows, "reset, hold and auto are for operators")
	}
	c.say(ctx, now, a, strings.Join(rows, "\n"))
}

func (c *Commands) report(ctx context.Context, now time.Time, a asker, name, arg string, make func(context.Context, string) (string, error), args ...string) {
	arg = strings.ToLower(arg)
	if (arg != "" && !slices.Contains(args, arg)) || make == nil {
		c.say(ctx, now, a, fmt.Sprintf("/%s takes %s or nothing, not %s.", name, strings.Join(args, ", "), Code(cut(arg, 40))))
		return
	}
	text, err := make(ctx, arg)
	if err != nil {
		c.fail(ctx, now, a, "/"+name, err)
		return
	}
	c.say(ctx, now, a, text)
}

// fail says that something could not be answered; the error's text stays in the
// log, where whoever may read it looks.
func (c *Commands) fail(ctx context.Context, now time.Time, a asker, what string, err error) {
	c.cfg.Log.Error("command cannot be answered", "command", what, "error", err)
	c.say(ctx, now, a, Escape(what)+" cannot be answered just now: the database does not answer. The breakers go on working.")
}

// say answers in the asker's chat and topic. Too much is cut by whole rows.
func (c *Commands) say(ctx context.Context, now time.Time, a asker, text string, buttons ...Button) {
	out := Outgoing{Chat: a.chat, Thread: a.thread, HTML: Shorten(text, MaxText), Silent: true, ReplyTo: a.message, At: now}
	if len(buttons) > 0 {
		out.Buttons = [][]Button{buttons}
	}
	c.send(ctx, &out, 0)
}

// edit replaces the message whose button was pressed.
func (c *Commands) edit(ctx context.Context, now time.Time, a asker, text string) {
	out := Outgoing{Chat: a.chat, HTML: Shorten(text, MaxText), At: now}
	c.send(ctx, &out, a.message)
}

func (c *Commands) send(ctx context.Context, out *Outgoing, edit int64) {
	for try := 0; ; try++ {
		chat, _ := c.cfg.Roster.address(out.Chat, out.Thread)
		if err := c.cfg.Budget.await(ctx, chat, urgentAnswer); err != nil {
			c.cfg.Log.Warn("answer not sent in time", "chat", chat, "error", err)
			return
		}
		first := true
		_, err := deliver(ctx, c.cfg.Telegram, out, edit, c.cfg.Roster, func() {
			if !first {
				c.cfg.Budget.spend(chat)
			}
			first = false
		})
		switch troubleOf(err) {
		case troubleNone:
			return
		case troubleLimited:
			c.cfg.Budget.pause(chat, retryAfter(err))
			if try == 0 {
				continue
			}
		case troubleEditGone:
			if edit != 0 {
				edit = 0
				continue
			}
		case troubleMoved:
			if to := moveOf(err); to != 0 && try == 0 && c.cfg.Roster.move(ctx, chat, to) == nil {
				edit = 0
				continue
			}
		}
		c.cfg.Log.Warn("answer not sent", "chat", chat, "error", err)
		return
	}
}

// target is what an argument of a command stands for.
type target struct {
	what     string // Telegram HTML
	breakers []breaker.View
	facts    AlertFacts // of a reference
}

var errNoTarget = errors.New("nothing of that name")

// find looks an argument up: a reference with #, a breaker, a machine, a model,
// a provider, or a reference without #.
func (c *Commands) find(ctx context.Context, now time.Time, chat int64, arg string) (target, error) {
	if strings.HasPrefix(arg, "#") {
		return c.findRef(ctx, now, chat, arg)
	}
	if v, ok := c.cfg.Engine.Breaker(now, arg); ok {
		return target{what: Code(v.Name), breakers: []breaker.View{v}}, nil
	}
	all := c.cfg.Engine.Breakers(now, breaker.Labels{})
	for _, of := range []func(breaker.Labels) string{
		func(l breaker.Labels) string { return l.Machine },
		func(l breaker.Labels) string { return l.Model },
		func(l breaker.Labels) string { return l.Provider },
	} {
		var found []breaker.View
		for _, v := range all {
			if strings.EqualFold(of(v.Labels), arg) {
				found = append(found, v)
			}
		}
		if len(found) > 0 {
			return target{what: Code(of(found[0].Labels)), breakers: found}, nil
		}
	}
	return c.findRef(ctx, now, chat, arg)
}

// named is find for a command: false when there is no such target, which the
// asker has been told then.
func (c *Commands) named(ctx context.Context, now time.Time, a asker, command, arg string) (target, bool) {
	t, err := c.find(ctx, now, a.chat, arg)
	switch {
	case errors.Is(err, errNoTarget):
		c.say(ctx, now, a, c.missing(now, arg))
	case err != nil:
		c.fail(ctx, now, a, command, err)
	}
	return t, err == nil
}

func (c *Commands) findRef(ctx context.Context, now time.Time, chat int64, arg string) (target, error) {
	id, err := breaker.ParseRef(arg)
	if err != nil || id == 0 {
		return target{}, errNoTarget
	}
	t := target{what: "#" + breaker.Ref(id)}
	if t.facts, err = c.cfg.Facts(ctx, now, id, chat); err != nil {
		return target{}, fmt.Errorf("read alert %d: %w", id, err)
	}
	members := map[uint64]bool{id: true}
	for _, inc := range t.facts.Incidents {
		members[inc.ID] = true
	}
	for _, v := range c.cfg.Engine.Breakers(now, breaker.Labels{}, breaker.Open, breaker.HalfOpen) {
		if members[v.Incident] && v.Incident != 0 {
			t.breakers = append(t.breakers, v)
		}
	}
	if len(t.breakers) == 0 && len(t.facts.Incidents) == 0 {
		return target{}, errNoTarget
	}
	return t, nil
}

// missing says that nothing has this name, with some names that look like it.
func (c *Commands) missing(now time.Time, arg string) string {
	text := "Nothing is called " + Code(cut(arg, 60)) + ": a breaker, a machine, a model or a #reference is needed."
	var like []string
	for _, v := range c.cfg.Engine.Breakers(now, breaker.Labels{}) {
		if len(like) < 5 && arg != "" && strings.Contains(strings.ToLower(v.Name), strings.ToLower(arg)) {
			like = append(like, "• "+Code(v.Name))
		}
	}
	if len(like) > 0 {
		text += "\nPerhaps:\n" + strings.Join(like, "\n")
	}
	return text
}

func (c *Commands) status(ctx context.Context, now time.Time, a asker, arg string) {
	all := c.cfg.Engine.Breakers(now, breaker.Labels{})
	what, list := "", all
	if arg != "" && !strings.EqualFold(arg, "open") {
		t, ok := c.named(ctx, now, a, "/status", arg)
		if !ok {
			return
		}
		what, list = t.what+": ", t.breakers
	}
	var n [3]int
	var rows, held []string
	for _, v := range list {
		n[v.State]++
		switch {
		case v.State != breaker.Closed:
			rows = append(rows, c.row(v, now))
		case v.Override != nil:
			held = append(held, c.row(v, now))
		case what != "":
			held = append(held, "🟢 "+viewName(v))
		}
	}
	head := what + "🟢 " + count(len(list), "breaker") + ", all closed"
	switch {
	case len(list) == 0 && what == "":
		head = "🟢 no breakers yet: nobody has reported a call"
	case len(list) == 0:
		head = what + "🟢 nothing of it is open"
	case n[breaker.Open]+n[breaker.HalfOpen] > 0:
		head = fmt.Sprintf("%s🔴 %d open · 🟡 %d half-open · 🟢 %d closed", what, n[breaker.Open], n[breaker.HalfOpen], n[breaker.Closed])
	}
	if strings.EqualFold(arg, "open") {
		held = nil
	}
	c.say(ctx, now, a, strings.Join(slices.Concat([]string{"<b>" + head + "</b>"}, rows, held), "\n"))
}

// row is one breaker in a list.
func (c *Commands) row(v breaker.View, now time.Time) string {
	icon := map[breaker.State]string{breaker.Open: "🔴", breaker.HalfOpen: "🟡", breaker.Closed: "🟢"}[v.State]
	parts := []string{icon + " " + viewName(v)}
	if v.Override != nil {
		held := string(v.Override.Op)
		if v.Override.Actor != "" {
			held += " by " + v.Override.Actor
		}
		parts = append(parts, Escape(held))
		if !v.Override.Until.IsZero() {
			parts = append(parts, "until "+c.words.at(v.Override.Until, now))
		}
		return strings.Join(parts, " · ")
	}
	if v.Cause != 0 {
		parts = append(parts, v.Cause.String())
	}
	if !v.OpenedAt.IsZero() {
		parts = append(parts, "since "+c.words.at(v.OpenedAt, now)+" ("+Span(now.Sub(v.OpenedAt))+")")
	}
	if probe := nextProbeOf(v, now); probe != "" {
		parts = append(parts, probe)
	}
	if v.Incident != 0 {
		parts = append(parts, "#"+breaker.Ref(v.Incident))
	}
	return strings.Join(parts, " · ")
}

func viewName(v breaker.View) string { return Target(v.Labels) + " " + Escape(v.Rule) }

func nextProbeOf(v breaker.View, now time.Time) string {
	switch {
	case v.State == breaker.HalfOpen:
		return "a probe is on its way"
	case v.State == breaker.Open && v.RetryAt.After(now):
		return "next probe in " + Span(v.RetryAt.Sub(now))
	case v.State == breaker.Open && !v.RetryAt.IsZero():
		return "a probe is due"
	}
	return ""
}

func (c *Commands) why(ctx context.Context, now time.Time, a asker, arg string) {
	if arg == "" {
		c.say(ctx, now, a, "/why needs a breaker, a machine or a #reference; /status lists them.")
		return
	}
	t, ok := c.named(ctx, now, a, "/why", arg)
	if !ok {
		return
	}
	text, err := c.explain(ctx, now, t)
	if err != nil {
		c.fail(ctx, now, a, "/why", err)
		return
	}
	c.say(ctx, now, a, text)
}

// explain says why a target is as it is: each of its breakers that is not
// closed, or what was the matter last.
func (c *Commands) explain(ctx context.Context, now time.Time, t target) (string, error) {
	if len(t.breakers) == 1 {
		return c.explainOne(ctx, now, t.breakers[0])
	}
	var rows []string
	for _, v := range t.breakers {
		if v.State == breaker.Closed {
			continue
		}
		if len(rows) > 3*maxNamed {
			rows = append(rows, "…")
			break
		}
		rows = append(rows, c.row(v, now))
		if v.Last != nil {
			rows = append(rows, c.last(v.Last, now))
		}
	}
	if len(rows) > 0 {
		return "<b>" + t.what + "</b>\n" + strings.Join(rows, "\n"), nil
	}
	if len(t.facts.Incidents) > 0 {
		text := c.words.trip(t.facts, now, false, false).html
		if len(t.facts.Incidents) == 1 {
			inc := t.facts.Incidents[0]
			text += "\n" + strings.Join(c.words.why(inc), "\n")
			history, err := c.history(ctx, now, inc.Breaker)
			return text + history, err
		}
		return text, nil
	}
	rows = append(rows, "🟢 "+t.what+": all "+count(len(t.breakers), "breaker")+" closed")
	f := breaker.Filter{Machine: t.breakers[0].Machine, Limit: 5}
	if f.Machine == "" {
		f.Model = t.breakers[0].Model
	}
	incidents, _, err := c.cfg.History.Incidents(ctx, f)
	if err != nil {
		return "", fmt.Errorf("read incidents: %w", err)
	}
	for _, inc := range incidents {
		rows = append(rows, fmt.Sprintf("%s %s · %s · %s #%s", c.words.at(inc.OpenedAt, now), rowName(inc),
			Escape(reasonOf(inc)), Span(inc.ClosedAt.Sub(inc.OpenedAt)), breaker.Ref(inc.ID)))
	}
	return strings.Join(rows, "\n"), nil
}

func (c *Commands) explainOne(ctx context.Context, now time.Time, v breaker.View) (string, error) {
	rows := []string{c.row(v, now), Code(v.Name)}
	if v.Incident != 0 && v.State != breaker.Closed && v.Probes > 0 {
		rows = append(rows, count(v.Probes, "probe")+" failed so far")
	}
	if v.Last != nil {
		rows = append(rows, c.last(v.Last, now))
	}
	rows = append(rows, fmt.Sprintf("%s in the window, %d failed · run of %d", count(v.Calls, "call"), v.Failures, v.Run))
	if v.WouldTrip > 0 {
		rows = append(rows, fmt.Sprintf("observed: it would have tripped %d times", v.WouldTrip))
	}
	if v.Override != nil && v.Override.Reason != "" {
		rows = append(rows, "reason: "+Escape(v.Override.Reason))
	}
	history, err := c.history(ctx, now, v.Name)
	return strings.Join(rows, "\n") + history, err
}

func (c *Commands) last(f *breaker.LastFailure, now time.Time) string {
	row := "last failure " + c.words.at(f.At, now) + ": " + f.Cause.String()
	if f.Agent != "" {
		row += " (" + Escape(f.Agent) + ")"
	}
	if f.Status != 0 {
		row += " HTTP " + strconv.Itoa(f.Status)
	}
	if f.Error != "" {
		row += ` "` + Escape(cut(strings.Join(strings.Fields(f.Error), " "), 200)) + `"`
	}
	return row
}

// history lists a breaker's latest transitions.
func (c *Commands) history(ctx context.Context, now time.Time, name string) (string, error) {
	list, err := c.cfg.History.BreakerTransitions(ctx, name, 6)
	if err != nil {
		return "", fmt.Errorf("read transitions of %s: %w", name, err)
	}
	var rows []string
	for _, t := range list {
		row := fmt.Sprintf("%s %s → %s: %s", c.words.at(t.At, now), t.From, t.To, Escape(t.Reason))
		switch {
		case t.Detail != "":
			row += ", " + Escape(t.Detail)
		case t.Cause != 0:
			row += ", " + t.Cause.String()
		}
		if strings.Contains(t.Actor, ":") { // a person, not the agent whose call it was
			row += " by " + Escape(t.Actor)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return "", nil
	}
	return "\n<blockquote expandable>" + strings.Join(rows, "\n") + "</blockquote>", nil
}

func (c *Commands) reset(ctx context.Context, now time.Time, a asker, arg string) {
	if arg == "" {
		c.say(ctx, now, a, "/reset needs a breaker, a machine or a #reference; /status lists them.")
		return
	}
	if t, ok := c.named(ctx, now, a, "/reset", arg); ok {
		c.ask(ctx, now, a, t)
	}
}

// ask asks for a reset to be confirmed. What is confirmed are the breakers named
// in the question, not whatever opens until the button is pressed.
func (c *Commands) ask(ctx context.Context, now time.Time, a asker, t target) {
	q := question{chat: a.chat, what: t.what, at: now}
	var rows []string
	for _, v := range t.breakers {
		if v.State == breaker.Closed && len(t.breakers) > 1 && v.Override == nil {
			continue
		}
		q.breakers = append(q.breakers, v.Name)
		if len(rows) < maxNamed {
			rows = append(rows, "• "+Code(v.Name)+" "+strings.ReplaceAll(v.State.String(), "_", "-"))
		}
	}
	if len(q.breakers) == 0 {
		c.say(ctx, now, a, "🟢 nothing to reset: "+t.what+" is closed")
		return
	}
	if more := len(q.breakers) - len(rows); more > 0 {
		rows = append(rows, fmt.Sprintf("+%d more", more))
	}
	id := c.keep(q, now)
	c.say(ctx, now, a, fmt.Sprintf("Reset %s of %s? Calls pass again at once.\n%s",
		count(len(q.breakers), "breaker"), t.what, strings.Join(rows, "\n")),
		Button{"Yes, reset", callbackData(actionYes, id)}, Button{"Cancel", callbackData(actionNo, id)})
}

// keep remembers a question; the oldest makes room when there are too many.
func (c *Commands) keep(q question, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := ""
	for id, other := range c.questions {
		if now.Sub(other.at) > confirmWithin {
			delete(c.questions, id)
		} else if oldest == "" || other.at.Before(c.questions[oldest].at) {
			oldest = id
		}
	}
	if len(c.questions) >= maxConfirmations {
		delete(c.questions, oldest)
	}
	id := rand.Text()[:12]
	c.questions[id] = q
	return id
}

// take gives a question to the first who answers it.
func (c *Commands) take(id string, chat int64, now time.Time) (question, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.questions[id]
	if !ok || q.chat != chat {
		return question{}, false
	}
	delete(c.questions, id)
	return q, now.Sub(q.at) <= confirmWithin
}

// pressed handles a button. A client can send any data, and anybody in a group
// can press: who may is checked here.
func (c *Commands) pressed(ctx context.Context, now time.Time, q *callbackQuery) {
	answer := func(text string, alert bool) {
		if err := c.cfg.Telegram.Callback(ctx, q.ID, text, alert); err != nil {
			c.cfg.Log.Warn("button not answered", "error", err)
		}
	}
	if q.Message == nil {
		answer("", false)
		return
	}
	thread := 0
	if q.Message.IsTopic {
		thread = q.Message.Thread
	}
	a := c.asker(q.Message.Chat, thread, &q.From)
	a.message = q.Message.ID
	if !a.read {
		answer("", false)
		return
	}
	version, rest, _ := strings.Cut(q.Data, "|")
	action, ref, ok := strings.Cut(rest, "|")
	if version != dataVersion || !ok || len(q.Data) > 64 {
		answer("This button is of another version: use a command.", true)
		return
	}
	if action != actionWhy && !a.change {
		answer(fmt.Sprintf("Only an operator may change something. Your id is %d.", q.From.ID), true)
		return
	}
	switch action {
	case actionWhy, actionReset:
		answer("", false)
		t, err := c.findRef(ctx, now, a.chat, "#"+ref)
		switch {
		case errors.Is(err, errNoTarget):
			c.say(ctx, now, a, "Nothing is known of #"+Escape(cut(ref, 12))+" any more.")
		case err != nil:
			c.fail(ctx, now, a, "this", err)
		case action == actionReset:
			c.ask(ctx, now, a, t)
		default:
			text, err := c.explain(ctx, now, t)
			if err != nil {
				c.fail(ctx, now, a, "this", err)
				return
			}
			c.say(ctx, now, a, text)
		}
	case actionYes, actionNo:
		asked, ok := c.take(ref, a.chat, now)
		if !ok {
			answer("This question is answered already, or too old: ask again.", true)
			return
		}
		if action == actionNo {
			answer("Nothing was changed.", false)
			c.edit(ctx, now, a, "Not reset: "+asked.what+".")
			return
		}
		answer("Resetting…", false)
		c.carryOut(ctx, now, a, asked)
	default:
		answer("This button is of another version: use a command.", true)
	}
}

func (c *Commands) carryOut(ctx context.Context, now time.Time, a asker, q question) {
	var (
		done, failed []string
		last         uint64
	)
	for _, name := range q.breakers {
		_, seq, err := c.cfg.Engine.Control(now, breaker.Control{
			Breaker: name, Op: breaker.OpReset, Actor: actor(a), Reason: "/reset",
		})
		if err != nil {
			failed = append(failed, "• "+Code(name)+": "+Escape(err.Error()))
			continue
		}
		done, last = append(done, "• "+Code(name)), max(last, seq)
	}
	c.cfg.Log.Info("reset by command", "user", a.user, "chat", a.chat, "breakers", len(done), "failed", len(failed))
	rows := []string{fmt.Sprintf("♻️ <b>RESET</b>  %s by %s, %s", count(len(done), "breaker"), who(a), c.words.at(now, now))}
	rows = append(rows, done[:min(len(done), maxNamed)]...)
	if more := len(done) - maxNamed; more > 0 {
		rows = append(rows, fmt.Sprintf("+%d more", more))
	}
	rows = append(rows, failed...)
	if len(done) > 0 && !c.durable(ctx, last) {
		rows = append(rows, "not on disk yet: the database does not answer")
	}
	c.edit(ctx, now, a, strings.Join(rows, "\n"))
}

// durableWithin is how long an answer waits for the disk.
const durableWithin = 5 * time.Second

func (c *Commands) durable(ctx context.Context, seq uint64) bool {
	if c.cfg.Wait == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, durableWithin)
	defer cancel()
	return c.cfg.Wait(ctx, seq) == nil
}

func (c *Commands) hold(ctx context.Context, now time.Time, a asker, arg string) {
	name, rest := cutBreaker(arg)
	if name == "" {
		c.say(ctx, now, a, "/hold needs a breaker, and may have a duration and a reason: /hold errors{machine=gpu-box,model=m} 2h driver update")
		return
	}
	control := breaker.Control{Breaker: name, Op: breaker.OpHoldOpen, Actor: actor(a), Reason: rest}
	if first, reason, _ := strings.Cut(rest, " "); first != "" && strings.ContainsRune("+-.0123456789", rune(first[0])) {
		d, ok := holdFor(first)
		if !ok {
			c.say(ctx, now, a, "A hold of "+Code(first)+" is none: a duration up to "+Span(maxHold)+" is needed, such as 30m, 2h or 7d.")
			return
		}
		control.For, control.Reason = d, strings.TrimSpace(reason)
	}
	control.Reason = cut(control.Reason, 200)
	c.control(ctx, now, a, control)
}

// maxHold is the longest hold with an end.
const maxHold = 366 * 24 * time.Hour

// holdFor reads a duration as people write it: Go's, or whole days.
func holdFor(word string) (time.Duration, bool) {
	d, err := time.ParseDuration(word)
	if days, ok := strings.CutSuffix(word, "d"); ok {
		n, dayErr := strconv.Atoi(days)
		n = min(max(n, -1), 1000)
		d, err = time.Duration(n)*24*time.Hour, dayErr
	}
	return d, err == nil && d > 0 && d <= maxHold
}

func (c *Commands) auto(ctx context.Context, now time.Time, a asker, arg string) {
	name, _ := cutBreaker(arg)
	if name == "" {
		c.say(ctx, now, a, "/auto needs a breaker: /auto errors{machine=gpu-box,model=m}")
		return
	}
	c.control(ctx, now, a, breaker.Control{Breaker: name, Op: breaker.OpAuto, Actor: actor(a), Reason: "/auto"})
}

func (c *Commands) control(ctx context.Context, now time.Time, a asker, control breaker.Control) {
	v, seq, err := c.cfg.Engine.Control(now, control)
	if err != nil {
		c.say(ctx, now, a, "Not done: "+Escape(err.Error()))
		return
	}
	c.cfg.Log.Info("control by command", "op", control.Op, "breaker", control.Breaker, "user", a.user, "chat", a.chat)
	text := c.row(v, now)
	if v.Made {
		text += "\nnothing has been heard yet of what it is about: is the name right?"
	}
	if !c.durable(ctx, seq) {
		text += "\nnot on disk yet: the database does not answer"
	}
	c.say(ctx, now, a, text)
}

// cutBreaker takes a breaker's name, which may hold spaces between its braces,
// off the beginning of an argument.
func cutBreaker(arg string) (name, rest string) {
	end := strings.IndexByte(arg, ' ')
	if open := strings.IndexByte(arg, '{'); open >= 0 && (end < 0 || open < end) {
		end = -1
		for i := open; i < len(arg); i++ {
			if arg[i] == '\\' {
				i++
			} else if arg[i] == '}' {
				end = i + 1
				break
			}
		}
	}
	if end < 0 || end > len(arg) {
		return arg, ""
	}
	return arg[:end], strings.TrimSpace(arg[end:])
}

func actor(a asker) string { return "telegram:" + itoa(a.user) }

func who(a asker) string {
	if a.name == "" {
		return Code(itoa(a.user))
	}
	return Escape(cut(a.name, 40)) + " (" + Code(itoa(a.user)) + ")"
}
