package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// readStore reads all effects and all trails of a stopped store, and sees to it
// that this changes nothing.
func readStore(t *testing.T, o Options) (effects map[idem.Namespace][]idem.Effect, trails map[idem.CallID][]idem.Event, calls map[idem.CallID]idem.Call) {
	t.Helper()
	before := contents(t, o)
	effects = make(map[idem.Namespace][]idem.Effect)
	trails, calls = make(map[idem.CallID][]idem.Event), make(map[idem.CallID]idem.Call)
	err := errors.Join(
		ReadEffects(t.Context(), o, func(e idem.Effect) error {
			effects[e.Key.Namespace] = append(effects[e.Key.Namespace], e)
			return nil
		}),
		ReadTrails(t.Context(), o, func(c idem.Call, events []idem.Event) error {
			if _, twice := calls[c.ID]; twice {
				t.Errorf("call %v is there twice", c.ID)
			}
			calls[c.ID], trails[c.ID] = c, events
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	if after := contents(t, o); !maps.Equal(before, after) {
		t.Errorf("files before: %q, after: %q", names(before), names(after))
	}
	return effects, trails, calls
}

// What is read of a stopped store is what the open one gave.
func TestReadStopped(t *testing.T) {
	o := testOptions(vfs.NewMem(), "data")
	o.MemTable = minMemTable
	s := openOptions(t, o)
	script(t, s, newOracle(), seeded(t), 200)
	other := idem.Key{Namespace: "other", Name: "k"}
	update(t, s, other, fused(other, 5_000_000))
	waiting := keyOf("waiting")
	update(t, s, waiting, submit(waiting, 5_000_001))

	effects := make(map[idem.Namespace][]idem.Effect)
	trails, calls := make(map[idem.CallID][]idem.Event), make(map[idem.CallID]idem.Call)
	for ns := range s.namespaces.all() {
		all, err := s.Effects(t.Context(), ns, idem.CallID{}, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) > 0 {
			effects[ns] = all
		}
		list, next, err := s.List(t.Context(), ns, idem.Query{Limit: 100_000})
		if err != nil || !next.IsZero() {
			t.Fatal(err, next)
		}
		for _, c := range list {
			c.Fingerprint, c.LeaseUntil = idem.Fingerprint{}, time.Time{}
			calls[c.ID] = c
			if trails[c.ID], err = s.Events(t.Context(), ns, c.ID, 0, 100_000); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeStore(t, s)
	gotEffects, gotTrails, gotCalls := readStore(t, o)
	for id, c := range gotCalls {
		c.LeaseUntil = time.Time{}
		gotCalls[id] = c
	}
	if len(effects) < 2 || len(calls) < 10 || calls[gotEffects["other"][0].CallID].Key != other {
		t.Fatalf("the script left too little: %d namespaces, %d calls", len(effects), len(calls))
	}
	if !reflect.DeepEqual(effects, gotEffects) {
		t.Errorf("effects:\n%+v\nwant\n%+v", gotEffects, effects)
	}
	if !reflect.DeepEqual(calls, gotCalls) {
		t.Errorf("calls:\n%+v\nwant\n%+v", gotCalls, calls)
	}
	if !reflect.DeepEqual(trails, gotTrails) {
		t.Errorf("trails:\n%+v\nwant\n%+v", gotTrails, trails)
	}
}

// A row that cannot be read is an error, never a shorter ledger.
func TestReadStoppedDamaged(t *testing.T) {
	k := keyOf("k")
	var id idem.CallID
	for name, tc := range map[string]struct {
		key             func() []byte
		effects, trails bool // which of the two must fail
	}{
		"an effect":                     {func() []byte { return appendEffectKey(nil, 0, id) }, true, false},
		"an effect's key":               {func() []byte { return append(appendEffectKey(nil, 0, id), 'x') }, true, false},
		"an effect without a namespace": {func() []byte { return appendEffectKey(nil, 9, id) }, true, false},
		"a request":                     {func() []byte { return appendRequestKey(nil, 0, id) }, false, true},
		"a state":                       {func() []byte { return appendStateKey(nil, 0, id) }, false, true},
		"a trail":                       {func() []byte { return appendAuditKey(nil, 0, id, 0) }, false, true},
		"a call without a request":      {func() []byte { return appendAuditKey(nil, 0, idem.CallID{0xFF}, 0) }, false, true},
		"a row of an unknown kind":      {func() []byte { return append(appendCallKey(nil, 0, id), 0x77) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(vfs.NewMem(), "data")
			s := openOptions(t, o)
			id = update(t, s, k, fused(k, 1)).After.ID
			if err := s.db.Set(tc.key(), []byte("\xFFdamaged"), nil); err != nil {
				t.Fatal(err)
			}
			closeStore(t, s)
			err := ReadEffects(t.Context(), o, func(idem.Effect) error { return nil })
			if errors.Is(err, errCorrupt) != tc.effects || !tc.effects && err != nil {
				t.Errorf("effects: %v", err)
			}
			err = ReadTrails(t.Context(), o, func(idem.Call, []idem.Event) error { return nil })
			if errors.Is(err, errCorrupt) != tc.trails || !tc.trails && err != nil {
				t.Errorf("trails: %v", err)
			}
		})
	}
}

func TestReadStoppedRefused(t *testing.T) {
	effects := func(ctx context.Context, o Options, each func() error) error {
		return ReadEffects(ctx, o, func(idem.Effect) error { return each() })
	}
	trails := func(ctx context.Context, o Options, each func() error) error {
		return ReadTrails(ctx, o, func(idem.Call, []idem.Event) error { return each() })
	}
	nothing := func() error { return nil }
	for name, read := range map[string]func(context.Context, Options, func() error) error{"effects": effects, "trails": trails} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(vfs.NewMem(), "data")
			if err := read(t.Context(), o, nothing); !errors.Is(err, ErrNoStore) {
				t.Errorf("%v", err)
			}
			if err := read(t.Context(), Options{}, nothing); err == nil {
				t.Error("no directory is fine")
			}
			s := openOptions(t, o)
			if err := read(t.Context(), o, nothing); !errors.Is(err, ErrInUse) {
				t.Errorf("%v", err)
			}
			for i := range 2 * lookUpEvery {
				k := keyOf(fmt.Sprint(i))
				update(t, s, k, fused(k, i))
			}
			closeStore(t, s)
			enough, n := errors.New("enough"), 0
			if err := read(t.Context(), o, func() error { n++; return enough }); !errors.Is(err, enough) || n != 1 {
				t.Errorf("%v after %d", err, n)
			}
			over, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := read(over, o, func() error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}
