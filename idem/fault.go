package idem

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Point is a place on a call's way at which a fault can be asked for.
type Point string

// The points, in the order in which a call passes them. In a fused commit the
// first four come one after the other before the one commit.
const (
	PointAfterCreate   Point = "after_create"   // the call is durable
	PointAfterClaim    Point = "after_claim"    // the attempt is durable, nothing dispatched
	PointAfterDispatch Point = "after_dispatch" // the tool has returned, nothing written yet
	PointBeforeCommit  Point = "before_commit"  // the end is about to be written
	PointAfterCommit   Point = "after_commit"   // the end is durable, nobody was told
	PointBeforeReply   Point = "before_reply"   // the answer is about to be sent
)

// Points lists every point, in order.
var Points = [...]Point{PointAfterCreate, PointAfterClaim, PointAfterDispatch, PointBeforeCommit, PointAfterCommit, PointBeforeReply}

// Action is what a fault does.
type Action string

// The actions.
const (
	ActionExit  Action = "exit"  // the process ends at once, as by kill -9
	ActionPanic Action = "panic" // as if the tool had panicked
	ActionSleep Action = "sleep" // wait, then go on
	ActionDrop  Action = "drop"  // close the connection without an answer; the call goes on
	ActionError Action = "error" // answer 500; the call goes on
)

// Fault is a failure asked for on purpose. It rides in memory with the request
// that brought it and is never stored.
type Fault struct {
	Point  Point
	Action Action
	Sleep  time.Duration // for ActionSleep
}

// maxFaultSleep keeps a fault from being a way to hold a worker for ever.
const maxFaultSleep = time.Minute

// ParseFault reads "POINT=ACTION", for example "after_commit=sleep:250ms".
func ParseFault(s string) (Fault, error) {
	point, action, ok := strings.Cut(s, "=")
	if !ok {
		return Fault{}, errors.New("want POINT=ACTION")
	}
	f := Fault{Point: Point(point), Action: Action(action)}
	known := false
	for _, p := range Points {
		known = known || p == f.Point
	}
	if !known {
		return Fault{}, fmt.Errorf("unknown point %.40q; the points are %v", point, Points)
	}
	switch f.Action {
	case ActionExit, ActionPanic, ActionDrop, ActionError:
		return f, nil
	}
	d, ok := strings.CutPrefix(action, string(ActionSleep)+":")
	if !ok {
		return Fault{}, fmt.Errorf("unknown action %.40q; the actions are exit, panic, sleep:DURATION, drop, error", action)
	}
	var err error
	if f.Sleep, err = time.ParseDuration(d); err != nil || f.Sleep < 0 || f.Sleep > maxFaultSleep {
		return Fault{}, fmt.Errorf("sleep must be a duration between 0 and %v", maxFaultSleep)
	}
	f.Action = ActionSleep
	return f, nil
}

// ErrDropped is what a request gets whose connection is to be closed without an
// answer.
var ErrDropped = errors.New("idem: the answer was dropped on purpose")
