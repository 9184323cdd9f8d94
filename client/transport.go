package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// ErrNotSent means that there never was a connection, so that nothing of the
// request can have arrived anywhere.
var ErrNotSent = errors.New("no connection")

// Transport sends every request that it is given on the wire once, or not at
// all. It speaks HTTP/1 only. Make one with [NewTransport]; it may be used by
// many goroutines.
//
// Go's own transport sends a request again by itself when a reused connection
// turns out to be dead: one with a body if it can get the body again, which an
// Idempotency-Key makes it do for a POST too; one without a body always. A
// request that nobody counted would make a client's account of its tries wrong.
// So a request with a body is sent without a way to get the body again, which
// lets it use connections that are kept alive; a request without a body gets a
// connection of its own. That is a round trip more for each look-up, which is
// rare beside submissions and, with a wait, much longer than the round trip.
//
// A kept connection that the server has closed in the meantime looks like a lost
// answer, since nobody can tell the two apart. Connections are kept for less
// time than servers keep them, so that this is rare.
type Transport struct {
	kept, single *http.Transport
}

const (
	maxIdlePerHost = 64
	idleTimeout    = 30 * time.Second
	maxHeader      = 1 << 20
)

// NewTransport returns a transport that goes by the proxies of the environment.
func NewTransport() *Transport {
	return &Transport{kept: newHTTP(true), single: newHTTP(false)}
}

func newHTTP(keep bool) *http.Transport {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, Protocols: http1, DisableKeepAlives: !keep,
		MaxIdleConns: 4 * maxIdlePerHost, MaxIdleConnsPerHost: maxIdlePerHost, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// RoundTrip sends one request. The error matches [ErrNotSent] where no
// connection was made; after any other error the request may have arrived. A
// change of protocol (101) is such an error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var sent atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	once := req.WithContext(ctx) // a copy: the caller's request stays as it is
	once.GetBody = nil
	via := t.kept
	if once.Body == nil || once.Body == http.NoBody {
		via = t.single
	}
	resp, err := via.RoundTrip(once)
	switch {
	case err != nil && !sent.Load():
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	case err == nil && resp.StatusCode == http.StatusSwitchingProtocols:
		// Its body is the bare connection, which no context ends: whoever read
		// it would wait for as long as the server likes.
		_ = resp.Body.Close()
		return nil, errors.New("the server changed the protocol, which nobody asked for")
	}
	return resp, err
}

// CloseIdleConnections closes what is kept and not in use.
func (t *Transport) CloseIdleConnections() {
	t.kept.CloseIdleConnections()
	t.single.CloseIdleConnections()
}
