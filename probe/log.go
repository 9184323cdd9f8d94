package probe

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

// TryEntry is the line of a client's log for one try: what a client tells its
// observer about a request for tool under key. The name is the client's in the log.
func TryEntry(name, key, tool string, a client.Answer) Entry {
	e := Entry{
		Kind:   map[client.Kind]EntryKind{client.KindSubmit: EntryPost, client.KindFind: EntryFind, client.KindGet: EntryPoll}[a.Try.Kind],
		Client: name, Key: key, Tool: tool,
		Began: a.Try.Began, At: a.Try.Began.Add(a.Try.Duration),
		Try: a.Try.Number, Sent: !a.Try.Reading.NotSent, Status: a.Try.Reading.Status,
		Code: a.Try.Reading.Code, Effect: a.Try.Verdict.Effect, CallID: a.Try.CallID,
	}
	if a.Try.Reading.Broken {
		e.Status, e.Code, e.CallID = 0, "", "" // half an answer is none
	}
	e.shown(a)
	return e
}

// OutcomeEntry is the line of a client's log for what came of a request in the end,
// at the time at.
func OutcomeEntry(name, key, tool string, at time.Time, out client.Outcome, err error) Entry {
	e := Entry{Kind: EntryOutcome, Client: name, Key: key, Tool: tool, At: at}
	var failed *client.Error
	switch {
	case errors.As(err, &failed):
		e.Status, e.Code, e.Effect, e.CallID = failed.Status, failed.Code, failed.Effect, failed.CallID
	case err != nil:
		e.Effect = idem.DoubtUnknown
	default:
		e.Status, e.Effect = out.Try.Reading.Status, out.Try.Verdict.Effect
		e.shown(out.Answer)
	}
	return e
}

// shown keeps what an answer shows of a call.
func (e *Entry) shown(a client.Answer) {
	c := a.Call
	if c == nil {
		return
	}
	e.CallID, e.Replayed, e.State, e.Attempt = c.CallID, a.Replayed, c.Status, c.Attempt
	e.Retryable = c.Error != nil && c.Error.Retryable
	e.UpdatedAt, _ = time.Parse(time.RFC3339, c.UpdatedAt) // zero where it cannot be read
	var members struct {
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(a.Body, &members) == nil {
		e.Result, e.Error = Digest(members.Result), Digest(members.Error)
	}
}
