package probe

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/idemd/idemd/client"
)

// targetPlay is a scenario done to a target. Every request goes through a proxy,
// so that those on the wire are counted.
type targetPlay struct {
	hit     Fault // the first request of each intent; none where it has no mode
	intents int   // 0: as many as the target was given
	racers  int
	other   bool // the second try of an intent asks for something else
	once    bool // never tried again
}

// targetTries is how often a caller asks a target for an intent at most.
const targetTries = 3

// targetBackoff is between the tries.
const targetBackoff = 200 * time.Millisecond

// targetScenarios do to a target what happens to a client.
func targetScenarios() []Scenario {
	declare := func(name, shows string, p targetPlay) Scenario {
		return Scenario{Name: name, Policy: "target", Key: string(stableKey), Shows: shows, On: OnTarget, run: p.run(name)}
	}
	return []Scenario{
		declare("target_lost_answer", "the answer is lost, the client asks again", targetPlay{hit: Fault{Mode: DropResponse}}),
		declare("target_slow_answer", "the client gives up and asks again", targetPlay{hit: Fault{Mode: DelayResponse}}),
		declare("target_duplicate_request", "the network sends each request twice", targetPlay{hit: Fault{Mode: DuplicateRequest}}),
		declare("target_race_2", "two at once with one key", targetPlay{racers: 2, once: true}),
		declare("target_race_20", "20 at once with one key", targetPlay{racers: 20, intents: 1, once: true}),
		declare("target_two_intents", "equal content under two keys is two", targetPlay{intents: 2}),
		declare("target_other_args", "one key, then other args under it: done once", targetPlay{intents: 1, other: true}),
	}
}

func (p targetPlay) run(name string) func(context.Context, *env, *Result) ([]string, error) {
	return func(ctx context.Context, e *env, r *Result) ([]string, error) {
		t := e.target
		n := p.intents
		if n == 0 {
			n = t.Intents
		}
		proxy, err := NewProxy(p.proxy(t))
		if err != nil {
			return nil, precondition("%w", err)
		}
		if err := proxy.Start(); err != nil {
			return nil, precondition("%w", err)
		}
		defer proxy.Close()
		wire := client.NewTransport()
		defer wire.CloseIdleConnections()
		who := &caller{
			url: proxy.URL() + t.path, keyHeader: t.KeyHeader, keys: stableKey, tries: targetTries, backoff: targetBackoff,
			timeout: t.Timeout, send: wire, header: t.Header,
		}
		if p.once {
			who.tries = 1
		}
		for i := range n {
			r.Intents = append(r.Intents, t.intent(name, i+1))
		}
		switch {
		case p.racers > 0:
			for _, id := range r.Intents {
				tries, err := race(ctx, who, p.racers, id, id, t.body(id, 100))
				r.Tries = append(r.Tries, tries...)
				if err != nil {
					return nil, err
				}
			}
		case p.other:
			if err := otherArgs(ctx, who, t, r); err != nil {
				return nil, err
			}
		default:
			tries, err := together(ctx, who, r.Intents, func(id string) []byte { return t.body(id, 100) })
			r.Tries = append(r.Tries, tries...)
			if err != nil {
				return nil, err
			}
		}
		s := proxy.Summary()
		r.requests = int(s.UpstreamRequests)
		for mode, n := range s.Faults {
			r.note("the proxy did %s to %d of %d requests; %d reached the target", mode, n, s.Requests, s.UpstreamRequests)
		}
		// How many requests it takes is the target's affair.
		r.Declared = Numbers{Requests: r.requests, Committed: n, Unique: n}
		return nil, nil
	}
}

// proxy is what stands before a target.
func (p targetPlay) proxy(t *target) ProxyOptions {
	// The client must be the first to give up, long before the proxy does, or what
	// is held back comes.
	o := ProxyOptions{Upstream: t.base, KeyHeader: t.KeyHeader, Timeout: t.Timeout + time.Minute}
	if hit := p.hit; hit.Mode != "" {
		if hit.Mode == DelayResponse {
			hit.Delay = t.Timeout + time.Minute
		}
		o.Rules = []Rule{{Faults: []Fault{hit}, FirstPerKey: 1}}
	}
	return o
}

// otherArgs asks for an intent, and then for something else under its key. What
// the target answers is noted; that it did it once is what is judged.
func otherArgs(ctx context.Context, who *caller, t *target, r *Result) error {
	id := r.Intents[0]
	tries, err := who.ask(ctx, id, id, t.body(id, 100))
	r.Tries = append(r.Tries, tries...)
	if err != nil {
		return err
	}
	if string(t.body(id, 100)) == string(t.body(id, 101)) {
		r.note("the body has no %s, so there are no other args to send", AmountMark)
		return nil
	}
	who.tries = 1
	again, err := who.ask(ctx, id, id, t.body(id, 101))
	if err != nil {
		return err
	}
	for i := range again {
		again[i].Number += len(tries)
	}
	r.Tries = append(r.Tries, again...)
	switch last := r.last(); {
	case last.Status >= 400 && last.Status < 500:
		r.note("other args under the same key were refused with %d", last.Status)
	case last.Status >= http.StatusOK && last.Status < 300:
		r.note("other args under the same key were answered with %d, as if they were the first ones: a client that uses a key twice by mistake is not told", last.Status)
	default:
		r.note("other args under the same key were answered with %s", fmt.Sprint(last.Status, " ", last.Answer))
	}
	return nil
}
