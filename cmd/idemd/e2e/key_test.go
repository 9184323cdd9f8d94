//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestHostileKeys sends keys that no client should send, over a bare connection.
// The boundary is exact, nothing is a server's error, and the log stays a log: a
// document a line, with nothing in it that a client sent.
func TestHostileKeys(t *testing.T) {
	t.Parallel()
	d := startChaos(t, "--log-level", "debug", "--log-format", "json")
	const secret, payload = "sEcReTkEy", "sEcReTaRg"
	long := func(n int) string { return secret + strings.Repeat("x", n-len(secret)) }
	body := `{"tool":"charge","args":{"amount":5,"note":"` + payload + `"}}`
	var intents []string
	for _, k := range []struct {
		name, key string
		status    int
		code      idem.Code
		is        string // the key that it is, where it is one
	}{
		{name: "empty", key: "", status: 400, code: idem.CodeMissingKey},
		{name: "empty in quotes", key: `""`, status: 400, code: idem.CodeMissingKey},
		{name: "blanks", key: "   ", status: 400, code: idem.CodeMissingKey},
		{name: "one byte", key: "k", status: 200, is: "k"},
		{name: "255 bytes", key: long(255), status: 200, is: long(255)},
		{name: "255 bytes in quotes", key: `"` + long(255) + `"`, status: 200, is: long(255)},
		{name: "256 bytes", key: long(256), status: 400, code: idem.CodeBadRequest},
		{name: "4096 bytes", key: long(4096), status: 400, code: idem.CodeBadRequest},
		{name: "a million bytes", key: long(1_000_000), status: 431},
		{name: "emoji", key: secret + "🙂", status: 400, code: idem.CodeBadRequest},
		{name: "Latin-1", key: secret + "\xe9", status: 400, code: idem.CodeBadRequest},
		{name: "tab", key: secret + "\tx", status: 400, code: idem.CodeBadRequest},
		{name: "NUL", key: secret + "\x00x", status: 400},
		{name: "escape", key: secret + "\x1b[31m", status: 400},
		{name: "DEL", key: secret + "\x7f", status: 400},
		{name: "CR", key: secret + "\rx", status: 400},
		{name: "LF", key: secret + "\nx", status: 400},
		{name: "CR LF and another header", key: secret + "-split\r\nX-Other: y", status: 200, is: secret + "-split"},
		{name: "CR LF and a second key", key: secret + "-a\r\nIdempotency-Key: " + secret + "-b", status: 400, code: idem.CodeBadRequest},
		{name: "open quote", key: `"` + secret, status: 400, code: idem.CodeBadRequest},
		{name: "after the quote", key: `"` + secret + `"x`, status: 400, code: idem.CodeBadRequest},
		{name: "path", key: secret + "/../%2F?#&", status: 200, is: secret + "/../%2F?#&"},
		{name: "quoted escapes", key: `"` + secret + `\"\\"`, status: 200, is: secret + `"\`},
		{name: "every printable byte", key: printable(), status: 200, is: printable()},
	} {
		r := exchange(d.dial(t), plain(k.key, body, "Prefer: wait=20\r\n"))
		switch {
		case r.lost != nil && k.status == 431: // cut off while it still sends
		case r.lost != nil || r.status != k.status:
			t.Errorf("%s: want %d, got %v", k.name, k.status, r)
		case k.code != "" && (r.refusal == nil || r.refusal.Code != k.code):
			t.Errorf("%s: want %s, got %v", k.name, k.code, r)
		case k.status != 200 && r.header.Get("Idempotency-Key") != "":
			t.Errorf("%s: a key that is none is echoed", k.name)
		}
		if k.is == "" || r.call == nil {
			continue
		}
		if r.call.Key != k.is {
			t.Errorf("%s: taken for the key %q", k.name, r.call.Key)
		}
		if byPath := d.get("/v1/tool-calls/by-key/" + url.PathEscape(k.is)); byPath.call == nil || byPath.call.CallID != r.call.CallID {
			t.Errorf("%s: not found by its path: %v", k.name, byPath)
		}
		if k.name != "255 bytes in quotes" { // the same key as the one before
			intents = append(intents, k.is)
		} else if r.replayed() != "true" {
			t.Errorf("%s: not the key that it is without quotes", k.name)
		}
	}
	// A key and a payload on their way through every other kind of answer.
	key := secret + "-errors"
	for _, body := range []string{
		`{"tool":"charge","args":{"amount":"` + payload + `"}}`,
		`{"tool":"` + payload + `","args":{}}`,
		`{"tool":"charge","args":{"` + payload + `":1,"amount":0}}`,
		`{"tool":"charge","args":{"amount":1}` + payload,
		`{"tool":"fail","args":{"panic":true,"x":"` + payload + `"}}`,
		`{"tool":"fail","args":{"panic":false,"x":"` + payload + `"}}`,
		`{"` + payload + `":1}`,
	} {
		if r := d.send(key, body, wait(20)); r.lost != nil || r.status >= 500 || strings.Contains(fmt.Sprint(r.refusal), payload) {
			t.Errorf("%s: %v", body, r)
		}
	}
	reconcile(t, d, intents...)
	d.stop(t)

	lines, _ := d.now().log()
	said := 0
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, listening):
			said++
		case !json.Valid([]byte(line)):
			t.Errorf("a line of the log that is no document: %.300q", line)
		case strings.Contains(line, secret), strings.Contains(line, payload):
			t.Errorf("a line of the log tells what a client sent: %.300q", line)
		}
	}
	if said != 1 || len(lines) < 50 {
		t.Errorf("it says %d times that it listens, in %d lines", said, len(lines))
	}
}

func printable() string {
	var b strings.Builder
	for c := byte(0x21); c <= 0x7e; c++ {
		if b.Len() > 0 || c != '"' {
			b.WriteByte(c)
		}
		if c == '!' {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// TestKeyIsMissing: the server never makes a key up (R1).
func TestKeyIsMissing(t *testing.T) {
	t.Parallel()
	d := start(t)
	r := d.do(http.MethodPost, "/v1/tool-calls", `{"tool":"charge","args":{"amount":1}}`, nil)
	r.wantRefusal(t, http.StatusBadRequest, idem.CodeMissingKey)
	if r.replayed() != "false" {
		t.Errorf("Idempotent-Replayed is %q", r.replayed())
	}
	reconcile(t, d)
}
