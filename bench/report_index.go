package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const howToRead = `# Figures

Written by ` + "`bench report`" + `; do not edit.

## How to read them

- **p50, p99, p99.9** are quantiles: of a hundred requests, 50 and 99 were answered within p50 and p99; max is the
  longest. Latency counts from when a request was *due*, so that a stall is seen by every request that it kept
  waiting, not only by the one that met it.
- **control** is a handler that reads the same requests, answers the same bytes and does nothing. It took turns with
  idemd on the same machine, in the same minutes, under the same load.
- **ratio** is idemd over the control of the same run: of throughput, 1 would be as many as doing nothing, 0.5 half as
  many; of latency, 1 would be as quick as doing nothing, 2 takes twice as long. The ratio is what may be compared
  between machines and between commits.
- **Times on the clock may not.** On a machine that others use too they move by half from one minute to the next, and
  on another machine they are other numbers. They are here to be seen beside their ratios.
- Each figure is the **median of the runs**, with the lowest and the highest. A difference that is within that range is
  noise until ` + "`bench compare`" + ` says otherwise.
- **open** load comes at a set rate, whatever the answers do, as users do. **closed** load asks again as soon as it is
  answered, and finds the maximum.
- **void** figures must not be used: the generator could not keep up, some answers were not the right ones, or the
  server's own counts did not agree with what was sent. The reason stands beside it.
- Plots have the percentile on the scale of HdrHistogram: every further nine is as wide as the one before, so the
  tail is not squeezed into the last pixel. They draw all runs together. The ` + "`.hlog`" + ` and ` + "`.hgrm`" + ` files beside each
  ` + "`results.json`" + ` are what they are drawn from, in microseconds, and open in any HdrHistogram viewer.
`

// index is the README of the directory of the report.
func index(filed []*entry) []byte {
	var b strings.Builder
	b.WriteString(howToRead)
	if len(filed) == 0 {
		b.WriteString("\nThere are no figures yet.\n")
		return []byte(b.String())
	}
	newest := filed[0]
	fmt.Fprintf(&b, "\n## %s, commit %s\n", newest.StartedAt.UTC().Format("2006-01-02"), markdown(shortCommit(newest.Commit)))
	newest.reproduce(&b)
	newest.environment(&b)
	for _, p := range newest.Profiles {
		newest.profile(&b, p)
	}

	b.WriteString("\n## All results, newest first\n\nThe numbers are the ratios to the control: throughput, then p99.\n\n")
	rows := [][]string{{"started", "results", "CPU", "profiles"}}
	for _, e := range filed {
		rows = append(rows, []string{
			e.StartedAt.UTC().Format("2006-01-02 15:04 UTC"), fmt.Sprintf("[%s](%s/)", markdown(e.name), e.name),
			fmt.Sprintf("%s, %s", markdown(e.Env.CPU), count(e.Env.Cores, "core")), e.summary(),
		})
	}
	table(&b, rows)
	return []byte(b.String())
}

func (e *entry) reproduce(b *strings.Builder) {
	b.WriteString("\n### How to reproduce\n\n")
	if hash, _, dirty := strings.Cut(e.Commit, "-dirty"); dirty {
		fmt.Fprintf(b, "The tree had changes on top of commit %s that were not committed: the figures cannot be had again as they are.\n\n", markdown(hash))
	} else {
		fmt.Fprintf(b, "At commit %s, after `make build`, on a machine that does nothing else:\n\n", markdown(e.Commit))
	}
	for line := range strings.Lines(e.Command) {
		fmt.Fprintf(b, "    %s\n", printable(strings.TrimSpace(line)))
	}
	b.WriteString("\n`make bench-compare BASE=COMMIT` compares a commit with the present tree, both on one machine, taking turns.\n")
}

func (e *entry) environment(b *strings.Builder) {
	b.WriteString("\n### Environment\n\n")
	load := "unknown"
	if e.Env.LoadBefore >= 0 {
		load = formatFloat(e.Env.LoadBefore)
	}
	f := e.Env.Fsync
	table(b, [][]string{
		{"what", "value"},
		{"CPU", markdown(e.Env.CPU)},
		{"cores that the run could use", fmt.Sprint(e.Env.Cores)},
		{"memory", fmt.Sprintf("%s GiB", digits3(float64(e.Env.Memory)/(1<<30)))},
		{"kernel", markdown(e.Env.Kernel)},
		{"Go", markdown(e.Env.Go)},
		{"file system of the store", markdown(e.Env.FileSystem)},
		{"load average before", load},
		{"a write and fsync of 4 KiB, same disk, same run", fmt.Sprintf("p50 %s, p99 %s, max %s", formatMicros(f.P50), formatMicros(f.P99), formatMicros(f.Max))},
	})
}

func (e *entry) profile(b *strings.Builder, p Profile) {
	l := loadOf(p)
	fmt.Fprintf(b, "\n### %s\n\n", markdown(l.String()))
	for _, why := range p.Void {
		fmt.Fprintf(b, "**Void, not to be used:** %s\n\n", markdown(why))
	}
	took := "Each until its requests were answered"
	if p.Duration > 0 {
		took = fmt.Sprintf("Each %v", p.Duration)
	}
	fmt.Fprintf(b, "%s of idemd, %d of the control. %s.\n\n", count(len(p.Runs), "run"), len(p.Control), took)

	rows := [][]string{{"", "idemd", "lowest to highest", "control", "lowest to highest", "ratio", "lowest to highest"}}
	for _, k := range kinds {
		format := formatMicros
		if k.name == "throughput" {
			format = formatRate
		}
		var values, control []float64
		for _, m := range p.Runs {
			values = append(values, k.of(m))
		}
		for _, m := range p.Control {
			control = append(control, k.of(m))
		}
		row := []string{figureTitle(k.name)}
		for _, c := range []struct {
			of     []float64
			format func(float64) string
		}{{values, format}, {control, format}, {k.ratios(p), formatRatio}} {
			if len(c.of) == 0 {
				row = append(row, "-", "-")
				continue
			}
			row = append(row, c.format(median(c.of)), c.format(slices.Min(c.of))+" to "+c.format(slices.Max(c.of)))
		}
		rows = append(rows, row)
	}
	table(b, rows)
	b.WriteString("\n")
	counted(b, p.Runs)
	if hasHistograms(p) {
		fmt.Fprintf(b, "\n![Latency by percentile: %s](%s/%s/%s.svg)\n", markdown(l.String()), e.name, plotsDir, l.slug())
	}
}

// counted says what all runs did together.
func counted(b *strings.Builder, runs []Measurement) {
	var requests, calls, effects, late int64
	var generator, server float64
	var gap time.Duration
	statuses, attempts := map[string]int64{}, map[string]int64{}
	known := true // what CPU was used
	for _, m := range runs {
		requests, calls, effects, late = requests+m.Requests, calls+m.Calls, effects+m.Effects, late+m.Late
		generator, server = generator+m.GeneratorCPU, server+m.ServerCPU
		known = known && m.GeneratorCPU >= 0 && m.ServerCPU >= 0
		gap = max(gap, m.Gap)
		for s, n := range m.Statuses {
			statuses[s] += int64(n)
		}
		for a, n := range m.Attempts {
			attempts[a] += n
		}
	}
	fmt.Fprintf(b, "All runs together: %d requests; answers by status: %s; calls %d, effects %d; ended calls by attempts: %s",
		requests, tally(statuses), calls, effects, tally(attempts))
	if n, ok := statuses["0"]; ok && n > 0 {
		b.WriteString("; status 0 is no answer")
	}
	if late > 0 {
		fmt.Fprintf(b, "; sent late: %d", late)
	}
	if gap > 0 {
		fmt.Fprintf(b, "; longest time without a right answer: %s", formatMicros(float64(gap)/1e3))
	}
	if known && generator+server > 0 {
		fmt.Fprintf(b, "; CPU: generator %ss, server %ss", digits3(generator), digits3(server))
	}
	b.WriteString(".\n")
}

// tally is a distribution in words.
func tally(counts map[string]int64) string {
	var all []string
	for _, k := range sortedKeys(counts) {
		all = append(all, fmt.Sprintf("%s × %d", markdown(k), counts[k]))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// summary is the ratios of every profile, in a few words each.
func (e *entry) summary() string {
	var all []string
	for _, p := range e.Profiles {
		words := p.Name
		if p.Pace == "open" {
			words += " at " + formatFloat(p.Rate) + "/s"
		}
		if p.Preload > 0 {
			words += fmt.Sprintf(" over %d", p.Preload)
		}
		if len(p.Void) > 0 {
			all = append(all, words+" void")
			continue
		}
		if len(p.Control) == 0 {
			all = append(all, words+" without control")
			continue
		}
		for _, k := range kinds {
			if k.name == "throughput" || k.name == "p99" {
				words += " " + or(finite(median(k.ratios(p))), formatRatio)
			}
		}
		all = append(all, words)
	}
	return markdown(strings.Join(all, "; "))
}

func table(b *strings.Builder, rows [][]string) {
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
		}
	}
}

var markdownEscapes = strings.NewReplacer(`\`, `\\`, "|", `\|`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "<", "&lt;", "&", "&amp;")

// markdown is s as Markdown shows it, on one line.
func markdown(s string) string {
	return markdownEscapes.Replace(printable(strings.ReplaceAll(s, "\n", " ")))
}
