package idem

import "fmt"

// Code is the stable name of a refusal. Clients branch on codes, never on
// messages; a code is never renamed and never given a second meaning.
type Code string

// The codes of refusals. What a tool itself reports is a [Failure] with codes
// of its own.
const (
	CodeMissingKey           Code = "missing_idempotency_key" // no key, or an empty one
	CodeBadRequest           Code = "bad_request"             // the request cannot be understood; nothing was stored
	CodeConflict             Code = "idempotency_conflict"    // the key is taken by another fingerprint (R3)
	CodeOutcomeUnknown       Code = "outcome_unknown"         // the call is held: stop, and let someone find out
	CodeKeyExpired           Code = "key_expired"             // the key is past its window (R16)
	CodeInvalidArguments     Code = "invalid_arguments"       // args do not fit the tool's schema; nothing was stored
	CodeUnauthorized         Code = "unauthorized"            // no credential, or an unknown one
	CodeForbidden            Code = "forbidden"               // the credential does not allow it
	CodePayloadTooLarge      Code = "payload_too_large"       // the body is over the limit; nothing was stored
	CodeUnsupportedMediaType Code = "unsupported_media_type"  // the body is not JSON by its Content-Type
	CodeMethodNotAllowed     Code = "method_not_allowed"      // the route exists, the method does not
	CodeHeadersTooLarge      Code = "headers_too_large"       // the header section is over the limit
	CodeNotFound             Code = "not_found"               // no such call or route
	CodeNotHeld              Code = "not_held"                // resolve was asked of a call that is not held
	CodeUnavailable          Code = "unavailable"             // nothing was recorded; always safe to retry
	CodeInsufficientStorage  Code = "insufficient_storage"    // the disk reserve is reached; nothing was recorded
	CodeInternal             Code = "internal"                // a bug; the outcome is unknown
)

// Doubt says whether the side effect of the intent may have happened. It is
// the one thing a caller has to know before it decides to try again.
type Doubt string

// The degrees of doubt.
const (
	DoubtNone      Doubt = "none"      // it did not happen because of this request
	DoubtUnknown   Doubt = "unknown"   // it may have happened
	DoubtCommitted Doubt = "committed" // it happened
)

// Error is the only error that is shown to callers. Everything else is a bug
// and becomes CodeInternal at the edge.
//
// Messages never contain stored payloads, file names or texts of a driver.
type Error struct {
	Code    Code
	Message string
	CallID  CallID // zero where no record is concerned
	Status  Status // the call's status for CodeNotHeld, else empty
	Effect  Doubt  // empty means DoubtNone
}

func (e *Error) Error() string { return fmt.Sprintf("idem: %s: %s", e.Code, e.Message) }

// Is makes two errors of one code equal, so that callers can write
// errors.Is(err, idem.ErrConflict) whatever the message says.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf builds an Error of a code, with no effect.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Sentinels to match with errors.Is; they carry no call.
var (
	ErrMissingKey     = Errorf(CodeMissingKey, "the Idempotency-Key header is missing or empty")
	ErrBadRequest     = Errorf(CodeBadRequest, "bad request")
	ErrConflict       = Errorf(CodeConflict, "same key, different fingerprint")
	ErrOutcomeUnknown = Errorf(CodeOutcomeUnknown, "the outcome of this call is not known yet")
	ErrKeyExpired     = Errorf(CodeKeyExpired, "the key is past its window")
	ErrNotFound       = Errorf(CodeNotFound, "no such call")
	ErrNotHeld        = Errorf(CodeNotHeld, "the call is not held")
	ErrUnavailable    = Errorf(CodeUnavailable, "not accepting new calls")
	ErrInternal       = Errorf(CodeInternal, "internal error")
)
