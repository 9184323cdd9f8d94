package runner

import (
	"context"
	"errors"
	"time"

	"github.com/idemd/idemd/idem"
)

// attempt is one execution of a call under one lease.
type attempt struct {
	r      *Runner
	tool   *idem.Tool
	call   *idem.Call // as it was claimed
	worker int
	f      *flight
	rider  *rider
	work   *work // where the tool runs already
}

func (a *attempt) hand() hand { return hand{a.call.ID, a.call.Attempt} }

// fromQueue works on a due call: it claims it and, where the law lets it run,
// runs it.
func (r *Runner) fromQueue(d idem.Due, worker int) {
	a := &attempt{r: r, tool: r.tools[d.Tool], worker: worker, f: r.flights.enter(d.Key)}
	defer r.flights.leave(a.f)
	a.rider = r.flights.alight(a.f)
	terms := r.claimTerms(d.Tool, worker)
	terms.From, terms.Recovered = d.Lease(), d.Recovered
	claim := a.claim
	if a.tool != nil && a.tool.Effects == idem.EffectsLocal {
		claim = a.claimAndSettle
	}
	ch, err := claim(d, terms)
	if err == nil && ch.Verdict == idem.VerdictClaimed && ch.After.Status == idem.StatusRunning {
		a.call = ch.After
		a.run()
		return
	}
	a.work.drop(r.room)
	switch {
	case err == nil:
		r.room.resume(d.ID)
	case !errors.Is(err, idem.ErrLeaseLives):
		r.room.leaveAlone(d.ID, time.Now()) // before it can be looked at again
	}
	r.room.end(handOf(d), d.Tool, worker)
	if errors.Is(err, idem.ErrLeaseLives) {
		return // its holder is alive after all
	}
	if err != nil {
		r.log.Error("a due call could not be claimed; it is tried again later", "call_id", d.ID.String(), "tool", d.Tool, "err", err)
		return
	}
	r.committed(a.f, ch)
}

// claim claims a due call.
func (a *attempt) claim(d idem.Due, terms idem.ClaimTerms) (idem.Change, error) {
	return a.r.update(a.f, func(deliveries int64) idem.Transition {
		terms.Deliveries = deliveries
		return asFound(d, idem.Claim(terms))
	})
}

// claimAndSettle runs a local tool and claims and settles its call in one
// commit. It is as safe as that of a new call, and for the same reason. A tool
// that takes its time is claimed first; the call is running then.
func (a *attempt) claimAndSettle(d idem.Due, terms idem.ClaimTerms) (idem.Change, error) {
	r := a.r
	call, err := r.load(d.Key)
	if err != nil {
		return idem.Change{}, err
	}
	lease := idem.Lease{CallID: d.ID, Owner: terms.Owner, Attempt: d.Attempt + 1}
	w, out, quick := r.try(a.tool, invocation(d.ID, lease.Attempt, call.Args), patience)
	if !quick {
		a.work = w
		return a.claim(d, terms)
	}
	terms.Now = r.wall() // the window begins at the end (R16)
	for _, p := range fusedPoints[1:] {
		if r.pass(a.rider, p, d.ID) || a.rider.panicsEarly() {
			out = asPanic
		}
	}
	ch, err := r.update(a.f, func(deliveries int64) idem.Transition {
		terms.Deliveries = deliveries
		settle := out.transition(a.tool, r.settlement(terms.Terms, a.tool, lease))
		return asFound(d, idem.Chain(idem.Claim(terms), settle))
	})
	if err == nil {
		r.pass(a.rider, idem.PointAfterCommit, d.ID)
	}
	return ch, err
}

// asFound applies a transition only to the call that was found due, at the
// attempt that it was found at.
func asFound(d idem.Due, t idem.Transition) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		if cur == nil || cur.ID != d.ID || cur.Attempt != d.Attempt {
			return idem.Change{Verdict: idem.VerdictStale, Before: cur, After: cur}, nil
		}
		return t(cur)
	}
}

// load reads a call with its args. It writes nothing.
func (r *Runner) load(key idem.Key) (idem.Call, error) {
	ch, err := r.store.Update(context.Background(), key, func(cur *idem.Call) (idem.Change, error) {
		if cur == nil {
			return idem.Change{}, idem.ErrNotFound
		}
		return idem.Change{Before: cur, After: cur}, nil
	})
	if err != nil {
		return idem.Call{}, err
	}
	return *ch.After, nil
}

// run runs the tool of a call that is claimed, and settles it. It returns when
// the call has been settled or given back; the tool itself may still run.
//
// The worker is free before anybody is told of the end, so that who asks for the
// next thing at once finds it.
func (a *attempt) run() {
	r, call := a.r, a.call
	if r.pass(a.rider, idem.PointAfterClaim, call.ID) || a.rider.panicsEarly() {
		a.work.drop(r.room)
		ch := a.settle(asPanic)
		r.room.end(a.hand(), call.Tool, a.worker)
		r.committed(a.f, ch)
		return
	}
	w := a.work
	if w == nil {
		inv := invocation(call.ID, call.Attempt, call.Args)
		inv.Trace = a.rider.traceOf()
		w = r.start(context.Background(), a.tool, inv)
	}
	out := a.watch(w)
	if out.deaf {
		a.abandon(out, w)
		return
	}
	w.cancel()
	ch := a.settle(out)
	r.room.end(a.hand(), call.Tool, a.worker)
	r.committed(a.f, ch)
}

// watch keeps the lease while the tool runs.
func (a *attempt) watch(w *work) outcome {
	renew := time.NewTicker(a.r.settings.Lease / 3)
	defer renew.Stop()
	return a.r.watch(w, renew.C, a.leaseLost)
}

// leaseLost renews the lease and reports whether somebody else has the call now.
// A renewal that fails otherwise takes nothing away: a lease whose time is over
// is lost only when the call is taken (R6). It must not hang, since a result may
// be waiting to be settled.
func (a *attempt) leaseLost() bool {
	r := a.r
	ctx, cancel := context.WithTimeout(context.Background(), r.settings.Lease/3)
	defer cancel()
	err := r.store.Renew(ctx, a.f.key, idem.LeaseOf(a.call), r.settings.Lease)
	if err == nil {
		return false
	}
	r.log.Warn("lease could not be renewed", "call_id", a.call.ID.String(), "tool", a.call.Tool, "attempt", a.call.Attempt, "err", err)
	return errors.Is(err, idem.ErrLeaseLost)
}

// abandon settles a call whose tool does not return (R14). The tool's answer,
// should it come, is dropped by the law and noted in the audit trail.
func (a *attempt) abandon(out outcome, w *work) {
	r := a.r
	r.log.Warn("tool does not stop; its attempt is abandoned", "call_id", a.call.ID.String(),
		"tool", a.call.Tool, "attempt", a.call.Attempt)
	r.counts.count(a.call.Tool, func(c *idem.Counts) { c.Abandoned++ })
	ch := a.settle(out)
	worker := r.room.abandon(a.hand(), a.worker)
	r.committed(a.f, ch)
	late := &attempt{r: r, tool: a.tool, call: a.call, f: r.flights.enter(a.f.key)} // the fault had its way
	go func() {
		defer w.cancel()
		defer r.flights.leave(late.f)
		out := <-w.done
		if r.room.enter() {
			r.committed(late.f, late.settle(out))
			r.room.leave()
		}
		r.asks.returned(a.call.ID, a.call.Attempt) // before the tool counts as gone
		r.room.returned(a.call.ID, a.call.Tool, worker)
	}()
}

// How often a settlement that cannot be written is tried, and how long after one
// another: over six seconds in all. Until then the worker is kept,
// and the call is not due.
const (
	settleTries      = 8
	firstSettlePause = 50 * time.Millisecond
)

// write writes a settlement. Where the store cannot, it is tried again, with the
// lease renewed: what the tool answered is known only here, and losing it would
// bring a second dispatch, or a decision by a person.
func (a *attempt) write(settlement func(deliveries int64) idem.Transition) (idem.Change, error) {
	pause := firstSettlePause
	for try := 1; ; try++ {
		ch, err := a.r.update(a.f, settlement)
		if err == nil || try == settleTries {
			return ch, err
		}
		a.r.log.Warn("a settlement could not be written; it is tried again", "call_id", a.call.ID.String(),
			"tool", a.call.Tool, "attempt", a.call.Attempt, "err", err)
		select {
		case <-time.After(pause):
		case <-a.r.halted:
			try = settleTries - 1 // one last time
		}
		a.leaseLost() // renews it; if it is lost, the law drops the settlement
		pause *= 2
	}
}

// settle writes what came of the attempt, under its lease.
func (a *attempt) settle(out outcome) idem.Change {
	r := a.r
	for _, p := range [...]idem.Point{idem.PointAfterDispatch, idem.PointBeforeCommit} {
		if r.pass(a.rider, p, a.call.ID) {
			out = asPanic
		}
	}
	if out.err != nil {
		r.log.Log(context.Background(), out.level(), "attempt failed", "call_id", a.call.ID.String(), "tool", a.call.Tool, "attempt", a.call.Attempt, "err", out.reason())
	}
	terms := r.terms()
	ch, err := a.write(func(deliveries int64) idem.Transition {
		terms.Deliveries = deliveries
		return out.transition(a.tool, r.settlement(terms, a.tool, idem.LeaseOf(a.call)))
	})
	if err != nil {
		// It is due once its lease is over, and the tool would be dispatched again:
		// not at once, since that would go on for ever.
		r.room.leaveAlone(a.call.ID, time.Now())
		r.log.Error("an attempt could not be settled; what came of it is lost", "call_id", a.call.ID.String(), "tool", a.call.Tool,
			"attempt", a.call.Attempt, "err", err)
		return idem.Change{}
	}
	r.room.resume(a.call.ID)
	r.pass(a.rider, idem.PointAfterCommit, a.call.ID)
	if ch.Verdict == idem.VerdictStale {
		r.counts.count(a.call.Tool, func(c *idem.Counts) { c.StaleResults++ })
		r.log.Warn("a late result was dropped", "call_id", a.call.ID.String(), "tool", a.call.Tool, "attempt", a.call.Attempt)
		if ch.After != nil && ch.After.Status.Ended() {
			r.flights.publish(*ch.After) // another process ended it; who waits here may know
		}
	}
	return ch
}
