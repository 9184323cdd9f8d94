//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestCrowdJoinsOneCall asks fifty times for a call that takes two seconds, some
// waiting for it and some not (R2, R8).
func TestCrowdJoinsOneCall(t *testing.T) {
	t.Parallel()
	const crowd = 50
	d := startChaos(t)
	replies := together(crowd, func(i int) reply {
		if i%5 == 0 {
			return d.post("slow", "sleep", `{"seconds":2}`)
		}
		return d.post("slow", "sleep", `{"seconds":2}`, wait(20))
	})
	end := d.find("slow", wait(20)).wantEnd(t, idem.StatusSucceeded)
	for _, r := range replies {
		c := r.want(t, http.StatusOK, http.StatusAccepted)
		if c.CallID != end.CallID || c.Attempt > 1 || r.status == http.StatusOK && !c.sameEnd(end) {
			t.Errorf("want a part in %v, got %v", end, r)
		}
	}
	if end.Attempt != 1 || end.Deliveries != crowd {
		t.Errorf("attempt %d, %d deliveries of %d", end.Attempt, end.Deliveries, crowd)
	}
	if s := d.stats(t); s.Created != 1 || s.Joined != crowd-1 {
		t.Errorf("%d created and %d joined of %d", s.Created, s.Joined, crowd)
	}
	reconcile(t, d)
}

// TestCrowdOfANewKey asks 64 times at once for a key that nobody knows yet. To
// lose that race is no error (R2).
func TestCrowdOfANewKey(t *testing.T) {
	t.Parallel()
	const crowd = 64
	d := startChaos(t)
	var intents []string
	for _, tool := range []struct {
		name, args string
		opts       []option
	}{
		{"charge", `{"amount":5}`, []option{wait(20)}},
		{"charge", `{"amount":5}`, nil},
		{"ext_rerun", `{}`, []option{wait(20)}},
		{"send_email", `{"to":"a","subject":"b","body":"c"}`, []option{wait(20)}},
	} {
		for round := range size(3, 30) {
			key := fmt.Sprintf("%s-%d-%d", tool.name, len(tool.opts), round)
			intents = append(intents, key)
			replies := together(crowd, func(int) reply { return d.post(key, tool.name, tool.args, tool.opts...) })
			made := 0
			id := replies[0].want(t, http.StatusOK, http.StatusAccepted).CallID
			for _, r := range replies {
				c := r.want(t, http.StatusOK, http.StatusAccepted)
				if c.CallID != id || c.Attempt > 1 {
					t.Errorf("%s: want %s at its first attempt, got %v", key, id, r)
				}
				if r.replayed() == "false" {
					made++
				}
			}
			if made != 1 {
				t.Errorf("%s: %d answers say that they made the call", key, made)
			}
		}
	}
	if n := len(d.outside(t)); n != size(3, 30) {
		t.Errorf("%d dispatches of %d calls", n, size(3, 30))
	}
	reconcile(t, d, intents...)
}

// TestCrowdOfAFlakyKey asks again and again, from many sides, for a call that
// always fails and may be tried again. Every attempt was asked for by exactly
// one request, which is told of that attempt and of no other (R9, R12).
func TestCrowdOfAFlakyKey(t *testing.T) {
	t.Parallel()
	const crowd, each = 16, 25
	d := start(t)
	asked := make(chan reply, crowd*each)
	together(crowd, func(int) (last reply) {
		for range each {
			last = d.post("flaky", "fail", `{"retryable":true}`, wait(20))
			asked <- last
		}
		return last
	})
	close(asked)
	begun := make(map[int]bool)
	for r := range asked {
		c := r.wantEnd(t, idem.StatusFailed)
		if r.replayed() == "true" { // it joined somebody else's attempt
			continue
		}
		if begun[c.Attempt] {
			t.Errorf("two requests began attempt %d", c.Attempt)
		}
		begun[c.Attempt] = true
	}
	c := d.find("flaky").wantEnd(t, idem.StatusFailed)
	if s := d.stats(t); len(begun) != c.Attempt || s.Created+s.Requeued != int64(c.Attempt) || s.Calls != 1 {
		t.Errorf("%d attempts, begun by %d requests; %+v", c.Attempt, len(begun), s.counts)
	}
	t.Logf("%d requests, %d attempts", crowd*each, c.Attempt)
	reconcile(t, d)
}
