package kv

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// gated is a change whose commit is held up at the disk.
type gated struct {
	name   string
	before []idem.Transition // what was made of the call before, all durable
	change func(k idem.Key) idem.Transition
}

func gatedChanges() []gated {
	run, runHold := claim(otherTool, time.Hour), claim(holdTool, time.Hour)
	always := func(tr idem.Transition) func(idem.Key) idem.Transition {
		return func(idem.Key) idem.Transition { return tr }
	}
	held := []idem.Transition{runHold, hold()}
	return []gated{
		{"create", nil, func(k idem.Key) idem.Transition { return submit(k, 500) }},
		{"create and claim", nil, func(k idem.Key) idem.Transition { return idem.Chain(submit(k, 500), run) }},
		{"fused", nil, func(k idem.Key) idem.Transition { return fused(k, 500) }},
		{"claim", []idem.Transition{}, always(run)},
		{"succeed", []idem.Transition{run}, always(succeed())},
		{"fail", []idem.Transition{run}, always(fail(true))},
		{"hold", []idem.Transition{run}, always(hold())},
		{"release", []idem.Transition{run}, always(settling(idem.Release))},
		{"take over", []idem.Transition{run}, always(takeOver(otherTool))},
		{"requeue", []idem.Transition{run, fail(true)}, func(k idem.Key) idem.Transition { return submit(k, 501) }},
		{"requeue, fused", []idem.Transition{run, fail(true)}, func(k idem.Key) idem.Transition { return fused(k, 501) }},
		{"resolve, succeeded", held, always(resolved(idem.OutcomeSucceeded))},
		{"resolve, failed", held, always(resolved(idem.OutcomeFailed))},
		{"resolve, retry", held, always(resolved(idem.OutcomeRetry))},
		{"stale result", []idem.Transition{run}, always(stale)},
		{"stale result, ended", []idem.Transition{run, succeed()}, always(stale)},
		{"expire", []idem.Transition{run, succeed()}, always(idem.Expire(testStart.Add(2 * testWindow)))},
	}
}

// sight is what of a store does not wait for anybody.
type sight struct {
	Due, Held []idem.Due
	Totals    idem.Totals
	Newest    time.Time
	Renewed   error
}

func look(t *testing.T, s *Store, k idem.Key, lease idem.Lease) sight {
	t.Helper()
	var v sight
	var errs [4]error
	v.Due, errs[0] = s.Due(t.Context(), 0)
	v.Held, errs[1] = s.Held(t.Context(), 0)
	v.Totals, errs[2] = s.Totals(t.Context())
	v.Newest, errs[3] = s.Newest(t.Context())
	v.Renewed = s.Renew(t.Context(), k, lease, time.Hour)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return v
}

// While the disk holds a commit up, nothing that is said depends on it: what is
// in memory is as before, and who asks for anything of the call waits. Once it
// is durable, all say the same (R4).
func TestGate(t *testing.T) {
	for _, ns := range []idem.Namespace{idem.DefaultNamespace, "other"} {
		for _, c := range gatedChanges() {
			t.Run(fmt.Sprintf("%s/%s", ns, c.name), func(t *testing.T) { c.run(t, ns) })
		}
	}
}

func (c gated) run(t *testing.T, ns idem.Namespace) {
	fsys := newHookFS(vfs.NewMem())
	s := openFS(t, fsys)
	// Neighbours on both sides, so that lists and ledgers have something to go
	// on from.
	older, younger := idem.Key{Namespace: ns, Name: "older"}, idem.Key{Namespace: ns, Name: "younger"}
	k := idem.Key{Namespace: ns, Name: "k"}
	update(t, s, older, fused(older, 1))
	update(t, s, younger, fused(younger, 900))
	id := idOf(k, 500)
	var lease idem.Lease
	events := 0
	if c.before != nil {
		for _, tr := range append([]idem.Transition{submit(k, 500)}, c.before...) {
			ch := update(t, s, k, tr)
			events += len(ch.Events)
			lease = idem.LeaseOf(ch.After)
		}
	}
	before := look(t, s, k, lease)

	g := newGate()
	var writer, readers sync.WaitGroup
	defer writer.Wait()
	defer readers.Wait()
	defer g.open()
	fsys.gateLogSync(g)
	var after idem.Call
	writer.Go(func() { after = *update(t, s, k, c.change(k)).After })
	<-g.reached
	// The engine shows a batch once it is in its memtable, which may be a moment
	// after the log is asked to sync.
	last := appendAuditKey(nil, mustTID(t, s, ns), id, uint32(events))
	for found := false; !found; runtime.Gosched() {
		found, _ = s.get(last, func([]byte) error { return nil })
	}

	if now := look(t, s, k, lease); !reflect.DeepEqual(now, before) {
		t.Errorf("before the commit\n%+v\nwhile it waits\n%+v", before, now)
	}

	list := func(q idem.Query) func(ctx context.Context) (any, error) {
		return func(ctx context.Context) (any, error) {
			q.Limit = 10
			calls, _, err := s.List(ctx, ns, q)
			return calls, err
		}
	}
	asks := map[string]func(ctx context.Context) (any, error){
		"CallByKey":    func(ctx context.Context) (any, error) { return s.CallByKey(ctx, k) },
		"CallByID":     func(ctx context.Context) (any, error) { return s.CallByID(ctx, ns, id) },
		"Events":       func(ctx context.Context) (any, error) { return s.Events(ctx, ns, id, 0, 100) },
		"Events, last": func(ctx context.Context) (any, error) { return s.Events(ctx, ns, id, 100, 100) },
		"List":         list(idem.Query{}),
		"List, before": list(idem.Query{Before: idOf(younger, 900)}),
		"List, tool":   list(idem.Query{Tool: "none of that name"}),
		"replay, join": func(ctx context.Context) (any, error) { return s.Update(ctx, k, submit(k, 502)) },
		"conflict":     func(ctx context.Context) (any, error) { return s.Update(ctx, k, conflict(k)) },
		"claim":        func(ctx context.Context) (any, error) { return s.Update(ctx, k, claim(otherTool, time.Hour)) },
		"look":         func(ctx context.Context) (any, error) { return s.Update(ctx, k, changesNothing) },
	}
	for _, status := range idem.Statuses {
		asks["List, "+string(status)] = list(idem.Query{Status: status})
	}
	ledger := c.name == "fused" || c.name == "succeed" || c.name == "requeue, fused" || c.name == "resolve, succeeded"
	if ledger {
		asks["Effects"] = func(ctx context.Context) (any, error) { return s.Effects(ctx, ns, idem.CallID{}, 10) }
		asks["Effects, after"] = func(ctx context.Context) (any, error) { return s.Effects(ctx, ns, idOf(older, 1), 10) }
	}
	for name, ask := range asks {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := ask(ctx)
			done <- err
		}()
		for waiters(s, k) == 0 {
			select {
			case err := <-done:
				t.Fatalf("%s: answered, %v", name, err)
			default:
				runtime.Gosched()
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Others do not wait.
	if _, err := s.CallByKey(t.Context(), older); err != nil {
		t.Error(err)
	}
	if calls, _, err := s.List(t.Context(), ns, idem.Query{Limit: 10, Before: id}); err != nil || len(calls) != 1 {
		t.Error(calls, err)
	}
	if effects, err := s.Effects(t.Context(), ns, id, 10); err != nil || len(effects) != 1 {
		t.Error(effects, err)
	}

	// All of them wait until it is durable, and are answered then.
	for name, ask := range asks {
		readers.Go(func() {
			if v, err := ask(t.Context()); err != nil && !errors.As(err, new(*idem.Error)) {
				t.Errorf("%s: %v, %v", name, v, err)
			}
		})
	}
	for waiters(s, k) < len(asks) {
		runtime.Gosched()
	}
	g.open()
	readers.Wait()
	writer.Wait()
	got, err := s.CallByKey(t.Context(), k)
	if err != nil || got.Revision < after.Revision {
		t.Errorf("%+v, %v", got, err)
	}
	calls, _, err := s.List(t.Context(), ns, idem.Query{Limit: 10})
	if err != nil || len(calls) != 3 || calls[1].ID != id {
		t.Error(calls, err)
	}
	if effects, err := s.Effects(t.Context(), ns, idem.CallID{}, 10); err != nil || ledger && len(effects) != 3 {
		t.Error(effects, err)
	}
	checkDisk(t, s)
}

// A namespace of which the number is not durable yet is unknown.
func TestGateOfANewNamespace(t *testing.T) {
	fsys := newHookFS(vfs.NewMem())
	s := openFS(t, fsys)
	g := newGate()
	var writer sync.WaitGroup
	defer writer.Wait()
	defer g.open()
	fsys.gateLogSync(g)
	k := idem.Key{Namespace: "new", Name: "k"}
	writer.Go(func() { update(t, s, k, fused(k, 1)) })
	<-g.reached
	for found := false; !found; runtime.Gosched() {
		found, _ = s.get(appendNamespaceKey(nil, "new"), func([]byte) error { return nil })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.CallByKey(ctx, k); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := s.CallByID(t.Context(), "new", idOf(k, 1)); !errors.Is(err, idem.ErrNotFound) {
		t.Error(err)
	}
	if calls, _, err := s.List(t.Context(), "new", idem.Query{Limit: 1}); len(calls) != 0 || err != nil {
		t.Error(calls, err)
	}
	if effects, err := s.Effects(t.Context(), "new", idem.CallID{}, 1); len(effects) != 0 || err != nil {
		t.Error(effects, err)
	}
}

// Rules of which the row is not durable yet are not there, and whoever saves them
// too is not told that they are (R4).
func TestGateOfNewRules(t *testing.T) {
	fsys := newHookFS(vfs.NewMem())
	s := openFS(t, fsys)
	if err := s.SaveRules(t.Context(), rulesOf(1)); err != nil {
		t.Fatal(err)
	}
	g := newGate()
	var writer sync.WaitGroup
	defer writer.Wait()
	defer g.open()
	fsys.gateLogSync(g)
	writer.Go(func() {
		if err := s.SaveRules(context.Background(), rulesOf(2)); err != nil {
			t.Error(err)
		}
	})
	<-g.reached
	for found := false; !found; runtime.Gosched() {
		found, _ = s.get(appendRulesKey(nil, rulesOf(2).ID()), func([]byte) error { return nil })
	}
	all, err := s.Rules(t.Context())
	if err != nil || len(all) != 1 || all[0].ID() != rulesOf(1).ID() {
		t.Error("while they are saved:", all, err)
	}
	// The same ones, and others: both wait, and can give up.
	for _, r := range []*idem.Rules{rulesOf(2), rulesOf(3)} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := s.SaveRules(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("saved meanwhile:", err)
		}
		cancel()
	}
	// What is there needs no write, and waits for none.
	if err := s.SaveRules(t.Context(), rulesOf(1)); err != nil {
		t.Error(err)
	}
	g.open()
	writer.Wait()
	if all, err := s.Rules(t.Context()); err != nil || len(all) != 2 {
		t.Error("afterwards:", all, err)
	}
}

func conflict(k idem.Key) idem.Transition {
	return idem.Submit(idem.Request{Key: k, Tool: "refund", Fingerprint: idem.Fingerprint{2}}, idem.Admission{})
}

func mustTID(t *testing.T, s *Store, ns idem.Namespace) nsid {
	t.Helper()
	id, ok := s.namespaces.get(ns)
	if !ok {
		t.Fatal("no such namespace:", ns)
	}
	return id
}

// waiters is how many wait for the lock of a key.
func waiters(s *Store, k idem.Key) int {
	st := s.locks.stripe(k)
	st.mu.Lock()
	defer st.mu.Unlock()
	if held := st.keys[k]; held != nil {
		return len(held.waiters)
	}
	return 0
}
