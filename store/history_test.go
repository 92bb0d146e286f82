package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"breakerbot/breaker"
	"breakerbot/store"
	"breakerbot/store/storetest"
)

func TestPagesByKey(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	f := &feed{}
	j := journal(t, db, f)
	for era := 1; era <= 25; era++ {
		f.transitions(tripOf(fmt.Sprint("m", era%2), era))
	}
	flush(t, j, at(25))
	var eras, incidents []uint64
	for _, read := range []struct {
		into *[]uint64
		page func(breaker.Filter) ([]uint64, string, error)
	}{
		{&eras, func(f breaker.Filter) (list []uint64, next string, err error) {
			rows, next, err := db.Transitions(t.Context(), f)
			for _, r := range rows {
				list = append(list, r.Era)
			}
			return list, next, err
		}},
		{&incidents, func(f breaker.Filter) (list []uint64, next string, err error) {
			rows, next, err := db.Incidents(t.Context(), f)
			for _, r := range rows {
				list = append(list, r.ID)
			}
			return list, next, err
		}},
	} {
		filter := breaker.Filter{Machine: "m1", Model: gpu.Model, Since: at(3), Until: at(23), Limit: 3}
		for pages := 0; ; pages++ {
			list, next, err := read.page(filter)
			if err != nil {
				t.Fatal(err)
			}
			*read.into = append(*read.into, list...)
			if next == "" {
				break
			}
			if len(list) != 3 || pages > 10 {
				t.Fatalf("a page of %d in the middle, after %d", len(list), pages)
			}
			// What comes meanwhile shifts no page.
			f.transitions(tripOf("m1", 100+len(*read.into)+1000*int(f.seq)))
			flush(t, j, at(25))
			filter.Cursor = next
		}
		if got, want := fmt.Sprint(*read.into), "[21 19 17 15 13 11 9 7 5 3]"; got != want {
			t.Errorf("the pages hold %s, want %s", got, want)
		}
	}
	if list, _, err := db.Transitions(t.Context(), breaker.Filter{Machine: "nobody"}); err != nil || len(list) != 0 {
		t.Errorf("of an unknown machine: %v, %v", list, err)
	}
}

func TestBadCursors(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	for _, cursor := range []string{"x", "i5", "t", "t-1", "t0", "t5; DROP", "tzzzzzzzzzzzzzzzzz"} {
		if _, _, err := db.Transitions(t.Context(), breaker.Filter{Cursor: cursor}); !errors.Is(err, store.ErrBadCursor) {
			t.Errorf("transitions after %q: %v", cursor, err)
		}
	}
	if _, _, err := db.Incidents(t.Context(), breaker.Filter{Cursor: "t5"}); !errors.Is(err, store.ErrBadCursor) {
		t.Errorf("incidents after a cursor of transitions: %v", err)
	}
	for _, id := range []uint64{5, 1<<63 + 5} {
		if _, ok, err := db.Incident(t.Context(), id); ok || err != nil {
			t.Errorf("incident %d: %v, %v; want none", id, ok, err)
		}
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db := storetest.Open(t, url)
	f := &feed{}
	j := journal(t, db, f)
	f.transitions(tripOf("open", 1), trip(2), step(3, breaker.Open, breaker.Closed, breaker.ReasonReset, 0, 2))
	f.put(func(b *breaker.Batch) {
		b.Outcomes = []breaker.Applied{{Labels: gpu, At: at(0), Cause: breaker.OK}, {Labels: gpu, At: at(7200), Cause: breaker.OK}}
		b.Asks = []breaker.Asked{{Labels: gpu, At: at(0), Reason: breaker.AskedGranted, N: 1}}
	})
	flush(t, j, at(3))
	if n, err := db.Prune(t.Context(), at(1_000_000), store.Retention{}); n != 0 || err != nil {
		t.Fatalf("for ever deleted %d rows, %v", n, err)
	}
	if n, err := db.Prune(t.Context(), at(7200), store.Retention{Counts: time.Hour, Transitions: time.Hour}); n != 5 || err != nil {
		t.Errorf("deleted %d rows, %v; want 5", n, err)
	}
	got := one[string](t, connect(t, url), "SELECT concat_ws(' ', (SELECT string_agg(id::text, ',') FROM incidents), (SELECT string_agg(era::text, ',') FROM transitions), (SELECT sum(calls) FROM outcome_counts), (SELECT count(*) FROM permit_counts))")
	if got != "1 1 1 0" {
		t.Errorf("incidents, eras, outcomes, permits left: %s; want 1 1 1 0", got)
	}
}
