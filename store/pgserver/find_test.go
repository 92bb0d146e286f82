package pgserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeInstall makes a folder whose postgres only prints its version.
func fakeInstall(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFind(t *testing.T) {
	t.Parallel()
	v17, v15 := fakeInstall(t, "17.2"), fakeInstall(t, "15.18 (Debian 15.18-0+deb12u1)")
	empty := t.TempDir()
	for name, test := range map[string]struct {
		dirs  []string
		major int
		bin   string
		want  string // part of the error
	}{
		"first":                  {dirs: []string{empty, v17, v15}, bin: v17},
		"the cluster's":          {dirs: []string{v17, v15}, major: 15, bin: v15},
		"none of the cluster's":  {dirs: []string{v17, v17}, major: 15, want: "made by PostgreSQL 15 and can be opened by no other, but installed is 17 in " + v17 + ":"},
		"nothing":                {dirs: []string{empty}, want: "no PostgreSQL server is installed: "},
		"nothing, but a cluster": {dirs: []string{empty}, major: 15, want: "`docker compose up`"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := find(t.Context(), test.dirs, test.major)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("got error %v, want one with %q", err, test.want)
				}
				return
			}
			if err != nil || got.bin != test.bin {
				t.Fatalf("got %+v, %v; want %s", got, err, test.bin)
			}
		})
	}
}

func TestInstallCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ goos, tool, want string }{
		"debian":  {"linux", "apt-get", "run `apt-get install postgresql`"},
		"mac":     {"darwin", "", "run `brew install postgresql`"},
		"fedora":  {"linux", "dnf", "run `dnf install postgresql-server`"},
		"unknown": {"linux", "", "install the PostgreSQL server with this system's package manager"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := installCommand(test.goos, func(tool string) (string, error) {
				if tool == test.tool {
					return "/bin/" + tool, nil
				}
				return "", errors.New("not found")
			})
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestFolderVersion(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]int{
		"/usr/lib/postgresql/15/bin":          15,
		"/usr/lib/postgresql/9.6/bin":         9,
		"/opt/homebrew/opt/postgresql@17/bin": 17,
		"/opt/homebrew/opt/postgresql/bin":    0,
	} {
		if got := folderVersion(dir); got != want {
			t.Errorf("folderVersion(%s) = %d, want %d", dir, got, want)
		}
	}
}

func TestDefaultDataDir(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		goos string
		uid  int
		env  map[string]string
		want string
	}{
		"root":             {"linux", 0, map[string]string{"HOME": "/root"}, "/var/lib/breakerbot"},
		"state home":       {"linux", 7, map[string]string{"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, "/s/breakerbot"},
		"relative is none": {"linux", 7, map[string]string{"HOME": "/home/a", "XDG_STATE_HOME": "s"}, "/home/a/.local/state/breakerbot"},
		"mac":              {"darwin", 7, map[string]string{"HOME": "/Users/a"}, "/Users/a/Library/Application Support/breakerbot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := defaultDataDir(test.goos, test.uid, func(k string) string { return test.env[k] }); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
