package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

func withTokens(o *Options) {
	o.Tokens = []Token{
		{Name: "coder", Secret: "report-secret", Scope: ScopeReport},
		{Name: "grafana", Secret: "read-secret", Scope: ScopeRead},
		{Name: "anna", Secret: "operate-secret", Scope: ScopeReport | ScopeRead | ScopeOperate},
		{Name: "nobody", Secret: "no-secret"},
	}
}

// TestEveryRouteAsksForItsScope goes through the route table with each token.
func TestEveryRouteAsksForItsScope(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withTokens)
	holders := map[string]Scope{"report-secret": ScopeReport, "read-secret": ScopeRead, "operate-secret": ScopeReport | ScopeRead | ScopeOperate, "no-secret": 0}
	for _, rt := range routes {
		method, path, _ := strings.Cut(rt.pattern, " ")
		path = strings.NewReplacer("{name}", "errors%7Bmachine=m,model=m%7D", "{permit}", "p").Replace(path)
		for secret, scope := range holders {
			a := w.do(method, path, typeJSON, "{}", "Authorization", "Bearer "+secret, "Host", "breakers.lab:8080")
			if allowed := scope&rt.scope == rt.scope; allowed == (a.status == 403) || a.status == 401 {
				t.Errorf("%s with %s: %d", rt.pattern, secret, a.status)
			} else if !allowed {
				a.problem(403, rt.scope.String()+" is needed here")
			}
		}
		for _, header := range []string{"", "Bearer wrong", "Bearer ", "Basic cmVwb3J0LXNlY3JldA==", "report-secret", "Bearer report-secret2"} {
			a := w.do(method, path, typeJSON, "{}", "Authorization", header)
			if rt.scope == 0 {
				if a.status == 401 {
					t.Errorf("%s asks for a token", rt.pattern)
				}
				continue
			}
			a.problem(401, "Authorization: Bearer TOKEN")
			if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s: WWW-Authenticate is %q", rt.pattern, a.header.Get("WWW-Authenticate"))
			}
		}
	}
	w.do("GET", "/v1/rules", "", "", "Authorization", "bearer  read-secret").is(200)
}

func TestWithoutTokensOnlyLoopbackNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for host, served := range map[string]bool{
		"localhost": true, "localhost:8080": true, "LOCALHOST:1": true, "breakerbot.localhost:80": true, "127.0.0.1:8080": true, "127.1.2.3": true,
		"[::1]:8080": true, "::1": true, "[::ffff:127.0.0.1]:8080": true, "localhost.": true,
		"evil.example": false, "localhost.evil.example:8080": false, "10.0.0.9:8080": false, "0.0.0.0:8080": false, "": false, "notlocalhost": false, "[::]:80": false,
	} {
		a := w.do("GET", "/v1/rules", "", "", "Host", host)
		if served && a.status != 200 || !served && a.status != http.StatusMisdirectedRequest {
			t.Errorf("host %q: %d %s", host, a.status, a.body)
		}
		if a := w.do("GET", "/healthz", "", "", "Host", host); a.status != 200 {
			t.Errorf("healthz as %q: %d", host, a.status)
		}
	}
}

func TestPagesCannotPost(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*Options){func(*Options) {}, withTokens} {
		w := newWorld(t, change)
		for _, headers := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "http://localhost:3000"}, {"Origin", "null"},
		} {
			headers = append(headers, "Authorization", "Bearer operate-secret")
			w.do("POST", "/v1/outcomes", typeJSON, `{"agent":"a","machine":"m","cause":"ok"}`, headers...).problem(403, "another origin")
			w.do("POST", breakerPath(gpuErrors)+"/hold-open", "", "", headers...).problem(403, "another origin")
		}
		w.do("POST", "/v1/outcomes", typeJSON, `{"agent":"a","machine":"m","cause":"ok"}`, "Sec-Fetch-Site", "same-origin", "Authorization", "Bearer operate-secret").is(200)
	}
}

func TestRatePerToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withTokens, func(o *Options) { o.Rate, o.Burst = 2, 3 })
	ask := func(secret string) answer {
		return w.do("POST", "/v1/permits", typeJSON, `{"agent":"a","machine":"m"}`, "Authorization", "Bearer "+secret)
	}
	for range 3 {
		ask("report-secret").is(200)
	}
	a := ask("report-secret").problem(429, "coder makes more than 2 requests a second (bursts of 3)")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
	}
	ask("operate-secret").is(200)
	w.pass(500 * time.Millisecond)
	ask("report-secret").is(200)
	ask("report-secret").problem(429)
}

func TestRefusalsAreLoggedWithoutSecrets(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := newWorld(t, withTokens, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	w.do("POST", "/v1/permits/some-permit/release", typeJSON, "", "Authorization", "Bearer wrong-secret").problem(401)
	w.do("POST", "/v1/permits/some-permit/release", typeJSON, "", "Authorization", "Bearer read-secret").problem(403)
	w.do("POST", "/v1/permits/some-permit/release", typeJSON, "", "Authorization", "Bearer report-secret").problem(404)
	w.server.Log.Info("options", "token", Token{Name: "x", Secret: "report-secret"}, "server", w.server.Options)
	text := log.String()
	if n := strings.Count(text, "level=WARN"); n != 2 {
		t.Errorf("%d warnings, want 2: %s", n, text)
	}
	for _, want := range []string{"the token is not known", "remote=192.0.2.1:1234", "scope missing", "token=grafana", "POST /v1/permits/{permit}/release"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not say %q: %s", want, text)
		}
	}
	for _, secret := range []string{"-secret", "some-permit"} {
		if strings.Contains(text, secret) {
			t.Errorf("the log says %q: %s", secret, text)
		}
	}
}

func TestTokenNeverPrints(t *testing.T) {
	t.Parallel()
	token := Token{Name: "coder", Secret: "hush", Scope: ScopeReport | ScopeRead}
	asJSON, err := json.Marshal([]Token{token})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s", token, token, token, []Token{token}), string(asJSON)} {
		if strings.Contains(text, "hush") || !strings.Contains(text, "coder:[redacted]:report+read") {
			t.Errorf("prints as %s", text)
		}
	}
}

func TestParseScope(t *testing.T) {
	t.Parallel()
	if s, err := ParseScope("read", "operate"); err != nil || s != ScopeRead|ScopeOperate || s.String() != "read+operate" {
		t.Errorf("%v %v", s, err)
	}
	if _, err := ParseScope("read", "admin"); err == nil || err.Error() != `unknown scope "admin": known are report, read, operate` {
		t.Errorf("%v", err)
	}
}
