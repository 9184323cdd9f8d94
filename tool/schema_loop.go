package tool

import (
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// loops reports whether a schema, or one in it, comes back to itself without a step
// into the value that it is about. The validator breaks that off, so that no args fit.
// A list in a list, by the same reference, is no loop.
func loops(s *jsonschema.Schema) bool {
	const open, done = 1, 2
	state := make(map[*jsonschema.Schema]int)
	later := []*jsonschema.Schema{s} // each begins a way of its own
	var visit func(s *jsonschema.Schema) bool
	visit = func(s *jsonschema.Schema) bool {
		if s == nil || state[s] == done {
			return false
		}
		if state[s] == open {
			return true
		}
		state[s] = open
		later = append(later, inside(s)...)
		if slices.ContainsFunc(beside(s), visit) {
			return true
		}
		state[s] = done
		return false
	}
	for len(later) > 0 {
		next := later[len(later)-1]
		later = later[:len(later)-1]
		if visit(next) {
			return true
		}
	}
	return false
}

// beside are the schemas that a schema applies to the same value.
func beside(s *jsonschema.Schema) []*jsonschema.Schema {
	all := slices.Concat([]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf)
	for _, one := range s.DependentSchemas {
		all = append(all, one)
	}
	for _, one := range s.Dependencies {
		all = append(all, schemasOf(one)...)
	}
	return all
}

// inside are the schemas that a schema applies to parts of the value.
func inside(s *jsonschema.Schema) []*jsonschema.Schema {
	all := slices.Concat([]*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems}, s.PrefixItems,
		schemasOf(s.AdditionalProperties), schemasOf(s.Items), schemasOf(s.AdditionalItems))
	for _, one := range s.Properties {
		all = append(all, one)
	}
	for _, one := range s.PatternProperties {
		all = append(all, one)
	}
	return all
}

// schemasOf are those that a keyword has, which can have other things.
func schemasOf(v any) []*jsonschema.Schema {
	switch v := v.(type) {
	case *jsonschema.Schema:
		return []*jsonschema.Schema{v}
	case []*jsonschema.Schema:
		return v
	}
	return nil
}
