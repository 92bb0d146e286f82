package ingest

import "strings"

// phrase is a piece of text that is looked for between word boundaries; a * at
// either end opens that side, the left one to the words that ReadTimeout is
// written of, and not to those of a parameter read_timeout. It is lower case and
// three bytes long or longer.
type phrase struct {
	text                string
	openLeft, openRight bool
	marks               [3]uint16 // its first, middle and last three bytes, as trigrams knows them
}

// phraseList is a list of phrases, any of which will do.
type phraseList []phrase

func phrases(list ...string) phraseList {
	ready := make(phraseList, len(list))
	for i, text := range list {
		p := &ready[i]
		p.text, p.openLeft = strings.CutPrefix(text, "*")
		p.text, p.openRight = strings.CutSuffix(p.text, "*")
		n := len(p.text)
		if n < 3 {
			panic("phrase " + text + " is too short to be looked for")
		}
		for j, at := range [3]int{0, (n - 3) / 2, n - 3} {
			p.marks[j] = trigram(p.text[at], p.text[at+1], p.text[at+2])
		}
	}
	return ready
}

// trigrams says which runs of three bytes a text has, by their hash: a phrase
// with one that is missing need not be searched. Most texts have none of the
// hundreds of phrases, and this spares nearly all of the searches.
type trigrams [64]uint64

func trigram(a, b, c byte) uint16 {
	return uint16((uint32(a)<<16|uint32(b)<<8|uint32(c))*2654435761>>20) & (64*64 - 1)
}

func (t *trigrams) add(text string) {
	for i := 2; i < len(text); i++ {
		bit := trigram(text[i-2], text[i-1], text[i])
		t[bit>>6] |= 1 << (bit & 63)
	}
}

func (t *trigrams) mayHold(p *phrase) bool {
	for _, bit := range p.marks {
		if t[bit>>6]&(1<<(bit&63)) == 0 {
			return false
		}
	}
	return true
}

// in tells whether the error text that s has holds one of the phrases.
func (list phraseList) in(s *seen) bool {
	if s.text == "" {
		return false
	}
	for i := range list {
		if s.trigrams.mayHold(&list[i]) && list[i].in(s.text) {
			return true
		}
	}
	return false
}

// inText tells whether text, which is lower case, holds one of the phrases.
func (list phraseList) inText(text string) bool {
	for i := range list {
		if list[i].in(text) {
			return true
		}
	}
	return false
}

func (p *phrase) in(text string) bool {
	for from := 0; ; {
		i := strings.Index(text[from:], p.text)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(p.text)
		left := start == 0 || p.openLeft && text[start-1] != '_' || !isWordByte(text[start-1]) || !isWordByte(p.text[0])
		right := p.openRight || end == len(text) || !isWordByte(text[end]) || !isWordByte(p.text[len(p.text)-1])
		if left && right {
			return true
		}
		from = start + 1
	}
}

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c >= 0x80
}

// lowerASCII is text with its ASCII letters in lower case: every byte stays
// where it is, which strings.ToLower does not promise.
func lowerASCII(text string) string {
	for i := range len(text) {
		if 'A' <= text[i] && text[i] <= 'Z' {
			lower := []byte(text)
			for ; i < len(lower); i++ {
				if c := lower[i]; 'A' <= c && c <= 'Z' {
					lower[i] = c + 'a' - 'A'
				}
			}
			return string(lower)
		}
	}
	return text
}

func words(list ...string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, word := range list {
		set[word] = true
	}
	return set
}

func containsAny(s string, words []string) bool {
	for _, word := range words {
		if strings.Contains(s, word) {
			return true
		}
	}
	return false
}
