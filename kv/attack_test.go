package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

func TestOpensRace(t *testing.T) {
	dir := t.TempDir()
	for range 5 {
		var wg sync.WaitGroup
		var won atomic.Pointer[Store]
		for i := range 8 {
			wg.Go(func() {
				s, err := Open(testOptions(nil, dir+strings.Repeat("/.", i%2)))
				switch {
				case err == nil && !won.CompareAndSwap(nil, s):
					t.Error("it is open twice")
				case err != nil && !errors.Is(err, ErrInUse):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		checkDisk(t, won.Load())
		closeStore(t, won.Load())
	}
}

// Whatever cannot be a data directory is refused, and let go of.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, file + "/data"} {
		if _, err := Open(testOptions(nil, dir)); err == nil {
			t.Errorf("%s was opened", dir)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Error(b, err)
	}

	for _, errno := range []syscall.Errno{syscall.EROFS, syscall.EACCES} {
		for _, filled := range []bool{false, true} {
			fsys := newHookFS(vfs.NewMem())
			if filled {
				closeStore(t, openOptions(t, testOptions(fsys, "data")))
			}
			fsys.set(func(o fsOp) error {
				if o.read() {
					return nil
				}
				return &os.PathError{Op: o.name, Path: o.file, Err: errno}
			})
			if _, err := Open(testOptions(fsys, "data")); !errors.Is(err, errno) {
				t.Errorf("%v, filled %v: %v", errno, filled, err)
			}
			fsys.set(nil)
			closeStore(t, openOptions(t, testOptions(fsys, "data")))
		}
	}
}

// A copy put in the place of the directory ends the process before it deletes the
// copy's files by name (R4).
func TestDirectoryIsReplaced(t *testing.T) {
	for name, notice := range map[string]func(s *Store){
		"the watch-dog notices": func(*Store) {},
		"Close notices":         func(s *Store) { go func() { _ = s.Close() }() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			o := testOptions(nil, dir)
			codes := exits(&o)
			s := openOptions(t, o)
			if err := os.Rename(dir, dir+".moved"); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(dir+".moved")); err != nil {
				t.Fatal(err)
			}
			notice(s)
			if code := <-codes; code != ExitUntrusted {
				t.Error(code)
			}
			if err := errors.Join(os.RemoveAll(dir), os.Rename(dir+".moved", dir)); err != nil {
				t.Fatal(err)
			}
			if err := s.undo(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Removing the lock file as stale does not let a second process in.
func TestLockFileRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openOptions(t, testOptions(nil, dir))
	defer closeStore(t, s)
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	// What another process would do; this one is stopped by its own list before.
	if h, err := holdDir(vfs.Default, s.dir); !errors.Is(err, ErrInUse) {
		t.Errorf("%v, %v", h, err)
	}
}

// A place that cannot be written to is an error, and no failing disk.
func TestNotWritable(t *testing.T) {
	fsys := newHookFS(vfs.NewMem())
	o := testOptions(fsys, "data")
	closeStore(t, openOptions(t, o))
	o.Exit = func(code int) { t.Errorf("exit %d", code); runtime.Goexit() }
	fsys.set(func(op fsOp) error {
		if op.name == "Create" {
			return errors.New("read-only file system")
		}
		return nil
	})
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "nothing can be written") {
		t.Error(err)
	}
}

// A directory that is gone ends the process: its logs could be written and
// synced for ever, and nobody would ever read them (R4).
func TestDirectoryIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	o := testOptions(nil, dir)
	o.MinFree = -1
	codes := exits(&o)
	s := openOptions(t, o)
	k := keyOf("k")
	update(t, s, k, fused(k, 1))
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	if code := <-codes; code != ExitUntrusted { // the watch-dog looks by itself
		t.Error(code)
	}
	if err := os.Rename(dir+".moved", dir); err != nil {
		t.Fatal(err)
	}
	if err := s.undo(); err != nil {
		t.Error(err)
	}
	o.Exit = nil
	s = openOptions(t, o)
	defer closeStore(t, s)
	if _, err := s.CallByKey(t.Context(), k); err != nil {
		t.Error(err)
	}
}

// Any namespace and any name are kept apart, whatever bytes they have.
func TestOddNames(t *testing.T) {
	s := openMem(t)
	long := strings.Repeat("x", 255)
	odd := []string{"", "a", "ab", "b", "a\x00b", "\x00", "\xff", "\xff\xff", "ab\x00", long, long[:254] + "\xff", "default", "T", "\x00\x00\x00\x01"}
	n := 0
	for _, ns := range odd {
		for _, name := range odd {
			n++
			k := idem.Key{Namespace: idem.Namespace(ns), Name: name}
			tr := fused(k, n)
			if n%2 == 0 {
				tr = submit(k, n)
			}
			if ch := update(t, s, k, tr); ch.Verdict != idem.VerdictCreated {
				t.Fatalf("%q: %v", k, ch.Verdict)
			}
		}
	}
	for range 2 {
		n = 0
		for _, ns := range odd {
			for _, name := range odd {
				n++
				k := idem.Key{Namespace: idem.Namespace(ns), Name: name}
				if c, err := s.CallByKey(t.Context(), k); err != nil || c.ID != idOf(k, n) || c.Key != k {
					t.Fatalf("%q: %v, %v", k, c, err)
				}
			}
			calls, _, err := s.List(t.Context(), idem.Namespace(ns), idem.Query{Limit: 1000})
			if err != nil || len(calls) != len(odd) {
				t.Fatalf("%q: %d calls, %v", ns, len(calls), err)
			}
		}
		// Check takes no call without a name for sound; here one is.
		if err := markers(s); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s)
	}
}

// Pages of a very long audit trail.
func TestLongTrail(t *testing.T) {
	n := 10_000
	if raced {
		n = 1_000
	}
	s := openMem(t)
	k := keyOf("k")
	id := update(t, s, k, idem.Chain(submit(k, 1), claim(otherTool, time.Hour))).After.ID
	other := keyOf("other")
	update(t, s, other, fused(other, 2))
	for range n - 2 {
		update(t, s, k, stale)
	}
	for range 2 {
		for from := 0; from < n; {
			events, err := s.Events(t.Context(), k.Namespace, id, from, 777)
			if err != nil || len(events) != min(777, n-from) || events[0].Seq != from {
				t.Fatal(from, len(events), err)
			}
			from += len(events)
		}
		if events, err := s.Events(t.Context(), k.Namespace, id, n, 5); err != nil || len(events) != 0 {
			t.Fatal(events, err)
		}
		if calls, _, err := s.List(t.Context(), k.Namespace, idem.Query{Limit: 5}); err != nil || len(calls) != 2 {
			t.Fatal(calls, err)
		}
		checkDisk(t, s)
		s = reopen(t, s)
	}
}

// Readers that take no lock see whole records all the same: no tombstone that
// still knows its client, no running call without its lease.
func TestReadersSeeWholeRecords(t *testing.T) {
	s := openMem(t)
	client := "me"
	n := 300
	if raced {
		n = 60
	}
	var now atomic.Int64 // the call that is being changed
	key := func(i int) idem.Key { return keyOf(fmt.Sprint("k", i)) }
	for i := range n {
		k := key(i)
		update(t, s, k, func(cur *idem.Call) (idem.Change, error) {
			ch, err := submit(k, i)(cur)
			c := *ch.After
			c.ClientID = &client
			ch.After = &c
			return ch, err
		})
	}
	var done atomic.Bool
	var readers sync.WaitGroup
	whole := func(how string, c *idem.Call, err error) {
		switch {
		case err != nil:
			t.Errorf("%s: %v", how, err)
		case (c.ClientID == nil) != c.Tombstone:
			t.Errorf("%s: half a tombstone: %+v", how, *c)
		case c.LeaseUntil.IsZero() == (c.Status == idem.StatusRunning):
			t.Errorf("%s: %s, leased until %v", how, c.Status, c.LeaseUntil)
		}
	}
	for range 2 {
		readers.Go(func() {
			for !done.Load() && !t.Failed() {
				c, err := s.CallByKey(t.Context(), key(int(now.Load())))
				whole("by key", &c, err)
				c, err = s.CallByID(t.Context(), c.Key.Namespace, c.ID)
				whole("by id", &c, err)
			}
		})
		readers.Go(func() {
			for !done.Load() && !t.Failed() {
				calls, _, err := s.List(t.Context(), idem.DefaultNamespace, idem.Query{Limit: 5})
				for i := range calls {
					whole("listed", &calls[i], err)
				}
			}
		})
	}
	for i := range n {
		now.Store(int64(i))
		k := key(i)
		for range 3 {
			update(t, s, k, claim(otherTool, time.Hour))
			update(t, s, k, settling(idem.Release))
		}
		update(t, s, k, claim(otherTool, time.Hour))
		update(t, s, k, succeed())
		update(t, s, k, idem.Expire(testStart.Add(2*testWindow)))
	}
	done.Store(true)
	readers.Wait()
	checkDisk(t, s)
}

// A clean stop does not wait for a disk that takes no tables: what was answered
// is in the logs.
func TestCloseOnABadDisk(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		fsys := newHookFS(vfs.NewMem())
		s := openOptions(t, testOptions(fsys, "data"))
		for i := range 20 {
			k := keyOf(fmt.Sprint(i))
			update(t, s, k, fused(k, i))
		}
		fsys.set(func(o fsOp) error {
			if o.table() && o.name == "Create" {
				return &os.PathError{Op: "open", Path: o.file, Err: cause}
			}
			return nil
		})
		closeStore(t, s)
		fsys.set(nil)
		s = openOptions(t, testOptions(fsys, "data"))
		if totals, err := s.Totals(t.Context()); err != nil || totals.Calls != 20 {
			t.Errorf("%v: %+v, %v", cause, totals, err)
		}
		checkDisk(t, s)
		closeStore(t, s)
	}
}

// A log that takes no line does not keep the process alive.
func TestExitWithAStuckLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := testOptions(vfs.NewMem(), "data")
		codes := exits(&o)
		s := &Store{opts: o.withDefaults()}
		s.opts.Logger = slog.New(stuckUntil{ctx})
		go s.die("a test", nil)
		if code := <-codes; code != ExitUntrusted {
			t.Error(code)
		}
		cancel()
	})
}

// stuckUntil is a log whose reader does not read until a context ends.
type stuckUntil struct{ ctx context.Context }

func (stuckUntil) Enabled(context.Context, slog.Level) bool { return true }
func (l stuckUntil) Handle(context.Context, slog.Record) error {
	<-l.ctx.Done()
	return nil
}
func (l stuckUntil) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l stuckUntil) WithGroup(string) slog.Handler      { return l }
