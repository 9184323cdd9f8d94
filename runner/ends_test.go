package runner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// reads counts how often a key is read from the store.
func (w *world) reads(key string, do func()) int {
	w.t.Helper()
	n := 0
	w.spy.set(func(s *spy) {
		s.reading = func(k idem.Key) {
			if k == keyOf(key) {
				n++
			}
		}
	})
	do()
	w.spy.set(func(s *spy) { s.reading = nil })
	return n
}

// An end for good that was given again once is given again without the store; so
// is the refusal of another request. What may still change is always read.
func TestEndsAreRemembered(t *testing.T) {
	for _, tt := range []struct {
		name  string
		does  act
		reads int
	}{
		{"succeeded", succeed, 1},
		{"failed for good", fails(false), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.rerun.does(tt.does)
				first := w.answer(intent{"k", w.rerun, ""}, long)
				equal(t, "reads", w.reads("k", func() {
					for range 5 {
						a := w.answer(intent{"k", w.rerun, ""}, long)
						equal(t, "verdict", a.Verdict, idem.VerdictReplayed)
						equal(t, "answer", fmt.Sprintf("%+v", a.Call), fmt.Sprintf("%+v", first.Call))
						w.refuse(intent{"k", w.rerun, `{"other":true}`}, 0, idem.CodeConflict)
					}
				}), tt.reads)
				equal(t, "attempts", w.rerun.attempts(), 1)
			})
		})
	}
	t.Run("retryable", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			w.rerun.does(then(fails(true), fails(true), succeed))
			for i, want := range []string{"failed 1 tool_failed retryable", "failed 2 tool_failed retryable", "succeeded 3", "succeeded 3"} {
				equal(t, fmt.Sprint(i), stands(w.answer(intent{"k", w.rerun, ""}, long).Call), want)
			}
		})
	})
	t.Run("held, then decided", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			w.hold.does(lost)
			w.refuse(intent{"k", w.hold, ""}, long, idem.CodeOutcomeUnknown)
			w.refuse(intent{"k", w.hold, ""}, long, idem.CodeOutcomeUnknown)
			if _, err := w.resolve("k", idem.OutcomeSucceeded); err != nil {
				t.Fatal(err)
			}
			equal(t, "answer", stands(w.answer(intent{"k", w.hold, ""}, long).Call), "succeeded 1")
		})
	})
}

// What is remembered is given no longer than the window lasts (R16).
func TestRememberedEndExpires(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.answer(intent{"k", w.local, ""}, long)
		w.answer(intent{"k", w.local, ""}, long)
		time.Sleep(time.Hour - time.Second)
		w.answer(intent{"k", w.local, ""}, long)
		time.Sleep(2 * time.Second)
		w.refuse(intent{"k", w.local, ""}, long, idem.CodeKeyExpired)
		equal(t, "attempts", w.local.attempts(), 1)
	}, window(time.Hour))
}

// What is remembered takes a bounded amount of memory, however many keys are asked
// for again and however long their answers are.
func TestRememberedEndsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for i := range 400 {
			in := intent{fmt.Sprint(i), w.local, fmt.Sprintf(`{"pad":"%0*d"}`, 100_000, i)}
			w.local.does(echo)
			w.answer(in, long)
			w.answer(in, long)
			if m := w.r.Memory(); m.EndBytes > 8<<20 || m.EndBytes == 0 || m.Ends == 0 {
				t.Fatalf("%d ends take %d bytes", m.Ends, m.EndBytes)
			}
		}
		equal(t, "attempts", w.local.attempts(), 400)
	})
}
