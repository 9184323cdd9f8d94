package runner_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// most bounds how often a call of a tool is run.
func most(tool string, n int) options {
	return func(o *runnerOptions) {
		for _, t := range o.Tools {
			if t.Name == tool {
				t.MaxAttempts = n
			}
		}
	}
}

// A definite failure after a lost answer says nothing of the attempt before (R13).
func TestLostThenRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(then(lost, fails(true), fails(false)))
		for _, want := range []string{"failed 1 outcome_unknown retryable", "failed 2 tool_failed retryable", "failed 3 tool_failed"} {
			a := w.answer(intent{"k", w.rerun, ""}, long)
			equal(t, "answer", stands(a.Call), want)
			equal(t, "in doubt", a.Call.InDoubt, true)
		}
		w.restart()
		equal(t, "in doubt", w.answer(intent{"k", w.rerun, ""}, 0).Call.InDoubt, true)
		w.rerun.does(succeed)
		equal(t, "done", w.answer(intent{"other", w.rerun, ""}, long).Call.InDoubt, false)
	})
}

// Nobody runs a call more often than its tool allows; one in doubt is left to a
// person then.
func TestMaxAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.none.does(fails(true))
		w.answer(intent{"k", w.none, ""}, long)
		equal(t, "second", stands(w.answer(intent{"k", w.none, ""}, long).Call), "failed 2 attempts_exhausted")
		equal(t, "third", w.answer(intent{"k", w.none, ""}, long).Verdict, idem.VerdictReplayed)
		equal(t, "attempts", w.none.attempts(), 2)

		w.rerun.does(then(lost, fails(true), succeed))
		w.answer(intent{"doubt", w.rerun, ""}, long)
		w.refuse(intent{"doubt", w.rerun, ""}, long, idem.CodeOutcomeUnknown)
		w.want("doubt", "held 2 attempts_exhausted")
		// A person may have it run once more.
		if _, err := w.resolve("doubt", idem.OutcomeRetry); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.want("doubt", "succeeded 3")
	}, most("none", 2), most("rerun", 2))
}

// A verification that finds nothing, time after time, runs a call again only so
// often: nobody asked for that.
func TestVerifiedRerunsAreBounded(t *testing.T) {
	for _, bound := range []int{0, 3} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				settle(time.Second)(w)
				w.verify.does(lost)
				w.verify.answers(absent)
				w.answer(intent{"k", w.verify, ""}, 0)
				time.Sleep(24 * time.Hour)
				want := bound
				if want == 0 {
					want = 10
				}
				w.want("k", fmt.Sprintf("failed %d attempts_exhausted", want))
				equal(t, "attempts", w.verify.attempts(), want)
				equal(t, "in doubt", w.call("k").InDoubt, false)
			}, most("verify", bound))
		})
	}
}

// A downstream that does not answer keeps the questions of other tools waiting
// for nothing, and open questions are bounded even where they do not return.
func TestQuestionsByTool(t *testing.T) {
	other := newActor("other", idem.EffectsExternal, idem.RerunVerify)
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.verify.does(lost)
		w.verify.answers(func(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
			<-free
			return found(ctx, inv)
		})
		for i := range 20 {
			w.answer(intent{fmt.Sprint("dead ", i), w.verify, ""}, 0)
		}
		other.does(lost)
		other.answers(found)
		w.answer(intent{"k", other, ""}, 0)
		time.Sleep(time.Hour)
		w.want("k", "succeeded 1")
		equal(t, "open questions", w.verify.questions(), 8)
		close(free)
		time.Sleep(time.Hour)
		w.want("dead 0", "succeeded 1")
		w.want("dead 19", "succeeded 1")
	}, func(o *runnerOptions) { o.Tools = append(o.Tools, other.Tool) })
}

// The death of the process counts as often as the tool allows (R12).
func TestMaxCrashesOfATool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(hang)
		w.none.does(hang)
		w.answer(intent{"fragile", w.rerun, ""}, 0)
		w.answer(intent{"sturdy", w.none, ""}, 0)
		for range 3 {
			synctest.Wait()
			w.crash()
		}
		synctest.Wait()
		w.want("fragile", "failed 2 attempts_exhausted")
		w.want("sturdy", "running 3") // it was not run beside the suspect
	}, timeout(time.Hour), crashes(9), func(o *runnerOptions) {
		for _, t := range o.Tools {
			if t.Name == "rerun" {
				t.MaxCrashes = 2
			}
		}
	})
}

// The trace that comes with a request goes to its tool, also through the queue.
func TestTrace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		send := func(key, trace string, wait time.Duration) {
			t.Helper()
			in := intent{key, w.rerun, ""}
			if _, err := w.submit(context.Background(), idem.Submission{Request: in.request(), Wait: wait, Trace: trace}); err != nil {
				t.Fatal(err)
			}
		}
		free := make(chan struct{})
		w.rerun.does(then(waitsFor(free), fails(true), succeed))
		send("at once", "a", 0)
		send("queued", "b", 0)
		send("without", "", 0)
		close(free)
		synctest.Wait()
		send("queued", "c", long) // the trace of who asked for it again
		var got []string
		for _, inv := range w.rerun.invocations() {
			got = append(got, inv.Trace)
		}
		equal(t, "traces", fmt.Sprint(got), "[a b  c]")
	}, workers(1))
}
