package runner

import (
	"errors"

	"github.com/idemd/idemd/idem"
)

// inlineWorker stands for the goroutine of a request among the workers, which
// are numbered from 1.
const inlineWorker = 0

// errMoved says that a call is not the one, or not at the attempt, that a local
// tool was run for. It never leaves this file.
var errMoved = errors.New("runner: the call was moved")

// inline brings the call of a local tool in and to its end in one commit; cur is
// the call as it was looked at, nil where there is none. The tool runs here,
// before the commit and outside of any lock, for the call and attempt that the
// key will have. It reports false where the request has to go the ordinary way.
//
// It is safe only because effect and state are in one batch and nothing outside
// has happened: a crash before the commit leaves no trace, and nobody was told.
func (s *submission) inline(cur *idem.Call) (ch idem.Change, ok bool, err error) {
	r := s.r
	var inv idem.Invocation
	switch {
	case cur == nil && s.check() == nil:
		s.mint()
		inv = invocation(s.id, 1, s.Request.Args)
	case cur != nil && cur.Status.Ended() && !r.suspect(cur): // to be requeued
		call, err := r.load(s.f.key) // with its args
		if err != nil {
			return idem.Change{}, false, nil
		}
		inv = invocation(call.ID, call.Attempt+1, call.Args)
	default:
		return idem.Change{}, false, nil
	}
	if r.Ready() != nil || !r.room.inline(s.Wait > 0) {
		return idem.Change{}, false, nil
	}
	defer r.room.leave()
	w, out, quick := r.try(s.tool, inv, s.Wait)
	if !quick {
		s.work = w
		return idem.Change{}, false, nil
	}
	return s.fuse(inv, out)
}

// fuse commits a call and its end at once.
func (s *submission) fuse(inv idem.Invocation, out outcome) (ch idem.Change, ok bool, err error) {
	r := s.r
	for _, p := range fusedPoints {
		if r.pass(s.rider, p, inv.CallID) {
			out = asPanic
		}
	}
	terms := r.claimTerms(s.Request.Tool, inlineWorker)
	lease := idem.Lease{CallID: inv.CallID, Owner: terms.Owner, Attempt: inv.Attempt}
	settle := onlyUnder(lease, out.transition(s.tool, r.settlement(terms.Terms, s.tool, lease)))
	ch, err = s.commit(idem.Chain(s.submit(nil), idem.Claim(terms), settle))
	if errors.Is(err, errMoved) || err == nil && !ch.After.Status.Ended() {
		return idem.Change{}, false, nil // another request came in between
	}
	return ch, true, err
}

// onlyUnder applies a settlement only under its lease, and commits nothing at
// all otherwise.
func onlyUnder(lease idem.Lease, settle idem.Transition) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		if !lease.Holds(cur) {
			return idem.Change{Before: cur, After: cur}, errMoved
		}
		return settle(cur)
	}
}
