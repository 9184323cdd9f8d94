package storetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

func TestModel(t *testing.T) {
	for name, exclusive := range map[string]bool{"exclusive": true, "shared": false} {
		t.Run(name, func(t *testing.T) {
			Run(t, Options{
				New:       func(*testing.T) idem.Store { return NewModel(ModelOptions{Exclusive: exclusive}) },
				Reopen:    reopenModel,
				Exclusive: exclusive,
			})
		})
	}
}

func reopenModel(t *testing.T, s idem.Store) idem.Store {
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s.(*Model).Open()
}

// onModel is a world on a Model, for what the suite does not ask of a store.
func onModel(t *testing.T, m *Model) *world {
	return newWorld(t, Options{New: func(*testing.T) idem.Store { return m }, Reopen: reopenModel, Exclusive: m.d.exclusive}, true)
}

// R6, R17: a lease ends by the monotonic clock, to the moment, and a renewal
// moves that.
func TestModelLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := onModel(t, NewModel(ModelOptions{}))
		k := key("k")
		w.create(k)
		c := w.run(k, 30*time.Second)
		time.Sleep(30*time.Second - time.Nanosecond)
		w.wantDue()
		w.renew(k, idem.LeaseOf(&c), 10*time.Second)
		if got := w.byKey(k).LeaseUntil; !got.Equal(time.Now().Add(10 * time.Second).Truncate(time.Microsecond)) {
			t.Errorf("lease until %v", got)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		w.wantDue()
		time.Sleep(time.Nanosecond)
		w.wantDue("k")
		w.succeed(c, `1`) // nobody took it
		w.wantDue()
	})
}

// R11: exclusive data have one owner; the next one ends the life before.
func TestModelExclusiveLife(t *testing.T) {
	first := NewModel(ModelOptions{Exclusive: true})
	w := onModel(t, first)
	c := w.running(key("running"))
	w.create(key("pending"))
	w.s = first.Open() // not closed before: killed
	if _, err := first.Update(w.ctx, c.Key, idem.Succeed(w.under(c), idem.Result{})); !errors.Is(err, ErrGone) {
		t.Errorf("the dead settle: %v", err)
	}
	if err := first.Renew(w.ctx, c.Key, idem.LeaseOf(&c), anHour); !errors.Is(err, ErrGone) {
		t.Errorf("the dead renew: %v", err)
	}
	if err := first.Ready(); !errors.Is(err, ErrGone) {
		t.Errorf("the dead are ready: %v", err)
	}
	w.wantRecovered("running", "pending")
	if err := first.Check(); err != nil { // a check is nobody's life
		t.Error(err)
	}
}

// R11: shared data have many owners, and each lease goes on for whoever has it.
func TestModelShared(t *testing.T) {
	first := NewModel(ModelOptions{})
	w := onModel(t, first)
	c := w.running(key("running"))
	second := first.Open()
	if due, err := second.Due(w.ctx, 0); err != nil || len(due) != 0 {
		t.Errorf("due %v, %v", due, err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Totals(w.ctx); !errors.Is(err, ErrGone) {
		t.Errorf("the closed handle counts: %v", err)
	}
	w.succeed(c, `1`)
}

// There is a bound to what is saved, and at the bound nothing is lost.
func TestModelTooManyRules(t *testing.T) {
	m := NewModel(ModelOptions{})
	w := onModel(t, m)
	for i := range idem.MaxSavedRules - 1 {
		m.d.rules[idem.RulesID{1, byte(i), byte(i >> 8)}] = someRules(1).Text()
	}
	w.save(someRules(2))
	if err := w.s.SaveRules(w.ctx, someRules(3)); !errors.Is(err, idem.ErrTooManyRules) {
		t.Errorf("%v", err)
	}
	w.save(someRules(2)) // they are saved
	for id := range m.d.rules {
		if id != someRules(2).ID() {
			delete(m.d.rules, id)
		}
	}
	w.wantRules(someRules(2))
}

// A transition that is not a pure function, or writes to the record that it was
// given, would work here and break on a store that runs it again.
func TestModelFindsImpureTransitions(t *testing.T) {
	for name, impure := range map[string]func() idem.Transition{
		"counts its runs": func() idem.Transition {
			n := int64(0)
			return func(cur *idem.Call) (idem.Change, error) {
				n++
				c := *cur
				c.Deliveries += n
				return idem.Change{Before: cur, After: &c, Write: true}, nil
			}
		},
		"fails every other time": func() idem.Transition {
			n := 0
			return func(cur *idem.Call) (idem.Change, error) {
				if n++; n%2 == 0 {
					return idem.Change{Before: cur, After: cur}, errors.New("even")
				}
				return idem.Change{Before: cur, After: cur}, nil
			}
		},
		"modifies the record": func() idem.Transition {
			return func(cur *idem.Call) (idem.Change, error) {
				cur.Tool = "another"
				return idem.Change{Before: cur, After: cur}, nil
			}
		},
		"modifies the args": func() idem.Transition {
			return func(cur *idem.Call) (idem.Change, error) {
				cur.Args[0] = 'X'
				return idem.Change{Before: cur, After: cur}, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onModel(t, NewModel(ModelOptions{}))
			c := w.create(key("k"))
			func() {
				defer func() {
					if r, _ := recover().(string); !strings.Contains(r, "the transition") {
						t.Errorf("recovered %q", r)
					}
				}()
				w.update(c.Key, impure())
			}()
			w.stored(c)
		})
	}
}

// Check must be able to fail, or it proves nothing.
func TestCheckFinds(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		do   func(w *world, c idem.Call)
	}{
		"attempt without a claim": {"attempt 2 after 1 claims", func(w *world, c idem.Call) { // R12
			w.lawless(c, func(c *idem.Call) { c.Attempt++ })
		}},
		"success without its effect": {"has an effect: false", func(w *world, c idem.Call) { // R7
			w.lawless(c, func(c *idem.Call) {
				c.Status, c.Result, c.Owner, c.LeaseUntil = idem.StatusSucceeded, []byte(`1`), "", time.Time{}
				c.EndedAt, c.ExpiresAt = w.now, w.now
			})
		}},
		"effect of a call that runs": {"has an effect: true", func(w *world, c idem.Call) { // R7
			w.update(c.Key, addEffect(effectOf(c, 1)))
		}},
		"effect by another name": {"its effect is", func(w *world, c idem.Call) { // R10
			c = w.succeed(c, `1`)
			w.s.(*Model).d.rows[c.Key].effects[0].ID = "eff_other"
		}},
		"two effects": {"two effects", func(w *world, c idem.Call) { // R8
			c = w.succeed(c, `1`)
			row := w.s.(*Model).d.rows[c.Key]
			row.effects = append(row.effects, row.effects[0])
		}},
		"totals": {"totals are", func(w *world, _ idem.Call) { w.s.(*Model).d.totals.Calls++ }},
		"a gap in the trail": {"event 1 has the number 2", func(w *world, c idem.Call) {
			w.s.(*Model).d.rows[c.Key].events[1].Seq = 2
		}},
		"a second creation": {`event 2 is "created"`, func(w *world, c idem.Call) { // R2
			w.update(c.Key, func(cur *idem.Call) (idem.Change, error) {
				return idem.Change{Before: cur, After: cur, Write: true, Events: []idem.Event{{At: c.CreatedAt, Name: idem.EventCreated}}}, nil
			})
		}},
		"held without a reason": {"has an error", func(w *world, c idem.Call) {
			w.lawless(c, func(c *idem.Call) { c.Status, c.Owner, c.LeaseUntil = idem.StatusHeld, "", time.Time{} })
		}},
		"an end that is none": {"time of its end", func(w *world, c idem.Call) {
			w.lawless(c, func(c *idem.Call) { c.EndedAt = w.now })
		}},
		"a tombstone that tells": {"more than its key", func(w *world, c idem.Call) { // R16
			c = w.succeed(c, `1`)
			w.lawless(c, func(c *idem.Call) { c.Tombstone = true })
		}},
		"an owner of what does not run": {"has an owner", func(w *world, c idem.Call) { // R6
			w.lawless(c, func(c *idem.Call) { c.Status = idem.StatusPending })
		}},
		"rules that are not saved": {"its rules", func(w *world, c idem.Call) { // R3
			w.s.(*Model).d.rows[c.Key].call.Rules = someRules(1).ID()
		}},
		"doubt of what was never tried": {"in doubt", func(w *world, c idem.Call) { // R13
			w.lawless(w.create(key("new")), func(c *idem.Call) { c.InDoubt = true })
		}},
		"a status of nobody's": {"no such status", func(w *world, c idem.Call) {
			w.lawless(c, func(c *idem.Call) { c.Status = "done" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewModel(ModelOptions{})
			w := newWorld(t, Options{New: func(*testing.T) idem.Store { return m }}, false)
			call := w.running(key("k"))
			w.create(keyIn("other", "bystander"))
			if err := m.Check(); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.do(w, call)
			if err := m.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want a word about: %s", err, c.says)
			}
		})
	}
}

func TestCheckEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Check(ctx, NewModel(ModelOptions{}), namespaces...); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
