package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

type toolsCmd struct {
	Lint toolsLintCmd `cmd:"" help:"Check a tools file, and say what happens to a call when something goes wrong."`
	List toolsListCmd `cmd:"" help:"Show the tools that a running server has."`
}

type toolsLintCmd struct {
	File      string `arg:"" help:"The tools file (what serve has as --tools)."`
	NoSamples bool   `help:"The server goes without its sample tools, so that their names are free."`
}

// Help is what the help of this command says on top.
func (*toolsLintCmd) Help() string {
	return `Reads the file as serve does, with the same environment and the same secrets, and sends nothing. Without faults it explains each tool: what becomes of a call when the daemon is killed, the answer is lost, or another one comes than hoped for, and what a person has to decide then. A warning is no fault. With faults it writes all of them, one a line:

  FILE:LINE:COLUMN: where: what is wrong, and what would be right

Exit codes: 0 serve takes the file, 1 it has faults, 2 usage, or the file cannot be read, 74 stdout cannot be written.`
}

// Run checks a file.
func (c *toolsLintCmd) Run(con *console) error {
	specs, err := tool.Load(c.File, os.LookupEnv)
	if err == nil && !c.NoSamples {
		err = tool.Clashes(specs, tool.Samples())
	}
	var faults tool.Faults
	switch {
	case errors.As(err, &faults):
		for _, f := range faults {
			if err := con.print("%s\n", plain(f.Error())); err != nil {
				return err
			}
		}
		return exit(exitFailed, "faults: %d", len(faults))
	case err != nil:
		return badTools(err)
	}
	for i, s := range specs {
		if i > 0 {
			if err := con.print("\n"); err != nil {
				return err
			}
		}
		if err := con.print("%s", explanation(s)); err != nil {
			return err
		}
	}
	if len(specs) == 0 {
		con.say("idemd: the file has no tools")
	}
	return nil
}

// badTools ends the program for a tools file that cannot be read; faults in it stay
// what they are.
func badTools(err error) error {
	var faults tool.Faults
	if errors.As(err, &faults) {
		return err
	}
	return exit(exitUsage, "%s", plain(strings.TrimPrefix(err.Error(), "tool: ")))
}

// The layout of an explanation.
const (
	whenColumn = 27
	textWidth  = 100
)

// explanation is what is said of a tool, for people.
func explanation(s *tool.Spec) string {
	var b strings.Builder
	b.WriteString(plain(s.Name))
	if s.Description != "" {
		b.WriteString(": " + plain(s.Description))
	}
	b.WriteString("\n")
	for _, m := range s.Explain() {
		writeMoment(&b, m.When, m.What)
	}
	for _, w := range s.Warnings(runner.DefaultWorkers) {
		writeMoment(&b, "warning", w)
	}
	return b.String()
}

// writeMoment writes a text beside its name. A line that is indented already is
// left as it is.
func writeMoment(b *strings.Builder, when, what string) {
	margin := strings.Repeat(" ", whenColumn)
	fmt.Fprintf(b, "  %-*s", whenColumn-2, plain(when))
	if len(when) > whenColumn-3 {
		b.WriteString("\n" + margin)
	}
	for i, line := range strings.Split(what, "\n") {
		if i > 0 {
			b.WriteString(margin)
		}
		b.WriteString(strings.Join(wrap(plain(line), textWidth-whenColumn), "\n"+margin) + "\n")
	}
}

// wrap breaks a line at blanks, so that its parts are at most so wide where their
// words are.
func wrap(line string, width int) []string {
	if strings.HasPrefix(line, " ") {
		return []string{line}
	}
	var out []string
	for len(line) > width {
		cut := strings.LastIndexByte(line[:width+1], ' ')
		if cut <= 0 {
			if cut = strings.IndexByte(line, ' '); cut < 0 {
				break
			}
		}
		out = append(out, line[:cut])
		line = line[cut+1:]
	}
	return append(out, line)
}

type toolsListCmd struct {
	remote
}

// Help is what the help of this command says on top.
func (*toolsListCmd) Help() string {
	return `A line for each tool: its name, where it has its effect, what it allows after an answer was lost, and what it is for. With --json also the schema of its args, for jq:

  idemd tools list --json | jq '.tools[] | select(.name == "charge") | .schema'`
}

const pathTools = "/v1/tools"

var toolColumns = []int{16, 8, 6}

// Run shows the tools of a server.
func (c *toolsListCmd) Run(ctx context.Context, con *console) error {
	a, err := c.send(ctx, question{method: http.MethodGet, path: pathTools})
	if err != nil {
		return failed(err, exitUnavailable)
	}
	if c.JSON {
		if err := con.writeJSON(a); err != nil {
			return err
		}
	}
	var doc struct {
		Tools []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
			Effects     string `json:"effects"`
			Rerun       string `json:"rerun"`
		} `json:"tools"`
	}
	if a.status != http.StatusOK {
		return a.refused(exitUnavailable)
	}
	if json.Unmarshal(a.body, &doc) != nil || doc.Tools == nil {
		return exit(exitUnavailable, "%s", errStranger)
	}
	switch {
	case c.JSON:
		return nil
	case len(doc.Tools) == 0:
		con.say("idemd: there is nothing to show")
		return nil
	}
	lines := []string{cells(toolColumns, "TOOL", "EFFECTS", "RERUN", "DESCRIPTION")}
	for _, t := range doc.Tools {
		lines = append(lines, cells(toolColumns, t.Name, t.Effects, t.Rerun, t.Description))
	}
	return con.print("%s\n", strings.Join(lines, "\n"))
}
