package main

import (
	"errors"
	"fmt"
)

// Exit codes of the client commands; the help says them in words.
const (
	exitSucceeded   = 0
	exitFailed      = 1
	exitUsage       = 2
	exitConflict    = 3
	exitNotFound    = 4
	exitUnknown     = 5
	exitPending     = 6
	exitUnavailable = 7
	exitOutput      = 74
)

// exitError ends the program with a code. Without a message there is nothing to
// say that was not said.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }

// exit ends the program with a code and a message.
func exit(code int, format string, args ...any) error {
	return &exitError{code: code, message: fmt.Sprintf(format, args...)}
}

// exitQuietly ends the program with a code; nil for 0.
func exitQuietly(code int) error {
	if code == exitSucceeded {
		return nil
	}
	return &exitError{code: code}
}

// report says what went wrong, once, and gives the exit code. An error without
// a code is 1.
func report(con *console, err error) int {
	if err == nil {
		return exitSucceeded
	}
	if msg := err.Error(); msg != "" {
		con.say("idemd: %s", msg)
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return 1
}
