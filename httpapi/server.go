package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/idemd/idemd/idem"
)

// Service is what the contract needs from whatever runs the calls.
//
// Errors that callers are meant to see are *idem.Error; any other error is a
// bug and answered as idem.CodeInternal, except the context's own error after
// the client has gone, and idem.ErrDropped where a method says so.
//
// What a method returns belongs to httpapi and is only read. A wait ends early,
// with the call as it is, when the service stops.
type Service interface {
	// Delivered is called once for every POST /v1/tool-calls, before anything
	// else is done with it.
	Delivered()

	// Refused is called once for every such POST that httpapi refused by
	// itself, before it is answered. The tool is what the body says, which may
	// be any text, or empty where the body was not understood. What Submit
	// refuses is counted by the service.
	Refused(tool string)

	// Submit brings an intent in and waits for its end as long as it was asked
	// to. The context ends when the client has gone, which may be right after
	// the last byte of its request: that ends the wait, and never keeps an
	// intent that arrived whole from being accepted (R15).
	//
	// Errors: idem.CodeConflict, CodeKeyExpired, CodeOutcomeUnknown,
	// CodeBadRequest for an unknown tool, CodeInvalidArguments,
	// CodeUnavailable, CodeInsufficientStorage, idem.ErrDropped.
	Submit(ctx context.Context, s idem.Submission) (idem.Answer, error)

	// Call and CallByKey return a call. With a wait they return at its next
	// end, or with the call as it is when the time is up; no wait answers at
	// once. Errors: idem.CodeNotFound, CodeKeyExpired.
	Call(ctx context.Context, ns idem.Namespace, id idem.CallID, wait time.Duration) (idem.Call, error)
	CallByKey(ctx context.Context, key idem.Key, wait time.Duration) (idem.Call, error)

	// List, Events and Effects page as the methods of idem.Store do.
	List(ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error)
	Events(ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error)
	Effects(ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error)

	// Resolve decides a held call; the service fills in the terms.
	// Errors: idem.CodeNotFound, CodeNotHeld with the status, CodeUnavailable.
	Resolve(ctx context.Context, ns idem.Namespace, id idem.CallID, r idem.Resolution) (idem.Call, error)

	Stats(ctx context.Context) (idem.Stats, error)
	Tools() []*idem.Tool   // sorted by name
	Window() time.Duration // how long a key is remembered after the end
	Ready() error          // nil while new calls are accepted, else why not, in words for callers

	// Fire acts on a fault that was asked for at a point; f may be nil. It
	// returns idem.ErrDropped where the connection is to be closed without an
	// answer, or an *idem.Error to answer with.
	Fire(f *idem.Fault, p idem.Point) error
}

// Server answers HTTP requests by asking a Service.
type Server struct {
	svc Service
	o   Options
	log *slog.Logger

	routes    http.Handler
	http      http.Server
	inFlight  atomic.Int64
	bodyBytes atomic.Int64 // bytes of bodies beyond what each has free
	streams   atomic.Int64 // of the ledger
	handlers  handlers

	stopping chan struct{} // closed by Shutdown and Close: long answers end
	stopOnce sync.Once
}

// New builds a server. It panics on options that Validate refuses: whoever
// takes them from a user validates first.
func New(svc Service, o Options) *Server {
	if err := o.Validate(); err != nil {
		panic(err)
	}
	o = o.withDefaults()
	s := &Server{svc: svc, o: o, log: o.Logger, stopping: make(chan struct{})}
	s.routes = s.router()
	s.http = http.Server{
		Handler:           s.routes,
		ReadHeaderTimeout: o.ReadHeaderTimeout,
		ReadTimeout:       o.ReadTimeout,
		IdleTimeout:       o.IdleTimeout,
		// Only an outer bound, so that a deadline of an earlier answer never
		// hits a later request on the same connection: every answer sets its
		// own when it is written.
		WriteTimeout:                 o.ReadTimeout + o.MaxWait + o.WriteTimeout,
		MaxHeaderBytes:               o.MaxHeaderBytes, // net/http adds 4 KiB of slack; see tooManyHeaders
		DisableGeneralOptionsHandler: true,
		ConnState: func(nc net.Conn, st http.ConnState) {
			if c, ok := nc.(*conn); ok {
				c.l.changed(c, st, time.Now())
			}
		},
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	return s
}

//go:embed openapi.yaml
var openAPI []byte

// router holds every route there is.
func (s *Server) router() http.Handler {
	r := chi.NewRouter()
	get := func(pattern string, h handler) {
		r.Get(pattern, s.handle(pattern, h))
		r.Head(pattern, s.handle(pattern, h))
	}
	post := func(pattern string, h handler) { r.Post(pattern, s.handle(pattern, h)) }

	post("/v1/tool-calls", s.counted(s.withBody(s.submit)))
	get("/v1/tool-calls", s.limited(s.list))
	get("/v1/tool-calls/by-key", s.limited(s.callByHeader))
	get("/v1/tool-calls/by-key/*", s.limited(s.callByPath))
	get("/v1/tool-calls/{call_id}", s.limited(s.call))
	get("/v1/tool-calls/{call_id}/audit", s.limited(s.audit))
	post("/v1/tool-calls/{call_id}/resolve", s.withBody(s.resolve))
	get("/v1/effects", s.limited(s.effects))
	get("/v1/tools", s.limited(s.tools))
	get("/stats", s.limited(s.stats))
	get("/healthz", s.health)
	get("/readyz", s.ready)
	get("/openapi.yaml", s.limited(s.openAPI))

	r.NotFound(s.handle("", s.notFound))
	r.MethodNotAllowed(s.handle("", s.methodNotAllowed(r)))
	return r
}

// Handler is the contract without the listener: neither the time limits of the
// connection nor the bound on open connections apply, which are Serve's.
func (s *Server) Handler() http.Handler { return s.routes }

// Serve answers on a listener until Shutdown or Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	bounded := newListener(l, s.o.MaxConns, s.log)
	// net/http would wait for these as if they had asked something.
	s.http.RegisterOnShutdown(bounded.closeSilent)
	err := s.http.Serve(bounded)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown stops listening and waits for the answers under way. Streams are
// broken off. Stop the service first, or waits go on until their time is up.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	return s.http.Shutdown(ctx)
}

// Close stops at once: connections are closed, answers under way are lost. When
// it returns, no handler is running any more and the service can be closed.
func (s *Server) Close() error {
	s.stop()
	err := s.http.Close()
	s.handlers.close()
	return err
}

func (s *Server) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }
