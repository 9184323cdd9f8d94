package idem

// RulesID names rules by what they say: equal rules have one id, in every
// process and release. The zero value is that of no rules.
type RulesID [16]byte

// IsZero reports whether the id is that of no rules.
func (id RulesID) IsZero() bool { return id == RulesID{} }

// Rules say which differences between the args of a tool mean nothing, so that
// they make no conflict (R3). They are JSON pointers (RFC 6901) into the args.
type Rules struct {
	Ignore []string // what does not count at all, whether it is there or not
	Trim   []string // strings whose outer blanks (space, tab, CR, LF) do not count
	NFC    []string // strings that are compared in Unicode normalisation form C
}
