package breaker

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A full rule is searched for breakers to evict once, and again no sooner and
// no later than one of them may go.
func TestFullRulesAreSearchedWhenItCanHelp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e, err := New(Config{MaxBreakers: 3, Key: []byte("k"), Rules: []Rule{plainRule(func(r *Rule) {
			r.StableAfter = Duration(rapid.SampledFrom([]time.Duration{time.Minute, 2 * time.Hour}).Draw(t, "stable after"))
		})}})
		if err != nil {
			t.Fatal(err)
		}
		r, now := e.rules[0], t0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 29 * time.Minute, time.Hour - 1, time.Hour, 5 * time.Hour}).Draw(t, "after"))
			machine := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "machine"))
			if op := rapid.SampledFrom([]Op{"", "", "", "", "", OpHoldOpen, OpHoldClosed, OpReset, OpAuto}).Draw(t, "control"); op != "" {
				_, _, _ = e.Control(now, Control{Breaker: "r{machine=" + machine + "}", Op: op, For: rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "for")})
			} else {
				v := report(e, now, rapid.SampledFrom([]Cause{OK, OK, Refused}).Draw(t, "cause"), func(o *Outcome) { o.Machine = machine })
				if len(v.Uncounted) > 0 && e.now >= r.fullUntil {
					t.Fatal("the next new name searches again, where this one found nothing")
				}
			}
			for b := range r.each {
				p := b.was()
				decayed := p.closedAt == 0 || int64(p.exponent) <= int64((e.now-p.closedAt)/instant(r.StableAfter))
				free := b.state == Closed && p.incident == 0 && b.run == 0 && p.override == nil && decayed && e.now-b.used >= idle
				if at, ok := b.freeAt(); free != (ok && at <= e.now) {
					t.Fatalf("%s is free: %t, by its moment %t since %s", b.name(), free, ok, at.time())
				}
				if free && e.now < r.fullUntil {
					t.Fatalf("%s is free, and nothing is searched before %s", b.name(), r.fullUntil.time())
				}
			}
		}
	})
}

// BenchmarkFlood reports outcomes of new names to a rule that is full.
func BenchmarkFlood(b *testing.B) {
	const n = 100_000
	e, err := New(Config{MaxBreakers: n, Key: []byte("k"), Rules: []Rule{plainRule()}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		report(e, t0, OK, func(o *Outcome) { o.Machine = fmt.Sprint("m-", i) })
	}
	i := 0
	for b.Loop() {
		i++
		report(e, t0, OK, func(o *Outcome) { o.Machine = fmt.Sprint("flood-", i) })
	}
}
