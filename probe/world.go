package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

// world is what a scenario finds: a running idemd, and the way there.
type world struct {
	d     *daemon
	relay *relay
	proxy *Proxy // nil where there is none
	url   string // for clients
	r     *Result

	mu       sync.Mutex      // of r, while several ask at once
	external map[string]bool // intents whose effect is in the file of the external tools
}

// open makes a client of idemd, by the way that the scenario has laid.
func (w *world) open(p client.Policy) (*client.Client, error) {
	c, err := client.New(w.url, client.Options{Policy: p})
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return c, nil
}

// ask asks for one intent with a client of its own, and keeps what came of it.
// That the client could not get it done is no error: the ledger tells.
func (w *world) ask(ctx context.Context, p client.Policy, req client.Request) (client.Outcome, error) {
	c, err := w.open(p)
	if err != nil {
		return client.Outcome{}, err
	}
	defer c.Close()
	out, err := c.Call(ctx, req)
	tries := out.Tries
	var failed *client.Error
	if errors.As(err, &failed) {
		tries, err = failed.Tries, nil
	}
	if e := ctx.Err(); e != nil {
		err = e
	}
	w.add(req.Key, tries, failed)
	return out, err
}

// add puts the tries of a client into the result. An intent may be asked for by
// more than one, so the numbers go on.
func (w *world) add(intent string, tries []client.Try, failed *client.Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.r.Intents, intent) {
		w.r.Intents = append(w.r.Intents, intent)
	}
	if len(tries) == 0 && failed != nil {
		w.r.fault("the client sends nothing of %s: %s", intent, failed.Message)
	}
	before := 0
	for _, t := range w.r.Tries {
		if t.Intent == intent {
			before++
		}
	}
	for i, t := range tries {
		shown := showTry(intent, t)
		shown.Number = before + i + 1
		if i+1 < len(tries) { // what it did next is what it did, whatever the answer let it
			shown.Then = map[client.Kind]string{
				client.KindSubmit: "again, the same key", client.KindFind: "ask by key", client.KindGet: "ask by id",
			}[tries[i+1].Kind]
		} else if failed != nil && shown.Then != string(client.ActionStop) {
			shown.Then = "give up: " + string(failed.Code)
		}
		w.r.Tries = append(w.r.Tries, shown)
	}
}

// showTry turns a client's account of its last request into the probe's.
func showTry(intent string, t client.Try) Try {
	s := Try{
		Intent: intent, Key: t.Key, Status: t.Reading.Status, Effect: t.Verdict.Effect, Replayed: t.Replayed,
		Request: map[client.Kind]string{client.KindSubmit: "POST", client.KindFind: "GET by key", client.KindGet: "GET by id"}[t.Kind],
		Answer:  cmp.Or(string(t.Reading.Code), string(t.Reading.Call)), Then: string(t.Verdict.Action),
	}
	switch {
	case t.Reading.Broken:
		s.Answer = "half an answer"
	case t.Reading.NotSent:
		s.Answer = "no connection"
	case t.Reading.Status == 0 && strings.Contains(t.Error, "in time"):
		s.Answer = "no answer in time"
	case t.Reading.Status == 0:
		s.Answer = "no answer: closed"
	}
	return s
}

// order puts what several did at once into one order.
func (w *world) order() {
	slices.Sort(w.r.Intents)
	slices.SortStableFunc(w.r.Tries, func(a, b Try) int {
		return cmp.Or(strings.Compare(a.Intent, b.Intent), cmp.Compare(a.Number, b.Number))
	})
}

// decide resolves a call that is held by what the downstream's ledger says, and
// lets the client ask again.
func (w *world) decide(ctx context.Context, p client.Policy, req client.Request) error {
	last := w.r.last()
	if last.Answer != string(idem.CodeOutcomeUnknown) && last.Answer != string(idem.StatusHeld) {
		return nil
	}
	c, err := w.find(ctx, req.Key)
	if err != nil {
		return err
	}
	lines, err := w.outside()
	if err != nil {
		return err
	}
	there := 0
	for _, l := range lines {
		if l.Effect == c.EffectID {
			there++
		}
	}
	outcome := "retry"
	if there > 0 {
		outcome = "succeeded"
	}
	w.r.note("%s is held: nothing runs until somebody has looked. The downstream has %d of it: resolved as %s", req.Key, there, outcome)
	body := fmt.Appendf(nil, `{"outcome":%q,"attempt":%d,"by":"probe","note":"%d in the downstream's ledger"}`, outcome, c.Attempt, there)
	if err := w.d.post(ctx, "/v1/tool-calls/"+c.CallID+"/resolve", body); err != nil {
		return err
	}
	_, err = w.ask(ctx, p, req)
	return err
}

// find asks idemd itself for a call by its key.
func (w *world) find(ctx context.Context, key string) (*client.Call, error) {
	p := patient()
	p.Wait = 0
	c, err := client.New(w.d.now().url, client.Options{Policy: p})
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	defer c.Close()
	a, err := c.Find(ctx, key)
	if a.Call == nil {
		return nil, fmt.Errorf("probe: the call of %s: %w", key, err)
	}
	return a.Call, nil
}

// dispatch is a line of the downstream of the external tools.
type dispatch struct {
	Effect  string `json:"effect_id"`
	Attempt int    `json:"attempt"`

	line string
}

// outside reads the downstream's ledger. Every dispatch is in it, whatever became
// of the answer.
func (w *world) outside() ([]dispatch, error) {
	lines, err := readLines(filepath.Join(w.d.dir, "ext.ndjson"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make([]dispatch, len(lines))
	for i, l := range lines {
		if err := json.Unmarshal([]byte(l), &all[i]); err != nil {
			return nil, fmt.Errorf("probe: line %d of ext.ndjson: %w", i+1, err)
		}
		all[i].line = l
	}
	return all, nil
}

// ledger reads what really happened: effects of local tools from idemd's own
// ledger, those of external tools from their downstream's. A downstream of a tool
// that may run again honours the effect id, so it counts an id once.
func (w *world) ledger(ctx context.Context) (entries []string, err error) {
	raw, err := w.d.get(ctx, "/v1/effects", "application/x-ndjson")
	if err != nil {
		return nil, err
	}
	type row struct {
		Effect string `json:"effect_id"`
		Call   string `json:"call_id"`
		Key    string `json:"idem_key"`
		Tool   string `json:"tool"`
	}
	byEffect := make(map[string]row)
	perKey := make(map[string]int)
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		var e row
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, fmt.Errorf("probe: idemd's ledger: %w", err)
		}
		w.r.Ledger = append(w.r.Ledger, line)
		byEffect[e.Effect] = e
		perKey[e.Key]++
		if !w.external[e.Key] {
			entries = append(entries, e.Key)
		}
	}
	for _, intent := range w.r.Intents {
		if perKey[intent] != 1 {
			w.r.fault("idemd's ledger has %d effects of %s", perKey[intent], intent)
		}
	}
	lines, err := w.outside()
	if err != nil {
		return nil, err
	}
	counted := make(map[string]bool)
	for _, l := range lines {
		e := byEffect[l.Effect]
		w.r.Ledger = append(w.r.Ledger, "downstream: "+l.line)
		if e.Tool == "ext_rerun" && counted[l.Effect] {
			w.r.note("%s was dispatched again with the same effect_id; its downstream counts that once", e.Key)
			continue
		}
		counted[l.Effect] = true
		entries = append(entries, cmp.Or(e.Key, l.Effect))
	}
	for _, e := range byEffect {
		if err := w.trail(ctx, e.Call, e.Key); err != nil {
			return nil, err
		}
	}
	slices.Sort(w.r.Notes)
	return entries, nil
}

// trail reads the audit of a call: it was created once, and has one end.
func (w *world) trail(ctx context.Context, id, key string) error {
	raw, err := w.d.get(ctx, "/v1/tool-calls/"+id+"/audit", "")
	if err != nil {
		return err
	}
	var doc struct {
		Events []struct {
			Event idem.EventName `json:"event"`
		} `json:"events"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("probe: the audit of %s: %w", key, err)
	}
	var names []string
	var events []idem.EventName
	for _, e := range doc.Events {
		names = append(names, string(e.Event))
		events = append(events, e.Event)
	}
	if !oneEnd(events) {
		w.r.fault("the audit of %s does not tell one call with one end: %s", key, strings.Join(names, ", "))
	}
	w.r.note("audit of %s: %s", key, strings.Join(names, ", "))
	return nil
}

// oneEnd reports whether a trail is that of a call which was created once and has
// one success: its tool's, or somebody's who found out. A verification or a person may
// first have sent it back.
func oneEnd(trail []idem.EventName) bool {
	n := make(map[idem.EventName]int)
	for _, e := range trail {
		n[e]++
	}
	return n[idem.EventCreated] == 1 && n[idem.EventFailed] == 0 &&
		(n[idem.EventSucceeded] == 1 || n[idem.EventSucceeded] == 0 && n[idem.EventResolved] == 1)
}
