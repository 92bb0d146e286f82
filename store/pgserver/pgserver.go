// Package pgserver runs a private PostgreSQL from the server binaries that are
// installed on this machine: a child process on a data folder of ours, reached
// only through a unix socket in a private folder, gone when its parent is.
//
// It is for the machine that has no database to offer. It tunes nothing, makes
// no backups, and never deletes data.
package pgserver

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

// Options say where the server lives.
type Options struct {
	// DataDir is the folder for everything of ours; it is made when missing.
	// Empty is DefaultDataDir.
	DataDir string
	// Log hears of starts, restarts and what the server itself complains about;
	// nil is slog's default.
	Log *slog.Logger
	// FsyncOff trades safety against a crash of the machine for speed. It is
	// for tests only.
	FsyncOff bool
}

// ErrInUse is in the error of a Start on a data folder that another process of
// ours holds; the error names that process.
var ErrInUse = errors.New("the data folder is in use")

const (
	user     = "breakerbot" // the role that owns everything in the cluster
	database = "breakerbot"
	port     = "5432" // part of the socket's name only
)

// DefaultDataDir is where data goes when nobody says otherwise: /var/lib for
// root, the user's state directory for everybody else.
func DefaultDataDir() string {
	return defaultDataDir(runtime.GOOS, os.Geteuid(), os.Getenv)
}

func defaultDataDir(goos string, uid int, getenv func(string) string) string {
	const name = "breakerbot"
	if uid == 0 {
		if goos == "darwin" {
			return "/usr/local/var/" + name
		}
		return "/var/lib/" + name
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	home := getenv("HOME")
	switch {
	case home == "":
		return filepath.Join(os.TempDir(), name)
	case goos == "darwin":
		return filepath.Join(home, "Library", "Application Support", name)
	}
	return filepath.Join(home, ".local", "state", name)
}
