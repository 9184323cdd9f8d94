package idem

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestInteger(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "-0": 0, "0.000": 0, "0e1000": 0, "1": 1, "-1": -1, "100e-2": 1, "0.5e1": 5,
		"9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
		"9.223372036854775807e18": math.MaxInt64, "92233720368547758070e-1": math.MaxInt64,
		"1e18": 1e18, "-1e18": -1e18, "0.0000000000000000001e19": 1,
		"1" + strings.Repeat("0", 999) + "e-999": 1,
	} {
		if got, ok := Integer([]byte(s)); !ok || got != want {
			t.Errorf("%s: got %d, %v", s, got, ok)
		}
	}
	if n, ok := Integer([]byte(" 1\n")); !ok || n != 1 {
		t.Errorf("with white space: got %d, %v", n, ok)
	}
	for _, s := range []string{
		"0.5", "1e-1", "9223372036854775808", "-9223372036854775809", "1e19", "99999999999999999999",
		"1e1001", "0e1001", "0e-1001", "1e99999999999999999999", "1e1000", "1" + strings.Repeat("0", 1000) + "e-1000",
		`"1"`, "null", "true", "{}", "[1]",
		"", " ", "-", "+1", "007", "-01", "1_0", "0x1", "1 2", "9e18e", "Infinity",
	} {
		if got, ok := Integer([]byte(s)); ok {
			t.Errorf("%s: got %d", s, got)
		}
	}
}

// Whatever a number looks like, it is an integer exactly when its exact value
// is one.
func TestIntegerIsTheExactValue(t *testing.T) {
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,21})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		text := number.Draw(t, "number")
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%s: not a number", text)
		}
		got, ok := Integer([]byte(text))
		want := exact.IsInt() && exact.Num().IsInt64()
		if ok != want || ok && got != exact.Num().Int64() {
			t.Fatalf("%s: got %d, %v; it is %s", text, got, ok, exact.RatString())
		}
	})
}

func TestIntegerAllocatesNothing(t *testing.T) {
	doc := []byte("-1234567890123456789")
	if n := testing.AllocsPerRun(100, func() { Integer(doc) }); n != 0 {
		t.Errorf("%v allocations for plain digits", n)
	}
}
