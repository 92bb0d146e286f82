// Package breaker is the engine: it decides, for a pool of agents, which calls
// to which machines and models are worth making.
//
// An Engine is a deterministic state machine. Outcomes, questions, controls and
// the time come in with its methods; verdicts, grants and a Batch of everything
// that happened come out. It has no goroutine, no timer, no clock and does no
// I/O, so that the same inputs in the same order give the same transitions,
// which is what replays and restores rely on. It does not know HTTP, Postgres
// or people; those are other packages' matters.
//
// One outcome is shown to every rule whose scope it fills, and each has breakers
// of its own: a call is allowed when every breaker of its circuit allows it. A
// probe is a lease: it has a holder, a deadline and one word that settles it,
// and a result counts only in the era in which its call started.
//
// Where the rules leave a choice, this is the one taken:
//
//   - A word of a permit that holds no slot in a breaker may still be its
//     passive probe, judged by the time of the grant: otherwise an agent that
//     asks about less than it reports could never close it.
//   - A permit that is not this pool's is as good as none; the call happened.
//   - A Retry-After whose end has passed already trips nothing.
//   - An outcome that found its breaker open is not in Counted, unless it was a
//     probe: it moved nothing.
//   - Results under a hold-closed are in windows and runs, for whoever looks,
//     and are forgotten when it ends.
//   - A breaker is made by the first outcome that its rule counts, or by a
//     control. A rule that has as many as it may drops the longest idle ones
//     that carry nothing; when there are none, new ones are not made and their
//     calls are not counted.
//   - An incident has the number of the era in which it tripped.
//   - Jitter is drawn from the breaker's name and era.
//   - The answers that caller_timeout looks back on are kept by the minute: those
//     of one minute leave together, when the last of them is ten minutes old. An
//     answer without a duration says nothing of speed.
//   - A write in doubt holds all permits for its key, also one for the place
//     where it may have happened: whoever asks there what became of it asks
//     without the key. It is the signal that leaves a write in doubt, also where
//     the time-out is judged to be the caller's own or a model's loading.
//   - A target tried twice is one hop; one of no chain is a hop too. A route that
//     passes over a refusing target counts as a permit refused.
//   - Of a turn's tried machine without a model all of its targets are tried.
//   - A boot check opens like a trip, ladder included.
//   - An answered health check brings the probe forward to now, or to the end of
//     the last Retry-After heard since the breaker was closed.
//   - A permit with a time-out that never comes back counts as a time-out only
//     when its agent is known to report by permit, when more are lost than the
//     target's usual share explains, and when two agents lost some or the one has
//     been heard of since: an agent that died says nothing about a machine.
//   - A rule that has as many breakers as it may says so in the verdicts of the
//     calls that it did not count.
package breaker
