package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
)

// What is written comes back exactly.
var recordCases = []testCase{
	{name: "keys of every allowed byte and length", run: func(w *world) {
		var names []string
		for b := byte(0x21); b <= 0x7e; b++ {
			names = append(names, string(b), "a"+string(b), string(b)+string(b), "a"+string(b)+"z")
		}
		names = append(names, "a z", "a  z", "..", "a%2Fb", "%00", `\"`, strings.Repeat("k", 254), strings.Repeat("k", 255), strings.Repeat("~", 255))
		ids := make(map[idem.CallID]string)
		calls := make(map[string]idem.Call)
		for _, n := range names {
			if _, twice := calls[n]; twice {
				continue
			}
			c := w.create(key(n))
			if other, taken := ids[c.ID]; taken {
				w.fatalf("%q and %q are one call", n, other)
			}
			ids[c.ID], calls[n] = n, c
		}
		for n, c := range calls {
			if got := w.byKey(key(n)); got.ID != c.ID || got.Key != c.Key {
				w.fatalf("key %q gives %s", n, showCall(&got))
			}
		}
	}},

	{name: "keys are compared byte by byte", run: func(w *world) {
		w.create(key("Key"))
		for _, n := range []string{"key", "KEY", "Ke", "Key1", "K", "Key "} {
			if c, err := w.s.CallByKey(w.ctx, key(n)); !errors.Is(err, idem.ErrNotFound) {
				w.fatalf("%q found %s, %v", n, showCall(&c), err)
			}
		}
	}},

	{name: "namespaces never meet", run: func(w *world) { // R2
		// One name in all of them, and two pairs that are one text if namespace
		// and name run together.
		keys := []idem.Key{keyIn("a", "bc"), keyIn("ab", "c")}
		for _, ns := range namespaces {
			keys = append(keys, keyIn(ns, "k"))
		}
		calls := make(map[idem.Key]idem.Call)
		for _, k := range keys {
			w.create(k)
			calls[k] = w.succeed(w.run(k, anHour), fmt.Sprintf("%q", k.Namespace))
		}
		for _, k := range keys {
			c := calls[k]
			w.stored(c)
			for _, ns := range append(namespaces, "unheard of") {
				if ns == k.Namespace {
					continue
				}
				if got, err := w.s.CallByID(w.ctx, ns, c.ID); !errors.Is(err, idem.ErrNotFound) {
					w.fatalf("%q shows %s of %q, %v", ns, showCall(&got), k.Namespace, err)
				}
				if got, err := w.s.Events(w.ctx, ns, c.ID, 0, 10); !errors.Is(err, idem.ErrNotFound) {
					w.fatalf("%q shows events %v of %q, %v", ns, got, k.Namespace, err)
				}
			}
		}
		for _, ns := range namespaces {
			listed, err := allCalls(w.ctx, w.s, ns, idem.Query{Limit: pageSize})
			if err != nil {
				w.fatalf("%v", err)
			}
			effects := w.effects(ns)
			want := 0
			for _, k := range keys {
				if k.Namespace == ns {
					want++
				}
			}
			if len(listed) != want || len(effects) != want {
				w.fatalf("%q lists %d calls and %d effects, want %d", ns, len(listed), len(effects), want)
			}
			for i := range listed {
				if listed[i].Key.Namespace != ns || string(listed[i].Result) != fmt.Sprintf("%q", ns) {
					w.fatalf("%q lists %s", ns, showCall(&listed[i]))
				}
			}
		}
		if calls, next, err := w.s.List(w.ctx, "unheard of", idem.Query{Limit: 10}); err != nil || len(calls) != 0 || !next.IsZero() {
			w.fatalf("an unknown namespace lists %v, %v, %v", calls, next, err)
		}
		if effects, err := w.s.Effects(w.ctx, "unheard of", idem.CallID{}, 10); err != nil || len(effects) != 0 {
			w.fatalf("an unknown namespace has effects %v, %v", effects, err)
		}
	}},

	{name: "args come back exactly to transitions, and reads leave them out", run: func(w *world) {
		sizes := []int{0, 1, 2, 100, 4 << 10, 64 << 10, 1 << 20}
		all := [][]byte{
			[]byte(" {\"b\":1.10,\t\"a\":1e0,\r\n\"n\":9007199254740993} "), // the caller's spelling, not a canonical one
			[]byte(`{"s":"\u0000\ud83d\ude00é","t":"` + "\u2028\U0010ffff" + `"}`),
		}
		for _, n := range sizes {
			// Not compressible, so that no store gets away with a small value.
			b := make([]byte, n)
			x := uint32(2463534242)
			for i := range b {
				x ^= x << 13
				x ^= x >> 17
				x ^= x << 5
				b[i] = 0x20 + byte(x%95)
			}
			all = append(all, b)
		}
		for i, args := range all {
			r := request(key(fmt.Sprint("args", i)))
			r.Args = bytes.Clone(args)
			ch := w.update(r.Key, w.submit(r))
			if !bytes.Equal(ch.After.Args, args) {
				w.fatalf("%d bytes of args: the change has %s", len(args), showBytes(ch.After.Args))
			}
			seen := func(state string, t idem.Transition) idem.Call {
				w.t.Helper()
				var saw []byte
				ch := w.update(r.Key, func(cur *idem.Call) (idem.Change, error) {
					saw = bytes.Clone(cur.Args)
					return t(cur)
				})
				if !bytes.Equal(saw, args) || !bytes.Equal(ch.After.Args, args) {
					w.fatalf("%d bytes of args, %s: the transition saw %s, the change has %s", len(args), state, showBytes(saw), showBytes(ch.After.Args))
				}
				return *ch.After
			}
			c := seen("pending", w.claim(toolRerun, "boot/w1", anHour, idem.Lease{}))
			seen("running", idem.Fail(w.under(c), idem.Failure{Code: "busy", Retryable: true}))
			seen("failed and retryable", w.submit(r))
			c = seen("pending again", w.claim(toolRerun, "boot/w1", anHour, idem.Lease{}))
			w.stored(c) // which looks at every read by id and key
		}
		calls, err := allCalls(w.ctx, w.s, idem.DefaultNamespace, idem.Query{Limit: pageSize})
		if err != nil {
			w.fatalf("%v", err)
		}
		for i := range calls {
			if calls[i].Args != nil {
				w.fatalf("the list shows args: %s", showCall(&calls[i]))
			}
		}
	}},

	{name: "client id and seq: none is not empty and not 0", run: func(w *world) {
		clients := []*string{nil, ptr(""), ptr("agent-7"), ptr("ü\x00\n\U0001f600"), ptr(strings.Repeat("c", 1000))}
		seqs := []*int64{nil, ptr(int64(0)), ptr(int64(1)), ptr(int64(-1)), ptr(int64(math.MinInt64)), ptr(int64(math.MaxInt64))}
		for i, client := range clients {
			for j, seq := range seqs {
				r := request(key(fmt.Sprint(i, "/", j)))
				r.ClientID, r.Seq = client, seq
				c := w.expect(idem.VerdictCreated, r.Key, w.submit(r))
				w.stored(c)
				w.stored(w.succeed(w.run(r.Key, anHour), `1`))
			}
		}
	}},

	{name: "results and amounts", run: func(w *world) { // R3, R7
		outputs := [][]byte{
			nil, []byte(`null`), []byte(`{}`), []byte(`[]`), []byte(`""`), []byte("{ \"b\" : 1.10,\n\"a\": 1e0 }"),
			[]byte(`{"s":"\u0000é"}`), []byte(`"` + strings.Repeat("x", 1<<20) + `"`),
		}
		amounts := []*int64{nil, ptr(int64(0)), ptr(int64(1)), ptr(int64(-1)), ptr(int64(math.MaxInt64)), ptr(int64(math.MinInt64))}
		for i := range max(len(outputs), len(amounts)) {
			r := idem.Result{Output: outputs[i%len(outputs)], Amount: amounts[i%len(amounts)]}
			c := w.running(keyIn("other", fmt.Sprint(i)))
			ch := w.update(c.Key, idem.Succeed(w.under(c), r))
			w.stored(*ch.After)
			effects := w.effects("other")
			if got := effects[len(effects)-1]; len(effects) != i+1 || showEffect(&got) != showEffect(ch.Effect) {
				w.fatalf("%d effects, the last is %s, want %s", len(effects), showEffect(&got), showEffect(ch.Effect))
			}
		}
	}},

	{name: "failures", run: func(w *world) {
		for i, f := range []idem.Failure{
			{Code: "tool_failed", Message: "no such order"},
			{Code: "tool_failed", Message: "busy", Retryable: true},
			{Code: "x"},
			{Code: "odd", Message: "\x00 \" \\ é \u2028 <&>"},
			{Code: "long", Message: strings.Repeat("m", 64<<10), Retryable: true},
		} {
			c := w.running(key(fmt.Sprint("failed", i)))
			w.stored(w.expect(idem.VerdictSettled, c.Key, idem.Fail(w.under(c), f)))
			c = w.running(key(fmt.Sprint("held", i)))
			w.stored(w.expect(idem.VerdictSettled, c.Key, idem.Hold(w.under(c), f)))
		}
	}},

	{name: "numbers and promises", run: func(w *world) {
		for i, tool := range []*idem.Tool{toolNone, toolLocal, toolRerun, toolVerify, toolHold} {
			k := key(tool.Name)
			r := request(k)
			r.Tool = tool.Name
			w.expect(idem.VerdictCreated, k, w.submit(r))
			owner := idem.Owner("boot-äß", strings.Repeat("w", i*100+1))
			c := w.expect(idem.VerdictClaimed, k, w.claim(tool, owner, anHour, idem.Lease{}))
			w.stored(c)
			// Larger than any byte or 32-bit number keeps.
			s := w.under(c)
			s.Deliveries = math.MaxInt64 - 1
			c = w.expect(idem.VerdictSettled, k, idem.Hold(s, idem.Failure{Code: "lost"}))
			if c.Deliveries != math.MaxInt64 {
				w.fatalf("%d deliveries", c.Deliveries)
			}
			w.stored(c)
		}
		c := w.create(key("many"))
		w.stored(w.lawless(c, func(c *idem.Call) { c.Revision, c.Attempt, c.Crashes = math.MaxInt32, math.MaxInt32, 70_000 }))
	}, lawless: true},

	{name: "times", run: func(w *world) {
		k := key("k")
		base := w.now.Truncate(time.Second)
		adm := w.admission(k)
		adm.CreatedAt = adm.Now.Truncate(time.Second).Add(123456 * time.Microsecond)
		c := w.expect(idem.VerdictCreated, k, idem.Submit(request(k), adm))
		if got := w.byKey(k); !got.CreatedAt.Equal(adm.CreatedAt) {
			w.fatalf("created at %v, want %v to the microsecond", got.CreatedAt, adm.CreatedAt)
		}
		zone := time.FixedZone("far", 13*3600+1800)
		at := func(ms int64) time.Time { return base.Add(time.Duration(ms) * time.Millisecond).In(zone) }
		c = w.lawless(c, func(c *idem.Call) {
			c.Status, c.Attempt = idem.StatusFailed, 1
			c.Failure = &idem.Failure{Code: "x"}
			c.UpdatedAt, c.ClaimedAt, c.EndedAt, c.ExpiresAt = at(1), at(222), at(333), at(100*365*24*3600*1000+999)
		})
		w.stored(c) // the same instants, whatever their zone
		for _, e := range w.events(c) {
			if e.Seq > 0 && !e.At.Equal(c.UpdatedAt) {
				w.fatalf("event %s, want %v", showEvent(e), c.UpdatedAt)
			}
		}
		// No time is no time, not one long ago.
		w.stored(w.lawless(c, func(c *idem.Call) {
			c.Status, c.Failure = idem.StatusPending, nil
			c.ClaimedAt, c.EndedAt, c.ExpiresAt = time.Time{}, time.Time{}, time.Time{}
		}))
	}, lawless: true},

	{name: "while running the end of the lease is shown, later not", run: func(w *world) {
		c := w.running(key("k"))
		if c.LeaseUntil.IsZero() {
			w.fatalf("the change shows no lease: %s", showCall(&c))
		}
		if got := w.byKey(c.Key); got.LeaseUntil.IsZero() || got.Owner != c.Owner {
			w.fatalf("running: %s", showCall(&got))
		}
		w.succeed(c, `1`)
		if got := w.byKey(c.Key); !got.LeaseUntil.IsZero() || got.Owner != "" {
			w.fatalf("ended: %s", showCall(&got))
		}
	}},

	{name: "details of events", run: func(w *world) {
		k := key("k")
		c := w.hold(w.running(k))
		note := "asked them; they said \"no\" \x00 é \u2028"
		ch := w.update(k, idem.Resolve(idem.Resolution{
			Terms: w.terms(), Outcome: idem.OutcomeFailed, By: "anna", Note: note, Failure: idem.Failure{Code: "not_done", Message: "never arrived"},
		}))
		events := w.events(c)
		last, want := events[len(events)-1], ch.Events[0]
		want.Seq = 3
		if g, s := showEvent(last), showEvent(want); g != s {
			w.fatalf("event\n%s\nwant\n%s", g, s)
		}
		if events[0].Detail != nil {
			w.fatalf("no detail came back as %q", events[0].Detail)
		}
	}},

	{name: "a tombstone keeps what refuses its key, and nothing more", run: func(w *world) { // R16
		k := key("k")
		r := request(k)
		r.ClientID, r.Seq = ptr("me"), ptr(int64(1))
		created := w.expect(idem.VerdictCreated, k, w.submit(r))
		c := w.succeed(w.run(k, anHour), `{"secret":1}`)
		tomb := w.expect(idem.VerdictExpired, k, idem.Expire(c.ExpiresAt))
		w.stored(tomb)
		got := w.byKey(k)
		if !got.Tombstone || got.Status != idem.StatusSucceeded || got.ID != created.ID || got.Fingerprint != r.Fingerprint || got.Result != nil || got.ClientID != nil {
			w.fatalf("%s", showCall(&got))
		}
		w.update(k, func(cur *idem.Call) (idem.Change, error) {
			if cur != nil && len(cur.Args) > 0 {
				return idem.Change{}, fmt.Errorf("the args outlived the window: %s", showBytes(cur.Args))
			}
			return idem.Change{Before: cur, After: cur}, nil
		})
		before := w.image()
		if _, err := w.s.Update(w.ctx, k, w.submit(r)); !errors.Is(err, idem.ErrKeyExpired) {
			w.fatalf("asked for again: %v", err)
		}
		w.untouched("a refusal", before)
		if got := names(w.events(c)); got != "[created claimed succeeded expired]" {
			w.fatalf("events %s", got)
		}
		if len(w.effects(k.Namespace)) != 1 {
			w.fatalf("the ledger forgot an effect with the window of its call")
		}
	}},
}

// lawless changes a record as no rule would: a store keeps what it is given.
func (w *world) lawless(c idem.Call, change func(*idem.Call)) idem.Call {
	w.t.Helper()
	at := w.tick()
	return *w.update(c.Key, func(cur *idem.Call) (idem.Change, error) {
		c := *cur
		c.UpdatedAt = at
		change(&c)
		return idem.Change{
			Before: cur, After: &c, Write: true,
			Events: []idem.Event{{At: c.UpdatedAt, Name: idem.EventResolved}},
		}, nil
	}).After
}
