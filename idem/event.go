package idem

import (
	"encoding/json"
	"time"
)

// EventName is a word of the audit trail.
type EventName string

// The words of the audit trail.
const (
	EventCreated     EventName = "created"
	EventClaimed     EventName = "claimed"
	EventSucceeded   EventName = "succeeded"
	EventFailed      EventName = "failed"
	EventHeld        EventName = "held"
	EventRequeued    EventName = "requeued"     // by the same key, or by a clean stop that could not drain
	EventRecovered   EventName = "recovered"    // found due after an earlier life, or after a lease ran out
	EventStaleResult EventName = "stale_result" // a result that came too late and was dropped (R6)
	EventResolved    EventName = "resolved"     // decided by a person or a verification
	EventExpired     EventName = "expired"      // the window is over; only the key is remembered
)

// Event is one line of a call's audit trail.
type Event struct {
	Seq     int // 0, 1, 2 … within the call; given by the store
	At      time.Time
	Name    EventName
	Attempt int
	Owner   string
	Detail  []byte // a JSON object, or nil
}

// Detail is what an event may say beyond its name.
type Detail struct {
	Outcome   string `json:"outcome,omitempty"`   // of a stale result or a resolution
	Code      string `json:"code,omitempty"`      // of a failure
	Message   string `json:"message,omitempty"`   // of a failure
	Retryable *bool  `json:"retryable,omitempty"` // of a failure
	Crashes   int    `json:"crashes,omitempty"`   // counted so far, on recovery
	From      string `json:"from,omitempty"`      // the owner that a call was taken from
	By        string `json:"by,omitempty"`        // who resolved
	Note      string `json:"note,omitempty"`      // why
	Reason    string `json:"reason,omitempty"`    // why a clean stop put the call back
}

// Outcome is the outcome in the event's detail; empty where it has none.
func (e Event) Outcome() string {
	var d Detail
	if e.Detail == nil || json.Unmarshal(e.Detail, &d) != nil {
		return ""
	}
	return d.Outcome
}

func (d Detail) encode() []byte {
	if d == (Detail{}) {
		return nil
	}
	b, err := json.Marshal(d)
	if err != nil { // strings, ints and a bool: cannot happen
		panic(err)
	}
	return b
}

func failureDetail(f Failure) Detail {
	return Detail{Code: f.Code, Message: f.Message, Retryable: &f.Retryable}
}
