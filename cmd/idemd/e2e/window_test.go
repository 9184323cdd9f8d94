//go:build unix

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestWindow: past its window a key is refused and never runs again, whatever
// became of its call, and whatever the window is set to later. Without an end
// there is no window (R16).
func TestWindow(t *testing.T) {
	t.Parallel()
	d := prepare(t, t.TempDir())
	d.boot(t, "--window", "200ms")
	intents := []struct {
		key, tool, args string
		expires         time.Time
	}{
		{key: "done", tool: "charge", args: `{"amount":1}`},
		{key: "failed", tool: "fail", args: `{}`},
		{key: "retryable", tool: "fail", args: `{"retryable":true,"times":1}`},
		{key: "slow", tool: "sleep", args: `{"seconds":0.5}`},
	}
	for i, in := range intents {
		c := d.post(in.key, in.tool, in.args, wait(20)).want(t, http.StatusOK)
		if c.ExpiresAt == nil {
			t.Fatalf("nobody is told when it expires: %v", c)
		}
		var err error
		if intents[i].expires, err = time.Parse(time.RFC3339, *c.ExpiresAt); err != nil {
			t.Fatal(err)
		}
	}
	for lives := range 2 {
		for _, in := range intents {
			time.Sleep(time.Until(in.expires))
			for _, opts := range [][]option{nil, {wait(5)}} {
				r := d.post(in.key, in.tool, in.args, opts...)
				f := r.wantRefusal(t, http.StatusGone, idem.CodeKeyExpired)
				if f.CallID == "" || f.Effect != idem.DoubtNone || r.replayed() != "false" {
					t.Errorf("%s: the refusal is %v (replayed %q)", in.key, r, r.replayed())
				}
			}
			d.post(in.key, in.tool, `{"amount":5,"seconds":0}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
		}
		if lives == 0 {
			d.kill(t)
			d.boot(t, "--window", "24h")
		}
	}
	for _, e := range d.ledger(t) {
		if e.Key != "done" {
			t.Errorf("an effect that nobody asked for: %+v", e)
		}
	}
	if s := d.stats(t); s.Effects != 1 || s.Requeued != 0 {
		t.Errorf("%d effects, %d calls opened again", s.Effects, s.Requeued)
	}
}
