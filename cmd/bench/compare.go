package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/idemd/idemd/bench"
)

// exitUnjudged is compare's: there is no regression in what could be judged, but
// something that both have could not, or nothing at all could.
const exitUnjudged = 3

type compareCmd struct {
	A string `arg:"" help:"Directory of the results to compare with (or its results.json)."`
	B string `arg:"" help:"Directory of the results that are judged."`

	Threshold  percent  `default:"10%" placeholder:"PERCENT" help:"How much worse a figure must be, beyond the noise, to be a regression. Too low reports what nobody would act upon."`
	Confidence percent  `default:"99%" placeholder:"PERCENT" help:"How sure the noise band is, for each figure. 99% needs 5 runs of each side, 95% needs 4, 90% needs 3."`
	Profile    []string `placeholder:"NAME" help:"Compare only this one; may be given more than once, or with commas."`
	JSON       bool     `name:"json" help:"Write JSON."`
	SVG        string   `name:"svg" placeholder:"FILE" help:"Also write a percentile plot of A, B and their controls."`
	Linear     bool     `help:"Latencies of the plot on a linear scale (logarithmic)."`
}

// Help is shown by bench compare --help.
func (*compareCmd) Help() string {
	return `Compares profiles that both have with the same load. What is compared is the ratio to
the control of the same run: (B / B's control) / (A / A's control). The noise band comes
from the repeats, by their ranks: with 5 runs of each and 99% it goes from the best to the
worst quotient of a run of B and a run of A. A figure is better or worse only if the band
does not hold "no change"; a regression is worse by more than the threshold as well.

Profiles that are void, have no control, or have too few runs to know the noise are shown
and not judged. Where A and B were measured on different machines, bench compare says so;
the only fair comparison is make bench-compare, which takes turns on one.

Exit codes: 0 no regression, 1 a regression, 2 usage or results that cannot be read,
3 no regression in what could be judged, but nothing could be, or not every profile that
both have with the same load.`
}

// Run compares, shows, and exits by what it found.
func (c *compareCmd) Run(con *console) error {
	a, err := bench.Open(c.A)
	if err != nil {
		return exit(exitUsage, "%s", plainWords(err))
	}
	b, err := bench.Open(c.B)
	if err != nil {
		return exit(exitUsage, "%s", plainWords(err))
	}
	found, err := bench.Compare(a, b, bench.CompareOptions{
		Threshold: float64(c.Threshold), Confidence: float64(c.Confidence), Profiles: c.Profile,
	})
	if err != nil {
		return exit(exitUsage, "%s", plainWords(err))
	}
	if c.SVG != "" {
		if err := c.plot(con, found, a, b); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	write := found.WriteText
	if c.JSON {
		write = found.WriteJSON
	}
	if err := write(&out); err != nil {
		return err
	}
	if err := con.print("%s", out.Bytes()); err != nil {
		return err
	}
	switch n := found.Regressions(); {
	case n > 0:
		return exit(exitFailed, "")
	case found.Judged() == 0:
		return exit(exitUnjudged, "nothing could be judged")
	}
	if left := found.NotJudged(); len(left) > 0 {
		words := make([]string, len(left))
		for i, l := range left {
			words[i] = l.String()
		}
		return exit(exitUnjudged, "not everything could be judged: %s", strings.Join(words, "; "))
	}
	return nil
}

func (c *compareCmd) plot(con *console, found *bench.Comparison, a, b *bench.Saved) error {
	if len(found.Profiles) == 0 {
		con.say("bench: no profile in common, and so no plot")
		return nil
	}
	svg, err := found.Plot(a, b, !c.Linear)
	if err != nil {
		return exit(exitUsage, "--svg: %s", plainWords(err))
	}
	if err := os.WriteFile(c.SVG, svg, 0o644); err != nil {
		return exit(exitUsage, "--svg: %v", err)
	}
	return nil
}

// percent is a part of one, written as 10%.
type percent float64

// UnmarshalText wants the sign, since 0.1 and 10 could both be meant.
func (p *percent) UnmarshalText(text []byte) error {
	number, ok := strings.CutSuffix(string(text), "%")
	x, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil {
		return fmt.Errorf("%q is not a percentage, such as 10%%", text)
	}
	*p = percent(x / 100)
	return nil
}
