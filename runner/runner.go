package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// Options are what a Runner is made of.
type Options struct {
	Settings
	Tools  []*idem.Tool
	Logger *slog.Logger // nil discards

	// Now is the wall clock: for ids, windows and what people read. Nil is
	// time.Now. Leases and time-outs never ask it (R17).
	Now func() time.Time

	// Exit ends the process as kill -9 would, for faults on purpose. Nil makes
	// such a fault do nothing.
	Exit func()

	// Hooks are for tests.
	Hooks Hooks
}

// Runner applies transitions to a store: it takes calls in, runs their tools
// under leases, and settles them.
type Runner struct {
	store    idem.Store
	tools    map[string]*idem.Tool
	settings Settings
	log      *slog.Logger
	now      func() time.Time
	exit     func()
	hooks    Hooks
	owners   []string // by worker
	since    time.Time

	ids     mint
	flights *flights
	ends    *ends
	rules   rules

	unrecorded unrecorded
	counts     counters
	room       *room
	asks       *verifier

	// draining is closed when no new work is taken on any more, drained when
	// nothing runs, halted when what still runs is to be given back, stopped
	// when the store is not used any more.
	draining, drained, halted, stopped chan struct{}
	drain, halt                        sync.Once
	loops                              sync.WaitGroup // dispatcher and verifier
}

// New makes a runner over a store. It does nothing before Start.
func New(store idem.Store, o Options) (*Runner, error) {
	r := &Runner{
		store: store, tools: make(map[string]*idem.Tool, len(o.Tools)),
		settings: o.withDefaults(), log: o.Logger, now: o.Now, exit: o.Exit, hooks: o.Hooks,
		flights: newFlights(), ends: newEnds(), draining: make(chan struct{}), drained: make(chan struct{}),
		halted: make(chan struct{}), stopped: make(chan struct{}),
	}
	errs := []error{o.Validate()}
	for _, t := range o.Tools {
		if _, twice := r.tools[t.Name]; twice {
			errs = append(errs, fmt.Errorf("tool %s is declared twice", t.Name))
		}
		errs = append(errs, t.Validate())
		r.tools[t.Name] = t
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("runner: %w", err)
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	if r.exit == nil {
		r.exit = func() {}
	}
	var b [8]byte
	_, _ = rand.Read(b[:])
	for worker := range r.settings.Workers + 1 {
		r.owners = append(r.owners, idem.Owner("b_"+hex.EncodeToString(b[:]), strconv.Itoa(worker)))
	}
	r.since = r.now()
	r.ids.now = r.now
	r.counts.byTool = make(map[string]idem.Counts)
	r.room = newRoom(r.settings, r.tools)
	r.asks = newVerifier(r)
	return r, nil
}

// Start begins to run what is due, calls that an earlier life left first.
// Nothing is written for them here: each is claimed when its turn comes (R11).
func (r *Runner) Start(ctx context.Context) error {
	newest, err := r.store.Newest(ctx)
	if err != nil {
		return fmt.Errorf("runner: newest call: %w", err)
	}
	if ahead := newest.Sub(r.now()); ahead > time.Hour {
		r.log.Warn("the newest stored call is later than the clock; new calls go on from its time", "ahead", ahead.String())
	}
	// The id holds milliseconds; the call may have been made at the end of one.
	r.ids.floor(newest.Add(time.Millisecond))
	if err := r.rules.declare(ctx, r.store, r.tools); err != nil {
		return err
	}
	if err := r.asks.start(ctx); err != nil {
		return err
	}
	r.room.mark()
	r.loops.Go(r.dispatch)
	return nil
}

// Stop takes no new calls, waits until what runs has ended or the context ends,
// gives back what could not be drained, and returns. A clean stop is no crash
// (R12). The store can be closed after it, once nobody calls the runner. It may
// be called again, with a context that ends sooner.
func (r *Runner) Stop(ctx context.Context) {
	r.drain.Do(func() {
		close(r.draining) // first: a refusal says why
		r.room.drain()
		go func() {
			r.loops.Wait()
			r.room.wait()
			close(r.drained)
			r.room.close()
			close(r.stopped)
		}()
	})
	select {
	case <-r.drained:
	case <-ctx.Done():
		r.log.Warn("stopping before every call has ended; they are given back", "running", r.room.running())
	}
	r.halt.Do(func() { close(r.halted) })
	<-r.stopped
}

// Ready returns nil while new calls are accepted, else why not.
func (r *Runner) Ready() error {
	select {
	case <-r.draining:
		return errors.New("stopping")
	default:
		return r.store.Ready()
	}
}

// Tools returns the declared tools, sorted by name.
func (r *Runner) Tools() []*idem.Tool {
	tools := make([]*idem.Tool, 0, len(r.tools))
	for _, t := range r.tools {
		tools = append(tools, t)
	}
	slices.SortFunc(tools, func(a, b *idem.Tool) int { return strings.Compare(a.Name, b.Name) })
	return tools
}

// Window is how long a key is remembered after its call has ended.
func (r *Runner) Window() time.Duration { return r.settings.Window }

// terms are the terms of a change that begins now.
func (r *Runner) terms() idem.Terms {
	return idem.Terms{Now: r.wall(), Window: r.settings.Window}
}

// wall is the wall clock as it is stored: UTC, to the millisecond.
func (r *Runner) wall() time.Time { return r.now().UTC().Truncate(time.Millisecond) }

func (r *Runner) owner(worker int) string { return r.owners[worker] }

// claimTerms are the terms under which a worker claims.
func (r *Runner) claimTerms(tool string, worker int) idem.ClaimTerms {
	return idem.ClaimTerms{
		Terms: r.terms(), Owner: r.owner(worker), Lease: r.settings.Lease,
		MaxCrashes: r.maxCrashes(tool), Tool: r.tools[tool], Settle: r.settle(r.tools[tool]),
	}
}

// settle is how long downstream may be at work on an attempt, in whole
// milliseconds: until then "not found" is not believed.
func (r *Runner) settle(t *idem.Tool) time.Duration {
	switch {
	case t == nil:
		return 0
	case t.Settle > 0:
		return (t.Settle + time.Millisecond - 1).Truncate(time.Millisecond)
	default:
		return (2*r.timeout(t) + time.Millisecond - 1).Truncate(time.Millisecond)
	}
}

// maxCrashes is how often the process may die while a call of the tool runs.
func (r *Runner) maxCrashes(tool string) int {
	if t := r.tools[tool]; t != nil && t.MaxCrashes > 0 {
		return t.MaxCrashes
	}
	return r.settings.MaxCrashes
}

// suspect reports whether a call, as it is now, runs alone (R12).
func (r *Runner) suspect(c *idem.Call) bool { return idem.Suspect(c.Crashes, r.maxCrashes(c.Tool)) }

// settlement is that of an attempt of a tool.
func (r *Runner) settlement(t idem.Terms, tool *idem.Tool, lease idem.Lease) idem.Settlement {
	return idem.Settlement{Terms: t, Lease: lease, MaxAttempts: tool.MaxAttempts}
}

// update applies a transition that takes the unsaved deliveries of the key
// along. Unless it fails, committed has to follow.
func (r *Runner) update(f *flight, transition func(deliveries int64) idem.Transition) (idem.Change, error) {
	return r.store.Update(context.Background(), f.key, func(cur *idem.Call) (idem.Change, error) {
		// Read in the critical section, so that a join that was decided before
		// this change is part of it.
		ch, err := transition(r.flights.unstored(f, cur))(cur)
		if err == nil && ch.TakesDeliveries() {
			r.flights.take(f, ch.After.Revision)
		}
		return ch, err
	})
}

// committed does what has to follow a committed change.
func (r *Runner) committed(f *flight, ch idem.Change) {
	if !ch.Revises() {
		return
	}
	r.flights.stored(f, ch.After.Revision)
	after := ch.After
	switch {
	case after.Status.Ended():
		r.flights.publish(*after)
	case after.Status == idem.StatusHeld:
		r.flights.publish(*after)
		r.asks.held(after.Key, after.ID, after.Attempt, after.Tool)
		r.log.Warn("call is held: its outcome is not known", "call_id", after.ID.String(), "tool", after.Tool,
			"attempt", after.Attempt, "code", after.Failure.Code)
	case after.Status == idem.StatusPending:
		r.room.mark()
	}
}
