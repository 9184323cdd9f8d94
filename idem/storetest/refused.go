package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/idemd/idemd/idem"
)

// What a store refuses by itself, whatever transitions say.
var refusedCases = []testCase{
	{name: "a second call for a key", run: func(w *world) { // R2
		k := key("k")
		lawless := map[string]func(second idem.Call) idem.Transition{
			"created without a look at the first": createAnyway,
			"put in the place of the first": func(second idem.Call) idem.Transition {
				return func(cur *idem.Call) (idem.Change, error) {
					return idem.Change{Verdict: idem.VerdictCreated, Before: cur, After: &second, Write: true}, nil
				}
			},
		}
		first := w.create(k)
		states := []struct {
			name  string
			reach func()
		}{
			{"pending", func() {}},
			{"running", func() { first = w.run(k, anHour) }},
			{"succeeded", func() { first = w.succeed(first, `1`) }},
			{"tombstone", func() { first = w.expect(idem.VerdictExpired, k, idem.Expire(first.ExpiresAt)) }},
		}
		for _, state := range states {
			state.reach()
			before := w.image()
			for how, t := range lawless {
				second := first
				second.ID = w.idAt(k, w.tick())
				if ch, err := w.s.Update(w.ctx, k, t(second)); !errors.Is(err, idem.ErrSecondCall) {
					w.fatalf("first %s, second %s: %s", state.name, how, showChange(ch, err))
				}
			}
			// Nor is the first created once more.
			if ch, err := w.s.Update(w.ctx, k, createAnyway(first)); !errors.Is(err, idem.ErrSecondCall) {
				w.fatalf("%s, and created again: %s", state.name, showChange(ch, err))
			}
			w.untouched("a second call, the first "+state.name, before)
		}
	}},

	{name: "a second effect for a call", run: func(w *world) { // R8
		k := key("k")
		c := w.succeed(w.running(k), `1`)
		refuse := func(state string) {
			w.t.Helper()
			before := w.image()
			for _, e := range []*idem.Effect{
				effectOf(c, 100),
				effectOf(c, 200),
				{ID: "eff_of_another_name", CallID: c.ID, Key: k, Tool: c.Tool, CreatedAt: c.CreatedAt},
			} {
				if ch, err := w.s.Update(w.ctx, k, addEffect(e)); !errors.Is(err, idem.ErrSecondEffect) {
					w.fatalf("%s: %s", state, showChange(ch, err))
				}
			}
			w.untouched("a second effect, "+state, before)
		}
		refuse("succeeded")
		w.expect(idem.VerdictExpired, k, idem.Expire(c.ExpiresAt))
		refuse("tombstone")
		if w.o.Reopen != nil {
			w.reopen()
			refuse("after a new start")
		}
	}},

	{name: "a second effect, also when its call is open again", run: func(w *world) { // R8
		k := key("k")
		c := w.succeed(w.running(k), `1`)
		// A rule that must not exist opens the call, and a worker does it again.
		c = w.lawless(c, func(c *idem.Call) {
			c.Status, c.Owner, c.Result = idem.StatusRunning, "boot/w2", nil
		})
		before := w.image()
		if ch, err := w.s.Update(w.ctx, k, idem.Succeed(w.under(c), idem.Result{})); !errors.Is(err, idem.ErrSecondEffect) {
			w.fatalf("%s", showChange(ch, err))
		}
		w.untouched("a second effect", before)
	}, lawless: true},

	{name: "many creators that look at nothing: one call", run: func(w *world) { // R2
		const n = 32
		k := key("k")
		calls := make([]idem.Call, n)
		for i := range calls {
			calls[i] = idem.Call{
				ID: w.idAt(k, w.tick()), Key: k, Fingerprint: fingerprint("same"), Tool: "refund", Args: fmt.Append(nil, i),
				CreatedAt: w.now, UpdatedAt: w.now, Revision: 1, Status: idem.StatusPending, Deliveries: 1,
			}
		}
		var won atomic.Int64
		won.Store(-1)
		race(n, func(i int) {
			_, err := w.s.Update(w.ctx, k, createAnyway(calls[i]))
			switch {
			case err == nil && !won.CompareAndSwap(-1, int64(i)):
				w.t.Errorf("creators %d and %d both won", won.Load(), i)
			case err != nil && !errors.Is(err, idem.ErrSecondCall):
				w.t.Errorf("creator %d: %v", i, err)
			}
		})
		if won.Load() < 0 {
			w.fatalf("nobody won")
		}
		w.stored(calls[won.Load()])
	}},

	{name: "many effects at one moment: one row", run: func(w *world) { // R8
		const n = 32
		c := w.running(key("k"))
		var won atomic.Int64
		race(n, func(i int) {
			switch _, err := w.s.Update(w.ctx, c.Key, addEffect(effectOf(c, int64(i)))); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, idem.ErrSecondEffect):
				w.t.Errorf("writer %d: %v", i, err)
			}
		})
		if e := w.effects(c.Key.Namespace); won.Load() != 1 || len(e) != 1 || w.totals().Effects != 1 {
			w.fatalf("%d writers won, effects %v, totals %+v", won.Load(), e, w.totals())
		}
	}, lawless: true},

	{name: "reads of what is not there", run: func(w *world) {
		w.create(key("k"))
		nobody := w.idAt(key("nobody"), w.now)
		for _, id := range []idem.CallID{nobody, {}, {0: 0xff, 15: 0xff}} {
			if c, err := w.s.CallByID(w.ctx, idem.DefaultNamespace, id); !errors.Is(err, idem.ErrNotFound) {
				w.fatalf("call %v is %s, %v", id, showCall(&c), err)
			}
			if e, err := w.s.Events(w.ctx, idem.DefaultNamespace, id, 0, 10); !errors.Is(err, idem.ErrNotFound) {
				w.fatalf("events of %v are %v, %v", id, e, err)
			}
		}
		if c, err := w.s.CallByKey(w.ctx, key("nobody")); !errors.Is(err, idem.ErrNotFound) {
			w.fatalf("%s, %v", showCall(&c), err)
		}
	}},

	{name: "a context that is over: every method says so or does its work", run: func(w *world) {
		c := w.running(key("k"))
		ended, cancel := context.WithCancel(w.ctx)
		cancel()
		ns, id := c.Key.Namespace, c.ID
		for name, call := range map[string]func() error{
			"Renew":     func() error { return w.s.Renew(ended, c.Key, idem.LeaseOf(&c), anHour) },
			"Due":       func() error { _, err := w.s.Due(ended, 0); return err },
			"Held":      func() error { _, err := w.s.Held(ended, 0); return err },
			"CallByKey": func() error { _, err := w.s.CallByKey(ended, c.Key); return err },
			"CallByID":  func() error { _, err := w.s.CallByID(ended, ns, id); return err },
			"List":      func() error { _, _, err := w.s.List(ended, ns, idem.Query{Limit: 1}); return err },
			"Events":    func() error { _, err := w.s.Events(ended, ns, id, 0, 1); return err },
			"Effects":   func() error { _, err := w.s.Effects(ended, ns, idem.CallID{}, 1); return err },
			"Totals":    func() error { _, err := w.s.Totals(ended); return err },
			"Newest":    func() error { _, err := w.s.Newest(ended); return err },
		} {
			if err := call(); err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("%s: %v", name, err)
			}
		}
		w.stored(c)
	}},

	{name: "a store that works is ready", run: func(w *world) {
		if err := w.s.Ready(); err != nil {
			w.fatalf("%v", err)
		}
		w.create(key("k"))
		if err := w.s.Ready(); err != nil {
			w.fatalf("%v", err)
		}
	}},

	{name: "an empty store", run: func(w *world) {
		for _, line := range w.image() {
			if !slices.Contains([]string{"newest never", fmt.Sprintf("totals %+v", idem.Totals{})}, line) {
				w.fatalf("%s", line)
			}
		}
	}},
}

// createAnyway creates a call as if there were none.
func createAnyway(c idem.Call) idem.Transition {
	return func(*idem.Call) (idem.Change, error) {
		return idem.Change{
			Verdict: idem.VerdictCreated, After: &c, Write: true,
			Events: []idem.Event{{At: c.CreatedAt, Name: idem.EventCreated}},
		}, nil
	}
}

// addEffect writes an effect whatever the record says.
func addEffect(e *idem.Effect) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		return idem.Change{
			Before: cur, After: cur, Write: true, Effect: e,
			Events: []idem.Event{{At: e.CreatedAt, Name: idem.EventSucceeded}},
		}, nil
	}
}

func effectOf(c idem.Call, amount int64) *idem.Effect {
	return &idem.Effect{ID: idem.EffectID(c.ID), CallID: c.ID, Key: c.Key, Tool: c.Tool, Amount: &amount, CreatedAt: c.CreatedAt}
}
