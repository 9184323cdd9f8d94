package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options says what [Run] does.
type Options struct {
	// Names chooses scenarios; none: all of the subject, or with a Target all of
	// those that are done to one.
	Names []string

	// Binary is the idemd to start for the scenarios that are done to it. Empty:
	// they are left out, unless one of them is named, which is an error.
	Binary string

	// Target is somebody's service to try; nil: the probe's own scenarios.
	Target *Target

	// Keep is a directory in which ledgers, data directories and logs stay, each
	// scenario's in a directory of its name. It is made where it is missing and must
	// be empty otherwise. Empty: all of it is removed. What is kept of a scenario that
	// is done to idemd takes some 140 MB.
	Keep string

	// Progress, which may be nil, is told what begins: number from 1 of all.
	Progress func(name string, number, all int)
}

// Errors of Run besides those that match [ErrPrecondition] and that of the context.
var (
	// ErrNothing means that there is nothing to do: no scenario has such a name.
	ErrNothing = errors.New("probe: there is nothing to do")
)

// scenarioTime bounds a scenario, but for those done to a target, which may be slow
// (see env.patience). It is far beyond what any of them takes: one that meets it
// hangs.
const scenarioTime = time.Minute

// Scenarios lists all there are, in the order in which they are run.
func Scenarios() []Scenario {
	return slices.Concat(sinkScenarios(), idemdScenarios(), targetScenarios())
}

// choose picks the scenarios that the options ask for.
func (o Options) choose() ([]Scenario, error) {
	var chosen []Scenario
	known := make(map[string]bool)
	for _, s := range Scenarios() {
		known[s.Name] = true
		if (s.On == OnTarget) != (o.Target != nil) {
			continue
		}
		named := slices.Contains(o.Names, s.Name)
		if s.On == OnIdemd && o.Binary == "" {
			if named {
				return nil, precondition("%s needs the program idemd", s.Name)
			}
			continue
		}
		if named || len(o.Names) == 0 {
			chosen = append(chosen, s)
		}
	}
	for _, name := range o.Names {
		if !known[name] {
			return nil, fmt.Errorf("%w: there is no scenario %q", ErrNothing, name)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: the scenarios named are not done to this", ErrNothing)
	}
	return chosen, nil
}

// atOnce is how many scenarios run at the same time. They share nothing but the
// machine, and most of their time is waiting.
const atOnce = 6

// Run runs scenarios, each with a server of its own, and judges them on their
// ledgers. The results hold those that were run to their end, also where there is
// an error, which ends the run. A target's are judged together in the end: of them
// an error leaves none.
//
// Whether every scenario is as it was declared is in the results, not in the
// error. Errors: one that matches [ErrPrecondition], [ErrNothing], that of ctx,
// and whatever a scenario could not do.
func Run(ctx context.Context, o Options) (*Results, error) {
	all := &Results{SchemaVersion: SchemaVersion, Scenarios: []*Result{}}
	chosen, err := o.choose()
	if err != nil {
		return all, err
	}
	dir, clean, err := o.workspace()
	if err != nil {
		return all, err
	}
	e := env{binary: o.Binary, keep: o.Keep != ""}
	if o.Target == nil {
		all.Scenarios, err = o.playAll(ctx, chosen, e, dir)
	} else {
		all.Scenarios, err = o.playTarget(ctx, chosen, e, dir)
	}
	all.OK = err == nil
	for _, r := range all.Scenarios {
		all.OK = all.OK && r.OK
	}
	return all, errors.Join(err, clean())
}

// playAll runs scenarios, some at a time, and gives the results in their order.
func (o Options) playAll(ctx context.Context, chosen []Scenario, e env, dir string) ([]*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]*Result, len(chosen))
	places := make(chan struct{}, atOnce)
	var playing sync.WaitGroup
	for i, s := range chosen {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		o.tell(s.Name, i+1, len(chosen))
		playing.Go(func() {
			defer func() { <-places }()
			r, err := s.play(ctx, e, dir)
			if err != nil {
				cancel(fmt.Errorf("%s: %w", s.Name, err)) // the first one counts
				return
			}
			results[i] = r
		})
	}
	playing.Wait()
	return slices.DeleteFunc(results, func(r *Result) bool { return r == nil }), context.Cause(ctx)
}

// playTarget runs scenarios against a target, one after the other, and reads its
// ledger before and after all of them.
func (o Options) playTarget(ctx context.Context, chosen []Scenario, e env, dir string) (results []*Result, err error) {
	if e.target, err = openTarget(ctx, *o.Target); err != nil {
		return nil, err
	}
	defer e.target.close()
	for i, s := range chosen {
		o.tell(s.Name, i+1, len(chosen))
		r, err := s.play(ctx, e, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		results = append(results, r)
	}
	if err := e.target.judge(ctx, results); err != nil {
		return nil, err // what is not judged must not look as if it were
	}
	return results, nil
}

func (o Options) tell(name string, n, all int) {
	if o.Progress != nil {
		o.Progress(name, n, all)
	}
}

// play runs one scenario.
func (s Scenario) play(ctx context.Context, e env, dir string) (r *Result, err error) {
	limit := e.patience()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("probe: it hangs: no end after %v", limit))
	defer cancel()
	if e.dir, err = newDir(dir, s.Name); err != nil {
		return nil, err
	}
	if !e.keep {
		// Not only in the end: a data directory of idemd takes some 140 MB.
		defer func() { err = errors.Join(err, os.RemoveAll(e.dir)) }()
	}
	r = &Result{
		Scenario: s.Name, On: s.On, Policy: s.Policy, Key: s.Key, Shows: s.Shows, Declared: s.Declared,
		Differs: []string{}, Intents: []string{}, Tries: []Try{}, Ledger: []string{}, Notes: []string{},
	}
	entries, err := s.run(ctx, &e, r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	if s.On != OnTarget { // a target's ledger is read once, in the end
		r.judge(entries)
	}
	return r, nil
}

// workspace makes the directory of a run; clean removes it unless it is kept.
func (o Options) workspace() (dir string, clean func() error, err error) {
	if o.Keep == "" {
		if dir, err = os.MkdirTemp("", "idemd-probe-"); err != nil {
			return "", nil, precondition("%w", err)
		}
		return dir, func() error { return os.RemoveAll(dir) }, nil
	}
	if dir, err = filepath.Abs(o.Keep); err != nil {
		return "", nil, precondition("%w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, precondition("%w", err)
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, precondition("%w", err)
	}
	if len(there) > 0 {
		return "", nil, precondition("%s is not empty; what is kept must not be mixed with an earlier run", dir)
	}
	return dir, func() error { return nil }, nil
}
