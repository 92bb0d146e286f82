package breaker

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// everyInput has each kind of input with every field that it stores.
func everyInput() Inputs {
	at, p := fromTime(t0)+7, pass{probe: true, era: 3, num: 4, at: fromTime(t0)}
	in := Inputs{
		outcomes: []inputOutcome{{Outcome: Outcome{
			Labels: Labels{Agent: "coder", Machine: "gpu", Model: "m", Provider: "lab"}, ID: "call-1", Cause: Timeout, Latency: SlowFirstToken,
			Duration: 61 * time.Second, FirstToken: 2 * time.Second, Age: time.Second, RetryAfter: 30 * time.Second, Timeout: time.Minute,
			Served: ServedFallback, Fallback: Fallback{Machine: "mini", Model: "n", Cause: Refused}, HTTPStatus: 504, Error: "no answer", CostUSD: 0.25,
			Write: true, IdempotencyKey: "order-7",
		}, pass: p, hasPass: true}},
		asks: []inputAsk{{Ask{Labels: Labels{Agent: "coder", Machine: "gpu", Model: "m", Provider: "lab"}, RequestID: "r1", Timeout: time.Minute, IdempotencyKey: "order-7"}}},
		others: []input{
			&inputRoute{RouteAsk{Agent: "coder", Chain: "code", Tried: []Tried{{Machine: "gpu", Model: "m", Cause: Timeout}}, RequestID: "r1", Timeout: time.Minute,
				Tags: []string{"private", ""}, MinContext: 32768, IdempotencyKey: "order-7"}},
			&inputRelease{p},
			&inputExtend{p, time.Minute},
			&inputControl{Control{Breaker: "errors{machine=gpu,model=m}", Op: OpHoldOpen, For: time.Hour, Actor: "111", Reason: "new cable"}},
			&inputReconcile{"order-7", "ops", true},
			&inputBootCheck{"gpu", "no answer"},
			&inputHealth{"gpu"},
			&inputRestart{4099, 12},
		},
	}
	for kind := inputOfOutcome; kind <= inputOfRestart; kind++ {
		in.order = append(in.order, inputAt{at, kind})
		at += instant(kind) * 1e9
	}
	return in
}

// TestStoredInputsStayReadable holds the stored form of inputs against what an
// earlier version wrote.
func TestStoredInputsStayReadable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/inputs.txt")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	var got Inputs
	if err := got.UnmarshalBinary(stored); err != nil {
		t.Fatal(err)
	}
	if want := everyInput(); !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v", got, want)
	}
}

// An input of a later version stops the reading: what follows it would be
// decided otherwise.
func TestInputsOfALaterVersion(t *testing.T) {
	t.Parallel()
	in := everyInput()
	in.order[8].kind = inputOfRestart + 1
	data, _ := in.AppendBinary(nil)
	var got Inputs
	if err := got.UnmarshalBinary(data); err == nil || err.Error() != "read input 8: kind 11: this version knows them up to 10" {
		t.Errorf("error %v, want one that names the input and its kind", err)
	}
}

func FuzzInputs(f *testing.F) {
	in := everyInput()
	data, _ := in.AppendBinary(nil)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var in Inputs
		if in.UnmarshalBinary(data) != nil {
			return
		}
		e, err := New(randomConfig())
		if err != nil {
			t.Fatal(err)
		}
		e.Redo(in)
	})
}
