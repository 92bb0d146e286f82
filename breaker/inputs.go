package breaker

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Inputs are the calls that may have changed an engine, in their order and with
// its time at each. Made again on an engine as it was before them, they come to
// the same: Redo does so. The zero value has none.
type Inputs struct {
	order    []inputAt
	outcomes []inputOutcome
	asks     []Ask
	others   []any // RouteAsk, Control and the types below
}

// inputAt is one input: the next one of its kind, and when it was.
type inputAt struct {
	at   instant
	kind inputKind
}

// inputKind is the number under which an input is stored.
type inputKind uint8

const (
	inputOfOutcome inputKind = iota + 1
	inputOfAsk
	inputOfRoute
	inputOfRelease
	inputOfExtend
	inputOfControl
	inputOfReconcile
	inputOfBootCheck
	inputOfHealth
	inputOfRestart
)

type (
	// inputOutcome is an outcome with what its permit says, whose text is left
	// out.
	inputOutcome struct {
		Outcome
		pass    pass
		hasPass bool
	}
	inputRelease struct{ pass pass }
	inputExtend  struct {
		pass    pass
		timeout time.Duration
	}
	inputReconcile struct {
		key, actor string
		applied    bool
	}
	// inputBootCheck is of a machine that did not answer.
	inputBootCheck struct{ machine, detail string }
	inputHealth    struct{ machine string }
	// inputRestart is a Restore, with the counters that it began with: after a
	// crash some numbers are left out.
	inputRestart struct{ era, permits uint64 }
)

// Len is how many there are.
func (in *Inputs) Len() int { return len(in.order) }

// recorded notes an input of a rare kind.
func (e *Engine) recorded(kind inputKind, what any) {
	if e.records {
		e.inputs.order = append(e.inputs.order, inputAt{e.now, kind})
		e.inputs.others = append(e.inputs.others, what)
	}
}

func (in *Inputs) addOutcome(at instant, o *Outcome, p pass, hasPass bool) {
	in.order = append(in.order, inputAt{at, inputOfOutcome})
	in.outcomes = append(in.outcomes, inputOutcome{*o, p, hasPass})
	in.outcomes[len(in.outcomes)-1].Permit = ""
}

func (in *Inputs) addAsk(at instant, ask *Ask) {
	in.order = append(in.order, inputAt{at, inputOfAsk})
	in.asks = append(in.asks, *ask)
}

// emptied is the memory of inputs that nobody reads any more.
func (in *Inputs) emptied() Inputs {
	return Inputs{emptied(in.order), emptied(in.outcomes), emptied(in.asks), emptied(in.others)}
}

// Redo makes calls again that another engine has recorded.
func (e *Engine) Redo(in Inputs) {
	e.mu.Lock()
	defer e.mu.Unlock()
	outcomes, asks, others := in.outcomes, in.asks, in.others
	for _, next := range in.order {
		e.advanceTo(next.at)
		switch next.kind {
		case inputOfOutcome:
			o := outcomes[0]
			outcomes = outcomes[1:]
			e.reportBy(&o.Outcome, &Verdict{}, o.pass, o.hasPass)
		case inputOfAsk:
			ask := asks[0]
			asks = asks[1:]
			e.askNow(&ask, &Grant{})
		default:
			e.redo(others[0])
			others = others[1:]
		}
	}
}

func (e *Engine) redo(other any) {
	switch in := other.(type) {
	case RouteAsk:
		e.routeNow(in) // a chain that is gone routes nothing
	case inputRelease:
		e.releaseBy(in.pass)
	case inputExtend:
		e.extendBy(in.pass, in.timeout)
	case Control:
		e.controlNow(in)
	case inputReconcile:
		e.reconcileNow(in.key, in.applied, in.actor)
	case inputBootCheck:
		e.bootCheck(in.machine, in.detail)
	case inputHealth:
		e.healthAnswered(in.machine)
	case inputRestart:
		e.era, e.permits = max(e.era, in.era), max(e.permits, in.permits)
	}
}

// AppendBinary appends the inputs. It never fails.
func (in *Inputs) AppendBinary(to []byte) ([]byte, error) {
	w := (*wire)(&to)
	outcomes, asks, others := in.outcomes, in.asks, in.others
	var before instant
	for _, next := range in.order {
		passed := int64(next.at - before)
		before = next.at
		w.message(protowire.Number(next.kind), func(w *wire) {
			w.int(1, passed)
			switch next.kind {
			case inputOfOutcome:
				outcomes[0].wire(w)
				outcomes = outcomes[1:]
			case inputOfAsk:
				asks[0].wire(w)
				asks = asks[1:]
			default:
				wireOther(w, others[0])
				others = others[1:]
			}
		})
	}
	return to, nil
}

// UnmarshalBinary reads what AppendBinary wrote, of this version or an older
// one. A kind of input that it does not know is an error: what follows it would
// be decided otherwise.
func (in *Inputs) UnmarshalBinary(data []byte) error {
	*in = Inputs{}
	var at instant
	return unwire(data, func(kind protowire.Number, v unwired) error {
		if err := in.unwire(inputKind(min(kind, 255)), v.b, &at); err != nil {
			return fmt.Errorf("read input %d: %w", len(in.order), err)
		}
		return nil
	})
}

// unwire reads one input, whose time is told from the one before.
func (in *Inputs) unwire(kind inputKind, data []byte, at *instant) error {
	// fields reads those of an input, the first of which is its time.
	fields := func(field func(protowire.Number, unwired) error) error {
		return unwire(data, func(number protowire.Number, v unwired) error {
			if number == 1 {
				*at += v.at()
				return nil
			}
			return field(number, v)
		})
	}
	var err error
	switch kind {
	case inputOfOutcome:
		in.outcomes = append(in.outcomes, inputOutcome{})
		err = fields(in.outcomes[len(in.outcomes)-1].field)
	case inputOfAsk:
		in.asks = append(in.asks, Ask{})
		err = fields(in.asks[len(in.asks)-1].field)
	default:
		var other any
		if other, err = unwireOther(kind, fields); err == nil {
			in.others = append(in.others, other)
		}
	}
	if err == nil {
		in.order = append(in.order, inputAt{*at, kind})
	}
	return err
}

func (o *inputOutcome) wire(w *wire) {
	w.labels(&o.Labels)
	w.cause(6, o.Cause)
	w.int(7, int64(o.Duration))
	if o.hasPass {
		w.message(8, o.pass.wire)
	}
	w.text(9, o.ID)
	w.int(10, int64(o.Age))
	w.cause(11, o.Latency)
	w.int(12, int64(o.FirstToken))
	w.int(13, int64(o.Timeout))
	w.int(14, int64(o.HTTPStatus))
	w.text(15, o.Error)
	w.int(16, int64(o.RetryAfter))
	w.uint(17, uint64(o.Served))
	w.float(18, o.CostUSD)
	w.bool(19, o.Write)
	w.text(20, o.IdempotencyKey)
	w.text(21, o.Fallback.Machine)
	w.text(22, o.Fallback.Model)
	w.cause(23, o.Fallback.Cause)
}

func (o *inputOutcome) field(field protowire.Number, v unwired) (err error) {
	switch field {
	case 2, 3, 4, 5:
		v.label(field, &o.Labels)
	case 6:
		o.Cause, err = v.cause()
	case 7:
		o.Duration = v.d()
	case 8:
		o.hasPass = true
		err = o.pass.unwire(v.b)
	case 9:
		o.ID = v.text()
	case 10:
		o.Age = v.d()
	case 11:
		o.Latency, err = v.cause()
	case 12:
		o.FirstToken = v.d()
	case 13:
		o.Timeout = v.d()
	case 14:
		o.HTTPStatus = int(v.int())
	case 15:
		o.Error = v.text()
	case 16:
		o.RetryAfter = v.d()
	case 17:
		o.Served, err = v.served()
	case 18:
		o.CostUSD = v.float()
	case 19:
		o.Write = v.bool()
	case 20:
		o.IdempotencyKey = v.text()
	case 21:
		o.Fallback.Machine = v.text()
	case 22:
		o.Fallback.Model = v.text()
	case 23:
		o.Fallback.Cause, err = v.cause()
	}
	return err
}

func (v unwired) served() (Served, error) {
	if v.u >= uint64(len(servedNames)) {
		return 0, fmt.Errorf("served number %d: this version knows them up to %d", v.u, len(servedNames)-1)
	}
	return Served(v.u), nil
}

func (a *Ask) wire(w *wire) {
	w.labels(&a.Labels)
	w.text(6, a.RequestID)
	w.int(7, int64(a.Timeout))
	w.text(8, a.IdempotencyKey)
}

func (a *Ask) field(field protowire.Number, v unwired) error {
	switch field {
	case 2, 3, 4, 5:
		v.label(field, &a.Labels)
	case 6:
		a.RequestID = v.text()
	case 7:
		a.Timeout = v.d()
	case 8:
		a.IdempotencyKey = v.text()
	}
	return nil
}

func (p pass) wire(w *wire) {
	w.bool(1, p.probe)
	w.uint(2, p.era)
	w.uint(3, p.num)
	w.int(4, int64(p.at))
}

func (p *pass) unwire(data []byte) error {
	return unwire(data, func(field protowire.Number, v unwired) error {
		switch field {
		case 1:
			p.probe = v.bool()
		case 2:
			p.era = v.u
		case 3:
			p.num = v.u
		case 4:
			p.at = v.at()
		}
		return nil
	})
}

func wireOther(w *wire, other any) {
	switch in := other.(type) {
	case RouteAsk:
		w.text(2, in.Agent)
		w.text(3, in.Chain)
		for _, t := range in.Tried {
			w.message(4, func(w *wire) {
				w.text(1, t.Machine)
				w.text(2, t.Model)
				w.cause(3, t.Cause)
			})
		}
		w.text(5, in.RequestID)
		w.int(6, int64(in.Timeout))
		w.items(7, in.Tags)
		w.int(8, int64(in.MinContext))
		w.text(9, in.IdempotencyKey)
	case inputRelease:
		w.message(2, in.pass.wire)
	case inputExtend:
		w.message(2, in.pass.wire)
		w.int(3, int64(in.timeout))
	case Control:
		w.text(2, in.Breaker)
		w.text(3, string(in.Op))
		w.int(4, int64(in.For))
		w.text(5, in.Actor)
		w.text(6, in.Reason)
	case inputReconcile:
		w.text(2, in.key)
		w.bool(3, in.applied)
		w.text(4, in.actor)
	case inputBootCheck:
		w.text(2, in.machine)
		w.text(3, in.detail)
	case inputHealth:
		w.text(2, in.machine)
	case inputRestart:
		w.uint(2, in.era)
		w.uint(3, in.permits)
	}
}

// unwireOther reads an input of a rare kind by its fields.
func unwireOther(kind inputKind, fields func(func(protowire.Number, unwired) error) error) (any, error) {
	switch kind {
	case inputOfRoute:
		var in RouteAsk
		err := fields(func(field protowire.Number, v unwired) error {
			switch field {
			case 2:
				in.Agent = v.text()
			case 3:
				in.Chain = v.text()
			case 4:
				in.Tried = append(in.Tried, Tried{})
				return in.Tried[len(in.Tried)-1].unwire(v.b)
			case 5:
				in.RequestID = v.text()
			case 6:
				in.Timeout = v.d()
			case 7:
				in.Tags = append(in.Tags, v.text())
			case 8:
				in.MinContext = int(v.int())
			case 9:
				in.IdempotencyKey = v.text()
			}
			return nil
		})
		return in, err
	case inputOfRelease:
		var in inputRelease
		err := fields(func(field protowire.Number, v unwired) error {
			if field == 2 {
				return in.pass.unwire(v.b)
			}
			return nil
		})
		return in, err
	case inputOfExtend:
		var in inputExtend
		err := fields(func(field protowire.Number, v unwired) error {
			switch field {
			case 2:
				return in.pass.unwire(v.b)
			case 3:
				in.timeout = v.d()
			}
			return nil
		})
		return in, err
	case inputOfControl:
		var in Control
		err := fields(func(field protowire.Number, v unwired) error {
			switch field {
			case 2:
				in.Breaker = v.text()
			case 3:
				in.Op = Op(v.text())
			case 4:
				in.For = v.d()
			case 5:
				in.Actor = v.text()
			case 6:
				in.Reason = v.text()
			}
			return nil
		})
		return in, err
	case inputOfReconcile:
		var in inputReconcile
		err := fields(func(field protowire.Number, v unwired) error {
			switch field {
			case 2:
				in.key = v.text()
			case 3:
				in.applied = v.bool()
			case 4:
				in.actor = v.text()
			}
			return nil
		})
		return in, err
	case inputOfBootCheck:
		var in inputBootCheck
		err := fields(func(field protowire.Number, v unwired) error {
			switch field {
			case 2:
				in.machine = v.text()
			case 3:
				in.detail = v.text()
			}
			return nil
		})
		return in, err
	case inputOfHealth:
		var in inputHealth
		err := fields(func(field protowire.Number, v unwired) error {
			if field == 2 {
				in.machine = v.text()
			}
			return nil
		})
		return in, err
	case inputOfRestart:
		var in inputRestart
		err := fields(func(field protowire.Number, v unwired) error {
			switch field {
			case 2:
				in.era = v.u
			case 3:
				in.permits = v.u
			}
			return nil
		})
		return in, err
	}
	return nil, fmt.Errorf("kind %d: this version knows them up to %d", kind, inputOfRestart)
}

func (t *Tried) unwire(data []byte) error {
	return unwire(data, func(field protowire.Number, v unwired) (err error) {
		switch field {
		case 1:
			t.Machine = v.text()
		case 2:
			t.Model = v.text()
		case 3:
			t.Cause, err = v.cause()
		}
		return err
	})
}
