package idem

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestResultValidate(t *testing.T) {
	full := `"` + strings.Repeat("x", MaxOutput-2) + `"`
	for name, c := range map[string]struct {
		output string
		fits   bool
	}{
		"an object":               {`{"receipt":"r-1","amount":1e2}`, true},
		"with white space":        {" [1,\n2] ", true},
		"null":                    {"null", true},
		"as much as there may be": {full, true},
		"a byte more":             {full + " ", false},
		"empty":                   {"", false},
		"no JSON":                 {"done", false},
		"two documents":           {"1 2", false},
		"a name twice":            {`{"a":1,"\u0061":2}`, false},
		"no UTF-8":                {"\"\xff\"", false},
		"half a surrogate pair":   {`"\ud800"`, false},
		"too deep":                {strings.Repeat("[", 65) + strings.Repeat("]", 65), false},
		"too large a number":      {"1e1001", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Result{Output: []byte(c.output)}.Validate()
			if (err == nil) != c.fits || err != nil && !errors.Is(err, ErrBadRequest) {
				t.Errorf("got %v", err)
			}
			if err != nil && len(c.output) > 8 && len(c.output) < 100 && strings.Contains(err.Error(), c.output) {
				t.Errorf("it quotes the output: %v", err)
			}
		})
	}
	if err := (Result{}).Validate(); err != nil {
		t.Errorf("nothing at all: %v", err)
	}
}

func TestFailureValidate(t *testing.T) {
	for name, c := range map[string]struct {
		f    Failure
		fits bool
	}{
		"as it should be":          {Failure{Code: "no_stock", Message: "no stock\n"}, true},
		"without a message":        {Failure{Code: FailureTool}, true},
		"a message that just fits": {Failure{Code: "c", Message: strings.Repeat("x", MaxMessage)}, true},
		"a message that does not":  {Failure{Code: "c", Message: strings.Repeat("x", MaxMessage+1)}, false},
		"without a code":           {Failure{Message: "m"}, false},
		"a code that is a text":    {Failure{Code: "no stock"}, false},
		"a message of bytes":       {Failure{Code: "c", Message: "\xff"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.f.Validate(); (err == nil) != c.fits || err != nil && !errors.Is(err, ErrBadRequest) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestFailureClipped(t *testing.T) {
	fill := strings.Repeat("x", MaxMessage-1)
	for name, c := range map[string]struct{ f, want Failure }{
		"as it should be":          {Failure{"no_stock", "no stock", true, 0, false}, Failure{"no_stock", "no stock", true, 0, false}},
		"without a code":           {Failure{"", "m", true, 0, false}, Failure{FailureTool, "m", true, 0, false}},
		"a code that is a text":    {Failure{"No stock!", "m", false, 0, false}, Failure{FailureTool, "m", false, 0, false}},
		"a message of bytes":       {Failure{"c", "a\xff\xffb", false, 0, false}, Failure{"c", "a\uFFFDb", false, 0, false}},
		"a long message":           {Failure{"c", fill + "yz", false, 0, false}, Failure{"c", fill + "y", false, 0, false}},
		"cut between characters":   {Failure{"c", fill + "ä", false, 0, false}, Failure{"c", fill, false, 0, false}},
		"cut where it was invalid": {Failure{"c", fill + "\xff", false, 0, false}, Failure{"c", fill, false, 0, false}},
		"a fraction of a second":   {Failure{"c", "m", true, 1, false}, Failure{"c", "m", true, time.Second, false}},
		"a pause of a long time":   {Failure{"c", "m", true, 1 << 62, false}, Failure{"c", "m", true, MaxRetryAfter, false}},
		"a pause in the past":      {Failure{"c", "m", true, -1, false}, Failure{"c", "m", true, 0, false}},
		"only tails of characters": {Failure{"c", strings.Repeat("\x80", 2*MaxMessage), false, 0, false}, Failure{"c", "\uFFFD", false, 0, false}},
	} {
		t.Run(name, func(t *testing.T) {
			was := c.f
			if got := c.f.Clipped(); got != c.want {
				t.Errorf("got %q, %.20q of %d bytes", got.Code, got.Message, len(got.Message))
			}
			if c.f != was {
				t.Error("it was changed in place")
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		f := Failure{Code: rapid.String().Draw(t, "code"), Retryable: rapid.Bool().Draw(t, "retryable")}
		unit := string(rapid.SliceOfN(rapid.Byte(), 1, 7).Draw(t, "unit"))
		f.Message = strings.Repeat(unit, rapid.IntRange(0, 2*MaxMessage/len(unit)).Draw(t, "times"))
		got := f.Clipped()
		if err := got.Validate(); err != nil || got.Retryable != f.Retryable {
			t.Fatalf("%q: %v", f.Code, err)
		}
		if utf8.ValidString(f.Message) && !strings.HasPrefix(f.Message, got.Message) {
			t.Fatal("the message is another one")
		}
	})
}
