package runner

import (
	"errors"
	"fmt"
	"time"
)

// Settings are what an operator may change. The zero value of a field means its
// default; Validate reports every fault at once.
type Settings struct {
	// Workers is how many calls run at once. Default 16. Too low: calls queue
	// behind slow tools. Too high: more calls are in doubt when the process
	// dies, and tools overload what they call. 1 to 10 000.
	Workers int

	// Queue is how many accepted calls may wait for a worker. Default 100 000.
	// Too low: bursts are refused with 503. Too high: a call waits longer than
	// its client, and memory grows by some 300 bytes a call. 1 to 10 million.
	Queue int

	// Lease is how long a running call stays its worker's without renewal; it
	// is renewed every third of that. Default 30 s. Too low: a process that is
	// paused loses its calls to others. Too high: over a shared store, the
	// calls of a dead process wait that long. On a store with one owner a
	// restart waits for no lease. 100 ms to 24 h.
	Lease time.Duration

	// ToolTimeout ends an attempt's context where the tool names no time-out
	// of its own. Default 30 s. Too low: slow successes turn into doubt. Too
	// high: a dead peer holds a worker. 1 ms to 24 h.
	ToolTimeout time.Duration

	// Grace is how long a tool may take to return after its context has ended,
	// before its attempt is abandoned. Default 5 s. Too low: tools that are
	// about to answer are given up. Too high: a deaf tool holds its worker.
	// 0 is the default; at least 1 ms.
	Grace time.Duration

	// MaxAbandoned bounds the attempts that were abandoned and still run.
	// Above it an abandoned attempt keeps its worker until it returns, so
	// that deaf tools use up the workers and not the memory. Default 64. Too
	// low: a few deaf tools stop the service. Too high: they pile up.
	MaxAbandoned int

	// Window is how long a key is remembered after its call ended. Default
	// 24 h. Too low: a client that retries later than that is refused with
	// key_expired. Too high: the store keeps more. It must exceed the longest
	// span over which any client retries one intent. At least 1 ms.
	Window time.Duration

	// MaxCrashes is how many deaths of the process a running call may be part
	// of before it is stopped. Default 3. At 1 every death would stop each call
	// that ran beside the poison, so 2 is the least. Too high: the process
	// dies that much more often before the poison is stopped. 2 to 100.
	MaxCrashes int
}

// The defaults of Settings.
const (
	DefaultWorkers      = 16
	DefaultQueue        = 100_000
	DefaultLease        = 30 * time.Second
	DefaultToolTimeout  = 30 * time.Second
	DefaultGrace        = 5 * time.Second
	DefaultMaxAbandoned = 64
	DefaultWindow       = 24 * time.Hour
	DefaultMaxCrashes   = 3
)

// withDefaults fills in what is zero.
func (s Settings) withDefaults() Settings {
	set(&s.Workers, DefaultWorkers)
	set(&s.Queue, DefaultQueue)
	set(&s.Lease, DefaultLease)
	set(&s.ToolTimeout, DefaultToolTimeout)
	set(&s.Grace, DefaultGrace)
	set(&s.MaxAbandoned, DefaultMaxAbandoned)
	set(&s.Window, DefaultWindow)
	set(&s.MaxCrashes, DefaultMaxCrashes)
	return s
}

func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// Validate reports what is wrong, all of it, after zero fields got their
// defaults.
func (s Settings) Validate() error {
	s = s.withDefaults()
	const day = 24 * time.Hour
	return errors.Join(
		within("workers", s.Workers, 1, 10_000),
		within("queue", s.Queue, 1, 10_000_000),
		within("lease", s.Lease, 100*time.Millisecond, day),
		within("tool-timeout", s.ToolTimeout, time.Millisecond, day),
		within("grace", s.Grace, time.Millisecond, day),
		within("max-abandoned", s.MaxAbandoned, 1, 100_000),
		within("window", s.Window, time.Millisecond, 100*365*day),
		within("max-crashes", s.MaxCrashes, 2, 100),
	)
}

func within[T int | time.Duration](name string, v, low, high T) error {
	if v < low || v > high {
		return fmt.Errorf("%s is %v, but must be between %v and %v", name, v, low, high)
	}
	return nil
}
