package runner

import (
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// room is the bookkeeping of what may run and what may wait: workers, places in
// the queue, and which attempts a goroutine of this process works on.
//
// A place or a worker is taken before a request is decided and given back when
// it turns out not to be needed, so that nothing is accepted that there is no
// room for, and a duplicate never needs any. Until then the runner does not stop.
type room struct {
	mu     sync.Mutex
	free   []int // numbers of free workers
	places int   // places in the queue that are reserved and not yet taken
	live   map[hand]struct{}

	// waiting says that calls may be due that nobody has dispatched. New calls
	// go behind them.
	waiting bool
	// alone says that a call that may be poison is running: nothing else is
	// dispatched beside it (R12).
	alone bool

	shares map[string]*share // by tool

	draining  bool
	abandoned int                 // attempts that were given up and have not returned
	deaf      map[idem.CallID]int // the same, by call
	limit     int                 // of abandoned, before workers are kept
	kept      int                 // workers that stay with such an attempt

	// paused are due calls that could not be claimed: they are left alone for a
	// while, so that the calls behind them get their turn.
	paused map[idem.CallID]pause

	marks uint64        // how often something may have become due
	wake  chan struct{} // takes one signal to the dispatcher

	// busy counts what may still write: workers and places that are taken, local
	// tools that run in their request, decisions of people, and late results
	// being noted. Idle is signalled when it comes to 0; once closed, nothing
	// new begins.
	busy   int
	idle   *sync.Cond
	closed bool
}

// pause is how long a due call is left alone.
type pause struct {
	until time.Time
	next  time.Duration // the pause after this one
}

const (
	firstClaimPause = time.Second
	lastClaimPause  = time.Minute
)

// hand is an attempt that a goroutine of this process has in hand. The attempt
// belongs to it: a call may be asked for again, and be in hand again, before the
// goroutine of the attempt before has left.
type hand struct {
	id      idem.CallID
	attempt int
}

func newRoom(s Settings, tools map[string]*idem.Tool) *room {
	m := &room{
		limit: s.MaxAbandoned, wake: make(chan struct{}, 1), shares: newShares(tools),
		live: make(map[hand]struct{}), deaf: make(map[idem.CallID]int), paused: make(map[idem.CallID]pause),
	}
	m.idle = sync.NewCond(&m.mu)
	for w := s.Workers; w > 0; w-- {
		m.free = append(m.free, w)
	}
	return m
}

// grant is what a request may take if it needs a write.
type grant struct {
	worker int    // a free worker, where not zero
	tool   string // that the worker is for
	place  bool   // a place in the queue, if that is not full
}

// reserve grants a worker where one is free, the tool may run once more, and
// nobody is before the request; else a place in the queue; nothing while the
// runner drains. Places says how many are reserved with this one.
//
// The caller of a place has yet to look how many calls wait, and it must look
// afterwards: a call that is created from now on has its place reserved after
// this one and sees it, and one that was created before is seen by the look. So
// the queue is never longer than it may be, however many ask at once.
func (m *room) reserve(tool string) (g grant, places int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.draining:
	case len(m.free) > 0 && !m.waiting && !m.alone && m.shares[tool].open():
		g.worker, g.tool = m.take(), tool
		m.shares[tool].take()
	default:
		m.places++
		m.busy++
		g.place = true
	}
	return g, m.places
}

// take takes a free worker.
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
		m.done()
	case g.worker != 0:
		m.put(g.worker)
		m.giveBack(g.tool)
		m.done()
	}
}

// inline reports whether a request may run a local tool itself; leave ends it.
// It needs no worker, since the tool is a pure function and quick, but it must
// not overtake the queue nor run beside what may be poison. Tools that do not
// return cannot pile up here: nothing runs inline once too many have been given
// up.
//
// A request that does not wait runs its tool only where a worker would at once.
func (m *room) inline(waits bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !waits && len(m.free) == 0 {
		return false
	}
	if m.draining || m.waiting || m.alone || m.abandoned >= m.limit {
		return false
	}
	m.busy++
	return true
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

func (m *room) done() {
	m.busy--
	if m.busy == 0 {
		m.idle.Broadcast()
	}
	m.wakeWaiting()
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

// put makes a worker free. Done follows, and wakes the dispatcher.
func (m *room) put(worker int) { m.free = append(m.free, worker) }

// giveBack says that a call of the tool runs no more. Those that were kept back
// for it are due now.
func (m *room) giveBack(tool string) {
	if m.shares[tool].giveBack() {
		m.note()
	}
}

// mark says that something may be due.
func (m *room) mark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note()
}

func (m *room) note() {
	m.waiting = true
	m.marks++
	m.signal()
}

// wakeWaiting wakes the dispatcher where calls wait for a worker, or for nothing
// to be busy.
func (m *room) wakeWaiting() {
	if m.waiting {
		m.signal()
	}
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

// begin says that a goroutine of this process works on an attempt from now on:
// its call is not due, whatever its lease says (R11).
func (m *room) begin(h hand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[h] = struct{}{}
}

// end says that the goroutine is done with the attempt of a tool, and its worker
// is free.
func (m *room) end(h hand, tool string, worker int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(h)
	m.put(worker)
	m.giveBack(tool)
	m.done()
}

func (m *room) forget(h hand) {
	delete(m.live, h)
	m.alone = m.alone && len(m.live) > 0
}

// abandon says that an attempt was given up while its tool still runs. Its
// worker is free, unless too many have been given up: then it stays with the
// tool. Abandon returns the worker that was kept, or 0. The tool's share is not
// given back before it has returned: what it calls has the load still.
//
// What may be poison is not alone any more then, though it still runs: a tool
// that never returns would keep everything else waiting for ever. Should it end
// the process after all, its neighbours have one crash each.
func (m *room) abandon(h hand, worker int) (kept int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(h)
	m.abandoned++
	m.deaf[h.id]++
	if m.abandoned > m.limit {
		m.kept++
		kept = worker
	} else {
		m.put(worker)
	}
	m.done()
	return kept
}

// orphan says that a tool runs for which there is no attempt, and which was told
// to stop. It has no share, being a local one.
func (m *room) orphan(id idem.CallID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned++
	m.deaf[id]++
}

// returned says that a tool that was given up has returned after all: the tool of
// an attempt, or an orphan, which is named by nothing. The worker is the one that
// was kept for it, or 0.
func (m *room) returned(id idem.CallID, tool string, worker int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned--
	if m.deaf[id]--; m.deaf[id] == 0 {
		delete(m.deaf, id)
	}
	m.giveBack(tool)
	if worker != 0 {
		m.kept--
		m.put(worker)
		m.wakeWaiting()
	}
}

// atWork reports whether a tool that was given up is still at work on a call.
func (m *room) atWork(id idem.CallID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deaf[id] > 0
}

// look is one look for due calls.
type look struct {
	limit  int      // how many are to be looked at, those in hand and those left alone included
	except []string // tools of which nothing more can run now
	marks  uint64   // what the look covers
}

// look begins a look for due calls, if anything could be dispatched.
func (m *room) look() (l look, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.draining || m.alone || len(m.free) == 0 {
		return look{}, false
	}
	l = look{limit: len(m.free) + len(m.live) + len(m.paused) + 1, marks: m.marks}
	for tool, sh := range m.shares {
		if sh.look() {
			l.except = append(l.except, tool)
		}
	}
	return l, true
}

// idleTools begins a look for due calls of tools of which nothing runs, if something
// waits while others run: they are first then, or some tools whose calls take long
// would together keep all others waiting until their backlogs are gone.
func (m *room) idleTools() (l look, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.draining || m.alone || len(m.free) == 0 || !m.waiting {
		return look{}, false
	}
	l = look{limit: len(m.free) + len(m.live) + len(m.paused)}
	for tool, sh := range m.shares {
		if sh.taken > 0 {
			l.except = append(l.except, tool)
		}
	}
	return l, len(l.except) > 0
}

// next takes a due call in hand and takes a worker for it. It reports no more
// where nothing else can be dispatched now.
func (m *room) next(d idem.Due, suspect bool, now time.Time) (worker int, taken, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := handOf(d)
	_, inHand := m.live[h]
	if d.Status == idem.StatusRunning && !inHand {
		_, inHand = m.live[hand{d.ID, d.Attempt}] // its own lease is over
	}
	if inHand || now.Before(m.paused[d.ID].until) || m.shares[d.Tool].skip() {
		return 0, false, true
	}
	if m.draining || m.alone || len(m.free) == 0 || suspect && m.busy > m.places {
		// Requests that only take a place run nothing. The calls behind a suspect
		// wait, too: it would never get its turn while others keep the workers
		// busy.
		m.waiting = true
		return 0, false, false
	}
	m.live[h] = struct{}{}
	m.alone = suspect
	m.shares[d.Tool].take()
	return m.take(), true, true
}

// leaveAlone says that a call could not be claimed, or settled, and is not to be
// dispatched for a while; resume, that it could after all.
func (m *room) leaveAlone(id idem.CallID, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.paused[id]
	p.next = min(max(2*p.next, firstClaimPause), lastClaimPause)
	p.until = now.Add(p.next)
	m.paused[id] = p
}

func (m *room) resume(id idem.CallID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.paused, id)
}

// forgetPauses lets go of pauses that were over long ago: somebody else has taken
// the call, or it is still due and begins again with a short one.
func (m *room) forgetPauses(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, p := range m.paused {
		if now.Sub(p.until) > 2*lastClaimPause {
			delete(m.paused, id)
		}
	}
}

// handOf is the attempt that the claim of a due call begins.
func handOf(d idem.Due) hand { return hand{d.ID, d.Attempt + 1} }

// clear says that a look found nothing left to dispatch.
func (m *room) clear(marks uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marks == marks {
		m.waiting = false
		for _, sh := range m.shares {
			sh.clear()
		}
	}
}
