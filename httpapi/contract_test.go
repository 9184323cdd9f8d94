package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

// contract is the table of the package comment, a test for each line. They run
// over a real socket against the real runner and the model of a store.
var contract = []struct {
	name string
	test func(t scene)
}{
	{"new key", func(t scene) {
		w := newWorld(t)
		r := w.post("demo-1", gateBody, "Content-Type", "application/json; charset=utf-8")
		c := r.want(202).call()
		r.has("Idempotency-Key", "demo-1", "Idempotent-Replayed", "false", "Idemd-Call-Id", c.ID, "Location", "/v1/tool-calls/"+c.ID,
			"Retry-After", "1", "Cache-Control", "no-store", "X-Content-Type-Options", "nosniff", "Content-Type", "application/json",
			"Preference-Applied", "", "Content-Length", strconv.Itoa(len(r.raw)))
		if c.Key != "demo-1" || c.Tool != "gate" || *c.ClientID != "demo" || *c.Seq != 1 || c.Deliveries != 1 || c.QueryURL != "/v1/tool-calls/"+c.ID {
			t.Errorf("got %s", r.raw)
		}
	}},
	{"new key, wait sees the end", func(t scene) {
		w := newWorld(t)
		r := w.post("k", `{"tool":"charge","args":{"amount":100}}`, "Prefer", "respond-async, wait=30")
		if c := r.want(200).call(); c.Status != "succeeded" || c.Attempt != 1 || c.ClientID != nil || c.Seq != nil {
			t.Errorf("got %s", r.raw)
		}
		r.has("Idempotent-Replayed", "false", "Preference-Applied", "wait=30", "Location", "", "Retry-After", "")
	}},
	{"new key, wait runs out", func(t scene) {
		w := newWorld(t)
		r := w.post("k", gateBody, "Prefer", "wait=1").want(202)
		r.has("Preference-Applied", "wait=1", "Idempotent-Replayed", "false", "Retry-After", "1")
		if c := r.call(); c.Status != "running" {
			t.Errorf("got %s", r.raw)
		}
	}},
	{"on its way", func(t scene) {
		w := newWorld(t)
		first := w.post("k", gateBody).call()
		<-w.gate.started
		r := w.post(`"k"`, `{"seq":2,"args":{"n":1.0},"tool":"gate"}`).want(202)
		r.has("Idempotent-Replayed", "true", "Idempotency-Key", `"k"`, "Location", first.QueryURL)
		if c := r.call(); c.ID != first.ID || c.Key != "k" || c.Deliveries != 2 || *c.Seq != 1 {
			t.Errorf("got %s", r.raw)
		}
	}},
	{"on its way, wait sees the end", func(t scene) {
		w := newWorld(t)
		first := w.post("k", gateBody).call()
		joined := w.joined(func() *reply { return w.post("k", gateBody, "Prefer", "wait=60") })
		w.gate.release <- outcome{result: `{"ok":true}`}
		r := (<-joined).want(200)
		r.has("Idempotent-Replayed", "true", "Preference-Applied", "wait=60")
		if c := r.call(); c.ID != first.ID || string(c.Result) != `{"ok":true}` {
			t.Errorf("got %s", r.raw)
		}
	}},
	{"on its way, wait sees it held", func(t scene) {
		w := newWorld(t)
		first := w.post("k", holdBody).call()
		joined := w.joined(func() *reply { return w.post("k", holdBody, "Prefer", "wait=60") })
		w.gate.release <- outcome{err: errors.New("reset by peer")}
		(<-joined).want(409, idem.CodeOutcomeUnknown).effect(idem.DoubtUnknown).
			has("Idemd-Call-Id", first.ID, "Idempotent-Replayed", "false", "Idempotency-Key", "k")
	}},
	{"succeeded", func(t scene) {
		w := newWorld(t)
		w.post("k", gateBody)
		// Odd bytes, to see that nobody formats them.
		result := "{ \"b\" : 1.10e+2,\t\"a\":\"\\u00e9<&>\" }"
		w.gate.release <- outcome{result: result}
		first := w.post("k", gateBody, "Prefer", "wait=60").want(200)
		again := w.post("k", gateBody).want(200).has("Idempotent-Replayed", "true", "Preference-Applied", "")
		if !strings.Contains(first.raw, `"result":`+result+`,`) || again.raw != first.raw {
			t.Errorf("got %s\nthen %s", first.raw, again.raw)
		}
		if a, b := first.header.Get("Content-Type"), again.header.Get("Content-Type"); a != b {
			t.Errorf("Content-Type %q, then %q", a, b)
		}
	}},
	{"failed for good", func(t scene) {
		w := newWorld(t)
		first := w.post("k", `{"tool":"fail","args":{"message":"no \"<é>\""}}`, "Prefer", "wait=60").want(200).has("Idempotent-Replayed", "false")
		for range 3 {
			again := w.post("k", `{"tool":"fail","args":{"message":"no \"<é>\""}}`, "Prefer", "wait=60").want(200).has("Idempotent-Replayed", "true")
			if again.raw != first.raw {
				t.Errorf("got %s\nthen %s", first.raw, again.raw)
			}
		}
		if c := first.call(); c.Status != "failed" || c.Attempt != 1 || string(c.Error) != `{"code":"tool_failed","message":"no \"<é>\"","retryable":false,"effect":"none"}` {
			t.Errorf("got %s", first.raw)
		}
	}},
	{"failed retryably", func(t scene) {
		w := newWorld(t)
		first := w.post("k", gateBody).call()
		w.gate.release <- outcome{err: &idem.Failure{Code: "busy", Message: "later", Retryable: true}}
		w.get(first.QueryURL) // not the end yet, or already
		w.end(first.ID)
		r := w.post("k", gateBody).want(202).has("Idempotent-Replayed", "false", "Idemd-Call-Id", first.ID)
		if c := r.call(); c.ID != first.ID || string(c.Error) != "null" {
			t.Errorf("got %s", r.raw)
		}
		w.gate.release <- outcome{result: `1`}
		if c := w.end(first.ID).call(); c.Status != "succeeded" || c.Attempt != 2 {
			t.Errorf("got %+v", c)
		}
	}},
	{"failed retryably, wait", func(t scene) {
		w := newWorld(t)
		const body = `{"tool":"fail","args":{"times":2,"retryable":true}}`
		for attempt := 1; attempt <= 3; attempt++ {
			r := w.post("k", body, "Prefer", "wait=60").want(200).has("Idempotent-Replayed", "false")
			if c := r.call(); c.Attempt != attempt || (c.Status == "succeeded") != (attempt == 3) {
				t.Errorf("attempt %d: %s", attempt, r.raw)
			}
		}
		w.post("k", body).want(200).has("Idempotent-Replayed", "true")
	}},
	{"failed in doubt", func(t scene) {
		w := newWorld(t)
		// The first answer is lost, and that of the second attempt speaks for itself only.
		w.post("k", gateBody)
		w.gate.release <- outcome{err: errors.New("reset by peer")}
		id := w.get("/v1/tool-calls/by-key/k").call().ID
		r := w.end(id)
		if c := r.call(); c.Status != "failed" || !strings.HasSuffix(string(c.Error), `"retryable":true,"effect":"unknown"}`) {
			t.Errorf("got %s", r.raw)
		}
		w.post("k", gateBody).want(202)
		w.gate.release <- outcome{err: &idem.Failure{Code: "declined", Message: "no"}}
		w.end(id)
		first := w.post("k", gateBody).want(200).has("Idempotent-Replayed", "true", "Retry-After", "")
		if c := first.call(); c.Attempt != 2 || string(c.Error) != `{"code":"declined","message":"no","retryable":false,"effect":"unknown"}` {
			t.Errorf("got %s", first.raw)
		}
		if again := w.post("k", gateBody).want(200); again.raw != first.raw {
			t.Errorf("got %s\nthen %s", first.raw, again.raw)
		}
		calls, _ := w.page("/v1/tool-calls", "calls", "")
		if calls[0]["error"].(map[string]any)["effect"] != "unknown" {
			t.Errorf("listed as %v", calls[0])
		}
	}},
	{"failed, told to wait", func(t scene) {
		w := newWorld(t)
		w.post("k", gateBody)
		w.gate.release <- outcome{err: &idem.Failure{Code: "busy", Message: "later", Retryable: true, RetryAfter: 90 * time.Second}}
		id := w.get("/v1/tool-calls/by-key/k").call().ID
		w.end(id)
		r := w.get("/v1/tool-calls/by-key/k").want(200).has("Retry-After", "90")
		if c := r.call(); string(c.Error) != `{"code":"busy","message":"later","retryable":true,"effect":"none","retry_after":90}` {
			t.Errorf("got %s", r.raw)
		}
		waited := make(chan *reply)
		go func() { waited <- w.post("k", gateBody, "Prefer", "wait=60") }()
		w.gate.release <- outcome{err: &idem.Failure{Code: "busy", Message: "later", Retryable: true, RetryAfter: time.Second}}
		(<-waited).want(200).has("Retry-After", "1", "Idempotent-Replayed", "false")
		// For good: nobody is asked to come again.
		w.post("k", gateBody).want(202).has("Retry-After", "1")
		w.gate.release <- outcome{err: &idem.Failure{Code: "gone", RetryAfter: 90 * time.Second}}
		w.end(id).has("Retry-After", "")
	}},
	{"held", func(t scene) {
		w := newWorld(t)
		id := w.hold("k")
		for range 2 {
			w.post("k", holdBody).want(409, idem.CodeOutcomeUnknown).effect(idem.DoubtUnknown).
				has("Idemd-Call-Id", id, "Idempotent-Replayed", "false", "Retry-After", "")
		}
		w.get("/v1/tool-calls/" + id).want(200)
	}},
	{"other fingerprint", func(t scene) {
		w := newWorld(t, func(o *worldOptions) { o.workers = 1 })
		conflict := func(state, key, id, body string) {
			t.Helper()
			if got := w.get("/v1/tool-calls/" + id).call().Status; got != state {
				t.Errorf("the call is %s, want %s", got, state)
			}
			w.post(key, body).want(409, idem.CodeConflict).effect(idem.DoubtNone).
				has("Idemd-Call-Id", id, "Idempotent-Replayed", "false", "Idempotency-Key", key)
		}
		w.post("succeeded", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60")
		w.post("failed", `{"tool":"fail","args":{}}`, "Prefer", "wait=60")
		w.post("retryable", `{"tool":"fail","args":{"retryable":true}}`, "Prefer", "wait=60")
		w.hold("held")
		w.post("running", gateBody)
		<-w.gate.started
		w.post("pending", gateBody)

		id := func(key string) string { return w.get("/v1/tool-calls/by-key/" + key).call().ID }
		conflict("succeeded", "succeeded", id("succeeded"), `{"tool":"charge","args":{"amount":2}}`)
		conflict("succeeded", "succeeded", id("succeeded"), `{"tool":"send_email","args":{"to":"a@b.c","subject":"","body":""}}`)
		conflict("succeeded", "succeeded", id("succeeded"), `{"tool":"no_such_tool","args":{"amount":1}}`)
		conflict("failed", "failed", id("failed"), `{"tool":"fail","args":{"retryable":true}}`)
		conflict("failed", "retryable", id("retryable"), `{"tool":"fail","args":{}}`)
		conflict("held", "held", id("held"), gateBody)
		conflict("running", "running", id("running"), holdBody)
		conflict("pending", "pending", id("pending"), holdBody)
	}},
	{"past its window", func(t scene) {
		w := newWorld(t)
		id := w.post("k", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").call().ID
		w.clock.advance(2 * window)
		r := w.post("k", `{"tool":"charge","args":{"amount":1}}`).want(410, idem.CodeKeyExpired).effect(idem.DoubtNone)
		r.has("Idemd-Call-Id", id, "Idempotent-Replayed", "false", "Idempotency-Key", "k")
	}},
	{"known key is not validated again", func(t scene) {
		w := newWorld(t)
		first := w.post("k", `{"tool":"picky","args":{}}`, "Prefer", "wait=60").want(200)
		w.strict.Store(true)
		if again := w.post("k", `{"tool":"picky","args":{}}`).want(200); again.raw != first.raw {
			t.Errorf("got %s", again.raw)
		}
		w.post("other", `{"tool":"picky","args":{}}`).want(422, idem.CodeInvalidArguments)
	}},
	{"no key", func(t scene) {
		w := newWorld(t)
		for _, hs := range []headers{nil, {"Idempotency-Key": {""}}, {"Idempotency-Key": {"  "}}, {"Idempotency-Key": {`""`}}} {
			wants := refused
			if hs == nil || hs["Idempotency-Key"][0] == `""` {
				wants = beyond // without one only tools that keep no record are called
			}
			w.do(wants, "POST", "/v1/tool-calls", gateBody, hs).want(400, idem.CodeMissingKey).
				has("Idempotent-Replayed", "false", "Idempotency-Key", "", "Idemd-Call-Id", "")
		}
	}},
	{"bad key", func(t scene) {
		w := newWorld(t)
		for key, wants := range map[string]wants{
			strings.Repeat("k", 256): beyond, strings.Repeat("k", 4096): refused, "a\tb": refused, "é": refused, "🙂": refused,
			`"open`: beyond, `"a" b`: beyond, `"a\b"`: beyond, `" a"`: beyond, "\x80": refused,
		} {
			w.do(wants, "POST", "/v1/tool-calls", gateBody, withKey(key)).want(400, idem.CodeBadRequest).
				has("Idempotent-Replayed", "false", "Idempotency-Key", "")
		}
		for _, key := range []string{strings.Repeat("k", 255), "a", `a"b`, `"a\"\\"`, `~!@#$%^&*()_+{}|:<>?`, "a b"} {
			w.post(key, `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").want(200).has("Idempotency-Key", key)
		}
	}},
	{"two keys", func(t scene) {
		w := newWorld(t)
		w.do(beyond, "POST", "/v1/tool-calls", gateBody, headers{"Idempotency-Key": {"k", "k"}}).want(400, idem.CodeBadRequest).
			has("Idempotency-Key", "")
	}},
	{"bad body", func(t scene) {
		w := newWorld(t)
		for body, wants := range map[string]wants{
			``: refused, `{`: refused, `[]`: refused, `{"tool":"charge"}`: refused, `{"tool":"charge","args":null}`: refused,
			`{"tool":"charge","args":{},"x":1}`: refused, `{"tool":"charge","args":{},"seq":null}`: refused, `{"tool":"charge","args":{},"seq":1.5}`: refused,
			`{"tool":"charge","args":{},"seq":"1"}`: refused, `{"tool":"charge","args":{},"client_id":7}`: refused, `{"Tool":"charge","args":{}}`: refused,
			`{"tool":"charge","args":{},"client_id":"` + strings.Repeat("x", 256) + `"}`: refused,
			`{"tool":"charge","args":{"a":{"b":1,"b":1}}}`:                               beyond, `{"tool":"charge","tool":"charge","args":{}}`: beyond,
			`{"tool":"charge","args":{"a":1e999999999}}`: beyond, `{"tool":"charge","args":` + strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 66): beyond,
			`{"tool":"charge","args":{"a":"\ud800"}}`: beyond, `{"tool":"charge","args":{}} {}`: beyond, `{"tool":"charge","args":{},"client_id":"\u0000"}`: beyond,
		} {
			r := w.do(wants, "POST", "/v1/tool-calls", body, withKey("k")).want(400, idem.CodeBadRequest).effect(idem.DoubtNone)
			r.has("Idempotency-Key", "k", "Idempotent-Replayed", "false", "Idemd-Call-Id", "")
		}
		w.stored(0)
	}},
	{"unknown tool", func(t scene) {
		w := newWorld(t)
		for _, name := range []string{"nope", "", "Charge", strings.Repeat("x", 100_000)} {
			w.post("k", `{"tool":"`+name+`","args":{}}`).want(400, idem.CodeBadRequest).has("Idempotency-Key", "k", "Idempotent-Replayed", "false")
		}
		w.stored(0)
	}},
	{"args do not fit", func(t scene) {
		w := newWorld(t)
		w.post("k", `{"tool":"charge","args":{"amount":"secret"}}`).want(422, idem.CodeInvalidArguments).effect(idem.DoubtNone).
			has("Idempotency-Key", "k", "Idempotent-Replayed", "false", "Idemd-Call-Id", "")
		w.stored(0)
		w.post("k", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").want(200) // the key is free
	}},
	{"unrecorded tool", func(t scene) {
		w := newWorld(t)
		for _, hs := range []headers{nil, {"Idempotency-Key": {""}}, {"Idempotency-Key": {"k"}, "Prefer": {"wait=1"}}, {"Idempotency-Key": {"k"}}} {
			key, wants := strings.Join(hs["Idempotency-Key"], ""), fits
			if hs != nil && key == "" {
				wants = refused // an empty header is none
			}
			asked := w.async(func() *reply { return w.do(wants, "POST", "/v1/tool-calls", lookBody, hs) })
			if inv := <-w.look.started; !inv.CallID.IsZero() || inv.EffectID != "" || string(inv.Args) != `{"n":1}` {
				t.Errorf("invoked with %+v", inv)
			}
			w.look.release <- outcome{result: `{"n": 1.0}`}
			r := (<-asked).want(200)
			if r.raw != `{"recorded":false,"tool":"look","status":"succeeded","result":{"n": 1.0},"error":null}` {
				t.Errorf("got %s", r.raw)
			}
			r.has("Idempotency-Key", key, "Idempotent-Replayed", "false", "Idemd-Call-Id", "", "Location", "", "Preference-Applied", "",
				"Retry-After", "", "Cache-Control", "no-store", "Content-Type", "application/json")
		}
		w.stored(0)
		w.get("/v1/tool-calls/by-key/k").want(404)
		w.counted("look", idem.Counts{Deliveries: 4, Created: 4})
	}},
	{"unrecorded tool, failed", func(t scene) {
		w := newWorld(t)
		for _, c := range []struct {
			out   outcome
			error string
			after string
		}{
			{outcome{err: &idem.Failure{Code: "not_there", Message: "no <such>"}}, `{"code":"not_there","message":"no <such>","retryable":false,"effect":"none"}`, ""},
			{outcome{err: &idem.Failure{Code: "busy", Message: "", Retryable: true, RetryAfter: 7 * time.Second}}, `{"code":"busy","message":"","retryable":true,"effect":"none","retry_after":7}`, "7"},
			{outcome{err: errDriver}, `{"code":"tool_failed","message":"the tool did not give an answer","retryable":true,"effect":"none"}`, ""},
			{outcome{result: `{`}, `{"code":"tool_failed","message":"the tool did not give an answer","retryable":true,"effect":"none"}`, ""},
		} {
			asked := w.async(func() *reply { return w.post("k", lookBody) })
			w.look.release <- c.out
			r := (<-asked).want(200).has("Retry-After", c.after, "Idempotent-Replayed", "false")
			if r.raw != `{"recorded":false,"tool":"look","status":"failed","result":null,"error":`+c.error+`}` {
				t.Errorf("got %s", r.raw)
			}
		}
		w.stored(0)
	}},
	{"unrecorded tool, joined", func(t scene) {
		w := newWorld(t)
		first := w.async(func() *reply { return w.post("k", lookBody) })
		<-w.look.started
		second := w.joined(func() *reply { return w.post(`"k"`, `{"args":{"n":1.0},"tool":"look","seq":9}`) })
		w.look.release <- outcome{result: `{"x":1}`}
		a, b := (<-first).want(200), (<-second).want(200)
		if a.raw != b.raw {
			t.Errorf("got %s\nand %s", a.raw, b.raw)
		}
		a.has("Idempotent-Replayed", "false")
		b.has("Idempotent-Replayed", "true", "Idempotency-Key", `"k"`)
		w.counted("look", idem.Counts{Deliveries: 2, Created: 1, Joined: 1})
		w.stored(0)
	}},
	{"unrecorded tool, other args", func(t scene) {
		w := newWorld(t)
		const other = `{"tool":"look","args":{"n":2}}`
		first := w.async(func() *reply { return w.post("k", lookBody) })
		<-w.look.started
		w.post("k", other).want(409, idem.CodeConflict).effect(idem.DoubtNone).
			has("Idempotent-Replayed", "false", "Idemd-Call-Id", "", "Idempotency-Key", "k")
		w.look.release <- outcome{result: `1`}
		(<-first).want(200)
		second := w.async(func() *reply { return w.post("k", other) })
		w.look.release <- outcome{result: `2`}
		(<-second).want(200).has("Idempotent-Replayed", "false")
		w.counted("look", idem.Counts{Deliveries: 3, Created: 2, Conflicts: 1})
	}},
	{"unrecorded tool, known key", func(t scene) {
		w := newWorld(t)
		id := w.post("k", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").call().ID
		w.post("k", lookBody).want(409, idem.CodeConflict).has("Idemd-Call-Id", id)
		w.stored(1)
	}},
	{"unrecorded tool, args do not fit", func(t scene) {
		w := newWorld(t)
		w.strict.Store(true)
		w.do(fits, "POST", "/v1/tool-calls", lookBody, nil).want(422, idem.CodeInvalidArguments).effect(idem.DoubtNone).
			has("Idempotency-Key", "", "Idempotent-Replayed", "false")
		w.counted("look", idem.Counts{Deliveries: 1, Refused: 1})
	}},
	{"unrecorded tool, bad key", func(t scene) {
		w := newWorld(t)
		w.do(beyond, "POST", "/v1/tool-calls", lookBody, withKey(`"open`)).want(400, idem.CodeBadRequest).has("Idempotency-Key", "")
		w.do(beyond, "POST", "/v1/tool-calls", lookBody, headers{"Idempotency-Key": {"k", "k"}}).want(400, idem.CodeBadRequest)
	}},
	{"unrecorded tool, busy", func(t scene) {
		w := newWorld(t)
		first := w.async(func() *reply { return w.post("k1", `{"tool":"brief","args":{}}`) })
		<-w.look.started
		w.post("k2", `{"tool":"brief","args":{}}`).want(503, idem.CodeUnavailable).effect(idem.DoubtNone).
			has("Retry-After", "1", "Idempotency-Key", "k2", "Idempotent-Replayed", "false")
		w.look.release <- outcome{result: `1`}
		(<-first).want(200)
		w.counted("brief", idem.Counts{Deliveries: 2, Created: 1, Refused: 1})
	}},
	{"unrecorded tool, crowded", func(t scene) {
		w := newWorld(t, func(o *worldOptions) { o.http.MaxInFlight = 4 })
		w.post("stored", gateBody).want(202)
		looks := []<-chan *reply{
			w.async(func() *reply { return w.post("k1", lookBody) }),
			w.async(func() *reply { return w.do(fits, "POST", "/v1/tool-calls", lookBody, nil) }),
		}
		w.inFlight(2)
		for range looks {
			<-w.look.started
		}
		// The upper half is not for whoever stays, also where a run could be joined.
		w.post("k1", lookBody).want(503, idem.CodeUnavailable).effect(idem.DoubtNone).has("Retry-After", "1", "Idempotency-Key", "k1")
		w.do(fits, "POST", "/v1/tool-calls", lookBody, nil).want(503, idem.CodeUnavailable)
		w.post("stored", gateBody).want(202).has("Idempotent-Replayed", "true")
		w.post("stored", lookBody).want(409, idem.CodeConflict)
		w.post("new", `{"tool":"charge","args":{"amount":1}}`).want(202)
		for range looks { // either may take either
			w.look.release <- outcome{result: `1`}
		}
		for _, asked := range looks {
			(<-asked).want(200)
		}
		w.counted("look", idem.Counts{Deliveries: 5, Created: 2, Conflicts: 1, Refused: 2})
	}},
	{"unrecorded tool, stopping", func(t scene) {
		w := newWorld(t)
		asked := w.async(func() *reply { return w.post("k", lookBody) })
		<-w.look.started
		w.stop()
		(<-asked).want(503, idem.CodeUnavailable).effect(idem.DoubtNone).has("Retry-After", "1")
		w.do(fits, "POST", "/v1/tool-calls", lookBody, nil).want(503, idem.CodeUnavailable)
		w.counted("look", idem.Counts{Deliveries: 2, Refused: 2})
	}},
	{"body too large", func(t scene) {
		w := newWorld(t)
		body := func(n int) string {
			const frame = `{"tool":"nope","args":{"x":""}}`
			return strings.Replace(frame, `""`, `"`+strings.Repeat("x", n-len(frame))+`"`, 1)
		}
		w.post("k", body(1<<20)).want(400, idem.CodeBadRequest)
		w.post("k", body(1<<20+1)).want(413, idem.CodePayloadTooLarge).has("Idempotency-Key", "k", "Idempotent-Replayed", "false")
		w.post("k", body(8<<20)).want(413, idem.CodePayloadTooLarge)
		// Without a length.
		req, err := http.NewRequest(http.MethodPost, "http://"+w.addr+"/v1/tool-calls", io.MultiReader(strings.NewReader(body(1<<20+1))))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("got %d", resp.StatusCode)
		}
		w.stored(0)
	}},
	{"other media type", func(t scene) {
		w := newWorld(t)
		for _, types := range [][]string{nil, {""}, {"text/plain"}, {"application/jsonp"}, {"application/json;"}, {"application/json; charset"}, {"application/json", "application/json"}, {"application/x-www-form-urlencoded"}} {
			wants := beyond
			if len(types) == 1 && !strings.HasPrefix(types[0], "application/json;") && types[0] != "" {
				wants = refused
			}
			r := w.do(wants, "POST", "/v1/tool-calls", gateBody, headers{"Content-Type": types, "Idempotency-Key": {"k"}})
			if len(types) == 1 && types[0] == "application/json;" {
				r.want(202) // an empty parameter is none
				continue
			}
			r.want(415, idem.CodeUnsupportedMediaType).has("Idempotency-Key", "k", "Idempotent-Replayed", "false")
		}
		w.do(beyond, "POST", "/v1/tool-calls", gateBody, withKey("k", "Content-Encoding", "gzip")).want(415, idem.CodeUnsupportedMediaType)
		w.post("k2", `{"tool":"charge","args":{"amount":1}}`, "Content-Encoding", "identity", "Content-Type", "Application/JSON; charset=latin1").want(202)
	}},
	{"queue full", func(t scene) {
		w := newWorld(t, func(o *worldOptions) { o.workers, o.queue = 1, 1 })
		w.post("ended", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").want(200)
		w.post("running", gateBody).want(202)
		<-w.gate.started
		w.post("pending", gateBody).want(202)
		w.post("new", gateBody).want(503, idem.CodeUnavailable).effect(idem.DoubtNone).
			has("Retry-After", "1", "Idempotent-Replayed", "false", "Idempotency-Key", "new", "Idemd-Call-Id", "")
		w.stored(3)
		w.post("ended", `{"tool":"charge","args":{"amount":1}}`).want(200)
		w.post("running", gateBody).want(202).has("Idempotent-Replayed", "true")
		w.gate.release <- outcome{result: `1`}
		<-w.gate.started
		w.gate.release <- outcome{result: `1`}
		w.end(w.get("/v1/tool-calls/by-key/pending").call().ID)
		w.post("new", gateBody).want(202).has("Idempotent-Replayed", "false")
	}},
	{"stopping", func(t scene) {
		w := newWorld(t)
		w.post("k", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").want(200)
		w.stop()
		w.post("new", gateBody).want(503, idem.CodeUnavailable).has("Retry-After", "1", "Idempotency-Key", "new")
		w.post("k", `{"tool":"charge","args":{"amount":1}}`).want(200).has("Idempotent-Replayed", "true")
		w.get("/v1/tool-calls/by-key/k").want(200)
	}},
	{"crowded", func(t scene) {
		w := newWorld(t, func(o *worldOptions) { o.http.MaxInFlight = 2 })
		w.post("k", gateBody).want(202)
		waiting := make(chan *reply)
		go func() { waiting <- w.post("k", gateBody, "Prefer", "wait=60") }()
		w.inFlight(1)
		// The upper half does not wait.
		w.post("k", gateBody, "Prefer", "wait=60").want(202).has("Preference-Applied", "")
		w.do(fits, "GET", "/v1/tool-calls/by-key/k", "", headers{"Prefer": {"wait=60"}}).want(200).has("Preference-Applied", "")
		// Somebody takes the second place.
		w.server.inFlight.Add(1)
		defer w.server.inFlight.Add(-1)
		w.post("k", gateBody).want(503, idem.CodeUnavailable).has("Retry-After", "1", "Idempotency-Key", "k", "Idempotent-Replayed", "false")
		w.get("/stats").want(503, idem.CodeUnavailable)
		w.get("/healthz").want(200)
		w.get("/readyz").want(200)
		w.gate.release <- outcome{result: `1`}
		(<-waiting).want(200)
	}},
	{"bug", func(t scene) {
		w := newWorld(t)
		w.store.broken.Store(true)
		r := w.post("k", gateBody).want(500, idem.CodeInternal).effect(idem.DoubtUnknown)
		r.has("Idempotency-Key", "k", "Idempotent-Replayed", "false")
		if strings.Contains(r.raw, "secret") {
			t.Errorf("the driver's words: %s", r.raw)
		}
		w.get("/v1/tool-calls/by-key/k").want(500, idem.CodeInternal)
		w.store.broken.Store(false)
		w.post("k", gateBody).want(202)
	}},
	{"fault on purpose, not allowed", func(t scene) {
		w := newWorld(t)
		w.post("k", gateBody, "Idemd-Chaos", "before_reply=drop").want(400, idem.CodeBadRequest)
		w.stored(0)
	}},
	{"fault on purpose", func(t scene) {
		w := newWorld(t, func(o *worldOptions) { o.http.Chaos = true })
		for _, bad := range []string{"x", "before_reply=explode", "nowhere=drop", ""} {
			w.do(refused, "POST", "/v1/tool-calls", gateBody, withKey("k", "Idemd-Chaos", bad)).want(400, idem.CodeBadRequest)
		}
		w.do(beyond, "POST", "/v1/tool-calls", gateBody, withKey("k", "Idemd-Chaos", "before_reply=sleep:1h")).want(400, idem.CodeBadRequest)
		w.do(beyond, "POST", "/v1/tool-calls", gateBody, headers{"Idempotency-Key": {"k"}, "Idemd-Chaos": {"before_reply=drop", "before_reply=drop"}}).want(400, idem.CodeBadRequest)
		w.stored(0)

		const body = `{"tool":"charge","args":{"amount":1}}`
		for i, point := range []string{"before_reply", "after_commit"} {
			key := "drop-" + strconv.Itoa(i)
			req, err := http.NewRequest(http.MethodPost, "http://"+w.addr+"/v1/tool-calls", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.GetBody = nil // or it is sent again
			req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "Prefer": {"wait=60"}, "Idemd-Chaos": {point + "=drop"}}
			if resp, err := w.client.Do(req); err == nil {
				resp.Body.Close()
				t.Errorf("%s: answered with %d", point, resp.StatusCode)
			}
			w.post(key, body, "Prefer", "wait=60").want(200).has("Idempotent-Replayed", "true")

			key = "error-" + strconv.Itoa(i)
			w.post(key, body, "Prefer", "wait=60", "Idemd-Chaos", point+"=error").want(500, idem.CodeInternal).effect(idem.DoubtUnknown).
				has("Idempotent-Replayed", "false", "Idemd-Call-Id", w.get("/v1/tool-calls/by-key/"+key).call().ID)
			w.post(key, body, "Prefer", "wait=60", "Idemd-Chaos", point+"=sleep:1ms").want(200).has("Idempotent-Replayed", "true")
		}
		w.stored(4)
	}},

	{"call by id", func(t scene) {
		w := newWorld(t)
		id := w.post("k", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").call().ID
		r := w.get("/v1/tool-calls/"+id).want(200).has("Idemd-Call-Id", id, "Cache-Control", "no-store", "Idempotent-Replayed", "")
		if c := r.call(); c.Key != "k" || c.Status != "succeeded" {
			t.Errorf("got %s", r.raw)
		}
		for _, bad := range []string{"c_00000000000000000000000000000000", "x", "c_", "%00", id + "0", strings.ToUpper(id), "..", id[:10]} {
			w.get("/v1/tool-calls/"+bad).want(404, idem.CodeNotFound)
		}
	}},
	{"call by id, wait", func(t scene) {
		w := newWorld(t)
		id := w.post("k", gateBody).call().ID
		<-w.gate.started
		path := "/v1/tool-calls/" + id
		r := w.do(fits, "GET", path, "", headers{"Prefer": {"wait=1"}}).want(200).has("Preference-Applied", "wait=1")
		if c := r.call(); c.Status != "running" {
			t.Errorf("got %s", r.raw)
		}
		waiting := make(chan *reply)
		go func() {
			waiting <- w.do(fits, "GET", path, "", headers{"Prefer": {"wait=3600"}})
		}()
		w.inFlight(1)
		w.gate.release <- outcome{result: `1`}
		r = (<-waiting).want(200).has("Preference-Applied", "wait=60")
		if c := r.call(); c.Status != "succeeded" {
			t.Errorf("got %s", r.raw)
		}
		w.do(fits, "GET", path, "", headers{"Prefer": {"wait=0"}}).want(200).has("Preference-Applied", "")
	}},
	{"call by key in the path", func(t scene) {
		w := newWorld(t)
		for _, key := range []string{"k", "a/b", "../x", "..", ".", "%", "%2F", "a%2Fb", "%252F", "?", "a?b=c", "#", "a b", "a+b", "//", "audit", "x/audit", `a"b`, "~", ";,&="} {
			id := w.post(key, `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").want(200).call().ID
			// url.PathEscape leaves dots alone, which clients and proxies clean away.
			path := "/v1/tool-calls/by-key/" + strings.ReplaceAll(url.PathEscape(key), ".", "%2E")
			w.get(path).want(200).has("Idemd-Call-Id", id, "Idempotency-Key", key, "Idempotent-Replayed", "true")
			var all strings.Builder // every byte escaped
			for _, b := range []byte(key) {
				fmt.Fprintf(&all, "%%%02x", b)
			}
			w.get("/v1/tool-calls/by-key/"+all.String()).want(200).has("Idemd-Call-Id", id)
		}
		// As it is, without any escape: by raw socket, since clients clean paths.
		for _, key := range []string{"a/b", "../x", "..", "//", "x/audit"} {
			if status := rawStatus(t, w.addr, "GET /v1/tool-calls/by-key/"+key+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); status != 200 {
				t.Errorf("%s: %d", key, status)
			}
		}
		w.get("/v1/tool-calls/by-key/nobody").want(404, idem.CodeNotFound).has("Idempotency-Key", "nobody", "Idempotent-Replayed", "false")
		w.do(refused, "GET", "/v1/tool-calls/by-key/%00", "", nil).want(400, idem.CodeBadRequest).has("Idempotency-Key", "")
		w.do(refused, "GET", "/v1/tool-calls/by-key/%C3%A9", "", nil).want(400, idem.CodeBadRequest)
		w.do(beyond, "GET", "/v1/tool-calls/by-key/"+strings.Repeat("k", 256), "", nil).want(400, idem.CodeBadRequest)
		w.do(beyond, "GET", "/v1/tool-calls/by-key/%22open", "", nil).want(400, idem.CodeBadRequest)
		if status := rawStatus(t, w.addr, "GET /v1/tool-calls/by-key/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); status != 400 {
			t.Errorf("without a key: %d", status)
		}
	}},
	{"call by key in the header", func(t scene) {
		w := newWorld(t)
		const path = "/v1/tool-calls/by-key"
		id := w.post("a/b", gateBody).call().ID
		w.do(fits, "GET", path, "", withKey(`"a/b"`)).want(200).has("Idemd-Call-Id", id, "Idempotency-Key", `"a/b"`, "Idempotent-Replayed", "true")
		w.do(fits, "GET", path, "", withKey("other")).want(404, idem.CodeNotFound).has("Idempotency-Key", "other", "Idempotent-Replayed", "false")
		w.do(refused, "GET", path, "", nil).want(400, idem.CodeMissingKey).has("Idempotent-Replayed", "false")
		w.do(beyond, "GET", path, "", headers{"Idempotency-Key": {"a", "b"}}).want(400, idem.CodeBadRequest)
		w.do(fits, "GET", path, "", withKey("a/b", "Prefer", "wait=1")).want(200).has("Preference-Applied", "wait=1")
	}},
	{"call past its window", func(t scene) {
		w := newWorld(t)
		id := w.post("k", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").call().ID
		w.clock.advance(2 * window)
		// Not swept yet: people may look, although the key itself is refused.
		w.get("/v1/tool-calls/"+id).want(200).has("Idemd-Call-Id", id)
		w.get("/v1/tool-calls/by-key/k").want(200).has("Idemd-Call-Id", id, "Idempotent-Replayed", "true")
		w.post("k", `{"tool":"charge","args":{"amount":1}}`).want(410, idem.CodeKeyExpired)
		if calls, _ := w.page("/v1/tool-calls", "calls", ""); len(calls) != 1 {
			t.Errorf("listed: %v", calls)
		}
		key := idem.Key{Namespace: idem.DefaultNamespace, Name: "k"}
		if _, err := w.store.Update(t.Context(), key, idem.Expire(w.clock.now())); err != nil {
			t.Fatal(err)
		}
		w.get("/v1/tool-calls/"+id).want(410, idem.CodeKeyExpired).has("Idemd-Call-Id", id)
		w.get("/v1/tool-calls/by-key/k").want(410, idem.CodeKeyExpired).has("Idemd-Call-Id", id, "Idempotent-Replayed", "false")
		if calls, _ := w.page("/v1/tool-calls", "calls", ""); len(calls) != 0 {
			t.Errorf("listed: %v", calls)
		}
		if events, _ := w.page("/v1/tool-calls/"+id+"/audit", "events", ""); events[len(events)-1]["event"] != "expired" {
			t.Errorf("got %v", events)
		}
	}},
	{"list", func(t scene) {
		w := newWorld(t)
		for i := range 7 {
			w.clock.advance(time.Second)
			toolName := []string{"charge", "fail"}[i%2]
			w.post("k"+strconv.Itoa(i), `{"tool":"`+toolName+`","args":{"amount":1},"client_id":"c`+strconv.Itoa(i%3)+`"}`, "Prefer", "wait=60").want(200)
		}
		keys := func(query string) string {
			t.Helper()
			var all []string
			for cursor := "-"; cursor != ""; {
				if cursor == "-" {
					cursor = ""
				}
				var calls []map[string]any
				calls, cursor = w.page("/v1/tool-calls", "calls", query, "cursor", cursor)
				for _, c := range calls {
					all = append(all, strings.TrimPrefix(c["idem_key"].(string), "k"))
				}
			}
			return strings.Join(all, "")
		}
		for query, want := range map[string]string{
			"": "6543210", "limit=2": "6543210", "limit=7": "6543210", "limit=1&cursor=": "6543210", "status=succeeded": "6420", "status=failed&limit=1": "531",
			"status=held": "", "tool=fail": "531", "tool=nope": "", "client_id=c0": "630", "client_id=c0&status=failed&limit=1": "3", "status=&tool=&client_id=&limit=&cursor=": "6543210",
		} {
			if got := keys(query); got != want {
				t.Errorf("%q: got %s, want %s", query, got, want)
			}
		}
	}},
	{"list, bad query", func(t scene) {
		w := newWorld(t)
		for i := range 3 {
			w.post(strconv.Itoa(i), `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60")
		}
		_, cursor := w.page("/v1/tool-calls", "calls", "limit=1")
		_, ofLedger := w.page("/v1/effects", "effects", "limit=1")
		for query, wants := range map[string]wants{
			"status=done": refused, "status=Held": refused, "limit=0": refused, "limit=1001": refused, "limit=-1": refused, "limit=x": refused, "limit=1.5": refused,
			"limit=1&limit=2": beyond, "limit=99999999999999999999": refused, "nope=1": beyond, "client_id=%00": beyond, "client_id=" + strings.Repeat("x", 256): refused,
			"cursor=x": beyond, "cursor=" + cursor + "A": beyond, "cursor=" + cursor[1:]: beyond, "cursor=" + ofLedger: beyond, "tool=fail&cursor=" + cursor: beyond, "a=%zz": beyond, "a;b": beyond,
		} {
			w.do(wants, "GET", "/v1/tool-calls?"+query, "", nil).want(400, idem.CodeBadRequest).effect(idem.DoubtNone)
		}
		w.do(beyond, "GET", "/v1/effects?cursor="+cursor, "", nil).want(400, idem.CodeBadRequest)
	}},
	{"audit", func(t scene) {
		w := newWorld(t)
		id := w.post("k", `{"tool":"fail","args":{"times":2,"retryable":true}}`, "Prefer", "wait=60").call().ID
		other := w.post("other", `{"tool":"fail","args":{}}`, "Prefer", "wait=60").call().ID
		w.post("k", `{"tool":"fail","args":{"times":2,"retryable":true}}`, "Prefer", "wait=60")
		w.post("k", `{"tool":"fail","args":{"times":2,"retryable":true}}`, "Prefer", "wait=60").want(200)
		path := "/v1/tool-calls/" + id + "/audit"
		want := []string{"created", "claimed", "failed", "requeued", "claimed", "failed", "requeued", "claimed", "succeeded"}
		for _, limit := range []int{1, 2, 9, 1000} {
			var got []string
			for cursor := "-"; cursor != ""; {
				if cursor == "-" {
					cursor = ""
				}
				var events []map[string]any
				events, cursor = w.page(path, "events", "limit="+strconv.Itoa(limit), "cursor", cursor)
				for _, e := range events {
					if int(e["seq"].(float64)) != len(got) {
						t.Errorf("limit %d: event %v after %d", limit, e, len(got))
					}
					got = append(got, e["event"].(string))
				}
				if len(events) > limit {
					t.Errorf("limit %d: %d events", limit, len(events))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("limit %d: got %q", limit, got)
			}
		}
		_, cursor := w.page(path, "events", "limit=1")
		w.do(beyond, "GET", "/v1/tool-calls/"+other+"/audit?cursor="+cursor, "", nil).want(400, idem.CodeBadRequest)
		w.do(beyond, "GET", path+"?status=held", "", nil).want(400, idem.CodeBadRequest)
		w.get("/v1/tool-calls/c_00000000000000000000000000000000/audit").want(404, idem.CodeNotFound)
		w.get("/v1/tool-calls/x/audit").want(404, idem.CodeNotFound)
	}},
	{"effects", func(t scene) {
		w := newWorld(t)
		ids := w.charge(5)
		w.post("none", `{"tool":"fail","args":{"times":0}}`, "Prefer", "wait=60").want(200)
		for _, limit := range []string{"1", "2", "5", "1000"} {
			var got []string
			for cursor := "-"; cursor != ""; {
				if cursor == "-" {
					cursor = ""
				}
				var rows []map[string]any
				rows, cursor = w.page("/v1/effects", "effects", "limit="+limit, "cursor", cursor)
				for _, e := range rows {
					got = append(got, e["call_id"].(string))
					if e["tool"] != "charge" || e["amount"] != float64(len(got)) || e["idem_key"] != "charge-"+strconv.Itoa(len(got)) {
						t.Errorf("got %v", e)
					}
				}
			}
			if !slices.Equal(got, ids) {
				t.Errorf("limit %s: got %q, want %q", limit, got, ids)
			}
		}
		w.clock.advance(time.Second)
		w.post("mail", `{"tool":"send_email","args":{"to":"a@b.c","subject":"s","body":"b"}}`, "Prefer", "wait=60").want(200)
		rows, _ := w.page("/v1/effects", "effects", "")
		if last := rows[len(rows)-1]; last["amount"] != nil {
			t.Errorf("got %v", last)
		}
	}},
	{"effects as a stream", func(t scene) {
		w := newWorld(t)
		stream := headers{"Accept": {"application/x-ndjson"}}
		if r := w.do(fits, "GET", "/v1/effects", "", stream).want(200); r.raw != "" {
			t.Errorf("got %q", r.raw)
		}
		ids := w.charge(5)
		r := w.do(fits, "GET", "/v1/effects", "", stream).want(200).has("Content-Type", "application/x-ndjson", "Vary", "Accept")
		lines := strings.Split(strings.TrimSuffix(r.raw, "\n"), "\n")
		for i, id := range ids {
			if len(lines) != len(ids) || !strings.Contains(lines[i], id) {
				t.Fatalf("got %s", r.raw)
			}
		}
		w.do(beyond, "GET", "/v1/effects?limit=1", "", stream).want(400, idem.CodeBadRequest)
	}},
	{"stats", func(t scene) {
		w := newWorld(t)
		w.charge(2)
		w.post("charge-1", `{"tool":"charge","args":{"amount":1}}`).want(200)
		w.post("charge-1", `{"tool":"charge","args":{"amount":9}}`).want(409)
		w.post("f", `{"tool":"fail","args":{"times":1,"retryable":true}}`, "Prefer", "wait=60")
		w.post("f", `{"tool":"fail","args":{"times":1,"retryable":true}}`, "Prefer", "wait=60")
		w.post("new", `{"tool":"charge","args":{}}`).want(422)
		w.do(refused, "POST", "/v1/tool-calls", `{`, withKey("k")).want(400)
		var s struct {
			Calls, Effects                                                             int
			ByStatus                                                                   map[string]int `json:"by_status"`
			Attempts                                                                   map[string]int
			Deliveries, Created, Replayed, Joined, Requeued, Conflicts, Refused, Stale int
			ByTool                                                                     map[string]map[string]int `json:"by_tool"`
		}
		r := w.get("/stats").want(200)
		r.json(&s)
		if s.Calls != 3 || s.Effects != 2 || s.ByStatus["succeeded"] != 3 || s.Attempts["1"] != 2 || s.Attempts["2"] != 1 || len(s.Attempts) != 10 {
			t.Errorf("got %s", r.raw)
		}
		if s.Deliveries != 8 || s.Created != 3 || s.Replayed != 1 || s.Requeued != 1 || s.Conflicts != 1 || s.Refused != 2 || s.Joined != 0 {
			t.Errorf("got %s", r.raw)
		}
		if s.ByTool["charge"]["created"] != 2 || s.ByTool["fail"]["requeued"] != 1 {
			t.Errorf("got %s", r.raw)
		}
	}},
	{"tools", func(t scene) {
		w := newWorld(t)
		var body struct {
			Tools []struct {
				Name, Description, Effects, Rerun, Window string
				Schema                                    any
				Recorded                                  bool
			}
		}
		w.get("/v1/tools").want(200).json(&body)
		var names []string
		for _, tl := range body.Tools {
			names = append(names, tl.Name)
			if d, err := time.ParseDuration(tl.Window); err != nil || d != window {
				t.Errorf("%s: window %q", tl.Name, tl.Window)
			}
			if tl.Recorded == (tl.Name == "look" || tl.Name == "brief") {
				t.Errorf("%s: recorded is %v", tl.Name, tl.Recorded)
			}
		}
		if want := []string{"brief", "charge", "fail", "gate", "hold", "look", "picky", "send_email", "sleep"}; !slices.Equal(names, want) {
			t.Errorf("got %q", names)
		}
	}},
	{"health", func(t scene) {
		w := newWorld(t, func(o *worldOptions) { o.http.Version = `1.2 "3"` })
		if r := w.get("/healthz").want(200); r.raw != `{"status":"ok","version":"1.2 \"3\""}` {
			t.Errorf("got %s", r.raw)
		}
	}},
	{"readiness", func(t scene) {
		w := newWorld(t)
		if r := w.get("/readyz").want(200).has("Cache-Control", "no-store"); r.raw != `{"status":"ready","held":0}` {
			t.Errorf("got %s", r.raw)
		}
		w.hold("k")
		if r := w.get("/readyz").want(200); r.raw != `{"status":"ready","held":1}` {
			t.Errorf("got %s", r.raw)
		}
		w.stop()
		r := w.get("/readyz").want(503, idem.CodeUnavailable).has("Retry-After", "1")
		if r.error().Message == "" {
			t.Errorf("no reason: %s", r.raw)
		}
		w.get("/healthz").want(200)
	}},
	{"description", func(t scene) {
		w := newWorld(t)
		if r := w.get("/openapi.yaml").want(200).has("Content-Type", "application/yaml"); r.raw != string(openAPI) {
			t.Error("not the file")
		}
	}},

	{"resolve as succeeded", func(t scene) {
		w := newWorld(t)
		id := w.hold("k")
		r := w.resolve(id, `{"outcome":"succeeded","by":"ada","note":"seen","result":{"r": 1.0}}`).want(200).has("Idemd-Call-Id", id)
		if c := r.call(); c.Status != "succeeded" || string(c.Result) != `{"r": 1.0}` {
			t.Errorf("got %s", r.raw)
		}
		w.post("k", holdBody).want(200).has("Idempotent-Replayed", "true")
		if rows, _ := w.page("/v1/effects", "effects", ""); len(rows) != 1 || rows[0]["call_id"] != id {
			t.Errorf("got %v", rows)
		}
		events, _ := w.page("/v1/tool-calls/"+id+"/audit", "events", "")
		d := events[len(events)-1]["detail"].(map[string]any)
		if d["by"] != "ada" || d["note"] != "seen" || d["outcome"] != "succeeded" {
			t.Errorf("got %v", d)
		}
	}},
	{"resolve as failed", func(t scene) {
		w := newWorld(t)
		id := w.hold("k")
		r := w.resolve(id, `{"outcome":"failed","by":"ada","error":{"code":"declined","message":"no","retryable":false}}`).want(200)
		if c := r.call(); c.Status != "failed" || string(c.Error) != `{"code":"declined","message":"no","retryable":false,"effect":"none"}` {
			t.Errorf("got %s", r.raw)
		}
		w.post("k", holdBody).want(200).has("Idempotent-Replayed", "true")
	}},
	{"resolve as retry", func(t scene) {
		w := newWorld(t)
		id := w.hold("k")
		r := w.resolve(id, `{"outcome":"retry","by":"ada","attempt":1}`).want(200)
		if c := r.call(); c.Status != "pending" {
			t.Errorf("got %s", r.raw)
		}
		<-w.gate.started
		w.gate.release <- outcome{result: `1`}
		if c := w.end(id).call(); c.Status != "succeeded" || c.Attempt != 2 {
			t.Errorf("got %+v", c)
		}
	}},
	{"resolve what is not held", func(t scene) {
		w := newWorld(t)
		id := w.hold("k")
		w.resolve(id, `{"outcome":"succeeded","by":"ada"}`).want(200)
		r := w.resolve(id, `{"outcome":"succeeded","by":"ada"}`).want(409, idem.CodeNotHeld).effect(idem.DoubtNone)
		if e := r.error(); e.Status != "succeeded" || e.CallID != id {
			t.Errorf("got %s", r.raw)
		}
		w.resolve("c_00000000000000000000000000000000", `{"outcome":"retry","by":"ada","attempt":1}`).want(404, idem.CodeNotFound)
		w.resolve("x", `{"outcome":"retry","by":"ada","attempt":1}`).want(404, idem.CodeNotFound)
	}},
	{"resolve, bad body", func(t scene) {
		w := newWorld(t)
		id := w.hold("k")
		path := "/v1/tool-calls/" + id + "/resolve"
		for _, body := range []string{`{"outcome":"retry"}`, `{"outcome":"retry","by":"a"}`, `{"outcome":"retry","by":"a","attempt":0}`, `{"outcome":"retry","by":"a","attempt":1.5}`,
			`{"outcome":"failed","by":"a","error":{"retryable":true}}`, `{"outcome":"maybe","by":"a"}`, `{"outcome":"retry","by":"a","result":1}`, `{"outcome":"succeeded","by":"a","error":{}}`, `[]`, ``} {
			w.do(refused, "POST", path, body, nil).want(400, idem.CodeBadRequest)
		}
		w.do(refused, "POST", path, `{"outcome":"retry","by":"a","attempt":1}`, headers{"Content-Type": {"text/plain"}}).want(415, idem.CodeUnsupportedMediaType)
		w.do(fits, "POST", path, `{"outcome":"succeeded","by":"a","result":"`+strings.Repeat("x", 1<<20)+`"}`, nil).want(413, idem.CodePayloadTooLarge)
		if c := w.get("/v1/tool-calls/" + id).call(); c.Status != "held" {
			t.Errorf("the call is %s", c.Status)
		}
	}},

	{"no such route", func(t scene) {
		w := newWorld(t)
		for _, path := range []string{"/", "/v1", "/v1/", "/v1/tool-calls/", "/v2/tool-calls", "/stats/", "/v1/tool-calls/x/y", "/V1/tool-calls", "/favicon.ico", "//v1/tool-calls", "/v1/tool%2Dcalls"} {
			for _, method := range []string{"GET", "POST", "DELETE", "FROB"} {
				w.do(fits, method, path, "", nil).want(404, idem.CodeNotFound).effect(idem.DoubtNone)
			}
		}
	}},
	{"unknown query parameter", func(t scene) {
		w := newWorld(t)
		w.post("a", `{"tool":"charge","args":{"amount":1}}`, "Prefer", "wait=60").want(200)
		id := w.get("/v1/tool-calls/by-key/a").want(200).call().ID
		for _, path := range []string{"/v1/tool-calls", "/v1/tool-calls/" + id, "/v1/tool-calls/" + id + "/audit", "/v1/effects", "/v1/tools", "/stats"} {
			for _, query := range []string{"?nope", "?nope=1"} {
				w.do(beyond, "GET", path+query, "", nil).want(400, idem.CodeBadRequest).effect(idem.DoubtNone)
			}
		}
		// A key with a question mark that nobody encoded is not the key before it.
		for _, path := range []string{"a?b", "a?b=c", "a?"} {
			w.do(beyond, "GET", "/v1/tool-calls/by-key/"+path, "", nil).want(400, idem.CodeBadRequest).has("Idempotency-Key", "", "Idempotent-Replayed", "false")
		}
		w.do(beyond, "GET", "/v1/tool-calls/by-key?x=1", "", withKey("a")).want(400, idem.CodeBadRequest).has("Idempotency-Key", "a", "Idempotent-Replayed", "false")
		w.do(beyond, "POST", "/v1/tool-calls?wait=1", gateBody, withKey("k")).want(400, idem.CodeBadRequest).has("Idempotency-Key", "k", "Idempotent-Replayed", "false")
		w.do(beyond, "POST", "/v1/tool-calls/"+id+"/resolve?dry=1", `{"outcome":"retry","by":"a","attempt":1}`, nil).want(400, idem.CodeBadRequest)
		w.stored(1)
		for _, path := range []string{"/healthz", "/readyz", "/openapi.yaml"} {
			w.get(path + "?t=1").want(200)
		}
	}},
	{"other method", func(t scene) {
		w := newWorld(t)
		for path, allow := range map[string]string{
			"/v1/tool-calls": "GET, HEAD, POST", "/v1/tool-calls/by-key": "GET, HEAD", "/v1/tool-calls/by-key/a%2Fb": "GET, HEAD", "/v1/tool-calls/x": "GET, HEAD",
			"/v1/tool-calls/x/resolve": "POST", "/v1/tool-calls/x/audit": "GET, HEAD", "/stats": "GET, HEAD", "/healthz": "GET, HEAD", "/v1/effects": "GET, HEAD", "/openapi.yaml": "GET, HEAD",
		} {
			for _, method := range []string{"PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FROB"} {
				w.do(fits, method, path, "", nil).want(405, idem.CodeMethodNotAllowed).has("Allow", allow, "Idempotent-Replayed", "")
			}
		}
		w.do(fits, "GET", "/v1/tool-calls/x/resolve", "", nil).want(405, idem.CodeMethodNotAllowed)
		if status := rawStatus(t, w.addr, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); status != 404 {
			t.Errorf("OPTIONS *: %d", status)
		}
	}},
	{"header section too large", func(t scene) {
		w := newWorld(t)
		big := func(n int) headers { return withKey("k", "X-Big", strings.Repeat("x", n)) }
		w.do(fits, "POST", "/v1/tool-calls", `{"tool":"charge","args":{"amount":1}}`, big(15<<10)).want(202)
		w.do(fits, "POST", "/v1/tool-calls", `{"tool":"charge","args":{"amount":1}}`, big(17<<10)).want(431, idem.CodeHeadersTooLarge).
			has("Idempotency-Key", "k", "Idempotent-Replayed", "false")
		w.do(fits, "GET", "/stats", "", big(17<<10)).want(431, idem.CodeHeadersTooLarge)
		if status := rawStatus(t, w.addr, "GET /stats HTTP/1.1\r\nHost: x\r\nX-Big: "+strings.Repeat("x", 30<<10)+"\r\n\r\n"); status != 431 {
			t.Errorf("30 KiB: %d", status)
		}
	}},
}

// scene is a test of the contract, and what its clients accept.
type scene struct {
	*testing.T
	accept string
}

// The contract holds for every client. One that prefers problem documents gets
// every error in that form, and everything else as it was.
func TestContract(t *testing.T) {
	for name, accept := range map[string]string{"plain": "", "problem": mediaProblem + ", */*;q=0.5"} {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.test(scene{t, accept})
				})
			}
		})
	}
}

// The table of the package comment and the tests say the same things.
func TestContractTable(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`^//\t(\S.{33}\S*) +\S`)
	var rows, tests []string
	for line := range strings.Lines(string(source)) {
		if m := row.FindStringSubmatch(line); m != nil && m[1] != "POST /v1/tool-calls" {
			rows = append(rows, strings.TrimSpace(m[1]))
		}
	}
	for _, c := range contract {
		tests = append(tests, c.name)
	}
	if !slices.Equal(rows, tests) {
		t.Errorf("rows  %q\ntests %q", rows, tests)
	}
}

const (
	window   = time.Hour
	gateBody = `{"tool":"gate","args":{"n":1},"client_id":"demo","seq":1}`
	holdBody = `{"tool":"hold","args":{"n":1}}`
	lookBody = `{"tool":"look","args":{"n":1}}`
)

// world is the whole path: server, runner, store, and tools that end when the
// test says so.
type world struct {
	*harness
	store  *store
	clock  *clock
	gate   *gate
	look   *gate       // of the tools that keep no record
	strict atomic.Bool // the tools picky and look refuse everything
	runner *runner.Runner
}

type worldOptions struct {
	http           Options
	workers, queue int
}

type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// store is the model, which breaks when it is told to.
type store struct {
	*storetest.Model
	broken atomic.Bool
}

var errDriver = errors.New("pebble: /var/lib/secret: input/output error")

func (s *store) Update(ctx context.Context, key idem.Key, t idem.Transition) (idem.Change, error) {
	if s.broken.Load() {
		return idem.Change{}, errDriver
	}
	return s.Model.Update(ctx, key, t)
}

func (s *store) CallByKey(ctx context.Context, key idem.Key) (idem.Call, error) {
	if s.broken.Load() {
		return idem.Call{}, errDriver
	}
	return s.Model.CallByKey(ctx, key)
}

// gate is where attempts wait until the test lets them go.
type gate struct {
	started chan idem.Invocation
	release chan outcome
}

type outcome struct {
	result string
	err    error
}

func newGate() *gate {
	return &gate{started: make(chan idem.Invocation, 10), release: make(chan outcome)}
}

func (g *gate) invoke(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
	select {
	case g.started <- inv:
	default: // nobody asks for it
	}
	select {
	case o := <-g.release:
		return idem.Result{Output: []byte(o.result)}, o.err
	case <-ctx.Done():
		return idem.Result{}, ctx.Err()
	}
}

func newWorld(t testing.TB, tweaks ...func(*worldOptions)) *world {
	t.Helper()
	o := worldOptions{workers: 4, queue: 100}
	for _, tweak := range tweaks {
		tweak(&o)
	}
	w := &world{
		store: &store{Model: storetest.NewModel(storetest.ModelOptions{Exclusive: true})},
		clock: &clock{},
		gate:  newGate(),
		look:  newGate(),
	}
	check := func([]byte) error {
		if w.strict.Load() {
			return idem.Errorf(idem.CodeInvalidArguments, "not any more")
		}
		return nil
	}
	tools := append(tool.Samples(),
		&idem.Tool{Name: "gate", Effects: idem.EffectsExternal, Rerun: idem.RerunYes, Invoke: w.gate.invoke, Timeout: time.Hour},
		&idem.Tool{Name: "hold", Effects: idem.EffectsExternal, Rerun: idem.RerunHold, Invoke: w.gate.invoke, Timeout: time.Hour},
		&idem.Tool{
			Name: "picky", Effects: idem.EffectsNone, Rerun: idem.RerunYes, Check: check,
			Invoke: func(context.Context, idem.Invocation) (idem.Result, error) { return idem.Result{}, nil },
		},
		&idem.Tool{Name: "look", Effects: idem.EffectsNone, Rerun: idem.RerunYes, Unrecorded: true, Check: check, Invoke: w.look.invoke, Timeout: time.Hour},
		// It goes on when its time is up, within the grace.
		&idem.Tool{
			Name: "brief", Effects: idem.EffectsNone, Rerun: idem.RerunYes, Unrecorded: true, Concurrency: 1, Timeout: 20 * time.Millisecond,
			Invoke: func(_ context.Context, inv idem.Invocation) (idem.Result, error) {
				return w.look.invoke(context.Background(), inv)
			},
		},
	)
	var err error
	w.runner, err = runner.New(w.store, runner.Options{
		Settings: runner.Settings{Workers: o.workers, Queue: o.queue, Window: window},
		Tools:    tools, Now: w.clock.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.runner.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.stop()
		if err := storetest.Check(context.Background(), w.store.Model, idem.DefaultNamespace); err != nil {
			t.Errorf("the store is not as it should be: %v", err)
		}
	})
	w.harness = serve(t, w.runner, o.http)
	if s, ok := t.(scene); ok {
		w.accept = s.accept
	}
	return w
}

// stop stops the runner; what runs is given back.
func (w *world) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.runner.Stop(ctx)
}

// joined starts a request and waits until the service has counted it as joined.
func (w *world) joined(request func() *reply) <-chan *reply {
	w.t.Helper()
	done := make(chan *reply, 1)
	go func() { done <- request() }()
	eventually(w.t, "joined", func() bool {
		stats, err := w.runner.Stats(context.Background())
		return err == nil && stats.Counts.Joined == 1
	})
	return done
}

// async starts a request.
func (w *world) async(request func() *reply) <-chan *reply {
	done := make(chan *reply, 1)
	go func() { done <- request() }()
	return done
}

// counted checks what was counted for a tool.
func (w *world) counted(tool string, want idem.Counts) {
	w.t.Helper()
	stats, err := w.runner.Stats(context.Background())
	if err != nil || stats.ByTool[tool] != want {
		w.t.Errorf("counted %+v, want %+v (%v)", stats.ByTool[tool], want, err)
	}
}

func (w *world) inFlight(n int64) {
	w.t.Helper()
	eventually(w.t, "in flight", func() bool { return w.server.inFlight.Load() == n })
}

// eventually waits for something that another goroutine is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); runtime.Gosched() {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// end waits for the end of a call, or until it is held.
func (w *world) end(id string) *reply {
	w.t.Helper()
	return w.do(fits, "GET", "/v1/tool-calls/"+id, "", headers{"Prefer": {"wait=60"}}).want(200)
}

// hold makes a call that is held.
func (w *world) hold(key string) (id string) {
	w.t.Helper()
	id = w.post(key, holdBody).want(202).call().ID
	<-w.gate.started
	w.gate.release <- outcome{err: errors.New("reset by peer")}
	eventually(w.t, "held", func() bool { return w.get("/v1/tool-calls/"+id).call().Status == "held" })
	return id
}

func (w *world) resolve(id, body string) *reply {
	w.t.Helper()
	return w.do(fits, "POST", "/v1/tool-calls/"+id+"/resolve", body, nil)
}

// charge makes n effects, with amounts from 1 on.
func (w *world) charge(n int) (ids []string) {
	w.t.Helper()
	for i := 1; i <= n; i++ {
		w.clock.advance(time.Second) // ids in order
		s := strconv.Itoa(i)
		ids = append(ids, w.post("charge-"+s, `{"tool":"charge","args":{"amount":`+s+`}}`, "Prefer", "wait=60").want(200).call().ID)
	}
	return ids
}

// stored checks how many calls there are.
func (w *world) stored(n int64) {
	w.t.Helper()
	totals, err := w.store.Totals(context.Background())
	if err != nil || totals.Calls != n {
		w.t.Errorf("%d calls are stored, want %d (%v)", totals.Calls, n, err)
	}
}

// page reads one page of a listing.
func (w *world) page(path, name, query string, extra ...string) (items []map[string]any, next string) {
	w.t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(extra); i += 2 {
		values.Set(extra[i], extra[i+1])
	}
	for k, v := range values {
		if len(v) == 1 && v[0] == "" {
			delete(values, k) // to the description an empty parameter is not absent
		}
	}
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	var body map[string]any
	w.get(path).want(200).json(&body)
	for _, item := range body[name].([]any) {
		items = append(items, item.(map[string]any))
	}
	next, _ = body["next_cursor"].(string)
	return items, next
}

// rawStatus sends bytes as they are and returns the status of the answer, 0 for
// none.
func rawStatus(t testing.TB, addr, request string) int {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var sent sync.WaitGroup
	sent.Go(func() { _, _ = io.WriteString(c, request) }) // the server may stop reading and answer
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		c.Close()
		sent.Wait()
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	c.Close()
	sent.Wait()
	return resp.StatusCode
}
