package tool

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// A moment is when a server closes the connection of the second request that
// arrives. All others are answered.
type moment string

const (
	beforeRequest  moment = "while it is idle"
	atFirstByte    moment = "at the first byte"
	afterHead      moment = "after the head"
	inBody         moment = "in the body"
	afterRequest   moment = "after all of the request"
	inStatusLine   moment = "in the answer's status line"
	inAnswerHead   moment = "in the answer's head"
	inAnswer       moment = "in the answer's body"
	afterEmptyLine moment = "after an empty line"
)

var moments = []moment{beforeRequest, atFirstByte, afterHead, inBody, afterRequest, inStatusLine, inAnswerHead, inAnswer, afterEmptyLine}

// breaking counts the requests that begin to arrive, over all connections.
func breaking(t *testing.T, at moment, reset bool) (s *rawServer, begun *atomic.Int64) {
	begun = new(atomic.Int64)
	return serveRaw(t, func(conn *net.TCPConn, r *bufio.Reader) {
		for {
			if _, err := r.Peek(1); err != nil {
				return
			}
			n := begun.Add(1)
			if n != 2 || at == beforeRequest {
				method, ok := readRequest(r)
				if !ok {
					return
				}
				body := "{}"
				if method == http.MethodHead {
					body = ""
				}
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%s", body)
				if n == 1 && at == beforeRequest {
					return
				}
				continue
			}
			if reset {
				_ = conn.SetLinger(0)
			}
			switch at {
			case atFirstByte:
			case afterHead, inBody:
				for {
					line, err := r.ReadString('\n')
					if err != nil || line == "\r\n" {
						break
					}
				}
				if at == inBody {
					_, _ = r.ReadByte()
				}
			default:
				readRequest(r)
				part := map[moment]string{
					inStatusLine: "HTTP/1.1 20", inAnswerHead: "HTTP/1.1 200 OK\r\nContent-Le",
					inAnswer: "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{", afterEmptyLine: "\r\n",
				}[at]
				_, _ = io.WriteString(conn, part)
			}
			return
		}
	}), begun
}

// One attempt is one request on the wire, whenever a kept connection dies, also
// with the header that makes Go's client send a request again. The control shows
// that the server sees it when that happens.
func TestOneRequest(t *testing.T) {
	resent := map[moment]bool{atFirstByte: true, afterHead: true, inBody: true, afterRequest: true}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "GET", "HEAD"} {
		hasBody := method != "GET" && method != "HEAD"
		for _, at := range moments {
			if !hasBody && at == inBody || method == "HEAD" && at == inAnswer {
				continue
			}
			for _, reset := range []bool{false, true} {
				name := fmt.Sprintf("%s/%s, reset %v", method, at, reset)
				t.Run(name, func(t *testing.T) {
					s, begun := breaking(t, at, reset)
					tool := newHTTP(&HTTP{Method: method, URL: s.url, Success: []int{200}, EffectKey: EffectKey{Header: "Idempotency-Key"}})
					if _, err := tool.Invoke(t.Context(), invocation(1, `{"a":1}`)); err != nil {
						t.Fatal(err)
					}
					_, err := tool.Invoke(t.Context(), invocation(1, `{"a":1}`))
					tool.Close()
					s.wait()
					if n := begun.Load(); n > 2 || n < 2 && err == nil {
						t.Errorf("%d requests on the wire for two attempts", n)
					}
					if at != beforeRequest {
						wantLost(t, err)
					}
				})
				t.Run(name+", Go's own client", func(t *testing.T) {
					s, begun := breaking(t, at, reset)
					c := http.Client{Transport: &http.Transport{}}
					var last error
					for range 2 {
						var body io.Reader
						if hasBody {
							body = strings.NewReader(`{"a":1}`)
						}
						req, err := http.NewRequestWithContext(t.Context(), method, s.url, body)
						if err != nil {
							t.Fatal(err)
						}
						req.Header.Set("Idempotency-Key", "k")
						resp, err := c.Do(req)
						if last = err; err == nil {
							_, last = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						}
					}
					c.CloseIdleConnections()
					s.wait()
					if n := begun.Load(); resent[at] && (n != 3 || last != nil) {
						t.Errorf("the test is blind: %d requests, %v", n, last)
					}
				})
			}
		}
	}
}

// wantLost checks that nobody knows what came of an attempt.
func wantLost(t *testing.T, err error) {
	t.Helper()
	var f *idem.Failure
	if err == nil || errors.As(err, &f) {
		t.Errorf("got %v, want an error that is no failure", err)
	}
}

// wantUnreachable checks that nothing was sent, and says so.
func wantUnreachable(t *testing.T, err error, why string) {
	t.Helper()
	var f *idem.Failure
	if !errors.As(err, &f) || f.Code != failureUnreachable || !f.Retryable {
		t.Fatalf("got %v, want a retryable failure %s", err, failureUnreachable)
	}
	if want := "no connection to downstream: " + why; f.Message != want {
		t.Errorf("message %q, want %q", f.Message, want)
	}
}

// canary is in all that errors must not repeat.
const canary = "c4n4ry"

// Whatever comes on the wire is one of: done, not done (for good or not), unknown.
func TestAnswers(t *testing.T) {
	const (
		done      = "done"
		final     = "final"
		retryable = "retryable"
		unknown   = "unknown"
	)
	type ending int
	const (
		closed ending = iota
		reset
		open // the connection stays, until the other end closes it
	)
	head := func(status string, headers ...string) string {
		return "HTTP/1.1 " + status + "\r\n" + strings.Join(append(headers, "\r\n"), "\r\n")
	}
	big := strings.Repeat("a", 200<<10)
	for name, c := range map[string]struct {
		reply  string
		end    ending
		method string
		want   string
		output string
	}{
		"success":                                   {reply: "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}", end: open, want: done, output: `{"a":1}`},
		"success without a body":                    {reply: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", end: open, want: done},
		"success, 204":                              {reply: "HTTP/1.1 204 No Content\r\n\r\n", end: open, want: done},
		"success, chunks":                           {reply: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n", end: open, want: done, output: `[1,2]`},
		"success, chunks and a trailer":             {reply: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\n1\r\n0\r\nX: y\r\n\r\n", end: open, want: done, output: `1`},
		"success, text":                             {reply: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", end: open, want: done, output: `{"status":200,"body":"ok"}`},
		"success, HEAD":                             {reply: "HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n", end: open, method: "HEAD", want: done},
		"success, HEAD without a length":            {reply: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", method: "HEAD", want: done},
		"success, no JSON though it says so":        {reply: head("200 OK", "Content-Type: application/json", "Content-Length: 5") + `{"a":`, end: open, want: done, output: `{"status":200,"body":"{\"a\":"}`},
		"success, then closed":                      {reply: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", want: done, output: `{}`},
		"success, and more than the length":         {reply: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}{}", want: done, output: `{}`},
		"success, compressed all the same":          {reply: "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", end: open, want: done, output: `{"status":200,"body_base64":"H4s="}`},
		"after other answers":                       {reply: "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", end: open, want: done, output: `{}`},
		"headers of 32 KiB":                         {reply: head("200 OK", "X: "+big[:32<<10], "Content-Length: 2") + "{}", end: open, want: done, output: `{}`},
		"the close is the end, text":                {reply: "HTTP/1.1 200 OK\r\n\r\nok", want: done, output: `{"status":200,"body":"ok"}`},
		"the close is the end, HTTP/1.0":            {reply: "HTTP/1.0 200 OK\r\n\r\n{}", want: done, output: `{}`},
		"the close is the end, JSON":                {reply: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\":1}", want: done, output: `{"a":1}`},
		"the close is the end, JSON with a profile": {reply: "HTTP/1.1 200 OK\r\nContent-Type: application/problem+json; a=b\r\n\r\n{\"a\":1}", want: done, output: `{"a":1}`},
		"final":     {reply: head("422 Unprocessable", "Content-Length: 2") + "no", end: open, want: final},
		"retryable": {reply: head("429 Too Many", "Content-Length: 2") + "no", end: open, want: retryable},

		"nothing, closed":                          {reply: "", want: unknown},
		"nothing, reset":                           {reply: "", end: reset, want: unknown},
		"half a status line":                       {reply: "HTTP/1.1 2", want: unknown},
		"no HTTP":                                  {reply: canary + " is no status line\r\n\r\n", want: unknown},
		"a status that is no number":               {reply: "HTTP/1.1 " + canary + "\r\n\r\n", want: unknown},
		"half a head":                              {reply: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", want: unknown},
		"a header that is none":                    {reply: "HTTP/1.1 200 OK\r\n" + canary + "\r\n\r\n", want: unknown},
		"headers without end":                      {reply: "HTTP/1.1 200 OK\r\nX: " + big, end: open, want: unknown},
		"headers beyond the limit":                 {reply: head("200 OK", "X: "+big, "Content-Length: 2") + "{}", end: open, want: unknown},
		"other answers without end":                {reply: strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 5000), end: open, want: unknown},
		"only another answer":                      {reply: "HTTP/1.1 103 Early Hints\r\n\r\n", want: unknown},
		"success, half a body":                     {reply: head("200 OK", "Content-Length: 9") + "{}", want: unknown},
		"success, half a body, reset":              {reply: head("200 OK", "Content-Length: 9") + "{}", end: reset, want: unknown},
		"success, no body":                         {reply: head("200 OK", "Content-Length: 9"), want: unknown},
		"success, half a chunk":                    {reply: head("200 OK", "Transfer-Encoding: chunked") + "9\r\n{}", want: unknown},
		"success, no last chunk":                   {reply: head("200 OK", "Transfer-Encoding: chunked") + "2\r\n{}\r\n", want: unknown},
		"success, no end after the last chunk":     {reply: head("200 OK", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n", want: unknown},
		"success, a bad chunk":                     {reply: head("200 OK", "Transfer-Encoding: chunked") + "2\r\n{}\r\n" + canary + "\r\n", end: open, want: unknown},
		"success, half of a JSON that says so":     {reply: head("200 OK", "Content-Type: application/json") + `{"a":`, want: unknown},
		"success, nothing of a JSON that says so":  {reply: head("200 OK", "Content-Type: application/json"), want: unknown},
		"success, two lengths":                     {reply: head("200 OK", "Content-Length: 2", "Content-Length: 3") + "{}", end: open, want: unknown},
		"final, half a body":                       {reply: head("422 Unprocessable", "Content-Length: 9") + "{}", want: unknown},
		"final, a bad chunk":                       {reply: head("422 Unprocessable", "Transfer-Encoding: chunked") + "zz\r\n", end: open, want: unknown},
		"final, half of a JSON that says so":       {reply: head("422 Unprocessable", "Content-Type: application/json") + `{"a":`, want: unknown},
		"retryable, half a body":                   {reply: head("429 Too Many", "Content-Length: 9") + "{}", end: reset, want: unknown},
		"a redirect":                               {reply: head("307 Temporary Redirect", "Location: /"+canary, "Content-Length: 0"), end: open, want: unknown},
		"a status in no list":                      {reply: head("500 Oops", "Content-Length: 2") + "no", end: open, want: unknown},
		"another protocol":                         {reply: head("101 Switching Protocols", "Upgrade: x", "Connection: Upgrade"), end: open, want: unknown},
		"another protocol, though nobody asked so": {reply: head("101 Switching Protocols"), end: open, want: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveRaw(t, func(conn *net.TCPConn, r *bufio.Reader) {
				readRequest(r)
				_, _ = io.WriteString(conn, c.reply)
				switch c.end {
				case reset:
					_ = conn.SetLinger(0)
				case open:
					_, _ = io.Copy(io.Discard, r)
				}
			})
			method := c.method
			if method == "" {
				method = "POST"
			}
			tool := newHTTP(&HTTP{
				Method: method, URL: s.url + "/" + canary + "?q=" + canary, Headers: http.Header{"Authorization": {"Bearer " + canary}},
				Success: []int{101, 200, 204}, Final: []int{422}, Retryable: []int{429},
			})
			defer tool.Close()
			res, err := tool.Invoke(t.Context(), invocation(1, `{"a":"`+canary+`"}`))
			var f *idem.Failure
			got := unknown
			if err == nil {
				got = done
			} else if errors.As(err, &f) {
				if got = final; f.Retryable {
					got = retryable
				}
			}
			if got != c.want {
				t.Fatalf("%s (%v), want %s", got, err, c.want)
			}
			if string(res.Output) != c.output {
				t.Errorf("output %s, want %s", res.Output, c.output)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the error repeats what it must not: %v", err)
			}
		})
	}
}

// What has no connection was not sent.
func TestUnreachable(t *testing.T) {
	ask := func(ctx context.Context, tool *httpTool) error {
		defer tool.Close()
		_, err := tool.Invoke(ctx, invocation(1, `{"a":"`+canary+`"}`))
		return err
	}
	at := func(url string) *httpTool {
		return newHTTP(&HTTP{Method: "POST", URL: url, Success: []int{200}, Headers: http.Header{"X": {canary}}})
	}
	t.Run("refused", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		wantUnreachable(t, ask(t.Context(), at("http://"+ln.Addr().String()+"/"+canary)), "connection refused")
	})
	t.Run("no such host", func(t *testing.T) {
		tool := at("http://" + canary + ".invalid/")
		tool.wire.dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: canary, IsNotFound: true}}
		}
		wantUnreachable(t, ask(t.Context(), tool), "no such host")
	})
	t.Run("no name service", func(t *testing.T) {
		tool := at("http://" + canary + ".invalid/")
		tool.wire.dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: canary}}
		}
		wantUnreachable(t, ask(t.Context(), tool), "the host's name could not be looked up")
	})
	t.Run("something else", func(t *testing.T) {
		tool := at("http://" + canary + ".invalid/")
		tool.wire.dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New(canary) }
		wantUnreachable(t, ask(t.Context(), tool), "it could not be made")
	})
	t.Run("TLS, a certificate nobody trusts", func(t *testing.T) {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		defer s.Close()
		tool, dialled := at(s.URL), make(chan net.Conn, 1)
		plain := tool.wire.dial
		tool.wire.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := plain(ctx, network, addr)
			dialled <- conn
			return conn, err
		}
		wantUnreachable(t, ask(t.Context(), tool), "the TLS handshake failed")
		if _, err := (<-dialled).Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want a connection that is closed", err)
		}
	})
	t.Run("TLS, closed in the handshake", func(t *testing.T) {
		s := serveRaw(t, func(_ *net.TCPConn, r *bufio.Reader) { _, _ = r.ReadByte() })
		wantUnreachable(t, ask(t.Context(), at("https"+strings.TrimPrefix(s.url, "http"))), "the TLS handshake failed")
	})
	t.Run("the time is over before", func(t *testing.T) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		defer cancel()
		wantUnreachable(t, ask(ctx, at("http://"+canary+".invalid/")), "timed out")
	})
	t.Run("closed before", func(t *testing.T) {
		s := serveRaw(t, func(_ *net.TCPConn, r *bufio.Reader) { _, _ = readRequest(r) })
		tool := at(s.url)
		tool.Close()
		wantUnreachable(t, ask(t.Context(), tool), "it could not be made")
	})
	hang := func(reached chan<- struct{}) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, _, _ string) (net.Conn, error) {
			close(reached)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	t.Run("interrupted while there is no connection", func(t *testing.T) {
		tool, reached := at("http://"+canary+".invalid/"), make(chan struct{})
		tool.wire.dial = hang(reached)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-reached; cancel() }()
		wantUnreachable(t, ask(ctx, tool), "interrupted")
	})
	t.Run("a peer that does not answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, c := range []struct{ limit, want time.Duration }{{time.Hour, dialTimeout}, {dialTimeout / 2, dialTimeout / 2}} {
				tool := at("http://" + canary + ".invalid/")
				tool.wire.dial = hang(make(chan struct{}))
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				begun := time.Now()
				wantUnreachable(t, ask(ctx, tool), "timed out")
				if took := time.Since(begun); took != c.want {
					t.Errorf("took %v, want %v", took, c.want)
				}
				cancel()
				synctest.Wait()
			}
		})
	})
	t.Run("a peer that does not answer in the handshake", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			tool := at("https://" + canary + ".invalid/")
			tool.wire.dial = func(context.Context, string, string) (net.Conn, error) { return near, nil }
			begun := time.Now()
			wantUnreachable(t, ask(t.Context(), tool), "timed out")
			if took := time.Since(begun); took != dialTimeout {
				t.Errorf("took %v, want %v", took, dialTimeout)
			}
			if _, err := io.Copy(io.Discard, far); err != nil {
				t.Error(err)
			}
		})
	})
}

// Once there is a connection, a time that is over says nothing of what was done.
func TestInterrupted(t *testing.T) {
	for name, part := range map[string]string{
		"before the answer": "", "in its head": "HTTP/1.1 200 OK\r\n", "in its body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := serveRaw(t, func(conn *net.TCPConn, r *bufio.Reader) {
				readRequest(r)
				_, _ = io.WriteString(conn, part)
				cancel()
				_, _ = io.Copy(io.Discard, r) // until the connection is closed
			})
			tool := newHTTP(&HTTP{Method: "POST", URL: s.url, Success: []int{200}})
			defer tool.Close()
			_, err := tool.Invoke(ctx, invocation(1, `{}`))
			wantLost(t, err)
		})
	}
}

// A body that has no end ends at the cap, and the connection with it.
func TestEndlessAnswer(t *testing.T) {
	stopped := make(chan struct{})
	s := serveRaw(t, func(conn *net.TCPConn, r *bufio.Reader) {
		defer close(stopped)
		readRequest(r)
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		for err == nil {
			_, err = io.WriteString(conn, strings.Repeat("a", 64<<10))
		}
	})
	tool := newHTTP(&HTTP{Method: "POST", URL: s.url, Success: []int{200}})
	res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-stopped // though the tool is not closed
	tool.Close()
	if len(res.Output) != idem.MaxOutput || !strings.HasPrefix(string(res.Output), `{"status":200,"truncated":true,"body":"aaa`) {
		t.Errorf("got %.60s… of %d bytes", res.Output, len(res.Output))
	}
}

func TestAnswerAtTheCap(t *testing.T) {
	for _, c := range []struct {
		size int
		want bool // whole
	}{{idem.MaxOutput / 10 * 9, true}, {idem.MaxOutput, true}, {idem.MaxOutput + 1, false}, {idem.MaxOutput / 10 * 11, false}, {idem.MaxOutput * 100, false}} {
		for _, length := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d bytes, length %v", c.size, length), func(t *testing.T) {
				doc := `"` + strings.Repeat("a", c.size-2) + `"`
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if length {
						w.Header().Set("Content-Length", fmt.Sprint(c.size))
					}
					_, _ = io.WriteString(w, doc)
				}))
				defer s.Close()
				tool := newHTTP(&HTTP{Method: "POST", URL: s.URL, Success: []int{200}})
				defer tool.Close()
				res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
				if err != nil {
					t.Fatal(err)
				}
				if whole := string(res.Output) == doc; whole != c.want {
					t.Errorf("whole: %v, want %v", whole, c.want)
				}
				if err := res.Validate(); err != nil || !c.want && len(res.Output) != idem.MaxOutput {
					t.Errorf("%d bytes, %v", len(res.Output), err)
				}
			})
		}
	}
}

// An answer may come while the request is still being sent. It counts, and what is
// still sent is not args, which are the caller's again when the tool returns.
func TestEarlyAnswer(t *testing.T) {
	s := serveRaw(t, func(conn *net.TCPConn, r *bufio.Reader) {
		_, _ = r.ReadByte()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = io.Copy(io.Discard, r)
	})
	tool := newHTTP(&HTTP{Method: "POST", URL: s.url, Success: []int{200}})
	defer tool.Close()
	inv := invocation(1, `"`+strings.Repeat("a", 64<<20)+`"`) // longer under way than the transport waits
	if _, err := tool.Invoke(t.Context(), inv); err != nil {
		t.Error(err)
	}
	sent, err := tool.payload(inv.Args, inv.EffectID)
	clear(inv.Args)
	if err != nil || sent[0] != '"' || sent[len(sent)-1] != '"' {
		t.Errorf("what is sent lies in args, %v", err)
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.Proto) }))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	tool := newHTTP(&HTTP{Method: "POST", URL: s.URL, Success: []int{200}})
	defer tool.Close()
	tool.wire.tls.RootCAs = x509.NewCertPool()
	tool.wire.tls.RootCAs.AddCert(s.Certificate())
	res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
	if err != nil || string(res.Output) != `"HTTP/1.1"` {
		t.Errorf("got %s, %v; want HTTP/1.1, though HTTP/2 is there", res.Output, err)
	}
}

// Connections are kept where requests have a body, and only there.
func TestKeptConnections(t *testing.T) {
	for method, want := range map[string]int64{"POST": 1, "DELETE": 1, "GET": 3, "HEAD": 3} {
		t.Run(method, func(t *testing.T) {
			var conns atomic.Int64
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			}
			s.Start()
			defer s.Close()
			tool := newHTTP(&HTTP{Method: method, URL: s.URL, Success: []int{200}})
			defer tool.Close()
			for range 3 {
				if _, err := tool.Invoke(t.Context(), invocation(1, `{}`)); err != nil {
					t.Fatal(err)
				}
			}
			if n := conns.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
			if tool.wire.transport.Proxy != nil {
				t.Error("a proxy may come from the environment")
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 600e6, time.UTC)
	for name, c := range map[string]struct {
		value, date string
		want        time.Duration
	}{
		"none":                      {"", "", 0},
		"seconds":                   {"120", "", 120 * time.Second},
		"blanks":                    {" 7 ", "", 7 * time.Second},
		"zero":                      {"0", "", 0},
		"a day":                     {"86400", "", 24 * time.Hour},
		"over a day":                {"86401", "", 24 * time.Hour},
		"beyond all numbers":        {"99999999999999999999999", "", 24 * time.Hour},
		"below zero":                {"-1", "", 0},
		"a fraction":                {"1.5", "", 0},
		"a word":                    {"soon", "", 0},
		"a date":                    {"Wed, 02 Jan 2030 03:05:05 GMT", "", time.Minute},
		"a date, by its own clock":  {"Wed, 02 Jan 2030 03:05:05 GMT", "Wed, 02 Jan 2030 03:05:00 GMT", 5 * time.Second},
		"a date, by a broken clock": {"Wed, 02 Jan 2030 03:05:05 GMT", "yesterday", time.Minute},
		"a date that is over":       {"Wed, 02 Jan 2030 03:00:00 GMT", "", 0},
		"a date far away":           {"Wed, 02 Jan 2040 03:05:05 GMT", "", 24 * time.Hour},
		"a date beyond durations":   {"Wed, 02 Jan 9999 03:05:05 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
			if got := retryAfter(h, now); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
