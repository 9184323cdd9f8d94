package kv

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/idemd/idemd/idem"
)

const stripes = 256

// locks is a lock per key, kept only while somebody has it: memory follows
// the keys in flight, not the keys ever seen.
//
// A stripe's mutex guards its map and nothing else. It is never held across
// I/O or a wait, so keys that share a stripe do not wait for each other.
type locks struct {
	seed    maphash.Seed
	stripes [stripes]stripe
}

type stripe struct {
	mu     sync.Mutex
	keys   map[idem.Key]*keyLock // taken ones
	grants uint64                // how often a lock of the stripe was given to somebody

	// absent was found to have no call when grants was absentAt and nobody had its
	// lock. Only who has a key's lock makes its call, so that this holds until
	// another lock of the stripe is given.
	absent   idem.Key
	absentAt uint64
}

// keyLock is a taken lock and who waits for it, in the order of arrival. A
// waiter's channel is closed when the lock has become its own.
type keyLock struct {
	waiters []chan struct{}
}

func newLocks() *locks {
	l := &locks{seed: maphash.MakeSeed()}
	for i := range l.stripes {
		l.stripes[i].keys = make(map[idem.Key]*keyLock)
	}
	return l
}

func (l *locks) stripe(key idem.Key) *stripe {
	return &l.stripes[maphash.Comparable(l.seed, key)%stripes]
}

// acquire takes the lock of a key, or returns the context's error.
func (l *locks) acquire(ctx context.Context, key idem.Key) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := l.stripe(key)
	s.mu.Lock()
	taken, ok := s.keys[key]
	if !ok {
		s.keys[key] = &keyLock{}
		s.grants++
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	taken.waiters = append(taken.waiters, turn)
	s.mu.Unlock()

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		s.leave(key, turn)
		return ctx.Err()
	}
}

// leave takes a waiter out of the line. If its turn came meanwhile, it passes
// the lock on.
func (s *stripe) leave(key idem.Key, turn chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.keys[key]
	if i := slices.Index(taken.waiters, turn); i >= 0 {
		taken.waiters = slices.Delete(taken.waiters, i, i+1)
		return
	}
	s.pass(key)
}

func (l *locks) release(key idem.Key) {
	s := l.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass(key)
}

// pass hands the lock to the next in line, or drops it. Under s.mu.
func (s *stripe) pass(key idem.Key) {
	taken := s.keys[key]
	if len(taken.waiters) == 0 {
		delete(s.keys, key)
		return
	}
	s.grants++
	next := taken.waiters[0]
	taken.waiters = taken.waiters[1:]
	close(next)
}

// taken reports whether somebody has the lock of a key now.
func (l *locks) taken(key idem.Key) bool {
	s := l.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.keys[key]
	return ok
}

// watch begins a look at a key without its lock. What is found is worth noting
// only if nobody has the lock, which it reports.
func (l *locks) watch(key idem.Key) (grants uint64, free bool) {
	s := l.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, taken := s.keys[key]
	return s.grants, !taken
}

// note says that the look that began with so many grants found no call.
func (l *locks) note(key idem.Key, grants uint64) {
	s := l.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent, s.absentAt = key, grants
}

// knownAbsent reports whether there is certainly no call of a key, to who has its
// lock: the only lock that was given since a look found none is the caller's.
func (l *locks) knownAbsent(key idem.Key) bool {
	s := l.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.absent == key && s.grants == s.absentAt+1
}
