package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/idemd/idemd/bench"
)

// Every figure here is made up.

// madeUp is results of one profile whose runs take so many times as long as the
// control.
func madeUp(commit string, factors ...float64) bench.Results {
	took := func(f float64) bench.Measurement {
		return bench.Measurement{
			Requests: 100, Throughput: 1000 / f,
			Latency: bench.Quantiles{P50: 100 * f, P90: 200 * f, P95: 300 * f, P99: 400 * f, P999: 500 * f, Max: 600 * f},
		}
	}
	p := bench.Profile{Name: "distinct", Engine: "bare", Pace: "closed", Connections: 8, Duration: time.Second}
	for _, f := range factors {
		p.Runs, p.Control = append(p.Runs, took(f)), append(p.Control, took(1))
	}
	return bench.Results{
		SchemaVersion: bench.SchemaVersion, Commit: commit, StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Command: "bench run --profile distinct", Env: bench.Env{CPU: "Imaginary 9000", Cores: 4, Go: "go1.26.8"},
		Profiles: []bench.Profile{p},
	}
}

// saved writes results and a histogram of each series into a directory.
func saved(t *testing.T, r bench.Results) string {
	t.Helper()
	dir := t.TempDir()
	for i := range r.Profiles {
		p := &r.Profiles[i]
		for j := range p.Runs {
			p.Runs[j].Histogram = histogram(t, dir, fmt.Sprintf("%s-%d", p.Name, j+1), p.Runs[j])
		}
		for j := range p.Control {
			p.Control[j].Histogram = histogram(t, dir, fmt.Sprintf("%s-control-%d", p.Name, j+1), p.Control[j])
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func histogram(t *testing.T, dir, name string, m bench.Measurement) string {
	t.Helper()
	log, distribution := histogramOf(m)
	for ending, data := range map[string][]byte{".hlog": log, ".hgrm": distribution} {
		if err := os.WriteFile(filepath.Join(dir, name+ending), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

func histogramOf(m bench.Measurement) (log, distribution []byte) {
	h := hdrhistogram.New(1, 60_000_000, 3)
	var l, d bytes.Buffer
	err := h.RecordValues(int64(m.Latency.P50), m.Requests)
	if err == nil {
		err = hdrhistogram.NewHistogramLogWriter(&l).OutputIntervalHistogram(h)
	}
	if err == nil {
		_, err = h.PercentilesPrint(&d, 5, 1)
	}
	if err != nil {
		panic(err) // only for what no test gives it
	}
	return l.Bytes(), d.Bytes()
}

// called runs the program.
func called(args ...string) (code int, stdout, stderr string) {
	var out, words bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &out, &words)
	return code, out.String(), words.String()
}

func TestCompareExitCodes(t *testing.T) {
	steady := saved(t, madeUp("aaa", 2, 2, 2, 2, 2))
	slower := saved(t, madeUp("bbb", 3, 3, 3, 3, 3))
	bit := saved(t, madeUp("bbb", 2.1, 2.1, 2.1, 2.1, 2.1))
	once := saved(t, madeUp("bbb", 3))
	void := madeUp("bbb", 3, 3, 3, 3, 3)
	void.Profiles[0].Void = []string{"the generator was saturated"}
	voided := saved(t, void)
	other := madeUp("bbb", 3, 3, 3, 3, 3)
	other.Profiles[0].Connections = 9
	elsewhere := saved(t, other)
	// Two profiles, of which B has one void.
	two := func(commit string, void ...string) string {
		r, second := madeUp(commit, 2, 2, 2, 2, 2), madeUp(commit, 2, 2, 2, 2, 2).Profiles[0]
		second.Name, second.Void = "replay", void
		r.Profiles = append(r.Profiles, second)
		return saved(t, r)
	}
	both, half := two("aaa"), two("bbb", "calls: the server counted 59, the answers say 60")
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "results.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"nothing changed", []string{steady, steady}, 0, "No regression beyond 10% and the noise in 1 of 1 profile.", ""},
		{"by the file", []string{filepath.Join(steady, "results.json"), steady}, 0, "No regression", ""},
		{"slower", []string{steady, slower}, 1, "7 regressions", ""},
		{"faster", []string{slower, steady}, 0, "better", ""},
		{"slower within the threshold", []string{steady, bit}, 0, "worse\n", ""},
		{"slower beyond a lower threshold", []string{steady, bit, "--threshold", "4%"}, 1, "worse >4%", ""},
		{"slower within a higher threshold", []string{steady, slower, "--threshold=50%"}, 0, "No regression beyond 50%", ""},
		{"one run", []string{steady, once}, 3, "NOT JUDGED", "nothing could be judged"},
		{"void", []string{steady, voided}, 3, "B is void: the generator was saturated", "nothing could be judged"},
		{"one of two is void", []string{both, half}, 3, "in 1 of 2 profiles", "not everything could be judged: replay, closed, 8 connections, sent by bare"},
		{"one of two is void, and not asked for", []string{both, half, "--profile=distinct"}, 0, "in 1 of 1 profile", ""},
		{"another load", []string{steady, elsewhere}, 3, "MISSING", "nothing could be judged"},
		{"no such directory", []string{steady, filepath.Join(broken, "x")}, 2, "", "no such file"},
		{"no results", []string{broken, steady}, 2, "", "these are not results of the suite"},
		{"no such profile", []string{steady, steady, "--profile=nonsense"}, 2, "", `no profile "nonsense"`},
		{"a threshold without its sign", []string{steady, steady, "--threshold=10"}, 2, "", "is not a percentage, such as 10%"},
		{"a threshold of nonsense", []string{steady, steady, "--threshold=x%"}, 2, "", "is not a percentage"},
		{"a threshold beyond all", []string{steady, steady, "--threshold=100%"}, 2, "", "a threshold of 100%"},
		{"a confidence beyond all", []string{steady, steady, "--confidence=100%"}, 2, "", "a confidence of 100%"},
		{"one side only", []string{steady}, 2, "", "expected"},
		{"a plot that cannot be written", []string{steady, steady, "--svg", filepath.Join(broken, "x", "y.svg")}, 2, "", "--svg:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := called(append([]string{"compare"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, want %d; want %q and %q in\n%s\n%s", code, tc.code, tc.stdout, tc.stderr, stdout, stderr)
			}
			if tc.stderr == "" && stderr != "" {
				t.Errorf("it says %q", stderr)
			}
		})
	}
	t.Run("output that is lost", func(t *testing.T) {
		var words bytes.Buffer
		if code := run(context.Background(), []string{"compare", steady, slower}, strings.NewReader(""), deaf{}, &words); code != exitOutput {
			t.Errorf("exit code %d, want %d", code, exitOutput)
		}
	})
	t.Run("JSON", func(t *testing.T) {
		code, stdout, _ := called("compare", steady, slower, "--json")
		var c bench.Comparison
		if err := json.Unmarshal([]byte(stdout), &c); err != nil {
			t.Fatal(err)
		}
		if code != 1 || c.SchemaVersion != bench.ComparisonSchemaVersion || c.Regressions() != 7 || c.Threshold != 0.1 || c.Confidence != 0.99 {
			t.Errorf("exit code %d, %s", code, stdout)
		}
	})
	t.Run("plot", func(t *testing.T) {
		for _, tc := range []struct {
			flags []string
			zeros int // labels: the percentile's, and that of a linear axis
		}{{nil, 1}, {[]string{"--linear"}, 2}} {
			path := filepath.Join(t.TempDir(), "x.svg")
			if code, _, stderr := called(append([]string{"compare", steady, slower, "--svg", path}, tc.flags...)...); code != 1 || stderr != "" {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			svg, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := xml.Unmarshal(svg, new(struct{})); err != nil {
				t.Error(err)
			}
			if n := strings.Count(string(svg), ">0</text>"); n != tc.zeros {
				t.Errorf("%v: %d labels of 0, want %d", tc.flags, n, tc.zeros)
			}
		}
	})
	t.Run("a plot without histograms", func(t *testing.T) {
		if err := os.Remove(filepath.Join(bit, "distinct-1.hlog")); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := called("compare", steady, bit, "--svg", filepath.Join(t.TempDir(), "x.svg")); code != 2 || !strings.Contains(stderr, "no such file") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
}

type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestMergeAndReport(t *testing.T) {
	one, two := saved(t, madeUp("aaa", 2)), saved(t, madeUp("aaa", 3))
	sum := filepath.Join(t.TempDir(), "sum")
	if code, _, stderr := called("merge", one, two, "--out", sum); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	s, err := bench.Open(sum)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Profiles[0].Runs); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
	out := filepath.Join(t.TempDir(), "results")
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"merged into what is there", []string{"merge", one, "--out", sum}, 2, "already holds results"},
		{"two commits merged", []string{"merge", one, saved(t, madeUp("bbb", 1)), "--out", filepath.Join(out, "x")}, 2, "two commits"},
		{"filed", []string{"report", sum, "--out", out}, 0, ""},
		{"filed again", []string{"report", sum, "--out", out}, 0, ""},
		{"only the index", []string{"report", "--out", out}, 0, ""},
		{"other results of that day", []string{"report", one, "--out", out}, 1, "--replace replaces them"},
		{"replaced", []string{"report", one, "--out", out, "--replace"}, 0, ""},
		{"not there", []string{"report", filepath.Join(out, "x"), "--out", out}, 2, "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if code, _, stderr := called(tc.args...); code != tc.code || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, want %d; want %q in %q", code, tc.code, tc.stderr, stderr)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(out, "2026-01-02-aaa", "plots", "distinct-bare-closed-c8.svg")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(out, "2026-01-02-aaa", "distinct-1-2.hlog")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a replaced run's histogram is there: %v", err)
	}
}
