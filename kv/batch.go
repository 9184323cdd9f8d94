package kv

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// compose fills a batch with a change of a record.
func compose(b *pebble.Batch, t nsid, cur record, ch *idem.Change, delta idem.Totals) error {
	c := ch.After
	next := cur.next + uint32(len(ch.Events))
	p := putters.Get().(*putter)
	p.b = b
	defer func() {
		p.b, p.err = nil, nil
		putters.Put(p)
	}()
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

// putters are kept, since the engine's methods make their buffers escape.
var putters = sync.Pool{New: func() any { return new(putter) }}

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
