package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/idem"
)

// What is listed, counted and paged.
var readCases = []testCase{
	{name: "the list is newest first, each call exactly once whatever the page", run: func(w *world) {
		// Ids of several days, in an order that is not theirs.
		var want []idem.CallID
		for i := range 25 {
			k := key(fmt.Sprint("k", i))
			adm := w.admission(k)
			adm.ID = w.idAt(k, w.now.Add(-time.Duration(i*7%25)*4*time.Hour))
			w.expect(idem.VerdictCreated, k, idem.Submit(request(k), adm))
			want = append(want, adm.ID)
			w.create(keyIn("other", fmt.Sprint("k", i)))
		}
		slices.SortFunc(want, func(a, b idem.CallID) int { return compareIDs(b, a) })
		for _, limit := range []int{1, 2, 7, 24, 25, 26, 1000} {
			calls, err := allCalls(w.ctx, w.s, idem.DefaultNamespace, idem.Query{Limit: limit})
			if err != nil {
				w.fatalf("limit %d: %v", limit, err)
			}
			if got := ids(calls); !slices.Equal(got, want) {
				w.fatalf("limit %d: %v, want %v", limit, got, want)
			}
			for i := range calls {
				byKey := w.byKey(calls[i].Key)
				byKey.Fingerprint = idem.Fingerprint{}
				if g, s := showCall(&calls[i]), showCall(&byKey); g != s {
					w.fatalf("listed\n%s\nby key\n%s", g, s)
				}
			}
		}
		// From the middle, and before an id that no call has.
		calls, err := allCalls(w.ctx, w.s, idem.DefaultNamespace, idem.Query{Limit: 3, Before: want[10]})
		if got := ids(calls); err != nil || !slices.Equal(got, want[11:]) {
			w.fatalf("before %v: %v, %v", want[10], got, err)
		}
		between := want[10]
		between[15]++
		calls, err = allCalls(w.ctx, w.s, idem.DefaultNamespace, idem.Query{Limit: 3, Before: between})
		if got := ids(calls); err != nil || !slices.Equal(got, want[10:]) {
			w.fatalf("before %v: %v, %v", between, got, err)
		}
		calls, next, err := w.s.List(w.ctx, idem.DefaultNamespace, idem.Query{Limit: 3, Before: want[24]})
		if err != nil || len(calls) != 0 || !next.IsZero() {
			w.fatalf("before the oldest: %v, %v, %v", calls, next, err)
		}
	}},

	{name: "calls that come while somebody pages do not move the pages", run: func(w *world) {
		var want []idem.CallID
		for i := range 10 {
			want = append(want, w.create(key(fmt.Sprint("k", i))).ID)
		}
		slices.Reverse(want)
		q := idem.Query{Limit: 2}
		var got []idem.CallID
		for i := 0; ; i++ {
			calls, next, err := w.s.List(w.ctx, idem.DefaultNamespace, q)
			if err != nil {
				w.fatalf("%v", err)
			}
			got = append(got, ids(calls)...)
			if next.IsZero() {
				break
			}
			q.Before = next
			w.create(key(fmt.Sprint("new", i)))
		}
		if !slices.Equal(got, want) {
			w.fatalf("%v, want %v", got, want)
		}
	}},

	{name: "the list filters by status, tool and client id", run: func(w *world) {
		clients := []*string{nil, ptr(""), ptr("a"), ptr("ab"), ptr("A")}
		tools := []*idem.Tool{toolLocal, toolRerun, toolHold}
		var all []idem.Call
		for i := range 60 {
			k := key(fmt.Sprint("k", i))
			r, tool := request(k), tools[i%len(tools)]
			r.Tool, r.ClientID = tool.Name, clients[i%len(clients)]
			c := w.expect(idem.VerdictCreated, k, w.submit(r))
			if i%4 > 0 {
				c = w.expect(idem.VerdictClaimed, k, w.claim(tool, "boot/w1", anHour, idem.Lease{}))
			}
			if i%4 > 1 {
				switch i % 7 {
				case 0, 1:
					c = w.hold(c)
				case 2, 3:
					c = w.fail(c, i%2 == 0)
				default:
					c = w.succeed(c, `1`)
				}
			}
			c.Args = nil
			all = append(all, c)
		}
		slices.Reverse(all)
		statuses := append([]idem.Status{""}, idem.Statuses[:]...)
		for _, status := range statuses {
			for _, tool := range []string{"", toolLocal.Name, toolRerun.Name, "unheard_of", "refun"} {
				for _, client := range []string{"", "a", "ab", "A", "b", "ä"} {
					q := idem.Query{Status: status, Tool: tool, ClientID: client, Limit: 3}
					var want []idem.CallID
					for i := range all {
						if q.Match(&all[i]) {
							want = append(want, all[i].ID)
						}
					}
					calls, err := allCalls(w.ctx, w.s, idem.DefaultNamespace, q)
					if err != nil {
						w.fatalf("%+v: %v", q, err)
					}
					if got := ids(calls); !slices.Equal(got, want) {
						w.fatalf("%+v: %d calls %v, want %d %v", q, len(got), got, len(want), want)
					}
				}
			}
		}
	}},

	{name: "the list shows a call as it is now", run: func(w *world) {
		k := key("k")
		has := func(status idem.Status) {
			w.t.Helper()
			for _, s := range idem.Statuses {
				calls, err := allCalls(w.ctx, w.s, k.Namespace, idem.Query{Status: s, Limit: 1})
				if err != nil || len(calls) == 1 != (s == status) {
					w.fatalf("%s: listed as %s: %d, %v", status, s, len(calls), err)
				}
			}
		}
		w.create(k)
		has(idem.StatusPending)
		c := w.run(k, anHour)
		has(idem.StatusRunning)
		w.fail(c, true)
		has(idem.StatusFailed)
		w.expect(idem.VerdictRequeued, k, w.submit(request(k)))
		has(idem.StatusPending)
		w.hold(w.run(k, anHour))
		has(idem.StatusHeld)
		c = w.expect(idem.VerdictResolved, k, idem.Resolve(idem.Resolution{Terms: w.terms(), Outcome: idem.OutcomeSucceeded, By: "anna"}))
		has(idem.StatusSucceeded)
		w.expect(idem.VerdictExpired, k, idem.Expire(c.ExpiresAt))
		has(idem.StatusSucceeded)
	}},

	{name: "events from a number on, up to a limit, also within one change", run: func(w *world) {
		k := key("k")
		w.create(k)
		c := w.run(k, over)
		for i := range 4 { // two events each, in one change
			c = w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, fmt.Sprint("boot/w", i+2), over, idem.LeaseOf(&c)))
		}
		w.succeed(c, `1`)
		all, err := w.s.Events(w.ctx, k.Namespace, c.ID, 0, 1000)
		if err != nil {
			w.fatalf("%v", err)
		}
		want := "[created claimed recovered claimed recovered claimed recovered claimed recovered claimed succeeded]"
		if got := names(all); got != want {
			w.fatalf("events %s, want %s", got, want)
		}
		for from := range len(all) + 3 {
			for limit := 1; limit <= len(all)+2; limit++ {
				got, err := w.s.Events(w.ctx, k.Namespace, c.ID, from, limit)
				if err != nil {
					w.fatalf("from %d, limit %d: %v", from, limit, err)
				}
				part := all[min(from, len(all)):min(from+limit, len(all))]
				if len(got) != len(part) {
					w.fatalf("from %d, limit %d: %d events, want %d", from, limit, len(got), len(part))
				}
				for i := range got {
					if g, s := showEvent(got[i]), showEvent(part[i]); g != s || got[i].Seq != from+i {
						w.fatalf("from %d, limit %d:\n%s\nwant\n%s", from, limit, g, s)
					}
				}
			}
		}
	}},

	{name: "a change of many events", run: func(w *world) {
		c := w.create(key("k"))
		const n = 300 // more than one byte counts
		var events []idem.Event
		for i := range n {
			events = append(events, idem.Event{At: w.now, Name: idem.EventStaleResult, Attempt: i, Owner: "boot/w1", Detail: fmt.Appendf(nil, `{"note":"%d"}`, i)})
		}
		for range 2 {
			w.update(c.Key, func(cur *idem.Call) (idem.Change, error) {
				return idem.Change{Before: cur, After: cur, Write: true, Events: events}, nil
			})
		}
		got := w.events(c)
		if len(got) != 1+2*n {
			w.fatalf("%d events", len(got))
		}
		for i, e := range got[1:] {
			if want := fmt.Sprintf(`{"note":"%d"}`, i%n); e.Seq != i+1 || string(e.Detail) != want {
				w.fatalf("event %s, want number %d and %s", showEvent(e), i+1, want)
			}
		}
	}},

	{name: "a change without events", run: func(w *world) {
		c := w.create(key("k"))
		c = w.lawlessQuiet(c, func(c *idem.Call) { c.Deliveries = 5 })
		w.stored(c)
		w.run(c.Key, anHour)
		if got := names(w.events(c)); got != "[created claimed]" {
			w.fatalf("events %s", got)
		}
	}},

	{name: "the ledger is in call order, paged", run: func(w *world) {
		var want []idem.CallID
		var calls []idem.Call
		for i := range 15 {
			k := key(fmt.Sprint("k", i))
			c := w.running(k)
			calls = append(calls, c)
			if i%3 != 0 {
				want = append(want, c.ID)
			}
			w.succeed(w.running(keyIn("other", fmt.Sprint("k", i))), `1`)
		}
		slices.Reverse(calls) // the last to be created commits first
		for i, c := range calls {
			if (len(calls)-1-i)%3 != 0 {
				w.succeed(c, `1`)
			}
		}
		for _, limit := range []int{1, 2, 9, 10, 11, 1000} {
			effects, err := allEffects(w.ctx, w.s, idem.DefaultNamespace, limit)
			if err != nil {
				w.fatalf("limit %d: %v", limit, err)
			}
			var got []idem.CallID
			for _, e := range effects {
				got = append(got, e.CallID)
			}
			if !slices.Equal(got, want) {
				w.fatalf("limit %d: %v, want %v", limit, got, want)
			}
		}
		// After a call that has an effect, and after one that has none.
		for _, after := range []idem.CallID{want[1], calls[len(calls)-1-3].ID} {
			effects, err := w.s.Effects(w.ctx, idem.DefaultNamespace, after, 1)
			if err != nil || len(effects) != 1 || effects[0].CallID != want[2] {
				w.fatalf("after %v: %v, %v, want that of %v", after, effects, err, want[2])
			}
		}
		if effects, err := w.s.Effects(w.ctx, idem.DefaultNamespace, want[len(want)-1], 10); err != nil || len(effects) != 0 {
			w.fatalf("after the last: %v, %v", effects, err)
		}
	}},

	{name: "totals equal a recount at every step", run: func(w *world) {
		var calls []idem.Call
		check := func() {
			w.t.Helper()
			if err := Check(w.ctx, w.s, namespaces...); err != nil {
				w.fatalf("%v", err)
			}
		}
		for i := range 12 {
			c := w.running(keyIn(namespaces[i%len(namespaces)], fmt.Sprint("k", i)))
			for range i { // so that attempts are spread over all buckets, and beyond
				w.lapse(c)
				c = w.expect(idem.VerdictClaimed, c.Key, w.claim(toolRerun, "boot/w1", anHour, idem.LeaseOf(&c)))
			}
			calls = append(calls, c)
			check()
		}
		for i, c := range calls {
			switch i % 3 {
			case 0:
				calls[i] = w.succeed(c, `1`)
			case 1:
				calls[i] = w.fail(c, true)
			default:
				calls[i] = w.hold(c)
			}
			check()
		}
		k := key("never ran")
		w.create(k)
		w.expect(idem.VerdictStopped, k, w.claim(nil, "boot/w1", anHour, idem.Lease{}))
		check()
		if t := w.totals(); t.Calls != 13 || t.Effects != 4 || t.Attempts[0] != 1 || t.Attempts[10] != 2 {
			w.fatalf("totals %+v", t)
		}
		for i, c := range calls {
			if i%3 == 1 {
				w.expect(idem.VerdictRequeued, c.Key, w.submit(request(c.Key)))
				check()
			}
			if i%3 == 0 {
				w.expect(idem.VerdictExpired, c.Key, idem.Expire(c.ExpiresAt))
				check()
			}
		}
	}},

	{name: "the newest id is the newest, whoever made it and whenever it came", run: func(w *world) { // R17
		if t, err := w.s.Newest(w.ctx); err != nil || !t.IsZero() {
			w.fatalf("an empty store: %v, %v", t, err)
		}
		newest := w.now
		for i, ms := range []int{0, 10, 5, 3_600_000, 7, 3_600_001} {
			k := keyIn(namespaces[i%len(namespaces)], fmt.Sprint("k", i))
			adm := w.admission(k)
			t := w.now.Add(time.Duration(ms) * time.Millisecond)
			adm.ID = w.idAt(k, t)
			w.expect(idem.VerdictCreated, k, idem.Submit(request(k), adm))
			if t.After(newest) {
				newest = t
			}
			if got, err := w.s.Newest(w.ctx); err != nil || !got.Equal(newest) {
				w.fatalf("after %d calls: %v, %v, want %v", i+1, got, err, newest)
			}
		}
	}},
}

func ids(calls []idem.Call) []idem.CallID {
	var ids []idem.CallID
	for _, c := range calls {
		ids = append(ids, c.ID)
	}
	return ids
}

// lawlessQuiet changes a record without an event.
func (w *world) lawlessQuiet(c idem.Call, change func(*idem.Call)) idem.Call {
	w.t.Helper()
	return *w.update(c.Key, func(cur *idem.Call) (idem.Change, error) {
		c := *cur
		change(&c)
		return idem.Change{Before: cur, After: &c, Write: true}, nil
	}).After
}
