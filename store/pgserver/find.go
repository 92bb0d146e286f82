package pgserver

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// install is one place with server binaries.
type install struct {
	bin   string // the folder that holds initdb and postgres
	major int
}

// places lists folders that may hold server binaries, the preferred first.
// Debian puts only wrappers of the client tools on the PATH, and Homebrew only
// links, so links are followed to the folder that has the server beside them.
func places() []string {
	var dirs []string
	if dir := os.Getenv("PG_BINDIR"); dir != "" {
		dirs = append(dirs, dir)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if file, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the only error is a bad pattern
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(folderVersion(b), folderVersion(a)) })
		dirs = append(dirs, found...)
	}
	return dirs
}

var digits = regexp.MustCompile(`[0-9]+`)

// folderVersion reads the major version out of a folder's path, 0 without one.
func folderVersion(dir string) int {
	n, _ := strconv.Atoi(digits.FindString(dir))
	return n
}

// find returns the first usable install among the folders. With a major
// version above 0 it takes only that one: a cluster can be opened by no other.
func find(ctx context.Context, dirs []string, major int) (install, error) {
	var others []string
	for _, dir := range dirs {
		if !executable(filepath.Join(dir, "initdb")) || !executable(filepath.Join(dir, "postgres")) {
			continue
		}
		in := install{bin: dir}
		text, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
		if err != nil {
			others = append(others, fmt.Sprintf("%s does not run (%v)", dir, err))
			continue
		}
		in.major = versionOf(string(text))
		if major == 0 || in.major == major {
			return in, nil
		}
		others = append(others, fmt.Sprintf("%d in %s", in.major, dir))
	}
	switch {
	case major != 0 && len(others) > 0:
		return install{}, fmt.Errorf("it was made by PostgreSQL %d and can be opened by no other, but installed is %s: install PostgreSQL %d beside it, or dump the data there and load it here",
			major, strings.Join(slices.Compact(others), ", "), major)
	case len(others) > 0:
		return install{}, fmt.Errorf("no usable PostgreSQL server: %s", strings.Join(others, ", "))
	}
	return install{}, fmt.Errorf("no PostgreSQL server is installed: %s, set DATABASE_URL to one that runs elsewhere, or use `docker compose up`", installCommand(runtime.GOOS, exec.LookPath))
}

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+)`)

// versionOf reads the major version out of what `postgres --version` prints.
func versionOf(text string) int {
	if m := versionNumber.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	return 0
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// installCommand is the sentence's part that says how to get a server here.
func installCommand(goos string, lookPath func(string) (string, error)) string {
	has := func(tool string) bool {
		_, err := lookPath(tool)
		return err == nil
	}
	switch {
	case has("apt-get"):
		return "run `apt-get install postgresql`"
	case goos == "darwin" || has("brew"):
		return "run `brew install postgresql`"
	case has("dnf"):
		return "run `dnf install postgresql-server`"
	case has("apk"):
		return "run `apk add postgresql`"
	case has("pacman"):
		return "run `pacman -S postgresql`"
	}
	return "install the PostgreSQL server with this system's package manager"
}
