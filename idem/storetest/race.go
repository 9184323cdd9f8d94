package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/idemd/idemd/idem"
)

// Many at one moment. The cases are worth most under the race detector.
var raceCases = []testCase{
	{name: "64 submits of one key: one call, and all are told its id", run: func(w *world) { // R2
		const n = 64
		k := key("k")
		submits := make([]idem.Transition, n)
		for i := range submits {
			submits[i] = w.submit(request(k))
		}
		var created, joined atomic.Int64
		told := make([]idem.CallID, n)
		race(n, func(i int) {
			ch, err := w.s.Update(w.ctx, k, submits[i])
			if err != nil {
				w.t.Errorf("submit %d: %v", i, err)
				return
			}
			told[i] = ch.After.ID
			switch ch.Verdict {
			case idem.VerdictCreated:
				created.Add(1)
			case idem.VerdictJoined:
				joined.Add(1)
			default:
				w.t.Errorf("submit %d: %v", i, ch.Verdict)
			}
		})
		if created.Load() != 1 || joined.Load() != n-1 {
			w.fatalf("%d created, %d joined", created.Load(), joined.Load())
		}
		c := w.byKey(k)
		for i, id := range told {
			if id != c.ID {
				w.fatalf("submit %d was told %v, the call is %v", i, id, c.ID)
			}
		}
		if t := w.totals(); t.Calls != 1 {
			w.fatalf("totals %+v", t)
		}
	}},

	{name: "200 keys, 8 submits each: 200 calls", run: func(w *world) { // R2
		const keys, each = 200, 8
		submits := make([][each]idem.Transition, keys)
		for i := range submits {
			for j := range each {
				submits[i][j] = w.submit(request(key(fmt.Sprint("k", i))))
			}
		}
		var created atomic.Int64
		told := make([][each]idem.CallID, keys)
		race(each, func(j int) {
			for n := range keys {
				// Every other goroutine goes backwards, so that they meet.
				i := n
				if j%2 == 1 {
					i = keys - 1 - n
				}
				ch, err := w.s.Update(w.ctx, key(fmt.Sprint("k", i)), submits[i][j])
				if err != nil {
					w.t.Errorf("key %d: %v", i, err)
					return
				}
				told[i][j] = ch.After.ID
				if ch.Verdict == idem.VerdictCreated {
					created.Add(1)
				}
			}
		})
		if created.Load() != keys || w.totals().Calls != keys {
			w.fatalf("%d created, totals %+v", created.Load(), w.totals())
		}
		for i := range told {
			for j := range each {
				if told[i][j] != told[i][0] {
					w.fatalf("key %d has two ids: %v, %v", i, told[i][0], told[i][j])
				}
			}
		}
	}},

	{name: "transitions of one key are one after the other", run: func(w *world) { // R2
		const workers, each = 16, 25
		c := w.create(key("k"))
		seen := make([][]int64, workers)
		race(workers, func(i int) {
			for range each {
				ch, err := w.s.Update(w.ctx, c.Key, count)
				if err != nil {
					w.t.Errorf("worker %d: %v", i, err)
					return
				}
				seen[i] = append(seen[i], ch.After.Deliveries)
			}
		})
		if got := w.byKey(c.Key); got.Deliveries != 1+workers*each {
			w.fatalf("counted to %d, want %d", got.Deliveries, 1+workers*each)
		}
		numbers := make(map[int64]bool)
		for i := range seen {
			for j, n := range seen[i] {
				if numbers[n] || j > 0 && n <= seen[i][j-1] {
					w.fatalf("worker %d got %v; %d was given before", i, seen[i], n)
				}
				numbers[n] = true
			}
		}
		events := w.events(c)
		if len(events) != 1+workers*each {
			w.fatalf("%d events", len(events))
		}
		for i, e := range events[1:] {
			if want := fmt.Sprintf(`{"note":"%d"}`, i+2); e.Seq != i+1 || string(e.Detail) != want {
				w.fatalf("event %s, want number %d and %s", showEvent(e), i+1, want)
			}
		}
	}, lawless: true},

	{name: "many claims of one call: one lease", run: func(w *world) { // R6
		const n = 16
		c := w.create(key("k"))
		for round := range 5 {
			claims := make([]idem.Transition, n)
			for i := range claims {
				claims[i] = w.claim(toolRerun, fmt.Sprint("boot/w", i), over, idem.LeaseOf(&c))
			}
			var won atomic.Int64
			race(n, func(i int) {
				ch, err := w.s.Update(w.ctx, c.Key, claims[i])
				switch {
				case err != nil:
					w.t.Errorf("worker %d: %v", i, err)
				case ch.Verdict == idem.VerdictClaimed:
					won.Add(1)
				case ch.Verdict != idem.VerdictStale:
					w.t.Errorf("worker %d: %v", i, ch.Verdict)
				}
			})
			if won.Load() != 1 {
				w.fatalf("round %d: %d workers have the call", round, won.Load())
			}
			c = w.byKey(c.Key)
			if c.Attempt != round+1 {
				w.fatalf("round %d: attempt %d", round, c.Attempt)
			}
		}
	}},

	{name: "a settle against a take-over: one of them, with one effect", run: func(w *world) { // R6, R7, R8
		for round := range 20 {
			k := key(fmt.Sprint("k", round))
			w.create(k)
			c := w.run(k, over)
			t := []idem.Transition{
				idem.Succeed(w.under(c), idem.Result{Output: []byte(`"first"`)}),
				w.claim(toolRerun, "boot/w2", anHour, idem.LeaseOf(&c)),
			}
			verdicts := make([]idem.Verdict, len(t))
			race(len(t), func(i int) {
				ch, err := w.s.Update(w.ctx, k, t[i])
				if err != nil {
					w.t.Errorf("%v", err)
				}
				verdicts[i] = ch.Verdict
			})
			c = w.byKey(k)
			switch {
			case verdicts[0] == idem.VerdictSettled && verdicts[1] == idem.VerdictStale && c.Status == idem.StatusSucceeded:
			case verdicts[0] == idem.VerdictStale && verdicts[1] == idem.VerdictClaimed && c.Status == idem.StatusRunning:
				w.succeed(c, `"second"`)
			default:
				w.fatalf("verdicts %v, then %s", verdicts, showCall(&c))
			}
			if e := w.effects(k.Namespace); len(e) != round+1 {
				w.fatalf("round %d: %d effects", round, len(e))
			}
		}
	}},

	{name: "readers see whole records, and never an older one again", run: func(w *world) { // R4
		const rounds = 100
		k := key("k")
		c := w.create(k)
		done := make(chan struct{})
		var readers sync.WaitGroup
		reads := map[string]func() (idem.Call, error){
			"CallByKey": func() (idem.Call, error) { return w.s.CallByKey(w.ctx, k) },
			"CallByID":  func() (idem.Call, error) { return w.s.CallByID(w.ctx, k.Namespace, c.ID) },
			"List": func() (idem.Call, error) {
				calls, _, err := w.s.List(w.ctx, k.Namespace, idem.Query{Limit: 1})
				if err != nil || len(calls) != 1 {
					return idem.Call{}, fmt.Errorf("%d calls, %w", len(calls), err)
				}
				return calls[0], nil
			},
			"Update": func() (idem.Call, error) {
				ch, err := w.s.Update(w.ctx, k, func(cur *idem.Call) (idem.Change, error) { return idem.Change{Before: cur, After: cur}, nil })
				if err != nil {
					return idem.Call{}, err
				}
				return *ch.After, nil
			},
		}
		for name, read := range reads {
			readers.Go(func() {
				last := int64(0)
				for {
					select {
					case <-done:
						return
					default:
					}
					c, err := read()
					if err != nil {
						w.t.Errorf("%s: %v", name, err)
						return
					}
					if c.Deliveries < last {
						w.t.Errorf("%s: %d after %d", name, c.Deliveries, last)
						return
					}
					last = c.Deliveries
					if last > 1 && string(c.Result) != fmt.Sprint(last) {
						w.t.Errorf("%s: half a record: %s", name, showCall(&c))
						return
					}
					// What was read is written, so its event is there.
					events, err := w.s.Events(w.ctx, k.Namespace, c.ID, int(last)-1, 1)
					if err != nil || len(events) != 1 {
						w.t.Errorf("%s: event %d of a record that was read: %v, %v", name, last-1, events, err)
						return
					}
				}
			})
		}
		for range rounds {
			w.update(k, count)
		}
		close(done)
		readers.Wait()
	}, lawless: true},

	{name: "an end is seen with its effect", run: func(w *world) { // R7
		const n = 40
		var calls []idem.Call
		for i := range n {
			calls = append(calls, w.running(key(fmt.Sprint("k", i))))
		}
		done := make(chan struct{})
		var readers sync.WaitGroup
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				c, err := w.s.CallByKey(w.ctx, calls[i%n].Key)
				if err != nil {
					w.t.Errorf("%v", err)
					return
				}
				if c.Status != idem.StatusSucceeded {
					continue
				}
				before := c.ID
				before[15]-- // no other call has an id in between
				effects, err := w.s.Effects(w.ctx, c.Key.Namespace, before, 1)
				if err != nil || len(effects) != 1 || effects[0].CallID != c.ID {
					w.t.Errorf("call %v has succeeded, its effect is %v, %v", c.ID, effects, err)
					return
				}
			}
		})
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				effects, err := w.s.Effects(w.ctx, idem.DefaultNamespace, idem.CallID{}, n)
				if err != nil {
					w.t.Errorf("%v", err)
					return
				}
				for _, e := range effects {
					if c, err := w.s.CallByID(w.ctx, e.Key.Namespace, e.CallID); err != nil || c.Status != idem.StatusSucceeded {
						w.t.Errorf("effect %s of a call that is %s, %v", e.ID, c.Status, err)
						return
					}
				}
			}
		})
		for _, c := range calls {
			w.succeed(c, `1`)
		}
		close(done)
		readers.Wait()
	}},

	{name: "contexts that end while many wait: what was answered is there, and nothing is half", run: func(w *world) {
		const n, keys = 64, 4
		submits := make([]idem.Transition, n)
		name := func(i int) idem.Key { return key(fmt.Sprint("k", i%keys)) }
		for i := range submits {
			submits[i] = w.submit(request(name(i)))
		}
		var answered [keys]atomic.Bool
		race(n, func(i int) {
			ctx, cancel := context.WithCancel(w.ctx)
			defer cancel()
			go func() {
				if i%3 > 0 {
					cancel()
				}
			}()
			switch _, err := w.s.Update(ctx, name(i), submits[i]); {
			case err == nil:
				answered[i%keys].Store(true)
			case !errors.Is(err, context.Canceled):
				w.t.Errorf("submit %d: %v", i, err)
			}
		})
		for i := range keys {
			ch := w.update(name(i), w.submit(request(name(i))))
			if answered[i].Load() && ch.Verdict != idem.VerdictJoined {
				w.fatalf("key %d was answered, and now is %v", i, ch.Verdict)
			}
		}
	}},

	{name: "all kinds of work at once", run: func(w *world) {
		// The law and Check at the end are the judges; here is only the noise.
		const workers, each, keys = 8, 30, 5
		type step struct {
			k idem.Key
			t func(c *idem.Call) idem.Transition
		}
		plan := make([][each]step, workers)
		for i := range plan {
			for j := range each {
				n := (i*31 + j*17) % 97
				k := keyIn(namespaces[n%2], fmt.Sprint("k", n%keys))
				submit, terms := w.submit(request(k)), w.terms()
				owner := idem.Owner("boot", fmt.Sprint("w", i))
				plan[i][j] = step{k, func(c *idem.Call) idem.Transition {
					s := idem.Settlement{Terms: terms}
					if c != nil {
						s.Lease = idem.LeaseOf(c)
					}
					switch n % 7 {
					case 0, 1:
						return submit
					case 2, 3:
						return idem.Claim(idem.ClaimTerms{Terms: terms, Owner: owner, MaxCrashes: 3, Tool: toolRerun, From: s.Lease})
					case 4:
						return idem.Fail(s, idem.Failure{Code: "busy", Retryable: true})
					case 5:
						return idem.Release(s)
					default:
						return idem.Succeed(s, idem.Result{Amount: ptr(int64(1))})
					}
				}}
			}
		}
		race(workers, func(i int) {
			for _, s := range plan[i] {
				var found *idem.Call
				if c, err := w.s.CallByKey(w.ctx, s.k); err == nil {
					found = &c
				} else if !errors.Is(err, idem.ErrNotFound) {
					w.t.Errorf("%v", err)
				}
				if _, err := w.s.Update(w.ctx, s.k, s.t(found)); err != nil {
					w.t.Errorf("%v: %v", s.k, err)
				}
				if _, err := w.s.Due(w.ctx, 3); err != nil {
					w.t.Errorf("due: %v", err)
				}
			}
		})
	}},
}

// count is no rule: it counts in a record, and says in result and trail how far
// it came, so that a lost or a half update shows.
func count(cur *idem.Call) (idem.Change, error) {
	c := *cur
	c.Deliveries++
	c.Result = fmt.Append(nil, c.Deliveries)
	return idem.Change{
		Before: cur, After: &c, Write: true,
		Events: []idem.Event{{At: c.UpdatedAt, Name: idem.EventStaleResult, Detail: fmt.Appendf(nil, `{"note":"%d"}`, c.Deliveries)}},
	}, nil
}
