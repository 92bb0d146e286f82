package bot

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"breakerbot/bot/telegramtest"
	"breakerbot/breaker"
)

// read is what a reader sees of a message, or a failure if Telegram refuses it.
func read(t testing.TB, source string) string {
	t.Helper()
	text, _, err := telegramtest.Parse(source)
	if err != nil {
		t.Fatalf("refused: %v\n%s", err, source)
	}
	if len(source) > maxSource || utf8.RuneCountInString(text) > MaxText {
		t.Fatalf("%d bytes, %d characters: too long", len(source), utf8.RuneCountInString(text))
	}
	if got := Plain(source); got != text {
		t.Fatalf("plain form differs:\n%q\n%q", got, text)
	}
	return text
}

func down(n int) []breaker.Incident {
	var list []breaker.Incident
	for i := range n {
		inc := incident(uint64(100+i), "errors", fmt.Sprintf("model-%d", i), t0.Add(time.Duration(i)*time.Second/2))
		inc.Causes = []breaker.CauseCount{{Cause: breaker.Refused, N: 4}}
		list = append(list, inc)
	}
	return list
}

func TestWording(t *testing.T) {
	t.Parallel()
	w := wording{zone: time.FixedZone("CET", 3600)}
	one := incident(10, "errors", "qwen3-30b", t0)
	open := factsOf(one)
	open.NextProbeAt = t0.Add(time.Minute)
	over := factsOf(closed(one, t0.Add(17*time.Minute)))
	over.Refused, over.ClosedByProbe = 41, 3
	long := open
	long.ProbesFailed, long.LastProbeAt, long.LastProbe = 58, t0.Add(time.Hour-20*time.Second), breaker.Refused
	long.Refused, long.Agents, long.Rerouted = 1204, 6, 980
	part := down(4)
	part[0] = closed(part[0], t0.Add(time.Minute))
	account := incident(3, "rate-limit", "", t0)
	account.Machine, account.Provider, account.Model = "", "openai", "gpt-5"
	account.Detail = "Retry-After of 30 s"
	gone := down(3)
	for i := range gone {
		gone[i] = closed(gone[i], t0.Add(time.Duration(i+10)*time.Minute))
	}
	for name, c := range map[string]struct {
		got  rendered
		want string
	}{
		"open": {w.trip(open, t0, false, true), `🔴 OPEN  gpu-box → qwen3-30b   #00a
3 calls in a row failed: refused ×2, timeout
last (coder-1): "connection refused"
opened 15:02 · next probe in 60 s · 1st today`},
		"repeat": {w.trip(open, t0.Add(2*time.Minute), true, false), `🔴 OPEN  gpu-box → qwen3-30b   #00a   (repeat)
3 calls in a row failed: refused ×2, timeout
last (coder-1): "connection refused"
opened 15:02 · a probe is due · 1st today`},
		"account": {w.trip(factsOf(account), t0, false, true), `🔴 OPEN  openai → gpt-5   #003
Retry-After of 30 s
last (coder-1): "connection refused"
opened 15:02 · 1st today`},
		"two": {w.trip(factsOf(down(2)...), t0, false, true), `🔴 OPEN  gpu-box   #034
• model-0 errors · 3 calls in a row failed: refused ×2, timeout
• model-1 errors · 3 calls in a row failed: refused ×2, timeout
opened 15:02`},
		"machine down": {w.trip(factsOf(down(3)...), t0.Add(time.Minute), false, true), `🔴 MACHINE DOWN  gpu-box   #034
unreachable: 3 of 3 breakers open within 1 s
causes: refused ×12
last (coder-1): "connection refused"
opened 15:02
model-0 errors · 3 calls in a row failed: refused ×2, timeout
model-1 errors · 3 calls in a row failed: refused ×2, timeout
model-2 errors · 3 calls in a row failed: refused ×2, timeout`},
		"recovering": {w.trip(factsOf(part...), t0.Add(2*time.Minute), false, false), `🟠 RECOVERING  gpu-box   #034
unreachable: 3 of 4 breakers still open
causes: refused ×16
opened 15:02
model-0 errors · 🟢 closed 15:03
model-1 errors · 🔴 3 calls in a row failed: refused ×2, timeout
model-2 errors · 🔴 3 calls in a row failed: refused ×2, timeout
model-3 errors · 🔴 3 calls in a row failed: refused ×2, timeout`},
		"closed": {w.trip(over, t0.Add(17*time.Minute), false, false), `🟢 CLOSED  gpu-box → qwen3-30b   #00a
open 15:02–15:19 (17 min) · 41 refused
cause: refused ×2, timeout · closed by probe 3`},
		"closed before it was told": {w.trip(over, t0.Add(24*time.Hour), false, true), `🟢 CLOSED  gpu-box → qwen3-30b   #00a
open 30 Nov 15:02–30 Nov 15:19 (17 min) · 41 refused
cause: refused ×2, timeout · closed by probe 3
it was over before this could be delivered`},
		"machine back": {w.trip(factsOf(gone...), t0.Add(time.Hour), false, false), `🟢 CLOSED  gpu-box   #034
3 breakers · open 15:02–15:14 (12 min)
cause: refused ×12
model-0 errors · 15:02–15:12
model-1 errors · 15:02–15:13
model-2 errors · 15:02–15:14`},
		"still open": {w.longOpen(long, time.Hour, t0.Add(time.Hour), false), `⏰ STILL OPEN 1 h  gpu-box → qwen3-30b   #00a
58 probes failed, last 20 s ago: refused
refused calls 1,204 · 6 agents · 980 rerouted
open since 15:02 · cause: refused ×2, timeout`},
		"still open, nobody calls": {w.longOpen(factsOf(one), 10*time.Minute, t0.Add(10*time.Minute), false), `⏰ STILL OPEN 10 min  gpu-box → qwen3-30b   #00a
no probe has been tried: nobody has called
refused calls 0
open since 15:02 · cause: refused ×2, timeout`},
		"no longer open": {w.longOpen(over, time.Hour, t0.Add(time.Hour), false), `🟢 CLOSED  gpu-box → qwen3-30b   #00a
open 15:02–15:19 (17 min) · 41 refused
cause: refused ×2, timeout · closed by probe 3`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := read(t, c.got.html); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			buttons := "Why Reset…"
			if strings.HasPrefix(c.want, "🟢") {
				buttons = "Why"
			}
			var texts []string
			for _, b := range c.got.buttons[0] {
				texts = append(texts, b.Text)
			}
			if got := strings.Join(texts, " "); got != buttons {
				t.Errorf("buttons %q, want %q", got, buttons)
			}
		})
	}
	if got, want := w.trip(open, t0, false, true).buttons[0][0].Data, "1|w|00a"; got != want {
		t.Errorf("data %q, want %q", got, want)
	}
	if got := w.trip(open, t0, false, true).html; !strings.Contains(got, fmt.Sprintf(`<tg-time unix="%d" format="t">15:02</tg-time>`, t0.Unix())) {
		t.Errorf("no tg-time in %s", got)
	}
}

func TestKindOfOutage(t *testing.T) {
	t.Parallel()
	for want, causes := range map[string][]breaker.Cause{
		"unreachable": {breaker.Refused, breaker.TLS, breaker.Timeout},
		"hung":        {breaker.Timeout, breaker.Stalled, breaker.Refused},
		"erroring":    {breaker.ServerError, breaker.ModelMissing},
		"slow":        {breaker.Slow},
		"garbage":     {breaker.Empty, breaker.Schema},
		"limited":     {breaker.Quota, breaker.RateLimited},
		"open":        nil,
	} {
		inc := breaker.Incident{}
		for _, c := range causes {
			inc.Causes = append(inc.Causes, breaker.CauseCount{Cause: c, N: 1})
		}
		if got := kindOf([]breaker.Incident{inc}); got != want {
			t.Errorf("%v: %s, want %s", causes, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 0: "0 s", 20 * time.Millisecond: "20 ms", 59600 * time.Millisecond: "60 s", time.Minute: "60 s",
		90 * time.Second: "1 min 30 s", 17*time.Minute + 20*time.Second: "17 min", time.Hour: "1 h", 65 * time.Minute: "1 h 5 min",
		24 * time.Hour: "24 h", 51 * time.Hour: "2 d 3 h", 72 * time.Hour: "3 d",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%s) = %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 112: "112th", 1023: "1,023rd"} {
		if got := ordinal(n); got != want {
			t.Errorf("ordinal(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestShortenKeepsHeadlineAndMarkup(t *testing.T) {
	t.Parallel()
	source := "<b>head</b>\n<blockquote expandable>" + strings.Repeat("<code>row &amp; row</code>\n", 500) + "end</blockquote>"
	got := Shorten(source, MaxText)
	text := read(t, got)
	if !strings.HasPrefix(text, "head\nrow & row\n") || !strings.HasSuffix(text, " more") {
		t.Errorf("got %q … %q", text[:20], text[len(text)-20:])
	}
	rows := strings.Count(text, "row & row")
	if want := fmt.Sprintf("+%d more", 501-rows); !strings.HasSuffix(text, want) {
		t.Errorf("ends with %q, want %q: %d rows are there", text[len(text)-20:], want, rows)
	}
	head := read(t, Shorten("<b>"+strings.Repeat("&lt;", 9000)+"</b>\nrow", MaxText))
	if !strings.HasPrefix(head, "<<<") || !strings.HasSuffix(head, "…\n+1 more") {
		t.Errorf("long headline became %q", head)
	}
}

// TestAnythingIsAccepted feeds the wording with whatever labels and error texts
// there can be: Telegram must take all of it.
func TestAnythingIsAccepted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"<", "&", "</code>", "<b>", "\xff\xfe", "\x00\x1b[1m", `"'`, strings.Repeat("é&", 300), "&lt;"}))
		n := rapid.IntRange(1, 60).Draw(rt, "breakers")
		var list []breaker.Incident
		for i := range n {
			inc := incident(uint64(i+1), text.Draw(rt, "rule"), text.Draw(rt, "model"), t0)
			inc.Machine, inc.Provider = text.Draw(rt, "machine"), text.Draw(rt, "provider")
			inc.Detail, inc.Evidence.Error, inc.Evidence.Agent = text.Draw(rt, "detail"), text.Draw(rt, "error"), text.Draw(rt, "agent")
			if rapid.Bool().Draw(rt, "closed") {
				inc.ClosedAt = t0.Add(time.Hour)
			}
			list = append(list, inc)
		}
		w := wording{zone: time.UTC}
		for _, r := range []rendered{
			w.trip(factsOf(list...), t0, false, true),
			w.longOpen(factsOf(list...), time.Hour, t0, true),
		} {
			got, _, err := telegramtest.Parse(r.html)
			if err != nil {
				rt.Fatalf("refused: %v\n%s", err, r.html)
			}
			if n := utf8.RuneCountInString(got); n > MaxText || !utf8.ValidString(r.html) || len(r.html) > maxSource {
				rt.Fatalf("%d characters, %d bytes", n, len(r.html))
			}
			if strings.ContainsAny(got, "\x00\x1b") {
				rt.Fatalf("control characters in %q", got)
			}
			for _, row := range r.buttons {
				for _, b := range row {
					if len(b.Data) > 64 {
						rt.Fatalf("callback data of %d bytes", len(b.Data))
					}
				}
			}
		}
	})
}
