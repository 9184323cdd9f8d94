package tool

import (
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/idem"
)

// schema reads a JSON Schema, as JSON: in the order of the file, and numbers
// digit by digit.
func (v value) schema() []byte {
	v.origin = nil // what is wrong in here has nothing to do with other fields
	m, ok := v.mapping()
	if !ok {
		return nil
	}
	if n := size(v.node); n > maxSchema {
		v.fault("it has %d values in it; at most %d are allowed", n, maxSchema)
		return nil
	}
	faults := len(v.d.faults)
	doc, ok := v.json(nil)
	if !ok || len(v.d.faults) > faults {
		return nil
	}
	kind, ok := m.get("type")
	if !ok || kind.node.Kind != yaml.ScalarNode || kind.node.Value != "object" {
		if !ok {
			kind = v
		}
		kind.fault("args are always an object; the schema must say type: object")
		return nil
	}
	if _, err := Check(doc); err != nil {
		place, ref, what := schemaFault(err)
		at := v.inside(place)
		if to, ok := v.reference(ref); ok && ref != "" {
			at = to
		}
		at.fault("%s", what)
		return nil
	}
	return doc
}

// maxSchema bounds the values in a schema: with their number the time grows by its
// square that the validator takes to compile it.
const maxSchema = 5000

// size is how many values there are in one, itself included.
func size(n *yaml.Node) int {
	all := 1
	for i, c := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			all += size(c)
		}
	}
	return all
}

// json appends the value as JSON.
func (v value) json(b []byte) ([]byte, bool) {
	fine := true
	switch v.node.Kind {
	case yaml.MappingNode:
		m, ok := v.mapping()
		fine = ok
		b = append(b, '{')
		for i, f := range m.all {
			if i > 0 {
				b = append(b, ',')
			}
			name, ok := f.literal(f.name)
			b = append(appendText(b, name), ':')
			fine = fine && ok
			if b, ok = f.json(b); !ok {
				fine = false
			}
		}
		return append(b, '}'), fine
	case yaml.SequenceNode:
		items, _ := v.list(0)
		b = append(b, '[')
		for i, item := range items {
			if i > 0 {
				b = append(b, ',')
			}
			var ok bool
			if b, ok = item.json(b); !ok {
				fine = false
			}
		}
		return append(b, ']'), fine
	case yaml.ScalarNode:
	default:
		v.fault("must be a value")
		return b, false
	}
	switch scalarOf(v.node) {
	case scalarText:
		s, ok := v.literal(v.node.Value)
		return appendText(b, s), ok
	case scalarNumber:
		// Exponents of many millions take the validator for ever.
		if _, err := idem.Canonical([]byte(v.node.Value)); err != nil {
			v.fault("the number is out of bounds: at most 1000 digits, and an exponent of at most 1000")
			return b, false
		}
		return append(b, v.node.Value...), true
	case scalarTrue, scalarFalse, scalarNull:
		return append(b, v.node.Value...), true
	case scalarNothing:
		v.fault("there is no value; write one, or null, or {}")
	default:
		v.fault("%s is not JSON; quote it if text is meant, else write it as JSON does", clip(v.node.Value, 40))
	}
	return b, false
}

// appendText appends a JSON string.
func appendText(b []byte, s string) []byte {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string can always be encoded
	}
	return append(b, strings.TrimSuffix(text.String(), "\n")...)
}

// inside finds the value at a place of a schema, or the nearest one around it.
func (v value) inside(place []string) value {
	for _, name := range place {
		next, ok := v.child(name)
		if !ok {
			return v
		}
		v = next
	}
	return v
}

// reference finds what refers to something.
func (v value) reference(to string) (value, bool) {
	for i, n := range v.node.Content {
		name := strconv.Itoa(i)
		if v.node.Kind == yaml.MappingNode {
			if i%2 == 0 {
				continue
			}
			name = v.node.Content[i-1].Value
		}
		c, ok := v.child(name)
		if !ok {
			continue
		}
		if document, _, _ := strings.Cut(n.Value, "#"); name == "$ref" && (n.Value == to || document == to) {
			return c, true
		}
		if found, ok := c.reference(to); ok {
			return found, true
		}
	}
	return value{}, false
}

func (v value) child(name string) (value, bool) {
	switch v.node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(v.node.Content); i += 2 {
			if key := v.node.Content[i]; key.Value == name {
				return v.below(key, v.node.Content[i+1], "."+plainName(name)), true
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && 0 <= i && i < len(v.node.Content) {
			return v.below(nil, v.node.Content[i], "["+name+"]"), true
		}
	}
	return value{}, false
}

// schemaBase is what the validator takes relative references from.
const schemaBase = "https://idemd.invalid/"

// schemaFault says what Check has against a schema, and in which place of it or
// by which reference in it, as far as that is known.
func schemaFault(err error) (place []string, ref, what string) {
	var (
		mismatch *jsonschema.SchemaValidationError
		rule     *jsonschema.ValidationError
		pattern  *jsonschema.InvalidRegexError
		load     *jsonschema.LoadURLError
		pointer  *jsonschema.JSONPointerNotFoundError
		anchor   *jsonschema.AnchorNotFoundError
	)
	switch {
	case errors.As(err, &mismatch) && errors.As(mismatch.Err, &rule):
		leaf := firstCause(rule)
		place = leaf.InstanceLocation
		if n := len(place); n > 0 && place[n-1] == "type" {
			return place, "", "must be array, boolean, integer, null, number, object or string, or a list of them"
		}
		return place, "", "this is not JSON Schema: it " + broken(leaf.ErrorKind)
	case errors.As(err, &pattern):
		return fragment(pattern.URL), "", "this is not a regular expression (RE2)"
	case errors.As(err, &load):
		ref = strings.TrimPrefix(load.URL, schemaBase)
		return nil, ref, "it refers to " + strconv.Quote(clip(ref, 100)) + "; a schema must stand alone, and may refer to its own parts only"
	case errors.As(err, &pointer):
		ref = strings.TrimPrefix(pointer.URL, schemaURL)
	case errors.As(err, &anchor):
		ref = strings.TrimPrefix(anchor.Reference, schemaURL)
	}
	if ref != "" {
		return nil, ref, "it refers to " + strconv.Quote(clip(ref, 100)) + ", which is not there"
	}
	line, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "tool: schema: "), "\n")
	return nil, "", "this is not a usable JSON Schema: " + clip(strings.ReplaceAll(line, schemaURL, ""), 200)
}

// firstCause is the fault that [firstFault] picks.
func firstCause(v *jsonschema.ValidationError) *jsonschema.ValidationError {
	if !gathers(v.ErrorKind) || len(v.Causes) == 0 {
		return v
	}
	least := firstCause(v.Causes[0])
	for _, c := range v.Causes[1:] {
		next := firstCause(c)
		a, b := strings.Join(next.InstanceLocation, "/"), strings.Join(least.InstanceLocation, "/")
		if a < b || a == b && broken(next.ErrorKind) < broken(least.ErrorKind) {
			least = next
		}
	}
	return least
}

// fragment reads the JSON pointer at the end of a URL.
func fragment(of string) []string {
	_, text, _ := strings.Cut(of, "#")
	text, err := url.PathUnescape(text)
	if err != nil || !strings.HasPrefix(text, "/") {
		return nil
	}
	return parseMember(text)
}
