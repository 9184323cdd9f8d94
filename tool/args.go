package tool

import (
	"bytes"
	"math/big"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// errArgs answers args that are not what the tool's schema promises. It is
// definite: a tool looks at its args before it does anything.
var errArgs = &idem.Failure{Code: idem.FailureTool, Message: "the args do not fit the tool"}

// args are the members of a call's args that a tool knows, as the caller wrote
// them. An absent member is nil. Names are matched exactly, which is why this
// is not a struct: encoding/json would take "Amount" for "amount".
type args map[string]jsontext.Value

// parseArgs picks the named members. The values are copies.
func parseArgs(raw []byte, names ...string) (args, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != jsontext.KindBeginObject {
		return nil, errArgs
	}
	a := make(args, len(names))
	for dec.PeekKind() == jsontext.KindString {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, errArgs
		}
		n := name.String()
		if !slices.Contains(names, n) {
			if err := dec.SkipValue(); err != nil {
				return nil, errArgs
			}
			continue
		}
		v, err := dec.ReadValue()
		if err != nil {
			return nil, errArgs
		}
		a[n] = v.Clone()
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, errArgs
	}
	return a, nil
}

// has reports whether a member is there, be it null.
func (a args) has(name string) bool { return a[name] != nil }

// text gives a string member, or def where it is absent.
func (a args) text(name, def string) (string, error) {
	v := a[name]
	if v == nil {
		return def, nil
	}
	if v.Kind() != jsontext.KindString {
		return "", errArgs
	}
	s, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return "", errArgs
	}
	return string(s), nil
}

// flag gives a boolean member, or false where it is absent.
func (a args) flag(name string) (bool, error) {
	switch v := a[name]; {
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
	v := a[name]
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
// however it is written: 100, 100.0 and 1e2 are one number.
func (a args) integer(name string) (int64, error) {
	if v := a[name]; v != nil && v.Kind() == jsontext.KindNumber {
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return n, nil // nearly every number is written this way
		}
	}
	r, err := a.number(name)
	if err != nil {
		return 0, err
	}
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, errArgs
	}
	return r.Num().Int64(), nil
}
