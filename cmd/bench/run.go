package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/idemd/idemd/bench"
)

type runCmd struct {
	Profile []string `placeholder:"NAME" help:"What is measured; may be given more than once, or with commas; all is all of them."`
	List    bool     `help:"List the profiles."`

	Max         bool          `xor:"pace" help:"A closed loop: each connection sends as soon as it has its answer (the default)."`
	Rate        int           `xor:"pace" placeholder:"N" help:"Send so many requests a second, whatever the answers."`
	Duration    time.Duration `default:"5s" help:"How long each series lasts."`
	Requests    int64         `placeholder:"N" help:"End each series after so many requests instead."`
	Connections int           `default:"64" help:"At most."`
	Engine      string        `default:"vegeta" enum:"vegeta,bare" help:"What sends: vegeta, or bare, which takes less of the machine, for closed loops only."`
	Keys        int           `default:"1" help:"How many ended calls replay, conflict and poll ask for."`
	Timeout     time.Duration `default:"30s" help:"Of one request."`
	Runs        int           `default:"1" help:"How often each profile is measured, in turns with its control; compare needs 5."`
	Warmup      time.Duration `default:"2s" help:"Uncounted requests of the profile before the first series. Too short measures a store whose buffers are still small."`

	Idemd   string   `placeholder:"PATH" help:"The program to measure (idemd beside this program)."`
	Flag    []string `sep:"none" placeholder:"FLAG" help:"One more flag of idemd serve, such as --flag=--workers=32; may be given more than once."`
	Control string   `placeholder:"PATH" help:"The program that serves the control (this one). With --target there is a control only where this is given."`
	Target  string   `placeholder:"URL" help:"Measure an idemd that runs already, and that nobody else uses. It gets real calls."`
	Preload int64    `placeholder:"N" help:"Measure on a store with at least so many ended calls."`
	Data    string   `placeholder:"DIR" help:"Use this data directory, and keep it: a preloaded one can be used again."`
	Dir     string   `placeholder:"DIR" help:"Where new data directories are made and removed; decides which disk is measured (the system's temporary directory)."`

	Out  string `placeholder:"DIR" help:"Write results.json and the histograms into this directory, which must be empty or not there."`
	JSON bool   `name:"json" help:"Write JSON only."`
}

// Help is shown by bench run --help.
func (*runCmd) Help() string {
	return `Starts idemd as a process of its own on a new directory, warms it up, and sends
requests. Each series has its control in the same run: the same requests to a handler
that reads the body, answers as many bytes and does nothing. Compare ratios to the
control; absolute figures are of one machine at one time.

Latencies count from when a request was due. After each series /stats must agree with
the answers, and all of them must be the right ones (but for recovery). Figures that must
not be used are marked VOID, with the reason, and the exit code is 1.

  bench run --profile distinct,same
  bench run --profile all --runs 5 --out results/mine
  bench run --profile distinct --rate 2000 --duration 30s
  bench run --profile distinct --preload 1000000 --data /big/store
  bench run --list`
}

// Validate is called by kong before Run.
func (c *runCmd) Validate() error {
	switch {
	case len(c.Profile) == 0 && !c.List:
		return errors.New("--profile is missing; --list lists them")
	case c.Rate < 0 || c.Requests < 0 || c.Preload < 0 || c.Warmup < 0:
		return errors.New("nothing can be negative")
	case c.Duration <= 0 || c.Timeout <= 0 || c.Connections <= 0 || c.Keys <= 0 || c.Runs <= 0:
		return errors.New("--duration, --timeout, --connections, --keys and --runs must be positive")
	}
	return nil
}

// Run measures and shows what came of it.
func (c *runCmd) Run(ctx context.Context, con *console) error {
	if c.List {
		return listProfiles(con)
	}
	o, err := c.options(con)
	if err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return exit(exitUsage, "%s", plainWords(err))
	}
	if c.Out != "" {
		if err := vacant(c.Out); err != nil {
			return exit(exitUsage, "--out: %v", err)
		}
	}
	progress, done := con.bar()
	o.Progress = progress
	rec, err := bench.Run(ctx, o)
	done()
	switch {
	case errors.Is(err, context.Canceled):
		return exit(exitFailed, "interrupted; nothing was written")
	case err != nil:
		return exit(exitFailed, "%s", plainWords(err))
	}
	if c.Out != "" {
		if err := rec.Save(c.Out); err != nil {
			return exit(exitFailed, "%s", plainWords(err))
		}
	}
	if err := c.show(con, &rec.Results); err != nil {
		return err
	}
	var void []string
	for _, p := range rec.Profiles {
		if len(p.Void) > 0 {
			void = append(void, p.Name)
		}
	}
	if len(void) > 0 {
		return exit(exitFailed, "these figures must not be used: %s", strings.Join(void, ", "))
	}
	return nil
}

func (c *runCmd) show(con *console, r *bench.Results) error {
	if c.JSON {
		doc, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return con.print("%s\n", doc)
	}
	var out bytes.Buffer
	if err := bench.WriteScreen(&out, r); err != nil {
		return err
	}
	return con.print("%s", out.Bytes())
}

func (c *runCmd) options(con *console) (bench.Options, error) {
	o := bench.Options{
		Profiles: c.Profile, Idemd: c.Idemd, Flags: c.Flag, Target: c.Target, Engine: bench.Engine(c.Engine),
		Rate: c.Rate, Duration: c.Duration, Requests: c.Requests, Connections: c.Connections, Keys: c.Keys,
		Preload: c.Preload, Data: c.Data, Runs: c.Runs, Warmup: c.Warmup, Timeout: c.Timeout, Dir: c.Dir,
		Command: "bench " + shellWords(con.args),
	}
	self, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("where this program is cannot be found out: %w", err)
	}
	if o.Idemd == "" && o.Target == "" {
		o.Idemd = filepath.Join(filepath.Dir(self), "idemd")
	}
	switch {
	case c.Control != "":
		o.Control = []string{c.Control, "control"}
	case c.Target == "":
		o.Control = []string{self, "control"}
	}
	return o, nil
}

// shellWords writes arguments so that a shell reads them back.
func shellWords(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./,:=+@%", r)
		}) {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// plainWords takes the name of the package out of an error.
func plainWords(err error) string { return strings.ReplaceAll(err.Error(), "bench: ", "") }

// vacant wants a directory that is empty or not there, before anything is
// measured that could not be written then.
func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil && len(entries) > 0:
		return fmt.Errorf("%s is not empty", dir)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	if here, err := os.Stat("."); err == nil {
		if it, err := os.Stat(dir); err == nil && os.SameFile(here, it) {
			return errors.New("the directory takes the place of an empty one, and not of the one that you are in")
		}
	}
	// Results are made beside it, in the nearest directory that is there.
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		trial, err := os.MkdirTemp(parent, ".bench-*")
		switch {
		case err == nil:
			return os.Remove(trial)
		case !errors.Is(err, os.ErrNotExist) || parent == filepath.Dir(parent):
			return err
		}
		if _, err := os.Lstat(parent); err == nil { // it is there, and nothing can be made in it
			return fmt.Errorf("nothing can be written in %s", parent)
		}
	}
}

func listProfiles(con *console) error {
	for _, p := range bench.Profiles() {
		if err := con.print("%-15s %s\n", p.Name, p.About); err != nil {
			return err
		}
	}
	return nil
}

// barWidth is how many cells the progress bar has.
const barWidth = 30

// bar shows on a terminal how far the run is; anywhere else it says nothing.
// done takes the line away.
func (c *console) bar() (show func(bench.Progress), done func()) {
	if !isTerminal(c.stderr) {
		return nil, func() {}
	}
	return func(p bench.Progress) {
			full := min(max(int(p.Done*barWidth), 0), barWidth)
			fmt.Fprintf(c.stderr, "\r[%s%s] %3.0f%% %s, %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*p.Done, p.Profile, p.Step)
		}, func() {
			fmt.Fprint(c.stderr, "\r\x1b[K")
		}
}
