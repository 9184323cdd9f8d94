package probe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/idemd/idemd/idem"
)

// probeIn runs the probe with a directory for temporary files of its own, and
// checks that nothing is left in it.
func probeIn(t *testing.T, ctx context.Context, o Options) (*Results, error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	r, err := Run(ctx, o)
	left, readErr := os.ReadDir(dir)
	if readErr != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, readErr)
	}
	return r, err
}

func table(t *testing.T, r *Results) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteTable(&b, r.Scenarios); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSinkScenarios is the table of ten, twice: it must not depend on chance.
func TestSinkScenarios(t *testing.T) {
	const want = `scenario                   policy        key          req  committed  uniq  dup  lost  what it shows
pre_fail_naive             naive         none           6          3     3    0     0  503 before the commit: retry is safe
post_drop_naive            naive         none           6          6     3    3     0  the same retry after a lost answer charges twice
post_drop_key_atomic       key_atomic    stable         6          3     3    0     0  intent key + atomic dedupe
post_drop_key_per_attempt  key_atomic    per_attempt    6          6     3    3     0  a new key per attempt is no key
content_hash_two_orders    content_hash  stable         2          1     1    0     1  content as identity swallows an order
race_racy                  key_racy      stable        20         20    10   10     0  check-then-act: 10 of 10 rounds double
race_atomic                key_atomic    stable        20         10    10    0     0  check and write in one critical section
at_most_once               naive         stable         3          0     0    0     3  not retrying loses everything
ttl_shorter_than_backoff   key_ttl       stable         6          6     3    3     0  window 0.1 s < back-off 0.35 s
restart_store_lost         key_atomic    stable         2          2     1    1     0  keys in memory die with the process
`
	for range 2 {
		r, err := probeIn(t, t.Context(), Options{Progress: func(string, int, int) {
			// What has ended has left nothing on the disk.
			if dirs, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "idemd-probe-*", "*")); err != nil || len(dirs) >= atOnce {
				t.Errorf("%v, %v", dirs, err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if got := table(t, r); got != want || !r.OK {
			t.Errorf("OK %t, want\n%s\ngot\n%s", r.OK, want, got)
		}
		for _, s := range r.Scenarios {
			if len(s.Tries) != s.Requests || len(s.Ledger) != s.Committed {
				t.Errorf("%s: %d tries and %d lines are shown of %d and %d", s.Scenario, len(s.Tries), len(s.Ledger), s.Requests, s.Committed)
			}
		}
	}
}

// TestIdemd has the real program to do with.
func TestIdemd(t *testing.T) {
	binary := program(t, "github.com/idemd/idemd/cmd/idemd")
	t.Run("scenarios", func(t *testing.T) { testIdemdScenarios(t, binary) })
	t.Run("interrupted", func(t *testing.T) { testInterrupted(t, binary) })
	t.Run("refused by the client", func(t *testing.T) { testRefusedByTheClient(t, binary) })
	t.Run("is a target", func(t *testing.T) { testTargetIsIdemd(t, binary) })
}

// testIdemdScenarios must find nothing (R2 to R16).
func testIdemdScenarios(t *testing.T, binary string) {
	var names []string
	for _, s := range idemdScenarios() {
		names = append(names, s.Name)
	}
	var begun bytes.Buffer
	r, err := probeIn(t, t.Context(), Options{Binary: binary, Names: names, Progress: func(name string, n, all int) {
		begun.WriteString(name + " ")
		if n < 1 || n > all || all != len(names) {
			t.Errorf("progress says %d of %d", n, all)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(begun.String()); !slices.Equal(got, names) {
		t.Errorf("progress is %v", got)
	}
	if !r.OK || len(r.Scenarios) != len(names) {
		t.Errorf("not as declared:\n%s", table(t, r))
	}
	for _, s := range r.Scenarios {
		if s.Duplicates != 0 || s.Lost != 0 || s.Committed == 0 || len(s.Ledger) < s.Committed || len(s.Tries) == 0 {
			t.Errorf("%s: %+v, %d lines, %d tries", s.Scenario, s.Numbers, len(s.Ledger), len(s.Tries))
		}
	}
	if t.Failed() {
		var b bytes.Buffer
		_ = WriteDetails(&b, r.Scenarios, true)
		t.Log(b.String())
	}
}

// testRefusedByTheClient: an idemd that remembers too little is sent nothing, and that
// is a verdict, too.
func testRefusedByTheClient(t *testing.T, binary string) {
	r, err := probeIn(t, t.Context(), Options{
		Binary: script(t, "exec "+binary+` "$@" --window 1s`), Names: []string{"idemd_lost_answer", "idemd_respelled", "idemd_kill_after_claim"},
	})
	if err != nil || r.OK || len(r.Scenarios) != 3 {
		t.Fatalf("%v, %+v", err, r)
	}
	for _, s := range r.Scenarios {
		if words := strings.Join(s.Differs, "\n"); s.OK || s.Requests != 0 || s.Lost != len(s.Intents) || !strings.Contains(words, "the client sends nothing of") {
			t.Errorf("%s: %+v, %s", s.Scenario, s.Numbers, words)
		}
	}
}

// TestForgetfulIdemd: a program that says that it is idemd and forgets its keys
// is found out. If this passed unseen, the rows of the real one would be worth
// nothing.
func TestForgetfulIdemd(t *testing.T) {
	r, err := probeIn(t, t.Context(), Options{
		Binary: program(t, "./testdata/forgetful"),
		Names:  []string{"idemd_lost_answer", "idemd_duplicate_request", "idemd_race_2", "idemd_two_orders", "idemd_respelled"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK {
		t.Error("the run is taken for a good one")
	}
	for i, want := range []struct {
		ok  bool
		dup int
	}{{false, 3}, {false, 3}, {false, 10}, {true, 0}, {false, 4}} {
		if s := r.Scenarios[i]; s.OK != want.ok || s.Duplicates != want.dup || s.OK != (len(s.Differs) == 0) {
			t.Errorf("%s: OK %t, %d duplicates, %v; want OK %t, %d", s.Scenario, s.OK, s.Duplicates, s.Differs, want.ok, want.dup)
		}
	}
	if got := strings.Join(r.Scenarios[0].Differs, "\n"); !strings.Contains(got, "idemd's ledger has 2 effects of order-1") {
		t.Errorf("it is not said of which: %s", got)
	}
	if got := table(t, r); !strings.Contains(got, "NOT AS DECLARED: committed is 6, declared is 3; dup is 3, declared is 0") {
		t.Errorf("the table does not say so:\n%s", got)
	}
}

// TestOneEnd: which audit trails are those of a call with one effect.
func TestOneEnd(t *testing.T) {
	for trail, want := range map[string]bool{
		"created claimed succeeded":                                           true,
		"created claimed recovered claimed succeeded":                         true,
		"created claimed recovered held resolved":                             true,
		"created claimed recovered held resolved recovered claimed succeeded": true,
		"created claimed":                                   false,
		"claimed succeeded":                                 false,
		"created created claimed succeeded":                 false,
		"created claimed succeeded succeeded":               false,
		"created claimed recovered held resolved resolved":  false,
		"created claimed failed":                            false,
		"created claimed failed requeued claimed succeeded": false,
		"": false,
	} {
		var events []idem.EventName
		for name := range strings.FieldsSeq(trail) {
			events = append(events, idem.EventName(name))
		}
		if oneEnd(events) != want {
			t.Errorf("%s: want %t", trail, want)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "something"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    Options
		want error
		says string
	}{
		{"a name that is none", Options{Names: []string{"race_racy", "race_fast"}}, ErrNothing, `"race_fast"`},
		{"a target's scenario without a target", Options{Names: []string{"target_race_2"}}, ErrNothing, ""},
		{"idemd's scenario without idemd", Options{Names: []string{"idemd_race_2"}}, ErrPrecondition, "idemd_race_2"},
		{"a directory that is not empty", Options{Names: []string{"race_racy"}, Keep: full}, ErrPrecondition, "not empty"},
		{"a directory that cannot be made", Options{Names: []string{"race_racy"}, Keep: filepath.Join(full, "something", "x")}, ErrPrecondition, ""},
		{"a program that is not there", Options{Names: []string{"idemd_race_2"}, Binary: filepath.Join(full, "idemd")}, ErrPrecondition, "cannot be started"},
		{"a program that ends", Options{Names: []string{"idemd_race_2"}, Binary: script(t, "echo no disk >&2; exit 3")}, ErrPrecondition, "no disk"},
	} {
		r, err := probeIn(t, t.Context(), c.o)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		if r.OK || len(r.Scenarios) != 0 {
			t.Errorf("%s: there are results: %+v", c.name, r)
		}
	}
}

// TestKeep: what is kept is the ledger that was judged.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	r, err := probeIn(t, t.Context(), Options{Names: []string{"post_drop_naive"}, Keep: dir})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := readLines(filepath.Join(dir, "post_drop_naive", "ledger.ndjson"))
	if err != nil || !slices.Equal(lines, r.Scenarios[0].Ledger) || len(lines) != 6 {
		t.Errorf("%v, %v", lines, err)
	}
}

// testInterrupted: an end of the context ends everything, whatever is going on at
// that moment, and leaves neither a process nor a file.
func testInterrupted(t *testing.T, binary string) {
	for _, c := range []struct {
		name, scenario, program string
		lives                   int // at the beginning of the last of these it comes
	}{
		{"before it listens", "idemd_race_2", "exec sleep 600", 1},
		{"while it starts", "idemd_race_300", "exec " + binary + ` "$@"`, 1},
		{"between two lives", "idemd_restart", "exec " + binary + ` "$@"`, 2},
		{"after a kill", "idemd_kill_after_claim", "exec " + binary + ` "$@"`, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			fifo := filepath.Join(t.TempDir(), "pids")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			born, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that nobody waits for the other side
			if err != nil {
				t.Fatal(err)
			}
			defer born.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pids := make(chan []int, 1)
			go func() {
				var all []int
				lines := bufio.NewScanner(born)
				for len(all) < c.lives && lines.Scan() {
					pid, err := strconv.Atoi(lines.Text())
					if err != nil {
						t.Error(err)
					}
					all = append(all, pid)
				}
				cancel()
				pids <- all
			}()
			r, err := probeIn(t, ctx, Options{Names: []string{c.scenario}, Binary: script(t, "echo $$ >"+fifo+"\n"+c.program)})
			if !errors.Is(err, context.Canceled) || r.OK || len(r.Scenarios) != 0 {
				t.Errorf("%v, %+v", err, r)
			}
			for _, pid := range <-pids {
				if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("process %d is still there: %v", pid, err)
				}
			}
		})
	}
}

// TestInterruptedRest: a pause between tries ends with the context.
func TestInterruptedRest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := probeIn(t, ctx, Options{Names: []string{"ttl_shorter_than_backoff"}, Progress: func(string, int, int) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestResultsAsJSON: what a machine reads has every number under its name, and
// no null where there is a list.
func TestResultsAsJSON(t *testing.T) {
	r, err := probeIn(t, t.Context(), Options{Names: []string{"at_most_once"}})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`{"schema_version":1,"ok":true,"scenarios":[{"scenario":"at_most_once","on":"sink","policy":"naive","key":"stable",` +
			`"req":3,"committed":0,"uniq":0,"dup":0,"lost":3,"shows":"not retrying loses everything",` +
			`"declared":{"req":3,"committed":0,"uniq":0,"dup":0,"lost":3},"ok":true,"differs":[],"intents":["order-1","order-2","order-3"],` +
			`"tries":[{"try":1,"intent":"order-1","key":"key-order-1","request":"POST","status":503,"answer":"Service Unavailable",` +
			`"effect":"unknown","replayed":false,"then":"give up: it never tries again"},`,
		`"ledger":[],"notes":[]}]}`,
	} {
		if !strings.Contains(string(raw), part) {
			t.Errorf("no %s in %s", part, raw)
		}
	}
}
