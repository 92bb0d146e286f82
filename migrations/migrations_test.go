package migrations

import (
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func TestAllAreNumberedInARow(t *testing.T) {
	t.Parallel()
	list, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatal("no migrations are embedded")
	}
	for i, m := range list {
		if m.Version != i+1 || strings.TrimSpace(m.SQL) == "" {
			t.Errorf("migration %d is %q with version %d and %d bytes", i+1, m.Name, m.Version, len(m.SQL))
		}
	}
}

// The clock is read once, in Go, and passed down: a default or a trigger that
// reads the database's own would disagree with it, most of all in the demo.
func TestNoMigrationReadsTheClock(t *testing.T) {
	t.Parallel()
	clock := regexp.MustCompile(`(?i)\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\s*\(|\b(current_timestamp|current_date|current_time|localtime|localtimestamp)\b`)
	list, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if found := clock.FindString(m.SQL); found != "" {
			t.Errorf("%s reads the clock with %q", m.Name, found)
		}
	}
}

func TestReadRefusesGapsAndStrayNames(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files []string
		want  string
	}{
		"gap":       {[]string{"0001_a.sql", "0003_c.sql"}, "migration 0003_c.sql: its name has to begin with 0002_"},
		"twice":     {[]string{"0001_a.sql", "0001_b.sql"}, "migration 0001_b.sql: its name has to begin with 0002_"},
		"no number": {[]string{"0001_a.sql", "later.sql"}, "migration later.sql: its name has to begin with 0002_"},
		"short":     {[]string{"1_a.sql"}, "migration 1_a.sql: its name has to begin with 0001_"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := fstest.MapFS{}
			for _, f := range test.files {
				fsys[f] = &fstest.MapFile{Data: []byte("SELECT 1")}
			}
			if _, err := read(fsys); err == nil || err.Error() != test.want {
				t.Fatalf("got error %v, want %s", err, test.want)
			}
		})
	}
}
