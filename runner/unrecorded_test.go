package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

// looking runs a test in virtual time with a tool that keeps no record.
func looking(t *testing.T, test func(t *testing.T, w *world, look *actor), tweak func(*idem.Tool), opts ...options) {
	t.Helper()
	look := newActor("look", idem.EffectsNone, idem.RerunYes)
	look.Unrecorded = true
	if tweak != nil {
		tweak(look.Tool)
	}
	bubble(t, func(t *testing.T, w *world) {
		test(t, w, look)
		synctest.Wait()
		if t.Failed() {
			return
		}
		if n := w.spy.writes(); n != 0 {
			t.Errorf("%d writes", n)
		}
		w.noRuns(look)
	}, append(opts, func(o *runner.Options) { o.Tools = append(o.Tools, look.Tool) })...)
}

// noRuns checks that nothing of a run is left once its tool has returned.
func (w *world) noRuns(look *actor) {
	w.t.Helper()
	time.Sleep(48 * time.Hour)
	synctest.Wait()
	if named, turns := w.r.Runs(look.Name); named != 0 || turns != 0 {
		w.t.Errorf("%d runs and %d turns are left", named, turns)
	}
}

func turns(n int) func(*idem.Tool)                { return func(t *idem.Tool) { t.Concurrency = n } }
func brief(d time.Duration) func(*idem.Tool)      { return func(t *idem.Tool) { t.Timeout = d } }
func both(a, b func(*idem.Tool)) func(*idem.Tool) { return func(t *idem.Tool) { a(t); b(t) } }

// gaveUp checks an answer that tells a failure.
func gaveUp(t *testing.T, a idem.Answer, want string) {
	t.Helper()
	if got := stands(a.Call); !a.Unrecorded || got != "failed 1 "+want {
		t.Fatalf("%+v is %q, want %q", a, got, want)
	}
}

func TestUnrecorded(t *testing.T) {
	t.Run("runs, and keeps nothing", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(echo)
			for _, key := range []string{"", "k", "k"} {
				a := w.answer(intent{key: key, tool: look}, 0)
				if !a.Unrecorded || a.Replayed() || a.Call.Status != idem.StatusSucceeded || string(a.Call.Result) != `{"n":1}` || !a.Call.ID.IsZero() {
					t.Fatalf("%q: %+v", key, a)
				}
			}
			w.absent("k")
			equal(t, "runs", look.attempts(), 3)
			equal(t, "counts", w.counts(), idem.Counts{Deliveries: 3, Created: 3})
		}, nil)
	})

	t.Run("the trace goes along", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			s := idem.Submission{Request: intent{key: "k", tool: look}.request(), Trace: "00-x"}
			if _, err := w.submit(context.Background(), s); err != nil {
				t.Fatal(err)
			}
			inv := look.invocations()[0]
			if inv.Trace != "00-x" || inv.Attempt != 1 || inv.EffectID != "" || !inv.CallID.IsZero() {
				t.Fatalf("%+v", inv)
			}
		}, nil)
	})

	// R3: equal requests are one, while it is there.
	t.Run("equal requests share a run", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			first := w.later(intent{key: "k", tool: look}, 0)
			synctest.Wait()
			second := w.later(intent{key: "k", tool: look, args: ` {"n": 1.0}`}, time.Minute)
			a, b := <-first, <-second
			if a.err != nil || b.err != nil || a.Replayed() || !b.Replayed() || string(a.Call.Result) != string(b.Call.Result) || !a.at.Equal(b.at) {
				t.Fatalf("%+v\n%+v", a, b)
			}
			equal(t, "runs", look.attempts(), 1)
			equal(t, "checks", look.checks(), 1)
			w.answer(intent{key: "k", tool: look}, 0) // it is over
			equal(t, "runs", look.attempts(), 2)
			equal(t, "counts", w.counts(), idem.Counts{Deliveries: 3, Created: 2, Joined: 1})
		}, nil)
	})

	t.Run("without a key nothing is shared", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			first, second := w.later(intent{tool: look}, 0), w.later(intent{tool: look}, 0)
			if a, b := <-first, <-second; a.err != nil || b.err != nil || a.Replayed() || b.Replayed() {
				t.Fatalf("%+v\n%+v", a, b)
			}
			equal(t, "runs", look.attempts(), 2)
		}, nil)
	})

	// R3
	t.Run("another request under the key of a run is in conflict", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			first := w.later(intent{key: "k", tool: look}, 0)
			synctest.Wait()
			if e := w.refusal(intent{key: "k", tool: look, args: badArgs}, 0, idem.CodeConflict); e.Effect == idem.DoubtUnknown {
				t.Fatalf("%+v", e)
			}
			if a := <-first; a.err != nil {
				t.Fatal(a.err)
			}
			w.answer(intent{key: "k", tool: look, args: `{"n":2}`}, 0)
			equal(t, "counts", w.counts(), idem.Counts{Deliveries: 3, Created: 2, Conflicts: 1})
		}, nil)
	})

	t.Run("args that do not fit", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			w.refuse(intent{key: "k", tool: look, args: badArgs}, 0, idem.CodeInvalidArguments)
			if e := w.refusal(intent{key: "k", tool: look, args: panicArgs}, 0, idem.CodeInternal); e.Effect != idem.DoubtNone {
				t.Fatalf("%+v", e)
			}
			equal(t, "runs", look.attempts(), 0)
			equal(t, "counts", w.counts(), idem.Counts{Deliveries: 2, Refused: 2})
		}, nil)
	})

	t.Run("the store cannot be read", func(t *testing.T) {
		look := newActor("look", idem.EffectsNone, idem.RerunYes)
		look.Unrecorded = true
		r, err := runner.New(blind{storetest.NewModel(storetest.ModelOptions{Exclusive: true})}, runner.Options{Tools: []*idem.Tool{look.Tool}})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(key string) error {
			_, err := r.Submit(context.Background(), idem.Submission{Request: intent{key: key, tool: look}.request()})
			return err
		}
		if err := ask("k"); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		if err := ask(""); err != nil { // there is nothing to look up
			t.Fatal(err)
		}
		s, err := r.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "counts", s.ByTool["look"], idem.Counts{Deliveries: 2, Created: 1, Refused: 1})
		r.Stop(context.Background())
	})
}

// blind is a store that cannot read calls.
type blind struct{ *storetest.Model }

func (blind) CallByKey(context.Context, idem.Key) (idem.Call, error) { return idem.Call{}, errInjected }

func TestUnrecordedClientLeaves(t *testing.T) {
	// going delivers an intent whose client leaves when leave is called.
	going := func(w *world, in intent) (leave func(), got <-chan reply) {
		ctx, cancel := context.WithCancel(context.Background())
		c := make(chan reply, 1)
		go func() {
			a, err := w.submit(ctx, idem.Submission{Request: in.request()})
			c <- reply{a, err, time.Now()}
		}()
		synctest.Wait()
		return cancel, c
	}

	t.Run("and the others get their answer", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			leave, first := going(w, intent{key: "k", tool: look})
			stay, second := going(w, intent{key: "k", tool: look})
			defer stay()
			leave()
			if a := <-first; !errors.Is(a.err, context.Canceled) {
				t.Fatalf("%+v", a)
			}
			if b := <-second; b.err != nil || !b.Replayed() || b.Call.Status != idem.StatusSucceeded {
				t.Fatalf("%+v", b)
			}
			equal(t, "runs", look.attempts(), 1)
			equal(t, "counts", w.counts(), idem.Counts{Deliveries: 2, Created: 1, Joined: 1})
		}, nil)
	})

	t.Run("and nobody is left: the run is broken off, and nobody joins it", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			ended := make(chan error, 1)
			look.does(then(func(ctx context.Context, _ idem.Invocation) (idem.Result, error) {
				<-ctx.Done()
				ended <- ctx.Err()
				time.Sleep(time.Second) // it takes its time to leave
				return idem.Result{}, ctx.Err()
			}, succeed))
			leave, first := going(w, intent{key: "k", tool: look})
			leave2, second := going(w, intent{key: "k", tool: look})
			leave()
			<-first
			synctest.Wait()
			if len(ended) > 0 {
				t.Fatal("broken off although somebody waits")
			}
			leave2()
			<-second
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if a := w.answer(intent{key: "k", tool: look}, 0); a.Replayed() || a.Call.Status != idem.StatusSucceeded {
				t.Fatalf("%+v", a)
			}
		}, nil)
	})

	t.Run("while it waits for its turn", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			other := w.later(intent{key: "other", tool: look}, 0)
			synctest.Wait()
			leave, first := going(w, intent{key: "k", tool: look})
			leave()
			<-first
			if a := <-other; a.err != nil {
				t.Fatal(a.err)
			}
			equal(t, "runs", look.attempts(), 1)
			w.answer(intent{key: "k", tool: look}, 0)
		}, turns(1))
	})
}

func TestUnrecordedTurns(t *testing.T) {
	t.Run("only so many at once", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			began := time.Now()
			var all []<-chan reply
			for i := range 5 {
				all = append(all, w.later(intent{key: fmt.Sprint(i), tool: look}, 0))
			}
			synctest.Wait()
			equal(t, "at once", look.attempts(), 2)
			for _, c := range all {
				if a := <-c; a.err != nil {
					t.Fatal(a.err)
				}
			}
			equal(t, "took", time.Since(began), 3*time.Second)
		}, turns(2))
	})

	t.Run("as many as workers, where the tool does not say", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Second))
			var all []<-chan reply
			for i := range 5 {
				all = append(all, w.later(intent{key: fmt.Sprint(i), tool: look}, 0))
			}
			synctest.Wait()
			equal(t, "at once", look.attempts(), 3)
			for _, c := range all {
				if a := <-c; a.err != nil {
					t.Fatal(a.err)
				}
			}
		}, nil, workers(3))
	})

	t.Run("none in time", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(ignores(3 * time.Second))
			first := w.later(intent{key: "k", tool: look}, 0)
			synctest.Wait()
			began := time.Now()
			w.refuse(intent{key: "other", tool: look}, 0, idem.CodeUnavailable)
			equal(t, "took", time.Since(began), 2*time.Second)
			if a := <-first; a.err != nil || a.Call.Status != idem.StatusSucceeded { // late, and not too late
				t.Fatalf("%+v", a)
			}
			equal(t, "counts", w.counts(), idem.Counts{Deliveries: 2, Created: 1, Refused: 1})
		}, both(turns(1), brief(2*time.Second)))
	})

	t.Run("no worker is taken", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(time.Minute))
			first := w.later(intent{key: "k", tool: look}, 0)
			synctest.Wait()
			equal(t, "free workers", w.r.Memory().Free, 1)
			<-first
		}, nil, workers(1), timeout(time.Hour))
	})
}

// R14, as far as there is something to settle.
func TestUnrecordedFailures(t *testing.T) {
	for _, tc := range []struct {
		name string
		act  act
		want string
		took time.Duration
	}{
		{"definite, for good", fails(false), "tool_failed", 0},
		{"definite, may be asked again", fails(true), "tool_failed retryable", 0},
		{"no answer", lost, "tool_failed retryable", 0},
		{"panic", panics, "tool_panic", 0},
		{"time-out", hang, "tool_timeout retryable", 2 * time.Second},
		{"deaf", ignores(time.Hour), "tool_timeout retryable", 7 * time.Second},
		{"a result that cannot be given", func(context.Context, idem.Invocation) (idem.Result, error) {
			return idem.Result{Output: []byte(`{`)}, nil
		}, "tool_failed retryable", 0},
		{"a failure that says nothing", func(context.Context, idem.Invocation) (idem.Result, error) {
			return idem.Result{}, (*idem.Failure)(nil)
		}, "tool_failed retryable", 0},
		{"a code that is none", func(context.Context, idem.Invocation) (idem.Result, error) {
			return idem.Result{}, &idem.Failure{Code: "No!", Message: strings.Repeat("x", 2*idem.MaxMessage)}
		}, "tool_failed", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			looking(t, func(t *testing.T, w *world, look *actor) {
				look.does(tc.act)
				began := time.Now()
				a := w.answer(intent{key: "k", tool: look}, 0)
				gaveUp(t, a, tc.want)
				if err := a.Call.Failure.Validate(); err != nil {
					t.Error(err)
				}
				equal(t, "took", time.Since(began), tc.took)
			}, brief(2*time.Second))
		})
	}

	t.Run("deaf ones are counted, and bounded", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			back := make(chan struct{})
			look.does(waitsFor(back))
			for i := range 2 {
				gaveUp(t, w.answer(intent{key: fmt.Sprint(i), tool: look}, 0), "tool_timeout retryable")
			}
			equal(t, "abandoned", w.counts().Abandoned, int64(2))
			equal(t, "deaf", w.r.Memory().Deaf, 2)
			// The second one was one too many, and keeps the turn.
			w.refuse(intent{key: "next", tool: look}, 0, idem.CodeUnavailable)
			close(back)
			synctest.Wait()
			equal(t, "deaf", w.r.Memory().Deaf, 0)
			w.answer(intent{key: "next", tool: look}, 0)
		}, turns(1), timeout(time.Second), abandoned(1))
	})
}

func TestUnrecordedStop(t *testing.T) {
	t.Run("waits for what runs, and lets nothing begin", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(takes(10 * time.Second))
			first := w.later(intent{key: "k", tool: look}, 0)
			synctest.Wait()
			waits := w.later(intent{key: "next", tool: look}, 0)
			synctest.Wait()
			began := time.Now()
			stopped := make(chan time.Duration, 1)
			go func() {
				w.r.Stop(context.Background())
				stopped <- time.Since(began)
			}()
			synctest.Wait()
			if a := <-waits; !errors.Is(a.err, idem.ErrUnavailable) || !a.at.Equal(began) {
				t.Fatalf("%+v", a)
			}
			w.refuse(intent{key: "late", tool: look}, 0, idem.CodeUnavailable)
			joined := w.answer(intent{key: "k", tool: look}, 0)
			if a := <-first; a.err != nil || !joined.Replayed() || joined.Call.Status != idem.StatusSucceeded {
				t.Fatalf("%+v\n%+v", a, joined)
			}
			equal(t, "stop took", <-stopped, 10*time.Second)
			for range 30 { // there is a turn, and a stop: both are ready
				w.refuse(intent{key: "late", tool: look}, 0, idem.CodeUnavailable)
			}
			equal(t, "runs", look.attempts(), 1)
		}, turns(1))
	})

	t.Run("that does not wait breaks it off", func(t *testing.T) {
		for name, do := range map[string]act{"heeding": hang, "deaf": ignores(time.Hour)} {
			t.Run(name, func(t *testing.T) {
				looking(t, func(t *testing.T, w *world, look *actor) {
					look.does(do)
					first := w.later(intent{key: "k", tool: look}, 0)
					synctest.Wait()
					began := time.Now()
					w.r.Stop(over())
					a := <-first
					var e *idem.Error
					if !errors.As(a.err, &e) || e.Code != idem.CodeUnavailable || e.Effect == idem.DoubtUnknown {
						t.Fatalf("%+v", a)
					}
					if took := time.Since(began); took > time.Second || name == "heeding" && took != 0 {
						t.Errorf("took %v", took)
					}
				}, nil)
			})
		}
	})

	t.Run("a definite answer at the last moment counts", func(t *testing.T) {
		looking(t, func(t *testing.T, w *world, look *actor) {
			look.does(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
				<-ctx.Done()
				return succeed(ctx, inv)
			})
			first := w.later(intent{key: "k", tool: look}, 0)
			synctest.Wait()
			w.r.Stop(over())
			if a := <-first; a.err != nil || a.Call.Status != idem.StatusSucceeded {
				t.Fatalf("%+v", a)
			}
		}, nil)
	})
}

// A key that has a stored call is answered from it, whatever its tool keeps now.
func TestUnrecordedKnownKey(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first := w.answer(intent{key: "k", tool: w.none}, time.Minute)
		w.none.does(fails(true))
		w.answer(intent{key: "again", tool: w.none}, time.Minute)
		w.restart(func(*runnerOptions) { w.none.Unrecorded = true })
		w.none.does(echo)
		a := w.answer(intent{key: "k", tool: w.none}, 0)
		if a.Unrecorded || !a.Replayed() || a.Call.ID != first.Call.ID || string(a.Call.Result) != string(first.Call.Result) {
			t.Fatalf("%+v", a)
		}
		w.refuse(intent{key: "k", tool: w.none, args: `{"n":2}`}, 0, idem.CodeConflict)
		w.answer(intent{key: "again", tool: w.none}, time.Minute)
		w.want("again", "succeeded 2")
		if a := w.answer(intent{key: "new", tool: w.none}, 0); !a.Unrecorded {
			t.Fatalf("%+v", a)
		}
		w.absent("new")
		// A recorded tool under the key of a run is none of its business.
		w.none.does(takes(time.Second))
		running := w.later(intent{key: "shared", tool: w.none}, 0)
		synctest.Wait()
		w.answer(intent{key: "shared", tool: w.local}, time.Minute)
		if a := <-running; a.err != nil {
			t.Fatal(a.err)
		}
		w.refuse(intent{key: "shared", tool: w.none}, 0, idem.CodeConflict)
	})
}

// R12: what may be poison gets its turn alone, however busy a tool without a record
// is.
func TestUnrecordedLeavesSuspectsTheirTurn(t *testing.T) {
	look := newActor("look", idem.EffectsNone, idem.RerunYes)
	look.Unrecorded = true
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(hang)
		w.answer(intent{key: "k", tool: w.rerun}, 0)
		synctest.Wait()
		w.crash()
		look.does(takes(time.Hour))
		start := w.die()
		w.rerun.does(takes(time.Second))
		start()
		running := w.later(intent{key: "busy", tool: look}, 0)
		synctest.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.want("k", "succeeded 3")
		if a := <-running; a.err != nil {
			t.Fatal(a.err)
		}
	}, timeout(24*time.Hour), func(o *runner.Options) { o.Tools = append(o.Tools, look.Tool) })
}
