package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ExitUntrusted is the exit code of a process whose store can no longer be
// trusted to write. Starting it again is the cure.
const ExitUntrusted = 70

const (
	// lingering is how long after the engine's last word a slow disk or a full
	// one is believed to be so still: it repeats itself every two seconds.
	lingering = 5 * time.Second

	// quiet is the least time between two lines about background errors, of
	// which a full disk makes tens of thousands a second.
	quiet = 10 * time.Second

	watchEvery = time.Second

	// lastWords is how long the end of the process waits for its log to be
	// written, since whoever reads the log may be stuck too.
	lastWords = 2 * time.Second
)

// health is what the engine says about itself. It says so while it holds its
// own locks, so whatever is called from there only moves atomics; the watch-dog
// draws the conclusions.
type health struct {
	start time.Time // times below are nanoseconds since then, monotonic; 0 is never

	stalled   atomic.Int64 // since when commits have been held back
	slowSeen  atomic.Int64 // when a write or sync was last seen to be slow
	slowSince atomic.Int64 // when that one began
	full      spell        // the disk is full
	failing   spell        // there are errors in the background, whatever they are
	noBallast atomic.Bool
	lowSpace  atomic.Bool

	errors atomic.Int64
	last   atomic.Pointer[error]
	failed chan struct{} // of one: there was another
}

// nextError returns what is sent to when the next error comes.
func (h *health) nextError() <-chan struct{} {
	select {
	case <-h.failed:
	default:
	}
	return h.failed
}

func (h *health) now() int64 { return max(1, int64(time.Since(h.start))) }

// recent reports whether something that was seen then may be so still.
func (h *health) recent(seen int64) bool {
	return seen != 0 && h.now()-seen < int64(lingering)
}

func (h *health) background(err error) {
	h.last.Store(&err)
	h.errors.Add(1)
	select {
	case h.failed <- struct{}{}:
	default:
	}
	h.failing.note(h)
	if vfs.IsNoSpaceError(err) {
		h.full.note(h)
	}
}

// spell is something that is believed to last for as long as it is seen again
// and again.
type spell struct {
	seen  atomic.Int64 // the last time
	since atomic.Int64 // when it began
}

func (s *spell) note(h *health) {
	now := h.now()
	if !s.lasts(h) {
		s.since.Store(now)
	}
	s.seen.Store(now)
}

func (s *spell) lasts(h *health) bool { return h.recent(s.seen.Load()) }

func (s *spell) end() { s.seen.Store(0) }

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
		// Whoever reads what is damaged is told so by an error; to end the
		// process would let one damaged call stop all others, again and again.
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			h.background(fmt.Errorf("kv: stored data are damaged: %v", i))
		},
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { h.stalled.CompareAndSwap(0, h.now()) },
		WriteStallEnd:   func() { h.stalled.Store(0) },
		FlushEnd: func(i pebble.FlushInfo) {
			if i.Err == nil {
				h.full.end()
				h.failing.end()
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
	case h.noBallast.Load() || h.full.lasts(h):
		return errFull
	case h.lowSpace.Load():
		return errLow
	}
	return nil
}

// watch is two goroutines. One ends the process when commits have been stuck for
// too long, and does nothing that could get stuck itself. The other asks the
// disk how full it is, and writes to the log.
type watch struct {
	stop chan struct{}
	done sync.WaitGroup

	said   int64 // how many background errors the log has been told of
	saidAt int64
}

func (s *Store) startWatch() {
	s.watch.stop = make(chan struct{})
	s.every(min(watchEvery, s.opts.SlowGrace/4, s.opts.StallGrace/4), s.look)
	s.every(watchEvery, func() {
		s.complain(s.health.now())
		s.lookAtSpace()
	})
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
	case !s.opened.Load() && h.failing.lasts(h) && over(h.failing.since.Load(), s.opts.StallGrace):
		// The engine goes round in circles until the disk is well.
		s.die("the store cannot be opened", *h.last.Load())
	}
}

// lookAtSpace says whether there is enough free space, and puts the ballast
// back once there is plenty.
func (s *Store) lookAtSpace() {
	s.checkPlace()
	usage, err := s.opts.FS.GetDiskUsage(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		// Logs that are open can be written and synced for as long as one
		// likes, but nobody will ever read them.
		s.die("the data directory is gone", err)
	}
	if err != nil {
		return
	}
	h := &s.health
	margin := uint64(max(s.opts.MinFree, 0))
	h.lowSpace.Store(usage.AvailBytes < margin)
	plenty := margin + 2*uint64(max(s.opts.Ballast, 0))
	if h.noBallast.Load() && usage.AvailBytes > plenty {
		// Said before it is so: it may be given up again as soon as it is there, and
		// that must be the last word.
		h.noBallast.Store(false)
		if err := makeBallast(s.opts.FS, s.dir, s.opts.Ballast); err != nil {
			h.noBallast.Store(true) // the next look tries again
		}
	}
}

// checkPlace ends the process when another directory is where the store was:
// what is written and deleted by name would be the other one's.
func (s *Store) checkPlace() {
	if s.holding.moved() {
		s.die("another directory is in the place of the data directory", nil)
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

// die ends the process: whatever the disk holds now, this process does not know
// it any more. It never returns. Its locks stay locked, so that nothing is
// answered that depends on what failed.
func (s *Store) die(why string, cause any) {
	if s.dead.CompareAndSwap(false, true) {
		said := make(chan struct{})
		go func() {
			defer close(said)
			s.opts.Logger.Error("kv: the store can no longer be trusted; exiting", "why", why, "cause", cause)
		}()
		select {
		case <-said:
		case <-time.After(lastWords):
		}
		s.opts.Exit(ExitUntrusted)
	}
	select {}
}

// blow ends the process after a failed operation of the disk.
func (s *Store) blow(op, name string, err error) {
	s.die("the disk failed", fmt.Errorf("%s %s: %w", op, name, err))
}

// dieOfPanic is deferred where the engine writes for a caller. Its locks are in
// disorder after a panic: further up, where somebody may recover, everything
// would hang for ever.
func (s *Store) dieOfPanic() {
	if r := recover(); r != nil {
		s.die("the engine panicked", r)
	}
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
