package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/idem"
)

func TestMain(m *testing.M) {
	for _, v := range os.Environ() { // of whoever runs the tests
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "IDEMD_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

// outcome is what a run of the program left.
type outcome struct {
	code           int
	stdout, stderr string
	pauses         []time.Duration // between tries; none is waited for
}

func runIdemd(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	var (
		o        outcome
		out, err bytes.Buffer
	)
	con := &console{stdin: strings.NewReader(stdin), stdout: &out, stderr: &err}
	con.pause = func(_ context.Context, d time.Duration) error {
		o.pauses = append(o.pauses, d)
		return nil
	}
	o.code = con.run(t.Context(), args)
	o.stdout, o.stderr = out.String(), err.String()
	return o
}

func (o outcome) want(t *testing.T, code int, stdout string, stderr ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d; stderr: %s", o.code, code, o.stderr)
	}
	if o.stdout != stdout {
		t.Errorf("stdout:\n%s\nwant:\n%s", o.stdout, stdout)
	}
	for _, s := range stderr {
		if !strings.Contains(o.stderr, s) {
			t.Errorf("stderr %q does not say %q", o.stderr, s)
		}
	}
	if len(stderr) == 0 && o.stderr != "" {
		t.Errorf("stderr: %s", o.stderr)
	}
}

// reply is one answer of a scripted server.
type reply struct {
	status int
	body   string
	header map[string]string
	lose   bool // read the request, then close the connection
	half   bool // close it in the middle of the body
	stall  bool // never answer
	echo   bool // the call is of the key that was asked for
}

// script is a server that answers one reply after the other, the last one for
// ever, and keeps what it was asked.
type script struct {
	URL     string
	arrived chan struct{} // a request has

	mu       sync.Mutex
	replies  []reply
	requests []request
	conns    int
}

type request struct {
	line, key, prefer, contentType, body string
}

func serve(t *testing.T, replies ...reply) *script {
	t.Helper()
	s := &script{replies: replies, arrived: make(chan struct{}, 100)}
	over := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, request{
			line: r.Method + " " + r.RequestURI, key: r.Header.Get("Idempotency-Key"), prefer: r.Header.Get("Prefer"),
			contentType: r.Header.Get("Content-Type"), body: string(body),
		})
		next := s.replies[0]
		if len(s.replies) > 1 {
			s.replies = s.replies[1:]
		}
		s.mu.Unlock()
		s.arrived <- struct{}{}
		switch {
		case next.stall:
			select {
			case <-over:
			case <-r.Context().Done():
			}
			return
		case next.lose:
			panic(http.ErrAbortHandler)
		}
		for k, v := range next.header {
			w.Header().Set(k, v)
		}
		w.Header().Set("Content-Type", "application/json")
		if next.half {
			w.Header().Set("Content-Length", "1000")
		}
		w.WriteHeader(next.status)
		if next.echo {
			key, _ := idem.ParseKey(idem.DefaultNamespace, r.Header.Get("Idempotency-Key"))
			next.body = strings.Replace(next.body, `"idem_key":"k"`, `"idem_key":`+strconv.Quote(key.Name), 1)
		}
		_, _ = io.WriteString(w, next.body)
		if next.half {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	srv.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			s.mu.Lock()
			s.conns++
			s.mu.Unlock()
		}
	}
	srv.Start()
	t.Cleanup(func() { close(over); srv.Close() })
	s.URL = srv.URL
	return s
}

func (s *script) asked() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

const testID = "c_00112233445566778899aabbccddeeff"

// call is a call object as the server writes it.
func call(status, result, failure string) string {
	return `{"call_id":"` + testID + `","idem_key":"k","tool":"charge","status":"` + status + `","attempt":2,"result":` + result +
		`,"error":` + failure + `,"effect_id":"eff_00","client_id":null,"seq":null,"deliveries":1,` +
		`"created_at":"2026-11-29T16:00:00.123Z","updated_at":"2026-11-29T16:00:01.000Z","expires_at":null,"query_url":"/v1/tool-calls/` + testID + `"}`
}

func refuse(code string) string {
	return `{"error":{"code":"` + code + `","message":"the words","call_id":"` + testID + `","effect":"none"}}`
}

func TestHelp(t *testing.T) {
	o := runIdemd(t, "", "--help")
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("exit code %d, stderr %s", o.code, o.stderr)
	}
	for _, s := range []string{"serve", "call", "get", "find", "list", "audit", "effects", "stats", "health", "resolve", "inspect", "version", "IDEMD_URL", "5  the outcome is not known"} {
		if !strings.Contains(o.stdout, s) {
			t.Errorf("the help does not mention %q", s)
		}
	}
	for _, cmd := range []string{"serve", "call", "get", "find", "list", "audit", "effects", "stats", "health", "resolve", "inspect", "version"} {
		if o := runIdemd(t, "", cmd, "--help"); o.code != 0 || !strings.Contains(o.stdout, "Usage: idemd "+cmd) {
			t.Errorf("%s --help: exit code %d, %s", cmd, o.code, o.stdout)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{nil, "--help"},
		{[]string{"dance"}, "dance"},
		{[]string{"call"}, "<tool>"},
		{[]string{"call", "charge"}, "<args-json>"},
		{[]string{"call", "charge", "{}", "--nope"}, "--nope"},
		{[]string{"call", "charge", "{}", "--wait", "soon", "--key", "k"}, "soon"},
		{[]string{"call", "charge", "{}", "--key", ""}, "must come from your intent"},
		{[]string{"call", "charge", "{}", "--key", `""`}, "missing or empty"},
		{[]string{"call", "charge", "{}", "--key", " k"}, "a blank at the beginning or the end"},
		{[]string{"call", "charge", "{}", "--key", "schlüssel"}, "printable ASCII"},
		{[]string{"call", "charge", "{}", "--key", strings.Repeat("k", 256)}, "longer than 255 bytes"},
		{[]string{"call", "charge", "{}", "--key", "k", "--wait", "61s"}, "--wait"},
		{[]string{"call", "charge", "{}", "--key", "k", "--wait=-1s"}, "--wait"},
		{[]string{"call", "charge", "{}", "--key", "k", "--retries=-1"}, "--retries"},
		{[]string{"call", "charge", "{}", "--key", "k", "--timeout", "0s"}, "--timeout"},
		{[]string{"call", "charge", "{}", "--key", "k", "--url", "127.0.0.1:8081"}, "--url"},
		{[]string{"call", "charge", "{}", "--key", "k", "--url", "ftp://host"}, "--url"},
		{[]string{"call", "charge", "{}", "--key", "k", "--url", "http://host?x=1"}, "--url"},
		{[]string{"call", "charge", "{", "--key", "k"}, "the arguments: JSON"},
		{[]string{"call", "charge", `{"a":1,"a":2}`, "--key", "k"}, "duplicate member name"},
		{[]string{"call", "charge", "@no/such/file", "--key", "k"}, "no/such/file"},
		{[]string{"find", ""}, "KEY"},
		{[]string{"find", "k", "--wait", "2m"}, "--wait"},
		{[]string{"get", testID, "--wait", "2m"}, "--wait"},
		{[]string{"resolve", testID}, "--outcome"},
		{[]string{"resolve", testID, "--outcome", "failed"}, "--by"},
		{[]string{"resolve", testID, "--by", "me", "--outcome", "maybe"}, "--outcome"},
		{[]string{"resolve", testID, "--by", "me", "--outcome", "failed", "--result", "{}"}, "--result"},
		{[]string{"resolve", testID, "--by", "me", "--outcome", "retry", "--error", "{}"}, "--error"},
		{[]string{"resolve", testID, "--by", "me", "--outcome", "succeeded", "--result", "{"}, "not JSON"},
		{[]string{"resolve", testID, "--by", "me", "--outcome", "failed", "--error", `1,"outcome":"retry"`}, "not JSON"},
		{[]string{"serve", "--listen", "0.0.0.0:0"}, "--insecure"},
		{[]string{"serve", "--listen", "127.0.0.1"}, "HOST:PORT"},
		{[]string{"serve", "--listen", "127.0.0.1:65536"}, "not a port"},
		{[]string{"serve", "--listen", "127.0.0.1:-1"}, "not a port"},
		{[]string{"serve", "--data", ""}, "--data is empty"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			runIdemd(t, "", tc.args...).want(t, exitUsage, "", tc.says)
		})
	}
}

func TestEnvironment(t *testing.T) {
	s := serve(t, reply{status: 200, body: call("succeeded", "1", "null"), echo: true})
	t.Setenv("IDEMD_URL", s.URL)
	t.Setenv("IDEMD_CLIENT_ID", "me")
	runIdemd(t, "", "call", "charge", "{}", "--key", "given").want(t, 0, "1\n", "succeeded")
	asked := s.asked()
	if len(asked) != 1 {
		t.Fatalf("asked %+v", asked)
	}
	if want := `{"tool":"charge","args":{},"client_id":"me"}`; asked[0].body != want {
		t.Errorf("body %s, want %s", asked[0].body, want)
	}
}

// What names a call or decides one is said, not left over in the environment.
func TestNotFromTheEnvironment(t *testing.T) {
	s := serve(t, reply{status: 200, body: call("succeeded", "1", "null")})
	t.Setenv("IDEMD_URL", s.URL)
	for _, name := range []string{"KEY", "BY", "NOTE", "RESULT", "ERROR"} {
		t.Setenv("IDEMD_"+name, "1")
	}
	t.Setenv("IDEMD_OUTCOME", "succeeded")
	runIdemd(t, "", "resolve", testID, "--by", "me").want(t, exitUsage, "", "--outcome")
	runIdemd(t, "", "resolve", testID, "--outcome", "failed").want(t, exitUsage, "", "--by")
	if n := len(s.asked()); n != 0 {
		t.Fatalf("%d requests", n)
	}
	runIdemd(t, "", "resolve", testID, "--outcome", "succeeded", "--by", "me").want(t, 0, "", "succeeded")
	if want := `{"outcome":"succeeded","by":"me"}`; s.asked()[0].body != want {
		t.Errorf("body %s, want %s", s.asked()[0].body, want)
	}
	runIdemd(t, "", "call", "charge", "{}")
	if got := s.asked()[1].key; got != "" {
		t.Errorf("sent the key %q", got)
	}
}

// A command whose output is lost does not end as if it were not.
func TestLostOutput(t *testing.T) {
	s := serve(t, reply{status: 200, body: call("succeeded", "1", "null")})
	full := &console{stdin: strings.NewReader(""), stdout: failingWriter{}, stderr: io.Discard, pause: pause}
	for _, args := range [][]string{
		{"call", "charge", "{}", "--key", "k", "--url", s.URL},
		{"call", "charge", "{}", "--key", "k", "--url", s.URL, "--json"},
		{"get", testID, "--url", s.URL},
		{"version"},
		{"--help"},
		{"serve", "--help"},
	} {
		if code := full.run(t.Context(), args); code != exitOutput {
			t.Errorf("%v: exit code %d, want %d", args, code, exitOutput)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestVersion(t *testing.T) {
	o := runIdemd(t, "", "version")
	if o.code != 0 || !strings.HasPrefix(o.stdout, "idemd ") || !strings.Contains(o.stdout, " go1.") {
		t.Errorf("exit code %d, %s", o.code, o.stdout)
	}
	if o := runIdemd(t, "", "version", "--json"); o.code != 0 || !strings.Contains(o.stdout, `"version":"`) {
		t.Errorf("exit code %d, %s", o.code, o.stdout)
	}
}

// The whole way: this program serves, and asks itself.
func TestServeAndCall(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	words, out := io.Pipe()
	over := make(chan int, 1)
	data := filepath.Join(t.TempDir(), "data")
	go func() {
		code := run(ctx, []string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--log-level", "error"}, nil, io.Discard, out)
		_ = out.Close()
		over <- code
	}()
	line := make([]byte, 200)
	n, err := words.Read(line)
	url, ok := strings.CutPrefix(strings.TrimSpace(string(line[:n])), "idemd listening on ")
	if err != nil || !ok {
		t.Fatalf("%v, %s", err, line[:n])
	}
	go func() { _, _ = io.Copy(io.Discard, words) }()
	t.Setenv("IDEMD_URL", url)

	first := runIdemd(t, "", "call", "charge", `{"amount":1e2}`, "--key", "order-1")
	first.want(t, 0, first.stdout, "succeeded, attempt 1")
	again := runIdemd(t, `{"amount":100.0}`, "call", "charge", "-", "--key", "order-1")
	again.want(t, 0, first.stdout, "given again")
	runIdemd(t, "", "call", "charge", `{"amount":99}`, "--key", "order-1").want(t, exitConflict, "", "idempotency_conflict")
	runIdemd(t, "", "call", "charge", `{"amount":0}`, "--key", "order-2").want(t, exitUsage, "", "args/amount: must be at least 1")
	runIdemd(t, "", "call", "fail", `{"message":"no"}`, "--key", "order-3").want(t, exitFailed, "", "tool_failed: no")
	if o := runIdemd(t, "", "find", "order-1"); o.code != 0 || !strings.Contains(o.stdout, "succeeded") {
		t.Errorf("find: exit code %d, %s", o.code, o.stdout)
	}
	runIdemd(t, "", "find", "order-2").want(t, exitNotFound, "", "not_found")
	if o := runIdemd(t, "", "stats"); o.code != 0 || !strings.Contains(o.stdout, "effects        1\n") {
		t.Errorf("stats: exit code %d, %s", o.code, o.stdout)
	}
	runIdemd(t, "", "health").want(t, 0, "", "accepts calls")

	stop()
	if code := <-over; code != 0 {
		t.Errorf("serve: exit code %d", code)
	}
	runIdemd(t, "", "health").want(t, exitUnavailable, "", "no connection")
}
