package probe

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Mode says what a [Proxy] does to an exchange: a request and its answer.
type Mode string

const (
	// Pass does nothing.
	Pass Mode = "pass"

	// DropRequest reads the request and closes the connection. Nothing reaches
	// upstream.
	DropRequest Mode = "drop-request"

	// ResetRequest is DropRequest, but the connection is reset (TCP RST).
	ResetRequest Mode = "reset-request"

	// FailBefore answers with [Fault.Status] in place of upstream, which never
	// sees the request.
	FailBefore Mode = "fail-before"

	// DropResponse lets upstream answer to the end and closes the connection
	// without a byte of the answer.
	DropResponse Mode = "drop-response"

	// Reset is DropResponse, but the connection is reset (TCP RST).
	Reset Mode = "reset"

	// DelayResponse holds the answer back for [Fault.Delay] once its head is here.
	DelayResponse Mode = "delay-response"

	// DuplicateRequest sends the request twice, each time over a connection of its
	// own: the second time when the first answer has ended, whatever it was. The
	// first answer is thrown away and the client gets the second one: that of
	// upstream to a repetition. A request with a body over [MaxHeld] is sent once
	// and counted in [Summary.NotDuplicated].
	DuplicateRequest Mode = "duplicate-request"

	// HalfBody lets upstream answer to the end, sends the head and the first half
	// of the body, at most [MaxHeld] bytes, and closes the connection. The head has
	// the Content-Length of the whole body, however upstream framed it, so that
	// the client can tell. Of an answer without a body nothing is sent: its head
	// alone would be all of it.
	HalfBody Mode = "half-body"
)

// MaxHeld is how many bytes of one body a [Proxy] holds in memory (1 MiB). What
// happens to longer ones is told at the modes that hold any.
const MaxHeld = 1 << 20

// Fault is a mode and what it needs to know.
type Fault struct {
	Mode Mode

	// Delay is for DelayResponse, where it must be positive, and for no other mode.
	Delay time.Duration

	// Status is for FailBefore, where it must be 400 to 599, and for no other mode.
	Status int
}

// ParseFault reads what [Fault.String] writes: a mode, and after "=" the delay of
// delay-response (required) or the status of fail-before (503 if there is none).
func ParseFault(s string) (Fault, error) {
	mode, value, valued := strings.Cut(s, "=")
	f := Fault{Mode: Mode(mode)}
	switch {
	case f.Mode == DelayResponse && valued:
		d, err := time.ParseDuration(value)
		if err != nil {
			return Fault{}, fmt.Errorf("probe: %q: the delay is a duration like 600ms", s)
		}
		f.Delay = d
	case f.Mode == FailBefore && valued:
		n, err := strconv.Atoi(value)
		if err != nil {
			return Fault{}, fmt.Errorf("probe: %q: the status is a number like 503", s)
		}
		f.Status = n
	case f.Mode == FailBefore:
		f.Status = http.StatusServiceUnavailable
	case valued:
		return Fault{}, fmt.Errorf("probe: %q: mode %q takes no value", s, mode)
	}
	if err := f.Validate(); err != nil {
		return Fault{}, err
	}
	return f, nil
}

// Validate refuses a mode that is not known, and values that do not fit it.
func (f Fault) Validate() error {
	switch f.Mode {
	case Pass, DropRequest, ResetRequest, DropResponse, Reset, DuplicateRequest, HalfBody, DelayResponse, FailBefore:
	default:
		return fmt.Errorf("probe: unknown mode %q", f.Mode)
	}
	var faults []error
	switch {
	case f.Mode == DelayResponse && f.Delay <= 0:
		faults = append(faults, errors.New("probe: delay-response needs a positive delay, like delay-response=600ms"))
	case f.Mode != DelayResponse && f.Delay != 0:
		faults = append(faults, fmt.Errorf("probe: mode %s takes no delay", f.Mode))
	}
	switch {
	case f.Mode == FailBefore && (f.Status < 400 || f.Status > 599):
		faults = append(faults, fmt.Errorf("probe: fail-before needs a status from 400 to 599, not %d", f.Status))
	case f.Mode != FailBefore && f.Status != 0:
		faults = append(faults, fmt.Errorf("probe: mode %s takes no status", f.Mode))
	}
	return errors.Join(faults...)
}

// String is the fault as [ParseFault] reads it.
func (f Fault) String() string {
	switch f.Mode {
	case DelayResponse:
		return string(f.Mode) + "=" + f.Delay.String()
	case FailBefore:
		return string(f.Mode) + "=" + strconv.Itoa(f.Status)
	}
	return string(f.Mode)
}
