package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
)

// filled makes a store with two effects, a failure and a call that waits.
func filled(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	s, err := kv.Open(kv.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Ballast: -1, MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)
	tool := &idem.Tool{Name: "charge", Effects: idem.EffectsLocal, Rerun: idem.RerunYes}
	for n, end := range []func(idem.Settlement) idem.Transition{
		func(s idem.Settlement) idem.Transition { return idem.Succeed(s, idem.Result{Output: []byte("1")}) },
		func(s idem.Settlement) idem.Transition { return idem.Succeed(s, idem.Result{Output: []byte("2")}) },
		func(s idem.Settlement) idem.Transition { return idem.Fail(s, idem.Failure{Code: "no"}) },
		nil,
	} {
		k := idem.Key{Namespace: idem.DefaultNamespace, Name: string(rune('a' + n))}
		terms := idem.Terms{Now: at, Window: time.Hour}
		tr := idem.Submit(idem.Request{Key: k, Tool: "charge", Args: []byte("{}")}, idem.Admission{ID: idem.NewCallID(at, k, [10]byte{byte(n)}), CreatedAt: at, Now: at})
		if end != nil {
			tr = idem.Chain(tr, idem.Claim(idem.ClaimTerms{Terms: terms, Owner: "b/1", Lease: time.Minute, MaxCrashes: 3, Tool: tool}),
				func(cur *idem.Call) (idem.Change, error) {
					return end(idem.Settlement{Terms: terms, Lease: idem.LeaseOf(cur)})(cur)
				})
		}
		if _, err := s.Update(t.Context(), k, tr); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestInspect(t *testing.T) {
	dir := filled(t)
	o := runIdemd(t, "", "inspect", dir)
	o.want(t, 0, o.stdout, "the store is sound")
	for _, line := range []string{
		"calls            4\n", "effects          2\n", "by_status        pending=1 succeeded=2 failed=1\n", "attempts         1=3\n",
		"keys             4\n", "markers          1\n", "events           10\n", "tombstones       0\n", "multiple_effects 0\n", "one_call         ok: no key has two calls\n",
	} {
		if !strings.Contains(o.stdout, line) {
			t.Errorf("no line %q in\n%s", line, o.stdout)
		}
	}
	o = runIdemd(t, "", "inspect", dir, "--json")
	o.want(t, 0, o.stdout)
	var doc inspectDoc
	if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Layout != 2 || doc.CreatedAt == nil || doc.Calls != 4 || doc.Effects != 2 || doc.ByStatus["held"] != 0 || len(doc.ByStatus) != 5 ||
		doc.Attempts["1"] != 3 || len(doc.Attempts) != 10 || doc.Keys != 4 || doc.Markers != 1 || doc.Events != 10 || doc.Broken != 0 || len(doc.Checks) != 10 {
		t.Errorf("%s", o.stdout)
	}
	for _, c := range doc.Checks {
		if c.Name == "" || c.Rule == "" || c.Broken != 0 || c.Examples == nil || len(c.Examples) > 0 {
			t.Errorf("%+v", c)
		}
	}
}

// A store in which somebody has written with the engine alone.
func TestInspectBroken(t *testing.T) {
	dir := filled(t)
	db, err := pebble.Open(dir, &pebble.Options{
		Merger: &pebble.Merger{Name: "idemd.counts.1", Merge: func(_, v []byte) (pebble.ValueMerger, error) { return pebble.DefaultMerger.Merge(nil, v) }},
		Logger: quiet{}, FormatMajorVersion: pebble.FormatTableFormatV6,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if err := db.Set([]byte("x\x1b"+string(rune('a'+i))), nil, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	o := runIdemd(t, "", "inspect", dir)
	o.want(t, exitFailed, o.stdout, "not sound: 12 faults")
	if !strings.Contains(o.stdout, "rows             BROKEN 12 times: every row") || !strings.Contains(o.stdout, `has the key "x\x1ba"`) || !strings.Contains(o.stdout, "  and 2 more\n") {
		t.Errorf("%s", o.stdout)
	}
	o = runIdemd(t, "", "inspect", dir, "--json")
	var doc inspectDoc
	if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || o.code != exitFailed || doc.Broken != 12 || doc.Calls != 4 {
		t.Errorf("exit code %d, %v, %s", o.code, err, o.stdout)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) { panic("the engine gave up") }

func TestInspectRefused(t *testing.T) {
	dir := filled(t)
	none := filepath.Join(t.TempDir(), "none")
	runIdemd(t, "", "inspect", none).want(t, exitUsage, "", none+": there is no store")
	if _, err := os.Stat(none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
	runIdemd(t, "", "inspect", t.TempDir()).want(t, exitUsage, "", "there is no store")
	runIdemd(t, "", "inspect").want(t, exitUsage, "", "<dir>")

	s, err := kv.Open(kv.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runIdemd(t, "", "inspect", dir).want(t, exitInUse, "", "is in use: stop the server first")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "marker.format-version.000099.099"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runIdemd(t, "", "inspect", dir).want(t, exitUsage, "", "a newer release")
	if err := os.Remove(filepath.Join(dir, "marker.format-version.000099.099")); err != nil {
		t.Fatal(err)
	}
	tables, _ := filepath.Glob(filepath.Join(dir, "*.sst"))
	for _, name := range tables {
		if err := os.Truncate(name, 10); err != nil {
			t.Fatal(err)
		}
	}
	runIdemd(t, "", "inspect", dir).want(t, exitFailed, "", "cannot be read")

	full := &console{stdin: strings.NewReader(""), stdout: failingWriter{}, stderr: io.Discard, pause: pause}
	if code := full.run(t.Context(), []string{"inspect", filled(t)}); code != exitOutput {
		t.Errorf("exit code %d, want %d", code, exitOutput)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	full.stdout = io.Discard
	if code := full.run(over, []string{"inspect", filled(t)}); code != 0 && code != exitUnavailable {
		t.Errorf("exit code %d", code)
	}
}
