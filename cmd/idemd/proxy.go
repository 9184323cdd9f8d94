package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/idemd/idemd/probe"
)

// proxyCmd breaks exchanges on purpose. Nothing but the log is taken from the
// environment: IDEMD_LISTEN is where serve listens, and a fault that nobody can
// see in the command line is a trap.
type proxyCmd struct {
	Upstream string `env:"-" required:"" placeholder:"URL" help:"The service: http://HOST:PORT or https://HOST:PORT."`
	Listen   string `env:"-" default:"127.0.0.1:0" placeholder:"ADDR" help:"Address to listen on; port 0 picks one."`
	Insecure bool   `env:"-" help:"Allow a listener that is not loopback although nothing asks callers who they are."`

	Mode        []string `env:"-" default:"pass" placeholder:"MODE,..." help:"What happens to an exchange that is hit; of several, one is drawn by --seed. See below."`
	First       *int     `env:"-" placeholder:"N" help:"Hit only the first N exchanges that match."`
	FirstPerKey *int     `env:"-" placeholder:"N" help:"Hit only the first N exchanges of each key."`
	Rate        *float64 `env:"-" placeholder:"P" help:"Hit so large a part of the exchanges that match (over 0, at most 1), drawn by --seed."`
	Seed        *uint64  `env:"-" placeholder:"S" help:"What is drawn; the same arrivals meet the same faults. Made up, and said, if it is not given."`
	Methods     []string `env:"-" placeholder:"METHOD,..." help:"Methods that match, in upper case; all if not given."`
	Path        string   `env:"-" placeholder:"PREFIX" help:"What the path of an exchange that matches begins with."`
	KeyHeader   string   `env:"-" default:"Idempotency-Key" placeholder:"NAME" help:"The field that has the key."`

	MaxConns        int           `env:"-" default:"1024" help:"Client connections open at once; more wait."`
	Timeout         time.Duration `env:"-" default:"2m" help:"Ends an exchange in which nothing moves. Must exceed the longest wait that the service allows."`
	ShutdownTimeout time.Duration `env:"-" default:"5s" help:"How long a stop waits for exchanges under way before it cuts them."`
	LogLevel        slog.Level    `default:"info" placeholder:"LEVEL" help:"debug, info, warn or error; info has a line for each exchange."`
	LogFormat       string        `default:"auto" enum:"auto,text,json" help:"auto is text on a terminal, else json."`
}

// Help is shown by idemd proxy --help.
func (*proxyCmd) Help() string {
	return `Modes:
  pass                 nothing
  drop-request         the request is read and the connection closed; the service sees nothing
  reset-request        the same, by a reset (TCP RST)
  fail-before=503      an answer of the proxy; the service sees nothing
  drop-response        the service answers, the connection is closed without a byte
  reset                the same, by a reset (TCP RST)
  delay-response=600ms the answer is held back once its head is here
  duplicate-request    sent twice, one after the other; the client gets the second answer
  half-body            the service answers; the head and half of the body, then the connection is closed

--first, --first-per-key and --rate can be combined: an exchange is hit if all allow it.

Stops on SIGINT or SIGTERM and then writes what it has counted to stdout, as JSON:
requests from clients, requests on the wire to the service, answers, faults.

Exit codes: 0 after a stop, 1 it cannot listen, 2 bad flags, 74 stdout cannot be written.`
}

// Validate is called by kong before Run.
func (c *proxyCmd) Validate() error {
	if c.Upstream == "" { // kong asks for it only after this
		return errors.New("--upstream is missing")
	}
	o, err := c.options()
	var faults []error
	for name, n := range map[string]*int{"--first": c.First, "--first-per-key": c.FirstPerKey, "--max-conns": &c.MaxConns} {
		if n != nil && *n <= 0 {
			faults = append(faults, fmt.Errorf("%s must be positive", name))
		}
	}
	if c.Rate != nil && !(*c.Rate > 0) {
		faults = append(faults, errors.New("--rate must be over 0"))
	}
	if c.Timeout <= 0 || c.ShutdownTimeout < 0 {
		faults = append(faults, errors.New("--timeout must be positive, and --shutdown-timeout not negative"))
	}
	listen := serveCmd{Listen: c.Listen, Insecure: c.Insecure}
	return errors.Join(append(faults, err, o.Validate(), listen.checkListen())...)
}

// options has no logger yet.
func (c *proxyCmd) options() (probe.ProxyOptions, error) {
	rule := probe.Rule{
		First: value(c.First), FirstPerKey: value(c.FirstPerKey), Rate: value(c.Rate), Seed: value(c.Seed),
		Methods: c.Methods, Path: c.Path,
	}
	var faults []error
	for _, m := range c.Mode {
		f, err := probe.ParseFault(m)
		if err != nil {
			faults = append(faults, err)
			f = probe.Fault{Mode: probe.Pass} // said already
		}
		rule.Faults = append(rule.Faults, f)
	}
	return probe.ProxyOptions{
		Upstream: c.Upstream, Rules: []probe.Rule{rule}, KeyHeader: c.KeyHeader, MaxConns: c.MaxConns, Timeout: c.Timeout,
	}, errors.Join(faults...)
}

// value is what p points to, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// proxied is what a run of the proxy leaves.
type proxied struct {
	Seed *uint64 `json:"seed,omitempty"` // absent where nothing is drawn
	probe.Summary
}

// Run passes on until the context ends, then writes the summary.
func (c *proxyCmd) Run(ctx context.Context, con *console) error {
	return logged(con, c.LogLevel, c.LogFormat, func(words *console, log *slog.Logger) error { return c.proxy(ctx, words, log) })
}

func (c *proxyCmd) proxy(ctx context.Context, con *console, log *slog.Logger) error {
	draws := c.Rate != nil || len(c.Mode) > 1
	c.Seed = draw(c.Seed, draws)
	o, err := c.options()
	if err != nil {
		return err
	}
	o.Logger = log
	p, err := probe.NewProxy(o)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	s := standIn{name: "proxy", serve: p.Serve, close: p.Shutdown}
	if draws {
		s.seed = c.Seed
	}
	s.sums = func() any { return proxied{Seed: s.seed, Summary: p.Summary()} }
	return s.run(ctx, con, log, l, c.ShutdownTimeout)
}
