package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"breakerbot/breaker"
	"breakerbot/ingest"
)

// memory is a journal and a history for a server that forgets.
type memory struct{}

func (memory) Full() bool                         { return false }
func (memory) Wait(context.Context, uint64) error { return nil }
func (memory) Transitions(context.Context, breaker.Filter) ([]breaker.Transition, string, error) {
	return nil, "", nil
}
func (memory) Incidents(context.Context, breaker.Filter) ([]breaker.Incident, string, error) {
	return nil, "", nil
}

// quickRules are the built-in ones with waits that a test can sit out.
func quickRules(change ...func(*breaker.Rule)) []breaker.Rule {
	rules := breaker.Builtin()
	for i := range rules {
		rules[i].Cooldown = breaker.Cooldown{First: breaker.Duration(time.Second)}
		for _, f := range change {
			f(&rules[i])
		}
	}
	return rules
}

// drilled serves an engine with these rules, behind what wrap makes of it.
func drilled(t *testing.T, rules []breaker.Rule, o ingest.Options, wrap func(http.Handler) http.Handler) (*breaker.Engine, string) {
	t.Helper()
	engine, err := breaker.New(breaker.Config{Rules: rules, Key: []byte("key"), WatchPermits: true})
	if err != nil {
		t.Fatal(err)
	}
	server := ingest.New(o)
	server.Open(ingest.Core{Engine: engine, Journal: memory{}, History: memory{}})
	handler := server.Handler()
	if wrap != nil {
		handler = wrap(handler)
	}
	listening := httptest.NewServer(handler)
	t.Cleanup(listening.Close)
	return engine, listening.URL
}

// quickDrill fails for two seconds, in which everything opens.
func quickDrill(url string, kinds ...string) drillCmd {
	return drillCmd{
		URL: url, Kinds: kinds, Machine: "drill", Agents: 2, For: 2 * time.Second, Timeout: 600 * time.Millisecond,
		Every: 25 * time.Millisecond, TargetOpen: 5 * time.Second, TargetClose: 10 * time.Second,
	}
}

func TestDrill(t *testing.T) {
	t.Parallel()
	// The failure is over before the first probe.
	rules := quickRules(func(r *breaker.Rule) { r.Cooldown.First = breaker.Duration(2500 * time.Millisecond) })
	engine, url := drilled(t, rules, ingest.Options{}, nil)
	var out bytes.Buffer
	cmd := quickDrill(url, "refused", "hung", "errors", "empty")
	if err := cmd.run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	text := out.String()
	for _, part := range []string{
		"drill against " + url + ": 2 agents for each kind, 2s of failure\n",
		"  refused  drill-refused: nobody listens. 3 failures open reachability, which waits 2.5s; 1 good probe closes: about ",
		"  empty    drill-empty: every answer is a 200 without text. 3 failures open quality, which waits 2.5s; 3 good probes in a row close: about ",
		"  errors   fails from now on: every answer is a 500\n", "  hung     answers again, the next probe is due in ", "  empty    closed, ",
		"\nthe drill's breakers are reset\n",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the output lacks %q", part)
		}
	}
	rows := map[string][]string{}
	_, table, _ := strings.Cut(text, "KIND ")
	for line := range strings.Lines(table) {
		if words := strings.Fields(line); len(words) > 3 {
			rows[words[0]] = words
		}
	}
	for kind, want := range map[string][]string{"refused": {"refused", "reachability"}, "hung": {"timeout", "hangs,"}, "errors": {"server_error", "errors"}, "empty": {"empty", "quality"}} {
		if row := rows[kind]; len(row) < 3 || !slices.Equal(row[1:3], want) || !strings.HasSuffix(strings.Join(row, " "), "s within target") {
			t.Errorf("the row of %s is %q, want it to begin with %q", kind, row, want)
		}
	}
	views := engine.Breakers(time.Now(), breaker.Labels{})
	if len(views) < 8 {
		t.Errorf("only %d breakers were made", len(views))
	}
	for _, v := range views {
		if v.State != breaker.Closed || v.Run != 0 || v.Calls != 0 || v.Probes != 0 {
			t.Errorf("left behind is %+v", v)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// lies answers GET /v1/rules with other rules than those in force.
func lies(rules []breaker.Rule) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/rules" {
				next.ServeHTTP(w, r)
				return
			}
			json.NewEncoder(w).Encode(ingest.RulesBody{Rules: rules})
		})
	}
}

// rewrites changes the bodies of requests to one path.
func rewrites(path, old, replacement string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == path {
				body, _ := io.ReadAll(r.Body)
				body = bytes.ReplaceAll(body, []byte(old), []byte(replacement))
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			}
			next.ServeHTTP(w, r)
		})
	}
}

// A drill that could not fail would show nothing: each server here is wrong in
// one way, and is told so.
func TestDrillFindsFaults(t *testing.T) {
	t.Parallel()
	gates, err := ingest.NewGates([]ingest.Gate{{Machine: "*", MinChars: 500}})
	if err != nil {
		t.Fatal(err)
	}
	var drills sync.WaitGroup
	for name, tc := range map[string]struct {
		kind   string
		rules  []breaker.Rule
		o      ingest.Options
		wrap   func(http.Handler) http.Handler
		change func(*drillCmd)
		want   string
	}{
		"two probes at once": {kind: "hung", rules: quickRules(func(r *breaker.Rule) { r.Concurrent = 2 }), wrap: lies(quickRules()),
			change: func(c *drillCmd) { c.For = 3200 * time.Millisecond }, want: "2 probes were under way at once: the rule allows 1"},
		"never opens": {kind: "errors", rules: quickRules(func(r *breaker.Rule) { r.Mode = breaker.ModeObserve }), wrap: lies(quickRules()),
			want: "has not opened within 2s of failure, after "},
		"opens late": {kind: "errors", rules: quickRules(func(r *breaker.Rule) { r.Trip = breaker.Trip{Consecutive: 12} }), wrap: lies(quickRules()),
			want: "opened after 12 failed calls: the threshold of errors is 3, and 5 are the most with 2 agents"},
		"opens slowly": {kind: "hung", rules: quickRules(), change: func(c *drillCmd) { c.TargetOpen = 10 * time.Millisecond },
			want: "the target is 10ms"},
		"waits longer than its rule": {kind: "refused", rules: quickRules(func(r *breaker.Rule) { r.Cooldown.First = breaker.Duration(time.Minute) }), wrap: lies(quickRules()),
			change: func(c *drillCmd) { c.TargetClose = 100 * time.Millisecond }, want: "has not closed within 100ms after the cooldown was over"},
		"closes late": {kind: "empty", rules: quickRules(), change: func(c *drillCmd) { c.TargetClose, c.Every = time.Millisecond, 100*time.Millisecond },
			want: "has not closed within 1ms after the cooldown was over"},
		"another cause": {kind: "errors", rules: quickRules(), wrap: rewrites("/v1/outcomes", `"http_status":500`, `"http_status":503`),
			want: "failed calls were taken for unavailable: they were server_error"},
		"lets calls through": {kind: "errors", rules: quickRules(), want: "calls were wasted after it had opened: 2 agents can have 2 under way",
			wrap: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/v1/permits" {
						io.WriteString(w, `{"allowed": true, "state": "closed"}`)
						return
					}
					next.ServeHTTP(w, r)
				})
			}},
		"breaks down": {kind: "errors", rules: quickRules(), want: "cannot go on: ",
			wrap: func(next http.Handler) http.Handler {
				var reports atomic.Int64
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/v1/outcomes" && reports.Add(1) > 8 {
						http.Error(w, "{}", http.StatusInternalServerError)
						return
					}
					next.ServeHTTP(w, r)
				})
			}},
		"a gate in the way": {kind: "errors", rules: quickRules(), o: ingest.Options{Gates: gates},
			want: "a good call is judged too_short, and the circuit is "},
		"refuses for no reason": {kind: "errors", rules: quickRules(), want: "is refused before anything has failed: held_open",
			wrap: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/v1/permits" {
						io.WriteString(w, `{"allowed": false, "state": "open", "reason": "held_open"}`)
						return
					}
					next.ServeHTTP(w, r)
				})
			}},
	} {
		_, url := drilled(t, tc.rules, tc.o, tc.wrap)
		cmd := quickDrill(url, tc.kind)
		if tc.change != nil {
			tc.change(&cmd)
		}
		// All at once, however few tests run in parallel: they mostly wait.
		drills.Go(func() {
			var out bytes.Buffer
			err := cmd.run(t.Context(), &out)
			if err == nil || err.Error() != "drill: 1 of 1 kinds of failure are not within target" {
				t.Errorf("%s: error %v", name, err)
			}
			if !strings.Contains(out.String(), "NOT within target\n") || !strings.Contains(out.String(), tc.want) {
				t.Errorf("%s: the output lacks %q:\n%s", name, tc.want, out.String())
			}
		})
	}
	drills.Wait()
}

func TestDrillErrors(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))
	t.Cleanup(page.Close)
	away := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(away.Close)
	tokens := ingest.Options{Tokens: []ingest.Token{
		{Name: "coder", Secret: "reports", Scope: ingest.ScopeReport},
		{Name: "viewer", Secret: "looks", Scope: ingest.ScopeReport | ingest.ScopeRead},
	}}
	_, guarded := drilled(t, quickRules(), tokens, nil)
	engine, held := drilled(t, quickRules(), tokens, nil)
	if _, _, err := engine.Control(time.Now(), breaker.Control{Breaker: "errors{machine=drill-errors,model=drill-errors}", Op: breaker.OpHoldOpen, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	_, nothing := drilled(t, quickRules(func(r *breaker.Rule) { r.Mode = breaker.ModeObserve }), ingest.Options{}, nil)
	for name, tc := range map[string]struct {
		url, token string
		change     func(*drillCmd)
		usage      bool
		want       string
	}{
		"nobody":         {url: "http://127.0.0.1:1", want: "http://127.0.0.1:1 does not answer: dial tcp 127.0.0.1:1: connect: connection refused: is breakerbot serve running there?"},
		"a page":         {url: page.URL, want: "with something else than JSON: is it breakerbot?"},
		"another server": {url: away.URL, want: "answers 404 to GET /v1/rules: Not Found: is it breakerbot?"},
		"no token":       {url: guarded, want: "wants a token: no token was sent: send Authorization: Bearer TOKEN; --token or BREAKERBOT_TOKEN gives it"},
		"bad token":      {url: guarded, token: "S3CRET", want: "wants a token: the token is not known"},
		"may not read":   {url: guarded, token: "reports", want: "refuses the token: token coder has the scope report: read is needed here"},
		"held":           {url: held, token: "looks", want: "errors{machine=drill-errors,model=drill-errors} is open from before, and the token may not reset it"},
		"nothing opens":  {url: nothing, want: "no rule in force opens on server_error for the machine drill-errors"},
		"no address":     {url: "127.0.0.1:8080", usage: true, want: `--url: "127.0.0.1:8080" is no address`},
		"a password":     {url: "http://me:S3CRET@127.0.0.1", usage: true, want: "an address with a name or a password is not taken"},
		"unknown kind":   {change: func(c *drillCmd) { c.Kinds = []string{"late"} }, usage: true, want: `--kinds: "late" is unknown: known are refused, hung, errors, empty`},
		"twice":          {change: func(c *drillCmd) { c.Kinds = []string{"hung", "hung"} }, usage: true, want: `--kinds: "hung" is named twice`},
		"no kinds":       {change: func(c *drillCmd) { c.Kinds = nil }, usage: true, want: "--kinds: is empty"},
		"one agent":      {change: func(c *drillCmd) { c.Agents = 1 }, usage: true, want: "--agents: 1 is out of range: 2 to 16"},
		"no time":        {change: func(c *drillCmd) { c.For, c.Every = 0, time.Hour }, usage: true, want: "--for: 0s is out of range: 100ms to 15m are allowed\n--every: 1h is out of range"},
		"no machine":     {change: func(c *drillCmd) { c.Machine = "" }, usage: true, want: "--machine: \"\" is no name"},
		"long machine":   {change: func(c *drillCmd) { c.Machine = strings.Repeat("m", 121) }, usage: true, want: "it takes 1 to 120 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := quickDrill(tc.url, "errors")
			cmd.Token = tc.token
			if tc.change != nil {
				tc.change(&cmd)
			}
			var out bytes.Buffer
			err := cmd.run(t.Context(), &out)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if _, usage := err.(usageError); usage != tc.usage {
				t.Errorf("%T: an error of usage is %v, want %v", err, usage, tc.usage)
			}
			if strings.Contains(err.Error()+out.String(), "S3CRET") {
				t.Errorf("a secret is printed: %v\n%s", err, out.String())
			}
		})
	}
}

// watcher is an output that does something once when a text has come.
type watcher struct {
	mu   sync.Mutex
	text bytes.Buffer
	when string
	then func()
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if w.then != nil && strings.Contains(w.text.String(), w.when) {
		w.then()
		w.then = nil
	}
	return len(p), nil
}

func TestDrillStops(t *testing.T) {
	t.Parallel()
	var drills sync.WaitGroup
	for _, when := range []string{"fails from now on", "opened, ", "a probe failed", "answers again"} {
		engine, url := drilled(t, quickRules(), ingest.Options{}, nil)
		drills.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &watcher{when: when, then: cancel}
			cmd := quickDrill(url, "hung")
			cmd.For = 3500 * time.Millisecond
			err := cmd.run(ctx, out)
			if err == nil || err.Error() != "drill: stopped before its end" || !strings.HasSuffix(out.text.String(), "\nstopped\nthe drill's breakers are reset\n") {
				t.Errorf("stopped at %q: %v\n%s", when, err, out.text.String())
			}
			for _, v := range engine.Breakers(time.Now(), breaker.Labels{}) {
				if v.State != breaker.Closed || v.Run != 0 {
					t.Errorf("stopped at %q, left behind is %+v", when, v)
				}
			}
		})
	}
	drills.Wait()
}

// An agent that is stopped in the middle of a call gives its permit back, which
// may be the only probe there is.
func TestDrillGivesPermitsBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	}))
	defer hung.Close()
	var released atomic.Int64
	_, url := drilled(t, quickRules(), ingest.Options{}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/release") {
				released.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	})
	api, err := newDrillAPI(url, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	kind := drillKinds[0]
	r := &drillRun{drill: &drill{drillCmd: quickDrill(url, kind.name), api: api, began: time.Now()}, kind: kind, standIn: newStandIn(kind)}
	r.standIn.addr = hung.Listener.Addr().String()
	r.Timeout = time.Minute
	r.agent(ctx, "agent", 0)
	if ctx.Err() == nil || released.Load() != 1 {
		t.Errorf("%d permits were given back, the context's error is %v", released.Load(), ctx.Err())
	}
}

func TestDrillWithoutOperate(t *testing.T) {
	t.Parallel()
	engine, url := drilled(t, quickRules(), ingest.Options{Tokens: []ingest.Token{{Name: "viewer", Secret: "looks", Scope: ingest.ScopeReport | ingest.ScopeRead}}}, nil)
	var out, errOut bytes.Buffer
	code := Main([]string{"drill", "--url", url + "/", "--token", "looks", "--kinds", "errors", "--for", "300ms", "--every", "25ms", "--timeout", "600ms"},
		System{Out: &out, Err: &errOut, Env: func(string) (string, bool) { return "", false }})
	if code != exitOK || errOut.Len() > 0 {
		t.Fatalf("exit code %d, %s\n%s", code, errOut.String(), out.String())
	}
	want := "left as they are, since the token may not operate: "
	if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "are reset") {
		t.Errorf("the output lacks %q:\n%s", want, out.String())
	}
	v, ok := engine.Breaker(time.Now(), "errors{machine=drill-errors,model=drill-errors}")
	if !ok || v.State != breaker.Closed || v.Era < 3 {
		t.Errorf("the breaker has not been open, or is not closed: %+v, %v", v, ok)
	}
}

func TestDrillExitCodes(t *testing.T) {
	t.Parallel()
	for code, args := range map[int][]string{
		exitFailure: {"--url", "http://127.0.0.1:1"},
		exitUsage:   {"--url", "http://127.0.0.1:1", "--kinds", "hung,late"},
		exitOK:      {"--help"},
	} {
		var out, errOut bytes.Buffer
		if got := Main(append([]string{"drill"}, args...), System{Out: &out, Err: &errOut}); got != code || (errOut.Len() > 0) != (code != exitOK) {
			t.Errorf("%v: exit code %d, %s%s", args, got, out.String(), errOut.String())
		}
	}
}

func TestDrillPlan(t *testing.T) {
	t.Parallel()
	cmd := drillCmd{Machine: "drill", Agents: 2, For: 30 * time.Second, Timeout: time.Second, Every: 250 * time.Millisecond}
	with := func(change func(*breaker.Rule)) []breaker.Rule {
		rules := breaker.Builtin()
		for i := range rules {
			if rules[i].Name == "errors" {
				change(&rules[i])
			}
		}
		return rules
	}
	const sec = time.Second
	for name, tc := range map[string]struct {
		kind             string
		rules            []breaker.Rule
		rule             string // "" for none
		threshold        int
		wait             time.Duration
		probes           int
		longest          time.Duration
		atLeast, atMost  time.Duration
		concurrentProbes int
	}{
		"refused": {"refused", breaker.Builtin(), "reachability", 3, 60 * sec, 1, 60 * sec, 60 * sec, 65 * sec, 1},
		"hung":    {"hung", breaker.Builtin(), "hangs", 3, 60 * sec, 1, 600 * sec, 60 * sec, 65 * sec, 1},
		"errors":  {"errors", breaker.Builtin(), "errors", 3, 30 * sec, 1, 600 * sec, 30 * sec, 35 * sec, 1},
		"empty":   {"empty", breaker.Builtin(), "quality", 3, 300 * sec, 3, 300 * sec, 300 * sec, 305 * sec, 1},
		"the ladder": {"errors", with(func(r *breaker.Rule) {
			r.Cooldown = breaker.Cooldown{First: breaker.Duration(10 * sec), Factor: 3, Max: breaker.Duration(40 * sec)}
		}),
			"errors", 3, 10 * sec, 1, 40 * sec, 40 * sec, 45 * sec, 1},
		"at once": {"errors", with(func(r *breaker.Rule) { r.Trip.AtOnce = []string{"server_error"} }), "errors", 1, 30 * sec, 1, 600 * sec, 30 * sec, 35 * sec, 1},
		"a rate": {"errors", with(func(r *breaker.Rule) { r.Trip = breaker.Trip{Rate: 500_000, MinCalls: 20} }),
			"errors", 14, 30 * sec, 1, 600 * sec, 30 * sec, 40 * sec, 1},
		"a rate of few": {"errors", with(func(r *breaker.Rule) { r.Trip = breaker.Trip{Rate: 500_000, MinCalls: 2} }),
			"errors", 6, 30 * sec, 1, 600 * sec, 30 * sec, 40 * sec, 1},
		"all of them":    {"errors", with(func(r *breaker.Rule) { r.Trip = breaker.Trip{Rate: 1_000_000, MinCalls: 2} }), "errors", 100, 30 * sec, 1, 600 * sec, 30 * sec, 60 * sec, 1},
		"for each agent": {"errors", with(func(r *breaker.Rule) { r.Scope = []string{"agent", "machine"} }), "errors", 6, 30 * sec, 1, 600 * sec, 30 * sec, 40 * sec, 1},
		"matched": {"errors", append([]breaker.Rule{{Name: "errors", Match: breaker.Match{Machine: "drill-*"}, Scope: []string{"machine"}, Failures: []string{"server_error"},
			Cooldown: breaker.Cooldown{First: breaker.Duration(2 * sec)}, Probes: 2, Concurrent: 2}}, breaker.Builtin()...), "errors", 3, 2 * sec, 2, 2 * sec, 30 * sec, 35 * sec, 2},
		"not matched":     {"errors", append([]breaker.Rule{{Name: "errors", Match: breaker.Match{Machine: "gpu-*"}}}, breaker.Builtin()...), "errors", 3, 30 * sec, 1, 600 * sec, 30 * sec, 35 * sec, 1},
		"observed":        {kind: "errors", rules: with(func(r *breaker.Rule) { r.Mode = breaker.ModeObserve })},
		"the other hangs": {"hung", breaker.Builtin()[2:], "errors", 3, 60 * sec, 1, 600 * sec, 60 * sec, 65 * sec, 1},
		"no rules":        {kind: "empty"},
		"a class ignored": {kind: "errors", rules: []breaker.Rule{{Name: "r", Scope: []string{"machine"}, Failures: []string{"transport"}, Ignores: []string{"server_error"}}}},
	} {
		kind := drillKinds[slices.IndexFunc(drillKinds, func(k drillKind) bool { return k.name == tc.kind })]
		p, ok := cmd.plan(tc.rules, kind)
		if ok != (tc.rule != "") {
			t.Errorf("%s: a rule opens is %v", name, ok)
			continue
		}
		if ok && (p.rule != tc.rule || p.threshold != tc.threshold || p.wait != tc.wait || p.probes != tc.probes || p.longest != tc.longest || p.concurrent != tc.concurrentProbes ||
			p.total < tc.atLeast || p.total > tc.atMost) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
