//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// effect is a line of the ledger.
type effect struct {
	EffectID string `json:"effect_id"`
	CallID   string `json:"call_id"`
	Key      string `json:"idem_key"`
	Tool     string `json:"tool"`
	Amount   *int64 `json:"amount"`
}

// event is a line of a call's audit trail.
type event struct {
	Seq     int            `json:"seq"`
	At      time.Time      `json:"at"`
	Name    idem.EventName `json:"event"`
	Attempt int            `json:"attempt"`
	Owner   string         `json:"owner"`
	Detail  idem.Detail    `json:"detail"`
}

type counts struct {
	Deliveries, Created, Replayed, Joined, Requeued, Conflicts, Refused int64
	Stale                                                               int64 `json:"stale_results"`
	Abandoned                                                           int64
}

func (c counts) answered() int64 {
	return c.Created + c.Replayed + c.Joined + c.Requeued + c.Conflicts + c.Refused
}

type stats struct {
	Calls    int64
	Effects  int64
	ByStatus map[idem.Status]int64 `json:"by_status"`
	Attempts map[string]int64
	counts
	ByTool map[string]counts `json:"by_tool"`
}

func (d *daemon) stats(t testing.TB) stats {
	t.Helper()
	var s stats
	d.read(t, "/stats", &s)
	return s
}

// read reads a document that is no call.
func (d *daemon) read(t testing.TB, path string, into any) {
	t.Helper()
	r := d.get(path)
	if r.status != http.StatusOK {
		t.Fatalf("GET %s: %v", path, r)
	}
	if err := json.Unmarshal(r.raw, into); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
}

// ledger reads all effects, in the order in which the ledger gives them.
func (d *daemon) ledger(t testing.TB) []effect {
	t.Helper()
	r := d.get("/v1/effects", header("Accept", "application/x-ndjson"))
	if r.status != http.StatusOK {
		t.Fatalf("GET /v1/effects: %v", r)
	}
	return lines[effect](t, r.raw)
}

// lines reads a document a line.
func lines[T any](t testing.TB, raw []byte) []T {
	t.Helper()
	var all []T
	for line := range bytes.Lines(raw) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("%v in line %q", err, line)
		}
		all = append(all, v)
	}
	return all
}

// calls reads every call there is, narrowed by a query such as "status=held",
// newest first.
func (d *daemon) calls(t testing.TB, query string) []call {
	t.Helper()
	var all []call
	for cursor := ""; ; {
		var page struct {
			Calls []call  `json:"calls"`
			Next  *string `json:"next_cursor"`
		}
		d.read(t, "/v1/tool-calls?limit=1000&"+query+"&cursor="+url.QueryEscape(cursor), &page)
		all = append(all, page.Calls...)
		if page.Next == nil {
			return all
		}
		cursor = *page.Next
	}
}

// audit reads the whole audit trail of a call.
func (d *daemon) audit(t testing.TB, id string) []event {
	t.Helper()
	events, err := d.trail(id)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func (d *daemon) trail(id string) ([]event, error) {
	var page struct {
		Events []event `json:"events"`
		Next   *string `json:"next_cursor"`
	}
	r := d.get("/v1/tool-calls/" + id + "/audit?limit=1000")
	if r.status != http.StatusOK {
		return nil, fmt.Errorf("audit of %s: %v", id, r)
	}
	if err := json.Unmarshal(r.raw, &page); err != nil {
		return nil, fmt.Errorf("audit of %s: %w", id, err)
	}
	if page.Next != nil {
		return nil, fmt.Errorf("audit of %s: more than 1000 events", id)
	}
	return page.Events, nil
}

// dispatch is a line of the file that stands for somebody else's system.
type dispatch struct {
	EffectID string `json:"effect_id"`
	Attempt  int    `json:"attempt"`
}

// outside reads what the external tools did, in order.
func (d *daemon) outside(t testing.TB) []dispatch {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(d.dir, "ext.ndjson"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return lines[dispatch](t, raw)
}

// dispatched counts what the external tools did for an effect.
func (d *daemon) dispatched(t testing.TB, effectID string) int {
	t.Helper()
	n := 0
	for _, l := range d.outside(t) {
		if l.EffectID == effectID {
			n++
		}
	}
	return n
}

// awaitRest waits until no call is pending or running. It waits for the end of
// each, so a call that runs with nobody on it is found out here.
func (d *daemon) awaitRest(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(patience())
	for {
		open := append(d.calls(t, "status=running"), d.calls(t, "status=pending")...)
		if len(open) == 0 {
			return
		}
		left := time.Until(deadline)
		if left <= 0 {
			t.Fatalf("%d calls do not end, among them %v", len(open), &open[0])
		}
		// The youngest of the pending ones is likely the last.
		d.look(open[len(open)-1].CallID, wait(1+int(left/time.Second)))
	}
}

// auditsChecked bounds how many trails the judge reads, at a request each.
const auditsChecked = 2000

// reconcile is the judge. It waits until nothing is under way, reads the whole
// ledger and every call, and fails the test unless each intent, named by its
// key, has exactly one effect and nothing else has one (R8, R18), and the
// store agrees with itself. It returns the calls by key.
func reconcile(t testing.TB, d *daemon, intents ...string) map[string]call {
	t.Helper()
	d.awaitRest(t)
	ledger := d.ledger(t)
	keys := make([]string, len(ledger))
	for i, e := range ledger {
		keys[i] = e.Key
	}
	if r := idem.Reconcile(keys, intents); !r.Clean() || r.Committed != len(intents) {
		t.Errorf("the ledger is not clean: %d intents, %+v", len(intents), r)
	}

	all := d.calls(t, "")
	byKey := make(map[string]call, len(all))
	byID := make(map[string]call, len(all))
	for _, c := range all {
		if other, twice := byKey[c.Key]; twice {
			t.Errorf("two calls of the key %q: %s and %s", c.Key, other.CallID, c.CallID) // R2
		}
		byKey[c.Key], byID[c.CallID] = c, c
	}
	checkEffects(t, ledger, byID)
	checkOutside(t, d, all)
	checkStats(t, d, ledger, all)
	checkAudits(t, d, all)
	return byKey
}

// checkEffects checks that every effect belongs to a succeeded call, and every
// succeeded call of a tool with effects to one effect (R7, R8, R10).
func checkEffects(t testing.TB, ledger []effect, byID map[string]call) {
	t.Helper()
	effects := make(map[string]int, len(ledger))
	for _, e := range ledger {
		effects[e.CallID]++
		c, known := byID[e.CallID]
		id, err := idem.ParseCallID(e.CallID)
		switch {
		case !known || err != nil:
			t.Errorf("an effect of no call: %+v", e)
		case c.Status != idem.StatusSucceeded, c.Key != e.Key, c.Tool != e.Tool:
			t.Errorf("effect %+v does not go with its call: %v", e, &c)
		case e.EffectID != c.EffectID, e.EffectID != idem.EffectID(id):
			t.Errorf("effect %+v has not the id of its call, %s", e, c.EffectID)
		}
	}
	for id, c := range byID {
		want := 0
		if c.Status == idem.StatusSucceeded && c.Tool != "sleep" && c.Tool != "fail" {
			want = 1
		}
		if effects[id] != want {
			t.Errorf("%d effects instead of %d of %v", effects[id], want, &c)
		}
	}
}

// checkOutside checks that nothing went out that no call knows of, no attempt
// twice, and nothing more often than its tool or a decision allows (R10, R12,
// R13).
func checkOutside(t testing.TB, d *daemon, all []call) {
	t.Helper()
	attempts := make(map[string][]int)
	for _, line := range d.outside(t) {
		if slices.Contains(attempts[line.EffectID], line.Attempt) {
			t.Errorf("attempt %d of %s went out twice", line.Attempt, line.EffectID)
		}
		attempts[line.EffectID] = append(attempts[line.EffectID], line.Attempt)
	}
	for _, c := range all {
		went, external := attempts[c.EffectID], strings.HasPrefix(c.Tool, "ext_")
		delete(attempts, c.EffectID)
		for _, a := range went {
			if a > c.Attempt {
				t.Errorf("attempt %d went out of %v", a, &c)
			}
		}
		if !external && len(went) == 0 || c.Tool == "ext_rerun" && c.Status == idem.StatusFailed {
			continue
		}
		// One dispatch unless the law has it go out again.
		again, decided := 0, false
		for _, e := range d.audit(t, c.CallID) {
			switch e.Name {
			case idem.EventResolved:
				decided = true
				if e.Detail.Outcome == string(idem.OutcomeRetry) {
					again++
				}
			case idem.EventRequeued:
				again++
			case idem.EventRecovered:
				if c.Tool == "ext_rerun" {
					again++
				}
			}
		}
		if !external || len(went) > 1+again || len(went) == 0 && c.Status == idem.StatusSucceeded && !decided {
			t.Errorf("%v went out in the attempts %v, %d times more allowed", &c, went, again)
		}
	}
	if len(attempts) != 0 {
		t.Errorf("effects went out of which no call knows: %v", attempts)
	}
}

// checkStats checks that the durable totals are what a full listing gives, and
// that every delivery was answered as something.
func checkStats(t testing.TB, d *daemon, ledger []effect, all []call) {
	t.Helper()
	s := d.stats(t)
	if s.Calls != int64(len(all)) || s.Effects != int64(len(ledger)) {
		t.Errorf("/stats has %d calls and %d effects, the listings have %d and %d", s.Calls, s.Effects, len(all), len(ledger))
	}
	status, attempts := make(map[idem.Status]int64), make(map[string]int64)
	for _, c := range all {
		status[c.Status]++
		if c.Status.Ended() {
			bucket := strconv.Itoa(c.Attempt)
			if c.Attempt >= 10 {
				bucket = "10+"
			}
			attempts[bucket]++
		}
	}
	for _, st := range idem.Statuses {
		if s.ByStatus[st] != status[st] {
			t.Errorf("/stats has %d calls that are %s, the listing has %d", s.ByStatus[st], st, status[st])
		}
	}
	for bucket, n := range s.Attempts {
		if n != attempts[bucket] {
			t.Errorf("/stats has %d calls with %s attempts, the listing has %d", n, bucket, attempts[bucket])
		}
	}
	// A request whose client has gone is answered without anybody knowing when.
	eventually(t, "every delivery is counted as something", func() bool {
		s = d.stats(t)
		return s.Deliveries == s.answered()
	})
}

// checkAudits checks that trails have no gaps and agree with their calls.
func checkAudits(t testing.TB, d *daemon, all []call) {
	t.Helper()
	step := (len(all) + auditsChecked - 1) / auditsChecked
	work := make(chan call)
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for c := range work {
				if err := d.checkAudit(&c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := 0; i < len(all); i += step {
		work <- all[i]
	}
	close(work)
	readers.Wait()
}

func (d *daemon) checkAudit(c *call) error {
	events, err := d.trail(c.CallID)
	if err != nil {
		return err
	}
	claims, decided := 0, idem.EventName("")
	for i, e := range events {
		switch {
		case e.Seq != i:
			return fmt.Errorf("event %d of %v has the number %d: %v", i, c, e.Seq, events)
		case (i == 0) != (e.Name == idem.EventCreated):
			return fmt.Errorf("event %d of %v is %s: %v", i, c, e.Name, events)
		}
		if e.Name == idem.EventClaimed {
			if claims++; e.Attempt != claims { // R12
				return fmt.Errorf("claim %d of %v is of attempt %d: %v", claims, c, e.Attempt, events)
			}
		}
		if e.Name != idem.EventStaleResult {
			decided = e.Name
		}
	}
	if claims != c.Attempt {
		return fmt.Errorf("%d claims of %v: %v", claims, c, events)
	}
	fits := map[idem.Status][]idem.EventName{
		idem.StatusPending:   {idem.EventCreated, idem.EventRequeued, idem.EventResolved},
		idem.StatusRunning:   {idem.EventClaimed},
		idem.StatusHeld:      {idem.EventHeld},
		idem.StatusSucceeded: {idem.EventSucceeded, idem.EventResolved},
		idem.StatusFailed:    {idem.EventFailed, idem.EventResolved},
	}
	if slices.Contains(fits[c.Status], decided) {
		return nil
	}
	return fmt.Errorf("the last event of %v is %s: %v", c, decided, events)
}

// last returns the last event of a name in a trail, and whether there is one.
func last(events []event, name idem.EventName) (e event, found bool) {
	for _, e := range slices.Backward(events) {
		if e.Name == name {
			return e, true
		}
	}
	return event{}, false
}

func has(events []event, name idem.EventName) bool {
	_, found := last(events, name)
	return found
}
