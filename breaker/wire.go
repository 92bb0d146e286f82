package breaker

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The binary forms of what is stored are protocol buffer messages without a
// schema: what a field is called is beside its number below. A reader passes
// over numbers that it does not know, so fields are only ever added; one whose
// meaning changes gets a new number. What is zero is left out.

// wire is a message as it is written.
type wire []byte

func (w *wire) uint(field protowire.Number, v uint64) {
	if v != 0 {
		*w = protowire.AppendVarint(protowire.AppendTag(*w, field, protowire.VarintType), v)
	}
}

func (w *wire) int(field protowire.Number, v int64) { w.uint(field, protowire.EncodeZigZag(v)) }

func (w *wire) bool(field protowire.Number, v bool) { w.uint(field, protowire.EncodeBool(v)) }

func (w *wire) float(field protowire.Number, v float64) {
	if v != 0 {
		*w = protowire.AppendFixed64(protowire.AppendTag(*w, field, protowire.Fixed64Type), math.Float64bits(v))
	}
}

func (w *wire) text(field protowire.Number, v string) {
	if v != "" {
		w.item(field, v)
	}
}

// item is text in a list, where also the empty one is something.
func (w *wire) item(field protowire.Number, v string) {
	*w = protowire.AppendString(protowire.AppendTag(*w, field, protowire.BytesType), v)
}

// message writes a message within this one, also an empty one.
func (w *wire) message(field protowire.Number, write func(*wire)) {
	*w = protowire.AppendTag(*w, field, protowire.BytesType)
	start := len(*w)
	*w = append(*w, 0) // most lengths fit into one byte
	write(w)
	n := len(*w) - start - 1
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		*w = append(*w, make([]byte, more)...)
		copy((*w)[start+1+more:], (*w)[start+1:len(*w)-more])
	}
	protowire.AppendVarint((*w)[:start], uint64(n))
}

// unwired is a field as it is read: u of a number, b of text or a message.
type unwired struct {
	u uint64
	b []byte
}

func (v unwired) int() int64       { return protowire.DecodeZigZag(v.u) }
func (v unwired) at() instant      { return instant(v.int()) }
func (v unwired) text() string     { return string(v.b) }
func (v unwired) bool() bool       { return v.u != 0 }
func (v unwired) float() float64   { return math.Float64frombits(v.u) }
func (v unwired) d() time.Duration { return time.Duration(v.int()) }

// unwire calls field with each field of a message, in their order.
func unwire(data []byte, field func(protowire.Number, unwired) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var v unwired
		switch kind {
		case protowire.VarintType:
			v.u, n = protowire.ConsumeVarint(data)
		case protowire.Fixed64Type:
			v.u, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			v.b, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return fmt.Errorf("field %d: %w", number, protowire.ParseError(n))
		}
		data = data[n:]
		if err := field(number, v); err != nil {
			return err
		}
	}
	return nil
}

// unwireItem reads a message that is one of a list, by the fields of its type.
func unwireItem[T any](list *[]T, v unwired, field func(*T, protowire.Number, unwired) error) error {
	var one T
	err := unwire(v.b, func(number protowire.Number, v unwired) error { return field(&one, number, v) })
	*list = append(*list, one)
	return err
}

// wireCauses are the causes by the number that they are stored under. New ones
// go to the end.
var wireCauses = [...]Cause{
	0, OK, Refused, Unreachable, ConnectTimeout, TLS, Timeout, Reset, Stalled, Truncated, ServerError, BadGateway, Unavailable,
	GatewayTimeout, Crashed, Slow, SlowFirstToken, Empty, TooShort, Malformed, Schema, MissingField, BadReference, TooFast, Flagged,
	RateLimited, QueueFull, Overloaded, Auth, Forbidden, Quota, ModelMissing, BadRequest, ContextOverflow, TooLarge, ContentBlocked,
	Unaffordable, CallerTimeout, CallerOffline, Cancelled, Loading, Unknown,
}

// wireNumbers are the numbers of the causes.
var wireNumbers = func() (numbers [numCauses]uint64) {
	for n, cause := range wireCauses {
		numbers[cause] = uint64(n)
	}
	return numbers
}()

func (w *wire) cause(field protowire.Number, c Cause) { w.uint(field, wireNumbers[c]) }

func (v unwired) cause() (Cause, error) {
	if v.u >= uint64(len(wireCauses)) {
		return 0, fmt.Errorf("cause number %d: this version knows them up to %d", v.u, len(wireCauses)-1)
	}
	return wireCauses[v.u], nil
}

func (v unwired) state() (State, error) {
	if v.u >= uint64(len(stateNames)) {
		return 0, fmt.Errorf("state number %d: this version knows them up to %d", v.u, len(stateNames)-1)
	}
	return State(v.u), nil
}

func (v unwired) served() (Served, error) {
	if v.u >= uint64(len(servedNames)) {
		return 0, fmt.Errorf("served number %d: this version knows them up to %d", v.u, len(servedNames)-1)
	}
	return Served(v.u), nil
}

func (w *wire) labels(l *Labels) {
	w.text(2, l.Agent)
	w.text(3, l.Machine)
	w.text(4, l.Model)
	w.text(5, l.Provider)
}

func (v unwired) label(field protowire.Number, l *Labels) {
	switch field {
	case 2:
		l.Agent = v.text()
	case 3:
		l.Machine = v.text()
	case 4:
		l.Model = v.text()
	case 5:
		l.Provider = v.text()
	}
}

// AppendBinary appends the whole state. It never fails.
func (s Saved) AppendBinary(to []byte) ([]byte, error) {
	w, f := (*wire)(&to), s.whole()
	w.text(1, f.Rule)
	w.labels(&f.Labels)
	w.uint(6, uint64(f.State))
	w.uint(7, f.Era)
	w.int(8, int64(f.EraAt))
	w.int(9, int64(f.RetryAt))
	w.int(10, int64(f.Run))
	w.int(11, int64(f.Used))
	if f.Calls != nil {
		w.int(12, int64(f.Calls.Last))
		for i := range f.Calls.Runs {
			run := &f.Calls.Runs[i]
			w.message(13, func(w *wire) {
				w.uint(1, uint64(run.N))
				w.cause(2, run.Cause)
				w.text(3, run.Agent)
				w.text(4, run.Model)
			})
		}
	}
	if f.Span != nil {
		for i := range f.Span.buckets {
			b := &f.Span.buckets[i]
			w.message(14, func(w *wire) {
				w.int(1, b.Index)
				w.uint(2, uint64(b.Calls))
				w.tally(3, b.Failed)
				w.items(4, b.Agents)
				w.items(5, b.Models)
			})
		}
	}
	if l := f.Last; l != nil {
		w.message(15, func(w *wire) {
			w.int(1, int64(fromTime(l.At)))
			w.cause(2, l.Cause)
			w.text(3, l.Agent)
			w.text(4, l.Model)
			w.text(5, l.Error)
			w.int(6, int64(l.Status))
			w.int(7, int64(l.Duration))
		})
	}
	w.int(16, int64(f.OpenedAt))
	w.int(17, int64(f.Floor))
	w.cause(18, f.Cause)
	w.int(19, int64(f.Exponent))
	w.int(20, int64(f.ClosedAt))
	w.uint(21, f.Incident)
	w.int(22, int64(f.Probes))
	w.tally(23, f.RunCauses)
	w.items(24, f.RunAgents)
	w.items(25, f.RunModels)
	w.int(26, int64(f.Good))
	w.int(27, int64(f.Lost))
	for i := range f.Leases {
		w.message(28, f.Leases[i].wire)
	}
	if o := f.Override; o != nil {
		w.message(29, func(w *wire) {
			w.text(1, string(o.Op))
			w.text(2, o.Actor)
			w.text(3, o.Reason)
			w.int(4, int64(o.Until))
			w.bool(5, o.Over)
		})
	}
	w.reporters(30, f.Agents)
	w.reporters(31, f.Models)
	w.text(32, f.FailedProber)
	w.reporters(33, f.Asked)
	w.int(34, int64(f.WouldTrip))
	w.bool(35, f.WouldSet)
	w.uint(36, f.WouldEra)
	w.int(37, int64(f.OtherAsked))
	return to, nil
}

// UnmarshalBinary reads what AppendBinary wrote, of this version or an older
// one.
func (s *Saved) UnmarshalBinary(data []byte) error {
	f := &savedState{}
	err := unwire(data, func(field protowire.Number, v unwired) (err error) {
		switch field {
		case 1:
			f.Rule = v.text()
		case 2, 3, 4, 5:
			v.label(field, &f.Labels)
		case 6:
			f.State, err = v.state()
		case 7:
			f.Era = v.u
		case 8:
			f.EraAt = v.at()
		case 9:
			f.RetryAt = v.at()
		case 10:
			f.Run = int(v.int())
		case 11:
			f.Used = v.at()
		case 12:
			f.calls().Last = v.at()
		case 13:
			err = unwireItem(&f.calls().Runs, v, (*callRun).field)
		case 14:
			if f.Span == nil {
				f.Span = &span{}
			}
			err = unwireItem(&f.Span.buckets, v, (*bucket).field)
		case 15:
			f.Last = &LastFailure{}
			err = unwire(v.b, f.Last.field)
		case 16:
			f.OpenedAt = v.at()
		case 17:
			f.Floor = v.at()
		case 18:
			f.Cause, err = v.cause()
		case 19:
			f.Exponent = int(v.int())
		case 20:
			f.ClosedAt = v.at()
		case 21:
			f.Incident = v.u
		case 22:
			f.Probes = int(v.int())
		case 23:
			err = unwireItem((*[]CauseCount)(&f.RunCauses), v, (*CauseCount).field)
		case 24:
			f.RunAgents = append(f.RunAgents, v.text())
		case 25:
			f.RunModels = append(f.RunModels, v.text())
		case 26:
			f.Good = int(v.int())
		case 27:
			f.Lost = int(v.int())
		case 28:
			err = unwireItem(&f.Leases, v, (*lease).field)
		case 29:
			f.Override = &override{}
			err = unwire(v.b, f.Override.field)
		case 30:
			err = unwireReporter(&f.Agents, v.b)
		case 31:
			err = unwireReporter(&f.Models, v.b)
		case 32:
			f.FailedProber = v.text()
		case 33:
			err = unwireReporter(&f.Asked, v.b)
		case 34:
			f.WouldTrip = int(v.int())
		case 35:
			f.WouldSet = v.bool()
		case 36:
			f.WouldEra = v.u
		case 37:
			f.OtherAsked = v.at()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read a breaker: %w", err)
	}
	f.Name = Name(f.Rule, f.Labels)
	*s = Saved{f.Name, f.Rule, f.Labels, f.State, f.Era, f.RetryAt.time(), nil, f}
	return nil
}

func (f *savedState) calls() *savedCalls {
	if f.Calls == nil {
		f.Calls = &savedCalls{}
	}
	return f.Calls
}

func (r *callRun) field(number protowire.Number, v unwired) (err error) {
	switch number {
	case 1:
		r.N = int(v.u)
	case 2:
		r.Cause, err = v.cause()
	case 3:
		r.Agent = v.text()
	case 4:
		r.Model = v.text()
	}
	return err
}

func (b *bucket) field(number protowire.Number, v unwired) (err error) {
	switch number {
	case 1:
		b.Index = v.int()
	case 2:
		b.Calls = int(v.u)
	case 3:
		err = unwireItem((*[]CauseCount)(&b.Failed), v, (*CauseCount).field)
	case 4:
		b.Agents = append(b.Agents, v.text())
	case 5:
		b.Models = append(b.Models, v.text())
	}
	return err
}

func (l *LastFailure) field(number protowire.Number, v unwired) (err error) {
	switch number {
	case 1:
		l.At = v.at().time()
	case 2:
		l.Cause, err = v.cause()
	case 3:
		l.Agent = v.text()
	case 4:
		l.Model = v.text()
	case 5:
		l.Error = v.text()
	case 6:
		l.Status = int(v.int())
	case 7:
		l.Duration = v.d()
	}
	return err
}

func (l *lease) wire(w *wire) {
	w.uint(1, l.Num)
	w.labels(&Labels{Agent: l.Agent, Machine: l.Machine, Model: l.Model, Provider: l.Provider})
	w.text(6, l.Request)
	w.uint(7, l.Era)
	w.int(8, int64(l.Granted))
	w.int(9, int64(l.Deadline))
	w.int(10, int64(l.Max))
	w.bool(11, l.Expired)
}

func (l *lease) field(number protowire.Number, v unwired) error {
	switch number {
	case 1:
		l.Num = v.u
	case 2:
		l.Agent = v.text()
	case 3:
		l.Machine = v.text()
	case 4:
		l.Model = v.text()
	case 5:
		l.Provider = v.text()
	case 6:
		l.Request = v.text()
	case 7:
		l.Era = v.u
	case 8:
		l.Granted = v.at()
	case 9:
		l.Deadline = v.at()
	case 10:
		l.Max = v.at()
	case 11:
		l.Expired = v.bool()
	}
	return nil
}

func (o *override) field(number protowire.Number, v unwired) error {
	switch number {
	case 1:
		o.Op = Op(v.text())
	case 2:
		o.Actor = v.text()
	case 3:
		o.Reason = v.text()
	case 4:
		o.Until = v.at()
	case 5:
		o.Over = v.bool()
	}
	return nil
}

func (w *wire) tally(field protowire.Number, t tally) {
	for _, c := range t {
		w.message(field, func(w *wire) {
			w.cause(1, c.Cause)
			w.uint(2, uint64(c.N))
		})
	}
}

func (c *CauseCount) field(number protowire.Number, v unwired) (err error) {
	switch number {
	case 1:
		c.Cause, err = v.cause()
	case 2:
		c.N = int(v.u)
	}
	return err
}

func (w *wire) items(field protowire.Number, list []string) {
	for _, item := range list {
		w.item(field, item)
	}
}

func (w *wire) reporters(field protowire.Number, at map[string]instant) {
	for _, who := range slices.Sorted(maps.Keys(at)) {
		w.contact(field, contact{who, at[who]})
	}
}

func unwireReporter(to *map[string]instant, data []byte) error {
	var c contact
	err := unwire(data, c.field)
	if *to == nil {
		*to = make(map[string]instant)
	}
	(*to)[c.Who] = c.At
	return err
}

func (w *wire) contact(field protowire.Number, c contact) {
	w.message(field, func(w *wire) {
		w.text(1, c.Who)
		w.int(2, int64(c.At))
	})
}

func (c *contact) field(number protowire.Number, v unwired) error {
	switch number {
	case 1:
		c.Who = v.text()
	case 2:
		c.At = v.at()
	}
	return nil
}

// AppendBinary appends the whole of it. It never fails.
func (l Lately) AppendBinary(to []byte) ([]byte, error) {
	w, s := (*wire)(&to), l.full
	w.text(1, s.Kind)
	w.text(2, s.Name)
	w.text(3, s.Model)
	w.int(4, int64(s.At))
	for i := range s.Minutes {
		m := &s.Minutes[i]
		w.message(5, func(w *wire) {
			w.int(1, int64(m.Index))
			w.uint(2, uint64(m.N))
			w.int(3, int64(m.Fastest))
			w.int(4, int64(m.Last))
		})
	}
	w.int(6, int64(s.ColdFrom))
	for _, c := range s.Failed {
		w.contact(7, c)
	}
	for _, c := range s.By {
		w.contact(8, c)
	}
	w.int(9, int64(s.Word))
	w.int(10, int64(s.Returned))
	if p := s.Permits; p != nil {
		w.message(11, p.wire)
	}
	return to, nil
}

// UnmarshalBinary reads what AppendBinary wrote, of this version or an older
// one.
func (l *Lately) UnmarshalBinary(data []byte) error {
	s := &savedLately{}
	err := unwire(data, func(field protowire.Number, v unwired) (err error) {
		switch field {
		case 1:
			s.Kind = v.text()
		case 2:
			s.Name = v.text()
		case 3:
			s.Model = v.text()
		case 4:
			s.At = v.at()
		case 5:
			err = unwireItem(&s.Minutes, v, (*answerMinute).field)
		case 6:
			s.ColdFrom = v.at()
		case 7:
			err = unwireItem(&s.Failed, v, (*contact).field)
		case 8:
			err = unwireItem(&s.By, v, (*contact).field)
		case 9:
			s.Word = v.at()
		case 10:
			s.Returned = v.at()
		case 11:
			s.Permits = &savedPermits{}
			err = unwire(v.b, s.Permits.field)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read what was done lately: %w", err)
	}
	*l = Lately{Key: string(s.appendKey(nil)), full: s}
	return nil
}

func (m *answerMinute) field(number protowire.Number, v unwired) error {
	switch number {
	case 1:
		m.Index = int32(v.int())
	case 2:
		m.N = uint32(v.u)
	case 3:
		m.Fastest = v.d()
	case 4:
		m.Last = v.at()
	}
	return nil
}

func (p *savedPermits) wire(w *wire) {
	for i := range p.Out {
		w.message(1, p.Out[i].wire)
	}
	for i := range p.Recent {
		w.message(2, p.Recent[i].wire)
	}
	w.float(3, p.Words)
	w.float(4, p.Losts)
}

func (p *savedPermits) field(number protowire.Number, v unwired) error {
	switch number {
	case 1:
		return unwireItem(&p.Out, v, (*settled).field)
	case 2:
		return unwireItem(&p.Recent, v, (*settled).field)
	case 3:
		p.Words = v.float()
	case 4:
		p.Losts = v.float()
	}
	return nil
}

func (s *settled) wire(w *wire) {
	w.uint(1, s.Num)
	w.text(2, s.Agent)
	w.text(3, s.Provider)
	w.uint(4, s.Era)
	w.int(5, int64(s.Granted))
	w.int(6, int64(s.Timeout))
	w.int(7, int64(s.At))
	w.bool(8, s.Lost)
	w.bool(9, s.Told)
}

func (s *settled) field(number protowire.Number, v unwired) error {
	switch number {
	case 1:
		s.Num = v.u
	case 2:
		s.Agent = v.text()
	case 3:
		s.Provider = v.text()
	case 4:
		s.Era = v.u
	case 5:
		s.Granted = v.at()
	case 6:
		s.Timeout = v.d()
	case 7:
		s.At = v.at()
	case 8:
		s.Lost = v.bool()
	case 9:
		s.Told = v.bool()
	}
	return nil
}
