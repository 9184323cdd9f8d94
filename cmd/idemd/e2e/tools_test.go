//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// httpTool is a tool of a tools file.
type httpTool struct {
	name, url  string
	rerun      idem.Rerun
	honours    bool
	timeout    string // default 1s
	retryable  string // default 429, and what only a downstream that honours ids may say
	verify     string // URL of the question; default none
	settle     string // default 5s
	more       string // lines
	effectsKey string // default header: Idempotency-Key
}

func (h httpTool) yaml() string {
	or := func(s, other string) string {
		if s == "" {
			return other
		}
		return s
	}
	honours, retryable := "ignores", "429"
	if h.honours {
		honours, retryable = "honours", "409, 429, 500, 503"
	}
	text := fmt.Sprintf(`
  - name: %s
    effects: external
    rerun: %s
    timeout: %s
    http:
      method: POST
      url: %s
      effect_key: {%s, downstream: %s}
      success: [200, 201, 204]
      final: [400, 422]
      retryable: [%s]
`, h.name, h.rerun, or(h.timeout, "1s"), h.url, or(h.effectsKey, "header: Idempotency-Key"), honours, or(h.retryable, retryable))
	if h.rerun == idem.RerunVerify {
		text += fmt.Sprintf("    verify: {method: GET, url: %q, found: [200], absent: [404], settle: %s}\n", h.verify, or(h.settle, "5s"))
	}
	return text + h.more
}

// toolsFile writes a tools file, in the place of the one that was there.
func toolsFile(t testing.TB, path string, tools ...httpTool) {
	t.Helper()
	var text strings.Builder
	text.WriteString("version: 1\ntools:")
	for _, h := range tools {
		text.WriteString(h.yaml())
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startTools starts a daemon with tools.
func startTools(t testing.TB, flags []string, tools ...httpTool) (d *daemon, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tools.yaml")
	toolsFile(t, path, tools...)
	return start(t, append([]string{"--tools", path}, flags...)...), path
}

// faultsFirst goes wrong with the first so many requests of each id.
func faultsFirst(t testing.TB, n int, text string) func(int, string) probe.DownstreamFault {
	t.Helper()
	f, err := probe.ParseDownstreamFault(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(i int, _ string) probe.DownstreamFault {
		if i <= n {
			return f
		}
		return probe.DownstreamFault{}
	}
}

// effectOf is whether a failed call may have been done, as it says.
func effectOf(c *call) idem.Doubt {
	var f struct {
		Effect idem.Doubt `json:"effect"`
	}
	_ = json.Unmarshal(c.Error, &f)
	return f.Effect
}

// sent are the requests for effects that came to a downstream.
func sent(down *probe.Downstream) []probe.DownstreamRequest {
	return slices.DeleteFunc(down.Requests(), func(r probe.DownstreamRequest) bool { return r.Method == http.MethodGet })
}

// once fails the test unless downstream's ledger has the effect once and nothing
// else, and each request for it carried its id.
func once(t *testing.T, what string, down *probe.Downstream, effectID string) {
	t.Helper()
	if ids := committed(t, down); len(ids) != 1 || ids[0] != effectID {
		t.Errorf("%s: downstream's ledger has %v, want %s once", what, ids, effectID)
	}
	for _, r := range sent(down) {
		if r.ID != effectID {
			t.Errorf("%s: a request carried %q, not %s", what, r.ID, effectID)
		}
	}
}

// TestRetriedFiveTimes: downstream does it and then fails to say so. However often
// the client asks again, it is done once, and each time by the same id (R10, R13).
func TestRetriedFiveTimes(t *testing.T) {
	t.Parallel()
	const tries, timeout = 5, "300ms"
	type policy struct {
		name    string
		rerun   idem.Rerun
		honours bool
	}
	policies := []policy{
		{"rerun", idem.RerunYes, true},
		{"verify_honours", idem.RerunVerify, true}, {"verify_ignores", idem.RerunVerify, false},
		{"hold_honours", idem.RerunHold, true}, {"hold_ignores", idem.RerunHold, false},
	}
	type row struct {
		policy
		tool string
		down *probe.Downstream
	}
	var rows []row
	var tools []httpTool
	for _, p := range policies {
		for name, wrong := range map[string]string{"error": "commit-then-500", "close": "commit-then-close", "late": "answer-late:10s"} {
			down := provider(t, probe.DownstreamOptions{Ignores: !p.honours, Fault: faultsFirst(t, 3, wrong)})
			r := row{policy: p, tool: p.name + "_" + name, down: down}
			rows = append(rows, r)
			tools = append(tools, httpTool{
				name: r.tool, url: down.URL() + "/pay", rerun: p.rerun, honours: p.honours, timeout: timeout,
				retryable: "429", verify: down.URL() + "/effects?ref={effect_id}",
			})
		}
	}
	d, _ := startTools(t, []string{"--workers", "32"}, tools...)
	var wg sync.WaitGroup
	for _, r := range rows {
		wg.Go(func() {
			var last *call
			for try := 1; try <= tries; try++ {
				got := d.post(r.tool, r.tool, `{"amount":7}`, wait(10))
				switch {
				case r.rerun == idem.RerunYes && try <= 3:
					if got.call == nil || effectOf(got.call) != idem.DoubtUnknown || !got.call.failure().Retryable || got.call.Attempt != try {
						t.Errorf("%s, try %d: want a failure that may have been done, got %v", r.tool, try, got)
					}
				case r.rerun == idem.RerunYes:
					if got.call == nil || got.call.Status != idem.StatusSucceeded || got.call.Attempt != 4 {
						t.Errorf("%s, try %d: want success at the fourth attempt, got %v", r.tool, try, got)
					}
				case r.rerun == idem.RerunVerify && try > 1:
					if got.call == nil || got.call.Status != idem.StatusSucceeded || got.call.Attempt != 1 {
						t.Errorf("%s, try %d: want what was found, got %v", r.tool, try, got)
					}
				default:
					if got.refusal == nil || got.refusal.Code != idem.CodeOutcomeUnknown || got.refusal.Effect != idem.DoubtUnknown {
						t.Errorf("%s, try %d: want the refusal, got %v", r.tool, try, got)
					}
				}
				if r.rerun == idem.RerunVerify && try == 1 {
					d.find(r.tool, wait(20)) // until it is found
				}
			}
			if last = d.find(r.tool).call; last == nil {
				t.Errorf("%s: no call", r.tool)
				return
			}
			want := 1
			if r.rerun == idem.RerunYes {
				want = 4
			}
			once(t, r.tool, r.down, last.EffectID)
			if n := len(sent(r.down)); n != want {
				t.Errorf("%s: %d requests, want %d", r.tool, n, want)
			}
		})
	}
	wg.Wait()
	var intents []string
	for _, r := range rows {
		if r.rerun != idem.RerunHold {
			intents = append(intents, r.tool)
		}
	}
	reconcile(t, d, intents...)
}

// rawServer answers each request with bytes, by its path, and closes.
func rawServer(t testing.TB, answer func(conn net.Conn, path string)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				left := make(chan struct{})
				defer close(left)
				go func() { // the end of the test ends every answer
					select {
					case <-done:
						conn.Close()
					case <-left:
					}
				}()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, req.Body); err == nil {
					answer(conn, req.URL.Path)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); close(done); wg.Wait() })
	return "http://" + l.Addr().String()
}

// closedPort is an address where nobody listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// drip writes slowly, until nobody reads any more.
func drip(conn net.Conn, head string, piece string) {
	for _, err := io.WriteString(conn, head); err == nil; _, err = io.WriteString(conn, piece) {
		time.Sleep(20 * time.Millisecond)
	}
}

// way is one in which an attempt can end.
type way struct {
	name   string
	raw    string                    // the answer,
	do     func(conn net.Conn)       // or what is done in its place
	url    func(t testing.TB) string // in the place of the server's
	args   string
	result string     // of a success
	code   string     // of a failure,
	again  bool       // which is retryable
	effect idem.Doubt // and may have been done,
	after  string     // with its Retry-After
	lost   bool       // nobody knows: held
	status int        // of a refusal
}

// TestEveryEndOfAnHTTPTool: whatever downstream does, the caller gets a defined
// answer, the same each time, also after a kill, and nothing stays running (R3, R9,
// R14).
func TestEveryEndOfAnHTTPTool(t *testing.T) {
	t.Parallel()
	const none, unknown = idem.DoubtNone, idem.DoubtUnknown
	ok := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	ways := []way{
		{name: "done", raw: ok(`{"n":9007199254740993.10}`), result: `{"n":9007199254740993.10}`},
		{name: "white_space", raw: ok(" {\"a\" : 1 }\n"), result: `{"a" : 1 }`},
		{name: "nothing", raw: ok(""), result: "null"},
		{name: "no_content", raw: "HTTP/1.1 204 No Content\r\n\r\n", result: "null"},
		{name: "early_hints", raw: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok(`1`), result: "1"},
		{name: "old", raw: "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}", result: "{}"},
		{name: "text", raw: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\x00b", result: `{"status":200,"body":"a\u0000b"}`},
		{name: "bytes", raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe", result: `{"status":200,"body_base64":"//4="}`},
		{name: "too_deep", raw: ok(deep), result: `{"status":200,"body":"` + deep + `"}`},
		{name: "name_twice", raw: ok(`{"a":1,"a":2}`), result: `{"status":200,"body":"{\"a\":1,\"a\":2}"}`},
		{name: "two_answers", raw: ok(`1`) + ok(`2`), result: "1"},
		{name: "refused", raw: "HTTP/1.1 422 No\r\nContent-Length: 4\r\n\r\nlate", code: "tool_failed", effect: none},
		{name: "busy", raw: "HTTP/1.1 429 No\r\nRetry-After: 17\r\nContent-Length: 0\r\n\r\n", code: "tool_failed", again: true, effect: none, after: "17"},
		{name: "nobody_listens", url: func(t testing.TB) string { return "http://" + closedPort(t) }, code: "tool_unreachable", again: true, effect: none},
		{name: "no_such_host", url: func(testing.TB) string { return "http://no-such-host.invalid" }, code: "tool_unreachable", again: true, effect: none},
		{name: "no_tls", url: func(t testing.TB) string {
			return strings.Replace(rawServer(t, func(net.Conn, string) {}), "http:", "https:", 1)
		}, code: "tool_unreachable", again: true, effect: none},
		{name: "clash", args: `{"id":"mine"}`, status: http.StatusUnprocessableEntity},
		{name: "no_place", args: `[]`, status: http.StatusBadRequest},

		{name: "closed", do: func(net.Conn) {}, lost: true},
		{name: "other_status", raw: "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", lost: true},
		{name: "redirect", raw: "HTTP/1.1 307 There\r\nLocation: /done\r\nContent-Length: 0\r\n\r\n", lost: true},
		{name: "not_modified", raw: "HTTP/1.1 304 Not Modified\r\n\r\n", lost: true},
		{name: "switched", raw: "HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", lost: true},
		{name: "half", raw: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"", lost: true},
		{name: "half_old", raw: "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\"", lost: true},
		{name: "half_chunked", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", lost: true},
		{name: "no_http", raw: "{}", lost: true},
		{name: "two_lengths", raw: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n11", lost: true},
		{name: "huge_chunk", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n1", lost: true},
		{name: "headers_without_end", do: func(c net.Conn) { drip(c, "HTTP/1.1 200 OK\r\n", "X: "+strings.Repeat("y", 1<<15)+"\r\n") }, lost: true},
		{name: "early_without_end", do: func(c net.Conn) { drip(c, "", "HTTP/1.1 102 Wait\r\n\r\n") }, lost: true},
		{name: "slow_head", do: func(c net.Conn) { drip(c, "HTTP/1.1 200 OK\r\nX: ", "y") }, lost: true},
		{name: "slow_body", do: func(c net.Conn) { drip(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "1") }, lost: true},
		{name: "silent", do: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, lost: true},
	}
	server := rawServer(t, func(conn net.Conn, path string) {
		i := slices.IndexFunc(ways, func(w way) bool { return "/"+w.name == path })
		if w := ways[i]; w.do != nil {
			w.do(conn)
		} else {
			_, _ = io.WriteString(conn, w.raw)
		}
	})
	var tools []httpTool
	for _, w := range ways {
		base := server
		if w.url != nil {
			base = w.url(t)
		}
		tools = append(tools, httpTool{name: "t_" + w.name, url: base + "/" + w.name, rerun: idem.RerunHold, timeout: "400ms", effectsKey: "pointer: /id"})
	}
	d, _ := startTools(t, []string{"--workers", "64"}, tools...)
	ask := func(i int) reply {
		w := ways[i]
		args := w.args
		if args == "" {
			args = `{"amount":1}`
		}
		return d.post(w.name, "t_"+w.name, args, wait(10))
	}
	all := func() []reply {
		replies := make([]reply, len(ways))
		var wg sync.WaitGroup
		for i := range ways {
			wg.Go(func() { replies[i] = ask(i) })
		}
		wg.Wait()
		return replies
	}
	first := all()
	var intents []string
	for i, w := range ways {
		r := first[i]
		c := r.call
		switch {
		case w.status != 0:
			if r.status != w.status || r.refusal == nil || r.refusal.Effect != none {
				t.Errorf("%s: want %d, got %v", w.name, w.status, r)
			}
		case w.lost:
			if r.status != http.StatusConflict || r.refusal == nil || r.refusal.Code != idem.CodeOutcomeUnknown || r.refusal.Effect != unknown {
				t.Errorf("%s: want it held, got %v", w.name, r)
			}
		case w.code != "":
			if c == nil || c.Status != idem.StatusFailed || c.failure().Code != w.code || c.failure().Retryable != w.again || effectOf(c) != w.effect || r.header.Get("Retry-After") != w.after {
				t.Errorf("%s: want %s, got %v, Retry-After %q", w.name, w.code, r, r.header.Get("Retry-After"))
			}
		default:
			intents = append(intents, w.name)
			if c == nil || c.Status != idem.StatusSucceeded || string(c.Result) != w.result {
				t.Errorf("%s: want %s, got %v", w.name, w.result, r)
			}
		}
	}
	if s := d.stats(t); s.ByStatus[idem.StatusRunning] != 0 || s.ByStatus[idem.StatusPending] != 0 || s.Abandoned != 0 {
		t.Errorf("something still runs: %+v", s)
	}
	d.restart(t)
	for i, r := range all() {
		w, was := ways[i], first[i]
		switch {
		case was.call != nil && !w.again:
			if r.call == nil || !r.call.sameEnd(was.call) || r.replayed() != "true" {
				t.Errorf("%s: want %v again, got %v", w.name, was, r)
			}
		case w.again:
			if r.call == nil || r.call.Attempt != 2 || !bytes.Equal(r.call.Error, was.call.Error) {
				t.Errorf("%s: want a second attempt to fail as the first, got %v", w.name, r)
			}
		case r.status != was.status || !bytes.Equal(r.raw, was.raw):
			t.Errorf("%s: want %v again, got %v", w.name, was, r)
		}
	}
	reconcile(t, d, intents...)
}

// TestResultsAroundTheCap: a result that is as long as may be is kept byte for byte,
// a longer one is cut and says so, and one without end is cut as well. The call has
// succeeded, with one effect, and every replay gives the same bytes.
func TestResultsAroundTheCap(t *testing.T) {
	t.Parallel()
	const limit = idem.MaxOutput
	var tools []httpTool
	type row struct {
		name string
		size int // 0: without end
		down *probe.Downstream
	}
	var rows []row
	for name, size := range map[string]int{
		"below": limit * 9 / 10, "one_less": limit - 1, "exact": limit, "one_more": limit + 1, "above": limit * 11 / 10, "far_above": 100 * limit, "endless": 0,
	} {
		wrong := "endless"
		if size > 0 {
			wrong = fmt.Sprint("big:", size)
		}
		down := provider(t, probe.DownstreamOptions{Ignores: true, Fault: faultsFirst(t, 1, wrong)})
		rows = append(rows, row{name, size, down})
		tools = append(tools, httpTool{name: name, url: down.URL() + "/pay", rerun: idem.RerunHold, timeout: "20s"})
	}
	d, _ := startTools(t, nil, tools...)
	first := make(map[string]*call)
	var intents []string
	for _, r := range rows {
		c := d.post(r.name, r.name, `{"amount":1}`, wait(30)).wantEnd(t, idem.StatusSucceeded)
		first[r.name] = c
		intents = append(intents, r.name)
		whole := r.size > 0 && r.size <= limit
		switch cut := bytes.HasPrefix(c.Result, []byte(`{"status":200,"truncated":true,"body`)); {
		case whole && (cut || len(c.Result) != r.size):
			t.Errorf("%s: %d bytes, %.60s…", r.name, len(c.Result), c.Result)
		case !whole && (!cut || len(c.Result) > limit || len(c.Result) < limit-8):
			t.Errorf("%s: %d bytes, %.60s…", r.name, len(c.Result), c.Result)
		}
		once(t, r.name, r.down, c.EffectID)
	}
	for range 2 {
		for _, r := range rows {
			again := d.post(r.name, r.name, `{"amount":1}`, wait(30))
			if c := again.wantEnd(t, idem.StatusSucceeded); !c.sameEnd(first[r.name]) || again.replayed() != "true" {
				t.Errorf("%s: another answer, of %d bytes", r.name, len(c.Result))
			}
			once(t, r.name, r.down, first[r.name].EffectID)
		}
		d.restart(t)
	}
	reconcile(t, d, intents...)
}

// TestChangedTools ends the process while downstream is at work and starts it with
// other tools. What was promised before and what is promised now both count: the
// stricter one decides whether the call goes out again (R13, R14).
func TestChangedTools(t *testing.T) {
	const work = "slow-commit:700ms" // longer than anything here waits for it but the question
	tests := []struct {
		name   string
		stop   bool // cleanly; else killed
		before idem.Rerun
		after  idem.Rerun // empty: the tool is gone
		end    idem.Status
		code   string // of its failure
		sent   int
	}{
		{"killed, rerun now holds", false, idem.RerunYes, idem.RerunHold, idem.StatusHeld, idem.FailureLost, 1},
		{"stopped, rerun now holds", true, idem.RerunYes, idem.RerunHold, idem.StatusHeld, idem.FailureLost, 1},
		{"killed, rerun now verifies", false, idem.RerunYes, idem.RerunVerify, idem.StatusSucceeded, "", 1},
		{"stopped, rerun now verifies", true, idem.RerunYes, idem.RerunVerify, idem.StatusSucceeded, "", 1},
		{"killed, hold may now rerun", false, idem.RerunHold, idem.RerunYes, idem.StatusHeld, idem.FailureLost, 1},
		{"stopped, hold may now rerun", true, idem.RerunHold, idem.RerunYes, idem.StatusHeld, idem.FailureLost, 1},
		{"killed, hold now verifies", false, idem.RerunHold, idem.RerunVerify, idem.StatusSucceeded, "", 1},
		{"killed, verify now holds", false, idem.RerunVerify, idem.RerunHold, idem.StatusHeld, idem.FailureLost, 1},
		{"killed, verify may now rerun", false, idem.RerunVerify, idem.RerunYes, idem.StatusHeld, idem.FailureLost, 1},
		{"killed, hold is gone", false, idem.RerunHold, "", idem.StatusHeld, idem.FailureLost, 1},
		{"killed, rerun is gone", false, idem.RerunYes, "", idem.StatusFailed, idem.FailureMissing, 1},
		{"stopped, rerun is gone", true, idem.RerunYes, "", idem.StatusFailed, idem.FailureMissing, 1},
		{"killed, rerun stays", false, idem.RerunYes, idem.RerunYes, idem.StatusSucceeded, "", 2},
		{"stopped, rerun stays", true, idem.RerunYes, idem.RerunYes, idem.StatusSucceeded, "", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			begun := make(chan struct{})
			fault := faultsFirst(t, 1, work)
			// Only where it is run again by right does downstream honour the id.
			down := provider(t, probe.DownstreamOptions{Ignores: tt.sent == 1, Fault: func(n int, id string) probe.DownstreamFault {
				if n == 1 {
					close(begun)
				}
				return fault(n, id)
			}})
			tool := func(name string, rerun idem.Rerun) httpTool {
				return httpTool{
					name: name, url: down.URL() + "/pay", rerun: rerun, honours: rerun == idem.RerunYes, timeout: "2s", settle: "2s",
					verify: down.URL() + "/effects?ref={effect_id}",
				}
			}
			d, path := startTools(t, []string{"--shutdown-timeout", "0s"}, tool("pay", tt.before))
			d.post("k", "pay", `{"amount":1}`).want(t, http.StatusAccepted)
			<-begun
			name := "pay"
			if tt.after == "" {
				name = "paying"
				tt.after = tt.before
			}
			toolsFile(t, path, tool(name, tt.after))
			if tt.stop {
				if code := d.stop(t); code != 0 {
					t.Fatalf("exit code %d", code)
				}
			} else {
				d.kill(t)
			}
			if tt.sent == 2 { // downstream refuses a second one beside the first
				if err := down.WaitIdle(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			d.boot(t)
			c := d.settled(t, "k").want(t, http.StatusOK)
			if tt.end == idem.StatusSucceeded {
				c = d.find("k", wait(20)).wantEnd(t, tt.end)
			}
			if c.Status != tt.end || c.failure().Code != tt.code {
				t.Errorf("want it %s, got %v", tt.end, c)
			}
			if tt.end != idem.StatusSucceeded { // and so it stays, whoever asks
				again := d.post("k", "pay", `{"amount":1}`, wait(1))
				if tt.end == idem.StatusHeld {
					again.wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
				} else if f := again.want(t, http.StatusOK).failure(); f.Code != tt.code || effectOf(again.call) != idem.DoubtUnknown {
					t.Errorf("asked again: %v", again)
				}
			}
			if err := down.WaitIdle(t.Context()); err != nil {
				t.Fatal(err)
			}
			once(t, tt.name, down, c.EffectID)
			if n := len(sent(down)); n != tt.sent {
				t.Errorf("it was sent %d times, want %d", n, tt.sent)
			}
		})
	}
}

// TestAskedAgainByAStricterTool: an answer was lost, the tool's promise was taken
// back, and the client asks again by the same key. It is not sent again (R13).
func TestAskedAgainByAStricterTool(t *testing.T) {
	t.Parallel()
	down := provider(t, probe.DownstreamOptions{Ignores: true, Fault: faultsFirst(t, 1, "commit-then-close")})
	tool := httpTool{name: "pay", url: down.URL() + "/pay", rerun: idem.RerunYes, honours: true}
	d, path := startTools(t, nil, tool)
	c := d.post("k", "pay", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusFailed)
	if f := c.failure(); !f.Retryable || effectOf(c) != idem.DoubtUnknown {
		t.Fatalf("got %v", c)
	}
	tool.rerun, tool.honours = idem.RerunHold, false // they do not honour it after all
	toolsFile(t, path, tool)
	d.restart(t)
	for range 2 {
		d.post("k", "pay", `{"amount":1}`, wait(20)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	}
	once(t, "asked again", down, c.EffectID)
	if n := len(sent(down)); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
	reconcile(t, d)
}

// TestPausedWhileDownstreamWorks stops the process, not its clock, beyond lease,
// time-out and settle while downstream is at work. Nothing goes out twice (R6, R11,
// R13).
func TestPausedWhileDownstreamWorks(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	fault := faultsFirst(t, 1, "slow-commit:200ms")
	down := provider(t, probe.DownstreamOptions{Ignores: true, Fault: func(n int, id string) probe.DownstreamFault {
		if n == 1 {
			close(begun)
		}
		return fault(n, id)
	}})
	d, _ := startTools(t, []string{"--lease", "100ms"}, httpTool{
		name: "pay", url: down.URL() + "/pay", rerun: idem.RerunVerify, timeout: "300ms", settle: "300ms", verify: down.URL() + "/effects?ref={effect_id}",
	})
	d.post("k", "pay", `{"amount":1}`).want(t, http.StatusAccepted)
	<-begun
	d.signal(t, syscall.SIGSTOP)
	if err := down.WaitIdle(t.Context()); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second) // the pause
	d.signal(t, syscall.SIGCONT)
	c := d.find("k", wait(20)).wantEnd(t, idem.StatusSucceeded)
	once(t, "paused", down, c.EffectID)
	if n := len(sent(down)); n != 1 || c.Attempt != 1 {
		t.Errorf("it was sent %d times: %v", n, c)
	}
	reconcile(t, d, "k")
}

// TestAttemptsAreBounded: a tool's bound of attempts holds for those that a kill or a
// stop leads to as well (R12).
func TestAttemptsAreBounded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, d *daemon){
		"killed":  func(t *testing.T, d *daemon) { d.kill(t) },
		"stopped": func(t *testing.T, d *daemon) { d.stop(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requests := make(chan struct{}, 10)
			f, err := probe.ParseDownstreamFault("delay:1m")
			if err != nil {
				t.Fatal(err)
			}
			down := provider(t, probe.DownstreamOptions{Fault: func(int, string) probe.DownstreamFault {
				requests <- struct{}{}
				return f
			}})
			d, _ := startTools(t, []string{"--shutdown-timeout", "0s", "--max-crashes", "10"}, httpTool{
				name: "pay", url: down.URL() + "/pay", rerun: idem.RerunYes, honours: true, timeout: "30s", more: "    max_attempts: 2\n",
			})
			d.post("k", "pay", `{"amount":1}`).want(t, http.StatusAccepted)
			for range 2 {
				<-requests
				end(t, d)
				d.boot(t)
			}
			c := d.settled(t, "k").want(t, http.StatusOK)
			if c.Status != idem.StatusHeld || c.Attempt != 2 || c.failure().Code != idem.FailureExhausted {
				t.Errorf("want it held after two attempts, got %v", c)
			}
			d.resolve(c.CallID, `{"outcome":"failed","by":"ann"}`).wantEnd(t, idem.StatusFailed)
			if n := len(sent(down)); n != 2 {
				t.Errorf("it was sent %d times", n)
			}
		})
	}
}
