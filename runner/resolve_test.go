package runner_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// held makes a held call of key "k".
func held(w *world) intent {
	w.t.Helper()
	k := intent{"k", w.hold, ""}
	k.tool.does(then(lost, succeed))
	w.answer(k, 0)
	synctest.Wait()
	w.want("k", "held 1 outcome_unknown")
	return k
}

// A person decides a held call; who and why go to the audit trail.
func TestResolve(t *testing.T) {
	tests := []struct {
		outcome      idem.Outcome
		stand        string // at once
		later, trail string
		effects      int
		writes       int
	}{
		{idem.OutcomeSucceeded, "succeeded 1", "succeeded 1", "created claimed held resolved", 1, 1},
		{idem.OutcomeFailed, "failed 1 not_done", "failed 1 not_done", "created claimed held resolved", 0, 1},
		{idem.OutcomeRetry, "pending 1", "succeeded 2", "created claimed held resolved claimed succeeded", 1, 3},
	}
	for _, tt := range tests {
		t.Run(string(tt.outcome), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				k := held(w)
				w.refuse(intent{"k", w.hold, `{"n":2}`}, 0, idem.CodeConflict) // counted with its end
				read := make(chan idem.Call, 1)
				go func() {
					c, _ := w.r.CallByKey(context.Background(), keyOf("k"), long)
					read <- c
				}()
				synctest.Wait()
				n := w.writes(func() {
					c, err := w.resolve("k", tt.outcome)
					if err != nil {
						t.Fatal(err)
					}
					equal(t, "answer", stands(c), tt.stand)
					if c.Args != nil {
						t.Error("the answer shows the args")
					}
				})
				equal(t, "commits", n, tt.writes)
				equal(t, "read", stands(<-read), tt.later)
				w.want("k", tt.later)
				w.wantTrail("k", tt.trail)
				equal(t, "effects", w.effects(), tt.effects)
				equal(t, "deliveries", w.call("k").Deliveries, 2)
				a := w.answer(k, long)
				equal(t, "verdict", a.Verdict, idem.VerdictReplayed)

				// A second decision sees that there is nothing to decide.
				_, err := w.resolve("k", tt.outcome)
				e := asError(t, err)
				equal(t, "code", e.Code, idem.CodeNotHeld)
				equal(t, "status", e.Status, a.Call.Status)
			})
		})
	}
}

func TestResolveRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		k := held(w)
		id := w.call("k").ID
		ctx := context.Background()
		if _, err := w.r.Resolve(ctx, idem.DefaultNamespace, idem.CallID{1}, idem.Resolution{Outcome: idem.OutcomeRetry}); !errors.Is(err, idem.ErrNotFound) {
			t.Errorf("unknown id: %v", err)
		}
		if _, err := w.r.Resolve(ctx, "other", id, idem.Resolution{Outcome: idem.OutcomeRetry}); !errors.Is(err, idem.ErrNotFound) {
			t.Errorf("other namespace: %v", err)
		}
		if _, err := w.r.Resolve(ctx, idem.DefaultNamespace, id, idem.Resolution{Outcome: "perhaps"}); !errors.Is(err, idem.ErrBadRequest) {
			t.Errorf("unknown outcome: %v", err)
		}
		w.refuse(k, long, idem.CodeOutcomeUnknown)
		w.answer(intent{"other", w.local, ""}, long)
		_, err := w.resolve("other", idem.OutcomeRetry)
		equal(t, "status", asError(t, err).Status, idem.StatusSucceeded)
	})
}

// Of two decisions at once one applies.
func TestResolveTwice(t *testing.T) {
	for _, other := range []idem.Outcome{idem.OutcomeSucceeded, idem.OutcomeFailed, idem.OutcomeRetry} {
		bubble(t, func(t *testing.T, w *world) {
			held(w)
			w.spy.set(func(s *spy) { s.updating = func(idem.Key) error { time.Sleep(time.Millisecond); return nil } })
			results := make(chan error, 2)
			for _, o := range []idem.Outcome{idem.OutcomeSucceeded, other} {
				go func() {
					_, err := w.resolve("k", o)
					results <- err
				}()
			}
			a, b := <-results, <-results
			if (a == nil) == (b == nil) {
				t.Fatalf("both got %v and %v", a, b)
			}
			if err := errors.Join(a, b); !errors.Is(err, idem.ErrNotHeld) {
				t.Fatal(err)
			}
		})
	}
}

// A decision that does not reach the store changes nothing, and can be repeated.
func TestResolveFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		held(w)
		w.spy.set(func(s *spy) { s.updating = func(idem.Key) error { return errInjected } })
		if _, err := w.resolve("k", idem.OutcomeSucceeded); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		w.spy.set(func(s *spy) { s.updating = nil })
		w.want("k", "held 1 outcome_unknown")
		if _, err := w.resolve("k", idem.OutcomeSucceeded); err != nil {
			t.Fatal(err)
		}
	})
}
