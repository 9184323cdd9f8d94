package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
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
		{"failed without an answer", reply{status: 200, body: call("failed", "null", `{"code":"tool_timeout","message":"late","retryable":true}`)}, exitUnknown, "", "may have been done"},
		{"failed in doubt", reply{status: 200, body: call("failed", "null", `{"code":"busy","message":"","retryable":true,"effect":"unknown","retry_after":90}`)}, exitUnknown, "",
			"busy:  (the same key may ask again, after 1m30s; it may have been done all the same)\nIt is not known whether it was done. Ask again with the same key"},
		{"failed in doubt for good", reply{status: 200, body: call("failed", "null", `{"code":"declined","message":"no","retryable":false,"effect":"unknown"}`)}, exitUnknown, "",
			"failed, attempt 2, call " + testID + "\ndeclined: no (it may have been done all the same)\nIt is not known whether it was done, and asking again will not tell."},
		{"failed for certain", reply{status: 200, body: call("failed", "null", `{"code":"tool_timeout","message":"late","retryable":true,"effect":"none"}`)}, exitFailed, "", "tool_timeout: late (the same key may ask again)\n"},
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
		{"another key's call", reply{status: 200, body: strings.Replace(call("succeeded", "1", "null"), `"k"`, `"other"`, 1)}, exitUnknown, "", "about another call"},
		{"redirect", reply{status: 307, header: map[string]string{"Location": "/v1/tool-calls"}}, exitUsage, "", "--url"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, json := range []bool{false, true} {
				s := serve(t, tc.reply)
				args := []string{"call", "charge", `{"amount": 1.50}`, "--key", "k", "--url", s.URL}
				if json {
					o := runIdemd(t, "", append(args, "--json")...)
					want := tc.reply.body + "\n"
					if tc.reply.half || tc.name == "another key's call" || !strings.HasPrefix(tc.reply.body, "{") {
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
	runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", s.URL, "--wait", "0", "--timeout", "1s").
		want(t, exitUnknown, "", "--timeout", "It is not known")
}

func TestCallIsInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name    string
		replies []reply
		code    int
	}{
		{"after it was sent", []reply{{status: 200, body: toolsDoc}, {stall: true}}, exitUnknown},
		{"before", []reply{{stall: true}}, exitUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.replies...)
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan int)
			go func() {
				over <- run(ctx, []string{"call", "charge", "{}", "--key", "k", "--url", s.URL, "--retries", "5"}, nil, io.Discard, io.Discard)
			}()
			for range tc.replies {
				select {
				case <-s.arrived:
				case code := <-over:
					t.Fatalf("ended with %d", code)
				}
			}
			cancel()
			if code := <-over; code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if n := len(s.asked()); n != len(tc.replies) {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestCallUnavailable(t *testing.T) {
	o := runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", "http://127.0.0.1:1", "--retries", "2")
	o.want(t, exitUnavailable, "", "no connection", "try 1:", "try 2:")
	if len(o.pauses) != 2 || o.pauses[0] <= 0 {
		t.Errorf("paused %v", o.pauses)
	}
}

const toolsDoc = `{"tools":[{"name":"charge","window":"24h0m0s"},{"name":"brief","window":"1s"}]}`

// The requests of a script are named by what they ask: S is a submission, F a
// look-up by key.
func TestCallRetries(t *testing.T) {
	ok := reply{status: 200, body: call("succeeded", "1", "null")}
	busy := reply{status: 503, body: refuse("unavailable"), header: map[string]string{"Retry-After": "7"}}
	lost := reply{lose: true}
	absent := reply{status: 404, body: refuse("not_found")}
	conflict := reply{status: 409, body: refuse("idempotency_conflict")}
	expired := reply{status: 410, body: refuse("key_expired")}
	for _, tc := range []struct {
		name    string
		retries string
		replies []reply
		code    int
		asked   string
		pauses  int
	}{
		{"none by default", "0", []reply{lost, ok}, exitUnknown, "S", 0},
		{"lost, but done", "3", []reply{lost, ok}, exitSucceeded, "SFS", 1},
		{"lost, and done for another request", "3", []reply{lost, ok, conflict}, exitConflict, "SFS", 1},
		{"lost on the way there, then done", "3", []reply{lost, absent, ok}, exitSucceeded, "SFS", 1},
		{"lost, question lost, then done", "3", []reply{lost, lost, ok}, exitSucceeded, "SFS", 2},
		{"lost, and running", "3", []reply{lost, {status: 200, body: call("running", "null", "null")}}, exitPending, "SFS", 1},
		{"lost, and held", "3", []reply{lost, {status: 200, body: call("held", "null", "null")}}, exitUnknown, "SF", 1},
		{"busy, then done", "3", []reply{busy, busy, ok}, exitSucceeded, "SSS", 2},
		{"half, bug, proxy, then done", "3", []reply{{status: 200, body: "{", half: true}, {status: 500, body: refuse("internal")}, {status: 502}, ok}, exitSucceeded, "SFSS", 3},
		{"not often enough", "2", []reply{lost}, exitUnknown, "SFSFSF", 5},
		{"busy for ever", "2", []reply{busy}, exitUnavailable, "SSS", 2},
		// Busy does not say what became of the try before it.
		{"lost, then busy", "1", []reply{lost, absent, busy}, exitUnknown, "SFSF", 2},
		{"busy, then lost", "1", []reply{busy, lost}, exitUnknown, "SSF", 2},
		{"lost, then not let in", "1", []reply{lost, {status: 401, body: refuse("unauthorized")}}, exitUnknown, "SFS", 2},
		{"lost, then conflict", "5", []reply{lost, absent, conflict, ok}, exitConflict, "SFS", 1},
		{"lost, then expired", "5", []reply{lost, expired, ok}, exitNotFound, "SF", 1},
		{"held ends it", "5", []reply{{status: 409, body: refuse("outcome_unknown")}, ok}, exitUnknown, "S", 0},
		{"refusal ends it", "5", []reply{{status: 400, body: refuse("bad_request")}, ok}, exitUsage, "S", 0},
		{"tool failure ends it", "5", []reply{{status: 200, body: call("failed", "null", `{"code":"tool_failed","message":"","retryable":true}`)}, ok}, exitFailed, "S", 0},
		{"pending ends it", "5", []reply{{status: 202, body: call("pending", "null", "null")}, ok}, exitPending, "S", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			replies := tc.replies
			if tc.retries != "0" {
				replies = append([]reply{{status: 200, body: toolsDoc}}, replies...)
			}
			s := serve(t, replies...)
			o := runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", s.URL, "--retries", tc.retries, "--seq", "3")
			if o.code != tc.code {
				t.Errorf("exit code %d, want %d; %s", o.code, tc.code, o.stderr)
			}
			asked := s.asked()
			if tc.retries != "0" {
				if asked[0].line != "GET /v1/tools" {
					t.Fatalf("first asked %+v", asked[0])
				}
				asked = asked[1:]
			}
			got := ""
			for _, r := range asked {
				switch r {
				case request{"POST /v1/tool-calls", "k", "wait=10", "application/json", `{"tool":"charge","args":{},"seq":3}`}:
					got += "S"
				case request{line: "GET /v1/tool-calls/by-key", key: "k", prefer: "wait=10"}:
					got += "F"
				default:
					t.Errorf("a try differs: %+v", r)
				}
			}
			if got != tc.asked || len(o.pauses) != tc.pauses {
				t.Fatalf("asked %s with %d pauses, want %s with %d", got, len(o.pauses), tc.asked, tc.pauses)
			}
			if tc.replies[0].header != nil && o.pauses[0] != 7*time.Second {
				t.Errorf("paused %v, the server asked for 7s", o.pauses[0])
			}
		})
	}
}

// A tool that keeps no record is called without a key; the server says of any other
// that it needs one.
func TestCallWithoutKey(t *testing.T) {
	done := reply{status: 200, body: `{"recorded":false,"tool":"look","status":"succeeded","result":{"n": 1.0},"error":null}`}
	failed := reply{status: 200, body: `{"recorded":false,"tool":"look","status":"failed","result":null,"error":{"code":"x","message":"no","retryable":true,"effect":"none"}}`}
	tools := reply{status: 200, body: `{"tools":[{"name":"look","window":"1s","recorded":false}]}`}
	silent := reply{status: 200, body: `{"tools":[{"name":"look","window":"24h"}]}`}
	lost := reply{lose: true}
	for _, tc := range []struct {
		name    string
		args    []string
		replies []reply
		code    int
		stdout  string
		says    string
		posts   int
	}{
		{"done", nil, []reply{done}, 0, `{"n": 1.0}` + "\n", "succeeded, not recorded", 1},
		{"failed", nil, []reply{failed}, exitFailed, "", "failed, not recorded\nx: no (it may be asked for again)", 1},
		{"the tool keeps a record", nil, []reply{{status: 400, body: refuse("missing_idempotency_key")}}, exitUsage, "", "must come from your intent", 1},
		{"lost", nil, []reply{lost, done}, exitUnknown, "", "may be run again", 1},
		{"lost, and sent again", []string{"--retries", "2"}, []reply{tools, lost, done}, 0, `{"n": 1.0}` + "\n", "try 1: no answer", 2},
		{"lost, and not sent again", []string{"--retries", "2"}, []reply{silent, lost, done}, exitUnknown, "", "may be run again", 1},
		{"as JSON", []string{"--json"}, []reply{done}, 0, done.body + "\n", "", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.replies...)
			o := runIdemd(t, "", append([]string{"call", "look", `{"n":1}`, "--url", s.URL}, tc.args...)...)
			if o.code != tc.code || o.stdout != tc.stdout || !strings.Contains(o.stderr, tc.says) || strings.Contains(o.stderr, "with the same key;") {
				t.Errorf("%+v", o)
			}
			posts := 0
			for _, r := range s.asked() {
				if r.line == "POST /v1/tool-calls" {
					posts++
				}
				if r.key != "" {
					t.Errorf("asked %+v", r)
				}
			}
			if posts != tc.posts {
				t.Errorf("%d submissions", posts)
			}
		})
	}
	s := serve(t, done)
	for _, args := range [][]string{{"--journal", filepath.Join(t.TempDir(), "j")}, {"--new-key-on-retry"}} {
		runIdemd(t, "", append([]string{"call", "look", "{}", "--url", s.URL}, args...)...).want(t, exitUsage, "", "must come from your intent")
	}
	if n := len(s.asked()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestCallRetryFailed(t *testing.T) {
	failed := reply{status: 200, body: call("failed", "null", `{"code":"busy","message":"","retryable":true,"effect":"unknown","retry_after":7}`)}
	ok := reply{status: 200, body: call("succeeded", "1", "null")}
	args := []string{"call", "charge", "{}", "--key", "k", "--retries", "1", "--retry-failed", "--url"}
	s := serve(t, reply{status: 200, body: toolsDoc}, failed, ok)
	o := runIdemd(t, "", append(args, s.URL)...)
	o.want(t, 0, "1\n", "try 1: the call has failed, and may have been done all the same", "again with the same key")
	if len(o.pauses) != 1 || o.pauses[0] != 7*time.Second {
		t.Errorf("paused %v, the tool asked for 7s", o.pauses)
	}
	s = serve(t, reply{status: 200, body: toolsDoc}, failed)
	runIdemd(t, "", append(args, s.URL)...).want(t, exitUnknown, "", "Ask again with the same key")
	runIdemd(t, "", append(args, s.URL, "--new-key-on-retry")...).want(t, exitUsage, "", "contradict")
}

// The key is made of what the tool declares to name its intent.
func TestCallKeyFromScope(t *testing.T) {
	const doc = `{"tools":[{"name":"charge","window":"24h","intent":["/order","/to/0"],"fingerprint":{"ignore":["/memo"],"trim":[],"nfc":["/to/0"]}},{"name":"bare","window":"24h","intent":[]}]}`
	key, err := idem.KeyFor("shop-1", "charge", []byte(`{"/to/0":"\u00e9","/order":7}`))
	if err != nil {
		t.Fatal(err)
	}
	ok := reply{status: 200, body: strings.Replace(call("succeeded", "1", "null"), `"k"`, `"`+key+`"`, 1)}
	for _, args := range []string{`{"order":7,"to":["\u00e9","b"],"memo":1}`, `{"memo":2, "to": [" e\u0301 "], "order": 7.0}`} {
		s := serve(t, reply{status: 200, body: doc}, ok)
		runIdemd(t, args, "call", "charge", "-", "--key-from", "shop-1", "--url", s.URL).want(t, 0, "1\n", "succeeded")
		if asked := s.asked(); len(asked) != 2 || asked[0].line != "GET /v1/tools" || asked[1].key != key {
			t.Errorf("asked %+v, want the key %s", asked, key)
		}
	}
	for _, tc := range []struct {
		tool, args string
		reply      reply
		code       int
		says       string
	}{
		{"charge", `{"order":7}`, reply{status: 200, body: doc}, exitUsage, "no /to/0"},
		{"charge", `{"order":`, reply{status: 200, body: doc}, exitUsage, "JSON"},
		{"bare", `{}`, reply{status: 200, body: doc}, exitUsage, "does not declare"},
		{"nope", `{}`, reply{status: 200, body: doc}, exitUsage, "has no tool nope"},
		{"charge", `{}`, reply{lose: true}, exitUnavailable, "no answer"},
		{"charge", `{}`, reply{status: 500, body: refuse("internal")}, exitUnavailable, "500"},
	} {
		s := serve(t, tc.reply)
		runIdemd(t, "", "call", tc.tool, tc.args, "--key-from", "shop-1", "--url", s.URL).want(t, tc.code, "", tc.says)
		if n := len(s.asked()); n != 1 {
			t.Errorf("%s: %d requests", tc.says, n)
		}
	}
	runIdemd(t, "", "call", "charge", "{}", "--key-from", "shop-1", "--url", "http://127.0.0.1:1").want(t, exitUnavailable, "", "no connection")
}

// R16: retries that could outlive the key are refused before anything is sent.
func TestCallWindow(t *testing.T) {
	s := serve(t, reply{status: 200, body: toolsDoc})
	runIdemd(t, "", "call", "brief", "{}", "--key", "k", "--url", s.URL, "--retries", "1").
		want(t, exitUsage, "", "may retry for 1m45s", "remembers a key for 1s")
	if n := len(s.asked()); n != 1 {
		t.Errorf("%d requests", n)
	}
	s = serve(t, reply{status: 404, body: refuse("not_found")}, reply{status: 200, body: call("succeeded", "1", "null")})
	runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", s.URL, "--retries", "1").
		want(t, exitSucceeded, "1\n", "cannot be learnt", "succeeded")
}

// R1: the same intent, however it is spelled, has the same key.
func TestCallKeyFrom(t *testing.T) {
	key, err := idem.KeyFor("user-7/2026-11", "charge", []byte(`{"to":"a,b","amount":1}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{`user-7/2026-11,charge,{"to":"a,b","amount":1}`, `user-7/2026-11,charge,{"amount": 1.0, "to":" a,b "}`} {
		s := serve(t, reply{status: 200, body: strings.Replace(call("succeeded", "1", "null"), `"k"`, `"`+key+`"`, 1)})
		runIdemd(t, "", "call", "charge", "{}", "--key-from", from, "--url", s.URL).want(t, exitSucceeded, "1\n", "succeeded")
		if asked := s.asked(); len(asked) != 1 || asked[0].key != key {
			t.Errorf("asked %+v, want the key %s", asked, key)
		}
	}
	for args, says := range map[string]string{
		"--key-from=a,b":                         "SCOPE,TOOL,INTENT",
		"--key-from=":                            "a scope",
		"--key-from=,b,{}":                       "a scope",
		"--key-from=a,b,{":                       "JSON",
		"--key=k --key-from=a,b,{}":              "one of them",
		"--key=k --retries=1000":                 "at most 999",
		"--key=k --wait=61s":                     "--wait",
		"--key=k --journal=/":                    "--journal",
		"--key=k --journal=x --new-key-on-retry": "contradict",
	} {
		runIdemd(t, "", append([]string{"call", "charge", "{}"}, strings.Fields(args)...)...).want(t, exitUsage, "", says)
	}
}

// The damage that a new key does, and the warning that goes with it.
func TestCallNewKeyOnRetry(t *testing.T) {
	s := serve(t, reply{lose: true}, reply{status: 503, body: refuse("unavailable"), header: map[string]string{"Retry-After": "7"}}, reply{status: 200, body: call("succeeded", "1", "null"), echo: true})
	o := runIdemd(t, "", "call", "charge", "{}", "--key", `"\"k"`, "--url", s.URL, "--retries", "5", "--new-key-on-retry")
	o.want(t, exitSucceeded, "1\n", "WARNING", "carried out a second time", "A NEW KEY")
	asked := s.asked()
	if len(asked) != 3 || asked[0].key != `"\"k"` || !strings.HasPrefix(asked[1].key, `"\"k-`) {
		t.Fatalf("asked %+v", asked)
	}
	keys := map[string]bool{}
	for _, r := range asked {
		keys[r.key] = true
		if r.line != "POST /v1/tool-calls" || r.body != asked[0].body {
			t.Errorf("a try differs: %+v", r)
		}
	}
	if len(keys) != 3 || len(o.pauses) != 2 || o.pauses[1] != 7*time.Second {
		t.Errorf("keys %v, pauses %v", keys, o.pauses)
	}
	// A lost answer stays in doubt, although the last try was only refused.
	s = serve(t, reply{lose: true}, reply{status: 503, body: refuse("unavailable")})
	runIdemd(t, "", "call", "charge", "{}", "--key", "k", "--url", s.URL, "--retries", "1", "--new-key-on-retry").
		want(t, exitUnknown, "", "It is not known whether the call was made")
}

func TestCallJournal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "journal")
	tools := reply{status: 200, body: toolsDoc}
	absent := reply{status: 404, body: refuse("not_found")}
	args := []string{"call", "charge", `{"amount": 1.50}`, "--key", "k", "--journal", file, "--url"}

	s := serve(t, tools, reply{lose: true})
	runIdemd(t, "", append(args, s.URL)...).want(t, exitUnknown, "", "the journal has 1 calls")

	runIdemd(t, "", "call", "charge", `{"amount": 2}`, "--key", "k", "--journal", file, "--url", s.URL).
		want(t, exitConflict, "", "this key with another request", "the journal has 1 calls")

	s = serve(t, tools, absent, reply{status: 200, body: call("succeeded", "1", "null")})
	runIdemd(t, "", append(args, s.URL)...).want(t, exitSucceeded, "1\n", "succeeded")
	asked := s.asked()
	if len(asked) != 3 || asked[1].line != "GET /v1/tool-calls/by-key" || asked[1].key != "k" ||
		asked[2].key != "k" || asked[2].body != `{"tool":"charge","args":{"amount": 1.50}}` {
		t.Errorf("asked %+v", asked)
	}

	j, err := client.OpenJournal(file)
	if err != nil {
		t.Fatal(err)
	}
	runIdemd(t, "", append(args, s.URL)...).want(t, exitUnavailable, "", "in use by another process")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("hello\nworld\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runIdemd(t, "", append(args, s.URL)...).want(t, exitUsage, "", "damaged")
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

// A journal that cannot be written now is not a mistake of the caller's.
func TestJournalExit(t *testing.T) {
	for err, code := range map[error]int{
		client.ErrJournalBytes: exitConflict, client.ErrJournalInUse: exitUnavailable, client.ErrJournalFull: exitUnavailable,
		client.ErrJournalMoved: exitUnavailable, client.ErrJournalDamage: exitUsage,
		syscall.ENOSPC: exitUnavailable, syscall.EIO: exitUnavailable, syscall.EFBIG: exitUnavailable, syscall.EDQUOT: exitUnavailable,
		syscall.EACCES: exitUsage, syscall.ENOENT: exitUsage,
	} {
		var e *exitError
		behind := &client.Error{Code: client.CodeJournal, Err: fmt.Errorf("client: journal: %w", &os.PathError{Op: "write", Path: "j", Err: err})}
		if got := journalExit(behind); !errors.As(got, &e) || e.code != code || !strings.HasPrefix(e.message, "--journal: journal: write j") {
			t.Errorf("%v: %v, want the code %d", err, got, code)
		}
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
		s := serve(t, reply{status: 202, body: strings.Replace(call("pending", "null", "null"), `"charge"`, `"a\"b"`, 1)})
		runIdemd(t, tc.stdin, "call", `a"b`, tc.args, "--key", "k", "--url", s.URL+"/", "--wait", "0").want(t, exitPending, "", "pending")
		asked := s.asked()
		if want := `{"tool":"a\"b","args":` + tc.want + `}`; len(asked) != 1 || asked[0].body != want || asked[0].prefer != "" {
			t.Errorf("asked %+v, want %s", asked, want)
		}
	}
}

// What does not end is not read to its end, and nothing is sent.
func TestCallArgsWithoutEnd(t *testing.T) {
	s := serve(t, reply{status: 202, body: call("pending", "null", "null")})
	runIdemd(t, "", "call", "charge", "@/dev/zero", "--key", "k", "--url", s.URL).want(t, exitUsage, "", "over 16 MiB")
	if n := len(s.asked()); n != 0 {
		t.Errorf("%d requests", n)
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
