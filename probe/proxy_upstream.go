package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// maxHead bounds the head of a request and that of an answer, interim answers
	// included.
	maxHead = 1 << 20

	// dialTime bounds how long a connection to upstream takes to be made.
	dialTime = 10 * time.Second

	// continueTime is how long a request that expects 100 (Continue) waits for it
	// before its body is sent all the same: a server need not send it.
	continueTime = time.Second

	// maxUnwanted is how much of a body is read from a client after upstream has
	// answered without it, so that the client gets to reading the answer.
	maxUnwanted = 8 << 20
)

// upstream is where exchanges go. Each request has a connection of its own, is
// written to it once and by hand, and closes it. net/http's transport would do
// more for us than a network does: it sends a request again by itself when a
// connection that it had kept turns out dead, and it asks for compression.
type upstream struct {
	addr    string      // to dial
	host    string      // for the Host field
	tls     *tls.Config // nil: plain
	timeout time.Duration
}

func newUpstream(base string, conf *tls.Config, timeout time.Duration) (*upstream, error) {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("probe: upstream %q is not a URL like http://HOST:PORT", base)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("probe: upstream %q has more than a scheme, a host and a port", base)
	}
	up := &upstream{host: u.Host, timeout: timeout}
	port := u.Port()
	if u.Scheme == "https" {
		if conf == nil {
			conf = &tls.Config{}
		}
		up.tls = conf.Clone()
		up.tls.NextProtos = []string{"http/1.1"}
		if up.tls.ServerName == "" {
			up.tls.ServerName = u.Hostname()
		}
		if port == "" {
			port = "443"
		}
	} else if port == "" {
		port = "80"
	}
	up.addr = net.JoinHostPort(u.Hostname(), port)
	return up, nil
}

// dial connects. The connection is closed when ctx ends.
func (u *upstream) dial(ctx context.Context) (*patientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.addr)
	if err != nil {
		return nil, err
	}
	if u.tls != nil {
		t := tls.Client(c, u.tls)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = c.Close() // the handshake's error is the one to tell
			return nil, err
		}
		c = t
	}
	return &patientConn{Conn: c, timeout: u.timeout}, nil
}

// patientConn gives up when nothing has moved in either direction for a time.
type patientConn struct {
	net.Conn
	timeout time.Duration
}

func (c *patientConn) Read(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *patientConn) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// outgoing is what goes out.
type outgoing struct {
	method, target string
	header         http.Header // end to end; without framing
	body           io.Reader   // nil: none
	length         int64       // of the body; -1: not known, it is sent in chunks
	lengthGiven    bool        // the client gave a length, even if it is 0
	expect         bool        // wait for 100 (Continue) before the body is asked for
	trailer        func() http.Header
	announced      []string // names of trailer fields
}

// incoming is what came back. Reading its body ends with an error unless the body
// is complete.
type incoming struct {
	*http.Response
	conn net.Conn
	stop func() bool
}

// close gives the connection up, and with it what was still being written.
func (a *incoming) close() {
	a.stop()
	_ = a.conn.Close() // all that matters has been read
}

// sending is how the writing of a request ended. All but done is to be read when
// done is closed; until then the client's body is being read.
type sending struct {
	done    chan struct{}
	whole   bool  // the body was read to its end
	readErr error // it broke off
}

var (
	errUnreached  = errors.New("cannot connect to upstream")
	errClientLeft = errors.New("the client left")
	errBroken     = errors.New("upstream broke off")
)

// send writes a request over a new connection and waits for the head of its
// answer. onWire is called once the request's head has been written. All ends
// with ctx. Upstream sees the connection closed when client ends, but not before
// the request has been written to its end: what a client has sent is on its way,
// also when the client has gone.
//
// Without a sending there was nothing to write, or it has ended.
//
// Errors: errUnreached, errClientLeft, errBroken.
func (u *upstream) send(ctx, client context.Context, req *outgoing, onWire func()) (*incoming, *sending, error) {
	conn, err := u.dial(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errUnreached, err)
	}
	a := &incoming{conn: conn, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	w := bufio.NewWriter(conn)
	writeHead(w, u.host, req)
	if err := w.Flush(); err != nil {
		a.close()
		return nil, nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	onWire()

	s := &sending{done: make(chan struct{})}
	goOn, answered := make(chan struct{}), make(chan struct{})
	defer close(answered)
	go func() {
		s.writeBody(w, req, goOn, answered)
		close(s.done)
		if s.readErr != nil {
			_ = conn.Close() // upstream must not wait for the rest
			return
		}
		context.AfterFunc(client, func() { _ = conn.Close() })
	}()
	a.Response, err = readAnswer(conn, req.method, goOn) //nolint:bodyclose // incoming.close closes the connection under it
	if err == nil {
		return a, s, nil
	}
	a.close()
	if client.Err() != nil || s.brokeOff() {
		return nil, s, fmt.Errorf("%w: %w", errClientLeft, err)
	}
	return nil, s, fmt.Errorf("%w: %w", errBroken, err)
}

// brokeOff reports whether the client's body is known to have broken off.
func (s *sending) brokeOff() bool {
	select {
	case <-s.done:
		return s.readErr != nil
	default:
		return false
	}
}

// writeHead leaves errors to the flush that follows.
func writeHead(w *bufio.Writer, host string, req *outgoing) {
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\n", req.method, req.target, host)
	_ = req.header.Write(w)
	switch {
	case req.length < 0:
		fmt.Fprint(w, "Transfer-Encoding: chunked\r\n")
	case req.length > 0 || req.lengthGiven:
		fmt.Fprintf(w, "Content-Length: %d\r\n", req.length)
	}
	if len(req.announced) > 0 {
		fmt.Fprintf(w, "Trailer: %s\r\n", strings.Join(req.announced, ", "))
	}
	if req.expect {
		fmt.Fprint(w, "Expect: 100-continue\r\n")
	}
	fmt.Fprint(w, "Connection: close\r\n\r\n")
}

// writeBody writes what the client sends as it comes. When upstream takes no more
// of it, because it has answered already, the rest is read and thrown away.
func (s *sending) writeBody(w *bufio.Writer, req *outgoing, goOn, answered <-chan struct{}) {
	if req.body == nil {
		s.whole = true
		return
	}
	if req.expect {
		timer := time.NewTimer(continueTime)
		defer timer.Stop()
		select {
		case <-goOn:
		case <-timer.C:
		case <-answered:
			return
		}
	}
	body := io.Writer(w)
	var chunks io.WriteCloser
	if req.length < 0 {
		chunks = httputil.NewChunkedWriter(w)
		body = chunks
	}
	b := make([]byte, 32<<10)
	unwanted, refused := 0, false
	for unwanted <= maxUnwanted {
		n, err := req.body.Read(b)
		switch {
		case n == 0:
		case refused:
			unwanted += n
		default:
			_, werr := body.Write(b[:n])
			refused = werr != nil || w.Flush() != nil
		}
		if errors.Is(err, io.EOF) {
			s.whole = true
			break
		}
		if err != nil {
			s.readErr = err
			return
		}
	}
	if chunks == nil || refused {
		return
	}
	_ = chunks.Close() // what cannot be written shows in the answer, or in its absence
	_ = req.trailer().Write(w)
	fmt.Fprint(w, "\r\n")
	_ = w.Flush()
}

// readAnswer reads up to the end of the final answer's head, and closes goOn when
// upstream asks for the body. Other interim answers are thrown away.
func readAnswer(conn net.Conn, method string, goOn chan<- struct{}) (*http.Response, error) {
	limited := &io.LimitedReader{R: conn, N: maxHead}
	r := bufio.NewReader(limited)
	for asked := false; ; {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		switch {
		case err != nil && limited.N <= 0:
			return nil, fmt.Errorf("the head of the answer is over %d bytes", maxHead)
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the protocol was switched, which nobody had asked for")
		case resp.StatusCode >= 200:
			limited.N = math.MaxInt64
			return resp, nil
		case resp.StatusCode == http.StatusContinue && !asked:
			asked = true
			close(goOn)
		}
	}
}

// endToEnd copies the fields that are not for one connection only (RFC 9110,
// section 7.6.1). Framing is made anew on each connection.
func endToEnd(h http.Header) http.Header {
	out := h.Clone()
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "TE", "Transfer-Encoding", "Upgrade", "Trailer"} {
		out.Del(name)
	}
	return out
}

// fieldNames lists the names of fields.
func fieldNames(h http.Header) []string {
	return slices.Sorted(maps.Keys(h))
}
