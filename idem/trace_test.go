package idem

import (
	"strings"
	"testing"
)

func TestValidTraceparent(t *testing.T) {
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for s, want := range map[string]bool{
		valid:                               true,
		valid[:53] + "ff":                   true,
		"":                                  false,
		valid[:54]:                          false,
		valid + "-more":                     false,
		valid + "\n":                        false,
		"01" + valid[2:]:                    false,
		"ff" + valid[2:]:                    false,
		strings.ToUpper(valid):              false,
		strings.Replace(valid, "-", "_", 1): false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g": false,
		"00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01": false,
		strings.Repeat("a", 55):                                   false,
	} {
		if got := ValidTraceparent(s); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}
