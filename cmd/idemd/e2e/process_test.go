//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// Exit codes that scripts and supervisors rely on.
const (
	exitUsage = 2
	exitInUse = 75
)

// fails starts a process that is to end by itself before it listens.
func fails(t *testing.T, flags ...string) (words string, code int) {
	t.Helper()
	l, err := launch(append([]string{"serve"}, flags...), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !l.awaitEnd() {
		_ = l.cmd.Process.Kill()
		t.Fatalf("idemd serve %v does not end:\n%s", flags, l.tail(40))
	}
	if l.url != "" {
		t.Errorf("idemd serve %v listened on %s", flags, l.url)
	}
	return l.tail(1000), l.cmd.ProcessState.ExitCode()
}

// TestOneProcessADirectory starts a second process on a directory that is in use,
// by its own name and by others (R11).
func TestOneProcessADirectory(t *testing.T) {
	t.Parallel()
	d := start(t)
	a := d.post("order-1", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(d.dir, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{d.dir, link, d.dir + "/../" + filepath.Base(d.dir) + "/"} {
		words, code := fails(t, "--listen", "127.0.0.1:0", "--data", name)
		if code != exitInUse || !strings.Contains(words, "in use") {
			t.Errorf("%s: want exit code %d and a reason, got %d: %s", name, exitInUse, code, words)
		}
	}
	if b := d.post("order-1", "charge", `{"amount":1}`).wantEnd(t, idem.StatusSucceeded); !b.sameEnd(a) {
		t.Errorf("want %v again, got %v", a, b)
	}
	d.post("order-2", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	reconcile(t, d, "order-1", "order-2")

	// A process that is gone is in nobody's way, however it went.
	d.kill(t)
	d.dir = link
	d.boot(t)
	reconcile(t, d, "order-1", "order-2")
}

// TestRefusesToStart: what cannot be right is refused before anything is made.
func TestRefusesToStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	dir := filepath.Join(t.TempDir(), "new")
	for _, c := range []struct {
		name  string
		flags []string
		code  int // 0: any but 0
		words []string
	}{
		{"others could reach it", []string{"--listen", "0.0.0.0:0"}, exitUsage, []string{"--insecure", "0.0.0.0:0"}},
		{"others could reach it, IPv6", []string{"--listen", "[::]:0"}, exitUsage, []string{"--insecure"}},
		{"others could reach it, every address", []string{"--listen", ":0"}, exitUsage, []string{"--insecure"}},
		{"every fault at once", []string{"--listen", "nowhere", "--workers", "0", "--lease", "1ms", "--max-crashes", "1", "--max-in-flight", "0", "--queue", "0"},
			exitUsage, []string{"--listen", "workers", "lease", "max-crashes", "max-in-flight", "queue"}},
		{"no number", []string{"--workers", "many"}, exitUsage, []string{"--workers"}},
		{"an unknown flag", []string{"--colour", "red"}, exitUsage, []string{"--colour"}},
		{"an unknown level", []string{"--log-level", "loud"}, exitUsage, []string{"--log-level"}},
		{"the port is taken", []string{"--listen", taken.Addr().String()}, 0, []string{taken.Addr().String(), "in use"}},
	} {
		words, code := fails(t, append([]string{"--data", dir}, append([]string{"--listen", "127.0.0.1:0"}, c.flags...)...)...)
		if code <= 0 || c.code != 0 && code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s", c.name, code, c.code, words)
		}
		for _, w := range c.words {
			if !strings.Contains(words, w) {
				t.Errorf("%s: nothing about %q: %s", c.name, w, words)
			}
		}
		if strings.Contains(words, "goroutine ") {
			t.Errorf("%s: a stack instead of words: %s", c.name, words)
		}
		if _, err := os.Stat(dir); c.code == exitUsage && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the data directory was made", c.name)
		}
	}
	// The directory whose start failed on the port is as good as ever.
	d := prepare(t, dir)
	d.boot(t)
	d.post("order-1", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	reconcile(t, d, "order-1")
}

// TestFaultsNeedLeave: without --chaos nobody can ask for a failure.
func TestFaultsNeedLeave(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, p := range idem.Points {
		d.post("order-1", "charge", `{"amount":1}`, wait(20), fault(p, "exit")).wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest)
	}
	for _, tool := range []string{"ext_rerun", "ext_verify", "ext_hold"} {
		d.post("order-1", tool, `{"do":"exit"}`).wantRefusal(t, http.StatusBadRequest, idem.CodeBadRequest)
	}
	d.find("order-1").wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	d.post("order-1", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	reconcile(t, d, "order-1")
}

// TestStopDrains: a stop waits for what runs, takes nothing new, and says so.
func TestStopDrains(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	running := d.post("running", "sleep", `{"seconds":1.5}`).want(t, http.StatusAccepted)
	d.awaitStatus(t, running.CallID, idem.StatusRunning)
	waiting := later(func() reply { return d.post("running", "sleep", `{"seconds":1.5}`, wait(20)) })
	eventually(t, "the waiting request has joined", func() bool { return d.stats(t).Joined == 1 })
	// Connections that are open before the stop are served until the end of it.
	probe, late := d.dial(t), d.dial(t)

	ready := d.get("/readyz")
	if ready.status != http.StatusOK || d.get("/healthz").status != http.StatusOK {
		t.Errorf("not ready: %v", ready)
	}
	d.signal(t, syscall.SIGTERM)
	d.now().awaitLine(t, `"stopping"`)
	var r reply
	eventually(t, "it says that it is not ready", func() bool { r = d.get("/readyz"); return r.status != http.StatusOK })
	for name, r := range map[string]reply{
		"/readyz":                      r,
		"/readyz on an old connection": exchange(probe, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"a call on an old connection":  exchange(late, plain("too late", `{"tool":"charge","args":{"amount":1}}`, "")),
		"a call":                       d.post("too late", "charge", `{"amount":1}`),
	} {
		if r.status != http.StatusServiceUnavailable || r.refusal == nil || r.refusal.Code != idem.CodeUnavailable ||
			r.refusal.Effect != idem.DoubtNone || !strings.Contains(r.refusal.Message, "stopping") || r.header.Get("Retry-After") == "" {
			t.Errorf("%s while it drains: %v", name, r)
		}
	}
	r = <-waiting
	end := r.wantEnd(t, idem.StatusSucceeded)
	if code := d.awaitEnd(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.boot(t)
	if c := d.find("running").wantEnd(t, idem.StatusSucceeded); !c.sameEnd(end) || c.Attempt != 1 || c.Crashes != 0 {
		t.Errorf("want %v, got %v", end, c)
	}
	d.find("too late").wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	reconcile(t, d)
}

// TestStopWaitsForNobodyIdle: a connection over which nothing was ever asked, or
// nothing is being asked now, holds no stop up.
func TestStopWaitsForNobodyIdle(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.dial(t)
	d.post("order-1", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded) // keeps its connection
	began := time.Now()
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > generous(2*time.Second) {
		t.Errorf("with nothing to wait for the stop took %v:\n%s", took, d.now().tail(3))
	}
}

// TestStopGivesBack: what does not end in time is given back, which is no crash,
// and runs in the next life; what may not run again is held (R12, R13).
func TestStopGivesBack(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--shutdown-timeout", "200ms", "--max-crashes", "2")
	for round := range 3 {
		key := fmt.Sprint("long-", round)
		running := d.post(key, "sleep", `{"seconds":2}`).want(t, http.StatusAccepted)
		d.awaitStatus(t, running.CallID, idem.StatusRunning)
		external := d.post(key+"-hold", "ext_hold", `{"do":"deaf","seconds":10}`).want(t, http.StatusAccepted)
		eventually(t, "it went out", func() bool { return d.dispatched(t, external.EffectID) == 1 })
		waiting := later(func() reply { return d.post(key, "sleep", `{"seconds":2}`, wait(20)) })
		eventually(t, "the waiting request has joined", func() bool { return d.stats(t).Joined == 1 })

		began := time.Now()
		if code := d.stop(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if took := time.Since(began); took > generous(3*time.Second) {
			t.Errorf("the stop took %v", took)
		}
		if r := <-waiting; r.want(t, http.StatusAccepted).Status.Ended() {
			t.Errorf("want the receipt, got %v", r)
		}
		d.boot(t)
		trail := d.audit(t, running.CallID)
		given := false
		for _, e := range trail {
			given = given || e.Name == idem.EventRequeued && e.Detail.Reason == "shutdown"
		}
		if c := d.look(running.CallID).want(t, http.StatusOK); !given || c.Crashes != 0 {
			t.Errorf("want it given back without a crash, got %v, %d crashes: %v", c, c.Crashes, trail)
		}
		if c := d.settled(t, key+"-hold").want(t, http.StatusOK); c.Status != idem.StatusHeld || d.dispatched(t, c.EffectID) != 1 {
			t.Errorf("want it held after one dispatch, got %v", c)
		}
		if round == 0 { // the others are given back again and again
			if c := d.look(running.CallID, wait(20)).wantEnd(t, idem.StatusSucceeded); c.Attempt != 2 || c.Crashes != 0 {
				t.Errorf("want attempt 2, got %v, %d crashes", c, c.Crashes)
			}
		}
	}
	for _, c := range reconcile(t, d) {
		if c.Tool == "sleep" && c.Status != idem.StatusSucceeded {
			t.Errorf("%v", &c)
		}
	}
}

// TestSecondSignal ends the process at once. That is a crash like any other.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	d.post("order-1", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	running := d.post("running", "sleep", `{"seconds":2}`).want(t, http.StatusAccepted)
	d.awaitStatus(t, running.CallID, idem.StatusRunning)
	l := d.now()
	began := time.Now()
	d.signal(t, syscall.SIGINT)
	l.awaitLine(t, `"stopping"`)
	// The first signal hands the next one over to the system a moment after it
	// was heard.
	eventually(t, "it is gone", func() bool {
		_ = l.cmd.Process.Signal(syscall.SIGTERM)
		return l.gone()
	})
	if took := time.Since(began); took > generous(time.Second) {
		t.Errorf("it took %v", took)
	}
	if l.cmd.ProcessState.Success() {
		t.Error("it says that it was a clean stop")
	}
	d.boot(t)
	c := d.look(running.CallID, wait(20)).wantEnd(t, idem.StatusSucceeded)
	if c.Attempt != 2 || c.Crashes != 1 {
		t.Errorf("want attempt 2 after a crash, got %v, %d crashes", c, c.Crashes)
	}
	reconcile(t, d, "order-1")
}

// TestKilledWhileItStarts kills the process at random moments of its start, over
// a store with something to recover.
func TestKilledWhileItStarts(t *testing.T) {
	t.Parallel()
	random := chance(t)
	d := startChaos(t, "--max-crashes", "100")
	var intents []string
	for i := range 40 {
		intents = append(intents, fmt.Sprint("order-", i))
	}
	for _, r := range together(len(intents), func(i int) reply { return d.post(intents[i], "charge", `{"amount":1}`, wait(20)) }) {
		r.wantEnd(t, idem.StatusSucceeded)
	}
	d.post("running", "sleep", `{"seconds":0.5}`).want(t, http.StatusAccepted)
	d.kill(t)
	early := 0
	for range size(12, 60) {
		l := d.spawn(t)
		time.Sleep(between(random, 0, 150*time.Millisecond)) // the moment of the kill
		d.kill(t)
		select {
		case <-l.ready:
		default:
			early++
		}
	}
	t.Logf("%d of %d were killed before they listened", early, size(12, 60))
	d.boot(t)
	d.find("running", wait(20)).wantEnd(t, idem.StatusSucceeded)
	reconcile(t, d, intents...)
}

// TestKilledWhileItBegins kills the process at random moments of its first start,
// while it makes its directory. The next start makes the best of what there is.
func TestKilledWhileItBegins(t *testing.T) {
	t.Parallel()
	random := chance(t)
	for range size(12, 100) {
		d := prepare(t, filepath.Join(t.TempDir(), "data"))
		d.spawn(t)
		time.Sleep(between(random, 0, 100*time.Millisecond)) // the moment of the kill
		d.kill(t)
		d.boot(t)
		d.post("order-1", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
		d.restart(t)
		reconcile(t, d, "order-1")
		d.kill(t)
	}
}

// TestStartReadsLittle: what a start costs does not follow what is stored, where
// everything has ended.
func TestStartReadsLittle(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		missing(t, "/proc")
	}
	d := start(t)
	bytesRead := func() int64 {
		t.Helper()
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", d.now().cmd.Process.Pid))
		if err != nil {
			missing(t, err.Error())
		}
		m := regexp.MustCompile(`rchar: (\d+)`).FindSubmatch(raw)
		if m == nil {
			t.Fatalf("no rchar in %s", raw)
		}
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if code := d.stop(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	d.boot(t)
	empty := bytesRead()

	calls := size(1000, 20_000)
	intents := make([]string, calls)
	for i := range intents {
		intents[i] = fmt.Sprint("order-", i)
	}
	const batch = 200
	for i := 0; i < calls; i += batch {
		for _, r := range together(batch, func(j int) reply {
			return d.post(intents[i+j], "charge", `{"amount":1}`, wait(20))
		}) {
			r.wantEnd(t, idem.StatusSucceeded)
		}
	}
	// The engine may be tidying up in the background, which reads, too, and comes
	// to an end.
	full := int64(math.MaxInt64)
	for range 3 {
		if code := d.stop(t); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		d.boot(t)
		full = min(full, bytesRead())
	}
	t.Logf("a start reads %d bytes over an empty store, %d over %d calls", empty, full, calls)
	if full > empty+64<<10 {
		t.Errorf("it reads %d bytes more for %d calls that have ended", full-empty, calls)
	}
	reconcile(t, d, intents...)
}
