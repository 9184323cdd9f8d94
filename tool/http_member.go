package tool

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// What keeps a member from being put into a document. They say nothing of the
// document but where.
var (
	errNotJSON     = errors.New("not valid JSON")
	errMemberThere = errors.New("there already, but its value is set on the way")
	errNoParent    = errors.New("its object is missing")
	errNotObject   = errors.New("its place is in something that is no object")
)

// member is a member that is put into a document: the names on the way to it, its
// own last.
type member []string

// parseMember reads a JSON pointer to a member (RFC 6901).
func parseMember(pointer string) member {
	names := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, n := range names {
		names[i] = strings.ReplaceAll(strings.ReplaceAll(n, "~1", "/"), "~0", "~")
	}
	return names
}

// insert returns a copy of doc that has the member, as the last one of its object,
// with a text as its value. All other bytes are as they were. Nothing else is made
// on the way: the objects that the member lies in have to be there.
func (m member) insert(doc []byte, value string) ([]byte, error) {
	at, first, err := m.place(doc)
	if err != nil {
		return nil, err
	}
	name := m[len(m)-1]
	out := make([]byte, 0, len(doc)+len(name)+len(value)+len(`,"":""`))
	out = append(out, doc[:at]...)
	if !first {
		out = append(out, ',')
	}
	if out, err = jsontext.AppendQuote(out, name); err != nil {
		return nil, errNotJSON
	}
	out = append(out, ':')
	if out, err = jsontext.AppendQuote(out, value); err != nil {
		return nil, errNotJSON
	}
	return append(out, doc[at:]...), nil
}

// place finds the byte before which the member goes, and reports whether it is the
// first of its object.
func (m member) place(doc []byte) (at int, first bool, err error) {
	r := newReader(doc)
	defer r.release()
	if at, first, err = m.find(r); err != nil {
		return 0, false, err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return 0, false, errNotJSON
	}
	return at, first, nil
}

// find reads one value and finds the place in it. A name on the way that is there
// twice is as bad as one that is not: nobody knows which one counts downstream.
func (m member) find(r *reader) (at int, first bool, err error) {
	switch r.dec.PeekKind() {
	case jsontext.KindBeginObject:
	case jsontext.KindInvalid:
		return 0, false, errNotJSON
	default:
		return 0, false, errNotObject
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return 0, false, errNotJSON
	}
	empty, found := true, false
	for r.dec.PeekKind() == jsontext.KindString {
		empty = false
		name, err := r.dec.ReadValue()
		if err != nil {
			return 0, false, errNotJSON
		}
		switch {
		case !isName(name, m[0]):
			if err := r.dec.SkipValue(); err != nil {
				return 0, false, errNotJSON
			}
		case found || len(m) == 1:
			return 0, false, errMemberThere
		default:
			found = true
			if at, first, err = m[1:].find(r); err != nil {
				return 0, false, err
			}
		}
	}
	if tok, err := r.dec.ReadToken(); err != nil || tok.Kind() != jsontext.KindEndObject {
		return 0, false, errNotJSON
	}
	switch {
	case len(m) == 1:
		return int(r.dec.InputOffset()) - len(`}`), empty, nil
	case !found:
		return 0, false, errNoParent
	}
	return at, first, nil
}

// isName reports whether a name, as it is written in a document, is this one.
func isName(raw jsontext.Value, name string) bool {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner) == name
	}
	s, err := jsontext.AppendUnquote(nil, raw)
	return err == nil && string(s) == name
}
