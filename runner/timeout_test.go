package runner_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// after runs an act once the attempt's context has ended and a while has passed.
func after(d time.Duration, do act) act {
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		<-ctx.Done()
		time.Sleep(d)
		return do(ctx, inv)
	}
}

func contextError(ctx context.Context, _ idem.Invocation) (idem.Result, error) {
	return idem.Result{}, fmt.Errorf("downstream: %w", ctx.Err())
}

// A time-out ends the attempt's context. What the tool says within the grace
// counts; where it does not know, R13 decides (R14).
func TestTimeout(t *testing.T) {
	const retryable = "failed 1 tool_timeout retryable"
	const held = "held 1 tool_timeout"
	lostBy := map[string]string{"local": retryable, "none": retryable, "rerun": retryable, "verify": held, "hold": held}
	all := func(stand string) map[string]string {
		m := make(map[string]string)
		for name := range lostBy {
			m[name] = stand
		}
		return m
	}
	tests := []struct {
		name  string
		does  act
		ends  time.Duration // after it began
		stand map[string]string
	}{
		{"it was done after all", after(time.Second, succeed), 11 * time.Second, all("succeeded 1")},
		{"it was not done", after(time.Second, fails(false)), 11 * time.Second, all("failed 1 tool_failed")},
		{"it does not know", after(time.Second, contextError), 11 * time.Second, lostBy},
		{"it panics", after(time.Second, panics), 11 * time.Second, map[string]string{
			"local": "failed 1 tool_panic", "none": "failed 1 tool_panic", "rerun": "failed 1 tool_panic retryable",
			"verify": "held 1 tool_panic", "hold": "held 1 tool_panic",
		}},
		{"it is deaf", ignores(time.Minute), 15 * time.Second, lostBy},
	}
	for _, tt := range tests {
		for name, stand := range tt.stand {
			for _, way := range []string{"waiting", "free worker", "queued"} {
				t.Run(tt.name+"/"+name+"/"+way, func(t *testing.T) {
					bubble(t, func(t *testing.T, w *world) {
						tool := w.actor(name)
						tool.Timeout = 10 * time.Second
						tool.does(tt.does)
						wait := time.Duration(0)
						switch way {
						case "waiting":
							wait = long
						case "queued":
							w.occupy(time.Second)
						}
						c := w.later(intent{"k", tool, ""}, wait)
						if way == "queued" {
							time.Sleep(time.Second)
						}
						synctest.Wait()
						time.Sleep(tt.ends - time.Millisecond)
						synctest.Wait()
						if got := w.call("k").Status; got != idem.StatusRunning {
							t.Fatalf("%s just before its end", got)
						}
						time.Sleep(time.Millisecond)
						synctest.Wait()
						w.want("k", stand)
						<-c
						time.Sleep(time.Minute)
						synctest.Wait()
						w.want("k", stand) // whatever came late
					}, workers(1), timeout(time.Hour))
				})
			}
		}
	}
}

// occupy keeps one worker busy for a while.
func (w *world) occupy(d time.Duration) {
	w.t.Helper()
	w.none.mu.Lock()
	before := w.none.act
	w.none.act = ignores(d)
	w.none.mu.Unlock()
	w.answer(intent{fmt.Sprintf("occupier %v", time.Now()), w.none, ""}, 0)
	synctest.Wait()
	w.none.does(before)
}

// An attempt that does not stop is abandoned and counted. Its worker goes on
// with other calls, up to a bound; beyond it the worker stays with the tool
// until that returns.
func TestAbandonedAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(waitsFor(free))
		for i := range 6 {
			w.answer(intent{fmt.Sprint("deaf ", i), w.rerun, ""}, 0)
		}
		time.Sleep(time.Second)
		equal(t, "at work", w.rerun.attempts(), 4)
		time.Sleep(20 * time.Second) // 4 given up, 2 of their workers kept; the other 2 took the rest
		synctest.Wait()
		equal(t, "at work", w.rerun.attempts(), 6)
		equal(t, "abandoned", w.counts().Abandoned, 6)
		m := w.r.Memory()
		equal(t, "kept", m.Kept, 4)
		equal(t, "free", m.Free, 0)

		// No worker is left: new calls wait, and get one when a tool returns.
		a := w.later(intent{"waits", w.none, ""}, long)
		time.Sleep(long / 2)
		w.want("waits", "pending 0")
		close(free)
		equal(t, "answer", stands((<-a).Call), "succeeded 1")
		synctest.Wait()
		m = w.r.Memory()
		equal(t, "kept", m.Kept, 0)
		equal(t, "free", m.Free, 4)
		equal(t, "stale results", w.counts().StaleResults, 6)
		for i := range 6 {
			key := fmt.Sprint("deaf ", i)
			w.want(key, "failed 1 tool_timeout retryable")
			w.wantTrail(key, "created claimed failed stale_result")
		}
	}, workers(4), abandoned(2), timeout(time.Second))
}

// The result of an abandoned attempt never settles the attempt that runs since,
// whichever of them returns first (R6).
func TestLateResultOfAbandonedAttempt(t *testing.T) {
	for _, order := range []string{"while the next attempt runs", "after the next attempt has ended"} {
		for _, name := range []string{"none", "rerun"} {
			t.Run(name+"/"+order, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					first, second := make(chan struct{}), make(chan struct{})
					tool := w.actor(name)
					tool.does(then(waitsFor(first), waitsFor(second)))
					k := intent{"k", tool, ""}
					equal(t, "answer", stands(w.answer(k, long).Call), "failed 1 tool_timeout retryable")
					again := w.later(k, long)
					synctest.Wait()
					w.want("k", "running 2")
					if order == "while the next attempt runs" {
						close(first)
						synctest.Wait()
						w.want("k", "running 2")
						close(second)
					} else {
						close(second)
						synctest.Wait()
						w.want("k", "succeeded 2")
						close(first)
					}
					got := <-again
					equal(t, "answer", stands(got.Call), "succeeded 2")
					equal(t, "result", string(got.Call.Result), `{"attempt":2}`)
					synctest.Wait()
					equal(t, "stale results", w.counts().StaleResults, 1)
					equal(t, "result", string(w.answer(k, 0).Call.Result), `{"attempt":2}`)
				}, timeout(time.Minute))
			})
		}
	}
}

// Retries every half a second while a tool ignores its cancellation for three:
// each attempt settles itself or nothing.
func TestRetriesOfDeafTool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(then(ignores(3*time.Second), ignores(3*time.Second), ignores(3*time.Second), succeed))
		k := intent{"k", w.rerun, ""}
		var end idem.Call
		for !end.Status.Ended() || end.Retryable() {
			end = w.answer(k, 0).Call
			time.Sleep(500 * time.Millisecond)
		}
		equal(t, "end", stands(end), "succeeded 4")
		equal(t, "result", string(end.Result), `{"attempt":4}`)
		time.Sleep(time.Minute)
		w.want("k", "succeeded 4")
		equal(t, "effects", w.effects(), 1)
	}, lease(time.Second), timeout(time.Second), func(o *runnerOptions) { o.Grace = 500 * time.Millisecond })
}

// A late result of a held call is kept in the audit trail, for the person who
// decides it.
func TestLateResultOfHeldCall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(ignores(time.Minute))
		w.answer(intent{"k", w.hold, ""}, 0)
		time.Sleep(2 * time.Minute)
		w.want("k", "held 1 tool_timeout")
		w.wantTrail("k", "created claimed held stale_result")
		events, _ := w.r.Events(context.Background(), idem.DefaultNamespace, w.call("k").ID, 3, 1)
		equal(t, "detail", string(events[0].Detail), `{"outcome":"succeeded"}`)
		equal(t, "attempt", events[0].Attempt, 1)
		if _, err := w.resolve("k", idem.OutcomeSucceeded); err != nil {
			t.Fatal(err)
		}
		equal(t, "effects", w.effects(), 1)
	}, timeout(time.Second))
}

// A local tool that never returns holds nothing up for ever: not the request,
// not the worker, not the stop.
func TestDeafLocalTool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.local.does(waitsFor(free))
		began := time.Now()
		a := w.answer(intent{"fused", w.local, ""}, 3*time.Second)
		equal(t, "took", time.Since(began), 3*time.Second)
		equal(t, "answer", stands(a.Call), "running 1")
		w.answer(intent{"queued", w.local, ""}, 0)
		time.Sleep(time.Minute)
		w.want("fused", "failed 1 tool_timeout retryable")
		w.want("queued", "failed 1 tool_timeout retryable")
		w.answer(intent{"at the stop", w.local, ""}, 0)
		time.Sleep(time.Second)
		began = time.Now()
		w.r.Stop(over())
		equal(t, "stopping took", time.Since(began), time.Second)
		w.want("at the stop", "pending 1")
		close(free)
	}, workers(1), timeout(10*time.Second))
}

// Local tools that do not return do not pile up either, however many requests
// would run them.
func TestDeafLocalToolsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.local.does(waitsFor(free))
		for i := range 20 {
			w.answer(intent{fmt.Sprint(i), w.local, ""}, time.Second)
		}
		if n := w.local.attempts(); n > 4 {
			t.Errorf("%d run, want at most 2 that were given up and 2 at work", n)
		}
		close(free)
		time.Sleep(time.Second)
		equal(t, "deaf", w.r.Memory().Deaf, 0)
	}, workers(2), abandoned(2), timeout(time.Hour))
}

// A local tool may be over its time before it would have had to wait for a
// worker: that is a time-out like any other (R14).
func TestQuickTimeout(t *testing.T) {
	for _, way := range []string{"waiting", "queued"} {
		t.Run(way, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.local.does(hang)
				wait := long
				if way == "queued" {
					w.occupy(time.Second)
					wait = 0
				}
				w.answer(intent{"k", w.local, ""}, wait)
				time.Sleep(2 * time.Second)
				w.want("k", "failed 1 tool_timeout retryable")
			}, workers(1), timeout(100*time.Millisecond))
		})
	}
}

// An answer that is there when an attempt would be given up counts, even if the
// attempt was held up and sees both at once.
func TestAnswerAtTheLastMoment(t *testing.T) {
	for range 20 { // a choice between the two would take either
		bubble(t, func(t *testing.T, w *world) {
			// The time is over after 9 s and the grace after 14; a renewal takes from
			// 10 to 16.
			w.hold.does(ignores(15 * time.Second))
			w.spy.set(func(s *spy) {
				s.renewing = func(idem.Key, idem.Lease) error {
					time.Sleep(6 * time.Second)
					return nil
				}
			})
			w.answer(intent{"k", w.hold, ""}, 0)
			time.Sleep(time.Minute)
			w.want("k", "succeeded 1")
			equal(t, "stale results", w.counts().StaleResults, 0)
		}, timeout(9*time.Second), lease(30*time.Second))
	}
}

// The window of a call begins when it has ended, and not before its tool ran
// (R16).
func TestWindowBeginsAfterTheTool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ran := make(map[idem.CallID]time.Time)
		w.local.does(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
			res, err := takes(200*time.Millisecond)(ctx, inv)
			ran[inv.CallID] = time.Now()
			return res, err
		})
		w.occupy(time.Second)
		w.answer(intent{"queued", w.local, ""}, 0)
		time.Sleep(2 * time.Second)
		w.answer(intent{"waiting", w.local, ""}, long)
		for _, key := range []string{"queued", "waiting"} {
			c := w.call(key)
			if until := ran[c.ID].Truncate(time.Millisecond); c.EndedAt.Before(until) {
				t.Errorf("%s: it ended at %v, its tool ran until %v", key, c.EndedAt, until)
			}
			equal(t, "window", c.ExpiresAt.Sub(c.EndedAt), time.Hour)
		}
	}, workers(1), window(time.Hour))
}

// A local tool that was begun for a request and then got no attempt, because the
// call went another way, is told to stop, and counts as given up until it does.
func TestDroppedToolIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.local.does(then(waitsFor(free), succeed))
		c := w.later(intent{"k", w.local, ""}, long)
		synctest.Wait() // it has begun to run for attempt 1 of a call that is not there yet
		w.answer(intent{"k", w.local, ""}, 0)
		synctest.Wait()
		w.want("k", "succeeded 1")
		time.Sleep(time.Second) // it is not waited for any longer
		equal(t, "answer", stands((<-c).Call), "succeeded 1")
		equal(t, "given up", w.r.Memory().Deaf, 1)
		close(free)
		synctest.Wait()
		equal(t, "given up", w.r.Memory().Deaf, 0)
	})
}
