package tool

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestBuild(t *testing.T) {
	specs, err := Load("testdata/tools.yaml", variables{"PAY_TOKEN": "a", "SMTP_PASSWORD": "b"}.get)
	if err != nil {
		t.Fatal(err)
	}
	tools, closer, err := Build(specs, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closer.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tool := range tools {
		if err := tool.Validate(); err != nil {
			t.Error(err)
		}
	}
	refund, capture, report, rate := named(t, tools, "refund"), named(t, tools, "capture"), named(t, tools, "send_report"), named(t, tools, "rate")
	if refund.Description != "Refund one order once." || refund.Effects != idem.EffectsExternal || refund.Rerun != idem.RerunVerify || refund.Verify == nil ||
		refund.Timeout != 10*time.Second || refund.Settle != 20*time.Second || len(refund.Intent) != 1 || len(refund.Rules.Ignore) != 1 || refund.Unrecorded {
		t.Errorf("refund: %+v", refund)
	}
	if capture.Concurrency != 8 || capture.MaxAttempts != 20 || capture.MaxCrashes != 5 || capture.Rerun != idem.RerunYes || capture.Verify != nil || capture.Settle != 0 {
		t.Errorf("capture: %+v", capture)
	}
	if report.Rerun != idem.RerunHold || report.Schema != nil || report.Check([]byte(`{"x":[]}`)) != nil {
		t.Errorf("send_report: %+v", report)
	}
	if !rate.Unrecorded || rate.Effects != idem.EffectsNone {
		t.Errorf("rate: %+v", rate)
	}
	// The schema, with exact numbers; then what no request can be made of.
	wantInvalid(t, refund.Check([]byte(`{"order_id":"hush"}`)), "hush")
	if err := capture.Check([]byte(`{"amount":9007199254740993}`)); err != nil {
		t.Error(err)
	}
	wantInvalid(t, capture.Check([]byte(`{"amount":9007199254740994}`)))
	wantInvalid(t, rate.Check([]byte(`{"of":["hush"]}`)), "hush")
}

func TestBuildRefuses(t *testing.T) {
	bad := httpSpec(func(s *Spec) { s.Rerun = idem.RerunYes })
	worse := httpSpec(func(s *Spec) { s.Name, s.Schema = "b", []byte(`{"type":"x"}`) })
	tools, closer, err := Build([]*Spec{httpSpec(func(s *Spec) { s.Name = "c" }), bad, worse}, quiet())
	if tools != nil || closer != nil || err == nil || !strings.Contains(err.Error(), "tool: a, rerun: ") || !strings.Contains(err.Error(), "tool: b: input_schema: ") {
		t.Errorf("got %v, %v", tools, err)
	}
}

// A built tool asks what was declared, and its errors show no secret.
func TestBuiltToolShowsNoSecret(t *testing.T) {
	const secret = "s3cr3t-canary"
	statuses := make(chan int, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret || r.URL.Query().Get("t") != secret {
			t.Error("the secret is not sent")
		}
		status := <-statuses
		w.Header().Set("Location", "/"+secret)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("Authorization"))
	}))
	defer srv.Close()
	specs, faults := loadText(t, `version: 1
tools:
- name: a
  effects: external
  rerun: verify
  timeout: 10s
  input_schema: {type: object, required: [x]}
  http:
    method: POST
    url: `+srv.URL+`/do?t=${SECRET}
    headers: {Authorization: "Bearer ${SECRET}"}
    effect_key: {pointer: /id, downstream: ignores}
    success: [200]
    final: [400]
    retryable: [429]
  verify: {method: GET, url: "`+srv.URL+`/ask/{effect_id}?t=${SECRET}", headers: {Authorization: "Bearer ${SECRET}"}, found: [200], absent: [404]}
`, variables{"SECRET": secret})
	if faults != nil {
		t.Fatal(faults)
	}
	tools, closer, err := Build(specs, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closer.Close() }()
	a := tools[0]
	wantInvalid(t, a.Check([]byte(`{"x":1,"id":"mine"}`)), "mine")
	wantInvalid(t, a.Check([]byte(`{}`)))
	args := `{"x":1}`
	if err := a.Check([]byte(args)); err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{400, 429, 303, 500} {
		statuses <- status
		_, err := a.Invoke(t.Context(), invocation(1, args))
		var definite *idem.Failure
		if err == nil || errors.As(err, &definite) != (status == 400 || status == 429) {
			t.Errorf("%d: got %v", status, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%d: the secret is shown: %v", status, err)
		}
	}
	for status, found := range map[int]bool{200: true, 404: false} {
		statuses <- status
		if v, err := a.Verify(t.Context(), invocation(1, args)); err != nil || v.Found != found {
			t.Errorf("%d: got %v, %v", status, v.Found, err)
		}
	}
	statuses <- 503
	if _, err := a.Verify(t.Context(), invocation(1, args)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Invoke(over, invocation(1, args)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
}

// Where a tool sends things is one place as long as it is: another host, path or place
// of the effect id is another one, and a rotated secret, a time-out or a way to ask is
// not.
func TestTarget(t *testing.T) {
	base := func() *Spec {
		return &Spec{Name: "refund", HTTP: &HTTP{
			Method: "POST", URL: "https://pay.example/refunds?token=a", Headers: http.Header{"Authorization": {"a"}},
			EffectKey: EffectKey{Header: "Idempotency-Key"}, Success: []int{200},
		}}
	}
	want := base().target()
	for name, change := range map[string]func(*Spec){
		"secrets":  func(s *Spec) { s.HTTP.URL, s.HTTP.Headers = "https://pay.example/refunds?token=b", nil },
		"time-out": func(s *Spec) { s.Timeout, s.Concurrency = time.Hour, 3 },
		"verify":   func(s *Spec) { s.Verify = &Verify{Method: "GET", URL: "https://pay.example/{effect_id}"} },
		"statuses": func(s *Spec) { s.HTTP.Success = []int{201} },
	} {
		if s := base(); s.HTTP != nil {
			change(s)
			if got := s.target(); got != want {
				t.Errorf("%s: another target", name)
			}
		}
	}
	seen := map[uint64]string{want: "base"}
	for name, change := range map[string]func(*Spec){
		"method":  func(s *Spec) { s.HTTP.Method = "PUT" },
		"scheme":  func(s *Spec) { s.HTTP.URL = "http://pay.example/refunds" },
		"host":    func(s *Spec) { s.HTTP.URL = "https://pay2.example/refunds" },
		"path":    func(s *Spec) { s.HTTP.URL = "https://pay.example/v2/refunds" },
		"header":  func(s *Spec) { s.HTTP.EffectKey.Header = "X-Ref" },
		"pointer": func(s *Spec) { s.HTTP.EffectKey = EffectKey{Pointer: "/Idempotency-Key"} },
		"command": func(s *Spec) {
			s.HTTP, s.Command = nil, &Command{Argv: []string{"/bin/a"}, Env: map[string]string{"ID": "{effect_id}", "S": "x"}}
		},
		"program": func(s *Spec) {
			s.HTTP, s.Command = nil, &Command{Argv: []string{"/bin/b"}, Env: map[string]string{"ID": "{effect_id}"}}
		},
		"name": func(s *Spec) {
			s.HTTP, s.Command = nil, &Command{Argv: []string{"/bin/a"}, Env: map[string]string{"REF": "{effect_id}"}}
		},
	} {
		s := base()
		change(s)
		got := s.target()
		if other, there := seen[got]; there {
			t.Errorf("%s has the target of %s", name, other)
		}
		seen[got] = name
	}
}
