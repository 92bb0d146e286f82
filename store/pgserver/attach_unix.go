//go:build unix

package pgserver

import (
	"context"
	"fmt"
	"path/filepath"
)

// Attach gives the URL of the server that another process of ours runs on the
// data folder, for a command beside a running serve. It starts and stops
// nothing. The error says that nobody runs there, or does not answer.
func Attach(ctx context.Context, dataDir string) (url string, err error) {
	if dataDir == "" {
		dataDir = DefaultDataDir()
	}
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return "", fmt.Errorf("find the built-in PostgreSQL in %s: %w", dataDir, err)
	}
	s := &Server{pgdata: filepath.Join(dir, "postgres")}
	if _, s.sockets, err = readPIDFile(s.pgdata); err == nil {
		err = s.ping(ctx, s.sockets)
	}
	if err != nil {
		return "", fmt.Errorf("find the built-in PostgreSQL in %s: %w", dir, err)
	}
	return s.URL(), nil
}
