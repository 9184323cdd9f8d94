package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

const chaosSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "do": {"enum": ["return", "fail", "hang", "deaf", "panic", "exit"], "description": "What to do after the line is written; return by default."},
    "retryable": {"type": "boolean", "description": "For fail."},
    "seconds": {"type": "number", "minimum": 0, "maximum": 60, "description": "For deaf; 1 by default."},
    "found": {"enum": [true, false, "error"], "description": "What a verification answers; error, and nothing at all, means no answer."}
  }
}`

const (
	// chaosTimeout is the time-out of the chaos tools: short, so that a run
	// with many hangs ends, and longer than a sync on a busy disk.
	chaosTimeout = 2 * time.Second

	// chaosSettle must be at least chaosTimeout, as for every tool. The line is
	// written first, so more would only be waiting.
	chaosSettle = 2 * time.Second

	maxDeaf = time.Minute
)

var chaosDeeds = []string{"return", "fail", "hang", "deaf", "panic", "exit"}

// Chaos returns the tools of a chaos run, ext_rerun, ext_verify and ext_hold,
// and what closes their file. They stand for somebody else's system: the first
// thing that an attempt does is to append {"effect_id","attempt"} to the file,
// one line, synced. Then it does what args.do says. So the file knows of every
// dispatch, whatever became of the answer.
//
// The file is opened when the first line is written, and made if need be. exit
// has to end the process at once, as kill -9 would.
func Chaos(file string, exit func()) ([]*idem.Tool, io.Closer) {
	out := &outside{path: file}
	check := mustCheck(chaosSchema)
	declare := func(name string, rerun idem.Rerun, description string) *idem.Tool {
		return &idem.Tool{
			Name:        name,
			Description: "Chaos: " + description,
			Effects:     idem.EffectsExternal,
			Rerun:       rerun,
			Schema:      []byte(chaosSchema),
			Timeout:     chaosTimeout,
			Check:       check,
			Invoke: func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
				return out.invoke(ctx, inv, exit)
			},
		}
	}
	verified := declare("ext_verify", idem.RerunVerify, "an external effect whose downstream can be asked.")
	verified.Settle, verified.Verify = chaosSettle, verify
	return []*idem.Tool{
		declare("ext_rerun", idem.RerunYes, "an external effect whose downstream honours the effect id."),
		verified,
		declare("ext_hold", idem.RerunHold, "an external effect that only a person can find out about."),
	}, out
}

// outside is the file that stands for somebody else's system.
type outside struct {
	path string

	mu     sync.Mutex // one line at a time, so that no two are mixed
	file   *os.File
	closed bool
}

func (o *outside) invoke(ctx context.Context, inv idem.Invocation, exit func()) (idem.Result, error) {
	a, err := parseArgs(inv.Args, "do", "retryable", "seconds")
	if err != nil {
		return idem.Result{}, err
	}
	do, err := a.text("do", "return")
	if err != nil {
		return idem.Result{}, err
	}
	if !slices.Contains(chaosDeeds, do) {
		return idem.Result{}, errArgs // now, while it is still definite
	}
	retryable, err := a.flag("retryable")
	if err != nil {
		return idem.Result{}, err
	}
	deaf := time.Second
	if a.has("seconds") {
		if deaf, err = a.duration("seconds", maxDeaf); err != nil {
			return idem.Result{}, err
		}
	}
	line := fmt.Appendf(nil, `{"effect_id":"%s","attempt":%d}`, inv.EffectID, inv.Attempt)
	if err := o.append(line); err != nil {
		return idem.Result{}, err
	}
	done := idem.Result{Output: line}
	switch do {
	case "fail":
		return idem.Result{}, &idem.Failure{Code: idem.FailureTool, Message: "failed as asked", Retryable: retryable}
	case "hang":
		<-ctx.Done()
		return idem.Result{}, ctx.Err()
	case "deaf":
		return done, pause(context.WithoutCancel(ctx), deaf)
	case "panic":
		panic("tool: a chaos tool was asked to panic")
	case "exit":
		exit()
		return idem.Result{}, errors.New("tool: the process was told to end and goes on")
	default:
		return done, nil
	}
}

// append writes one line and syncs it. The error is a Failure as long as it is
// certain that nothing was written.
func (o *outside) append(line []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return &idem.Failure{Code: idem.FailureTool, Message: "the outside is closed", Retryable: true}
	}
	if o.file == nil {
		f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return &idem.Failure{Code: idem.FailureTool, Message: "the outside cannot be reached", Retryable: true}
		}
		o.file = f
	}
	if _, err := o.file.Write(append(line[:len(line):len(line)], '\n')); err != nil {
		return fmt.Errorf("tool: write the outside: %w", err)
	}
	if err := o.file.Sync(); err != nil {
		return fmt.Errorf("tool: sync the outside: %w", err)
	}
	return nil
}

// Close closes the file. Nothing is written afterwards.
func (o *outside) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	o.file = nil
	return err
}

// verify answers what args.found says.
func verify(_ context.Context, inv idem.Invocation) (idem.Verification, error) {
	a, err := parseArgs(inv.Args, "found")
	if err != nil {
		return idem.Verification{}, err
	}
	switch found := a.get("found"); found.Kind() {
	case jsontext.KindTrue:
		out := fmt.Appendf(nil, `{"effect_id":"%s","verified":true}`, inv.EffectID)
		return idem.Verification{Found: true, Result: idem.Result{Output: out}}, nil
	case jsontext.KindFalse:
		return idem.Verification{}, nil
	default:
		return idem.Verification{}, errors.New("tool: no answer, as asked")
	}
}
