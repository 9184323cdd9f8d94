package tool

import (
	"math/big"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// errArgs answers args that are not what the tool's schema promises. It is
// definite: a tool looks at its args before it does anything.
var errArgs = &idem.Failure{Code: idem.FailureTool, Message: "the args do not fit the tool"}

// args are the members of a call's args that a tool knows, as the caller wrote
// them; the values lie in the call's args. Names are matched exactly, which is why
// this is not a struct: encoding/json would take "Amount" for "amount".
type args []arg

type arg struct {
	name  string
	value jsontext.Value
}

// parseArgs picks the named members.
func parseArgs(raw []byte, names ...string) (args, error) {
	r := newReader(raw)
	defer r.release()
	if tok, err := r.dec.ReadToken(); err != nil || tok.Kind() != jsontext.KindBeginObject {
		return nil, errArgs
	}
	a := make(args, 0, len(names))
	for r.dec.PeekKind() == jsontext.KindString {
		quoted, err := r.dec.ReadValue()
		if err != nil {
			return nil, errArgs
		}
		name, known := pick(names, quoted)
		v, err := r.dec.ReadValue()
		if err != nil || known && a.has(name) {
			return nil, errArgs
		}
		if known {
			a = append(a, arg{name, v})
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return nil, errArgs
	}
	return a, nil
}

// pick finds a member's name among names.
func pick(names []string, quoted jsontext.Value) (string, bool) {
	var buf [64]byte
	plain, err := jsontext.AppendUnquote(buf[:0], quoted)
	if err != nil {
		return "", false
	}
	for _, name := range names {
		if name == string(plain) {
			return name, true
		}
	}
	return "", false
}

// get returns a member as it is written; nil where it is absent.
func (a args) get(name string) jsontext.Value {
	for _, m := range a {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// has reports whether a member is there, be it null.
func (a args) has(name string) bool { return a.get(name) != nil }

// text gives a string member, or def where it is absent.
func (a args) text(name, def string) (string, error) {
	v := a.get(name)
	if v == nil {
		return def, nil
	}
	if v.Kind() != jsontext.KindString {
		return "", errArgs
	}
	s, err := unquote(v)
	if err != nil {
		return "", errArgs
	}
	return s, nil
}

// flag gives a boolean member, or false where it is absent.
func (a args) flag(name string) (bool, error) {
	switch v := a.get(name); {
	case v == nil:
		return false, nil
	case v.Kind() == jsontext.KindTrue:
		return true, nil
	case v.Kind() == jsontext.KindFalse:
		return false, nil
	default:
		return false, errArgs
	}
}

// number gives the exact value of a number member.
func (a args) number(name string) (*big.Rat, error) {
	v := a.get(name)
	if v == nil || v.Kind() != jsontext.KindNumber {
		return nil, errArgs
	}
	r, ok := new(big.Rat).SetString(string(v))
	if !ok {
		return nil, errArgs
	}
	return r, nil
}

// integer gives the value of a number member that is a whole number and fits,
// however it is written.
func (a args) integer(name string) (int64, error) {
	n, ok := idem.Integer(a.get(name))
	if !ok {
		return 0, errArgs
	}
	return n, nil
}
