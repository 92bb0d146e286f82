package ingest

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Scope is a set of things that a token may do. The zero value may nothing,
// and is what the open routes ask for.
type Scope uint8

// The scopes.
const (
	ScopeReport  Scope = 1 << iota // outcomes, permits, routes, writes
	ScopeRead                      // every GET
	ScopeOperate                   // controls
)

var scopeNames = []string{"report", "read", "operate"}

// String is the scopes' words joined by +, as in the configuration.
func (s Scope) String() string {
	var names []string
	for i, name := range scopeNames {
		if s>>i&1 == 1 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// ParseScope reads scope words; the error for an unknown one lists them.
func ParseScope(words ...string) (Scope, error) {
	var scope Scope
next:
	for _, word := range words {
		for i, name := range scopeNames {
			if word == name {
				scope |= 1 << i
				continue next
			}
		}
		return 0, fmt.Errorf("unknown scope %q: known are %s", word, strings.Join(scopeNames, ", "))
	}
	return scope, nil
}

// Token is one client's right of way. Its secret never prints.
type Token struct {
	Name   string // who it is: the actor of controls, and what logs say
	Secret string
	Scope  Scope
}

// String is the name and the scopes, without the secret.
func (t Token) String() string { return t.Name + ":" + redacted + ":" + t.Scope.String() }

// GoString is String, so that no %#v prints a secret.
func (t Token) GoString() string { return t.String() }

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText keeps the secret out of JSON.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// The default rate of one token.
const (
	DefaultRate  = 2000 // requests a second
	DefaultBurst = 4000
)

// holder is a token as it is looked up: its secret is kept as a hash.
type holder struct {
	name    string
	scope   Scope
	hash    [sha256.Size]byte
	limiter *rate.Limiter
}

// keeper decides who may do what.
type keeper struct {
	holders []*holder
	local   *holder // everybody, when there are no tokens
	cross   *http.CrossOriginProtection
	rate    float64
	burst   int
}

func newKeeper(tokens []Token, perSecond float64, burst int) *keeper {
	if perSecond <= 0 {
		perSecond = DefaultRate
	}
	if burst <= 0 {
		burst = max(DefaultBurst, int(2*perSecond))
	}
	k := &keeper{cross: http.NewCrossOriginProtection(), rate: perSecond, burst: burst}
	newHolder := func(name string, scope Scope) *holder {
		return &holder{name: name, scope: scope, limiter: rate.NewLimiter(rate.Limit(perSecond), burst)}
	}
	for _, t := range tokens {
		h := newHolder(t.Name, t.Scope)
		h.hash = sha256.Sum256([]byte(t.Secret))
		k.holders = append(k.holders, h)
	}
	if len(tokens) == 0 {
		k.local = newHolder("local", ScopeReport|ScopeRead|ScopeOperate)
	}
	return k
}

// admit finds the holder that makes the request and checks that it may. The
// reason of a refusal is for the log.
func (k *keeper) admit(r *http.Request, need Scope, now time.Time) (h *holder, reason string, err error) {
	if need == 0 {
		return nil, "", nil
	}
	if err := k.cross.Check(r); err != nil {
		return nil, "cross-origin request", newProblem(http.StatusForbidden, "a page of another origin may not send this")
	}
	if k.local != nil {
		if !loopbackHost(r.Host) {
			return nil, "host is not loopback", newProblem(http.StatusMisdirectedRequest,
				"the host is %q: without tokens only localhost, 127.0.0.1 and [::1] are served; set tokens to serve others", excerpt(r.Host))
		}
		h = k.local
	} else {
		if h, reason = k.find(r); h == nil {
			return nil, reason, newProblem(http.StatusUnauthorized, "%s: send Authorization: Bearer TOKEN", reason).
				with("WWW-Authenticate", `Bearer realm="breakerbot"`)
		}
		if h.scope&need != need {
			return h, "scope missing", newProblem(http.StatusForbidden, "token %s has the scope %s: %s is needed here", h.name, orNone(h.scope), need).
				with("WWW-Authenticate", fmt.Sprintf(`Bearer realm="breakerbot", error="insufficient_scope", scope=%q`, need))
		}
	}
	if !h.limiter.AllowN(now, 1) {
		wait := time.Duration(float64(time.Second) / k.rate)
		return h, "", newProblem(http.StatusTooManyRequests, "%s makes more than %s requests a second (bursts of %d): send outcomes in batches",
			h.name, formatFloat(k.rate), k.burst).retryAfter(wait)
	}
	return h, "", nil
}

func orNone(s Scope) string {
	if s == 0 {
		return "none"
	}
	return s.String()
}

// find looks the bearer token up. It compares hashes, all of them and in
// constant time, so that the time taken says nothing about any secret.
func (k *keeper) find(r *http.Request) (h *holder, reason string) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return nil, "no token was sent"
	}
	scheme, secret, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return nil, "the Authorization header is not of the form Bearer TOKEN"
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(secret)))
	for _, candidate := range k.holders {
		if subtle.ConstantTimeCompare(hash[:], candidate.hash[:]) == 1 {
			h = candidate
		}
	}
	if h == nil {
		return nil, "the token is not known"
	}
	return h, ""
}

// loopbackHost tells whether a Host header names this machine from within. A
// page whose own name is made to resolve to 127.0.0.1 still sends its name.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func formatFloat(f float64) string {
	if f == math.Trunc(f) {
		return itoa(int64(f))
	}
	return fmt.Sprintf("%.1f", f)
}
