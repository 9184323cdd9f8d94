package runner

import (
	"context"
	"time"

	"github.com/idemd/idemd/idem"
)

// Call returns a call; with a wait, once it has an end, or as it is when the
// time is up. Errors: ErrNotFound, the context's.
func (r *Runner) Call(ctx context.Context, ns idem.Namespace, id idem.CallID, wait time.Duration) (idem.Call, error) {
	c, err := r.store.CallByID(ctx, ns, id)
	if err != nil || c.Status.Ended() || wait <= 0 {
		return r.live(c), err
	}
	return r.CallByKey(ctx, c.Key, wait)
}

// CallByKey is Call by the key.
func (r *Runner) CallByKey(ctx context.Context, key idem.Key, wait time.Duration) (idem.Call, error) {
	if wait <= 0 {
		c, err := r.store.CallByKey(ctx, key)
		return r.live(c), err
	}
	f := r.flights.enter(key)
	defer r.flights.leave(f)
	w := r.flights.wait(f, false)
	defer r.flights.takeDown(f, w)
	c, err := r.store.CallByKey(ctx, key)
	if err != nil || c.Status.Ended() {
		return c, err
	}
	r.flights.arm(w, &c)
	c, err = r.await(ctx, w, nil, wait, c)
	return r.live(c), err
}

// live adds what only this process knows of a call.
func (r *Runner) live(c idem.Call) idem.Call {
	if !c.ID.IsZero() {
		c.Deliveries += r.flights.deliveries(c.Key)
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

// Resolve decides a held call. Errors: ErrNotFound, ErrNotHeld, ErrBadRequest.
func (r *Runner) Resolve(ctx context.Context, ns idem.Namespace, id idem.CallID, res idem.Resolution) (idem.Call, error) {
	c, err := r.store.CallByID(ctx, ns, id)
	if err != nil {
		return idem.Call{}, err
	}
	return r.resolve(c.Key, id, res)
}

func (r *Runner) resolve(key idem.Key, id idem.CallID, res idem.Resolution) (idem.Call, error) {
	f := r.flights.enter(key)
	defer r.flights.leave(f)
	question := r.asks.of(id)
	res.Terms = r.terms()
	ch, taken, err := r.update(f, func(deliveries int64) idem.Transition {
		res.Deliveries = deliveries
		return func(cur *idem.Call) (idem.Change, error) {
			if cur == nil || cur.ID != id {
				return idem.Change{}, idem.ErrNotFound
			}
			return idem.Resolve(res)(cur)
		}
	})
	if err != nil {
		return idem.Call{}, err
	}
	r.asks.forget(question)
	r.committed(f, ch, taken)
	c := *ch.After
	c.Args = nil
	return c, nil
}
