package ingest

import (
	"encoding/json"
	"strings"
	"testing"

	"breakerbot/breaker"
)

// dialectSignal is one failure, or success, as an agent tells it: the members
// of its outcome beside the labels, and its error text as it stood there.
type dialectSignal struct {
	cause  string
	fields string
	text   string // "": no error
}

// dialects are what the servers and clients that agents meet really say, and
// the cause that each of it has. They were written from the list of causes and
// not from the table of signals.
var dialects = []struct {
	name    string
	signals []dialectSignal
}{
	{"OpenAI", []dialectSignal{
		{"rate_limited", `"http_status": 429`, `{"error":{"message":"Rate limit reached for gpt-4o in organization org-abc123 on tokens per min (TPM): Limit 30000, Used 29500, Requested 1200. Please try again in 1.4s. Visit https://platform.openai.com/account/rate-limits to learn more.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
		{"quota", `"http_status": 429`, `{"error":{"message":"You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`},
		{"rate_limited", `"http_status": 429, "error_code": "insufficient_quota", "retry_after_s": 20`, "You exceeded your current quota"},
		{"quota", `"http_status": 429, "error_code": "Insufficient_Quota", "retry_after_s": "3600"`, "You exceeded your current quota"},
		{"quota", `"http_status": 400, "error_code": "billing_hard_limit_reached"`, "Billing hard limit has been reached."},
		{"auth", `"http_status": 401`, `{"error":{"message":"You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).","type":"invalid_request_error","param":null,"code":null}}`},
		{"auth", `"http_status": 401, "error_type": "invalid_request_error"`, "You must be a member of an organization to use the API"},
		{"forbidden", `"http_status": 403`, `{"error":{"code":"unsupported_country_region_territory","message":"Country, region, or territory not supported","param":null,"type":"request_forbidden"}}`},
		{"model_missing", `"http_status": 404`, "{\"error\":{\"message\":\"The model `gpt-9` does not exist or you do not have access to it.\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"model_not_found\"}}"},
		{"bad_request", `"http_status": 404`, `{"error":{"message":"Invalid URL (POST /v1/chat/completion)","type":"invalid_request_error","param":null,"code":null}}`},
		{"context_overflow", `"http_status": 400`, `{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`},
		{"bad_request", `"http_status": 400`, `{"error":{"message":"Invalid type for 'messages[0].content': expected one of a string or array of objects, but got null instead.","type":"invalid_request_error","param":"messages[0].content","code":"invalid_type"}}`},
		{"bad_request", `"http_status": 400`, `{"error":{"message":"Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'; tool_call_id call_1 not found for model gpt-4o.","type":"invalid_request_error","param":"messages.[1].role","code":null}}`},
		{"content_blocked", `"http_status": 400`, `{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again with a different prompt.","type":"invalid_request_error","param":null,"code":"invalid_prompt"}}`},
		{"server_error", `"http_status": 500`, `{"error":{"message":"The server had an error while processing your request. Sorry about that!","type":"server_error","param":null,"code":null}}`},
		{"overloaded", `"http_status": 503`, `{"error":{"message":"That model is currently overloaded with other requests. You can retry your request, or contact us through our help center at help.openai.com if the error persists.","type":"server_error","param":null,"code":null}}`},
		{"overloaded", `"http_status": 503`, `{"error":{"message":"Our servers are currently overloaded. Please try again later.","type":"service_unavailable_error","param":null,"code":"server_is_overloaded"}}`},
		{"overloaded", `"http_status": 503, "error_code": "slow_down"`, "A sudden increase in your request rate is impacting service reliability. Please reduce your request rate."},
		{"server_error", `"http_status": 200, "stream": true, "phase": "stream"`, `{"type":"response.failed","response":{"id":"resp_1","status":"failed","error":{"code":"server_error","message":"The model failed to generate a response."}}}`},
		{"rate_limited", `"http_status": 200, "stream": true, "phase": "stream"`, `{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"Rate limit reached for gpt-5 on tokens per min."}}}`},
		{"context_overflow", `"http_status": 200, "stream": true, "phase": "stream"`, `{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"Your input exceeds the context window of this model. Please adjust your input and try again."}}}`},
		{"ok", `"http_status": 200, "finish_reason": "stop", "output_tokens": 42, "response": "Yes."`, ""},
		{"ok", `"http_status": 200, "finish_reason": "length", "output_tokens": 400, "reasoning_tokens": 0, "response": "The first part"`, ""},
		{"bad_request", `"http_status": 200, "finish_reason": "length", "output_tokens": 4096, "reasoning_tokens": 4096, "response": ""`, ""},
	}},
	{"OpenAI SDK", []dialectSignal{
		{"quota", "", "Error code: 429 - {'error': {'message': 'You exceeded your current quota, please check your plan and billing details.', 'type': 'insufficient_quota', 'param': None, 'code': 'insufficient_quota'}}"},
		{"rate_limited", `"error_type": "openai.RateLimitError"`, "Error code: 429 - {'error': {'message': 'Rate limit reached for gpt-4o-mini in organization org-1 on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.', 'type': 'requests', 'param': None, 'code': 'rate_limit_exceeded'}}"},
		{"context_overflow", `"error_type": "BadRequestError"`, "Error code: 400 - {'error': {'message': \"This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.\", 'type': 'invalid_request_error', 'param': 'messages', 'code': 'context_length_exceeded'}}"},
		{"auth", `"error_type": "AuthenticationError"`, "Error code: 401 - {'error': {'message': 'Incorrect API key provided: sk-proj-********abcd. You can find your API key at https://platform.openai.com/account/api-keys.', 'type': 'invalid_request_error', 'param': None, 'code': 'invalid_api_key'}}"},
		{"model_missing", `"error_type": "NotFoundError"`, "Error code: 404 - {'error': {'message': 'The model `gpt-9` does not exist or you do not have access to it.', 'type': 'invalid_request_error', 'param': None, 'code': 'model_not_found'}}"},
		{"content_blocked", "", "Error code: 400 - {'error': {'message': 'Your request was rejected.', 'type': 'invalid_request_error', 'param': None, 'code': 'content_policy_violation'}}"},
		{"bad_request", "", "openai.BadRequestError: Error code: 400 - {'error': {'message': \"Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.\", 'type': 'invalid_request_error', 'param': 'temperature', 'code': 'unsupported_value'}}"},
		{"server_error", `"error_type": "InternalServerError"`, "Error code: 500 - {'error': {'message': 'The server had an error while processing your request. Sorry about that!', 'type': 'server_error', 'param': None, 'code': None}}"},
		{"bad_gateway", "", "openai.InternalServerError: <html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>cloudflare</center>\r\n</body>\r\n</html>"},
		{"timeout", `"error_type": "openai.APITimeoutError"`, "Request timed out."},
		{"unreachable", `"error_type": "openai.APIConnectionError"`, "Connection error."},
		{"quota", `"error_type": "RateLimitError"`, "429 You exceeded your current quota, please check your plan and billing details."},
		{"auth", "", "401 Incorrect API key provided: sk-abcd1234. You can find your API key at https://platform.openai.com/account/api-keys."},
		{"rate_limited", "", "429 status code (no body)"},
		{"unavailable", "", "503 no healthy upstream"},
		{"cancelled", `"error_type": "APIUserAbortError"`, "Request was aborted."},
		{"refused", "", "Traceback (most recent call last):\n  File \"/app/.venv/lib/python3.12/site-packages/httpcore/_sync/connection.py\", line 124, in _connect\n    stream = self._network_backend.connect_tcp(**kwargs, timeout=timeout)\nhttpcore.ConnectError: [Errno 111] Connection refused\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File \"/app/agent.py\", line 12, in ask\n    client.chat.completions.create(model=\"m\", messages=[])\nopenai.APIConnectionError: Connection error."},
	}},
	{"Anthropic", []dialectSignal{
		{"overloaded", `"http_status": 529`, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_011"}`},
		{"overloaded", `"http_status": 200, "stream": true, "phase": "stream", "first_token_ms": 400`, `{"type":"error","error":{"details":null,"type":"overloaded_error","message":"Overloaded"},"request_id":"req_011"}`},
		{"overloaded", `"error_type": "anthropic.InternalServerError"`, "Error code: 529 - {'type': 'error', 'error': {'type': 'overloaded_error', 'message': 'Overloaded'}}"},
		{"rate_limited", `"http_status": 429, "retry_after_s": "42"`, `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed the rate limit for your organization (1234-abcd) of 30,000 input tokens per minute. For details, refer to: https://docs.anthropic.com/en/api/rate-limits."},"request_id":"req_011"}`},
		{"rate_limited", `"http_status": 429, "error_type": "rate_limit_error"`, "Number of concurrent connections has exceeded your rate limit. Please try again later or contact sales."},
		{"quota", `"http_status": 429`, `{"type":"error","error":{"type":"rate_limit_error","message":"You have reached your workspace spend limit.","details":{"error_code":"enforced_spend_limit_reached"}}}`},
		{"quota", `"http_status": 400`, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}`},
		{"quota", `"http_status": 402`, `{"type":"error","error":{"type":"billing_error","message":"There is a problem with your billing."}}`},
		{"context_overflow", `"http_status": 400`, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 215000 tokens > 200000 maximum"}}`},
		{"context_overflow", `"http_status": 400`, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again\"}}"},
		{"bad_request", `"http_status": 400`, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 300000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4"}}`},
		{"bad_request", `"http_status": 400, "error_type": "invalid_request_error"`, "messages: at least one message is required"},
		{"too_large", `"http_status": 413`, `{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}`},
		{"auth", `"http_status": 401`, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`},
		{"forbidden", `"http_status": 403`, `{"type":"error","error":{"type":"permission_error","message":"Your API key does not have permission to use the specified resource."}}`},
		{"model_missing", `"http_status": 404`, `{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}`},
		{"model_missing", `"error_type": "anthropic.NotFoundError"`, "Error code: 404 - {'type': 'error', 'error': {'type': 'not_found_error', 'message': 'model: claude-9'}, 'request_id': 'req_011'}"},
		{"bad_request", `"http_status": 404`, `{"type":"error","error":{"type":"not_found_error","message":"Not Found"}}`},
		{"server_error", `"http_status": 500`, `{"type":"error","error":{"type":"api_error","message":"Internal server error"}}`},
		{"gateway_timeout", `"http_status": 200, "stream": true, "phase": "stream"`, `{"type":"error","error":{"type":"timeout_error","message":"Request timed out"}}`},
		{"gateway_timeout", `"http_status": 504`, `{"type":"error","error":{"type":"timeout_error","message":"Request timed out"}}`},
		{"content_blocked", `"http_status": 400`, `{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}`},
		{"content_blocked", `"http_status": 200, "finish_reason": "refusal", "response": ""`, ""},
		{"empty", `"http_status": 200, "finish_reason": "end_turn", "output_tokens": 3, "response": ""`, ""},
		{"ok", `"http_status": 200, "finish_reason": "tool_use", "output_tokens": 80, "response": ""`, ""},
		{"ok", `"http_status": 200, "stream": true, "finish_reason": "end_turn", "output_tokens": 80`, ""},
	}},
	{"Bedrock", []dialectSignal{
		{"rate_limited", `"error_type": "ClientError"`, "An error occurred (ThrottlingException) when calling the InvokeModel operation (reached max retries: 4): Too many requests, please wait before trying again."},
		{"context_overflow", `"http_status": 400, "error_code": "ValidationException"`, "Input is too long for requested model."},
		{"forbidden", `"http_status": 403, "error_type": "AccessDeniedException"`, "You don't have access to the model with the specified model ID."},
		{"server_error", `"http_status": 424, "error_type": "ModelErrorException"`, "The model returned the following errors: unexpected end of stream"},
		{"gateway_timeout", `"http_status": 408, "error_type": "ModelTimeoutException"`, "Model has timed out in processing the request. Try your request again."},
		{"unavailable", `"http_status": 503, "error_type": "ServiceUnavailableException"`, "Bedrock is unable to process your request."},
		{"timeout", `"error_type": "botocore.exceptions.ReadTimeoutError"`, `Read timeout on endpoint URL: "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/invoke"`},
		{"unreachable", `"error_type": "botocore.exceptions.EndpointConnectionError"`, `Could not connect to the endpoint URL: "https://bedrock-runtime.eu-nowhere-1.amazonaws.com/model/m/invoke"`},
	}},
	{"Gemini", []dialectSignal{
		{"rate_limited", `"http_status": 429`, `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. * Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 10\nPlease retry in 36.180384437s.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests","quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier","quotaValue":"10"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}]}}`},
		{"rate_limited", `"http_status": 429`, `{"error":{"code":429,"message":"You exceeded your current quota","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}]}}`},
		{"quota", `"http_status": 429`, `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}`},
		{"overloaded", `"http_status": 503`, `{"error":{"code":503,"message":"This model is currently experiencing high demand. Spikes in demand are usually temporary. Please try again later.","status":"UNAVAILABLE"}}`},
		{"overloaded", "", "503 UNAVAILABLE. {'error': {'code': 503, 'message': 'The model is overloaded. Please try again later.', 'status': 'UNAVAILABLE'}}"},
		{"rate_limited", "", "429 RESOURCE_EXHAUSTED. {'error': {'code': 429, 'message': 'Resource has been exhausted (e.g. check quota).', 'status': 'RESOURCE_EXHAUSTED'}}"},
		{"server_error", `"http_status": 500`, `{"error":{"code":500,"message":"An internal error has occurred. Please retry or report in https://developers.generativeai.google/guide/troubleshooting","status":"INTERNAL"}}`},
		{"gateway_timeout", `"http_status": 504`, `{"error":{"code":504,"message":"Deadline expired before operation could complete.","status":"DEADLINE_EXCEEDED"}}`},
		{"auth", `"http_status": 400`, `{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}`},
		{"forbidden", `"http_status": 403`, `{"error":{"code":403,"message":"Generative Language API has not been used in project 123 before or it is disabled.","status":"PERMISSION_DENIED"}}`},
		{"context_overflow", `"http_status": 400`, `{"error":{"code":400,"message":"The input token count (1050000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}`},
		{"bad_request", `"http_status": 400`, `{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}`},
		{"model_missing", `"http_status": 404`, `{"error":{"code":404,"message":"models/gemini-9 is not found for API version v1beta, or is not supported for generateContent. Call ListModels to see the list of available models and their supported methods.","status":"NOT_FOUND"}}`},
		{"model_missing", "", "404 NOT_FOUND. {'error': {'code': 404, 'message': 'models/gemini-9 is not found for API version v1beta, or is not supported for generateContent.', 'status': 'NOT_FOUND'}}"},
		{"content_blocked", `"http_status": 200, "finish_reason": "SAFETY", "response": ""`, ""},
		{"content_blocked", `"http_status": 200, "finish_reason": "RECITATION", "response": ""`, ""},
		{"ok", `"http_status": 200, "finish_reason": "MAX_TOKENS", "output_tokens": 900, "reasoning_tokens": 300, "response": "Half of it"`, ""},
		{"bad_request", `"http_status": 200, "finish_reason": "MAX_TOKENS", "reasoning_tokens": 900, "response": ""`, ""},
		{"empty", `"http_status": 200, "finish_reason": "STOP", "response": ""`, ""},
	}},
	{"Vertex", []dialectSignal{
		{"rate_limited", `"http_status": 429`, `[{"error":{"code":429,"message":"Resource exhausted. Please try again later. Please refer to https://cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 for more details.","status":"RESOURCE_EXHAUSTED"}}]`},
		{"rate_limited", `"error_type": "google.api_core.exceptions.ResourceExhausted"`, "429 Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_base_model with base model: gemini-2.0-flash. Please submit a quota increase request."},
		{"model_missing", `"http_status": 404`, "{\"error\":{\"code\":404,\"message\":\"Publisher Model `projects/p/locations/us-central1/publishers/google/models/gemini-9` was not found or your project does not have access to it.\",\"status\":\"NOT_FOUND\"}}"},
		{"auth", `"http_status": 401`, `{"error":{"code":401,"message":"Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.","status":"UNAUTHENTICATED"}}`},
		{"forbidden", `"http_status": 403`, `{"error":{"code":403,"message":"Permission 'aiplatform.endpoints.predict' denied on resource '//aiplatform.googleapis.com/projects/p' (or it may not exist).","status":"PERMISSION_DENIED"}}`},
		{"overloaded", `"error_type": "google.api_core.exceptions.ServiceUnavailable"`, "503 The service is currently unavailable. [status: UNAVAILABLE]"},
		{"refused", "", "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = \"failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:8001: Failed to connect to remote host: connect: Connection refused (111)\"\n>"},
		{"refused", "", "503 failed to connect to all addresses; last error: UNKNOWN: ipv6:[::1]:8001: Failed to connect to remote host: Connection refused"},
		{"cancelled", "", "rpc error: code = Canceled desc = context canceled"},
		{"rate_limited", "", "googleapi: Error 429: Quota exceeded for quota metric 'Generate Content API requests per minute', rateLimitExceeded"},
		{"timeout", "", "rpc error: code = DeadlineExceeded desc = context deadline exceeded"},
	}},
	{"Azure OpenAI", []dialectSignal{
		{"rate_limited", `"http_status": 429`, `{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-02-01 have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 26 seconds. Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."}}`},
		{"rate_limited", `"http_status": 429`, `{"statusCode":429,"message":"Rate limit is exceeded. Try again in 5 seconds."}`},
		{"content_blocked", `"http_status": 400`, `{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify your prompt and retry.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation","content_filter_result":{"hate":{"filtered":true,"severity":"high"}}}}}`},
		{"content_blocked", `"http_status": 200, "finish_reason": "content_filter", "response": ""`, ""},
		{"auth", `"http_status": 401`, `{"error":{"code":"401","message":"Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid key for an active subscription and use a correct regional API endpoint for your resource."}}`},
		{"forbidden", `"http_status": 403`, `{"error":{"code":"403","message":"Access denied due to Virtual Network/Firewall rules."}}`},
		{"model_missing", `"http_status": 404`, `{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist. If you created the deployment within the last 5 minutes, please wait a moment and try again."}}`},
		{"bad_request", `"http_status": 404`, `{"error":{"code":"404","message":"Resource not found"}}`},
		{"gateway_timeout", `"http_status": 408`, `{"error":{"code":"Timeout","message":"The operation was timeout."}}`},
		{"server_error", `"http_status": 500`, `{"error":{"code":"InternalServerError","message":"Backend returned unexpected response. Please contact Microsoft for help."}}`},
		{"unavailable", `"http_status": 503`, `{"error":{"code":"ServiceUnavailable","message":"The service is temporarily unable to process your request. Please try again later."}}`},
		{"context_overflow", `"http_status": 400`, `{"error":{"message":"This model's maximum context length is 4097 tokens, however you requested 5000 tokens (4000 in your prompt; 1000 for the completion). Please reduce your prompt; or completion length.","type":"invalid_request_error","param":null,"code":null}}`},
	}},
	{"OpenRouter", []dialectSignal{
		{"quota", `"http_status": 402`, `{"error":{"message":"Insufficient credits. Add more using https://openrouter.ai/settings/credits","code":402}}`},
		{"unaffordable", `"http_status": 402`, `{"error":{"message":"This request requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 1200. To increase, visit https://openrouter.ai/settings/credits and upgrade to a paid account","code":402,"metadata":{"provider_name":null}}}`},
		{"rate_limited", `"http_status": 429`, `{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"deepseek/deepseek-r1:free is temporarily rate-limited upstream. Please retry shortly, or add your own key to accumulate your rate limits","provider_name":"Chutes"}}}`},
		{"rate_limited", `"http_status": 429`, `{"error":{"message":"Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day","code":429,"metadata":{"headers":{"X-RateLimit-Limit":"50","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1772409600000"}}}}`},
		{"bad_gateway", `"http_status": 200, "response": {"error":{"message":"Provider returned error","code":502},"user_id":"user_1"}`, ""},
		{"rate_limited", `"http_status": 200, "response": {"error":{"message":"Provider returned error","code":429}}`, ""},
		{"rate_limited", `"http_status": 200, "response": {"error":{"message":"Provider returned error","code":"429"}}`, ""},
		{"server_error", `"http_status": 200, "stream": true, "finish_reason": "error", "response": "Half an ans"`, ""},
		{"server_error", `"http_status": 200, "stream": true, "phase": "stream"`, `{"id":"gen-1","object":"chat.completion.chunk","provider":"OpenAI","error":{"code":"server_error","message":"Provider disconnected unexpectedly"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}`},
		{"overloaded", `"http_status": 200, "response": ": OPENROUTER PROCESSING\n\ndata: {\"id\":\"gen-1\",\"choices\":[{\"delta\":{\"content\":\"He\"}}]}\n\ndata: {\"error\":{\"code\":529,\"message\":\"Overloaded\"}}\n\ndata: [DONE]\n"`, ""},
		{"bad_gateway", `"http_status": 502`, `{"error":{"message":"Provider returned error","code":502,"metadata":{"raw":"connection refused","provider_name":"X"}}}`},
		{"unavailable", `"http_status": 503`, `{"error":{"message":"There is no available model provider that meets your routing requirements","code":503}}`},
		{"model_missing", `"http_status": 404`, `{"error":{"message":"No endpoints found for anthropic/claude-9.","code":404}}`},
		{"bad_request", `"http_status": 404`, `{"error":{"message":"No endpoints found that support tool use. To learn more about provider routing, visit: https://openrouter.ai/docs/provider-routing","code":404}}`},
		{"model_missing", `"http_status": 400`, `{"error":{"message":"openai/gpt-99 is not a valid model ID","code":400}}`},
		{"auth", `"http_status": 401`, `{"error":{"message":"No auth credentials found","code":401}}`},
		{"content_blocked", `"http_status": 403`, `{"error":{"message":"openai/gpt-4o requires moderation on OpenAI. Your input was flagged for \"violence\".","code":403,"metadata":{"reasons":["violence"],"flagged_input":"..."}}}`},
		{"gateway_timeout", `"http_status": 408`, `{"error":{"message":"Request timed out","code":408}}`},
	}},
	{"Z.ai, Moonshot, Groq, Scaleway", []dialectSignal{
		{"quota", `"http_status": 429`, `{"error":{"code":"1113","message":"Insufficient balance or no resource package. Please recharge."}}`},
		{"rate_limited", `"http_status": 429`, `{"error":{"code":"1302","message":"High concurrency usage of this API, please reduce concurrency"}}`},
		{"overloaded", `"http_status": 429, "error_code": 1305`, "The API has triggered a rate limit."},
		{"overloaded", `"http_status": 429`, `{"error":{"type":"engine_overloaded_error","message":"The engine is currently overloaded, please try again later"}}`},
		{"rate_limited", `"http_status": 429`, `{"error":"INSUFFICIENT QUOTA","message":"You exceeded your quota of 100000 tokens per minute"}`},
		{"rate_limited", `"http_status": 429`, "{\"error\":{\"message\":\"Rate limit reached for model `llama-3.3-70b-versatile` in organization `org_1` service tier `on_demand` on tokens per day (TPD): Limit 100000, Used 99336, Requested 1024. Please try again in 5m11.04s. Need more tokens?\",\"type\":\"tokens\",\"code\":\"rate_limit_exceeded\"}}"},
		{"model_missing", `"http_status": 400`, "{\"error\":{\"message\":\"The model `mixtral-8x7b-32768` has been decommissioned and is no longer supported.\",\"type\":\"invalid_request_error\",\"code\":\"model_decommissioned\"}}"},
		{"too_large", `"http_status": 413`, `{"error":{"message":"Request Entity Too Large","type":"invalid_request_error","code":"request_too_large"}}`},
	}},
	{"Ollama", []dialectSignal{
		{"refused", "", `Post "http://127.0.0.1:11434/api/generate": dial tcp 127.0.0.1:11434: connect: connection refused`},
		{"unreachable", `"error_type": "ConnectionError"`, "Failed to connect to Ollama. Please check that Ollama is downloaded, running and accessible. https://ollama.com/download"},
		{"queue_full", `"http_status": 503`, `{"error":"server busy, please try again.  maximum pending requests exceeded"}`},
		{"overloaded", `"http_status": 503`, `{"error":"Server overloaded, please retry shortly (ref: 5f1c)"}`},
		{"crashed", `"http_status": 500`, `{"error":"model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, check ollama server logs for details"}`},
		{"crashed", `"http_status": 500`, `{"error":"llama runner process has terminated: signal: killed"}`},
		{"crashed", `"http_status": 500`, `{"error":"model requires more system memory (5.3 GiB) than is available (3.3 GiB)"}`},
		{"server_error", `"http_status": 500`, `{"error":"timed out waiting for llama runner to start - progress 0.00 - "}`},
		{"server_error", `"http_status": 500`, `{"error":"POST predict: Post \"http://127.0.0.1:35331/completion\": EOF"}`},
		{"model_missing", `"http_status": 404`, `{"error":"model 'qwen3:30b' not found"}`},
		{"model_missing", `"error_type": "ollama._types.ResponseError"`, "model \"qwen3:30b\" not found, try pulling it first (status code: 404)"},
		{"bad_request", `"http_status": 404`, "404 page not found"},
		{"bad_request", `"http_status": 400`, `{"error":"registry.ollama.ai/library/gemma:latest does not support tools"}`},
		{"context_overflow", `"http_status": 400`, `{"error":"the input length exceeds the context length"}`},
		{"cancelled", `"http_status": 499`, `{"error":"request canceled"}`},
		{"cancelled", `"http_status": 500`, `{"error":"context canceled"}`},
		{"server_error", `"http_status": 200, "stream": true, "response": "{\"message\":{\"content\":\"he\"},\"done\":false}\n{\"error\":\"an error was encountered while running the model\"}\n"`, ""},
		{"crashed", `"http_status": 200, "stream": true, "phase": "stream"`, `{"error":"model runner has unexpectedly stopped"}`},
		{"ok", `"http_status": 200, "stream": true, "stream_done": true, "response": "{\"message\":{\"content\":\"he\"},\"done\":false}\n{\"done\":true,\"done_reason\":\"stop\"}\n"`, ""},
	}},
	{"vLLM", []dialectSignal{
		{"context_overflow", `"http_status": 400`, `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the messages, Please reduce the length of the messages.","type":"BadRequestError","param":null,"code":400}`},
		{"context_overflow", `"http_status": 400`, `{"error":{"message":"The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that max_model_len is no smaller than the number of text tokens.","type":"BadRequestError","param":null,"code":400}}`},
		{"context_overflow", "", "Error code: 400 - {'object': 'error', 'message': \"'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 8192 tokens and your request has 1000 input tokens (9000 > 8192 - 1000).\", 'type': 'BadRequestError', 'param': None, 'code': 400}"},
		{"model_missing", `"http_status": 404`, "{\"object\":\"error\",\"message\":\"The model `qwen` does not exist.\",\"type\":\"NotFoundError\",\"param\":null,\"code\":404}"},
		{"bad_request", `"http_status": 404`, `{"detail":"Not Found"}`},
		{"bad_request", `"http_status": 400`, `{"object":"error","message":"[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]","type":"BadRequestError","param":null,"code":400}`},
		{"auth", `"http_status": 401`, `{"error":"Unauthorized"}`},
		{"server_error", `"http_status": 500`, `{"object":"error","message":"","type":"InternalServerError","param":null,"code":500}`},
		{"crashed", `"http_status": 500`, `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}`},
		{"crashed", `"http_status": 500`, "vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already."},
		{"crashed", `"http_status": 500`, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"},
		{"unavailable", `"http_status": 503`, ""},
		{"truncated", `"http_status": 200, "stream": true, "error_type": "httpx.RemoteProtocolError"`, "peer closed connection without sending complete message body (incomplete chunked read)"},
	}},
	{"TGI", []dialectSignal{
		{"queue_full", `"http_status": 429`, `{"error":"Model is overloaded","error_type":"overloaded"}`},
		{"server_error", `"http_status": 424`, `{"error":"Request failed during generation: Server error: CUDA error: an illegal memory access was encountered","error_type":"generation"}`},
		{"server_error", `"http_status": 500`, `{"error":"Incomplete generation","error_type":"incomplete_generation"}`},
		{"context_overflow", `"http_status": 422`, "{\"error\":\"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`\",\"error_type\":\"validation\"}"},
		{"context_overflow", `"http_status": 422`, "{\"error\":\"Input validation error: `inputs` must have less than 4095 tokens. Given: 5000\",\"error_type\":\"validation\"}"},
		{"bad_request", `"http_status": 422`, "{\"error\":\"Input validation error: `temperature` must be strictly positive\",\"error_type\":\"validation\"}"},
		{"unavailable", `"http_status": 503`, `{"error":"unhealthy","error_type":"healthcheck"}`},
		{"loading", `"http_status": 503`, `{"error":"Model bigscience/bloom is currently loading","estimated_time":20.0}`},
		{"quota", `"http_status": 402`, "You have exceeded your monthly included credits for Inference Providers. Subscribe to PRO to get 20x more monthly included credits."},
		{"server_error", `"http_status": 200, "stream": true, "response": "data:{\"index\":1,\"token\":{\"text\":\"He\"}}\n\ndata:{\"error\":\"Request failed during generation: Server error: \",\"error_type\":\"generation\"}\n\n"`, ""},
		{"unavailable", `"error_type": "huggingface_hub.errors.HfHubHTTPError"`, "503 Server Error: Service Temporarily Unavailable for url: https://router.huggingface.co/v1/chat/completions"},
	}},
	{"llama.cpp", []dialectSignal{
		{"loading", `"http_status": 503`, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`},
		{"loading", "", "Error code: 503 - {'error': {'message': 'Loading model', 'type': 'unavailable_error', 'code': 503}}"},
		{"context_overflow", `"http_status": 400`, `{"error":{"code":400,"message":"the request exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}`},
		{"context_overflow", `"http_status": 500`, `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`},
		{"context_overflow", `"http_status": 500`, `{"error":{"code":500,"message":"input is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}`},
		{"auth", `"http_status": 401`, `{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}`},
		{"bad_request", `"http_status": 404`, `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`},
		{"server_error", `"http_status": 501`, "{\"error\":{\"code\":501,\"message\":\"This server does not support embeddings. Start it with `--embeddings`\",\"type\":\"not_supported_error\"}}"},
		{"queue_full", `"http_status": 503`, `{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}`},
		{"server_error", `"http_status": 200, "stream": true, "response": "data: {\"choices\":[{\"delta\":{\"content\":\"He\"}}]}\n\nerror: {\"code\":500,\"message\":\"failed to decode\",\"type\":\"server_error\"}\n\n"`, ""},
		{"loading", `"http_status": 503`, "llama-swap: process is not ready"},
		{"bad_gateway", `"http_status": 502`, "llama-swap: unable to start process: upstream command exited prematurely but successfully"},
	}},
	{"LM Studio", []dialectSignal{
		{"refused", "", "connect ECONNREFUSED 127.0.0.1:1234"},
		{"context_overflow", `"http_status": 400`, `{"error":"Trying to keep the first 5240 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input"}`},
		{"model_missing", `"http_status": 404`, "{\"error\":{\"message\":\"No models loaded. Please load a model in the developer page or use the `lms load` command.\",\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}"},
		{"crashed", `"http_status": 400`, `{"error":"The model has crashed without additional information. (Exit code: 18446744072635812000)"}`},
		{"server_error", `"http_status": 200`, `{"error":"Unexpected endpoint or method. (POST /v1/chat)"}`},
		{"cancelled", "", "Client disconnected. Stopping generation... (If the model is busy processing the prompt, it will finish first.)"},
		{"bad_request", `"http_status": 400`, `{"error":"'messages' array must only contain objects with a 'role' field"}`},
	}},
	{"LiteLLM", []dialectSignal{
		{"rate_limited", `"http_status": 429`, `{"error":{"message":"litellm.RateLimitError: RateLimitError: OpenAIException - Rate limit reached for gpt-4o","type":"throttling_error","param":null,"code":"429"}}`},
		{"rate_limited", `"http_status": 429`, `{"error":{"message":"No deployments available for selected model, Try again in 60 seconds. Passed model=gpt-4. pre-call-checks=False, cooldown_list=['abc']","type":"None","param":"None","code":"429"}}`},
		{"rate_limited", "", "litellm.types.router.RouterRateLimitError: No deployments available for selected model, Try again in 5 seconds. Passed model=gpt-4."},
		{"auth", `"http_status": 401`, `{"error":{"message":"Authentication Error, Invalid proxy server token passed. Received API Key = sk-...abcd, Key Hash (Token) =88dc28d0. Unable to find token in cache or LiteLLM_VerificationTokenTable","type":"token_not_found_in_db","param":"key","code":"401"}}`},
		{"quota", `"http_status": 400`, `{"error":{"message":"Budget has been exceeded! Current cost: 10.1, Max budget: 10.0","type":"budget_exceeded","param":null,"code":"400"}}`},
		{"model_missing", `"http_status": 400`, "{\"error\":{\"message\":\"/chat/completions: Invalid model name passed in model=gpt-99. Call `/v1/models` to view available models for your key.\",\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":\"400\"}}"},
		{"context_overflow", `"http_status": 400`, `{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException - too long","type":null,"param":null,"code":"400"}}`},
		{"content_blocked", `"http_status": 400`, `{"error":{"message":"litellm.BadRequestError: litellm.ContentPolicyViolationError: AzureException - filtered","type":null,"param":null,"code":"400"}}`},
		{"overloaded", "", "litellm.InternalServerError: AnthropicException - {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}. Handle with `litellm.InternalServerError`."},
		{"refused", "", "litellm.APIConnectionError: OllamaException - [Errno 111] Connection refused"},
		{"server_error", `"http_status": 500`, `{"error":{"message":"litellm.APIConnectionError: OllamaException - [Errno 111] Connection refused","type":null,"param":null,"code":"500"}}`},
		{"gateway_timeout", `"http_status": 408`, `{"error":{"message":"litellm.Timeout: APITimeoutError - Request timed out. Error_str: Request timed out. - timeout value=6000.0","type":null,"param":null,"code":"408"}}`},
		{"timeout", `"error_type": "litellm.exceptions.Timeout"`, "litellm.Timeout: Connection timed out after 600.0 seconds."},
		{"auth", "", "litellm.AuthenticationError: AuthenticationError: OpenAIException - Incorrect API key provided: sk-ab***."},
		{"model_missing", "", "litellm.NotFoundError: NotFoundError: OpenAIException - The model `gpt-99` does not exist"},
		{"bad_request", "", "litellm.BadRequestError: LLM Provider NOT provided. Pass in the LLM provider you are trying to call. You passed model=foo"},
		{"unavailable", "", "litellm.ServiceUnavailableError: ServiceUnavailableError: OpenAIException - upstream connect error or disconnect/reset before headers"},
	}},
	{"Python requests", []dialectSignal{
		{"refused", `"error_type": "requests.exceptions.ConnectionError"`, "HTTPConnectionPool(host='gpu-box', port=11434): Max retries exceeded with url: /api/chat (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f12>: Failed to establish a new connection: [Errno 111] Connection refused'))"},
		{"refused", "", "HTTPConnectionPool(host='::1', port=11434): Max retries exceeded with url: /api/chat (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f12>: Failed to establish a new connection: [Errno 61] Connection refused'))"},
		{"unreachable", "", "HTTPSConnectionPool(host='api.exmaple.com', port=443): Max retries exceeded with url: /v1 (Caused by NameResolutionError(\"<urllib3.connection.HTTPSConnection object at 0x7f12>: Failed to resolve 'api.exmaple.com' ([Errno 8] nodename nor servname provided, or not known)\"))"},
		{"unreachable", "", "HTTPConnectionPool(host='10.0.0.9', port=80): Max retries exceeded with url: / (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f12>: Failed to establish a new connection: [Errno 101] Network is unreachable'))"},
		{"connect_timeout", `"error_type": "ConnectTimeout"`, "HTTPConnectionPool(host='10.0.0.9', port=11434): Max retries exceeded with url: /api/chat (Caused by ConnectTimeoutError(<urllib3.connection.HTTPConnection object at 0x7f12>, 'Connection to 10.0.0.9 timed out. (connect timeout=5)'))"},
		{"timeout", `"error_type": "requests.exceptions.ReadTimeout"`, "HTTPConnectionPool(host='gpu-box', port=11434): Read timed out. (read timeout=120)"},
		{"stalled", `"error_type": "requests.exceptions.ConnectionError", "phase": "stream", "http_status": 200`, "HTTPConnectionPool(host='gpu-box', port=11434): Read timed out."},
		{"tls", `"error_type": "requests.exceptions.SSLError"`, "HTTPSConnectionPool(host='gpu-box', port=443): Max retries exceeded with url: /v1 (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain (_ssl.c:1006)')))"},
		{"reset", `"error_type": "ConnectionError"`, "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))"},
		{"truncated", `"error_type": "requests.exceptions.ChunkedEncodingError"`, "('Connection broken: IncompleteRead(512 bytes read, 1024 more expected)', IncompleteRead(512 bytes read, 1024 more expected))"},
		{"truncated", `"error_type": "ChunkedEncodingError"`, `("Connection broken: InvalidChunkLength(got length b'', 0 bytes read)", InvalidChunkLength(got length b'', 0 bytes read))`},
		{"unavailable", "", "HTTPConnectionPool(host='gpu-box', port=8000): Max retries exceeded with url: /v1/chat/completions (Caused by ResponseError('too many 503 error responses'))"},
		{"auth", `"error_type": "requests.exceptions.HTTPError"`, "401 Client Error: Unauthorized for url: https://api.openai.com/v1/chat/completions"},
		{"bad_request", `"error_type": "HTTPError"`, "404 Client Error: Not Found for url: http://gpu-box:8000/v1/chat/completion"},
		{"rate_limited", `"error_type": "HTTPError"`, "429 Client Error: Too Many Requests for url: https://api.groq.com/openai/v1/chat/completions"},
	}},
	{"Python httpx", []dialectSignal{
		{"refused", `"error_type": "httpx.ConnectError"`, "[Errno 111] Connection refused"},
		{"refused", `"error_type": "httpcore.ConnectError"`, "[WinError 10061] No connection could be made because the target machine actively refused it"},
		{"unreachable", `"error_type": "httpx.ConnectError"`, "[Errno -2] Name or service not known"},
		{"unreachable", `"error_type": "httpx.ConnectError"`, "All connection attempts failed"},
		{"tls", `"error_type": "httpx.ConnectError"`, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1000)"},
		{"tls", `"error_type": "httpx.ConnectTimeout"`, "_ssl.c:989: The handshake operation timed out"},
		{"connect_timeout", `"error_type": "httpx.ConnectTimeout"`, "timed out"},
		{"timeout", `"error_type": "httpx.ReadTimeout"`, "The read operation timed out"},
		{"timeout", `"error_type": "httpcore.ReadTimeout"`, ""},
		{"stalled", `"error_type": "httpx.ReadTimeout", "first_token_ms": 310`, "The read operation timed out"},
		{"caller_offline", `"error_type": "httpx.PoolTimeout"`, ""},
		{"reset", `"error_type": "httpx.ReadError"`, ""},
		{"reset", `"error_type": "httpx.WriteError"`, "[Errno 32] Broken pipe"},
		{"reset", `"error_type": "httpcore.RemoteProtocolError"`, "Server disconnected without sending a response."},
		{"truncated", `"error_type": "httpx.RemoteProtocolError", "http_status": 200`, "peer closed connection without sending complete message body (received 512 bytes, expected 1024)"},
		{"auth", `"error_type": "httpx.HTTPStatusError"`, "Client error '401 Unauthorized' for url 'https://api.mistral.ai/v1/chat/completions'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/401"},
		{"server_error", `"error_type": "httpx.HTTPStatusError"`, "Server error '500 Internal Server Error' for url 'http://gpu-box:8000/v1/chat/completions'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/500"},
		{"reset", "", "Traceback (most recent call last):\n  File \"/app/.venv/lib/python3.12/site-packages/httpcore/_async/http11.py\", line 217, in _receive_event\n    data = await self._network_stream.read(\n        self.READ_NUM_BYTES, timeout=timeout\n    )\n  File \"/app/.venv/lib/python3.12/site-packages/httpcore/_backends/anyio.py\", line 35, in read\n    with anyio.fail_after(timeout):\nhttpcore.ReadError\n"},
	}},
	{"Python aiohttp", []dialectSignal{
		{"refused", `"error_type": "aiohttp.ClientConnectorError"`, "Cannot connect to host gpu-box:11434 ssl:default [Connect call failed ('10.0.0.9', 11434)]"},
		{"refused", "", "Cannot connect to host localhost:11434 ssl:default [Multiple exceptions: [Errno 111] Connect call failed ('::1', 11434, 0, 0), [Errno 111] Connect call failed ('127.0.0.1', 11434)]"},
		{"unreachable", "", "OSError: [Errno 113] Connect call failed ('10.0.0.9', 11434)"},
		{"connect_timeout", "", "TimeoutError: [Errno 110] Connect call failed ('10.0.0.9', 11434)"},
		{"unreachable", `"error_type": "aiohttp.ClientConnectorDNSError"`, "Cannot connect to host gpu-bxo:443 ssl:default [Name or service not known]"},
		{"tls", `"error_type": "aiohttp.ClientConnectorCertificateError"`, "Cannot connect to host gpu-box:443 ssl:True [SSLCertVerificationError: (1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)')]"},
		{"connect_timeout", `"error_type": "aiohttp.ConnectionTimeoutError"`, "Connection timeout to host http://gpu-box:11434/api/chat"},
		{"timeout", `"error_type": "aiohttp.SocketTimeoutError"`, "Timeout on reading data from socket"},
		{"stalled", `"error_type": "aiohttp.SocketTimeoutError", "http_status": 200, "phase": "stream"`, "Timeout on reading data from socket"},
		{"timeout", `"error_type": "asyncio.exceptions.TimeoutError"`, ""},
		{"reset", `"error_type": "aiohttp.ServerDisconnectedError"`, "Server disconnected"},
		{"reset", `"error_type": "aiohttp.ClientOSError"`, "[Errno 104] Connection reset by peer"},
		{"truncated", `"error_type": "aiohttp.ClientPayloadError"`, "Response payload is not completed: <TransferEncodingError: 400, message='Not enough data to satisfy transfer length header.'>"},
		{"rate_limited", `"error_type": "aiohttp.ClientResponseError"`, "429, message='Too Many Requests', url='https://api.openai.com/v1/chat/completions'"},
		{"auth", `"error_type": "aiohttp.ClientResponseError"`, "401, message='Unauthorized', url='https://api.openai.com/v1/chat/completions'"},
		{"cancelled", `"error_type": "asyncio.exceptions.CancelledError"`, ""},
	}},
	{"Go", []dialectSignal{
		{"refused", "", `Post "http://[2001:db8::7]:8080/v1/chat/completions": dial tcp [2001:db8::7]:8080: connect: connection refused`},
		{"refused", "", `dial tcp 10.0.0.9:11434: connectex: No connection could be made because the target machine actively refused it.`},
		{"unreachable", "", `Post "http://gpu-bxo:11434/api/chat": dial tcp: lookup gpu-bxo on 127.0.0.53:53: no such host`},
		{"unreachable", "", "dial tcp: lookup gpu-box: i/o timeout"},
		{"unreachable", "", "dial tcp [fe80::1%eth0]:11434: connect: no route to host"},
		{"connect_timeout", "", `Post "http://10.0.0.9:11434/api/chat": dial tcp 10.0.0.9:11434: i/o timeout (Client.Timeout exceeded while awaiting headers)`},
		{"connect_timeout", "", "dial tcp 10.0.0.9:11434: connect: operation timed out"},
		{"connect_timeout", "", "dial tcp 10.0.0.9:11434: connectex: A connection attempt failed because the connected party did not properly respond after a period of time, or established connection failed because connected host has failed to respond."},
		{"tls", "", "tls: failed to verify certificate: x509: certificate is valid for localhost, not gpu-box"},
		{"tls", "", `Get "https://gpu-box:8080/v1/models": http: server gave HTTP response to HTTPS client`},
		{"tls", "", "net/http: TLS handshake timeout"},
		{"timeout", "", `Post "http://gpu-box:11434/api/chat": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`},
		{"timeout", `"http_status": 200, "first_token_ms": 900`, "context deadline exceeded (Client.Timeout or context cancellation while reading body)"},
		{"timeout", "", "read tcp [2001:db8::1]:40112->[2001:db8::7]:11434: i/o timeout"},
		{"reset", "", "read tcp 10.0.0.5:40112->10.0.0.9:11434: wsarecv: An existing connection was forcibly closed by the remote host."},
		{"reset", "", `Post "http://gpu-box:11434/api/chat": EOF`},
		{"reset", "", "http2: client connection lost"},
		{"reset", "", "stream error: stream ID 1; INTERNAL_ERROR; received from peer"},
		{"truncated", `"http_status": 200, "stream": true`, "unexpected EOF"},
		{"truncated", `"http_status": 200, "phase": "stream"`, "read tcp 10.0.0.5:40112->10.0.0.9:11434: read: connection reset by peer"},
		{"cancelled", "", `Post "http://gpu-box:11434/api/chat": context canceled`},
		{"cancelled", "", "net/http: request canceled while waiting for connection"},
		{"caller_offline", "", "dial tcp: lookup gpu-box: socket: too many open files"},
	}},
	{"Node", []dialectSignal{
		{"refused", "", "TypeError: fetch failed\n    at node:internal/deps/undici/undici:13510:13\n    at process.processTicksAndRejections (node:internal/process/task_queues:105:5) {\n  [cause]: Error: connect ECONNREFUSED ::1:11434\n      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {\n    errno: -111,\n    code: 'ECONNREFUSED',\n    syscall: 'connect'\n  }\n}"},
		{"refused", `"error_code": "ECONNREFUSED"`, "AggregateError"},
		{"unreachable", `"error_type": "TypeError"`, "fetch failed"},
		{"unreachable", `"error_code": "ENOTFOUND"`, "getaddrinfo ENOTFOUND gpu-bxo"},
		{"unreachable", "", "Error: getaddrinfo EAI_AGAIN gpu-box"},
		{"unreachable", "", "connect EHOSTUNREACH 10.0.0.9:11434 - Local (10.0.0.5:53022)"},
		{"connect_timeout", `"error_code": "UND_ERR_CONNECT_TIMEOUT"`, "Connect Timeout Error (attempted address: 10.0.0.9:443, timeout: 10000ms)"},
		{"connect_timeout", `"error_code": "ETIMEDOUT"`, "connect ETIMEDOUT 10.0.0.9:443"},
		{"timeout", `"error_code": "UND_ERR_HEADERS_TIMEOUT"`, "fetch failed"},
		{"stalled", `"error_code": "UND_ERR_BODY_TIMEOUT", "http_status": 200`, "terminated"},
		{"timeout", `"error_code": "ECONNABORTED"`, "timeout of 30000ms exceeded"},
		{"timeout", `"error_type": "TimeoutError"`, "The operation was aborted due to timeout"},
		{"cancelled", `"error_type": "AbortError"`, "This operation was aborted"},
		{"cancelled", `"error_code": "ERR_CANCELED"`, "canceled"},
		{"cancelled", `"error_code": "UND_ERR_ABORTED"`, "Request aborted"},
		{"reset", `"error_code": "ECONNRESET"`, "socket hang up"},
		{"reset", `"error_code": "UND_ERR_SOCKET"`, "other side closed"},
		{"reset", "", "Error: socket hang up\n    at connResetException (node:internal/errors:787:14)\n    at Socket.socketOnEnd (node:_http_client:519:23)\n    at listOnTimeout (node:internal/timers:581:17)"},
		{"truncated", `"error_code": "ERR_STREAM_PREMATURE_CLOSE"`, "Premature close"},
		{"tls", `"error_code": "SELF_SIGNED_CERT_IN_CHAIN"`, "self-signed certificate in certificate chain"},
		{"tls", `"error_code": "ERR_TLS_CERT_ALTNAME_INVALID"`, "Hostname/IP does not match certificate's altnames: Host: gpu-box. is not in the cert's altnames: DNS:localhost"},
		{"rate_limited", `"error_type": "AxiosError", "error_code": "ERR_BAD_REQUEST"`, "Request failed with status code 429"},
		{"bad_gateway", `"error_type": "AxiosError", "error_code": "ERR_BAD_RESPONSE"`, "Request failed with status code 502"},
	}},
	{"curl", []dialectSignal{
		{"unreachable", "", "curl: (6) Could not resolve host: gpu-bxo"},
		{"refused", "", "curl: (7) Failed to connect to gpu-box port 11434 after 2 ms: Connection refused"},
		{"unreachable", "", "curl: (7) Failed to connect to 10.0.0.9 port 11434 after 3071 ms: No route to host"},
		{"unavailable", "", "curl: (22) The requested URL returned error: 503"},
		{"connect_timeout", "", "curl: (28) Failed to connect to 10.0.0.9 port 11434 after 5001 ms: Timeout was reached"},
		{"connect_timeout", "", "curl: (28) Connection timed out after 5001 milliseconds"},
		{"timeout", "", "curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received"},
		{"stalled", "", "curl: (28) Operation too slow. Less than 1 bytes/sec transferred the last 30 seconds"},
		{"tls", "", "curl: (35) error:0A000410:SSL routines::ssl/tls alert handshake failure"},
		{"tls", "", "curl: (60) SSL certificate problem: unable to get local issuer certificate"},
		{"reset", "", "curl: (52) Empty reply from server"},
		{"reset", "", "curl: (56) Recv failure: Connection reset by peer"},
		{"reset", "", "curl: (92) HTTP/2 stream 1 was not closed cleanly: INTERNAL_ERROR (err 2)"},
		{"truncated", "", "curl: (18) transfer closed with 1024 bytes remaining to read"},
	}},
	{"Java, Rust and .NET", []dialectSignal{
		{"refused", "", "java.net.ConnectException: Connection refused"},
		{"unreachable", "", "java.net.UnknownHostException: gpu-bxo"},
		{"timeout", "", "java.net.SocketTimeoutException: Read timed out"},
		{"tls", "", "javax.net.ssl.SSLHandshakeException: PKIX path building failed: sun.security.provider.certpath.SunCertPathBuilderException: unable to find valid certification path to requested target"},
		{"refused", "", "error sending request for url (http://gpu-box:11434/api/chat): client error (Connect): tcp connect error: Connection refused (os error 111)"},
		{"unreachable", "", "error trying to connect: dns error: failed to lookup address information: Name or service not known"},
		{"reset", "", "client error (SendRequest): connection closed before message completed"},
		{"timeout", "", "The request was canceled due to the configured HttpClient.Timeout of 100 seconds elapsing."},
		{"tls", "", "The request was aborted: Could not create SSL/TLS secure channel."},
		{"cancelled", `"error_type": "System.Threading.Tasks.TaskCanceledException"`, "A task was canceled."},
	}},
	{"codes alone", []dialectSignal{
		{"context_overflow", `"http_status": 500, "error_code": "context_length_exceeded"`, ""},
		{"quota", `"http_status": 429, "error_code": "credit_balance_exhausted"`, ""},
		{"rate_limited", `"http_status": 429, "retry_after_s": 30`, "insufficient_quota for this key"},
		{"overloaded", `"error_type": "overloaded"`, ""},
		{"overloaded", `"error_code": "UNAVAILABLE"`, ""},
		{"overloaded", `"error_type": "StatusCode.UNAVAILABLE"`, ""},
		{"overloaded", "", "UNAVAILABLE: try later"},
		{"loading", `"http_status": 503, "error_code": "model_loading"`, ""},
		{"model_missing", `"http_status": 404, "error_code": "model_not_found"`, ""},
		{"model_missing", `"http_status": 404, "error_type": "not_found_error"`, ""},
		{"auth", `"http_status": 400, "error_code": "INVALID_API_KEY"`, ""},
		{"auth", `"error_type": "anthropic.AuthenticationError"`, ""},
		{"forbidden", `"error_type": "openai.PermissionDeniedError"`, ""},
		{"forbidden", "", "litellm.PermissionDeniedError: not for this key"},
		{"rate_limited", `"error_type": "openai.RateLimitError"`, ""},
		{"rate_limited", `"error_code": 429`, ""},
		{"too_large", `"error_type": "request_too_large"`, ""},
		{"too_large", "", "Payload Too Large"},
		{"bad_request", `"error_type": "openai.UnprocessableEntityError"`, ""},
		{"bad_request", `"error_type": "httpx.UnsupportedProtocol"`, "Request URL is missing an 'http://' or 'https://' protocol."},
		{"bad_gateway", `"error_type": "BadGatewayError"`, ""},
		{"unavailable", `"error_type": "litellm.ServiceUnavailableError"`, ""},
		{"server_error", `"error_type": "openai.InternalServerError"`, ""},
		{"gateway_timeout", "", "504: Gateway Time-out"},
		{"gateway_timeout", "", "upstream said Gateway Timeout"},
		{"unreachable", `"error_type": "socket.gaierror"`, ""},
		{"unreachable", `"error_code": "EHOSTUNREACH"`, ""},
		{"unreachable", `"error_type": "openai.APIConnectionError"`, ""},
		{"unreachable", `"error_type": "AxiosError", "error_code": "ERR_NETWORK"`, "Network Error"},
		{"truncated", `"error_type": "requests.exceptions.ChunkedEncodingError"`, ""},
		{"reset", `"error_type": "requests.exceptions.ConnectionError", "phase": "headers"`, "BrokenPipeError(32, 'Broken pipe')"},
		{"timeout", `"phase": "stream", "timeout_ms": 60000, "duration_ms": 60000`, ""},
		{"unknown", `"response": "hello", "finish_reason": "stop"`, "something odd"},
		{"context_overflow", `"http_status": 200, "finish_reason": "model_context_window_exceeded", "response": ""`, ""},
		{"ok", `"http_status": 200, "finish_reason": "model_context_window_exceeded", "response": "As far as it went"`, ""},
	}},
	{"other languages", []dialectSignal{
		{"refused", "", "[Errno 111] Verbindungsaufbau abgelehnt"},
		{"refused", "", "[WinError 10061] Es konnte keine Verbindung hergestellt werden, da der Zielcomputer die Verbindung verweigerte"},
		{"refused", "", "tcp connect error: Connexion refusée (os error 111)"},
		{"connect_timeout", "", "[Errno 110] Die Wartezeit für die Verbindung ist abgelaufen"},
		{"unreachable", "", "[Errno 113] Keine Route zum Zielrechner"},
		{"unreachable", "", "[Errno -2] Der Name oder der Dienst ist nicht bekannt"},
		{"reset", "", "[Errno 104] Die Verbindung wurde vom Kommunikationspartner zurückgesetzt"},
		{"reset", "", "[WinError 10054] Eine vorhandene Verbindung wurde vom Remotehost geschlossen"},
		{"rate_limited", `"http_status": 429`, "請求過於頻繁，請稍後再試"},
		{"unknown", "", "不明なエラー"},
	}},
	{"proxies and gateways", []dialectSignal{
		{"bad_gateway", `"http_status": 502`, "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center><hr><center>nginx/1.24.0</center></body></html>"},
		{"bad_gateway", `"http_status": 502`, `{"error":"dial tcp 10.0.0.9:11434: connect: connection refused"}`},
		{"bad_gateway", `"http_status": 521`, "Web server is down"},
		{"bad_gateway", `"http_status": 522`, "Connection timed out"},
		{"bad_gateway", `"http_status": 520`, "<title>api.example.com | 520: Web server is returning an unknown error</title>"},
		{"gateway_timeout", `"http_status": 524`, "A timeout occurred"},
		{"server_error", `"http_status": 530`, "error code: 1033"},
		{"unavailable", `"http_status": 503`, "upstream connect error or disconnect/reset before headers. retried and the latest reset reason: remote connection failure, transport failure reason: delayed connect error: Connection refused"},
		{"unavailable", `"http_status": 503`, "no healthy upstream"},
		{"unavailable", `"http_status": 503`, "<html><body><h1>503 Service Temporarily Unavailable</h1></body></html>"},
		{"gateway_timeout", `"http_status": 504`, "upstream request timeout"},
		{"unavailable", `"http_status": 404`, `{"error":"Model not found or no running instances available"}`},
		{"cancelled", `"http_status": 499`, "client closed request"},
		{"too_large", `"http_status": 413`, "<html><head><title>413 Request Entity Too Large</title></head></html>"},
		{"bad_request", `"http_status": 302`, ""},
		{"forbidden", `"http_status": 403`, "<!DOCTYPE html><html><head><title>Just a moment...</title></head></html>"},
		{"rate_limited", `"http_status": 402`, "Too many concurrent requests for this plan"},
		{"rate_limited", `"http_status": 402, "retry_after_s": 3599`, "Payment Required"},
		{"quota", `"http_status": 402, "retry_after_s": 3600`, "Payment Required"},
	}},
	{"streams and phases", []dialectSignal{
		{"truncated", `"http_status": 200, "stream": true, "output_tokens": 90, "response": "Half an ans"`, ""},
		{"ok", `"http_status": 200, "stream": true, "stream_done": true, "output_tokens": 90`, ""},
		{"ok", `"http_status": 200, "stream": true, "finish_reason": "stop", "stream_done": false, "output_tokens": 90`, ""},
		{"empty", `"http_status": 200, "stream": true, "stream_done": true, "output_tokens": 0, "tool_calls": 0`, ""},
		{"stalled", `"phase": "stream", "first_token_ms": 250, "duration_ms": 31000, "timeout_ms": 120000`, "timed out"},
		{"timeout", `"phase": "stream", "first_token_ms": 250, "duration_ms": 120004, "timeout_ms": 120000`, "timed out"},
		{"unavailable", `"http_status": 503, "phase": "connect"`, ""},
		{"refused", `"phase": "dns"`, "connection refused"},
		{"unreachable", `"phase": "dns"`, "timed out"},
		{"tls", `"phase": "tls"`, "timed out"},
		{"connect_timeout", `"phase": "connect"`, "timed out"},
		{"reset", `"phase": "request"`, ""},
		{"truncated", `"phase": "stream"`, "EOF"},
		{"rate_limited", `"http_status": 200, "response": "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow\"}}\n\n"`, ""},
	}},
	{"words in passing", []dialectSignal{
		{"ok", `"http_status": 200, "response": "A rate limit (429) means too many requests; connection refused means that nothing listens.", "finish_reason": "stop"`, ""},
		{"ok", `"response": "context canceled, insufficient_quota, 503 Service Unavailable: none of it happened.", "finish_reason": "stop"`, ""},
		{"ok", `"http_status": 200, "response": "Anthropic sends this when a stream breaks:\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\nThen retry."`, ""},
		{"ok", `"http_status": 200, "response": "The body is:\n{\"error\": {\"code\": 502}}"`, ""},
		{"ok", `"http_status": 200, "response": {"error": null, "answer": "42"}`, ""},
		{"ok", `"http_status": 200, "response": {"status": "failed", "error": "ticket 12 timed out", "summary": "The job timed out."}`, ""},
		{"ok", `"http_status": 200, "error": "", "error_type": "", "error_code": "", "response": "fine"`, ""},
		{"bad_request", `"http_status": 400`, `{"error":{"message":"Invalid value for 'timeout': must be less than 600, got 'connection refused'","type":"invalid_request_error"}}`},
		{"bad_request", `"http_status": 400`, "Extra inputs are not permitted: request_timeout"},
		{"bad_request", `"http_status": 422`, "tool 'ping' returned: dial tcp 10.0.0.9:80: connect: connection refused"},
		{"bad_request", `"http_status": 400`, "messages.3: the text quotes 'You exceeded the rate limit'"},
		{"bad_request", `"http_status": 400`, "Invalid JSON: unexpected EOF at line 3"},
		{"server_error", `"http_status": 500`, "x509: certificate signed by unknown authority"},
		{"server_error", `"http_status": 500`, "error code: 429 from a tool"},
		{"bad_gateway", `"http_status": 502`, "the load balancer has no credit for pool 429"},
		{"auth", `"http_status": 401`, "Unauthorized: token timed out"},
		{"refused", "", `Post "http://rate-limit-proxy:8080/v1?timeout=30s": dial tcp 10.0.0.9:8080: connect: connection refused`},
		{"unreachable", "", "dial tcp: lookup rate-limit-proxy on 127.0.0.53:53: no such host"},
		{"reset", "", "HTTPConnectionPool(host='timeout-box', port=80): Max retries exceeded with url: /api/timeout?x509=1 (Caused by ProtocolError('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer')))"},
		{"ok", `"http_status": 200, "error": "None", "error_type": "null", "error_code": 0, "response": "fine"`, ""},
		{"unknown", "", "the geoffrey of our team saw 503 ducks"},
		{"unknown", "", "epipen prices are up"},
		{"unknown", "", "Traceback (most recent call last):\n  File \"/app/agent.py\", line 7, in ask\n    return call(url, timeout=30)  # connection refused is raised here\nValueError: nothing to say"},
	}},
}

// wantDialects are those that nobody may take out of the table unnoticed.
var wantDialects = []string{"OpenAI", "OpenAI SDK", "Anthropic", "Bedrock", "Gemini", "Vertex", "Azure OpenAI", "OpenRouter", "Ollama", "vLLM", "TGI", "llama.cpp", "LM Studio", "LiteLLM",
	"Python requests", "Python httpx", "Python aiohttp", "Go", "Node", "curl"}

func (s dialectSignal) outcome(t testing.TB) json.RawMessage {
	t.Helper()
	raw := `{"agent": "a", "machine": "gpu"`
	if s.fields != "" {
		raw += ", " + s.fields
	}
	if s.text != "" {
		text, err := json.Marshal(s.text)
		if err != nil {
			t.Fatal(err)
		}
		raw += `, "error": ` + string(text)
	}
	return json.RawMessage(raw + "}")
}

func TestDialects(t *testing.T) {
	t.Parallel()
	total, of := 0, map[string]int{}
	seen := map[string]bool{}
	for _, d := range dialects {
		for _, s := range d.signals {
			raw := s.outcome(t)
			if seen[string(raw)] {
				t.Errorf("%s: %s stands twice", d.name, raw)
			}
			seen[string(raw)] = true
			total++
			of[d.name]++
			want, err := breaker.ParseCause(s.cause)
			if err != nil {
				t.Errorf("%s: %v", d.name, err)
			}
			o, errs, warnings := Decoder{}.Outcome(raw, t0)
			if errs != nil || warnings != nil {
				t.Errorf("%s: %s: errors %v, warnings %v", d.name, raw, errs, warnings)
			} else if o.Cause != want {
				t.Errorf("%s: %s\n  is %s, want %s", d.name, raw, o.Cause, want)
			}
		}
	}
	for _, name := range wantDialects {
		if of[name] < 6 {
			t.Errorf("%s has %d signals, want 6 or more", name, of[name])
		}
	}
	if total < 150 {
		t.Errorf("%d signals, want 150 or more", total)
	}
}

// TestLongTexts holds that what an error says is found behind much else, be it
// a log that goes on or a trace that ends in it.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	frame := "  File \"/app/.venv/lib/python3.12/site-packages/httpcore/_async/http11.py\", line 217, in _receive_event\n    data = await self._network_stream.read(self.READ_NUM_BYTES, timeout=timeout)\n"
	for _, c := range []struct {
		text string
		want breaker.Cause
	}{
		{"connection refused\n" + strings.Repeat("and more of the log\n", 20_000), breaker.Refused},
		{strings.Repeat("and more of the log\n", 20_000) + "connection refused", breaker.Refused},
		{"Traceback (most recent call last):\n" + strings.Repeat(frame, 500) + "httpx.ReadError", breaker.Reset},
		{"Traceback (most recent call last):\n" + frame + "httpx.ReadError\n" + strings.Repeat(frame, 500), breaker.Reset},
		{"  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in f\n  |     g(timeout=1)\n  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"b.py\", line 2, in g\n    |     h(timeout=2)\n    | httpx.ConnectError: [Errno 111] Connection refused\n    +------------------------------------", breaker.Refused},
		{strings.Repeat("é", 3*maxErrorText), breaker.Unknown},
	} {
		raw := dialectSignal{text: c.text}.outcome(t)
		o, errs, _ := DecodeOutcome(raw, t0)
		if errs != nil || o.Cause != c.want {
			t.Errorf("%.60q… is %s %v, want %s", c.text, o.Cause, errs, c.want)
		}
		if strings.Contains(c.text, "httpx") && !strings.Contains(o.Error, "httpx") {
			t.Errorf("%.60q… is kept as %q, without its error", c.text, o.Error)
		}
	}
}

// TestEveryRowIsNeeded holds that each row of the table decides about at least
// one signal of the tests, and that another row would decide otherwise.
func TestEveryRowIsNeeded(t *testing.T) {
	t.Parallel()
	needed := make([]bool, len(signals))
	judge := func(raw json.RawMessage, local bool) {
		var w wireOutcome
		outcomeFields.decode(raw, &w, &report{})
		w.local, w.ended = local, t0
		if w.hasWaitTxt {
			w.retryAfter, w.retryAfterSet = retryAfterText(w.waitText, t0)
		}
		w.prepare()
		row := firstMatch(&w.seen, 0)
		needed[row] = needed[row] || row == len(signals)-1 || signals[firstMatch(&w.seen, row+1)].cause != signals[row].cause
	}
	for _, d := range dialects {
		for _, s := range d.signals {
			judge(s.outcome(t), false)
		}
	}
	for _, c := range signalCases {
		judge(json.RawMessage(`{"agent": "a", "machine": "gpu", `+c.json+`}`), false)
	}
	judge(json.RawMessage(`{"agent": "a", "machine": "gpu", "http_status": 429, "retry_after_s": 1}`), true)
	for i, ok := range needed {
		if g := signals[i]; !ok {
			t.Errorf("no signal needs row %d (%s): status %v, codes %v, texts %v, phases %v, finishes %v", i, g.cause, g.status, g.codes, g.texts, g.phases, g.finishes)
		}
	}
}
