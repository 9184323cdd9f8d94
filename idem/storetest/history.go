package storetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// SeedEnv names the environment variable that makes Run play one history only,
// the one of the seed that a failure printed.
const SeedEnv = "IDEMD_HISTORY_SEED"

// runHistories plays random histories on the store and on a Model side by side.
// After each operation both must have decided the same, and must show the same.
func runHistories(t *testing.T, o Options) {
	seeds := []uint64{1, 2, 3, rand.Uint64()}
	if s := os.Getenv(SeedEnv); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", SeedEnv, err)
		}
		seeds = []uint64{seed}
	}
	for i, seed := range seeds {
		name := fmt.Sprint("seed ", seed)
		if i == 3 {
			name = "a new seed" // a name that changes could not be told apart from a new test
		}
		t.Run(name, func(t *testing.T) {
			h := newHistory(t, o, seed)
			for range 400 {
				h.step()
			}
			h.compareAll()
		})
	}
}

type history struct {
	*world
	seed   uint64
	r      *rand.Rand
	m      *Model
	steps  int
	boots  int
	saved  int                       // rules, of someRules
	leases map[idem.Key][]idem.Lease // every lease that was ever given
	log    []string                  // the last operations
}

func newHistory(t *testing.T, o Options, seed uint64) *history {
	return &history{
		world:  newWorld(t, o, true),
		seed:   seed,
		r:      rand.New(rand.NewPCG(seed, 0)),
		m:      NewModel(ModelOptions{Exclusive: o.Exclusive}),
		leases: make(map[idem.Key][]idem.Lease),
	}
}

// one in n.
func (h *history) oneIn(n int) bool { return h.r.IntN(n) == 0 }

// wrong ends the test with the operations that led here.
func (h *history) wrong(format string, args ...any) {
	h.t.Helper()
	h.t.Fatal(h.story(fmt.Sprintf(format, args...)))
}

func (h *history) story(what string) string {
	return fmt.Sprintf("%s\n%s=%d, the last operations:\n  %s", what, SeedEnv, h.seed, strings.Join(h.log, "\n  "))
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
	if len(h.log) > 20 {
		h.log = h.log[1:]
	}
}

// step does one operation on both stores.
func (h *history) step() {
	h.t.Helper()
	// A second passes at most, so that windows end within a history.
	h.now = h.now.Add(time.Duration(h.r.IntN(1000)) * time.Millisecond)
	// New names now and then: those that were used are tombstones one day.
	h.steps++
	k := keyIn(namespaces[h.r.IntN(2)], fmt.Sprintf("%d-k%d", h.steps/60, h.r.IntN(5)))
	if h.oneIn(10) && h.steps >= 60 {
		k.Name = fmt.Sprintf("%d-k%d", h.r.IntN(h.steps/60), h.r.IntN(5))
	}
	switch n := h.r.IntN(100); {
	case n < 30:
		h.submitSome(k)
	case n < 52:
		h.claimSome(h.likely(k, func(c *idem.Call) bool { return c.Status == idem.StatusPending || c.Status == idem.StatusRunning }))
	case n < 80:
		h.settleSome(h.likely(k, func(c *idem.Call) bool { return c.Status == idem.StatusRunning }))
	case n < 86:
		h.resolveSome(h.likely(k, func(c *idem.Call) bool { return c.Status == idem.StatusHeld }))
	case n < 92:
		now := h.tick()
		h.apply(h.likely(k, func(c *idem.Call) bool { return c.Expired(now) && !c.Tombstone }), "expire", idem.Expire(now))
	case n < 96:
		h.renewSome(h.likely(k, func(c *idem.Call) bool { return c.Status == idem.StatusRunning }))
	case n < 98:
		h.saveSome()
	default:
		h.reopenBoth()
	}
	h.compareQueues()
	if err := h.m.Check(); err != nil { // the oracle's own totals are right, then
		h.wrong("the model: %v", err)
	}
	if h.oneIn(40) {
		h.compareAll()
	}
}

// likely is a key for which an operation has something to do, most of the time;
// else it is the one that was drawn.
func (h *history) likely(drawn idem.Key, want func(*idem.Call) bool) idem.Key {
	var keys []idem.Key
	for k, r := range h.m.d.rows {
		if want(r.call) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 || h.oneIn(4) {
		return drawn
	}
	slices.SortFunc(keys, func(a, b idem.Key) int { // a map has no order, and a seed must
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return keys[h.r.IntN(len(keys))]
}

// apply commits one transition on both stores and compares what they decided.
func (h *history) apply(k idem.Key, what string, t idem.Transition) {
	h.t.Helper()
	want, wantErr := h.m.Update(h.ctx, k, t)
	got, err := h.s.Update(h.ctx, k, t)
	h.note("%v %s: %v, %v", k, what, want.Verdict, wantErr)
	if g, s := showChange(got, err), showChange(want, wantErr); g != s {
		h.wrong("%v %s decided\n%s\nwant\n%s", k, what, g, s)
	}
	if err == nil && got.Write && got.After.Status == idem.StatusRunning {
		h.leases[k] = append(h.leases[k], idem.LeaseOf(got.After))
	}
}

func (h *history) submitSome(k idem.Key) {
	r := request(k)
	r.Tool = h.toolOf(k).Name
	r.Args = fmt.Appendf(nil, `{"n":%q}`, k.Name)
	if h.oneIn(8) {
		r.Fingerprint = fingerprint("other")
	}
	if h.saved > 0 && h.oneIn(2) {
		r.Rules = someRules(h.r.IntN(h.saved)).ID()
	}
	if h.oneIn(2) {
		fp := r.Fingerprint
		r.Under = func(idem.RulesID) (idem.Fingerprint, error) { return fp, nil }
	}
	if h.oneIn(2) {
		r.ClientID, r.Seq = ptr("agent"), ptr(h.r.Int64N(3))
	}
	adm := h.admission(k)
	if h.oneIn(10) {
		adm.Refuse = idem.ErrUnavailable
	}
	if h.oneIn(10) {
		adm.Check = func() error { return idem.Errorf(idem.CodeInvalidArguments, "no amount") }
	}
	if h.oneIn(3) {
		// All in one commit, as for a local tool or with a worker free.
		c := h.terms()
		owner := h.owner()
		claim := idem.Claim(idem.ClaimTerms{Terms: c, Owner: owner, Lease: h.lease(), MaxCrashes: 3, Tool: h.toolOf(k)})
		if h.oneIn(2) {
			h.apply(k, "submit and claim", idem.Chain(idem.Submit(r, adm), claim))
			return
		}
		// The lease is not known before the claim, so it is taken from the record.
		settle := func(cur *idem.Call) (idem.Change, error) {
			return idem.Succeed(idem.Settlement{Terms: c, Lease: idem.LeaseOf(cur)}, idem.Result{Output: []byte(`1`)})(cur)
		}
		h.apply(k, "submit, claim and succeed", idem.Chain(idem.Submit(r, adm), claim, settle))
		return
	}
	h.apply(k, "submit", idem.Submit(r, adm))
}

// toolOf is the tool of a key, with every promise among them.
func (h *history) toolOf(k idem.Key) *idem.Tool {
	tools := []*idem.Tool{toolNone, toolLocal, toolRerun, toolVerify, toolHold}
	return tools[int(k.Name[len(k.Name)-1])%len(tools)]
}

func (h *history) owner() string {
	// Over shared data several lives go on at once.
	b := h.boots
	if !h.o.Exclusive {
		b = h.r.IntN(2)
	}
	return idem.Owner(fmt.Sprint("boot", b), fmt.Sprint("w", h.r.IntN(2)))
}

// lease is one that is over at once, or one that no test outlives: in between
// the two stores could disagree by nothing but their clocks.
func (h *history) lease() time.Duration {
	if h.oneIn(3) {
		return over
	}
	return anHour
}

func (h *history) claimSome(k idem.Key) {
	t := idem.ClaimTerms{
		Terms: h.terms(), Owner: h.owner(), Lease: h.lease(), MaxCrashes: 2, Tool: h.toolOf(k), Recovered: h.oneIn(2),
	}
	t.Window = time.Duration(h.r.IntN(30)) * time.Second
	if h.oneIn(10) {
		t.Tool = nil
	}
	t.From = h.someLease(k)
	h.apply(k, fmt.Sprintf("claim by %s from %+v", t.Owner, t.From), idem.Claim(t))
}

// someLease is the newest lease that was given on a key, or sometimes an old
// one, or none.
func (h *history) someLease(k idem.Key) idem.Lease {
	given := h.leases[k]
	switch {
	case len(given) == 0 || h.oneIn(10):
		return idem.Lease{}
	case h.oneIn(4):
		return given[h.r.IntN(len(given))]
	default:
		return given[len(given)-1]
	}
}

func (h *history) settleSome(k idem.Key) {
	s := idem.Settlement{Terms: h.terms(), Lease: h.someLease(k)}
	s.Window = time.Duration(h.r.IntN(30)) * time.Second
	s.Deliveries = h.r.Int64N(3)
	var what string
	var t idem.Transition
	switch h.r.IntN(7) {
	case 0, 1:
		r := idem.Result{Output: fmt.Appendf(nil, `{"n":%d}`, h.r.IntN(1000))}
		if h.oneIn(2) {
			r.Amount = ptr(h.r.Int64())
		}
		what, t = "succeed", idem.Succeed(s, r)
	case 2, 3:
		what, t = "fail", idem.Fail(s, idem.Failure{Code: "tool_failed", Message: "no", Retryable: h.oneIn(2), RetryAfter: time.Duration(h.r.IntN(3)) * time.Minute})
	case 4:
		what, t = "lose", idem.Lose(s, idem.Failure{Code: idem.FailureTimeout, Message: "too slow"})
	case 5:
		what, t = "hold", idem.Hold(s, idem.Failure{Code: idem.FailureLost, Message: "no answer"})
	default:
		what, t = "release", idem.Release(s)
	}
	h.apply(k, fmt.Sprintf("%s under %+v", what, s.Lease), t)
}

func (h *history) resolveSome(k idem.Key) {
	outcomes := []idem.Outcome{idem.OutcomeSucceeded, idem.OutcomeFailed, idem.OutcomeRetry, "no such outcome"}
	r := idem.Resolution{
		Terms: h.terms(), Outcome: outcomes[h.r.IntN(len(outcomes))], By: "anna", Note: "asked",
		Result: idem.Result{Output: []byte(`"found"`), Amount: ptr(int64(1))}, Failure: idem.Failure{Code: "not_done", Retryable: h.oneIn(2)},
	}
	h.apply(k, "resolve "+string(r.Outcome), idem.Resolve(r))
}

// saveSome saves the next rules, or some that are saved.
func (h *history) saveSome() {
	h.t.Helper()
	i := h.r.IntN(h.saved + 1)
	h.saved = max(h.saved, i+1)
	want := h.m.SaveRules(h.ctx, someRules(i))
	err := h.s.SaveRules(h.ctx, someRules(i))
	h.note("save rules %d: %v", i, want)
	if err != nil || want != nil {
		h.wrong("save rules %d: %v, want %v", i, err, want)
	}
}

func (h *history) renewSome(k idem.Key) {
	h.t.Helper()
	l, d := h.someLease(k), h.lease()
	want := h.m.Renew(h.ctx, k, l, d)
	err := h.s.Renew(h.ctx, k, l, d)
	h.note("%v renew %+v for %v: %v", k, l, d, want)
	if fmt.Sprint(err) != fmt.Sprint(want) {
		h.wrong("%v renew %+v for %v: %v, want %v", k, l, d, err, want)
	}
}

// reopenBoth ends this life of both stores cleanly and begins the next.
func (h *history) reopenBoth() {
	if h.o.Reopen == nil {
		return
	}
	h.note("reopen")
	h.reopen()
	if err := h.m.Close(); err != nil {
		h.wrong("close of the model: %v", err)
	}
	h.m = h.m.Open()
	h.boots++
}

// compareQueues compares what moves without an operation on a key.
func (h *history) compareQueues() {
	h.t.Helper()
	want, err := queues(h.ctx, h.m)
	if err != nil {
		h.wrong("the model: %v", err)
	}
	eventually(h.t, func() string {
		got, err := queues(h.ctx, h.s)
		if err != nil {
			h.wrong("%v", err)
		}
		if d := differ(want, got); d != "" {
			return h.story(d)
		}
		return ""
	})
}

func (h *history) compareAll() {
	h.t.Helper()
	want, err := image(h.ctx, h.m)
	if err != nil {
		h.wrong("the model: %v", err)
	}
	if d := differ(want, h.image()); d != "" {
		h.wrong("%s", d)
	}
}
