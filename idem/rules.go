package idem

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"
)

// RulesID names rules by what they say: equal rules have one id, in every
// process and release. The zero value is that of no rules.
type RulesID [16]byte

// IsZero reports whether the id is that of no rules.
func (id RulesID) IsZero() bool { return id == RulesID{} }

// String returns the id as 32 hexadecimal digits.
func (id RulesID) String() string { return hex.EncodeToString(id[:]) }

// Rules say which differences between the args of a tool mean nothing, so that
// they make no conflict (R3). They are JSON pointers (RFC 6901) into the args.
//
// A pointer is about the one value that it leads to, and about nothing where it
// leads nowhere. A step into an object is a member's name, whatever it looks like:
// also a number, and also "-". A step into an array is the index of an element,
// without leading zeros; any other, "-" too, leads nowhere.
//
// Trim and NFC are about strings. A number, an object or an array there is left
// alone, and so is what is in it. A string that is named by both is brought into
// form C first, and trimmed then. Form C is as of Unicode 15.0, and that of
// Stream-Safe Text: a run of more than 30 marks gets a joiner.
//
// Names of members are never changed.
type Rules struct {
	Ignore []string // what does not count at all, whether it is there or not; no elements of arrays
	Trim   []string // strings whose outer blanks (space, tab, CR, LF) do not count
	NFC    []string // strings that are compared in Unicode normalisation form C
}

// Limits of rules. They bound what a store keeps of them, and what comparing
// costs.
const (
	maxPointers    = 64   // in all lists together
	maxPointerSize = 1024 // bytes
)

// rulesTag begins what is hashed for an id; see fingerprintTag.
const rulesTag = "idemd-rules-1"

// ID names the rules: the first 16 bytes of the SHA-256 over "idemd-rules-1" and
// their Text. The order of the pointers in a list makes no difference. Nil, and
// rules without a pointer, have the zero id.
func (r *Rules) ID() RulesID {
	if r.size() == 0 {
		return RulesID{}
	}
	sum := sha256.Sum256(r.appendText([]byte(rulesTag)))
	return RulesID(sum[:])
}

// size is how many pointers there are.
func (r *Rules) size() int {
	if r == nil {
		return 0
	}
	return len(r.Ignore) + len(r.Trim) + len(r.NFC)
}

// Text is what is stored of the rules, which are valid: a canonical JSON object
// with the members "ignore", "nfc" and "trim", each an array of pointers in the
// order of their bytes, and left out where it is empty. See [ParseRules].
func (r *Rules) Text() []byte { return r.appendText(nil) }

func (r *Rules) appendText(b []byte) []byte {
	b = append(b, '{')
	if r == nil {
		return append(b, '}')
	}
	start := len(b)
	for _, l := range []struct {
		name     string
		pointers []string
	}{{`"ignore":[`, r.Ignore}, {`"nfc":[`, r.NFC}, {`"trim":[`, r.Trim}} {
		if len(l.pointers) == 0 {
			continue
		}
		if len(b) > start {
			b = append(b, ',')
		}
		b = append(b, l.name...)
		for i, p := range slices.Sorted(slices.Values(l.pointers)) {
			if i > 0 {
				b = append(b, ',')
			}
			// An error means invalid UTF-8, which is replaced, and which valid rules
			// have none of.
			b, _ = jsontext.AppendQuote(b, p)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// ParseRules reads what [Rules.Text] wrote. It refuses everything else, such as
// another order, white space, or a member that only a later release knows: rules
// of which a part was not understood would compare otherwise than their id says.
func ParseRules(text []byte) (*Rules, error) {
	var doc struct{ Ignore, NFC, Trim []string }
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, errors.New("idem: rules that cannot be read") // the error would quote them
	}
	r := &Rules{Ignore: doc.Ignore, Trim: doc.Trim, NFC: doc.NFC}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if !bytes.Equal(r.Text(), text) {
		return nil, errors.New("idem: rules in another form than they are stored in")
	}
	return r, nil
}

// Validate reports every fault of the rules, joined; nil rules have none. A fault
// is
//
//   - more than 64 pointers in all, or one of more than 1024 bytes
//   - a pointer that is none: it is not UTF-8, does not begin with a slash, or has
//     a ~ that is followed neither by 0 nor by 1; also the empty one, which would
//     be all of the args
//   - a pointer that is twice in a list
//   - one to be ignored that ends with an index, since what it leads to may be
//     an element of an array, and without it the others would move up
//   - one that leads into what is ignored, or just to it: nothing would come of it
func (r *Rules) Validate() error {
	if r == nil {
		return nil
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("idem: rules: "+format, args...))
	}
	if n := r.size(); n > maxPointers {
		fault("%d pointers are more than %d", n, maxPointers)
	}
	ignored := make(map[string]bool, len(r.Ignore))
	for _, p := range r.Ignore {
		ignored[p] = true
	}
	for _, l := range []struct {
		name     string
		pointers []string
	}{{"ignore", r.Ignore}, {"trim", r.Trim}, {"nfc", r.NFC}} {
		seen := make(map[string]bool, len(l.pointers))
		for _, p := range l.pointers {
			if why := wrongPointer(p); why != "" {
				fault("%s: the pointer %.80q %s", l.name, p, why)
				continue
			}
			if seen[p] {
				fault("%s: the pointer %.80q is there twice", l.name, p)
				continue
			}
			seen[p] = true
			if l.name == "ignore" && isIndex(p[strings.LastIndexByte(p, '/')+1:]) {
				fault("ignore: the pointer %.80q may lead to an element of an array, which cannot be ignored", p)
			}
			if outer, ok := within(ignored, p, l.name == "ignore"); ok {
				fault("%s: the pointer %.80q is of no use, since %.80q is ignored", l.name, p, outer)
			}
		}
	}
	return errors.Join(faults...)
}

// within finds the pointer in a set that leads to what p leads to, or to
// something around it; only the latter where it is strict.
func within(set map[string]bool, p string, strict bool) (string, bool) {
	if len(set) == 0 {
		return "", false
	}
	for i := 1; i <= len(p); i++ {
		if i < len(p) && p[i] != '/' || i == len(p) && strict {
			continue
		}
		if set[p[:i]] {
			return p[:i], true
		}
	}
	return "", false
}

// wrongPointer says why p is no pointer that rules may have, or "".
func wrongPointer(p string) string {
	switch {
	case len(p) > maxPointerSize:
		return fmt.Sprintf("is over %d bytes", maxPointerSize)
	case p == "":
		return "leads to all of the args"
	case !utf8.ValidString(p):
		return "is not UTF-8"
	case p[0] != '/':
		return "does not begin with a slash"
	}
	for rest := p; ; {
		_, after, found := strings.Cut(rest, "~")
		if !found {
			return ""
		}
		if after == "" || after[0] != '0' && after[0] != '1' {
			return "has a ~ that is followed neither by 0 nor by 1"
		}
		rest = after
	}
}

// isIndex reports whether a step of a pointer leads to an element where it is a
// step into an array.
func isIndex(step string) bool {
	if step == "" || step[0] == '0' && len(step) > 1 {
		return false
	}
	for i := range len(step) {
		if step[i] < '0' || step[i] > '9' {
			return false
		}
	}
	return true
}

// place is what rules say of one value of the args, and of what is in it.
type place struct {
	inside map[string]*place // by the step that leads there
	ignore bool
	edit   func(string) string // of the value, where it is a string; may be nil
}

// member is the place of a member, nil where the rules say nothing of it.
func (p *place) member(name []byte) *place { return p.inside[string(name)] }

// item is the place of an element.
func (p *place) item(i int) *place {
	if len(p.inside) == 0 {
		return nil
	}
	return p.inside[strconv.Itoa(i)]
}

var unescapeStep = strings.NewReplacer("~1", "/", "~0", "~")

// compile makes a tree of valid rules.
func (r *Rules) compile() *place {
	root := new(place)
	for _, p := range r.Ignore {
		root.find(p).ignore = true
	}
	for _, p := range r.NFC {
		root.find(p).edit = norm.NFC.String
	}
	for _, p := range r.Trim {
		at := root.find(p)
		if at.edit = trimBlanks; slices.Contains(r.NFC, p) {
			at.edit = func(s string) string { return trimBlanks(norm.NFC.String(s)) }
		}
	}
	return root
}

func trimBlanks(s string) string { return strings.Trim(s, blanks) }

// find returns the place that a pointer leads to, and makes those on the way.
func (p *place) find(pointer string) *place {
	for step := range strings.SplitSeq(pointer[1:], "/") {
		step = unescapeStep.Replace(step)
		next := p.inside[step]
		if next == nil {
			if p.inside == nil {
				p.inside = make(map[string]*place)
			}
			next = new(place)
			p.inside[step] = next
		}
		p = next
	}
	return p
}
