package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// shelf is a server with n items of each kind, which it gives in pages of at
// most most items, or as a stream.
type shelf struct {
	n, most int

	mu    sync.Mutex
	asked []string
}

func idAt(i int) string { return fmt.Sprintf("c_%032x", i) }

// items are as the server writes them; results are as a tool wrote them.
var items = map[string]func(i int) string{
	"calls": func(i int) string {
		return strings.Replace(call("succeeded", "{ \"n\" :\n1.10e+2,\t\"s\":\"<\\u00e9>\" }", "null"), testID, idAt(i), 1)
	},
	"events": func(i int) string {
		more := `"owner":"","detail":null}`
		if i%2 == 1 {
			more = `"owner":"b_1/3","detail":{"by":"ada"}}`
		}
		return fmt.Sprintf(`{"seq":%d,"at":"2026-11-29T16:00:00.123Z","event":"claimed","attempt":1,%s`, i, more)
	},
	"effects": func(i int) string {
		return fmt.Sprintf(`{"effect_id":"eff_%032x","call_id":"%s","idem_key":"k %d","tool":"charge","amount":%d,"created_at":"2026-11-29T16:00:00.123Z"}`, i, idAt(i), i, i)
	},
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.RequestURI)
	s.mu.Unlock()
	kind := "calls"
	switch {
	case strings.HasSuffix(r.URL.Path, "/audit"):
		kind = "events"
	case r.URL.Path == pathEffects:
		kind = "effects"
	}
	if r.Header.Get("Accept") == mediaLines {
		w.Header().Set("Content-Type", mediaLines)
		for i := range s.n {
			_, _ = io.WriteString(w, items[kind](i)+"\n")
		}
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	to := min(s.n, from+min(limit, s.most))
	var b bytes.Buffer
	b.WriteString(`{"` + kind + `":[`)
	for i := from; i < to; i++ {
		if i > from {
			b.WriteByte(',')
		}
		b.WriteString(items[kind](i))
	}
	next := "null"
	if to < s.n {
		next = strconv.Quote(strconv.Itoa(to))
	}
	b.WriteString(`],"next_cursor":` + next + `}`)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes())
}

func (s *shelf) serve(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestList(t *testing.T) {
	row := func(i int) string {
		return idAt(i) + "  2026-11-29T16:00:00.123Z  succeeded  2        -        charge            k\n"
	}
	const head = "CALL                                CREATED                   STATUS     ATTEMPT  EFFECT   TOOL              KEY\n"
	s := &shelf{n: 5, most: 2}
	url := s.serve(t)
	runIdemd(t, "", "list", "--url", url).want(t, 0, head+row(0)+row(1)+row(2)+row(3)+row(4))
	runIdemd(t, "", "list", "--url", url, "--limit", "3").want(t, 0, head+row(0)+row(1)+row(2), "there are more")
	runIdemd(t, "", "list", "--url", url, "--limit", "5").want(t, 0, head+row(0)+row(1)+row(2)+row(3)+row(4))
	// White space goes, since a line is an object; nothing else does.
	o := runIdemd(t, "", "list", "--url", url, "--limit", "1", "--json", "--status", "succeeded", "--tool", "a&b", "--client-id", "me")
	o.want(t, 0, strings.NewReplacer("{ \"n\" :\n1.10e+2,\t", `{"n":1.10e+2,`, "</u", "", " }", "}").Replace(items["calls"](0))+"\n", "there are more")
	if want := "/v1/tool-calls?client_id=me&limit=1&status=succeeded&tool=a%26b"; s.asked[len(s.asked)-1] != want {
		t.Errorf("asked %q, want %q", s.asked[len(s.asked)-1], want)
	}

	many := &shelf{n: 3*pageSize + 1, most: pageSize}
	url = many.serve(t)
	if o := runIdemd(t, "", "list", "--url", url, "--all"); o.code != 0 || strings.Count(o.stdout, "\n") != many.n+1 || o.stderr != "" {
		t.Errorf("exit code %d, %d lines, %s", o.code, strings.Count(o.stdout, "\n"), o.stderr)
	}
	if o := runIdemd(t, "", "list", "--url", url, "--all", "--json"); o.code != 0 || strings.Count(o.stdout, "\n") != many.n {
		t.Errorf("exit code %d, %d lines", o.code, strings.Count(o.stdout, "\n"))
	}
	if n := len(many.asked); n != 8 {
		t.Errorf("%d requests for %d calls twice", n, many.n)
	}

	t.Setenv("IDEMD_CLIENT_ID", "meant-for-call")
	runIdemd(t, "", "list", "--url", url, "--limit", "1", "--json").want(t, 0, o.stdout, "there are more")
	if want := "/v1/tool-calls?limit=1"; many.asked[8] != want {
		t.Errorf("asked %q, want %q", many.asked[8], want)
	}

	none := (&shelf{}).serve(t)
	runIdemd(t, "", "list", "--url", none).want(t, 0, "", "nothing to show")
	runIdemd(t, "", "list", "--url", none, "--json").want(t, 0, "", "nothing to show")
	for _, bad := range [][]string{{"--status", "done"}, {"--limit", "0"}, {"--limit=-1"}, {"--limit", "x"}, {"--timeout", "0s"}, {"--url", "x"}} {
		if o := runIdemd(t, "", append([]string{"list"}, bad...)...); o.code != exitUsage || o.stderr == "" {
			t.Errorf("%q: exit code %d, %s", bad, o.code, o.stderr)
		}
	}
}

// What the server says instead of a page, and what is no page.
func TestListRefused(t *testing.T) {
	page := func(items, next string) reply {
		return reply{status: 200, body: `{"calls":[` + items + `],"next_cursor":` + next + `}`}
	}
	one := call("succeeded", "1", "null")
	for _, tc := range []struct {
		name    string
		replies []reply
		code    int
		lines   int
	}{
		{"refused", []reply{{status: 400, body: refuse("bad_request")}}, exitUsage, 0},
		{"busy", []reply{{status: 503, body: refuse("unavailable")}}, exitUnavailable, 0},
		{"lost", []reply{{lose: true}}, exitUnavailable, 0},
		{"half", []reply{{status: 200, body: `{"calls":[`, half: true}}, exitUnavailable, 0},
		{"lost later", []reply{page(one, `"a"`), {lose: true}}, exitUnavailable, 1},
		{"somebody else", []reply{{status: 200, body: "hello"}}, exitUnavailable, 0},
		{"somebody else's list", []reply{{status: 200, body: `{"calls":[]}`}}, exitUnavailable, 0},
		{"not a list", []reply{{status: 200, body: `{"calls":{},"next_cursor":null}`}}, exitUnavailable, 0},
		{"not a cursor", []reply{{status: 200, body: `{"calls":[],"next_cursor":1}`}}, exitUnavailable, 0},
		{"not calls", []reply{page("1", "null")}, exitUnavailable, 0},
		{"in circles", []reply{page(one, `"a"`)}, exitUnavailable, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := runIdemd(t, "", "list", "--all", "--url", serve(t, tc.replies...).URL)
			if o.code != tc.code || strings.Count(o.stdout, testID) != tc.lines || o.stderr == "" {
				t.Errorf("exit code %d, %s, %s", o.code, o.stdout, o.stderr)
			}
		})
	}
}

// Of what failed or is held, the list says whether it may have been done.
func TestListEffect(t *testing.T) {
	for failure, want := range map[string]string{
		`failed {"code":"x","message":"","retryable":false,"effect":"none"}`:   "failed     2        none     charge",
		`failed {"code":"x","message":"","retryable":true,"effect":"unknown"}`: "failed     2        unknown  charge",
		`failed {"code":"tool_timeout","message":"","retryable":true}`:         "failed     2        unknown  charge",
		`held {"code":"x","message":"","retryable":false}`:                     "held       2        unknown  charge",
		`pending null`: "pending    2        -        charge",
	} {
		status, doc, _ := strings.Cut(failure, " ")
		s := serve(t, reply{status: 200, body: `{"calls":[` + call(status, "null", doc) + `],"next_cursor":null}`})
		if o := runIdemd(t, "", "list", "--url", s.URL); o.code != 0 || !strings.Contains(o.stdout, want) {
			t.Errorf("%s: %+v", failure, o)
		}
	}
}

func TestAudit(t *testing.T) {
	s := &shelf{n: 3, most: 2}
	url := s.serve(t)
	runIdemd(t, "", "audit", testID, "--url", url).want(t, 0, `SEQ   AT                        EVENT         ATTEMPT  OWNER                   DETAIL
0     2026-11-29T16:00:00.123Z  claimed       1        -
1     2026-11-29T16:00:00.123Z  claimed       1        b_1/3                   {"by":"ada"}
2     2026-11-29T16:00:00.123Z  claimed       1        -
`)
	runIdemd(t, "", "audit", testID, "--url", url, "--json").want(t, 0, items["events"](0)+"\n"+items["events"](1)+"\n"+items["events"](2)+"\n")
	if want := "/v1/tool-calls/" + testID + "/audit?limit=1000"; s.asked[0] != want {
		t.Errorf("asked %q, want %q", s.asked[0], want)
	}
	missing := serve(t, reply{status: 404, body: refuse("not_found")})
	runIdemd(t, "", "audit", testID, "--url", missing.URL).want(t, exitNotFound, "", "not_found")
	runIdemd(t, "", "audit", "x/../y", "--url", missing.URL).want(t, exitNotFound, "", "no such call")
	if n := len(missing.asked()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestEffects(t *testing.T) {
	s := &shelf{n: pageSize + 2, most: pageSize}
	url := s.serve(t)
	o := runIdemd(t, "", "effects", "--url", url)
	lines := strings.Split(o.stdout, "\n")
	if o.code != 0 || len(lines) != s.n+2 || !strings.HasPrefix(lines[0], "EFFECT ") ||
		lines[8] != fmt.Sprintf("eff_%032x  %s  2026-11-29T16:00:00.123Z  7           charge            k 7", 7, idAt(7)) {
		t.Errorf("exit code %d, %d lines: %s", o.code, len(lines), lines[8])
	}
	asked := len(s.asked)
	o = runIdemd(t, "", "effects", "--url", url, "--json")
	lines = strings.Split(o.stdout, "\n")
	if o.code != 0 || len(lines) != s.n+1 || lines[7] != items["effects"](7) || len(s.asked) != asked+1 {
		t.Errorf("exit code %d, %d lines: %s", o.code, len(lines), lines[7])
	}
}

// A stream that is not whole is never taken for one that is.
func TestEffectsBrokenStream(t *testing.T) {
	var stall chan struct{}
	row := items["effects"](1)
	for _, tc := range []struct {
		name  string
		serve http.HandlerFunc
		code  int
		lines int
		says  string
	}{
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, row+"\n"+row[:20])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, exitUnavailable, 1, "not all there is"},
		{"broken off between two lines", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, row+"\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, exitUnavailable, 1, "not all there is"},
		{"stalled", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, row+"\n")
			w.(http.Flusher).Flush()
			<-stall
		}, exitUnavailable, 1, "the time is up"},
		{"stalled at once", func(http.ResponseWriter, *http.Request) { <-stall }, exitUnavailable, 0, "the time is up"},
		{"half a line at the end", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, row+"\n"+row) }, exitUnavailable, 1, "not idemd's"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }, exitUnavailable, 0, "not idemd's"},
		{"an endless line", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("1", 2*piece)) }, exitUnavailable, 0, "not idemd's"},
		{"another type", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") }, exitUnavailable, 0, "not idemd's"},
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, refuse("unavailable"))
		}, exitUnavailable, 0, "unavailable: the words"},
		{"without a length and without chunks", func(w http.ResponseWriter, _ *http.Request) {
			c, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = buf.WriteString("HTTP/1.0 200 OK\r\nContent-Type: " + mediaLines + "\r\n\r\n" + row + "\n")
			_ = buf.Flush()
			_ = c.Close()
		}, exitUnavailable, 0, "does not tell where the ledger ends"},
		{"nothing", func(http.ResponseWriter, *http.Request) {}, 0, 0, "nothing to show"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stall = make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", mediaLines)
				tc.serve(w, r)
			}))
			defer srv.Close()
			defer close(stall)
			timeout := "30s"
			if strings.HasPrefix(tc.name, "stalled") {
				timeout = "200ms"
			}
			o := runIdemd(t, "", "effects", "--json", "--url", srv.URL, "--timeout", timeout)
			if o.code != tc.code || o.stdout != strings.Repeat(row+"\n", tc.lines) || !strings.Contains(o.stderr, tc.says) {
				t.Errorf("exit code %d, %q, %s", o.code, o.stdout, o.stderr)
			}
		})
	}
}

// Lines that have arrived are written before more are waited for.
func TestEffectsAsTheyCome(t *testing.T) {
	row := items["effects"](1)
	more := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaLines)
		_, _ = io.WriteString(w, row+"\n"+row+"\n"+row[:10])
		w.(http.Flusher).Flush()
		<-more
		_, _ = io.WriteString(w, row[10:]+"\n")
	}))
	defer srv.Close()
	out, in := io.Pipe()
	over := make(chan int, 1)
	go func() {
		con := &console{stdin: strings.NewReader(""), stdout: in, stderr: io.Discard, pause: pause}
		code := con.run(t.Context(), []string{"effects", "--json", "--url", srv.URL})
		_ = in.Close()
		over <- code
	}()
	first := make([]byte, 2*len(row)+2)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != row+"\n"+row+"\n" {
		t.Errorf("%v, %q", err, first)
	}
	close(more)
	rest, err := io.ReadAll(out)
	if code := <-over; code != 0 || err != nil || string(rest) != row+"\n" {
		t.Errorf("exit code %d, %v, %q", code, err, rest)
	}
}

// A reader that has seen enough is no failure; an output that cannot be written
// is one.
func TestEnough(t *testing.T) {
	s := &shelf{n: 3 * pageSize, most: pageSize}
	url := s.serve(t)
	for _, args := range [][]string{{"list", "--all"}, {"list", "--all", "--json"}, {"audit", testID}, {"effects"}, {"effects", "--json"}} {
		args = append(args, "--url", url)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var words bytes.Buffer
		con := &console{stdin: strings.NewReader(""), stdout: w, stderr: &words, pause: func(context.Context, time.Duration) error { return nil }}
		asked := len(s.asked)
		if code := con.run(t.Context(), args); code != 0 || words.Len() > 0 {
			t.Errorf("%q: exit code %d, %s", args, code, words.String())
		}
		if n := len(s.asked) - asked; n != 1 {
			t.Errorf("%q: %d requests, although nobody reads", args, n)
		}
		w.Close()
		con.stdout = failingWriter{}
		if code := con.run(t.Context(), args); code != exitOutput {
			t.Errorf("%q: exit code %d, want %d", args, code, exitOutput)
		}
	}
}
