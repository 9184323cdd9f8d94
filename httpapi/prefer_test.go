package httpapi

import (
	"net/http"
	"testing"
)

func TestPreferWait(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  int64 // -1: none
	}{
		{"none", nil, -1},
		{"empty", []string{""}, -1},
		{"plain", []string{"wait=10"}, 10},
		{"zero", []string{"wait=0"}, 0},
		{"leading zeros", []string{"wait=007"}, 7},
		{"name in capitals", []string{"WAIT=3"}, 3},
		{"blanks around everything", []string{" \twait \t=\t 4 \t"}, 4},
		{"quoted", []string{`wait="5"`}, 5},
		{"after others", []string{"respond-async, wait=6"}, 6},
		{"before others", []string{"wait=6, respond-async"}, 6},
		{"on a later line", []string{"respond-async", "wait=8"}, 8},
		{"first of two", []string{"wait=1, wait=2"}, 1},
		{"first of two lines", []string{"wait=1", "wait=2"}, 1},
		{"first is invalid", []string{"wait=x, wait=2"}, -1},
		{"with a parameter", []string{"wait=9; foo=bar"}, 9},
		{"with a parameter that looks like it", []string{`handling=lenient; wait=9`}, -1},
		{"in a quoted value", []string{`foo="wait=9", wait=2`}, 2},
		{"a comma in a quoted value", []string{`foo="a, wait=9", wait=2`}, 2},
		{"an escaped quote in a quoted value", []string{`foo="a\", wait=9", wait=2`}, 2},
		{"a quoted value that does not end", []string{`foo="a, wait=9`}, -1},
		{"a quoted value that does not end, another line", []string{`foo="a`, "wait=2"}, 2},
		{"empty elements", []string{",, ,wait=2,"}, 2},
		{"malformed element before", []string{"=5;;=, wait=3"}, 3},
		{"no value", []string{"wait"}, -1},
		{"empty value", []string{"wait="}, -1},
		{"empty quoted value", []string{`wait=""`}, -1},
		{"negative", []string{"wait=-1"}, -1},
		{"sign", []string{"wait=+1"}, -1},
		{"fraction", []string{"wait=1.5"}, -1},
		{"unit", []string{"wait=10s"}, -1},
		{"hexadecimal", []string{"wait=0x10"}, -1},
		{"other digits", []string{"wait=１"}, -1},
		{"huge", []string{"wait=99999999999999999999999999"}, 1 << 40},
		{"longer name", []string{"waiting=5"}, -1},
		{"half a quote", []string{`wait="5`}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := preferWait(c.lines)
			if !ok {
				got = -1
			}
			if got != c.want {
				t.Errorf("%q: got %d, want %d", c.lines, got, c.want)
			}
		})
	}
}

func TestAccepts(t *testing.T) {
	for accept, want := range map[string]bool{
		"":                                       false,
		"*/*":                                    false,
		"application/json":                       false,
		"application/x-ndjson":                   true,
		"APPLICATION/X-NDJSON":                   true,
		"application/x-ndjson;q=0":               false,
		"application/x-ndjson; q=0.5":            true,
		"application/x-ndjson;q=x":               false,
		"application/x-ndjson;q=2":               false,
		"application/x-ndjson;q=NaN":             false,
		"application/json, application/x-ndjson": true,
		"application/json, application/x-ndjson;q=0.9":     false,
		"application/json;q=0.1, application/x-ndjson":     true,
		`text/plain;a="application/x-ndjson", */*;q=0.1`:   false,
		`text/plain;a=", application/x-ndjson", text/html`: false,
	} {
		if got := accepts(http.Header{"Accept": {accept}}, mediaStream); got != want {
			t.Errorf("%q: got %v", accept, got)
		}
	}
}

func TestPrefers(t *testing.T) {
	for accept, want := range map[string]bool{
		"*/*":                               false,
		"application/*":                     false,
		"application/json":                  false,
		"text/html":                         false,
		"text/html, */*;q=0.8":              false,
		"application/json, text/plain, */*": false,
		"application/problem+json":          true,
		"Application/Problem+JSON; charset=utf-8":               true,
		"application/problem+json;q=0":                          false,
		"application/problem+json;q=0, */*":                     false,
		"application/problem+json;q=0.001":                      true,
		"application/problem+json;q=x":                          false,
		"application/problem+jsonp":                             false,
		"application/problem+json, application/json":            true,
		"application/json, application/problem+json":            false,
		"application/json;q=0.5, application/problem+json":      true,
		"application/problem+json;q=0.5, application/json":      false,
		"application/problem+json;q=0.5, application/json;q=.5": true,
		"application/problem+json, */*":                         true,
		"*/*, application/problem+json":                         true,
		"application/*, application/problem+json":               true,
		"application/problem+json;q=0.1, */*;q=0.2":             false,
		"application/problem+json, application/*;q=0.9":         true,
		"application/json;q=0, */*":                             true,
		"application/json;q=0.1, application/*;q=0.2":           true,
		"application/json, application/*;q=0.2":                 false,
		"*/*;q=0.9, application/*;q=0.1":                        false,
		`text/plain;a=", application/problem+json"`:             false,
		", ,application/problem+json,":                          true,
	} {
		if got := prefers(http.Header{"Accept": {accept}}, mediaProblem); got != want {
			t.Errorf("%q: got %v", accept, got)
		}
	}
	if prefers(http.Header{}, mediaProblem) || prefers(http.Header{"Accept": nil}, mediaProblem) {
		t.Error("no Accept: got true")
	}
	// Several lines are one list.
	if !prefers(http.Header{"Accept": {"text/plain", "application/problem+json", "application/json"}}, mediaProblem) {
		t.Error("three lines: got false")
	}
	if prefers(http.Header{"Accept": {"application/json", "application/problem+json"}}, mediaProblem) {
		t.Error("two lines: got true")
	}
}
