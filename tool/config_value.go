package tool

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// scalar is what a plain value says, as it is written: nothing is converted on the way.
type scalar uint8

const (
	scalarText    scalar = iota
	scalarNumber         // as JSON writes one
	scalarTrue           // true
	scalarFalse          // false
	scalarNull           // null
	scalarNothing        // no value at all
	scalarOdd            // what some reader of YAML takes for something else than text
)

var (
	jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)
	oddScalar  = regexp.MustCompile(`^(?i:` +
		`~|null|true|false|yes|no|on|off` +
		`|[-+]?(0x[0-9a-f_]+|0b[01_]+|0o[0-7_]+)` +
		`|[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9_]+)(e[-+]?[0-9]+)?` +
		`|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?` +
		`|[-+]?\.(inf|nan)` +
		`|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([t \t].*)?` +
		`)$`)
)

// scalarOf tells what a scalar says.
func scalarOf(n *yaml.Node) scalar {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	switch {
	case n.Style&quoted != 0:
		return scalarText
	case n.Value == "":
		return scalarNothing
	case n.Value == "true":
		return scalarTrue
	case n.Value == "false":
		return scalarFalse
	case n.Value == "null":
		return scalarNull
	case jsonNumber.MatchString(n.Value):
		return scalarNumber
	case oddScalar.MatchString(n.Value):
		return scalarOdd
	}
	return scalarText
}

// value is something in the file, and where it is.
type value struct {
	d      *decoder
	node   *yaml.Node
	key    *yaml.Node // nil in a list, and at the top
	label  string     // of the tool
	path   string
	origin *origin // where its position and those below it are kept; may be nil
}

// fault reports what is wrong with the value.
func (v value) fault(format string, args ...any) {
	v.faultAt(v.position(), format, args...)
}

// faultAt reports it with a place of its own.
func (v value) faultAt(at position, format string, args ...any) {
	v.origin.spoil(v.path)
	v.d.add(at.line, at.column, field(v.label, v.path), format, args...)
}

// position is that of a scalar, or of the name of anything larger.
func (v value) position() position {
	if v.node.Kind != yaml.ScalarNode && v.key != nil {
		return position{v.key.Line, v.key.Column}
	}
	return position{v.node.Line, v.node.Column}
}

// maxPath bounds the names of values that are deep inside others.
const maxPath = 200

// below is a value inside this one.
func (v value) below(key, node *yaml.Node, path string) value {
	w := v
	w.key, w.node = key, node
	if len(v.path) < maxPath {
		w.path += path
	}
	if w.origin != nil {
		w.origin.fields[w.path] = w.position()
	}
	return w
}

// entry is a named value of a mapping.
type entry struct {
	name string
	value
}

// entries are those of a mapping, in the order of the file, each name once.
type entries struct {
	value
	all []entry
}

// mapping reads a mapping whose names are among those that are allowed, or may
// be any where none is given.
func (v value) mapping(allowed ...string) (entries, bool) {
	m := entries{value: v}
	if v.node.Kind != yaml.MappingNode {
		if len(allowed) == 0 {
			v.fault("must be a mapping, name: value; it is %s", thing(v.node))
		} else {
			v.fault("must be a mapping with %s; it is %s", strings.Join(allowed, ", "), thing(v.node))
		}
		return m, false
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key, node := v.node.Content[i], v.node.Content[i+1]
		if key.Kind != yaml.ScalarNode || scalarOf(key) != scalarText {
			v.faultAt(position{key.Line, key.Column}, "a name must be text; quote it if text is meant")
			continue
		}
		name := key.Value
		if line, twice := lines[name]; twice {
			v.faultAt(position{key.Line, key.Column}, "%q is there already, on line %d", plainName(name), line)
			continue
		}
		lines[name] = key.Line
		if len(allowed) > 0 && !slices.Contains(allowed, name) {
			v.faultAt(position{key.Line, key.Column}, "there is no field %q here; there are %s", plainName(name), strings.Join(allowed, ", "))
			continue
		}
		path := plainName(name)
		if v.path != "" {
			path = "." + path
		}
		m.all = append(m.all, entry{name, v.below(key, node, path)})
	}
	return m, true
}

// get finds an entry.
func (m entries) get(name string) (value, bool) {
	for _, f := range m.all {
		if f.name == name {
			return f.value, true
		}
	}
	return value{}, false
}

// need finds an entry that has to be there; hint says what to write.
func (m entries) need(name, hint string) (value, bool) {
	v, ok := m.get(name)
	if !ok {
		p := m.position()
		m.d.add(p.line, p.column, field(m.label, m.path), "%s is missing; %s", name, hint)
		m.origin.spoil(strings.TrimPrefix(m.path+"."+name, "."))
	}
	return v, ok
}

// list reads a list of at most so many, or of any number where limit is 0.
func (v value) list(limit int) ([]value, bool) {
	if v.node.Kind != yaml.SequenceNode {
		v.fault("must be a list, [a, b]; it is %s", thing(v.node))
		return nil, false
	}
	if n := len(v.node.Content); limit > 0 && n > limit {
		v.fault("at most %d are allowed; there are %d", limit, n)
		return nil, false
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = v.below(nil, n, "["+strconv.Itoa(i)+"]")
	}
	return items, true
}

// thing says what a node is, not what is in it.
func thing(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch scalarOf(n) {
	case scalarText:
		return "text"
	case scalarNumber:
		return "a number"
	case scalarTrue, scalarFalse:
		return "true or false"
	case scalarNull, scalarNothing:
		return "empty"
	}
	return "nothing that is clear"
}

// raw reads text as it is written.
func (v value) raw() (string, bool) {
	if v.node.Kind != yaml.ScalarNode || scalarOf(v.node) != scalarText {
		hint := "quote it if text is meant"
		if v.node.Kind != yaml.ScalarNode {
			hint = "write one value"
		} else if scalarOf(v.node) == scalarNothing {
			hint = "give a value, or leave the field out"
		}
		v.fault("must be text; it is %s; %s", thing(v.node), hint)
		return "", false
	}
	return v.node.Value, true
}

// text reads text in which no variable may stand.
func (v value) text() (string, bool) {
	s, ok := v.raw()
	if !ok {
		return "", false
	}
	return v.literal(s)
}

// literal refuses a variable, and gives what is meant where one is kept from
// being one.
func (v value) literal(s string) (string, bool) {
	parts, bad := splitVars(s)
	if bad == "" && slices.ContainsFunc(parts, func(p part) bool { return p.variable }) {
		bad = "a variable ${...} can stand only in a URL, in the value of a header and in a value of env; write $${ for the characters ${"
	}
	if bad != "" {
		v.fault("%s", bad)
		return "", false
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.text)
	}
	return b.String(), true
}

// word reads one of some words.
func (v value) word(words ...string) (string, bool) {
	if v.node.Kind == yaml.ScalarNode && slices.Contains(words, v.node.Value) {
		return v.node.Value, true
	}
	s := thing(v.node)
	if v.node.Kind == yaml.ScalarNode && scalarOf(v.node) == scalarText {
		s = strconv.Quote(clip(v.node.Value, 40))
	}
	v.fault("must be %s; it is %s", oneOf(words), s)
	return "", false
}

// oneOf is "a, b or c".
func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// flag reads true or false.
func (v value) flag() (bool, bool) {
	if v.node.Kind == yaml.ScalarNode {
		switch scalarOf(v.node) {
		case scalarTrue:
			return true, true
		case scalarFalse:
			return false, true
		}
	}
	v.fault("must be true or false; it is %s", thing(v.node))
	return false, false
}

// number reads a whole number.
func (v value) number(low, high int) (int, bool) {
	if v.node.Kind == yaml.ScalarNode && scalarOf(v.node) == scalarNumber {
		if n, err := strconv.Atoi(v.node.Value); err == nil && low <= n && n <= high {
			return n, true
		}
		v.fault("must be a whole number from %d to %d; it is %s", low, high, clip(v.node.Value, 40))
		return 0, false
	}
	v.fault("must be a whole number from %d to %d, written with its digits; it is %s", low, high, thing(v.node))
	return 0, false
}

// duration reads a time with its unit.
func (v value) duration(low, high time.Duration) (time.Duration, bool) {
	if v.node.Kind != yaml.ScalarNode || scalarOf(v.node) != scalarText {
		if v.node.Kind == yaml.ScalarNode && scalarOf(v.node) == scalarNumber {
			v.fault("a duration needs its unit; write %ss for seconds", clip(v.node.Value, 40))
		} else {
			v.fault("must be a duration like 10s, 1m30s or 500ms; it is %s", thing(v.node))
		}
		return 0, false
	}
	t, err := time.ParseDuration(v.node.Value)
	switch {
	case err != nil:
		v.fault("must be a duration like 10s, 1m30s or 500ms; it is %q", clip(v.node.Value, 40))
	case t < low || t > high:
		v.fault("must be from %v to %v; it is %v", low, high, t)
	default:
		return t, true
	}
	return 0, false
}

// numbers reads a list of different whole numbers.
func (v value) numbers(low, high int, what string) []int {
	items, ok := v.list(high - low + 1)
	if !ok {
		return nil
	}
	var out []int
	for _, item := range items {
		n, ok := item.number(low, high)
		switch {
		case !ok:
		case slices.Contains(out, n):
			item.fault("the %s %d is in this list already", what, n)
		default:
			out = append(out, n)
		}
	}
	return out
}

// texts reads a list of texts.
func (v value) texts(limit int) []string {
	items, ok := v.list(limit)
	if !ok {
		return nil
	}
	var out []string
	for _, item := range items {
		if s, ok := item.text(); ok {
			out = append(out, s)
		}
	}
	return out
}
