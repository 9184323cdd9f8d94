package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/httpapi"
	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

// fault is what goes wrong with one exchange.
type fault int

const (
	fine         fault = iota
	dropRequest        // the connection breaks before the server has seen anything
	dropResponse       // it breaks after the server has answered
	halfBody           // in the middle of the answer
	hang               // nothing comes back until the client leaves
)

// idemd is the real server, with a network before it that can be told to fail,
// and that counts.
type idemd struct {
	url   string
	store idem.Store

	mu    sync.Mutex
	fault func(r *http.Request, n int) fault // n counts requests of the same method from 1
	wire  []wireRequest
	seen  map[string]int
}

type wireRequest struct{ method, path, key, body string }

func newIdemd(t testing.TB, window time.Duration) *idemd {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	store := storetest.NewModel(storetest.ModelOptions{})
	run, err := runner.New(store, runner.Options{Settings: runner.Settings{Window: window}, Tools: append(tool.Samples(), look()), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	api := httpapi.New(run, httpapi.Options{Logger: quiet, Version: "test"})
	d := &idemd{store: store, seen: map[string]int{}, fault: func(*http.Request, int) fault { return fine }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- api.Serve(l) }()
	front := httptest.NewServer(d.network("http://" + l.Addr().String()))
	d.url = front.URL
	t.Cleanup(func() {
		front.Close()
		run.Stop(context.Background())
		_ = api.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := store.Check(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// look is a tool that keeps no record, and gives its args back.
func look() *idem.Tool {
	return &idem.Tool{
		Name: "look", Effects: idem.EffectsNone, Rerun: idem.RerunYes, Unrecorded: true, Intent: []string{"/n"},
		Invoke: func(_ context.Context, inv idem.Invocation) (idem.Result, error) {
			return idem.Result{Output: inv.Args}, nil
		},
	}
}

// network takes a request to the server and its answer back, or does not.
func (d *idemd) network(server string) http.Handler {
	via := &http.Transport{DisableKeepAlives: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		d.mu.Lock()
		d.seen[r.Method]++
		f := d.fault(r, d.seen[r.Method])
		d.wire = append(d.wire, wireRequest{r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), string(body)})
		d.mu.Unlock()
		if f == dropRequest {
			panic(http.ErrAbortHandler)
		}
		// The client's leaving does not reach the server here (R15).
		onward, _ := http.NewRequest(r.Method, server+r.URL.RequestURI(), bytes.NewReader(body))
		onward.Header = r.Header.Clone()
		resp, err := via.RoundTrip(onward)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		answer, _ := io.ReadAll(resp.Body)
		switch f {
		case hang:
			<-r.Context().Done()
			fallthrough
		case dropResponse:
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), resp.Header)
		if f == halfBody {
			answer = answer[:len(answer)/2] // less than its Content-Length
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(answer)
	})
}

// failing tells the network when to fail.
func (d *idemd) failing(f func(r *http.Request, n int) fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// posts lists the submissions on the wire.
func (d *idemd) posts() []wireRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	var posts []wireRequest
	for _, r := range d.wire {
		if r.method == http.MethodPost {
			posts = append(posts, r)
		}
	}
	return posts
}

// gets counts the questions on the wire.
func (d *idemd) gets() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[http.MethodGet]
}

// effects lists the keys of the ledger.
func (d *idemd) effects(t testing.TB) []string {
	t.Helper()
	rows, err := d.store.Effects(context.Background(), idem.DefaultNamespace, idem.CallID{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, e := range rows {
		keys = append(keys, e.Key.Name)
	}
	return keys
}

// swift is a policy for tests: patient, and without pauses.
func swift() Policy {
	p := DefaultPolicy()
	p.Backoff, p.BackoffCap, p.Poll, p.PollCap = 1, 1, 1, 1
	return p
}

func newClient(t testing.TB, url string, o Options) *Client {
	t.Helper()
	if o.Policy == (Policy{}) {
		o.Policy = swift()
	}
	if o.Pause == nil {
		o.Pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	}
	c, err := New(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func charge(key string, amount string) Request {
	return Request{Tool: "charge", Args: []byte(`{"amount":` + amount + `}`), Key: key}
}

const someID = "c_00112233445566778899aabbccddeeff"

// callDoc is a call as the server writes it.
func callDoc(status string) string {
	failure := "null"
	if status == "failed" {
		failure = `{"code":"tool_failed","message":"no","retryable":true}`
	}
	return `{"call_id":"` + someID + `","idem_key":"k","tool":"charge","status":"` + status + `","attempt":1,"result":{"n": 1.0},"error":` + failure + `,"expires_at":null}`
}

// failedDoc is a call that failed, and was told to wait for half a minute.
func failedDoc(retryable bool, effect idem.Doubt) string {
	return strings.Replace(callDoc("failed"), `"retryable":true`, fmt.Sprintf(`"retryable":%v,"effect":%q,"retry_after":30`, retryable, effect), 1)
}

func refusalDoc(code string) string {
	return `{"error":{"code":"` + code + `","message":"the words","effect":"none"}}`
}
