package kv

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/idemd/idemd/idem"
)

// record is what is stored of a key.
type record struct {
	found bool
	call  idem.Call
	next  uint32 // number of the next event
}

// pointer is what a transition looks at: a copy, so that what is compared with
// its change later is what was read.
func (r record) pointer() *idem.Call {
	if !r.found {
		return nil
	}
	c := r.call
	return &c
}

var errChange = errors.New("kv: a change that cannot be written")

// check refuses a change that does not go on from the record (R2), or that
// cannot be stored.
func (r record) check(key idem.Key, ch *idem.Change) error {
	c := ch.After
	switch {
	case c == nil:
		return fmt.Errorf("%w: no record", errChange)
	case r.found && (ch.Before == nil || c.ID != r.call.ID):
		return idem.ErrSecondCall
	case !r.found && ch.Before != nil:
		return fmt.Errorf("%w: it changes a call that is not there", errChange)
	case c.Key != key:
		return fmt.Errorf("%w: it is about another key", errChange)
	case !c.Status.Valid():
		return fmt.Errorf("%w: no such status", errChange)
	case c.Attempt < 0 || c.Crashes < 0:
		return fmt.Errorf("%w: a negative count", errChange)
	case c.Settle < 0 || c.Settle%time.Millisecond != 0:
		return fmt.Errorf("%w: downstream is at work for %v", errChange, c.Settle)
	case c.Failure != nil && !keeps(c.Failure.RetryAfter):
		return fmt.Errorf("%w: to be asked for again after %v", errChange, c.Failure.RetryAfter)
	case r.found && c.Rules != r.call.Rules:
		return fmt.Errorf("%w: a call keeps its rules", errChange)
	case ch.Effect != nil && ch.Effect.CallID != c.ID:
		return fmt.Errorf("%w: the effect is another call's", errChange)
	case uint64(r.next)+uint64(len(ch.Events)) > math.MaxUint32:
		return fmt.Errorf("%w: too many events", errChange)
	}
	return nil
}

// keeps reports whether a record can hold the pause after a failure.
func keeps(pause time.Duration) bool {
	return 0 <= pause && pause <= idem.MaxRetryAfter && pause%time.Second == 0
}

// delta is by how much a change of the record moves the counts.
func (r record) delta(ch *idem.Change) idem.Totals {
	return idem.Change{Write: true, Before: r.pointer(), After: ch.After, Effect: ch.Effect}.Totals()
}

// open reports whether there is a call without an end. Such a call has a
// marker, and nothing else has one.
func (r record) open() bool { return r.found && !r.call.Status.Ended() }
