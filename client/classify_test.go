package client

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// The table of what was read, row by row.
func TestClassify(t *testing.T) {
	const (
		none, unknown, committed      = idem.DoubtNone, idem.DoubtUnknown, idem.DoubtCommitted
		done, stop, again, ask, poll_ = ActionDone, ActionStop, ActionAgain, ActionAsk, ActionPoll
	)
	for _, tc := range []struct {
		name   string
		read   Reading
		effect idem.Doubt
		action Action
	}{
		{"no connection", Reading{NotSent: true}, none, again},
		{"no answer", Reading{}, unknown, ask},
		{"200", Reading{Status: 200}, committed, done},
		{"200, succeeded", Reading{Status: 200, Call: idem.StatusSucceeded}, committed, done},
		{"200, failed", Reading{Status: 200, Call: idem.StatusFailed}, none, done},
		{"200, failed for certain", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailureTool}, none, done},
		{"200, failed, and it is known", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailureTool, Effect: none}, none, done},
		{"200, failed in doubt, may be asked again", Reading{Status: 200, Call: idem.StatusFailed, Failure: "declined", Retryable: true, Effect: unknown}, unknown, done},
		{"200, failed in doubt, for good", Reading{Status: 200, Call: idem.StatusFailed, Failure: "declined", Effect: unknown}, unknown, stop},
		// The server knows better than the code of the last failure.
		{"200, timed out without an effect", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailureTimeout, Retryable: true, Effect: none}, none, done},
		{"200, panicked without an effect", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailurePanic, Effect: none}, none, done},
		// An older server, which does not tell.
		{"200, timed out", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailureTimeout, Retryable: true}, unknown, done},
		{"200, panicked", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailurePanic}, unknown, stop},
		{"200, killed too often", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailureExhausted}, unknown, stop},
		{"200, answer lost", Reading{Status: 200, Call: idem.StatusFailed, Failure: idem.FailureLost}, unknown, stop},
		{"200, held, as a look-up shows it", Reading{Status: 200, Call: idem.StatusHeld}, unknown, stop},
		{"200, pending, as a look-up shows it", Reading{Status: 200, Call: idem.StatusPending}, unknown, poll_},
		{"200, running, as a look-up shows it", Reading{Status: 200, Call: idem.StatusRunning}, unknown, poll_},
		{"200, a state of a later release", Reading{Status: 200, Call: "thinking"}, unknown, ask},
		{"200, broken", Reading{Status: 200, Broken: true}, unknown, ask},
		{"202", Reading{Status: 202}, unknown, poll_},
		{"202, pending", Reading{Status: 202, Call: idem.StatusPending}, unknown, poll_},
		{"202, running", Reading{Status: 202, Call: idem.StatusRunning}, unknown, poll_},
		{"202, broken", Reading{Status: 202, Broken: true}, unknown, ask},
		{"400", Reading{Status: 400, Code: idem.CodeBadRequest}, none, stop},
		{"401", Reading{Status: 401, Code: idem.CodeUnauthorized}, none, stop},
		{"403", Reading{Status: 403, Code: idem.CodeForbidden}, none, stop},
		{"404", Reading{Status: 404, Code: idem.CodeNotFound}, none, stop},
		{"405", Reading{Status: 405, Code: idem.CodeMethodNotAllowed}, none, stop},
		{"409, conflict", Reading{Status: 409, Code: idem.CodeConflict}, none, stop},
		{"409, held", Reading{Status: 409, Code: idem.CodeOutcomeUnknown}, unknown, stop},
		{"410", Reading{Status: 410, Code: idem.CodeKeyExpired}, none, stop},
		{"413", Reading{Status: 413, Code: idem.CodePayloadTooLarge}, none, stop},
		{"415", Reading{Status: 415, Code: idem.CodeUnsupportedMediaType}, none, stop},
		{"422", Reading{Status: 422, Code: idem.CodeInvalidArguments}, none, stop},
		{"431", Reading{Status: 431, Code: idem.CodeHeadersTooLarge}, none, stop},
		{"refusal that is not sure", Reading{Status: 400, Code: idem.CodeBadRequest, Effect: unknown}, unknown, stop},
		{"500", Reading{Status: 500, Code: idem.CodeInternal}, unknown, again},
		{"500 that claims to be harmless", Reading{Status: 500, Code: idem.CodeInternal, Effect: none}, unknown, again},
		{"503", Reading{Status: 503, Code: idem.CodeUnavailable, Effect: none}, none, again},
		{"503 that is not sure", Reading{Status: 503, Code: idem.CodeUnavailable, Effect: unknown}, unknown, again},
		{"503 of somebody", Reading{Status: 503}, unknown, again},
		{"507", Reading{Status: 507, Code: idem.CodeInsufficientStorage}, none, again},
		{"307", Reading{Status: 307}, none, stop},
		{"303, done and shown elsewhere", Reading{Status: 303}, unknown, stop},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := Classify(tc.read)
			if v.Effect != tc.effect || v.Action != tc.action || v.Why == "" {
				t.Errorf("%+v, want %s and %s", v, tc.effect, tc.action)
			}
		})
	}
}

// Every status that there is, from idemd and from somebody else.
func TestClassifyEveryStatus(t *testing.T) {
	patient := []int{408, 425, 429, 503, 507}
	for status := 100; status <= 599; status++ {
		for _, own := range []bool{false, true} {
			r := Reading{Status: status}
			if own {
				r.Code = "some_code"
			}
			var want Verdict
			switch {
			case status == 200:
				want = Verdict{Effect: idem.DoubtCommitted, Action: ActionDone}
			case status == 202:
				want = Verdict{Effect: idem.DoubtUnknown, Action: ActionPoll}
			case status < 300:
				want = Verdict{Effect: idem.DoubtUnknown, Action: ActionAsk}
			case status == 307 || status == 308:
				want = Verdict{Effect: idem.DoubtNone, Action: ActionStop}
			case status < 400:
				want = Verdict{Effect: idem.DoubtUnknown, Action: ActionStop}
			case slices.Contains(patient, status) && own:
				want = Verdict{Effect: idem.DoubtNone, Action: ActionAgain}
			case slices.Contains(patient, status):
				want = Verdict{Effect: idem.DoubtUnknown, Action: ActionAgain}
			case status < 500:
				want = Verdict{Effect: idem.DoubtNone, Action: ActionStop}
			default:
				want = Verdict{Effect: idem.DoubtUnknown, Action: ActionAgain}
			}
			got := Classify(r)
			if got.Why == "" {
				t.Errorf("%+v: no reason", r)
			}
			if got.Why = ""; got != want {
				t.Errorf("%+v: %+v, want %+v", r, got, want)
			}
		}
	}
}

func TestReadingJSON(t *testing.T) {
	for text, want := range map[string]Reading{
		`{}`:                              {},
		`{"status":0}`:                    {},
		`{"not_sent":true}`:               {NotSent: true},
		`{"status":202,"broken":true}`:    {Status: 202, Broken: true},
		`{"status":200,"call":"running"}`: {Status: 200, Call: idem.StatusRunning},
		`{"status":503,"code":"unavailable","effect":"none","retry_after":"1.5s"}`: {
			Status: 503, Code: idem.CodeUnavailable, Effect: idem.DoubtNone, RetryAfter: 1500 * time.Millisecond},
		`{"status":503,"retry_after":"7"}`: {Status: 503, RetryAfter: 7 * time.Second},
		`{"status":200,"call":"failed","failure":"busy","retryable":true,"effect":"unknown"}`: {
			Status: 200, Call: idem.StatusFailed, Failure: "busy", Retryable: true, Effect: idem.DoubtUnknown},
	} {
		var got Reading
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var back Reading
		if err := json.Unmarshal(b, &back); err != nil || back != want {
			t.Errorf("%s: %+v, %v", b, back, err)
		}
	}
	for text, says := range map[string]string{
		`{"staus":503}`:                    "unknown field",
		`{"status":99}`:                    "99",
		`{"status":600}`:                   "600",
		`{"status":-1}`:                    "-1",
		`{"status":503,"not_sent":true}`:   "not sent",
		`{"status":200,"call":"thinking"}`: "thinking",
		`{"status":404,"call":"pending"}`:  "go with",
		`{"broken":true}`:                  "go with",
		`{"status":200,"retryable":true}`:  "retryable goes with",
		`{"effect":"perhaps"}`:             "perhaps",
		`{"retry_after":"soon"}`:           "soon",
		`{"retry_after":"-1s"}`:            "-1s",
		`[]`:                               "client: reading",
	} {
		got := Reading{Status: 7}
		if err := json.Unmarshal([]byte(text), &got); err == nil || !strings.Contains(err.Error(), says) || got.Status != 7 {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	b, err := json.Marshal(Verdict{Effect: idem.DoubtNone, Action: ActionAgain, Why: "x"})
	if err != nil || string(b) != `{"effect":"none","action":"again","why":"x"}` {
		t.Errorf("%s, %v", b, err)
	}
}

// A reading of no member is one nobody has named in the JSON.
func TestReadingDocHasEveryMember(t *testing.T) {
	r, d := reflect.TypeFor[Reading](), reflect.TypeFor[readingDoc]()
	for i := range r.NumField() {
		if _, ok := d.FieldByName(r.Field(i).Name); !ok {
			t.Errorf("%s is not written", r.Field(i).Name)
		}
	}
}
