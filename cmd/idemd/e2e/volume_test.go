//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// handles counts the files and sockets that the process has open, and names the
// files among them that are deleted already: somebody still reads them.
func (d *daemon) handles(t testing.TB) (open int, pinned []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", d.now().cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		// One that was closed meanwhile has no name any more.
		if name, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			open++
			if strings.HasSuffix(name, " (deleted)") {
				pinned = append(pinned, name)
			}
		}
	}
	return open, pinned
}

// slack is how many handles come and go: of requests that are just over, of
// tables that are being written.
const slack = 20

func needProc(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		missing(t, "/proc")
	}
}

// TestVolume makes many calls, starts the process again by a kill, reads the list
// and the ledger to their ends, and the ledger once more so slowly that the store
// is rewritten beneath the reader: nothing of it stays open for that, and the
// process grows by no more than a bit.
func TestVolume(t *testing.T) {
	needProc(t)
	all := int64(2000)
	if torture() {
		all = 1_000_000
	}
	d := prepare(t, t.TempDir())
	d.boot(t)
	began := time.Now()
	d.postMany(t, 0, all/50)
	if estimate := 50 * time.Since(began); estimate > generous(8*time.Minute) {
		t.Logf("%d calls would take %v here; it is a fifth", all, estimate.Round(time.Second))
		all /= 5
	}
	d.postMany(t, all/50, all)
	d.kill(t)
	began = time.Now()
	d.boot(t)
	t.Logf("%d calls: started in %v, %d MiB", all, time.Since(began).Round(time.Millisecond), d.resident(t))

	began = time.Now()
	d.listAll(t, all)
	t.Logf("listed in %v, %d MiB", time.Since(began).Round(time.Millisecond), d.resident(t))
	if s := d.stats(t); s.Calls != all || s.Effects != all || s.ByStatus[idem.StatusSucceeded] != all || s.Attempts["1"] != all {
		t.Errorf("of %d calls the totals are %+v", all, s)
	}
	more := all / 200
	d.slowLedger(t, all, more)
}

// listAll reads the list to its end, and the trails of some of its calls.
func (d *daemon) listAll(t *testing.T, all int64) {
	t.Helper()
	const trails = 500
	seen, n, last := make([]bool, all), int64(0), ""
	for cursor := ""; ; {
		var page struct {
			Calls []call  `json:"calls"`
			Next  *string `json:"next_cursor"`
		}
		d.read(t, "/v1/tool-calls?limit=1000&cursor="+url.QueryEscape(cursor), &page)
		for _, c := range page.Calls {
			i := number(t, c.Key)
			if i >= all || seen[i] {
				t.Fatalf("listed twice, or nobody's: %v", &c)
			}
			seen[i] = true
			if c.Status != idem.StatusSucceeded || c.Attempt != 1 || last != "" && c.CreatedAt > last {
				t.Fatalf("want it succeeded at once and after one of %s, got %v of %s", last, &c, c.CreatedAt)
			}
			last = c.CreatedAt
			if n%(1+all/trails) == 0 {
				if err := d.checkAudit(&c); err != nil {
					t.Error(err)
				}
			}
			n++
		}
		if page.Next == nil {
			break
		}
		cursor = *page.Next
	}
	if n != all {
		t.Errorf("%d calls listed of %d", n, all)
	}
}

// number is that of a key of postMany.
func number(t *testing.T, key string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimPrefix(key, "k-"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// slowLedger reads the ledger of so many effects a bit at a time, between which
// so many more calls are made, and gives up; then it reads all of it.
func (d *daemon) slowLedger(t *testing.T, all, more int64) {
	t.Helper()
	const pieces, pieceBytes, allowed = 20, 64 << 10, 96 // MiB; the whole ledger is twice that in the long form
	// What the process needs for writing is no part of what the reader may cost.
	d.postMany(t, all, all+pieces*more)
	all += pieces * more
	before := d.resident(t)
	slow := d.streamLedger(t, pieceBytes)
	most, next := before, all
	for range pieces {
		if _, err := io.CopyN(io.Discard, slow, min(pieceBytes, all)); err != nil {
			t.Fatal(err)
		}
		d.postMany(t, next, next+more)
		next += more
		most = max(most, d.resident(t))
		if _, deleted := d.handles(t); len(deleted) > 0 {
			eventually(t, "no deleted file is open", func() bool {
				_, deleted = d.handles(t)
				return len(deleted) == 0
			})
		}
	}
	// What a reader keeps the store from giving up goes when the reader does.
	with := d.calmTables(t)
	slow.Close()
	after := d.calmTables(t)
	pinned := slices.DeleteFunc(slices.Clone(with), func(name string) bool { return slices.Contains(after, name) })
	t.Logf("a slow reader and %d more calls: %d MiB before, %d at the most; %d tables, %d of them pinned", pieces*more, before, most, len(with), len(pinned))
	if len(pinned) > 0 {
		t.Errorf("they went with the reader: %v", pinned)
	}
	if most > before+allowed {
		t.Errorf("the process grew by %d MiB, allowed are %d", most-before, allowed)
	}

	whole := d.streamLedger(t, pieceBytes)
	defer whole.Close()
	all = next
	var head bytes.Buffer
	if _, err := io.CopyN(&head, whole, min(pieceBytes, all)); err != nil {
		t.Fatal(err)
	}
	d.postMany(t, next, next+more)
	next += more
	ledger := bufio.NewScanner(io.MultiReader(&head, whole))
	seen, n := make([]bool, next), int64(0)
	for ledger.Scan() {
		var e effect
		if err := json.Unmarshal(ledger.Bytes(), &e); err != nil {
			t.Fatalf("%v in line %q", err, ledger.Bytes())
		}
		i := number(t, e.Key)
		if i >= next || seen[i] {
			t.Fatalf("twice, or nobody's: %+v", e)
		}
		seen[i] = true
		if i < all {
			n++
		}
	}
	if err := ledger.Err(); err != nil || n != all {
		t.Errorf("%d of the %d effects that were there when it began: %v", n, all, err)
	}
	if s := d.stats(t); s.Effects != next {
		t.Errorf("%d effects of %d", s.Effects, next)
	}
}

// streamLedger asks for the whole ledger over a connection that takes little in
// advance.
func (d *daemon) streamLedger(t *testing.T, buffer int) io.ReadCloser {
	t.Helper()
	conn := d.dial(t)
	if err := conn.SetReadBuffer(buffer); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(generous(10 * time.Minute))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /v1/effects HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	return struct {
		io.Reader
		io.Closer
	}{resp.Body, conn}
}

// calmTables waits until the store has stopped rewriting its tables, and names
// those that are on the disk.
func (d *daemon) calmTables(t *testing.T) []string {
	t.Helper()
	const calm = time.Second
	var names []string
	since := time.Now()
	eventually(t, "the store is calm", func() bool {
		var now []string
		err := filepath.WalkDir(d.dir, func(path string, _ os.DirEntry, err error) error {
			if strings.HasSuffix(path, ".sst") {
				now = append(now, path)
			}
			if errors.Is(err, fs.ErrNotExist) { // deleted while it was read
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(now, names) {
			names, since = now, time.Now()
		}
		return time.Since(since) > calm
	})
	return names
}

// TestManyWaiters has thousands wait for one call at once. All are answered at
// its end, and the process has what they took back afterwards.
func TestManyWaiters(t *testing.T) {
	needProc(t)
	waiters := 500
	if torture() {
		waiters = 5000
	}
	d := startChaos(t, "--max-in-flight", fmt.Sprint(4*waiters))
	c := holdOne(t, d, "held")
	idle, _ := d.handles(t)
	before := d.resident(t)
	began := time.Now()
	replies := make(chan reply, waiters)
	for range waiters {
		go func() { replies <- d.look(c.CallID, wait(60)) }()
	}
	open := 0
	eventually(t, "all of them wait", func() bool {
		open, _ = d.handles(t)
		return open >= idle+waiters-slack
	})
	during := d.resident(t)
	t.Logf("%d waiters came in %v: %d handles, %d before; %d MiB, %d before", waiters, time.Since(began).Round(time.Millisecond), open, idle, during, before)
	if most := idle + waiters + slack; open > most {
		t.Errorf("%d handles, at most %d were to be expected", open, most)
	}
	if most := before + 32 + int64(waiters)*64>>10; during > most { // 64 KiB each
		t.Errorf("%d MiB, allowed are %d", during, most)
	}
	if n := len(replies); n > 0 {
		t.Errorf("%d did not wait", n)
	}
	began = time.Now()
	end := d.resolve(c.CallID, `{"outcome":"succeeded","by":"e2e","result":{"n":1}}`).wantEnd(t, idem.StatusSucceeded)
	for range waiters {
		if got := (<-replies).wantEnd(t, idem.StatusSucceeded); !got.sameEnd(end) {
			t.Errorf("want %v, got %v", end, got)
		}
	}
	t.Logf("all were answered within %v", time.Since(began).Round(time.Millisecond))
	d.posts.CloseIdleConnections()
	eventually(t, "their connections are gone", func() bool {
		open, _ = d.handles(t)
		return open <= idle+slack
	})
	reconcile(t, d, "held")
}

// TestSlowClients has hundreds of clients that send their headers, or their
// bodies, a byte at a time beside clients that do not. The latter get all that
// they ask for; how much longer they wait for it is printed.
func TestSlowClients(t *testing.T) {
	needProc(t)
	const slow = 300 // of each kind
	requests := 400
	if torture() {
		requests = 20_000
	}
	d := start(t)
	var intents []string
	traffic := func(name string) []time.Duration {
		const clients = 8
		from := len(intents)
		for i := range requests {
			intents = append(intents, fmt.Sprint(name, i))
		}
		var mu sync.Mutex
		var took []time.Duration
		var working sync.WaitGroup
		for n := range clients {
			working.Go(func() {
				for i := from + n; i < from+requests; i += clients {
					r := d.post(intents[i], "charge", `{"amount":1}`, wait(20))
					if r.status != http.StatusOK {
						t.Errorf("%s: %v", intents[i], r)
					}
					mu.Lock()
					took = append(took, r.took)
					mu.Unlock()
				}
			})
		}
		working.Wait()
		slices.Sort(took)
		return took
	}
	traffic("warm-")
	alone := traffic("alone-")

	idle, _ := d.handles(t)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range slow {
		body := plain(fmt.Sprint("slow-", i), strings.Repeat(" ", 5000), "")
		head := len(body) - 5000
		clients.Go(func() { d.drip(stop, body, 40) })
		clients.Go(func() { d.drip(stop, body, head) })
	}
	eventually(t, "the slow ones are there", func() bool {
		open, _ := d.handles(t)
		return open >= idle+2*slow-slack
	})
	beside := traffic("beside-")
	open, _ := d.handles(t)
	close(stop)
	clients.Wait()

	at := func(took []time.Duration, percent int) time.Duration { return took[len(took)*percent/100] }
	t.Logf("%d requests alone: p50 %v, p99 %v; beside %d slow clients (%d handles): p50 %v, p99 %v (%.1f times)", requests,
		at(alone, 50).Round(time.Microsecond), at(alone, 99).Round(time.Microsecond), 2*slow, open,
		at(beside, 50).Round(time.Microsecond), at(beside, 99).Round(time.Microsecond), float64(at(beside, 99))/float64(at(alone, 99)))
	d.posts.CloseIdleConnections()
	eventually(t, "the slow ones are gone", func() bool {
		open, _ = d.handles(t)
		return open <= idle+slack
	})
	for i := range slow {
		d.find(fmt.Sprint("slow-", i)).wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	}
	reconcile(t, d, intents...)
}

// drip sends the beginning of a request at once and the rest a byte at a time,
// until it is told to stop. The server may have enough of it; it comes again.
func (d *daemon) drip(stop <-chan struct{}, request string, atOnce int) {
	tick := time.NewTicker(250 * time.Millisecond) // how slow it is
	defer tick.Stop()
	for {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(d.now().url, "http://"), patience())
		rest := request
		for n := atOnce; err == nil && rest != ""; n = 1 {
			if _, err = io.WriteString(conn, rest[:n]); err != nil {
				break
			}
			rest = rest[n:]
			select {
			case <-stop:
				conn.Close()
				return
			case <-tick.C:
			}
		}
		if conn != nil {
			conn.Close()
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}
