package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/idemd/idemd/httpapi"
	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

// exitInUse is the exit code of serve, besides those of client commands and
// kv.ExitUntrusted, where another process has the data directory.
const exitInUse = 75

// closingTime is what requests under way have to get their answers out once the
// runner has stopped.
const closingTime = 5 * time.Second

// serveCmd runs the daemon.
type serveCmd struct {
	Data            string        `default:"./idemd-data" placeholder:"DIR" help:"Data directory; made where it is missing, owned by one process at a time."`
	Listen          string        `default:"127.0.0.1:8081" placeholder:"ADDR" help:"Address to listen on; port 0 picks one."`
	Workers         int           `default:"${workers}" help:"Calls that run at once. Too low: calls queue behind slow tools. Too high: more calls in doubt after a crash."`
	Queue           int           `default:"${queue}" help:"Accepted calls that may wait for a worker; more are refused with 503."`
	MaxInFlight     int           `default:"${max_in_flight}" help:"Requests worked on at once; more are refused with 503, and above half of it waits are not honoured."`
	Lease           time.Duration `default:"${lease}" help:"How long a running call stays its worker's without renewal (100ms to 24h)."`
	ToolTimeout     time.Duration `default:"${tool_timeout}" help:"Ends an attempt of a tool that names no time-out of its own. Too low turns slow successes into doubt."`
	Window          time.Duration `default:"${window}" help:"How long a key is remembered after its call has ended. Must exceed the longest span over which a client retries."`
	MaxCrashes      int           `default:"${max_crashes}" help:"Deaths of the process that a running call may be part of before it is stopped (at least 2)."`
	ShutdownTimeout time.Duration `default:"30s" help:"How long a stop waits for running calls before it gives them back."`
	Tools           string        `placeholder:"FILE" help:"Tools file (YAML); see idemd tools lint. It is read once, at the start."`
	NoSamples       bool          `help:"Leave the sample tools out."`
	Chaos           bool          `help:"Allow faults on purpose (Idemd-Chaos header, ext_* tools). Never in production."`
	Insecure        bool          `help:"Allow a listener that is not loopback although nothing asks callers who they are."`
	LogLevel        slog.Level    `default:"info" placeholder:"LEVEL" help:"debug, info, warn or error."`
	LogFormat       string        `default:"auto" enum:"auto,text,json" help:"auto is text on a terminal, else json."`
}

// serveDefaults are the defaults that others know as well, each from its one
// home.
func serveDefaults() kong.Vars {
	return kong.Vars{
		"workers":       strconv.Itoa(runner.DefaultWorkers),
		"queue":         strconv.Itoa(runner.DefaultQueue),
		"max_in_flight": strconv.Itoa(httpapi.DefaultMaxInFlight),
		"lease":         flagText(runner.DefaultLease),
		"tool_timeout":  flagText(runner.DefaultToolTimeout),
		"window":        flagText(runner.DefaultWindow),
		"max_crashes":   strconv.Itoa(runner.DefaultMaxCrashes),
	}
}

// flagText writes a duration as people do: 24h, not 24h0m0s.
func flagText(d time.Duration) string {
	s := d.String()
	for _, zeros := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zeros) {
			s = s[:len(s)-len("0s")]
		}
	}
	return s
}

// Help is shown by idemd serve --help.
func (*serveCmd) Help() string {
	return `Stops on SIGINT or SIGTERM: new calls are refused, running ones are waited for,
what does not end in time is given back and runs at the next start. A second
signal, or a SIGHUP, ends the process at once, which loses nothing that was
accepted.

Connections get the file handles (ulimit -n) that the store does not need; where
those are few, --max-in-flight is lowered, and the log says so.

Exit codes: 0 clean stop, 1 it cannot start or go on serving (the port is in use,
a permission is missing, the store cannot be opened, too little disk space, too
few file handles), 2 bad flags or a tools file that is wrong, 70 the store can no
longer be trusted to write (start again), 75 the data directory is in use, 128
and the number of a signal that ended it at once.`
}

// Validate is called by kong before Run.
func (c *serveCmd) Validate() error {
	return errors.Join(
		c.settings().Validate(),
		httpapi.Options{MaxInFlight: c.MaxInFlight}.Validate(),
		c.positive(),
		c.checkListen(),
		c.checkData(),
	)
}

// positive refuses zeros, which elsewhere mean a default.
func (c *serveCmd) positive() error {
	var faults []error
	want := func(ok bool, flag, what string) {
		if !ok {
			faults = append(faults, fmt.Errorf("%s must %s", flag, what))
		}
	}
	want(c.Workers > 0, "--workers", "be positive")
	want(c.Queue > 0, "--queue", "be positive")
	want(c.MaxInFlight > 0, "--max-in-flight", "be positive")
	want(c.Lease > 0, "--lease", "be positive")
	want(c.ToolTimeout > 0, "--tool-timeout", "be positive")
	want(c.Window > 0, "--window", "be positive")
	want(c.MaxCrashes > 0, "--max-crashes", "be positive")
	want(c.ShutdownTimeout >= 0, "--shutdown-timeout", "not be negative")
	return errors.Join(faults...)
}

func (c *serveCmd) settings() runner.Settings {
	return runner.Settings{
		Workers: c.Workers, Queue: c.Queue, Lease: c.Lease, ToolTimeout: c.ToolTimeout,
		Window: c.Window, MaxCrashes: c.MaxCrashes,
	}
}

func (c *serveCmd) checkData() error {
	if c.Data == "" {
		return errors.New("--data is empty")
	}
	return nil
}

// checkListen refuses what is no address, and an address that others can reach,
// unless somebody said so: nothing asks callers who they are.
func (c *serveCmd) checkListen() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %q is not HOST:PORT", c.Listen)
	}
	if _, err := net.LookupPort("tcp", port); err != nil { // names are ports too
		return fmt.Errorf("--listen: %q is not a port, 0 to 65535", port)
	}
	if host == "localhost" || c.Insecure {
		return nil
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--listen %s can be reached from other machines and nothing asks callers who they are; "+
		"use a loopback address, or say --insecure", c.Listen)
}

// daemon is a running idemd: a store, a runner over it, and a server before it.
type daemon struct {
	store  *kv.Store
	runner *runner.Runner
	server *httpapi.Server
	tools  io.Closer // what tools have open
	log    *slog.Logger

	addr   net.Addr
	served chan error // what Serve returned
}

// tools are all that the daemon has, and what closes what they have open. They are
// there before the store is opened: a tools file that is wrong must not cost a
// start anything.
func (c *serveCmd) tools(log *slog.Logger) ([]*idem.Tool, io.Closer, error) {
	var (
		tools []*idem.Tool
		open  closers
		specs []*tool.Spec
	)
	if c.Tools != "" {
		var err error
		if specs, err = tool.Load(c.Tools, os.LookupEnv); err != nil {
			return nil, nil, badTools(err)
		}
	}
	if !c.NoSamples {
		tools = append(tools, tool.Samples()...)
	}
	if c.Chaos {
		ext, file := tool.Chaos(filepath.Join(c.Data, "ext.ndjson"), killSelf)
		tools, open = append(tools, ext...), append(open, file)
	}
	err := tool.Clashes(specs, tools)
	if err == nil {
		var (
			built  []*idem.Tool
			closer io.Closer
		)
		if built, closer, err = tool.Build(specs, log); err == nil {
			for _, t := range built {
				if t.Concurrency == 0 {
					t.Concurrency = max(1, c.Workers/2)
				}
			}
			return append(tools, built...), append(open, closer), nil
		}
	}
	return nil, nil, errors.Join(err, open.Close())
}

// closers are closed together.
type closers []io.Closer

func (c closers) Close() error {
	var err error
	for _, one := range c {
		err = errors.Join(err, one.Close())
	}
	return err
}

// startDaemon opens the store, takes up what an earlier life left, and then
// listens. It ends the process by die when the store can no longer be trusted.
func (c *serveCmd) startDaemon(ctx context.Context, log *slog.Logger, die func(code int)) (_ *daemon, err error) {
	d := &daemon{log: log, served: make(chan error, 1)}
	began := time.Now()
	tools, closer, err := c.tools(log)
	if err != nil {
		return nil, err
	}
	d.tools = closer
	defer func() {
		if err != nil {
			err = errors.Join(err, closer.Close())
		}
	}()
	limit, err := handleLimit()
	if err != nil {
		return nil, err
	}
	share, err := shareHandles(limit, c.MaxInFlight)
	if err != nil {
		return nil, err
	}
	if share.maxConns < connsPerRequest*c.MaxInFlight {
		log.Warn("few file handles (ulimit -n): fewer connections", "limit", limit,
			"connections", share.maxConns, "max_in_flight", share.maxInFlight, "store", share.openFiles)
	}
	if d.store, err = kv.Open(kv.Options{Dir: c.Data, Logger: log, OpenFiles: share.openFiles, Exit: die}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.store.Close())
		}
	}()
	d.runner, err = runner.New(d.store, runner.Options{Settings: c.settings(), Tools: tools, Logger: log, Exit: killSelf})
	if err != nil {
		return nil, err
	}
	// The port is taken before anything runs, so that a start that fails on it
	// leaves everything as it was; nobody is answered before Serve.
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, err
	}
	if err = d.runner.Start(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	d.addr = l.Addr()
	d.server = httpapi.New(d.runner, httpapi.Options{
		MaxConns: share.maxConns, MaxInFlight: share.maxInFlight, Chaos: c.Chaos, Logger: log, Version: thisBuild().Version,
	})
	go func() { d.served <- d.server.Serve(l) }()
	log.Info("ready", "addr", d.addr.String(), "data", c.Data, "tools", len(tools), "took", time.Since(began).String())
	return d, nil
}

// stop refuses new calls, waits for what runs, gives back what could not be
// drained before the context ends, and closes the store.
func (d *daemon) stop(ctx context.Context) error {
	// The listener stays open while calls end: /readyz says why not, and what is
	// new is refused with an answer.
	d.runner.Stop(ctx)
	answers, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	if err := d.server.Shutdown(answers); err != nil {
		d.log.Warn("closing connections that did not end", "err", err)
	}
	if err := d.server.Close(); err != nil { // nobody uses the store after it
		d.log.Warn("closing connections", "err", err)
	}
	err := d.store.Close()
	if err := d.tools.Close(); err != nil { // no matter of the store
		d.log.Warn("closing tools", "err", err)
	}
	return err
}

// Run serves until the context ends, then stops cleanly.
func (c *serveCmd) Run(ctx context.Context, con *console) error {
	// What callers hand in is nobody else's business on this machine.
	syscall.Umask(0o077)
	// That the reader of the log has gone is no reason to end.
	signal.Ignore(syscall.SIGPIPE)
	tuneCollector()

	terminal := isTerminal(con.stderr)
	w := newLogWriter(con.stderr, slog.New(c.logHandler(con.stderr, terminal)))
	defer w.close(flushTime)
	die := func(code int) {
		w.close(flushTime)
		os.Exit(code)
	}
	// All words go the same way: they stay in order, and even the last one does
	// not wait for a reader that is stuck.
	words := *con
	words.stderr = w
	return exitQuietly(report(&words, c.serve(ctx, &words, slog.New(c.logHandler(w, terminal)), die)))
}

func (c *serveCmd) serve(ctx context.Context, con *console, log *slog.Logger, die func(code int)) error {
	d, err := c.startDaemon(ctx, log, die)
	var faults tool.Faults
	switch {
	case errors.As(err, &faults):
		for _, f := range faults {
			con.say("%s", plain(f.Error()))
		}
		return exit(exitUsage, "faults in the tools file: %d; nothing was started", len(faults))
	case errors.Is(err, kv.ErrInUse):
		return exit(exitInUse, "%v", err)
	case err != nil:
		return err
	}
	// Not a log line: scripts wait for it at every level and in every format.
	con.say("idemd listening on http://%s", d.addr)
	select {
	case <-ctx.Done():
	case err := <-d.served:
		log.Error("the listener failed", "err", err)
		d.served <- err
	}
	log.Info("stopping", "timeout", c.ShutdownTimeout.String())
	timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.ShutdownTimeout)
	defer cancel()
	if err := d.stop(timeout); err != nil {
		return exit(kv.ExitUntrusted, "stopping: %v", err)
	}
	if err := <-d.served; err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// logHandler writes text to a terminal, and JSON to anything else.
func (c *serveCmd) logHandler(w io.Writer, terminal bool) slog.Handler {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "text" || c.LogFormat == "auto" && terminal {
		return slog.NewTextHandler(w, o)
	}
	return slog.NewJSONHandler(w, o)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
