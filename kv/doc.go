// Package kv keeps calls in an embedded key-value store (Pebble), for one
// process that owns its data directory.
//
// # What it promises
//
// Accepted means durable (R4): every change is one batch whose commit is synced
// before Update returns, and no reader is shown anything of a batch whose sync
// has not returned. The key of a call and the effect of a call are unique (R2,
// R8), and the store sees to that itself. After a crash at any moment a call is
// as one of its commits left it, never in between (R7).
//
// # What it does not promise
//
// It does not go on after a failed write. Whatever was asked for may or may not
// be on disk then, so the process ends, with exit code 70, and the next one
// reads what is there. Tables are another matter: what goes into them is in the
// logs as well, so they are tried again until commits have been held back for
// too long.
//
// It does not notice damage that the engine does not notice. A log that was torn
// at its end, which is what a crash does, loses nothing that was answered. One
// that was damaged further in is refused, unless the damage is in its last
// blocks, or turns the number in a chunk's header into a mark of the log's end:
// then it looks like the end, and what followed is lost. Damage in a table is an error for whoever
// reads it. The package never repairs and never wipes: a directory that cannot
// be opened is left as it is.
//
// Times are kept in microseconds.
//
// # How it is laid out
//
// Integers are big-endian, nsid is the number of a namespace, id a call's id.
//
//	m/schema            layout version, time of creation
//	T <namespace>       nsid
//	i <nsid> <key>       id, fingerprint
//	c <nsid> <id> 00     the request; written once, and once more as a tombstone
//	c <nsid> <id> 01     the state; absent between a plain create and what follows it
//	c <nsid> <id> 03 <n> one batch's events, the first of which has the number n
//	e <nsid> <id>        the effect: a row of the ledger
//	n <nsid> <id>        a marker: this call has no end
//	r <rules id>         rules that a tool has, or once had
//	t                   the counts: one merge operand per batch that moves them
//
// The markers are what a start reads. So a start costs what is in flight, not
// what was ever stored. Leases and the queue of due calls are in memory only:
// an exclusively owned store has no lease that outlives its process (R11).
//
// A value begins with a version of its own. The layout version in m/schema is
// raised when an older release would misread what is written from now on; it
// refuses the directory then. A store of an older layout is read as it is, and
// gets the new version at the first start that may write, before anything else is
// written:
//
//	1	the first
//	2	rules and the calls' ids of them; doubt, how the last attempt went out, and the pause after a failure
//
// Rows that hold nothing of what is new are written as they were.
//
// The package imports the standard library, Pebble, and package idem.
package kv
