package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemd/idemd/probe"
)

// buildIdemd builds this program, as it is started by itself.
func buildIdemd(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "idemd")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// TestProbe runs the whole proof, twice: all is as declared, both tables are the
// same, a pipe hears no words, and the last line is the document.
func TestProbe(t *testing.T) {
	binary := buildIdemd(t)
	tables := make([]string, 2)
	for i := range tables {
		o := runIdemd(t, "", "probe", "--binary", binary)
		if o.code != 0 || o.stderr != "" {
			t.Fatalf("exit code %d: %s\n%s", o.code, o.stderr, o.stdout[:strings.LastIndex(o.stdout, "\n{")])
		}
		text := strings.TrimSuffix(o.stdout, "\n")
		doc := text[strings.LastIndexByte(text, '\n')+1:]
		var results probe.Results
		if err := json.Unmarshal([]byte(doc), &results); err != nil || !results.OK || results.SchemaVersion != probe.SchemaVersion {
			t.Fatalf("%v in %.200s", err, doc)
		}
		if n := len(results.Scenarios); n != 26 {
			t.Errorf("%d scenarios", n)
		}
		for _, r := range results.Scenarios {
			if r.On == probe.OnIdemd && (r.Duplicates != 0 || r.Lost != 0) {
				t.Errorf("%s: %+v", r.Scenario, r.Numbers)
			}
			if !strings.Contains(text, "\n"+r.Scenario+" ("+r.Policy+", key "+r.Key+"): ") {
				t.Errorf("no tries of %s", r.Scenario)
			}
		}
		for block := range strings.SplitSeq(text, "\n\n") {
			if strings.HasPrefix(block, "scenario ") {
				tables[i] += block + "\n"
			}
		}
	}
	if tables[0] != tables[1] || strings.Count(tables[0], "\n") != 28 {
		t.Errorf("two runs:\n%s\n%s", tables[0], tables[1])
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(tables[0]) {
		if !strings.Contains(string(readme), "\n"+line) {
			t.Errorf("the README does not have %s", line)
		}
	}
}

func TestProbeChooses(t *testing.T) {
	o := runIdemd(t, "", "probe", "--json", "--scenario", "race_racy,at_most_once")
	var results probe.Results
	if err := json.Unmarshal([]byte(o.stdout), &results); err != nil || o.code != 0 || o.stderr != "" {
		t.Fatalf("%d, %v: %s", o.code, err, o.stderr)
	}
	if len(results.Scenarios) != 2 || results.Scenarios[0].Duplicates != 10 || results.Scenarios[1].Lost != 3 {
		t.Errorf("%+v", results)
	}
	keep := filepath.Join(t.TempDir(), "kept")
	runIdemdFor(t, 0, "ledgers and logs are in "+keep, "probe", "--scenario", "race_racy", "--keep", keep)
	if _, err := os.Stat(filepath.Join(keep, "race_racy", "ledger.ndjson")); err != nil {
		t.Error(err)
	}

	list := runIdemd(t, "", "probe", "--list")
	if list.code != 0 || strings.Count(list.stdout, "\n") != 34 || !strings.Contains(list.stdout, "target_race_20") {
		t.Errorf("%d: %s", list.code, list.stdout)
	}
	var scenarios []probe.Scenario
	if o := runIdemd(t, "", "probe", "--list", "--json"); json.Unmarshal([]byte(o.stdout), &scenarios) != nil || len(scenarios) != 33 {
		t.Errorf("%s", o.stdout)
	}
}

// runIdemdFor runs the program for its exit code and something that it says.
func runIdemdFor(t *testing.T, code int, says string, args ...string) outcome {
	t.Helper()
	o := runIdemd(t, "", args...)
	if o.code != code || !strings.Contains(o.stderr, says) {
		t.Errorf("%v: exit code %d, want %d; %q does not say %q", args, o.code, code, o.stderr, says)
	}
	return o
}

func TestProbeExitCodes(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer silent.Close()
	empty := filepath.Join(t.TempDir(), "empty.ndjson")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	target := []string{"probe", "--settle", "1ms", "--ledger", empty, "--target"}

	o := runIdemdFor(t, 2, "not as declared", append(target, silent.URL, "--scenario", "target_two_intents")...)
	if !strings.Contains(o.stdout, "NOT AS DECLARED: committed is 0, declared is 2; uniq is 0, declared is 2; lost is 2, declared is 0\n") {
		t.Errorf("%s", o.stdout)
	}
	runIdemdFor(t, 3, "cannot be started", "probe", "--scenario", "idemd_race_2", "--binary", filepath.Join(t.TempDir(), "none"))
	runIdemdFor(t, 3, "--this-is-a-test-system", append(target, "http://192.0.2.1/")...)
	runIdemdFor(t, 3, "want a URL", append(target, "nowhere")...)
	runIdemdFor(t, 3, "the body: ", append(target, silent.URL, "--body", "@/no/such/file")...)
	runIdemdFor(t, 4, `no scenario "race"`, "probe", "--scenario", "race")
	runIdemdFor(t, 2, "--ledger", "probe", "--target", silent.URL)
	runIdemdFor(t, 2, "--target", "probe", "--ledger", empty)
	runIdemdFor(t, 2, "--binary", append(target, silent.URL, "--binary", "x")...)
	runIdemdFor(t, 2, "--header", append(target, silent.URL, "--header", "x")...)
	runIdemdFor(t, 2, "--intents must be positive", append(target, silent.URL, "--intents", "0")...)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var words strings.Builder
	if code := run(ctx, []string{"probe", "--scenario", "race_racy"}, nil, &strings.Builder{}, &words); code != 1 || words.String() != "idemd: interrupted\n" {
		t.Errorf("interrupted: %d, %s", code, words.String())
	}
	for _, args := range [][]string{{"probe", "--scenario", "at_most_once"}, {"probe", "--list"}, {"probe", "selftest"}} {
		if code := run(t.Context(), args, nil, fullPipe{}, &strings.Builder{}); code != exitOutput {
			t.Errorf("%v to a pipe that is full: %d", args, code)
		}
	}
}

type fullPipe struct{}

func (fullPipe) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestProbeSelftest(t *testing.T) {
	o := runIdemd(t, "", "probe", "selftest")
	if o.code != 0 || o.stderr != "" || strings.Count(o.stdout, "ok      ") != 6 || strings.Count(o.stdout, "\n") != 6 {
		t.Errorf("%d: %s%s", o.code, o.stdout, o.stderr)
	}
	var doc struct {
		OK     bool
		Checks []probe.Check
	}
	if o := runIdemd(t, "", "probe", "selftest", "--json"); json.Unmarshal([]byte(o.stdout), &doc) != nil || !doc.OK || len(doc.Checks) != 6 {
		t.Errorf("%s", o.stdout)
	}

	// One that fails ends the program with its own code.
	for _, asJSON := range []bool{false, true} {
		var out, words strings.Builder
		con := &console{stdout: &out, stderr: &words}
		code := report(con, con.showChecks([]probe.Check{{Name: "a", OK: true}, {Name: "b", Faults: []string{"it is wrong"}}}, asJSON))
		if code != exitSelfTest || !strings.Contains(out.String(), "it is wrong") || !strings.Contains(words.String(), "1 checks") {
			t.Errorf("%d: %s%s", code, out.String(), words.String())
		}
	}
}

func TestProbeClassify(t *testing.T) {
	const readings = `[{"status":503},{"status":503,"code":"unavailable","effect":"none"},{},{"not_sent":true},{"status":200,"call":"succeeded"}]`
	want := []string{"unknown again", "none again", "unknown ask", "none again", "committed done"}
	lines := strings.NewReplacer("[", "", "]", "", "},{", "}\n{").Replace(readings)
	file := filepath.Join(t.TempDir(), "readings.json")
	if err := os.WriteFile(file, []byte(readings), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []outcome{
		runIdemd(t, readings, "probe", "classify", "--input", "-"),
		runIdemd(t, lines, "probe", "classify", "--input", "-"),
		runIdemd(t, "", "probe", "classify", "--input", file),
	} {
		got := strings.Split(strings.TrimSpace(o.stdout), "\n")
		if o.code != 0 || o.stderr != "" || len(got) != len(want)+1 {
			t.Fatalf("%d: %s%s", o.code, o.stdout, o.stderr)
		}
		for i, w := range want {
			if f := strings.Fields(got[i+1]); strings.Join(f[:2], " ") != w {
				t.Errorf("reading %d: %s, want %s", i+1, got[i+1], w)
			}
		}
	}
	o := runIdemd(t, `{"status":410,"code":"key_expired"}`, "probe", "classify", "--input", "-", "--json")
	if want := `{"reading":{"status":410,"code":"key_expired"},"verdict":{"effect":"none","action":"stop","why":"refused as it is"}}` + "\n"; o.stdout != want {
		t.Errorf("%s, want %s", o.stdout, want)
	}

	for _, c := range []struct {
		in   string
		code int
		says string
	}{
		{"", 4, "no readings"},
		{"[]", 4, "no readings"},
		{`[{"statuss":200}]`, 2, "statuss"},
		{`{"status":200}{"status":1000}`, 2, "document 2"},
		{`[{"status":200}`, 2, "document 1"},
		{`7`, 2, "document 1"},
		{`[{}][{}]`, 2, "document 2"},
		{`null`, 2, "document 1: a reading is an object"},
		{`[{},null]`, 2, "document 1: a reading is an object"},
		{`{"status":503,"status":200}`, 2, "duplicate"},
	} {
		o := runIdemd(t, c.in, "probe", "classify", "--input", "-")
		if o.code != c.code || !strings.Contains(o.stderr, c.says) || o.stdout != "" {
			t.Errorf("%s: %d: %s%s", c.in, o.code, o.stdout, o.stderr)
		}
	}
	runIdemdFor(t, 3, "no such file", "probe", "classify", "--input", "/no/such/file")
	runIdemdFor(t, 2, "--input", "probe", "classify")
}
