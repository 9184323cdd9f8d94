package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/bench"
)

// scripted is the variable that makes this test's program the generator of the
// script: run writes made-up results by what the measured program says it is,
// everything else is as ever.
const scripted = "BENCH_TEST_SCRIPTED"

func TestMain(m *testing.M) {
	if behaviour := os.Getenv(scripted); behaviour != "" {
		os.Exit(generator(behaviour, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// generator stands for bench. With behaviour "fail" its third run fails, with
// "hang" that one goes on until it is told to end, "void" is what all runs are.
func generator(behaviour string, args []string) int {
	if args[0] != "run" {
		return run(context.Background(), args, os.Stdin, os.Stdout, os.Stderr)
	}
	after := func(flag string) string {
		for i, a := range args {
			if a == flag {
				return args[i+1]
			}
		}
		panic("no " + flag)
	}
	says, err := exec.Command(after("--idemd")).Output()
	if err != nil {
		panic(err)
	}
	version, speed, _ := strings.Cut(strings.TrimSpace(string(says)), " ")
	if strings.HasSuffix(after("--out"), "a.2") {
		switch behaviour {
		case "fail":
			return 1
		case "hang":
			if _, err := os.Stdout.WriteString("measuring\n"); err != nil {
				panic(err)
			}
			signals := make(chan os.Signal, 2)
			signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
			if err := os.WriteFile(os.Getenv("HUNG"), []byte("x"), 0o644); err != nil { // a pipe
				panic(err)
			}
			if sig := <-signals; sig != syscall.SIGTERM {
				// The script's own comes on top of it, and that is one too many.
				if err := os.WriteFile(filepath.Join(os.Getenv("TMPDIR"), "tmp.by-two-signals"), nil, 0o644); err != nil {
					panic(err)
				}
			}
			return 1
		}
	}
	r := madeUp(version, map[string]float64{"quick": 2, "slow": 3}[speed])
	code := 0
	if behaviour == "void" {
		r.Profiles[0].Void, code = []string{"the generator was saturated"}, 1
	}
	r.Command = strings.Join(args, " ")
	if err := os.Mkdir(after("--out"), 0o755); err != nil {
		panic(err)
	}
	for _, p := range r.Profiles {
		p.Runs[0].Histogram, p.Control[0].Histogram = "run", "control"
		for _, name := range []string{"run", "control"} {
			log, distribution := histogramOf(p.Runs[0])
			for ending, data := range map[string][]byte{".hlog": log, ".hgrm": distribution} {
				if err := os.WriteFile(filepath.Join(after("--out"), name+ending), data, 0o644); err != nil {
					panic(err)
				}
			}
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(after("--out"), "results.json"), data, 0o644); err != nil {
		panic(err)
	}
	return code
}

// repository is one with the script, and a program with two commits: the first
// is quick, the second is as slow as it says.
type repository struct {
	dir, temporary string
	env            []string
}

func newRepository(t *testing.T, then string) *repository {
	t.Helper()
	for _, needed := range []string{"git", "bash", "go"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Fatalf("no %s: make test installs it", needed) // a test that is skipped proves nothing
		}
	}
	r := &repository{dir: t.TempDir(), temporary: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range os.Environ() { // of a make that runs this, above all
		switch name, _, _ := strings.Cut(e, "="); name {
		case "RUNS", "DURATION", "PROFILE", "CONNECTIONS", "RATE", "ENGINE", "THRESHOLD", "DIR", "OUT", "BASE", "VERSION", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE":
		default:
			r.env = append(r.env, e)
		}
	}
	r.env = append(r.env, "TMPDIR="+r.temporary, "BENCH="+self, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@example.org", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@example.org")
	script, err := os.ReadFile("../../scripts/bench_compare.sh")
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, "scripts/bench_compare.sh", string(script), 0o755)
	r.write(t, "go.mod", "module example.org/x\n\ngo 1.26\n", 0o644)
	r.program(t, "quick")
	r.git(t, "init", "-q")
	r.git(t, "add", ".")
	r.git(t, "commit", "-q", "-m", "first")
	r.git(t, "tag", "first")
	r.program(t, then)
	r.git(t, "commit", "-q", "--allow-empty", "-a", "-m", "second")
	return r
}

func (r *repository) write(t *testing.T, name, data string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
}

func (r *repository) program(t *testing.T, speed string) {
	t.Helper()
	r.write(t, "cmd/idemd/main.go", `package main

import "fmt"

var version string

func main() { fmt.Println(version, "`+speed+`") }
`, 0o644)
}

func (r *repository) git(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (r *repository) command(behaviour, base string, env ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd = exec.Command("scripts/bench_compare.sh", base)
	cmd.Dir, cmd.Env = r.dir, append(append(r.env[:len(r.env):len(r.env)], scripted+"="+behaviour), env...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// leavesNothing checks that no worktree and no temporary file is left, and that
// the tree is as it was.
func (r *repository) leavesNothing(t *testing.T) {
	t.Helper()
	if trees := strings.TrimSpace(r.git(t, "worktree", "list")); strings.Count(trees, "\n") != 0 {
		t.Errorf("worktrees are left:\n%s", trees)
	}
	if _, err := os.Stat(filepath.Join(r.dir, ".git", "worktrees")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("git still knows of a worktree: %v", err)
	}
	entries, err := os.ReadDir(r.temporary)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "tmp.") {
			t.Errorf("%s is left", e.Name())
		}
	}
	if status := r.git(t, "status", "--porcelain", "--ignored"); status != "" {
		t.Errorf("the tree has changed:\n%s", status)
	}
}

func TestBenchCompareScript(t *testing.T) {
	r := newRepository(t, "slow")
	a := strings.TrimSpace(r.git(t, "describe", "--always", "first^{commit}"))
	for _, tc := range []struct {
		name, behaviour, base string
		env                   []string
		code                  int
		stdout, stderr        string
	}{
		{"slower than before", "measure", "first", nil, 1, "7 regressions", "run 5 of 5: B"},
		{"the same", "measure", "HEAD", nil, 0, "No regression", ""},
		{"slower within the threshold", "measure", "first", []string{"THRESHOLD=60%"}, 0, "No regression beyond 60%", ""},
		{"too few runs", "measure", "first", []string{"RUNS=1"}, 3, "NOT JUDGED", "run 1 of 1"},
		{"void", "void", "first", nil, 3, "A is void: the generator was saturated", ""},
		{"a run fails", "fail", "first", nil, 4, "", "it could not be measured (exit code 1)"},
		{"no such commit", "measure", "nonsense", nil, 2, "", "git knows no commit nonsense"},
		{"no commit", "measure", "", nil, 2, "", "usage:"},
		{"runs of nonsense", "measure", "first", []string{"RUNS=x"}, 2, "", "RUNS is x"},
		{"output that is there", "measure", "first", []string{"OUT=scripts"}, 2, "", "is there already"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd, stdout, stderr := r.command(tc.behaviour, tc.base, tc.env...)
			if code := exitCode(cmd.Run()); code != tc.code || !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, want %d; want %q and %q in\n%s\n%s", code, tc.code, tc.stdout, tc.stderr, stdout, stderr)
			}
			r.leavesNothing(t)
		})
	}
	t.Run("in turns, and kept", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "kept")
		cmd, _, stderr := r.command("measure", "first", "OUT="+out, "RATE=7", "PROFILE=distinct", "DURATION=1s", "DIR=/somewhere")
		if code := exitCode(cmd.Run()); code != 1 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		var turns []string
		for line := range strings.Lines(stderr.String()) {
			if _, turn, ok := strings.Cut(line, " of 5: "); ok {
				turns = append(turns, turn[:1])
			}
		}
		if got := strings.Join(turns, ""); got != "ABABABABAB" {
			t.Errorf("turns %s", got)
		}
		kept, err := bench.Open(filepath.Join(out, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if kept.Commit != a || len(kept.Profiles[0].Runs) != 5 {
			t.Errorf("A is %s with %d runs, want %s with 5", kept.Commit, len(kept.Profiles[0].Runs), a)
		}
		for _, want := range []string{"--runs 1 ", "--profile distinct ", "--duration 1s ", "--rate 7 ", "--dir /somewhere "} {
			if !strings.Contains(kept.Command, want) {
				t.Errorf("no %q in %q", want, kept.Command)
			}
		}
		for _, name := range []string{"compare.txt", "compare.svg", "b/results.json"} {
			if _, err := os.Stat(filepath.Join(out, name)); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("what is not committed is measured as well", func(t *testing.T) {
		r.program(t, "quick")
		defer r.git(t, "checkout", "-q", ".")
		cmd, stdout, stderr := r.command("measure", "first")
		if code := exitCode(cmd.Run()); code != 0 || !strings.Contains(stderr.String(), "-dirty") {
			t.Errorf("exit code %d: %s\n%s", code, stdout, stderr)
		}
	})
	for _, tc := range []struct {
		name string
		sig  syscall.Signal
		all  int // -1: every process of the group gets it, as of a terminal
	}{{"interrupt", syscall.SIGINT, 1}, {"Ctrl-C", syscall.SIGINT, -1}, {"termination", syscall.SIGTERM, 1}} {
		t.Run("ended by "+tc.name, func(t *testing.T) {
			hung := filepath.Join(t.TempDir(), "hung")
			if err := syscall.Mkfifo(hung, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd, _, stderr := r.command("hang", "first", "HUNG="+hung)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pipe, err := os.Open(hung) // until the second run of A is under way
			if err != nil {
				t.Fatal(err)
			}
			defer pipe.Close()
			if _, err := io.ReadAll(pipe); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(tc.all*cmd.Process.Pid, tc.sig); err != nil {
				t.Fatal(err)
			}
			late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			code := exitCode(cmd.Wait()) // until every process that holds its stderr has ended
			if !late.Stop() || code != 128+int(tc.sig) {
				t.Errorf("exit code %d, want %d: %s", code, 128+int(tc.sig), stderr)
			}
			r.leavesNothing(t)
		})
	}
	t.Run("a commit that cannot be built", func(t *testing.T) {
		r.write(t, "cmd/idemd/broken.go", "package main\n\nthis is no Go\n", 0o644)
		r.git(t, "add", ".")
		r.git(t, "commit", "-q", "-m", "broken")
		r.git(t, "tag", "broken")
		r.git(t, "revert", "--no-edit", "HEAD")
		cmd, _, stderr := r.command("measure", "broken")
		if code := exitCode(cmd.Run()); code != 4 || !strings.Contains(stderr.String(), "could not be built") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		r.leavesNothing(t)
	})
}
