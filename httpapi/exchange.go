package httpapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// handler answers one request. Headers that belong to the answer it sets by
// itself; everything else about writing is done in one place, reply.
type handler func(x *exchange) (answer, error)

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
	bodyBytes int64 // bytes of the body that count against the bound
	streaming bool  // counted as a stream of the ledger

	status  int         // as answered; 0 while nothing was written
	callID  idem.CallID // for the log
	scratch *scratch
}

// scratch is memory for the body that is read, and then for the one that is
// written, over the first. It goes back to a pool when the request is done:
// nothing that outlives the request may point into it.
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
	x.s.bodyBytes.Add(-x.bodyBytes)
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

// gone reports whether an error only says that nobody waits for the answer.
func (x *exchange) gone(err error) bool {
	ctxErr := x.r.Context().Err()
	return ctxErr != nil && (errors.Is(err, ctxErr) || errors.Is(err, context.Canceled))
}
