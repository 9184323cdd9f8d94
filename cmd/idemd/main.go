// Command idemd is an idempotent tool-call backend and the client to talk to
// it. Each command is a file of this package; main only reads the command line
// and turns what a command returns into an exit code.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

const description = `An idempotent tool-call backend: one key, one call, one effect.

Flags can also be given in the environment, as IDEMD_ and the name: IDEMD_URL, IDEMD_DATA, IDEMD_TOOL_TIMEOUT. Not from there come call's --key, --key-from and --new-key-on-retry, all that resolve decides by (--outcome, --by, --note, --result, --error), list's --client-id, reconcile's --where, check-history's --no-effect and --skew, and the flags of probe, proxy and downstream.

Data goes to stdout, words go to stderr. Exit codes of the client commands:

  0  succeeded
  1  the tool failed
  2  usage, or a request that the server refuses as it is
  3  conflict: the key is taken by another request, or the call is not held
  4  not found, or expired
  5  the outcome is not known
  6  still pending at the deadline
  7  unavailable; nothing was recorded
  74 stdout cannot be written

call, get and find exit by the state of the call that they show; resolve exits with 0 once the call is decided. tools lint, inspect, reconcile, check-history and probe have codes of their own.`

type cli struct {
	Serve        serveCmd        `cmd:"" help:"Run the server."`
	Call         callCmd         `cmd:"" help:"Call a tool, once, whatever happens on the way."`
	Get          getCmd          `cmd:"" help:"Show a call by its id."`
	Find         findCmd         `cmd:"" help:"Show a call by its key: what to ask after a lost answer."`
	List         listCmd         `cmd:"" help:"List calls, newest first."`
	Audit        auditCmd        `cmd:"" help:"Show what happened to a call."`
	Effects      effectsCmd      `cmd:"" help:"Show the ledger: what really happened."`
	Stats        statsCmd        `cmd:"" help:"Show the server's counts, and what looks wrong in them."`
	Health       healthCmd       `cmd:"" help:"Ask whether the server lives and accepts calls."`
	Resolve      resolveCmd      `cmd:"" help:"Decide a held call."`
	Tools        toolsCmd        `cmd:"" help:"Check a tools file and explain it, or show the tools of a server."`
	Inspect      inspectCmd      `cmd:"" help:"Check the store of a server that is stopped."`
	Reconcile    reconcileCmd    `cmd:"" help:"Compare what was to happen with a ledger of what did."`
	CheckHistory checkHistoryCmd `cmd:"" name:"check-history" help:"Prove from logs, ledger and audit trails that nothing went wrong."`
	Downstream   downstreamCmd   `cmd:"" help:"Play the service that a tool calls, with a ledger of its own, and do wrong what it may do wrong."`
	Proxy        proxyCmd        `cmd:"" help:"Stand before a service and break exchanges on purpose."`
	Probe        probeCmd        `cmd:"" help:"Prove it, on ledgers: run scenarios against wrong policies, idemd itself, or a target."`
	Version      versionCmd      `cmd:"" help:"Show the version of this program."`
}

// console is where a command reads and writes.
type console struct {
	stdin  io.Reader
	stdout io.Writer // data
	stderr io.Writer // words

	// pause waits between two tries, unless the context is over first.
	pause func(context.Context, time.Duration) error
}

// print writes data. A command whose output is lost must not end as if it were
// not.
func (c *console) print(format string, args ...any) error {
	if _, err := fmt.Fprintf(c.stdout, format, args...); err != nil {
		return exit(exitOutput, "cannot write to stdout: %v", err)
	}
	return nil
}

// say writes a line of words.
func (c *console) say(format string, args ...any) {
	fmt.Fprintf(c.stderr, format+"\n", args...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program but for the process around it. It returns the exit
// code. Flags that are not given are taken from the environment.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, pause: pause}
	return con.run(ctx, args)
}

func (c *console) run(ctx context.Context, args []string) (code int) {
	out := &witness{w: c.stdout}
	parser, err := kong.New(&cli{},
		kong.Name("idemd"),
		kong.Description(description),
		kong.DefaultEnvars("IDEMD"),
		serveDefaults(),
		kong.Writers(out, c.stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true}),
		// kong goes on after Exit as if it had not been called.
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.Bind(c),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		panic(err) // the struct above cannot be read
	}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case exited:
			code = int(e)
		default:
			panic(e)
		}
	}()
	chosen, err := parser.Parse(args)
	if out.err != nil { // kong takes help that cannot be written for bad usage
		return report(c, exit(exitOutput, "cannot write to stdout: %v", out.err))
	}
	if err != nil {
		c.say("idemd: %v\nTry idemd --help.", err)
		return exitUsage
	}
	return report(c, chosen.Run())
}

// witness remembers that a write failed.
type witness struct {
	w   io.Writer
	err error
}

func (w *witness) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	if err != nil {
		w.err = err
	}
	return n, err
}

// exited carries an exit code out of kong.
type exited int

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
