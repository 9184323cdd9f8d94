package runner

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// mint makes call ids. Its time never goes back, whatever the wall clock does:
// not within a process, and not across restarts, since it starts at the newest
// stored id (R17).
type mint struct {
	now  func() time.Time
	mu   sync.Mutex
	last time.Time
}

// floor lets nothing be made before a time.
func (m *mint) floor(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.After(m.last) {
		m.last = t
	}
}

// next returns an id for a new call of the key, and its creation time, which is
// strictly later than every one before: that is what queues are ordered by.
func (m *mint) next(key idem.Key) (idem.CallID, time.Time) {
	var random [10]byte
	_, _ = rand.Read(random[:]) // never fails; it ends the process instead
	m.mu.Lock()
	t := m.now().UTC().Truncate(time.Microsecond)
	if !t.After(m.last) {
		t = m.last.Add(time.Microsecond)
	}
	m.last = t
	m.mu.Unlock()
	return idem.NewCallID(t, key, random), t
}
