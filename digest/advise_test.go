package digest

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"breakerbot/breaker"
)

// worked is a service that answers 20 calls a second, shall be found out within
// 15 s at 2 % of failures, and takes four minutes to come back.
var worked = Situation{
	Rate: CallRate{20, time.Second}, React: 15 * time.Second, Failures: 20_000, Normal: 1000,
	Recovery: 4 * time.Minute, Tolerance: 30 * time.Minute, WarmUp: true, Name: "errors",
}

func TestAdviseSizesAWindow(t *testing.T) {
	t.Parallel()
	a, err := Advise(worked)
	if err != nil {
		t.Fatal(err)
	}
	if a.Window != 300 || a.Failures != 6 || a.Run != 3 || a.Detection.D() != 150*time.Millisecond {
		t.Errorf("window %d, failures %d, run %d, detection %s", a.Window, a.Failures, a.Run, a.Detection)
	}
	want := breaker.Trip{Consecutive: 3, Rate: 20_000, Window: breaker.Window{Calls: 300}, MinCalls: 300}
	if !reflect.DeepEqual(a.Rule.Trip, want) {
		t.Errorf("trip %+v, want %+v", a.Rule.Trip, want)
	}
	cooldown := breaker.Cooldown{First: breaker.Duration(5 * time.Minute), Factor: 2, Max: breaker.Duration(20 * time.Minute)}
	if !reflect.DeepEqual(a.Rule.Cooldown, cooldown) || a.Rule.Probes != 3 || a.Rule.Concurrent != 1 {
		t.Errorf("cooldown %+v, %d probes, %d at once", a.Rule.Cooldown, a.Rule.Probes, a.Rule.Concurrent)
	}
	// 1,728,000·0.001·P(Bin(299, 0.001) ≥ 5) + 1,728,000·0.001³
	if math.Abs(a.FalseTrips-0.0278) > 0.0002 {
		t.Errorf("false trips %v, want 0.0278", a.FalseTrips)
	}
	var text strings.Builder
	for _, p := range a.Parts {
		text.WriteString(p.Name + ": " + p.Value + "\n" + strings.Join(p.Why, "\n") + "\n")
	}
	for _, part := range []string{
		"window: 300 calls\nAt 20/s, the 15s within which the breaker shall react are 300 calls.",
		"threshold: 2%, 6 failures of 300 calls (min_calls 300), or 3 in a row\n",
		"has 0.3 in a window", "noticed in 150ms", "fails 4% of its calls trips within one window (15s) with a probability of 98.1%",
		"cooldown: 5m ×2 up to 20m\nThe service takes 4m to come back.",
		"probes: 3, one after the other\n", "three calls take about 150ms",
		"false_trips: at most 2.8% a day, once in 36 days\n", "a day of 1,728,000 calls",
		"8 failures of 400 calls are at most 0.21% a day, and the window takes 20s",
	} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("the advice lacks %q", part)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

func TestAdvise(t *testing.T) {
	t.Parallel()
	const sec, minute = time.Second, time.Minute
	with := func(change func(*Situation)) Situation { s := worked; change(&s); return s }
	for name, tc := range map[string]struct {
		s                     Situation
		window, failures, run int
		first, longest        time.Duration
		probes                int
		says                  string
	}{
		"few calls": {with(func(s *Situation) { s.Rate = CallRate{5, minute} }), 0, 0, 3, 5 * minute, 20 * minute, 3,
			"with so few calls, no count of them is faster"},
		"few calls, in time": {with(func(s *Situation) { s.Rate, s.React = CallRate{5, minute}, minute }), 0, 0, 3, 5 * minute, 20 * minute, 3,
			"A total failure is noticed after 3 calls, which is 36s at 5/min."},
		"two failures are too few": {with(func(s *Situation) { s.React = 5 * sec }), 0, 0, 3, 5 * minute, 20 * minute, 3,
			"For a share of 2% it takes 101 calls, which are 5.1s here: with a time to react of 6s there would be a window."},
		"three failures are enough": {with(func(s *Situation) { s.React = 101 * sec / 20 }), 101, 3, 3, 5 * minute, 20 * minute, 3, "min_calls 101"},
		"nineteen calls":            {with(func(s *Situation) { s.Rate, s.Failures = CallRate{19, 15 * sec}, 500_000 }), 0, 0, 3, 5 * minute, 20 * minute, 3, "15s hold 19 calls"},
		"twenty calls":              {with(func(s *Situation) { s.Rate, s.Failures = CallRate{20, 15 * sec}, 500_000 }), 20, 10, 3, 5 * minute, 20 * minute, 3, "10 failures of 20 calls"},
		"no share of so few":        {with(func(s *Situation) { s.Failures, s.Normal = 100, 0 }), 0, 0, 3, 5 * minute, 20 * minute, 3, "more than the 10000 that a window holds"},
		"more than a window holds":  {with(func(s *Situation) { s.Rate = CallRate{1000, sec} }), 10_000, 200, 4, 5 * minute, 20 * minute, 3, "at most 10000, which pass in 10s"},
		"a bad service":             {with(func(s *Situation) { s.Normal, s.Failures = 200_000, 500_000 }), 300, 150, 13, 5 * minute, 20 * minute, 3, "or 13 in a row"},
		"runs are no sign":          {with(func(s *Situation) { s.Normal, s.Failures, s.React = 450_000, 900_000, sec }), 20, 18, 0, 5 * minute, 20 * minute, 3, "A run of failures is no sign here"},
		"nothing makes it rare":     {with(func(s *Situation) { s.Normal, s.Failures = 490_000, 500_000 }), 300, 150, 29, 5 * minute, 20 * minute, 3, "No window is large enough"},
		"never fails":               {with(func(s *Situation) { s.Normal = 0 }), 300, 6, 3, 5 * minute, 20 * minute, 3, "false_trips: none"},
		"no warm-up":                {with(func(s *Situation) { s.WarmUp = false }), 300, 6, 3, 5 * minute, 20 * minute, 1, "does not warm up"},
		"little room":               {with(func(s *Situation) { s.Tolerance = 4*minute + 30*sec }), 300, 6, 3, 4*minute + 15*sec, 4*minute + 15*sec, 3, "the middle between the two"},
		"no room but the middle":    {with(func(s *Situation) { s.Tolerance = 5 * minute }), 300, 6, 3, 4*minute + 30*sec, 4*minute + 30*sec, 3, "the middle between the two"},
		"no room to grow":           {with(func(s *Situation) { s.Tolerance = 10 * minute }), 300, 6, 3, 5 * minute, 5 * minute, 3, "It does not grow"},
		"a second is the least":     {with(func(s *Situation) { s.Recovery, s.Tolerance, s.React = sec/10, 3*sec/2, sec }), 0, 0, 3, sec, sec, 3, "1s"},
		"noticed too late":          {with(func(s *Situation) { s.Rate, s.Tolerance = CallRate{1, minute}, 6*minute }), 0, 0, 3, 5 * minute, 5 * minute, 3, "it is 8m until the first probe all the same"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.s.Rate.Per == 15*sec { // so many in the time to react
				tc.s.Rate = CallRate{tc.s.Rate.Calls * 4, minute}
			}
			a, err := Advise(tc.s)
			if err != nil {
				t.Fatal(err)
			}
			if a.Window != tc.window || a.Failures != tc.failures || a.Run != tc.run {
				t.Errorf("window %d, failures %d, run %d", a.Window, a.Failures, a.Run)
			}
			if c := a.Rule.Cooldown; c.First.D() != tc.first || c.Max.D() != tc.longest || (c.Factor > 1) != (tc.longest > tc.first) || a.Rule.Probes != tc.probes {
				t.Errorf("cooldown %s ×%v up to %s, %d probes", c.First, c.Factor, c.Max, a.Rule.Probes)
			}
			if (a.Rule.Trip.Rate > 0) != (tc.window > 0) || a.Rule.Trip.Consecutive != tc.run {
				t.Errorf("trip %+v", a.Rule.Trip)
			}
			var text strings.Builder
			for _, p := range a.Parts {
				text.WriteString(p.Name + ": " + p.Value + "\n" + strings.Join(p.Why, "\n") + "\n")
			}
			if !strings.Contains(text.String(), tc.says) {
				t.Errorf("the advice lacks %q:\n%s", tc.says, text.String())
			}
		})
	}
}

func TestAdviseKeepsWhatARuleIsAbout(t *testing.T) {
	t.Parallel()
	for _, builtin := range breaker.Builtin() {
		s := worked
		s.Name = builtin.Name
		a, err := Advise(s)
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		r := a.Rule
		if !reflect.DeepEqual(r.Scope, builtin.Scope) || !reflect.DeepEqual(r.Failures, builtin.Failures) || !reflect.DeepEqual(r.Ignores, builtin.Ignores) ||
			!reflect.DeepEqual(r.Trip.AtOnce, builtin.Trip.AtOnce) || r.Trip.Witnesses != builtin.Trip.Witnesses || r.Trip.Models != builtin.Trip.Models ||
			r.Trip.OnRetryAfter != builtin.Trip.OnRetryAfter || r.SlowAfter != builtin.SlowAfter {
			t.Errorf("%s became %+v", s.Name, r)
		}
		if len(r.Cooldown.ByCause) > 0 {
			t.Errorf("%s waits otherwise after some causes: %v", s.Name, r.Cooldown.ByCause)
		}
	}
	s := worked
	s.Name, s.Scope = "hangs", []string{"agent", "model"}
	a, err := Advise(s)
	if err != nil || a.Rule.Trip.Models != 0 {
		t.Errorf("within one model %d of them have to fail, %v", a.Rule.Trip.Models, err)
	}
}

func TestAdviseRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Situation)
		want   []string
	}{
		"recovery over tolerance": {func(s *Situation) { s.Recovery = time.Hour }, []string{"recovery: 1h is not shorter than the tolerance of 30m", "a fallback"}},
		"recovery is tolerance":   {func(s *Situation) { s.Recovery = s.Tolerance }, []string{"recovery: 30m is not shorter"}},
		"reacts too late":         {func(s *Situation) { s.React = time.Hour }, []string{"react: 1h is not shorter than the tolerance of 30m"}},
		"no second":               {func(s *Situation) { s.Recovery, s.React, s.Tolerance = 1e8, 1e8, 1e9 }, []string{"tolerance: 1s is too short: a cooldown is at least 1s"}},
		"normal over failures":    {func(s *Situation) { s.Normal = 30_000 }, []string{"failures: 2% is not over the usual share of 3%"}},
		"not healthy":             {func(s *Situation) { s.Normal, s.Failures = 600_000, 900_000 }, []string{"normal: 60% is out of range"}},
		"nothing given":           {func(s *Situation) { *s = Situation{} }, []string{"rate: ", "react: 0s is out of range: 1ms to 720h", "recovery: ", "tolerance: ", "failures: 0% is out of range"}},
		"bad name":                {func(s *Situation) { s.Name = "a b" }, []string{`rule a b: name: "a b" is no rule name`}},
		"bad scope":               {func(s *Situation) { s.Scope = []string{"city"} }, []string{`scope: unknown label "city"`}},
		"no scope":                {func(s *Situation) { s.Scope = []string{} }, []string{"scope: is missing"}},
		"too fast":                {func(s *Situation) { s.Rate.Calls = math.Inf(1) }, []string{"rate: +Inf calls in 1s is out of range"}},
		"no number":               {func(s *Situation) { s.Rate.Calls = math.NaN() }, []string{"rate: NaN calls"}},
	} {
		s := worked
		tc.change(&s)
		_, err := Advise(s)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error lacks %q: %v", name, want, err)
			}
		}
	}
}

func TestCallRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]CallRate{
		"20/s": {20, time.Second}, "5/min": {5, time.Minute}, "300/h": {300, time.Hour}, " 1.5 / day ": {1.5, 24 * time.Hour},
		"7/m": {7, time.Minute}, "1/hour": {1, time.Hour}, "1000000/s": {1e6, time.Second}, "1/d": {1, 24 * time.Hour},
	} {
		var r CallRate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%q is %v, %v", text, r, err)
		}
		var again CallRate
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Errorf("%q prints as %q, which is %v, %v", text, r, again, err)
		}
	}
	for _, text := range []string{"", "20", "20/", "/s", "x/s", "20/fortnight", "0/s", "-1/s", "NaN/s", "Inf/s", "1000001/s", "0.9/d", "20/s/s"} {
		r := CallRate{7, time.Second}
		if err := r.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "it looks like 20/s") || r.Calls != 7 {
			t.Errorf("%q is %v, %v", text, r, err)
		}
	}
}

// The tail is held against exact fractions.
func TestTail(t *testing.T) {
	t.Parallel()
	exact := func(n, k int, num, den int64) float64 {
		p := big.NewRat(num, den)
		q := new(big.Rat).Sub(big.NewRat(1, 1), p)
		power := func(r *big.Rat, e int) *big.Rat {
			v := big.NewRat(1, 1)
			for range e {
				v.Mul(v, r)
			}
			return v
		}
		sum := new(big.Rat)
		for i := k; i <= n; i++ {
			term := new(big.Rat).SetInt(new(big.Int).Binomial(int64(n), int64(i)))
			sum.Add(sum, term.Mul(term, power(p, i)).Mul(term, power(q, n-i)))
		}
		v, _ := sum.Float64()
		return v
	}
	for _, tc := range []struct {
		n, k     int
		num, den int64
	}{{10, 5, 1, 2}, {10, 0, 1, 2}, {10, 10, 1, 2}, {20, 1, 1, 1000}, {60, 30, 49, 100}, {60, 3, 1, 50}, {120, 6, 1, 1000}, {120, 119, 9, 10}, {30, 31, 1, 2}} {
		want := exact(tc.n, tc.k, tc.num, tc.den)
		got := tail(tc.n, tc.k, float64(tc.num)/float64(tc.den))
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("P(Bin(%d, %d/%d) ≥ %d) = %v, want %v", tc.n, tc.num, tc.den, tc.k, got, want)
		}
	}
	if tail(5, 1, 0) != 0 || tail(5, 5, 1) != 1 {
		t.Error("a certain service is not certain")
	}
}

// pool is a breaker of an advised rule in the real engine, on virtual time.
type pool struct {
	t      rapid.TB
	engine *breaker.Engine
	labels breaker.Labels
	cause  breaker.Cause // a failure of the rule
	now    time.Time
	gap    time.Duration
	trips  int
	batch  []breaker.Outcome
}

func newPool(t rapid.TB, s Situation, a Advice) *pool {
	t.Helper()
	engine, err := breaker.New(breaker.Config{Rules: []breaker.Rule{a.Rule}})
	if err != nil {
		t.Fatal(err)
	}
	return &pool{
		t: t, engine: engine, labels: breaker.Labels{Agent: "a", Machine: "m", Model: "q"}, cause: breaker.ServerError,
		now: time.Unix(0, 0), gap: time.Duration(float64(time.Second) / s.Rate.perSecond()),
	}
}

// call makes one call, at the rate, and tells whether the breaker is open then.
// One that is is reset, so that a day goes on.
func (p *pool) call(fails bool) bool {
	p.t.Helper()
	cause := breaker.OK
	if fails {
		cause = p.cause
	}
	p.now = p.now.Add(p.gap)
	p.batch = append(p.batch[:0], breaker.Outcome{Labels: p.labels, Cause: cause})
	verdicts, seq := p.engine.Report(p.now, p.batch)
	if seq%1000 == 0 {
		p.engine.Drain()
	}
	if verdicts[0].State == breaker.Closed {
		return false
	}
	p.trips++
	name := p.engine.Breakers(p.now, breaker.Labels{})[0].Name
	if _, _, err := p.engine.Control(p.now, breaker.Control{Breaker: name, Op: breaker.OpReset, Actor: "test"}); err != nil {
		p.t.Fatal(err)
	}
	return true
}

func TestAdvisedRuleHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string, low, high time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(int64(low), int64(high)).Draw(t, name))
		}
		s := Situation{
			Rate:     CallRate{float64(rapid.IntRange(1, 500).Draw(t, "calls")), rapid.SampledFrom([]time.Duration{time.Second, time.Second, time.Minute, time.Hour}).Draw(t, "per")},
			React:    span("react", time.Second, 2*time.Minute),
			Normal:   breaker.Share(rapid.SampledFrom([]uint32{0, 1000, 10_000, 250_000}).Draw(t, "normal")),
			Recovery: span("recovery", time.Millisecond, time.Hour),
			WarmUp:   rapid.Bool().Draw(t, "warm-up"),
			Name:     rapid.SampledFrom([]string{"errors", "mine"}).Draw(t, "name"),
		}
		s.Failures = breaker.Share(rapid.Uint32Range(uint32(s.Normal)+1, uint32(whole)).Draw(t, "failures"))
		s.Tolerance = max(s.Recovery, s.React) + span("room", time.Millisecond, 2*time.Hour)
		a, err := Advise(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		c := a.Rule.Cooldown
		if c.First.D() <= s.Recovery || c.Max.D() >= s.Tolerance || c.First > c.Max || c.Max.D()*2 < s.Tolerance {
			t.Fatalf("cooldown %s up to %s for a recovery of %s and a tolerance of %s", c.First, c.Max, s.Recovery, s.Tolerance)
		}
		if a.FalseTrips < 0 || a.FalseTrips > 1 {
			t.Fatalf("the probability of a false trip is %v", a.FalseTrips)
		}
		if _, err := json.Marshal(a); err != nil {
			t.Fatal(err)
		}

		// A total failure is noticed in time: while the window is empty, and out of
		// healthy traffic; not before the second call of it.
		p := newPool(t, s, a)
		within := s.React
		if a.Window == 0 {
			within = a.Detection.D() // which says itself when that is too long
		}
		for _, healthy := range []int{0, 2 * a.Window} {
			for range healthy {
				if p.call(false) {
					t.Fatal("healthy calls trip")
				}
			}
			began, calls := p.now, 1
			for !p.call(true) {
				if calls++; calls > 20_000 {
					t.Fatal("a total failure never trips")
				}
			}
			if took := p.now.Sub(began); took > within+time.Duration(calls) || calls < 2 { // a nanosecond of rounding a call
				t.Fatalf("a total failure trips after %d calls, %s: within %s was said (%+v)", calls, took, within, a)
			}
		}
		// The threshold is exact: one failure fewer in a full window does not trip.
		// Evenly spread, as far as the window allows, so that the run does not.
		if a.Window == 0 || a.Run > 0 && a.Failures/max(1, a.Window-a.Failures)+1 >= a.Run {
			return
		}
		for _, failures := range []int{a.Failures - 1, a.Failures} {
			p := newPool(t, s, a)
			for i := range a.Window {
				p.call(i*failures/a.Window != (i+1)*failures/a.Window)
			}
			if (p.trips > 0) != (failures == a.Failures) {
				t.Fatalf("%d failures of %d calls trip %d times, %d were said to (%+v)", failures, a.Window, p.trips, a.Failures, a.Rule.Trip)
			}
		}
	})
}

// A healthy service gets through a day, and one whose day is dangerous trips no
// more often than the bound says, but not much less either.
func TestHealthyDay(t *testing.T) {
	t.Parallel()
	day := func(p *pool, r *rand.Rand, s Situation) (trips int) {
		before := p.trips
		for range int(s.Rate.PerDay()) {
			p.call(r.Float64() < fraction(s.Normal))
		}
		return p.trips - before
	}
	t.Run("safe", func(t *testing.T) {
		t.Parallel()
		for _, rate := range []CallRate{{30, time.Minute}, {5, time.Minute}, {300, time.Hour}} {
			s := worked
			s.Rate, s.React = rate, 10*time.Minute
			a, err := Advise(s)
			if err != nil {
				t.Fatal(err)
			}
			if a.FalseTrips > 0.01 {
				t.Fatalf("at %s a day trips with a probability of %v", rate, a.FalseTrips)
			}
			if trips := day(newPool(t, s, a), rand.New(rand.NewPCG(1, 2)), s); trips > 0 {
				t.Errorf("at %s a healthy day trips %d times", rate, trips)
			}
		}
	})
	t.Run("dangerous", func(t *testing.T) {
		t.Parallel()
		s := worked
		s.Rate, s.React, s.Normal, s.Failures = CallRate{1000, 24 * time.Hour}, 29*time.Minute, 10_000, 150_000
		a, err := Advise(s)
		if err != nil {
			t.Fatal(err)
		}
		const days = 60
		p, r := newPool(t, s, a), rand.New(rand.NewPCG(1, 2))
		bad := 0
		for range days {
			if day(p, r, s) > 0 {
				bad++
			}
		}
		got := float64(bad) / days
		if got > a.FalseTrips || got < a.FalseTrips/4 {
			t.Errorf("%d of %d days trip: the bound is %v (%d of %d, %d in a row)", bad, days, a.FalseTrips, a.Failures, a.Window, a.Run)
		}
	})
}
