package ingest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// planted are keys and tokens in the shapes in which they are given out; none
// of them is anybody's. The word in capitals must not be kept.
var planted = []string{
	"sk-proj-PLANTED0123456789abcdef", "sk-ant-api03-PLANTED-0123456789_abc", "sk-or-v1-PLANTED0123456789abcdef", "AIzaSyPLANTED0123456789abcdefghijklm", "ya29.a0PLANTED0123456789",
	"gsk_PLANTED0123456789abcdef", "hf_PLANTEDabcdefghijklmnopqrstuv", "ghp_PLANTED0123456789abcdef", "github_pat_11PLANTED0_abcdefghij", "glpat-PLANTED0123456789", "xoxb-123456789012-PLANTED0123",
	"xai-PLANTED0123456789abcdef", "nvapi-PLANTED0123456789abcdef", "pplx-PLANTED0123456789abcdef", "r8_PLANTED0123456789abcdef", "fw_PLANTED0123456789abcdef", "csk-PLANTED0123456789abcdef",
	"AKIAPLANTED012345678", "ASIAPLANTED012345678", "123456:AAPLANTED-0123456789_abcdefghijklmnop", "987654321:AAHPLANTED01", "sk_live_PLANTED0123456789", "npm_PLANTED0123456789abcdefghijklmnopq",
	"xoxe-1-PLANTED0123456789", "xoxe.xoxp-1-PLANTED0123456789", "AQ.PLANTED0123456789abcdefghijklm", "SG.PLANTED0123456789.PLANTED0123456789abcdef", "MTk4PLANTEDzODcxOTI1MjQ4.Cl2FMQ.PLANTED1XVW7vRze4b7Cq4se7kKWs",
	"dapi0123456789abcdef0123456789abcdef", "lsv2_pt_PLANTED0123456789", "whsec_PLANTED0123456789", "tvly-dev-PLANTED0123456789", "gho_PLANTED0123456789abcdef", "AKIAPLANTED012345678:wJalrXUtnFEMI/K7MDENG/bPxRfiCPLANTED+key",
	"eyJhbGciOiJIUzI1NiJ9.eyJQTEFOVEVEIjoxfQ.PLANTED-sig_0123", "eyJQTEFOVEVEPLANTED0123456789",
}

// carriers are where a secret of any shape stands as itself.
var carriers = []string{
	"%s", "Incorrect API key provided: %s.", "key=%s", "(%s)", "[%s]", "<%s>", "'%s'", `{"detail": "bad key %s"}`, `{"error": "{\"detail\": \"bad key %s\"}"}`, "https://gpu-box/v1?x=%s&alt=sse", "https://gpu-box/%s/models",
	`{"error": "a line\n%s"}`, `{"url": "x?a=\u0026%s\u0022"}`, "url=https%%3A%%2F%%2Fgpu-box%%2F%%3Fx%%3D%s",
	"first line\nsecond %s\nthird", "\u202e%s", "Error code: 401 - {'error': {'message': 'Incorrect API key provided: %s'}}",
}

// namedCarriers are where anything at all is a secret, because of the name
// before it.
var namedCarriers = []string{
	"Authorization: Bearer %s", "authorization=%s", `{"Authorization": "Bearer %s"}`, `{\"Authorization\": \"Bearer %s\"}`, "headers={'Authorization': 'Bearer %s', 'Accept': '*/*'}", "map[Accept:[*/*] Authorization:[Bearer %s]]",
	"curl -H 'Authorization: Basic %s'", "Proxy-Authorization: Basic %s", "got bearer %s here", "Bearer%%20%s", "invalid bearer token: %s", "x-api-key: %s", "X-Goog-Api-Key: %s", "map[X-Api-Key:[%s]]", "api-key=%s", "API Key = %s",
	"Ocp-Apim-Subscription-Key: %s", `{"api_key": "%s", "model": "m"}`, `{\"api_key\": \"%s\"}`, `{'api_key': '%s'}`, "OPENAI_API_KEY=%s", "AWS_SECRET_ACCESS_KEY=%s", "aws_session_token: %s", "HF_TOKEN=%s", `{"token": "%s"}`, "client_secret=%s", "password=%s",
	`"password": "%s"`, "PGPASSWORD=%s", "https://user:%s@gpu-box/v1", "https://%s@gpu-box/v1", "postgres://app:%s@db/x", "redis://:%s@cache:6379", "GET https://gpu-box/v1?key=%s&alt=sse", "https://gpu-box/v1?a=b&token=%s", "https://gpu-box/x?sv=1&sig=%s",
	"https://gpu-box/cb#access_token=%s", "https://b.s3.amazonaws.com/x?X-Amz-Signature=%s", "https://gpu-box/cb?code=%s&state=x", "Cookie: session=%s; theme=dark", "Set-Cookie: sid=%s; Path=/", "-----BEGIN RSA PRIVATE KEY-----\n%s\n-----END RSA PRIVATE KEY-----",
	"https://api.telegram.org/bot123456:AA%s/sendMessage", "https://api.telegram.org/file/bot123456%%3AAA%s/x.jpg", "https://hooks.slack.com/services/T0/B0/%s", "https://discord.com/api/webhooks/123456789012345678/%s",
	`{"password": "two\"%s"}`, `{"password": "a\\%s"}`, `{"api_key": "a\/%s"}`, `{\"password\": \"a\\\"%s\"}`, `{'secret': 'it\'s %s'}`, `password=DOM\%s`,
	`parse "postgres://app:p#%s@db/x": invalid port ":p" after host`, "http://user:pa/%s@gpu-box/x", "redis://:p?%s@cache:6379",
	`https://gpu-box/x?a=b\u0026key=%s`, "https://gpu-box/x?a=b&amp;key=%s", "url=https%%3A%%2F%%2Fgpu-box%%2F%%3Fkey%%3D%s", "https://gpu-box/x?pass=%s", "host=db user=app pass=%s",
	"AccountKey=%s;EndpointSuffix=core.windows.net", `{"credentials": "%s"}`, "Incorrect API key provided: %s", "vllm serve --api-key %s", "--token='%s'", "Bearer: %s",
	"Bearer Bearer %s", "Authorization: Bearer Bearer %s", "Bearer (Bearer %s)", "x-api-key: Bearer Bearer %s", `{"header": "Bearer\t%s"}`,
	"Headers([('x-api-key', '%s')])", "[(b'x-goog-api-key', b'%s'), (b'server', b'x')]", `[(\"api-key\", \"%s\")]`, "[('authorization', 'Basic %s')]", `{"X-Api-Key": ["%s"]}`, "api_key=SecretStr('%s')", "{b'x-api-key': b'%s'}",
}

func TestNoSecretIsKept(t *testing.T) {
	t.Parallel()
	check := func(text string) {
		t.Helper()
		if got := Evidence(text); strings.Contains(got, "PLANTED") || !strings.Contains(got, redacted) {
			t.Errorf("%q\n  is kept as %q", text, got)
		}
	}
	for _, secret := range planted {
		for _, carrier := range carriers {
			check(fmt.Sprintf(carrier, secret))
		}
	}
	for _, carrier := range namedCarriers {
		for _, secret := range []string{"PLANTED0123456789", "PLANTEDPLANTEDPLANTED", "PLANTED-01_23456789"} {
			check(fmt.Sprintf(carrier, secret))
		}
	}
	check(`{"password": "two words, PLANTED"}`)
	check("Authorization: AWS4-HMAC-SHA256 Credential=PLANTED0123/20260301/us-east-1/x, SignedHeaders=host, Signature=PLANTED0123")
	check("s\u200bk-\u200bPLANTED0123456789") // nobody sees the blanks in it
	check("invalid token: PLANTED0123456789")
	check("API key PLANTED0123456789 is over its budget")
	check("Authorization: Bearer " + strings.Repeat("A", maxErrorText-31) + ",sk-PLANTED0123456789") // cut within, and little is left
}

// TestNoSecretSurvivesACut holds that a key at any place of a long text, or
// across one of its two ends, is not kept in part either.
func TestNoSecretSurvivesACut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.SampledFrom(planted).Draw(t, "secret")
		if rapid.Bool().Draw(t, "named") {
			secret = fmt.Sprintf(rapid.SampledFrom(namedCarriers).Draw(t, "carrier"), "PLANTED0123456789abcdef")
		}
		filler := rapid.SampledFrom([]string{"word ", "ü ", "é", "🔥 ", "x.y ", "a\n"}).Draw(t, "filler")
		end := rapid.SampledFrom([]int{maxEvidence, maxErrorText}).Draw(t, "end")
		n := max(0, (end-rapid.IntRange(0, 2*len(secret)).Draw(t, "before"))/len(filler))
		text := strings.Repeat(filler, n) + " " + secret + " " + strings.Repeat(filler, rapid.IntRange(0, 3000).Draw(t, "after"))
		got := Evidence(text)
		if strings.Contains(got, "PLANT") || !utf8.ValidString(got) || utf8.RuneCountInString(got) > maxEvidence {
			t.Fatalf("%q\n  is kept of %q", got, text)
		}
	})
}

// TestHarmlessTextStaysReadable holds that what people need to understand a
// failure is not taken for a key.
func TestHarmlessTextStaysReadable(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"dial tcp [2001:db8::7]:8080: connect: connection refused",
		"dial tcp 10.0.0.9:11434: connect: connection refused",
		"max_tokens: 300000 > 64000, which is the maximum allowed number of output tokens",
		"prompt is too long: 215000 tokens > 200000 maximum",
		"Rate limit reached on tokens per min (TPM): Limit 30000, Used 29500",
		"You need to provide your API key in an Authorization header using Bearer auth",
		"the bearer token is missing",
		`WWW-Authenticate: Bearer realm="gpu-box"`,
		"basic authentication failed",
		"task-scheduler: disk-utilization is high, risk-freedom is low",
		"hf_hub_download failed: hf_transfer is not installed",
		"model requires more system memory (5.3 GiB) than is available (3.3 GiB)",
		"Error code: 404 - {'error': {'type': 'not_found_error', 'message': 'model: claude-9'}}",
		`{"error":{"code":"model_not_found","param":"model","type":"invalid_request_error"}}`,
		"x509: certificate is valid for localhost, not gpu-box",
		"blob sha256:3f5a9c0e8d1b47f2a6c5 not found",
		"at 2026-03-01T14:02:00Z in 1772373720:12",
		"Unexpected token: < in JSON at position 0",
		"missing parameter: code=429 key in body",
		"the secret of its success",
		"secretary: absent, keyboard: none",
		"https://gpu-box:8080/v1/models?limit=20@end",
		"mail ops@example.com about http://gpu-box/status",
		"missing fields: ['api_key', 'model']",
		"{'loc': ('body', 'api_key'), 'msg': 'Field required'}",
		"expected a bearer token, got Bearer",
		"unexpected token 1234 at position 7",
		"API key not valid. Please pass a valid API key.",
		"invalid tokenizer configuration: key must be a string",
		"tool choice needs --enable-auto-tool-choice and --tool-call-parser, or --api-key and a file",
		"http://gpu-box:11434/api/chat?at=1@2",
		"vllm-0.models.svc-of-the-whole-cluster is down",
		"family 👨\u200d👩\u200d👧 stays",
	} {
		if got := Evidence(text); got != text {
			t.Errorf("%q\n  is kept as %q", text, got)
		}
	}
}

// TestSecretChecksMissNothing holds each secret's cheap check against its
// pattern: where the pattern matches, the check must say so.
func TestSecretChecksMissNothing(t *testing.T) {
	t.Parallel()
	pieces := []string{" ", "\"", "'", "\\", ":", "=", "[", "]", "{", "}", "/", "?", "&", "#", "@", "%3A", "%20", "+", "-", "_", ".", ";", ",", "12345", "6", "AA", "AAHabcdefghij", "abcdefghijklmnopqrstuvwxyz0123456789",
		"://", "https", "user", "Authorization", "bearer", "Basic", "token", "Cookie", "-----BEGIN RSA PRIVATE KEY-----", "-----END", "api", "key", "API Key", "access", "secret", "password", "passphrase", "pwd", "auth", "signature", "credential", "sig", "code", "pass", "credentials", "provided", "--", "%3D", "%26", "\\u0026", ";", "amp;", "hooks.slack.com/services/", "/webhooks/123/", "SG.", "AQ.", ".abcdef.", "(b'", "',", "SecretStr(", "dapi", "id", "bot", "x", "sk-", "sk_live_",
		"AIza", "ya29.", "GOCSPX-", "eyJ", "AKIA", "ASIA", "ABCDEFGHIJKLMNOP", "gsk", "hf", "ghp", "github_pat", "glpat", "xoxb", "xapp", "nvapi", "pplx", "r8", "fw", "csk", "npm", "bbt", "tgp_v1", "dop_v1", "xai", "\u212a", "\u017f"}
	matched := make([]bool, len(secrets))
	for i := range planted {
		for j, s := range secrets {
			matched[j] = matched[j] || s.pattern.MatchString(planted[i])
		}
	}
	for i := range namedCarriers {
		for j, s := range secrets {
			matched[j] = matched[j] || s.pattern.MatchString(printable(fmt.Sprintf(namedCarriers[i], "PLANTED0123456789abcdef")))
		}
	}
	for j, ok := range matched {
		if !ok {
			t.Errorf("nothing that is planted has the shape of %s", secrets[j].pattern)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(append(pieces, planted...)), 1, 12).Draw(t, "text"), "")
		for _, s := range secrets {
			if s.pattern.MatchString(text) && !s.may(lowerASCII(text)) {
				t.Fatalf("%q has the shape of %s, and its check says that it has not", text, s.pattern)
			}
		}
	})
}

// TestTrigramsMissNothing holds the search for phrases against a search that
// looks for each of them.
func TestTrigramsMissNothing(t *testing.T) {
	t.Parallel()
	var all phraseList
	for _, g := range signals {
		all = append(all, g.list...)
	}
	for _, list := range []phraseList{timeoutWords, connectTimeoutWords, cutWords, rateWords, missingWords, wholeCallWords, dialWords, brokenWords, startTimeoutWords} {
		all = append(all, list...)
	}
	if len(all) < 300 {
		t.Fatalf("only %d phrases", len(all))
	}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(all).Draw(t, "phrase")
		junk := rapid.StringMatching(`[a-z0-9 .:_-]{0,12}`)
		text := junk.Draw(t, "before") + p.text + junk.Draw(t, "after")
		var grams trigrams
		grams.add(text)
		s := &seen{text: text, trigrams: &grams}
		for i := range all {
			if one := all[i : i+1]; one.in(s) != one.inText(text) {
				t.Fatalf("%q in %q: %t by trigrams, %t without", all[i].text, text, one.in(s), one.inText(text))
			}
		}
		if !strings.Contains(text, p.text) || !grams.mayHold(&p) {
			t.Fatalf("%q is not thought to hold %q", text, p.text)
		}
	})
}

// TestReprIsRead holds that an error body reads the same whether a server sent
// it as JSON or a client in Python printed it.
func TestReprIsRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{`{'error': {'code': None, 'ok': True, 'bad': False, 'n': 429}}`, `{"error": {"code": null, "ok": true, "bad": false, "n": 429}}`},
		{`Error code: 400 - {'error': {'message': "it's \"x\"", 'type': 'a\'b', 'l': ['x', 2]}} and more`, `{"error": {"message": "it's \"x\"", "type": "a'b", "l": ["x", 2]}}`},
		{`{'m': 'tab\t, line\n, back\\slash, \x1b[31m, \u00e9, \d'}`, `{"m": "tab\t, line\n, back\\slash, \u001b[31m, \u00e9, \\d"}`},
		{`{"error":{"code":502}} trailing`, `{"error":{"code":502}}`},
		{`{not json} {"error":{"code":502}}`, `{"error":{"code":502}}`},
		{`b'{"error":{"code":502}}'`, `{"error":{"code":502}}`},
		{`{'error': <object at 0x7f>}`, ``},
		{`{'error': Noneish}`, ``},
		{`{'error': '`, ``},
		{`{'error': 'open}`, ``},
		{strings.Repeat(`{"error":`, 90) + `1` + strings.Repeat(`}`, 90), ``},
		{`{{{{{{{{"error":1}`, ``},
		{`no braces`, ``},
	} {
		if got := string(jsonBody(c.text)); got != c.want {
			t.Errorf("%s\n  is   %s\n  want %s", c.text, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[{}\[\]'"\\A-Zxu0-9 :,NoneTrueFalse\n]{0,40}`).Draw(t, "text")
		if body := jsonBody(text); body != nil && !json.Valid(body) {
			t.Fatalf("%q is read as %q, which is no JSON", text, body)
		}
	})
}

// A secret that is recognised by what follows it does not show in an excerpt,
// however long it is.
func TestExcerptsOfLongSecrets(t *testing.T) {
	t.Parallel()
	for _, n := range []int{20, 200, 2000} {
		password := strings.Repeat("hunter2", n/7+1)
		if got := excerpt("http://me:" + password + "@gpu-box:11434/"); strings.Contains(got, "hunter2") {
			t.Errorf("a password of %d bytes shows: %s", len(password), got)
		}
	}
}
