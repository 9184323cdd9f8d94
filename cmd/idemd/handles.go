package main

import (
	"fmt"
	"syscall"

	"github.com/idemd/idemd/kv"
)

const (
	// minHandles is the fewest file handles that serve starts with.
	minHandles = 256

	// storeFiles is what the engine keeps open where there is enough.
	storeFiles = kv.DefaultOpenFiles

	// otherHandles is for what the engine opens besides (logs, tables being
	// written, tables that are read while it closes them), for the listener, and
	// for the process.
	otherHandles = 300

	// connsPerRequest is how many connections there may be for each request that
	// is worked on: most of them idle.
	connsPerRequest = 4
)

// handles is how the process shares out its file handles.
type handles struct {
	maxConns, maxInFlight, openFiles int
}

// shareHandles leaves the store what it needs before connections get any: a
// client that waits in the backlog is late, a store that cannot open its next
// log is dead. Of few handles the store gets half.
func shareHandles(limit uint64, maxInFlight int) (handles, error) {
	if limit < minHandles {
		return handles{}, fmt.Errorf("at most %d files may be open (ulimit -n); %d are needed, and some thousands are better", limit, minHandles)
	}
	store := min(limit/2, storeFiles+otherHandles)
	conns := int(min(limit-store, connsPerRequest*uint64(maxInFlight)))
	return handles{
		maxConns:    conns,
		maxInFlight: min(maxInFlight, conns),
		openFiles:   int(store * storeFiles / (storeFiles + otherHandles)),
	}, nil
}

// handleLimit is how many files this process may have open. Go has raised it as
// far as it goes.
func handleLimit() (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("how many files may be open (ulimit -n): %w", err)
	}
	return l.Cur, nil
}
