package idem

import (
	"strconv"
	"time"
)

// AttemptBuckets is the number of buckets of the attempt distribution: 0 (ended
// before any attempt), 1 to 9, and 10 or more.
const AttemptBuckets = 11

// AttemptBucket names a bucket of the attempt distribution: "0" to "9", "10+".
func AttemptBucket(i int) string {
	if i == AttemptBuckets-1 {
		return strconv.Itoa(i) + "+"
	}
	return strconv.Itoa(i)
}

// Totals are counts over everything that is stored. They move with the commit
// that changes them, so they always equal a full scan.
type Totals struct {
	Calls    int64
	Effects  int64
	Status   [len(Statuses)]int64  // in the order of Statuses
	Attempts [AttemptBuckets]int64 // attempts of calls with an end
}

// Of returns the count of a status.
func (t *Totals) Of(s Status) int64 {
	for i, v := range Statuses {
		if v == s {
			return t.Status[i]
		}
	}
	return 0
}

// Add adds d to t.
func (t *Totals) Add(d Totals) {
	t.Calls += d.Calls
	t.Effects += d.Effects
	for i := range t.Status {
		t.Status[i] += d.Status[i]
	}
	for i := range t.Attempts {
		t.Attempts[i] += d.Attempts[i]
	}
}

// count adds n of a call to the totals.
func (t *Totals) count(c *Call, n int64) {
	if c == nil {
		return
	}
	t.Calls += n
	for i, s := range Statuses {
		if s == c.Status {
			t.Status[i] += n
		}
	}
	if c.Status.Ended() {
		t.Attempts[min(c.Attempt, AttemptBuckets-1)] += n
	}
}

// Totals returns by how much a committed change moves the totals.
func (ch Change) Totals() Totals {
	var d Totals
	if !ch.Write {
		return d
	}
	d.count(ch.Before, -1)
	d.count(ch.After, 1)
	if ch.Effect != nil {
		d.Effects = 1
	}
	return d
}

// Counts are counts of what a process saw since it started. Each delivery is
// counted once more when its answer is decided, as exactly one of created,
// replayed, joined, requeued, conflicts and refused.
type Counts struct {
	Deliveries   int64 // POSTs that arrived
	Created      int64
	Replayed     int64 // found ended, given again
	Joined       int64 // found pending or running
	Requeued     int64
	Conflicts    int64
	Refused      int64 // every other answer
	StaleResults int64 // results that came too late and were dropped
	Abandoned    int64 // attempts that did not stop when they were told to
}

// Stats is what /stats shows.
type Stats struct {
	Totals Totals
	Since  time.Time // the start of the process: what Counts count from
	Counts Counts
	ByTool map[string]Counts
}
