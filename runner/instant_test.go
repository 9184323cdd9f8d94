package runner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// An instant tool is run without a goroutine or a time-out of its own, whichever
// way its call comes, and what it gives or does is settled like any other's.
func TestInstantTool(t *testing.T) {
	for _, way := range []string{"waiting", "queued"} {
		for _, tt := range []struct {
			name  string
			does  act
			stand string
		}{
			{"succeeds", succeed, "succeeded 1"},
			{"fails", fails(true), "failed 1 tool_failed retryable"},
			{"panics", panics, "failed 1 tool_panic"},
			{"gives something that is not JSON", notJSON, "failed 1 tool_failed retryable"},
		} {
			t.Run(way+"/"+tt.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					w.local.Instant = true
					timed := false
					w.local.does(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
						_, timed = ctx.Deadline()
						return tt.does(ctx, inv)
					})
					wait := long
					if way == "queued" {
						w.occupy(time.Second)
						wait = 0
					}
					w.answer(intent{"k", w.local, ""}, wait)
					time.Sleep(2 * time.Second)
					w.want("k", tt.stand)
					if timed {
						t.Error("it has a time-out")
					}
				}, workers(1))
			})
		}
	}
}

// Who does not wait gets a receipt (R5), also where an instant tool has done its
// work in the commit that accepted the call. Where no worker is free it waits for
// one, like any other; a fault finds it on its way.
func TestInstantToolWithoutWait(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.local.Instant = true
		w.local.does(then(fails(true), succeed))
		for _, verdict := range []idem.Verdict{idem.VerdictCreated, idem.VerdictRequeued} {
			var a idem.Answer
			equal(t, "commits", w.writes(func() { a = w.answer(intent{"k", w.local, ""}, 0) }), 1)
			equal(t, "verdict", a.Verdict, verdict)
			equal(t, "answer", a.Call.Status, idem.StatusPending)
			if a.Call.Result != nil || a.Call.Failure != nil || a.Replayed() {
				t.Errorf("the receipt tells more: %+v", a.Call)
			}
		}
		w.want("k", "succeeded 2")
		w.wantTrail("k", "created claimed failed requeued claimed succeeded")
		equal(t, "replay", stands(w.answer(intent{"k", w.local, ""}, 0).Call), "succeeded 2")

		w.occupy(time.Second)
		w.answer(intent{"queued", w.local, ""}, 0)
		w.want("queued", "pending 0")
		time.Sleep(2 * time.Second)
		w.want("queued", "succeeded 1")

		if _, err := w.post(intent{"faulty", w.local, ""}, 0, "before_commit=panic"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.want("faulty", "failed 1 tool_panic")
	}, workers(1))
}
