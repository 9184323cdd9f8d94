package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/idemd/idemd/idem"
)

// pageSize is small, so that every check pages.
const pageSize = 7

// Check reads everything that a store at rest holds in the given namespaces,
// which must be all that were used, and reports what cannot be in a store that
// only the rules of package idem have written to:
//
//   - a call that the list, its id and its key give differently;
//   - a record whose fields do not fit its status;
//   - an audit trail that is not numbered 0, 1, 2…, does not begin with the
//     creation, or does not have one claim for each attempt (R12);
//   - a call with two effects, a succeeded call without the one it owes, or an
//     effect of any other call (R7, R8, R10);
//   - a call whose rules are not saved, and saved rules out of order;
//   - totals that differ from a recount; a newest id that is not the newest.
//
// It reports every fault, not only the first one.
func Check(ctx context.Context, s idem.Store, namespaces ...idem.Namespace) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("storetest: "+format, args...)) }

	rules, err := s.Rules(ctx)
	if err != nil {
		return err
	}
	saved := make(map[idem.RulesID]bool, len(rules))
	var last idem.RulesID
	for _, r := range rules {
		id := r.ID()
		if bytes.Compare(id[:], last[:]) <= 0 {
			fault("rules %v come after %v", id, last)
		}
		saved[id], last = true, id
	}

	var recount idem.Totals
	var newest idem.CallID
	for _, ns := range namespaces {
		calls, err := allCalls(ctx, s, ns, idem.Query{Limit: pageSize})
		if err != nil {
			return err
		}
		effects, err := allEffects(ctx, s, ns, pageSize)
		if err != nil {
			return err
		}
		recount.Effects += int64(len(effects))
		byCall := make(map[idem.CallID]idem.Effect, len(effects))
		for _, e := range effects {
			if _, twice := byCall[e.CallID]; twice {
				fault("call %v has two effects", e.CallID)
			}
			byCall[e.CallID] = e
		}
		for i := range calls {
			c := &calls[i]
			recount.Add(idem.Change{Write: true, After: c}.Totals())
			if compareIDs(c.ID, newest) > 0 {
				newest = c.ID
			}
			if !c.Rules.IsZero() && !saved[c.Rules] {
				fault("call %v: its rules %v are not saved", c.ID, c.Rules)
			}
			if err := checkReads(ctx, s, ns, c); err != nil {
				fault("call %v: %w", c.ID, err)
			}
			events, err := allEvents(ctx, s, ns, c.ID, pageSize)
			if err != nil {
				return fmt.Errorf("storetest: events of call %v: %w", c.ID, err)
			}
			for _, err := range checkCall(c, events) {
				fault("call %v, %s: %w", c.ID, c.Status, err)
			}
			e, has := byCall[c.ID]
			delete(byCall, c.ID)
			if has != c.OwesEffect() {
				fault("call %v, %s, effects %q: has an effect: %v", c.ID, c.Status, c.Effects, has)
			}
			if has && (e.ID != idem.EffectID(c.ID) || e.Key != c.Key || e.Tool != c.Tool) {
				fault("call %v: its effect is %+v", c.ID, e)
			}
		}
		for _, e := range byCall {
			fault("effect %s is of no call", e.ID)
		}
	}

	switch totals, err := s.Totals(ctx); {
	case err != nil:
		return err
	case totals != recount:
		fault("totals are %+v, a recount gives %+v", totals, recount)
	}
	switch t, err := s.Newest(ctx); {
	case err != nil:
		return err
	case newest.IsZero() && !t.IsZero(), !newest.IsZero() && !t.Equal(newest.Time()):
		fault("newest is %v, the newest id is %v of %v", t, newest, newest.Time())
	}
	return errors.Join(faults...)
}

// checkReads compares the three ways to read a call.
func checkReads(ctx context.Context, s idem.Store, ns idem.Namespace, listed *idem.Call) error {
	byID, err := s.CallByID(ctx, ns, listed.ID)
	if err != nil {
		return fmt.Errorf("by id: %w", err)
	}
	byKey, err := s.CallByKey(ctx, listed.Key)
	if err != nil {
		return fmt.Errorf("by key: %w", err)
	}
	bare := byID
	bare.Fingerprint = idem.Fingerprint{}
	if !reflect.DeepEqual(byID, byKey) || !reflect.DeepEqual(bare, *listed) {
		return fmt.Errorf("listed as %+v, by id %+v, by key %+v", *listed, byID, byKey)
	}
	if listed.Key.Namespace != ns {
		return fmt.Errorf("listed in %q, is of %q", ns, listed.Key.Namespace)
	}
	if listed.Args != nil {
		return errors.New("a read shows the args")
	}
	return nil
}

// checkCall says what does not fit in a record and its audit trail.
func checkCall(c *idem.Call, events []idem.Event) (faults []error) {
	expect := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	misfits := c.Misfits(len(events))
	for _, m := range misfits {
		expect(false, "%s", m.Text)
	}
	expect(!c.LeaseUntil.IsZero() == (c.Status == idem.StatusRunning), "lease until %v", c.LeaseUntil)
	expect(len(misfits) == 0, "it is %+v", *c)
	claims := 0
	for i, e := range events {
		expect(e.Seq == i, "event %d has the number %d", i, e.Seq)
		if e.Name == idem.EventClaimed {
			claims++
			expect(e.Attempt == claims, "claim %d is of attempt %d", claims, e.Attempt)
		}
		expect((e.Name == idem.EventCreated) == (i == 0), "event %d is %q", i, e.Name)
	}
	expect(len(events) > 0, "no events")
	expect(claims == c.Attempt, "attempt %d after %d claims", c.Attempt, claims)
	return faults
}

// allCalls pages through a list to its end.
func allCalls(ctx context.Context, s idem.Store, ns idem.Namespace, q idem.Query) ([]idem.Call, error) {
	var all []idem.Call
	for {
		page, next, err := s.List(ctx, ns, q)
		if err != nil {
			return nil, err
		}
		if len(page) > q.Limit {
			return nil, fmt.Errorf("storetest: a page of %d calls, the limit is %d", len(page), q.Limit)
		}
		for _, c := range page {
			if len(all) > 0 && compareIDs(c.ID, all[len(all)-1].ID) >= 0 {
				return nil, fmt.Errorf("storetest: call %v is listed after %v", c.ID, all[len(all)-1].ID)
			}
			all = append(all, c)
		}
		if next.IsZero() {
			return all, nil
		}
		// A page may be empty while there is more, but each must get further.
		if !q.Before.IsZero() && compareIDs(next, q.Before) >= 0 {
			return nil, fmt.Errorf("storetest: the page before %v goes on at %v", q.Before, next)
		}
		q.Before = next
	}
}

// allEffects pages through a ledger to its end.
func allEffects(ctx context.Context, s idem.Store, ns idem.Namespace, limit int) ([]idem.Effect, error) {
	var all []idem.Effect
	var after idem.CallID
	for {
		page, err := s.Effects(ctx, ns, after, limit)
		if err != nil || len(page) == 0 {
			return all, err
		}
		if len(page) > limit {
			return nil, fmt.Errorf("storetest: a page of %d effects, the limit is %d", len(page), limit)
		}
		for i, e := range page {
			// Equal ids pass within a page: two effects of a call are for the
			// caller to report.
			if c := compareIDs(e.CallID, after); c < 0 || c == 0 && i == 0 {
				return nil, fmt.Errorf("storetest: the effect of %v comes after that of %v", e.CallID, after)
			}
			after = e.CallID
		}
		all = append(all, page...)
	}
}

// allEvents pages through an audit trail to its end.
func allEvents(ctx context.Context, s idem.Store, ns idem.Namespace, id idem.CallID, limit int) ([]idem.Event, error) {
	var all []idem.Event
	for {
		page, err := s.Events(ctx, ns, id, len(all), limit)
		if err != nil || len(page) == 0 {
			return all, err
		}
		if len(page) > limit {
			return nil, fmt.Errorf("storetest: a page of %d events, the limit is %d", len(page), limit)
		}
		if page[0].Seq != len(all) {
			return nil, fmt.Errorf("storetest: events from %d on begin with number %d", len(all), page[0].Seq)
		}
		all = append(all, page...)
	}
}
