//go:build !unix

package pgserver

import (
	"context"
	"errors"
)

var errNeedsUnix = errors.New("start the built-in PostgreSQL: it needs a Unix system; set DATABASE_URL, or use `docker compose up`")

// Server is a running PostgreSQL. There is none on this system.
type Server struct{}

// Start refuses: without unix sockets there is no private way in.
func Start(context.Context, Options) (*Server, error) {
	return nil, errNeedsUnix
}

// URL is empty.
func (*Server) URL() string { return "" }

// Stop does nothing.
func (*Server) Stop(context.Context) error { return nil }

// Attach always fails here.
func Attach(context.Context, string) (string, error) { return "", errNeedsUnix }
