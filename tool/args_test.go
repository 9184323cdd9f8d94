package tool

import (
	"errors"
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	long := strings.Repeat("x", 100)
	for raw, want := range map[string]string{
		`{"n":1}`:                            "1",
		`{"\u006e":1}`:                       "1",
		`{"N":2,"other":{"n":3},"n":[1, 2]}`: "[1, 2]",
		`{"n":null}`:                         "null",
		`{"other":1,"other":2}`:              "", // no tool knows it
		`{}`:                                 "",
		`{"` + long + `":1}`:                 "",
		`{"a":1,"n":"` + long + `"}`:         `"` + long + `"`,
	} {
		a, err := parseArgs([]byte(raw), "a", "n")
		if err != nil || string(a.get("n")) != want || a.has("n") != (want != "") {
			t.Errorf("%s: got %s, %v", raw, a.get("n"), err)
		}
	}
	for _, raw := range []string{``, `null`, `[]`, `1`, `{`, `{"n"`, `{"n":`, `{"n":1`, `{"n":1,}`, `{"n":1,"n":1}`, `{"n":1,"\u006e":1}`, `{"x":01}`} {
		if a, err := parseArgs([]byte(raw), "a", "n"); !errors.Is(err, errArgs) {
			t.Errorf("%s: got %v, %v", raw, a, err)
		}
	}
}
