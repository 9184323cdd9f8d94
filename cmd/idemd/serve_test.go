package main

import (
	"context"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/idemd/idemd/httpapi"
	"github.com/idemd/idemd/runner"
)

func TestShareHandles(t *testing.T) {
	for _, tc := range []struct {
		limit       uint64
		maxInFlight int
		want        handles
	}{
		{256, 4096, handles{128, 128, 98}},
		{1024, 4096, handles{512, 512, 393}},
		{1024, 16, handles{64, 16, 393}},
		{2600, 4096, handles{1300, 1300, 1000}},
		{4096, 4096, handles{2796, 2796, 1000}},
		{10000, 4096, handles{8700, 4096, 1000}},
		{17684, 4096, handles{16384, 4096, 1000}},
		{1 << 20, 4096, handles{16384, 4096, 1000}},
		{math.MaxUint64, 1_000_000, handles{4_000_000, 1_000_000, 1000}}, // RLIM_INFINITY
	} {
		got, err := shareHandles(tc.limit, tc.maxInFlight)
		if err != nil || got != tc.want {
			t.Errorf("%d handles for %d requests: %+v, %v; want %+v", tc.limit, tc.maxInFlight, got, err, tc.want)
		}
	}
	for _, limit := range []uint64{0, 255} {
		if _, err := shareHandles(limit, 1); err == nil || !strings.Contains(err.Error(), "ulimit -n") {
			t.Errorf("%d handles: %v", limit, err)
		}
	}
}

// limitHandles is ulimit -n for the rest of a test.
func limitHandles(t *testing.T, n uint64) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}

func TestServeWithFewHandles(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	limitHandles(t, 255)
	runIdemd(t, "", "serve", "--data", data, "--listen", "127.0.0.1:0").want(t, 1, "", "ulimit -n")

	limitHandles(t, 600)
	d := startServe(t, "--data", data)
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	words := <-d.words
	if n := strings.Count(words, "few file handles"); n != 1 || !strings.Contains(words, `"connections":300,"max_in_flight":300`) {
		t.Errorf("said so %d times: %s", n, words)
	}
}

// served is a serve that runs in this process.
type served struct {
	stop  func() int  // ends it and gives its exit code
	words chan string // all it said
}

// startServe serves until it is stopped, and returns once it listens.
func startServe(t *testing.T, args ...string) served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...), nil, io.Discard, w)
		_ = w.Close()
	}()
	d := served{words: make(chan string, 1), stop: func() int { cancel(); return <-code }}
	listens := make(chan struct{})
	go func() {
		var all strings.Builder
		b := make([]byte, 4096)
		for up := false; ; {
			n, err := r.Read(b)
			all.Write(b[:n])
			if !up && (err != nil || strings.Contains(all.String(), "idemd listening on ")) {
				up = true
				close(listens)
			}
			if err != nil {
				d.words <- all.String()
				return
			}
		}
	}()
	<-listens
	return d
}

// What callers hand in is not for others on the machine to read, and a log that
// nobody reads any more does not end the server.
func TestServeProcess(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	signal.Reset(syscall.SIGPIPE)
	data := filepath.Join(t.TempDir(), "data")
	d := startServe(t, "--data", data)
	if !signal.Ignored(syscall.SIGPIPE) {
		t.Error("SIGPIPE ends the server")
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	words := <-d.words
	for _, s := range []string{"ready", "idemd listening on ", "stopping", "stopped"} {
		i := strings.Index(words, s)
		if i < 0 {
			t.Fatalf("%q is missing, or too early: %s", s, words)
		}
		words = words[i+len(s):]
	}
	files := 0
	err := filepath.WalkDir(data, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err == nil && st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v", path, st.Mode())
		}
		files++
		return err
	})
	if err != nil || files < 3 {
		t.Errorf("%d files, %v", files, err)
	}
}

// A reader of the log that is stuck keeps the server neither from serving nor
// from ending.
func TestServeWithAStuckReader(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	over := make(chan int, 1)
	go func() {
		over <- run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data")}, nil, io.Discard, w)
	}()
	b := make([]byte, 1)
	if _, err := r.Read(b); err != nil { // the first line is stuck now
		t.Fatal(err)
	}
	cancel()
	if code := <-over; code != 0 && code != 1 { // 1: it had not listened yet
		t.Errorf("exit code %d", code)
	}
	_ = r.Close()
}

// serveFlags are the flags of serve, as its help shows them.
func serveFlags(t *testing.T) map[string]*kong.Flag {
	t.Helper()
	for _, n := range mustKong(t, &cli{}).Model.Children {
		if n.Name == "serve" {
			flags := make(map[string]*kong.Flag)
			for _, f := range n.Flags {
				flags["--"+f.Name] = f
			}
			return flags
		}
	}
	t.Fatal("there is no serve")
	return nil
}

// What the flags say is what the packages do without being told, and what the
// README says.
func TestServeDefaults(t *testing.T) {
	var c serveCmd
	if _, err := mustKong(t, &c).Parse(nil); err != nil {
		t.Fatal(err)
	}
	if c.Workers != runner.DefaultWorkers || c.Queue != runner.DefaultQueue || c.MaxInFlight != httpapi.DefaultMaxInFlight ||
		c.Lease != runner.DefaultLease || c.ToolTimeout != runner.DefaultToolTimeout || c.Window != runner.DefaultWindow ||
		c.MaxCrashes != runner.DefaultMaxCrashes {
		t.Errorf("got %+v", c)
	}

	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	flags, found := serveFlags(t), 0
	for line := range strings.Lines(string(readme)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(cells[1], " `--") {
			continue
		}
		said := strings.Split(cells[2], ",")
		for i, name := range strings.Split(cells[1], ",") {
			name = strings.Trim(name, " `")
			f := flags[name]
			if f == nil {
				t.Errorf("the README has %s, serve has not", name)
				continue
			}
			found++
			want := f.Default
			if f.IsBool() {
				want = "off"
			}
			if got := strings.Trim(said[min(i, len(said)-1)], " `"); got != want {
				t.Errorf("%s: the README says %q, the default is %q", name, got, want)
			}
		}
	}
	if found < len(flags)-2 { // help is one of serve's flags too
		t.Errorf("the README has %d of %d flags", found, len(flags))
	}
}

func mustKong(t *testing.T, grammar any) *kong.Kong {
	t.Helper()
	k, err := kong.New(grammar, serveDefaults())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFlagText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		24 * time.Hour: "24h", 30 * time.Second: "30s", 90 * time.Minute: "1h30m", 10 * time.Minute: "10m",
		100 * time.Millisecond: "100ms", time.Hour + 10*time.Second: "1h0m10s", 0: "0s", 100 * time.Minute: "1h40m",
	} {
		if got := flagText(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

// All faults, in the order of the flags, every time.
func TestServeRefusesZeros(t *testing.T) {
	c := serveCmd{Listen: "127.0.0.1:0", Data: "d", ShutdownTimeout: -1}
	const want = "--workers must be positive\n--queue must be positive\n--max-in-flight must be positive\n--lease must be positive\n" +
		"--tool-timeout must be positive\n--window must be positive\n--max-crashes must be positive\n--shutdown-timeout must not be negative"
	for range 8 {
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Fatalf("got %v", err)
		}
	}
	c = serveCmd{
		Listen: "127.0.0.1:0", Data: "d", Workers: 1, Queue: 1, MaxInFlight: 1, Lease: time.Second, ToolTimeout: 1e9, Window: 1e9, MaxCrashes: 2,
	}
	if err := c.Validate(); err != nil {
		t.Errorf("a stop that waits for nothing: %v", err)
	}
}
