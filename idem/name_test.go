package idem

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestValidName(t *testing.T) {
	pattern := regexp.MustCompile("^" + NamePattern + "$")
	long := "a" + strings.Repeat("z", 63)
	for want, names := range map[bool][]string{
		true:  {"a", "a0_", "send_email", long},
		false: {"", "_a", "0a", "A", "aB", "a-b", "a ", "a\n", "ä", long + "z"},
	} {
		for _, s := range names {
			if got := ValidName(s); got != want || pattern.MatchString(s) != want {
				t.Errorf("%q: %v; the pattern says %v", s, got, pattern.MatchString(s))
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.RuneFrom([]rune("az09_AZ-\u00e4\n"))).Draw(t, "name")
		if got, want := ValidName(s), pattern.MatchString(s) && !strings.HasSuffix(s, "\n"); got != want {
			t.Fatalf("%q: %v, want %v", s, got, want)
		}
	})
}
