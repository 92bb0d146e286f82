package bot

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnswersShareTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(nil)
		var sent []time.Duration
		began := time.Now()
		for range 12 {
			if err := b.await(t.Context(), group, urgentAnswer); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, time.Since(began))
		}
		if sent[1] != 0 || sent[2] < 900*time.Millisecond || sent[11] < 25*time.Second {
			t.Errorf("answers went out after %v", sent)
		}
		// What answers leave is for alerts.
		if wait := b.take(group, urgentAlert); wait != 0 {
			t.Errorf("an alert waits %s behind answers", wait)
		}
		b.pause(group, time.Hour)
		if wait := b.waiting()[group]; wait != time.Hour {
			t.Errorf("a paused chat waits %s", wait)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.await(ctx, group, urgentAnswer); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > sent[11]+time.Minute {
			t.Errorf("an answer to a paused chat: %v", err)
		}
	})
}

func TestBudgetOfAllChats(t *testing.T) {
	t.Parallel()
	c := &clock{t: t0}
	b := NewBudget(c.now)
	n := 0
	for range 1000 { // a second
		for chat := range int64(100) {
			if b.take(1000+chat, urgentAlert) == 0 {
				n++
			}
		}
		c.add(time.Millisecond)
	}
	if n > 30 || n < 25 {
		t.Errorf("%d messages in a second to 100 chats", n)
	}
	if err := (*Budget)(nil).await(t.Context(), 1, urgentEdit); err != nil {
		t.Errorf("no budget: %v", err)
	}
}
