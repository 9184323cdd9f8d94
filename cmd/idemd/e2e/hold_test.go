//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// holdOne has the process killed after the tool of a call went out that may not
// go out again, and starts it again.
func holdOne(t *testing.T, d *daemon, key string) *call {
	t.Helper()
	if r := d.post(key, "ext_hold", `{}`, wait(20), fault(idem.PointAfterDispatch, "exit")); r.lost == nil {
		t.Fatalf("want no answer, got %v", r)
	}
	d.awaitDeath(t)
	d.boot(t)
	c := d.settled(t, key).want(t, http.StatusOK)
	if c.Status != idem.StatusHeld || c.failure().Code != idem.FailureLost {
		t.Fatalf("want a held call, got %v", c)
	}
	return c
}

// TestHeldUntilSomebodyDecides follows a call whose answer was lost and whose
// tool may not run again (R13).
func TestHeldUntilSomebodyDecides(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	const result = `{"receipt":"found in the provider's list","n":1.10}`
	for _, decision := range []struct {
		key, body string
		want      idem.Status
		result    string
		lines     int
	}{
		{"done", `{"outcome":"succeeded","by":"ann","note":"looked it up","result":` + result + `}`, idem.StatusSucceeded, result, 1},
		{"not done", `{"outcome":"failed","by":"ann","error":{"code":"refused","message":"no money"}}`, idem.StatusFailed, "null", 1},
		{"done again", `{"outcome":"retry","attempt":1,"by":"ann","note":"it never arrived"}`, idem.StatusSucceeded, "", 2},
	} {
		held := holdOne(t, d, decision.key)
		for _, opts := range [][]option{{wait(5)}, nil, {wait(5)}} {
			r := d.post(decision.key, "ext_hold", `{}`, opts...).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
			if r.CallID != held.CallID || r.Effect != idem.DoubtUnknown {
				t.Errorf("the refusal names %s, effect %s", r.CallID, r.Effect)
			}
		}
		d.post(decision.key, "ext_hold", `{"other":1}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
		if n := d.dispatched(t, held.EffectID); n != 1 {
			t.Errorf("%s: went out %d times", decision.key, n)
		}
		d.resolve(held.CallID, `{"outcome":"succeeded"}`).wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest) // by whom?
		d.restart(t)

		d.resolve(held.CallID, decision.body).want(t, http.StatusOK)
		end := d.look(held.CallID, wait(20)).wantEnd(t, decision.want)
		if decision.result != "" && string(end.Result) != decision.result {
			t.Errorf("%s: the result is %s, not %s", decision.key, end.Result, decision.result)
		}
		again := d.resolve(held.CallID, decision.body).wantRefusal(t, http.StatusConflict, idem.CodeNotHeld)
		if again.Status != decision.want {
			t.Errorf("%s: a second decision is told that the call is %s", decision.key, again.Status)
		}
		d.restart(t)
		r := d.post(decision.key, "ext_hold", `{}`, wait(20))
		if c := r.want(t, http.StatusOK); !c.sameEnd(end) || r.replayed() != "true" {
			t.Errorf("%s: want %v again, got %v", decision.key, end, r)
		}
		if n := d.dispatched(t, held.EffectID); n != decision.lines {
			t.Errorf("%s: went out %d times, want %d", decision.key, n, decision.lines)
		}
		trail := d.audit(t, held.CallID)
		for _, e := range trail {
			if e.Name == idem.EventResolved && (e.Detail.By != "ann" || e.Detail.Outcome == "") {
				t.Errorf("%s: the trail does not say who decided what: %+v", decision.key, e)
			}
		}
		if !has(trail, idem.EventHeld) || !has(trail, idem.EventResolved) {
			t.Errorf("%s: the trail is %v", decision.key, trail)
		}
	}
	reconcile(t, d, "done", "done again")
}

// TestVerificationDecides has the tool itself find out what became of a call
// (R13).
func TestVerificationDecides(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	held := func(key, args string) *call {
		t.Helper()
		if r := d.post(key, "ext_verify", args, wait(20), fault(idem.PointAfterDispatch, "exit")); r.lost == nil {
			t.Fatalf("want no answer, got %v", r)
		}
		d.awaitDeath(t)
		d.boot(t)
		return d.settled(t, key).want(t, http.StatusOK)
	}

	// No answer is none: it stays held until somebody decides.
	c := held("silent", `{"found":"error"}`)
	for range 2 {
		d.post("silent", "ext_verify", `{"found":"error"}`, wait(1)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
		d.restart(t)
	}
	if again := d.look(c.CallID).want(t, http.StatusOK); again.Status != idem.StatusHeld || d.dispatched(t, c.EffectID) != 1 {
		t.Errorf("want it held after one dispatch, got %v", again)
	}
	d.resolve(c.CallID, `{"outcome":"failed","by":"ann"}`).wantEnd(t, idem.StatusFailed)

	held("done", `{"found":true}`)
	c = d.find("done", wait(20)).wantEnd(t, idem.StatusSucceeded)
	if e, _ := last(d.audit(t, c.CallID), idem.EventResolved); c.Attempt != 1 || e.Detail.By != "verify" || d.dispatched(t, c.EffectID) != 1 {
		t.Errorf("want it found, got %v by %+v", c, e)
	}

	// It is not there. That is not believed before downstream can have answered.
	began := time.Now()
	held("not done", `{"found":false}`)
	c = d.find("not done", wait(20)).wantEnd(t, idem.StatusSucceeded)
	if took := time.Since(began); c.Attempt != 2 || d.dispatched(t, c.EffectID) != 2 || took < 2*time.Second {
		t.Errorf("want it to go out again after a while, got %v after %v", c, took)
	}
	reconcile(t, d, "done", "not done")
}

// TestDeafTool has a tool that does not stop when it is told to. Its attempt is
// given up; what it says in the end is too late, and noted for the person who
// decides (R6, R14).
func TestDeafTool(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	// Its time is up after two seconds, its grace five later.
	r := d.post("deaf", "ext_hold", `{"do":"deaf","seconds":8}`, wait(20))
	f := r.wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	c := d.look(f.CallID).want(t, http.StatusOK)
	if c.Status != idem.StatusHeld || c.failure().Code != idem.FailureTimeout {
		t.Errorf("want it held after its time-out, got %v", c)
	}
	eventually(t, "its answer was noted", func() bool { return has(d.audit(t, c.CallID), idem.EventStaleResult) })
	if e, _ := last(d.audit(t, c.CallID), idem.EventStaleResult); e.Detail.Outcome != "succeeded" || e.Attempt != 1 {
		t.Errorf("what is noted is %+v", e)
	}
	if s := d.stats(t); s.Abandoned != 1 || s.Stale != 1 {
		t.Errorf("%d abandoned, %d stale results", s.Abandoned, s.Stale)
	}
	if c := d.look(c.CallID).want(t, http.StatusOK); c.Status != idem.StatusHeld || d.dispatched(t, c.EffectID) != 1 {
		t.Errorf("the late answer changed it: %v", c)
	}
	d.resolve(c.CallID, `{"outcome":"succeeded","by":"ann","note":"the late answer says so"}`).wantEnd(t, idem.StatusSucceeded)
	reconcile(t, d, "deaf")
}

// TestToolIsGone starts the process without the tools of calls that it has
// (R13, R14).
func TestToolIsGone(t *testing.T) {
	t.Parallel()
	d := prepare(t, t.TempDir())
	d.boot(t, "--chaos", "--workers", "3")
	d.post("ended", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	ids := make(map[string]string)
	for _, in := range []struct{ key, tool, args string }{
		{"holding", "ext_hold", `{"do":"deaf"}`},
		{"again", "ext_rerun", `{"do":"deaf"}`},
		{"sleeping", "sleep", `{"seconds":1}`},
		{"waiting", "charge", `{"amount":2}`},
	} {
		c := d.post(in.key, in.tool, in.args).want(t, http.StatusAccepted)
		ids[in.key] = c.EffectID
		if in.key != "waiting" {
			d.awaitStatus(t, c.CallID, idem.StatusRunning)
		}
	}
	eventually(t, "they went out", func() bool { return d.dispatched(t, ids["holding"])+d.dispatched(t, ids["again"]) == 2 })
	d.kill(t)

	d.boot(t, "--no-samples")
	for key := range ids {
		c := d.settled(t, key).want(t, http.StatusOK)
		f := c.failure()
		switch {
		case key == "holding" && c.Status == idem.StatusHeld:
		case key != "holding" && c.Status == idem.StatusFailed && f.Code == idem.FailureMissing && f.Retryable:
		default:
			t.Errorf("%v", c)
		}
	}
	if r := d.post("ended", "charge", `{"amount":1}`); r.wantEnd(t, idem.StatusSucceeded) != nil && r.replayed() != "true" {
		t.Errorf("a known key needs no tool: %v", r)
	}
	d.post("ended", "charge", `{"amount":7}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	d.post("new", "charge", `{"amount":1}`).wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest)
	d.kill(t)

	d.boot(t, "--chaos")
	d.post("waiting", "charge", `{"amount":2}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	d.post("sleeping", "sleep", `{"seconds":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	d.post("again", "ext_rerun", `{"do":"deaf"}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	f := d.post("holding", "ext_hold", `{"do":"deaf"}`, wait(20)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	d.resolve(f.CallID, `{"outcome":"succeeded","by":"ann"}`).wantEnd(t, idem.StatusSucceeded)
	if n := d.dispatched(t, ids["holding"]); n != 1 {
		t.Errorf("went out %d times", n)
	}
	reconcile(t, d, "ended", "waiting", "again", "holding")
}

// TestDecisionOfAnEarlierAttempt: two people have looked into the same attempt. What
// the second one saw says nothing of the attempt that the first one's decision brought
// about, and it must not bring a third one (R13).
func TestDecisionOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--tool-timeout", "200ms")
	f := d.post("k", "ext_hold", `{"do":"hang"}`, wait(20)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	held := d.look(f.CallID).want(t, http.StatusOK)
	again := fmt.Sprintf(`{"outcome":"retry","attempt":%d,"by":"ann"}`, held.Attempt)
	d.resolve(f.CallID, again).want(t, http.StatusOK)
	eventually(t, "it is held again", func() bool {
		c := d.look(f.CallID).want(t, http.StatusOK)
		return c.Status == idem.StatusHeld && c.Attempt == held.Attempt+1
	})
	for _, body := range []string{again, fmt.Sprintf(`{"outcome":"succeeded","attempt":%d,"by":"bob"}`, held.Attempt)} {
		if r := d.resolve(f.CallID, body).wantRefusal(t, http.StatusConflict, idem.CodeNotHeld); r.Status != idem.StatusHeld {
			t.Errorf("a stale decision is told that the call is %s", r.Status)
		}
	}
	_, words, code := command(t, "resolve", f.CallID, "--url", d.now().url, "--outcome", "retry", "--attempt", "1", "--by", "bob")
	if code != 3 || !strings.Contains(words, "held at attempt 2, not at 1") {
		t.Errorf("exit code %d: %s", code, words)
	}
	if n := d.dispatched(t, held.EffectID); n != 2 {
		t.Errorf("it went out %d times", n)
	}
	d.resolve(f.CallID, `{"outcome":"succeeded","attempt":2,"by":"ann"}`).wantEnd(t, idem.StatusSucceeded)
}
