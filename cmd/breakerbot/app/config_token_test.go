package app

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestSecretEncodes(t *testing.T) {
	t.Parallel()
	secret := Secret("hidden")
	encoded, err := json.Marshal(map[string]any{"s": secret, "t": Token{Secret: secret}, "none": Secret("")})
	if err != nil || strings.Contains(string(encoded), "hidden") || !strings.Contains(string(encoded), `"none":""`) {
		t.Errorf("as JSON: %s, %v", encoded, err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "plain", secret, "in a struct", Token{Secret: secret})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "plain", secret, "in a struct", Token{Secret: secret})
	if strings.Contains(log.String(), "hidden") || strings.Count(log.String(), "[secret]") != 4 {
		t.Errorf("logged: %s", log.String())
	}
}

func TestEnsureTokenFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "folder", "token")
	made, created, err := EnsureTokenFile(path)
	if err != nil || !created {
		t.Fatalf("first start: created %t, %v", created, err)
	}
	if len(made.Secret) != 46 || !strings.HasPrefix(string(made.Secret), "bb_") || !slices.Equal(made.Scopes, Scopes()) || made.Name == "" {
		t.Errorf("token: %+v of %d characters", made, len(made.Secret))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	again, created, err := EnsureTokenFile(path)
	if err != nil || created || again.Secret != made.Secret {
		t.Errorf("second start: created %t, same %t, %v", created, again.Secret == made.Secret, err)
	}
	var shown strings.Builder
	if err := runShowToken(&shown, path); err != nil || shown.String() != string(made.Secret)+"\n" {
		t.Errorf("shown: %q, %v", shown.String(), err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

func TestEnsureTokenFileByManyAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		tokens = make(map[Secret]bool)
		made   int
	)
	for range 16 {
		group.Go(func() {
			token, created, err := EnsureTokenFile(path)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			tokens[token.Secret] = true
			if created {
				made++
			}
		})
	}
	group.Wait()
	if len(tokens) != 1 || made != 1 {
		t.Errorf("%d tokens, made %d times", len(tokens), made)
	}
}

func TestEnsureTokenFileRefuses(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"empty": "\n", "short": "bb_short", "two lines": "bb_0123456789abcdef\nbb_0123456789abcdef", "long": strings.Repeat("x", 5000)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, created, err := EnsureTokenFile(path)
			if err == nil || created || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "bb_0123") {
				t.Errorf("created %t, %v", created, err)
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != content {
				t.Errorf("the file was changed: %q, %v", now, err)
			}
		})
	}
	folder := t.TempDir()
	if _, _, err := EnsureTokenFile(folder); err == nil || !strings.Contains(err.Error(), folder) {
		t.Errorf("a folder: %v", err)
	}
}

// What `breakerbot token` prints is what the configuration reads, in both forms.
func TestTokenRoundTrip(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		token  string
		scopes []string
		want   []string
	}{
		"default scope":     {"coder", nil, []string{"report"}},
		"several":           {"ops", []string{"operate", "read"}, []string{"operate", "read"}},
		"a number":          {"007", []string{"read"}, []string{"read"}},
		"a word of YAML":    {"true", nil, []string{"report"}},
		"quotes and braces": {`a"b\{c}`, nil, []string{"report"}},
		"other letters":     {"größe", nil, []string{"report"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if err := runToken(&out, tc.token, tc.scopes); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out.String(), " -d ") && !strings.Contains(out.String(), "Content-Type: application/json") {
				t.Errorf("the example is refused for its content type:\n%s", out.String())
			}
			_, after, _ := strings.Cut(out.String(), "\n\ntokens:\n")
			snippet, _, _ := strings.Cut(after, "\n\n")
			_, after, _ = strings.Cut(out.String(), "BREAKERBOT_TOKENS='")
			variable, _, _ := strings.Cut(after, "'\n")
			fromFile, wrong := load(t, "listen: 0.0.0.0:8080\ntokens:\n"+snippet, nil)
			if wrong != nil {
				t.Fatalf("%v in:\n%s", wrong, out.String())
			}
			fromEnv, wrong := load(t, "", map[string]string{"BREAKERBOT_TOKENS": variable, "BREAKERBOT_LISTEN": "0.0.0.0:1"})
			if wrong != nil {
				t.Fatalf("%v of:\n%s", wrong, out.String())
			}
			for _, cfg := range []Config{fromFile, fromEnv} {
				if len(cfg.Tokens) != 1 || cfg.Tokens[0].Name != tc.token || !slices.Equal(cfg.Tokens[0].Scopes, tc.want) ||
					cfg.Tokens[0].Secret != fromFile.Tokens[0].Secret || len(cfg.Tokens[0].Secret) != 46 || cfg.Warnings != nil {
					t.Errorf("read back as %+v, warnings %v", cfg.Tokens, cfg.Warnings)
				}
			}
		})
	}
}

func TestTokenRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		token  string
		scopes []string
		want   string
	}{
		"no name":        {"", nil, "make token: name is missing"},
		"colon":          {"a:b", nil, "colon"},
		"long":           {strings.Repeat("x", 129), nil, "129 characters"},
		"unknown scope":  {"a", []string{"admin"}, `make token a: scope "admin" is no scope: known are report, read, operate`},
		"the same twice": {"a", []string{"read", "read"}, "read is given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if err := runToken(&out, tc.token, tc.scopes); err == nil || !strings.Contains(err.Error(), tc.want) || out.Len() > 0 {
				t.Errorf("got %v, printed %q", err, out.String())
			}
		})
	}
}
