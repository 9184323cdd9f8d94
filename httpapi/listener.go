package httpapi

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
)

// listener bounds how many connections are open at once, so that file handles
// do not run out silently: at the bound it stops accepting, says so in the log,
// and newcomers wait in the kernel's backlog.
type listener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
	full   atomic.Bool // said so already
	log    *slog.Logger
}

func newListener(l net.Listener, n int, log *slog.Logger) *listener {
	return &listener{Listener: l, places: make(chan struct{}, n), closed: make(chan struct{}), log: log}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	default:
		if l.full.CompareAndSwap(false, true) {
			l.log.Warn("too many open connections; new ones have to wait", "max", cap(l.places))
		}
		select {
		case l.places <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	c, err := l.Listener.Accept()
	if err != nil {
		l.leave()
		return nil, err
	}
	return &conn{Conn: c, leave: sync.OnceFunc(l.leave)}, nil
}

// leave gives a place back. Half empty again is worth a new warning.
func (l *listener) leave() {
	<-l.places
	if len(l.places) <= cap(l.places)/2 {
		l.full.Store(false)
	}
}

// Close also wakes an Accept that waits for a place.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type conn struct {
	net.Conn
	leave func()
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
