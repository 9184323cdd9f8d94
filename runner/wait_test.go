package runner_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// Fifty requests for one key while its tool takes two seconds: one call, one
// attempt, and everybody gets its end (R2, R3).
func TestManyWaitForOneCall(t *testing.T) {
	for _, name := range []string{"local", "none", "rerun", "hold"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(name)
				tool.does(takes(2 * time.Second))
				began := time.Now()
				var replies []<-chan reply
				for range 50 {
					replies = append(replies, w.later(intent{"k", tool, ""}, long))
				}
				verdicts := make(map[idem.Verdict]int)
				for _, c := range replies {
					got := <-c
					if got.err != nil {
						t.Fatal(got.err)
					}
					verdicts[got.Verdict]++
					equal(t, "answer", stands(got.Call), "succeeded 1")
					equal(t, "result", string(got.Call.Result), `{"attempt":1}`)
					equal(t, "deliveries", got.Call.Deliveries, 50)
					equal(t, "took", got.at.Sub(began), 2*time.Second)
				}
				equal(t, "created", verdicts[idem.VerdictCreated], 1)
				equal(t, "joined", verdicts[idem.VerdictJoined], 49)
				equal(t, "deliveries", w.call("k").Deliveries, 50)
				equal(t, "calls", w.calls(), 1)
				equal(t, "attempts", tool.attempts(), 1)
				if name != "none" {
					equal(t, "effects", w.effects(), 1)
				}
				c := w.answer(intent{"k", tool, ""}, 0).Call
				equal(t, "deliveries after a replay", c.Deliveries, 50)
			})
		})
	}
}

// Parallel requests for one new key: nobody is refused because it lost the race,
// and a quick local tool is not run for each of them.
func TestParallelNewKey(t *testing.T) {
	for _, wait := range []time.Duration{0, long} {
		for _, n := range []int{12, 64} {
			bubble(t, func(t *testing.T, w *world) {
				var replies []<-chan reply
				for range n {
					replies = append(replies, w.later(intent{"k", w.local, ""}, wait))
				}
				for _, c := range replies {
					if got := <-c; got.err != nil {
						t.Fatal(got.err)
					}
				}
				synctest.Wait()
				w.want("k", "succeeded 1")
				equal(t, "calls", w.calls(), 1)
				equal(t, "effects", w.effects(), 1)
				if wait > 0 {
					// One who looked before the commit and leads after it runs the tool
					// once more, for nothing.
					if runs := w.local.attempts(); runs > 3 {
						t.Errorf("the tool was run %d times for %d requests", runs, n)
					}
					equal(t, "commits", w.spy.writes(), 1)
				}
			})
		}
	}
}

// When the time is up the call is given as it is, and runs on.
func TestWaitTimeUp(t *testing.T) {
	for _, name := range []string{"local", "none", "rerun"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(name)
				tool.does(takes(5 * time.Second))
				began := time.Now()
				a := w.answer(intent{"k", tool, ""}, time.Second)
				equal(t, "answer", stands(a.Call), "running 1")
				equal(t, "took", time.Since(began), time.Second)
				a = w.answer(intent{"k", tool, ""}, time.Second)
				equal(t, "verdict", a.Verdict, idem.VerdictJoined)
				equal(t, "took", time.Since(began), 2*time.Second)
				a = w.answer(intent{"k", tool, ""}, 100*time.Millisecond)
				equal(t, "deliveries", a.Call.Deliveries, 3)
				time.Sleep(3 * time.Second)
				w.want("k", "succeeded 1")
				equal(t, "attempts", tool.attempts(), 1)
			})
		})
	}
}

// A short wait for a slow local tool is short.
func TestShortWaitForLocalTool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.local.does(takes(5 * time.Second))
		began := time.Now()
		a := w.answer(intent{"k", w.local, ""}, 10*time.Millisecond)
		equal(t, "took", time.Since(began), 10*time.Millisecond)
		equal(t, "answer", stands(a.Call), "running 1")
		time.Sleep(5 * time.Second)
		w.want("k", "succeeded 1")
		equal(t, "attempts", w.local.attempts(), 1)
	}, workers(1))
}

// A wait is answered with the first end after it began, even if the call was
// asked for again since.
func TestWaitSeesTheFirstEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		next := make(chan struct{})
		defer close(next)
		w.none.does(then(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
			time.Sleep(time.Second)
			return fails(true)(ctx, inv)
		}, waitsFor(next)))
		k := intent{"k", w.none, ""}

		// Held up between its commit and its telling, so that the requeue is
		// there before the waiters know of the end.
		requeued := make(chan reply, 1)
		var requeuer <-chan reply
		w.spy.set(func(s *spy) {
			s.updated = func(_ idem.Key, ch idem.Change) {
				if ch.After.Status != idem.StatusFailed {
					return
				}
				s.set(func(s *spy) { s.updated = nil })
				requeuer = w.later(k, long)
				time.Sleep(time.Millisecond)
				a, err := w.post(k, 0)
				requeued <- reply{Answer: a, err: err}
			}
		})
		first, second := w.later(k, long), w.later(k, long)
		read := make(chan idem.Call, 1)
		go func() {
			time.Sleep(500 * time.Millisecond)
			c, _ := w.r.CallByKey(context.Background(), keyOf("k"), long)
			read <- c
		}()
		for _, c := range []<-chan reply{first, second} {
			got := <-c
			if got.err != nil {
				t.Fatal(got.err)
			}
			equal(t, "answer", stands(got.Call), "failed 1 tool_failed retryable")
		}
		equal(t, "read", stands(<-read), "failed 1 tool_failed retryable")
		equal(t, "joined", (<-requeued).Verdict, idem.VerdictJoined)
		synctest.Wait()
		w.want("k", "running 2")
		mustBeSilent(t, requeuer) // the end that was told late is none of its

		// A wait that begins now is for the end that comes now.
		third := w.later(k, long)
		synctest.Wait()
		next <- struct{}{}
		equal(t, "answer", stands((<-third).Call), "succeeded 2")
		got := <-requeuer
		equal(t, "verdict", got.Verdict, idem.VerdictRequeued)
		equal(t, "answer", stands(got.Call), "succeeded 2")
	})
}

// An end that is told between the look at a record and the wait for it is not
// missed.
func TestWaitMissesNoEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(waitsFor(free))
		k := intent{"k", w.rerun, ""}
		w.answer(k, 0)
		w.spy.set(func(s *spy) {
			s.seen = func(_ idem.Key, ch idem.Change) {
				if ch.Verdict == idem.VerdictJoined {
					close(free)
					time.Sleep(time.Millisecond) // it ends and is told
				}
			}
		})
		began := time.Now()
		a := w.answer(k, long)
		equal(t, "answer", stands(a.Call), "succeeded 1")
		equal(t, "took", time.Since(began), time.Millisecond)
	})
}

// A wait that sees its call being held is refused, and says which call it is.
// A wait by a read goes on to the next end.
func TestWaitSeesHeld(t *testing.T) {
	for _, name := range []string{"hold", "verify"} {
		bubble(t, func(t *testing.T, w *world) {
			tool := w.actor(name)
			tool.does(func(context.Context, idem.Invocation) (idem.Result, error) {
				time.Sleep(time.Second)
				return idem.Result{}, errNoIdea
			})
			k := intent{"k", tool, ""}
			waits := []<-chan reply{w.later(k, long), w.later(k, long)}
			synctest.Wait()
			read := make(chan idem.Call, 1)
			go func() {
				c, _ := w.r.Call(context.Background(), idem.DefaultNamespace, w.call("k").ID, long)
				read <- c
			}()
			for _, c := range waits {
				e := asError(t, (<-c).err)
				equal(t, "code", e.Code, idem.CodeOutcomeUnknown)
				equal(t, "call", e.CallID, w.call("k").ID)
				equal(t, "effect", e.Effect, idem.DoubtUnknown)
			}
			time.Sleep(time.Second)
			select {
			case c := <-read:
				t.Fatalf("a read stopped waiting at %s", stands(c))
			default:
			}
			if _, err := w.resolve("k", idem.OutcomeSucceeded); err != nil {
				t.Fatal(err)
			}
			c := <-read
			equal(t, "read", stands(c), "succeeded 1")
			equal(t, "deliveries", c.Deliveries, 2)
		})
	}
}

// A client that goes away ends its wait and nothing else (R15).
func TestClientGoesAway(t *testing.T) {
	for _, name := range []string{"local", "none", "rerun", "verify", "hold"} {
		for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, time.Second} {
			t.Run(name+" "+after.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					tool := w.actor(name)
					tool.does(takes(3 * time.Second))
					ctx, cancel := context.WithTimeout(context.Background(), after)
					defer cancel()
					if after == 0 {
						cancel()
					}
					_, err := w.submit(ctx, idem.Submission{Request: intent{"k", tool, ""}.request(), Wait: long})
					if !errors.Is(err, ctx.Err()) {
						t.Fatalf("error %v, want %v", err, ctx.Err())
					}
					time.Sleep(4 * time.Second)
					w.want("k", "succeeded 1")
					equal(t, "attempts", tool.attempts(), 1)
				})
			})
		}
	}
}

// Waits end, with the calls as they are, when the process stops.
func TestStopEndsWaits(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Hour))
		running := w.later(intent{"running", w.rerun, ""}, 2*time.Hour)
		synctest.Wait()
		pending := w.later(intent{"pending", w.rerun, ""}, 2*time.Hour)
		synctest.Wait()
		read := make(chan idem.Call, 1)
		go func() {
			c, _ := w.r.CallByKey(context.Background(), keyOf("pending"), 2*time.Hour)
			read <- c
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		w.r.Stop(ctx)
		synctest.Wait()
		if took := time.Since(began); took > 2*time.Second {
			t.Fatalf("stopping took %v", took)
		}
		for _, c := range []<-chan reply{running, pending} {
			select {
			case got := <-c:
				if got.err != nil || got.Call.Status.Ended() {
					t.Fatalf("call %s, error %v", stands(got.Call), got.err)
				}
			default:
				t.Fatal("a wait outlives the process")
			}
		}
		equal(t, "read", stands(<-read), "pending 0")

		// A wait that begins after that does not wait.
		a := w.answer(intent{"pending", w.rerun, ""}, long)
		equal(t, "verdict", a.Verdict, idem.VerdictJoined)
	}, workers(1), timeout(3*time.Hour))
}

// Reads show the deliveries that are not stored yet, and never count any twice,
// also in the moment in which they are being stored.
func TestDeliveriesAreCountedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Second))
		k := intent{"k", w.rerun, ""}
		w.answer(k, 0)
		w.answer(k, 0)
		equal(t, "joined", w.answer(k, 0).Call.Deliveries, 3)
		w.refuse(intent{"k", w.rerun, `{"n":2}`}, 0, idem.CodeConflict)
		read := func() int64 {
			c, err := w.r.CallByKey(context.Background(), keyOf("k"), 0)
			if err != nil {
				t.Fatal(err)
			}
			return c.Deliveries
		}
		equal(t, "read", read(), 4)
		equal(t, "stored", w.call("k").Deliveries, 1)
		var during, replayed int64
		w.spy.set(func(s *spy) {
			s.updated = func(_ idem.Key, ch idem.Change) {
				if ch.After.Status == idem.StatusSucceeded {
					during = read()
					replayed = w.answer(k, 0).Call.Deliveries
				}
			}
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		equal(t, "read between the commit and its telling", during, 4)
		equal(t, "replayed between the commit and its telling", replayed, 4)
		equal(t, "read after the end", read(), 4)
		equal(t, "stored", w.call("k").Deliveries, 4)
	})
}
