package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// stats is what /stats says that a series must agree with.
type stats struct {
	Calls    int64            `json:"calls"`
	Effects  int64            `json:"effects"`
	ByStatus map[string]int64 `json:"by_status"`
	Attempts map[string]int64 `json:"attempts"`

	Deliveries int64 `json:"deliveries"`
	Created    int64 `json:"created"`
	Replayed   int64 `json:"replayed"`
	Joined     int64 `json:"joined"`
	Requeued   int64 `json:"requeued"`
	Conflicts  int64 `json:"conflicts"`
	Refused    int64 `json:"refused"`
}

// answered are the deliveries of which it is decided what to answer.
func (s *stats) answered() int64 {
	return s.Created + s.Replayed + s.Joined + s.Requeued + s.Conflicts + s.Refused
}

// waiting are the calls that will still change.
func (s *stats) waiting() int64 { return s.ByStatus["pending"] + s.ByStatus["running"] }

func (a *asker) stats(ctx context.Context) (*stats, error) {
	got, err := a.want(ctx, request{method: http.MethodGet, path: "/stats"}, http.StatusOK)
	if err != nil {
		return nil, err
	}
	var s stats
	if err := json.Unmarshal(got.Body, &s); err != nil {
		return nil, fmt.Errorf("bench: %s/stats: %w", a.base, err)
	}
	return &s, nil
}

const (
	// restTime is how long calls may take to end once the last request is answered.
	restTime = 30 * time.Second

	// restStep is the time between two looks.
	restStep = 10 * time.Millisecond
)

// atRest reads the counts once nothing moves: every delivery is decided and
// every call has an end. Where that does not happen in time, it returns the
// counts as they are; check sees it in them.
func (a *asker) atRest(ctx context.Context) (*stats, error) {
	late := time.NewTimer(restTime)
	defer late.Stop()
	step := time.NewTicker(restStep)
	defer step.Stop()
	for {
		s, err := a.stats(ctx)
		if err != nil || s.waiting() == 0 && s.Deliveries == s.answered() {
			return s, err
		}
		select {
		case <-step.C:
		case <-late.C:
			return s, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// seen is what the generator knows of a series.
type seen struct {
	posts    bool
	requests int64
	silent   int64 // without an answer: they may have arrived, or not
	fresh    int64 // accepted, and not there before
	again    int64 // accepted, and there before
	conflict int64 // 409
	keys     int64 // new ones that were sent
	effects  int64 // of a call
	restart  bool  // the server has lost its counts meanwhile; what is durable it must still know
}

// seen is what a recorder knows, with what its workload does.
func (r *recorder) seen(w *workload) seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return seen{
		posts: !w.get, requests: r.n, silent: r.statuses[0], fresh: r.fresh, again: r.again, conflict: r.statuses[http.StatusConflict],
		keys: w.fresh.Load(), effects: w.effects, restart: w.kill,
	}
}

// check compares what the server counted during a series with what the generator
// saw, and says every disagreement. A request without an answer may or may not
// have been counted; everything else has to be exact.
func check(before, after *stats, s seen) (faults []string) {
	between := func(what string, got, least, most int64) {
		switch {
		case got >= least && got <= most:
		case least == most:
			faults = append(faults, fmt.Sprintf("%s: the server counted %d, the answers say %d", what, got, least))
		default:
			faults = append(faults, fmt.Sprintf("%s: the server counted %d, the answers say %d to %d", what, got, least, most))
		}
	}
	if n := after.waiting(); n > 0 {
		faults = append(faults, fmt.Sprintf("%d calls have no end %v after the last answer", n, restTime))
	}
	calls := after.Calls - before.Calls
	if !s.posts {
		s = seen{effects: s.effects, restart: s.restart} // who only looks changes nothing and is not counted
	}
	// A key that was sent more than once makes one call at most.
	between("calls", calls, s.fresh, min(s.fresh+s.silent, max(s.keys, s.fresh)))
	// A server that takes new keys for known ones does less work, and its counts and
	// answers agree.
	if accepted := s.keys - (s.requests - s.fresh - s.again); calls < accepted {
		faults = append(faults, fmt.Sprintf("calls: the server counted %d, and accepted %d new keys at least", calls, accepted))
	}
	between("effects", after.Effects-before.Effects, calls*s.effects, calls*s.effects)
	attempts := minus(after.Attempts, before.Attempts)
	var ended int64
	for _, n := range attempts {
		ended += n
	}
	between("ended calls", ended, calls, calls)
	if s.restart {
		return faults // the rest was counted by two processes, one of which is gone
	}
	between("calls of one attempt", attempts["1"], calls, calls)
	between("deliveries", after.Deliveries-before.Deliveries, s.requests-s.silent, s.requests)
	between("deliveries by kind", after.answered()-before.answered(), after.Deliveries-before.Deliveries, after.Deliveries-before.Deliveries)
	between("created", after.Created-before.Created, calls, calls)
	between("replayed and joined", after.Replayed+after.Joined-before.Replayed-before.Joined, s.again, s.again+s.silent)
	between("requeued", after.Requeued-before.Requeued, 0, 0)
	between("conflicts", after.Conflicts-before.Conflicts, s.conflict, s.conflict+s.silent)
	refused := s.requests - s.silent - s.fresh - s.again - s.conflict
	between("refused", after.Refused-before.Refused, refused, refused+s.silent)
	return faults
}

// minus is what has come to the counts by their names.
func minus(after, before map[string]int64) map[string]int64 {
	d := make(map[string]int64)
	for name, n := range after {
		if n -= before[name]; n != 0 {
			d[name] = n
		}
	}
	return d
}

// unfit says why the latencies of a series cannot be used, if they cannot: some
// are not of the right answer, which a refusal is quicker than, or are longer than
// the histogram holds. Profile recovery is there to see what is not answered.
func unfit(d declaration, rec *recorder) (why []string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if wrong := rec.n - rec.good; wrong > 0 && !d.kill {
		why = append(why, fmt.Sprintf("%d of %d requests were not answered with status %d: %s", wrong, rec.n, rec.right, byName(rec.statuses)))
	}
	if rec.cut > 0 {
		why = append(why, fmt.Sprintf("%d latencies are above %v, and were recorded as that", rec.cut, time.Duration(longest)*time.Microsecond))
	}
	return why
}

// saturated says why the generator's figures cannot be used, if they cannot.
func saturated(a *attack, m Measurement) []string {
	if !a.open() {
		return nil
	}
	var why []string
	if all := a.all(); m.Requests < all {
		why = append(why, fmt.Sprintf("the generator sent %d requests of %d", m.Requests, all))
	}
	if 100*m.Late > m.Requests {
		why = append(why, fmt.Sprintf("the generator is saturated: %d of %d requests were sent more than %v after they were due", m.Late, m.Requests, lateAfter))
	}
	return why
}
