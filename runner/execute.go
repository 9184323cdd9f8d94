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
}

// fromQueue works on a due call: it claims it and, where the law lets it run,
// runs it.
func (r *Runner) fromQueue(d idem.Due, worker int) {
	a := &attempt{r: r, tool: r.tools[d.Tool], worker: worker, f: r.flights.enter(d.Key)}
	a.rider = r.flights.alight(a.f)
	terms := r.claimTerms(d.Tool, worker)
	terms.From, terms.Recovered = d.Lease(), d.Recovered
	var running bool
	var err error
	if a.tool != nil && a.tool.Effects == idem.EffectsLocal {
		err = a.claimAndSettle(d, terms)
	} else {
		running, err = a.claim(d, terms)
	}
	if err != nil {
		r.log.Error("a due call could not be claimed", "call_id", d.ID.String(), "tool", d.Tool, "err", err)
	}
	if running {
		a.run()
		return
	}
	r.room.end(d.ID, worker)
	r.flights.leave(a.f)
}

// claim claims a due call and reports whether it is running now.
func (a *attempt) claim(d idem.Due, terms idem.ClaimTerms) (running bool, err error) {
	ch, taken, err := a.r.update(a.f, func(deliveries int64) idem.Transition {
		terms.Deliveries = deliveries
		return sameCall(d.ID, idem.Claim(terms))
	})
	if err != nil {
		return false, err
	}
	a.r.committed(a.f, ch, taken)
	a.call = ch.After
	return ch.Verdict == idem.VerdictClaimed, nil
}

// claimAndSettle runs a local tool and claims and settles its call in one
// commit. It is as safe as the fused commit of a new call, and for the same
// reason.
func (a *attempt) claimAndSettle(d idem.Due, terms idem.ClaimTerms) error {
	r := a.r
	call, err := r.load(d.Key)
	if err != nil || call.ID != d.ID {
		return err
	}
	lease := idem.Lease{CallID: d.ID, Owner: terms.Owner, Attempt: call.Attempt + 1}
	out := r.invoke(context.Background(), a.tool, idem.Invocation{
		CallID: d.ID, EffectID: idem.EffectID(d.ID), Attempt: lease.Attempt, Args: call.Args,
	})
	for _, p := range fusedPoints[1:] {
		if r.pass(a.rider, p, d.ID) || a.rider.panicsEarly() {
			out = onPurpose
		}
	}
	ch, taken, err := r.update(a.f, func(deliveries int64) idem.Transition {
		terms.Deliveries = deliveries
		settle := out.settle(a.tool, idem.Settlement{Terms: terms.Terms, Lease: lease})
		return sameCall(d.ID, idem.Chain(idem.Claim(terms), settle))
	})
	if err != nil {
		return err
	}
	r.pass(a.rider, idem.PointAfterCommit, d.ID)
	r.committed(a.f, ch, taken)
	return nil
}

// sameCall applies a transition only to the call that it was meant for.
func sameCall(id idem.CallID, t idem.Transition) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		if cur == nil || cur.ID != id {
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
func (a *attempt) run() {
	r, call := a.r, a.call
	if r.pass(a.rider, idem.PointAfterClaim, call.ID) || a.rider.panicsEarly() {
		a.settle(onPurpose)
		a.end()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout())
	done := make(chan outcome, 1)
	go func() {
		done <- r.invoke(ctx, a.tool, idem.Invocation{
			CallID: call.ID, EffectID: idem.EffectID(call.ID), Attempt: call.Attempt, Args: call.Args,
		})
	}()
	out := a.watch(ctx, cancel, done)
	if !out.deaf {
		cancel()
		a.settle(out)
		a.end()
		return
	}
	a.abandon(out, cancel, done)
}

func (a *attempt) timeout() time.Duration {
	if a.tool.Timeout > 0 {
		return a.tool.Timeout
	}
	return a.r.settings.ToolTimeout
}

func (a *attempt) end() {
	a.r.room.end(a.call.ID, a.worker)
	a.r.flights.leave(a.f)
}

// haltGrace is how long a tool may take to return when what still runs at a
// stop is given back.
const haltGrace = time.Second

// watch keeps the lease while the tool runs, and gives up when its time and the
// grace after it are over, or when the runner halts.
func (a *attempt) watch(ctx context.Context, cancel context.CancelFunc, done <-chan outcome) outcome {
	r := a.r
	renew := time.NewTicker(r.settings.Lease / 3)
	defer renew.Stop()
	ended, halted := ctx.Done(), r.halted
	var giveUp <-chan time.Time
	for {
		select {
		case out := <-done:
			out.timedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
			out.halted = halted == nil
			return out
		case <-renew.C:
			err := r.store.Renew(context.Background(), a.f.key, idem.LeaseOf(a.call), r.settings.Lease)
			if err != nil {
				r.log.Warn("lease is not held any more; stopping the attempt", "call_id", a.call.ID.String(),
					"tool", a.call.Tool, "attempt", a.call.Attempt, "err", err)
				cancel() // what it still does is settled as stale
			}
		case <-ended:
			ended = nil
			if giveUp == nil {
				giveUp = time.After(r.settings.Grace)
			}
		case <-halted:
			halted = nil
			cancel()
			giveUp = time.After(min(haltGrace, r.settings.Grace))
		case <-giveUp:
			return outcome{err: errDeaf, deaf: true, timedOut: true, halted: halted == nil}
		}
	}
}

// abandon settles a call whose tool does not return (R14). The tool's answer,
// should it come, is dropped by the law and noted in the audit trail.
func (a *attempt) abandon(out outcome, cancel context.CancelFunc, done <-chan outcome) {
	r := a.r
	r.log.Warn("tool does not stop; its attempt is abandoned", "call_id", a.call.ID.String(),
		"tool", a.call.Tool, "attempt", a.call.Attempt)
	r.counts.count(a.call.Tool, func(c *idem.Counts) { c.Abandoned++ })
	a.settle(out)
	a.rider = nil // it had its way
	kept := r.room.abandon(a.call.ID, a.worker)
	go func() {
		defer cancel()
		defer r.flights.leave(a.f)
		late := <-done
		r.room.returned(a.worker, kept)
		if r.room.enter() {
			defer r.room.leave()
			a.settle(late)
		}
	}()
}

// settle writes what came of the attempt, under its lease.
func (a *attempt) settle(out outcome) {
	r := a.r
	for _, p := range [...]idem.Point{idem.PointAfterDispatch, idem.PointBeforeCommit} {
		if r.pass(a.rider, p, a.call.ID) {
			out = onPurpose
		}
	}
	if out.err != nil {
		r.log.Debug("attempt failed", "call_id", a.call.ID.String(), "tool", a.call.Tool, "attempt", a.call.Attempt, "err", out.err)
	}
	terms := r.terms()
	ch, taken, err := r.update(a.f, func(deliveries int64) idem.Transition {
		terms.Deliveries = deliveries
		return out.settle(a.tool, idem.Settlement{Terms: terms, Lease: idem.LeaseOf(a.call)})
	})
	if err != nil {
		r.log.Error("an attempt could not be settled", "call_id", a.call.ID.String(), "tool", a.call.Tool,
			"attempt", a.call.Attempt, "err", err)
		return
	}
	r.pass(a.rider, idem.PointAfterCommit, a.call.ID)
	if ch.Verdict == idem.VerdictStale {
		r.counts.count(a.call.Tool, func(c *idem.Counts) { c.StaleResults++ })
		r.log.Warn("a late result was dropped", "call_id", a.call.ID.String(), "tool", a.call.Tool, "attempt", a.call.Attempt)
	}
	r.committed(a.f, ch, taken)
}
