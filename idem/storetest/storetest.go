package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// Options name the store under test.
type Options struct {
	// New opens a new, empty store. The suite closes it.
	New func(t *testing.T) idem.Store

	// Reopen closes a store cleanly and opens another on the same data. Nil
	// skips the cases that need it.
	Reopen func(t *testing.T, s idem.Store) idem.Store

	// Exclusive says that one process at a time owns the data, so that no lease
	// outlives it (R11).
	Exclusive bool
}

// Run holds a store to the contract of [idem.Store]. Every case has a store of
// its own, and ends with [Check] unless it breaks the law on purpose.
func Run(t *testing.T, o Options) {
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) { g.run(t, o) })
	}
	t.Run("History", func(t *testing.T) { runHistories(t, o) })
}

type group struct {
	name  string
	cases []testCase
}

var groups = []group{
	{"Update", updateCases},
	{"Record", recordCases},
	{"Refused", refusedCases},
	{"Lease", leaseCases},
	{"Read", readCases},
	{"Rules", rulesCases},
	{"Doubt", doubtCases},
	{"Reopen", append(reopenCases, rulesReopenCases...)},
	{"Race", raceCases},
}

func (g group) run(t *testing.T, o Options) {
	if g.name == "Reopen" && o.Reopen == nil {
		t.Skip("the store cannot be opened again")
	}
	for _, c := range g.cases {
		t.Run(c.name, func(t *testing.T) { c.run(newWorld(t, o, !c.lawless)) })
	}
}

type testCase struct {
	name    string
	run     func(w *world)
	lawless bool // writes what no rule would, so Check has nothing to say
}

// Two namespaces like any, and two that run together with a key's name if
// somebody forgets to keep them apart.
var namespaces = []idem.Namespace{idem.DefaultNamespace, "other", "a", "ab"}

// world is one store, a wall clock that moves by one millisecond at each look,
// and ids that are never used twice.
type world struct {
	t   *testing.T
	ctx context.Context
	o   Options
	s   idem.Store
	now time.Time
	ids uint64
}

func newWorld(t *testing.T, o Options, lawful bool) *world {
	t.Helper()
	// The clock starts at the real time: a store may keep room for the days
	// around now only.
	w := &world{t: t, ctx: t.Context(), o: o, s: o.New(t), now: time.Now().UTC().Truncate(time.Millisecond)}
	t.Cleanup(func() {
		if lawful && !t.Failed() {
			if err := Check(context.Background(), w.s, namespaces...); err != nil {
				t.Error(err)
			}
		}
		if err := w.s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

// reopen ends this life of the process cleanly and begins the next one.
func (w *world) reopen() {
	w.t.Helper()
	w.s = w.o.Reopen(w.t, w.s)
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format, args...)
}

func (w *world) tick() time.Time {
	w.now = w.now.Add(time.Millisecond)
	return w.now
}

// idAt returns a new id that carries a time.
func (w *world) idAt(k idem.Key, t time.Time) idem.CallID {
	w.ids++
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, w.ids))
	return idem.NewCallID(t, k, [10]byte(sum[:]))
}

func key(name string) idem.Key { return idem.Key{Namespace: idem.DefaultNamespace, Name: name} }

func keyIn(ns idem.Namespace, name string) idem.Key { return idem.Key{Namespace: ns, Name: name} }

func fingerprint(s string) idem.Fingerprint { return idem.Fingerprint(sha256.Sum256([]byte(s))) }

func request(k idem.Key) idem.Request {
	return idem.Request{Key: k, Fingerprint: fingerprint("same"), Tool: "refund", Args: []byte(`{"amount":100}`)}
}

// The tools that calls of the suite run: their claims differ by promise only.
var (
	toolNone   = &idem.Tool{Name: "look", Effects: idem.EffectsNone, Rerun: idem.RerunYes}
	toolLocal  = &idem.Tool{Name: "charge", Effects: idem.EffectsLocal, Rerun: idem.RerunYes}
	toolRerun  = &idem.Tool{Name: "refund", Effects: idem.EffectsExternal, Rerun: idem.RerunYes}
	toolVerify = &idem.Tool{Name: "order", Effects: idem.EffectsExternal, Rerun: idem.RerunVerify}
	toolHold   = &idem.Tool{Name: "mail", Effects: idem.EffectsExternal, Rerun: idem.RerunHold}
)

const (
	anHour = time.Hour // a lease that no test outlives
	over   = 0         // a lease that is over as soon as it is given
	window = time.Hour
)

func (w *world) admission(k idem.Key) idem.Admission {
	now := w.tick()
	// Microseconds, which the creation must keep.
	created := now.Add(time.Duration(w.ids%1000) * time.Microsecond)
	return idem.Admission{ID: w.idAt(k, now), CreatedAt: created, Now: now}
}

func (w *world) submit(r idem.Request) idem.Transition { return idem.Submit(r, w.admission(r.Key)) }

func (w *world) terms() idem.Terms { return idem.Terms{Now: w.tick(), Window: window} }

// claim takes a pending call, or a running one from the lease it was found
// under.
func (w *world) claim(tool *idem.Tool, owner string, lease time.Duration, from idem.Lease) idem.Transition {
	return idem.Claim(idem.ClaimTerms{
		Terms: w.terms(), Owner: owner, Lease: lease, MaxCrashes: 3, Tool: tool, From: from,
	})
}

// under settles a call under the lease that its record names.
func (w *world) under(c idem.Call) idem.Settlement {
	return idem.Settlement{Terms: w.terms(), Lease: idem.LeaseOf(&c)}
}

// update commits a transition that must not fail.
func (w *world) update(k idem.Key, t idem.Transition) idem.Change {
	w.t.Helper()
	ch, err := w.s.Update(w.ctx, k, t)
	if err != nil {
		w.fatalf("update of %v: %v", k, err)
	}
	return ch
}

// expect commits a transition that must come to a verdict, and returns the call.
func (w *world) expect(v idem.Verdict, k idem.Key, t idem.Transition) idem.Call {
	w.t.Helper()
	ch := w.update(k, t)
	if ch.Verdict != v {
		w.fatalf("update of %v: verdict %v, want %v", k, ch.Verdict, v)
	}
	return *ch.After
}

// create stores a new pending call.
func (w *world) create(k idem.Key) idem.Call {
	w.t.Helper()
	return w.expect(idem.VerdictCreated, k, w.submit(request(k)))
}

// run claims a pending call.
func (w *world) run(k idem.Key, lease time.Duration) idem.Call {
	w.t.Helper()
	return w.expect(idem.VerdictClaimed, k, w.claim(toolRerun, idem.Owner("boot", "w1"), lease, idem.Lease{}))
}

// lapse ends a lease.
func (w *world) lapse(c idem.Call) {
	w.t.Helper()
	if err := w.s.Renew(w.ctx, c.Key, idem.LeaseOf(&c), over); err != nil {
		w.fatalf("renewal of %s: %v", showCall(&c), err)
	}
}

// running stores a new call and claims it for an hour.
func (w *world) running(k idem.Key) idem.Call {
	w.t.Helper()
	w.create(k)
	return w.run(k, anHour)
}

func (w *world) succeed(c idem.Call, output string) idem.Call {
	w.t.Helper()
	return w.expect(idem.VerdictSettled, c.Key, idem.Succeed(w.under(c), idem.Result{Output: []byte(output)}))
}

func (w *world) fail(c idem.Call, retryable bool) idem.Call {
	w.t.Helper()
	f := idem.Failure{Code: idem.FailureTool, Message: "no such order", Retryable: retryable}
	return w.expect(idem.VerdictSettled, c.Key, idem.Fail(w.under(c), f))
}

func (w *world) hold(c idem.Call) idem.Call {
	w.t.Helper()
	return w.expect(idem.VerdictSettled, c.Key, idem.Hold(w.under(c), idem.Failure{Code: idem.FailureLost, Message: "no answer"}))
}

func (w *world) byKey(k idem.Key) idem.Call {
	w.t.Helper()
	c, err := w.s.CallByKey(w.ctx, k)
	if err != nil {
		w.fatalf("call by key %v: %v", k, err)
	}
	return c
}

func (w *world) events(c idem.Call) []idem.Event {
	w.t.Helper()
	events, err := allEvents(w.ctx, w.s, c.Key.Namespace, c.ID, pageSize)
	if err != nil {
		w.fatalf("events of %v: %v", c.ID, err)
	}
	return events
}

func (w *world) effects(ns idem.Namespace) []idem.Effect {
	w.t.Helper()
	effects, err := allEffects(w.ctx, w.s, ns, pageSize)
	if err != nil {
		w.fatalf("effects of %q: %v", ns, err)
	}
	return effects
}

func (w *world) totals() idem.Totals {
	w.t.Helper()
	t, err := w.s.Totals(w.ctx)
	if err != nil {
		w.fatalf("totals: %v", err)
	}
	return t
}

func (w *world) due(limit int) []idem.Due {
	w.t.Helper()
	due, err := w.s.Due(w.ctx, limit)
	if err != nil {
		w.fatalf("due: %v", err)
	}
	return due
}

func (w *world) held(limit int) []idem.Due {
	w.t.Helper()
	held, err := w.s.Held(w.ctx, limit)
	if err != nil {
		w.fatalf("held: %v", err)
	}
	return held
}

// image is everything that the store shows, in words.
func (w *world) image() []string {
	w.t.Helper()
	lines, err := image(w.ctx, w.s)
	if err != nil {
		w.fatalf("reading everything: %v", err)
	}
	return lines
}

// untouched compares what the store shows with what it showed before.
func (w *world) untouched(what string, before []string) {
	w.t.Helper()
	if d := differ(before, w.image()); d != "" {
		w.fatalf("%s changed what is stored: %s", what, d)
	}
}

// stored reads a call in every way and compares it with the record that a
// change left, whose args reads do not show.
func (w *world) stored(want idem.Call) {
	w.t.Helper()
	// A transition that writes nothing sees the whole record, args too.
	ch := w.update(want.Key, func(cur *idem.Call) (idem.Change, error) {
		return idem.Change{Before: cur, After: cur}, nil
	})
	if ch.After == nil {
		w.fatalf("%v: the transition saw no record", want.Key)
	}
	if g, s := showCall(ch.After), showCall(&want); g != s {
		w.fatalf("the transition saw\n%s\nwant\n%s", g, s)
	}
	want.Args = nil
	byID, err := w.s.CallByID(w.ctx, want.Key.Namespace, want.ID)
	if err != nil {
		w.fatalf("call by id %v: %v", want.ID, err)
	}
	byKey := w.byKey(want.Key)
	for way, c := range map[string]*idem.Call{"id": &byID, "key": &byKey} {
		if g, s := showCall(c), showCall(&want); g != s {
			w.fatalf("by %s\n%s\nwant\n%s", way, g, s)
		}
	}
}

// names are the names of events, in order.
func names(events []idem.Event) string {
	var names []idem.EventName
	for _, e := range events {
		names = append(names, e.Name)
	}
	return fmt.Sprint(names)
}

// race starts n goroutines at one moment and waits for all.
func race(n int, f func(i int)) {
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-gate
			f(i)
		})
	}
	close(gate)
	wg.Wait()
}

func ptr[T any](v T) *T { return &v }
