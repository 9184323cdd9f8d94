package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/idemd/idemd/idem"
)

// readJSON reads a body of JSON. The bytes lie in pooled memory: they are gone
// when the request is done.
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
	_, err := buf.ReadFrom(&heldBody{x: x, r: http.MaxBytesReader(x.w, x.r.Body, limit)})
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, errHeld):
		x.w.Header()["Connection"] = headerClose
		return nil, errHeld
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case err != nil:
		x.w.Header()["Connection"] = headerClose
		return nil, badRequest("the body could not be read to its end")
	}
	return buf.Bytes(), nil
}

const (
	// freeBody is how much of each body does not count against MaxBodyBytesHeld.
	freeBody = 16 << 10
	// heldStep is by how much a body's share of it grows.
	heldStep = 16 << 10
)

var errHeld = idem.Errorf(idem.CodeUnavailable, "too many bytes of bodies are held")

// heldBody counts a body against MaxBodyBytesHeld while it arrives. What it
// counted stays counted until finish: the bytes are there as long.
type heldBody struct {
	x    *exchange
	r    io.Reader
	read int64
}

func (h *heldBody) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.read += int64(n)
	for h.read > freeBody+h.x.held {
		h.x.held += heldStep
		if h.x.s.held.Add(heldStep) > h.x.s.o.MaxBodyBytesHeld {
			return 0, errHeld
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
