package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Everything here is made up: no figure was measured.

var madeUpTime = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func madeUp(commit string, profiles ...Profile) *Saved {
	return &Saved{
		Results: Results{
			SchemaVersion: SchemaVersion, Commit: commit, StartedAt: madeUpTime, Command: "bench run --runs 5",
			Env: Env{
				CPU: "Imaginary 9000", Cores: 4, Memory: 8 << 30, Kernel: "6.1.0", Go: "go1.26.8", FileSystem: "ext4",
				LoadBefore: 0.25, Fsync: Quantiles{P50: 400, P90: 500, P95: 550, P99: 900, P999: 1500, Max: 2000, Mean: 450},
			},
			Profiles: profiles,
		},
		files: map[string]string{},
	}
}

// measured is a series with a throughput of 1000 and latencies around 1 ms,
// times the factors.
func measured(throughput, latency float64) Measurement {
	return Measurement{
		StartedAt: madeUpTime, Elapsed: time.Second, Requests: 1000, Throughput: 1000 * throughput,
		Latency: Quantiles{
			P50: 1000 * latency, P90: 2000 * latency, P95: 3000 * latency, P99: 5000 * latency, P999: 8000 * latency,
			Max: 9000 * latency, Mean: 1200 * latency,
		},
	}
}

// loaded is a profile whose runs are the control's times the factors: of the
// latency, and one over them of the throughput. The control itself drifts, as it
// does on a machine that others use, and takes the runs along.
func loaded(name string, factors ...float64) Profile {
	p := Profile{Name: name, Engine: "bare", Pace: "closed", Connections: 64, Duration: 3 * time.Second}
	for i, f := range factors {
		drift := 1 + float64(i%3)
		p.Runs = append(p.Runs, measured(1/f/drift, f*drift))
		p.Control = append(p.Control, measured(1/drift, drift))
	}
	return p
}

func with(p Profile, change func(*Profile)) Profile {
	change(&p)
	return p
}

func of(c *Comparison, t *testing.T, name string) Figure {
	t.Helper()
	if len(c.Profiles) != 1 {
		t.Fatalf("%d profiles, want 1", len(c.Profiles))
	}
	i := slices.IndexFunc(c.Profiles[0].Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no figure %s", name)
	}
	return c.Profiles[0].Figures[i]
}

var standard = CompareOptions{Threshold: 0.1, Confidence: 0.99}

func TestCompare(t *testing.T) {
	five := []float64{2.00, 2.02, 1.98, 2.04, 1.96}
	times := func(f float64) []float64 {
		var all []float64
		for _, x := range five {
			all = append(all, x*f)
		}
		return all
	}
	for _, tc := range []struct {
		name       string
		a, b       []float64
		change     float64 // of the latencies; 0: not known
		verdict    Verdict
		regression bool
		blind      bool
	}{
		{"equal", five, five, 1, Same, false, false},
		{"5 % slower, within the noise", []float64{2, 2.2, 1.9, 2.1, 1.8}, []float64{2.1, 2.31, 1.995, 2.205, 1.89}, 1.05, Same, false, true},
		{"5 % slower, beyond the noise, within the threshold", five, times(1.05), 1.05, Worse, false, false},
		{"30 % slower", five, times(1.3), 1.3, Worse, true, false},
		{"30 % faster", five, times(1 / 1.3), 1 / 1.3, Better, false, false},
		{"30 % slower but noisy", []float64{2, 3, 1.5, 2.5, 1}, []float64{2.6, 3.9, 1.95, 3.25, 1.3}, 1.3, Same, false, true},
		{"one wild run hides nothing in the estimate", five, []float64{2, 2.02, 1.98, 2.04, 40}, 1.01, Same, false, true},
		{"more runs bear an overlap", []float64{1, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07}, []float64{1.055, 1.31, 1.32, 1.33, 1.34, 1.35, 1.36, 1.37}, 1.288, Worse, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Compare(madeUp("aaa", loaded("distinct", tc.a...)), madeUp("bbb", loaded("distinct", tc.b...)), standard)
			if err != nil {
				t.Fatal(err)
			}
			if c.Judged() != 1 || len(c.Warnings) != 0 {
				t.Fatalf("judged %d, unjudged %v, warnings %v", c.Judged(), c.Profiles[0].Unjudged, c.Warnings)
			}
			for _, f := range c.Profiles[0].Figures {
				want := tc.change
				if f.Name == "throughput" {
					want = 1 / want
				}
				if math.Abs(*f.Change-want) > 0.005 {
					t.Errorf("%s: change %v, want %v", f.Name, *f.Change, want)
				}
				if f.Verdict != tc.verdict || f.Regression != tc.regression {
					t.Errorf("%s: %q, regression %v; want %q, %v; band %v to %v", f.Name, f.Verdict, f.Regression, tc.verdict, tc.regression, *f.Low, *f.High)
				}
				if f.Blind != tc.blind {
					t.Errorf("%s: blind %v, want %v; band %v to %v", f.Name, f.Blind, tc.blind, *f.Low, *f.High)
				}
				if *f.Low > *f.Change || *f.Change > *f.High {
					t.Errorf("%s: change %v is outside its own band %v to %v", f.Name, *f.Change, *f.Low, *f.High)
				}
			}
			want := 0
			if tc.regression {
				want = len(kinds)
			}
			if noisy := strings.Contains(textOf(t, c), "figures noisy"); noisy != tc.blind {
				t.Errorf("the text says noisy: %v, want %v", noisy, tc.blind)
			}
			if got := c.Regressions(); got != want {
				t.Errorf("%d regressions, want %d", got, want)
			}
		})
	}
}

// The ratio to the control is what is judged, not the time on the clock.
func TestCompareAgainstControl(t *testing.T) {
	slow := func(p Profile, runs, control float64) Profile {
		for i := range p.Runs {
			p.Runs[i].Latency.P50 *= runs
			p.Control[i].Latency.P50 *= control
		}
		return p
	}
	factors := []float64{2, 2.01, 2.02, 1.99, 1.98}
	a := madeUp("aaa", loaded("distinct", factors...))

	c, err := Compare(a, madeUp("bbb", slow(loaded("distinct", factors...), 3, 3)), standard)
	if err != nil {
		t.Fatal(err)
	}
	if f := of(c, t, "p50"); f.Verdict != Same || math.Abs(*f.B / *f.A - 3) > 1e-9 {
		t.Errorf("a machine three times as slow: %q, A %v, B %v", f.Verdict, *f.A, *f.B)
	}
	c, err = Compare(a, madeUp("bbb", slow(loaded("distinct", factors...), 1, 0.5)), standard)
	if err != nil {
		t.Fatal(err)
	}
	if f := of(c, t, "p50"); f.Verdict != Worse || !f.Regression || *f.B != *f.A {
		t.Errorf("as fast on a machine twice as fast: %q, A %v, B %v", f.Verdict, *f.A, *f.B)
	}
}

func TestCompareUnjudged(t *testing.T) {
	good := loaded("distinct", 2, 2.01, 2.02, 1.99, 1.98)
	for _, tc := range []struct {
		name string
		a, b Profile
		want string // part of why
	}{
		{"no control", good, with(good, func(p *Profile) { p.Control = nil }), "B has no control"},
		{"a control is missing", with(good, func(p *Profile) { p.Control = p.Control[1:] }), good, "A has 5 runs, but 4 of the control"},
		{"no runs", good, with(good, func(p *Profile) { p.Runs, p.Control = nil, nil }), "B has no runs"},
		{"void", with(good, func(p *Profile) { p.Void = []string{"the generator was saturated"} }), good, "A is void: the generator was saturated"},
		{"one run", loaded("distinct", 1), loaded("distinct", 3), "1 and 1 run cannot tell a difference from noise with 99% confidence; 5 of each can"},
		{"four runs", loaded("distinct", 1, 1, 1, 1), loaded("distinct", 3, 3, 3, 3), "5 of each can"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Compare(madeUp("aaa", tc.a), madeUp("bbb", tc.b), standard)
			if err != nil {
				t.Fatal(err)
			}
			if c.Judged() != 0 || c.Regressions() != 0 {
				t.Errorf("judged %d, regressions %d, want none", c.Judged(), c.Regressions())
			}
			if why := strings.Join(c.Profiles[0].Unjudged, "; "); !strings.Contains(why, tc.want) {
				t.Errorf("unjudged because %q, want %q", why, tc.want)
			}
			for _, f := range c.Profiles[0].Figures {
				if f.Verdict != Unjudged {
					t.Errorf("%s: verdict %q", f.Name, f.Verdict)
				}
			}
			text := textOf(t, c)
			if !strings.Contains(text, "NOT JUDGED") || !strings.Contains(text, "Nothing could be judged.") {
				t.Errorf("the text does not say so:\n%s", text)
			}
			if err := c.WriteJSON(new(bytes.Buffer)); err != nil {
				t.Errorf("JSON of what is not known: %v", err)
			}
		})
	}
	t.Run("one run is shown all the same", func(t *testing.T) {
		c, err := Compare(madeUp("aaa", loaded("distinct", 1)), madeUp("bbb", loaded("distinct", 3)), standard)
		if err != nil {
			t.Fatal(err)
		}
		if f := of(c, t, "p99"); *f.Change != 3 || f.Low != nil {
			t.Errorf("change %v, band from %v", *f.Change, f.Low)
		}
	})
	t.Run("four runs are enough for 95 %", func(t *testing.T) {
		c, err := Compare(madeUp("aaa", loaded("distinct", 1, 1, 1, 1)), madeUp("bbb", loaded("distinct", 3, 3, 3, 3)), CompareOptions{Threshold: 0.1, Confidence: 0.95})
		if err != nil {
			t.Fatal(err)
		}
		if f := of(c, t, "p99"); !f.Regression {
			t.Errorf("p99 is %+v", f)
		}
	})
	t.Run("a latency of nothing is no latency, a throughput of nothing is one", func(t *testing.T) {
		dead := with(loaded("distinct", 2, 2, 2, 2, 2), func(p *Profile) {
			for i := range p.Runs {
				p.Runs[i].Throughput, p.Runs[i].Latency = 0, Quantiles{}
			}
		})
		c, err := Compare(madeUp("aaa", good), madeUp("bbb", dead), standard)
		if err != nil {
			t.Fatal(err)
		}
		if f := of(c, t, "p50"); f.Change != nil || f.Verdict != Unjudged {
			t.Errorf("p50 is %+v", f)
		}
		if f := of(c, t, "throughput"); *f.Change != 0 || !f.Regression {
			t.Errorf("throughput is %+v", f)
		}
		if c, err = Compare(madeUp("aaa", dead), madeUp("bbb", good), standard); err != nil {
			t.Fatal(err)
		}
		if f := of(c, t, "throughput"); f.Change != nil || f.Verdict != Unjudged {
			t.Errorf("the other way round, throughput is %+v", f)
		}
	})
}

func TestCompareLoads(t *testing.T) {
	base := loaded("distinct", 2, 2.01, 2.02, 1.99, 1.98)
	for _, tc := range []struct {
		name   string
		change func(*Profile)
		common bool
	}{
		{"name", func(p *Profile) { p.Name = "same" }, false},
		{"engine", func(p *Profile) { p.Engine = "vegeta" }, false},
		{"pace", func(p *Profile) { p.Pace = "open" }, false},
		{"rate", func(p *Profile) { p.Rate = 500 }, false},
		{"connections", func(p *Profile) { p.Connections = 65 }, false},
		{"preload", func(p *Profile) { p.Preload = 10 }, false},
		{"duration only", func(p *Profile) { p.Duration = time.Minute }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Compare(madeUp("aaa", base), madeUp("bbb", with(base, tc.change)), standard)
			if err != nil {
				t.Fatal(err)
			}
			text := textOf(t, c)
			if tc.common {
				if c.Judged() != 1 || len(c.Warnings) != 1 || !strings.Contains(text, "a series took 3s in A and 1m0s in B") {
					t.Errorf("judged %d, warnings %v", c.Judged(), c.Warnings)
				}
				return
			}
			if len(c.Profiles) != 0 || len(c.OnlyA) != 1 || len(c.OnlyB) != 1 {
				t.Errorf("%d profiles, only A %v, only B %v", len(c.Profiles), c.OnlyA, c.OnlyB)
			}
			if strings.Count(text, "MISSING") != 2 {
				t.Errorf("the text does not say what is missing:\n%s", text)
			}
		})
	}
	t.Run("by name", func(t *testing.T) {
		other := with(base, func(p *Profile) { p.Name = "replay" })
		o := standard
		o.Profiles = []string{"replay"}
		c, err := Compare(madeUp("aaa", base, other), madeUp("bbb", other, base), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Profiles) != 1 || c.Profiles[0].Name != "replay" || len(c.OnlyA)+len(c.OnlyB) != 0 {
			t.Errorf("compared %v, only A %v, only B %v", c.Profiles, c.OnlyA, c.OnlyB)
		}
		o.Profiles = []string{"replay", "nonsense"}
		if _, err := Compare(madeUp("aaa", base, other), madeUp("bbb", other), o); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
			t.Errorf("an unknown name: %v", err)
		}
	})
}

func TestCompareEnvironments(t *testing.T) {
	p := loaded("distinct", 2, 2.01, 2.02, 1.99, 1.98)
	for _, tc := range []struct {
		name   string
		change func(*Env)
		want   string
	}{
		{"CPU", func(e *Env) { e.CPU = "Other 1" }, "CPU Imaginary 9000 and Other 1"},
		{"cores", func(e *Env) { e.Cores = 2 }, "cores 4 and 2"},
		{"memory", func(e *Env) { e.Memory = 1 << 30 }, "memory"},
		{"kernel", func(e *Env) { e.Kernel = "7" }, "kernel 6.1.0 and 7"},
		{"file system", func(e *Env) { e.FileSystem = "tmpfs" }, "file system ext4 and tmpfs"},
		{"Go", func(e *Env) { e.Go = "go1.27" }, "Go go1.26.8 and go1.27"},
		{"disk", func(e *Env) { e.Fsync.P50 = 4000 }, "fsync took 400µs at A's time and 4.00ms at B's"},
		{"load", func(e *Env) { e.LoadBefore = 9 }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := madeUp("aaa", p), madeUp("bbb", p)
			tc.change(&b.Env)
			c, err := Compare(a, b, standard)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" {
				if len(c.Warnings) != 0 {
					t.Errorf("warnings %v", c.Warnings)
				}
				return
			}
			if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], tc.want) {
				t.Errorf("warnings %q, want %q", c.Warnings, tc.want)
			}
			if text := textOf(t, c); !strings.Contains(text, "WARNING") {
				t.Errorf("no warning in the text:\n%s", text)
			}
		})
	}
}

func TestCompareOptions(t *testing.T) {
	p := loaded("distinct", 1)
	for _, o := range []CompareOptions{
		{Threshold: -0.1, Confidence: 0.99}, {Threshold: 1, Confidence: 0.99}, {Threshold: math.NaN(), Confidence: 0.99},
		{Threshold: 0.1}, {Threshold: 0.1, Confidence: 1}, {Threshold: 0.1, Confidence: math.NaN()},
	} {
		if _, err := Compare(madeUp("aaa", p), madeUp("bbb", p), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func textOf(t *testing.T, c *Comparison) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	return b.String()
}

func TestCompareText(t *testing.T) {
	a := madeUp("aaa", loaded("distinct", 2, 2.02, 1.98, 2.04, 1.96), loaded("replay", 1, 1, 1, 1, 1),
		with(loaded("same", 1), func(p *Profile) { p.Rate, p.Pace = 50, "open" }))
	b := madeUp("bbb", loaded("distinct", 2.6, 2.63, 2.57, 2.65, 2.55), loaded("replay", 1, 1, 1, 1, 1),
		with(loaded("poll", 1), func(p *Profile) { p.Preload = 1e7 }))
	b.Env.CPU = "\x1b[31mEvil" + strings.Repeat("x", 150)
	c, err := Compare(a, b, standard)
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "compare.txt", []byte(textOf(t, c)))
}

func TestCompareJSON(t *testing.T) {
	a, b := madeUp("aaa", loaded("distinct", 2, 2, 2, 2, 2)), madeUp("bbb", loaded("distinct", 3, 3, 3, 3, 3))
	c, err := Compare(a, b, standard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if read["schema_version"] != float64(ComparisonSchemaVersion) {
		t.Errorf("schema_version %v", read["schema_version"])
	}
	for _, list := range []string{"warnings", "only_a", "only_b"} {
		if l, ok := read[list].([]any); !ok || len(l) != 0 {
			t.Errorf("%s is %v, want an empty list", list, read[list])
		}
	}
	p := read["profiles"].([]any)[0].(map[string]any)
	f := p["figures"].([]any)[4].(map[string]any)
	if p["name"] != "distinct" || f["name"] != "p99" || f["verdict"] != "worse" || f["regression"] != true || f["change"] != 1.5 {
		t.Errorf("profile %v, figure %v", p["name"], f)
	}
}

func TestUDistribution(t *testing.T) {
	// By hand: of the 6 ways to mix 2 and 2, U is 0, 1, 2, 2, 3, 4.
	want := []float64{1. / 6, 1. / 6, 2. / 6, 1. / 6, 1. / 6}
	got := uDistribution(2, 2)
	for u := range want {
		if math.Abs(got[u]-want[u]) > 1e-12 {
			t.Errorf("P(U = %d) = %v, want %v", u, got[u], want[u])
		}
	}
	for _, nm := range [][2]int{{1, 1}, {5, 5}, {3, 8}, {20, 30}} {
		sum, p := 0.0, uDistribution(nm[0], nm[1])
		for u := range p {
			sum += p[u]
			if mirror := p[len(p)-1-u]; math.Abs(p[u]-mirror) > 1e-12 {
				t.Errorf("%v: P(U = %d) is %v, mirrored %v", nm, u, p[u], mirror)
			}
		}
		if math.Abs(sum-1) > 1e-9 || len(p) != nm[0]*nm[1]+1 {
			t.Errorf("%v: %d values, sum %v", nm, len(p), sum)
		}
	}
}

// The places are in every table of critical values: the greatest U that is
// significant, and one.
func TestOutside(t *testing.T) {
	for _, tc := range []struct {
		n, m       int
		confidence float64
		want       int
	}{
		{1, 1, 0.99, 0}, {4, 4, 0.99, 0}, {5, 5, 0.99, 1}, {6, 6, 0.99, 3}, {8, 8, 0.99, 8}, {10, 10, 0.99, 17},
		{3, 3, 0.95, 0}, {4, 4, 0.95, 1}, {5, 5, 0.95, 3}, {10, 10, 0.95, 24}, {3, 5, 0.95, 1},
		{2, 2, 0.9, 0}, {3, 3, 0.9, 1}, {1, 1, 0.5, 0}, {2, 2, 0.5, 1},
	} {
		if got := outside(tc.n, tc.m, tc.confidence); got != tc.want {
			t.Errorf("outside(%d, %d, %v) = %d, want %d", tc.n, tc.m, tc.confidence, got, tc.want)
		}
	}
	for confidence, want := range map[float64]int{0.99: 5, 0.95: 4, 0.9: 3, 0.5: 2, 0.9999: 9} {
		if got := runsFor(confidence); got != want {
			t.Errorf("runsFor(%v) = %d, want %d", confidence, got, want)
		}
	}
}

// Where nothing changed, every way to deal the values to A and B is as likely as
// any other: deal them all, and count how often it is called a change.
func TestFalseAlarms(t *testing.T) {
	for _, tc := range []struct {
		n, m       int
		confidence float64
		want       int // of all deals
	}{
		{5, 5, 0.99, 2},  // of 252: 0.8 %
		{4, 4, 0.95, 2},  // of 70: 2.9 %
		{5, 5, 0.95, 8},  // 3.2 %
		{6, 6, 0.99, 8},  // of 924: 0.9 %
		{3, 6, 0.95, 4},  // of 84: 4.8 %
		{7, 5, 0.95, 38}, // of 792: 4.8 %
	} {
		alarms, deals := 0, 0
		for deal := range uint(1) << (tc.n + tc.m) {
			if bits.OnesCount(deal) != tc.n {
				continue
			}
			var a, b []float64
			for i := range tc.n + tc.m {
				if value := 1 + float64(i*i)/10; deal>>i&1 == 1 {
					a = append(a, value)
				} else {
					b = append(b, value)
				}
			}
			deals++
			if !changeOf(a, b, tc.confidence).noise() {
				alarms++
			}
		}
		if alarms != tc.want || float64(alarms)/float64(deals) > 1-tc.confidence {
			t.Errorf("%d and %d runs, %v: %d false alarms in %d deals, want %d", tc.n, tc.m, tc.confidence, alarms, deals, tc.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for got, want := range map[string]string{
		formatMicros(0):       "0µs",
		formatMicros(1.5):     "1.50µs",
		formatMicros(999.4):   "999µs",
		formatMicros(999.6):   "1.00ms",
		formatMicros(138_750): "139ms",
		formatMicros(999_499): "999ms",
		formatMicros(999_500): "1.00s",
		formatMicros(6e7):     "60.0s",
		formatRate(0.1234):    "0.123/s",
		formatRate(123456):    "123456/s",
		formatChange(1):       "+0.0%",
		formatChange(0.99999): "+0.0%",
		formatChange(1.3):     "+30.0%",
		formatChange(0):       "-100.0%",
		formatChange(40):      "×40.0",
		formatPercent(0.1):    "10%",
		formatPercent(0.999):  "99.9%",
		formatRatio(0.31):     "0.310",
		formatTick(500_000):   "500ms",
		formatTick(2000):      "2ms",
		percentile(3):         "99.9",
		(Load{"x", "vegeta", "open", 12.5, 1, 2}).slug():   "x-vegeta-open-c1-r12.5-preload2",
		(Load{"x", "vegeta", "open", 12.5, 1, 2}).String(): "x, open, 12.5/s, 1 connection, 2 calls stored before, sent by vegeta",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// checkGolden compares with a file of testdata; UPDATE_GOLDEN=1 writes it.
func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what it was (UPDATE_GOLDEN=1 takes the new one):\n%s", path, string(got))
	}
}
