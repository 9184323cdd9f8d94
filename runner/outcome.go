package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/idemd/idemd/idem"
)

// outcome is what came of running a tool.
type outcome struct {
	result   idem.Result
	err      error // nil: it was done
	panicked bool
	timedOut bool // its context had ended by its time-out
	halted   bool // its context had ended because the runner stops
	deaf     bool // it has not returned
}

var (
	errPanic  = errors.New("runner: the tool panicked")
	errDeaf   = errors.New("runner: the tool did not return")
	errResult = errors.New("runner: the tool's result cannot be stored")

	// asPanic is the outcome of a tool that panicked.
	asPanic = outcome{err: errPanic, panicked: true}
)

// invoke runs a tool once and catches its panic.
func (r *Runner) invoke(ctx context.Context, tool *idem.Tool, inv idem.Invocation) (out outcome) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("tool panicked", "call_id", inv.CallID.String(), "tool", tool.Name, "attempt", inv.Attempt,
				"panic", fmt.Sprintf("%.200v", p), "stack", string(debug.Stack()))
			out = asPanic
		}
	}()
	res, err := tool.Invoke(ctx, inv)
	if err == nil {
		err = validResult(res)
	}
	return outcome{result: res, err: err}
}

// validResult says why a result can be neither stored nor given to clients. What
// the tool did is done all the same, so that its answer counts as lost.
func validResult(r idem.Result) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errResult, err)
	}
	return nil
}

// transition is the settlement that the outcome asks for (R13, R14).
func (o outcome) transition(tool *idem.Tool, s idem.Settlement) idem.Transition {
	var definite *idem.Failure
	external := tool.Effects == idem.EffectsExternal
	switch {
	case o.err == nil:
		return idem.Succeed(s, o.result)
	case o.panicked && !external:
		// Nothing outside has happened, and it would panic again.
		return idem.Fail(s, idem.Failure{Code: idem.FailurePanic, Message: "the tool panicked"})
	case o.panicked:
		return idem.Lose(s, idem.Failure{Code: idem.FailurePanic, Message: "the tool panicked; its answer is lost"})
	case errors.As(o.err, &definite) && definite != nil:
		return idem.Fail(s, definite.Clipped())
	case o.halted:
		return idem.Release(s)
	case o.timedOut:
		return idem.Lose(s, idem.Failure{Code: idem.FailureTimeout, Message: "the tool did not answer in time"})
	case external:
		return idem.Lose(s, idem.Failure{Code: idem.FailureLost, Message: "the tool's answer was lost"})
	default:
		return idem.Lose(s, idem.Failure{Code: idem.FailureTool, Message: "the tool did not give an answer"})
	}
}

// level is that of the log line about a failure. Why an answer was lost is for
// whoever finds the call held.
func (o outcome) level() slog.Level {
	var definite *idem.Failure
	if errors.As(o.err, &definite) {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// reason is the error as it may be logged: the message of a failure may hold what
// the caller sent, its code never does.
func (o outcome) reason() string {
	var definite *idem.Failure
	switch {
	case !errors.As(o.err, &definite):
	case definite == nil:
		return "a failure that says nothing"
	default:
		return definite.Clipped().Code
	}
	return fmt.Sprintf("%.200s", o.err.Error())
}
