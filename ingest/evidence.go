package ingest

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxEvidence is the longest error text that is kept, in characters.
	maxEvidence = 500
	// maxErrorText is how much of an error text is looked at, in bytes.
	maxErrorText = 8 << 10

	redacted = "[redacted]"
)

// secret is one shape in which keys and tokens turn up in error texts. Each
// group of the pattern that matched is replaced, what stands around it stays.
type secret struct {
	// may is false only for texts, in lower case, that the pattern cannot match. It
	// keeps the patterns, which are slow, away from nearly every text.
	may     func(lower string) bool
	pattern *regexp.Regexp
	// plain tells a match that is a word of a sentence. Nil: none is.
	plain func(match string) bool
}

// The pieces of the patterns: what may stand before a bare key, which within
// JSON or a URL is the end of an escape; what may stand before a quote, which is
// a list, a class or bytes; and what follows the name of a secret, all that
// stands between quotes, also in JSON within JSON, or one word.
const (
	edge        = `(?:\b|\\[bfnrt]|(?:%|\\u00)[0-9A-Fa-f]{2})`
	opening     = `\[?(?:[A-Za-z]+\()?b?`
	secretValue = `[\\"']*\s*(?:[:=]|%3[AaDd])\s*(?:` + opening + `\\+"((?:[^"\\]|\\\\\\"|\\[^"])+)|` + opening + `"((?:[^"\\]|\\.)+)|` + opening + `'((?:[^'\\]|\\.)+)|\[?((?:[^\s"'&,;<>\[\]{}\\]|\\[^\s"'\\nrtu])+))`
)

// secrets are replaced in this order: those that keep a word of their
// surroundings come before the bare ones.
var secrets = []secret{
	// A password may hold what ends it elsewhere; a port is no password.
	{hasUserInfo, regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://(?:([^\s/?#"'<>]*)|([^\s/?#"'<>:@\[]*:[^\s/?#"'<>@:]*[^0-9\s/?#"'<>@:][^\s/?#"'<>@]*[/?#][^\s"'<>]*))@`), nil},
	{has("authorization"), regexp.MustCompile(`(?i)\bauthorization[\\"']*\s*[:=]\s*[\\"'\[]*(?:(?:bearer|basic|token|digest|apikey)\s+)*([^\s"',;<>\[\]\\]+)`), nil},
	{has("bearer"), regexp.MustCompile(`(?i)\bbearer(?:[ \t:=]+|%20|\+|\\t)(?:[\\"'(]*(?:token|bearer)\b[ \t:=]*)*[\\"'(]*([^\s"',;<>()\\]+)`), plainWord},
	{has("basic "), regexp.MustCompile(`(?i)\bbasic[ \t]+([A-Za-z0-9+/_=-]{8,})`), lowerLetters},
	{has("cookie"), regexp.MustCompile(`(?i)\bcookie[\\"']*\s*[:=]\s*[\\"'\[]*([^"'\\\]]+)`), nil},
	{has("private key-----"), regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----(.+?)(?:-----END|$)`), nil},
	{namesSecret, regexp.MustCompile(`(?i)(?:api[_ -]?key(?: provided)?|(?:access|account|private|secret|subscription)[_-]?key|secret|passw(?:or)?d|passphrase|pwd|(?:auth|access|refresh|session|security|id|bot)[_-]?token|signature|credentials?|(?:[?&#;]|\\u0026|%26|%3F)(?:key|token|sig|auth|code|pass))` + secretValue), nil},
	{namesSecret, regexp.MustCompile(`(?i)(?:[a-z0-9]+[_-]token[\\"']*\s*[:=]\s*[\\"'\[]*|["']token\\*["']\s*[:=]\s*\\*["']|\btoken=\\*["']?)([^\s"'&,;<>\[\]{}\\]{8,})|\bpass=["']?([^\s"'&,;<>\\]+)`), nil},
	{has("--"), regexp.MustCompile(`(?i)--[a-z-]*(?:key|token|secret|password)[ =]["']?([^\s"']+)`), plainWord},
	{saysToken, regexp.MustCompile(`(?i)\b(?:token|api[ _-]?key)["']?[ :=]+["'\[]?([A-Za-z0-9_.~+/=-]{16,})`), noDigits},
	{has("('", `("`, `(\`, "(b'", `(b"`, `(b\`), regexp.MustCompile(`(?i)\(b?\\*["'](?:[a-z0-9]+[_-])*(?:[a-z]*key|token|secret|authorization|cookie|password)\\*["'],\s*b?\\*["'](?:(?:bearer|basic|token)\s+)*([^"'\\]+)`), nil}, // a header as Python prints it
	{has("hooks.slack.com/", "/webhooks/"), regexp.MustCompile(`hooks\.slack\.com/[a-z]+/([A-Za-z0-9/_-]+)|/webhooks/[0-9]+/([A-Za-z0-9_-]{10,})`), nil},
	{namesBot, regexp.MustCompile(`(?:^|[^0-9])([0-9]{5,}(?::|%3[Aa])(?:[A-Za-z0-9_-]{30,}|AA[A-Za-z0-9_-]{8,}))`), nil},
	{dottedInSeven, regexp.MustCompile(edge + `([A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{25,})`), nil}, // a bot's on Discord
	{has("sk-"), regexp.MustCompile(edge + `([a-z]{0,3}sk-[A-Za-z0-9_*.-]{6,})`), hyphened},
	{has("aiza", "ya29.", "gocspx-", "aq.", "sg."), regexp.MustCompile(edge + `(AIza[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_.-]{10,}|GOCSPX-[A-Za-z0-9_-]{10,}|AQ\.[A-Za-z0-9_-]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,})`), nil},
	{has("eyj"), regexp.MustCompile(edge + `(eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){1,4}|eyJ[A-Za-z0-9_-]{20,})`), nil},
	{has("dapi"), regexp.MustCompile(edge + `(dapi[0-9a-f]{32}(?:-[0-9]+)?)`), nil},
	{has("akia", "asia"), regexp.MustCompile(edge + `(A[KS]IA[A-Z0-9]{12,})(?:[^A-Za-z0-9+/]{1,6}([A-Za-z0-9+/]{40}))?`), nil},
	{before('_', "gsk", "hf", "ghp", "gho", "ghu", "ghs", "ghr", "pat", "npm", "r8", "fw", "jina", "glpat", "nvapi", "pplx", "csk", "xoxb", "xoxp", "xoxa", "xoxr", "xoxs", "live", "test", "v1", "lsv2", "whsec", "bbt"),
		regexp.MustCompile(edge + `((?:gsk|hf|gh[pousr]|npm|r8|fw)_[A-Za-z0-9]{10,}|jina_[A-Za-z0-9]{20,}|(?:github_pat|glpat|nvapi|pplx|csk|xox[abprs]|[sprw]k_live|[sprw]k_test|tgp_v1|dop_v1|lsv2|whsec|bbt)_[A-Za-z0-9_-]{10,})`), nil},
	{before('-', "xai", "glpat", "nvapi", "pplx", "csk", "tgp", "xoxa", "xoxb", "xoxc", "xoxd", "xoxe", "xoxo", "xoxp", "xoxr", "xoxs", "xapp", "gsk", "hf", "r8", "fw", "tvly", "pypi"),
		regexp.MustCompile(edge + `((?:xai|glpat|xox[a-eoprs]|xapp|nvapi|pplx|csk|tgp|tvly)-[A-Za-z0-9_-]{10,}|(?:gsk|hf|r8|fw)-[A-Za-z0-9]{10,}|pypi-AgE[A-Za-z0-9_-]{10,})`), nil},
}

func has(pieces ...string) func(string) bool {
	return func(lower string) bool { return containsAny(lower, pieces) }
}

func hasUserInfo(lower string) bool {
	i := strings.Index(lower, "://")
	return i >= 0 && strings.IndexByte(lower[i:], '@') > 0
}

// secretNames are how the names of secrets end.
var secretNames = []string{"key", "provided", "secret", "passwd", "password", "passphrase", "pwd", "pass", "token", "signature", "credential", "credentials"}

// namesSecret tells that a name of a secret stands before a colon or an equals
// sign, or a short one in the query of a URL.
func namesSecret(lower string) bool {
	for i := range len(lower) {
		if c := lower[i]; c != ':' && c != '=' && (c != '%' || !strings.HasPrefix(lower[i:], "%3d") && !strings.HasPrefix(lower[i:], "%3a")) {
			continue
		}
		name := lower[:i]
		for name != "" && strings.IndexByte(" \\\"'", name[len(name)-1]) >= 0 {
			name = name[:len(name)-1]
		}
		for _, end := range secretNames {
			if strings.HasSuffix(name, end) {
				return true
			}
		}
		for _, end := range []string{"sig", "auth", "code"} {
			if query, ok := strings.CutSuffix(name, end); ok && query != "" && strings.IndexByte("?&#;6f", query[len(query)-1]) >= 0 {
				return true // the last two end an escape
			}
		}
	}
	return false
}

// saysToken tells that the word token or key stands before a blank or a sign, as
// in "invalid token 123".
func saysToken(lower string) bool {
	for _, word := range []string{"token", "key"} {
		for rest := lower; ; {
			_, after, found := strings.Cut(rest, word)
			if !found {
				break
			}
			if after != "" && strings.IndexByte(" :=\"'", after[0]) >= 0 {
				return true
			}
			rest = after
		}
	}
	return false
}

// dottedInSeven tells that two dots stand as far apart as in a token of Discord.
func dottedInSeven(lower string) bool {
	for i := 7; i < len(lower); i++ {
		if lower[i] == '.' && lower[i-7] == '.' {
			return true
		}
	}
	return false
}

// namesBot tells that five digits, a colon and something as long as a token
// stand in the text, as in a bot's token.
func namesBot(lower string) bool {
	for i := 5; i < len(lower); i++ {
		if lower[i] != ':' && lower[i] != '%' || !isDigit(lower[i-1]) || !isDigit(lower[i-2]) || !isDigit(lower[i-3]) || !isDigit(lower[i-4]) || !isDigit(lower[i-5]) {
			continue
		}
		n := i + 1
		for n < len(lower) && (isWordByte(lower[n]) || lower[n] == '-') {
			n++
		}
		if n-i > len("aa12345678") {
			return true
		}
	}
	return false
}

// before tells that one of the words ends right before a sign.
func before(sign byte, words ...string) func(string) bool {
	return func(lower string) bool {
		for from := 0; ; {
			i := strings.IndexByte(lower[from:], sign)
			if i < 0 {
				return false
			}
			i += from
			from = i + 1
			for _, word := range words {
				if strings.HasSuffix(lower[:i], word) {
					return true
				}
			}
		}
	}
}

var plainWords = words("auth", "authentication", "authorization", "token", "tokens", "scheme", "header", "or", "and", "is", "was", "in", "for", "not", "required", "expected", "missing", "invalid", "expired", "must", "has")

// plainWord tells a word that follows Bearer in a sentence, or in a challenge.
func plainWord(match string) bool {
	match = strings.TrimRight(lowerASCII(match), ".:)")
	return plainWords[match] || strings.HasPrefix(match, "realm=") || strings.HasPrefix(match, "error=")
}

// noDigits tells a word of a sentence from a key.
func noDigits(match string) bool { return !strings.ContainsAny(match, "0123456789") }

// lowerLetters tells a word, which the encoding of a password hardly ever is.
func lowerLetters(match string) bool {
	for i := 1; i < len(match); i++ {
		if match[i] < 'a' || match[i] > 'z' {
			return false
		}
	}
	return true
}

// hyphened tells a word such as task-scheduler from a key with a prefix.
func hyphened(match string) bool {
	return !strings.HasPrefix(match, "sk-") && !strings.ContainsFunc(match, func(r rune) bool { return r < 'a' && r != '-' || r == '_' })
}

// Evidence is the form in which an error text is kept and shown: valid UTF-8
// on one line, without control characters, keys or tokens, and at most
// maxEvidence characters long. Of a long text the lines of a stack trace go
// first, so that the error that it ends in is seen.
func Evidence(text string) string {
	if len(text) > maxEvidence {
		text = withoutStack(text)
	}
	cut := len(text) > maxErrorText
	if cut {
		text = text[:maxErrorText]
		// A token cut here might no longer look like one: its rest goes too.
		if i := strings.LastIndexAny(text, " \t\n\r\"'"); i > maxEvidence*utf8.UTFMax {
			text = text[:i]
		}
	}
	text = scrub(text)
	if utf8.RuneCountInString(text) <= maxEvidence {
		if cut { // so little is left because the rest was secret, and so may be its end
			text = text[:1+strings.LastIndexFunc(text, endsToken)]
		}
		return text
	}
	runes := []rune(text)
	return strings.TrimRight(string(runes[:maxEvidence-1]), " ") + "…"
}

// endsToken tells a sign that stands in no key.
func endsToken(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.~+/=%:", r)
}

// scrub makes text one line of valid UTF-8 without control characters and
// replaces what looks like a key or token by [redacted].
func scrub(text string) string {
	if text == "" {
		return ""
	}
	text = printable(text)
	lower := lowerASCII(text)
	for i := range secrets {
		if secrets[i].may(lower) {
			text = secrets[i].redact(text)
		}
	}
	return text
}

func (s *secret) redact(text string) string {
	matches := s.pattern.FindAllStringSubmatchIndex(text, -1)
	if matches == nil {
		return text
	}
	var b strings.Builder
	from := 0
	for _, m := range matches {
		for g := 2; g < len(m); g += 2 {
			if m[g] < 0 || s.plain != nil && s.plain(text[m[g]:m[g+1]]) || redacted == "["+text[m[g]:m[g+1]]+"]" {
				continue
			}
			b.WriteString(text[from:m[g]])
			b.WriteString(redacted)
			from = m[g+1]
		}
	}
	b.WriteString(text[from:])
	return b.String()
}

// printable turns white space into single blanks and drops control characters
// and those that nobody sees, such as the ones that change the direction of
// writing, but for the two joiners that some scripts need; broken UTF-8 becomes
// U+FFFD.
func printable(text string) string {
	clean := true
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x7f || c == ' ' && i > 0 && text[i-1] == ' ' {
			clean = false
			break
		}
	}
	if clean {
		return strings.TrimSpace(text)
	}
	var b strings.Builder
	b.Grow(len(text))
	blank := false
	for _, r := range text {
		switch {
		case unicode.IsSpace(r):
			blank = true
			continue
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r) && r != '\u200c' && r != '\u200d':
			continue
		}
		if blank && b.Len() > 0 {
			b.WriteByte(' ')
		}
		blank = false
		b.WriteRune(r)
	}
	return b.String()
}
