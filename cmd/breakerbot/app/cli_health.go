package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// runHealth asks a running server whether it is alive, for health checks where
// there is no shell and no curl. The address may leave out the path, which is
// then /healthz. It waits five seconds at most.
func runHealth(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("check health: %q is no address: it looks like http://127.0.0.1:8080", clip(address))
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/healthz"
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("check health: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true} // no proxy: it asks its own machine
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("check health: %w", err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("check health: %s answers %s: %s", u, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
