package runner

import (
	"context"
	"errors"
	"time"

	"github.com/idemd/idemd/idem"
)

// longestPoll bounds how long a look that failed waits for the next one.
const longestPoll = 10 * time.Second

// dispatch finds what is due and gives it to workers, calls of idle tools first and
// then oldest first, until the runner drains. Calls of an earlier life, calls that
// waited in the queue, and over a shared store calls of processes that died all come
// this way. A request runs its call without it where a worker is free, or where the
// tool is local and is waited for; never while somebody waits here.
func (r *Runner) dispatch() {
	// Leases of others run out without a signal, and so does the patience with
	// what could not be claimed.
	poll := time.NewTicker(min(max(r.settings.Lease/3, 10*time.Millisecond), longestPoll))
	defer poll.Stop()
	for {
		select {
		case <-r.draining:
			return
		case <-r.room.wake:
		case <-poll.C:
			r.tidy()
			r.room.forgetPauses(time.Now())
		}
		r.dispatchDue()
	}
}

func (r *Runner) dispatchDue() {
	if l, ok := r.room.idleTools(); ok {
		r.handOut(l)
	}
	l, ok := r.room.look()
	if !ok {
		return
	}
	switch found, all := r.handOut(l); {
	case !all:
	case found < l.limit:
		r.room.clear(l.marks)
	default:
		r.room.mark() // there may be more behind them
	}
}

// handOut gives what a look finds to workers. It returns how much that was, and
// whether all of it was looked at.
func (r *Runner) handOut(l look) (found int, all bool) {
	due, err := r.store.Due(context.Background(), l.limit, l.except...)
	if err != nil {
		r.log.Error("looking for due calls failed; the next signal tries again", "err", err)
		return 0, false
	}
	for _, d := range due {
		worker, taken, more := r.room.next(d, d.Suspect(r.owner(0), r.maxCrashes(d.Tool)), time.Now())
		if taken {
			go r.fromQueue(d, worker)
		}
		if !more {
			return len(due), false
		}
	}
	return len(due), true
}

// tidyAtOnce is how many keys are looked at each time.
const tidyAtOnce = 16

// tidy lets go of what is kept in memory for calls that have ended all the same:
// over a shared store another process may have run them, and no write of this
// one will take the deliveries along that it counted.
func (r *Runner) tidy() {
	for key, fresh := range r.flights.kept(tidyAtOnce) {
		c, err := r.store.CallByKey(context.Background(), key)
		if errors.Is(err, idem.ErrNotFound) || err == nil && c.Status.Ended() {
			r.flights.drop(key, fresh)
		}
	}
}
