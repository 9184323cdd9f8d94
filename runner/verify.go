package runner

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// verifier asks downstream about held calls whose tools can say what came of
// them, before any second dispatch (R13). No answer keeps a call held, and the
// question is asked again later.
type verifier struct {
	r     *Runner
	mu    sync.Mutex
	asks  map[idem.CallID]*ask
	peers map[string]*peer // by tool; one for each that can be asked
	wake  chan struct{}    // takes one signal
}

// peer is who is asked about the calls of one tool. Where it gives no answers,
// however many calls are held cost it, the log and this process no more than few.
type peer struct {
	line line // of questions that wait for their time
	open int  // questions that have not returned

	// silent counts the questions since the last that was answered. From
	// silentAfter on nothing is asked until rests, and each one more doubles the
	// pause.
	silent int
	rests  time.Time
	pause  time.Duration

	warned   time.Time // when the log was told of questions without an answer,
	unwarned int       // and how many there were since
}

// ask is a held call that downstream is asked about.
type ask struct {
	key  idem.Key
	id   idem.CallID
	tool *idem.Tool

	// since is when this process learnt that the attempt is held, which is later
	// than its dispatch. On the monotonic clock: a wall clock that jumps must
	// not make "not found" believed while downstream is still at work (R17).
	attempt int
	since   time.Time

	next  time.Time
	pause time.Duration // before the next question
}

// line is questions by their time, as a heap. One that is dropped stays in it until
// its turn, which is at most lastPause, or settle, away.
type line []*ask

func (l line) Len() int           { return len(l) }
func (l line) Less(i, j int) bool { return l[i].next.Before(l[j].next) }
func (l line) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *line) Push(a any)        { *l = append(*l, a.(*ask)) }
func (l *line) Pop() any {
	last := len(*l) - 1
	a := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return a
}

const (
	firstPause  = 500 * time.Millisecond
	lastPause   = time.Minute
	openAtOnce  = 8 // for each tool: one whose downstream is dead keeps none of the others waiting
	silentAfter = 8 // a single call that cannot be asked about keeps none of the others waiting
	noteFound   = "found downstream"
	noteAbsent  = "not found downstream"
	verifiedBy  = "verify"
	idleRecheck = time.Hour // nothing to ask: woken by a signal
)

var errStopping = errors.New("runner: stopping")

func newVerifier(r *Runner) *verifier {
	v := &verifier{
		r: r, asks: make(map[idem.CallID]*ask), peers: make(map[string]*peer), wake: make(chan struct{}, 1),
	}
	for name, t := range r.tools {
		if t.Verify != nil {
			v.peers[name] = &peer{pause: firstPause}
		}
	}
	return v
}

// start takes up the held calls of an earlier life.
func (v *verifier) start(ctx context.Context) error {
	held, err := v.r.store.Held(ctx, 0)
	if err != nil {
		return fmt.Errorf("runner: held calls: %w", err)
	}
	for _, d := range held {
		v.held(d.Key, d.ID, d.Attempt, d.Tool)
	}
	v.r.loops.Go(v.run)
	return nil
}

// held takes up a call that is held, if its tool can be asked.
func (v *verifier) held(key idem.Key, id idem.CallID, attempt int, tool string) {
	t := v.r.tools[tool]
	if t == nil || t.Verify == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	a := &ask{key: key, id: id, tool: t, attempt: attempt, since: now, next: now, pause: firstPause}
	v.asks[id] = a
	heap.Push(&v.peers[tool].line, a)
	v.signal()
}

func (v *verifier) signal() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// of returns the question about a call, nil where there is none.
func (v *verifier) of(id idem.CallID) *ask {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asks[id]
}

// forget drops a question. It names the question and not the call: the call may
// have run and be held again meanwhile.
func (v *verifier) forget(a *ask) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a != nil && v.asks[a.id] == a {
		delete(v.asks, a.id)
	}
}

// returned says that the tool of an attempt that was given up has returned: it
// may have been at work downstream until now, so "not found" has to wait anew.
func (v *verifier) returned(id idem.CallID, attempt int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.asks[id]; a != nil && a.attempt == attempt {
		a.since = time.Now()
	}
}

// run asks what is to be asked, until the runner drains.
func (v *verifier) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-v.r.draining:
			return
		case <-v.wake:
		case <-timer.C:
		}
		timer.Reset(v.askDue(ctx))
	}
}

// askDue begins the questions whose time has come and returns how long to wait
// for the next.
func (v *verifier) askDue(ctx context.Context) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	wait := idleRecheck
	for _, p := range v.peers {
		for p.open < openAtOnce && len(p.line) > 0 { // an answer wakes the loop
			first := p.line[0]
			if v.asks[first.id] != first { // decided since
				heap.Pop(&p.line)
				continue
			}
			if left := max(time.Until(first.next), time.Until(p.rests)); left > 0 {
				wait = min(wait, left)
				break
			}
			heap.Pop(&p.line)
			p.open++
			v.r.loops.Go(func() { v.ask(ctx, first) })
		}
	}
	return wait
}

// ask puts the question once and acts on the answer.
func (v *verifier) ask(ctx context.Context, a *ask) {
	call, err := v.r.load(a.key)
	if errors.Is(err, idem.ErrNotFound) || err == nil && (call.ID != a.id || call.Status != idem.StatusHeld) {
		v.forget(a) // decided by somebody else
		v.free(a)
		return
	}
	// "Not found" is as old as the question: downstream may have been at work
	// then, and so may a tool of this process that was given up.
	atWork := v.r.room.atWork(a.id) // before since, which moves when it returns
	v.mu.Lock()
	if err == nil && call.Attempt != a.attempt {
		// Another process has decided it, run it and lost it again.
		a.attempt, a.since = call.Attempt, time.Now()
	}
	since := a.since
	v.mu.Unlock()
	// As the attempt went out, and as it would now: the configuration may have changed
	// since, and then downstream may be at work for longer, or be another one.
	settle := max(call.Settle, v.r.settle(a.tool))
	believed := !atWork && time.Since(since) >= settle && call.Target == a.tool.Target
	answer, returned := idem.Verification{}, closed
	if err == nil {
		answer, returned, err = v.question(ctx, a, call)
	}
	defer func() {
		go func() {
			<-returned // one question at a time, even if it is deaf
			v.free(a)
		}()
	}()
	if err == nil {
		v.answered(a)
	}
	if believed && err == nil && !answer.Found {
		believed, err = v.unopposed(ctx, call)
	}
	switch {
	case errors.Is(err, errStopping): // nobody's silence
	case err != nil:
		v.unanswered(a, err)
	case answer.Found:
		if v.resolve(a, call.Revision, idem.Resolution{Outcome: idem.OutcomeSucceeded, Note: noteFound, Result: answer.Result}) {
			return
		}
	case believed:
		if v.resolve(a, call.Revision, notDone(a.tool, call.Attempt)) {
			return
		}
	}
	v.mu.Lock()
	a.next = time.Now().Add(a.pause)
	if believable := a.since.Add(settle); err == nil && !answer.Found && !believed && time.Until(believable) > 0 {
		a.next = believable
	}
	a.pause = min(2*a.pause, lastPause)
	v.mu.Unlock()
}

// answered notes that there was an answer, whatever it says.
func (v *verifier) answered(a *ask) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.peers[a.tool.Name]
	p.silent, p.pause = 0, firstPause
	p.rests = time.Time{}
}

// unanswered notes that there was none, and says so at most once in a while for
// each tool.
func (v *verifier) unanswered(a *ask, why error) {
	v.mu.Lock()
	p, now := v.peers[a.tool.Name], time.Now()
	if p.silent++; p.silent >= silentAfter && !now.Before(p.rests) {
		p.rests = now.Add(p.pause)
		p.pause = min(2*p.pause, lastPause)
	}
	p.unwarned++
	unwarned, warn := p.unwarned, p.warned.IsZero() || now.Sub(p.warned) >= lastPause
	if warn {
		p.warned, p.unwarned = now, 0
	}
	v.mu.Unlock()
	level := slog.LevelDebug
	if warn {
		level = slog.LevelWarn
	}
	v.r.log.Log(context.Background(), level, "verification gave no answer; the call stays held",
		"call_id", a.id.String(), "tool", a.tool.Name, "unanswered", unwarned, "err", why)
}

// notDone decides a call whose last attempt did nothing: it is run again, as
// often as its tool may be.
func notDone(t *idem.Tool, attempts int) idem.Resolution {
	most := t.MaxAttempts
	if most == 0 {
		most = idem.DefaultMaxReruns
	}
	if attempts < most {
		return idem.Resolution{Outcome: idem.OutcomeRetry, Note: noteAbsent}
	}
	return idem.Resolution{Outcome: idem.OutcomeFailed, Note: noteAbsent, Failure: idem.Failure{
		Code: idem.FailureExhausted, Message: fmt.Sprintf("attempt %d was the last; its answer was lost, and downstream does not know of it", attempts),
	}}
}

// unopposed reports whether nothing says that the attempt did what it was to do.
// A success that came too late to be applied (R6) is worth more than a downstream
// that does not know of it: such a call is not run again but by a person.
func (v *verifier) unopposed(ctx context.Context, call idem.Call) (bool, error) {
	const page = 256
	for from := 0; ; from += page {
		events, err := v.r.store.Events(ctx, call.Key.Namespace, call.ID, from, page)
		if err != nil {
			return false, err
		}
		for _, e := range events {
			if e.Name == idem.EventStaleResult && e.Attempt == call.Attempt && e.Outcome() == string(idem.OutcomeSucceeded) {
				v.r.log.Warn("not found downstream, but a late result says that it was done; the call stays held",
					"call_id", call.ID.String(), "tool", call.Tool, "attempt", call.Attempt)
				return false, nil
			}
		}
		if len(events) < page {
			return true, nil
		}
	}
}

// closed is a channel that is.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// free makes room for another question, about the same call too.
func (v *verifier) free(a *ask) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.peers[a.tool.Name]
	p.open--
	if v.asks[a.id] == a {
		heap.Push(&p.line, a)
	}
	v.signal()
}

// question runs the tool's verification. One that does not return when it is
// told to is left behind, like an abandoned attempt, and its answer is dropped;
// returned is closed when it does.
func (v *verifier) question(ctx context.Context, a *ask, call idem.Call) (_ idem.Verification, returned <-chan struct{}, _ error) {
	end := make(chan struct{})
	ctx, cancel := context.WithTimeout(ctx, v.r.timeout(a.tool))
	var found idem.Verification
	foundErr := errors.New("it ended without an answer")
	go func() {
		defer close(end)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				foundErr = fmt.Errorf("panic: %.200v", p)
			}
		}()
		found, foundErr = a.tool.Verify(ctx, invocation(a.id, call.Attempt, call.Args))
		if foundErr == nil && found.Found {
			foundErr = validResult(found.Result)
		}
	}()
	select {
	case <-end:
		return found, end, foundErr
	case <-v.r.draining:
		cancel()
		return idem.Verification{}, end, errStopping
	case <-ctx.Done():
		// Its own cancel comes just before its end: prefer the answer.
		select {
		case <-end:
			return found, end, foundErr
		case <-time.After(v.r.settings.Grace):
			return idem.Verification{}, end, ctx.Err()
		case <-v.r.draining:
			return idem.Verification{}, end, errStopping
		}
	}
}

// resolve decides the call as it was when it was asked about, and reports
// whether it is decided now, by this answer or by somebody else's. An answer
// about an earlier attempt decides nothing about a later one.
func (v *verifier) resolve(a *ask, revision int, res idem.Resolution) bool {
	res.By = verifiedBy
	_, err := v.r.resolve(a.key, a.id, revision, res)
	switch {
	case err == nil:
		v.r.log.Info("verification decided a held call", "call_id", a.id.String(), "tool", a.tool.Name, "outcome", string(res.Outcome))
		return true
	case errors.Is(err, idem.ErrNotHeld), errors.Is(err, idem.ErrNotFound):
		v.forget(a)
		return true
	default:
		v.r.log.Error("verification could not decide a held call", "call_id", a.id.String(), "tool", a.tool.Name, "err", err)
		return false
	}
}
