package kv

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// tenants is the numbers of namespaces. There are as many as there are
// credentials, so all of them are in memory. The default one has the number 0
// and no row.
type tenants struct {
	mu  sync.RWMutex
	ids map[idem.Namespace]tid

	// giving is held by whoever gives out a number, across its commit; a
	// channel, so that waiting for it can end.
	giving chan struct{}
}

func newTenants() *tenants {
	return &tenants{ids: map[idem.Namespace]tid{idem.DefaultNamespace: 0}, giving: make(chan struct{}, 1)}
}

func (t *tenants) get(ns idem.Namespace) (tid, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	id, ok := t.ids[ns]
	return id, ok
}

func (t *tenants) put(ns idem.Namespace, id tid) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[ns] = id
}

func (t *tenants) all() map[idem.Namespace]tid {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make(map[idem.Namespace]tid, len(t.ids))
	for ns, id := range t.ids {
		all[ns] = id
	}
	return all
}

// next is the smallest number above all that were given out.
func (t *tenants) next() (tid, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var top tid
	for _, id := range t.ids {
		top = max(top, id)
	}
	if top == math.MaxUint32 {
		return 0, fmt.Errorf("kv: there are too many namespaces")
	}
	return top + 1, nil
}

// tenant returns the number of a namespace and gives it one at its first use,
// in a commit of its own: the number is known to nobody before it is durable.
func (s *Store) tenant(ctx context.Context, ns idem.Namespace) (tid, error) {
	if id, ok := s.tenants.get(ns); ok {
		return id, nil
	}
	select {
	case s.tenants.giving <- struct{}{}:
		defer func() { <-s.tenants.giving }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if id, ok := s.tenants.get(ns); ok {
		return id, nil // somebody else was faster
	}
	id, err := s.tenants.next()
	if err != nil {
		return 0, err
	}
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }() // only gives its memory back
	if err := b.Set(appendTenantKey(nil, ns), encodeTenant(id), nil); err != nil {
		return 0, err
	}
	s.commit(b)
	s.tenants.put(ns, id)
	return id, nil
}

// loadTenants reads all numbers at Open.
func (s *Store) loadTenants() error {
	prefix := []byte{prefixTenant}
	return s.scan(prefix, func(it *pebble.Iterator) error {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		id, err := decodeTenant(v)
		if err != nil {
			return err
		}
		s.tenants.put(idem.Namespace(it.Key()[len(prefix):]), id)
		return nil
	})
}
