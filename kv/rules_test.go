package kv

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// Rules cost one commit each, once, whoever saves them and however often.
func TestSaveRules(t *testing.T) {
	s := openMem(t)
	before := s.commits.Load()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if err := s.SaveRules(t.Context(), rulesOf(i%4)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range []*idem.Rules{nil, {}} {
		if err := s.SaveRules(t.Context(), r); !errors.Is(err, idem.ErrNoRules) {
			t.Error(err)
		}
	}
	if got := s.commits.Load() - before; got != 4 {
		t.Errorf("%d commits", got)
	}
	s = reopen(t, s)
	before = s.commits.Load()
	for i := range 4 {
		if err := s.SaveRules(t.Context(), rulesOf(i)); err != nil {
			t.Error(err)
		}
	}
	if all, err := s.Rules(t.Context()); err != nil || len(all) != 4 || s.commits.Load() != before {
		t.Errorf("after a start: %d, %v, %d commits", len(all), err, s.commits.Load()-before)
	}
	checkDisk(t, s)
}

// There is a bound, across starts too, and at the bound nothing is lost.
func TestTooManyRules(t *testing.T) {
	fsys := vfs.NewMem()
	s := openOptions(t, testOptions(fsys, "data"))
	b := s.db.NewBatch()
	for i := range idem.MaxSavedRules - 1 {
		if err := b.Set(appendRulesKey(nil, rulesOf(i).ID()), encodeRules(rulesOf(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	s.commit(b)
	closeStore(t, s)

	s = openOptions(t, testOptions(fsys, "data"))
	for range 2 {
		if err := s.SaveRules(t.Context(), rulesOf(-1)); err != nil {
			t.Fatal(err)
		}
		if err := s.SaveRules(t.Context(), rulesOf(-2)); !errors.Is(err, idem.ErrTooManyRules) {
			t.Fatal(err)
		}
		if all, err := s.Rules(t.Context()); err != nil || len(all) != idem.MaxSavedRules {
			t.Fatal(len(all), err)
		}
		closeStore(t, s)
		clean(t, testOptions(fsys, "data"))
		s = openOptions(t, testOptions(fsys, "data"))
	}
	// More than that, and the inspection stops to remember them.
	if err := s.db.Set(appendRulesKey(nil, rulesOf(-3).ID()), encodeRules(rulesOf(-3)), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	r, err := inspect(t, testOptions(fsys, "data"))
	if err != nil || r.Broken() != 1 || r.Checks[ruleRules].Broken != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A store that is closed refuses: a write to a closed engine would panic, which
// would pass for a disk that fails.
func TestSaveRulesLate(t *testing.T) {
	fsys := vfs.NewMem()
	s := openOptions(t, testOptions(fsys, "data"))
	closeStore(t, s)
	if err := s.SaveRules(t.Context(), rulesOf(1)); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}

// A row whose key is no id of rules keeps the store from opening: what it was
// may be what calls are compared under.
func TestOddRulesKey(t *testing.T) {
	fsys := vfs.NewMem()
	s := openOptions(t, testOptions(fsys, "data"))
	if err := s.db.Set([]byte("rx"), nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	if _, err := Open(testOptions(fsys, "data")); !errors.Is(err, errCorrupt) {
		t.Error(err)
	}
}

// Two save the same rules at one moment: the second one waits, and then finds them
// saved. There is no engine here for it to write to.
func TestSaveRulesTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{rules: newSavedRules()}
		s.rules.saving <- struct{}{} // the first one
		done := make(chan error, 1)
		go func() { done <- s.SaveRules(t.Context(), rulesOf(1)) }()
		synctest.Wait()
		s.rules.add(rulesOf(1).ID())
		<-s.rules.saving
		if err := <-done; err != nil || s.commits.Load() != 0 {
			t.Error(err, s.commits.Load())
		}
	})
}

// After a failure nothing is answered, not even what is known.
func TestRulesOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{rules: newSavedRules()}
		s.rules.add(rulesOf(1).ID())
		s.dead.Store(true)
		done := make(chan error, 1)
		go func() { done <- s.SaveRules(t.Context(), rulesOf(1)) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Error("it was answered:", err)
		default:
		}
	})
}
