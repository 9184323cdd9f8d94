package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// Exit codes of probe; 0 is as declared, and exitFailed is that it could not be
// brought to its end.
const (
	exitDiffers      = 2
	exitPrecondition = 3
	exitNothing      = 4
	exitSelfTest     = 5
)

// probeCmd is the proof. Nothing is taken from the environment: what is proved
// must be seen in the command line.
type probeCmd struct {
	Run      probeRunCmd      `cmd:"" default:"withargs" help:"Run scenarios and judge them on their ledgers (the default)."`
	Selftest probeSelftestCmd `cmd:"" help:"Judge the probe's own judgement; opens no port."`
	Classify probeClassifyCmd `cmd:"" help:"Say what recorded readings mean."`
}

type probeRunCmd struct {
	Scenario []string `env:"-" placeholder:"NAME" help:"Run only these; may be given more than once, or with commas."`
	List     bool     `env:"-" help:"List the scenarios and what they are declared to give."`
	Binary   string   `env:"-" placeholder:"PATH" help:"The idemd to start for the idemd_* scenarios (this program)."`
	Keep     string   `env:"-" placeholder:"DIR" help:"Keep ledgers, data directories and logs in this directory, which must be empty or not there; some 140 MB for each of the idemd_* scenarios."`
	Verbose  bool     `env:"-" help:"Show every try, also of a crowd that is alike."`
	JSON     bool     `env:"-" name:"json" help:"Write JSON only."`

	Target       string        `env:"-" placeholder:"URL" help:"Do it to this endpoint, which takes a POST, instead of the probe's own services."`
	Ledger       string        `env:"-" placeholder:"URL|FILE" help:"The target's ledger, NDJSON or CSV; of an idemd, its URL."`
	LedgerFormat string        `env:"-" default:"auto" enum:"auto,ndjson,csv" placeholder:"auto" help:"How it is written: auto, ndjson or csv."`
	IntentField  string        `env:"-" default:"idem_key" placeholder:"NAME" help:"The member or column of the ledger with the intent, or with the key, which is the same text (${default}); /a/b is a JSON pointer."`
	KeyHeader    string        `env:"-" default:"Idempotency-Key" placeholder:"NAME" help:"The field of a request that has the key."`
	Body         string        `env:"-" placeholder:"TEMPLATE" help:"What is sent, with {{intent}} and {{amount}} in it; @FILE reads it from a file."`
	Header       []string      `env:"-" sep:"none" placeholder:"NAME:VALUE" help:"A field for every request, such as a credential; may be given more than once."`
	Intents      int           `env:"-" default:"3" placeholder:"N" help:"Intents of a scenario (${default})."`
	Timeout      time.Duration `env:"-" default:"5s" placeholder:"5s" help:"Of one try, at most 1h; the scenario with a slow answer takes that long."`
	Settle       time.Duration `env:"-" default:"1s" placeholder:"1s" help:"How long after the last request the ledger may still grow."`

	ThisIsATestSystem bool `env:"-" help:"Allow a target that is not on this machine. Real effects are made there, some of them twice where it is not idempotent."`
}

// Help is shown by idemd probe --help.
func (*probeCmd) Help() string {
	return `Proves what idemd promises, on ledgers, never on answers. First come ten scenarios
against a small payment service with a ledger on disk, most of whose policies are
wrong on purpose: a probe that cannot see a loss or a double proves nothing. Then
come the same faults, and kills at every point, against idemd itself, started as a
process of its own over a new directory: duplicates and lost must be 0 in all of
them. The table is followed by every try and by the ledger's lines, then by JSON.

  idemd probe
  idemd probe --scenario race_racy,idemd_race_2 --verbose
  idemd probe --json | jq -e .ok
  idemd probe run --help          (all flags)

req is requests that ask for the effect, on the wire; committed is effects in the
ledger; uniq is intents with at least one; dup is effects beyond the first; lost is
intents without one.

With --target it does what happens to a client (a lost answer, a slow one, a request
that arrives twice, races, other args under a key) to a service in any language, and
judges it by its ledger:

  idemd probe --target http://127.0.0.1:9000/payments --ledger payments.csv --intent-field order \
    --body '{"order":"{{intent}}","amount":{{amount}}}'
  idemd probe --target http://127.0.0.1:8081/v1/tool-calls --ledger http://127.0.0.1:8081 \
    --body '{"tool":"charge","args":{"amount":{{amount}}}}' --header 'Prefer: wait=10'

Exit codes: 0 as declared, 1 it could not be brought to its end, 2 a scenario differs
from its declaration (or bad usage), 3 a precondition is missing (the program, the target,
its ledger, a directory), 4 there is nothing to do (no such scenario, no reading), 5 the
self-test failed, 74 stdout cannot be written.`
}

// Validate is called by kong before Run.
func (c *probeRunCmd) Validate() error {
	if c.Target == "" {
		if c.Ledger != "" {
			return errors.New("--ledger goes with --target")
		}
		return nil
	}
	if c.Ledger == "" {
		return errors.New("--target needs --ledger: without one nothing can be judged")
	}
	if c.Binary != "" {
		return errors.New("--binary does not go with --target")
	}
	return nil
}

// Run runs the scenarios and shows what came of them.
func (c *probeRunCmd) Run(ctx context.Context, con *console) error {
	if c.List {
		return c.list(con)
	}
	o := probe.Options{Names: c.Scenario, Keep: c.Keep}
	var err error
	if c.Target != "" {
		if o.Target, err = c.target(); err != nil {
			return err
		}
	} else if o.Binary, err = c.program(); err != nil {
		return err
	}
	progress, done := con.scenarioBegins()
	o.Progress = progress
	results, err := probe.Run(ctx, o)
	done()
	if showErr := c.show(con, results); showErr != nil {
		return showErr
	}
	if c.Keep != "" && err == nil {
		con.say("idemd: ledgers and logs are in %s", plain(c.Keep))
	}
	words := func(err error) string { return strings.ReplaceAll(plain(err.Error()), "probe: ", "") }
	switch {
	case errors.Is(err, context.Canceled):
		return exit(exitFailed, "interrupted")
	case errors.Is(err, probe.ErrNothing):
		return exit(exitNothing, "%s; see idemd probe --list", words(err))
	case errors.Is(err, probe.ErrPrecondition):
		return exit(exitPrecondition, "%s", words(err))
	case err != nil:
		return exit(exitFailed, "%s", words(err))
	case !results.OK:
		return exit(exitDiffers, "a scenario is not as declared")
	}
	return nil
}

func (c *probeRunCmd) program() (string, error) {
	if c.Binary != "" {
		return c.Binary, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", exit(exitPrecondition, "where this program is cannot be found out; give --binary: %v", err)
	}
	return self, nil
}

func (c *probeRunCmd) target() (*probe.Target, error) {
	body := c.Body
	if file, ok := strings.CutPrefix(body, "@"); ok {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, exit(exitPrecondition, "the body: %v", err)
		}
		body = string(raw)
	}
	header := make(http.Header)
	for _, h := range c.Header {
		name, value, ok := strings.Cut(h, ":")
		if !ok || name == "" || strings.ContainsAny(h, "\r\n") {
			return nil, exit(exitUsage, "--header: want NAME:VALUE")
		}
		header.Add(name, strings.TrimSpace(value))
	}
	t := &probe.Target{
		URL: c.Target, Ledger: c.Ledger, KeyHeader: c.KeyHeader, Header: header, Body: body,
		Table:   probe.Table{Name: c.Ledger, Format: probe.Format(c.LedgerFormat), Field: c.IntentField},
		Intents: c.Intents, Timeout: c.Timeout, Settle: c.Settle, Remote: c.ThisIsATestSystem,
	}
	for name, bad := range map[string]bool{"--intents": c.Intents <= 0, "--timeout": c.Timeout <= 0, "--settle": c.Settle <= 0} {
		if bad {
			return nil, exit(exitUsage, "%s must be positive", name)
		}
	}
	if err := t.Validate(); err != nil {
		hint := ""
		if !c.ThisIsATestSystem {
			u := *t
			if u.Remote = true; u.Validate() == nil {
				hint = "; if it is one, say --this-is-a-test-system"
			}
		}
		return nil, exit(exitPrecondition, "%s%s", strings.ReplaceAll(plain(err.Error()), "probe: target: ", ""), hint)
	}
	return t, nil
}

// show writes the tables, what lies behind them, and the document.
func (c *probeRunCmd) show(con *console, results *probe.Results) error {
	if !c.JSON {
		if err := con.printResults(results.Scenarios, c.Verbose); err != nil {
			return err
		}
	}
	if len(results.Scenarios) == 0 && !c.JSON {
		return nil
	}
	doc, err := json.Marshal(results)
	if err != nil {
		return err
	}
	return con.print("%s\n", doc)
}

// printResults writes a table and its details for each kind of scenario.
func (c *console) printResults(results []*probe.Result, verbose bool) error {
	kinds := make(map[probe.Subject][]*probe.Result)
	for _, r := range results {
		kinds[r.On] = append(kinds[r.On], r)
	}
	var out bytes.Buffer
	for _, on := range []probe.Subject{probe.OnSink, probe.OnIdemd, probe.OnTarget} {
		some := kinds[on]
		if len(some) == 0 {
			continue
		}
		if err := probe.WriteTable(&out, some); err != nil {
			return err
		}
		out.WriteByte('\n')
		if err := probe.WriteDetails(&out, some, verbose); err != nil {
			return err
		}
		out.WriteByte('\n')
	}
	return c.print("%s", out.Bytes())
}

// list shows the scenarios without running any.
func (c *probeRunCmd) list(con *console) error {
	if c.JSON {
		doc, err := json.Marshal(probe.Scenarios())
		if err != nil {
			return err
		}
		return con.print("%s\n", doc)
	}
	var out bytes.Buffer
	if err := probe.WriteList(&out, probe.Scenarios()); err != nil {
		return err
	}
	return con.print("%s", out.Bytes())
}

// scenarioBegins shows on a terminal which scenario has begun; anywhere else it
// says nothing. done takes the line away.
func (c *console) scenarioBegins() (show func(name string, number, all int), done func()) {
	if !isTerminal(c.stderr) {
		return nil, func() {}
	}
	return func(name string, number, all int) {
			fmt.Fprintf(c.stderr, "\r%d of %d: %s\x1b[K", number, all, name)
		}, func() {
			fmt.Fprint(c.stderr, "\r\x1b[K")
		}
}

type probeSelftestCmd struct {
	JSON bool `env:"-" name:"json" help:"Write JSON."`
}

// Run judges the judgement.
func (c *probeSelftestCmd) Run(ctx context.Context, con *console) error {
	return con.showChecks(probe.SelfTest(ctx), c.JSON)
}

func (c *console) showChecks(checks []probe.Check, asJSON bool) error {
	failed := 0
	for _, k := range checks {
		if !k.OK {
			failed++
		}
	}
	if asJSON {
		doc, err := json.Marshal(struct {
			SchemaVersion int           `json:"schema_version"`
			OK            bool          `json:"ok"`
			Checks        []probe.Check `json:"checks"`
		}{probe.SchemaVersion, failed == 0, checks})
		if err != nil {
			return err
		}
		if err := c.print("%s\n", doc); err != nil {
			return err
		}
	} else {
		for _, k := range checks {
			word := "ok"
			if !k.OK {
				word = "FAILED"
			}
			if err := c.print("%-6s  %s (%d cases)\n", word, k.Name, k.Cases); err != nil {
				return err
			}
			for _, why := range k.Faults {
				if err := c.print("        %s\n", plain(why)); err != nil {
					return err
				}
			}
		}
	}
	if failed > 0 {
		return exit(exitSelfTest, "%d checks of the probe itself failed: do not believe what it says", failed)
	}
	return nil
}

type probeClassifyCmd struct {
	Input string `env:"-" required:"" placeholder:"FILE" help:"Recorded readings, an array of objects or an object a line; - for stdin."`
	JSON  bool   `env:"-" name:"json" help:"Write JSON, a line for each reading."`
}

// Help is what the help of this command says on top.
func (*probeClassifyCmd) Help() string {
	return `Says of each reading whether the effect may have happened, and what a client does next. The members of a reading are all optional:

  status       of the answer; 0, or absent: there was none
  not_sent     true: there never was a connection
  code         of idemd's error document; absent: another service may have answered
  effect       what that document says: none, unknown or committed
  call         the status of the call in a 200 or 202
  failure      the code of the failure in such a call
  broken       true: the body of a 200 or 202 is not whole
  retry_after  a string: seconds ("7"), or a duration ("1.5s")

  echo '[{"status":503},{"status":503,"code":"unavailable","effect":"none"},{}]' | idemd probe classify --input -`
}

// maxReadings bounds what is read, in bytes.
const maxReadings = 64 << 20

// Run classifies what was read.
func (c *probeClassifyCmd) Run(_ context.Context, con *console) error {
	in, err := source(c.Input).file(con)
	if err != nil {
		return exit(exitPrecondition, "%v", err)
	}
	defer in.Close()
	readings, err := readReadings(io.LimitReader(in, maxReadings+1))
	switch {
	case err != nil:
		return exit(exitUsage, "%s: %s", plain(c.Input), strings.ReplaceAll(plain(err.Error()), "client: ", ""))
	case len(readings) == 0:
		return exit(exitNothing, "%s: there are no readings", plain(c.Input))
	}
	var out bytes.Buffer
	if !c.JSON {
		fmt.Fprintf(&out, "%s\n", cells(readingColumns, "EFFECT", "ACTION", "READING"))
	}
	for _, r := range readings {
		v := client.Classify(r)
		doc, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if c.JSON {
			line, err := json.Marshal(struct {
				Reading json.RawMessage `json:"reading"`
				Verdict client.Verdict  `json:"verdict"`
			}{doc, v})
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, "%s\n", line)
			continue
		}
		fmt.Fprintf(&out, "%s\n", cells(readingColumns, string(v.Effect), string(v.Action), string(doc)+"  "+v.Why))
	}
	return con.print("%s", out.Bytes())
}

var readingColumns = []int{9, 6, 0}

// readReadings reads an array of readings, or one after the other. Nothing is
// guessed: what cannot be read is an error, with its number.
func readReadings(in io.Reader) ([]client.Reading, error) {
	dec := json.NewDecoder(in)
	var all []client.Reading
	for n := 1; ; n++ {
		var doc json.RawMessage
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err == nil && dec.InputOffset() > maxReadings {
			err = fmt.Errorf("more than %d bytes", maxReadings)
		}
		items := []json.RawMessage{doc}
		if err == nil && n == 1 && doc[0] == '[' {
			if err = json.Unmarshal(doc, &items); err == nil && len(items) == 0 {
				return nil, nil
			}
		}
		for _, item := range items {
			var r client.Reading
			if err == nil {
				r, err = readReading(item)
			}
			all = append(all, r)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// readReading reads one. Null would be taken for a request without an answer, and of
// two members of one name the last one.
func readReading(doc json.RawMessage) (r client.Reading, err error) {
	if doc[0] != '{' {
		return r, errors.New("a reading is an object")
	}
	var bad *idem.Error
	if _, err := idem.Canonical(doc); errors.As(err, &bad) {
		return r, errors.New(bad.Message)
	}
	return r, json.Unmarshal(doc, &r)
}
