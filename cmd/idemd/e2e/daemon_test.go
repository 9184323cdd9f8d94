//go:build unix

// Package e2e starts the real binary, talks to it over real sockets, kills it
// at the worst moments, starts it again, and lets a judge that trusts no answer
// count what is on the disk.
//
// It promises that every process that it started is gone when a test ends, and
// that it ends no other. It waits for signals (a line on stderr, an answer, the
// end of a process) and polls only where there is none; every wait is bounded.
// It imports package idem, porcupine and the standard library.
//
// Environment:
//
//	IDEMD_E2E_ROUNDS    30 is the long form; the default is a short one
//	IDEMD_E2E_SEED      repeats a run of the random tests; they print theirs
//	IDEMD_E2E_PATIENCE  a factor for every deadline, for slow machines (1)
//	IDEMD_E2E_VOLUME    1 adds the test with a million keys
//	IDEMD_TORTURE       set, it makes histories, pauses and volume long
//	IDEMD_E2E_BINARY    a binary to test instead of building one
//
// Reading order: daemon_test.go (a process and its lives), client_test.go (one
// request on the wire), judge_test.go (what is checked in the end), and then the
// tests, of which scenario_test.go is the shortest.
package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if !isSet("test.parallel") {
		// Most of the time goes by in the waiting for tools that take theirs.
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err)
		}
	}
	if binary = os.Getenv("IDEMD_E2E_BINARY"); binary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "idemd-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "idemd")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "github.com/idemd/idemd/cmd/idemd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: cannot build the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// missing ends a test that needs something that is not here. On CI that is a
// failure: a test that is always skipped proves nothing.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing on CI: %s", what)
	}
	t.Skipf("missing: %s", what)
}

// longRounds is what IDEMD_E2E_ROUNDS is in the long form.
const longRounds = 30

// size is how much of something a test does: the short form by default, the
// long one for IDEMD_E2E_ROUNDS=30, and in proportion for other numbers.
func size(short, long int) int {
	rounds, err := strconv.Atoi(os.Getenv("IDEMD_E2E_ROUNDS"))
	if err != nil || rounds <= 0 {
		return short
	}
	return max(short, long*rounds/longRounds)
}

// patience is how long a test waits for what should come at once.
func patience() time.Duration { return generous(30 * time.Second) }

// generous is a deadline on this machine.
func generous(d time.Duration) time.Duration {
	factor, err := strconv.ParseFloat(os.Getenv("IDEMD_E2E_PATIENCE"), 64)
	if err != nil || factor < 1 {
		return d
	}
	return time.Duration(float64(d) * factor)
}

// chance is a source of randomness whose seed is printed.
func chance(t testing.TB) *rand.Rand {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("IDEMD_E2E_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64N(1 << 32)
	}
	t.Logf("seed: IDEMD_E2E_SEED=%d", seed)
	h := fnv.New64a()
	_, _ = io.WriteString(h, t.Name())
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// between is a random duration.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// eventually polls for what nothing signals.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience()); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience(), what)
		}
	}
}

// daemon is a data directory and the process that serves it, life after life.
type daemon struct {
	dir   string
	flags []string
	env   []string

	posts, gets *http.Client

	mu    sync.Mutex
	life  *life
	born  chan struct{} // closed when there is a new life
	lives int
}

// life is one process.
type life struct {
	cmd     *exec.Cmd
	url     string    // where it listens
	readyAt time.Time // when it said so; both are there when ready is closed

	ready chan struct{} // closed when it listens
	ended chan struct{} // closed when it is gone and its stderr is read

	mu    sync.Mutex
	lines []string // of its stderr, the last ones
	bytes int
	heard chan struct{} // closed at the next line
}

// start starts a daemon on an empty directory and waits until it listens.
func start(t testing.TB, flags ...string) *daemon {
	t.Helper()
	d := prepare(t, t.TempDir(), flags...)
	d.boot(t)
	return d
}

// startChaos is start with faults on purpose allowed.
func startChaos(t testing.TB, flags ...string) *daemon {
	t.Helper()
	return start(t, append([]string{"--chaos"}, flags...)...)
}

// prepare makes a daemon on a directory without starting it.
func prepare(t testing.TB, dir string, flags ...string) *daemon {
	t.Helper()
	d := &daemon{dir: dir, flags: flags, born: make(chan struct{})}
	d.posts, d.gets = newClients()
	t.Cleanup(func() {
		d.posts.CloseIdleConnections()
		l := d.now()
		if l == nil {
			return
		}
		if !l.gone() {
			_ = l.cmd.Process.Kill()
			if !l.awaitEnd() {
				t.Errorf("process %d does not end when it is killed", l.cmd.Process.Pid)
			}
		}
		if t.Failed() {
			t.Logf("end of stderr of life %d:\n%s", d.lives, l.tail(40))
		}
	})
	return d
}

// boot starts a process and waits until it listens.
func (d *daemon) boot(t testing.TB, flags ...string) {
	t.Helper()
	if !d.bootToDie(t, flags...) {
		l := d.now()
		t.Fatalf("the process ended with %v before it listened:\n%s", l.cmd.ProcessState, l.tail(40))
	}
}

// bootToDie is boot where the process may be ended at any moment by what it takes
// up. It reports whether it came to listen.
func (d *daemon) bootToDie(t testing.TB, flags ...string) bool {
	t.Helper()
	l := d.spawn(t, flags...)
	watchdog := time.NewTimer(patience())
	defer watchdog.Stop()
	select {
	case <-l.ready:
	case <-l.ended:
		return false
	case <-watchdog.C:
		t.Fatalf("the process does not listen after %v:\n%s", patience(), l.tail(40))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.born)
	d.born = make(chan struct{})
	return true
}

// spawn starts a process and waits for nothing.
func (d *daemon) spawn(t testing.TB, flags ...string) *life {
	t.Helper()
	if l := d.now(); l != nil && !l.gone() {
		t.Fatal("the earlier life has not ended")
	}
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--data", d.dir}, d.flags...)
	l, err := launch(append(args, flags...), d.env)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life = l
	d.lives++
	return l
}

// launch starts a process and reads its stderr until it is gone.
func launch(args, env []string) (*life, error) {
	l := &life{
		cmd: exec.Command(binary, args...), heard: make(chan struct{}),
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	l.cmd.Env = append(cleanEnv(), env...)
	stderr, err := l.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		l.read(stderr)
		_ = l.cmd.Wait() // how it ended is in ProcessState
		close(l.ended)
	}()
	return l, nil
}

// cleanEnv is this process's environment without what the program takes flags
// from.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "IDEMD_") })
}

const (
	listening = "idemd listening on "
	keepBytes = 16 << 20
)

func (l *life) read(stderr io.Reader) {
	r := bufio.NewReader(stderr)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			l.hear(strings.TrimSuffix(line, "\n"))
		}
		if err != nil {
			return
		}
	}
}

func (l *life) hear(line string) {
	if url, ok := strings.CutPrefix(line, listening); ok && l.url == "" {
		l.url, l.readyAt = url, time.Now()
		close(l.ready)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	for l.bytes += len(line); l.bytes > keepBytes; l.lines = l.lines[1:] {
		l.bytes -= len(l.lines[0])
	}
	close(l.heard)
	l.heard = make(chan struct{})
}

// log returns the lines so far, and a channel that is closed at the next one.
func (l *life) log() ([]string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines), l.heard
}

// base is where the process listens, as soon as it does.
func (l *life) base(ctx context.Context) (string, error) {
	select {
	case <-l.ready:
		return l.url, nil
	case <-l.ended:
		return "", errors.New("the process ended before it listened")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (l *life) tail(n int) string {
	lines, _ := l.log()
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// awaitLine waits for a line that contains a text.
func (l *life) awaitLine(t testing.TB, text string) {
	t.Helper()
	watchdog := time.NewTimer(patience())
	defer watchdog.Stop()
	for {
		lines, more := l.log()
		if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, text) }) {
			return
		}
		select {
		case <-more:
		case <-l.ended:
			t.Fatalf("the process ended without a line with %q:\n%s", text, l.tail(40))
		case <-watchdog.C:
			t.Fatalf("no line with %q:\n%s", text, l.tail(40))
		}
	}
}

func (l *life) gone() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (l *life) awaitEnd() bool {
	watchdog := time.NewTimer(patience())
	defer watchdog.Stop()
	select {
	case <-l.ended:
		return true
	case <-watchdog.C:
		return false
	}
}

// killed reports whether the process ended by SIGKILL.
func (l *life) killed() bool {
	ws, ok := l.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// now is the current life; nil before the first.
func (d *daemon) now() *life {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life
}

// awaitNext waits until there is a life after l that listens.
func (d *daemon) awaitNext(ctx context.Context, l *life) error {
	for {
		d.mu.Lock()
		now, born := d.life, d.born
		d.mu.Unlock()
		if now != l {
			select {
			case <-now.ready:
				return nil
			default:
			}
		}
		select {
		case <-born:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// kill ends the process by SIGKILL.
func (d *daemon) kill(t testing.TB) {
	t.Helper()
	l := d.now()
	if err := l.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	d.awaitEnd(t)
}

// stop asks the process to stop and returns its exit code.
func (d *daemon) stop(t testing.TB) int {
	t.Helper()
	d.signal(t, syscall.SIGTERM)
	return d.awaitEnd(t)
}

func (d *daemon) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := d.now().cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// awaitEnd waits until the process is gone and returns its exit code, -1 where
// a signal ended it.
func (d *daemon) awaitEnd(t testing.TB) int {
	t.Helper()
	l := d.now()
	if !l.awaitEnd() {
		t.Fatalf("the process does not end:\n%s", l.tail(40))
	}
	return l.cmd.ProcessState.ExitCode()
}

// awaitDeath waits until a fault has killed the process.
func (d *daemon) awaitDeath(t testing.TB) {
	t.Helper()
	d.awaitEnd(t)
	if l := d.now(); !l.killed() {
		t.Fatalf("the process ended with %v, not by a kill:\n%s", l.cmd.ProcessState, l.tail(40))
	}
}

// restart kills the process and starts it again.
func (d *daemon) restart(t testing.TB) {
	t.Helper()
	d.kill(t)
	d.boot(t)
}

// command runs the program to its end.
func command(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	var out, words strings.Builder
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(), &out, &words
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("idemd %s: %v\n%s", strings.Join(args, " "), err, words.String())
	}
	return out.String(), words.String(), cmd.ProcessState.ExitCode()
}
