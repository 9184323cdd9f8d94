package tool

import (
	"strings"
	"testing"
)

func schemaText(schema string) string {
	return "version: 1\ntools:\n- name: a\n  effects: none\n  http: {method: GET, url: http://h/}\n  input_schema:\n    type: object\n" + schema
}

// A schema comes out as it is written: its order, and each number digit by digit.
func TestSchemaIsExact(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"beyond a float":      {"    maximum: 9007199254740993\n", `"maximum":9007199254740993`},
		"a decimal":           {"    maximum: 0.1000000000000000055511151231257827\n", `"maximum":0.1000000000000000055511151231257827`},
		"beyond every float":  {"    maximum: 1e400\n", `"maximum":1e400`},
		"trailing zeros":      {"    maximum: 1.50\n", `"maximum":1.50`},
		"minus zero":          {"    minimum: -0\n", `"minimum":-0`},
		"exponent":            {"    minimum: -1.5E+3\n", `"minimum":-1.5E+3`},
		"order":               {"    properties: {b: {}, a: true, c: false}\n    default: null\n", `"properties":{"b":{},"a":true,"c":false},"default":null`},
		"texts":               {"    enum: ['yes', \"0x10\", \"1\", abc, 'null', \"\\u00e9<&>\\n\", 10.0.0.1, a:1, y, n, '']\n", `"enum":["yes","0x10","1","abc","null","é<&>\n","10.0.0.1","a:1","y","n",""]`},
		"blocks":              {"    description: |\n      two\n      lines\n    $comment: >-\n      one\n      line\n", `"description":"two\nlines\n","$comment":"one line"`},
		"a dollar":            {"    description: $${x} $ref\n", `"description":"${x} $ref"`},
		"names that are odd":  {"    properties: {'yes': {}, \"1\": {}, x: {}, y: {}, '': {}}\n", `"properties":{"yes":{},"1":{},"x":{},"y":{},"":{}}`},
		"a part of its own":   {"    properties: {a: {$ref: '#/$defs/b'}}\n    $defs: {b: {type: string}}\n", `"properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"type":"string"}}`},
		"a tree":              {"    properties: {a: {$ref: '#'}, b: {items: {$ref: '#/$defs/c'}}}\n    $defs: {c: {allOf: [{$ref: '#/$defs/d'}, {$ref: '#/$defs/d'}]}, d: {items: {$ref: '#/$defs/c'}}}\n", `"properties":{"a":{"$ref":"#"},"b":{"items":{"$ref":"#/$defs/c"}}},"$defs":{"c":{"allOf":[{"$ref":"#/$defs/d"},{"$ref":"#/$defs/d"}]},"d":{"items":{"$ref":"#/$defs/c"}}}`},
		"a thousand digits":   {"    maximum: " + strings.Repeat("9", 1000) + "\n", `"maximum":` + strings.Repeat("9", 1000)},
		"an older draft":      {"    $schema: http://json-schema.org/draft-07/schema#\n", `"$schema":"http://json-schema.org/draft-07/schema#"`},
		"line and separators": {"    description: \"a\\u2028b\"\n", `"description":"a\u2028b"`},
	} {
		t.Run(name, func(t *testing.T) {
			specs, faults := loadText(t, schemaText(tc.yaml), nil)
			if faults != nil {
				t.Fatal(faults)
			}
			if got, want := string(specs[0].Schema), `{"type":"object",`+tc.want+`}`; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestSchemaFaults(t *testing.T) {
	const odd = " is not JSON; quote it if text is meant, else write it as JSON does"
	for name, tc := range map[string]struct{ yaml, want string }{
		"yes":                {"    default: yes\n", "8:14: tool a, input_schema.default: yes" + odd},
		"Off":                {"    default: Off\n", "8:14: tool a, input_schema.default: Off" + odd},
		"True":               {"    default: True\n", "8:14: tool a, input_schema.default: True" + odd},
		"tilde":              {"    default: ~\n", "8:14: tool a, input_schema.default: ~" + odd},
		"hexadecimal":        {"    maximum: 0x10\n", "8:14: tool a, input_schema.maximum: 0x10" + odd},
		"octal":              {"    maximum: 0o17\n", "8:14: tool a, input_schema.maximum: 0o17" + odd},
		"leading zero":       {"    maximum: 017\n", "8:14: tool a, input_schema.maximum: 017" + odd},
		"binary":             {"    maximum: 0b11\n", "8:14: tool a, input_schema.maximum: 0b11" + odd},
		"underscores":        {"    maximum: 1_000\n", "8:14: tool a, input_schema.maximum: 1_000" + odd},
		"infinity":           {"    maximum: .inf\n", "8:14: tool a, input_schema.maximum: .inf" + odd},
		"minus infinity":     {"    maximum: -.Inf\n", "8:14: tool a, input_schema.maximum: -.Inf" + odd},
		"not a number":       {"    maximum: .nan\n", "8:14: tool a, input_schema.maximum: .nan" + odd},
		"plus":               {"    maximum: +1\n", "8:14: tool a, input_schema.maximum: +1" + odd},
		"no digit before":    {"    maximum: .5\n", "8:14: tool a, input_schema.maximum: .5" + odd},
		"no digit after":     {"    maximum: 5.\n", "8:14: tool a, input_schema.maximum: 5." + odd},
		"base 60":            {"    maximum: 190:20:30\n", "8:14: tool a, input_schema.maximum: 190:20:30" + odd},
		"date":               {"    const: 2026-11-29\n", "8:12: tool a, input_schema.const: 2026-11-29" + odd},
		"time":               {"    const: 2026-11-29T16:00:00Z\n", "8:12: tool a, input_schema.const: 2026-11-29T16:00:00Z" + odd},
		"nothing":            {"    properties:\n      x:\n", "9:9: tool a, input_schema.properties.x: there is no value; write one, or null, or {}"},
		"in a list":          {"    enum: [a, yes]\n", "8:15: tool a, input_schema.enum[1]: yes" + odd},
		"a name that is yes": {"    properties: {yes: {}}\n", "8:18: tool a, input_schema.properties: a name must be text; quote it if text is meant"},
		"a name, a number":   {"    properties: {1: {}}\n", "8:18: tool a, input_schema.properties: a name must be text; quote it if text is meant"},
		"a name twice":       {"    properties: {x: {}, 'x': {}}\n", `8:25: tool a, input_schema.properties: "x" is there already, on line 8`},
		"a name by $${":      {"    properties: {'a${b}': {}}\n", "8:18: tool a, input_schema.properties.…: a variable ${...} can stand only in a URL, in the value of a header and in a value of env; write $${ for the characters ${"},
		"a variable":         {"    title: ${HOME}\n", "8:12: tool a, input_schema.title: a variable ${...} can stand only in a URL, in the value of a header and in a value of env; write $${ for the characters ${"},
		"too large":          {"    maximum: 1e1001\n", "8:14: tool a, input_schema.maximum: the number is out of bounds: at most 1000 digits, and an exponent of at most 1000"},
		"much too large":     {"    maximum: 1e999999999\n", "8:14: tool a, input_schema.maximum: the number is out of bounds: at most 1000 digits, and an exponent of at most 1000"},
		"too many digits":    {"    maximum: 1" + strings.Repeat("0", 1000) + "1\n", "8:14: tool a, input_schema.maximum: the number is out of bounds: at most 1000 digits, and an exponent of at most 1000"},

		"too many values": {"    enum: [" + strings.Repeat("a,", 5000) + "]\n", "6:3: tool a, input_schema: it has 5003 values in it; at most 5000 are allowed"},

		"type":                    {"    properties:\n      x: {type: integr}\n", "9:17: tool a, input_schema.properties.x.type: must be array, boolean, integer, null, number, object or string, or a list of them"},
		"keyword":                 {"    properties:\n      x: {minimum: low}\n", "9:20: tool a, input_schema.properties.x.minimum: this is not JSON Schema: it must be number, not string"},
		"keyword, range":          {"    properties:\n      x: {minLength: -1}\n", "9:22: tool a, input_schema.properties.x.minLength: this is not JSON Schema: it must be at least 0"},
		"required":                {"    required: order_id\n", "8:15: tool a, input_schema.required: this is not JSON Schema: it must be array, not string"},
		"pattern":                 {"    properties:\n      x: {pattern: '('}\n", "9:20: tool a, input_schema.properties.x.pattern: this is not JSON Schema: it must be a valid regex"},
		"a file":                  {"    properties: {x: {$ref: 'other.json'}}\n", `8:28: tool a, input_schema.properties.x.…: it refers to "other.json"; a schema must stand alone, and may refer to its own parts only`},
		"a host":                  {"    properties: {x: {$ref: 'https://example.org/x'}}\n", `8:28: tool a, input_schema.properties.x.…: it refers to "https://example.org/x"; a schema must stand alone, and may refer to its own parts only`},
		"itself":                  {"    $ref: '#'\n", "6:3: tool a, input_schema: this is not a usable JSON Schema: it comes back to itself by $ref without a step into the value, so that nothing fits it"},
		"itself, by a way around": {"    allOf: [{$ref: '#/$defs/a'}]\n    $defs: {a: {anyOf: [{type: string}, {$ref: '#'}]}}\n", "6:3: tool a, input_schema: this is not a usable JSON Schema: it comes back to itself by $ref without a step into the value, so that nothing fits it"},
		"itself, deep inside":     {"    properties: {a: {items: {$ref: '#/$defs/a'}}}\n    $defs: {a: {not: {$ref: '#/$defs/a'}}}\n", "6:3: tool a, input_schema: this is not a usable JSON Schema: it comes back to itself by $ref without a step into the value, so that nothing fits it"},
		"nowhere":                 {"    properties: {x: {$ref: '#/$defs/x'}}\n", `8:28: tool a, input_schema.properties.x.…: it refers to "#/$defs/x", which is not there`},
		"nowhere, anchor":         {"    properties: {x: {$ref: '#x'}}\n", `8:28: tool a, input_schema.properties.x.…: it refers to "#x", which is not there`},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 { // the validator's order is random
				_, faults := loadText(t, schemaText(tc.yaml), variables{"HOME": "x"})
				wantFaults(t, faults, "f:"+tc.want)
			}
		})
	}
	for name, tc := range map[string]struct{ schema, want string }{
		"no type":    {"{properties: {}}", "6:3: tool a, input_schema: args are always an object; the schema must say type: object"},
		"other type": {"{type: array}", "6:24: tool a, input_schema.type: args are always an object; the schema must say type: object"},
		"two types":  {"{type: [object, 'null']}", "6:18: tool a, input_schema.type: args are always an object; the schema must say type: object"},
		"true":       {"true", "6:17: tool a, input_schema: must be a mapping, name: value; it is true or false"},
		"as text":    {`'{"type":"object"}'`, "6:17: tool a, input_schema: must be a mapping, name: value; it is text"},
		"as JSON":    {`{"type": "object", "maximum": 1e2}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := loadText(t, "version: 1\ntools:\n- name: a\n  effects: none\n  http: {method: GET, url: http://h/}\n  input_schema: "+tc.schema+"\n", nil)
			if tc.want == "" {
				wantFaults(t, faults)
				return
			}
			wantFaults(t, faults, "f:"+tc.want)
		})
	}
}
