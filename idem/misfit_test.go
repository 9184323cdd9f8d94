package idem

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMisfits breaks one field of a record at a time; each is found and
// nothing else is.
func TestMisfits(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	whole := func(s Status) Call {
		c := Call{
			ID: CallID{1}, Key: Key{Namespace: DefaultNamespace, Name: "k"}, Tool: "charge",
			Status: s, Revision: 1, Deliveries: 1,
		}
		if s != StatusPending {
			c.Attempt, c.ClaimedAt = 1, at
		}
		switch s {
		case StatusRunning:
			c.Owner = "boot/1"
		case StatusHeld:
			c.Failure = &Failure{Code: FailureTimeout}
		case StatusSucceeded:
			c.EndedAt, c.ExpiresAt, c.Result = at, at, []byte("1")
		case StatusFailed:
			c.EndedAt, c.ExpiresAt, c.Failure = at, at, &Failure{Code: FailureTimeout}
		}
		return c
	}
	for _, s := range Statuses {
		t.Run("whole, "+string(s), func(t *testing.T) {
			c := whole(s)
			if got := c.Misfits(1); len(got) > 0 {
				t.Errorf("%v", got)
			}
		})
	}

	tombstone := func(c *Call) { c.Tombstone, c.Result, c.Failure = true, nil, nil }
	client, seq := "c", int64(1)
	for _, tc := range []struct {
		name   string
		status Status
		damage func(*Call)
		want   string // in what is said; "" for nothing
		end    bool
	}{
		{"doubt of what was tried, whatever its tool is now", StatusHeld, func(c *Call) { c.InDoubt, c.Effects = true, EffectsLocal }, "", false},
		{"doubt of a tombstone that failed", StatusFailed, func(c *Call) { tombstone(c); c.InDoubt = true }, "", false},
		{"doubt of what was never tried (R13)", StatusPending, func(c *Call) { c.InDoubt = true }, "in doubt", false},
		{"doubt of what is known (R13)", StatusSucceeded, func(c *Call) { c.InDoubt = true }, "in doubt", false},
		{"a pause", StatusFailed, func(c *Call) { c.Failure.RetryAfter = time.Second }, "", false},
		{"a pause into the past", StatusHeld, func(c *Call) { c.Failure.RetryAfter = -time.Second }, "in the past", false},
		{"no such status", StatusRunning, func(c *Call) { c.Status = "asleep" }, "no such status", false},
		{"an end without its time", StatusFailed, func(c *Call) { c.EndedAt = time.Time{} }, "time of its end", true},
		{"a time of an end without one", StatusHeld, func(c *Call) { c.EndedAt = at }, "time of its end", true},
		{"an end that never expires", StatusSucceeded, func(c *Call) { c.ExpiresAt = time.Time{} }, "time of its expiry", true},
		{"expires without an end (R16)", StatusPending, func(c *Call) { c.ExpiresAt = at }, "time of its expiry", true},
		{"no id", StatusPending, func(c *Call) { c.ID = CallID{} }, "no id", false},
		{"no key", StatusPending, func(c *Call) { c.Key.Name = "" }, "no key", false},
		{"no tool", StatusPending, func(c *Call) { c.Tool = "" }, "no tool", false},
		{"running for nobody (R6)", StatusRunning, func(c *Call) { c.Owner = "" }, "owner", false},
		{"an owner after the end", StatusFailed, func(c *Call) { c.Owner = "boot/1" }, "owner", false},
		{"an attempt without a claim (R12)", StatusHeld, func(c *Call) { c.ClaimedAt = time.Time{} }, "last claim", false},
		{"a claim without an attempt", StatusPending, func(c *Call) { c.ClaimedAt = at }, "last claim", false},
		{"no revision", StatusPending, func(c *Call) { c.Revision = 0 }, "revision", false},
		{"a revision beyond the trail", StatusPending, func(c *Call) { c.Revision = 2 }, "revision", false},
		{"no delivery", StatusPending, func(c *Call) { c.Deliveries = 0 }, "delivered", false},
		{"succeeded without a result", StatusSucceeded, func(c *Call) { c.Result = nil }, "result", false},
		{"a result without success", StatusHeld, func(c *Call) { c.Result = []byte("1") }, "result", false},
		{"failed without an error", StatusFailed, func(c *Call) { c.Failure = nil }, "error", false},
		{"held without an error", StatusHeld, func(c *Call) { c.Failure = nil }, "error", false},
		{"an error while running", StatusRunning, func(c *Call) { c.Failure = &Failure{} }, "error", false},
		{"a tombstone", StatusSucceeded, tombstone, "", false},
		{"a tombstone that gives the result", StatusSucceeded, func(c *Call) { c.Tombstone = true }, "tells more", false},
		{"a tombstone that gives the error", StatusFailed, func(c *Call) { c.Tombstone = true }, "tells more", false},
		{"a tombstone that names the client", StatusFailed, func(c *Call) { tombstone(c); c.ClientID = &client }, "tells more", false},
		{"a tombstone that gives the number", StatusFailed, func(c *Call) { tombstone(c); c.Seq = &seq }, "tells more", false},
		{"a tombstone without an end", StatusPending, tombstone, "without an end", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := whole(tc.status)
			tc.damage(&c)
			got := c.Misfits(1)
			if tc.want == "" {
				if len(got) > 0 {
					t.Errorf("%v, want nothing", got)
				}
				return
			}
			if !slices.ContainsFunc(got, func(m Misfit) bool { return strings.Contains(m.Text, tc.want) && m.End == tc.end }) || len(got) != 1 {
				t.Errorf("%v, want only %q, about the end: %v", got, tc.want, tc.end)
			}
		})
	}
}
