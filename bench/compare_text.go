package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// textWidth is how many columns text may take.
const textWidth = 100

// WriteText writes the comparison for people, in lines of at most 100 columns.
func (c *Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, s := range []struct {
		name string
		Side
	}{{"A", c.A}, {"B", c.B}} {
		wrap(&b, s.name+"  ", fmt.Sprintf("%s, %s, %s, %s, Go %s, %s; fsync p50 %s, p99 %s",
			s.Commit, s.StartedAt.UTC().Format("2006-01-02 15:04 UTC"), s.Env.CPU, count(s.Env.Cores, "core"),
			strings.TrimPrefix(s.Env.Go, "go"), s.Env.FileSystem, formatMicros(s.Env.Fsync.P50), formatMicros(s.Env.Fsync.P99)))
	}
	b.WriteByte('\n')
	wrap(&b, "", fmt.Sprintf("A, B: medians of the runs. /ctl: the median of the ratios to the control of the same run. "+
		"change: of that ratio from A to B. band: what the change may really be, with %s confidence; if it holds 0%%, that is the same.",
		formatPercent(c.Confidence)))
	for _, warning := range c.Warnings {
		wrap(&b, "WARNING  ", warning)
	}
	for _, only := range []struct {
		side, other string
		loads       []Load
	}{{"A", "B", c.OnlyA}, {"B", "A", c.OnlyB}} {
		for _, l := range only.loads {
			wrap(&b, "MISSING  ", fmt.Sprintf("%s: in %s only, %s has nothing with that load", l, only.side, only.other))
		}
	}
	for _, p := range c.Profiles {
		p.text(&b, c)
	}
	b.WriteByte('\n')
	switch n := c.Regressions(); {
	case c.Judged() == 0:
		b.WriteString("Nothing could be judged.\n")
	case n > 0:
		fmt.Fprintf(&b, "%s: worse beyond the noise, by more than %s.\n", count(n, "regression"), formatPercent(c.Threshold))
	default:
		fmt.Fprintf(&b, "No regression beyond %s and the noise in %d of %s.\n",
			formatPercent(c.Threshold), c.Judged(), count(len(c.Profiles)+len(c.OnlyA)+len(c.OnlyB), "profile"))
	}
	if n := c.Blind(); n > 0 {
		wrap(&b, "", fmt.Sprintf("%s noisy: even %s worse would not have been told from noise. More or longer runs or a quieter machine can.",
			count(n, "figure"), formatPercent(c.Threshold)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p ProfileComparison) text(b *strings.Builder, c *Comparison) {
	b.WriteByte('\n')
	wrap(b, "", fmt.Sprintf("%s: %s of A, %d of B", p.Load, count(p.RunsA, "run"), p.RunsB))
	for _, why := range p.Unjudged {
		wrap(b, "NOT JUDGED  ", why)
	}
	const layout = "%-10s  %9s  %9s  %7s  %7s  %8s  %18s  %s"
	line := func(cells ...any) {
		b.WriteString(strings.TrimRight(fmt.Sprintf(layout, cells...), " ") + "\n")
	}
	line("", "A", "B", "A/ctl", "B/ctl", "change", "band", "verdict")
	for _, f := range p.Figures {
		value := formatMicros
		if f.Name == "throughput" {
			value = formatRate
		}
		band := "-"
		if f.Low != nil && f.High != nil {
			band = formatChange(*f.Low) + " " + formatChange(*f.High)
		}
		verdict := string(f.Verdict)
		switch {
		case f.Verdict == Unjudged:
			verdict = "-"
		case f.Blind:
			verdict += ", noisy"
		case f.Regression:
			verdict += " >" + formatPercent(c.Threshold)
		}
		line(figureTitle(f.Name), or(f.A, value), or(f.B, value), or(f.RatioA, formatRatio), or(f.RatioB, formatRatio),
			or(f.Change, formatChange), band, verdict)
	}
}

// WriteJSON writes the comparison for machines.
func (c *Comparison) WriteJSON(w io.Writer) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// wrap writes text in lines, the first of them after the prefix. What a terminal
// would take for a command is shown as '?': the text may come from a file that
// somebody else wrote.
func wrap(b *strings.Builder, prefix, text string) {
	line, column := prefix, utf8.RuneCountInString(prefix)
	indent := strings.Repeat(" ", column)
	empty := true
	for _, word := range strings.Fields(printable(text)) {
		for word != "" {
			n := utf8.RuneCountInString(word)
			if !empty && column+1+n > textWidth {
				b.WriteString(line + "\n")
				line, column, empty = indent, len(indent), true
			}
			if !empty {
				line, column = line+" ", column+1
			}
			part := word
			if n > textWidth-column { // longer than a line
				part = string([]rune(word)[:textWidth-column])
			}
			line, column, empty = line+part, column+utf8.RuneCountInString(part), false
			word = word[len(part):]
			if word != "" {
				b.WriteString(line + "\n")
				line, column, empty = indent, len(indent), true
			}
		}
	}
	b.WriteString(line + "\n")
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if isUnprintable(r) && r != '\n' {
			return '?'
		}
		return r
	}, s)
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

func or(x *float64, format func(float64) string) string {
	if x == nil {
		return "-"
	}
	return format(*x)
}

func figureTitle(name string) string { return strings.ReplaceAll(name, "_", ".") }

// formatMicros is a latency of three digits, with its unit.
func formatMicros(us float64) string {
	switch {
	case us < 999.5:
		return digits3(us) + "µs"
	case us < 999_500:
		return digits3(us/1e3) + "ms"
	}
	return digits3(us/1e6) + "s"
}

func formatRate(perSecond float64) string { return digits3(perSecond) + "/s" }

func formatRatio(x float64) string { return digits3(x) }

// formatChange is a quotient as what it adds or takes away.
func formatChange(x float64) string {
	percent := (x - 1) * 100
	if math.Abs(percent) >= 999.5 {
		return "×" + digits3(x)
	}
	s := fmt.Sprintf("%+.1f%%", percent)
	if s == "-0.0%" {
		s = "+0.0%"
	}
	return s
}

func formatPercent(x float64) string { return formatFloat(x*100) + "%" }

// formatFloat is a number that somebody gave, without what arithmetic added.
func formatFloat(x float64) string {
	return strconv.FormatFloat(math.Round(x*1e6)/1e6, 'f', -1, 64)
}

// digits3 has three significant digits, and every digit before the point.
func digits3(x float64) string {
	switch abs := math.Abs(x); {
	case abs >= 99.95 || abs == 0:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case abs >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case abs >= 0.9995:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
