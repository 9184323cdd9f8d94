package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// serveAt serves from a directory until stop is called, and gives the URL.
func serveAt(t *testing.T, dir string, args ...string) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, args...), nil, io.Discard, w)
		_ = w.Close()
	}()
	urls := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		b := make([]byte, 4096)
		for up := false; ; {
			n, err := r.Read(b)
			all.Write(b[:n])
			if _, rest, ok := strings.Cut(all.String(), "idemd listening on "); ok && !up {
				if at, _, whole := strings.Cut(rest, "\n"); whole {
					up = true
					urls <- at
				}
			}
			if err != nil {
				if !up {
					urls <- ""
				}
				return
			}
		}
	}()
	if url = <-urls; url == "" {
		t.Fatalf("it does not listen; exit code %d", <-ended)
	}
	return url, func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// diary asks a server and writes a client's log of it.
type diary struct {
	t     *testing.T
	url   string
	name  string
	tries int
	log   []probe.Entry
}

// ask makes a try and logs it.
func (d *diary) ask(kind probe.EntryKind, key, tool, args string) probe.Entry {
	d.t.Helper()
	d.tries++
	e := probe.Entry{Kind: kind, Client: d.name, Key: key, Tool: tool, Try: d.tries, Sent: true, Began: time.Now()}
	var body io.Reader
	method, path := http.MethodGet, pathCalls+"/by-key"
	if kind == probe.EntryPost {
		method, path = http.MethodPost, pathCalls
		body = strings.NewReader(fmt.Sprintf(`{"tool":%q,"args":%s}`, tool, args))
	}
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "wait=10")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	e.At, e.Status, e.Replayed = time.Now(), resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true"
	if resp.StatusCode >= 300 {
		var doc struct {
			Error struct {
				Code   idem.Code  `json:"code"`
				CallID string     `json:"call_id"`
				Effect idem.Doubt `json:"effect"`
			} `json:"error"`
		}
		if err := json.Unmarshal(raw, &doc); err != nil {
			d.t.Fatal(err)
		}
		e.Code, e.CallID, e.Effect = doc.Error.Code, doc.Error.CallID, doc.Error.Effect
	} else {
		var doc struct {
			CallID    string          `json:"call_id"`
			Status    idem.Status     `json:"status"`
			Attempt   int             `json:"attempt"`
			Result    json.RawMessage `json:"result"`
			Error     json.RawMessage `json:"error"`
			UpdatedAt time.Time       `json:"updated_at"`
		}
		if err := json.Unmarshal(raw, &doc); err != nil {
			d.t.Fatal(err)
		}
		e.CallID, e.State, e.Attempt, e.UpdatedAt = doc.CallID, doc.Status, doc.Attempt, doc.UpdatedAt
		e.Retryable = bytes.Contains(doc.Error, []byte(`"retryable":true`))
		e.Result, e.Error = probe.Digest(doc.Result), probe.Digest(doc.Error)
	}
	d.log = append(d.log, e)
	return e
}

func (d *diary) outcome(e probe.Entry, effect idem.Doubt) {
	e.Kind, e.Try, e.Sent, e.Status, e.Effect = probe.EntryOutcome, 0, false, 0, effect
	d.log = append(d.log, e)
}

func lines[T any](t *testing.T, docs []T) string {
	t.Helper()
	var b strings.Builder
	for i := range docs {
		line, err := json.Marshal(docs[i])
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

// A real server's history holds, asked of the server and of its directory, and
// a fault that is planted in the log does not.
func TestCheckHistory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	url, stop := serveAt(t, dir)
	a, b := &diary{t: t, url: url, name: "a"}, &diary{t: t, url: url, name: "b"}
	a.ask(probe.EntryFind, "order-1", "charge", "")
	a.outcome(a.ask(probe.EntryPost, "order-1", "charge", `{"amount":100}`), idem.DoubtCommitted)
	b.ask(probe.EntryPost, "order-1", "charge", `{"amount":100}`)
	b.outcome(b.ask(probe.EntryPost, "order-1", "charge", `{"amount":101}`), idem.DoubtNone)
	a.ask(probe.EntryPost, "retried", "fail", `{"retryable":true,"times":2}`)
	b.ask(probe.EntryFind, "retried", "fail", "")
	a.ask(probe.EntryPost, "retried", "fail", `{"retryable":true,"times":2}`)
	b.outcome(b.ask(probe.EntryPost, "retried", "fail", `{"retryable":true,"times":2}`), idem.DoubtNone)
	a.outcome(a.ask(probe.EntryPost, "failed", "fail", `{}`), idem.DoubtNone)
	b.ask(probe.EntryPost, "slept", "sleep", `{"seconds":0.01}`)
	last := a.ask(probe.EntryFind, "order-1", "charge", "")
	if last.State != idem.StatusSucceeded || b.log[2].Code != idem.CodeConflict {
		t.Fatalf("%+v, %+v", last, b.log[2])
	}

	logs := []string{"check-history", "--client", write(t, "a.ndjson", lines(t, a.log)), "--client", write(t, "b.ndjson", lines(t, b.log))}
	a.log[len(a.log)-1].Result = probe.Digest(nil)
	fault := []string{"check-history", "--client", write(t, "a.ndjson", lines(t, a.log)), "--client", write(t, "b.ndjson", lines(t, b.log))}
	check := func(source string) {
		t.Helper()
		o := runIdemd(t, "", append(logs, "--ledger", source, "--audit", source)...)
		o.want(t, 0, fmt.Sprintf("entries    %d\nkeys       4\neffects    1\ncalls      4\nunfinished 0\nbroken     0\n", len(a.log)+len(b.log)), "holds to every rule")
		o = runIdemd(t, "", append(fault, "--ledger", source, "--audit", source)...)
		o.want(t, 1, o.stdout, "breaks the rules 1 times")
		if want := "  same_bytes: key order-1, call " + last.CallID + ": an end, succeeded, attempt 1, was shown with other bytes\n"; !strings.Contains(o.stdout, want) ||
			!strings.Contains(o.stdout, fmt.Sprintf("a.ndjson:%d\n", len(a.log))) {
			t.Error(o.stdout)
		}
		o = runIdemd(t, "", append(fault, "--ledger", source, "--audit", source, "--json")...)
		var doc findingsDoc
		if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || o.code != 1 || doc.Clean || doc.Broken != 1 || len(doc.Violations) != 1 || len(doc.Violations[0].Proof) != 2 {
			t.Errorf("%v, %s", err, o.stdout)
		}
	}
	check(url)
	stop()
	check(dir)
	runIdemd(t, "", append(logs, "--ledger", dir, "--audit", dir, "--namespace", "other")...).want(t, 1,
		runIdemd(t, "", append(logs, "--ledger", write(t, "l", ""), "--audit", write(t, "u", ""))...).stdout, "breaks the rules")

	// A server that has forgotten a call is found out.
	none := filepath.Join(t.TempDir(), "none")
	url, stop = serveAt(t, none)
	defer stop()
	o := runIdemd(t, "", append(logs, "--ledger", url, "--audit", url, "--json")...)
	var doc findingsDoc
	if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || o.code != 1 {
		t.Fatalf("%v, %+v", err, o)
	}
	if !slices.ContainsFunc(doc.Violations, func(v probe.Violation) bool { return v.Rule == probe.RuleLostCall && v.Key == "order-1" }) {
		t.Error(o.stdout)
	}
}

// refusedTry is a line of a log that breaks no rule.
const refusedTry = `{"kind":"post","client":"c","idem_key":"k","began":"2026-11-29T16:00:00Z","at":"2026-11-29T16:00:01Z","sent":true,"status":503,"code":"unavailable","effect":"none"}` + "\n"

// Many violations: people are shown some, machines more.
func TestCheckHistoryMany(t *testing.T) {
	var ledger strings.Builder
	for i := range 30 {
		fmt.Fprintf(&ledger, `{"effect_id":"x","call_id":"c","idem_key":"k%02d"}`+"\n", i)
	}
	args := []string{"check-history", "--client", write(t, "c", refusedTry), "--ledger", write(t, "l", ledger.String()), "--audit", "-"}
	o := runIdemd(t, "", args...)
	if o.code != 1 || strings.Count(o.stdout, "\n    ") < shownViolations || !strings.Contains(o.stdout, " more\n") {
		t.Errorf("%+v", o)
	}
	o = runIdemd(t, "", append(args, "--json")...)
	var doc findingsDoc
	if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || len(doc.Violations) != doc.Broken || doc.Broken < 60 {
		t.Errorf("%v, %d", err, doc.Broken)
	}
}

func TestCheckHistoryRefuses(t *testing.T) {
	empty := write(t, "empty.ndjson", "")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer srv.Close()
	args := func(client, ledger, audit string, more ...string) []string {
		return append([]string{"--client", client, "--ledger", ledger, "--audit", audit}, more...)
	}
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"no log", []string{"--ledger", empty, "--audit", empty}, 2, "--client"},
		{"no ledger", []string{"--client", empty, "--audit", empty}, 2, "--ledger"},
		{"no trails", []string{"--client", empty, "--ledger", empty}, 2, "--audit"},
		{"stdin twice", args("-", "-", empty), 2, "only one"},
		{"no entries allowed", args(empty, empty, empty, "--max-entries", "0"), 2, "at least 1"},
		{"a skew below 0", args(empty, empty, empty, "--skew=-1s"), 2, "--skew"},
		{"nothing to check", args(empty, empty, empty), 2, "nothing to check"},
		{"no such log", args(empty+".x", empty, empty), 2, "no such file"},
		{"a bad log", args(write(t, "c.ndjson", "\n{}\n"), empty, empty), 2, "c.ndjson: line 2: there is no kind"},
		{"a log that is cut off", args(write(t, "c.ndjson", `{"kind":"po`), empty, empty), 2, "the file may be cut off"},
		{"a bad ledger", args(empty, write(t, "l.ndjson", "{}"), empty), 2, "l.ndjson: line 1: an effect needs"},
		{"bad trails", args(empty, empty, write(t, "u.ndjson", "{}")), 2, "u.ndjson: line 1: an audit trail needs"},
		{"a directory without a store", args(empty, t.TempDir(), empty), 2, "there is no store"},
		{"a directory without a store, for the trails", args(empty, empty, t.TempDir()), 2, "there is no store"},
		{"nobody there", args(empty, "http://127.0.0.1:1", empty), 7, "refused"},
		{"nobody there, for the trails", args(empty, empty, "http://127.0.0.1:1"), 7, "refused"},
		{"somebody else", args(empty, srv.URL, empty), 7, "not idemd's"},
		{"somebody else, for the trails", args(empty, empty, srv.URL), 7, "not idemd's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runIdemd(t, "", append([]string{"check-history"}, tc.args...)...).want(t, tc.code, "", tc.stderr)
		})
	}
	runIdemd(t, "", append([]string{"check-history"}, args(write(t, "c.ndjson", refusedTry), empty, empty)...)...).want(t, 0,
		"entries    1\nkeys       1\neffects    0\ncalls      0\nunfinished 0\nbroken     0\n", "holds to every rule")
}

// A server lists no call that has expired; its effect is in the ledger for ever,
// and its trail is asked for by its id.
func TestCheckHistoryUnlisted(t *testing.T) {
	id := idem.NewCallID(time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC), idem.Key{Name: "old"}, [10]byte{})
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("the server knows the call: %v", known), func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/v1/tools":
					_, _ = io.WriteString(w, `{"tools":[]}`)
				case r.URL.Path == pathCalls:
					_, _ = io.WriteString(w, `{"calls":[],"next_cursor":null}`)
				case r.URL.Path == pathEffects:
					w.Header().Set("Content-Type", mediaLines)
					fmt.Fprintf(w, `{"effect_id":%q,"call_id":%q,"idem_key":"old"}`+"\n", idem.EffectID(id), id)
				case known && r.URL.Path == pathCalls+"/"+id.String()+"/audit":
					_, _ = io.WriteString(w, `{"events":[{"seq":0,"event":"created"},{"seq":1,"event":"claimed","attempt":1},`+
						`{"seq":2,"event":"succeeded","attempt":1},{"seq":3,"event":"expired","attempt":1}],"next_cursor":null}`)
				default:
					w.WriteHeader(http.StatusNotFound)
					_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"no such call","effect":"none"}}`)
				}
			}))
			defer srv.Close()
			o := runIdemd(t, "", "check-history", "--client", write(t, "c", refusedTry), "--ledger", srv.URL, "--audit", srv.URL)
			if known {
				o.want(t, 0, "entries    1\nkeys       2\neffects    1\ncalls      1\nunfinished 0\nbroken     0\n", "holds to every rule")
			} else if o.code != 1 || !strings.Contains(o.stdout, "there is an effect of the call, but no audit trail") {
				t.Errorf("%+v", o)
			}
		})
	}
}
