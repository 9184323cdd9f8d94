package runner

import (
	"sync"

	"github.com/idemd/idemd/idem"
)

// room is the bookkeeping of what may run and what may wait: workers, places in
// the queue, and which calls a goroutine of this process works on.
//
// A place or a worker is taken before a request is decided and given back when
// it turns out not to be needed, so that nothing is accepted that there is no
// room for, and a duplicate never needs any.
type room struct {
	mu      sync.Mutex
	free    []int // numbers of free workers
	workers int
	queue   int
	places  int // places in the queue that are reserved and not yet taken
	live    map[idem.CallID]struct{}

	// waiting says that calls may be due that nobody has dispatched. New calls
	// go behind them.
	waiting bool
	// alone says that a call that may be poison is running: nothing else is
	// dispatched beside it (R12).
	alone bool

	draining  bool
	abandoned int // attempts that were given up and have not returned
	limit     int // of abandoned, before workers are kept
	kept      int // workers that stay with such an attempt

	marks uint64        // how often something may have become due
	wake  chan struct{} // takes one signal to the dispatcher

	// busy counts what will still use the store: workers that are taken, and
	// late results being noted. Idle is signalled when it comes to 0; once
	// closed, nothing new begins.
	busy   int
	idle   *sync.Cond
	closed bool
}

func newRoom(s Settings) *room {
	m := &room{
		workers: s.Workers, queue: s.Queue, limit: s.MaxAbandoned,
		live: make(map[idem.CallID]struct{}), wake: make(chan struct{}, 1),
	}
	m.idle = sync.NewCond(&m.mu)
	for w := s.Workers; w > 0; w-- {
		m.free = append(m.free, w)
	}
	return m
}

// grant is what a request may take if it needs a write.
type grant struct {
	worker int  // a free worker, where not zero
	inline bool // to run a local tool itself and commit its end at once
	place  bool // a place in the queue
}

func (g grant) none() bool { return g == grant{} }

// reserve grants a worker where one is free and nobody is before the request,
// else a place in the queue, where pending says how long it is; else nothing.
//
// A request that waits for a local tool needs no worker: the tool is a pure
// function that the request's own goroutine runs. It only must not overtake the
// queue, nor run beside what may be poison.
func (m *room) reserve(pending int64, inline bool) grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.draining:
		return grant{}
	case inline && !m.waiting && !m.alone:
		m.busy++
		return grant{inline: true}
	case len(m.free) > 0 && !m.waiting && !m.alone:
		return grant{worker: m.take()}
	case pending+int64(m.places) < int64(m.queue):
		m.places++
		return grant{place: true}
	default:
		return grant{}
	}
}

// take takes a free worker. From here to release the runner does not stop.
func (m *room) take() (worker int) {
	n := len(m.free) - 1
	worker, m.free = m.free[n], m.free[:n]
	m.busy++
	return worker
}

// release gives a grant back, used or not. A worker that went on to run the
// call is released by its attempt instead.
func (m *room) release(g grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case g.place:
		m.places--
	case g.inline:
		m.done()
	case g.worker != 0:
		m.put(g.worker)
		m.done()
	}
}

func (m *room) done() {
	m.busy--
	if m.busy == 0 {
		m.idle.Broadcast()
	}
}

// wait waits until nothing is busy.
func (m *room) wait() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.busy > 0 {
		m.idle.Wait()
	}
}

// close waits until nothing is busy, and lets nothing begin after that.
func (m *room) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for m.busy > 0 {
		m.idle.Wait()
	}
}

// enter is for work on the store that has no worker. It reports false when the
// runner is stopping and the store may be gone; leave ends the work.
func (m *room) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.busy++
	return true
}

func (m *room) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done()
}

// put makes a worker free.
func (m *room) put(worker int) {
	m.free = append(m.free, worker)
	if m.waiting {
		m.signal()
	}
}

// mark says that something may be due.
func (m *room) mark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = true
	m.marks++
	m.signal()
}

func (m *room) signal() {
	select {
	case m.wake <- struct{}{}:
	default: // the dispatcher has one coming
	}
}

func (m *room) drain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
}

func (m *room) running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live)
}

// begin says that a goroutine of this process works on a call from now on: the
// call is not due, whatever its lease says (R11).
func (m *room) begin(id idem.CallID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[id] = struct{}{}
}

// end says that the goroutine is done with the call and its worker is free.
func (m *room) end(id idem.CallID, worker int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(id)
	m.put(worker)
	m.done()
}

func (m *room) forget(id idem.CallID) {
	delete(m.live, id)
	m.alone = m.alone && len(m.live) > 0
}

// abandon says that an attempt was given up while its tool still runs. Its
// worker is free, unless too many have been given up: then it stays with the
// tool, and abandon reports that.
func (m *room) abandon(id idem.CallID, worker int) (kept bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(id)
	m.done()
	m.abandoned++
	if kept = m.abandoned > m.limit; kept {
		m.kept++
	} else {
		m.put(worker)
	}
	return kept
}

// returned says that the tool of an attempt that was given up has returned
// after all.
func (m *room) returned(worker int, kept bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned--
	if kept {
		m.kept--
		m.put(worker)
	}
}

// look begins a look for due calls: how many are to be looked at, those in hand
// included, and which marks the look covers.
func (m *room) look() (limit int, marks uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.draining || m.alone || len(m.free) == 0 {
		return 0, 0, false
	}
	return len(m.free) + len(m.live) + 1, m.marks, true
}

// next takes a due call in hand and takes a worker for it. It reports no more
// where nothing else can be dispatched now.
func (m *room) next(d idem.Due, suspect bool) (worker int, taken, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, inHand := m.live[d.ID]; inHand {
		return 0, false, true
	}
	idle := len(m.free) + m.kept
	if m.draining || m.alone || len(m.free) == 0 || suspect && idle < m.workers {
		// The calls behind a suspect wait, too: it would never get its turn
		// while others keep the workers busy.
		m.waiting = true
		return 0, false, false
	}
	m.live[d.ID] = struct{}{}
	m.alone = suspect
	return m.take(), true, true
}

// clear says that a look found nothing left to dispatch.
func (m *room) clear(marks uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marks == marks {
		m.waiting = false
	}
}
