package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// unrecorded are the runs of tools that keep no record (see [idem.Tool]): on the
// request, with nothing stored before or after. The zero value is ready.
//
// They have turns of their own and take no worker, so that calls that were
// accepted never wait behind them. They do not count as busy in the room either: a
// call that may be poison waits until nothing is, and would never get its turn
// beside a busy look-up.
type unrecorded struct {
	mu    sync.Mutex
	byKey map[idem.Key]*run        // those under way that have a key
	turns map[string]chan struct{} // by tool; who runs has put one in
}

// run is one run of such a tool, and those who wait for it.
type run struct {
	tool        *idem.Tool
	key         idem.Key // no name where the request had none
	fingerprint idem.Fingerprint
	inv         idem.Invocation

	waiting int             // requests; under the lock of unrecorded
	ctx     context.Context // ends when nobody waits any more
	cancel  context.CancelFunc
	done    chan struct{} // closed when call or err is set
	call    idem.Call
	err     error
}

// submitUnrecorded carries out a request for a tool that keeps no record. It
// reports false where the request goes the ordinary way: another tool, or a key
// that has a stored call already, of whatever tool.
//
// Equal requests with one key that are there at the same time share one run, and
// another request with that key is in conflict meanwhile (R3); afterwards nothing
// is known of it. A run goes on while anybody waits for it, and no longer.
//
// Errors: ErrConflict; what validate says; ErrUnavailable while the runner drains,
// where it was no turn of the tool in time, or where the request must not stay; the
// context's; a store's.
func (r *Runner) submitUnrecorded(ctx context.Context, s idem.Submission) (a idem.Answer, taken bool, err error) {
	tool := r.tools[s.Request.Tool]
	if tool == nil || !tool.Unrecorded {
		return idem.Answer{}, false, nil
	}
	known, err := r.recorded(s.Request.Key)
	if known {
		return idem.Answer{}, false, nil
	}
	var n *run
	verdict := idem.VerdictNone
	if err == nil && s.Crowded {
		// Also where it could join: a tool that hangs would take every place that
		// there is for requests, those for calls too.
		err = idem.Errorf(idem.CodeUnavailable, "too many requests are being worked on for one that has to wait for its tool")
	}
	if err == nil {
		n, verdict, err = r.board(s, tool)
	}
	if verdict == idem.VerdictJoined {
		r.countVerdict(tool.Name, verdict)
	}
	if err == nil {
		a.Call, err = r.unrecorded.await(ctx, n)
	}
	if verdict != idem.VerdictJoined {
		r.countRun(tool.Name, err)
	}
	if err != nil {
		return idem.Answer{}, true, err
	}
	a.Verdict, a.Unrecorded = verdict, true
	return a, true, nil
}

// recorded reports whether a key has a stored call.
func (r *Runner) recorded(key idem.Key) (bool, error) {
	if key.Name == "" {
		return false, nil
	}
	_, err := r.store.CallByKey(context.Background(), key)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, idem.ErrNotFound):
		return false, nil
	default:
		return false, err
	}
}

// board finds the run that a request may join, or begins one.
func (r *Runner) board(s idem.Submission, tool *idem.Tool) (*run, idem.Verdict, error) {
	u := &r.unrecorded
	if old, err := u.join(s.Request); err != nil {
		return nil, idem.VerdictNone, err
	} else if old != nil {
		return old, idem.VerdictJoined, nil
	}
	if err := (&submission{r: r, Submission: s, tool: tool}).validate(); err != nil {
		return nil, idem.VerdictNone, err
	}
	fresh := &run{
		tool: tool, key: s.Request.Key, fingerprint: s.Request.Fingerprint,
		inv:     idem.Invocation{Attempt: 1, Args: s.Request.Args, Trace: s.Trace},
		waiting: 1, done: make(chan struct{}),
	}
	fresh.ctx, fresh.cancel = context.WithCancel(context.Background())
	if old, err := u.begin(fresh, s.Request); err != nil {
		return nil, idem.VerdictNone, err
	} else if old != nil {
		return old, idem.VerdictJoined, nil // it came in between
	}
	go r.carryOut(fresh)
	return fresh, idem.VerdictCreated, nil
}

// join lets a request wait for the run of its key; nil where there is none.
func (u *unrecorded) join(q idem.Request) (*run, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.joinLocked(q)
}

func (u *unrecorded) joinLocked(q idem.Request) (*run, error) {
	old := u.byKey[q.Key]
	switch {
	case old == nil: // also without a key, which names no run
		return nil, nil
	case old.fingerprint != q.Fingerprint:
		return nil, idem.ErrConflict
	}
	old.waiting++
	return old, nil
}

// begin makes a run known under its key, unless one can be joined, or is in
// conflict.
func (u *unrecorded) begin(fresh *run, q idem.Request) (*run, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if old, err := u.joinLocked(q); old != nil || err != nil {
		return old, err
	}
	if fresh.key.Name != "" {
		if u.byKey == nil {
			u.byKey = make(map[idem.Key]*run)
		}
		u.byKey[fresh.key] = fresh
	}
	return nil, nil
}

// await waits for a run, or until the client has gone.
func (u *unrecorded) await(ctx context.Context, n *run) (idem.Call, error) {
	select {
	case <-n.done:
	case <-ctx.Done():
		if !u.leave(n) {
			return idem.Call{}, ctx.Err()
		}
	}
	return n.call, n.err
}

// leave takes a request away from a run, which ends with the last one. It reports
// whether the run is over already.
func (u *unrecorded) leave(n *run) (over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-n.done:
		return true
	default:
	}
	if n.waiting--; n.waiting == 0 {
		u.forget(n) // who comes now must not get what was broken off
		n.cancel()
	}
	return false
}

func (u *unrecorded) forget(n *run) {
	if u.byKey[n.key] == n {
		delete(u.byKey, n.key)
	}
}

// tell gives everybody who waits for a run its answer.
func (u *unrecorded) tell(n *run, call idem.Call, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(n)
	n.call, n.err = call, err
	close(n.done)
}

// turnsOf are the turns of a tool: as many as may run at once.
func (u *unrecorded) turnsOf(tool *idem.Tool, workers int) chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.turns == nil {
		u.turns = make(map[string]chan struct{})
	}
	t := u.turns[tool.Name]
	if t == nil {
		n := workers
		if tool.Concurrency > 0 {
			n = tool.Concurrency
		}
		t = make(chan struct{}, n)
		u.turns[tool.Name] = t
	}
	return t
}

// carryOut runs the tool of a run when it is its turn, and tells what came of it.
func (r *Runner) carryOut(n *run) {
	turns := r.unrecorded.turnsOf(n.tool, r.settings.Workers)
	if err := r.turn(n, turns); err != nil {
		r.unrecorded.tell(n, idem.Call{}, err)
		return
	}
	if !r.beginRun() {
		<-turns
		r.unrecorded.tell(n, idem.Call{}, errDraining())
		return
	}
	defer r.loops.Done()
	w := r.start(n.ctx, n.tool, n.inv)
	out := r.watch(w, nil, nil)
	w.cancel()
	if out.deaf {
		r.leaveBehind(n.tool, w, turns)
	} else {
		<-turns // before anybody is told: who asks for the next thing at once finds it
	}
	call, err := r.unrecordedCall(n, out)
	r.unrecorded.tell(n, call, err)
}

// turn waits for a turn, as long as the tool itself might take.
func (r *Runner) turn(n *run, turns chan struct{}) error {
	timer := time.NewTimer(r.timeout(n.tool))
	defer timer.Stop()
	select {
	case turns <- struct{}{}:
		return nil
	case <-timer.C:
		return idem.Errorf(idem.CodeUnavailable, "the tool is busy: as many run as may")
	case <-r.draining:
		return errDraining()
	case <-n.ctx.Done():
		return n.ctx.Err() // nobody reads it
	}
}

func errDraining() error {
	return idem.Errorf(idem.CodeUnavailable, "not accepting new calls: stopping")
}

// beginRun lets Stop wait for a run until loops.Done, unless the runner drains
// already. Under the room's lock, so that it is before Stop begins to wait.
func (r *Runner) beginRun() bool {
	r.room.mu.Lock()
	defer r.room.mu.Unlock()
	if r.room.draining {
		return false
	}
	r.loops.Add(1)
	return true
}

// leaveBehind gives up a tool that does not return. Where too many have been given
// up already, it keeps its turn until it does, so that deaf tools use up the turns
// and not the memory.
func (r *Runner) leaveBehind(tool *idem.Tool, w *work, turns chan struct{}) {
	r.log.Warn("tool does not stop; its run is abandoned", "tool", tool.Name)
	r.counts.count(tool.Name, func(c *idem.Counts) { c.Abandoned++ })
	keep := r.room.leftBehind(1)
	if !keep {
		<-turns
	}
	go func() {
		<-w.done
		r.room.leftBehind(-1)
		if keep {
			<-turns
		}
	}()
}

// leftBehind counts runs that were given up and have not returned, beside the
// attempts. It reports whether there are too many.
func (m *room) leftBehind(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned += n
	return m.abandoned > m.limit
}

// unrecordedCall is the answer that an outcome makes. Nothing outside has
// happened, so a lost answer is one that may be asked for again.
func (r *Runner) unrecordedCall(n *run, out outcome) (idem.Call, error) {
	c := idem.Call{Key: n.key, Tool: n.tool.Name, Status: idem.StatusFailed, Attempt: 1, Effects: idem.EffectsNone}
	if out.err == nil {
		c.Status, c.Result = idem.StatusSucceeded, out.result.Output
		if c.Result == nil {
			c.Result = []byte("null")
		}
		return c, nil
	}
	r.log.Debug("run failed", "tool", n.tool.Name, "err", out.reason())
	var definite *idem.Failure
	switch {
	case out.panicked:
		c.Failure = &idem.Failure{Code: idem.FailurePanic, Message: "the tool panicked"}
	case errors.As(out.err, &definite) && definite != nil:
		f := definite.Clipped()
		c.Failure = &f
	case out.halted:
		return idem.Call{}, idem.Errorf(idem.CodeUnavailable, "stopping: the tool was broken off, and nothing was recorded")
	case out.timedOut:
		c.Failure = &idem.Failure{Code: idem.FailureTimeout, Message: "the tool did not answer in time", Retryable: true}
	default:
		c.Failure = &idem.Failure{Code: idem.FailureTool, Message: "the tool did not give an answer", Retryable: true}
	}
	return c, nil
}

// countRun counts a request that joined no run: it had one of its own, whether or
// not it stayed for the end, or it was refused.
func (r *Runner) countRun(tool string, err error) {
	gone := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	r.counts.count(tool, func(c *idem.Counts) {
		switch {
		case errors.Is(err, idem.ErrConflict):
			c.Conflicts++
		case err != nil && !gone:
			c.Refused++
		default:
			c.Created++
		}
	})
}
