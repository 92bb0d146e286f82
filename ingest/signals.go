package ingest

import (
	"slices"
	"strings"

	"breakerbot/breaker"
)

// A signal is one row of the table that turns what an agent saw into a cause.
// All conditions that a row states must hold; within one list any entry will
// do. A row without conditions matches everything.
type signal struct {
	status   statuses // zero: any status, and none
	codes    []string // error_type, error_code, or the same out of the error's body; lower case, without the modules before a class; see addCode for underscores
	texts    []string // phrases in the error text; see phrase
	phases   []string
	finishes []string // finish_reason, lower case
	when     func(*seen) bool
	cause    breaker.Cause

	list phraseList // texts, made ready for the search
}

// statuses is a condition on the HTTP status: exact ones, a range, or none at
// all. The zero value holds for everything.
type statuses struct {
	exact    []int
	from, to int  // inclusive
	none     bool // holds when no status came
}

func on(exact ...int) statuses           { return statuses{exact: exact} }
func between(from, to int) statuses      { return statuses{from: from, to: to} }
func (s statuses) orNone() statuses      { s.none = true; return s }
func (s statuses) and(e ...int) statuses { s.exact = append(s.exact, e...); return s }

// unanswered holds for calls without a status or with a 2xx: only then do
// transport words in an error text speak of this call and not of one that a
// gateway made.
var unanswered = between(200, 299).orNone()

// failed holds for error statuses and for none.
var failed = between(400, 599).orNone()

// signals is the whole table, first match wins. The order is: cancelled, error
// codes with their status, known messages, status, phase, what a 200 holds. An
// error inside a 200 goes through the same rows with the status it states.
var signals = ready([]signal{
	// Cancelled: the caller hung up; nobody is to blame.
	{status: on(499), cause: breaker.Cancelled},
	{codes: []string{"err_canceled", "aborterror", "abort_err", "und_err_aborted", "cancelled", "canceled", "cancellederror", "taskcanceledexception", "operationcanceledexception", "cancellationexception",
		"apiuseraborterror", "requestabortederror", "request_cancelled", "request_canceled", "client_cancelled", "clientdisconnect", "keyboardinterrupt"}, when: hungUp, cause: breaker.Cancelled},
	{texts: []string{"context canceled", "context cancelled", "request canceled", "request cancelled", "operation was canceled", "operation was cancelled",
		"operation was aborted", "request was aborted", "aborted by the user", "aborted by user", "user aborted a request", "cancelled by user", "canceled by user",
		"client disconnected", "client closed request", "client closed the connection", "client hung up", "client hang-up", "client has gone away",
		"signal is aborted without reason", "bodystreambuffer was aborted", "task was canceled", "cancellederror", "*canceledexception", "cancelled by client", "canceled by client", "code = canceled"}, when: hungUp, cause: breaker.Cancelled},

	// Too long, whatever the status: several servers call it a server error.
	{codes: []string{"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "contextwindowexceedederror", "input_too_long"}, cause: breaker.ContextOverflow},
	// But what a runner that stopped says of its memory may name the context.
	{status: between(500, 599).orNone(), texts: []string{"runner has unexpectedly stopped", "process has terminated", "requires more system memory", "process no longer running", "cuda out of memory", "outofmemoryerror",
		"cuda error", "*enginedeaderror", "engine dead", "enginecore encountered an issue", "background loop has errored"}, cause: breaker.Crashed},
	{texts: []string{"context length", "context window", "context size", "prompt is too long", "context_length_exceeded", "exceed_context_size_error", "maximum context",
		"input is too long for requested model", "prompt too long", "input token count exceeds", "exceeds the maximum number of tokens", "contextwindowexceedederror",
		"inputs tokens + max_new_tokens", "`inputs` tokens + `max_new_tokens`", "`inputs` must have less than", "too many input tokens", "exceed context limit", "maximum model length",
		"input is too large to process", "maximum input length", "number of tokens in the prompt"}, when: notLoadingModel, cause: breaker.ContextOverflow},

	// The account's money. A short wait beside it means that it is a rate.
	{status: on(402).orNone(), texts: []string{"fewer max_tokens", "can only afford"}, cause: breaker.Unaffordable},
	{status: failed, codes: quotaCodes, when: isRate, cause: breaker.RateLimited},
	{status: failed, codes: quotaCodes, cause: breaker.Quota},
	{status: failed, texts: quotaTexts, when: isRate, cause: breaker.RateLimited},
	{status: failed, texts: quotaTexts, cause: breaker.Quota},
	{status: on(400, 403, 412, 429).orNone(), texts: moneyTexts, when: isRate, cause: breaker.RateLimited},
	{status: on(400, 403, 412, 429).orNone(), texts: moneyTexts, cause: breaker.Quota},
	{status: on(402), when: isRate, cause: breaker.RateLimited},
	{status: on(402), cause: breaker.Quota},

	// What the content says against being answered.
	{status: on(400, 403, 422).orNone(), codes: []string{"content_filter", "content_policy_violation", "contentpolicyviolationerror", "responsibleaipolicyviolation", "content_blocked", "prompt_blocked",
		"invalid_prompt", "datainspectionfailed", "prohibited_content", "moderation_blocked", "contentfilterfinishreasonerror"}, cause: breaker.ContentBlocked},
	{status: on(400, 403, 422).orNone(), texts: []string{"content_filter", "content management policy", "content filtering policy", "response was filtered", "prompt was filtered", "safety system", "contentpolicyviolationerror", "content_policy_violation",
		"usage policy", "flagged as potentially violating", "your input was flagged"}, cause: breaker.ContentBlocked},

	// Full queues and overload: capacity, not breakage.
	{status: on(429), codes: []string{"overloaded"}, cause: breaker.QueueFull},
	{status: on(429), when: localMoment, cause: breaker.QueueFull},
	{status: on(503, 500, 429).orNone(), texts: []string{"maximum pending requests", "server busy, please try again", "queue is full", "queue full", "queue_full", "too many queued requests", "no slot available", "no slots available", "model too busy"}, cause: breaker.QueueFull},
	{status: on(529), cause: breaker.Overloaded},
	{status: failed, codes: []string{"overloadederror", "server_is_overloaded", "serveroverloaded", "1305", "engine_overloaded", "engine_overloaded_error", "modelnotreadyexception"}, cause: breaker.Overloaded},
	{status: on(503), codes: []string{"unavailable", "slow_down"}, cause: breaker.Overloaded},
	{status: on(503).orNone(), codes: []string{"overloaded"}, cause: breaker.Overloaded},
	{status: on(503, 500).orNone(), texts: []string{"server overloaded", "is overloaded", "is currently overloaded", "are currently overloaded", "overloaded_error", "server_is_overloaded", "experiencing high demand"}, cause: breaker.Overloaded},
	{status: on(503, 500).orNone(), when: onlyOverloaded, cause: breaker.Overloaded},
	{status: on(503), when: saysUnavailable, cause: breaker.Overloaded},

	// A model on its way into memory.
	{status: on(503).orNone(), texts: []string{"loading model", "model is loading", "is currently loading", "still loading", "process is not ready", "model not ready"}, cause: breaker.Loading},
	{status: on(503).orNone(), codes: []string{"model_loading", "model_not_ready"}, cause: breaker.Loading},

	// A runner that does not come up. It says "timed out" of its own start, not of us.
	{status: between(500, 599).and(400).orNone(), texts: []string{"model has crashed", "insufficient system resources"}, cause: breaker.Crashed},
	{status: between(500, 599).orNone(), when: startTimedOut, cause: breaker.ServerError},

	// Models that are not there, or not any more.
	{status: on(400, 404).orNone(), codes: []string{"modelnotfound", "invalid_model", "model_not_supported", "model_not_available", "deploymentnotfound", "modelnotfounderror", "model_decommissioned"}, cause: breaker.ModelMissing},
	{status: on(404), texts: []string{"no running instances"}, cause: breaker.Unavailable},
	{status: on(400, 404).orNone(), codes: []string{"not_found_error", "resourcenotfoundexception"}, when: noOtherThing, cause: breaker.ModelMissing},
	{status: on(400, 404).orNone(), texts: []string{"no such model", "unknown model", "is not a valid model", "invalid model name", "no models loaded", "no endpoints found for", "deployment for this resource does not exist", "could not resolve the foundation model"}, cause: breaker.ModelMissing},
	{status: on(400, 404).orNone(), when: saysModelMissing, cause: breaker.ModelMissing},

	// Keys, by code: some answer 400 for a bad one.
	{status: on(400, 401).orNone(), codes: []string{"invalid_api_key", "api_key_invalid", "authenticationerror", "unauthenticated", "invalid_authentication", "unauthorized", "unauthorizedexception",
		"unrecognizedclientexception", "expiredtokenexception", "refresherror", "invalid_grant"}, cause: breaker.Auth},
	{status: on(400).orNone(), texts: []string{"invalid api key", "incorrect api key", "api key not valid", "api_key_invalid", "invalid x-api-key", "authenticationerror", "no api key provided", "401 unauthorized", "invalid_grant"}, cause: breaker.Auth},
	{status: on(403).orNone(), codes: []string{"permission_error", "permissiondenied", "permissiondeniederror", "forbidden", "accessdeniedexception", "unsupported_country_region_territory"}, cause: breaker.Forbidden},
	{status: statuses{none: true}, texts: []string{"403 forbidden", "permissiondeniederror", "permission denied for model"}, cause: breaker.Forbidden},

	// Rates, by code and word where no status came.
	{status: on(429).orNone(), codes: []string{"rate_limit_exceeded", "ratelimiterror", "resourceexhausted", "toomanyrequests", "throttlingexception", "throttling", "slow_down", "1302", "429"}, cause: breaker.RateLimited},
	{status: statuses{none: true}, texts: []string{"too many requests", "rate limit", "rate-limit", "rate_limit_exceeded", "rate_limit_error", "ratelimiterror", "ratelimit", "resource_exhausted", "throttled", "throttlingexception", "no deployments available"}, cause: breaker.RateLimited},

	// Other codes where no status came: exception classes and error types.
	{status: on(413).orNone(), codes: []string{"request_too_large", "payload_too_large", "request_entity_too_large"}, cause: breaker.TooLarge},
	{status: statuses{none: true}, texts: []string{"request_too_large", "payload too large", "request entity too large", "content too large"}, cause: breaker.TooLarge},
	{status: statuses{none: true}, codes: []string{"invalid_request_error", "badrequesterror", "invalidargument", "unprocessableentityerror", "validation", "validation_error", "bad_request", "validationexception", "notfounderror", "invalidurl", "err_invalid_url", "missingschema", "unsupportedprotocol", "toomanyredirects"}, cause: breaker.BadRequest},
	{status: statuses{none: true}, texts: []string{"invalid_request_error", "badrequesterror", "unprocessableentityerror", "unsupportedparamserror",
		"unexpected keyword argument", "unrecognized request argument", "extra inputs are not permitted", "unsupported protocol scheme", "redirects", "redirect response", "curl: (1)", "curl: (3)"}, cause: breaker.BadRequest},
	{status: statuses{none: true}, codes: []string{"bad_gateway", "badgatewayerror"}, cause: breaker.BadGateway},
	{status: statuses{none: true}, codes: []string{"gateway_timeout", "deadline_exceeded", "request_timeout", "timeout_error", "modeltimeoutexception"}, cause: breaker.GatewayTimeout},
	{status: statuses{none: true}, codes: []string{"serviceunavailable", "serviceunavailableerror", "serviceunavailableexception", "unavailable_error"}, cause: breaker.Unavailable},
	{status: statuses{none: true}, codes: []string{"server_error", "api_error", "internalservererror", "internal_error", "internal", "generation", "incomplete_generation", "internalserverexception", "modelerrorexception"}, cause: breaker.ServerError},
	{status: statuses{none: true}, texts: []string{"bad gateway", "badgatewayerror"}, cause: breaker.BadGateway},
	{status: statuses{none: true}, texts: []string{"gateway timeout", "gateway time-out"}, cause: breaker.GatewayTimeout},
	{status: statuses{none: true}, texts: []string{"service unavailable", "service temporarily unavailable", "serviceunavailableerror", "no healthy upstream"}, cause: breaker.Unavailable},
	{status: statuses{none: true}, texts: []string{"internal server error", "internalservererror"}, cause: breaker.ServerError},

	// Transport, by the words of the operating system and the HTTP clients.
	{status: unanswered, codes: []string{"emfile", "enfile", "eaddrnotavail", "enobufs", "pooltimeout"}, cause: breaker.CallerOffline},
	{status: unanswered, texts: []string{"too many open files", "cannot assign requested address", "can't assign requested address", "no buffer space available", "eaddrnotavail", "emfile", "pooltimeout"}, cause: breaker.CallerOffline},
	{status: unanswered, codes: []string{"enotfound", "eai_again", "eai_noname", "gaierror", "nameresolutionerror", "dns_error", "unknownhostexception", "clientconnectordnserror"}, cause: breaker.Unreachable},
	{status: unanswered, texts: []string{"no such host", "name or service not known", "name resolution", "nodename nor servname", "enotfound", "eai_again", "could not resolve", "couldn't resolve", "could not be resolved", "resolving timed out", "failed to resolve", "nameresolutionerror",
		"server misbehaving", "failed to lookup address", "name does not resolve", "no address associated with hostname", "dns error", "dial tcp: lookup", "getaddrinfo failed", "cannot resolve", "name not resolved", "err_name_not_resolved", "unknownhostexception", "errno -2", "errno -3", "errno -5", "errno 11001", "winerror 11001"}, cause: breaker.Unreachable},
	{status: unanswered, codes: []string{"econnrefused", "connectionrefused", "connectionrefusederror"}, cause: breaker.Refused},
	{status: unanswered, texts: []string{"connection refused", "econnrefused", "actively refused", "connectionrefusederror", "errno 111", "errno 61", "os error 111", "winerror 10061", "couldn't connect to server", "could not connect to server", "err_connection_refused"}, cause: breaker.Refused},
	{status: unanswered, codes: []string{"ehostunreach", "enetunreach", "ehostdown", "enetdown"}, cause: breaker.Unreachable},
	{status: unanswered, texts: []string{"host is unreachable", "host unreachable", "network is unreachable", "network unreachable", "ehostunreach", "enetunreach", "host is down", "ehostdown", "no route", "network is down",
		"unreachable host", "unreachable network", "err_internet_disconnected", "err_address_unreachable", "errno 113", "errno 101", "errno 65", "errno 51", "winerror 10065", "winerror 10051"}, cause: breaker.Unreachable},
	{status: unanswered, when: tlsCode, cause: breaker.TLS},
	{status: unanswered, texts: []string{"x509", "certificate", "certificate_verify_failed", "tls handshake", "ssl handshake", "handshake failure", "handshake failed", "handshake error", "handshake operation timed out", "sslhandshakeexception", "ssl connection could not be established", "ssl/tls secure channel", "http response to https client", "sslerror", "sslcertverificationerror", "ssl routines", "tls:", "ssl: ", "wrong version number",
		"self-signed", "self signed", "does not look like a tls", "err_cert_*", "err_ssl_*", "ssl connect error", "[ssl", "ssl connection timeout", "before secure tls connection", "received fatal alert", "curl: (35)"}, when: notReading, cause: breaker.TLS},
	{status: unanswered, texts: []string{"litellm.timeout"}, when: noPhase, cause: breaker.Timeout}, // its "Connection timed out" is about the whole call
	{status: unanswered, codes: []string{"und_err_connect_timeout", "connecttimeout", "connecttimeouterror", "connectiontimeouterror", "err_connection_timed_out"}, cause: breaker.ConnectTimeout},
	{status: unanswered, when: connectTimedOut, cause: breaker.ConnectTimeout},
	{status: unanswered, texts: []string{"connect call failed"}, cause: breaker.Refused},
	{status: unanswered, codes: []string{"und_err_body_timeout", "bodytimeouterror", "stream_idle_timeout", "idle_timeout"}, cause: breaker.Stalled},
	{status: unanswered, texts: []string{"body timeout", "und_err_body_timeout", "idle timeout", "idle time-out", "stream idle", "stalled", "no data received for", "no chunk for", "no chunks for", "chunk timeout", "inter-chunk", "no tokens for", "no token for", "gap between chunks", "operation too slow"}, cause: breaker.Stalled},
	{status: unanswered, when: timedOutIn("dns"), cause: breaker.Unreachable},
	{status: unanswered, when: timedOutIn("connect"), cause: breaker.ConnectTimeout},
	{status: unanswered, when: timedOutIn("tls"), cause: breaker.TLS},
	{status: unanswered, when: timedOutInStream, cause: breaker.Stalled},
	{status: unanswered, when: timedOut, cause: breaker.Timeout},
	{status: unanswered, codes: []string{"chunkedencodingerror", "clientpayloaderror", "incompleteread", "incompletereaderror", "err_stream_premature_close"}, cause: breaker.Truncated},
	{status: unanswered, texts: []string{"incomplete chunked read", "incompleteread", "incomplete read", "without sending complete message body", "ended prematurely", "premature close", "premature end", "err_stream_premature_close", "outstanding read data", "bytes remaining to read", "invalidchunklength", "body closed before",
		"transferencodingerror", "transfer encoding error", "contentlengtherror", "response payload is not completed", "stream ended without", "stream closed before", "missing finish_reason", "without finish_reason", "stream disconnected before completion", "stream truncated", "prematurely closed during", "reading a body from connection"}, cause: breaker.Truncated},
	{status: unanswered, when: cutAfterFirstByte, cause: breaker.Truncated},
	{status: unanswered, when: cut, cause: breaker.Reset},
	{status: unanswered, codes: []string{"apiconnectionerror", "connecterror", "connectionerror", "connectexception", "clientconnectorerror", "newconnectionerror", "maxretryerror", "err_network", "failedtoopensocket"}, when: notBegun, cause: breaker.Unreachable},
	{status: unanswered, texts: []string{"all connection attempts failed", "connection error", "cannot connect to host", "failed to connect", "could not connect", "failed to establish a new connection", "apiconnectionerror", "unable to connect",
		"fetch failed", "failed to fetch", "networkerror when attempting to fetch"}, when: notBegun, cause: breaker.Unreachable},
	{status: statuses{none: true}, codes: []string{"unavailable"}, cause: breaker.Overloaded},
	{status: statuses{none: true}, when: saysUnavailable, cause: breaker.Overloaded},

	// Status alone.
	{status: on(401), cause: breaker.Auth},
	{status: on(403), cause: breaker.Forbidden},
	{status: on(408, 504, 524), cause: breaker.GatewayTimeout},
	{status: on(413), cause: breaker.TooLarge},
	{status: on(424), cause: breaker.ServerError},
	{status: on(429), cause: breaker.RateLimited},
	{status: on(502, 525, 526).and(520, 521, 522, 523), cause: breaker.BadGateway},
	{status: on(503), cause: breaker.Unavailable},
	{status: between(500, 599), cause: breaker.ServerError},
	{status: between(300, 499), cause: breaker.BadRequest},

	// An error that nothing above knows, inside a 200.
	{when: errorInside200, cause: breaker.ServerError},

	// Phase alone: the call ended there, and nobody says how.
	{status: statuses{none: true}, phases: []string{"dns", "connect"}, cause: breaker.Unreachable},
	{status: statuses{none: true}, phases: []string{"tls"}, cause: breaker.TLS},
	{status: statuses{none: true}, phases: []string{"request", "headers"}, when: ranOutOfTime, cause: breaker.Timeout},
	{status: statuses{none: true}, phases: []string{"request", "headers"}, cause: breaker.Reset},
	{status: statuses{none: true}, phases: []string{"stream"}, when: ranOutOfTime, cause: breaker.Timeout},
	{status: statuses{none: true}, phases: []string{"stream"}, when: unfinished, cause: breaker.Truncated},
	{status: statuses{none: true}, when: saysAPIError, cause: breaker.ServerError},
	{status: statuses{none: true}, when: hasError, cause: breaker.Unknown},

	// What a 200 holds.
	{status: unanswered, finishes: []string{"content_filter", "refusal", "content_filtered", "safety", "prohibited_content", "blocklist", "spii", "recitation", "image_safety", "guardrail_intervened"}, cause: breaker.ContentBlocked},
	{status: unanswered, finishes: []string{"error", "failed"}, cause: breaker.ServerError},
	{status: unanswered, finishes: []string{"model_context_window_exceeded"}, when: noAnswer, cause: breaker.ContextOverflow},
	{status: unanswered, when: streamCut, cause: breaker.Truncated},
	{status: unanswered, finishes: []string{"length", "max_tokens", "max_output_tokens"}, when: onlyReasoning, cause: breaker.BadRequest},
	{status: unanswered, when: noAnswer, cause: breaker.Empty},
	{status: between(200, 299), cause: breaker.OK},
	{status: statuses{none: true}, when: (*seen).sawAnything, cause: breaker.OK},

	// Nothing at all is known.
	{cause: breaker.Unknown},
})

func ready(table []signal) []signal {
	for i := range table {
		if texts := table[i].texts; texts != nil {
			table[i].list = phrases(texts...)
		}
	}
	return table
}

// timeoutWords are the ways in which clients say that their time ran out.
var timeoutWords = phrases("*timeout", "*timeouterror", "*timeoutexception", "*timeouted", "timed out", "timed-out", "deadline exceeded", "deadline_exceeded", "etimedout", "esockettimedout", "time-out", "time out", "deadline has elapsed", "und_err_headers_timeout")

var timeoutCodes = words("timeout", "timeouterror", "etimedout", "esockettimedout", "readtimeout", "readtimeouterror", "apitimeouterror", "timeoutexception", "sockettimeout", "sockettimeouterror", "sockettimeoutexception",
	"und_err_headers_timeout", "headerstimeouterror", "econnaborted", "deadline_exceeded", "deadlineexceeded", "writetimeout", "servertimeouterror")

var connectTimeoutWords = phrases("connect timeout", "connection timeout", "connecttimeout", "connecttimeouterror", "connect timed out", "connect: operation timed out", "timed out connecting", "connect etimedout", "connecttimeoutexception",
	"timeout while connecting", "timed out while connecting", "opentimeout", "aggregateerror [etimedout]", "und_err_connect_timeout", "connection attempt timed out", "connection timed out", "err_connection_timed_out", "connection attempt failed because the connected party", "errno 110", "errno 60", "os error 110", "winerror 10060")

// dialWords say that a connection was being made: a time-out beside them is its.
var dialWords = phrases("dial tcp", "failed to connect to", "tcp connect error", "client error (connect)")

var cutWords = phrases("connection reset", "econnreset", "reset by peer", "socket hang up", "broken pipe", "epipe", "eof", "remote end closed connection", "server disconnected", "connection aborted", "connection closed", "connection was closed",
	"forcibly closed", "other side closed", "goaway", "remoteprotocolerror", "empty reply from server", "stream reset", "stream error", "connection lost", "connectionreseterror", "incomplete envelope", "serverdisconnectederror", "closed by the remote host", "server closed idle connection",
	"server closed the connection", "err_connection_reset", "err_empty_response", "use of closed network connection", "remotedisconnected", "not closed cleanly", "connection broken", "connection was lost", "readerror", "writeerror", "errno 104", "errno 54", "errno 32", "os error 104", "winerror 10054", "errno 103", "winerror 10053", "connection abort", "connection was aborted", "no close frame", "closing transport", "stream was reset", "unexpected end of stream", "header parser received no bytes", "prematurely closed",
	"http2 framing layer", "ssl_read", "terminated")

var cutCodes = words("econnreset", "epipe", "und_err_socket", "connectionreseterror", "brokenpipeerror", "remoteprotocolerror", "readerror", "writeerror", "closeerror", "serverdisconnectederror", "remotedisconnected", "connectionabortederror", "connectionclosed", "connectionclosederror", "clientconnectionreseterror",
	"err_http2_stream_error", "err_http2_goaway_session")

// wholeCallWords are time-outs of a whole call, where the others may be those
// of one read.
var wholeCallWords = phrases("context deadline exceeded", "client.timeout", "aborted due to timeout", "operation timed out after", "httpclient.timeout")

// quotaCodes and quotaTexts say that the account's money or its contingent is
// used up; moneyTexts say so as long as the status agrees.
var quotaCodes = []string{"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached", "enforced_spend_limit_reached", "billing_error", "insufficient_user_quota", "insufficient_credits", "insufficient_balance", "budget_exceeded", "billing_not_active", "exceeded_current_quota_error", "usage_limit_reached", "arrearage", "1113"}

var quotaTexts = []string{"enforced_spend_limit_reached", "insufficient_quota", "credit_balance_exhausted", "credit balance is too low", "billing_hard_limit_reached"}

var moneyTexts = []string{"exceeded your current quota", "insufficient quota", "insufficient balance", "out of credits", "insufficient credits", "spend limit", "spending limit", "billing hard limit",
	"api usage limits", "monthly usage limit", "usage limit reached", "usage limit has been reached", "budget has been exceeded"}

var rateWords = phrases("per minute", "per-minute", "*perminute*", "per min", "per second", "per-second", "*persecond*", "concurrent", "concurrency", "requests/min", "tokens/min", "rpm", "tpm")

// hungUp tells an end by the caller from a time-out, and from a connection that
// broke: .NET calls all of them aborted.
func hungUp(s *seen) bool { return !timedOut(s) && !brokenWords.in(s) }

var brokenWords = phrases("was aborted: could not", "was aborted: the connection", "was aborted: the underlying")

func notLoadingModel(s *seen) bool { return !strings.Contains(s.text, "loading model") }
func hasError(s *seen) bool        { return s.text != "" || len(s.codes) > 0 }
func errorInside200(s *seen) bool  { return s.inside && hasError(s) }
func noPhase(s *seen) bool         { return s.Phase == "" || s.Phase == "dns" || s.Phase == "connect" }
func notBegun(s *seen) bool        { return noPhase(s) && !s.begun() }

// isRate tells whether a body that speaks of quota means a rate all the same:
// it gives a wait under an hour, or names requests per minute or at a time.
func isRate(s *seen) bool {
	return s.retryAfterSet && !s.resetOnly && s.retryAfter < quotaWait || rateWords.in(s) || rateWords.inText(s.codeText)
}

// localMoment is a local server's way to say that its one slot is taken.
func localMoment(s *seen) bool {
	return s.local && s.retryAfterSet && s.retryAfter <= queueWait
}

// saysUnavailable looks for the status word of Google's APIs, which is upper
// case; "Service Unavailable" is every server's reason phrase.
func saysUnavailable(s *seen) bool {
	rest := s.rawText
	for {
		i := strings.Index(rest, "UNAVAILABLE")
		if i < 0 {
			return false
		}
		before := strings.TrimRight(rest[:i], " _")
		rest = rest[i+len("UNAVAILABLE"):]
		if !strings.HasSuffix(before, "SERVICE") && !strings.HasSuffix(before, "TEMPORARILY") && !strings.HasPrefix(rest, "_") {
			return true
		}
	}
}

// onlyOverloaded tells that an error says no more than that.
func onlyOverloaded(s *seen) bool {
	rest, found := strings.CutSuffix(strings.TrimRight(s.text, "."), "overloaded")
	return found && (rest == "" || strings.HasSuffix(rest, ": "))
}

var startTimeoutWords = phrases("timed out waiting for", "timeout waiting for")

// tlsCodes are how the codes of Node and OpenSSL begin, and exceptions' names.
var tlsCodes = []string{"cert_", "depth_zero_self_signed", "self_signed_cert", "unable_to_verify_", "unable_to_get_issuer_cert", "err_tls_", "err_ssl_", "eproto", "ssl", "clientconnectorssl", "clientconnectorcertificate"}

func tlsCode(s *seen) bool {
	return slices.ContainsFunc(s.codes, func(code string) bool {
		return slices.ContainsFunc(tlsCodes, func(begin string) bool { return strings.HasPrefix(code, begin) })
	})
}

// notReading tells a handshake from an answer that broke off: OpenSSL has its
// name in both.
func notReading(s *seen) bool { return !strings.Contains(s.text, "ssl_read") }

// saysAPIError is for the class that clients of OpenAI raise for an error in a
// stream, when nothing else is known of it.
func saysAPIError(s *seen) bool {
	return slices.Contains(s.codes, "apierror") || strings.Contains(s.text, ".apierror:")
}

func startTimedOut(s *seen) bool {
	return startTimeoutWords.in(s) && strings.Contains(s.text, "to start")
}

// A model that does not support something is there: its words are not here.
var missingWords = phrases("not found", "not exist", "try pulling", "has been deprecated", "could not be found", "no longer available", "decommissioned")

// missingSpan is how far behind the word model the word that it is missing may
// stand, in bytes: names of models are long, sentences longer.
const missingSpan = 160

// saysModelMissing needs the word model before the one that something is
// missing: a bare "not found" is a wrong path, and "… not found for model x" is
// about something else.
func saysModelMissing(s *seen) bool {
	if !missingWords.in(s) {
		return false
	}
	for rest := s.text; ; {
		i := strings.Index(rest, "model")
		if i < 0 {
			return false
		}
		whole := i == 0 || !isWordByte(rest[i-1])
		rest = strings.TrimPrefix(rest[i+len("model"):], "s")
		if whole && (rest == "" || !isWordByte(rest[0])) && missingWords.inText(rest[:min(len(rest), missingSpan)]) {
			return true
		}
	}
}

// noOtherThing tells that what was not found is a model, or not named at all.
func noOtherThing(s *seen) bool { return s.text == "" || strings.Contains(s.text, "model") }

func connectTimedOut(s *seen) bool {
	return connectTimeoutWords.in(s) && !strings.Contains(s.text, "read tcp") && s.Phase != "stream" && s.Phase != "headers" ||
		(dialWords.in(s) || s.text == "aggregateerror") && timedOut(s) // Node tries all the addresses of a name at once
}

func timedOut(s *seen) bool { return timeoutWords.in(s) || s.hasCode(timeoutCodes) }

func timedOutIn(phase string) func(*seen) bool {
	return func(s *seen) bool { return s.Phase == phase && timedOut(s) }
}

// timedOutInStream is a gap between chunks: the answer had begun, and the
// caller's whole time was not used up, as far as it is known.
func timedOutInStream(s *seen) bool {
	return s.begun() && timedOut(s) && !ranOutOfTime(s) && (s.Timeout > 0 || !wholeCallWords.in(s))
}

func ranOutOfTime(s *seen) bool { return s.Timeout > 0 && s.Duration >= s.Timeout }

func cut(s *seen) bool { return cutWords.in(s) || s.hasCode(cutCodes) }

func cutAfterFirstByte(s *seen) bool { return s.begun() && cut(s) }

func unfinished(s *seen) bool { return s.FinishReason == "" && !s.StreamDone }

// streamCut needs neither a finish reason nor an end marker: one is enough.
func streamCut(s *seen) bool {
	return (s.Stream || s.Phase == "stream") && unfinished(s) && (s.status != 0 || s.sawAnything())
}

// onlyReasoning tells that the budget went into thoughts and nothing was said.
func onlyReasoning(s *seen) bool {
	return s.ReasoningTokens > 0 && (s.outputTokensSet && s.OutputTokens <= s.ReasoningTokens || s.textKnown() && s.textEmpty()) && !s.hasText()
}

// noAnswer tells that there is neither text nor a tool call, as far as the
// agent says: where it says nothing of either, there is nothing to miss.
func noAnswer(s *seen) bool {
	return s.expectsText() && s.textKnown() && s.textEmpty() && !s.calledTool()
}
