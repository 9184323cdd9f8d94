//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestScenarios is what idemd is for, in seven short stories.
func TestScenarios(t *testing.T) {
	for _, s := range []struct {
		name string
		run  func(t *testing.T, d *daemon) (intents []string)
	}{
		{"the same key is the same call", sameKey},
		{"another key is another call", otherKey},
		{"the same key with other args is a conflict", otherArgs},
		{"twelve requests of one key at once have one effect", twelveAtOnce},
		{"a retryable failure runs again", runsAgain},
		{"a crash after the commit changes no answer", crashAfterCommit},
		{"a late answer and the same key again", lateAnswer},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			d := startChaos(t)
			reconcile(t, d, s.run(t, d)...)
		})
	}
}

// R2, R3.
func sameKey(t *testing.T, d *daemon) []string {
	first := d.post("order-1", "charge", `{"amount":100}`, wait(10))
	a := first.wantEnd(t, idem.StatusSucceeded)
	if first.replayed() != "false" {
		t.Errorf("Idempotent-Replayed of the first answer: %q", first.replayed())
	}
	for _, opts := range [][]option{{wait(10)}, nil} {
		again := d.post("order-1", "charge", `{"amount":100}`, opts...)
		if b := again.wantEnd(t, idem.StatusSucceeded); !b.sameEnd(a) || again.replayed() != "true" {
			t.Errorf("the second answer differs: %v (replayed %q), first %v", again, again.replayed(), first)
		}
	}
	return []string{"order-1"}
}

// R1.
func otherKey(t *testing.T, d *daemon) []string {
	a := d.post("order-1", "charge", `{"amount":100}`, wait(10)).wantEnd(t, idem.StatusSucceeded)
	b := d.post("order-2", "charge", `{"amount":100}`, wait(10)).wantEnd(t, idem.StatusSucceeded)
	if a.CallID == b.CallID || a.EffectID == b.EffectID {
		t.Errorf("two keys, one call: %v and %v", a, b)
	}
	return []string{"order-1", "order-2"}
}

// R3.
func otherArgs(t *testing.T, d *daemon) []string {
	a := d.post("order-1", "charge", `{"amount":100}`, wait(10)).wantEnd(t, idem.StatusSucceeded)
	r := d.post("order-1", "charge", `{"amount":999}`, wait(10)).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	if r.CallID != a.CallID || r.Effect != idem.DoubtNone {
		t.Errorf("the conflict names %s, effect %s; want %s, none", r.CallID, r.Effect, a.CallID)
	}
	if b := d.find("order-1").wantEnd(t, idem.StatusSucceeded); !b.sameEnd(a) {
		t.Errorf("the conflict changed the call: %v, was %v", b, a)
	}
	return []string{"order-1"}
}

// R2, R8.
func twelveAtOnce(t *testing.T, d *daemon) []string {
	replies := together(12, func(i int) reply {
		if i%2 == 0 {
			return d.post("order-1", "charge", `{"amount":100}`, wait(10))
		}
		return d.post("order-1", "charge", `{"amount":100}`)
	})
	first, fresh := "", 0
	for _, r := range replies {
		c := r.want(t, http.StatusOK, http.StatusAccepted)
		if first == "" {
			first = c.CallID
		}
		if c.CallID != first {
			t.Errorf("two calls for one key: %s and %s", first, c.CallID)
		}
		if r.replayed() == "false" {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d of 12 answers say that they made the call", fresh)
	}
	return []string{"order-1"}
}

// R9.
func runsAgain(t *testing.T, d *daemon) []string {
	const args = `{"retryable":true,"times":1}`
	a := d.post("order-1", "fail", args, wait(10)).wantEnd(t, idem.StatusFailed)
	if f := a.failure(); f.Code != idem.FailureTool || !f.Retryable {
		t.Errorf("the failure is %+v", f)
	}
	again := d.post("order-1", "fail", args, wait(10))
	b := again.wantEnd(t, idem.StatusSucceeded)
	if b.CallID != a.CallID || b.Attempt != 2 || again.replayed() != "false" {
		t.Errorf("want attempt 2 of %s, not a replay; got %v", a.CallID, again)
	}
	return nil // it has no effect
}

// R4, R7.
func crashAfterCommit(t *testing.T, d *daemon) []string {
	r := d.post("order-1", "charge", `{"amount":100}`, wait(10), fault(idem.PointAfterCommit, "exit"))
	if r.lost == nil {
		t.Fatalf("want no answer, got %v", r)
	}
	d.awaitDeath(t)
	d.boot(t)
	stored := d.find("order-1").wantEnd(t, idem.StatusSucceeded)
	again := d.post("order-1", "charge", `{"amount":100}`, wait(10))
	if a := again.wantEnd(t, idem.StatusSucceeded); !a.sameEnd(stored) || a.Attempt != 1 || again.replayed() != "true" {
		t.Errorf("want %v as a replay, got %v", stored, again)
	}
	return []string{"order-1"}
}

// R15.
func lateAnswer(t *testing.T, d *daemon) []string {
	var intents []string
	for i, tool := range []struct{ name, args string }{{"charge", `{"amount":100}`}, {"ext_rerun", `{}`}} {
		key := fmt.Sprint("order-", i)
		r := d.post(key, tool.name, tool.args, wait(10), fault(idem.PointBeforeReply, "sleep:600ms"), impatient(200*time.Millisecond))
		if r.lost == nil {
			t.Fatalf("want no answer in time, got %v", r)
		}
		again := d.post(key, tool.name, tool.args, wait(10))
		a := again.wantEnd(t, idem.StatusSucceeded)
		if a.Attempt != 1 || again.replayed() != "true" {
			t.Errorf("want a replay of attempt 1, got %v", again)
		}
		if tool.name == "ext_rerun" && d.dispatched(t, a.EffectID) != 1 {
			t.Errorf("dispatched %d times", d.dispatched(t, a.EffectID))
		}
		intents = append(intents, key)
	}
	return intents
}
