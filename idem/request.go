package idem

import "time"

// Request is an intent as it arrived: validated, canonicalised, fingerprinted.
type Request struct {
	Key         Key
	Fingerprint Fingerprint
	Tool        string
	Args        []byte
	ClientID    *string
	Seq         *int64
}

// Submission is a request together with how its sender wants it handled.
// Nothing of that is stored.
type Submission struct {
	Request Request

	// Wait is how long the sender is ready to wait for the end; zero or less
	// answers at once.
	Wait time.Duration

	// Fault is a failure asked for on purpose, or nil.
	Fault *Fault
}

// Answer is what a submission led to.
type Answer struct {
	Call    Call
	Verdict Verdict // created, requeued, joined or replayed
}

// Replayed reports whether the answer gives a call that this request neither
// created nor requeued.
func (a Answer) Replayed() bool { return a.Verdict == VerdictJoined || a.Verdict == VerdictReplayed }
