package app

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"breakerbot/breaker"
	"breakerbot/digest"
	"breakerbot/ingest"
	"breakerbot/store/pgserver"
)

// demoPrints is about how many things the demo shows: its pause is divided
// among them.
const demoPrints = 26

// demo is a day of the lab on a clock that jumps to whatever comes next. The
// server, its database, its alerts and its digest are those of serve; they are
// moved by hand, so that every run shows the same.
type demo struct {
	*service
	out    io.Writer
	color  bool
	gap    time.Duration // real time after something was shown
	clock  atomic.Int64  // virtual time, in nanoseconds
	events eventQueue
	order  int
	client *http.Client
	base   string
	open   bool            // whether a breaker was not closed at the last event
	wake   time.Time       // when the service has something to do by itself
	ctx    context.Context // ends the pauses
}

// event is something that happens to the lab at a moment.
type event struct {
	at    time.Time
	order int
	do    func(now time.Time) error
}

// eventQueue is a heap of events, those of one moment in the order in which
// they were planned.
type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].order < q[j].order
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// runDemo shows a day of the lab on a database of its own, which is gone
// afterwards.
func runDemo(ctx context.Context, sys System, args demoCmd) (err error) {
	if args.Pause < 0 || args.Pause > time.Hour {
		return usageError{fmt.Errorf("demo: --pause: %s is out of range: 0 to 1h are allowed", args.Pause)}
	}
	color := args.Color == "always" || args.Color == "auto" && isTerminal(sys.Out)
	log := slog.New(slog.NewTextHandler(sys.Err, &slog.HandlerOptions{Level: slog.LevelError}))
	stops := &stopper{log: log}
	defer func() {
		if stopErr := stops.stop(); ctx.Err() == nil {
			err = errors.Join(err, stopErr)
		} else {
			err = nil // interrupted, which is no failure
		}
	}()

	cfg, err := demoConfig()
	if err != nil {
		return err
	}
	d := &demo{out: sys.Out, color: color, gap: args.Pause / demoPrints, client: &http.Client{Timeout: 30 * time.Second}, ctx: ctx}
	d.clock.Store(labDay.UnixNano())
	out := &pausing{demo: d, out: sys.Out}
	if d.service, err = newService(cfg, log, d.time, out, color); err != nil {
		return err
	}
	d.tick = -1
	d.say("A small lab: mac-mini, gpu-box and ubuntu-box, and four agents that call models on them.\n" +
		"They ask breakerbot before each call and tell it what became of it. This is one day of\n" +
		"theirs, sped up; below is what breakerbot would send you. Real server, real Postgres.")
	if err := d.begin(ctx, stops); err != nil {
		return err
	}
	for _, a := range labAgents {
		d.at(labDay.Add(a.every/3), func(now time.Time) error { return d.turn(a, now) })
	}
	for _, o := range append([]labOutage{labOneOff}, labOutages...) {
		d.at(o.from, func(now time.Time) error { d.narrate(now, o.story); return nil })
	}
	if err := d.live(ctx); err != nil {
		return err
	}
	return d.epilogue(ctx)
}

// demoConfig is the default configuration, for a lab of its own: nothing of the
// user's is read or touched.
func demoConfig() (Config, error) {
	settings := map[string]string{"BREAKERBOT_LISTEN": "127.0.0.1:0", "BREAKERBOT_TIMEZONE": "UTC", "BREAKERBOT_DATA_DIR": os.TempDir()}
	p := &problems{places: make(map[string]place)}
	raw := defaults()
	env := func(key string) (string, bool) { v, ok := settings[key]; return v, ok }
	fromEnvironment(raw, env, p)
	var cfg Config
	(&checker{raw: raw, cfg: &cfg, problems: p, env: env}).check()
	return cfg, p.err()
}

// begin starts the database and the server.
func (d *demo) begin(ctx context.Context, stops *stopper) error {
	dir, err := os.MkdirTemp("", "breakerbot-demo-")
	if err != nil {
		return err
	}
	stops.add("demo folder", func(context.Context) error { return os.RemoveAll(dir) })
	if err := letPostgresIn(dir); err != nil {
		return err
	}
	url, err := builtIn(ctx, stops, pgserver.Options{DataDir: dir, Log: d.log, FsyncOff: true})
	if err != nil {
		return err
	}
	if _, err := d.connect(ctx, url, stops); err != nil {
		return err
	}
	loop, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); d.journal.Run(loop) }()
	stops.add("journal", func(ctx context.Context) error {
		end()
		<-ended
		return d.journal.Close(ctx)
	})
	listener, err := net.Listen("tcp", d.cfg.Listen)
	if err != nil {
		return err
	}
	server := ingest.HTTPServer(d.http.Handler(), d.log)
	go func() { _ = server.Serve(listener) }()
	stops.add("intake", func(ctx context.Context) error {
		d.client.CloseIdleConnections()
		return server.Shutdown(ctx)
	})
	d.base = "http://" + listener.Addr().String()
	return nil
}

// letPostgresIn lets the user that Postgres runs as, where we are root, pass
// through the folder.
func letPostgresIn(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if _, err := user.Lookup("postgres"); err != nil {
		return nil // pgserver says what is missing
	}
	return os.Chmod(dir, 0o711)
}

func (d *demo) time() time.Time { return time.Unix(0, d.clock.Load()).UTC() }

func (d *demo) at(t time.Time, do func(now time.Time) error) {
	d.order++
	heap.Push(&d.events, event{t, d.order, do})
}

// live moves the clock from event to event until the day is over. All agents
// wait between two events, so nothing is missed by jumping.
func (d *demo) live(ctx context.Context) error {
	for {
		next := labEnd
		if len(d.events) > 0 && d.events[0].at.Before(next) {
			next = d.events[0].at
		}
		if !d.wake.IsZero() && d.wake.Before(next) {
			next = d.wake
		}
		d.clock.Store(max(next.UnixNano(), d.clock.Load()))
		for len(d.events) > 0 && !d.events[0].at.After(next) {
			if err := heap.Pop(&d.events).(event).do(next); err != nil {
				return err
			}
		}
		if d.busy(next) {
			if err := d.serviceStep(ctx); err != nil {
				return err
			}
		}
		if !next.Before(labEnd) {
			return nil
		}
	}
}

// busy tells whether the service has something to do: while a breaker is not
// closed, and just after; at the moment that it said itself; at the end.
func (d *demo) busy(now time.Time) bool {
	before := d.open
	d.open = len(d.engine.Breakers(now, breaker.Labels{}, breaker.Open, breaker.HalfOpen)) > 0
	return d.open || before || !now.Before(d.wake) || !now.Before(labEnd)
}

// serviceStep is what serve's loops do: write, tell, make the digest that is
// due, and say when there is something to do again.
func (d *demo) serviceStep(ctx context.Context) error {
	now := d.time()
	if err := d.tellDigests(ctx, now); err != nil {
		return err
	}
	next, err := d.sender.Step(ctx, now)
	if err != nil {
		return err
	}
	d.wake = next
	if alert := d.alerts.Next(); !alert.IsZero() && alert.Before(d.wake) {
		d.wake = alert
	}
	if !d.wake.After(now) {
		d.wake = now.Add(time.Second)
	}
	return ctx.Err()
}

// turn is one turn of an agent: it asks for the first target, then for the
// second, and without either tells that it went without.
func (d *demo) turn(a labAgent, now time.Time) error {
	d.at(now.Add(a.every), func(now time.Time) error { return d.turn(a, now) })
	return d.try(a, a.first, "", now)
}

// try asks for a target and calls it. cause is what became of the first target
// when this one takes its place.
func (d *demo) try(a labAgent, t labTarget, cause string, now time.Time) error {
	var permit struct {
		Allowed  bool   `json:"allowed"`
		Permit   string `json:"permit"`
		Breakers []struct {
			Cause string `json:"cause"`
		} `json:"breakers"`
	}
	ask := map[string]any{"agent": a.name, "machine": t.machine, "model": t.model, "timeout_ms": a.limit.Milliseconds()}
	if err := d.post("/v1/permits", ask, &permit); err != nil {
		return err
	}
	if permit.Allowed {
		takes, saw := t.call(now, a.limit)
		d.at(now.Add(takes), func(now time.Time) error { return d.tell(a, t, permit.Permit, cause, takes, saw, now) })
		return nil
	}
	refused := "unavailable"
	if len(permit.Breakers) > 0 && permit.Breakers[0].Cause != "" {
		refused = permit.Breakers[0].Cause
	}
	return d.instead(a, t, refused, now)
}

// tell reports what became of a call.
func (d *demo) tell(a labAgent, t labTarget, permit, cause string, takes time.Duration, saw labSignal, now time.Time) error {
	outcome := map[string]any{
		"agent": a.name, "machine": t.machine, "model": t.model, "permit": permit,
		"duration_ms": takes.Milliseconds(), "timeout_ms": a.limit.Milliseconds(),
	}
	if saw.status != 0 {
		outcome["http_status"] = saw.status
	}
	if saw.text != "" {
		outcome["error"] = saw.text
	}
	if saw.phase != "" {
		outcome["phase"] = saw.phase
	}
	if cause != "" {
		outcome["served"] = "fallback"
		outcome["fallback_from"] = map[string]string{"machine": a.first.machine, "model": a.first.model, "cause": cause}
	}
	var answer struct {
		Verdicts []struct{ Cause, Class string }
	}
	if err := d.post("/v1/outcomes", outcome, &answer); err != nil {
		return err
	}
	if v := answer.Verdicts; len(v) == 1 && v[0].Class != "ok" {
		return d.instead(a, t, v[0].Cause, now)
	}
	return nil
}

// instead is what an agent does when a target is out: the first one's place is
// taken by the second, and without one the turn is given up.
func (d *demo) instead(a labAgent, t labTarget, cause string, now time.Time) error {
	if t == a.first && a.second.machine != "" {
		return d.try(a, a.second, cause, now)
	}
	return d.post("/v1/outcomes", map[string]any{"agent": a.name, "machine": t.machine, "model": t.model, "served": "rejected"}, nil)
}

// post sends a request as any agent would.
func (d *demo) post(path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return d.do(http.MethodPost, path, bytes.NewReader(text), into)
}

func (d *demo) do(method, path string, body io.Reader, into any) error {
	req, err := http.NewRequestWithContext(d.ctx, method, d.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// narrate tells what happens to the lab; a reader has to know what breakerbot
// has to find out.
func (d *demo) narrate(now time.Time, text string) {
	line := now.Format("15:04") + "  " + text
	if d.color {
		line = "\x1b[36m" + line + "\x1b[0m"
	}
	d.say(line)
}

func (d *demo) say(text string) {
	fmt.Fprintf(d.out, "\n%s\n", text)
	d.rest()
}

// rest gives people time to read.
func (d *demo) rest() {
	if d.gap <= 0 {
		return
	}
	select {
	case <-d.ctx.Done():
	case <-time.After(d.gap):
	}
}

// pausing rests after each message that the terminal prints.
type pausing struct {
	demo *demo
	out  io.Writer
}

func (p *pausing) Write(text []byte) (int, error) {
	n, err := p.out.Write(text)
	p.demo.rest()
	return n, err
}

// epilogue says what the day would have been without, from the server's own
// report, and how to go on.
func (d *demo) epilogue(ctx context.Context) error {
	var report digest.Report
	if err := d.do(http.MethodGet, "/v1/digest?period=24h&format=json", nil, &report); err != nil {
		return err
	}
	t := report.Totals
	var b strings.Builder
	fmt.Fprintf(&b, "What that day was worth, from GET /v1/digest:\n\n")
	row := func(n int64, text string) { fmt.Fprintf(&b, "  %7s  %s\n", strconv.FormatInt(n, 10), text) }
	row(t.Calls, "calls went out, as four agents make in a day")
	row(t.Failed, "of them failed: what it took to notice, and the probes")
	row(t.Refused, "would have failed too, and were refused in an instant")
	row(t.Rerouted, "went to another machine instead")
	fmt.Fprintf(&b, "  %7s  of waiting for time-outs was saved, and %s were spent on it\n", t.WaitingSaved, t.WaitingSpent)
	b.WriteString(`
To hear of your own machines:

  make run                                     starts the service here, on its own Postgres
  curl -d '{"agent": "me", "machine": "gpu-box", "cause": "refused"}' \
       -H 'Content-Type: application/json' http://127.0.0.1:8080/v1/outcomes
                                               three of these and gpu-box is open

For Telegram, make a bot with @BotFather and write to it once, then:

  TELEGRAM_TOKEN=… TELEGRAM_CHAT_ID=… TELEGRAM_OPERATORS=… make run
                                               a chat that the bot does not know yet is told its ids`)
	d.gap = 0
	d.say(b.String())
	return nil
}
