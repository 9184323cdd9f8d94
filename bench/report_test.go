package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// onDisk saves made-up Results, with a histogram of every series around its
// quantiles, and opens them again.
func onDisk(t *testing.T, s *Saved) (*Saved, string) {
	t.Helper()
	source, dir := t.TempDir(), t.TempDir()
	s.files = map[string]string{}
	for i := range s.Profiles {
		p := &s.Profiles[i]
		for _, of := range []struct {
			series []Measurement
			name   string
		}{{p.Runs, "run"}, {p.Control, "control"}} {
			for j := range of.series {
				m := &of.series[j]
				m.Histogram = fmt.Sprintf("%s-%s-%d", p.Name, of.name, j+1)
				s.files[m.Histogram] = filepath.Join(source, m.Histogram)
				h := newHistogram()
				for n := range int64(1000) {
					v := int64(m.Latency.P50)
					if n >= 900 {
						v = int64(m.Latency.P99)
					}
					if err := h.RecordValue(v + n); err != nil {
						t.Fatal(err)
					}
				}
				var log, distribution bytes.Buffer
				if err := hdrhistogram.NewHistogramLogWriter(&log).OutputIntervalHistogram(h); err != nil {
					t.Fatal(err)
				}
				if _, err := h.PercentilesPrint(&distribution, 5, 1); err != nil {
					t.Fatal(err)
				}
				write(t, s.files[m.Histogram]+".hlog", log.String())
				write(t, s.files[m.Histogram]+".hgrm", distribution.String())
			}
		}
	}
	if err := s.Save(dir); err != nil {
		t.Fatal(err)
	}
	return open(t, dir), dir
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *Saved {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tree is every file below a directory, with its bytes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func counts(p Profile) Profile {
	for i := range p.Runs {
		m := &p.Runs[i]
		m.Statuses = map[string]int{"200": 990, "0": 10}
		m.Calls, m.Effects, m.Attempts = 990, 990, map[string]int64{"1": 980, "2": 10}
		m.GeneratorCPU, m.ServerCPU, m.Late = 0.5, 1.25, 1
	}
	return p
}

func TestReport(t *testing.T) {
	older := madeUp("0123456789abcdef0123456789abcdef01234567", loaded("distinct", 2, 2.1, 1.9))
	newer := madeUp("fedcba9876543210fedcba9876543210fedcba98-dirty",
		counts(loaded("distinct", 2, 2.1, 1.9)),
		with(loaded("same", 3), func(p *Profile) {
			p.Pace, p.Rate, p.Preload, p.Duration = "open", 50, 1000, 0
			p.Void = []string{"the | generator could not write /home/somebody/bench/x.log, and /stats differs from /v1/effects"}
		}),
		with(loaded("recovery", 1, 1), func(p *Profile) {
			p.Control = nil
			p.Runs[1].Gap = 1500 * time.Millisecond
		}))
	newer.StartedAt = newer.StartedAt.Add(48 * time.Hour)
	newer.Command = "/home/somebody/bin/bench run --idemd=/home/somebody/idemd --target http://127.0.0.1:8081/x" +
		" --out /home:1/somebody/x '--data=/home/of a/somebody/my store' --dir '/home/of a/somebody/big: disk'"
	newer.Env.CPU = "Imaginary <9000> | two"
	a, _ := onDisk(t, older)
	b, _ := onDisk(t, newer)

	out := filepath.Join(t.TempDir(), "results")
	if err := Report(out, false, a, b); err != nil {
		t.Fatal(err)
	}
	first := tree(t, out)

	if why := b.Profiles[1].Void[0]; !strings.Contains(why, "/home/somebody") {
		t.Errorf("what was given was changed: %s", why)
	}

	t.Run("what is written", func(t *testing.T) {
		const dir = "2026-03-06-fedcba987654-dirty/"
		for _, name := range []string{
			"README.md", "2026-03-04-0123456789ab/results.json", dir + "results.json", dir + "distinct-run-1.hlog",
			dir + "distinct-control-3.hgrm", dir + "plots/distinct-bare-closed-c64.svg", dir + "plots/same-bare-open-c64-r50-preload1000.svg",
		} {
			if _, ok := first[name]; !ok {
				t.Errorf("no %s in %q", name, slices.Sorted(maps.Keys(first)))
			}
		}
		checkGolden(t, "report.md", []byte(first["README.md"]))
		for name, data := range first {
			if strings.Contains(data, "somebody") || strings.Contains(data, out) {
				t.Errorf("%s has a path of the machine", name)
			}
			if strings.HasSuffix(name, ".svg") {
				checkSVG(t, []byte(data))
			}
			if path, ok := strings.CutSuffix(name, ".hlog"); ok {
				if _, ok := first[path+".hgrm"]; !ok {
					t.Errorf("no .hgrm beside %s", name)
				}
			}
		}
	})
	t.Run("links lead to files", func(t *testing.T) {
		for _, part := range strings.Split(first["README.md"], "](")[1:] {
			link, _, _ := strings.Cut(part, ")")
			if _, err := os.Stat(filepath.Join(out, link)); err != nil {
				t.Error(err)
			}
		}
	})
	same := func(t *testing.T) {
		t.Helper()
		if again := tree(t, out); !maps.Equal(first, again) {
			t.Errorf("not the same bytes: %q, then %q", slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(again)))
		}
	}
	t.Run("again", func(t *testing.T) {
		if err := Report(out, false, b, a); err != nil {
			t.Fatal(err)
		}
		same(t)
	})
	t.Run("from where they are filed, and only the index", func(t *testing.T) {
		if err := Report(out, false, open(t, filepath.Join(out, "2026-03-04-0123456789ab"))); err != nil {
			t.Fatal(err)
		}
		same(t)
		if err := Report(out, false); err != nil {
			t.Fatal(err)
		}
		same(t)
	})

	other := madeUp(older.Commit, loaded("poll", 2))
	other.Command = "bench run --profile poll"
	c, _ := onDisk(t, other)
	t.Run("other results of that day and commit are refused and lose nothing", func(t *testing.T) {
		if err := Report(out, false, c); !errors.Is(err, ErrFiled) {
			t.Errorf("error %v", err)
		}
		same(t)
	})
	t.Run("a lost histogram is refused before anything is written", func(t *testing.T) {
		lost := *b
		lost.files = maps.Clone(b.files)
		lost.files["distinct-run-1"] = filepath.Join(t.TempDir(), "nowhere")
		fresh := filepath.Join(t.TempDir(), "results")
		if err := Report(fresh, false, a, &lost); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
		if _, err := os.Stat(fresh); !errors.Is(err, fs.ErrNotExist) {
			t.Error("something was written")
		}
	})
	t.Run("merged with what is filed already, whichever is named first", func(t *testing.T) {
		dir := filepath.Join(out, "2026-03-04-0123456789ab")
		twin, _ := onDisk(t, madeUp(older.Commit, loaded("distinct", 5)))
		if err := Report(out, true, twin, open(t, dir)); err != nil {
			t.Fatal(err)
		}
		merged := open(t, dir)
		if n := len(merged.Profiles[0].Runs); n != 4 {
			t.Fatalf("%d runs, want 4", n)
		}
		for i := range merged.Profiles[0].Runs {
			h, err := merged.latencies(merged.Profiles[0].Runs[i : i+1])
			if err != nil {
				t.Fatal(err)
			}
			if low := int64(merged.Profiles[0].Runs[i].Latency.P50); !h.ValuesAreEquivalent(h.Min(), low) {
				t.Errorf("run %d: the histogram begins at %d, its run at %d", i, h.Min(), low)
			}
		}
	})
	t.Run("replaced, without the files of before, and with those of others", func(t *testing.T) {
		dir := filepath.Join(out, "2026-03-04-0123456789ab")
		write(t, filepath.Join(dir, "NOTES.md"), "mine")
		if err := Report(out, true, c); err != nil {
			t.Fatal(err)
		}
		got := slices.Sorted(maps.Keys(tree(t, dir)))
		want := []string{
			"NOTES.md", "plots/poll-bare-closed-c64.svg", "poll-control-1.hgrm", "poll-control-1.hlog", "poll-run-1.hgrm", "poll-run-1.hlog", "results.json",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("without figures", func(t *testing.T) {
		fresh := t.TempDir()
		if err := Report(fresh, false); err != nil {
			t.Fatal(err)
		}
		if readme := tree(t, fresh)["README.md"]; !strings.Contains(readme, "There are no figures yet.") {
			t.Errorf("README.md: %s", readme)
		}
	})
}

func TestHistogramRoundTrip(t *testing.T) {
	s, dir := onDisk(t, madeUp("aaa", loaded("distinct", 2, 4)))
	h, err := s.latencies(s.Profiles[0].Runs)
	if err != nil {
		t.Fatal(err)
	}
	if h.TotalCount() != 2000 || !h.ValuesAreEquivalent(h.Min(), 2000) || !h.ValuesAreEquivalent(h.Max(), 4*2*5000+999) {
		t.Errorf("%d latencies from %d to %d", h.TotalCount(), h.Min(), h.Max())
	}
	t.Run("saved and opened, nothing changes", func(t *testing.T) {
		again := filepath.Join(t.TempDir(), "again")
		if err := s.Save(again); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(tree(t, dir), tree(t, again)) {
			t.Error("not the same bytes")
		}
	})
	t.Run("over other results nothing is saved", func(t *testing.T) {
		if err := s.Save(dir); err == nil {
			t.Error("no error")
		}
	})
	for name, data := range map[string]string{
		"empty":               "",
		"no histogram":        "#[StartTime: 1 (seconds since epoch)]\n",
		"broken":              "0.000,1.000,1.000,HISTFAAAAnotone\n",
		"nothing in it":       logOf(t),
		"beyond 60 s, by far": logOf(t, 5, 1<<40),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x")
			write(t, path+".hlog", data)
			bad := &Saved{files: map[string]string{"x": path}}
			if h, err := bad.latencies([]Measurement{{Histogram: "x"}}); err == nil {
				t.Errorf("taken, with %d latencies", h.TotalCount())
			}
		})
	}
}

func logOf(t *testing.T, values ...int64) string {
	t.Helper()
	var b bytes.Buffer
	h := hdrhistogram.New(1, 1<<42, 3)
	for _, v := range values {
		if err := h.RecordValue(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := hdrhistogram.NewHistogramLogWriter(&b).OutputIntervalHistogram(h); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestOpen(t *testing.T) {
	const head = `{"schema_version":1,"commit":"a","profiles":[`
	const profile = `{"name":"x","engine":"bare","pace":"closed"`
	for _, tc := range []struct{ name, data, want string }{
		{"not JSON", "{", "unexpected end"},
		{"something else", `{"a":1}`, "not results of the suite"},
		{"newer", `{"schema_version":2,"commit":"a"}`, "schema_version is 2, this program knows 1"},
		{"no commit", `{"schema_version":1}`, "no commit"},
		{"same load twice", head + profile + `},` + profile + `}]}`, "two profiles of the same load: x, closed"},
		{"name with a path", head + `{"name":"../x","engine":"bare","pace":"closed"}]}`, "is not the name of a profile"},
		{"no engine", head + `{"name":"x","pace":"closed"}]}`, "what sent the requests"},
		{"pace", head + `{"name":"x","engine":"bare","pace":"slow"}]}`, "neither open nor closed"},
		{"negative", head + profile + `,"preload":-1}]}`, "negative"},
		{"histogram elsewhere", head + profile + `,"runs":[{"histogram":"../../etc/x"}]}]}`, "is not a file name"},
		{"histogram of the directory", head + profile + `,"runs":[{"histogram":".."}]}]}`, "is not a file name"},
		{"histogram twice", head + profile + `,"runs":[{"histogram":"x"},{"histogram":"x"}]}]}`, "two series"},
		{"too many runs", head + profile + `,"runs":[` + strings.Repeat("{},", maxRuns) + `{}]}]}`, "more than 100 runs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "results.json")
			write(t, path, tc.data)
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("nowhere", func(t *testing.T) {
		if _, err := Open(filepath.Join(t.TempDir(), "x")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("members of later", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "results.json")
		write(t, path, head+profile+`,"new":1}],"newer":{}}`)
		if s, err := Open(path); err != nil || len(s.Profiles) != 1 {
			t.Errorf("error %v", err)
		}
	})
}

func TestMerge(t *testing.T) {
	part := func(factor float64) *Saved {
		s, _ := onDisk(t, madeUp("aaa", loaded("distinct", factor)))
		return s
	}
	one, two, three := part(1), part(2), part(3)
	one.Env.LoadBefore, two.Env.Fsync.P50, three.Env.Fsync.P50 = 1, 500, 4000
	two.StartedAt = two.StartedAt.Add(-time.Hour)
	two.Profiles[0].Void = []string{"saturated"}
	three.Profiles[0].Void = []string{"saturated"}
	one.Command += " --out /tmp/1 --max"
	two.Command += " --out='/tmp/2 of 2' --max"
	three.Command = "bench run --profile distinct"
	m, err := Merge(one, two, three)
	if err != nil {
		t.Fatal(err)
	}
	p := m.Profiles[0]
	if len(m.Profiles) != 1 || len(p.Runs) != 3 || len(p.Control) != 3 {
		t.Fatalf("%d profiles, %d runs", len(m.Profiles), len(p.Runs))
	}
	for i, want := range []string{"distinct-run-1", "distinct-run-1-2", "distinct-run-1-3"} {
		if p.Runs[i].Histogram != want || p.Runs[i].Latency.P50 != p.Control[i].Latency.P50*float64(i+1) {
			t.Errorf("run %d is %s with p50 %v", i, p.Runs[i].Histogram, p.Runs[i].Latency.P50)
		}
		h, err := m.latencies(p.Runs[i : i+1])
		if err != nil {
			t.Fatal(err)
		}
		if !h.ValuesAreEquivalent(h.Min(), int64(p.Runs[i].Latency.P50)) {
			t.Errorf("run %d has another run's histogram", i)
		}
	}
	if !slices.Equal(p.Void, []string{"saturated"}) {
		t.Errorf("void %q", p.Void)
	}
	if m.Env.LoadBefore != 1 || m.Env.Fsync.P50 != 500 || !m.StartedAt.Equal(two.StartedAt) {
		t.Errorf("load %v, fsync %v, started %v", m.Env.LoadBefore, m.Env.Fsync.P50, m.StartedAt)
	}
	if want := "for i in $(seq 2); do bench run --runs 5 --max; done; bench run --profile distinct"; m.Command != want {
		t.Errorf("command %q", m.Command)
	}
	if len(one.Profiles[0].Runs) != 1 || one.Profiles[0].Void != nil || two.Profiles[0].Runs[0].Histogram != "distinct-run-1" {
		t.Error("a part was changed")
	}

	for _, tc := range []struct {
		name   string
		change func(*Saved)
		want   string
	}{
		{"other commit", func(s *Saved) { s.Commit = "bbb" }, "two commits"},
		{"other machine", func(s *Saved) { s.Env.CPU = "Other" }, "two environments"},
		{"other duration", func(s *Saved) { s.Profiles[0].Duration = time.Hour }, "3s and 1h0m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			other := part(1)
			tc.change(other)
			if _, err := Merge(one, other); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		if _, err := Merge(); err == nil {
			t.Error("no error")
		}
	})
	t.Run("too many runs", func(t *testing.T) {
		var parts []*Saved
		for range maxRuns + 1 {
			parts = append(parts, madeUp("aaa", loaded("distinct", 1)))
		}
		if _, err := Merge(parts...); err == nil || !strings.Contains(err.Error(), "more than 100 runs") {
			t.Errorf("error %v", err)
		}
	})
}

func TestComparisonPlot(t *testing.T) {
	a, _ := onDisk(t, madeUp("aaa", loaded("distinct", 2, 2), loaded("replay", 1, 1)))
	b, _ := onDisk(t, madeUp("b<b>&", loaded("distinct", 3, 3), with(loaded("replay", 1, 1), func(p *Profile) { p.Control = nil })))
	c, err := Compare(a, b, standard)
	if err != nil {
		t.Fatal(err)
	}
	for _, logarithmic := range []bool{true, false} {
		svg, err := c.Plot(a, b, logarithmic)
		if err != nil {
			t.Fatal(err)
		}
		lines := checkSVG(t, svg)
		want := map[string]int{"a": 2, "b": 2, "control-a": 2, "control-b": 1}
		if !maps.Equal(lines, want) {
			t.Errorf("lines %v, want %v", lines, want)
		}
		for _, name := range []string{"A aaa", "A&#39;s control", "B b&lt;b&gt;&amp;", "99.9", "distinct, closed", "prefers-color-scheme: dark"} {
			if !bytes.Contains(svg, []byte(name)) {
				t.Errorf("no %q in the plot", name)
			}
		}
		again, err := c.Plot(a, b, logarithmic)
		if err != nil || !bytes.Equal(svg, again) {
			t.Errorf("another plot the second time; error %v", err)
		}
	}
	t.Run("the golden one", func(t *testing.T) {
		svg, err := c.Plot(a, b, true)
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, "plot.svg", svg)
	})
	t.Run("no histogram", func(t *testing.T) {
		without := madeUp("aaa", loaded("distinct", 2, 2))
		if _, err := c.Plot(without, b, true); err == nil {
			t.Error("no error")
		}
	})
	t.Run("nothing in common", func(t *testing.T) {
		if _, err := new(Comparison).Plot(a, b, true); err == nil {
			t.Error("no error")
		}
	})
}

// checkSVG checks that an SVG is well-formed, needs nothing from elsewhere, is
// titled, and has only numbers in its paths, and counts its curves by class.
func checkSVG(t *testing.T, svg []byte) map[string]int {
	t.Helper()
	curves, seen := map[string]int{}, map[string]bool{}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		seen[e.Name.Local] = true
		attr := map[string]string{}
		for _, a := range e.Attr {
			attr[a.Name.Local] = a.Value
			if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
				t.Errorf("%s %s=%q", e.Name.Local, a.Name.Local, a.Value)
			}
		}
		if class, ok := strings.CutPrefix(attr["class"], "line "); ok && strings.Count(attr["d"], "L") > 0 {
			curves[class]++
		}
		for _, never := range []string{"script", "image", "foreignObject", "use", "link"} {
			if e.Name.Local == never {
				t.Errorf("there is a <%s>", never)
			}
		}
	}
	for _, must := range []string{"svg", "title", "desc", "style"} {
		if !seen[must] {
			t.Errorf("no <%s>", must)
		}
	}
	return curves
}

func TestPlotEdges(t *testing.T) {
	for name, values := range map[string][]int64{
		"one latency":           {1},
		"all alike":             {700, 700, 700},
		"the longest":           {60_000_000},
		"from one end to other": {1, 60_000_000},
		"a power of ten":        {1000, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistogram()
			for _, v := range values {
				if err := h.RecordValue(v); err != nil {
					t.Fatal(err)
				}
			}
			for _, logarithmic := range []bool{true, false} {
				svg, err := plot("x", []panel{{"x", []plotted{{"x", "a", h}}}}, logarithmic)
				if err != nil {
					t.Fatal(err)
				}
				if curves := checkSVG(t, svg); curves["a"] != 1 {
					t.Errorf("logarithmic %v: curves %v", logarithmic, curves)
				}
			}
		})
	}
}

// Every value is on the plot, and no axis has so many labels that they meet.
func TestAxis(t *testing.T) {
	for _, low := range []float64{1, 3, 99, 100, 1000, 59e6} {
		for _, span := range []float64{1, 1.001, 2, 9, 1000, 1e5} {
			high := min(low*span, 60e6)
			for name, y := range map[string]yAxis{"log": logAxis(low, high), "linear": linearAxis(high)} {
				if n := len(y.ticks); n < 2 || n > 12 {
					t.Errorf("%s, %v to %v: %d labels", name, low, high, n)
				}
				for _, v := range []float64{low, high} {
					if at := y.at(v); !(at >= 0 && at <= 1) {
						t.Errorf("%s, %v to %v: %v is at %v", name, low, high, v, at)
					}
				}
			}
		}
	}
}
