package idem

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// canonicalUnder is what a fingerprint under rules is made of.
func canonicalUnder(r *Rules, doc string) (string, error) {
	c := getCanonizer()
	defer putCanonizer(c)
	c.at = r.compile()
	text, err := c.document(nil, []byte(doc))
	return string(text), err
}

// Rules are refused with every fault at once, and never in part.
func TestRulesValidate(t *testing.T) {
	many := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("/m%d", i))
		}
		return all
	}
	for _, tt := range []struct {
		name  string
		rules *Rules
		want  []string // what is said, in order; none where they are valid
	}{
		{"nil", nil, nil},
		{"none", &Rules{}, nil},
		{"as they are meant", &Rules{Ignore: []string{"/memo"}, Trim: []string{"/order_id"}, NFC: []string{"/order_id"}}, nil},
		{"odd names", &Rules{Ignore: []string{"/", "/-", "/~0~1", "/é", "/a b", "/01", "/+1", "/1a", "/0/a"}}, nil},
		{"names that only begin alike", &Rules{Ignore: []string{"/a", "/ab", "/b/a"}, Trim: []string{"/ab/a~1", "/b"}}, []string{`trim: the pointer "/ab/a~1" is of no use, since "/ab" is ignored`}},
		{"elements for trim and form C", &Rules{Trim: []string{"/a/0", "/0"}, NFC: []string{"/a/10"}}, nil},
		{"as many as may be", &Rules{Ignore: many(60), Trim: []string{"/a", "/b"}, NFC: []string{"/a", "/b"}}, nil},
		{"one too many", &Rules{Ignore: many(60), Trim: []string{"/a", "/b"}, NFC: []string{"/a", "/b", "/c"}}, []string{"65 pointers are more than 64"}},
		{"as long as may be", &Rules{Trim: []string{"/" + strings.Repeat("x", 1023)}}, nil},
		{"one byte too long", &Rules{Trim: []string{"/" + strings.Repeat("x", 1024)}}, []string{"is over 1024 bytes"}},
		{"all of the args", &Rules{Ignore: []string{""}}, []string{"leads to all of the args"}},
		{"no slash", &Rules{NFC: []string{"memo"}}, []string{"does not begin with a slash"}},
		{"a fragment", &Rules{Trim: []string{"#/a"}}, []string{"does not begin with a slash"}},
		{"not UTF-8", &Rules{Trim: []string{"/\xff"}}, []string{"is not UTF-8"}},
		{"a tilde at the end", &Rules{Trim: []string{"/a~"}}, []string{"followed neither by 0 nor by 1"}},
		{"a tilde in the middle", &Rules{Trim: []string{"/a~0~2b"}}, []string{"followed neither by 0 nor by 1"}},
		{"a tilde before a step", &Rules{Trim: []string{"/a~/b"}}, []string{"followed neither by 0 nor by 1"}},
		{"twice", &Rules{Ignore: []string{"/a", "/b", "/a"}}, []string{`ignore: the pointer "/a" is there twice`}},
		{"an element to be ignored", &Rules{Ignore: []string{"/a/0", "/10", "/a/0/b"}}, []string{
			`"/a/0" may lead to an element`, `"/10" may lead to an element`, `"/a/0/b" is of no use, since "/a/0"`,
		}},
		{"ignored in what is ignored", &Rules{Ignore: []string{"/a/b/c", "/a"}}, []string{`"/a/b/c" is of no use, since "/a" is ignored`}},
		{"trimmed and ignored", &Rules{Ignore: []string{"/a"}, Trim: []string{"/a"}, NFC: []string{"/a/0"}}, []string{
			`trim: the pointer "/a" is of no use, since "/a" is ignored`, `nfc: the pointer "/a/0" is of no use, since "/a" is ignored`,
		}},
		{"the empty name is ignored", &Rules{Ignore: []string{"/"}, Trim: []string{"//a", "/b/"}}, []string{`"//a" is of no use, since "/" is ignored`}},
		{"all at once", &Rules{Ignore: []string{"", "x", "/1"}, Trim: []string{"/~", "/t", "/t"}, NFC: []string{"/\xff"}}, []string{
			"all of the args", "slash", "element", "neither", "twice", "UTF-8",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.rules.Validate()
			var said []string
			if err != nil {
				said = strings.Split(err.Error(), "\n")
			}
			if len(said) != len(tt.want) {
				t.Fatalf("it says %q, want %q", said, tt.want)
			}
			for i, s := range said {
				if !strings.HasPrefix(s, "idem: rules: ") || !strings.Contains(s, tt.want[i]) {
					t.Errorf("it says %q, want %q", s, tt.want[i])
				}
			}
			_, err2 := FingerprintUnder(tt.rules, "t", []byte(`{}`))
			var refusal *Error
			if (err == nil) != (err2 == nil) || errors.As(err2, &refusal) {
				t.Errorf("a fingerprint under them: %v", err2)
			}
		})
	}
}

// Rules are stored as text, and named by it in every call that was accepted under
// them: neither can ever change.
func TestRulesText(t *testing.T) {
	r := &Rules{NFC: []string{"/b", "/a"}, Ignore: []string{"/\"\\\n<é", "/-"}, Trim: []string{"/a"}}
	const text = `{"ignore":["/\"\\\n<é","/-"],"nfc":["/a","/b"],"trim":["/a"]}`
	if got := string(r.Text()); got != text {
		t.Errorf("the text is %s", got)
	}
	sum := sha256.Sum256([]byte("idemd-rules-1" + text))
	if got := r.ID(); got != RulesID(sum[:16]) || got.String() != fmt.Sprintf("%x", sum[:16]) {
		t.Errorf("the id is %v, want %x", got, sum[:16])
	}
	if r.NFC[0] != "/b" {
		t.Error("the rules were put in order themselves")
	}
	for _, r := range []*Rules{nil, {}, {Ignore: []string{}, Trim: []string{}, NFC: []string{}}} {
		if !r.ID().IsZero() || string(r.Text()) != "{}" {
			t.Errorf("%+v is %v, %s", r, r.ID(), r.Text())
		}
	}
	// The same pointer in another list, or two as one.
	ids := make(map[RulesID]*Rules)
	for _, r := range []*Rules{
		{Ignore: []string{"/a"}}, {Trim: []string{"/a"}}, {NFC: []string{"/a"}}, {Ignore: []string{"/a", "/b"}},
		{Ignore: []string{"/a"}, Trim: []string{"/b"}}, {Ignore: []string{`/a","/b`}}, {Ignore: []string{"/a/b"}},
	} {
		if other := ids[r.ID()]; other != nil {
			t.Errorf("%+v and %+v have one id", r, other)
		}
		ids[r.ID()] = r
	}
}

func TestParseRules(t *testing.T) {
	t.Run("comes back", rapid.MakeCheck(func(t *rapid.T) {
		r := drawRules(t, `{"a":[{"b":"x"},"y"],"é":{"~":"z","/":1}}`)
		got, err := ParseRules(r.Text())
		if err != nil || got.ID() != r.ID() || !bytes.Equal(got.Text(), r.Text()) {
			t.Fatalf("%s: %+v, %v", r.Text(), got, err)
		}
		for _, l := range [][2][]string{{got.Ignore, r.Ignore}, {got.Trim, r.Trim}, {got.NFC, r.NFC}} {
			if !slices.Equal(l[0], slices.Sorted(slices.Values(l[1]))) {
				t.Fatalf("%q came back as %q", l[1], l[0])
			}
		}
	}))
	for name, text := range map[string]string{
		"nothing":                  ``,
		"cut":                      `{"ignore":["/a"]`,
		"null":                     `null`,
		"a list":                   `[]`,
		"white space":              `{"ignore": ["/a"]}`,
		"something after it":       `{"ignore":["/a"]} `,
		"another document":         `{"ignore":["/a"]}{}`,
		"an empty list":            `{"ignore":[]}`,
		"null for a list":          `{"ignore":null,"trim":["/a"]}`,
		"null for a pointer":       `{"ignore":[null]}`,
		"a number for a pointer":   `{"ignore":[1]}`,
		"pointers out of order":    `{"ignore":["/b","/a"]}`,
		"lists out of order":       `{"trim":["/a"],"ignore":["/b"]}`,
		"a list twice":             `{"ignore":["/a"],"ignore":["/a"]}`,
		"another spelling":         `{"ignore":["\/a"]}`,
		"another case":             `{"Ignore":["/a"]}`,
		"a later release's member": `{"fold":["/b"],"ignore":["/a"]}`,
		"only that":                `{"fold":["/b"]}`,
		"no pointer":               `{"ignore":["a"]}`,
		"not UTF-8":                "{\"ignore\":[\"/\xff\"]}",
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := ParseRules([]byte(text)); err == nil || r != nil {
				t.Errorf("it is %+v, %v", r, err)
			} else if strings.Contains(err.Error(), "fold") {
				t.Errorf("the error quotes: %v", err)
			}
		})
	}
}

// apply does to a tree what rules say, slowly and step by step; it shares nothing
// with what is tested. The tree is changed.
func (r *Rules) apply(tree any) any {
	each := func(pointers []string, do func(in any, step string)) {
		for _, p := range pointers {
			steps := strings.Split(p, "/")[1:]
			for i := range steps {
				steps[i] = strings.ReplaceAll(strings.ReplaceAll(steps[i], "~1", "/"), "~0", "~")
			}
			in := tree
			for _, s := range steps[:len(steps)-1] {
				in = inside(in, s)
			}
			do(in, steps[len(steps)-1])
		}
	}
	edit := func(f func(string) string) func(in any, step string) {
		return func(in any, step string) {
			s, ok := inside(in, step).(string)
			if !ok {
				return
			}
			switch in := in.(type) {
			case map[string]any:
				in[step] = f(s)
			case []any:
				i, _ := strconv.Atoi(step)
				in[i] = f(s)
			}
		}
	}
	each(r.NFC, edit(composed))
	each(r.Trim, edit(func(s string) string { return strings.Trim(s, " \t\r\n") }))
	each(r.Ignore, func(in any, step string) {
		if o, ok := in.(map[string]any); ok {
			delete(o, step)
		}
	})
	return tree
}

// composed is form C of texts whose only mark is the acute, and only on an e.
func composed(s string) string { return strings.ReplaceAll(s, "e\u0301", "é") }

// inside is what a step leads to, or nil.
func inside(tree any, step string) any {
	switch v := tree.(type) {
	case map[string]any:
		return v[step]
	case []any:
		for i := range v {
			if strconv.Itoa(i) == step {
				return v[i]
			}
		}
	}
	return nil
}

var (
	drawName = rapid.SampledFrom([]string{"a", "b", "memo", "0", "1", "01", "-", "", "a/b", "~", "~1", "é", "e\u0301", "\uffee", "\U0001f600"})
	drawText = rapid.StringOf(rapid.SampledFrom([]rune{'x', 'e', 'é', '\u0301', ' ', '\t', '\n', '\u00a0', '"', '\\'}))
	drawNum  = rapid.SampledFrom([]string{"0", "-0", "1", "10", "1.5", "1.50", "15e-1", "9007199254740993", "1e400", "0.00001"})
)

func drawTree(t *rapid.T, depth int) any {
	kinds := 7
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]any{nil, true, false}).Draw(t, "word")
	case 1:
		tree, _ := readSlowly([]byte(drawNum.Draw(t, "number")))
		return tree
	case 2, 3:
		return drawText.Draw(t, "text")
	case 4:
		var items []any
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, drawTree(t, depth-1))
		}
		return items
	default:
		return drawObject(t, depth)
	}
}

func drawObject(t *rapid.T, depth int) any {
	o := make(map[string]any)
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		o[drawName.Draw(t, "name")] = drawTree(t, depth-1)
	}
	return o
}

// pointersInto are the pointers to all that is in a tree.
func pointersInto(tree any, to string, all []string) []string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	switch v := tree.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			p := to + "/" + escape.Replace(name)
			all = pointersInto(v[name], p, append(all, p))
		}
	case []any:
		for i := range v {
			p := fmt.Sprint(to, "/", i)
			all = pointersInto(v[i], p, append(all, p))
		}
	}
	return all
}

// drawRules draws valid rules, most of whose pointers lead somewhere in a document.
func drawRules(t *rapid.T, doc string) *Rules {
	tree, ok := readSlowly([]byte(doc))
	if !ok {
		t.Fatal("no document: ", doc)
	}
	pointers := append(pointersInto(tree, "", nil), "/nowhere", "/a/0/b", "/0")
	r := &Rules{}
	for _, l := range []*[]string{&r.Ignore, &r.Trim, &r.NFC} {
		for _, p := range rapid.SliceOfN(rapid.SampledFrom(pointers), 0, 4).Draw(t, "pointers") {
			if *l = append(*l, p); r.Validate() != nil {
				*l = (*l)[:len(*l)-1]
			}
		}
	}
	return r
}

// R3: what counts under rules is what they leave, however it is spelled; and
// nothing else makes no difference.
func TestFingerprintUnder(t *testing.T) {
	must := func(t rapid.TB, r *Rules, doc string) Fingerprint {
		t.Helper()
		f, err := FingerprintUnder(r, "charge", []byte(doc))
		if err != nil {
			t.Fatalf("%s under %s: %v", doc, r.Text(), err)
		}
		return f
	}
	spell := func(t *rapid.T, tree any) string {
		return respell(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "spelling"), 1)), tree)
	}
	reread := func(t *rapid.T, doc string) any {
		tree, ok := readSlowly([]byte(doc))
		if !ok {
			t.Fatalf("the oracle refuses %s", doc)
		}
		return tree
	}

	t.Run("canonical text is that of what the rules leave", rapid.MakeCheck(func(t *rapid.T) {
		doc := spell(t, drawObject(t, 4))
		r := drawRules(t, doc)
		got, err := canonicalUnder(r, doc)
		want, err2 := Canonical([]byte(spell(t, r.apply(reread(t, doc)))))
		if err != nil || err2 != nil || got != string(want) {
			t.Fatalf("%s under %s is %s, %v; want %s, %v", doc, r.Text(), got, err, want, err2)
		}
	}))

	t.Run("equal exactly where the rules leave the same", rapid.MakeCheck(func(t *rapid.T) {
		doc := spell(t, drawObject(t, 3))
		r := drawRules(t, doc)
		// The other is mostly the same, with something changed somewhere.
		other := reread(t, doc)
		if pointers := pointersInto(other, "", nil); len(pointers) > 0 && rapid.Bool().Draw(t, "change") {
			p := rapid.SampledFrom(pointers).Draw(t, "changed")
			cut := strings.LastIndexByte(p, '/')
			in := other
			unescape := strings.NewReplacer("~1", "/", "~0", "~")
			for _, s := range strings.Split(p[:cut], "/")[1:] {
				in = inside(in, unescape.Replace(s))
			}
			step := unescape.Replace(p[cut+1:])
			now := inside(in, step)
			switch s, isText := now.(string); {
			case isText && rapid.Bool().Draw(t, "by what may not count"):
				now = strings.ReplaceAll(" "+s+"\t", "é", "e\u0301")
			default:
				now = drawTree(t, 2)
			}
			switch in := in.(type) {
			case map[string]any:
				if in[step] = now; rapid.Bool().Draw(t, "gone") {
					delete(in, step)
				}
			case []any:
				i, _ := strconv.Atoi(step)
				in[i] = now
			}
		}
		second := spell(t, other)
		same := sameTree(r.apply(reread(t, doc)), r.apply(reread(t, second)))
		if got := must(t, r, doc) == must(t, r, second); got != same {
			t.Fatalf("%s and %s under %s: equal %v, want %v", doc, second, r.Text(), got, same)
		}
	}))

	t.Run("without rules it is the plain one", rapid.MakeCheck(func(t *rapid.T) {
		doc := spell(t, drawTree(t, 4))
		want, err := FingerprintOf("charge", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []*Rules{nil, {}, {Ignore: []string{}}} {
			if must(t, r, doc) != want {
				t.Fatalf("%s under %+v", doc, r)
			}
		}
		// Not even rules that touch nothing give the plain one, or one another's.
		a, b := must(t, &Rules{Ignore: []string{"/no such"}}, doc), must(t, &Rules{Trim: []string{"/no such"}}, doc)
		if a == want || b == want || a == b {
			t.Fatalf("%s: %v, %v, without rules %v", doc, a, b, want)
		}
	}))

	t.Run("the order of pointers makes no difference", func(t *testing.T) {
		const doc = `{"a":1,"b":2,"c":" x "}`
		a := must(t, &Rules{Ignore: []string{"/a", "/b"}, Trim: []string{"/c", "/d"}}, doc)
		b := must(t, &Rules{Ignore: []string{"/b", "/a"}, Trim: []string{"/d", "/c"}}, doc)
		if a != b {
			t.Error("it does")
		}
	})

	// The layout, spelled out once more. It is stored, so it can never change.
	t.Run("layout", func(t *testing.T) {
		const tool, canonical = "charge", `{"a":1,"b":"x"}`
		r := &Rules{Ignore: []string{"/memo"}, Trim: []string{"/b"}}
		id := r.ID()
		b := append([]byte("idemd-fp-rules-1"), id[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(len(tool)))
		b = append(b, tool...)
		b = binary.BigEndian.AppendUint64(b, uint64(len(canonical)))
		b = append(b, canonical...)
		if got := must(t, r, `{"b":"x ","memo":[1],"a":1.0}`); got != sha256.Sum256(b) {
			t.Errorf("got %v", got)
		}
	})

	// What would be refused is refused at the same byte, wherever it stands.
	t.Run("refused also where it is ignored", func(t *testing.T) {
		r := &Rules{Ignore: []string{"/memo"}, Trim: []string{"/b"}}
		for _, value := range append(slices.Clone(fuzzDocs), `"\ud800"`, `{"a":1,"a":2}`, `{"b":1,"a":2,"b":3}`, strings.Repeat("[", 64)+strings.Repeat("]", 64), strings.Repeat("1", 1001)) {
			for _, doc := range []string{`{"memo":` + value + `,"z":1,"b":2}`, `{"z":1,"b":` + value + `}`} {
				_, want := Canonical([]byte(doc))
				f, err := FingerprintUnder(r, "t", []byte(doc))
				if fmt.Sprint(err) != fmt.Sprint(want) || err != nil && f != (Fingerprint{}) {
					t.Errorf("%s: %v, want %v", doc, err, want)
				}
			}
		}
		for _, doc := range []string{`{"memo":1,"memo":1}`, `{"memo":1,"a":1,"memo":1}`, `{"z":1,"memo":1,"a":1,"memo":1}`, `{"memo":1,"a":1,"a":1}`} {
			if _, err := FingerprintUnder(r, "t", []byte(doc)); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), wordDuplicate) {
				t.Errorf("%s: %v", doc, err)
			}
		}
	})

	// A canonizer that goes back with rules would apply them to somebody else's
	// args.
	t.Run("rules do not stay behind", func(t *testing.T) {
		const doc = `{"a":1,"memo":" x "}`
		want, _ := Canonical([]byte(doc))
		for range 100 {
			_ = must(t, &Rules{Ignore: []string{"/a"}, Trim: []string{"/memo"}}, doc)
			_, _ = FingerprintUnder(&Rules{Ignore: []string{"/a"}}, "t", []byte(`{"a":`))
			if got, err := Canonical([]byte(doc)); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s, %v", got, err)
			}
		}
	})

	t.Run("the args are left as they are", func(t *testing.T) {
		doc := []byte(`{"b":" x ","a":1}`)
		before := bytes.Clone(doc)
		if _, err := FingerprintUnder(&Rules{Ignore: []string{"/a"}, Trim: []string{"/b"}}, "t", doc); err != nil || !bytes.Equal(doc, before) {
			t.Errorf("%s, %v", doc, err)
		}
	})
}

// R3: a call is compared under its own rules, or not at all.
func TestFingerprintFor(t *testing.T) {
	mine, other := RulesID{1}, RulesID{2}
	failed := errors.New("failed")
	under := func(id RulesID) (Fingerprint, error) {
		switch id {
		case RulesID{}:
			return Fingerprint{9}, nil
		case other:
			return Fingerprint{2}, nil
		}
		return Fingerprint{}, failed
	}
	for _, tt := range []struct {
		name string
		r    Request
		id   RulesID
		want Fingerprint
		err  error
	}{
		{"its own", Request{Rules: mine, Fingerprint: Fingerprint{1}, Under: under}, mine, Fingerprint{1}, nil},
		{"its own, and it knows no others", Request{Rules: mine, Fingerprint: Fingerprint{1}}, mine, Fingerprint{1}, nil},
		{"none, by one without", Request{Fingerprint: Fingerprint{1}}, RulesID{}, Fingerprint{1}, nil},
		{"others", Request{Rules: mine, Fingerprint: Fingerprint{1}, Under: under}, other, Fingerprint{2}, nil},
		{"none, by one with", Request{Rules: mine, Fingerprint: Fingerprint{1}, Under: under}, RulesID{}, Fingerprint{9}, nil},
		{"others, by one that knows none", Request{Fingerprint: Fingerprint{1}}, other, Fingerprint{}, ErrUnknownRules},
		{"none, by one that knows only its own", Request{Rules: mine, Fingerprint: Fingerprint{1}}, RulesID{}, Fingerprint{}, ErrUnknownRules},
		{"others that cannot be made", Request{Fingerprint: Fingerprint{1}, Under: under}, mine, Fingerprint{}, failed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := tt.r.FingerprintFor(tt.id); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	var refusal *Error
	if errors.As(ErrUnknownRules, &refusal) {
		t.Error("callers would be told of rules that nobody knows as if it were their fault")
	}
}

// FuzzFingerprintUnder: rules never let pass what is refused without them, and what
// they leave is canonical.
func FuzzFingerprintUnder(f *testing.F) {
	for _, doc := range fuzzDocs {
		f.Add("/a", "/b", "/0", []byte(doc))
		f.Add("/memo", "/a/0", "/~01", []byte(`{"memo":`+doc+`,"a":[`+doc+`],"~1":`+doc+`}`))
	}
	f.Fuzz(func(t *testing.T, ignore, trim, nfc string, doc []byte) {
		r := &Rules{Ignore: []string{ignore}, Trim: []string{trim}, NFC: []string{nfc}}
		_, plain := FingerprintOf("t", doc)
		_, err := FingerprintUnder(r, "t", doc)
		if fault := r.Validate(); fault != nil {
			if err == nil {
				t.Fatalf("%+v: %v", r, fault)
			}
			return
		}
		if fmt.Sprint(err) != fmt.Sprint(plain) {
			t.Fatalf("%q under %+v: %v, without %v", doc, r, err, plain)
		}
		if again, err := ParseRules(r.Text()); err != nil || again.ID() != r.ID() {
			t.Fatalf("%s came back as %+v, %v", r.Text(), again, err)
		}
		if err != nil {
			return
		}
		text, _ := canonicalUnder(r, string(doc))
		if again, err := Canonical([]byte(text)); err != nil || string(again) != text {
			t.Fatalf("%q under %+v leaves %q, which is not canonical: %q, %v", doc, r, text, again, err)
		}
	})
}

func BenchmarkFingerprintUnder(b *testing.B) {
	r := &Rules{Ignore: []string{"/retry"}, Trim: []string{"/order", "/customer/mail"}, NFC: []string{"/order"}}
	args := []byte(benchArgs)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FingerprintUnder(r, "charge", args); err != nil {
			b.Fatal(err)
		}
	}
}
