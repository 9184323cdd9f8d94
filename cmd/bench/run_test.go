package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/bench"
)

// programs are the real ones, built once.
type programs struct{ dir, idemd, bench string }

func built(t *testing.T) programs {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-X main.version=a-test", "-o", dir+"/", "../idemd", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return programs{dir, filepath.Join(dir, "idemd"), filepath.Join(dir, "bench")}
}

// TestRun measures the real daemon, little of everything.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := built(t)
	t.Run("every profile", p.everyProfile)
	t.Run("recovery", p.recovery)
	t.Run("preload", p.preload)
	t.Run("interrupted", p.interrupted)
	t.Run("cannot start", p.cannotStart)
	t.Run("ended by a signal", p.signalled)
}

type outcome struct {
	code           int
	stdout, stderr string
}

func runBench(ctx context.Context, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, strings.NewReader(""), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// nothingLeft fails if a file is left below dir, or a process that names dir or
// our programs.
func (p programs) nothingLeft(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err == nil && (bytes.HasPrefix(line, []byte(p.dir)) || bytes.Contains(line, []byte(dir))) {
			t.Errorf("%s lives: %q", file, line)
		}
	}
}

func (p programs) everyProfile(t *testing.T) {
	for _, engine := range []string{"vegeta", "bare"} {
		t.Run(engine, func(t *testing.T) {
			dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			o := runBench(t.Context(), "run", "--profile=distinct,distinct-202,distinct-300", "--profile=same,same-300,same-sustained,mixed,replay,wait,conflict,poll",
				"--requests=200", "--connections=8", "--keys=3", "--runs=2", "--warmup=10ms", "--engine="+engine,
				"--idemd="+p.idemd, "--control="+p.bench, "--dir="+dir, "--out="+out, "--json")
			if o.code != 0 || o.stderr != "" {
				t.Fatalf("%d: %s", o.code, o.stderr)
			}
			p.nothingLeft(t, dir)
			var r bench.Results
			if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
				t.Fatal(err)
			}
			saved, err := bench.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			if r.Commit != "a-test" || saved.Commit != "a-test" || !strings.HasPrefix(r.Command, "bench run --profile=distinct,") || r.Env.Fsync.P50 <= 0 {
				t.Errorf("%s, %q, %+v", r.Commit, r.Command, r.Env)
			}
			want := map[string]struct {
				status                   string
				requests, calls, effects int64
			}{
				"distinct": {"200", 200, 200, 200}, "distinct-202": {"202", 200, 200, 200}, "distinct-300": {"200", 300, 300, 300},
				"same": {"200", 300, 1, 1}, "same-300": {"200", 300, 1, 1}, "same-sustained": {"200", 200, 1, 1}, "mixed": {"200", 200, 180, 180},
				"replay": {"200", 200, 0, 0}, "wait": {"200", 200, 200, 0}, "conflict": {"409", 200, 0, 0}, "poll": {"200", 200, 0, 0},
			}
			if len(r.Profiles) != len(want) {
				t.Errorf("%d profiles", len(r.Profiles))
			}
			for _, q := range r.Profiles {
				w := want[q.Name]
				if len(q.Void) > 0 || q.Pace != "closed" || q.Engine != engine || len(q.Runs) != 2 || len(q.Control) != 2 {
					t.Errorf("%+v", q)
				}
				for _, m := range q.Runs {
					if m.Requests != w.requests || m.Statuses[w.status] != int(w.requests) || m.Calls != w.calls || m.Effects != w.effects || m.Attempts["1"] != w.calls {
						t.Errorf("%s: %+v", q.Name, m)
					}
					if m.Latency.P50 <= 0 || m.Latency.Max < m.Latency.P999 || m.Throughput <= 0 || m.GeneratorCPU <= 0 || m.ServerCPU < 0 {
						t.Errorf("%s: %+v", q.Name, m)
					}
				}
				for _, m := range q.Control {
					if m.Requests != w.requests || m.Statuses[w.status] != int(w.requests) || m.Calls != 0 {
						t.Errorf("%s, control: %+v", q.Name, m)
					}
				}
			}
		})
	}
}

// recovery: whatever share of the requests was answered, every answered call
// is still there after the kill, or the figures would be void for it. Whether the
// generator kept up is the machine's business.
func (p programs) recovery(t *testing.T) {
	dir := t.TempDir()
	o := runBench(t.Context(), "run", "--profile=recovery", "--duration=1s", "--rate=200", "--warmup=0s",
		"--idemd="+p.idemd, "--control="+p.bench, "--dir="+dir, "--json")
	p.nothingLeft(t, dir)
	var r bench.Results
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, o.stderr)
	}
	q := r.Profiles[0]
	for _, why := range q.Void {
		if !strings.Contains(why, "the generator is saturated") {
			t.Error(why)
		}
	}
	if m := q.Runs[0]; m.Requests != 200 || m.Statuses["200"] == 0 || m.Gap <= 0 || m.Calls < int64(m.Statuses["200"]) || m.ServerCPU < 0 || q.Pace != "open" {
		t.Errorf("%+v", m)
	}
}

// preload fills a directory once.
func (p programs) preload(t *testing.T) {
	dir, data := t.TempDir(), filepath.Join(t.TempDir(), "data")
	args := []string{"run", "--profile=distinct", "--requests=10", "--warmup=0s", "--preload=500", "--data=" + data,
		"--idemd=" + p.idemd, "--control=" + p.bench, "--dir=" + dir}
	for range 2 {
		o := runBench(t.Context(), args...)
		if o.code != 0 || !strings.Contains(o.stdout, "on a store with 500 ended calls") {
			t.Fatalf("%d: %s%s", o.code, o.stdout, o.stderr)
		}
	}
	p.nothingLeft(t, dir)
	out, err := exec.Command(p.idemd, "inspect", data).CombinedOutput()
	// 500, and for each run ten and the sample.
	if err != nil || !strings.Contains(string(out), "522") {
		t.Errorf("%v: %s", err, out)
	}
}

// interrupted ends a run while it measures: no child, no directory, no file.
func (p programs) interrupted(t *testing.T) {
	for step, warmup := range map[string]time.Duration{"warm-up": time.Hour, "run 1 of 3": 0, "run 1 of 3, control": 0} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			o := bench.Options{
				Profiles: []string{"distinct"}, Idemd: p.idemd, Control: []string{p.bench, "control"}, Dir: dir,
				Runs: 3, Requests: 1000, Warmup: warmup, Connections: 4,
				Progress: func(at bench.Progress) {
					if at.Step == step {
						cancel()
					}
				},
			}
			rec, err := bench.Run(ctx, o)
			if !errors.Is(err, context.Canceled) || rec != nil {
				t.Errorf("%v, %v", rec, err)
			}
			p.nothingLeft(t, dir)
		})
	}
}

// TestWithdraw: a second signal ends the program only when the first one is some
// time ago.
func TestWithdraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stopped atomic.Bool
		withdraw(ctx, func() { stopped.Store(true) })
		for _, step := range []struct {
			do   func()
			want bool
		}{{func() {}, false}, {cancel, false}, {func() { time.Sleep(patience - time.Nanosecond) }, false}, {func() { time.Sleep(time.Nanosecond) }, true}} {
			step.do()
			synctest.Wait()
			if stopped.Load() != step.want {
				t.Errorf("stopped: %v", stopped.Load())
			}
		}
	})
}

// signalled sends the real program a signal when it has started idemd: what it
// started goes with it, and what it made.
func (p programs) signalled(t *testing.T) {
	// Where these tests run under nohup, what they start would ignore it as well.
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, syscall.SIGHUP)
	defer signal.Stop(hups)
	const long = "--duration=1m" // it cannot be done before the signal comes
	for _, tc := range []struct {
		name  string
		sig   syscall.Signal
		nohup string
		until string
		code  int
	}{
		{"interrupted", syscall.SIGINT, "", long, exitFailed},
		{"terminated", syscall.SIGTERM, "", long, exitFailed},
		{"the terminal is gone", syscall.SIGHUP, "", long, exitFailed},
		{"the terminal is gone, which is to be ignored", syscall.SIGHUP, "trap '' HUP; ", "--requests=10", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, here := t.TempDir(), t.TempDir()
			pipe, idemd := filepath.Join(here, "pipe"), filepath.Join(here, "idemd")
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			script := "#!/bin/sh\n[ \"$1\" = serve ] && echo x >" + pipe + "\nexec " + p.idemd + " \"$@\"\n"
			if err := os.WriteFile(idemd, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			cmd := exec.Command("sh", "-c", tc.nohup+`exec "$@"`, "sh", p.bench, "run", "--profile=distinct", tc.until, "--warmup=0s", "--idemd="+idemd, "--dir="+dir)
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.ReadFile(pipe); err != nil { // until idemd is started
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(tc.sig); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(cmd.Wait()); code != tc.code || code != 0 && !strings.Contains(stderr.String(), "interrupted; nothing was written") {
				t.Errorf("exit code %d, want %d: %s", code, tc.code, &stderr)
			}
			p.nothingLeft(t, dir)
		})
	}
}

func (p programs) cannotStart(t *testing.T) {
	for _, tc := range []struct {
		name           string
		idemd, control string
		want           string
	}{
		{"no program", filepath.Join(p.dir, "none"), p.bench, "idemd cannot be started"},
		{"a program that is not idemd", p.bench, p.bench, "idemd ended (exit status 2) before it listened"},
		{"a program that is not the control", p.idemd, p.idemd, "control ended (exit status 2) before it listened"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(t.TempDir(), "out")
			o := runBench(t.Context(), "run", "--profile=distinct", "--idemd="+tc.idemd, "--control="+tc.control, "--dir="+dir, "--out="+out)
			if o.code != exitFailed || !strings.Contains(o.stderr, tc.want) || o.stdout != "" {
				t.Errorf("%d: %s%s", o.code, o.stdout, o.stderr)
			}
			p.nothingLeft(t, dir)
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"run", "--profile is missing"},
		{"run --profile=fast", `no profile "fast"`},
		{"run --profile=distinct --rate=10 --max", "--rate"},
		{"run --profile=distinct --rate=-1", "negative"},
		{"run --profile=distinct --connections=0", "positive"},
		{"run --profile=distinct --engine=steam", "steam"},
		{"run --profile=recovery --target=http://127.0.0.1:1", "kills"},
		{"run --profile=distinct --target=http://127.0.0.1:1 --idemd=x", "either"},
		{"run --profile=distinct --out=" + full, "is not empty"},
		{"run --profile=distinct --out=/proc/none/out", "--out: "},
		{"run --profile=recovery --duration=1ms", "not one request of recovery is due in 1ms"},
		{"measure", "measure"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			o := runBench(t.Context(), strings.Fields(tc.args)...)
			if o.code != exitUsage || !strings.Contains(o.stderr, tc.want) || o.stdout != "" {
				t.Errorf("%d: %s%s", o.code, o.stdout, o.stderr)
			}
		})
	}
	t.Run("results where it runs", func(t *testing.T) {
		t.Chdir(t.TempDir())
		if o := runBench(t.Context(), "run", "--profile=distinct", "--out=."); o.code != exitUsage || !strings.Contains(o.stderr, "--out: ") {
			t.Errorf("%d: %s%s", o.code, o.stdout, o.stderr)
		}
	})
	if o := runBench(t.Context(), "run", "--list"); o.code != 0 || strings.Count(o.stdout, "\n") != len(bench.Profiles()) {
		t.Errorf("%d: %s%s", o.code, o.stdout, o.stderr)
	}
	if o := runBench(t.Context(), "run", "--help"); o.code != 0 || !strings.Contains(o.stdout, "Latencies count from when a request was due") {
		t.Errorf("%d: %s%s", o.code, o.stdout, o.stderr)
	}
	if got := shellWords([]string{"run", "--dir=a b", "", "it's"}); got != `run '--dir=a b' '' 'it'\''s'` {
		t.Error(got)
	}
}

// TestControl: it answers what it is told, to whoever asks, and ends with its stdin.
func TestControl(t *testing.T) {
	stdin, in := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan int)
	go func() { ended <- run(t.Context(), []string{"control"}, stdin, io.Discard, out) }()
	if _, err := io.WriteString(in, `{"status":409,"header":{"X-It":["yes"]},"body":"AAEC"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 200)
	n, err := said.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), "control listening on http://127.0.0.1:") {
		t.Fatalf("%q, %v", line[:n], err)
	}
	url := strings.TrimSpace(strings.TrimPrefix(string(line[:n]), "control listening on "))
	for _, q := range []struct{ method, path string }{{http.MethodPost, "/v1/tool-calls"}, {http.MethodGet, "/v1/tool-calls/c_1"}} {
		req, err := http.NewRequestWithContext(t.Context(), q.method, url+q.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusConflict || resp.Header.Get("X-It") != "yes" || string(body) != "\x00\x01\x02" {
			t.Errorf("%d, %v, %q, %v", resp.StatusCode, resp.Header, body, err)
		}
	}
	in.Close()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	if o := runBench(t.Context(), "control"); o.code != exitFailed || !strings.Contains(o.stderr, "answer to give") {
		t.Errorf("%d: %s", o.code, o.stderr)
	}
}
