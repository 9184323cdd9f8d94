package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/idemd/idemd/client"
)

// chaosHeader asks idemd for a fault.
const chaosHeader = "Idemd-Chaos"

// relay stands right in front of a daemon, keeps its address through all of its
// lives, and counts what goes in. Where it is told so it asks for a fault with
// the first submission of each key; the client knows nothing of it, and what it
// sends again is an honest repetition. It starts the daemon again when the fault
// has killed it, before the client learns that the answer is lost: so no try is
// spent on a server that is not there, and the number of tries is no chance.
type relay struct {
	ctx   context.Context // of the scenario
	d     *daemon
	fault string // of the first submission of each key; empty for none

	url    string
	server *http.Server
	served chan error
	wire   *client.Transport

	mu          sync.Mutex
	closed      bool
	under       sync.WaitGroup // exchanges under way; Add under mu
	submissions int
	known       map[string]bool
	errs        []error
}

// openRelay starts a relay. It must be closed, and before the daemon is: an exchange
// may be starting that again.
func openRelay(ctx context.Context, d *daemon, fault string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, precondition("%w", err)
	}
	r := &relay{
		ctx: ctx, d: d, fault: fault, url: "http://" + l.Addr().String(), served: make(chan error, 1),
		wire: client.NewTransport(), known: make(map[string]bool),
	}
	r.server = &http.Server{
		Handler: http.HandlerFunc(r.serve), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { r.served <- r.server.Serve(l) }()
	return r, nil
}

// close cuts all connections and returns when every exchange has ended.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	_ = r.server.Close() // nothing is on its way that anybody waits for
	if err := <-r.served; !errors.Is(err, http.ErrServerClosed) {
		r.fail(fmt.Errorf("probe: the relay's listener: %w", err))
	}
	r.under.Wait()
	r.wire.CloseIdleConnections()
}

// enter begins an exchange, unless the relay is closed.
func (r *relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.under.Add(1)
	}
	return !r.closed
}

// seen is how many submissions have gone in, and what went wrong in between.
func (r *relay) seen() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) > 0 {
		return r.submissions, r.errs[0]
	}
	return r.submissions, nil
}

func (r *relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// first counts a submission and reports whether it is the first of its key.
func (r *relay) first(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.submissions++
	first := !r.known[key]
	r.known[key] = true
	return first
}

func (r *relay) serve(w http.ResponseWriter, in *http.Request) {
	if !r.enter() {
		panic(http.ErrAbortHandler)
	}
	defer r.under.Done()
	body, err := io.ReadAll(http.MaxBytesReader(w, in.Body, maxOrder))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var out io.Reader
	if len(body) > 0 {
		out = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(in.Context(), in.Method, r.d.now().url+in.URL.RequestURI(), out)
	if err != nil {
		r.fail(fmt.Errorf("probe: %w", err))
		panic(http.ErrAbortHandler)
	}
	req.Header = in.Header.Clone()
	deadly := false
	if in.Method == http.MethodPost && r.first(in.Header.Get(keyHeader)) && r.fault != "" {
		deadly = true
		req.Header.Set(chaosHeader, r.fault)
	}
	resp, err := r.wire.RoundTrip(req)
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		_ = resp.Body.Close()
	}
	if deadly { // an answer that came before the death is lost with it
		r.revive()
	}
	if err != nil || deadly {
		panic(http.ErrAbortHandler) // the client's connection closes, as the server's did
	}
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(body) // a client that has left is no matter
}

// revive waits for the death of the daemon and starts its next life.
func (r *relay) revive() {
	// The context is not that of the exchange, which ends when the client leaves.
	if err := r.d.awaitEnd(r.ctx); err != nil {
		r.fail(err)
		return
	}
	if !r.d.killed() {
		r.fail(fmt.Errorf("probe: idemd ended with %v, and was to die at %s", r.d.now().cmd.ProcessState, r.fault))
		return
	}
	if err := r.d.start(r.ctx); err != nil {
		r.fail(err)
	}
}
