package kv

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/idem"
)

func drawTime(t *rapid.T, what string, zero bool) time.Time {
	if zero && rapid.Bool().Draw(t, what+" is zero") {
		return time.Time{}
	}
	return time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, what)).UTC()
}

func drawBytes(t *rapid.T, what string) []byte {
	if rapid.Bool().Draw(t, what+" is nil") {
		return nil
	}
	return append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, what)...)
}

func drawPtr[T any](t *rapid.T, g *rapid.Generator[T], what string) *T {
	if rapid.Bool().Draw(t, what+" is nil") {
		return nil
	}
	v := g.Draw(t, what)
	return &v
}

func drawCall(t *rapid.T) idem.Call {
	c := idem.Call{
		Tool: rapid.String().Draw(t, "tool"), Args: drawBytes(t, "args"),
		ClientID: drawPtr(t, rapid.String(), "client"), Seq: drawPtr(t, rapid.Int64(), "seq"),
		CreatedAt: drawTime(t, "created", false), UpdatedAt: drawTime(t, "updated", true),
		ClaimedAt: drawTime(t, "claimed", true), EndedAt: drawTime(t, "ended", true), ExpiresAt: drawTime(t, "expires", true),
		Status:  rapid.SampledFrom(idem.Statuses[:]).Draw(t, "status"),
		Effects: rapid.SampledFrom(effectsCodes).Draw(t, "effects"), Rerun: rapid.SampledFrom(rerunCodes).Draw(t, "rerun"),
		Attempt: rapid.IntMin(0).Draw(t, "attempt"), Crashes: rapid.IntMin(0).Draw(t, "crashes"),
		Owner: rapid.String().Draw(t, "owner"), Deliveries: rapid.Int64().Draw(t, "deliveries"), Result: drawBytes(t, "result"),
	}
	c.Key.Name = rapid.String().Draw(t, "name")
	c.Rules, c.InDoubt = drawRulesID(t), rapid.Bool().Draw(t, "doubt")
	c.Target = rapid.Uint64().Draw(t, "target")
	c.Settle = time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "settle")) * time.Millisecond
	c.Failure = drawPtr(t, rapid.Custom(func(t *rapid.T) idem.Failure {
		return idem.Failure{Code: rapid.String().Draw(t, "code"), Message: rapid.String().Draw(t, "message"), Retryable: rapid.Bool().Draw(t, "retryable"), RetryAfter: drawPause(t)}
	}), "failure")
	return c
}

func drawRulesID(t *rapid.T) (id idem.RulesID) {
	if rapid.Bool().Draw(t, "rules") {
		id = idem.RulesID(rapid.SliceOfN(rapid.Byte(), len(id), len(id)).Draw(t, "id of rules"))
	}
	return id
}

func drawPause(t *rapid.T) time.Duration {
	if !rapid.Bool().Draw(t, "pause") {
		return 0
	}
	return time.Duration(rapid.Int64Range(0, int64(idem.MaxRetryAfter/time.Second)).Draw(t, "seconds")) * time.Second
}

func TestRecords(t *testing.T) {
	equal := func(t *rapid.T, got, want any, err error) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v: got\n%+v\nwant\n%+v", err, got, want)
		}
	}
	t.Run("call", rapid.MakeCheck(func(t *rapid.T) {
		want := drawCall(t)
		next := rapid.Uint32().Draw(t, "next")
		state, err := appendState(nil, &want, next)
		if err != nil {
			t.Fatal(err)
		}
		var got idem.Call
		n, err := decodeState(state, &got)
		equal(t, n, next, err)
		err = decodeRequest(appendRequest(nil, &want), &got, true)
		equal(t, got, want, err)

		want.Tombstone = true
		if state, err = appendState(nil, &want, next); err != nil {
			t.Fatal(err)
		}
		got = idem.Call{}
		_, err = decodeState(state, &got)
		err = errors.Join(err, decodeRequest(appendRequest(nil, &want), &got, true))
		want.Args, want.ClientID, want.Seq = nil, nil, nil
		equal(t, got, want, err)
	}))
	t.Run("events", rapid.MakeCheck(func(t *rapid.T) {
		seq := rapid.Uint32Max(1<<31).Draw(t, "seq")
		var want []idem.Event
		for i := range rapid.IntRange(0, 5).Draw(t, "n") {
			name := rapid.OneOf(rapid.SampledFrom(eventCodes[1:]), rapid.Just(idem.EventName("a new word"))).Draw(t, "name")
			want = append(want, idem.Event{
				Seq: int(seq) + i, At: drawTime(t, "at", true), Name: name, Attempt: rapid.IntMin(0).Draw(t, "attempt"),
				Owner: rapid.String().Draw(t, "owner"), Detail: drawBytes(t, "detail"),
			})
		}
		row, err := appendEvents(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeEvents(nil, row, seq, 0, 100)
		equal(t, got, want, err)
		from, limit := rapid.IntRange(0, 6).Draw(t, "from"), rapid.IntRange(0, 6).Draw(t, "limit")
		got, err = decodeEvents(nil, row, seq, int(seq)+from, limit)
		part := want[min(from, len(want)):]
		part = part[:min(limit, len(part))]
		if err != nil || !slices.EqualFunc(got, part, func(a, b idem.Event) bool { return a.Seq == b.Seq }) {
			t.Fatalf("%v, %v", got, err)
		}
	}))
	t.Run("effect", rapid.MakeCheck(func(t *rapid.T) {
		want := idem.Effect{
			ID: rapid.String().Draw(t, "id"), Tool: rapid.String().Draw(t, "tool"),
			Amount: drawPtr(t, rapid.Int64(), "amount"), CreatedAt: drawTime(t, "created", true),
		}
		want.Key.Name = rapid.String().Draw(t, "name")
		got, err := decodeEffect(appendEffect(nil, &want, want.Key.Name))
		equal(t, got, want, err)
	}))
	t.Run("totals", rapid.MakeCheck(func(t *rapid.T) {
		var want idem.Totals
		for _, n := range counters(&want) {
			*n = rapid.Int64().Draw(t, "n")
		}
		row := appendTotals(nil, want)
		got, err := decodeTotals(row)
		equal(t, got, want, err)
		// What a release with one count less wrote.
		last := counters(&want)
		*last[len(last)-1] = 0
		short := appendTotals(nil, want)
		got, err = decodeTotals(short[:len(short)-1])
		equal(t, got, want, err)
	}))
	t.Run("small rows", rapid.MakeCheck(func(t *rapid.T) {
		n := nsid(rapid.Uint32().Draw(t, "nsid"))
		got, err := decodeNamespace(encodeNamespace(n))
		equal(t, got, n, err)
		id := idem.CallID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		fp := idem.Fingerprint(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "fp"))
		gotID, gotFP, err := decodeIdem(appendIdem(nil, id, fp))
		equal(t, gotID, id, err)
		rules := &idem.Rules{Ignore: []string{"/" + rapid.StringMatching(`[a-z~0/ é]{0,9}x`).Filter(func(s string) bool { return !strings.Contains(strings.ReplaceAll(s, "~0", ""), "~") }).Draw(t, "ignore")}}
		gotRules, err := decodeRules(encodeRules(rules), rules.ID())
		equal(t, gotRules, rules, err)
		equal(t, gotFP, fp, err)
	}))
}

// A damaged value is an error or another value, and never a panic or a huge
// allocation.
func FuzzDecode(f *testing.F) {
	amount := int64(5)
	c := idem.Call{
		Key: idem.Key{Name: "k"}, Tool: "tool", Args: []byte("{}"), ClientID: new(string), Seq: &amount, Status: idem.StatusFailed,
		Owner: "o", ClaimedAt: testStart, EndedAt: testStart, ExpiresAt: testStart, Failure: &idem.Failure{Code: "c"}, Result: []byte("1"),
	}
	state, _ := appendState(nil, &c, 3)
	doubt := c
	doubt.InDoubt, doubt.Rules, doubt.Failure = true, idem.RulesID{1}, &idem.Failure{Code: "c", RetryAfter: time.Minute}
	state2, _ := appendState(nil, &doubt, 3)
	events, _ := appendEvents(nil, []idem.Event{{Name: idem.EventCreated, Owner: "o", Detail: []byte("{}")}, {Name: "odd"}})
	for _, v := range [][]byte{
		nil, {1}, state, state2, events, appendRequest(nil, &c), appendRequest(nil, &doubt), appendIdem(nil, idem.CallID{}, idem.Fingerprint{}),
		appendEffect(nil, &idem.Effect{ID: "e", Amount: &amount}, "k"), appendTotals(nil, idem.Totals{Calls: -1}),
		encodeRules(&idem.Rules{Ignore: []string{"/a"}, Trim: []string{"/b"}}),
		encodeNamespace(7), encodeSchema(schema{1, testStart}), bytes.Repeat([]byte{0xff}, 40),
		{1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		keep := bytes.Clone(v)
		var c idem.Call
		_, _ = decodeState(v, &c)
		_ = decodeRequest(v, &c, true)
		_, _ = decodeEvents(nil, v, 0, 0, 1000)
		_, _ = decodeEffect(v)
		_, _ = decodeNamespace(v)
		_, _, _ = decodeIdem(v)
		_, _ = decodeSchema(v)
		_, _ = decodeRules(v, idem.RulesID{})
		if sum, err := decodeTotals(v); err == nil {
			if again, err := decodeTotals(appendTotals(nil, sum)); err != nil || again != sum {
				t.Fatal(sum, again, err)
			}
		}
		if !bytes.Equal(v, keep) {
			t.Fatal("the value was changed")
		}
	})
}

func TestKeys(t *testing.T) {
	id := idem.CallID{1, 2, 3, 15: 9}
	k := appendAuditKey(nil, 7, id, 300)
	gotTID, gotID, row, ok := parseScoped(k)
	seq, isAudit := parseAudit(row)
	if !ok || gotTID != 7 || gotID != id || !isAudit || seq != 300 {
		t.Fatal(gotTID, gotID, row, ok, seq, isAudit)
	}
	if _, _, _, ok := parseScoped(k[:callLen-1]); ok {
		t.Error("a short key was taken apart")
	}
	for prefix, want := range map[string]string{"a": "b", "c\xff": "d", "c\x00\xff\xff": "c\x01"} {
		if got := string(after([]byte(prefix))); got != want {
			t.Errorf("after %q comes %q, not %q", prefix, got, want)
		}
	}
	rules := appendRulesKey(nil, idem.RulesID{1, 15: 2})
	if got, ok := parseRulesKey(rules); !ok || got != (idem.RulesID{1, 15: 2}) {
		t.Error("rules:", got, ok)
	}
	for _, k := range [][]byte{rules[:16], append(rules, 0)} {
		if _, ok := parseRulesKey(k); ok {
			t.Errorf("%q was taken apart", k)
		}
	}
	// ("a", "bc") and ("ab", "c") differ, since a namespace has a fixed width.
	if bytes.Equal(appendIdemKey(nil, 1, "bc"), appendIdemKey(nil, 2, "c")) {
		t.Error("two keys are one")
	}
}
