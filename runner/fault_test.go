package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// way is a way that a call can go.
type way struct {
	name, tool string
	prep       func(w *world)
	// at says how the call of key "k" stands at each point.
	at map[idem.Point]string
}

// behind lets new calls queue for a second.
func behind(w *world) {
	w.occupy(time.Second)
	w.answer(intent{"before", w.none, ""}, 0)
}

func openedAgain(tool string) func(w *world) {
	return func(w *world) {
		a := w.actor(tool)
		a.does(then(fails(true), succeed))
		w.answer(intent{"k", a, ""}, long)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.passed = nil
	}
}

func stages(create, claim, dispatch, commit, after string) map[idem.Point]string {
	return map[idem.Point]string{
		idem.PointAfterCreate: create, idem.PointAfterClaim: claim, idem.PointAfterDispatch: dispatch,
		idem.PointBeforeCommit: commit, idem.PointAfterCommit: after,
	}
}

var ways = []way{
	{"one commit", "local", nil, stages("absent", "absent", "absent", "absent", "succeeded 1")},
	{"free worker", "rerun", nil, stages("running 1", "running 1", "running 1", "running 1", "succeeded 1")},
	{"free worker, no effect", "none", nil, stages("running 1", "running 1", "running 1", "running 1", "succeeded 1")},
	{"free worker, hold", "hold", nil, stages("running 1", "running 1", "running 1", "running 1", "succeeded 1")},
	{"queued", "rerun", behind, stages("pending 0", "running 1", "running 1", "running 1", "succeeded 1")},
	{"queued, local", "local", behind, stages("pending 0", "pending 0", "pending 0", "pending 0", "succeeded 1")},
	{"requeued, one commit", "local", openedAgain("local"), func() map[idem.Point]string {
		const before = "failed 1 tool_failed retryable"
		return stages(before, before, before, before, "succeeded 2")
	}()},
	{"requeued", "rerun", openedAgain("rerun"), stages("running 2", "running 2", "running 2", "running 2", "succeeded 2")},
}

// A call passes every point once, in order, whichever way it goes.
func TestPointsInOrder(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				if way.prep != nil {
					way.prep(w)
				}
				w.answer(intent{"k", w.actor(way.tool), ""}, long)
				equal(t, "points", fmt.Sprint(w.passed), fmt.Sprint(idem.Points[:5]))
			}, workers(1))
		})
	}
}

// Every fault at every point: what it does to the answer, and that it does
// nothing else to the call.
func TestFaults(t *testing.T) {
	for _, way := range ways {
		for _, point := range idem.Points[:5] {
			for _, action := range []string{"exit", "panic", "sleep:250ms", "drop", "error"} {
				t.Run(fmt.Sprintf("%s/%s=%s", way.name, point, action), func(t *testing.T) {
					bubble(t, func(t *testing.T, w *world) {
						if way.prep != nil {
							way.prep(w)
						}
						tool := w.actor(way.tool)
						ran := tool.attempts()
						began := time.Now()
						got := <-w.later(intent{"k", tool, ""}, long, fmt.Sprintf("%s=%s", point, action))
						took := time.Since(began)
						time.Sleep(2 * time.Second)
						synctest.Wait()
						end := way.at[idem.PointAfterCommit]
						switch action {
						case "exit":
							equal(t, "exits", len(w.exits), 1)
							equal(t, "at the exit it was", w.exits[0], way.at[point])
						case "panic":
							end = way.afterPanic(point)
							early := point == idem.PointAfterCreate || point == idem.PointAfterClaim
							if early && tool.Effects != idem.EffectsLocal {
								equal(t, "dispatched", tool.attempts(), ran)
							}
						case "sleep:250ms":
							if took < 250*time.Millisecond {
								t.Errorf("answered after %v", took)
							}
						case "drop":
							if !errors.Is(got.err, idem.ErrDropped) {
								t.Errorf("error %v, want the answer dropped", got.err)
							}
						case "error":
							e := asError(t, got.err)
							equal(t, "code", e.Code, idem.CodeInternal)
							equal(t, "effect", e.Effect, idem.DoubtUnknown)
							equal(t, "call", e.CallID, w.call("k").ID)
						}
						w.want("k", end)
						if action != "drop" && action != "error" {
							if w.call("k").Status == idem.StatusHeld {
								equal(t, "code", asError(t, got.err).Code, idem.CodeOutcomeUnknown)
							} else {
								equal(t, "answer", stands(got.Call), end)
							}
						}
						if action != "panic" {
							equal(t, "attempts", tool.attempts(), ran+1)
						}
					}, workers(1))
				})
			}
		}
	}
}

// afterPanic is how the call stands after its tool panicked on purpose.
func (y way) afterPanic(p idem.Point) string {
	if p == idem.PointAfterCommit {
		return y.at[p] // nothing is left to panic
	}
	var n int
	_, _ = fmt.Sscanf(y.at[idem.PointAfterCommit], "succeeded %d", &n)
	switch y.tool {
	case "hold":
		return fmt.Sprintf("held %d tool_panic", n)
	case "rerun":
		return fmt.Sprintf("failed %d tool_panic retryable", n)
	default:
		return fmt.Sprintf("failed %d tool_panic", n)
	}
}

// A request that is not waited for feels a fault at the point that it passes
// itself.
func TestFaultWithoutWait(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for i, tool := range w.actors() {
			_, err := w.post(intent{fmt.Sprint(i), tool, ""}, 0, "after_create=drop")
			if !errors.Is(err, idem.ErrDropped) {
				t.Errorf("%s: error %v", tool.Name, err)
			}
			synctest.Wait()
			w.want(fmt.Sprint(i), "succeeded 1")
		}
	})
}

// A fault rides with the request that brought it. Those who join feel nothing,
// and one that turns out to be a replay, a join or a conflict meets nothing.
func TestFaultIsTheRequestsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Second))
		k := intent{"k", w.rerun, ""}
		a := w.later(k, long, "after_dispatch=drop")
		synctest.Wait()
		b := w.later(k, long, "after_dispatch=panic")
		c := w.later(k, long)
		synctest.Wait()
		if _, err := w.post(intent{"k", w.rerun, `{"n":2}`}, long, "after_create=panic"); !errors.Is(err, idem.ErrConflict) {
			t.Fatal(err)
		}
		if got := <-a; !errors.Is(got.err, idem.ErrDropped) {
			t.Fatal(got.err)
		}
		equal(t, "joined", stands((<-b).Call), "succeeded 1")
		equal(t, "joined", stands((<-c).Call), "succeeded 1")
		got := <-w.later(k, long, "after_create=error")
		equal(t, "replayed", got.Verdict, idem.VerdictReplayed)
	})
}

// A local call that another request has brought in meanwhile takes no fault
// along, and its own result is thrown away.
func TestFaultOfLostRace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		k := intent{"k", w.local, ""}
		other := make(chan reply, 1)
		w.local.does(then(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
			a, err := w.post(k, 0) // while the tool runs in its request
			other <- reply{Answer: a, err: err}
			return succeed(ctx, inv)
		}, takes(time.Second)))
		got := <-w.later(k, long, "after_commit=drop")
		equal(t, "verdict", got.Verdict, idem.VerdictJoined)
		equal(t, "verdict of the other", (<-other).Verdict, idem.VerdictCreated)
		equal(t, "answer", stands(got.Call), "succeeded 1")
		equal(t, "riders", w.r.Memory().Riders, 0)
	})
}

// The point before the reply belongs to whoever sends it.
func TestFire(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		fire := func(text string) error {
			f, err := idem.ParseFault(text)
			if err != nil {
				t.Fatal(err)
			}
			return w.r.Fire(&f, idem.PointBeforeReply)
		}
		if err := w.r.Fire(nil, idem.PointBeforeReply); err != nil {
			t.Error(err)
		}
		if err := fire("after_commit=drop"); err != nil {
			t.Errorf("a fault of another point: %v", err)
		}
		if err := fire("before_reply=drop"); !errors.Is(err, idem.ErrDropped) {
			t.Error(err)
		}
		for _, action := range []string{"error", "panic"} {
			if err := fire("before_reply=" + action); !errors.Is(err, idem.ErrInternal) {
				t.Errorf("%s: %v", action, err)
			}
		}
		began := time.Now()
		if err := fire("before_reply=sleep:250ms"); err != nil {
			t.Error(err)
		}
		equal(t, "slept", time.Since(began), 250*time.Millisecond)
		if err := fire("before_reply=exit"); err != nil || len(w.exits) != 1 {
			t.Errorf("error %v after %d exits", err, len(w.exits))
		}
		if !slices.Contains(w.passed, idem.PointBeforeReply) {
			t.Error("the hook was not told")
		}
	})
}
