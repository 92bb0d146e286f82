package app

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"time"

	"breakerbot/breaker"
	"breakerbot/ingest"
)

// maxScriptLine is the longest line of a replay script, in bytes.
const maxScriptLine = 1 << 20

// errDiffers is the error of a checked replay whose lines differ from what they
// expect.
var errDiffers = errors.New("the script's expectations do not hold")

// scriptSetup is the first line of a script: the part of the configuration that
// decides anything.
type scriptSetup struct {
	BuiltinRules bool                     `yaml:"builtin_rules"`
	Rules        []breaker.Rule           `yaml:"rules"`
	Gates        []ingest.Gate            `yaml:"gates"`
	Chains       map[string]breaker.Chain `yaml:"chains"`
	Machines     map[string]rawMachine    `yaml:"machines"`
	// WatchPermits counts permits with a time-out that never come back, as the
	// service does; a script says when it is about them.
	WatchPermits bool `yaml:"watch_permits"`
}

// scriptLine is one of the further lines: a moment, one action, and perhaps
// what is expected of it.
type scriptLine struct {
	T       *float64        `json:"t"`
	Outcome json.RawMessage `json:"outcome"`
	Permit  json.RawMessage `json:"permit"`
	Release string          `json:"release"`
	Extend  string          `json:"extend"`
	Route   json.RawMessage `json:"route"`
	Circuit *breaker.Labels `json:"circuit"`
	Control *struct {
		Breaker string     `json:"breaker"`
		Op      breaker.Op `json:"op"`
		ForMS   int64      `json:"for_ms"`
		Actor   string     `json:"actor"`
		Reason  string     `json:"reason"`
	} `json:"control"`
	Write   json.RawMessage `json:"write"`
	Restart *struct{}       `json:"restart"`
	Health  *struct {
		Machine  string `json:"machine"`
		Answered bool   `json:"answered"`
		Boot     bool   `json:"boot"`
		Error    string `json:"error"`
	} `json:"health"`
	As        string          `json:"as"`
	TimeoutMS int64           `json:"timeout_ms"`
	Expect    json.RawMessage `json:"expect"`
}

// scriptAnswer is what a line prints.
type scriptAnswer struct {
	Line        int                `json:"line"`
	T           float64            `json:"t"`
	Result      any                `json:"result"`
	Transitions []scriptTransition `json:"transitions"`
}

type scriptTransition struct {
	Breaker string        `json:"breaker"`
	From    breaker.State `json:"from"`
	To      breaker.State `json:"to"`
	Cause   breaker.Cause `json:"cause,omitempty"`
	Reason  string        `json:"reason"`
	Actor   string        `json:"actor,omitempty"`
	T       float64       `json:"t"`
}

// replay runs one script on the real engine and virtual time.
type replay struct {
	engine  *breaker.Engine
	cfg     breaker.Config
	given   *Config // for a script that sets nothing up; nil: the built-in rules
	permits map[string]string
	decoder ingest.Decoder
	last    float64
}

// scriptStart is a script's zero: 1970, where every time window begins a bucket,
// and a nanosecond, since the engine takes 1970 itself for no time at all.
var scriptStart = time.Unix(0, 1).UTC()

// runReplay reads a script and writes a line for each of its lines; with check
// it writes only the lines that differ from what they expect, and returns
// errDiffers when there are any. Any other error is one of the script and names
// its line. A script that sets nothing up runs under the configuration given,
// or under the built-in rules when that is nil.
func runReplay(in io.Reader, out io.Writer, check bool, given *Config) error {
	r := &replay{permits: make(map[string]string), given: given}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxScriptLine)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	checked, differ := 0, 0
	number := 0
	for lines.Scan() {
		number++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		if r.engine == nil {
			setup := isSetup(text)
			if err := r.setUp(text, setup); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			if setup {
				continue
			}
		}
		answer, expect, err := r.line(text)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		answer.Line = number
		if !check {
			if err := enc.Encode(answer); err != nil {
				return err
			}
			continue
		}
		if expect == nil {
			continue
		}
		checked++
		wrong, err := differences(expect, answer)
		if err != nil {
			return fmt.Errorf("line %d: expect: %w", number, err)
		}
		if len(wrong) > 0 {
			differ++
			fmt.Fprintf(out, "line %d: %s\n", number, strings.Join(wrong, "; "))
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("line %d is longer than %d bytes", number+1, maxScriptLine)
		}
		return err
	}
	if check {
		fmt.Fprintf(out, "%d of %d expectations hold\n", checked-differ, checked)
		if differ > 0 {
			return errDiffers
		}
	}
	return nil
}

// isSetup tells whether a first line sets things up: it has no t.
func isSetup(text []byte) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(text, &keys) != nil || keys == nil {
		return false
	}
	_, timed := keys["t"]
	return !timed
}

// setUp makes the engine as the line says, when it is given one.
func (r *replay) setUp(text []byte, given bool) error {
	setup := scriptSetup{BuiltinRules: true}
	p := &problems{places: make(map[string]place)}
	if given {
		decode(text, &setup, p)
	}
	raw := defaults()
	raw.BuiltinRules, raw.Rules, raw.Machines = setup.BuiltinRules, setup.Rules, setup.Machines
	raw.Gates, raw.Chains = setup.Gates, setup.Chains
	var cfg Config
	c := &checker{raw: raw, cfg: &cfg, problems: p}
	c.checkMachines()
	c.checkRules()
	c.checkGates()
	c.checkChains()
	c.checkLater()
	if err := p.err(); err != nil {
		return err
	}
	if !given && r.given != nil {
		cfg = *r.given
	}
	r.cfg = breaker.Config{Rules: cfg.Rules, Machines: cfg.Machines, Chains: cfg.Chains, Key: []byte("replay"), WatchPermits: setup.WatchPermits}
	r.decoder = ingest.Decoder{Local: isLocal(cfg.Machines), Canonical: canonical(cfg.Machines), Gates: cfg.Gates}
	var err error
	r.engine, err = breaker.New(r.cfg)
	return err
}

// isLocal tells the decoder which machines are the lab's own.
func isLocal(machines map[string]breaker.Machine) func(string) bool {
	return func(machine string) bool { return machines[machine].Local }
}

// line does one line's action and gives what it prints and expects.
func (r *replay) line(text []byte) (scriptAnswer, any, error) {
	var l scriptLine
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return scriptAnswer{}, nil, err
	}
	if dec.More() {
		return scriptAnswer{}, nil, errors.New("more than one JSON value")
	}
	switch {
	case l.T == nil:
		return scriptAnswer{}, nil, errors.New("t is missing: the seconds since the start are needed")
	case *l.T < r.last:
		return scriptAnswer{}, nil, fmt.Errorf("t: %g is before %g, the line above: time never falls", *l.T, r.last)
	case *l.T > 1e9:
		return scriptAnswer{}, nil, fmt.Errorf("t: %g is too far: at most 1e9 is allowed", *l.T)
	}
	r.last = *l.T
	now := scriptStart.Add(time.Duration(math.Round(*l.T * float64(time.Second))))
	r.engine.Advance(now)
	// What time alone brought about is taken out first: a restart leaves the
	// engine behind, whose transitions the service has written by then.
	transitions := r.drain([]scriptTransition{})
	result, err := r.act(&l, now)
	if err != nil {
		return scriptAnswer{}, nil, err
	}
	answer := scriptAnswer{T: *l.T, Result: result, Transitions: r.drain(transitions)}
	if l.Expect == nil {
		return answer, nil, nil
	}
	var expect any
	err = json.Unmarshal(l.Expect, &expect)
	return answer, expect, err
}

// drain appends what the engine has moved since the last time.
func (r *replay) drain(list []scriptTransition) []scriptTransition {
	for _, t := range r.engine.Drain().Transitions {
		list = append(list, scriptTransition{
			Breaker: t.Breaker, From: t.From, To: t.To, Cause: t.Cause, Reason: t.Reason, Actor: t.Actor,
			T: t.At.Sub(scriptStart).Seconds(),
		})
	}
	return list
}

// scriptMillis is a duration of a script, which may be as long as the script's
// own time.
func scriptMillis(field string, ms int64) (time.Duration, error) {
	if ms < 0 || ms > 1e12 {
		return 0, fmt.Errorf("%s: %d is out of range: 0 to 1e12 are allowed", field, ms)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (r *replay) act(l *scriptLine, now time.Time) (any, error) {
	given := 0
	for _, is := range []bool{l.Outcome != nil, l.Permit != nil, l.Release != "", l.Extend != "", l.Route != nil,
		l.Circuit != nil, l.Control != nil, l.Write != nil, l.Restart != nil, l.Health != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, fmt.Errorf("%d actions are given: exactly one of outcome, permit, release, extend, route, circuit, control, write, restart, health is needed", given)
	}
	switch {
	case l.Outcome != nil:
		return r.outcome(l.Outcome, now)
	case l.Permit != nil:
		ask, bad, _ := ingest.DecodeAsk(l.Permit)
		if len(bad) > 0 {
			return nil, fieldErrors("permit", bad)
		}
		g, _ := r.engine.Ask(now, ask)
		if l.As != "" {
			r.permits[l.As] = g.Permit
		}
		return ingest.GrantJSON(g, now), nil
	case l.Release != "":
		permit, err := r.permit(l.Release)
		if err != nil {
			return nil, fmt.Errorf("release: %w", err)
		}
		duplicate, _, err := r.engine.Release(now, permit)
		return ingest.ReleaseBody{Released: !duplicate, Duplicate: duplicate}, err
	case l.Extend != "":
		permit, err := r.permit(l.Extend)
		if err != nil {
			return nil, fmt.Errorf("extend: %w", err)
		}
		timeout, err := scriptMillis("timeout_ms", l.TimeoutMS)
		if err != nil {
			return nil, fmt.Errorf("extend: %w", err)
		}
		expires, _, err := r.engine.Extend(now, permit, timeout)
		if errors.Is(err, breaker.ErrLeaseOver) {
			return map[string]string{"error": err.Error()}, nil
		}
		return ingest.ExtendBody{ExpiresAt: ingest.Millis{Time: expires}}, err
	case l.Circuit != nil:
		return ingest.CircuitJSON(r.engine.Circuit(now, *l.Circuit), now), nil
	case l.Control != nil:
		c := l.Control
		hold, err := scriptMillis("for_ms", c.ForMS)
		if err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
		v, _, err := r.engine.Control(now, breaker.Control{Breaker: c.Breaker, Op: c.Op, For: hold, Actor: c.Actor, Reason: c.Reason})
		if err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
		return ingest.BreakerJSON(v, now), nil
	case l.Route != nil:
		ask, bad, _ := ingest.DecodeRoute(l.Route)
		if len(bad) > 0 {
			return nil, fieldErrors("route", bad)
		}
		route, _, err := r.engine.Route(now, ask)
		if err != nil {
			return nil, fmt.Errorf("route: %w", err)
		}
		if l.As != "" {
			r.permits[l.As] = route.Grant.Permit
		}
		return ingest.RouteJSON(route, now), nil
	case l.Write != nil:
		key, applied, bad := ingest.DecodeWrite(l.Write)
		if len(bad) > 0 {
			return nil, fieldErrors("write", bad)
		}
		write, _, err := r.engine.Reconcile(now, key, applied, "replay")
		return ingest.ReconciledJSON(write, err, now), nil
	case l.Health != nil:
		return r.health(now, l.Health.Machine, l.Health.Answered, l.Health.Boot, l.Health.Error)
	}
	return struct{}{}, r.restart()
}

// checked is what came of a health check: the breakers that it opened at the
// start, or whether it made a probe due earlier.
type checked struct {
	Opened  []string `json:"opened"`
	Earlier bool     `json:"earlier"`
}

// health does what the service does with a health check.
func (r *replay) health(now time.Time, machine string, answered, boot bool, why string) (any, error) {
	if err := breaker.CheckLabel(machine); err != nil {
		return nil, fmt.Errorf("health: machine: %w", err)
	}
	result := checked{Opened: []string{}}
	switch {
	case boot:
		opened, _ := r.engine.BootCheck(now, machine, answered, why)
		result.Opened = append(result.Opened, opened...)
	case answered:
		result.Earlier, _ = r.engine.HealthAnswered(now, machine)
	}
	return result, nil
}

// outcome reports a call; a permit "$p1" in it stands for the one that an
// earlier line called p1.
func (r *replay) outcome(raw json.RawMessage, now time.Time) (any, error) {
	o, bad, _ := r.decoder.Outcome(raw, now)
	if len(bad) > 0 {
		return nil, fieldErrors("outcome", bad)
	}
	if strings.HasPrefix(o.Permit, "$") {
		permit, err := r.permit(o.Permit)
		if err != nil {
			return nil, fmt.Errorf("outcome: permit: %w", err)
		}
		o.Permit = permit
	}
	verdicts, _ := r.engine.Report(now, []breaker.Outcome{o})
	return ingest.VerdictJSON(verdicts[0], now), nil
}

func (r *replay) permit(alias string) (string, error) {
	permit, ok := r.permits[strings.TrimPrefix(alias, "$")]
	if !ok {
		return "", fmt.Errorf("no line above has as %q", strings.TrimPrefix(alias, "$"))
	}
	return permit, nil
}

// restart does what the service does between a stop and a start: the state
// goes out as text and comes back into a new engine.
func (r *replay) restart() error {
	text, err := json.Marshal(r.engine.Snapshot())
	if err != nil {
		return fmt.Errorf("restart: save: %w", err)
	}
	var snap breaker.Snapshot
	if err := json.Unmarshal(text, &snap); err != nil {
		return fmt.Errorf("restart: load: %w", err)
	}
	if r.engine, err = breaker.New(r.cfg); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	return r.engine.Restore(snap)
}

func fieldErrors(what string, bad []ingest.FieldError) error {
	var errs []error
	for _, e := range bad {
		errs = append(errs, fmt.Errorf("%s: %w", what, e))
	}
	return errors.Join(errs...)
}

// differences says where the answer is not what is expected. Objects may have
// more than is expected of them, lists may not.
func differences(expect any, answer scriptAnswer) ([]string, error) {
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	var got any
	if err := json.Unmarshal(text, &got); err != nil {
		return nil, err
	}
	return differ("", expect, got), nil
}

func differ(path string, want, got any) []string {
	switch want := want.(type) {
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok {
			break
		}
		var list []string
		for _, key := range sorted(want) {
			value, there := have[key]
			if !there && want[key] != nil && want[key] != false {
				list = append(list, fmt.Sprintf("%s is missing, expected %s", join(path, key), short(want[key])))
				continue
			}
			if !there {
				continue // false and null are the same as absent
			}
			list = append(list, differ(join(path, key), want[key], value)...)
		}
		return list
	case []any:
		have, ok := got.([]any)
		if !ok || len(have) != len(want) {
			break
		}
		var list []string
		for i := range want {
			list = append(list, differ(fmt.Sprintf("%s[%d]", path, i), want[i], have[i])...)
		}
		return list
	default:
		if reflect.DeepEqual(want, got) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s is %s, expected %s", path, short(got), short(want))}
}

func short(v any) string {
	text, _ := json.Marshal(v)
	return clip(string(text))
}
