package tool

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/idemd/idemd/idem"
)

// failureUnreachable is the code of a failure before anything was sent or begun,
// so that nothing was done: no connection downstream, a program that cannot be
// started.
const failureUnreachable = "tool_unreachable"

const (
	// dialTimeout bounds a connection's making, TLS included. Too low turns slow
	// networks into failures, too high keeps a worker on a dead peer.
	dialTimeout = 10 * time.Second

	// idleTimeout is how long a connection is kept for the next request. It must be
	// below what peers keep idle ones for (many for five seconds): one that closes a
	// connection at the moment when it is used again leaves nobody knowing what came
	// of the request. Under load it costs nothing.
	idleTimeout = 4 * time.Second

	maxIdle          = 64       // connections kept, of a tool
	maxAnswerHeaders = 64 << 10 // bytes, those of answers before the last one included
)

// wire sends requests downstream and reads what comes back. It sends each request
// once, and says for each whether it was sent at all. It asks only the hosts that
// requests name: it follows no redirect, keeps no cookies, and takes no proxy from
// the environment.
//
// How [http.Transport] comes to send a request again, and why it does not here:
//
//   - A kept connection dies before an answer, and the request is one that it
//     takes for repeatable: GET and the like, and any with an Idempotency-Key.
//     Only if it has no body, or has GetBody to get it again. So every request on a
//     kept connection must have a body without GetBody, and one without a
//     body goes over a connection of its own, which is not kept.
//   - A kept connection dies before a byte was written. The same holds for it.
//   - HTTP/2: after GOAWAY, or a refused stream. It is switched off.
//   - A redirect, which is a matter of [http.Client]. There is none here.
type wire struct {
	transport *http.Transport

	// dial and tls are how connections are made, until life is over.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	tls  *tls.Config
	life context.Context
	end  context.CancelFunc
}

// newWire makes a wire; keep says whether its connections are kept. They must not
// be for requests without a body.
func newWire(keep bool) *wire {
	w := &wire{dial: new(net.Dialer).DialContext, tls: &tls.Config{NextProtos: []string{"http/1.1"}}}
	w.life, w.end = context.WithCancel(context.Background())
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	w.transport = &http.Transport{
		Protocols:              &protocols,
		DialContext:            w.dialPlain,
		DialTLSContext:         w.dialTLS,
		DisableKeepAlives:      !keep,
		DisableCompression:     true, // the answer's very bytes
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswerHeaders,
	}
	return w
}

// close closes the connections that nothing uses, and keeps no others. What is
// under way goes on, but makes no connections any more.
func (w *wire) close() {
	w.end()
	w.transport.CloseIdleConnections()
}

// dialing is the context of making a connection. The transport goes on with that
// when the request's context is over, for the sake of the next request.
func (w *wire) dialing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	stop := context.AfterFunc(w.life, cancel)
	return ctx, func() { stop(); cancel() }
}

func (w *wire) dialPlain(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, done := w.dialing(ctx)
	defer done()
	return w.dial(ctx, network, addr)
}

var errTLS = errors.New("tool: the TLS handshake failed")

func (w *wire) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, done := w.dialing(ctx)
	defer done()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	plain, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	config := w.tls.Clone()
	config.ServerName = host
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	return conn, nil
}

// answer is a complete answer, or the beginning of one that is too long to keep.
type answer struct {
	status    int
	header    http.Header
	body      []byte // at most idem.MaxOutput
	truncated bool   // there was more, which was not read
}

// result is the answer as it is stored.
func (a answer) result() idem.Result { return answerResult(a.body, a.truncated, "body", a.status) }

// send sends a request once. An error that is an *idem.Failure says that it was
// not sent: there was no connection to send it on. After any other error nobody
// knows. From the moment there is a connection the transport does not tell for
// certain whether anything was written, so that all from then on is unknown.
//
// Errors repeat nothing of the request or the answer: they are logged.
func (w *wire) send(ctx context.Context, req *http.Request) (answer, error) {
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	resp, err := w.transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	switch {
	case err != nil && !connected:
		return answer{}, &idem.Failure{Code: failureUnreachable, Message: "no connection to downstream: " + noConnection(ctx, err), Retryable: true}
	case err != nil:
		return answer{}, lost(ctx, err)
	}
	defer resp.Body.Close() // where it was not read to its end, this closes the connection
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return answer{}, errors.New("tool: downstream switched protocols instead of answering")
	}
	var body bytes.Buffer
	if n := resp.ContentLength; 0 < n && n < 64<<10 { // more is claimed easily
		body.Grow(int(n) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, idem.MaxOutput+1)); err != nil {
		return answer{}, lost(ctx, err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: body.Bytes()}
	if len(a.body) > idem.MaxOutput {
		a.body, a.truncated = a.body[:idem.MaxOutput], true
	}
	if !a.truncated && req.Method != http.MethodHead && endsAnywhere(resp) && saysJSON(resp.Header) && !json.Valid(a.body) {
		return answer{}, lost(ctx, io.ErrUnexpectedEOF)
	}
	return a, nil
}

// endsAnywhere reports whether the end of the connection was the end of the
// answer, so that a part of an answer looks like all of it.
func endsAnywhere(resp *http.Response) bool {
	return resp.ContentLength < 0 && len(resp.TransferEncoding) == 0
}

// saysJSON reports whether an answer claims to be JSON as it is.
func saysJSON(h http.Header) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && h.Get("Content-Encoding") == "" && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// noConnection says in fixed words why there was no connection; errors of the
// network name hosts and addresses.
func noConnection(ctx context.Context, err error) string {
	var dns *net.DNSError
	switch {
	case timedOut(ctx, err):
		return "timed out"
	case ctx.Err() != nil:
		return "interrupted"
	case errors.Is(err, errTLS):
		return "the TLS handshake failed"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns):
		return "the host's name could not be looked up"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	default:
		return "it could not be made"
	}
}

// lost says in fixed words why there is no answer; errors of the transport quote
// what they could not read.
func lost(ctx context.Context, err error) error {
	why := "it could not be read"
	switch {
	case timedOut(ctx, err):
		why = "timed out"
	case ctx.Err() != nil:
		why = "interrupted"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		why = "the connection was reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		why = "the connection was closed before its end"
	}
	return errors.New("tool: the answer of downstream was lost: " + why)
}

func timedOut(ctx context.Context, err error) bool {
	var n net.Error
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

// maxRetryAfter bounds what downstream may ask for.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads how long downstream asks to be left alone, in whole seconds:
// zero where it does not say, or says it in no form that is known. A date counts
// from that of the answer, whose clock made both; without one, from now.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if digits(v) {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > int64(maxRetryAfter/time.Second) { // only its size can be wrong
			return maxRetryAfter
		}
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	wait := min(max(at.Sub(now), 0), maxRetryAfter)
	return (wait + time.Second - 1).Truncate(time.Second) // too early is worse than too late
}

// digits reports whether s is nothing but ASCII digits, and some.
func digits(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}
