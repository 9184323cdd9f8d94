package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/idemd/idemd/idem"
)

// EntryKind says what a line of a client's log is about.
type EntryKind string

// The kinds of entries.
const (
	EntryPost    EntryKind = "post"    // a try that hands the intent in
	EntryFind    EntryKind = "find"    // a look-up by key
	EntryPoll    EntryKind = "poll"    // a look-up by the call's id
	EntryOutcome EntryKind = "outcome" // what the client told whoever asked for the intent, in the end
)

// Entry is a line of a client's log, in NDJSON: one for every try, written after
// its answer or after it was given up, and one for the outcome of each intent. A
// client that dies writes no more; that is no fault.
//
// A client does one thing after the other, and its lines are in that order.
// Whoever works on several intents at once is several clients.
type Entry struct {
	Kind   EntryKind `json:"kind"`
	Client string    `json:"client"`
	Intent string    `json:"intent,omitempty"` // the caller's name for it, where that is not the key
	Key    string    `json:"idem_key"`
	Tool   string    `json:"tool,omitempty"`

	// Fingerprint tells requests for one key apart. It is kept for people.
	Fingerprint string `json:"fingerprint,omitempty"`

	Began time.Time `json:"began"` // before the first byte was sent
	At    time.Time `json:"at"`    // after the last byte was read, or when nobody waited any more

	Try    int  `json:"try,omitempty"`  // from 1 within the intent; 0 in an outcome
	Sent   bool `json:"sent,omitempty"` // the request may have reached the server
	Status int  `json:"status,omitempty"`

	// Code is that of a refusal. Effect is what the answer, or the outcome, says
	// about whether it may have happened; an outcome that is not succeeded needs it.
	Code   idem.Code  `json:"code,omitempty"`
	Effect idem.Doubt `json:"effect,omitempty"`

	// What was shown of the call. State is empty where no call was shown; of a
	// refusal only CallID is kept.
	CallID    string      `json:"call_id,omitempty"`
	Replayed  bool        `json:"replayed,omitempty"`
	State     idem.Status `json:"state,omitempty"`
	Attempt   int         `json:"attempt,omitempty"`
	Retryable bool        `json:"retryable,omitempty"` // the error's member
	UpdatedAt time.Time   `json:"updated_at,omitzero"` // tells two retryable ends of one attempt apart

	// Result and Error are the [Digest] of the members result and error, as they
	// were read: null has one as well. A try that shows an end needs both.
	Result string `json:"result_digest,omitempty"`
	Error  string `json:"error_digest,omitempty"`
}

// Digest is what an [Entry] keeps of the bytes of a result or an error: the first
// 32 hexadecimal digits of their SHA-256.
func Digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:digestLen])
}

const digestLen = 16

func (e *Entry) validate() error {
	kinds := []EntryKind{EntryPost, EntryFind, EntryPoll, EntryOutcome}
	outcome, ended := e.Kind == EntryOutcome, e.State.Ended()
	for _, d := range []string{e.Result, e.Error} {
		if b, err := hex.DecodeString(d); d != "" && (err != nil || len(b) != digestLen) {
			return fmt.Errorf("%q is no digest", shorten(d))
		}
	}
	switch {
	case !slices.Contains(kinds, e.Kind):
		return fmt.Errorf("there is no kind %q; there are %v", e.Kind, kinds)
	case e.Client == "":
		return errors.New("there is no client")
	case e.Key == "":
		return errors.New("there is no idem_key")
	case e.At.IsZero() || e.At.Year() < 1970 || e.At.Year() > 2200:
		return errors.New("there is no at, or it is not a time between 1970 and 2200")
	case !outcome && (e.Began.IsZero() || e.Began.Year() < 1970 || e.Began.Year() > 2200):
		return errors.New("there is no began, or it is not a time between 1970 and 2200")
	case e.State != "" && !e.State.Valid():
		return fmt.Errorf("there is no state %q; there are %v", e.State, idem.Statuses)
	case e.State != "" && e.CallID == "":
		return errors.New("there is a state, but no call_id")
	case e.State == "" && (e.Attempt != 0 || e.Retryable || e.Result != "" || e.Error != ""):
		return errors.New("a call is shown without a state")
	case e.Attempt < 0 || e.Attempt > math.MaxInt32-1:
		return fmt.Errorf("there is no attempt %d", e.Attempt)
	case e.Retryable && e.State != idem.StatusFailed:
		return fmt.Errorf("retryable does not go with the state %q", e.State)
	case e.Effect != "" && e.Effect != idem.DoubtNone && e.Effect != idem.DoubtUnknown && e.Effect != idem.DoubtCommitted:
		return fmt.Errorf("there is no effect %q", e.Effect)
	case e.Status != 0 && (e.Status < 100 || e.Status > 599):
		return fmt.Errorf("there is no status %d", e.Status)
	case outcome && e.State != idem.StatusSucceeded && e.Effect == "":
		return errors.New("an outcome that is not succeeded must have an effect")
	case !outcome && !e.Sent && e.Status != 0:
		return errors.New("there is an answer to what was not sent")
	case !outcome && e.State != "" && (e.Status < 200 || e.Status > 299):
		return fmt.Errorf("a call is shown with the status %d", e.Status)
	case !outcome && ended && (e.Result == "" || e.Error == ""):
		return errors.New("an end is shown without the digests of its result and its error")
	}
	return nil
}
