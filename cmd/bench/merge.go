package main

import (
	"github.com/idemd/idemd/bench"
)

type mergeCmd struct {
	Results []string `arg:"" help:"Directories of results of one commit, from one machine."`
	Out     string   `required:"" placeholder:"DIR" help:"Where the sum goes; it must not hold results."`
}

// Help is shown by bench merge --help.
func (*mergeCmd) Help() string {
	return `Makes one of several results, so that runs which took turns with another program's stand
together. The runs of profiles with the same load are repeats of each other then.

Exit codes: 0 done, 2 usage or results that cannot be merged.`
}

// Run merges.
func (c *mergeCmd) Run() error {
	parts, err := openAll(c.Results)
	if err != nil {
		return err
	}
	sum, err := bench.Merge(parts...)
	if err != nil {
		return exit(exitUsage, "%s", plainWords(err))
	}
	if err := sum.Save(c.Out); err != nil {
		return exit(exitUsage, "%s", plainWords(err))
	}
	return nil
}

func openAll(dirs []string) ([]*bench.Saved, error) {
	var all []*bench.Saved
	for _, dir := range dirs {
		s, err := bench.Open(dir)
		if err != nil {
			return nil, exit(exitUsage, "%s", plainWords(err))
		}
		all = append(all, s)
	}
	return all, nil
}
