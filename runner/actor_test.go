package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// act is what a tool does when it is run.
type act func(ctx context.Context, inv idem.Invocation) (idem.Result, error)

// actor is a tool that does what a test tells it to, and remembers how often it
// was asked.
type actor struct {
	*idem.Tool

	mu      sync.Mutex
	act     act
	answer  func(ctx context.Context, inv idem.Invocation) (idem.Verification, error)
	runs    []idem.Invocation // in the order in which they began
	asked   []idem.Invocation
	checked int
}

func newActor(name string, effects idem.Effects, rerun idem.Rerun) *actor {
	a := &actor{act: succeed}
	a.Tool = &idem.Tool{Name: name, Effects: effects, Rerun: rerun, Invoke: a.invoke, Check: a.check}
	if rerun == idem.RerunVerify {
		a.Verify = a.verify
		a.answer = noAnswer
	}
	return a
}

func (a *actor) invoke(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
	a.mu.Lock()
	do := a.act
	a.runs = append(a.runs, inv)
	a.mu.Unlock()
	return do(ctx, inv)
}

func (a *actor) verify(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
	a.mu.Lock()
	answer := a.answer
	a.asked = append(a.asked, inv)
	a.mu.Unlock()
	return answer(ctx, inv)
}

func (a *actor) check(args []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checked++
	switch string(args) {
	case badArgs:
		return idem.Errorf(idem.CodeInvalidArguments, "bad args")
	case panicArgs:
		panic("check")
	}
	return nil
}

const (
	badArgs   = `{"bad":true}`
	panicArgs = `{"panic":true}`
)

// does changes what the tool does from now on.
func (a *actor) does(do act) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.act = do
}

// answers changes what downstream says from now on.
func (a *actor) answers(answer func(context.Context, idem.Invocation) (idem.Verification, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// attempts is how often the tool was run.
func (a *actor) attempts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.runs)
}

func (a *actor) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

func (a *actor) checks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checked
}

// order is the args of the attempts, in the order in which they began.
func (a *actor) order() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, inv := range a.runs {
		all = append(all, string(inv.Args))
	}
	return all
}

func (a *actor) invocations() []idem.Invocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.runs)
}

// succeed is done at once. The result names its attempt, so that a test sees
// which one settled a call.
func succeed(_ context.Context, inv idem.Invocation) (idem.Result, error) {
	return idem.Result{Output: output(inv.Attempt)}, nil
}

func output(attempt int) []byte { return fmt.Appendf(nil, `{"attempt":%d}`, attempt) }

// takes is done after a while, unless its context ends first.
func takes(d time.Duration) act {
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		select {
		case <-time.After(d):
			return succeed(ctx, inv)
		case <-ctx.Done():
			return idem.Result{}, ctx.Err()
		}
	}
}

// hang ends with its context, and cannot say whether it was done.
func hang(ctx context.Context, _ idem.Invocation) (idem.Result, error) {
	<-ctx.Done()
	return idem.Result{}, ctx.Err()
}

// ignores is done after a while, whatever its context says.
func ignores(d time.Duration) act {
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		time.Sleep(d)
		return succeed(ctx, inv)
	}
}

// waitsFor is done when the channel is closed, whatever its context says.
func waitsFor(c <-chan struct{}) act {
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		<-c
		return succeed(ctx, inv)
	}
}

func fails(retryable bool) act {
	return func(context.Context, idem.Invocation) (idem.Result, error) {
		return idem.Result{}, &idem.Failure{Code: idem.FailureTool, Message: "no", Retryable: retryable}
	}
}

// echo gives its args back.
func echo(_ context.Context, inv idem.Invocation) (idem.Result, error) {
	return idem.Result{Output: inv.Args}, nil
}

func panics(context.Context, idem.Invocation) (idem.Result, error) { panic("boom") }

var errNoIdea = errors.New("no idea")

// lost does not know whether it was done.
func lost(context.Context, idem.Invocation) (idem.Result, error) { return idem.Result{}, errNoIdea }

// then does one thing after the other, the last one for ever.
func then(acts ...act) act {
	var mu sync.Mutex
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		mu.Lock()
		do := acts[0]
		if len(acts) > 1 {
			acts = acts[1:]
		}
		mu.Unlock()
		return do(ctx, inv)
	}
}

func noAnswer(context.Context, idem.Invocation) (idem.Verification, error) {
	return idem.Verification{}, errNoIdea
}

func found(context.Context, idem.Invocation) (idem.Verification, error) {
	return idem.Verification{Found: true, Result: idem.Result{Output: []byte(`{"found":true}`)}}, nil
}

func absent(context.Context, idem.Invocation) (idem.Verification, error) {
	return idem.Verification{}, nil
}
