package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

// nth fails the n-th update of key "k".
func nth(n int64) func(idem.Key) error {
	var count atomic.Int64
	return func(key idem.Key) error {
		if key == keyOf("k") && count.Add(1) == n {
			return errInjected
		}
		return nil
	}
}

// from fails every update of key "k" from the n-th to the last-th.
func from(n, last int64) func(idem.Key) error {
	var count atomic.Int64
	return func(key idem.Key) error {
		if c := count.Load() + 1; key == keyOf("k") {
			count.Store(c)
			if c >= n && c <= last {
				return errInjected
			}
		}
		return nil
	}
}

// A store that fails once keeps no call from its end and loses no answer: what
// could not be claimed is claimed later, and what could not be settled is
// settled at the next try.
func TestStoreFailsOnce(t *testing.T) {
	tests := []struct {
		name, tool string
		queued     bool
		fails      int64 // which update of the key
		stand      string
	}{
		{"claim", "rerun", true, 2, "succeeded 1"},
		{"claim of a call that may not rerun", "hold", true, 2, "succeeded 1"},
		{"args of a local tool", "local", true, 2, "succeeded 1"},
		{"claim and settlement of a local tool", "local", true, 3, "succeeded 1"},
		{"settlement", "none", false, 2, "succeeded 1"},
		{"settlement, rerun", "rerun", false, 2, "succeeded 1"},
		{"settlement, verify", "verify", false, 2, "succeeded 1"},
		{"settlement, hold", "hold", false, 2, "succeeded 1"},
		{"settlement after the queue", "hold", true, 3, "succeeded 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(tt.tool)
				if tt.queued {
					w.occupy(time.Second)
				}
				w.spy.set(func(s *spy) { s.updating = nth(tt.fails) })
				c := w.later(intent{"k", tool, ""}, 0)
				time.Sleep(2 * time.Second)
				if got := <-c; got.err != nil {
					t.Fatal(got.err)
				}
				time.Sleep(10 * time.Second) // a lease, and a poll
				w.want("k", tt.stand)
			}, workers(1), lease(5*time.Second))
		})
	}
}

// A settlement that cannot be written for long is given up, and its worker is
// free. What came of the attempt is lost then: R13 decides, and a tool that may
// run again is not dispatched over and over, but after longer and longer pauses.
func TestSettlementGivenUp(t *testing.T) {
	for name, stand := range map[string]string{
		"none": "succeeded 2", "rerun": "succeeded 2",
		"verify": "held 1 outcome_unknown", "hold": "held 1 outcome_unknown",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.spy.set(func(s *spy) { s.updating = from(2, 9) })
				w.answer(intent{"k", w.actor(name), ""}, 0)
				time.Sleep(7 * time.Second)
				equal(t, "free", w.r.Memory().Free, 1)
				w.want("k", "running 1")
				time.Sleep(20 * time.Second) // a lease, a pause and a poll
				w.want("k", stand)
			}, workers(1), lease(5*time.Second))
		})
	}
	t.Run("for ever", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			var dispatched atomic.Bool
			w.rerun.does(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
				dispatched.Store(true)
				return succeed(ctx, inv)
			})
			w.spy.set(func(s *spy) {
				s.updating = func(idem.Key) error {
					if dispatched.Load() {
						return errInjected
					}
					return nil
				}
			})
			w.answer(intent{"k", w.rerun, ""}, 0)
			for range 60 { // each time the claim works again
				time.Sleep(time.Minute)
				dispatched.Store(false)
			}
			if n := w.rerun.attempts(); n < 5 || n > 61 {
				t.Errorf("%d dispatches in an hour", n)
			}
			time.Sleep(8 * time.Second)
			w.spy.set(func(s *spy) { s.updating = nil })
			time.Sleep(3 * time.Minute)
			if c := w.call("k"); c.Status != idem.StatusSucceeded {
				t.Errorf("it is %s", stands(c))
			}
		}, workers(1), lease(5*time.Second))
	})
}

// Due calls that cannot be claimed, however many they are and for however long,
// keep no other call from its turn, are not tried in a loop, and are run once it
// works again.
func TestUnclaimable(t *testing.T) {
	for _, suspects := range []bool{false, true} {
		t.Run(fmt.Sprintf("suspects %v", suspects), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				const bad = 7
				w.rerun.does(hang)
				w.none.does(hang)
				if suspects { // each has had its first crash
					for i := range bad {
						w.answer(intent{fmt.Sprint("bad ", i), w.rerun, ""}, 0)
					}
				} else {
					w.occupy(time.Second)
					for i := range bad {
						w.answer(intent{fmt.Sprint("bad ", i), w.rerun, ""}, 0)
					}
				}
				synctest.Wait()
				start := w.die()
				w.rerun.does(succeed)
				w.none.does(succeed)
				var tries atomic.Int64
				w.troubled = func(s *spy) {
					s.updating = func(key idem.Key) error {
						if strings.HasPrefix(key.Name, "bad") {
							tries.Add(1)
							return errInjected
						}
						return nil
					}
				}
				start()
				w.answer(intent{"good", w.none, ""}, 0)
				time.Sleep(30 * time.Second)
				w.want("good", "succeeded 1")
				equal(t, "local", stands(w.answer(intent{"local", w.local, ""}, time.Second).Call), "succeeded 1")
				time.Sleep(time.Hour)
				if n := tries.Load(); n < bad*20 || n > bad*70 {
					t.Errorf("%d tries to claim %d calls in an hour", n, bad)
				}
				w.spy.set(func(s *spy) { s.updating = nil })
				time.Sleep(3 * time.Minute)
				for i := range bad {
					if c := w.call(fmt.Sprint("bad ", i)); c.Status != idem.StatusSucceeded {
						t.Errorf("%s is %s", c.Key.Name, stands(c))
					}
				}
			}, workers(map[bool]int{false: 2, true: 8}[suspects]), crashes(2))
		})
	}
}

// An abandoned attempt whose end could not be written settles its call with its
// late answer, as long as nobody has taken the call over.
func TestLateResultSettlesAfterAll(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(ignores(20 * time.Second))
		w.spy.set(func(s *spy) { s.updating = from(2, 9) })
		began := time.Now()
		got := <-w.later(intent{"k", w.hold, ""}, long)
		equal(t, "answer", stands(got.Call), "succeeded 1")
		equal(t, "took", got.at.Sub(began), 20*time.Second)
		equal(t, "abandoned", w.counts().Abandoned, 1)
		equal(t, "stale results", w.counts().StaleResults, 0)
	}, timeout(time.Second))
}

// A submission that the store fails is refused once, holds nothing, and leaves
// its key free.
func TestStoreFailsSubmission(t *testing.T) {
	for _, name := range []string{"local", "none", "hold"} {
		for _, wait := range []time.Duration{0, long} {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(name)
				w.spy.set(func(s *spy) { s.updating = func(idem.Key) error { return errInjected } })
				for range 5 {
					if _, err := w.post(intent{"k", tool, ""}, wait); !errors.Is(err, errInjected) {
						t.Fatal(err)
					}
				}
				equal(t, "refused", w.counts().Refused, 5)
				equal(t, "free", w.r.Memory().Free, 2)
				w.absent("k")
				w.spy.set(func(s *spy) { s.updating = nil })
				w.answer(intent{"k", tool, ""}, long)
				w.want("k", "succeeded 1")
			}, workers(2))
		}
	}
}

// A read that fails refuses what it was for and forgets nothing.
func TestReadsFail(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.occupy(time.Second)
		w.spy.set(func(s *spy) { s.totalsErr = errInjected })
		if _, err := w.post(intent{"k", w.none, ""}, 0); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		w.spy.set(func(s *spy) { s.totalsErr, s.dueErr = nil, errInjected })
		w.answer(intent{"k", w.none, ""}, 0)
		time.Sleep(5 * time.Second)
		w.want("k", "pending 0")
		w.spy.set(func(s *spy) { s.dueErr = nil })
		time.Sleep(10 * time.Second) // a poll
		w.want("k", "succeeded 1")
	}, workers(1))
}

// A runner that cannot start says so, and can be stopped.
func TestStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, set := range []func(*spy){
			func(s *spy) { s.newestErr = errInjected },
			func(s *spy) { s.heldErr = errInjected },
		} {
			s := &spy{Store: storetest.NewModel(storetest.ModelOptions{})}
			set(s)
			r, err := runner.New(s, runner.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Start(t.Context()); !errors.Is(err, errInjected) {
				t.Error(err)
			}
			r.Stop(t.Context())
		}
	})
}
