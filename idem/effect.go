package idem

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// Effect is the one durable trace of a call's side effect: a row of the ledger.
type Effect struct {
	ID        string // EffectID of the call
	CallID    CallID
	Key       Key
	Tool      string
	Amount    *int64 // what the tool counts, in its own smallest unit; nil where it counts nothing
	CreatedAt time.Time
}

// OwesEffect reports whether the call must have its effect in the ledger: it
// has succeeded, with a tool that has effects (R7). No other call may have one.
func (c *Call) OwesEffect() bool {
	return c.Status == StatusSucceeded && c.Effects != EffectsNone
}

// EffectID is a function of the call alone: known before the tool runs, the
// same on every attempt, and what goes downstream (R10).
func EffectID(id CallID) string {
	var text [len(effectPrefix) + 32]byte
	return string(AppendEffectID(text[:0], id))
}

// AppendEffectID appends what EffectID returns to b.
func AppendEffectID(b []byte, id CallID) []byte {
	var in [len(effectTag) + len(id)]byte
	copy(in[:], effectTag)
	copy(in[len(effectTag):], id[:])
	sum := sha256.Sum256(in[:])
	return hex.AppendEncode(append(b, effectPrefix...), sum[:16])
}

const (
	effectTag    = "idemd-effect-1"
	effectPrefix = "eff_"
)
