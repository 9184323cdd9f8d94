package idem

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStatus(t *testing.T) {
	for _, s := range Statuses {
		if !s.Valid() {
			t.Errorf("%q is not valid", s)
		}
		if got, want := s.Ended(), s == StatusSucceeded || s == StatusFailed; got != want {
			t.Errorf("%q: ended %v", s, got)
		}
	}
	for _, s := range []Status{"", "Pending", "done", "pending "} {
		if s.Valid() || s.Ended() {
			t.Errorf("%q is a status", s)
		}
	}
}

// R16: the window counts from the end; without an end there is none.
func TestCallExpired(t *testing.T) {
	for state, want := range map[string]bool{
		"pending": false, "pending again": false, "running": false, "held": false, "held, with an odd old deadline": false,
		"succeeded": false, "failed": false, "retryable": false, "succeeded, last instant": false,
		"window over": true, "failed, window over": true, "retryable, window over": true, "tombstone": true,
	} {
		if got := states[state]().Expired(at); got != want {
			t.Errorf("%s: expired %v", state, got)
		}
	}
	if !states["tombstone"]().Expired(at.Add(-1000 * day)) {
		t.Error("a clock that went back brings a tombstone to life")
	}
}

// The layout is for ever: ids are stored, and a slot in them routes.
func TestNewCallID(t *testing.T) {
	const d, ms, slot = 20516, 18367008, 0xbca // 2026-03-04, 05:06:07.008, and the slot of default/k
	random := [10]byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xff, 0xaa}
	id := NewCallID(at, theKey, random)
	if got := theKey.Slot(); got != slot {
		t.Fatalf("slot %#x", got)
	}
	var hi uint64
	for _, b := range id[:8] {
		hi = hi<<8 | uint64(b)
	}
	for _, f := range []struct {
		name      string
		got, want uint64
	}{
		{"day", hi >> 48, d},
		{"milliseconds of the day", hi >> 21 & (1<<27 - 1), ms},
		{"slot", hi >> 9 & 0xfff, slot},
		{"9 random bits", hi & 0x1ff, 0x1aa}, // of 0xffaa
	} {
		if f.got != f.want {
			t.Errorf("%s: %d, want %d", f.name, f.got, f.want)
		}
	}
	if !bytes.Equal(id[8:], random[:8]) {
		t.Errorf("64 random bits: %x", id[8:])
	}
	if got, want := id.String(), "c_50242308441795aa1122334455667788"; got != want {
		t.Errorf("text %s, want %s", got, want)
	}
}

func TestCallIDTime(t *testing.T) {
	for _, want := range []time.Time{
		time.UnixMilli(0), time.UnixMilli(1), at,
		time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.UTC), // the last millisecond of a day
		time.Date(2027, 1, 1, 0, 0, 0, 0, time.FixedZone("", -7*3600)),
		time.Date(2149, 6, 6, 23, 59, 59, 0, time.UTC), // the last day that 16 bits count
	} {
		for _, fill := range []byte{0, 0xff} { // random bits never reach the time
			random := [10]byte(bytes.Repeat([]byte{fill}, 10))
			if got := NewCallID(want, theKey, random).Time(); !got.Equal(want.Truncate(time.Millisecond)) {
				t.Errorf("%v: %v", want, got)
			}
		}
	}
}

// R17: ids are ordered by time, whatever key and random say, as bytes and as text.
func TestCallIDOrder(t *testing.T) {
	const seed = 1
	r := rand.New(rand.NewPCG(seed, 0))
	random := func() (b [10]byte) {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	var last CallID
	now := at
	for i := range 1000 {
		now = now.Add(time.Millisecond + time.Duration(r.Int64N(int64(10*time.Hour))))
		id := NewCallID(now, Key{Name: string(rune('a' + i%26))}, random())
		if bytes.Compare(id[:], last[:]) <= 0 || id.String() <= last.String() {
			t.Fatalf("seed %d: %v of %v does not come after %v of %v", seed, id, id.Time(), last, last.Time())
		}
		last = id
	}
}

func TestParseCallID(t *testing.T) {
	id := NewCallID(at, theKey, [10]byte{0xab, 0xcd, 0xef})
	if got, err := ParseCallID(id.String()); err != nil || got != id {
		t.Errorf("%v: %v, %v", id, got, err)
	}
	if got, err := ParseCallID("c_" + strings.Repeat("0", 32)); err != nil || !got.IsZero() {
		t.Errorf("the zero id: %v, %v", got, err)
	}
	good := id.String()
	for _, s := range []string{
		"", "c_", good[2:], "C_" + good[2:], "e_" + good[2:], " " + good, good + " ", good[:33], good + "0",
		"c_" + strings.ToUpper(hex.EncodeToString(id[:])), "c_" + strings.Repeat("g", 32), "c_" + strings.Repeat("é", 16),
		good[:10] + "-" + good[11:], "c_" + good, "c_0x" + good[4:],
	} {
		// A malformed id names no call, and is refused as one that is not there.
		if got, err := ParseCallID(s); !errors.Is(err, ErrNotFound) || !got.IsZero() {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

// A slot depends on namespace and name, in this way for ever.
func TestKeySlot(t *testing.T) {
	for k, want := range map[Key]uint16{
		{"default", "k"}: 0xbca, {"default", "demo-1"}: 0x622, {"a", "bc"}: 0x741, {"ab", "c"}: 0xa1e, {"", ""}: 0x148,
	} {
		if got := k.Slot(); got != want {
			t.Errorf("slot of %v: %#x, want %#x", k, got, want)
		}
	}
	// Spread: 4096 keys leave about a third of the slots empty, not most of them.
	seen := make(map[uint16]bool)
	for i := range 4096 {
		s := Key{"default", string(rune('a'+i%26)) + strings.Repeat("x", i/26)}.Slot()
		if s >= 4096 {
			t.Fatalf("slot %d", s)
		}
		seen[s] = true
	}
	if len(seen) < 2400 {
		t.Errorf("4096 keys are in %d slots", len(seen))
	}
}

// R10: the effect id is a function of the call id, in this way for ever: it goes
// downstream, and the next release must send the same one.
func TestEffectID(t *testing.T) {
	id := CallID{0x50, 0x24, 0x23, 0x08, 0x44, 0x17, 0x94, 0x00, 1, 2, 3, 4, 5, 6, 7, 8}
	if got, want := EffectID(id), "eff_fad3c7fd9d5ae0c75c1c94cc271d5afb"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	seen := make(map[string]bool)
	for i := range id {
		for bit := range 8 {
			other := id
			other[i] ^= 1 << bit
			e := EffectID(other)
			if seen[e] || e == EffectID(id) || len(e) != 36 || !strings.HasPrefix(e, "eff_") {
				t.Fatalf("effect id %s of %v", e, other)
			}
			seen[e] = true
		}
	}
}

// R12: a crash is told from the boot part of an owner.
func TestOwner(t *testing.T) {
	if got := Owner("boot", "w1"); got != "boot/w1" {
		t.Errorf("owner %q", got)
	}
	for owner, want := range map[string]string{"boot/w1": "boot", "boot/w1/x": "boot", "boot": "boot", "": "", "/w1": ""} {
		if got := boot(owner); got != want {
			t.Errorf("boot of %q: %q", owner, got)
		}
	}
}

func TestStatusesAreInOrder(t *testing.T) {
	want := []Status{StatusPending, StatusRunning, StatusHeld, StatusSucceeded, StatusFailed}
	if !slices.Equal(Statuses[:], want) { // stored totals are in this order
		t.Errorf("%v", Statuses)
	}
}
