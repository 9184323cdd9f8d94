package runner

import (
	"context"
	"fmt"
	"sync"

	"github.com/idemd/idemd/idem"
)

// rules are those that stored calls were accepted under, by their ids. A call is
// compared under its own for good, so that a changed configuration makes no
// conflict of an honest retry (R3). They are few, and are never let go of.
type rules struct {
	mu    sync.RWMutex
	known map[idem.RulesID]*idem.Rules

	ofTool map[string]idem.RulesID // fixed before the first request
}

// load takes up what the store has.
func (rs *rules) load(ctx context.Context, store idem.Store) error {
	all, err := store.Rules(ctx)
	if err != nil {
		return fmt.Errorf("runner: rules: %w", err)
	}
	known := make(map[idem.RulesID]*idem.Rules, len(all))
	for _, r := range all {
		known[r.ID()] = r
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.known = known
	return nil
}

// declare stores the rules of tools, before the first call is accepted under
// them.
func (rs *rules) declare(ctx context.Context, store idem.Store, tools map[string]*idem.Tool) error {
	if err := rs.load(ctx, store); err != nil {
		return err
	}
	rs.ofTool = make(map[string]idem.RulesID)
	saved := 0
	for _, t := range tools {
		id := t.Rules.ID()
		if id.IsZero() {
			continue
		}
		rs.ofTool[t.Name] = id
		if _, known := rs.known[id]; known {
			continue
		}
		if err := store.SaveRules(ctx, t.Rules); err != nil {
			return fmt.Errorf("runner: rules of %s: %w", t.Name, err)
		}
		saved++
	}
	if saved == 0 {
		return nil
	}
	return rs.load(ctx, store)
}

// apply makes the request's fingerprint the one under the rules of its tool, and
// lets it be had under all others. Where no rules are known at all it does
// nothing; it may be asked again once there are some.
func (rs *rules) apply(r *idem.Request) error {
	rs.mu.RLock()
	none := len(rs.known) == 0
	rs.mu.RUnlock()
	if none || r.Under != nil {
		return nil
	}
	plain, name, args := r.Fingerprint, r.Tool, r.Args
	r.Under = func(id idem.RulesID) (idem.Fingerprint, error) {
		if id.IsZero() {
			return plain, nil
		}
		rs.mu.RLock()
		under := rs.known[id]
		rs.mu.RUnlock()
		if under == nil {
			return idem.Fingerprint{}, idem.ErrUnknownRules
		}
		return idem.FingerprintUnder(under, name, args)
	}
	id := rs.ofTool[name]
	fp, err := r.Under(id)
	r.Rules, r.Fingerprint = id, fp
	return err
}
