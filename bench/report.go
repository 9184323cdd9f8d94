package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	indexFile = "README.md"
	plotsDir  = "plots"
)

// ErrFiled is that other results of a day and commit are filed already.
var ErrFiled = errors.New("other results of that day and commit are filed already")

// Report files Results under a directory, each as <date>-<commit>/ with
// results.json, the histograms and plots/*.svg, and writes README.md there: an
// index of everything that is filed, the newest in full. Results of the same day
// and commit are merged (see [Merge]).
//
// The same again changes no byte. Other results of a day and commit that are
// filed already are refused with [ErrFiled], unless replace is set. Nothing is
// written before all that is given has been read. Absolute paths in what was
// recorded are cut to their last element: nobody else has that machine.
func Report(out string, replace bool, given ...*Saved) error {
	groups := map[string][]*Saved{}
	for _, s := range given {
		name := directoryOf(s)
		groups[name] = append(groups[name], s)
	}
	var entries []*entry
	for _, name := range sortedKeys(groups) {
		e, err := newEntry(name, groups[name])
		if err != nil {
			return err
		}
		if err := e.mayGo(out, replace); err != nil {
			return err
		}
		entries = append(entries, e)
	}
	for _, e := range entries {
		if err := e.write(out); err != nil {
			return err
		}
	}
	filed, err := readFiled(out)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(out, indexFile), index(filed))
}

// entry is a directory of the report.
type entry struct {
	name string
	*Saved
	hists map[string][]byte // by file name, before the first of them is written: they may be read from where they go
	plots map[string][]byte
}

func newEntry(name string, of []*Saved) (*entry, error) {
	merged, err := Merge(of...)
	if err != nil {
		return nil, err
	}
	withoutPaths(&merged.Results)
	e := &entry{name: name, Saved: merged, plots: map[string][]byte{}}
	if e.hists, err = merged.load(); err != nil {
		return nil, err
	}
	for _, p := range merged.Profiles {
		if !hasHistograms(p) {
			continue
		}
		drawn := panel{title: loadOf(p).String()}
		if err := drawn.add(merged, loadOf(p), "idemd "+shortCommit(merged.Commit), "control", "a"); err != nil {
			return nil, err
		}
		svg, err := plot(p.Name, []panel{drawn}, true)
		if err != nil {
			return nil, err
		}
		e.plots[loadOf(p).slug()+".svg"] = svg
	}
	return e, nil
}

// hasHistograms is whether a profile can be drawn.
func hasHistograms(p Profile) bool {
	without := func(m Measurement) bool { return m.Histogram == "" || m.Requests == 0 }
	return len(p.Runs) > 0 && !slices.ContainsFunc(p.Runs, without) && !slices.ContainsFunc(p.Control, without)
}

// mayGo is nil if nothing is where the entry goes, or the same, or what is there
// is to be replaced.
func (e *entry) mayGo(out string, replace bool) error {
	dir := filepath.Join(out, e.name)
	if _, err := os.Lstat(filepath.Join(dir, resultsFile)); errors.Is(err, fs.ErrNotExist) || replace {
		return nil
	}
	there, err := Open(dir)
	if err != nil {
		return err
	}
	old, err := json.Marshal(there.Results)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	given, err := json.Marshal(e.Results)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if !bytes.Equal(old, given) {
		return fmt.Errorf("bench: %s: %w", dir, ErrFiled)
	}
	return nil
}

// write files the entry. Files of the directory that are not the suite's stay.
func (e *entry) write(out string) error {
	dir := filepath.Join(out, e.name)
	if err := e.makeRoom(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, plotsDir), 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, name := range sortedKeys(e.plots) {
		if err := replaceFile(filepath.Join(dir, plotsDir, name), e.plots[name]); err != nil {
			return err
		}
	}
	return e.Saved.write(dir, e.hists)
}

// makeRoom removes what an earlier report of that name wrote and this one will
// not write. results.json goes first: without it the directory is none.
func (e *entry) makeRoom(dir string) error {
	old, err := Open(dir)
	if err != nil { // nothing is there, or what cannot be read is to be replaced
		old = &Saved{}
	}
	stale, err := filepath.Glob(filepath.Join(dir, plotsDir, "*.svg"))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	stale = slices.DeleteFunc(stale, func(path string) bool {
		_, stays := e.plots[filepath.Base(path)]
		return stays
	})
	for name := range old.files {
		if _, stays := e.files[name]; stays {
			continue
		}
		for _, ending := range histogramEndings {
			stale = append(stale, filepath.Join(dir, name+ending))
		}
	}
	if len(stale) > 0 {
		stale = append([]string{filepath.Join(dir, resultsFile)}, stale...)
	}
	for _, path := range stale {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("bench: %w", err)
		}
	}
	return nil
}

// readFiled is everything under out, the newest first.
func readFiled(out string) ([]*entry, error) {
	paths, err := filepath.Glob(filepath.Join(out, "*", resultsFile))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var filed []*entry
	for _, path := range paths {
		s, err := Open(path)
		if err != nil {
			return nil, err
		}
		filed = append(filed, &entry{name: filepath.Base(filepath.Dir(path)), Saved: s})
	}
	slices.SortFunc(filed, func(a, b *entry) int {
		if c := b.StartedAt.Compare(a.StartedAt); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	return filed, nil
}

// directoryOf is the name of the directory that results are filed in.
func directoryOf(s *Saved) string {
	commit := strings.Map(func(r rune) rune {
		if isWord(string(r)) || r == '.' {
			return r
		}
		return '_'
	}, shortCommit(s.Commit))
	return s.StartedAt.UTC().Format("2006-01-02") + "-" + commit
}

// absolutePath is one that begins a word of a text; the slashes of a URL do not.
var absolutePath = regexp.MustCompile(`(^|[\s'"=,(])(/[^\s'"=,:()]+)`)

// shellWord is a word of a command line, or a part of one, that is quoted or has
// no blanks; pathInWord is a path in it, which may have blanks then.
var (
	shellWord  = regexp.MustCompile(`'[^']*'|[^\s']+`)
	pathInWord = regexp.MustCompile(`(^|['=,(])(/[^'=,()]+)`)
)

// withoutPaths cuts the absolute paths in Results to their last element.
func withoutPaths(r *Results) {
	last := func(match string) string {
		i := strings.IndexByte(match, '/')
		return match[:i] + filepath.Base(match[i:])
	}
	// In what the suite says, /stats and /v1/effects are routes.
	lastOfFile := func(match string) string {
		if path := match[strings.IndexByte(match, '/'):]; strings.HasPrefix(path, "/v1/") || strings.Count(path, "/") == 1 {
			return match
		}
		return last(match)
	}
	r.Command = shellWord.ReplaceAllStringFunc(r.Command, func(word string) string {
		return pathInWord.ReplaceAllStringFunc(word, last)
	})
	for i := range r.Profiles {
		for j, why := range r.Profiles[i].Void {
			r.Profiles[i].Void[j] = absolutePath.ReplaceAllStringFunc(why, lastOfFile)
		}
	}
}
