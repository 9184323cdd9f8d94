package tool

import (
	"net/http"
	"time"

	"github.com/idemd/idemd/idem"
)

// Spec is a configured tool: what a file says of it, with defaults filled in and
// secrets resolved. It is never printed or logged as a whole.
type Spec struct {
	Name        string // see idem.ValidName
	Description string
	Effects     idem.Effects
	Rerun       idem.Rerun
	Unrecorded  bool // only with EffectsNone

	Timeout     time.Duration // of an attempt, and of one question of a verification; zero is the runner's
	Concurrency int           // calls at once; zero leaves it to who runs the tool
	MaxAttempts int           // zero is without a bound
	MaxCrashes  int           // zero is the runner's

	Schema []byte // JSON Schema of args, nil where anything goes
	Intent []string
	Rules  *idem.Rules // nil where there are none

	HTTP    *HTTP // this or Command
	Command *Command
	Verify  *Verify // only with RerunVerify

	origin *origin // where a file says it; nil where none does
}

// HTTP is how a tool is asked for over HTTP: one attempt is one request.
type HTTP struct {
	Method  string // upper case
	URL     string // absolute, http or https, without user info or fragment
	Headers http.Header

	EffectKey EffectKey

	// What a status of the answer means. One in no list means that nobody knows
	// what came of the request.
	Success   []int // it was done
	Final     []int // it was not done, and asking again brings the same
	Retryable []int // it was not done, and may be asked for again
}

// EffectKey is where the effect id goes, and what downstream makes of it. Header
// or Pointer is set, or neither where there is no effect.
type EffectKey struct {
	Header  string
	Pointer string // JSON pointer into the body, to a member that args do not have

	// Honours says that downstream does a thing once for each effect id, however
	// often it is asked. That it takes the id does not mean that.
	Honours bool
}

// Verify is how downstream is asked what came of an effect id.
type Verify struct {
	Method  string // GET or HEAD
	URL     string // like that of HTTP, with {effect_id} in its path or query
	Headers http.Header
	Found   []int // it was done
	Absent  []int // it was not done; any other status is no answer
	Settle  time.Duration
}

// Command is how a tool is run as a program of this machine.
type Command struct {
	Argv          []string          // without a shell; the first is an absolute path
	Env           map[string]string // all that the program's environment has; {effect_id} in a value is replaced
	FinalExit     []int             // it was not done, and asking again brings the same
	RetryableExit []int             // it was not done, and may be asked for again

	// Honours is as in [EffectKey]: what the program asks does a thing once for each
	// effect id, which an argument or a variable has to carry.
	Honours bool
}
