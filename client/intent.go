package client

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/idemd/idemd/idem"
)

// IntentOf is the part of a tool's arguments that names the intent, for
// [idem.KeyFor]: an object that has, for each of the JSON pointers (RFC 6901), a
// member of that name with what the pointer points to, in its canonical form. With the pointers /order_id and /to/0 it is
//
//	{"/order_id": …, "/to/0": …}
//
// Differences that mean nothing to the tool are taken out, since two spellings of one
// intent must not make two keys: pass the rules that the server tells with the
// pointers, nil where there are none. What they ignore is missing.
//
// A value that is null is there, and counts. One that is missing is an error: a key
// without it could be that of another intent. The errors are *idem.Error with the
// code bad_request; nothing was sent.
func IntentOf(args json.RawMessage, pointers []string, rules *idem.Rules) (json.RawMessage, error) {
	if len(pointers) == 0 {
		return nil, idem.Errorf(idem.CodeBadRequest, "no pointer says what names the intent")
	}
	args, err := idem.CanonicalUnder(rules, args) // which refuses what the server would
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for i, p := range pointers {
		v, err := pointed(args, p)
		if err != nil {
			return nil, err
		}
		name, err := json.Marshal(p)
		if err != nil {
			panic(err) // a string cannot fail
		}
		b.WriteByte("{,"[min(i, 1)])
		b.Write(name)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// pointed is the value in a document that a JSON pointer points to.
func pointed(doc json.RawMessage, pointer string) (json.RawMessage, error) {
	if pointer == "" {
		return doc, nil
	}
	steps := strings.Split(pointer, "/")
	if steps[0] != "" {
		return nil, idem.Errorf(idem.CodeBadRequest, "%q is no JSON pointer: it must begin with /", pointer)
	}
	missing := idem.Errorf(idem.CodeBadRequest, "the arguments have no %s, which names the intent", pointer)
	for _, step := range steps[1:] {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		var (
			members map[string]json.RawMessage
			items   []json.RawMessage
		)
		switch doc = bytes.TrimLeft(doc, " \t\r\n"); {
		case doc[0] == '{' && json.Unmarshal(doc, &members) == nil:
			v, there := members[step]
			if !there {
				return nil, missing
			}
			doc = v
		case doc[0] == '[' && json.Unmarshal(doc, &items) == nil:
			n, err := strconv.ParseUint(step, 10, 31)
			if err != nil || n >= uint64(len(items)) || strconv.FormatUint(n, 10) != step {
				return nil, missing
			}
			doc = items[n]
		default:
			return nil, missing
		}
	}
	return doc, nil
}
