package idem

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// What is kept of a tool's answer, in bytes: it is stored with the call, and
// given again with every replay.
const (
	MaxOutput  = 1 << 20 // of a result, as much as a request may bring
	MaxMessage = 4 << 10 // of a failure
)

// Result is what a tool did.
type Result struct {
	Output []byte // JSON; nil is null
	Amount *int64 // for the effect row
}

// Validate reports why a result cannot be stored and given to clients: its
// output is over [MaxOutput] or is not what [Canonical] accepts. The errors are
// *Error with CodeBadRequest, and never quote the output.
func (r Result) Validate() error {
	switch {
	case r.Output == nil:
		return nil
	case len(r.Output) > MaxOutput:
		return Errorf(CodeBadRequest, "the result is over %d bytes", MaxOutput)
	}
	return checkDocument(r.Output)
}

// Codes of failures that idemd itself gives; a tool may have others.
const (
	FailureTool      = "tool_failed"
	FailurePanic     = "tool_panic"
	FailureTimeout   = "tool_timeout"
	FailureMissing   = "tool_missing"
	FailureExhausted = "attempts_exhausted"
	FailureLost      = "outcome_unknown" // the answer was lost
)

// Failure is a definite answer "it was not done" (but see Unsure), stored with the
// call and replayed. A tool returns it as its error; any other error of an external tool
// means that nobody knows.
type Failure struct {
	Code      string // see ValidName
	Message   string // UTF-8, at most MaxMessage bytes
	Retryable bool   // the same key may open the call again

	// RetryAfter is how long downstream asked to be left alone, in whole seconds;
	// zero where it did not say. It is told to clients and decides nothing.
	RetryAfter time.Duration

	// Unsure says that it may have been done all the same, and that asking again is
	// safe because downstream honours the effect id: an answer like 503. It leaves
	// the call in doubt, and is not stored beside that.
	Unsure bool
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Code, f.Message) }

// Validate reports why a failure cannot be stored and given to clients. The
// errors are *Error with CodeBadRequest, and never quote the failure.
func (f *Failure) Validate() error {
	switch {
	case !ValidName(f.Code):
		return Errorf(CodeBadRequest, "the code of a failure must match %s", NamePattern)
	case len(f.Message) > MaxMessage:
		return Errorf(CodeBadRequest, "the message of a failure is over %d bytes", MaxMessage)
	case !utf8.ValidString(f.Message):
		return Errorf(CodeBadRequest, "the message of a failure is not valid text")
	case f.RetryAfter < 0 || f.RetryAfter > MaxRetryAfter || f.RetryAfter%time.Second != 0:
		return Errorf(CodeBadRequest, "a failure's time to retry after must be whole seconds up to %v", MaxRetryAfter)
	}
	return nil
}

// Clipped returns what of a tool's failure can be stored, since a definite
// answer must not be lost over its wording: [FailureTool] where the code is none,
// U+FFFD for what is no UTF-8, of a long message its beginning, cut between two
// characters, and whole seconds to retry after.
func (f Failure) Clipped() Failure {
	if !ValidName(f.Code) {
		f.Code = FailureTool
	}
	// Too early is worse than too late.
	f.RetryAfter = min(max(f.RetryAfter, 0), MaxRetryAfter)
	f.RetryAfter = (f.RetryAfter + time.Second - 1).Truncate(time.Second)
	if f.Validate() == nil {
		return f
	}
	f.Message = strings.ToValidUTF8(f.Message, "\uFFFD")
	if n := MaxMessage; n < len(f.Message) {
		for !utf8.RuneStart(f.Message[n]) {
			n--
		}
		f.Message = f.Message[:n]
	}
	return f
}
