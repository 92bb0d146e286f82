package bot

import (
	"context"
	"fmt"
	"html"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// frameWidth is how many cells are inside a printed message's frame.
const frameWidth = 76

// Terminal is a Messenger that prints each message as it would look on a
// phone, for when there is no token. Edits print the message again, marked as
// such. The same messages print the same bytes. It is safe for concurrent use.
type Terminal struct {
	mu    sync.Mutex
	out   io.Writer
	color bool
	zone  *time.Location
	last  int64
	// said is what the last edit said: a second message that now says the same
	// is one line, not the whole again.
	said string
}

// NewTerminal makes a terminal that prints to out, with colours when asked, and
// with times in the zone; nil is UTC.
func NewTerminal(out io.Writer, color bool, zone *time.Location) *Terminal {
	if zone == nil {
		zone = time.UTC
	}
	return &Terminal{out: out, color: color, zone: zone}
}

// Send prints a message and numbers it.
func (t *Terminal) Send(_ context.Context, m Outgoing) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said = ""
	mark := "🔔 sounds"
	if m.Silent {
		mark = "🔕 silent"
	}
	if m.ReplyTo != 0 {
		mark += fmt.Sprintf(" · reply to message %d", m.ReplyTo)
	}
	if err := t.print(m, mark); err != nil {
		return 0, err
	}
	t.last++
	return t.last, nil
}

// Edit prints what the message says now.
func (t *Terminal) Edit(_ context.Context, id int64, m Outgoing) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.HTML == t.said {
		_, err := fmt.Fprintf(t.out, "   ↳ message %d says the same now\n", id)
		return err
	}
	t.said = m.HTML
	mark := fmt.Sprintf("edit of message %d", id)
	if m.Ref != "" {
		mark = "edit of #" + m.Ref
	}
	return t.print(m, mark+" · silent")
}

// Ping always succeeds.
func (t *Terminal) Ping(context.Context) error { return nil }

// The styles of a cell.
type style uint8

const (
	styleBold style = 1 << iota
	styleCode
	styleItalic
	styleFaint
)

type cell struct {
	r     rune
	style style
}

func (t *Terminal) print(m Outgoing, mark string) error {
	var b strings.Builder
	left := " " + m.At.In(t.zone).Format("Mon 15:04:05")
	if m.Chat != 0 {
		left += fmt.Sprintf(" · chat %d", m.Chat)
	}
	rule := func(begin, left, right, end string) {
		fill := max(frameWidth+2-cells(left)-cells(right)-2, 0)
		t.paint(&b, begin+"─", styleFaint)
		b.WriteString(left)
		t.paint(&b, strings.Repeat("─", fill), styleFaint)
		b.WriteString(right)
		t.paint(&b, "─"+end, styleFaint)
		b.WriteByte('\n')
	}
	rule("╭", left+" ", " "+mark+" ", "╮")
	lines := layout(m.HTML)
	if len(m.Photo) > 0 {
		lines = append([][]cell{styled(fmt.Sprintf("[picture, %d KB]", (len(m.Photo)+1023)/1024), styleFaint)}, lines...)
	}
	for _, row := range m.Buttons {
		var keys []string
		for _, key := range row {
			keys = append(keys, "[ "+clean(key.Text)+" ]")
		}
		lines = append(lines, styled(strings.Join(keys, "  "), styleBold))
	}
	for _, line := range lines {
		t.paint(&b, "│ ", styleFaint)
		t.line(&b, line)
		used := 0
		for _, c := range line {
			used += cellWidth(c.r)
		}
		b.WriteString(strings.Repeat(" ", max(frameWidth-used, 0)))
		t.paint(&b, " │", styleFaint)
		b.WriteByte('\n')
	}
	rule("╰", "", "", "╯")
	if _, err := io.WriteString(t.out, b.String()); err != nil {
		return fmt.Errorf("print message: %w", err)
	}
	return nil
}

func (t *Terminal) line(b *strings.Builder, line []cell) {
	for i := 0; i < len(line); {
		j := i
		var run strings.Builder
		for ; j < len(line) && line[j].style == line[i].style; j++ {
			run.WriteRune(line[j].r)
		}
		t.paint(b, run.String(), line[i].style)
		i = j
	}
}

func (t *Terminal) paint(b *strings.Builder, s string, st style) {
	if !t.color || st == 0 || s == "" {
		b.WriteString(s)
		return
	}
	if st&styleBold != 0 {
		b.WriteString("\x1b[1m")
	}
	if st&styleFaint != 0 {
		b.WriteString("\x1b[2m")
	}
	if st&styleItalic != 0 {
		b.WriteString("\x1b[3m")
	}
	if st&styleCode != 0 {
		b.WriteString("\x1b[36m")
	}
	b.WriteString(s)
	b.WriteString("\x1b[0m")
}

// layout turns Telegram HTML into lines that fit the frame.
func layout(source string) [][]cell {
	var (
		lines [][]cell
		line  []cell
		used  int
		depth [4]int // open elements of each style
		quote int
	)
	start := func() {
		line, used = nil, 0
		if quote > 0 {
			line, used = append(line, cell{'▎', styleFaint}, cell{' ', 0}), 2
		}
	}
	end := func() { lines = append(lines, line); start() }
	start()
	for len(source) > 0 {
		tag, text, rest := nextTag(source)
		source = rest
		var now style
		for i, n := range depth {
			if n > 0 {
				now |= 1 << i
			}
		}
		for _, r := range clean(html.UnescapeString(text)) {
			if r == '\n' {
				end()
				continue
			}
			w := cellWidth(r)
			if used+w > frameWidth {
				line, used = wrap(&lines, line, quote > 0)
			}
			line, used = append(line, cell{r, now}), used+w
		}
		name, closing := tagName(tag)
		step := 1
		if closing {
			step = -1
		}
		switch name {
		case "b", "strong":
			depth[0] += step
		case "code", "pre":
			depth[1] += step
		case "i", "em":
			depth[2] += step
		case "blockquote":
			quote += step
			if !closing && len(line) == 0 {
				start()
			}
		}
	}
	return append(lines, line)
}

// wrap ends a full line at its last space, if there is one, and gives the
// beginning of the next.
func wrap(lines *[][]cell, line []cell, quoted bool) (next []cell, used int) {
	at := len(line)
	for i := len(line) - 1; i > len(line)/2; i-- {
		if line[i].r == ' ' {
			at = i
			break
		}
	}
	if quoted {
		next = append(next, cell{'▎', styleFaint}, cell{' ', 0})
	}
	next = append(next, cell{' ', 0}, cell{' ', 0})
	if at < len(line) {
		next = append(next, line[at+1:]...)
	}
	*lines = append(*lines, line[:at])
	for _, c := range next {
		used += cellWidth(c.r)
	}
	return next, used
}

func styled(s string, st style) []cell {
	var line []cell
	for _, r := range s {
		line = append(line, cell{r, st})
	}
	return line
}

func cells(s string) int {
	n := 0
	for _, r := range s {
		n += cellWidth(r)
	}
	return n
}

// cellWidth is how many columns a terminal gives a character.
func cellWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case width.LookupRune(r).Kind() == width.EastAsianWide, width.LookupRune(r).Kind() == width.EastAsianFullwidth:
		return 2
	}
	return 1
}
