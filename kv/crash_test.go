package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// randomStep does something that fits the record.
func randomStep(rng *rand.Rand, k idem.Key, n int) idem.Transition {
	dice := rng.IntN(100)
	return func(cur *idem.Call) (idem.Change, error) {
		switch {
		case cur == nil && dice < 30:
			return fused(k, n)(cur)
		case cur == nil && dice < 60:
			return idem.Chain(submit(k, n), claim(otherTool, time.Hour))(cur)
		case cur == nil:
			return submit(k, n)(cur)
		case dice >= 95:
			return stale(cur)
		case cur.Status == idem.StatusPending && dice < 30:
			return idem.Chain(claim(localTool, time.Hour), succeed())(cur)
		case cur.Status == idem.StatusPending && dice < 40:
			return claim(nil, time.Hour)(cur) // the tool is gone
		case cur.Status == idem.StatusPending && dice < 70:
			return claim(holdTool, time.Hour)(cur)
		case cur.Status == idem.StatusPending:
			return claim(otherTool, time.Hour)(cur)
		case cur.Status == idem.StatusHeld:
			return resolved([]idem.Outcome{idem.OutcomeRetry, idem.OutcomeSucceeded, idem.OutcomeFailed}[dice%3])(cur)
		case cur.Status == idem.StatusRunning && dice < 30:
			return succeed()(cur)
		case cur.Status == idem.StatusRunning && dice < 60:
			return fail(true)(cur)
		case cur.Status == idem.StatusRunning && dice < 65:
			return fail(false)(cur)
		case cur.Status == idem.StatusRunning && dice < 75:
			return hold()(cur)
		case cur.Status == idem.StatusRunning && dice < 85:
			return lose()(cur)
		case cur.Status == idem.StatusRunning && dice < 90:
			return takeOver(otherTool)(cur)
		case cur.Status == idem.StatusRunning:
			return settling(idem.Release)(cur)
		case cur.Retryable() && dice < 40:
			return idem.Chain(submit(k, n), claim(localTool, time.Hour), fail(true))(cur)
		case dice < 5:
			return idem.Expire(testStart.Add(2 * testWindow))(cur)
		default:
			return submit(k, n)(cur)
		}
	}
}

var holdTool = &idem.Tool{Name: "refund", Effects: idem.EffectsExternal, Rerun: idem.RerunHold}

func resolved(outcome idem.Outcome) idem.Transition {
	return idem.Resolve(idem.Resolution{
		Terms: terms(), Outcome: outcome, By: "anna", Note: "asked", Result: idem.Result{Output: []byte(`7`)},
		Failure: idem.Failure{Code: idem.FailureTool, Message: "it was not"},
	})
}

func lose() idem.Transition {
	return settling(func(s idem.Settlement) idem.Transition {
		return idem.Lose(s, idem.Failure{Code: idem.FailureTimeout, Message: "too long"})
	})
}

// stale is a result under a lease that is lost.
func stale(cur *idem.Call) (idem.Change, error) {
	return idem.Succeed(idem.Settlement{
		Terms: terms(), Lease: idem.Lease{CallID: cur.ID, Owner: "gone/w", Attempt: 99},
	}, idem.Result{})(cur)
}

// takeOver claims a running call as the next life of the process does.
func takeOver(tool *idem.Tool) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		return idem.Claim(idem.ClaimTerms{
			Terms: terms(), Owner: "next/w", Lease: time.Hour, MaxCrashes: 3, Tool: tool, From: idem.LeaseOf(cur), Recovered: true,
		})(cur)
	}
}

// Each line is the life of one call, in which every rule comes up, and after
// which states it does.
var lives = func() map[string][]func(k idem.Key, n int) idem.Transition {
	type step = func(k idem.Key, n int) idem.Transition
	always := func(tr idem.Transition) step { return func(idem.Key, int) idem.Transition { return tr } }
	create, run, runHold := submit, always(claim(otherTool, time.Hour)), always(claim(holdTool, time.Hour))
	createRun := func(k idem.Key, n int) idem.Transition {
		return idem.Chain(submit(k, n), claim(otherTool, time.Hour))
	}
	createUnder := func(k idem.Key, n int) idem.Transition { return submitUnder(k, n, rulesOf(n/1000).ID()) }
	requeueFused := func(k idem.Key, n int) idem.Transition {
		return idem.Chain(submit(k, n), claim(localTool, time.Hour), succeed())
	}
	late, release := always(stale), always(settling(idem.Release))
	expire := always(idem.Expire(testStart.Add(2 * testWindow)))
	return map[string][]step{
		"fused":     {fused, create, late, expire, late},
		"created":   {create, create, late},
		"succeeded": {createRun, late, always(succeed()), late, expire},
		"failed":    {create, run, always(fail(false)), expire},
		"requeued":  {createRun, always(fail(true)), create, late, run, always(fail(true)), requeueFused},
		"released":  {create, run, release, run, always(lose()), create, run, always(succeed())},
		"held":      {create, runHold, release, late, always(resolved(idem.OutcomeSucceeded)), expire},
		"lost":      {create, runHold, always(lose()), always(resolved(idem.OutcomeFailed))},
		"retried":   {createRun, always(hold()), always(resolved(idem.OutcomeRetry)), run, always(hold()), always(resolved(idem.OutcomeRetry)), always(idem.Chain(claim(localTool, time.Hour), succeed()))},
		"taken":     {createRun, always(takeOver(otherTool)), always(succeed())},
		"stopped":   {create, runHold, always(takeOver(holdTool)), always(resolved(idem.OutcomeFailed))},
		"missing":   {create, always(claim(nil, time.Hour)), create, run},
		"ruled":     {createUnder, runHold, always(lose()), always(resolved(idem.OutcomeRetry)), run, always(fail(true)), createUnder, run, always(succeed()), expire},
	}
}()

// allLives leads calls through all lives at once, one step of each after the
// other, and reads in between.
func allLives(s *Store, o *oracle, round int) error {
	// Calls name the rules, so these are there before. The others are saved in
	// between, and again.
	if err := o.save(s, rulesOf(round)); err != nil {
		return err
	}
	for at := 0; ; at++ {
		if err := o.save(s, rulesOf(1000+round*2+at%3)); err != nil {
			return err
		}
		more := false
		for name, life := range lives {
			if at >= len(life) {
				continue
			}
			more = true
			k := idem.Key{Namespace: []idem.Namespace{"default", "b"}[round%2], Name: fmt.Sprintf("%s-%d", name, round)}
			if _, err := o.update(s, k, padded(life[at](k, round*1000+len(name)*40+int(name[0])))); err != nil {
				return fmt.Errorf("%s, step %d: %w", name, at, err)
			}
		}
		if !more {
			return nil
		}
		if _, _, err := s.List(context.Background(), "default", idem.Query{Limit: 3}); err != nil {
			return err
		}
	}
}

// turmoil drives a few keys through all kinds of changes from many goroutines.
func turmoil(s *Store, o *oracle, rng *rand.Rand, round, steps int) error {
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for w := range errs {
		rng := rand.New(rand.NewPCG(rng.Uint64(), uint64(w)))
		wg.Go(func() {
			for n := range steps {
				k := idem.Key{Namespace: []idem.Namespace{"default", "b"}[rng.IntN(2)], Name: fmt.Sprintf("k-%d-%d", round, rng.IntN(1+n/5))}
				tr := randomStep(rng, k, round*1_000_000+w*10_000+n)
				if rng.IntN(8) == 0 {
					rules := rulesOf(round*5 + rng.IntN(9))
					if errs[w] = o.save(s, rules); errs[w] != nil {
						return
					}
					tr = submitUnder(k, round*1_000_000+w*10_000+n, rules.ID())
				}
				_, err := o.update(s, k, padded(tr))
				refused := errors.Is(err, idem.ErrKeyExpired) || errors.Is(err, idem.ErrUnknownRules) ||
					errors.Is(err, idem.ErrOutcomeUnknown) // a claim may hold what was pending
				if err != nil && !refused {
					errs[w] = fmt.Errorf("%v: %w", k, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// script is turmoil in a test that is about something else.
func script(t testing.TB, s *Store, o *oracle, rng *rand.Rand, steps int) {
	t.Helper()
	if err := turmoil(s, o, rng, 0, steps); err != nil {
		t.Fatal(err)
	}
}

// crash is an image of the disk as a crash might have left it.
type crash struct {
	op       fsOp // that was about to be done
	n        int  // how many were done before
	recycled bool // the last log that was begun had been used before
	certain  certainty
	fs       *vfs.MemFS
}

// pace is when images are taken.
type pace struct {
	every  int     // at every so many operations,
	chance float64 // or by chance
}

// camera takes images before operations of a disk.
type camera struct {
	pace
	fs      *hookFS
	oracle  *oracle
	percent int // of what is not synced that is kept

	mu       sync.Mutex
	rng      *rand.Rand
	ops      int
	recycled bool
	reused   int // logs that were used once more
	images   []crash
	full     bool // no more of them
}

func (c *camera) shoot(op fsOp) error {
	if op.read() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full {
		return nil
	}
	c.ops++
	if c.every > 0 && c.ops%c.every == 0 || c.chance > 0 && c.rng.Float64() < c.chance {
		// What is certain is read first: it must be in the image.
		certain := c.oracle.certain()
		image := c.fs.image(vfs.CrashCloneCfg{UnsyncedDataPercent: c.percent, RNG: c.rng})
		c.images = append(c.images, crash{op, c.ops, c.recycled, certain, image})
	}
	if newLog(op) {
		c.recycled = op.name == "ReuseForWrite"
		if c.recycled {
			c.reused++
		}
	}
	return nil
}

func (c *camera) take() []crash {
	c.mu.Lock()
	defer c.mu.Unlock()
	images := c.images
	c.images = nil
	return images
}

// stop is for good, also for operations that are on their way in the
// background.
func (c *camera) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = true
}

// judges judge crashes, and count them.
type judges struct {
	oracle *oracle
	rng    *rand.Rand

	again   int // one of so many is crashed a second time while it is opened
	every   int // at every so many operations of the opening
	percent int

	fresh, recycled, second int
}

func (j *judges) judge(t *testing.T, images []crash) {
	t.Helper()
	for _, im := range images {
		j.open(t, im, true)
	}
}

// open judges one image. The first life that opens it may crash in turn.
func (j *judges) open(t *testing.T, im crash, first bool) {
	t.Helper()
	switch {
	case !first:
		j.second++
	case im.recycled:
		j.recycled++
	default:
		j.fresh++
	}
	fsys := newHookFS(im.fs)
	cam := &camera{fs: fsys, oracle: newOracle(), percent: j.percent, rng: j.rng, pace: pace{every: j.every}}
	if first && (j.fresh+j.recycled)%j.again == 0 {
		fsys.set(cam.shoot)
	}
	o := testOptions(fsys, "data")
	o.MemTable, o.Cache = minMemTable, 1<<20
	s, err := Open(o)
	if err != nil {
		t.Fatalf("before operation %d, %v: %v", im.n, im.op, err)
	}
	cam.stop()
	if err := errors.Join(j.oracle.judge(s, im.certain), soundness(s), goesOn(s)); err != nil {
		t.Fatalf("before operation %d, %v: %v", im.n, im.op, err)
	}
	closeStore(t, s)
	for _, second := range cam.take() {
		second.op.name += " of the second opening, after a crash before " + im.op.name
		second.certain = im.certain
		j.open(t, second, false)
	}
}

// goesOn works on a store that was found after a crash: the calls that are due
// are all that have no end, each marked as left, and they can be ended.
func goesOn(s *Store) error {
	ctx := context.Background()
	due, err := s.Due(ctx, 0)
	if err != nil {
		return err
	}
	held, err := s.Held(ctx, 0)
	if err != nil {
		return err
	}
	totals, err := s.Totals(ctx)
	if err != nil {
		return err
	}
	if int64(len(due)) != totals.Of(idem.StatusPending)+totals.Of(idem.StatusRunning) || int64(len(held)) != totals.Of(idem.StatusHeld) {
		return fmt.Errorf("%d are due, %d are held, by %+v", len(due), len(held), totals)
	}
	for i, d := range due {
		if !d.Recovered {
			return fmt.Errorf("%v was not left by an earlier life", d)
		}
		if i > 1 {
			continue // two are enough
		}
		tr := idem.Chain(claim(localTool, time.Hour), succeed())
		if d.Status == idem.StatusRunning {
			tr = takeOver(otherTool)
		}
		if _, err := s.Update(ctx, d.Key, tr); err != nil {
			return fmt.Errorf("%v: %w", d, err)
		}
	}
	k := keyOf("afterwards")
	if _, err := s.Update(ctx, k, fused(k, 90_000_000)); err != nil {
		return err
	}
	return soundness(s)
}

func (j *judges) report(t *testing.T, cam *camera) {
	t.Helper()
	t.Logf("%d operations, %d logs used again; images: %d on a fresh log, %d on a recycled one, %d of a second opening",
		cam.ops, cam.reused, j.fresh, j.recycled, j.second)
	if cam.reused == 0 || j.fresh == 0 || j.recycled == 0 || j.second == 0 {
		t.Error("something was not tried")
	}
}

// crashes runs work on a disk of which images are taken, and judges them, round
// by round, until it is told to stop.
func crashes(t *testing.T, percent int, p pace, j judges, work func(s *Store, o *oracle, rng *rand.Rand, round int) error, more func(round int, cam *camera) bool) {
	t.Helper()
	rng := seeded(t)
	fsys := newHookFS(vfs.NewCrashableMem())
	cam := &camera{pace: p, fs: fsys, oracle: newOracle(), percent: percent, rng: rand.New(rand.NewPCG(rng.Uint64(), 2))}
	j.oracle, j.percent, j.rng = cam.oracle, percent, rand.New(rand.NewPCG(rng.Uint64(), 3))
	o := testOptions(fsys, "data")
	o.MemTable = minMemTable // rotations, flushes and compactions all the time
	fsys.set(cam.shoot)
	s := openOptions(t, o)
	for round := 0; more(round, cam); round++ {
		if err := work(s, cam.oracle, rng, round); err != nil {
			t.Fatal(err)
		}
		j.judge(t, cam.take())
	}
	fsys.set(nil)
	if err := errors.Join(cam.oracle.judge(s, cam.oracle.certain()), soundness(s)); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	j.report(t, cam)
}

var percents = []int{0, 50}

// A crash at any operation of the disk leaves what was answered, whole (R4,
// R7), also if the next life crashes while it opens.
func TestCrash(t *testing.T) {
	every, chance, again, second := 9, 0.05, 4, 7
	if raced {
		every, chance, again, second = 61, 0, 5, 23
	}
	for _, percent := range percents {
		t.Run(fmt.Sprintf("script, %d%% of the unsynced kept", percent), func(t *testing.T) {
			crashes(t, percent, pace{every: every}, judges{again: again, every: second}, runScript, func(round int, cam *camera) bool { return round < 4 || cam.reused < 2 })
		})
		t.Run(fmt.Sprintf("turmoil, %d%% of the unsynced kept", percent), func(t *testing.T) {
			crashes(t, percent, pace{every: 41, chance: chance}, judges{again: again, every: second}, runTurmoil, func(round int, cam *camera) bool { return round < 4 || cam.reused < 2 })
		})
	}
}

func runScript(s *Store, o *oracle, _ *rand.Rand, round int) error { return allLives(s, o, round) }

func runTurmoil(s *Store, o *oracle, rng *rand.Rand, round int) error {
	return turmoil(s, o, rng, round, 40)
}

// The same without gaps, for as long as it is asked for.
func TestTortureCrash(t *testing.T) {
	d := torturing(t)
	if d == 0 {
		t.Skip("IDEMD_TORTURE is not set")
	}
	for _, percent := range percents {
		for name, c := range map[string]struct {
			pace pace
			work func(s *Store, o *oracle, rng *rand.Rand, round int) error
		}{
			"script":  {pace{every: 1}, runScript},
			"turmoil": {pace{chance: 0.3}, runTurmoil},
		} {
			t.Run(fmt.Sprintf("%s, %d%% of the unsynced kept", name, percent), func(t *testing.T) {
				// Calls pile up, and with them the work of judging; so there are
				// several runs, each on a disk of its own.
				until := time.Now().Add(d)
				for run := 0; run < 1000 && (run == 0 || time.Now().Before(until)); run++ {
					crashes(t, percent, c.pace, judges{again: 10, every: 1}, c.work, func(round int, cam *camera) bool { return round < 5 || cam.reused < 4 })
				}
			})
		}
	}
}
