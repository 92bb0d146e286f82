package ingest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"breakerbot/breaker"
)

// signalCases are signals as agents see them; the JSON is what an outcome says
// besides its labels.
var signalCases = []struct {
	cause string
	json  string
}{
	// Go net/http and the operating system.
	{"refused", `"error": "dial tcp 192.0.2.7:8080: connect: connection refused"`},
	{"refused", `"error": "Post \"http://gpu-box:11434/api/chat\": dial tcp 10.0.0.2:11434: connect: connection refused"`},
	{"refused", `"error": "connection refused"`},
	{"refused", `"error": "Connection refused"`},
	{"unreachable", `"error": "dial tcp: lookup gpu-box: no such host"`},
	{"unreachable", `"error": "dial tcp: lookup gpu-box on 127.0.0.53:53: server misbehaving"`},
	{"unreachable", `"error": "dial tcp: lookup gpu-box on 10.0.0.1:53: read udp 10.0.0.5:41234->10.0.0.1:53: i/o timeout"`},
	{"unreachable", `"error": "connect: no route to host"`},
	{"unreachable", `"error": "dial tcp 10.0.0.9:11434: connect: network is unreachable"`},
	{"unreachable", `"error": "dial tcp 10.0.0.9:11434: connect: host is down"`},
	{"tls", `"error": "x509: certificate has expired or is not yet valid"`},
	{"tls", `"error": "tls: failed to verify certificate: x509: certificate signed by unknown authority"`},
	{"tls", `"error": "remote error: tls: handshake failure"`},
	{"tls", `"error": "net/http: TLS handshake timeout"`},
	{"tls", `"error": "tls: first record does not look like a TLS handshake"`},
	{"connect_timeout", `"error": "dial tcp 10.0.0.9:11434: i/o timeout"`},
	{"connect_timeout", `"error": "dial tcp 10.0.0.9:11434: connect: connection timed out"`},
	{"timeout", `"error": "Post \"http://gpu-box:11434/api/chat\": context deadline exceeded"`},
	{"timeout", `"error": "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"`},
	{"timeout", `"error": "net/http: request canceled (Client.Timeout exceeded while awaiting headers)"`},
	{"timeout", `"error": "net/http: timeout awaiting response headers"`},
	{"timeout", `"error": "read tcp 10.0.0.5:40112->10.0.0.9:11434: i/o timeout"`},
	{"reset", `"error": "read tcp 10.0.0.5:40112->10.0.0.9:11434: read: connection reset by peer"`},
	{"reset", `"error": "Post \"http://gpu-box:11434/api/chat\": EOF"`},
	{"reset", `"error": "write tcp 10.0.0.5:40112->10.0.0.9:11434: write: broken pipe"`},
	{"reset", `"error": "http2: server sent GOAWAY and closed the connection"`},
	{"truncated", `"error": "unexpected EOF", "http_status": 200, "phase": "stream"`},
	{"truncated", `"error": "unexpected EOF", "first_token_ms": 300`},
	{"cancelled", `"error": "Post \"http://gpu-box:11434/api/chat\": context canceled"`},
	{"caller_offline", `"error": "dial tcp 10.0.0.9:11434: socket: too many open files"`},
	{"caller_offline", `"error": "dial tcp 10.0.0.9:11434: connect: cannot assign requested address"`},

	// Python: requests, httpx, aiohttp, sockets.
	{"refused", `"error": "HTTPConnectionPool(host='gpu-box', port=11434): Max retries exceeded with url: /api/chat (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f>: Failed to establish a new connection: [Errno 111] Connection refused'))", "error_type": "requests.exceptions.ConnectionError"`},
	{"unreachable", `"error": "HTTPConnectionPool(host='gpu-box', port=11434): Max retries exceeded with url: /api/chat (Caused by NameResolutionError(\"Failed to resolve 'gpu-box' ([Errno -2] Name or service not known)\"))"`},
	{"unreachable", `"error": "[Errno 113] No route to host", "error_type": "OSError"`},
	{"connect_timeout", `"error": "HTTPConnectionPool(host='gpu-box', port=11434): Max retries exceeded with url: /api/chat (Caused by ConnectTimeoutError(<urllib3.connection.HTTPConnection object at 0x7f>, 'Connection to gpu-box timed out. (connect timeout=5)'))"`},
	{"timeout", `"error": "HTTPConnectionPool(host='gpu-box', port=11434): Read timed out. (read timeout=30)", "error_type": "ReadTimeout"`},
	{"timeout", `"error": "ReadTimeout: timed out"`},
	{"timeout", `"error_type": "httpx.ReadTimeout"`},
	{"timeout", `"error_type": "TimeoutError"`},
	{"connect_timeout", `"error_type": "httpx.ConnectTimeout"`},
	{"unreachable", `"error": "All connection attempts failed", "error_type": "httpx.ConnectError"`},
	{"reset", `"error": "Server disconnected without sending a response.", "error_type": "RemoteProtocolError"`},
	{"truncated", `"error": "peer closed connection without sending complete message body (incomplete chunked read)", "error_type": "RemoteProtocolError"`},
	{"reset", `"error": "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))"`},
	{"reset", `"error": "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"`},
	{"tls", `"error": "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1007)", "error_type": "SSLCertVerificationError"`},
	{"refused", `"error": "Cannot connect to host gpu-box:11434 ssl:default [Connect call failed ('10.0.0.9', 11434)]"`},
	{"connect_timeout", `"error": "Connection timeout to host http://gpu-box:11434/api/chat"`},
	{"truncated", `"error": "Response payload is not completed", "http_status": 200`},
	{"unreachable", `"error": "[Errno -3] Temporary failure in name resolution", "error_type": "gaierror"`},
	{"cancelled", `"error_type": "asyncio.CancelledError"`},

	// Node fetch and undici, curl, browsers.
	{"refused", `"error": "fetch failed: connect ECONNREFUSED 127.0.0.1:11434", "error_code": "ECONNREFUSED"`},
	{"refused", `"error": "fetch failed", "error_code": "ECONNREFUSED"`},
	{"unreachable", `"error": "getaddrinfo ENOTFOUND gpu-box"`},
	{"unreachable", `"error": "getaddrinfo EAI_AGAIN gpu-box", "error_code": "EAI_AGAIN"`},
	{"unreachable", `"error": "connect EHOSTUNREACH 10.0.0.9:11434"`},
	{"connect_timeout", `"error": "connect ETIMEDOUT 10.0.0.9:11434"`},
	{"connect_timeout", `"error": "Connect Timeout Error", "error_code": "UND_ERR_CONNECT_TIMEOUT"`},
	{"connect_timeout", `"error": "fetch failed: UND_ERR_CONNECT_TIMEOUT"`},
	{"timeout", `"error": "Headers Timeout Error", "error_code": "UND_ERR_HEADERS_TIMEOUT"`},
	{"stalled", `"error": "terminated: UND_ERR_BODY_TIMEOUT"`},
	{"stalled", `"error": "Body Timeout Error", "error_code": "UND_ERR_BODY_TIMEOUT"`},
	{"reset", `"error": "socket hang up", "error_code": "ECONNRESET"`},
	{"reset", `"error": "other side closed", "error_code": "UND_ERR_SOCKET"`},
	{"truncated", `"error": "terminated", "http_status": 200, "phase": "stream"`},
	{"timeout", `"error": "The operation was aborted due to timeout", "error_type": "TimeoutError"`},
	{"cancelled", `"error": "This operation was aborted", "error_type": "AbortError"`},
	{"tls", `"error": "unable to verify the first certificate", "error_code": "UNABLE_TO_VERIFY_LEAF_SIGNATURE"`},
	{"tls", `"error_code": "CERT_HAS_EXPIRED"`},
	{"refused", `"error": "curl: (7) Failed to connect to gpu-box port 11434 after 0 ms: Couldn't connect to server"`},
	{"unreachable", `"error": "curl: (6) Could not resolve host: gpu-box"`},
	{"timeout", `"error": "curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received"`},
	{"reset", `"error": "curl: (52) Empty reply from server"`},
	{"truncated", `"error": "curl: (18) transfer closed with outstanding read data remaining", "http_status": 200`},
	{"refused", `"error": "No connection could be made because the target machine actively refused it. (gpu-box:11434)"`},

	// Phase beside the text, and alone.
	{"unreachable", `"phase": "dns", "error": "timed out"`},
	{"connect_timeout", `"phase": "connect", "error": "timed out"`},
	{"tls", `"phase": "tls", "error": "timed out"`},
	{"timeout", `"phase": "headers", "error": "timed out"`},
	{"stalled", `"phase": "stream", "error": "read timed out", "timeout_ms": 60000, "duration_ms": 9000`},
	{"timeout", `"phase": "stream", "error": "read timed out", "timeout_ms": 60000, "duration_ms": 60010`},
	{"stalled", `"phase": "stream", "http_status": 200, "error": "no data received for 30 s"`},
	{"unreachable", `"phase": "connect"`},
	{"tls", `"phase": "tls"`},
	{"reset", `"phase": "headers"`},
	{"timeout", `"phase": "headers", "timeout_ms": 30000, "duration_ms": 30000`},
	{"truncated", `"phase": "stream"`},
	{"ok", `"phase": "done"`},
	{"unknown", `"error": "something odd"`},
	{"unknown", `"duration_ms": 300`},
	{"unknown", `"model": "m"`},

	// Status alone.
	{"ok", `"http_status": 200, "duration_ms": 500`},
	{"ok", `"http_status": 204`},
	{"bad_request", `"http_status": 301`},
	{"bad_request", `"http_status": 400`},
	{"auth", `"http_status": 401`},
	{"quota", `"http_status": 402`},
	{"forbidden", `"http_status": 403`},
	{"bad_request", `"http_status": 404`},
	{"bad_request", `"http_status": 405`},
	{"gateway_timeout", `"http_status": 408`},
	{"bad_request", `"http_status": 409`},
	{"too_large", `"http_status": 413`},
	{"bad_request", `"http_status": 422, "error": "unknown field"`},
	{"server_error", `"http_status": 424, "error": "Request failed during generation", "error_type": "generation"`},
	{"rate_limited", `"http_status": 429`},
	{"cancelled", `"http_status": 499`},
	{"server_error", `"http_status": 500, "error": "Internal Server Error"`},
	{"bad_gateway", `"http_status": 502`},
	{"unavailable", `"http_status": 503`},
	{"unavailable", `"http_status": 503, "error": "Service Unavailable"`},
	{"unavailable", `"http_status": 503, "error": "<html><h1>503 SERVICE UNAVAILABLE</h1></html>"`},
	{"gateway_timeout", `"http_status": 504`},
	{"server_error", `"http_status": 505`},
	{"bad_gateway", `"http_status": 520`},
	{"bad_gateway", `"http_status": 523`},
	{"gateway_timeout", `"http_status": 524`},
	{"bad_gateway", `"http_status": 525`},
	{"bad_gateway", `"http_status": 526`},
	{"overloaded", `"http_status": 529`},

	// A gateway's words are about another call.
	{"bad_gateway", `"http_status": 502, "error": "upstream: dial tcp: connect: connection refused"`},
	{"gateway_timeout", `"http_status": 504, "error": "upstream timed out"`},
	{"unavailable", `"http_status": 503, "error": "upstream connect error or disconnect/reset before headers. reset reason: connection termination"`},
	{"server_error", `"http_status": 500, "error": "dial tcp: lookup db: no such host"`},

	// OpenAI and Azure.
	{"rate_limited", `"http_status": 429, "error_code": "rate_limit_exceeded", "error": "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000. Please try again in 2.4s."`},
	{"quota", `"http_status": 429, "error_type": "insufficient_quota", "error_code": "insufficient_quota", "error": "You exceeded your current quota"`},
	{"quota", `"error": "Error code: 429 - {'error': {'message': 'You exceeded your current quota, please check your plan and billing details.', 'type': 'insufficient_quota', 'param': None, 'code': 'insufficient_quota'}}"`},
	{"quota", `"http_status": 429, "error": "{\"error\":{\"message\":\"You have no credit left.\",\"type\":\"insufficient_quota\",\"code\":\"credit_balance_exhausted\"}}"`},
	{"rate_limited", `"http_status": 429, "error_type": "rate_limit_error", "error_code": "slow_down"`},
	{"overloaded", `"http_status": 503, "error_type": "service_unavailable_error", "error_code": "server_is_overloaded"`},
	{"auth", `"http_status": 401, "error_code": "invalid_api_key", "error": "Incorrect API key provided: sk-abcd1234."`},
	{"model_missing", `"http_status": 404, "error_code": "model_not_found", "error": "The model 'gpt-9' does not exist or you do not have access to it."`},
	{"forbidden", `"http_status": 403, "error_code": "model_not_found", "error": "Project proj_x does not have access to model gpt-9"`},
	{"forbidden", `"http_status": 403, "error_code": "unsupported_country_region_territory"`},
	{"context_overflow", `"http_status": 400, "error_code": "context_length_exceeded", "error": "This model's maximum context length is 8192 tokens"`},
	{"context_overflow", `"http_status": 500, "error_code": "server_error", "error": "Your input exceeds the context window of this model."`},
	{"content_blocked", `"http_status": 400, "error_code": "content_filter"`},
	{"content_blocked", `"http_status": 400, "error": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."`},
	{"content_blocked", `"http_status": 200, "finish_reason": "content_filter"`},
	{"bad_request", `"http_status": 400, "error": "Unsupported parameter: 'max_tokens' is not supported with this model.", "error_code": "unsupported_parameter"`},
	{"timeout", `"error": "Request timed out.", "error_type": "APITimeoutError"`},
	{"unreachable", `"error": "Connection error.", "error_type": "APIConnectionError"`},
	{"model_missing", `"http_status": 404, "error_code": "DeploymentNotFound", "error": "The API deployment for this resource does not exist."`},
	{"server_error", `"http_status": 500, "error_type": "server_error", "error": "The server had an error while processing your request."`},

	// Anthropic.
	{"overloaded", `"http_status": 529, "error_type": "overloaded_error"`},
	{"overloaded", `"http_status": 200, "error": "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}", "phase": "stream"`},
	{"rate_limited", `"http_status": 429, "error": "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"This request would exceed your organization's rate limit\"},\"request_id\":\"req_1\"}"`},
	{"quota", `"http_status": 429, "error": "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"details\":{\"error_code\":\"enforced_spend_limit_reached\"}}}"`},
	{"quota", `"http_status": 402, "error_type": "billing_error"`},
	{"quota", `"http_status": 400, "error_type": "invalid_request_error", "error": "Your credit balance is too low to access the Anthropic API."`},
	{"quota", `"http_status": 400, "error": "You have reached your specified API usage limits. You will regain access on 2026-04-01 at 00:00 UTC."`},
	{"context_overflow", `"http_status": 400, "error": "prompt is too long: 215000 tokens > 200000 maximum"`},
	{"too_large", `"http_status": 413, "error": "request_too_large"`},
	{"auth", `"http_status": 401, "error_type": "authentication_error", "error": "invalid x-api-key"`},
	{"forbidden", `"http_status": 403, "error_type": "permission_error"`},
	{"model_missing", `"http_status": 404, "error_type": "not_found_error", "error": "model: claude-9"`},
	{"server_error", `"http_status": 500, "error_type": "api_error", "error": "Internal server error"`},
	{"content_blocked", `"http_status": 200, "finish_reason": "refusal"`},
	{"rate_limited", `"error": "rate_limit_error: too many requests"`},

	// Gemini and Vertex.
	{"rate_limited", `"http_status": 429, "error": "{\"error\":{\"code\":429,\"message\":\"You exceeded your current quota, please check your plan and billing details.\",\"status\":\"RESOURCE_EXHAUSTED\",\"details\":[{\"@type\":\"type.googleapis.com/google.rpc.QuotaFailure\",\"violations\":[{\"quotaId\":\"GenerateRequestsPerMinutePerProjectPerModel-FreeTier\"}]},{\"@type\":\"type.googleapis.com/google.rpc.RetryInfo\",\"retryDelay\":\"36s\"}]}}"`},
	{"rate_limited", `"http_status": 429, "error_code": "RESOURCE_EXHAUSTED", "error": "Resource exhausted. Please try again later."`},
	{"quota", `"http_status": 429, "error": "You exceeded your current quota, please check your plan and billing details. quotaId: GenerateRequestsPerDayPerProject"`},
	{"overloaded", `"http_status": 503, "error": "{\"error\":{\"code\":503,\"message\":\"The model is overloaded. Please try again later.\",\"status\":\"UNAVAILABLE\"}}"`},
	{"overloaded", `"http_status": 503, "error": "503 UNAVAILABLE. {'error': {'code': 503, 'message': 'The service is currently unavailable.', 'status': 'UNAVAILABLE'}}"`},
	{"auth", `"http_status": 400, "error": "API key not valid. Please pass a valid API key.", "error_code": "API_KEY_INVALID"`},
	{"model_missing", `"http_status": 404, "error": "models/gemini-9 is not found for API version v1beta, or is not supported for generateContent. Call ListModels to see the list of available models. model not found"`},
	{"gateway_timeout", `"http_status": 504, "error_code": "DEADLINE_EXCEEDED"`},
	{"content_blocked", `"http_status": 200, "finish_reason": "SAFETY", "response": ""`},
	{"forbidden", `"http_status": 403, "error_code": "PERMISSION_DENIED"`},

	// OpenRouter, Z.ai, Scaleway, Groq.
	{"unaffordable", `"http_status": 402, "error": "This request requires more credits, or fewer max_tokens. You requested up to 32000 tokens, but can only afford 1200."`},
	{"quota", `"http_status": 402, "error": "Insufficient credits. Add more using https://openrouter.ai/credits"`},
	{"bad_gateway", `"http_status": 200, "error": "{\"error\":{\"code\":502,\"message\":\"Provider returned error\"}}"`},
	{"bad_gateway", `"http_status": 200, "response": {"error": {"code": 502, "message": "Provider returned error"}, "user_id": "u1"}`},
	{"server_error", `"http_status": 200, "finish_reason": "error"`},
	{"quota", `"http_status": 429, "error_code": 1113, "error": "Insufficient balance or no resource package. Please recharge."`},
	{"rate_limited", `"http_status": 429, "error_code": "1302"`},
	{"overloaded", `"http_status": 429, "error_code": "1305"`},
	{"rate_limited", `"http_status": 429, "error": "INSUFFICIENT QUOTA: too many concurrent requests"`},
	{"rate_limited", `"http_status": 429, "error": "{\"error\":\"INSUFFICIENT QUOTA\",\"message\":\"requests per minute\"}"`},
	{"model_missing", `"http_status": 400, "error_code": "model_decommissioned", "error": "The model mixtral has been decommissioned"`},
	{"rate_limited", `"http_status": 402, "error": "Key limit exceeded, try again in 20 minutes"`},

	// Ollama.
	{"queue_full", `"http_status": 503, "error": "server busy, please try again.  maximum pending requests exceeded"`},
	{"crashed", `"http_status": 500, "error": "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error"`},
	{"crashed", `"http_status": 500, "error": "llama-server process has terminated: exit status 2"`},
	{"crashed", `"http_status": 500, "error": "model requires more system memory (5.3 GiB) than is available (3.3 GiB)"`},
	{"server_error", `"http_status": 500, "error": "timed out waiting for llama-server to start - progress 0.00"`},
	{"server_error", `"error": "timed out waiting for llama runner to start"`},
	{"model_missing", `"http_status": 404, "error": "model 'qwen3-30b' not found, try pulling it first"`},
	{"model_missing", `"http_status": 404, "error": "{\"error\":\"model 'x' not found\"}"`},
	{"context_overflow", `"http_status": 400, "error": "the input length exceeds the context length"`},
	{"overloaded", `"http_status": 503, "error": "{\"error\":\"Server overloaded, please retry shortly (ref: 1234)\"}"`},
	{"server_error", `"http_status": 200, "response": "{\"message\":{\"content\":\"he\"}}\n{\"error\":\"unexpected token\"}"`},
	{"model_missing", `"http_status": 200, "error": "{\"error\":\"model 'x' not found\"}"`},

	// llama.cpp, llama-swap, vLLM, TGI, GPUStack, LiteLLM.
	{"loading", `"http_status": 503, "error": "{\"error\":{\"code\":503,\"message\":\"Loading model\",\"type\":\"unavailable_error\"}}"`},
	{"loading", `"http_status": 503, "error": "Model Qwen/Qwen3 is currently loading", "error_code": "model_loading"`},
	{"loading", `"http_status": 503, "error": "process is not ready"`},
	{"context_overflow", `"http_status": 400, "error_type": "exceed_context_size_error", "error": "the request exceeds the available context size"`},
	{"context_overflow", `"http_status": 400, "error": "{\"object\":\"error\",\"message\":\"Requested token count exceeds the model's maximum context length of 40960 tokens.\",\"type\":\"BadRequestError\"}"`},
	{"model_missing", `"http_status": 404, "error": "{\"object\":\"error\",\"message\":\"The model ` + "`x`" + ` does not exist.\",\"type\":\"NotFoundError\",\"code\":404}"`},
	{"crashed", `"http_status": 500, "error": "CUDA out of memory. Tried to allocate 2.00 GiB"`},
	{"crashed", `"http_status": 500, "error": "EngineCore encountered an issue. See stack trace for the root cause.", "error_type": "EngineDeadError"`},
	{"queue_full", `"http_status": 429, "error": "Model is overloaded", "error_type": "overloaded"`},
	{"server_error", `"http_status": 500, "error": "Incomplete generation", "error_type": "incomplete_generation"`},
	{"context_overflow", `"http_status": 422, "error": "` + "`inputs` tokens + `max_new_tokens`" + ` must be <= 4096", "error_type": "validation"`},
	{"bad_request", `"http_status": 422, "error": "temperature must be strictly positive", "error_type": "validation"`},
	{"unavailable", `"http_status": 503, "error": "{\"error\":\"unhealthy\",\"error_type\":\"healthcheck\"}"`},
	{"unavailable", `"http_status": 404, "error": "Model not found or no running instances available"`},
	{"rate_limited", `"http_status": 429, "error": "No deployments available for selected model, Try again in 5 seconds."`},
	{"rate_limited", `"error": "litellm.RateLimitError: RateLimitError: OpenAIException - slow down"`},
	{"timeout", `"error": "litellm.Timeout: APITimeoutError - Request timed out."`},
	{"context_overflow", `"error": "litellm.ContextWindowExceededError: prompt too long"`},
	{"server_error", `"error": "litellm.InternalServerError: InternalServerError: OpenAIException"`},
	{"bad_gateway", `"error": "502 Bad Gateway"`},
	{"unavailable", `"error": "Server error '503 Service Unavailable' for url 'http://gpu-box:8000/v1/chat/completions'"`},
	{"server_error", `"error": "500 Server Error: Internal Server Error for url: http://gpu-box:8000/v1/chat/completions"`},

	// What a 200 holds.
	{"ok", `"http_status": 200, "response": "hello", "finish_reason": "stop"`},
	{"ok", `"http_status": 200, "response": {"decision": "approve", "error": "none"}`},
	{"ok", `"finish_reason": "stop", "output_tokens": 12`},
	{"empty", `"http_status": 200, "response": "", "finish_reason": "stop"`},
	{"empty", `"http_status": 200, "response": " \n"`},
	{"empty", `"http_status": 200, "response_chars": 0`},
	{"empty", `"http_status": 200, "output_tokens": 0, "finish_reason": "stop"`},
	{"empty", `"http_status": 200, "output_tokens": 90, "reasoning_tokens": 90, "finish_reason": "stop"`},
	{"ok", `"http_status": 200, "response": "", "tool_calls": 1`},
	{"ok", `"http_status": 200, "response": "", "finish_reason": "tool_calls"`},
	{"empty", `"http_status": 200, "response": "", "finish_reason": "tool_calls", "tool_calls": 0`},
	{"ok", `"http_status": 200, "output_tokens": 0, "operation": "embeddings"`},
	{"bad_request", `"http_status": 200, "finish_reason": "length", "output_tokens": 500, "reasoning_tokens": 500`},
	{"bad_request", `"http_status": 200, "finish_reason": "length", "response": "", "reasoning_tokens": 500`},
	{"ok", `"http_status": 200, "finish_reason": "length", "output_tokens": 500, "reasoning_tokens": 100`},
	{"truncated", `"http_status": 200, "stream": true`},
	{"truncated", `"http_status": 200, "stream": true, "stream_done": false, "response": "hel"`},
	{"ok", `"http_status": 200, "stream": true, "stream_done": true, "response": "hello"`},
	{"ok", `"http_status": 200, "stream": true, "finish_reason": "stop", "response": "hello"`},
	{"server_error", `"http_status": 200, "stream": true, "error": "something broke", "phase": "stream"`},
	{"rate_limited", `"http_status": 200, "response": "event: message_start\ndata: {}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow\"}}"`},

	// Words of others inside words.
	{"bad_gateway", `"http_status": 502, "error": "load balancer: no credit for this pool"`},
	{"unknown", `"error": "geoffrey went home"`},

	// Served without a call.
	{"ok", `"served": "cache"`},
	{"ok", `"served": "rejected"`},
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range signalCases {
		raw := `{"agent": "a", "machine": "gpu", ` + c.json + `}`
		o, errs, warnings := DecodeOutcome(json.RawMessage(raw), time.Now())
		if len(errs) > 0 || len(warnings) > 0 {
			t.Errorf("%s: errors %v, warnings %v", raw, errs, warnings)
			continue
		}
		if o.Cause.String() != c.cause {
			t.Errorf("%s\n  is %s, want %s", c.json, o.Cause, c.cause)
		}
	}
	if len(signalCases) < 120 {
		t.Errorf("only %d signals", len(signalCases))
	}
}

func TestEveryStatelessCauseIsReached(t *testing.T) {
	t.Parallel()
	reached := map[breaker.Cause]bool{}
	for _, g := range signals {
		reached[g.cause] = true
	}
	// The engine's own judgement, the gates' verdicts, and what only an agent can say.
	elsewhere := []breaker.Cause{breaker.CallerTimeout, breaker.Slow, breaker.SlowFirstToken, breaker.TooShort, breaker.Malformed,
		breaker.Schema, breaker.MissingField, breaker.BadReference, breaker.TooFast, breaker.Flagged}
	for _, c := range elsewhere {
		if reached[c] {
			t.Errorf("%s has a row, though it needs history or a gate", c)
		}
		reached[c] = true
	}
	for _, c := range breaker.Causes() {
		if !reached[c] {
			t.Errorf("no signal leads to %s", c)
		}
	}
}

// TestSignalRows holds the table's own spelling: lists are compared with lower
// case, and no row can stand behind one that matches everything.
func TestSignalRows(t *testing.T) {
	t.Parallel()
	for i, g := range signals {
		for _, list := range [][]string{g.codes, g.texts, g.phases, g.finishes} {
			for _, word := range list {
				if word != strings.ToLower(word) || strings.TrimSpace(word) == "" {
					t.Errorf("row %d (%s): %q is not lower case", i, g.cause, word)
				}
			}
		}
		for j, code := range g.codes {
			if squashed := strings.ReplaceAll(code, "_", ""); slices.Contains(g.codes[:j], code) || squashed != code && slices.Contains(g.codes, squashed) {
				t.Errorf("row %d (%s): code %q stands twice", i, g.cause, code)
			}
		}
		noneTwice(t, g.list)
		bare := g.codes == nil && g.texts == nil && g.phases == nil && g.finishes == nil && g.when == nil && g.status.exact == nil && g.status.to == 0 && !g.status.none
		if bare != (i == len(signals)-1) {
			t.Errorf("row %d (%s): only the last row may match everything, and it must", i, g.cause)
		}
	}
	for _, list := range []phraseList{timeoutWords, connectTimeoutWords, cutWords, rateWords, missingWords, wholeCallWords, dialWords, brokenWords, startTimeoutWords} {
		noneTwice(t, list)
	}
}

// noneTwice holds that no phrase of a list is found wherever another one is.
func noneTwice(t *testing.T, list phraseList) {
	t.Helper()
	for i := range list {
		for j := range list {
			if one, other := &list[i], &list[j]; i != j && one.in(other.text) && (!other.openLeft || one.openLeft || !strings.HasPrefix(other.text, one.text)) && (!other.openRight || one.openRight || !strings.HasSuffix(other.text, one.text)) {
				t.Errorf("%q is found with %q", other.text, one.text)
			}
		}
	}
}

func TestNamedCauseWins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ json, cause, latency string }{
		{`"cause": "timeout", "http_status": 200`, "timeout", ""},
		{`"cause": "ok", "http_status": 500`, "ok", ""},
		{`"cause": "slow"`, "ok", "slow"},
		{`"cause": "slow_first_token", "http_status": 200`, "ok", "slow_first_token"},
		{`"cause": "flagged"`, "flagged", ""},
		{`"cause": null, "http_status": 503`, "unavailable", ""},
		{`"cause": "", "http_status": 503`, "unavailable", ""},
	} {
		o, errs, _ := DecodeOutcome(json.RawMessage(`{"agent": "a", "machine": "m", `+c.json+`}`), time.Now())
		if errs != nil || o.Cause.String() != c.cause || o.Latency.String() != c.latency {
			t.Errorf("%s: %s with latency %q and errors %v, want %s with %q", c.json, o.Cause, o.Latency, errs, c.cause, c.latency)
		}
	}
}

func TestLocalRetryAfterIsAQueue(t *testing.T) {
	t.Parallel()
	local := Decoder{Local: func(machine string) bool { return machine == "gpu" }}
	for _, c := range []struct {
		machine string
		seconds string
		cause   breaker.Cause
	}{
		{"gpu", "1", breaker.QueueFull},
		{"gpu", "2", breaker.RateLimited},
		{"api", "1", breaker.RateLimited},
	} {
		raw := fmt.Sprintf(`{"agent": "a", "machine": %q, "http_status": 429, "error": "Too many requests", "retry_after_s": %s}`, c.machine, c.seconds)
		if o, errs, _ := local.Outcome(json.RawMessage(raw), time.Now()); errs != nil || o.Cause != c.cause {
			t.Errorf("%s: %s %v, want %s", raw, o.Cause, errs, c.cause)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 14, 2, 0, 0, time.UTC)
	for _, c := range []struct {
		json string
		want time.Duration
	}{
		{`"http_status": 429, "retry_after_s": 20`, 20 * time.Second},
		{`"http_status": 429, "retry_after_s": 0.35`, 350 * time.Millisecond},
		{`"http_status": 429, "retry_after_s": "20"`, 20 * time.Second},
		{`"http_status": 429, "retry_after_s": "36s"`, 36 * time.Second},
		{`"http_status": 429, "retry_after_s": "Sun, 01 Mar 2026 14:03:30 GMT"`, 90 * time.Second},
		{`"http_status": 429, "retry_after_s": "Sun, 01 Mar 2026 14:00:00 GMT"`, 0},
		{`"http_status": 429, "error": "Please try again in 20s."`, 20 * time.Second},
		{`"http_status": 429, "error": "Please try again in 350ms."`, 350 * time.Millisecond},
		{`"http_status": 429, "error": "Please try again in 6m0s."`, 6 * time.Minute},
		{`"http_status": 429, "error": "Please try again in 1m30.5s."`, 90500 * time.Millisecond},
		{`"http_status": 429, "error": "Please retry in 36.25s."`, 36250 * time.Millisecond},
		{`"http_status": 429, "error": "Rate limited. Retry after 2 minutes"`, 2 * time.Minute},
		{`"http_status": 429, "error": "retry-after: 17"`, 17 * time.Second},
		{`"http_status": 429, "error": "{\"retryDelay\": \"36s\"}"`, 36 * time.Second},
		{`"http_status": 429, "error": "{\"retryDelay\":{\"seconds\":36}}"`, 36 * time.Second},
		{`"http_status": 429, "error": "{\"retry_after_ms\": 1500}"`, 1500 * time.Millisecond},
		{`"http_status": 429, "error": "{\"retry_after\": 2.5}"`, 2500 * time.Millisecond},
		{`"http_status": 503, "error": "Try again in 5 seconds. 1 of 2"`, 5 * time.Second},
		{`"http_status": 429, "error": "wait for 1 hour before the next request"`, time.Hour},
		{`"http_status": 429, "retry_after_s": 5, "error": "try again in 20s"`, 20 * time.Second},
		{`"http_status": 429, "retry_after_s": 30, "error": "try again in 20s"`, 30 * time.Second},
		{`"http_status": 429, "error": "try again in 99999999999h"`, maxRetryAfter},
		{`"http_status": 429, "error": "please wait"`, 0},
		{`"cause": "rate_limited", "error": "try again in 20s"`, 20 * time.Second},
		{`"http_status": 200, "retry_after_s": 30`, 0},
		{`"cause": "ok", "retry_after_s": 30`, 0},
	} {
		o, errs, _ := DecodeOutcome(json.RawMessage(`{"agent": "a", "machine": "m", `+c.json+`}`), now)
		if errs != nil || o.RetryAfter != c.want {
			t.Errorf("%s: %s %v, want %s", c.json, o.RetryAfter, errs, c.want)
		}
	}
}

func TestEvidence(t *testing.T) {
	t.Parallel()
	const bot = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1"
	for _, c := range []struct{ in, want string }{
		{"connection refused", "connection refused"},
		{"a\x00b\x1b[31mred\r\n\tline", "ab[31mred line"},
		{"bad \xff\xfe utf-8", "bad �� utf-8"},
		{"left\u202eright", "leftright"},
		{"  spaces   here  ", "spaces here"},
		{"Authorization: Bearer abc.def-ghi_jkl", "Authorization: Bearer [redacted]"},
		{"got bearer   tok123456 here", "got bearer [redacted] here"},
		{`{"Authorization": "Bearer abcdef"}`, `{"Authorization": "Bearer [redacted]"}`},
		{"Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic [redacted]"},
		{"authorization=abcdefgh", "authorization=[redacted]"},
		{"Incorrect API key provided: sk-proj-abcDEF123456_-x.", "Incorrect API key provided: [redacted]"},
		{"key sk-ant-api03-AAAA-bbbb", "key [redacted]"},
		{"https://api.telegram.org/bot" + bot + "/sendMessage", "https://api.telegram.org/bot[redacted]/sendMessage"},
		{"token " + bot, "token [redacted]"},
		{"proxyconnect http://user:p%40ss@proxy:3128 refused", "proxyconnect http://[redacted]@proxy:3128 refused"},
		{"postgres://app:secret@db/breakerbot", "postgres://[redacted]@db/breakerbot"},
		{"GET https://host/v1?key=AIzaSyA1234567890abcdefghijk&alt=sse", "GET https://host/v1?key=[redacted]&alt=sse"},
		{"GET https://host/v1?api_key=abcdef&x=1", "GET https://host/v1?api_key=[redacted]&x=1"},
		{"GET https://host/v1?access_token=abcdef", "GET https://host/v1?access_token=[redacted]"},
		{`{"api_key": "abcdef", "model": "m"}`, `{"api_key": "[redacted]", "model": "m"}`},
		{"x-api-key: abcdef", "x-api-key: [redacted]"},
		{"password=hunter2 rejected", "password=[redacted] rejected"},
		{"AIzaSyA1234567890abcdefghijklmnopqrstuv is wrong", "[redacted] is wrong"},
		{"jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def", "jwt [redacted]"},
		{"gsk_abcdefghijklmnop", "[redacted]"},
		{"AKIAABCDEFGHIJKLMNOP", "[redacted]"},
		{"max_tokens: 400 is over the limit", "max_tokens: 400 is over the limit"},
		{"task-id disk-full risk-free", "task-id disk-full risk-free"},
		{"dial tcp [::1]:8080: refused", "dial tcp [::1]:8080: refused"},
	} {
		if got := Evidence(c.in); got != c.want {
			t.Errorf("Evidence(%q)\n  is   %q\n  want %q", c.in, got, c.want)
		}
	}
}

func TestEvidenceIsBounded(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		strings.Repeat("x", 501), strings.Repeat("é", 600), strings.Repeat("word ", 4000), strings.Repeat("🔥", 5000),
		strings.Repeat("a ", maxErrorText/2-5) + "sk-0123456789abcdef",
	} {
		got := Evidence(in)
		if n := len([]rune(got)); n > maxEvidence {
			t.Errorf("%d characters are kept of %d", n, len([]rune(in)))
		}
		if strings.Contains(got, "sk-") {
			t.Errorf("a key cut in the middle survived")
		}
	}
	if got := Evidence(strings.Repeat("y", 500)); len(got) != 500 || strings.HasSuffix(got, "…") {
		t.Errorf("a text of exactly 500 characters was cut")
	}
}
