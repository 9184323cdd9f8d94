package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
	"github.com/idemd/idemd/probe"
)

type reconcileCmd struct {
	Ledger string `required:"" placeholder:"SOURCE" help:"What really happened: a server's URL, the data directory of a stopped server, a file of NDJSON or CSV, or - for stdin."`
	Format string `default:"auto" enum:"auto,ndjson,csv" placeholder:"auto" help:"How that file is written: auto, ndjson or csv."`
	Column string `aliases:"intent-field" default:"idem_key" placeholder:"NAME" help:"The column or member that names the intent (${default}); /a/b is a JSON pointer."`
	// Not from the environment: a condition that is left over there would hide
	// duplicates without a word.
	Where []string `sep:"none" env:"-" placeholder:"NAME=VALUE" help:"Count only rows of the ledger whose column or member has this value; may be given more than once, and then all must."`

	Expected       string `required:"" placeholder:"FILE" help:"The intents that were to happen once each: a file of NDJSON or CSV, or - for stdin."`
	ExpectedFormat string `default:"auto" enum:"auto,ndjson,csv" placeholder:"auto" help:"How that file is written: auto, ndjson or csv."`
	ExpectedField  string `default:"idem_key" placeholder:"NAME" help:"The column or member in it that names the intent (${default})."`

	Namespace string        `default:"default" placeholder:"NAME" help:"The namespace to read of a data directory (${default}); a server gives its caller's."`
	MaxRows   int           `default:"10000000" placeholder:"N" help:"The most intents, and the most effects, to hold in memory (${default})."`
	Timeout   time.Duration `default:"5s" placeholder:"5s" help:"How long a server may send nothing."`
	JSON      bool          `name:"json" help:"Write a JSON document with all offending ids."`
}

// Help is what the help of this command says on top.
func (*reconcileCmd) Help() string {
	return `Compares what was to happen with what did: an intent without an effect is lost, effects beyond the first of an intent are duplicates, effects of no intent are unexpected. Clean means that there is none of them.

  idemd reconcile --ledger http://127.0.0.1:8081 --expected intents.jsonl
  idemd reconcile --ledger export.csv --column metadata_order --where status=captured --expected orders.csv --expected-field order

A line of the intents is an object, or only a string. An intent that is there twice is an error, and so is a ledger that is cut off. A CSV file must end with a line feed: else nobody knows whether its last field is whole; and if it has only one column, a blank line is an empty id, which is an error. A server's ledger is read while it goes on: intents that are not done yet are lost in it.

All ids are in memory at once. A million intents with an effect each take about 350 MB with ids of 36 bytes, and 700 MB where nothing matches. A line may have 1 MiB, an id 1024 bytes.

Exit codes: 0 clean, 1 not clean, 2 usage or bad input, 7 a source is unavailable or broke off, 75 the data directory is in use.`
}

// Run reconciles and exits with 0 if the ledger is clean.
func (c *reconcileCmd) Run(ctx context.Context, con *console) error {
	ledger := source(c.Ledger)
	if c.Ledger == "-" && c.Expected == "-" {
		return exit(exitUsage, "--ledger and --expected cannot both be stdin")
	}
	if c.MaxRows < 1 {
		return exit(exitUsage, "--max-rows: must be at least 1")
	}
	table := probe.Table{Name: c.Ledger, Format: probe.Format(c.Format), Field: c.Column}
	for _, w := range c.Where {
		cond, err := probe.ParseCondition(w)
		if err != nil {
			return exit(exitUsage, "--where: %s", strings.TrimPrefix(err.Error(), "probe: "))
		}
		table.Where = append(table.Where, cond)
	}
	if (ledger.live() || ledger.store()) && table.Format == probe.FormatCSV {
		return exit(exitUsage, "--format: idemd's own ledger is not CSV")
	}

	r := probe.NewReconciliation(c.MaxRows)
	expected := probe.Table{Name: c.Expected, Format: probe.Format(c.ExpectedFormat), Field: c.ExpectedField}
	rows, err := c.read(ctx, con, source(c.Expected), expected, r.Expect)
	if err != nil {
		return err
	}
	if rows.Read == 0 {
		return exit(exitUsage, "%s: there are no intents, so there is nothing to reconcile", c.Expected)
	}
	rows, err = c.readLedger(ctx, con, ledger, table, r.Commit)
	if err != nil {
		return err
	}
	return con.showVerdict(r.Verdict(), rows.Skipped, c.JSON)
}

// read reads a file.
func (c *reconcileCmd) read(ctx context.Context, con *console, s source, t probe.Table, each func(string) error) (probe.Rows, error) {
	f, err := s.file(con)
	if err != nil {
		return probe.Rows{}, err
	}
	defer f.Close()
	if s == "-" {
		t.Name = "stdin"
	}
	return con.readTable(ctx, f, t, each)
}

// readLedger reads a ledger, wherever it is.
func (c *reconcileCmd) readLedger(ctx context.Context, con *console, s source, t probe.Table, each func(string) error) (probe.Rows, error) {
	switch {
	case s.live():
		body, err := s.ledger(ctx, c.Timeout)
		if err != nil {
			return probe.Rows{}, err
		}
		defer body.Close()
		t.Format, t.Ended = probe.FormatNDJSON, true
		return con.readTable(ctx, body, t, each)
	case s.store():
		return c.readStore(ctx, con, t, each)
	default:
		return c.read(ctx, con, s, t, each)
	}
}

// readTable reads a table, and can be interrupted.
func (c *console) readTable(ctx context.Context, r io.Reader, t probe.Table, each func(string) error) (probe.Rows, error) {
	progress, done := c.rowsRead(t.Name)
	t.Progress = progress
	rows, err := t.Read(interruptible{ctx, r}, each)
	done()
	return rows, inputError(err)
}

// readStore reads the ledger of a stopped server. Its rows go the way of a
// stream's, so that fields and conditions mean the same.
func (c *reconcileCmd) readStore(ctx context.Context, con *console, t probe.Table, each func(string) error) (rows probe.Rows, err error) {
	others := 0
	progress, done := con.rowsRead(t.Name)
	err = kv.ReadEffects(ctx, storeOptions(c.Ledger, con), func(e idem.Effect) error {
		if e.Key.Namespace != idem.Namespace(c.Namespace) {
			others++
			return nil
		}
		line, err := json.Marshal(effectDoc(&e))
		if err != nil {
			return err
		}
		id, chosen, err := t.Row(line)
		if err != nil {
			return exit(exitUsage, "%s: %v", c.Ledger, err)
		}
		if rows.Read++; progress != nil {
			progress(rows.Read)
		}
		if !chosen {
			rows.Skipped++
			return nil
		}
		if err := each(id); err != nil {
			return exit(exitUsage, "%s: %s", c.Ledger, strings.TrimPrefix(err.Error(), "probe: "))
		}
		return nil
	})
	done()
	if err == nil && others > 0 {
		con.say("idemd: %d effects of other namespaces are left out", others)
	}
	return rows, storeError(c.Ledger, err)
}

// verdictDoc is the verdict as JSON.
type verdictDoc struct {
	Clean         bool     `json:"clean"`
	Expected      int      `json:"expected"`
	Committed     int      `json:"committed"`
	Distinct      int      `json:"distinct"`
	Duplicates    int      `json:"duplicates"`
	Lost          int      `json:"lost"`
	Unexpected    int      `json:"unexpected"`
	Skipped       int      `json:"skipped"`
	DuplicateIDs  []string `json:"duplicate_ids"`
	LostIDs       []string `json:"lost_ids"`
	UnexpectedIDs []string `json:"unexpected_ids"`
}

// shownIDs is how many ids of a kind are shown to people.
const shownIDs = 20

// showVerdict writes a verdict and ends with 1 unless it is clean.
func (c *console) showVerdict(v probe.Verdict, skipped int, asJSON bool) error {
	if asJSON {
		doc, err := json.Marshal(verdictDoc{
			v.Clean(), v.Expected, v.Committed, v.Distinct, v.Duplicates, v.Lost, v.Unexpected, skipped,
			append([]string{}, v.DuplicateIDs...), append([]string{}, v.LostIDs...), append([]string{}, v.UnexpectedIDs...),
		})
		if err != nil {
			return err
		}
		if err := c.print("%s\n", doc); err != nil {
			return err
		}
	} else if err := c.printVerdict(v, skipped); err != nil {
		return err
	}
	if !v.Clean() {
		return exit(exitFailed, "the ledger is not clean: %d duplicates, %d lost, %d unexpected", v.Duplicates, v.Lost, v.Unexpected)
	}
	if !asJSON {
		c.say("idemd: the ledger is clean")
	}
	return nil
}

func (c *console) printVerdict(v probe.Verdict, skipped int) error {
	var out bytes.Buffer
	count := func(name string, n int) { fmt.Fprintf(&out, "%-11s %d\n", name, n) }
	count("expected", v.Expected)
	count("committed", v.Committed)
	count("distinct", v.Distinct)
	list := func(name string, n int, ids []string) {
		count(name, n)
		for _, id := range ids[:min(len(ids), shownIDs)] {
			fmt.Fprintf(&out, "  %s\n", plain(id))
		}
		if more := len(ids) - shownIDs; more > 0 {
			fmt.Fprintf(&out, "  … and %d more\n", more)
		}
	}
	list("duplicates", v.Duplicates, v.DuplicateIDs)
	list("lost", v.Lost, v.LostIDs)
	list("unexpected", v.Unexpected, v.UnexpectedIDs)
	if skipped > 0 {
		count("skipped", skipped)
	}
	return c.print("%s", out.Bytes())
}
