package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/idemd/idemd/probe"
)

// downstreamCmd plays the service that a tool calls. Nothing but the log is taken
// from the environment, as with proxy.
type downstreamCmd struct {
	Listen   string `env:"-" default:"127.0.0.1:0" placeholder:"ADDR" help:"Address to listen on; port 0 picks one."`
	Insecure bool   `env:"-" help:"Allow a listener that is not loopback although nothing asks callers who they are."`

	Ledger  string `env:"-" default:"./downstream.ndjson" placeholder:"FILE" help:"What really happened, one line for each effect (${default}); made where it is missing, owned by one process at a time."`
	Honours bool   `env:"-" xor:"ids" help:"Do a thing once for each id, and give its answer again after that (the default)."`
	Ignores bool   `env:"-" xor:"ids" help:"Do whatever is asked, as often as it is asked."`

	EffectHeader  *string `env:"-" placeholder:"NAME" help:"The field that has the id of the effect (Idempotency-Key)."`
	EffectPointer *string `env:"-" placeholder:"PTR" help:"A JSON pointer to the id in the body, such as /idempotency_key, in place of the field."`

	Fault []string `env:"-" sep:"none" placeholder:"KIND[:PARAM]@WHICH" help:"What goes wrong, and with which requests; may be given more than once, and the first that hits a request decides it. See below."`
	Seed  *uint64  `env:"-" placeholder:"S" help:"What rates draw; the same requests meet the same faults. Made up, and said, if it is not given."`

	ShutdownTimeout time.Duration `env:"-" default:"5s" help:"How long a stop waits for requests under way before it cuts them. What waits on purpose is not waited for."`
	LogLevel        slog.Level    `default:"info" placeholder:"LEVEL" help:"debug, info, warn or error; info has a line for each request."`
	LogFormat       string        `default:"auto" enum:"auto,text,json" help:"auto is text on a terminal, else json."`
}

// Help is shown by idemd downstream --help.
func (*downstreamCmd) Help() string {
	return `Plays the payment provider, the mail service or the endpoint in the house that a tool calls, and does wrong what such a service may do wrong, so that a tool's settings can be tried before real money is at stake. It takes POST, PUT, PATCH and DELETE on any path, and writes a line to its ledger for each effect that really happened, before it answers. Whether a tool did a thing twice is judged on that ledger.

Do what is asked, each time, and lose the first answer for each id: what a tool with "rerun: hold" or "rerun: verify" must get through without a second effect.

  idemd downstream --listen 127.0.0.1:9090 --ignores --fault commit-then-close@first=1

Honour an id in the body; be slow with one request in ten, and refuse one in twenty for the moment; the same ones each time.

  idemd downstream --effect-pointer /idempotency_key --fault slow-commit:3s@rate=0.1 --fault busy@rate=0.05 --seed 7

Which requests, counted for each id by itself: first=N the first N, every=N each N-th, rate=P so large a part (over 0, below 1), all.

Faults without an effect:
  refuse                422
  busy                  429 with Retry-After
  unavailable           503
  conflict-in-progress  409
  close-before          the connection is closed, the body not read

Faults with the effect in the ledger:
  delay:2s              waits, then does it, unless the client has left
  slow-commit:2s        waits, then does it, also when the client has left
  commit-then-500       500
  commit-then-close     the connection is closed without an answer
  commit-then-reset     the same, by a reset (TCP RST)
  half-answer           200, half of the answer, then the connection is closed
  garbage               bytes that are no HTTP
  answer-late:2s        does it at once, answers after the wait
  redirect              307 to where it would be done again
  endless               200 and a body without end
  big:3000000           200 and a body of so many bytes

It can be asked with GET: /effects/ID and /effects?ref=ID (200 with the entry, or 404; for a tool's verify), /ledger and /requests (NDJSON), /summary, /healthz.

Stops on SIGINT or SIGTERM, ends all waits, and writes what it has counted to stdout, as JSON. What had waited for its effect has none.

Exit codes: 0 after a stop, 1 it cannot listen or the ledger cannot be opened, 2 bad flags, 74 stdout cannot be written, 75 the ledger is in use.`
}

// Validate is called by kong before Run.
func (c *downstreamCmd) Validate() error {
	o, err := c.options()
	faults := []error{err, o.Validate()}
	if c.EffectHeader != nil && *c.EffectHeader == "" || c.EffectPointer != nil && *c.EffectPointer == "" {
		faults = append(faults, errors.New("--effect-header and --effect-pointer must not be empty"))
	}
	if c.ShutdownTimeout < 0 {
		faults = append(faults, errors.New("--shutdown-timeout must not be negative"))
	}
	listen := serveCmd{Listen: c.Listen, Insecure: c.Insecure}
	return errors.Join(append(faults, listen.checkListen())...)
}

// options has no logger yet.
func (c *downstreamCmd) options() (probe.DownstreamOptions, error) {
	o := probe.DownstreamOptions{
		Ledger: c.Ledger, Ignores: c.Ignores, EffectHeader: value(c.EffectHeader), EffectPointer: value(c.EffectPointer),
	}
	rules, err := c.rules()
	if err != nil {
		return o, err
	}
	o.Fault, err = probe.DownstreamRules(value(c.Seed), rules...)
	return o, err
}

func (c *downstreamCmd) rules() (rules []probe.DownstreamRule, err error) {
	var faults []error
	for _, s := range c.Fault {
		r, err := probe.ParseDownstreamRule(s)
		faults = append(faults, err)
		rules = append(rules, r)
	}
	return rules, errors.Join(faults...)
}

// draws says whether chance has a part in it.
func (c *downstreamCmd) draws() (bool, error) {
	rules, err := c.rules()
	for _, r := range rules {
		if r.Rate > 0 {
			return true, err
		}
	}
	return false, err
}

// downstreamed is what a run of the service leaves.
type downstreamed struct {
	Seed *uint64 `json:"seed,omitempty"` // absent where nothing is drawn
	probe.DownstreamReport
}

// Run serves until the context ends, then writes the counts.
func (c *downstreamCmd) Run(ctx context.Context, con *console) error {
	return logged(con, c.LogLevel, c.LogFormat, func(words *console, log *slog.Logger) error { return c.play(ctx, words, log) })
}

func (c *downstreamCmd) play(ctx context.Context, con *console, log *slog.Logger) error {
	draws, err := c.draws()
	if err != nil {
		return err
	}
	c.Seed = draw(c.Seed, draws)
	o, err := c.options()
	if err != nil {
		return err
	}
	o.Logger = log
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	d, err := probe.NewDownstream(o)
	if err != nil {
		err = errors.Join(err, l.Close())
		if errors.Is(err, probe.ErrLedgerInUse) {
			return exit(exitInUse, "%v", err)
		}
		return err
	}
	s := standIn{name: "downstream", serve: d.Serve, close: d.Close}
	if draws {
		s.seed = c.Seed
	}
	s.sums = func() any { return downstreamed{Seed: s.seed, DownstreamReport: d.Report()} }
	return s.run(ctx, con, log, l, c.ShutdownTimeout)
}
