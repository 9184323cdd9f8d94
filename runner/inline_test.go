package runner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// While a local tool runs in its request, somebody else may open the call again
// and end it. What was run is for another attempt then, and settles nothing,
// whether it was quick or has taken so long that the ordinary way goes on with
// it.
func TestLocalToolIsOvertaken(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Millisecond, time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				k := intent{"k", w.local, ""}
				w.local.does(then(
					fails(true),
					func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
						if _, err := w.post(k, 0); err != nil { // attempt 2 is its
							t.Error(err)
						}
						time.Sleep(takes)
						return succeed(ctx, inv)
					},
					fails(true),
					succeed,
				))
				w.answer(k, long)
				a := w.answer(k, long)
				equal(t, "verdict", a.Verdict, idem.VerdictRequeued)
				equal(t, "answer", stands(a.Call), "succeeded 3")
				equal(t, "result", string(a.Call.Result), `{"attempt":3}`)
				synctest.Wait()
				w.wantTrail("k", "created claimed failed requeued claimed failed requeued claimed succeeded")
				time.Sleep(time.Second)
				equal(t, "deaf", w.r.Memory().Deaf, 0)
			})
		})
	}
}

// A slow local tool is not run again when its call goes the ordinary way.
func TestSlowLocalToolRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.local.does(takes(2 * time.Second))
		began := time.Now()
		c := w.later(intent{"k", w.local, ""}, long)
		time.Sleep(time.Second)
		w.want("k", "running 1") // it can be seen, and has a lease
		got := <-c
		equal(t, "took", got.at.Sub(began), 2*time.Second)
		equal(t, "attempts", w.local.attempts(), 1)
		equal(t, "commits", w.spy.writes(), 2)
	})
}
