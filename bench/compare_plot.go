package bench

import (
	"fmt"
	"strings"
)

// Plot draws the latencies of A, B and their controls by percentile, a panel for
// each profile, as a self-contained SVG. All runs of a side are one line. The
// latency axis is logarithmic, or else linear. It needs the histograms of both.
func (c *Comparison) Plot(a, b *Saved, logarithmic bool) ([]byte, error) {
	var panels []panel
	for _, p := range c.Profiles {
		drawn := panel{title: p.String()}
		for _, side := range []struct {
			name, class string
			of          *Saved
		}{{"A", "a", a}, {"B", "b", b}} {
			if err := drawn.add(side.of, p.Load, side.name+" "+shortCommit(side.of.Commit), side.name+"'s control", side.class); err != nil {
				return nil, err
			}
		}
		panels = append(panels, drawn)
	}
	return plot(fmt.Sprintf("A %s and B %s", shortCommit(a.Commit), shortCommit(b.Commit)), panels, logarithmic)
}

// add adds the lines of a profile, and of its control if it has one.
func (p *panel) add(of *Saved, l Load, name, control, class string) error {
	for _, q := range of.Profiles {
		if loadOf(q) != l {
			continue
		}
		for _, s := range []struct {
			series      []Measurement
			name, class string
		}{{q.Runs, name, class}, {q.Control, control, "control-" + class}} {
			if len(s.series) == 0 {
				continue
			}
			h, err := of.latencies(s.series)
			if err != nil {
				return fmt.Errorf("%w (%s, %s)", err, l, s.name)
			}
			p.series = append(p.series, plotted{s.name, s.class, h})
		}
	}
	return nil
}

// shortCommit is a commit as people write it. A "-dirty" stays.
func shortCommit(c string) string {
	hash, rest, cut := strings.Cut(c, "-")
	if len(hash) > 12 {
		hash = hash[:12]
	}
	if cut {
		return hash + "-" + rest
	}
	return hash
}
