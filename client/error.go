package client

import (
	"errors"
	"fmt"
	"strings"

	"github.com/idemd/idemd/idem"
)

// Codes that a client gives beside those of the server.
const (
	CodeRetryExhausted idem.Code = "retry_exhausted"  // the budget is used up; Key is to be used again, or looked up
	CodePending        idem.Code = "pending"          // accepted, and without an end when the budget was used up
	CodeInterrupted    idem.Code = "interrupted"      // the caller's context is over
	CodeNotSent        idem.Code = "not_sent"         // there never was a connection
	CodeNoAnswer       idem.Code = "no_answer"        // sent, and no whole answer came
	CodeNotIdemd       idem.Code = "not_idemd"        // the answer is not idemd's
	CodeWindowTooShort idem.Code = "window_too_short" // the policy can outlive the tool's window; nothing was sent
	CodeWindowUnknown  idem.Code = "window_unknown"   // the window cannot be learnt and the policy requires it; nothing was sent
	CodeJournal        idem.Code = "journal"          // the journal does not take the request; nothing was sent
	CodeClosed         idem.Code = "client_closed"    // the client was closed; nothing was sent
)

// Error is every error of a [Client] that concerns a request. Its code is one of
// the server's ([idem.Code]) or of those above; errors.Is matches another *Error or an
// *idem.Error with the same code, so errors.Is(err, idem.ErrConflict) works.
type Error struct {
	Code    idem.Code
	Message string
	Status  int    // of the last answer; 0 where there was none
	CallID  string // where a call is known
	Key     string // the key, as a Request takes it; empty where the caller asked by id

	// Effect says whether the intent may have been carried out, by everything
	// that was read, not only by the last answer: an outcome that was unknown
	// once stays so until something settles it.
	Effect idem.Doubt

	// Call is the call that is held, or that failed for good with a doubt that nobody
	// has settled, where the answer shows it.
	Call *Call

	Tries []Try  // every request of it, in order
	Body  []byte // the last answer's document, as it came; nil where there is none
	Err   error  // what lies behind; nil where nothing does
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client: %s: %s", e.Code, e.Message)
	if e.Effect == idem.DoubtUnknown {
		b.WriteString(" (it is not known whether it was done)")
	}
	return b.String()
}

// Unwrap returns what lies behind the error.
func (e *Error) Unwrap() error { return e.Err }

// Is makes two errors of one code equal.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case *Error:
		return t.Code == e.Code
	case *idem.Error:
		return t.Code == e.Code
	}
	return false
}

// Sentinels to match with errors.Is.
var (
	ErrRetryExhausted = &Error{Code: CodeRetryExhausted, Message: "the budget is used up"}
	ErrPending        = &Error{Code: CodePending, Message: "the call has no end yet"}
	ErrInterrupted    = &Error{Code: CodeInterrupted, Message: "interrupted"}
	ErrWindowTooShort = &Error{Code: CodeWindowTooShort, Message: "the policy can outlive the window"}
	ErrWindowUnknown  = &Error{Code: CodeWindowUnknown, Message: "the window cannot be learnt"}
	ErrClosed         = &Error{Code: CodeClosed, Message: "the client was closed"}
)

// refused is an error of a request that was not sent.
func refused(key string, err error, about string) *Error {
	e := &Error{Code: idem.CodeBadRequest, Message: about + err.Error(), Effect: idem.DoubtNone, Key: key, Err: err}
	var of *idem.Error
	if errors.As(err, &of) {
		e.Code, e.Message = of.Code, about+of.Message
	}
	return e
}
