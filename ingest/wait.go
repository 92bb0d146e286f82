package ingest

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds a wait, however it is stated.
const maxRetryAfter = 366 * 24 * time.Hour

// The leads of a wait and of the moment that ends one, as texts and dumped
// headers word them. A reset tells when a contingent is full again, which need
// not be the one that is used up.
var (
	waitLead = regexp.MustCompile(`^(?:retry[_-]?delay|retry[_ -]?after|(?:re)?try (?:again |your request )?(?:in|after)|wait(?: for| at least)?|available (?:again )?in|resets?[_ ]in)` +
		`([_-]?(?:milliseconds|seconds|secs|ms)|[_-]s)?([\\"',:={~\[\s]*)(?:b['"])?(?:seconds[\\"' :=]*)?(?:at least |about |approximately |another )?`)
	momentLead = regexp.MustCompile(`^(?:(?:re)?try (?:again )?at|available (?:again )?at|resets?[_ ](?:at|on)|regain access on|limit reached\|)[\\"':=\s]*`)
	resetLead  = regexp.MustCompile(`^(?:rate-?limit-(?:[a-z]+-)*reset(?:-[a-z]+)*|ratelimit: [a-z0-9=,; ]*reset=)[\\"':=\[ ]*`)
)

// waitMarks are how the leads begin.
var waitMarks = []string{"retry", "try again", "wait", "available ", "reset", "regain access", "limit reached|", "ratelimit-", "rate-limit-", "ratelimit:"}

// maxWaits is how many places of a text are looked at for each mark.
const maxWaits = 8

// waitSpan is how much of a text is looked at for one wait, in bytes.
const waitSpan = 96

var waitUnits = map[string]time.Duration{
	"ms": time.Millisecond, "msec": time.Millisecond, "millis": time.Millisecond, "millisecond": time.Millisecond, "milliseconds": time.Millisecond,
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
}

// waitInText finds the wait that an error text states, in the wordings of the
// providers; of several the longest. Dates count from the moment ref. A reset is
// told only where there is no other wait, and found says which it is.
func waitInText(text string, ref time.Time) (wait time.Duration, isReset, found bool) {
	if !strings.ContainsAny(text, "0123456789") {
		return 0, false, false
	}
	lower := lowerASCII(text)
	var reset time.Duration
	resetFound := false
	for _, mark := range waitMarks {
		from := 0
		for range maxWaits {
			i := strings.Index(lower[from:], mark)
			if i < 0 {
				break
			}
			i += from
			from = i + len(mark)
			if mark == "wait" && i > 0 && isWordByte(lower[i-1]) {
				continue // await
			}
			end := min(len(lower), i+waitSpan)
			if m := waitLead.FindStringSubmatchIndex(lower[i:end]); m != nil {
				if d, ok := readWait(text[i+m[1]:end], group(lower[i:end], m, 1), isHeader(group(lower[i:end], m, 2)), ref); ok {
					wait, found = max(wait, d), true
				}
			} else if m := momentLead.FindStringIndex(lower[i:end]); m != nil {
				if at, ok := readMoment(text[i+m[1] : end]); ok && at.After(ref) {
					wait, found = max(wait, until(at, ref)), true
				}
			} else if m := resetLead.FindStringIndex(lower[i:end]); m != nil {
				if d, ok := readWait(text[i+m[1]:end], "", true, ref); ok {
					reset, resetFound = max(reset, d), true
				}
			}
		}
	}
	if found || !resetFound {
		return wait, false, found
	}
	return reset, true, true
}

func group(text string, m []int, n int) string {
	if m[2*n] < 0 {
		return ""
	}
	return text[m[2*n]:m[2*n+1]]
}

// isHeader tells a name and its value from a sentence, where a number needs a
// unit, or nothing behind it: "retry after 3 attempts" is no wait.
func isHeader(between string) bool { return strings.ContainsAny(between, `:={["'`) }

// readWait reads the wait at the start of text: a number with or without unit,
// or the moment that ends it. A moment that is over is no wait.
func readWait(text, unit string, header bool, ref time.Time) (time.Duration, bool) {
	if at, ok := readMoment(text); ok && unit == "" {
		return until(at, ref), at.After(ref)
	}
	return parseWait(lowerASCII(text), strings.TrimLeft(unit, "_-"), header)
}

// readMoment reads the moment at the start of text: an HTTP date, a date as RFC
// 3339 has it, or a number of seconds or milliseconds since 1970, which no wait
// in seconds is as long as.
func readMoment(text string) (time.Time, bool) {
	if len(text) >= len(http.TimeFormat) {
		if at, err := http.ParseTime(text[:len(http.TimeFormat)]); err == nil {
			return at, true
		}
	}
	n := 0
	for n < len(text) && isDigit(text[n]) {
		n++
	}
	if n >= 10 && n <= 13 && (n == len(text) || text[n] != '-' && !isWordByte(lowerASCII(text[n : n+1])[0])) {
		number, _ := strconv.ParseInt(text[:n], 10, 64)
		if n < 12 {
			number *= 1000
		}
		return time.UnixMilli(number), true
	}
	return leadingDate(text)
}

func until(at, ref time.Time) time.Duration {
	return min(max(0, at.Sub(ref)), maxRetryAfter)
}

// leadingDate reads a date at the start of text: 2026-04-01T00:00:00Z, or the
// same in words, 2026-04-01 at 00:00 UTC.
func leadingDate(text string) (time.Time, bool) {
	if len(text) < len(time.DateOnly) || text[4] != '-' {
		return time.Time{}, false
	}
	end := strings.IndexAny(text, " \\\"',;)]}")
	if end < 0 {
		end = len(text)
	}
	if at, err := time.Parse(time.RFC3339, strings.TrimRight(text[:end], ".")); err == nil {
		return at, true
	}
	const words = "2006-01-02 at 15:04 UTC"
	if len(text) >= len(words) {
		if at, err := time.Parse(words, text[:len(words)]); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// parseWait reads numbers with units from the start of text, such as 1m30s or
// 20 seconds. A number without a unit has the given one, or is in seconds if
// nothing but punctuation follows it, or anything in a header.
func parseWait(text, unit string, header bool) (time.Duration, bool) {
	var total float64
	found := false
	for {
		text = strings.TrimLeft(text, " ")
		if found {
			text = strings.TrimPrefix(strings.TrimLeft(text, ", "), "and ")
		}
		n := 0
		for n < len(text) && (text[n] == '.' || '0' <= text[n] && text[n] <= '9') {
			n++
		}
		number, err := strconv.ParseFloat(strings.TrimRight(text[:n], "."), 64)
		if err != nil && !math.IsInf(number, 1) {
			return clampWait(total), found
		}
		text = strings.TrimLeft(text[n:], " ")
		n = 0
		for n < len(text) && 'a' <= text[n] && text[n] <= 'z' {
			n++
		}
		per, known := waitUnits[text[:n]]
		switch {
		case known:
			text = text[n:]
		case found: // a number of something else
			return clampWait(total), true
		case n > 0 && unit == "" && !header:
			return 0, false
		default:
			if per = waitUnits[unit]; per == 0 {
				per = time.Second
			}
			text = ""
		}
		total += number * float64(per)
		found = true
	}
}

func clampWait(ns float64) time.Duration {
	if ns >= float64(maxRetryAfter) {
		return maxRetryAfter
	}
	return time.Duration(math.Round(ns))
}

// retryAfterText reads a Retry-After that came as text: seconds, a number with
// a unit, or a moment. Dates count from ref.
func retryAfterText(text string, ref time.Time) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if at, ok := readMoment(text); ok {
		return until(at, ref), true
	}
	if at, err := http.ParseTime(text); err == nil { // in one of the old formats
		return until(at, ref), true
	}
	if n, err := strconv.ParseFloat(text, 64); (err == nil || math.IsInf(n, 1)) && n >= 0 {
		return clampWait(n * float64(time.Second)), true
	}
	return parseWait(lowerASCII(text), "", false)
}
