package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

func TestIntentOf(t *testing.T) {
	const args = ` {"order_id": " 7 ", "n": 1.50, "to": [ "a", {"b/c": null, "d~": [] } ], "": 0, "a\u0062": true, "01": "x", "~1": "t", "/": "s"} `
	canonical, err := idem.Canonical([]byte(args))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name     string
		pointers []string
		want     string // a message, where it does not begin as JSON does
	}{
		{"a member", []string{"/order_id"}, `{"/order_id":" 7 "}`},
		{"in the order given", []string{"/n", "/order_id"}, `{"/n":1.5,"/order_id":" 7 "}`},
		{"deeper, escapes, null counts", []string{"/to/1/b~1c"}, `{"/to/1/b~1c":null}`},
		{"tilde", []string{"/to/1/d~0"}, `{"/to/1/d~0":[]}`},
		{"a tilde before a one", []string{"/~01"}, `{"/~01":"t"}`},
		{"an element", []string{"/to/0"}, `{"/to/0":"a"}`},
		{"the empty name", []string{"/"}, `{"/":0}`},
		{"a name that is spelled with escapes", []string{"/ab"}, `{"/ab":true}`},
		{"a name of digits is no index", []string{"/01"}, `{"/01":"x"}`},
		{"the whole", []string{""}, `{"":` + string(canonical) + `}`},
		{"missing", []string{"/order_id", "/nope"}, "no /nope"},
		{"other case", []string{"/Order_id"}, "no /Order_id"},
		{"past the end", []string{"/to/2"}, "no /to/2"},
		{"no index", []string{"/to/01"}, "no /to/01"},
		{"the element after the last", []string{"/to/-"}, "no /to/-"},
		{"negative", []string{"/to/-1"}, "no /to/-1"},
		{"plus", []string{"/to/+1"}, "no /to/+1"},
		{"into a string", []string{"/order_id/x"}, "no /order_id/x"},
		{"no pointer", []string{"order_id"}, "no JSON pointer"},
		{"none", nil, "no pointer says"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := IntentOf([]byte(args), tc.pointers, nil)
			if strings.HasPrefix(tc.want, "{") {
				if err != nil || string(got) != tc.want {
					t.Errorf("%s, %v, want %s", got, err, tc.want)
				}
				if _, err := idem.KeyFor("shop-1", "charge", got); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, idem.ErrBadRequest) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s, %v, want %s", got, err, tc.want)
			}
		})
	}
	for _, args := range []string{`{`, `{"a":1,"a":2}`, ``, `{} {}`} {
		if got, err := IntentOf([]byte(args), []string{"/a"}, nil); err == nil {
			t.Errorf("%s: %s", args, got)
		}
	}
}

// R1: what means nothing to the tool makes no second key of one intent.
func TestIntentUnderRules(t *testing.T) {
	rules := &idem.Rules{Ignore: []string{"/memo"}, Trim: []string{"/order"}, NFC: []string{"/name"}}
	const want = `{"/name":"Café","/order":"a"}`
	for _, args := range []string{
		`{"order":"a","name":"Café","memo":1}`, `{"name":"Café","order":" a\n"}`,
	} {
		got, err := IntentOf([]byte(args), []string{"/name", "/order"}, rules)
		if canonical, cerr := idem.Canonical([]byte(want)); err != nil || cerr != nil || string(got) != string(canonical) {
			t.Errorf("%s: %s, %v", args, got, err)
		}
	}
	if got, err := IntentOf([]byte(`{"memo":1}`), []string{"/memo"}, rules); err == nil {
		t.Errorf("an intent that is ignored: %s", got)
	}
}

// R1: the same intent has the same key, however it is written and whatever else is
// asked for.
func TestIntentMakesTheKey(t *testing.T) {
	keys := map[string]bool{}
	for _, args := range []string{`{"order":7,"amount":1,"memo":"x"}`, `{"memo":"y", "amount": 1.0, "order": 7e0}`} {
		intent, err := IntentOf([]byte(args), []string{"/order", "/amount"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := idem.KeyFor("shop-1", "charge", intent)
		if err != nil {
			t.Fatal(err)
		}
		keys[key] = true
	}
	if len(keys) != 1 {
		t.Errorf("keys %v", keys)
	}
}
