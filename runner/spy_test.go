package runner_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// spy is a store that counts what is committed, and that a test can hold up or
// let fail. Like a store with a disk it keeps a key to one change at a time until
// that is synced, and readers of the key wait for it.
type spy struct {
	idem.Store

	keys sync.Map // of idem.Key: chan struct{}, a lock that virtual time can wait for

	mu      sync.Mutex
	commits []idem.Change // those that wrote
	renewed int
	blocked chan struct{} // while not nil, changes and renewals wait for it

	// What reads fail with.
	totalsErr, dueErr, heldErr, newestErr error

	// Asked under mu, called outside of it. Each may be nil.
	updating func(key idem.Key) error                   // before an update; an error takes its place
	syncing  func(key idem.Key, ch idem.Change)         // while a change that is in the data is being synced
	updated  func(key idem.Key, ch idem.Change)         // it is synced and others see it, but its caller does not know yet
	renewing func(key idem.Key, lease idem.Lease) error // before a renewal; an error takes its place
	reading  func(key idem.Key)                         // before a call is read by its key
	counted  func()                                     // the totals are read, but not yet returned
	looked   func()                                     // what is due is read, but not yet returned
	seen     func(key idem.Key, ch idem.Change)         // an update wrote nothing, but its caller does not know yet
}

var errInjected = errors.New("injected")

func (s *spy) Update(ctx context.Context, key idem.Key, t idem.Transition) (idem.Change, error) {
	s.mu.Lock()
	before, syncing, after, seen, blocked := s.updating, s.syncing, s.updated, s.seen, s.blocked
	s.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	if before != nil {
		if err := before(key); err != nil {
			return idem.Change{}, err
		}
	}
	ch, err := s.sync(ctx, key, t, syncing)
	switch {
	case err != nil:
	case ch.Write && after != nil:
		after(key, ch)
	case !ch.Write && seen != nil:
		seen(key, ch)
	}
	return ch, err
}

// sync is an update with the time that its disk takes.
func (s *spy) sync(ctx context.Context, key idem.Key, t idem.Transition, syncing func(idem.Key, idem.Change)) (idem.Change, error) {
	defer s.lock(key)()
	ch, err := s.Store.Update(ctx, key, t)
	if err != nil || !ch.Write {
		return ch, err
	}
	s.mu.Lock()
	s.commits = append(s.commits, ch)
	s.mu.Unlock()
	if syncing != nil {
		syncing(key, ch)
	}
	return ch, nil
}

func (s *spy) lock(key idem.Key) (unlock func()) {
	c, _ := s.keys.LoadOrStore(key, make(chan struct{}, 1))
	c.(chan struct{}) <- struct{}{}
	return func() { <-c.(chan struct{}) }
}

func (s *spy) CallByKey(ctx context.Context, key idem.Key) (idem.Call, error) {
	s.mu.Lock()
	reading := s.reading
	s.mu.Unlock()
	if reading != nil {
		reading(key)
	}
	defer s.lock(key)()
	return s.Store.CallByKey(ctx, key)
}

func (s *spy) CallByID(ctx context.Context, ns idem.Namespace, id idem.CallID) (idem.Call, error) {
	c, err := s.Store.CallByID(ctx, ns, id)
	if err != nil {
		return c, err
	}
	defer s.lock(c.Key)()
	return s.Store.CallByID(ctx, ns, id)
}

func (s *spy) Totals(ctx context.Context) (idem.Totals, error) {
	s.mu.Lock()
	counted, err := s.counted, s.totalsErr
	s.mu.Unlock()
	if err != nil {
		return idem.Totals{}, err
	}
	totals, err := s.Store.Totals(ctx)
	if counted != nil {
		counted()
	}
	return totals, err
}

func (s *spy) Due(ctx context.Context, limit int, except ...string) ([]idem.Due, error) {
	s.mu.Lock()
	looked, err := s.looked, s.dueErr
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	due, err := s.Store.Due(ctx, limit, except...)
	if looked != nil {
		looked()
	}
	return due, err
}

func (s *spy) Held(ctx context.Context, limit int) ([]idem.Due, error) {
	if s.heldErr != nil {
		return nil, s.heldErr
	}
	return s.Store.Held(ctx, limit)
}

func (s *spy) Newest(ctx context.Context) (time.Time, error) {
	if s.newestErr != nil {
		return time.Time{}, s.newestErr
	}
	return s.Store.Newest(ctx)
}

func (s *spy) Renew(ctx context.Context, key idem.Key, lease idem.Lease, d time.Duration) error {
	s.mu.Lock()
	before, blocked := s.renewing, s.blocked
	s.renewed++
	s.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if before != nil {
		if err := before(key, lease); err != nil {
			return err
		}
	}
	return s.Store.Renew(ctx, key, lease, d)
}

// set changes the hooks.
func (s *spy) set(change func(*spy)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// block makes changes and renewals wait, as if the process were stopped, and
// returns what lets them go on.
func (s *spy) block() (resume func()) {
	c := make(chan struct{})
	s.set(func(s *spy) { s.blocked = c })
	return func() {
		s.set(func(s *spy) { s.blocked = nil })
		close(c)
	}
}

// writes is how often something was committed.
func (s *spy) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.commits)
}

func (s *spy) renewals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}
