package idem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// The oracle of this file reads JSON by the letter of the rules, slowly, and
// shares nothing with Canonical: it makes a tree in which objects are maps, and numbers
// are rationals. Two documents are the same exactly when their trees are.

// numeral is a number of the tree: its value, and how it was spelled.
type numeral struct {
	value    *big.Rat
	minus    bool
	whole    string
	fraction string
	exp      int
}

var numberPattern = regexp.MustCompile(`^(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?`)

// readSlowly returns the tree of a document and whether it is acceptable.
func readSlowly(doc []byte) (tree any, ok bool) {
	r := &slowReader{rest: string(doc)}
	defer func() {
		switch p := recover(); p {
		case nil:
		case errRefused:
			tree, ok = nil, false
		default:
			panic(p)
		}
	}()
	tree = r.value(0)
	r.blanks()
	r.need(r.rest == "")
	return tree, true
}

var errRefused = errors.New("refused")

type slowReader struct{ rest string }

func (r *slowReader) need(ok bool) {
	if !ok {
		panic(errRefused)
	}
}

func (r *slowReader) blanks() { r.rest = strings.TrimLeft(r.rest, " \t\r\n") }

func (r *slowReader) try(text string) bool {
	rest, found := strings.CutPrefix(r.rest, text)
	r.rest = rest
	return found
}

func (r *slowReader) value(depth int) any {
	r.blanks()
	switch {
	case r.try("null"):
		return nil
	case r.try("true"):
		return true
	case r.try("false"):
		return false
	case r.try(`"`):
		return r.text()
	case r.try("["):
		return r.array(depth + 1)
	case r.try("{"):
		return r.object(depth + 1)
	}
	return r.number()
}

func (r *slowReader) array(depth int) any {
	r.need(depth <= 64)
	items := []any{}
	if r.blanks(); r.try("]") {
		return items
	}
	for {
		items = append(items, r.value(depth))
		if r.blanks(); r.try("]") {
			return items
		}
		r.need(r.try(","))
	}
}

func (r *slowReader) object(depth int) any {
	r.need(depth <= 64)
	members := map[string]any{}
	if r.blanks(); r.try("}") {
		return members
	}
	for {
		r.blanks()
		r.need(r.try(`"`))
		name := r.text()
		_, twice := members[name]
		r.need(!twice)
		r.blanks()
		r.need(r.try(":"))
		members[name] = r.value(depth)
		if r.blanks(); r.try("}") {
			return members
		}
		r.need(r.try(","))
	}
}

func (r *slowReader) text() string {
	var s strings.Builder
	for !r.try(`"`) {
		switch {
		case r.try(`\u`):
			c := r.hex()
			if utf16.IsSurrogate(c) {
				r.need(r.try(`\u`))
				c = utf16.DecodeRune(c, r.hex())
				r.need(c != utf8.RuneError)
			}
			s.WriteRune(c)
		case r.try(`\`):
			r.need(r.rest != "")
			i := strings.IndexByte(`"\/bfnrt`, r.rest[0])
			r.need(i >= 0)
			s.WriteByte("\"\\/\b\f\n\r\t"[i])
			r.rest = r.rest[1:]
		default:
			c, n := utf8.DecodeRuneInString(r.rest)
			r.need(c >= ' ' && (c != utf8.RuneError || n > 1))
			s.WriteRune(c)
			r.rest = r.rest[n:]
		}
	}
	return s.String()
}

func (r *slowReader) hex() rune {
	r.need(len(r.rest) >= 4)
	n, err := strconv.ParseUint(r.rest[:4], 16, 16)
	r.need(err == nil)
	r.rest = r.rest[4:]
	return rune(n)
}

func (r *slowReader) number() numeral {
	m := numberPattern.FindStringSubmatch(r.rest)
	r.need(m != nil)
	r.rest = r.rest[len(m[0]):]
	n := numeral{minus: m[1] == "-", whole: m[2], fraction: m[3], value: new(big.Rat)}

	digits := n.whole + n.fraction
	r.need(len(digits) <= 1000)
	exp, ok := new(big.Int).SetString("0"+strings.TrimLeft(m[4], "+-"), 10)
	r.need(ok && exp.Cmp(big.NewInt(1000)) <= 0)
	n.exp = int(exp.Int64())
	if strings.HasPrefix(m[4], "-") {
		n.exp = -n.exp
	}
	_, ok = n.value.SetString(m[0])
	r.need(ok)

	// The limits of the canonical text. Lead is the power of ten of the first
	// digit that is not zero.
	if significant := strings.Trim(digits, "0"); significant != "" {
		lead := len(n.whole) - 1 - strings.IndexAny(digits, "123456789") + n.exp
		r.need(-1000 <= lead && lead <= 1000)
		if -6 <= lead && lead < 0 {
			r.need(len(significant)-lead <= 1000)
		}
	}
	return n
}

func sameTree(a, b any) bool {
	switch a := a.(type) {
	case numeral:
		b, ok := b.(numeral)
		return ok && a.value.Cmp(b.value) == 0
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameTree)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameTree)
	}
	switch b.(type) {
	case numeral, []any, map[string]any:
		return false
	}
	return a == b
}

// respell writes a tree in one of the many ways it can be written.
func respell(rnd *rand.Rand, tree any) string {
	switch v := tree.(type) {
	case numeral:
		return gap(rnd) + respellNumber(rnd, v) + gap(rnd)
	case string:
		return gap(rnd) + respellText(rnd, v) + gap(rnd)
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = respell(rnd, item)
		}
		return "[" + gap(rnd) + strings.Join(items, ",") + "]"
	case map[string]any:
		var members []string
		for _, name := range slices.Sorted(maps.Keys(v)) { // so that a seed decides all
			members = append(members, gap(rnd)+respellText(rnd, name)+gap(rnd)+":"+respell(rnd, v[name]))
		}
		rnd.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return "{" + strings.Join(members, ",") + gap(rnd) + "}"
	case nil:
		return "null"
	}
	return fmt.Sprint(tree)
}

func gap(rnd *rand.Rand) string {
	return []string{"", "", "", " ", "\n\t", "\r\n"}[rnd.IntN(6)]
}

func respellText(rnd *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch must := c < ' ' || c == '"' || c == '\\'; {
		case !must && rnd.IntN(3) > 0:
			b.WriteRune(c)
		case c == '/':
			b.WriteString(`\/`)
		case c > 0xFFFF:
			hi, lo := utf16.EncodeRune(c)
			fmt.Fprintf(&b, `\u%04x\u%04X`, hi, lo)
		default:
			fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[rnd.IntN(2)], c)
		}
	}
	return b.String() + `"`
}

func respellNumber(rnd *rand.Rand, n numeral) string {
	// As an integer with an exponent, then with the point somewhere in it.
	digits, exp := strings.TrimLeft(n.whole+n.fraction, "0"), n.exp-len(n.fraction)
	zeros := rnd.IntN(4)
	digits, exp = digits+strings.Repeat("0", zeros), exp-zeros
	if cut := rnd.IntN(len(digits) + 1); cut > 0 && cut < len(digits) {
		exp += len(digits) - cut
		digits = digits[:cut] + "." + digits[cut:]
	}
	minus := n.minus
	if n.value.Sign() == 0 {
		digits, exp, minus = "0", rnd.IntN(1000), rnd.IntN(2) == 0
	}
	if len(digits) > 1000 || exp < -1000 || exp > 1000 { // as it was, then
		digits, exp = n.whole, n.exp
		if n.fraction != "" {
			digits += "." + n.fraction
		}
	}
	s := ""
	if minus {
		s = "-"
	}
	s += digits
	if exp != 0 || rnd.IntN(2) == 0 {
		s += []string{"e", "E"}[rnd.IntN(2)]
		if exp >= 0 && rnd.IntN(2) == 0 {
			s += "+"
		}
		s += strconv.Itoa(exp)
	}
	return s
}

// fuzzDocs are where the fuzzers start: one document for each branch.
var fuzzDocs = []string{
	`{}`, `[]`, `null`, ` true `, `"a"`, `-0`, `1.50e2`, `1E-7`, `123456789012345678901234567890`, `0.00001234`,
	`{"b":[1,{"d":null,"c":"x"}],"a":{"":false}}`, `{"\ud83d\ude00":1,"\ufb33":2,"\u20ac":3,"\r":4}`,
	`"\u0000\u001f\/\"\\\b\f\n\r\t"`, `{"a":1,"\u0061":2}`, `{"b":1,"a":2,"b":3}`, `"\ud800"`, "\"\xff\"", `[1] 2`,
	`1e1000`, `1e1001`, `10e1000`, `0e99999999999`, `[[[[[[]]]]]]`, `{"a":`, `[1,]`, `[01]`, `{"a" 1}`, "",
}

// FuzzCanonical: canonical text means what the document meant, is its own
// canonical text, and is refused exactly when the oracle refuses.
func FuzzCanonical(f *testing.F) {
	for _, doc := range fuzzDocs {
		f.Add([]byte(doc))
	}
	f.Add([]byte(strings.Repeat("[", 64) + strings.Repeat("]", 64)))
	f.Add([]byte(strings.Repeat("[", 65) + strings.Repeat("]", 65)))
	f.Fuzz(func(t *testing.T, doc []byte) {
		before := bytes.Clone(doc)
		text, err := Canonical(doc)
		if !bytes.Equal(doc, before) {
			t.Fatalf("the document was changed from %q to %q", before, doc)
		}
		tree, ok := readSlowly(doc)
		if ok != (err == nil) {
			t.Fatalf("Canonical(%q): error %v, oracle accepts: %v", doc, err, ok)
		}
		if _, err2 := FingerprintOf("t", doc); (err == nil) != (err2 == nil) {
			t.Fatalf("%q: Canonical says %v, FingerprintOf %v", doc, err, err2)
		}
		if err != nil {
			if !errors.Is(err, ErrBadRequest) || len(err.Error()) > 120 {
				t.Fatalf("Canonical(%q): %v", doc, err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("Canonical(%q) = %q, not JSON", doc, text)
		}
		again, err := Canonical(text)
		if err != nil || !bytes.Equal(again, text) {
			t.Fatalf("Canonical(%q) = %q, and of that %q, %v", doc, text, again, err)
		}
		if tree2, ok := readSlowly(text); !ok || !sameTree(tree, tree2) {
			t.Fatalf("Canonical(%q) = %q means something else", doc, text)
		}
	})
}

// FuzzCanonicalPair: two documents have one canonical text exactly when they
// mean the same.
func FuzzCanonicalPair(f *testing.F) {
	for i, doc := range fuzzDocs {
		f.Add([]byte(doc), []byte(fuzzDocs[(i+1)%len(fuzzDocs)]), uint64(i))
	}
	f.Add([]byte(`{"a":1,"b":2}`), []byte(`{"b":2.0,"a":10e-1}`), uint64(1))
	f.Add([]byte(`0.1`), []byte(`0.10000000000000001`), uint64(2))
	f.Add([]byte(`[1,2]`), []byte(`[2,1]`), uint64(3))
	f.Add([]byte(`"é"`), []byte(`"e\u0301"`), uint64(4))
	f.Fuzz(func(t *testing.T, a, b []byte, seed uint64) {
		treeA, ok := readSlowly(a)
		if !ok {
			return
		}
		textA, err := Canonical(a)
		if err != nil {
			t.Fatalf("Canonical(%q): %v", a, err)
		}
		other := respell(rand.New(rand.NewPCG(seed, 0)), treeA)
		if text, err := Canonical([]byte(other)); err != nil || !bytes.Equal(text, textA) {
			t.Fatalf("Canonical(%q) = %q, but Canonical(%q) = %q, %v", a, textA, other, text, err)
		}
		treeB, ok := readSlowly(b)
		if !ok {
			return
		}
		textB, err := Canonical(b)
		if err != nil {
			t.Fatalf("Canonical(%q): %v", b, err)
		}
		if same := sameTree(treeA, treeB); same != bytes.Equal(textA, textB) {
			t.Fatalf("%q and %q: same meaning: %v, but the texts are %q and %q", a, b, same, textA, textB)
		}
	})
}

// FuzzParseKey: whatever comes, a key that is accepted keeps the rules, and is
// read back from each way of writing it.
func FuzzParseKey(f *testing.F) {
	for _, v := range []string{
		"", `""`, "demo-1", `"demo-1"`, `"a\"b\\"`, `a"b`, `"`, `"\`, `"a`, `"a"b`, ` a`, "a ", "a\tb", "ü", "\x00", "\x7f", "\xff",
		strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat(`\"`, 255) + `"`, `"` + strings.Repeat(`\"`, 256) + `"`,
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := ParseKey("ns", value)
		if err != nil {
			want := ErrBadRequest
			if value == "" || value == `""` {
				want = ErrMissingKey
			}
			if !errors.Is(err, want) || key != (Key{}) {
				t.Fatalf("ParseKey(%q) = %v, %v", value, key, err)
			}
			if s := err.Error(); len(s) > 120 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("ParseKey(%q): message %q", value, s)
			}
			return
		}
		if key.Namespace != "ns" || !keyPattern.MatchString(key.Name) {
			t.Fatalf("ParseKey(%q) = %q", value, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key.Name) + `"`
		for _, v := range []string{quoted, key.HeaderValue()} {
			if again, err := ParseKey("ns", v); err != nil || again != key {
				t.Fatalf("ParseKey(%q) = %q, but ParseKey(%q) = %q, %v", value, key, v, again, err)
			}
		}
		if value[0] != '"' && (key.Name != value || key.HeaderValue() != value) {
			t.Fatalf("ParseKey(%q) = %q", value, key)
		}
	})
}

// keyPattern is the rule for names: printable ASCII, at most 255 bytes, no
// blank at either end.
var keyPattern = regexp.MustCompile(`^[!-~]([ -~]{0,253}[!-~])?$`)
