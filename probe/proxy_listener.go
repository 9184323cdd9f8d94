package probe

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// gate is a listener that lets only so many connections in at once; the others
// wait in the kernel's backlog.
type gate struct {
	*net.TCPListener
	places chan struct{}
	closed chan struct{}
	close  func() error
}

func newGate(l *net.TCPListener, places int) *gate {
	g := &gate{TCPListener: l, places: make(chan struct{}, places), closed: make(chan struct{})}
	g.close = sync.OnceValue(func() error {
		close(g.closed)
		return l.Close()
	})
	return g
}

// Accept waits for a place, then for a connection.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case g.places <- struct{}{}:
	case <-g.closed:
		return nil, net.ErrClosed
	}
	leave := sync.OnceFunc(func() { <-g.places })
	c, err := g.AcceptTCP()
	if err != nil {
		leave()
		return nil, err
	}
	return &guest{TCPConn: c, leave: leave}, nil
}

// Close ends Accept, also one that waits for a place.
func (g *gate) Close() error { return g.close() }

// guest is a connection that gives its place back when it is closed.
type guest struct {
	*net.TCPConn
	leave func()
	spent atomic.Bool
}

// Read reads nothing more once the connection is spent.
func (g *guest) Read(b []byte) (int, error) {
	if g.spent.Load() {
		return 0, io.EOF
	}
	return g.TCPConn.Read(b)
}

// spend says that nothing more is to be read: a request was not read to its end,
// and its rest must not be taken for the next one. The server can still write its
// answer, and then closes the connection.
func (g *guest) spend() { g.spent.Store(true) }

// guestKey is where the context of a request has its connection.
type guestKey struct{}

func (g *guest) Close() error {
	defer g.leave()
	return g.TCPConn.Close()
}
