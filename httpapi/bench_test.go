package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// BenchmarkServe is what the contract costs on top of net/http and of whatever
// runs the calls: a request that is already parsed, a service that knows the
// answer.
func BenchmarkServe(b *testing.B) {
	key := idem.Key{Namespace: idem.DefaultNamespace, Name: "demo-1"}
	pending := exampleCall(key)
	done := ended(pending, `{"receipt":"rcpt_328cf229017519fb65ec5ef3fd1f8193","amount":100}`)
	svc := &fakeService{}
	svc.callByKey = func(context.Context, idem.Key, time.Duration) (idem.Call, error) { return done, nil }
	s := New(svc, Options{})

	run := func(name, method, path, body string, hs http.Header, a idem.Answer) {
		b.Run(name, func(b *testing.B) {
			svc.submit = func(context.Context, idem.Submission) (idem.Answer, error) { return a, nil }
			w := &discard{header: make(http.Header)}
			reader := strings.NewReader(body)
			u, err := url.Parse(path)
			if err != nil {
				b.Fatal(err)
			}
			r := &http.Request{Method: method, URL: u, Proto: "HTTP/1.1", Host: "x", Header: hs, Body: io.NopCloser(reader), ContentLength: int64(len(body))}
			b.ReportAllocs()
			for b.Loop() {
				reader.Reset(body)
				clear(w.header)
				s.routes.ServeHTTP(w, r)
			}
			if w.status >= 300 {
				b.Fatalf("status %d", w.status)
			}
		})
	}
	post := http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"demo-1"}, "User-Agent": {"bench"}, "Content-Length": {"68"}}
	const body = `{"tool":"charge","args":{"amount":100},"client_id":"demo","seq":1}`
	run("new", "POST", "/v1/tool-calls", body, post, idem.Answer{Call: pending, Verdict: idem.VerdictCreated})
	run("replay", "POST", "/v1/tool-calls", body, post, idem.Answer{Call: done, Verdict: idem.VerdictReplayed})
	waiting := post.Clone()
	waiting.Set("Prefer", "wait=10")
	run("wait", "POST", "/v1/tool-calls", body, waiting, idem.Answer{Call: done, Verdict: idem.VerdictCreated})
	run("by key", "GET", "/v1/tool-calls/by-key/demo-1", "", http.Header{"User-Agent": {"bench"}}, idem.Answer{})
	run("health", "GET", "/healthz", "", http.Header{}, idem.Answer{})
}

// BenchmarkEnvelope is the parsing alone.
func BenchmarkEnvelope(b *testing.B) {
	body := []byte(`{"tool":"charge","args":{"amount":100},"client_id":"demo","seq":1}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		env, err := parseEnvelope(body)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := idem.FingerprintOf(env.tool, env.args); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header              { return d.header }
func (d *discard) WriteHeader(status int)           { d.status = status }
func (d *discard) SetReadDeadline(time.Time) error  { return nil }
func (d *discard) SetWriteDeadline(time.Time) error { return nil }
func (d *discard) Write(b []byte) (int, error)      { return len(b), nil }
