package runner

import (
	"context"
	"time"

	"github.com/idemd/idemd/idem"
)

// Call returns a call; with a wait, once it has an end, or as it is when the
// time is up. Errors: ErrNotFound, the context's.
func (r *Runner) Call(ctx context.Context, ns idem.Namespace, id idem.CallID, wait time.Duration) (idem.Call, error) {
	read := func() (idem.Call, error) { return r.store.CallByID(ctx, ns, id) }
	c, err := read()
	if err != nil || c.Status.Ended() || wait <= 0 {
		return r.live(c), err
	}
	return r.nextEnd(ctx, c.Key, read, wait)
}

// CallByKey is Call by the key.
func (r *Runner) CallByKey(ctx context.Context, key idem.Key, wait time.Duration) (idem.Call, error) {
	read := func() (idem.Call, error) { return r.store.CallByKey(ctx, key) }
	if wait <= 0 {
		c, err := read()
		return r.live(c), err
	}
	return r.nextEnd(ctx, key, read, wait)
}

// nextEnd reads a call and, unless it has ended, waits for its next end.
func (r *Runner) nextEnd(ctx context.Context, key idem.Key, read func() (idem.Call, error), wait time.Duration) (idem.Call, error) {
	f := r.flights.enter(key)
	defer r.flights.leave(f)
	w := r.flights.wait(f, false)
	defer r.flights.takeDown(f, w)
	c, err := read()
	if err == nil && !c.Status.Ended() {
		r.flights.arm(w, &c)
		c, err = r.await(ctx, w, nil, wait, c)
	}
	return r.live(c), err
}

// live adds what only this process knows of a call.
func (r *Runner) live(c idem.Call) idem.Call {
	if !c.ID.IsZero() {
		c.Deliveries += r.flights.unsaved(&c)
	}
	return c
}

// List returns a page of calls, newest first.
func (r *Runner) List(ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
	calls, next, err := r.store.List(ctx, ns, q)
	for i := range calls {
		calls[i] = r.live(calls[i])
	}
	return calls, next, err
}

// Events returns a page of a call's audit trail.
func (r *Runner) Events(ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
	return r.store.Events(ctx, ns, id, from, limit)
}

// Effects returns a page of the ledger.
func (r *Runner) Effects(ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
	return r.store.Effects(ctx, ns, after, limit)
}

// Resolve decides a held call. Errors: ErrNotFound, ErrNotHeld, ErrBadRequest;
// ErrUnavailable once the runner has stopped.
func (r *Runner) Resolve(ctx context.Context, ns idem.Namespace, id idem.CallID, res idem.Resolution) (idem.Call, error) {
	if !r.room.enter() {
		return idem.Call{}, idem.ErrUnavailable
	}
	defer r.room.leave()
	c, err := r.store.CallByID(ctx, ns, id)
	if err != nil {
		return idem.Call{}, err
	}
	return r.resolve(c.Key, id, 0, res)
}

// resolve applies a resolution to a call, and only to one of its revisions where
// that is not 0.
func (r *Runner) resolve(key idem.Key, id idem.CallID, revision int, res idem.Resolution) (idem.Call, error) {
	f := r.flights.enter(key)
	defer r.flights.leave(f)
	question := r.asks.of(id)
	res.Terms = r.terms()
	ch, err := r.update(f, func(deliveries int64) idem.Transition {
		res.Deliveries = deliveries
		return func(cur *idem.Call) (idem.Change, error) {
			switch {
			case cur == nil || cur.ID != id:
				return idem.Change{Before: cur, After: cur}, idem.ErrNotFound
			case revision != 0 && cur.Revision != revision:
				return idem.Change{Before: cur, After: cur}, idem.ErrNotHeld
			default:
				return idem.Resolve(res)(cur)
			}
		}
	})
	if err != nil {
		return idem.Call{}, err
	}
	r.asks.forget(question)
	r.committed(f, ch)
	c := *ch.After
	c.Args = nil
	return r.live(c), nil
}
