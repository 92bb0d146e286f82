package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"breakerbot/ingest"
)

const (
	// healthLimit is how long one health check may take: at the start, where all
	// are asked side by side, it is also how long all of them take.
	healthLimit = 2 * time.Second
	// healthEvery is the time between two rounds of checks of what is open.
	healthEvery = 5 * time.Second
	// healthAtOnce bounds the checks of a round that run at the same time.
	healthAtOnce = 16
	// maxHealthHeader bounds the header of an answer; its body is not read.
	maxHealthHeader = 64 << 10
)

// healthEngine is what health checks need of breaker.Engine.
type healthEngine interface {
	BootCheck(now time.Time, machine string, answered bool, detail string) (opened []string, seq uint64)
	Unreachable(now time.Time, machines []string) []string
	HealthAnswered(now time.Time, machine string) (earlier bool, seq uint64)
}

// healthChecks asks machines whether they are there: all of them once at the
// start, afterwards those whose reachability breaker waits. An answer makes a
// probe due and closes nothing; a silence opens something at the start only.
type healthChecks struct {
	engine   healthEngine
	urls     map[string]Secret // by machine
	machines []string
	client   *http.Client
	now      func() time.Time
	log      *slog.Logger
}

func newHealthChecks(engine healthEngine, urls map[string]Secret, now func() time.Time, log *slog.Logger) *healthChecks {
	return &healthChecks{
		engine: engine, urls: urls, machines: sorted(urls), now: now, log: log,
		client: &http.Client{
			// A proxy of the environment's would answer for machines that are not
			// there, and a connection kept from before would not show that the machine
			// takes new ones. A redirect is an answer: where it leads is not asked.
			Transport: &http.Transport{
				DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHealthHeader,
				DialContext: (&net.Dialer{Timeout: healthLimit}).DialContext, TLSHandshakeTimeout: healthLimit,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// boot asks all machines, in healthLimit, and opens the breakers of those that
// do not answer; any answer in HTTP will do. When ctx ends first, it does
// nothing.
func (h *healthChecks) boot(ctx context.Context) {
	if len(h.machines) == 0 {
		return
	}
	began := h.now()
	failures := make([]error, len(h.machines))
	var asked sync.WaitGroup
	for i, machine := range h.machines {
		asked.Go(func() { _, failures[i] = h.ask(ctx, machine) })
	}
	asked.Wait()
	if ctx.Err() != nil {
		return
	}
	now, answered := h.now(), 0
	for i, machine := range h.machines {
		if failures[i] == nil {
			answered++
			continue
		}
		opened, _ := h.engine.BootCheck(now, machine, false, failures[i].Error())
		h.log.Warn("the health check is not answered", "machine", machine, "error", failures[i], "opened", strings.Join(opened, " "))
	}
	h.log.Info("health checks asked", "machines", len(h.machines), "answered", answered, "took", now.Sub(began).Round(time.Millisecond))
}

// round asks the machines whose reachability breaker waits for its next probe,
// and makes the probe due for those that answer without a fault of their own.
func (h *healthChecks) round(ctx context.Context) {
	var asked sync.WaitGroup
	free := make(chan struct{}, healthAtOnce)
	for _, machine := range h.engine.Unreachable(h.now(), h.machines) {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		asked.Go(func() {
			defer func() { <-free }()
			status, err := h.ask(ctx, machine)
			if err != nil || status >= http.StatusInternalServerError {
				return
			}
			if earlier, _ := h.engine.HealthAnswered(h.now(), machine); earlier {
				h.log.Info("the health check is answered again: a probe is due", "machine", machine, "status", status)
			}
		})
	}
	asked.Wait()
}

// ask gives the status of the machine's answer. Errors do not show the address,
// which may hold a password.
func (h *healthChecks) ask(ctx context.Context, machine string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, string(h.urls[machine]), nil)
	if err != nil {
		return 0, errors.New("the address cannot be asked")
	}
	req.Header.Set("User-Agent", "breakerbot/"+version())
	resp, err := h.client.Do(req)
	if err != nil {
		return 0, healthError(err)
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// healthError is why nothing answered, without the address. Of what the machine
// said instead of HTTP nothing is told: it may repeat the path or the header.
func healthError(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return errors.New("no answer within " + healthLimit.String())
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	network, isNetwork := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the connection was closed without an answer")
	case isNetwork:
		return errors.New(ingest.Evidence(network.Error()))
	case strings.HasPrefix(err.Error(), "tls: "), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New(ingest.Evidence(err.Error()))
	}
	return errors.New("the answer is not HTTP, or has too long a header")
}
