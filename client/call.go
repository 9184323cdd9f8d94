package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/idemd/idemd/idem"
)

// Call sends a request, retries it under the policy, and asks until the call has
// its end. It is the same key and the same bytes every time.
//
// After an answer was lost it asks by key first: a call that is held, or whose
// window is over, is not sent again. Everything else is, also what was found: a
// question names only the key, and only the server can tell whether the call under
// it is of this request. Without a try left, what was found is believed, unless it
// is of another tool. The outcome has the call and every request that was made. The error is an
// *Error whose Effect says whether the intent may have been carried out; with
// retry_exhausted or pending the same request may be given to Call again, at any
// time within the window.
//
// A failed call is an outcome, not an error: see Outcome.Call.Status, and with
// Policy.RetryFailed it is sent again first. One that failed for good although it may
// have been done is an error with the code outcome_unknown, as one that is held is:
// what became of the intent is not known, and a new key for it could do it twice. A
// retryable one of which that is not known is an outcome whose verdict says so.
func (c *Client) Call(ctx context.Context, r Request) (Outcome, error) {
	f, err := r.freeze()
	if err != nil {
		return Outcome{}, err
	}
	return c.call(ctx, f)
}

func (c *Client) call(ctx context.Context, f frozen) (Outcome, error) {
	run := &run{c: c, f: f}
	if j := c.o.Journal; j != nil {
		run.doubt = j.doubts(f)
	}
	if c.o.Journal != nil && f.key.Name == "" {
		return Outcome{}, refused("", idem.Errorf(idem.CodeBadRequest, "a journal keeps requests by their keys, and this one has none"), "")
	}
	ctx, leave, err := c.enter(ctx, f.key.HeaderValue())
	if err != nil {
		return Outcome{}, run.refused(err)
	}
	defer leave()
	if run.window, run.unrecorded, err = c.handshake(ctx, f); err != nil {
		return Outcome{}, run.refused(err)
	}
	if j := c.o.Journal; j != nil {
		b, err := j.begin(f)
		if err != nil {
			return Outcome{}, run.refused(refusedByJournal(f.key.HeaderValue(), err))
		}
		run.first, run.resumed, run.doubt = b.first, b.resumed, b.doubt
	}
	out, err := run.call(ctx)
	if j := c.o.Journal; j != nil {
		if e := j.settle(f.key.Name, settlementOf(out, err)); e != nil {
			// It stays open, and costs one question when it is resumed.
			c.log.LogAttrs(ctx, slog.LevelError, "the journal could not note the outcome",
				slog.String("key", keyPrefix(f.key.Name)), slog.String("err", e.Error()))
		}
	}
	return out, err
}

// Wait asks for a call by its id until it has its end, at most for the policy's
// Total. The error is as for Call.
func (c *Client) Wait(ctx context.Context, callID string) (Outcome, error) {
	if _, err := callPath(callID); err != nil {
		return Outcome{}, err
	}
	ctx, leave, err := c.enter(ctx, "")
	if err != nil {
		return Outcome{}, err
	}
	defer leave()
	run := &run{c: c}
	run.begin()
	return run.poll(ctx, callID)
}

// Resume goes on with every request that the journal has begun and knows no
// outcome of, in the order in which they were begun: same keys, same bytes. It
// asks by key before it sends. It returns the outcomes that it got, and the errors of
// the others joined; those stay in the journal unless nothing more can be learnt
// of them.
func (c *Client) Resume(ctx context.Context) ([]Outcome, error) {
	if c.o.Journal == nil {
		return nil, errors.New("client: there is no journal to resume from")
	}
	var (
		outs []Outcome
		errs []error
	)
	for _, f := range c.o.Journal.open() {
		out, err := c.call(ctx, f)
		if err != nil {
			errs = append(errs, err)
		} else {
			outs = append(outs, out)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return outs, errors.Join(errs...)
}

// run is one call under way.
type run struct {
	c      *Client
	f      frozen
	window time.Duration // of the tool; 0 where it is not known, or there is none

	unrecorded bool // the server has said that the tool keeps no record

	first    time.Time // wall clock of the first send, perhaps in an earlier life; zero before
	deadline time.Time // nothing begins after it
	resumed  bool      // somebody may have sent it before
	tries    []Try
	number   int
	failures int

	// doubt is that a try may have been carried out, and nothing since has
	// said whether it was.
	doubt bool
}

const timeUsedUp = "the time is used up"

func (r *run) begin() { r.deadline = time.Now().Add(r.c.o.Policy.Total) }

// call is the whole of a client's law. Every way out of the loop returns what is
// known by then.
func (r *run) call(ctx context.Context) (Outcome, error) {
	p := r.c.o.Policy
	r.begin()
	for sends, ask := 0, r.resumed; ; {
		if ask {
			ask = false
			a := r.send(ctx, query{kind: KindFind, path: pathByKey, key: r.f.key})
			more := sends < p.Tries && !time.Now().After(r.deadline) && r.mayStillSend() == nil
			other := a.Call != nil && a.Call.Tool != r.f.tool // somebody else's under our key
			switch {
			case other && sends == p.Tries:
				return r.exhausted(a)
			case other: // it settles nothing, and whether more may be sent is told below
			case a.Call != nil && !a.held() && !a.Call.retryable() && more:
				// It may be somebody else's. Sent again, the same request gets the
				// original answer, and another one a conflict.
			case a.Try.Verdict.Action == ActionDone, a.Try.Verdict.Action == ActionPoll:
				out, err := r.found(ctx, a)
				if err != nil || !r.again(ctx, out.Answer, sends) {
					return out, err
				}
				continue
			case a.held(), a.doubtful(), a.Try.Reading.Code == idem.CodeKeyExpired:
				return r.fail(a)
			case sends == p.Tries:
				return r.exhausted(a)
			case a.absent(): // on to the same request, without a pause
			default:
				if err := r.rest(ctx, a); err != nil {
					return Outcome{}, err
				}
			}
			if time.Now().After(r.deadline) {
				return Outcome{}, r.spent(a, CodeRetryExhausted, timeUsedUp)
			}
		}
		if err := r.mayStillSend(); err != nil {
			return Outcome{}, err
		}
		a := r.send(ctx, query{kind: KindSubmit, path: pathCalls, key: r.f.key, tool: r.f.tool, body: r.f.body})
		sends++
		keyed := r.f.key.Name != ""
		switch a.Try.Verdict.Action {
		case ActionDone, ActionPoll:
			out, err := r.found(ctx, a)
			if err != nil || !r.again(ctx, out.Answer, sends) {
				return out, err
			}
			continue
		case ActionStop:
			return r.fail(a)
		case ActionAsk:
			ask = keyed && p.Tries > 1
		case ActionAgain:
			// Nothing is sent any more, so a question is the last chance to
			// know.
			ask = keyed && p.Tries > 1 && sends == p.Tries && (r.doubt || a.Try.Verdict.Effect == idem.DoubtUnknown)
		}
		r.doubt = r.doubt || a.Try.Verdict.Effect == idem.DoubtUnknown
		switch {
		case sends == p.Tries && !ask:
			return r.exhausted(a)
		case r.doubt && !keyed && !r.unrecorded:
			return Outcome{}, r.spent(a, CodeRetryExhausted, "without a key it is not sent again")
		}
		if err := r.rest(ctx, a); err != nil {
			return Outcome{}, err
		}
	}
}

// found is what to do about a call that the server has shown: it has its end, or is
// on its way.
func (r *run) found(ctx context.Context, a Answer) (Outcome, error) {
	if a.Try.Verdict.Action == ActionDone {
		return r.outcome(a), nil
	}
	return r.accepted(ctx, a)
}

// again reports whether a call that failed is to be sent again now, after the pause
// that this takes. Without the time for it, the failure is what came of it.
func (r *run) again(ctx context.Context, a Answer, sends int) bool {
	p := r.c.o.Policy
	if !p.RetryFailed || a.Call.Status != idem.StatusFailed || !a.Call.retryable() || sends == p.Tries || r.mayStillSend() != nil {
		return false
	}
	r.doubt = a.Try.Verdict.Effect == idem.DoubtUnknown // it knows what its attempts left open
	return r.rest(ctx, a) == nil
}

// accepted goes on with a call that the server has.
func (r *run) accepted(ctx context.Context, a Answer) (Outcome, error) {
	if r.f.handIn {
		return r.outcome(a), nil
	}
	return r.pollAfter(ctx, a)
}

// poll asks for a call that nothing is known of yet.
func (r *run) poll(ctx context.Context, callID string) (Outcome, error) {
	a := r.send(ctx, query{kind: KindGet, path: pathCalls + "/" + callID, callID: callID})
	if a.Try.Verdict.Action == ActionDone {
		return r.outcome(a), nil
	}
	if a.Try.Verdict.Action == ActionStop {
		r.doubt = true
		return r.fail(a)
	}
	return r.pollAfter(ctx, a)
}

// pollAfter asks again and again, as the budget allows. That an answer is lost
// does no harm here.
func (r *run) pollAfter(ctx context.Context, a Answer) (Outcome, error) {
	p := r.c.o.Policy
	r.doubt = true
	id := a.Try.CallID
	for n := 0; ; n++ {
		d := p.pollPause(n, a.Try.Reading.RetryAfter, r.c.o.Chance())
		if err := r.pause(ctx, d, a, CodePending, "the call is accepted, and has no end yet"); err != nil {
			return Outcome{}, err
		}
		a = r.send(ctx, query{kind: KindGet, path: pathCalls + "/" + id, callID: id})
		switch a.Try.Verdict.Action {
		case ActionDone:
			return r.outcome(a), nil
		case ActionStop:
			return r.fail(a)
		}
	}
}

// send makes one request and keeps account of it.
func (r *run) send(ctx context.Context, q query) Answer {
	if q.kind == KindSubmit && r.first.IsZero() {
		r.first = time.Now()
	}
	r.number++
	a := r.c.send(ctx, q, r.number)
	if len(r.tries) < maxKept {
		r.tries = append(r.tries, a.Try)
	}
	return a
}

// mayStillSend refuses to send a key again whose window may be over (R16). The
// time is the wall clock's, which goes on while the machine sleeps.
func (r *run) mayStillSend() error {
	if r.window == 0 || r.first.IsZero() {
		return nil
	}
	if age := time.Now().Round(0).Sub(r.first.Round(0)); age >= r.window {
		return r.error(&Error{
			Code:    idem.CodeKeyExpired,
			Message: fmt.Sprintf("first sent %v ago, and the server remembers a key for %v: it is not sent again", age.Round(time.Second), r.window),
		})
	}
	return nil
}

// rest waits between two tries that are not about an accepted call.
func (r *run) rest(ctx context.Context, a Answer) error {
	d := r.c.o.Policy.pause(r.failures, a.Try.Reading.RetryAfter, r.c.o.Chance())
	r.failures++
	return r.pause(ctx, d, a, CodeRetryExhausted, timeUsedUp)
}

// pause waits, unless that would end after the budget, which ends the call with
// a code, or the caller leaves.
func (r *run) pause(ctx context.Context, d time.Duration, a Answer, code idem.Code, why string) error {
	if time.Now().Add(d).After(r.deadline) {
		return r.spent(a, code, why)
	}
	err := ctx.Err()
	if err == nil {
		err = r.c.o.Pause(ctx, d)
	}
	if err == nil {
		return nil
	}
	e := a.failure()
	e.Code, e.Message, e.Err = CodeInterrupted, ErrInterrupted.Message, err
	return r.error(e)
}

// exhausted is that nothing is sent any more.
func (r *run) exhausted(a Answer) (Outcome, error) {
	return Outcome{}, r.spent(a, CodeRetryExhausted, fmt.Sprintf("%d tries", r.c.o.Policy.Tries))
}

// spent is a budget that is used up; behind it lies what the last answer was.
func (r *run) spent(a Answer, code idem.Code, why string) error {
	last := a.failure()
	if a.Call != nil { // no failure, but a call
		return r.error(&Error{Code: code, Message: why, Status: last.Status, CallID: last.CallID, Effect: last.Effect, Body: last.Body})
	}
	return r.error(&Error{
		Code: code, Message: why + "; the last one: " + last.Message,
		Status: last.Status, CallID: last.CallID, Effect: last.Effect, Body: last.Body, Err: last,
	})
}

// fail is an answer after which there is nothing to try.
func (r *run) fail(a Answer) (Outcome, error) {
	if a.Try.Kind == KindSubmit && a.Try.Reading.Code == idem.CodeConflict {
		// The key is another request's, so that none of ours was ever
		// carried out under it (R2, R3).
		r.doubt = false
	}
	return Outcome{}, r.error(a.failure())
}

// refused is an error from before the first request of this run.
func (r *run) refused(err error) error {
	var e *Error
	if errors.As(err, &e) && r.doubt && e.Effect == idem.DoubtNone {
		e.Effect = idem.DoubtUnknown // by an earlier life
	}
	return err
}

// error completes an error by what the whole run knows.
func (r *run) error(e *Error) *Error {
	e.Key, e.Tries = r.f.key.HeaderValue(), r.tries
	if r.doubt {
		e.Effect = idem.DoubtUnknown
	} else if e.Effect == "" {
		e.Effect = idem.DoubtNone
	}
	return e
}

func (r *run) outcome(a Answer) Outcome { return Outcome{Answer: a, Tries: r.tries} }

// held reports whether the answer is that the call is held.
func (a *Answer) held() bool {
	return a.Try.Reading.Call == idem.StatusHeld || a.Try.Reading.Code == idem.CodeOutcomeUnknown
}

// doubtful reports whether the answer is a call that failed for good and may have
// been done all the same.
func (a *Answer) doubtful() bool {
	return a.Try.Reading.Call == idem.StatusFailed && a.Try.Verdict.Action == ActionStop
}

// absent reports whether idemd says that there is no call of the key.
func (a *Answer) absent() bool {
	return a.Try.Reading.Status == http.StatusNotFound && a.Try.Reading.Code == idem.CodeNotFound
}
