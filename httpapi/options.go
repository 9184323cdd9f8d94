package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Options are what an operator may want to set. A zero field takes the default.
type Options struct {
	// MaxBody is the largest body of a request, in bytes. Default 1 MiB. Too
	// low refuses honest requests, too high lets a few clients take
	// MaxBodyMemory for themselves. 1 KiB to 64 MiB.
	MaxBody int64

	// MaxBodyMemory is how many bytes of bodies are there at once, of requests
	// that are still arriving and of those that are worked on; what is above is
	// refused. The first 16 KiB of each body do not count, so that ordinary
	// requests pass whatever the large ones do. Default 256 MiB. Too low refuses
	// large bodies under ordinary load, too high runs out of memory before it
	// refuses: what is made of a body takes a few times its size. At least
	// MaxBody.
	MaxBodyMemory int64

	// MaxInFlight is how many requests are worked on at once; what is above is
	// refused at once. A body that is still arriving is not worked on. Waits are
	// honoured only for the lower half. Default 4096. Too low refuses under
	// ordinary load, too high runs out of memory before it refuses. 1 to
	// 1,000,000.
	MaxInFlight int

	// MaxConns is how many connections may be open. For the next one, the one
	// that has been idle the longest is closed; where none is idle, newcomers
	// wait in the listener's backlog. Default 4 × MaxInFlight. Too low costs
	// idle clients their connections, too high runs out of file handles. At
	// least MaxInFlight.
	MaxConns int

	// MaxWait caps Prefer: wait. Default 60 s. Too low makes clients poll, too
	// high keeps connections through proxies that give up earlier. Whole
	// seconds, at most 10 min.
	MaxWait time.Duration

	// ReadHeaderTimeout is how long the header section may take to arrive.
	// Default 5 s. Too low cuts slow networks off, too high lets idle ones hold
	// connections. At most ReadTimeout.
	ReadHeaderTimeout time.Duration

	// ReadTimeout is how long the whole request may take to arrive. Default
	// 30 s. Too low cuts large bodies off, too high lets slow senders hold
	// places. A wait may be longer: net/http takes the deadline off when the
	// request is there.
	ReadTimeout time.Duration

	// WriteTimeout is how long a client may take without accepting any part of
	// an answer. Default 30 s. Too low cuts slow readers off, too high lets
	// them hold places.
	WriteTimeout time.Duration

	// IdleTimeout is how long a connection is kept between requests. Default
	// 120 s. Too low costs reconnects, too high keeps handles of idle clients.
	IdleTimeout time.Duration

	// MaxHeaderBytes is the largest header section, request line included.
	// Default 16 KiB. Too low refuses long keys, too high is memory for every
	// connection. 1 KiB to 1 MiB.
	MaxHeaderBytes int

	// Chaos allows the header Idemd-Chaos. Never in production.
	Chaos bool

	// Logger takes a line for each request at debug level, and what is wrong
	// above that. Default: nothing is logged.
	Logger *slog.Logger

	// Version is shown by /healthz. Default "dev".
	Version string
}

// DefaultMaxInFlight is the default of Options.MaxInFlight.
const DefaultMaxInFlight = 4096

func (o Options) withDefaults() Options {
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.MaxBodyMemory = cmp.Or(o.MaxBodyMemory, 256<<20)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, DefaultMaxInFlight)
	o.MaxConns = cmp.Or(o.MaxConns, 4*o.MaxInFlight)
	o.MaxWait = cmp.Or(o.MaxWait, time.Minute)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 30*time.Second)
	o.ReadHeaderTimeout = cmp.Or(o.ReadHeaderTimeout, min(5*time.Second, o.ReadTimeout))
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 16<<10)
	o.Version = cmp.Or(o.Version, "dev")
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// Validate reports everything that is wrong with the options at once.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("httpapi: "+format, args...))
		}
	}
	want(o.MaxBody >= 1<<10 && o.MaxBody <= 64<<20, "MaxBody is %d; want 1 KiB to 64 MiB", o.MaxBody)
	want(o.MaxBodyMemory >= o.MaxBody, "MaxBodyMemory is %d; want at least MaxBody, %d", o.MaxBodyMemory, o.MaxBody)
	want(o.MaxInFlight >= 1 && o.MaxInFlight <= 1_000_000, "MaxInFlight is %d; want 1 to 1,000,000", o.MaxInFlight)
	want(o.MaxConns >= o.MaxInFlight, "MaxConns is %d; want at least MaxInFlight, %d", o.MaxConns, o.MaxInFlight)
	want(o.MaxWait > 0 && o.MaxWait <= 10*time.Minute && o.MaxWait%time.Second == 0, "MaxWait is %v; want whole seconds up to 10m", o.MaxWait)
	want(o.ReadTimeout > 0, "ReadTimeout is %v; want more than 0", o.ReadTimeout)
	want(o.ReadHeaderTimeout > 0 && o.ReadHeaderTimeout <= o.ReadTimeout, "ReadHeaderTimeout is %v; want more than 0 and at most ReadTimeout, %v", o.ReadHeaderTimeout, o.ReadTimeout)
	want(o.WriteTimeout > 0, "WriteTimeout is %v; want more than 0", o.WriteTimeout)
	want(o.IdleTimeout > 0, "IdleTimeout is %v; want more than 0", o.IdleTimeout)
	want(o.MaxHeaderBytes >= 1<<10 && o.MaxHeaderBytes <= 1<<20, "MaxHeaderBytes is %d; want 1 KiB to 1 MiB", o.MaxHeaderBytes)
	return errors.Join(faults...)
}
