package runner_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

func crashes(n int) options { return func(o *runnerOptions) { o.MaxCrashes = n } }

// After a crash nobody waits for a lease of the life before: what ran is decided
// at once, by what its tool promised (R11, R13).
func TestCrashWhileRunning(t *testing.T) {
	tests := []struct {
		name, stand, trail string
		crashes            int
	}{
		{"local", "succeeded 2", "created claimed recovered claimed succeeded", 0}, // R12: local tools are not counted
		{"none", "succeeded 2", "created claimed recovered claimed succeeded", 1},
		{"rerun", "succeeded 2", "created claimed recovered claimed succeeded", 1},
		{"verify", "held 1 outcome_unknown", "created claimed recovered held", 1},
		{"hold", "held 1 outcome_unknown", "created claimed recovered held", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(tt.name)
				tool.does(hang)
				k := intent{"k", tool, ""}
				w.answer(k, 0)
				w.want("k", "running 1")
				tool.does(succeed)
				began := time.Now()
				w.crash()
				synctest.Wait()
				equal(t, "waited", time.Since(began), 0)
				w.want("k", tt.stand)
				w.wantTrail("k", tt.trail)
				equal(t, "crashes", w.call("k").Crashes, tt.crashes)
				if tt.stand == "succeeded 2" {
					equal(t, "result", string(w.answer(k, 0).Call.Result), `{"attempt":2}`)
				} else {
					w.refuse(k, long, idem.CodeOutcomeUnknown)
					equal(t, "downstream saw", tool.attempts(), 1)
				}
			}, lease(30*time.Minute))
		})
	}
}

// A crash between a commit and its telling loses nothing: the same key gets the
// first result, and nobody has to ask for the call to run.
func TestCrashAfterCommit(t *testing.T) {
	for _, name := range []string{"local", "none", "rerun", "verify", "hold"} {
		for _, wait := range []time.Duration{0, long} {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(name)
				w.spy.set(func(s *spy) {
					s.syncing = func(_ idem.Key, ch idem.Change) {
						if ch.After.Status == idem.StatusSucceeded {
							time.Sleep(time.Hour)
						}
					}
				})
				w.later(intent{"k", tool, ""}, wait)
				synctest.Wait()
				w.crash()
				synctest.Wait()
				a := w.answer(intent{"k", tool, ""}, 0)
				equal(t, "verdict", a.Verdict, idem.VerdictReplayed)
				equal(t, "result", string(a.Call.Result), `{"attempt":1}`)
				time.Sleep(2 * time.Hour)
				equal(t, "attempts", tool.attempts(), 1)
			})
		}
	}
}

// An accepted call runs after a crash although nobody asks for it again.
func TestCrashWhilePending(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.occupy(time.Hour)
		for _, a := range w.actors() {
			w.answer(intent{a.Name, a, ""}, 0)
		}
		w.crash()
		synctest.Wait()
		for _, a := range w.actors() {
			w.want(a.Name, "succeeded 1")
			w.wantTrail(a.Name, "created recovered claimed succeeded")
			equal(t, "crashes", w.call(a.Name).Crashes, 0)
		}
	}, workers(1), timeout(2*time.Hour))
}

// poison kills the process whenever it runs; its seven neighbours take a second.
// A supervisor starts the process again, time after time.
func TestPoisonIsStopped(t *testing.T) {
	for _, name := range []string{"none", "rerun", "hold"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				var died atomic.Bool
				poison := w.actor(name)
				poison.does(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
					if string(inv.Args) != `{"poison":true}` {
						return takes(time.Second)(ctx, inv)
					}
					died.Store(true)
					return hang(ctx, inv)
				})
				neighbour := poison
				if name == "hold" {
					neighbour = w.rerun // a neighbour of tool hold would be held by the first death
					neighbour.does(takes(time.Second))
				}
				for i := range 7 {
					w.answer(intent{fmt.Sprint("neighbour ", i), neighbour, ""}, 0)
				}
				w.answer(intent{"poison", poison, `{"poison":true}`}, 0)
				deaths := 0
				for range 40 {
					synctest.Wait()
					if !died.Swap(false) {
						time.Sleep(time.Second)
						continue
					}
					deaths++
					// A submission that arrives in the new life runs in it,
					// but not beside a suspect.
					w.crash()
					w.answer(intent{fmt.Sprint("new ", deaths), w.none, ""}, 0)
				}
				if name == "hold" {
					w.want("poison", "held 1 outcome_unknown")
					equal(t, "deaths", deaths, 1)
				} else {
					w.want("poison", "failed 3 attempts_exhausted")
					equal(t, "deaths", deaths, 3)
					equal(t, "crashes", w.call("poison").Crashes, 3)
				}
				for i := range 7 {
					if c := w.call(fmt.Sprint("neighbour ", i)); c.Status != idem.StatusSucceeded {
						t.Errorf("a neighbour is %s", stands(c))
					}
				}
				for i := range deaths {
					w.want(fmt.Sprint("new ", i+1), "succeeded 1")
				}
				w.answer(intent{"afterwards", w.local, ""}, long)
			}, workers(8), crashes(3))
		})
	}
}

// A tool that may not run again is held at its last crash, too, after a person
// had it tried again.
func TestPoisonIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(hang)
		w.answer(intent{"k", w.hold, ""}, 0)
		for i, want := range []string{"held 1 outcome_unknown", "held 2 attempts_exhausted", "held 3 attempts_exhausted"} {
			w.crash()
			synctest.Wait()
			w.want("k", want)
			equal(t, "crashes", w.call("k").Crashes, i+1)
			if _, err := w.resolve("k", idem.OutcomeRetry); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			w.want("k", fmt.Sprintf("running %d", i+2))
		}
		w.crash()
	}, crashes(2))
}

// company sees what runs beside a call that may be poison.
type company struct {
	t        *testing.T
	mu       sync.Mutex
	running  int
	suspects int
}

// watched is an act that takes a while, and complains where a suspect has
// company.
func (c *company) watched(d time.Duration) act {
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		suspect := 0
		if string(inv.Args) == suspectArgs {
			suspect = 1
		}
		c.mu.Lock()
		c.running++
		c.suspects += suspect
		if c.suspects > 0 && c.running > 1 {
			c.t.Errorf("%d run beside a suspect", c.running-1)
		}
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			c.running--
			c.suspects -= suspect
			c.mu.Unlock()
		}()
		return takes(d)(ctx, inv)
	}
}

const suspectArgs = `{"suspect":true}`

// A call whose next crash would be its last runs alone: nothing is dispatched
// beside it, not from the queue, not a new call, not a local tool that its
// request waits for (R12).
func TestSuspectRunsAlone(t *testing.T) {
	tests := []struct {
		name string
		tool string
		// again makes the suspect, which has one crash out of two, due again.
		again func(w *world, suspect intent)
	}{
		{"left running by a crash", "rerun", func(w *world, suspect intent) {
			w.crash()
		}},
		{"asked for again", "rerun", func(w *world, suspect intent) {
			act := suspect.tool.act
			suspect.tool.does(fails(true))
			w.crash()
			synctest.Wait()
			w.want(suspect.key, "failed 2 tool_failed retryable")
			suspect.tool.does(act)
			w.busy()
			w.answer(suspect, 0)
		}},
		{"asked for again, waiting", "none", func(w *world, suspect intent) {
			act := suspect.tool.act
			suspect.tool.does(fails(true))
			w.crash()
			synctest.Wait()
			w.want(suspect.key, "failed 2 tool_failed retryable")
			suspect.tool.does(act)
			w.busy()
			w.later(suspect, long)
		}},
		{"asked for again, its tool being local now", "rerun", func(w *world, suspect intent) {
			act := suspect.tool.act
			suspect.tool.does(fails(true))
			w.crash()
			synctest.Wait()
			w.want(suspect.key, "failed 2 tool_failed retryable")
			w.r.Stop(context.Background())
			suspect.tool.Effects = idem.EffectsLocal
			w.crash()
			suspect.tool.does(act)
			w.busy()
			w.later(suspect, long)
		}},
		{"tried again by a person", "hold", func(w *world, suspect intent) {
			w.crash()
			synctest.Wait()
			w.want(suspect.key, "held 1 outcome_unknown")
			w.busy()
			if _, err := w.resolve(suspect.key, idem.OutcomeRetry); err != nil {
				w.t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				suspect := intent{"suspect", w.actor(tt.tool), suspectArgs}
				suspect.tool.does(hang)
				w.answer(suspect, 0)
				synctest.Wait()

				c := &company{t: t}
				for _, a := range w.actors() {
					a.does(c.watched(2 * time.Second))
				}
				tt.again(w, suspect)
				// More keeps arriving before, while and after it runs.
				var replies []<-chan reply
				for i := range 40 {
					replies = append(replies, w.later(intent{fmt.Sprint("local ", i), w.local, ""}, long))
					replies = append(replies, w.later(intent{fmt.Sprint("none ", i), w.none, ""}, long))
					time.Sleep(200 * time.Millisecond)
				}
				for _, c := range replies {
					equal(t, "answer", stands((<-c).Call), "succeeded 1")
				}
				if got := w.call(suspect.key); got.Status != idem.StatusSucceeded || got.Crashes != 1 {
					t.Errorf("the suspect is %s after %d crashes", stands(got), got.Crashes)
				}
			}, workers(4), crashes(2))
		})
	}
}

// The same for a local tool that its request waits for, when nothing else has
// to wait.
func TestLocalToolNotBesideSuspect(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(hang)
		w.answer(intent{"suspect", w.rerun, suspectArgs}, 0)
		synctest.Wait()
		c := &company{t: t}
		w.rerun.does(c.watched(2 * time.Second))
		w.local.does(c.watched(time.Millisecond))
		w.crash()
		synctest.Wait()
		w.want("suspect", "running 2")
		for i := range 5 {
			w.later(intent{fmt.Sprint(i), w.local, ""}, long)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		w.want("4", "succeeded 1")
	}, crashes(2))
}

// busy has three calls running.
func (w *world) busy() {
	for i := range 3 {
		w.answer(intent{fmt.Sprint("busy ", i), w.none, ""}, 0)
	}
	synctest.Wait()
}

// What could not be drained at a clean stop is given back and is no crash; what
// may not run again is held (R12).
func TestStopGivesBack(t *testing.T) {
	for _, does := range []string{"obeys", "is deaf", "is done in time", "fails in time"} {
		for name, want := range map[string]string{
			"local": "pending 1", "none": "pending 1", "rerun": "pending 1",
			"verify": "held 1 outcome_unknown", "hold": "held 1 outcome_unknown",
		} {
			t.Run(does+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					tool := w.actor(name)
					free := make(chan struct{})
					defer close(free)
					switch does {
					case "obeys":
						tool.does(hang)
					case "is deaf":
						tool.does(waitsFor(free))
					case "is done in time":
						tool.does(after(500*time.Millisecond, succeed))
						want = "succeeded 1"
					case "fails in time":
						tool.does(after(500*time.Millisecond, fails(true)))
						want = "failed 1 tool_failed retryable"
					}
					w.answer(intent{"k", tool, ""}, 0)
					w.answer(intent{"k", tool, ""}, 0)
					began := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					defer cancel()
					w.r.Stop(ctx)
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("stopping took %v", took)
					}
					w.want("k", want)
					equal(t, "deliveries", w.call("k").Deliveries, 2)
					w.checkRest()
					tool.does(succeed)
					w.crash()
					synctest.Wait()
					if want == "pending 1" {
						w.want("k", "succeeded 2")
						w.wantTrail("k", "created claimed requeued recovered claimed succeeded")
					} else {
						w.want("k", want)
					}
					equal(t, "crashes", w.call("k").Crashes, 0)
				}, timeout(time.Hour))
			})
		}
	}
}

// Once it has stopped, a runner writes nothing more: the store may be closed.
func TestNothingIsWrittenAfterStop(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(waitsFor(free))
		w.answer(intent{"deaf", w.rerun, ""}, 0)
		w.hold.does(lost)
		w.answer(intent{"held", w.hold, ""}, 0)
		synctest.Wait()
		w.r.Stop(over())
		w.want("deaf", "pending 1")
		writes := w.writes(func() {
			close(free)
			w.refuse(intent{"new", w.local, ""}, long, idem.CodeUnavailable)
			_, err := w.resolve("held", idem.OutcomeSucceeded)
			equal(t, "code", asError(t, err).Code, idem.CodeUnavailable)
			time.Sleep(time.Hour)
		})
		equal(t, "commits", writes, 0)
	})
}

// Stop may be called twice, at once, and before Start.
func TestStopTwice(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Second))
		w.answer(intent{"k", w.rerun, ""}, 0)
		done := make(chan struct{})
		for range 2 {
			go func() { w.r.Stop(context.Background()); done <- struct{}{} }()
		}
		<-done
		w.want("k", "succeeded 1")
		<-done
	})
}

// A call whose tool is gone from the configuration: failed and retryable where
// it was never dispatched, else what the tool had promised decides (R14).
func TestToolIsGone(t *testing.T) {
	tests := []struct {
		name, pending, running string
	}{
		{"local", "failed 0 tool_missing retryable", "failed 1 tool_missing retryable"},
		{"none", "failed 0 tool_missing retryable", "failed 1 tool_missing retryable"},
		{"rerun", "failed 0 tool_missing retryable", "failed 1 tool_missing retryable"},
		{"verify", "failed 0 tool_missing retryable", "held 1 outcome_unknown"},
		{"hold", "failed 0 tool_missing retryable", "held 1 outcome_unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.actor(tt.name)
				tool.does(hang)
				w.answer(intent{"running", tool, ""}, 0)
				synctest.Wait()
				w.answer(intent{"pending", tool, ""}, 0)
				tools := w.o.Tools
				w.crash(func(o *runnerOptions) { o.Tools = nil })
				synctest.Wait()
				w.want("pending", tt.pending)
				w.want("running", tt.running)
				// A known key cannot be opened again without its tool, and a new
				// one cannot be made.
				a := w.answer(intent{"pending", tool, ""}, long)
				equal(t, "answer", stands(a.Call), tt.pending)
				w.refuse(intent{"new", tool, ""}, 0, idem.CodeBadRequest)
				// Once it is back it can.
				tool.does(succeed)
				w.crash(func(o *runnerOptions) { o.Tools = tools })
				a = w.answer(intent{"pending", tool, ""}, long)
				equal(t, "answer", stands(a.Call), "succeeded 1")
			}, workers(1))
		})
	}
}

// A tool that became stricter between two lives is taken at its stricter word.
func TestPromiseChanged(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(hang)
		w.answer(intent{"k", w.rerun, ""}, 0)
		stricter := newActor("rerun", idem.EffectsExternal, idem.RerunHold)
		w.crash(func(o *runnerOptions) { o.Tools = []*idem.Tool{stricter.Tool} })
		synctest.Wait()
		w.want("k", "held 1 outcome_unknown")
		equal(t, "attempts", stricter.attempts(), 0)
	})
}
