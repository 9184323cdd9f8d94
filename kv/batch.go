package kv

import (
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"

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
	case ch.Effect != nil && ch.Effect.CallID != c.ID:
		return fmt.Errorf("%w: the effect is another call's", errChange)
	case uint64(r.next)+uint64(len(ch.Events)) > math.MaxUint32:
		return fmt.Errorf("%w: too many events", errChange)
	}
	return nil
}

// delta is by how much a change of the record moves the counts.
func (r record) delta(ch *idem.Change) idem.Totals {
	return idem.Change{Write: true, Before: r.pointer(), After: ch.After, Effect: ch.Effect}.Totals()
}

// open reports whether there is a call without an end. Such a call has a
// marker, and nothing else has one.
func (r record) open() bool { return r.found && !r.call.Status.Ended() }

// compose fills a batch with a change of a record.
func compose(b *pebble.Batch, t tid, cur record, ch *idem.Change, delta idem.Totals) error {
	c := ch.After
	next := cur.next + uint32(len(ch.Events))
	p := putter{b: b}
	if !cur.found {
		p.set(appendIdemKey(p.key(), t, c.Key.Name), appendIdem(p.val(), c.ID, c.Fingerprint))
	}
	if !cur.found || c.Tombstone != cur.call.Tombstone {
		p.set(appendRequestKey(p.key(), t, c.ID), appendRequest(p.val(), c))
	}
	if cur.found || !plain(c, len(ch.Events)) {
		v, err := appendState(p.val(), c, next)
		p.fail(err)
		p.set(appendStateKey(p.key(), t, c.ID), v)
	}
	if len(ch.Events) > 0 {
		v, err := appendEvents(p.val(), ch.Events)
		p.fail(err)
		p.set(appendAuditKey(p.key(), t, c.ID, cur.next), v)
	}
	if ch.Effect != nil {
		p.set(appendEffectKey(p.key(), t, c.ID), appendEffect(p.val(), ch.Effect, c.Key.Name))
	}
	p.mark(appendMarkerKey(p.key(), t, c.ID), cur.open(), !c.Status.Ended())
	if delta != (idem.Totals{}) {
		p.fail(b.Merge(keyCounter, appendTotals(p.val(), delta), nil))
	}
	return p.err
}

// putter puts rows into a batch. The batch copies them, so one buffer for keys
// and one for values do.
type putter struct {
	b   *pebble.Batch
	k   [maxKeyInUse]byte
	v   [256]byte
	err error
}

func (p *putter) key() []byte { return p.k[:0] }
func (p *putter) val() []byte { return p.v[:0] }

func (p *putter) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *putter) set(k, v []byte) { p.fail(p.b.Set(k, v, nil)) }

// mark sets or removes a call's marker. SingleDelete leaves nothing behind, but
// only where exactly one Set came since the last one: two would bring the
// marker back. So a live marker is never written again.
func (p *putter) mark(k []byte, had, want bool) {
	switch {
	case want && !had:
		p.fail(p.b.Set(k, nil, nil))
	case had && !want:
		p.fail(p.b.SingleDelete(k, nil))
	}
}
