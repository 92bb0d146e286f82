package breaker_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"breakerbot/breaker"
)

// TestStoredFormsStayReadable holds the binary forms against what an earlier
// version wrote: databases are full of it.
func TestStoredFormsStayReadable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/stored.txt")
	if err != nil {
		t.Fatal(err)
	}
	forms := 0
	for entry := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		want, stored, _ := strings.Cut(entry, "\n")
		data, err := hex.DecodeString(strings.Join(strings.Fields(stored), ""))
		if err != nil {
			t.Fatal(err)
		}
		var got any
		var saved breaker.Saved
		var lately breaker.Lately
		if strings.HasPrefix(want, `{"kind"`) {
			err, got = lately.UnmarshalBinary(data), &lately
		} else {
			err, got = saved.UnmarshalBinary(data), &saved
		}
		if err != nil || asJSON(got) != want {
			t.Errorf("%s reads as %s, error %v", want, asJSON(got), err)
		}
		forms++
	}
	if forms != 5 {
		t.Errorf("%d forms were read: 5 are stored", forms)
	}
}

// FuzzStored: whatever stands in a database is read or refused.
func FuzzStored(f *testing.F) {
	for _, form := range []string{
		`{"name":"errors{machine=a}","rule":"errors","machine":"a","state":"open","era":3,"calls":{"last":5,"runs":[{"n":2},{"c":"timeout","a":"x","n":1}]}}`,
		`{"name":"e{machine=a}","rule":"e","machine":"a","state":"half_open","era":3,"leases":[{"num":1,"agent":"x","era":3,"granted":1,"deadline":2,"max":3}]}`,
	} {
		var s breaker.Saved
		if err := json.Unmarshal([]byte(form), &s); err != nil {
			f.Fatal(err)
		}
		data, _ := s.AppendBinary(nil)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s breaker.Saved
		if s.UnmarshalBinary(data) == nil {
			again, _ := s.AppendBinary(nil)
			var same breaker.Saved
			if err := same.UnmarshalBinary(again); err != nil {
				t.Fatalf("written again, %s is not read: %v", asJSON(s), err)
			}
			if third, _ := same.AppendBinary(nil); !bytes.Equal(third, again) {
				t.Errorf("%s written again is %s", asJSON(s), asJSON(same))
			}
		}
		var l breaker.Lately
		if l.UnmarshalBinary(data) == nil {
			asJSON(l)
		}
	})
}
