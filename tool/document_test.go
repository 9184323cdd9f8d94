package tool

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/idemd/idemd/idem"
)

// documents are accepted or refused as the validator's own reader does, which
// knows less of UTF-8.
var documents = []string{
	`null`, `true`, `false`, `""`, `"a"`, `"\u0061\n\"\\"`, `0`, `-0`, `1e1000`, `100.0`, `12345678901234567890.5`,
	`{}`, `[]`, ` [ ] `, `[[],{}]`, `[1,"a",null,true,{"b":[false]}]`,
	`{"a":1,"b":{"c":[{"d":"e"}]},"\u0066":"\ud83d\ude00","ä":"ö"}`, "\t{\"a\" : 1}\r\n",
	``, ` `, `{`, `[`, `[1`, `[1,`, `[1,]`, `[,]`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{a:1}`, `{1:1}`, `{"a" 1}`, `[1 2]`,
	`1 2`, `{} {}`, `{}}`, `[]]`, `}`, `]`, `:`, `,`, `nul`, `truth`, `+1`, `01`, `1.`, `.5`, `1e`, `-`, `"`, `"a`, `"\q"`, "\"\n\"", `'a'`,
	strings.Repeat("[", 64) + strings.Repeat("]", 64),
}

func FuzzDocument(f *testing.F) {
	for _, doc := range documents {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		was := bytes.Clone(raw)
		got, err := document(raw)
		if !bytes.Equal(raw, was) {
			t.Fatal("it was changed")
		}
		if err != nil && got != nil {
			t.Fatalf("%q: %v beside %v", raw, got, err)
		}
		want, wantErr := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err == nil && (wantErr != nil || !reflect.DeepEqual(got, want)) {
			t.Fatalf("%q: got %#v, want %#v, %v", raw, got, want, wantErr)
		}
		// What idem lets through is never refused here.
		if _, canonErr := idem.Canonical(raw); canonErr == nil && err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		clear(raw)
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: it lies in what it was read from", was)
		}
	})
}
