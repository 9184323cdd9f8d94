package runner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

// A wait is answered with the first end after it began, also where that end is
// told so late that the call has been asked for again and has the next one.
func TestEndsAreToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := make(chan struct{})
		var ends atomic.Int64
		r, err := runner.New(storetest.NewModel(storetest.ModelOptions{Exclusive: true}), runner.Options{
			Tools: []*idem.Tool{{
				Name: "none", Effects: idem.EffectsNone, Rerun: idem.RerunYes,
				Invoke: func(context.Context, idem.Invocation) (idem.Result, error) {
					return idem.Result{}, &idem.Failure{Code: idem.FailureTool, Message: "no", Retryable: true}
				},
			}},
			Hooks: runner.Hooks{At: func(p idem.Point, _ idem.CallID) {
				if p == idem.PointAfterCommit && ends.Add(1) == 1 {
					<-late
				}
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ask := func() int {
			a, err := r.Submit(t.Context(), idem.Submission{
				Request: idem.Request{Key: idem.Key{Namespace: idem.DefaultNamespace, Name: "k"}, Tool: "none", Args: []byte(`{}`)},
				Wait:    time.Minute,
			})
			if err != nil {
				t.Error(err)
			}
			return a.Call.Attempt
		}
		first := make(chan int, 1)
		go func() { first <- ask() }()
		synctest.Wait() // its end is durable, and not told
		if got := ask(); got != 2 {
			t.Errorf("the second was answered with attempt %d", got)
		}
		if got := <-first; got != 1 {
			t.Errorf("the first was answered with attempt %d", got)
		}
		close(late)
		r.Stop(t.Context())
	})
}
