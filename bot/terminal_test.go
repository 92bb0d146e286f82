package bot

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestTerminalPrintsAPhone(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	term := NewTerminal(&out, false, time.FixedZone("CET", 3600))
	w := wording{zone: time.FixedZone("CET", 3600)}
	inc := incident(10, "errors", "qwen3-30b", t0)
	f := factsOf(inc)
	f.NextProbeAt = t0.Add(time.Minute)
	open := w.trip(f, t0, false, true)
	id, err := term.Send(t.Context(), Outgoing{HTML: open.html, Buttons: open.buttons, Ref: f.ref(), At: t0.Add(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	over := w.trip(factsOf(closed(inc, t0.Add(17*time.Minute))), t0, false, false)
	if err := term.Edit(t.Context(), id, Outgoing{Chat: -1001, HTML: over.html, Buttons: over.buttons, Ref: f.ref(), At: t0.Add(17 * time.Minute)}); err != nil {
		t.Fatal(err)
	}
	want := `╭─ Mon 15:02:05 ─────────────────────────────────────────────────── 🔔 sounds ─╮
│ 🔴 OPEN  gpu-box → qwen3-30b   #00a                                          │
│ 3 calls in a row failed: refused ×2, timeout                                 │
│ last (coder-1): "connection refused"                                         │
│ opened 15:02 · next probe in 60 s · 1st today                                │
│ [ Why ]  [ Reset… ]                                                          │
╰──────────────────────────────────────────────────────────────────────────────╯
╭─ Mon 15:19:00 · chat -1001 ────────────────────────── edit of #00a · silent ─╮
│ 🟢 CLOSED  gpu-box → qwen3-30b   #00a                                        │
│ open 15:02–15:19 (17 min)                                                    │
│ cause: refused ×2, timeout · closed by hand                                  │
│ [ Why ]                                                                      │
╰──────────────────────────────────────────────────────────────────────────────╯
`
	if got := out.String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

func TestTerminalFramesFit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	term := NewTerminal(&out, false, nil)
	text := "<b>" + strings.Repeat("long words and 長い言葉 🔴 ", 20) + "</b>\n<blockquote expandable>" + strings.Repeat("x", 300) + "\nquoted</blockquote>"
	if _, err := term.Send(t.Context(), Outgoing{HTML: text, Photo: make([]byte, 3000), Silent: true, ReplyTo: 3, At: t0}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := cells(strings.TrimSuffix(line, "\n")); n != frameWidth+4 {
			t.Errorf("%d cells: %s", n, line)
		}
	}
	for _, want := range []string{"[picture, 3 KB]", "🔕 silent · reply to message 3", "▎ quoted"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestTerminalColours(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if _, err := NewTerminal(&out, true, nil).Send(t.Context(), Outgoing{HTML: "<b>bold</b> <code>name</code> &lt;x&gt; \x1b[31mred", At: t0}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x1b[1mbold\x1b[0m", "\x1b[36mname\x1b[0m", "<x>", " [31mred"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}
