package runner

import (
	"maps"
	"slices"

	"github.com/idemd/idemd/idem"
)

// Memory is what a runner keeps in memory, for tests that prove that it is not
// kept for ever.
type Memory struct {
	Flights []idem.Key // keys that are in use, or have deliveries to store
	Users   int        // requests and attempts that use them
	Riders  int        // faults that wait for an attempt
	Asks    []idem.CallID
	Free    int // workers
	Kept    int // workers that stay with a deaf tool
	Places  int
	Live    int // attempts that a goroutine works on
	Busy    int
	Waiting bool
	Deaf    int // tools that were given up and still run

	Ends, EndBytes int // calls that are remembered since they were asked for again
}

// Memory looks into a runner.
func (r *Runner) Memory() Memory {
	var m Memory
	r.flights.mu.Lock()
	m.Flights = slices.Collect(maps.Keys(r.flights.byKey))
	for _, f := range r.flights.byKey {
		m.Users += f.users
		if f.rider != nil {
			m.Riders++
		}
	}
	r.flights.mu.Unlock()
	r.asks.mu.Lock()
	m.Asks = slices.Collect(maps.Keys(r.asks.asks))
	r.asks.mu.Unlock()
	r.ends.mu.Lock()
	m.Ends, m.EndBytes = len(r.ends.byKey), r.ends.bytes
	r.ends.mu.Unlock()
	r.room.mu.Lock()
	defer r.room.mu.Unlock()
	m.Free, m.Kept, m.Places = len(r.room.free), r.room.kept, r.room.places
	m.Live, m.Busy, m.Waiting, m.Deaf = len(r.room.live), r.room.busy, r.room.waiting, r.room.abandoned
	return m
}

// Runs is how many runs without a record have a key and are under way, and how
// many turns of a tool are taken.
func (r *Runner) Runs(tool string) (named, turns int) {
	r.unrecorded.mu.Lock()
	defer r.unrecorded.mu.Unlock()
	return len(r.unrecorded.byKey), len(r.unrecorded.turns[tool])
}
