package main_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"breakerbot/store/storetest"
)

const twoTargets = `
chains:
  code:
    targets:
      - {machine: gpu-box, model: big, provider: lab, tier: high, note: full quality}
      - {machine: mac-mini, model: small, tier: low}
`

// What was open, tried and in doubt before a power cut is so after it: turns go
// on to the next target, and a write that may have happened is sent nowhere.
func TestRoutesAndWritesAcrossAKill(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	config := fmt.Sprintf(quick, "1h") + twoTargets
	p := start(t, config, "DATABASE_URL="+url)
	route := func(more map[string]any) map[string]any {
		t.Helper()
		ask := map[string]any{"agent": "coder", "chain": "code"}
		maps.Copy(ask, more)
		status, answer := p.call("POST", "/v1/route", ask)
		if status != http.StatusOK {
			t.Fatalf("POST /v1/route: %d %v", status, answer)
		}
		return answer
	}
	target := func(answer map[string]any) string {
		if target, ok := answer["target"].(map[string]any); ok {
			return fmt.Sprint(target["machine"], " ", target["model"], " ", answer["hop"])
		}
		return fmt.Sprint("degraded ", answer["reason"])
	}
	first := route(map[string]any{"idempotency_key": "job-7"})
	if target(first) != "gpu-box big 0" {
		t.Fatalf("the first target: %v", first)
	}
	lost := map[string]any{"agent": "coder", "machine": "gpu-box", "model": "big", "provider": "lab", "error": "ReadTimeout: timed out",
		"write": true, "idempotency_key": "job-7", "permit": first["permit"]}
	if v := p.report(lost); v["in_doubt"] != true || v["status"] != 200 {
		t.Fatalf("a write that timed out: %v, want it in doubt and on disk", v)
	}
	p.refusals("gpu-box", 3)
	if r := route(nil); target(r) != "mac-mini small 1" || r["reason"] != "open" {
		t.Fatalf("past the open one: %v", r)
	}
	p.kill()

	p = start(t, config, "DATABASE_URL="+url)
	if r := route(nil); target(r) != "mac-mini small 1" {
		t.Errorf("past the open one after the kill: %v", r)
	}
	doubt := map[string]any{"idempotency_key": "job-7", "tried": []any{map[string]any{"machine": "gpu-box", "model": "big", "cause": "timeout"}}}
	if r := route(doubt); target(r) != "degraded write_in_doubt" || r["write"].(map[string]any)["machine"] != "gpu-box" {
		t.Errorf("a route for the write in doubt after the kill: %v", r)
	}
	_, g := p.call("POST", "/v1/permits", map[string]any{"agent": "chat", "machine": "mac-mini", "idempotency_key": "job-7"})
	if g["allowed"] != false || g["reason"] != "write_in_doubt" {
		t.Errorf("a permit for it: %v", g)
	}
	if status, w := p.call("PUT", "/v1/writes/job-7", map[string]any{"result": "not_applied"}); status != http.StatusOK || w["state"] != "not_applied" || w["durable"] != true {
		t.Fatalf("PUT /v1/writes/job-7: %d %v", status, w)
	}
	p.kill()

	p = start(t, config, "DATABASE_URL="+url)
	if status, w := p.call("PUT", "/v1/writes/job-7", map[string]any{"result": "applied"}); status != http.StatusConflict {
		t.Errorf("the other word after the kill: %d %v, want 409", status, w)
	}
	if r := route(doubt); target(r) != "mac-mini small 1" || r["write"].(map[string]any)["state"] != "not_applied" {
		t.Errorf("once it is reconciled: %v", r)
	}
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	got := rows(t, url, "SELECT chain || ' ' || agent || ' ' || machine || ' ' || hop || ' ' || reason FROM routes ORDER BY id")
	// A fallback that was answered just before a kill may be lost: only a probe
	// waits for the disk.
	want := []string{"code coder mac-mini 1 open", "code coder  0 write_in_doubt", "code coder mac-mini 1 tried"}
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("routes %q lack %q", got, row)
		}
	}
}

// A machine that is down when the server starts is not called, people are told
// once, and when it is back an agent's own call closes the breaker long before
// its wait would have been over.
func TestHealthChecks(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	gpu := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if up.Load() {
			return
		}
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			conn.Close()
		}
	}))
	defer gpu.Close()
	url, tg := storetest.URL(t), telegram(t)
	fine := httptest.NewServer(http.NotFoundHandler())
	defer fine.Close()
	config := fmt.Sprintf(quick, "1h") + fmt.Sprintf("machines: {gpu-box: {health: %q}, mac-mini: {health: %q}}\n",
		strings.Replace(gpu.URL, "http://", "http://me:hunter2@", 1)+"/api/tags", fine.URL)
	p := start(t, config, withTelegram(tg, "DATABASE_URL="+url)...)
	p.waitLog("machines=2 answered=1")
	if g := p.permit("coder", "gpu-box"); g["allowed"] != false || g["reason"] != "open" || g["retry_after_ms"].(float64) < 3_500_000 {
		t.Fatalf("a permit for a machine that was down at the start: %v", g)
	}
	alert := message(t, tg, "🔴 OPEN", "gpu-box", "the health check at the start was not answered", "closed without an answer")
	tg.Command(operatorID, chatID, "/why gpu-box")
	message(t, tg, "closed → open: boot_check, the health check at the start was not answered")
	if _, report := p.call("GET", "/v1/digest?format=text", nil); !strings.Contains(report["text"].(string), "unreachable") {
		t.Errorf("the digest does not tell of it: %s", report["text"])
	}

	up.Store(true)
	p.waitLog("a probe is due")
	_, b := p.call("GET", "/v1/breakers/reachability%7Bmachine=gpu-box%7D", nil)
	if b["state"] != "open" || b["retry_after_ms"] != float64(0) {
		t.Errorf("after the health check was answered: %v, want it open and due", b)
	}
	g := p.permit("coder", "gpu-box")
	if g["probe"] != true {
		t.Fatalf("a permit once a probe is due: %v", g)
	}
	if v := p.report(map[string]any{"agent": "coder", "machine": "gpu-box", "http_status": 200, "permit": g["permit"]}); v["state"] != "closed" {
		t.Fatalf("the probe's success: %v, want closed", v)
	}
	closed := message(t, tg, "🟢 CLOSED", "gpu-box")
	if closed.ID != alert.ID {
		t.Errorf("the recovery is message %d, want the alert %d edited", closed.ID, alert.ID)
	}
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got, want := rows(t, url, "SELECT reason FROM transitions ORDER BY id"), []string{"boot_check", "probe_granted", "probe_ok"}; !slices.Equal(got, want) {
		t.Errorf("transitions %q, want %q", got, want)
	}
	alerts := 0
	for _, m := range tg.Messages() {
		if len(m.Before) > 0 || m.ID == alert.ID {
			alerts++
		}
	}
	if alerts != 1 {
		t.Errorf("%d alerts, want one: %+v", alerts, tg.Messages())
	}
	if strings.Contains(p.log()+p.out.String(), "hunter2") || strings.Contains(alert.Text, "hunter2") {
		t.Error("the password of the health check is shown")
	}
}
