package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ComparisonSchemaVersion is the version of [Comparison] as JSON, as
// [SchemaVersion] is that of [Results].
const ComparisonSchemaVersion = 1

// Load is what two profiles must have in common to be compared.
type Load struct {
	Name        string  `json:"name"`
	Engine      string  `json:"engine"`
	Pace        string  `json:"pace"`
	Rate        float64 `json:"rate"` // requests a second; 0 where closed
	Connections int     `json:"connections"`
	Preload     int64   `json:"preload"`
}

func loadOf(p Profile) Load {
	return Load{Name: p.Name, Engine: p.Engine, Pace: p.Pace, Rate: p.Rate, Connections: p.Connections, Preload: p.Preload}
}

// String is the load in words.
func (l Load) String() string {
	words := []string{l.Name, l.Pace}
	if l.Rate != 0 {
		words = append(words, formatFloat(l.Rate)+"/s")
	}
	if l.Connections != 0 {
		words = append(words, count(l.Connections, "connection"))
	}
	if l.Preload != 0 {
		words = append(words, fmt.Sprintf("%d calls stored before", l.Preload))
	}
	if l.Engine != "" {
		words = append(words, "sent by "+l.Engine)
	}
	return strings.Join(words, ", ")
}

// slug is the load as part of a file name. Two loads have two slugs, as long as
// check has seen them.
func (l Load) slug() string {
	s := fmt.Sprintf("%s-%s-%s-c%d", l.Name, l.Engine, l.Pace, l.Connections)
	if l.Rate != 0 {
		s += "-r" + strconv.FormatFloat(l.Rate, 'f', -1, 64)
	}
	if l.Preload != 0 {
		s += fmt.Sprintf("-preload%d", l.Preload)
	}
	return s
}

// Verdict says how a figure of B stands to that of A.
type Verdict string

// The verdicts. Better and worse are differences beyond the noise.
const (
	Better   Verdict = "better"
	Same     Verdict = "same"
	Worse    Verdict = "worse"
	Unjudged Verdict = ""
)

// CompareOptions are how [Compare] judges.
type CompareOptions struct {
	// Threshold is how much worse a figure must be to be a regression, if it is
	// beyond the noise too: 0.1 is 10 % more latency, or 10 % less throughput.
	// Too low reports what nobody would act upon. At least 0, below 1.
	Threshold float64

	// Confidence is how sure the noise band is, for each figure: 0.99 calls one
	// figure in a hundred changed where nothing did. 0.99 needs 5 runs of each
	// side, 0.95 needs 4, 0.9 needs 3. At least 0.5, at most 0.9999.
	Confidence float64

	// Profiles are the names to compare; none is all.
	Profiles []string
}

// Comparison is how the Results of B stand to those of A.
type Comparison struct {
	SchemaVersion int      `json:"schema_version"`
	A             Side     `json:"a"`
	B             Side     `json:"b"`
	Threshold     float64  `json:"threshold"`
	Confidence    float64  `json:"confidence"`
	Warnings      []string `json:"warnings"` // what makes it less fair: other environments, above all
	OnlyA         []Load   `json:"only_a"`   // profiles that B does not have with the same load
	OnlyB         []Load   `json:"only_b"`

	Profiles []ProfileComparison `json:"profiles"`
}

// Side is where figures come from.
type Side struct {
	Commit    string    `json:"commit"`
	StartedAt time.Time `json:"started_at"`
	Env       Env       `json:"env"`
}

// ProfileComparison compares the figures of one load.
type ProfileComparison struct {
	Load
	RunsA    int      `json:"runs_a"`
	RunsB    int      `json:"runs_b"`
	Unjudged []string `json:"unjudged"` // why there are no verdicts; empty where there are
	Figures  []Figure `json:"figures"`
}

// Figure compares one number. What is not known is null.
type Figure struct {
	Name string `json:"name"` // throughput, in answers a second; p50, p90, p95, p99, p99_9, max, in microseconds

	// The medians of the runs: as measured, and as ratios to the control of the
	// same run. As measured they depend on the machine and the hour.
	A        *float64 `json:"a"`
	B        *float64 `json:"b"`
	ControlA *float64 `json:"control_a"`
	ControlB *float64 `json:"control_b"`
	RatioA   *float64 `json:"ratio_a"`
	RatioB   *float64 `json:"ratio_b"`

	// Change is B's ratio to the control over A's: 1 is no change. It is the
	// median of these quotients over every pair of a run of B and a run of A, and
	// so need not be RatioB / RatioA. Low and High are its noise band: while that
	// holds 1, the runs allow that nothing changed.
	Change *float64 `json:"change"`
	Low    *float64 `json:"low"`
	High   *float64 `json:"high"`

	Verdict    Verdict `json:"verdict"`    // "" where it is not judged
	Regression bool    `json:"regression"` // worse, and by more than the threshold

	// Blind is that the figure is the same, but that one worse by more than the
	// threshold could have come out the same: the noise is wider.
	Blind bool `json:"blind"`
}

// kind is one number of a measurement.
type kind struct {
	name   string
	of     func(Measurement) float64
	higher bool // the higher, the better
}

var kinds = []kind{
	{"throughput", func(m Measurement) float64 { return m.Throughput }, true},
	{"p50", func(m Measurement) float64 { return m.Latency.P50 }, false},
	{"p90", func(m Measurement) float64 { return m.Latency.P90 }, false},
	{"p95", func(m Measurement) float64 { return m.Latency.P95 }, false},
	{"p99", func(m Measurement) float64 { return m.Latency.P99 }, false},
	{"p99_9", func(m Measurement) float64 { return m.Latency.P999 }, false},
	{"max", func(m Measurement) float64 { return m.Latency.Max }, false},
}

// Compare compares the Results of two commits, profile by profile. It fails if
// the options are out of bounds, or name a profile that neither side has.
func Compare(a, b *Saved, o CompareOptions) (*Comparison, error) {
	if !(o.Threshold >= 0 && o.Threshold < 1) { // NaN is neither
		return nil, fmt.Errorf("bench: a threshold of %s: at least 0%% and below 100%% is allowed", formatPercent(o.Threshold))
	}
	if !(o.Confidence >= 0.5 && o.Confidence <= 0.9999) {
		return nil, fmt.Errorf("bench: a confidence of %s: 50%% to 99.99%% is allowed", formatPercent(o.Confidence))
	}
	c := &Comparison{
		SchemaVersion: ComparisonSchemaVersion,
		A:             Side{a.Commit, a.StartedAt, a.Env},
		B:             Side{b.Commit, b.StartedAt, b.Env},
		Threshold:     o.Threshold,
		Confidence:    o.Confidence,
		Warnings:      []string{},
		OnlyA:         []Load{},
		OnlyB:         []Load{},
		Profiles:      []ProfileComparison{},
	}
	for _, d := range envDifferences(a.Env, b.Env) {
		c.Warnings = append(c.Warnings, "different environments: "+d)
	}
	if x, y := a.Env.Fsync.P50, b.Env.Fsync.P50; x > 0 && y > 0 && max(x/y, y/x) > 1.5 {
		c.Warnings = append(c.Warnings, fmt.Sprintf("fsync took %s at A's time and %s at B's (p50), and the control does no fsync", formatMicros(x), formatMicros(y)))
	}
	profilesA, profilesB := chosen(a.Profiles, o.Profiles), chosen(b.Profiles, o.Profiles)
	for _, name := range o.Profiles {
		has := func(p Profile) bool { return p.Name == name }
		if !slices.ContainsFunc(profilesA, has) && !slices.ContainsFunc(profilesB, has) {
			return nil, fmt.Errorf("bench: no profile %q in A or B", name)
		}
	}
	common := map[Load]bool{}
	for _, p := range profilesA {
		i := slices.IndexFunc(profilesB, func(q Profile) bool { return loadOf(q) == loadOf(p) })
		if i < 0 {
			c.OnlyA = append(c.OnlyA, loadOf(p))
			continue
		}
		q := profilesB[i]
		common[loadOf(q)] = true
		if p.Duration != q.Duration {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s: a series took %v in A and %v in B", loadOf(p), p.Duration, q.Duration))
		}
		c.Profiles = append(c.Profiles, compareProfile(p, q, o))
	}
	for _, q := range profilesB {
		if !common[loadOf(q)] {
			c.OnlyB = append(c.OnlyB, loadOf(q))
		}
	}
	return c, nil
}

// chosen are the profiles with one of the names; all, if there are none.
func chosen(of []Profile, names []string) []Profile {
	if len(names) == 0 {
		return of
	}
	var some []Profile
	for _, p := range of {
		if slices.Contains(names, p.Name) {
			some = append(some, p)
		}
	}
	return some
}

func compareProfile(a, b Profile, o CompareOptions) ProfileComparison {
	c := ProfileComparison{Load: loadOf(a), RunsA: len(a.Runs), RunsB: len(b.Runs), Unjudged: []string{}}
	for _, side := range []struct {
		name string
		p    Profile
	}{{"A", a}, {"B", b}} {
		for _, why := range side.p.Void {
			c.Unjudged = append(c.Unjudged, side.name+" is void: "+why)
		}
		switch runs, control := len(side.p.Runs), len(side.p.Control); {
		case runs == 0:
			c.Unjudged = append(c.Unjudged, side.name+" has no runs")
		case control == 0:
			c.Unjudged = append(c.Unjudged, side.name+" has no control, and figures without one cannot be compared")
		case control != runs:
			c.Unjudged = append(c.Unjudged, fmt.Sprintf("%s has %s, but %d of the control", side.name, count(runs, "run"), control))
		}
	}
	if n, m := len(a.Runs), len(b.Runs); n > 0 && m > 0 && outside(n, m, o.Confidence) == 0 {
		least := runsFor(o.Confidence)
		c.Unjudged = append(c.Unjudged, fmt.Sprintf("%d and %s cannot tell a difference from noise with %s confidence; %d of each can",
			n, count(m, "run"), formatPercent(o.Confidence), least))
	}
	for _, k := range kinds {
		c.Figures = append(c.Figures, compareFigure(k, a, b, o, len(c.Unjudged) == 0))
	}
	return c
}

func compareFigure(k kind, a, b Profile, o CompareOptions, judged bool) Figure {
	f := Figure{
		Name: k.name,
		A:    medianOf(k, a.Runs), B: medianOf(k, b.Runs),
		ControlA: medianOf(k, a.Control), ControlB: medianOf(k, b.Control),
	}
	ratiosA, ratiosB := k.ratios(a), k.ratios(b)
	f.RatioA, f.RatioB = finite(median(ratiosA)), finite(median(ratiosB))
	if f.RatioA == nil || f.RatioB == nil || slices.Min(ratiosA) <= 0 {
		return f
	}
	c := changeOf(ratiosA, ratiosB, o.Confidence)
	f.Change = finite(c.estimate)
	if !c.band {
		return f
	}
	f.Low, f.High = finite(c.low), finite(c.high)
	if !judged {
		return f
	}
	switch {
	case c.noise():
		f.Verdict = Same
		f.Blind = c.high > 1+o.Threshold
		if k.higher {
			f.Blind = c.low < 1-o.Threshold
		}
	case (c.estimate > 1) == k.higher:
		f.Verdict = Better
	default:
		f.Verdict = Worse
		f.Regression = math.Abs(c.estimate-1) > o.Threshold
	}
	return f
}

// ratios are those of the runs to the control that ran beside each. None, if one
// is missing or is not a number to divide by. No answers are a throughput of 0,
// but no latency.
func (k kind) ratios(p Profile) []float64 {
	if len(p.Runs) != len(p.Control) {
		return nil
	}
	var all []float64
	for i := range p.Runs {
		x, y := k.of(p.Runs[i]), k.of(p.Control[i])
		if !(y > 0) || !(x > 0 || k.higher && x == 0) {
			return nil
		}
		all = append(all, x/y)
	}
	return all
}

func medianOf(k kind, series []Measurement) *float64 {
	var all []float64
	for _, m := range series {
		all = append(all, k.of(m))
	}
	return finite(median(all))
}

// finite is nil for what is not a number, which JSON has no word for.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// Judged is how many profiles have verdicts.
func (c *Comparison) Judged() int {
	n := 0
	for _, p := range c.Profiles {
		if len(p.Unjudged) == 0 {
			n++
		}
	}
	return n
}

// NotJudged are the loads that both have and that have no verdict. A B whose
// figures are void is among them: that it is no slower cannot be said of it.
func (c *Comparison) NotJudged() []Load {
	var all []Load
	for _, p := range c.Profiles {
		if len(p.Unjudged) > 0 {
			all = append(all, p.Load)
		}
	}
	return all
}

// Regressions is how many figures are worse beyond both noise and threshold.
func (c *Comparison) Regressions() int {
	return c.count(func(f Figure) bool { return f.Regression })
}

// Blind is how many figures are the same only because the noise is wider than
// the threshold.
func (c *Comparison) Blind() int {
	return c.count(func(f Figure) bool { return f.Blind })
}

func (c *Comparison) count(is func(Figure) bool) int {
	n := 0
	for _, p := range c.Profiles {
		for _, f := range p.Figures {
			if is(f) {
				n++
			}
		}
	}
	return n
}

// envDifferences says in what two environments differ, but for what is measured
// in each run.
func envDifferences(a, b Env) []string {
	var all []string
	for _, d := range []struct {
		what string
		a, b any
	}{
		{"CPU", a.CPU, b.CPU},
		{"cores", a.Cores, b.Cores},
		{"memory", a.Memory, b.Memory},
		{"kernel", a.Kernel, b.Kernel},
		{"Go", a.Go, b.Go},
		{"file system", a.FileSystem, b.FileSystem},
	} {
		if d.a != d.b {
			all = append(all, fmt.Sprintf("%s %v and %v", d.what, d.a, d.b))
		}
	}
	return all
}
