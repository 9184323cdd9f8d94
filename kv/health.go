package kv

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// exitUntrusted is the exit code after a failure on the write path.
	exitUntrusted = 70

	// lingering is how long after the engine's last word a slow disk or a full
	// one is believed to be so still: it repeats itself every two seconds.
	lingering = 5 * time.Second

	// quiet is the least time between two lines about background errors, of
	// which a full disk makes tens of thousands a second.
	quiet = 10 * time.Second

	watchEvery = time.Second
)

// health is what the engine says about itself. It says so while it holds its
// own locks, so whatever is called from there only moves atomics; the watch-dog
// draws the conclusions.
type health struct {
	start time.Time // times below are nanoseconds since then, monotonic; 0 is never

	stalled   atomic.Int64 // since when commits have been held back
	slowSeen  atomic.Int64 // when a write or sync was last seen to be slow
	slowSince atomic.Int64 // when that one began
	fullSeen  atomic.Int64 // when the disk was last found full
	fullSince atomic.Int64 // when that began
	noBallast atomic.Bool
	lowSpace  atomic.Bool

	errors atomic.Int64
	last   atomic.Pointer[error]
}

func (h *health) now() int64 { return max(1, int64(time.Since(h.start))) }

// recent reports whether something that was seen then may be so still.
func (h *health) recent(seen int64) bool {
	return seen != 0 && h.now()-seen < int64(lingering)
}

func (h *health) background(err error) {
	h.last.Store(&err)
	h.errors.Add(1)
	if vfs.IsNoSpaceError(err) {
		h.full()
	}
}

func (h *health) full() {
	now := h.now()
	if !h.recent(h.fullSeen.Load()) {
		h.fullSince.Store(now)
	}
	h.fullSeen.Store(now)
}

func (h *health) slow(i vfs.DiskSlowInfo) {
	now := h.now()
	h.slowSince.Store(max(1, now-int64(i.Duration)))
	h.slowSeen.Store(now)
}

// listener is what the engine calls.
func (s *Store) listener() *pebble.EventListener {
	h := &s.health
	return &pebble.EventListener{
		BackgroundError: h.background,
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			s.die("stored data are damaged", i.Details)
		},
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { h.stalled.CompareAndSwap(0, h.now()) },
		WriteStallEnd:   func() { h.stalled.Store(0) },
		FlushEnd: func(i pebble.FlushInfo) {
			if i.Err == nil {
				h.fullSeen.Store(0)
			}
		},
		PossibleAPIMisuse: func(i pebble.PossibleAPIMisuseInfo) {
			if s.opts.misuse != nil {
				s.opts.misuse(i.String())
				return
			}
			h.background(fmt.Errorf("kv: the engine was misused: %v", i.Kind))
		},
	}
}

var (
	errDead    = errors.New("the store has failed")
	errStalled = errors.New("the store holds writes back")
	errSlow    = errors.New("the disk does not answer in time")
	errFull    = errors.New("the disk is full")
	errLow     = errors.New("the disk is nearly full")
)

// Ready returns nil while the store takes writes, else why not.
func (s *Store) Ready() error {
	h := &s.health
	switch {
	case s.dead.Load():
		return errDead
	case h.stalled.Load() != 0:
		return errStalled
	case h.recent(h.slowSeen.Load()):
		return errSlow
	case h.noBallast.Load() || h.recent(h.fullSeen.Load()):
		return errFull
	case h.lowSpace.Load():
		return errLow
	}
	return nil
}

// watch is two goroutines. One ends the process when commits have been stuck for
// too long, and does nothing that could get stuck itself. The other asks the
// disk how full it is.
type watch struct {
	stop chan struct{}
	done sync.WaitGroup

	said   int64 // how many background errors the log has been told of
	saidAt int64
}

func (s *Store) startWatch() {
	s.watch.stop = make(chan struct{})
	s.every(min(watchEvery, s.opts.SlowGrace/4, s.opts.StallGrace/4), s.look)
	if s.opts.MinFree >= 0 {
		s.every(watchEvery, s.lookAtSpace)
	}
}

func (s *Store) every(d time.Duration, look func()) {
	s.watch.done.Go(func() {
		tick := time.NewTicker(max(d, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-s.watch.stop:
				return
			case <-tick.C:
				look()
			}
		}
	})
}

func (s *Store) stopWatch() {
	close(s.watch.stop)
	s.watch.done.Wait()
}

func (s *Store) look() {
	h := &s.health
	now := h.now()
	over := func(since int64, grace time.Duration) bool { return since != 0 && now-since > int64(grace) }
	switch {
	case over(h.stalled.Load(), s.opts.StallGrace):
		s.die("writes were held back for too long", nil)
	case h.recent(h.slowSeen.Load()) && over(h.slowSince.Load(), s.opts.SlowGrace):
		s.die("a write or sync took too long", nil)
	case !s.opened.Load() && h.recent(h.fullSeen.Load()) && over(h.fullSince.Load(), s.opts.StallGrace):
		// The engine would go round in circles until there is space.
		s.die("the disk was full for too long while the store was opened", nil)
	}
	s.complain(now)
}

// lookAtSpace says whether there is enough free space, and puts the ballast
// back once there is plenty.
func (s *Store) lookAtSpace() {
	usage, err := s.opts.FS.GetDiskUsage(s.dir)
	if err != nil {
		return
	}
	h := &s.health
	h.lowSpace.Store(usage.AvailBytes < uint64(s.opts.MinFree))
	plenty := uint64(s.opts.MinFree) + 2*uint64(max(s.opts.Ballast, 0))
	if h.noBallast.Load() && usage.AvailBytes > plenty && makeBallast(s.opts.FS, s.dir, s.opts.Ballast) == nil {
		h.noBallast.Store(false)
	}
}

// complain logs how many background errors there were, and the last.
func (s *Store) complain(now int64) {
	h := &s.health
	n, w := h.errors.Load(), &s.watch
	if n == w.said || w.said != 0 && now-w.saidAt < int64(quiet) {
		return
	}
	s.opts.Logger.Error("kv: errors in the background", "count", n-w.said, "last", *h.last.Load())
	w.said, w.saidAt = n, now
}

// giveUpBallast runs while all writes wait. It uses the file system below the
// one that called it, or it would wait for itself.
func (s *Store) giveUpBallast() {
	s.health.full()
	if s.opts.Ballast < 0 {
		return
	}
	s.health.noBallast.Store(true)
	if err := s.opts.FS.Remove(s.opts.FS.PathJoin(s.dir, ballastName)); err != nil {
		s.health.background(err)
	}
}

// die ends the process: whatever the disk holds now, this process does not know
// it any more. It never returns. Its locks stay locked, so that nothing is
// answered that depends on what failed.
func (s *Store) die(why string, cause any) {
	if s.dead.CompareAndSwap(false, true) {
		s.opts.Logger.Error("kv: the store can no longer be trusted; exiting", "why", why, "cause", cause)
		s.opts.Exit(exitUntrusted)
	}
	select {}
}

// engineLog passes the engine's log on. Its fatal errors must never return.
type engineLog struct {
	s   *Store
	log *slog.Logger
}

func (l engineLog) Infof(format string, args ...any) {
	l.log.Debug("kv: engine: " + fmt.Sprintf(format, args...))
}

func (l engineLog) Errorf(format string, args ...any) {
	l.log.Error("kv: engine: " + fmt.Sprintf(format, args...))
}

func (l engineLog) Fatalf(format string, args ...any) {
	l.s.die("the engine gave up", fmt.Sprintf(format, args...))
}
