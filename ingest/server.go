package ingest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"breakerbot/breaker"
)

// routes is every call there is: its pattern, the scope that a token needs for
// it, and who answers. The API description in openapi.yaml has the same ones.
var routes = []route{
	{"POST /v1/outcomes", ScopeReport, (*Server).postOutcomes},
	{"POST /v1/permits", ScopeReport, (*Server).postPermits},
	{"POST /v1/permits/{permit}/release", ScopeReport, (*Server).postRelease},
	{"POST /v1/permits/{permit}/extend", ScopeReport, (*Server).postExtend},
	{"POST /v1/route", ScopeReport, (*Server).postRoute},
	{"GET /v1/writes", ScopeReport, (*Server).getWrites},
	{"PUT /v1/writes/{idempotency_key}", ScopeReport, (*Server).putWrite},
	{"GET /v1/writes/{idempotency_key}", ScopeReport, (*Server).getWrite},
	{"GET /v1/circuits", ScopeRead, (*Server).getCircuits},
	{"GET /v1/breakers", ScopeRead, (*Server).getBreakers},
	{"GET /v1/breakers/{name}", ScopeRead, (*Server).getBreaker},
	{"POST /v1/breakers/{name}/reset", ScopeOperate, control(breaker.OpReset)},
	{"POST /v1/breakers/{name}/hold-open", ScopeOperate, control(breaker.OpHoldOpen)},
	{"POST /v1/breakers/{name}/hold-closed", ScopeOperate, control(breaker.OpHoldClosed)},
	{"POST /v1/breakers/{name}/observe", ScopeOperate, control(breaker.OpObserve)},
	{"POST /v1/breakers/{name}/auto", ScopeOperate, control(breaker.OpAuto)},
	{"GET /v1/transitions", ScopeRead, (*Server).getTransitions},
	{"GET /v1/incidents", ScopeRead, (*Server).getIncidents},
	{"GET /v1/digest", ScopeRead, (*Server).getDigest},
	{"GET /v1/rules", ScopeRead, (*Server).getRules},
	{"GET /v1/chains", ScopeRead, (*Server).getChains},
	{"GET /healthz", 0, (*Server).getHealth},
	{"GET /readyz", 0, (*Server).getReady},
	{"GET /metrics", ScopeRead, (*Server).getMetrics},
	{"GET /openapi.yaml", ScopeRead, (*Server).getOpenAPI},
}

// route is one row of the table. An error of the handler becomes a problem.
type route struct {
	pattern string
	scope   Scope // zero: open to everybody
	handle  func(*Server, http.ResponseWriter, *http.Request) error
}

//go:embed openapi.yaml
var openAPI []byte

// DefaultAckTimeout is how long an answer waits for the disk.
const DefaultAckTimeout = 2 * time.Second

// startRetry is when to ask again while the state is not restored, or while
// the journal is full.
const startRetry = time.Second

// Options are what a Server is made of; the zero value serves everybody on
// loopback.
type Options struct {
	Tokens     []Token
	Now        func() time.Time     // nil: time.Now
	Log        *slog.Logger         // nil: nothing is logged
	Registry   *prometheus.Registry // nil: an own one
	MaxSeries  int                  // of agents' making in the metrics; 0: DefaultMaxSeries
	Version    string
	AckTimeout time.Duration // 0: DefaultAckTimeout
	StartOpen  bool          // whether permits and routes are allowed before Open
	Rate       float64       // requests a second of one token; 0: DefaultRate
	Burst      int           // 0: DefaultBurst
	// Local tells whether a machine is the lab's own; nil: none is.
	Local func(machine string) bool
	// Canonical maps an alias onto its machine's name; nil: there are none.
	Canonical func(machine string) string
	Gates     *Gates // nil: none
	// Chains answers routes before Open: an engine with the chains and machines
	// of the one to come, and without rules. Nil: there are no chains.
	Chains *breaker.Engine
	// Digest makes the report; nil answers that there is none.
	Digest func(context.Context, DigestRequest) (contentType string, body []byte, err error)
	// Health lists what stands behind the service; its trouble is told and does
	// not make the service unready. Nil lists nothing.
	Health func() []HealthLine
}

// HealthLine is how one part behind the service does.
type HealthLine struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// Core is what answers come from, once the state is restored.
type Core struct {
	Engine  *breaker.Engine
	Journal Journal
	History History
}

// Journal is where the engine's batches go on their way to the disk.
type Journal interface {
	// Wait returns nil once everything up to seq is durable, and ctx's error
	// when that takes longer.
	Wait(ctx context.Context, seq uint64) error
	// Full tells that no more outcomes can be queued.
	Full() bool
}

// History reads what the engine has forgotten. An error with a method
// BadCursor() bool that says true is the caller's.
type History interface {
	Transitions(ctx context.Context, f breaker.Filter) (page []breaker.Transition, next string, err error)
	Incidents(ctx context.Context, f breaker.Filter) (page []breaker.Incident, next string, err error)
}

// Server answers HTTP. It is safe for concurrent use.
type Server struct {
	Options
	decoder Decoder
	keeper  *keeper
	metrics *metrics
	scrape  http.Handler
	paths   []string
	core    atomic.Pointer[Core]
}

// New makes a server that is not ready: until Open it only tells that. It
// panics when the registry has collectors of the same names already.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.AckTimeout <= 0 {
		o.AckTimeout = DefaultAckTimeout
	}
	s := &Server{Options: o, decoder: Decoder{Local: o.Local, Canonical: o.Canonical, Gates: o.Gates}, keeper: newKeeper(o.Tokens, o.Rate, o.Burst)}
	s.Tokens = nil // their secrets are not needed any more
	if s.Chains == nil {
		s.Chains, _ = breaker.New(breaker.Config{}) // of nothing: there is nothing wrong with it
	}
	m, err := newMetrics(o.Registry, o.MaxSeries, o.Version, func() ([]breaker.View, time.Time) {
		core := s.core.Load()
		if core == nil {
			return nil, time.Time{}
		}
		now := s.Now()
		return core.Engine.Breakers(now, breaker.Labels{}), now
	}, func() float64 {
		core := s.core.Load()
		if core == nil {
			return 0
		}
		return float64(core.Engine.WritesInDoubt(s.Now()))
	})
	if err != nil {
		panic(fmt.Sprintf("register metrics: %v", err))
	}
	s.metrics = m
	s.scrape = promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn)})
	for _, r := range routes {
		_, path, _ := strings.Cut(r.pattern, " ")
		if !slices.Contains(s.paths, path) {
			s.paths = append(s.paths, path)
		}
	}
	return s
}

// Open makes the server ready. It may be called once, after the state has been
// restored.
func (s *Server) Open(core Core) { s.core.Store(&core) }

// ready gives the core, or the problem that says that it is not there yet.
func (s *Server) ready() (*Core, error) {
	if core := s.core.Load(); core != nil {
		return core, nil
	}
	return nil, newProblem(http.StatusServiceUnavailable, "%s", notReady).retryAfter(startRetry)
}

const notReady = "the state is not restored yet"

// Handler is the whole API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.Handle(r.pattern, s.serve(r))
	}
	mux.Handle("/", s.serve(route{"", 0, func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.notFound(mux, r) }}))
	return mux
}

// HTTPServer is a server for h with time-outs against clients that dawdle. A
// handler that streams has to move its own write deadline.
func HTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// notFound says which paths there are, or which methods this one has.
func (s *Server) notFound(mux *http.ServeMux, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := *r
		probe.Method = method
		if _, pattern := mux.Handler(&probe); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		list := strings.Join(allowed, ", ")
		return newProblem(http.StatusMethodNotAllowed, "%s is not possible here: %s is", excerpt(r.Method), list).with("Allow", list)
	}
	p := newProblem(http.StatusNotFound, "there is nothing at %s: the paths that exist are listed", excerpt(r.URL.Path))
	p.Paths = s.paths
	return p
}

// serve wraps a route's handler: it admits, recovers, maps errors, measures
// and logs. Logs name the route and never the path, which may hold a permit.
func (s *Server) serve(rt route) http.Handler {
	label := rt.pattern
	if label == "" {
		label = otherLabel
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := s.Now()
		rec := &recorder{ResponseWriter: w}
		who := ""
		var failure error
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				s.Log.Error("request panicked", "route", label, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				if rec.status == 0 {
					asProblem(errors.New("panic")).write(rec)
				}
			}
			took := s.Now().Sub(start)
			s.metrics.http.WithLabelValues(label, strconv.Itoa(rec.code())).Observe(took.Seconds())
			if s.Log.Enabled(r.Context(), slog.LevelDebug) {
				attrs := []any{"route", label, "method", r.Method, "status", rec.code(), "took", took, "remote", r.RemoteAddr}
				if who != "" {
					attrs = append(attrs, "token", who)
				}
				if failure != nil {
					attrs = append(attrs, "problem", failure)
				}
				s.Log.Debug("request", attrs...)
			}
		}()
		rec.Header().Set("X-Content-Type-Options", "nosniff")
		rec.Header().Set("Cache-Control", "no-store")
		h, reason, err := s.keeper.admit(r, rt.scope, start)
		if h != nil {
			who = h.name
			r = r.WithContext(context.WithValue(r.Context(), holderKey{}, h))
		}
		if reason != "" {
			s.Log.Warn("request refused", "route", label, "reason", reason, "remote", r.RemoteAddr, "token", who)
		}
		if err == nil {
			if _, bad := url.ParseQuery(r.URL.RawQuery); bad != nil {
				err = newProblem(http.StatusBadRequest, "the query cannot be read: %s", bad)
			}
		}
		if err == nil {
			err = rt.handle(s, rec, r)
		}
		if err == nil {
			return
		}
		failure = err
		p := asProblem(err)
		if p.Status == http.StatusInternalServerError && r.Context().Err() == nil {
			s.Log.Error("request failed", "route", label, "error", err)
		}
		if rec.status == 0 {
			p.write(rec)
		}
	})
}

type holderKey struct{}

// actor is the name of the token that makes the request.
func actor(r *http.Request) string {
	if h, ok := r.Context().Value(holderKey{}).(*holder); ok {
		return h.name
	}
	return ""
}

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

// HealthBody is the answer of healthz and readyz.
type HealthBody struct {
	Status  string       `json:"status"` // ok, ready
	Version string       `json:"version,omitempty"`
	Checks  []HealthLine `json:"checks,omitempty"`
}

func (s *Server) getHealth(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, HealthBody{Status: "ok", Version: s.Version})
}

func (s *Server) getReady(w http.ResponseWriter, _ *http.Request) error {
	if _, err := s.ready(); err != nil {
		return err
	}
	body := HealthBody{Status: "ready", Version: s.Version}
	if s.Health != nil {
		body.Checks = s.Health()
	}
	return writeJSON(w, http.StatusOK, body)
}

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request) error {
	s.scrape.ServeHTTP(w, r)
	return nil
}

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	w.Write(openAPI)
	return nil
}
