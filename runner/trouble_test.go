package runner_test

import (
	"errors"
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

// A store that fails once keeps no call from its end: what could not be claimed
// is claimed later, and what could not be settled is due once its lease is over.
// R13 decides about the answer that was lost with it.
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
		{"settlement", "none", false, 2, "succeeded 2"},
		{"settlement, rerun", "rerun", false, 2, "succeeded 2"},
		{"settlement, verify", "verify", false, 2, "held 1 outcome_unknown"},
		{"settlement, hold", "hold", false, 2, "held 1 outcome_unknown"},
		{"settlement after the queue", "hold", true, 3, "held 1 outcome_unknown"},
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

// An abandoned attempt whose end could not be written settles its call with its
// late answer, as long as nobody has taken the call over.
func TestLateResultSettlesAfterAll(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(ignores(8 * time.Second))
		w.spy.set(func(s *spy) { s.updating = nth(2) })
		began := time.Now()
		got := <-w.later(intent{"k", w.hold, ""}, long)
		equal(t, "answer", stands(got.Call), "succeeded 1")
		equal(t, "took", got.at.Sub(began), 8*time.Second)
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
