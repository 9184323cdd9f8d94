package runner

import (
	"testing"

	"github.com/idemd/idemd/idem"
)

// A creator that is told late that its commit is durable must not wipe the mark
// of a settlement whose commit is under way: its deliveries would count twice,
// and an answer would show more than the disk holds.
func TestLateNewsOfAnEarlierCommit(t *testing.T) {
	fs := newFlights()
	key := idem.Key{Namespace: idem.DefaultNamespace, Name: "k"}
	f := fs.enter(key)
	defer fs.leave(f)
	running := &idem.Call{Key: key, Revision: 1}
	ended := &idem.Call{Key: key, Revision: 3}

	fs.deliver(f, 1) // a join
	if got := fs.unstored(f, running); got != 1 {
		t.Fatalf("%d deliveries to take along, want 1", got)
	}
	fs.take(f, 3)
	fs.stored(f, 1) // the creator, late
	fs.stored(f, 3) // the settlement
	if got := fs.unsaved(ended); got != 0 {
		t.Errorf("%d deliveries on top of the record that has them, want 0", got)
	}
}
