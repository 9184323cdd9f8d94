// Package tool holds the tools that idemd brings along: the samples, and the
// external tools that a chaos run asks for. A tool is a declaration,
// [idem.Tool]; this package only makes declarations, it runs nothing.
//
// It promises that a local tool is a pure function of its invocation: the same
// invocation gives the same bytes, on every attempt and in every process, so
// that running it again can do no harm. It promises that numbers are exact: no
// value of a caller goes through a float64 on its way.
//
// It does not promise that args were checked when a tool is invoked: a call
// that was accepted under an older schema arrives as it is, and a tool answers
// it with a failure, never with a panic.
//
// It may import idem, a JSON tokenizer and a JSON Schema validator. It knows
// neither stores nor the runner.
package tool

import "github.com/idemd/idemd/idem"

// Samples returns the tools that are there unless switched off: charge,
// send_email, sleep and fail. Every call builds new declarations.
func Samples() []*idem.Tool {
	return []*idem.Tool{charge(), sendEmail(), sleep(), fail()}
}
