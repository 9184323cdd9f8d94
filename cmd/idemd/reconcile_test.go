package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
)

// write makes a file in a directory of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const cleanVerdict = `expected    2
committed   2
distinct    2
duplicates  0
lost        0
unexpected  0
`

// Each planted defect is found, and named (R18).
func TestReconcile(t *testing.T) {
	intents := write(t, "intents.jsonl", "{\"idem_key\":\"order-1\"}\n\"order-2\"\n")
	row := func(key string) string { return `{"effect_id":"e","idem_key":"` + key + `"}` + "\n" }
	for _, tc := range []struct {
		name, file, text string
		args             []string
		code             int
		stdout, stderr   string
	}{
		{"clean", "l.ndjson", row("order-2") + row("order-1"), nil, 0, cleanVerdict, "the ledger is clean"},
		{"a duplicate", "l.ndjson", row("order-1") + row("order-2") + row("order-1"), nil, 1,
			"expected    2\ncommitted   3\ndistinct    2\nduplicates  1\n  order-1\nlost        0\nunexpected  0\n", "not clean: 1 duplicates, 0 lost, 0 unexpected"},
		{"a loss", "l.ndjson", row("order-1"), nil, 1,
			"expected    2\ncommitted   1\ndistinct    1\nduplicates  0\nlost        1\n  order-2\nunexpected  0\n", "1 lost"},
		{"an effect of no intent", "l.ndjson", row("order-1") + row("order-2") + row("order-\u0085"), nil, 1,
			"expected    2\ncommitted   3\ndistinct    2\nduplicates  0\nlost        0\nunexpected  1\n  order-�\n", "1 unexpected"},
		{"a provider's export", "l.csv", "\xEF\xBB\xBFid,order,status\r\n1,order-1,captured\r\n2,order-1,failed\r\n3,\"order-2\",captured\r\n",
			[]string{"--column", "order", "--where", "status=captured"}, 0, cleanVerdict + "skipped     1\n", "clean"},
		{"two conditions, and a format", "export", "id,order,status\n1,order-1,captured\n1,order-2,captured\n2,order-2,captured\n",
			[]string{"--intent-field", "order", "--where", "status=captured", "--where", "id=1", "--format", "csv"}, 0, cleanVerdict + "skipped     1\n", "clean"},
		{"an empty ledger", "l.ndjson", "", nil, 1,
			"expected    2\ncommitted   0\ndistinct    0\nduplicates  0\nlost        2\n  order-1\n  order-2\nunexpected  0\n", "2 lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := write(t, tc.file, tc.text)
			args := append([]string{"reconcile", "--ledger", file, "--expected", intents}, tc.args...)
			runIdemd(t, "", args...).want(t, tc.code, tc.stdout, tc.stderr)
		})
	}
	o := runIdemd(t, row("order-1")+row("order-1")+row("x"), "reconcile", "--ledger", "-", "--expected", intents, "--json")
	o.want(t, 1, `{"clean":false,"expected":2,"committed":3,"distinct":1,"duplicates":1,"lost":1,"unexpected":1,"skipped":0,`+
		`"duplicate_ids":["order-1"],"lost_ids":["order-2"],"unexpected_ids":["x"]}`+"\n", "not clean")
	o = runIdemd(t, "order\norder-1\norder-2\n", "reconcile", "--ledger", write(t, "l.ndjson", row("order-1")+row("order-2")), "--expected", "-", "--expected-field", "order", "--json")
	o.want(t, 0, `{"clean":true,"expected":2,"committed":2,"distinct":2,"duplicates":0,"lost":0,"unexpected":0,"skipped":0,"duplicate_ids":[],"lost_ids":[],"unexpected_ids":[]}`+"\n")
}

// People are shown some ids, machines all.
func TestReconcileManyIDs(t *testing.T) {
	var intents strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&intents, "\"order-%03d\"\n", i)
	}
	args := []string{"reconcile", "--ledger", write(t, "l.ndjson", ""), "--expected", write(t, "i.jsonl", intents.String())}
	o := runIdemd(t, "", args...)
	if o.code != 1 || strings.Count(o.stdout, "  order-") != shownIDs || !strings.Contains(o.stdout, "  order-019\n  … and 980 more\nunexpected") {
		t.Errorf("%+v", o)
	}
	o = runIdemd(t, "", append(args, "--json")...)
	var doc verdictDoc
	if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || len(doc.LostIDs) != 1000 || doc.LostIDs[999] != "order-999" {
		t.Errorf("%v, %d ids", err, len(doc.LostIDs))
	}
}

func TestReconcileRefuses(t *testing.T) {
	ledger, intents := write(t, "l.ndjson", `{"idem_key":"a"}`+"\n"), write(t, "i.jsonl", "\"a\"\n")
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"no ledger", []string{"--expected", intents}, 2, "--ledger"},
		{"no intents", []string{"--ledger", ledger}, 2, "--expected"},
		{"no such ledger", []string{"--ledger", ledger + ".x", "--expected", intents}, 2, "no such file"},
		{"no such intents", []string{"--ledger", ledger, "--expected", intents + ".x"}, 2, "no such file"},
		{"nothing to reconcile", []string{"--ledger", ledger, "--expected", write(t, "i.jsonl", "\n")}, 2, "there are no intents"},
		{"stdin twice", []string{"--ledger", "-", "--expected", "-"}, 2, "cannot both be stdin"},
		{"another format", []string{"--ledger", ledger, "--expected", intents, "--format", "xml"}, 2, "--format"},
		{"a condition that is none", []string{"--ledger", ledger, "--expected", intents, "--where", "status"}, 2, `--where: the condition "status" is not FIELD=VALUE`},
		{"no rows allowed", []string{"--ledger", ledger, "--expected", intents, "--max-rows", "0"}, 2, "at least 1"},
		{"too many rows", []string{"--ledger", write(t, "l.ndjson", strings.Repeat(`{"idem_key":"a"}`+"\n", 3)), "--expected", intents, "--max-rows", "2"}, 2, "line 3: there are more than 2 effects"},
		{"an intent twice", []string{"--ledger", ledger, "--expected", write(t, "i.jsonl", "\"a\"\n\n\"a\"\n")}, 2, `i.jsonl: line 3: the intent "a" is there already`},
		{"a line that is no JSON", []string{"--ledger", write(t, "l.ndjson", `{"idem_key":"a"}`+"\n{]\n"), "--expected", intents}, 2, "l.ndjson: line 2, column 2: it is not JSON"},
		{"a line that is cut off", []string{"--ledger", write(t, "l.ndjson", `{"idem_key":"a"}`+"\n{\"idem_key\":\"a"), "--expected", intents}, 2, "the file may be cut off"},
		{"a CSV line that is cut off", []string{"--ledger", write(t, "l.csv", "idem_key\na"), "--expected", intents}, 2, "line 2: it is the last line"},
		{"a column that is not there", []string{"--ledger", write(t, "l.csv", "id,order\na,b\n"), "--expected", intents}, 2, `line 1: there is no column "idem_key"; there are id, order`},
		{"a directory without a store", []string{"--ledger", t.TempDir(), "--expected", intents}, 2, "there is no store"},
		{"a server, as CSV", []string{"--ledger", "http://127.0.0.1:1", "--expected", intents, "--format", "csv"}, 2, "not CSV"},
		{"a server without a host", []string{"--ledger", "http://", "--expected", intents}, 2, "want http://HOST:PORT"},
		{"a server, and no time", []string{"--ledger", "http://127.0.0.1:1", "--expected", intents, "--timeout", "0s"}, 2, "--timeout"},
		{"nobody there", []string{"--ledger", "http://127.0.0.1:1", "--expected", intents}, 7, "refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runIdemd(t, "", append([]string{"reconcile"}, tc.args...)...).want(t, tc.code, "", tc.stderr)
		})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	con := &console{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, pause: pause}
	if code := con.run(over, []string{"reconcile", "--ledger", ledger, "--expected", intents}); code != exitUnavailable {
		t.Errorf("interrupted: exit code %d", code)
	}
	con.stdout = failingWriter{}
	if code := con.run(t.Context(), []string{"reconcile", "--ledger", ledger, "--expected", intents}); code != exitOutput {
		t.Errorf("lost output: exit code %d", code)
	}
}

func TestReconcileLive(t *testing.T) {
	srv := (&shelf{n: 600, most: 10}).serve(t)
	var intents strings.Builder
	for i := range 600 {
		fmt.Fprintf(&intents, "\"k %d\"\n", i)
	}
	file := write(t, "i.jsonl", intents.String())
	for _, url := range []string{srv, srv + "/", srv + pathEffects} {
		o := runIdemd(t, "", "reconcile", "--ledger", url, "--expected", file)
		o.want(t, 0, o.stdout, "clean")
		if !strings.HasPrefix(o.stdout, "expected    600\ncommitted   600\n") {
			t.Error(o.stdout)
		}
	}
	runIdemd(t, "", "reconcile", "--ledger", srv, "--expected", file, "--where", "tool=email").want(t, 1,
		runIdemd(t, "", "reconcile", "--ledger", write(t, "l.ndjson", ""), "--expected", file).stdout+"skipped     600\n", "600 lost")
}

// A ledger that is cut off is never clean, however much of it has come.
func TestReconcileLiveCutOff(t *testing.T) {
	intents := write(t, "i.jsonl", "\"k 0\"\n")
	row := items["effects"](0)
	for _, tc := range []struct {
		name   string
		serve  func(w http.ResponseWriter, r *http.Request)
		code   int
		stderr string
	}{
		{"after a line", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, row+"\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 7, "broke off after line 1"},
		{"within a line", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, row+"\n"+row[:10])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 7, "broke off after line 1"},
		{"and nobody could know", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: "+mediaLines+"\r\nConnection: close\r\n\r\n"+row+"\n")
			_ = conn.Close()
		}, 7, "does not tell where the ledger ends"},
		{"shorter than its length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, row+"\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 7, "broke off after line 1"},
		{"without the last line feed", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, row)
		}, 2, "line 1: it does not end with a line feed"},
		{"it brings nothing more", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, row+"\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, 7, "broke off after line 1: the time is up"},
		{"it never answers", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 7, "the time is up"},
		{"a refusal", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, refuse("unavailable"))
		}, 7, "unavailable: the words"},
		{"somebody else", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		}, 7, "not idemd's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", mediaLines)
				tc.serve(w, r)
			}))
			defer srv.Close()
			runIdemd(t, "", "reconcile", "--ledger", srv.URL, "--expected", intents, "--timeout", "200ms").want(t, tc.code, "", tc.stderr)
		})
	}
}

// A stopped store gives what a server would, and one that runs is refused.
func TestReconcileStore(t *testing.T) {
	dir := filled(t)
	args := []string{"reconcile", "--ledger", dir, "--expected", write(t, "i.jsonl", "\"a\"\n\"b\"\n")}
	runIdemd(t, "", args...).want(t, 0, cleanVerdict, "clean")
	runIdemd(t, "", append(args, "--where", "tool=charge")...).want(t, 0, cleanVerdict, "clean")
	runIdemd(t, "", append(args, "--column", "tool", "--json")...).want(t, 1,
		`{"clean":false,"expected":2,"committed":2,"distinct":0,"duplicates":0,"lost":2,"unexpected":2,"skipped":0,"duplicate_ids":[],"lost_ids":["a","b"],"unexpected_ids":["charge"]}`+"\n", "not clean")
	runIdemd(t, "", append(args, "--column", "order")...).want(t, 2, "", "there is no order")
	runIdemd(t, "", append(args, "--max-rows", "1")...).want(t, 2, "", "more than 1 intents")

	o := kv.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Ballast: -1, MinFree: -1}
	s, err := kv.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 29, 17, 0, 0, 0, time.UTC)
	k := idem.Key{Namespace: "other", Name: "a"}
	tool := &idem.Tool{Name: "charge", Effects: idem.EffectsLocal, Rerun: idem.RerunYes}
	terms := idem.Terms{Now: at, Window: time.Hour}
	_, err = s.Update(t.Context(), k, idem.Chain(
		idem.Submit(idem.Request{Key: k, Tool: "charge", Args: []byte("{}")}, idem.Admission{ID: idem.NewCallID(at, k, [10]byte{1}), CreatedAt: at, Now: at}),
		idem.Claim(idem.ClaimTerms{Terms: terms, Owner: "b/1", Lease: time.Minute, MaxCrashes: 3, Tool: tool}),
		func(cur *idem.Call) (idem.Change, error) {
			return idem.Succeed(idem.Settlement{Terms: terms, Lease: idem.LeaseOf(cur)}, idem.Result{})(cur)
		}))
	if err != nil {
		t.Fatal(err)
	}
	runIdemd(t, "", args...).want(t, exitInUse, "", "is in use: give the server's URL")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Two namespaces with the same key never meet.
	runIdemd(t, "", args...).want(t, 0, cleanVerdict, "1 effects of other namespaces are left out")
	runIdemd(t, "", append(args, "--namespace", "other", "--json")...).want(t, 1,
		`{"clean":false,"expected":2,"committed":1,"distinct":1,"duplicates":0,"lost":1,"unexpected":0,"skipped":0,"duplicate_ids":[],"lost_ids":["b"],"unexpected_ids":[]}`+"\n", "2 effects of other namespaces")
}
