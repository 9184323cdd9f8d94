//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestMillionKeys: memory follows what is in flight, not the keys that were ever
// used. After a million calls the process is hardly larger than after a tenth.
//
// What is compared is the resident memory of a process that was left alone until
// its runtime collected by itself (which it does every two minutes) and had given
// back what it was going to give back. Nothing about the process is tuned for
// that; it is only asked to say when it collects.
func TestMillionKeys(t *testing.T) {
	if os.Getenv("IDEMD_E2E_VOLUME") != "1" {
		t.Skip("IDEMD_E2E_VOLUME is not 1")
	}
	if runtime.GOOS != "linux" {
		missing(t, "/proc")
	}
	const (
		early, all = 100_000, 1_000_000
		allowed    = 64 // MiB
	)
	d := prepare(t, t.TempDir())
	d.env = []string{"GODEBUG=gctrace=1"}
	d.boot(t)
	d.postMany(t, 0, early)
	first := d.atRest(t)
	t.Logf("%8d keys: resident %4d MiB, heap in use %4d MiB", early, first.resident, first.heap)
	d.postMany(t, early, all)
	last := d.atRest(t)
	t.Logf("%8d keys: resident %4d MiB, heap in use %4d MiB", all, last.resident, last.heap)
	if last.resident > first.resident+allowed {
		t.Errorf("%d keys more take %d MiB more, allowed are %d", all-early, last.resident-first.resident, allowed)
	}

	if s := d.stats(t); s.Calls != all || s.Effects != all || s.ByStatus[idem.StatusSucceeded] != all {
		t.Errorf("the totals are %+v", s)
	}
	for i := 0; i < all; i += all / 1000 {
		r := d.post(fmt.Sprint("k-", i), "charge", `{"amount":1}`)
		if c := r.wantEnd(t, idem.StatusSucceeded); c.Attempt != 1 || r.replayed() != "true" {
			t.Errorf("want a replay, got %v", r)
		}
	}
}

// postMany charges once for each of the keys from one number to another.
func (d *daemon) postMany(t *testing.T, from, to int64) {
	t.Helper()
	const connections = 64
	var clients sync.WaitGroup
	var next, failed atomic.Int64
	next.Store(from)
	began := time.Now()
	for range connections {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < to && failed.Load() == 0; i = next.Add(1) - 1 {
				r := d.post(fmt.Sprint("k-", i), "charge", `{"amount":1}`, wait(60))
				if r.status != http.StatusOK || r.call.Attempt != 1 {
					failed.Add(1)
					t.Errorf("key %d: %v", i, r)
				}
			}
		})
	}
	clients.Wait()
	if failed.Load() > 0 {
		t.FailNow()
	}
	t.Logf("%8d keys in %v", to-from, time.Since(began).Round(time.Second))
}

// memory is in MiB.
type memory struct{ resident, heap int64 }

var collected = regexp.MustCompile(`^gc (\d+) @.* \d+->\d+->(\d+) MB`)

// atRest leaves the process alone until it has collected and its resident memory
// does not shrink any more.
func (d *daemon) atRest(t *testing.T) memory {
	t.Helper()
	l := d.now()
	collections := func() (n int, heap int64) {
		lines, _ := l.log()
		for _, line := range lines {
			if m := collected.FindStringSubmatch(line); m != nil {
				n++
				heap, _ = strconv.ParseInt(m[2], 10, 64)
			}
		}
		return n, heap
	}
	before, _ := collections()
	for deadline := time.Now().Add(generous(5 * time.Minute)); ; {
		_, more := l.log()
		if n, _ := collections(); n > before {
			break
		}
		select {
		case <-more:
		case <-l.ended:
			t.Fatalf("the process ended:\n%s", l.tail(40))
		case <-time.After(time.Until(deadline)):
			t.Fatal("it does not collect")
		}
	}
	const calm = 20 * time.Second
	least, since := d.resident(t), time.Now()
	for time.Since(since) < calm {
		time.Sleep(time.Second)
		if now := d.resident(t); now < least {
			least, since = now, time.Now()
		}
	}
	_, heap := collections()
	return memory{resident: least, heap: heap}
}

// resident is the process's resident memory in MiB.
func (d *daemon) resident(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.now().cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kb)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
