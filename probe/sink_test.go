package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

// TestBook: which of two payments each rule takes for one that it knows.
func TestBook(t *testing.T) {
	one, alike, other := order{"order-1", "shop", 100}, order{"order-2", "shop", 100}, order{"order-3", "shop", 300}
	for _, c := range []struct {
		rule     sinkRule
		second   order
		key      string // the first one's is k
		after    time.Duration
		replayed bool
	}{
		{naive, one, "k", 0, false},
		{keyAtomic, one, "k", time.Hour, true},
		{keyAtomic, one, "l", 0, false},
		{keyAtomic, alike, "l", 0, false},
		{keyRacy, one, "k", 0, true}, // nobody is racing
		{keyRacy, one, "l", 0, false},
		{keyTTL, one, "k", sinkWindow, true},
		{keyTTL, one, "k", sinkWindow + 1, false},
		{contentHash, one, "l", 0, true},
		{contentHash, alike, "l", 0, true},
		{contentHash, other, "k", 0, false},
	} {
		n := 0
		b := newBook(c.rule, func(payment) (string, error) { n++; return fmt.Sprint(n), nil })
		var now time.Duration
		b.now = func() time.Duration { return now }
		if e, replayed, err := b.pay(t.Context(), one, "k"); e != "1" || replayed || err != nil {
			t.Errorf("%s: the first: %s, %t, %v", c.rule, e, replayed, err)
		}
		now += c.after
		e, replayed, err := b.pay(t.Context(), c.second, c.key)
		if err != nil || replayed != c.replayed || (e == "1") != c.replayed || (n == 1) != c.replayed {
			t.Errorf("%s, %+v with key %s after %v: %s, replayed %t, %v, %d payments", c.rule, c.second, c.key, c.after, e, replayed, err, n)
		}
	}
	// What was not written was not paid.
	for _, rule := range []sinkRule{keyAtomic, keyRacy, keyTTL, contentHash} {
		fails := errors.New("full")
		b := newBook(rule, func(payment) (string, error) { return "", fails })
		if _, _, err := b.pay(t.Context(), one, "k"); !errors.Is(err, fails) || len(b.paid) != 0 {
			t.Errorf("%s: %v, %d remembered", rule, err, len(b.paid))
		}
	}
	if _, _, err := newBook("none", nil).pay(t.Context(), one, "k"); err == nil {
		t.Error("an unknown rule pays")
	}
}

// TestCrowd: nobody goes on alone, and nobody waits for ever.
func TestCrowd(t *testing.T) {
	c := &crowd{size: 2}
	ctx, cancel := context.WithCancel(t.Context())
	alone := make(chan error, 1)
	go func() { alone <- c.meet(ctx, "a") }()
	if err := meetTwo(t, c, "b"); err != nil { // others do not count
		t.Error(err)
	}
	select {
	case err := <-alone:
		t.Errorf("it goes on alone: %v", err)
	default:
	}
	cancel()
	if err := <-alone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := c.meet(t.Context(), "b"); err != nil { // who is late does not wait
		t.Error(err)
	}
}

func meetTwo(t *testing.T, c *crowd, identity string) error {
	t.Helper()
	first := make(chan error, 1)
	go func() { first <- c.meet(t.Context(), identity) }()
	return errors.Join(c.meet(t.Context(), identity), <-first)
}

// TestSinkOutlivesItself: a ledger goes on where it was; keys do not.
func TestSinkOutlivesItself(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	wire := client.NewTransport()
	defer wire.CloseIdleConnections()
	for life := range 2 {
		s, err := openSink(keyAtomic, ledger, &faults{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &caller{url: s.url, keyHeader: keyHeader, keys: stableKey, tries: 1, send: wire}
		for i := range 2 {
			tries, err := c.ask(t.Context(), "order-1", "k", []byte(`{"intent":"order-1","to":"shop","amount":1}`))
			if err != nil || len(tries) != 1 || tries[0].Status != 200 || tries[0].Replayed != (i == 1) {
				t.Errorf("life %d: %+v, %v", life, tries, err)
			}
		}
		tries, err := c.ask(t.Context(), "order-1", "k", []byte(`{"amount":1}`))
		if err != nil || tries[0].Status != http.StatusBadRequest || tries[0].Then != "stop" {
			t.Errorf("%+v, %v", tries, err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
	lines, err := readLines(ledger)
	want := []string{
		`{"effect_id":"pay_1","intent":"order-1","key":"k","to":"shop","amount":1}`,
		`{"effect_id":"pay_2","intent":"order-1","key":"k","to":"shop","amount":1}`,
	}
	if err != nil || !slices.Equal(lines, want) {
		t.Errorf("%q, %v", lines, err)
	}
}

// answers gives a caller one answer after the other; nil is none.
type answers struct {
	all  []*http.Response
	errs []error
	keys []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	n := len(a.keys)
	a.keys = append(a.keys, r.Header.Get(keyHeader))
	if r.GetBody != nil {
		return nil, errors.New("it could be sent twice")
	}
	if a.all[n] == nil {
		return nil, a.errs[n]
	}
	return a.all[n], nil
}

func TestCaller(t *testing.T) {
	answer := func(status int, body string) *http.Response {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: nopCloser{bytes.NewReader([]byte(body))}}
	}
	for _, c := range []struct {
		name   string
		keys   keying
		tries  int
		answer *http.Response
		err    error
		sent   int
		last   Try
	}{
		{"done", stableKey, 3, answer(200, ""), nil, 1, Try{Status: 200, Answer: "OK", Effect: idem.DoubtCommitted, Then: "done"}},
		{"done in another word", stableKey, 3, answer(201, "{}"), nil, 1, Try{Status: 201, Answer: "Created", Effect: idem.DoubtCommitted, Then: "done"}},
		{"done without a word", stableKey, 3, answer(204, ""), nil, 1, Try{Status: 204, Answer: "No Content", Effect: idem.DoubtCommitted, Then: "done"}},
		{"accepted", stableKey, 3, answer(202, ""), nil, 1, Try{Status: 202, Answer: "Accepted", Effect: idem.DoubtUnknown, Then: "accepted"}},
		{"refused", stableKey, 3, answer(422, "no"), nil, 1, Try{Status: 422, Answer: "Unprocessable Entity", Effect: idem.DoubtNone, Then: "stop"}},
		{"refused by idemd", stableKey, 3, answer(410, `{"error":{"code":"key_expired","effect":"none"}}`), nil, 1,
			Try{Status: 410, Answer: "key_expired", Effect: idem.DoubtNone, Then: "stop"}},
		{"busy", stableKey, 2, answer(503, ""), nil, 2, Try{Status: 503, Answer: "Service Unavailable", Effect: idem.DoubtUnknown, Then: "give up"}},
		{"lost", keyPerAttempt, 2, nil, errors.New("EOF"), 2, Try{Answer: "no answer: closed", Effect: idem.DoubtUnknown, Then: "give up"}},
		{"reset", noKey, 2, nil, errors.New("connection reset by peer"), 2, Try{Answer: "no answer: reset", Effect: idem.DoubtUnknown, Then: "give up"}},
		{"late", stableKey, 1, nil, context.DeadlineExceeded, 1, Try{Answer: "no answer in time", Effect: idem.DoubtUnknown, Then: "give up: it never tries again"}},
		{"not sent", stableKey, 1, nil, client.ErrNotSent, 1, Try{Answer: "no connection", Effect: idem.DoubtNone, Then: "give up: it never tries again"}},
	} {
		a := &answers{all: make([]*http.Response, c.tries), errs: make([]error, c.tries)}
		for i := range c.tries {
			a.all[i], a.errs[i] = c.answer, c.err
		}
		tries, err := (&caller{url: "http://localhost/", keyHeader: keyHeader, keys: c.keys, tries: c.tries, send: a}).ask(t.Context(), "i", "k", []byte("{}"))
		if err != nil || len(tries) != c.sent || len(a.keys) != c.sent {
			t.Errorf("%s: %+v, %v", c.name, tries, err)
			continue
		}
		want := c.last
		want.Number, want.Intent, want.Key, want.Request = c.sent, "i", c.keys.of("k", c.sent), "POST"
		if got := tries[c.sent-1]; got != want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, want)
		}
		for i, key := range a.keys {
			if key != map[keying]string{stableKey: "k", noKey: "", keyPerAttempt: fmt.Sprintf("k-try-%d", i+1)}[c.keys] {
				t.Errorf("%s: try %d has the key %q", c.name, i+1, key)
			}
		}
	}
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }
