package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/idemd/idemd/idem"
)

// readJSON reads a body of JSON. The bytes lie in the exchange's scratch memory,
// into which reply writes the answer, and which the next request gets. So what
// outlives the handler, and what the answer is written from, must be a copy.
func (x *exchange) readJSON() ([]byte, error) {
	if !isJSON(x.r.Header) {
		return nil, idem.Errorf(idem.CodeUnsupportedMediaType, "the body must be application/json, without a content coding")
	}
	limit := x.s.o.MaxBody
	if x.r.ContentLength > limit {
		// Not worth reading on for the next request.
		x.w.Header()["Connection"] = headerClose
		return nil, tooLarge(limit)
	}
	buf := x.buffer()
	// It grows with what arrives, never with what the client announced.
	_, err := buf.ReadFrom(&countedBody{x: x, r: http.MaxBytesReader(x.w, x.r.Body, limit)})
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, errBodies):
		x.w.Header()["Connection"] = headerClose
		return nil, errBodies
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case err != nil:
		x.w.Header()["Connection"] = headerClose
		return nil, badRequest("the body could not be read to its end")
	}
	return buf.Bytes(), nil
}

const (
	// freeBody is how much of each body does not count against MaxBodyMemory.
	freeBody = 16 << 10
	// bodyStep is by how much a body's share of it grows.
	bodyStep = 16 << 10
)

var errBodies = idem.Errorf(idem.CodeUnavailable, "large bodies of other requests take too much memory")

// countedBody counts a body against MaxBodyMemory while it arrives. What it
// counted stays counted until finish: the bytes are there as long.
type countedBody struct {
	x    *exchange
	r    io.Reader
	read int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.read += int64(n)
	for b.read > freeBody+b.x.bodyBytes {
		b.x.bodyBytes += bodyStep
		if b.x.s.bodyBytes.Add(bodyStep) > b.x.s.o.MaxBodyMemory {
			return 0, errBodies
		}
	}
	return n, err
}

func tooLarge(limit int64) error {
	return idem.Errorf(idem.CodePayloadTooLarge, "the body is over %d bytes", limit)
}

func isJSON(h http.Header) bool {
	if coding := h["Content-Encoding"]; len(coding) > 1 || len(coding) == 1 && !strings.EqualFold(coding[0], "identity") {
		return false
	}
	types := h["Content-Type"]
	if len(types) != 1 {
		return false
	}
	if types[0] == mediaJSON {
		return true
	}
	media, _, err := mime.ParseMediaType(types[0])
	return err == nil && media == mediaJSON
}
