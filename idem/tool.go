package idem

import (
	"context"
	"fmt"
	"time"
)

// Effects says where a tool has its side effect.
type Effects string

// The places of an effect.
const (
	EffectsNone     Effects = "none"     // nothing to protect: no effect row
	EffectsLocal    Effects = "local"    // the effect row is the effect: a pure function of args and effect id
	EffectsExternal Effects = "external" // on somebody else's system
)

// Rerun says what a tool allows after an answer was lost (R13).
type Rerun string

// The promises, from the most to the least that is allowed.
const (
	RerunYes    Rerun = "rerun"  // no effect of its own, or downstream honours the effect id
	RerunVerify Rerun = "verify" // ask downstream first
	RerunHold   Rerun = "hold"   // never without a person; the default for anything external
)

// strictness orders promises; an unknown word is the strictest, so that R13
// fails closed.
func (r Rerun) strictness() int {
	switch r {
	case RerunYes:
		return 0
	case RerunVerify:
		return 1
	default:
		return 2
	}
}

func stricter(a, b Rerun) Rerun {
	if a.strictness() >= b.strictness() {
		return a
	}
	return b
}

// DefaultMaxReruns bounds the attempts of a call whose tool sets no bound itself, where
// nobody asks for another: answers are lost time after time, and each time downstream
// does not know of it.
const DefaultMaxReruns = 10

// Invocation is what a tool is given. Args are the caller's bytes, numbers
// exact; a tool must not modify or keep them.
type Invocation struct {
	CallID   CallID
	EffectID string
	Attempt  int
	Args     []byte

	// Trace is the W3C traceparent that came with the request, for a tool that
	// forwards it (see [ValidTraceparent]); empty where there was none, or where it
	// was not kept: it rides in memory, and a call of an earlier life has none.
	Trace string
}

// Verification is what downstream knows of an effect id.
type Verification struct {
	Found  bool
	Result Result // what was found
}

// Tool is a declaration: what a tool promises, and how it is run.
type Tool struct {
	Name        string // see ValidName
	Description string
	Effects     Effects
	Rerun       Rerun
	Schema      []byte // JSON Schema of args, shown to clients; nil where anything goes

	// Timeout ends an attempt's context. Zero takes the runner's. Too low turns
	// slow successes into doubt, too high keeps a worker on a dead peer.
	Timeout time.Duration

	// Instant promises that Invoke only computes: it waits for nothing, ends soon
	// for all args that Check accepts, and never ends its goroutine. It is then
	// run without a goroutine and a time-out of its own. Only for EffectsLocal.
	// Where the promise is broken, the request or the worker hangs with the tool.
	Instant bool

	// Settle is how long after a dispatch a verification's "not found" is not
	// believed yet, since downstream may still be at work. Zero means twice the
	// time-out. Only for RerunVerify.
	Settle time.Duration

	// Concurrency bounds how many calls of the tool run at once in a process; zero
	// leaves it to the number of workers. Too low: its calls queue although there
	// are workers. Too high: a slow tool takes them all, and the calls of other
	// tools wait.
	Concurrency int

	// MaxAttempts is how often a call may be run in all; zero is without a bound.
	// A failure of the last attempt is for good; a call in doubt is held then, also
	// after a kill or a stop. MaxCrashes takes the place of the runner's where it is
	// not zero.
	MaxAttempts int
	MaxCrashes  int

	// Rules say which differences between args mean nothing (R3); a nil or empty one
	// compares all.
	Rules *Rules

	// Intent are JSON pointers to the args that name the intent, for clients that
	// derive their keys (see [KeyFor]). The server makes no use of it (R1).
	Intent []string

	// Unrecorded says that no call is stored: for tools that only read, or that
	// can be repeated at will, a record costs a write and protects nothing. Only
	// for EffectsNone.
	Unrecorded bool

	// Target is a digest of where attempts go, and of what names them there; zero
	// where nothing says it. While a call is in doubt it is not sent to another
	// target, nor believed to be unknown there: that one knows nothing of it.
	Target uint64

	// Check says whether args fit the schema; nil accepts everything. The error
	// is an *Error with CodeInvalidArguments. It must be a pure function.
	Check func(args []byte) error

	// Invoke runs one attempt. A local tool must be a pure function of its
	// invocation. The error is a *Failure where it is definite that nothing was
	// done; any other error of an external tool means "not known".
	Invoke func(ctx context.Context, inv Invocation) (Result, error)

	// Verify asks downstream. An error means no answer. Only for RerunVerify.
	Verify func(ctx context.Context, inv Invocation) (Verification, error)
}

// Validate reports what is wrong with a declaration.
func (t *Tool) Validate() error {
	if !ValidName(t.Name) {
		return fmt.Errorf("idem: tool %q: the name must match %s", t.Name, NamePattern)
	}
	if t.Invoke == nil {
		return fmt.Errorf("idem: tool %s: nothing to invoke", t.Name)
	}
	switch t.Effects {
	case EffectsNone, EffectsLocal:
		if t.Rerun != RerunYes {
			return fmt.Errorf("idem: tool %s: without an external effect it can always run again; rerun must be %q", t.Name, RerunYes)
		}
	case EffectsExternal:
		switch t.Rerun {
		case RerunYes, RerunVerify, RerunHold:
		default:
			return fmt.Errorf("idem: tool %s: rerun must be %q, %q or %q", t.Name, RerunYes, RerunVerify, RerunHold)
		}
	default:
		return fmt.Errorf("idem: tool %s: effects must be %q, %q or %q", t.Name, EffectsNone, EffectsLocal, EffectsExternal)
	}
	if (t.Rerun == RerunVerify) != (t.Verify != nil) {
		return fmt.Errorf("idem: tool %s: a way to verify and rerun %q go together", t.Name, RerunVerify)
	}
	if t.Instant && t.Effects != EffectsLocal {
		return fmt.Errorf("idem: tool %s: only a tool with effects %q can be instant", t.Name, EffectsLocal)
	}
	if t.Timeout < 0 || t.Settle < 0 {
		return fmt.Errorf("idem: tool %s: negative duration", t.Name)
	}
	if t.Concurrency < 0 || t.MaxAttempts < 0 || t.MaxCrashes < 0 || t.MaxCrashes == 1 {
		return fmt.Errorf("idem: tool %s: concurrency, attempts and crashes must not be negative, nor crashes 1", t.Name)
	}
	if t.Unrecorded && t.Effects != EffectsNone {
		return fmt.Errorf("idem: tool %s: only a tool with effects %q can go without a record", t.Name, EffectsNone)
	}
	if !t.Rules.ID().IsZero() {
		if err := t.Rules.Validate(); err != nil {
			return fmt.Errorf("idem: tool %s: %w", t.Name, err)
		}
	}
	return nil
}
