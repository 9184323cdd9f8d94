package main

import (
	"errors"
	"path/filepath"

	"github.com/idemd/idemd/bench"
)

type reportCmd struct {
	Results []string `arg:"" optional:"" help:"Directories of results, as run --out wrote them; none writes the index again."`
	Out     string   `default:"results" placeholder:"DIR" help:"Where reports are filed (results)."`
	Replace bool     `help:"Replace what is filed of the same day and commit."`
}

// Help is shown by bench report --help.
func (*reportCmd) Help() string {
	return `Files results under the date and the commit, with histograms and plots, and writes an
index, README.md: how to read the figures, how to have them again, the newest in full, the
older in a table. Results of one day and commit are merged. The same again changes nothing.

Exit codes: 0 done, 1 they could not be filed, 2 usage or results that cannot be read.`
}

// Run files results.
func (c *reportCmd) Run(con *console) error {
	all, err := openAll(c.Results)
	if err != nil {
		return err
	}
	err = bench.Report(c.Out, c.Replace, all...)
	if errors.Is(err, bench.ErrFiled) {
		return exit(exitFailed, "%s; --replace replaces them", plainWords(err))
	}
	if err != nil {
		return exit(exitFailed, "%s", plainWords(err))
	}
	return con.print("%s\n", filepath.Join(c.Out, "README.md"))
}
