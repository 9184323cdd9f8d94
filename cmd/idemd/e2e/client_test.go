//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// reply is what came of one request on the wire.
type reply struct {
	lost    error // no answer, or half of one; nothing else is set then
	status  int
	header  http.Header
	raw     []byte
	call    *call    // of 200 and 202
	refusal *refusal // of an error
	took    time.Duration
}

// call is a call as the contract shows it.
type call struct {
	CallID     string          `json:"call_id"`
	Key        string          `json:"idem_key"`
	Tool       string          `json:"tool"`
	Status     idem.Status     `json:"status"`
	Attempt    int             `json:"attempt"`
	Result     json.RawMessage `json:"result"` // as it came, byte for byte
	Error      json.RawMessage `json:"error"`
	EffectID   string          `json:"effect_id"`
	ClientID   *string         `json:"client_id"`
	Seq        *int64          `json:"seq"`
	Deliveries int64           `json:"deliveries"`
	CreatedAt  string          `json:"created_at"`
	ExpiresAt  *string         `json:"expires_at"`
	Owner      string          `json:"owner"`
	Crashes    int             `json:"crashes"`
}

type failure struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
}

// failure is the call's error; zero where there is none.
func (c *call) failure() failure {
	var f failure
	_ = json.Unmarshal(c.Error, &f)
	return f
}

// sameEnd reports whether two answers give the same end, byte for byte.
func (c *call) sameEnd(o *call) bool {
	return c.CallID == o.CallID && c.Status == o.Status && c.Attempt == o.Attempt && c.EffectID == o.EffectID &&
		bytes.Equal(c.Result, o.Result) && bytes.Equal(c.Error, o.Error)
}

func (c *call) String() string {
	return fmt.Sprintf("%s %s of %s: %s, attempt %d, result %s, error %s", c.Tool, c.CallID, c.Key, c.Status, c.Attempt, c.Result, c.Error)
}

type refusal struct {
	Code    idem.Code   `json:"code"`
	Message string      `json:"message"`
	CallID  string      `json:"call_id"`
	Status  idem.Status `json:"status"`
	Effect  idem.Doubt  `json:"effect"`
}

func (r reply) String() string {
	if r.lost != nil {
		return "no answer: " + r.lost.Error()
	}
	return fmt.Sprintf("%d %s", r.status, bytes.TrimSpace(r.raw[:min(len(r.raw), 600)]))
}

// replayed reports what the header of that name says.
func (r reply) replayed() string { return r.header.Get("Idempotent-Replayed") }

// want fails the test unless the answer has one of the statuses and a call.
func (r reply) want(t testing.TB, statuses ...int) *call {
	t.Helper()
	for _, s := range statuses {
		if r.status == s && r.call != nil {
			return r.call
		}
	}
	t.Fatalf("want a call with status %v, got %v", statuses, r)
	return nil
}

// wantEnd fails the test unless the answer is a call in the given end.
func (r reply) wantEnd(t testing.TB, end idem.Status) *call {
	t.Helper()
	c := r.want(t, http.StatusOK)
	if c.Status != end {
		t.Fatalf("want a call that is %s, got %v", end, r)
	}
	return c
}

// wantRefusal fails the test unless the answer is the refusal.
func (r reply) wantRefusal(t testing.TB, status int, code idem.Code) *refusal {
	t.Helper()
	if r.status != status || r.refusal == nil || r.refusal.Code != code {
		t.Fatalf("want %d %s, got %v", status, code, r)
	}
	return r.refusal
}

// option changes a request.
type option func(*http.Request)

func header(name, value string) option {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// wait asks for the end within so many seconds.
func wait(seconds int) option { return header("Prefer", "wait="+strconv.Itoa(seconds)) }

// fault asks for a failure on purpose, "POINT=ACTION".
func fault(point idem.Point, action string) option {
	return header("Idemd-Chaos", string(point)+"="+action)
}

// impatient gives up the request after a time.
func impatient(d time.Duration) option {
	return func(r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), d)
		context.AfterFunc(ctx, cancel)
		*r = *r.WithContext(ctx)
	}
}

// newClients returns a client for requests with a body and one for those without.
//
// One attempt must be one request on the wire. Go's client sends a request again
// by itself when a reused connection turns out to be dead: one with a body if
// GetBody can give it again, one without a body always. So the former have no
// GetBody and the latter no reused connections.
func newClients() (posts, gets *http.Client) {
	make := func(keepAlive bool) *http.Client {
		p := new(http.Protocols)
		p.SetHTTP1(true)
		return &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: !keepAlive, MaxIdleConnsPerHost: 128, Protocols: p},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return make(true), make(false)
}

// post asks for an intent once.
func (d *daemon) post(key, tool, args string, opts ...option) reply {
	return d.send(key, `{"tool":"`+tool+`","args":`+args+`}`, opts...)
}

// send posts a body as it is.
func (d *daemon) send(key, body string, opts ...option) reply {
	return d.do(http.MethodPost, "/v1/tool-calls", body, append([]option{header("Idempotency-Key", key)}, opts...))
}

func (d *daemon) get(path string, opts ...option) reply { return d.do(http.MethodGet, path, "", opts) }

// find looks a call up by its key.
func (d *daemon) find(key string, opts ...option) reply {
	return d.get("/v1/tool-calls/by-key", append([]option{header("Idempotency-Key", key)}, opts...)...)
}

// look looks a call up by its id.
func (d *daemon) look(id string, opts ...option) reply { return d.get("/v1/tool-calls/"+id, opts...) }

// resolve decides a held call.
func (d *daemon) resolve(id, body string) reply {
	return d.do(http.MethodPost, "/v1/tool-calls/"+id+"/resolve", body, nil)
}

// do makes one request of the process of now, once it listens. It may be used by
// any goroutine.
func (d *daemon) do(method, path, body string, opts []option) reply {
	// The longest wait that the contract knows is a minute.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+patience())
	defer cancel()
	base, err := d.now().base(ctx)
	if err != nil {
		return reply{lost: err}
	}
	client := d.gets
	var content io.Reader
	if body != "" {
		client, content = d.posts, strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, content)
	if err != nil {
		return reply{lost: err}
	}
	req.GetBody = nil
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, o := range opts {
		o(req)
	}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return reply{lost: err}
	}
	defer resp.Body.Close()
	r := read(resp)
	r.took = time.Since(began)
	return r
}

// read makes a reply of an answer. Half an answer is none.
func read(resp *http.Response) reply {
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{lost: fmt.Errorf("half an answer: %w", err)}
	}
	r := reply{status: resp.StatusCode, header: resp.Header, raw: raw}
	switch {
	case r.status == http.StatusOK || r.status == http.StatusAccepted:
		var c call
		if json.Unmarshal(raw, &c) == nil && c.CallID != "" {
			r.call = &c
		}
	case r.status >= http.StatusBadRequest:
		var doc struct {
			Error *refusal `json:"error"`
		}
		if json.Unmarshal(raw, &doc) == nil {
			r.refusal = doc.Error
		}
	}
	return r
}

// together runs n requests that begin at the same moment, and returns the
// replies in no order.
func together(n int, ask func(i int) reply) []reply {
	begin, replies := make(chan struct{}), make(chan reply, n)
	for i := range n {
		go func() {
			<-begin
			replies <- ask(i)
		}()
	}
	close(begin)
	all := make([]reply, n)
	for i := range all {
		all[i] = <-replies
	}
	return all
}

// later makes a request in the background.
func later(ask func() reply) <-chan reply {
	c := make(chan reply, 1)
	go func() { c <- ask() }()
	return c
}

// dial opens a connection for requests that no client library would send.
func (d *daemon) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(d.now().url, "http://"), patience())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience())); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// plain is a submission as it goes over the wire. Extra is header lines, each
// with its end.
func plain(key, body, extra string) string {
	return "POST /v1/tool-calls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + extra +
		"Idempotency-Key: " + key + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// exchange sends bytes and reads one answer. A server that has seen enough may
// answer before it has read everything, so an error of the write is none.
func exchange(conn net.Conn, request string) reply {
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = io.WriteString(conn, request)
	}()
	defer func() { conn.Close(); <-wrote }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return reply{lost: err}
	}
	defer resp.Body.Close()
	return read(resp)
}
