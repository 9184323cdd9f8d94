package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Fingerprint is a digest of what a caller asked for: the tool and its
// arguments. It decides whether a request for a known key is the same one again
// or another one under a key that is taken (R3).
//
// It covers nothing else. A client's name, a sequence number, headers and request
// ids change between honest attempts, or between two doors to the same call, and
// would turn every retry into a conflict.
type Fingerprint [sha256.Size]byte

// String returns the fingerprint as 64 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// fingerprintTag begins what is hashed. It keeps fingerprints apart from every other
// use of SHA-256, and must change if anything about the canonical form ever does:
// stored fingerprints are compared with new ones across versions.
const fingerprintTag = "idemd-fp-1"

// FingerprintOf returns the fingerprint of a tool and its arguments, a JSON
// document that is canonicalised first. It refuses what [Canonical] refuses, with the
// same errors. Args are neither kept nor modified.
//
// The SHA-256 is taken over
//
//	"idemd-fp-1" | len(tool) | tool | len(canonical args) | canonical args
//
// where a length is an unsigned integer of 64 bits, most significant byte
// first. The lengths keep a tool's name from running into the arguments.
func FingerprintOf(tool string, args []byte) (Fingerprint, error) {
	c := getCanonizer()
	return c.fingerprint(append(c.out[:0], fingerprintTag...), tool, args)
}

// fingerprintRulesTag takes the place of fingerprintTag where there are rules.
const fingerprintRulesTag = "idemd-fp-rules-1"

// FingerprintUnder returns the fingerprint of a tool and its arguments under
// rules. Under nil and under rules that say nothing it is that of
// [FingerprintOf].
//
// Else the SHA-256 is taken over
//
//	"idemd-fp-rules-1" | id of the rules | len(tool) | tool | len(canonical args) | canonical args
//
// where the id has 16 bytes and a length is an unsigned integer of 64 bits, most
// significant byte first, and the canonical args are those that the rules leave,
// see [Rules]. So a fingerprint under rules is never one without, and never one
// under other rules.
//
// It refuses all that [Canonical] refuses, also where it stands in a part that is
// ignored, with the same errors. What is wrong with the rules is an error that is
// no [Error]. Args are neither kept nor modified.
func FingerprintUnder(rules *Rules, tool string, args []byte) (Fingerprint, error) {
	id := rules.ID()
	if id.IsZero() {
		return FingerprintOf(tool, args)
	}
	if err := rules.Validate(); err != nil {
		return Fingerprint{}, err
	}
	c := getCanonizer()
	c.at = rules.compile()
	c.out = append(c.out[:0], fingerprintRulesTag...)
	return c.fingerprint(append(c.out, id[:]...), tool, args)
}

// fingerprint appends tool and args to what the hash begins with, and gives the
// canonizer back.
func (c *canonizer) fingerprint(b []byte, tool string, args []byte) (Fingerprint, error) {
	b = appendPart(b, tool)
	b = binary.BigEndian.AppendUint64(b, 0) // the length, when it is known
	start := len(b)
	b, err := c.document(b, args)
	if err != nil {
		putCanonizer(c)
		return Fingerprint{}, err
	}
	binary.BigEndian.PutUint64(b[start-8:], uint64(len(b)-start))
	f := Fingerprint(sha256.Sum256(b))
	c.out = b
	putCanonizer(c)
	return f, nil
}

// appendPart appends s after its length.
func appendPart(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(len(s))), s...)
}
