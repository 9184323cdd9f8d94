package runner_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

// compares gives a tool rules, nil for none.
func compares(tool string, rules *idem.Rules) options {
	return func(o *runnerOptions) {
		for _, t := range o.Tools {
			if t.Name == tool {
				t.Rules = rules
			}
		}
	}
}

// What the rules leave out makes no conflict, and everything else does (R3).
func TestRulesOfATool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first := w.answer(intent{"k", w.local, `{"order":"a","memo":"x"}`}, long)
		for _, args := range []string{`{"order":"a"}`, `{"memo":"y","order":" a\n"}`, `{"order":"a","memo":{"deep":[1]}}`} {
			a := w.answer(intent{"k", w.local, args}, long)
			equal(t, args, a.Verdict, idem.VerdictReplayed)
			equal(t, args, a.Call.ID, first.Call.ID)
		}
		w.refuse(intent{"k", w.local, `{"order":"b"}`}, long, idem.CodeConflict)
		w.refuse(intent{"k", w.hold, `{"order":"a"}`}, long, idem.CodeConflict)
		// Another tool has none.
		w.answer(intent{"none", w.none, `{"order":"a","memo":"x"}`}, long)
		w.refuse(intent{"none", w.none, `{"order":"a"}`}, long, idem.CodeConflict)
		equal(t, "attempts", w.local.attempts(), 1)
	}, compares("local", &idem.Rules{Ignore: []string{"/memo"}, Trim: []string{"/order"}}))
}

// An honest retry of an old call is no conflict after the rules have changed, and
// a dishonest one is, whatever the rules were and are: calls keep theirs.
func TestChangedRules(t *testing.T) {
	memo, note := &idem.Rules{Ignore: []string{"/memo"}}, &idem.Rules{Ignore: []string{"/note"}}
	const sent, other = `{"n":1,"memo":"a","note":"b"}`, `{"n":2,"memo":"a","note":"b"}`
	all := map[string]*idem.Rules{"none": nil, "memo": memo, "note": note}
	for before, rules := range all {
		for after, changed := range all {
			t.Run(before+", then "+after, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					w.none.does(then(succeed, fails(true), lost))
					w.answer(intent{"ended", w.none, sent}, long)
					w.answer(intent{"retryable", w.none, sent}, long)
					w.restart(compares("none", changed))
					a := w.answer(intent{"ended", w.none, sent}, long)
					equal(t, "an honest retry", a.Verdict, idem.VerdictReplayed)
					w.refuse(intent{"ended", w.none, other}, long, idem.CodeConflict)
					w.refuse(intent{"retryable", w.none, other}, long, idem.CodeConflict)
					equal(t, "asked for again", w.answer(intent{"retryable", w.none, sent}, long).Verdict, idem.VerdictRequeued)

					// What was left out then is left out still, and counts if it did.
					_, err := w.post(intent{"ended", w.none, `{"n":1,"memo":"else","note":"b"}`}, 0)
					if got, want := err == nil, rules == memo; got != want {
						t.Errorf("another memo: %v", err)
					}
					w.answer(intent{"new", w.none, sent}, long)
					_, err = w.post(intent{"new", w.none, `{"n":1,"memo":"a","note":"else"}`}, long)
					if got, want := err == nil, changed == note; got != want {
						t.Errorf("another note: %v", err)
					}
				}, compares("none", rules))
			})
		}
	}
}

// Over a shared store, calls may have rules that another process brought in.
func TestRulesOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newWorld(t, true, storetest.ModelOptions{})
		b := &world{t: t, o: a.o, virtual: true, local: a.local, none: a.none, rerun: a.rerun, verify: a.verify, hold: a.hold}
		b.o.Tools = nil
		for _, tool := range a.o.Tools {
			copied := *tool
			b.o.Tools = append(b.o.Tools, &copied)
		}
		compares("none", &idem.Rules{Ignore: []string{"/memo"}})(&b.o)
		b.live(a.model.Open())
		a.beside = append(a.beside, b)
		t.Cleanup(a.finish)
		first := b.answer(intent{"k", b.none, `{"memo":"x"}`}, long)
		second := a.answer(intent{"k", a.none, `{"memo":"y"}`}, long)
		equal(t, "verdict", second.Verdict, idem.VerdictReplayed)
		equal(t, "call", second.Call.ID, first.Call.ID)
		a.refuse(intent{"k", a.none, `{"n":2}`}, long, idem.CodeConflict)
		w := a.answer(intent{"waited", a.none, `{}`}, long)
		equal(t, "afterwards", w.Verdict, idem.VerdictCreated)
	})
}

// forgetful has lost the rules that its calls were accepted under.
type forgetful struct{ *spy }

func (forgetful) Rules(context.Context) ([]*idem.Rules, error) { return nil, nil }

// A call whose rules are gone is not compared under others.
func TestMissingRules(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.answer(intent{"k", w.none, `{"memo":"x"}`}, long)
		o := w.o
		compares("none", nil)(&o)
		r, err := runner.New(forgetful{w.spy}, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.r.Stop(context.Background())
		defer r.Stop(over())
		s := idem.Submission{Request: intent{"k", w.none, `{"memo":"x"}`}.request(), Wait: long}
		_, err = r.Submit(context.Background(), s)
		var e *idem.Error
		if !errors.As(err, &e) || e.Code != idem.CodeInternal || e.CallID.IsZero() || e.Effect != idem.DoubtUnknown {
			t.Errorf("got %v", err)
		}
	}, compares("none", &idem.Rules{Ignore: []string{"/memo"}}))
}
