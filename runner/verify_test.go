package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/runner"
)

type answers = func(context.Context, idem.Invocation) (idem.Verification, error)

// inTurn gives one answer after the other, the last one for ever.
func inTurn(all ...answers) answers {
	var n atomic.Int64
	return func(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
		return all[min(int(n.Add(1)), len(all))-1](ctx, inv)
	}
}

func panicky(context.Context, idem.Invocation) (idem.Verification, error) { panic("verify") }

func quits(context.Context, idem.Invocation) (idem.Verification, error) {
	runtime.Goexit()
	return idem.Verification{}, nil
}

func foundHTML(context.Context, idem.Invocation) (idem.Verification, error) {
	return idem.Verification{Found: true, Result: idem.Result{Output: []byte("<html>")}}, nil
}

func slowly(d time.Duration, then answers) answers {
	return func(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
		time.Sleep(d)
		return then(ctx, inv)
	}
}

func settle(d time.Duration) func(*world) { return func(w *world) { w.verify.Settle = d } }

// A held call whose tool can be asked is decided by what downstream says (R13).
func TestVerify(t *testing.T) {
	tests := []struct {
		name    string
		answers answers
		at      time.Duration // after it was held
		stand   string        // then
		asked   int
		trail   string
	}{
		{"found", found, 0, "succeeded 1", 1, "created claimed held resolved"},
		{"absent, not believed yet", absent, 19 * time.Second, "held 1 outcome_unknown", 1, "created claimed held"},
		{"absent", absent, 20 * time.Second, "succeeded 2", 2, "created claimed held resolved claimed succeeded"},
		{"absent, then found", inTurn(absent, found), 20 * time.Second, "succeeded 1", 2, "created claimed held resolved"},
		{"no answer", noAnswer, 0, "held 1 outcome_unknown", 1, "created claimed held"},
		{"no answer, again and again", noAnswer, 3600 * time.Second, "held 1 outcome_unknown", 66, "created claimed held"},
		{"no answer, then found", inTurn(noAnswer, noAnswer, found), 1500 * time.Millisecond, "succeeded 1", 3, "created claimed held resolved"},
		{"it panics, then found", inTurn(panicky, found), 500 * time.Millisecond, "succeeded 1", 2, "created claimed held resolved"},
		{"it ends its goroutine, then found", inTurn(quits, found), 500 * time.Millisecond, "succeeded 1", 2, "created claimed held resolved"},
		{"a result that is not JSON", foundHTML, 20 * time.Second, "held 1 outcome_unknown", 6, "created claimed held"},
		// The question was put at 15 s, when "absent" was not to be believed.
		{"absent, answered late", inTurn(noAnswer, noAnswer, noAnswer, noAnswer, noAnswer, slowly(8*time.Second, absent), found), 24 * time.Second,
			"held 1 outcome_unknown", 6, "created claimed held"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.verify.Settle = 20 * time.Second
				w.verify.does(then(lost, succeed))
				w.verify.answers(tt.answers)
				w.answer(intent{"k", w.verify, ""}, 0)
				time.Sleep(tt.at)
				synctest.Wait()
				w.want("k", tt.stand)
				equal(t, "questions", w.verify.questions(), tt.asked)
				w.wantTrail("k", tt.trail)
				q := w.verify.asked[0]
				equal(t, "effect id", q.EffectID, idem.EffectID(w.call("k").ID)) // R10
				equal(t, "attempt", q.Attempt, 1)
				equal(t, "args", string(q.Args), `{"n":1}`)
				if tt.stand == "succeeded 1" {
					equal(t, "result", string(w.call("k").Result), `{"found":true}`)
					equal(t, "effects", w.effects(), 1)
				}
			})
		})
	}
}

// Who waits for a held call is told of the end that a verification gives it.
func TestVerifyTellsWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.verify.does(lost)
		w.verify.answers(inTurn(noAnswer, found))
		w.answer(intent{"k", w.verify, ""}, 0)
		synctest.Wait()
		c, err := w.r.CallByKey(context.Background(), keyOf("k"), long)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "read", stands(c), "succeeded 1")
		equal(t, "verdict", w.answer(intent{"k", w.verify, ""}, 0).Verdict, idem.VerdictReplayed)
	})
}

// A question that does not return stays the only one about its call.
func TestOneQuestionAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var open, most atomic.Int64
		w.verify.does(lost)
		w.verify.answers(func(context.Context, idem.Invocation) (idem.Verification, error) {
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			time.Sleep(10 * time.Minute) // deaf
			return found(context.Background(), idem.Invocation{})
		})
		w.answer(intent{"k", w.verify, ""}, 0)
		time.Sleep(5 * time.Minute)
		equal(t, "questions", w.verify.questions(), 1)
		w.want("k", "held 1 outcome_unknown") // its answer will come too late
		w.verify.answers(found)
		time.Sleep(10 * time.Minute)
		w.want("k", "succeeded 1")
		equal(t, "open at once", most.Load(), 1)
		equal(t, "questions", w.verify.questions(), 2)
	}, timeout(10*time.Second))
}

// Held calls of an earlier life are asked about at the start, all of them, however
// many there are.
func TestVerifyAfterStart(t *testing.T) {
	const n = 50
	bubble(t, func(t *testing.T, w *world) {
		w.verify.does(lost)
		for i := range n {
			w.answer(intent{fmt.Sprint(i), w.verify, ""}, 0)
		}
		synctest.Wait()
		for range 2 { // the second time by the crash alone
			w.crash()
		}
		synctest.Wait()
		var open, most atomic.Int64
		w.verify.answers(func(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			time.Sleep(time.Second)
			return found(ctx, inv)
		})
		w.crash()
		time.Sleep(10 * time.Second)
		for i := range n {
			w.want(fmt.Sprint(i), "succeeded 1")
		}
		equal(t, "effects", w.effects(), n)
		if most.Load() > 8 {
			t.Errorf("%d questions were open at once", most.Load())
		}
		equal(t, "asks", len(w.r.Memory().Asks), 0)
	})
}

// A crash while running, then a verification that finds it, or does not.
func TestVerifyAfterCrash(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answers answers
		stand   string
		after   time.Duration
	}{
		{"found", found, "succeeded 1", 0},
		{"absent", absent, "succeeded 2", 20 * time.Second},
		{"no answer", noAnswer, "held 1 outcome_unknown", time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				settle(20 * time.Second)(w)
				w.verify.does(then(hang, succeed))
				w.verify.answers(tt.answers)
				w.answer(intent{"k", w.verify, ""}, 0)
				synctest.Wait()
				w.crash()
				time.Sleep(tt.after)
				synctest.Wait()
				w.want("k", tt.stand)
			})
		})
	}
}

// A person may decide while downstream is being asked; the answer is dropped.
func TestPersonBeatsVerification(t *testing.T) {
	for _, outcome := range []idem.Outcome{idem.OutcomeSucceeded, idem.OutcomeFailed} {
		bubble(t, func(t *testing.T, w *world) {
			w.verify.does(lost)
			w.verify.answers(slowly(time.Second, found))
			w.answer(intent{"k", w.verify, ""}, 0)
			synctest.Wait()
			c, err := w.resolve("k", outcome)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			equal(t, "stands", stands(w.call("k")), stands(c))
			w.wantTrail("k", "created claimed held resolved")
			equal(t, "asks", len(w.r.Memory().Asks), 0)
			equal(t, "questions", w.verify.questions(), 1)
		})
	}
}

// An answer about an earlier attempt decides nothing about a later one: "absent"
// was true before the later attempt was dispatched.
func TestAnswerAboutEarlierAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		settle(10 * time.Second)(w)
		w.verify.does(lost)
		w.verify.answers(inTurn(absent, slowly(5*time.Second, absent), noAnswer))
		w.answer(intent{"k", w.verify, ""}, 0)
		time.Sleep(11 * time.Second) // the second question is open, and will be believed
		equal(t, "questions", w.verify.questions(), 2)
		if _, err := w.resolve("k", idem.OutcomeRetry); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.want("k", "held 2 outcome_unknown")
		time.Sleep(5 * time.Second)
		w.want("k", "held 2 outcome_unknown")
		equal(t, "attempts", w.verify.attempts(), 2)
		time.Sleep(time.Hour)
		w.want("k", "held 2 outcome_unknown")
		equal(t, "attempts", w.verify.attempts(), 2)
	})
}

// Of two processes that ask about a call one may have it run again. The other
// learns only with its next question that there was another attempt, and does not
// believe at once that downstream knows nothing of that.
func TestOthersAttemptIsNotBelievedAbsent(t *testing.T) {
	shared(t, func(t *testing.T, a, b *world) {
		settle(10 * time.Second)(a)
		a.verify.does(lost)
		a.verify.answers(noAnswer)
		a.answer(intent{"k", a.verify, ""}, 0)
		synctest.Wait()
		a.want("k", "held 1 outcome_unknown")
		c := &world{t: t, o: a.o, virtual: true, local: a.local, none: a.none, rerun: a.rerun, verify: a.verify, hold: a.hold}
		c.live(a.model.Open()) // finds it held
		a.beside = append(a.beside, c)
		time.Sleep(2 * time.Minute)
		if _, err := a.resolve("k", idem.OutcomeRetry); err != nil {
			t.Fatal(err)
		}
		a.verify.answers(absent)
		synctest.Wait()
		a.want("k", "held 2 outcome_unknown")
		time.Sleep(9 * time.Second)
		a.want("k", "held 2 outcome_unknown")
	}, lease(time.Second))
}

// "Absent" is not believed while an abandoned attempt of the call is still at
// work in this very process, nor too soon after it has returned, since it may
// have been at work downstream until then. And it is never believed against the
// tool's own word that it was done, even if that came too late to be applied.
func TestAbsentWhileAttemptIsAtWork(t *testing.T) {
	tests := []struct {
		name  string
		late  act
		stand string
		trail string
	}{
		{"it was lost", lost, "succeeded 2", "created claimed held stale_result resolved claimed succeeded"},
		{"it was done", succeed, "held 1 tool_timeout", "created claimed held stale_result"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				settle(20 * time.Second)(w)
				free := make(chan struct{})
				w.verify.does(then(func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
					<-free // deaf
					return tt.late(ctx, inv)
				}, succeed))
				w.verify.answers(absent)
				w.answer(intent{"k", w.verify, ""}, 0)
				time.Sleep(10 * time.Minute)
				w.want("k", "held 1 tool_timeout")
				equal(t, "attempts", w.verify.attempts(), 1)
				close(free)
				time.Sleep(19 * time.Second)
				w.want("k", "held 1 tool_timeout")
				time.Sleep(2 * time.Minute)
				w.want("k", tt.stand)
				w.wantTrail("k", tt.trail)
			}, timeout(10*time.Second))
		})
	}
}

// The late word that it was done is in the audit trail, and so it counts in the
// next life of the process as well.
func TestLateSuccessOutlivesTheProcess(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		settle(20 * time.Second)(w)
		free := make(chan struct{})
		w.verify.does(then(waitsFor(free), succeed))
		w.verify.answers(absent)
		w.answer(intent{"k", w.verify, ""}, 0)
		time.Sleep(time.Minute)
		close(free)
		synctest.Wait()
		w.crash()
		time.Sleep(5 * time.Minute)
		w.want("k", "held 1 tool_timeout")
		equal(t, "attempts", w.verify.attempts(), 1)
	}, timeout(10*time.Second))
}

// "Not found" is not believed earlier than was promised when the attempt went out,
// nor of another downstream, whatever the configuration says since.
func TestChangedVerification(t *testing.T) {
	change := func(settle time.Duration, target uint64) options {
		return func(o *runnerOptions) {
			for _, t := range o.Tools {
				if t.Name == "verify" {
					t.Settle, t.Target = settle, target
				}
			}
		}
	}
	for name, tt := range map[string]struct {
		settle time.Duration
		target uint64
		after  time.Duration // when it is run again; 0: never
	}{
		"nothing":          {time.Minute, 7, time.Minute},
		"settle shorter":   {time.Second, 7, time.Minute},
		"settle longer":    {time.Hour, 7, time.Hour},
		"another target":   {time.Minute, 8, 0},
		"no target at all": {time.Minute, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.verify.does(then(lost, succeed))
				w.verify.answers(noAnswer)
				w.answer(intent{"k", w.verify, ""}, 0)
				synctest.Wait()
				w.verify.answers(absent)
				w.crash(change(tt.settle, tt.target))
				if tt.after == 0 {
					time.Sleep(24 * time.Hour)
					w.want("k", "held 1 outcome_unknown")
					w.verify.answers(found) // what is found is believed
					time.Sleep(2 * time.Minute)
					w.want("k", "succeeded 1")
					return
				}
				time.Sleep(tt.after - time.Millisecond)
				w.want("k", "held 1 outcome_unknown")
				time.Sleep(2 * time.Minute) // a question later at the latest
				w.want("k", "succeeded 2")
			}, change(time.Minute, 7))
		})
	}
}

// A store that does not take the decision is not asked in a loop.
func TestVerificationCannotDecide(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		settle(time.Second)(w)
		w.verify.does(then(lost, succeed))
		w.verify.answers(absent)
		w.answer(intent{"k", w.verify, ""}, 0)
		synctest.Wait()
		args := 0
		w.spy.set(func(s *spy) {
			s.updating = func(idem.Key) error {
				if args++; args%2 == 0 { // the args are read, the decision is not written
					return errInjected
				}
				return nil
			}
		})
		time.Sleep(10 * time.Minute)
		if n := w.verify.questions(); n > 30 {
			t.Errorf("%d questions in ten minutes", n)
		}
		w.want("k", "held 1 outcome_unknown")
		w.spy.set(func(s *spy) { s.updating = nil })
		time.Sleep(2 * time.Minute)
		w.want("k", "succeeded 2")
	})
}

// A stop does not wait for a question.
func TestStopWhileAsking(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		free := make(chan struct{})
		defer close(free)
		w.verify.does(lost)
		w.verify.answers(func(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
			<-free
			return found(ctx, inv)
		})
		for i := range 20 {
			w.answer(intent{fmt.Sprint(i), w.verify, ""}, 0)
		}
		synctest.Wait()
		began := time.Now()
		w.r.Stop(context.Background())
		equal(t, "stopping took", time.Since(began), 0)
		w.want("3", "held 1 outcome_unknown")
	})
}

// lines counts the lines of a log that say something.
type lines struct {
	slog.Handler
	say string
	n   atomic.Int64
}

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.say) {
		l.n.Add(1)
	}
	return nil
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// However many calls are held, a downstream that gives no answers is asked a few
// times a minute, and the log says so once a minute. When it is back, all are
// decided.
func TestSilentDownstream(t *testing.T) {
	const n = 1000
	log := &lines{Handler: slog.DiscardHandler, say: "gave no answer"}
	bubble(t, func(t *testing.T, w *world) {
		w.verify.does(lost)
		w.verify.answers(noAnswer)
		for i := range n {
			w.answer(intent{fmt.Sprint(i), w.verify, ""}, 0)
		}
		time.Sleep(10 * time.Minute)
		before, said := w.verify.questions(), log.n.Load()
		time.Sleep(time.Hour)
		if asked := w.verify.questions() - before; asked < 60 || asked > 60*8 {
			t.Errorf("%d questions in an hour", asked)
		}
		if lines := log.n.Load() - said; lines < 55 || lines > 61 {
			t.Errorf("%d lines of log in an hour", lines)
		}
		w.verify.answers(found)
		time.Sleep(2 * time.Minute)
		equal(t, "asks", len(w.r.Memory().Asks), 0)
		equal(t, "effects", w.effects(), n)
	}, func(o *runner.Options) { o.Logger = slog.New(log) })
}

// A few calls that cannot be asked about keep the others of their tool not waiting.
func TestSilenceAboutSomeCalls(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const silent = `{"n":2}`
		w.verify.does(lost)
		w.verify.answers(func(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
			if string(inv.Args) == silent {
				return noAnswer(ctx, inv)
			}
			return found(ctx, inv)
		})
		for i := range 5 {
			w.answer(intent{fmt.Sprint("silent ", i), w.verify, silent}, 0)
		}
		time.Sleep(time.Hour)
		for i := range 100 {
			w.answer(intent{fmt.Sprint(i), w.verify, ""}, 0)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := range 100 {
			w.want(fmt.Sprint(i), "succeeded 1")
		}
	})
}
