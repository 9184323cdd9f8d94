package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// Who may be claimed, when, and in what order.
var leaseCases = []testCase{
	{name: "due: pending is, running under a live lease is not, held and ended are not", run: func(w *world) { // R6, R11
		w.create(key("pending"))
		w.running(key("running"))
		w.hold(w.running(key("held")))
		w.succeed(w.running(key("succeeded")), `1`)
		w.fail(w.running(key("failed")), false)
		w.fail(w.running(key("retryable")), true)
		w.wantDue("pending")
		w.wantHeld("held")
	}},

	{name: "due says what a queue needs to know", run: func(w *world) {
		k := keyIn("other", "k")
		c := w.create(k)
		w.wantDueAs(c)
		c = w.expect(idem.VerdictClaimed, k, w.claim(toolVerify, "boot1/w1", over, idem.Lease{}))
		w.wantDueAs(c)
		c = w.expect(idem.VerdictStopped, k, w.claim(toolVerify, "boot2/w1", over, w.dueAs(c).Lease()))
		if got, want := showHeld(w.held(0)), showHeld([]idem.Due{dueOf(c)}); got != want {
			w.fatalf("held\n%s\nwant\n%s", got, want)
		}
		c = w.expect(idem.VerdictResolved, k, idem.Resolve(idem.Resolution{Terms: w.terms(), Outcome: idem.OutcomeRetry, By: "anna"}))
		w.wantDueAs(c) // it has been claimed before, and crashed once
		if c.Crashes != 1 || c.Attempt != 1 {
			w.fatalf("%s", showCall(&c))
		}
	}},

	{name: "due is ordered by creation over all namespaces, whenever a call came back", run: func(w *world) { // R11
		var want []string
		calls := make(map[string]idem.Call)
		for i := range 12 {
			k := keyIn(namespaces[(i*7)%len(namespaces)], fmt.Sprint("k", (i*5)%12))
			calls[k.Name] = w.create(k)
			want = append(want, k.Name)
		}
		w.wantDue(want...)
		// The third is claimed and its lease is over, the first failed and was
		// asked for again, the second was held and is tried again: all keep
		// their places.
		c := w.run(calls[want[0]].Key, anHour)
		w.fail(c, true)
		w.expect(idem.VerdictRequeued, c.Key, w.submit(request(c.Key)))
		c = w.hold(w.run(calls[want[1]].Key, anHour))
		w.expect(idem.VerdictResolved, c.Key, idem.Resolve(idem.Resolution{Terms: w.terms(), Outcome: idem.OutcomeRetry, By: "anna"}))
		w.run(calls[want[2]].Key, over)
		w.wantDue(want...)
		for _, limit := range []int{1, 2, 5, 11, 12, 13} {
			if got := dueNames(w.due(limit)); !slices.Equal(got, want[:min(limit, 12)]) {
				w.fatalf("limit %d: %q, want %q", limit, got, want[:min(limit, 12)])
			}
		}
		// A limit counts what is due, not what was looked at.
		w.run(calls[want[3]].Key, anHour)
		w.run(calls[want[0]].Key, anHour)
		if got := dueNames(w.due(2)); !slices.Equal(got, want[1:3]) {
			w.fatalf("%q, want %q", got, want[1:3])
		}
	}},

	{name: "due leaves out the tools that it is told to", run: func(w *world) {
		for i := range 9 {
			r := request(key(fmt.Sprint("k", i)))
			r.Tool = fmt.Sprint("tool_", i%3)
			w.expect(idem.VerdictCreated, r.Key, w.submit(r))
		}
		w.run(key("k0"), over) // due by its lease
		w.run(key("k1"), anHour)
		for _, c := range []struct {
			limit  int
			except []string
			want   string
		}{
			{0, nil, "k0 k2 k3 k4 k5 k6 k7 k8"},
			{0, []string{"tool_0"}, "k2 k4 k5 k7 k8"},
			{0, []string{"tool_1", "no tool"}, "k0 k2 k3 k5 k6 k8"},
			{2, []string{"tool_0", "tool_2"}, "k4 k7"},
			{3, []string{"tool_0"}, "k2 k4 k5"},
			{1, []string{"tool_0", "tool_1", "tool_2"}, ""},
		} {
			due, err := w.s.Due(w.ctx, c.limit, c.except...)
			if got := strings.Join(dueNames(due), " "); err != nil || got != c.want {
				w.fatalf("limit %d, except %q: %s, %v; want %s", c.limit, c.except, got, err, c.want)
			}
		}
		w.wantDue("k0", "k2", "k3", "k4", "k5", "k6", "k7", "k8")
	}},

	{name: "held is ordered by creation, with a limit", run: func(w *world) {
		var want []string
		var keys []idem.Key
		for i := range 9 {
			k := keyIn(namespaces[(i*7)%len(namespaces)], fmt.Sprint("k", i))
			w.create(k)
			keys, want = append(keys, k), append(want, k.Name)
		}
		for i := range 9 { // held in another order
			w.hold(w.run(keys[(i*4)%9], anHour))
		}
		w.wantHeld(want...)
		for _, limit := range []int{1, 4, 9, 10} {
			if got := dueNames(w.held(limit)); !slices.Equal(got, want[:min(limit, 9)]) {
				w.fatalf("limit %d: %q", limit, got)
			}
		}
		if due := w.due(0); len(due) != 0 {
			w.fatalf("due %q", dueNames(due))
		}
	}},

	{name: "a lease of nothing and of one nanosecond is over at once", run: func(w *world) {
		w.create(key("nothing"))
		w.run(key("nothing"), 0)
		w.create(key("nanosecond"))
		w.run(key("nanosecond"), 1)
		w.dueSoon("nothing", "nanosecond")
	}},

	{name: "a lease that is over is taken from where it was found, and gone for its holder", run: func(w *world) { // R6
		k := key("k")
		w.create(k)
		first := w.run(k, over)
		second := w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, "boot/w2", anHour, w.dueAs(first).Lease()))
		if second.Attempt != 2 || second.Owner != "boot/w2" {
			w.fatalf("%s", showCall(&second))
		}
		w.wantDue()
		w.lost(k, idem.LeaseOf(&first))
		w.expect(idem.VerdictStale, k, idem.Succeed(w.under(first), idem.Result{}))
		w.expect(idem.VerdictSettled, k, idem.Succeed(w.under(second), idem.Result{}))
	}},

	{name: "shared: a lease that was renewed after it was found to be over is not taken", run: func(w *world) { // R6, R11
		if w.o.Exclusive {
			return // who claims knows by itself what it has in hand
		}
		k := key("k")
		w.create(k)
		c := w.run(k, over)
		found := w.dueAs(c).Lease()
		if err := w.s.Renew(w.ctx, k, idem.LeaseOf(&c), anHour); err != nil {
			w.fatalf("%v", err)
		}
		before := w.image()
		for _, tool := range []*idem.Tool{toolRerun, toolHold, nil} { // run again, hold, stop
			if ch, err := w.s.Update(w.ctx, k, w.claim(tool, "other/w1", anHour, found)); !errors.Is(err, idem.ErrLeaseLives) {
				w.fatalf("a living lease was taken: %v, %v", ch.Verdict, err)
			}
		}
		w.untouched("a claim that was refused", before)
		w.lapse(c)
		w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, "other/w1", anHour, found))
	}},

	{name: "a lease that is over and was not taken still settles", run: func(w *world) { // R6
		k := key("k")
		w.create(k)
		c := w.run(k, over)
		w.dueSoon("k")
		w.succeed(c, `"in time after all"`)
		w.wantDue()
	}},

	{name: "a renewal makes a lease last, and writes nothing that is seen", run: func(w *world) { // R6
		k := key("k")
		w.create(k)
		c := w.run(k, over)
		w.dueSoon("k")
		before, trail := w.byKey(k), w.events(c)
		// Nobody took it, so the holder may have it back.
		w.renew(k, idem.LeaseOf(&c), anHour)
		w.wantDue()
		after := w.byKey(k)
		if g, b := showCall(&after), showCall(&before); g != b || after.LeaseUntil.IsZero() {
			w.fatalf("the record is\n%s\nwas\n%s", g, b)
		}
		if got := w.events(c); len(got) != len(trail) {
			w.fatalf("events %s", names(got))
		}
		w.renew(k, idem.LeaseOf(&c), 1)
		w.dueSoon("k")
		w.renew(k, idem.LeaseOf(&c), anHour)
		w.wantDue()
		w.succeed(c, `1`)
	}},

	{name: "only the lease itself is renewed", run: func(w *world) { // R6
		k := key("k")
		c := w.running(k)
		other := w.running(key("other"))
		good := idem.LeaseOf(&c)
		for _, bad := range []idem.Lease{
			{},
			{CallID: other.ID, Owner: good.Owner, Attempt: good.Attempt},
			{CallID: good.CallID, Owner: "boot/w2", Attempt: good.Attempt},
			{CallID: good.CallID, Owner: good.Owner, Attempt: good.Attempt + 1},
			{CallID: good.CallID, Owner: good.Owner, Attempt: good.Attempt - 1},
		} {
			w.lost(k, bad)
		}
		w.lost(key("nobody"), good)
		w.lost(keyIn("other", "k"), good)
		w.wantDue() // a refused renewal has ended no lease
		w.renew(k, good, anHour)
	}},

	{name: "no lease outlives the attempt", run: func(w *world) { // R6
		k := key("k")
		settled := []struct {
			name string
			end  func(c idem.Call) // and make it pending again, if it is not for good
		}{
			{"released", func(c idem.Call) { w.expect(idem.VerdictSettled, k, idem.Release(w.under(c))) }},
			{"held", func(c idem.Call) {
				w.hold(c)
				w.lost(k, idem.LeaseOf(&c))
				w.expect(idem.VerdictResolved, k, idem.Resolve(idem.Resolution{Terms: w.terms(), Outcome: idem.OutcomeRetry, By: "anna"}))
			}},
			{"failed and retryable", func(c idem.Call) {
				w.fail(c, true)
				w.lost(k, idem.LeaseOf(&c))
				w.expect(idem.VerdictRequeued, k, w.submit(request(k)))
			}},
			{"succeeded", func(c idem.Call) { w.succeed(c, `1`) }},
			{"tombstone", func(c idem.Call) { w.expect(idem.VerdictExpired, k, idem.Expire(w.now.Add(2*window))) }},
		}
		w.create(k)
		var c idem.Call
		for _, s := range settled {
			if s.name != "tombstone" {
				c = w.run(k, anHour)
			}
			s.end(c)
			w.lost(k, idem.LeaseOf(&c))
		}
	}},

	{name: "the same worker, the next attempt: another lease", run: func(w *world) { // R6
		k := key("k")
		first := w.running(k)
		w.expect(idem.VerdictSettled, k, idem.Release(w.under(first)))
		second := w.run(k, anHour)
		if first.Owner != second.Owner {
			w.fatalf("owners %q and %q", first.Owner, second.Owner)
		}
		w.lost(k, idem.LeaseOf(&first))
		w.renew(k, idem.LeaseOf(&second), anHour)
	}},

	{name: "a stale result leaves the living lease alone", run: func(w *world) { // R6
		k := key("k")
		w.create(k)
		first := w.run(k, over)
		second := w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, "boot/w2", anHour, idem.LeaseOf(&first)))
		// Its change writes a running record and names no lease: that must not
		// be read as a lease of nothing.
		w.expect(idem.VerdictStale, k, idem.Succeed(w.under(first), idem.Result{}))
		w.wantDue()
		w.renew(k, idem.LeaseOf(&second), over)
		w.dueSoon("k")
		w.expect(idem.VerdictStale, k, idem.Succeed(w.under(first), idem.Result{}))
		w.dueSoon("k") // nor does it give a new one
	}},

	{name: "a call that is claimed as it is created is not due", run: func(w *world) {
		k := key("k")
		c := w.expect(idem.VerdictCreated, k, idem.Chain(w.submit(request(k)), w.claim(toolRerun, "boot/w1", anHour, idem.Lease{})))
		w.wantDue()
		w.renew(k, idem.LeaseOf(&c), over)
		w.dueSoon("k")
	}},
}

func (w *world) renew(k idem.Key, l idem.Lease, d time.Duration) {
	w.t.Helper()
	if err := w.s.Renew(w.ctx, k, l, d); err != nil {
		w.fatalf("renew %+v: %v", l, err)
	}
}

// lost asks for a renewal that must be refused.
func (w *world) lost(k idem.Key, l idem.Lease) {
	w.t.Helper()
	if err := w.s.Renew(w.ctx, k, l, anHour); !errors.Is(err, idem.ErrLeaseLost) {
		w.fatalf("renew %+v of %v: %v, want %v", l, k, err, idem.ErrLeaseLost)
	}
}

func dueNames(due []idem.Due) []string {
	var names []string
	for _, d := range due {
		names = append(names, d.Key.Name)
	}
	return names
}

// wantDue compares what is due with the names of keys, in order.
func (w *world) wantDue(names ...string) {
	w.t.Helper()
	if got := dueNames(w.due(0)); !slices.Equal(got, names) {
		w.fatalf("due %q, want %q", got, names)
	}
}

func (w *world) wantHeld(names ...string) {
	w.t.Helper()
	if got := dueNames(w.held(0)); !slices.Equal(got, names) {
		w.fatalf("held %q, want %q", got, names)
	}
}

// dueSoon asks until the given calls are due, in order: the clock of a store
// may be coarse, or be another machine's.
func (w *world) dueSoon(names ...string) {
	w.t.Helper()
	eventually(w.t, func() string {
		if got := dueNames(w.due(0)); !slices.Equal(got, names) {
			return fmt.Sprintf("due %q, want %q", got, names)
		}
		return ""
	})
}

// dueOf is what Due says of a record.
func dueOf(c idem.Call) idem.Due {
	return idem.Due{
		ID: c.ID, Key: c.Key, Tool: c.Tool, Status: c.Status, Attempt: c.Attempt, Crashes: c.Crashes, Owner: c.Owner,
		Effects: c.Effects, CreatedAt: c.CreatedAt,
	}
}

// dueAs waits until the one call is due, and returns what Due says of it.
func (w *world) dueAs(c idem.Call) idem.Due {
	w.t.Helper()
	w.dueSoon(c.Key.Name)
	return w.due(0)[0]
}

// wantDueAs compares what Due says of the one call with its record.
func (w *world) wantDueAs(c idem.Call) {
	w.t.Helper()
	if got, want := showDue(w.dueAs(c)), showDue(dueOf(c)); got != want {
		w.fatalf("due\n%s\nwant\n%s", got, want)
	}
}

func showHeld(held []idem.Due) string {
	var s string
	for _, d := range held {
		d.Recovered = false
		s += showDue(d) + "\n"
	}
	return s
}

// eventually asks until there is no complaint. It does not wait in between:
// what it waits for is over already, by all clocks but the store's.
func eventually(t *testing.T, ask func() string) {
	t.Helper()
	deadline := time.Now().Add(time.Second)
	for asked := 1; ; asked++ {
		complaint := ask()
		if complaint == "" {
			return
		}
		if asked >= 3 && time.Now().After(deadline) {
			t.Fatal(complaint)
		}
	}
}
