package probe

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// DownstreamKind says what a [Downstream] does wrong with a request. A fault is of
// this one request: an id that is in the ledger from an earlier one stays there, and
// what is kept as its answer is always the one without a fault.
type DownstreamKind string

const (
	// Refuse answers 422. No effect.
	Refuse DownstreamKind = "refuse"

	// Busy answers 429 with Retry-After: 1. No effect.
	Busy DownstreamKind = "busy"

	// Unavailable answers 503. No effect.
	Unavailable DownstreamKind = "unavailable"

	// ConflictInProgress answers 409 as if another request of the id were under way.
	// No effect.
	ConflictInProgress DownstreamKind = "conflict-in-progress"

	// CloseBefore closes the connection without reading on: where the id is in the
	// header, the body is not read. A client that was still sending may see a reset.
	// No effect.
	CloseBefore DownstreamKind = "close-before"

	// Delay waits before it looks at the request, whose id is free meanwhile, and then
	// does it. A client that leaves in the wait takes its request along. The effect is
	// in the ledger after the wait, unless the client left or a stop came before.
	Delay DownstreamKind = "delay"

	// SlowCommit takes the request up, so that its id is in progress, waits, commits
	// and answers, also when the client has gone: the first dispatch is still working.
	// The effect is in the ledger after the wait, unless a stop came before.
	SlowCommit DownstreamKind = "slow-commit"

	// CommitThen500 answers 500. The effect is in the ledger.
	CommitThen500 DownstreamKind = "commit-then-500"

	// CommitThenClose closes the connection (TCP FIN) without a byte of an answer.
	// The effect is in the ledger.
	CommitThenClose DownstreamKind = "commit-then-close"

	// CommitThenReset is CommitThenClose, but the connection is reset (TCP RST). The
	// effect is in the ledger.
	CommitThenReset DownstreamKind = "commit-then-reset"

	// HalfAnswer sends 200, the Content-Length of the whole answer and the first half
	// of it, and closes. The effect is in the ledger.
	HalfAnswer DownstreamKind = "half-answer"

	// Garbage sends bytes that are no HTTP, and closes. The effect is in the ledger.
	Garbage DownstreamKind = "garbage"

	// AnswerLate commits at once and answers after a wait, unless the client has left
	// by then. The effect is in the ledger before the wait.
	AnswerLate DownstreamKind = "answer-late"

	// Redirect answers 307 to another path of this service, where the same request is
	// done once more if it is followed. The effect is in the ledger.
	Redirect DownstreamKind = "redirect"

	// Endless answers 200 with a body that goes on until the client closes. The
	// effect is in the ledger.
	Endless DownstreamKind = "endless"

	// Big answers 200 with a JSON object of so many bytes in place of the answer. The
	// effect is in the ledger.
	Big DownstreamKind = "big"
)

// downstreamKinds says of each kind what it takes, in the order of the constants.
var downstreamKinds = []struct {
	kind         DownstreamKind
	timed, sized bool
}{
	{kind: Refuse}, {kind: Busy}, {kind: Unavailable}, {kind: ConflictInProgress}, {kind: CloseBefore},
	{kind: Delay, timed: true}, {kind: SlowCommit, timed: true},
	{kind: CommitThen500}, {kind: CommitThenClose}, {kind: CommitThenReset}, {kind: HalfAnswer}, {kind: Garbage},
	{kind: AnswerLate, timed: true}, {kind: Redirect}, {kind: Endless}, {kind: Big, sized: true},
}

// DownstreamKinds is every kind of fault.
func DownstreamKinds() []DownstreamKind {
	kinds := make([]DownstreamKind, len(downstreamKinds))
	for i, k := range downstreamKinds {
		kinds[i] = k.kind
	}
	return kinds
}

// The bounds of what [Big] sends, in bytes.
const (
	MinBig = int64(len(bigHead) + len(bigTail))
	MaxBig = 1 << 30
)

const (
	bigHead = `{"pad":"`
	bigTail = `"}`
)

// DownstreamFault is a kind of fault and what it needs to know. The zero value is
// no fault.
type DownstreamFault struct {
	Kind DownstreamKind

	// Wait is for Delay, SlowCommit and AnswerLate, where it must be positive, and for
	// no other kind. Every wait ends when the service stops.
	Wait time.Duration

	// Size is for Big, where it must be MinBig to MaxBig bytes, and for no other kind.
	Size int64
}

// ParseDownstreamFault reads what [DownstreamFault.String] writes for a fault: a
// kind, and after a colon what it takes, as slow-commit:2s or big:3000000.
func ParseDownstreamFault(s string) (DownstreamFault, error) {
	kind, value, valued := strings.Cut(s, ":")
	f := DownstreamFault{Kind: DownstreamKind(kind)}
	for _, k := range downstreamKinds {
		if k.kind != f.Kind {
			continue
		}
		var err error
		switch {
		case k.timed:
			if f.Wait, err = time.ParseDuration(value); err != nil {
				return DownstreamFault{}, fmt.Errorf("probe: %q: %s needs a duration, like %s:2s", s, kind, kind)
			}
		case k.sized:
			if f.Size, err = strconv.ParseInt(value, 10, 64); err != nil {
				return DownstreamFault{}, fmt.Errorf("probe: %q: %s needs a number of bytes, like %s:3000000", s, kind, kind)
			}
		case valued:
			return DownstreamFault{}, fmt.Errorf("probe: %q: %s takes nothing after a colon", s, kind)
		}
	}
	if f.Kind == "" {
		return DownstreamFault{}, fmt.Errorf("probe: %q names no fault", s)
	}
	if err := f.Validate(); err != nil {
		return DownstreamFault{}, err
	}
	return f, nil
}

// Validate refuses a kind that is not known, and values that do not fit it.
func (f DownstreamFault) Validate() error {
	if f == (DownstreamFault{}) {
		return nil
	}
	for _, k := range downstreamKinds {
		if k.kind != f.Kind {
			continue
		}
		var faults []error
		switch {
		case k.timed && f.Wait <= 0:
			faults = append(faults, fmt.Errorf("probe: %s needs a positive duration", f.Kind))
		case !k.timed && f.Wait != 0:
			faults = append(faults, fmt.Errorf("probe: %s takes no duration", f.Kind))
		}
		switch {
		case k.sized && (f.Size < MinBig || f.Size > MaxBig):
			faults = append(faults, fmt.Errorf("probe: %s needs a size from %d to %d bytes, not %d", f.Kind, MinBig, MaxBig, f.Size))
		case !k.sized && f.Size != 0:
			faults = append(faults, fmt.Errorf("probe: %s takes no size", f.Kind))
		}
		return errors.Join(faults...)
	}
	return fmt.Errorf("probe: unknown fault %q", f.Kind)
}

// String is the fault as [ParseDownstreamFault] reads it, and "none" for no fault.
func (f DownstreamFault) String() string {
	switch {
	case f.Wait != 0:
		return string(f.Kind) + ":" + f.Wait.String()
	case f.Size != 0:
		return string(f.Kind) + ":" + strconv.FormatInt(f.Size, 10)
	}
	return cmp.Or(string(f.Kind), "none")
}
