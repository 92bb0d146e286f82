package breaker

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
)

// pass is what a permit's text says. It is signed, so that nothing has to be
// kept for the permits of closed circuits.
type pass struct {
	probe bool
	era   uint64 // the engine's counter at the grant
	num   uint64
	at    instant
}

const (
	passVersion = 1
	passMAC     = 12
	maxPermit   = 128
)

// sign writes the permit's text.
func (e *Engine) sign(p pass) string {
	buf := e.scratch[:0]
	kind := byte(passVersion << 1)
	if p.probe {
		kind |= 1
	}
	buf = append(buf, kind)
	buf = binary.AppendUvarint(buf, p.era)
	buf = binary.AppendUvarint(buf, p.num)
	buf = binary.AppendVarint(buf, int64(p.at))
	buf = append(buf, e.mac(buf)...)
	text := base64.RawURLEncoding.AppendEncode(buf, buf)
	return string(text[len(buf):])
}

// mac is the text's signature, valid until the next call.
func (e *Engine) mac(text []byte) []byte {
	e.signer.Reset()
	e.signer.Write(text) // never fails
	return e.signer.Sum(e.sum[:0])[:passMAC]
}

// check reads a permit; ErrBadPermit when it is not one of ours.
func (e *Engine) check(permit string) (pass, error) {
	if len(permit) > maxPermit {
		return pass{}, ErrBadPermit
	}
	raw, err := base64.RawURLEncoding.AppendDecode(e.scratch[:0], []byte(permit))
	if err != nil || len(raw) < 1+3+passMAC || raw[0]>>1 != passVersion {
		return pass{}, ErrBadPermit
	}
	text := raw[:len(raw)-passMAC]
	if !hmac.Equal(raw[len(text):], e.mac(text)) {
		return pass{}, ErrBadPermit
	}
	p := pass{probe: text[0]&1 == 1}
	text = text[1:]
	var n1, n2, n3 int
	p.era, n1 = binary.Uvarint(text)
	p.num, n2 = binary.Uvarint(text[max(n1, 0):])
	at, n3 := binary.Varint(text[max(n1, 0)+max(n2, 0):])
	if n1 <= 0 || n2 <= 0 || n3 <= 0 {
		return pass{}, ErrBadPermit
	}
	p.at = instant(at)
	return p, nil
}

// CheckPermit tells whether this pool gave the permit out, changing nothing.
func (e *Engine) CheckPermit(permit string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.check(permit)
	return err
}

// lease is a probe under way: it holds a slot in each breaker that was due.
type lease struct {
	Num     uint64 `json:"num"`
	Agent   string `json:"agent"`
	Request string `json:"request,omitempty"`
	// Machine, Model and Provider are the target that it was granted for: a
	// request is known again by that target too.
	Machine  string  `json:"machine,omitempty"`
	Model    string  `json:"model,omitempty"`
	Provider string  `json:"provider,omitempty"`
	Era      uint64  `json:"era"`
	Granted  instant `json:"granted"`
	Deadline instant `json:"deadline"`
	// max is when the lease ends at the latest, extensions included.
	Max     instant `json:"max"`
	Expired bool    `json:"expired,omitempty"`

	slots []*breaker
}

func (l *lease) pass() pass { return pass{probe: true, era: l.Era, num: l.Num, at: l.Granted} }

// isFor tells whether the lease was granted for this target.
func (l *lease) isFor(t *Labels) bool {
	return l.Machine == t.Machine && l.Model == t.Model && l.Provider == t.Provider
}

// drop takes the slot in b away from the lease.
func (l *lease) drop(b *breaker) {
	l.slots = slices.DeleteFunc(l.slots, func(s *breaker) bool { return s == b })
}

// seen remembers the calls that a word was heard of, for a day or as many as
// its bound allows, whichever is less.
type seen struct {
	keys  map[seenKey]struct{}
	queue []seenEntry // a ring, oldest at head
	head  int
	max   int
	fresh int // at the queue's end, waiting for Drain
}

type (
	seenKey   [16]byte
	seenEntry struct {
		key seenKey
		at  instant
	}
)

// heard adds the call and tells whether it was there already.
func (s *seen) heard(now instant, key seenKey) bool {
	if _, ok := s.keys[key]; ok {
		return true
	}
	for s.head < len(s.queue) && (now-s.queue[s.head].at > instant(HeardFor) || len(s.keys) >= s.max) {
		delete(s.keys, s.queue[s.head].key)
		s.head++
	}
	if s.head > 1024 && s.head > len(s.queue)/2 {
		s.queue = append(s.queue[:0], s.queue[s.head:]...)
		s.head = 0
	}
	s.keys[key] = struct{}{}
	s.queue = append(s.queue, seenEntry{key, now})
	s.fresh++
	return false
}

// list copies the entries from the given place in the queue on.
func (s *seen) list(from int) []Heard {
	var list []Heard
	for _, entry := range s.queue[max(from, s.head):] {
		list = append(list, Heard{Call: entry.key, At: entry.at.time()})
	}
	return list
}

func (p pass) key() seenKey {
	buf := make([]byte, 0, 32)
	buf = append(buf, 'p')
	buf = binary.AppendUvarint(buf, p.num)
	buf = binary.AppendVarint(buf, int64(p.at))
	sum := sha256.Sum256(buf)
	return seenKey(sum[:16])
}

func idKey(agent, id string) seenKey {
	var stack [256]byte
	buf := append(stack[:0], 'i')
	buf = binary.AppendUvarint(buf, uint64(len(agent)))
	buf = append(buf, agent...)
	buf = append(buf, id...)
	sum := sha256.Sum256(buf)
	return seenKey(sum[:16])
}
