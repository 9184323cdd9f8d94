package kv

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// mergerName is checked by the engine at Open: it is fixed for ever.
const mergerName = "idemd.counts.1"

const counterVersion = 1

// countsStored is how many counts there are.
const countsStored = 2 + len(idem.Totals{}.Status) + len(idem.Totals{}.Attempts)

// counters lists the counts in their order on disk: new ones go to the end.
func counters(t *idem.Totals) (all [countsStored]*int64) {
	all[0], all[1] = &t.Calls, &t.Effects
	for i := range t.Status {
		all[2+i] = &t.Status[i]
	}
	for i := range t.Attempts {
		all[2+len(t.Status)+i] = &t.Attempts[i]
	}
	return all
}

func appendTotals(b []byte, t idem.Totals) []byte {
	b = append(b, counterVersion)
	for _, n := range counters(&t) {
		b = binary.AppendVarint(b, *n)
	}
	return b
}

// decodeTotals accepts a shorter vector, which an earlier release with fewer
// counts wrote: what is missing is zero.
func decodeTotals(v []byte) (idem.Totals, error) {
	var t idem.Totals
	r := newReader(v, counterVersion)
	for _, n := range counters(&t) {
		if r.empty() {
			break
		}
		*n = r.varint()
	}
	return t, r.done("counter")
}

// countMerger adds vectors. Addition is associative and commutative, so the
// engine may fold operands in any grouping.
var countMerger = &pebble.Merger{
	Name: mergerName,
	Merge: func(_, value []byte) (pebble.ValueMerger, error) {
		t, err := decodeTotals(value)
		return &countSum{t}, err
	},
}

type countSum struct{ sum idem.Totals }

func (c *countSum) MergeNewer(value []byte) error {
	t, err := decodeTotals(value)
	if err == nil {
		c.sum.Add(t)
	}
	return err
}

func (c *countSum) MergeOlder(value []byte) error { return c.MergeNewer(value) }

func (c *countSum) Finish(bool) ([]byte, io.Closer, error) {
	return appendTotals(nil, c.sum), nil, nil
}

// mirror is the counts in memory. It moves when a commit has returned, so it is
// never ahead of the disk.
type mirror struct {
	mu     sync.Mutex
	totals idem.Totals
}

func (m *mirror) add(d idem.Totals) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.totals.Add(d)
}

func (m *mirror) get() idem.Totals {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.totals
}
