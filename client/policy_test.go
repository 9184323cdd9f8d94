package client

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPolicyValidate(t *testing.T) {
	if err := DefaultPolicy().Validate(); err != nil {
		t.Error(err)
	}
	err := Policy{Tries: 0, Total: 0, Wait: -1, Timeout: 0, Backoff: 0, BackoffCap: -1, RetryAfterCap: -1, Poll: 0, PollCap: -1}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, s := range []string{"Tries", "Total", "Wait", "Timeout", "Backoff is", "BackoffCap", "RetryAfterCap", "Poll is", "PollCap"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("not reported: %s", s)
		}
	}
	for name, change := range map[string]func(*Policy){
		"too many tries":         func(p *Policy) { p.Tries = maxTries + 1 },
		"waits too long":         func(p *Policy) { p.Wait = maxWait + 1 },
		"caps below their bases": func(p *Policy) { p.BackoffCap, p.PollCap = p.Backoff-1, p.Poll-1 },
	} {
		p := DefaultPolicy()
		change(&p)
		if p.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSpan(t *testing.T) {
	p := Policy{Tries: 3, Total: time.Hour, Wait: 10 * time.Second, Timeout: 5 * time.Second, Backoff: time.Second, BackoffCap: 5 * time.Second, Poll: 1, PollCap: 1}
	for _, tc := range []struct {
		name   string
		change func(*Policy)
		want   time.Duration
	}{
		{"by tries", func(*Policy) {}, (15+1+15+2+15+4+15+5)*time.Second + 15*time.Second},
		{"one try", func(p *Policy) { p.Tries = 1 }, 15 * time.Second},
		{"by what the server may ask for", func(p *Policy) { p.RetryAfterCap = 4 * time.Second }, (15+4+15+4+15+4+15+5)*time.Second + 15*time.Second},
		{"by time", func(p *Policy) { p.Total = time.Minute }, 75 * time.Second},
		{"more than there is", func(p *Policy) { p.Total, p.Timeout = math.MaxInt64, math.MaxInt64/2 }, math.MaxInt64},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := p
			tc.change(&p)
			if got := p.Span(); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// Full jitter: from nothing up to the bound, which doubles up to its cap.
func TestPause(t *testing.T) {
	p := Policy{Backoff: time.Second, BackoffCap: 6 * time.Second, RetryAfterCap: 30 * time.Second, Poll: 2 * time.Second, PollCap: 3 * time.Second}
	for n, want := range []time.Duration{1, 2, 4, 6, 6} {
		want *= time.Second
		if got := p.pause(n, 0, 0.5); got != want/2 {
			t.Errorf("after failure %d: %v, want %v", n, got, want/2)
		}
		if got := p.pause(n, 0, 0); got != 0 {
			t.Errorf("after failure %d: at least %v", n, got)
		}
		if got := p.longest(n); got != 30*time.Second {
			t.Errorf("after failure %d: longest %v", n, got)
		}
	}
	if got := p.pause(0, 7*time.Second, 0.9); got != 7*time.Second {
		t.Errorf("the server asked for 7s: %v", got)
	}
	if got := p.pause(0, time.Hour, 0.9); got != 30*time.Second {
		t.Errorf("the server asked for an hour: %v", got)
	}
	if got := p.pollPause(1, 0, 0.5); got != 1500*time.Millisecond {
		t.Errorf("poll: %v", got)
	}
	if got := bound(1, math.MaxInt64, math.MaxInt); got != math.MaxInt64 {
		t.Errorf("bound overflows: %v", got)
	}
}

// More patience than there is time does not turn into none.
func TestTimeoutIsEndless(t *testing.T) {
	p := swift()
	p.Timeout, p.Tries = math.MaxInt64, 1
	c := newClient(t, "http://idemd.test", Options{Policy: p})
	c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		return respond(200, callDoc("succeeded")), nil
	})
	if _, err := c.Call(t.Context(), charge("k", "1")); err != nil {
		t.Error(err)
	}
}

func TestRetryAfter(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "1.5": 0, "Sun, 29 Nov 2026 16:00:00 GMT": 0,
		"2147483647": math.MaxInt32 * time.Second, "99999999999999999999999": (1<<31 - 1) * time.Second,
	} {
		if got := retryAfter(http.Header{"Retry-After": {s}}); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

// roundTripper is a network.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ProtoMajor: 1}
}

// wire is a network whose every answer a test decides, in the time of synctest.
// It measures when the first submission was sent and when the last one was over.
type wire struct {
	answer      func(r *http.Request, spent func(time.Duration)) (*http.Response, error)
	first, last time.Time
	lastBegan   time.Time // of any request
	submissions int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == pathTools {
		return respond(404, ""), nil
	}
	now := time.Now()
	w.lastBegan = now
	submit := r.Method == http.MethodPost
	if submit {
		if w.submissions++; w.first.IsZero() {
			w.first = now
		}
	}
	resp, err := w.answer(r, func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	})
	if err == nil && r.Context().Err() != nil {
		resp, err = nil, r.Context().Err()
	}
	if submit {
		w.last = time.Now()
	}
	return resp, err
}

func (w *wire) client(t *testing.T, p Policy, chance func() float64) *Client {
	t.Helper()
	c, err := New("http://idemd.test", Options{Policy: p, Chance: chance})
	if err != nil {
		t.Fatal(err)
	}
	c.http.Transport = w
	return c
}

// R16: the worst that a server and chance can do takes as long as Span says, and
// not longer.
func TestSpanIsTheWorstCase(t *testing.T) {
	for name, p := range map[string]Policy{
		"long pauses of the server": {Tries: 4, Total: 24 * time.Hour, Wait: 2 * time.Second, Timeout: 3 * time.Second, Backoff: time.Second, BackoffCap: time.Minute, RetryAfterCap: 20 * time.Second, Poll: 1, PollCap: 1},
		"no wait":                   {Tries: 2, Total: 24 * time.Hour, Timeout: time.Second, Backoff: time.Second, BackoffCap: time.Second, RetryAfterCap: 5 * time.Second, Poll: 1, PollCap: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				almost := p.Wait + p.Timeout - 1
				w := &wire{answer: func(r *http.Request, spent func(time.Duration)) (*http.Response, error) {
					spent(almost)
					if r.Method == http.MethodPost {
						return respond(202, "half", "Retry-After", "99999"), nil
					}
					return respond(503, "", "Retry-After", "99999"), nil
				}}
				c := w.client(t, p, func() float64 { return 1 })
				defer c.Close()
				if _, err := c.Call(t.Context(), Request{Tool: "t", Args: []byte("{}"), Key: "k"}); err == nil {
					t.Fatal("done")
				}
				// Each of the requests ends a nanosecond before it is given up.
				took, slack := w.last.Sub(w.first), time.Duration(2*p.Tries)
				if w.submissions != p.Tries || took > p.Span() || took < p.Span()-slack {
					t.Errorf("%d submissions in %v; the span is %v", w.submissions, took, p.Span())
				}
			})
		})
	}
}

// R16: nothing that a server does takes longer than Span, and no request of any
// kind begins after Total.
func TestSpanHolds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration { return 1 + time.Duration(rng.Int64N(int64(d))) }
	for range 300 {
		p := Policy{
			Tries: 1 + rng.IntN(6), Total: upTo(3 * time.Minute), Wait: time.Duration(rng.IntN(4)) * time.Second, Timeout: upTo(5 * time.Second),
			Backoff: upTo(time.Second), RetryAfterCap: upTo(10 * time.Second), Poll: upTo(time.Second) + time.Second/2,
		}
		p.BackoffCap, p.PollCap = p.Backoff+upTo(10*time.Second), p.Poll+upTo(10*time.Second)
		synctest.Test(t, func(t *testing.T) {
			w := &wire{answer: func(r *http.Request, spent func(time.Duration)) (*http.Response, error) {
				spent(time.Duration(rng.Int64N(int64(2 * (p.Wait + p.Timeout)))))
				after := []string{"0", "1", "8", "9999"}[rng.IntN(4)]
				switch rng.IntN(12) {
				case 0:
					return nil, io.ErrUnexpectedEOF
				case 1:
					return respond(200, callDoc("running"), "Retry-After", after), nil
				case 2:
					return respond(404, refusalDoc("not_found"), "Retry-After", after), nil
				case 3:
					return respond(503, refusalDoc("unavailable"), "Retry-After", after), nil
				case 4, 5, 6:
					return respond(200, "half", "Retry-After", after), nil
				default:
					return respond(500, "", "Retry-After", after), nil
				}
			}}
			c := w.client(t, p, rng.Float64)
			defer c.Close()
			start := time.Now()
			_, _ = c.Call(context.Background(), Request{Tool: "t", Args: []byte("{}"), Key: "k"})
			if took := w.last.Sub(w.first); took > p.Span() || w.submissions > p.Tries {
				t.Errorf("%+v: %d submissions in %v; the span is %v", p, w.submissions, took, p.Span())
			}
			if d := w.lastBegan.Sub(start); d > p.Total {
				t.Errorf("%+v: a request began after %v", p, d)
			}
		})
	}
}
