package httpapi

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// Answers are written by hand: members in the order of the contract, stored
// JSON byte for byte, and no reflection on the way.

func appendString(b []byte, s string) []byte {
	// The error speaks of invalid UTF-8, which is replaced, as it should be.
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	return append(b, '"')
}

// appendRaw appends stored JSON, null where there is none.
func appendRaw(b, raw []byte) []byte {
	if len(raw) == 0 {
		return append(b, "null"...)
	}
	return append(b, raw...)
}

// appendID appends what id.String returns, without a string in between.
func appendID(b []byte, id idem.CallID) []byte {
	return hex.AppendEncode(append(b, "c_"...), id[:])
}

func appendPath(b []byte, id idem.CallID) []byte {
	b = append(b, pathCalls...)
	return appendID(append(b, '/'), id)
}

const pathCalls = "/v1/tool-calls"

type callBody idem.Call

func (c *callBody) appendTo(b []byte) []byte { return appendCall(b, (*idem.Call)(c)) }

func appendCall(b []byte, c *idem.Call) []byte {
	b = append(b, `{"call_id":"`...)
	b = appendID(b, c.ID)
	b = append(b, `","idem_key":`...)
	b = appendString(b, c.Key.Name)
	b = append(b, `,"tool":`...)
	b = appendString(b, c.Tool)
	b = append(b, `,"status":"`...)
	b = append(b, c.Status...)
	b = append(b, `","attempt":`...)
	b = appendInt(b, int64(c.Attempt))
	b = append(b, `,"result":`...)
	b = appendRaw(b, c.Result)
	b = append(b, `,"error":`...)
	b = appendFailure(b, c)
	b = append(b, `,"effect_id":"`...)
	b = idem.AppendEffectID(b, c.ID)
	b = append(b, `","client_id":`...)
	if c.ClientID != nil {
		b = appendString(b, *c.ClientID)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"seq":`...)
	b = appendOptional(b, c.Seq)
	b = append(b, `,"deliveries":`...)
	b = appendInt(b, c.Deliveries)
	b = append(b, `,"created_at":`...)
	b = appendTime(b, c.CreatedAt)
	b = append(b, `,"updated_at":`...)
	b = appendTime(b, c.UpdatedAt)
	b = append(b, `,"expires_at":`...)
	if c.Status.Ended() {
		b = appendTime(b, c.ExpiresAt)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"query_url":"`...)
	b = appendPath(b, c.ID)
	b = append(b, '"')
	if c.Status == idem.StatusRunning {
		b = append(b, `,"owner":`...)
		b = appendString(b, c.Owner)
		b = append(b, `,"lease_until":`...)
		b = appendTime(b, c.LeaseUntil)
	}
	if c.Crashes != 0 {
		b = append(b, `,"crashes":`...)
		b = appendInt(b, int64(c.Crashes))
	}
	return append(b, '}')
}

// appendFailure appends why a call failed, or is held, and whether its effect may
// have happened all the same. It says so of nothing but the record, so that a
// replay has the same bytes.
func appendFailure(b []byte, c *idem.Call) []byte {
	f := c.Failure
	if f == nil {
		return append(b, "null"...)
	}
	b = append(b, `{"code":`...)
	b = appendString(b, f.Code)
	b = append(b, `,"message":`...)
	b = appendString(b, f.Message)
	b = append(b, `,"retryable":`...)
	b = strconv.AppendBool(b, f.Retryable)
	b = append(b, `,"effect":"`...)
	b = append(b, c.Doubt()...)
	b = append(b, '"')
	if f.RetryAfter > 0 {
		b = append(b, `,"retry_after":`...)
		b = appendInt(b, int64(f.RetryAfter/time.Second))
	}
	return append(b, '}')
}

// unrecordedBody is what a tool that keeps no record has done: there is no call
// that could be asked for.
type unrecordedBody idem.Call

func (c *unrecordedBody) appendTo(b []byte) []byte {
	b = append(b, `{"recorded":false,"tool":`...)
	b = appendString(b, c.Tool)
	b = append(b, `,"status":"`...)
	b = append(b, c.Status...)
	b = append(b, `","result":`...)
	b = appendRaw(b, c.Result)
	b = append(b, `,"error":`...)
	b = appendFailure(b, (*idem.Call)(c))
	return append(b, '}')
}

func appendOptional(b []byte, n *int64) []byte {
	if n == nil {
		return append(b, "null"...)
	}
	return appendInt(b, *n)
}

func appendEvent(b []byte, e *idem.Event) []byte {
	b = append(b, `{"seq":`...)
	b = appendInt(b, int64(e.Seq))
	b = append(b, `,"at":`...)
	b = appendTime(b, e.At)
	b = append(b, `,"event":`...)
	b = appendString(b, string(e.Name))
	b = append(b, `,"attempt":`...)
	b = appendInt(b, int64(e.Attempt))
	b = append(b, `,"owner":`...)
	b = appendString(b, e.Owner)
	b = append(b, `,"detail":`...)
	b = appendRaw(b, e.Detail)
	return append(b, '}')
}

func appendEffect(b []byte, e *idem.Effect) []byte {
	b = append(b, `{"effect_id":`...)
	b = appendString(b, e.ID)
	b = append(b, `,"call_id":"`...)
	b = appendID(b, e.CallID)
	b = append(b, `","idem_key":`...)
	b = appendString(b, e.Key.Name)
	b = append(b, `,"tool":`...)
	b = appendString(b, e.Tool)
	b = append(b, `,"amount":`...)
	b = appendOptional(b, e.Amount)
	b = append(b, `,"created_at":`...)
	b = appendTime(b, e.CreatedAt)
	return append(b, '}')
}

// page is a list that is already written, and where the next one begins.
type page struct {
	name  string
	items []byte // with commas between them
	next  string // empty at the end
}

func (p *page) appendTo(b []byte) []byte {
	b = append(b, `{"`...)
	b = append(b, p.name...)
	b = append(b, `":[`...)
	b = append(b, p.items...)
	b = append(b, `],"next_cursor":`...)
	if p.next == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, p.next)
	}
	return append(b, '}')
}

type statsBody idem.Stats

func (s *statsBody) appendTo(b []byte) []byte {
	b = append(b, `{"calls":`...)
	b = appendInt(b, s.Totals.Calls)
	b = append(b, `,"effects":`...)
	b = appendInt(b, s.Totals.Effects)
	b = append(b, `,"by_status":{`...)
	for i, status := range idem.Statuses {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, string(status))
		b = append(b, ':')
		b = appendInt(b, s.Totals.Status[i])
	}
	b = append(b, `},"attempts":{`...)
	first := len(b)
	for i, n := range s.Totals.Attempts {
		if i == 0 && n == 0 {
			continue // ended before any attempt; rare enough to be shown only where it is so
		}
		if len(b) > first {
			b = append(b, ',')
		}
		b = appendString(b, idem.AttemptBucket(i))
		b = append(b, ':')
		b = appendInt(b, n)
	}
	b = append(b, `},"since":`...)
	b = appendTime(b, s.Since)
	b = append(b, ',')
	b = appendCounts(b, s.Counts)
	b = append(b, `,"by_tool":{`...)
	for i, name := range sortedNames(s.ByTool) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, name)
		b = append(b, ":{"...)
		b = appendCounts(b, s.ByTool[name])
		b = append(b, '}')
	}
	return append(b, "}}"...)
}

func appendCounts(b []byte, c idem.Counts) []byte {
	for i, m := range [...]struct {
		name string
		n    int64
	}{
		{"deliveries", c.Deliveries},
		{"created", c.Created},
		{"replayed", c.Replayed},
		{"joined", c.Joined},
		{"requeued", c.Requeued},
		{"conflicts", c.Conflicts},
		{"refused", c.Refused},
		{"stale_results", c.StaleResults},
		{"abandoned", c.Abandoned},
	} {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, m.name...)
		b = append(b, `":`...)
		b = appendInt(b, m.n)
	}
	return b
}

type toolsBody struct {
	tools  []*idem.Tool
	window time.Duration
}

func (t *toolsBody) appendTo(b []byte) []byte {
	b = append(b, `{"tools":[`...)
	for i, tool := range t.tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendString(b, tool.Name)
		b = append(b, `,"description":`...)
		b = appendString(b, tool.Description)
		b = append(b, `,"effects":`...)
		b = appendString(b, string(tool.Effects))
		b = append(b, `,"rerun":`...)
		b = appendString(b, string(tool.Rerun))
		b = append(b, `,"schema":`...)
		b = appendRaw(b, tool.Schema)
		b = append(b, `,"window":`...)
		b = appendString(b, t.window.String())
		b = append(b, `,"recorded":`...)
		b = strconv.AppendBool(b, !tool.Unrecorded)
		b = append(b, `,"intent":`...)
		b = appendStrings(b, tool.Intent)
		rules := tool.Rules
		if rules == nil {
			rules = &idem.Rules{}
		}
		b = append(b, `,"fingerprint":{"ignore":`...)
		b = appendStrings(b, rules.Ignore)
		b = append(b, `,"trim":`...)
		b = appendStrings(b, rules.Trim)
		b = append(b, `,"nfc":`...)
		b = appendStrings(b, rules.NFC)
		b = append(b, `},"timeout":`...)
		if tool.Timeout > 0 {
			b = appendString(b, tool.Timeout.String())
		} else {
			b = append(b, "null"...)
		}
		b = append(b, `,"concurrency":`...)
		b = appendPositive(b, tool.Concurrency)
		b = append(b, `,"max_attempts":`...)
		b = appendPositive(b, tool.MaxAttempts)
		b = append(b, `,"max_crashes":`...)
		b = appendPositive(b, tool.MaxCrashes)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendPositive appends a number, null where it is 0: the tool does not say.
func appendPositive(b []byte, n int) []byte {
	if n == 0 {
		return append(b, "null"...)
	}
	return appendInt(b, int64(n))
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// text is a body that needs no work.
type text []byte

func (t text) appendTo(b []byte) []byte { return append(b, t...) }
