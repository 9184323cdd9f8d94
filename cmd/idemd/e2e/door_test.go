//go:build unix

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestEveryDoorLeadsToOneCall uses one key through HTTP and through the command
// line, in both orders (R2).
func TestEveryDoorLeadsToOneCall(t *testing.T) {
	t.Parallel()
	d := start(t)
	url := d.now().url
	cli := func(want int, args ...string) (c call) {
		t.Helper()
		out, words, code := command(t, append(args, "--url", url, "--json")...)
		if code != want {
			t.Fatalf("idemd %v: exit code %d, want %d\n%s%s", args, code, want, out, words)
		}
		if code == 0 {
			if err := json.Unmarshal([]byte(out), &c); err != nil {
				t.Fatalf("idemd %v: %v\n%s", args, err, out)
			}
		}
		return c
	}

	a := d.post("http first", "charge", `{"amount":100}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	if b := cli(0, "call", "charge", `{"amount":1e2}`, "--key", "http first"); !b.sameEnd(a) {
		t.Errorf("want %v again, got %v", a, &b)
	}
	out, words, code := command(t, "call", "charge", `{"amount":100}`, "--key", "http first", "--url", url)
	if code != 0 || out != string(a.Result)+"\n" || !strings.Contains(words, a.CallID) {
		t.Errorf("want the result of %v, got code %d, %q, %q", a, code, out, words)
	}
	c := cli(0, "call", "charge", `{ "amount": 100 }`, "--key", "cli first", "--client-id", "shell", "--seq", "7")
	r := d.post("cli first", "charge", `{"amount":100.0}`)
	if e := r.wantEnd(t, idem.StatusSucceeded); !e.sameEnd(&c) || r.replayed() != "true" || *e.ClientID != "shell" || *e.Seq != 7 {
		t.Errorf("want %v again, got %v", &c, r)
	}
	if f := cli(0, "find", "cli first"); !f.sameEnd(&c) {
		t.Errorf("find shows %v, not %v", &f, &c)
	}
	if g := cli(0, "get", c.CallID); !g.sameEnd(&c) {
		t.Errorf("get shows %v, not %v", &g, &c)
	}
	cli(3, "call", "charge", `{"amount":1}`, "--key", "http first")
	cli(1, "call", "fail", `{}`, "--key", "fails")
	cli(2, "call", "charge", `{"amount":0}`, "--key", "refused")
	cli(2, "call", "charge", `{"amount":1}`) // no key: it makes none up (R1)
	cli(4, "find", "nobody")
	d.find("refused").wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	reconcile(t, d, "http first", "cli first")
}
