package runner_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

// downstream is somebody else's system: what external tools do there happens in
// its ledger, and nowhere else. It refuses nothing by itself.
type downstream struct {
	mu     sync.Mutex
	rng    *rand.Rand
	life   int // of the process; what an earlier one has under way does not happen
	ledger []string
	under  map[string]int // attempts under way, by effect id, of this life
	calm   bool

	// refused are the effect ids that it has refused for good, where it honours
	// them: what arrives later under such an id gets the same answer.
	refused map[string]bool
}

func newDownstream(seed, stream uint64) *downstream {
	return &downstream{rng: rand.New(rand.NewPCG(seed, stream)), under: make(map[string]int), refused: make(map[string]bool)}
}

func (d *downstream) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// happened reports whether the effect is in the ledger.
func (d *downstream) happened(id string) bool {
	for _, e := range d.ledger {
		if e == id {
			return true
		}
	}
	return false
}

// do adds an effect to the ledger, unless the process that asks is dead. It
// reports whether the answer is that it was done.
func (d *downstream) do(life int, id string, honours bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if honours && d.refused[id] {
		return false
	}
	if life == d.life && (!honours || !d.happened(id)) {
		d.ledger = append(d.ledger, id)
	}
	return true
}

// refuse answers that an effect is refused for good, and reports whether it is:
// an attempt under way may have been quicker.
func (d *downstream) refuse(life int, id string, honours bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if honours && d.happened(id) {
		return false
	}
	d.refused[id] = d.refused[id] || honours && life == d.life
	return true
}

// lifeKey is the context's key for the life of the process that runs a tool.
// What a dead process still does must not pass for the work of the next one.
type lifeKey struct{}

// act is an external tool with every habit there is.
func (d *downstream) act(honours bool) act {
	return func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
		id := inv.EffectID
		life, _ := ctx.Value(lifeKey{}).(int)
		d.mu.Lock()
		n, pause := d.rng.IntN(100), time.Duration(d.rng.IntN(50))*time.Millisecond
		if d.calm || honours && d.happened(id) {
			n = 0
		}
		if life == d.life {
			d.under[id]++
		}
		d.mu.Unlock()
		defer func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if life == d.life {
				d.under[id]--
			}
		}()
		done := func() (idem.Result, error) {
			if !d.do(life, id, honours) {
				return fails(false)(ctx, inv)
			}
			return succeed(ctx, inv)
		}
		switch {
		case n < 40:
			return done()
		case n < 55:
			time.Sleep(pause)
			return done()
		case n < 63:
			return fails(true)(ctx, inv)
		case n < 65:
			if !d.refuse(life, id, honours) {
				return done()
			}
			return fails(false)(ctx, inv)
		case n < 72: // the answer is lost on its way back
			_, _ = done()
			return lost(ctx, inv)
		case n < 78:
			return lost(ctx, inv)
		case n < 81:
			_, _ = done()
			panic("after it was done")
		case n < 84:
			panic("before it was done")
		case n < 88:
			return hang(ctx, inv)
		case n < 91: // done just as its time was over
			<-ctx.Done()
			time.Sleep(pause)
			return done()
		case n < 96: // long
			time.Sleep(20 * pause)
			return done()
		default: // deaf
			time.Sleep(200 * pause)
			return done()
		}
	}
}

// pure is a local tool, or one without an effect: it knows nothing of downstream.
func (d *downstream) pure(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
	n := d.roll(100)
	d.mu.Lock()
	calm := d.calm
	d.mu.Unlock()
	switch {
	case calm || n < 75:
		return succeed(ctx, inv)
	case n < 85:
		time.Sleep(time.Duration(n) * 5 * time.Millisecond)
		return succeed(ctx, inv)
	case n < 95:
		return fails(true)(ctx, inv)
	case n < 97:
		return hang(ctx, inv)
	default:
		time.Sleep(5 * time.Second)
		return succeed(ctx, inv)
	}
}

func (d *downstream) verify(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
	if n := d.roll(10); n < 2 {
		return noAnswer(ctx, inv)
	} else if n < 4 {
		time.Sleep(time.Duration(n) * time.Second)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.happened(inv.EffectID) {
		return found(ctx, inv)
	}
	return absent(ctx, inv)
}

// storm is a few keys, many clients, every tool with every habit, faults on
// purpose, a person who decides held calls, and lives that end in every way.
type storm struct {
	t *testing.T
	w *world
	d *downstream

	began time.Time
	keys  int // in all
	pace  int // new keys a second
	cur   atomic.Pointer[runner.Runner]

	mu   sync.Mutex
	next *storetest.Model // of the life after the one that was cut off
	cuts chan struct{}
	ids  map[string]idem.CallID // of keys that were acknowledged
	told map[string]string      // results that were told
}

func (s *storm) intent(i int) intent {
	a := s.w.actors()[i%5]
	return intent{fmt.Sprint("key ", i), a, fmt.Sprintf(`{"n":%d}`, i)}
}

// first is the first of the keys that are in use now.
func (s *storm) first() int { return int(time.Since(s.began)/time.Second) * s.pace }

// exit is what ends a life of the process over some data at once. What a dead
// process still does ends nothing: it must not take the next one along.
func (s *storm) exit(life int, model *storetest.Model) func() {
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		if life != s.d.life {
			return
		}
		s.next = model.Open()
		s.d.life++
		clear(s.d.under)
		s.cuts <- struct{}{}
	}
}

// lives ends the process time after time, and starts the next life after a while.
func (s *storm) lives(until time.Time) {
	for time.Now().Before(until) {
		select {
		case <-s.cuts: // by a fault
		case <-time.After(time.Duration(200+s.d.roll(4000)) * time.Millisecond):
			switch s.d.roll(3) {
			case 0: // a clean stop that has time
				s.stop(5 * time.Second)
			case 1: // one that has not
				s.stop(10 * time.Millisecond)
			}
			s.w.o.Exit()
			<-s.cuts
		}
		s.start()
	}
}

func (s *storm) stop(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s.cur.Load().Stop(ctx)
}

func (s *storm) start() {
	old := s.cur.Load()
	s.w.gone = append(s.w.gone, old)
	go old.Stop(over())
	time.Sleep(time.Duration(s.d.roll(20)) * time.Millisecond)
	s.mu.Lock()
	next := s.next
	s.next = nil
	s.mu.Unlock()
	s.live(next)
}

// live begins a life, with tools that know which one it is.
func (s *storm) live(model *storetest.Model) {
	s.d.mu.Lock()
	life := s.d.life
	s.d.mu.Unlock()
	s.w.o.Tools = nil
	for _, a := range s.w.actors() {
		tool := *a.Tool
		tool.Invoke = func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
			return a.invoke(context.WithValue(ctx, lifeKey{}, life), inv)
		}
		s.w.o.Tools = append(s.w.o.Tools, &tool)
	}
	s.w.o.Exit = s.exit(life, model)
	s.w.live(model)
	s.cur.Store(s.w.r)
}

// client sends what it likes until the time is over, for keys that slowly change.
func (s *storm) client(until time.Time) {
	for time.Now().Before(until) {
		in := s.intent(s.first() + s.d.roll(20))
		r := s.cur.Load()
		sub := idem.Submission{Request: in.request(), Wait: [...]time.Duration{0, time.Millisecond, 300 * time.Millisecond, 10 * time.Second}[s.d.roll(4)]}
		s.mu.Lock()
		_, known := s.ids[in.key]
		s.mu.Unlock()
		conflicting := known && s.d.roll(10) == 0
		if conflicting {
			sub.Request = intent{in.key, in.tool, `{"other":true}`}.request()
		}
		if n := s.d.roll(40); n < len(idem.Points)-1 {
			actions := []string{"exit", "panic", "sleep:20ms", "drop", "error"}
			if in.tool.Effects == idem.EffectsExternal {
				actions[1] = "drop" // downstream would not know that its tool panicked
			}
			f, err := idem.ParseFault(fmt.Sprintf("%s=%s", idem.Points[n], actions[s.d.roll(5)]))
			if err != nil {
				s.t.Error(err)
			}
			sub.Fault = &f
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+s.d.roll(20_000))*time.Millisecond)
		r.Delivered()
		a, err := r.Submit(ctx, sub)
		cancel()
		s.judge(in, conflicting, a, err)
		time.Sleep(time.Duration(s.d.roll(100)) * time.Millisecond)
	}
}

// judge checks an answer against those before it.
func (s *storm) judge(in intent, conflicting bool, a idem.Answer, err error) {
	if err != nil {
		var e *idem.Error
		switch {
		case errors.Is(err, storetest.ErrGone), errors.Is(err, idem.ErrDropped), errors.Is(err, context.DeadlineExceeded):
		case errors.As(err, &e) && (e.Code == idem.CodeConflict) == conflicting:
		case errors.As(err, &e) && e.Code == idem.CodeUnavailable:
		default:
			s.t.Errorf("%s: conflicting %v, got %v", in.key, conflicting, err)
		}
		return
	}
	if conflicting {
		s.t.Errorf("%s: a conflict was answered with %s", in.key, stands(a.Call))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, known := s.ids[in.key]; known && id != a.Call.ID {
		s.t.Errorf("%s has two calls", in.key)
	}
	s.ids[in.key] = a.Call.ID
	if a.Call.Status == idem.StatusSucceeded {
		result := string(a.Call.Result)
		if first, known := s.told[in.key]; known && first != result {
			s.t.Errorf("%s: told %s, then %s", in.key, first, result)
		}
		s.told[in.key] = result
	}
}

// person decides what is held and cannot be asked about, by the truth.
func (s *storm) person() {
	r := s.cur.Load()
	calls, _, err := r.List(context.Background(), idem.DefaultNamespace, idem.Query{Status: idem.StatusHeld, Tool: "hold", Limit: 100})
	if err != nil {
		return // between two lives
	}
	for _, c := range calls {
		id := idem.EffectID(c.ID)
		s.d.mu.Lock()
		happened, busy := s.d.happened(id), s.d.under[id] > 0
		s.d.mu.Unlock()
		res := idem.Resolution{Outcome: idem.OutcomeRetry, By: "someone"}
		switch {
		case happened:
			res.Outcome, res.Result = idem.OutcomeSucceeded, idem.Result{Output: []byte(`{"by":"someone"}`)}
		case busy: // it may still happen
			continue
		}
		_, err := r.Resolve(context.Background(), idem.DefaultNamespace, c.ID, res)
		stopping := errors.Is(err, idem.ErrUnavailable) || errors.Is(err, storetest.ErrGone)
		if err != nil && !errors.Is(err, idem.ErrNotHeld) && !stopping {
			s.t.Error(err)
		}
	}
}

// settled brings every key to an end that stays.
func (s *storm) settled() {
	s.d.mu.Lock()
	s.d.calm = true
	s.d.mu.Unlock()
	for i := range s.keys {
		in := s.intent(i)
		for tries := 0; ; tries++ {
			select {
			case <-s.cuts: // by a fault that had waited in the queue
				s.start()
			default:
			}
			a, err := s.w.post(in, time.Minute)
			s.judge(in, false, a, err)
			if err == nil && a.Call.Status.Ended() && !a.Call.Retryable() {
				break
			}
			if tries == 100 {
				s.t.Fatalf("%s does not come to an end: %s, %v", in.key, stands(s.w.call(in.key)), err)
			}
			time.Sleep(10 * time.Second)
			s.person()
		}
	}
}

// reconcile compares the ledgers with the calls (R18).
func (s *storm) reconcile() {
	var intents, local []string
	for i := range s.keys {
		in := s.intent(i)
		c := s.w.call(in.key)
		if id, known := s.ids[in.key]; known && id != c.ID {
			s.t.Errorf("%s: acknowledged as another call", in.key)
		}
		if c.Status != idem.StatusSucceeded {
			continue
		}
		switch in.tool.Effects {
		case idem.EffectsExternal:
			intents = append(intents, idem.EffectID(c.ID))
		case idem.EffectsLocal:
			local = append(local, idem.EffectID(c.ID))
		}
	}
	effects, err := s.w.model.Effects(context.Background(), idem.DefaultNamespace, idem.CallID{}, 10_000)
	if err != nil {
		s.t.Fatal(err)
	}
	var ledger []string
	for _, e := range effects {
		ledger = append(ledger, e.ID)
	}
	s.clean("downstream", idem.Reconcile(s.d.ledger, intents))
	s.clean("the ledger", idem.Reconcile(ledger, append(local, intents...)))
}

// clean reports what a ledger and the calls do not agree on, with what became of
// those calls.
func (s *storm) clean(what string, r idem.Report) {
	if r.Clean() {
		return
	}
	s.t.Errorf("%s: %+v", what, r)
	offending := slices.Concat(r.DuplicateIDs, r.LostIDs, r.UnexpectedIDs)
	for i := range s.keys {
		if in := s.intent(i); slices.Contains(offending, idem.EffectID(s.w.call(in.key).ID)) {
			s.t.Errorf("%s of %s: %s", in.key, in.tool.Name, s.w.trail(in.key))
		}
	}
}

func (s *storm) run(clients int, lasts time.Duration) {
	until := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() { s.client(until) })
	}
	wg.Go(func() { s.lives(until) })
	wg.Go(func() {
		for time.Now().Before(until) {
			time.Sleep(time.Duration(s.d.roll(2000)) * time.Millisecond)
			s.person()
		}
	})
	wg.Wait()
	select {
	case <-s.cuts: // by a fault at the very end
		s.start()
	default:
	}
	s.settled()
	s.reconcile()
}

// A storm of everything at once, from a seed. IDEMD_STORM makes it last: a number
// of seeds.
func TestStorm(t *testing.T) {
	seeds := 4
	if n := os.Getenv("IDEMD_STORM"); n != "" {
		if _, err := fmt.Sscan(n, &seeds); err != nil {
			t.Fatal(err)
		}
	}
	for range seeds {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newStorm(t, seed) })
		})
	}
}

func newStorm(t *testing.T, seed uint64) {
	s := &storm{
		t: t, cuts: make(chan struct{}, 1), ids: make(map[string]idem.CallID), told: make(map[string]string),
		d: newDownstream(seed, 1),
	}
	s.began, s.pace = time.Now(), s.d.roll(6)
	s.keys = 60*s.pace + 20
	var first func() // ends the first life, whose data are made with it
	s.w = newWorld(t, true, storetest.ModelOptions{Exclusive: true},
		workers(1+s.d.roll(12)), queue(1+s.d.roll(100)), lease(time.Second), timeout(2*time.Second),
		abandoned(1+s.d.roll(8)), crashes(100), func(o *runnerOptions) {
			o.Grace = time.Second
			o.Exit = func() { first() }
			o.Hooks.At = func(idem.Point, idem.CallID) {} // spares the looks of the other tests
		})
	w := s.w
	first = s.exit(0, w.model)
	w.o.Exit = first
	s.cur.Store(w.r)
	w.local.does(s.d.pure)
	w.none.does(s.d.pure)
	w.rerun.does(s.d.act(true))
	w.hold.does(s.d.act(false))
	w.verify.does(s.d.act(false))
	w.verify.Settle = 5 * time.Second
	for _, a := range w.actors() {
		if a.Effects == idem.EffectsExternal {
			a.Concurrency = s.d.roll(4)
		}
	}
	w.verify.answers(s.d.verify)
	t.Cleanup(w.finish)
	s.run(12, time.Minute)
	var most int
	for _, c := range w.list(idem.Query{Limit: 1000}) {
		most = max(most, c.Attempt)
	}
	t.Logf("%d keys, %d lives, %d attempts at most of a call, %d commits in the last life",
		s.keys, len(w.gone)+1, most, w.spy.writes())
}

// Two processes over the same data, which are paused for longer than a lease at
// random: whatever is taken over, each call has one effect.
func TestSharedStorm(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			shared(t, func(t *testing.T, a, b *world) { sharedStorm(t, seed, a, b) },
				workers(3), lease(time.Second), timeout(2*time.Second), func(o *runnerOptions) { o.Grace = time.Second })
		})
	}
}

func sharedStorm(t *testing.T, seed uint64, a, b *world) {
	d := newDownstream(seed, 2)
	a.local.does(d.pure)
	a.none.does(d.pure)
	a.rerun.does(d.act(true))
	a.hold.does(d.act(false))
	tools := []*actor{a.local, a.none, a.rerun, a.hold}
	until := time.Now().Add(30 * time.Second)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for time.Now().Before(until) {
				n := d.roll(24)
				w := []*world{a, b}[d.roll(2)]
				in := intent{fmt.Sprint("key ", n), tools[n%len(tools)], fmt.Sprint(`{"n":`, n, `}`)}
				_, _ = w.post(in, time.Duration(d.roll(3))*time.Second)
				time.Sleep(time.Duration(d.roll(100)) * time.Millisecond)
			}
		})
	}
	for _, w := range []*world{a, b} {
		wg.Go(func() {
			for time.Now().Before(until) {
				time.Sleep(time.Duration(d.roll(3000)) * time.Millisecond)
				resume := w.spy.block()
				time.Sleep(time.Duration(d.roll(3000)) * time.Millisecond)
				resume()
			}
		})
	}
	wg.Wait()
	d.mu.Lock()
	d.calm = true
	d.mu.Unlock()
	time.Sleep(10 * time.Minute)
	seen := make(map[string]int)
	for _, id := range d.ledger {
		if seen[id]++; seen[id] > 1 {
			t.Errorf("effect %s happened twice downstream", id)
		}
	}
	for _, c := range a.list(idem.Query{Limit: 100}) {
		happened := seen[idem.EffectID(c.ID)] > 0
		if c.Status == idem.StatusSucceeded && (c.Tool == a.rerun.Name || c.Tool == a.hold.Name) && !happened {
			t.Errorf("%s succeeded without an effect downstream", c.Key.Name)
		}
		if c.Status == idem.StatusPending || c.Status == idem.StatusRunning {
			t.Errorf("%s is left %s", c.Key.Name, stands(c))
		}
	}
}
