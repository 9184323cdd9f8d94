package runner_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// nilFailure is the mistake of a tool that declares its error with the concrete
// type and returns it unset.
func nilFailure(context.Context, idem.Invocation) (idem.Result, error) {
	var f *idem.Failure
	return idem.Result{}, f
}

func exits(context.Context, idem.Invocation) (idem.Result, error) {
	runtime.Goexit()
	return idem.Result{}, nil
}

func notJSON(context.Context, idem.Invocation) (idem.Result, error) {
	return idem.Result{Output: []byte("<html>")}, nil
}

func tooMuch(context.Context, idem.Invocation) (idem.Result, error) {
	return idem.Result{Output: []byte(`"` + strings.Repeat("x", idem.MaxOutput) + `"`)}, nil
}

// namedTwice is JSON that readers take differently.
func namedTwice(context.Context, idem.Invocation) (idem.Result, error) {
	return idem.Result{Output: []byte(`{"id":1,"id":2}`)}, nil
}

func badFailure(context.Context, idem.Invocation) (idem.Result, error) {
	return idem.Result{}, &idem.Failure{Code: "No\nCode", Message: "\xff" + strings.Repeat("y", idem.MaxMessage)}
}

// Whatever a tool does, its call gets a defined end and other keys go on.
func TestToolMisbehaves(t *testing.T) {
	tests := []struct {
		name                               string
		does                               act
		local, none, rerun, verify, theirs string
	}{
		{
			"panics", panics, "failed 1 tool_panic", "failed 1 tool_panic",
			"failed 1 tool_panic retryable", "held 1 tool_panic", "held 1 tool_panic",
		},
		{
			"ends its goroutine", exits, "failed 1 tool_panic", "failed 1 tool_panic",
			"failed 1 tool_panic retryable", "held 1 tool_panic", "held 1 tool_panic",
		},
		{
			"does not know", lost, "failed 1 tool_failed retryable", "failed 1 tool_failed retryable",
			"failed 1 outcome_unknown retryable", "held 1 outcome_unknown", "held 1 outcome_unknown",
		},
		{
			"returns a nil failure as its error", nilFailure, "failed 1 tool_failed retryable", "failed 1 tool_failed retryable",
			"failed 1 outcome_unknown retryable", "held 1 outcome_unknown", "held 1 outcome_unknown",
		},
		{
			"gives something that is not JSON", notJSON, "failed 1 tool_failed retryable", "failed 1 tool_failed retryable",
			"failed 1 outcome_unknown retryable", "held 1 outcome_unknown", "held 1 outcome_unknown",
		},
		{
			"gives too much", tooMuch, "failed 1 tool_failed retryable", "failed 1 tool_failed retryable",
			"failed 1 outcome_unknown retryable", "held 1 outcome_unknown", "held 1 outcome_unknown",
		},
		{
			"gives a name twice", namedTwice, "failed 1 tool_failed retryable", "failed 1 tool_failed retryable",
			"failed 1 outcome_unknown retryable", "held 1 outcome_unknown", "held 1 outcome_unknown",
		},
		{
			"fails with words that cannot be stored", badFailure, "failed 1 tool_failed", "failed 1 tool_failed",
			"failed 1 tool_failed", "failed 1 tool_failed", "failed 1 tool_failed",
		},
	}
	for _, tt := range tests {
		for name, want := range map[string]string{"local": tt.local, "none": tt.none, "rerun": tt.rerun, "verify": tt.verify, "hold": tt.theirs} {
			for _, way := range []string{"waiting", "free worker", "queued"} {
				t.Run(tt.name+"/"+name+"/"+way, func(t *testing.T) {
					bubble(t, func(t *testing.T, w *world) {
						tool := w.actor(name)
						tool.does(tt.does)
						wait := time.Duration(0)
						switch way {
						case "waiting":
							wait = long
						case "queued":
							w.occupy(time.Second)
						}
						c := w.later(intent{"k", tool, ""}, wait)
						time.Sleep(2 * time.Second)
						synctest.Wait()
						w.want("k", want)
						if got := <-c; wait > 0 && strings.HasPrefix(want, "held") {
							equal(t, "code", asError(t, got.err).Code, idem.CodeOutcomeUnknown)
						}
						tool.does(succeed)
						w.answer(intent{"other", tool, ""}, long)
						w.want("other", "succeeded 1")
					}, workers(1))
				})
			}
		}
	}
}

// A failure's message is cut to what is worth storing, and a failure without a
// code gets one.
func TestFailureIsTidied(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.none.does(func(context.Context, idem.Invocation) (idem.Result, error) {
			return idem.Result{}, &idem.Failure{Message: strings.Repeat("é", 5000) + "\xff"}
		})
		c := w.answer(intent{"k", w.none, ""}, long).Call
		equal(t, "code", c.Failure.Code, idem.FailureTool)
		equal(t, "message", c.Failure.Message, strings.Repeat("é", 2048))
	})
}
