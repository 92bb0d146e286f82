package app

import (
	"hash/fnv"
	"strconv"
	"time"
)

// The lab that the demo lives through: three machines, five models, four
// agents, and a day with three outages. Only this is made up; what breakerbot
// does about it is not.

// labDay is the morning on which the demo begins, and labEnd the next one.
var (
	labDay = time.Date(2026, 3, 10, 8, 0, 0, 0, time.UTC)
	labEnd = labDay.Add(24 * time.Hour)
)

// labTarget is a model on a machine.
type labTarget struct {
	machine, model string
	takes          time.Duration // a good call
}

// labAgent calls its first target every so often, and the second one when it
// must not, or cannot, call the first.
type labAgent struct {
	name   string
	every  time.Duration
	first  labTarget
	second labTarget // without a machine: the agent waits
	limit  time.Duration
}

var (
	labCode   = labTarget{"gpu-box", "qwen3-30b", 3100 * time.Millisecond}
	labEmbed  = labTarget{"gpu-box", "qwen3-embed-8b", 400 * time.Millisecond}
	labChat   = labTarget{"mac-mini", "qwen3-4b", 1200 * time.Millisecond}
	labVision = labTarget{"ubuntu-box", "llava-7b", 4300 * time.Millisecond}
	labSmall  = labTarget{"ubuntu-box", "nomic-embed", 900 * time.Millisecond}
)

var labAgents = []labAgent{
	{"coder", 31 * time.Second, labCode, labChat, 5 * time.Second},
	{"indexer", 43 * time.Second, labEmbed, labSmall, 5 * time.Second},
	{"chat", 67 * time.Second, labChat, labTarget{}, 5 * time.Second},
	{"vision", 47 * time.Second, labVision, labTarget{}, 10 * time.Second},
}

// labOutage is a time in which a machine, or one model of it, does not do its
// work.
type labOutage struct {
	from, to time.Time
	machine  string
	model    string // "": all of them
	story    string
	takes    time.Duration // 0: until the caller gives up
	signal   labSignal
}

// labSignal is what a caller sees of a failure.
type labSignal struct {
	status int
	text   string
	phase  string
}

func labAt(day, hour, minute int) time.Time {
	return time.Date(labDay.Year(), labDay.Month(), labDay.Day()+day, hour, minute, 0, 0, time.UTC)
}

var labOutages = []labOutage{
	{
		from: labAt(0, 14, 2), to: labAt(0, 14, 19), machine: "gpu-box", takes: 20 * time.Millisecond,
		story:  "gpu-box reboots for a system update and is away for 17 minutes.",
		signal: labSignal{text: "dial tcp 10.0.0.2:11434: connect: connection refused", phase: "connect"},
	},
	{
		from: labAt(0, 19, 40), to: labAt(0, 20, 31), machine: "gpu-box",
		story:  "gpu-box freezes hard: a riser has lost its contact. It refuses nothing, it just never answers.",
		signal: labSignal{text: "ReadTimeout: timed out", phase: "headers"},
	},
	{
		from: labAt(1, 2, 10), to: labAt(1, 3, 36), machine: "ubuntu-box", model: "llava-7b", takes: 60 * time.Millisecond,
		story:  "ubuntu-box's disk is full of logs: the vision service answers 500, everything else on it still works.",
		signal: labSignal{status: 500, text: `{"error":"write /var/log/vision.log: no space left on device"}`},
	},
}

// labOneOff is a single failure, as they happen: it must trip nothing.
var labOneOff = labOutage{
	from: labAt(0, 11, 15), to: labAt(0, 11, 17), machine: "mac-mini",
	story:  "One call to mac-mini is cut off. One-off failures happen; nobody is told.",
	takes:  700 * time.Millisecond,
	signal: labSignal{text: "read tcp 10.0.0.1:8080: connection reset by peer", phase: "request"},
}

// call is what becomes of a call that begins at now: how long it takes, and
// what the caller sees.
func (t labTarget) call(now time.Time, limit time.Duration) (takes time.Duration, saw labSignal) {
	for _, o := range append([]labOutage{labOneOff}, labOutages...) {
		if now.Before(o.from) || !now.Before(o.to) || t.machine != o.machine || o.model != "" && t.model != o.model {
			continue
		}
		takes := o.takes
		if takes == 0 {
			takes = limit
		}
		return takes, o.signal
	}
	// Good calls vary by up to a quarter, by the clock alone: every day is the same.
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.model + strconv.FormatInt(now.Unix(), 10)))
	return t.takes + t.takes*time.Duration(h.Sum32()%100)/400, labSignal{status: 200}
}
