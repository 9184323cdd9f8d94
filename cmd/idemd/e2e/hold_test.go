//go:build unix

package e2e

import (
	"net/http"
	"testing"

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
		{"done again", `{"outcome":"retry","by":"ann","note":"it never arrived"}`, idem.StatusSucceeded, "", 2},
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
