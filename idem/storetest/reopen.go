package storetest

import (
	"errors"
	"fmt"

	"github.com/idemd/idemd/idem"
)

// What the next life of the process finds.
var reopenCases = []testCase{
	{name: "everything is as it was", run: func(w *world) { // R3, R4, R9
		for i, ns := range namespaces {
			name := func(s string) idem.Key { return keyIn(ns, fmt.Sprint(s, i)) }
			r := request(name("pending"))
			r.ClientID, r.Seq = ptr("me"), ptr(int64(i))
			w.expect(idem.VerdictCreated, r.Key, w.submit(r))
			w.running(name("running"))
			w.hold(w.running(name("held")))
			w.succeed(w.running(name("succeeded")), `{"a":1}`)
			w.fail(w.running(name("failed")), false)
			c := w.fail(w.running(name("requeued")), true)
			w.expect(idem.VerdictRequeued, c.Key, w.submit(request(c.Key)))
			c = w.succeed(w.running(name("tombstone")), `1`)
			w.expect(idem.VerdictExpired, c.Key, idem.Expire(c.ExpiresAt))
			c = w.running(name("stale"))
			w.lapse(c)
			w.expect(idem.VerdictClaimed, c.Key, w.claim(toolRerun, "boot/w2", anHour, idem.LeaseOf(&c)))
			w.expect(idem.VerdictStale, c.Key, idem.Succeed(w.under(c), idem.Result{}))
		}
		before := withoutDue(w.image())
		for range 2 { // the second time nothing is left of what the first life had in memory
			w.reopen()
			if d := differ(before, withoutDue(w.image())); d != "" {
				w.fatalf("%s", d)
			}
		}
		if err := Check(w.ctx, w.s, namespaces...); err != nil {
			w.fatalf("%v", err)
		}
	}},

	{name: "the same key, after a new start: replay, conflict, requeue, refusal", run: func(w *world) { // R3, R9, R16
		w.succeed(w.running(key("succeeded")), `{"a":1}`)
		w.fail(w.running(key("retryable")), true)
		w.hold(w.running(key("held")))
		w.create(key("pending"))
		c := w.succeed(w.running(key("tombstone")), `1`)
		w.expect(idem.VerdictExpired, c.Key, idem.Expire(c.ExpiresAt))
		w.reopen()
		for name, verdict := range map[string]idem.Verdict{
			"succeeded": idem.VerdictReplayed, "retryable": idem.VerdictRequeued, "pending": idem.VerdictJoined,
		} {
			other := request(key(name))
			other.Fingerprint = fingerprint("other")
			if _, err := w.s.Update(w.ctx, key(name), w.submit(other)); !errors.Is(err, idem.ErrConflict) {
				w.fatalf("%s, other fingerprint: %v", name, err)
			}
			w.expect(verdict, key(name), w.submit(request(key(name))))
		}
		for name, want := range map[string]error{"held": idem.ErrOutcomeUnknown, "tombstone": idem.ErrKeyExpired} {
			if _, err := w.s.Update(w.ctx, key(name), w.submit(request(key(name)))); !errors.Is(err, want) {
				w.fatalf("%s: %v, want %v", name, err, want)
			}
		}
		if got := string(w.byKey(key("succeeded")).Result); got != `{"a":1}` {
			w.fatalf("result %s", got)
		}
	}},

	{name: "trails and totals go on where they were", run: func(w *world) {
		k := key("k")
		w.create(k)
		w.reopen()
		c := w.run(k, anHour)
		w.reopen()
		w.fail(c, true)
		w.reopen()
		w.expect(idem.VerdictRequeued, k, w.submit(request(k)))
		c = w.run(k, anHour)
		w.reopen()
		w.succeed(c, `1`)
		w.reopen()
		if got := names(w.events(c)); got != "[created claimed failed requeued claimed succeeded]" {
			w.fatalf("events %s", got)
		}
		if t := w.totals(); t.Calls != 1 || t.Effects != 1 || t.Attempts[2] != 1 {
			w.fatalf("totals %+v", t)
		}
	}},

	{name: "a running call is due at once where one process owns the data, else at the end of its lease", run: func(w *world) { // R11
		w.create(key("pending"))
		w.running(key("alive"))
		w.create(key("over"))
		w.run(key("over"), over)
		w.reopen()
		if !w.o.Exclusive {
			w.dueSoon("pending", "over") // a lease over shared data belongs to no life
			return
		}
		w.wantDue("pending", "alive", "over")
	}},

	{name: "what an earlier life left is marked until it is claimed", run: func(w *world) { // R11
		for _, name := range []string{"pending", "joined", "running", "stale", "retryable"} {
			w.create(key(name))
		}
		running, stale := w.run(key("running"), over), w.run(key("stale"), over)
		stale = w.expect(idem.VerdictClaimed, stale.Key, w.claim(toolRerun, "boot/w2", over, idem.LeaseOf(&stale)))
		w.fail(w.run(key("retryable"), anHour), true)
		w.wantRecovered()
		w.reopen()
		old := w.wasRecovered("pending", "joined", "running", "stale")
		w.wantRecovered(old...)

		// Neither a join nor a stale result moves a call.
		w.expect(idem.VerdictJoined, key("joined"), w.submit(request(key("joined"))))
		w.expect(idem.VerdictStale, stale.Key, idem.Succeed(idem.Settlement{
			Terms: w.terms(), Lease: idem.Lease{CallID: stale.ID, Owner: "boot/w1", Attempt: 1},
		}, idem.Result{}))
		w.wantRecovered(old...)

		// What is new in this life was not left, even of an old call.
		w.create(key("new"))
		w.expect(idem.VerdictRequeued, key("retryable"), w.submit(request(key("retryable"))))
		w.wantRecovered(old...)

		// A claim takes the mark away, for good.
		w.expect(idem.VerdictClaimed, running.Key, w.claim(toolRerun, "boot2/w1", over, idem.LeaseOf(&running)))
		c := w.expect(idem.VerdictClaimed, key("pending"), w.claim(toolRerun, "boot2/w1", over, idem.Lease{}))
		w.expect(idem.VerdictSettled, c.Key, idem.Release(w.under(c)))
		w.wantRecovered(w.wasRecovered("joined", "stale")...)
		w.reopen()
		w.wantRecovered(w.wasRecovered("pending", "joined", "running", "stale", "retryable", "new")...)
	}},

	{name: "the next life takes over, the earlier one's lease is refused", run: func(w *world) { // R6, R11, R12
		k := key("k")
		w.create(k)
		old := w.run(k, over)
		w.reopen()
		c := w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, "boot2/w1", anHour, w.dueAs(old).Lease()))
		if c.Attempt != 2 || c.Crashes != 1 {
			w.fatalf("%s", showCall(&c))
		}
		w.wantDue()
		w.lost(k, idem.LeaseOf(&old))
		w.expect(idem.VerdictStale, k, idem.Succeed(w.under(old), idem.Result{}))
		w.succeed(c, `1`)
	}},

	{name: "a call that is held, and an end, are due for nobody", run: func(w *world) {
		w.hold(w.running(key("held")))
		w.succeed(w.running(key("succeeded")), `1`)
		w.fail(w.running(key("failed")), true)
		w.reopen()
		w.wantDue()
		w.wantHeld("held")
	}},

	{name: "the time in ids goes on", run: func(w *world) { // R17
		k := key("k")
		adm := w.admission(k)
		ahead := w.now.Add(3 * 60 * 60 * 1e9)
		adm.ID = w.idAt(k, ahead)
		w.expect(idem.VerdictCreated, k, idem.Submit(request(k), adm))
		w.create(key("later"))
		w.reopen()
		if got, err := w.s.Newest(w.ctx); err != nil || !got.Equal(ahead) {
			w.fatalf("%v, %v, want %v", got, err, ahead)
		}
	}},

	{name: "an empty store is opened again", run: func(w *world) {
		w.reopen()
		w.reopen()
		w.create(key("k"))
		w.wantDue("k")
	}},

	{name: "the store refuses a second call and a second effect by what is on disk", run: func(w *world) { // R2, R8
		k := key("k")
		c := w.succeed(w.running(k), `1`)
		w.reopen()
		second := c
		second.ID = w.idAt(k, w.tick())
		if _, err := w.s.Update(w.ctx, k, createAnyway(second)); !errors.Is(err, idem.ErrSecondCall) {
			w.fatalf("%v", err)
		}
		w.reopen()
		if _, err := w.s.Update(w.ctx, k, addEffect(effectOf(c, 1))); !errors.Is(err, idem.ErrSecondEffect) {
			w.fatalf("%v", err)
		}
	}},
}

// wasRecovered are the names that carry the mark where one process owns the
// data: over shared data there is no earlier life, and no mark.
func (w *world) wasRecovered(names ...string) []string {
	if !w.o.Exclusive {
		return nil
	}
	return names
}

// wantRecovered compares the marked calls among those that are due, in order.
func (w *world) wantRecovered(names ...string) {
	w.t.Helper()
	var got []string
	for _, d := range w.due(0) {
		if d.Recovered {
			got = append(got, d.Key.Name)
		}
	}
	if g, s := fmt.Sprintf("%q", got), fmt.Sprintf("%q", names); g != s {
		w.fatalf("recovered %s, want %s", g, s)
	}
}

// withoutDue leaves out what a new start changes: what is due.
func withoutDue(lines []string) []string {
	var kept []string
	for _, l := range lines {
		if len(l) < 4 || l[:4] != "due " {
			kept = append(kept, l)
		}
	}
	return kept
}
