package idem

import (
	"errors"
	"time"
)

// Request is an intent as it arrived: validated, canonicalised, fingerprinted.
type Request struct {
	Key         Key
	Fingerprint Fingerprint
	Tool        string
	Args        []byte
	ClientID    *string
	Seq         *int64

	// Rules are those under which the fingerprint was made, zero where there are
	// none. Under gives the request's fingerprint under others, which a stored call
	// may have; nil where none are known. It is pure, and may be called again.
	Rules RulesID
	Under func(RulesID) (Fingerprint, error)
}

// ErrUnknownRules says that a call's fingerprint was made under rules that this
// process does not know, so that nothing can be compared with it.
var ErrUnknownRules = errors.New("idem: rules that this process does not know")

// FingerprintFor is the request's fingerprint under the rules that a stored call
// has. Errors: ErrUnknownRules.
func (r Request) FingerprintFor(id RulesID) (Fingerprint, error) {
	switch {
	case id == r.Rules:
		return r.Fingerprint, nil
	case r.Under == nil:
		return Fingerprint{}, ErrUnknownRules
	default:
		return r.Under(id)
	}
}

// Submission is a request together with how its sender wants it handled.
// Nothing of that is stored.
type Submission struct {
	Request Request

	// Wait is how long the sender is ready to wait for the end; zero or less
	// answers at once.
	Wait time.Duration

	// Crowded says that so many requests are being worked on that none should stay:
	// it is refused where it can only be answered by waiting.
	Crowded bool

	// Fault is a failure asked for on purpose, or nil.
	Fault *Fault

	// Trace is the W3C traceparent of the request, for tools that forward it; empty
	// where there was none that is valid.
	Trace string
}

// Answer is what a submission led to.
type Answer struct {
	Call    Call
	Verdict Verdict // created, requeued, joined or replayed

	// Unrecorded says that the tool keeps no record: of Call only the tool, the
	// status, and the result or the failure mean anything.
	Unrecorded bool
}

// Replayed reports whether the answer gives a call that this request neither
// created nor requeued.
func (a Answer) Replayed() bool { return a.Verdict == VerdictJoined || a.Verdict == VerdictReplayed }
