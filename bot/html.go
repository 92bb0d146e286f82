package bot

import (
	"fmt"
	"html"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of one message, as the Bot API counts: code points after the
// entities are parsed, and bytes before.
const (
	MaxText    = 4096
	MaxCaption = 1024
	maxSource  = 32768
)

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

// Escape makes any text safe inside Telegram HTML: markup is escaped, what is
// no UTF-8 becomes U+FFFD, and control characters but the newline become spaces.
func Escape(s string) string { return htmlEscaper.Replace(clean(s)) }

func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.Map(func(r rune) rune {
		switch {
		case r != '\n' && unicode.IsControl(r):
			return ' '
		case unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner:
			return '\uFFFD' // invisible, or turns the line around
		}
		return r
	}, s)
}

// zeroWidthJoiner holds emoji together.
const zeroWidthJoiner = '\u200D'

// Plain is what Telegram HTML says without its markup: for a terminal, and for
// the second try of a message whose markup was refused.
func Plain(source string) string {
	var b strings.Builder
	for len(source) > 0 {
		_, text, rest := nextTag(source)
		b.WriteString(html.UnescapeString(text))
		source = rest
	}
	return b.String()
}

// nextTag cuts the text before the next tag, and that tag, from the source.
func nextTag(source string) (tag, text, rest string) {
	i := strings.IndexByte(source, '<')
	if i < 0 {
		return "", source, ""
	}
	j := strings.IndexByte(source[i:], '>')
	if j < 0 {
		return "", source, ""
	}
	return source[i : i+j+1], source[:i], source[i+j+1:]
}

// length counts what the source comes to once parsed.
func length(source string) int { return utf8.RuneCountInString(Plain(source)) }

// stripTag removes one element's tags and keeps what is inside.
func stripTag(source, name string) string {
	var b strings.Builder
	for len(source) > 0 {
		tag, text, rest := nextTag(source)
		b.WriteString(text)
		if n, _ := tagName(tag); n != name {
			b.WriteString(tag)
		}
		source = rest
	}
	return b.String()
}

func tagName(tag string) (name string, closing bool) {
	s := strings.Trim(tag, "<>")
	s, closing = strings.CutPrefix(s, "/")
	if i := strings.IndexFunc(s, unicode.IsSpace); i >= 0 {
		s = s[:i]
	}
	return s, closing
}

// Shorten cuts Telegram HTML to at most limit characters by leaving out whole
// rows at the end, and says how many. The headline always stays: if it alone is
// too long it is cut, without its markup. Elements open at the cut are closed.
func Shorten(source string, limit int) string {
	if length(source) <= limit && len(source) <= maxSource {
		return source
	}
	const tail = 24 // "+N more" and its newline
	rows := strings.Split(source, "\n")
	var (
		kept   strings.Builder
		open   []string // start tags
		points int
		n      int
	)
	for _, row := range rows {
		after := openAfter(open, row)
		size := length(row) + 1
		closing := 0
		for _, tag := range after {
			closing += len(tag) + 1
		}
		if points+size+tail > limit || kept.Len()+len(row)+closing+tail+1 > maxSource {
			break
		}
		if n > 0 {
			kept.WriteByte('\n')
		}
		kept.WriteString(row)
		open, points = after, points+size
		n++
	}
	if n == 0 {
		head := []rune(Plain(rows[0]))
		head = head[:min(len(head), max(limit-tail, 1))]
		for len(Escape(string(head))) > maxSource-2*tail {
			head = head[:len(head)/2]
		}
		kept.WriteString(Escape(string(head)) + "…")
		n, open = 1, nil
	}
	for i := len(open) - 1; i >= 0; i-- {
		name, _ := tagName(open[i])
		kept.WriteString("</" + name + ">")
	}
	if more := len(rows) - n; more > 0 {
		fmt.Fprintf(&kept, "\n+%d more", more)
	}
	return kept.String()
}

// openAfter is the stack of start tags that are open after a row.
func openAfter(open []string, row string) []string {
	open = append([]string(nil), open...)
	for len(row) > 0 {
		tag, _, rest := nextTag(row)
		row = rest
		if tag == "" {
			break
		}
		if _, closing := tagName(tag); !closing {
			open = append(open, tag)
		} else if len(open) > 0 {
			open = open[:len(open)-1]
		}
	}
	return open
}
