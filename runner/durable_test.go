package runner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// Before a tool is dispatched its attempt is durable (R12), and nothing is told
// of a change before its commit has returned (R4). Every commit is held up after
// it has reached the data, which is the time in which a store waits for its disk.
func TestDurableBeforeDispatch(t *testing.T) {
	for _, name := range []string{"none", "rerun", "verify", "hold"} {
		for _, way := range []string{"free worker", "queued", "requeued"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					tool := w.actor(name)
					k := intent{"k", tool, ""}
					attempt := 1
					switch way {
					case "queued":
						w.occupy(time.Second)
					case "requeued":
						tool.does(then(fails(true), succeed))
						w.answer(k, long)
						attempt = 2
					}
					ran := tool.attempts()
					synced := make(chan struct{})
					w.spy.set(func(s *spy) {
						s.syncing = func(key idem.Key, _ idem.Change) {
							if key == keyOf("k") {
								<-synced
							}
						}
					})
					answered := w.later(k, 0)
					waited := w.later(k, long)
					time.Sleep(2 * time.Second)
					for { // one commit after the other
						c := w.call("k")
						if c.Status == idem.StatusSucceeded {
							break
						}
						equal(t, "dispatched before the claim was durable", tool.attempts(), ran)
						mustBeSilent(t, answered)
						mustBeSilent(t, waited)
						synced <- struct{}{}
						synctest.Wait()
						if c.Status == idem.StatusRunning {
							equal(t, "dispatched", tool.attempts(), ran+1)
						}
						if _, ok := peek(answered); ok {
							answered = nil
						}
					}
					mustBeSilent(t, waited) // the end is in the data, but not synced
					equal(t, "succeeded", w.counts().Created+w.counts().Requeued > 0, true)
					close(synced)
					got := <-waited
					equal(t, "attempt", got.Call.Attempt, attempt)
				}, workers(1))
			})
		}
	}
}

// peek takes a reply if it is there.
func peek(c <-chan reply) (reply, bool) {
	select {
	case r := <-c:
		return r, true
	default:
		return reply{}, false
	}
}

func mustBeSilent(t *testing.T, c <-chan reply) {
	t.Helper()
	if got, ok := peek(c); ok {
		t.Fatalf("answered with %s, %v before the commit had returned", stands(got.Call), got.err)
	}
}

// A fused commit is answered, counted and told only after it has returned.
func TestFusedIsDurableBeforeAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		synced := make(chan struct{})
		w.spy.set(func(s *spy) { s.syncing = func(idem.Key, idem.Change) { <-synced } })
		a, b := w.later(intent{"k", w.local, ""}, long), w.later(intent{"k", w.local, ""}, long)
		synctest.Wait()
		w.want("k", "succeeded 1")
		mustBeSilent(t, a)
		mustBeSilent(t, b)
		equal(t, "created", w.counts().Created, 0)
		close(synced)
		equal(t, "answer", stands((<-a).Call), "succeeded 1")
		equal(t, "answer", stands((<-b).Call), "succeeded 1")
		equal(t, "attempts", w.local.attempts(), 1)
	})
}

// How many commits each case takes, and so how many times a client waits for the
// disk.
func TestCommits(t *testing.T) {
	const none = 0
	tests := []struct {
		name string
		tool string
		opts []options
		prep func(w *world, k intent) // before what is counted
		do   func(w *world, k intent)
		want int
	}{
		{name: "wait, local tool", tool: "local", do: submits(long), want: 1},
		{name: "wait, tool without effect", tool: "none", do: submits(long), want: 2},
		{name: "wait, external tool", tool: "rerun", do: submits(long), want: 2},
		{name: "no wait, free worker, local tool", tool: "local", do: submits(0), want: 2},
		{name: "no wait, free worker, external tool", tool: "hold", do: submits(0), want: 2},
		{name: "queued, local tool", tool: "local", prep: occupied, do: queued(0), want: 2},
		{name: "queued, local tool, wait", tool: "local", prep: occupied, do: queued(long), want: 1}, // not behind a busy worker
		{name: "queued, external tool", tool: "rerun", prep: occupied, do: queued(0), want: 3},
		{name: "queued, external tool, wait", tool: "rerun", prep: occupied, do: queued(long), want: 3},
		{name: "requeue, wait, local tool", tool: "local", prep: failed, do: submits(long), want: 1},
		{name: "requeue, no wait, local tool", tool: "local", prep: failed, do: submits(0), want: 2},
		{name: "requeue, external tool", tool: "rerun", prep: failed, do: submits(long), want: 2},
		{name: "requeue, queued, external tool", tool: "rerun", prep: failedAndOccupied, do: queued(0), want: 3},
		{name: "replay", tool: "local", prep: submits(long), do: submits(0), want: none},
		{name: "replay, wait", tool: "local", prep: submits(long), do: submits(long), want: none},
		{name: "join", tool: "rerun", prep: slow, do: submits(0), want: none},
		{name: "join, wait", tool: "rerun", prep: slow, do: submits(time.Second), want: none},
		{name: "conflict", tool: "rerun", prep: submits(long), do: func(w *world, k intent) {
			k.args = `{"n":2}`
			w.refuse(k, 0, idem.CodeConflict)
		}, want: none},
		{name: "renewal", tool: "rerun", prep: slow, do: func(*world, intent) { time.Sleep(9 * time.Second) }, want: none},
		{name: "polls and stats", tool: "rerun", prep: slow, do: func(w *world, _ intent) {
			ctx := context.Background()
			for range 10 {
				_, _ = w.r.CallByKey(ctx, keyOf("k"), time.Millisecond)
				_, _ = w.r.Call(ctx, idem.DefaultNamespace, w.call("k").ID, 0)
				_, _, _ = w.r.List(ctx, idem.DefaultNamespace, idem.Query{Limit: 10})
				_, _ = w.r.Stats(ctx)
			}
		}, want: none},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				k := intent{"k", w.actor(tt.tool), ""}
				if tt.prep != nil {
					tt.prep(w, k)
					if tt.tool == "rerun" && tt.want == none {
						synctest.Wait()
					}
				}
				synctest.Wait()
				n := w.commitsOf("k", func() { tt.do(w, k) })
				equal(t, "commits", n, tt.want)
			}, append(tt.opts, workers(1), lease(time.Second))...)
		})
	}
}

// commitsOf counts the commits of a key during what it runs.
func (w *world) commitsOf(key string, do func()) (n int) {
	count := func() (n int) {
		w.spy.mu.Lock()
		defer w.spy.mu.Unlock()
		for _, ch := range w.spy.commits {
			if ch.After.Key == keyOf(key) {
				n++
			}
		}
		return n
	}
	before := count()
	do()
	synctest.Wait()
	return count() - before
}

func submits(wait time.Duration) func(*world, intent) {
	return func(w *world, k intent) { w.answer(k, wait) }
}

// occupied keeps the worker busy for a second.
func occupied(w *world, _ intent) { w.occupy(time.Second) }

func queued(wait time.Duration) func(*world, intent) {
	return func(w *world, k intent) {
		c := w.later(k, wait)
		time.Sleep(2 * time.Second)
		<-c
	}
}

func failed(w *world, k intent) {
	k.tool.does(then(fails(true), succeed))
	w.answer(k, long)
}

func failedAndOccupied(w *world, k intent) {
	failed(w, k)
	w.occupy(time.Second)
}

// slow leaves the call running.
func slow(w *world, k intent) {
	k.tool.does(takes(10 * time.Second))
	w.answer(k, 0)
}

// A start writes nothing: what is due is claimed when its turn comes, and until
// then it is as it was left.
func TestStartWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.local.does(succeed)
		w.hold.does(then(lost, fails(true), hang))
		w.answer(intent{"ended", w.local, ""}, long)
		w.refuse(intent{"held", w.hold, ""}, long, idem.CodeOutcomeUnknown)
		w.answer(intent{"failed", w.hold, ""}, long)
		w.none.does(hang)
		for i := range 6 {
			w.answer(intent{string(rune('a' + i)), w.none, ""}, 0)
		}
		start := w.die()
		start(workers(1))
		synctest.Wait()
		equal(t, "commits", w.spy.writes(), 1) // the one worker's claim
		w.want("a", "running 2")
		for _, key := range []string{"b", "c", "d"} {
			w.want(key, "running 1")
		}
		w.want("f", "pending 0")
		w.none.does(succeed)
		time.Sleep(time.Minute)
	}, workers(4))
}
