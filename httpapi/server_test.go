package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

const chargeBody = `{"tool":"charge","args":{}}`

func TestOptions(t *testing.T) {
	if err := (Options{}).Validate(); err != nil {
		t.Fatal(err)
	}
	// Everything that is wrong is said at once.
	err := Options{
		MaxBody: 1, MaxBodyMemory: -1, MaxInFlight: -1, MaxConns: -5, MaxWait: 1500 * time.Millisecond, ReadTimeout: time.Second,
		ReadHeaderTimeout: 2 * time.Second, WriteTimeout: -1, IdleTimeout: -1, MaxHeaderBytes: 10,
	}.Validate()
	for _, name := range []string{"MaxBody", "MaxBodyMemory", "MaxInFlight", "MaxConns", "MaxWait", "ReadHeaderTimeout", "WriteTimeout", "IdleTimeout", "MaxHeaderBytes"} {
		if err == nil || !strings.Contains(err.Error(), name+" is") {
			t.Errorf("nothing about %s in %v", name, err)
		}
	}
	// A default gives way to the value that it must not exceed.
	if err := (Options{ReadTimeout: time.Second}).Validate(); err != nil {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("New took what Validate refuses")
		}
	}()
	New(&fakeService{}, Options{MaxBody: 1})
}

// Each POST is counted once on arrival, and once more unless the service does it.
func TestCounting(t *testing.T) {
	svc := &fakeService{}
	h := serve(t, svc, Options{})
	count := func(name string, wantRefused ...string) {
		t.Helper()
		if d, r := svc.counted(); d != 1 || fmt.Sprint(r) != fmt.Sprint(wantRefused) {
			t.Errorf("%s: %d deliveries, refused %q, want %q", name, d, r, wantRefused)
		}
	}
	h.post("k", chargeBody).want(202)
	count("accepted")
	h.post("\"", chargeBody).want(400)
	count("bad key", "")
	h.do(fits, "POST", "/v1/tool-calls", chargeBody, nil).want(400)
	count("no key", "charge")
	h.do(refused, "POST", "/v1/tool-calls", "{", withKey("k")).want(400)
	count("bad body", "")
	h.do(beyond, "POST", "/v1/tool-calls", `{"tool":"charge","args":{"a":1,"a":1}}`, withKey("k")).want(400)
	count("not canonical", "charge")
	h.post("k", chargeBody, "Idemd-Chaos", "before_reply=drop").want(400)
	count("fault", "charge")
	h.do(refused, "POST", "/v1/tool-calls", chargeBody, headers{"Content-Type": {"text/plain"}, "Idempotency-Key": {"k"}}).want(415)
	count("media type", "")
	h.post("k", chargeBody, "X-Big", strings.Repeat("x", 17<<10)).want(431)
	count("headers", "")

	svc.submit = func(context.Context, idem.Submission) (idem.Answer, error) { return idem.Answer{}, idem.ErrConflict }
	h.do(fits, "GET", "/stats", "", nil)
	h.do(fits, "POST", "/v1/tool-calls/x/resolve", `{"outcome":"retry","by":"a","attempt":1}`, nil)
	h.do(fits, "PUT", "/v1/tool-calls", "", nil).want(405)
	if d, r := svc.counted(); d != 0 || len(r) != 0 {
		t.Errorf("other routes: %d, %q", d, r)
	}
}

// The order of the checks is part of the contract: each request has every fault
// from some step on, and is refused for the first.
func TestOrderOfChecks(t *testing.T) {
	svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) {
		t.Error("submitted")
		return idem.Answer{}, nil
	}}
	h := serve(t, svc, Options{MaxBody: 1 << 10})
	tooLarge := `{"tool":` + strings.Repeat(" ", 1<<10)
	const notCanonical = `{"tool":"t","args":{"a":1,"a":1}}`
	for _, c := range []struct {
		name, media, key, body string
		status                 int
		code                   idem.Code
	}{
		{"media type", "text/plain", "", tooLarge, 415, idem.CodeUnsupportedMediaType},
		{"size", "application/json", "", tooLarge, 413, idem.CodePayloadTooLarge},
		{"key that is none", "application/json", `"k`, "{", 400, idem.CodeBadRequest},
		{"envelope", "application/json", "", `{"tool":"t","args":{"a":1,"a":1},"x":1}`, 400, idem.CodeBadRequest},
		{"no key", "application/json", "", notCanonical, 400, idem.CodeMissingKey},
		{"canonical form", "application/json", "k", notCanonical, 400, idem.CodeBadRequest},
		{"chaos header", "application/json", "k", chargeBody, 400, idem.CodeBadRequest},
	} {
		hs := headers{"Content-Type": {c.media}, "Idemd-Chaos": {"x"}}
		if c.key != "" {
			hs["Idempotency-Key"] = []string{c.key}
		}
		r := h.do(beyond, "POST", "/v1/tool-calls", c.body, hs).want(c.status, c.code)
		if said := strings.Contains(r.error().Message, "Idempotency-Key"); said != strings.Contains(c.name, "key") {
			t.Errorf("%s: refused for something else: %s", c.name, r.raw)
		}
	}
}

// Whatever is in the key, the answer is never a 5xx, the boundary is exact, and
// the log keeps its lines.
func TestHostileKeys(t *testing.T) {
	h := serve(t, &fakeService{}, Options{})
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = '!' + byte(i*7919%94)
		}
		if n > 0 {
			b[0] = 'k'
		}
		return string(b)
	}
	for _, c := range []struct {
		name, key string
		status    int
	}{
		{"0 bytes", "", 400},
		{"1 byte", "k", 202},
		{"255 bytes", random(255), 202},
		{"256 bytes", random(256), 400},
		{"4096 bytes", random(4096), 400},
		{"1000000 bytes", random(1_000_000), 431},
		{"NUL", "a\x00b", 400},
		{"tab", "a\tb", 400},
		{"DEL", "a\x7fb", 400},
		{"escape sequence", "\x1b[31mred", 400},
		{"emoji", "🙂", 400},
		{"latin-1", "caf\xe9", 400},
		{"CR", "a\rb", 400},
		{"LF", "a\nb", 400},
		{"CR LF and a header", "a\r\nX-Injected: yes", 202},
		{"CR LF and a second key", "a\r\nIdempotency-Key: b", 400},
		{"CR LF and a blank", "a\r\n b", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := strings.Count(h.logs.String(), "\n")
			got := rawStatus(t, h.addr, "POST /v1/tool-calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"+
				"Idempotency-Key: "+c.key+"\r\nContent-Length: "+strconv.Itoa(len(chargeBody))+"\r\n\r\n"+chargeBody)
			// Folded lines, NUL and the like net/http refuses or unfolds by itself.
			if got != c.status && (c.name != "CR LF and a blank" || got != 202) {
				t.Errorf("status %d, want %d", got, c.status)
			}
			eventually(t, "logged", func() bool { return h.server.inFlight.Load() == 0 })
			if after := strings.Count(h.logs.String(), "\n"); after > before+1 {
				t.Errorf("%d lines in the log", after-before)
			}
		})
	}
	for line := range strings.Lines(h.logs.String()) {
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "red") || strings.Contains(line, "🙂") {
			t.Errorf("log line %q", line)
		}
	}
}

// The header limit that really holds, to the byte, and what is beyond it.
func TestHeaderLimit(t *testing.T) {
	h := serve(t, &fakeService{}, Options{MaxHeaderBytes: 4 << 10})
	status := func(n int) int {
		const frame = "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Pad: \r\n\r\n"
		return rawStatus(t, h.addr, strings.Replace(frame, "Pad: ", "Pad: "+strings.Repeat("x", n-len(frame)), 1))
	}
	limited := func(n int) int {
		const frame = "GET /stats HTTP/1.1\r\nHost: x\r\nX-Pad: \r\n\r\n"
		return rawStatus(t, h.addr, strings.Replace(frame, "Pad: ", "Pad: "+strings.Repeat("x", n-len(frame)), 1))
	}
	if a, b := limited(4<<10), limited(4<<10+1); a != 200 || b != 431 {
		t.Errorf("at the limit %d, above %d", a, b)
	}
	// Probes are answered up to what net/http reads, which is 4 KiB more.
	if a, b := status(8<<10-1), status(8<<10+1); a != 200 || b != 431 {
		t.Errorf("at net/http's limit %d, above %d", a, b)
	}
}

// A wait may be longer than the time in which the request must have arrived.
// This rests on net/http, which takes the read deadline off before it reads on
// to notice a client that leaves.
func TestWaitOutlastsReadTimeout(t *testing.T) {
	const readTimeout = 50 * time.Millisecond
	late := func(ctx context.Context) error { // until long after the deadline, which nothing else tells
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(6 * readTimeout):
			return nil
		}
	}
	svc := &fakeService{
		submit: func(ctx context.Context, s idem.Submission) (idem.Answer, error) {
			return idem.Answer{Call: ended(exampleCall(s.Request.Key), "1"), Verdict: idem.VerdictCreated}, late(ctx)
		},
		call: func(ctx context.Context, _ idem.CallID, _ time.Duration) (idem.Call, error) {
			return exampleCall(idem.Key{Name: "k"}), late(ctx)
		},
		callByKey: func(ctx context.Context, key idem.Key, _ time.Duration) (idem.Call, error) {
			return exampleCall(key), late(ctx)
		},
	}
	h := serve(t, svc, Options{ReadTimeout: readTimeout})
	var all sync.WaitGroup
	all.Go(func() { h.post("k", chargeBody, "Prefer", "wait=5").want(200) })
	all.Go(func() { h.post("k", chargeBody).want(200) })
	all.Go(func() {
		h.do(fits, "GET", "/v1/tool-calls/"+idem.CallID{1}.String(), "", headers{"Prefer": {"wait=5"}}).want(200)
	})
	all.Go(func() { h.do(fits, "GET", "/v1/tool-calls/by-key", "", withKey("k", "Prefer", "wait=5")).want(200) })
	all.Wait()
	// And the connections are good for more.
	h.post("k", chargeBody).want(200)
}

// The client sends everything and goes, by FIN or RST: the service gets the
// request all the same, sees the client leave, and no goroutine stays.
func TestClientLeaves(t *testing.T) {
	for _, how := range []string{"FIN", "RST"} {
		t.Run(how, func(t *testing.T) {
			submitted, left := make(chan bool, 1), make(chan bool, 1)
			svc := &fakeService{submit: func(ctx context.Context, _ idem.Submission) (idem.Answer, error) {
				submitted <- true
				<-ctx.Done()
				left <- true
				return idem.Answer{}, ctx.Err()
			}}
			h := serve(t, svc, Options{})
			c, err := net.Dial("tcp", h.addr)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(c, "POST /v1/tool-calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nPrefer: wait=60\r\nContent-Length: %d\r\n\r\n%s", len(chargeBody), chargeBody)
			<-submitted
			if how == "RST" {
				if err := c.(*net.TCPConn).SetLinger(0); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			<-left
			eventually(t, "over", func() bool { return h.server.inFlight.Load() == 0 })
			if logs := h.logs.String(); strings.Contains(logs, "level=ERROR") {
				t.Errorf("logged as an error: %s", logs)
			}
		})
	}
}

// A request that does not arrive whole is never submitted.
func TestHalfARequest(t *testing.T) {
	svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) {
		t.Error("submitted")
		return idem.Answer{}, nil
	}}
	h := serve(t, svc, Options{ReadTimeout: 100 * time.Millisecond})
	for _, how := range []string{"closes", "halts"} {
		c, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		// The part that comes is a whole document, which only the length tells apart.
		fmt.Fprintf(c, "POST /v1/tool-calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n%s", len(chargeBody)+1, chargeBody)
		if how == "closes" {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		answer, err := io.ReadAll(c) // the server closes
		if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
			t.Errorf("%s: %q, %v", how, answer, err)
		}
		c.Close()
	}
}

// A body that a GET announces and never sends holds nobody for longer than the
// read time-out.
func TestBodyNobodyReads(t *testing.T) {
	h := serve(t, &fakeService{}, Options{ReadTimeout: 100 * time.Millisecond})
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /v1/tool-calls/by-key/k HTTP/1.1\r\nHost: x\r\nPrefer: wait=1\r\nContent-Length: 10\r\n\r\n")
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(c); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 404 ")) {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestPanics(t *testing.T) {
	t.Run("before the answer", func(t *testing.T) {
		for _, p := range []any{"secret", errors.New("secret"), []string{"secret"}, nil} {
			svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) { panic(p) }}
			h := serve(t, svc, Options{})
			h.post("secret-key", chargeBody).want(500, idem.CodeInternal).effect(idem.DoubtUnknown).
				has("Idempotency-Key", "secret-key", "Idempotent-Replayed", "false")
			logs := h.logs.String()
			if strings.Contains(logs, "secret") || strings.Count(logs, "level=ERROR") != 1 || !strings.Contains(logs, "stack=") {
				t.Errorf("%v: log %s", p, logs)
			}
			h.get("/healthz").want(200) // and it goes on
			if _, r := svc.counted(); len(r) != 0 {
				t.Errorf("counted here too: %q", r)
			}
		}
	})
	t.Run("of the runtime", func(t *testing.T) {
		svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) {
			return idem.Answer{Call: []idem.Call{}[len(chargeBody)-27]}, nil
		}}
		h := serve(t, svc, Options{})
		h.post("k", chargeBody).want(500)
		if logs := h.logs.String(); !strings.Contains(logs, "index out of range") {
			t.Errorf("log %s", logs)
		}
	})
	t.Run("in a count", func(t *testing.T) {
		h := serve(t, &panickyCounter{}, Options{})
		h.post("k", chargeBody).want(500, idem.CodeInternal)
	})
	t.Run("half way through", func(t *testing.T) {
		svc := &fakeService{effects: func(_ context.Context, after idem.CallID, _ int) ([]idem.Effect, error) {
			if after.IsZero() {
				return []idem.Effect{{CallID: idem.CallID{1}}}, nil
			}
			panic("secret")
		}}
		h := serve(t, svc, Options{})
		if _, err := h.stream(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the stream looks whole: %v", err)
		}
	})
	t.Run("abort", func(t *testing.T) {
		svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) { return idem.Answer{}, idem.ErrDropped }}
		h := serve(t, svc, Options{})
		if status := rawStatus(t, h.addr, "POST /v1/tool-calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 27\r\n\r\n"+chargeBody); status != 0 {
			t.Errorf("answered with %d", status)
		}
		if logs := h.logs.String(); strings.Contains(logs, "level=ERROR") || strings.Contains(logs, "level=WARN") {
			t.Errorf("log %s", logs)
		}
	})
}

type panickyCounter struct{ fakeService }

func (*panickyCounter) Delivered() { panic("no") }

// Errors that only look like a client that has gone are bugs.
func TestForeignContextError(t *testing.T) {
	svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) {
		return idem.Answer{}, fmt.Errorf("store: %w", context.DeadlineExceeded)
	}}
	h := serve(t, svc, Options{})
	h.post("k", chargeBody).want(500, idem.CodeInternal)
}

// stream reads the whole ledger.
func (h *harness) stream() (string, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+h.addr+"/v1/effects", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", mediaStream)
	resp, err := h.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// ledger is a service with n rows, which records how it is asked.
func ledger(n int, asked func(after idem.CallID)) *fakeService {
	id := func(i int) idem.CallID { return idem.CallID{byte(i >> 16), byte(i >> 8), byte(i)} }
	return &fakeService{effects: func(_ context.Context, after idem.CallID, limit int) ([]idem.Effect, error) {
		if asked != nil {
			asked(after)
		}
		var rows []idem.Effect
		for i := int(after[0])<<16 | int(after[1])<<8 | int(after[2]) + 1; i <= n && len(rows) < limit; i++ {
			rows = append(rows, idem.Effect{ID: idem.EffectID(id(i)), CallID: id(i), Key: idem.Key{Name: "k" + strconv.Itoa(i)}, Tool: "charge", CreatedAt: exampleTime})
		}
		return rows, nil
	}}
}

func TestStream(t *testing.T) {
	endless := &fakeService{effects: func(_ context.Context, _ idem.CallID, limit int) ([]idem.Effect, error) {
		return slices.Repeat([]idem.Effect{{CallID: idem.CallID{1}}}, limit), nil
	}}
	t.Run("whole", func(t *testing.T) {
		const n = 3*streamStep + 7
		h := serve(t, ledger(n, nil), Options{})
		text, err := h.stream()
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for line := range strings.Lines(text) {
			i++
			if !strings.Contains(line, `"idem_key":"k`+strconv.Itoa(i)+`"`) {
				t.Fatalf("row %d: %s", i, line)
			}
		}
		if i != n {
			t.Errorf("%d rows", i)
		}
	})
	t.Run("HEAD", func(t *testing.T) {
		asked := 0
		h := serve(t, ledger(10*streamStep, func(idem.CallID) { asked++ }), Options{})
		h.do(fits, "HEAD", "/v1/effects", "", headers{"Accept": {mediaStream}}).want(200).has("Content-Type", mediaStream)
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
	t.Run("a reader that stands still is cut off", func(t *testing.T) {
		h := serve(t, endless, Options{WriteTimeout: 100 * time.Millisecond})
		c, _ := h.openStream(t)
		defer c.Close()
		h.server.waitIdle(t)
	})
	t.Run("stops with the server", func(t *testing.T) {
		h := serve(t, endless, Options{})
		c, r := h.openStream(t)
		defer c.Close()
		if _, err := r.ReadByte(); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		if err := h.server.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("stops with the client", func(t *testing.T) {
		h := serve(t, endless, Options{})
		c, r := h.openStream(t)
		if _, err := r.ReadByte(); err != nil {
			t.Fatal(err)
		}
		c.Close()
		h.server.waitIdle(t)
	})
}

func (s *Server) waitIdle(t testing.TB) {
	t.Helper()
	eventually(t, "idle", func() bool { return s.inFlight.Load() == 0 })
}

func (h *harness) openStream(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).SetReadBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /v1/effects HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nConnection: close\r\n\r\n", mediaStream)
	eventually(t, "begun", func() bool { return h.server.inFlight.Load() == 1 })
	return c, bufio.NewReader(c)
}

// bigAnswer is a service whose answers are more than sockets buffer.
func bigAnswer(n int) *fakeService {
	big := []byte(`"` + strings.Repeat("x", n) + `"`)
	return &fakeService{callByKey: func(_ context.Context, key idem.Key, _ time.Duration) (idem.Call, error) {
		return ended(exampleCall(key), string(big)), nil
	}}
}

func (h *harness) openBig(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).SetReadBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /v1/tool-calls/by-key/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	eventually(t, "begun", func() bool { return h.server.inFlight.Load() == 1 })
	return c
}

// A client that asks and does not read loses its connection, and nobody else
// notices.
func TestClientDoesNotRead(t *testing.T) {
	h := serve(t, bigAnswer(32<<20), Options{WriteTimeout: 100 * time.Millisecond})
	c := h.openBig(t)
	defer c.Close()
	h.server.waitIdle(t)
}

// A client that reads slowly gets everything, however long it takes altogether.
func TestClientReadsSlowly(t *testing.T) {
	const size, writeTimeout = 16 << 20, time.Second
	h := serve(t, bigAnswer(size), Options{WriteTimeout: writeTimeout})
	c := h.openBig(t)
	defer c.Close()
	total, start := 0, time.Now()
	for buf := make([]byte, 256<<10); ; {
		n, err := io.ReadFull(c, buf)
		total += n
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(40 * time.Millisecond) // the reader's own pace, not a wait for somebody
	}
	if total < size {
		t.Errorf("cut off after %d bytes and %v", total, time.Since(start))
	}
	if took := time.Since(start); took < 2*writeTimeout {
		t.Errorf("took only %v: not slow enough to prove anything", took)
	}
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil { // less than ReadTimeout
		t.Fatal(err)
	}
	return c
}

// askHealth asks over a connection that is kept.
func askHealth(c net.Conn) error {
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	return readAnswer(c, http.StatusOK)
}

func readAnswer(c net.Conn, status int) error {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != status {
		return fmt.Errorf("answered with %s", resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// sendPart sends a submission of which the last bytes are missing.
func sendPart(t *testing.T, addr, body string, missing int) net.Conn {
	t.Helper()
	c := dial(t, addr)
	fmt.Fprintf(c, "POST /v1/tool-calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: slow\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)-missing])
	return c
}

// Bodies that do not come take nobody's place.
func TestSlowBodiesTakeNoPlace(t *testing.T) {
	svc := &fakeService{}
	h := serve(t, svc, Options{MaxInFlight: 1, MaxConns: 8})
	var slow []net.Conn
	for range 3 {
		slow = append(slow, sendPart(t, h.addr, chargeBody, 1))
	}
	eventually(t, "begun", func() bool { svc.mu.Lock(); defer svc.mu.Unlock(); return svc.delivered == len(slow) })
	h.post("k", chargeBody).want(202)
	h.server.waitIdle(t)
	h.get("/stats").want(200)
	h.server.waitIdle(t)
	for _, c := range slow { // and are served when they are there
		fmt.Fprint(c, chargeBody[len(chargeBody)-1:])
		if err := readAnswer(c, http.StatusAccepted); err != nil {
			t.Error(err)
		}
		h.server.waitIdle(t)
	}
}

// padded is a body of n bytes.
func padded(n int) string { return chargeBody + strings.Repeat(" ", n-len(chargeBody)) }

// The bytes of all bodies together are bounded, except for what each has free.
func TestBodyMemory(t *testing.T) {
	const large = 64 << 10
	svc := &fakeService{}
	h := serve(t, svc, Options{MaxBody: large, MaxBodyMemory: large})
	taken := func(n int64) {
		t.Helper()
		eventually(t, "bytes taken", func() bool { return h.server.bodyBytes.Load() == n })
	}
	slow := sendPart(t, h.addr, padded(large), 1)
	taken(large - freeBody)
	svc.counted()
	for range 2 { // what was refused takes nothing
		r := h.post("k", padded(large)).want(503, idem.CodeUnavailable).effect(idem.DoubtNone).
			has("Retry-After", "1", "Idempotency-Key", "k", "Idempotent-Replayed", "false")
		if !r.close {
			t.Error("the connection is kept, with half a body in it")
		}
		taken(large - freeBody)
	}
	if d, r := svc.counted(); d != 2 || len(r) != 2 {
		t.Errorf("%d deliveries, refused %q", d, r)
	}
	h.post("k", padded(freeBody)).want(202) // ordinary requests pass
	fmt.Fprint(slow, " ")
	if err := readAnswer(slow, http.StatusAccepted); err != nil {
		t.Error(err)
	}
	taken(0)
	slow = sendPart(t, h.addr, padded(large), 1)
	taken(large - freeBody)
	_ = slow.Close()
	taken(0)
	h.post("k", padded(large)).want(202)
	taken(0)
	svc.submit = func(context.Context, idem.Submission) (idem.Answer, error) { panic("no") }
	h.post("k", padded(large)).want(500)
	taken(0)
	svc.submit = func(context.Context, idem.Submission) (idem.Answer, error) { return idem.Answer{}, idem.ErrDropped }
	_ = readAnswer(sendPart(t, h.addr, padded(large), 0), 0)
	taken(0)
}

// Streams are as long as their readers like, so only some of them may go on.
func TestStreamsBounded(t *testing.T) {
	row := idem.Effect{ID: idem.EffectID(idem.CallID{1}), CallID: idem.CallID{1}, Key: idem.Key{Name: "k"}, Tool: "charge", CreatedAt: exampleTime}
	svc := &fakeService{effects: func(_ context.Context, _ idem.CallID, limit int) ([]idem.Effect, error) {
		return slices.Repeat([]idem.Effect{row}, limit), nil
	}}
	h := serve(t, svc, Options{})
	var readers []net.Conn
	for range maxStreams {
		c := dial(t, h.addr)
		fmt.Fprintf(c, "GET /v1/effects HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n", mediaStream)
		readers = append(readers, c)
	}
	eventually(t, "begun", func() bool { return h.server.streams.Load() == maxStreams })
	h.do(fits, "GET", "/v1/effects", "", headers{"Accept": {mediaStream}}).want(503, idem.CodeUnavailable).has("Retry-After", "1")
	h.get("/v1/effects?limit=1").want(200) // pages go on
	for _, c := range readers {
		_ = c.Close()
	}
	eventually(t, "over", func() bool { return h.server.streams.Load() == 0 })
	h.do(fits, "HEAD", "/v1/effects", "", headers{"Accept": {mediaStream}}).want(200)
}

// The bound on open connections: idle ones give way to newcomers, used or not;
// where none is idle newcomers wait. The log says so once.
func TestListenerBound(t *testing.T) {
	svc := &fakeService{}
	h := serve(t, svc, Options{MaxInFlight: 1, MaxConns: 2})
	dial(t, h.addr) // and never used
	for range 4 {
		if err := askHealth(dial(t, h.addr)); err != nil {
			t.Fatal(err)
		}
	}
	busy := []net.Conn{sendPart(t, h.addr, chargeBody, 1), sendPart(t, h.addr, chargeBody, 1)}
	eventually(t, "busy", func() bool { svc.mu.Lock(); defer svc.mu.Unlock(); return svc.delivered == 2 })
	answered := make(chan error, 1)
	last := dial(t, h.addr)
	go func() { answered <- askHealth(last) }()
	select {
	case err := <-answered:
		t.Fatalf("answered beyond the bound: %v", err)
	default:
	}
	fmt.Fprint(busy[0], chargeBody[len(chargeBody)-1:]) // its connection is kept, and idle
	if err := readAnswer(busy[0], http.StatusAccepted); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(busy[1], chargeBody[len(chargeBody)-1:]) // whoever asked something was left alone
	if err := readAnswer(busy[1], http.StatusAccepted); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(h.logs.String(), "too many open connections"); n != 1 {
		t.Errorf("warned %d times", n)
	}
}

// The connection that has been idle the longest is closed, but none that may be
// about to ask.
func TestListenerEvict(t *testing.T) {
	l := newListener(nil, 3, slog.New(slog.DiscardHandler))
	now := exampleTime
	open := func() *conn {
		l.places <- struct{}{}
		c, other := net.Pipe()
		t.Cleanup(func() { _ = other.Close() })
		return &conn{Conn: c, l: l, leave: sync.OnceFunc(l.leave)}
	}
	a, b, c := open(), open(), open()
	for _, s := range []struct {
		c  *conn
		st http.ConnState
	}{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateActive}, {b, http.StateActive}, {a, http.StateIdle}} {
		now = now.Add(time.Millisecond)
		l.changed(s.c, s.st, now)
	}
	// Idle are now c, 3 ms longer than a.
	if wait := l.evict(now); wait != minIdle-3*time.Millisecond {
		t.Errorf("wait %v", wait)
	}
	now = now.Add(minIdle)
	for _, gone := range []*conn{c, a} {
		if wait := l.evict(now); wait != 0 {
			t.Errorf("wait %v", wait)
		}
		if _, err := gone.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("not closed: %v", err)
		}
		l.changed(gone, http.StateClosed, now) // as net/http will notice
	}
	if wait := l.evict(now); wait != minIdle || len(l.places) != 1 {
		t.Errorf("wait %v, %d places", wait, len(l.places))
	}
	_ = b.Close()
}

// A listener that waits for a place can be closed.
func TestListenerCloseWhileFull(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := newListener(l, 1, slog.New(slog.DiscardHandler))
	dial(t, l.Addr().String())
	in, err := bounded.Accept()
	if err != nil {
		t.Fatal(err)
	}
	newcomer := dial(t, l.Addr().String())
	done := make(chan error)
	go func() { _, err := bounded.Accept(); done <- err }()
	eventually(t, "full", bounded.full.Load)
	if err := bounded.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := newcomer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the newcomer was left hanging: %v", err)
	}
	in.Close()
	in.Close() // as net/http may
	if len(bounded.places) != 0 {
		t.Errorf("%d places are taken", len(bounded.places))
	}
}

// A page of calls ends before it gets too large, and the next one goes on there.
func TestListBytes(t *testing.T) {
	result := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	const n = 12
	id := func(i int) idem.CallID { return idem.CallID{byte(i)} }
	svc := &fakeService{list: func(_ context.Context, q idem.Query) ([]idem.Call, idem.CallID, error) {
		var calls []idem.Call
		from := n
		if !q.Before.IsZero() {
			from = int(q.Before[0]) - 1
		}
		for i := from; i > 0; i-- {
			if len(calls) == q.Limit {
				return calls, calls[len(calls)-1].ID, nil
			}
			c := ended(exampleCall(idem.Key{Name: "k" + strconv.Itoa(i)}), "")
			c.ID, c.Result = id(i), result
			calls = append(calls, c)
		}
		return calls, idem.CallID{}, nil
	}}
	h := serve(t, svc, Options{})
	var got []string
	pages := 0
	for cursor := ""; ; {
		var page struct {
			Calls []callMembers
			Next  *string `json:"next_cursor"`
		}
		r := h.get("/v1/tool-calls?limit=1000" + cursor).want(200)
		r.json(&page)
		if len(r.raw) > maxPage+2<<20 {
			t.Errorf("a page of %d bytes", len(r.raw))
		}
		for _, c := range page.Calls {
			got = append(got, strings.TrimPrefix(c.Key, "k"))
		}
		if pages++; page.Next == nil || pages > n {
			break
		}
		cursor = "&cursor=" + *page.Next
	}
	if strings.Join(got, " ") != "12 11 10 9 8 7 6 5 4 3 2 1" || pages < 3 {
		t.Errorf("got %q on %d pages", got, pages)
	}
}

// A store that searches in small steps is not made to search everything in one
// request.
func TestListShortPages(t *testing.T) {
	asked := 0
	svc := &fakeService{list: func(_ context.Context, q idem.Query) ([]idem.Call, idem.CallID, error) {
		asked++
		return nil, idem.CallID{9}, nil
	}}
	h := serve(t, svc, Options{})
	r := h.get("/v1/tool-calls?client_id=nobody").want(200)
	if asked != 1 || !strings.HasPrefix(r.raw, `{"calls":[],"next_cursor":"`) {
		t.Errorf("asked %d times: %s", asked, r.raw)
	}
}

// What cannot be shown costs a request no more than what can: the page ends, and
// the next one goes on behind it.
func TestListTombstones(t *testing.T) {
	const shown, top = 3, 40_000 // the oldest calls are left, all younger ones are tombstones
	id := func(i int) (id idem.CallID) { binary.BigEndian.PutUint32(id[:], uint32(i)); return id }
	rows := 0
	svc := &fakeService{list: func(_ context.Context, q idem.Query) (calls []idem.Call, _ idem.CallID, _ error) {
		from := top
		if !q.Before.IsZero() {
			from = int(binary.BigEndian.Uint32(q.Before[:])) - 1
		}
		for i := from; i > 0; i-- {
			if len(calls) == q.Limit {
				return calls, calls[len(calls)-1].ID, nil
			}
			rows++
			c := ended(exampleCall(idem.Key{Name: "k" + strconv.Itoa(i)}), "1")
			c.ID, c.Tombstone = id(i), i > shown
			calls = append(calls, c)
		}
		return calls, idem.CallID{}, nil
	}}
	h := serve(t, svc, Options{})
	for _, limit := range []int{1, 100, maxLimit} {
		var got []string
		empty := 0
		for cursor := ""; ; {
			var page struct {
				Calls []callMembers
				Next  *string `json:"next_cursor"`
			}
			rows = 0
			h.get("/v1/tool-calls?limit=" + strconv.Itoa(limit) + cursor).want(200).json(&page)
			if rows > maxRows+listStep {
				t.Fatalf("limit %d: one request looked at %d rows", limit, rows)
			}
			for _, c := range page.Calls {
				got = append(got, c.Key)
			}
			if len(page.Calls) == 0 {
				empty++
			}
			if page.Next == nil {
				break
			}
			cursor = "&cursor=" + *page.Next
		}
		if strings.Join(got, " ") != "k3 k2 k1" || empty < top/maxRows-1 {
			t.Errorf("limit %d: got %q, after %d empty pages", limit, got, empty)
		}
	}
}

// The call object, to the byte.
func TestCallObject(t *testing.T) {
	client, seq := "demo", int64(-7)
	c := exampleCall(idem.Key{Namespace: "default", Name: `a"b`})
	c.ClientID, c.Seq = &client, &seq
	c.Status, c.Attempt, c.Owner, c.LeaseUntil, c.Crashes = idem.StatusRunning, 2, "b_1/3", exampleTime.Add(30*time.Second), 1
	want := `{"call_id":"ID","idem_key":"a\"b","tool":"charge","status":"running","attempt":2,"result":null,"error":null,` +
		`"effect_id":"EFF","client_id":"demo","seq":-7,"deliveries":1,"created_at":"2026-11-29T16:00:00.123Z","updated_at":"2026-11-29T16:00:00.123Z",` +
		`"expires_at":null,"query_url":"/v1/tool-calls/ID","owner":"b_1/3","lease_until":"2026-11-29T16:00:30.123Z","crashes":1}`
	check := func(want string) {
		t.Helper()
		want = strings.NewReplacer("ID", c.ID.String(), "EFF", idem.EffectID(c.ID)).Replace(want)
		if got := string(appendCall(nil, &c)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	check(want)

	c = ended(exampleCall(idem.Key{Name: "k"}), "{ \"a\":1.0}")
	c.CreatedAt = exampleTime.In(time.FixedZone("east", 3600))
	check(`{"call_id":"ID","idem_key":"k","tool":"charge","status":"succeeded","attempt":1,"result":{ "a":1.0},"error":null,` +
		`"effect_id":"EFF","client_id":null,"seq":null,"deliveries":1,"created_at":"2026-11-29T16:00:00.123Z","updated_at":"2026-11-29T16:00:00.123Z",` +
		`"expires_at":"2026-11-29T17:00:00.123Z","query_url":"/v1/tool-calls/ID"}`)

	c.Status, c.Result, c.Failure = idem.StatusFailed, nil, &idem.Failure{Code: "tool_failed", Message: "<\n>", Retryable: true}
	failed := `{"call_id":"ID","idem_key":"k","tool":"charge","status":"failed","attempt":1,"result":null,"error":{"code":"tool_failed","message":"<\n>","retryable":true,"effect":"none"},` +
		`"effect_id":"EFF","client_id":null,"seq":null,"deliveries":1,"created_at":"2026-11-29T16:00:00.123Z","updated_at":"2026-11-29T16:00:00.123Z",` +
		`"expires_at":"2026-11-29T17:00:00.123Z","query_url":"/v1/tool-calls/ID"}`
	check(failed)
	c.InDoubt, c.Failure.RetryAfter = true, 90*time.Second
	check(strings.Replace(failed, `"effect":"none"}`, `"effect":"unknown","retry_after":90}`, 1))
}

// One line for a request, without keys and args.
func TestLog(t *testing.T) {
	h := serve(t, &fakeService{}, Options{})
	id := h.post("secret-key", `{"tool":"charge","args":{"card":"secret-arg"},"client_id":"secret-client"}`).want(202).call().ID
	h.get("/v1/tool-calls/by-key/secret-key").want(404)
	h.get("/v1/secret-path%0Anew").want(404)
	h.get("/v1/tool-calls?tool=secret-tool&nope=" + "secret-value")
	eventually(t, "logged", func() bool { return strings.Count(h.logs.String(), "\n") == 4 })
	logs := h.logs.String()
	if strings.Contains(logs, "secret") {
		t.Errorf("log %s", logs)
	}
	first, _, _ := strings.Cut(logs, "\n")
	for _, want := range []string{"level=DEBUG", "method=POST", "route=/v1/tool-calls ", "status=202", "took=", "call_id=" + id} {
		if !strings.Contains(first, want) {
			t.Errorf("no %s in %s", want, first)
		}
	}
}

// HEAD is GET without the body.
func TestHead(t *testing.T) {
	h := serve(t, &fakeService{}, Options{})
	get, head := h.get("/v1/tools").want(200), h.do(fits, "HEAD", "/v1/tools", "", nil).want(200)
	if head.raw != "" || head.header.Get("Content-Length") != strconv.Itoa(len(get.raw)) {
		t.Errorf("%q, %v", head.raw, head.header)
	}
}

// Every answer says how long it is, and forbids sniffing; nobody is allowed in
// from another origin.
func TestHygiene(t *testing.T) {
	h := serve(t, &fakeService{ready: errors.New("warming up")}, Options{})
	for _, path := range []string{"/healthz", "/readyz", "/v1/tools", "/stats", "/nope", "/openapi.yaml", "/v1/tool-calls/x", "/v1/tool-calls?limit=0"} {
		r := h.do(beyond, "GET", path, "", headers{"Origin": {"https://evil.example"}})
		r.has("X-Content-Type-Options", "nosniff", "Content-Length", strconv.Itoa(len(r.raw)))
		for name := range r.header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: %s", path, name)
			}
		}
		if path != "/openapi.yaml" {
			r.has("Cache-Control", "no-store")
		}
	}
	// What a page of another origin may send without asking first.
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"} {
		h.do(refused, "POST", "/v1/tool-calls", chargeBody, headers{"Content-Type": {media}, "Idempotency-Key": {"k"}}).want(415)
	}
}

// A 413 arrives although the client is still sending, or has not even begun, and
// the connection is not used again.
func TestTooLargeArrives(t *testing.T) {
	h := serve(t, &fakeService{}, Options{MaxBody: 64 << 10})
	for _, framing := range []string{"Content-Length: 67108864", "Content-Length: 65537", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil { // less than ReadTimeout
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST /v1/tool-calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n\r\n", framing)
		if strings.HasPrefix(framing, "Transfer") { // its size is known only when it is there
			fmt.Fprintf(c, "%x\r\n%s", 8<<20, strings.Repeat("x", 64<<10+4096))
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", framing, err)
		}
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
			t.Errorf("%s: %d, close %v", framing, resp.StatusCode, resp.Close)
		}
		resp.Body.Close()
		c.Close()
	}
}

// Without a listener of its own, as under somebody else's server or in a test.
func TestHandlerAlone(t *testing.T) {
	s := New(&fakeService{}, Options{})
	r := httptest.NewRequest(http.MethodPost, "/v1/tool-calls", strings.NewReader(chargeBody))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code != 202 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// TestCloseWaitsForHandlers: what is behind the service may be closed once Close
// has returned, so no handler may be running then, nor begin later.
func TestCloseWaitsForHandlers(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	svc := &fakeService{submit: func(context.Context, idem.Submission) (idem.Answer, error) {
		close(entered)
		<-release
		return idem.Answer{}, idem.ErrUnavailable
	}}
	s := New(svc, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		req, err := http.NewRequest(http.MethodPost, "http://"+l.Addr().String()+"/v1/tool-calls", strings.NewReader(`{"tool":"charge","args":{}}`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Content-Type", "application/json")
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Errorf("answered %s after the connection was closed", resp.Status)
		}
	}()
	<-entered
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-asked // the connection is gone; the handler is not
	select {
	case err := <-closed:
		t.Errorf("Close returned %v while a handler was running", err)
	default:
	}
	close(release)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	rec := httptest.NewRecorder()
	defer func() {
		if p := recover(); p != any(http.ErrAbortHandler) {
			t.Errorf("a handler began after Close: %v, %d", p, rec.Code)
		}
	}()
	s.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/stats", nil))
}

// Everything that a tool declares is told, and what it does not say is null.
func TestToolObject(t *testing.T) {
	svc := &fakeService{declared: []*idem.Tool{
		{Name: "bare", Effects: idem.EffectsExternal, Rerun: idem.RerunHold},
		{
			Name: "full", Description: "says \"all\"", Effects: idem.EffectsNone, Rerun: idem.RerunYes, Schema: []byte(`{"type":"object"}`),
			Timeout: 90 * time.Second, Concurrency: 2, MaxAttempts: 5, MaxCrashes: 4, Intent: []string{"/order", "/a~1b"}, Unrecorded: true,
			Rules: &idem.Rules{Ignore: []string{"/memo"}, Trim: []string{"/x", "/y"}, NFC: []string{"/z"}},
		},
	}}
	h := serve(t, svc, Options{})
	const want = `{"tools":[{"name":"bare","description":"","effects":"external","rerun":"hold","schema":null,"window":"1h0m0s","recorded":true,` +
		`"intent":[],"fingerprint":{"ignore":[],"trim":[],"nfc":[]},"timeout":null,"concurrency":null,"max_attempts":null,"max_crashes":null},` +
		`{"name":"full","description":"says \"all\"","effects":"none","rerun":"rerun","schema":{"type":"object"},"window":"1h0m0s","recorded":false,` +
		`"intent":["/order","/a~1b"],"fingerprint":{"ignore":["/memo"],"trim":["/x","/y"],"nfc":["/z"]},"timeout":"1m30s","concurrency":2,"max_attempts":5,"max_crashes":4}]}`
	if r := h.get("/v1/tools").want(200); r.raw != want {
		t.Errorf("got  %s\nwant %s", r.raw, want)
	}
}

// That the held calls cannot be counted says nothing about being ready.
func TestReadyWithoutCount(t *testing.T) {
	svc := &fakeService{statsErr: errors.New("no counts")}
	h := serve(t, svc, Options{})
	if r := h.get("/readyz").want(200); r.raw != `{"status":"ready","held":null}` {
		t.Errorf("got %s", r.raw)
	}
}
