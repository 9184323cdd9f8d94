//go:build unix

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/probe"
)

// What downstream does wrong with the first request of each effect; the times fit
// those of the tools below.
var wrongs = []string{
	"none", "refuse", "busy", "unavailable", "conflict-in-progress", "close-before", "delay:300ms", "delay:1500ms", "slow-commit:1500ms",
	"commit-then-500", "commit-then-close", "commit-then-reset", "half-answer", "garbage", "answer-late:1500ms", "redirect", "endless", "big:3000000",
}

// matrixTool is a tool of the file, for one downstream with one fault.
const matrixTool = `
  - name: %s
    effects: external
    rerun: %s
    timeout: 1s
    concurrency: 4
    max_attempts: 50
    max_crashes: 100
    http:
      method: POST
      url: %s/effects
      effect_key: {header: Idempotency-Key, downstream: %s}
      success: [200, 201]
      final: [400, 422]
      retryable: [%s]
%s`

const matrixVerify = `    verify: {method: GET, url: "%s/effects?ref={effect_id}", found: [200], absent: [404], settle: 2500ms}
`

// TestMatrix has a real downstream do everything wrong that it can, while the
// process is killed at the worst moments: whatever the tool promises, the
// downstream's own ledger has one entry for each call, and no call is sent twice
// before somebody has found out what came of the first time (R10, R12, R13, R14,
// R18).
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, honours := range []bool{true, false} {
		for _, promise := range []idem.Rerun{idem.RerunYes, idem.RerunVerify, idem.RerunHold} {
			if promise == idem.RerunYes && !honours {
				continue // such a tool is refused when the file is loaded
			}
			for _, crash := range []string{"no crash", "killed after dispatch", "killed before the commit", "killed while downstream is at work"} {
				name := fmt.Sprintf("honours %v, %s, %s", honours, promise, crash)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					runMatrix(t, honours, promise, crash)
				})
			}
		}
	}
}

// matrix is one daemon, one tool for each fault, and a downstream behind each.
type matrix struct {
	d       *daemon
	honours bool
	promise idem.Rerun
	crash   string
	cells   []*cell
}

type cell struct {
	fault, tool string
	down        *probe.Downstream
	asked       chan struct{} // closed when the first request has come
}

func runMatrix(t *testing.T, honours bool, promise idem.Rerun, crash string) {
	m := &matrix{honours: honours, promise: promise, crash: crash}
	file := &strings.Builder{}
	file.WriteString("version: 1\ntools:")
	for _, wrong := range wrongs {
		m.add(t, file, wrong)
	}
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	m.d = startChaos(t, "--tools", path, "--workers", "64", "--lease", "30m", "--max-crashes", "100")

	ctx, cancel := context.WithTimeout(context.Background(), generous(2*time.Minute))
	defer cancel()
	done, supervised := make(chan struct{}), make(chan struct{})
	go func() { // a supervisor
		defer close(supervised)
		for {
			l := m.d.now()
			select {
			case <-done:
				return
			case <-l.ended:
				m.d.bootToDie(t)
			}
		}
	}()
	if crash != "no crash" {
		for _, c := range m.cells {
			if err := m.kill(ctx, c); err != nil {
				t.Errorf("%s: %v", c.fault, err)
			}
		}
	}
	var wg sync.WaitGroup
	for _, c := range m.cells {
		wg.Go(func() {
			if err := m.drive(ctx, c); err != nil {
				t.Errorf("%s: %v", c.fault, err)
			}
		})
	}
	wg.Wait()
	close(done)
	<-supervised
	if t.Failed() {
		return
	}
	m.judge(ctx, t)
}

func (m *matrix) add(t *testing.T, file *strings.Builder, wrong string) {
	t.Helper()
	c := &cell{fault: wrong, tool: "t_" + strings.NewReplacer("-", "_", ":", "_").Replace(wrong), asked: make(chan struct{})}
	var f probe.DownstreamFault
	if wrong != "none" {
		var err error
		if f, err = probe.ParseDownstreamFault(wrong); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	c.down, err = probe.NewDownstream(probe.DownstreamOptions{
		Ledger: filepath.Join(t.TempDir(), "ledger.ndjson"), Ignores: !m.honours,
		Fault: func(n int, _ string) probe.DownstreamFault {
			if n != 1 {
				return probe.DownstreamFault{}
			}
			close(c.asked)
			return f
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.down.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience())
		defer cancel()
		if err := c.down.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	m.cells = append(m.cells, c)
	honours, retryable, verify := "ignores", "429", ""
	if m.honours {
		honours, retryable = "honours", "409, 429, 500, 503"
	}
	if m.promise == idem.RerunVerify {
		verify = fmt.Sprintf(matrixVerify, c.down.URL())
	}
	fmt.Fprintf(file, matrixTool, c.tool, m.promise, c.down.URL(), honours, retryable, verify)
}

func (m *matrix) post(c *cell, opts ...option) reply {
	return m.d.post(c.fault, c.tool, `{"amount":100,"memo":"m"}`, opts...)
}

// kill asks for the call of a cell and has the process killed while it runs.
func (m *matrix) kill(ctx context.Context, c *cell) error {
	life := m.d.now()
	var opts []option
	switch m.crash {
	case "killed after dispatch":
		opts = []option{fault(idem.PointAfterDispatch, "exit")}
	case "killed before the commit":
		opts = []option{fault(idem.PointBeforeCommit, "exit")}
	default:
		go func() {
			select {
			case <-c.asked:
				_ = life.cmd.Process.Kill()
			case <-ctx.Done():
			}
		}()
	}
	r := m.post(c, append(opts, wait(10))...)
	select {
	case <-life.ended:
		return m.d.awaitNext(ctx, life)
	case <-ctx.Done():
		return fmt.Errorf("the process was not killed; the answer was %v", r)
	}
}

// drive is a client that retries with the same key and bytes until the call has an
// end that stays, and the person who decides what is held.
func (m *matrix) drive(ctx context.Context, c *cell) error {
	var last reply
	for ctx.Err() == nil {
		life := m.d.now()
		r := m.post(c, wait(2))
		last = r
		switch {
		case r.lost != nil:
			select {
			case <-life.ended:
				if err := m.d.awaitNext(ctx, life); err != nil {
					return err
				}
			case <-time.After(10 * time.Millisecond): // it may be dying
			}
		case r.call != nil && r.call.Status == idem.StatusSucceeded, r.call != nil && r.call.Status == idem.StatusFailed && !r.call.failure().Retryable:
			return nil
		case r.refusal != nil && r.refusal.Code == idem.CodeOutcomeUnknown && m.promise != idem.RerunVerify:
			if err := m.decide(ctx, c, r.refusal.CallID); err != nil {
				return err
			}
		case r.refusal != nil && r.refusal.Code == idem.CodeOutcomeUnknown: // verification is at it
			m.d.look(r.refusal.CallID, wait(1))
		case r.call == nil && (r.refusal == nil || r.refusal.Code != idem.CodeUnavailable):
			return fmt.Errorf("answered with %v", r)
		}
	}
	return fmt.Errorf("it does not come to an end; the last answer: %v", last)
}

// decide is a person who looks into downstream's books, once nothing is under way
// there any more.
func (m *matrix) decide(ctx context.Context, c *cell, id string) error {
	held := m.d.look(id) // before the books: what they do not have is known of this attempt
	if err := c.down.WaitIdle(ctx); err != nil || held.call == nil {
		return err
	}
	entries, err := c.down.Ledger()
	if err != nil {
		return err
	}
	body := fmt.Sprintf(`{"outcome":"retry","attempt":%d,"by":"ann","note":"not in their books"}`, held.call.Attempt)
	if len(entries) > 0 {
		body = `{"outcome":"succeeded","by":"ann","note":"in their books","result":{"by":"hand"}}`
	}
	r := m.d.resolve(id, body)
	if r.lost == nil && r.call == nil && (r.refusal == nil || r.refusal.Code != idem.CodeNotHeld) {
		return fmt.Errorf("deciding: %v", r)
	}
	return nil
}

// judge compares downstream's books with idemd's.
func (m *matrix) judge(ctx context.Context, t *testing.T) {
	t.Helper()
	var succeeded []string
	for _, c := range m.cells {
		if err := c.down.WaitIdle(ctx); err != nil {
			t.Fatal(err)
		}
		got := m.d.find(c.fault).want(t, http.StatusOK)
		entries, err := c.down.Ledger()
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, e := range entries {
			ids = append(ids, e.EffectID)
		}
		var intents []string
		if got.Status == idem.StatusSucceeded {
			intents = append(intents, got.EffectID)
			succeeded = append(succeeded, c.fault)
		}
		trail := m.d.audit(t, got.CallID)
		if r := idem.Reconcile(ids, intents); !r.Clean() {
			t.Errorf("%s: %v; downstream's ledger: %+v\n%s\n%+v", c.fault, got, r, names(trail), c.down.Requests())
		}
		m.checkDispatches(t, c, got, trail)
	}
	reconcile(t, m.d, succeeded...)
}

// checkDispatches checks that every request carried the effect's id, that each is
// an attempt that was written down before, and that a downstream that ignores the id
// was asked again only after a definite answer, or a decision.
func (m *matrix) checkDispatches(t *testing.T, c *cell, got *call, trail []event) {
	t.Helper()
	requests, claims := 0, 0
	for _, r := range c.down.Requests() {
		if r.Method == http.MethodGet {
			continue
		}
		requests++
		if r.ID != got.EffectID {
			t.Errorf("%s: a request carried the id %q, not %q", c.fault, r.ID, got.EffectID)
		}
	}
	var before idem.EventName
	for _, e := range trail {
		switch {
		case e.Name == idem.EventClaimed:
			claims++
			if claims > 1 && m.promise != idem.RerunYes && before != idem.EventRequeued && before != idem.EventResolved {
				t.Errorf("%s: attempt %d went out after %q: %s", c.fault, e.Attempt, before, names(trail))
			}
			before = e.Name
		case e.Name == idem.EventRequeued && e.Detail.Reason != "", e.Name == idem.EventRecovered, e.Name == idem.EventStaleResult:
			// nobody found out anything
		default:
			before = e.Name
		}
	}
	if requests > claims {
		t.Errorf("%s: %d requests for %d attempts: %s", c.fault, requests, claims, names(trail))
	}
	// A request that was carried out goes before any other: no request came after.
	asked := slices.DeleteFunc(c.down.Requests(), func(r probe.DownstreamRequest) bool { return r.Method == http.MethodGet })
	for i, r := range asked {
		if !m.honours && r.Committed && i != len(asked)-1 {
			t.Errorf("%s: asked again after it was done: %+v", c.fault, asked)
		}
	}
}

func names(trail []event) string {
	var all []string
	for _, e := range trail {
		all = append(all, string(e.Name))
	}
	return strings.Join(all, " ")
}
