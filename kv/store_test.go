package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
)

func TestOptions(t *testing.T) {
	err := Options{MemTable: 1, Cache: -1, OpenFiles: -1, SlowDisk: time.Hour, SlowGrace: time.Minute, StallGrace: -1}.Validate()
	for _, word := range []string{"directory", "MemTable", "Cache", "OpenFiles", "SlowGrace", "StallGrace"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("nothing about %s in %v", word, err)
		}
	}
	if err := (Options{Dir: "data"}).Validate(); err != nil {
		t.Error(err)
	}
	if _, err := Open(Options{}); err == nil {
		t.Error("a store without a directory was opened")
	}
}

// How many synced commits each way of a call costs, as far as the store goes.
func TestCommits(t *testing.T) {
	s := openMem(t)
	n := 0
	key := func() idem.Key { n++; return keyOf(fmt.Sprint("k", n)) }
	cases := []struct {
		name string
		want uint64
		run  func(k idem.Key)
	}{
		{"create with a free worker, complete", 2, func(k idem.Key) {
			update(t, s, k, idem.Chain(submit(k, n), claim(otherTool, time.Hour)))
			update(t, s, k, succeed())
		}},
		{"queued, a local tool", 2, func(k idem.Key) {
			update(t, s, k, submit(k, n))
			update(t, s, k, idem.Chain(claim(localTool, time.Hour), succeed()))
		}},
		{"queued, any other tool", 3, func(k idem.Key) {
			update(t, s, k, submit(k, n))
			update(t, s, k, claim(otherTool, time.Hour))
			update(t, s, k, succeed())
		}},
		{"a local tool in one", 1, func(k idem.Key) { update(t, s, k, fused(k, n)) }},
		{"requeue, a local tool in one", 2, func(k idem.Key) {
			update(t, s, k, idem.Chain(submit(k, n), claim(localTool, time.Hour), fail(true)))
			update(t, s, k, fused(k, n))
		}},
		{"requeue, any other tool", 3, func(k idem.Key) {
			update(t, s, k, idem.Chain(submit(k, n), claim(localTool, time.Hour), fail(true)))
			update(t, s, k, idem.Chain(submit(k, n), claim(otherTool, time.Hour)))
			update(t, s, k, succeed())
		}},
	}
	for _, c := range cases {
		before := s.commits.Load()
		c.run(key())
		if got := s.commits.Load() - before; got != c.want {
			t.Errorf("%s: %d commits, want %d", c.name, got, c.want)
		}
	}

	k := keyOf("free")
	ch := update(t, s, k, idem.Chain(submit(k, 1000), claim(otherTool, time.Hour)))
	before := s.commits.Load()
	update(t, s, k, submit(k, 1001))
	if err := s.Renew(t.Context(), k, idem.LeaseOf(ch.After), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Check(t.Context(), s, idem.DefaultNamespace); err != nil {
		t.Fatal(err)
	}
	if got := s.commits.Load() - before; got != 0 {
		t.Errorf("join, renewal and reads: %d commits", got)
	}
	s = reopen(t, s)
	if got := s.commits.Load(); got != 0 {
		t.Errorf("a second life: %d commits", got)
	}
	if m := s.db.Metrics(); m.WAL.BytesIn != 0 {
		t.Errorf("a second life: %d bytes to the log", m.WAL.BytesIn)
	}
	other := idem.Key{Namespace: "other", Name: "k"}
	update(t, s, other, fused(other, 2000))
	if got := s.commits.Load(); got != 2 {
		t.Errorf("the first use of a namespace: %d commits, want 2", got)
	}
}

// A new store is on its second log when it is served: the first one is in a
// form in which damage goes unnoticed.
func TestNewStore(t *testing.T) {
	s := openMem(t)
	if v := s.db.FormatMajorVersion(); v != formatVersion {
		t.Errorf("format %v", v)
	}
	if m := s.db.Metrics(); m.Flush.Count == 0 || s.commits.Load() != 1 {
		t.Errorf("%d flushes, %d commits", m.Flush.Count, s.commits.Load())
	}
	if at, err := s.Newest(t.Context()); err != nil || !at.IsZero() {
		t.Errorf("newest %v, %v", at, err)
	}
	closeStore(t, s)
	closeStore(t, s) // a second time
	// Somebody who did not hear of it must not end the process as if a commit
	// had failed.
	if _, err := s.Update(t.Context(), keyOf("late"), submit(keyOf("late"), 1)); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}

func TestRefusedDirectories(t *testing.T) {
	t.Run("a newer layout", func(t *testing.T) {
		fsys := vfs.NewMem()
		s := openFS(t, fsys)
		row := encodeSchema(schema{layoutVersion + 1, testStart})
		if err := s.db.Set(keySchema, append(row, "more"...), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		closeStore(t, s)
		if _, err := Open(testOptions(fsys, "data")); !errors.Is(err, ErrNewerFormat) {
			t.Fatal(err)
		}
		if _, err := Open(testOptions(fsys, "data")); !errors.Is(err, ErrNewerFormat) {
			t.Fatal("it was not let go of:", err)
		}
	})
	t.Run("a newer engine", func(t *testing.T) {
		fsys := vfs.NewMem()
		closeStore(t, openFS(t, fsys))
		f, err := fsys.Create("data/marker.format-version.000099.099", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := Open(testOptions(fsys, "data")); !errors.Is(err, ErrNewerFormat) {
			t.Fatal(err)
		}
	})
	t.Run("somebody else's", func(t *testing.T) {
		fsys := vfs.NewMem()
		db, err := pebble.Open("data", &pebble.Options{FS: fsys, Merger: countMerger, Logger: quietLog{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Set([]byte("a"), nil, pebble.Sync), db.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(testOptions(fsys, "data")); err == nil || !strings.Contains(err.Error(), "something else") {
			t.Fatal(err)
		}
	})
	t.Run("a full disk", func(t *testing.T) {
		fsys := vfs.NewMem()
		fsys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 1 << 30})
		if _, err := Open(testOptions(fsys, "data")); err == nil || !strings.Contains(err.Error(), "free disk space") {
			t.Fatal(err)
		}
		fsys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 300 << 20, TotalBytes: 1 << 30})
		openFS(t, fsys)
	})
}

type quietLog struct{}

func (quietLog) Infof(string, ...any)         {}
func (quietLog) Errorf(string, ...any)        {}
func (quietLog) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// sameStripe finds a second key on the stripe of the first.
func sameStripe(s *Store, k idem.Key) idem.Key {
	for i := 0; ; i++ {
		other := keyOf(fmt.Sprint("other", i))
		if s.locks.stripe(other) == s.locks.stripe(k) {
			return other
		}
	}
}

// No stripe is held across a sync: a second key on the same stripe gets as far
// as its own commit, and a third is read.
func TestStripeIsFreeDuringSync(t *testing.T) {
	fsys := newHookFS(vfs.NewMem())
	s := openFS(t, fsys)
	first := keyOf("first")
	second := sameStripe(s, first)
	update(t, s, second, submit(second, 1))
	g := newGate()
	defer g.open()
	fsys.gateLogSync(g)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer g.open()
	wg.Go(func() { update(t, s, first, fused(first, 2)) })
	<-g.reached
	entered := make(chan struct{})
	if _, err := s.CallByKey(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		update(t, s, second, func(cur *idem.Call) (idem.Change, error) {
			close(entered)
			return claim(otherTool, time.Hour)(cur)
		})
	})
	<-entered
}

// A caller who leaves ends its wait, not a commit.
func TestCommitGoesOnWithoutItsCaller(t *testing.T) {
	fsys := newHookFS(vfs.NewMem())
	s := openFS(t, fsys)
	g := newGate()
	fsys.gateLogSync(g)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	k := keyOf("k")
	go func() {
		_, err := s.Update(ctx, k, fused(k, 1))
		done <- err
	}()
	<-g.reached
	cancel()
	g.open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, k, submit(k, 2)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestPanicInATransition(t *testing.T) {
	s := openMem(t)
	k := keyOf("k")
	commits := s.commits.Load()
	func() {
		defer func() {
			if r := recover(); r != "mine" {
				t.Fatalf("recovered %v", r)
			}
		}()
		_, _ = s.Update(t.Context(), k, func(*idem.Call) (idem.Change, error) { panic("mine") })
	}()
	if s.locks.taken(k) || s.commits.Load() != commits {
		t.Fatal("the lock is held, or something was written")
	}
	update(t, s, k, fused(k, 1))
}

// What no rule above would ask for is refused here (R2, R8), and leaves all as
// it was.
func TestRefusedChanges(t *testing.T) {
	s := openMem(t)
	k := keyOf("k")
	update(t, s, k, fused(k, 1))
	bad := func(change func(ch *idem.Change)) idem.Transition {
		return func(cur *idem.Call) (idem.Change, error) {
			c := *cur
			ch := idem.Change{Before: cur, After: &c, Write: true}
			change(&ch)
			return ch, nil
		}
	}
	cases := []struct {
		name   string
		want   error
		change func(ch *idem.Change)
	}{
		{"a second effect", idem.ErrSecondEffect, func(ch *idem.Change) { ch.Effect = &idem.Effect{CallID: ch.After.ID} }},
		{"another id", idem.ErrSecondCall, func(ch *idem.Change) { ch.After.ID[0]++ }},
		{"from nothing", idem.ErrSecondCall, func(ch *idem.Change) { ch.Before = nil }},
		{"no record", errChange, func(ch *idem.Change) { ch.After = nil }},
		{"another key", errChange, func(ch *idem.Change) { ch.After.Key.Name = "x" }},
		{"no status", errChange, func(ch *idem.Change) { ch.After.Status = "odd" }},
		{"somebody's effect", errChange, func(ch *idem.Change) { ch.Effect = &idem.Effect{} }},
		{"an unknown promise", nil, func(ch *idem.Change) { ch.After.Rerun = "perhaps" }},
		{"a pause into the past", errChange, func(ch *idem.Change) { ch.After.Failure = &idem.Failure{RetryAfter: -time.Second} }},
		{"a pause of half a second", errChange, func(ch *idem.Change) { ch.After.Failure = &idem.Failure{RetryAfter: 500 * time.Millisecond} }},
		{"a pause of over ten years", errChange, func(ch *idem.Change) { ch.After.Failure = &idem.Failure{RetryAfter: idem.MaxRetryAfter + time.Second} }},
		{"other rules", errChange, func(ch *idem.Change) { ch.After.Rules = idem.RulesID{1} }},
		{"a negative count", nil, func(ch *idem.Change) { ch.After.Attempt = -1 }},
	}
	before := s.commits.Load()
	for _, c := range cases {
		_, err := s.Update(t.Context(), k, bad(c.change))
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if s.commits.Load() != before || s.locks.taken(k) {
		t.Error("something was written, or the lock is held")
	}
	checkDisk(t, s)
}

// One number per namespace, however many come first at once.
func TestNamespaces(t *testing.T) {
	s := openMem(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			k := idem.Key{Namespace: idem.Namespace(fmt.Sprint("ns", i%7)), Name: fmt.Sprint(i)}
			update(t, s, k, fused(k, i))
		})
	}
	wg.Wait()
	before := s.namespaces.all()
	s = reopen(t, s)
	after := s.namespaces.all()
	used := make(map[nsid]bool)
	for ns, id := range after {
		if before[ns] != id {
			t.Errorf("%q was %d, is %d", ns, before[ns], id)
		}
		used[id] = true
	}
	if len(after) != 8 || len(used) != 8 {
		t.Errorf("numbers %v", after)
	}
	k := idem.Key{Namespace: "one more", Name: "k"}
	update(t, s, k, fused(k, 1000))
	if id, _ := s.namespaces.get("one more"); used[id] {
		t.Errorf("the number %d was given out twice", id)
	}
	checkDisk(t, s)
}

// What a start reads does not depend on how many calls have ended.
func TestBootKeys(t *testing.T) {
	many := 100_000
	if testing.Short() || raced {
		many = 20_000
	}
	read := make(map[int]int)
	for _, finished := range []int{1_000, many} {
		fsys := vfs.NewMem()
		s := openFS(t, fsys)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < finished; i += 8 {
					k := keyOf(fmt.Sprint("k", i))
					update(t, s, k, fused(k, i))
				}
			})
		}
		wg.Wait()
		for i := range 20 {
			k := keyOf(fmt.Sprint("live", i))
			update(t, s, k, submit(k, finished+i))
		}
		s = reopen(t, s)
		due, err := s.Due(t.Context(), 0)
		if err != nil || len(due) != 20 || !due[0].Recovered {
			t.Fatal(len(due), err)
		}
		if totals, _ := s.Totals(t.Context()); totals.Calls != int64(finished)+20 {
			t.Fatalf("%+v", totals)
		}
		if at, _ := s.Newest(t.Context()); !at.Equal(idOf(keyOf("live19"), finished+19).Time()) {
			t.Fatalf("newest %v", at)
		}
		read[finished] = s.bootKeys
	}
	if read[1_000] != read[many] || read[many] > 100 {
		t.Errorf("keys read at start: %v", read)
	}
}

// Counts equal a full scan, and markers are where they belong, also after the
// engine has moved everything; the misuse of SingleDelete would panic.
func TestCountsAndMarkers(t *testing.T) {
	rng := seeded(t)
	s := openMem(t)
	for round := range 4 {
		if err := turmoil(s, newOracle(), rng, round, 60); err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
		} else if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
			t.Fatal(err)
		}
		checkDisk(t, s)
		s = reopen(t, s)
		checkDisk(t, s)
	}
}

func TestListPages(t *testing.T) {
	s := openMem(t)
	n := maxExamined + 10
	if raced {
		n = 50 // the race detector is after something else
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				k := keyOf(fmt.Sprint("k", i))
				update(t, s, k, fused(k, i+1))
			}
		})
	}
	wg.Wait()
	walk := func(q idem.Query) (calls []idem.Call, pages int) {
		t.Helper()
		for {
			page, next, err := s.List(t.Context(), idem.DefaultNamespace, q)
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, page...)
			pages++
			if next.IsZero() {
				return calls, pages
			}
			q.Before = next
		}
	}
	calls, _ := walk(idem.Query{Limit: 999})
	if len(calls) != n || !slices.IsSortedFunc(calls, func(a, b idem.Call) int { return slices.Compare(b.ID[:], a.ID[:]) }) {
		t.Fatalf("%d calls, or not from new to old", len(calls))
	}
	calls, pages := walk(idem.Query{Limit: 10, Status: idem.StatusHeld})
	if len(calls) != 0 || !raced && pages != 2 {
		t.Errorf("a rare status: %d calls on %d pages", len(calls), pages)
	}

	// Large results end a page early.
	for i := range 6 {
		k := idem.Key{Namespace: "large", Name: fmt.Sprint(i)}
		large := settling(func(st idem.Settlement) idem.Transition {
			return idem.Succeed(st, idem.Result{Output: make([]byte, 1<<20)})
		})
		update(t, s, k, idem.Chain(submit(k, i+1), claim(localTool, time.Hour), large))
	}
	page, next, err := s.List(t.Context(), "large", idem.Query{Limit: 100})
	if err != nil || len(page) != 4 || next != page[3].ID {
		t.Errorf("%d calls, %v, %v", len(page), next, err)
	}
}

// A call with many events is listed, and its events are found across rows.
func TestManyEvents(t *testing.T) {
	s := openMem(t)
	k := keyOf("k")
	ch := update(t, s, k, idem.Chain(submit(k, 1), claim(otherTool, time.Hour)))
	stale := idem.Settlement{Terms: terms(), Lease: idem.Lease{CallID: ch.After.ID, Owner: "gone", Attempt: 7}}
	for range 40 {
		update(t, s, k, idem.Succeed(stale, idem.Result{}))
	}
	second := keyOf("second")
	update(t, s, second, fused(second, 2))
	calls, _, err := s.List(t.Context(), idem.DefaultNamespace, idem.Query{Limit: 10})
	if err != nil || len(calls) != 2 || calls[1].Key != k || calls[1].Status != idem.StatusRunning {
		t.Fatal(calls, err)
	}
	for from := range 45 {
		events, err := s.Events(t.Context(), idem.DefaultNamespace, ch.After.ID, from, 5)
		if err != nil || len(events) != max(0, min(5, 42-from)) {
			t.Fatal(from, len(events), err)
		}
		for i, e := range events {
			if e.Seq != from+i {
				t.Fatalf("from %d: event %d has the number %d", from, i, e.Seq)
			}
		}
	}
}

// Leases go by the monotonic clock.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openOptions(t, testOptions(vfs.NewMem(), "data"))
		defer closeStore(t, s)
		k := keyOf("k")
		c := *update(t, s, k, idem.Chain(submit(k, 1), claim(otherTool, time.Minute))).After
		due := func(want int) {
			t.Helper()
			if d, err := s.Due(t.Context(), 0); err != nil || len(d) != want {
				t.Fatalf("%d are due, %v; want %d", len(d), err, want)
			}
		}
		due(0)
		time.Sleep(50 * time.Second)
		if err := s.Renew(t.Context(), k, idem.LeaseOf(&c), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		due(0)
		if got, err := s.CallByKey(t.Context(), k); err != nil || !got.LeaseUntil.Equal(time.Now().Add(time.Nanosecond)) {
			t.Fatal(got.LeaseUntil, err)
		}
		time.Sleep(time.Nanosecond)
		due(1)
		if err := s.Renew(t.Context(), k, idem.LeaseOf(&c), time.Minute); err != nil {
			t.Fatal("over, but nobody took it:", err)
		}
		due(0)
	})
}

// A damaged row is an error, for its own call and for nobody else.
func TestDamagedRow(t *testing.T) {
	s := openMem(t)
	good, bad := keyOf("good"), keyOf("bad")
	update(t, s, good, fused(good, 1))
	id := update(t, s, bad, fused(bad, 2)).After.ID
	if err := s.db.Set(appendStateKey(nil, 0, id), []byte("\x01damaged"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CallByKey(t.Context(), bad); !errors.Is(err, errCorrupt) {
		t.Error(err)
	}
	if _, err := s.Update(t.Context(), bad, submit(bad, 3)); !errors.Is(err, errCorrupt) {
		t.Error(err)
	}
	if _, err := s.CallByKey(t.Context(), good); err != nil {
		t.Error(err)
	}
}

// A commit alone is synced at once; only where many wait does the log pause, and
// never for long.
func TestSyncInterval(t *testing.T) {
	last := time.Duration(0)
	for n := range int64(10_000) {
		d := syncInterval(n)
		if d < last || d > time.Millisecond || n < 8 && d != 0 {
			t.Fatalf("%v for %d commits after %v", d, n, last)
		}
		last = d
	}
	if last == 0 {
		t.Error("it never pauses")
	}
}
