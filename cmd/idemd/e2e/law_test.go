//go:build unix

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/idem"
)

// This file is the law of one key as a sequential model, for histories that were
// seen from outside. It shares no code with the law under test.
//
// The server ends calls, loses attempts and starts them again by itself, at any
// time. A state says what was true at the last operation that told; what the
// server may have done since is worked out when the next one tells, from the
// tool and from how many lives lie between. So a state has a range of attempts,
// and there may be several states at a time.

// phase is a status, with the failed calls that may run again apart.
type phase string

const (
	absent    phase = "absent"
	pending   phase = "pending"
	running   phase = "running"
	held      phase = "held"
	succeeded phase = "succeeded"
	retryable phase = "retryable"
	failed    phase = "failed"
)

func (p phase) ended() bool { return p == succeeded || p == retryable || p == failed }

// habit is what a tool does with certain args.
type habit struct {
	tool   string
	args   [2]string // the same habit and another fingerprint
	ends   []phase   // how a call may go out by itself, held among them
	fails  int       // attempts that fail before one succeeds; 0 where that does not matter
	dies   int       // the attempts, at the least, of a call that was stopped after crashes; 0: no matter
	asks   bool      // the server decides held calls by itself: they have succeeded
	effect bool
	slow   bool // nobody should wait for it long
}

// within narrows the attempts of a run to those that may go out like this.
func (h *habit) within(p phase, lo, hi int) (int, int, bool) {
	if h.fails > 0 && p == succeeded {
		lo = max(lo, h.fails+1)
	}
	if h.fails > 0 && p == retryable {
		hi = min(hi, h.fails)
	}
	if h.dies > 0 && p == failed {
		lo = max(lo, h.dies)
	}
	return lo, hi, lo <= hi && slices.Contains(h.ends, p)
}

// state is what is known of a key.
type state struct {
	phase  phase
	id     string // empty: a call whose maker got no answer
	made   string // when, as shown; empty like id
	args   int    // which of the habit's
	lo, hi int    // attempts
	life   int    // of the process, when this was true; for a running call, the first in which its attempt may have begun
	end    string // of an ended call, byte for byte; empty: not seen yet
}

// since returns what a state may have become by itself until some life.
func (h *habit) since(s state, life int) []state {
	if life < s.life {
		return nil
	}
	first, crashes := s.life, life-s.life
	s.life = life
	switch s.phase {
	case pending:
		run := s
		run.lo, run.hi = s.lo+1, s.hi+1
		return append(h.runs(run, first, crashes), s)
	case running:
		return h.runs(s, first, crashes)
	case held:
		if h.asks {
			done := s
			done.phase = succeeded
			return []state{s, done}
		}
	}
	return []state{s}
}

// runs returns what becomes of a call whose attempt began in some life or later.
// Each crash since may have cost an attempt. It need not have been found out yet,
// so a running call that is seen says nothing of when its attempt began.
func (h *habit) runs(s state, first, crashes int) (all []state) {
	for lost := range crashes + 1 {
		for _, p := range []phase{running, held, succeeded, retryable, failed} {
			n, ok := s, true
			n.phase, n.lo, n.hi = p, s.lo+lost, s.hi+lost
			if p == running {
				n.life = first + lost
			} else {
				n.lo, n.hi, ok = h.within(p, n.lo, n.hi)
			}
			if ok {
				all = append(all, n)
			}
		}
	}
	return all
}

// deed is what an operation asks for.
type deed uint8

const (
	looks    deed = iota // by key or by id; also the end that a submission waited for
	submits              // decided and shown at one moment
	entrusts             // submits and waits: only the decision; what is shown is another operation
	decides              // resolves
)

func (d deed) String() string { return [...]string{"look", "submit", "entrust", "decide"}[d] }

// asked is one side of an operation, told the other.
type asked struct {
	habit *habit
	deed  deed
	args  int
	want  phase // of decides: succeeded, failed, retryable, or pending for a retry
	life  int   // of the process that was asked

	attempt int // that a decision is about; 0 is whichever
}

type told struct {
	lost    bool
	refused idem.Code
	id      string // of the call, where one is named
	made    string
	fresh   bool // the request created or requeued the call
	phase   phase
	attempt int
	end     string
}

// fits reports whether the call that is named is the one of the state.
func (s *state) fits(o *told) bool {
	return s.phase != absent && (s.id == "" || s.id == o.id) && (s.made == "" || o.made == "" || s.made == o.made)
}

// named is the state once the call was named.
func (s state) named(o *told) state {
	s.id = o.id
	if o.made != "" {
		s.made = o.made
	}
	return s
}

// at is the state once the attempt is known.
func (s state) at(attempt int) (state, bool) {
	ok := s.lo <= attempt && attempt <= s.hi
	s.lo, s.hi = attempt, attempt
	return s, ok
}

// shows returns the state once it was shown, whole.
func (s state) shows(o *told) (state, bool) {
	if s.phase != o.phase || !s.fits(o) || s.end != "" && s.end != o.end {
		return s, false
	}
	s, ok := s.named(o).at(o.attempt)
	s.end = o.end
	return s, ok
}

// opened is the state once a submission has made something of it that is to run.
func (s state) opened(in *asked) (state, bool) {
	switch s.phase {
	case absent:
		return state{phase: pending, args: in.args, life: in.life}, true
	case retryable:
		s.phase, s.end = pending, ""
		return s, true
	}
	return s, false
}

// step returns the states that an operation may leave. None: it was not possible.
func step(s state, in *asked, out *told) (next []state) {
	keep := func(n state, ok bool) {
		if ok {
			next = append(next, n)
		}
	}
	now := in.habit.since(s, in.life)
	switch in.deed {
	case looks:
		for _, c := range now {
			if out.refused == idem.CodeNotFound {
				keep(c, c.phase == absent)
				continue
			}
			if out.refused == idem.CodeOutcomeUnknown { // a waiting submission saw it held
				keep(c.named(out), c.phase == held && c.fits(out))
				continue
			}
			keep(c.shows(out))
		}
	case decides:
		if out.lost {
			next = append(next, s)
		}
		for _, c := range now {
			switch {
			case out.refused == idem.CodeNotHeld:
				same := c.phase == out.phase || c.phase == retryable && out.phase == failed
				if c.phase == held { // then at another attempt than the one that was meant
					same = same && in.attempt != 0 && (c.lo != in.attempt || c.hi != in.attempt)
				}
				keep(c.named(out), same && c.fits(out))
			case out.lost:
				c, ok := c.decided(in)
				keep(c, ok)
			default:
				c, ok := c.decided(in)
				if ok {
					keep(c.shows(out))
				}
			}
		}
	default:
		return submission(s, now, in, out)
	}
	return next
}

// decided is a held state once somebody decided.
func (s state) decided(in *asked) (state, bool) {
	ok := s.phase == held
	if ok && in.attempt != 0 {
		s, ok = s.at(in.attempt)
	}
	s.phase = in.want
	return s, ok
}

// submission is step for what submits. now is what the state may be by now.
func submission(s state, now []state, in *asked, out *told) (next []state) {
	if out.lost { // it came to nothing, or changed nothing, or opened the call
		next = append(next, s)
	}
	if out.refused == idem.CodeConflict {
		if s.fits(out) && s.args != in.args {
			next = append(next, s.named(out))
		}
		return next
	}
	for _, c := range now {
		if c.phase != absent && c.args != in.args {
			return next // anything but a conflict is wrong
		}
		open, opens := c.opened(in)
		switch {
		case out.lost:
			if opens {
				next = append(next, open)
			}
		case c.phase != absent && !c.fits(out):
		case out.refused == idem.CodeOutcomeUnknown:
			switch {
			case c.phase == held:
				next = append(next, c.named(out))
			case in.deed == entrusts && opens:
				next = append(next, open.named(out))
			case in.deed == entrusts && (c.phase == pending || c.phase == running):
				next = append(next, c.named(out))
			}
		case out.fresh:
			if !opens {
				continue
			}
			attempt := out.attempt
			if out.phase != pending {
				attempt-- // one process saw both, so there was one claim
			}
			open, ok := open.named(out).at(attempt)
			if in.deed == submits && out.phase == running { // opened and claimed at once
				open.phase, open.lo, open.hi = running, out.attempt, out.attempt
			}
			if ok && (in.deed == entrusts || out.phase == open.phase) {
				next = append(next, open)
			}
		case opens || c.phase == held:
			// It had to open the call, or to refuse.
		case in.deed == submits || c.phase.ended():
			if c, ok := c.shows(out); ok {
				next = append(next, c)
			}
		default: // it joined a call in flight
			attempt := out.attempt
			if c.phase == pending && out.phase != pending {
				attempt--
			}
			if c, ok := c.named(out).at(attempt); ok {
				next = append(next, c)
			}
		}
	}
	return next
}

var law = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{phase: absent}} },
	Step: func(s, in, out any) []any {
		var all []any
		for _, n := range step(s.(state), in.(*asked), out.(*told)) {
			all = append(all, n)
		}
		return all
	},
	DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
}).ToModel()

// operation is one of a key's history.
type operation struct {
	in        asked
	out       told
	call, ret int64 // nanoseconds
}

func (o *operation) String() string {
	what := fmt.Sprintf("%v", o.in.deed)
	switch o.in.deed {
	case submits, entrusts:
		what += fmt.Sprint(" args ", o.in.args)
	case decides:
		what += " " + string(o.in.want)
	}
	answer := "no answer"
	if !o.out.lost {
		answer = fmt.Sprintf("%s%s %s attempt %d", o.out.refused, o.out.id, o.out.phase, o.out.attempt)
		if o.out.fresh {
			answer += ", fresh"
		}
		if o.out.end != "" {
			answer += ", " + o.out.end
		}
	}
	return fmt.Sprintf("%12.3f ms to %12.3f ms, life %d: %s: %s", float64(o.call)/1e6, float64(o.ret)/1e6, o.in.life, what, answer)
}

// story is a history for people.
func story(ops []operation) string {
	var b strings.Builder
	sorted := slices.Clone(ops)
	slices.SortFunc(sorted, func(a, b operation) int { return int(a.call - b.call) })
	for i := range sorted {
		fmt.Fprintln(&b, &sorted[i])
	}
	return b.String()
}

// examine asks the checker about a history of one key.
func examine(ops []operation, limit time.Duration) porcupine.CheckResult {
	history := make([]porcupine.Operation, len(ops))
	for i := range ops {
		o := &ops[i]
		history[i] = porcupine.Operation{ClientId: i, Input: &o.in, Output: &o.out, Call: o.call, Return: o.ret}
	}
	return porcupine.CheckOperationsTimeout(law, history, limit)
}
