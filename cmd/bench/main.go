// Command bench measures idemd, compares measurements and reports them. Each
// command is a file of this package; main only reads the command line and turns
// what a command returns into an exit code.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

const description = `Measures idemd from outside, beside a control that does nothing, and checks its counts.

Data goes to stdout, words go to stderr. Exit codes:

  0  done
  1  it could not be brought to its end, figures are void, or there is a regression
  2  usage
  3  compare: nothing, or not everything, could be judged
  74 stdout cannot be written`

type cli struct {
	Run     runCmd     `cmd:"" help:"Measure."`
	Compare compareCmd `cmd:"" help:"Compare the results of two commits; exit by whether there is a regression."`
	Merge   mergeCmd   `cmd:"" help:"Make one of several results of one commit."`
	Report  reportCmd  `cmd:"" help:"File results, with plots and an index."`
	Control controlCmd `cmd:"" hidden:"" help:"Serve the control; run starts it."`
}

// Exit codes; the help says them in words.
const (
	exitFailed = 1
	exitUsage  = 2
	exitOutput = 74
)

// console is where a command reads and writes.
type console struct {
	stdin  io.Reader
	stdout io.Writer // data
	stderr io.Writer // words
	args   []string  // the command line, to be kept with what came of it
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

// exitError ends the program with a code and a message.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }

func exit(code int, format string, args ...any) error {
	return &exitError{code: code, message: fmt.Sprintf(format, args...)}
}

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	withdraw(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// patience is how long after a signal another one does not matter.
const patience = time.Second

// withdraw has a second signal end the process at once, which leaves what it has
// started. Not one that comes with the first: timeout(1) and make send it to the
// process when its group has it already.
func withdraw(ctx context.Context, stop func()) {
	context.AfterFunc(ctx, func() { time.AfterFunc(patience, stop) })
}

// run is the whole program but for the process around it. It returns the exit
// code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, args: args}
	parser, err := kong.New(&cli{},
		kong.Name("bench"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true}),
		// kong goes on after Exit as if it had not been called.
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.Bind(con),
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
	if err != nil {
		con.say("bench: %v\nTry bench --help.", err)
		return exitUsage
	}
	if err = chosen.Run(); err == nil {
		return 0
	}
	if msg := err.Error(); msg != "" {
		con.say("bench: %s", msg)
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

// exited carries an exit code out of kong.
type exited int

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
