package idem

import (
	"fmt"
	"time"
)

// Transition is a rule applied to a record: it looks at the call of a key, nil
// where the key is unknown, and says what becomes of it.
//
// A store may run a transition more than once before its change is committed,
// so it is a pure function, and it never modifies cur.
type Transition func(cur *Call) (Change, error)

// Change is what a transition decided.
type Change struct {
	Verdict Verdict

	// Before is the record that was looked at, nil where there was none.
	Before *Call

	// After is the record as it is now. It equals Before where only events are
	// written, or nothing at all. Nil where there is no record.
	After *Call

	// Write says that After, Effect and Events must be committed together. A
	// change without it writes nothing.
	Write bool

	Effect *Effect // the row to add to the ledger, or nil
	Events []Event // to append to the call's audit trail; the store numbers them

	// Lease is how long After may run unrenewed; only where After is running
	// and this change made it so.
	Lease time.Duration

	// Takes is the lease that the change takes a running call from; zero where it
	// takes none. The holder may have renewed it since it was found to be over,
	// and only the store can tell: see ErrLeaseLives.
	Takes Lease
}

// Verdict names what a change decided.
type Verdict uint8

// The verdicts, and the transitions that give them.
const (
	VerdictNone     Verdict = iota
	VerdictCreated          // Submit: a new call
	VerdictRequeued         // Submit: a failed and retryable call opened again
	VerdictJoined           // Submit: the call is pending or running
	VerdictReplayed         // Submit: the call has ended; its answer is given again
	VerdictClaimed          // Claim: running under the lease that was asked for
	VerdictStopped          // Claim: it must not run again; it is failed or held now
	VerdictSettled          // Succeed, Fail, Lose, Hold, Release: applied
	VerdictStale            // Claim, Succeed, Fail, Lose, Hold, Release: somebody else moved the call
	VerdictResolved         // Resolve: applied
	VerdictExpired          // Expire: only a tombstone is left
)

var verdictNames = [...]string{"none", "created", "requeued", "joined", "replayed", "claimed", "stopped", "settled", "stale", "resolved", "expired"}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "verdict?"
}

// unchanged is the change that writes nothing.
func unchanged(cur *Call, v Verdict) (Change, error) {
	return Change{Verdict: v, Before: cur, After: cur}, nil
}

// revise returns a copy of a record to change.
func revise(cur *Call) Call {
	c := *cur
	c.Revision++
	return c
}

// refuse returns the sentinel's refusal about a call.
func refuse(sentinel *Error, cur *Call, effect Doubt) (Change, error) {
	err := *sentinel
	err.CallID, err.Effect = cur.ID, effect
	return Change{Before: cur, After: cur}, &err
}

// event is one about the record as it is after the change.
func event(c *Call, at time.Time, name EventName, d Detail) Event {
	return Event{At: at, Name: name, Attempt: c.Attempt, Owner: c.Owner, Detail: d.encode()}
}

// Admission is what a Submit may take if it turns out that something must be
// written.
type Admission struct {
	ID        CallID    // of the new call
	CreatedAt time.Time // of the new call: strictly increasing, see [Call]
	Now       time.Time // wall clock: decides windows

	// Check says whether a new call is acceptable: the tool is known, the args
	// fit its schema. It is asked only about a key that is unknown: a known one
	// is never validated again. Nil accepts.
	Check func() error

	// Refuse is the error for a request that would need a write while there is
	// no room for it; nil where there is.
	Refuse error
}

// Submit brings an intent in: it creates the call, replays it, joins it, opens
// it again, or refuses it (R2, R3, R9, R16).
//
// Errors: what Check and Refuse say, ErrConflict, ErrKeyExpired,
// ErrOutcomeUnknown, ErrUnknownRules. None of them writes anything.
func Submit(r Request, adm Admission) Transition {
	return func(cur *Call) (Change, error) {
		if cur == nil {
			return create(r, adm)
		}
		// Under the call's own rules: those of its tool may have changed since.
		fp, err := r.FingerprintFor(cur.Rules)
		if err != nil {
			return Change{Before: cur, After: cur}, err
		}
		switch {
		case fp != cur.Fingerprint:
			return refuse(ErrConflict, cur, DoubtNone)
		case cur.Expired(adm.Now):
			return refuse(ErrKeyExpired, cur, DoubtNone)
		case cur.Status == StatusHeld:
			return refuse(ErrOutcomeUnknown, cur, DoubtUnknown)
		case cur.Retryable():
			return requeue(cur, adm)
		case cur.Status.Ended():
			return unchanged(cur, VerdictReplayed)
		default:
			return unchanged(cur, VerdictJoined)
		}
	}
}

func create(r Request, adm Admission) (Change, error) {
	if adm.Check != nil {
		if err := adm.Check(); err != nil {
			return Change{}, err
		}
	}
	if adm.Refuse != nil {
		return Change{}, adm.Refuse
	}
	c := &Call{
		ID: adm.ID, Key: r.Key, Fingerprint: r.Fingerprint, Rules: r.Rules,
		Tool: r.Tool, Args: r.Args, ClientID: r.ClientID, Seq: r.Seq,
		CreatedAt: adm.CreatedAt, UpdatedAt: adm.CreatedAt, Revision: 1,
		Status: StatusPending, Deliveries: 1,
	}
	return Change{
		Verdict: VerdictCreated, After: c, Write: true,
		Events: []Event{event(c, adm.CreatedAt, EventCreated, Detail{})},
	}, nil
}

func requeue(cur *Call, adm Admission) (Change, error) {
	if adm.Refuse != nil {
		return Change{Before: cur, After: cur}, adm.Refuse
	}
	c := revise(cur)
	reopen(&c, adm.Now)
	c.Deliveries++
	return Change{
		Verdict: VerdictRequeued, Before: cur, After: &c, Write: true,
		Events: []Event{event(&c, adm.Now, EventRequeued, Detail{})},
	}, nil
}

// reopen makes a call pending again. The attempts and the crashes stay: they
// only ever count up.
func reopen(c *Call, now time.Time) {
	c.Status, c.UpdatedAt = StatusPending, now
	c.EndedAt, c.ExpiresAt = time.Time{}, time.Time{}
	c.Result, c.Failure = nil, nil
	c.Owner, c.LeaseUntil = "", time.Time{}
}

// Terms are what every change of a call that somebody works on needs to know.
type Terms struct {
	Now    time.Time     // wall clock: for people, and the start of a window
	Window time.Duration // how long the key is remembered after an end (R16)

	// Deliveries came for the key since the record last took any along: see
	// [Change.TakesDeliveries].
	Deliveries int64
}

// TakesDeliveries reports whether the change, which was made under [Terms], has
// taken their deliveries into the record. Every change of a record does, but one
// that leaves the call running: a claim. Events alone are no change of it.
func (ch Change) TakesDeliveries() bool {
	return ch.Revises() && ch.After.Status != StatusRunning
}

// Revises reports whether the change is one of the record, and not only of its
// audit trail.
func (ch Change) Revises() bool {
	return ch.Write && (ch.Before == nil || ch.After.Revision > ch.Before.Revision)
}

// end makes a call ended.
func (t Terms) end(c *Call, s Status) {
	c.Status, c.UpdatedAt, c.EndedAt = s, t.Now, t.Now
	c.ExpiresAt = t.Now.Add(t.Window)
	t.leave(c)
}

// hold makes a call held, and says why.
func (t Terms) hold(c *Call, why Failure) {
	why.Retryable = false
	c.Status, c.UpdatedAt, c.Failure, c.Result = StatusHeld, t.Now, &why, nil
	doubt(c)
	t.leave(c)
}

// doubt notes that nobody knows what came of the last attempt. What may have
// happened outside stays in doubt, whatever later attempts say of themselves.
func doubt(c *Call) { c.InDoubt = c.InDoubt || c.Effects == EffectsExternal }

// leave takes the lease off a call that does not run any more.
func (t Terms) leave(c *Call) {
	c.Owner, c.LeaseUntil = "", time.Time{}
	c.Deliveries += t.Deliveries
}

// ClaimTerms are the terms of a claim.
type ClaimTerms struct {
	Terms
	Owner      string
	Lease      time.Duration
	MaxCrashes int

	// Tool is the call's tool, nil where the configuration has it no more. Settle is
	// how long downstream may be at work on an attempt of it.
	Tool   *Tool
	Settle time.Duration

	// From is the lease under which the call was found running and due; zero
	// for a pending one. The claim applies only if it still is.
	From Lease

	// Recovered says that an earlier life left the call.
	Recovered bool
}

// Claim is the only door to running (R11). It decides alone what a due running
// call becomes: running again, held, or stopped (R12, R13, R14).
//
// Verdicts: VerdictClaimed; VerdictStopped, with the call failed or held;
// VerdictStale where the call is neither pending nor running under From. No
// errors.
func Claim(t ClaimTerms) Transition {
	return func(cur *Call) (Change, error) {
		switch {
		case cur != nil && cur.Status == StatusPending:
			return t.claimPending(cur)
		case t.From.Holds(cur):
			return t.takeOver(cur)
		default:
			return unchanged(cur, VerdictStale)
		}
	}
}

func (t ClaimTerms) claimPending(cur *Call) (Change, error) {
	ch := Change{Verdict: VerdictClaimed, Before: cur, Write: true}
	c := revise(cur)
	if t.Recovered {
		ch.Events = append(ch.Events, event(&c, t.Now, EventRecovered, Detail{}))
	}
	if t.Tool == nil {
		// It goes out no more. Whether an earlier attempt did it, InDoubt says; the
		// key may ask again once the tool is back.
		return t.stop(ch, &c, Failure{Code: FailureMissing, Message: "the tool is not configured any more", Retryable: true})
	}
	switch {
	case !c.InDoubt:
		return t.run(ch, &c)
	case stricter(cur.Rerun, t.Tool.Rerun) != cur.Rerun:
		// It came back here by a promise that the tool does not give any more.
		return t.keep(ch, &c, Failure{Code: FailureLost, Message: "the answer of an earlier attempt was lost, and by its new configuration the tool may not run again"})
	case cur.Target != t.Tool.Target:
		return t.keep(ch, &c, elsewhere)
	case t.spent(&c):
		return t.keep(ch, &c, exhausted(&c))
	default:
		return t.run(ch, &c)
	}
}

// elsewhere is why a call in doubt is held whose tool has another target now.
var elsewhere = Failure{Code: FailureLost, Message: "the answer of an earlier attempt was lost, and by its new configuration the tool would ask elsewhere, where nobody knows of it"}

// spent reports whether the call has had all the attempts that its tool allows. A
// call of which nobody is in doubt may have one more all the same: a person said
// so, or the bound was higher when it was asked for again.
func (t ClaimTerms) spent(c *Call) bool {
	return t.Tool != nil && t.Tool.MaxAttempts > 0 && c.Attempt >= t.Tool.MaxAttempts
}

// exhausted says that a call is spent, and that the answer of its last attempt was
// lost.
func exhausted(c *Call) Failure {
	return Failure{Code: FailureExhausted, Message: fmt.Sprintf("attempt %d was the last, and its answer was lost", c.Attempt)}
}

// takeOver claims a running call whose holder is gone.
func (t ClaimTerms) takeOver(cur *Call) (Change, error) {
	ch := Change{Verdict: VerdictClaimed, Before: cur, Write: true, Takes: LeaseOf(cur)}
	c := revise(cur)
	doubt(&c)
	crashed := countsAsCrash(cur.Owner, t.Owner, cur.Effects)
	if crashed {
		c.Crashes++
	}
	ch.Events = append(ch.Events, event(&c, t.Now, EventRecovered, Detail{From: cur.Owner, Crashes: c.Crashes}))

	// The attempt went out under the old promise and the next would go out
	// under the new one; the stricter of both is the only safe one.
	promise := cur.Rerun
	if t.Tool != nil {
		promise = stricter(promise, t.Tool.Rerun)
	}
	mayRerun := promise == RerunYes
	switch {
	case crashed && c.Crashes >= t.MaxCrashes && mayRerun:
		return t.stop(ch, &c, Failure{Code: FailureExhausted, Message: "the process died too often while this call was running"})
	case crashed && c.Crashes >= t.MaxCrashes:
		return t.keep(ch, &c, Failure{Code: FailureExhausted, Message: "the process died too often while this call was running"})
	case !mayRerun:
		return t.keep(ch, &c, Failure{Code: FailureLost, Message: "the process died after the tool was dispatched; its answer is lost"})
	case t.Tool == nil:
		return t.stop(ch, &c, Failure{Code: FailureMissing, Message: "the tool is not configured any more", Retryable: true})
	case c.InDoubt && cur.Target != t.Tool.Target:
		return t.keep(ch, &c, elsewhere)
	case t.spent(&c) && c.InDoubt:
		return t.keep(ch, &c, exhausted(&c))
	case t.spent(&c):
		return t.stop(ch, &c, exhausted(&c))
	default:
		return t.run(ch, &c)
	}
}

// countsAsCrash reports whether whoever takes a running call over has to count a
// crash: the holder was another life of a process, and its attempt was not of a
// local tool, which cannot have been what ended it (R12).
func countsAsCrash(holder, owner string, e Effects) bool {
	return boot(holder) != boot(owner) && e != EffectsLocal
}

// Suspect reports whether a call with so many crashes may be poison: its next
// crash is its last one, and so it runs alone (R12).
func Suspect(crashes, maxCrashes int) bool { return crashes >= maxCrashes-1 }

// Suspect reports whether a call that is due will be a suspect once the owner
// has claimed it.
func (d Due) Suspect(owner string, maxCrashes int) bool {
	crashes := d.Crashes
	if d.Status == StatusRunning && countsAsCrash(d.Owner, owner, d.Effects) {
		crashes++
	}
	return Suspect(crashes, maxCrashes)
}

func (t ClaimTerms) run(ch Change, c *Call) (Change, error) {
	c.Status, c.Attempt, c.Owner = StatusRunning, c.Attempt+1, t.Owner
	c.Effects, c.Rerun, c.Settle, c.Target = t.Tool.Effects, t.Tool.Rerun, 0, 0
	if c.Effects == EffectsExternal {
		c.Settle, c.Target = t.Settle, t.Tool.Target
	}
	c.UpdatedAt, c.ClaimedAt, c.LeaseUntil = t.Now, t.Now, t.Now.Add(t.Lease)
	ch.After, ch.Lease = c, t.Lease
	ch.Events = append(ch.Events, event(c, t.Now, EventClaimed, Detail{}))
	return ch, nil
}

func (t ClaimTerms) stop(ch Change, c *Call, f Failure) (Change, error) {
	t.end(c, StatusFailed)
	c.Failure = &f
	ch.Verdict, ch.After = VerdictStopped, c
	ch.Events = append(ch.Events, event(c, t.Now, EventFailed, failureDetail(f)))
	return ch, nil
}

func (t ClaimTerms) keep(ch Change, c *Call, why Failure) (Change, error) {
	t.hold(c, why)
	ch.Verdict, ch.After = VerdictStopped, c
	ch.Events = append(ch.Events, event(c, t.Now, EventHeld, failureDetail(*c.Failure)))
	return ch, nil
}

// Settlement is what the holder of a lease settles under.
type Settlement struct {
	Terms
	Lease Lease

	// MaxAttempts is how often the tool allows a call to be run; zero is without a
	// bound.
	MaxAttempts int
}

// last makes a failure of an attempt that may be asked for again one for good,
// if it was the last that the tool allows. It reports whether it was.
func (s Settlement) last(c *Call, f *Failure) bool {
	if !f.Retryable || s.MaxAttempts == 0 || c.Attempt < s.MaxAttempts {
		return false
	}
	*f = Failure{Code: FailureExhausted, Message: fmt.Sprintf("attempt %d was the last, and failed with %s: %s", c.Attempt, f.Code, f.Message)}.Clipped()
	return true
}

// settle applies a change under the lease, or drops it and says so in the
// audit trail (R6). Only the record decides, never the time.
func (s Settlement) settle(outcome string, apply func(c *Call, ch *Change)) Transition {
	return func(cur *Call) (Change, error) {
		if cur == nil || cur.ID != s.Lease.CallID || cur.Tombstone {
			return unchanged(cur, VerdictStale)
		}
		if !s.Lease.Holds(cur) {
			stale := Event{
				At: s.Now, Name: EventStaleResult, Attempt: s.Lease.Attempt, Owner: s.Lease.Owner,
				Detail: Detail{Outcome: outcome}.encode(),
			}
			return Change{Verdict: VerdictStale, Before: cur, After: cur, Write: true, Events: []Event{stale}}, nil
		}
		c := revise(cur)
		ch := Change{Verdict: VerdictSettled, Before: cur, After: &c, Write: true}
		apply(&c, &ch)
		// The event names the worker, which the record has already forgotten.
		for i := range ch.Events {
			ch.Events[i].Owner = s.Lease.Owner
		}
		return ch, nil
	}
}

// Succeed ends a running call with its result and, where the tool has an
// effect, the one effect row, in one change (R7).
//
// Verdicts: VerdictSettled, VerdictStale. No errors.
func Succeed(s Settlement, r Result) Transition {
	return s.settle("succeeded", func(c *Call, ch *Change) {
		s.succeed(c, ch, r)
		ch.Events = append(ch.Events, event(c, s.Now, EventSucceeded, Detail{}))
	})
}

// succeed gives a call its result and the change its effect.
func (t Terms) succeed(c *Call, ch *Change, r Result) {
	t.end(c, StatusSucceeded)
	c.Result, c.Failure, c.InDoubt = r.Output, nil, false
	if c.Result == nil {
		c.Result = []byte("null")
	}
	if c.OwesEffect() {
		ch.Effect = &Effect{ID: EffectID(c.ID), CallID: c.ID, Key: c.Key, Tool: c.Tool, Amount: r.Amount, CreatedAt: t.Now}
	}
}

// Fail ends a running call with a definite failure, for good or retryable. A
// retryable one of the last attempt that the tool allows is for good; where an
// earlier attempt is in doubt, the call is held then, since nobody will ask
// downstream again.
//
// Verdicts: VerdictSettled, VerdictStale. No errors.
func Fail(s Settlement, f Failure) Transition { return s.fail(f, func(*Call) {}) }

// Lose settles an attempt whose outcome is not known: R13 decides. A tool that
// may run again has failed and may be asked again; any other call is held.
//
// Verdicts: VerdictSettled, VerdictStale. No errors.
func Lose(s Settlement, f Failure) Transition {
	return func(cur *Call) (Change, error) {
		if cur != nil && cur.Rerun == RerunYes {
			f.Retryable = true
			return s.fail(f, doubt)(cur)
		}
		return Hold(s, f)(cur)
	}
}

func (s Settlement) fail(f Failure, first func(c *Call)) Transition {
	return s.settle("failed", func(c *Call, ch *Change) {
		first(c)
		name, why := EventFailed, f
		if why.Unsure {
			doubt(c)
			why.Unsure = false
		}
		if s.last(c, &why) && c.InDoubt {
			name = EventHeld
			s.hold(c, why)
		} else {
			s.failed(c, why)
		}
		ch.Events = append(ch.Events, event(c, s.Now, name, failureDetail(why)))
	})
}

func (t Terms) failed(c *Call, f Failure) {
	t.end(c, StatusFailed)
	c.Result, c.Failure = nil, &f
}

// Hold sets a running call aside because its outcome is not known.
//
// Verdicts: VerdictSettled, VerdictStale. No errors.
func Hold(s Settlement, why Failure) Transition {
	return s.settle("held", func(c *Call, ch *Change) {
		s.hold(c, why)
		ch.Events = append(ch.Events, event(c, s.Now, EventHeld, failureDetail(*c.Failure)))
	})
}

// Release gives a running call back at a clean stop that could not drain it:
// to pending, or held where the tool may not run again. It is no crash (R12).
//
// Verdicts: VerdictSettled, VerdictStale. No errors.
func Release(s Settlement) Transition {
	return func(cur *Call) (Change, error) {
		if cur != nil && cur.Rerun != RerunYes {
			return Hold(s, Failure{Code: FailureLost, Message: "stopped after the tool was dispatched; its answer is lost"})(cur)
		}
		return s.settle("released", func(c *Call, ch *Change) {
			doubt(c)
			reopen(c, s.Now)
			c.Deliveries += s.Deliveries
			ch.Events = append(ch.Events, event(c, s.Now, EventRequeued, Detail{Reason: "shutdown"}))
		})(cur)
	}
}

// Outcome is what a resolution decides.
type Outcome string

// The outcomes of a resolution.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"
	OutcomeRetry     Outcome = "retry"
)

// Resolution decides a held call: by a person, or by a verification.
type Resolution struct {
	Terms
	Outcome Outcome
	Attempt int     // that the decision is about; zero is whichever is the last
	By      string  // who; goes to the audit trail
	Note    string  // why; goes to the audit trail
	Result  Result  // for OutcomeSucceeded
	Failure Failure // for OutcomeFailed
}

// Resolve decides a held call. Succeeding writes the effect row in the same
// change (R7). The crashes stay counted, so that a call that was stopped as
// poison and is tried again runs alone.
//
// Verdicts: VerdictResolved. Errors: ErrNotFound, ErrNotHeld with the status.
func Resolve(r Resolution) Transition {
	return func(cur *Call) (Change, error) {
		if cur == nil || cur.Tombstone {
			return Change{Before: cur, After: cur}, ErrNotFound
		}
		if cur.Status != StatusHeld {
			err := *ErrNotHeld
			err.CallID, err.Status = cur.ID, cur.Status
			err.Message = "the call is not held but " + string(cur.Status)
			return Change{Before: cur, After: cur}, &err
		}
		if r.Attempt != 0 && r.Attempt != cur.Attempt {
			// It was decided, run and lost again since somebody looked.
			err := *ErrNotHeld
			err.CallID, err.Status = cur.ID, cur.Status
			err.Message = fmt.Sprintf("the call is held at attempt %d, not at %d", cur.Attempt, r.Attempt)
			return Change{Before: cur, After: cur}, &err
		}
		c := revise(cur)
		c.InDoubt = false // whoever decides has found out
		ch := Change{Verdict: VerdictResolved, Before: cur, After: &c, Write: true}
		d := Detail{Outcome: string(r.Outcome), By: r.By, Note: r.Note}
		switch r.Outcome {
		case OutcomeSucceeded:
			r.succeed(&c, &ch, r.Result)
		case OutcomeFailed:
			why := r.Failure
			why.Unsure = false
			r.failed(&c, why)
			d.Code, d.Message, d.Retryable = r.Failure.Code, r.Failure.Message, &r.Failure.Retryable
		case OutcomeRetry:
			reopen(&c, r.Now)
			c.Deliveries += r.Deliveries
		default:
			return Change{Before: cur, After: cur}, Errorf(CodeBadRequest, "outcome must be succeeded, failed or retry")
		}
		ch.Events = []Event{event(&c, r.Now, EventResolved, d)}
		return ch, nil
	}
}

// Expire leaves a tombstone of a call whose window is over. Anything else it
// leaves alone: a call without an end never expires (R16).
//
// Verdicts: VerdictExpired; VerdictNone where nothing is to be done. No errors.
func Expire(now time.Time) Transition {
	return func(cur *Call) (Change, error) {
		if cur == nil || cur.Tombstone || !cur.Expired(now) {
			return unchanged(cur, VerdictNone)
		}
		c := revise(cur)
		c.Tombstone, c.UpdatedAt = true, now
		c.Args, c.ClientID, c.Seq, c.Result, c.Failure = nil, nil, nil, nil, nil
		c.InDoubt, c.Settle, c.Target = false, 0, 0
		return Change{
			Verdict: VerdictExpired, Before: cur, After: &c, Write: true,
			Events: []Event{event(&c, now, EventExpired, Detail{})},
		}, nil
	}
}

// Chain makes one change of several: each transition is applied to what the one
// before it left, as long as that wrote and left the call on its way (created,
// requeued or claimed). The verdict is the first one's, since that is what the
// caller asked; After, Effect and Lease are the last one's.
func Chain(first Transition, rest ...Transition) Transition {
	return func(cur *Call) (Change, error) {
		ch, err := first(cur)
		last := ch.Verdict
		for _, next := range rest {
			if err != nil || (last != VerdictCreated && last != VerdictRequeued && last != VerdictClaimed) {
				break
			}
			var more Change
			if more, err = next(ch.After); err != nil {
				return Change{Before: cur, After: cur}, err
			}
			last = more.Verdict
			ch.After, ch.Lease = more.After, more.Lease
			ch.Events = append(ch.Events, more.Events...)
			if more.Effect != nil {
				ch.Effect = more.Effect
			}
		}
		return ch, err
	}
}
