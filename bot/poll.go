package bot

import (
	"context"
	"encoding/json"
	"log/slog"
	"runtime/debug"
	"time"
)

// handleTimeout bounds what one update may take; the next one waits for it.
const handleTimeout = 30 * time.Second

// PollerConfig is what a poller is made of.
type PollerConfig struct {
	Telegram *Telegram
	Commands *Commands
	Log      *slog.Logger
	Clock    func() time.Time // nil: time.Now
}

// Poller fetches what people send and hands it to the commands: one update
// after the other, each confirmed only once it has been handled. At start it
// waits for Telegram as long as it takes.
type Poller struct {
	cfg PollerConfig

	// floor is the shortest time between two polls that bring nothing, for a
	// server that does not wait.
	floor time.Duration
	// pause and pauseMax are the first and the longest rest after trouble;
	// unusable is the rest while the configuration is wrong.
	pause, pauseMax, unusable time.Duration
}

// NewPoller makes a poller.
func NewPoller(cfg PollerConfig) *Poller {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Poller{
		cfg: cfg, floor: 300 * time.Millisecond,
		pause: 5 * time.Second, pauseMax: time.Minute, unusable: 5 * time.Minute,
	}
}

// Run polls until the context is done, which also ends a poll in flight. Only
// one poller of a token may run at a time: another one gets this one a 409,
// on which it rests and tries again.
func (p *Poller) Run(ctx context.Context) {
	if !p.join(ctx) {
		return
	}
	var (
		offset   int64
		lastSeen time.Time // of an update
		failures int
		lastWas  trouble
	)
	for ctx.Err() == nil {
		began := p.cfg.Clock()
		// After a week without updates the next number may be lower.
		if offset != 0 && began.Sub(lastSeen) > 6*24*time.Hour {
			offset = 0
		}
		list, err := p.cfg.Telegram.updates(ctx, offset, pollFor)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			now := troubleOf(err)
			if failures++; now != lastWas {
				p.cfg.Log.Warn("polling telegram fails, tried again with rests", "error", err)
			}
			lastWas = now
			if !p.rest(ctx, err, failures) {
				return
			}
			continue
		}
		if failures > 0 {
			p.cfg.Log.Info("polling telegram works again", "failures", failures)
			failures, lastWas = 0, troubleNone
		}
		for _, raw := range list {
			id, ok := p.handle(ctx, raw)
			if ctx.Err() != nil {
				return // perhaps half handled: it comes again
			}
			if ok {
				offset, lastSeen = id+1, p.cfg.Clock()
			}
		}
		if len(list) == 0 {
			if !sleep(ctx, p.floor-p.cfg.Clock().Sub(began)) {
				return
			}
		}
	}
}

// join waits for Telegram to answer who we are, and registers the commands;
// that they cannot be registered is no reason not to start.
func (p *Poller) join(ctx context.Context) bool {
	for failures := 0; ; {
		err := p.cfg.Telegram.Ping(ctx)
		if err == nil {
			break
		}
		if failures++; failures == 1 && ctx.Err() == nil {
			p.cfg.Log.Warn("telegram does not answer yet, joined later", "error", err)
		}
		if !p.rest(ctx, err, failures) {
			return false
		}
	}
	health := p.cfg.Telegram.Health()
	p.cfg.Log.Info("telegram joined", "bot", "@"+health.Username)
	if err := p.cfg.Telegram.setCommands(ctx, commandList); err != nil && ctx.Err() == nil {
		p.cfg.Log.Warn("commands cannot be registered, they work all the same", "error", err)
	}
	return ctx.Err() == nil
}

// rest waits as the error deserves; false when the context has ended.
func (p *Poller) rest(ctx context.Context, err error, failures int) bool {
	wait := backoff(failures, p.pause, p.pauseMax)
	switch troubleOf(err) {
	case troubleWebhook:
		if err := p.cfg.Telegram.deleteWebhook(ctx); err == nil {
			p.cfg.Log.Warn("a webhook was set for this token and is deleted: this bot polls")
			wait = 0
			if failures > 3 {
				wait = p.pauseMax // somebody sets it again
			}
		}
	case troubleConfig:
		wait = p.unusable
	case troubleLimited:
		wait = retryAfter(err)
	case troubleOffline:
		wait = backoff(failures, p.pause/5, p.pauseMax)
	}
	return sleep(ctx, wait)
}

// handle does one update. It gives its number, and false when it has none: then
// there is nothing to confirm it by.
func (p *Poller) handle(ctx context.Context, raw json.RawMessage) (id int64, ok bool) {
	var number struct {
		ID int64 `json:"update_id"`
	}
	if err := json.Unmarshal(raw, &number); err != nil || number.ID == 0 {
		p.cfg.Log.Error("update without a number skipped", "bytes", len(raw))
		return 0, false
	}
	id, ok = number.ID, true // whatever comes of it: it must not block the others
	var u update
	if err := json.Unmarshal(raw, &u); err != nil {
		p.cfg.Log.Error("update that cannot be read skipped", "update", number.ID, "error", err)
		return id, ok
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			p.cfg.Log.Error("update skipped after a panic", "update", number.ID, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	p.cfg.Commands.handle(ctx, p.cfg.Clock(), u)
	return id, ok
}

// sleep waits; false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
