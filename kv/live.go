package kv

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// live is the calls without an end, and their leases. It moves after a commit
// has returned and under the lock of the call's key, so it is never ahead of
// the disk. After a restart it is rebuilt from the markers.
//
// Leases are monotonic: a jump of the wall clock ends none of them (R17).
type live struct {
	mu      sync.Mutex
	calls   map[idem.Key]*entry
	pending backlog
	held    queue
	running map[idem.Key]*entry

	// soonest is not later than the end of any lease in running, so that most
	// look-ups need not walk through them.
	soonest time.Time
}

// entry is a call as its last commit left it. A change replaces the entry, so
// that a queue may drop the old one whenever it likes.
type entry struct {
	due   idem.Due
	until time.Time // end of the lease, where it is running; it is due from then on
	gone  bool      // replaced; to be dropped by the queue it is in
}

func newLive() *live {
	return &live{calls: make(map[idem.Key]*entry), pending: make(backlog), running: make(map[idem.Key]*entry)}
}

func dueOf(c *idem.Call) idem.Due {
	return idem.Due{
		ID: c.ID, Key: c.Key, Tool: c.Tool, Status: c.Status,
		Attempt: c.Attempt, Crashes: c.Crashes, Owner: c.Owner, Effects: c.Effects,
		CreatedAt: c.CreatedAt,
	}
}

// recover puts in a call that an earlier life left. Where it is running, its
// lease is over now (R11).
func (l *live) recover(c *idem.Call) {
	e := &entry{due: dueOf(c), until: time.Now()}
	e.due.Recovered = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(e)
}

// apply takes over what a commit left of a call. A new lease
// begins now.
func (l *live) apply(c *idem.Call, lease time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.take(c.Key)
	if c.Status.Ended() {
		return
	}
	e := &entry{due: dueOf(c)}
	switch {
	case c.Status != idem.StatusRunning:
		e.due.Recovered = old != nil && old.due.Recovered
	case lease == 0 && old != nil && old.due.Lease() == e.due.Lease():
		// Only events were written.
		e.until, e.due.Recovered = old.until, old.due.Recovered
	default:
		e.until = time.Now().Add(lease)
	}
	l.put(e)
}

// put adds an entry. Under l.mu.
func (l *live) put(e *entry) {
	l.calls[e.due.Key] = e
	switch e.due.Status {
	case idem.StatusPending:
		l.pending.push(e)
	case idem.StatusHeld:
		l.held.push(e)
	case idem.StatusRunning:
		l.run(e)
	}
}

// run adds a running entry, or moves the end of its lease. Under l.mu.
func (l *live) run(e *entry) {
	if len(l.running) == 0 || e.until.Before(l.soonest) {
		l.soonest = e.until
	}
	l.running[e.due.Key] = e
}

// take removes the entry of a key. Under l.mu.
func (l *live) take(key idem.Key) *entry {
	e := l.calls[key]
	if e == nil {
		return nil
	}
	delete(l.calls, key)
	e.gone = true
	switch e.due.Status {
	case idem.StatusPending:
		l.pending.dropped(e)
	case idem.StatusHeld:
		l.held.dropped()
	case idem.StatusRunning:
		delete(l.running, key)
	}
	return e
}

// renew makes a lease last for d from now.
func (l *live) renew(key idem.Key, lease idem.Lease, d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.running[key]
	if e == nil || e.due.Lease() != lease {
		return idem.ErrLeaseLost
	}
	e.until = time.Now().Add(d)
	l.run(e)
	return nil
}

// lease is the end of a lease in wall time, for people, and whether it is held.
func (l *live) lease(key idem.Key, lease idem.Lease) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.running[key]
	if e == nil || e.due.Lease() != lease {
		return time.Time{}, false
	}
	return e.until.Round(0).UTC(), true
}

// dueNow returns the oldest calls that may be claimed, at most limit, all where
// it is 0; none of the tools in except.
func (l *live) dueNow(limit int, except []string) []idem.Due {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.pending.oldest(limit, except)
	late := l.late()
	if len(late) == 0 {
		return found
	}
	for _, d := range late {
		if !slices.Contains(except, d.Tool) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, older)
	return first(found, limit)
}

// late returns the running calls without a lease that is not over. Under l.mu.
func (l *live) late() []idem.Due {
	now := time.Now()
	if len(l.running) == 0 || now.Before(l.soonest) {
		return nil
	}
	var found []idem.Due
	l.soonest = time.Time{}
	for _, e := range l.running {
		if l.soonest.IsZero() || e.until.Before(l.soonest) {
			l.soonest = e.until
		}
		if !now.Before(e.until) {
			found = append(found, e.due)
		}
	}
	// With a lease that is over among them soonest is in the past, and the next
	// look walks again.
	if len(found) > 0 {
		l.soonest = time.Time{}
	}
	return found
}

func (l *live) heldNow(limit int) []idem.Due {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held.oldest(limit)
}

func older(a, b idem.Due) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), slices.Compare(a.ID[:], b.ID[:]))
}

func first(d []idem.Due, limit int) []idem.Due {
	if limit > 0 && len(d) > limit {
		return d[:limit]
	}
	return d
}

// backlog is the pending calls by tool, so that many of one tool are in nobody's
// way who looks for those of others.
type backlog map[string]*queue

func (b backlog) push(e *entry) {
	q := b[e.due.Tool]
	if q == nil {
		q = new(queue)
		b[e.due.Tool] = q
	}
	q.push(e)
}

// dropped is told that an entry is gone.
func (b backlog) dropped(e *entry) {
	q := b[e.due.Tool]
	if q.dropped(); len(q.entries) == 0 {
		delete(b, e.due.Tool)
	}
}

func (b backlog) oldest(limit int, except []string) []idem.Due {
	var found []idem.Due
	tools := 0
	for tool, q := range b {
		if slices.Contains(except, tool) {
			continue
		}
		if tools++; tools == 1 {
			found = q.oldest(limit)
		} else {
			found = append(found, q.oldest(limit)...)
		}
	}
	if tools > 1 {
		slices.SortFunc(found, older)
	}
	return first(found, limit)
}

// queue is entries, oldest first. Calls mostly come in at the end and go from
// the front, so a sorted slice is enough: what is gone stays until it is at the
// front, or until it is half of the slice.
type queue struct {
	entries []*entry
	gone    int
}

func (q *queue) push(e *entry) {
	at := len(q.entries)
	if at > 0 && older(q.entries[at-1].due, e.due) > 0 {
		at, _ = slices.BinarySearchFunc(q.entries, e, func(a, b *entry) int { return older(a.due, b.due) })
	}
	q.entries = slices.Insert(q.entries, at, e)
}

// dropped is told that one more entry is gone.
func (q *queue) dropped() {
	q.gone++
	for len(q.entries) > 0 && q.entries[0].gone {
		q.entries[0] = nil // the array outlives this; the entry must not
		q.entries = q.entries[1:]
		q.gone--
	}
	if q.gone > 64 && q.gone > len(q.entries)/2 {
		q.entries = slices.DeleteFunc(q.entries, func(e *entry) bool { return e.gone })
		q.gone = 0
	}
}

func (q *queue) oldest(limit int) []idem.Due {
	n := len(q.entries) - q.gone
	if limit > 0 {
		n = min(n, limit)
	}
	found := make([]idem.Due, 0, n)
	for _, e := range q.entries {
		if len(found) == n {
			break
		}
		if !e.gone {
			found = append(found, e.due)
		}
	}
	return found
}
