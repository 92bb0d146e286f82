package bot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// lookAgain is when an idle sender looks into its outbox again, if nobody
	// wakes it and the outbox cannot tell what comes next.
	lookAgain = time.Second
	// repeatEvery is the shortest time between two sendings of a message whose
	// fate is unknown.
	repeatEvery = time.Minute
	// expireAfter is how old a digest, notice, answer or reminder, or a trip
	// that is over, may get before it is told no more.
	expireAfter = 24 * time.Hour
	// probeChat is how long a chat rests in which the bot may not write.
	probeChat = 10 * time.Minute
	// settleTimeout bounds the writing down of what became of a message, also
	// while the service stops.
	settleTimeout = 5 * time.Second
)

// backoff is how long to wait after a number of failures in a row, from first,
// doubled each time up to last.
func backoff(failures int, first, last time.Duration) time.Duration {
	d := first
	for range failures - 1 {
		if d *= 2; d >= last {
			return last
		}
	}
	return min(d, last)
}

// SenderConfig is what a sender is made of.
type SenderConfig struct {
	Outbox    Outbox
	Messenger Messenger
	Roster    *Roster
	Budget    *Budget // shared with the commands; nil: no limits
	// Manner is AlertConfig's: whether a trip or long-open message sounds is
	// decided when it is sent, by the incidents it then tells of.
	Manner MannerFunc
	Zone   *time.Location   // of printed times; nil: UTC
	Clock  func() time.Time // real time, for waiting; nil: time.Now
	Log    *slog.Logger
}

// Sender empties the outbox: it claims what is due, most urgent first, renders,
// sends or edits, and settles. A message is delivered at least once; one whose
// fate is unknown is repeated with a mark once the service answers again, at
// most once a minute. One goroutine calls Step or Run; Wake and Health may be
// called from anywhere.
type Sender struct {
	cfg   SenderConfig
	words wording
	wake  chan struct{}

	// Of the goroutine that steps, on real time:
	hold     time.Time // no request before
	failures int       // in a row, of the connection or the configuration
	doubt    bool      // the fate of a request is unknown: ask getMe first

	mu   sync.Mutex
	last error // of the outbox
}

// NewSender makes a sender. It also lets the roster store moves of chats.
func NewSender(cfg SenderConfig) *Sender {
	if cfg.Zone == nil {
		cfg.Zone = time.UTC
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Roster == nil {
		cfg.Roster = NewRoster(nil, nil)
	}
	if cfg.Roster.Moved == nil {
		cfg.Roster.Moved = cfg.Outbox.ChatMoved
	}
	return &Sender{cfg: cfg, words: wording{zone: cfg.Zone}, wake: make(chan struct{}, 1)}
}

// Wake lets Run look into the outbox at once. It never blocks.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Err is the last error of the outbox, nil while it works.
func (s *Sender) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Run steps on the real clock until the context is done. A message being sent
// then is settled before it returns.
func (s *Sender) Run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		now := s.cfg.Clock()
		next, err := s.Step(ctx, now)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if failures++; failures == 1 {
				s.cfg.Log.Error("outbox is not usable, messages wait", "error", err)
			}
			next = s.cfg.Clock().Add(backoff(failures, time.Second, 30*time.Second))
		case failures > 0:
			s.cfg.Log.Info("outbox is usable again")
			failures = 0
		}
		timer := time.NewTimer(max(next.Sub(s.cfg.Clock()), 0))
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Step sends everything that is due at now and may be sent, and tells when it
// is worth calling again. Waiting for Telegram's limits, or for a service that
// is away, runs on real time and is added to now. The error is the outbox's:
// trouble with Telegram is settled there.
func (s *Sender) Step(ctx context.Context, now time.Time) (next time.Time, err error) {
	defer func() {
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
	}()
	for ctx.Err() == nil {
		if wait := s.hold.Sub(s.cfg.Clock()); wait > 0 {
			return now.Add(wait), nil
		}
		if s.doubt && !s.ping(ctx) {
			continue
		}
		if wait := s.cfg.Budget.full(); wait > 0 {
			return now.Add(wait), nil
		}
		waiting := s.cfg.Budget.waiting()
		skip := s.cfg.Roster.skip(waiting)
		claimed, err := s.cfg.Outbox.Claim(ctx, now, 1, skip)
		if err != nil {
			return now.Add(lookAgain), fmt.Errorf("claim message: %w", err)
		}
		if len(claimed) == 0 {
			return s.next(ctx, now, skip, waiting)
		}
		for _, m := range claimed {
			settled := s.one(ctx, now, m)
			if err := s.settle(ctx, now, m, settled); err != nil {
				return now.Add(lookAgain), err
			}
		}
	}
	return now.Add(lookAgain), ctx.Err()
}

func (s *Sender) next(ctx context.Context, now time.Time, skip []int64, waiting map[int64]time.Duration) (time.Time, error) {
	var next time.Time
	if outbox, ok := s.cfg.Outbox.(NextDuer); ok {
		due, err := outbox.NextDue(ctx, skip)
		if err != nil {
			return now.Add(lookAgain), fmt.Errorf("look for the next message: %w", err)
		}
		if next = due; next.IsZero() {
			next = now.Add(time.Minute)
		}
	} else {
		next = now.Add(lookAgain)
	}
	for _, wait := range waiting {
		if t := now.Add(wait); t.Before(next) {
			next = t
		}
	}
	if next.Before(now) {
		next = now
	}
	return next, nil
}

// ping asks for a definite answer before anything is sent again.
func (s *Sender) ping(ctx context.Context) bool {
	err := s.cfg.Messenger.Ping(ctx)
	if err == nil {
		s.doubt, s.failures = false, 0
		return true
	}
	s.rest(err)
	return false
}

// rest keeps all chats waiting because of trouble that is not one chat's.
func (s *Sender) rest(err error) {
	s.failures++
	wait := backoff(s.failures, time.Second, time.Minute)
	switch troubleOf(err) {
	case troubleConfig:
		// Only a new configuration helps; a token that was being changed may
		// work again.
		wait = backoff(s.failures, time.Minute, 10*time.Minute)
	case troubleLimited:
		wait = retryAfter(err)
	}
	if s.failures == 1 {
		s.cfg.Log.Warn("telegram is not usable, messages wait", "error", err)
	}
	s.hold = s.cfg.Clock().Add(wait)
}

// one makes of a claimed message what can be made of it now.
func (s *Sender) one(ctx context.Context, now time.Time, m Message) Settlement {
	// Whatever may have been delivered already stays so, however long it waits.
	set := Settlement{ID: m.ID, Version: m.Version, Status: StatusPending}
	if m.Repeat && m.Kind != KindUpdate {
		set.Status = StatusUnknown
	}
	out, verdict, err := s.render(ctx, now, m)
	if err != nil {
		set.NextAt, set.Error = now.Add(backoff(m.Attempts+1, time.Second, time.Minute)), err.Error()
		return set
	}
	if verdict != "" {
		set.Status = verdict
		return set
	}
	chat, _ := s.cfg.Roster.address(m.ChatID, m.Thread)
	if wait := s.cfg.Budget.take(chat, m.Kind.urgency()); wait > 0 {
		set.NextAt = now.Add(wait)
		return set
	}
	edit := int64(0)
	if m.Kind == KindUpdate {
		edit = m.MessageID
	}
	first := true
	each := func() {
		if !first {
			s.cfg.Budget.spend(out.Chat)
		}
		first = false
	}
	id, err := deliver(ctx, s.cfg.Messenger, &out, edit, s.cfg.Roster, each)
	if edit != 0 && troubleOf(err) == troubleEditGone {
		// At most one new message in its place, since nothing edits it later.
		if err := s.forget(ctx, m.Target); err != nil {
			set.NextAt, set.Error = now.Add(time.Second), err.Error()
			return set
		}
		out.Silent = true
		id, err = deliver(ctx, s.cfg.Messenger, &out, 0, s.cfg.Roster, each)
	}
	s.judge(ctx, now, m, out, id, err, &set)
	return set
}

// judge turns the answer into what becomes of the message.
func (s *Sender) judge(ctx context.Context, now time.Time, m Message, out Outgoing, id int64, err error, set *Settlement) {
	log := s.cfg.Log.With("kind", m.Kind, "chat", out.Chat, "alert", out.Ref)
	if err != nil {
		set.Error = err.Error()
	}
	switch troubleOf(err) {
	case troubleNone:
		s.failures = 0
		set.Status, set.MessageID = StatusDelivered, id
		log.Info("message delivered", "message_id", id, "silent", out.Silent, "repeat", m.Repeat)
	case troubleUnknown:
		s.doubt = true
		s.rest(err)
		set.NextAt = now.Add(repeatEvery)
		if m.Kind != KindUpdate { // an edit made twice is the same edit
			set.Status = StatusUnknown
			log.Warn("message is perhaps delivered, to be repeated", "error", err)
		}
	case troubleOffline, troubleConfig:
		s.rest(err)
		set.NextAt = now.Add(max(s.hold.Sub(s.cfg.Clock()), time.Second))
	case troubleLimited:
		wait := retryAfter(err)
		s.cfg.Budget.pause(out.Chat, wait)
		set.NextAt = now.Add(wait)
		log.Warn("telegram says to wait", "wait", wait)
	case troubleRights:
		s.cfg.Budget.pause(out.Chat, probeChat)
		set.NextAt = now.Add(probeChat)
		log.Warn("the bot may not write in this chat, tried again slowly", "error", err)
	case troubleChat:
		set.NextAt = now
		if s.cfg.Roster.lose(out.Chat, err.Error()) {
			log.Error("chat cannot be reached and is out until it gives a sign of life", "error", err)
		}
	case troubleMoved:
		set.NextAt = now
		to := moveOf(err)
		if to == 0 || s.cfg.Roster.move(ctx, out.Chat, to) != nil {
			set.NextAt = now.Add(time.Minute)
		}
	default:
		set.Status = StatusFailed
		log.Error("message is refused", "error", err)
	}
}

// render makes the message; a status instead says that there is nothing to send.
func (s *Sender) render(ctx context.Context, now time.Time, m Message) (Outgoing, Status, error) {
	out := Outgoing{Chat: m.ChatID, Thread: m.Thread, Silent: m.Payload.Silent, HTML: m.Payload.Text, Photo: m.Payload.Photo, At: now}
	old := !m.CreatedAt.IsZero() && now.Sub(m.CreatedAt) > expireAfter
	if m.Alert == 0 || m.Payload.Text != "" {
		switch {
		case old:
			return out, StatusExpired, nil
		case out.HTML == "" && len(out.Photo) == 0:
			return out, StatusFailed, nil
		}
		limit := MaxText
		if len(out.Photo) > 0 {
			limit = MaxCaption
		}
		if m.Repeat {
			out.HTML = "(repeat) " + out.HTML
		}
		out.HTML = Shorten(out.HTML, limit)
		return out, "", nil
	}
	facts, err := s.cfg.Outbox.Facts(ctx, now, m.Alert, m.ChatID)
	if err != nil {
		return out, "", fmt.Errorf("read facts of alert %d: %w", m.Alert, err)
	}
	var text rendered
	switch m.Kind {
	case KindLongOpen:
		if len(openOf(facts.Incidents)) == 0 && !m.Repeat {
			return out, StatusExpired, nil // over before it could be told
		}
		text = s.words.longOpen(facts, m.Payload.Step, now, m.Repeat)
		out.ReplyTo = facts.TripMessage
	case KindUpdate:
		if m.MessageID == 0 {
			return out, StatusExpired, nil
		}
		if m.Payload.Step != 0 {
			text = s.words.longOpen(facts, m.Payload.Step, now, false)
		} else {
			text = s.words.trip(facts, now, false, false)
		}
	default:
		text = s.words.trip(facts, now, m.Repeat, !m.Repeat)
	}
	if old && text.closed && m.Kind != KindUpdate {
		return out, StatusExpired, nil
	}
	out.HTML, out.Buttons, out.Ref = text.html, text.buttons, facts.ref()
	out.Silent = text.closed || !s.sounds(facts)
	return out, "", nil
}

// sounds tells whether an open incident is of a rule that sounds.
func (s *Sender) sounds(f AlertFacts) bool {
	for _, inc := range openOf(f.Incidents) {
		if s.cfg.Manner.of(inc.Rule, inc.Labels).Level == LevelSound {
			return true
		}
	}
	return false
}

// settle writes down what became of a message, also when the context has ended
// meanwhile: otherwise the message would count as perhaps delivered.
func (s *Sender) settle(ctx context.Context, now time.Time, m Message, set Settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := s.cfg.Outbox.Settle(ctx, now, set); err != nil {
		return fmt.Errorf("settle message %d as %s: %w", m.ID, set.Status, err)
	}
	return nil
}

func (s *Sender) forget(ctx context.Context, target int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := s.cfg.Outbox.ForgetMessage(ctx, target); err != nil {
		return fmt.Errorf("forget message of %d: %w", target, err)
	}
	return nil
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
