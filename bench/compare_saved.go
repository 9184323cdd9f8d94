package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	resultsFile = "results.json"

	// Bounds of what is read: far above what the suite writes.
	maxResultsSize    = 64 << 20
	maxHistogramSize  = 16 << 20  // of one file
	maxHistogramsSize = 512 << 20 // of all that are copied
	maxRuns           = 100
)

var histogramEndings = []string{".hlog", ".hgrm"}

// Saved are Results as they lie in a directory, with the files of their
// histograms.
type Saved struct {
	Results
	files map[string]string // by Measurement.Histogram: the path, without the ending
}

// Open reads Results from a directory, or from the results.json in one. It fails
// if they were not written by the suite, or by one with a newer schema, and
// where two profiles have the same load, since nothing could tell them apart.
func Open(path string) (*Saved, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if info.IsDir() {
		path = filepath.Join(path, resultsFile)
	}
	data, err := readBounded(path, maxResultsSize)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s := &Saved{files: map[string]string{}}
	if err := json.Unmarshal(data, &s.Results); err != nil {
		return nil, fmt.Errorf("bench: %s: %w", path, err)
	}
	if err := s.check(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("bench: %s: %w", path, err)
	}
	return s, nil
}

// check refuses what the rest of the package could not work with, and notes
// where the histograms are.
func (s *Saved) check(dir string) error {
	switch {
	case s.SchemaVersion == 0:
		return errors.New("no schema_version: these are not results of the suite")
	case s.SchemaVersion != SchemaVersion:
		return fmt.Errorf("schema_version is %d, this program knows %d", s.SchemaVersion, SchemaVersion)
	case s.Commit == "":
		return errors.New("no commit")
	}
	seen := map[Load]bool{}
	for _, p := range s.Profiles {
		l := loadOf(p)
		switch {
		case !isWord(p.Name):
			return fmt.Errorf("%q is not the name of a profile", p.Name)
		case !isWord(p.Engine):
			return fmt.Errorf("%s: %q is not the name of what sent the requests", p.Name, p.Engine)
		case p.Pace != "open" && p.Pace != "closed":
			return fmt.Errorf("%s: the pace is %q, neither open nor closed", p.Name, p.Pace)
		case p.Rate < 0 || p.Connections < 0 || p.Preload < 0:
			return fmt.Errorf("%s: rate, connections and preload cannot be negative", p.Name)
		}
		if seen[l] {
			return fmt.Errorf("two profiles of the same load: %s", l)
		}
		seen[l] = true
		if len(p.Runs) > maxRuns || len(p.Control) > maxRuns {
			return fmt.Errorf("%s: more than %d runs", l, maxRuns)
		}
		for _, m := range slices.Concat(p.Runs, p.Control) {
			name := m.Histogram
			if name == "" {
				continue
			}
			// It becomes part of a path that is read, and of one that is written.
			if name != filepath.Base(name) || !filepath.IsLocal(name) || strings.ContainsFunc(name, isUnprintable) {
				return fmt.Errorf("%s: %q is not a file name", l, name)
			}
			if _, dup := s.files[name]; dup {
				return fmt.Errorf("%s: two series with the histogram %q", l, name)
			}
			s.files[name] = filepath.Join(dir, name)
		}
	}
	return nil
}

// isWord is whether s may stand in a file name as it is.
func isWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, nil
}

// latencies is the sum of the histograms of the series, in microseconds.
func (s *Saved) latencies(series []Measurement) (*hdrhistogram.Histogram, error) {
	var sum *hdrhistogram.Histogram
	for _, m := range series {
		if m.Histogram == "" {
			return nil, errors.New("bench: a series has no histogram")
		}
		hists, err := readHistograms(s.files[m.Histogram] + ".hlog")
		if err != nil {
			return nil, err
		}
		for _, h := range hists {
			if sum == nil {
				sum = newHistogram()
			}
			if lost := sum.Merge(h); lost > 0 {
				return nil, fmt.Errorf("bench: histogram %s has %d latencies above 60 s", m.Histogram, lost)
			}
		}
	}
	if sum == nil || sum.TotalCount() == 0 {
		return nil, errors.New("bench: a series has no latencies")
	}
	return sum, nil
}

// readHistograms reads every histogram of a .hlog file.
func readHistograms(path string) ([]*hdrhistogram.Histogram, error) {
	data, err := readBounded(path, maxHistogramSize)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var hists []*hdrhistogram.Histogram
	for r := hdrhistogram.NewHistogramLogReader(strings.NewReader(string(data))); ; {
		h, err := r.NextIntervalHistogram()
		switch {
		case err != nil:
			return nil, fmt.Errorf("bench: %s: %w", path, err)
		case h != nil:
			hists = append(hists, h)
		case len(hists) == 0:
			return nil, fmt.Errorf("bench: %s holds no histogram", path)
		default:
			return hists, nil
		}
	}
}

// Merge makes one of several Results of the same commit, taken in turn on one
// machine: the runs of profiles with the same load stand behind each other. A
// profile is void if one of its parts is: to leave out only the bad ones would
// be to choose the figures.
//
// It fails if commit or environment differ, but for the load average (the
// highest stays) and the fsync latency (the median stays).
func Merge(parts ...*Saved) (*Saved, error) {
	if len(parts) == 0 {
		return nil, errors.New("bench: nothing to merge")
	}
	sum := &Saved{Results: parts[0].Results, files: map[string]string{}}
	sum.Profiles = nil
	at := map[Load]int{}
	for _, part := range parts {
		if part.Commit != sum.Commit {
			return nil, fmt.Errorf("bench: results of two commits cannot be merged: %s and %s", sum.Commit, part.Commit)
		}
		if d := envDifferences(sum.Env, part.Env); len(d) > 0 {
			return nil, fmt.Errorf("bench: results of two environments cannot be merged: %s", strings.Join(d, "; "))
		}
		if part.StartedAt.Before(sum.StartedAt) {
			sum.StartedAt = part.StartedAt
		}
		sum.Env.LoadBefore = max(sum.Env.LoadBefore, part.Env.LoadBefore)
		for _, p := range part.Profiles {
			p.Runs, p.Control = sum.take(part, p.Runs), sum.take(part, p.Control)
			i, ok := at[loadOf(p)]
			if !ok {
				at[loadOf(p)] = len(sum.Profiles)
				p.Void = slices.Clone(p.Void)
				sum.Profiles = append(sum.Profiles, p)
				continue
			}
			q := &sum.Profiles[i]
			if q.Duration != p.Duration {
				return nil, fmt.Errorf("bench: %s: %v and %v a series cannot be merged", loadOf(p), q.Duration, p.Duration)
			}
			q.Runs, q.Control = append(q.Runs, p.Runs...), append(q.Control, p.Control...)
			if len(q.Runs) > maxRuns || len(q.Control) > maxRuns {
				return nil, fmt.Errorf("bench: %s: more than %d runs", loadOf(p), maxRuns)
			}
			for _, why := range p.Void {
				if !slices.Contains(q.Void, why) {
					q.Void = append(q.Void, why)
				}
			}
		}
	}
	sum.Command = mergeCommands(parts)
	sum.Env.Fsync = medianQuantiles(parts)
	return sum, nil
}

// take takes over the histograms of series, under names that are free.
func (s *Saved) take(from *Saved, series []Measurement) []Measurement {
	series = slices.Clone(series)
	for i := range series {
		m := &series[i]
		if m.Histogram == "" {
			continue
		}
		file, name := from.files[m.Histogram], m.Histogram
		for n := 2; ; n++ {
			if _, taken := s.files[name]; !taken {
				break
			}
			name = fmt.Sprintf("%s-%d", m.Histogram, n)
		}
		m.Histogram = name
		s.files[name] = file
	}
	return series
}

// outFlag is where a command wrote to: of no use to anybody else, and another one
// for each part.
var outFlag = regexp.MustCompile(` --out[= ]('[^']*'|[^\s']+)`)

// mergeCommands is a line of the shell that does what the parts' commands did.
func mergeCommands(parts []*Saved) string {
	if len(parts) == 1 {
		return parts[0].Command
	}
	var commands []string
	times := map[string]int{}
	for _, p := range parts {
		command := outFlag.ReplaceAllString(p.Command, "")
		if times[command]++; times[command] == 1 {
			commands = append(commands, command)
		}
	}
	for i, c := range commands {
		if n := times[c]; n > 1 && c != "" {
			commands[i] = fmt.Sprintf("for i in $(seq %d); do %s; done", n, c)
		}
	}
	return strings.Join(commands, "; ")
}

func medianQuantiles(parts []*Saved) Quantiles {
	of := func(get func(Quantiles) float64) float64 {
		var all []float64
		for _, p := range parts {
			all = append(all, get(p.Env.Fsync))
		}
		return median(all)
	}
	return Quantiles{
		P50:  of(func(q Quantiles) float64 { return q.P50 }),
		P90:  of(func(q Quantiles) float64 { return q.P90 }),
		P95:  of(func(q Quantiles) float64 { return q.P95 }),
		P99:  of(func(q Quantiles) float64 { return q.P99 }),
		P999: of(func(q Quantiles) float64 { return q.P999 }),
		Max:  of(func(q Quantiles) float64 { return q.Max }),
		Mean: of(func(q Quantiles) float64 { return q.Mean }),
	}
}

// Save writes the Results and copies the files of their histograms into a
// directory, which it makes. One that holds results already is refused.
func (s *Saved) Save(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, resultsFile)); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s already holds results", dir)
		}
		return fmt.Errorf("bench: %w", err)
	}
	files, err := s.load()
	if err != nil {
		return err
	}
	return s.write(dir, files)
}

// load reads the histograms' files, by their names here.
func (s *Saved) load() (map[string][]byte, error) {
	files := map[string][]byte{}
	size := 0
	for _, name := range sortedKeys(s.files) {
		for _, ending := range histogramEndings {
			data, err := readBounded(s.files[name]+ending, maxHistogramSize)
			if err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
			if size += len(data); size > maxHistogramsSize {
				return nil, fmt.Errorf("bench: the histograms are larger than %d bytes", maxHistogramsSize)
			}
			files[name+ending] = data
		}
	}
	return files, nil
}

// write writes files and, last, so that a directory with results.json has
// everything, the Results.
func (s *Saved) write(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, name := range sortedKeys(files) {
		if err := replaceFile(filepath.Join(dir, name), files[name]); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(s.Results, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return replaceFile(filepath.Join(dir, resultsFile), append(data, '\n'))
}

// replaceFile writes a file so that it is never there by half.
func replaceFile(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// median is NaN of nothing.
func median(of []float64) float64 {
	if len(of) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(of))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
