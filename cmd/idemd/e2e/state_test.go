//go:build unix

package e2e

import (
	"net/http"
	"syscall"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestEveryState asks for a call in each state with the same args and with
// others, before and after a restart, by a kill and by a clean stop. Other args
// are a conflict, whatever the state; nothing runs and nothing is shown (R3).
func TestEveryState(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, d *daemon){
		"killed":  func(t *testing.T, d *daemon) { d.kill(t) },
		"stopped": func(t *testing.T, d *daemon) { d.stop(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyState(t, end)
		})
	}
}

func everyState(t *testing.T, end func(t *testing.T, d *daemon)) {
	d := startChaos(t, "--workers", "1", "--shutdown-timeout", "100ms")
	held := holdOne(t, d, "held")
	for _, in := range []struct{ key, tool, args string }{
		{"succeeded", "charge", `{"amount":1}`},
		{"failed", "fail", `{}`},
		{"retryable, before", "fail", `{"retryable":true}`},
		{"retryable, after", "fail", `{"retryable":true}`},
	} {
		d.post(in.key, in.tool, in.args, wait(20)).want(t, http.StatusOK)
	}
	// The one worker is busy with this one, in both lives.
	running := d.post("running", "sleep", `{"seconds":4}`).want(t, http.StatusAccepted)
	d.awaitStatus(t, running.CallID, idem.StatusRunning)
	d.post("pending", "charge", `{"amount":2}`).want(t, http.StatusAccepted)

	ask := func(retryable string) {
		t.Helper()
		for _, s := range []struct {
			key, tool, args, other string
			status                 idem.Status
			http                   int
		}{
			{"pending", "charge", `{"amount":2}`, `{"amount":3}`, idem.StatusPending, http.StatusAccepted},
			{"running", "sleep", `{"seconds":4}`, `{"seconds":5}`, idem.StatusRunning, http.StatusAccepted},
			{"succeeded", "charge", `{"amount":1}`, `{"amount":3}`, idem.StatusSucceeded, http.StatusOK},
			{"failed", "fail", `{}`, `{"message":"x"}`, idem.StatusFailed, http.StatusOK},
			{retryable, "fail", `{"retryable":true}`, `{"retryable":false}`, idem.StatusFailed, http.StatusAccepted},
			{"held", "ext_hold", `{}`, `{"x":1}`, idem.StatusHeld, http.StatusConflict},
		} {
			before := d.find(s.key).want(t, http.StatusOK)
			if before.Status != s.status {
				t.Fatalf("%s is %s", s.key, before.Status)
			}
			for _, wrong := range []func() reply{
				func() reply { return d.post(s.key, s.tool, s.other, wait(1)) },
				func() reply { return d.post(s.key, "send_email", `{"to":"a","subject":"b","body":"c"}`) },
				func() reply { return d.post(s.key, "no_such_tool", s.args) },
			} {
				r := wrong()
				f := r.wantRefusal(t, http.StatusConflict, idem.CodeConflict)
				if f.CallID != before.CallID || f.Effect != idem.DoubtNone || r.replayed() != "false" {
					t.Errorf("%s: the conflict is %v (replayed %q)", s.key, r, r.replayed())
				}
			}
			if after := d.find(s.key).want(t, http.StatusOK); after.Status != s.status || after.Attempt != before.Attempt {
				t.Errorf("%s: conflicts changed %v to %v", s.key, before, after)
			}
			r := d.post(s.key, s.tool, s.args)
			switch {
			case r.status != s.http:
				t.Errorf("%s: want %d, got %v", s.key, s.http, r)
			case s.status == idem.StatusHeld:
				r.wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
			case r.call.CallID != before.CallID:
				t.Errorf("%s: want %v, got %v", s.key, before, r)
			case s.key == retryable && (r.replayed() != "false" || r.call.Status != idem.StatusPending):
				t.Errorf("%s: want it to be pending again, got %v (replayed %q)", s.key, r, r.replayed())
			case s.key != retryable && (r.replayed() != "true" || r.call.Status != s.status):
				t.Errorf("%s: want it as it is, got %v (replayed %q)", s.key, r, r.replayed())
			}
		}
	}
	ask("retryable, before")
	end(t, d)
	d.boot(t)
	eventually(t, "it runs again", func() bool { return d.look(running.CallID).want(t, http.StatusOK).Attempt == 2 })
	ask("retryable, after")

	d.resolve(held.CallID, `{"outcome":"succeeded","by":"e2e"}`).wantEnd(t, idem.StatusSucceeded)
	calls := reconcile(t, d, "succeeded", "pending", "held")
	for key, attempts := range map[string]int{"pending": 1, "running": 2, "succeeded": 1, "failed": 1, "retryable, before": 2, "retryable, after": 2, "held": 1} {
		if c := calls[key]; c.Attempt != attempts {
			t.Errorf("want %d attempts of %v", attempts, &c)
		}
	}
}

// TestKeyOfAnotherTool uses the key of a charge for a mail. No mail goes out and
// nobody is told that one did (R3).
func TestKeyOfAnotherTool(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.post("order-1", "charge", `{"amount":100}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	const mail = `{"to":"a@example.org","subject":"receipt","body":"thanks"}`
	for _, opts := range [][]option{{wait(20)}, nil} {
		d.post("order-1", "send_email", mail, opts...).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	}
	d.signal(t, syscall.SIGKILL)
	d.awaitDeath(t)
	d.boot(t)
	d.post("order-1", "send_email", mail).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	for _, e := range d.ledger(t) {
		if e.Tool != "charge" {
			t.Errorf("an effect that nobody asked for: %+v", e)
		}
	}
	reconcile(t, d, "order-1")
}
