//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestPausedAtEveryPoint stops the process, not its clock, for some leases, while
// calls of every kind pass a point of their way that was made wide. Their
// goroutines live, so no call is taken over, nothing is done twice, and no result
// comes too late (R6, R8, R11).
func TestPausedAtEveryPoint(t *testing.T) {
	const lease = 100 * time.Millisecond
	rounds := size(2, 20)
	if torture() {
		rounds = 20
	}
	for _, p := range idem.Points {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			random := chance(t)
			d := startChaos(t, "--lease", lease.String())
			var intents []string
			for round := range rounds {
				keys := make([]string, len(forms))
				var pending []<-chan reply
				for i, f := range forms {
					keys[i] = fmt.Sprintf("r%d-%d", round, i)
					if f.tool != "sleep" {
						intents = append(intents, keys[i])
					}
					pending = append(pending, later(func() reply {
						return d.post(keys[i], f.tool, f.args(p), f.opts(fault(p, "sleep:200ms"))...)
					}))
				}
				time.Sleep(between(random, 0, 250*time.Millisecond)) // the moment of the pause
				d.signal(t, syscall.SIGSTOP)
				new := fmt.Sprintf("r%d-new", round)
				intents = append(intents, new)
				pending = append(pending, later(func() reply { return d.post(new, "charge", `{"amount":1}`, wait(20)) }))
				time.Sleep(between(random, lease, 5*lease)) // the pause
				d.signal(t, syscall.SIGCONT)
				for _, r := range pending {
					(<-r).want(t, http.StatusOK, http.StatusAccepted)
				}
				for i, f := range forms {
					c := d.find(keys[i], wait(20)).wantEnd(t, idem.StatusSucceeded)
					if trail := d.audit(t, c.CallID); c.Attempt != 1 || has(trail, idem.EventRecovered) || has(trail, idem.EventHeld) {
						t.Errorf("%s: want one attempt, got %v: %v", f.name, c, trail)
					}
					if n := d.dispatched(t, c.EffectID); f.tool[:4] == "ext_" && n != 1 {
						t.Errorf("%s: dispatched %d times", f.name, n)
					}
				}
			}
			if s := d.stats(t); s.Stale != 0 || s.Abandoned != 0 {
				t.Errorf("%d stale results, %d attempts abandoned", s.Stale, s.Abandoned)
			}
			reconcile(t, d, intents...)
		})
	}
}

// TestPausedBeyondTheTimeOut stops the process until the time of its tools is up
// and over. What came of a tool that stops when it is told to is not known; one
// that had an answer may give it. A result that came too late is in the audit
// trail (R6, R13, R14).
func TestPausedBeyondTheTimeOut(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--lease", "100ms")
	deeds := []struct{ key, tool, args string }{
		{"hold-hang", "ext_hold", `{"do":"hang"}`},
		{"rerun-hang", "ext_rerun", `{"do":"hang"}`},
		{"verify-hang", "ext_verify", `{"do":"hang","found":true}`},
		{"hold-deaf", "ext_hold", `{"do":"deaf","seconds":1}`},
		{"rerun-deaf", "ext_rerun", `{"do":"deaf","seconds":1}`},
		{"verify-deaf", "ext_verify", `{"do":"deaf","seconds":1,"found":true}`},
		{"sleep", "sleep", `{"seconds":1}`},
	}
	accepted := make(map[string]*call)
	for _, in := range deeds {
		accepted[in.key] = d.post(in.key, in.tool, in.args).want(t, http.StatusAccepted)
	}
	for _, in := range deeds {
		if c := accepted[in.key]; in.tool == "sleep" {
			d.awaitStatus(t, c.CallID, idem.StatusRunning)
		} else {
			eventually(t, in.key+" went out", func() bool { return d.dispatched(t, c.EffectID) == 1 })
		}
	}
	d.signal(t, syscall.SIGSTOP)
	time.Sleep(3 * time.Second) // the pause: the chaos tools have two seconds
	d.signal(t, syscall.SIGCONT)

	var intents []string
	stale := int64(0)
	for _, in := range deeds {
		c := d.settled(t, in.key).want(t, http.StatusOK)
		if in.tool == "ext_verify" { // the server finds out
			c = d.find(in.key, wait(20)).wantEnd(t, idem.StatusSucceeded)
		}
		trail := d.audit(t, c.CallID)
		if has(trail, idem.EventStaleResult) {
			stale++
		}
		if c.Attempt != 1 || has(trail, idem.EventRecovered) {
			t.Errorf("%s: want one attempt, got %v: %v", in.key, c, trail)
		}
		if n := d.dispatched(t, c.EffectID); in.tool != "sleep" && n != 1 {
			t.Errorf("%s: dispatched %d times", in.key, n)
		}
		f := c.failure()
		switch {
		case in.key == "hold-hang" && c.Status == idem.StatusHeld && f.Code == idem.FailureTimeout:
			d.resolve(c.CallID, `{"outcome":"succeeded","by":"e2e"}`).wantEnd(t, idem.StatusSucceeded)
		case in.key == "hold-deaf" && c.Status == idem.StatusHeld && f.Code == idem.FailureTimeout:
			d.resolve(c.CallID, `{"outcome":"succeeded","by":"e2e"}`).wantEnd(t, idem.StatusSucceeded)
		case in.key == "rerun-hang" && c.Status == idem.StatusFailed && f.Code == idem.FailureTimeout && f.Retryable:
			continue
		case in.key == "rerun-deaf" && c.Status == idem.StatusFailed && f.Code == idem.FailureTimeout && f.Retryable:
			d.post(in.key, in.tool, in.args, wait(20)).wantEnd(t, idem.StatusSucceeded)
		case c.Status != idem.StatusSucceeded || in.key[len(in.key)-4:] == "hang" && in.tool != "ext_verify":
			t.Errorf("%s: %v", in.key, c)
		}
		if in.tool != "sleep" {
			intents = append(intents, in.key)
		}
	}
	if s := d.stats(t); s.Stale != stale {
		t.Errorf("%d stale results, %d of them in the trails", s.Stale, stale)
	}
	reconcile(t, d, intents...)
}
