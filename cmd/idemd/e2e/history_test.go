//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/idem"
)

// torture reports whether the long forms are asked for.
func torture() bool { return os.Getenv("IDEMD_TORTURE") != "" }

// How long the checker may think about one key. That something is not so takes
// it longer, so it is given up on sooner and asked about another.
const (
	examined  = 30 * time.Second
	exhausted = 500 * time.Millisecond
)

// maxCrashes is high, since a call may be running at many kills. Of those that
// take two seconds an attempt, some are stopped for it nevertheless.
const maxCrashes = 100

// habits are what the histories are made of. The common ones are there more than
// once; the last of all takes two seconds an attempt.
func habits() []*habit {
	fail := func(times int) *habit {
		args := func(message string) string {
			return fmt.Sprintf(`{"retryable":true,"times":%d,"message":"%s"}`, times, message)
		}
		return &habit{tool: "fail", args: [2]string{args("a"), args("b")}, ends: []phase{succeeded, retryable}, fails: times}
	}
	ext := func(tool, do string, effect bool, ends ...phase) *habit {
		args := func(n int) string { return fmt.Sprintf(`{"do":"%s","seconds":%d,"found":true}`, do, n) }
		return &habit{tool: tool, args: [2]string{args(1), args(2)}, ends: ends, effect: effect, slow: do == "hang"}
	}
	charge := &habit{tool: "charge", args: [2]string{`{"amount":1}`, `{"amount":2}`}, ends: []phase{succeeded}, effect: true}
	hold, exit := ext("ext_hold", "return", true, succeeded, held), ext("ext_hold", "exit", true, held)
	verify := ext("ext_verify", "return", true, succeeded, held)
	verify.asks = true
	asked := ext("ext_verify", "hang", true, succeeded, held)
	asked.asks = true
	rerun, endless := ext("ext_rerun", "return", true, succeeded, failed), ext("ext_rerun", "hang", false, retryable, failed)
	rerun.dies, endless.dies = maxCrashes, maxCrashes
	return []*habit{
		charge, fail(2), fail(8), fail(1000), exit, hold,
		{tool: "fail", args: [2]string{`{"message":"a"}`, `{"message":"b"}`}, ends: []phase{failed}},
		rerun, charge, fail(20), verify,
		{tool: "sleep", args: [2]string{`{"seconds":0.05}`, `{"seconds":0.06}`}, ends: []phase{succeeded}},
		ext("ext_hold", "hang", true, held), fail(4), asked, endless,
	}
}

// TestHistories has clients submit, look up and resolve few keys at once while
// the process is killed and started again, and asks a checker whether what they
// were told is what one call a key, changed by one operation at a time, could
// have told them (R2, R3, R4, R9, R12). An operation without an answer may have
// had its effect, or not.
//
// Then it shows that the checker bites: it makes lies of the same histories.
func TestHistories(t *testing.T) {
	random := chance(t)
	operations := int64(2000)
	if torture() {
		operations = 100_000
	}
	const clients, atOnce = 12, 5
	h := &histories{
		d: startChaos(t, "--max-crashes", fmt.Sprint(maxCrashes)), began: time.Now(), left: operations,
		deaths: make(map[int]int64), habits: habits(),
	}
	for i := range atOnce {
		h.active = append(h.active, h.newKey(i))
	}
	var working sync.WaitGroup
	for i := range clients {
		own := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		working.Go(func() { h.client(own) })
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	h.supervise(t, random, done)
	h.rest(t)
	for _, err := range h.faults {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	took := time.Since(h.began)

	var intents []string
	for _, k := range h.keys {
		if last := k.ops[len(k.ops)-1]; k.habit.effect && last.out.phase == succeeded {
			intents = append(intents, k.name)
		}
	}
	reconcile(t, h.d, intents...)

	began := time.Now()
	h.close()
	h.judge(t)
	t.Logf("%d operations of %d keys in %v and %d lives, %d without an answer; checked in %v",
		operations, len(h.keys), took.Round(time.Millisecond), h.d.lives, h.lost.Load(), time.Since(began).Round(time.Millisecond))
	if h.lost.Load() == 0 {
		t.Error("no end cost anybody an answer; this test tests nothing")
	}
	if !t.Failed() {
		bites(t, h.keys)
	}
}

// histories is what clients asked and were told.
type histories struct {
	d      *daemon
	began  time.Time
	habits []*habit
	lost   atomic.Int64

	mu     sync.Mutex
	left   int64 // operations to come
	active []*keyed
	keys   []*keyed
	deaths map[int]int64 // when a life was over
	faults []error
}

// keyed is a key and its history.
type keyed struct {
	name  string
	habit *habit
	slot  int

	mu   sync.Mutex
	id   string
	seen int // its attempt, as it was last shown
	left int // operations until another key takes its place
	ops  []operation
}

// newKey takes the next habit. The caller has the lock, or is alone.
func (h *histories) newKey(slot int) *keyed {
	n := len(h.keys)
	k := &keyed{name: fmt.Sprint("h-", n), habit: h.habits[n%len(h.habits)], slot: slot, left: 150}
	if k.habit.slow {
		k.left = 60
	}
	h.keys = append(h.keys, k)
	return k
}

// pick returns the key of the next operation; nil when there were enough.
func (h *histories) pick(random *rand.Rand) *keyed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left <= 0 || len(h.faults) > 0 {
		return nil
	}
	h.left--
	k := h.active[random.IntN(len(h.active))]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left--; k.left == 0 {
		h.active[k.slot] = h.newKey(k.slot)
	}
	return k
}

func (h *histories) client(random *rand.Rand) {
	for k := h.pick(random); k != nil; k = h.pick(random) {
		if err := h.one(k, random); err != nil {
			h.mu.Lock()
			h.faults = append(h.faults, fmt.Errorf("%s of %s: %w", k.habit.tool, k.name, err))
			h.mu.Unlock()
		}
	}
}

// at is a daemon that stays with one life: an operation must not be taken to the
// next, since what comes of it would be asked of the wrong one.
func (d *daemon) at() (one *daemon, life int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &daemon{dir: d.dir, posts: d.posts, gets: d.gets, life: d.life}, d.lives
}

// one does an operation of a key and records it.
func (h *histories) one(k *keyed, random *rand.Rand) error {
	k.mu.Lock()
	id, seen := k.id, k.seen
	k.mu.Unlock()
	// The clock is read before the life is: the life may be over by then, but an
	// operation cannot be over before it began.
	o := operation{call: int64(time.Since(h.began))}
	d, life := h.d.at()
	o.in = asked{habit: k.habit, life: life}
	var opts []option
	if random.IntN(50) == 0 { // it goes on, and nobody is told
		opts = append(opts, impatient(between(random, 0, 5*time.Millisecond)))
	}
	patient := "20"
	if k.habit.slow {
		patient = "1"
	}
	if random.IntN(10) == 0 {
		o.in.args = 1
	}
	var ask func() reply
	switch choice := random.IntN(20); {
	case choice < 6:
		o.in.deed = submits
		ask = func() reply { return d.post(k.name, k.habit.tool, k.habit.args[o.in.args], opts...) }
	case choice < 11:
		o.in.deed = entrusts
		opts = append(opts, header("Prefer", "wait="+patient))
		ask = func() reply { return d.post(k.name, k.habit.tool, k.habit.args[o.in.args], opts...) }
	case choice < 13 && id != "":
		o.in.deed = decides
		body := ""
		o.in.want, o.in.attempt, body = decision(random, max(seen, 1))
		ask = func() reply { return d.resolve(id, body) }
	case choice < 16 && id != "":
		if random.IntN(4) == 0 {
			opts = append(opts, header("Prefer", "wait=1"))
		}
		ask = func() reply { return d.look(id, opts...) }
	default:
		ask = func() reply { return d.find(k.name, opts...) }
	}
	r := ask()
	o.ret = int64(time.Since(h.began))
	if r.lost != nil {
		return h.unanswered(k, o, r.lost, d.life)
	}
	more, err := o.hear(r)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ops = append(k.ops, o)
	if more != nil {
		k.ops = append(k.ops, *more)
	}
	if o.out.id != "" {
		k.id = o.out.id
	}
	if o.out.attempt > 0 {
		k.seen = o.out.attempt
	}
	return nil
}

// decision is somebody's who has seen an attempt, and no two are alike. What lets the
// tool run again names the attempt.
func decision(random *rand.Rand, seen int) (want phase, attempt int, body string) {
	n := random.Uint64()
	switch random.IntN(8) {
	case 0:
		return succeeded, 0, fmt.Sprintf(`{"outcome":"succeeded","by":"e2e","result":{"n":"%x"}}`, n)
	case 1:
		return failed, 0, fmt.Sprintf(`{"outcome":"failed","by":"e2e","error":{"code":"no","message":"%x"}}`, n)
	case 2:
		return retryable, seen, fmt.Sprintf(`{"outcome":"failed","attempt":%d,"by":"e2e","error":{"code":"no","message":"%x","retryable":true}}`, seen, n)
	default:
		return pending, seen, fmt.Sprintf(`{"outcome":"retry","attempt":%d,"by":"e2e"}`, seen)
	}
}

// unanswered records an operation of which nobody knows what came, and waits for
// the next life if that is why.
func (h *histories) unanswered(k *keyed, o operation, why error, l *life) error {
	var refused *net.OpError
	sent := !errors.As(why, &refused) || refused.Op != "dial"
	select {
	case <-l.ready:
	default:
		sent = false
	}
	if sent {
		h.lost.Add(1)
		if o.in.deed != looks { // a look that nobody saw tells nothing
			o.out.lost, o.ret = true, math.MaxInt64
			k.mu.Lock()
			k.ops = append(k.ops, o)
			k.mu.Unlock()
		}
	}
	if errors.Is(why, context.DeadlineExceeded) || errors.Is(why, context.Canceled) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	if err := h.d.awaitNext(ctx, l); err != nil {
		return fmt.Errorf("no answer from a process that lives: %w", why)
	}
	return nil
}

// hear takes an answer. What a waiting submission was shown may have come about
// later than what was decided, so it is another operation, which is returned.
func (o *operation) hear(r reply) (more *operation, err error) {
	switch {
	case r.call != nil:
		if err := o.hearCall(r); err != nil {
			return nil, err
		}
	case r.refusal == nil:
		return nil, fmt.Errorf("neither a call nor a refusal: %v", r)
	default:
		o.out.refused, o.out.id = r.refusal.Code, r.refusal.CallID
		fits := r.refusal.Code == idem.CodeOutcomeUnknown && (o.in.deed == submits || o.in.deed == entrusts) ||
			r.refusal.Code == idem.CodeConflict && (o.in.deed == submits || o.in.deed == entrusts) ||
			r.refusal.Code == idem.CodeNotFound && o.in.deed == looks ||
			r.refusal.Code == idem.CodeNotHeld && o.in.deed == decides
		if !fits {
			return nil, fmt.Errorf("%v is refused: %v", o.in.deed, r)
		}
		o.out.phase = phase(r.refusal.Status)
	}
	if o.in.deed != entrusts || o.out.refused == idem.CodeConflict {
		return nil, nil
	}
	saw := *o
	saw.in.deed, saw.out.fresh = looks, false
	return &saw, nil
}

func (o *operation) hearCall(r reply) error {
	c := r.call
	o.out = told{id: c.CallID, made: c.CreatedAt, phase: phase(c.Status), attempt: c.Attempt, fresh: r.replayed() == "false"}
	if id, err := idem.ParseCallID(c.CallID); err != nil || c.EffectID != idem.EffectID(id) {
		return fmt.Errorf("effect id %s of call %s: %w", c.EffectID, c.CallID, err) // R10
	}
	if c.Tool != o.in.habit.tool {
		return fmt.Errorf("the call of another tool: %v", r)
	}
	if c.failure().Retryable {
		o.out.phase = retryable
	}
	if o.out.phase.ended() != (c.ExpiresAt != nil) { // R16
		return fmt.Errorf("ended or not: %v", r)
	}
	if o.out.phase.ended() {
		o.out.end = fmt.Sprintf("%s %s until %s", c.Result, c.Error, *c.ExpiresAt)
	}
	submitted := o.in.deed == submits || o.in.deed == entrusts
	if submitted && (r.status == http.StatusOK) != o.out.phase.ended() || !submitted && r.status != http.StatusOK {
		return fmt.Errorf("the status does not go with the call: %v", r)
	}
	return nil
}

// supervise starts the process again whenever it has ended, and ends it when it
// does not do so by itself.
func (h *histories) supervise(t *testing.T, random *rand.Rand, done <-chan struct{}) {
	t.Helper()
	for {
		longest := 400 * time.Millisecond
		if torture() && random.IntN(10) == 0 {
			longest = 5 * time.Second // time enough for a time-out
		}
		kill := time.NewTimer(between(random, 20*time.Millisecond, longest)) // the moment of the kill
		select {
		case <-done:
			kill.Stop()
			return
		case <-h.d.now().ended: // a call did it
			kill.Stop()
		case <-kill.C:
			h.d.kill(t)
		}
		h.again(t)
	}
}

// again notes a death and starts the process again.
func (h *histories) again(t *testing.T) {
	t.Helper()
	if l := h.d.now(); !l.killed() {
		t.Fatalf("the process ended with %v, not by a kill:\n%s", l.cmd.ProcessState, l.tail(40))
	}
	h.mu.Lock()
	h.deaths[h.d.lives] = int64(time.Since(h.began))
	h.mu.Unlock()
	h.d.boot(t)
}

// rest waits until no call is on its way any more and takes a last look at each.
func (h *histories) rest(t *testing.T) {
	t.Helper()
	for _, k := range h.keys {
		var o operation
		eventually(t, k.name+" has come to rest", func() bool {
			if h.d.now().gone() { // what is retried may end it again
				h.again(t)
			}
			o = operation{call: int64(time.Since(h.began))}
			d, life := h.d.at()
			o.in = asked{habit: k.habit, life: life}
			r := d.find(k.name)
			o.ret = int64(time.Since(h.began))
			if r.lost != nil {
				return false
			}
			if _, err := o.hear(r); err != nil {
				t.Fatalf("%s: %v", k.name, err)
			}
			asking := o.out.phase == held && k.habit.asks
			return o.out.phase != pending && o.out.phase != running && !asking
		})
		if o.out.refused != "" {
			o.out.phase = absent
		}
		k.ops = append(k.ops, o)
	}
}

// close gives the operations without an answer the latest end that they can
// have: nothing comes of a request after the process that got it is dead, and
// nothing at all of one that began afterwards. One of the last life may still be
// on its way.
func (h *histories) close() {
	for _, k := range h.keys {
		ops := k.ops[:0]
		for _, o := range k.ops {
			died, dead := h.deaths[o.in.life]
			if o.out.lost && dead {
				o.ret = died
			}
			if o.call <= o.ret {
				ops = append(ops, o)
			}
		}
		k.ops = ops
	}
}

// judge has every history checked.
func (h *histories) judge(t *testing.T) {
	t.Helper()
	work := make(chan *keyed)
	var judges sync.WaitGroup
	for range 2 {
		judges.Go(func() {
			for k := range work {
				if verdict := examine(k.ops, generous(examined)); verdict != porcupine.Ok {
					t.Errorf("%s of %s, %s: the history is %s\n%s", k.habit.tool, k.name, k.habit.args, verdict, clipped(story(k.ops)))
				}
			}
		})
	}
	for _, k := range h.keys {
		work <- k
	}
	close(work)
	judges.Wait()
}

func clipped(s string) string { return s[:min(len(s), 64<<10)] }

// lie makes something of a history that cannot have happened. It reports whether
// the history has what it needs.
type lie struct {
	name string
	tell func(ops []operation) bool
}

// showed reports whether an operation showed a call.
func (o *operation) showed() bool { return !o.out.lost && o.out.refused == "" }

// pair finds two operations, one after the other in time, and calls change with
// them until it reports true.
func pair(ops []operation, change func(a, b *operation) bool) bool {
	for j := range ops {
		for i := range ops {
			if ops[i].ret < ops[j].call && change(&ops[i], &ops[j]) {
				return true
			}
		}
	}
	return false
}

var lies = []lie{
	{"another call of the key", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() {
				return false
			}
			b.out.id = "c_" + strings.Repeat("0", 32)
			return true
		})
	}},
	{"another time of its making", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() {
				return false
			}
			b.out.made += "!"
			return true
		})
	}},
	{"a replay that changed", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.out.phase != succeeded || b.in.deed != submits {
				return false
			}
			b.out.end += "!"
			return true
		})
	}},
	{"an attempt that went back", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.out.attempt < 2 || b.out.attempt != a.out.attempt {
				return false
			}
			b.out.attempt--
			return true
		})
	}},
	{"an attempt that nobody asked for", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.out.phase != succeeded {
				return false
			}
			b.out.attempt++
			return true
		})
	}},
	{"a look at what was before", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.out.phase != succeeded || b.in.deed != looks {
				return false
			}
			b.out.phase, b.out.end = running, ""
			return true
		})
	}},
	{"an accepted call that is lost", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || b.in.deed != looks {
				return false
			}
			b.out = told{refused: idem.CodeNotFound}
			return true
		})
	}},
	{"an end that opened again", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.out.phase != succeeded || b.in.deed != submits {
				return false
			}
			b.out.phase, b.out.end, b.out.fresh = pending, "", true
			return true
		})
	}},
	{"a conflict of the same args", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.in.deed != submits || b.in.deed != submits || a.in.args != b.in.args {
				return false
			}
			b.out = told{refused: idem.CodeConflict, id: b.out.id}
			return true
		})
	}},
	{"an answer to other args", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || a.in.deed != submits || b.in.deed != submits || b.out.refused != idem.CodeConflict {
				return false
			}
			b.out = a.out
			b.out.fresh = false
			return true
		})
	}},
	{"an unknown outcome of what is known", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || a.out.phase != succeeded || b.in.deed != submits {
				return false
			}
			b.out = told{refused: idem.CodeOutcomeUnknown, id: b.out.id}
			return true
		})
	}},
	{"two who made the same call", func(ops []operation) bool {
		return pair(ops, func(a, b *operation) bool {
			if !a.showed() || !b.showed() || !a.out.fresh || b.out.fresh || a.in.deed != submits || b.in.deed != submits {
				return false
			}
			b.out = a.out
			return true
		})
	}},
}

// bites shows that the checker refuses lies. Short histories come first: what is
// not so must be looked for everywhere.
func bites(t *testing.T, keys []*keyed) {
	t.Helper()
	byLength := slices.SortedFunc(slices.Values(keys), func(a, b *keyed) int { return len(a.ops) - len(b.ops) })
	for _, l := range lies {
		told, refused := 0, 0
		for _, k := range byLength {
			ops := slices.Clone(k.ops)
			if refused == 3 || told == 10 || !l.tell(ops) {
				continue
			}
			told++
			switch examine(ops, exhausted) {
			case porcupine.Ok:
				t.Errorf("believed: %s of %s\n%s", l.name, k.name, clipped(story(ops)))
			case porcupine.Illegal:
				refused++
			}
		}
		if refused == 0 && !t.Failed() {
			t.Errorf("no history of %d shows that %q is refused", len(keys), l.name)
		}
	}
}
