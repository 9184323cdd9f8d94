package httpapi

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// envelope is the body of a submission. args lies in the body.
type envelope struct {
	tool     string
	args     []byte
	clientID *string
	seq      *int64
}

const maxClientID = 255

var envelopeMembers = []string{"tool", "args", "client_id", "seq"}

// parseEnvelope reads the body of a submission. Names are matched exactly; null
// is not the same as absent, so it is a wrong type for every member. What is
// inside args is judged by the canonical form.
func parseEnvelope(body []byte) (envelope, error) {
	var env envelope
	seen, err := readMembers(body, envelopeMembers, func(i int, v jsontext.Value) error {
		switch i {
		case 0:
			s, err := stringValue("tool", v)
			env.tool = s
			return err
		case 1:
			if v.Kind() != '{' {
				return badRequest("args must be an object")
			}
			env.args = v
			return nil
		case 2:
			s, err := stringValue("client_id", v)
			if err == nil {
				err = checkClientID(s)
			}
			env.clientID = &s
			return err
		default:
			n, ok := idem.Integer(v)
			if !ok {
				return badRequest("seq must be an integer of 64 bits")
			}
			env.seq = &n
			return nil
		}
	})
	switch {
	case err != nil:
		return envelope{}, err
	case seen&(1<<0) == 0:
		return envelope{}, badRequest("tool is missing")
	case seen&(1<<1) == 0:
		return envelope{}, badRequest("args is missing")
	}
	return env, nil
}

func checkClientID(s string) error {
	if len(s) > maxClientID {
		return badRequest("client_id is over %d bytes", maxClientID)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return badRequest("client_id has a control character")
		}
	}
	return nil
}

// objectReader is a decoder over bytes that are already in memory.
type objectReader struct {
	buf bytes.Buffer
	dec *jsontext.Decoder
}

// objectOptions are those of every objectReader. Duplicates among the members
// are noticed by readMembers, those further in by whoever takes the value; the
// decoder would keep a set for each object.
var objectOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

var objectReaders = sync.Pool{New: func() any {
	r := new(objectReader)
	r.dec = jsontext.NewDecoder(&r.buf, objectOptions...)
	return r
}}

// readMembers reads one JSON object, and nothing after it, whose members are
// all among names, each at most once. It returns a bit for each that was there.
// The values lie in the body.
func readMembers(body []byte, names []string, each func(i int, v jsontext.Value) error) (seen uint, err error) {
	r := objectReaders.Get().(*objectReader)
	defer func() {
		r.buf = bytes.Buffer{} // lets go of the body
		r.dec.Reset(&r.buf, objectOptions...)
		objectReaders.Put(r)
	}()
	r.buf = *bytes.NewBuffer(body)
	r.dec.Reset(&r.buf, objectOptions...)

	tok, err := r.dec.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return 0, badRequest("the body is empty")
	case err != nil:
		return 0, notJSON(err)
	case tok.Kind() != '{':
		return 0, badRequest("the body must be an object")
	}
	for r.dec.PeekKind() != '}' {
		name, err := r.dec.ReadValue()
		if err != nil {
			return 0, notJSON(err)
		}
		i := indexOf(names, name)
		if i < 0 {
			return 0, badRequest("unknown member; known are %s", strings.Join(names, ", "))
		}
		if seen&(1<<i) != 0 {
			return 0, badRequest("%s is there twice", names[i])
		}
		seen |= 1 << i
		v, err := r.dec.ReadValue()
		if err != nil {
			return 0, notJSON(err)
		}
		if err := each(i, v); err != nil {
			return 0, err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return 0, notJSON(err)
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return 0, badRequest("there is something after the object")
	}
	return seen, nil
}

// indexOf finds a name by its JSON text, which may be spelled with escapes.
func indexOf(names []string, quoted jsontext.Value) int {
	plain := []byte(quoted[1 : len(quoted)-1])
	if bytes.IndexByte(plain, '\\') >= 0 {
		var err error
		if plain, err = jsontext.AppendUnquote(nil, quoted); err != nil {
			return -1
		}
	}
	for i, name := range names {
		if string(plain) == name {
			return i
		}
	}
	return -1
}

func stringValue(name string, v jsontext.Value) (string, error) {
	if v.Kind() != '"' {
		return "", badRequest("%s must be a string", name)
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil // the decoder has seen to it that it is valid
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil || !utf8.Valid(b) {
		return "", badRequest("%s is not valid text", name)
	}
	return string(b), nil
}
