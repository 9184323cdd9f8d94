package runner_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// full fills one worker and two places with calls "0" to "2" that go on once
// free is closed.
func full(w *world, free <-chan struct{}) {
	w.t.Helper()
	w.rerun.does(waitsFor(free))
	for i := range 3 {
		w.answer(intent{fmt.Sprint(i), w.rerun, ""}, 0)
	}
	w.want("0", "running 1")
	w.want("1", "pending 0")
	w.want("2", "pending 0")
}

// A full queue refuses new calls and stores nothing of them. Known keys are not
// affected, and the refused key is free afterwards.
func TestQueueFull(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.answer(intent{"ended", w.local, ""}, long)
		w.hold.does(then(fails(true), lost))
		w.answer(intent{"retryable", w.hold, ""}, long)
		w.refuse(intent{"held", w.hold, ""}, long, idem.CodeOutcomeUnknown)
		free := make(chan struct{})
		full(w, free)
		for _, wait := range []time.Duration{0, long} {
			for _, tool := range w.actors() {
				w.refuse(intent{"third", tool, ""}, wait, idem.CodeUnavailable)
			}
			w.absent("third")
			// What would write is refused, and changes nothing.
			w.refuse(intent{"retryable", w.hold, ""}, wait, idem.CodeUnavailable)
			w.want("retryable", "failed 1 tool_failed retryable")
			// What is wrong with a request comes before the lack of room.
			w.refuse(intent{"third", w.rerun, badArgs}, wait, idem.CodeInvalidArguments)
		}
		w.knownKeysAreServed()
		close(free)
		synctest.Wait()
		a := w.answer(intent{"third", w.local, ""}, long)
		equal(t, "verdict", a.Verdict, idem.VerdictCreated)
		w.want("third", "succeeded 1")
	}, workers(1), queue(2))
}

// knownKeysAreServed checks replay, join, conflict and held with the calls that
// the tests of this file make.
func (w *world) knownKeysAreServed() {
	w.t.Helper()
	equal(w.t, "verdict", w.answer(intent{"ended", w.local, ""}, long).Verdict, idem.VerdictReplayed)
	equal(w.t, "verdict", w.answer(intent{"0", w.rerun, ""}, 0).Verdict, idem.VerdictJoined)
	equal(w.t, "verdict", w.answer(intent{"2", w.rerun, ""}, 0).Verdict, idem.VerdictJoined)
	w.refuse(intent{"ended", w.local, `{"n":2}`}, long, idem.CodeConflict)
	w.refuse(intent{"0", w.rerun, `{"n":2}`}, 0, idem.CodeConflict)
	w.refuse(intent{"held", w.hold, ""}, 0, idem.CodeOutcomeUnknown)
}

// The same while the process drains.
func TestDraining(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.answer(intent{"ended", w.local, ""}, long)
		w.hold.does(then(fails(true), lost))
		w.answer(intent{"retryable", w.hold, ""}, long)
		w.refuse(intent{"held", w.hold, ""}, long, idem.CodeOutcomeUnknown)
		free := make(chan struct{})
		full(w, free)
		stopped := make(chan struct{})
		go func() { w.r.Stop(context.Background()); close(stopped) }()
		synctest.Wait()
		if w.r.Ready() == nil {
			t.Fatal("ready while draining")
		}
		for _, wait := range []time.Duration{0, long} {
			for _, tool := range w.actors() {
				w.refuse(intent{"new", tool, ""}, wait, idem.CodeUnavailable)
			}
			w.absent("new")
			w.refuse(intent{"retryable", w.hold, ""}, wait, idem.CodeUnavailable)
			w.refuse(intent{"new", w.rerun, badArgs}, wait, idem.CodeInvalidArguments)
		}
		w.knownKeysAreServed()
		close(free)
		<-stopped
		w.want("0", "succeeded 1") // what ran has ended
		w.want("1", "pending 0")   // what waited, waits on
		w.crash()
		synctest.Wait()
		w.want("1", "succeeded 1")
		w.want("2", "succeeded 1")
	}, workers(1), queue(2))
}

// However many arrive at once, no more than the queue's length wait.
func TestQueueBound(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(waitsFor(free))
		// Everything takes its time, so that the requests overlap at every step.
		var n atomic.Int64
		pause := func() { time.Sleep(time.Duration(n.Add(7919)%13) * 100 * time.Microsecond) }
		w.spy.set(func(s *spy) {
			s.counted = pause
			s.updating = func(idem.Key) error { pause(); return nil }
		})
		var replies []<-chan reply
		for i := range 100 {
			replies = append(replies, w.later(intent{fmt.Sprint(i), w.rerun, ""}, 0))
			time.Sleep(50 * time.Microsecond)
		}
		accepted := 0
		for _, c := range replies {
			if got := <-c; got.err == nil {
				accepted++
			} else {
				equal(t, "code", asError(t, got.err).Code, idem.CodeUnavailable)
			}
		}
		if accepted != 2+7 {
			t.Errorf("%d were accepted, want 2 that run and 7 that wait", accepted)
		}
		equal(t, "calls", w.calls(), accepted)
		close(free)
	}, workers(2), queue(7))
}

// Every call runs once, oldest first, also over a new life in the middle; no new
// call overtakes the queue, and what was left always fits.
func TestQueueOrder(t *testing.T) {
	const n = 250
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Second))
		var want []string
		put := func(from, to int) {
			for i := from; i < to; i++ {
				args := fmt.Sprintf(`{"n":%03d}`, i+1000)
				want = append(want, args)
				w.answer(intent{fmt.Sprint(i), w.rerun, args}, 0)
			}
		}
		put(0, n)
		time.Sleep(50*time.Second + time.Second/2)
		equal(t, "attempts", w.rerun.attempts(), 51)
		w.crash(queue(1)) // much less than what was left
		synctest.Wait()
		w.refuse(intent{"no room", w.rerun, ""}, 0, idem.CodeUnavailable)
		time.Sleep(50 * time.Second)
		w.restart(queue(1000))
		put(n, n+10)
		time.Sleep(5 * time.Minute)
		order := w.rerun.order()
		// The one that ran in the crash runs twice.
		equal(t, "twice", order[51], order[50])
		order = append(order[:50:50], order[51:]...)
		equal(t, "attempts", len(order), len(want))
		for i := range want {
			equal(t, fmt.Sprint("call ", i), order[i], want[i])
		}
	}, workers(1), queue(1000))
}

// A call that is opened again is never forgotten, however fast its client is and
// however slow the attempt before leaves.
func TestRequeueIsDispatched(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		bubble(t, func(t *testing.T, w *world) {
			w.rerun.does(then(fails(true), succeed))
			busy := make(chan struct{})
			w.none.does(waitsFor(busy))
			for i := range n - 1 {
				w.answer(intent{fmt.Sprint(i), w.none, ""}, 0)
			}
			k := intent{"k", w.rerun, ""}
			// The attempt has settled, and does not get on before another
			// worker is free and the dispatcher had its look.
			w.spy.set(func(s *spy) {
				s.updated = func(_ idem.Key, ch idem.Change) {
					if ch.After.Status != idem.StatusFailed {
						return
					}
					w.answer(k, 0)
					close(busy)
					time.Sleep(time.Millisecond)
				}
			})
			w.answer(k, 0)
			time.Sleep(10 * time.Millisecond) // far less than the next poll
			w.want("k", "succeeded 2")
		}, workers(n))
	}
}

// An end is given again, or refused, without a worker or a place, not even for a
// moment, however long the store takes: a new call finds all the room there is.
func TestReplaysTakeNoRoom(t *testing.T) {
	for name, again := range map[string]intent{
		"replay":   {"old", nil, ""},
		"conflict": {"old", nil, `{"other":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				again.tool = w.rerun
				w.answer(intent{"old", w.rerun, ""}, long)
				w.occupy(time.Minute)
				resume := make(chan struct{})
				w.spy.set(func(s *spy) {
					s.seen = func(idem.Key, idem.Change) { <-resume }
					s.updating = func(key idem.Key) error {
						if key == keyOf("old") {
							<-resume
						}
						return nil
					}
				})
				var replies []<-chan reply
				for range 50 {
					replies = append(replies, w.later(again, 0))
				}
				synctest.Wait()
				w.answer(intent{"new", w.rerun, ""}, 0) // the one place
				w.want("new", "pending 0")
				close(resume)
				for _, c := range replies {
					if r := <-c; name == "replay" && (r.err != nil || r.Verdict != idem.VerdictReplayed) || name == "conflict" && !errors.Is(r.err, idem.ErrConflict) {
						t.Fatalf("%+v", r)
					}
				}
			}, workers(1), queue(1))
		})
	}
}

// Joins hold a place for a moment only; a burst of them does not keep a new call
// out.
func TestJoinsNeedNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		full(w, free)
		var replies []<-chan reply
		for i := range 100 {
			replies = append(replies, w.later(intent{fmt.Sprint(i % 3), w.rerun, ""}, long))
		}
		synctest.Wait()
		equal(t, "joined", w.counts().Joined, 100)
		m := w.r.Memory()
		equal(t, "places", m.Places, 0)
		close(free)
		for _, c := range replies {
			equal(t, "answer", stands((<-c).Call), "succeeded 1")
		}
		equal(t, "attempts", w.rerun.attempts(), 3)
	}, workers(1), queue(2))
}

// A new call does not overtake the queue, even if it finds a worker that has just
// become free.
func TestNoOvertaking(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		w.rerun.does(then(waitsFor(free), takes(time.Second)))
		for _, key := range []string{"a", "b"} {
			w.answer(intent{key, w.rerun, fmt.Sprintf(`{"key":%q}`, key)}, 0)
		}
		looking := make(chan struct{})
		w.spy.set(func(s *spy) { s.looked = func() { <-looking } })
		close(free)
		synctest.Wait()
		w.want("a", "succeeded 1")
		equal(t, "free", w.r.Memory().Free, 1)
		w.answer(intent{"c", w.rerun, `{"key":"c"}`}, 0)
		w.want("c", "pending 0")
		close(looking)
		time.Sleep(time.Minute)
		equal(t, "order", fmt.Sprint(w.rerun.order()), `[{"key":"a"} {"key":"b"} {"key":"c"}]`)
	}, workers(1))
}

// A call that arrives while the dispatcher looks at what was there before is not
// forgotten.
func TestArrivalDuringLook(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		x := make(chan struct{})
		w.none.does(waitsFor(x))
		w.answer(intent{"busy", w.none, ""}, 0)
		looking := make(chan struct{})
		w.spy.set(func(s *spy) { s.looked = func() { <-looking } })
		time.Sleep(11 * time.Second) // the poll looks, and finds nothing
		w.answer(intent{"takes the free worker", w.none, ""}, 0)
		w.answer(intent{"k", w.rerun, ""}, 0)
		w.want("takes the free worker", "running 1")
		w.want("k", "pending 0")
		w.spy.set(func(s *spy) { s.looked = nil })
		close(looking)
		synctest.Wait()
		close(x)
		synctest.Wait()
		w.want("k", "succeeded 1")
	}, workers(2), timeout(time.Hour))
}

// What was found due and has moved on since is left alone.
func TestDueHasMovedOn(t *testing.T) {
	for _, name := range []string{"local", "none"} {
		t.Run(name, func(t *testing.T) {
			shared(t, func(t *testing.T, a, b *world) {
				tool := a.actor(name)
				tool.does(then(fails(true), succeed))
				a.occupy(time.Hour)
				looking := make(chan struct{})
				b.spy.set(func(s *spy) { s.looked = func() { <-looking } })
				k := intent{"k", tool, ""}
				a.answer(k, 0) // queued; b finds it with its next poll, and is slow
				time.Sleep(10 * time.Second)
				a.want("k", "pending 0")
				a.hurry()
				a.want("k", "failed 1 tool_failed retryable")
				a.answer(k, 0)
				a.want("k", "pending 1")
				b.spy.set(func(s *spy) { s.looked = nil })
				close(looking)
				synctest.Wait()
				if c := a.call("k"); c.Status == idem.StatusRunning {
					t.Fatalf("left %s", stands(c))
				}
				time.Sleep(time.Minute)
				a.want("k", "succeeded 2")
			}, workers(1), timeout(2*time.Hour))
		})
	}
}

// hurry lets a third process run what is due.
func (w *world) hurry() {
	w.t.Helper()
	c := &world{t: w.t, o: w.o, virtual: true, local: w.local, none: w.none, rerun: w.rerun, verify: w.verify, hold: w.hold}
	c.live(w.model.Open())
	c.r.Stop(context.Background())
	w.beside = append(w.beside, c)
}
