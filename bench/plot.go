package bench

import (
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// panel is one percentile plot: latency over the percentile, on the scale of
// HdrHistogram, where each nine is as wide as the one before.
type panel struct {
	title  string
	series []plotted
}

type plotted struct {
	name  string
	class string // of the style sheet: a, b, control-a, control-b
	hist  *hdrhistogram.Histogram
}

// The size of a panel, and of what is around its plot, in pixels.
const (
	plotWidth  = 760
	plotHeight = 320
	plotLeft   = 80
	plotRight  = 30
	plotTop    = 64 // title and legend
	plotFoot   = 56 // labels and name of the x axis

	panelWidth  = plotLeft + plotWidth + plotRight
	panelHeight = plotTop + plotHeight + plotFoot
)

// Colours that are told apart by those who see few of them too, on light and on
// dark; A and B also differ by the width of the line, controls by dashes. The
// background is drawn, so that the page's does not matter.
const plotStyle = `
    svg { font: 13px system-ui, sans-serif; }
    text { fill: #1c1f24; }
    .title { font-size: 15px; font-weight: 600; }
    .paper { fill: #ffffff; }
    .grid { stroke: #d9dde3; stroke-width: 1; }
    .line { fill: none; stroke-linejoin: round; }
    .axis { stroke: #1c1f24; stroke-width: 1; }
    .a { stroke: #0b62b8; stroke-width: 2; }
    .b { stroke: #b4460b; stroke-width: 3; }
    .control-a { stroke: #0b62b8; stroke-width: 1.5; stroke-dasharray: 2 4; }
    .control-b { stroke: #b4460b; stroke-width: 1.5; stroke-dasharray: 8 4; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e9ee; }
      .paper { fill: #15181d; }
      .grid { stroke: #3a4049; }
      .axis { stroke: #e6e9ee; }
      .a, .control-a { stroke: #6cb2ff; }
      .b, .control-b { stroke: #ff9d5c; }
    }
`

// plot draws panels under each other, as an SVG of its own: no script, no font,
// nothing fetched. The y axis is logarithmic, or else linear and from 0.
func plot(title string, panels []panel, logarithmic bool) ([]byte, error) {
	if len(panels) == 0 {
		return nil, errors.New("bench: nothing to plot")
	}
	var b strings.Builder
	height := panelHeight * len(panels)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">`+"\n",
		panelWidth, height, panelWidth, height)
	fmt.Fprintf(&b, "  <title id=\"title\">%s</title>\n", xmlText(title))
	fmt.Fprintf(&b, "  <desc id=\"desc\">%s</desc>\n", xmlText(describe(panels)))
	fmt.Fprintf(&b, "  <style>%s  </style>\n", plotStyle)
	fmt.Fprintf(&b, `  <rect class="paper" width="%d" height="%d"/>`+"\n", panelWidth, height)
	for i, p := range panels {
		fmt.Fprintf(&b, `  <g transform="translate(%d %d)">`+"\n", plotLeft, i*panelHeight+plotTop)
		p.draw(&b, logarithmic)
		b.WriteString("  </g>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String()), nil
}

// describe says in words what the lines show.
func describe(panels []panel) string {
	var all []string
	for _, p := range panels {
		var lines []string
		for _, s := range p.series {
			at := func(percent float64) string { return formatMicros(float64(s.hist.ValueAtPercentile(percent))) }
			lines = append(lines, fmt.Sprintf("%s: p50 %s, p99 %s, max %s", s.name, at(50), at(99), formatMicros(float64(s.hist.Max()))))
		}
		all = append(all, p.title+". Latency by percentile. "+strings.Join(lines, "; ")+".")
	}
	return strings.Join(all, " ")
}

func (p panel) draw(b *strings.Builder, logarithmic bool) {
	// The last percentile that anything is known of: one request of them all.
	nines, low, high := 1.0, math.Inf(1), 0.0
	for _, s := range p.series {
		nines = max(nines, math.Log10(float64(s.hist.TotalCount())))
		low, high = min(low, float64(max(s.hist.Min(), 1))), max(high, float64(s.hist.Max()))
	}
	nines = math.Ceil(nines*4) / 4
	y := linearAxis(high)
	if logarithmic {
		y = logAxis(low, high)
	}
	at := func(nine, value float64) string {
		return pixel(nine/nines*plotWidth) + " " + pixel(plotHeight*(1-y.at(value)))
	}

	fmt.Fprintf(b, `    <text class="title" x="0" y="-42">%s</text>`+"\n", xmlText(p.title))
	for i, s := range p.series {
		x := i * plotWidth / 4
		fmt.Fprintf(b, `    <path class="line %s" d="M%d -18h28"/><text x="%d" y="-14">%s</text>`+"\n", s.class, x, x+34, xmlText(s.name))
	}
	for _, v := range y.ticks {
		_, row, _ := strings.Cut(at(0, v), " ")
		fmt.Fprintf(b, `    <path class="grid" d="M0 %sh%d"/><text text-anchor="end" x="-8" y="%s" dy="4">%s</text>`+"\n",
			row, plotWidth, row, xmlText(formatTick(v)))
	}
	for nine := 0.0; nine <= nines; nine++ {
		x := pixel(nine / nines * plotWidth)
		fmt.Fprintf(b, `    <path class="grid" d="M%s 0v%d"/><text text-anchor="middle" x="%s" y="%d">%s</text>`+"\n",
			x, plotHeight, x, plotHeight+20, percentile(nine))
	}
	fmt.Fprintf(b, `    <path class="axis line" d="M0 0V%dH%d"/>`+"\n", plotHeight, plotWidth)
	fmt.Fprintf(b, `    <text text-anchor="middle" x="%d" y="%d">percentile</text>`+"\n", plotWidth/2, plotHeight+42)
	fmt.Fprintf(b, `    <text text-anchor="middle" transform="translate(-62 %d) rotate(-90)">latency</text>`+"\n", plotHeight/2)
	for _, s := range slices.Backward(p.series) { // the thin ones above the thick, so that both are seen
		fmt.Fprintf(b, `    <path class="line %s" d="M%s"/>`+"\n", s.class, strings.Join(curve(s.hist, at), "L"))
	}
}

// stepsOfANine is how many points a line has between a percentile and the next
// nine: more than a screen shows.
const stepsOfANine = 50

func curve(h *hdrhistogram.Histogram, at func(nine, value float64) string) []string {
	end := math.Log10(float64(h.TotalCount()))
	var points []string
	add := func(nine float64, value int64) {
		if p := at(nine, float64(max(value, 1))); len(points) == 0 || points[len(points)-1] != p {
			points = append(points, p)
		}
	}
	for i := 0; float64(i) < end*stepsOfANine; i++ {
		nine := float64(i) / stepsOfANine
		add(nine, h.ValueAtPercentile(100*(1-math.Pow(10, -nine))))
	}
	add(end, h.Max())
	if len(points) == 1 { // one latency
		points = append(points, at(end+0.02, float64(h.Max())))
	}
	return points
}

// percentile is how the x axis calls the point with so many nines.
func percentile(nines float64) string {
	switch n := int(nines); n {
	case 0:
		return "0"
	case 1:
		return "90"
	case 2:
		return "99"
	default:
		return "99." + strings.Repeat("9", n-2)
	}
}

// yAxis places values between 0, the foot, and 1.
type yAxis struct {
	at    func(value float64) float64
	ticks []float64
}

func logAxis(low, high float64) yAxis {
	steps := []float64{1, 2, 5}
	if high/low > 1000 {
		steps = []float64{1}
	}
	ladder := func(yield func(float64) bool) {
		for power := 1.0; power <= 1e9; power *= 10 {
			for _, s := range steps {
				if !yield(s * power) {
					return
				}
			}
		}
	}
	foot, top := 1.0, 0.0
	for v := range ladder {
		if v <= low {
			foot = v
		}
		if top = v; v >= high && v > foot {
			break
		}
	}
	y := yAxis{at: func(v float64) float64 { return math.Log(v/foot) / math.Log(top/foot) }}
	for v := range ladder {
		if foot <= v && v <= top {
			y.ticks = append(y.ticks, v)
		}
	}
	return y
}

func linearAxis(high float64) yAxis {
	step := 1.0
	for i := 0; high/step > 8; i++ {
		step = []float64{1, 2, 5}[i%3] * math.Pow10(i/3)
	}
	top := math.Ceil(high/step) * step
	y := yAxis{at: func(v float64) float64 { return v / top }}
	for i := 0.0; i*step <= top; i++ {
		y.ticks = append(y.ticks, i*step)
	}
	return y
}

// formatTick is formatMicros without zeros that say nothing.
func formatTick(us float64) string {
	switch {
	case us == 0:
		return "0"
	case us < 1e3:
		return formatFloat(us) + "µs"
	case us < 1e6:
		return formatFloat(us/1e3) + "ms"
	}
	return formatFloat(us/1e6) + "s"
}

func pixel(x float64) string {
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64)
}

// xmlText is s as XML shows it.
func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(printable(s))) // a Builder takes everything
	return b.String()
}
