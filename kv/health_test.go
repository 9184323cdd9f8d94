package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openOptions(t, testOptions(vfs.NewMem(), "data"))
		defer closeStore(t, s)
		ready := func(want error) {
			t.Helper()
			if err := s.Ready(); !errors.Is(err, want) {
				t.Errorf("ready: %v, want %v", err, want)
			}
		}
		ready(nil)
		l := s.listener()
		l.WriteStallBegin(pebble.WriteStallBeginInfo{})
		ready(errStalled)
		l.WriteStallEnd()
		ready(nil)
		s.health.slow(vfs.DiskSlowInfo{Duration: 6 * time.Second})
		ready(errSlow)
		time.Sleep(lingering + 1)
		ready(nil)
		l.BackgroundError(errors.New("something else"))
		ready(nil)
		l.BackgroundError(&os.PathError{Op: "write", Path: "secret", Err: syscall.ENOSPC})
		ready(errFull)
		l.FlushEnd(pebble.FlushInfo{})
		ready(nil)
	})
}

// exits catches the end of the process, and ends the goroutine that asked for
// it: the watch-dog's, which holds no lock.
func exits(o *Options) chan int {
	codes := make(chan int, 10)
	o.Exit = func(code int) {
		codes <- code
		runtime.Goexit()
	}
	return codes
}

// What is stuck for longer than its grace ends the process, and nothing is
// answered from then on.
func TestWatchDog(t *testing.T) {
	cases := map[string]func(s *Store){
		"a stall": func(s *Store) { s.listener().WriteStallBegin(pebble.WriteStallBeginInfo{}) },
		"a slow disk": func(s *Store) {
			s.health.slow(vfs.DiskSlowInfo{Duration: s.opts.SlowGrace + time.Second})
		},
	}
	for name, happen := range cases {
		t.Run(name, func(t *testing.T) {
			// No bubble: what has died never leaves its locks.
			o := testOptions(vfs.NewMem(), "data")
			o.SlowDisk, o.SlowGrace, o.StallGrace = time.Millisecond, 4*time.Millisecond, 4*time.Millisecond
			codes := exits(&o)
			s := openOptions(t, o)
			k := keyOf("k")
			update(t, s, k, fused(k, 1))
			happen(s)
			if code := <-codes; code != ExitUntrusted {
				t.Errorf("exit code %d", code)
			}
			buryAfter(t, s)
			if err := s.Ready(); !errors.Is(err, errDead) {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if c, err := s.CallByKey(ctx, k); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(c, err)
			}
			for name, tr := range map[string]idem.Transition{"replay": submit(k, 1), "new": fused(keyOf("new"), 2)} {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Millisecond, cancel) // whenever: nothing but this ends the wait
				key := keyOf("new")
				if name == "replay" {
					key = k
				}
				if ch, err := s.Update(ctx, key, tr); !errors.Is(err, context.Canceled) {
					t.Error(name, ch, err)
				}
			}
			if err := s.Close(); !errors.Is(err, errDead) {
				t.Error(err)
			}
		})
	}
}

// buryAfter ends what a dead store leaves in this process, which in life the
// exit does.
func buryAfter(t *testing.T, s *Store) { t.Cleanup(func() { _ = s.undo() }) }

// A disk that is full in the background: not ready, the ballast is given up,
// and after there is space again everything is as before.
func TestFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 30})
	fsys := newHookFS(mem)
	o := testOptions(fsys, "data")
	o.MemTable = minMemTable
	s := openOptions(t, o)
	defer closeStore(t, s)
	ballast := func() bool { _, err := mem.Stat("data/" + ballastName); return err == nil }
	if !ballast() {
		t.Fatal("there is no ballast")
	}
	var full atomic.Bool
	full.Store(true)
	fsys.set(func(o fsOp) error {
		if full.Load() && o.name == "Create" && len(o.file) > 4 && o.file[len(o.file)-4:] == ".sst" {
			return &os.PathError{Op: "open", Path: o.file, Err: syscall.ENOSPC}
		}
		return nil
	})
	// Commits go on until all memtables are full.
	n := 0
	for ; s.Ready() == nil; n++ {
		k := keyOf(fmt.Sprint(n))
		update(t, s, k, fused(k, n))
	}
	if err := s.Ready(); !errors.Is(err, errFull) {
		t.Error(err)
	}
	for ballast() {
		runtime.Gosched()
	}
	full.Store(false)
	k := keyOf("after")
	update(t, s, k, fused(k, n))
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	s.lookAtSpace()
	if err := s.Ready(); err != nil || !ballast() {
		t.Error(err, ballast())
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 20, TotalBytes: 1 << 30})
	s.lookAtSpace()
	if err := s.Ready(); !errors.Is(err, errLow) {
		t.Error(err)
	}
	if totals, err := s.Totals(t.Context()); err != nil || totals.Of(idem.StatusSucceeded) != int64(n)+1 {
		t.Error(totals, err)
	}
	checkDisk(t, s)
}

// A ballast that is given up while it is put back, and one that cannot be put
// back, are both missed, until the next look puts it back.
func TestBallastIsMissed(t *testing.T) {
	for name, spoil := range map[string]func(s *Store) error{
		"given up while it is made": func(s *Store) error { s.giveUpBallast(); return nil },
		"cannot be made":            func(*Store) error { return syscall.EIO },
	} {
		test := func(t *testing.T) {
			mem := vfs.NewMem()
			mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 30})
			fsys := newHookFS(mem)
			s := openFS(t, fsys)
			s.giveUpBallast()
			var once sync.Once
			fsys.set(func(o fsOp) (err error) {
				if o.name == "Sync" && o.file == ballastName {
					once.Do(func() { err = spoil(s) })
				}
				return err
			})
			for _, there := range []bool{false, true} {
				s.lookAtSpace()
				s.health.full.end() // what the engine saw is not in question here
				if _, err := mem.Stat("data/" + ballastName); (err == nil) != there {
					t.Fatalf("the ballast is there: %v, want %v", err == nil, there)
				}
				if err := s.Ready(); (err == nil) != there {
					t.Errorf("ballast there: %v, ready: %v", there, err)
				}
			}
		}
		// In a bubble, where the watch-dog's own look does not come in between.
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// The directory is synced between the making of a MANIFEST and the marker that
// points to it.
func TestManifestIsSynced(t *testing.T) {
	fsys := newHookFS(vfs.NewMem())
	if err := fsys.MkdirAll("data", 0o755); err != nil {
		t.Fatal(err)
	}
	var ops []fsOp
	fsys.set(func(o fsOp) error { ops = append(ops, o); return nil })
	f, err := manifestFS{fsys}.Create("data/MANIFEST-000001", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if len(ops) != 2 || ops[1] != (fsOp{name: "Sync", file: "data"}) {
		t.Error(ops)
	}
}
