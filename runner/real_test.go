package runner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem/storetest"
)

// Clients, tools and a stop in real time, which finds what a bubble hides behind
// its orderly clock. No goroutine is left behind: the package's tests end with a
// look for them.
func TestRealTime(t *testing.T) {
	for round := range 20 {
		w := newWorld(t, false, storetest.ModelOptions{Exclusive: true}, workers(4), queue(1000), func(o *runnerOptions) {
			o.Lease = 100 * time.Millisecond
			o.ToolTimeout = 20 * time.Millisecond
			o.Grace = 5 * time.Millisecond
		})
		w.none.does(then(fails(true), takes(time.Millisecond)))
		w.rerun.does(takes(2 * time.Millisecond))
		w.verify.does(lost)
		w.verify.answers(found)
		w.hold.does(hang)
		var wg sync.WaitGroup
		for c := range 8 {
			wg.Go(func() {
				for i := range 40 {
					in := intent{fmt.Sprint(i), w.actors()[(c+i)%5], fmt.Sprint(`{"n":`, i, `}`)}
					_, _ = w.post(in, time.Duration(c%3)*5*time.Millisecond)
				}
			})
		}
		time.Sleep(time.Duration(round) * 2 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(round%3)*10*time.Millisecond)
		var stops sync.WaitGroup
		for range 3 {
			stops.Go(func() { w.r.Stop(ctx) })
		}
		stops.Wait()
		cancel()
		before := w.spy.writes()
		wg.Wait()
		if after := w.spy.writes(); after != before {
			t.Errorf("%d commits after the stop", after-before)
		}
		w.finish()
	}
}

// A call that waits for a worker gets it at once, not at the next poll.
func TestNoLostWakeUp(t *testing.T) {
	w := newWorld(t, false, storetest.ModelOptions{Exclusive: true}, workers(2), lease(time.Hour))
	defer w.finish()
	tools := []*actor{w.local, w.none, w.rerun}
	w.none.does(then(fails(true), succeed))
	w.rerun.does(takes(50 * time.Microsecond))
	var wg sync.WaitGroup
	for c := range 6 {
		wg.Go(func() {
			for i := range 300 {
				in := intent{fmt.Sprint(c/2, " ", i), tools[i%3], ""}
				a, err := w.post(in, time.Minute)
				if err == nil && a.Call.Retryable() {
					a, err = w.post(in, time.Minute)
				}
				if err != nil || !a.Call.Status.Ended() {
					t.Errorf("%s: %s, %v", in.key, stands(a.Call), err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(50 * time.Second):
		t.Fatal("a call was forgotten")
	}
}
