package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/idemd/idemd/idem"
)

// holds is what the value of a schema's keyword has in it.
type holds uint8

const (
	holdsValue   holds = iota // no schema
	holdsSchema               // one, or a list of them
	holdsSchemas              // one for each name
)

// keywords are those of JSON Schema, of all drafts that [Check] takes.
var keywords = func() map[string]holds {
	all := make(map[string]holds)
	for h, names := range map[holds]string{
		holdsValue: "$schema $id id $anchor $ref $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $vocabulary $comment " +
			"title description default deprecated readOnly writeOnly examples type enum const " +
			"multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern format " +
			"maxItems minItems uniqueItems maxContains minContains maxProperties minProperties required dependentRequired " +
			"contentEncoding contentMediaType",
		holdsSchema: "additionalProperties items additionalItems not if then else contains propertyNames unevaluatedItems " +
			"unevaluatedProperties contentSchema allOf anyOf oneOf prefixItems",
		holdsSchemas: "properties patternProperties $defs definitions dependentSchemas dependencies",
	} {
		for _, name := range strings.Fields(names) {
			all[name] = h
		}
	}
	return all
}()

// schemaDoubts says what JSON Schema allows and what does nothing: a keyword that
// there is not, most often a typing error, and format, which is not checked from
// draft 2019-09 on. Each is named once.
func schemaDoubts(schema []byte) []string {
	var doc any
	if len(schema) == 0 || json.Unmarshal(schema, &doc) != nil {
		return nil
	}
	found := make(map[string]bool)
	walkSchema(doc, found)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		switch {
		case name != "format":
			out = append(out, fmt.Sprintf("input_schema: JSON Schema has no keyword %q, so that it checks nothing", plainName(name)))
		case !bytes.Contains(schema, []byte("json-schema.org/draft-0")):
			out = append(out, "input_schema: format only says what is meant, and is not checked; use pattern")
		}
	}
	return out
}

// walkSchema finds the keywords of a schema, and of those in it, that do nothing.
func walkSchema(schema any, found map[string]bool) {
	switch s := schema.(type) {
	case []any:
		for _, one := range s {
			walkSchema(one, found)
		}
	case map[string]any:
		for name, v := range s {
			h, known := keywords[name]
			switch {
			case !known && !strings.HasPrefix(name, "x-"), name == "format":
				found[name] = true
			case h == holdsSchema:
				walkSchema(v, found)
			case h == holdsSchemas:
				if named, ok := v.(map[string]any); ok {
					for _, one := range named {
						walkSchema(one, found)
					}
				}
			}
		}
	}
}

// properties are those that a schema names; nil where it names none.
func properties(schema []byte) map[string]json.RawMessage {
	var doc struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &doc) != nil { // true and false are schemas too
		return nil
	}
	return doc.Properties
}

// hasProperty reports whether a schema names the member as a property.
func hasProperty(schema []byte, m member) bool {
	for i, name := range m {
		inner, ok := properties(schema)[name]
		if !ok {
			return false
		}
		if i == len(m)-1 {
			return true
		}
		schema = inner
	}
	return false
}

// pointerDoubts says which pointers lead to nothing that the schema names.
func (s *Spec) pointerDoubts() []string {
	known := properties(s.Schema)
	if len(known) == 0 {
		return nil
	}
	rules := s.Rules
	if rules == nil {
		rules = new(idem.Rules)
	}
	var out []string
	for _, l := range []struct {
		at       string
		pointers []string
	}{{"intent", s.Intent}, {"fingerprint.ignore", rules.Ignore}, {"fingerprint.trim", rules.Trim}, {"fingerprint.nfc", rules.NFC}} {
		for i, p := range l.pointers {
			if name := parseMember(p)[0]; known[name] == nil {
				out = append(out, fmt.Sprintf("%s leads to a member of args that input_schema does not name", item(l.at, i)))
			}
		}
	}
	return out
}
