package kv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// inspect inspects a store that is not open, and sees to it that this changes
// nothing.
func inspect(t *testing.T, o Options) (Report, error) {
	t.Helper()
	before := contents(t, o)
	r, err := Inspect(t.Context(), o, nil)
	if after := contents(t, o); !maps.Equal(before, after) {
		t.Errorf("files before: %q, after: %q", names(before), names(after))
	}
	return r, err
}

// clean wants a report without faults.
func clean(t *testing.T, o Options) Report {
	t.Helper()
	r, err := inspect(t, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		if c.Broken != 0 {
			t.Errorf("%s: broken %d times: %q", c.Name, c.Broken, c.Examples)
		}
	}
	return r
}

// contents is every file of a store.
func contents(t *testing.T, o Options) map[string]string {
	t.Helper()
	fsys := o.withDefaults().FS
	files := make(map[string]string)
	list, err := fsys.List(o.Dir)
	if err != nil {
		return files
	}
	for _, name := range list {
		if info, err := fsys.Stat(fsys.PathJoin(o.Dir, name)); err != nil || info.IsDir() {
			files[name] = fmt.Sprint(err)
			continue
		}
		f, err := fsys.Open(fsys.PathJoin(o.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	return files
}

func names(files map[string]string) []string { return slices.Sorted(maps.Keys(files)) }

func TestInspect(t *testing.T) {
	places := map[string]func(t *testing.T) Options{
		"memory": func(*testing.T) Options { return testOptions(vfs.NewMem(), "data") },
		"disk":   func(t *testing.T) Options { return testOptions(nil, t.TempDir()) },
	}
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			o := place(t)
			o.MemTable = minMemTable
			s := openOptions(t, o)
			script(t, s, newOracle(), seeded(t), 200)
			totals := s.counts.get()
			markers := totals.Of(idem.StatusPending) + totals.Of(idem.StatusRunning) + totals.Of(idem.StatusHeld)
			if markers == 0 || totals.Effects == 0 {
				t.Fatalf("the script left nothing to look at: %+v", totals)
			}
			closeStore(t, s)
			r := clean(t, o)
			if r.Totals != totals || r.Keys != totals.Calls || r.Markers != markers || r.Events < totals.Calls || r.MultipleEffects != 0 {
				t.Errorf("the report is %+v, the counts were %+v", r, totals)
			}
			if r.Layout != layoutVersion || time.Since(r.CreatedAt) > time.Hour || len(r.Checks) != ruleRows+1 || r.Broken() != 0 {
				t.Errorf("the report is %+v", r)
			}
			// It is let go of, and goes on.
			s = openOptions(t, o)
			update(t, s, keyOf("afterwards"), fused(keyOf("afterwards"), 5_000_000))
			closeStore(t, s)
			if again := clean(t, o); again.Totals.Calls != totals.Calls+1 {
				t.Errorf("the report is %+v", again)
			}
		})
	}
}

// What a killed process had committed is seen, although it is in its logs only.
func TestInspectAfterCrash(t *testing.T) {
	rng := seeded(t)
	fsys := newHookFS(vfs.NewCrashableMem())
	o := testOptions(fsys, "data")
	s := openOptions(t, o)
	script(t, s, newOracle(), rng, 60)
	for _, percent := range []int{0, 50} {
		im := o
		im.FS = fsys.image(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		if r := clean(t, im); r.Totals != s.counts.get() {
			t.Errorf("%d%%: the scan counts %+v, acknowledged were %+v", percent, r.Totals, s.counts.get())
		}
	}
	closeStore(t, s)
}

// A crash at any operation of the disk leaves a sound store, and the inspection
// sees the one that the next start sees.
func TestInspectCrashImages(t *testing.T) {
	rng := seeded(t)
	fsys := newHookFS(vfs.NewCrashableMem())
	o := testOptions(fsys, "data")
	o.MemTable = minMemTable
	every := 29
	if testing.Short() || raced {
		every = 293
	}
	given := newOracle()
	cam := &camera{fs: fsys, oracle: given, percent: 50, rng: rng, pace: pace{every: every}}
	fsys.set(cam.shoot)
	s := openOptions(t, o)
	script(t, s, given, rng, 100)
	fsys.set(nil)
	closeStore(t, s)
	images := cam.take()
	t.Logf("%d images", len(images))
	for i, im := range images {
		o := testOptions(im.fs, "data")
		r, err := inspect(t, o)
		if err != nil && !errors.Is(err, ErrNoStore) || r.Broken() != 0 {
			t.Fatalf("image %d, before %v: %v, %+v", i, im.op, err, r)
		}
		s := openOptions(t, o)
		if got := s.counts.get(); got != r.Totals {
			t.Fatalf("image %d, before %v: the scan counts %+v, a start %+v", i, im.op, r.Totals, got)
		}
		if err := given.judge(s, im.certain); err != nil {
			t.Fatalf("image %d, before %v: %v", i, im.op, err)
		}
		closeStore(t, s)
	}
}

// broken is a store with one call in each state, some more of which are broken
// on purpose.
type broken struct {
	t *testing.T
	s *Store
	n int
}

func (b *broken) make(trs ...idem.Transition) *idem.Call {
	b.n++
	k := keyOf(fmt.Sprint("call", b.n))
	ch := update(b.t, b.s, k, submit(k, b.n))
	for _, tr := range trs {
		ch = update(b.t, b.s, k, tr)
	}
	return ch.After
}

func (b *broken) save(r *idem.Rules) {
	b.t.Helper()
	if err := b.s.SaveRules(context.Background(), r); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broken) pending() *idem.Call { return b.make() }
func (b *broken) running() *idem.Call { return b.make(claim(otherTool, time.Hour)) }
func (b *broken) held() *idem.Call    { return b.make(claim(otherTool, time.Hour), hold()) }
func (b *broken) failed() *idem.Call  { return b.make(claim(otherTool, time.Hour), fail(true)) }
func (b *broken) succeeded() *idem.Call {
	return b.make(claim(otherTool, time.Hour), succeed())
}

func (b *broken) expired() *idem.Call {
	return b.make(claim(otherTool, time.Hour), succeed(), idem.Expire(testStart.Add(2*testWindow)))
}

func (b *broken) set(k, v []byte) {
	b.t.Helper()
	if err := b.s.db.Set(k, v, pebble.Sync); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broken) delete(k []byte) {
	b.t.Helper()
	if err := b.s.db.Delete(k, pebble.Sync); err != nil {
		b.t.Fatal(err)
	}
}

// state writes another state for a call, with the number of its next event.
func (b *broken) state(c *idem.Call, next uint32, change func(c *idem.Call)) {
	b.t.Helper()
	changed := *c
	change(&changed)
	v, err := appendState(nil, &changed, next)
	if err != nil {
		b.t.Fatal(err)
	}
	b.set(appendStateKey(nil, 0, c.ID), v)
}

func (b *broken) events(c *idem.Call, seq uint32, events ...idem.Event) {
	b.t.Helper()
	v, err := appendEvents(nil, events)
	if err != nil {
		b.t.Fatal(err)
	}
	b.set(appendAuditKey(nil, 0, c.ID, seq), v)
}

// merge moves the stored counts.
func (b *broken) merge(d idem.Totals) {
	b.t.Helper()
	if err := b.s.db.Merge(keyCounter, appendTotals(nil, d), pebble.Sync); err != nil {
		b.t.Fatal(err)
	}
}

func effectRow(c *idem.Call) []byte {
	return appendEffect(nil, &idem.Effect{ID: idem.EffectID(c.ID), Tool: c.Tool, CreatedAt: testStart}, c.Key.Name)
}

// Whatever is broken on purpose is found, by the check that is about it, and
// with the call that it is about.
func TestInspectFinds(t *testing.T) {
	nobody := idOf(keyOf("nobody"), 9_000_000) // later than all calls
	before := idem.CallID{1}                   // earlier than all calls
	at := idem.Event{At: testStart, Owner: "boot/w"}
	named := func(name idem.EventName, attempt int) idem.Event {
		e := at
		e.Name, e.Attempt = name, attempt
		return e
	}
	for _, tc := range []struct {
		name   string
		breaks []int // checks, in their order
		about  string
		do     func(b *broken) *idem.Call // returns the call that must be named; nil for none
	}{
		{"a count is off", []int{ruleCounters}, "calls: the store counts", func(b *broken) *idem.Call {
			b.merge(idem.Totals{Calls: 1})
			return nil
		}},
		{"an attempt's count is off", []int{ruleCounters}, "calls with 3 attempts", func(b *broken) *idem.Call {
			d := idem.Totals{}
			d.Attempts[3] = -1
			b.merge(d)
			return nil
		}},
		{"there are no counts", []int{ruleCounters}, "effects: the store counts 2, the scan 4", func(b *broken) *idem.Call {
			b.delete(keyCounter)
			return nil
		}},
		{"pending without a marker", []int{ruleMarkers}, "pending and has no marker", func(b *broken) *idem.Call {
			c := b.pending()
			b.delete(appendMarkerKey(nil, 0, c.ID))
			return c
		}},
		{"held without a marker", []int{ruleMarkers}, "held and has no marker", func(b *broken) *idem.Call {
			c := b.held()
			b.delete(appendMarkerKey(nil, 0, c.ID))
			return c
		}},
		{"an end with a marker", []int{ruleMarkers}, "succeeded and has a marker", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(appendMarkerKey(nil, 0, c.ID), nil)
			return c
		}},
		{"a marker without a call", []int{ruleMarkers}, "but no call", func(b *broken) *idem.Call {
			b.set(appendMarkerKey(nil, 0, nobody), nil)
			return &idem.Call{ID: nobody}
		}},
		{"a marker without a call, before all others", []int{ruleMarkers}, "but no call", func(b *broken) *idem.Call {
			b.set(appendMarkerKey(nil, 0, before), nil)
			return &idem.Call{ID: before}
		}},
		{"a call without its key", []int{ruleKeys}, "its key has no row", func(b *broken) *idem.Call {
			c := b.running()
			b.delete(appendIdemKey(nil, 0, c.Key.Name))
			return c
		}},
		{"a key without a call", []int{ruleKeys}, `key "lonely"`, func(b *broken) *idem.Call {
			b.set(appendIdemKey(nil, 0, "lonely"), appendIdem(nil, nobody, idem.Fingerprint{}))
			return &idem.Call{ID: nobody}
		}},
		{"two keys of a call", []int{ruleKeys}, `key "second": it names`, func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(appendIdemKey(nil, 0, "second"), appendIdem(nil, c.ID, idem.Fingerprint{}))
			return c
		}},
		{"a key of another call", []int{ruleKeys}, "the row of its key names", func(b *broken) *idem.Call {
			c, other := b.failed(), b.failed()
			b.set(appendIdemKey(nil, 0, c.Key.Name), appendIdem(nil, other.ID, idem.Fingerprint{}))
			return c
		}},
		{"two calls of a key", []int{ruleOneCall}, "also the key of call", func(b *broken) *idem.Call {
			first := b.pending()
			second := *first
			second.ID = idOf(first.Key, 8_000_000)
			b.set(appendRequestKey(nil, 0, second.ID), appendRequest(nil, &second))
			b.events(&second, 0, named(idem.EventCreated, 0))
			b.set(appendMarkerKey(nil, 0, second.ID), nil)
			b.merge(idem.Change{Write: true, After: &second}.Totals())
			return &second
		}},
		{"succeeded without an effect", []int{ruleEffects}, "has no effect", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.delete(appendEffectKey(nil, 0, c.ID))
			b.merge(idem.Totals{Effects: -1})
			return c
		}},
		{"an effect that was not owed", []int{ruleEffects}, `effects are "none", and it has an effect`, func(b *broken) *idem.Call {
			c := b.make(claim(&idem.Tool{Name: "look", Effects: idem.EffectsNone, Rerun: idem.RerunYes}, time.Hour), succeed())
			b.set(appendEffectKey(nil, 0, c.ID), effectRow(c))
			b.merge(idem.Totals{Effects: 1})
			return c
		}},
		{"an effect of a failure", []int{ruleEffects}, "it is failed", func(b *broken) *idem.Call {
			c := b.failed()
			b.set(appendEffectKey(nil, 0, c.ID), effectRow(c))
			b.merge(idem.Totals{Effects: 1})
			return c
		}},
		{"an effect of no call", []int{ruleEffects}, "but no call", func(b *broken) *idem.Call {
			b.set(appendEffectKey(nil, 0, nobody), effectRow(&idem.Call{ID: nobody}))
			b.merge(idem.Totals{Effects: 1})
			return &idem.Call{ID: nobody}
		}},
		{"two effects", []int{ruleEffects, ruleRows}, "it has 2 effects", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(append(appendEffectKey(nil, 0, c.ID), 1), effectRow(c))
			b.merge(idem.Totals{Effects: 1})
			return c
		}},
		{"another call's effect", []int{ruleEffects}, "of another id, key or tool", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(appendEffectKey(nil, 0, c.ID), effectRow(&idem.Call{ID: nobody, Key: c.Key, Tool: c.Tool}))
			return c
		}},
		{"a gap in the audit", []int{ruleAudit}, "event 2 comes after 1 events", func(b *broken) *idem.Call {
			c := b.failed()
			b.delete(appendAuditKey(nil, 0, c.ID, 1))
			return c
		}},
		{"no audit", []int{ruleAudit}, "there are 0 events, the state says 1", func(b *broken) *idem.Call {
			c := b.pending()
			b.delete(appendAuditKey(nil, 0, c.ID, 0))
			return c
		}},
		{"events that overlap", []int{ruleAudit}, "event 1 comes after 2 events", func(b *broken) *idem.Call {
			c := b.running()
			b.events(c, 0, named(idem.EventCreated, 0), named(idem.EventRecovered, 0))
			return c
		}},
		{"an audit that goes on", []int{ruleAudit}, "there are 4 events, the state says 3", func(b *broken) *idem.Call {
			c := b.failed()
			b.events(c, 3, named(idem.EventRequeued, 1))
			return c
		}},
		{"an audit without a beginning", []int{ruleAudit}, `event 0 is "requeued"`, func(b *broken) *idem.Call {
			c := b.pending()
			b.events(c, 0, named(idem.EventRequeued, 0))
			return c
		}},
		{"created twice", []int{ruleAudit}, `event 1 is "created"`, func(b *broken) *idem.Call {
			c := b.pending()
			b.events(c, 0, named(idem.EventCreated, 0), named(idem.EventCreated, 0))
			b.state(c, 2, func(*idem.Call) {})
			return c
		}},
		{"an attempt too many", []int{ruleAudit}, "at attempt 2 after 1 claims", func(b *broken) *idem.Call {
			c := b.held()
			b.state(c, 3, func(c *idem.Call) { c.Attempt = 2 })
			return c
		}},
		{"a claim of another attempt", []int{ruleAudit}, "claim 1 is of attempt 7", func(b *broken) *idem.Call {
			c := b.running()
			b.events(c, 1, named(idem.EventClaimed, 7))
			return c
		}},
		{"an end without a time", []int{ruleEnds}, "time of its end", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.state(c, 3, func(c *idem.Call) { c.EndedAt = time.Time{} })
			return c
		}},
		{"an end that never expires", []int{ruleEnds}, "time of its expiry", func(b *broken) *idem.Call {
			c := b.failed()
			b.state(c, 3, func(c *idem.Call) { c.ExpiresAt = time.Time{} })
			return c
		}},
		{"a held call that expires", []int{ruleEnds}, "time of its expiry", func(b *broken) *idem.Call {
			c := b.held()
			b.state(c, 3, func(c *idem.Call) { c.ExpiresAt = testStart })
			return c
		}},
		{"running for nobody", []int{ruleFields}, "owner", func(b *broken) *idem.Call {
			c := b.running()
			b.state(c, 2, func(c *idem.Call) { c.Owner = "" })
			return c
		}},
		{"an end with an owner", []int{ruleFields}, "owner", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.state(c, 3, func(c *idem.Call) { c.Owner = "boot/w" })
			return c
		}},
		{"an attempt that was never claimed", []int{ruleFields}, "last claim", func(b *broken) *idem.Call {
			c := b.held()
			b.state(c, 3, func(c *idem.Call) { c.ClaimedAt = time.Time{} })
			return c
		}},
		{"no revision", []int{ruleFields}, "revision", func(b *broken) *idem.Call {
			c := b.held()
			b.state(c, 3, func(c *idem.Call) { c.Revision = 0 })
			return c
		}},
		{"no delivery", []int{ruleFields}, "delivered", func(b *broken) *idem.Call {
			c := b.held()
			b.state(c, 3, func(c *idem.Call) { c.Deliveries = 0 })
			return c
		}},
		{"succeeded without a result", []int{ruleFields}, "result", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.state(c, 3, func(c *idem.Call) { c.Result = nil })
			return c
		}},
		{"failed without an error", []int{ruleFields}, "error", func(b *broken) *idem.Call {
			c := b.failed()
			b.state(c, 3, func(c *idem.Call) { c.Failure = nil })
			return c
		}},
		{"a tombstone that tells", []int{ruleFields}, "tells more", func(b *broken) *idem.Call {
			c := b.expired()
			b.state(c, 4, func(c *idem.Call) { c.Result = []byte("1") })
			return c
		}},
		{"no tool", []int{ruleFields}, "no key or no tool", func(b *broken) *idem.Call {
			c := b.pending()
			changed := *c
			changed.Tool = ""
			b.set(appendRequestKey(nil, 0, c.ID), appendRequest(nil, &changed))
			return c
		}},
		{"a damaged request", []int{ruleCounters, ruleRows}, "its request cannot be read", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(appendRequestKey(nil, 0, c.ID), []byte{9})
			return c
		}},
		{"no request", []int{ruleCounters, ruleKeys, ruleRows}, "it has no request", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.delete(appendRequestKey(nil, 0, c.ID))
			return c
		}},
		{"a damaged state", []int{ruleCounters, ruleRows}, "its state cannot be read", func(b *broken) *idem.Call {
			c := b.running()
			b.set(appendStateKey(nil, 0, c.ID), []byte{1, 0xff, 0xff})
			return c
		}},
		{"damaged events", []int{ruleRows}, "events from 1 on cannot be read", func(b *broken) *idem.Call {
			c := b.failed()
			b.set(appendAuditKey(nil, 0, c.ID, 1), []byte{1, 0xff})
			return c
		}},
		{"a damaged effect", []int{ruleRows}, "its effect cannot be read", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(appendEffectKey(nil, 0, c.ID), nil)
			return c
		}},
		{"a damaged key", []int{ruleRows}, "its row cannot be read", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.set(appendIdemKey(nil, 0, c.Key.Name), []byte{1, 2, 3})
			return nil
		}},
		{"damaged counts", []int{ruleCounters, ruleRows}, "row of counts", func(b *broken) *idem.Call {
			b.set(keyCounter, []byte{77})
			return nil
		}},
		{"a call of an unknown namespace", []int{ruleRows}, "namespace 7", func(b *broken) *idem.Call {
			c := &idem.Call{ID: nobody, Key: keyOf("far"), Tool: "t", CreatedAt: testStart, Status: idem.StatusPending}
			b.set(appendIdemKey(nil, 7, c.Key.Name), appendIdem(nil, c.ID, idem.Fingerprint{}))
			b.set(appendRequestKey(nil, 7, c.ID), appendRequest(nil, c))
			v, _ := appendEvents(nil, []idem.Event{named(idem.EventCreated, 0)})
			b.set(appendAuditKey(nil, 7, c.ID, 0), v)
			b.set(appendMarkerKey(nil, 7, c.ID), nil)
			b.merge(idem.Change{Write: true, After: c}.Totals())
			return c
		}},
		{"two namespaces of one number", []int{ruleRows}, `namespace "x"`, func(b *broken) *idem.Call {
			b.set(appendNamespaceKey(nil, "x"), encodeNamespace(0))
			return nil
		}},
		{"a damaged namespace", []int{ruleRows}, `namespace "x"`, func(b *broken) *idem.Call {
			b.set(appendNamespaceKey(nil, "x"), []byte("?"))
			return nil
		}},
		{"an unknown row of a call", []int{ruleRows}, "unknown kind, 02", func(b *broken) *idem.Call {
			c := b.pending()
			b.set(append(appendCallKey(nil, 0, c.ID), 2), nil)
			return c
		}},
		{"rules that are of another id", []int{ruleRules}, "or is of another id", func(b *broken) *idem.Call {
			b.set(appendRulesKey(nil, rulesOf(1).ID()), encodeRules(rulesOf(2)))
			return nil
		}},
		{"rules that cannot be read", []int{ruleRules}, "cannot be read", func(b *broken) *idem.Call {
			b.set(appendRulesKey(nil, rulesOf(1).ID()), []byte{1, 2, '{', '}'})
			return nil
		}},
		{"a call whose rules are not saved", []int{ruleRules}, "are not saved", func(b *broken) *idem.Call {
			b.save(rulesOf(1))
			k := keyOf("ruled")
			return update(b.t, b.s, k, submitUnder(k, 500, rulesOf(2).ID())).After
		}},
		{"a tombstone whose rules are lost", []int{ruleRules}, "are not saved", func(b *broken) *idem.Call {
			b.save(rulesOf(1))
			b.save(rulesOf(2))
			k := keyOf("ruled")
			update(b.t, b.s, k, submitUnder(k, 500, rulesOf(2).ID()))
			update(b.t, b.s, k, idem.Chain(claim(otherTool, time.Hour), succeed()))
			b.delete(appendRulesKey(nil, rulesOf(2).ID()))
			return update(b.t, b.s, k, idem.Expire(testStart.Add(2*testWindow))).After
		}},
		{"a key of rules that is too long", []int{ruleRows}, "a row of rules has the key", func(b *broken) *idem.Call {
			b.set([]byte("r too long for an id of rules"), nil)
			return nil
		}},
		{"doubt of what is known", []int{ruleFields}, "in doubt", func(b *broken) *idem.Call {
			c := b.succeeded()
			b.state(c, 3, func(c *idem.Call) { c.InDoubt = true })
			return c
		}},
		{"short keys", []int{ruleRows}, "has the key", func(b *broken) *idem.Call {
			for _, k := range []string{"c", "e\x00", "n\x00\x00\x00\x00", "i\x00\x00\x00\x00"} {
				b.set([]byte(k), nil)
			}
			return nil
		}},
		{"rows between all others", []int{ruleRows}, "unknown kind", func(b *broken) *idem.Call {
			for _, k := range []string{"A", "b", "d", "g", "k", "m", "p", "s", "t\x00", "z"} {
				b.set([]byte(k), nil)
			}
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions(vfs.NewMem(), "data")
			b := &broken{t: t, s: openOptions(t, o)}
			sound := func() {
				b.pending()
				b.running()
				b.held()
				b.failed()
				b.succeeded()
				b.expired()
			}
			sound()
			about := tc.do(b)
			if tc.name != "damaged counts" { // the engine would try for ever to add to them
				sound()
			}
			closeStore(t, b.s)
			r, err := inspect(t, o)
			if err != nil {
				t.Fatal(err)
			}
			var found []int
			var words []string
			for i, c := range r.Checks {
				if c.Broken > 0 {
					found = append(found, i)
					words = append(words, c.Examples...)
				}
			}
			text := strings.Join(words, "\n")
			if !slices.Equal(found, tc.breaks) || !strings.Contains(text, tc.about) || about != nil && !strings.Contains(text, about.ID.String()) {
				t.Errorf("broken %v, want %v, about %q, %v:\n%s", found, tc.breaks, tc.about, about, text)
			}
			if many := tc.name == "two effects"; (r.MultipleEffects == 1) != many {
				t.Errorf("%d calls with more than one effect", r.MultipleEffects)
			}
		})
	}
}

// A report counts all faults, and names the first ones only.
func TestInspectManyFaults(t *testing.T) {
	o := testOptions(vfs.NewMem(), "data")
	b := &broken{t: t, s: openOptions(t, o)}
	for range 3 * maxExamples {
		b.delete(appendMarkerKey(nil, 0, b.pending().ID))
	}
	for n := range 2 * lookUpEvery {
		b.set(appendEffectKey(nil, 0, idOf(keyOf("x"), 1_000_000+n)), nil)
	}
	closeStore(t, b.s)
	r, err := inspect(t, o)
	if err != nil {
		t.Fatal(err)
	}
	for check, want := range map[int]int64{ruleMarkers: 3 * maxExamples, ruleEffects: 2 * lookUpEvery} {
		if c := r.Checks[check]; c.Broken != want || len(c.Examples) != maxExamples {
			t.Errorf("%+v", c)
		}
	}
	if want := int64(3*maxExamples + 2*lookUpEvery + 1); r.Broken() != want { // and the count of effects
		t.Errorf("%d faults, want %d", r.Broken(), want)
	}
}

func TestInspectProgress(t *testing.T) {
	o := testOptions(vfs.NewMem(), "data")
	s := openOptions(t, o)
	for n := range progressEvery + 1 {
		k := keyOf(fmt.Sprint("k", n))
		update(t, s, k, fused(k, n))
	}
	closeStore(t, s)
	var told []Progress
	if _, err := Inspect(t.Context(), o, func(p Progress) { told = append(told, p) }); err != nil {
		t.Fatal(err)
	}
	const n = progressEvery
	if want := []Progress{{"calls", n, n + 1}, {"calls", n + 1, n + 1}, {"keys", n, n + 1}, {"keys", n + 1, n + 1}}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	_, err := Inspect(ctx, o, func(Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a scan that was called off: %v", err)
	}
	clean(t, o) // it was let go of
}

// What cannot be inspected is refused, and nothing is made on the way.
func TestInspectRefuses(t *testing.T) {
	t.Run("nothing there", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		empty := filepath.Join(dir, "empty")
		if err := os.Mkdir(empty, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "none", "deep"), file, empty, dir} {
			if _, err := inspect(t, testOptions(nil, d)); !errors.Is(err, ErrNoStore) {
				t.Errorf("%s: %v", d, err)
			}
		}
		for _, d := range []string{dir, empty} {
			entries, err := os.ReadDir(d)
			if err != nil || len(entries) != map[string]int{dir: 2, empty: 0}[d] {
				t.Errorf("%v in %s, %v", entries, d, err)
			}
		}
		if _, err := Inspect(t.Context(), Options{}, nil); err == nil {
			t.Error("no directory")
		}
	})
	t.Run("in use", func(t *testing.T) {
		dir := t.TempDir()
		s := openOptions(t, testOptions(nil, dir))
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dir, link} {
			if _, err := Inspect(t.Context(), testOptions(nil, d), nil); !errors.Is(err, ErrInUse) {
				t.Errorf("%s: %v", d, err)
			}
		}
		closeStore(t, s)
		clean(t, testOptions(nil, link))
	})
	t.Run("a newer layout", func(t *testing.T) {
		o := testOptions(vfs.NewMem(), "data")
		b := &broken{t: t, s: openOptions(t, o)}
		b.set(keySchema, append(encodeSchema(schema{layoutVersion + 1, testStart}), "more"...))
		closeStore(t, b.s)
		for range 2 {
			if _, err := inspect(t, o); !errors.Is(err, ErrNewerFormat) {
				t.Fatal(err)
			}
		}
	})
	t.Run("a newer engine", func(t *testing.T) {
		o := testOptions(vfs.NewMem(), "data")
		closeStore(t, openOptions(t, o))
		f, err := o.FS.Create("data/marker.format-version.000099.099", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := inspect(t, o); !errors.Is(err, ErrNewerFormat) {
			t.Fatal(err)
		}
	})
	t.Run("somebody else's", func(t *testing.T) {
		o := testOptions(vfs.NewMem(), "data")
		db, err := pebble.Open("data", &pebble.Options{FS: o.FS, Merger: countMerger, Logger: quietLog{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Set([]byte("a"), nil, pebble.Sync), db.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := inspect(t, o); err == nil || !strings.Contains(err.Error(), "something else") {
			t.Fatal(err)
		}
	})
	t.Run("damaged files", func(t *testing.T) {
		dir := t.TempDir()
		o := testOptions(nil, dir)
		s := openOptions(t, o)
		script(t, s, newOracle(), seeded(t), 100)
		closeStore(t, s)
		tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatal(tables, err)
		}
		for _, name := range tables {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for i := range min(len(b), 200) {
				b[i] ^= 0xff
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := inspect(t, o); !pebble.IsCorruptionError(err) {
			t.Errorf("%v: %+v", err, r)
		}
	})
}

// A store that was never begun is empty, and sound.
func TestInspectUnbegun(t *testing.T) {
	o := testOptions(vfs.NewMem(), "data")
	db, err := pebble.Open("data", &pebble.Options{FS: o.FS, Merger: countMerger, Logger: quietLog{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if r := clean(t, o); r.Layout != 0 || r.Totals != (idem.Totals{}) {
		t.Errorf("%+v", r)
	}
}
