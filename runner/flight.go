package runner

import (
	"sync"

	"github.com/idemd/idemd/idem"
)

// flights is what this process knows in memory of keys that are in use: who
// waits for the end of a call, how many deliveries are not stored yet, and which
// fault rides along. Joins and waits are served from here and cost no commit.
//
// A key has a flight only while it is in use, so memory follows the requests
// and attempts in progress, and not the calls that exist. Only deliveries that
// no write has taken along yet keep a flight longer, until their call is next
// written.
type flights struct {
	mu    sync.Mutex
	byKey map[idem.Key]*flight
}

type flight struct {
	key     idem.Key
	users   int    // requests and attempts that hold it
	unsaved int64  // deliveries since the record was last written with them
	rider   *rider // of a call that waits for its attempt
	waiters map[*waiter]struct{}
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
	if f.users == 0 && f.unsaved == 0 && f.rider == nil {
		delete(fs.byKey, f.key)
	}
}

// deliver adds n to the deliveries that are not stored yet.
func (fs *flights) deliver(f *flight, n int64) {
	fs.mu.Lock()
	f.unsaved += n
	fs.mu.Unlock()
}

func (fs *flights) unsaved(f *flight) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.unsaved
}

// deliveries is what must be added to a stored call's own number.
func (fs *flights) deliveries(key idem.Key) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byKey[key]; f != nil {
		return f.unsaved
	}
	return 0
}

// board puts a fault on a call that waits for its attempt; alight takes it.
func (fs *flights) board(f *flight, rd *rider) {
	fs.mu.Lock()
	f.rider = rd
	fs.mu.Unlock()
}

func (fs *flights) alight(f *flight) *rider {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	rd := f.rider
	f.rider = nil
	return rd
}

// waiter waits for the first end of a call after the record that it saw.
//
// It is put up before the record is looked at, since an end may be told between
// the look and the wait; it is armed with what was seen, since an end from
// before the look may be told late.
type waiter struct {
	ch    chan idem.Call // takes one call
	held  bool           // stop at held, too
	armed bool
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
	if f.waiters == nil {
		f.waiters = make(map[*waiter]struct{})
	}
	f.waiters[w] = struct{}{}
	return w
}

func (fs *flights) takeDown(f *flight, w *waiter) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(f.waiters, w)
}

// arm tells the waiter what was seen.
func (fs *flights) arm(w *waiter, seen *idem.Call) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	w.armed, w.since = true, seen.Revision
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
	for w := range f.waiters {
		if w.armed {
			w.tell(c)
		} else {
			w.early = append(w.early, c)
		}
	}
}

func (w *waiter) tell(c idem.Call) {
	if w.done || c.Revision <= w.since || !c.Status.Ended() && (!w.held || c.Status != idem.StatusHeld) {
		return
	}
	w.done = true
	w.ch <- c
}
