package app

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// mayImport says which packages of ours each package may import. Packages
// whose names end in "test" help tests: they may import anything, and only
// tests may import them.
var mayImport = map[string][]string{
	"breaker":            {},
	"ingest":             {"breaker"},
	"bot":                {"breaker"},
	"digest":             {"breaker"},
	"migrations":         {},
	"store":              {"breaker", "bot", "digest", "migrations"},
	"store/pgserver":     {},
	"cmd/breakerbot":     {"cmd/breakerbot/app"},
	"scripts/benchtable": {},
	"cmd/breakerbot/app": {"breaker", "ingest", "bot", "digest", "store", "store/pgserver", "migrations"},
}

// notInBreaker would let package breaker depend on anything but its inputs.
var notInBreaker = []string{"os", "os/exec", "os/signal", "net", "net/http", "io/fs", "log", "log/slog", "context", "math/rand", "math/rand/v2", "database/sql"}

func TestImportDirections(t *testing.T) {
	t.Parallel()
	const module = "breakerbot/"
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		name := strings.TrimPrefix(words[0], module)
		seen++
		if slices.Contains([]string{"util", "utils", "common", "types", "models", "pkg"}, path.Base(name)) {
			t.Errorf("%s says nothing about what is in it: name it after that", name)
		}
		allowed, known := mayImport[name]
		helper := strings.HasSuffix(name, "test")
		if !known && !helper {
			t.Errorf("%s has no row in mayImport: say which packages of ours it may import", name)
		}
		for _, imported := range words[1:] {
			switch ours, isOurs := strings.CutPrefix(imported, module); {
			case helper:
			case isOurs && strings.HasSuffix(ours, "test"):
				t.Errorf("%s imports %s, which is for tests", name, ours)
			case isOurs && !slices.Contains(allowed, ours):
				t.Errorf("%s imports %s: it may import %v", name, ours, allowed)
			case name == "breaker" && slices.Contains(notInBreaker, imported):
				t.Errorf("breaker imports %s: all it knows has to come with its calls", imported)
			}
		}
	}
	if seen < len(mayImport)-2 {
		t.Errorf("only %d packages were listed:\n%s", seen, out)
	}
}
