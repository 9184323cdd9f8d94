package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// reader is a decoder over bytes that are in memory already. A warm one
// allocates nothing.
type reader struct {
	buf bytes.Buffer
	dec *jsontext.Decoder
}

// readerOptions are those of every reader. Whoever hands args to a tool has
// refused duplicates; the decoder would keep a set for each object.
var readerOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

var readers = sync.Pool{New: func() any {
	r := new(reader)
	r.dec = jsontext.NewDecoder(&r.buf, readerOptions...)
	return r
}}

// newReader takes a reader, which release gives back. Values that it reads lie in
// raw.
func newReader(raw []byte) *reader {
	r := readers.Get().(*reader)
	r.buf = *bytes.NewBuffer(raw)
	r.dec.Reset(&r.buf, readerOptions...)
	return r
}

// release lets go of what was read.
func (r *reader) release() {
	r.buf = bytes.Buffer{}
	r.dec.Reset(&r.buf, readerOptions...)
	readers.Put(r)
}

// document reads one document, and nothing after it, into what the validator
// takes: maps, slices and strings, and numbers as they are written.
func document(raw []byte) (any, error) {
	r := newReader(raw)
	defer r.release()
	doc, err := r.value()
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("tool: something follows the document")
	}
	return doc, nil
}

func (r *reader) value() (any, error) {
	switch r.dec.PeekKind() {
	case jsontext.KindBeginObject:
		return r.object()
	case jsontext.KindBeginArray:
		return r.array()
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	switch v.Kind() {
	case jsontext.KindString:
		return unquote(v)
	case jsontext.KindNumber:
		return json.Number(v), nil
	case jsontext.KindTrue:
		return true, nil
	case jsontext.KindFalse:
		return false, nil
	default:
		return nil, nil
	}
}

func (r *reader) object() (any, error) {
	if _, err := r.dec.ReadToken(); err != nil {
		return nil, err
	}
	members := make(map[string]any)
	for r.dec.PeekKind() == jsontext.KindString {
		v, err := r.dec.ReadValue()
		if err != nil {
			return nil, err
		}
		name, err := unquote(v)
		if err != nil {
			return nil, err
		}
		if members[name], err = r.value(); err != nil {
			return nil, err
		}
	}
	_, err := r.dec.ReadToken() // the end, or what else is there
	return members, err
}

func (r *reader) array() (any, error) {
	if _, err := r.dec.ReadToken(); err != nil {
		return nil, err
	}
	items := []any{}
	for r.dec.PeekKind() != jsontext.KindEndArray {
		item, err := r.value()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	_, err := r.dec.ReadToken()
	return items, err
}

// unquote returns the text of a string.
func unquote(v jsontext.Value) (string, error) {
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err
}
