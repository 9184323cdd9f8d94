package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/idemd/idemd/client"
)

// Scenario is something that is done to a service, and what must come of it.
type Scenario struct {
	Name     string  `json:"scenario"`
	On       Subject `json:"on"`     // what it is done to
	Policy   string  `json:"policy"` // of the service
	Key      string  `json:"key"`    // how the client makes its keys
	Shows    string  `json:"shows"`
	Declared Numbers `json:"declared"` // of a target's: counted when it is run

	run  func(ctx context.Context, e *env, r *Result) (entries []string, err error)
	sink *sinkPlay // for OnSink
}

// Subject is what a scenario is done to.
type Subject string

// The subjects.
const (
	OnSink   Subject = "sink"   // a small payment service of the probe's own
	OnIdemd  Subject = "idemd"  // the real program, as a process of its own
	OnTarget Subject = "target" // somebody's service
)

// env is what a scenario finds around it.
type env struct {
	dir    string // its own, empty
	keep   bool   // what is in it
	binary string // idemd; for OnIdemd
	target *target
}

// patience bounds a scenario. Against a target, whoever asks for one intent after the
// other may use up all tries of each.
func (e *env) patience() time.Duration {
	if e.target == nil {
		return scenarioTime
	}
	t := &e.target.Target
	return scenarioTime + time.Duration(t.Intents)*targetTries*(t.Timeout+targetBackoff)
}

// sinkPlay is a scenario done to a sink.
type sinkPlay struct {
	rule    sinkRule
	keys    keying
	intents int           // each with a key of its own
	racers  int           // requests at the same moment for one intent; 0: one after the other
	tries   int           // of a caller, at most
	backoff time.Duration // between tries
	refuse  int           // first requests of an intent that get 503
	drop    int           // first requests of an intent whose answer is lost
	restart bool          // between the tries
	alike   bool          // the intents are the same payment to the same payee
}

// longBackoff outlives the sink's window by far: the window is measured from the
// payment on, and the pause begins after it, so no scheduling can turn the two
// round.
const longBackoff = 350 * time.Millisecond

// shortBackoff is between tries where nothing depends on it.
const shortBackoff = time.Millisecond

// sinkScenarios are what the probe is held to: some of them lose and some double,
// and a probe that did not see it would prove nothing of the others.
func sinkScenarios() []Scenario {
	declare := func(name, shows string, n Numbers, p sinkPlay) Scenario {
		return Scenario{
			Name: name, Policy: string(p.rule), Key: string(p.keys), Shows: shows, Declared: n,
			On: OnSink, run: p.run, sink: &p,
		}
	}
	return []Scenario{
		declare("pre_fail_naive", "503 before the commit: retry is safe", Numbers{6, 3, 3, 0, 0},
			sinkPlay{rule: naive, keys: noKey, intents: 3, tries: 2, refuse: 1}),
		declare("post_drop_naive", "the same retry after a lost answer charges twice", Numbers{6, 6, 3, 3, 0},
			sinkPlay{rule: naive, keys: noKey, intents: 3, tries: 2, drop: 1}),
		declare("post_drop_key_atomic", "intent key + atomic dedupe", Numbers{6, 3, 3, 0, 0},
			sinkPlay{rule: keyAtomic, keys: stableKey, intents: 3, tries: 2, drop: 1}),
		declare("post_drop_key_per_attempt", "a new key per attempt is no key", Numbers{6, 6, 3, 3, 0},
			sinkPlay{rule: keyAtomic, keys: keyPerAttempt, intents: 3, tries: 2, drop: 1}),
		declare("content_hash_two_orders", "content as identity swallows an order", Numbers{2, 1, 1, 0, 1},
			sinkPlay{rule: contentHash, keys: stableKey, intents: 2, tries: 2, alike: true}),
		declare("race_racy", "check-then-act: 10 of 10 rounds double", Numbers{20, 20, 10, 10, 0},
			sinkPlay{rule: keyRacy, keys: stableKey, intents: 10, racers: 2, tries: 1}),
		declare("race_atomic", "check and write in one critical section", Numbers{20, 10, 10, 0, 0},
			sinkPlay{rule: keyAtomic, keys: stableKey, intents: 10, racers: 2, tries: 1}),
		declare("at_most_once", "not retrying loses everything", Numbers{3, 0, 0, 0, 3},
			sinkPlay{rule: naive, keys: stableKey, intents: 3, tries: 1, refuse: 1}),
		declare("ttl_shorter_than_backoff", "window 0.1 s < back-off 0.35 s", Numbers{6, 6, 3, 3, 0},
			sinkPlay{rule: keyTTL, keys: stableKey, intents: 3, tries: 2, drop: 1, backoff: longBackoff}),
		declare("restart_store_lost", "keys in memory die with the process", Numbers{2, 2, 1, 1, 0},
			sinkPlay{rule: keyAtomic, keys: stableKey, intents: 1, tries: 2, drop: 1, restart: true}),
	}
}

// orders are what a play asks for.
func (p *sinkPlay) orders() []order {
	var all []order
	for i := range p.intents {
		o := order{Intent: fmt.Sprintf("order-%d", i+1), To: "shop", Amount: 100 * (i + 1)}
		if p.alike {
			o.Amount = 100
		}
		all = append(all, o)
	}
	return all
}

// run does a play to a fresh sink and reads the ledger from the disk.
func (p *sinkPlay) run(ctx context.Context, e *env, r *Result) (entries []string, err error) {
	ledger := filepath.Join(e.dir, "ledger.ndjson")
	f := &faults{refuse: p.refuse, drop: p.drop}
	var c *crowd
	if p.racers > 0 {
		c = &crowd{size: p.racers}
	}
	s, err := openSink(p.rule, ledger, f, c)
	if err != nil {
		return nil, precondition("%w", err)
	}
	defer func() {
		if err == nil {
			err = s.close()
		} else {
			_ = s.close() // the first error is the one to tell
		}
	}()

	wire := client.NewTransport()
	defer wire.CloseIdleConnections()
	who := &caller{
		url: s.url, keyHeader: keyHeader, keys: p.keys, tries: p.tries, backoff: max(p.backoff, shortBackoff),
		timeout: callerTimeout, send: wire,
	}
	if p.restart {
		who.between = func(context.Context) error {
			if err := s.close(); err != nil {
				return err
			}
			next, err := openSink(p.rule, ledger, f, c)
			if err != nil {
				return err
			}
			s, who.url = next, next.url
			r.note("the sink was ended and started again over the same ledger")
			return nil
		}
	}
	for _, o := range p.orders() {
		r.Intents = append(r.Intents, o.Intent)
		body, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		var tries []Try
		if p.racers > 0 {
			tries, err = race(ctx, who, p.racers, o.Intent, "key-"+o.Intent, body)
		} else {
			tries, err = who.ask(ctx, o.Intent, "key-"+o.Intent, body)
		}
		r.Tries = append(r.Tries, tries...)
		if err != nil {
			return nil, err
		}
	}
	lines, err := readLines(ledger)
	if err != nil {
		return nil, err
	}
	r.Ledger = append(r.Ledger, lines...)
	return entriesOf(lines, "intent")
}

// callerTimeout is how long a try takes at most where nothing is late on purpose.
const callerTimeout = 20 * time.Second

// race sends n requests for one intent at the same moment. Which of them is which
// nobody can say, so their tries are put into one order.
func race(ctx context.Context, who *caller, n int, intent, key string, body []byte) ([]Try, error) {
	all := make([][]Try, n)
	errs := make([]error, n)
	start := make(chan struct{})
	var racers sync.WaitGroup
	for i := range n {
		racers.Go(func() {
			<-start
			all[i], errs[i] = who.ask(ctx, intent, key, body)
		})
	}
	close(start)
	racers.Wait()
	var tries []Try
	for i := range n {
		if errs[i] != nil {
			return nil, errs[i]
		}
		tries = append(tries, all[i]...)
	}
	return number(tries), nil
}

// together asks for several intents at the same time. Their tries come in the
// order of the intents.
func together(ctx context.Context, who *caller, intents []string, body func(intent string) []byte) (tries []Try, err error) {
	all := make([][]Try, len(intents))
	errs := make([]error, len(intents))
	var asking sync.WaitGroup
	for i, id := range intents {
		asking.Go(func() { all[i], errs[i] = who.ask(ctx, id, id, body(id)) })
	}
	asking.Wait()
	return slices.Concat(all...), errors.Join(errs...)
}

// newDir makes a directory of a scenario.
func newDir(parent, name string) (string, error) {
	dir := filepath.Join(parent, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", precondition("%w", err)
	}
	return dir, nil
}
