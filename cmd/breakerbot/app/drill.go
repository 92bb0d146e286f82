package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"breakerbot/breaker"
)

// drillCmd makes a stand-in fail in known ways and measures what a running
// server makes of it.
type drillCmd struct {
	URL         string        `help:"Address of the server." default:"http://127.0.0.1:8080"`
	Token       string        `help:"Token with the scopes report and read, and operate to clean up; none where the server has none." env:"BREAKERBOT_TOKEN" placeholder:"TOKEN"`
	For         time.Duration `help:"How long the failure lasts." default:"30s"`
	Kinds       []string      `help:"Kinds of failure, side by side, each on a machine of its own: refused, hung, errors, empty." default:"refused,hung,errors,empty"`
	Machine     string        `help:"Machines are called this and the kind: drill-refused." default:"drill"`
	Agents      int           `help:"Agents for each kind; a rule with witnesses needs two." default:"2"`
	Timeout     time.Duration `help:"Time-out of the agents' calls of the stand-in." default:"1s"`
	Every       time.Duration `help:"Time between two calls of one agent." default:"250ms"`
	TargetOpen  time.Duration `help:"How soon the failure has to open a breaker." default:"5s"`
	TargetClose time.Duration `help:"How soon it has to close, once the stand-in answers again and the cooldown is over." default:"10s"`
}

// drillKind is one way of failing, and what the server has to make of it.
type drillKind struct {
	name  string
	cause breaker.Cause
	what  string
}

var drillKinds = []drillKind{
	{"refused", breaker.Refused, "nobody listens"},
	{"hung", breaker.Timeout, "connections are taken and never answered"},
	{"errors", breaker.ServerError, "every answer is a 500"},
	{"empty", breaker.Empty, "every answer is a 200 without text"},
}

const (
	// drillWarmUp is how many good calls each agent makes before the failure, so
	// that it is known as a witness.
	drillWarmUp = 3
	// drillPatience is how long these may take, and how long the last good calls.
	drillPatience = 15 * time.Second
	// drillStrays is how many calls that should be good may fail.
	drillStrays = 2
	// drillSurplus is how many failed calls beyond the threshold are no fault, in
	// calls of each agent: all of them may be under way when the breaker opens.
	drillSurplus = 1
)

func (c drillCmd) check() (kinds []drillKind, err error) {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: "+format, append([]any{flag}, args...)...))
	}
	span := func(flag string, d, low, high time.Duration) {
		if d < low || d > high {
			bad(flag, "%s is out of range: %s to %s are allowed", breaker.Duration(d), breaker.Duration(low), breaker.Duration(high))
		}
	}
	span("for", c.For, 100*time.Millisecond, 15*time.Minute)
	span("timeout", c.Timeout, 10*time.Millisecond, time.Minute)
	span("every", c.Every, 10*time.Millisecond, time.Minute)
	span("target-open", c.TargetOpen, time.Millisecond, 15*time.Minute)
	span("target-close", c.TargetClose, time.Millisecond, 15*time.Minute)
	if c.Agents < 2 || c.Agents > 16 {
		bad("agents", "%d is out of range: 2 to 16 are allowed", c.Agents)
	}
	if err := breaker.CheckLabel(c.Machine + "-refused"); err != nil || c.Machine == "" {
		bad("machine", "%q is no name of a machine: it takes 1 to %d characters without control characters", clip(c.Machine), breaker.MaxLabel-len("-refused"))
	}
	if len(c.Kinds) == 0 {
		bad("kinds", "is empty: known are refused, hung, errors, empty")
	}
	for i, name := range c.Kinds {
		at := slices.IndexFunc(drillKinds, func(k drillKind) bool { return k.name == name })
		switch {
		case at < 0:
			bad("kinds", "%q is unknown: known are refused, hung, errors, empty", clip(name))
		case slices.Contains(c.Kinds[:i], name):
			bad("kinds", "%q is named twice", name)
		default:
			kinds = append(kinds, drillKinds[at])
		}
	}
	return kinds, errors.Join(errs...)
}

// drillPlan is what the rules in force say about one kind of failure.
type drillPlan struct {
	rule       string // that opens first
	threshold  int    // failures in a row that open it, after the warm-up
	wait       time.Duration
	probes     int
	concurrent int
	longest    time.Duration // that any of the rules may wait
	total      time.Duration // that the drill takes, about
}

// plan finds the rules that take the kind's cause for a failure of the drill's
// machine, and of those the one that opens first; false when there is none.
func (c drillCmd) plan(rules []breaker.Rule, kind drillKind) (drillPlan, bool) {
	labels := breaker.Labels{Agent: c.agent(kind, 0), Machine: c.machine(kind), Model: c.machine(kind), Provider: c.machine(kind)}
	var p drillPlan
	var first breaker.Rule
	var names []string
	for _, r := range rules {
		if slices.Contains(names, r.Name) || !r.Match.Fits(labels) {
			continue
		}
		names = append(names, r.Name)
		if r.Disabled || r.Mode == breaker.ModeObserve || !takes(r, kind.cause) {
			continue
		}
		r = r.WithDefaults()
		longest := max(r.Cooldown.First.D(), r.Cooldown.ByCause[kind.cause.String()].D())
		if r.Cooldown.Factor > 1 {
			longest = max(longest, r.Cooldown.Max.D())
		}
		p.longest = max(p.longest, time.Duration(float64(longest)*(1+r.Cooldown.Jitter)))
		n := threshold(r, kind.cause, drillWarmUp*c.Agents)
		if slices.Contains(r.Scope, "agent") {
			n *= c.Agents // each has a breaker of its own
		}
		if n == 0 || p.rule != "" && (n > p.threshold || n == p.threshold && waits(r, kind.cause, 0) <= p.wait) {
			continue
		}
		first = r
		p.rule, p.threshold, p.wait, p.probes, p.concurrent = r.Name, n, waits(r, kind.cause, 0), r.Probes, r.Concurrent
	}
	if p.rule == "" {
		return p, false
	}
	call := c.Every
	if kind.cause == breaker.Timeout {
		call = max(call, c.Timeout)
	}
	// Probes fail, and the wait grows, for as long as the failure lasts.
	at := time.Duration((p.threshold+c.Agents-1)/c.Agents) * call
	failed := 0
	for ; at+waits(first, kind.cause, failed) < c.For; failed++ {
		at += waits(first, kind.cause, failed)
	}
	at = max(c.For, at+waits(first, kind.cause, failed))
	p.total = drillWarmUp*c.Every + at + time.Duration(p.probes+1)*c.Every
	return p, true
}

// takes tells whether the rule has the cause as a failure: a cause that is named
// beats its class.
func takes(r breaker.Rule, cause breaker.Cause) bool {
	switch {
	case slices.Contains(r.Failures, cause.String()):
		return true
	case slices.Contains(r.Ignores, cause.String()):
		return false
	}
	return slices.Contains(r.Failures, cause.Class().String())
}

// threshold is how many failures in a row open the rule's breaker after so many
// good calls; zero when no number of them is enough.
func threshold(r breaker.Rule, cause breaker.Cause, good int) int {
	t := r.Trip
	if slices.Contains(t.AtOnce, cause.String()) || slices.Contains(t.AtOnce, cause.Class().String()) {
		return 1
	}
	n := t.Consecutive
	if t.Rate > 0 {
		rate := float64(t.Rate) / 1e6
		byRate := max(1, t.MinCalls-good)
		if rate < 1 {
			byRate = max(byRate, int(math.Ceil(rate*float64(good)/(1-rate))))
		} else {
			byRate = max(byRate, t.Window.Calls)
		}
		if n == 0 || byRate < n {
			n = byRate
		}
	}
	return n
}

// waits is the rule's cooldown after so many failed probes.
func waits(r breaker.Rule, cause breaker.Cause, failed int) time.Duration {
	first := r.Cooldown.First
	if by, ok := r.Cooldown.ByCause[cause.String()]; ok {
		first = by
	}
	wait := float64(first) * math.Pow(r.Cooldown.Factor, float64(failed))
	return time.Duration(math.Min(wait, math.Max(float64(first), float64(r.Cooldown.Max))))
}

func (c drillCmd) machine(kind drillKind) string { return c.Machine + "-" + kind.name }

// agent names one of the kind's agents: each kind has its own, so that none is
// taken for one that has lost its network.
func (c drillCmd) agent(kind drillKind, i int) string {
	return c.machine(kind) + "-agent-" + strconv.Itoa(i+1)
}

// labels are the filters that find every breaker that the kind's calls pass.
func (c drillCmd) labels(kind drillKind) []url.Values {
	list := []url.Values{{"machine": {c.machine(kind)}}, {"model": {c.machine(kind)}}, {"provider": {c.machine(kind)}}}
	for i := range c.Agents {
		list = append(list, url.Values{"agent": {c.agent(kind, i)}})
	}
	return list
}

// drill is one run of the command.
type drill struct {
	drillCmd
	api   *drillAPI
	began time.Time

	mu  sync.Mutex
	out io.Writer
}

// say prints a line of progress.
func (d *drill) say(kind drillKind, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%7s  %-8s %s\n", seconds(time.Since(d.began)), kind.name, fmt.Sprintf(format, args...))
}

// run drills all kinds side by side. The error says how many are not within
// target, or why there was no drill. When ctx ends it stops, and cleans up.
func (c drillCmd) run(ctx context.Context, out io.Writer) error {
	kinds, err := c.check()
	if err != nil {
		return usageError{fmt.Errorf("drill: %w", err)}
	}
	api, err := newDrillAPI(c.URL, c.Token, len(kinds)*c.Agents)
	if err != nil {
		return usageError{fmt.Errorf("drill: --url: %w", err)}
	}
	defer api.client.CloseIdleConnections()
	d := &drill{drillCmd: c, api: api, out: out}
	rules, err := api.rules(ctx)
	if err != nil {
		return fmt.Errorf("drill: %w", err)
	}
	plans := make([]drillPlan, len(kinds))
	for i, kind := range kinds {
		var ok bool
		if plans[i], ok = c.plan(rules, kind); !ok {
			return fmt.Errorf("drill: no rule in force opens on %s for the machine %s: there is nothing to measure; --kinds leaves %s out", kind.cause, c.machine(kind), kind.name)
		}
	}
	for _, kind := range kinds {
		left, err := api.reset(ctx, d.labels(kind))
		if err != nil {
			return fmt.Errorf("drill: clean up before: %w", err)
		}
		for _, b := range left {
			if b.State != breaker.Closed.String() {
				return fmt.Errorf("drill: %s is %s from before, and the token may not reset it: wait, or use a token with the scope operate", b.Name, b.State)
			}
		}
	}
	d.announce(kinds, plans)

	d.began = time.Now()
	results := make([]drillResult, len(kinds))
	var running sync.WaitGroup
	for i, kind := range kinds {
		running.Go(func() {
			r := &drillRun{drill: d, kind: kind, plan: plans[i], standIn: newStandIn(kind), events: make(chan drillEvent)}
			results[i] = r.run(ctx)
		})
	}
	running.Wait()

	stopped := ctx.Err() != nil
	if stopped {
		fmt.Fprintln(out, "\nstopped")
	} else {
		d.table(kinds, results)
	}
	d.cleanUp(ctx, kinds)
	if stopped {
		return errors.New("drill: stopped before its end")
	}
	missed := 0
	for _, r := range results {
		if len(r.faults) > 0 {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("drill: %d of %d kinds of failure are not within target", missed, len(kinds))
	}
	return nil
}

// announce says what will happen and how long it takes.
func (d *drill) announce(kinds []drillKind, plans []drillPlan) {
	fmt.Fprintf(d.out, "drill against %s: %d agents for each kind, %s of failure\n\n", d.api.base, d.Agents, breaker.Duration(d.For))
	longest := 0
	for i, kind := range kinds {
		p := plans[i]
		probes := "1 good probe closes"
		if p.probes > 1 {
			probes = fmt.Sprintf("%d good probes in a row close", p.probes)
		}
		failures := "1 failure opens"
		if p.threshold > 1 {
			failures = fmt.Sprintf("%d failures open", p.threshold)
		}
		fmt.Fprintf(d.out, "  %-8s %s: %s. %s %s, which waits %s; %s: about %s.\n",
			kind.name, d.machine(kind), kind.what, failures, p.rule, breaker.Duration(p.wait), probes, about(p.total))
		if p.total > plans[longest].total {
			longest = i
		}
	}
	fmt.Fprintf(d.out, "\nThat takes about %s.", about(plans[longest].total))
	var others []string
	var without time.Duration
	for i, kind := range kinds {
		if plans[i].wait < plans[longest].wait {
			others = append(others, kind.name)
			without = max(without, plans[i].total)
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(d.out, " It is %s that waits so long: --kinds %s takes about %s.", plans[longest].rule, strings.Join(others, ","), about(without))
	}
	fmt.Fprintf(d.out, " Alerts about the drill's machines are sent like any other.\n\n")
}

// table prints what was measured, and what is not within target.
func (d *drill) table(kinds []drillKind, results []drillResult) {
	rows := [][]string{{"KIND", "CAUSE", "OPENED BY", "OPENED AFTER", "WASTED", "PROBES", "CLOSED AFTER", "TOTAL", "RESULT"}}
	for i, kind := range kinds {
		r := results[i]
		opened, closed, verdict := "not at all", "not at all", "within target"
		if r.opened {
			opened = fmt.Sprintf("%s, %s", plural(r.calls, "call"), seconds(r.openAfter))
		}
		if r.closed {
			closed = seconds(r.closeAfter)
		}
		if len(r.faults) > 0 {
			verdict = "NOT within target"
		}
		probes := strconv.Itoa(r.probes)
		if r.failedProbes > 0 {
			probes += fmt.Sprintf(" (%d failed)", r.failedProbes)
		}
		rows = append(rows, []string{
			kind.name, strings.Join(sorted(r.causes), ", "), strings.Join(r.rules, ", "), opened, strconv.Itoa(r.wasted), probes, closed, seconds(r.total), verdict,
		})
	}
	var out strings.Builder
	out.WriteString("\n")
	writeTable(&out, rows, 8, 14, 18, 16, 6, 12, 12, 7, 18)
	out.WriteString("\nOpened after: failed calls, and the time since the first could fail. Wasted: calls that were no probes\nand ended when it had opened. Closed after: the time since the stand-in answered again.\n")
	for i, kind := range kinds {
		for _, fault := range results[i].faults {
			fmt.Fprintf(&out, "%s: %s\n", kind.name, fault)
		}
	}
	io.WriteString(d.out, out.String())
}

// cleanUp resets the drill's breakers, also when the drill was interrupted.
func (d *drill) cleanUp(ctx context.Context, kinds []drillKind) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var left []string
	for _, kind := range kinds {
		list, err := d.api.reset(ctx, d.labels(kind))
		if err != nil {
			fmt.Fprintf(d.out, "the breakers of %s could not be reset: %v\n", d.machine(kind), err)
		}
		for _, b := range list {
			left = append(left, fmt.Sprintf("%s (%s)", b.Name, b.State))
		}
	}
	if len(left) > 0 {
		fmt.Fprintf(d.out, "left as they are, since the token may not operate: %s\n", strings.Join(left, ", "))
	} else {
		fmt.Fprintln(d.out, "the drill's breakers are reset")
	}
}

// drillResult is what one kind came to. Faults are why it is not within target.
type drillResult struct {
	opened, closed        bool
	calls                 int // failed ones until it opened, the last one included
	wasted                int // calls that failed when it had opened, probes left out
	probes, failedProbes  int
	openAfter, closeAfter time.Duration
	total                 time.Duration
	rules                 []string // whose breakers refused
	causes                map[string]int
	faults                []string
}

// drillEvent is what one agent did: it was refused, or it made a call, or it
// cannot go on.
type drillEvent struct {
	agent          string
	grant          drillGrant
	started, ended time.Time // of the call
	at             time.Time // when the server had answered
	verdict        drillVerdict
	err            error
}

type drillPhase int

const (
	phaseHealthy drillPhase = iota
	phaseFailing
	phaseRecovering
	phaseClosed
)

// drillRun is one kind under way. One goroutine owns it and reads what its
// agents did.
type drillRun struct {
	*drill
	kind    drillKind
	plan    drillPlan
	standIn *standIn
	events  chan drillEvent
	probing probing

	result    drillResult
	phase     drillPhase
	timer     *time.Timer
	good      map[string]int // calls of each agent in this phase
	failedAt  time.Time
	openedAt  time.Time
	backAt    time.Time // when the stand-in answered again
	closedAt  time.Time
	due       time.Time // when the server lets the next probe through
	strays    int
	counted   bool // the call that opened it is counted
	relapsed  bool // a probe of the stand-in that answered again failed
	endOfWait time.Time
}

func (r *drillRun) run(ctx context.Context) drillResult {
	r.result.causes = make(map[string]int)
	began := time.Now()
	if err := r.standIn.start(); err != nil {
		r.fault("the stand-in cannot listen: %v", err)
		return r.result
	}
	defer r.standIn.stop()
	ctx, cancel := context.WithCancel(ctx)
	var agents sync.WaitGroup
	for i := range r.Agents {
		agents.Go(func() { r.agent(ctx, r.drillCmd.agent(r.kind, i), r.Every*time.Duration(i)/time.Duration(r.Agents)) })
	}
	r.timer = time.NewTimer(drillPatience)
	r.good = make(map[string]int)
	for going := true; going; {
		select {
		case <-ctx.Done():
			going = false
		case <-r.timer.C:
			going = r.late()
		case e := <-r.events:
			going = r.hear(e)
		}
	}
	cancel()
	agents.Wait()
	r.timer.Stop()
	r.result.total = time.Since(began)
	r.judge()
	return r.result
}

func (r *drillRun) fault(format string, args ...any) {
	r.result.faults = append(r.result.faults, fmt.Sprintf(format, args...))
}

// late is what the end of the phase's time brings about; false ends the run.
func (r *drillRun) late() bool {
	switch r.phase {
	case phaseHealthy:
		r.fault("the agents have not made %d good calls each within %s", drillWarmUp, drillPatience)
	case phaseFailing:
		if err := r.standIn.recover(); err != nil {
			r.fault("the stand-in cannot come back: %v", err)
			return false
		}
		r.phase, r.backAt = phaseRecovering, time.Now()
		if !r.result.opened {
			r.say(r.kind, "answers again; nothing has opened")
			return false
		}
		r.extend()
		wait := ""
		if until := r.due.Sub(r.backAt); until > 0 {
			wait = ", the next probe is due in " + seconds(until)
		}
		r.say(r.kind, "answers again%s", wait)
		return true
	case phaseRecovering:
		r.say(r.kind, "has not closed")
	case phaseClosed:
		r.fault("has closed, and then its agents have not made a good call each within %s", drillPatience)
	}
	return false
}

// extend sets the end of the wait for closing: the target after the cooldown is
// over, which no rule can make longer than its longest.
func (r *drillRun) extend() {
	r.endOfWait = r.backAt
	if r.due.After(r.endOfWait) {
		r.endOfWait = r.due
	}
	// The last call of the failure may end after it, and wait from there.
	if most := r.backAt.Add(r.Timeout + r.plan.longest); r.endOfWait.After(most) {
		r.endOfWait = most
	}
	r.endOfWait = r.endOfWait.Add(r.TargetClose)
	r.timer.Reset(time.Until(r.endOfWait))
}

// hear takes what an agent did; false ends the run.
func (r *drillRun) hear(e drillEvent) bool {
	switch {
	case e.err != nil:
		r.fault("%s cannot go on: %v", e.agent, e.err)
		return false
	case !e.grant.Allowed:
		return r.refused(e)
	}
	state, failed := e.verdict.State, e.verdict.Class != breaker.ClassOK.String()
	if e.grant.Probe {
		r.result.probes++
		if failed {
			r.result.failedProbes++
		}
	}
	switch r.phase {
	case phaseHealthy:
		if r.stray(e) {
			return true
		}
		if failed || state != breaker.Closed.String() {
			r.fault("a good call is judged %s, and the circuit is %s: the rules or gates in force do not let the drill begin", e.verdict.Cause, state)
			return false
		}
		if r.allGood(e.agent, drillWarmUp) {
			r.standIn.fail()
			r.phase, r.failedAt = phaseFailing, time.Now()
			r.timer.Reset(r.For)
			r.say(r.kind, "fails from now on: %s", r.kind.what)
		}
		return true
	case phaseClosed:
		if r.stray(e) {
			return true
		}
		if failed || state != breaker.Closed.String() {
			r.fault("has closed, and then a call of the stand-in that answers again is judged %s, and the circuit is %s", e.verdict.Cause, state)
			return false
		}
		// The others may still be waiting as they were told to.
		r.good[e.agent]++
		return r.good[e.agent] < r.Agents
	}
	if failed && e.ended.After(r.failedAt) {
		r.failedCall(e)
	}
	// A circuit that is closed in the answer to a call that began before it was
	// opened was so before.
	if r.result.opened && state == breaker.Closed.String() && e.started.After(r.openedAt) {
		if r.phase == phaseFailing {
			r.fault("has closed while the stand-in was failing")
			return false
		}
		r.result.closed, r.closedAt, r.result.closeAfter = true, e.at, e.at.Sub(r.backAt)
		r.say(r.kind, "closed, %s after the stand-in answers again", seconds(r.result.closeAfter))
		r.phase = phaseClosed
		clear(r.good)
		r.timer.Reset(drillPatience)
	}
	return true
}

// stray tells whether a call that should be good failed for once and opened
// nothing, as on a machine that is too busy to answer in time.
func (r *drillRun) stray(e drillEvent) bool {
	if e.verdict.Class == breaker.ClassOK.String() || e.verdict.State != breaker.Closed.String() {
		return false
	}
	r.strays++
	return r.strays <= drillStrays
}

// failedCall counts a call that failed while the stand-in did, or after it.
func (r *drillRun) failedCall(e drillEvent) {
	r.result.causes[e.verdict.Cause]++
	// What the server says tells which calls came before it opened: agents are
	// not heard in the order in which it heard them.
	switch {
	case e.grant.Probe:
	case e.verdict.State == breaker.Closed.String():
		r.result.calls++
	case !r.counted:
		r.result.calls++
		r.counted = true
	default:
		r.result.wasted++
	}
	if e.verdict.State == breaker.Closed.String() {
		return
	}
	if !r.result.opened {
		r.open(e.at, e.verdict.Cause)
	}
	if r.phase == phaseRecovering && e.started.After(r.backAt) {
		if e.grant.Probe {
			r.relapsed = true
			r.fault("a probe failed though the stand-in answers again: %s", e.verdict.Cause)
		}
		return
	}
	if e.grant.Probe {
		r.say(r.kind, "a probe failed: the next one is due in %s", seconds(e.verdict.wait()))
	}
	r.push(e.at, e.verdict.wait())
}

// open notes that the circuit is not closed any more.
func (r *drillRun) open(at time.Time, cause string) {
	r.result.opened, r.openedAt, r.result.openAfter = true, at, at.Sub(r.failedAt)
	r.say(r.kind, "opened, %s after the failure began: %s", seconds(r.result.openAfter), cause)
}

// push notes when the next probe is due.
func (r *drillRun) push(at time.Time, wait time.Duration) {
	if due := at.Add(wait); wait > 0 && due.After(r.due) {
		r.due = due
		if r.phase == phaseRecovering && !r.relapsed {
			r.extend()
		}
	}
}

func (r *drillRun) refused(e drillEvent) bool {
	for _, b := range e.grant.Breakers {
		if !slices.Contains(r.result.rules, b.Rule) {
			r.result.rules = append(r.result.rules, b.Rule)
		}
	}
	switch r.phase {
	case phaseHealthy:
		r.fault("%s is refused before anything has failed: %s", e.agent, e.grant.Reason)
		return false
	case phaseClosed:
		if e.started.After(r.closedAt) {
			r.fault("%s is refused after it has closed: %s", e.agent, e.grant.Reason)
			return false
		}
		return true
	}
	if !r.result.opened {
		r.open(e.at, e.grant.Reason)
	}
	if e.grant.Reason == breaker.RefusedOpen {
		r.push(e.at, e.grant.wait())
	}
	return true
}

// allGood counts a good call and tells whether every agent has made so many.
func (r *drillRun) allGood(agent string, most int) bool {
	r.good[agent]++
	if len(r.good) < r.Agents {
		return false
	}
	for _, n := range r.good {
		if n < most {
			return false
		}
	}
	return true
}

// judge holds what was measured against the targets.
func (r *drillRun) judge() {
	res := &r.result
	if len(res.faults) > 0 && r.phase == phaseHealthy {
		return // nothing was measured
	}
	if !res.opened {
		r.fault("has not opened within %s of failure, after %s", breaker.Duration(r.For), plural(res.calls, "failed call"))
		return
	}
	if res.openAfter > r.TargetOpen {
		r.fault("opened after %s: the target is %s", seconds(res.openAfter), breaker.Duration(r.TargetOpen))
	}
	if most := r.plan.threshold + drillSurplus*r.Agents; res.calls > most {
		r.fault("opened after %d failed calls: the threshold of %s is %d, and %d are the most with %d agents", res.calls, r.plan.rule, r.plan.threshold, most, r.Agents)
	}
	if most := drillSurplus * r.Agents; res.wasted > most {
		r.fault("%d calls were wasted after it had opened: %d agents can have %d under way", res.wasted, r.Agents, most)
	}
	if at := r.probing.most(); at > r.plan.concurrent {
		r.fault("%d probes were under way at once: the rule allows %d", at, r.plan.concurrent)
	}
	other, most := "", 0
	for _, cause := range sorted(res.causes) {
		if n := res.causes[cause]; cause != r.kind.cause.String() && n > most {
			other, most = cause, n
		}
	}
	// A connection may be cut where the stand-in turns.
	if most > r.Agents || res.causes[r.kind.cause.String()] == 0 {
		r.fault("%d failed calls were taken for %s: they were %s", most, other, r.kind.cause)
	}
	switch {
	case !res.closed && len(res.faults) == 0:
		r.fault("has not closed within %s after the cooldown was over", breaker.Duration(r.TargetClose))
	case res.closed && r.closedAt.After(r.endOfWait):
		r.fault("closed %s after the stand-in answers again: the target is %s after the cooldown", seconds(res.closeAfter), breaker.Duration(r.TargetClose))
	}
}

// agent asks, calls the stand-in, reports what it saw and obeys, until ctx ends.
func (r *drillRun) agent(ctx context.Context, name string, after time.Duration) {
	defer r.standIn.client.CloseIdleConnections()
	wait := after
	for n := 1; pause(ctx, wait); n++ {
		e := drillEvent{agent: name, started: time.Now()}
		call := drillCall{Agent: name, Machine: r.machine(r.kind), Model: r.machine(r.kind), TimeoutMS: r.Timeout.Milliseconds()}
		e.grant, e.err = r.api.permit(ctx, call, strconv.FormatInt(r.began.UnixNano(), 36)+"-"+strconv.Itoa(n))
		wait = r.Every
		switch {
		case e.err != nil:
		case !e.grant.Allowed:
			wait = max(wait, min(e.grant.wait(), 5*time.Second))
		default:
			// A probe is surely under way from here until its word is sent.
			if e.grant.Probe {
				r.probing.begin()
			}
			e.started = time.Now()
			seen := r.standIn.call(ctx, r.Timeout)
			e.ended = time.Now()
			if e.grant.Probe {
				r.probing.end()
			}
			if ctx.Err() != nil {
				r.api.release(ctx, e.grant.Permit)
				return
			}
			call.drillSeen, call.Permit, call.DurationMS = seen, e.grant.Permit, float64(e.ended.Sub(e.started))/float64(time.Millisecond)
			e.verdict, e.err = r.api.report(ctx, call)
		}
		e.at = time.Now()
		select {
		case r.events <- e:
		case <-ctx.Done():
			return
		}
		if e.err != nil {
			return
		}
	}
}

// probing counts probes under way.
type probing struct {
	mu         sync.Mutex
	now, worst int
}

func (p *probing) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
	p.worst = max(p.worst, p.now)
}

func (p *probing) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
}

func (p *probing) most() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.worst
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// seconds prints a measured time.
func seconds(d time.Duration) string {
	if d >= time.Minute {
		return breaker.Duration(d.Round(time.Second)).String()
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
}

// about prints an expected time.
func about(d time.Duration) string {
	return breaker.Duration((d + time.Second - 1).Truncate(time.Second)).String()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
