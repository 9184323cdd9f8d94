package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// savedRules are the ids of the rules whose rows are durable. What they say is
// read from the rows.
type savedRules struct {
	mu  sync.RWMutex
	ids map[idem.RulesID]bool

	// saving is held by whoever saves rules, across its commit; a channel, so that
	// waiting for it can end.
	saving chan struct{}
}

func newSavedRules() *savedRules {
	return &savedRules{ids: make(map[idem.RulesID]bool), saving: make(chan struct{}, 1)}
}

func (r *savedRules) has(id idem.RulesID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.ids[id]
}

func (r *savedRules) add(id idem.RulesID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[id] = true
}

func (r *savedRules) count() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.ids)
}

func encodeRules(r *idem.Rules) []byte {
	w := newWriter(nil, rulesVersion)
	w.bytes(r.Text())
	return w.b
}

// decodeRules reads the row of an id. Rules that have another id are those of
// other calls, and calls would be compared wrongly under them.
func decodeRules(v []byte, id idem.RulesID) (*idem.Rules, error) {
	row := newReader(v, rulesVersion)
	text := row.raw()
	if row.done("rules") == nil {
		if r, err := idem.ParseRules(text); err == nil && r.ID() == id {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: the row of the rules %v", errCorrupt, id)
}

// SaveRules implements [idem.Store].
func (s *Store) SaveRules(ctx context.Context, r *idem.Rules) error {
	return s.trusted(ctx, s.saveRules(ctx, r))
}

func (s *Store) saveRules(ctx context.Context, r *idem.Rules) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	id := r.ID()
	if id.IsZero() {
		return idem.ErrNoRules
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if s.rules.has(id) {
		return nil
	}
	select {
	case s.rules.saving <- struct{}{}:
		defer func() { <-s.rules.saving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	switch {
	case s.closed.Load():
		return errClosed // a write to a closed engine panics, see Update
	case s.rules.has(id):
		return nil // somebody else was faster
	case s.rules.count() >= idem.MaxSavedRules:
		return idem.ErrTooManyRules
	}
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }() // only gives its memory back
	if err := b.Set(appendRulesKey(nil, id), encodeRules(r), nil); err != nil {
		return err
	}
	s.commit(b)
	s.rules.add(id)
	return nil
}

// Rules implements [idem.Store].
func (s *Store) Rules(ctx context.Context) ([]*idem.Rules, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all, err := s.readRules()
	return all, s.trusted(ctx, err)
}

// readRules leaves out the row of which the commit has not returned: the engine
// shows it before it is durable.
func (s *Store) readRules() ([]*idem.Rules, error) {
	it, err := s.iter([]byte{prefixRules})
	if err != nil {
		return nil, err
	}
	var all []*idem.Rules
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		var r *idem.Rules
		if r, err = s.readRule(it); r != nil {
			all = append(all, r)
		}
	}
	if err := errors.Join(err, it.Error(), it.Close()); err != nil {
		return nil, err
	}
	return all, nil
}

// readRule returns nil for rules that are not durable yet.
func (s *Store) readRule(it *pebble.Iterator) (*idem.Rules, error) {
	id, ok := parseRulesKey(it.Key())
	if !ok {
		return nil, fmt.Errorf("%w: rules row", errCorrupt)
	}
	if !s.rules.has(id) {
		return nil, nil
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	return decodeRules(v, id)
}

// loadRules reads the ids at Open.
func (s *Store) loadRules() error {
	return s.scan([]byte{prefixRules}, func(it *pebble.Iterator) error {
		id, ok := parseRulesKey(it.Key())
		if !ok {
			return fmt.Errorf("%w: rules row", errCorrupt)
		}
		s.rules.add(id)
		return nil
	})
}
