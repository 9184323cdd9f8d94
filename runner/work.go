package runner

import (
	"context"
	"errors"
	"time"

	"github.com/idemd/idemd/idem"
)

// work is a tool that runs, on a goroutine of its own, for one attempt, or for a run
// that is not recorded.
type work struct {
	inv    idem.Invocation
	ctx    context.Context // ends with the tool's time, or when nobody wants it any more
	cancel context.CancelFunc
	done   chan outcome // takes one
}

// start runs a tool, at most as long as the context lasts.
func (r *Runner) start(ctx context.Context, tool *idem.Tool, inv idem.Invocation) *work {
	w := &work{inv: inv, done: make(chan outcome, 1)}
	w.ctx, w.cancel = context.WithTimeout(ctx, r.timeout(tool))
	go func() {
		out := asPanic // stays so where the tool ends the goroutine
		defer func() {
			out.timedOut = errors.Is(w.ctx.Err(), context.DeadlineExceeded)
			w.done <- out
		}()
		out = r.invoke(w.ctx, tool, inv)
	}()
	return w
}

// haltGrace is how long a tool may take to return when what still runs at a
// stop is given back.
const haltGrace = time.Second

// watch waits for a tool, and gives up when its time and the grace after it are
// over, or when the runner halts. At each beat it asks whether the lease is lost;
// where there is none, both are nil.
func (r *Runner) watch(w *work, beat <-chan time.Time, leaseLost func() bool) outcome {
	ended, halted := w.ctx.Done(), r.halted
	var giveUp <-chan time.Time
	for {
		select {
		case out := <-w.done:
			out.halted = halted == nil
			return out
		case <-beat:
			if leaseLost() {
				beat = nil
				w.cancel() // what it still does is settled as stale
			}
		case <-ended:
			ended = nil
			if giveUp == nil {
				giveUp = time.After(r.settings.Grace)
			}
		case <-halted:
			halted = nil
			w.cancel()
			giveUp = time.After(min(haltGrace, r.settings.Grace))
		case <-giveUp:
			select { // it may have come at the same moment
			case out := <-w.done:
				out.halted = halted == nil
				return out
			default:
			}
			return outcome{err: errDeaf, deaf: true, timedOut: errors.Is(w.ctx.Err(), context.DeadlineExceeded), halted: halted == nil}
		}
	}
}

// patience is how long a local tool may take to have its call begun and ended in
// one commit. A slower one saves little by it, and its call had better be seen,
// and have a lease and a worker. A local tool is a pure function, so that the
// ordinary way can go on with what runs already.
const patience = 250 * time.Millisecond

// try runs a local tool for a commit that is to begin and end its call, and waits
// for it at most for d. Where that is not enough, the work goes on.
func (r *Runner) try(tool *idem.Tool, inv idem.Invocation, d time.Duration) (w *work, out outcome, quick bool) {
	if tool.Instant {
		return nil, r.invoke(context.Background(), tool, inv), true
	}
	w = r.start(context.Background(), tool, inv)
	out, quick = w.quick(d)
	return w, out, quick
}

// quick waits for work that may be quick, and reports whether it was.
func (w *work) quick(d time.Duration) (outcome, bool) {
	timer := time.NewTimer(min(d, patience))
	defer timer.Stop()
	select {
	case out := <-w.done:
		w.cancel()
		return out, true
	case <-timer.C:
		return outcome{}, false
	}
}

// drop gives up work that has no attempt: nothing outside has happened, and
// nobody waits for it. It counts as abandoned until it returns.
func (w *work) drop(m *room) {
	if w == nil {
		return
	}
	w.cancel()
	m.orphan(w.inv.CallID)
	go func() {
		<-w.done
		m.returned(w.inv.CallID, "", 0)
	}()
}

func (r *Runner) timeout(tool *idem.Tool) time.Duration {
	if tool.Timeout > 0 {
		return tool.Timeout
	}
	return r.settings.ToolTimeout
}

// invocation is what a tool is given for an attempt.
func invocation(id idem.CallID, attempt int, args []byte) idem.Invocation {
	return idem.Invocation{CallID: id, EffectID: idem.EffectID(id), Attempt: attempt, Args: args}
}
