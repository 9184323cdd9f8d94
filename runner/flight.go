package runner

import (
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// flights is what this process knows in memory of keys that are in use: who
// waits for the end of a call, how many deliveries are not stored yet, and which
// fault rides along. Joins and waits are served from here and cost no commit.
//
// A key has a flight only while it is in use, so memory follows the requests
// and attempts in progress, and not the calls that exist. Only deliveries that
// no write has taken along yet, and a fault that waits for its attempt, keep a
// flight longer, until their call is next written.
type flights struct {
	mu    sync.Mutex
	byKey map[idem.Key]*flight
}

type flight struct {
	key     idem.Key
	users   int    // requests and attempts that hold it
	rider   *rider // of a call that waits for its attempt
	waiters []*waiter

	// led is closed when the request that runs a local tool for the key has
	// come to a decision; nil where there is none.
	led chan struct{}

	// fresh deliveries came since the record was last written with them; of
	// these, taken are in the record from revision takenBy on, once that is
	// committed. Between a commit and the moment when the goroutine that made it
	// goes on, others see the record already: they must not count these twice.
	fresh   int64
	taken   int64
	takenBy int
}

func newFlights() *flights { return &flights{byKey: make(map[idem.Key]*flight)} }

// enter gets hold of a key's flight; leave lets it go.
func (fs *flights) enter(key idem.Key) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byKey[key]
	if f == nil {
		f = &flight{key: key}
		fs.byKey[key] = f
	}
	f.users++
	return f
}

func (fs *flights) leave(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.users--
	if f.users == 0 && f.fresh == 0 && f.rider == nil {
		delete(fs.byKey, f.key)
	}
}

// lead makes the caller the one request that runs a local tool for the key.
// Where another is at it already, lead waits until that has decided, at most for
// d, and reports false.
func (fs *flights) lead(f *flight, d time.Duration) bool {
	fs.mu.Lock()
	led := f.led
	if led == nil {
		f.led = make(chan struct{})
	}
	fs.mu.Unlock()
	if led == nil {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-led:
	case <-timer.C:
	}
	return false
}

// decided ends a lead.
func (fs *flights) decided(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	close(f.led)
	f.led = nil
}

// deliver adds n to the deliveries that are not stored yet.
func (fs *flights) deliver(f *flight, n int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.fresh += n
}

// unstored returns the deliveries that are not stored yet, for a change of the
// record cur that is to take them along. It and take belong in the critical
// section of the key.
func (fs *flights) unstored(f *flight, cur *idem.Call) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	revision := 0
	if cur != nil {
		revision = cur.Revision
	}
	f.fold(revision)
	return f.fresh
}

// take says that a revision of the record takes all deliveries along if it is
// committed.
func (fs *flights) take(f *flight, revision int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.taken, f.takenBy = f.fresh, revision
}

// stored says that a revision of the record is committed. It comes after the
// critical section of the key, and so it may be late: a later change may have
// taken deliveries along by now, and is not to lose its mark.
func (fs *flights) stored(f *flight, revision int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if revision >= f.takenBy {
		f.fold(revision)
	}
}

// fold lets go of what was taken. The revision of the record tells whether the
// commit happened.
func (f *flight) fold(revision int) {
	if f.takenBy != 0 && revision >= f.takenBy {
		f.fresh -= f.taken
	}
	f.taken, f.takenBy = 0, 0
}

// unsaved is what must be added to the deliveries that a record shows.
func (fs *flights) unsaved(c *idem.Call) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byKey[c.Key]
	switch {
	case f == nil:
		return 0
	case f.takenBy != 0 && c.Revision >= f.takenBy:
		return f.fresh - f.taken
	default:
		return f.fresh
	}
}

// kept returns some keys, at most n, that nobody uses and that are kept for what
// is yet to be stored, each with the number of its deliveries.
func (fs *flights) kept(n int) map[idem.Key]int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	some := make(map[idem.Key]int64)
	for key, f := range fs.byKey { // in random order
		if len(some) == n {
			break
		}
		if f.users == 0 {
			some[key] = f.fresh
		}
	}
	return some
}

// drop lets go of a key that is as kept said.
func (fs *flights) drop(key idem.Key, fresh int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byKey[key]; f != nil && f.users == 0 && f.fresh == fresh {
		delete(fs.byKey, key)
	}
}

// board puts a fault on a call that waits for its attempt; alight takes it.
func (fs *flights) board(f *flight, rd *rider) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.rider = rd
}

func (fs *flights) alight(f *flight) *rider {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	rd := f.rider
	f.rider = nil
	return rd
}

// unboard takes a fault off again that boarded for a decision that was not
// committed.
func (fs *flights) unboard(f *flight, rd *rider) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.rider == rd {
		f.rider = nil
	}
}

// waiter waits for the first end of a call after the record that it saw.
//
// It is put up before the record is looked at, since an end may be told between
// the look and the wait; it is armed with what was seen, since an end from
// before the look may be told late.
type waiter struct {
	at    int            // among the flight's waiters
	ch    chan idem.Call // takes one call
	held  bool           // stop at held, too
	armed bool
	call  idem.CallID // that was seen
	since int         // the revision that was seen
	early []idem.Call // told before the waiter was armed
	done  bool
}

// wait puts a waiter up. The caller must hold the flight until it is taken
// down.
func (fs *flights) wait(f *flight, held bool) *waiter {
	w := &waiter{ch: make(chan idem.Call, 1), held: held}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	w.at = len(f.waiters)
	f.waiters = append(f.waiters, w)
	return w
}

func (fs *flights) takeDown(f *flight, w *waiter) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	last := len(f.waiters) - 1
	f.waiters[w.at], f.waiters[last].at = f.waiters[last], w.at
	f.waiters[last] = nil
	f.waiters = f.waiters[:last]
}

// arm tells the waiter what was seen.
func (fs *flights) arm(w *waiter, seen *idem.Call) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	w.armed, w.call, w.since = true, seen.ID, seen.Revision
	for _, c := range w.early {
		w.tell(c)
	}
	w.early = nil
}

// publish tells everybody who waits for the key what became of its call. It
// must come after the commit (R4).
func (fs *flights) publish(c idem.Call) {
	c.Args = nil
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byKey[c.Key]
	if f == nil {
		return
	}
	for _, w := range f.waiters {
		if w.armed {
			w.tell(c)
		} else {
			w.early = append(w.early, c)
		}
	}
}

func (w *waiter) tell(c idem.Call) {
	if w.done || c.ID != w.call || c.Revision <= w.since || !c.Status.Ended() && (!w.held || c.Status != idem.StatusHeld) {
		return
	}
	w.done = true
	w.ch <- c
}
