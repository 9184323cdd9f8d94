//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestQueueIsFull fills the one place there is. What is refused is not stored and
// may be asked again; what is known already needs no place (R14).
func TestQueueIsFull(t *testing.T) {
	t.Parallel()
	d := start(t, "--workers", "1", "--queue", "1")
	d.post("ended", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	d.post("flaky", "fail", `{"retryable":true,"times":1}`, wait(20)).wantEnd(t, idem.StatusFailed)
	busy := d.post("busy", "sleep", `{"seconds":1.5}`).want(t, http.StatusAccepted)
	d.awaitStatus(t, busy.CallID, idem.StatusRunning)
	d.post("queued", "charge", `{"amount":1}`).want(t, http.StatusAccepted)

	full := func(r reply) {
		t.Helper()
		f := r.wantRefusal(t, http.StatusServiceUnavailable, idem.CodeUnavailable)
		if f.Effect != idem.DoubtNone || r.header.Get("Retry-After") == "" {
			t.Errorf("the refusal is %v, Retry-After %q", r, r.header.Get("Retry-After"))
		}
	}
	for range 3 {
		full(d.post("refused", "charge", `{"amount":1}`, wait(20)))
		full(d.post("refused", "charge", `{"amount":1}`))
		full(d.post("flaky", "fail", `{"retryable":true,"times":1}`))
	}
	d.find("refused").wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	d.post("ended", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	d.post("ended", "charge", `{"amount":2}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	d.post("queued", "charge", `{"amount":1}`).want(t, http.StatusAccepted)
	d.post("busy", "sleep", `{"seconds":1.5}`).want(t, http.StatusAccepted)
	d.post("new", "no_such_tool", `{}`).wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest)

	d.find("queued", wait(20)).wantEnd(t, idem.StatusSucceeded)
	d.post("refused", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	if c := d.post("flaky", "fail", `{"retryable":true,"times":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded); c.Attempt != 2 {
		t.Errorf("want attempt 2, got %v", c)
	}
	reconcile(t, d, "ended", "queued", "refused")
}

// TestTooManyRequests has more requests wait than the process serves at once.
// What is refused is not stored; above half of it nobody waits.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	const most = 8
	d := start(t, "--max-in-flight", fmt.Sprint(most))
	served, hasty, refused := 0, 0, 0
	var left []string
	replies := make(map[string]reply)
	var mu sync.Mutex
	for range 5 { // how many get in at once is up to the machine
		together(4*most, func(int) reply {
			mu.Lock()
			key := fmt.Sprint("k-", len(replies))
			replies[key] = reply{}
			mu.Unlock()
			r := d.post(key, "sleep", `{"seconds":0.3}`, wait(20))
			mu.Lock()
			defer mu.Unlock()
			replies[key] = r
			return r
		})
	}
	d.posts.CloseIdleConnections() // open connections are bounded, too, and the idle ones count
	for key, r := range replies {
		switch {
		case r.status == http.StatusOK && r.header.Get("Preference-Applied") != "":
			served++
		case r.status == http.StatusAccepted && r.header.Get("Preference-Applied") == "":
			hasty++
		default:
			if f := r.wantRefusal(t, http.StatusServiceUnavailable, idem.CodeUnavailable); f.Effect != idem.DoubtNone || r.header.Get("Retry-After") == "" {
				t.Errorf("the refusal is %v", r)
			}
			refused++
			left = append(left, key)
		}
	}
	t.Logf("%d waited, %d got their receipt at once, %d were refused", served, hasty, refused)
	if served == 0 || hasty == 0 {
		t.Error("this test tests nothing")
	}
	for _, key := range left {
		d.find(key).wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	}
	calls := reconcile(t, d)
	if len(calls) != served+hasty {
		t.Errorf("%d calls of %d accepted requests", len(calls), served+hasty)
	}
}

// TestQueueSurvivesInOrder has one worker work through a long queue, with a kill
// in the middle. Each call runs once, the oldest first (R8, R11).
func TestQueueSurvivesInOrder(t *testing.T) {
	calls := size(500, 10_000)
	d := startChaos(t, "--workers", "1", "--queue", fmt.Sprint(2*calls))
	// Nothing begins before everything is there.
	fill := min(10*time.Second, generous(2*time.Second+time.Duration(calls)*time.Millisecond))
	busy := d.post("busy", "sleep", fmt.Sprintf(`{"seconds":%v}`, fill.Seconds())).want(t, http.StatusAccepted)
	d.awaitStatus(t, busy.CallID, idem.StatusRunning)

	// Each client posts one after the other, so that the order in which they were
	// accepted is known at least among its own.
	const clients = 32
	var intents []string
	post := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			intents = append(intents, fmt.Sprintf("q-%d", i))
		}
		var posting sync.WaitGroup
		for n := range clients {
			posting.Go(func() {
				for i := from + n; i < to; i += clients {
					if r := d.post(intents[i], "ext_rerun", `{}`); r.status != http.StatusAccepted {
						t.Errorf("want it to be queued, got %v", r)
					}
				}
			})
		}
		posting.Wait()
	}
	post(0, calls)
	if c := d.look(busy.CallID).want(t, http.StatusOK); c.Status != idem.StatusRunning {
		t.Fatalf("the queue was not filled in time: %v", c)
	}
	eventually(t, "half of them have run", func() bool { return int(d.stats(t).Effects) >= calls/2 })
	d.restart(t)
	began := time.Now()
	post(calls, calls+8*clients) // what is new goes behind what waits

	byKey := reconcilePatiently(t, d, intents)
	t.Logf("%d calls; the second half took %v", calls, time.Since(began).Round(time.Millisecond))
	number, created := make(map[string]int), make(map[string]string) // by effect
	for i, key := range intents {
		c := byKey[key]
		number[c.EffectID], created[c.EffectID] = i, c.CreatedAt
		if c.Attempt > 2 {
			t.Errorf("want no more attempts than there were lives, got %v", &c)
		}
	}
	twice := 0
	last, seen := "", make(map[string]int)
	latest := make(map[int]int) // of each client
	for _, line := range d.outside(t) {
		if seen[line.EffectID]++; seen[line.EffectID] > 1 {
			twice++ // in hand at the kill
			continue
		}
		// Shown to the millisecond, so neighbours may be equal.
		if created[line.EffectID] < last {
			t.Errorf("a call of %s went out after one of %s", created[line.EffectID], last)
		}
		last = created[line.EffectID]
		i := number[line.EffectID]
		client := i % clients
		if i >= calls {
			client = (i - calls) % clients
		}
		if before, any := latest[client]; any && before > i {
			t.Errorf("%s went out after %s", intents[i], intents[before])
		}
		latest[client] = i
	}
	if len(seen) != len(intents) || twice > 1 {
		t.Errorf("%d of %d went out, %d of them twice; only one was in hand", len(seen), len(intents), twice)
	}
}

// reconcilePatiently is reconcile for more calls than end within its patience:
// it only asks that they go on ending.
func reconcilePatiently(t *testing.T, d *daemon, intents []string) map[string]call {
	t.Helper()
	for open, more := int64(-1), true; more; {
		before := open
		eventually(t, "another call has ended", func() bool {
			s := d.stats(t)
			open = s.ByStatus[idem.StatusPending] + s.ByStatus[idem.StatusRunning]
			return open != before
		})
		more = open > 0
	}
	return reconcile(t, d, intents...)
}

// TestManyKeysAtOnce posts more keys at once than there are workers. Each gets
// its own call, and the queue is no reason for an error.
func TestManyKeysAtOnce(t *testing.T) {
	t.Parallel()
	const keys = 200
	d := startChaos(t, "--workers", "2")
	var n atomic.Int64
	intents := make([]string, keys)
	for i := range intents {
		intents[i] = fmt.Sprintf("k-%d", i)
	}
	for _, r := range together(keys, func(i int) reply {
		if n.Add(1)%2 == 0 {
			return d.post(intents[i], "charge", `{"amount":1}`, wait(20))
		}
		return d.post(intents[i], "charge", `{"amount":1}`)
	}) {
		r.want(t, http.StatusOK, http.StatusAccepted)
	}
	reconcile(t, d, intents...)
}
