//go:build unix

package e2e

import (
	"net/http"
	"slices"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestEveryAnswerIsDefined runs into everything that can go wrong with a tool or
// a request. Each has one answer, the same for ever, and nothing keeps running
// with nobody on it (R3, R9, R14).
func TestEveryAnswerIsDefined(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--tool-timeout", "100ms")
	var intents []string
	for _, c := range []struct {
		name, tool, args string
		status           int
		code             idem.Code // of a refusal
		end              idem.Status
		failure          string
		retryable        bool
		last             int // the attempt at which it stays
	}{
		{name: "succeeds", tool: "charge", args: `{"amount":1}`, status: 200, end: idem.StatusSucceeded, last: 1},
		{name: "fails for good", tool: "fail", args: `{"message":"no"}`, status: 200, end: idem.StatusFailed, failure: "tool_failed", last: 1},
		{name: "panics", tool: "fail", args: `{"panic":true}`, status: 200, end: idem.StatusFailed, failure: "tool_panic", last: 1},
		{name: "takes too long", tool: "sleep", args: `{"seconds":5}`, status: 200, end: idem.StatusFailed, failure: "tool_timeout", retryable: true},
		{name: "fails outside", tool: "ext_hold", args: `{"do":"fail"}`, status: 200, end: idem.StatusFailed, failure: "tool_failed", last: 1},
		{name: "panics outside, may run again", tool: "ext_rerun", args: `{"do":"panic"}`, status: 200, end: idem.StatusFailed, failure: "tool_panic", retryable: true},
		{name: "panics outside, may not", tool: "ext_hold", args: `{"do":"panic"}`, status: 409, code: idem.CodeOutcomeUnknown},
		{name: "hangs outside, may not run again", tool: "ext_hold", args: `{"do":"hang"}`, status: 409, code: idem.CodeOutcomeUnknown},
		{name: "unknown tool", tool: "no_such_tool", args: `{}`, status: 400, code: idem.CodeBadRequest},
		{name: "missing argument", tool: "charge", args: `{}`, status: 422, code: idem.CodeInvalidArguments},
		{name: "wrong argument", tool: "charge", args: `{"amount":0.5}`, status: 422, code: idem.CodeInvalidArguments},
		{name: "args that are no object", tool: "charge", args: `[1]`, status: 400, code: idem.CodeBadRequest},
		{name: "args that are no JSON", tool: "charge", args: `{"amount":}`, status: 400, code: idem.CodeBadRequest},
	} {
		for round := 1; round <= 3; round++ {
			r := d.post(c.name, c.tool, c.args, wait(20))
			if media := r.header.Get("Content-Type"); r.lost == nil && media != "application/json" {
				t.Errorf("%s: Content-Type %q", c.name, media)
			}
			if c.code != "" {
				f := r.wantRefusal(t, c.status, c.code)
				if known := c.code == idem.CodeOutcomeUnknown; known != (f.CallID != "") || r.replayed() != "false" {
					t.Errorf("%s: the refusal is %v (replayed %q)", c.name, r, r.replayed())
				}
				continue
			}
			got := r.want(t, c.status)
			if f := got.failure(); got.Status != c.end || f.Code != c.failure || f.Retryable != c.retryable {
				t.Errorf("%s: got %v", c.name, r)
			}
			// What may be tried again has run again; anything else is given again,
			// errors too.
			attempt, replayed := c.last, "true"
			if c.retryable {
				attempt, replayed = round, "false"
			} else if round == 1 {
				replayed = "false"
			}
			if got.Attempt != attempt || r.replayed() != replayed {
				t.Errorf("%s, round %d: want attempt %d, replayed %s; got %v, replayed %s", c.name, round, attempt, replayed, r, r.replayed())
			}
		}
		if c.code != "" && c.code != idem.CodeOutcomeUnknown {
			d.find(c.name).wantRefusal(t, http.StatusNotFound, idem.CodeNotFound) // nothing was stored
		} else if c.end == idem.StatusSucceeded {
			intents = append(intents, c.name)
		}
	}
	// A key that was refused is free.
	d.post("missing argument", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	reconcile(t, d, append(intents, "missing argument")...)
}

// TestFailsTwiceThenSucceeds: one call, and its attempts count on (R9, R12).
func TestFailsTwiceThenSucceeds(t *testing.T) {
	t.Parallel()
	d := start(t)
	var ids []string
	for attempt := 1; attempt <= 4; attempt++ {
		r := d.post("flaky", "fail", `{"retryable":true,"times":2,"message":"not yet"}`, wait(20))
		c := r.want(t, http.StatusOK)
		ids = append(ids, c.CallID)
		want, replayed := idem.StatusFailed, "false"
		if attempt >= 3 {
			want = idem.StatusSucceeded
		}
		if attempt == 4 {
			replayed = "true"
		}
		if c.Status != want || c.Attempt != min(attempt, 3) || r.replayed() != replayed {
			t.Errorf("try %d: want %s, replayed %s; got %v, replayed %s", attempt, want, replayed, r, r.replayed())
		}
	}
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("more than one call: %v", ids)
	}
	if s := d.stats(t); s.Created != 1 || s.Requeued != 2 || s.Replayed != 1 {
		t.Errorf("the counts are %+v", s.counts)
	}
	reconcile(t, d)
}

// TestReplayIsTheAnswer compares the first answer with later ones, byte for byte:
// a result with numbers that no float holds, before and after a restart (R3).
func TestReplayIsTheAnswer(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	const args = `{"amount":9007199254740993}`
	first := d.post("exact", "charge", args, wait(20))
	a := first.wantEnd(t, idem.StatusSucceeded)
	for range 3 {
		r := d.post("exact", "charge", args, wait(20))
		if b := r.wantEnd(t, idem.StatusSucceeded); !b.sameEnd(a) || *b.ExpiresAt != *a.ExpiresAt || b.CreatedAt != a.CreatedAt {
			t.Errorf("want %v, got %v", first, r)
		}
		for _, name := range []string{"Content-Type", "Idempotency-Key", "Idemd-Call-Id", "Cache-Control"} {
			if got, want := r.header.Get(name), first.header.Get(name); got != want || want == "" {
				t.Errorf("%s is %q, was %q", name, got, want)
			}
		}
		if by := d.find("exact"); !by.wantEnd(t, idem.StatusSucceeded).sameEnd(a) {
			t.Errorf("by key: want %v, got %v", first, by)
		}
		d.restart(t)
	}
	if e := d.ledger(t); len(e) != 1 || e[0].Amount == nil || *e[0].Amount != 9007199254740993 {
		t.Errorf("the ledger is %+v", e)
	}
	reconcile(t, d, "exact")
}
