package main

import (
	"fmt"
	"maps"
	"slices"
)

// statsDoc is what the hints need of /stats.
type statsDoc struct {
	ByStatus map[string]int64     `json:"by_status"`
	Attempts map[string]int64     `json:"attempts"`
	ByTool   map[string]countsDoc `json:"by_tool"`
	countsDoc

	// unrecorded are the tools that keep no record, of which every delivery is a run
	// of its own.
	unrecorded map[string]bool
}

type countsDoc struct {
	Deliveries   int64 `json:"deliveries"`
	Created      int64 `json:"created"`
	Replayed     int64 `json:"replayed"`
	Joined       int64 `json:"joined"`
	Requeued     int64 `json:"requeued"`
	Conflicts    int64 `json:"conflicts"`
	Refused      int64 `json:"refused"`
	StaleResults int64 `json:"stale_results"`
	Abandoned    int64 `json:"abandoned"`

	unrecorded bool // the tool keeps no record
}

const (
	// enoughDeliveries is from how many deliveries on a share says anything.
	enoughDeliveries = 100

	// manyRefused is the share of refused deliveries, in percent, from which on
	// it is more than clients that now and then send something wrong.
	manyRefused = 20
)

// storeHints say what looks wrong on the whole. Each rule returns 0 where all is
// well; its words take what it returned.
var storeHints = []struct {
	rule  func(s *statsDoc) int64
	words string
}{
	{func(s *statsDoc) int64 { return s.ByStatus["held"] },
		"%d calls are held: nobody knows whether they happened. See idemd list --status held, find out, and decide each with idemd resolve."},
	{(*statsDoc).retried,
		"%d calls took more than one attempt: they failed and were asked for again, or a process died while they ran. idemd audit shows which."},
	{func(s *statsDoc) int64 { return s.refusedShare() },
		"%d%% of all deliveries were refused: clients send what cannot be accepted, or more than can be."},
}

// toolHints say what looks wrong with one tool.
var toolHints = []struct {
	rule  func(c *countsDoc) int64
	words string
}{
	{(*countsDoc).neverRepeated,
		"%d deliveries and not one of them for a key that was known: the key is probably made anew for each try, which protects from nothing."},
	{(*countsDoc).refusedShare,
		"%d%% of its deliveries were refused: clients do not agree with its schema, or send more than can be accepted."},
	{func(c *countsDoc) int64 { return c.StaleResults },
		"%d results came after their call had been taken over, and were dropped: something stopped the process for longer than --lease, or --lease is too short."},
	{func(c *countsDoc) int64 { return c.Abandoned },
		"%d attempts did not stop when they were told to: the tool does not heed its cancellation."},
}

// suspectsKeys reports whether keys look made anew for some tool.
func (s *statsDoc) suspectsKeys() bool {
	for _, c := range s.ByTool {
		if c.neverRepeated() > 0 {
			return true
		}
	}
	return false
}

// retried is how many calls have ended after more than one attempt.
func (s *statsDoc) retried() int64 {
	var n int64
	for attempts, calls := range s.Attempts {
		if attempts != "0" && attempts != "1" {
			n += calls
		}
	}
	return n
}

// neverRepeated is the deliveries where there are enough and all made new calls. Of
// a tool that keeps no record nothing can be repeated.
func (c *countsDoc) neverRepeated() int64 {
	if c.unrecorded || c.Deliveries < enoughDeliveries || c.Created == 0 || c.Replayed+c.Joined+c.Requeued+c.Conflicts > 0 {
		return 0
	}
	return c.Deliveries
}

// refusedShare is the share of the refused deliveries in percent, where it is
// high.
func (c *countsDoc) refusedShare() int64 {
	if c.Deliveries < enoughDeliveries || c.Refused*100 < c.Deliveries*manyRefused {
		return 0
	}
	return c.Refused * 100 / c.Deliveries
}

// hints are what looks wrong, in words.
func (s *statsDoc) hints() []string {
	var hints []string
	for _, h := range storeHints {
		if n := h.rule(s); n > 0 {
			hints = append(hints, fmt.Sprintf(h.words, n))
		}
	}
	for _, tool := range slices.Sorted(maps.Keys(s.ByTool)) {
		c := s.ByTool[tool]
		c.unrecorded = s.unrecorded[tool]
		for _, h := range toolHints {
			if n := h.rule(&c); n > 0 {
				hints = append(hints, fmt.Sprintf("tool %s: "+h.words, plain(tool), n))
			}
		}
	}
	return hints
}
