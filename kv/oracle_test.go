package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
)

// oracle knows what may be on disk: for every key the versions of its record in
// their order, and how many of them the store has answered for. A version that
// was answered for must be there, or a later one; what was only begun may be.
type oracle struct {
	mu    sync.Mutex
	keys  map[idem.Key]*history
	rules map[idem.RulesID]bool // whose saving was answered
}

// certainty is what was answered by some moment: how many versions of each key,
// and which rules.
type certainty struct {
	versions map[idem.Key]int
	rules    map[idem.RulesID]bool
}

// history is appended to under the key's lock, and never changed otherwise.
type history struct {
	versions []version
	acked    int // the first so many are certain
}

// version is a record and the length of its audit trail. Some changes only
// write events.
type version struct {
	call   idem.Call
	events int
}

func newOracle() *oracle {
	return &oracle{keys: make(map[idem.Key]*history), rules: make(map[idem.RulesID]bool)}
}

// save saves rules, and remembers that it was answered.
func (o *oracle) save(s *Store, r *idem.Rules) error {
	if err := s.SaveRules(context.Background(), r); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rules[r.ID()] = true
	return nil
}

// update changes a call, and remembers what was asked for and what was
// answered.
func (o *oracle) update(s *Store, k idem.Key, tr idem.Transition) (idem.Change, error) {
	n := 0
	ch, err := s.Update(context.Background(), k, func(cur *idem.Call) (idem.Change, error) {
		ch, err := tr(cur)
		if err == nil && ch.Write {
			n = o.begun(k, &ch)
		}
		return ch, err
	})
	if err == nil && ch.Write {
		o.answered(k, n)
	}
	return ch, err
}

func (o *oracle) begun(k idem.Key, ch *idem.Change) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.keys[k]
	if h == nil {
		h = &history{}
		o.keys[k] = h
	}
	v := version{call: atRest(*ch.After), events: len(ch.Events)}
	if n := len(h.versions); n > 0 {
		v.events += h.versions[n-1].events
	}
	h.versions = append(h.versions, v)
	return len(h.versions)
}

func (o *oracle) answered(k idem.Key, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys[k].acked = max(o.keys[k].acked, n)
}

// certain is what has been answered by now.
func (o *oracle) certain() certainty {
	o.mu.Lock()
	defer o.mu.Unlock()
	acked := make(map[idem.Key]int, len(o.keys))
	for k, h := range o.keys {
		acked[k] = h.acked
	}
	return certainty{acked, maps.Clone(o.rules)}
}

// atRest is a call as a store at rest shows it to any reader.
func atRest(c idem.Call) idem.Call {
	c.Args, c.LeaseUntil = nil, time.Time{}
	return c
}

// judge compares a store with what was certain at some moment.
func (o *oracle) judge(s *Store, sure certainty) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	all, err := s.Rules(context.Background())
	errs := []error{err}
	there := make(map[idem.RulesID]bool)
	for _, r := range all {
		there[r.ID()] = true
	}
	for id := range sure.rules {
		if there[id] {
			continue
		}
		errs = append(errs, fmt.Errorf("rules %v were saved, and are not there", id))
	}
	for k, h := range o.keys {
		if err := h.judge(s, k, sure.versions[k]); err != nil {
			errs = append(errs, fmt.Errorf("%v, %d of %d versions certain: %w", k, sure.versions[k], len(h.versions), err))
		}
	}
	return errors.Join(errs...)
}

func (h *history) judge(s *Store, k idem.Key, acked int) error {
	ctx := context.Background()
	c, err := s.CallByKey(ctx, k)
	if errors.Is(err, idem.ErrNotFound) && acked == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	events, err := s.Events(ctx, k.Namespace, c.ID, 0, 1_000_000)
	if err != nil {
		return err
	}
	got := version{call: atRest(c), events: len(events)}
	for _, v := range h.versions[max(acked-1, 0):] {
		if reflect.DeepEqual(got, v) {
			return nil
		}
	}
	return fmt.Errorf("it is %+v with %d events", c, len(events))
}

// soundness says what is wrong with a store at rest: the law as far as it
// shows, counts that equal a full scan, a marker for each call without an end
// and for no other, and the same in memory.
func soundness(s *Store) error {
	var all []idem.Namespace
	for ns := range s.namespaces.all() {
		all = append(all, ns)
	}
	if err := storetest.Check(context.Background(), s, all...); err != nil {
		return err
	}
	var stored idem.Totals
	if _, err := s.get(keyCounter, func(v []byte) (err error) { stored, err = decodeTotals(v); return err }); err != nil {
		return err
	}
	if mirror := s.counts.get(); stored != mirror {
		return fmt.Errorf("stored counts %+v, in memory %+v", stored, mirror)
	}
	if err := markers(s); err != nil {
		return err
	}
	if n := s.locks.count(); n != 0 {
		return fmt.Errorf("%d locks are held at rest", n)
	}
	return s.db.CheckLevels(nil)
}

// markers compares the marker rows, and what is in memory, with the calls.
func markers(s *Store) error {
	marked := make(map[string]bool)
	err := walk(s, prefixMarker, func(k, _ []byte) error { marked[string(k[1:])] = true; return nil })
	if err != nil {
		return err
	}
	open := 0
	err = walk(s, prefixCall, func(k, v []byte) error {
		if k[callLen] != rowRequest {
			return nil
		}
		nsid, id, _, _ := parseScoped(k)
		rec, err := s.readRows(nsid, "", id, false)
		if err != nil {
			return err
		}
		live := !rec.call.Status.Ended()
		if live {
			open++
		}
		if live != marked[string(k[1:callLen])] {
			return fmt.Errorf("call %v is %s; marked: %v", id, rec.call.Status, !live)
		}
		delete(marked, string(k[1:callLen]))
		return nil
	})
	if err != nil {
		return err
	}
	s.live.mu.Lock()
	defer s.live.mu.Unlock()
	if len(marked) > 0 || len(s.live.calls) != open {
		return fmt.Errorf("%d markers without a call; %d calls without an end, %d in memory", len(marked), open, len(s.live.calls))
	}
	return nil
}

// walk calls f for all keys with a prefix.
func walk(s *Store, prefix byte, f func(k, v []byte) error) error {
	it, err := s.iter([]byte{prefix})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		err = f(it.Key(), it.Value())
	}
	return errors.Join(err, it.Error(), it.Close())
}

// count is how many locks are held.
func (l *locks) count() (n int) {
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		n += len(s.keys)
		s.mu.Unlock()
	}
	return n
}

func checkDisk(t testing.TB, s *Store) {
	t.Helper()
	if err := soundness(s); err != nil {
		t.Fatal(err)
	}
}
