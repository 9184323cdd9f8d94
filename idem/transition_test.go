package idem

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The records that transitions are applied to. All have one id, and all but the
// first two were dispatched twice, the second time by boot1/w1.
var (
	at       = time.Date(2026, 3, 4, 5, 6, 7, 8_000_000, time.UTC)
	theKey   = Key{Namespace: DefaultNamespace, Name: "k"}
	theID    = NewCallID(at, theKey, [10]byte{1})
	otherID  = NewCallID(at, theKey, [10]byte{2})
	theLease = Lease{CallID: theID, Owner: "boot1/w1", Attempt: 2}
	day      = 24 * time.Hour
)

func newPending() *Call {
	client, seq := "agent", int64(7)
	return &Call{
		ID: theID, Key: theKey, Fingerprint: Fingerprint{1}, Tool: "refund", Args: []byte(`{"n":1}`), ClientID: &client, Seq: &seq,
		CreatedAt: at.Add(-time.Minute), UpdatedAt: at.Add(-time.Minute), Revision: 1, Status: StatusPending, Deliveries: 1,
	}
}

func newPendingAgain() *Call {
	c := newPending()
	c.Revision, c.Attempt, c.Crashes = 9, 2, 1
	c.Effects, c.Rerun, c.ClaimedAt = EffectsExternal, RerunYes, at.Add(-time.Second)
	return c
}

func newRunning(e Effects, r Rerun, crashes int) func() *Call {
	return func() *Call {
		c := newPendingAgain()
		c.Status, c.Owner, c.LeaseUntil, c.Effects, c.Rerun, c.Crashes = StatusRunning, theLease.Owner, at.Add(time.Hour), e, r, crashes
		return c
	}
}

func newHeld() *Call {
	c := newPendingAgain()
	c.Status, c.Failure, c.Rerun = StatusHeld, &Failure{Code: FailureLost, Message: "no answer"}, RerunHold
	return c
}

func newEnded(s Status, retryable bool, expires time.Time) func() *Call {
	return func() *Call {
		c := newPendingAgain()
		c.Status, c.EndedAt, c.ExpiresAt = s, at.Add(-time.Second), expires
		if s == StatusSucceeded {
			c.Result = []byte(`{"ok":true}`)
		} else {
			c.Failure = &Failure{Code: FailureTool, Message: "no", Retryable: retryable}
		}
		return c
	}
}

func newTombstone() *Call {
	c := newEnded(StatusSucceeded, false, at.Add(-time.Millisecond))()
	c.Tombstone, c.Args, c.ClientID, c.Seq, c.Result = true, nil, nil, nil, nil
	return c
}

var states = map[string]func() *Call{
	"absent":        func() *Call { return nil },
	"pending":       newPending,
	"pending again": newPendingAgain, // requeued, released or tried again
	"running":       newRunning(EffectsExternal, RerunYes, 0),
	"held":          newHeld,
	"succeeded":     newEnded(StatusSucceeded, false, at.Add(day)),
	"failed":        newEnded(StatusFailed, false, at.Add(day)),
	"retryable":     newEnded(StatusFailed, true, at.Add(day)),
	"window over":   newEnded(StatusSucceeded, false, at),
	"tombstone":     newTombstone,

	// Variants, for the transitions that tell them apart.
	"pending in doubt":         func() *Call { c := newPendingAgain(); c.InDoubt = true; return c },
	"pending in doubt, verify": func() *Call { c := newPendingAgain(); c.InDoubt, c.Rerun = true, RerunVerify; return c },

	"running, once crashed":          newRunning(EffectsExternal, RerunYes, 1),
	"running, twice crashed":         newRunning(EffectsExternal, RerunYes, 2),
	"running, often crashed":         newRunning(EffectsExternal, RerunYes, 7),
	"running verify":                 newRunning(EffectsExternal, RerunVerify, 0),
	"running verify, twice crashed":  newRunning(EffectsExternal, RerunVerify, 2),
	"running hold":                   newRunning(EffectsExternal, RerunHold, 0),
	"running hold, twice crashed":    newRunning(EffectsExternal, RerunHold, 2),
	"running odd":                    newRunning(EffectsExternal, "a word of a later release", 0),
	"running local":                  newRunning(EffectsLocal, RerunYes, 0),
	"running none":                   newRunning(EffectsNone, RerunYes, 0),
	"held none":                      func() *Call { c := newHeld(); c.Effects = EffectsNone; return c },
	"retryable, window over":         newEnded(StatusFailed, true, at),
	"succeeded, last instant":        newEnded(StatusSucceeded, false, at.Add(1)),
	"failed, window over":            newEnded(StatusFailed, false, at.Add(-day)),
	"tombstone of a retryable":       func() *Call { c := newTombstone(); c.Status = StatusFailed; return c },
	"held, with an odd old deadline": func() *Call { c := newHeld(); c.ExpiresAt = at.Add(-day); return c },
}

// everyState are those that each transition's table must have a row of.
var everyState = []string{
	"absent", "pending", "pending again", "running", "held", "succeeded", "failed", "retryable", "window over", "tombstone",
}

// row says what a transition makes of a state.
type row struct {
	state, when string
	do          Transition

	verdict string // or the code of the error
	after   string // status attempt/crashes
	events  string // their names, or -
	writes  string // "", "write" or "write effect"
}

func (r row) String() string {
	return strings.Join([]string{r.verdict, r.after, r.events, r.writes}, " | ")
}

// outcome puts what was decided in the words of a row.
func outcome(ch Change, err error) row {
	r := row{verdict: ch.Verdict.String(), after: "absent", events: "-"}
	var refusal *Error
	switch {
	case errors.As(err, &refusal):
		r.verdict = string(refusal.Code)
	case err != nil:
		r.verdict = err.Error()
	}
	if c := ch.After; c != nil {
		r.after = fmt.Sprintf("%s %d/%d", c.Status, c.Attempt, c.Crashes)
		if c.Retryable() {
			r.after += " retryable"
		}
		if c.Tombstone {
			r.after += " tombstone"
		}
	}
	var names []string
	for _, e := range ch.Events {
		names = append(names, string(e.Name))
	}
	if len(names) > 0 {
		r.events = strings.Join(names, " ")
	}
	if ch.Write {
		r.writes = "write"
	}
	if ch.Effect != nil {
		r.writes += " effect"
	}
	return r
}

// run applies the transition of a row to its state, and holds the change to the
// row and to what is true of all changes.
func (r row) run(t *testing.T) {
	t.Helper()
	name := r.state
	if r.when != "" {
		name += ", " + r.when
	}
	t.Run(name, func(t *testing.T) {
		ch, err := decidePurely(t, states[r.state], r.do)
		if got := outcome(ch, err).String(); got != r.String() {
			t.Errorf("\n got %s\nwant %s", got, r)
		}
		soundChange(t, ch, err)
	})
}

// runRows runs a table, and sees to it that no state was forgotten in it.
func runRows(t *testing.T, rows []row) {
	t.Helper()
	seen := make(map[string]bool)
	for _, r := range rows {
		seen[r.state] = true
		r.run(t)
	}
	for _, s := range everyState {
		if !seen[s] {
			t.Errorf("no row for %q", s)
		}
	}
}

// decidePurely runs a transition twice, on equal records, and fails unless both
// runs decide the same and leave the record as it was.
func decidePurely(t *testing.T, state func() *Call, do Transition) (Change, error) {
	t.Helper()
	first, firstErr := do(state())
	cur := state()
	ch, err := do(cur)
	if !reflect.DeepEqual(cur, state()) {
		t.Errorf("the transition modified the record: %+v", cur)
	}
	if !reflect.DeepEqual(first, ch) || !reflect.DeepEqual(firstErr, err) {
		t.Errorf("two runs differ:\n%+v, %v\n%+v, %v", first, firstErr, ch, err)
	}
	if ch.Before != cur {
		t.Errorf("before is %+v, want the record that was looked at", ch.Before)
	}
	return ch, err
}

// soundChange checks what is true of every change.
func soundChange(t *testing.T, ch Change, err error) {
	t.Helper()
	expect := func(ok bool, format string, args ...any) {
		t.Helper()
		if !ok {
			t.Errorf(format, args...)
		}
	}
	before, after := ch.Before, ch.After
	if err != nil || !ch.Write {
		expect(!ch.Write && ch.Effect == nil && len(ch.Events) == 0, "a change that must write nothing: %+v", ch)
		expect(after == before, "a change that writes nothing has another record: %+v", after)
		expect(ch.Totals() == Totals{}, "a change that writes nothing moves totals: %+v", ch.Totals())
		return
	}
	expect(len(ch.Events) > 0, "a write without a word in the audit trail")
	for _, e := range ch.Events {
		expect(!e.At.IsZero() && e.Seq == 0, "event %+v", e)
		expect(e.Detail == nil || json.Valid(e.Detail), "detail %s", e.Detail)
	}
	if before != nil {
		expect(after.ID == before.ID && after.Key == before.Key && after.Fingerprint == before.Fingerprint && after.Tool == before.Tool &&
			after.CreatedAt.Equal(before.CreatedAt), "identity changed: %+v", after)
		// R12: they only ever count up.
		expect(after.Attempt >= before.Attempt && after.Attempt <= before.Attempt+1, "attempt %d after %d", after.Attempt, before.Attempt)
		expect(after.Crashes >= before.Crashes && after.Crashes <= before.Crashes+1, "crashes %d after %d", after.Crashes, before.Crashes)
		// A waiter tells two ends apart by it: it moves with the record, and only then.
		expect(after.Revision > before.Revision == (after != before), "revision %d after %d", after.Revision, before.Revision)
		expect(after.Deliveries >= before.Deliveries, "deliveries %d after %d", after.Deliveries, before.Deliveries)
	}
	running, ended := after.Status == StatusRunning, after.Status.Ended()
	expect((after.Owner != "") == running && !after.LeaseUntil.IsZero() == running, "%s, owner %q until %v", after.Status, after.Owner, after.LeaseUntil)
	expect(!after.EndedAt.IsZero() == ended, "%s, ended %v", after.Status, after.EndedAt)
	if after != before { // one state has an odd old deadline on purpose
		expect(!after.ExpiresAt.IsZero() == ended, "%s, expires %v", after.Status, after.ExpiresAt)
	}
	if !after.Tombstone {
		expect((after.Result != nil) == (after.Status == StatusSucceeded), "%s, result %s", after.Status, after.Result)
		expect((after.Failure != nil) == (after.Status == StatusFailed || after.Status == StatusHeld), "%s, failure %v", after.Status, after.Failure)
	}
	expect(ch.Lease > 0 == (running && (before == nil || before.Attempt != after.Attempt)), "lease of %v", ch.Lease)
	if ch.Effect != nil { // R7, R10
		expect(after.Status == StatusSucceeded && after.Effects != EffectsNone, "an effect of a call that is %s", after.Status)
		expect(ch.Effect.ID == EffectID(after.ID) && ch.Effect.CallID == after.ID && ch.Effect.Key == after.Key && ch.Effect.Tool == after.Tool, "effect %+v", ch.Effect)
	}

	// The totals move by the difference of two recounts.
	want := recount(after)
	for k, n := range recount(before) {
		want[k] -= n
	}
	if ch.Effect != nil {
		want["effects"]++
	}
	got := map[string]int64{"calls": ch.Totals().Calls, "effects": ch.Totals().Effects}
	for i, n := range ch.Totals().Status {
		got[string(Statuses[i])] = n
	}
	for i, n := range ch.Totals().Attempts {
		got[fmt.Sprint(i)] = n
	}
	for _, m := range []map[string]int64{got, want} {
		maps.DeleteFunc(m, func(_ string, n int64) bool { return n == 0 })
	}
	expect(maps.Equal(got, want), "totals move by %v, want %v", got, want)
}

func recount(c *Call) map[string]int64 {
	m := make(map[string]int64)
	if c == nil {
		return m
	}
	m["calls"]++
	m[string(c.Status)]++
	if c.Status.Ended() {
		m[fmt.Sprint(min(c.Attempt, 10))]++
	}
	return m
}

var (
	same  = Request{Key: theKey, Fingerprint: Fingerprint{1}, Tool: "refund", Args: []byte(`{"n":1}`)}
	other = Request{Key: theKey, Fingerprint: Fingerprint{2}, Tool: "refund", Args: []byte(`{"n":2}`)}
)

func submit(r Request) Transition {
	return Submit(r, Admission{ID: theID, CreatedAt: at, Now: at})
}

// submitFull has no room for what needs a write.
func submitFull(r Request) Transition {
	return Submit(r, Admission{ID: theID, CreatedAt: at, Now: at, Refuse: ErrUnavailable})
}

// submitBad does not fit the tool's schema.
func submitBad(r Request) Transition {
	return Submit(r, Admission{ID: theID, CreatedAt: at, Now: at, Check: badArgs})
}

func badArgs() error { return Errorf(CodeInvalidArguments, "no amount") }

func TestSubmit(t *testing.T) {
	both := Submit(same, Admission{ID: theID, CreatedAt: at, Now: at, Check: badArgs, Refuse: ErrUnavailable})
	runRows(t, []row{
		// R2: the key decides whether there is a call.
		{"absent", "", submit(same), "created", "pending 0/0", "created", "write"},
		{"pending", "same", submit(same), "joined", "pending 0/0", "-", ""},
		{"pending again", "same", submit(same), "joined", "pending 2/1", "-", ""},
		{"running", "same", submit(same), "joined", "running 2/0", "-", ""},
		// R14: held means stop.
		{"held", "same", submit(same), "outcome_unknown", "held 2/1", "-", ""},
		// R3, R9: an end is given again, but for the one that may be asked for again.
		{"succeeded", "same", submit(same), "replayed", "succeeded 2/1", "-", ""},
		{"failed", "same", submit(same), "replayed", "failed 2/1", "-", ""},
		{"retryable", "same", submit(same), "requeued", "pending 2/1", "requeued", "write"},
		// R16: after its window a key is refused, not run again, not requeued.
		{"succeeded, last instant", "same", submit(same), "replayed", "succeeded 2/1", "-", ""},
		{"window over", "same", submit(same), "key_expired", "succeeded 2/1", "-", ""},
		{"failed, window over", "same", submit(same), "key_expired", "failed 2/1", "-", ""},
		{"retryable, window over", "same", submit(same), "key_expired", "failed 2/1 retryable", "-", ""},
		{"tombstone", "same", submit(same), "key_expired", "succeeded 2/1 tombstone", "-", ""},
		{"tombstone of a retryable", "same", submit(same), "key_expired", "failed 2/1 tombstone", "-", ""},
		// A call without an end never expires, whatever its record says.
		{"held, with an odd old deadline", "same", submit(same), "outcome_unknown", "held 2/1", "-", ""},

		// R3: another fingerprint is a conflict in every state.
		{"pending", "other", submit(other), "idempotency_conflict", "pending 0/0", "-", ""},
		{"pending again", "other", submit(other), "idempotency_conflict", "pending 2/1", "-", ""},
		{"running", "other", submit(other), "idempotency_conflict", "running 2/0", "-", ""},
		{"held", "other", submit(other), "idempotency_conflict", "held 2/1", "-", ""},
		{"succeeded", "other", submit(other), "idempotency_conflict", "succeeded 2/1", "-", ""},
		{"failed", "other", submit(other), "idempotency_conflict", "failed 2/1", "-", ""},
		{"retryable", "other", submit(other), "idempotency_conflict", "failed 2/1 retryable", "-", ""},
		{"window over", "other", submit(other), "idempotency_conflict", "succeeded 2/1", "-", ""},
		{"tombstone", "other", submit(other), "idempotency_conflict", "succeeded 2/1 tombstone", "-", ""},

		// R14: without room only what needs a write is refused, and nothing is stored.
		{"absent", "no room", submitFull(same), "unavailable", "absent", "-", ""},
		{"pending", "no room", submitFull(same), "joined", "pending 0/0", "-", ""},
		{"running", "no room", submitFull(same), "joined", "running 2/0", "-", ""},
		{"held", "no room", submitFull(same), "outcome_unknown", "held 2/1", "-", ""},
		{"succeeded", "no room", submitFull(same), "replayed", "succeeded 2/1", "-", ""},
		{"failed", "no room", submitFull(same), "replayed", "failed 2/1", "-", ""},
		{"retryable", "no room", submitFull(same), "unavailable", "failed 2/1 retryable", "-", ""},
		{"retryable", "no room, other", submitFull(other), "idempotency_conflict", "failed 2/1 retryable", "-", ""},
		{"window over", "no room", submitFull(same), "key_expired", "succeeded 2/1", "-", ""},
		{"tombstone", "no room", submitFull(same), "key_expired", "succeeded 2/1 tombstone", "-", ""},

		// R14: only a new key is validated; a known one was, when it was new.
		{"absent", "bad args", submitBad(same), "invalid_arguments", "absent", "-", ""},
		{"absent", "bad args and no room", both, "invalid_arguments", "absent", "-", ""},
		{"pending", "bad args", submitBad(same), "joined", "pending 0/0", "-", ""},
		{"running", "bad args", submitBad(same), "joined", "running 2/0", "-", ""},
		{"held", "bad args", submitBad(same), "outcome_unknown", "held 2/1", "-", ""},
		{"succeeded", "bad args", submitBad(same), "replayed", "succeeded 2/1", "-", ""},
		{"retryable", "bad args", submitBad(same), "requeued", "pending 2/1", "requeued", "write"},
		{"retryable", "bad args and no room", both, "unavailable", "failed 2/1 retryable", "-", ""},
		{"tombstone", "bad args", submitBad(same), "key_expired", "succeeded 2/1 tombstone", "-", ""},
	})
}

func TestSubmitRefusals(t *testing.T) {
	for state, want := range map[string]*Error{
		"succeeded":   {Code: CodeConflict, Effect: DoubtNone},
		"held":        {Code: CodeOutcomeUnknown, Effect: DoubtUnknown}, // R14
		"window over": {Code: CodeKeyExpired, Effect: DoubtNone},
	} {
		r := same
		if want.Code == CodeConflict {
			r = other
		}
		_, err := submit(r)(states[state]())
		var got *Error
		if !errors.As(err, &got) || got.Code != want.Code || got.Effect != want.Effect || got.CallID != theID {
			t.Errorf("%s: %#v", state, err)
		}
	}
	// R3: a conflict shows nothing of what is stored.
	_, err := submit(other)(states["succeeded"]())
	if s := err.Error(); strings.Contains(s, "refund") || strings.Contains(s, "ok") || strings.Contains(s, `"n"`) {
		t.Errorf("the refusal tells of the stored request: %s", s)
	}
	// The sentinels are shared: a refusal must not write its call into them.
	for _, s := range []*Error{ErrConflict, ErrOutcomeUnknown, ErrKeyExpired, ErrNotHeld} {
		if !s.CallID.IsZero() || s.Status != "" {
			t.Errorf("the sentinel names a call: %+v", s)
		}
	}
}

func TestSubmitFillsTheRecord(t *testing.T) {
	client, seq := "agent", int64(0)
	r := Request{Key: theKey, Fingerprint: Fingerprint{9}, Tool: "refund", Args: []byte(`{}`), ClientID: &client, Seq: &seq}
	created := at.Add(123 * time.Microsecond)
	ch, err := Submit(r, Admission{ID: theID, CreatedAt: created, Now: at})(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &Call{
		ID: theID, Key: theKey, Fingerprint: Fingerprint{9}, Tool: "refund", Args: []byte(`{}`), ClientID: &client, Seq: &seq,
		CreatedAt: created, UpdatedAt: created, Revision: 1, Status: StatusPending, Deliveries: 1,
	}
	if !reflect.DeepEqual(ch.After, want) {
		t.Errorf("got  %+v\nwant %+v", ch.After, want)
	}
}

// R9, R16: a requeue takes the end back, and nothing else.
func TestSubmitReopens(t *testing.T) {
	ch, err := submit(same)(states["retryable"]())
	if err != nil {
		t.Fatal(err)
	}
	want := states["retryable"]()
	want.Status, want.Revision, want.UpdatedAt, want.Deliveries = StatusPending, 10, at, 2
	want.EndedAt, want.ExpiresAt, want.Failure = time.Time{}, time.Time{}, nil
	if !reflect.DeepEqual(ch.After, want) {
		t.Errorf("got  %+v\nwant %+v", ch.After, want)
	}
	if ch.After.Expired(at.Add(100 * 365 * day)) {
		t.Error("a call without an end expires")
	}
}

var (
	refund     = &Tool{Name: "refund", Effects: EffectsExternal, Rerun: RerunYes}
	refundAsk  = &Tool{Name: "refund", Effects: EffectsExternal, Rerun: RerunVerify}
	refundHold = &Tool{Name: "refund", Effects: EffectsExternal, Rerun: RerunHold}
	refundOdd  = &Tool{Name: "refund", Effects: EffectsExternal, Rerun: "a word of a later release"}
	charge     = &Tool{Name: "charge", Effects: EffectsLocal, Rerun: RerunYes}
)

func terms() Terms { return Terms{Now: at, Window: day} }

// claim is one by an owner, of a call that was found under a lease.
func claim(owner string, tool *Tool, from Lease) Transition {
	return Claim(ClaimTerms{Terms: terms(), Owner: owner, Lease: time.Minute, MaxCrashes: 3, Tool: tool, From: from})
}

// most is a tool with a bound of attempts.
func most(t *Tool, attempts int) *Tool {
	c := *t
	c.MaxAttempts = attempts
	return &c
}

func TestClaim(t *testing.T) {
	recovered := Claim(ClaimTerms{
		Terms: terms(), Owner: "boot2/w1", Lease: time.Minute, MaxCrashes: 3, Tool: refund, Recovered: true,
	})
	found := theLease
	none := Lease{}
	runRows(t, []row{
		{"absent", "", claim("boot2/w1", refund, none), "stale", "absent", "-", ""},

		// R12: the attempt is counted as it is claimed, and the numbers go on after a requeue.
		{"pending", "", claim("boot2/w1", refund, none), "claimed", "running 1/0", "claimed", "write"},
		{"pending again", "", claim("boot2/w1", refund, none), "claimed", "running 3/1", "claimed", "write"},
		{"pending again", "by the worker of its last attempt", claim("boot1/w1", refund, none), "claimed", "running 3/1", "claimed", "write"},
		{"pending", "left by an earlier life", recovered, "claimed", "running 1/0", "recovered claimed", "write"}, // R11
		{"pending again", "found running, released since", claim("boot2/w1", refund, found), "claimed", "running 3/1", "claimed", "write"},
		// R13: what a tool may do after a lost answer does not keep it from a first one.
		{"pending", "hold tool", claim("boot2/w1", refundHold, none), "claimed", "running 1/0", "claimed", "write"},
		// R14: not dispatched, or known what came of it: the key may ask again once the tool is back.
		{"pending", "tool gone", claim("boot2/w1", nil, none), "stopped", "failed 0/0 retryable", "failed", "write"},
		{"pending again", "tool gone", claim("boot2/w1", nil, none), "stopped", "failed 2/1 retryable", "failed", "write"},
		// R13: an answer was lost, and the call was given back or asked for again by
		// a promise that was taken back since.
		{"pending in doubt", "", claim("boot2/w1", refund, none), "claimed", "running 3/1", "claimed", "write"},
		{"pending in doubt", "tool now verifies", claim("boot2/w1", refundAsk, none), "stopped", "held 2/1", "held", "write"},
		{"pending in doubt", "tool now holds", claim("boot2/w1", refundHold, none), "stopped", "held 2/1", "held", "write"},
		{"pending in doubt", "tool promises what nobody knows", claim("boot2/w1", refundOdd, none), "stopped", "held 2/1", "held", "write"},
		{"pending in doubt", "tool now holds, left by an earlier life", Claim(ClaimTerms{Terms: terms(), Owner: "boot2/w1", Lease: time.Minute, MaxCrashes: 3, Tool: refundHold, Recovered: true}),
			"stopped", "held 2/1", "recovered held", "write"},
		{"pending in doubt", "tool gone", claim("boot2/w1", nil, none), "stopped", "failed 2/1 retryable", "failed", "write"},
		{"pending again", "nothing in doubt, tool now holds", claim("boot2/w1", refundHold, none), "claimed", "running 3/1", "claimed", "write"},
		{"pending in doubt, verify", "its failure said that asking again is safe", claim("boot2/w1", refundAsk, none), "claimed", "running 3/1", "claimed", "write"},
		{"pending in doubt, verify", "tool may now rerun", claim("boot2/w1", refund, none), "claimed", "running 3/1", "claimed", "write"},
		{"pending in doubt, verify", "tool now holds", claim("boot2/w1", refundHold, none), "stopped", "held 2/1", "held", "write"},

		// A tool's bound of attempts holds for those that nobody asked for, too.
		{"pending in doubt", "all attempts had", claim("boot2/w1", most(refund, 2), none), "stopped", "held 2/1", "held", "write"},
		{"pending in doubt", "one is left", claim("boot2/w1", most(refund, 3), none), "claimed", "running 3/1", "claimed", "write"},
		{"pending again", "all attempts had, and a person wants one more", claim("boot2/w1", most(refund, 2), none), "claimed", "running 3/1", "claimed", "write"},
		{"running", "all attempts had", claim("boot2/w1", most(refund, 2), found), "stopped", "held 2/1", "recovered held", "write"},
		{"running", "more than all attempts had", claim("boot2/w1", most(refund, 1), found), "stopped", "held 2/1", "recovered held", "write"},
		{"running", "one is left", claim("boot2/w1", most(refund, 3), found), "claimed", "running 3/1", "recovered claimed", "write"},
		{"running none", "all attempts had", claim("boot2/w1", most(refund, 2), found), "stopped", "failed 2/1", "recovered failed", "write"},

		// R6: a running call is taken only from the lease it was found under.
		{"running", "not found due", claim("boot2/w1", refund, none), "stale", "running 2/0", "-", ""},
		{"running", "found under an older attempt", claim("boot2/w1", refund, Lease{theID, "boot1/w1", 1}), "stale", "running 2/0", "-", ""},
		{"running", "found under a later attempt", claim("boot2/w1", refund, Lease{theID, "boot1/w1", 3}), "stale", "running 2/0", "-", ""},
		{"running", "found under another owner", claim("boot2/w1", refund, Lease{theID, "boot1/w2", 2}), "stale", "running 2/0", "-", ""},
		{"running", "found as another call of the key", claim("boot2/w1", refund, Lease{otherID, "boot1/w1", 2}), "stale", "running 2/0", "-", ""},

		// R12: a call of a life that is over has crashed, one of this life has not.
		{"running", "same life, other worker", claim("boot1/w2", refund, found), "claimed", "running 3/0", "recovered claimed", "write"},
		{"running", "same life, same worker", claim("boot1/w1", refund, found), "claimed", "running 3/0", "recovered claimed", "write"},
		{"running", "other life", claim("boot2/w1", refund, found), "claimed", "running 3/1", "recovered claimed", "write"},
		{"running", "a life whose name begins like the other", claim("boot11/w1", refund, found), "claimed", "running 3/1", "recovered claimed", "write"},
		{"running local", "other life: not counted", claim("boot2/w1", charge, found), "claimed", "running 3/0", "recovered claimed", "write"},
		{"running none", "other life", claim("boot2/w1", refund, found), "claimed", "running 3/1", "recovered claimed", "write"},

		// R12: the border of max_crashes, which is 3 here.
		{"running, once crashed", "other life", claim("boot2/w1", refund, found), "claimed", "running 3/2", "recovered claimed", "write"},
		{"running, twice crashed", "other life", claim("boot2/w1", refund, found), "stopped", "failed 2/3", "recovered failed", "write"},
		{"running, often crashed", "other life", claim("boot2/w1", refund, found), "stopped", "failed 2/8", "recovered failed", "write"},
		{"running, twice crashed", "same life", claim("boot1/w2", refund, found), "claimed", "running 3/2", "recovered claimed", "write"},
		{"running, often crashed", "same life", claim("boot1/w2", refund, found), "claimed", "running 3/7", "recovered claimed", "write"},
		{"running verify, twice crashed", "other life", claim("boot2/w1", refundAsk, found), "stopped", "held 2/3", "recovered held", "write"},
		{"running hold, twice crashed", "other life", claim("boot2/w1", refundHold, found), "stopped", "held 2/3", "recovered held", "write"},
		{"running, twice crashed", "other life, tool gone", claim("boot2/w1", nil, found), "stopped", "failed 2/3", "recovered failed", "write"},
		{"running, twice crashed", "other life, tool now holds", claim("boot2/w1", refundHold, found), "stopped", "held 2/3", "recovered held", "write"},

		// R13: the answer was lost, so the promise decides. Hold fails closed.
		{"running verify", "same life", claim("boot1/w2", refundAsk, found), "stopped", "held 2/0", "recovered held", "write"},
		{"running verify", "other life", claim("boot2/w1", refundAsk, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running hold", "same life", claim("boot1/w2", refundHold, found), "stopped", "held 2/0", "recovered held", "write"},
		{"running hold", "other life", claim("boot2/w1", refundHold, found), "stopped", "held 2/1", "recovered held", "write"},
		// R13: the promise was changed in between; the stricter one counts.
		{"running", "tool now verifies", claim("boot2/w1", refundAsk, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running", "tool now holds", claim("boot2/w1", refundHold, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running", "tool promises what nobody knows", claim("boot2/w1", refundOdd, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running verify", "tool may now rerun", claim("boot2/w1", refund, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running hold", "tool may now rerun", claim("boot2/w1", refund, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running hold", "tool now verifies", claim("boot2/w1", refundAsk, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running odd", "tool may now rerun", claim("boot2/w1", refund, found), "stopped", "held 2/1", "recovered held", "write"},
		// R14: the tool is gone; what it promised is in the record.
		{"running", "tool gone", claim("boot2/w1", nil, found), "stopped", "failed 2/1 retryable", "recovered failed", "write"},
		{"running", "tool gone, same life", claim("boot1/w2", nil, found), "stopped", "failed 2/0 retryable", "recovered failed", "write"},
		{"running verify", "tool gone", claim("boot2/w1", nil, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running hold", "tool gone", claim("boot2/w1", nil, found), "stopped", "held 2/1", "recovered held", "write"},
		{"running odd", "tool gone", claim("boot2/w1", nil, found), "stopped", "held 2/1", "recovered held", "write"},

		// R9, R11: nothing else has a door to running, whatever it was found as.
		{"held", "", claim("boot2/w1", refund, none), "stale", "held 2/1", "-", ""},
		{"held", "found running", claim("boot2/w1", refund, found), "stale", "held 2/1", "-", ""},
		{"succeeded", "found running", claim("boot2/w1", refund, found), "stale", "succeeded 2/1", "-", ""},
		{"failed", "found running", claim("boot2/w1", refund, found), "stale", "failed 2/1", "-", ""},
		{"retryable", "found running", claim("boot2/w1", refund, found), "stale", "failed 2/1 retryable", "-", ""},
		{"window over", "found running", claim("boot2/w1", refund, found), "stale", "succeeded 2/1", "-", ""},
		{"tombstone", "found running", claim("boot2/w1", refund, found), "stale", "succeeded 2/1 tombstone", "-", ""},
	})
}

func TestClaimFillsTheRecord(t *testing.T) {
	later := at.Add(time.Hour)
	ch, err := Claim(ClaimTerms{
		Terms: Terms{Now: later, Window: day, Deliveries: 5}, Owner: "boot2/w3", Lease: time.Minute, MaxCrashes: 3, Tool: charge, From: theLease,
	})(states["running"]())
	if err != nil {
		t.Fatal(err)
	}
	want := states["running"]()
	want.Revision, want.Attempt, want.Crashes, want.Owner = 10, 3, 1, "boot2/w3"
	want.Effects, want.Rerun = EffectsLocal, RerunYes // what the tool promises for this attempt
	want.InDoubt = true                               // what the one before was, outside
	want.UpdatedAt, want.ClaimedAt, want.LeaseUntil = later, later, later.Add(time.Minute)
	if !reflect.DeepEqual(ch.After, want) {
		t.Errorf("got  %+v\nwant %+v", ch.After, want)
	}
	if ch.Lease != time.Minute {
		t.Errorf("lease of %v", ch.Lease)
	}
	wantEvents(t, ch.Events,
		Event{At: later, Name: EventRecovered, Attempt: 2, Owner: "boot1/w1", Detail: []byte(`{"crashes":1,"from":"boot1/w1"}`)},
		Event{At: later, Name: EventClaimed, Attempt: 3, Owner: "boot2/w3"})
}

// What a claim that must not run says of its call.
func TestClaimStops(t *testing.T) {
	t2 := Terms{Now: at, Window: day, Deliveries: 5}
	for _, c := range []struct {
		name, state string
		tool        *Tool
		code        string
	}{
		{"poison", "running, twice crashed", refund, FailureExhausted},            // R12
		{"poison, hold", "running hold, twice crashed", refund, FailureExhausted}, // R12
		{"answer lost", "running hold", refundHold, FailureLost},                  // R13
		{"tool gone", "running", nil, FailureMissing},                             // R14
		{"tool gone, answer lost", "running verify", nil, FailureLost},            // R14
		{"tool gone before it ran", "pending", nil, FailureMissing},               // R14
		{"promise taken back", "pending in doubt", refundHold, FailureLost},       // R13
		{"no attempt left", "running", most(refund, 2), FailureExhausted},
		{"no attempt left, given back", "pending in doubt", most(refund, 2), FailureExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch, err := Claim(ClaimTerms{Terms: t2, Owner: "boot2/w1", Lease: time.Minute, MaxCrashes: 3, Tool: c.tool, From: theLease})(states[c.state]())
			if err != nil {
				t.Fatal(err)
			}
			got := ch.After
			if got.Failure.Code != c.code || got.Failure.Message == "" {
				t.Errorf("failure %+v, want %s", got.Failure, c.code)
			}
			if got.Deliveries != 6 { // those that came since are stored with the end
				t.Errorf("%d deliveries", got.Deliveries)
			}
			if got.Status == StatusFailed && (!got.EndedAt.Equal(at) || !got.ExpiresAt.Equal(at.Add(day))) {
				t.Errorf("ended %v, expires %v", got.EndedAt, got.ExpiresAt) // R16
			}
			if ch.Lease != 0 {
				t.Errorf("lease of %v for a call that does not run", ch.Lease)
			}
			var d Detail
			if err := json.Unmarshal(ch.Events[len(ch.Events)-1].Detail, &d); err != nil || d.Code != c.code || d.Retryable == nil || *d.Retryable != got.Failure.Retryable {
				t.Errorf("last event %s, %v", ch.Events[len(ch.Events)-1].Detail, err)
			}
		})
	}
}

// The transitions of a lease's holder, and the word that the audit gives to a
// result of theirs that came too late.
var settles = map[string]struct {
	do   func(Settlement) Transition
	late func(cur *Call) string
}{
	"Succeed": {
		func(s Settlement) Transition { return Succeed(s, Result{Output: []byte(`{"a":1}`)}) },
		func(*Call) string { return "succeeded" },
	},
	"Fail": {
		func(s Settlement) Transition { return Fail(s, Failure{Code: FailureTool, Message: "no"}) },
		func(*Call) string { return "failed" },
	},
	"Fail, retryable": {
		func(s Settlement) Transition {
			return Fail(s, Failure{Code: FailureTool, Message: "busy", Retryable: true})
		},
		func(*Call) string { return "failed" },
	},
	"Lose": {
		func(s Settlement) Transition { return Lose(s, Failure{Code: FailureTimeout, Message: "too slow"}) },
		func(cur *Call) string {
			if cur.Rerun == RerunYes {
				return "failed"
			}
			return "held"
		},
	},
	"Hold": {
		func(s Settlement) Transition {
			return Hold(s, Failure{Code: FailureLost, Message: "no answer", Retryable: true})
		},
		func(*Call) string { return "held" },
	},
	"Release": {
		Release,
		func(cur *Call) string {
			if cur.Rerun == RerunYes {
				return "released"
			}
			return "held"
		},
	},
}

// R6: the record decides who settles, never the time.
func TestSettle(t *testing.T) {
	for name, s := range settles {
		t.Run(name, func(t *testing.T) {
			do := s.do(Settlement{Terms: terms(), Lease: theLease})
			settled := map[string]row{
				"Succeed":         {after: "succeeded 2/0", events: "succeeded", writes: "write effect"}, // R7
				"Fail":            {after: "failed 2/0", events: "failed", writes: "write"},
				"Fail, retryable": {after: "failed 2/0 retryable", events: "failed", writes: "write"},
				"Lose":            {after: "failed 2/0 retryable", events: "failed", writes: "write"}, // R14
				"Hold":            {after: "held 2/0", events: "held", writes: "write"},
				"Release":         {after: "pending 2/0", events: "requeued", writes: "write"}, // R12
			}[name]
			settled.state, settled.when, settled.do, settled.verdict = "running", "under its lease", do, "settled"
			rows := []row{
				settled,
				{"absent", "", do, "stale", "absent", "-", ""},
				{"pending", "", do, "stale", "pending 0/0", "stale_result", "write"},
				{"pending again", "the lease of its last attempt", do, "stale", "pending 2/1", "stale_result", "write"},
				{"held", "for the person who resolves it", do, "stale", "held 2/1", "stale_result", "write"},
				{"succeeded", "", do, "stale", "succeeded 2/1", "stale_result", "write"},
				{"failed", "", do, "stale", "failed 2/1", "stale_result", "write"},
				{"retryable", "", do, "stale", "failed 2/1 retryable", "stale_result", "write"},
				{"window over", "", do, "stale", "succeeded 2/1", "stale_result", "write"},
				{"tombstone", "", do, "stale", "succeeded 2/1 tombstone", "-", ""},
			}
			for when, l := range map[string]Lease{
				"an older attempt": {theID, "boot1/w1", 1},
				"a later attempt":  {theID, "boot1/w1", 3},
				"another worker":   {theID, "boot1/w2", 2},
				"another life":     {theID, "boot2/w1", 2},
			} {
				rows = append(rows, row{"running", when, s.do(Settlement{Terms: terms(), Lease: l}), "stale", "running 2/0", "stale_result", "write"})
			}
			// A lease of a call that had the key before says nothing of this one.
			for _, state := range everyState {
				r := outcome(unchanged(states[state](), VerdictStale))
				r.state, r.when, r.do = state, "another call", s.do(Settlement{Terms: terms(), Lease: Lease{otherID, "boot1/w1", 2}})
				rows = append(rows, r)
			}
			runRows(t, rows)
		})
	}
}

// R6: a result that comes too late changes nothing but the audit trail.
func TestSettleLate(t *testing.T) {
	late := Lease{theID, "boot1/w1", 1}
	for name, s := range settles {
		for state, newCall := range states {
			cur := newCall()
			if cur == nil || cur.Tombstone {
				continue
			}
			ch, err := s.do(Settlement{Terms: Terms{Now: at, Window: day, Deliveries: 5}, Lease: late})(cur)
			if err != nil || ch.After != cur || ch.Lease != 0 || ch.Totals() != (Totals{}) {
				t.Errorf("%s of %s: %+v, %v", name, state, ch, err)
			}
			wantEvents(t, ch.Events, Event{
				At: at, Name: EventStaleResult, Attempt: 1, Owner: "boot1/w1", Detail: fmt.Appendf(nil, `{"outcome":%q}`, s.late(cur)),
			})
		}
	}
}

// R6: the lease's time may be over for long; as long as nobody took the call, it
// is its holder's.
func TestSettleAfterTheLease(t *testing.T) {
	late := at.Add(10 * day)
	for name, s := range settles {
		ch, err := s.do(Settlement{Terms: Terms{Now: late, Window: day}, Lease: theLease})(states["running"]())
		if err != nil || ch.Verdict != VerdictSettled {
			t.Errorf("%s: %v, %v", name, ch.Verdict, err)
		}
	}
}

func TestSettleByPromise(t *testing.T) {
	holder := Settlement{Terms: terms(), Lease: theLease}
	lost := Failure{Code: FailureTimeout, Message: "too slow"}
	for _, r := range []row{
		// R13, R14: the outcome is not known, so the promise decides.
		{"running", "lost", Lose(holder, lost), "settled", "failed 2/0 retryable", "failed", "write"},
		{"running none", "lost", Lose(holder, lost), "settled", "failed 2/0 retryable", "failed", "write"},
		{"running local", "lost", Lose(holder, lost), "settled", "failed 2/0 retryable", "failed", "write"},
		{"running verify", "lost", Lose(holder, lost), "settled", "held 2/0", "held", "write"},
		{"running hold", "lost", Lose(holder, lost), "settled", "held 2/0", "held", "write"},
		{"running odd", "lost", Lose(holder, lost), "settled", "held 2/0", "held", "write"},
		// R12: a clean stop is no crash.
		{"running", "released", Release(holder), "settled", "pending 2/0", "requeued", "write"},
		{"running, twice crashed", "released", Release(holder), "settled", "pending 2/2", "requeued", "write"},
		{"running none", "released", Release(holder), "settled", "pending 2/0", "requeued", "write"},
		{"running local", "released", Release(holder), "settled", "pending 2/0", "requeued", "write"},
		{"running verify", "released", Release(holder), "settled", "held 2/0", "held", "write"},
		{"running hold", "released", Release(holder), "settled", "held 2/0", "held", "write"},
		{"running odd", "released", Release(holder), "settled", "held 2/0", "held", "write"},
		// R14: an answer is an answer, whatever the promise.
		{"running hold", "failed", Fail(holder, Failure{Code: "x", Retryable: true}), "settled", "failed 2/0 retryable", "failed", "write"},
		{"running hold", "succeeded", Succeed(holder, Result{}), "settled", "succeeded 2/0", "succeeded", "write effect"},
		{"running hold, twice crashed", "succeeded", Succeed(holder, Result{}), "settled", "succeeded 2/2", "succeeded", "write effect"},
		// R7: one effect row, unless there is nothing to protect.
		{"running local", "succeeded", Succeed(holder, Result{}), "settled", "succeeded 2/0", "succeeded", "write effect"},
		{"running none", "succeeded", Succeed(holder, Result{}), "settled", "succeeded 2/0", "succeeded", "write"},
		{"running none", "held", Hold(holder, lost), "settled", "held 2/0", "held", "write"},
	} {
		r.run(t)
	}
}

func TestSettleFillsTheRecord(t *testing.T) {
	amount := int64(100)
	s := Settlement{Terms: Terms{Now: at.Add(time.Second), Window: 2 * day, Deliveries: 5}, Lease: theLease}
	now := s.Now
	base := func() *Call {
		c := states["running"]()
		c.Owner, c.LeaseUntil, c.Revision, c.UpdatedAt, c.Deliveries = "", time.Time{}, 10, now, 6
		return c
	}
	ended := func() *Call {
		c := base()
		c.EndedAt, c.ExpiresAt = now, now.Add(2*day) // R16: fixed at the end
		return c
	}
	tests := map[string]struct {
		do    Transition
		want  func(*Call) *Call
		from  func() *Call
		event Event
	}{
		"Succeed": {
			Succeed(s, Result{Output: []byte(`{"a":1}`), Amount: &amount}),
			func(c *Call) *Call { c.Status, c.Result = StatusSucceeded, []byte(`{"a":1}`); return c }, ended,
			Event{Name: EventSucceeded},
		},
		"Succeed without output": {
			Succeed(s, Result{}),
			func(c *Call) *Call { c.Status, c.Result = StatusSucceeded, []byte(`null`); return c }, ended,
			Event{Name: EventSucceeded},
		},
		"Fail": {
			Fail(s, Failure{Code: "x", Message: "no", Retryable: true}),
			func(c *Call) *Call {
				c.Status, c.Failure = StatusFailed, &Failure{Code: "x", Message: "no", Retryable: true}
				return c
			}, ended,
			Event{Name: EventFailed, Detail: []byte(`{"code":"x","message":"no","retryable":true}`)},
		},
		"Hold": { // a held call is never retryable: only a resolution opens it
			Hold(s, Failure{Code: "x", Message: "no", Retryable: true}),
			func(c *Call) *Call {
				c.Status, c.Failure, c.InDoubt = StatusHeld, &Failure{Code: "x", Message: "no"}, true
				return c
			}, base,
			Event{Name: EventHeld, Detail: []byte(`{"code":"x","message":"no","retryable":false}`)},
		},
		"Release": {
			Release(s),
			func(c *Call) *Call { c.Status, c.InDoubt = StatusPending, true; return c }, base,
			Event{Name: EventRequeued, Detail: []byte(`{"reason":"shutdown"}`)},
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			ch, err := c.do(states["running"]())
			if err != nil {
				t.Fatal(err)
			}
			if want := c.want(c.from()); !reflect.DeepEqual(ch.After, want) {
				t.Errorf("got  %+v\nwant %+v", ch.After, want)
			}
			// The event names the worker, which the record forgets.
			c.event.At, c.event.Attempt, c.event.Owner = now, 2, "boot1/w1"
			wantEvents(t, ch.Events, c.event)
		})
	}
	ch, err := Succeed(s, Result{Amount: &amount})(states["running"]())
	if err != nil {
		t.Fatal(err)
	}
	want := &Effect{ID: EffectID(theID), CallID: theID, Key: theKey, Tool: "refund", Amount: &amount, CreatedAt: now}
	if !reflect.DeepEqual(ch.Effect, want) {
		t.Errorf("effect %+v, want %+v", ch.Effect, want)
	}
}

// What an attempt did outside stays in doubt until somebody finds out, whatever
// later attempts say of themselves (R13).
func TestDoubtStays(t *testing.T) {
	holder := Settlement{Terms: terms(), Lease: theLease}
	lost := Failure{Code: FailureLost, Message: "no answer"}
	definite := Failure{Code: "busy", Message: "ask later", Retryable: true}
	again := func(cur *Call) *Call { // asked for again and claimed: attempt 3
		t.Helper()
		ch, err := Chain(submit(same), claim("boot1/w1", refund, Lease{}))(cur)
		if err != nil || ch.After.Status != StatusRunning || ch.After.Attempt != 3 {
			t.Fatalf("%+v, %v", ch.After, err)
		}
		return ch.After
	}
	third := Settlement{Terms: terms(), Lease: Lease{CallID: theID, Owner: "boot1/w1", Attempt: 3}}
	dispatched := states["running"]
	for name, c := range map[string]struct {
		from  func() *Call
		first Transition
		then  []Transition // after it was asked for again
		doubt bool
	}{
		"an answer was lost":                       {dispatched, Lose(holder, lost), nil, true},
		"a definite answer":                        {dispatched, Fail(holder, definite), nil, false},
		"lost, then busy":                          {dispatched, Lose(holder, lost), []Transition{Fail(third, definite)}, true},
		"lost, then refused for good":              {dispatched, Lose(holder, lost), []Transition{Fail(third, Failure{Code: "no"})}, true},
		"lost, then done":                          {dispatched, Lose(holder, lost), []Transition{Succeed(third, Result{})}, false},
		"an answer that says nothing":              {dispatched, Fail(holder, Failure{Code: "busy", Retryable: true, Unsure: true}), nil, true},
		"the same, and nothing is outside":         {states["running none"], Fail(holder, Failure{Code: "busy", Retryable: true, Unsure: true}), nil, false},
		"busy, then refused for good":              {dispatched, Fail(holder, definite), []Transition{Fail(third, Failure{Code: "no"})}, false},
		"nothing outside: lost":                    {states["running none"], Lose(holder, lost), nil, false},
		"nothing outside: local, lost":             {states["running local"], Lose(holder, lost), nil, false},
		"held":                                     {states["running hold"], Lose(holder, lost), nil, true},
		"held, and decided: succeeded":             {states["held"], resolve(OutcomeSucceeded), nil, false},
		"held, and decided: failed":                {states["held"], resolve(OutcomeFailed), nil, false},
		"held, and decided: retry":                 {states["held"], resolve(OutcomeRetry), nil, false},
		"given back at a stop":                     {dispatched, Release(holder), nil, true},
		"its process died":                         {dispatched, claim("boot2/w1", refund, theLease), nil, true},
		"its process died, nothing outside":        {states["running local"], claim("boot2/w1", charge, theLease), nil, false},
		"its process died, and it is held":         {states["running hold"], claim("boot2/w1", refund, theLease), nil, true},
		"its process died too often":               {states["running, twice crashed"], claim("boot2/w1", refund, theLease), nil, true},
		"a late answer changes nothing, and tells": {states["succeeded"], Lose(holder, lost), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			from := c.from()
			from.InDoubt = from.Status == StatusHeld
			ch, err := c.first(from)
			for _, do := range c.then {
				if err != nil {
					break
				}
				ch, err = do(again(ch.After))
			}
			if err != nil {
				t.Fatal(err)
			}
			if ch.After.InDoubt != c.doubt {
				t.Errorf("in doubt: %v; %+v", ch.After.InDoubt, ch.After)
			}
			if f := ch.After.Failure; f != nil && f.Unsure {
				t.Error("it is stored twice")
			}
			if m := ch.After.Misfits(ch.After.Revision); len(m) > 0 {
				t.Errorf("does not fit: %v", m)
			}
		})
	}
}

// The last attempt that a tool allows ends its call for good, or leaves it to a
// person where an earlier one is in doubt.
func TestLastAttempt(t *testing.T) {
	at := func(most int) Settlement {
		return Settlement{Terms: terms(), Lease: theLease, MaxAttempts: most}
	}
	busy := Failure{Code: "busy", Message: "ask later", Retryable: true, RetryAfter: time.Minute}
	doubtful := func() *Call { c := states["running"](); c.InDoubt = true; return c }
	for _, c := range []struct {
		name  string
		from  func() *Call
		do    Transition
		after string
		code  string
	}{
		{"one is left", states["running"], Fail(at(3), busy), "failed 2/0 retryable", "busy"},
		{"any number", states["running"], Fail(at(0), busy), "failed 2/0 retryable", "busy"},
		{"none is left", states["running"], Fail(at(2), busy), "failed 2/0", FailureExhausted},
		{"more than allowed, since the bound was lowered", states["running"], Fail(at(1), busy), "failed 2/0", FailureExhausted},
		{"refused for good anyway", states["running"], Fail(at(2), Failure{Code: "no"}), "failed 2/0", "no"},
		{"none is left, one in doubt", doubtful, Fail(at(2), busy), "held 2/0", FailureExhausted},
		{"refused for good, one in doubt", doubtful, Fail(at(2), Failure{Code: "no"}), "failed 2/0", "no"},
		{"none is left, lost", states["running"], Lose(at(2), busy), "held 2/0", FailureExhausted},
		{"none is left, lost, nothing outside", states["running local"], Lose(at(2), busy), "failed 2/0", FailureExhausted},
		{"one is left, lost", states["running"], Lose(at(3), busy), "failed 2/0 retryable", "busy"},
		{"none is left, and the last answer says nothing", states["running"], Fail(at(2), Failure{Code: "busy", Retryable: true, Unsure: true}), "held 2/0", FailureExhausted},
		{"to be held anyway", states["running hold"], Lose(at(2), busy), "held 2/0", "busy"},
		{"done", states["running"], Succeed(at(2), Result{}), "succeeded 2/0", ""},
		{"given back", states["running"], Release(at(2)), "pending 2/0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch, err := c.do(c.from())
			if err != nil {
				t.Fatal(err)
			}
			if got := outcome(ch, nil).after; got != c.after {
				t.Errorf("%s, want %s", got, c.after)
			}
			if f := ch.After.Failure; (f == nil) != (c.code == "") || f != nil && f.Code != c.code {
				t.Errorf("failure %+v, want %q", f, c.code)
			}
			if m := ch.After.Misfits(ch.After.Revision); len(m) > 0 {
				t.Errorf("does not fit: %v", m)
			}
			if last := ch.Events[len(ch.Events)-1]; ch.After.Status == StatusHeld && last.Name != EventHeld {
				t.Errorf("the trail says %s", last.Name)
			}
		})
	}
	f := Failure{Code: "busy", Message: strings.Repeat("x", MaxMessage), Retryable: true}
	ch, err := Fail(at(2), f)(states["running"]())
	if err != nil || ch.After.Failure.Validate() != nil {
		t.Errorf("a long message: %v, %v", err, ch.After.Failure.Validate())
	}
}

// A stored call is compared under its own rules (R3).
func TestSubmitUnderTheCallsRules(t *testing.T) {
	old, now := RulesID{1}, RulesID{2}
	r := same
	r.Rules, r.Fingerprint = now, Fingerprint{9}
	r.Under = func(id RulesID) (Fingerprint, error) {
		if id != old {
			return Fingerprint{}, ErrUnknownRules
		}
		return Fingerprint{1}, nil
	}
	stored := func(id RulesID, fp Fingerprint) *Call {
		c := states["succeeded"]()
		c.Rules, c.Fingerprint = id, fp
		return c
	}
	for name, c := range map[string]struct {
		cur  *Call
		r    Request
		want error
	}{
		"the same rules":                    {stored(now, Fingerprint{9}), r, nil},
		"the same rules, other args":        {stored(now, Fingerprint{1}), r, ErrConflict},
		"older rules":                       {stored(old, Fingerprint{1}), r, nil},
		"older rules, other args":           {stored(old, Fingerprint{9}), r, ErrConflict},
		"rules that nobody knows":           {stored(RulesID{3}, Fingerprint{1}), r, ErrUnknownRules},
		"no rules then, some now":           {stored(RulesID{}, Fingerprint{1}), r, ErrUnknownRules},
		"rules then, none known any more":   {stored(old, Fingerprint{1}), same, ErrUnknownRules},
		"never any rules":                   {stored(RulesID{}, Fingerprint{1}), same, nil},
		"never any rules, and another call": {stored(RulesID{}, Fingerprint{1}), other, ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			ch, err := submit(c.r)(c.cur)
			if !errors.Is(err, c.want) || c.want == nil && ch.Verdict != VerdictReplayed || ch.Write {
				t.Errorf("%v, %v; want %v", ch.Verdict, err, c.want)
			}
		})
	}
	ch, err := submit(r)(nil)
	if err != nil || ch.After.Rules != now || ch.After.Fingerprint != r.Fingerprint {
		t.Errorf("a new call: %+v, %v", ch.After, err)
	}
}

func resolve(o Outcome) Transition {
	return Resolve(Resolution{
		Terms: Terms{Now: at, Window: day, Deliveries: 5}, Outcome: o, By: "anna", Note: "asked them",
		Result: Result{Output: []byte(`"found"`)}, Failure: Failure{Code: "not_done", Message: "never arrived"},
	})
}

// A decision about an attempt says nothing of a later one.
func TestResolveOfAnAttempt(t *testing.T) {
	for attempt, want := range map[int]string{0: "pending", 2: "pending", 1: "not_held", 3: "not_held"} {
		ch, err := Resolve(Resolution{Terms: terms(), Outcome: OutcomeRetry, By: "anna", Attempt: attempt})(states["held"]())
		var e *Error
		if errors.As(err, &e) {
			if string(e.Code) != want || e.Status != StatusHeld || e.CallID != theID || ch.Write {
				t.Errorf("attempt %d: %v", attempt, err)
			}
		} else if err != nil || string(ch.After.Status) != want {
			t.Errorf("attempt %d: %+v, %v", attempt, ch.After, err)
		}
	}
}

// A call in doubt does not go to a place that knows nothing of it.
func TestTarget(t *testing.T) {
	here, there := *refund, *refund
	here.Target, there.Target = 7, 8
	pendingInDoubt := func() *Call { c := newPendingAgain(); c.InDoubt, c.Target = true, 7; return c }
	pendingForSure := func() *Call { c := pendingInDoubt(); c.InDoubt = false; return c }
	dispatched := func() *Call { c := states["running"](); c.Target = 7; return c }
	for _, c := range []struct {
		name string
		from func() *Call
		tool *Tool
		want string
	}{
		{"pending in doubt, the same place", pendingInDoubt, &here, "running 3/1"},
		{"pending in doubt, another place", pendingInDoubt, &there, "held 2/1"},
		{"pending in doubt, no place any more", pendingInDoubt, refund, "held 2/1"},
		{"pending, nothing in doubt", pendingForSure, &there, "running 3/1"},
		{"taken over, the same place", dispatched, &here, "running 3/1"},
		{"taken over, another place", dispatched, &there, "held 2/1"},
	} {
		ch, err := claim("boot2/w1", c.tool, theLease)(c.from())
		if got := outcome(ch, err).after; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if ch.After.Status == StatusRunning && ch.After.Target != c.tool.Target {
			t.Errorf("%s: it went to %d", c.name, ch.After.Target)
		}
	}
	ch, err := Claim(ClaimTerms{Terms: terms(), Owner: "boot2/w1", Lease: time.Minute, MaxCrashes: 3, Tool: charge, Settle: time.Minute})(newPending())
	if err != nil || ch.After.Settle != 0 || ch.After.Target != 0 {
		t.Errorf("a local tool went out: %+v, %v", ch.After, err)
	}
	ch, err = Claim(ClaimTerms{Terms: terms(), Owner: "boot2/w1", Lease: time.Minute, MaxCrashes: 3, Tool: &here, Settle: time.Minute})(newPending())
	if err != nil || ch.After.Settle != time.Minute || ch.After.Target != 7 {
		t.Errorf("how it went out: %+v, %v", ch.After, err)
	}
}

func TestResolve(t *testing.T) {
	rows := []row{
		{"held", "succeeded", resolve(OutcomeSucceeded), "resolved", "succeeded 2/1", "resolved", "write effect"}, // R7
		{"held none", "succeeded", resolve(OutcomeSucceeded), "resolved", "succeeded 2/1", "resolved", "write"},
		{"held", "failed", resolve(OutcomeFailed), "resolved", "failed 2/1", "resolved", "write"},
		// R12: neither attempts nor crashes are forgotten.
		{"held", "retry", resolve(OutcomeRetry), "resolved", "pending 2/1", "resolved", "write"},
		{"held", "no such outcome", resolve("maybe"), "bad_request", "held 2/1", "-", ""},
		{"held", "no outcome", resolve(""), "bad_request", "held 2/1", "-", ""},
	}
	for _, o := range []Outcome{OutcomeSucceeded, OutcomeFailed, OutcomeRetry, "maybe"} {
		for _, state := range everyState {
			r := outcome(unchanged(states[state](), VerdictNone))
			r.state, r.when, r.do, r.verdict = state, string(o), resolve(o), string(CodeNotHeld)
			switch state {
			case "held":
				continue
			case "absent", "tombstone":
				r.verdict = string(CodeNotFound)
			}
			rows = append(rows, r)
		}
	}
	runRows(t, rows)
}

func TestResolveFillsTheRecord(t *testing.T) {
	retryable := Resolve(Resolution{Terms: terms(), Outcome: OutcomeFailed, By: "anna", Failure: Failure{Code: "x", Retryable: true}})
	base := func() *Call {
		c := states["held"]()
		c.Failure, c.Revision, c.UpdatedAt, c.Deliveries = nil, 10, at, 6
		return c
	}
	ended := func(s Status) *Call {
		c := base()
		c.Status, c.EndedAt, c.ExpiresAt = s, at, at.Add(day)
		return c
	}
	for _, c := range []struct {
		name   string
		do     Transition
		want   func() *Call
		detail string
	}{
		{
			"succeeded", resolve(OutcomeSucceeded),
			func() *Call { c := ended(StatusSucceeded); c.Result = []byte(`"found"`); return c },
			`{"outcome":"succeeded","by":"anna","note":"asked them"}`,
		},
		{
			"failed", resolve(OutcomeFailed),
			func() *Call {
				c := ended(StatusFailed)
				c.Failure = &Failure{Code: "not_done", Message: "never arrived"}
				return c
			},
			`{"outcome":"failed","code":"not_done","message":"never arrived","retryable":false,"by":"anna","note":"asked them"}`,
		},
		{
			"failed and retryable", retryable,
			func() *Call {
				c := ended(StatusFailed)
				c.Failure, c.Deliveries = &Failure{Code: "x", Retryable: true}, 1
				return c
			},
			`{"outcome":"failed","code":"x","retryable":true,"by":"anna"}`,
		},
		{
			"retry", resolve(OutcomeRetry),
			func() *Call { c := base(); c.Status = StatusPending; return c },
			`{"outcome":"retry","by":"anna","note":"asked them"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch, err := c.do(states["held"]())
			if err != nil {
				t.Fatal(err)
			}
			if want := c.want(); !reflect.DeepEqual(ch.After, want) {
				t.Errorf("got  %+v\nwant %+v", ch.After, want)
			}
			wantEvents(t, ch.Events, Event{At: at, Name: EventResolved, Attempt: 2, Detail: []byte(c.detail)})
		})
	}

	_, err := resolve(OutcomeRetry)(states["running"]())
	var got *Error
	if !errors.As(err, &got) || got.Status != StatusRunning || got.CallID != theID || !strings.Contains(got.Message, "running") {
		t.Errorf("the refusal does not say where the call stands: %#v", err)
	}
}

func TestExpire(t *testing.T) {
	runRows(t, []row{
		{"absent", "", Expire(at), "none", "absent", "-", ""},
		// R16: a call without an end never expires.
		{"pending", "", Expire(at.Add(1000 * day)), "none", "pending 0/0", "-", ""},
		{"pending again", "", Expire(at.Add(1000 * day)), "none", "pending 2/1", "-", ""},
		{"running", "", Expire(at.Add(1000 * day)), "none", "running 2/0", "-", ""},
		{"held", "", Expire(at.Add(1000 * day)), "none", "held 2/1", "-", ""},
		{"held, with an odd old deadline", "", Expire(at), "none", "held 2/1", "-", ""},
		{"succeeded", "within its window", Expire(at), "none", "succeeded 2/1", "-", ""},
		{"succeeded", "the last instant", Expire(at.Add(day - 1)), "none", "succeeded 2/1", "-", ""},
		{"succeeded", "window over", Expire(at.Add(day)), "expired", "succeeded 2/1 tombstone", "expired", "write"},
		{"failed", "within its window", Expire(at), "none", "failed 2/1", "-", ""},
		{"failed", "window over", Expire(at.Add(day)), "expired", "failed 2/1 tombstone", "expired", "write"},
		{"retryable", "within its window", Expire(at), "none", "failed 2/1 retryable", "-", ""},
		{"retryable", "window over", Expire(at.Add(day)), "expired", "failed 2/1 tombstone", "expired", "write"},
		{"window over", "", Expire(at), "expired", "succeeded 2/1 tombstone", "expired", "write"},
		{"window over", "asked with a clock that went back", Expire(at.Add(-time.Hour)), "none", "succeeded 2/1", "-", ""}, // R17
		{"tombstone", "", Expire(at.Add(1000 * day)), "none", "succeeded 2/1 tombstone", "-", ""},
	})
}

// R16: a tombstone is enough to refuse the key, and not enough to replay it.
func TestExpireForgets(t *testing.T) {
	ch, err := Expire(at.Add(day))(states["retryable"]())
	if err != nil {
		t.Fatal(err)
	}
	want := states["retryable"]()
	want.Tombstone, want.Revision, want.UpdatedAt = true, 10, at.Add(day)
	want.Args, want.ClientID, want.Seq, want.Failure = nil, nil, nil, nil
	if !reflect.DeepEqual(ch.After, want) {
		t.Errorf("got  %+v\nwant %+v", ch.After, want)
	}
}

func TestChain(t *testing.T) {
	mine := errors.New("mine")
	var (
		take    = claim("boot2/w1", refund, Lease{})
		takeIt  = claim("boot2/w1", refund, theLease)
		succeed = func(attempt int) Transition {
			return Succeed(Settlement{Terms: terms(), Lease: Lease{theID, "boot2/w1", attempt}}, Result{})
		}
		never  = func(*Call) (Change, error) { panic("asked, though the call is not on its way") }
		broken = func(cur *Call) (Change, error) { return Change{Before: cur, After: cur}, mine }
	)
	for _, r := range []row{
		{"absent", "create", Chain(submit(same)), "created", "pending 0/0", "created", "write"},
		{"absent", "create and claim", Chain(submit(same), take), "created", "running 1/0", "created claimed", "write"},
		// R7: effect, result and end in one change.
		{"absent", "create, claim and succeed", Chain(submit(same), take, succeed(1)), "created", "succeeded 1/0", "created claimed succeeded", "write effect"},
		{"retryable", "requeue, claim and succeed", Chain(submit(same), take, succeed(3)), "requeued", "succeeded 3/1", "requeued claimed succeeded", "write effect"},
		{"pending", "claim and succeed", Chain(take, succeed(1)), "claimed", "succeeded 1/0", "claimed succeeded", "write effect"},
		{"running", "take over and succeed", Chain(takeIt, succeed(3)), "claimed", "succeeded 3/1", "recovered claimed succeeded", "write effect"},
		{"absent", "create, and the tool is gone", Chain(submit(same), claim("boot2/w1", nil, Lease{}), never), "created", "failed 0/0 retryable", "created failed", "write"},
		// The rest is for calls that this change set on their way, and for no others.
		{"pending", "join", Chain(submit(same), never), "joined", "pending 0/0", "-", ""},
		{"running", "join", Chain(submit(same), never), "joined", "running 2/0", "-", ""},
		{"succeeded", "replay", Chain(submit(same), never), "replayed", "succeeded 2/1", "-", ""},
		{"succeeded", "conflict", Chain(submit(other), never), "idempotency_conflict", "succeeded 2/1", "-", ""},
		{"held", "refused", Chain(submit(same), never), "outcome_unknown", "held 2/1", "-", ""},
		{"absent", "no room", Chain(submitFull(same), never), "unavailable", "absent", "-", ""},
		{"succeeded", "stale claim", Chain(takeIt, never), "stale", "succeeded 2/1", "-", ""},
		{"running, twice crashed", "stopped", Chain(takeIt, never), "stopped", "failed 2/3", "recovered failed", "write"},
		{"running", "after an end", Chain(takeIt, succeed(3), never), "claimed", "succeeded 3/1", "recovered claimed succeeded", "write effect"},
		{"running", "after a stale result", Chain(succeed(2), never), "stale", "running 2/0", "stale_result", "write"},
		// One of several refuses: nothing of it all is written.
		{"absent", "an error at the end", Chain(submit(same), take, broken), "mine", "absent", "-", ""},
		{"retryable", "an error at the end", Chain(submit(same), broken), "mine", "failed 2/1 retryable", "-", ""},
	} {
		r.run(t)
	}
}

// A lease is the right of one owner in one attempt of one call (R6).
func TestLeaseHolds(t *testing.T) {
	for state, newCall := range states {
		c := newCall()
		if got, want := theLease.Holds(c), c != nil && c.Status == StatusRunning; got != want {
			t.Errorf("%s: holds %v", state, got)
		}
		if (Lease{}).Holds(c) {
			t.Errorf("%s: the zero lease holds", state)
		}
	}
	if got := LeaseOf(states["running"]()); got != theLease {
		t.Errorf("lease %+v", got)
	}
}

func TestVerdictNames(t *testing.T) {
	seen := make(map[string]bool)
	for v := VerdictNone; v <= VerdictExpired; v++ {
		if s := v.String(); seen[s] || strings.Contains(s, "?") {
			t.Errorf("verdict %d is %q", v, s)
		}
		seen[v.String()] = true
	}
	if s := (VerdictExpired + 1).String(); s != "verdict?" {
		t.Errorf("an unknown verdict is %q", s)
	}
}

func wantEvents(t *testing.T, got []Event, want ...Event) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b Event) bool { return reflect.DeepEqual(a, b) }) {
		for _, e := range got {
			t.Errorf("got  %v %s attempt %d %s %s", e.At, e.Name, e.Attempt, e.Owner, e.Detail)
		}
		for _, e := range want {
			t.Errorf("want %v %s attempt %d %s %s", e.At, e.Name, e.Attempt, e.Owner, e.Detail)
		}
	}
}

// BenchmarkChain is the law's share of a new call of a local tool: created, claimed
// and settled in one change.
func BenchmarkChain(b *testing.B) {
	tool := &Tool{Name: "charge", Effects: EffectsLocal, Rerun: RerunYes}
	key := Key{Namespace: DefaultNamespace, Name: "k"}
	id := NewCallID(time.Unix(1_700_000_000, 0), key, [10]byte{1})
	terms := Terms{Now: time.Unix(1_700_000_000, 0), Window: time.Hour}
	request := Request{Key: key, Tool: "charge", Args: []byte(`{"amount":1}`)}
	lease := Lease{CallID: id, Owner: "boot/1", Attempt: 1}
	b.ReportAllocs()
	for b.Loop() {
		ch, err := Chain(
			Submit(request, Admission{ID: id, CreatedAt: terms.Now, Now: terms.Now}),
			Claim(ClaimTerms{Terms: terms, Owner: lease.Owner, Lease: time.Minute, MaxCrashes: 3, Tool: tool}),
			Succeed(Settlement{Terms: terms, Lease: lease}, Result{Output: []byte("1")}),
		)(nil)
		if err != nil || ch.After.Status != StatusSucceeded || ch.Effect == nil {
			b.Fatal(ch, err)
		}
	}
}
