package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var namesLine = regexp.MustCompile(`^line [1-9][0-9]*\b`)

// FuzzReplay holds that no script makes the reader or the engine panic, that
// what is wrong with one names its line, and that the same script prints the
// same bytes twice, which is what makes scripts worth attaching.
func FuzzReplay(f *testing.F) {
	scripts, err := filepath.Glob("testdata/vectors/*.ndjson")
	if err != nil || len(scripts) == 0 {
		f.Fatalf("%d scripts, %v", len(scripts), err)
	}
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, false)
		f.Add(text, true)
	}
	for _, text := range []string{"", "\n\n", "{}", "null", "[]", `{"t": 0}`, `{"t": 1e300, "restart": {}}`, `{"t": 0, "restart": {}}` + "\n{", `{"rules": null}`, "\x00"} {
		f.Add([]byte(text), false)
	}
	f.Fuzz(func(t *testing.T, script []byte, check bool) {
		var first, again bytes.Buffer
		err := runReplay(bytes.NewReader(script), &first, check, nil)
		if err != nil && !errors.Is(err, errDiffers) && !namesLine.MatchString(err.Error()) {
			t.Fatalf("the error names no line: %v", err)
		}
		if !check && errors.Is(err, errDiffers) {
			t.Fatal("lines were compared though nobody asked for it")
		}
		second := runReplay(bytes.NewReader(script), &again, check, nil)
		if (err == nil) != (second == nil) || err != nil && err.Error() != second.Error() {
			t.Fatalf("the error is %v, then %v", err, second)
		}
		if !bytes.Equal(first.Bytes(), again.Bytes()) {
			t.Fatalf("printed is\n%s\nand then\n%s", first.Bytes(), again.Bytes())
		}
	})
}
