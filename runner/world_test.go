package runner_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a process over a store, its next life after that, and the tools that
// it runs.
type world struct {
	t        *testing.T
	o        runner.Options
	model    *storetest.Model
	spy      *spy       // over model
	troubled func(*spy) // sets the store of lives to come up for trouble; nil for none
	r        *runner.Runner

	local, none, rerun, verify, hold *actor

	virtual bool // time

	mu     sync.Mutex
	exits  []string     // how the call of key "k" stands at each exit on purpose
	passed []idem.Point // by the call of key "k"
	gone   []*runner.Runner
	beside []*world // processes that share the data
}

// options change what a world is made of.
type options func(*runner.Options)

func workers(n int) options           { return func(o *runner.Options) { o.Workers = n } }
func queue(n int) options             { return func(o *runner.Options) { o.Queue = n } }
func lease(d time.Duration) options   { return func(o *runner.Options) { o.Lease = d } }
func window(d time.Duration) options  { return func(o *runner.Options) { o.Window = d } }
func timeout(d time.Duration) options { return func(o *runner.Options) { o.ToolTimeout = d } }
func abandoned(n int) options         { return func(o *runner.Options) { o.MaxAbandoned = n } }

// bubble runs a test in virtual time over exclusive data. Every test ends with
// the invariant check.
func bubble(t *testing.T, test func(t *testing.T, w *world), opts ...options) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true, storetest.ModelOptions{Exclusive: true}, opts...)
		t.Cleanup(w.finish)
		test(t, w)
	})
}

// shared runs a test in virtual time with two processes over the same data.
func shared(t *testing.T, test func(t *testing.T, a, b *world), opts ...options) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newWorld(t, true, storetest.ModelOptions{}, opts...)
		b := &world{t: t, o: a.o, virtual: true, local: a.local, none: a.none, rerun: a.rerun, verify: a.verify, hold: a.hold}
		b.live(a.model.Open())
		a.beside = append(a.beside, b)
		t.Cleanup(a.finish)
		test(t, a, b)
	})
}

func newWorld(t *testing.T, virtual bool, data storetest.ModelOptions, opts ...options) *world {
	w := &world{
		t: t, virtual: virtual,
		local:  newActor("local", idem.EffectsLocal, idem.RerunYes),
		none:   newActor("none", idem.EffectsNone, idem.RerunYes),
		rerun:  newActor("rerun", idem.EffectsExternal, idem.RerunYes),
		verify: newActor("verify", idem.EffectsExternal, idem.RerunVerify),
		hold:   newActor("hold", idem.EffectsExternal, idem.RerunHold),
	}
	for _, a := range w.actors() {
		w.o.Tools = append(w.o.Tools, a.Tool)
	}
	for _, opt := range opts {
		opt(&w.o)
	}
	w.live(storetest.NewModel(data))
	return w
}

// runnerOptions spares tests that change them in a new life an import.
type runnerOptions = runner.Options

// actor is a tool by its name.
func (w *world) actor(name string) *actor {
	for _, a := range w.actors() {
		if a.Name == name {
			return a
		}
	}
	panic("no tool " + name)
}

func (w *world) actors() []*actor { return []*actor{w.local, w.none, w.rerun, w.verify, w.hold} }

// live begins a life over the data.
func (w *world) live(model *storetest.Model) {
	w.t.Helper()
	w.model, w.spy = model, &spy{Store: model}
	if w.troubled != nil {
		w.troubled(w.spy)
	}
	o := w.o
	if o.Exit == nil {
		o.Exit = func() { w.exit(model) }
	}
	if o.Hooks.At == nil {
		o.Hooks.At = func(p idem.Point, id idem.CallID) { w.pass(model, p, id) }
	}
	r, err := runner.New(w.spy, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.r = r
	if err := r.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	if w.virtual {
		synctest.Wait() // it has looked for what is due
	}
}

// exit notes how the call of key "k" stands when the process would end.
func (w *world) exit(model *storetest.Model) {
	stand := "absent"
	if c, err := model.CallByKey(context.Background(), keyOf("k")); err == nil {
		stand = stands(c)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exits = append(w.exits, stand)
}

// pass notes the points that the call of key "k" passes.
func (w *world) pass(model *storetest.Model, p idem.Point, id idem.CallID) {
	if c, err := model.CallByID(context.Background(), idem.DefaultNamespace, id); err == nil && c.Key != keyOf("k") {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed = append(w.passed, p)
}

// die ends the life as kill -9 would: what the old process still does reaches
// the data no more. The next life begins with start.
func (w *world) die() (start func(opts ...options)) {
	w.t.Helper()
	next := w.model.Open()
	old := w.r
	w.gone = append(w.gone, old)
	go old.Stop(over()) // takes its goroutines away
	return func(opts ...options) {
		w.t.Helper()
		for _, opt := range opts {
			opt(&w.o)
		}
		w.live(next)
	}
}

// crash is death and the next life.
func (w *world) crash(opts ...options) {
	w.t.Helper()
	w.die()(opts...)
}

// restart is a clean stop that waits for what runs, and the next life.
func (w *world) restart(opts ...options) {
	w.t.Helper()
	w.r.Stop(context.Background())
	w.die()(opts...)
}

// over returns a context that has ended.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// finish stops the process and checks what it leaves.
func (w *world) finish() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for _, p := range append(w.beside, w) {
		p.r.Stop(ctx)
	}
	for _, old := range w.gone {
		old.Stop(ctx)
	}
	if w.virtual {
		time.Sleep(24 * time.Hour) // deaf tools have returned
		synctest.Wait()
	}
	if w.t.Failed() {
		return
	}
	if err := w.model.Check(); err != nil {
		w.t.Error(err)
	}
	for _, p := range append(w.beside, w) {
		p.checkRest()
	}
}

// checkRest checks what must hold once a runner has stopped.
func (w *world) checkRest() {
	w.t.Helper()
	w.rest()
	open := make(map[idem.Key]idem.Status)
	for _, c := range w.list(idem.Query{Limit: 1_000_000}) {
		if c.Status == idem.StatusRunning {
			w.t.Errorf("call %s of %s is running with nobody at work on it", c.Key.Name, c.Owner)
		}
		if !c.Status.Ended() {
			open[c.Key] = c.Status
		}
	}
	m := w.r.Memory()
	for _, key := range m.Flights {
		if open[key] == "" {
			w.t.Errorf("memory is kept for %s, which has ended", key.Name)
		}
	}
	if m.Users != m.Deaf || m.Riders != 0 || m.Places != 0 || m.Live != 0 || m.Busy != 0 {
		w.t.Errorf("left in memory at rest: %+v", m)
	}
	if want := w.settings().Workers; m.Free+m.Kept != want {
		w.t.Errorf("%d free workers and %d kept, want %d in all", m.Free, m.Kept, want)
	}
	w.checkCounts()
}

// rest waits until the last goroutines have gone: a stop waits for the last
// write, and not for who is being told of it.
func (w *world) rest() {
	if w.virtual {
		synctest.Wait()
		return
	}
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
		if m := w.r.Memory(); m.Users == m.Deaf {
			return
		}
		runtime.Gosched()
	}
}

// checkCounts checks that each delivery was counted once more.
func (w *world) checkCounts() {
	w.t.Helper()
	s, err := w.r.Stats(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if c := s.Counts; c.Deliveries != c.Created+c.Replayed+c.Joined+c.Requeued+c.Conflicts+c.Refused {
		w.t.Errorf("deliveries do not add up: %+v", c)
	}
}

func (w *world) settings() runner.Settings {
	s := w.o.Settings
	if s.Workers == 0 {
		s.Workers = runner.DefaultWorkers
	}
	return s
}

// intent is what a test wants done once.
type intent struct {
	key  string
	tool *actor
	args string // `{"n":1}` where empty
}

func keyOf(name string) idem.Key { return idem.Key{Namespace: idem.DefaultNamespace, Name: name} }

func (in intent) request() idem.Request {
	if in.args == "" {
		in.args = `{"n":1}`
	}
	fp, err := idem.FingerprintOf(in.tool.Name, []byte(in.args))
	if err != nil {
		panic(err)
	}
	return idem.Request{Key: keyOf(in.key), Fingerprint: fp, Tool: in.tool.Name, Args: []byte(in.args)}
}

// post delivers an intent, with a fault where one is given.
func (w *world) post(in intent, wait time.Duration, fault ...string) (idem.Answer, error) {
	s := idem.Submission{Request: in.request(), Wait: wait}
	for _, text := range fault {
		f, err := idem.ParseFault(text)
		if err != nil {
			panic(err)
		}
		s.Fault = &f
	}
	return w.submit(context.Background(), s)
}

func (w *world) submit(ctx context.Context, s idem.Submission) (idem.Answer, error) {
	w.r.Delivered()
	return w.r.Submit(ctx, s)
}

// answer delivers an intent that must be answered with a call.
func (w *world) answer(in intent, wait time.Duration) idem.Answer {
	w.t.Helper()
	a, err := w.post(in, wait)
	if err != nil {
		w.t.Fatalf("%s: %v", in.key, err)
	}
	return a
}

// refuse delivers an intent that must be refused with a code.
func (w *world) refuse(in intent, wait time.Duration, want idem.Code) {
	w.t.Helper()
	_ = w.refusal(in, wait, want)
}

// refusal is refuse for those who look closer.
func (w *world) refusal(in intent, wait time.Duration, want idem.Code) *idem.Error {
	w.t.Helper()
	a, err := w.post(in, wait)
	var e *idem.Error
	if !errors.As(err, &e) || e.Code != want {
		w.t.Fatalf("%s: call %+v, error %v, want %s", in.key, a.Call, err, want)
	}
	return e
}

// reply is an answer that comes later.
type reply struct {
	idem.Answer
	err error
	at  time.Time
}

// later delivers an intent on another goroutine.
func (w *world) later(in intent, wait time.Duration, fault ...string) <-chan reply {
	c := make(chan reply, 1)
	go func() {
		a, err := w.post(in, wait, fault...)
		c <- reply{a, err, time.Now()}
	}()
	return c
}

// call reads the record of a key.
func (w *world) call(key string) idem.Call {
	w.t.Helper()
	c, err := w.model.CallByKey(context.Background(), keyOf(key))
	if err != nil {
		w.t.Fatalf("%s: %v", key, err)
	}
	return c
}

// want checks how a call stands: its status and attempt, and its code where it
// has a failure, for example "failed 2 tool_timeout".
func (w *world) want(key, want string) {
	w.t.Helper()
	if c := w.call(key); stands(c) != want {
		w.t.Fatalf("%s is %q, want %q", key, stands(c), want)
	}
}

func stands(c idem.Call) string {
	s := fmt.Sprintf("%s %d", c.Status, c.Attempt)
	if c.Failure != nil {
		s += " " + c.Failure.Code
		if c.Failure.Retryable {
			s += " retryable"
		}
	}
	return s
}

// absent checks that a key is unknown.
func (w *world) absent(key string) {
	w.t.Helper()
	if c, err := w.model.CallByKey(context.Background(), keyOf(key)); !errors.Is(err, idem.ErrNotFound) {
		w.t.Fatalf("%s: call %+v, error %v, want none", key, c, err)
	}
}

func (w *world) list(q idem.Query) []idem.Call {
	w.t.Helper()
	calls, _, err := w.model.List(context.Background(), idem.DefaultNamespace, q)
	if err != nil {
		w.t.Fatal(err)
	}
	return calls
}

// trail is the audit trail of a key, in words.
func (w *world) trail(key string) string {
	w.t.Helper()
	events, err := w.model.Events(context.Background(), idem.DefaultNamespace, w.call(key).ID, 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var words []string
	for _, e := range events {
		words = append(words, string(e.Name))
	}
	return strings.Join(words, " ")
}

func (w *world) wantTrail(key, want string) {
	w.t.Helper()
	if got := w.trail(key); got != want {
		w.t.Fatalf("trail of %s: %s; want %s", key, got, want)
	}
}

// effects is how many rows the ledger has.
func (w *world) effects() int {
	w.t.Helper()
	totals, err := w.model.Totals(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return int(totals.Effects)
}

// calls is how many calls there are.
func (w *world) calls() int {
	w.t.Helper()
	totals, err := w.model.Totals(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return int(totals.Calls)
}

func (w *world) counts() idem.Counts {
	w.t.Helper()
	s, err := w.r.Stats(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Counts
}

// writes counts the commits of what it runs.
func (w *world) writes(do func()) int {
	before := w.spy.writes()
	do()
	synctest.Wait()
	return w.spy.writes() - before
}

// resolve decides a held call as a person.
func (w *world) resolve(key string, o idem.Outcome) (idem.Call, error) {
	return w.r.Resolve(context.Background(), idem.DefaultNamespace, w.call(key).ID, idem.Resolution{
		Outcome: o, By: "someone", Note: "asked downstream",
		Result:  idem.Result{Output: []byte(`{"by":"someone"}`)},
		Failure: idem.Failure{Code: "not_done", Message: "was not done"},
	})
}

// equal fails a test where two things differ.
func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
