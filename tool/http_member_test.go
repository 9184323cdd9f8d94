package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/idemd/idemd/idem"
)

func TestMember(t *testing.T) {
	for name, c := range map[string]struct {
		doc, pointer string
		want         string
		err          error
	}{
		"after other members":           {doc: `{"a":1}`, pointer: "/k", want: `{"a":1,"k":"v"}`},
		"into an empty object":          {doc: `{}`, pointer: "/k", want: `{"k":"v"}`},
		"white space and numbers stay":  {doc: " { \"a\" : 1.10e2 ,\n\t\"b\":9007199254740993 } \n", pointer: "/k", want: " { \"a\" : 1.10e2 ,\n\t\"b\":9007199254740993 ,\"k\":\"v\"} \n"},
		"white space in nothing":        {doc: `{ }`, pointer: "/k", want: `{ "k":"v"}`},
		"deeper":                        {doc: `{"a":{"b":{"c":1},"d":2},"e":3}`, pointer: "/a/b/k", want: `{"a":{"b":{"c":1,"k":"v"},"d":2},"e":3}`},
		"deeper, empty":                 {doc: `{"a":{},"e":3}`, pointer: "/a/k", want: `{"a":{"k":"v"},"e":3}`},
		"the same name elsewhere":       {doc: `{"k":1,"a":{"b":{"k":2}}}`, pointer: "/a/k", want: `{"k":1,"a":{"b":{"k":2},"k":"v"}}`},
		"a brace in a text":             {doc: `{"a":"}\"}"}`, pointer: "/k", want: `{"a":"}\"}","k":"v"}`},
		"escapes of a pointer":          {doc: `{"a/b":{}}`, pointer: "/a~1b/~0~1", want: `{"a/b":{"~/":"v"}}`},
		"~01 is ~1":                     {doc: `{}`, pointer: "/~01", want: `{"~1":"v"}`},
		"the empty name":                {doc: `{}`, pointer: "/", want: `{"":"v"}`},
		"a name that has to be escaped": {doc: `{}`, pointer: "/\"\n", want: `{"\"\n":"v"}`},
		"a parent spelt with escapes":   {doc: `{"\u0061":{}}`, pointer: "/a/k", want: `{"\u0061":{"k":"v"}}`},
		"letters have a case":           {doc: `{"K":1}`, pointer: "/k", want: `{"K":1,"k":"v"}`},

		"there already":                      {doc: `{"k":null}`, pointer: "/k", err: errMemberThere},
		"there already, spelt with escapes":  {doc: `{"\u006b":1}`, pointer: "/k", err: errMemberThere},
		"there already, last":                {doc: `{"a":{"b":1,"k":1}}`, pointer: "/a/k", err: errMemberThere},
		"a parent that is missing":           {doc: `{"b":{}}`, pointer: "/a/k", err: errNoParent},
		"a parent of another place":          {doc: `{"b":{"a":{}}}`, pointer: "/a/k", err: errNoParent},
		"a parent that is there twice":       {doc: `{"a":{},"a":{}}`, pointer: "/a/k", err: errMemberThere},
		"a parent that is a list":            {doc: `{"a":[{}]}`, pointer: "/a/0/k", err: errNotObject},
		"a parent that is null":              {doc: `{"a":null}`, pointer: "/a/k", err: errNotObject},
		"a parent that is a text":            {doc: `{"a":"{}"}`, pointer: "/a/k", err: errNotObject},
		"no object":                          {doc: `[]`, pointer: "/k", err: errNotObject},
		"nothing":                            {doc: ``, pointer: "/k", err: errNotJSON},
		"half a document":                    {doc: `{"a":1`, pointer: "/k", err: errNotJSON},
		"half a member":                      {doc: `{"a":}`, pointer: "/k", err: errNotJSON},
		"two documents":                      {doc: `{} {}`, pointer: "/k", err: errNotJSON},
		"broken behind the place":            {doc: `{"a":{},"b":}`, pointer: "/a/k", err: errNotJSON},
		"broken behind the document's end":   {doc: `{"a":{}}}`, pointer: "/a/k", err: errNotJSON},
		"no UTF-8":                           {doc: "{\"\xff\":1}", pointer: "/k", err: errNotJSON},
		"a member without a name":            {doc: `{1:2}`, pointer: "/k", err: errNotJSON},
		"a comma too many":                   {doc: `{"a":1,}`, pointer: "/k", err: errNotJSON},
		"there already, and no parent of it": {doc: `{"a":{"k":1}}`, pointer: "/a/k/x", err: errNotObject},
	} {
		t.Run(name, func(t *testing.T) {
			doc := []byte(c.doc)
			got, err := parseMember(c.pointer).insert(doc, "v")
			if !errors.Is(err, c.err) || string(got) != c.want {
				t.Errorf("got %s, %v; want %s, %v", got, err, c.want, c.err)
			}
			if string(doc) != c.doc {
				t.Error("the document was modified")
			}
		})
	}
}

// What comes out is the document and the member, and nothing else.
func FuzzInsert(f *testing.F) {
	f.Add([]byte(`{"a":1.0,"b":{"c":[1, 2]}}`), "/k")
	f.Add([]byte(` { } `), "/k")
	f.Add([]byte(`{"a":{"b":{}}}`), "/a/b/k")
	f.Add([]byte(`{"\u0061":{"k":1}}`), "/a/k")
	f.Add([]byte(`{"a":{},"a":{}}`), "/a/~0~1")
	f.Fuzz(func(t *testing.T, doc []byte, pointer string) {
		const value = "eff_0"
		m, was := parseMember(pointer), bytes.Clone(doc)
		got, err := m.insert(doc, value)
		if !bytes.Equal(doc, was) {
			t.Fatal("the document was modified")
		}
		if _, canonErr := idem.Canonical(doc); canonErr != nil {
			if err == nil && !json.Valid(got) {
				t.Fatalf("%q became %q", doc, got)
			}
			return
		}
		before, there := members(t, doc, m[:len(m)-1])
		_, exists := before[m[len(m)-1]]
		if err != nil {
			if there && !exists && !errors.Is(err, errNotJSON) { // a name that is no UTF-8
				t.Fatalf("%q, %q: %v", doc, pointer, err)
			}
			return
		}
		if !there || exists {
			t.Fatalf("%q, %q: has no place for it", doc, pointer)
		}
		if _, err := idem.Canonical(got); err != nil {
			t.Fatalf("%q became %q: %v", doc, got, err)
		}
		after, _ := members(t, got, m[:len(m)-1])
		if string(after[m[len(m)-1]]) != `"`+value+`"` || len(after) != len(before)+1 {
			t.Fatalf("%q became %q", doc, got)
		}
		for name, raw := range before {
			if !bytes.Equal(after[name], raw) {
				t.Fatalf("%q became %q: %s is not what it was", doc, got, name)
			}
		}
		// Cut out what came in, and it is the document again.
		for i := range got {
			n := len(got) - len(doc)
			if i <= len(doc) && bytes.Equal(got[:i], doc[:i]) && bytes.Equal(got[i+n:], doc[i:]) {
				return
			}
		}
		t.Fatalf("%q became %q: bytes of it were changed", doc, got)
	})
}

// members returns those of the object that the names lead to, and whether there is
// one.
func members(t *testing.T, doc []byte, names []string) (map[string]json.RawMessage, bool) {
	t.Helper()
	var m map[string]json.RawMessage
	if json.Unmarshal(doc, &m) != nil || m == nil {
		return nil, false
	}
	for _, n := range names {
		doc = m[n]
		m = nil
		if json.Unmarshal(doc, &m) != nil || m == nil {
			return nil, false
		}
	}
	return m, true
}
