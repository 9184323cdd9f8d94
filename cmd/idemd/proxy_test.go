package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// startIdemdProxy returns once the proxy listens.
func startIdemdProxy(t *testing.T, args ...string) standInRun {
	t.Helper()
	var stdout bytes.Buffer
	p := startStandIn(t, &stdout, "proxy", args...)
	stop := p.stop
	p.stop = func() outcome {
		o := stop()
		o.stdout = stdout.String()
		return o
	}
	return p
}

func postThrough(p standInRun, key string) (int, error) {
	req, err := http.NewRequest(http.MethodPost, p.url+"/v1/tool-calls", strings.NewReader("{}"))
	if err != nil {
		return 0, err
	}
	req.GetBody = nil // or net/http sends it again by itself
	req.Header.Set("Idempotency-Key", key)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestProxy(t *testing.T) {
	s := serve(t, reply{status: 202})
	p := startIdemdProxy(t, "--upstream", s.URL, "--mode", "drop-response", "--first-per-key", "1", "--methods", "POST", "--path", "/v1/")
	for _, key := range []string{"a", "b"} {
		if _, err := postThrough(p, key); !errors.Is(err, io.EOF) {
			t.Errorf("first try of %s: %v", key, err)
		}
		if status, err := postThrough(p, key); status != 202 || err != nil {
			t.Errorf("second try of %s: %d, %v", key, status, err)
		}
	}
	o := p.stop()
	var got map[string]any
	if err := json.Unmarshal([]byte(o.stdout), &got); err != nil || o.code != 0 {
		t.Fatalf("exit code %d, %q: %v", o.code, o.stdout, err)
	}
	want := map[string]any{
		"requests": 4.0, "upstream_requests": 4.0, "upstream_answers": 4.0, "delivered": 2.0, "own_answers": 0.0, "upstream_failures": 0.0,
		"clients_left": 0.0, "faults": map[string]any{"drop-response": 2.0}, "not_duplicated": 0.0, "keys_forgotten": 0.0,
	}
	if !reflect.DeepEqual(got, want) || len(s.asked()) != 4 {
		t.Errorf("%v, want %v; upstream saw %d", got, want, len(s.asked()))
	}
}

// The same seed, the same faults; and a seed that was made up is said.
func TestProxySeed(t *testing.T) {
	s := serve(t, reply{status: 200})
	play := func(seed ...string) (met, said, stdout string) {
		p := startIdemdProxy(t, append([]string{"--upstream", s.URL, "--mode", "fail-before=500,fail-before=503", "--rate", "0.5"}, seed...)...)
		for range 40 {
			status, err := postThrough(p, "k")
			if err != nil {
				t.Fatal(err)
			}
			met += map[int]string{200: ".", 500: "0", 503: "3"}[status]
		}
		return met, strings.Join(p.said, "\n"), p.stop().stdout
	}
	met, said, stdout := play()
	seed, ok := strings.CutPrefix(said, "idemd proxy seed ")
	if !ok || !strings.Contains(stdout, `{"seed":`+seed+`,"requests":40,`) {
		t.Fatalf("%q, %s", said, stdout)
	}
	if again, _, _ := play("--seed", seed); again != met {
		t.Errorf("seed %s: %s, then %s", seed, met, again)
	}
	for _, s := range []string{".", "0", "3"} {
		if !strings.Contains(met, s) { // by chance once in a million
			t.Errorf("seed %s: %s", seed, met)
		}
	}
}

// A stop does not wait longer than it is told for an exchange that hangs.
func TestProxyStop(t *testing.T) {
	s := serve(t, reply{stall: true})
	p := startIdemdProxy(t, "--upstream", s.URL, "--shutdown-timeout", "0s", "--log-level", "error")
	failed := make(chan error, 1)
	go func() {
		_, err := postThrough(p, "k")
		failed <- err
	}()
	<-s.arrived
	if o := p.stop(); o.code != 0 || !strings.Contains(o.stdout, `"upstream_requests":1,`) {
		t.Errorf("%+v", o)
	}
	if err := <-failed; err == nil {
		t.Error("the exchange did not end")
	}
}

func TestProxyRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	runIdemd(t, "", "proxy", "--upstream", "http://h", "--listen", l.Addr().String()).want(t, 1, "", "in use")
	for _, tc := range []struct{ args, want string }{
		{"", "--upstream"},
		{"--upstream h:80", "is not a URL"},
		{"--upstream http://h --listen 0.0.0.0:0", "--insecure"},
		{"--upstream http://h --mode drop", `unknown mode "drop"`},
		{"--upstream http://h --mode reset,delay-response", "positive delay"},
		{"--upstream http://h --first 0", "--first must be positive"},
		{"--upstream http://h --first-per-key 0", "--first-per-key must be positive"},
		{"--upstream http://h --rate 0", "--rate must be over 0"},
		{"--upstream http://h --rate 1.1", "not from 0 to 1"},
		{"--upstream http://h --methods post", "upper case"},
		{"--upstream http://h --max-conns 0", "--max-conns must be positive"},
		{"--upstream http://h --timeout 0s", "--timeout must be positive"},
	} {
		runIdemd(t, "", append([]string{"proxy"}, strings.Fields(tc.args)...)...).want(t, 2, "", tc.want)
	}
}

// A summary that cannot be written is not the same as one that was.
func TestProxyStdoutFails(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	p := startStandIn(t, w, "proxy", "--upstream", "http://127.0.0.1:1")
	if o := p.stop(); o.code != exitOutput {
		t.Errorf("exit code %d", o.code)
	}
}
