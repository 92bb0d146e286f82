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

// secret is one shape in which keys and tokens turn up in error texts. hint is
// a lower-case piece without which the pattern cannot match; it keeps the
// patterns away from nearly every text.
type secret struct {
	hint    string
	pattern *regexp.Regexp
	with    string
}

// secrets are replaced in this order: those that keep a word of their
// surroundings come before the bare ones.
var secrets = []secret{
	{"://", regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#"'<>]*@`), "${1}" + redacted + "@"},
	{"authorization", regexp.MustCompile(`(?i)\b(authorization["']?\s*[:=]\s*["']?(?:(?:bearer|basic|token)\s+)?)[^\s"',;<>\[]+`), "${1}" + redacted},
	{"bearer", regexp.MustCompile(`(?i)\b(bearer)([ \t]+|%20|\+)["']?[^\s"',;<>]+`), "${1} " + redacted},
	{"basic", regexp.MustCompile(`(?i)\b(basic)[ \t]+[A-Za-z0-9+/_=-]{8,}`), "${1} " + redacted},
	{"", regexp.MustCompile(`(?i)((?:[a-z0-9_-]*(?:api[_-]?key|access[_-]?key|secret|passw(?:or)?d|pwd|auth[_-]?token|access[_-]?token|refresh[_-]?token|session[_-]?token|signature)|[?&](?:key|token|sig|auth|code))["']?\s*[:=]\s*["']?)[^\s"'&,;<>\[\]{}]+`), "${1}" + redacted},
	{":", regexp.MustCompile(`(^|[^0-9])[0-9]{5,}(?::|%3[Aa])[A-Za-z0-9_-]{35,}`), "${1}" + redacted},
	{"sk-", regexp.MustCompile(`\b[a-z]{0,3}sk-[A-Za-z0-9_*.-]{6,}`), redacted},
	{"aiza", regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{20,}`), redacted},
	{"eyj", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), redacted},
	{"akia", regexp.MustCompile(`\bAKIA[A-Z0-9]{12,}`), redacted},
	{"_", regexp.MustCompile(`\b(?:gsk|hf|ghp|gho|ghs|github_pat|glpat|xox[abprs]|nvapi|r8|pplx|fw|csk|bbt)[_-][A-Za-z0-9_-]{10,}`), redacted},
	{"-", regexp.MustCompile(`\b(?:xai|glpat|xox[abprs]|nvapi|pplx|csk|tgp)-[A-Za-z0-9_-]{10,}`), redacted},
}

// secretWords are what the pattern without a hint needs one of.
var secretWords = []string{"key", "secret", "passw", "pwd", "token", "signature", "sig=", "auth=", "code="}

// Evidence is the form in which an error text is kept and shown: valid UTF-8
// on one line, without control characters, keys or tokens, and at most
// maxEvidence characters long.
func Evidence(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
		// A token cut here might no longer look like one: its rest goes too.
		if i := strings.LastIndexAny(text, " \t\n\r\"'"); i > maxEvidence*utf8.UTFMax {
			text = text[:i]
		}
	}
	text = scrub(text)
	if utf8.RuneCountInString(text) <= maxEvidence {
		return text
	}
	runes := []rune(text)
	return strings.TrimRight(string(runes[:maxEvidence-1]), " ") + "…"
}

// scrub makes text one line of valid UTF-8 without control characters and
// replaces what looks like a key or token by [redacted].
func scrub(text string) string {
	if text == "" {
		return ""
	}
	text = printable(text)
	lower := strings.ToLower(text)
	for _, s := range secrets {
		if s.hint == "" {
			if !containsAny(lower, secretWords) {
				continue
			}
		} else if !strings.Contains(lower, s.hint) {
			continue
		}
		text = s.pattern.ReplaceAllString(text, s.with)
	}
	return text
}

func containsAny(s string, words []string) bool {
	for _, word := range words {
		if strings.Contains(s, word) {
			return true
		}
	}
	return false
}

// printable turns white space into single blanks and drops control characters
// and those that change the direction of writing; broken UTF-8 becomes U+FFFD.
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
		case unicode.IsControl(r), r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
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
