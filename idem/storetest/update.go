package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemd/idemd/idem"
)

// What Update promises: load, apply, commit all or nothing.
var updateCases = []testCase{
	{name: "an unknown key: the transition sees no record", run: func(w *world) {
		ch := w.update(key("k"), func(cur *idem.Call) (idem.Change, error) {
			if cur != nil {
				return idem.Change{}, fmt.Errorf("saw %s", showCall(cur))
			}
			return idem.Change{}, nil
		})
		if ch.After != nil {
			w.fatalf("the change has a record: %s", showCall(ch.After))
		}
		if _, err := w.s.CallByKey(w.ctx, key("k")); !errors.Is(err, idem.ErrNotFound) {
			w.fatalf("looking at a key made a call of it: %v", err)
		}
	}},

	{name: "a new call is stored whole", run: func(w *world) { // R2
		before := w.totals()
		c := w.create(key("k"))
		w.stored(c)
		if got := names(w.events(c)); got != "[created]" {
			w.fatalf("events %s", got)
		}
		after := w.totals()
		if after.Calls != before.Calls+1 || after.Of(idem.StatusPending) != 1 || after.Effects != 0 {
			w.fatalf("totals %+v", after)
		}
	}},

	{name: "one key, two submits: the call in flight is joined", run: func(w *world) { // R2, R3
		first := w.create(key("k"))
		before := w.image()
		second := w.expect(idem.VerdictJoined, key("k"), w.submit(request(key("k"))))
		if second.ID != first.ID {
			w.fatalf("a second call %v for the key of %v", second.ID, first.ID)
		}
		w.untouched("a join", before)
	}},

	{name: "an end is given again, and nothing is written", run: func(w *world) { // R3, R9
		c := w.succeed(w.running(key("k")), `{"receipt":"r1"}`)
		before := w.image()
		ch := w.update(key("k"), w.submit(request(key("k"))))
		if ch.Verdict != idem.VerdictReplayed || string(ch.After.Result) != `{"receipt":"r1"}` || ch.After.ID != c.ID {
			w.fatalf("%v of %s", ch.Verdict, showCall(ch.After))
		}
		w.untouched("a replay", before)
	}},

	{name: "another fingerprint is a conflict in every state", run: func(w *world) { // R3
		k := key("k")
		other := request(k)
		other.Fingerprint = fingerprint("other")
		conflict := func(state string) {
			w.t.Helper()
			before := w.image()
			if _, err := w.s.Update(w.ctx, k, w.submit(other)); !errors.Is(err, idem.ErrConflict) {
				w.fatalf("%s: %v", state, err)
			}
			w.untouched("a conflict, "+state, before)
		}
		w.create(k)
		conflict("pending")
		c := w.run(k, anHour)
		conflict("running")
		w.fail(c, true)
		conflict("failed and retryable")
		w.expect(idem.VerdictRequeued, k, w.submit(request(k)))
		w.hold(w.run(k, anHour))
		conflict("held")
		w.expect(idem.VerdictResolved, k, idem.Resolve(idem.Resolution{
			Terms: w.terms(), Outcome: idem.OutcomeSucceeded, By: "anna", Result: idem.Result{Output: []byte(`1`)},
		}))
		conflict("succeeded")
		w.expect(idem.VerdictExpired, k, idem.Expire(w.now.Add(2*window)))
		conflict("tombstone")
	}},

	{name: "one bit of the fingerprint is a conflict", run: func(w *world) { // R3
		r := request(key("k"))
		for i := range r.Fingerprint {
			r.Fingerprint[i] = byte(i * 0xb7) // every kind of byte, 0x00 too
		}
		w.stored(w.expect(idem.VerdictCreated, r.Key, w.submit(r)))
		for i := range r.Fingerprint {
			other := r
			other.Fingerprint[i] ^= 1
			if _, err := w.s.Update(w.ctx, r.Key, w.submit(other)); !errors.Is(err, idem.ErrConflict) {
				w.fatalf("byte %d differs: %v", i, err)
			}
		}
		w.expect(idem.VerdictJoined, r.Key, w.submit(r))
	}},

	{name: "every transition of a long life is stored as it was decided", run: longLife},

	{name: "created, claimed and settled in one change", run: func(w *world) { // R7
		k := key("k")
		r := request(k)
		r.Tool = toolLocal.Name
		adm := w.admission(k)
		owner := idem.Owner("boot", "w1")
		ch := w.update(k, idem.Chain(
			idem.Submit(r, adm),
			w.claim(toolLocal, owner, anHour, idem.Lease{}),
			idem.Succeed(idem.Settlement{Terms: w.terms(), Lease: idem.Lease{CallID: adm.ID, Owner: owner, Attempt: 1}},
				idem.Result{Output: []byte(`{"ok":true}`), Amount: ptr(int64(100))}),
		))
		if ch.Verdict != idem.VerdictCreated || ch.After.Status != idem.StatusSucceeded {
			w.fatalf("%s", showChange(ch, nil))
		}
		w.stored(*ch.After)
		if got := names(w.events(*ch.After)); got != "[created claimed succeeded]" {
			w.fatalf("events %s", got)
		}
		if e := w.effects(k.Namespace); len(e) != 1 || showEffect(&e[0]) != showEffect(ch.Effect) {
			w.fatalf("effects %v, want %s", e, showEffect(ch.Effect))
		}
		if len(w.due(0)) != 0 {
			w.fatalf("an ended call is due")
		}
	}},

	{name: "requeued, claimed and settled in one change", run: func(w *world) { // R7, R9
		k := key("k")
		c := w.fail(w.running(k), true)
		owner := idem.Owner("boot", "w2")
		ch := w.update(k, idem.Chain(
			w.submit(request(k)),
			w.claim(toolRerun, owner, anHour, idem.Lease{}),
			idem.Succeed(idem.Settlement{Terms: w.terms(), Lease: idem.Lease{CallID: c.ID, Owner: owner, Attempt: 2}}, idem.Result{}),
		))
		if ch.Verdict != idem.VerdictRequeued || ch.After.Status != idem.StatusSucceeded || ch.After.Attempt != 2 {
			w.fatalf("%s", showChange(ch, nil))
		}
		w.stored(*ch.After)
		if got := names(w.events(*ch.After)); got != "[created claimed failed requeued claimed succeeded]" {
			w.fatalf("events %s", got)
		}
	}},

	{name: "an error of the transition is returned as it is, and nothing is written", run: func(w *world) {
		mine, id := errors.New("mine"), w.idAt(key("k"), w.now)
		refuse := func(cur *idem.Call) (idem.Change, error) {
			// Everything is filled in as if it were to be written. It must not be.
			c := idem.Call{ID: id, Key: key("k"), Tool: "refund", Status: idem.StatusPending, CreatedAt: w.now, UpdatedAt: w.now}
			if cur != nil {
				c = *cur
				c.Deliveries += 10
			}
			return idem.Change{
				Verdict: idem.VerdictJoined, Before: cur, After: &c, Write: true,
				Events: []idem.Event{{At: w.now, Name: idem.EventExpired}},
			}, mine
		}
		// The error must be the same value: callers match more than errors.Is can.
		if ch, err := w.s.Update(w.ctx, key("k"), refuse); err != mine { //nolint:errorlint // the very same value
			w.fatalf("unknown key: %s", showChange(ch, err))
		}
		if _, err := w.s.CallByKey(w.ctx, key("k")); !errors.Is(err, idem.ErrNotFound) {
			w.fatalf("a refused creation left something: %v", err)
		}
		w.create(key("k"))
		before := w.image()
		ch, err := w.s.Update(w.ctx, key("k"), refuse)
		if err != mine { //nolint:errorlint // the very same value
			w.fatalf("known key: %v", err)
		}
		if ch.Verdict != idem.VerdictJoined || ch.After == nil || ch.After.Deliveries != 11 {
			w.fatalf("the change did not come with its error: %s", showChange(ch, err))
		}
		w.untouched("a refusal", before)
		w.expect(idem.VerdictJoined, key("k"), w.submit(request(key("k"))))
	}},

	{name: "a panic of the transition writes nothing, goes on, and leaves every key usable", run: func(w *world) {
		w.create(key("known"))
		before := w.image()
		for _, k := range []idem.Key{key("known"), key("unknown")} {
			func() {
				defer func() {
					if r := recover(); r != "boom" {
						w.fatalf("%v: the caller recovered %v", k, r)
					}
				}()
				ch, err := w.s.Update(w.ctx, k, func(*idem.Call) (idem.Change, error) { panic("boom") })
				w.fatalf("%v: Update returned %s", k, showChange(ch, err))
			}()
		}
		w.untouched("a panic", before)
		// More keys than any table of locks has places, so that a lock that
		// stayed behind is met.
		w.run(key("known"), anHour)
		w.create(key("unknown"))
		for i := range 1000 {
			w.update(key(fmt.Sprint("free", i)), func(*idem.Call) (idem.Change, error) { return idem.Change{}, nil })
		}
	}},

	{name: "a change without Write writes nothing", run: func(w *world) {
		id := w.idAt(key("k"), w.now)
		quiet := func(cur *idem.Call) (idem.Change, error) {
			c := idem.Call{ID: id, Key: key("k"), Tool: "refund", Status: idem.StatusSucceeded, CreatedAt: w.now}
			if cur != nil {
				c = *cur
				c.Status = idem.StatusSucceeded
			}
			return idem.Change{
				Before: cur, After: &c,
				Effect: &idem.Effect{ID: idem.EffectID(c.ID), CallID: c.ID, Key: c.Key, Tool: c.Tool, CreatedAt: w.now},
				Events: []idem.Event{{At: w.now, Name: idem.EventSucceeded}},
			}, nil
		}
		before := w.image()
		w.update(key("k"), quiet)
		w.untouched("a change without Write on an unknown key", before)
		w.create(key("k"))
		before = w.image()
		w.update(key("k"), quiet)
		w.untouched("a change without Write on a known key", before)
	}},

	{name: "a stale result adds its event and nothing else", run: func(w *world) { // R6
		k := key("k")
		old := w.running(k)
		w.lapse(old)
		w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, idem.Owner("boot", "w2"), anHour, idem.LeaseOf(&old)))
		before, trail := w.byKey(k), w.events(old)
		totals := w.totals()
		w.expect(idem.VerdictStale, k, idem.Succeed(w.under(old), idem.Result{Output: []byte(`"late"`)}))
		now, after := w.byKey(k), w.events(old)
		if g, b := showCall(&now), showCall(&before); g != b {
			w.fatalf("the record is\n%s\nwas\n%s", g, b)
		}
		if len(after) != len(trail)+1 {
			w.fatalf("events %s, were %s", names(after), names(trail))
		}
		last := after[len(after)-1]
		if last.Name != idem.EventStaleResult || last.Attempt != 1 || last.Owner != "boot/w1" || string(last.Detail) != `{"outcome":"succeeded"}` {
			w.fatalf("last event %s", showEvent(last))
		}
		if t := w.totals(); t != totals {
			w.fatalf("totals %+v, were %+v", t, totals)
		}
	}},

	{name: "what is kept is not shared with what the caller gave", run: func(w *world) {
		args, client, seq, output, amount := []byte(`{"amount":100}`), "me", int64(7), []byte(`{"a":1}`), int64(100)
		r := request(key("k"))
		r.Args, r.ClientID, r.Seq = args, &client, &seq
		w.expect(idem.VerdictCreated, r.Key, w.submit(r))
		c := w.run(r.Key, anHour)
		w.expect(idem.VerdictSettled, r.Key, idem.Succeed(w.under(c), idem.Result{Output: output, Amount: &amount}))
		before := w.image()
		args[2], client, seq, output[2], amount = 'X', "you", 8, 'X', 999
		w.untouched("writing to the caller's own buffers", before)
		ch := w.update(r.Key, w.submit(request(r.Key)))
		if string(ch.After.Args) != `{"amount":100}` {
			w.fatalf("args %s", ch.After.Args)
		}
	}},

	{name: "what is returned belongs to the caller", run: func(w *world) {
		k := key("k")
		r := request(k)
		r.ClientID, r.Seq = ptr("me"), ptr(int64(7))
		w.expect(idem.VerdictCreated, k, w.submit(r))
		c := w.run(k, anHour)
		ch := w.update(k, idem.Succeed(w.under(c), idem.Result{Output: []byte(`{"a":1}`), Amount: ptr(int64(5))}))
		failed := w.fail(w.running(key("failed")), false)
		before := w.image()

		spoil := func(c *idem.Call) {
			for _, b := range [][]byte{c.Args, c.Result} {
				for i := range b {
					b[i] = 'X'
				}
			}
			if c.ClientID != nil {
				*c.ClientID, *c.Seq = "you", 8
			}
			if c.Failure != nil {
				c.Failure.Message = "spoiled"
			}
		}
		spoil(ch.Before)
		spoil(ch.After)
		*ch.Effect.Amount = 999
		for _, e := range ch.Events {
			for i := range e.Detail {
				e.Detail[i] = 'X'
			}
		}
		again := w.update(k, w.submit(r))
		spoil(again.After)
		for _, k := range []idem.Key{k, failed.Key} {
			c := w.byKey(k)
			spoil(&c)
			c, err := w.s.CallByID(w.ctx, k.Namespace, c.ID)
			if err != nil {
				w.fatalf("%v", err)
			}
			spoil(&c)
			for _, e := range w.events(c) {
				for i := range e.Detail {
					e.Detail[i] = 'X'
				}
			}
		}
		calls, _, err := w.s.List(w.ctx, k.Namespace, idem.Query{Limit: 10})
		if err != nil {
			w.fatalf("%v", err)
		}
		for i := range calls {
			spoil(&calls[i])
		}
		*w.effects(k.Namespace)[0].Amount = 999
		w.untouched("writing to what was returned", before)
		if ch := w.update(k, w.submit(r)); string(ch.After.Args) != `{"amount":100}` {
			w.fatalf("args %s", ch.After.Args)
		}
	}},

	{name: "a context that is over: an error or all of it, never half", run: func(w *world) {
		k := key("k")
		ended, cancel := context.WithCancel(w.ctx)
		cancel()
		ch, err := w.s.Update(ended, k, w.submit(request(k)))
		if err != nil && !errors.Is(err, ended.Err()) {
			w.fatalf("error %v, want the context's", err)
		}
		c, readErr := w.s.CallByKey(w.ctx, k)
		switch {
		case readErr == nil:
			if got := names(w.events(c)); got != "[created]" {
				w.fatalf("half a call: events %s", got)
			}
		case err == nil:
			w.fatalf("%s was answered and is not there: %v", showCall(ch.After), readErr)
		}
		w.update(k, w.submit(request(k))) // the key is free, or has its call
	}},
}

// longLife takes one call through every status and back, and looks after each
// step at everything that the store shows of it.
func longLife(w *world) {
	k := keyIn("other", "long life")
	var last idem.Call
	var trail []idem.Event
	want := w.totals()
	step := func(v idem.Verdict, t idem.Transition) {
		w.t.Helper()
		ch := w.update(k, t)
		if ch.Verdict != v {
			w.fatalf("verdict %v, want %v", ch.Verdict, v)
		}
		if last.ID != (idem.CallID{}) {
			if g, s := showCall(ch.Before), showCall(&last); g != s {
				w.fatalf("before is\n%s\nwant\n%s", g, s)
			}
		}
		last = *ch.After
		w.stored(last)
		for _, e := range ch.Events {
			e.Seq = len(trail)
			trail = append(trail, e)
		}
		got := w.events(last)
		if len(got) != len(trail) {
			w.fatalf("events %s, want %s", names(got), names(trail))
		}
		for i := range got {
			if g, s := showEvent(got[i]), showEvent(trail[i]); g != s {
				w.fatalf("event\n%s\nwant\n%s", g, s)
			}
		}
		want.Add(ch.Totals())
		if t := w.totals(); t != want {
			w.fatalf("totals %+v, want %+v", t, want)
		}
		waits := last.Status == idem.StatusPending
		if due := w.due(0); len(due) == 1 != waits {
			w.fatalf("%s: due %v", last.Status, due)
		}
		if held := w.held(0); len(held) == 1 != (last.Status == idem.StatusHeld) {
			w.fatalf("%s: held %v", last.Status, held)
		}
	}
	owner := idem.Owner("boot", "w1")
	run := func(tool *idem.Tool) { step(idem.VerdictClaimed, w.claim(tool, owner, anHour, idem.Lease{})) }
	r := request(k)
	r.ClientID, r.Seq = ptr("agent"), ptr(int64(3))

	step(idem.VerdictCreated, w.submit(r))
	run(toolHold)
	step(idem.VerdictSettled, idem.Hold(w.under(last), idem.Failure{Code: idem.FailureLost, Message: "no answer"}))
	step(idem.VerdictResolved, idem.Resolve(idem.Resolution{Terms: w.terms(), Outcome: idem.OutcomeRetry, By: "anna", Note: "asked them"}))
	run(toolRerun)
	step(idem.VerdictSettled, idem.Release(w.under(last)))
	run(toolRerun)
	t := w.terms()
	t.Deliveries = 4
	step(idem.VerdictSettled, idem.Fail(idem.Settlement{Terms: t, Lease: idem.LeaseOf(&last)}, idem.Failure{Code: idem.FailureTool, Message: "busy", Retryable: true}))
	step(idem.VerdictRequeued, w.submit(r))
	run(toolRerun)
	// Taken over by the next life twice, so that it counts crashes.
	for i := range 2 {
		w.lapse(last)
		step(idem.VerdictClaimed, w.claim(toolRerun, idem.Owner(fmt.Sprint("boot", i), "w1"), anHour, idem.LeaseOf(&last)))
	}
	step(idem.VerdictSettled, idem.Succeed(w.under(last), idem.Result{Output: []byte(`{"a":[1,2]}`), Amount: ptr(int64(-5))}))
	step(idem.VerdictExpired, idem.Expire(last.ExpiresAt))
	if last.Attempt != 6 || last.Crashes != 2 || !last.Tombstone || last.Status != idem.StatusSucceeded {
		w.fatalf("at last %s", showCall(&last))
	}
	if e := w.effects(k.Namespace); len(e) != 1 || *e[0].Amount != -5 {
		w.fatalf("the ledger outlives the window: %v", e)
	}
}
