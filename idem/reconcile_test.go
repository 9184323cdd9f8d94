package idem

import (
	"fmt"
	"reflect"
	"testing"
)

// R18: three numbers, and the ids that offend.
func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		name            string
		ledger, intents []string
		want            Report
		clean           bool
	}{
		{"nothing asked, nothing done", nil, nil, Report{}, true},
		{"each once", []string{"b", "a"}, []string{"a", "b"}, Report{Committed: 2, Distinct: 2}, true},
		{"lost", []string{"a"}, []string{"c", "a", "b"}, Report{Committed: 1, Distinct: 1, Lost: 2, LostIDs: []string{"b", "c"}}, false},
		{"all lost", nil, []string{"a"}, Report{Lost: 1, LostIDs: []string{"a"}}, false},
		{"twice", []string{"a", "a"}, []string{"a"}, Report{Committed: 2, Distinct: 1, Duplicates: 1, DuplicateIDs: []string{"a"}}, false},
		{
			"three times and twice", []string{"b", "a", "b", "a", "b"}, []string{"a", "b"},
			Report{Committed: 5, Distinct: 2, Duplicates: 3, DuplicateIDs: []string{"a", "b"}}, false,
		},
		{"unexpected", []string{"a", "x"}, []string{"a"}, Report{Committed: 2, Distinct: 1, Unexpected: 1, UnexpectedIDs: []string{"x"}}, false},
		{
			"unexpected twice is two effects of one id", []string{"x", "x"}, nil,
			Report{Committed: 2, Unexpected: 2, UnexpectedIDs: []string{"x"}}, false,
		},
		{
			// The sums agree: as many effects as intents. The numbers must not.
			"one lost, another twice", []string{"a", "a"}, []string{"a", "b"},
			Report{Committed: 2, Distinct: 1, Duplicates: 1, Lost: 1, DuplicateIDs: []string{"a"}, LostIDs: []string{"b"}}, false,
		},
		{
			"one lost, an unknown one instead", []string{"x"}, []string{"a"},
			Report{Committed: 1, Lost: 1, Unexpected: 1, LostIDs: []string{"a"}, UnexpectedIDs: []string{"x"}}, false,
		},
		{"an intent listed twice is one intent", []string{"a"}, []string{"a", "a"}, Report{Committed: 1, Distinct: 1}, true},
		{"an empty id is an id", []string{""}, []string{"a"}, Report{Committed: 1, Lost: 1, Unexpected: 1, LostIDs: []string{"a"}, UnexpectedIDs: []string{""}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Reconcile(c.ledger, c.intents)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
			if got.Clean() != c.clean {
				t.Errorf("clean: %v", got.Clean())
			}
		})
	}
}

// Whatever the ledger, every effect is counted once.
func TestReconcileAddsUp(t *testing.T) {
	var intents []string
	for i := range 50 {
		intents = append(intents, fmt.Sprint("intent", i))
	}
	var ledger []string
	for i := range 70 {
		for range i % 4 {
			ledger = append(ledger, fmt.Sprint("intent", i))
		}
		r := Reconcile(ledger, intents)
		if r.Committed != len(ledger) || r.Committed != r.Distinct+r.Duplicates+r.Unexpected || r.Distinct+r.Lost != len(intents) {
			t.Fatalf("%d effects: %+v", len(ledger), r)
		}
	}
}
