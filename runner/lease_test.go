package runner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// A tool that takes five times its lease keeps it: one attempt, never due (R11).
func TestLeaseIsRenewed(t *testing.T) {
	for _, name := range []string{"local", "rerun", "hold"} {
		t.Run(name, func(t *testing.T) {
			shared(t, func(t *testing.T, a, b *world) {
				tool := a.actor(name)
				tool.does(takes(5 * time.Second))
				a.answer(intent{"k", tool, ""}, 0)
				for range 49 {
					time.Sleep(100 * time.Millisecond)
					due, err := a.model.Due(context.Background(), 0)
					if err != nil || len(due) > 0 {
						t.Fatalf("due: %+v, %v", due, err)
					}
				}
				time.Sleep(time.Second)
				a.want("k", "succeeded 1")
				a.wantTrail("k", "created claimed succeeded")
				if n := a.spy.renewals(); n < 14 || n > 16 {
					t.Errorf("renewed %d times", n)
				}
				equal(t, "attempts", tool.attempts(), 1)
			}, lease(time.Second))
		})
	}
}

// A process that is paused for longer than its lease loses the call to another.
// What it says when it wakes up is dropped and noted (R6).
func TestTakeOver(t *testing.T) {
	tests := []struct {
		name  string
		stand string // the call, once the other process had its turn
		trail string
	}{
		{"none", "succeeded 2", "created claimed recovered claimed succeeded stale_result"},
		{"rerun", "succeeded 2", "created claimed recovered claimed succeeded stale_result"},
		{"verify", "held 1 outcome_unknown", "created claimed recovered held stale_result"},
		{"hold", "held 1 outcome_unknown", "created claimed recovered held stale_result"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shared(t, func(t *testing.T, a, b *world) {
				tool := a.actor(tt.name)
				tool.does(ignores(500 * time.Millisecond))
				a.answer(intent{"k", tool, ""}, 0)
				a.want("k", "running 1")
				resume := a.spy.block()
				time.Sleep(10 * time.Second)
				a.want("k", tt.stand)
				resume()
				synctest.Wait()
				a.want("k", tt.stand)
				a.wantTrail("k", tt.trail)
				equal(t, "stale results", a.counts().StaleResults, 1)
				equal(t, "stale results of the other", b.counts().StaleResults, 0)
				equal(t, "due", len(mustDue(t, a)), 0)
			}, lease(time.Second))
		})
	}
}

func mustDue(t *testing.T, w *world) []idem.Due {
	t.Helper()
	due, err := w.model.Due(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return due
}

// A process that finds its lease gone stops its attempt, but settles nothing.
func TestLostLeaseStopsTheAttempt(t *testing.T) {
	shared(t, func(t *testing.T, a, b *world) {
		var ended atomic.Int64
		a.rerun.does(then(func(ctx context.Context, _ idem.Invocation) (idem.Result, error) {
			<-ctx.Done()
			ended.Add(1)
			return idem.Result{}, ctx.Err()
		}, takes(5*time.Second)))
		a.answer(intent{"k", a.rerun, ""}, 0)
		resume := a.spy.block()
		time.Sleep(2 * time.Second) // b has it
		a.want("k", "running 2")
		resume()
		time.Sleep(time.Second)
		equal(t, "attempts that were stopped", ended.Load(), 1)
		a.want("k", "running 2")
		time.Sleep(5 * time.Second)
		a.want("k", "succeeded 2")
		a.wantTrail("k", "created claimed recovered claimed stale_result succeeded")
		equal(t, "effects", a.effects(), 1)
	}, lease(time.Second), timeout(time.Hour))
}

// A renewal that fails for another reason than the loss of the lease does not
// end the attempt: the lease is lost only when somebody else takes the call.
func TestRenewalMayFail(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(takes(5 * time.Second))
		var failed atomic.Int64
		w.spy.set(func(s *spy) {
			s.renewing = func(idem.Key, idem.Lease) error {
				if failed.Add(1) <= 2 {
					return errInjected
				}
				return nil
			}
		})
		w.answer(intent{"k", w.hold, ""}, 0)
		time.Sleep(6 * time.Second)
		w.want("k", "succeeded 1")
	}, lease(3*time.Second))
}

// A lease that another process has found to be over, and that its holder then
// renewed, is not taken: the tool would be at work twice.
func TestRenewedAfterItWasFound(t *testing.T) {
	for _, name := range []string{"rerun", "hold"} {
		t.Run(name, func(t *testing.T) {
			shared(t, func(t *testing.T, a, b *world) {
				tool, began := a.actor(name), time.Now()
				tool.does(takes(6 * time.Second))
				a.spy.set(func(s *spy) {
					s.renewing = func(idem.Key, idem.Lease) error {
						if time.Since(began) < 3500*time.Millisecond {
							return errInjected
						}
						return nil
					}
				})
				var found atomic.Bool
				b.spy.set(func(s *spy) {
					s.looked = func() {
						if !found.Load() && len(mustDue(t, b)) > 0 {
							found.Store(true)
							time.Sleep(1500 * time.Millisecond) // a renewal comes through meanwhile
						}
					}
				})
				a.answer(intent{"k", tool, ""}, 0)
				time.Sleep(7 * time.Second)
				if !found.Load() {
					t.Error("the lease was never found to be over")
				}
				a.want("k", "succeeded 1")
				a.wantTrail("k", "created claimed succeeded")
				equal(t, "attempts", tool.attempts(), 1)
			}, lease(3*time.Second))
		})
	}
}

// A renewal that hangs keeps neither the result nor the time-out back.
func TestRenewalMayHang(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(takes(2500 * time.Millisecond))
		stuck := make(chan struct{})
		defer close(stuck)
		w.spy.set(func(s *spy) {
			s.updated = func(idem.Key, idem.Change) { s.set(func(s *spy) { s.updated, s.blocked = nil, stuck }) }
		})
		w.answer(intent{"k", w.hold, ""}, 0)
		time.Sleep(2 * time.Second)
		w.spy.set(func(s *spy) { s.blocked = nil }) // what hangs, hangs on
		time.Sleep(2 * time.Second)
		w.want("k", "succeeded 1")
	}, lease(3*time.Second))
}

// While an attempt's goroutine lives in this process its call is not due, even
// if no renewal gets through and the lease is over (R11).
func TestOwnCallIsNotDue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		tool := w.rerun
		tool.does(then(fails(true), takes(10*time.Second)))
		k := intent{"k", tool, ""}
		w.answer(k, long)
		w.spy.set(func(s *spy) { s.renewing = func(idem.Key, idem.Lease) error { return errInjected } })
		w.answer(k, 0)
		time.Sleep(5 * time.Second)
		equal(t, "due", len(mustDue(t, w)), 1)
		w.want("k", "running 2")
		time.Sleep(10 * time.Second)
		w.want("k", "succeeded 2")
		equal(t, "attempts", tool.attempts(), 2)
	}, lease(time.Second))
}

// The same when a client asks again so fast that the attempt before has not yet
// left.
func TestOwnCallIsNotDueAfterFastRequeue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(then(fails(true), takes(10*time.Second)))
		k := intent{"k", w.rerun, ""}
		w.spy.set(func(s *spy) {
			s.renewing = func(idem.Key, idem.Lease) error { return errInjected }
			s.updated = func(_ idem.Key, ch idem.Change) {
				if ch.After.Status == idem.StatusFailed {
					w.answer(k, 0)
				}
			}
		})
		w.answer(k, 0)
		time.Sleep(5 * time.Second)
		w.want("k", "running 2")
		time.Sleep(10 * time.Second)
		w.want("k", "succeeded 2")
		equal(t, "attempts", w.rerun.attempts(), 2)
	}, lease(time.Second))
}

// A wall clock that jumps by an hour, in either direction, changes windows and
// nothing else (R17).
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			var offset atomic.Int64
			bubble(t, func(t *testing.T, w *world) {
				w.rerun.does(takes(5 * time.Second))
				w.hold.does(hang)
				first := w.answer(intent{"before", w.local, ""}, long).Call
				running := w.later(intent{"running", w.rerun, ""}, long)
				timedOut := w.later(intent{"timed out", w.hold, ""}, long)
				time.Sleep(500 * time.Millisecond)
				began := time.Now()
				offset.Store(int64(jump))

				got := <-running
				equal(t, "answer", stands(got.Call), "succeeded 1")
				equal(t, "took", got.at.Sub(began), 4500*time.Millisecond)
				equal(t, "code", asError(t, (<-timedOut).err).Code, idem.CodeOutcomeUnknown)
				equal(t, "time-out", time.Since(began), 29500*time.Millisecond)

				second := w.answer(intent{"after", w.local, ""}, long).Call
				if !second.CreatedAt.After(first.CreatedAt) || second.ID.Time().Before(first.ID.Time()) {
					t.Fatalf("created at %v after %v", second.CreatedAt, first.CreatedAt)
				}
				if jump < 0 { // longer by the jump, never shorter
					time.Sleep(90 * time.Minute)
					equal(t, "verdict", w.answer(intent{"before", w.local, ""}, 0).Verdict, idem.VerdictReplayed)
				} else {
					w.refuse(intent{"before", w.local, ""}, 0, idem.CodeKeyExpired)
				}
			}, lease(time.Second), window(time.Hour), func(o *runnerOptions) {
				o.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
			})
		})
	}
}

// Ids and creation times never go back, over lives either, since they go on from
// the newest stored id (R17).
func TestTimeNeverGoesBack(t *testing.T) {
	var offset atomic.Int64
	bubble(t, func(t *testing.T, w *world) {
		var last idem.Call
		n := 0
		more := func() {
			for range 3 {
				n++
				c := w.answer(intent{string(rune('a' + n)), w.local, ""}, long).Call
				if !c.CreatedAt.After(last.CreatedAt) || c.ID.Time().Before(last.ID.Time()) || c.CreatedAt.Before(c.ID.Time()) {
					t.Fatalf("created at %v with an id of %v, after %v with an id of %v",
						c.CreatedAt, c.ID.Time(), last.CreatedAt, last.ID.Time())
				}
				last = c
			}
		}
		for _, at := range []time.Duration{0, -time.Hour, time.Hour, -48 * time.Hour, 0} {
			offset.Store(int64(at))
			more()
			w.crash()
			more()
		}
	}, window(365*24*time.Hour), func(o *runnerOptions) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	})
}
