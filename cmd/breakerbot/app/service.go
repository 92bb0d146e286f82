package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"breakerbot/bot"
	"breakerbot/breaker"
	"breakerbot/digest"
	"breakerbot/ingest"
	"breakerbot/store"
)

// service is everything that serve runs, put together: the engine between HTTP
// and the journal, the alert policy inside the journal, and behind it the
// outbox with its sender, the commands and the digests. demo puts the same
// together and moves it by hand on a clock of its own.
type service struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	registry *prometheus.Registry
	http     *ingest.Server
	telegram *bot.Telegram // nil: messages are printed
	print    *bot.Terminal // nil: there is a token
	// tick is the time between two ticks of the journal; zero is its own, below
	// zero leaves the ticks to whoever moves the service by hand.
	tick time.Duration

	// Set once the state is restored; mu guards them until then.
	mu      sync.Mutex
	starts  error // why there is no state yet
	db      *store.DB
	engine  *breaker.Engine
	checks  *healthChecks
	alerts  *bot.Alerts // the journal's; for others only while it rests
	journal *store.Journal
	roster  *bot.Roster
	sender  *bot.Sender
	poller  *bot.Poller
	digests *digest.Runner
}

// skippedEras is how far the engine's counter is set ahead at a restart: permits
// of a process that was killed may name eras that it never got to store, and
// those must not be given out again.
const skippedEras = 4096

// printedChat stands for the terminal where there is no token.
const printedChat = 0

// newService puts together what needs no database. Messages go to out when
// there is no Telegram token.
func newService(cfg Config, log *slog.Logger, now func() time.Time, out io.Writer, color bool) (*service, error) {
	s := &service{cfg: cfg, log: log, now: now, registry: prometheus.NewRegistry(), starts: errors.New("starting")}
	if cfg.Telegram.Token == "" {
		s.print = bot.NewTerminal(out, color, cfg.Zone)
		s.cfg.Telegram.Chats = []bot.Chat{{ID: printedChat, Alerts: true, Digest: true}}
	} else {
		var err error
		s.telegram, err = bot.NewTelegram(bot.TelegramConfig{
			Token: string(cfg.Telegram.Token), APIURL: cfg.Telegram.APIURL, Log: log, Registerer: s.registry,
		})
		if err != nil {
			return nil, err
		}
	}
	tokens, err := serverTokens(cfg.Tokens)
	if err != nil {
		return nil, err
	}
	chains, err := cfg.routing()
	if err != nil {
		return nil, err
	}
	s.http = ingest.New(ingest.Options{
		Tokens: tokens, Now: now, Log: log, Registry: s.registry, MaxSeries: cfg.MetricsMaxSeries, Version: version(),
		AckTimeout: cfg.AckTimeout, StartOpen: cfg.StartOpen, Local: isLocal(cfg.Machines),
		Canonical: canonical(cfg.Machines), Gates: cfg.Gates, Chains: chains,
		Digest: s.writeDigest, Health: s.health,
	})
	return s, nil
}

// serverTokens are the configured tokens as the server takes them.
func serverTokens(list []Token) ([]ingest.Token, error) {
	var tokens []ingest.Token
	for _, t := range list {
		scope, err := ingest.ParseScope(t.Scopes...)
		if err != nil {
			return nil, fmt.Errorf("token %s: %w", t.Name, err)
		}
		tokens = append(tokens, ingest.Token{Name: t.Name, Secret: string(t.Secret), Scope: scope})
	}
	return tokens, nil
}

// restore brings back the state from the database, asks the health checks and
// makes the service ready. Beside those the engine is told nothing that it had
// not decided before.
func (s *service) restore(ctx context.Context, db *store.DB) error {
	snap, key, err := db.Load(ctx, s.now(), s.cfg.IDsMax)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	open, err := db.OpenIncidents(ctx)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	moved, err := db.MovedChats(ctx)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	doubtful, err := db.ResumeOutbox(ctx, s.now())
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if doubtful > 0 {
		s.log.Warn("messages were on their way when the last process ended", "messages", doubtful)
	}
	clock := &snap.Clock
	if clock.Seq > 0 {
		clock.Era += skippedEras
	}
	if now := s.now(); now.After(clock.Now) {
		clock.Now = now // what the restore itself brings about happens now
	}
	engine, err := breaker.New(breaker.Config{
		Rules: s.cfg.Rules, Machines: s.cfg.Machines, MaxAge: s.cfg.MaxAge, IDsMax: s.cfg.IDsMax, Key: key,
		Chains: s.cfg.Chains, WatchPermits: true, Record: true,
	})
	if err != nil {
		return err
	}
	if err := engine.Restore(snap); err != nil {
		return err
	}
	schedule, err := digest.ParseSchedule(s.cfg.Digest.Cron)
	if err != nil {
		return err
	}

	manner := bot.Manners(s.cfg.Rules)
	alerts := bot.NewAlerts(bot.AlertConfig{
		GroupWait: s.cfg.Alerts.GroupWait, LongOpen: s.cfg.Alerts.LongOpen,
		Manner: manner, Chats: s.cfg.Telegram.Chats,
	})
	alerts.Restore(open)
	roster := bot.NewRoster(s.cfg.Telegram.Chats, s.cfg.Telegram.Operators)
	roster.Know(moved)
	senderConfig := bot.SenderConfig{
		Outbox: db, Roster: roster, Manner: manner, Zone: s.cfg.Zone, Log: s.log,
		Clock: func() time.Time { return time.Now().In(s.cfg.Zone) }, // "today" begins in that zone
	}
	if s.telegram != nil {
		senderConfig.Messenger, senderConfig.Budget = s.telegram, bot.NewBudget(time.Now)
	} else {
		senderConfig.Messenger = s.print
	}
	sender := bot.NewSender(senderConfig)
	journal := store.NewJournal(store.JournalOptions{
		DB: db, Engine: engine, Policy: logged{alerts, s.log}, Every: s.tick, Advance: engine.Advance, Now: s.now, OnCommit: sender.Wake,
		Log: s.log, Registerer: s.registry, MaxSeries: s.cfg.MetricsMaxSeries,
	})
	runner := &digest.Runner{
		Schedule: schedule, Zone: s.cfg.Zone, Destinations: destinations(s.cfg.Telegram.Chats),
		Source: db, Ledger: waking{db, sender.Wake}, QuietDays: s.cfg.Digest.QuietDays, Log: s.log,
	}

	checks := newHealthChecks(engine, s.cfg.Health, s.now, s.log)
	checks.boot(ctx)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}

	s.mu.Lock()
	s.db, s.engine, s.alerts, s.journal, s.roster, s.sender, s.digests, s.starts = db, engine, alerts, journal, roster, sender, runner, nil
	s.checks = checks
	if s.telegram != nil {
		s.poller = bot.NewPoller(bot.PollerConfig{Telegram: s.telegram, Log: s.log, Commands: bot.NewCommands(bot.CommandsConfig{
			Telegram: s.telegram, Roster: roster, Budget: senderConfig.Budget, Engine: engine, History: db, Facts: db.Facts,
			Digest: s.digestText, Top: func(ctx context.Context, arg string) (string, error) { return runner.Top(ctx, s.now(), arg) },
			Wait: journal.Wait, Wake: sender.Wake, Zone: s.cfg.Zone, Log: s.log,
		})})
	}
	s.mu.Unlock()
	s.http.Open(ingest.Core{Engine: engine, Journal: journal, History: db})
	s.log.Info("state restored", "breakers", len(snap.States), "calls", len(snap.Heard), "open_incidents", len(open), "era", clock.Era)
	return nil
}

// waking is a ledger that wakes the sender when it has stored a digest.
type waking struct {
	digest.Ledger
	wake func()
}

// Store stores the digest and wakes the sender.
func (w waking) Store(ctx context.Context, now time.Time, issue digest.Issue) (bool, error) {
	stored, err := w.Ledger.Store(ctx, now, issue)
	if stored {
		w.wake()
	}
	return stored, err
}

// logged is the alert policy with a line in the log for what trips, what
// closes and what people do; probes are not worth one.
type logged struct {
	*bot.Alerts
	log *slog.Logger
}

// Plan logs the transitions and plans for them.
func (l logged) Plan(transitions []breaker.Transition) bot.Plan {
	for i := range transitions {
		t := &transitions[i]
		switch t.Reason {
		case breaker.ReasonProbeGranted, breaker.ReasonProbePassive, breaker.ReasonProbeFailed, breaker.ReasonProbesLost:
			continue
		}
		attrs := []any{"breaker", t.Breaker, "from", t.From, "to", t.To, "reason", t.Reason}
		for _, a := range [...][2]string{{"detail", t.Detail}, {"actor", t.Actor}} {
			if a[1] != "" {
				attrs = append(attrs, a[0], a[1])
			}
		}
		if t.Incident != 0 {
			attrs = append(attrs, "ref", breaker.Ref(t.Incident))
		}
		if t.Trips() {
			l.log.Warn("tripped", attrs...)
		} else {
			l.log.Info("transition", attrs...)
		}
	}
	return l.Alerts.Plan(transitions)
}

func destinations(chats []bot.Chat) []digest.Destination {
	var list []digest.Destination
	for _, c := range chats {
		if !c.Digest {
			continue
		}
		id := "chat:" + strconv.FormatInt(c.ID, 10)
		if c.Thread != 0 {
			id += "/" + strconv.Itoa(c.Thread)
		}
		list = append(list, digest.Destination{ID: id, ChatID: c.ID, Thread: c.Thread})
	}
	return list
}

// ready gives the parts that exist once the state is restored.
func (s *service) ready() (*digest.Runner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digests, s.starts
}

// writeDigest answers GET /v1/digest.
func (s *service) writeDigest(ctx context.Context, req ingest.DigestRequest) (string, []byte, error) {
	runner, err := s.ready()
	if err != nil {
		return "", nil, err
	}
	report, err := runner.PreviewUntil(ctx, s.now(), req.Until, digest.Last(req.Period))
	if err != nil {
		return "", nil, err
	}
	return formatDigest(report, req.Format)
}

// formatDigest writes a report as text, html or json.
func formatDigest(report digest.Report, format string) (contentType string, body []byte, err error) {
	switch format {
	case "html":
		body, err = digest.HTML(report)
		return "text/html; charset=utf-8", body, err
	case "text":
		return "text/plain; charset=utf-8", []byte(bot.Plain(digest.Text(report)) + "\n"), nil
	default:
		body, err = digest.JSON(report)
		return "application/json", body, err
	}
}

// digestText answers /digest.
func (s *service) digestText(ctx context.Context, arg string) (string, error) {
	period, err := digest.ParsePeriod(arg)
	if err != nil {
		return "", err
	}
	report, err := s.digests.Preview(ctx, s.now(), period)
	if err != nil {
		return "", err
	}
	return digest.Text(report), nil
}

// health tells how what stands behind the service does.
func (s *service) health() []ingest.HealthLine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starts != nil {
		return []ingest.HealthLine{{Name: "database", Detail: s.starts.Error()}}
	}
	lines := []ingest.HealthLine{{Name: "database", OK: true}}
	if err := s.sender.Err(); err != nil {
		lines[0] = ingest.HealthLine{Name: "database", Detail: "messages wait: " + err.Error()}
	}
	if since, away := s.journal.Away(); away {
		lines[0] = ingest.HealthLine{Name: "database", Detail: "away since " + since.UTC().Format(time.RFC3339) + "; transitions wait and are written in order when it is back"}
	}
	if s.telegram == nil {
		return append(lines, ingest.HealthLine{Name: "telegram", OK: true, Detail: "no token: messages are printed"})
	}
	line := ingest.HealthLine{Name: "telegram", OK: true}
	if h := s.telegram.Health(); h.Error != "" {
		line.OK, line.Detail = false, h.Error
	}
	lines = append(lines, line)
	out := s.roster.Out()
	for _, chat := range slices.Sorted(maps.Keys(out)) {
		lines = append(lines, ingest.HealthLine{Name: "chat " + strconv.FormatInt(chat, 10), Detail: out[chat]})
	}
	return lines
}

// waiting sets why there is no state yet, for readyz.
func (s *service) waiting(why error) {
	s.mu.Lock()
	s.starts = why
	s.mu.Unlock()
}
