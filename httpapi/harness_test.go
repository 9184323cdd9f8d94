package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/idem"
)

func TestMain(m *testing.M) {
	// net/http stays half a second on a connection that it closed before the
	// whole request was read, so that the client can still read why.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// fakeService is scripted: each test sets the methods that it cares about.
type fakeService struct {
	mu        sync.Mutex
	delivered int
	refused   []string

	submit    func(ctx context.Context, s idem.Submission) (idem.Answer, error)
	call      func(ctx context.Context, id idem.CallID, wait time.Duration) (idem.Call, error)
	callByKey func(ctx context.Context, key idem.Key, wait time.Duration) (idem.Call, error)
	list      func(ctx context.Context, q idem.Query) ([]idem.Call, idem.CallID, error)
	events    func(ctx context.Context, id idem.CallID, from, limit int) ([]idem.Event, error)
	effects   func(ctx context.Context, after idem.CallID, limit int) ([]idem.Effect, error)
	resolve   func(ctx context.Context, id idem.CallID, r idem.Resolution) (idem.Call, error)
	fire      func(f *idem.Fault, p idem.Point) error
	ready     error
	statsErr  error
	declared  []*idem.Tool
}

var _ Service = (*fakeService)(nil)

func (f *fakeService) Delivered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delivered++
}

func (f *fakeService) Refused(tool string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, tool)
}

// counted returns what was counted since the last time.
func (f *fakeService) counted() (delivered int, refused []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delivered, refused = f.delivered, f.refused
	f.delivered, f.refused = 0, nil
	return delivered, refused
}

func (f *fakeService) Submit(ctx context.Context, s idem.Submission) (idem.Answer, error) {
	if f.submit == nil {
		return idem.Answer{Call: exampleCall(s.Request.Key), Verdict: idem.VerdictCreated}, nil
	}
	return f.submit(ctx, s)
}

func (f *fakeService) Call(ctx context.Context, _ idem.Namespace, id idem.CallID, wait time.Duration) (idem.Call, error) {
	if f.call == nil {
		return idem.Call{}, idem.ErrNotFound
	}
	return f.call(ctx, id, wait)
}

func (f *fakeService) CallByKey(ctx context.Context, key idem.Key, wait time.Duration) (idem.Call, error) {
	if f.callByKey == nil {
		return idem.Call{}, idem.ErrNotFound
	}
	return f.callByKey(ctx, key, wait)
}

func (f *fakeService) List(ctx context.Context, _ idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
	return f.list(ctx, q)
}

func (f *fakeService) Events(ctx context.Context, _ idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
	return f.events(ctx, id, from, limit)
}

func (f *fakeService) Effects(ctx context.Context, _ idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
	return f.effects(ctx, after, limit)
}

func (f *fakeService) Resolve(ctx context.Context, _ idem.Namespace, id idem.CallID, r idem.Resolution) (idem.Call, error) {
	return f.resolve(ctx, id, r)
}

func (f *fakeService) Stats(context.Context) (idem.Stats, error) { return idem.Stats{}, f.statsErr }
func (f *fakeService) Tools() []*idem.Tool                       { return f.declared }
func (f *fakeService) Window() time.Duration                     { return time.Hour }
func (f *fakeService) Ready() error                              { return f.ready }

func (f *fakeService) Fire(fault *idem.Fault, p idem.Point) error {
	if f.fire == nil {
		return nil
	}
	return f.fire(fault, p)
}

var exampleTime = time.Date(2026, 11, 29, 16, 0, 0, 123_456_789, time.UTC)

func exampleCall(key idem.Key) idem.Call {
	return idem.Call{
		ID: idem.NewCallID(exampleTime, key, [10]byte{1, 2, 3}), Key: key, Tool: "charge",
		CreatedAt: exampleTime, UpdatedAt: exampleTime, Status: idem.StatusPending, Deliveries: 1,
	}
}

func ended(c idem.Call, result string) idem.Call {
	c.Status, c.Attempt, c.Result = idem.StatusSucceeded, 1, []byte(result)
	c.EndedAt, c.ExpiresAt = exampleTime, exampleTime.Add(time.Hour)
	return c
}

// harness is a server on a real socket, and a client of it that holds every
// exchange against the description.
type harness struct {
	t      testing.TB
	accept string // Accept of every request that has none of its own
	server *Server
	addr   string
	client *http.Client
	spec   *spec
	logs   *logBuffer
}

// serve starts a server that ends with the test.
func serve(t testing.TB, svc Service, o Options) *harness {
	t.Helper()
	logs := &logBuffer{}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(svc, o)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &harness{t: t, server: s, addr: l.Addr().String(), client: &http.Client{Transport: tr}, spec: theSpec(t), logs: logs}
}

// logBuffer collects what is logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// reply is an answer as a client sees it.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	raw    string
	close  bool // the connection is not used again
}

// header lines of a request; a nil value removes what post sets by itself.
type headers map[string][]string

// do sends a request and checks the exchange. It may be called on any goroutine.
func (h *harness) do(w wants, method, path, body string, hs headers) *reply {
	h.t.Helper()
	req, err := http.NewRequest(method, "http://"+h.addr+path, strings.NewReader(body))
	if err != nil {
		h.t.Error(err)
		return &reply{t: h.t, header: http.Header{}}
	}
	if body == "" {
		req.Body = http.NoBody
	}
	req.GetBody = nil // one request is one on the wire
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range hs {
		req.Header.Del(name)
		for _, v := range values {
			req.Header.Add(name, v)
		}
	}
	if h.accept != "" && req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", h.accept)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		h.t.Error(err)
		return &reply{t: h.t, header: http.Header{}}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Error(err)
	}
	h.spec.check(h.t, w, req, []byte(body), resp, raw)
	checkForm(h.t, req, resp, raw)
	return &reply{t: h.t, status: resp.StatusCode, header: resp.Header, raw: string(raw), close: resp.Close}
}

// checkForm checks that an error has the form that was asked for, and that its
// members say the same thing.
func checkForm(t testing.TB, req *http.Request, resp *http.Response, raw []byte) {
	t.Helper()
	if resp.StatusCode < http.StatusBadRequest || req.Method == http.MethodHead {
		return
	}
	want := mediaJSON
	if prefers(req.Header, mediaProblem) {
		want = mediaProblem
	}
	if got := resp.Header.Get("Content-Type"); got != want {
		t.Errorf("%s %s: an error of type %q, want %q", req.Method, req.URL, got, want)
	}
	var doc struct {
		Type, Title, Detail, Instance string
		Status                        int
		Error                         struct {
			Code    idem.Code
			Message string
			CallID  string `json:"call_id"`
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Errorf("%v in %s", err, raw)
	}
	if want == mediaJSON {
		return
	}
	instance := ""
	if doc.Error.CallID != "" {
		instance = "/v1/tool-calls/" + doc.Error.CallID
	}
	if doc.Type != "urn:idemd:error:"+string(doc.Error.Code) || doc.Title != problems[doc.Error.Code].title ||
		doc.Status != resp.StatusCode || doc.Detail != doc.Error.Message || doc.Instance != instance {
		t.Errorf("%s %s: the members do not belong together: %s", req.Method, req.URL, raw)
	}
}

func (h *harness) get(path string) *reply { h.t.Helper(); return h.do(fits, "GET", path, "", nil) }

// post submits for a key.
func (h *harness) post(key, body string, extra ...string) *reply {
	h.t.Helper()
	return h.do(fits, "POST", "/v1/tool-calls", body, withKey(key, extra...))
}

// withKey makes headers of a key and of names and values that follow each other.
func withKey(key string, extra ...string) headers {
	hs := headers{"Idempotency-Key": {key}}
	for i := 0; i < len(extra); i += 2 {
		hs[extra[i]] = append(hs[extra[i]], extra[i+1])
	}
	return hs
}

// want checks the status, and the code of an error where one is given.
func (r *reply) want(status int, code ...idem.Code) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Errorf("status %d, want %d: %s", r.status, status, r.raw)
	}
	for _, c := range code {
		if got := r.error().Code; got != string(c) {
			r.t.Errorf("code %q, want %q: %s", got, c, r.raw)
		}
	}
	return r
}

// has checks header values; an empty one must be absent.
func (r *reply) has(pairs ...string) *reply {
	r.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := strings.Join(r.header.Values(pairs[i]), "|"); got != pairs[i+1] {
			r.t.Errorf("%s: %q, want %q", pairs[i], got, pairs[i+1])
		}
	}
	return r
}

type errorMembers struct{ Code, Message, CallID, Status, Effect string }

func (r *reply) error() errorMembers {
	var body struct {
		Error struct {
			Code, Message, Status, Effect string
			CallID                        string `json:"call_id"`
		}
	}
	r.json(&body)
	e := body.Error
	return errorMembers{e.Code, e.Message, e.CallID, e.Status, e.Effect}
}

func (r *reply) effect(want idem.Doubt) *reply {
	r.t.Helper()
	if got := r.error().Effect; got != string(want) {
		r.t.Errorf("effect %q, want %q: %s", got, want, r.raw)
	}
	return r
}

type callMembers struct {
	ID         string          `json:"call_id"`
	Key        string          `json:"idem_key"`
	Tool       string          `json:"tool"`
	Status     string          `json:"status"`
	Attempt    int             `json:"attempt"`
	Result     json.RawMessage `json:"result"`
	Error      json.RawMessage `json:"error"`
	ClientID   *string         `json:"client_id"`
	Seq        *int64          `json:"seq"`
	Deliveries int             `json:"deliveries"`
	QueryURL   string          `json:"query_url"`
}

func (r *reply) call() callMembers {
	r.t.Helper()
	var c callMembers
	r.json(&c)
	return c
}

func (r *reply) json(v any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.raw), v); err != nil {
		r.t.Errorf("%v in %q", err, r.raw)
	}
}
