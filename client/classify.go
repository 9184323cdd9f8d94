package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/idemd/idemd/idem"
)

// Action is what a client does next.
type Action string

// The actions. Wherever a request is sent again, it is the same key and the same
// bytes.
const (
	ActionDone  Action = "done"  // the call has its end
	ActionStop  Action = "stop"  // nothing is gained by sending it again
	ActionAgain Action = "again" // wait, then send it again
	ActionAsk   Action = "ask"   // wait, then ask for the call by its key before sending it again
	ActionPoll  Action = "poll"  // accepted: ask for the call by its id until it has its end
)

// Reading is what was read of one request. The zero value is a request that was
// sent and got no answer.
type Reading struct {
	// Status is the answer's HTTP status; 0 where there was no answer: a
	// time-out, a reset, a closed connection.
	Status int

	// Code is the code of idemd's own error document, known by its member
	// "effect". Empty where the answer is no such document, which means that
	// some other service may have given it.
	Code idem.Code

	// Effect is what that document says of the effect: there it can raise the doubt
	// of the verdict, and never lowers it. In a call that failed it is what its error
	// says, which decides; empty where the server does not tell.
	Effect idem.Doubt

	// Call is the status of the call in a 200 or 202. Empty means what the
	// contract of a submission says of the HTTP status: 200 is an end, and is
	// taken for a success; 202 is on its way.
	Call idem.Status

	// Failure is the code of the failure in such a call; empty where there is
	// none. After some of them nobody knows what the tool had done by then, where
	// Effect does not tell.
	Failure string

	// Retryable says of such a failure that the same key may open the call again.
	Retryable bool

	// NotSent means that there never was a connection: refused, no such host,
	// no route.
	NotSent bool

	// Broken means that the body of a 200 or 202 is not a whole call object, or
	// is another call than the one that was asked for.
	Broken bool

	// RetryAfter is what the answer's Retry-After, or the failure's retry_after, asked
	// for; 0 where it did not.
	RetryAfter time.Duration
}

// Verdict is what a reading means.
type Verdict struct {
	Effect idem.Doubt `json:"effect"` // may it have happened?
	Action Action     `json:"action"`
	Why    string     `json:"why"` // for people
}

// Classify says what a reading of a request with a key means and what to do next. It
// is the whole of a client's judgement of one answer; what earlier tries of the
// same key left open is for whoever has seen them.
//
// Whatever is not in the contract is taken for the worst that it can mean. A
// redirect is never followed: idemd sends none, so another service answered. 307
// and 308 ask for the same request elsewhere, which says that it was not carried
// out here; after any other redirect it may have been.
func Classify(r Reading) Verdict {
	v := classify(r)
	if r.Status >= 300 && rank(r.Effect) > rank(v.Effect) {
		v.Effect = r.Effect
	}
	return v
}

func classify(r Reading) Verdict {
	own := r.Code != ""
	switch s := r.Status; {
	case r.NotSent:
		return Verdict{idem.DoubtNone, ActionAgain, "there never was a connection"}
	case s == 0:
		return Verdict{idem.DoubtUnknown, ActionAsk, "no answer: it may have been carried out"}
	case s == http.StatusOK || s == http.StatusAccepted:
		return classifyCall(r)
	case own && s >= 400 && r.Code == idem.CodeOutcomeUnknown:
		return Verdict{idem.DoubtUnknown, ActionStop, "the call is held: somebody has to find out"}
	case s == http.StatusTemporaryRedirect || s == http.StatusPermanentRedirect:
		return Verdict{idem.DoubtNone, ActionStop, "a redirect: this is not idemd"}
	case s >= 300 && s < 400:
		return Verdict{idem.DoubtUnknown, ActionStop, "a redirect: this is not idemd, and it may have done anything"}
	case s == http.StatusRequestTimeout, s == http.StatusTooEarly, s == http.StatusTooManyRequests,
		s == http.StatusServiceUnavailable, s == http.StatusInsufficientStorage:
		if own {
			return Verdict{idem.DoubtNone, ActionAgain, "not accepted now; nothing was recorded"}
		}
		return Verdict{idem.DoubtUnknown, ActionAgain, "not idemd's answer: whoever gave it may have passed the request on"}
	case s >= 400 && s < 500:
		return Verdict{idem.DoubtNone, ActionStop, "refused as it is"}
	case s >= 500 && s < 600:
		return Verdict{idem.DoubtUnknown, ActionAgain, "the server failed: it may have been carried out"}
	default:
		return Verdict{idem.DoubtUnknown, ActionAsk, "not an answer of idemd"}
	}
}

// classifyCall is for the statuses that come with a call.
func classifyCall(r Reading) Verdict {
	switch {
	case r.Broken:
		return Verdict{idem.DoubtUnknown, ActionAsk, "the answer's body is not a whole call"}
	case r.Call == idem.StatusHeld:
		return Verdict{idem.DoubtUnknown, ActionStop, "the call is held: somebody has to find out"}
	case r.Call == idem.StatusSucceeded, r.Call == "" && r.Status == http.StatusOK:
		return Verdict{idem.DoubtCommitted, ActionDone, "the call has succeeded"}
	case r.Call == idem.StatusFailed && inDoubt(r.Failure, r.Effect) && r.Retryable:
		return Verdict{idem.DoubtUnknown, ActionDone, "the call has failed, and may have been done all the same: never ask for it but with the same key"}
	case r.Call == idem.StatusFailed && inDoubt(r.Failure, r.Effect):
		return Verdict{idem.DoubtUnknown, ActionStop, "the call has failed for good, and may have been done all the same: somebody has to find out"}
	case r.Call == idem.StatusFailed:
		return Verdict{idem.DoubtNone, ActionDone, "the call has failed: it was not done"}
	case r.Call == idem.StatusPending, r.Call == idem.StatusRunning, r.Call == "":
		return Verdict{idem.DoubtUnknown, ActionPoll, "accepted: it will be carried out"}
	default:
		return Verdict{idem.DoubtUnknown, ActionAsk, "the call is in a state that this client does not know"}
	}
}

// inDoubt reports whether a call that failed may have been done all the same. The
// server knows, since an earlier attempt may have been the one. Where it does not
// tell, a failure without an answer of the tool is one of which nobody knows (R14).
func inDoubt(code string, effect idem.Doubt) bool {
	if effect != "" {
		return effect != idem.DoubtNone
	}
	return code == idem.FailureTimeout || code == idem.FailurePanic || code == idem.FailureExhausted || code == idem.FailureLost
}

// rank orders doubts by how much they forbid; an unknown word forbids nothing.
func rank(d idem.Doubt) int {
	switch d {
	case idem.DoubtCommitted:
		return 2
	case idem.DoubtUnknown:
		return 1
	default:
		return 0
	}
}

// readingDoc is a reading in JSON. A duration is written as Go does, "1.5s".
type readingDoc struct {
	Status     int         `json:"status"`
	Code       idem.Code   `json:"code,omitempty"`
	Effect     idem.Doubt  `json:"effect,omitempty"`
	Call       idem.Status `json:"call,omitempty"`
	Failure    string      `json:"failure,omitempty"`
	Retryable  bool        `json:"retryable,omitempty"`
	NotSent    bool        `json:"not_sent,omitempty"`
	Broken     bool        `json:"broken,omitempty"`
	RetryAfter string      `json:"retry_after,omitempty"`
}

// MarshalJSON writes a reading as UnmarshalJSON reads it.
func (r Reading) MarshalJSON() ([]byte, error) {
	d := readingDoc{Status: r.Status, Code: r.Code, Effect: r.Effect, Call: r.Call, Failure: r.Failure, Retryable: r.Retryable, NotSent: r.NotSent, Broken: r.Broken}
	if r.RetryAfter != 0 {
		d.RetryAfter = r.RetryAfter.String()
	}
	return json.Marshal(d)
}

// UnmarshalJSON reads a recorded reading. Its members are status (0 or absent:
// no answer), code, effect, call, failure, retryable, not_sent, broken and retry_after: a duration
// ("1.5s") or the header's own seconds ("7"). An unknown member or a reading that
// cannot be is refused, since a misspelled one would be taken for no answer.
func (r *Reading) UnmarshalJSON(b []byte) error {
	var d readingDoc
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return fmt.Errorf("client: reading: %w", err)
	}
	got := Reading{Status: d.Status, Code: d.Code, Effect: d.Effect, Call: d.Call, Failure: d.Failure, Retryable: d.Retryable, NotSent: d.NotSent, Broken: d.Broken}
	var err error
	if d.RetryAfter != "" {
		got.RetryAfter, err = parseWait(d.RetryAfter)
	}
	if err = errors.Join(err, got.validate()); err != nil {
		return err
	}
	*r = got
	return nil
}

func parseWait(s string) (time.Duration, error) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("client: reading: retry_after %q is not a wait", s)
	}
	return d, nil
}

func (r Reading) validate() error {
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("client: reading: "+format, args...))
		}
	}
	want(r.Status == 0 || r.Status >= 100 && r.Status <= 599, "status %d is none of HTTP", r.Status)
	want(!r.NotSent || r.Status == 0, "what was not sent has no status")
	want(r.Effect == "" || r.Effect == idem.DoubtNone || rank(r.Effect) > 0, "unknown effect %q", r.Effect)
	want(r.Call == "" || r.Call.Valid(), "unknown status of a call %q", r.Call)
	with := r.Status == http.StatusOK || r.Status == http.StatusAccepted
	want(with || r.Call == "" && !r.Broken, "call and broken go with the statuses 200 and 202")
	want(r.Failure == "" || r.Call != "", "failure goes with call")
	want(!r.Retryable || r.Failure != "", "retryable goes with failure")
	return errors.Join(faults...)
}
