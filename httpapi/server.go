package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
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

	routes   http.Handler
	http     http.Server
	inFlight atomic.Int64
	held     atomic.Int64 // bytes of bodies beyond what each has free
	streams  atomic.Int64 // of the ledger
	handlers handlers

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

// handlers counts the handlers that run. net/http waits for connections, not for
// handlers, and cutting a connection does not end the handler behind it.
type handlers struct {
	mu      sync.Mutex
	running int
	closed  bool
	idle    chan struct{} // closed when nothing runs and nothing begins any more
}

// begin reports whether a handler may run.
func (h *handlers) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.running++
	return true
}

func (h *handlers) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.closed && h.running == 0 {
		close(h.idle)
	}
}

// close lets no handler begin and waits for those that run. It may be called
// again.
func (h *handlers) close() {
	h.mu.Lock()
	if !h.closed {
		h.closed, h.idle = true, make(chan struct{})
		if h.running == 0 {
			close(h.idle)
		}
	}
	h.mu.Unlock()
	<-h.idle
}

func (s *Server) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// Options are what an operator may want to set. A zero field takes the default.
type Options struct {
	// MaxBody is the largest body of a request, in bytes. Default 1 MiB. Too
	// low refuses honest requests, too high lets a few clients take
	// MaxBodyBytesHeld for themselves. 1 KiB to 64 MiB.
	MaxBody int64

	// MaxBodyBytesHeld is how many bytes of bodies are there at once, of requests
	// that are still arriving and of those that are worked on; what is above is
	// refused. The first 16 KiB of each body do not count, so that ordinary
	// requests pass whatever the large ones do. Default 256 MiB. Too low refuses
	// large bodies under ordinary load, too high runs out of memory before it
	// refuses: what is made of a body takes a few times its size. At least
	// MaxBody.
	MaxBodyBytesHeld int64

	// MaxInFlight is how many requests are worked on at once; what is above is
	// refused at once. A body that is still arriving is not worked on. Waits are honoured only for the lower half. Default
	// 4096. Too low refuses under ordinary load, too high runs out of memory
	// before it refuses. 1 to 1,000,000.
	MaxInFlight int

	// MaxConns is how many connections may be open. For the next one, the one
	// that has been idle the longest is closed; where none is idle, newcomers
	// wait in the listener's backlog. Default 4 × MaxInFlight. Too low costs
	// idle clients their connections, too high runs out of file handles. At
	// least MaxInFlight.
	MaxConns int

	// MaxWait caps Prefer: wait. Default 60 s. Too low makes clients poll, too
	// high keeps connections through proxies that give up earlier. Whole
	// seconds, at most 10 min.
	MaxWait time.Duration

	// ReadHeaderTimeout is how long the header section may take to arrive.
	// Default 5 s. Too low cuts slow networks off, too high lets idle ones hold
	// connections. At most ReadTimeout.
	ReadHeaderTimeout time.Duration

	// ReadTimeout is how long the whole request may take to arrive. Default
	// 30 s. Too low cuts large bodies off, too high lets slow senders hold
	// places. A wait may be longer: net/http takes the deadline off when the
	// request is there.
	ReadTimeout time.Duration

	// WriteTimeout is how long a client may take without accepting any part of
	// an answer. Default 30 s. Too low cuts slow readers off, too high lets
	// them hold places.
	WriteTimeout time.Duration

	// IdleTimeout is how long a connection is kept between requests. Default
	// 120 s. Too low costs reconnects, too high keeps handles of idle clients.
	IdleTimeout time.Duration

	// MaxHeaderBytes is the largest header section, request line included.
	// Default 16 KiB. Too low refuses long keys, too high is memory for every
	// connection. 1 KiB to 1 MiB.
	MaxHeaderBytes int

	// Chaos allows the header Idemd-Chaos. Never in production.
	Chaos bool

	// Logger takes a line for each request at debug level, and what is wrong
	// above that. Default: nothing is logged.
	Logger *slog.Logger

	// Version is shown by /healthz. Default "dev".
	Version string
}

func (o Options) withDefaults() Options {
	o.MaxBody = orDefault(o.MaxBody, 1<<20)
	o.MaxBodyBytesHeld = orDefault(o.MaxBodyBytesHeld, 256<<20)
	o.MaxInFlight = orDefault(o.MaxInFlight, 4096)
	o.MaxConns = orDefault(o.MaxConns, 4*o.MaxInFlight)
	o.MaxWait = orDefault(o.MaxWait, time.Minute)
	o.ReadTimeout = orDefault(o.ReadTimeout, 30*time.Second)
	o.ReadHeaderTimeout = orDefault(o.ReadHeaderTimeout, min(5*time.Second, o.ReadTimeout))
	o.WriteTimeout = orDefault(o.WriteTimeout, 30*time.Second)
	o.IdleTimeout = orDefault(o.IdleTimeout, 2*time.Minute)
	o.MaxHeaderBytes = orDefault(o.MaxHeaderBytes, 16<<10)
	o.Version = orDefault(o.Version, "dev")
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Validate reports everything that is wrong with the options at once.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("httpapi: "+format, args...))
		}
	}
	want(o.MaxBody >= 1<<10 && o.MaxBody <= 64<<20, "MaxBody is %d; want 1 KiB to 64 MiB", o.MaxBody)
	want(o.MaxBodyBytesHeld >= o.MaxBody, "MaxBodyBytesHeld is %d; want at least MaxBody, %d", o.MaxBodyBytesHeld, o.MaxBody)
	want(o.MaxInFlight >= 1 && o.MaxInFlight <= 1_000_000, "MaxInFlight is %d; want 1 to 1,000,000", o.MaxInFlight)
	want(o.MaxConns >= o.MaxInFlight, "MaxConns is %d; want at least MaxInFlight, %d", o.MaxConns, o.MaxInFlight)
	want(o.MaxWait > 0 && o.MaxWait <= 10*time.Minute && o.MaxWait%time.Second == 0, "MaxWait is %v; want whole seconds up to 10m", o.MaxWait)
	want(o.ReadTimeout > 0, "ReadTimeout is %v; want more than 0", o.ReadTimeout)
	want(o.ReadHeaderTimeout > 0 && o.ReadHeaderTimeout <= o.ReadTimeout, "ReadHeaderTimeout is %v; want more than 0 and at most ReadTimeout, %v", o.ReadHeaderTimeout, o.ReadTimeout)
	want(o.WriteTimeout > 0, "WriteTimeout is %v; want more than 0", o.WriteTimeout)
	want(o.IdleTimeout > 0, "IdleTimeout is %v; want more than 0", o.IdleTimeout)
	want(o.MaxHeaderBytes >= 1<<10 && o.MaxHeaderBytes <= 1<<20, "MaxHeaderBytes is %d; want 1 KiB to 1 MiB", o.MaxHeaderBytes)
	return errors.Join(faults...)
}
