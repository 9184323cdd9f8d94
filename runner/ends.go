package runner

import (
	"sync"

	"github.com/idemd/idemd/idem"
)

// ends remembers calls that have ended for good and were asked for again, so that
// a key that is asked for over and over costs the store nothing. Nothing needs to
// be forgotten when the store changes, since such an end is kept (R9): only its
// window can still end, and that is looked at each time.
type ends struct {
	mu    sync.Mutex
	byKey map[idem.Key]*idem.Call
	bytes int
}

const (
	maxEnds   = 8 << 20 // bytes, about; then others make room, whichever
	endWeight = 1 << 10 // bytes of a call beside its key and its answer
)

func newEnds() *ends { return &ends{byKey: make(map[idem.Key]*idem.Call)} }

// get returns a call that has ended for good, nil where none is remembered.
func (e *ends) get(key idem.Key) *idem.Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byKey[key]
}

// put remembers a call, if it has ended for good, as the store gave it.
func (e *ends) put(c *idem.Call) {
	size := weight(c)
	if !c.Status.Ended() || c.Retryable() || c.Tombstone || size > maxEnds/8 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byKey[c.Key] != nil {
		return
	}
	e.byKey[c.Key] = c
	e.bytes += size
	for key, old := range e.byKey { // in random order
		if e.bytes <= maxEnds {
			break
		}
		delete(e.byKey, key)
		e.bytes -= weight(old)
	}
}

func weight(c *idem.Call) int {
	n := endWeight + len(c.Key.Name) + len(c.Result)
	if c.Failure != nil {
		n += len(c.Failure.Message)
	}
	if c.ClientID != nil {
		n += len(*c.ClientID)
	}
	return n
}
