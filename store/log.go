package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"

	"breakerbot/breaker"
)

// formZstd is the form of what is logged: blocks of breaker.Inputs, each behind
// its length as an unsigned varint, compressed with zstd as a whole.
const formZstd = 1

// maxUnpacked bounds what a row of the log may hold.
const maxUnpacked = 1 << 30

var (
	packer = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			panic(err) // only of options, and these are fixed
		}
		return e
	})
	unpacker = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))
		if err != nil {
			panic(err)
		}
		return d
	})
)

// addInputs puts a block of inputs behind those that are in the group already.
func (g *group) addInputs(block []byte) {
	if len(block) > 0 {
		g.inputs = append(binary.AppendUvarint(g.inputs, uint64(len(block))), block...)
	}
}

func queueLog(batch *pgx.Batch, g *group) error {
	if len(g.inputs) == 0 {
		return nil
	}
	if g.packed == nil { // a group that is tried stays as it is
		g.packed = packer().EncodeAll(g.inputs, nil)
	}
	batch.Queue("INSERT INTO outcome_log (position, from_position, at, form, inputs) VALUES ($1, $2, $3, $4, $5)",
		int64(g.to), int64(g.from), g.clock.Now, formZstd, g.packed)
	return nil
}

// Logged is what the engine took in between two positions of the journal.
type Logged struct {
	From, To uint64
	At       time.Time // the engine's time after it
	Inputs   []breaker.Inputs
}

// Log calls each with what is logged past a position, in the engine's order,
// until it returns an error, which Log returns.
func (db *DB) Log(ctx context.Context, past uint64, each func(Logged) error) error {
	rows, err := db.pool.Query(ctx, "SELECT from_position, position, at, form, inputs FROM outcome_log WHERE position > $1 ORDER BY position", int64(past))
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	var (
		l      Logged
		form   int16
		packed []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&l.From, &l.To, when{&l.At}, &form, &packed}, func() (err error) {
		if l.Inputs, err = unpack(form, packed); err != nil {
			return fmt.Errorf("read %d to %d of the log: %w", l.From, l.To, err)
		}
		return each(l)
	})
	return err
}

// unpack reads the inputs of a row.
func unpack(form int16, packed []byte) ([]breaker.Inputs, error) {
	if form != formZstd {
		return nil, fmt.Errorf("form %d: this version knows form %d", form, formZstd)
	}
	data, err := unpacker().DecodeAll(packed, nil)
	if err != nil {
		return nil, err
	}
	var list []breaker.Inputs
	for len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return nil, errors.New("a block is longer than the row")
		}
		var in breaker.Inputs
		if err := in.UnmarshalBinary(data[n : n+int(size)]); err != nil {
			return nil, err
		}
		list = append(list, in)
		data = data[n+int(size):]
	}
	return list, nil
}
