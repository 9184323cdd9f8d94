package runner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// atOnce bounds how many calls of a tool run at once.
func atOnce(tool string, n int) options {
	return func(o *runnerOptions) {
		for _, t := range o.Tools {
			if t.Name == tool {
				t.Concurrency = n
			}
		}
	}
}

// A tool runs as often at once as it may, and no more: its calls wait, and those
// of other tools do not wait with them.
func TestConcurrency(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(waitsFor(free))
		for i := range 40 {
			w.answer(intent{fmt.Sprint("slow ", i), w.rerun, fmt.Sprint(i)}, 0)
		}
		synctest.Wait()
		equal(t, "at work", w.rerun.attempts(), 2)
		for i := range 20 { // more than there are workers
			for _, tool := range []*actor{w.none, w.hold, w.local} {
				a := w.answer(intent{fmt.Sprint(tool.Name, i), tool, ""}, time.Millisecond)
				equal(t, "beside it", stands(a.Call), "succeeded 1")
			}
		}
		equal(t, "at work", w.rerun.attempts(), 2)
		w.want("slow 2", "pending 0")
		close(free)
		synctest.Wait()
		w.want("slow 39", "succeeded 1")
		m := w.r.Memory()
		equal(t, "free", m.Free, 4)
	}, workers(4), queue(100), atOnce("rerun", 2))
}

// Nor does a local one that is waited for, which would run in its request.
func TestConcurrencyOfLocalTool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		release := sync.OnceFunc(func() { close(free) })
		defer release()
		w.local.does(waitsFor(free))
		var waiting []<-chan reply
		for i := range 8 {
			waiting = append(waiting, w.later(intent{fmt.Sprint("slow ", i), w.local, ""}, time.Minute))
		}
		synctest.Wait()
		equal(t, "at work", w.local.attempts(), 2)
		release()
		for _, c := range waiting {
			a := <-c
			if a.err != nil {
				t.Fatal(a.err)
			}
			equal(t, "in its turn", stands(a.Call), "succeeded 1")
		}
		equal(t, "runs", w.local.attempts(), 8)
	}, workers(4), atOnce("local", 2))
}

// Calls of other tools are found behind a long backlog that cannot move.
func TestBacklogOfOneTool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		defer close(free)
		w.rerun.does(waitsFor(free))
		for i := range 200 {
			w.answer(intent{fmt.Sprint("slow ", i), w.rerun, ""}, 0)
		}
		first := w.none
		first.does(hang) // the next life finds it due, behind them
		w.answer(intent{"behind", first, ""}, 0)
		synctest.Wait()
		first.does(succeed)
		w.crash()
		synctest.Wait()
		w.want("behind", "succeeded 2")
		w.want("slow 199", "pending 0")
		// New calls of other tools have a worker at once, whatever waits.
		w.answer(intent{"new", w.none, ""}, 0)
		synctest.Wait()
		w.want("new", "succeeded 1")
	}, workers(3), queue(1000), atOnce("rerun", 1), timeout(time.Hour), crashes(10))
}

// A new call does not overtake those of its tool that were kept back, although
// the tool may run it now.
func TestNewCallBehindItsToolsBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Second))
		for i := range 6 {
			w.answer(intent{fmt.Sprint(i), w.rerun, fmt.Sprint(i)}, 0)
			time.Sleep(time.Millisecond)
		}
		for i := 6; i < 12; i++ {
			time.Sleep(time.Second)
			w.answer(intent{fmt.Sprint(i), w.rerun, fmt.Sprint(i)}, 0)
		}
		time.Sleep(time.Minute)
		for i, args := range w.rerun.order() {
			equal(t, "place", args, fmt.Sprint(i))
		}
		equal(t, "attempts", w.rerun.attempts(), 12)
	}, workers(8), atOnce("rerun", 1))
}

// An attempt that was given up counts until its tool has returned: what it calls
// has the load still.
func TestAbandonedKeepsItsShare(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(then(waitsFor(free), succeed))
		w.answer(intent{"deaf", w.rerun, ""}, 0)
		w.answer(intent{"next", w.rerun, ""}, 0)
		time.Sleep(time.Minute)
		w.want("deaf", "failed 1 tool_timeout retryable")
		w.want("next", "pending 0")
		close(free)
		synctest.Wait()
		w.want("next", "succeeded 1")
	}, workers(4), atOnce("rerun", 1))
}

// A share comes back from every way that an attempt can go.
func TestSharesComeBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.hold.does(then(fails(true), fails(false), lost, panics, hang, ignores(10*time.Second), succeed))
		for i := range 7 {
			_, _ = w.post(intent{fmt.Sprint(i), w.hold, ""}, 30*time.Second)
		}
		w.refuse(intent{"bad", w.hold, badArgs}, 0, idem.CodeInvalidArguments)
		w.refuse(intent{"0", w.hold, `{"other":true}`}, 0, idem.CodeConflict)
		if _, err := w.post(intent{"dropped", w.hold, ""}, time.Minute, "after_claim=panic"); err == nil {
			t.Error("a panic was answered with a call")
		}
		a := w.answer(intent{"last", w.hold, ""}, time.Millisecond)
		equal(t, "the last", stands(a.Call), "succeeded 1")
	}, workers(2), atOnce("hold", 1))
}

// Tools whose calls take every worker, all of them together, keep each call of another
// tool waiting for one of theirs, and not until their backlogs are gone.
func TestOthersBacklogsFillAllWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Minute))
		w.hold.does(takes(time.Minute))
		w.verify.does(takes(time.Minute))
		for i := range 100 {
			for _, tool := range []*actor{w.rerun, w.hold} {
				w.answer(intent{fmt.Sprint(tool.Name, i), tool, ""}, 0)
			}
			time.Sleep(time.Second)
		}
		began := time.Now()
		for i := range 5 {
			w.answer(intent{fmt.Sprint("quick ", i), w.none, ""}, 0)
			w.answer(intent{fmt.Sprint("slow ", i), w.verify, ""}, 0)
		}
		for i := range 5 {
			c, err := w.r.CallByKey(context.Background(), keyOf(fmt.Sprint("quick ", i)), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "quick", stands(c), "succeeded 1")
		}
		if waited := time.Since(began); waited > 5*time.Minute { // 49 of them otherwise
			t.Errorf("it waited for %v", waited)
		}
		time.Sleep(15 * time.Minute) // one after the other at least, with others in between
		w.want("slow 4", "succeeded 1")
		w.want("rerun99", "pending 0")
		time.Sleep(2 * time.Hour) // nor are the backlogs kept waiting for ever
		w.want("rerun99", "succeeded 1")
		w.want("hold99", "succeeded 1")
	}, workers(4), queue(1000), atOnce("rerun", 2), atOnce("hold", 2), timeout(time.Hour))
}
