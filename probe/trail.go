package probe

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/idem"
)

// Trail is a call and its whole audit trail: a line of a dump, in NDJSON.
type Trail struct {
	CallID  string       `json:"call_id"`
	Key     string       `json:"idem_key"`
	Tool    string       `json:"tool,omitempty"`
	Effects idem.Effects `json:"effects,omitempty"` // what the tool promised; empty where it is not known
	Events  []TrailEvent `json:"events"`
}

// TrailEvent is an event as the server shows it.
type TrailEvent struct {
	Seq     int            `json:"seq"`
	At      time.Time      `json:"at"`
	Name    idem.EventName `json:"event"`
	Attempt int            `json:"attempt"`
	Owner   string         `json:"owner"`
	Detail  *idem.Detail   `json:"detail"`
}

// standing is where a call stands after some of its events.
type standing struct {
	status    idem.Status
	claims    int
	retryable bool // failed, and the same key may open it again
	recovered bool // found due: it may be claimed though it is running
	expired   bool
}

// walkTrail follows an audit trail through the state machine. It returns the first
// thing that the machine cannot have written, in words.
func walkTrail(events []TrailEvent) (s standing, fault string) {
	if len(events) == 0 {
		return s, "the audit trail is empty"
	}
	for i := range events {
		e := &events[i]
		if e.Seq != i {
			return s, fmt.Sprintf("event %d has the number %d", i, e.Seq)
		}
		if (i == 0) != (e.Name == idem.EventCreated) {
			return s, fmt.Sprintf("event %d is %s", i, e.Name)
		}
		if why := s.take(e); why != "" {
			return s, fmt.Sprintf("event %d, %s of attempt %d: %s", i, e.Name, e.Attempt, why)
		}
	}
	return s, ""
}

// take applies an event, or says why it cannot be.
func (s *standing) take(e *TrailEvent) string {
	var d idem.Detail
	if e.Detail != nil {
		d = *e.Detail
	}
	recovered := s.recovered
	if e.Name != idem.EventStaleResult {
		if s.expired {
			return "the call had expired"
		}
		s.recovered = false
		claimed := e.Name == idem.EventClaimed
		if want := s.claims; !claimed && e.Attempt != want {
			return fmt.Sprintf("there were %d claims", want)
		} else if claimed && e.Attempt != want+1 {
			return fmt.Sprintf("it is claim %d", want+1)
		}
	}
	from := s.status
	stood := fmt.Sprintf("the call was %s", from)
	switch e.Name {
	case idem.EventCreated:
		s.status = idem.StatusPending
	case idem.EventRecovered:
		if from != idem.StatusPending && from != idem.StatusRunning {
			return stood
		}
		s.recovered = true
	case idem.EventClaimed:
		if from != idem.StatusPending && (from != idem.StatusRunning || !recovered) {
			return stood
		}
		s.claims++
		s.status = idem.StatusRunning
	case idem.EventSucceeded:
		if from != idem.StatusRunning {
			return stood
		}
		s.status = idem.StatusSucceeded
	case idem.EventHeld:
		// Pending: an earlier attempt is in doubt, and the call may not run again.
		if from != idem.StatusRunning && (from != idem.StatusPending || s.claims == 0) {
			return stood
		}
		s.status = idem.StatusHeld
	case idem.EventFailed:
		if from != idem.StatusRunning && from != idem.StatusPending { // pending: its tool was gone
			return stood
		}
		s.status, s.retryable = idem.StatusFailed, d.Retryable != nil && *d.Retryable
	case idem.EventRequeued:
		if from != idem.StatusRunning && (from != idem.StatusFailed || !s.retryable) { // running: a clean stop
			return stood
		}
		s.status, s.retryable = idem.StatusPending, false
	case idem.EventResolved:
		if from != idem.StatusHeld {
			return stood
		}
		return s.resolve(d)
	case idem.EventStaleResult:
		if e.Attempt < 1 || e.Attempt > s.claims {
			return fmt.Sprintf("there were %d claims", s.claims)
		}
	case idem.EventExpired:
		if !from.Ended() {
			return stood
		}
		s.expired = true
	default:
		return "there is no such event"
	}
	return ""
}

func (s *standing) resolve(d idem.Detail) string {
	switch idem.Outcome(d.Outcome) {
	case idem.OutcomeSucceeded:
		s.status = idem.StatusSucceeded
	case idem.OutcomeFailed:
		s.status, s.retryable = idem.StatusFailed, d.Retryable != nil && *d.Retryable
	case idem.OutcomeRetry:
		s.status = idem.StatusPending
	default:
		return fmt.Sprintf("there is no outcome %q", shorten(d.Outcome))
	}
	return ""
}
