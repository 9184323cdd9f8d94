package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/idem"
)

// The table against a list that is sorted anew for every question.
func TestLiveTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLive()
		naive := make(map[idem.Key]idem.Due)
		t.Repeat(map[string]func(*rapid.T){
			"move": func(t *rapid.T) {
				n := rapid.IntRange(0, 30).Draw(t, "n")
				k := keyOf(fmt.Sprint(n))
				c := &idem.Call{
					ID: idOf(k, n), Key: k, Tool: fmt.Sprint("tool ", n%3), CreatedAt: testStart.Add(time.Duration(n%10) * time.Second),
					Status: rapid.SampledFrom(idem.Statuses[:]).Draw(t, "status"), Attempt: rapid.IntRange(1, 3).Draw(t, "attempt"),
				}
				lease := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "lease")
				l.apply(c, lease)
				old, known := naive[k]
				if delete(naive, k); c.Status.Ended() {
					return
				}
				d := dueOf(c)
				leased := lease > 0 || known && old.Lease() == d.Lease() && old.Recovered
				d.Recovered = c.Status == idem.StatusRunning && leased // here: has a lease
				naive[k] = d
			},
			"": func(t *rapid.T) {
				limit := rapid.IntRange(0, 12).Draw(t, "limit")
				except := rapid.SliceOf(rapid.SampledFrom([]string{"tool 0", "tool 1", "tool 2", "no tool"})).Draw(t, "except")
				compare(t, "due", l.dueNow(limit, except), naive, limit, func(d idem.Due) bool {
					return (d.Status == idem.StatusPending || d.Status == idem.StatusRunning && !d.Recovered) && !slices.Contains(except, d.Tool)
				})
				compare(t, "held", l.heldNow(limit), naive, limit, func(d idem.Due) bool { return d.Status == idem.StatusHeld })
			},
		})
	})
}

func compare(t *rapid.T, what string, got []idem.Due, all map[idem.Key]idem.Due, limit int, is func(idem.Due) bool) {
	t.Helper()
	var want []idem.CallID
	var sorted []idem.Due
	for _, d := range all {
		if is(d) {
			sorted = append(sorted, d)
		}
	}
	slices.SortFunc(sorted, older)
	for _, d := range first(sorted, limit) {
		want = append(want, d.ID)
	}
	var ids []idem.CallID
	for _, d := range got {
		ids = append(ids, d.ID)
	}
	if !slices.Equal(ids, want) {
		t.Fatalf("%s, limit %d: %v, want %v", what, limit, ids, want)
	}
}

// What is gone does not pile up, whichever end it goes from.
func TestQueueLetsGo(t *testing.T) {
	var l = newLive()
	call := func(i int, s idem.Status) *idem.Call {
		k := keyOf(fmt.Sprint(i))
		return &idem.Call{ID: idOf(k, i), Key: k, CreatedAt: testStart.Add(time.Duration(i)), Status: s}
	}
	for i := range 10_000 {
		l.apply(call(i, idem.StatusPending), 0)
	}
	for i := range 9_990 {
		l.apply(call((i*7)%9_990, idem.StatusSucceeded), 0)
	}
	if n := len(l.pending[""].entries); n > 200 || len(l.calls) != 10 {
		t.Fatalf("%d entries for %d calls", n, len(l.calls))
	}
	if d := l.dueNow(1, nil); d[0].ID != call(9_990, "").ID {
		t.Fatal(d)
	}
}

func TestLocks(t *testing.T) {
	l := newLocks()
	a := keyOf("a")
	ctx := context.Background()
	if err := l.acquire(ctx, a); err != nil {
		t.Fatal(err)
	}
	if !l.taken(a) || l.taken(keyOf("b")) {
		t.Fatal("the wrong one is held")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var order []int
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				mine := ctx
				if i != 2 {
					mine = context.Background()
				}
				if err := l.acquire(mine, a); err != nil {
					if i != 2 || !errors.Is(err, context.Canceled) {
						t.Error(i, err)
					}
					return
				}
				order = append(order, i) // under the lock
				l.release(a)
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		l.release(a)
		wg.Wait()
		if !slices.Equal(order, []int{0, 1, 3, 4}) {
			t.Errorf("the order was %v", order)
		}
	})
	if l.taken(a) || len(l.stripe(a).keys) != 0 {
		t.Error("something is left")
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := l.acquire(gone, a); !errors.Is(err, context.Canceled) || l.taken(a) {
		t.Error(err)
	}
}

// A waiter that leaves at the very moment its turn comes passes the lock on.
func TestLockIsNotLost(t *testing.T) {
	l := newLocks()
	k := keyOf("k")
	var wg sync.WaitGroup
	inside := 0
	for i := range 32 {
		wg.Go(func() {
			for n := range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if (i+n)%3 == 0 {
					go cancel()
				}
				if l.acquire(ctx, k) == nil {
					if inside++; inside != 1 {
						t.Error("two are inside")
					}
					inside--
					l.release(k)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if l.taken(k) {
		t.Error("the lock is held by nobody")
	}
}
