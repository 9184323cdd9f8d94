//go:build unix

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// example starts a daemon with the tools of an example. Its addresses and paths are
// replaced by what there is here.
func example(t *testing.T, name string, env []string, replace ...string) *daemon {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "examples", name, "tools.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(raw), replace[i]) {
			t.Fatalf("the example has no %s", replace[i])
		}
	}
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(string(raw))), 0o600); err != nil {
		t.Fatal(err)
	}
	d := prepare(t, t.TempDir(), "--chaos", "--tools", path)
	d.env = env
	d.boot(t)
	return d
}

// provider plays the other side of an example.
func provider(t *testing.T, o probe.DownstreamOptions) *probe.Downstream {
	t.Helper()
	o.Ledger = filepath.Join(t.TempDir(), "ledger.ndjson")
	down, err := probe.NewDownstream(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := down.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := down.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return down
}

func committed(t *testing.T, down *probe.Downstream) (ids []string) {
	t.Helper()
	entries, err := down.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		ids = append(ids, e.EffectID)
	}
	return ids
}

// TestExampleRefund: the provider ignores keys and loses its first answer. The
// daemon asks it, and does not refund again.
func TestExampleRefund(t *testing.T) {
	t.Parallel()
	down := provider(t, probe.DownstreamOptions{Ignores: true, Fault: func(n int, _ string) probe.DownstreamFault {
		if n == 1 {
			return probe.DownstreamFault{Kind: probe.CommitThenClose}
		}
		return probe.DownstreamFault{}
	}})
	d := example(t, "refund", []string{"PAY_TOKEN=secret-of-the-test"}, "http://127.0.0.1:9000", down.URL())
	r := d.post("order-1", "refund", `{"order_id":"A-1","amount":1250,"memo":"broken"}`, wait(10))
	f := r.wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	c := d.look(f.CallID, wait(20)).wantEnd(t, idem.StatusSucceeded)
	// Another memo, and blanks around the order, are the same refund.
	again := d.post("order-1", "refund", `{"amount":1250.0,"order_id":" A-1 ","memo":"it was broken"}`, wait(10))
	if got := again.wantEnd(t, idem.StatusSucceeded); !got.sameEnd(c) || got.Attempt != 1 {
		t.Errorf("got %v", got)
	}
	d.post("order-1", "refund", `{"order_id":"A-1","amount":9}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	d.post("order-2", "refund", `{"order_id":"A-2","amount":0}`).wantRefusal(t, http.StatusUnprocessableEntity, idem.CodeInvalidArguments)
	if ids := committed(t, down); len(ids) != 1 || ids[0] != c.EffectID {
		t.Errorf("the provider's ledger: %v", ids)
	}
	reconcile(t, d, "order-1")
	noSecret(t, d, "secret-of-the-test")
}

// noSecret looks for a secret in everything that the daemon says.
func noSecret(t *testing.T, d *daemon, secret string) {
	t.Helper()
	lines, _ := d.now().log()
	for _, text := range []string{strings.Join(lines, "\n"), d.get("/v1/tools").String(), string(d.get("/v1/tools").raw), string(d.get("/v1/tool-calls").raw)} {
		if strings.Contains(text, secret) {
			t.Errorf("the secret is in %s", text)
		}
	}
}

// TestExampleWebhook: the hook honours keys, and is asked again by the same key until
// it has answered.
func TestExampleWebhook(t *testing.T) {
	t.Parallel()
	faults := []probe.DownstreamKind{probe.CommitThen500, probe.HalfAnswer, probe.CommitThenReset}
	down := provider(t, probe.DownstreamOptions{EffectPointer: "/idempotency_key", Fault: func(n int, _ string) probe.DownstreamFault {
		if n <= len(faults) {
			return probe.DownstreamFault{Kind: faults[n-1]}
		}
		return probe.DownstreamFault{}
	}})
	d := example(t, "webhook", nil, "http://127.0.0.1:9001", down.URL())
	var c *call
	for attempt := 1; attempt <= len(faults)+1; attempt++ {
		c = d.post("acme", "provision", `{"customer":"Acme","plan":"team"}`, wait(10)).want(t, http.StatusOK)
		if c.Attempt != attempt {
			t.Errorf("attempt %d is %v", attempt, c)
		}
	}
	if c.Status != idem.StatusSucceeded {
		t.Fatalf("got %v", c)
	}
	if ids := committed(t, down); len(ids) != 1 || ids[0] != c.EffectID {
		t.Errorf("the hook's ledger: %v", ids)
	}
	// The effect's id has its place in the body, and nobody else may put one there.
	d.post("clash", "provision", `{"customer":"B","idempotency_key":"mine"}`).wantRefusal(t, http.StatusUnprocessableEntity, idem.CodeInvalidArguments)

	// A look needs no key and leaves no record.
	before := d.stats(t).Calls
	r := d.do(http.MethodPost, "/v1/tool-calls", `{"tool":"workspace","args":{"ref":"`+c.EffectID+`"}}`, nil)
	var look struct {
		Recorded *bool
		Status   string
		Result   struct {
			EffectID string `json:"effect_id"`
		}
		CallID *string `json:"call_id"`
	}
	if err := json.Unmarshal(r.raw, &look); err != nil || r.status != http.StatusOK || look.Recorded == nil || *look.Recorded ||
		look.Status != "succeeded" || look.Result.EffectID != c.EffectID || look.CallID != nil {
		t.Errorf("a look: %v, %v", r, err)
	}
	if after := d.stats(t).Calls; after != before {
		t.Errorf("a look left a record: %d calls, then %d", before, after)
	}
	reconcile(t, d, "acme")
}

// TestExampleMail: the program delivers a mail; one whose answer is lost with the
// daemon is held, and a person finds it in the box.
func TestExampleMail(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs(filepath.Join("..", "..", "..", "examples", "mail", "deliver"))
	if err != nil {
		t.Fatal(err)
	}
	box := t.TempDir()
	for _, part := range []string{"tmp", "new", "cur"} {
		if err := os.Mkdir(filepath.Join(box, part), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d := example(t, "mail", nil, "/opt/idemd/examples/mail/deliver", script, "/var/spool/idemd-mail", box)
	const args = `{"to":"ann@example.org","subject":"Caf\u00e9","body":"Hello"}`
	c := d.post("mail-1", "notify", args, wait(10)).wantEnd(t, idem.StatusSucceeded)
	if got, err := os.ReadFile(filepath.Join(box, "new", c.EffectID)); err != nil || string(got) != args {
		t.Errorf("the mail is %q, %v", got, err)
	}
	if string(c.Result) != `{"delivered":"`+c.EffectID+`"}` {
		t.Errorf("the result is %s", c.Result)
	}
	// The same subject in another spelling of its accent is the same mail.
	r := d.post("mail-1", "notify", `{"to":"ann@example.org","subject":"Cafe\u0301","body":"Hello"}`, wait(10))
	if got := r.wantEnd(t, idem.StatusSucceeded); !got.sameEnd(c) {
		t.Errorf("got %v", got)
	}
	d.post("mail-2", "notify", args, wait(10), fault(idem.PointAfterDispatch, "exit"))
	d.awaitDeath(t)
	d.boot(t)
	held := d.post("mail-2", "notify", args, wait(10)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	lost := d.look(held.CallID).want(t, http.StatusOK)
	if _, err := os.Stat(filepath.Join(box, "new", lost.EffectID)); err != nil {
		t.Fatal(err)
	}
	d.resolve(held.CallID, `{"outcome":"succeeded","by":"ann","note":"it is in the box"}`).wantEnd(t, idem.StatusSucceeded)
	// A box that is not there: nothing was sent.
	if err := os.Rename(filepath.Join(box, "new"), filepath.Join(box, "away")); err != nil {
		t.Fatal(err)
	}
	later := d.post("mail-3", "notify", args, wait(10)).wantEnd(t, idem.StatusFailed)
	if f := later.failure(); f.Code != idem.FailureTool || !f.Retryable {
		t.Errorf("got %v", later)
	}
	if err := os.Rename(filepath.Join(box, "away"), filepath.Join(box, "new")); err != nil {
		t.Fatal(err)
	}
	d.post("mail-3", "notify", args, wait(10)).wantEnd(t, idem.StatusSucceeded)
	mails, err := os.ReadDir(filepath.Join(box, "new"))
	if err != nil || len(mails) != 3 {
		t.Errorf("%d mails, %v", len(mails), err)
	}
	reconcile(t, d, "mail-1", "mail-2", "mail-3")
}
