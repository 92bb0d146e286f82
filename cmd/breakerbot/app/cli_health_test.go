package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			http.Error(w, "state is not restored", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx     context.Context
		address string
		want    string // part of the error, "" for none
	}{
		"alive":       {t.Context(), server.URL, ""},
		"slash":       {t.Context(), server.URL + "/", ""},
		"other path":  {t.Context(), server.URL + "/readyz", "503 Service Unavailable: state is not restored"},
		"no scheme":   {t.Context(), "127.0.0.1:8080", "it looks like http://"},
		"nobody":      {t.Context(), "http://127.0.0.1:1", "connection refused"},
		"interrupted": {cancelled, server.URL, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := runHealth(tc.ctx, tc.address)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
