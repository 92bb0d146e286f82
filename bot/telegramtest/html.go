package telegramtest

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Entity is one formatted stretch of a message, in UTF-16 code units.
type Entity struct {
	Type   string `json:"type"`
	Offset int    `json:"offset"`
	Length int    `json:"length"`
	Value  string `json:"-"` // the attribute that gives it its meaning
}

var tags = map[string]string{
	"b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
	"s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "a": "text_link",
	"code": "code", "pre": "pre", "blockquote": "blockquote", "span": "spoiler", "tg-spoiler": "spoiler",
	"tg-emoji": "custom_emoji", "tg-time": "date_time",
}

// parseHTML reads Telegram HTML as the server does, with its error texts.
// timeless is true for a server that does not know tg-time.
func parseHTML(s string, timeless bool) (text string, entities []Entity, err *apiError) {
	type open struct {
		tag, value string
		offset     int
	}
	var (
		out   strings.Builder
		units int
		stack []open
	)
	at := func(i int) byte {
		if i < len(s) {
			return s[i]
		}
		return 0
	}
	space := func(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == 0 || c == '\v' }
	put := func(r rune) {
		out.WriteRune(r)
		units += utf16.RuneLen(r)
	}
	for i := 0; i < len(s); {
		if s[i] == '&' {
			if r, n := decodeEntity(s[i:]); n > 0 {
				put(r)
				i += n
				continue
			}
		}
		if s[i] != '<' {
			r, n := utf8.DecodeRuneInString(s[i:])
			put(r)
			i += n
			continue
		}
		begin := i
		i++
		if at(i) == '/' {
			if len(stack) == 0 {
				return "", nil, bad("can't parse entities: "+"Unexpected end tag at byte offset %d", begin)
			}
			for i < len(s) && !space(at(i)) && at(i) != '>' {
				i++
			}
			name := s[begin+2 : i]
			for i < len(s) && space(at(i)) {
				i++
			}
			if at(i) != '>' {
				return "", nil, bad("can't parse entities: "+"Unclosed end tag at byte offset %d", begin)
			}
			i++
			top := stack[len(stack)-1]
			if name != "" && strings.ToLower(name) != top.tag {
				return "", nil, bad("can't parse entities: "+`Unmatched end tag at byte offset %d, expected "</%s>", found "</%s>"`, begin, top.tag, name)
			}
			stack = stack[:len(stack)-1]
			if units > top.offset {
				entities = append(entities, Entity{Type: kindOf(top.tag, top.value), Offset: top.offset, Length: units - top.offset, Value: top.value})
			}
			continue
		}
		for i < len(s) && !space(at(i)) && at(i) != '>' {
			i++
		}
		if i >= len(s) {
			return "", nil, bad("can't parse entities: "+"Unclosed start tag at byte offset %d", begin)
		}
		tag := strings.ToLower(s[begin+1 : i])
		if _, ok := tags[tag]; !ok || (timeless && tag == "tg-time") {
			return "", nil, bad("can't parse entities: "+`Unsupported start tag "%s" at byte offset %d`, tag, begin)
		}
		value, unix := "", false
		for at(i) != '>' {
			for i < len(s) && space(at(i)) {
				i++
			}
			if at(i) == '>' {
				break
			}
			from := i
			for i < len(s) && !space(at(i)) && !strings.ContainsRune(`=>/"'`, rune(at(i))) {
				i++
			}
			attribute := strings.ToLower(s[from:i])
			if attribute == "" {
				return "", nil, bad("can't parse entities: "+`Empty attribute name in the tag "%s" at byte offset %d`, tag, begin)
			}
			for i < len(s) && space(at(i)) {
				i++
			}
			if at(i) != '=' {
				if i >= len(s) {
					return "", nil, bad("can't parse entities: "+`Unclosed start tag "%s" at byte offset %d`, tag, begin)
				}
				if tag == "blockquote" && attribute == "expandable" {
					value = "expandable"
				}
				continue
			}
			i++
			for i < len(s) && space(at(i)) {
				i++
			}
			if i >= len(s) {
				return "", nil, bad("can't parse entities: "+`Unclosed start tag "%s" at byte offset %d`, tag, begin)
			}
			var content strings.Builder
			if quote := at(i); quote == '"' || quote == '\'' {
				i++
				for i < len(s) && at(i) != quote {
					if r, n := decodeEntity(s[i:]); n > 0 {
						content.WriteRune(r)
						i += n
						continue
					}
					content.WriteByte(s[i])
					i++
				}
				if i >= len(s) {
					return "", nil, bad("can't parse entities: "+`Unclosed start tag at byte offset %d`, begin)
				}
				i++
			} else {
				token := i
				for i < len(s) && (at(i) == '.' || at(i) == '-' || alnum(at(i))) {
					i++
				}
				content.WriteString(strings.ToLower(s[token:i]))
				if !space(at(i)) && at(i) != '>' {
					return "", nil, bad("can't parse entities: "+"Unexpected end of name token at byte offset %d", token)
				}
			}
			switch {
			case tag == "a" && attribute == "href", tag == "span" && attribute == "class", tag == "tg-emoji" && attribute == "emoji-id",
				tag == "code" && attribute == "class", tag == "blockquote" && attribute == "expandable":
				value = content.String()
			case tag == "tg-time" && attribute == "unix":
				value = content.String()
				_, bad := strconv.ParseInt(value, 10, 64)
				unix = bad == nil
			case tag == "tg-time" && attribute == "format":
				if !timeFormat(content.String()) {
					return "", nil, bad("can't parse entities: "+"Invalid date-time format at byte offset %d", begin)
				}
			}
		}
		i++
		switch {
		case tag == "span" && value != "tg-spoiler":
			return "", nil, bad("can't parse entities: "+`Tag "span" must have class "tg-spoiler" at byte offset %d`, begin)
		case tag == "tg-time" && !unix:
			return "", nil, bad("can't parse entities: "+"Invalid Unix time at byte offset %d", begin)
		}
		stack = append(stack, open{tag, value, units})
	}
	if len(stack) > 0 {
		return "", nil, bad("can't parse entities: "+`Can't find end tag corresponding to start tag "%s"`, stack[len(stack)-1].tag)
	}
	return out.String(), entities, nil
}

func kindOf(tag, value string) string {
	if tag == "blockquote" && value != "" {
		return "expandable_blockquote"
	}
	return tags[tag]
}

// timeFormat tells whether a format is r, or w?[dD]?[tT]?.
func timeFormat(f string) bool {
	if f == "r" {
		return true
	}
	f = strings.TrimPrefix(f, "w")
	if f != "" && (f[0] == 'd' || f[0] == 'D') {
		f = f[1:]
	}
	if f != "" && (f[0] == 't' || f[0] == 'T') {
		f = f[1:]
	}
	return f == ""
}

func alnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// decodeEntity reads one of the four names, or a number; anything else stays
// as it is written.
func decodeEntity(s string) (r rune, n int) {
	if len(s) < 2 || s[0] != '&' {
		return 0, 0
	}
	if s[1] == '#' {
		digits, base := s[2:], 10
		n = 2
		if strings.HasPrefix(digits, "x") {
			digits, base, n = digits[1:], 16, 3
		}
		end := strings.IndexFunc(digits, func(r rune) bool { return r > 127 || !alnum(byte(r)) })
		if end < 0 {
			end = len(digits)
		}
		v, err := strconv.ParseInt(digits[:end], base, 32)
		if err != nil || v <= 0 || v > utf8.MaxRune || (v >= 0xd800 && v < 0xe000) {
			return 0, 0
		}
		n += end
		if n < len(s) && s[n] == ';' {
			n++
		}
		return rune(v), n
	}
	for name, r := range map[string]rune{"lt": '<', "gt": '>', "amp": '&', "quot": '"'} {
		if strings.HasPrefix(s[1:], name) {
			n = 1 + len(name)
			if n < len(s) && s[n] == ';' {
				n++
			}
			return r, n
		}
	}
	return 0, 0
}

// Parse reads Telegram HTML as the server does: the text that a reader sees and
// its formatting, or the error that the server would answer.
func Parse(source string) (text string, entities []Entity, err error) {
	text, entities, bad := parseHTML(source, false)
	if bad != nil {
		return "", nil, bad
	}
	return text, entities, nil
}
