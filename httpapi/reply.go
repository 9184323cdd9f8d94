package httpapi

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/idemd/idemd/idem"
)

// answer is what a handler decided.
type answer struct {
	status int
	body   body
	media  string // empty: application/json

	// stream writes a long body piece by piece instead; an error breaks the
	// connection off, so that half an answer is never taken for a whole one.
	stream func(write func([]byte) error) error
}

// body knows how to write itself. It is written over the bytes of the request, if
// there were any (see readJSON): nothing in it may point into them.
type body interface{ appendTo(b []byte) []byte }

// Shared header values; net/http only reads them.
var (
	headerFalse   = []string{"false"}
	headerTrue    = []string{"true"}
	headerClose   = []string{"close"}
	headerJSON    = []string{mediaJSON}
	headerNoStore = []string{"no-store"}
	headerNoSniff = []string{"nosniff"}
	headerSoon    = []string{"1"}
)

// reply is the one place that writes answers.
func (x *exchange) reply(a answer, err error) {
	if err != nil {
		if errors.Is(err, idem.ErrDropped) || x.gone(err) {
			panic(http.ErrAbortHandler)
		}
		a = x.refusal(err)
	}
	h := x.w.Header()
	h["X-Content-Type-Options"] = headerNoSniff
	if _, set := h["Cache-Control"]; !set {
		h["Cache-Control"] = headerNoStore
	}
	if a.media == "" {
		h["Content-Type"] = headerJSON
	} else {
		h["Content-Type"] = []string{a.media}
	}
	switch a.status {
	case http.StatusAccepted, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		h["Retry-After"] = headerSoon
	}

	if a.stream != nil {
		x.writeHeader(a.status)
		if x.r.Method == http.MethodHead {
			return
		}
		if err := a.stream(x.writeFlushed); err != nil {
			panic(http.ErrAbortHandler)
		}
		return
	}
	buf := x.buffer()
	b := a.body.appendTo(buf.AvailableBuffer())
	*buf = *bytes.NewBuffer(b) // keeps what the answer grew to
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	x.writeHeader(a.status)
	if x.r.Method != http.MethodHead {
		_ = x.write(b) // the client has gone, or does not read: nothing is left to tell it
	}
}

func (x *exchange) writeHeader(status int) {
	x.status = status
	x.w.WriteHeader(status)
}

// piece is how much a client must accept within WriteTimeout.
const piece = 16 << 10

// write sends bytes and gives the client WriteTimeout for each piece, so that a
// slow reader is cut off only when it makes no progress.
func (x *exchange) write(b []byte) error {
	rc := http.NewResponseController(x.w)
	for {
		n := min(len(b), piece)
		_ = rc.SetWriteDeadline(time.Now().Add(x.s.o.WriteTimeout)) // an error: there is no connection, as in tests
		if _, err := x.w.Write(b[:n]); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}

func (x *exchange) writeFlushed(b []byte) error {
	if err := x.write(b); err != nil {
		return err
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
