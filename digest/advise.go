package digest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"breakerbot/breaker"
)

// CallRate is how many calls are made in a unit of time.
type CallRate struct {
	Calls float64
	Per   time.Duration // a second, a minute, an hour or a day
}

// rateUnits are the units of a CallRate, the word that prints first.
var rateUnits = []struct {
	per   time.Duration
	words []string
}{
	{time.Second, []string{"s", "sec", "second"}},
	{time.Minute, []string{"min", "m", "minute"}},
	{time.Hour, []string{"h", "hour"}},
	{24 * time.Hour, []string{"d", "day"}},
}

// maxRate is the highest rate that advice is given for, in calls a second.
const maxRate = 1_000_000

// UnmarshalText reads "20/s", "5/min", "300/h" or "40/d", at least one call a
// day and at most a million a second.
func (r *CallRate) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	unit = strings.TrimSpace(unit)
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	for _, u := range rateUnits {
		if !slices.Contains(u.words, unit) {
			continue
		}
		rate := CallRate{v, u.per}
		if err != nil || !(rate.PerDay() >= 1 && rate.perSecond() <= maxRate) {
			break
		}
		*r = rate
		return nil
	}
	return fmt.Errorf("%q is no rate of calls: it looks like 20/s, 5/min, 300/h or 40/d, at least 1/d and at most %d/s", cut(string(text), 32), maxRate)
}

// String prints what UnmarshalText reads.
func (r CallRate) String() string {
	for _, u := range rateUnits {
		if u.per == r.Per {
			return strconv.FormatFloat(r.Calls, 'f', -1, 64) + "/" + u.words[0]
		}
	}
	return strconv.FormatFloat(r.perSecond(), 'f', -1, 64) + "/s"
}

// MarshalText writes what String prints.
func (r CallRate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r CallRate) perSecond() float64 { return r.Calls / r.Per.Seconds() }

// PerDay is the number of calls of a day.
func (r CallRate) PerDay() float64 { return r.Calls * (24 * time.Hour).Seconds() / r.Per.Seconds() }

// calls is how many calls fit into a span; a product that is whole but for the
// rounding of floats is whole.
func (r CallRate) calls(span time.Duration) float64 {
	return math.Floor(r.perSecond()*span.Seconds() + 1e-9)
}

// span is how long so many calls take.
func (r CallRate) span(calls float64) time.Duration {
	return time.Duration(calls / r.perSecond() * float64(time.Second))
}

// Situation is what is known of a service and wanted of its breaker.
type Situation struct {
	Rate CallRate
	// React is how soon a failure that lasts shall be noticed.
	React time.Duration
	// Failures is the share of failed calls from which on it is an outage; Normal
	// is the usual share of a healthy service, zero when it never fails.
	Failures, Normal breaker.Share
	// Recovery is how long the service takes to come back, Tolerance how long
	// people can do without it.
	Recovery, Tolerance time.Duration
	// WarmUp says that first calls after an outage can be slow or fail, as those
	// of a model on its way into memory.
	WarmUp bool
	// Name is the rule to advise on. That of a built-in rule keeps what the rule
	// is about; another one is about calls that fail or hold nothing of use. Scope
	// overrides the rule's; nil does not.
	Name  string
	Scope []string
}

// Advice is a rule and why it is as it is.
type Advice struct {
	Parts []AdvicePart `json:"advice"` // window, threshold, cooldown, probes, false_trips
	// Window is the calls that the rate is taken over and Failures how many of
	// them trip; both are zero when the traffic is too thin for a rate. Run is the
	// number of failures in a row that trips, zero for none.
	Window   int `json:"window_calls"`
	Failures int `json:"window_failures"`
	Run      int `json:"consecutive"`
	// Detection is how long a total failure takes to trip, at the given rate.
	Detection breaker.Duration `json:"detection"`
	// FalseTrips bounds the probability that a healthy service trips within a day
	// from above; see falseTrips.
	FalseTrips float64      `json:"false_trips_a_day"`
	Rule       breaker.Rule `json:"rule"`
}

// AdvicePart is one number of the advice, with its reasons in sentences.
type AdvicePart struct {
	Name  string   `json:"name"`
	Value string   `json:"value"`
	Why   []string `json:"why"`
}

const (
	// enoughCalls and enoughFailures are what a window has to hold for a share of
	// it to mean anything: under three failures, two unrelated ones would trip.
	enoughCalls    = 20
	enoughFailures = 3
	// mostCalls is the largest window of calls that a rule may have.
	mostCalls = 10_000
	// shortestRun is the fewest failures in a row that are advised.
	shortestRun = 3
	// rare is how often a healthy service may trip without a word of warning:
	// once in a year.
	rare = 1.0 / 365
	// warmProbes is how many probes a service that warms up has to pass.
	warmProbes  = 3
	longestWait = 30 * 24 * time.Hour
)

// whole is a share of one; a Share counts millionths.
const whole breaker.Share = 1_000_000

// Advise derives a rule from a traffic rate and a recovery time. The error
// names every field that cannot be, its value and what would be right.
func Advise(s Situation) (Advice, error) {
	if err := s.check(); err != nil {
		return Advice{}, err
	}
	a := Advice{Rule: s.rule()}
	s.size(&a)
	s.cool(&a)
	s.probe(&a)
	s.risk(&a)
	if err := a.Rule.Validate(); err != nil {
		return Advice{}, fmt.Errorf("rule %s: %w", cut(s.Name, 64), err)
	}
	return a, nil
}

func (s Situation) check() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if s.Rate.Per <= 0 || !(s.Rate.PerDay() >= 1 && s.Rate.perSecond() <= maxRate) {
		bad("rate", "%v calls in %s is out of range: 1/d to %d/s are allowed", s.Rate.Calls, roughly(s.Rate.Per), maxRate)
	}
	span := func(field string, d time.Duration) {
		if d < time.Millisecond || d > longestWait {
			bad(field, "%s is out of range: 1ms to %s are allowed", roughly(d), roughly(longestWait))
		}
	}
	span("react", s.React)
	span("recovery", s.Recovery)
	span("tolerance", s.Tolerance)
	switch {
	case s.Failures == 0 || s.Failures > whole:
		bad("failures", "%s is out of range: over 0 and at most 100%% are allowed", s.Failures)
	case s.Normal > whole/2:
		bad("normal", "%s is out of range: a service that fails more than half of its calls is not healthy", s.Normal)
	case s.Failures <= s.Normal:
		bad("failures", "%s is not over the usual share of %s: a healthy service would trip; say a higher share of failures, or a lower normal one", s.Failures, s.Normal)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	// A cooldown has to exceed the one and stay below the other.
	switch low := max(s.Recovery, time.Second-1); {
	case s.Recovery >= s.Tolerance:
		bad("recovery", "%s is not shorter than the tolerance of %s, so no cooldown can exceed the one and stay below the other: the service is away for longer than it may be missed, whatever a breaker does. Give its callers a fallback (a chain), or accept a longer tolerance", roughly(s.Recovery), roughly(s.Tolerance))
	case s.Tolerance-low < 2:
		bad("tolerance", "%s is too short: a cooldown is at least 1s and has to stay below it", roughly(s.Tolerance))
	case s.React >= s.Tolerance:
		bad("react", "%s is not shorter than the tolerance of %s: the failure would be noticed when it has been missed too long already", roughly(s.React), roughly(s.Tolerance))
	}
	return errors.Join(errs...)
}

// rule is what the advice is about: the built-in rule of the name without its
// trip by counting and its cooldown, or one about calls that failed or whose
// answer is of no use.
func (s Situation) rule() breaker.Rule {
	r := breaker.Rule{
		Name: s.Name, Scope: []string{"machine", "model"},
		Failures: []string{"transport", "quality", "model_missing"},
		Ignores:  []string{"capacity", "access", "caller", "neutral"},
	}
	for _, builtin := range breaker.Builtin() {
		if builtin.Name == s.Name {
			r = builtin
		}
	}
	if s.Scope != nil {
		r.Scope = slices.Clone(s.Scope)
	}
	old := r.Trip
	r.Trip = breaker.Trip{Witnesses: old.Witnesses, Models: old.Models, AtOnce: old.AtOnce, OnRetryAfter: old.OnRetryAfter}
	// Within one agent or one model there are no others to ask.
	if slices.Contains(r.Scope, "agent") {
		r.Trip.Witnesses = 0
	}
	if slices.Contains(r.Scope, "model") {
		r.Trip.Models = 0
	}
	return r
}

// size sets window and threshold: a rate when the time to react holds enough
// calls for one, and a run of failures, which is faster while a window fills.
func (s Situation) size(a *Advice) {
	held := s.Rate.calls(s.React)
	n := int(min(held, mostCalls))
	k := needed(s.Failures, n)
	a.Run = s.run()
	if n < enoughCalls || k < enoughFailures {
		s.tooThin(a, n, k)
		return
	}
	a.Window, a.Failures = n, k
	a.Rule.Trip.Rate, a.Rule.Trip.Window, a.Rule.Trip.MinCalls = s.Failures, breaker.Window{Calls: n}, n
	if a.Run > n {
		a.Run = 0
	}
	a.Rule.Trip.Consecutive = a.Run
	total := n // until the window is full
	if a.Run > 0 {
		total = a.Run
	}
	a.Detection = breaker.Duration(s.Rate.span(float64(total)))

	why := []string{fmt.Sprintf("At %s, the %s within which the breaker shall react are %s calls.", s.Rate, roughly(s.React), amount(held))}
	if held > mostCalls {
		why[0] += fmt.Sprintf(" A window holds at most %d, which pass in %s: that is statistics enough, and sooner.", mostCalls, roughly(s.Rate.span(mostCalls)))
	}
	why = append(why, "It is counted in calls, so it needs as many at night as at noon, and a quiet hour empties it.")
	a.add("window", fmt.Sprintf("%d calls", n), why...)

	value := fmt.Sprintf("%s, %d failures of %d calls (min_calls %d)", s.Failures, k, n, n)
	why = []string{
		fmt.Sprintf("%s of %d calls is %d failures: few enough for an outage to reach, more than unrelated failures usually are, of which a healthy service that fails %s of its calls has %s in a window.", s.Failures, n, k, s.Normal, amount(float64(n)*fraction(s.Normal))),
		fmt.Sprintf("min_calls is the whole window: with fewer, a smaller number of failures would be %s of what is in, and one alone could trip.", s.Failures),
	}
	if a.Run > 0 {
		value += fmt.Sprintf(", or %d in a row", a.Run)
		why = append(why, fmt.Sprintf("Besides, %d in a row trip, so that a total failure is noticed in %s even while the window fills after a start or a recovery.", a.Run, roughly(a.Detection.D())))
	} else {
		why = append(why, "A run of failures is no sign here: a healthy service has long ones too often.")
	}
	twice := min(2*s.Failures, whole)
	why = append(why,
		fmt.Sprintf("A service that fails %s of its calls trips within one window (%s) with a probability of %s.", twice, roughly(s.Rate.span(float64(n))), chance(tail(n, k, fraction(twice)))),
		"A call that hangs is a failure only when its time-out ends: give calls one that is shorter than the time to react.")
	a.add("threshold", value, append(why, a.company()...)...)
}

// company is what the rule asks of a trip besides its numbers.
func (a *Advice) company() []string {
	var why []string
	if w := a.Rule.Trip.Witnesses; w > 1 {
		why = append(why, fmt.Sprintf("Where %d agents or more report, the failures have to be of so many: one that misjudges stops nobody else.", w))
	}
	if m := a.Rule.Trip.Models; m > 1 {
		why = append(why, fmt.Sprintf("Where %d models or more are called, the failures have to be of so many: one alone is not the machine.", m))
	}
	return why
}

// tooThin advises a run of failures where no window holds enough calls in time.
func (s Situation) tooThin(a *Advice, n, k int) {
	a.Rule.Trip.Consecutive = a.Run
	a.Detection = breaker.Duration(s.Rate.span(float64(a.Run)))
	enough := max(enoughCalls, int((enoughFailures-1)*uint64(whole)/uint64(s.Failures))+1)
	a.add("window", "none", fmt.Sprintf(
		"At %s, %s hold %s, and %s of them is %s: a share means something from %d calls and %d failures on.",
		s.Rate, roughly(s.React), counted(n, "call"), s.Failures, counted(k, "failure"), enoughCalls, enoughFailures),
		thinCure(s, enough))
	half := meanCalls(a.Run, 0.5)
	why := []string{
		fmt.Sprintf("Consecutive failures need no window. A total failure is noticed after %d calls, which is %s at %s.", a.Run, roughly(a.Detection.D()), s.Rate),
		fmt.Sprintf("A service that fails half of its calls is noticed after %s calls on average, which is %s.", amount(half), roughly(s.Rate.span(half))),
	}
	if a.Detection.D() > s.React {
		why = append(why, fmt.Sprintf("That is longer than the %s asked for: with so few calls, no count of them is faster.", roughly(s.React)))
	}
	why = append(why, "A call that hangs is a failure only when its time-out ends, which comes on top.")
	a.add("threshold", fmt.Sprintf("%d in a row", a.Run), append(why, a.company()...)...)
}

func thinCure(s Situation, enough int) string {
	if enough > mostCalls {
		return fmt.Sprintf("For a share of %s it takes %d calls, more than the %d that a window holds: only a higher share could be counted.", s.Failures, enough, mostCalls)
	}
	react := ceilNice(s.Rate.span(float64(enough)))
	text := fmt.Sprintf("For a share of %s it takes %d calls, which are %s here", s.Failures, enough, roughly(s.Rate.span(float64(enough))))
	if react < s.Tolerance {
		return text + fmt.Sprintf(": with a time to react of %s there would be a window.", roughly(react))
	}
	return text + ", longer than the failure can be tolerated."
}

// run is the fewest failures in a row that a healthy service has rarely. The
// runs of length c in n independent calls are at most n·p^c expected.
func (s Situation) run() int {
	p, c := fraction(s.Normal), shortestRun
	for s.Rate.PerDay()*math.Pow(p, float64(c)) > rare {
		c++
	}
	return c
}

// cool sets the cooldown: longer than the service's recovery, shorter than it
// can be missed.
func (s Situation) cool(a *Advice) {
	first := max(ceilNice(s.Recovery+s.Recovery/4), time.Second)
	why := []string{fmt.Sprintf("The service takes %s to come back. A shorter cooldown would send probes into an outage that is known to last; a quarter on top, rounded up, leaves room for a slow recovery.", roughly(s.Recovery))}
	if first >= s.Tolerance {
		low := max(s.Recovery, time.Second-1)
		first = low + (s.Tolerance-low+1)/2
		if seconds := first.Truncate(time.Second); seconds > low {
			first = seconds
		}
		why = []string{fmt.Sprintf("The service takes %s to come back and can be missed for %s: there is no room for more than the middle between the two.", roughly(s.Recovery), roughly(s.Tolerance))}
	}
	longest, factor := first, 1.0
	for longest*2 < s.Tolerance {
		longest, factor = longest*2, 2
	}
	a.Rule.Cooldown = breaker.Cooldown{First: breaker.Duration(first), Factor: factor, Max: breaker.Duration(longest)}
	value := roughly(first)
	if factor > 1 {
		value += fmt.Sprintf(" ×2 up to %s", roughly(longest))
		why = append(why, fmt.Sprintf("An outage that outlasts its usual recovery is asked about half as often each time, and at the latest every %s: once it ends, no more than that is lost, which stays below the tolerance of %s.", roughly(longest), roughly(s.Tolerance)))
	} else {
		why = append(why, fmt.Sprintf("It does not grow: twice as long would not stay below the tolerance of %s.", roughly(s.Tolerance)))
	}
	if all := a.Detection.D() + first; all >= s.Tolerance {
		why = append(why, fmt.Sprintf("With the %s until a total failure is noticed, it is %s until the first probe all the same: longer than the tolerance.", roughly(a.Detection.D()), roughly(all)))
	}
	a.add("cooldown", value, why...)
}

func (s Situation) probe(a *Advice) {
	a.Rule.Probes, a.Rule.Concurrent = 1, 1
	if !s.WarmUp {
		a.add("probes", "1", "The service does not warm up: its first good answer is as good as any, and one failure re-opens.")
		return
	}
	a.Rule.Probes = warmProbes
	took := roughly(s.Rate.span(warmProbes))
	a.add("probes", strconv.Itoa(warmProbes)+", one after the other",
		fmt.Sprintf("The first answer after an outage may be a lucky one of a service that still warms up: %d in a row have to succeed, one at a time, so that a cold service is not met by the whole load.", warmProbes),
		fmt.Sprintf("At %s, three calls take about %s, besides what they take themselves. One failure re-opens.", s.Rate, took))
}

func (s Situation) risk(a *Advice) {
	a.FalseTrips = s.falseTrips(a.Window, a.Failures, a.Run)
	value := "at most " + chance(a.FalseTrips) + " a day"
	if often := often(a.FalseTrips); often != "" {
		value += ", " + often
	}
	if a.FalseTrips == 0 {
		a.add("false_trips", "none", "A service that never fails never trips; --normal says how many calls of a healthy one fail.")
		return
	}
	why := []string{fmt.Sprintf("That is the probability that a service which fails %s of its calls, each for itself, trips within a day of %s calls. Failures that come in clusters trip more often: they look like an outage because they are a small one.", s.Normal, amount(s.Rate.PerDay()))}
	if a.FalseTrips > rare && a.Window > 0 {
		if n, k, p := s.safer(a); n > 0 {
			why = append(why, fmt.Sprintf("For fewer, raise the window rather than the share: %d failures of %d calls are at most %s a day, and the window takes %s.", k, n, chance(p), roughly(s.Rate.span(float64(n)))))
		} else {
			why = append(why, "No window is large enough to make that rare: raise the share of failures.")
		}
	}
	a.add("false_trips", value, why...)
}

// safer is a larger window of the same share that trips rarely, the smallest or
// little more; zero when there is none.
func (s Situation) safer(a *Advice) (n, k int, p float64) {
	for k := a.Failures + 1; ; k += 1 + k/20 {
		n := int(uint64(k) * uint64(whole) / uint64(s.Failures))
		if n > mostCalls {
			return 0, 0, 0
		}
		if p := s.falseTrips(n, needed(s.Failures, n), a.Run); p <= rare {
			return n, needed(s.Failures, n), p
		}
	}
}

// falseTrips bounds the probability that a healthy service trips within a day
// from above. A full window of N calls trips at a failure, when k−1 of the N−1
// calls before it failed too; a run trips at a failure with c−1 before it. Over
// the n calls of a day, of which each fails with probability p for itself, the
// sum over all calls (Boole's inequality) is
//
//	n·p·P(B ≥ k−1) + n·p^c,  B binomial with N−1 trials of probability p.
//
// It counts what a scan statistic asks for (Naus, Approximations for
// Distributions of Scan Statistics, J. Amer. Statist. Assoc. 77, 1982), and as
// such clusters more than once, so that it errs on the careful side. A zero
// window or run is left out.
func (s Situation) falseTrips(window, failures, run int) float64 {
	n, p := s.Rate.PerDay(), fraction(s.Normal)
	sum := 0.0
	if window > 0 {
		sum += n * p * tail(window-1, failures-1, p)
	}
	if run > 0 {
		sum += n * math.Pow(p, float64(run))
	}
	return min(1, sum)
}

// tail is P(B ≥ k) of a binomial B with n trials of probability p: the sum of
// its terms n!/(i!(n−i)!)·p^i·(1−p)^(n−i), through logarithms because the
// factorials overflow.
func tail(n, k int, p float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n || p <= 0:
		return 0
	case p >= 1:
		return 1
	}
	logFactorial := func(i int) float64 { v, _ := math.Lgamma(float64(i) + 1); return v }
	sum := 0.0
	for i := k; i <= n; i++ {
		term := math.Exp(logFactorial(n) - logFactorial(i) - logFactorial(n-i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
		sum += term
		if float64(i) > float64(n)*p && term < sum*1e-17 {
			break // past the middle they only get smaller
		}
	}
	return min(1, sum)
}

// meanCalls is how many calls it takes on average until c in a row have failed,
// when each fails with probability p: (1−p^c)/(p^c·(1−p)), from Feller, An
// Introduction to Probability Theory and Its Applications, vol. 1, XIII.7.
func meanCalls(c int, p float64) float64 {
	all := math.Pow(p, float64(c))
	return (1 - all) / (all * (1 - p))
}

// needed is how many failures of n calls reach the share: the engine compares
// failures/calls ≥ share without rounding.
func needed(s breaker.Share, n int) int {
	return int((uint64(s)*uint64(n) + uint64(whole) - 1) / uint64(whole))
}

func fraction(s breaker.Share) float64 { return float64(s) / float64(whole) }

func (a *Advice) add(name, value string, why ...string) {
	a.Parts = append(a.Parts, AdvicePart{name, value, why})
}

// ceilNice rounds a duration up to what somebody would write.
func ceilNice(d time.Duration) time.Duration {
	steps := []struct{ below, step time.Duration }{
		{10 * time.Second, time.Second}, {2 * time.Minute, 5 * time.Second}, {10 * time.Minute, 30 * time.Second},
		{time.Hour, time.Minute}, {10 * time.Hour, 5 * time.Minute},
	}
	step := 30 * time.Minute
	for _, s := range steps {
		if d <= s.below {
			step = s.step
			break
		}
	}
	return (d + step - 1) / step * step
}

// roughly prints a duration to three digits or so.
func roughly(d time.Duration) string {
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(time.Millisecond)
	}
	return breaker.Duration(d).String()
}

// amount prints a count; one below ten has a place after the point.
func amount(v float64) string {
	switch {
	case v >= 10 || v == math.Trunc(v):
		return number(int64(math.Round(v)))
	case v >= 0.05:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return "next to none"
}

// chance prints a probability to two digits.
func chance(p float64) string {
	switch v := p * 100; {
	case v < 1e-4:
		return "under 0.0001%"
	case v > 99.99:
		return "over 99.99%"
	case v > 10:
		return strconv.FormatFloat(v, 'f', 1, 64) + "%"
	default:
		digits := 1 - int(math.Floor(math.Log10(v)))
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', max(1, digits), 64), ".0") + "%"
	}
}

// often says how rare something of that probability a day is; "" where it
// cannot be said.
func often(p float64) string {
	switch {
	case p >= 0.5:
		return ""
	case p > rare:
		return fmt.Sprintf("once in %.0f days", 1/p)
	case rare/p > 1000:
		return "once in more than 1000 years"
	}
	return fmt.Sprintf("once in %s years", amount(rare/p))
}

// MarshalJSON writes the probability as a number that reads well.
func (a Advice) MarshalJSON() ([]byte, error) {
	type plain Advice
	a.FalseTrips, _ = strconv.ParseFloat(strconv.FormatFloat(a.FalseTrips, 'g', 3, 64), 64)
	return json.Marshal(plain(a))
}
