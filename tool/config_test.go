package tool

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// variables is an environment.
type variables map[string]string

func (v variables) get(name string) (string, bool) {
	s, ok := v[name]
	return s, ok
}

// loadText loads a file of this text.
func loadText(t testing.TB, text string, env variables) ([]*Spec, Faults) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	specs, err := Load(path, env.get)
	var faults Faults
	if err != nil && !errors.As(err, &faults) {
		t.Fatal(err)
	}
	if len(faults) > 0 && specs != nil {
		t.Error("there are tools in spite of the faults")
	}
	for i := range faults {
		if faults[i].File != path {
			t.Errorf("file %s, want %s", faults[i].File, path)
		}
		faults[i].File = "f"
	}
	return specs, faults
}

func wantFaults(t *testing.T, got Faults, want ...string) {
	t.Helper()
	lines := strings.Split(got.Error(), "\n")
	if len(got) == 0 {
		lines = nil
	}
	if len(got) != len(lines) {
		t.Errorf("%d faults on %d lines", len(got), len(lines))
	}
	if fmt.Sprintf("%q", lines) != fmt.Sprintf("%q", want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestLoad(t *testing.T) {
	env := variables{"PAY_TOKEN": "tok/en", "SMTP_PASSWORD": "pass word"}
	specs, err := Load(filepath.Join("testdata", "tools.yaml"), env.get)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != 4 {
		t.Fatalf("%d tools", len(specs))
	}
	for _, s := range specs {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
	}
	refund, capture, report, rate := specs[0], specs[1], specs[2], specs[3]

	if refund.Name != "refund" || refund.Description != "Refund one order once." || refund.Effects != idem.EffectsExternal ||
		refund.Rerun != idem.RerunVerify || refund.Timeout != 10*time.Second || refund.Unrecorded || refund.Command != nil {
		t.Error("refund")
	}
	if h := refund.HTTP; h.Method != http.MethodPost || h.URL != "https://pay.example/refunds" || h.Headers.Get("authorization") != "Bearer tok/en" ||
		h.EffectKey != (EffectKey{Header: "Idempotency-Key"}) ||
		fmt.Sprint(h.Success, h.Final, h.Retryable) != "[200 201] [400 404 422] [401 403 425 429]" {
		t.Error("refund.http")
	}
	if v := refund.Verify; v.Method != http.MethodGet || v.URL != "https://pay.example/refunds?ref={effect_id}" || v.Settle != 20*time.Second ||
		fmt.Sprint(v.Found, v.Absent) != "[200] [404]" {
		t.Error("refund.verify")
	}
	if fmt.Sprint(refund.Intent, *refund.Rules) != "[/order_id] {[/memo] [/order_id] []}" {
		t.Error("refund: intent, rules")
	}
	const schema = `{"type":"object","required":["order_id","amount"],"properties":{"order_id":{"type":"string"},"amount":{"type":"integer","minimum":1},"memo":{"type":"string"}}}`
	if string(refund.Schema) != schema {
		t.Errorf("schema %s", refund.Schema)
	}

	if capture.Rerun != idem.RerunYes || capture.MaxAttempts != 20 || capture.MaxCrashes != 5 || capture.Concurrency != 8 {
		t.Error("capture")
	}
	if h := capture.HTTP; h.EffectKey != (EffectKey{Honours: true}) || h.URL != "https://pay.example/captures/{effect_id}" ||
		h.Headers.Get("X-Api-Key") != "canary-file-secret" || h.Headers.Get("Authorization") != "Bearer canary-file-secret" {
		t.Error("capture.http")
	}
	if !bytes.Contains(capture.Schema, []byte(`"maximum":9007199254740993}`)) {
		t.Errorf("schema %s", capture.Schema)
	}

	if c := report.Command; report.Rerun != idem.RerunHold || report.Timeout != 90*time.Second || fmt.Sprint(c.Argv) != "[/usr/local/bin/send-report --quiet]" ||
		fmt.Sprint(c.Env) != "map[EFFECT_ID:{effect_id} PRICE:${AMOUNT} SMTP_PASSWORD:pass word]" || fmt.Sprint(c.FinalExit, c.RetryableExit) != "[1 2] [75]" {
		t.Error("send_report")
	}
	if rate.Effects != idem.EffectsNone || rate.Rerun != idem.RerunYes || !rate.Unrecorded || rate.HTTP.URL != "http://127.0.0.1:9000/rate?token=tok%2Fen" ||
		fmt.Sprint(rate.HTTP.Success) != "[200 204]" {
		t.Error("rate")
	}
}

func TestLoadCannotRead(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "missing.yaml"), t.TempDir()} {
		_, err := Load(path, variables{}.get)
		var faults Faults
		if err == nil || errors.As(err, &faults) || !strings.HasPrefix(err.Error(), "tool: the tools file cannot be read: ") {
			t.Errorf("got %v", err)
		}
	}
}

// What is wrong with the file as such.
func TestLoadStrict(t *testing.T) {
	const tool = "version: 1\ntools:\n- name: a\n  effects: none\n  http: {method: GET, url: http://h/}\n"
	if _, faults := loadText(t, tool, nil); faults != nil {
		t.Fatal(faults)
	}
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"empty":             {"", []string{"f:1:1: the file is empty; it needs version: 1 and tools"}},
		"comment only":      {"# x\n", []string{"f:1:1: the file is empty; it needs version: 1 and tools"}},
		"a list":            {"- a\n", []string{"f:1:1: must be a mapping with version, defaults, tools; it is a list"}},
		"null":              {"~\n", []string{"f:1:1: must be a mapping with version, defaults, tools; it is nothing that is clear"}},
		"no fields":         {"{}\n", []string{"f:1:1: version is missing; say version: 1", "f:1:1: tools is missing; say tools: and a list of them"}},
		"other version":     {"version: 2\ntools: []\n", []string{"f:1:10: version: this release reads version: 1 and no other"}},
		"version as text":   {"version: '1'\ntools: []\n", []string{"f:1:10: version: this release reads version: 1 and no other"}},
		"version 1.0":       {"version: 1.0\ntools: []\n", []string{"f:1:10: version: this release reads version: 1 and no other"}},
		"tools no list":     {"version: 1\ntools: {a: b}\n", []string{"f:2:1: tools: must be a list, [a, b]; it is a mapping"}},
		"tool no mapping":   {"version: 1\ntools: [a]\n", []string{"f:2:9: tool number 1: must be a mapping with name, description, effects, record, rerun, timeout, concurrency, max_attempts, max_crashes, input_schema, intent, fingerprint, http, command, verify; it is text"}},
		"unknown field":     {tool + "extra: 1\n", []string{`f:6:1: there is no field "extra" here; there are version, defaults, tools`}},
		"unknown, inside":   {strings.Replace(tool, "url:", "uri: x, url:", 1), []string{`f:5:23: tool a, http: there is no field "uri" here; there are method, url, headers, effect_key, success, final, retryable`}},
		"names count case":  {strings.Replace(tool, "effects", "Effects", 1), []string{"f:3:3: tool a: effects is missing; say none (it only reads, or computes) or external (it changes something outside)", `f:4:3: tool a: there is no field "Effects" here; there are name, description, effects, record, rerun, timeout, concurrency, max_attempts, max_crashes, input_schema, intent, fingerprint, http, command, verify`}},
		"twice":             {strings.Replace(tool, "  effects: none\n", "  effects: none\n  effects: none\n", 1), []string{`f:5:3: tool a: "effects" is there already, on line 4`}},
		"name no text":      {tool + "1: x\n", []string{"f:6:1: a name must be text; quote it if text is meant"}},
		"name a list":       {tool + "? [a]\n: x\n", []string{"f:6:3: a name must be text; quote it if text is meant"}},
		"two documents":     {tool + "---\na: 1\n", []string{"f:6:1: a second document begins here; a tools file is one document"}},
		"broken second":     {tool + "---\na: [\n", []string{"f:7:1: this is not YAML: did not find expected node content"}},
		"document ends":     {tool + "...\n", nil},
		"with a BOM":        {"\uFEFF" + tool, nil},
		"alias":             {tool + "x: &a 1\ny: *a\n", []string{"f:6:4: " + noAliases, "f:7:4: " + noAliases}},
		"unknown alias":     {tool + "  description: *all\n", []string{"f:6:16: " + noAliases}},
		"merge key":         {tool + "<<: {a: 1}\n", []string{"f:6:1: merge keys (<<) are not allowed; write the fields in full"}},
		"tag":               {strings.Replace(tool, "name: a", "name: !!str a", 1), []string{"f:3:9: tags (!) are not allowed; quote it if text is meant"}},
		"syntax":            {tool + "  rerun: [\n", []string{"f:6:3: this is not YAML: did not find expected node content"}},
		"unquoted variable": {strings.Replace(tool, "url: http://h/", "url: http://h/, headers: {X: ${V}}", 1), []string{`f:4:3: this is not YAML: did not find expected ',' or '}'; quote what has braces in it, "${NAME}"`}},
		"tab":               {tool + "\trerun: hold\n", []string{"f:6:2: this is not YAML: found character that cannot start any token"}},
		"no UTF-8":          {tool + "# gr\xfcn\n", []string{"f:6:5: the byte 0xfc is not UTF-8"}},
		"UTF-16":            {"\xff\xfev\x00", []string{"f:1:1: the byte 0xff is not UTF-8"}},
		"control":           {tool + "# ä\x00\n", []string{"f:6:4: the control character U+0000 is not allowed"}},
		"too large":         {tool + "#" + strings.Repeat("x", 1<<20), []string{"f:1:1: the file is over 1048576 bytes"}},
		"too deep":          {tool + "x: " + strings.Repeat("[", 70) + strings.Repeat("]", 70), []string{"f:6:67: lists and mappings are more than 64 deep in one another"}},
		"very deep":         {strings.Repeat("[", 1<<19), []string{"f:1:1: this is not YAML: exceeded max depth of 10000"}},
		"too many":          {"version: 1\ntools: [" + strings.Repeat("a,", 1001) + "]\n", []string{"f:2:1: tools: at most 1000 are allowed; there are 1001"}},
		"same name":         {tool + "- name: a\n  effects: none\n  http: {method: GET, url: http://h/}\n", []string{"f:6:9: tool a, name: the tool on line 3 has this name already; each needs its own"}},
		"columns are characters": {"version: 1\ntools:\n- {name: a, effects: none, description: \"äö\", x: 1, http: {method: GET, url: http://h/}}\n", []string{
			`f:3:47: tool a: there is no field "x" here; there are name, description, effects, record, rerun, timeout, concurrency, max_attempts, max_crashes, input_schema, intent, fingerprint, http, command, verify`}},
		"defaults": {"defaults: {timeout: 10, rerun: never, x: 1}\n" + tool, []string{
			"f:1:21: defaults.timeout: a duration needs its unit; write 10s for seconds",
			`f:1:32: defaults.rerun: must be rerun, verify or hold; it is "never"`,
			`f:1:39: defaults: there is no field "x" here; there are timeout, rerun`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := loadText(t, tc.text, nil)
			wantFaults(t, faults, tc.want...)
		})
	}
}

// A pipe that nobody writes to is an empty file, and no start that hangs.
func TestLoadPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path, variables{}.get)
	var faults Faults
	if !errors.As(err, &faults) || faults[0].What != "the file is empty; it needs version: 1 and tools" {
		t.Errorf("got %v", err)
	}
}

// A file that is wrong everywhere gets as much as somebody can read.
func TestLoadManyFaults(t *testing.T) {
	_, faults := loadText(t, "version: 1\ntools: []\n"+strings.Repeat("1: x\n", 5000), nil)
	if len(faults) != maxFaults+1 || faults[maxFaults].What != "4000 more faults are not shown" {
		t.Errorf("%d faults, the last: %v", len(faults), faults[len(faults)-1])
	}
}

// Every type of value, wrong.
func TestLoadValues(t *testing.T) {
	for name, tc := range map[string]struct{ field, want string }{
		"text a number":           {"description: 5", "16: tool a, description: must be text; it is a number; quote it if text is meant"},
		"text yes":                {"description: yes", "16: tool a, description: must be text; it is nothing that is clear; quote it if text is meant"},
		"text a date":             {"description: 2026-11-29", "16: tool a, description: must be text; it is nothing that is clear; quote it if text is meant"},
		"text nothing":            {"description:", "15: tool a, description: must be text; it is empty; give a value, or leave the field out"},
		"text a list":             {"description: []", "3: tool a, description: must be text; it is a list; write one value"},
		"flag a text":             {"record: 'true'", "11: tool a, record: must be true or false; it is text"},
		"flag no":                 {"record: no", "11: tool a, record: must be true or false; it is nothing that is clear"},
		"flag True":               {"record: True", "11: tool a, record: must be true or false; it is nothing that is clear"},
		"duration a number":       {"timeout: 10", "12: tool a, timeout: a duration needs its unit; write 10s for seconds"},
		"duration without a unit": {"timeout: '10'", `12: tool a, timeout: must be a duration like 10s, 1m30s or 500ms; it is "10"`},
		"duration of days":        {"timeout: 1d", `12: tool a, timeout: must be a duration like 10s, 1m30s or 500ms; it is "1d"`},
		"duration zero":           {"timeout: 0s", "12: tool a, timeout: must be from 1ms to 24h0m0s; it is 0s"},
		"duration negative":       {"timeout: -1s", "12: tool a, timeout: must be from 1ms to 24h0m0s; it is -1s"},
		"duration too long":       {"timeout: 25h", "12: tool a, timeout: must be from 1ms to 24h0m0s; it is 25h0m0s"},
		"duration a list":         {"timeout: [1s]", "3: tool a, timeout: must be a duration like 10s, 1m30s or 500ms; it is a list"},
		"number a text":           {"concurrency: '4'", "16: tool a, concurrency: must be a whole number from 1 to 10000, written with its digits; it is text"},
		"number hexadecimal":      {"concurrency: 0x10", "16: tool a, concurrency: must be a whole number from 1 to 10000, written with its digits; it is nothing that is clear"},
		"number octal":            {"concurrency: 010", "16: tool a, concurrency: must be a whole number from 1 to 10000, written with its digits; it is nothing that is clear"},
		"number with _":           {"concurrency: 1_0", "16: tool a, concurrency: must be a whole number from 1 to 10000, written with its digits; it is nothing that is clear"},
		"number a fraction":       {"concurrency: 1.5", "16: tool a, concurrency: must be a whole number from 1 to 10000; it is 1.5"},
		"number with exponent":    {"concurrency: 1e1", "16: tool a, concurrency: must be a whole number from 1 to 10000; it is 1e1"},
		"number too small":        {"concurrency: 0", "16: tool a, concurrency: must be a whole number from 1 to 10000; it is 0"},
		"number too large":        {"concurrency: 10001", "16: tool a, concurrency: must be a whole number from 1 to 10000; it is 10001"},
		"number very large":       {"max_attempts: 99999999999999999999", "17: tool a, max_attempts: must be a whole number from 1 to 1000000; it is 99999999999999999999"},
		"crashes too few":         {"max_crashes: 1", "16: tool a, max_crashes: must be a whole number from 2 to 100; it is 1"},
		"crashes too many":        {"max_crashes: 101", "16: tool a, max_crashes: must be a whole number from 2 to 100; it is 101"},
		"a word":                  {"rerun: always", `10: tool a, rerun: must be rerun, verify or hold; it is "always"`},
		"intent no pointer":       {"intent: [order_id]", "12: tool a, intent[0]: must be a JSON pointer to a member of args, for example /order_id"},
		"intent all":              {"intent: ['']", "12: tool a, intent[0]: must be a JSON pointer to a member of args, for example /order_id"},
		"intent bad escape":       {"intent: [/a~2]", "12: tool a, intent[0]: must be a JSON pointer to a member of args, for example /order_id"},
		"intent twice":            {"intent: [/a, /a]", "16: tool a, intent[1]: the pointer is there already"},
		"intent that is ignored":  {"intent: [/a/b]\n  fingerprint: {ignore: [/a]}", "12: tool a, intent[0]: /a/b is ignored by fingerprint.ignore, so that it can name no intent"},
		"intent too many":         {"intent: [" + strings.Repeat("/a,", 17) + "]", "3: tool a, intent: at most 16 are allowed; there are 17"},
		"fingerprint list":        {"fingerprint: {ignore: /a}", "25: tool a, fingerprint.ignore: must be a list, [a, b]; it is text"},
		"fingerprint pointer":     {"fingerprint: {trim: [a]}", `17: tool a, fingerprint.trim: the pointer "a" does not begin with a slash`},
		"variable in a text":      {"description: cost ${PRICE}", "16: tool a, description: a variable ${...} can stand only in a URL, in the value of a header and in a value of env; write $${ for the characters ${"},
		"variable, half":          {"description: '${x'", "16: tool a, description: ${ begins a variable, ${NAME}, with a name of letters, digits and _; write $${ for the characters ${"},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := loadText(t, "version: 1\ntools:\n- name: a\n  effects: none\n  http: {method: GET, url: http://h/}\n  "+tc.field+"\n", nil)
			wantFaults(t, faults, "f:6:"+tc.want)
		})
	}
	for _, name := range []string{"Refund", "1a", "", strings.Repeat("a", 65), "a-b", "ä"} {
		t.Run("name "+name, func(t *testing.T) {
			_, faults := loadText(t, "version: 1\ntools:\n- effects: none\n  http: {method: GET, url: http://h/}\n  name: '"+name+"'\n", nil)
			wantFaults(t, faults, "f:5:9: tool number 1, name: a name must match "+idem.NamePattern)
		})
	}
}

// Faults of all kinds in all tools come at once, in the order of the file; one
// that only follows from another does not.
func TestLoadReportsAllAtOnce(t *testing.T) {
	_, faults := loadText(t, `version: 1
tools:
  - name: a
    effects: externl
    rerun: rerun
    timeout: 5
    http: {method: post, url: "ftp://h/", success: [200, 200], retryable: [500]}
  - name: b
    effects: none
    rerun: hold
    command: {argv: [prog], final_exit: [0, 256, 3], retryable_exit: [3]}
  - effects: none
`, nil)
	wantFaults(t, faults,
		`f:4:14: tool a, effects: must be none or external; it is "externl"`,
		"f:6:14: tool a, timeout: a duration needs its unit; write 5s for seconds",
		"f:7:20: tool a, http.method: must be POST, PUT, PATCH or DELETE, or GET or HEAD for a tool with effects: none, in upper case",
		"f:7:31: tool a, http.url: must be a whole URL, https://HOST/PATH or http://HOST/PATH",
		"f:7:58: tool a, http.success[1]: the status 200 is in this list already",
		"f:10:12: tool b, rerun: a tool with effects: none can always run again; say rerun, or leave it out",
		"f:11:22: tool b, command.argv[0]: the program must be an absolute path, /usr/bin/prog: there is no shell and no PATH",
		"f:11:42: tool b, command.final_exit[0]: must be a whole number from 1 to 255; it is 0",
		"f:11:45: tool b, command.final_exit[1]: must be a whole number from 1 to 255; it is 256",
		"f:12:5: tool number 3: name is missing; each tool needs one, for example refund",
		"f:12:5: tool number 3: nothing says how it is run; give it http or command",
	)
}

func TestClashes(t *testing.T) {
	specs, faults := loadText(t, "version: 1\ntools:\n- {name: charge, effects: none, http: {method: GET, url: http://h/}}\n- {name: fine, effects: none, http: {method: GET, url: http://h/}}\n", nil)
	if faults != nil {
		t.Fatal(faults)
	}
	if err := Clashes(specs, nil); err != nil {
		t.Error(err)
	}
	err := Clashes(specs, Samples())
	if !errors.As(err, &faults) || len(faults) != 1 || !strings.Contains(faults.Error(), "tools.yaml:3:10: tool charge, name: the server brings a tool of this name along") {
		t.Errorf("got %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	seed, err := os.ReadFile(filepath.Join("testdata", "tools.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	for _, s := range []string{
		"", "version: 1\ntools: [{name: a, input_schema: {type: object, minimum: 1e400, pattern: '('}}]", "a: &a [*a]", "? {}\n: -",
		"version: 1\ntools: [{name: a, effects: external, http: {url: \"http://${A}{effect_id}\", headers: {a: ${A}, A: {file: /}}}}]",
		"version: 1\ntools: [{input_schema: {type: object, $ref: '#/a', maxLength: 1e900, multipleOf: 1e-1000, enum: [0.1]}}]",
	} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		d := &decoder{file: "f", dir: dir, env: func(name string) (string, bool) { return "canary-" + name, name != "B" }, rerun: idem.RerunHold}
		specs := d.load(text)
		for _, fault := range d.sorted() {
			if fault.Line < 1 || fault.Column < 1 || fault.Line > bytes.Count(text, []byte("\n"))+bytes.Count(text, []byte("\r"))+2+strings.Count(string(text), "\u0085")+strings.Count(string(text), "\u2028")+strings.Count(string(text), "\u2029") || fault.What == "" {
				t.Errorf("fault %+v", fault)
			}
			if strings.Contains(fault.Error(), "canary-") && !bytes.Contains(text, []byte("canary-")) {
				t.Errorf("a secret is shown: %v", fault)
			}
		}
		if len(d.faults) > 0 {
			return
		}
		for _, s := range specs {
			if err := s.Validate(); err != nil {
				t.Errorf("loaded, and not valid: %v", err)
			}
			if len(s.Explain()) == 0 {
				t.Error("nothing is explained")
			}
			s.Warnings(16)
		}
	})
}
