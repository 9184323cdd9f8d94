package httpapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// handler answers one request. Headers that belong to the answer it sets by
// itself; everything else about writing is done in one place, reply.
type handler func(x *exchange) (answer, error)

// answer is what a handler decided.
type answer struct {
	status int
	body   body
	media  string // empty: application/json

	// stream writes a long body piece by piece instead; an error breaks the
	// connection off, so that half an answer is never taken for a whole one.
	stream func(write func([]byte) error) error
}

// body knows how to write itself.
type body interface{ appendTo(b []byte) []byte }

// exchange is one request on its way through the handlers, and its answer.
type exchange struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	route string

	// Of POST /v1/tool-calls, set by counted.
	key       idem.Key
	keyErr    error
	tool      string // as the body says
	submitted bool   // handed to the service, which counts it from here on

	entered   bool  // counted as in flight
	crowded   bool  // too many in flight to wait
	held      int64 // bytes of the body that count against the bound
	streaming bool  // counted as a stream of the ledger

	status  int         // as answered; 0 while nothing was written
	callID  idem.CallID // for the log
	scratch *scratch
}

// scratch is memory for a body that is read or written. It goes back to a pool
// when the request is done: nothing that outlives the request may point into it.
type scratch struct{ buf bytes.Buffer }

// maxScratch keeps one large body from staying in the pool for ever.
const maxScratch = 64 << 10

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (x *exchange) buffer() *bytes.Buffer {
	if x.scratch == nil {
		x.scratch = scratches.Get().(*scratch)
	}
	x.scratch.buf.Reset()
	return &x.scratch.buf
}

// handle makes an http.HandlerFunc of a handler: the one place for panics,
// writing and the log line.
func (s *Server) handle(route string, h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.handlers.begin() {
			panic(http.ErrAbortHandler) // the service is gone
		}
		defer s.handlers.end()
		x := &exchange{s: s, w: w, r: r, route: route}
		defer x.finish(time.Now())
		a, err := h(x)
		x.reply(a, err)
	}
}

// finish ends an exchange, also one that panicked. http.ErrAbortHandler goes on
// to net/http, which closes the connection without an answer.
func (x *exchange) finish(start time.Time) {
	p := recover()
	if p != nil && p != any(http.ErrAbortHandler) {
		x.s.log.Error("panic", "route", x.route, "panic", describePanic(p), "stack", string(debug.Stack()))
		if x.status == 0 {
			p = x.replyInternal()
		} else {
			p = http.ErrAbortHandler // half an answer is out already
		}
	}
	if x.entered {
		x.s.inFlight.Add(-1)
	}
	x.s.held.Add(-x.held)
	if x.streaming {
		x.s.streams.Add(-1)
	}
	if x.scratch != nil && x.scratch.buf.Cap() <= maxScratch {
		scratches.Put(x.scratch)
	}
	if x.s.log.Enabled(x.r.Context(), slog.LevelDebug) {
		attrs := []slog.Attr{
			slog.String("method", x.r.Method[:min(len(x.r.Method), 16)]),
			slog.String("route", x.route),
			slog.Int("status", x.status),
			slog.Duration("took", time.Since(start)),
		}
		if !x.callID.IsZero() {
			attrs = append(attrs, slog.String("call_id", x.callID.String()))
		}
		x.s.log.LogAttrs(x.r.Context(), slog.LevelDebug, "request", attrs...)
	}
	if p != nil {
		panic(p)
	}
}

// replyInternal answers for a handler that panicked, and says with what to go
// on panicking, if that fails as well.
func (x *exchange) replyInternal() (p any) {
	defer func() {
		if recover() != nil {
			p = http.ErrAbortHandler
		}
	}()
	x.reply(answer{}, idem.ErrInternal)
	return nil
}

// describePanic says what is safe to log: a panic's text may hold a payload,
// unless the runtime wrote it.
func describePanic(p any) string {
	if err, ok := p.(runtime.Error); ok {
		return err.Error()
	}
	switch p.(type) {
	case string:
		return "string"
	case error:
		return "error"
	default:
		return "other"
	}
}

// counted tells the service of every delivery, and of every one that was
// refused before it got there. It also sees to it that all answers name the key.
func (s *Server) counted(h handler) handler {
	return func(x *exchange) (answer, error) {
		s.svc.Delivered()
		defer func() {
			if !x.submitted {
				s.svc.Refused(x.tool)
			}
		}()
		x.w.Header()["Idempotent-Replayed"] = headerFalse
		x.key, x.keyErr = x.keyFromHeader()
		return h(x)
	}
}

// limited refuses what is too much.
func (s *Server) limited(h handler) handler {
	return func(x *exchange) (answer, error) {
		if err := x.enter(); err != nil {
			return answer{}, err
		}
		if err := x.checkHeaders(); err != nil {
			return answer{}, err
		}
		return h(x)
	}
}

// withBody is limited for requests with a body. They take their place only when
// the body is there: slow senders would keep everybody else out for as long as
// ReadTimeout lets them.
func (s *Server) withBody(h func(x *exchange, body []byte) (answer, error)) handler {
	return func(x *exchange) (answer, error) {
		if err := x.checkHeaders(); err != nil {
			return answer{}, err
		}
		body, err := x.readJSON()
		if err != nil {
			return answer{}, err
		}
		if err := x.enter(); err != nil {
			return answer{}, err
		}
		return h(x, body)
	}
}

// enter takes a place among the requests in flight, which finish gives back.
func (x *exchange) enter() error {
	n := x.s.inFlight.Add(1)
	x.entered = true
	if n > int64(x.s.o.MaxInFlight) {
		return errBusy
	}
	x.crowded = n > int64(x.s.o.MaxInFlight+1)/2
	return nil
}

func (x *exchange) checkHeaders() error {
	if tooManyHeaders(x.r, x.s.o.MaxHeaderBytes) {
		x.w.Header()["Connection"] = headerClose
		return errHeaders
	}
	return nil
}

var (
	errBusy    = idem.Errorf(idem.CodeUnavailable, "too many requests are being worked on")
	errHeaders = idem.Errorf(idem.CodeHeadersTooLarge, "the header section is too large")
)

// tooManyHeaders makes the limit exact. net/http reads 4 KiB more than it is
// told before it refuses, in plain text; what lies between is refused here, in
// the contract's own words.
func tooManyHeaders(r *http.Request, limit int) bool {
	n := len(r.Method) + len(r.RequestURI) + len(r.Proto) + len("  \r\n") + len("Host: \r\n") + len(r.Host) + len("\r\n")
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return n > limit
}

// gone reports whether an error only says that nobody waits for the answer.
func (x *exchange) gone(err error) bool {
	ctxErr := x.r.Context().Err()
	return ctxErr != nil && (errors.Is(err, ctxErr) || errors.Is(err, context.Canceled))
}

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
