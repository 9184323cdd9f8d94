package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

const (
	// maxExamined and maxPage bound the work and the memory of one page of a
	// list.
	maxExamined = 10_000
	maxPage     = 4 << 20
)

// get hands the value of a key to use, which must copy what it keeps.
func (s *Store) get(key []byte, use func(v []byte) error) (found bool, err error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, errors.Join(use(v), closer.Close())
}

// iter walks over the keys with a prefix.
func (s *Store) iter(prefix []byte) (*pebble.Iterator, error) {
	return s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
}

// scan calls each for all keys with a prefix. It is for Open, and counts.
func (s *Store) scan(prefix []byte, each func(it *pebble.Iterator) error) error {
	it, err := s.iter(prefix)
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		s.bootKeys++
		err = each(it)
	}
	return errors.Join(err, it.Error(), it.Close())
}

// current reads the record of a key, with its args. The caller holds the key's
// lock. A new key was most often looked up a moment ago, and the engine need not
// be asked again.
func (s *Store) current(key idem.Key) (record, error) {
	t, known := s.namespaces.get(key.Namespace)
	if !known || s.locks.knownAbsent(key) {
		return record{}, nil
	}
	return s.readKey(t, key, true)
}

func (s *Store) readKey(t nsid, key idem.Key, args bool) (record, error) {
	id, fp, found, err := s.probeIdem(t, key.Name)
	if err != nil || !found {
		return record{}, err
	}
	rec, err := s.readRows(t, key.Namespace, id, args)
	if err != nil {
		return record{}, err
	}
	if !rec.found {
		return record{}, fmt.Errorf("%w: a key without a call", errCorrupt)
	}
	rec.call.Fingerprint = fp
	return rec, s.addLease(&rec.call)
}

// probeIdem looks a key up. Most keys that are asked for are new, and a Get for
// a key that is not there reads a block of the lowest level every time, since
// it does not use the filters there; this does.
func (s *Store) probeIdem(t nsid, name string) (id idem.CallID, fp idem.Fingerprint, found bool, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return id, fp, false, err
	}
	if found = it.SeekPrefixGE(appendIdemKey(nil, t, name)); found {
		var v []byte
		if v, err = it.ValueAndErr(); err == nil {
			id, fp, err = decodeIdem(v)
		}
	}
	return id, fp, found, errors.Join(err, it.Error(), it.Close())
}

// addFingerprint adds what is not with the call but with its key.
func (s *Store) addFingerprint(t nsid, c *idem.Call) error {
	found, err := s.get(appendIdemKey(nil, t, c.Key.Name), func(v []byte) error {
		id, fp, err := decodeIdem(v)
		if c.Fingerprint = fp; id != c.ID && err == nil {
			err = fmt.Errorf("%w: a key of two calls", errCorrupt)
		}
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: a call without its key", errCorrupt)
	}
	return err
}

// readRows reads the request and the state of a call.
func (s *Store) readRows(t nsid, ns idem.Namespace, id idem.CallID, args bool) (rec record, err error) {
	rec.call.ID, rec.call.Key.Namespace = id, ns
	rec.found, err = s.get(appendRequestKey(nil, t, id), func(v []byte) error {
		return decodeRequest(v, &rec.call, args)
	})
	if err != nil || !rec.found {
		return record{}, err
	}
	return s.withState(t, rec.call)
}

// withState adds the state to a call whose request has been read. The request may
// be an earlier reading's: it never changes, but for what a tombstone loses.
func (s *Store) withState(t nsid, request idem.Call) (record, error) {
	rec := record{found: true, call: request}
	moved, err := s.get(appendStateKey(nil, t, request.ID), func(v []byte) (err error) {
		rec.next, err = decodeState(v, &rec.call)
		return err
	})
	if err != nil {
		return record{}, err
	}
	if !moved {
		rec.next = makePlain(&rec.call)
	}
	if rec.call.Tombstone {
		// Without the lock the request may have been read before it became one.
		rec.call.Args, rec.call.ClientID, rec.call.Seq = nil, nil, nil
	}
	return rec, nil
}

// errMoved means that a call was moved while it was read.
var errMoved = errors.New("kv: the call was moved meanwhile")

// addLease adds what is in memory only. Errors: errMoved, never under the lock
// of the call's key.
func (s *Store) addLease(c *idem.Call) error {
	if c.Status != idem.StatusRunning {
		return nil
	}
	var ok bool
	if c.LeaseUntil, ok = s.live.lease(c.Key, idem.LeaseOf(c)); !ok {
		return errMoved
	}
	return nil
}

// settled reads what belongs to a key in such a way that nothing is shown of a
// commit that is not synced. Writers hold the key's lock until it is; so what
// was read while nobody held the lock afterwards is durable. Where somebody
// does, it is read once more under the lock: reading again and again without it
// need not end on a busy key. What moved between two looks of one reading is
// read under the lock as well.
func (s *Store) settled(ctx context.Context, key idem.Key, read func() error) error {
	if err := read(); !s.locks.taken(key) && !errors.Is(err, errMoved) {
		return s.trusted(ctx, err)
	}
	if err := s.locks.acquire(ctx, key); err != nil {
		return err
	}
	defer s.locks.release(key)
	return s.trusted(ctx, read())
}

// CallByKey implements [idem.Store].
func (s *Store) CallByKey(ctx context.Context, key idem.Key) (idem.Call, error) {
	var rec record
	grants, free := s.locks.watch(key)
	err := s.settled(ctx, key, func() (err error) {
		t, known := s.namespaces.get(key.Namespace)
		if !known {
			return idem.ErrNotFound
		}
		if rec, err = s.readKey(t, key, false); err == nil && !rec.found {
			err = idem.ErrNotFound
		}
		return err
	})
	if free && errors.Is(err, idem.ErrNotFound) {
		s.locks.note(key, grants)
	}
	if err != nil {
		return idem.Call{}, err
	}
	return rec.call, nil
}

// CallByID implements [idem.Store].
func (s *Store) CallByID(ctx context.Context, ns idem.Namespace, id idem.CallID) (idem.Call, error) {
	var rec record
	err := s.settledID(ctx, ns, id, func(t nsid, request idem.Call) (err error) {
		if rec, err = s.withState(t, request); err != nil {
			return err
		}
		if err := s.addFingerprint(t, &rec.call); err != nil {
			return err
		}
		return s.addLease(&rec.call)
	})
	if err != nil {
		return idem.Call{}, err
	}
	return rec.call, nil
}

// settledID is settled for a call's id. The key comes from the request row,
// which keeps it for ever; read is given what the row says, without the args.
func (s *Store) settledID(ctx context.Context, ns idem.Namespace, id idem.CallID, read func(t nsid, request idem.Call) error) error {
	t, known := s.namespaces.get(ns)
	if !known {
		return s.trusted(ctx, idem.ErrNotFound)
	}
	c := idem.Call{ID: id, Key: idem.Key{Namespace: ns}}
	found, err := s.get(appendRequestKey(nil, t, id), func(v []byte) error { return decodeRequest(v, &c, false) })
	if err == nil && !found {
		err = idem.ErrNotFound
	}
	if err != nil {
		return s.trusted(ctx, err)
	}
	return s.settled(ctx, c.Key, func() error { return read(t, c) })
}

// Events implements [idem.Store].
func (s *Store) Events(ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
	var events []idem.Event
	err := s.settledID(ctx, ns, id, func(t nsid, _ idem.Call) (err error) {
		events, err = s.readEvents(t, id, max(from, 0), limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return events, nil
}

func (s *Store) readEvents(t nsid, id idem.CallID, from, limit int) ([]idem.Event, error) {
	it, err := s.iter(append(appendCallKey(nil, t, id), rowAudit))
	if err != nil {
		return nil, err
	}
	var events []idem.Event
	for ok := seekEvent(it, t, id, from); ok && err == nil && len(events) < limit; ok = it.Next() {
		_, _, row, _ := parseScoped(it.Key())
		seq, ok := parseAudit(row)
		if !ok {
			err = fmt.Errorf("%w: audit key", errCorrupt)
			break
		}
		var v []byte
		if v, err = it.ValueAndErr(); err == nil {
			events, err = decodeEvents(events, v, seq, from, limit)
		}
	}
	return events, errors.Join(err, it.Error(), it.Close())
}

// seekEvent goes to the row that holds an event: the last one whose first event
// is not a later one.
func seekEvent(it *pebble.Iterator, t nsid, id idem.CallID, from int) bool {
	if from >= maxSeq {
		return it.Last()
	}
	return it.SeekLT(appendAuditKey(nil, t, id, uint32(from+1))) || it.First()
}

const maxSeq = 1<<32 - 1

// List implements [idem.Store].
func (s *Store) List(ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
	t, known := s.namespaces.get(ns)
	if !known {
		return nil, idem.CallID{}, s.trusted(ctx, nil)
	}
	it, err := s.iter(appendScope(nil, prefixCall, t))
	if err != nil {
		return nil, idem.CallID{}, s.trusted(ctx, err)
	}
	q.Limit = max(q.Limit, 1)
	p := page{s: s, t: t, ns: ns, q: q, it: it}
	if err = s.trusted(ctx, errors.Join(p.fill(ctx), it.Error(), it.Close())); err != nil {
		return nil, idem.CallID{}, err
	}
	return p.calls, p.next, nil
}

// page is a page of a list while it is put together.
type page struct {
	s  *Store
	t  nsid
	ns idem.Namespace
	q  idem.Query
	it *pebble.Iterator

	calls []idem.Call
	next  idem.CallID
	bytes int
}

// fill walks from new to old. It stops at the end, or where the page is full or
// has cost enough; then next is the last call that was looked at.
func (p *page) fill(ctx context.Context) error {
	var ok bool
	if p.q.Before.IsZero() {
		ok = p.it.Last()
	} else {
		ok = p.it.SeekLT(appendCallKey(nil, p.t, p.q.Before))
	}
	for examined := 0; ok; examined++ {
		if len(p.calls) >= p.q.Limit || p.bytes >= maxPage || examined >= maxExamined {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := p.call()
		if err != nil {
			return err
		}
		p.next = c.ID
		if err := p.take(ctx, c); err != nil {
			return err
		}
		ok = p.it.Prev()
	}
	p.next = idem.CallID{}
	return nil
}

// call reads the call whose last row the iterator is at, and leaves it at the
// first: that of the request.
func (p *page) call() (*idem.Call, error) {
	_, id, _, _ := parseScoped(p.it.Key())
	c := &idem.Call{ID: id, Key: idem.Key{Namespace: p.ns}}
	if err := p.skipAudit(id); err != nil {
		return nil, err
	}
	moved := p.at(id, rowState)
	if moved {
		if err := p.decode(func(v []byte) error { _, err := decodeState(v, c); return err }); err != nil {
			return nil, err
		}
		p.it.Prev()
	}
	if !p.at(id, rowRequest) {
		return nil, errors.Join(p.it.Error(), fmt.Errorf("%w: a call without a request", errCorrupt))
	}
	err := p.decode(func(v []byte) error { return decodeRequest(v, c, false) })
	if !moved {
		makePlain(c)
	}
	return c, err
}

// skipAudit goes back over the audit rows of a call. Most have a few; many are
// jumped over.
func (p *page) skipAudit(id idem.CallID) error {
	for n := 0; p.at(id, rowAudit); n++ {
		if n < 4 {
			p.it.Prev()
		} else {
			p.it.SeekLT(appendAuditKey(nil, p.t, id, 0))
		}
	}
	return p.it.Error()
}

// at reports whether the iterator is at a row of a call.
func (p *page) at(id idem.CallID, kind byte) bool {
	if !p.it.Valid() {
		return false
	}
	_, at, row, _ := parseScoped(p.it.Key())
	return at == id && len(row) > 0 && row[0] == kind
}

func (p *page) decode(use func(v []byte) error) error {
	v, err := p.it.ValueAndErr()
	if err != nil {
		return err
	}
	return use(v)
}

// take adds a call to the page if it matches. A key that somebody holds is read
// again under its lock before anything is derived from it, be it only that the
// call does not match.
func (p *page) take(ctx context.Context, c *idem.Call) error {
	err := p.s.addLease(c)
	if p.s.locks.taken(c.Key) || errors.Is(err, errMoved) {
		err = p.s.settled(ctx, c.Key, func() error {
			rec, err := p.s.readRows(p.t, p.ns, c.ID, false)
			if err == nil && !rec.found {
				err = fmt.Errorf("%w: a call is gone", errCorrupt)
			}
			if err != nil {
				return err
			}
			*c = rec.call
			return p.s.addLease(c)
		})
	}
	if err != nil || !p.q.Match(c) {
		return err
	}
	p.calls = append(p.calls, *c)
	p.bytes += len(c.Result)
	return nil
}

// Effects implements [idem.Store].
func (s *Store) Effects(ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
	t, known := s.namespaces.get(ns)
	if !known {
		return nil, s.trusted(ctx, nil)
	}
	it, err := s.iter(appendScope(nil, prefixEffect, t))
	if err != nil {
		return nil, s.trusted(ctx, err)
	}
	var effects []idem.Effect
	for ok := seekEffect(it, t, after); ok && err == nil && len(effects) < limit; ok = it.Next() {
		var e idem.Effect
		if e, err = s.effect(ctx, ns, it); err == nil {
			effects = append(effects, e)
		}
	}
	if err := s.trusted(ctx, errors.Join(err, it.Error(), it.Close())); err != nil {
		return nil, err
	}
	return effects, nil
}

// seekEffect goes to the first effect after that of a call.
func seekEffect(it *pebble.Iterator, t nsid, after idem.CallID) bool {
	if after.IsZero() {
		return it.First()
	}
	return it.SeekGE(append(appendEffectKey(nil, t, after), 0))
}

// effect reads the row that the iterator is at. A row is written once, with its
// call's end; once nobody holds the key that commit is durable.
func (s *Store) effect(ctx context.Context, ns idem.Namespace, it *pebble.Iterator) (idem.Effect, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return idem.Effect{}, err
	}
	e, err := decodeEffect(v)
	if err != nil {
		return idem.Effect{}, err
	}
	_, e.CallID, _, _ = parseScoped(it.Key())
	e.Key.Namespace = ns
	return e, s.settled(ctx, e.Key, func() error { return nil })
}
