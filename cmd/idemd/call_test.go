package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCall(t *testing.T) {
	failed := `{"code":"tool_failed","message":"no\u001b","retryable":true}`
	for _, tc := range []struct {
		name   string
		reply  reply
		code   int
		stdout string
		stderr string
	}{
		{"succeeded", reply{status: 200, body: call("succeeded", `{"a":1}`, "null")}, exitSucceeded, `{"a":1}` + "\n", "succeeded, attempt 2, call " + testID + "\n"},
		{"given again", reply{status: 200, body: call("succeeded", `{"a":1}`, "null"), header: map[string]string{"Idempotent-Replayed": "true"}}, exitSucceeded, `{"a":1}` + "\n", "given again"},
		{"failed", reply{status: 200, body: call("failed", "null", failed)}, exitFailed, "", "tool_failed: no\uFFFD (the same key may ask again)"},
		{"pending", reply{status: 202, body: call("pending", "null", "null")}, exitPending, "", "pending"},
		{"running", reply{status: 202, body: call("running", "null", "null")}, exitPending, "", "running"},
		{"conflict", reply{status: 409, body: refuse("idempotency_conflict")}, exitConflict, "", "idempotency_conflict: the words (call " + testID + ")"},
		{"held", reply{status: 409, body: refuse("outcome_unknown")}, exitUnknown, "", "idemd resolve"},
		{"expired", reply{status: 410, body: refuse("key_expired")}, exitNotFound, "", "key_expired"},
		{"bad request", reply{status: 400, body: refuse("bad_request")}, exitUsage, "", "bad_request"},
		{"invalid arguments", reply{status: 422, body: refuse("invalid_arguments")}, exitUsage, "", "invalid_arguments"},
		{"unauthorized", reply{status: 401, body: refuse("unauthorized")}, exitUsage, "", "unauthorized"},
		{"too large", reply{status: 413, body: refuse("payload_too_large")}, exitUsage, "", "payload_too_large"},
		{"code of a later release", reply{status: 418, body: refuse("teapot")}, exitUsage, "", "teapot"},
		{"unavailable", reply{status: 503, body: refuse("unavailable")}, exitUnavailable, "", "unavailable"},
		{"disk full", reply{status: 507, body: refuse("insufficient_storage")}, exitUnavailable, "", "insufficient_storage"},
		{"a bug", reply{status: 500, body: refuse("internal")}, exitUnknown, "", "same key"},
		{"answer lost", reply{lose: true}, exitUnknown, "", "It is not known whether the call was made"},
		{"half an answer", reply{status: 200, body: call("succeeded", "1", "null"), half: true}, exitUnknown, "", "half an answer"},
		{"not JSON", reply{status: 200, body: "hello"}, exitUnknown, "", "not idemd's"},
		{"not a call", reply{status: 200, body: `{"status":"ok"}`}, exitUnknown, "", "not idemd's"},
		{"status of a later release", reply{status: 200, body: call("thinking", "null", "null")}, exitUnknown, "", "not idemd's"},
		{"somebody's 503", reply{status: 503, body: "no upstream"}, exitUnknown, "", "not idemd's"},
		{"somebody's 404", reply{status: 404, body: "404 page not found"}, exitUsage, "", "--url"},
		{"somebody's 408", reply{status: 408}, exitUnknown, "", "not idemd's"},
		{"redirect", reply{status: 307, header: map[string]string{"Location": "/v1/tool-calls"}}, exitUsage, "", "--url"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, json := range []bool{false, true} {
				s := serve(t, tc.reply)
				args := []string{"call", "charge", `{"amount": 1.50}`, "--key", "k", "--url", s.URL}
				if json {
					o := runIdemd(t, "", append(args, "--json")...)
					want := tc.reply.body + "\n"
					if tc.reply.half || !strings.HasPrefix(tc.reply.body, "{") {
						want = ""
					}
					if o.code != tc.code || o.stdout != want {
						t.Errorf("--json: exit code %d, %s", o.code, o.stdout)
					}
				} else {
					runIdemd(t, "", args...).want(t, tc.code, tc.stdout, tc.stderr)
				}
				asked := s.asked()
				if len(asked) != 1 {
					t.Fatalf("%d requests for one try", len(asked))
				}
				want := request{"POST /v1/tool-calls", "k", "wait=10", "application/json", `{"tool":"charge","args":{"amount": 1.50}}`}
				if asked[0] != want {
					t.Errorf("asked %+v, want %+v", asked[0], want)
				}
			}
		})
	}
}

func TestCallTimesOut(t *testing.T) {
	s := serve(t, reply{stall: true})
	runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", s.URL, "--wait", "0", "--timeout", "20ms").
		want(t, exitUnknown, "", "--timeout", "It is not known")
}

func TestCallIsInterrupted(t *testing.T) {
	s := serve(t, reply{stall: true})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan int)
	go func() {
		over <- run(ctx, []string{"call", "charge", "{}", "--key", "k", "--url", s.URL, "--retries", "5"}, nil, io.Discard, io.Discard)
	}()
	select {
	case <-s.arrived:
	case code := <-over:
		t.Fatalf("ended with %d", code)
	}
	cancel()
	if code := <-over; code != exitUnknown {
		t.Errorf("exit code %d, want %d", code, exitUnknown)
	}
	if n := len(s.asked()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestCallUnavailable(t *testing.T) {
	o := runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", "http://127.0.0.1:1", "--retries", "2")
	o.want(t, exitUnavailable, "", "no connection", "try 1:", "try 2:")
	if len(o.pauses) != 2 || o.pauses[0] <= 0 {
		t.Errorf("paused %v", o.pauses)
	}
}

func TestCallRetries(t *testing.T) {
	ok := reply{status: 200, body: call("succeeded", "1", "null")}
	busy := reply{status: 503, body: refuse("unavailable"), header: map[string]string{"Retry-After": "7"}}
	lost := reply{lose: true}
	conflict := reply{status: 409, body: refuse("idempotency_conflict")}
	for _, tc := range []struct {
		name    string
		retries string
		replies []reply
		code    int
		tries   int
	}{
		{"none by default", "0", []reply{lost, ok}, exitUnknown, 1},
		{"lost, then done", "3", []reply{lost, ok}, exitSucceeded, 2},
		{"busy, then done", "3", []reply{busy, busy, ok}, exitSucceeded, 3},
		{"half, bug, proxy, then done", "3", []reply{{status: 200, body: "{", half: true}, {status: 500, body: refuse("internal")}, {status: 502}, ok}, exitSucceeded, 4},
		{"not often enough", "2", []reply{lost}, exitUnknown, 3},
		{"busy for ever", "2", []reply{busy}, exitUnavailable, 3},
		// Busy does not say what became of the try before it.
		{"lost, then busy", "1", []reply{lost, busy}, exitUnknown, 2},
		{"busy, then lost", "1", []reply{busy, lost}, exitUnknown, 2},
		{"lost, then not let in", "1", []reply{lost, {status: 401, body: refuse("unauthorized")}}, exitUnknown, 2},
		{"lost, then conflict", "5", []reply{lost, conflict, ok}, exitConflict, 2},
		{"held ends it", "5", []reply{{status: 409, body: refuse("outcome_unknown")}, ok}, exitUnknown, 1},
		{"refusal ends it", "5", []reply{{status: 400, body: refuse("bad_request")}, ok}, exitUsage, 1},
		{"tool failure ends it", "5", []reply{{status: 200, body: call("failed", "null", `{"code":"tool_failed","message":"","retryable":true}`)}, ok}, exitFailed, 1},
		{"pending ends it", "5", []reply{{status: 202, body: call("pending", "null", "null")}, ok}, exitPending, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.replies...)
			o := runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", s.URL, "--retries", tc.retries, "--seq", "3")
			if o.code != tc.code {
				t.Errorf("exit code %d, want %d; %s", o.code, tc.code, o.stderr)
			}
			asked := s.asked()
			if len(asked) != tc.tries || len(o.pauses) != tc.tries-1 {
				t.Fatalf("%d requests, %d pauses; want %d tries", len(asked), len(o.pauses), tc.tries)
			}
			for _, r := range asked {
				if r != asked[0] || r.key != "k" || r.body != `{"tool":"charge","args":{},"seq":3}` {
					t.Errorf("a try differs: %+v", r)
				}
			}
			for i, d := range o.pauses {
				if tc.replies[min(i, len(tc.replies)-1)].header != nil && d != 7*time.Second {
					t.Errorf("paused %v, the server asked for 7s", d)
				}
			}
		})
	}
}

// One try is one request on the wire, on a connection of its own, since Go
// sends some requests again by itself when a reused connection is dead.
func TestOneRequestForOneTry(t *testing.T) {
	ok := reply{status: 200, body: call("succeeded", "1", "null")}
	for _, args := range [][]string{
		{"call", "charge", "{}", "--key", "k", "--retries", "3"},
		{"get", testID}, {"find", "k"}, {"health"}, {"stats"},
	} {
		t.Run(args[0], func(t *testing.T) {
			s := serve(t, ok, reply{lose: true}, reply{lose: true}, ok)
			for range 3 {
				runIdemd(t, "", append(args, "--url", s.URL)...)
			}
			if asked := len(s.asked()); s.conns != asked {
				t.Errorf("%d requests on %d connections", asked, s.conns)
			}
		})
	}
}

func TestCallArgs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte("\n{\"from\": \"file\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, stdin, want string }{
		{`{"n": 9007199254740993.10, "s":"<&>\u00e9"}`, "", `{"n": 9007199254740993.10, "s":"<&>\u00e9"}`},
		{"-", "  {\"from\":\"stdin\"}\n", `{"from":"stdin"}`},
		{"@" + file, "", `{"from": "file"}`},
	} {
		s := serve(t, reply{status: 202, body: call("pending", "null", "null")})
		runIdemd(t, tc.stdin, "call", `a"b`, tc.args, "--key", "k", "--url", s.URL+"/", "--wait", "0").want(t, exitPending, "", "pending")
		asked := s.asked()
		if want := `{"tool":"a\"b","args":` + tc.want + `}`; len(asked) != 1 || asked[0].body != want || asked[0].prefer != "" {
			t.Errorf("asked %+v, want %s", asked, want)
		}
	}
}

func TestWaitIsInWholeSeconds(t *testing.T) {
	for wait, want := range map[string]string{"0": "", "1ms": "wait=1", "1s": "wait=1", "1500ms": "wait=2", "60s": "wait=60"} {
		s := serve(t, reply{status: 200, body: call("succeeded", "1", "null")})
		runIdemd(t, "", "get", testID, "--url", s.URL, "--wait", wait)
		if asked := s.asked(); len(asked) != 1 || asked[0].prefer != want {
			t.Errorf("--wait %s: asked %+v", wait, asked)
		}
	}
}
