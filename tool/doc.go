// Package tool holds what a call can run: the samples, the tools that a file
// declares, and the external tools that a chaos run asks for. A tool is a
// declaration, [idem.Tool]; this package only makes declarations, it decides
// nothing about calls.
//
// It promises that a local tool is a pure function of its invocation: the same
// invocation gives the same bytes, on every attempt and in every process, so
// that running it again can do no harm. It promises that numbers are exact: no
// value of a caller goes through a float64 on its way.
//
// Of configured tools it promises that one attempt is one request on the wire, or
// one run of a program, and that their error is an [idem.Failure] only where it is
// certain that nothing was done.
//
// It does not promise that args were checked when a tool is invoked: a call
// that was accepted under an older schema arrives as it is, and a tool answers
// it with a failure, never with a panic.
//
// # The tools file
//
// [Load] reads it (config.go), into [Spec]s; [Build] makes tools of them. It is YAML
// of the strict kind: one document, no unknown field, no name twice, no anchors,
// aliases, merge keys and tags, and no value that some readers of YAML take for
// another (yes, 0x10, 1_000, .inf, dates) where text or JSON is wanted. Numbers stay as they are
// written. Everything that is wrong is reported at once, with line and column.
//
// Fields must fit one another (config_relation.go): a tool can run again after a
// lost answer only if its downstream is declared to honour the effect id, a status
// that leaves open what was done can be no definite answer unless it does, and
// so on. [Spec.Explain] says in plain words what follows for each tool.
//
// # Secrets
//
// The value of a header or of a program's variable can hold ${NAME}, a variable of
// the environment, or be {file: PATH, prefix: TEXT}, where prefix is optional and a
// relative path begins at the tools file's directory. A URL can hold ${NAME} in its path
// and its query, each as one piece that is escaped. Nowhere else is a variable
// replaced; $${ stands for the characters ${. What is missing or empty is a fault.
// With secrets put in, each of these has at most 64 KiB, and all of a file 16 MiB.
//
// No error and no log line of this package shows a secret, and printing a
// [Spec] shows its name.
//
// It may import idem, a JSON tokenizer, a JSON Schema validator and a YAML parser. It
// knows neither stores nor the runner.
package tool

import "github.com/idemd/idemd/idem"

// Samples returns the tools that are there unless switched off: charge,
// send_email, sleep and fail. Every call builds new declarations.
func Samples() []*idem.Tool {
	return []*idem.Tool{charge(), sendEmail(), sleep(), fail()}
}
