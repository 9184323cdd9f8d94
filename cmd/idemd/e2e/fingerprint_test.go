//go:build unix

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// member is a member of an object whose order is to be changed.
type member struct {
	name  string
	value any // JSON text, or []member
}

// write writes an object with its members in a random order at every depth.
func write(members []member, random *rand.Rand) string {
	order := random.Perm(len(members))
	parts := make([]string, len(members))
	for i, at := range order {
		m := members[at]
		text, ok := m.value.(string)
		if !ok {
			text = write(m.value.([]member), random)
		}
		parts[i] = `"` + m.name + `":` + text
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// TestOrderOfMembers: the order of members is not part of an intent, the order of
// items is (R3).
func TestOrderOfMembers(t *testing.T) {
	t.Parallel()
	random := chance(t)
	d := start(t)
	intent := func(items string) []member {
		return []member{
			{"amount", "100"}, {"currency", `"eur"`}, {"memo", `"x"`}, {"tags", items},
			{"customer", []member{
				{"id", `"c-1"`}, {"name", `"Åsa"`}, {"vip", "true"}, {"none", "null"},
				{"address", []member{
					{"street", `"a"`}, {"city", `"b"`}, {"zip", `"1"`}, {"lines", `[1,2]`},
					{"geo", []member{{"lat", "1.5"}, {"lon", "-2.25"}, {"alt", "0"}, {"src", `"gps"`}}},
				}},
			}},
		}
	}
	a := d.post("order-1", "charge", write(intent(`["x","y"]`), random), wait(20)).wantEnd(t, idem.StatusSucceeded)
	spellings := make(map[string]bool)
	for range 100 {
		args := write(intent(`["x","y"]`), random)
		spellings[args] = true
		if r := d.post("order-1", "charge", args); !r.wantEnd(t, idem.StatusSucceeded).sameEnd(a) || r.replayed() != "true" {
			t.Errorf("%s: want %v again, got %v", args, a, r)
		}
	}
	if len(spellings) < 99 {
		t.Errorf("only %d spellings", len(spellings))
	}
	d.post("order-1", "charge", write(intent(`["y","x"]`), random)).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	reconcile(t, d, "order-1")
}

// TestSpellingOfValues: numbers are their values, text is itself (R3).
func TestSpellingOfValues(t *testing.T) {
	t.Parallel()
	d := start(t)
	args := func(amount, x string) string { return `{"amount":` + amount + x + `}` }
	var intents []string
	for i, c := range []struct {
		first string
		same  []string
		other []string
	}{
		{args("100", ""), []string{args("100.0", ""), args("1e2", ""), args("1E+2", ""), args("1000e-1", ""), args("100.00e0", "")},
			[]string{args("101", ""), args("1e3", "")}},
		{args("1", `,"x":1`), []string{args("1", `,"x":1.0`), args("1", `,"x":1e0`), args("1", `,"x":10e-1`)},
			[]string{args("1", `,"x":"1"`), args("1", `,"x":true`), args("1", `,"x":[1]`)}},
		{args("1", `,"x":0`), []string{args("1", `,"x":-0`), args("1", `,"x":0.0`), args("1", `,"x":-0e7`)},
			[]string{args("1", `,"x":null`), args("1", ``), args("1", `,"x":false`)}},
		{args("1", `,"x":1.10`), []string{args("1", `,"x":1.1`), args("1", `,"x":11e-1`)}, []string{args("1", `,"x":1.11`)}},
		{args("1", `,"x":9007199254740993`), []string{args("1", `,"x":9007199254740993.0`)}, []string{args("1", `,"x":9007199254740992`)}},
		{args("1", `,"x":null`), nil, []string{args("1", ``), args("1", `,"x":"null"`)}},
		{args("1", `,"x":"é"`), []string{args("1", `,"x":"\u00e9"`), args("1", `,"\u0078":"é"`)}, []string{args("1", `,"x":"e\u0301"`), args("1", `,"x":"É"`)}},
		{args("1", `,"x":"a/b"`), []string{args("1", `,"x":"a\/b"`), args("1", `,"x":"\u0061/b"`)}, []string{args("1", `,"x":"a/b "`)}},
	} {
		key := fmt.Sprint("value-", i)
		intents = append(intents, key)
		a := d.post(key, "charge", c.first, wait(20)).wantEnd(t, idem.StatusSucceeded)
		for _, same := range c.same {
			if r := d.post(key, "charge", same); !r.wantEnd(t, idem.StatusSucceeded).sameEnd(a) {
				t.Errorf("%s after %s: %v", same, c.first, r)
			}
		}
		for _, other := range c.other {
			d.post(key, "charge", other).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
		}
	}
	reconcile(t, d, intents...)
}

// TestRefusedDocuments sends what has no canonical form. It is refused at once,
// the key stays free, and a document that looks large when it is computed costs
// nothing.
func TestRefusedDocuments(t *testing.T) {
	t.Parallel()
	d := start(t)
	amount := func(s string) string { return `{"tool":"charge","args":{"amount":1,"x":` + s + `}}` }
	for i, c := range []struct{ name, body string }{
		{"a huge exponent", amount("1e999999999")},
		{"a huge exponent of zero", amount("0E99999999999")},
		{"a huge negative exponent", amount("1e-999999999")},
		{"a million digits", amount(strings.Repeat("7", 1_000_000))},
		{"a million digits of a fraction", amount("0." + strings.Repeat("7", 1_000_000))},
		{"a depth of 100 000", amount(strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000))},
		{"a depth of 100 000 objects", amount(strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000))},
		{"an open depth", amount(strings.Repeat("[", 500_000))},
		{"a name twice", amount(`{"a":1,"a":1}`)},
		{"a name twice, spelled with an escape", amount(`{"a":1,"\u0061":2}`)},
		{"a lone surrogate", amount(`"\ud800"`)},
		{"invalid UTF-8", amount("\"\xff\"")},
		{"something after it", amount("1") + "x"},
		{"two documents", amount("1") + amount("1")},
		{"a member that nobody knows", `{"tool":"charge","args":{"amount":1},"key":"k"}`},
		{"a name in capitals", `{"Tool":"charge","args":{"amount":1}}`},
		{"null for absent", `{"tool":"charge","args":{"amount":1},"client_id":null}`},
		{"not an object", `[]`},
		{"a byte order mark", "\ufeff" + amount("1")},
	} {
		key := fmt.Sprint("free-", i)
		r := d.send(key, c.body, wait(20))
		r.wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest)
		if r.took > generous(time.Second) {
			t.Errorf("%s: refused only after %v", c.name, r.took)
		}
		d.find(key).wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	}
	// The same on a key that is taken: whoever cannot be understood is told so.
	d.post("taken", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	d.send("taken", amount("1e999999999")).wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest)

	over := d.send("large", `{"tool":"charge","args":{"amount":1,"x":"`+strings.Repeat("x", 1<<20)+`"}}`)
	over.wantRefusal(t, http.StatusRequestEntityTooLarge, idem.CodePayloadTooLarge)
	d.find("large").wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	d.send("text", amount("1"), header("Content-Type", "text/plain")).
		wantRefusal(t, http.StatusUnsupportedMediaType, idem.CodeUnsupportedMediaType)
	reconcile(t, d, "taken")
}

// TestEnvelopeIsNotTheIntent retries through doors that spell everything around
// the args in another way (R3).
func TestEnvelopeIsNotTheIntent(t *testing.T) {
	t.Parallel()
	d := start(t)
	const body = `{"tool":"charge","args":{"amount":100,"memo":"a b"},"client_id":"demo","seq":1}`
	a := d.send("order-1", body, wait(20)).wantEnd(t, idem.StatusSucceeded)
	for name, again := range map[string]func() reply{
		"another client": func() reply { return d.send("order-1", strings.Replace(body, "demo", "other", 1)) },
		"another seq":    func() reply { return d.send("order-1", strings.Replace(body, `"seq":1`, `"seq":-20`, 1)) },
		"no envelope":    func() reply { return d.post("order-1", "charge", `{"amount":100,"memo":"a b"}`) },
		"other order":    func() reply { return d.send("order-1", `{"seq":1,"args":{"memo":"a b","amount":100},"tool":"charge"}`) },
		"white space": func() reply {
			return d.send("order-1", "\r\n{ \"tool\" :\t\"charge\", \"args\": {\n\"amount\" : 100 , \"memo\":\"a b\" } }\n ")
		},
		"tracing": func() reply {
			return d.send("order-1", body, header("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), header("X-Request-Id", "7"))
		},
		"a charset": func() reply {
			return d.send("order-1", body, header("Content-Type", "application/json; charset=utf-8"))
		},
		"media in capitals": func() reply { return d.send("order-1", body, header("Content-Type", "Application/JSON")) },
		"the key in quotes": func() reply { return d.send(`"order-1"`, body) },
		"a wait":            func() reply { return d.send("order-1", body, wait(3)) },
		"problem details":   func() reply { return d.send("order-1", body, header("Accept", "application/problem+json")) },
	} {
		r := again()
		if c := r.wantEnd(t, idem.StatusSucceeded); !c.sameEnd(a) || r.replayed() != "true" || c.ClientID == nil || *c.ClientID != "demo" || *c.Seq != 1 {
			t.Errorf("%s: want %v again, got %v", name, a, r)
		}
	}
	d.send("order-1", strings.Replace(body, "a b", "a  b", 1)).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	reconcile(t, d, "order-1")
}
