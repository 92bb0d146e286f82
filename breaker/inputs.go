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
	asks     []inputAsk
	others   []input // the rare ones
}

// input is a call that may have changed an engine.
type input interface {
	kind() inputKind
	// redo makes the call again, at the engine's time.
	redo(e *Engine)
	// wire writes the input, and field reads one of its fields; the first, which is
	// its time, is not among them.
	wire(w *wire)
	field(number protowire.Number, v unwired) error
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

// rare is a new input of a rare kind, nil for any other kind.
func (k inputKind) rare() input {
	switch k {
	case inputOfRoute:
		return &inputRoute{}
	case inputOfRelease:
		return &inputRelease{}
	case inputOfExtend:
		return &inputExtend{}
	case inputOfControl:
		return &inputControl{}
	case inputOfReconcile:
		return &inputReconcile{}
	case inputOfBootCheck:
		return &inputBootCheck{}
	case inputOfHealth:
		return &inputHealth{}
	case inputOfRestart:
		return &inputRestart{}
	}
	return nil
}

// Len is how many there are.
func (in *Inputs) Len() int { return len(in.order) }

// recorded notes an input of a rare kind.
func (e *Engine) recorded(one input) {
	if e.records {
		e.inputs.order = append(e.inputs.order, inputAt{e.now, one.kind()})
		e.inputs.others = append(e.inputs.others, one)
	}
}

func (in *Inputs) addOutcome(at instant, o *Outcome, p pass, hasPass bool) {
	in.order = append(in.order, inputAt{at, inputOfOutcome})
	in.outcomes = append(in.outcomes, inputOutcome{*o, p, hasPass})
	in.outcomes[len(in.outcomes)-1].Permit = ""
}

func (in *Inputs) addAsk(at instant, ask *Ask) {
	in.order = append(in.order, inputAt{at, inputOfAsk})
	in.asks = append(in.asks, inputAsk{*ask})
}

// emptied is the memory of inputs that nobody reads any more.
func (in *Inputs) emptied() Inputs {
	return Inputs{emptied(in.order), emptied(in.outcomes), emptied(in.asks), emptied(in.others)}
}

// each calls yield with every input and when it was, in their order.
func (in *Inputs) each(yield func(inputAt, input) bool) {
	outcomes, asks, others := in.outcomes, in.asks, in.others
	for _, next := range in.order {
		var one input
		switch next.kind {
		case inputOfOutcome:
			one, outcomes = &outcomes[0], outcomes[1:]
		case inputOfAsk:
			one, asks = &asks[0], asks[1:]
		default:
			one, others = others[0], others[1:]
		}
		if !yield(next, one) {
			return
		}
	}
}

// Redo makes calls again that another engine has recorded.
func (e *Engine) Redo(in Inputs) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for next, one := range in.each {
		e.advanceTo(next.at)
		one.redo(e)
	}
}

// AppendBinary appends the inputs. It never fails.
func (in *Inputs) AppendBinary(to []byte) ([]byte, error) {
	w := (*wire)(&to)
	var before instant
	for next, one := range in.each {
		w.message(protowire.Number(next.kind), func(w *wire) {
			w.int(1, int64(next.at-before))
			one.wire(w)
		})
		before = next.at
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
	var one input
	switch kind {
	case inputOfOutcome:
		in.outcomes = append(in.outcomes, inputOutcome{})
		one = &in.outcomes[len(in.outcomes)-1]
	case inputOfAsk:
		in.asks = append(in.asks, inputAsk{})
		one = &in.asks[len(in.asks)-1]
	default:
		if one = kind.rare(); one == nil {
			return fmt.Errorf("kind %d: this version knows them up to %d", kind, inputOfRestart)
		}
		in.others = append(in.others, one)
	}
	err := unwire(data, func(number protowire.Number, v unwired) error {
		if number == 1 {
			*at += v.at()
			return nil
		}
		return one.field(number, v)
	})
	if err == nil {
		in.order = append(in.order, inputAt{*at, kind})
	}
	return err
}

// inputOutcome is an outcome with what its permit says, whose text is left out.
type inputOutcome struct {
	Outcome
	pass    pass
	hasPass bool
}

func (*inputOutcome) kind() inputKind { return inputOfOutcome }

func (o *inputOutcome) redo(e *Engine) {
	again := o.Outcome // whose labels are made canonical
	e.reportBy(&again, &Verdict{}, o.pass, o.hasPass)
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

func (o *inputOutcome) field(number protowire.Number, v unwired) (err error) {
	switch number {
	case 2, 3, 4, 5:
		v.label(number, &o.Labels)
	case 6:
		o.Cause, err = v.cause()
	case 7:
		o.Duration = v.d()
	case 8:
		o.hasPass = true
		err = unwire(v.b, o.pass.field)
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

// inputAsk is a question whether a call may be made.
type inputAsk struct{ Ask }

func (*inputAsk) kind() inputKind { return inputOfAsk }

func (a *inputAsk) redo(e *Engine) {
	again := a.Ask // whose labels are made canonical
	e.askNow(&again, &Grant{})
}

func (a *inputAsk) wire(w *wire) {
	w.labels(&a.Labels)
	w.text(6, a.RequestID)
	w.int(7, int64(a.Timeout))
	w.text(8, a.IdempotencyKey)
}

func (a *inputAsk) field(number protowire.Number, v unwired) error {
	switch number {
	case 2, 3, 4, 5:
		v.label(number, &a.Labels)
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

func (p *pass) field(number protowire.Number, v unwired) error {
	switch number {
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
}

// inputRoute is a question which target of a chain to call.
type inputRoute struct{ RouteAsk }

func (*inputRoute) kind() inputKind { return inputOfRoute }

func (r *inputRoute) redo(e *Engine) { e.routeNow(r.RouteAsk) } // a chain that is gone routes nothing

func (r *inputRoute) wire(w *wire) {
	w.text(2, r.Agent)
	w.text(3, r.Chain)
	for _, t := range r.Tried {
		w.message(4, func(w *wire) {
			w.text(1, t.Machine)
			w.text(2, t.Model)
			w.cause(3, t.Cause)
		})
	}
	w.text(5, r.RequestID)
	w.int(6, int64(r.Timeout))
	w.items(7, r.Tags)
	w.int(8, int64(r.MinContext))
	w.text(9, r.IdempotencyKey)
}

func (r *inputRoute) field(number protowire.Number, v unwired) error {
	switch number {
	case 2:
		r.Agent = v.text()
	case 3:
		r.Chain = v.text()
	case 4:
		return unwireItem(&r.Tried, v, (*Tried).field)
	case 5:
		r.RequestID = v.text()
	case 6:
		r.Timeout = v.d()
	case 7:
		r.Tags = append(r.Tags, v.text())
	case 8:
		r.MinContext = int(v.int())
	case 9:
		r.IdempotencyKey = v.text()
	}
	return nil
}

func (t *Tried) field(number protowire.Number, v unwired) (err error) {
	switch number {
	case 1:
		t.Machine = v.text()
	case 2:
		t.Model = v.text()
	case 3:
		t.Cause, err = v.cause()
	}
	return err
}

// inputRelease is a permit given back.
type inputRelease struct{ pass pass }

func (*inputRelease) kind() inputKind { return inputOfRelease }

func (r *inputRelease) redo(e *Engine) { e.releaseBy(r.pass) }

func (r *inputRelease) wire(w *wire) { w.message(2, r.pass.wire) }

func (r *inputRelease) field(number protowire.Number, v unwired) error {
	if number == 2 {
		return unwire(v.b, r.pass.field)
	}
	return nil
}

// inputExtend is a lease that runs on.
type inputExtend struct {
	pass    pass
	timeout time.Duration
}

func (*inputExtend) kind() inputKind { return inputOfExtend }

func (x *inputExtend) redo(e *Engine) { e.extendBy(x.pass, x.timeout) }

func (x *inputExtend) wire(w *wire) {
	w.message(2, x.pass.wire)
	w.int(3, int64(x.timeout))
}

func (x *inputExtend) field(number protowire.Number, v unwired) error {
	switch number {
	case 2:
		return unwire(v.b, x.pass.field)
	case 3:
		x.timeout = v.d()
	}
	return nil
}

// inputControl is what a person puts on a breaker.
type inputControl struct{ Control }

func (*inputControl) kind() inputKind { return inputOfControl }

func (c *inputControl) redo(e *Engine) { e.controlNow(c.Control) }

func (c *inputControl) wire(w *wire) {
	w.text(2, c.Breaker)
	w.text(3, string(c.Op))
	w.int(4, int64(c.For))
	w.text(5, c.Actor)
	w.text(6, c.Reason)
}

func (c *inputControl) field(number protowire.Number, v unwired) error {
	switch number {
	case 2:
		c.Breaker = v.text()
	case 3:
		c.Op = Op(v.text())
	case 4:
		c.For = v.d()
	case 5:
		c.Actor = v.text()
	case 6:
		c.Reason = v.text()
	}
	return nil
}

// inputReconcile is what became of a write.
type inputReconcile struct {
	key, actor string
	applied    bool
}

func (*inputReconcile) kind() inputKind { return inputOfReconcile }

func (r *inputReconcile) redo(e *Engine) { e.reconcileNow(r.key, r.applied, r.actor) }

func (r *inputReconcile) wire(w *wire) {
	w.text(2, r.key)
	w.bool(3, r.applied)
	w.text(4, r.actor)
}

func (r *inputReconcile) field(number protowire.Number, v unwired) error {
	switch number {
	case 2:
		r.key = v.text()
	case 3:
		r.applied = v.bool()
	case 4:
		r.actor = v.text()
	}
	return nil
}

// inputBootCheck is of a machine that did not answer.
type inputBootCheck struct{ machine, detail string }

func (*inputBootCheck) kind() inputKind { return inputOfBootCheck }

func (c *inputBootCheck) redo(e *Engine) { e.bootCheck(c.machine, c.detail) }

func (c *inputBootCheck) wire(w *wire) {
	w.text(2, c.machine)
	w.text(3, c.detail)
}

func (c *inputBootCheck) field(number protowire.Number, v unwired) error {
	switch number {
	case 2:
		c.machine = v.text()
	case 3:
		c.detail = v.text()
	}
	return nil
}

// inputHealth is an answer that made a probe due earlier.
type inputHealth struct{ machine string }

func (*inputHealth) kind() inputKind { return inputOfHealth }

func (h *inputHealth) redo(e *Engine) { e.healthAnswered(h.machine) }

func (h *inputHealth) wire(w *wire) { w.text(2, h.machine) }

func (h *inputHealth) field(number protowire.Number, v unwired) error {
	if number == 2 {
		h.machine = v.text()
	}
	return nil
}

// inputRestart is a Restore, with the counters that it began with: after a crash
// some numbers are left out.
type inputRestart struct{ era, permits uint64 }

func (*inputRestart) kind() inputKind { return inputOfRestart }

func (r *inputRestart) redo(e *Engine) {
	e.era, e.permits = max(e.era, r.era), max(e.permits, r.permits)
}

func (r *inputRestart) wire(w *wire) {
	w.uint(2, r.era)
	w.uint(3, r.permits)
}

func (r *inputRestart) field(number protowire.Number, v unwired) error {
	switch number {
	case 2:
		r.era = v.u
	case 3:
		r.permits = v.u
	}
	return nil
}
