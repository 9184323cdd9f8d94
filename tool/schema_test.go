package tool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckNamesPlaceAndRule(t *testing.T) {
	const schema = `{
	  "type": "object",
	  "required": ["id"],
	  "additionalProperties": {"type": "string", "maxLength": 3},
	  "properties": {
	    "id": {"$ref": "#/$defs/id"},
	    "amount": {"allOf": [{"type": "number"}, {"exclusiveMinimum": 0.1, "maximum": 9223372036854775807, "multipleOf": 0.5}]},
	    "colour": {"enum": ["red", "green"]},
	    "list": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "required": ["a", "b"], "additionalProperties": false, "properties": {"a": {}, "b": {}}}},
	    "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
	    "never": {"not": {}},
	    "code": {"type": ["string", "null"], "minLength": 2, "pattern": "^[a-z]+$"}
	  },
	  "$defs": {"id": {"type": "integer"}}
	}`
	check, err := Check([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	if err := check([]byte(`{"id":1e2,"amount":9223372036854775807,"colour":"red","list":[{"a":1,"b":2}],"either":null,"code":"ok","x":"abc"}`)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{`{`, "args: not valid JSON"},
		{`[]`, "args: must be object, not array"},
		{`{}`, "args: must have the member id"},
		{`{"id":"secret"}`, "args/id: must be integer, not string"},
		{`{"id":1.5}`, "args/id: must be integer, not a fraction"},
		{`{"id":1,"amount":0}`, "args/amount: must be more than 0.1"},
		{`{"id":1,"amount":9223372036854775808}`, "args/amount: must be at most 9223372036854775807"},
		{`{"id":1,"amount":0.75}`, "args/amount: must be a multiple of 0.5"},
		{`{"id":1,"colour":"secret"}`, `args/colour: must be one of ["red","green"]`},
		{`{"id":1,"list":[]}`, "args/list: must have at least 1 items"},
		{`{"id":1,"list":[{"a":1,"b":2},{}]}`, "args/list/1: must have the member a, b"},
		{`{"id":1,"list":[{"a":1,"b":2,"z":1,"y":2}]}`, "args/list/0: must not have the member y"},
		{`{"id":1,"either":"","never":1}`, "args/never: does not fit the schema"},
		{`{"id":1,"either":5}`, "args/either: breaks the rule anyOf"},
		{`{"id":1,"code":"s"}`, "args/code: must have at least 2 characters"},
		{`{"id":1,"code":"SECRET"}`, "args/code: must match the pattern ^[a-z]+$"},
		{`{"id":1,"x":"secret"}`, "args/x: must have at most 3 characters"},
		{`{"id":1,"secret name":1}`, "args/…: must be string, not number"},
		{`{"id":1,"` + strings.Repeat("secret", 9) + `":1}`, "args/…: must be string, not number"},
		{`{"id":"x","amount":"x","colour":1,"list":1,"either":1,"never":1,"code":1,"z":1}`, "args/amount: must be number, not string"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			for range 20 { // the validator's order is random
				err := check([]byte(tc.args))
				wantInvalid(t, err, "secret", "SECRET")
				if got := err.Error(); !strings.HasSuffix(got, ": "+tc.want) {
					t.Fatalf("got %q, want %q", got, tc.want)
				}
			}
		})
	}
}

func TestCheckRefusesSchemas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, schema := range map[string]string{
		"not JSON":                  `{`,
		"two documents":             `{} {}`,
		"not a schema":              `{"type": "integr"}`,
		"bad pattern":               `{"pattern": "("}`,
		"refers to a file":          `{"$ref": "file://` + file + `"}`,
		"refers to a path":          `{"$ref": "` + file + `"}`,
		"refers to a relative path": `{"$ref": "other.json"}`,
		"refers to a host":          `{"$ref": "https://example.org/schema.json"}`,
		"refers nowhere":            `{"$ref": "#/$defs/x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Check([]byte(schema)); err == nil {
				t.Error("was accepted")
			}
		})
	}
}

// The largest bodies and the longest numbers that idem lets through.
func TestCheckAtTheLimits(t *testing.T) {
	check, err := Check([]byte(`{"type":"object","properties":{
	  "n":{"type":"integer","minimum":1,"maximum":9223372036854775807},
	  "list":{"items":{"type":"number","maximum":5}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	digits := strings.Repeat("9", 1000)
	for name, n := range map[string]string{
		"long": digits, "long fraction": "0." + digits, "long and large": digits + "e1000", "long and small": digits + "e-1000",
	} {
		t.Run(name, func(t *testing.T) { wantInvalid(t, check([]byte(`{"n":`+n+`}`)), "999") })
	}
	t.Run("many long numbers", func(t *testing.T) {
		n := digits + "e-1000"
		if err := check([]byte(`{"list":[` + strings.Repeat(n+",", mib/len(n)-2) + n + `]}`)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("many large numbers", func(t *testing.T) {
		wantInvalid(t, check([]byte(`{"list":[`+strings.Repeat("1e1000,", mib/32)+`1]}`)))
	})
	t.Run("many faults", func(t *testing.T) {
		wantInvalid(t, check([]byte(`{"list":[`+strings.Repeat("9,", mib/8)+`9]}`)))
	})
	t.Run("one large string", func(t *testing.T) {
		if err := check([]byte(`{"text":"` + strings.Repeat("x", mib) + `"}`)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("deep", func(t *testing.T) {
		if err := check([]byte(`{"x":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `}`)); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	check, args := sample(b, "charge").Check, []byte(`{"amount":100,"currency":"EUR"}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := check(args); err != nil {
			b.Fatal(err)
		}
	}
}
