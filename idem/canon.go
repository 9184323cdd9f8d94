package idem

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of a document. They keep the cost of a refusal, and of whatever
// computes with the numbers later, in proportion to the bytes that were sent.
const (
	maxDepth    = 64   // arrays and objects open at once; a lone scalar has depth 0
	maxDigits   = 1000 // digits of a number without its exponent, outer zeros included
	maxExponent = 1000 // absolute value of the integer after the e
)

// Canonical returns the canonical text of a JSON document. Two documents have
// the same canonical text exactly when they mean the same: members in another
// order, other white space, other escapes and other spellings of a number make
// no difference; everything else does.
//
// The layout is that of RFC 8785: no white space, members ordered by the UTF-16
// code units of their names, the shortest escapes. A number is its exact
// decimal value and never passes through a float64: all its significant digits
// are kept, zeros at either end of them are dropped, and they are laid out as
// ECMAScript's Number::toString lays out its digits. For a document whose numbers
// are shortest spellings of float64 values, which is what nearly all software
// sends, the text is the very one of RFC 8785. Minus zero is zero.
//
// Refused with [CodeBadRequest], before anything is computed or allocated in
// proportion to a claim the document makes:
//
//   - a document that is empty or not JSON, and anything but white space after it
//   - two members of one object with the same name, also when spelled with escapes
//   - invalid UTF-8, and escapes that are half a surrogate pair
//   - more than 64 arrays and objects open at once
//   - a number with more than 1000 digits before its exponent, or with an
//     exponent over 1000 or under -1000
//
// The two limits of numbers hold for a number as it was written (so 0e1001 and a
// thousand and one zeros are refused, whatever they come to) and for its
// canonical text as well (so 10e1000 is refused, being 1e1001). Every digit before
// the e counts, zeros too; zeros in front of an exponent do not. Because the
// canonical text is within the limits, it can be canonicalised again and comes
// back unchanged.
//
// Doc is neither kept nor modified. A message names what was wrong and at which
// byte, and never quotes the document.
func Canonical(doc []byte) ([]byte, error) { return CanonicalUnder(nil, doc) }

// CanonicalUnder returns what rules leave of the canonical text, see [Rules]; under
// nil all of it. It refuses what [Canonical] refuses, with the same errors. What is
// wrong with the rules is an error that is no [Error].
func CanonicalUnder(rules *Rules, doc []byte) ([]byte, error) {
	c := getCanonizer()
	if !rules.ID().IsZero() {
		if err := rules.Validate(); err != nil {
			putCanonizer(c)
			return nil, err
		}
		c.at = rules.compile()
	}
	out, err := c.document(c.out[:0], doc)
	if err != nil {
		putCanonizer(c)
		return nil, err
	}
	text := bytes.Clone(out)
	c.out = out
	putCanonizer(c)
	return text, nil
}

// checkDocument reports what [Canonical] would refuse.
func checkDocument(doc []byte) error {
	c := getCanonizer()
	out, err := c.document(c.out[:0], doc)
	if err == nil {
		c.out = out
	}
	putCanonizer(c)
	return err
}

// canonizer holds everything that one document needs, so that a warm one
// allocates nothing. It is not for concurrent use.
type canonizer struct {
	dec *jsontext.Decoder
	in  bytes.Buffer // what dec reads: doc itself, not a copy of it
	doc []byte

	// edit, where set, is applied to every string that is not a member's name.
	edit func(string) string

	// at is what rules say of the value that comes next, and of what is in it; nil
	// where they say nothing.
	at *place

	members []member // of all objects that are open, outermost first
	names   []byte   // their names, without quotes and escapes
	scratch []byte   // one string, one number's digits, or one object being sorted
	out     []byte   // the text, for callers that do not keep it
}

// member is one member of an object that is still open.
//
//	names: ... n a m e ...            out: ... { "name":value , "name":value
//	           ^name   ^nameEnd                               ^text          ^textEnd
//
// One that is ignored has no text: both are the same place.
type member struct {
	name, nameEnd int
	text, textEnd int
	at            int // where the name stands in the document, for messages
}

var canonizers = sync.Pool{New: func() any {
	c := new(canonizer)
	c.dec = jsontext.NewDecoder(&c.in, decoderOptions...)
	return c
}}

// The decoder's own search for duplicate names keeps a set for each object.
// Members are sorted here anyway, and then a duplicate has its twin beside it.
var decoderOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

func getCanonizer() *canonizer { return canonizers.Get().(*canonizer) }

// putCanonizer gives c back. The decoder reads straight from the caller's
// bytes, so every way to them has to be cut here, or a later document would be
// read out of a buffer that its owner has long put to other use.
func putCanonizer(c *canonizer) {
	const keepBytes, keepMembers = 64 << 10, 1 << 10
	large := len(c.doc) > keepBytes || cap(c.members) > keepMembers ||
		cap(c.names) > keepBytes || cap(c.scratch) > keepBytes || cap(c.out) > keepBytes
	if large {
		return // one huge document must not pin its memory for good
	}
	c.doc, c.edit, c.at = nil, nil, nil
	c.in = bytes.Buffer{}
	c.dec.Reset(&c.in, decoderOptions...)
	c.members, c.names = c.members[:0], c.names[:0]
	canonizers.Put(c)
}

// document appends the canonical text of doc to dst. On an error what it
// returns is nil.
func (c *canonizer) document(dst, doc []byte) ([]byte, error) {
	c.doc = doc
	c.in = *bytes.NewBuffer(doc)
	dst, err := c.value(dst, 0)
	if err != nil {
		return nil, err
	}
	// A decoder is content with a stream of documents; we are not.
	end := int(c.dec.InputOffset())
	if _, err := c.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, refuseDoc(wordTrailing, c.skip(end, blanks))
	}
	return dst, nil
}

// value appends the next value, which stands inside depth open arrays and objects.
func (c *canonizer) value(dst []byte, depth int) ([]byte, error) {
	switch c.dec.PeekKind() {
	case '{':
		if depth == maxDepth {
			return nil, c.tooDeep()
		}
		return c.object(dst, depth+1)
	case '[':
		if depth == maxDepth {
			return nil, c.tooDeep()
		}
		return c.array(dst, depth+1)
	case '"':
		raw, err := c.dec.ReadValue()
		if err != nil {
			return nil, c.malformed(err)
		}
		return c.text(dst, raw)
	case '0':
		raw, err := c.dec.ReadValue()
		if err != nil {
			return nil, c.malformed(err)
		}
		return c.number(dst, raw)
	case 'n', 't', 'f':
		raw, err := c.dec.ReadValue()
		if err != nil {
			return nil, c.malformed(err)
		}
		return append(dst, raw...), nil
	default: // no value can start here; reading on says why
		_, err := c.dec.ReadToken()
		return nil, c.malformed(err)
	}
}

func (c *canonizer) array(dst []byte, depth int) ([]byte, error) {
	if _, err := c.dec.ReadToken(); err != nil {
		return nil, c.malformed(err)
	}
	dst = append(dst, '[')
	here := c.at
	for i := 0; c.dec.PeekKind() != ']'; i++ {
		if i > 0 {
			dst = append(dst, ',')
		}
		if here != nil {
			c.at = here.item(i)
		}
		var err error
		if dst, err = c.value(dst, depth); err != nil {
			return nil, err
		}
	}
	if _, err := c.dec.ReadToken(); err != nil {
		return nil, c.malformed(err)
	}
	return append(dst, ']'), nil
}

// object appends the members in the order they come and sorts their texts in
// place when the object closes, but only if they came in another order: text
// that has been canonical before is copied through.
func (c *canonizer) object(dst []byte, depth int) ([]byte, error) {
	if _, err := c.dec.ReadToken(); err != nil {
		return nil, c.malformed(err)
	}
	dst = append(dst, '{')
	body, outer, outerNames := len(dst), len(c.members), len(c.names)
	here, sorted := c.at, true
	for c.dec.PeekKind() == '"' {
		raw, err := c.dec.ReadValue()
		if err != nil {
			return nil, c.malformed(err)
		}
		m := member{name: len(c.names), at: int(c.dec.InputOffset()) - len(raw)}
		before := len(dst)
		if before > body {
			dst = append(dst, ',')
		}
		m.text = len(dst)
		if dst, err = c.name(dst, raw); err != nil {
			return nil, err
		}
		m.nameEnd = len(c.names)
		if len(c.members) > outer {
			switch order := c.order(c.members[len(c.members)-1], m); {
			case order == 0:
				return nil, refuseDoc(wordDuplicate, m.at)
			case order > 0:
				sorted = false
			}
		}
		dst = append(dst, ':')
		if here != nil {
			c.at = here.member(c.names[m.name:m.nameEnd])
		}
		ignored := c.at != nil && c.at.ignore
		if dst, err = c.value(dst, depth); err != nil {
			return nil, err
		}
		if ignored {
			// Only now, so that nothing that would be refused elsewhere passes here.
			dst, m.text = dst[:before], before
		}
		m.textEnd = len(dst)
		c.members = append(c.members, m)
	}
	// Either the end of the object, or something that is no member of one.
	if tok, err := c.dec.ReadToken(); err != nil || tok.Kind() != '}' {
		return nil, c.malformed(err)
	}
	if !sorted {
		if err := c.sort(dst, body, c.members[outer:]); err != nil {
			return nil, err
		}
	}
	c.members, c.names = c.members[:outer], c.names[:outerNames]
	return append(dst, '}'), nil
}

// sort brings the texts of the members, which fill dst from body on, into
// order. They have the same length in any order, commas included.
func (c *canonizer) sort(dst []byte, body int, members []member) error {
	slices.SortFunc(members, c.order)
	for i := 1; i < len(members); i++ {
		if a, b := members[i-1], members[i]; c.order(a, b) == 0 {
			return refuseDoc(wordDuplicate, max(a.at, b.at))
		}
	}
	// By way of scratch: texts differ in length, so one that is moved into
	// its place would lie on others that are still to be moved.
	s := c.scratch[:0]
	for _, m := range members {
		if m.text == m.textEnd {
			continue // ignored
		}
		if len(s) > 0 {
			s = append(s, ',')
		}
		s = append(s, dst[m.text:m.textEnd]...)
	}
	copy(dst[body:], s)
	c.scratch = s
	return nil
}

// order compares the names of two members by their UTF-16 code units.
func (c *canonizer) order(a, b member) int {
	return compareUTF16(c.names[a.name:a.nameEnd], c.names[b.name:b.nameEnd])
}

// compareUTF16 compares two valid UTF-8 texts by the UTF-16 code units they
// would have. Bytes of UTF-8 are in the order of code points, and so are UTF-16 code
// units but for one thing: the surrogates that stand for U+10000 and up (first
// byte F0 to F4) come before U+E000 to U+FFFF (first byte EE or EF). Flipping bit
// 4 swaps those two groups and keeps the order inside each. A byte from EE up is
// always the first of its character, so nothing else is touched.
func compareUTF16(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xEE && y >= 0xEE {
			x, y = x^0x10, y^0x10
		}
		if x < y {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// name appends a member's name and notes it, unescaped, in names.
func (c *canonizer) name(dst, raw []byte) ([]byte, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		c.names = append(c.names, raw[1:len(raw)-1]...)
		return append(dst, raw...), nil
	}
	start := len(c.names)
	names, err := jsontext.AppendUnquote(c.names, raw)
	if err != nil {
		return nil, c.malformed(err)
	}
	c.names = names
	if dst, err = jsontext.AppendQuote(dst, names[start:]); err != nil {
		return nil, c.malformed(err)
	}
	return dst, nil
}

// text appends a string that is not a member's name. One without a backslash
// is canonical as it stands: what has to be escaped cannot be there, and nothing
// else is escaped.
func (c *canonizer) text(dst, raw []byte) ([]byte, error) {
	edit := c.edit
	if c.at != nil && c.at.edit != nil {
		edit = c.at.edit
	}
	if edit == nil && bytes.IndexByte(raw, '\\') < 0 {
		return append(dst, raw...), nil
	}
	at := int(c.dec.InputOffset()) - len(raw)
	s, err := jsontext.AppendUnquote(c.scratch[:0], raw)
	if err != nil {
		return nil, c.malformed(err)
	}
	c.scratch = s
	if edit == nil {
		dst, err = jsontext.AppendQuote(dst, s)
	} else {
		dst, err = jsontext.AppendQuote(dst, edit(string(s)))
	}
	if err != nil { // only an edit can have broken it
		return nil, refuseDoc(wordUTF8, at)
	}
	return dst, nil
}

// number appends a number that the decoder has found well-formed. Everything
// that bounds the work is checked on the spelling, before any of it is done.
func (c *canonizer) number(dst, raw []byte) ([]byte, error) {
	at := int(c.dec.InputOffset()) - len(raw)
	num := raw
	negative := num[0] == '-'
	if negative {
		num = num[1:]
	}

	point, e := -1, len(num)
	for i, b := range num {
		if b == '.' {
			point = i
		} else if b == 'e' || b == 'E' {
			e = i
			break
		}
	}
	whole, fraction, exponent := num[:e], []byte(nil), []byte(nil)
	if point >= 0 {
		whole, fraction = num[:point], num[point+1:e]
	}
	if e < len(num) {
		exponent = num[e+1:]
	}
	if len(whole)+len(fraction) > maxDigits {
		return nil, refuseDoc(wordDigits, at)
	}
	exp, ok := smallExponent(exponent)
	if !ok {
		return nil, refuseDoc(wordExponent, at)
	}

	// An integer of up to 21 digits, the usual case, is canonical as it is
	// spelled: JSON allows no zeros in front, and zeros behind are laid out again.
	if len(whole) == len(num) && len(whole) <= plainDigits {
		if negative && whole[0] != '0' {
			dst = append(dst, '-')
		}
		return append(dst, whole...), nil
	}

	// The value is 0.d1d2…dk × 10^point, with d1 and dk not zero.
	digits := append(append(c.scratch[:0], whole...), fraction...)
	c.scratch = digits
	point = len(whole) + exp
	for len(digits) > 0 && digits[0] == '0' {
		digits = digits[1:]
		point--
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
	}
	if len(digits) == 0 {
		return append(dst, '0'), nil // and no sign: -0 is 0
	}
	if negative {
		dst = append(dst, '-')
	}
	dst, word := appendDecimal(dst, digits, point)
	if word != "" {
		return nil, refuseDoc(word, at)
	}
	return dst, nil
}

// plainDigits is where ECMAScript goes over to the form with an exponent:
// 1e20 is written with all its zeros, and so is every integer below 1e21.
const plainDigits = 21

// appendDecimal lays out 0.d1d2…dk × 10^point by the rules of Number::toString,
// where k is called k too and point is called n. It returns a word if the layout is
// beyond the limits; the text could not be read back then.
func appendDecimal(dst, digits []byte, point int) ([]byte, string) {
	switch k := len(digits); {
	case k <= point && point <= plainDigits: // 1200
		dst = append(dst, digits...)
		return appendZeros(dst, point-k), ""

	case 0 < point && point <= plainDigits: // 1.2
		dst = append(dst, digits[:point]...)
		dst = append(dst, '.')
		return append(dst, digits[point:]...), ""

	case -6 < point && point <= 0: // 0.0012
		if 1-point+k > maxDigits {
			return nil, wordDigits
		}
		dst = append(dst, "0."...)
		dst = appendZeros(dst, -point)
		return append(dst, digits...), ""

	default: // 1.2e+30
		exp := point - 1
		if exp > maxExponent || exp < -maxExponent {
			return nil, wordExponent
		}
		dst = append(dst, digits[0])
		if k > 1 {
			dst = append(dst, '.')
			dst = append(dst, digits[1:]...)
		}
		dst = append(dst, 'e')
		if exp < 0 {
			dst, exp = append(dst, '-'), -exp
		} else {
			dst = append(dst, '+')
		}
		return strconv.AppendInt(dst, int64(exp), 10), ""
	}
}

func appendZeros(dst []byte, n int) []byte {
	const zeros = "000000000000000000000" // plainDigits of them
	return append(dst, zeros[:n]...)
}

// smallExponent reads what stands after the e, if it is within the limits. The
// number of digits is looked at first, so that no spelling can overflow.
func smallExponent(s []byte) (int, bool) {
	negative := len(s) > 0 && s[0] == '-'
	s = bytes.TrimLeft(bytes.TrimLeft(s, "+-"), "0")
	if len(s) > 4 {
		return 0, false
	}
	n := 0
	for _, b := range s {
		n = n*10 + int(b-'0')
	}
	if n > maxExponent {
		return 0, false
	}
	if negative {
		n = -n
	}
	return n, true
}

// What a document is refused for. The texts are for people; tests tell the
// kinds apart by them.
const (
	wordEmpty     = "the document is empty"
	wordCut       = "the document ends too early"
	wordSyntax    = "malformed JSON"
	wordTrailing  = "something follows the document"
	wordDuplicate = "duplicate member name"
	wordUTF8      = "invalid UTF-8"
	wordSurrogate = "half of a surrogate pair"
	wordDeep      = "nested deeper than 64 levels"
	wordDigits    = "a number of more than 1000 digits"
	wordExponent  = "a number with an exponent beyond 1000"
)

// refuseDoc says what is wrong with the document, and where.
func refuseDoc(word string, at int) error {
	return Errorf(CodeBadRequest, "JSON: %s, at byte %d", word, at)
}

func (c *canonizer) tooDeep() error {
	return refuseDoc(wordDeep, c.skip(int(c.dec.InputOffset()), blanks+",:"))
}

// blanks are the white space of JSON.
const blanks = " \t\r\n"

// skip is the first place in the document from at on that is none of chars.
func (c *canonizer) skip(at int, chars string) int {
	return len(c.doc) - len(bytes.TrimLeft(c.doc[at:], chars))
}

// malformed makes our error out of the decoder's. The decoder's message is not
// passed on: it quotes the document, and its wording is not ours to promise.
func (c *canonizer) malformed(err error) error {
	at := int(c.dec.InputOffset())
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		at = min(int(syntactic.ByteOffset), len(c.doc))
	}
	if i := firstInvalid(c.doc); i >= 0 {
		return refuseDoc(wordUTF8, i)
	}
	switch {
	case errors.Is(err, io.EOF):
		return refuseDoc(wordEmpty, 0)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refuseDoc(wordCut, len(c.doc))
	case startsWithSurrogate(c.doc[at:]):
		return refuseDoc(wordSurrogate, at)
	}
	return refuseDoc(wordSyntax, at)
}

// firstInvalid is the first byte of doc that is not part of a character of
// UTF-8, or -1.
func firstInvalid(doc []byte) int {
	if utf8.Valid(doc) {
		return -1
	}
	at := 0
	for {
		r, n := utf8.DecodeRune(doc[at:])
		if r == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
}

// startsWithSurrogate tells whether b begins with an escape from \ud800 to \udfff.
func startsWithSurrogate(b []byte) bool {
	return len(b) >= 4 && b[0] == '\\' && b[1] == 'u' && b[2]|0x20 == 'd' &&
		(b[3] == '8' || b[3] == '9' || 'a' <= b[3]|0x20 && b[3]|0x20 <= 'f')
}
