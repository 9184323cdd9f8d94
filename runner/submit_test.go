package runner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// long is a wait that sees the end.
const long = 10 * time.Minute

// state brings the call of key "k" into a state and keeps it there until free is
// closed, also in the next life.
type state struct {
	name  string
	tool  func(*world) *actor
	does  func(free <-chan struct{}) act
	stand string                               // where it stands then
	same  string                               // what the same request gets: a verdict, or a code
	next  string                               // where it stands in the next life
	opts  []options                            // of the world
	first func(w *world, free <-chan struct{}) // before the call
}

func always(do act) func(<-chan struct{}) act { return func(<-chan struct{}) act { return do } }

var states = []state{
	{
		name: "pending", tool: func(w *world) *actor { return w.none }, does: always(succeed), opts: []options{workers(1)},
		first: func(w *world, free <-chan struct{}) {
			w.rerun.does(waitsFor(free))
			w.answer(intent{"the worker's", w.rerun, ""}, 0)
		},
		stand: "pending 0", same: "joined", next: "pending 0",
	},
	{
		name: "running", tool: func(w *world) *actor { return w.rerun }, does: waitsFor,
		stand: "running 1", same: "joined", next: "running 2",
	},
	{
		name: "succeeded", tool: func(w *world) *actor { return w.local }, does: always(succeed),
		stand: "succeeded 1", same: "replayed", next: "succeeded 1",
	},
	{
		name: "failed for good", tool: func(w *world) *actor { return w.none }, does: always(fails(false)),
		stand: "failed 1 tool_failed", same: "replayed", next: "failed 1 tool_failed",
	},
	{
		name: "failed and retryable", tool: func(w *world) *actor { return w.hold }, does: always(fails(true)),
		stand: "failed 1 tool_failed retryable", same: "requeued", next: "failed 1 tool_failed retryable",
	},
	{
		name: "held", tool: func(w *world) *actor { return w.hold }, does: always(lost),
		stand: "held 1 outcome_unknown", same: "outcome_unknown", next: "held 1 outcome_unknown",
	},
}

// Same key and same fingerprint is the same call, another fingerprint is a
// conflict, whatever the state, before and after a new life (R3).
func TestSubmit(t *testing.T) {
	for _, st := range states {
		for _, life := range []string{"same life", "next life"} {
			setUp := func(w *world, free <-chan struct{}) intent {
				k := intent{"k", st.tool(w), `{"n":1}`}
				if st.first != nil {
					st.first(w, free)
				}
				k.tool.does(st.does(free))
				w.answer(k, 0)
				synctest.Wait()
				w.want("k", st.stand)
				if life == "next life" {
					w.crash()
					synctest.Wait()
					w.want("k", st.next)
				}
				return k
			}
			t.Run(st.name+"/"+life+"/same request", func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					free := make(chan struct{})
					defer close(free)
					k := setUp(w, free)
					before := w.call("k")
					a, err := w.post(k, 0)
					got := a.Verdict.String()
					if err != nil {
						got = string(asError(t, err).Code)
					} else {
						equal(t, "call", a.Call.ID, before.ID)
					}
					equal(t, "the same request gets", got, st.same)
					if st.same == "replayed" {
						equal(t, "result", string(a.Call.Result), string(before.Result))
					}
					equal(t, "replayed", a.Replayed(), st.same == "replayed" || st.same == "joined")
				}, st.opts...)
			})
			t.Run(st.name+"/"+life+"/other requests", func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					free := make(chan struct{})
					defer close(free)
					k := setUp(w, free)
					was := stands(w.call("k"))
					ran := k.tool.attempts()
					others := map[string]intent{
						"other args":   {"k", k.tool, `{"n":2}`},
						"other tool":   {"k", w.verify, k.args},
						"unknown tool": {"k", newActor("unknown", idem.EffectsNone, idem.RerunYes), k.args},
						"bad args":     {"k", k.tool, badArgs},
					}
					checks := k.tool.checks()
					writes := w.writes(func() {
						for name, other := range others {
							for _, wait := range []time.Duration{0, long} {
								e := w.refusal(other, wait, idem.CodeConflict)
								equal(t, name+": call", e.CallID, w.call("k").ID)
								equal(t, name+": effect", e.Effect, idem.DoubtNone)
							}
						}
					})
					equal(t, "commits", writes, 0)
					equal(t, "conflicts", w.counts().Conflicts, int64(2*len(others)))
					equal(t, "attempts", k.tool.attempts(), ran)
					equal(t, "checks of a known key", k.tool.checks(), checks)
					equal(t, "attempts of another tool", w.verify.attempts(), 0)
					w.want("k", was)
				}, st.opts...)
			})
		}
	}
}

func asError(t *testing.T, err error) *idem.Error {
	t.Helper()
	e, ok := err.(*idem.Error) //nolint:errorlint // Submit returns it bare
	if !ok {
		t.Fatalf("error %v, want an *idem.Error", err)
	}
	return e
}

// What is not acceptable stores nothing and leaves the key free (R14).
func TestSubmitRefused(t *testing.T) {
	tests := []struct {
		name string
		in   func(w *world) intent
		want idem.Code
	}{
		{"unknown tool", func(*world) intent {
			return intent{"k", newActor("unknown", idem.EffectsNone, idem.RerunYes), ""}
		}, idem.CodeBadRequest},
		{"args that do not fit", func(w *world) intent { return intent{"k", w.rerun, badArgs} }, idem.CodeInvalidArguments},
		{"args that do not fit a local tool", func(w *world) intent { return intent{"k", w.local, badArgs} }, idem.CodeInvalidArguments},
		{"a check that panics", func(w *world) intent { return intent{"k", w.rerun, panicArgs} }, idem.CodeInternal},
		{"a check of a local tool that panics", func(w *world) intent { return intent{"k", w.local, panicArgs} }, idem.CodeInternal},
	}
	for _, tt := range tests {
		for _, wait := range []time.Duration{0, long} {
			t.Run(tt.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					e := w.refusal(tt.in(w), wait, tt.want)
					equal(t, "call", e.CallID, idem.CallID{})
					if e.Effect != "" && e.Effect != idem.DoubtNone {
						t.Errorf("effect %q, want none: nothing was stored", e.Effect)
					}
					w.absent("k")
					equal(t, "refused", w.counts().Refused, 1)
					equal(t, "attempts", w.local.attempts()+w.rerun.attempts(), 0)
					w.answer(intent{"k", w.none, ""}, long)
					w.want("k", "succeeded 1")
				})
			})
		}
	}
}

// A known key is never validated again: its tool may have become stricter, or
// be gone, and the answer stays what it was.
func TestSubmitKnownKey(t *testing.T) {
	for _, effects := range []string{"local", "external"} {
		t.Run(effects, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				tool := w.local
				if effects == "external" {
					tool = w.rerun
				}
				k := intent{"k", tool, `{"n":1}`}
				first := w.answer(k, long)
				equal(t, "checks", tool.checks(), 1)
				w.crash(func(o *runnerOptions) { o.Tools = nil })
				a := w.answer(k, long)
				equal(t, "verdict", a.Verdict, idem.VerdictReplayed)
				equal(t, "result", string(a.Call.Result), string(first.Call.Result))
				equal(t, "checks", tool.checks(), 1)
				equal(t, "attempts", tool.attempts(), 1)
			})
		})
	}
}

// A replay or a join never runs a tool, a local one neither, although that is
// run before its commit.
func TestReplayRunsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		k := intent{"k", w.local, ""}
		w.answer(k, long)
		for range 3 {
			equal(t, "verdict", w.answer(k, long).Verdict, idem.VerdictReplayed)
		}
		w.refuse(intent{"k", w.local, `{"n":2}`}, long, idem.CodeConflict)
		equal(t, "attempts", w.local.attempts(), 1)
	})
}

// A failed and retryable call opens again by its own key, and only then: the
// attempts go on counting (R9, R12).
func TestRequeue(t *testing.T) {
	for _, wait := range []time.Duration{0, long} {
		for _, name := range []string{"local", "none", "rerun", "verify", "hold"} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					tool := w.actor(name)
					tool.does(then(fails(true), fails(true), succeed))
					k := intent{"k", tool, ""}
					for i, want := range []string{"failed 1 tool_failed retryable", "failed 2 tool_failed retryable", "succeeded 3"} {
						a := w.answer(k, wait)
						synctest.Wait()
						time.Sleep(time.Hour) // nothing happens by itself
						w.want("k", want)
						verdict := idem.VerdictRequeued
						if i == 0 {
							verdict = idem.VerdictCreated
						}
						equal(t, "verdict", a.Verdict, verdict)
						if wait > 0 {
							equal(t, "answer", stands(a.Call), want)
						}
					}
					a := w.answer(k, wait)
					equal(t, "verdict", a.Verdict, idem.VerdictReplayed)
					equal(t, "result", string(a.Call.Result), `{"attempt":3}`)
					equal(t, "calls", w.calls(), 1)
					equal(t, "attempts", tool.attempts(), 3)
					for i, inv := range tool.invocations() {
						equal(t, "attempt", inv.Attempt, i+1)
						equal(t, "effect id", inv.EffectID, idem.EffectID(a.Call.ID)) // R10
						equal(t, "args", string(inv.Args), `{"n":1}`)
					}
				})
			})
		}
	}
}

// The window counts from the end; after it the key is refused, not run again
// and not requeued, and what is left of it says so as well (R16).
func TestWindow(t *testing.T) {
	for _, retryable := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			w.none.does(fails(retryable))
			k := intent{"k", w.none, ""}
			end := w.answer(k, long).Call
			equal(t, "window", end.ExpiresAt.Sub(end.EndedAt), time.Millisecond)
			time.Sleep(time.Millisecond)
			for _, rest := range []string{"a record", "a tombstone", "a tombstone in the next life"} {
				switch rest {
				case "a tombstone":
					if _, err := w.spy.Update(context.Background(), keyOf("k"), idem.Expire(time.Now())); err != nil {
						t.Fatal(err)
					}
				case "a tombstone in the next life":
					w.crash(window(24 * time.Hour))
				}
				equal(t, rest, w.refusal(k, 0, idem.CodeKeyExpired).CallID, end.ID)
				equal(t, rest, w.refusal(k, long, idem.CodeKeyExpired).CallID, end.ID)
				w.refuse(intent{"k", w.none, `{"n":2}`}, long, idem.CodeConflict)
				c, err := w.r.Call(context.Background(), idem.DefaultNamespace, end.ID, long)
				if err != nil || c.Status != idem.StatusFailed {
					t.Fatalf("%s: call %+v, error %v", rest, c, err)
				}
			}
			equal(t, "attempts", w.none.attempts(), 1)
		}, window(time.Millisecond))
	}
}

// A call without an end never expires (R16).
func TestWindowOfRunningCall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(takes(time.Minute))
		k := intent{"k", w.rerun, ""}
		w.answer(k, 0)
		time.Sleep(30 * time.Second)
		equal(t, "verdict", w.answer(k, 0).Verdict, idem.VerdictJoined)
		time.Sleep(time.Minute)
		w.want("k", "succeeded 1")
	}, window(time.Millisecond), timeout(time.Hour))
}

// A setting that is shorter later does not shorten a window that was promised
// (R16).
func TestWindowIsFixedAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		k := intent{"k", w.local, ""}
		w.answer(k, long)
		w.crash(window(time.Millisecond))
		time.Sleep(time.Hour - time.Second)
		equal(t, "verdict", w.answer(k, 0).Verdict, idem.VerdictReplayed)
		time.Sleep(time.Second)
		w.refuse(k, 0, idem.CodeKeyExpired)
	}, window(time.Hour))
}

// Two namespaces with the same key never meet.
func TestNamespaces(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := intent{"k", w.local, ""}.request()
		b := a
		b.Key.Namespace = "other"
		first, err := w.submit(context.Background(), idem.Submission{Request: a, Wait: long})
		if err != nil {
			t.Fatal(err)
		}
		second, err := w.submit(context.Background(), idem.Submission{Request: b, Wait: long})
		if err != nil {
			t.Fatal(err)
		}
		if second.Verdict != idem.VerdictCreated || second.Call.ID == first.Call.ID {
			t.Fatalf("the other namespace got %v %v", second.Verdict, second.Call.ID)
		}
		if _, err := w.r.Call(context.Background(), "other", first.Call.ID, 0); err == nil {
			t.Fatal("a call is found from another namespace")
		}
	})
}

// A key that may not be asked for again just now is refused with what is known of
// its call: an earlier attempt may have had its effect, and whoever is told of none
// might ask for it under another key (R13).
func TestRefusedRequeueTellsTheDoubt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.rerun.does(then(lost, fails(true)))
		doubtful, certain := intent{"doubtful", w.rerun, ""}, intent{"certain", w.rerun, ""}
		w.answer(doubtful, long)
		w.answer(certain, long)
		stopped := make(chan struct{})
		w.rerun.does(takes(time.Minute))
		running := w.later(intent{"running", w.rerun, ""}, long)
		synctest.Wait()
		go func() { defer close(stopped); w.r.Stop(context.Background()) }()
		synctest.Wait()
		for in, want := range map[intent]idem.Doubt{doubtful: idem.DoubtUnknown, certain: idem.DoubtNone} {
			e := w.refusal(in, 0, idem.CodeUnavailable)
			if e.Effect != want || e.CallID != w.call(in.key).ID {
				t.Errorf("%s: %+v, want the call and the effect %q", in.key, e, want)
			}
		}
		if e := w.refusal(intent{"new", w.rerun, ""}, 0, idem.CodeUnavailable); e.Effect != "" || !e.CallID.IsZero() {
			t.Errorf("a new key: %+v", e)
		}
		<-running
		<-stopped
	})
}
