package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/idemd/idemd/idem"
)

const hush = "s3cr3t-canary"

const secretTools = `version: 1
tools:
- name: a
  effects: external
  rerun: verify
  http:
    method: POST
    url: https://h/hooks/%s?t=%s
    headers: {Authorization: "Bearer %s", X-Key: %s}
    effect_key: {header: Idempotency-Key, downstream: ignores}
    success: [200]
  verify: {method: GET, url: "https://h/{effect_id}?t=${SECRET}", headers: {X: "${SECRET}"}, found: [200], absent: [404]}
- name: b
  effects: none
  command: {argv: [/bin/prog], env: {A: "${SECRET}", B: {file: secret}}}
`

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("good", hush+"\n")
	write("windows", hush+"\r\n")
	write("bare", hush)
	write("lines", hush+"\n"+hush+"\n\n")
	write("empty", "\n")
	write("large", strings.Repeat(hush, 6000))
	write("mark", hush+"{effect_id}")
	if err := os.Symlink("good", filepath.Join(dir, "link")); err != nil { // as mounted secrets are
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := variables{"SECRET": hush, "EMPTY": "", "TWO": hush + "\r\nX: y", "MARK": hush + "{effect_id}", "HUGE": strings.Repeat(hush, 6000)}
	for _, tc := range []struct {
		name, header string
		want         string // the header's value
		fault        string
	}{
		{"plain", `text`, "text", ""},
		{"variable", `"Bearer ${SECRET}!"`, "Bearer " + hush + "!", ""},
		{"variables", `"${SECRET}${SECRET}"`, hush + hush, ""},
		{"not one", `"$${SECRET} $5 $$"`, "${SECRET} $5 $$", ""},
		{"file", `{file: good}`, hush, ""},
		{"file, prefix", `{file: good, prefix: "Bearer "}`, "Bearer " + hush, ""},
		{"file, absolute", `{file: ` + filepath.Join(dir, "good") + `}`, hush, ""},
		{"file, CRLF", `{file: windows}`, hush, ""},
		{"file, no line end", `{file: bare}`, hush, ""},
		{"file, link", `{file: link}`, hush, ""},

		{"missing", `"${MISSING}"`, "", "8:18: tool a, http.headers.X: the environment variable MISSING is not set"},
		{"empty", `"${EMPTY}"`, "", "8:18: tool a, http.headers.X: the environment variable EMPTY is empty"},
		{"open", `"${SECRET"`, "", "8:18: tool a, http.headers.X: ${ begins a variable, ${NAME}, with a name of letters, digits and _; write $${ for the characters ${"},
		{"with a default", `"${SECRET:-x}"`, "", "8:18: tool a, http.headers.X: ${ begins a variable, ${NAME}, with a name of letters, digits and _; write $${ for the characters ${"},
		{"line break", `"${TWO}"`, "", "8:18: tool a, http.headers.X: the value of a header must not have line breaks or other control characters"},
		{"mark", `"${MARK}"`, "", "8:18: tool a, http.headers.X: the environment variable MARK must not hold {effect_id}"},
		{"huge", `"${HUGE}"`, "", "8:18: tool a, http.headers.X: it is over 65536 bytes"},
		{"file as text", `file:good`, "", "8:18: tool a, http.headers.X: write {file: PATH} to read it from a file"},
		{"no file named", `{file: ""}`, "", "8:25: tool a, http.headers.X.file: say where it is read from: {file: PATH}"},
		{"no file", `{file: nofile}`, "", "8:25: tool a, http.headers.X.file: it cannot be read: open DIR/nofile: no such file or directory"},
		{"a directory", `{file: .}`, "", "8:25: tool a, http.headers.X.file: DIR is not a regular file"},
		{"a pipe", `{file: pipe}`, "", "8:25: tool a, http.headers.X.file: DIR/pipe is not a regular file"},
		{"empty file", `{file: empty}`, "", "8:25: tool a, http.headers.X.file: DIR/empty is empty"},
		{"large file", `{file: large}`, "", "8:25: tool a, http.headers.X.file: DIR/large is over 65536 bytes"},
		{"lines in a file", `{file: lines}`, "", "8:15: tool a, http.headers.X: the value of a header must not have line breaks or other control characters"},
		{"mark in a file", `{file: mark}`, "", "8:25: tool a, http.headers.X.file: it must not hold {effect_id}"},
		{"file and more", `{file: good, path: x}`, "", `8:31: tool a, http.headers.X: there is no field "path" here; there are file, prefix`},
		{"prefix alone", `{prefix: x}`, "", "8:15: tool a, http.headers.X: file is missing; say where it is read from: {file: PATH}"},
		{"variable in a path", `{file: "${SECRET}"}`, "", "8:25: tool a, http.headers.X.file: a variable ${...} can stand only in a URL, in the value of a header and in a value of env; write $${ for the characters ${"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			write("tools.yaml", "version: 1\ntools:\n- name: a\n  effects: none\n  http:\n    method: GET\n    url: https://h/\n    headers: {X: "+tc.header+"}\n")
			specs, err := Load(filepath.Join(dir, "tools.yaml"), env.get)
			if tc.fault == "" {
				if err != nil {
					t.Fatal(err)
				}
				if got := specs[0].HTTP.Headers.Get("X"); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				return
			}
			if err == nil {
				t.Fatal("was accepted")
			}
			if strings.Contains(err.Error(), hush) {
				t.Errorf("the secret is shown: %v", err)
			}
			if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != "DIR/tools.yaml:"+tc.fault {
				t.Errorf("got  %s\nwant DIR/tools.yaml:%s", got, tc.fault)
			}
		})
	}
}

// A small file cannot put a large secret in so often that it fills the memory.
func TestSecretsAreBounded(t *testing.T) {
	env := variables{"BIG": strings.Repeat(hush, maxSecret/len(hush))}
	text := func(url, header string) string {
		return "version: 1\ntools:\n- name: a\n  effects: none\n  http:\n    method: GET\n    url: " + url + "\n    headers: {" + header + "}\n"
	}
	often := strings.Repeat("${BIG}", 100_000) // 6 GB
	_, faults := loadText(t, text("https://h/", "X: '"+often+"'"), env)
	wantFaults(t, faults, "f:8:18: tool a, http.headers.X: it is over 65536 bytes")
	_, faults = loadText(t, text("https://h/"+often, ""), env)
	wantFaults(t, faults, "f:7:10: tool a, http.url: it is over 65536 bytes")

	fits := maxSecrets/len(env["BIG"]) - 1 // the URL takes a little
	var many strings.Builder
	for i := range fits {
		fmt.Fprintf(&many, "X%d: '${BIG}', ", i)
	}
	if _, faults = loadText(t, text("https://h/", many.String()), env); faults != nil {
		t.Error(faults)
	}
	_, faults = loadText(t, text("https://h/", many.String()+"Y: '${BIG}',\n      Z: '${BIG}'"), env)
	wantFaults(t, faults, "f:9:10: tool a, http.headers.Z: with this one, headers, variables and URLs are over 16777216 bytes in all")
}

// A variable is one piece of a URL, whatever is in it.
func TestSecretInURL(t *testing.T) {
	_, faults := loadText(t, "version: 1\ntools:\n- name: a\n  effects: none\n  http: {method: GET, url: 'https://h/a/${V}/b?c=${V}&d=$${x}'}\n", variables{"V": "a/b?c#d e&f%{}"})
	if len(faults) != 1 || faults[0].What != "{effect_id} is all that can stand in braces; args go in the body, or in the query of a GET" {
		t.Errorf("got %v", faults)
	}
	specs, faults := loadText(t, "version: 1\ntools:\n- name: a\n  effects: none\n  http: {method: GET, url: 'https://h/a/${V}/b?c=${V}&d'}\n", variables{"V": "a/b?c#d e&f%{}"})
	if faults != nil {
		t.Fatal(faults)
	}
	if got := specs[0].HTTP.URL; got != "https://h/a/a%2Fb%3Fc%23d%20e&f%25%7B%7D/b?c=a%2Fb%3Fc%23d+e%26f%25%7B%7D&d" {
		t.Errorf("got %s", got)
	}
}

// However a tool is printed, and whatever is wrong with it, no secret is shown.
func TestSecretsAreNotShown(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(hush), 0o600); err != nil {
		t.Fatal(err)
	}
	env := variables{"SECRET": hush}
	hidden := func(t *testing.T, text string) {
		t.Helper()
		if strings.Contains(text, hush) || strings.Contains(text, fmt.Sprintf("%x", hush)) {
			t.Errorf("the secret is shown: %s", text)
		}
	}
	load := func(t *testing.T, text string) ([]*Spec, error) {
		t.Helper()
		path := filepath.Join(dir, "tools.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(path, env.get)
	}
	// Some by variable and file; some written into the file, which is unwise.
	byVariable := fmt.Sprintf(secretTools, "${SECRET}", "${SECRET}", "${SECRET}", "{file: secret}")
	written := fmt.Sprintf(secretTools, hush, hush, hush, hush)

	for _, text := range []string{byVariable, written} {
		specs, err := load(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(specs[0].HTTP.URL+specs[0].HTTP.Headers.Get("X-Key"), hush) || specs[1].Command.Env["B"] != hush {
			t.Fatal("there is no secret to hide")
		}
		var things []any
		for _, s := range specs {
			things = append(things, s, *s, []*Spec{s}, map[string]*Spec{"a": s}, struct{ S *Spec }{s}, struct{ S Spec }{*s})
			if s.HTTP != nil {
				things = append(things, s.HTTP, *s.HTTP, s.Verify, *s.Verify)
			}
			if s.Command != nil {
				things = append(things, s.Command, *s.Command)
			}
			for _, m := range s.Explain() {
				hidden(t, m.When+m.What)
			}
			hidden(t, strings.Join(s.Warnings(1), ""))
		}
		if doc, err := json.Marshal(specs); err != nil || string(doc) != `[{"name":"a"},{"name":"b"}]` || fmt.Sprintf("%+v", *specs[0]) != "tool a (hidden)" {
			t.Errorf("got %s, %v, %+v", doc, err, *specs[0])
		}
		var log bytes.Buffer
		handlers := []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)}
		for _, thing := range things {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				hidden(t, fmt.Sprintf(verb, thing))
			}
			doc, err := json.Marshal(thing)
			if err != nil {
				t.Error(err)
			}
			hidden(t, string(doc))
			for _, h := range handlers {
				slog.New(h).Info("x", "tool", thing)
			}
		}
		hidden(t, log.String())
	}

	// Broken at every byte, so that every message about it has a chance.
	for _, text := range []string{byVariable, written} {
		for i := range text {
			if strings.Contains(text[max(0, i-len(hush)):min(len(text), i+len(hush))], hush) {
				continue // it would not be the secret any more
			}
			with := []string{"", "'", "{", "\n", "*", "\x00", "${", "é"}
			for _, broken := range []string{text[:i], text[:i] + with[i%len(with)] + text[i+1:]} {
				d := &decoder{file: "f", dir: dir, env: env.get, rerun: idem.RerunHold}
				d.load([]byte(broken))
				if len(d.faults) > 0 {
					hidden(t, d.sorted().Error())
				}
			}
		}
	}
}
