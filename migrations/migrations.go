// Package migrations holds the schema of the database as numbered SQL files.
// Each file runs once, in its own transaction, in the order of the numbers in
// their names; a file that has been released is never edited again.
//
// The package knows nothing of connections: store applies what it lists.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

//go:embed *.sql
var files embed.FS

// Migration is one numbered file.
type Migration struct {
	Version int
	Name    string // the file's name
	SQL     string
}

// All lists the migrations, oldest first. It fails when the numbers in the
// files' names are not 1, 2, 3 and so on, which a test rules out.
func All() ([]Migration, error) { return read(files) }

func read(fsys fs.FS) ([]Migration, error) {
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	slices.Sort(names)
	list := make([]Migration, 0, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil || len(number) != 4 || version != i+1 {
			return nil, fmt.Errorf("migration %s: its name has to begin with %04d_", name, i+1)
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		list = append(list, Migration{Version: version, Name: name, SQL: string(text)})
	}
	return list, nil
}
