package tool

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

func TestCharge(t *testing.T) {
	charge := sample(t, "charge")
	for _, tc := range []struct {
		amount string
		want   int64 // 0: refused
	}{
		{"1", 1},
		{"100", 100},
		{"100.0", 100},
		{"1e2", 100},
		{"1E+2", 100},
		{"10000e-2", 100},
		{"0.01e4", 100},
		{"9007199254740993", 9007199254740993}, // between two float64
		{"9223372036854775807", math.MaxInt64},
		{"9223372036854775807.000", math.MaxInt64},
		{"9223372036854775.807e3", math.MaxInt64},
		{"1" + strings.Repeat("0", 999) + "e-997", 100},
		{"9223372036854775808", 0},
		{"9223372036854775807.1", 0},
		{"1e19", 0},
		{"1e1000", 0},
		{"1e-1000", 0},
		{"0." + strings.Repeat("9", 999), 0},
		{"0", 0},
		{"-0", 0},
		{"0.5", 0},
		{"-1", 0},
		{"-9223372036854775809", 0},
		{`"100"`, 0},
		{"null", 0},
		{"true", 0},
		{"[100]", 0},
		{`{"amount":100}`, 0},
	} {
		t.Run(tc.amount[:min(len(tc.amount), 24)], func(t *testing.T) {
			args := `{"currency":"EUR","amount":` + tc.amount + `,"Amount":"another member"}`
			err := charge.Check([]byte(args))
			if tc.want == 0 {
				wantInvalid(t, err, "another", "EUR")
				if !strings.Contains(err.Error(), "args/amount: must be ") {
					t.Errorf("message %q does not name place and rule", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			res, err := charge.Invoke(t.Context(), invocation(1, args))
			if err != nil {
				t.Fatal(err)
			}
			if res.Amount == nil || *res.Amount != tc.want {
				t.Fatalf("effect row carries %v, want %d", res.Amount, tc.want)
			}
			var out struct {
				Receipt string
				Amount  json.Number
			}
			if err := json.Unmarshal(res.Output, &out); err != nil {
				t.Fatal(err)
			}
			if n, err := out.Amount.Int64(); err != nil || n != tc.want {
				t.Errorf("result %s, want the plain integer %d", res.Output, tc.want)
			}
			if !strings.HasPrefix(out.Receipt, "rcpt_") || len(out.Receipt) != len("rcpt_")+32 {
				t.Errorf("receipt %q", out.Receipt)
			}
		})
	}
	wantInvalid(t, charge.Check([]byte(`{}`)))
	wantInvalid(t, charge.Check([]byte(`{"amount":1,"currency":7}`)))
	wantInvalid(t, charge.Check([]byte(`{"Amount":1}`)))
}

// What Check lets through can be charged, and is charged in full.
func FuzzCharge(f *testing.F) {
	for _, s := range []string{`{"amount":1}`, `{"amount":100.0}`, `{"amount":1e2,"x":[]}`, `{"amount":-1}`, `{"amount":9223372036854775807}`, `{}`, `[]`} {
		f.Add([]byte(s))
	}
	charge := sample(f, "charge")
	f.Fuzz(func(t *testing.T, args []byte) {
		if _, err := idem.Canonical(args); err != nil {
			return // never gets this far
		}
		inv := invocation(1, string(args))
		res, err := charge.Invoke(t.Context(), inv)
		if charge.Check(args) != nil {
			return
		}
		if err != nil {
			t.Fatalf("%s: was let through, then: %v", args, err)
		}
		if res.Amount == nil || *res.Amount < 1 || !json.Valid(res.Output) {
			t.Fatalf("%s: %+v", args, res)
		}
	})
}
