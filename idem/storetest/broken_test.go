package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// brokenEnv makes this test binary run the suite on broken stores, which is
// meant to fail; the parent reads how.
const brokenEnv = "IDEMD_STORETEST_BROKEN"

// A suite that passes whatever it is given proves nothing: each of the stores
// in defects has one fault, and the group of the suite that is named must fail on
// it.
func TestRunFindsBrokenStores(t *testing.T) {
	if os.Getenv(brokenEnv) != "" {
		t.Skip("this is the child")
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBroken$")
	child.Env = append(os.Environ(), brokenEnv+"=1")
	out, err := child.CombinedOutput()
	if err == nil {
		t.Fatalf("the suite passed broken stores:\n%s", out)
	}
	for name, d := range defects {
		fails := "--- FAIL: TestBroken/" + strings.ReplaceAll(name, " ", "_") + "/" + d.group + " ("
		if !bytes.Contains(out, []byte(fails)) {
			t.Errorf("%s: %s did not find it", name, d.group)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

func TestBroken(t *testing.T) {
	if os.Getenv(brokenEnv) == "" {
		t.Skip("run by TestRunFindsBrokenStores")
	}
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			o := Options{
				New: func(*testing.T) idem.Store { return &broken{Model: NewModel(ModelOptions{Exclusive: true}), d: d} },
				Reopen: func(t *testing.T, s idem.Store) idem.Store {
					b := s.(*broken)
					if d.reopen != nil {
						d.reopen(b.Model)
					}
					return &broken{Model: reopenModel(t, b.Model).(*Model), d: d}
				},
				Exclusive: true,
			}
			for _, g := range groups {
				if g.name == d.group {
					t.Run(g.name, func(t *testing.T) { g.run(t, o) })
				}
			}
		})
	}
}

// broken is a Model with one fault.
type broken struct {
	*Model
	d defect
}

type defect struct {
	group string // of the suite, which must find it

	update  func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error)
	renew   func(m *Model, ctx context.Context, k idem.Key, l idem.Lease, d time.Duration) error
	due     func(due []idem.Due) []idem.Due
	all     bool               // leaves no tool out of what is due
	call    func(c *idem.Call) // what reads show
	byID    func(m *Model, ctx context.Context, ns idem.Namespace, id idem.CallID) (idem.Call, error)
	list    func(m *Model, ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error)
	events  func(m *Model, ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error)
	effects func(m *Model, ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error)
	totals  func(t *idem.Totals)
	newest  func(m *Model) time.Time
	save    func(m *Model, ctx context.Context, r *idem.Rules) error
	rules   func(all []*idem.Rules) []*idem.Rules
	reopen  func(m *Model)
}

// quiet runs a transition once and without the checks of a Model, so that a
// broken store can commit what it should not.
func quiet(ch idem.Change) idem.Transition {
	return func(*idem.Call) (idem.Change, error) { return ch, nil }
}

var defects = map[string]defect{
	"writes in spite of an error": {group: "Update", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err != nil && ch.Write {
			if _, err := m.Update(ctx, k, quiet(ch)); err != nil {
				return ch, err
			}
		}
		return ch, err
	}},
	"wraps errors": {group: "Update", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err != nil {
			err = fmt.Errorf("store: %w", err)
		}
		return ch, err
	}},
	"drops the change of an error": {group: "Update", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err != nil {
			ch = idem.Change{}
		}
		return ch, err
	}},
	"swallows panics": {group: "Update", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (ch idem.Change, err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v", r)
			}
		}()
		return m.Update(ctx, k, t)
	}},
	"writes without Write": {group: "Update", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err == nil && !ch.Write && len(ch.Events) > 0 {
			ch.Write = true
			return m.Update(ctx, k, quiet(ch))
		}
		return ch, err
	}},
	"looks and writes in two steps": {group: "Race", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		var ch idem.Change
		look := func(cur *idem.Call) (idem.Change, error) {
			var err error
			ch, err = t(cur)
			return idem.Change{Before: cur, After: ch.After}, err
		}
		if _, err := m.Update(ctx, k, look); err != nil || !ch.Write {
			return ch, err
		}
		runtime.Gosched()
		return m.Update(ctx, k, quiet(ch))
	}},
	"forgets the args of a call that has an end": {group: "Record", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		return m.Update(ctx, k, func(cur *idem.Call) (idem.Change, error) {
			if cur == nil || !cur.Status.Ended() {
				return t(cur)
			}
			c := *cur
			c.Args = nil
			return t(&c)
		})
	}},
	"takes a second effect in silence": {group: "Refused", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err == idem.ErrSecondEffect { //nolint:errorlint // the Model returns this very value
			err = nil
		}
		return ch, err
	}},
	"takes a second call in silence": {group: "Refused", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err == idem.ErrSecondCall { //nolint:errorlint // the Model returns this very value
			err = nil
		}
		return ch, err
	}},
	"a stale result ends the living lease": {group: "Lease", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		ch, err := m.Update(ctx, k, t)
		if err == nil && ch.Write && ch.Verdict == idem.VerdictStale && ch.After.Status == idem.StatusRunning {
			err = m.Renew(ctx, k, idem.LeaseOf(ch.After), 0)
		}
		return ch, err
	}},
	"leaves no tool out of what is due": {group: "Lease", all: true},
	"renews for anybody": {group: "Lease", renew: func(m *Model, ctx context.Context, k idem.Key, _ idem.Lease, d time.Duration) error {
		c, err := m.CallByKey(ctx, k)
		if err != nil {
			return idem.ErrLeaseLost
		}
		return m.Renew(ctx, k, idem.LeaseOf(&c), d)
	}},
	"does not renew a lease that is over": {group: "Lease", renew: func(m *Model, ctx context.Context, k idem.Key, l idem.Lease, d time.Duration) error {
		due, err := m.Due(ctx, 0)
		if err != nil {
			return err
		}
		for _, w := range due {
			if w.ID == l.CallID {
				return idem.ErrLeaseLost
			}
		}
		return m.Renew(ctx, k, l, d)
	}},
	"due by name": {group: "Lease", due: func(due []idem.Due) []idem.Due {
		slices.SortFunc(due, func(a, b idem.Due) int { return strings.Compare(a.Key.Name, b.Key.Name) })
		return due
	}},
	"due without pending calls that ran before": {group: "Lease", due: func(due []idem.Due) []idem.Due {
		return slices.DeleteFunc(due, func(d idem.Due) bool { return d.Status == idem.StatusPending && d.Attempt > 0 })
	}},
	"nothing is marked as left": {group: "Reopen", due: func(due []idem.Due) []idem.Due {
		for i := range due {
			due[i].Recovered = false
		}
		return due
	}},
	"all is marked as left": {group: "Reopen", due: func(due []idem.Due) []idem.Due {
		for i := range due {
			due[i].Recovered = true
		}
		return due
	}},
	"reads show args":          {group: "Record", call: func(c *idem.Call) { c.Args = []byte(`{}`) }},
	"an empty client is none":  {group: "Record", call: func(c *idem.Call) { c.ClientID = nonZero(c.ClientID) }},
	"a seq of 0 is none":       {group: "Record", call: func(c *idem.Call) { c.Seq = nonZero(c.Seq) }},
	"creation in milliseconds": {group: "Record", call: func(c *idem.Call) { c.CreatedAt = c.CreatedAt.Truncate(time.Millisecond) }},
	"times in seconds":         {group: "Record", call: func(c *idem.Call) { c.UpdatedAt = c.UpdatedAt.Truncate(time.Second) }},
	"no time is a long time ago": {group: "Record", call: func(c *idem.Call) {
		if c.EndedAt.IsZero() {
			c.EndedAt = time.Unix(0, 0)
		}
	}},
	"results are written anew": {group: "Record", call: func(c *idem.Call) {
		var b bytes.Buffer
		if json.Compact(&b, c.Result) == nil && c.Result != nil {
			c.Result = b.Bytes()
		}
	}},
	"revisions are not kept": {group: "Update", call: func(c *idem.Call) { c.Revision = 1 }},
	"ids cross namespaces": {group: "Record", byID: func(m *Model, ctx context.Context, _ idem.Namespace, id idem.CallID) (idem.Call, error) {
		m.d.mu.Lock()
		k := m.d.keys[id]
		m.d.mu.Unlock()
		return m.CallByID(ctx, k.Namespace, id)
	}},
	"a page begins with the last call of the one before": {group: "Read", list: func(m *Model, ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
		if !q.Before.IsZero() {
			q.Before[15]++
		}
		return m.List(ctx, ns, q)
	}},
	"the list ends at the first page": {group: "Read", list: func(m *Model, ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
		calls, _, err := m.List(ctx, ns, q)
		return calls, idem.CallID{}, err
	}},
	"the list shows fingerprints": {group: "Read", list: func(m *Model, ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
		calls, next, err := m.List(ctx, ns, q)
		for i := range calls {
			calls[i].Fingerprint = fingerprint("same")
		}
		return calls, next, err
	}},
	"the list does not filter by client": {group: "Read", list: func(m *Model, ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
		q.ClientID = ""
		return m.List(ctx, ns, q)
	}},
	"a page of events holds whole changes": {group: "Read", events: func(m *Model, ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
		events, err := m.Events(ctx, ns, id, from, limit+1)
		if len(events) > limit && !events[limit].At.Equal(events[limit-1].At) {
			events = events[:limit]
		}
		return events, err
	}},
	"events of nobody are none": {group: "Refused", events: func(m *Model, ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
		events, err := m.Events(ctx, ns, id, from, limit)
		if err == idem.ErrNotFound { //nolint:errorlint // the Model returns this very value
			err = nil
		}
		return events, err
	}},
	"the ledger repeats the row it goes on after": {group: "Read", effects: func(m *Model, ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
		if !after.IsZero() {
			after[15]--
		}
		return m.Effects(ctx, ns, after, limit)
	}},
	"the ledger ends with the window": {group: "Record", effects: func(m *Model, ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
		effects, err := m.Effects(ctx, ns, after, limit)
		return slices.DeleteFunc(effects, func(e idem.Effect) bool {
			c, err := m.CallByID(ctx, ns, e.CallID)
			return err == nil && c.Tombstone
		}), err
	}},
	"totals begin anew at ten attempts": {group: "Read", totals: func(t *idem.Totals) { t.Attempts[10] = 0 }},
	"the newest is the last one": {group: "Read", newest: func(m *Model) time.Time {
		m.d.mu.Lock()
		defer m.d.mu.Unlock()
		var last *idem.Call
		for _, r := range m.d.rows {
			if last == nil || r.call.CreatedAt.After(last.CreatedAt) {
				last = r.call
			}
		}
		if last == nil {
			return time.Time{}
		}
		return last.ID.Time()
	}},
	"saves nothing": {group: "Rules", save: func(*Model, context.Context, *idem.Rules) error { return nil }},
	"saves no second rules": {group: "Rules", save: func(m *Model, ctx context.Context, r *idem.Rules) error {
		if len(m.d.rules) > 0 {
			return nil
		}
		return m.SaveRules(ctx, r)
	}},
	"refuses rules that it has": {group: "Rules", save: func(m *Model, ctx context.Context, r *idem.Rules) error {
		if m.d.rules[r.ID()] != nil {
			return idem.ErrSecondCall
		}
		return m.SaveRules(ctx, r)
	}},
	"takes rules that say nothing": {group: "Rules", save: func(m *Model, ctx context.Context, r *idem.Rules) error {
		if err := m.SaveRules(ctx, r); !errors.Is(err, idem.ErrNoRules) {
			return err
		}
		return nil
	}},
	"saves rules with a fault": {group: "Rules", save: func(m *Model, ctx context.Context, r *idem.Rules) error {
		if err := m.SaveRules(ctx, r); err == nil || r.Validate() == nil {
			return err
		}
		return nil
	}},
	"saves in spite of the context": {group: "Rules", save: func(m *Model, ctx context.Context, r *idem.Rules) error {
		return m.SaveRules(context.WithoutCancel(ctx), r)
	}},
	"gives rules in any order": {group: "Rules", rules: func(all []*idem.Rules) []*idem.Rules {
		slices.Reverse(all)
		return all
	}},
	"keeps no list but the first of rules": {group: "Rules", rules: func(all []*idem.Rules) []*idem.Rules {
		for _, r := range all {
			r.NFC = nil
		}
		return all
	}},
	"forgets the rules of a call": {group: "Rules", call: func(c *idem.Call) { c.Rules = idem.RulesID{} }},
	"forgets the rules with the window": {group: "Rules", call: func(c *idem.Call) {
		if c.Tombstone {
			c.Rules = idem.RulesID{}
		}
	}},
	"forgets doubt":           {group: "Doubt", call: func(c *idem.Call) { c.InDoubt = false }},
	"forgets doubt at an end": {group: "Doubt", call: func(c *idem.Call) { c.InDoubt = c.InDoubt && !c.Status.Ended() }},
	"keeps pauses in a byte": {group: "Doubt", call: func(c *idem.Call) {
		if f := clonePtr(c.Failure); f != nil {
			f.RetryAfter = min(f.RetryAfter, 255*time.Second)
			c.Failure = f
		}
	}},
	"writes any pause": {group: "Doubt", update: func(m *Model, ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
		return m.Update(ctx, k, func(cur *idem.Call) (idem.Change, error) {
			ch, err := t(cur)
			if ch.After != nil && ch.After.Failure != nil {
				c := *cloneCall(ch.After)
				c.Failure.RetryAfter = c.Failure.RetryAfter.Truncate(time.Second)
				ch.After = &c
			}
			return ch, err
		})
	}},
	"a start forgets the rules": {group: "Reopen", reopen: func(m *Model) { clear(m.d.rules) }},
	"a start forgets the last event": {group: "Reopen", reopen: func(m *Model) {
		for _, r := range m.d.rows {
			r.events = r.events[:max(0, len(r.events)-1)]
		}
	}},
	"a start makes running calls pending": {group: "Reopen", reopen: func(m *Model) {
		for _, r := range m.d.rows {
			if r.call.Status == idem.StatusRunning {
				r.call.Status = idem.StatusPending
			}
		}
	}},
}

func nonZero[T comparable](p *T) *T {
	var zero T
	if p != nil && *p == zero {
		return nil
	}
	return p
}

func (b *broken) Update(ctx context.Context, k idem.Key, t idem.Transition) (idem.Change, error) {
	if b.d.update == nil {
		return b.Model.Update(ctx, k, t)
	}
	return b.d.update(b.Model, ctx, k, t)
}

func (b *broken) Renew(ctx context.Context, k idem.Key, l idem.Lease, d time.Duration) error {
	if b.d.renew == nil {
		return b.Model.Renew(ctx, k, l, d)
	}
	return b.d.renew(b.Model, ctx, k, l, d)
}

func (b *broken) Due(ctx context.Context, limit int, except ...string) ([]idem.Due, error) {
	if b.d.all {
		except = nil
	}
	if b.d.due == nil {
		return b.Model.Due(ctx, limit, except...)
	}
	due, err := b.Model.Due(ctx, 0, except...)
	if due = b.d.due(due); limit > 0 && len(due) > limit {
		due = due[:limit]
	}
	return due, err
}

func (b *broken) SaveRules(ctx context.Context, r *idem.Rules) error {
	if b.d.save == nil {
		return b.Model.SaveRules(ctx, r)
	}
	return b.d.save(b.Model, ctx, r)
}

func (b *broken) Rules(ctx context.Context) ([]*idem.Rules, error) {
	all, err := b.Model.Rules(ctx)
	if b.d.rules != nil {
		all = b.d.rules(all)
	}
	return all, err
}

func (b *broken) CallByKey(ctx context.Context, k idem.Key) (idem.Call, error) {
	c, err := b.Model.CallByKey(ctx, k)
	if b.d.call != nil && err == nil {
		b.d.call(&c)
	}
	return c, err
}

func (b *broken) CallByID(ctx context.Context, ns idem.Namespace, id idem.CallID) (idem.Call, error) {
	if b.d.byID != nil {
		return b.d.byID(b.Model, ctx, ns, id)
	}
	c, err := b.Model.CallByID(ctx, ns, id)
	if b.d.call != nil && err == nil {
		b.d.call(&c)
	}
	return c, err
}

func (b *broken) List(ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
	if b.d.list != nil {
		return b.d.list(b.Model, ctx, ns, q)
	}
	calls, next, err := b.Model.List(ctx, ns, q)
	for i := range calls {
		if b.d.call != nil {
			b.d.call(&calls[i])
		}
	}
	return calls, next, err
}

func (b *broken) Events(ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
	if b.d.events == nil {
		return b.Model.Events(ctx, ns, id, from, limit)
	}
	return b.d.events(b.Model, ctx, ns, id, from, limit)
}

func (b *broken) Effects(ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
	if b.d.effects == nil {
		return b.Model.Effects(ctx, ns, after, limit)
	}
	return b.d.effects(b.Model, ctx, ns, after, limit)
}

func (b *broken) Totals(ctx context.Context) (idem.Totals, error) {
	t, err := b.Model.Totals(ctx)
	if b.d.totals != nil {
		b.d.totals(&t)
	}
	return t, err
}

func (b *broken) Newest(ctx context.Context) (time.Time, error) {
	if b.d.newest == nil {
		return b.Model.Newest(ctx)
	}
	return b.d.newest(b.Model), nil
}
