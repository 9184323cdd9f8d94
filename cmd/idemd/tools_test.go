package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// toolsFile writes a tools file and gives its path.
func toolsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const oneTool = `version: 1
tools:
- name: notify
  description: Tell the shop.
  effects: external
  timeout: 5s
  input_schema: {type: object, required: [order]}
  http:
    method: POST
    url: http://127.0.0.1:1/hooks/${TEST_TOKEN}
    headers: {Authorization: "Bearer ${TEST_TOKEN}"}
    effect_key: {header: Idempotency-Key, downstream: ignores}
    success: [200]
    retryable: [401, 403, 408, 409, 425, 429, 500, 502, 503, 504]
`

func fineTool() string {
	return strings.Replace(oneTool, "403, 408, 409, 425, 429, 500, 502, 503, 504", "403, 425, 429", 1)
}

func TestToolsLint(t *testing.T) {
	const canary = "s3cr3t-canary"
	t.Setenv("TEST_TOKEN", canary)
	file := toolsFile(t, fineTool())
	o := runIdemd(t, "", "tools", "lint", file)
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("exit code %d, %s", o.code, o.stderr)
	}
	for _, want := range []string{
		"notify: Tell the shop.\n  effect                   Outside, where only the other side knows",
		"\n  401, 403, 425, 429       Not done; the call fails as retryable, and the same key may ask again.\n",
		"found:\n" +
			"                             idemd resolve ID --outcome succeeded --by NAME    it was done\n",
	} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is not said in:\n%s", want, o.stdout)
		}
	}
	for line := range strings.Lines(o.stdout) {
		if len(line) > textWidth+1 && !strings.Contains(line, "idemd resolve") {
			t.Errorf("a long line: %s", line)
		}
	}
	if strings.Contains(o.stdout, canary) {
		t.Error("the secret is shown")
	}

	// With faults, all of them and nothing else.
	file = toolsFile(t, oneTool)
	o = runIdemd(t, "", "tools", "lint", file)
	if o.code != exitFailed || o.stderr != "idemd: faults: 6\n" || strings.Count(o.stdout, "\n") != 6 || strings.Contains(o.stdout, canary) {
		t.Errorf("exit code %d, %s%s", o.code, o.stdout, o.stderr)
	}
	const want = ":14:27: tool notify, http.retryable[2]: 408 does not say that nothing was done, and the downstream ignores the effect id; leave it out, so that the outcome counts as unknown\n"
	if !strings.HasPrefix(o.stdout, file+want) {
		t.Errorf("got %s", o.stdout)
	}

	// Warnings are no faults.
	file = toolsFile(t, strings.Replace(fineTool(), "127.0.0.1:1", "pay.example", 1))
	if o := runIdemd(t, "", "tools", "lint", file); o.code != 0 || !strings.Contains(o.stdout, "\n  warning                  http.url is plain http to another machine") {
		t.Errorf("exit code %d, %s", o.code, o.stdout)
	}

	// Names of samples.
	file = toolsFile(t, strings.Replace(fineTool(), "notify", "charge", 1))
	o = runIdemd(t, "", "tools", "lint", file)
	o.want(t, exitFailed, file+":3:9: tool charge, name: the server brings a tool of this name along; choose another name, or serve without it (--no-samples, no --chaos)\n", "faults: 1")
	if o := runIdemd(t, "", "tools", "lint", "--no-samples", file); o.code != 0 {
		t.Errorf("exit code %d, %s", o.code, o.stderr)
	}

	runIdemd(t, "", "tools", "lint", toolsFile(t, "version: 1\ntools: []\n")).want(t, 0, "", "no tools")
	runIdemd(t, "", "tools", "lint", file+".none").want(t, exitUsage, "", "idemd: the tools file cannot be read: ")
	runIdemd(t, "", "tools", "lint").want(t, exitUsage, "", "expected \"<file>\"")
	_ = os.Unsetenv("TEST_TOKEN")
	file = toolsFile(t, fineTool())
	runIdemd(t, "", "tools", "lint", file).want(t, exitFailed,
		file+":10:10: tool notify, http.url: the environment variable TEST_TOKEN is not set\n"+
			file+":11:30: tool notify, http.headers.Authorization: the environment variable TEST_TOKEN is not set\n", "faults: 2")
}

func TestWrap(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"one":                 "one",
		"one two":             "one two",
		"one two three":       "one two|three",
		"a longer-than-it":    "a|longer-than-it",
		"longer-than-it a":    "longer-than-it|a",
		"  indented and long": "  indented and long",
	} {
		if got := strings.Join(wrap(in, 8), "|"); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestToolsList(t *testing.T) {
	const doc = `{"tools":[{"name":"charge","description":"Take it.","effects":"local","rerun":"rerun","schema":{"type":"object"},"window":"24h"},` +
		`{"name":"a_long_name_for_a_tool","description":"x\u001b[2J","effects":"external","rerun":"verify","schema":null,"window":"24h"}]}`
	s := serve(t, reply{status: 200, body: doc})
	runIdemd(t, "", "tools", "list", "--url", s.URL).want(t, 0, "TOOL              EFFECTS   RERUN   DESCRIPTION\n"+
		"charge            local     rerun   Take it.\n"+
		"a_long_name_for_a_tool  external  verify  x\uFFFD[2J\n")
	runIdemd(t, "", "tools", "list", "--url", s.URL, "--json").want(t, 0, doc+"\n")
	if got := s.requests[0].line; got != "GET /v1/tools" {
		t.Errorf("asked %s", got)
	}
	runIdemd(t, "", "tools", "list", "--url", serve(t, reply{status: 200, body: `{"tools":[]}`}).URL).want(t, 0, "", "nothing to show")
	for _, body := range []string{"", "{}", `{"tools":1}`, "<html>"} {
		runIdemd(t, "", "tools", "list", "--url", serve(t, reply{status: 200, body: body}).URL).want(t, exitUnavailable, "", "not idemd's")
	}
	runIdemd(t, "", "tools", "list", "--url", serve(t, reply{status: 503, body: `{"error":{"code":"unavailable","message":"draining","effect":"none"}}`}).URL).
		want(t, exitUnavailable, "", "unavailable: draining")
	runIdemd(t, "", "tools", "list", "--url", serve(t, reply{lose: true}).URL).want(t, exitUnavailable, "", "no answer")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	runIdemd(t, "", "tools", "list", "--url", nobody).want(t, exitUnavailable, "", "no connection")
}

// A tools file that is wrong is no start, and leaves nothing behind.
func TestServeRefusesTools(t *testing.T) {
	const canary = "s3cr3t-canary"
	t.Setenv("TEST_TOKEN", canary)
	refused := func(text string, want ...string) {
		t.Helper()
		data, file := filepath.Join(t.TempDir(), "data"), toolsFile(t, text)
		for i := range want {
			want[i] = strings.Replace(want[i], "FILE", file, 1)
		}
		o := runIdemd(t, "", "serve", "--listen", "127.0.0.1:0", "--data", data, "--tools", file)
		o.want(t, exitUsage, "", want...)
		if strings.Contains(o.stderr, canary) {
			t.Error("the secret is shown")
		}
		if _, err := os.Stat(data); !os.IsNotExist(err) {
			t.Errorf("the data directory was made: %v", err)
		}
	}
	refused(oneTool,
		"\nFILE:14:32: tool notify, http.retryable[3]: 409 ", "\nFILE:14:47: tool notify, http.retryable[6]: 500 ",
		"\nidemd: faults in the tools file: 6; nothing was started\n")
	refused(strings.Replace(fineTool(), "notify", "charge", 1), "FILE:3:9: tool charge, name: the server brings a tool of this name along", "faults in the tools file: 1;")
	o := runIdemd(t, "", "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"), "--chaos", "--no-samples",
		"--tools", toolsFile(t, strings.Replace(fineTool(), "notify", "ext_hold", 1)))
	o.want(t, exitUsage, "", "tool ext_hold, name: the server brings a tool of this name along")
	runIdemd(t, "", "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"), "--tools", "/nonexistent/tools.yaml").
		want(t, exitUsage, "", "the tools file cannot be read: open /nonexistent/tools.yaml: no such file or directory")
}

// A server has the tools of its file, and shows them without their secrets.
func TestServeTools(t *testing.T) {
	const canary = "s3cr3t-canary"
	t.Setenv("TEST_TOKEN", canary)
	data := filepath.Join(t.TempDir(), "data")
	t.Setenv("IDEMD_TOOLS", toolsFile(t, strings.Replace(fineTool(), "notify", "charge", 1)))
	url, stop := serveAt(t, data, "--no-samples")
	defer stop()
	o := runIdemd(t, "", "tools", "list", "--url", url, "--json")
	if o.code != 0 || !strings.Contains(o.stdout, `"name":"charge","description":"Tell the shop."`) || strings.Contains(o.stdout, canary) {
		t.Errorf("exit code %d, %s", o.code, o.stdout)
	}
	// Nobody listens on port 1: it was not sent, and may be asked for again.
	o = runIdemd(t, "", "call", "charge", `{"order":1}`, "--key", "k", "--wait", "10s", "--url", url, "--retries", "0", "--json")
	if o.code != exitFailed || !strings.Contains(o.stdout, `"retryable":true`) || strings.Contains(o.stdout+o.stderr, canary) {
		t.Errorf("exit code %d, %s%s", o.code, o.stdout, o.stderr)
	}
}

// What a server says while a tool of its file fails shows no secret either.
func TestServeToolsLog(t *testing.T) {
	const canary = "s3cr3t-canary"
	t.Setenv("TEST_TOKEN", canary)
	d := startServe(t, "--data", filepath.Join(t.TempDir(), "data"), "--tools", toolsFile(t, fineTool()), "--log-level", "debug")
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if words := <-d.words; strings.Contains(words, canary) || !strings.Contains(words, `"tools":5`) {
		t.Errorf("said %s", words)
	}
}

// TestReadmeTools: the tools file of the README is one.
func TestReadmeTools(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```yaml\n")
	text, _, closed := strings.Cut(rest, "```\n")
	if !found || !closed {
		t.Fatal("the README has no tools file")
	}
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PAY_TOKEN", "secret")
	o := runIdemd(t, "", "tools", "lint", path)
	if o.code != 0 || !strings.Contains(o.stdout, "refund: Refund one order once.") || !strings.Contains(o.stdout, "send_report") {
		t.Errorf("exit code %d\n%s%s", o.code, o.stdout, o.stderr)
	}
}
