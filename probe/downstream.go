package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// DownstreamOptions is what a [Downstream] is made of. What is zero has a default.
type DownstreamOptions struct {
	// Ledger is the file with what happened, NDJSON. Required; made where it is
	// missing, and gone on with where it is not.
	Ledger string

	// Ignores is that the id of an effect means nothing: every request is done. Else a
	// thing is done once for each id.
	Ignores bool

	// EffectHeader is the field of a request that has the id of the effect. Default
	// Idempotency-Key.
	EffectHeader string

	// EffectPointer is a JSON pointer to the id in the body of a request, such as
	// /idempotency_key, in place of the field.
	EffectPointer string

	// Fault chooses what goes wrong with the n-th request of an id, from 1; requests
	// that are in the ledger when the service starts go on counting, others are
	// forgotten. It is called by one request at a time, and must not call the
	// service. Default: nothing goes wrong. See [DownstreamRules].
	Fault func(n int, id string) DownstreamFault

	// Logger gets a line for each request, and what was found wrong with the ledger.
	// Default: none.
	Logger *slog.Logger
}

// Validate reports every fault of the options at once.
func (o *DownstreamOptions) Validate() error {
	var faults []error
	if o.Ledger == "" {
		faults = append(faults, errors.New("probe: the downstream needs a ledger"))
	}
	if o.EffectHeader != "" && o.EffectPointer != "" {
		faults = append(faults, errors.New("probe: the effect's id is in a field or in the body, not in both"))
	}
	for _, b := range []byte(o.EffectHeader) {
		if b <= ' ' || b >= 0x7F || strings.IndexByte("\"(),/:;<=>?@[\\]{}", b) >= 0 {
			faults = append(faults, fmt.Errorf("probe: %q is not the name of a field", o.EffectHeader))
			break
		}
	}
	if o.EffectPointer != "" && !strings.HasPrefix(o.EffectPointer, "/") {
		faults = append(faults, fmt.Errorf("probe: the pointer %q does not begin with /", o.EffectPointer))
	}
	return errors.Join(faults...)
}

// Bounds of a [Downstream].
const (
	// MaxDownstreamBody is the longest body of a request (2 MiB); longer ones get 413.
	MaxDownstreamBody = 2 << 20

	// MaxDownstreamRequests is how many requests are worked on at once; more get 503
	// and are not counted among those of their id.
	MaxDownstreamRequests = 1024

	// MaxDownstreamEntries is how many entries the ledger may have, and how many ids
	// are known; what would need more gets 507.
	MaxDownstreamEntries = 1_000_000

	// MaxDownstreamLog is how many requests [Downstream.Requests] remembers, the
	// newest.
	MaxDownstreamLog = 100_000
)

const (
	// maxDownstreamConns is above MaxDownstreamRequests, so that the ledger can be
	// asked while all those are under way.
	maxDownstreamConns = 2 * MaxDownstreamRequests

	// downstreamPatience is how long a client may take for a head, for a body, and
	// between two requests.
	downstreamPatience = time.Minute
)

// Downstream plays the payment provider that a tool calls, and does wrong what such
// a provider may do wrong. Its ledger is on disk: one line for each effect that
// really happened, synced before anybody is told. What is judged is that ledger.
//
// POST, PUT, PATCH and DELETE on any path but its own ask for an effect; the id of
// the effect is in a field or in the body, and without one the answer is 400. These
// are its own:
//
//	GET /effects/{id}, GET /effects?ref={id}  the first entry of the id; 404 if there is none
//	GET /ledger      every entry, NDJSON: the file as it is
//	GET /requests    the log of requests, NDJSON (see [DownstreamRequest])
//	GET /summary     the counts (see [DownstreamReport])
//	GET /healthz     200 while the process lives
//
// A service that honours ids gives a later request of an id the first one's answer,
// byte for byte, also after a restart; 409 {"error":"in_progress"} while the first
// one is being done; and 422 {"error":"other_body"} if the body is another one. One
// that ignores them does what it is asked, each time.
//
// It is for tests and for trying things out: it holds on to a few hundred bytes for each
// id, and makes one sync of the disk for each effect, one after the other.
type Downstream struct {
	front
	ignores bool
	header  string
	pointer string
	fault   func(n int, id string) DownstreamFault
	log     *slog.Logger
	ledger  *effectLedger
	server  *http.Server

	// The bounds, and the wait of faults, as tests want them.
	maxRequests, maxEntries int
	pause                   func(context.Context, time.Duration) error

	ctx       context.Context // of all waits, and of connections that were taken over
	cancel    context.CancelFunc
	closeOnce sync.Once
	closeErr  error

	mu      sync.Mutex
	closed  bool
	under   int           // requests of any kind under way
	idle    chan struct{} // closed when under is 0 again; nil while it is
	working int           // requests for effects, and look-ups, under way
	pledged int           // entries that requests under way may add
	ids     map[string]*effectState
	reqs    requestLog
	report  DownstreamReport
}

// effectState is what is known of an id.
type effectState struct {
	asked   int // requests so far
	entries int
	first   span   // of its first entry
	body    string // digest of what that one asked for, or what is being done now asks for
	doing   bool   // for the first time, by a service that honours ids
}

// DownstreamReport is what a [Downstream] has counted.
type DownstreamReport struct {
	// Of the whole ledger, also of what was in it at the start. Duplicates are the
	// entries beyond the first of each id: Committed - Distinct.
	Committed  int `json:"committed"`
	Distinct   int `json:"distinct"`
	Duplicates int `json:"duplicates"`

	// Since the start.
	Requests int64 `json:"requests"` // for effects, whatever became of them
	Lookups  int64 `json:"lookups"`  // GET /effects
	Replayed int64 `json:"replayed"` // requests that were given, or would have been but for a fault, an earlier answer

	// Stopped is how many requests came to nothing because the service was stopped
	// while they waited for their effect.
	Stopped int64 `json:"stopped"`

	// Faults is how many requests each kind was chosen for.
	Faults map[DownstreamKind]int64 `json:"faults"`

	// RequestsDropped is how many requests fell out of the log, which has the newest
	// MaxDownstreamLog.
	RequestsDropped int64 `json:"requests_dropped"`
}

// NewDownstream opens the ledger and makes a service that does not listen yet. A
// last line of the ledger that was never finished is cut off, and said to the
// logger. The error matches [ErrLedgerInUse] where it is that; where the ledger is
// damaged the file is left as it is.
func NewDownstream(o DownstreamOptions) (*Downstream, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := &Downstream{
		ignores: o.Ignores,
		header:  textproto.CanonicalMIMEHeaderKey(cmp.Or(o.EffectHeader, keyHeader)),
		pointer: o.EffectPointer,
		fault:   o.Fault,
		log:     o.Logger,

		maxRequests: MaxDownstreamRequests,
		maxEntries:  MaxDownstreamEntries,
		pause:       rest,

		ids:    make(map[string]*effectState),
		reqs:   requestLog{max: MaxDownstreamLog},
		report: DownstreamReport{Faults: make(map[DownstreamKind]int64)},
	}
	if d.fault == nil {
		d.fault = func(int, string) DownstreamFault { return DownstreamFault{} }
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	var torn int64
	var err error
	if d.ledger, torn, err = openEffectLedger(o.Ledger, d.remember); err != nil {
		return nil, err
	}
	if torn > 0 {
		d.log.Warn("the last line of the ledger was not finished and is cut off", "ledger", o.Ledger, "bytes", torn)
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.server = &http.Server{
		Handler: d.Handler(),
		// Not ReadTimeout: it would end the contexts of requests that wait.
		ReadHeaderTimeout:            downstreamPatience,
		IdleTimeout:                  downstreamPatience,
		MaxHeaderBytes:               64 << 10,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(d.log.Handler(), slog.LevelWarn),
	}
	return d, nil
}

// remember takes up an entry of the ledger.
func (d *Downstream) remember(e DownstreamEntry, at span) {
	s := d.ids[e.EffectID]
	if s == nil {
		s = &effectState{}
		d.ids[e.EffectID] = s
	}
	s.asked = max(s.asked, e.Attempt)
	d.enter(s, e.Body, at)
}

// enter counts an entry.
func (d *Downstream) enter(s *effectState, body string, at span) {
	if s.entries == 0 {
		s.first, s.body = at, body
		d.report.Distinct++
	}
	s.entries++
	d.report.Committed++
}

// Handler is the service for a server of the caller's, who closes that server
// before Close.
func (d *Downstream) Handler() http.Handler { return http.HandlerFunc(d.serve) }

// Start listens on a free port of 127.0.0.1 and serves there until Close.
func (d *Downstream) Start() error { return d.start(d.log, d.Serve) }

// Serve takes connections from l until Close, and then returns nil. It closes l. A
// service serves once.
func (d *Downstream) Serve(l *net.TCPListener) error {
	return d.front.serve(l, d.server, maxDownstreamConns)
}

// Close stops the service. It takes no more requests, ends every wait at once (a
// slow commit that waits is not committed, and said to be so in the log), waits for
// the other requests under way until ctx ends, cuts what is left, and gives the
// ledger to others. It returns the context's error if it cut any. A second Close
// gives the first one's error.
func (d *Downstream) Close(ctx context.Context) error {
	d.closeOnce.Do(func() {
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.cancel()
		var err error
		if cut := d.server.Shutdown(ctx); cut != nil {
			err = fmt.Errorf("probe: requests were cut: %w", cut)
		}
		_ = d.server.Close() // nothing is written any more that could be lost
		// Without an end: every request has lost its wait and its connection.
		_ = d.WaitIdle(context.WithoutCancel(ctx))
		d.closeErr = errors.Join(err, d.ledger.close())
	})
	return d.closeErr
}

// WaitIdle returns when no request is under way. The error is the context's, if
// that ends first.
func (d *Downstream) WaitIdle(ctx context.Context) error {
	for {
		d.mu.Lock()
		idle := d.idle
		d.mu.Unlock()
		if idle == nil {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("probe: requests are under way: %w", ctx.Err())
		}
	}
}

// arrive counts a request of any kind as under way, until leave.
func (d *Downstream) arrive() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	if d.under == 0 {
		d.idle = make(chan struct{})
	}
	d.under++
	return true
}

func (d *Downstream) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.under--; d.under == 0 {
		close(d.idle)
		d.idle = nil
	}
}

// Ledger reads the ledger from the disk: every entry, in order. It cannot be read
// after Close; the file can.
func (d *Downstream) Ledger() ([]DownstreamEntry, error) { return d.ledger.entries() }

// Report is what has been counted so far.
func (d *Downstream) Report() DownstreamReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.report
	r.Duplicates = r.Committed - r.Distinct
	r.RequestsDropped = d.reqs.dropped
	r.Faults = maps.Clone(r.Faults)
	return r
}

// Requests is the log: the newest requests, in the order in which they arrived.
func (d *Downstream) Requests() []DownstreamRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reqs.all()
}

// DownstreamRequest is a request for an effect, or a look-up of one, as it arrived on
// the wire.
type DownstreamRequest struct {
	Number    int64     `json:"number"` // since the start, from 1
	At        time.Time `json:"at"`
	ID        string    `json:"id"`                    // of the effect; at most 255 bytes of it
	Attempt   int       `json:"attempt_seq,omitempty"` // which request of the id it is, from 1; 0 for look-ups and what was refused before it was counted
	Method    string    `json:"method"`
	Path      string    `json:"path"`      // at most 256 bytes of it
	Fault     string    `json:"fault"`     // as [DownstreamFault.String]
	Committed bool      `json:"committed"` // this request made an entry of the ledger

	// Status is what was answered, whether or not somebody was there to read it;
	// StatusNone if nothing was that is HTTP, or StatusPending while the request is
	// under way.
	Status string `json:"status"`

	// Note says why a request came to nothing, where the status does not.
	Note string `json:"note,omitempty"`
}

// What stands in [DownstreamRequest.Status] besides numbers.
const (
	StatusNone    = "none"
	StatusPending = "pending"
)

// requestLog is the newest requests.
type requestLog struct {
	max     int
	kept    []*DownstreamRequest // a ring once it is full
	next    int                  // the oldest, then
	number  int64
	dropped int64
}

func (l *requestLog) add(r *DownstreamRequest) {
	l.number++
	r.Number = l.number
	if len(l.kept) < l.max {
		l.kept = append(l.kept, r)
		return
	}
	l.kept[l.next] = r
	l.next = (l.next + 1) % l.max
	l.dropped++
}

func (l *requestLog) all() []DownstreamRequest {
	out := make([]DownstreamRequest, 0, len(l.kept))
	for i := range l.kept {
		out = append(out, *l.kept[(l.next+i)%len(l.kept)])
	}
	return out
}
