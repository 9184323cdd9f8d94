package tool

import (
	"context"
	"fmt"
	"math"

	"github.com/idemd/idemd/idem"
)

const failSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "message": {"type": "string"},
    "retryable": {"type": "boolean", "description": "Whether the same key may ask again."},
    "times": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807, "description": "Fail this many attempts, then succeed. Absent: always fail."},
    "panic": {"type": "boolean", "description": "Panic instead of failing."}
  }
}`

// maxFailMessage is how much of a message is kept, in bytes: a failure is
// stored, and given again with every replay.
const maxFailMessage = 1024

// fail fails as it is told, and has no effect.
func fail() *idem.Tool {
	return &idem.Tool{
		Name:        "fail",
		Description: "Sample: fail, for good or retryably, always or a number of times.",
		Effects:     idem.EffectsNone,
		Rerun:       idem.RerunYes,
		Schema:      []byte(failSchema),
		Check:       mustCheck(failSchema),
		Invoke: func(_ context.Context, inv idem.Invocation) (idem.Result, error) {
			a, err := parseArgs(inv.Args, "message", "retryable", "times", "panic")
			if err != nil {
				return idem.Result{}, err
			}
			message, err := a.text("message", "failed as asked")
			if err != nil {
				return idem.Result{}, err
			}
			retryable, err := a.flag("retryable")
			if err != nil {
				return idem.Result{}, err
			}
			panics, err := a.flag("panic")
			if err != nil {
				return idem.Result{}, err
			}
			times := int64(math.MaxInt64)
			if a.has("times") {
				if times, err = a.integer("times"); err != nil {
					return idem.Result{}, err
				}
			}
			switch {
			case int64(inv.Attempt) > times:
				return idem.Result{Output: fmt.Appendf(nil, `{"failed":%d}`, times)}, nil
			case panics:
				panic("tool: fail was asked to panic")
			default:
				return idem.Result{}, &idem.Failure{Code: idem.FailureTool, Message: clip(message, maxFailMessage), Retryable: retryable}
			}
		},
	}
}
