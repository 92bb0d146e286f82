package digest

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"breakerbot/breaker"

	"pgregory.net/rapid"
)

// noon is the middle of the tests' window, which has 24 hours.
var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

var (
	testWindow = Window{From: noon.Add(-12 * time.Hour), To: noon.Add(12 * time.Hour)}
	testBefore = Window{From: noon.Add(-36 * time.Hour), To: noon.Add(-12 * time.Hour)}
)

// of builds the report of the tests' window from incidents and counts.
func of(incidents []breaker.Incident, counts ...Count) Report {
	return Build(Data{Incidents: incidents, Counts: counts, HistoryFrom: testBefore.From}, testWindow, testBefore, testWindow.To, time.UTC, Options{})
}

// open is an incident from so many minutes after noon to so many.
func open(rule, machine, model string, from, to int, causes ...breaker.CauseCount) breaker.Incident {
	at := func(m int) time.Time { return noon.Add(time.Duration(m) * time.Minute) }
	return incident(uint64(1000+from), rule, breaker.Labels{Machine: machine, Model: model}, at(from), at(to), "", 0, causes...)
}

func rowNamed(t *testing.T, rows []Row, name string) Row {
	t.Helper()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("no row %s in %+v", name, rows)
	}
	return rows[i]
}

func TestOutages(t *testing.T) {
	t.Parallel()
	const m, q, l = "gpu", "qwen", "llama"
	for _, tt := range []struct {
		name      string
		incidents []breaker.Incident
		outages   int
		open      time.Duration
		kind      Kind
		own       int // trips held against models
		excused   int
	}{
		{"one", []breaker.Incident{open("reachability", m, "", 0, 17, cc(breaker.Refused, 3))}, 1, 17 * time.Minute, KindUnreachable, 0, 0},
		{"overlapping are one", []breaker.Incident{
			open("errors", m, q, 0, 10, cc(breaker.ServerError, 3)), open("errors", m, l, 5, 20, cc(breaker.ServerError, 3)),
		}, 1, 20 * time.Minute, KindErroring, 2, 0},
		{"touching are one", []breaker.Incident{
			open("errors", m, q, 0, 10, cc(breaker.ServerError, 3)), open("errors", m, l, 10, 20, cc(breaker.ServerError, 3)),
		}, 1, 20 * time.Minute, KindErroring, 2, 0},
		{"a minute apart are two", []breaker.Incident{
			open("errors", m, q, 0, 10, cc(breaker.ServerError, 3)), open("errors", m, l, 11, 20, cc(breaker.Crashed, 3)),
		}, 2, 19 * time.Minute, KindErroring, 2, 0},
		{"a short one within a long one", []breaker.Incident{
			open("errors", m, q, 0, 60, cc(breaker.ServerError, 3)), open("quality", m, l, 5, 6, cc(breaker.Empty, 3)),
		}, 1, time.Hour, KindErroring, 2, 0},
		{"the machine's own breaker names it, and its models' time-outs are its", []breaker.Incident{
			open("errors", m, q, -1, 70, cc(breaker.Timeout, 3)), open("hangs", m, "", 0, 60, cc(breaker.Timeout, 3)), open("errors", m, l, 1, 61, cc(breaker.Timeout, 3)),
		}, 1, 71 * time.Minute, KindHung, 0, 2},
		{"too early to be explained", []breaker.Incident{
			open("errors", m, q, -3, 60, cc(breaker.Timeout, 3)), open("hangs", m, "", 0, 60, cc(breaker.Timeout, 3)),
		}, 1, 63 * time.Minute, KindHung, 1, 0},
		{"too long after to be explained", []breaker.Incident{
			open("hangs", m, "", 0, 60, cc(breaker.Timeout, 3)), open("errors", m, q, 1, 71, cc(breaker.Timeout, 3)),
		}, 1, 71 * time.Minute, KindHung, 1, 0},
		{"garbage is the model's own also while the machine is unreachable", []breaker.Incident{
			open("reachability", m, "", 0, 60, cc(breaker.Refused, 3)), open("quality", m, q, 1, 50, cc(breaker.Empty, 3)),
		}, 1, time.Hour, KindUnreachable, 1, 0},
		{"an erroring neighbour explains nothing", []breaker.Incident{
			open("errors", m, l, 0, 60, cc(breaker.ServerError, 3)), open("errors", m, q, 1, 50, cc(breaker.ServerError, 3)),
		}, 1, time.Hour, KindErroring, 2, 0},
		{"half hung, half erroring", []breaker.Incident{
			open("errors", m, q, 0, 10, cc(breaker.Timeout, 2), cc(breaker.ServerError, 2)),
		}, 1, 10 * time.Minute, KindMixed, 1, 0},
		{"slow", []breaker.Incident{open("latency", m, q, 0, 2, cc(breaker.Slow, 10))}, 1, 2 * time.Minute, KindSlow, 1, 0},
		{"without causes the rule names it", []breaker.Incident{open("hangs", m, "", 0, 2)}, 1, 2 * time.Minute, KindHung, 0, 0},
		{"without anything", []breaker.Incident{open("mine", m, "", 0, 2)}, 1, 2 * time.Minute, KindMixed, 0, 0},
		{"cut at the bounds", []breaker.Incident{open("reachability", m, "", 11*60, 30*60, cc(breaker.TLS, 3))}, 1, time.Hour, KindUnreachable, 0, 0},
		{"over in the moment in which it began", []breaker.Incident{open("reachability", m, "", -12*60, -12*60, cc(breaker.TLS, 3))}, 1, 0, KindUnreachable, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := of(tt.incidents)
			row := rowNamed(t, r.Machines, m)
			own, excused := 0, 0
			for _, model := range r.Models {
				own += model.Trips
				excused += model.Excused
			}
			if row.Outages != tt.outages || time.Duration(row.OpenTime) != tt.open || row.Kind != tt.kind || own != tt.own || excused != tt.excused {
				t.Errorf("%d outages, %s, %s, %d own, %d excused; want %d, %s, %s, %d, %d", row.Outages, row.OpenTime, row.Kind, own, excused,
					tt.outages, tt.open, tt.kind, tt.own, tt.excused)
			}
			if r.Totals.Trips != len(tt.incidents) || row.Trips != len(tt.incidents) || r.Totals.Outages != tt.outages {
				t.Errorf("totals %+v, %d trips of the machine", r.Totals, row.Trips)
			}
			if r.Quiet || r.NoData {
				t.Errorf("quiet %t, no data %t", r.Quiet, r.NoData)
			}
		})
	}
}

// TestBoundsAreHalfOpen puts incidents on the two bounds: the beginning is the
// window's, the end the next one's.
func TestBoundsAreHalfOpen(t *testing.T) {
	t.Parallel()
	r := of([]breaker.Incident{
		open("reachability", "first", "", -12*60, -11*60, cc(breaker.Refused, 3)),
		open("reachability", "next", "", 12*60, 13*60, cc(breaker.Refused, 3)),
		open("reachability", "over", "", -13*60, -12*60, cc(breaker.Refused, 3)),
		open("reachability", "through", "", -13*60, 13*60, cc(breaker.Refused, 3)),
	})
	var names []string
	for _, row := range r.Machines {
		names = append(names, row.Name)
	}
	if want := []string{"through", "first"}; !slices.Equal(names, want) {
		t.Fatalf("machines %v, want %v", names, want)
	}
	through := r.Machines[0]
	if through.Outages != 0 || through.Carried != 1 || through.OpenTime != Millis(24*time.Hour) || through.StillOpen {
		t.Errorf("through is %+v", through)
	}
	if r.Totals.Trips != 1 || r.Totals.Carried != 1 || r.Totals.CarriedOutages != 1 || r.Totals.OpenTime != Millis(24*time.Hour) {
		t.Errorf("totals are %+v", r.Totals)
	}
	if n := len(r.Incidents); n != 2 || !r.Incidents[0].Carried || r.Incidents[0].From != testWindow.From || r.Incidents[0].To != testWindow.To {
		t.Errorf("incidents are %+v", r.Incidents)
	}
}

// TestFaults holds who answers for which cause.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, cause := range breaker.Causes() {
		r := of(nil, calls("agent", "gpu", "qwen", breaker.OK, 100, time.Second), calls("agent", "gpu", "qwen", cause, 50, time.Second))
		machine, model := rowNamed(t, r.Machines, "gpu"), rowNamed(t, r.Models, "qwen")
		got := [...]bool{machine.Failed == 50, model.Failed == 50, len(r.Accounts) == 1, len(r.Agents) == 1}
		var want [4]bool
		switch cause.Class() {
		case breaker.ClassTransport:
			want = [4]bool{true, true, false, false}
			if kindOf(cause) == KindUnreachable {
				want[1] = false // the call never got to it
			}
		case breaker.ClassQuality:
			want = [4]bool{true, true, false, false}
		case breaker.ClassCapacity, breaker.ClassAccess:
			want = [4]bool{false, false, true, false}
			if cause == breaker.ModelMissing {
				want = [4]bool{true, true, false, false}
			}
		case breaker.ClassCaller:
			want = [4]bool{false, false, false, true}
		}
		if got != want {
			t.Errorf("%s is held against machine, model, account, agent: %v, want %v", cause, got, want)
		}
		if r.Totals.Calls != 150 || r.Totals.Failed != 50*int64(btoi(want[0] || want[2])) || r.Totals.CallerFaults != 50*int64(btoi(want[3])) {
			t.Errorf("%s: totals %+v", cause, r.Totals)
		}
		if fails := want[0] || want[1] || want[2]; fails && kindOf(cause) == "" {
			t.Errorf("%s is a failure without a kind", cause)
		}
	}
}

func TestTimeoutsOfAHungMachineAreNotItsModels(t *testing.T) {
	t.Parallel()
	counts := []Count{calls("a", "gpu", "qwen", breaker.OK, 40, time.Second), calls("a", "gpu", "qwen", breaker.Timeout, 10, time.Minute)}
	if row := rowNamed(t, of(nil, counts...).Models, "qwen"); row.Failed != 10 || row.Judged != 50 {
		t.Errorf("without a hang: %+v", row)
	}
	hung := []breaker.Incident{open("hangs", "gpu", "", 0, 5, cc(breaker.Timeout, 3))}
	if row := rowNamed(t, of(hung, counts...).Models, "qwen"); row.Failed != 0 || row.Judged != 40 || row.Calls != 50 {
		t.Errorf("with a hang: %+v", row)
	}
}

func TestAccountsStandApart(t *testing.T) {
	t.Parallel()
	limit := open("rate-limit", "", "gpt", 0, 5, cc(breaker.RateLimited, 1))
	limit.Provider = "acme"
	quota := open("access", "", "", 3, 63, cc(breaker.Quota, 1))
	quota.Provider = "acme"
	local := open("mine", "gpu", "qwen", 0, 5, cc(breaker.QueueFull, 3))
	local.Provider = "gpu"
	agent := open("mine", "", "", 0, 5, cc(breaker.BadRequest, 3))
	agent.Agent = "coder"
	r := of([]breaker.Incident{limit, quota, local, agent}, calls("a", "gpu", "qwen", breaker.OK, 100, time.Second))
	if row := rowNamed(t, r.Machines, "gpu"); row.Flaky() || row.Trips != 0 {
		t.Errorf("the machine is blamed: %+v", row)
	}
	if len(r.Models) != 1 || r.Models[0].Flaky() {
		t.Errorf("a model is blamed: %+v", r.Models)
	}
	if len(r.Accounts) != 2 || r.Accounts[0].Name != "acme" || r.Accounts[0].Trips != 2 || r.Accounts[0].OpenTime != Millis(63*time.Minute) || r.Accounts[0].Kind != KindLimited {
		t.Errorf("accounts are %+v", r.Accounts)
	}
	if len(r.Agents) != 1 || r.Agents[0].Trips != 1 {
		t.Errorf("agents are %+v", r.Agents)
	}
	var blames []string
	for _, in := range r.Incidents {
		blames = append(blames, in.Blame)
	}
	slices.Sort(blames)
	if want := []string{"account", "account", "account", "agent"}; !slices.Equal(blames, want) {
		t.Errorf("blames are %v", blames)
	}
}

func TestRanking(t *testing.T) {
	t.Parallel()
	r := of([]breaker.Incident{
		open("reachability", "two-short", "", 0, 1, cc(breaker.Refused, 3)), open("reachability", "two-short", "", 10, 11, cc(breaker.Refused, 3)),
		open("reachability", "one-long", "", 0, 300, cc(breaker.Refused, 3)),
		open("reachability", "one-b", "", 0, 30, cc(breaker.Refused, 3)),
		open("reachability", "one-a", "", 0, 30, cc(breaker.Refused, 3)),
		open("reachability", "one-failing", "", 0, 30, cc(breaker.Refused, 3)),
		open("reachability", "one-few-calls", "", 0, 30, cc(breaker.Refused, 3)),
	},
		calls("a", "one-failing", "m", breaker.OK, 15, time.Second), calls("a", "one-failing", "m", breaker.Empty, 5, time.Second),
		calls("a", "one-few-calls", "m", breaker.Empty, 19, time.Second),
		calls("a", "never-few-of-many", "m", breaker.OK, 100000, time.Second), calls("a", "never-few-of-many", "m", breaker.Empty, 900, time.Second),
		calls("a", "never-some", "m", breaker.OK, 290, time.Second), calls("a", "never-some", "m", breaker.Empty, 12, time.Second),
		calls("a", "never", "m", breaker.OK, 5, time.Second),
	)
	var names []string
	for i, row := range r.Machines {
		names = append(names, row.Name)
		if row.Rank != i+1 {
			t.Errorf("%s has rank %d at place %d", row.Name, row.Rank, i+1)
		}
		if row.NearMiss != (row.Name == "never-some") {
			t.Errorf("%s: near miss %t, lower bound %v", row.Name, row.NearMiss, row.FailureRateLow)
		}
	}
	want := []string{"two-short", "one-long", "one-failing", "one-a", "one-b", "one-few-calls", "never-some", "never-few-of-many", "never"}
	if !slices.Equal(names, want) {
		t.Errorf("got  %v\nwant %v", names, want)
	}
}

// TestWilsonLow holds the bound against the equation that defines it: the
// smallest rate p from which what was seen is z standard errors, √(p(1−p)/n),
// away.
func TestWilsonLow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1_000_000).Draw(t, "n")
		failed := rapid.Int64Range(0, n).Draw(t, "failed")
		low, seen := wilsonLow(failed, n), float64(failed)/float64(n)
		if low > seen || low < 0 || failed == 0 && low != 0 {
			t.Fatalf("wilsonLow(%d, %d) = %v", failed, n, low)
		}
		if away := 1.959963984540054 * math.Sqrt(low*(1-low)/float64(n)); failed > 0 && math.Abs(seen-low-away) > 1e-9 {
			t.Fatalf("wilsonLow(%d, %d) = %v is %v below what was seen, not %v", failed, n, low, seen-low, away)
		}
	})
	if got := wilsonLow(10, 20); math.Abs(got-0.299298) > 1e-6 {
		t.Errorf("wilsonLow(10, 20) = %f", got)
	}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	data := Data{
		Counts: []Count{
			calls("a", "gpu", "qwen", breaker.Timeout, 4, 30*time.Second),
			calls("a", "gpu", "qwen", breaker.OK, 50, 9*time.Second),
			calls("a", "gpu", "qwen", breaker.BadRequest, 50, time.Hour),
			calls("a", "gpu", "llama", breaker.Refused, 2, 0),
			calls("a", "mac", "", breaker.ServerError, 4, time.Second),
		},
		Refusals: []Refusal{
			{"gpu", "qwen", breaker.RefusedOpen, 10},         // × 30 s
			{"gpu", "qwen", breaker.RefusedProbeInFlight, 2}, // × 30 s
			{"gpu", "qwen", breaker.RefusedHeldOpen, 7},      // a person's doing
			{"gpu", "other", breaker.RefusedOpen, 3},         // × 20 s, the machine's mean
			{"mac", "", breaker.RefusedOpen, 5},              // × 1 s
			{"new", "", breaker.RefusedOpen, 10},             // × 12.4 s, the mean of all
			{"gpu", "qwen", breaker.AskedGranted, 1000},      // no refusal
		},
		HistoryFrom: testWindow.From,
	}
	r := Build(data, testWindow, testBefore, testWindow.To, time.UTC, Options{})
	if want := Millis(124 * time.Second); r.Totals.WaitingSpent != want {
		t.Errorf("spent %s, want %s", r.Totals.WaitingSpent, want)
	}
	if want := Millis(12*30*time.Second + 3*20*time.Second + 5*time.Second + 124*time.Second); r.Totals.WaitingSaved != want {
		t.Errorf("saved %s, want %s", r.Totals.WaitingSaved, want)
	}
	if r.Totals.Refused != 37 || rowNamed(t, r.Machines, "gpu").Refused != 22 || rowNamed(t, r.Models, "qwen").Refused != 19 {
		t.Errorf("refused %d of all, machines %+v", r.Totals.Refused, r.Machines)
	}
	data.Refusals[0].Calls = math.MaxInt64
	if got := Build(data, testWindow, testBefore, testWindow.To, time.UTC, Options{}).Totals.WaitingSaved; got <= 0 {
		t.Errorf("an absurd number of refusals saves %d", got)
	}
}

func TestComparison(t *testing.T) {
	t.Parallel()
	data := Data{
		Incidents: []breaker.Incident{
			open("reachability", "gpu", "", -20*60, -19*60, cc(breaker.Refused, 3)),
			open("reachability", "gpu", "", 0, 10, cc(breaker.Refused, 3)), open("reachability", "gpu", "", 20, 30, cc(breaker.Refused, 3)),
		},
		Counts: []Count{calls("a", "gpu", "q", breaker.OK, 9, 0)},
	}
	for _, tt := range []struct {
		name    string
		history time.Time
		known   bool
	}{
		{"all known", testBefore.From, true},
		{"a part", testBefore.From.Add(time.Second), false},
		{"nothing", testWindow.From, false},
		{"empty database", time.Time{}, false},
	} {
		data.HistoryFrom = tt.history
		r := Build(data, testWindow, testBefore, testWindow.To, time.UTC, Options{})
		change := r.Machines[0].Change
		if (change != nil) != tt.known || (r.TotalsBefore != nil) != tt.known {
			t.Errorf("%s: change %+v, totals before %+v", tt.name, change, r.TotalsBefore)
		}
		if want := (Change{Outages: 1, Trips: 1, OpenTime: Millis(-40 * time.Minute)}); tt.known && *change != want {
			t.Errorf("%s: change %+v, want %+v", tt.name, *change, want)
		}
	}
}

func TestQuietOrUnknown(t *testing.T) {
	t.Parallel()
	ok := calls("a", "gpu", "q", breaker.OK, 9, 0)
	cached := Count{Agent: "a", Served: breaker.ServedCache, Cause: breaker.OK, Calls: 1}
	for _, tt := range []struct {
		name          string
		data          Data
		quiet, noData bool
	}{
		{"empty", Data{}, false, true},
		{"history without calls", Data{HistoryFrom: testBefore.From}, false, true},
		{"calls", Data{HistoryFrom: testBefore.From, Counts: []Count{ok}}, true, false},
		{"only a cache", Data{HistoryFrom: testBefore.From, Counts: []Count{cached}}, true, false},
		{"only refusals", Data{HistoryFrom: testBefore.From, Refusals: []Refusal{{"gpu", "", breaker.RefusedHeldOpen, 1}}}, true, false},
		{"an alert that nobody got", Data{HistoryFrom: testBefore.From, Undelivered: 1}, false, false},
		{"open without calls", Data{HistoryFrom: testBefore.From, Incidents: []breaker.Incident{open("hangs", "gpu", "", -1000, 1000)}}, false, false},
		{"over before", Data{HistoryFrom: testBefore.From, Counts: []Count{ok}, Incidents: []breaker.Incident{open("hangs", "gpu", "", -1000, -800)}}, true, false},
	} {
		r := Build(tt.data, testWindow, testBefore, testWindow.To, time.UTC, Options{})
		if r.Quiet != tt.quiet || r.NoData != tt.noData {
			t.Errorf("%s: quiet %t, no data %t", tt.name, r.Quiet, r.NoData)
		}
	}
}

func TestLate(t *testing.T) {
	t.Parallel()
	for late, want := range map[time.Duration]time.Duration{0: 0, 10 * time.Minute: 0, 10*time.Minute + 1: 10*time.Minute + 1, time.Hour: time.Hour} {
		r := Build(Data{}, testWindow, testBefore, testWindow.To.Add(late), time.UTC, Options{Edition: EditionDaily, Due: testWindow.To})
		if time.Duration(r.LateBy) != want {
			t.Errorf("%s after its time it is %s late", late, r.LateBy)
		}
	}
	if r := Build(Data{}, testWindow, testBefore, testWindow.To.Add(time.Hour), nil, Options{}); r.LateBy != 0 || r.Edition != EditionPreview || r.Zone != "UTC" {
		t.Errorf("a preview is late: %+v", r)
	}
}

// drawData draws a few days of a small fleet.
func drawData(t *rapid.T, from time.Time, span time.Duration) []breaker.Incident {
	machine := rapid.SampledFrom([]string{"gpu", "mac", ""})
	model := rapid.SampledFrom([]string{"qwen", "llama", ""})
	provider := rapid.SampledFrom([]string{"", "", "acme"})
	cause := rapid.SampledFrom(breaker.Causes())
	minutes := int(span / time.Minute)
	var list []breaker.Incident
	for i := range rapid.IntRange(0, 25).Draw(t, "incidents") {
		at := from.Add(time.Duration(rapid.IntRange(0, minutes).Draw(t, "from")) * time.Minute)
		in := breaker.Incident{
			ID: uint64(i + 1), Rule: "r", OpenedAt: at,
			Labels: breaker.Labels{Machine: machine.Draw(t, "machine"), Model: model.Draw(t, "model"), Provider: provider.Draw(t, "provider")},
			Causes: []breaker.CauseCount{{Cause: cause.Draw(t, "cause"), N: 3}},
		}
		if rapid.IntRange(0, 9).Draw(t, "lasts") > 0 {
			in.ClosedAt = at.Add(time.Duration(rapid.IntRange(0, minutes/3).Draw(t, "minutes")) * time.Minute)
		}
		list = append(list, in)
	}
	return list
}

// readFor gives Build what the store promises: what overlaps the window or the
// one before.
func readFor(all []breaker.Incident, w, before Window) []breaker.Incident {
	var list []breaker.Incident
	for _, in := range all {
		if in.OpenedAt.Before(w.To) && (in.ClosedAt.IsZero() || !in.ClosedAt.Before(before.From)) {
			list = append(list, in)
		}
	}
	return list
}

// TestAdjacentDigestsAddUp makes the digests of consecutive days, clock changes
// among them, and one of the whole span: each trip and outage is in exactly one
// of them, and each minute that something was open in exactly one.
func TestAdjacentDigestsAddUp(t *testing.T) {
	t.Parallel()
	zones := []*time.Location{mustZone(t, "Europe/Berlin"), mustZone(t, "America/Havana"), mustZone(t, "Australia/Lord_Howe"), mustZone(t, "Asia/Beirut")}
	starts := []time.Time{time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 26, 12, 0, 0, 0, time.UTC), time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC), time.Date(2026, 10, 22, 12, 0, 0, 0, time.UTC), time.Date(2026, 10, 29, 12, 0, 0, 0, time.UTC)}
	rapid.Check(t, func(t *rapid.T) {
		loc := rapid.SampledFrom(zones).Draw(t, "zone")
		s := Schedule{hour: rapid.IntRange(0, 23).Draw(t, "hour"), weekdays: uint8(rapid.IntRange(1, 127).Draw(t, "weekdays")) | 1}
		start := rapid.SampledFrom(starts).Draw(t, "start")
		all := drawData(t, start.Add(-4*24*time.Hour), 12*24*time.Hour)
		end := start.AddDate(0, 0, 16)

		var windows []Window
		for now := start; now.Before(end); now = now.Add(time.Hour) {
			if w, _, _, _ := s.Window(now, loc); len(windows) == 0 || !w.To.Equal(windows[len(windows)-1].To) {
				windows = append(windows, w)
			}
		}
		whole := Window{From: windows[0].From, To: windows[len(windows)-1].To}
		build := func(w, before Window) Report {
			return Build(Data{Incidents: readFor(all, w, before), HistoryFrom: start.AddDate(-1, 0, 0)}, w, before, end, loc, Options{})
		}
		type sum struct {
			trips, outages int
			open, machine  time.Duration
			models         int
		}
		add := func(s sum, r Report) sum {
			s.trips += r.Totals.Trips
			s.outages += r.Totals.Outages
			s.open += time.Duration(r.Totals.OpenTime)
			for _, row := range r.Machines {
				s.machine += time.Duration(row.OpenTime)
			}
			for _, row := range r.Models {
				s.models += row.Trips + row.Excused
			}
			return s
		}
		var parts sum
		for _, w := range windows {
			parts = add(parts, build(w, s.Before(w, loc)))
		}
		if one := add(sum{}, build(whole, Window{From: whole.From.Add(-24 * time.Hour), To: whole.From})); one != parts {
			t.Fatalf("the whole is %+v, its parts are %+v", one, parts)
		}
	})
}

// TestOrderDoesNotMatter shuffles what the store read.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	f := badDay(t)
	want := f.report(t)
	for seed := range uint64(50) {
		data := f.data
		data.Incidents, data.Counts, data.Refusals = slices.Clone(data.Incidents), slices.Clone(data.Counts), slices.Clone(data.Refusals)
		rng := rand.New(rand.NewPCG(seed, 1))
		rng.Shuffle(len(data.Incidents), reflect.Swapper(data.Incidents))
		rng.Shuffle(len(data.Counts), reflect.Swapper(data.Counts))
		rng.Shuffle(len(data.Refusals), reflect.Swapper(data.Refusals))
		if got := Build(data, f.w, f.b, f.now, mustZone(t, f.zone), f.opt); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: the report depends on the order\ngot  %+v\nwant %+v", seed, got, want)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	data := Data{HistoryFrom: testBefore.From}
	for i := range 3000 {
		machine, model := "machine-"+number(int64(i%100)), "model-"+number(int64(i%1000))
		data.Incidents = append(data.Incidents, open("errors", machine, model, i%1440-720, i%1440-710, cc(breaker.ServerError, 3)))
		for _, c := range []breaker.Cause{breaker.OK, breaker.ServerError, breaker.Empty} {
			data.Counts = append(data.Counts, calls("agent", machine, model, c, int64(i), time.Second))
		}
	}
	for b.Loop() {
		Text(Build(data, testWindow, testBefore, testWindow.To, time.UTC, Options{}))
	}
}
