package digest

import (
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"breakerbot/breaker"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

// fixture is one case that the golden files hold.
type fixture struct {
	data Data
	w, b Window
	now  time.Time
	zone string
	opt  Options
}

func moment(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// daily is the digest of a day in a zone at 08:00, made so long after it.
func daily(t testing.TB, zone, now string) fixture {
	t.Helper()
	f := fixture{zone: zone, now: moment(t, now)}
	s, loc := mustSchedule(t, "0 8 * * *"), mustZone(t, zone)
	w, _, due, ok := s.Window(f.now, loc)
	if !ok {
		t.Fatal("nothing due")
	}
	f.w, f.b, f.opt = w, s.Before(w, loc), Options{Edition: EditionDaily, Due: due}
	f.data.HistoryFrom = f.b.From.AddDate(0, -1, 0)
	return f
}

func incident(id uint64, rule string, l breaker.Labels, from, to time.Time, detail string, refused int, causes ...breaker.CauseCount) breaker.Incident {
	var labels []string
	for _, kv := range [][2]string{{"agent", l.Agent}, {"machine", l.Machine}, {"model", l.Model}, {"provider", l.Provider}} {
		if kv[1] != "" {
			labels = append(labels, kv[0]+"="+kv[1])
		}
	}
	return breaker.Incident{
		ID: id, Breaker: rule + "{" + strings.Join(labels, ",") + "}", Rule: rule, Labels: l, OpenedAt: from, ClosedAt: to,
		Trips: 1, Causes: causes, Detail: detail, Refused: refused,
	}
}

func cc(c breaker.Cause, n int) breaker.CauseCount { return breaker.CauseCount{Cause: c, N: n} }

func calls(agent, machine, model string, cause breaker.Cause, n int64, each time.Duration) Count {
	return Count{Agent: agent, Machine: machine, Model: model, Provider: machine, Cause: cause, Calls: n, Duration: time.Duration(n) * each}
}

// badDay is a lab's worst day: a reboot, a freeze, a full disk, a model that
// returns garbage by itself, an account at its limit.
func badDay(t testing.TB) fixture {
	f := daily(t, "Europe/Berlin", "2026-12-01T08:00:20+01:00")
	at := func(clock string) time.Time { return moment(t, "2026-11-30T"+clock+"+01:00") }
	gpu, qwen := breaker.Labels{Machine: "gpu-box"}, breaker.Labels{Machine: "gpu-box", Model: "qwen3-30b"}
	llama := breaker.Labels{Machine: "gpu-box", Model: "llama3-70b"}
	vision := breaker.Labels{Machine: "ubuntu-box", Model: "llava-13b"}
	f.data.Incidents = []breaker.Incident{
		incident(1, "errors", vision, moment(t, "2026-11-29T20:00:00+01:00"), moment(t, "2026-11-29T20:17:00+01:00"), "3 calls in a row failed: server_error ×3", 9, cc(breaker.ServerError, 3)),
		incident(40, "reachability", gpu, at("14:02:11"), at("14:19:20"), "3 calls in a row failed: refused ×3", 812, cc(breaker.Refused, 3)),
		incident(41, "errors", qwen, at("16:39:00"), at("17:40:00"), "3 calls in a row failed: timeout ×3", 240, cc(breaker.Timeout, 3)),
		incident(42, "hangs", gpu, at("16:40:00"), at("17:35:00"), "3 calls in a row from 2 models timed out", 201, cc(breaker.Timeout, 3)),
		incident(43, "errors", llama, at("16:40:30"), at("17:36:10"), "3 calls in a row failed: timeout ×3", 31, cc(breaker.Timeout, 3)),
		incident(44, "errors", vision, at("21:10:00"), at("21:27:00"), "3 calls in a row failed: server_error ×3", 26, cc(breaker.ServerError, 3)),
		incident(45, "quality", llama, at("22:00:00"), at("22:12:00"), "12 of 50 calls failed: malformed ×9, empty ×3", 8, cc(breaker.Malformed, 9), cc(breaker.Empty, 3)),
		incident(46, "rate-limit", breaker.Labels{Provider: "api.example.com", Model: "gpt-oss"}, at("23:00:00"), at("23:05:00"), "1 call with Retry-After 300 s", 14, cc(breaker.RateLimited, 1)),
	}
	f.data.Counts = []Count{
		calls("coder-1", "gpu-box", "qwen3-30b", breaker.OK, 420, 9*time.Second),
		calls("coder-1", "gpu-box", "qwen3-30b", breaker.Refused, 37, 20*time.Millisecond),
		calls("coder-2", "gpu-box", "qwen3-30b", breaker.Timeout, 9, 30*time.Second),
		calls("coder-2", "gpu-box", "llama3-70b", breaker.Timeout, 4, 30*time.Second),
		calls("coder-2", "gpu-box", "llama3-70b", breaker.OK, 160, 20*time.Second),
		calls("coder-2", "gpu-box", "llama3-70b", breaker.Malformed, 9, 14*time.Second),
		calls("coder-2", "gpu-box", "llama3-70b", breaker.Empty, 3, 2*time.Second),
		calls("coder-2", "gpu-box", "llama3-70b", breaker.ContextOverflow, 12, time.Second),
		calls("vision", "ubuntu-box", "llava-13b", breaker.OK, 88, 40*time.Second),
		calls("vision", "ubuntu-box", "llava-13b", breaker.ServerError, 6, 300*time.Millisecond),
		calls("chat", "mac-mini", "qwen3-4b", breaker.OK, 1310, 2*time.Second),
		calls("chat", "mac-mini", "qwen3-4b", breaker.Empty, 31, time.Second),
		calls("chat", "api.example.com", "gpt-oss", breaker.RateLimited, 2, 100*time.Millisecond),
		calls("chat", "api.example.com", "gpt-oss", breaker.OK, 70, time.Second),
	}
	for _, served := range []struct {
		how breaker.Served
		n   int64
	}{{breaker.ServedFallback, 980}, {breaker.ServedCache, 12}, {breaker.ServedDegraded, 3}, {breaker.ServedRejected, 2}} {
		c := calls("coder-1", "mac-mini", "qwen3-4b", breaker.OK, served.n, 2*time.Second)
		c.Served = served.how
		f.data.Counts = append(f.data.Counts, c)
	}
	f.data.Refusals = []Refusal{
		{"gpu-box", "qwen3-30b", breaker.RefusedOpen, 1040},
		{"gpu-box", "qwen3-30b", breaker.RefusedProbeInFlight, 13},
		{"gpu-box", "llama3-70b", breaker.RefusedOpen, 231},
		{"gpu-box", "llama3-70b", breaker.RefusedHeldOpen, 5},
		{"ubuntu-box", "llava-13b", breaker.RefusedOpen, 26},
		{"gpu-box", "qwen3-30b", breaker.AskedGranted, 500},
	}
	f.data.CountsBefore = []Count{
		calls("vision", "ubuntu-box", "llava-13b", breaker.OK, 90, 40*time.Second),
		calls("vision", "ubuntu-box", "llava-13b", breaker.ServerError, 5, 300*time.Millisecond),
	}
	return f
}

func quietDay(t testing.TB) fixture {
	f := daily(t, "Europe/Berlin", "2026-12-01T08:00:20+01:00")
	f.data.Counts = []Count{
		calls("coder", "gpu-box", "qwen3-30b", breaker.OK, 1201, 8*time.Second),
		calls("coder", "gpu-box", "qwen3-30b", breaker.Timeout, 3, 30*time.Second),
	}
	return f
}

func fixtures(t testing.TB) map[string]fixture {
	all := map[string]fixture{"bad-day": badDay(t), "quiet": quietDay(t)}

	f := quietDay(t)
	f.now = f.now.Add(2*time.Hour + 10*time.Minute)
	all["quiet-late"] = f

	f = quietDay(t)
	f.data.Counts = append(f.data.Counts, calls("coder", "mac-mini", "phi-4", breaker.OK, 280, time.Second), calls("coder", "mac-mini", "phi-4", breaker.Malformed, 13, time.Second))
	all["quiet-near-miss"] = f

	f = daily(t, "Europe/Berlin", "2026-12-01T08:00:20+01:00")
	f.data.CountsBefore = []Count{calls("coder", "gpu-box", "qwen3-30b", breaker.OK, 1201, 8*time.Second)}
	all["no-data"] = f

	f = badDay(t)
	f.now = f.now.Add(47 * time.Minute)
	f.data.Undelivered = 2
	f.data.HistoryFrom = f.w.From.Add(3*time.Hour + 20*time.Minute)
	all["late-undelivered-first-day"] = f

	f = quietDay(t)
	f.data.Incidents = []breaker.Incident{
		incident(7, "reachability", breaker.Labels{Machine: "ubuntu-box"}, f.w.From.Add(-50*time.Hour), time.Time{}, "3 calls in a row failed: unreachable ×3", 4021, cc(breaker.Unreachable, 3)),
		incident(1055, "errors", breaker.Labels{Machine: "gpu-box", Model: "qwen3-30b"}, f.w.To.Add(-19*time.Minute), time.Time{}, "3 calls in a row failed: crashed ×3", 12, cc(breaker.Crashed, 3)),
		incident(1056, "errors", breaker.Labels{Machine: "gpu-box", Model: "llama3-70b"}, f.w.To.Add(-9*time.Minute), f.w.To.Add(10*time.Second), "3 calls in a row failed: server_error ×3", 3, cc(breaker.ServerError, 3)),
		incident(1057, "errors", breaker.Labels{Machine: "mac-mini", Model: "phi-4"}, f.w.To, time.Time{}, "of the next window", 3, cc(breaker.ServerError, 3)),
	}
	f.data.Counts = append(f.data.Counts, calls("coder", "gpu-box", "qwen3-30b", breaker.Crashed, 4, 900*time.Millisecond))
	f.data.Refusals = []Refusal{{"ubuntu-box", "llava-13b", breaker.RefusedOpen, 1890}, {"gpu-box", "qwen3-30b", breaker.RefusedOpen, 12}}
	all["still-open"] = f

	for name, now := range map[string]string{"dst-23h": "2026-03-29T08:00:05+02:00", "dst-25h": "2026-10-25T08:00:05+01:00"} {
		f = daily(t, "Europe/Berlin", now)
		f.data.Incidents = []breaker.Incident{
			incident(3, "hangs", breaker.Labels{Machine: "gpu-box"}, f.w.From.Add(-time.Hour), f.w.To.Add(-time.Hour), "3 calls in a row from 2 models timed out", 900, cc(breaker.Timeout, 3)),
		}
		f.data.Counts = []Count{calls("coder", "gpu-box", "qwen3-30b", breaker.Timeout, 60, 10*time.Second), calls("coder", "mac-mini", "qwen3-4b", breaker.OK, 60, time.Second)}
		all[name] = f
	}

	f = quietDay(t)
	for i := range 60 {
		l := breaker.Labels{Machine: fmt.Sprintf("machine-with-a-rather-long-name-%02d.lab.example", i), Model: fmt.Sprintf("hf.co/somebody/Qwen3-30B-A3B-Instruct-%02d-GGUF:Q4_K_M", i)}
		from := f.w.From.Add(time.Duration(i) * 20 * time.Minute)
		f.data.Incidents = append(f.data.Incidents, incident(uint64(100+i), "errors", l, from, from.Add(11*time.Minute),
			"3 calls in a row failed: "+strings.Repeat("server_error ×1, ", 20), 5, cc(breaker.ServerError, 2), cc(breaker.Timeout, 1)))
		f.data.Counts = append(f.data.Counts,
			calls(fmt.Sprintf("agent-%02d", i), l.Machine, l.Model, breaker.ServerError, int64(20+i), time.Second),
			calls(fmt.Sprintf("agent-%02d", i), l.Machine, l.Model, breaker.BadRequest, int64(i), time.Second),
			calls(fmt.Sprintf("agent-%02d", i), l.Machine, l.Model, breaker.OK, 300, time.Second))
	}
	all["overflow"] = f

	f = quietDay(t)
	for i, name := range []string{
		`<b>&bold</b>"'`, "\u202egpu-box\u202c", "מכונה-1", "الجهاز", strings.Repeat("x", 128), strings.Repeat("機械", 64),
		"z" + strings.Repeat("\u0301", 100), "👩‍🚀🔥", "\u200b\u2066\u2069", "a\u2028b </pre><script>alert(1)</script>", "</code>", "&lt;", "-",
	} {
		l := breaker.Labels{Machine: name, Model: name}
		from := f.w.From.Add(time.Duration(i) * time.Hour)
		f.data.Incidents = append(f.data.Incidents, incident(uint64(i+1), "errors", l, from, from.Add(10*time.Minute), "failed: "+name, 1, cc(breaker.ServerError, 3)))
		f.data.Counts = append(f.data.Counts, calls(name, name, name, breaker.ServerError, 30, time.Second), calls(name, name, name, breaker.BadRequest, 3, time.Second))
	}
	all["hostile-names"] = f

	f = badDay(t)
	loc := mustZone(t, f.zone)
	p, err := ParsePeriod("7d")
	if err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(6*time.Hour + 5*time.Minute)
	f.w, f.b = p.Window(f.now, loc)
	f.opt = Options{}
	all["seven-days"] = f
	return all
}

func (f fixture) report(t testing.TB) Report {
	t.Helper()
	return Build(f.data, f.w, f.b, f.now, mustZone(t, f.zone), f.opt)
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, f := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f.report(t)
			text := Text(r)
			checkTelegram(t, text)
			golden(t, name+".txt", text+"\n")
			full := slices.Contains([]string{"bad-day", "quiet", "no-data"}, name)
			if full {
				top := Ranking(r)
				checkTelegram(t, top)
				golden(t, name+".top.txt", top+"\n")
			}
			page, err := HTML(r)
			if err != nil {
				t.Fatal(err)
			}
			checkPage(t, page)
			golden(t, name+".html", string(page))
			data, err := JSON(r)
			if err != nil {
				t.Fatal(err)
			}
			if full {
				golden(t, name+".json", string(data))
			}
			var back Report
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			again, err := JSON(back)
			if err != nil || string(again) != string(data) {
				t.Errorf("JSON read back and written again differs: %v\n%s", err, again)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./digest -run Golden -update writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./digest -run Golden -update, then look at the difference)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

// failer is *testing.T or *rapid.T.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
}

var tagPattern = regexp.MustCompile(`^<(/?)(b|code|pre|blockquote)( expandable)?>`)

// checkTelegram holds a text against what Telegram refuses: a bare < or &, tags
// that it does not know or that cross each other, too much of anything; and
// against what a phone shows: the width of blocks, no line of another direction.
func checkTelegram(t failer, text string) {
	t.Helper()
	var plain, block strings.Builder
	var open []string
	entities := 0
	for rest := text; rest != ""; {
		switch rest[0] {
		case '<':
			m := tagPattern.FindStringSubmatch(rest)
			if m == nil {
				t.Errorf("unknown tag at %.40q", rest)
				return
			}
			rest = rest[len(m[0]):]
			if m[1] == "" {
				open = append(open, m[2])
				entities++
				continue
			}
			if len(open) == 0 || open[len(open)-1] != m[2] {
				t.Errorf("tag </%s> closes %v", m[2], open)
				return
			}
			open = open[:len(open)-1]
			if m[2] == "pre" {
				for line := range strings.SplitSeq(block.String(), "\n") {
					if n := cellsOf(line); n > columns {
						t.Errorf("block line has %d columns: %q", n, line)
					}
				}
				block.Reset()
			}
		case '&':
			i := strings.IndexByte(rest, ';')
			if i < 0 || html.UnescapeString(rest[:i+1]) == rest[:i+1] {
				t.Errorf("bare & at %.40q", rest)
				return
			}
			plain.WriteString(html.UnescapeString(rest[:i+1]))
			block.WriteString(html.UnescapeString(rest[:i+1]))
			rest = rest[i+1:]
		case '>':
			t.Errorf("bare > at %.40q", rest)
			return
		default:
			r, n := utf8.DecodeRuneInString(rest)
			plain.WriteRune(r)
			if len(open) > 0 && open[len(open)-1] == "pre" {
				block.WriteRune(r)
			}
			rest = rest[n:]
		}
		if len(open) == 0 || open[len(open)-1] != "pre" {
			block.Reset()
		}
	}
	if len(open) > 0 {
		t.Errorf("tags %v stay open", open)
	}
	if !utf8.ValidString(text) {
		t.Errorf("invalid UTF-8")
	}
	if n := utf8.RuneCountInString(plain.String()); n > 4096 || n != parsedLen(text) {
		t.Errorf("%d characters after parsing, parsedLen says %d", n, parsedLen(text))
	}
	if len(text) > 32768 {
		t.Errorf("%d bytes of source", len(text))
	}
	if entities > 100 {
		t.Errorf("%d entities: Telegram drops those after 100", entities)
	}
	if i := strings.IndexAny(text, "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u200e\u200f\u200b\u2028"); i >= 0 {
		t.Errorf("an invisible character survives at %.20q", text[i:])
	}
	for line := range strings.SplitSeq(plain.String(), "\n") {
		if strings.Count(line, "\u2068") != strings.Count(line, "\u2069") {
			t.Errorf("isolation is open at the end of %q", line)
		}
	}
	if plain.String() != strings.TrimSpace(plain.String()) || strings.Contains(plain.String(), "\n\n\n") {
		t.Errorf("white space that nobody needs: %q", plain.String())
	}
}

// checkPage makes sure that the page loads and runs nothing.
func checkPage(t failer, page []byte) {
	t.Helper()
	s := string(page)
	for _, bad := range []string{"<script", "javascript:", "http:", "https:", "<link", "<img", "@import", "url(", " style=", "ZgotmplZ", "%!"} {
		if strings.Contains(s, bad) {
			t.Errorf("the page holds %s", bad)
		}
	}
	for _, need := range []string{"prefers-color-scheme: dark", "width=device-width", "</html>"} {
		if !strings.Contains(s, need) {
			t.Errorf("the page lacks %s", need)
		}
	}
}

func TestQuietAndNoDataAreOneLine(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"quiet", "quiet-late", "quiet-near-miss", "no-data"} {
		r := fixtures(t)[name].report(t)
		text := Text(r)
		if strings.Contains(text, "\n") {
			t.Errorf("%s has several lines: %q", name, text)
		}
		if !strings.Contains(text, "08:00–08:00 Europe/Berlin (24 h)") {
			t.Errorf("%s does not name its window: %q", name, text)
		}
		if r.Quiet == r.NoData || strings.HasPrefix(text, "🟢") != r.Quiet {
			t.Errorf("%s: quiet %t, no data %t: %q", name, r.Quiet, r.NoData, text)
		}
	}
}

func TestTextHoldsForAnyNames(t *testing.T) {
	t.Parallel()
	base := badDay(t)
	loc := mustZone(t, base.zone)
	rapid.Check(t, func(t *rapid.T) {
		f := base
		names := rapid.SliceOfN(rapid.OneOf(
			rapid.StringN(1, 128, -1),
			rapid.StringMatching(`[<>&"'/;a-z#]{1,20}`),
			rapid.StringOfN(rapid.RuneFrom([]rune("אבجد機👩\u200d\u202e\u2066\u0301 x")), 1, 60, -1),
		), 1, 40).Draw(t, "names")
		f.data.Incidents, f.data.Counts = nil, nil
		for i, name := range names {
			from := f.w.From.Add(time.Duration(i*rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute)
			other := names[len(names)-1-i]
			f.data.Incidents = append(f.data.Incidents, incident(uint64(i+1), "errors", breaker.Labels{Machine: name, Model: other}, from, from.Add(time.Hour), other, 1, cc(breaker.ServerError, 3)))
			f.data.Counts = append(f.data.Counts, calls(other, name, other, breaker.Malformed, int64(40+i), time.Second))
		}
		r := Build(f.data, f.w, f.b, f.now, loc, f.opt)
		checkTelegram(t, Text(r))
		checkTelegram(t, Ranking(r))
		page, err := HTML(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"<script", "ZgotmplZ", "\u202e"} {
			if strings.Contains(string(page), bad) {
				t.Errorf("the page holds %q", bad)
			}
		}
	})
}

func TestFit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		most int
		want string
	}{
		{"gpu-box", 20, "gpu-box"},
		{"hf.co/unsloth/Qwen3-30B-A3B-Instruct-GGUF:Q4_K_M", 24, "hf.co/unsloth/Qw…:Q4_K_M"},
		{"機械機械機械機械", 8, "機械…械"},
		{"a\u202eb\tc", 20, "ab c"},
		{"\u200b", 20, "?"},
		{"\xff", 20, "�"},
		{"z\u0301\u0301\u0301\u0301", 20, "z\u0301\u0301"},
		{"מכונה", 20, "\u2068מכונה\u2069"},
		{"מכונה-ארוכה-מאוד-במעבדה", 10, "\u2068מכונה-…בדה\u2069"},
	} {
		got := fit(tt.name, tt.most)
		if got != tt.want {
			t.Errorf("fit(%q, %d) = %q, want %q", tt.name, tt.most, got, tt.want)
		}
		if n := cellsOf(got); n > tt.most {
			t.Errorf("fit(%q, %d) takes %d columns", tt.name, tt.most, n)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0 s"}, {time.Millisecond, "under 1 s"}, {45 * time.Second, "45 s"}, {9*time.Minute + 59*time.Second, "9 m 59 s"},
		{17*time.Minute + 9*time.Second, "17 m"}, {72 * time.Minute, "1 h 12 m"}, {47 * time.Hour, "47 h"}, {51 * time.Hour, "2 d 3 h"},
		{-90 * time.Second, "−1 m 30 s"}, {1500 * 24 * time.Hour, "1,500 d"},
	} {
		if got := span(tt.d); got != tt.want {
			t.Errorf("span(%s) = %q, want %q", tt.d, got, tt.want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1204: "1,204", -1234567: "−1,234,567"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) = %q, want %q", n, got, want)
		}
	}
	for share, want := range map[float64]string{0: "0 %", 0.0004: "<0.1 %", 0.034: "3.4 %", 0.5: "50 %", 0.999: ">99 %", 1: "100 %"} {
		if got := percent(share); got != want {
			t.Errorf("percent(%v) = %q, want %q", share, got, want)
		}
	}
}
