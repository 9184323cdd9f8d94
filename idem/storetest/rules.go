package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
)

// Rules are kept for as long as there are calls, and that is for good (R3).
var rulesCases = []testCase{
	{name: "an empty store has none", run: func(w *world) {
		w.wantRules()
	}},

	{name: "what is saved comes back, in the order of ids", run: func(w *world) {
		var want []*idem.Rules
		for i := range 20 {
			r := someRules(i)
			w.save(r)
			want = append(want, r)
			w.wantRules(want...)
		}
		large := &idem.Rules{}
		for i := range 64 {
			large.NFC = append(large.NFC, fmt.Sprintf("/%d%s", i, strings.Repeat("é", 500)))
		}
		odd := &idem.Rules{Ignore: []string{"/~0~1 \x00\"\\", "/"}, Trim: []string{"/0/-"}}
		w.save(large)
		w.save(odd)
		w.wantRules(append(want, large, odd)...)
	}},

	{name: "saved again, they are there once, whatever the order of their pointers", run: func(w *world) {
		r := &idem.Rules{Ignore: []string{"/a", "/b"}, Trim: []string{"/c"}}
		w.save(r)
		before := w.image()
		w.save(r)
		w.save(&idem.Rules{Ignore: []string{"/b", "/a"}, Trim: []string{"/c"}})
		w.untouched("saving again", before)
		w.wantRules(r)
	}},

	{name: "rules that say nothing are refused", run: func(w *world) {
		w.save(someRules(1))
		before := w.image()
		for _, r := range []*idem.Rules{nil, {}, {Ignore: []string{}}} {
			if err := w.s.SaveRules(w.ctx, r); !errors.Is(err, idem.ErrNoRules) {
				w.fatalf("%+v: %v", r, err)
			}
		}
		w.untouched("a refusal", before)
	}},

	{name: "rules with a fault are refused", run: func(w *world) {
		before := w.image()
		for _, r := range []*idem.Rules{
			{Ignore: []string{""}}, {Trim: []string{"a"}}, {NFC: []string{"/a", "/a"}}, {Ignore: []string{"/a"}, Trim: []string{"/a/b"}},
		} {
			if err := w.s.SaveRules(w.ctx, r); err == nil || errors.Is(err, idem.ErrNoRules) {
				w.fatalf("%+v: %v", r, err)
			}
		}
		w.untouched("a refusal", before)
	}},

	{name: "the caller's rules are its own, and so are those that are read", run: func(w *world) {
		r := &idem.Rules{Ignore: []string{"/a", "/b"}}
		w.save(r)
		r.Ignore[0] = "/changed"
		want := &idem.Rules{Ignore: []string{"/a", "/b"}}
		w.wantRules(want)
		all, err := w.s.Rules(w.ctx)
		if err != nil {
			w.fatalf("%v", err)
		}
		all[0].Ignore[0], all[0].Trim = "/changed", []string{"/t"}
		w.wantRules(want)
	}},

	{name: "a context that has ended saves and reads nothing", run: func(w *world) {
		ctx, cancel := context.WithCancel(w.ctx)
		cancel()
		if err := w.s.SaveRules(ctx, someRules(1)); !errors.Is(err, context.Canceled) {
			w.fatalf("%v", err)
		}
		if all, err := w.s.Rules(ctx); !errors.Is(err, context.Canceled) {
			w.fatalf("%v, %v", all, err)
		}
		w.wantRules()
	}},

	{name: "saved by many at one moment, each is there once", run: func(w *world) {
		const n, different = 32, 5
		race(n, func(i int) {
			r := someRules(i % different)
			if err := w.s.SaveRules(w.ctx, r); err != nil {
				w.t.Errorf("%v", err)
			}
			// What this one saved is there, whoever was first.
			all, err := w.s.Rules(w.ctx)
			if err != nil || !slices.ContainsFunc(all, func(o *idem.Rules) bool { return o.ID() == r.ID() }) {
				w.t.Errorf("saved and not there: %v, %v", all, err)
			}
		})
		var want []*idem.Rules
		for i := range different {
			want = append(want, someRules(i))
		}
		w.wantRules(want...)
	}},

	{name: "a call keeps its rules in every state, and as a tombstone", run: func(w *world) { // R3, R16
		rules := someRules(1)
		w.save(rules)
		for _, ns := range namespaces {
			r := request(keyIn(ns, "k"))
			r.Rules = rules.ID()
			c := w.expect(idem.VerdictCreated, r.Key, w.submit(r))
			if c.Rules != r.Rules {
				w.fatalf("created with the rules %v", c.Rules)
			}
			w.stored(c)
			w.stored(w.run(r.Key, anHour))
			w.stored(w.hold(w.byKey(r.Key)))
			c = w.expect(idem.VerdictResolved, r.Key, idem.Resolve(idem.Resolution{
				Terms: w.terms(), Outcome: idem.OutcomeFailed, Failure: idem.Failure{Code: "busy", Retryable: true},
			}))
			w.stored(c)
			w.stored(w.expect(idem.VerdictRequeued, r.Key, w.submit(r)))
			c = w.succeed(w.run(r.Key, anHour), `1`)
			w.stored(c)
			c = w.expect(idem.VerdictExpired, r.Key, idem.Expire(c.ExpiresAt))
			w.stored(c)
			if c.Rules != r.Rules {
				w.fatalf("the tombstone has the rules %v", c.Rules)
			}
		}
	}},

	{name: "other rules for a call that is there are refused", run: func(w *world) { // R3
		for _, c := range []idem.Call{w.create(key("pending")), w.running(key("running"))} {
			before := w.image()
			_, err := w.s.Update(w.ctx, c.Key, func(cur *idem.Call) (idem.Change, error) {
				c := *cur
				c.Rules = someRules(1).ID()
				return idem.Change{Before: cur, After: &c, Write: true}, nil
			})
			if err == nil {
				w.fatalf("it was written")
			}
			w.untouched("a refusal", before)
		}
	}},
}

// rulesReopenCases are what the next life finds of them.
var rulesReopenCases = []testCase{
	{name: "rules are all there, and a call is compared under its own", run: func(w *world) { // R3, R4
		var want []*idem.Rules
		for i := range 10 {
			want = append(want, someRules(i))
			w.save(want[i])
		}
		r := request(key("k"))
		r.Rules = want[3].ID()
		w.expect(idem.VerdictCreated, r.Key, w.submit(r))
		w.create(key("without"))
		for range 2 {
			w.reopen()
			w.wantRules(want...)
			before := w.image()
			w.save(want[5])
			w.untouched("saving again", before)
			w.expect(idem.VerdictJoined, r.Key, w.submit(r))
			// Its tool has other rules by now, and the fingerprint under them says
			// nothing.
			now := r
			now.Rules, now.Fingerprint = want[4].ID(), fingerprint("now")
			now.Under = func(id idem.RulesID) (idem.Fingerprint, error) {
				if id == want[3].ID() {
					return fingerprint("same"), nil
				}
				return idem.Fingerprint{}, idem.ErrUnknownRules
			}
			w.expect(idem.VerdictJoined, r.Key, w.submit(now))
			now.Key = key("without")
			if _, err := w.s.Update(w.ctx, now.Key, w.submit(now)); !errors.Is(err, idem.ErrUnknownRules) {
				w.fatalf("%v", err)
			}
		}
		w.save(someRules(10))
		w.wantRules(append(want, someRules(10))...)
	}},
}

// doubtCases: what is written of doubt and of pauses comes back.
var doubtCases = []testCase{
	{name: "pauses after a failure", run: func(w *world) {
		for i, d := range []time.Duration{0, time.Second, time.Minute, 255 * time.Second, 256 * time.Second, 24 * time.Hour, idem.MaxRetryAfter} {
			f := idem.Failure{Code: "busy", Message: "later", Retryable: i%2 == 0, RetryAfter: d}
			c := w.running(key(fmt.Sprint("failed", i)))
			w.stored(w.expect(idem.VerdictSettled, c.Key, idem.Fail(w.under(c), f)))
			c = w.running(key(fmt.Sprint("held", i)))
			c = w.expect(idem.VerdictSettled, c.Key, idem.Hold(w.under(c), f))
			if c.Failure.RetryAfter != d {
				w.fatalf("held with %+v", c.Failure)
			}
			w.stored(c)
		}
	}},

	{name: "pauses that no record can hold are refused", run: func(w *world) {
		c := w.running(key("k"))
		before := w.image()
		for _, d := range []time.Duration{-time.Second, -1, 1, time.Second + 1, 1500 * time.Millisecond, idem.MaxRetryAfter + time.Second, 1<<63 - 1} {
			f := idem.Failure{Code: "busy", RetryAfter: d}
			if ch, err := w.s.Update(w.ctx, c.Key, idem.Fail(w.under(c), f)); err == nil {
				w.fatalf("%v was written: %s", d, showCall(ch.After))
			}
			w.untouched("a refusal", before)
		}
		w.fail(c, true)
	}},

	{name: "doubt in every state", run: func(w *world) {
		c := w.running(key("k"))
		at := c.ClaimedAt
		for _, change := range []func(c *idem.Call){
			func(*idem.Call) {},
			func(c *idem.Call) { c.Owner, c.Status, c.Failure = "", idem.StatusHeld, &idem.Failure{Code: "lost"} },
			func(c *idem.Call) {
				c.Status, c.Failure, c.EndedAt, c.ExpiresAt = idem.StatusFailed, &idem.Failure{Code: "busy", Retryable: true, RetryAfter: time.Minute}, at, at
			},
			func(c *idem.Call) { c.Tombstone, c.Failure = true, nil },
			func(c *idem.Call) {
				c.Tombstone, c.Status, c.EndedAt, c.ExpiresAt = false, idem.StatusPending, time.Time{}, time.Time{}
			},
		} {
			for _, doubt := range []bool{true, false, true} {
				c = w.lawless(c, func(c *idem.Call) {
					change(c)
					c.InDoubt = doubt
					if c.Status != idem.StatusRunning {
						c.LeaseUntil = time.Time{}
					}
					if c.Tombstone {
						c.Args, c.ClientID, c.Seq = nil, nil, nil
					}
				})
				w.stored(c)
			}
		}
	}, lawless: true},
}

// someRules are the i-th of rules that all differ.
func someRules(i int) *idem.Rules {
	return &idem.Rules{Ignore: []string{fmt.Sprintf("/memo%d", i)}, Trim: []string{"/order"}, NFC: []string{"/order"}}
}

func (w *world) save(r *idem.Rules) {
	w.t.Helper()
	if err := w.s.SaveRules(w.ctx, r); err != nil {
		w.fatalf("saving rules %v: %v", r.ID(), err)
	}
}

// wantRules compares what is saved with what must be, in the order of ids.
func (w *world) wantRules(want ...*idem.Rules) {
	w.t.Helper()
	all, err := w.s.Rules(w.ctx)
	if err != nil {
		w.fatalf("rules: %v", err)
	}
	want = slices.SortedFunc(slices.Values(want), func(a, b *idem.Rules) int {
		x, y := a.ID(), b.ID()
		return bytes.Compare(x[:], y[:])
	})
	show := func(all []*idem.Rules) string {
		var b strings.Builder
		for _, r := range all {
			fmt.Fprintf(&b, "%v %s\n", r.ID(), r.Text())
		}
		return b.String()
	}
	if g, s := show(all), show(want); g != s {
		w.fatalf("saved are\n%swant\n%s", g, s)
	}
}
