package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// fault is operations of the disk that fail from some moment on.
type fault struct {
	name string

	// hits returns what picks the operations. It is asked in their order.
	hits func() func(o fsOp) bool

	// lives says that the engine tries again by itself: the process ends when
	// commits have been held back for too long, and not before.
	lives bool

	noFlush bool // on a fresh log, nothing may be flushed for it to be hit
}

func ops(hit func(o fsOp) bool) func() func(fsOp) bool {
	return func() func(fsOp) bool { return hit }
}

func manifest(o fsOp) bool { return strings.HasPrefix(o.file, "MANIFEST-") }
func newLog(o fsOp) bool   { return o.log() && (o.name == "Create" || o.name == "ReuseForWrite") }

// dirSyncAfter picks syncs of the directory that come after some operation.
func dirSyncAfter(first func(o fsOp) bool) func() func(fsOp) bool {
	return func() func(fsOp) bool {
		seen := false
		return func(o fsOp) bool {
			seen = seen || first(o)
			return seen && o.sync() && o.file == filepath.Base(os.Getenv("KV_TEST_DIR"))
		}
	}
}

var faults = []fault{
	{name: "writing the log", hits: ops(func(o fsOp) bool { return o.log() && o.name == "Write" })},
	{name: "syncing the log", hits: ops(func(o fsOp) bool { return o.log() && o.sync() })},
	{name: "making the next log", hits: ops(newLog), noFlush: true},
	{name: "syncing the directory of the next log", hits: dirSyncAfter(newLog), noFlush: true},
	{name: "making a MANIFEST", hits: ops(func(o fsOp) bool { return manifest(o) && o.name == "Create" })},
	{name: "writing the MANIFEST", hits: ops(func(o fsOp) bool { return manifest(o) && o.name == "Write" })},
	{name: "syncing the MANIFEST", hits: ops(func(o fsOp) bool { return manifest(o) && o.sync() })},
	{name: "pointing to a MANIFEST", hits: ops(func(o fsOp) bool { return strings.HasPrefix(o.file, "marker.manifest") && o.name == "Create" })},
	{name: "making a table", hits: ops(func(o fsOp) bool { return o.table() && o.name == "Create" }), lives: true},
	{name: "writing a table", hits: ops(func(o fsOp) bool { return o.table() && o.name == "Write" }), lives: true},
	{name: "syncing a table", hits: ops(func(o fsOp) bool { return o.table() && o.sync() }), lives: true},
	{name: "syncing the directory of a table", hits: dirSyncAfter(func(o fsOp) bool { return o.table() && o.name == "Create" })},
}

var faultErrors = map[string]syscall.Errno{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC}

// said is what a child tells its parent: one line, written at once.
var said sync.Mutex

func say(format string, args ...any) {
	said.Lock()
	defer said.Unlock()
	fmt.Printf(format+"\n", args...)
}

// childFails works on a few keys from many goroutines, and tells each answer it
// is given, until operations of the disk begin to fail and the store ends the
// process. The role is "fresh|recycled/the fault/the error[/healed]".
func childFails(dir, role string) int {
	words := strings.Split(role, "/")
	recycled, healed := words[0] == "recycled", len(words) > 3
	var f fault
	for _, f = range faults {
		if f.name == words[1] {
			break
		}
	}
	fsys := newHookFS(vfs.Default)
	o := testOptions(fsys, dir)
	o.MemTable = minMemTable
	o.StallGrace = 300 * time.Millisecond
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.tune = func(p *pebble.Options) {
		p.MaxManifestFileSize = 1 // a new one at every flush
		if f.noFlush && !recycled {
			// Writes go on, without a flush, until the logs that may be used again are.
			p.MemTableStopWritesThreshold = 1000
		}
	}
	var s *Store
	o.Exit = func(code int) {
		if nothingIsAnswered(s) {
			os.Exit(code)
		}
		os.Exit(childAnswered)
	}
	var reused atomic.Int64
	fsys.set(func(o fsOp) error {
		if o.name == "ReuseForWrite" {
			reused.Add(1)
		}
		return nil
	})
	s, err := Open(o)
	if err != nil {
		say("open: %v", err)
		return 1
	}
	w := workers{s: s, stop: make(chan struct{})}
	w.start()
	for w.done.Load() < 20 || recycled && reused.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	var well atomic.Bool
	var once sync.Once
	hit := f.hits()
	var mu sync.Mutex
	fsys.set(func(o fsOp) error {
		if !recycled && f.noFlush && o.table() {
			select {} // without flushes there is soon no old log to recycle
		}
		mu.Lock()
		defer mu.Unlock()
		otherLog := newLog(o) && (o.name == "Create") == recycled // comes in between
		if well.Load() || otherLog || !hit(o) {
			return nil
		}
		once.Do(func() { say("fault %s %s", o.name, o.file) })
		return &os.PathError{Op: o.name, Path: o.file, Err: faultErrors[words[2]]}
	})
	for !healed || s.Ready() == nil {
		time.Sleep(time.Millisecond)
	}
	say("not ready: %v", s.Ready())
	well.Store(true)
	for before := w.done.Load(); w.done.Load() < before+20; {
		time.Sleep(time.Millisecond)
	}
	close(w.stop)
	w.wg.Wait()
	if err := s.Close(); err != nil {
		say("close: %v", err)
		return 1
	}
	return childHealed
}

// workers are callers of a store, who tell what they are answered.
type workers struct {
	s    *Store
	wg   sync.WaitGroup
	stop chan struct{}
	done atomic.Int64
}

func (w *workers) start() {
	for i := range 6 {
		w.wg.Go(func() { w.write(i) })
	}
	for range 2 {
		w.wg.Go(w.read)
	}
}

func (w *workers) stopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

func (w *workers) write(i int) {
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	for n := i * 1_000_000; !w.stopped(); n++ {
		k := keyOf(fmt.Sprintf("k-%d-%d", i, n/4%1000))
		ch, err := w.s.Update(context.Background(), k, padded(randomStep(rng, k, n)))
		w.done.Add(1)
		switch {
		case err == nil:
			say("ack %s %d %s", k.Name, ch.After.Revision, ch.After.Status)
		case !errors.Is(err, idem.ErrKeyExpired):
			say("error %v", err)
		}
	}
}

func (w *workers) read() {
	for n := 0; !w.stopped(); n++ {
		k := keyOf(fmt.Sprintf("k-%d-%d", n%6, n%40))
		if c, err := w.s.CallByKey(context.Background(), k); err == nil {
			say("ack %s %d %s", k.Name, c.Revision, c.Status)
		} else if !errors.Is(err, idem.ErrNotFound) {
			say("error %v", err)
		}
	}
}

// padded makes what a new call stores large, so that logs and tables are full
// soon.
func padded(tr idem.Transition) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		ch, err := tr(cur)
		if err == nil && cur == nil {
			c := *ch.After
			c.Args = make([]byte, 3000)
			ch.After = &c
		}
		return ch, err
	}
}

// nothingIsAnswered asks everything that can be asked of a store that has
// failed. It may be called under locks of the engine, so some questions never
// get as far as their context.
func nothingIsAnswered(s *Store) bool {
	if s == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	ns, k := idem.DefaultNamespace, keyOf("k-0-0")
	answered := make(chan string, 20)
	for name, ask := range map[string]func() error{
		"Update":       func() error { _, err := s.Update(ctx, k, submit(k, 1)); return err },
		"Update, new":  func() error { k := keyOf("new"); _, err := s.Update(ctx, k, fused(k, 1)); return err },
		"Update, none": func() error { k := keyOf("no"); _, err := s.Update(ctx, k, changesNothing); return err },
		"CallByKey":    func() error { _, err := s.CallByKey(ctx, k); return err },
		"CallByID":     func() error { _, err := s.CallByID(ctx, ns, idOf(k, 0)); return err },
		"Events":       func() error { _, err := s.Events(ctx, ns, idOf(k, 0), 0, 10); return err },
		"List":         func() error { _, _, err := s.List(ctx, ns, idem.Query{Limit: 10}); return err },
		"List, other":  func() error { _, _, err := s.List(ctx, "other", idem.Query{Limit: 10}); return err },
		"Effects":      func() error { _, err := s.Effects(ctx, ns, idem.CallID{}, 10); return err },
		"Totals":       func() error { _, err := s.Totals(ctx); return err },
		"Newest":       func() error { _, err := s.Newest(ctx); return err },
		"Rules":        func() error { _, err := s.Rules(ctx); return err },
		"SaveRules":    func() error { return s.SaveRules(ctx, rulesOf(1)) },
		"Due":          func() error { _, err := s.Due(ctx, 10); return err },
		"Held":         func() error { _, err := s.Held(ctx, 10); return err },
		"Renew":        func() error { return s.Renew(ctx, k, idem.Lease{}, time.Hour) },
	} {
		go func() {
			if err := ask(); !errors.Is(err, context.DeadlineExceeded) {
				answered <- fmt.Sprint(name, ": ", err)
			}
		}()
	}
	select {
	case what := <-answered:
		say("answered afterwards: %s", what)
		return false
	case <-time.After(100 * time.Millisecond):
		return s.Ready() != nil
	}
}

func changesNothing(cur *idem.Call) (idem.Change, error) {
	return idem.Change{Before: cur, After: cur}, nil
}

// survivors compares what a child was answered with what is on its disk.
func survivors(t *testing.T, dir, out string) (answers int, hit string) {
	t.Helper()
	type answer struct {
		revision int
		status   string
	}
	newest := make(map[string]answer)
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		switch words[0] {
		case "fault":
			hit = words[1] + " " + words[2]
		case "ack":
			n, err := strconv.Atoi(words[2])
			if err != nil {
				t.Fatal(line)
			}
			answers++
			if newest[words[1]].revision <= n {
				newest[words[1]] = answer{n, words[3]}
			}
		case "not":
		default:
			t.Errorf("the child says %s", line)
		}
	}
	s := openOptions(t, testOptions(nil, dir))
	defer closeStore(t, s)
	for name, a := range newest {
		c, err := s.CallByKey(t.Context(), keyOf(name))
		if err != nil || c.Revision < a.revision || c.Revision == a.revision && string(c.Status) != a.status {
			t.Errorf("%s: %s, revision %d, %v; %s, revision %d was answered", name, c.Status, c.Revision, err, a.status, a.revision)
		}
	}
	checkDisk(t, s)
	return answers, hit
}

// Whatever fails in writing, the process ends with one clear line, nothing is
// answered that is not on disk, and the next life goes on from there.
func TestFailingDisk(t *testing.T) {
	for _, log := range []string{"fresh", "recycled"} {
		for _, f := range faults {
			for errno := range faultErrors {
				if raced && errno != "EIO" {
					continue // the same way through the code
				}
				t.Run(log+" log/"+f.name+"/"+errno, func(t *testing.T) {
					t.Parallel()
					dir := t.TempDir()
					code, out, logged := runChild(t, "fault/"+log+"/"+f.name+"/"+errno, dir)
					if code != ExitUntrusted || strings.Count(logged, "can no longer be trusted") != 1 || strings.Contains(logged, "goroutine ") {
						t.Fatalf("exit code %d, logged:\n%.3000s", code, logged)
					}
					answers, hit := survivors(t, dir, out)
					if answers < 20 || hit == "" {
						t.Fatalf("%d answers, the fault: %q", answers, hit)
					}
					if f.name == "making the next log" && (log == "recycled") != strings.HasPrefix(hit, "ReuseForWrite") {
						t.Errorf("a %s log, but the fault was in %s", log, hit)
					}
					if f.lives && !strings.Contains(logged, "held back for too long") {
						t.Errorf("it did not end for the right reason:\n%.3000s", logged)
					}
				})
			}
		}
	}
}

// A disk that is well again before the grace is over leaves no trace.
func TestDiskRecovers(t *testing.T) {
	for _, f := range faults {
		if !f.lives {
			continue
		}
		for errno := range faultErrors {
			t.Run(f.name+"/"+errno, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				code, out, logged := runChild(t, "fault/recycled/"+f.name+"/"+errno+"/healed", dir)
				if code != childHealed {
					t.Fatalf("exit code %d, logged:\n%.3000s", code, logged)
				}
				want := errStalled.Error()
				if errno == "ENOSPC" {
					want = errFull.Error()
				}
				if !strings.Contains(out, "not ready: "+want) {
					t.Errorf("it was ready, or for another reason; want %s", want)
				}
				if answers, hit := survivors(t, dir, out); answers < 40 || hit == "" {
					t.Errorf("%d answers, the fault: %q", answers, hit)
				}
			})
		}
	}
}

// childOpens opens a store of which the k-th operation fails, and all after it.
func childOpens(dir, role string) int {
	k, errno, _ := strings.Cut(role, "/")
	at, err := strconv.Atoi(k)
	if err != nil {
		return 1
	}
	fsys := newHookFS(vfs.Default)
	o := testOptions(fsys, dir)
	o.StallGrace, o.Exit = 100*time.Millisecond, nil
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	var n atomic.Int64
	fsys.set(func(o fsOp) error {
		if n.Add(1) < int64(at) {
			return nil
		}
		return &os.PathError{Op: o.name, Path: o.file, Err: faultErrors[errno]}
	})
	s, err := Open(o)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return childRefused
	case n.Load() < int64(at):
		fsys.set(nil)
		_ = s.Close() // the answer is that it opened
		return childUnharmed
	}
	// What failed was not needed to open: it shows at the first change, where its
	// read fails, which is an error, or else its write, which ends the process.
	if _, err := s.Update(context.Background(), keyOf("k"), fused(keyOf("k"), 1)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return childRefused
	}
	say("opened after %d operations, then a change was answered", n.Load())
	return childAnswered
}

// A disk on which any operation of the opening fails, and all after it: an
// error, or the end of the process, and a store that is as it was.
func TestFailingDiskWhileOpening(t *testing.T) {
	step := 7
	if torturing(t) > 0 {
		step = 1
	}
	for _, filled := range []bool{false, true} {
		for errno := range faultErrors {
			t.Run(fmt.Sprintf("filled %v/%s", filled, errno), func(t *testing.T) {
				t.Parallel()
				for k := 1; ; k += step {
					dir := t.TempDir()
					if filled {
						s := openOptions(t, testOptions(nil, dir))
						for n := range 5 {
							update(t, s, keyOf(fmt.Sprint(n)), submit(keyOf(fmt.Sprint(n)), n))
						}
						abandon(t, s, dir)
					}
					code, out, logged := runChild(t, fmt.Sprintf("open failing/%d/%s", k, errno), dir)
					if code == childUnharmed {
						t.Logf("%d operations", k)
						return
					}
					if code != childRefused && code != ExitUntrusted || strings.Contains(logged, "goroutine ") {
						t.Fatalf("operation %d: exit code %d, %s, logged:\n%.3000s", k, code, out, logged)
					}
					s := openOptions(t, testOptions(nil, dir))
					if totals, err := s.Totals(t.Context()); err != nil || filled && totals.Calls != 5 {
						t.Errorf("operation %d: %+v, %v", k, totals, err)
					}
					checkDisk(t, s)
					closeStore(t, s)
				}
			})
		}
	}
}

// abandon leaves a directory as the end of a process without a Close does: with
// a log to be replayed.
func abandon(t *testing.T, s *Store, dir string) {
	t.Helper()
	image := t.TempDir()
	if err := os.CopyFS(filepath.Join(image, "data"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	if err := errors.Join(os.RemoveAll(dir), os.Rename(filepath.Join(image, "data"), dir)); err != nil {
		t.Fatal(err)
	}
}
