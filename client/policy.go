package client

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Policy is how long, how often and how patiently a client tries.
//
// Every pause is drawn from zero up to its bound (full jitter), so that clients
// which failed together do not come back together.
type Policy struct {
	// Tries is how often a request is sent at most, the first time included.
	// Default 5, at most 1000. With 1 it is sent once and nothing is asked
	// after a lost answer: one request on the wire, whatever comes of it. Too low
	// gives up during a restart of the server; too high is held back by Total.
	Tries int

	// Total is how long after the first send of a call another request may
	// begin, a question about the call too. Default 2 min. Too low gives up on
	// calls that run longer; too high keeps the caller. Must be more than 0.
	Total time.Duration

	// Wait is how long the server is asked to wait for the end before it answers
	// (Prefer: wait). Default 10 s, at most 60 s; it is sent in whole seconds,
	// rounded up. 0 asks for an answer at once, and costs more polls.
	Wait time.Duration

	// Timeout is how long one request may take on top of Wait. Default 5 s. Too
	// low turns slow answers into unknown outcomes; too high waits long for a
	// dead server.
	Timeout time.Duration

	// Backoff bounds the pause after the first failure; it doubles with each
	// further one, up to BackoffCap. Defaults 250 ms and 10 s. Too low is a
	// burden on a server in trouble; too high finds it well too late.
	Backoff    time.Duration
	BackoffCap time.Duration

	// RetryAfterCap is the longest pause that the server, or what the tool calls, may
	// ask for; a longer Retry-After counts as this. Default 30 s. Too low comes back before the
	// server wants it; too high lets a mistaken answer stop the client.
	RetryAfterCap time.Duration

	// Poll bounds the pause before the first question about an accepted call;
	// it doubles with each further one, up to PollCap. Defaults 250 ms and 5 s.
	Poll    time.Duration
	PollCap time.Duration

	// RetryFailed sends a call again that failed and may be asked for again, with the
	// same key, while there are Tries, and not before what the tool calls asked for
	// (see RetryAfterCap). The last failure is the outcome then. Off by default: a
	// failure is an answer, and the caller's to act on.
	RetryFailed bool

	// RequireWindow refuses to send where the tool's window cannot be learnt.
	// Off by default: then it is a warning.
	RequireWindow bool
}

const (
	maxTries = 1000
	maxWait  = 60 * time.Second // what the server honours
)

// DefaultPolicy is a policy that outlives a restart of the server.
func DefaultPolicy() Policy {
	return Policy{
		Tries: 5, Total: 2 * time.Minute,
		Wait: 10 * time.Second, Timeout: 5 * time.Second,
		Backoff: 250 * time.Millisecond, BackoffCap: 10 * time.Second, RetryAfterCap: 30 * time.Second,
		Poll: 250 * time.Millisecond, PollCap: 5 * time.Second,
	}
}

// Validate reports everything that is wrong with a policy, not only the first
// thing.
func (p Policy) Validate() error {
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("client: policy: "+format, args...))
		}
	}
	want(p.Tries >= 1 && p.Tries <= maxTries, "Tries is %d; want 1 to %d", p.Tries, maxTries)
	want(p.Total > 0, "Total is %v; want more than 0", p.Total)
	want(p.Wait >= 0 && p.Wait <= maxWait, "Wait is %v; want 0 to %v", p.Wait, maxWait)
	want(p.Timeout > 0, "Timeout is %v; want more than 0", p.Timeout)
	want(p.Backoff > 0, "Backoff is %v; want more than 0", p.Backoff)
	want(p.BackoffCap >= p.Backoff, "BackoffCap is %v; want at least Backoff, %v", p.BackoffCap, p.Backoff)
	want(p.RetryAfterCap >= 0, "RetryAfterCap is %v; want 0 or more", p.RetryAfterCap)
	want(p.Poll > 0, "Poll is %v; want more than 0", p.Poll)
	want(p.PollCap >= p.Poll, "PollCap is %v; want at least Poll, %v", p.PollCap, p.Poll)
	return errors.Join(faults...)
}

// Span is the longest time from the first send of a request to the moment when
// its last send has been answered or given up: what the window of the tool has to
// cover (R16). With
//
//	T    = Wait + Timeout              a request that is given up
//	P(k) = max(min(BackoffCap, Backoff·2^k), RetryAfterCap)
//	                                   the longest pause after failure k = 0, 1, …
//
// each of Tries-1 sends but the last may be lost, after which the client pauses,
// asks by key, loses that answer too, and pauses again:
//
//	Span = min(Total, Σ over n = 1 … Tries-1 of (T + P(2n-2) + T + P(2n-1))) + T
//
// since nothing is sent after Total. Questions about the call after the last send are
// not in it; they cannot run anything. None begins after Total. Nor is the time for
// which a call runs that fails and is sent again (RetryFailed): its window begins anew
// with each of its ends.
func (p Policy) Span() time.Duration {
	t := add(p.Wait, p.Timeout)
	var sum time.Duration
	for n := 1; n < p.Tries && sum < p.Total; n++ {
		sum = add(sum, add(add(t, p.longest(2*n-2)), add(t, p.longest(2*n-1))))
	}
	return add(min(p.Total, sum), t)
}

// longest is the longest pause after the failure number n, counted from 0.
func (p Policy) longest(n int) time.Duration {
	return max(bound(p.Backoff, p.BackoffCap, n), p.RetryAfterCap)
}

// pause is how long to wait after the failure number n, counted from 0. chance
// is from [0, 1).
func (p Policy) pause(n int, retryAfter time.Duration, chance float64) time.Duration {
	d := time.Duration(chance * float64(bound(p.Backoff, p.BackoffCap, n)))
	return max(d, min(retryAfter, p.RetryAfterCap))
}

// pollPause is how long to wait before the question number n, counted from 0.
func (p Policy) pollPause(n int, retryAfter time.Duration, chance float64) time.Duration {
	d := time.Duration(chance * float64(bound(p.Poll, p.PollCap, n)))
	return max(d, min(retryAfter, p.RetryAfterCap))
}

// bound is base doubled n times, at most top.
func bound(base, top time.Duration, n int) time.Duration {
	for ; n > 0 && base < top; n-- {
		base = add(base, base)
	}
	return min(base, top)
}

// add adds durations that are not negative; too much is the longest there is.
func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
