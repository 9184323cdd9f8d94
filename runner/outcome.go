package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"

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
	errResult = errors.New("runner: the tool's result is not JSON")

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
	if err == nil && !isJSON(res) {
		err = errResult
	}
	return outcome{result: res, err: err}
}

// isJSON reports whether a result can be stored and given to clients.
func isJSON(r idem.Result) bool { return r.Output == nil || json.Valid(r.Output) }

// maxMessage bounds what is stored of a failure's message, in bytes.
const maxMessage = 4096

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
		f := *definite
		if f.Code == "" {
			f.Code = idem.FailureTool
		}
		f.Message = truncate(strings.ToValidUTF8(f.Message, "\uFFFD"), maxMessage)
		return idem.Fail(s, f)
	case o.halted:
		return idem.Release(s)
	case o.timedOut:
		return idem.Lose(s, idem.Failure{Code: idem.FailureTimeout, Message: "the tool did not answer in time"})
	case external && tool.Rerun != idem.RerunYes:
		return idem.Lose(s, idem.Failure{Code: idem.FailureLost, Message: "the tool's answer was lost"})
	default:
		return idem.Lose(s, idem.Failure{Code: idem.FailureTool, Message: "the tool did not give an answer"})
	}
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
		return definite.Code
	}
	return truncate(o.err.Error(), 200)
}

// truncate cuts a text to at most n bytes without cutting a rune.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
