package probe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// ProxyOptions is what a [Proxy] is made of. What is zero has a default.
type ProxyOptions struct {
	// Upstream is the service, as http://HOST:PORT or https://HOST:PORT. Required.
	Upstream string

	// TLS is for an https upstream. nil: the defaults of crypto/tls.
	TLS *tls.Config

	// Rules are asked in order; the first one that hits an exchange decides it, and
	// the later ones are not asked, and do not count it. What no rule hits passes.
	Rules []Rule

	// KeyHeader is the field that names an intent. Default Idempotency-Key.
	KeyHeader string

	// MaxConns is how many client connections are open at once; more wait in the
	// kernel's backlog. Each has at most one connection to upstream. Default 1024.
	MaxConns int

	// Timeout ends an exchange in which nothing moves, and closes idle connections;
	// upstream may be silent half as long again. Default 2m. Too low: long polls are cut. It must exceed the
	// longest wait that upstream allows (60s for idemd).
	Timeout time.Duration

	// Logger gets a line for each exchange. Default: none.
	Logger *slog.Logger
}

// Validate reports every fault of the options at once.
func (o *ProxyOptions) Validate() error {
	_, err := newUpstream(o.Upstream, o.TLS, o.Timeout)
	faults := []error{err}
	for i := range o.Rules {
		faults = append(faults, o.Rules[i].Validate())
	}
	if len(o.Rules) > maxRules {
		faults = append(faults, fmt.Errorf("probe: more than %d rules", maxRules))
	}
	if o.MaxConns < 0 || o.Timeout < 0 {
		faults = append(faults, errors.New("probe: a bound of the proxy is negative"))
	}
	return errors.Join(faults...)
}

// maxRules keeps the draws of different rules apart, see counter.meet.
const maxRules = 256

// Summary is what a [Proxy] has counted. While exchanges are under way it is
// behind; after Close it is exact.
type Summary struct {
	// Requests from clients, as far as they are HTTP that is understood here: what is
	// not is refused (400; 417 for an expectation other than 100-continue, 431 for a
	// head that is too large, 501 for a transfer coding other than chunked) and
	// counted nowhere.
	Requests int64 `json:"requests"`

	// UpstreamRequests is how many requests were on the wire to upstream: their
	// heads were written.
	UpstreamRequests int64 `json:"upstream_requests"`

	// UpstreamAnswers is how many answers of upstream were read to their end.
	UpstreamAnswers int64 `json:"upstream_answers"`

	// Delivered is how many answers of upstream were written to a client to their
	// end. Whether the client has read them, nobody but the client knows.
	Delivered int64 `json:"delivered"`

	// OwnAnswers is how many answers the proxy made itself: fail-before, and 502
	// where no connection to upstream could be made.
	OwnAnswers int64 `json:"own_answers"`

	// UpstreamFailures is how many requests got no answer, or a broken one.
	UpstreamFailures int64 `json:"upstream_failures"`

	// ClientsLeft is how many exchanges ended because the client had gone.
	ClientsLeft int64 `json:"clients_left"`

	// Faults is how many exchanges were hit, by mode. It counts what the rules
	// decided, also where upstream failed besides.
	Faults map[Mode]int64 `json:"faults"`

	// NotDuplicated is how many exchanges should have been duplicated, but were
	// sent once because their body was over MaxHeld.
	NotDuplicated int64 `json:"not_duplicated"`

	// KeysForgotten is how many exchanges passed because a rule with FirstPerKey
	// had met too many keys already.
	KeysForgotten int64 `json:"keys_forgotten"`
}

// Proxy stands between clients and a service. It passes on methods, targets,
// fields, bodies and trailers as they are, streams bodies both ways, and adds
// nothing (no Via, no Forwarded): it stands for the network. These are its own:
//
//   - The Host field names upstream. Fields for one connection only (RFC 9110,
//     section 7.6.1) are made anew: clients' connections are kept alive, those to
//     upstream have one request each. There is no Upgrade and no CONNECT (501).
//   - Spelling that means nothing: the case of field names, the order of fields
//     with different names, the sizes of chunks, the reason phrase.
//   - Interim answers other than 100 (Continue) are not passed on, nor are the
//     fields Content-Type, of a 304, and Content-Length, of a 204 or 304.
//   - Where no connection to upstream can be made the client gets 502; where
//     upstream breaks off, the client's connection is closed at the same point.
//
// A client that leaves while its exchange passes closes the connection to upstream
// once its request has been written there to the end; upstream is not told of one
// that leaves in an exchange that was hit, which runs on to its fault.
type Proxy struct {
	front
	upstream  *upstream
	keyHeader string
	maxConns  int
	timeout   time.Duration
	log       *slog.Logger
	server    *http.Server

	ctx    context.Context // of all exchanges
	cancel context.CancelFunc

	mu       sync.Mutex
	closed   bool
	under    sync.WaitGroup // exchanges under way; Add under mu
	arrived  int64
	counters []*counter
	summary  Summary
}

// NewProxy makes a proxy that does not listen yet.
func NewProxy(o ProxyOptions) (*Proxy, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{
		keyHeader: cmp.Or(o.KeyHeader, "Idempotency-Key"),
		maxConns:  cmp.Or(o.MaxConns, 1024),
		timeout:   cmp.Or(o.Timeout, 2*time.Minute),
		log:       o.Logger,
		summary:   Summary{Faults: map[Mode]int64{}},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	var err error
	// Upstream gets half as much again: while a client stops sending, upstream is
	// silent too, and must not be blamed for it.
	if p.upstream, err = newUpstream(o.Upstream, o.TLS, p.timeout+p.timeout/2); err != nil {
		return nil, err
	}
	for i, r := range o.Rules {
		p.counters = append(p.counters, &counter{Rule: r, place: i, perKey: map[keyDigest]int{}, maxKeys: maxKeys})
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler:                      http.HandlerFunc(p.serve),
		ReadHeaderTimeout:            p.timeout,
		WriteTimeout:                 p.timeout, // each write of a body gets it anew
		IdleTimeout:                  p.timeout,
		MaxHeaderBytes:               maxHead,
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, guestKey{}, c)
		},
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
	return p, nil
}

// Start listens on a free port of 127.0.0.1 and serves there until Close.
func (p *Proxy) Start() error { return p.start(p.log, p.Serve) }

// Serve takes connections from l until Close or Shutdown, and then returns nil.
// It closes l. A proxy serves once.
func (p *Proxy) Serve(l *net.TCPListener) error { return p.front.serve(l, p.server, p.maxConns) }

// Summary is what the proxy has counted so far.
func (p *Proxy) Summary() Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.summary
	s.Faults = maps.Clone(s.Faults)
	return s
}

// Shutdown takes no more requests, waits for the exchanges under way until ctx
// ends, and closes. It returns the context's error if it cut any.
func (p *Proxy) Shutdown(ctx context.Context) error {
	err := p.server.Shutdown(ctx)
	p.Close()
	if err != nil {
		return fmt.Errorf("probe: exchanges were cut: %w", err)
	}
	return nil
}

// Close cuts all connections and returns when every exchange has ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	_ = p.server.Close() // nothing is written any more that could be lost
	p.under.Wait()
}

// count changes the summary.
func (p *Proxy) count(change func(*Summary)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.summary)
}

// admit numbers an exchange and decides what becomes of it.
func (p *Proxy) admit(r *http.Request, key string) (n int64, f Fault, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, Fault{}, false
	}
	p.under.Add(1)
	p.arrived++
	p.summary.Requests++
	f = Fault{Mode: Pass}
	for _, c := range p.counters {
		fault, hit, forgotten := c.meet(r, key)
		if forgotten {
			p.summary.KeysForgotten++
		}
		if hit {
			f = fault
			break
		}
	}
	if f.Mode != Pass {
		p.summary.Faults[f.Mode]++
	}
	return p.arrived, f, true
}

// serve is one exchange.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get(p.keyHeader)
	n, fault, ok := p.admit(r, key)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer p.under.Done()
	x := newExchange(p, w, r, fault)
	began := time.Now()
	x.run()
	args := []any{
		"n", n, "method", r.Method, "path", loggable(r.URL.Path, 128), "key", loggable(key, 8), "fault", fault.String(),
		"upstream_requests", x.requests, "upstream_status", x.status, "outcome", x.outcome, "took", time.Since(began).String(),
	}
	if x.err != nil {
		args = append(args, "err", x.err)
	}
	p.log.Info("exchange", args...)
}

// loggable gives the first n bytes of s: what names a call must not be in a log in
// full.
func loggable(s string, n int) string {
	return string(bytes.ToValidUTF8([]byte(s[:min(n, len(s))]), nil))
}
