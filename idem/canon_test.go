package idem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// TestCanonical shows the form; testdata/vectors.json has the borders. (R3)
func TestCanonical(t *testing.T) {
	for _, tt := range []struct{ name, doc, want string }{
		{"white space", " {\t\"a\" : [ 1 ,\r\n2 ] } ", `{"a":[1,2]}`},
		{"members sorted at every depth", `{"b":{"d":1,"c":2},"a":[{"f":1,"e":2}]}`, `{"a":[{"e":2,"f":1}],"b":{"c":2,"d":1}}`},
		{"members sorted, texts of different lengths", `{"c":1,"b":"long enough to reach over its neighbours","a":[]}`, `{"a":[],"b":"long enough to reach over its neighbours","c":1}`},
		{"members sorted by UTF-16", "{\"\uffff\":1,\"\U0001f600\":2,\"\ud7ff\":3}", "{\"\ud7ff\":3,\"\U0001f600\":2,\"\uffff\":1}"},
		{"escapes", `"\u0041\/\u000a\u001F\ud83d\ude00"`, "\"A/\\n\\u001f\U0001f600\""},
		{"exact integer", `9007199254740993`, `9007199254740993`},
		{"exact fraction", `0.10000000000000000555`, `0.10000000000000000555`},
		{"outer zeros", `1250.00`, `1250`},
		{"minus zero", `-0.0e5`, `0`},
		{"21 digits", `123456789012345678901`, `123456789012345678901`},
		{"22 digits", `1234567890123456789012`, `1.234567890123456789012e+21`},
		{"top-level scalar", ` "x" `, `"x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Canonical([]byte(tt.doc))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

// TestCanonicalSameAndDifferent: what is one intent and what is two. (R3)
func TestCanonicalSameAndDifferent(t *testing.T) {
	canonical := func(t *testing.T, doc string) string {
		t.Helper()
		text, err := Canonical([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		return string(text)
	}
	for _, same := range [][]string{
		{`1`, `1.0`, `1e0`, `10e-1`, `0.01E+2`},
		{`-0`, `0`, `-0.000`, `0e7`},
		{`1.10`, `1.1`, `11e-1`},
		{`1e21`, `1000000000000000000000`, `1.0e+21`},
		{`"\u00e9"`, `"é"`},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, `{"\u0062":2.0,"a":1}`},
	} {
		t.Run("same/"+same[0], func(t *testing.T) {
			for _, doc := range same[1:] {
				if a, b := canonical(t, same[0]), canonical(t, doc); a != b {
					t.Errorf("%s is %s, but %s is %s", same[0], a, doc, b)
				}
			}
		})
	}
	for _, different := range [][]string{
		{`1`, `"1"`, `true`, `null`, `[1]`, `-1`},
		{`{"a":null}`, `{}`, `{"a":""}`, `{"a":{}}`, `{"a":[]}`},
		{`9007199254740993`, `9007199254740992`, `9007199254740992.5`},
		{`"é"`, `"e\u0301"`, `"e"`, `"É"`},
		{`[1,2]`, `[2,1]`, `[12]`, `[[1],2]`},
		{`{"a":"b","c":"d"}`, `{"a":"d","c":"b"}`, `{"b":"a","d":"c"}`},
		{`"x"`, `"x "`, `" x"`, `"X"`},
	} {
		t.Run("different/"+different[0], func(t *testing.T) {
			for i, a := range different {
				for _, b := range different[:i] {
					if canonical(t, a) == canonical(t, b) {
						t.Errorf("%s and %s are both %s", a, b, canonical(t, a))
					}
				}
			}
		})
	}
}

// TestCanonicalRefuses checks the kind and the place; testdata/vectors.json has
// many more documents.
func TestCanonicalRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, doc, word string
		at              int
	}{
		{"empty", "", wordEmpty, 0},
		{"blank", " \n", wordEmpty, 0},
		{"cut", `{"a":[1`, wordCut, 7},
		{"syntax", `{"a":1,}`, wordSyntax, 6},
		{"syntax, value missing", `{"a" : }`, wordSyntax, 7},
		{"syntax, bad literal", `[nil]`, wordSyntax, 2},
		{"trailing", "{}\n\n{}", wordTrailing, 4},
		{"trailing, comma", "1 ,", wordTrailing, 2},
		{"trailing, closing bracket", "[1]]", wordTrailing, 3},
		{"duplicate", `{"a":1, "a":2}`, wordDuplicate, 8},
		{"duplicate, out of order", `{"b":1,"a":2,"b":3}`, wordDuplicate, 13},
		{"duplicate, by escapes", `[{"a":{"x":1,"\u0078":2}}]`, wordDuplicate, 13},
		{"invalid UTF-8", "[\"ab\xc3\"]", wordUTF8, 4},
		{"invalid UTF-8 at the end", "[\"ab\xe2\x82", wordUTF8, 4},
		{"surrogate", `["ab\uD83D "]`, wordSurrogate, 4},
		{"deep", strings.Repeat(`{"a":`, 64) + ` [1]` + strings.Repeat("}", 64), wordDeep, 5*64 + 1},
		{"digits", `[1, ` + strings.Repeat("1", 1001) + `]`, wordDigits, 4},
		{"exponent", `{"a":-1e1001}`, wordExponent, 5},
		{"exponent of the value", `{"a":100e999}`, wordExponent, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := Canonical([]byte(tt.doc))
			want := fmt.Sprintf("JSON: %s, at byte %d", tt.word, tt.at)
			var e *Error
			if text != nil || !errors.As(err, &e) || e.Code != CodeBadRequest || e.Message != want {
				t.Errorf("got %q, %v; want the message %q", text, err, want)
			}
		})
	}
}

// TestCanonicalLimits: what is just within a limit is accepted, and so is its
// canonical text.
func TestCanonicalLimits(t *testing.T) {
	for _, tt := range []struct{ name, doc string }{
		{"depth 64", strings.Repeat("[", 64) + strings.Repeat("]", 64)},
		{"depth 64 of objects", strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64)},
		{"1000 digits", strings.Repeat("7", 1000)},
		{"1000 digits with an exponent", strings.Repeat("7", 1000) + "e1"},
		{"1000 digits behind the point", "0." + strings.Repeat("7", 999)},
		{"1000 digits that need no more than a zero", strings.Repeat("7", 999) + "e-999"},
		{"exponent 1000", "1e1000"},
		{"exponent -1000", "1e-1000"},
		{"zeros in front of the exponent", "1e-" + strings.Repeat("0", 5000) + "1000"},
		{"zero with an exponent", "0e1000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := Canonical([]byte(tt.doc))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := Canonical(text); err != nil || !bytes.Equal(again, text) {
				t.Errorf("canonical text %.80q became %.80q, %v", text, again, err)
			}
		})
	}
}

// TestCanonicalRefusesFlat: what a document claims costs nothing. Measured in
// bytes allocated, since time says nothing on a busy machine.
func TestCanonicalRefusesFlat(t *testing.T) {
	const mega = 1 << 20
	for _, tt := range []struct{ name, doc, word string }{
		{"large exponent", `1e999999999`, wordExponent},
		{"large exponent of zero", `0E99999999999`, wordExponent},
		{"exponent of 1 MB", "1e" + strings.Repeat("9", mega), wordExponent},
		{"1 MB of digits", strings.Repeat("9", mega), wordDigits},
		{"1 MB of zeros behind the point", "[0." + strings.Repeat("0", mega) + "]", wordDigits},
		{"depth 100000", strings.Repeat("[", 100_000), wordDeep},
		{"depth 100000, closed", strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), wordDeep},
		{"depth 100000 of objects", strings.Repeat(`{"a":`, 100_000), wordDeep},
		{"depth 100000 as a name", "{" + strings.Repeat("[", 100_000), wordSyntax},
		{"same name 100000 times", "{" + strings.Repeat(`"":1,`, 100_000) + `"":1}`, wordDuplicate},
		{"string of 1 MB without an end", `"` + strings.Repeat("x", mega), wordCut},
		{"string of 1 MB with a bad byte", `"` + strings.Repeat("x", mega) + "\xff\"", wordUTF8},
		{"1 MB of white space", strings.Repeat(" ", mega), wordEmpty},
		{"1 MB behind the document", "1 " + strings.Repeat("x", mega), wordTrailing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := []byte(tt.doc)
			refused := func() {
				if _, err := FingerprintOf("t", doc); err == nil || !strings.Contains(err.Error(), tt.word) {
					t.Fatalf("got %v, want: %s", err, tt.word)
				}
			}
			refused()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			refused()
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 32<<10 {
				t.Errorf("refusing %d bytes allocated %d", len(doc), n)
			}
		})
	}
}

// TestCanonicalKeepsNothing: results share no memory with the document, nor
// with each other through the buffers that are reused.
func TestCanonicalKeepsNothing(t *testing.T) {
	const source, want = `{"b":"text","a":1.50}`, `{"a":1.5,"b":"text"}`
	doc := []byte(source)
	first, err := Canonical(doc)
	if err != nil {
		t.Fatal(err)
	}
	if string(doc) != source {
		t.Errorf("the document became %s", doc)
	}
	for i := range doc {
		doc[i] = 'x'
	}
	if _, err := Canonical([]byte(`{"z":"something else of some length","y":2.50}`)); err != nil {
		t.Fatal(err)
	}
	if string(first) != want {
		t.Errorf("the result became %s", first)
	}
}

// TestCanonicalAfterRefusal: a refusal in the middle of a document leaves
// nothing behind that the next one would see.
func TestCanonicalAfterRefusal(t *testing.T) {
	for _, bad := range fuzzDocs {
		if _, err := Canonical([]byte(`{"c":1,"a":{"y":1,"x":[` + bad + ` #`)); err == nil {
			t.Fatalf("%q was accepted", bad)
		}
		got, err := Canonical([]byte(`{"b":{"d":"\u0041","c":1.0},"a":2}`))
		if want := `{"a":2,"b":{"c":1,"d":"A"}}`; err != nil || string(got) != want {
			t.Fatalf("after %q: got %s, %v; want %s", bad, got, err, want)
		}
	}
}

// TestCanonicalLarge: a document too large for the buffers that are kept.
func TestCanonicalLarge(t *testing.T) {
	var doc, want strings.Builder
	const n = 20_000
	doc.WriteByte('{')
	want.WriteByte('{')
	for i := range n {
		if i > 0 {
			doc.WriteByte(',')
			want.WriteByte(',')
		}
		fmt.Fprintf(&doc, `"%05d":[%d.0]`, n-1-i, n-1-i)
		fmt.Fprintf(&want, `"%05d":[%d]`, i, i)
	}
	doc.WriteByte('}')
	want.WriteByte('}')
	for range 2 {
		if got, err := Canonical([]byte(doc.String())); err != nil || string(got) != want.String() {
			t.Fatalf("got %.100s…, %v", got, err)
		}
	}
}

func TestCanonicalConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				doc := fmt.Sprintf(`{"b":"%d","a":[%d.0,{"d":1,"c":%d}]}`, g, i, i)
				want := fmt.Sprintf(`{"a":[%d,{"c":%d,"d":1}],"b":"%d"}`, i, i, g)
				if i%3 == 0 {
					doc, want = doc[:len(doc)-1], ""
				}
				if got, _ := Canonical([]byte(doc)); string(got) != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	wg.Wait()
}

// genText and genDoc make documents with all that JSON has, numbers being
// shortest spellings of float64 values.
var genText = rapid.Custom(func(t *rapid.T) string {
	s := rapid.StringOfN(rapid.OneOf(
		rapid.Rune(),
		rapid.RuneFrom([]rune("ab\"\\/\b\n\x00\x1f\x7f\ud7ff\ue000\uffff\u2028\U00010000\U0010ffff")),
	), 0, 6, -1).Draw(t, "text")
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
})

func genDoc(depth int) *rapid.Generator[string] {
	scalars := []*rapid.Generator[string]{
		rapid.SampledFrom([]string{"null", "true", "false", "0", "-0", "1e20", "1e21", "1e-6", "1e-7", "5e-324"}),
		rapid.Map(rapid.Int32(), func(n int32) string { return strconv.Itoa(int(n)) }),
		rapid.Map(rapid.Float64(), func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }),
		genText,
	}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	inner := genDoc(depth - 1)
	array := rapid.Map(rapid.SliceOfN(inner, 0, 4), func(items []string) string {
		return "[" + strings.Join(items, ", ") + "]"
	})
	object := rapid.Custom(func(t *rapid.T) string {
		names := rapid.SliceOfNDistinct(genText, 0, 5, rapid.ID).Draw(t, "names")
		members := make([]string, len(names))
		for i, name := range names {
			members[i] = name + " : " + inner.Draw(t, "value")
		}
		return "{" + strings.Join(members, ", ") + "}"
	})
	return rapid.OneOf(append(scalars, array, object, object)...)
}

// TestCanonicalIsRFC8785: where the numbers are those of RFC 8785, so is the
// text. The other implementation is jsontext's, which sorts and lays out on its own.
func TestCanonicalIsRFC8785(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := genDoc(4).Draw(t, "doc")
		got, err := Canonical([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		want := jsontext.Value(doc)
		if err := want.Canonicalize(); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		if string(got) != string(want) {
			t.Fatalf("%s\n got %s\nwant %s", doc, got, want)
		}
	})
}

// TestCanonicalRespelled: order, white space, escapes and the spelling of numbers
// make no difference. (R3)
func TestCanonicalRespelled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := genDoc(4).Draw(t, "doc")
		tree, ok := readSlowly([]byte(doc))
		if !ok {
			t.Fatalf("the oracle refuses %s", doc)
		}
		other := respell(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), tree)
		a, errA := Canonical([]byte(doc))
		b, errB := Canonical([]byte(other))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Fatalf("%s is %s, %v\n%s is %s, %v", doc, a, errA, other, b, errB)
		}
	})
}

// TestCompareUTF16 compares with real UTF-16.
func TestCompareUTF16(t *testing.T) {
	names := rapid.StringOfN(rapid.OneOf(
		rapid.Rune(),
		rapid.RuneFrom([]rune("a\x00\x7f\u0080\u07ff\u0800\ud7ff\ue000\uefff\uf000\uffff\U00010000\U0003ffff\U00040000\U0010ffff")),
	), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b := names.Draw(t, "a"), names.Draw(t, "b")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		got := compareUTF16([]byte(a), []byte(b))
		if min(max(got, -1), 1) != want {
			t.Fatalf("%q and %q: got %d, want %d", a, b, got, want)
		}
	})
}

func BenchmarkCanonicalRefusesDigits(b *testing.B) {
	b.ReportAllocs()
	doc := bytes.Repeat([]byte("9"), 1<<20)
	for b.Loop() {
		if _, err := Canonical(doc); err == nil {
			b.Fatal("accepted")
		}
	}
}
