//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestPoisonIsStopped has a tool that ends the process, and somebody who starts
// it again and again. After three deaths the call is stopped; its neighbours,
// which died along with it, complete, and the process stays up (R12).
func TestPoisonIsStopped(t *testing.T) {
	t.Parallel()
	const maxCrashes, supervised = 3, 10
	d := startChaos(t, "--max-crashes", fmt.Sprint(maxCrashes))
	// They are running when the poison is dispatched.
	neighbours := []string{"sleep-0", "sleep-1", "sleep-2", "sleep-3", "ext_rerun-0", "ext_rerun-1", "ext_rerun-2"}
	args := map[string]string{"sleep": `{"seconds":0.3}`, "ext_rerun": `{"do":"deaf","seconds":0.3}`}
	patience := wait(20)
	if torture() {
		// Each of them has to run alone before it is the poison's turn.
		args["sleep"], patience = `{"seconds":5}`, wait(60)
	}
	var intents []string
	for _, key := range neighbours {
		tool := key[:len(key)-2]
		d.awaitStatus(t, d.post(key, tool, args[tool]).want(t, http.StatusAccepted).CallID, idem.StatusRunning)
		if tool == "ext_rerun" {
			intents = append(intents, key)
		}
	}
	if r := d.post("poison", "ext_rerun", `{"do":"exit"}`, patience); r.lost == nil {
		t.Fatalf("want no answer, got %v", r)
	}
	d.awaitDeath(t)

	deaths := 1
	for ; deaths < supervised; deaths++ {
		if !d.bootToDie(t) {
			continue
		}
		// What is new goes on as well.
		key := fmt.Sprint("order-", deaths)
		if r := d.post(key, "charge", `{"amount":1}`, patience); r.lost == nil {
			r.wantEnd(t, idem.StatusSucceeded)
		}
		intents = append(intents, key)
		ended := later(func() reply { return d.find("poison", patience) })
		if r := <-ended; r.lost == nil {
			break
		}
		d.awaitDeath(t)
	}
	if deaths != maxCrashes {
		t.Errorf("the process died %d times", deaths)
	}
	c := d.find("poison").wantEnd(t, idem.StatusFailed)
	if f := c.failure(); f.Code != idem.FailureExhausted || f.Retryable || c.Crashes != maxCrashes || c.Attempt != maxCrashes {
		t.Errorf("want it stopped for good after %d attempts, got %v, %d crashes", maxCrashes, c, c.Crashes)
	}
	if n := d.dispatched(t, c.EffectID); n != maxCrashes {
		t.Errorf("the poison went out %d times", n)
	}
	again := d.post("poison", "ext_rerun", `{"do":"exit"}`, patience)
	if a := again.wantEnd(t, idem.StatusFailed); !a.sameEnd(c) || again.replayed() != "true" {
		t.Errorf("want %v again, got %v", c, again)
	}
	for _, key := range neighbours {
		if c := d.find(key, patience).wantEnd(t, idem.StatusSucceeded); c.Crashes >= maxCrashes {
			t.Errorf("%d crashes were counted for %v", c.Crashes, c)
		}
	}
	for _, key := range intents { // asked for again where the answer was lost
		if d.find(key).status == http.StatusNotFound {
			d.post(key, "charge", `{"amount":1}`, patience).wantEnd(t, idem.StatusSucceeded)
		}
	}
	reconcile(t, d, intents...)
}

// TestPoisonThatMayNotRunAgain is held after its first death, and never sent out
// a second time (R12, R13).
func TestPoisonThatMayNotRunAgain(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	if r := d.post("poison", "ext_hold", `{"do":"exit"}`, wait(20)); r.lost == nil {
		t.Fatalf("want no answer, got %v", r)
	}
	d.awaitDeath(t)
	for range 3 {
		d.boot(t)
		c := d.settled(t, "poison").want(t, http.StatusOK)
		if c.Status != idem.StatusHeld || d.dispatched(t, c.EffectID) != 1 {
			t.Fatalf("want it held after one dispatch, got %v after %d", c, d.dispatched(t, c.EffectID))
		}
		d.kill(t)
	}
	d.boot(t)
	reconcile(t, d)
}

// TestSuspectRunsAlone follows a call that two deaths of the process were part
// of, by chance. Before the third life knows better, it runs with nothing beside
// it, new or old; then everything goes on (R12).
func TestSuspectRunsAlone(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--max-crashes", "3")
	const args = `{"do":"deaf","seconds":1}`
	suspect := d.post("suspect", "ext_rerun", args).want(t, http.StatusAccepted)
	for lives := 1; lives <= 2; lives++ {
		eventually(t, "it went out", func() bool { return d.dispatched(t, suspect.EffectID) == lives })
		if lives == 2 {
			d.post("old", "sleep", `{"seconds":0.2}`).want(t, http.StatusAccepted)
		}
		d.restart(t)
	}
	intents := []string{"suspect", "new-0", "new-1", "new-2"}
	eventually(t, "it went out", func() bool { return d.dispatched(t, suspect.EffectID) == 3 })
	for _, key := range intents[1:] {
		if c := d.post(key, "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded); c.Attempt != 1 {
			t.Errorf("want attempt 1, got %v", c)
		}
	}
	calls := reconcile(t, d, intents...)
	s := calls["suspect"]
	alone, _ := last(d.audit(t, s.CallID), idem.EventSucceeded)
	if s.Status != idem.StatusSucceeded || s.Attempt != 3 || s.Crashes != 2 {
		t.Errorf("want it to succeed after two crashes, got %v, %d crashes", &s, s.Crashes)
	}
	for _, key := range append(intents[1:], "old") {
		c := calls[key]
		if claimed, _ := last(d.audit(t, c.CallID), idem.EventClaimed); claimed.At.Before(alone.At) {
			t.Errorf("%v was claimed %v before the suspect had ended", &c, alone.At.Sub(claimed.At))
		}
	}
}

// TestPanicAtEveryPoint has a tool panic at every point. The call ends as a panic
// of its tool does, or is not touched where it had ended before, and nobody
// else notices (R13, R14).
func TestPanicAtEveryPoint(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	var intents []string
	for _, p := range idem.Points {
		for i, f := range forms {
			key := fmt.Sprintf("%s-%d", p, i)
			args := f.args(p)
			r := d.post(key, f.tool, args, f.opts(fault(p, "panic"))...)
			after := p == idem.PointAfterCommit || p == idem.PointBeforeReply
			switch {
			case p == idem.PointBeforeReply: // what panics there is not the tool
				if r.wantRefusal(t, http.StatusInternalServerError, idem.CodeInternal).Effect != idem.DoubtUnknown {
					t.Errorf("%s, %s: want doubt, got %v", p, f.name, r)
				}
			case r.status != http.StatusOK && r.status != http.StatusAccepted && r.status != http.StatusConflict:
				t.Errorf("%s, %s: %v", p, f.name, r)
			}
			c := d.settled(t, key).want(t, http.StatusOK)
			want := idem.StatusFailed
			switch {
			case after:
				want = idem.StatusSucceeded
			case f.tool == "ext_hold":
				want = idem.StatusHeld
			case f.tool == "ext_verify":
				c = d.find(key, wait(20)).want(t, http.StatusOK)
				want = idem.StatusSucceeded
			}
			if c.Status != want || c.Attempt > 2 || c.Attempt > 1 && f.tool != "ext_verify" {
				t.Errorf("%s, %s: want %s, got %v", p, f.name, want, c)
			}
			if fl := c.failure(); want == idem.StatusFailed && (fl.Code != idem.FailurePanic || fl.Retryable != (f.tool == "ext_rerun")) {
				t.Errorf("%s, %s: the failure is %+v", p, f.name, fl)
			}
			if want == idem.StatusSucceeded && f.tool != "sleep" {
				intents = append(intents, key)
			}
		}
		key := fmt.Sprint("neighbour of ", p)
		d.post(key, "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
		intents = append(intents, key)
	}
	reconcile(t, d, intents...)
}

// TestOtherFaults has answers dropped, delayed and replaced at every point. The
// calls go on as if nothing had happened (R15).
func TestOtherFaults(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	var intents []string
	for _, p := range idem.Points {
		for _, action := range []string{"drop", "error", "sleep:30ms"} {
			for i, f := range []form{
				{"charge, waiting", "charge", always(`{"amount":1}`), true},
				{"charge", "charge", always(`{"amount":1}`), false},
				{"ext_hold, waiting", "ext_hold", always(`{}`), true},
			} {
				key := fmt.Sprintf("%s-%s-%d", p, action, i)
				r := d.post(key, f.tool, f.args(p), f.opts(fault(p, action))...)
				felt := f.wait || p == idem.PointBeforeReply // else the answer may be out before the point
				switch {
				case action == "drop" && felt && r.lost == nil:
					t.Errorf("%s, %s: want no answer, got %v", key, f.name, r)
				case action == "error" && felt:
					r.wantRefusal(t, http.StatusInternalServerError, idem.CodeInternal)
				case action == "sleep:30ms":
					r.want(t, http.StatusOK, http.StatusAccepted)
				}
				intents = append(intents, key)
				if c := d.find(key, wait(20)).wantEnd(t, idem.StatusSucceeded); c.Attempt != 1 {
					t.Errorf("%s: attempt %d", key, c.Attempt)
				}
			}
		}
	}
	reconcile(t, d, intents...)
}
