package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// front is where a service of this package listens.
type front struct {
	mu  sync.Mutex
	url string
}

// start listens on a free port of 127.0.0.1 and has it served until the service is
// closed.
func (f *front) start(log *slog.Logger, serve func(*net.TCPListener) error) error {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	f.listens(l)
	go func() {
		if err := serve(l); err != nil {
			log.Error("the listener failed", "err", err)
		}
	}()
	return nil
}

// serve takes so many connections at once from l until the server is closed, and then
// returns nil.
func (f *front) serve(l *net.TCPListener, server *http.Server, maxConns int) error {
	f.listens(l)
	if err := server.Serve(newGate(l, maxConns)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

func (f *front) listens(l *net.TCPListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.url = "http://" + l.Addr().String()
}

// URL is where the service listens, as http://HOST:PORT; empty before it does.
func (f *front) URL() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.url
}
