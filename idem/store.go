package idem

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps calls. Every backend obeys this contract, and package storetest
// holds it to it.
//
// A store knows no law: it loads, applies a transition, commits. By itself it
// refuses only what must never be, whatever transitions say: a second call for
// a key and a second effect for a call (R2, R8).
//
// Nothing that any method returns is derived from a write that is not durable
// yet (R4). What a method returns belongs to the caller; bytes in it are not
// shared with buffers of the store.
//
// Every method returns the context's error when the context ends while it
// waits; a commit that has begun goes on. Errors that are not named here come
// from the engine, after which the store may have exited the process.
type Store interface {
	// Update loads the call of a key, applies the transition and commits its
	// change atomically and durably; check and write are one critical section
	// per key. It may run the transition more than once.
	//
	// An error of the transition is returned as it is, with the change that
	// came with it, and nothing is written. A panic of the transition writes
	// nothing, leaves the key usable, and goes on to the caller.
	//
	// Errors: ErrSecondCall, ErrSecondEffect; on a store that several processes
	// share, ErrLeaseLives. A change that cannot be stored is refused as well (see
	// MaxRetryAfter).
	Update(ctx context.Context, key Key, t Transition) (Change, error)

	// Renew makes a lease last for d from now. A store with one owner writes
	// nothing. Errors: ErrLeaseLost where somebody else moved the call.
	Renew(ctx context.Context, key Key, lease Lease, d time.Duration) error

	// Due returns calls that may be claimed now, oldest first by CreatedAt, at
	// most limit (all where limit is 0): the pending ones, and the running ones
	// whose lease is over. A store that is owned by one process at a time has
	// no lease that outlives the process (R11). Calls of the tools that except
	// names are left out; many of them must not make the others slow to find.
	Due(ctx context.Context, limit int, except ...string) ([]Due, error)

	// Held returns held calls, oldest first, at most limit (all where 0).
	Held(ctx context.Context, limit int) ([]Due, error)

	// CallByKey and CallByID return a call, without its Args. A call of
	// another namespace is not found. Errors: ErrNotFound.
	CallByKey(ctx context.Context, key Key) (Call, error)
	CallByID(ctx context.Context, ns Namespace, id CallID) (Call, error)

	// List returns calls of a namespace, without their Args and with a zero
	// Fingerprint, newest first by id. The page may be shorter than the limit,
	// and even empty, while there is more: the returned id is where the next
	// page begins, zero at the end.
	List(ctx context.Context, ns Namespace, q Query) ([]Call, CallID, error)

	// Events returns the audit trail of a call from an event's number on, at
	// most limit, which is at least 1. Errors: ErrNotFound where there is no such call.
	Events(ctx context.Context, ns Namespace, id CallID, from, limit int) ([]Event, error)

	// Effects returns rows of the ledger in the order of call ids, those after
	// a given one (zero: from the start), at most limit, which is at least 1. It
	// pages over what is there; it does not tail.
	Effects(ctx context.Context, ns Namespace, after CallID, limit int) ([]Effect, error)

	// SaveRules keeps rules for good, over all namespaces: calls name them by their
	// id, and must be compared under them for as long as their keys are remembered.
	// They are durable when it returns. Rules that are saved already, which is
	// decided by their id, write nothing. The rules are neither kept nor modified.
	//
	// Errors: ErrNoRules for nil and for rules that say nothing, what their
	// Validate says, ErrTooManyRules. None of them writes anything.
	SaveRules(ctx context.Context, r *Rules) error

	// Rules returns all rules that were ever saved, in the order of their ids; none
	// is ever lost. Those whose SaveRules has not returned yet are left out.
	Rules(ctx context.Context) ([]*Rules, error)

	// Totals returns the durable counts, over all namespaces.
	Totals(ctx context.Context) (Totals, error)

	// Newest returns the time in the newest call id over all namespaces, zero
	// where there is no call. New ids must not be earlier (R17).
	Newest(ctx context.Context) (time.Time, error)

	// Ready returns nil while the store takes writes, else why not, in words
	// that may be shown to callers.
	Ready() error

	// Close makes everything durable and releases the store. No other method
	// may be running, or be called later.
	Close() error
}

// Due is a call that waits for somebody: what a queue needs to know of it.
type Due struct {
	ID        CallID
	Key       Key
	Tool      string
	Status    Status
	Attempt   int
	Crashes   int
	Owner     string // of the lease that is over, where Status is running
	Effects   Effects
	CreatedAt time.Time

	// Recovered says that an earlier life of an exclusively owned store left it.
	Recovered bool
}

// Lease is the lease that is over; zero for a call that is not running.
func (d Due) Lease() Lease {
	if d.Status != StatusRunning {
		return Lease{}
	}
	return Lease{CallID: d.ID, Owner: d.Owner, Attempt: d.Attempt}
}

// Query selects calls for [Store].List.
type Query struct {
	Status   Status // empty: all
	Tool     string // empty: all
	ClientID string // empty: all
	Limit    int    // at least 1
	Before   CallID // only older ids than this one; zero: from the newest
}

// Match reports whether a call fulfils the conditions of the query.
func (q Query) Match(c *Call) bool {
	return (q.Status == "" || q.Status == c.Status) &&
		(q.Tool == "" || q.Tool == c.Tool) &&
		(q.ClientID == "" || c.ClientID != nil && *c.ClientID == q.ClientID)
}

// What a store refuses by itself. Both mean that a rule was broken above it.
var (
	ErrSecondCall   = errors.New("idem: a second call for a key was refused")
	ErrSecondEffect = errors.New("idem: a second effect for a call was refused")
)

// MaxSavedRules is how many different rules a store keeps. They are read whole at
// every start, and are the work of people who edit a file; where there are more,
// something makes them up.
const MaxSavedRules = 10_000

// What a store refuses to save as rules.
var (
	ErrNoRules      = errors.New("idem: rules that say nothing are not saved")
	ErrTooManyRules = fmt.Errorf("idem: no more rules can be saved: there are %d already", MaxSavedRules)
)

// MaxRetryAfter is the longest RetryAfter of a failure. A store refuses a change
// with a longer one, with a negative one, and with one that is no number of
// whole seconds.
const MaxRetryAfter = 10 * 365 * 24 * time.Hour

// ErrLeaseLives is returned for a change that takes a running call from a lease
// that is not over: its holder renewed it after Due had found it. Nothing was
// written. A store with one owner need not look: the one process that claims
// knows itself what it has in hand.
var ErrLeaseLives = errors.New("idem: the lease of a running call is not over")

// ErrLeaseLost is returned for a lease that its call is not held under.
var ErrLeaseLost = errors.New("idem: the lease is not held any more")
