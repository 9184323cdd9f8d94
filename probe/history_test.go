package probe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// past is a history that the law itself made: calls moved by the transitions of
// package idem, and what clients were told of them.
type past struct {
	random  *rand.Rand
	now     time.Time
	calls   []*pastCall
	clients []*pastClient

	log    []Entry
	ledger []Effect
	audit  []Trail
}

type pastCall struct {
	key    idem.Key
	tool   *idem.Tool
	cur    *idem.Call
	events []idem.Event
}

type pastClient struct {
	name  string
	free  time.Time // when it had its last answer
	tries int
	asked map[pastIntent]bool
}

// pastIntent is what a client wants of a key. Those of another fingerprint are
// another intent, with the wrong key.
type pastIntent struct {
	call *pastCall
	fp   idem.Fingerprint
}

func (i pastIntent) String() string { return fmt.Sprintf("%s/%d", i.call.key.Name, i.fp[0]) }

const pastWindow = time.Hour

// newPast makes a history of some keys and clients.
func newPast(random *rand.Rand, keys, clients, steps int) *past {
	p := &past{random: random, now: time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)}
	tools := []*idem.Tool{
		{Name: "charge", Effects: idem.EffectsLocal, Rerun: idem.RerunYes},
		{Name: "mail", Effects: idem.EffectsExternal, Rerun: idem.RerunYes},
		{Name: "wire", Effects: idem.EffectsExternal, Rerun: idem.RerunHold},
		{Name: "sleep", Effects: idem.EffectsNone, Rerun: idem.RerunYes},
	}
	for i := range keys {
		p.calls = append(p.calls, &pastCall{
			key: idem.Key{Namespace: idem.DefaultNamespace, Name: fmt.Sprintf("order-%d", i)}, tool: tools[i%len(tools)],
		})
	}
	for i := range clients {
		p.clients = append(p.clients, &pastClient{name: fmt.Sprintf("c%d", i), free: p.now, asked: make(map[pastIntent]bool)})
	}
	for range steps {
		p.now = p.now.Add(time.Duration(1+random.IntN(2000)) * time.Microsecond)
		c := p.calls[random.IntN(len(p.calls))]
		if random.IntN(3) > 0 {
			p.ask(p.clients[random.IntN(len(p.clients))], c)
		} else {
			p.work(c)
		}
	}
	p.close()
	return p
}

func (c *pastCall) apply(p *past, tr idem.Transition) error {
	ch, err := tr(c.cur)
	if err != nil || !ch.Write {
		return err
	}
	c.cur = ch.After
	for _, e := range ch.Events {
		e.Seq = len(c.events)
		c.events = append(c.events, e)
	}
	if e := ch.Effect; e != nil {
		p.ledger = append(p.ledger, Effect{EffectID: e.ID, CallID: e.CallID.String(), Key: e.Key.Name, Tool: e.Tool, CreatedAt: e.CreatedAt})
	}
	return nil
}

// ask has a client do something about a key, and log what it was told.
func (p *past) ask(c *pastClient, about *pastCall) {
	if !c.free.Before(p.now) {
		return // it waits for an answer
	}
	c.tries++
	fp := idem.Fingerprint{1}
	if p.random.IntN(12) == 0 {
		fp = idem.Fingerprint{2} // another request with the same key
	}
	intent := pastIntent{about, fp}
	e := Entry{
		Client: c.name, Intent: intent.String(), Key: about.key.Name, Tool: about.tool.Name, Try: c.tries, Sent: true,
		Began: c.free.Add(time.Duration(p.random.Int64N(int64(p.now.Sub(c.free)) + 1))),
	}
	var err error
	switch p.random.IntN(4) {
	case 0:
		e.Kind = EntryFind
	case 1:
		e.Kind = EntryPoll
	default:
		e.Kind = EntryPost
		c.asked[intent] = true
		id := idem.NewCallID(p.now, about.key, [10]byte{byte(p.random.Uint32()), byte(p.random.Uint32())})
		err = about.apply(p, idem.Submit(idem.Request{Key: about.key, Tool: about.tool.Name, Args: []byte("{}"), Fingerprint: fp},
			idem.Admission{ID: id, CreatedAt: p.now, Now: p.now}))
	}
	if e.Kind != EntryPost && about.cur == nil {
		err = idem.ErrNotFound
	}
	c.free = p.now.Add(time.Duration(p.random.IntN(4000)) * time.Microsecond)
	e.At = c.free
	var refused *idem.Error
	switch {
	case p.random.IntN(8) == 0: // the answer is lost
	case errors.As(err, &refused):
		e.Status, e.Code, e.Effect = 409, refused.Code, refused.Effect
		if !refused.CallID.IsZero() {
			e.CallID = refused.CallID.String()
		}
	default:
		e.show(about.cur)
	}
	p.log = append(p.log, e)
	if e.State == idem.StatusFailed && e.Retryable && p.random.IntN(2) == 0 {
		o := Entry{Kind: EntryOutcome, Client: c.name, Intent: e.Intent, Key: e.Key, At: e.At, Effect: idem.DoubtNone}
		o.State, o.CallID, o.Attempt, o.Retryable = e.State, e.CallID, e.Attempt, true
		p.log = append(p.log, o)
	}
}

// show fills in what an answer shows of a call.
func (e *Entry) show(c *idem.Call) {
	e.Status, e.CallID, e.State, e.Attempt, e.Retryable = 202, c.ID.String(), c.Status, c.Attempt, c.Retryable()
	e.UpdatedAt = c.UpdatedAt.Truncate(time.Millisecond)
	if c.Status.Ended() {
		failure := []byte("null")
		if c.Failure != nil {
			failure, _ = json.Marshal(c.Failure)
		}
		e.Status, e.Result, e.Error = 200, Digest(c.Result), Digest(failure)
	}
}

// work moves a call as a server does.
func (p *past) work(c *pastCall) {
	if c.cur == nil {
		return
	}
	terms := idem.Terms{Now: p.now, Window: pastWindow}
	claim := idem.ClaimTerms{Terms: terms, Owner: fmt.Sprintf("b%d/1", p.random.IntN(3)), Lease: time.Minute, MaxCrashes: 4, Tool: c.tool}
	switch c.cur.Status {
	case idem.StatusPending:
		claim.Recovered = p.random.IntN(4) == 0
		if p.random.IntN(6) == 0 {
			claim.Tool = nil
		}
		_ = c.apply(p, idem.Claim(claim))
	case idem.StatusRunning:
		s := idem.Settlement{Terms: terms, Lease: idem.LeaseOf(c.cur)}
		failure := idem.Failure{Code: "tool_failed", Message: fmt.Sprint(p.random.Uint32()), Retryable: p.random.IntN(4) > 0}
		tr := idem.Succeed(s, idem.Result{Output: fmt.Appendf(nil, `{"n":%d}`, p.random.Uint32())})
		switch p.random.IntN(8) {
		case 0, 1, 2:
			tr = idem.Fail(s, failure)
		case 3:
			tr = idem.Lose(s, failure)
		case 4:
			tr = idem.Release(s)
		case 5:
			claim.From = s.Lease
			tr = idem.Claim(claim)
			_ = c.apply(p, tr)
			tr = idem.Succeed(s, idem.Result{}) // too late
		}
		_ = c.apply(p, tr)
	case idem.StatusHeld:
		r := idem.Resolution{Terms: terms, By: "ada", Outcome: []idem.Outcome{idem.OutcomeSucceeded, idem.OutcomeFailed, idem.OutcomeRetry}[p.random.IntN(3)]}
		r.Failure = idem.Failure{Code: "no", Retryable: p.random.IntN(2) == 0}
		_ = c.apply(p, idem.Resolve(r))
	}
}

// close has clients tell what came of their intents, and reads the trails. Every
// fifth client died before.
func (p *past) close() {
	for i, client := range p.clients {
		for n := range 2 * len(p.calls) {
			intent := pastIntent{p.calls[n/2], idem.Fingerprint{byte(1 + n%2)}}
			c := intent.call
			if !client.asked[intent] || c.cur == nil || i%5 == 4 {
				continue
			}
			o := Entry{
				Kind: EntryOutcome, Client: client.name, Intent: intent.String(), Key: c.key.Name, Tool: c.tool.Name,
				At: client.free, CallID: c.cur.ID.String(),
			}
			switch {
			case intent.fp != c.cur.Fingerprint:
				o.Code, o.Effect = idem.CodeConflict, idem.DoubtNone
			case c.cur.Status.Ended():
				o.show(c.cur)
				o.Effect = idem.DoubtNone
				if c.cur.Status == idem.StatusSucceeded {
					o.Effect = idem.DoubtCommitted
				}
			default:
				o.Code, o.Effect = idem.CodeOutcomeUnknown, idem.DoubtUnknown
			}
			p.log = append(p.log, o)
		}
	}
	for i, c := range p.calls {
		if c.cur == nil {
			continue
		}
		if i%7 == 0 {
			_ = c.apply(p, idem.Expire(p.now.Add(2*pastWindow)))
		}
		t := Trail{CallID: c.cur.ID.String(), Key: c.key.Name, Tool: c.tool.Name, Effects: c.tool.Effects}
		for _, e := range c.events {
			doc := TrailEvent{Seq: e.Seq, At: e.At, Name: e.Name, Attempt: e.Attempt, Owner: e.Owner}
			if e.Detail != nil {
				doc.Detail = new(idem.Detail)
				if err := json.Unmarshal(e.Detail, doc.Detail); err != nil {
					panic(err)
				}
			}
			t.Events = append(t.Events, doc)
		}
		p.audit = append(p.audit, t)
	}
}

func ndjsonOf[T any](docs []T) io.Reader {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for i := range docs {
		if err := enc.Encode(docs[i]); err != nil {
			panic(err)
		}
	}
	return &b
}

func (p *past) check(t *testing.T) Findings {
	t.Helper()
	h := NewHistory(HistoryOptions{})
	if err := errors.Join(h.ReadLog("log", ndjsonOf(p.log)), h.ReadLedger("ledger", ndjsonOf(p.ledger), true), h.ReadAudit("audit", ndjsonOf(p.audit))); err != nil {
		t.Fatal(err)
	}
	return h.Check()
}

// dice prints its seed, so that a failure can be had again.
func dice(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func aPast(random *rand.Rand) *past { return newPast(random, 12, 6, 1500) }

// A history that the law made breaks no rule.
func TestHistoryClean(t *testing.T) {
	random := dice(t)
	seen := make(map[idem.EventName]bool)
	for range 30 {
		p := aPast(random)
		f := p.check(t)
		if !f.Clean() {
			t.Fatalf("%+v", f)
		}
		if f.Entries != len(p.log) || f.Effects != len(p.ledger) || f.Calls != len(p.audit) || f.Keys != len(p.calls) {
			t.Fatalf("%+v", f)
		}
		for _, trail := range p.audit {
			for _, e := range trail.Events {
				seen[e.Name] = true
			}
		}
	}
	for _, name := range []idem.EventName{
		idem.EventCreated, idem.EventClaimed, idem.EventSucceeded, idem.EventFailed, idem.EventHeld, idem.EventRequeued,
		idem.EventRecovered, idem.EventStaleResult, idem.EventResolved, idem.EventExpired,
	} {
		if !seen[name] {
			t.Errorf("no history has the event %s: this test tests less than it should", name)
		}
	}
}

// any1 picks one of the elements that fit; -1 where none does.
func any1[T any](random *rand.Rand, all []T, fits func(*T) bool) int {
	var found []int
	for i := range all {
		if fits(&all[i]) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return -1
	}
	return found[random.IntN(len(found))]
}

// later picks a try of the same key that began after an entry's answer.
func (p *past) later(e *Entry, fits func(*Entry) bool) int {
	return any1(p.random, p.log, func(l *Entry) bool {
		return l.Kind != EntryOutcome && l.Key == e.Key && l.Began.After(e.At) && fits(l)
	})
}

func shows(e *Entry) bool { return e.Kind != EntryOutcome && e.State != "" }

func shownSucceeded(e *Entry) bool { return shows(e) && e.State == idem.StatusSucceeded }

func ref(source string, i int) Ref { return Ref{Source: source, Line: i + 1} }

// Every planted fault is found, by the rule that it breaks, with its line.
func TestHistoryFaults(t *testing.T) {
	const stranger = "c_00000000000000000000000000000000"
	succeeded := func(t *Trail) bool {
		last := t.Events[len(t.Events)-1]
		return last.Name == idem.EventSucceeded && t.Effects != idem.EffectsNone
	}
	for _, tc := range []struct {
		name string
		rule HistoryRule
		// plant reports where it planted the fault, unless there is nothing to
		// plant it in.
		plant func(p *past) (key string, at Ref, ok bool)
	}{
		{"a second effect", RuleOneEffect, func(p *past) (string, Ref, bool) {
			if len(p.ledger) == 0 {
				return "", Ref{}, false
			}
			e := p.ledger[p.random.IntN(len(p.ledger))]
			p.ledger = append(p.ledger, e)
			return e.Key, ref("ledger", len(p.ledger)-1), true
		}},
		{"a second effect of the call, under another key", RuleOneEffect, func(p *past) (string, Ref, bool) {
			if len(p.ledger) == 0 {
				return "", Ref{}, false
			}
			e := p.ledger[p.random.IntN(len(p.ledger))]
			e.Key = "another"
			p.ledger = append(p.ledger, e)
			return e.Key, ref("ledger", len(p.ledger)-1), true
		}},
		{"an effect with another id", RuleEffectID, func(p *past) (string, Ref, bool) {
			if len(p.ledger) == 0 {
				return "", Ref{}, false
			}
			i := p.random.IntN(len(p.ledger))
			p.ledger[i].EffectID = "eff_00"
			return p.ledger[i].Key, ref("ledger", i), true
		}},
		{"an effect that is lost", RuleLostEffect, func(p *past) (string, Ref, bool) {
			if len(p.ledger) == 0 {
				return "", Ref{}, false
			}
			i := p.random.IntN(len(p.ledger))
			e := p.ledger[i]
			p.ledger = slices.Delete(p.ledger, i, i+1)
			at := slices.IndexFunc(p.audit, func(t Trail) bool { return t.Key == e.Key })
			return e.Key, ref("audit", at), true
		}},
		{"an effect of a call that did not succeed", RuleNoEffect, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.audit, func(t *Trail) bool { return t.Events[len(t.Events)-1].Name == idem.EventFailed })
			if i < 0 {
				return "", Ref{}, false
			}
			id, _ := idem.ParseCallID(p.audit[i].CallID)
			p.ledger = append(p.ledger, Effect{EffectID: idem.EffectID(id), CallID: p.audit[i].CallID, Key: p.audit[i].Key})
			return p.audit[i].Key, ref("ledger", len(p.ledger)-1), true
		}},
		{"an effect of no call", RuleAudit, func(p *past) (string, Ref, bool) {
			id, _ := idem.ParseCallID(stranger)
			p.ledger = append(p.ledger, Effect{EffectID: idem.EffectID(id), CallID: stranger, Key: "nobody"})
			return "nobody", ref("ledger", len(p.ledger)-1), true
		}},
		{"everybody was told that nothing happened", RuleNoEffect, func(p *past) (string, Ref, bool) {
			if len(p.ledger) == 0 {
				return "", Ref{}, false
			}
			key, at := p.ledger[p.random.IntN(len(p.ledger))].Key, -1
			for _, c := range p.clients {
				for _, n := range []int{1, 2} {
					p.log = append(p.log, Entry{
						Kind: EntryOutcome, Client: c.name, Intent: fmt.Sprintf("%s/%d", key, n), Key: key,
						At: p.now.Add(time.Hour), Code: idem.CodeUnavailable, Effect: idem.DoubtNone,
					})
					at = len(p.log) - 1
				}
			}
			return key, ref("log", at), true
		}},
		{"an accepted call that is lost", RuleLostCall, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.audit, func(t *Trail) bool {
				return slices.ContainsFunc(p.log, func(e Entry) bool { return e.CallID == t.CallID })
			})
			if i < 0 {
				return "", Ref{}, false
			}
			gone := p.audit[i]
			p.audit = slices.Delete(p.audit, i, i+1)
			at := slices.IndexFunc(p.log, func(e Entry) bool { return e.CallID == gone.CallID })
			return gone.Key, ref("log", at), true
		}},
		{"an acceptance of which only the status came", RuleLostCall, func(p *past) (string, Ref, bool) {
			p.log = append(p.log, Entry{Kind: EntryPost, Client: "x", Key: "new", Began: p.now, At: p.now, Sent: true, Status: 202})
			return "new", ref("log", len(p.log)-1), true
		}},
		{"a call that was not found after it was shown", RuleLostCall, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, shows)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], func(e *Entry) bool { return shows(e) && e.Kind != EntryPost })
			if j < 0 {
				return "", Ref{}, false
			}
			e := &p.log[j]
			p.log[j] = Entry{Kind: e.Kind, Client: e.Client, Key: e.Key, Began: e.Began, At: e.At, Sent: true, Status: 404, Code: idem.CodeNotFound, Effect: idem.DoubtNone}
			return e.Key, ref("log", j), true
		}},
		{"a second call of a key", RuleOneCall, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, shows)
			if i < 0 || !slices.ContainsFunc(p.log[:i], func(e Entry) bool { return e.Key == p.log[i].Key && e.CallID != "" }) {
				return "", Ref{}, false
			}
			p.log[i].CallID = stranger
			return p.log[i].Key, ref("log", i), true
		}},
		{"a call of two keys", RuleOneCall, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, func(e *Entry) bool { return shows(e) && e.State == idem.StatusPending })
			if i < 0 {
				return "", Ref{}, false
			}
			e := p.log[i]
			e.Key, e.Client = "zzz", "x"
			p.log = append(p.log, e)
			return e.Key, ref("log", len(p.log)-1), true
		}},
		{"told to have succeeded, and there is neither effect nor trail", RuleLostEffect, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, func(e *Entry) bool { return shownSucceeded(e) && e.Tool != "sleep" })
			if i < 0 {
				return "", Ref{}, false
			}
			key, call := p.log[i].Key, p.log[i].CallID
			at := slices.IndexFunc(p.log, func(e Entry) bool { return e.Key == key && e.State == idem.StatusSucceeded })
			p.ledger = slices.DeleteFunc(p.ledger, func(e Effect) bool { return e.CallID == call })
			p.audit = slices.DeleteFunc(p.audit, func(t Trail) bool { return t.CallID == call })
			return key, ref("log", at), true
		}},
		{"a replay with a changed byte of its result", RuleReplay, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, shownSucceeded)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], shownSucceeded)
			if j < 0 {
				return "", Ref{}, false
			}
			p.log[j].Result = Digest([]byte(`{"n":0}`))
			return p.log[j].Key, ref("log", j), true
		}},
		{"a replay with a changed byte of its error", RuleReplay, func(p *past) (string, Ref, bool) {
			retryable := func(e *Entry) bool { return shows(e) && e.State == idem.StatusFailed && e.Retryable }
			i := any1(p.random, p.log, retryable)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], func(e *Entry) bool { return retryable(e) && e.UpdatedAt.Equal(p.log[i].UpdatedAt) })
			if j < 0 {
				return "", Ref{}, false
			}
			p.log[j].Error = Digest([]byte(`{}`))
			return p.log[j].Key, ref("log", j), true
		}},
		{"an attempt that went down", RuleForward, func(p *past) (string, Ref, bool) {
			up := func(e *Entry) bool { return shows(e) && !e.State.Ended() && e.Attempt > 1 }
			i := any1(p.random, p.log, up)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], func(e *Entry) bool { return up(e) && e.Attempt == p.log[i].Attempt && e.Client != p.log[i].Client })
			if j < 0 {
				return "", Ref{}, false
			}
			p.log[j].Attempt--
			return p.log[j].Key, ref("log", j), true
		}},
		{"an attempt that went down for one client whose clock stands still", RuleForward, func(p *past) (string, Ref, bool) {
			up := func(e *Entry) bool { return shows(e) && !e.State.Ended() && e.Attempt > 1 }
			i := any1(p.random, p.log, up)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], func(e *Entry) bool { return up(e) && e.Attempt == p.log[i].Attempt && e.Client == p.log[i].Client })
			if j < 0 {
				return "", Ref{}, false
			}
			p.log[j].Attempt--
			for k := range p.log {
				if p.log[k].Kind != EntryOutcome {
					p.log[k].Began, p.log[k].At = p.now, p.now
				}
			}
			return p.log[j].Key, ref("log", j), true
		}},
		{"running after what comes after it", RuleForward, func(p *past) (string, Ref, bool) {
			held := func(e *Entry) bool { return shows(e) && e.State == idem.StatusHeld }
			i := any1(p.random, p.log, held)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], func(e *Entry) bool { return held(e) && e.Attempt == p.log[i].Attempt })
			if j < 0 {
				return "", Ref{}, false
			}
			p.log[j].State = idem.StatusRunning
			return p.log[j].Key, ref("log", j), true
		}},
		{"an end that is not kept", RuleEnd, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, shownSucceeded)
			if i < 0 {
				return "", Ref{}, false
			}
			j := p.later(&p.log[i], shownSucceeded)
			if j < 0 {
				return "", Ref{}, false
			}
			p.log[j].State, p.log[j].Result, p.log[j].Error = idem.StatusRunning, "", ""
			return p.log[j].Key, ref("log", j), true
		}},
		{"an attempt that was never claimed", RuleTold, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, shows)
			if i < 0 {
				return "", Ref{}, false
			}
			p.log[i].Attempt = 1000
			return p.log[i].Key, ref("log", i), true
		}},
		{"told to have failed, and succeeded", RuleTold, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.log, func(e *Entry) bool { return shows(e) && e.State == idem.StatusFailed && !e.Retryable })
			if i < 0 {
				return "", Ref{}, false
			}
			at := slices.IndexFunc(p.audit, func(t Trail) bool { return t.CallID == p.log[i].CallID })
			events := p.audit[at].Events
			if last := &events[len(events)-1]; last.Name == idem.EventFailed && events[len(events)-2].Name == idem.EventClaimed {
				last.Name, last.Detail = idem.EventSucceeded, nil
				return p.log[i].Key, ref("audit", at), true
			}
			return "", Ref{}, false
		}},
		{"a gap in a trail", RuleAudit, func(p *past) (string, Ref, bool) {
			i := p.random.IntN(len(p.audit))
			events := p.audit[i].Events
			if len(events) < 2 {
				return "", Ref{}, false
			}
			at := 1 + p.random.IntN(len(events)-1)
			if at == len(events)-1 {
				return "", Ref{}, false // what is cut off at the end is no gap
			}
			p.audit[i].Events = slices.Delete(events, at, at+1)
			return p.audit[i].Key, ref("audit", i), true
		}},
		{"a claim that is missing, and no gap", RuleAudit, func(p *past) (string, Ref, bool) {
			i := p.random.IntN(len(p.audit))
			events := p.audit[i].Events
			at := slices.IndexFunc(events, func(e TrailEvent) bool { return e.Name == idem.EventClaimed })
			if at < 0 || at == len(events)-1 {
				return "", Ref{}, false
			}
			p.audit[i].Events = slices.Delete(events, at, at+1)
			for n := range p.audit[i].Events {
				p.audit[i].Events[n].Seq = n
			}
			return p.audit[i].Key, ref("audit", i), true
		}},
		{"a trail that does not begin with the creation", RuleAudit, func(p *past) (string, Ref, bool) {
			i := p.random.IntN(len(p.audit))
			p.audit[i].Events[0].Name = idem.EventRecovered
			return p.audit[i].Key, ref("audit", i), true
		}},
		{"an empty trail", RuleAudit, func(p *past) (string, Ref, bool) {
			i := p.random.IntN(len(p.audit))
			p.audit[i].Events = nil
			return p.audit[i].Key, ref("audit", i), true
		}},
		{"a second end", RuleAudit, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.audit, succeeded)
			if i < 0 {
				return "", Ref{}, false
			}
			events := p.audit[i].Events
			again := events[len(events)-1]
			again.Seq++
			p.audit[i].Events = append(p.audit[i].Events, again)
			return p.audit[i].Key, ref("audit", i), true
		}},
		{"a claim after the end", RuleAudit, func(p *past) (string, Ref, bool) {
			i := any1(p.random, p.audit, succeeded)
			if i < 0 {
				return "", Ref{}, false
			}
			events := p.audit[i].Events
			last := events[len(events)-1]
			p.audit[i].Events = append(p.audit[i].Events, TrailEvent{Seq: last.Seq + 1, At: last.At, Name: idem.EventClaimed, Attempt: last.Attempt + 1})
			return p.audit[i].Key, ref("audit", i), true
		}},
		{"a running call that is claimed and was not found due", RuleAudit, func(p *past) (string, Ref, bool) {
			for i := range p.audit {
				events := p.audit[i].Events
				for n := 1; n < len(events); n++ {
					if events[n].Name == idem.EventRecovered && events[n-1].Name == idem.EventClaimed && n+1 < len(events) && events[n+1].Name == idem.EventClaimed {
						p.audit[i].Events = slices.Delete(events, n, n+1)
						for m := range p.audit[i].Events {
							p.audit[i].Events[m].Seq = m
						}
						return p.audit[i].Key, ref("audit", i), true
					}
				}
			}
			return "", Ref{}, false
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			random := dice(t)
			planted := 0
			for range 400 {
				p := aPast(random)
				key, at, ok := tc.plant(p)
				if !ok {
					continue
				}
				f := p.check(t)
				if !slices.ContainsFunc(f.Violations, func(v Violation) bool {
					return v.Rule == tc.rule && v.Key == key && slices.Contains(v.Proof, at)
				}) {
					t.Fatalf("not found: %s of %s at %v; found %+v", tc.rule, key, at, f)
				}
				for _, v := range f.Violations {
					if len(v.Proof) == 0 || v.Message == "" || v.Key == "" {
						t.Errorf("%+v", v)
					}
				}
				if planted++; planted == 3 {
					return
				}
			}
			if planted == 0 {
				t.Fatal("it could not be planted")
			}
		})
	}
}

// A trail is what the state machine can have written, word by word.
func TestTrail(t *testing.T) {
	yes := true
	retryable := &idem.Detail{Retryable: &yes}
	decided := func(outcome idem.Outcome) *idem.Detail { return &idem.Detail{Outcome: string(outcome)} }
	const (
		created, claimed, recovered, requeued = idem.EventCreated, idem.EventClaimed, idem.EventRecovered, idem.EventRequeued
		succeeded, failed, held, resolved     = idem.EventSucceeded, idem.EventFailed, idem.EventHeld, idem.EventResolved
		stale, expired                        = idem.EventStaleResult, idem.EventExpired
	)
	type event struct {
		name    idem.EventName
		attempt int
		detail  *idem.Detail
	}
	one := func(names ...idem.EventName) (events []event) { // all of attempt 1, after a claim
		events = []event{{created, 0, nil}, {claimed, 1, nil}}
		for _, name := range names {
			events = append(events, event{name, 1, nil})
		}
		return events
	}
	for _, tc := range []struct {
		name   string
		events []event
		want   string // the state it ends with, or what the fault says
	}{
		{"created", []event{{created, 0, nil}}, "pending"},
		{"claimed", one(), "running"},
		{"succeeded", one(succeeded), "succeeded"},
		{"expired", one(succeeded, expired), "succeeded"},
		{"put back by a clean stop", one(requeued), "pending"},
		{"taken over", append(one(recovered), event{claimed, 2, nil}), "running"},
		{"found due, and stopped", one(recovered, failed), "failed"},
		{"its tool was gone", []event{{created, 0, nil}, {failed, 0, retryable}, {requeued, 0, nil}, {claimed, 1, nil}}, "running"},
		{"too late", append(one(recovered), event{claimed, 2, nil}, event{stale, 1, nil}, event{succeeded, 2, nil}, event{stale, 1, nil}), "succeeded"},
		{"decided to have failed, and asked for again", append(one(held), event{resolved, 1, &idem.Detail{Outcome: "failed", Retryable: &yes}}, event{requeued, 1, nil}), "pending"},
		{"given back in doubt, and held by another promise", one(requeued, held), "held"},
		{"decided: succeeded", append(one(held), event{resolved, 1, decided(idem.OutcomeSucceeded)}), "succeeded"},
		{"decided: retry", append(one(held), event{resolved, 1, decided(idem.OutcomeRetry)}, event{claimed, 2, nil}), "running"},

		{"nothing", nil, "empty"},
		{"created twice", []event{{created, 0, nil}, {created, 0, nil}}, "event 1 is created"},
		{"not created", one()[1:], "event 0 is claimed"},
		{"created with an attempt", []event{{created, 1, nil}}, "there were 0 claims"},
		{"a claim of another number", []event{{created, 0, nil}, {claimed, 2, nil}}, "it is claim 1"},
		{"a claim of a running call", append(one(), event{claimed, 2, nil}), "the call was running"},
		{"found due, and something else came between", append(one(recovered, requeued, recovered), event{claimed, 2, nil}, event{claimed, 3, nil}), "the call was running"},
		{"found due at its end", one(succeeded, recovered), "the call was succeeded"},
		{"an end of another attempt", []event{{created, 0, nil}, {claimed, 1, nil}, {succeeded, 2, nil}}, "there were 1 claims"},
		{"succeeded without a claim", []event{{created, 0, nil}, {succeeded, 0, nil}}, "the call was pending"},
		{"held without a claim", []event{{created, 0, nil}, {held, 0, nil}}, "the call was pending"},
		{"failed after the end", one(succeeded, failed), "the call was succeeded"},
		{"asked for again after a failure for good", one(failed, requeued), "the call was failed"},
		{"claimed after a failure for good", append(one(failed), event{claimed, 2, nil}), "the call was failed"},
		{"claimed after a retryable failure, and nobody asked", append(one(), event{failed, 1, retryable}, event{claimed, 2, nil}), "the call was failed"},
		{"asked for again twice", append(one(), event{failed, 1, retryable}, event{requeued, 1, nil}, event{requeued, 1, nil}), "the call was pending"},
		{"decided and not held", append(one(), event{resolved, 1, decided(idem.OutcomeRetry)}), "the call was running"},
		{"decided as nothing", append(one(held), event{resolved, 1, decided("maybe")}), `no outcome "maybe"`},
		{"decided without a word", append(one(held), event{resolved, 1, nil}), `no outcome ""`},
		{"a stale result of an attempt to come", append(one(), event{stale, 2, nil}), "there were 1 claims"},
		{"a stale result of no attempt", append(one(), event{stale, 0, nil}), "there were 1 claims"},
		{"expired while it ran", one(expired), "the call was running"},
		{"expired twice", one(succeeded, expired, expired), "the call had expired"},
		{"asked for again after it expired", append(one(), event{failed, 1, retryable}, event{expired, 1, nil}, event{requeued, 1, nil}), "the call had expired"},
		{"another word", one("paused"), "no such event"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var events []TrailEvent
			for i, e := range tc.events {
				events = append(events, TrailEvent{Seq: i, Name: e.name, Attempt: e.attempt, Detail: e.detail})
			}
			s, fault := walkTrail(events)
			if got := cmp.Or(fault, string(s.status)); !strings.Contains(got, tc.want) || (fault == "") != idem.Status(tc.want).Valid() {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if len(events) > 1 && fault == "" {
				events[len(events)-1].Seq++
				if _, fault := walkTrail(events); !strings.Contains(fault, "has the number") {
					t.Errorf("a gap: %q", fault)
				}
			}
		})
	}
}

// manyMembers are n members of an object.
func manyMembers(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"m%d":0`, i))
	}
	return strings.Join(all, ",")
}

func TestHistoryRefuses(t *testing.T) {
	const times = `,"began":"2026-11-29T16:00:00Z","at":"2026-11-29T16:00:01Z"}`
	const digest = "00112233445566778899aabbccddeeff"
	for _, tc := range []struct{ name, line, reason string }{
		{"no JSON", `{`, "not JSON"},
		{"an array", `[]`, "cannot unmarshal"},
		{"an unknown member", `{"kind":"post","client":"c","idem_key":"k","callid":"x"` + times, `unknown field "callid"`},
		{"a wrong type", `{"kind":"post","client":"c","idem_key":1` + times, "cannot unmarshal"},
		{"another kind", `{"kind":"put","client":"c","idem_key":"k"` + times, `no kind "put"`},
		{"no client", `{"kind":"post","idem_key":"k"` + times, "no client"},
		{"no key", `{"kind":"post","client":"c"` + times, "no idem_key"},
		{"no time", `{"kind":"post","client":"c","idem_key":"k","began":"2026-11-29T16:00:00Z"}`, "no at"},
		{"no beginning", `{"kind":"post","client":"c","idem_key":"k","at":"2026-11-29T16:00:00Z"}`, "no began"},
		{"a time that nanoseconds do not hold", `{"kind":"post","client":"c","idem_key":"k","began":"2026-11-29T16:00:00Z","at":"3026-11-29T16:00:00Z"}`, "no at"},
		{"another state", `{"kind":"post","client":"c","idem_key":"k","state":"done","call_id":"x"` + times, `no state "done"`},
		{"a state of no call", `{"kind":"post","client":"c","idem_key":"k","state":"held"` + times, "no call_id"},
		{"a call without a state", `{"kind":"post","client":"c","idem_key":"k","attempt":1` + times, "without a state"},
		{"an attempt below 0", `{"kind":"post","client":"c","idem_key":"k","call_id":"x","state":"held","attempt":-1` + times, "no attempt -1"},
		{"retryable and not failed", `{"kind":"post","client":"c","idem_key":"k","call_id":"x","state":"held","retryable":true` + times, "retryable"},
		{"another effect", `{"kind":"post","client":"c","idem_key":"k","effect":"maybe"` + times, `no effect "maybe"`},
		{"another status", `{"kind":"post","client":"c","idem_key":"k","status":99` + times, "no status 99"},
		{"an outcome that leaves all open", `{"kind":"outcome","client":"c","idem_key":"k"` + times, "must have an effect"},
		{"an answer to nothing", `{"kind":"post","client":"c","idem_key":"k","status":202` + times, "not sent"},
		{"a call with a refusal", `{"kind":"post","client":"c","idem_key":"k","sent":true,"status":409,"call_id":"x","state":"held"` + times, "status 409"},
		{"an end without digests", `{"kind":"post","client":"c","idem_key":"k","sent":true,"status":200,"call_id":"x","state":"succeeded","attempt":1,"result_digest":"` + digest + `"` + times, "without the digests"},
		{"a digest that is none", `{"kind":"post","client":"c","idem_key":"k","sent":true,"status":200,"call_id":"x","state":"succeeded","result_digest":"00"` + times, `"00" is no digest`},
		{"a member twice", `{"kind":"post","client":"c","idem_key":"k","idem_key":"l"` + times, "idem_key is there twice"},
		{"a member twice, in another case", `{"kind":"post","client":"c","effect":"unknown","idem_key":"k","\u0045FFECT":"none"` + times, "EFFECT is there twice"},
		{"half a surrogate pair", `{"kind":"post","client":"c","idem_key":"\udc00"` + times, "half a surrogate pair"},
		{"too many members", `{"x":{` + manyMembers(maxMembers+1) + `}}`, "more than 100 members"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := NewHistory(HistoryOptions{})
			err := h.ReadLog("log", strings.NewReader("\xEF\xBB\xBF\n"+tc.line+"\n"))
			if bad := (*InputError)(nil); !errors.As(err, &bad) || bad.Line != 2 || !strings.Contains(bad.Reason, tc.reason) || strings.Contains(bad.Reason, "probe:") {
				t.Errorf("%v", err)
			}
		})
	}
	h := NewHistory(HistoryOptions{MaxEntries: 1})
	trail := `{"call_id":"x","idem_key":"k","events":[]}`
	for _, tc := range []struct {
		name, text, reason string
		read               func(string) error
	}{
		{"an effect of no call", `{"idem_key":"k"}`, "needs", func(s string) error { return h.ReadLedger("l", strings.NewReader(s), false) }},
		{"a ledger that is cut off", `{"idem_key":"k","call_id":"x"}`, "cut off", func(s string) error { return h.ReadLedger("l", strings.NewReader(s), true) }},
		{"a trail of no call", `{"idem_key":"k"}`, "needs", func(s string) error { return h.ReadAudit("a", strings.NewReader(s)) }},
		{"an effect of two keys", `{"idem_key":"k","call_id":"x","Idem_Key":"l"}`, "Idem_Key is there twice", func(s string) error { return h.ReadLedger("l", strings.NewReader(s), false) }},
		{"a trail with a member twice, deep within", `{"call_id":"x","idem_key":"k","events":[{"detail":{"outcome":"retry","outcome":"failed"}}]}`, "outcome is there twice", func(s string) error { return h.ReadAudit("a", strings.NewReader(s)) }},
		{"a trail twice", trail + "\n" + trail, "more than 1", func(s string) error { return h.ReadAudit("a", strings.NewReader(s)) }},
		{"too many effects", strings.Repeat(`{"idem_key":"k","call_id":"x"}`+"\n", 2), "more than 1 effects", func(s string) error { return h.ReadLedger("l", strings.NewReader(s), true) }},
		{"too many entries", strings.Repeat(`{"kind":"post","client":"c","idem_key":"k"`+times+"\n", 2), "more than 1 entries", func(s string) error { return h.ReadLog("l", strings.NewReader(s)) }},
	} {
		if err := tc.read(tc.text); err == nil || !strings.Contains(err.Error(), tc.reason) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	h = NewHistory(HistoryOptions{})
	whole := `{"idem_key":"k","call_id":"x","args":{` + manyMembers(maxMembers) + `,"deep":[[{"m1":1e999,"\ud83d\ude00":null}]]}}`
	whole = strings.Replace(whole, `"m0":0,`, "", 1) // as many as there may be
	if err := h.ReadLedger("l", strings.NewReader(whole), false); err != nil {
		t.Error(err)
	}
	if err := h.ReadAudit("a", strings.NewReader(trail+"\n"+trail)); err == nil || !strings.Contains(err.Error(), "two audit trails of x") {
		t.Errorf("%v", err)
	}
}

// Only so many violations are kept; all are counted.
func TestHistoryManyViolations(t *testing.T) {
	h := NewHistory(HistoryOptions{MaxViolations: 2})
	for range 5 {
		if err := h.AddEffect(Effect{CallID: "x", Key: "k"}, Ref{Source: "l"}); err != nil {
			t.Fatal(err)
		}
	}
	f := h.Check()
	if f.Total != 5+4+5 || len(f.Violations) != 2 || f.Clean() { // ids, repetitions, without a trail
		t.Errorf("%+v", f)
	}
}

// An effect is accused by outcomes only where nobody is left whose it could be.
func TestHistoryOutcomes(t *testing.T) {
	at := time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)
	id := idem.NewCallID(at, idem.Key{Name: "k"}, [10]byte{})
	post := func(client string) Entry {
		return Entry{Kind: EntryPost, Client: client, Key: "k", Began: at, At: at, Sent: true} // its answer was lost
	}
	told := func(client string, effect idem.Doubt, code idem.Code) Entry {
		return Entry{Kind: EntryOutcome, Client: client, Key: "k", At: at, Effect: effect, Code: code}
	}
	for _, tc := range []struct {
		name    string
		log     []Entry
		accused bool
	}{
		{"one, told that nothing happened", []Entry{post("a"), told("a", idem.DoubtNone, idem.CodeUnavailable)}, true},
		{"all of two", []Entry{post("a"), post("b"), told("a", idem.DoubtNone, idem.CodeUnavailable), told("b", idem.DoubtNone, idem.CodeBadRequest)}, true},
		{"another died", []Entry{post("a"), post("b"), told("a", idem.DoubtNone, idem.CodeUnavailable)}, false},
		{"it asked again, and died", []Entry{post("a"), told("a", idem.DoubtNone, idem.CodeUnavailable), post("a")}, false},
		{"another does not know", []Entry{post("a"), post("b"), told("a", idem.DoubtNone, idem.CodeUnavailable), told("b", idem.DoubtUnknown, "")}, false},
		{"another was told so", []Entry{post("a"), post("b"), told("a", idem.DoubtNone, idem.CodeUnavailable), told("b", idem.DoubtCommitted, "")}, false},
		{"only conflicts", []Entry{post("a"), told("a", idem.DoubtNone, idem.CodeConflict)}, false},
		{"only an expired key", []Entry{post("a"), told("a", idem.DoubtNone, idem.CodeKeyExpired)}, false},
		{"a conflict, and one who was told", []Entry{post("a"), post("b"), told("a", idem.DoubtNone, idem.CodeConflict), told("b", idem.DoubtNone, idem.CodeUnavailable)}, true},
		{"one was told so, and of a conflict when it asked for something else", []Entry{
			post("a"), told("a", idem.DoubtCommitted, ""), post("a"), told("a", idem.DoubtNone, idem.CodeConflict),
			post("b"), told("b", idem.DoubtNone, idem.CodeInvalidArguments),
		}, false},
		{"one does not know, and asked again when the key had expired", []Entry{
			post("a"), told("a", idem.DoubtUnknown, ""), post("a"), told("a", idem.DoubtNone, idem.CodeKeyExpired),
			post("b"), told("b", idem.DoubtNone, idem.CodeInvalidArguments),
		}, false},
		{"one was told that nothing happened, and then of a conflict", []Entry{
			post("a"), told("a", idem.DoubtNone, idem.CodeUnavailable), post("a"), told("a", idem.DoubtNone, idem.CodeConflict),
		}, true},
		{"one was told of a conflict, and asked again, and died", []Entry{
			post("b"), told("b", idem.DoubtNone, idem.CodeUnavailable), post("a"), told("a", idem.DoubtNone, idem.CodeConflict), post("a"),
		}, false},
		{"nobody asked", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := NewHistory(HistoryOptions{})
			for i, e := range tc.log {
				if err := h.AddEntry(e, ref("log", i)); err != nil {
					t.Fatal(err)
				}
			}
			err := errors.Join(
				h.AddEffect(Effect{EffectID: idem.EffectID(id), CallID: id.String(), Key: "k"}, ref("ledger", 0)),
				h.AddTrail(Trail{CallID: id.String(), Key: "k", Events: []TrailEvent{
					{Seq: 0, Name: idem.EventCreated}, {Seq: 1, Name: idem.EventClaimed, Attempt: 1}, {Seq: 2, Name: idem.EventSucceeded, Attempt: 1},
				}}, ref("audit", 0)))
			if err != nil {
				t.Fatal(err)
			}
			f := h.Check()
			if accused := f.Total == 1 && f.Violations[0].Rule == RuleNoEffect; accused != tc.accused || !accused && !f.Clean() {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A tool without an effect owes none, and clocks may differ where that is said.
func TestHistoryOptions(t *testing.T) {
	at := time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)
	id := idem.NewCallID(at, idem.Key{Name: "k"}, [10]byte{}).String()
	fill := func(h *History) {
		t.Helper()
		shown := func(client string, began time.Time, state idem.Status, attempt int) Entry {
			e := Entry{Kind: EntryPost, Client: client, Key: "k", Began: began, At: began.Add(time.Millisecond), Sent: true, Status: 202, CallID: id, State: state, Attempt: attempt}
			if state.Ended() {
				e.Result, e.Error = Digest(nil), Digest(nil)
			}
			return e
		}
		for i, e := range []Entry{
			shown("a", at, idem.StatusSucceeded, 1),
			shown("b", at.Add(5*time.Millisecond), idem.StatusPending, 0), // its clock is ahead
		} {
			if err := h.AddEntry(e, ref("log", i)); err != nil {
				t.Fatal(err)
			}
		}
		err := h.AddTrail(Trail{CallID: id, Key: "k", Tool: "sleep", Events: []TrailEvent{
			{Seq: 0, Name: idem.EventCreated}, {Seq: 1, Name: idem.EventClaimed, Attempt: 1}, {Seq: 2, Name: idem.EventSucceeded, Attempt: 1},
		}}, ref("audit", 0))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name  string
		skew  time.Duration
		tools []string
		want  []HistoryRule
	}{
		{"neither", 0, nil, []HistoryRule{RuleLostEffect, RuleEnd}},
		{"no effect", 0, []string{"sleep"}, []HistoryRule{RuleEnd}},
		{"both", 4 * time.Millisecond, []string{"sleep"}, nil},
		{"too little skew", 3 * time.Millisecond, []string{"sleep"}, []HistoryRule{RuleEnd}},
		{"all the skew there is", math.MaxInt64, []string{"sleep"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := NewHistory(HistoryOptions{Skew: tc.skew})
			h.NoEffect(tc.tools...)
			fill(h)
			var got []HistoryRule
			for _, v := range h.Check().Violations {
				got = append(got, v.Rule)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// Only the tool of the call itself can owe no effect: not one that somebody asked
// for under the same key and was refused.
func TestHistoryOtherTool(t *testing.T) {
	at := time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)
	id := idem.NewCallID(at, idem.Key{Name: "k"}, [10]byte{}).String()
	shown := Entry{Kind: EntryPost, Client: "a", Key: "k", Tool: "sleep", Began: at, At: at, Sent: true, Status: 200, CallID: id,
		State: idem.StatusSucceeded, Attempt: 1, Result: Digest(nil), Error: Digest(nil)}
	refused := Entry{Kind: EntryPost, Client: "b", Key: "k", Tool: "sleep", Began: at, At: at, Sent: true, Status: 409, CallID: id,
		Code: idem.CodeConflict, Effect: idem.DoubtNone}
	for _, tc := range []struct {
		name, tool string
		entry      Entry
		lost       bool
	}{
		{"the trail says which tool, and another was refused", "charge", refused, true},
		{"the trail says which tool, and a client says another", "charge", shown, true},
		{"the trail says that it is this tool", "sleep", refused, false},
		{"the trail does not say, and the tool was refused", "", refused, true},
		{"the trail does not say, and the client was shown the call", "", shown, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := NewHistory(HistoryOptions{})
			h.NoEffect("sleep")
			err := errors.Join(h.AddEntry(tc.entry, ref("log", 0)), h.AddTrail(Trail{CallID: id, Key: "k", Tool: tc.tool, Events: []TrailEvent{
				{Seq: 0, Name: idem.EventCreated}, {Seq: 1, Name: idem.EventClaimed, Attempt: 1}, {Seq: 2, Name: idem.EventSucceeded, Attempt: 1},
			}}, ref("audit", 0)))
			if err != nil {
				t.Fatal(err)
			}
			f := h.Check()
			if lost := f.Total == 1 && f.Violations[0].Rule == RuleLostEffect; lost != tc.lost || !lost && !f.Clean() {
				t.Errorf("%+v", f)
			}
		})
	}
}

// What is kept of a million entries is what HistoryOptions says.
func TestHistoryMemory(t *testing.T) {
	const n = 40_000
	at := time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)
	before := heap()
	h := NewHistory(HistoryOptions{})
	for i := range n {
		id := idem.NewCallID(at.Add(time.Duration(i/4)*time.Millisecond), idem.Key{Name: "k"}, [10]byte{})
		key := fmt.Sprintf("%036d", i/4)
		e := Entry{Kind: EntryPost, Client: "c", Key: key, Began: at, At: at, Sent: true, Status: 200, CallID: id.String(),
			State: idem.StatusSucceeded, Attempt: 1, Result: Digest([]byte(key)), Error: Digest([]byte("null"))}
		if err := h.AddEntry(e, ref("log", i)); err != nil {
			t.Fatal(err)
		}
		if i%4 > 0 {
			continue
		}
		effect := Effect{EffectID: idem.EffectID(id), CallID: id.String(), Key: key}
		trail := Trail{CallID: id.String(), Key: key, Events: []TrailEvent{
			{Seq: 0, Name: idem.EventCreated}, {Seq: 1, Name: idem.EventClaimed, Attempt: 1}, {Seq: 2, Name: idem.EventSucceeded, Attempt: 1},
		}}
		if err := errors.Join(h.AddEffect(effect, ref("ledger", i)), h.AddTrail(trail, ref("audit", i))); err != nil {
			t.Fatal(err)
		}
	}
	got := (heap() - before) / n
	t.Logf("%d bytes an entry", got)
	if f := h.Check(); !f.Clean() {
		t.Errorf("%+v", f)
	}
	if got > 240 {
		t.Errorf("%d bytes an entry, want at most 240", got)
	}
	runtime.KeepAlive(h)
}
