package httpapi

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// listener bounds how many connections are open at once, so that file handles
// do not run out silently. At the bound it says so in the log, and makes room
// for each newcomer by closing the connection that has been idle the longest:
// whoever only keeps connections must not shut out those who ask. Where none is
// idle, one newcomer waits here and the others in the kernel's backlog.
type listener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
	full   atomic.Bool // said so already
	log    *slog.Logger

	mu   sync.Mutex
	idle list.List // of *conn: nothing is being asked over it; the longest idle first
}

// minIdle is how long a connection is left alone in any case. A newcomer's
// request may be here and not read yet, and a client may be about to ask again.
const minIdle = 100 * time.Millisecond

func newListener(l net.Listener, n int, log *slog.Logger) *listener {
	return &listener{Listener: l, places: make(chan struct{}, n), closed: make(chan struct{}), log: log}
}

func (l *listener) Accept() (net.Conn, error) {
	// First the newcomer, then its place: nobody is closed for nobody.
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		_ = c.Close() // nobody will serve it
		return nil, err
	}
	return &conn{Conn: c, l: l, leave: sync.OnceFunc(l.leave)}, nil
}

// enter takes a place, as soon as there is one.
func (l *listener) enter() error {
	for {
		select {
		case l.places <- struct{}{}:
			return nil
		default:
		}
		if l.full.CompareAndSwap(false, true) {
			l.log.Warn("too many open connections; idle ones are closed, or new ones have to wait", "max", cap(l.places))
		}
		wait := l.evict(time.Now())
		if wait == 0 {
			continue // to take the place that has become free
		}
		timer := time.NewTimer(wait)
		select {
		case l.places <- struct{}{}:
			timer.Stop()
			return nil
		case <-l.closed:
			timer.Stop()
			return net.ErrClosed
		case <-timer.C:
		}
	}
}

// evict closes the connection that has been idle the longest, or says when to
// try again. What becomes idle later can be closed no sooner than that.
func (l *listener) evict(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.idle.Front()
	if first == nil {
		return minIdle
	}
	c := first.Value.(*conn)
	if wait := c.since.Add(minIdle).Sub(now); wait > 0 {
		return wait
	}
	l.idle.Remove(first)
	c.idle = nil
	// A request that arrives right now is lost, like every one that crosses the
	// end of a connection on its way.
	_ = c.Close()
	return 0
}

// changed is told every state of a connection.
func (l *listener) changed(c *conn, st http.ConnState, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.idle != nil {
		l.idle.Remove(c.idle)
		c.idle = nil
	}
	if st == http.StateNew || st == http.StateIdle {
		c.silent, c.since = st == http.StateNew, now
		c.idle = l.idle.PushBack(c)
	}
}

// closeSilent closes the connections over which nothing was ever asked.
func (l *listener) closeSilent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.idle.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); c.silent {
			_ = c.Close()
		}
	}
}

// leave gives a place back. Once it was more than half empty, a new warning is due.
func (l *listener) leave() {
	<-l.places
	if 2*len(l.places) < cap(l.places) {
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
	l     *listener
	leave func()

	// Under the listener's lock.
	idle   *list.Element // nil while something is being asked
	since  time.Time     // when it became idle
	silent bool          // nothing was ever asked
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
