package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

// Check is one thing that [SelfTest] proves.
type Check struct {
	Name   string   `json:"check"`
	Cases  int      `json:"cases"`
	OK     bool     `json:"ok"`
	Faults []string `json:"faults"` // empty if OK
}

// judges are what the probe trusts when it judges others.
type judges struct {
	classify    func(client.Reading) client.Verdict
	reconcile   func(ledger, intents []string) idem.Report
	differences func(declared, measured Numbers) []string
}

// SelfTest judges the probe's own judgement on cases whose answers are known, and
// opens no port and no file: that every reading means what it must, that a ledger
// with a planted defect is found out and a clean one is not, that every wrong
// policy is as wrong as it is declared, and that no number can be off by one
// without being seen.
func SelfTest(ctx context.Context) []Check {
	return selfTest(ctx, judges{classify: client.Classify, reconcile: idem.Reconcile, differences: differences})
}

func selfTest(ctx context.Context, j judges) []Check {
	var checks []Check
	check := func(name string, f func(count func()) error) {
		n := 0
		err := f(func() { n++ })
		c := Check{Name: name, Cases: n, OK: err == nil, Faults: []string{}}
		if err != nil {
			c.Faults = strings.Split(err.Error(), "\n") // of joined errors, a line each
		}
		checks = append(checks, c)
	}
	check("classify: what was read, and what to do", j.checkClassify)
	check("reconcile: planted defects", j.checkReconcile)
	check("declared: the numbers add up, and only wrong policies lose or double", j.checkDeclared)
	check("policies: each is as wrong as declared", func(count func()) error { return j.checkPolicies(ctx, count) })
	check("differences: no number is off by one unseen", j.checkDifferences)
	check("fingerprint: spellings of one intent, and others", checkSpellings)
	return checks
}

// checkClassify goes through what can be read of one request.
func (j judges) checkClassify(count func()) error {
	own := func(status int, code idem.Code, effect idem.Doubt) client.Reading {
		return client.Reading{Status: status, Code: code, Effect: effect}
	}
	var faults []error
	for _, c := range []struct {
		name    string
		reading client.Reading
		effect  idem.Doubt
		action  client.Action
	}{
		{"no connection", client.Reading{NotSent: true}, idem.DoubtNone, client.ActionAgain},
		{"no answer", client.Reading{}, idem.DoubtUnknown, client.ActionAsk},
		{"200 and done", client.Reading{Status: 200, Call: idem.StatusSucceeded}, idem.DoubtCommitted, client.ActionDone},
		{"200 and failed", client.Reading{Status: 200, Call: idem.StatusFailed}, idem.DoubtNone, client.ActionDone},
		{"200 and half a body", client.Reading{Status: 200, Broken: true}, idem.DoubtUnknown, client.ActionAsk},
		{"202", client.Reading{Status: 202, Call: idem.StatusPending}, idem.DoubtUnknown, client.ActionPoll},
		{"202 and half a body", client.Reading{Status: 202, Broken: true}, idem.DoubtUnknown, client.ActionAsk},
		{"400", own(400, idem.CodeBadRequest, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"401", own(401, idem.CodeUnauthorized, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"403", own(403, idem.CodeForbidden, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"404", own(404, idem.CodeNotFound, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"409 and another request", own(409, idem.CodeConflict, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"409 and held", own(409, idem.CodeOutcomeUnknown, idem.DoubtUnknown), idem.DoubtUnknown, client.ActionStop},
		{"410", own(410, idem.CodeKeyExpired, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"413", own(413, idem.CodePayloadTooLarge, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"415", own(415, idem.CodeUnsupportedMediaType, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"422", own(422, idem.CodeInvalidArguments, idem.DoubtNone), idem.DoubtNone, client.ActionStop},
		{"503 of idemd", own(503, idem.CodeUnavailable, idem.DoubtNone), idem.DoubtNone, client.ActionAgain},
		{"507 of idemd", own(507, idem.CodeInsufficientStorage, idem.DoubtNone), idem.DoubtNone, client.ActionAgain},
		{"503 of another", client.Reading{Status: 503}, idem.DoubtUnknown, client.ActionAgain},
		{"429 of another", client.Reading{Status: 429}, idem.DoubtUnknown, client.ActionAgain},
		{"500", own(500, idem.CodeInternal, idem.DoubtUnknown), idem.DoubtUnknown, client.ActionAgain},
		{"502 of another", client.Reading{Status: 502}, idem.DoubtUnknown, client.ActionAgain},
	} {
		count()
		if v := j.classify(c.reading); v.Effect != c.effect || v.Action != c.action {
			faults = append(faults, fmt.Errorf("%s: effect %s, %s; want effect %s, %s", c.name, v.Effect, v.Action, c.effect, c.action))
		}
	}
	return errors.Join(faults...)
}

// checkReconcile plants a defect in a ledger and counts it.
func (j judges) checkReconcile(count func()) error {
	var faults []error
	for _, c := range []struct {
		name            string
		ledger, intents []string
		want            idem.Report // without the ids
		clean           bool
	}{
		{"nothing", nil, nil, idem.Report{}, true},
		{"clean", []string{"b", "a"}, []string{"a", "b"}, idem.Report{Committed: 2, Distinct: 2}, true},
		{"one doubled", []string{"a", "b", "a"}, []string{"a", "b"}, idem.Report{Committed: 3, Distinct: 2, Duplicates: 1}, false},
		{"one three times", []string{"a", "a", "a"}, []string{"a"}, idem.Report{Committed: 3, Distinct: 1, Duplicates: 2}, false},
		{"one lost", []string{"a"}, []string{"a", "b"}, idem.Report{Committed: 1, Distinct: 1, Lost: 1}, false},
		{"all lost", nil, []string{"a", "b"}, idem.Report{Lost: 2}, false},
		{"one doubled hides one lost", []string{"a", "a"}, []string{"a", "b"}, idem.Report{Committed: 2, Distinct: 1, Duplicates: 1, Lost: 1}, false},
		{"one of nobody", []string{"a", "x"}, []string{"a"}, idem.Report{Committed: 2, Distinct: 1, Unexpected: 1}, false},
	} {
		count()
		got := j.reconcile(c.ledger, c.intents)
		clean := got.Clean()
		got.DuplicateIDs, got.LostIDs, got.UnexpectedIDs = nil, nil, nil
		if got.Committed != c.want.Committed || got.Distinct != c.want.Distinct || got.Duplicates != c.want.Duplicates ||
			got.Lost != c.want.Lost || got.Unexpected != c.want.Unexpected || clean != c.clean {
			faults = append(faults, fmt.Errorf("%s: got %+v, clean %t; want %+v, clean %t", c.name, got, clean, c.want, c.clean))
		}
	}
	return errors.Join(faults...)
}

// checkDeclared looks at the declarations alone.
func (j judges) checkDeclared(count func()) error {
	var faults []error
	fault := func(s Scenario, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+format, append([]any{s.Name}, args...)...))
	}
	wrong := make(map[sinkRule]bool)
	for _, s := range Scenarios() {
		if s.On == OnTarget {
			continue // how many requests it takes is the target's affair
		}
		count()
		n := s.Declared
		if n.Committed != n.Unique+n.Duplicates {
			fault(s, "committed is %d, uniq and dup are %d and %d", n.Committed, n.Unique, n.Duplicates)
		}
		if n.Requests < n.Committed {
			fault(s, "%d effects of %d requests", n.Committed, n.Requests)
		}
		bad := n.Duplicates > 0 || n.Lost > 0
		if s.On == OnIdemd && bad {
			fault(s, "idemd is declared to lose or to double")
		}
		wrong[sinkRule(s.Policy)] = wrong[sinkRule(s.Policy)] || bad
	}
	for _, r := range []sinkRule{naive, keyRacy, keyTTL, contentHash} {
		if count(); !wrong[r] {
			faults = append(faults, fmt.Errorf("the policy %s is never declared to lose or to double", r))
		}
	}
	return errors.Join(faults...)
}

// checkPolicies plays every sink's scenario in memory: the same rules, no wire.
func (j judges) checkPolicies(ctx context.Context, count func()) error {
	var faults []error
	for _, s := range sinkScenarios() {
		count()
		requests, ledger, intents, err := s.sink.inMemory(ctx)
		if err != nil {
			return err
		}
		n := numbers(requests, j.reconcile(ledger, intents))
		for _, d := range j.differences(s.Declared, n) {
			faults = append(faults, fmt.Errorf("%s: %s", s.Name, d))
		}
		if n != s.Declared && len(j.differences(s.Declared, n)) == 0 {
			faults = append(faults, fmt.Errorf("%s: %+v is not %+v, and nobody says so", s.Name, n, s.Declared))
		}
	}
	return errors.Join(faults...)
}

// inMemory plays without sockets, disk and clock: a request is a call of the
// book's, a lost answer is one that the caller does not look at.
func (p *sinkPlay) inMemory(ctx context.Context) (requests int, ledger, intents []string, err error) {
	var mu sync.Mutex
	var now time.Duration
	open := func() *book {
		b := newBook(p.rule, func(x payment) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			ledger = append(ledger, x.Intent)
			return "", nil
		})
		b.now = func() time.Duration { return now }
		if p.racers > 0 {
			b.meet = (&crowd{size: p.racers}).meet
		}
		return b
	}
	b, f := open(), &faults{refuse: p.refuse, drop: p.drop}
	for _, o := range p.orders() {
		intents = append(intents, o.Intent)
		if p.racers > 0 {
			errs := make([]error, p.racers)
			var racers sync.WaitGroup
			for i := range p.racers {
				racers.Go(func() { _, _, errs[i] = b.pay(ctx, o, o.Intent) })
			}
			racers.Wait()
			requests += p.racers
			if err := errors.Join(errs...); err != nil {
				return 0, nil, nil, err
			}
			continue
		}
		for try := range p.tries {
			if try > 0 {
				now += max(p.backoff, shortBackoff)
				if p.restart {
					b = open()
				}
			}
			requests++
			refuse, drop := f.next(o.Intent)
			if refuse {
				continue
			}
			if _, _, err := b.pay(ctx, o, p.keys.of(o.Intent, try+1)); err != nil {
				return 0, nil, nil, err
			}
			if !drop {
				break
			}
		}
	}
	return requests, ledger, intents, nil
}

// checkDifferences moves each number of each declaration by one.
func (j judges) checkDifferences(count func()) error {
	var faults []error
	for _, s := range Scenarios() {
		if len(j.differences(s.Declared, s.Declared)) != 0 {
			faults = append(faults, fmt.Errorf("%s differs from itself", s.Name))
		}
		for _, by := range []int{-1, 1} {
			for field, number := range []func(*Numbers) *int{
				func(n *Numbers) *int { return &n.Requests },
				func(n *Numbers) *int { return &n.Committed },
				func(n *Numbers) *int { return &n.Unique },
				func(n *Numbers) *int { return &n.Duplicates },
				func(n *Numbers) *int { return &n.Lost },
			} {
				count()
				off := s.Declared
				*number(&off) += by
				if len(j.differences(s.Declared, off)) != 1 {
					faults = append(faults, fmt.Errorf("%s: number %d off by %d is not one difference", s.Name, field+1, by))
				}
			}
		}
	}
	return errors.Join(faults...)
}

// checkSpellings compares what is one intent and what is not.
func checkSpellings(count func()) error {
	first, err := idem.FingerprintOf("charge", []byte(spellings[0]))
	if err != nil {
		return err
	}
	var faults []error
	for _, c := range append(spellings[:len(spellings):len(spellings)], otherSpelling) {
		count()
		got, err := idem.FingerprintOf("charge", []byte(c))
		if err != nil {
			return err
		}
		if same := got == first; same == (c == otherSpelling) {
			faults = append(faults, fmt.Errorf("%s: taken for the same: %t", c, same))
		}
	}
	return errors.Join(faults...)
}
