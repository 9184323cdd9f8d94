package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// What was lost on the way is asked for again: once in the ledger where ids are
// honoured, twice where they are not, and reconcile says so.
func TestDownstream(t *testing.T) {
	for _, tc := range []struct {
		mode string
		code int // of reconcile
		sum  map[string]any
	}{
		{"--honours", 0, map[string]any{"committed": 2.0, "distinct": 2.0, "duplicates": 0.0, "replayed": 2.0}},
		{"--ignores", 1, map[string]any{"committed": 4.0, "distinct": 2.0, "duplicates": 2.0, "replayed": 0.0}},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			dir := t.TempDir()
			ledger, expected := filepath.Join(dir, "ledger.ndjson"), filepath.Join(dir, "expected.ndjson")
			var stdout bytes.Buffer
			d := startStandIn(t, &stdout, "downstream", tc.mode, "--ledger", ledger, "--fault", "commit-then-close@first=1", "--log-level", "error")
			if len(d.said) > 0 {
				t.Errorf("said %q", d.said)
			}
			for _, key := range []string{"a", "b"} {
				if _, err := postThrough(d, key); !errors.Is(err, io.EOF) {
					t.Errorf("first try of %s: %v", key, err)
				}
				if status, err := postThrough(d, key); status != 200 || err != nil {
					t.Errorf("second try of %s: %d, %v", key, status, err)
				}
			}
			runIdemd(t, "", "downstream", "--ledger", ledger).want(t, exitInUse, "", "the ledger is in use")
			o := d.stop()
			var got map[string]any
			if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || o.code != 0 {
				t.Fatalf("exit code %d, %q: %v", o.code, stdout.String(), err)
			}
			want := map[string]any{
				"requests": 4.0, "lookups": 0.0, "stopped": 0.0, "faults": map[string]any{"commit-then-close": 2.0}, "requests_dropped": 0.0,
			}
			for k, v := range tc.sum {
				want[k] = v
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if err := os.WriteFile(expected, []byte("\"a\"\n\"b\"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := runIdemd(t, "", "reconcile", "--ledger", ledger, "--column", "effect_id", "--expected", expected)
			if r.code != tc.code {
				t.Errorf("reconcile: %+v", r)
			}
		})
	}
}

// The id may be in the body; a restart goes on with the ledger.
func TestDownstreamPointerAndRestart(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	var answers []string
	for range 2 {
		d := startStandIn(t, io.Discard, "downstream", "--ledger", ledger, "--effect-pointer", "/id")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url, strings.NewReader(`{"id":"a","amount":7}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, string(b))
		if o := d.stop(); o.code != 0 {
			t.Errorf("exit code %d", o.code)
		}
	}
	if answers[0] != answers[1] || !strings.Contains(answers[0], `"effect_id":"a"`) {
		t.Errorf("%q", answers)
	}
}

// The same seed, the same faults; and a seed that was made up is said.
func TestDownstreamSeed(t *testing.T) {
	play := func(seed ...string) (met, said, stdout string, ids []string) {
		ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
		var out bytes.Buffer
		d := startStandIn(t, &out, "downstream", append([]string{"--ledger", ledger, "--ignores", "--fault", "unavailable@rate=0.5"}, seed...)...)
		for range 40 {
			status, err := postThrough(d, "k")
			if err != nil {
				t.Fatal(err)
			}
			met += map[int]string{200: ".", 503: "3"}[status]
		}
		d.stop()
		b, err := os.ReadFile(ledger)
		if err != nil {
			t.Fatal(err)
		}
		for range strings.Lines(string(b)) {
			ids = append(ids, "k")
		}
		return met, strings.Join(d.said, "\n"), out.String(), ids
	}
	met, said, stdout, ids := play()
	seed, ok := strings.CutPrefix(said, "idemd downstream seed ")
	if !ok || !strings.Contains(stdout, `{"seed":`+seed+`,`) {
		t.Fatalf("%q, %s", said, stdout)
	}
	if again, _, _, _ := play("--seed", seed); again != met {
		t.Errorf("seed %s: %s, then %s", seed, met, again)
	}
	if n := strings.Count(met, "."); n == 0 || n == 40 || idem.Reconcile(ids, []string{"k"}).Committed != n { // by chance once in 10^11
		t.Errorf("seed %s: %s, %d effects", seed, met, len(ids))
	}
}

// A stop does not wait for what waits on purpose, which then has no effect.
func TestDownstreamStop(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	var stdout bytes.Buffer
	d := startStandIn(t, &stdout, "downstream", "--ledger", ledger, "--fault", "slow-commit:24h@all", "--log-format", "json")
	type result struct {
		status int
		err    error
	}
	results := make(chan result, 2)
	for range 2 {
		go func() {
			status, err := postThrough(d, "k")
			results <- result{status, err}
		}()
	}
	// One of them is being done, or the other would not have been told so.
	if r := <-results; r.status != http.StatusConflict || r.err != nil {
		t.Fatalf("%+v", r)
	}
	if o := d.stop(); o.code != 0 || !strings.Contains(stdout.String(), `"committed":0,`) || !strings.Contains(stdout.String(), `"stopped":1,`) {
		t.Errorf("%+v, %s", o, stdout.String())
	}
	if r := <-results; r.err == nil {
		t.Errorf("it was answered: %+v", r)
	}
	if b, err := os.ReadFile(ledger); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDownstreamRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	runIdemd(t, "", "downstream", "--listen", l.Addr().String()).want(t, 1, "", "in use")
	for _, tc := range []struct{ args, want string }{
		{"--listen 0.0.0.0:0", "--insecure"},
		{"--listen nowhere", "is not HOST:PORT"},
		{"--honours --ignores", "--honours and --ignores"},
		{"--effect-header A --effect-pointer /a", "not in both"},
		{"--effect-header A:B", "not the name of a field"},
		{"--effect-header=", "must not be empty"},
		{"--effect-pointer a", "does not begin with /"},
		{"--ledger=", "needs a ledger"},
		{"--fault busy", "does not say which requests"},
		{"--fault sulk@all --fault big@all", `unknown fault "sulk"`},
		{"--fault sulk@all --fault big@all", "number of bytes"},
		{"--shutdown-timeout=-1s", "--shutdown-timeout must not be negative"},
	} {
		runIdemd(t, "", append([]string{"downstream"}, strings.Fields(tc.args)...)...).want(t, 2, "", tc.want)
	}
	left, err := os.ReadDir(".")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	damaged := filepath.Join(t.TempDir(), "l")
	if err := os.WriteFile(damaged, []byte("{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runIdemd(t, "", "downstream", "--ledger", damaged).want(t, 1, "", "line 1")
}

// A summary that cannot be written is not the same as one that was.
func TestDownstreamStdoutFails(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	d := startStandIn(t, w, "downstream", "--ledger", filepath.Join(t.TempDir(), "l"))
	if o := d.stop(); o.code != exitOutput {
		t.Errorf("exit code %d", o.code)
	}
}

// Every fault is in the help, on the side of those that have their effect or of
// those that have not.
func TestDownstreamHelp(t *testing.T) {
	without, with, ok := strings.Cut((*downstreamCmd)(nil).Help(), "Faults with the effect in the ledger:")
	if !ok {
		t.Fatal("the help is not in two parts")
	}
	none := map[probe.DownstreamKind]bool{
		probe.Refuse: true, probe.Busy: true, probe.Unavailable: true, probe.ConflictInProgress: true, probe.CloseBefore: true,
	}
	for _, k := range probe.DownstreamKinds() {
		side := with
		if none[k] {
			side = without
		}
		if !strings.Contains(side, "\n  "+string(k)) {
			t.Errorf("%s is not where it belongs", k)
		}
	}
	o := runIdemd(t, "", "downstream", "--help")
	if o.code != 0 || !strings.Contains(o.stdout, "idemd downstream --effect-pointer /idempotency_key") {
		t.Errorf("%+v", o)
	}
}
