package kv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// That a key is known to have no call is believed by the next holder of its lock,
// and only if no other lock was given since the look began.
func TestKnownAbsent(t *testing.T) {
	k := keyOf("k")
	take := func(l *locks, key idem.Key) {
		t.Helper()
		if err := l.acquire(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	look := func(l *locks) {
		if grants, free := l.watch(k); free {
			l.note(k, grants)
		}
	}
	neighbour := func(l *locks) idem.Key {
		for i := 0; ; i++ {
			if n := keyOf(fmt.Sprint("n", i)); l.stripe(n) == l.stripe(k) {
				return n
			}
		}
	}
	for _, tc := range []struct {
		name string
		do   func(l *locks) // ends with the lock of k taken
		want bool
	}{
		{"looked, then taken", func(l *locks) { look(l); take(l, k) }, true},
		{"never looked", func(l *locks) { take(l, k) }, false},
		{"taken by somebody since", func(l *locks) { look(l); take(l, k); l.release(k); take(l, k) }, false},
		{"looked while somebody had it", func(l *locks) { take(l, k); look(l); l.release(k); take(l, k) }, false},
		{"taken and given back during the look", func(l *locks) {
			grants, _ := l.watch(k)
			take(l, k)
			l.release(k)
			l.note(k, grants)
			take(l, k)
		}, false},
		{"handed over from one that was there before", func(l *locks) {
			look(l)
			take(l, k)
			took := make(chan error, 1)
			go func() { took <- l.acquire(t.Context(), k) }()
			for waiting := 0; waiting == 0; {
				s := l.stripe(k)
				s.mu.Lock()
				waiting = len(s.keys[k].waiters)
				s.mu.Unlock()
			}
			l.release(k)
			if err := <-took; err != nil {
				t.Error(err)
			}
		}, false},
		{"a neighbour's lock since", func(l *locks) { look(l); n := neighbour(l); take(l, n); l.release(n); take(l, k) }, false},
		{"a look at a neighbour since", func(l *locks) {
			look(l)
			n := neighbour(l)
			grants, _ := l.watch(n)
			l.note(n, grants)
			take(l, k)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLocks()
			tc.do(l)
			if got := l.knownAbsent(k); got != tc.want {
				t.Errorf("known to be absent: %v, want %v", got, tc.want)
			}
			l.release(k)
		})
	}
}

// Many look a key up and then make its call, if there is none: one does (R2),
// whoever looked when.
func TestOneCreatesAfterAllLooked(t *testing.T) {
	s := openFS(t, vfs.NewMem())
	const keys, callers = 300, 8
	var created [keys]atomic.Int32
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range keys {
				k := keyOf(fmt.Sprint("k", i))
				for range 1 + caller%3 {
					if _, err := s.CallByKey(t.Context(), k); err != nil && !errors.Is(err, idem.ErrNotFound) {
						t.Error(err)
					}
				}
				create := submit(k, caller*keys+i)
				ch, err := s.Update(t.Context(), k, func(cur *idem.Call) (idem.Change, error) {
					if cur != nil {
						return idem.Change{Before: cur, After: cur}, nil
					}
					return create(cur)
				})
				switch {
				case err != nil:
					t.Error(err)
				case ch.Verdict == idem.VerdictCreated:
					created[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range created {
		if n := created[i].Load(); n != 1 {
			t.Fatalf("key %d was created %d times", i, n)
		}
	}
	checkDisk(t, s)
}
