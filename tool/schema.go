package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/idemd/idemd/idem"
)

// schemaURL is what a schema is called while it is compiled. It must be
// absolute, or the validator makes it so from the working directory, and have a
// path, or a relative reference means the schema itself.
const schemaURL = "https://idemd.invalid/args"

// Check compiles a JSON Schema (draft 2020-12 unless it names another) into
// the function that says whether args fit it: nil, or an *idem.Error with
// CodeInvalidArguments that names the place and the rule. Of several faults it
// always names the same one. It shows no values: a member's name is the most
// that it repeats of what the caller sent, and only a short plain one.
//
// The schema must stand alone: it can refer to its own parts, and to nothing
// that would have to be read from a disk or a network; and not to itself about the
// same value, which nothing would fit.
//
// The args must be within the limits of idem's canonical form. A number with an
// exponent of many millions makes the validator panic.
func Check(schema []byte) (func(args []byte) error, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("tool: the schema is not JSON: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nil) // its own loader would read any file that a schema refers to
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, fmt.Errorf("tool: schema: %w", err)
	}
	s, err := c.Compile(schemaURL)
	if err != nil {
		return nil, fmt.Errorf("tool: schema: %w", err)
	}
	if loops(s) {
		return nil, errors.New("tool: schema: it comes back to itself by $ref without a step into the value, so that nothing fits it")
	}
	return func(args []byte) error { return check(s, args) }, nil
}

// mustCheck compiles a schema that is part of this program.
func mustCheck(schema string) func(args []byte) error {
	c, err := Check([]byte(schema))
	if err != nil {
		panic(err)
	}
	return c
}

func check(s *jsonschema.Schema, args []byte) error {
	doc, err := document(args)
	if err != nil {
		return idem.Errorf(idem.CodeInvalidArguments, "args: not valid JSON")
	}
	err = s.Validate(doc)
	if err == nil {
		return nil
	}
	var v *jsonschema.ValidationError
	if !errors.As(err, &v) {
		return idem.Errorf(idem.CodeInvalidArguments, "args: do not fit the schema")
	}
	f := firstFault(v)
	return idem.Errorf(idem.CodeInvalidArguments, "%s: %s", clip(f.place, 200), clip(f.rule, 300))
}

// fault is one rule broken at one place.
type fault struct{ place, rule string }

func (f fault) before(g fault) bool {
	if f.place != g.place {
		return f.place < g.place
	}
	return f.rule < g.rule
}

// firstFault picks one of the faults. The validator walks members in the random
// order of a map, so the least is taken, not the first.
func firstFault(v *jsonschema.ValidationError) fault {
	if gathers(v.ErrorKind) && len(v.Causes) > 0 {
		least := firstFault(v.Causes[0])
		for _, c := range v.Causes[1:] {
			if f := firstFault(c); f.before(least) {
				least = f
			}
		}
		return least
	}
	place := "args"
	for _, name := range v.InstanceLocation {
		place += "/" + plainName(name)
	}
	return fault{place: place, rule: broken(v.ErrorKind)}
}

// gathers reports whether a fault only stands for those below it, each of which
// breaks the schema by itself. Below an anyOf none of them does.
func gathers(k jsonschema.ErrorKind) bool {
	switch k.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		return true
	}
	return false
}

// broken says what a rule wants, from the schema alone.
func broken(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		got := k.Got
		if got == "number" && slices.Contains(k.Want, "integer") {
			got = "a fraction"
		}
		return "must be " + strings.Join(k.Want, " or ") + ", not " + got
	case *kind.Required:
		return "must have the member " + strings.Join(k.Missing, ", ")
	case *kind.AdditionalProperties:
		names := make([]string, len(k.Properties))
		for i, n := range k.Properties {
			names[i] = plainName(n)
		}
		return "must not have the member " + slices.Min(names)
	case *kind.Minimum:
		return "must be at least " + exact(k.Want)
	case *kind.Maximum:
		return "must be at most " + exact(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + exact(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + exact(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + exact(k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *kind.Enum:
		want, err := json.Marshal(k.Want)
		if err != nil {
			break
		}
		return "must be one of " + string(want)
	case *kind.Pattern:
		return "must match the pattern " + k.Want
	case *kind.Format:
		return "must be a valid " + k.Want
	}
	if path := k.KeywordPath(); len(path) > 0 {
		return "breaks the rule " + strings.Join(path, "/")
	}
	return "does not fit the schema"
}

// plainName gives a member's name back if it can be nothing but a name.
func plainName(s string) string {
	if s == "" || len(s) > 40 {
		return "…"
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return "…"
		}
	}
	return s
}

// exact writes a number of a schema in full; the validator's own messages go
// through float64.
func exact(r *big.Rat) string {
	if digits, ok := r.FloatPrec(); ok {
		return r.FloatString(digits)
	}
	return r.RatString()
}

// clip cuts s to at most limit bytes, between two characters.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	limit -= len("…")
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}
