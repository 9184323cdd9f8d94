package runner

import (
	"time"

	"github.com/idemd/idemd/idem"
)

// rider is what is on its way with a call in memory, to its next attempt: a
// fault, and the request that is to feel it; a trace.
type rider struct {
	fault idem.Fault // zero where there is none
	reply chan error // takes what the request is answered with instead; nil without a fault
	trace string
}

func newRider(f *idem.Fault, trace string) *rider {
	if f == nil && trace == "" {
		return nil
	}
	rd := &rider{trace: trace}
	if f != nil {
		rd.fault, rd.reply = *f, make(chan error, 1)
	}
	return rd
}

// traceOf is the trace that the rider brings; empty where there is none.
func (rd *rider) traceOf() string {
	if rd == nil {
		return ""
	}
	return rd.trace
}

// cut returns the channel on which the request learns that its answer is to be
// something else; nil, and so never ready, where there is no fault.
func (rd *rider) cut() <-chan error {
	if rd == nil {
		return nil
	}
	return rd.reply
}

// pass lets a call pass a point. It reports whether the tool is to be treated
// as if it had panicked there.
func (r *Runner) pass(rd *rider, p idem.Point, id idem.CallID) (panicked bool) {
	if rd != nil && rd.fault.Point == p {
		switch rd.fault.Action {
		case idem.ActionExit:
			r.exit()
		case idem.ActionPanic:
			panicked = true
		case idem.ActionSleep:
			time.Sleep(rd.fault.Sleep)
		case idem.ActionDrop:
			rd.answer(idem.ErrDropped)
		case idem.ActionError:
			rd.answer(faultError(id))
		}
	}
	r.hooks.at(p, id)
	return panicked
}

// panicsEarly reports whether the tool is to panic for a point at which there
// was no attempt yet.
func (rd *rider) panicsEarly() bool {
	return rd != nil && rd.fault.Point == idem.PointAfterCreate && rd.fault.Action == idem.ActionPanic
}

func (rd *rider) answer(err error) {
	select {
	case rd.reply <- err:
	default: // it has its answer already
	}
}

func faultError(id idem.CallID) *idem.Error {
	return &idem.Error{Code: idem.CodeInternal, Message: "failed on purpose", CallID: id, Effect: idem.DoubtUnknown}
}

// Fire lets a request pass the point before its answer is sent. The error says
// what to send instead: ErrDropped, or an internal error.
func (r *Runner) Fire(f *idem.Fault, p idem.Point) error {
	rd := newRider(f, "")
	if r.pass(rd, p, idem.CallID{}) {
		return faultError(idem.CallID{})
	}
	select {
	case err := <-rd.cut():
		return err
	default:
		return nil
	}
}

// fusedPoints are the points that a fused call passes before its one commit.
var fusedPoints = [...]idem.Point{idem.PointAfterCreate, idem.PointAfterClaim, idem.PointAfterDispatch, idem.PointBeforeCommit}
