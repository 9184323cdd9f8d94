package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// Engine is what sends requests.
type Engine string

const (
	// Vegeta sends over Go's HTTP client. It takes more of the machine than most of
	// what it measures, so on a small machine its maximum is not the server's.
	Vegeta Engine = "vegeta"

	// Bare writes and reads HTTP/1.1 itself, over one socket for each connection. It
	// has no schedule: it is for closed loops.
	Bare Engine = "bare"
)

// attack is how the requests of one series are sent.
type attack struct {
	base        string // URL without a path
	engine      Engine // Vegeta where it is open
	connections int
	rate        int           // requests a second; 0: closed loop
	requests    int64         // 0: as many as duration has room for
	duration    time.Duration // 0: until all requests are sent
	timeout     time.Duration // of one request

	// workers is how many requests of an open series may be without an answer at
	// once. When so many are, the next one waits for one of them: it counts from when
	// it was due all the same, but the rate was not kept, which is found out. It
	// bounds the memory of a long stall.
	workers int

	// wire stands in for the network where a test has none. It is of Vegeta's
	// engine only.
	wire http.RoundTripper
}

// open reports whether requests are sent at a rate, whatever the answers.
func (a *attack) open() bool { return a.rate > 0 }

// interval is the time between two requests of an open series.
func (a *attack) interval() time.Duration { return time.Second / time.Duration(a.rate) }

// due is when a request is to be sent, as Vegeta's pacer schedules it: the first
// one after one interval.
func (a *attack) due(n int64) time.Duration { return time.Duration(n+1) * a.interval() }

// all is how many requests there will be; 0 where time decides.
func (a *attack) all() int64 {
	if a.requests == 0 && a.open() {
		return int64(a.duration / a.interval())
	}
	return a.requests
}

// run sends the requests of a workload and records what comes of them. It
// returns when every answer is there, or its time-out, and leaves no connection
// and no goroutine. It says when the series began.
func (a *attack) run(ctx context.Context, w *workload, rec *recorder) (began time.Time, err error) {
	if a.engine == Bare {
		began, err = a.bare(ctx, w, rec)
	} else {
		began, err = a.vegeta(ctx, w, rec)
	}
	if ctx.Err() != nil {
		return began, ctx.Err()
	}
	return began, err
}

// manyWorkers is what attack.workers is outside of tests.
const manyWorkers = 20_000

// pacer is Vegeta's, with an end, and it tells when the series began.
type pacer struct {
	vegeta.ConstantPacer
	requests int64
	duration time.Duration
	began    time.Time
}

// Pace is called by one goroutine, before each request.
func (p *pacer) Pace(elapsed time.Duration, hits uint64) (time.Duration, bool) {
	if p.began.IsZero() {
		p.began = time.Now().Add(-elapsed)
	}
	if p.requests > 0 && hits >= uint64(p.requests) || p.duration > 0 && elapsed >= p.duration {
		return 0, true
	}
	return p.ConstantPacer.Pace(elapsed, hits)
}

func (a *attack) vegeta(ctx context.Context, w *workload, rec *recorder) (time.Time, error) {
	pace := &pacer{requests: a.all()}
	workers := uint64(a.connections)
	if a.open() {
		pace.ConstantPacer = vegeta.ConstantPacer{Freq: a.rate, Per: time.Second}
		workers = uint64(a.workers)
	} else if a.requests == 0 {
		pace.duration = a.duration
	}
	wire := a.wire
	if wire == nil {
		sockets, err := dial(ctx, a.base, a.connections)
		if err != nil {
			return time.Now(), err
		}
		defer sockets.close()
		stop := context.AfterFunc(ctx, sockets.close)
		defer stop()
		t := sockets.transport(a.connections)
		defer t.CloseIdleConnections()
		wire = t
	}
	attacker := vegeta.NewAttacker(
		vegeta.Client(&http.Client{
			Transport: sentOnce{wire}, Timeout: a.timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
		vegeta.Workers(min(uint64(a.connections), workers)), vegeta.MaxWorkers(workers),
	)
	stop := context.AfterFunc(ctx, func() { attacker.Stop() })
	defer stop()

	targeter := func(t *vegeta.Target) error {
		r := w.next()
		t.Method, t.URL, t.Header = r.method, a.base+r.path, r.header()
		if r.body != "" {
			t.Body = []byte(r.body)
		}
		return nil
	}
	var failure error
	for res := range attacker.Attack(targeter, pace, 0, "") {
		o := outcome{
			sent: res.Timestamp.Sub(pace.began), status: int(res.Code),
			again: res.Headers.Get("Idempotent-Replayed") == "true",
		}
		o.done, o.due = o.sent+res.Latency, o.sent
		if a.open() {
			o.due = a.due(int64(res.Seq))
		}
		if o.status == 0 {
			o.err = errors.New(res.Error)
		}
		if err := rec.add(o); err != nil && failure == nil {
			failure = err
			attacker.Stop()
		}
	}
	return pace.began, failure
}

func (r request) header() http.Header {
	h := make(http.Header, 4)
	if r.key != "" {
		h["Idempotency-Key"] = []string{r.key}
	}
	if r.body != "" {
		h["Content-Type"] = []string{"application/json"}
	}
	if r.wait {
		h["Prefer"] = []string{"wait=10"}
	}
	return h
}

// sentOnce sends what it is given once. Go's transport would send a request
// again by itself when a reused connection turns out to be dead, if it can get
// the body again, which an Idempotency-Key makes it do for a POST too; and a
// request without a body always. The first is prevented by taking the way to get
// the body away, the second by a body that is there and empty, of which nothing
// is sent.
type sentOnce struct{ http.RoundTripper }

// RoundTrip changes the request that it is given, which is nobody else's.
func (t sentOnce) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header.Del("X-Vegeta-Seq") // Vegeta's own; every engine sends the same
	req.GetBody = nil
	if req.Body == nil || req.Body == http.NoBody {
		req.Body = emptyBody{}
	}
	return t.RoundTripper.RoundTrip(req)
}

// sockets are the connections of one series. They are there before it begins,
// so that no request waits for one.
type sockets struct {
	addr  string
	ready chan net.Conn

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// dial opens n connections to the host of a URL.
func dial(ctx context.Context, base string, n int) (*sockets, error) {
	req, err := http.NewRequest(http.MethodGet, base, nil)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	addr := req.URL.Host
	if req.URL.Port() == "" {
		addr = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	s := &sockets{addr: addr, ready: make(chan net.Conn, n), open: make(map[net.Conn]struct{})}
	for range n {
		c, err := s.fresh(ctx)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("bench: %w", err)
		}
		s.ready <- c
	}
	return s, nil
}

// get gives a connection that is open already, or opens one.
func (s *sockets) get(ctx context.Context) (net.Conn, error) {
	for {
		select {
		case c := <-s.ready:
			if !gone(c) {
				return c, nil
			}
			c.Close()
		default:
			return s.fresh(ctx)
		}
	}
}

// gone reports whether a connection on which nothing was sent yet cannot be used:
// a server closes what stays silent for some seconds, and what was open when it
// was killed. A request sent on it would have no answer for no fault of the
// server that there is now.
func gone(c net.Conn) bool {
	s, ok := c.(*socket).Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	var seen error
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, seen = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	// A live one has nothing to read; an end can be read, without an error.
	return err != nil || !errors.Is(seen, syscall.EAGAIN)
}

func (s *sockets) fresh(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	s.open[c] = struct{}{}
	return &socket{c, s}, nil
}

// close closes every connection, in use or not. What waits for an answer is
// over at once.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	clear(s.open)
}

// transport sends over these connections, n at a time.
func (s *sockets) transport(n int) *http.Transport {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Transport{
		Protocols: http1, DisableCompression: true, MaxConnsPerHost: n, MaxIdleConnsPerHost: n,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.get(ctx) },
	}
}

// socket is forgotten when it is closed.
type socket struct {
	net.Conn
	of *sockets
}

func (c *socket) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
