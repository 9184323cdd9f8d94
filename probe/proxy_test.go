package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience ends a test that would hang; nothing is timed by it.
const patience = 20 * time.Second

// origin is a service that keeps what it was asked.
type origin struct {
	*httptest.Server
	mu   sync.Mutex
	seen []seen
}

type seen struct {
	line, host, body string
	header, trailer  http.Header
	length           int64
	chunked          bool
}

// newOrigin counts each request, once its body has been read, and then lets
// answer answer the n-th.
func newOrigin(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *origin {
	t.Helper()
	o := &origin{}
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		o.mu.Lock()
		o.seen = append(o.seen, seen{
			r.Method + " " + r.RequestURI, r.Host, string(body), r.Header, r.Trailer, r.ContentLength,
			slices.Contains(r.TransferEncoding, "chunked"),
		})
		n := len(o.seen)
		o.mu.Unlock()
		answer(n, w, r)
	}))
	o.Config.DisableGeneralOptionsHandler = true
	o.Start()
	t.Cleanup(o.Close)
	return o
}

func (o *origin) asked() []seen {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.seen)
}

func numbered(n int, w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintf(w, "answer %d", n)
}

func startProxy(t *testing.T, upstream string, rules ...Rule) *Proxy {
	t.Helper()
	return startProxyWith(t, ProxyOptions{Upstream: upstream, Rules: rules})
}

func startProxyWith(t *testing.T, o ProxyOptions) *Proxy {
	t.Helper()
	p, err := NewProxy(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// wire is a client's connection, by hand.
type wire struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

// dial connects to where a service of this package listens.
func dial(t *testing.T, url string) *wire {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &wire{t, c, bufio.NewReader(c)}
}

func (w *wire) send(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		w.t.Fatal(err)
	}
}

func post(key, body string) string {
	return fmt.Sprintf("POST /x HTTP/1.1\r\nHost: h\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
}

// read reads an answer. err says how its body ended.
func (w *wire) read(method string) (status int, body string, err error) {
	w.t.Helper()
	resp, err := http.ReadResponse(w.r, &http.Request{Method: method})
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func (w *wire) want(status int, body string) {
	w.t.Helper()
	gotStatus, gotBody, err := w.read("POST")
	if err != nil || gotStatus != status || gotBody != body {
		w.t.Errorf("%d %q, %v; want %d %q", gotStatus, gotBody, err, status, body)
	}
}

// wantEnd wants the connection to end without another byte, in order or reset.
func (w *wire) wantEnd(reset bool) {
	w.t.Helper()
	b, err := io.ReadAll(w.r)
	if len(b) > 0 || errors.Is(err, syscall.ECONNRESET) != reset || err != nil && !reset {
		w.t.Errorf("%q, %v; want nothing, reset: %v", b, err, reset)
	}
}

// over closes the proxy and wants its counts.
func over(t *testing.T, p *Proxy, want Summary) {
	t.Helper()
	p.Close()
	if want.Faults == nil {
		want.Faults = map[Mode]int64{}
	}
	if got := p.Summary(); !reflect.DeepEqual(got, want) {
		t.Errorf("counted\n%+v, want\n%+v", got, want)
	}
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// Each mode hits the first of two exchanges. What the proxy counts and what
// upstream has seen must agree.
func TestProxyModes(t *testing.T) {
	for _, tc := range []struct {
		fault string
		want  func(w *wire) // of the exchange that is hit
		keeps bool          // the connection
		sum   Summary       // of that exchange
	}{
		{"pass", func(w *wire) { w.want(200, "answer 1") }, true,
			Summary{UpstreamRequests: 1, UpstreamAnswers: 1, Delivered: 1}},
		{"drop-request", func(w *wire) { w.wantEnd(false) }, false, Summary{}},
		{"reset-request", func(w *wire) { w.wantEnd(true) }, false, Summary{}},
		{"fail-before=503", func(w *wire) { w.want(503, "idemd proxy: fail-before=503\n") }, true, Summary{OwnAnswers: 1}},
		{"fail-before=429", func(w *wire) { w.want(429, "idemd proxy: fail-before=429\n") }, true, Summary{OwnAnswers: 1}},
		{"drop-response", func(w *wire) { w.wantEnd(false) }, false, Summary{UpstreamRequests: 1, UpstreamAnswers: 1}},
		{"reset", func(w *wire) { w.wantEnd(true) }, false, Summary{UpstreamRequests: 1, UpstreamAnswers: 1}},
		{"delay-response=1ms", func(w *wire) { w.want(200, "answer 1") }, true,
			Summary{UpstreamRequests: 1, UpstreamAnswers: 1, Delivered: 1}},
		{"duplicate-request", func(w *wire) { w.want(200, "answer 2") }, true,
			Summary{UpstreamRequests: 2, UpstreamAnswers: 2, Delivered: 1}},
		{"half-body", func(w *wire) {
			if status, body, err := w.read("POST"); status != 200 || body != "answ" || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d %q %v", status, body, err)
			}
			w.wantEnd(false)
		}, false, Summary{UpstreamRequests: 1, UpstreamAnswers: 1}},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			o := newOrigin(t, numbered)
			f, err := ParseFault(tc.fault)
			if err != nil || f.String() != tc.fault {
				t.Fatal(f, err)
			}
			p := startProxy(t, o.URL, Rule{Faults: []Fault{f}, First: 1, Methods: []string{"POST"}, Path: "/x"})
			w := dial(t, p.URL())
			w.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n" + "POST /y HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n") // neither matches
			w.want(200, "answer 1")
			w.want(200, "answer 2")
			o.mu.Lock()
			o.seen = nil
			o.mu.Unlock()

			w.send(post("k", "body"))
			tc.want(w)
			hit := o.asked()
			if int64(len(hit)) != tc.sum.UpstreamRequests {
				t.Errorf("upstream saw %d requests", len(hit))
			}
			for _, s := range hit {
				if s.line != "POST /x" || s.body != "body" || s.header.Get("Idempotency-Key") != "k" || s.length != 4 {
					t.Errorf("upstream saw %+v", s)
				}
			}
			if !tc.keeps {
				w = dial(t, p.URL())
			}
			w.send(post("k", "again"))
			w.want(200, fmt.Sprintf("answer %d", len(hit)+1))

			sum := tc.sum
			sum.Requests += 4
			sum.UpstreamRequests += 3
			sum.UpstreamAnswers += 3
			sum.Delivered += 3
			if f.Mode != Pass {
				sum.Faults = map[Mode]int64{f.Mode: 1}
			}
			over(t, p, sum)
		})
	}
}

func TestProxyPassesEverythingOn(t *testing.T) {
	o := newOrigin(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["X-Two"] = []string{"a", "b"}
		h["Date"], h["Content-Type"] = nil, nil
		h.Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "<html>")
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, "rest")
		h.Set("X-Sum", r.Trailer.Get("X-In"))
	})
	p := startProxy(t, o.URL)
	w := dial(t, p.URL())
	for _, target := range []string{"/a%2Fb/..//%7e?q=%zz&&", "//x//y?", "/"} {
		w.send("PUT " + target + " HTTP/1.1\r\nhost: h\r\nx-two: a\r\nX-Two: b\r\nTE: trailers\r\nConnection: x-hop\r\nX-Hop: 1\r\n" +
			"Transfer-Encoding: chunked\r\nTrailer: X-In\r\n\r\n3\r\nabc\r\n2;e=1\r\nde\r\n0\r\nX-In: 7\r\n\r\n")
		resp, err := http.ReadResponse(w.r, &http.Request{Method: http.MethodPut})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusCreated || string(body) != "<html>rest" || resp.Trailer.Get("X-Sum") != "7" {
			t.Errorf("%d %q %v, %v", resp.StatusCode, body, resp.Trailer, err)
		}
		if want := (http.Header{"X-Two": {"a", "b"}}); !reflect.DeepEqual(resp.Header, want) {
			t.Errorf("%v, want %v", resp.Header, want)
		}
		got := o.asked()[len(o.asked())-1]
		want := seen{"PUT " + target, strings.TrimPrefix(o.URL, "http://"), "abcde",
			http.Header{"X-Two": {"a", "b"}, "Connection": {"close"}}, http.Header{"X-In": {"7"}}, -1, true}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("upstream saw\n%+v, want\n%+v", got, want)
		}
	}
	// A client that takes this for its forward proxy, and one of old.
	w.send("GET http://elsewhere/p?q HTTP/1.0\r\n\r\n")
	if status, body, err := w.read("GET"); status != 201 || body != "<html>rest" || err != nil {
		t.Error(status, body, err)
	}
	if got := o.asked()[3]; got.line != "GET /p?q" || got.length != 0 || got.chunked || len(got.header) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestEndToEnd(t *testing.T) {
	h := http.Header{
		"Connection": {"close, x-a ,X-B", "X-C"}, "X-A": {"1"}, "X-B": {"1"}, "X-C": {"1"}, "X-D": {"1", "2"}, "Keep-Alive": {"1"},
		"Te": {"trailers"}, "Transfer-Encoding": {"chunked"}, "Upgrade": {"h2c"}, "Trailer": {"X"}, "Proxy-Connection": {"close"},
	}
	if got, want := endToEnd(h), (http.Header{"X-D": {"1", "2"}}); !reflect.DeepEqual(got, want) || len(h) != 11 {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestProxyHead(t *testing.T) {
	o := newOrigin(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", "1000")
		}
		w.Header().Set("Etag", "x")
	})
	p := startProxy(t, o.URL, Rule{Faults: []Fault{{Mode: HalfBody}}, Path: "/half"})
	w := dial(t, p.URL())
	for range 2 {
		w.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(w.r, &http.Request{Method: http.MethodHead})
		if err != nil || resp.ContentLength != 1000 || resp.Header.Get("Etag") != "x" {
			t.Fatalf("%+v, %v", resp, err)
		}
	}
	w.send("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n")
	if status, _, err := w.read("HEAD"); status != 200 || err != nil {
		t.Error(status, err)
	}
	if got := o.asked()[2].line; got != "OPTIONS *" {
		t.Error(got)
	}
	w.send("HEAD /half HTTP/1.1\r\nHost: h\r\n\r\n") // has no body to cut
	w.wantEnd(false)
	w = dial(t, p.URL())
	w.send("CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n")
	w.want(501, "idemd proxy: this proxy makes no tunnels\n")
	over(t, p, Summary{Requests: 5, UpstreamRequests: 4, UpstreamAnswers: 4, Delivered: 3, OwnAnswers: 1, Faults: map[Mode]int64{HalfBody: 1}})
}

// What upstream sends is passed on as it comes, however long it goes on, and so
// is what the client sends.
func TestProxyStreams(t *testing.T) {
	next := make(chan string)
	stream := newRaw(t, func(c *wire) {
		r, err := http.ReadRequest(c.r)
		if err != nil {
			return
		}
		c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for s := range next {
			c.send(fmt.Sprintf("%x\r\n%s\r\n", len(s), s))
		}
		b := make([]byte, 1) // as it comes
		for {
			n, err := r.Body.Read(b)
			if n > 0 {
				c.send(fmt.Sprintf("1\r\n%s\r\n", b[:n]))
			}
			if err != nil {
				break
			}
		}
		c.send("0\r\n\r\n")
	})
	p := startProxy(t, stream.url)
	w := dial(t, p.URL())
	w.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
	resp, err := http.ReadResponse(w.r, &http.Request{Method: http.MethodPost})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	read := func(want string) {
		t.Helper()
		if n, err := io.ReadFull(resp.Body, b[:len(want)]); err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v; want %q", b[:n], err, want)
		}
	}
	for _, s := range []string{"{\"a\":1}\n", "{\"a\":2}\n"} {
		next <- s
		read(s) // before the next one is there
	}
	close(next)
	for _, s := range []string{"p", "q"} {
		w.send("1\r\n" + s + "\r\n")
		read(s) // before the request has ended
	}
	w.send("0\r\n\r\n")
	if _, err := resp.Body.Read(b); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	over(t, p, Summary{Requests: 1, UpstreamRequests: 1, UpstreamAnswers: 1, Delivered: 1})
}

// raw is an upstream by hand. Each connection is given to serve and then closed.
type raw struct {
	url   string
	conns func() int
}

func newRaw(t *testing.T, serve func(c *wire)) raw {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		n     int
		conns sync.WaitGroup
	)
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			n++
			mu.Unlock()
			conns.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(&wire{t, c, bufio.NewReader(c)})
			})
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return raw{"http://" + l.Addr().String(), func() int { mu.Lock(); defer mu.Unlock(); return n }}
}

// One exchange is one request on the wire, also where upstream closes after it
// has read the request: on the first connection and on later ones, with and
// without a body, and with a key, which net/http takes for leave to send again.
func TestProxySendsOnce(t *testing.T) {
	for _, head := range []string{"GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n"} {
		t.Run(head[:4], func(t *testing.T) {
			alive := true
			up := newRaw(t, func(c *wire) {
				for {
					if _, err := http.ReadRequest(c.r); err != nil || !alive {
						return
					}
					alive = false
					c.send("HTTP/1.1 204 No Content\r\n\r\n") // and kept alive
				}
			})
			p := startProxy(t, up.url)
			w := dial(t, p.URL())
			w.send(head + "Host: h\r\n\r\n")
			w.want(204, "")
			w.send(head + "Host: h\r\n\r\n")
			w.wantEnd(false)
			if n := up.conns(); n != 2 {
				t.Errorf("%d requests on the wire", n)
			}
			over(t, p, Summary{Requests: 2, UpstreamRequests: 2, UpstreamAnswers: 1, Delivered: 1, UpstreamFailures: 1})
		})
	}
}

func TestProxyBrokenUpstream(t *testing.T) {
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for _, tc := range []struct {
		name, bytes string
		status      int
		body        string // before the connection is closed
	}{
		{"no answer", "", 0, ""},
		{"no HTTP", "hello\r\n\r\n", 0, ""},
		{"half a head", whole[:20], 0, ""},
		{"half a body", whole[:len(whole)-1], 200, "o"},
		{"half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no", 200, "o"},
		{"a switch of protocols", "HTTP/1.1 101 Switching Protocols\r\n\r\n", 0, ""},
		{"an endless head", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxHead) + "\r\n\r\n", 0, ""},
		{"endless interim answers", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", maxHead/20), 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			up := newRaw(t, func(c *wire) {
				if _, err := http.ReadRequest(c.r); err == nil {
					_, _ = io.WriteString(c, tc.bytes)
				}
			})
			p := startProxy(t, up.url)
			w := dial(t, p.URL())
			w.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			status, body, err := w.read("GET")
			if status != tc.status || body != tc.body || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d %q %v", status, body, err)
			}
			over(t, p, Summary{Requests: 1, UpstreamRequests: 1, UpstreamFailures: 1})
		})
	}
	t.Run("not there", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		p := startProxy(t, "http://"+l.Addr().String())
		w := dial(t, p.URL())
		for range 2 {
			w.send(post("k", "body"))
			w.want(502, "idemd proxy: cannot connect to upstream\n")
		}
		over(t, p, Summary{Requests: 2, OwnAnswers: 2})
	})
}

func TestProxyExpect(t *testing.T) {
	const expecting = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
	o := newOrigin(t, numbered)
	t.Run("asked for", func(t *testing.T) {
		p := startProxy(t, o.URL)
		w := dial(t, p.URL())
		for n := range 2 {
			w.send(expecting)
			if status, _, err := w.read("POST"); status != 100 || err != nil {
				t.Fatal(status, err)
			}
			w.send("body")
			w.want(200, fmt.Sprintf("answer %d", n+1))
		}
		if h := o.asked()[0].header; h.Get("Expect") != "100-continue" {
			t.Error(h)
		}
	})
	t.Run("refused", func(t *testing.T) {
		up := newRaw(t, func(c *wire) {
			if _, err := http.ReadRequest(c.r); err == nil {
				c.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
			}
		})
		p := startProxy(t, up.url)
		w := dial(t, p.URL())
		w.send(expecting)
		w.want(413, "") // and no 100 before it
		w.wantEnd(false)
	})
	t.Run("never said", func(t *testing.T) { // the only test that waits: continueTime
		up := newRaw(t, func(c *wire) {
			r, err := http.ReadRequest(c.r)
			if err != nil {
				return
			}
			b, _ := io.ReadAll(r.Body)
			c.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b))
		})
		p := startProxy(t, up.url)
		w := dial(t, p.URL())
		w.send(expecting)
		if status, _, err := w.read("POST"); status != 100 || err != nil {
			t.Fatal(status, err)
		}
		w.send("body")
		w.want(200, "body")
	})
}

// Upstream answers before it has the body: the answer is delivered, and the
// connection goes on if the rest of the request came.
func TestProxyEarlyAnswer(t *testing.T) {
	for _, tc := range []struct {
		mode Mode
		sum  Summary
	}{
		{Pass, Summary{Delivered: 1}},
		{DropResponse, Summary{Faults: map[Mode]int64{DropResponse: 1}}},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			up := newRaw(t, func(c *wire) {
				if _, err := http.ReadRequest(c.r); err == nil {
					c.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
				}
			})
			p := startProxy(t, up.url, Rule{Faults: []Fault{{Mode: tc.mode}}})
			w := dial(t, p.URL())
			w.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
			if tc.mode == Pass {
				w.want(413, "no")
				w.send(strings.Repeat("x", 100000))
				w.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
				w.want(413, "no")
				tc.sum.Requests, tc.sum.UpstreamRequests, tc.sum.UpstreamAnswers, tc.sum.Delivered = 1, 1, 1, 2
			} else {
				w.wantEnd(false)
			}
			tc.sum.Requests++
			tc.sum.UpstreamRequests++
			tc.sum.UpstreamAnswers++
			over(t, p, tc.sum)
		})
	}
}

// A client that leaves takes nothing back that it has sent, and is not waited
// for.
func TestProxyClientLeaves(t *testing.T) {
	for _, tc := range []struct {
		mode Mode
		told bool // upstream sees that the client left
		sum  Summary
	}{
		{Pass, true, Summary{ClientsLeft: 1}},
		{DropResponse, false, Summary{UpstreamAnswers: 1, Faults: map[Mode]int64{DropResponse: 1}}},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			has, left := make(chan struct{}), make(chan bool, 1)
			goOn := make(chan struct{})
			up := newRaw(t, func(c *wire) {
				r, err := http.ReadRequest(c.r)
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := io.ReadAll(r.Body); string(b) != "body" || err != nil {
					t.Errorf("%q, %v", b, err)
				}
				close(has)
				if tc.told {
					_, err := c.r.ReadByte()
					left <- errors.Is(err, io.EOF)
					return
				}
				<-goOn
				_, err = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
				left <- err != nil
			})
			p, err := NewProxy(ProxyOptions{Upstream: up.url, Rules: []Rule{{Faults: []Fault{{Mode: tc.mode}}}}})
			if err != nil {
				t.Fatal(err)
			}
			serve, noticed := p.server.Handler, make(chan (<-chan struct{}), 1)
			p.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				noticed <- r.Context().Done()
				serve.ServeHTTP(w, r)
			})
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			w := dial(t, p.URL())
			w.send(post("k", "body"))
			<-has
			w.Close()
			<-<-noticed
			close(goOn)
			if got := <-left; got != tc.told {
				t.Errorf("upstream saw the client leave: %v", got)
			}
			if err := p.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			tc.sum.Requests, tc.sum.UpstreamRequests = 1, 1
			over(t, p, tc.sum)
		})
	}
	t.Run("in the middle of its request", func(t *testing.T) {
		has, ended := make(chan struct{}), make(chan error)
		up := newRaw(t, func(c *wire) {
			r, err := http.ReadRequest(c.r)
			if err == nil {
				close(has)
				_, err = io.ReadAll(r.Body)
			}
			ended <- err
		})
		p := startProxy(t, up.url)
		w := dial(t, p.URL())
		w.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo")
		<-has
		w.Close()
		if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		over(t, p, Summary{Requests: 1, UpstreamRequests: 1, ClientsLeft: 1})
	})
	t.Run("in the middle of what should be duplicated", func(t *testing.T) {
		o := newOrigin(t, numbered)
		p := startProxy(t, o.URL, Rule{Faults: []Fault{{Mode: DuplicateRequest}}})
		w := dial(t, p.URL())
		w.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
		if status, _, err := w.read("POST"); status != 100 || err != nil {
			t.Fatal(status, err) // it is in hand now
		}
		w.send("bo")
		w.Close()
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(o.asked()); n != 0 {
			t.Errorf("upstream saw %d requests", n)
		}
		over(t, p, Summary{Requests: 1, ClientsLeft: 1, Faults: map[Mode]int64{DuplicateRequest: 1}})
	})
	t.Run("while its answer is delayed", func(t *testing.T) {
		answered := make(chan struct{})
		o := newOrigin(t, func(int, http.ResponseWriter, *http.Request) { close(answered) })
		p := startProxy(t, o.URL, Rule{Faults: []Fault{{Mode: DelayResponse, Delay: time.Hour}}})
		w := dial(t, p.URL())
		w.send(post("k", "body"))
		<-answered
		w.Close()
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		over(t, p, Summary{Requests: 1, UpstreamRequests: 1, ClientsLeft: 1, Faults: map[Mode]int64{DelayResponse: 1}})
	})
}

func TestProxyBounds(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", MaxHeld/4) // four times as much as is held
	t.Run("half of a large body", func(t *testing.T) {
		o := newOrigin(t, func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, big) })
		p := startProxy(t, o.URL, Rule{Faults: []Fault{{Mode: HalfBody}}})
		w := dial(t, p.URL())
		w.send(post("k", ""))
		resp, err := http.ReadResponse(w.r, nil)
		if err != nil || resp.ContentLength != int64(len(big)) {
			t.Fatal(resp, err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != big[:MaxHeld] || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	})
	t.Run("duplicate of a large body", func(t *testing.T) {
		o := newOrigin(t, numbered)
		p := startProxy(t, o.URL, Rule{Faults: []Fault{{Mode: DuplicateRequest}}})
		w := dial(t, p.URL())
		w.send(post("k", big))
		w.want(200, "answer 1")
		w.send(post("k", big[:MaxHeld]))
		w.want(200, "answer 3")
		if got := o.asked(); got[0].body != big || got[1].body != big[:MaxHeld] || got[2].body != got[1].body {
			t.Error("bodies were changed")
		}
		over(t, p, Summary{Requests: 2, UpstreamRequests: 3, UpstreamAnswers: 3, Delivered: 2, NotDuplicated: 1,
			Faults: map[Mode]int64{DuplicateRequest: 2}})
	})
	t.Run("a body that nobody wants", func(t *testing.T) {
		up := newRaw(t, func(c *wire) {
			if _, err := http.ReadRequest(c.r); err == nil {
				c.send("HTTP/1.1 413 Content Too Large\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n")
			}
		})
		for mode, want := range map[Fault]string{{Mode: Pass}: "no", {Mode: FailBefore, Status: 413}: "idemd proxy: fail-before=413\n"} {
			p := startProxy(t, up.url, Rule{Faults: []Fault{mode}})
			w := dial(t, p.URL())
			w.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
			go func() { // more than is thrown away; a request in it must not be seen
				_, err := io.WriteString(w, strings.Repeat("x", maxUnwanted+1))
				for err == nil {
					_, err = io.WriteString(w, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
				}
			}()
			w.want(413, want)
			_, _ = io.Copy(io.Discard, w.r) // to its end, however it ends
			p.Close()
			if n := p.Summary().Requests; n != 1 {
				t.Errorf("%d requests", n)
			}
		}
	})
	t.Run("connections", func(t *testing.T) {
		o := newOrigin(t, numbered)
		p := startProxyWith(t, ProxyOptions{Upstream: o.URL, MaxConns: 1})
		first, second := dial(t, p.URL()), dial(t, p.URL())
		first.send(post("k", ""))
		first.want(200, "answer 1")
		second.send(post("k", "")) // waits in the backlog
		first.send(post("k", "first"))
		first.want(200, "answer 2")
		first.Close()
		second.want(200, "answer 3")
		p.Close() // while nobody waits for a place
	})
	t.Run("connections when it closes", func(t *testing.T) {
		o := newOrigin(t, numbered)
		p := startProxyWith(t, ProxyOptions{Upstream: o.URL, MaxConns: 1})
		first := dial(t, p.URL())
		first.send(post("k", ""))
		first.want(200, "answer 1") // the listener waits for a place
		p.Close()
		first.wantEnd(false)
	})
	t.Run("a head that is too large", func(t *testing.T) {
		o := newOrigin(t, numbered)
		p := startProxy(t, o.URL)
		w := dial(t, p.URL())
		go func() { _, _ = io.WriteString(w, "GET / HTTP/1.1\r\nA: "+strings.Repeat("a", 2*maxHead)) }()
		if status, _, _ := w.read("GET"); status != 431 {
			t.Error(status)
		}
		over(t, p, Summary{})
	})
	t.Run("a client that stops sending", func(t *testing.T) {
		o := newOrigin(t, numbered)
		p := startProxyWith(t, ProxyOptions{Upstream: o.URL, Timeout: 400 * time.Millisecond})
		w := dial(t, p.URL())
		w.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo")
		w.wantEnd(false)
		if n := len(o.asked()); n != 0 {
			t.Errorf("upstream took %d requests", n)
		}
		over(t, p, Summary{Requests: 1, UpstreamRequests: 1, ClientsLeft: 1})
	})
	t.Run("a client that stops sending what is not passed on", func(t *testing.T) {
		p := startProxyWith(t, ProxyOptions{
			Upstream: "http://127.0.0.1:1", Timeout: 50 * time.Millisecond, Rules: []Rule{{Faults: []Fault{{Mode: FailBefore, Status: 503}}}},
		})
		w := dial(t, p.URL())
		w.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo")
		w.want(503, "idemd proxy: fail-before=503\n")
		w.wantEnd(false)
	})
	t.Run("an upstream that answers and reads nothing", func(t *testing.T) {
		over := make(chan struct{})
		up := newRaw(t, func(c *wire) {
			if _, err := http.ReadRequest(c.r); err == nil {
				c.send("HTTP/1.1 204 No Content\r\n\r\n")
				<-over
			}
		})
		p := startProxy(t, up.url, Rule{Faults: []Fault{{Mode: DropResponse}}})
		w := dial(t, p.URL())
		w.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
		go func() { _, _ = io.WriteString(w, strings.Repeat("x", 100_000_000)) }()
		if _, err := io.Copy(io.Discard, w.r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("it was waited for")
		}
		close(over)
	})
	t.Run("a client that stops reading", func(t *testing.T) {
		gone := make(chan error)
		up := newRaw(t, func(c *wire) {
			_, err := http.ReadRequest(c.r)
			if err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			}
			for err == nil {
				_, err = io.WriteString(c, big)
			}
			gone <- err
		})
		p := startProxyWith(t, ProxyOptions{Upstream: up.url, Timeout: 200 * time.Millisecond})
		w := dial(t, p.URL())
		w.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		if err := <-gone; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("upstream was kept waiting")
		}
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		over(t, p, Summary{Requests: 1, UpstreamRequests: 1, ClientsLeft: 1})
	})
	t.Run("an upstream that stops answering", func(t *testing.T) {
		up := newRaw(t, func(c *wire) { _, _ = io.Copy(io.Discard, c) })
		p := startProxyWith(t, ProxyOptions{Upstream: up.url, Timeout: 50 * time.Millisecond})
		w := dial(t, p.URL())
		w.send(post("k", "body"))
		w.wantEnd(false)
		over(t, p, Summary{Requests: 1, UpstreamRequests: 1, UpstreamFailures: 1})
	})
}

// An exchange that hangs does not keep the proxy from closing, wherever it hangs.
func TestProxyShutdown(t *testing.T) {
	up := newRaw(t, func(c *wire) { _, _ = io.Copy(io.Discard, c) })
	for _, mode := range []Mode{Pass, DropResponse, DuplicateRequest} {
		for name, rest := range map[string]string{"answer": "dy", "request": ""} {
			t.Run(string(mode)+", waits for the "+name, func(t *testing.T) {
				p := startProxy(t, up.url, Rule{Faults: []Fault{{Mode: mode}}})
				w := dial(t, p.URL())
				w.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
				if status, _, err := w.read("POST"); status != 100 || err != nil {
					t.Fatal(status, err) // it is under way
				}
				w.send("bo" + rest)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := p.Shutdown(ctx); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if err := p.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Run("waits for what ends", func(t *testing.T) {
		has, goOn := make(chan struct{}), make(chan struct{})
		o := newOrigin(t, func(int, http.ResponseWriter, *http.Request) { close(has); <-goOn })
		p := startProxy(t, o.URL)
		w := dial(t, p.URL())
		w.send(post("k", ""))
		<-has
		end := make(chan error)
		go func() { end <- p.Shutdown(t.Context()) }()
		close(goOn)
		w.want(200, "")
		if err := <-end; err != nil {
			t.Error(err)
		}
		over(t, p, Summary{Requests: 1, UpstreamRequests: 1, UpstreamAnswers: 1, Delivered: 1})
	})
	t.Run("delay", func(t *testing.T) {
		answered := make(chan struct{})
		o := newOrigin(t, func(int, http.ResponseWriter, *http.Request) { close(answered) })
		p := startProxy(t, o.URL, Rule{Faults: []Fault{{Mode: DelayResponse, Delay: time.Hour}}})
		w := dial(t, p.URL())
		w.send(post("k", ""))
		<-answered
		p.Close()
		w.wantEnd(false)
	})
	t.Run("before it has served", func(t *testing.T) {
		p, err := NewProxy(ProxyOptions{Upstream: up.url})
		if err != nil || p.URL() != "" {
			t.Fatal(err)
		}
		p.Close()
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Serve(l); err != nil {
			t.Error(err)
		}
	})
}

func TestProxyListenerFails(t *testing.T) {
	p, err := NewProxy(ProxyOptions{Upstream: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := p.Serve(l); !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "probe: ") {
		t.Error(err)
	}
	p.Close()
}

func TestProxyTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	defer srv.Close()
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	for _, conf := range []*tls.Config{nil, {RootCAs: roots}} {
		p := startProxyWith(t, ProxyOptions{Upstream: srv.URL, TLS: conf})
		w := dial(t, p.URL())
		w.send(post("k", "body"))
		if conf == nil {
			w.want(502, "idemd proxy: cannot connect to upstream\n")
		} else {
			w.want(200, "HTTP/1.1")
		}
	}
}

// Every try is in the log, and no key in full.
func TestProxyLog(t *testing.T) {
	var log bytes.Buffer
	o := newOrigin(t, numbered)
	p := startProxyWith(t, ProxyOptions{
		Upstream: o.URL, Rules: []Rule{{Faults: []Fault{{Mode: DropResponse}}, FirstPerKey: 1}},
		Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	w := dial(t, p.URL())
	w.send(post("secret-key-of-1", "body"))
	w.wantEnd(false)
	w = dial(t, p.URL())
	w.send(post("secret-key-of-1", "body"))
	w.want(200, "answer 2")
	p.Close()
	var lines []map[string]any
	for line := range bytes.Lines(log.Bytes()) {
		var l map[string]any
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		delete(l, "time")
		delete(l, "took")
		lines = append(lines, l)
	}
	// A line is written when the client may know already how its exchange ended.
	slices.SortFunc(lines, func(a, b map[string]any) int { return cmp.Compare(a["n"].(float64), b["n"].(float64)) })
	want := func(n float64, fault, outcome string) map[string]any {
		return map[string]any{
			"level": "INFO", "msg": "exchange", "n": n, "method": "POST", "path": "/x", "key": "secret-k", "fault": fault,
			"upstream_requests": 1.0, "upstream_status": 200.0, "outcome": outcome,
		}
	}
	if w := []map[string]any{want(1, "drop-response", "closed"), want(2, "pass", "delivered")}; !reflect.DeepEqual(lines, w) {
		t.Errorf("%v\nwant %v", lines, w)
	}
}
