package runner

import (
	"errors"

	"github.com/idemd/idemd/idem"
)

// inlineWorker stands for the goroutine of a request among the workers, which
// are numbered from 1.
const inlineWorker = 0

// errMoved says that a call is not the one, or not at the attempt, that a local
// tool was run for.
var errMoved = errors.New("runner: the call was moved")

// inline brings a call of a local tool in and to its end in one commit. The tool
// runs here, before the commit and outside of any lock, for the call and attempt
// that the key will have. It reports false where the request has to go the
// ordinary way.
//
// It is safe only because effect and state are in one batch and nothing outside
// has happened: a crash before the commit leaves no trace, and nobody was told.
func (s *submission) inline() (ch idem.Change, ok bool, err error) {
	r := s.r
	cur, err := r.store.CallByKey(s.ctx(), s.f.key)
	unknown := errors.Is(err, idem.ErrNotFound)
	if err != nil && !unknown {
		return idem.Change{}, false, nil
	}
	var inv idem.Invocation
	switch {
	case unknown && s.check() == nil:
		inv = invocation(s.id, 1, s.Request.Args)
	case !unknown && cur.Status.Ended():
		// An end that is given again needs no look under the lock.
		ch, err := idem.Submit(s.Request, idem.Admission{Now: r.wall()})(&cur)
		if !ch.Write {
			return ch, true, err
		}
		if r.poison(cur.Crashes) {
			return idem.Change{}, false, nil
		}
		if cur, err = r.load(s.f.key); err != nil { // with its args
			return idem.Change{}, false, nil
		}
		inv = invocation(cur.ID, cur.Attempt+1, cur.Args)
	default:
		return idem.Change{}, false, nil
	}
	if r.Ready() != nil || !r.room.inline() {
		return idem.Change{}, false, nil
	}
	defer r.room.leave()
	w := r.start(s.tool, inv)
	out, quick := w.quick(s.Wait)
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
	settle := onlyUnder(lease, out.settle(s.tool, idem.Settlement{Terms: terms.Terms, Lease: lease}))
	ch, err = s.commit(idem.Chain(s.submit(nil), idem.Claim(terms), settle))
	if errors.Is(err, errMoved) {
		return idem.Change{}, false, nil
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
