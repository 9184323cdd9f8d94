package runner

import (
	"context"
	"sync"

	"github.com/idemd/idemd/idem"
)

// counters count what this process saw. Names of tools come from the
// configuration or from stored calls, never from a refused request, so the map
// cannot be made to grow from outside.
type counters struct {
	mu     sync.Mutex
	all    idem.Counts
	byTool map[string]idem.Counts
}

// count counts something, for a tool too where one is known.
func (c *counters) count(tool string, inc func(*idem.Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	inc(&c.all)
	if tool != "" {
		t := c.byTool[tool]
		inc(&t)
		c.byTool[tool] = t
	}
}

// Delivered counts the arrival of a POST.
func (r *Runner) Delivered() {
	r.counts.count("", func(c *idem.Counts) { c.Deliveries++ })
}

// Refused counts a POST that was refused before it came to Submit.
func (r *Runner) Refused(tool string) {
	if _, known := r.tools[tool]; !known {
		tool = ""
	}
	r.counts.count(tool, func(c *idem.Counts) { c.Refused++ })
}

// countVerdict counts the answer to a submission.
func (r *Runner) countVerdict(tool string, v idem.Verdict) {
	r.counts.count(tool, func(c *idem.Counts) {
		switch v {
		case idem.VerdictCreated:
			c.Created++
		case idem.VerdictRequeued:
			c.Requeued++
		case idem.VerdictJoined:
			c.Joined++
		case idem.VerdictReplayed:
			c.Replayed++
		}
	})
}

// Stats returns the durable totals, and what this process counted.
func (r *Runner) Stats(ctx context.Context) (idem.Stats, error) {
	totals, err := r.store.Totals(ctx)
	if err != nil {
		return idem.Stats{}, err
	}
	r.counts.mu.Lock()
	defer r.counts.mu.Unlock()
	byTool := make(map[string]idem.Counts, len(r.tools))
	for name := range r.tools {
		byTool[name] = idem.Counts{}
	}
	for name, c := range r.counts.byTool {
		// Nobody knows the tool when a request arrives, so a tool's deliveries
		// are those that were answered.
		c.Deliveries = c.Created + c.Replayed + c.Joined + c.Requeued + c.Conflicts + c.Refused
		byTool[name] = c
	}
	return idem.Stats{Totals: totals, Since: r.since, Counts: r.counts.all, ByTool: byTool}, nil
}
