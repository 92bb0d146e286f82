package store_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"breakerbot/breaker"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

// What is logged comes to the transitions in the table and to the state that a
// restart finds, when it is decided again.
func TestTheLogDecidesAgain(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	cfg := breaker.Config{Rules: breaker.Builtin(), Record: true, WatchPermits: true}
	restored := func() (*breaker.Engine, *store.Journal) {
		snap, key, err := db.Load(t.Context(), at(0), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Key = key; snap.Clock.Seq > 0 {
			snap.Clock.Era += 100 // as the service does, in case some were never written
		}
		e, err := breaker.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Restore(snap); err != nil {
			t.Fatal(err)
		}
		return e, store.NewJournal(store.JournalOptions{DB: db, Engine: e, Policy: &feed{}, Advance: e.Advance, Log: slog.New(slog.DiscardHandler)})
	}
	e, j := restored()
	var permits []string
	now := 0
	for round := range 4 {
		for i := range 60 {
			now += i % 7
			labels := breaker.Labels{Agent: fmt.Sprint("agent-", i%3), Machine: fmt.Sprint("box-", i%2), Model: "m"}
			g, _ := e.Ask(at(now), breaker.Ask{Labels: labels, Timeout: 20 * time.Second, RequestID: fmt.Sprint(i)})
			if g.Allowed {
				permits = append(permits, g.Permit)
			}
			o := breaker.Outcome{Labels: labels, Cause: breaker.OK, ID: fmt.Sprint(round, "-", i%50), Duration: time.Second}
			if (i/10+round)%2 == 0 {
				o.Cause, o.Error = breaker.ServerError, "internal error"
			}
			if i%4 == 0 && len(permits) > 0 {
				o.Permit, permits = permits[0], permits[1:]
			}
			e.Report(at(now), []breaker.Outcome{o})
			if i%25 == 0 {
				flush(t, j, at(now))
			}
		}
		if _, _, err := e.Control(at(now), breaker.Control{Breaker: "reachability{machine=box-1}", Op: breaker.OpHoldOpen, For: time.Minute, Actor: "ops"}); err != nil {
			t.Fatal(err)
		}
		flush(t, j, at(now))
		e, j = restored()
	}
	flush(t, j, at(now)) // the last restart

	again, err := breaker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	inputs := 0
	err = db.Log(t.Context(), 0, func(l store.Logged) error {
		if l.From < last || l.To <= l.From {
			t.Errorf("from %d to %d is logged after %d", l.From, l.To, last)
		}
		last = l.To
		for _, in := range l.Inputs {
			inputs += in.Len()
			again.Redo(in)
		}
		again.Advance(l.At)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := 4 * (60 + 50 + 1); inputs < want { // asks, outcomes without their duplicates, controls
		t.Errorf("%d inputs are logged, want at least %d", inputs, want)
	}
	stored, next, err := db.Transitions(t.Context(), breaker.Filter{Limit: 1000})
	if err != nil || next != "" || len(stored) < 10 {
		t.Fatalf("%d transitions are stored, cursor %q, error %v", len(stored), next, err)
	}
	slices.Reverse(stored)
	if got, want := asJSON(t, again.Drain().Transitions), asJSON(t, stored); got != want {
		t.Errorf("decided again, there are\n%s\nand not\n%s", got, want)
	}
	again.Advance(at(now))
	got, want := again.Snapshot(), e.Snapshot()
	got.Clock.Seq = want.Clock.Seq                                   // which counts other things too
	for _, heard := range [][]breaker.Heard{got.Heard, want.Heard} { // those of one moment have no order in the table
		slices.SortFunc(heard, func(a, b breaker.Heard) int {
			return cmp.Or(a.At.Compare(b.At), bytes.Compare(a.Call[:], b.Call[:]))
		})
	}
	if asJSON(t, got) != asJSON(t, want) {
		t.Errorf("decided again, the state is\n%s\nand not\n%s", asJSON(t, got), asJSON(t, want))
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestALogThatCannotBeRead(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, conn := storetest.Open(t, url), connect(t, url)
	for form, want := range map[int]string{2: "form 2: this version knows form 1", 1: "magic number mismatch"} {
		execute(t, conn, "DELETE FROM outcome_log")
		execute(t, conn, "INSERT INTO outcome_log (position, from_position, at, form, inputs) VALUES (9, 7, $1, $2, 'nothing')", at(1), form)
		err := db.Log(t.Context(), 0, func(store.Logged) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "read 7 to 9 of the log: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("form %d: %v, want the place and %q", form, err, want)
		}
	}
}

func TestTheLogIsKeptAsLongAsOutcomes(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, conn := storetest.Open(t, url), connect(t, url)
	execute(t, conn, `INSERT INTO outcome_log (position, from_position, at, form, inputs)
		SELECT n, n - 1, $1::timestamptz + n * interval '1 hour', 1, '' FROM generate_series(1, 48) n`, at(0))
	if n, err := db.Prune(t.Context(), at(48*3600), store.Retention{Outcomes: 24 * time.Hour}); n != 23 || err != nil {
		t.Errorf("deleted %d rows, %v; want the 23 that are older than a day", n, err)
	}
	if first := one[int](t, conn, "SELECT min(position) FROM outcome_log"); first != 24 {
		t.Errorf("the first that is left is %d, want 24", first)
	}
}
