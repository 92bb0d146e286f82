package ingest

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxBody is the longest body of outcomes, packed and unpacked.
	maxBody = 16 << 20
	// maxSmallBody is the longest body of every other call.
	maxSmallBody = 64 << 10
	// maxWindow bounds what a zstd frame may ask us to remember (RFC 9659).
	maxWindow = 8 << 20
)

const (
	typeJSON   = "application/json"
	typeNDJSON = "application/x-ndjson"
)

// ndjsonTypes are the names under which NDJSON goes about.
var ndjsonTypes = []string{typeNDJSON, "application/ndjson", "application/jsonl", "application/jsonlines", "application/x-jsonlines"}

var (
	buffers      = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	gzipReaders  sync.Pool
	zstdDecoders sync.Pool
)

// body is a request's whole body, unpacked. It is valid until release.
type body struct {
	data   []byte
	ndjson bool
	buffer *bytes.Buffer
}

func (b *body) release() {
	if b.buffer != nil && b.buffer.Cap() <= maxBody/4 {
		b.buffer.Reset()
		buffers.Put(b.buffer)
	}
	b.buffer, b.data = nil, nil
}

// readBody reads and unpacks a body of at most limit bytes, and stops reading
// as soon as it is longer. A body must say that it is JSON, or NDJSON where
// that is allowed: a page in a browser cannot send these types elsewhere
// without asking first. An empty body needs no type.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, ndjson bool) (body, error) {
	if r.ContentLength > limit {
		return body{}, tooLong(limit)
	}
	var b body
	if r.ContentLength != 0 {
		accepted := []string{typeJSON}
		if ndjson {
			accepted = append(accepted, typeNDJSON)
		}
		kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		b.ndjson = ndjson && slices.Contains(ndjsonTypes, kind)
		charset := params["charset"]
		if err != nil || kind != typeJSON && !b.ndjson || charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
			return body{}, newProblem(http.StatusUnsupportedMediaType, "the content type is %q: %s in UTF-8 is accepted",
				excerpt(r.Header.Get("Content-Type")), strings.Join(accepted, " or ")).with("Accept", strings.Join(accepted, ", "))
		}
	}
	packed := http.MaxBytesReader(w, r.Body, limit)
	plain, done, err := unpack(packed, r.Header.Values("Content-Encoding"))
	if err != nil {
		return body{}, bodyProblem(err, limit)
	}
	defer done()
	b.buffer = buffers.Get().(*bytes.Buffer)
	if _, err := b.buffer.ReadFrom(io.LimitReader(plain, limit+1)); err != nil {
		b.release()
		return body{}, bodyProblem(err, limit)
	}
	if int64(b.buffer.Len()) > limit {
		b.release()
		w.Header().Set("Connection", "close")
		return body{}, tooLong(limit)
	}
	b.data = bytes.TrimPrefix(b.buffer.Bytes(), []byte("\xef\xbb\xbf"))
	return b, nil
}

func tooLong(limit int64) *problem {
	return newProblem(http.StatusRequestEntityTooLarge, "the body is over %s unpacked: send it in several parts", spellBytes(limit))
}

func spellBytes(n int64) string {
	if n >= 1<<20 {
		return itoa(n>>20) + " MiB"
	}
	return itoa(n>>10) + " KiB"
}

func bodyProblem(err error, limit int64) error {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLong(limit)
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return newProblem(http.StatusRequestEntityTooLarge, "the zstd body needs a window over %s", spellBytes(maxWindow))
	}
	return newProblem(http.StatusBadRequest, "read the body: %s", excerpt(err.Error()))
}

// unpack opens the body's content coding; done gives its parts back.
func unpack(packed io.Reader, codings []string) (plain io.Reader, done func(), err error) {
	switch coding := strings.ToLower(strings.TrimSpace(strings.Join(codings, ","))); coding {
	case "", "identity":
		return packed, func() {}, nil
	case "gzip", "x-gzip":
		z, _ := gzipReaders.Get().(*gzip.Reader)
		if z == nil {
			z = new(gzip.Reader)
		}
		if err := z.Reset(packed); err != nil {
			gzipReaders.Put(z)
			return nil, nil, err
		}
		return z, func() { gzipReaders.Put(z) }, nil
	case "zstd":
		z, _ := zstdDecoders.Get().(*zstd.Decoder)
		if z == nil {
			// One thread: it decodes while we read and leaves nothing running.
			z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(2*maxBody))
			if err != nil {
				return nil, nil, err
			}
		}
		giveBack := func() {
			if z.Reset(nil) == nil {
				zstdDecoders.Put(z)
			}
		}
		if err := z.Reset(packed); err != nil {
			giveBack()
			return nil, nil, err
		}
		return z, giveBack, nil
	default:
		return nil, nil, newProblem(http.StatusUnsupportedMediaType, "the content encoding is %q: gzip, zstd or none is accepted", excerpt(coding)).
			with("Accept-Encoding", "gzip, zstd")
	}
}
