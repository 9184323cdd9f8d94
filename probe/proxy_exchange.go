package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// exchange is a request of a client and what becomes of it.
type exchange struct {
	p     *Proxy
	w     http.ResponseWriter
	r     *http.Request
	rc    *http.ResponseController
	guest *guest
	fault Fault
	body  *clientBody // nil: the request has none
	out   outgoing

	up      *incoming // the answer of upstream, as soon as there is one
	sending *sending  // what reads the body now, or has read it

	// For the log.
	requests int    // on the wire
	status   int    // of the last answer of upstream; 0: none
	outcome  string // what the client got
	err      error
}

func newExchange(p *Proxy, w http.ResponseWriter, r *http.Request, fault Fault) *exchange {
	g := r.Context().Value(guestKey{}).(*guest) // the server has no others
	x := &exchange{p: p, w: w, r: r, rc: http.NewResponseController(w), guest: g, fault: fault}
	x.out = outgoing{
		method: r.Method, target: requestTarget(r), header: endToEnd(r.Header), length: r.ContentLength,
		trailer: func() http.Header { return r.Trailer }, announced: fieldNames(r.Trailer),
	}
	_, x.out.lengthGiven = r.Header["Content-Length"]
	x.out.header.Del("Content-Length")
	x.out.header.Del("Expect")
	if r.Body != http.NoBody {
		x.body = &clientBody{rc: x.rc, body: r.Body, timeout: p.timeout}
		x.out.body = x.body
		x.out.expect = strings.EqualFold(r.Header.Get("Expect"), "100-continue")
	}
	return x
}

// requestTarget is what to ask upstream for: as the client wrote it, but without the
// host that a client which takes this for its forward proxy puts before it.
func requestTarget(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") || r.RequestURI == "*" {
		return r.RequestURI
	}
	return r.URL.RequestURI()
}

// clientBody reads a request's body, and gives up when nothing comes for a time.
type clientBody struct {
	rc      *http.ResponseController
	body    io.Reader
	timeout time.Duration

	mu      sync.Mutex
	stopped bool
}

func (b *clientBody) Read(p []byte) (int, error) {
	if err := b.wait(b.timeout); err != nil {
		return 0, err
	}
	n, err := b.body.Read(p)
	if err != nil {
		// From here on the server reads, to see whether the client leaves; it has
		// all the time that upstream takes.
		if werr := b.wait(0); werr != nil && errors.Is(err, io.EOF) {
			return n, werr
		}
	}
	return n, err
}

// wait sets how long a read waits; 0 is for ever.
func (b *clientBody) wait(d time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return errors.New("the exchange is over")
	}
	if d == 0 {
		return b.rc.SetReadDeadline(time.Time{})
	}
	return b.rc.SetReadDeadline(time.Now().Add(d))
}

// stop ends a read that is under way and all later ones. Nothing else can be read
// from the connection after it.
func (b *clientBody) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	_ = b.rc.SetReadDeadline(time.Unix(1, 0)) // a connection that is closed does not wait either
}

// run does what the fault says. It ends with x.outcome set.
func (x *exchange) run() {
	// An answer may come before the request has ended; it must not wait for that.
	if err := x.rc.EnableFullDuplex(); err != nil {
		x.cut("cut", err)
		return
	}
	if x.r.Method == http.MethodConnect {
		x.swallow()
		x.answer(http.StatusNotImplemented, "this proxy makes no tunnels")
		return
	}
	switch x.fault.Mode {
	case DropRequest:
		x.swallow()
		x.cut("closed", nil)
	case ResetRequest:
		x.swallow()
		x.reset()
	case FailBefore:
		x.swallow()
		x.answer(x.fault.Status, x.fault.String())
	case DuplicateRequest:
		if x.hold() {
			x.forward()
		}
	default:
		x.forward()
	}
}

// swallow reads the request to its end, so that what the client sees does not
// depend on how far it had got; it gives up on what is very long.
func (x *exchange) swallow() {
	if x.body == nil {
		return
	}
	if _, err := io.CopyN(io.Discard, x.body, maxUnwanted+1); !errors.Is(err, io.EOF) {
		x.guest.spend()
		if err != nil {
			x.err = err
		}
	}
}

// hold keeps the body in memory and sends the request the first time. Where the
// body is too long it stays as it is, to be sent once. It returns false if the
// exchange is over.
func (x *exchange) hold() bool {
	if x.body != nil {
		held, err := io.ReadAll(io.LimitReader(x.body, MaxHeld+1))
		x.out.expect = false // it was asked for
		switch {
		case err != nil:
			x.left(err)
			return false
		case len(held) > MaxHeld:
			x.p.count(func(s *Summary) { s.NotDuplicated++ })
			x.out.body = io.MultiReader(bytes.NewReader(held), x.body)
			return true
		}
		x.out.body = bytes.NewReader(held)
		defer func() { x.out.body = bytes.NewReader(held) }()
	}
	a, err := x.send(context.Background())
	if err == nil {
		err = x.drain(a, io.Discard)
		a.close()
	}
	if x.sending != nil {
		<-x.sending.done // it reads what is held, which does not wait
	}
	if err != nil && !errors.Is(err, errUnreached) {
		x.p.count(func(s *Summary) { s.UpstreamFailures++ })
		x.err = err
	}
	return true
}

// send sends the request once.
func (x *exchange) send(client context.Context) (*incoming, error) {
	a, s, err := x.p.upstream.send(x.p.ctx, client, &x.out, func() {
		x.requests++
		x.p.count(func(s *Summary) { s.UpstreamRequests++ })
	})
	x.up, x.sending = a, s
	if err == nil {
		x.status = a.StatusCode
	}
	return a, err
}

// forward sends the request and does to the answer what the fault says.
func (x *exchange) forward() {
	client := context.Background() // upstream is not told
	if x.fault.Mode == Pass {
		client = x.r.Context()
	}
	a, err := x.send(client)
	switch {
	case errors.Is(err, errUnreached):
		x.err = err
		x.swallow()
		x.answer(http.StatusBadGateway, errUnreached.Error())
		return
	case errors.Is(err, errClientLeft):
		x.left(err)
		return
	case err != nil:
		x.failed(err)
		return
	}
	defer a.close()
	switch x.fault.Mode {
	case DropResponse:
		if x.drained(a, io.Discard) {
			x.cut("closed", nil)
		}
	case Reset:
		if x.drained(a, io.Discard) {
			x.reset()
		}
	case HalfBody:
		x.halve(a)
	case DelayResponse:
		if x.delay() {
			x.deliver(a)
		}
	default:
		x.deliver(a)
	}
}

// drain reads an answer to its end.
func (x *exchange) drain(a *incoming, w io.Writer) error {
	if _, err := io.Copy(w, a.Body); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	x.p.count(func(s *Summary) { s.UpstreamAnswers++ })
	return nil
}

// drained is drain, and ends the exchange if the answer breaks off.
func (x *exchange) drained(a *incoming, w io.Writer) bool {
	err := x.drain(a, w)
	if err != nil {
		x.failed(err)
	}
	return err == nil
}

// delay returns false if the exchange has ended meanwhile.
func (x *exchange) delay() bool {
	t := time.NewTimer(x.fault.Delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.r.Context().Done():
		x.left(errClientLeft)
	case <-x.p.ctx.Done():
		x.cut("cut", x.p.ctx.Err())
	}
	return false
}

// head writes the head of an answer, with or without a length of its own.
func (x *exchange) head(a *incoming, length int64) {
	h := x.w.Header()
	for name, values := range endToEnd(a.Header) {
		h[name] = slices.Clone(values)
	}
	for _, name := range []string{"Date", "Content-Type"} { // the server would make them up
		if _, ok := h[name]; !ok {
			h[name] = nil
		}
	}
	if length >= 0 {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	} else if len(a.Trailer) > 0 {
		h.Set("Trailer", strings.Join(fieldNames(a.Trailer), ", "))
	}
	x.w.WriteHeader(a.StatusCode)
}

// write writes a piece of the answer, and has it sent at once.
func (x *exchange) write(b []byte) error {
	if err := x.rc.SetWriteDeadline(time.Now().Add(x.p.timeout)); err != nil {
		return err
	}
	if len(b) > 0 {
		if _, err := x.w.Write(b); err != nil {
			return err
		}
	}
	return x.rc.Flush()
}

// deliver passes the answer on as it comes.
func (x *exchange) deliver(a *incoming) {
	x.head(a, -1)
	err := x.write(nil)
	b := make([]byte, 32<<10)
	for err == nil {
		n, rerr := a.Body.Read(b)
		if n > 0 {
			err = x.write(b[:n])
		}
		if errors.Is(rerr, io.EOF) {
			x.p.count(func(s *Summary) { s.UpstreamAnswers++ })
			break
		}
		if rerr != nil && err == nil {
			if x.r.Context().Err() != nil {
				x.left(rerr)
			} else {
				x.failed(rerr)
			}
			return
		}
	}
	if err != nil {
		x.left(err)
		return
	}
	for name, values := range a.Trailer {
		x.w.Header()[http.TrailerPrefix+name] = values
	}
	x.p.count(func(s *Summary) { s.Delivered++ })
	x.outcome = "delivered"
	// What upstream did not want of the request is thrown away now, unless there is
	// too much of it.
	a.close()
	<-x.sending.done
	if !x.sending.whole {
		x.guest.spend()
	}
}

// halve sends the first half of an answer's body.
func (x *exchange) halve(a *incoming) {
	var body firstBytes
	if !x.drained(a, &body) {
		return
	}
	if body.total == 0 {
		x.cut("closed", nil)
		return
	}
	x.head(a, body.total)
	half := body.kept[:min(int64(len(body.kept)), body.total/2)]
	x.cut(fmt.Sprintf("closed after %d of %d bytes", len(half), body.total), x.write(half))
}

// firstBytes keeps the first MaxHeld bytes and counts them all.
type firstBytes struct {
	kept  []byte
	total int64
}

func (f *firstBytes) Write(b []byte) (int, error) {
	f.total += int64(len(b))
	f.kept = append(f.kept, b[:min(len(b), MaxHeld-len(f.kept))]...)
	return len(b), nil
}

// answer answers in place of upstream. The request has been read as far as it is
// going to be.
func (x *exchange) answer(status int, text string) {
	x.p.count(func(s *Summary) { s.OwnAnswers++ })
	x.outcome = "answered by the proxy"
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	x.w.WriteHeader(status)
	if err := x.write([]byte("idemd proxy: " + text + "\n")); err != nil && x.err == nil {
		x.err = err
	}
}

// left ends an exchange whose client has gone.
func (x *exchange) left(err error) {
	x.p.count(func(s *Summary) { s.ClientsLeft++ })
	x.cut("client left", err)
}

// failed ends an exchange that upstream did not end.
func (x *exchange) failed(err error) {
	x.p.count(func(s *Summary) { s.UpstreamFailures++ })
	x.cut("closed, upstream failed", err)
}

// cut closes the client's connection after what has been written.
func (x *exchange) cut(outcome string, err error) { x.end(outcome, err, false) }

// reset resets the client's connection.
func (x *exchange) reset() { x.end("reset", nil, true) }

func (x *exchange) end(outcome string, err error, reset bool) {
	x.outcome = outcome
	if err != nil {
		x.err = err
	}
	if x.body != nil {
		x.body.stop()
	}
	if x.up != nil {
		x.up.close()
	}
	if x.sending != nil {
		<-x.sending.done // nobody may read the connection while it is taken over
	}
	conn, _, err := x.rc.Hijack()
	if err != nil {
		x.err = errors.Join(x.err, err)
		panic(http.ErrAbortHandler)
	}
	if reset {
		err = x.guest.SetLinger(0) // the other side gets a RST in place of a FIN
	}
	x.err = errors.Join(x.err, err, conn.Close())
}
