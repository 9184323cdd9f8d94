package client

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// rude is a server on a raw socket. It answers the first request of a connection
// and keeps that alive; it reads the second one, and closes without an answer.
type rude struct {
	url string

	mu       sync.Mutex
	conns    int
	requests []string
}

func newRude(t *testing.T) *rude {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rude{url: "http://" + l.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			s.mu.Unlock()
			all.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return s
}

func (s *rude) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := 0; n < 2; n++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, r.Method)
		s.mu.Unlock()
		if n == 0 {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		}
	}
}

func (s *rude) seen() (requests, conns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests), s.conns
}

// raw is a server that reads one request of each connection, writes bytes, and then
// closes the connection, or leaves that to the client.
func raw(t *testing.T, answer string, leave bool) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				if r, err := http.ReadRequest(in); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
				}
				_, _ = io.WriteString(conn, answer)
				if leave {
					_, _ = io.Copy(io.Discard, in)
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return "http://" + l.Addr().String()
}

// What no honest server sends is no answer, and nobody waits for its end.
func TestHostileAnswers(t *testing.T) {
	held := refusalDoc("outcome_unknown")
	for _, tc := range []struct {
		name, answer string
		leave        bool
		effect       idem.Doubt
		code         idem.Code
	}{
		{"another protocol", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", true, idem.DoubtUnknown, CodeNoAnswer},
		{"half a refusal that does not tell its end", "HTTP/1.0 409 Conflict\r\n\r\n" + held[:len(held)/2], false, idem.DoubtUnknown, CodeNoAnswer},
		{"none of a refusal that does not tell its end", "HTTP/1.0 409 Conflict\r\n\r\n", false, idem.DoubtUnknown, CodeNoAnswer},
		{"a refusal that does not tell its end", "HTTP/1.0 422 No\r\n\r\n" + refusalDoc("invalid_arguments"), false, idem.DoubtNone, idem.CodeInvalidArguments},
		{"somebody's page that does not tell its end", "HTTP/1.0 404 Not Found\r\n\r\n<p>no", false, idem.DoubtNone, CodeNotIdemd},
		{"headers without an end", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 1100), true, idem.DoubtUnknown, CodeNoAnswer},
		{"a chunk that is cut off", "HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"err\r\n", false, idem.DoubtUnknown, CodeNoAnswer},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", false, idem.DoubtUnknown, CodeNoAnswer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := swift()
			p.Timeout = time.Minute
			_, err := newClient(t, raw(t, tc.answer, tc.leave), Options{Policy: p}).Submit(t.Context(), charge("k", "1"))
			var e *Error
			if !errors.As(err, &e) || e.Effect != tc.effect || e.Code != tc.code {
				t.Errorf("%+v", err)
			}
		})
	}
}

// C30: one try is one request on the wire, also when a connection that is used
// again dies after the request was read.
func TestTransportSendsOnce(t *testing.T) {
	post := func(u string) *http.Request {
		r, _ := http.NewRequest(http.MethodPost, u, strings.NewReader("{}")) // it has GetBody
		r.Header.Set("Idempotency-Key", "k")
		return r
	}
	bodyless := func(u string) *http.Request {
		r, _ := http.NewRequest(http.MethodPost, u, nil)
		r.Header.Set("Idempotency-Key", "k")
		return r
	}
	get := func(u string) *http.Request {
		r, _ := http.NewRequest(http.MethodGet, u, nil)
		return r
	}
	for _, tc := range []struct {
		name            string
		plain           bool // Go's own transport, to see that the test can fail
		request         func(string) *http.Request
		requests, conns int
		lost            bool // is the second answer
	}{
		{"Go re-sends a POST", true, post, 3, 2, false},
		{"Go re-sends a POST without a body", true, bodyless, 3, 2, false},
		{"Go re-sends a GET", true, get, 3, 2, false},
		{"a POST uses the connection again, and is sent once", false, post, 2, 1, true},
		{"a POST without a body has a connection of its own", false, bodyless, 2, 2, false},
		{"a GET has a connection of its own", false, get, 2, 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newRude(t)
			var rt http.RoundTripper
			if tc.plain {
				plain := &http.Transport{}
				defer plain.CloseIdleConnections()
				rt = plain
			} else {
				ours := NewTransport()
				defer ours.CloseIdleConnections()
				rt = ours
			}
			for n := range 2 {
				req := tc.request(s.url)
				resp, err := rt.RoundTrip(req)
				if (err != nil) != (tc.lost && n == 1) {
					t.Fatalf("request %d: %v", n+1, err)
				}
				if errors.Is(err, ErrNotSent) {
					t.Errorf("what was read is taken for not sent")
				}
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if req.Body != nil && req.GetBody == nil {
					t.Error("the caller's request was changed")
				}
			}
			if requests, conns := s.seen(); requests != tc.requests || conns != tc.conns {
				t.Errorf("%d requests on %d connections, want %d on %d", requests, conns, tc.requests, tc.conns)
			}
		})
	}
}

func TestTransportKnowsWhatWasNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	c := NewTransport()
	defer c.CloseIdleConnections()
	for _, u := range []string{nobody, "http://idemd.invalid"} {
		req, _ := http.NewRequest(http.MethodPost, u, strings.NewReader("{}"))
		if resp, err := c.RoundTrip(req); !errors.Is(err, ErrNotSent) {
			t.Errorf("%s: %v, %v", u, resp, err)
		}
	}
}
