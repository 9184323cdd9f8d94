//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// soon is how long after a restart a call may take to be final, whatever its
// lease was (R11).
const soon = 2 * time.Second

// form is a way in which a call comes in and what its tool promises.
type form struct {
	name string
	tool string
	args func(p idem.Point) string
	wait bool
}

func (f form) opts(extra ...option) []option {
	if f.wait {
		return append(extra, wait(20))
	}
	return extra
}

func always(args string) func(idem.Point) string { return func(idem.Point) string { return args } }

// found lets a verification tell the truth: before the tool was dispatched there
// is nothing to be found downstream.
func found(p idem.Point) string {
	if p == idem.PointAfterCreate || p == idem.PointAfterClaim {
		return `{"found":false}`
	}
	return `{"found":true}`
}

var forms = []form{
	{"charge, waiting", "charge", always(`{"amount":7}`), true}, // one fused commit
	{"charge", "charge", always(`{"amount":7}`), false},
	{"sleep, waiting", "sleep", always(`{"seconds":0}`), true},
	{"sleep", "sleep", always(`{"seconds":0}`), false},
	{"ext_rerun, waiting", "ext_rerun", always(`{}`), true},
	{"ext_rerun", "ext_rerun", always(`{}`), false},
	{"ext_hold, waiting", "ext_hold", always(`{}`), true},
	{"ext_hold", "ext_hold", always(`{}`), false},
	{"ext_verify, waiting", "ext_verify", found, true},
}

// TestKillAtEveryPoint kills the process at every point of a call's way, for
// every kind of tool. After a restart the call is final, or held where its tool
// says so, within two seconds, although its lease is half an hour: when the
// client asks again, and also when nobody does (R4, R7, R8, R11, R13, R15).
func TestKillAtEveryPoint(t *testing.T) {
	for _, p := range idem.Points {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			d := startChaos(t, "--lease", "30m")
			k := &killing{d: d, point: p}
			kills := size(len(forms), 2*2*len(forms))
			for i := range kills {
				f := forms[i%len(forms)]
				// Each form gets its turn both ways, and so do its neighbours.
				k.once(t, f, fmt.Sprintf("k-%d", i), (i+i/len(forms))%2 == 0)
			}
			t.Logf("%d kills\n%s", kills, k.table.String())
			reconcile(t, d, k.intents...)
		})
	}
}

// killing is a series of kills at one point.
type killing struct {
	d       *daemon
	point   idem.Point
	intents []string // with an effect
	table   strings.Builder
}

// once has the process killed while a call is on its way, starts it again, and
// follows the call to its end.
func (k *killing) once(t *testing.T, f form, key string, retry bool) {
	t.Helper()
	d, args := k.d, f.args(k.point)
	r := d.post(key, f.tool, args, f.opts(fault(k.point, "exit"))...)
	if r.lost == nil && (f.wait || r.status != http.StatusAccepted) {
		t.Fatalf("%s: the process was to die before it answered %v", f.name, r)
	}
	d.awaitDeath(t)
	d.boot(t)
	accepted := r.lost == nil

	left := d.find(key)
	state := "absent"
	if left.status == http.StatusOK {
		state = string(left.call.Status)
	} else if left.wantRefusal(t, http.StatusNotFound, idem.CodeNotFound); accepted {
		t.Errorf("%s: the call was accepted and is gone (R4)", f.name)
	}
	if retry || state == "absent" {
		left = d.post(key, f.tool, args, wait(20))
	} else {
		left = d.settled(t, key)
	}
	took := time.Since(d.now().readyAt)
	if took > generous(soon) {
		t.Errorf("%s: final only %v after the start", f.name, took)
	}

	if left.status == http.StatusConflict || left.call != nil && left.call.Status == idem.StatusHeld {
		k.decide(t, f, key, args)
	}
	end := d.find(key).wantEnd(t, idem.StatusSucceeded)
	for range 2 {
		again := d.post(key, f.tool, args, f.opts()...)
		if c := again.wantEnd(t, idem.StatusSucceeded); !c.sameEnd(end) || again.replayed() != "true" {
			t.Errorf("%s: want %v again, got %v", f.name, end, again)
		}
	}
	k.checkOutside(t, f, end)
	fmt.Fprintf(&k.table, "%-20s retry %-5v found %-9s %7.1f ms, attempt %d\n",
		f.name, retry, state, float64(took.Microseconds())/1000, end.Attempt)
	if f.tool != "sleep" {
		k.intents = append(k.intents, key)
	}
}

// decide follows a call that is held: it stays so, whoever asks, until somebody
// finds out what happened (R13).
func (k *killing) decide(t *testing.T, f form, key, args string) {
	t.Helper()
	d := k.d
	if f.tool == "ext_verify" { // it finds out by itself
		d.find(key, wait(20)).wantEnd(t, idem.StatusSucceeded)
		return
	}
	if f.tool != "ext_hold" {
		t.Errorf("%s: held, although its tool may run again", f.name)
	}
	var id string
	for range 2 {
		r := d.post(key, f.tool, args, f.opts()...).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
		if r.Effect != idem.DoubtUnknown || r.CallID == "" {
			t.Errorf("%s: the refusal says effect %s of call %q", f.name, r.Effect, r.CallID)
		}
		id = r.CallID
	}
	held := d.look(id).want(t, http.StatusOK)
	switch n := d.dispatched(t, held.EffectID); n {
	case 0: // it never went out
		d.resolve(id, fmt.Sprintf(`{"outcome":"retry","attempt":%d,"by":"e2e","note":"not found outside"}`, held.Attempt)).want(t, http.StatusOK)
		d.look(id, wait(20)).wantEnd(t, idem.StatusSucceeded)
	case 1:
		d.resolve(id, `{"outcome":"succeeded","by":"e2e","result":{"found":true}}`).wantEnd(t, idem.StatusSucceeded)
	default:
		t.Errorf("%s: dispatched %d times without anybody's leave", f.name, n)
	}
}

// checkOutside counts what the external tools did for a call that succeeded.
func (k *killing) checkOutside(t *testing.T, f form, end *call) {
	t.Helper()
	n := k.d.dispatched(t, end.EffectID)
	switch f.tool {
	case "ext_rerun":
		if n < 1 || n > end.Attempt {
			t.Errorf("%s: dispatched %d times in %d attempts", f.name, n, end.Attempt)
		}
	case "ext_hold", "ext_verify":
		if n != 1 {
			t.Errorf("%s: dispatched %d times", f.name, n)
		}
	}
}

// settled waits until a call that exists has an end or is held.
func (d *daemon) settled(t testing.TB, key string) reply {
	t.Helper()
	var r reply
	eventually(t, key+" is settled", func() bool {
		r = d.find(key)
		s := r.want(t, http.StatusOK).Status
		return s.Ended() || s == idem.StatusHeld
	})
	return r
}

// TestKillBetweenEffectAndReply kills the process at random moments after a
// request went out and before it is answered. Whatever was stored is what every
// later answer gives (R4, R7).
func TestKillBetweenEffectAndReply(t *testing.T) {
	t.Parallel()
	const keys = 8
	random := chance(t)
	d := startChaos(t)
	var intents []string
	stored, lost := 0, 0
	for round := range size(10, 100) {
		var pending []<-chan reply
		first := make([]reply, keys)
		for i := range keys {
			key := fmt.Sprintf("r%d-%d", round, i)
			intents = append(intents, key)
			pending = append(pending, later(func() reply {
				return d.post(key, "charge", `{"amount":3}`, wait(20), fault(idem.PointBeforeReply, "sleep:20s"))
			}))
		}
		ours := intents[len(intents)-keys:]
		if round%2 == 0 { // the effects are there for sure, and seen
			for i, key := range ours {
				eventually(t, key+" is stored", func() bool {
					first[i] = d.find(key)
					return first[i].status == http.StatusOK && first[i].call.Status.Ended()
				})
			}
		}
		time.Sleep(between(random, 0, 12*time.Millisecond)) // the moment of the kill
		d.kill(t)
		for _, p := range pending {
			if r := <-p; r.lost == nil {
				t.Fatalf("want no answer, got %v", r)
			}
		}
		d.boot(t)
		for i, key := range ours {
			if d.find(key).status == http.StatusOK {
				stored++
			} else {
				lost++
			}
			r := d.post(key, "charge", `{"amount":3}`, wait(20))
			c := r.wantEnd(t, idem.StatusSucceeded)
			if first[i].call != nil && (!c.sameEnd(first[i].call) || r.replayed() != "true") {
				t.Errorf("the answer changed: %v, was %v", r, first[i])
			}
		}
	}
	t.Logf("killed with %d calls stored and %d not yet", stored, lost)
	reconcile(t, d, intents...)
}

// TestAcceptedThenKilled kills the process right after the receipt. Nobody asks
// again; the calls run all the same (R4, R5, R15).
func TestAcceptedThenKilled(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--workers", "2")
	var intents []string
	for round := range size(4, 30) {
		var keys []string
		for _, tool := range []string{"charge", "ext_rerun", "sleep", "charge"} {
			keys = append(keys, fmt.Sprintf("r%d-%d-%s", round, len(keys), tool))
			if tool != "sleep" {
				intents = append(intents, keys[len(keys)-1])
			}
		}
		replies := together(len(keys), func(i int) reply {
			tool := keys[i][strings.LastIndex(keys[i], "-")+1:]
			return d.post(keys[i], tool, map[string]string{"charge": `{"amount":1}`, "ext_rerun": `{}`, "sleep": `{"seconds":0.2}`}[tool])
		})
		d.kill(t)
		for _, r := range replies {
			r.want(t, http.StatusAccepted)
		}
		d.boot(t)
		for _, key := range keys {
			d.find(key, wait(20)).wantEnd(t, idem.StatusSucceeded)
		}
	}
	reconcile(t, d, intents...)
}

// TestResumesWithinItsLease kills the process while a call runs whose lease is
// half an hour. The next life does not wait for it (R11).
func TestResumesWithinItsLease(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--lease", "30m")
	id := d.post("long", "sleep", `{"seconds":1}`).want(t, http.StatusAccepted).CallID
	d.awaitStatus(t, id, idem.StatusRunning)
	d.restart(t)
	eventually(t, "the second attempt has begun", func() bool { return d.look(id).want(t, http.StatusOK).Attempt == 2 })
	if took := time.Since(d.now().readyAt); took > generous(soon) {
		t.Errorf("resumed only after %v", took)
	}
	c := d.look(id, wait(20)).wantEnd(t, idem.StatusSucceeded)
	if c.Attempt != 2 || c.Crashes != 1 || !has(d.audit(t, id), idem.EventRecovered) {
		t.Errorf("want attempt 2, one crash and a recovery, got %v with %d crashes: %v", c, c.Crashes, d.audit(t, id))
	}
	reconcile(t, d)
}

// TestPausedLongerThanTheLease stops the process, not its clock, for longer than
// a lease, while calls run. They are not taken over: their goroutines live (R11).
func TestPausedLongerThanTheLease(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--lease", "1s")
	var ids []string
	for i := range 4 {
		c := d.post(fmt.Sprint("nap-", i), "sleep", `{"seconds":3}`).want(t, http.StatusAccepted)
		d.awaitStatus(t, c.CallID, idem.StatusRunning)
		ids = append(ids, c.CallID)
	}
	d.signal(t, syscall.SIGSTOP)
	time.Sleep(2 * time.Second) // the pause
	d.signal(t, syscall.SIGCONT)
	for _, id := range ids {
		if c := d.look(id, wait(20)).wantEnd(t, idem.StatusSucceeded); c.Attempt != 1 || has(d.audit(t, id), idem.EventStaleResult) {
			t.Errorf("taken over: %v, %v", c, d.audit(t, id))
		}
	}
	if s := d.stats(t); s.Stale != 0 {
		t.Errorf("%d stale results", s.Stale)
	}
	reconcile(t, d)
}

// TestLeaseShorterThanTheTool runs a call for five leases. It is renewed (R11).
func TestLeaseShorterThanTheTool(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--lease", "1s")
	var naps sync.WaitGroup
	for i := range 3 {
		naps.Go(func() {
			if r := d.post(fmt.Sprint("nap-", i), "sleep", `{"seconds":5}`, wait(30)); r.call == nil || r.call.Attempt != 1 {
				t.Errorf("want attempt 1, got %v", r)
			}
		})
	}
	naps.Wait()
	for _, c := range reconcile(t, d) {
		if c.Status != idem.StatusSucceeded || has(d.audit(t, c.CallID), idem.EventRecovered) {
			t.Errorf("taken over: %v", &c)
		}
	}
}

// awaitStatus waits until a call has a status.
func (d *daemon) awaitStatus(t testing.TB, id string, want idem.Status) {
	t.Helper()
	eventually(t, id+" is "+string(want), func() bool { return d.look(id).want(t, http.StatusOK).Status == want })
}
