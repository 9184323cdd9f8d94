package runner

import "github.com/idemd/idemd/idem"

// share is how many calls of a tool run at once, and how many may, so that a slow
// tool takes not every worker, and what it calls is not overrun. A nil share is that
// of a tool that is not there any more. All under the room's lock.
type share struct {
	limit, taken int // a limit of zero is none

	// waiting says that calls of the tool may be due that were kept back since as
	// many run as may. New ones go behind them.
	waiting bool
	skipped bool // in the look that is going on
}

func newShares(tools map[string]*idem.Tool) map[string]*share {
	shares := make(map[string]*share)
	for name, t := range tools {
		shares[name] = &share{limit: t.Concurrency}
	}
	return shares
}

func (s *share) full() bool { return s != nil && s.limit > 0 && s.taken >= s.limit }

// open reports whether a new call may run now.
func (s *share) open() bool { return s == nil || !s.full() && !s.waiting }

func (s *share) take() {
	if s != nil {
		s.taken++
	}
}

// giveBack reports whether calls were kept back for it.
func (s *share) giveBack() bool {
	if s == nil {
		return false
	}
	s.taken--
	return s.waiting
}

// look begins a look for due calls, and reports whether it is to leave out those
// of the tool. Whether there are any is not known then.
func (s *share) look() (full bool) {
	full = s.full()
	s.waiting = s.waiting || full
	s.skipped = full
	return full
}

// skip reports whether a due call that was found is kept back.
func (s *share) skip() bool {
	if !s.full() {
		return false
	}
	s.waiting, s.skipped = true, true
	return true
}

// clear says that the look found everything that it looked for.
func (s *share) clear() { s.waiting = s.skipped }
