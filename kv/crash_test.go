package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
)

// answers is what the store has answered: for each key the newest event that
// somebody was told of.
type answers struct {
	mu     sync.Mutex
	events map[idem.Key]int
	ended  map[idem.Key]idem.Status
}

func newAnswers() *answers {
	return &answers{events: make(map[idem.Key]int), ended: make(map[idem.Key]idem.Status)}
}

// note remembers an answer that has been given.
func (a *answers) note(ch idem.Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := ch.After.Key
	a.events[k] += len(ch.Events)
	if ch.After.Status.Ended() && !ch.After.Retryable() {
		a.ended[k] = ch.After.Status
	}
}

func (a *answers) copy() *answers {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := newAnswers()
	for k, n := range a.events {
		c.events[k] = n
	}
	for k, s := range a.ended {
		c.ended[k] = s
	}
	return c
}

// script drives a few keys through all kinds of changes, each answer noted when
// it is given.
func script(t *testing.T, s *Store, a *answers, rng *rand.Rand, steps int) {
	var wg sync.WaitGroup
	for w := range 4 {
		rng := rand.New(rand.NewPCG(rng.Uint64(), uint64(w)))
		wg.Go(func() {
			for n := range steps {
				k := idem.Key{Namespace: []idem.Namespace{"default", "b"}[n%2], Name: fmt.Sprintf("k-%d-%d", w, rng.IntN(1+n/3))}
				ch, err := s.Update(context.Background(), k, randomStep(rng, k, w*1_000_000+n))
				if err != nil && !errors.Is(err, idem.ErrKeyExpired) {
					t.Errorf("%v: %v", k, err)
				}
				if err == nil && ch.Write {
					a.note(ch)
				}
			}
		})
	}
	wg.Wait()
}

// randomStep does something that fits the record.
func randomStep(rng *rand.Rand, k idem.Key, n int) idem.Transition {
	dice := rng.IntN(100)
	return func(cur *idem.Call) (idem.Change, error) {
		switch {
		case cur == nil && dice < 40:
			return fused(k, n)(cur)
		case cur == nil && dice < 60:
			return idem.Chain(submit(k, n), claim(otherTool, time.Hour))(cur)
		case cur == nil:
			return submit(k, n)(cur)
		case cur.Status == idem.StatusPending && dice < 30:
			return idem.Chain(claim(localTool, time.Hour), succeed())(cur)
		case cur.Status == idem.StatusPending:
			return claim(otherTool, time.Hour)(cur)
		case cur.Status == idem.StatusHeld && dice < 50:
			return idem.Resolve(idem.Resolution{Terms: terms(), Outcome: idem.OutcomeRetry, By: "anna"})(cur)
		case cur.Status == idem.StatusHeld:
			return idem.Resolve(idem.Resolution{Terms: terms(), Outcome: idem.OutcomeSucceeded, By: "anna"})(cur)
		case cur.Status == idem.StatusRunning && dice < 50:
			return succeed()(cur)
		case cur.Status == idem.StatusRunning && dice < 80:
			return fail(true)(cur)
		case cur.Status == idem.StatusRunning && dice < 90:
			return hold()(cur)
		case cur.Status == idem.StatusRunning:
			return settling(idem.Release)(cur)
		case cur.Retryable() && dice < 40:
			return idem.Chain(submit(k, n), claim(localTool, time.Hour), fail(true))(cur)
		case dice < 5:
			return idem.Expire(testStart.Add(2 * testWindow))(cur)
		default:
			return submit(k, n)(cur)
		}
	}
}

// checkDisk holds a store at rest to what must be true of it at any time: the
// law as far as it shows, counts that equal a full scan, and a marker for each
// call without an end and for no other.
func checkDisk(t *testing.T, s *Store) {
	t.Helper()
	var all []idem.Namespace
	for ns := range s.tenants.all() {
		all = append(all, ns)
	}
	if err := storetest.Check(context.Background(), s, all...); err != nil {
		t.Fatal(err)
	}
	var stored idem.Totals
	if _, err := s.get(keyCounter, func(v []byte) (err error) { stored, err = decodeTotals(v); return err }); err != nil {
		t.Fatal(err)
	}
	if mirror := s.counts.get(); stored != mirror {
		t.Fatalf("stored counts %+v, in memory %+v", stored, mirror)
	}
	wantMarkers(t, s)
	if err := s.db.CheckLevels(nil); err != nil {
		t.Fatal(err)
	}
}

func wantMarkers(t *testing.T, s *Store) {
	t.Helper()
	marked := make(map[string]bool)
	each(t, s, prefixMarker, func(k, _ []byte) { marked[string(k[1:])] = true })
	calls := 0
	each(t, s, prefixCall, func(k, v []byte) {
		if k[callLen] != rowRequest {
			return
		}
		scoped := string(k[1:callLen])
		tid, id, _, _ := parseScoped(k)
		rec, err := s.readRows(tid, "", id, false)
		if err != nil {
			t.Fatal(err)
		}
		calls++
		if open := !rec.call.Status.Ended(); open != marked[scoped] {
			t.Fatalf("call %v is %s; marked: %v", id, rec.call.Status, marked[scoped])
		}
		delete(marked, scoped)
	})
	if len(marked) > 0 {
		t.Fatalf("%d markers without a call among %d", len(marked), calls)
	}
}

// each calls f for all keys with a prefix.
func each(t *testing.T, s *Store, prefix byte, f func(k, v []byte)) {
	t.Helper()
	it, err := s.iter([]byte{prefix})
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		f(it.Key(), it.Value())
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		t.Fatal(err)
	}
}

// survived compares an image with what had been answered before it was taken.
func (a *answers) survived(t *testing.T, s *Store) {
	t.Helper()
	for k, n := range a.events {
		c, err := s.CallByKey(context.Background(), k)
		if err != nil {
			t.Fatalf("%v was answered: %v", k, err)
		}
		events, err := s.Events(context.Background(), k.Namespace, c.ID, 0, 1_000_000)
		if err != nil || len(events) < n {
			t.Fatalf("%v: %d events, %v; %d were answered", k, len(events), err, n)
		}
		if end := a.ended[k]; end != "" && c.Status != end {
			t.Fatalf("%v: %s, but %s was answered", k, c.Status, end)
		}
	}
}

// A crash at any operation of the disk leaves what was answered, whole.
func TestCrashImages(t *testing.T) {
	for _, percent := range []int{0, 50} {
		t.Run(fmt.Sprintf("%d%% of the unsynced kept", percent), func(t *testing.T) {
			rng := seeded(t)
			fsys := newHookFS(vfs.NewCrashableMem())
			o := testOptions(fsys, "data")
			o.MemTable = minMemTable // rotations, flushes and compactions all the time
			var images []crashImage
			given := newAnswers()
			fsys.set(imageEvery(fsys, rand.New(rand.NewPCG(rng.Uint64(), 2)), percent, 23, given, &images))
			s := openOptions(t, o)
			steps := 400
			if testing.Short() || raced {
				steps = 80
			}
			script(t, s, given, rng, steps)
			fsys.set(nil)
			given.survived(t, s)
			checkDisk(t, s)
			closeStore(t, s)
			t.Logf("%d images", len(images))
			for i, im := range images {
				im.check(t, i)
			}
		})
	}
}

// A crash while a filled store is opened again leaves one that can be opened.
func TestCrashWhileOpening(t *testing.T) {
	rng := seeded(t)
	fsys := newHookFS(vfs.NewCrashableMem())
	o := testOptions(fsys, "data")
	o.MemTable = minMemTable
	given := newAnswers()
	s := openOptions(t, o)
	script(t, s, given, rng, 60)
	// What the first life left unsynced is gone: it crashed, too.
	fsys = newHookFS(fsys.image(vfs.CrashCloneCfg{}))
	closeStore(t, s)
	o.FS = fsys
	var images []crashImage
	k := 1
	if raced {
		k = 7
	}
	fsys.set(imageEvery(fsys, rng, 50, k, given, &images))
	s = openOptions(t, o)
	fsys.set(nil)
	closeStore(t, s)
	t.Logf("%d images", len(images))
	for i, im := range images {
		im.check(t, i)
	}
}

type crashImage struct {
	op    fsOp
	given *answers // before the image was taken
	fs    *vfs.MemFS
}

// imageEvery takes an image before every k-th operation.
func imageEvery(fsys *hookFS, rng *rand.Rand, percent, k int, given *answers, images *[]crashImage) func(fsOp) error {
	var mu sync.Mutex
	n := 0
	return func(o fsOp) error {
		mu.Lock()
		defer mu.Unlock()
		if o.read() {
			return nil
		}
		if n++; n%k != 0 {
			return nil
		}
		// What was answered is read first: it must be in the image.
		before := given.copy()
		image := fsys.image(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		*images = append(*images, crashImage{o, before, image})
		return nil
	}
}

func (im crashImage) check(t *testing.T, i int) {
	t.Helper()
	s, err := Open(testOptions(im.fs, "data"))
	if err != nil {
		t.Fatalf("image %d, before %v: %v", i, im.op, err)
	}
	defer closeStore(t, s)
	im.given.survived(t, s)
	checkDisk(t, s)
	// It goes on from there.
	update(t, s, keyOf("afterwards"), fused(keyOf("afterwards"), 5_000_000))
}
