package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

type step struct {
	status int
	body   string
	lose   bool
	half   bool // the connection breaks in the middle of the body
	header map[string]string
}

// script is a server that gives one answer after the other, the last one for
// ever, and keeps what it was asked: S for a submission, F for a look-up by key, G
// for one by id.
type script struct {
	url    string
	mu     sync.Mutex
	asked  strings.Builder
	bodies map[string]bool
	keys   map[string]bool
}

func newScript(t *testing.T, steps ...step) *script {
	t.Helper()
	s := &script{bodies: map[string]bool{}, keys: map[string]bool{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case r.URL.Path == pathTools:
			_, _ = io.WriteString(w, `{"tools":[{"name":"charge","window":"24h0m0s"}]}`)
			return
		case r.Method == http.MethodPost:
			s.asked.WriteByte('S')
			s.bodies[string(body)] = true
			s.keys[r.Header.Get("Idempotency-Key")] = true
		case r.URL.Path == pathByKey:
			s.asked.WriteByte('F')
			s.keys[r.Header.Get("Idempotency-Key")] = true
		case r.URL.Path == pathCalls+"/"+someID:
			s.asked.WriteByte('G')
		default:
			s.asked.WriteByte('?')
		}
		now := steps[0]
		if len(steps) > 1 {
			steps = steps[1:]
		}
		if now.lose {
			panic(http.ErrAbortHandler)
		}
		for k, v := range now.header {
			w.Header().Set(k, v)
		}
		if now.half {
			w.Header().Set("Content-Length", "100000")
		}
		w.WriteHeader(now.status)
		_, _ = io.WriteString(w, now.body)
	}))
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

func (s *script) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked.String()
}

func TestCall(t *testing.T) {
	lost := step{lose: true}
	answer := func(status int, call string) step { return step{status: status, body: callDoc(call)} }
	refuse := func(status int, code idem.Code) step { return step{status: status, body: refusalDoc(string(code))} }
	ok, pending := answer(200, "succeeded"), answer(202, "pending")
	absent, busy := refuse(404, idem.CodeNotFound), refuse(503, idem.CodeUnavailable)
	const none, unknown = idem.DoubtNone, idem.DoubtUnknown
	for _, tc := range []struct {
		name   string
		steps  []step
		asked  string
		code   idem.Code // empty where there is an outcome
		effect idem.Doubt
	}{
		{"done at once", []step{ok}, "S", "", idem.DoubtCommitted},
		{"failed is an outcome", []step{answer(200, "failed")}, "S", "", none},
		{"accepted, then done", []step{pending, answer(200, "running"), ok}, "SGG", "", idem.DoubtCommitted},
		{"accepted, answers lost, then done", []step{pending, lost, {status: 500}, busy, ok}, "SGGGG", "", idem.DoubtCommitted},
		{"accepted, then held", []step{pending, answer(200, "held")}, "SG", idem.CodeOutcomeUnknown, unknown},
		{"accepted, then lost by the server", []step{pending, absent}, "SG", idem.CodeNotFound, unknown},
		{"accepted, then not let in", []step{pending, refuse(401, idem.CodeUnauthorized)}, "SG", idem.CodeUnauthorized, unknown},
		{"lost, found done", []step{lost, ok}, "SFS", "", idem.DoubtCommitted},
		{"lost, found running", []step{lost, answer(200, "running"), answer(202, "running"), ok}, "SFSG", "", idem.DoubtCommitted},
		// A question names only the key: what it finds may be another's.
		{"lost, found done, conflict", []step{lost, ok, refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		{"lost, found running, conflict", []step{lost, answer(200, "running"), refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		// It would run again if it were sent again, which is the caller's to decide.
		{"lost, found failed and retryable", []step{lost, answer(200, "failed")}, "SF", "", none},
		{"lost, found failed for good", []step{lost, {status: 200, body: strings.Replace(callDoc("failed"), `"retryable":true`, `"retryable":false`, 1)}}, "SFS", "", none},
		{"lost, found held", []step{lost, answer(200, "held")}, "SF", idem.CodeOutcomeUnknown, unknown},
		{"lost, not found, done", []step{lost, absent, ok}, "SFS", "", idem.DoubtCommitted},
		{"lost, question lost, done", []step{lost, lost, ok}, "SFS", "", idem.DoubtCommitted},
		{"lost, somebody else's 404, done", []step{lost, {status: 404}, ok}, "SFS", "", idem.DoubtCommitted},
		{"lost, question not allowed, done", []step{lost, refuse(403, idem.CodeForbidden), ok}, "SFS", "", idem.DoubtCommitted},
		{"lost, expired", []step{lost, refuse(410, idem.CodeKeyExpired)}, "SF", idem.CodeKeyExpired, unknown},
		{"lost, not found, expired", []step{lost, absent, refuse(410, idem.CodeKeyExpired)}, "SFS", idem.CodeKeyExpired, unknown},
		{"expired at first", []step{refuse(410, idem.CodeKeyExpired)}, "S", idem.CodeKeyExpired, none},
		{"broken, found", []step{{status: 200, body: "{"}, ok}, "SFS", "", idem.DoubtCommitted},
		// Half a refusal may be that of a held call, or of another.
		{"half a refusal, found", []step{{status: 409, body: `{"error":{"co`, half: true}, ok}, "SFS", "", idem.DoubtCommitted},
		{"half a call, found", []step{{status: 200, body: callDoc("succeeded"), half: true}, ok}, "SFS", "", idem.DoubtCommitted},
		{"a call of a state that nobody knows", []step{answer(200, "thinking"), ok}, "SFS", "", idem.DoubtCommitted},
		{"a call with an id that is none", []step{{status: 202, body: strings.Replace(callDoc("pending"), someID, "../../stats", 1)}, ok}, "SFS", "", idem.DoubtCommitted},
		{"lost, somebody else's call found", []step{lost, {status: 200, body: strings.Replace(callDoc("succeeded"), `"charge"`, `"other"`, 1)}, refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		// Another's answer, by a cache or a proxy that mixes them up, is none.
		{"another key's call, found", []step{{status: 200, body: strings.Replace(callDoc("succeeded"), `"k"`, `"other"`, 1)}, ok}, "SFS", "", idem.DoubtCommitted},
		{"another tool's call, conflict", []step{{status: 200, body: strings.Replace(callDoc("succeeded"), `"charge"`, `"other"`, 1)}, absent, refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		{"lost, another key's call found, done", []step{lost, {status: 200, body: strings.Replace(callDoc("held"), `"k"`, `"other"`, 1)}, ok}, "SFS", "", idem.DoubtCommitted},
		{"accepted, then another call, then done", []step{pending, {status: 200, body: strings.Replace(callDoc("succeeded"), someID, "c_ff112233445566778899aabbccddeeff", 1)}, ok}, "SGG", "", idem.DoubtCommitted},
		{"lost, somebody else's call found, failed and retryable", []step{lost, {status: 200, body: strings.Replace(callDoc("failed"), `"charge"`, `"other"`, 1)}, refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		// A conflict says whose the key is; not so when it answers a question about a call.
		{"accepted, then a conflict", []step{pending, refuse(409, idem.CodeConflict)}, "SG", idem.CodeConflict, unknown},
		{"failed without an answer of the tool", []step{{status: 200, body: strings.Replace(callDoc("failed"), "tool_failed", "tool_timeout", 1)}}, "S", "", unknown},
		{"failed in doubt, may be asked again", []step{{status: 200, body: failedDoc(true, unknown)}}, "S", "", unknown},
		{"failed in doubt for good", []step{{status: 200, body: failedDoc(false, unknown)}}, "S", idem.CodeOutcomeUnknown, unknown},
		{"accepted, then failed in doubt for good", []step{pending, {status: 200, body: failedDoc(false, unknown)}}, "SG", idem.CodeOutcomeUnknown, unknown},
		{"lost, found failed in doubt for good", []step{lost, {status: 200, body: failedDoc(false, unknown)}}, "SFS", idem.CodeOutcomeUnknown, unknown},
		{"lost, found failed in doubt for good, conflict", []step{lost, {status: 200, body: failedDoc(false, unknown)}, refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		{"lost at last, and found failed in doubt for good", []step{busy, busy, lost, {status: 200, body: failedDoc(false, unknown)}}, "SSSF", idem.CodeOutcomeUnknown, unknown},
		{"lost, found failed, and it is known", []step{lost, {status: 200, body: failedDoc(true, none)}}, "SF", "", none},
		{"busy, done", []step{busy, busy, ok}, "SSS", "", idem.DoubtCommitted},
		{"the server failed, done", []step{{status: 500}, {status: 502}, ok}, "SSS", "", idem.DoubtCommitted},
		{"refused", []step{refuse(422, idem.CodeInvalidArguments)}, "S", idem.CodeInvalidArguments, none},
		{"held", []step{refuse(409, idem.CodeOutcomeUnknown)}, "S", idem.CodeOutcomeUnknown, unknown},
		{"conflict", []step{refuse(409, idem.CodeConflict)}, "S", idem.CodeConflict, none},
		// The key was never ours, so nothing of ours was carried out under it.
		{"lost, not found, conflict", []step{lost, absent, refuse(409, idem.CodeConflict)}, "SFS", idem.CodeConflict, none},
		// What is refused now says nothing of what was lost before.
		{"lost, not found, refused", []step{lost, absent, refuse(401, idem.CodeUnauthorized)}, "SFS", idem.CodeUnauthorized, unknown},
		{"the server failed, refused", []step{{status: 500}, refuse(400, idem.CodeBadRequest)}, "SS", idem.CodeBadRequest, unknown},
		{"redirected", []step{{status: 307, header: map[string]string{"Location": "/"}}}, "S", CodeNotIdemd, none},
		{"redirected after it was done", []step{{status: 303, header: map[string]string{"Location": "/"}}}, "S", CodeNotIdemd, unknown},
		{"busy for ever", []step{busy}, "SSS", CodeRetryExhausted, none},
		// Many write {"error":{"code":…}}; only idemd says what became of the effect.
		{"busy, says somebody else", []step{{status: 503, body: `{"error":{"code":"unavailable","message":""}}`}}, "SSSF", CodeRetryExhausted, unknown},
		{"lost for ever", []step{lost}, "SFSFSF", CodeRetryExhausted, unknown},
		{"lost and never found", []step{lost, absent, lost, absent, lost, absent}, "SFSFSF", CodeRetryExhausted, unknown},
		{"lost at last, and found", []step{busy, busy, lost, ok}, "SSSF", "", idem.DoubtCommitted},
		{"lost, then busy for ever", []step{lost, absent, busy}, "SFSSF", CodeRetryExhausted, unknown},
		{"failed for ever", []step{{status: 500}}, "SSSF", CodeRetryExhausted, unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript(t, tc.steps...)
			var observed []Try
			p := swift()
			p.Tries = 3
			c := newClient(t, s.url, Options{Policy: p, Observe: func(a Answer) { observed = append(observed, a.Try) }})
			out, err := c.Call(t.Context(), charge("k", "1e2"))
			if got := s.all(); got != tc.asked {
				t.Errorf("asked %s, want %s", got, tc.asked)
			}
			tries, effect := out.Tries, out.Try.Verdict.Effect
			if tc.code == "" {
				if err != nil || !out.Call.Status.Ended() {
					t.Fatalf("%v, %+v", err, out.Call)
				}
			} else {
				var e *Error
				if !errors.As(err, &e) || e.Code != tc.code || e.Key != "k" {
					t.Fatalf("%+v, want %s", err, tc.code)
				}
				tries, effect = e.Tries, e.Effect
				if !errors.Is(err, &idem.Error{Code: tc.code}) || errors.Is(err, ErrClosed) {
					t.Error("errors.Is does not go by the code")
				}
			}
			if effect != tc.effect {
				t.Errorf("effect %s, want %s", effect, tc.effect)
			}
			kinds := ""
			for i, try := range tries {
				kinds += map[Kind]string{KindSubmit: "S", KindFind: "F", KindGet: "G"}[try.Kind]
				if try.Number != i+1 {
					t.Errorf("try %d has the number %d", i+1, try.Number)
				}
			}
			if kinds != tc.asked || len(observed) != len(tries) {
				t.Errorf("told of %s, and observed %d", kinds, len(observed))
			}
			// R1: never another key, never other bytes.
			if len(s.keys) != 1 || !s.keys["k"] || len(s.bodies) != 1 || !s.bodies[`{"tool":"charge","args":{"amount":1e2}}`] {
				t.Errorf("keys %v, bodies %v", s.keys, s.bodies)
			}
		})
	}
}

// With RetryFailed a call that may be asked for again is, with the same key and
// bytes and not before what the tool calls asked for; its last failure is what came
// of it.
func TestRetryFailed(t *testing.T) {
	ok, pending := step{status: 200, body: callDoc("succeeded")}, step{status: 202, body: callDoc("pending")}
	lost, absent := step{lose: true}, step{status: 404, body: refusalDoc("not_found")}
	busy := step{status: 503, body: refusalDoc("unavailable")}
	failed := step{status: 200, body: failedDoc(true, idem.DoubtNone)}
	doubtful := step{status: 200, body: failedDoc(true, idem.DoubtUnknown)}
	final := step{status: 200, body: failedDoc(false, idem.DoubtNone)}
	for _, tc := range []struct {
		name   string
		steps  []step
		asked  string
		status idem.Status // of the outcome; empty where there is an error
		effect idem.Doubt
	}{
		{"then done", []step{failed, doubtful, ok}, "SSS", idem.StatusSucceeded, idem.DoubtCommitted},
		{"for ever", []step{failed}, "SSS", idem.StatusFailed, idem.DoubtNone},
		{"for ever, in doubt", []step{doubtful}, "SSS", idem.StatusFailed, idem.DoubtUnknown},
		{"for good", []step{final, ok}, "S", idem.StatusFailed, idem.DoubtNone},
		{"accepted, then failed, then done", []step{pending, failed, pending, ok}, "SGSG", idem.StatusSucceeded, idem.DoubtCommitted},
		{"lost, found failed, then done", []step{lost, failed, ok}, "SFS", idem.StatusSucceeded, idem.DoubtCommitted},
		{"lost at last, found failed", []step{failed, failed, lost, failed}, "SSSF", idem.StatusFailed, idem.DoubtNone},
		{"then for good and in doubt", []step{failed, {status: 200, body: failedDoc(false, idem.DoubtUnknown)}}, "SS", "", idem.DoubtUnknown},
		// What failed settles what was lost before it, and not what it says itself.
		{"lost, failed for certain, then busy", []step{lost, absent, failed, busy}, "SFSS", "", idem.DoubtNone},
		{"failed in doubt, then busy", []step{doubtful, busy}, "SSSF", "", idem.DoubtUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript(t, tc.steps...)
			p := swift()
			p.Tries, p.RetryFailed, p.RetryAfterCap = 3, true, 20*time.Second
			var pauses []time.Duration
			c := newClient(t, s.url, Options{Policy: p, Pause: func(_ context.Context, d time.Duration) error {
				pauses = append(pauses, d)
				return nil
			}})
			out, err := c.Call(t.Context(), charge("k", "1"))
			if got := s.all(); got != tc.asked {
				t.Errorf("asked %s, want %s", got, tc.asked)
			}
			effect := out.Try.Verdict.Effect
			var e *Error
			switch {
			case tc.status == "" && errors.As(err, &e):
				effect = e.Effect
			case tc.status == "" || err != nil || out.Call.Status != tc.status:
				t.Fatalf("%+v, %v", out.Call, err)
			}
			if effect != tc.effect {
				t.Errorf("effect %s, want %s", effect, tc.effect)
			}
			// What the tool calls asked for is more than the cap.
			if strings.HasPrefix(tc.asked, "SS") && pauses[0] != 20*time.Second {
				t.Errorf("paused %v", pauses)
			}
			if len(s.keys) != 1 || len(s.bodies) != 1 {
				t.Errorf("keys %v, bodies %v", s.keys, s.bodies)
			}
		})
	}

	t.Run("not after the time", func(t *testing.T) {
		s := newScript(t, failed)
		p := swift()
		p.RetryFailed, p.Total = true, 25*time.Second
		out, err := newClient(t, s.url, Options{Policy: p}).Call(t.Context(), charge("k", "1"))
		if err != nil || out.Call.Status != idem.StatusFailed || s.all() != "S" {
			t.Errorf("%+v, %v, asked %s", out.Call, err, s.all())
		}
	})
}

// The error of a call that failed for good in doubt shows the call.
func TestFailedInDoubtForGood(t *testing.T) {
	c := newClient(t, newScript(t, step{status: 200, body: failedDoc(false, idem.DoubtUnknown)}).url, Options{})
	for _, err := range []error{
		second(c.Call(t.Context(), charge("k", "1"))), second(c.Submit(t.Context(), charge("k", "1"))),
		second(c.Find(t.Context(), "k")), second(c.Get(t.Context(), someID)), second(c.Wait(t.Context(), someID)),
	} {
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, idem.ErrOutcomeUnknown) || e.Effect != idem.DoubtUnknown || e.Call == nil ||
			e.Call.Status != idem.StatusFailed || !e.Call.Error.InDoubt() || !strings.Contains(e.Message, "failed for good with tool_failed") {
			t.Errorf("%+v", err)
		}
	}
}

// What is found at the end under our key is not ours, and settles nothing.
func TestLastQuestionFindsAnotherCall(t *testing.T) {
	busy := step{status: 503, body: refusalDoc("unavailable")}
	s := newScript(t, busy, step{lose: true}, step{status: 200, body: strings.Replace(callDoc("succeeded"), `"charge"`, `"other"`, 1)})
	p := swift()
	p.Tries = 2
	_, err := newClient(t, s.url, Options{Policy: p}).Call(t.Context(), charge("k", "1"))
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeRetryExhausted || e.Effect != idem.DoubtUnknown || s.all() != "SSF" {
		t.Errorf("%+v, asked %s", err, s.all())
	}
}

// The same when it is not the tries that are used up, but the time, or the window.
func TestQuestionFindsAnotherCallTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(r *http.Request, spent func(time.Duration)) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return nil, io.ErrUnexpectedEOF
			}
			spent(10 * time.Second)
			return respond(200, strings.Replace(callDoc("succeeded"), `"charge"`, `"other"`, 1)), nil
		}}
		p := DefaultPolicy()
		p.Total = 5 * time.Second
		c := w.client(t, p, func() float64 { return 0 })
		defer c.Close()
		var e *Error
		if _, err := c.Call(t.Context(), charge("k", "1")); !errors.As(err, &e) || e.Code != CodeRetryExhausted || e.Effect != idem.DoubtUnknown || w.submissions != 1 {
			t.Errorf("%+v, %d submissions", err, w.submissions)
		}
	})
	for tool, code := range map[string]idem.Code{"other": idem.CodeKeyExpired, "charge": ""} {
		s := newScript(t, step{status: 200, body: strings.Replace(callDoc("succeeded"), `"charge"`, `"`+tool+`"`, 1)})
		f, err := charge("k", "1").freeze()
		if err != nil {
			t.Fatal(err)
		}
		r := &run{c: newClient(t, s.url, Options{}), f: f, window: time.Hour, first: time.Now().Add(-time.Hour), resumed: true, doubt: true}
		var e *Error
		out, err := r.call(t.Context())
		if s.all() != "F" || code == "" && (err != nil || out.Call.Status != idem.StatusSucceeded) ||
			code != "" && (!errors.As(err, &e) || e.Code != code || e.Effect != idem.DoubtUnknown) {
			t.Errorf("%s: asked %s, %+v, %+v", tool, s.all(), out.Call, err)
		}
	}
}

// A question that brings nothing does not say that nothing was done.
func TestQuestionThatIsRefused(t *testing.T) {
	for _, answer := range []step{{status: 401, body: refusalDoc("unauthorized")}, {status: 404, body: refusalDoc("not_found")}, {status: 410, body: refusalDoc("key_expired")}, {status: 503, body: refusalDoc("unavailable")}} {
		c := newClient(t, newScript(t, answer).url, Options{})
		for _, err := range []error{second(c.Find(t.Context(), "k")), second(c.Get(t.Context(), someID))} {
			var e *Error
			if !errors.As(err, &e) || e.Effect != idem.DoubtUnknown {
				t.Errorf("%d: %+v", answer.status, err)
			}
		}
	}
}

// With one try there is one request on the wire, whatever comes of it.
func TestOneTry(t *testing.T) {
	s := newScript(t, step{lose: true}, step{status: 200, body: callDoc("succeeded")})
	p := swift()
	p.Tries = 1
	_, err := newClient(t, s.url, Options{Policy: p}).Call(t.Context(), charge("k", "1"))
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeRetryExhausted || e.Effect != idem.DoubtUnknown || s.all() != "S" {
		t.Errorf("%v, asked %s", err, s.all())
	}
	if !errors.Is(err, &Error{Code: CodeNoAnswer}) {
		t.Error("what lay behind is lost")
	}
}

// The key of an error is one to be used again, whatever its bytes are.
func TestKeyOfAnError(t *testing.T) {
	s := newScript(t, step{lose: true})
	c := newClient(t, s.url, Options{})
	r := charge(`"\"quoted"`, "1")
	for range 2 {
		_, err := c.Call(t.Context(), r)
		var e *Error
		if !errors.As(err, &e) || e.Key != `"\"quoted"` {
			t.Fatalf("%+v", err)
		}
		r.Key = e.Key
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) != 1 {
		t.Errorf("keys %v", s.keys)
	}
}

func TestNobodyListens(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	_, err := newClient(t, srv.URL, Options{}).Call(t.Context(), charge("k", "1"))
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeRetryExhausted || e.Effect != idem.DoubtNone || !errors.Is(err, ErrNotSent) || len(e.Tries) != DefaultPolicy().Tries {
		t.Errorf("%+v", err)
	}
}

func TestHandIn(t *testing.T) {
	s := newScript(t, step{lose: true}, step{status: 200, body: callDoc("running")})
	r := charge("k", "1")
	r.HandIn = true
	out, err := newClient(t, s.url, Options{}).Call(t.Context(), r)
	if err != nil || out.Call.Status != idem.StatusRunning || s.all() != "SFS" {
		t.Errorf("%v, %+v, asked %s", err, out.Call, s.all())
	}
}

// An accepted call is asked for as long as the budget lasts, and not longer; the
// server's wish is honoured.
func TestPollUntilTheTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		w := &wire{answer: func(r *http.Request, _ func(time.Duration)) (*http.Response, error) {
			at = append(at, time.Since(start))
			if r.Method == http.MethodPost {
				return respond(202, callDoc("pending"), "Retry-After", "7"), nil
			}
			return respond(200, callDoc("running")), nil
		}}
		p := DefaultPolicy()
		p.Total, p.Poll, p.PollCap = 30*time.Second, 4*time.Second, 8*time.Second
		c := w.client(t, p, func() float64 { return 1 })
		defer c.Close()
		_, err := c.Call(t.Context(), charge("k", "1"))
		var e *Error
		if !errors.As(err, &e) || e.Code != CodePending || e.Effect != idem.DoubtUnknown || e.CallID != someID || e.Key != "k" {
			t.Errorf("%+v", err)
		}
		if want := []time.Duration{0, 7 * time.Second, 15 * time.Second, 23 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("asked at %v, want %v", at, want)
		}
	})
}

// A question that comes back when the time is up is not followed by a send.
func TestNothingIsSentAfterTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(r *http.Request, spent func(time.Duration)) (*http.Response, error) {
			spent(10 * time.Second)
			if r.Method == http.MethodPost {
				return nil, io.ErrUnexpectedEOF
			}
			return respond(404, refusalDoc("not_found")), nil
		}}
		p := DefaultPolicy()
		p.Total = 15 * time.Second
		c := w.client(t, p, func() float64 { return 0 })
		defer c.Close()
		if _, err := c.Call(t.Context(), charge("k", "1")); !errors.Is(err, ErrRetryExhausted) || w.submissions != 1 {
			t.Errorf("%v, %d submissions", err, w.submissions)
		}
	})
}

func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		sent   bool
		effect idem.Doubt
	}{{"before it was sent", false, idem.DoubtNone}, {"while it waits for the answer", true, idem.DoubtUnknown}} {
		t.Run(tc.name, func(t *testing.T) {
			d := newIdemd(t, time.Hour)
			arrived := make(chan struct{}, 1)
			d.failing(func(r *http.Request, _ int) fault {
				if r.Method == http.MethodPost {
					arrived <- struct{}{}
					return hang
				}
				return fine
			})
			ctx, cancel := context.WithCancel(t.Context())
			if tc.sent {
				go func() { <-arrived; cancel() }()
			} else {
				cancel()
			}
			_, err := newClient(t, d.url, Options{}).Call(ctx, charge("k", "1"))
			cancel()
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeInterrupted || e.Effect != tc.effect || !errors.Is(err, context.Canceled) {
				t.Errorf("%+v", err)
			}
			if n := len(d.posts()); (n == 1) != tc.sent {
				t.Errorf("%d submissions", n)
			}
		})
	}
}

// Close interrupts what is going on, and nothing begins after it.
func TestClose(t *testing.T) {
	d := newIdemd(t, time.Hour)
	arrived := make(chan struct{}, 1)
	d.failing(func(r *http.Request, _ int) fault {
		if r.Method == http.MethodPost {
			arrived <- struct{}{}
			return hang
		}
		return fine
	})
	c := newClient(t, d.url, Options{})
	over := make(chan error)
	go func() { _, err := c.Call(context.Background(), charge("k", "1")); over <- err }()
	<-arrived
	closed := make(chan struct{})
	go func() { c.Close(); close(closed) }()
	var e *Error
	if err := <-over; !errors.As(err, &e) || e.Code != CodeInterrupted || e.Effect != idem.DoubtUnknown {
		t.Errorf("%+v", err)
	}
	<-closed
	for name, err := range map[string]error{
		"Call":   second(c.Call(t.Context(), charge("k", "1"))),
		"Submit": second(c.Submit(t.Context(), charge("k", "1"))),
		"Find":   second(c.Find(t.Context(), "k")),
		"Get":    second(c.Get(t.Context(), someID)),
		"Wait":   second(c.Wait(t.Context(), someID)),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.Close()
}

// When Close has returned, nothing of the client runs.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(*http.Request, func(time.Duration)) (*http.Response, error) {
			time.Sleep(time.Minute) // it does not know that nobody waits any more
			return nil, io.ErrUnexpectedEOF
		}}
		c := w.client(t, DefaultPolicy(), nil)
		returned := false
		var mu sync.Mutex
		go func() {
			_, _ = c.Submit(context.Background(), charge("k", "1"))
			mu.Lock()
			defer mu.Unlock()
			returned = true
		}()
		synctest.Wait()
		start := time.Now()
		c.Close()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if took := time.Since(start); !returned || took != time.Minute {
			t.Errorf("closed after %v", took)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestBadRequestsAreNotSent(t *testing.T) {
	s := newScript(t, step{status: 200, body: callDoc("succeeded")})
	c := newClient(t, s.url, Options{})
	name := "\xff"
	for name, r := range map[string]Request{
		"no key":         {Tool: "t", Args: []byte("{}")},
		"a key and none": {Tool: "t", Args: []byte("{}"), Key: "k", NoKey: true},
		"bad key":        {Tool: "t", Args: []byte("{}"), Key: " k"},
		"no tool":        {Args: []byte("{}"), Key: "k"},
		"no args":        {Tool: "t", Key: "k"},
		"not UTF-8":      {Tool: "t\xff", Args: []byte("{}"), Key: "k"},
		"not a name":     {Tool: "t", Args: []byte("{}"), Key: "k", ClientID: &name},
		"not JSON":       {Tool: "t", Args: []byte("{"), Key: "k"},
		"a member twice": {Tool: "t", Args: []byte(`{"a":1,"a":2}`), Key: "k"},
		"more than args": {Tool: "t", Args: []byte(`{},"seq":7`), Key: "k"},
	} {
		for _, err := range []error{second(c.Call(t.Context(), r)), second(c.Submit(t.Context(), r))} {
			var e *Error
			if !errors.As(err, &e) || e.Effect != idem.DoubtNone || e.Status != 0 || e.Code != idem.CodeBadRequest && e.Code != idem.CodeMissingKey {
				t.Errorf("%s: %+v", name, err)
			}
		}
	}
	for _, id := range []string{"", "by-key", "../../stats", someID + "/audit"} {
		if _, err := c.Get(t.Context(), id); !errors.Is(err, idem.ErrNotFound) {
			t.Errorf("Get %q: %v", id, err)
		}
		if _, err := c.Wait(t.Context(), id); !errors.Is(err, idem.ErrNotFound) {
			t.Errorf("Wait %q: %v", id, err)
		}
	}
	if s.all() != "" {
		t.Errorf("asked %s", s.all())
	}
}

func TestNew(t *testing.T) {
	for _, u := range []string{"", "127.0.0.1:8081", "ftp://host", "http://", "http://host?x=1", "http://host/#f", "http://a b"} {
		if _, err := New(u, Options{}); err == nil {
			t.Errorf("%q: accepted", u)
		}
	}
	// Another spelling would be a second line of the same header.
	_, err := New("nowhere", Options{Policy: Policy{Tries: 1}, Header: http.Header{"idempotency-key": {"k"}}})
	for _, s := range []string{"http://HOST:PORT", "Total", "Idempotency-Key"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not say %q", err, s)
		}
	}
}

func TestHeaderGoesWithEverything(t *testing.T) {
	got := make(chan string, 3)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization") + " " + r.Header.Get("Idempotency-Key")
		_, _ = io.WriteString(w, callDoc("succeeded"))
	}))
	defer srv.Close()
	value := []string{"x"}
	given := http.Header{"authorization": value}
	c := newClient(t, srv.URL+"/", Options{Header: given})
	value[0] = "changed later"
	_, _ = c.Submit(t.Context(), charge(`"a\"b"`, "1"))
	_, _ = c.Find(t.Context(), `"a\"b"`)
	_, _ = c.Get(t.Context(), someID)
	for _, want := range []string{`x a"b`, `x a"b`, "x "} {
		if h := <-got; h != want {
			t.Errorf("%q, want %q", h, want)
		}
	}
}

// An answer that does not end is not read to its end.
func TestAnswerTooLong(t *testing.T) {
	p := swift()
	p.Tries = 1
	c := newClient(t, "http://idemd.test", Options{Policy: p})
	c.http.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
		resp := respond(200, "")
		resp.Body = io.NopCloser(endless{})
		return resp, nil
	})
	a, err := c.Submit(t.Context(), charge("k", "1"))
	if a.Body != nil || !a.Try.Reading.Broken || !errors.Is(err, &Error{Code: CodeNoAnswer}) {
		t.Errorf("%v, %+v", err, a.Try)
	}
}

// What a server says is kept, logged and shown with every try, so it has a bound.
func TestLongWords(t *testing.T) {
	long := strings.Repeat("\u00e9", 1<<20)
	refuse := func(code, message string) step {
		return step{status: 503, body: `{"error":{"code":"` + code + `","message":"` + message + `","call_id":"../x","effect":"none"}}`}
	}
	s := newScript(t, refuse("unavailable", long), refuse(long, "no"), step{status: 200, body: strings.Replace(callDoc("failed"), "tool_failed", long, 1)})
	var log bytes.Buffer
	out, err := newClient(t, s.url, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}).Call(t.Context(), charge("k", "1"))
	kept, _ := json.Marshal(out.Tries)
	if err != nil || len(out.Tries) != 3 || len(kept) > 2*maxMessage || log.Len() > 2*maxMessage || out.Tries[1].Reading.Code != "" || out.Tries[0].CallID != "" {
		t.Errorf("%v, %d tries of %d bytes, %d bytes in the log", err, len(out.Tries), len(kept), log.Len())
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// The log has a line for each try, and never a whole key.
func TestLog(t *testing.T) {
	for key, prefix := range map[string]string{"order-1234-secret": "order-12…", "abcd": "ab…"} {
		s := newScript(t, step{status: 503, body: refusalDoc("unavailable")}, step{status: 200, body: strings.Replace(callDoc("succeeded"), `"k"`, `"`+key+`"`, 1)})
		var log bytes.Buffer
		c := newClient(t, s.url, Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		if _, err := c.Call(t.Context(), charge(key, "1")); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log.String(), key) {
			t.Errorf("the key is in the log: %s", &log)
		}
		lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
		if len(lines) != 2 {
			t.Fatalf("%s", &log)
		}
		var got struct {
			Try, Status                     int
			Kind, Key, Code, Effect, Action string
		}
		if err := json.Unmarshal(lines[0], &got); err != nil || got.Try != 1 || got.Status != 503 || got.Kind != "submit" || got.Key != prefix ||
			got.Code != "unavailable" || got.Effect != "none" || got.Action != "again" {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestTryJSON(t *testing.T) {
	b, err := json.Marshal(Try{Number: 2, Kind: KindFind, Key: "k", CallID: someID, Reading: Reading{Status: 503, Code: idem.CodeUnavailable, RetryAfter: time.Second},
		Verdict: Verdict{idem.DoubtNone, ActionAgain, "w"}, Began: time.Unix(0, 0).UTC(), Duration: 5})
	want := `{"try":2,"kind":"find","key":"k","call_id":"` + someID + `","reading":{"status":503,"code":"unavailable","retry_after":"1s"},` +
		`"verdict":{"effect":"none","action":"again","why":"w"},"replayed":false,"began":"1970-01-01T00:00:00Z","duration_ns":5}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

// R16
func TestWindow(t *testing.T) {
	short := func() Policy { p := swift(); p.RetryAfterCap = 0; return p } // its span is about 2 min
	t.Run("covers the span", func(t *testing.T) {
		d := newIdemd(t, 24*time.Hour)
		c := newClient(t, d.url, Options{Policy: short()})
		for _, key := range []string{"a", "b"} {
			if _, err := c.Call(t.Context(), charge(key, "1")); err != nil {
				t.Fatal(err)
			}
		}
		if d.gets() != 1 {
			t.Errorf("the window was learnt %d times", d.gets())
		}
	})
	t.Run("shorter than the span", func(t *testing.T) {
		d := newIdemd(t, time.Minute)
		_, err := newClient(t, d.url, Options{Policy: short()}).Call(t.Context(), charge("k", "1"))
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrWindowTooShort) || e.Effect != idem.DoubtNone ||
			!strings.Contains(e.Message, short().Span().String()) || !strings.Contains(e.Message, "1m0s") {
			t.Errorf("%+v", err)
		}
		if n := len(d.posts()); n != 0 {
			t.Errorf("%d submissions", n)
		}
	})
	t.Run("as long as the span", func(t *testing.T) {
		d := newIdemd(t, short().Span())
		if _, err := newClient(t, d.url, Options{Policy: short()}).Call(t.Context(), charge("k", "1")); err != nil {
			t.Error(err)
		}
	})
	for _, none := range []string{"0s", "-24h0m0s"} {
		t.Run("is none: "+none, func(t *testing.T) {
			c := newClient(t, "http://idemd.test", Options{})
			c.http.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
				return respond(200, `{"tools":[{"name":"charge","window":"`+none+`"}]}`), nil
			})
			if _, err := c.Call(t.Context(), charge("k", "1")); !errors.Is(err, ErrWindowTooShort) {
				t.Errorf("%+v", err)
			}
		})
	}
	t.Run("one try needs none", func(t *testing.T) {
		d := newIdemd(t, time.Second)
		p := short()
		p.Tries = 1
		if _, err := newClient(t, d.url, Options{Policy: p}).Call(t.Context(), charge("k", "1")); err != nil || d.gets() != 0 {
			t.Error(err, d.gets())
		}
	})
	for name, answer := range map[string]fault{"lost": dropResponse, "half": halfBody} {
		t.Run("cannot be learnt, "+name, func(t *testing.T) {
			d := newIdemd(t, time.Hour)
			d.failing(func(r *http.Request, _ int) fault {
				if r.URL.Path == pathTools {
					return answer
				}
				return fine
			})
			var log bytes.Buffer
			if _, err := newClient(t, d.url, Options{Policy: short(), Logger: slog.New(slog.NewTextHandler(&log, nil))}).Call(t.Context(), charge("k", "1")); err != nil {
				t.Error(err)
			}
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "window cannot be learnt") {
				t.Errorf("log: %s", &log)
			}
			p := short()
			p.RequireWindow = true
			if _, err := newClient(t, d.url, Options{Policy: p}).Call(t.Context(), charge("k2", "1")); !errors.Is(err, ErrWindowUnknown) {
				t.Errorf("%+v", err)
			}
			if n := len(d.posts()); n != 1 {
				t.Errorf("%d submissions", n)
			}
		})
	}
	t.Run("of a tool that the server does not have", func(t *testing.T) {
		d := newIdemd(t, time.Hour)
		p := short()
		p.RequireWindow = true
		if _, err := newClient(t, d.url, Options{Policy: p}).Call(t.Context(), Request{Tool: "nope", Args: []byte("{}"), Key: "k"}); !errors.Is(err, ErrWindowUnknown) {
			t.Errorf("%+v", err)
		}
	})
	// However many ask, nobody waits longer than one question may take.
	t.Run("is not told", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, err := New("http://idemd.test", Options{Policy: short()})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == pathTools {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return respond(200, callDoc("succeeded")), nil
			})
			start := time.Now()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if _, err := c.Call(t.Context(), charge("k", "1")); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if took := time.Since(start); took != short().Timeout {
				t.Errorf("took %v", took)
			}
		})
	})
	// A machine that slept comes back when the key may be forgotten.
	t.Run("is over before the next send", func(t *testing.T) {
		r := &run{c: newClient(t, "http://idemd.test", Options{}), window: time.Hour, first: time.Now().Add(-time.Hour), doubt: true}
		var e *Error
		if err := r.mayStillSend(); !errors.As(err, &e) || e.Code != idem.CodeKeyExpired || e.Effect != idem.DoubtUnknown {
			t.Errorf("%+v", err)
		}
		r.first = time.Now().Add(-time.Hour + time.Minute)
		if err := r.mayStillSend(); err != nil {
			t.Error(err)
		}
	})
}

// R8, R18: whatever the network does, one intent has one effect, and the client
// knows it.
func TestOneEffect(t *testing.T) {
	for name, f := range map[string]fault{"request lost": dropRequest, "answer lost": dropResponse, "half an answer": halfBody} {
		t.Run(name, func(t *testing.T) {
			d := newIdemd(t, time.Hour)
			d.failing(func(r *http.Request, n int) fault {
				if r.Method == http.MethodPost && n <= 3 {
					return f
				}
				return fine
			})
			out, err := newClient(t, d.url, Options{}).Call(t.Context(), charge("k", "1"))
			if err != nil || out.Call.Status != idem.StatusSucceeded {
				t.Fatal(err)
			}
			if got := d.effects(t); !slices.Equal(got, []string{"k"}) {
				t.Errorf("ledger %v", got)
			}
		})
	}
}

// Submit makes one request, and Wait asks until there is an end.
func TestSubmitThenWait(t *testing.T) {
	d := newIdemd(t, time.Hour)
	p := swift()
	p.Wait = 0
	c := newClient(t, d.url, Options{Policy: p})
	a, err := c.Submit(t.Context(), Request{Tool: "charge", Args: []byte(`{"amount":1}`), Key: "k"})
	if err != nil || a.Replayed {
		t.Fatal(err)
	}
	out, err := c.Wait(t.Context(), a.Call.CallID)
	if err != nil || out.Call.Status != idem.StatusSucceeded {
		t.Fatal(err)
	}
	again, err := c.Submit(t.Context(), Request{Tool: "charge", Args: []byte(`{ "amount": 1.0 }`), Key: "k"})
	if err != nil || !again.Replayed || !bytes.Equal(again.Call.Result, out.Call.Result) {
		t.Errorf("%v, %+v", err, again.Call)
	}
	if _, err := c.Submit(t.Context(), charge("k", "2")); !errors.Is(err, idem.ErrConflict) {
		t.Errorf("%v", err)
	}
	if _, err := c.Find(t.Context(), "other"); !errors.Is(err, idem.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Wait(t.Context(), someID); !errors.Is(err, idem.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// R8, R15, R18: many calls of one client and one journal, over a network that fails
// at random, their callers gone at random: nothing that was said not to be done is
// in the ledger, everything that was said to be done is, the journal has the rest,
// and goes on with it. Each once.
func TestLeftAtAnyTime(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex // of rng and what follows
	leave := map[string]context.CancelFunc{}
	d := newIdemd(t, time.Hour)
	d.failing(func(r *http.Request, _ int) fault {
		mu.Lock()
		defer mu.Unlock()
		if cancel := leave[r.Header.Get("Idempotency-Key")]; cancel != nil && rng.IntN(4) == 0 {
			cancel()
		}
		return []fault{fine, fine, dropRequest, dropResponse, halfBody}[rng.IntN(5)]
	})
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"))
	p := swift()
	p.Tries = 2
	c := newClient(t, d.url, Options{Policy: p, Journal: j})
	const calls = 80
	var all sync.WaitGroup
	said := map[string]idem.Doubt{}
	for worker := range 8 {
		all.Go(func() {
			for n := worker; n < calls; n += 8 {
				ctx, cancel := context.WithCancel(t.Context())
				key := fmt.Sprint("key-", n)
				mu.Lock()
				leave[key] = cancel
				if rng.IntN(20) == 0 {
					cancel() // before it begins
				}
				mu.Unlock()
				out, err := c.Call(ctx, charge(key, "1"))
				cancel()
				effect := out.Try.Verdict.Effect
				var e *Error
				if errors.As(err, &e) {
					effect = e.Effect
				}
				mu.Lock()
				said[key] = effect
				mu.Unlock()
			}
		})
	}
	all.Wait()
	d.failing(func(*http.Request, int) fault { return fine })
	open := j.Open()
	if _, err := c.Resume(t.Context()); err != nil || len(j.Open()) != 0 {
		t.Errorf("%v, open: %v", err, j.Open())
	}
	ledger := d.effects(t)
	for key, effect := range said {
		n := 0
		for _, k := range ledger {
			if k == key {
				n++
			}
		}
		if want := effect != idem.DoubtNone; n > 1 || (n == 1) != want || slices.Contains(open, key) != (effect == idem.DoubtUnknown) {
			t.Errorf("%s: said %s, in the ledger %d times, open %v", key, effect, n, slices.Contains(open, key))
		}
	}
}
