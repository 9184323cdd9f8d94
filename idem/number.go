package idem

import "strconv"

// Integer returns the value of a JSON number that is a whole number of 64 bits,
// however it is written: 100, 100.0 and 1e2 are one number. It reports false for
// any other number, for a number that [Canonical] refuses, and for what is no
// number at all.
func Integer(doc []byte) (int64, bool) {
	if !isPlainInteger(doc) {
		// The canonical text of what fits into 64 bits is its digits.
		text, err := Canonical(doc)
		if err != nil {
			return 0, false
		}
		doc = text
	}
	n, err := strconv.ParseInt(string(doc), 10, 64)
	return n, err == nil
}

// isPlainInteger reports whether a document is a number that is written with
// its digits only, as nearly every integer is.
func isPlainInteger(doc []byte) bool {
	if len(doc) > 0 && doc[0] == '-' {
		doc = doc[1:]
	}
	if len(doc) == 0 || doc[0] == '0' && len(doc) > 1 {
		return false
	}
	for _, c := range doc {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
