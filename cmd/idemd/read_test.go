package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

const shown = `call     ` + testID + `
key      k
tool     charge
status   succeeded
attempt  2
effect   eff_00
created  2026-11-29T16:00:00.123Z
updated  2026-11-29T16:00:01.000Z
result   {"a":1}
`

func TestGetAndFind(t *testing.T) {
	for name, ask := range map[string]struct {
		args []string
		want request
		key  string
	}{
		"get":  {[]string{"get", testID}, request{line: "GET /v1/tool-calls/" + testID}, "k"},
		"find": {[]string{"find", "a/../%2F?#\"b"}, request{line: "GET /v1/tool-calls/by-key", key: "a/../%2F?#\"b"}, "a/../%2F?#\"b"},
	} {
		for _, tc := range []struct {
			name   string
			reply  reply
			code   int
			stdout string
			stderr string
		}{
			{"succeeded", reply{status: 200, body: call("succeeded", `{"a":1}`, "null")}, exitSucceeded, shown, ""},
			{"failed", reply{status: 200, body: call("failed", "null", `{"code":"x","message":"y","retryable":false}`)}, exitFailed,
				strings.NewReplacer("succeeded", "failed", `result   {"a":1}`, "error    x: y").Replace(shown), ""},
			{"failed in doubt", reply{status: 200, body: call("failed", "null", `{"code":"x","message":"y","retryable":true,"effect":"unknown","retry_after":30}`)}, exitUnknown,
				strings.NewReplacer("succeeded", "failed", `result   {"a":1}`, "error    x: y (the same key may ask again, after 30s; it may have been done all the same)").Replace(shown), ""},
			{"failed in doubt for good", reply{status: 200, body: call("failed", "null", `{"code":"x","message":"y","retryable":false,"effect":"unknown"}`)}, exitUnknown,
				strings.NewReplacer("succeeded", "failed", `result   {"a":1}`, "error    x: y (it may have been done all the same)").Replace(shown), ""},
			{"held", reply{status: 200, body: call("held", "null", `{"code":"x","message":"y","retryable":false}`)}, exitUnknown,
				strings.NewReplacer("succeeded", "held", `result   {"a":1}`, "error    x: y").Replace(shown), ""},
			{"running", reply{status: 200, body: call("running", "null", "null")}, exitPending,
				strings.NewReplacer("succeeded", "running", `result   {"a":1}`+"\n", "").Replace(shown), ""},
			{"not found", reply{status: 404, body: refuse("not_found")}, exitNotFound, "", "not_found"},
			{"expired", reply{status: 410, body: refuse("key_expired")}, exitNotFound, "", "key_expired"},
			{"bad", reply{status: 400, body: refuse("bad_request")}, exitUsage, "", "bad_request"},
			{"a bug", reply{status: 500, body: refuse("internal")}, exitUnavailable, "", "internal"},
			{"lost", reply{lose: true}, exitUnavailable, "", "no answer"},
			{"somebody else", reply{status: 200, body: "hello"}, exitUnavailable, "", "not idemd's"},
		} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				tc.reply.body = strings.Replace(tc.reply.body, `"idem_key":"k"`, `"idem_key":`+strconv.Quote(ask.key), 1)
				tc.stdout = strings.Replace(tc.stdout, "key      k\n", "key      "+ask.key+"\n", 1)
				s := serve(t, tc.reply)
				args := slices.Concat(ask.args, []string{"--url", s.URL})
				o := runIdemd(t, "", args...)
				if tc.stderr == "" {
					o.want(t, tc.code, tc.stdout)
				} else {
					o.want(t, tc.code, tc.stdout, tc.stderr)
				}
				if asked := s.asked(); len(asked) != 1 || asked[0] != ask.want {
					t.Errorf("asked %+v, want %+v", asked, ask.want)
				}
				if strings.HasPrefix(tc.reply.body, "{") {
					if o := runIdemd(t, "", append(args, "--json")...); o.code != tc.code || o.stdout != tc.reply.body+"\n" {
						t.Errorf("--json: exit code %d, %s", o.code, o.stdout)
					}
				}
			})
		}
	}
	// What cannot be an id is not sent: the path may mean something else.
	s := serve(t, reply{status: 200, body: call("succeeded", "1", "null")})
	for _, id := range []string{"", "by-key", "c_00", "../../stats", testID + "/audit", strings.ToUpper(testID)} {
		runIdemd(t, "", "get", "--url", s.URL, "--", id).want(t, exitNotFound, "", "no such call")
		runIdemd(t, "", "resolve", "--url", s.URL, "--outcome", "retry", "--by", "me", "--", id).want(t, exitNotFound, "", "no such call")
	}
	if n := len(s.asked()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestResolve(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   []string
		reply  reply
		code   int
		body   string
		stderr string
	}{
		{"succeeded", []string{"--outcome", "succeeded", "--result", `{"n": 1.0, "s":"<&>\u00e9"} `, "--note", "asked <them>"},
			reply{status: 200, body: call("succeeded", "1", "null")}, 0, `{"outcome":"succeeded","by":"me","note":"asked \u003cthem\u003e","result":{"n": 1.0, "s":"<&>\u00e9"}}`, "succeeded, call " + testID},
		{"failed", []string{"--outcome", "failed", "--error", `{"code":"lost"}`},
			reply{status: 200, body: call("failed", "null", `{"code":"lost","message":"","retryable":false}`)}, 0, `{"outcome":"failed","by":"me","error":{"code":"lost"}}`, "failed"},
		{"retry", []string{"--outcome", "retry", "--attempt", "2"},
			reply{status: 200, body: call("pending", "null", "null")}, 0, `{"outcome":"retry","attempt":2,"by":"me"}`, "pending"},
		{"not held", []string{"--outcome", "retry", "--attempt", "2"}, reply{status: 409, body: refuse("not_held")}, exitConflict, "", "not_held"},
		{"not found", []string{"--outcome", "retry", "--attempt", "2"}, reply{status: 404, body: refuse("not_found")}, exitNotFound, "", "not_found"},
		{"bad", []string{"--outcome", "retry", "--attempt", "2"}, reply{status: 400, body: refuse("bad_request")}, exitUsage, "", "bad_request"},
		{"busy", []string{"--outcome", "retry", "--attempt", "2"}, reply{status: 503, body: refuse("unavailable")}, exitUnavailable, "", "unavailable"},
		{"lost", []string{"--outcome", "retry", "--attempt", "2"}, reply{lose: true}, exitUnknown, "", "not known whether that was recorded"},
		{"a bug", []string{"--outcome", "retry", "--attempt", "2"}, reply{status: 500, body: refuse("internal")}, exitUnknown, "", "internal"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.reply)
			args := append([]string{"resolve", testID, "--by", "me", "--url", s.URL}, tc.args...)
			runIdemd(t, "", args...).want(t, tc.code, "", tc.stderr)
			asked := s.asked()
			if len(asked) != 1 || asked[0].line != "POST /v1/tool-calls/"+testID+"/resolve" {
				t.Fatalf("asked %+v", asked)
			}
			if tc.body != "" && asked[0].body != tc.body {
				t.Errorf("body %s, want %s", asked[0].body, tc.body)
			}
			if o := runIdemd(t, "", append(args, "--json")...); o.code != tc.code || !tc.reply.lose && o.stdout != tc.reply.body+"\n" {
				t.Errorf("--json: exit code %d, %s", o.code, o.stdout)
			}
		})
	}
}

func TestStats(t *testing.T) {
	const doc = `{"calls":12345678901234567890,"effects":0,"by_status":{"pending":0,"succeeded":3},"attempts":{"1":2,"10+":1},` +
		`"since":"2026-11-29T16:00:00.000Z","deliveries":4,"by_tool":{"charge":{"deliveries":4,"created":0},"sleep":{"deliveries":0}},"none":{}}`
	s := serve(t, reply{status: 200, body: doc})
	runIdemd(t, "", "stats", "--url", s.URL).want(t, 0, `calls          12345678901234567890
effects        0
by_status      succeeded=3
attempts       1=2 10+=1
since          2026-11-29T16:00:00.000Z
deliveries     4
by_tool charge deliveries=4
`, "hint: 1 calls took more than one attempt")
	runIdemd(t, "", "stats", "--url", s.URL, "--json").want(t, 0, doc+"\n")
	for _, bad := range []reply{{status: 500, body: refuse("internal")}, {status: 200, body: "[1]"}, {status: 200, body: `{"a":[1]}`}, {status: 200, body: `{"a":`}, {status: 200, body: "1"}, {lose: true}} {
		s := serve(t, bad)
		if o := runIdemd(t, "", "stats", "--url", s.URL); o.code != exitUnavailable || o.stdout != "" || o.stderr == "" {
			t.Errorf("%+v: %+v", bad, o)
		}
	}
}

func TestHealth(t *testing.T) {
	ok := reply{status: 200, body: `{"status":"ok"}`}
	for _, tc := range []struct {
		name         string
		live, ready  reply
		code         int
		stderr, json string
	}{
		{"well", ok, reply{status: 200, body: `{"status":"ready"}`}, 0, "accepts calls", `{"status":"ready"}` + "\n"},
		{"held", ok, reply{status: 200, body: `{"status":"ready","held":3}`}, 0, "3 calls are held", `{"status":"ready","held":3}` + "\n"},
		{"held, not known", ok, reply{status: 200, body: `{"status":"ready","held":null}`}, 0, "accepts calls", `{"status":"ready","held":null}` + "\n"},
		{"draining", ok, reply{status: 503, body: refuse("unavailable")}, exitUnavailable, "accepts no calls: unavailable: the words", refuse("unavailable") + "\n"},
		{"not alive", reply{status: 500}, ok, exitUnavailable, "does not live", ""},
		{"somebody else", reply{status: 200, body: "<html>"}, ok, exitUnavailable, "is not idemd", ""},
		{"somebody else's JSON", reply{status: 200, body: `{"status":"up"}`}, ok, exitUnavailable, "is not idemd", ""},
		{"not ready, and not idemd", ok, reply{status: 200, body: "1"}, exitUnavailable, "is not idemd", "1\n"},
		{"lost", reply{lose: true}, ok, exitUnavailable, "no answer", ""},
		{"lost on the way", ok, reply{lose: true}, exitUnavailable, "no answer", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.live, tc.ready)
			runIdemd(t, "", "health", "--url", s.URL).want(t, tc.code, "", tc.stderr)
			s = serve(t, tc.live, tc.ready)
			if o := runIdemd(t, "", "health", "--url", s.URL, "--json"); o.code != tc.code || o.stdout != tc.json {
				t.Errorf("--json: exit code %d, %s", o.code, o.stdout)
			}
		})
	}
}
