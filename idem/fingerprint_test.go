package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"
)

func mustFingerprint(t *testing.T, tool, args string) Fingerprint {
	t.Helper()
	f, err := FingerprintOf(tool, []byte(args))
	if err != nil {
		t.Fatalf("%s %s: %v", tool, args, err)
	}
	return f
}

// fourLevels has objects in objects and in arrays, four levels of them.
const fourLevels = `{
	"order": {"id": "A-17", "lines": [
		{"sku": "x", "count": 2, "price": {"amount": 12.50, "currency": "EUR"}},
		{"sku": "y", "count": 1, "price": {"amount": 1e3, "currency": "EUR"}}
	], "to": {"name": "Zoë", "street": {"name": "Long \"Lane\"", "number": 4}}},
	"notify": true, "note": null, "tags": ["b", "a"]
}`

// TestFingerprintOf/permuted: one intent however its members are ordered and its
// text is spelled. (R3)
func TestFingerprintOf(t *testing.T) {
	t.Run("permuted 100 ways", func(t *testing.T) {
		tree, ok := readSlowly([]byte(fourLevels))
		if !ok {
			t.Fatal("the oracle refuses the document")
		}
		want := mustFingerprint(t, "charge", fourLevels)
		spellings := map[string]bool{}
		for seed := range uint64(100) {
			doc := respell(rand.New(rand.NewPCG(seed, 1)), tree)
			spellings[doc] = true
			if got := mustFingerprint(t, "charge", doc); got != want {
				t.Fatalf("%s\nhas %v, but\n%s\nhas %v", fourLevels, want, doc, got)
			}
		}
		if len(spellings) != 100 {
			t.Errorf("only %d spellings", len(spellings))
		}
	})

	// Each of these is another intent. (R3)
	base := mustFingerprint(t, "charge", `{"a":[1,2],"b":null}`)
	for _, tt := range []struct{ name, tool, args string }{
		{"array items swapped", "charge", `{"a":[2,1],"b":null}`},
		{"null and absent", "charge", `{"a":[1,2]}`},
		{"number and string", "charge", `{"a":[1,"2"],"b":null}`},
		{"other tool", "send_email", `{"a":[1,2],"b":null}`},
		{"other tool, by case", "Charge", `{"a":[1,2],"b":null}`},
		{"no tool", "", `{"a":[1,2],"b":null}`},
	} {
		t.Run("other/"+tt.name, func(t *testing.T) {
			if mustFingerprint(t, tt.tool, tt.args) == base {
				t.Errorf("%s %s has the same fingerprint", tt.tool, tt.args)
			}
		})
	}

	t.Run("tool and args do not run together", func(t *testing.T) {
		if mustFingerprint(t, "t1", `2`) == mustFingerprint(t, "t", `12`) {
			t.Error("same fingerprint")
		}
	})

	// The layout, spelled out once more. It is stored, so it can never change.
	t.Run("layout", func(t *testing.T) {
		const tool, canonical = "charge", `{"a":1,"b":"x"}`
		b := []byte("idemd-fp-1")
		b = binary.BigEndian.AppendUint64(b, uint64(len(tool)))
		b = append(b, tool...)
		b = binary.BigEndian.AppendUint64(b, uint64(len(canonical)))
		b = append(b, canonical...)
		want := sha256.Sum256(b)
		got := mustFingerprint(t, tool, `{"b":"x","a":1.0}`)
		if got != want || got.String() != hex.EncodeToString(want[:]) {
			t.Errorf("got %v, want %x", got, want)
		}
	})

	t.Run("refused", func(t *testing.T) {
		f, err := FingerprintOf("charge", []byte(`{"a":1,"a":1}`))
		if !errors.Is(err, ErrBadRequest) || f != (Fingerprint{}) {
			t.Errorf("got %v, %v", f, err)
		}
	})

	// The hot path. It is none at all in truth; the race detector drops
	// buffers now and then to find more races.
	t.Run("few allocations", func(t *testing.T) {
		args := []byte(benchArgs)
		if n := testing.AllocsPerRun(1000, func() { _, _ = FingerprintOf("charge", args) }); n > 8 {
			t.Errorf("%v allocations", n)
		}
	})
}

// benchArgs is a document of 110 bytes with its members out of order.
const benchArgs = `{"order":"ord_209","amount":1250,"currency":"EUR","customer":{"id":48213,"mail":"a@example.org"},"retry":true}`

func BenchmarkFingerprintOf(b *testing.B) {
	b.ReportAllocs()
	args := []byte(benchArgs)
	for b.Loop() {
		if _, err := FingerprintOf("charge", args); err != nil {
			b.Fatal(err)
		}
	}
}
