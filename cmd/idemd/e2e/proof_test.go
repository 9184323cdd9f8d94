//go:build unix

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// proof is a run of clients of package client through a proxy that breaks
// exchanges, while the daemon is killed again and again; and what they were told.
type proof struct {
	d     *daemon
	proxy *probe.Proxy
	logs  string // a directory with a log for each client

	done  atomic.Int64
	kills chan struct{}
}

const proofClients = 16

// TestProof lets the history checker judge such a run, first as it was, and then
// with defects planted in it.
func TestProof(t *testing.T) {
	t.Parallel()
	r := chance(t)
	intents, kills := size(2080, 10400), size(20, 100)
	p := &proof{logs: t.TempDir(), kills: make(chan struct{}, kills)}
	p.d = startChaos(t, "--lease", "2s", "--log-level", "error")
	// The proxy knows one address; so every life has to have it.
	p.d.flags = append(p.d.flags, "--listen", strings.TrimPrefix(p.d.now().url, "http://"))
	p.front(t, r.Uint64())

	var clients sync.WaitGroup
	for i := range proofClients {
		seed := r.Uint64()
		clients.Go(func() {
			p.client(t, fmt.Sprintf("client-%d", i), rand.New(rand.NewPCG(seed, 0)), intents/proofClients, intents/kills)
		})
	}
	over := make(chan struct{})
	go func() {
		clients.Wait()
		close(over)
	}()
	killed := 0
	for running := true; running; {
		select {
		case <-p.kills:
			p.d.restart(t)
			killed++
		case <-over:
			running = false
		}
	}
	if t.Failed() {
		return
	}
	if killed < kills-1 {
		t.Errorf("%d kills, want %d", killed, kills)
	}
	if err := p.proxy.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	s := p.proxy.Summary()
	t.Logf("%d intents, %d kills; the proxy: %+v", p.done.Load(), killed, s)
	p.settle(t, r)
	p.judge(t)
}

// front puts a proxy in front of the daemon.
func (p *proof) front(t *testing.T, seed uint64) {
	t.Helper()
	var faults []probe.Fault
	for _, text := range []string{"drop-request", "reset-request", "fail-before=503", "drop-response", "reset", "delay-response=30ms", "duplicate-request", "half-body"} {
		f, err := probe.ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		faults = append(faults, f)
	}
	proxy, err := probe.NewProxy(probe.ProxyOptions{
		Upstream: p.d.now().url,
		Rules:    []probe.Rule{{Faults: faults, Rate: 0.25, Seed: seed}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	p.proxy = proxy
}

// client works off its intents, one after the other, and logs what it is told.
// Every so many intents of all clients it asks for a kill.
func (p *proof) client(t *testing.T, name string, r *rand.Rand, intents, perKill int) {
	var log bytes.Buffer
	lines := json.NewEncoder(&log)
	var key, tool string
	policy := client.DefaultPolicy()
	policy.Tries, policy.Total, policy.Wait, policy.Timeout = 60, time.Minute, time.Second, 10*time.Second
	policy.Backoff, policy.BackoffCap, policy.Poll, policy.PollCap = 10*time.Millisecond, 200*time.Millisecond, 10*time.Millisecond, 200*time.Millisecond
	policy.RetryAfterCap = 200 * time.Millisecond
	c, err := client.New(p.proxy.URL(), client.Options{Policy: policy, Observe: func(a client.Answer) {
		_ = lines.Encode(probe.TryEntry(name, key, tool, a)) // a buffer takes everything
	}})
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	for n := range intents {
		var args string
		tool, args = proofRequest(r)
		key = fmt.Sprintf("%s/%d", name, n)
		if r.IntN(10) == 0 { // one that others ask for as well
			shared := r.IntN(40)
			key, tool, args = fmt.Sprintf("shared/%d", shared), "charge", fmt.Sprintf(`{"amount":%d}`, shared+1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), generous(2*time.Minute))
		out, err := c.Call(ctx, client.Request{Tool: tool, Args: []byte(args), Key: key})
		cancel()
		_ = lines.Encode(probe.OutcomeEntry(name, key, tool, time.Now(), out, err))
		if p.done.Add(1)%int64(perKill) == 0 {
			select {
			case p.kills <- struct{}{}:
			default:
			}
		}
	}
	if err := os.WriteFile(filepath.Join(p.logs, name), log.Bytes(), 0o600); err != nil {
		t.Error(err)
	}
}

// proofRequest is a call of some tool.
func proofRequest(r *rand.Rand) (tool, args string) {
	switch r.IntN(12) {
	case 0:
		return "send_email", `{"to":"a@example.com","subject":"s"}`
	case 1:
		return "ext_rerun", `{}`
	case 2:
		return "ext_rerun", `{"do":"fail","retryable":true}`
	case 3:
		return "ext_verify", `{"found":true}`
	case 4:
		return "ext_hold", `{}`
	case 5:
		return "fail", fmt.Sprintf(`{"mode":%q}`, []string{"final", "retryable"}[r.IntN(2)])
	default:
		return "charge", fmt.Sprintf(`{"amount":%d}`, 1+r.IntN(1000))
	}
}

// settle has a person decide what is held, and waits until nothing is under way.
func (p *proof) settle(t *testing.T, r *rand.Rand) {
	t.Helper()
	eventually(t, "nothing is under way", func() bool {
		s := p.d.stats(t).ByStatus
		return s[idem.StatusPending]+s[idem.StatusRunning] == 0
	})
	for _, c := range p.d.calls(t, "status=held") {
		outcome := []string{"succeeded", "failed"}[r.IntN(2)]
		if _, words, code := command(t, "resolve", c.CallID, "--outcome", outcome, "--by", "the test", "--url", p.d.now().url); code != 0 && code != 3 {
			t.Fatalf("resolve: exit code %d, %s", code, words) // 3: a verification was faster
		}
	}
	eventually(t, "nothing is held", func() bool { return p.d.stats(t).ByStatus[idem.StatusHeld] == 0 })
}

// judge has the checker judge the run, and plants defects in it.
func (p *proof) judge(t *testing.T) {
	t.Helper()
	dump, words, code := command(t, "effects", "--json", "--url", p.d.now().url)
	if code != 0 {
		t.Fatal(words)
	}
	ledger := strings.SplitAfter(strings.TrimSuffix(dump, "\n"), "\n")
	if len(ledger) < 500 {
		t.Fatalf("%d effects", len(ledger))
	}
	ledger[len(ledger)-1] += "\n"
	twice := strings.Join(append(ledger[:len(ledger):len(ledger)], ledger[7]), "")
	lost := strings.Join(append(ledger[:7:7], ledger[8:]...), "")

	if out, code := p.check(t, p.logs, p.d.now().url); code != 0 {
		t.Fatalf("the run as it was: exit code %d\n%s", code, out)
	}
	for _, tc := range []struct{ name, rule, logs, ledger string }{
		{"a duplicate", string(probe.RuleOneEffect), p.logs, p.file(t, twice)},
		{"a loss", string(probe.RuleLostEffect), p.logs, p.file(t, lost)},
		{"a changed replay", string(probe.RuleReplay), p.tamper(t), p.d.now().url},
	} {
		if out, code := p.check(t, tc.logs, tc.ledger); code != 1 || !strings.Contains(out, tc.rule) {
			t.Errorf("%s: exit code %d, want 1 and %s\n%.3000s", tc.name, code, tc.rule, out)
		}
	}
}

func (p *proof) file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ledger.ndjson")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// tamper copies the logs and changes what one answer shows of a result, of a call
// whose end was shown more than once.
func (p *proof) tamper(t *testing.T) (logs string) {
	t.Helper()
	logs = t.TempDir()
	done := false
	for i := range proofClients {
		name := fmt.Sprintf("client-%d", i)
		raw, err := os.ReadFile(filepath.Join(p.logs, name))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		lines := json.NewEncoder(&out)
		shown := make(map[string]bool)
		for line := range bytes.Lines(raw) {
			var e probe.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			if !done && e.Kind == probe.EntryPost && e.State == idem.StatusSucceeded && shown[e.CallID] {
				e.Result, done = probe.Digest([]byte("another")), true
			}
			shown[e.CallID] = shown[e.CallID] || e.State == idem.StatusSucceeded
			if err := lines.Encode(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(logs, name), out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !done {
		t.Fatal("no end was shown twice")
	}
	return logs
}

func (p *proof) check(t *testing.T, logs, ledger string) (string, int) {
	t.Helper()
	args := []string{"check-history", "--ledger", ledger, "--audit", p.d.now().url}
	for i := range proofClients {
		args = append(args, "--client", filepath.Join(logs, fmt.Sprintf("client-%d", i)))
	}
	out, words, code := command(t, args...)
	return out + words, code
}
