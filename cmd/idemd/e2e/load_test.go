//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestKillUnderLoad kills the process at random moments while clients post. They
// go on with the same keys, as they should. Nothing that was accepted is lost,
// nothing is done twice, and an answer once given is given for ever (R4, R8,
// R18).
func TestKillUnderLoad(t *testing.T) {
	underLoad(t, func(d *daemon, _ *rand.Rand) { d.kill(t) })
}

// TestStopUnderLoad does the same with stops that have more or less time, and
// with kills in the middle of a stop (R12).
func TestStopUnderLoad(t *testing.T) {
	underLoad(t, func(d *daemon, random *rand.Rand) {
		d.signal(t, syscall.SIGTERM)
		if random.IntN(3) == 0 {
			time.Sleep(between(random, 0, 20*time.Millisecond)) // the moment of the kill
			d.kill(t)
			return
		}
		if code := d.awaitEnd(t); code != 0 {
			t.Errorf("a stop ends with exit code %d:\n%s", code, d.now().tail(20))
		}
	})
}

// underLoad ends the process again and again while clients post, and judges.
func underLoad(t *testing.T, end func(d *daemon, random *rand.Rand)) {
	t.Helper()
	random := chance(t)
	// A call may be running at many of these kills. None of them is poison.
	d := startChaos(t, "--max-crashes", "100")
	l := &load{d: d, stop: make(chan struct{})}
	for i := range 12 {
		own := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		l.clients.Go(func() { l.client(i, own) })
	}
	kills := size(5, 30)
	for range kills {
		time.Sleep(between(random, 20*time.Millisecond, 500*time.Millisecond)) // the moment of the kill
		end(d, random)
		d.boot(t, "--workers", strconv.Itoa(1+random.IntN(16)), "--shutdown-timeout", fmt.Sprint(between(random, 0, 30*time.Millisecond)))
	}
	close(l.stop)
	l.clients.Wait()
	for _, err := range l.faults {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	held := l.decide(t)
	t.Logf("%d ends: %d intents, %d requests, %d of them without an answer, %d calls held",
		kills, len(l.intents), l.requests.Load(), l.lost.Load(), held)
	if l.lost.Load() == 0 {
		t.Error("no end cost anybody an answer; this test tests nothing")
	}

	var effects []string
	for _, in := range l.intents {
		if in.effect {
			effects = append(effects, in.key)
		}
	}
	calls := reconcile(t, d, effects...)
	for _, in := range l.intents {
		c, there := calls[in.key]
		switch {
		case !there:
			t.Errorf("%s is gone; it was accepted: %v (R4)", in.key, in.accepted)
		case in.accepted != "" && c.CallID != in.accepted:
			t.Errorf("%s was accepted as %s and is now %v (R2)", in.key, in.accepted, &c)
		case in.end == nil || !c.sameEnd(in.end):
			t.Errorf("%s ended as %v and is now %v (R9)", in.key, in.end, &c)
		}
	}
	for _, in := range l.intents[:min(len(l.intents), 300)] {
		r := d.post(in.key, in.tool, in.args)
		if c := r.want(t, http.StatusOK); !c.sameEnd(in.end) || r.replayed() != "true" {
			t.Errorf("the answer changed: %v, was %v", r, in.end)
		}
	}
}

// load is clients that post intents, one after the other, until they are told to
// stop.
type load struct {
	d       *daemon
	stop    chan struct{}
	clients sync.WaitGroup

	requests, lost atomic.Int64

	mu      sync.Mutex
	intents []*intent
	faults  []error
}

// intent is what a client wants done once, and what it knows of it.
type intent struct {
	key, tool, args string
	effect          bool
	accepted        string // the call's id, once a 2xx was seen
	end             *call
}

func (l *load) client(n int, random *rand.Rand) {
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		default:
		}
		in := &intent{key: fmt.Sprintf("c%d-%d", n, i)}
		switch random.IntN(10) {
		default:
			in.tool, in.args, in.effect = "charge", fmt.Sprintf(`{"amount":%d}`, 1+i), true
		case 5:
			in.tool, in.args, in.effect = "ext_rerun", `{}`, true
		case 6:
			in.tool, in.args, in.effect = "ext_hold", `{}`, true
		case 7:
			in.tool, in.args = "sleep", `{"seconds":0.02}`
		case 8:
			in.tool, in.args = "fail", `{"message":"no"}`
		case 9:
			in.tool, in.args = "fail", `{"retryable":true,"times":1}`
		}
		err := l.drive(in, random)
		l.mu.Lock()
		l.intents = append(l.intents, in)
		if err != nil {
			l.faults = append(l.faults, fmt.Errorf("%s of %s: %w", in.tool, in.key, err))
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// drive asks for an intent, with the same key every time, until it has ended for
// good.
func (l *load) drive(in *intent, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	for ctx.Err() == nil {
		life := l.d.now()
		var opts []option
		if in.accepted != "" || random.IntN(2) == 0 {
			opts = append(opts, wait(20))
		}
		l.requests.Add(1)
		r := l.d.post(in.key, in.tool, in.args, opts...)
		if r.lost != nil {
			l.lost.Add(1)
			// Nobody knows what came of it. A later answer will tell.
			if err := l.d.awaitNext(ctx, life); err != nil {
				return fmt.Errorf("no answer from a process that lives: %w", r.lost)
			}
			continue
		}
		if r.refusal != nil && r.refusal.Code == idem.CodeUnavailable { // it is stopping
			if err := l.d.awaitNext(ctx, life); err != nil {
				return fmt.Errorf("refused by a process that goes on: %v", r)
			}
			continue
		}
		if r.refusal != nil && r.refusal.Code == idem.CodeOutcomeUnknown && in.tool == "ext_hold" {
			in.accepted = r.refusal.CallID
			return nil // a person decides
		}
		if r.call == nil {
			return fmt.Errorf("refused: %v", r)
		}
		if in.accepted == "" {
			in.accepted = r.call.CallID
		}
		switch {
		case r.call.CallID != in.accepted:
			return fmt.Errorf("another call than %s: %v", in.accepted, r)
		case r.call.Status.Ended() && !r.call.failure().Retryable:
			in.end = r.call
			return nil
		}
	}
	return errors.New("it does not end")
}

// decide finds out what became of the calls that are held, as a person would.
func (l *load) decide(t *testing.T) (held int) {
	t.Helper()
	l.d.awaitRest(t)
	for _, in := range l.intents {
		if in.end != nil {
			continue
		}
		held++
		c := l.d.look(in.accepted).want(t, http.StatusOK)
		outcome := "retry"
		if l.d.dispatched(t, c.EffectID) > 0 {
			outcome = "succeeded"
		}
		l.d.resolve(c.CallID, fmt.Sprintf(`{"outcome":%q,"attempt":%d,"by":"e2e"}`, outcome, c.Attempt)).want(t, http.StatusOK)
		in.end = l.d.look(c.CallID, wait(20)).want(t, http.StatusOK)
	}
	return held
}
