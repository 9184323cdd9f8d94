package httpapi

import (
	"errors"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

func TestCursor(t *testing.T) {
	mine := cursor{scope: []string{"calls", "default", "", "charge"}}
	position := []byte("0123456789abcdef")
	text := mine.encode(position)
	got, err := mine.decode(text, len(position))
	if err != nil || string(got) != string(position) {
		t.Fatalf("got %q, %v", got, err)
	}

	refuse := func(name string, c cursor, s string, size int) {
		t.Helper()
		if got, err := c.decode(s, size); !errors.Is(err, idem.ErrBadRequest) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	for i := range text { // damaged anywhere
		for _, c := range []byte{'A', 'B', '_', '=', ' ', 0} {
			if text[i] != c {
				refuse("damaged", mine, text[:i]+string(c)+text[i+1:], len(position))
			}
		}
		refuse("cut", mine, text[:i], len(position))
	}
	refuse("longer", mine, text+"A", len(position))
	refuse("much longer", mine, strings.Repeat(text, 10_000), len(position))
	refuse("other size", mine, text, 4)
	refuse("other route", cursor{scope: []string{"effects", "default", "", "charge"}}, text, len(position))
	refuse("other namespace", cursor{scope: []string{"calls", "other", "", "charge"}}, text, len(position))
	refuse("other filter", cursor{scope: []string{"calls", "default", "charge", ""}}, text, len(position))
	refuse("parts run together", cursor{scope: []string{"callsdefault", "", "", "charge"}}, text, len(position))
}
