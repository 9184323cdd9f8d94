package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// Status is where a call stands. The zero value means that there is no call.
type Status string

const (
	// StatusPending is accepted and waiting for a worker. Submit brings a call
	// in, also when it reopens a failed and retryable one; so do Release and a
	// resolution "retry". Claim takes it out. A crash leaves it pending, and
	// the next life finds it due.
	StatusPending Status = "pending"

	// StatusRunning is being executed under a lease. Only Claim brings a call
	// in. The lease's holder takes it out by Succeed, Fail, Lose, Hold or Release; a
	// Claim by somebody else, once the call is due, takes it over or ends it. A
	// crash leaves it running under a lease of a dead process.
	StatusRunning Status = "running"

	// StatusHeld means that the tool was dispatched, its answer was lost, and
	// it may not simply run again. Lose, Hold, Release and Claim bring a call in;
	// only Resolve takes it out. A crash leaves it held.
	StatusHeld Status = "held"

	// StatusSucceeded is an end, for good. Succeed and Resolve bring a call in,
	// together with its effect and its result. Nothing takes it out before its
	// window is over.
	StatusSucceeded Status = "succeeded"

	// StatusFailed is an end: for good, or retryable. Fail, Lose, Resolve and
	// Claim (poison, a tool that is gone) bring a call in. Only Submit with the
	// same key and fingerprint takes a retryable one out again.
	StatusFailed Status = "failed"
)

// Statuses lists every status, in the order of a call's life.
var Statuses = [...]Status{StatusPending, StatusRunning, StatusHeld, StatusSucceeded, StatusFailed}

// Ended reports whether the status is an end: what a window, a wait and the
// distribution of attempts count.
func (s Status) Ended() bool { return s == StatusSucceeded || s == StatusFailed }

// Valid reports whether s is one of [Statuses].
func (s Status) Valid() bool {
	for _, v := range Statuses {
		if s == v {
			return true
		}
	}
	return false
}

// Call is the durable record of one key.
//
// Slices and pointers in a Call are shared, never modified: whoever wants to
// change a field replaces it.
type Call struct {
	ID          CallID
	Key         Key
	Fingerprint Fingerprint

	// Rules are those under which the fingerprint was made; zero where all of the
	// args count. They stay the call's, whatever its tool is configured to later.
	Rules RulesID

	// The request, fixed when the call is created. Args are the caller's bytes;
	// a Store leaves them nil where its contract says so.
	Tool     string
	Args     []byte
	ClientID *string
	Seq      *int64

	// CreatedAt orders calls: strictly increasing within one process, and never
	// earlier than the time in ID. Microseconds.
	CreatedAt time.Time

	// Revision counts the changes of the record; it only ever goes up. A store
	// keeps it like every other field: a pending call that nobody claimed yet
	// has revision 1.
	Revision int

	Status  Status
	Attempt int // attempts begun so far; only ever counts up (R12)
	Crashes int // processes that died while this call was running (R12)

	// Effects and Rerun are what the tool promised when the last attempt was
	// claimed, so that the call can be judged after the tool is gone from the
	// configuration, or has changed its promise.
	Effects Effects
	Rerun   Rerun

	// Settle and Target are how the last attempt with an effect outside went out:
	// how long downstream may be at work on it, in whole milliseconds, and where it
	// went ([Tool.Target]). Zero where nobody said. A configuration that has changed
	// since says nothing about that attempt.
	Settle time.Duration
	Target uint64

	// InDoubt says that an attempt may have had an effect outside, and nobody has
	// found out since: its answer was lost, or its process died. It stays over
	// later attempts that fail, also definitely: they speak for themselves only.
	InDoubt bool

	// Owner holds the lease while the call is running. LeaseUntil is shown to
	// people; it decides nothing (R17).
	Owner      string
	LeaseUntil time.Time

	UpdatedAt time.Time
	ClaimedAt time.Time // when the last attempt was claimed; zero before the first
	EndedAt   time.Time // zero while there is no end
	ExpiresAt time.Time // end of the window, fixed at the end (R16); zero while there is no end

	// Deliveries counts the requests for this key that were created, joined,
	// requeued or in conflict, up to the last write of the record. What came
	// since is in the memory of the process that runs the call.
	Deliveries int64

	Result  []byte   // JSON; nil unless succeeded
	Failure *Failure // set when failed, and when held to say why

	// Tombstone marks what is left of a call after its window: enough to refuse
	// its key, not enough to replay it.
	Tombstone bool
}

// Retryable reports whether the call failed in a way that lets the same key
// open it again.
func (c *Call) Retryable() bool {
	return c.Status == StatusFailed && c.Failure != nil && c.Failure.Retryable
}

// Expired reports whether the call's window is over at a wall-clock time. A
// call without an end never expires (R16).
func (c *Call) Expired(now time.Time) bool {
	return c.Tombstone || (c.Status.Ended() && !now.Before(c.ExpiresAt))
}

// Lease is the right to move a running call. It names the call, so that it can
// never settle another one that took the key later, and the attempt, so that a
// stale worker can never settle a newer attempt (R6).
type Lease struct {
	CallID  CallID
	Owner   string
	Attempt int
}

// Holds reports whether the lease is the one that the record names. Time does
// not come into it: a lease is lost when somebody else takes the call, not when
// the clock says so.
func (l Lease) Holds(c *Call) bool {
	return c != nil && c.Status == StatusRunning && c.ID == l.CallID && c.Owner == l.Owner && c.Attempt == l.Attempt
}

// LeaseOf is the lease under which a running call is held now.
func LeaseOf(c *Call) Lease { return Lease{CallID: c.ID, Owner: c.Owner, Attempt: c.Attempt} }

// Owner names the holder of leases: one life of one process, and a worker in it.
func Owner(boot, worker string) string { return boot + "/" + worker }

// boot is the part of an owner that changes with every life of a process.
func boot(owner string) string {
	b, _, _ := strings.Cut(owner, "/")
	return b
}

// CallID names a call. It is ordered by time, carries the routing slot of its
// key, and cannot be guessed: day since 1970 (16 bits), milliseconds of that
// day (27), slot (12), random (73). Clients treat it as opaque.
type CallID [16]byte

const (
	callIDPrefix = "c_"
	dayMillis    = 24 * 60 * 60 * 1000
)

// NewCallID builds an id from a wall-clock time, the slot of the key and 73 of
// the given random bits. Callers see to it that t never goes back (R17).
func NewCallID(t time.Time, k Key, random [10]byte) CallID {
	ms := t.UnixMilli()
	hi := uint64(ms/dayMillis)<<48 | uint64(ms%dayMillis)<<21 | uint64(k.Slot())<<9 |
		uint64(binary.BigEndian.Uint16(random[8:])&0x1ff)
	var id CallID
	binary.BigEndian.PutUint64(id[:8], hi)
	copy(id[8:], random[:8])
	return id
}

// Time is the time in the id, to the millisecond.
func (id CallID) Time() time.Time {
	hi := binary.BigEndian.Uint64(id[:8])
	return time.UnixMilli(int64(hi>>48)*dayMillis + int64(hi>>21&(1<<27-1))).UTC()
}

// IsZero reports whether id names no call.
func (id CallID) IsZero() bool { return id == CallID{} }

func (id CallID) String() string { return callIDPrefix + hex.EncodeToString(id[:]) }

// ParseCallID reads the text form: "c_" and 32 lower-case hex digits. The error
// is ErrNotFound, since a malformed id names no call.
func ParseCallID(s string) (CallID, error) {
	var id CallID
	digits, ok := strings.CutPrefix(s, callIDPrefix)
	if !ok || len(digits) != 2*len(id) || strings.ToLower(digits) != digits {
		return CallID{}, ErrNotFound
	}
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return CallID{}, ErrNotFound
	}
	return id, nil
}

// Slot is a number below 4096 that depends on namespace and name alone: calls
// of one key always have one slot, on every store and in every release.
func (k Key) Slot() uint16 {
	h := sha256.New()
	var n [8]byte
	h.Write([]byte("idemd-slot-1"))
	binary.BigEndian.PutUint64(n[:], uint64(len(k.Namespace)))
	h.Write(n[:])
	h.Write([]byte(k.Namespace))
	h.Write([]byte(k.Name))
	var sum [sha256.Size]byte
	return binary.BigEndian.Uint16(h.Sum(sum[:0])) >> 4
}
