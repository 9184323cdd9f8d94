package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/idemd/idemd/idem"
)

// Submit brings an intent in and answers when its call is durable; with a wait,
// when it has ended or the time is up.
//
// The context ends the waiting, never the call: a call runs to its end whether
// or not the client that asked for it is still there (R15).
//
// Errors: every *idem.Error that idem.Submit names; ErrOutcomeUnknown where a
// wait saw the call being held; idem.ErrDropped; the context's error.
func (r *Runner) Submit(ctx context.Context, s idem.Submission) (idem.Answer, error) {
	began := time.Now()
	if err := r.rules.apply(&s.Request); err != nil {
		r.counts.count(s.Request.Tool, func(c *idem.Counts) { c.Refused++ })
		return idem.Answer{}, err
	}
	if a, taken, err := r.submitUnrecorded(ctx, s); taken {
		return a, err
	}
	sub := &submission{r: r, Submission: s, tool: r.tools[s.Request.Tool], rider: newRider(s.Fault, s.Trace)}
	defer sub.leave()
	ch, err := sub.compared()
	if err != nil {
		sub.countRefusal(ch, err)
		return idem.Answer{}, err
	}
	r.countVerdict(ch.After.Tool, ch.Verdict)
	answer := idem.Answer{Call: *ch.After, Verdict: ch.Verdict}
	if s.Wait <= 0 && ch.Write && answer.Call.Status.Ended() {
		answer.Call = *sub.accepted // who does not wait gets a receipt, not an end (R5)
	}
	if sub.waiter != nil && !answer.Call.Status.Ended() {
		r.flights.arm(sub.waiter, ch.After)
		answer.Call, err = r.await(ctx, sub.waiter, sub.rider.cut(), s.Wait-time.Since(began), *ch.After)
		if err != nil {
			return idem.Answer{}, err
		}
		if answer.Call.Status == idem.StatusHeld {
			held := *idem.ErrOutcomeUnknown
			held.CallID, held.Effect = answer.Call.ID, idem.DoubtUnknown
			return idem.Answer{}, &held
		}
	}
	select {
	case err := <-sub.rider.cut():
		return idem.Answer{}, err
	default:
	}
	answer.Call.Args = nil
	answer.Call = r.live(answer.Call)
	return answer, nil
}

// submission is a request on its way to a decision.
type submission struct {
	idem.Submission
	r     *Runner
	tool  *idem.Tool // nil where the configuration does not know it
	f     *flight    // nil until it is needed
	rider *rider

	checked  bool  // whether check has been asked,
	checkErr error // and what it said

	id        idem.CallID // of the call, should it be new; zero until that is likely
	createdAt time.Time
	counted   int64      // deliveries that the decision has counted so far
	work      *work      // a local tool that runs already, or nil
	accepted  *idem.Call // as the decision wrote it, before anybody claimed it
	waiter    *waiter    // once the request waits for an end
}

// compared decides the request, also where the call of its key was accepted under
// rules that are not known yet.
func (s *submission) compared() (idem.Change, error) {
	ch, err := s.decide()
	if !errors.Is(err, idem.ErrUnknownRules) {
		return ch, about(err, ch.Before)
	}
	// Another process over the same store has brought them in since this one began.
	if err := s.r.rules.load(s.ctx(), s.r.store); err != nil {
		return idem.Change{}, err
	}
	if err := s.r.rules.apply(&s.Request); err != nil {
		return idem.Change{}, err
	}
	if ch, err = s.decide(); errors.Is(err, idem.ErrUnknownRules) {
		s.r.log.Error("a call was accepted under rules that the store does not have", "call_id", ch.Before.ID.String())
		// It may be the sender's own, and it may have been carried out.
		err = &idem.Error{Code: idem.CodeInternal, Message: "the rules that this call was accepted under are missing", CallID: ch.Before.ID, Effect: idem.DoubtUnknown}
	}
	return ch, about(err, ch.Before)
}

// about makes a refusal that a transition was handed, and that knows no call, one
// about the call that it met: an attempt of it may have had its effect, although the
// refused request has none.
func about(err error, c *idem.Call) error {
	var e *idem.Error
	if c == nil || !errors.As(err, &e) || !e.CallID.IsZero() {
		return err
	}
	known := *e
	known.CallID, known.Effect = c.ID, c.Doubt()
	return &known
}

// decide commits what the request leads to and starts what it is to start.
func (s *submission) decide() (idem.Change, error) {
	r := s.r
	cur, ch, done, err := s.look()
	if done {
		return ch, err
	}
	if s.f == nil { // it may be decided twice
		s.f = r.flights.enter(s.Request.Key)
	}
	if s.mayRunInline() {
		if r.flights.lead(s.f, s.Wait) {
			defer r.flights.decided(s.f)
			ch, ok, err := s.inline(cur)
			if ok && err == nil && ch.Write {
				s.ended(ch)
			}
			if ok {
				return ch, err
			}
		} else if _, ch, done, err := s.look(); done { // what the leader made of it
			return ch, err
		}
	}
	return s.ordinary()
}

// mayRunInline reports whether the request may run its tool itself, so that one
// commit does for all: a local one that it waits for, or that is done in no time
// where a worker would do it at once anyway. A fault without a wait is meant for a
// call that is on its way. What is counted (see [idem.Tool]) needs a worker, which
// has its share.
func (s *submission) mayRunInline() bool {
	return s.tool != nil && s.tool.Effects == idem.EffectsLocal && s.tool.Concurrency == 0 && (s.Wait > 0 || s.tool.Instant && s.Fault == nil)
}

// look decides the request if its call has ended and is to stay so: an end needs
// no look under the key's lock, and its answer no room. Otherwise it returns the
// call as it is, nil where there is none.
func (s *submission) look() (cur *idem.Call, ch idem.Change, done bool, err error) {
	cur = s.r.ends.get(s.Request.Key)
	if cur == nil {
		c, err := s.r.store.CallByKey(s.ctx(), s.Request.Key)
		switch {
		case err != nil: // also one that is not ErrNotFound: the change will have it, too
			return nil, idem.Change{}, false, nil
		case !c.Status.Ended():
			return &c, idem.Change{}, false, nil
		}
		cur = &c
		s.r.ends.put(cur)
	}
	ch, err = idem.Submit(s.Request, idem.Admission{Now: s.r.wall()})(cur)
	return cur, ch, !ch.Write, err
}

// ordinary brings the request in with a worker, where one is free, or a place in
// the queue.
func (s *submission) ordinary() (idem.Change, error) {
	r := s.r
	defer func() { s.work.drop(r.room) }() // unless an attempt has it
	g, places := r.room.reserve(s.Request.Tool)
	defer func() { r.room.release(g) }() // also when a transition panics
	refuse, err := s.refusal(&g, places)
	if err != nil {
		return idem.Change{}, err
	}
	s.mint()
	s.waitForEnds()
	submit := s.submit(refuse)
	if g.worker != 0 {
		submit = idem.Chain(submit, s.claim(g.worker))
	}
	ch, err := s.commit(submit)
	switch {
	case err != nil || !ch.Write:
	case ch.After.Status == idem.StatusRunning:
		a := &attempt{r: r, tool: s.tool, call: ch.After, worker: g.worker, f: r.flights.enter(s.f.key), rider: s.rider}
		if w := s.work; w != nil && w.inv.CallID == ch.After.ID && w.inv.Attempt == ch.After.Attempt {
			a.work, s.work = w, nil
		}
		r.room.begin(a.hand())
		g = grant{} // the attempt gives it back
		r.pass(s.rider, idem.PointAfterCreate, ch.After.ID)
		go func() {
			defer r.flights.leave(a.f)
			a.run()
		}()
	case ch.After.Status.Ended():
		s.ended(ch)
	default:
		r.pass(s.rider, idem.PointAfterCreate, ch.After.ID)
		r.committed(s.f, ch)
	}
	return ch, err
}

// mint makes the id that the call will have, should it be new.
func (s *submission) mint() {
	if s.id.IsZero() {
		s.id, s.createdAt = s.r.ids.next(s.Request.Key)
	}
}

// waitForEnds puts the waiter up of a request that waits, before the decision
// after which ends may be told; leave takes it down.
func (s *submission) waitForEnds() {
	if s.Wait > 0 && s.waiter == nil {
		s.waiter = s.r.flights.wait(s.f, true)
	}
}

// leave lets go of what the request holds in memory.
func (s *submission) leave() {
	if s.waiter != nil {
		s.r.flights.takeDown(s.f, s.waiter)
	}
	if s.f != nil {
		s.r.flights.leave(s.f)
	}
}

// ended does what follows a commit that brought the call to its end.
func (s *submission) ended(ch idem.Change) {
	s.r.pass(s.rider, idem.PointAfterCommit, ch.After.ID)
	s.r.committed(s.f, ch)
}

func (s *submission) commit(t idem.Transition) (idem.Change, error) {
	ch, err := s.r.store.Update(s.ctx(), s.f.key, t)
	if err != nil || !ch.Write || ch.After.Status != idem.StatusPending {
		s.r.flights.unboard(s.f, s.rider) // only a call that waits is boarded
	}
	return ch, err
}

// ctx is the context of everything that decides the request. A client that goes
// away does not take back what it asked for.
func (s *submission) ctx() context.Context { return context.Background() }

// submit is the transition of the request; refuse is the answer where it would
// write, nil where it may.
func (s *submission) submit(refuse error) idem.Transition {
	return s.observe(idem.Submit(s.Request, idem.Admission{
		ID: s.id, CreatedAt: s.createdAt, Now: s.r.wall(), Check: s.check, Refuse: refuse,
	}))
}

// claim claims the call for a worker. One that may be poison is left to the
// queue, where it gets its turn alone (R12), and so is one that is to be held
// instead: whoever waits is told of that as of any other.
func (s *submission) claim(worker int) idem.Transition {
	claim := idem.Claim(s.r.claimTerms(s.Request.Tool, worker))
	return func(cur *idem.Call) (idem.Change, error) {
		if s.r.suspect(cur) {
			return idem.Change{Before: cur, After: cur}, nil
		}
		ch, err := claim(cur)
		if err == nil && ch.After != nil && ch.After.Status == idem.StatusHeld {
			return idem.Change{Before: cur, After: cur}, nil
		}
		return ch, err
	}
}

// check says whether the request may make a new call. It is asked more than once,
// and validates once.
func (s *submission) check() error {
	if !s.checked {
		s.checked, s.checkErr = true, s.validate()
	}
	return s.checkErr
}

func (s *submission) validate() (err error) {
	if s.tool == nil {
		return idem.Errorf(idem.CodeBadRequest, "unknown tool")
	}
	if s.tool.Check == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			s.r.log.Error("a tool's check of args panicked", "tool", s.tool.Name,
				"panic", fmt.Sprintf("%.200v", p), "stack", string(debug.Stack()))
			err = &idem.Error{Code: idem.CodeInternal, Message: "the args could not be checked; nothing was recorded", Effect: idem.DoubtNone}
		}
	}()
	return s.tool.Check(s.Request.Args)
}

// refusal is the answer to a request that would need a write that there is no
// room for; nil where there is. A place that is not to be had is given back.
func (s *submission) refusal(g *grant, places int) (refuse, err error) {
	if why := s.r.Ready(); why != nil {
		return idem.Errorf(idem.CodeUnavailable, "not accepting new calls: %v", why), nil
	}
	if g.worker != 0 {
		return nil, nil
	}
	if g.place {
		totals, err := s.r.store.Totals(s.ctx())
		if err != nil {
			return nil, err
		}
		if totals.Of(idem.StatusPending)+int64(places) <= int64(s.r.settings.Queue) {
			return nil, nil
		}
		s.r.room.release(*g)
		*g = grant{}
	}
	return idem.Errorf(idem.CodeUnavailable, "the queue is full"), nil
}

// observe notes the decision while the key is still locked: deliveries are
// counted before a settlement can take them along, and a fault boards before
// the call can be claimed. A transition may run more than once; the last
// decision counts.
func (s *submission) observe(t idem.Transition) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		ch, err := t(cur)
		var n int64
		if ch.Verdict == idem.VerdictJoined || errors.Is(err, idem.ErrConflict) && !cur.Status.Ended() {
			n = 1
		}
		if n != s.counted {
			s.r.flights.deliver(s.f, n-s.counted)
			s.counted = n
		}
		if ch.Write {
			s.accepted = ch.After
		}
		if s.rider != nil && ch.Write {
			s.r.flights.board(s.f, s.rider)
		}
		if ch.Verdict == idem.VerdictRequeued {
			// The end that is taken back is durable, and whoever settled it may
			// not have told it yet. Told here, it comes before the next one.
			s.r.flights.publish(*cur)
		}
		return ch, err
	}
}

// countRefusal counts an answer that gives no call.
func (s *submission) countRefusal(ch idem.Change, err error) {
	tool := ""
	switch {
	case s.tool != nil:
		tool = s.tool.Name
	case ch.Before != nil:
		tool = ch.Before.Tool
	}
	s.r.counts.count(tool, func(c *idem.Counts) {
		if errors.Is(err, idem.ErrConflict) {
			c.Conflicts++
		} else {
			c.Refused++
		}
	})
}

// await waits for what the waiter is armed for. When the time is up, or the
// runner gives back what runs, it returns the call as it is.
func (r *Runner) await(ctx context.Context, w *waiter, cut <-chan error, wait time.Duration, seen idem.Call) (idem.Call, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case c := <-w.ch:
		return c, nil
	case err := <-cut:
		return idem.Call{}, err
	case <-ctx.Done():
		return idem.Call{}, ctx.Err()
	case <-timer.C:
	case <-r.halted:
	}
	select { // it may have come at the same moment
	case c := <-w.ch:
		return c, nil
	default:
	}
	return r.store.CallByID(ctx, seen.Key.Namespace, seen.ID)
}
