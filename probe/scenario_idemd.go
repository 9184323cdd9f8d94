package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

// idemdPlay is a scenario done to idemd: the real binary, as a child process over
// a data directory of its own.
type idemdPlay struct {
	flags []string // of serve
	kill  idem.Point
	rules []Rule // of a proxy between the client and idemd
	act   func(ctx context.Context, w *world) error
}

// Intents of the idemd scenarios whose answer is lost, late or doubled.
const fewIntents = 3

// idemdScenarios do to idemd what the sinks were not up to, and more. In every one of
// them duplicates and lost are 0.
func idemdScenarios() []Scenario {
	declare := func(name, shows string, n Numbers, p idemdPlay) Scenario {
		return Scenario{
			Name: name, Policy: "idemd", Key: string(stableKey), Shows: shows, Declared: n,
			On: OnIdemd, run: p.run,
		}
	}
	hit := func(f Fault) []Rule {
		return []Rule{{Faults: []Fault{f}, FirstPerKey: 1, Methods: []string{http.MethodPost}}}
	}
	all := []Scenario{
		declare("idemd_lost_answer", "the answer is lost, the client asks and sends again: replayed", Numbers{6, 3, 3, 0, 0},
			idemdPlay{rules: hit(Fault{Mode: DropResponse}), act: few(patient())}),
		declare("idemd_half_answer", "half an answer is none", Numbers{6, 3, 3, 0, 0},
			idemdPlay{rules: hit(Fault{Mode: HalfBody}), act: few(patient())}),
		declare("idemd_slow_answer", "the client gives up waiting, the call goes on: replayed", Numbers{6, 3, 3, 0, 0},
			idemdPlay{rules: hit(Fault{Mode: DelayResponse, Delay: time.Minute}), act: few(hasty())}),
		declare("idemd_duplicate_request", "the network sends each request twice", Numbers{6, 3, 3, 0, 0},
			idemdPlay{rules: hit(Fault{Mode: DuplicateRequest}), act: few(patient())}),
		declare("idemd_race_2", "10 rounds of two at once: one call each", Numbers{20, 10, 10, 0, 0},
			idemdPlay{act: races(10, 2)}),
		declare("idemd_race_300", "300 at once with one key: one call", Numbers{300, 1, 1, 0, 0},
			idemdPlay{act: races(1, 300)}),
		declare("idemd_restart", "a stop, then a kill: the same answer, byte for byte", Numbers{9, 3, 3, 0, 0},
			idemdPlay{act: restarts}),
		declare("idemd_two_orders", "equal amounts under two keys are two", Numbers{2, 2, 2, 0, 0},
			idemdPlay{act: twoOrders}),
		declare("idemd_respelled", "reordered and re-spelled args are the same; others are refused", Numbers{5, 1, 1, 0, 0},
			idemdPlay{act: respelled}),
		declare("idemd_window", "window 0.1 s < back-off 0.35 s: refused, not run again", Numbers{6, 3, 3, 0, 0},
			idemdPlay{flags: []string{"--window", sinkWindow.String()}, rules: hit(Fault{Mode: DropResponse}), act: tooLate}),
	}
	for _, k := range []struct {
		point idem.Point
		shows string
	}{
		{idem.PointAfterCreate, "killed once the call is stored"},
		{idem.PointAfterClaim, "killed before the tool is dispatched"},
		{idem.PointAfterDispatch, "killed after the tool returned"},
		{idem.PointBeforeCommit, "killed before the end is written"},
		{idem.PointAfterCommit, "killed once the end is stored"},
		{idem.PointBeforeReply, "killed before the answer is sent"},
	} {
		// Five kinds of tools; each intent is sent once to die, and once again.
		all = append(all, declare("idemd_kill_"+string(k.point), k.shows, Numbers{10, 5, 5, 0, 0},
			idemdPlay{kill: k.point, act: kills(k.point)}))
	}
	return all
}

// run does a play to a fresh idemd.
func (p idemdPlay) run(ctx context.Context, e *env, r *Result) (entries []string, err error) {
	d, err := startDaemon(ctx, e.binary, e.dir, p.flags...)
	if err != nil {
		return nil, err
	}
	defer d.close()
	fault := ""
	if p.kill != "" {
		fault = fmt.Sprintf("%s=%s", p.kill, idem.ActionExit)
	}
	relay, err := openRelay(ctx, d, fault)
	if err != nil {
		return nil, err
	}
	defer relay.close()
	w := &world{d: d, relay: relay, url: relay.url, r: r, external: make(map[string]bool)}
	if len(p.rules) > 0 {
		if w.proxy, err = NewProxy(ProxyOptions{Upstream: relay.url, Rules: p.rules}); err != nil {
			return nil, err
		}
		if err := w.proxy.Start(); err != nil {
			return nil, precondition("%w", err)
		}
		defer w.proxy.Close()
		w.url = w.proxy.URL()
	}
	if err := p.act(ctx, w); err != nil {
		return nil, err
	}
	if r.requests, err = relay.seen(); err != nil {
		return nil, err
	}
	if w.proxy != nil {
		sent := 0
		for _, t := range r.Tries {
			if t.asks() {
				sent++
			}
		}
		for mode, n := range w.proxy.Summary().Faults {
			r.note("the proxy did %s to %d of %d submissions; %d reached idemd", mode, n, sent, r.requests)
		}
	}
	entries, err = w.ledger(ctx)
	if err != nil {
		return nil, err
	}
	return entries, d.stop(ctx)
}

// patient is the policy of a client that does not give up soon. Its pauses are
// short, since all that it waits for is on this machine.
func patient() client.Policy {
	return client.Policy{
		Tries: 4, Total: 30 * time.Second, Wait: 10 * time.Second, Timeout: 10 * time.Second,
		Backoff: time.Millisecond, BackoffCap: 10 * time.Millisecond, RetryAfterCap: 100 * time.Millisecond,
		Poll: 5 * time.Millisecond, PollCap: 50 * time.Millisecond,
	}
}

// hasty is the policy of one that waits for a single answer only so long that
// nothing but a delay on purpose outlasts it.
func hasty() client.Policy {
	p := patient()
	p.Wait, p.Timeout = 0, 2500*time.Millisecond
	return p
}

// charge is a request to charge an amount.
func charge(key, args string) client.Request {
	return client.Request{Tool: "charge", Key: key, Args: json.RawMessage(args)}
}

// few asks for some intents, all at the same time.
func few(p client.Policy) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		errs := make([]error, fewIntents)
		var asking sync.WaitGroup
		for i := range fewIntents {
			asking.Go(func() {
				_, errs[i] = w.ask(ctx, p, charge(fmt.Sprintf("order-%d", i+1), fmt.Sprintf(`{"amount":%d}`, 100*(i+1))))
			})
		}
		asking.Wait()
		w.order()
		return errors.Join(errs...)
	}
}

// races sends the same request from n sides at the same moment, round after
// round. Each of them sends once.
func races(rounds, n int) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		c, err := w.open(patient())
		if err != nil {
			return err
		}
		defer c.Close()
		for round := range rounds {
			req := charge(fmt.Sprintf("order-%d", round+1), `{"amount":100}`)
			tries := make([]Try, n)
			start := make(chan struct{})
			var racers sync.WaitGroup
			for i := range n {
				racers.Go(func() {
					<-start
					a, _ := c.Submit(ctx, req) // the try says all
					tries[i] = showTry(req.Key, a.Try)
				})
			}
			close(start)
			racers.Wait()
			if err := ctx.Err(); err != nil {
				return err
			}
			made := 0
			for _, t := range tries {
				if t.Status == http.StatusOK && !t.Replayed {
					made++
				}
			}
			if made != 1 {
				w.r.fault("%d answers to %s say that they made the call", made, req.Key)
			}
			w.r.Intents = append(w.r.Intents, req.Key)
			w.r.Tries = append(w.r.Tries, number(tries)...)
		}
		return nil
	}
}

// restarts asks again after a clean stop, and again after a kill.
func restarts(ctx context.Context, w *world) error {
	first := make(map[string][]byte)
	for life := range 3 {
		for i := range fewIntents {
			req := charge(fmt.Sprintf("order-%d", i+1), fmt.Sprintf(`{"amount":%d}`, 100*(i+1)))
			out, err := w.ask(ctx, patient(), req)
			if err != nil {
				return err
			}
			if life == 0 {
				first[req.Key] = out.Body
			} else if !out.Replayed || !sameEnd(first[req.Key], out.Body) {
				w.r.fault("%s: life %d does not give the first answer again", req.Key, life+1)
			}
		}
		var err error
		switch life {
		case 0:
			err = w.d.stop(ctx)
			w.r.note("life 1 was stopped, life 2 started over its directory")
		case 1:
			err = w.d.kill(ctx)
			w.r.note("life 2 was killed, life 3 started over its directory")
		default:
			w.order()
			return nil
		}
		if err == nil {
			err = w.d.start(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sameEnd reports whether two answers give the same result under the same ids,
// byte for byte.
func sameEnd(a, b []byte) bool {
	x, y := client.ParseCall(a), client.ParseCall(b)
	return x != nil && y != nil && x.CallID == y.CallID && x.EffectID == y.EffectID && x.Status == y.Status &&
		x.Attempt == y.Attempt && bytes.Equal(x.Result, y.Result)
}

// twoOrders asks for two intents of equal content.
func twoOrders(ctx context.Context, w *world) error {
	for _, key := range []string{"order-1", "order-2"} {
		if _, err := w.ask(ctx, patient(), charge(key, `{"amount":100}`)); err != nil {
			return err
		}
	}
	return nil
}

// spellings are of one intent; otherSpelling is of another one.
var spellings = []string{
	`{"amount":100,"currency":"EUR"}`,
	`{"currency":"EUR","amount":100}`,
	"{ \"amount\" : 1e2,\n\"currency\" : \"EUR\" }",
	`{"currency":"\u0045U\u0052","amount":100.00}`,
}

const otherSpelling = `{"amount":101,"currency":"EUR"}`

// respelled asks for one intent in many spellings, and then for another one under
// its key.
func respelled(ctx context.Context, w *world) error {
	for i, args := range spellings {
		out, err := w.ask(ctx, patient(), charge("order-1", args))
		if err != nil {
			return err
		}
		if out.Call == nil || out.Replayed != (i > 0) {
			w.r.fault("spelling %d is not taken for the same intent: %s", i+1, args)
		}
	}
	if _, err := w.ask(ctx, patient(), charge("order-1", otherSpelling)); err != nil {
		return err
	}
	if last := w.r.last(); last.Answer != string(idem.CodeConflict) {
		w.r.fault("other args under the same key are answered with %d %s", last.Status, last.Answer)
	}
	return nil
}

// tooLate shows a back-off that outlives the window. Package client does not send
// with such a policy; so it is sent without it.
func tooLate(ctx context.Context, w *world) error {
	c, err := w.open(patient())
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, charge("order-0", `{"amount":1}`))
	c.Close()
	if !errors.Is(err, client.ErrWindowTooShort) {
		w.r.fault("the client sends although its policy outlives the window: %v", err)
	}
	w.r.note("the client refuses before it sends: its policy may retry for %v, the window is %v (%s)",
		patient().Span(), sinkWindow, client.CodeWindowTooShort)

	wire := client.NewTransport()
	defer wire.CloseIdleConnections()
	who := &caller{
		url: w.url + "/v1/tool-calls", keyHeader: keyHeader, keys: stableKey, tries: 2, backoff: longBackoff,
		timeout: callerTimeout, send: wire, header: http.Header{"Prefer": {"wait=10"}},
	}
	amounts := make(map[string]int)
	for i := range fewIntents {
		key := fmt.Sprintf("order-%d", i+1)
		amounts[key] = 100 * (i + 1)
		w.r.Intents = append(w.r.Intents, key)
	}
	w.r.Tries, err = together(ctx, who, w.r.Intents, func(key string) []byte {
		return fmt.Appendf(nil, `{"tool":"charge","args":{"amount":%d}}`, amounts[key])
	})
	for _, t := range w.r.Tries {
		if t.Number > 1 && t.Answer != string(idem.CodeKeyExpired) {
			w.r.fault("%s: past the window the answer is %d %s", t.Intent, t.Status, t.Answer)
		}
	}
	return err
}

// kills asks for intents of every kind of tool; each first submission kills idemd
// at the point. What is held in the end is decided by somebody who looks into the
// downstream's ledger, as a person would.
func kills(p idem.Point) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		// What a downstream would answer that is asked for the effect: nothing of
		// it before the tool was dispatched.
		found := p != idem.PointAfterCreate && p != idem.PointAfterClaim
		for _, req := range []client.Request{
			charge("charge", `{"amount":100}`),
			{Tool: "send_email", Key: "email", Args: json.RawMessage(`{"to":"a@example.com","subject":"s","body":"b"}`)},
			{Tool: "ext_rerun", Key: "rerun", Args: json.RawMessage(`{}`)},
			{Tool: "ext_verify", Key: "verify", Args: fmt.Appendf(nil, `{"found":%t}`, found)},
			{Tool: "ext_hold", Key: "hold", Args: json.RawMessage(`{}`)},
		} {
			w.external[req.Key] = strings.HasPrefix(req.Tool, "ext_")
			policy := patient()
			if req.Tool == "ext_hold" {
				policy.Wait = time.Second // a call that is held has no end to wait for
			}
			if _, err := w.ask(ctx, policy, req); err != nil {
				return err
			}
			if err := w.decide(ctx, policy, req); err != nil {
				return err
			}
		}
		return nil
	}
}
