package kv

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// namespaces is the numbers of the namespaces. There are as many as there are
// credentials, so all of them are in memory. The default one has the number 0
// and no row.
type namespaces struct {
	mu  sync.RWMutex
	ids map[idem.Namespace]nsid

	// giving is held by whoever gives out a number, across its commit; a
	// channel, so that waiting for it can end.
	giving chan struct{}
}

func newNamespaces() *namespaces {
	return &namespaces{ids: map[idem.Namespace]nsid{idem.DefaultNamespace: 0}, giving: make(chan struct{}, 1)}
}

func (t *namespaces) get(ns idem.Namespace) (nsid, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	id, ok := t.ids[ns]
	return id, ok
}

func (t *namespaces) put(ns idem.Namespace, id nsid) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[ns] = id
}

func (t *namespaces) all() map[idem.Namespace]nsid {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make(map[idem.Namespace]nsid, len(t.ids))
	for ns, id := range t.ids {
		all[ns] = id
	}
	return all
}

// next is the smallest number above all that were given out.
func (t *namespaces) next() (nsid, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var top nsid
	for _, id := range t.ids {
		top = max(top, id)
	}
	if top == math.MaxUint32 {
		return 0, fmt.Errorf("kv: there are too many namespaces")
	}
	return top + 1, nil
}

// number returns the number of a namespace and gives it one at its first use,
// in a commit of its own: the number is known to nobody before it is durable.
func (s *Store) number(ctx context.Context, ns idem.Namespace) (nsid, error) {
	if id, ok := s.namespaces.get(ns); ok {
		return id, nil
	}
	select {
	case s.namespaces.giving <- struct{}{}:
		defer func() { <-s.namespaces.giving }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if id, ok := s.namespaces.get(ns); ok {
		return id, nil // somebody else was faster
	}
	id, err := s.namespaces.next()
	if err != nil {
		return 0, err
	}
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }() // only gives its memory back
	if err := b.Set(appendNamespaceKey(nil, ns), encodeNamespace(id), nil); err != nil {
		return 0, err
	}
	s.commit(b)
	s.namespaces.put(ns, id)
	return id, nil
}

// loadNamespaces reads all numbers at Open.
func (s *Store) loadNamespaces() error {
	prefix := []byte{prefixNamespace}
	return s.scan(prefix, func(it *pebble.Iterator) error {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		id, err := decodeNamespace(v)
		if err != nil {
			return err
		}
		s.namespaces.put(idem.Namespace(it.Key()[len(prefix):]), id)
		return nil
	})
}
