package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// shopTarget is a shop of another make as a target.
func shopTarget(t *testing.T, program string, flags ...string) *Target {
	t.Helper()
	ledger := filepath.Join(t.TempDir(), "payments.csv")
	return &Target{
		URL: startShop(t, program, append([]string{"-ledger", ledger}, flags...)...), Ledger: ledger, KeyHeader: "X-Payment-Token",
		Body: `{"purchase":"{{intent}}","cents":{{amount}}}`, Table: Table{Field: "purchase"},
		Intents: 2, Timeout: time.Second, Settle: 10 * time.Millisecond,
	}
}

// TestTargets: a service that is right and one that doubles, neither of them ours,
// get different verdicts, and each in its ledger's own words.
func TestTargets(t *testing.T) {
	want := []string{
		"target_lost_answer", "target_slow_answer", "target_duplicate_request", "target_race_2", "target_race_20",
		"target_two_intents", "target_other_args",
	}
	shop := program(t, "./testdata/shop")
	for _, c := range []struct {
		name string
		flag []string
		dup  []int
	}{
		{"right", nil, []int{0, 0, 0, 0, 0, 0, 0}},
		{"doubles", []string{"-wrong"}, []int{2, 2, 2, 2, 19, 0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := shopTarget(t, shop, c.flag...)
			if c.name == "right" { // the same ledger by another way
				target.Ledger = strings.TrimSuffix(target.URL, "/pay") + "/books"
			}
			r, err := probeIn(t, t.Context(), Options{Target: target})
			if err != nil {
				t.Fatal(err)
			}
			if r.OK != (c.flag == nil) || len(r.Scenarios) != len(want) {
				t.Errorf("OK %t\n%s", r.OK, table(t, r))
			}
			for i, s := range r.Scenarios {
				if s.Scenario != want[i] || s.Duplicates != c.dup[i] || s.Lost != 0 || s.OK != (c.dup[i] == 0) || len(s.Ledger) != s.Committed {
					t.Errorf("%s: want %d duplicates, got %+v, OK %t, %d lines", want[i], c.dup[i], s.Numbers, s.OK, len(s.Ledger))
				}
			}
			if s := r.Scenarios[0]; s.Requests != 4 || s.Tries[0].Then != "again, the same key" || s.Tries[1].Status/100 != 2 {
				t.Errorf("%+v, %+v", s.Numbers, s.Tries)
			}
			if s := r.Scenarios[1]; s.Tries[0].Answer != "no answer in time" {
				t.Errorf("%+v", s.Tries)
			}
			notes := strings.Join(r.Scenarios[6].Notes, "\n")
			if refused := strings.Contains(notes, "were refused with 422"); refused != (c.flag == nil) {
				t.Errorf("other args: %s", notes)
			}
		})
	}
	t.Run("notes", func(t *testing.T) { testTargetNotes(t, shop) })
}

// testTargetIsIdemd: idemd itself is a target like any other, its ledger found by
// its address alone.
func testTargetIsIdemd(t *testing.T, binary string) {
	d, err := startDaemon(t.Context(), binary, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	url := d.now().url
	r, err := probeIn(t, t.Context(), Options{
		Names: []string{"target_lost_answer", "target_race_20", "target_other_args"},
		Target: &Target{
			URL: url + "/v1/tool-calls", Ledger: url, Body: `{"tool":"charge","args":{"amount":{{amount}}}}`,
			Header: http.Header{"Prefer": {"wait=10"}}, Settle: 10 * time.Millisecond,
		},
	})
	if err != nil || !r.OK || len(r.Scenarios) != 3 {
		t.Fatalf("%v\n%s", err, table(t, r))
	}
}

// testTargetNotes: what cannot be tried is said, and entries of others are theirs.
func testTargetNotes(t *testing.T, shop string) {
	target := shopTarget(t, shop)
	target.Body = `{"purchase":"{{intent}}","cents":5}`
	file, err := os.OpenFile(target.Ledger, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("r0,somebody-else,1\n"); err != nil {
		t.Fatal(err)
	}
	r, err := probeIn(t, t.Context(), Options{Names: []string{"target_other_args"}, Target: target, Progress: func(string, int, int) {
		if _, err := file.WriteString("r00,somebody-else,1\n"); err != nil {
			t.Error(err)
		}
	}})
	if err != nil || !r.OK || r.Scenarios[0].Requests != 1 {
		t.Fatalf("%v\n%s", err, table(t, r))
	}
	notes := r.Scenarios[0].Notes
	if len(notes) != 2 || !strings.Contains(notes[0], "{{amount}}") || !strings.Contains(notes[1], "1 entries more") {
		t.Errorf("%q", notes)
	}
}

// TestTargetPreconditions: nothing is sent before it is known that it can be
// judged.
func TestTargetPreconditions(t *testing.T) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			asked <- struct{}{}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deaf := "http://" + l.Addr().String()
	_ = l.Close()
	broken := filepath.Join(t.TempDir(), "broken.csv")
	if err := os.WriteFile(broken, []byte("order,cents\na,1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		target Target
		says   string
	}{
		{"nobody listens", Target{URL: deaf, Ledger: broken}, "cannot be reached"},
		{"no ledger at the URL", Target{URL: server.URL, Ledger: server.URL + "/ledger"}, "status 404"},
		{"a ledger without the column", Target{URL: server.URL, Ledger: broken}, `no column "idem_key"`},
		{"a ledger that is cut off", Target{URL: server.URL, Ledger: broken, Table: Table{Field: "order"}}, "cut off"},
		{"no URL", Target{URL: "ftp://127.0.0.1/", Ledger: broken}, "http://HOST:PORT/PATH"},
		{"another machine", Target{URL: "http://192.0.2.1/pay", Ledger: broken}, "test system"},
		{"another machine by its name", Target{URL: "http://example.com/pay", Ledger: broken}, "test system"},
		{"everything at once", Target{URL: server.URL, KeyHeader: "a b", Intents: 5000, Timeout: -1, Settle: -1},
			"without a ledger nothing can be judged\nprobe: target: \"a b\" is not the name of a field\nprobe: target: 5000 intents"},
		{"a field for the key that cannot be sent", Target{URL: server.URL, Ledger: broken, KeyHeader: "Clé"}, "not the name of a field"},
		{"a field that cannot be sent", Target{URL: server.URL, Ledger: broken, Header: http.Header{"A B": {"1"}}}, `"A B" is not the name of a field`},
		{"a value that cannot be sent", Target{URL: server.URL, Ledger: broken, Header: http.Header{"A": {"1", "\n"}}}, "field A has a control character"},
		{"a patience without end", Target{URL: server.URL, Ledger: broken, Timeout: 2 * time.Hour}, "at most 1h"},
	} {
		r, err := probeIn(t, t.Context(), Options{Target: &c.target})
		if !errors.Is(err, ErrPrecondition) || !strings.Contains(err.Error(), c.says) || r.OK {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if len(asked) != 0 {
		t.Errorf("%d requests were sent", len(asked))
	}
	remote := Target{URL: "https://example.com/pay", Ledger: broken, Remote: true}
	if err := remote.Validate(); err != nil {
		t.Errorf("a test system that is said to be one: %v", err)
	}
}

// TestTargetWithoutEffects: a ledger that never comes is no verdict, and an empty one
// is that all is lost.
func TestTargetWithoutEffects(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer server.Close()
	target := Target{URL: server.URL, Ledger: filepath.Join(t.TempDir(), "ledger.ndjson"), Settle: time.Millisecond}
	o := Options{Target: &target, Names: []string{"target_two_intents"}}
	r, err := probeIn(t, t.Context(), o)
	if !errors.Is(err, ErrPrecondition) || r.OK {
		t.Errorf("%v, OK %t", err, r.OK)
	}
	if err := os.WriteFile(target.Ledger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err = probeIn(t, t.Context(), o)
	if err != nil || r.OK || r.Scenarios[0].Lost != 2 {
		t.Errorf("%v\n%s", err, table(t, r))
	}
}

// TestTargetUnjudged: what was done and cannot be judged is no result.
func TestTargetUnjudged(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if err := os.WriteFile(ledger, []byte("{}\n"), 0o600); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	target := Target{URL: server.URL, Ledger: ledger, Settle: time.Millisecond}
	r, err := probeIn(t, t.Context(), Options{Target: &target, Names: []string{"target_two_intents"}})
	if !errors.Is(err, ErrPrecondition) || r.OK || len(r.Scenarios) != 0 {
		t.Errorf("%v\n%s", err, table(t, r))
	}
}

// TestTargetPatience: no try that may be made is taken for one that hangs, and
// what is held back does not come before its client has given up.
func TestTargetPatience(t *testing.T) {
	slow := env{target: &target{Target: Target{Intents: maxIntents, Timeout: maxTimeout}}}
	if got := slow.patience(); got < 3000*maxTimeout {
		t.Error(got)
	}
	for _, timeout := range []time.Duration{time.Second, maxTimeout} {
		o := targetPlay{hit: Fault{Mode: DelayResponse}}.proxy(&target{Target: Target{Timeout: timeout}, base: "http://127.0.0.1:1"})
		if err := o.Validate(); err != nil || o.Rules[0].Faults[0].Delay <= timeout || o.Timeout <= timeout {
			t.Errorf("%v, %+v", err, o)
		}
	}
}

// TestTargetMedia: a target that takes something else than JSON gets it.
func TestTargetMedia(t *testing.T) {
	media := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { media <- r.Header.Get("Content-Type") }))
	defer server.Close()
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	if err := os.WriteFile(ledger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"application/json", "application/x-www-form-urlencoded"} {
		header := http.Header{}
		if want != "application/json" {
			header.Set("Content-Type", want)
		}
		target := Target{URL: server.URL, Ledger: ledger, Header: header, Body: "order={{intent}}", Settle: time.Millisecond}
		if _, err := probeIn(t, t.Context(), Options{Target: &target, Names: []string{"target_two_intents"}}); err != nil {
			t.Fatal(err)
		}
		if got := <-media; got != want || <-media != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestTargetCredential: what is in the header goes to the target and to nobody else.
func TestTargetCredential(t *testing.T) {
	seen := make(chan string, 100)
	serve := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen <- name + " " + r.Method + " " + r.Header.Get("Authorization")
			if r.Method == http.MethodGet {
				w.Header().Set("Content-Type", "application/x-ndjson")
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	a, b := serve("a"), serve("b")
	for _, ledger := range []string{a.URL + "/ledger", b.URL + "/ledger"} {
		target := Target{URL: a.URL, Ledger: ledger, Header: http.Header{"Authorization": {"secret"}}, Settle: time.Millisecond}
		if _, err := probeIn(t, t.Context(), Options{Target: &target, Names: []string{"target_two_intents"}}); err != nil {
			t.Fatal(err)
		}
	}
	close(seen)
	var all []string
	for s := range seen {
		all = append(all, s)
	}
	slices.Sort(all)
	if got := slices.Compact(all); !slices.Equal(got, []string{"a GET secret", "a POST secret", "b GET "}) {
		t.Errorf("%q", got)
	}
}

func TestTargetInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		select {
		case <-r.Context().Done():
		case <-hangs:
		}
	}))
	defer server.Close()
	defer close(hangs)
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	_, err := probeIn(t, ctx, Options{Target: &Target{URL: server.URL, Ledger: ledger, Timeout: time.Hour}})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
