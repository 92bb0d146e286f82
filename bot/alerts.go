package bot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"breakerbot/breaker"
)

// Level says how a rule's trips are told.
type Level string

// The levels. The empty one means LevelSound.
const (
	LevelSound  Level = "sound"
	LevelSilent Level = "silent"
	LevelOff    Level = "off" // recorded, not told
)

// EditEvery is the shortest time between two edits of the messages of one alert.
const EditEvery = 10 * time.Second

// againEvery is how often an alert is told again once its last long-open step
// has passed.
const againEvery = 24 * time.Hour

// joinMargin is how long before a silent message is due a trip that has to
// sound may still make it sound: the journal ticks each second, so within this
// margin the message may already be on its way.
const joinMargin = time.Second

// AlertConfig is what the alert policy goes by.
type AlertConfig struct {
	GroupWait time.Duration // trips of one machine within it share one message
	// LongOpen are the steps after which an open alert is told again, rising.
	// After the last of them it is told every further 24 h. Empty means never.
	LongOpen []time.Duration
	// Manner says how an incident is told, by its rule and labels; nil is the
	// zero Manner for all.
	Manner MannerFunc
	Chats  []Chat // those without Alerts hear of nothing
}

// Manner is how the incidents of a rule are told.
type Manner struct {
	Level    Level           // "" is LevelSound
	LongOpen []time.Duration // nil is AlertConfig's; empty is never
}

// MannerFunc gives the manner of an incident. It has to give the same one each
// time.
type MannerFunc func(rule string, l breaker.Labels) Manner

// Manners is what the rules say: of several with one name, the first whose
// match fits the incident's labels.
func Manners(rules []breaker.Rule) MannerFunc {
	return func(name string, l breaker.Labels) Manner {
		for _, r := range rules {
			if r.Name != name || !r.Match.Fits(l) {
				continue
			}
			m := Manner{Level: Level(r.Alerts)}
			for _, step := range r.LongOpen {
				m.LongOpen = append(m.LongOpen, step.D())
			}
			return m
		}
		return Manner{} // the rule is gone from the configuration
	}
}

// of is the manner with its level filled in.
func (f MannerFunc) of(rule string, l breaker.Labels) Manner {
	var m Manner
	if f != nil {
		m = f(rule, l)
	}
	m.Level = cmp.Or(m.Level, LevelSound)
	return m
}

// Alerts is the alert policy: it turns transitions and the passing of time into
// messages. It is pure, holds no clock and does no I/O. One goroutine owns it,
// the one that writes the journal: its plans are only true once written, in the
// order in which they were made.
//
// Two choices beyond the plain rules: a trip of a rule whose level is off
// belongs to no alert; and a trip that has to sound does not join an alert that
// was told silently, since an edit never sounds, but begins the next one.
type Alerts struct {
	cfg    AlertConfig
	now    time.Time // of the last Tick or Plan
	alerts map[uint64]*alert
	of     map[uint64]uint64 // incident still open → its alert
	joins  map[string]uint64 // group → the alert that takes further trips
	adopt  []OpenIncident    // restored without an alert, given one at the next Tick
}

type alert struct {
	id    uint64
	group string
	due   time.Time // of its trip message
	loud  bool      // has had an incident that sounds
	open  map[uint64]openIncident
	told  time.Duration // the last long-open step
	edit  time.Time     // when its messages are edited next, or were last
}

type openIncident struct {
	at    time.Time
	steps []time.Duration
}

// NewAlerts makes a policy that knows of nothing open.
func NewAlerts(cfg AlertConfig) *Alerts {
	return &Alerts{
		cfg:    cfg,
		alerts: make(map[uint64]*alert),
		of:     make(map[uint64]uint64),
		joins:  make(map[string]uint64),
	}
}

// Restore tells the policy what is open after a restart, before anything else.
// Nothing is told because of it: trips have their rows already, and of the
// long-open steps that passed meanwhile the next Tick tells the latest. An open
// incident without an alert, whose rule was off until now, becomes one.
func (a *Alerts) Restore(open []OpenIncident) {
	open = slices.SortedFunc(slices.Values(open), func(x, y OpenIncident) int {
		return x.OpenedAt.Compare(y.OpenedAt)
	})
	for _, inc := range open {
		manner := a.cfg.Manner.of(inc.Rule, inc.Labels)
		if inc.Alert == 0 {
			if manner.Level != LevelOff && inc.ClosedAt.IsZero() {
				a.adopt = append(a.adopt, inc)
			}
			continue
		}
		al := a.alerts[inc.Alert]
		if al == nil {
			al = a.begin(inc.Alert, groupOf(inc.Labels, strconv.FormatUint(inc.ID, 10)), inc.OpenedAt)
		}
		al.loud = al.loud || manner.Level == LevelSound
		if inc.ClosedAt.IsZero() {
			a.add(al, inc.ID, manner, inc.OpenedAt)
		}
	}
}

// Plan says what the transitions, in the engine's order, make necessary.
// Transitions that neither trip nor close anything make nothing necessary.
func (a *Alerts) Plan(transitions []breaker.Transition) Plan {
	var p Plan
	for _, t := range transitions {
		if t.At.After(a.now) {
			a.now = t.At
		}
		switch {
		case t.Trips():
			a.trip(&p, t)
		case t.Closes():
			a.close(&p, t)
		}
	}
	return p
}

// Tick says what the passing of time makes necessary: long-open messages. It is
// called with rising times, about every second; more often or seldom is no harm.
func (a *Alerts) Tick(now time.Time) Plan {
	var p Plan
	if now.After(a.now) {
		a.now = now
	}
	for _, inc := range a.adopt {
		if _, known := a.of[inc.ID]; known {
			continue
		}
		al := a.begin(inc.ID, groupOf(inc.Labels, strconv.FormatUint(inc.ID, 10)), inc.OpenedAt)
		manner := a.cfg.Manner.of(inc.Rule, inc.Labels)
		al.loud = manner.Level == LevelSound
		a.add(al, inc.ID, manner, inc.OpenedAt)
		p.join(inc.ID, inc.ID)
	}
	a.adopt = nil
	for _, id := range slices.Sorted(maps.Keys(a.alerts)) {
		al := a.alerts[id]
		if len(al.open) == 0 {
			if !a.now.Before(al.due) {
				a.forget(al)
			}
			continue
		}
		if step := a.reached(al, a.now); step > al.told {
			al.told = step
			a.message(&p, al, KindLongOpen, step, a.now)
		}
	}
	return p
}

// Next is the earliest time at which Tick will have something to tell, if no
// transition comes before; zero when there is nothing.
func (a *Alerts) Next() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if len(a.adopt) > 0 {
		return a.now
	}
	for _, al := range a.alerts {
		for _, inc := range al.open {
			if step, ok := nextStep(inc.steps, al.told); ok {
				earlier(inc.at.Add(step))
			}
		}
	}
	return next
}

func (a *Alerts) trip(p *Plan, t breaker.Transition) {
	manner := a.cfg.Manner.of(t.Rule, t.Labels)
	level := manner.Level
	if _, known := a.of[t.Incident]; known || level == LevelOff {
		return
	}
	group := groupOf(t.Labels, t.Breaker)
	al := a.alerts[a.joins[group]]
	if al == nil || !a.takes(al, t.At, level) {
		al = a.begin(t.Incident, group, t.At)
		al.loud = level == LevelSound
		a.message(p, al, KindTrip, 0, al.due)
	} else {
		al.loud = al.loud || level == LevelSound
		a.touch(p, al, t.At)
	}
	a.add(al, t.Incident, manner, t.At)
	p.join(t.Incident, al.id)
}

// takes tells whether a trip joins the alert: while its message is not due, or
// as long as something of it is open, but never one that sounds into silence.
func (a *Alerts) takes(al *alert, at time.Time, level Level) bool {
	waiting := at.Before(al.due)
	if level == LevelSound && !al.loud {
		return waiting && a.now.Add(min(joinMargin, a.cfg.GroupWait/4)).Before(al.due)
	}
	return waiting || len(al.open) > 0
}

func (a *Alerts) close(p *Plan, t breaker.Transition) {
	al := a.alerts[a.of[t.Incident]]
	delete(a.of, t.Incident)
	if al == nil {
		return
	}
	delete(al.open, t.Incident)
	a.touch(p, al, t.At)
}

func (a *Alerts) begin(id uint64, group string, at time.Time) *alert {
	al := &alert{id: id, group: group, due: at.Add(a.cfg.GroupWait), open: make(map[uint64]openIncident)}
	a.alerts[id] = al
	a.joins[group] = id
	return al
}

func (a *Alerts) add(al *alert, id uint64, manner Manner, at time.Time) {
	steps := manner.LongOpen
	if steps == nil {
		steps = a.cfg.LongOpen
	}
	al.open[id] = openIncident{at: at, steps: steps}
	a.of[id] = al.id
}

func (a *Alerts) forget(al *alert) {
	delete(a.alerts, al.id)
	if a.joins[al.group] == al.id {
		delete(a.joins, al.group)
	}
}

// touch asks for an edit, no sooner than EditEvery after the one before; one
// that still waits takes the new change along.
func (a *Alerts) touch(p *Plan, al *alert, at time.Time) {
	if !at.Before(al.edit) {
		next := at
		if !al.edit.IsZero() && at.Before(al.edit.Add(EditEvery)) {
			next = al.edit.Add(EditEvery)
		}
		al.edit = next
	}
	if p.Touched == nil {
		p.Touched = make(map[uint64]time.Time)
	}
	p.Touched[al.id] = al.edit
}

func (a *Alerts) message(p *Plan, al *alert, kind Kind, step time.Duration, at time.Time) {
	for _, chat := range a.cfg.Chats {
		if !chat.Alerts {
			continue
		}
		to := strconv.FormatInt(chat.ID, 10)
		if chat.Thread != 0 {
			to += "/" + strconv.Itoa(chat.Thread)
		}
		key := fmt.Sprintf("trip/%d/%s", al.id, to)
		if kind == KindLongOpen {
			key = fmt.Sprintf("long/%d/%s/%s", al.id, step, to)
		}
		p.New = append(p.New, Message{
			ChatID: chat.ID, Thread: chat.Thread, Kind: kind, DedupeKey: key, Alert: al.id,
			Payload: Payload{Silent: !al.loud, Step: step}, Status: StatusPending, NextAt: at, CreatedAt: a.now,
		})
	}
}

// reached is the longest step that an open incident of the alert has passed.
// Each goes by its own rule's steps; with equal ones the oldest decides.
func (a *Alerts) reached(al *alert, now time.Time) time.Duration {
	var longest time.Duration
	for _, inc := range al.open {
		longest = max(longest, lastStep(inc.steps, now.Sub(inc.at)))
	}
	return longest
}

// lastStep is the last step within age, 0 for none.
func lastStep(steps []time.Duration, age time.Duration) time.Duration {
	if len(steps) == 0 {
		return 0
	}
	if last := steps[len(steps)-1]; age >= last {
		return last + (age-last)/againEvery*againEvery
	}
	var reached time.Duration
	for _, s := range steps {
		if age >= s {
			reached = s
		}
	}
	return reached
}

// nextStep is the first step after told.
func nextStep(steps []time.Duration, told time.Duration) (time.Duration, bool) {
	if len(steps) == 0 {
		return 0, false
	}
	for _, s := range steps {
		if s > told {
			return s, true
		}
	}
	last := steps[len(steps)-1]
	return last + ((told-last)/againEvery+1)*againEvery, true
}

// groupOf is what trips are put together by: the machine, or without one the
// account, or without either the breaker itself.
func groupOf(l breaker.Labels, own string) string {
	switch {
	case l.Machine != "":
		return "machine/" + l.Machine
	case l.Provider != "":
		return "provider/" + l.Provider
	}
	return "breaker/" + own
}

func (p *Plan) join(incident, alert uint64) {
	if p.Joins == nil {
		p.Joins = make(map[uint64]uint64)
	}
	p.Joins[incident] = alert
}
