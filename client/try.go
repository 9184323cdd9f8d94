package client

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
)

// Kind is what a request was for.
type Kind string

// The kinds of requests.
const (
	KindSubmit Kind = "submit" // POST: runs the call if nobody did
	KindFind   Kind = "find"   // GET by key: runs nothing
	KindGet    Kind = "get"    // GET by id: runs nothing
)

// Try is one request on the wire, or one that did not get there. In JSON it is a
// line of a client's log, from which a history can be checked.
type Try struct {
	Number   int           `json:"try"` // 1, 2, … within one call of this client
	Kind     Kind          `json:"kind"`
	Key      string        `json:"key,omitempty"`     // the key's text, without quotes; empty for KindGet
	CallID   string        `json:"call_id,omitempty"` // as the answer says, or as it was asked for
	Reading  Reading       `json:"reading"`
	Verdict  Verdict       `json:"verdict"`
	Replayed bool          `json:"replayed"` // Idempotent-Replayed
	Began    time.Time     `json:"began"`
	Duration time.Duration `json:"duration_ns"`
	Error    string        `json:"error,omitempty"` // why there is no answer, or what the refusal says
}

// maxKept is how many tries an outcome keeps. There are fewer requests than that
// before a call is accepted, whatever the policy; questions about an accepted
// call beyond it go to the log and to the observer only.
const maxKept = 3*maxTries + 1

// Call is a call as the server shows it.
type Call struct {
	// Unrecorded says that the tool keeps no record: there is no call that could be
	// asked for, and of what follows only the tool, the status, the result and the
	// error are there.
	Unrecorded bool `json:"-"`

	CallID     string          `json:"call_id"`
	Key        string          `json:"idem_key"`
	Tool       string          `json:"tool"`
	Status     idem.Status     `json:"status"`
	Attempt    int             `json:"attempt"` // executions in the server, not tries
	Result     json.RawMessage `json:"result"`  // as stored, byte for byte
	Error      *Failure        `json:"error"`
	EffectID   string          `json:"effect_id"`
	ClientID   *string         `json:"client_id"`
	Seq        *int64          `json:"seq"`
	Deliveries int64           `json:"deliveries"`
	Crashes    int             `json:"crashes"`
	CreatedAt  string          `json:"created_at"` // RFC 3339, UTC, milliseconds
	UpdatedAt  string          `json:"updated_at"`
	ExpiresAt  *string         `json:"expires_at"` // nil until the call has its end
}

// Failure is why a call failed, or is held.
type Failure struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`

	// Effect says whether it may have been done all the same, by this attempt or an
	// earlier one. Empty where the server does not tell, as older ones do not.
	Effect idem.Doubt `json:"effect,omitempty"`

	// RetryAfter is for how many seconds what the tool calls asked to be left
	// alone; 0 where it did not.
	RetryAfter int64 `json:"retry_after,omitempty"`
}

// InDoubt reports whether the call may have been done although it failed, or is
// held. Where the server does not tell, the code of the failure decides.
func (f *Failure) InDoubt() bool { return inDoubt(f.Code, f.Effect) }

// wait is how long to leave it alone.
func (f *Failure) wait() time.Duration {
	return time.Duration(min(max(f.RetryAfter, 0), maxRetryAfter)) * time.Second
}

// retryable reports whether the call would run again if it were sent again.
func (c *Call) retryable() bool { return c.Error != nil && c.Error.Retryable }

// expiresAt is the end of the window; zero where there is none yet, or none that
// can be read.
func (c *Call) expiresAt() time.Time {
	if c == nil || c.ExpiresAt == nil {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, *c.ExpiresAt)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Answer is what one request brought.
type Answer struct {
	Try      Try
	Call     *Call  // nil where the answer is not a whole call
	Replayed bool   // the call was there already
	Body     []byte // the document, as it came; nil where there is no whole answer

	err error // why there is no whole answer
}

// Outcome is what came of a call.
type Outcome struct {
	Answer
	Tries []Try // every request, in order
}

// Refusal is an error document of the server.
type Refusal struct {
	Code    idem.Code   `json:"code"`
	Message string      `json:"message"`
	CallID  string      `json:"call_id"`
	Status  idem.Status `json:"status"`
	Effect  idem.Doubt  `json:"effect"`
}

// ParseCall reads a call out of the body of a 200 or 202; nil where it is not a
// whole call in a state that there is.
//
// What a tool without a record has done is one, too (see Call.Unrecorded).
func ParseCall(body []byte) *Call {
	var c Call
	doc := struct {
		*Call
		Recorded *bool `json:"recorded"`
	}{Call: &c}
	if json.Unmarshal(body, &doc) != nil || !c.Status.Valid() {
		return nil
	}
	if doc.Recorded != nil && !*doc.Recorded {
		if !c.Status.Ended() || c.CallID != "" {
			return nil
		}
		c.Unrecorded = true
		return &c
	}
	if _, err := idem.ParseCallID(c.CallID); err != nil { // it is going to be part of a path
		return nil
	}
	return &c
}

// What is kept of the words of a server, in bytes: a try is kept, logged and shown,
// and there may be thousands.
const (
	maxCode    = 64
	maxMessage = 4 << 10
)

// ParseRefusal reads idemd's own error document; nil where the body is none. Many
// services write {"error":{"code":…}}; "effect" is what tells idemd's apart. A message
// is cut at 4 KiB, and no code is over 64 bytes.
func ParseRefusal(body []byte) *Refusal {
	var doc struct {
		Error *Refusal `json:"error"`
	}
	if json.Unmarshal(body, &doc) != nil || doc.Error == nil || doc.Error.Code == "" || len(doc.Error.Code) > maxCode {
		return nil
	}
	doc.Error.Message = clip(doc.Error.Message, maxMessage)
	if _, err := idem.ParseCallID(doc.Error.CallID); err != nil {
		doc.Error.CallID = ""
	}
	switch doc.Error.Effect {
	case idem.DoubtNone, idem.DoubtUnknown, idem.DoubtCommitted:
		return doc.Error
	}
	return nil
}

// clip cuts text to so many bytes, between two runes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}
