package runner

import (
	"context"
	"errors"
	"sync"
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
	sub := &submission{r: r, Submission: s, tool: r.tools[s.Request.Tool], rider: newRider(s.Fault)}
	sub.f = r.flights.enter(s.Request.Key)
	defer r.flights.leave(sub.f)

	var w *waiter
	if s.Wait > 0 {
		w = r.flights.wait(sub.f, true)
		defer r.flights.takeDown(sub.f, w)
	}
	ch, err := sub.decide()
	if err != nil {
		sub.countRefusal(ch, err)
		return idem.Answer{}, err
	}
	r.countVerdict(ch.After.Tool, ch.Verdict)
	answer := idem.Answer{Call: *ch.After, Verdict: ch.Verdict}
	if w != nil && !answer.Call.Status.Ended() {
		r.flights.arm(w, ch.After)
		answer.Call, err = r.await(ctx, w, sub.rider.cut(), s.Wait, *ch.After)
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
	answer.Call.Deliveries += r.flights.unsaved(sub.f)
	return answer, nil
}

// submission is a request on its way to a decision.
type submission struct {
	idem.Submission
	r     *Runner
	tool  *idem.Tool // nil where the configuration does not know it
	f     *flight
	rider *rider
	check func() error
	// counted is the number of deliveries that the decision has counted so far.
	counted int64
}

// decide commits what the request leads to and starts what it is to start.
func (s *submission) decide() (idem.Change, error) {
	r := s.r
	s.check = sync.OnceValue(s.validate)
	pending, err := r.pending()
	if err != nil {
		return idem.Change{}, err
	}
	local := s.tool != nil && s.tool.Effects == idem.EffectsLocal
	g := r.room.reserve(pending, local && s.Wait > 0)
	release := true
	defer func() { // also when a check panics
		if release {
			r.room.release(g)
		}
	}()

	id, createdAt := r.ids.next(s.Request.Key)
	submit := s.observe(idem.Submit(s.Request, idem.Admission{
		ID: id, CreatedAt: createdAt, Now: r.wall(), Check: s.check, Refuse: s.refusal(g),
	}))
	var ch idem.Change
	switch {
	case g.inline && s.check() == nil:
		ch, err = s.fused(submit, id)
	case g.worker != 0:
		ch, err = s.commit(idem.Chain(submit, idem.Claim(r.claimTerms(s.Request.Tool, g.worker))))
	default:
		ch, err = s.commit(submit)
	}
	if err != nil || !ch.Write {
		return ch, err
	}
	if ch.After.Status == idem.StatusRunning {
		release = false // the attempt does it
		r.flights.alight(s.f)
		a := &attempt{r: r, tool: s.tool, call: ch.After, worker: g.worker, f: r.flights.enter(s.f.key), rider: s.rider}
		r.room.begin(ch.After.ID)
		s.created(ch)
		go a.run()
		return ch, nil
	}
	s.created(ch)
	r.committed(s.f, ch, 0)
	return ch, nil
}

// created lets the call pass the points that come after its commit.
func (s *submission) created(ch idem.Change) {
	if ch.After.Status.Ended() {
		s.r.flights.alight(s.f)
		s.r.pass(s.rider, idem.PointAfterCommit, ch.After.ID)
		return
	}
	s.r.pass(s.rider, idem.PointAfterCreate, ch.After.ID)
}

func (s *submission) commit(t idem.Transition) (idem.Change, error) {
	// A client that goes away does not take back what it asked for.
	return s.r.store.Update(context.Background(), s.f.key, t)
}

// validate says whether the request may make a new call.
func (s *submission) validate() error {
	if s.tool == nil {
		return idem.Errorf(idem.CodeBadRequest, "unknown tool")
	}
	if s.tool.Check == nil {
		return nil
	}
	return s.tool.Check(s.Request.Args)
}

// refusal is the answer to a request that would need a write that there is no
// room for.
func (s *submission) refusal(g grant) error {
	if why := s.r.Ready(); why != nil {
		return idem.Errorf(idem.CodeUnavailable, "not accepting new calls: %v", why)
	}
	if g.none() {
		return idem.Errorf(idem.CodeUnavailable, "the queue is full")
	}
	return nil
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
		if s.rider != nil && ch.Write {
			s.r.flights.board(s.f, s.rider)
		}
		return ch, err
	}
}

// maxFusedTries bounds how often a fused commit starts again because the key
// turned out to be another call or another attempt than was computed for.
const maxFusedTries = 3

// inlineWorker stands for the goroutine of a request among the workers, which
// are numbered from 1.
const inlineWorker = 0

// fused brings a call of a local tool in and to its end in one commit. The tool
// runs once, here, for the call and attempt that the key is expected to have;
// where the key has others, it runs again for those.
//
// It is safe only because effect and state are in one batch and nothing outside
// has happened: a crash before the commit leaves no trace, and nobody was told.
func (s *submission) fused(submit idem.Transition, id idem.CallID) (idem.Change, error) {
	r := s.r
	claim := idem.Claim(r.claimTerms(s.Request.Tool, inlineWorker))
	attempt, args := 1, s.Request.Args
	for range maxFusedTries {
		out := r.invoke(context.Background(), s.tool, idem.Invocation{
			CallID: id, EffectID: idem.EffectID(id), Attempt: attempt, Args: args,
		})
		// A store may run the transition more than once; faults fire once.
		pass := sync.OnceValue(func() outcome { return s.passAll(out, id) })
		terms := r.terms()
		var other *idem.Call
		ch, err := s.commit(func(cur *idem.Call) (idem.Change, error) {
			other = nil
			ch, err := idem.Chain(submit, claim)(cur)
			if err != nil || !ch.Write {
				return ch, err
			}
			c := ch.After
			if c.Status == idem.StatusRunning && (c.ID != id || c.Attempt != attempt) {
				other = c
				return idem.Change{Before: cur, After: cur}, nil
			}
			settle := pass().settle(s.tool, idem.Settlement{Terms: terms, Lease: idem.LeaseOf(c)})
			return idem.Chain(func(*idem.Call) (idem.Change, error) { return ch, nil }, settle)(cur)
		})
		if other == nil {
			return ch, err
		}
		id, attempt, args = other.ID, other.Attempt, other.Args
	}
	// Others keep moving the call: let it queue.
	return s.commit(submit)
}

// passAll lets a fused call pass the points before its one commit.
func (s *submission) passAll(out outcome, id idem.CallID) outcome {
	for _, p := range fusedPoints {
		if s.r.pass(s.rider, p, id) {
			out = onPurpose
		}
	}
	return out
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

// pending is how many calls wait for a worker.
func (r *Runner) pending() (int64, error) {
	totals, err := r.store.Totals(context.Background())
	return totals.Of(idem.StatusPending), err
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
	c, err := r.store.CallByKey(ctx, seen.Key)
	if err != nil {
		return idem.Call{}, err
	}
	return c, nil
}
