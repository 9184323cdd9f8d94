//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/idemd/idemd/idem"
)

// order is what a downstream is asked to do, in args.
type order struct {
	Do string `json:"do"`
}

// orders is a downstream that does what the args say: done, busy, never, lost, or
// stay until it is let go.
type orders struct {
	url    string
	begun  chan struct{} // takes one for each that stays
	letGo  chan struct{}
	opened sync.Once
	mu     sync.Mutex
	n      int
}

func newOrders(t *testing.T) *orders {
	t.Helper()
	o := &orders{begun: make(chan struct{}, 64), letGo: make(chan struct{})}
	s := httptest.NewServer(o)
	o.url = s.URL
	t.Cleanup(func() { o.open(); s.Close() })
	return o
}

func (o *orders) open() { o.opened.Do(func() { close(o.letGo) }) }

func (o *orders) asked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // what is missing is no order
	o.mu.Lock()
	o.n++
	n := o.n
	o.mu.Unlock()
	var want order
	_ = json.Unmarshal(body, &want)
	switch want.Do {
	case "busy":
		w.WriteHeader(http.StatusTooManyRequests)
	case "never":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case "lost":
		w.WriteHeader(http.StatusBadGateway)
	case "stay":
		o.begun <- struct{}{}
		select {
		case <-o.letGo:
		case <-r.Context().Done():
		}
	}
	fmt.Fprintf(w, `{"n":%d}`, n)
}

// configured is a tools file with one tool.
func configured(o *orders, name, more, effects string) string {
	key, statuses := "", "success: [200]"
	if effects == "external" {
		key, statuses = "effect_key: {header: Idempotency-Key, downstream: ignores}", "success: [200], final: [422], retryable: [429]"
		more += "\n    rerun: hold"
	}
	parts := slices.DeleteFunc([]string{"method: POST", "url: " + o.url, key, statuses}, func(s string) bool { return s == "" })
	return "version: 1\ntools:\n  - name: " + name + "\n    effects: " + effects + "\n    " + more + "\n    http: {" + strings.Join(parts, ", ") + "}\n"
}

// with gives the next life of a daemon a tools file.
func (d *daemon) with(t *testing.T, tools string) {
	t.Helper()
	name := filepath.Join(filepath.Dir(d.dir), "tools.yaml")
	if err := os.WriteFile(name, []byte(tools), 0o600); err != nil {
		t.Fatal(err)
	}
	d.flags = []string{"--tools", name}
}

// TestChangedConfiguration takes calls in every state through lives with other rules
// of comparison, another name, and without a record. An honest retry of an old call
// is never a conflict, and another intent always is (R3).
func TestChangedConfiguration(t *testing.T) {
	t.Parallel()
	const (
		ignore = "fingerprint: {ignore: [/memo]}"
		trim   = "fingerprint: {trim: [/to], nfc: [/to]}"
	)
	// args with do, to and memo; the decomposed é and the blanks are the same to trim.
	args := func(do, to, memo string) string { return `{"do":"` + do + `","to":"` + to + `","memo":"` + memo + `"}` }
	sameTo := map[bool]string{true: ` ze\u0301ro `, false: "zéro"}
	lives := []struct{ name, tool, more, effects string }{
		{"no rules", "t", "", "external"},
		{"ignoring", "t", ignore, "external"},
		{"no rules again", "t", "", "external"},
		{"trimming", "t", trim, "external"},
		{"renamed", "u", ignore, "external"},
		{"without a record", "t", ignore + "\n    record: false", "none"},
		{"with a record again", "t", ignore, "external"},
	}
	states := map[string]string{"succeeded": "done", "retryable": "busy", "failed": "never", "held": "lost", "running": "stay"}
	o := newOrders(t)
	d := prepare(t, filepath.Join(t.TempDir(), "data"))
	type made struct{ key, tool, do, more, state string }
	var all []made
	for i, life := range lives {
		d.with(t, configured(o, life.tool, life.more, life.effects))
		d.boot(t)
		if life.effects == "external" {
			for _, state := range slices.Sorted(maps.Keys(states)) {
				c := made{fmt.Sprintf("%s-%d", state, i), life.tool, states[state], life.more, state}
				opts := []option{wait(20)}
				if state == "running" {
					opts = nil
				}
				r := d.post(c.key, c.tool, args(c.do, sameTo[true], "a"), opts...)
				if state == "held" {
					r.wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
				} else {
					r.want(t, http.StatusOK, http.StatusAccepted)
				}
				if state == "running" {
					<-o.begun
				}
				all = append(all, c)
			}
		}
		for _, c := range all {
			dup := func(what, to, memo string, same bool) {
				t.Helper()
				r := d.post(c.key, c.tool, args(c.do, to, memo))
				conflict := r.refusal != nil && r.refusal.Code == idem.CodeConflict
				if r.lost != nil || r.status >= http.StatusInternalServerError || conflict == same {
					t.Errorf("%s: %s of %s: %v", life.name, what, c.key, r)
				}
				if conflict && r.refusal.Effect != idem.DoubtNone {
					t.Errorf("%s: %s of %s: %v", life.name, what, c.key, r)
				}
			}
			dup("a retry", sameTo[true], "a", true)
			dup("another intent", "b", "a", false)
			dup("another memo", sameTo[true], "b", c.more == ignore)
			dup("another spelling", sameTo[false], "a", c.more == trim)
			other := map[string]string{"t": "u", "u": "t"}[c.tool]
			d.post(c.key, other, args(c.do, sameTo[true], "a")).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
		}
		d.kill(t)
	}
	o.open()
	d.boot(t)
	for _, c := range all {
		want := map[string][]idem.Status{
			"succeeded": {idem.StatusSucceeded}, "failed": {idem.StatusFailed}, "held": {idem.StatusHeld}, "running": {idem.StatusHeld},
			"retryable": {idem.StatusFailed, idem.StatusPending, idem.StatusRunning, idem.StatusHeld}, // asked for again, and killed
		}[c.state]
		if got := d.find(c.key).want(t, http.StatusOK); !slices.Contains(want, got.Status) {
			t.Errorf("%s is %v", c.key, got)
		}
	}
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if out, words, code := command(t, "inspect", d.dir); code != 0 {
		t.Errorf("exit code %d: %s%s", code, out, words)
	}
}

// TestWithoutARecord: a tool that keeps no record is carried out on the request, is
// shared by equal requests under way, and leaves nothing behind, not in the store
// either. What is counted adds up.
func TestWithoutARecord(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	d := prepare(t, filepath.Join(t.TempDir(), "data"))
	d.with(t, configured(o, "look", "record: false", "none"))
	d.boot(t)
	stored := d.post("stored", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)

	const many = 100
	together := crowd(many, func() reply { return d.post("k", "look", `{"do":"stay"}`) })
	<-o.begun
	eventually(t, "all others have joined", func() bool { return d.stats(t).Joined == many-1 })
	d.post("k", "look", `{"do":"done"}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	o.open()
	var bodies [][]byte
	runs := 0
	for range many {
		r := <-together
		bodies = append(bodies, r.raw)
		if r.status != http.StatusOK || !bytes.Equal(r.raw, bodies[0]) {
			t.Errorf("got %v", r)
		}
		if r.replayed() == "false" {
			runs++
		}
	}
	if n := o.asked(); runs != 1 || n != 1 {
		t.Errorf("%d requests had a run of their own, downstream was asked %d times", runs, n)
	}
	// Afterwards nothing is known of it, and a key is not needed.
	for _, r := range []reply{
		d.post("k", "look", `{"do":"done"}`),
		d.do(http.MethodPost, "/v1/tool-calls", `{"tool":"look","args":{"do":"done"}}`, nil),
	} {
		if r.status != http.StatusOK || r.call != nil || !bytes.HasPrefix(r.raw, []byte(`{"recorded":false,"tool":"look","status":"succeeded",`)) {
			t.Errorf("got %v", r)
		}
	}
	d.find("k").wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	d.post("stored", "look", `{"do":"done"}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	if again := d.find("stored").wantEnd(t, idem.StatusSucceeded); !again.sameEnd(stored) {
		t.Errorf("it was %v and is %v", stored, again)
	}
	out, words, code := command(t, "call", "look", `{"do":"done"}`, "--url", d.now().url)
	if code != 0 || !strings.Contains(words, "not recorded") {
		t.Errorf("exit code %d: %s%s", code, out, words)
	}
	s := d.stats(t)
	if sum := s.Created + s.Joined + s.Requeued + s.Replayed + s.Conflicts + s.Refused; s.Deliveries != sum || s.Calls != 1 {
		t.Errorf("%d deliveries, %d answers, %d calls", s.Deliveries, sum, s.Calls)
	}
	reconcile(t, d, "stored")
}

// crowd makes n requests in the background.
func crowd(n int, ask func() reply) <-chan reply {
	c := make(chan reply, n)
	for range n {
		go func() { c <- ask() }()
	}
	return c
}

// TestChangedRulesPastTheWindow: also a key that is past its window is told an honest
// retry from another intent by the rules of its call (R3, R16).
func TestChangedRulesPastTheWindow(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	d := prepare(t, filepath.Join(t.TempDir(), "data"))
	brief := func(more string) {
		d.with(t, configured(o, "t", more, "external"))
		d.flags = append(d.flags, "--window", "1ms")
		d.boot(t)
	}
	brief("fingerprint: {ignore: [/memo]}")
	d.post("k", "t", `{"do":"done","memo":"a"}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	for _, more := range []string{"fingerprint: {trim: [/memo]}", "record: false", ""} {
		d.kill(t)
		if more == "record: false" {
			d.with(t, configured(o, "t", more, "none"))
			d.boot(t)
		} else {
			brief(more)
		}
		r := d.post("k", "t", `{"do":"done","memo":"b"}`).wantRefusal(t, http.StatusGone, idem.CodeKeyExpired)
		if r.CallID == "" {
			t.Errorf("%q: %+v", more, r)
		}
		d.post("k", "t", `{"do":"busy","memo":"a"}`).wantRefusal(t, http.StatusConflict, idem.CodeConflict)
	}
	if n := o.asked(); n != 1 {
		t.Errorf("downstream was asked %d times", n)
	}
}
