package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// startDownstream starts a service over a ledger of its own, unless o names one.
// change may set what only tests set.
func startDownstream(t *testing.T, o DownstreamOptions, change ...func(*Downstream)) *Downstream {
	t.Helper()
	if o.Ledger == "" {
		o.Ledger = filepath.Join(t.TempDir(), "ledger.ndjson")
	}
	d, err := NewDownstream(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(d)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// hitFirst is a fault for the first request of every id.
func hitFirst(f DownstreamFault) func(int, string) DownstreamFault {
	return func(n int, _ string) DownstreamFault {
		if n == 1 {
			return f
		}
		return DownstreamFault{}
	}
}

// ask makes one request on a connection of its own.
func (d *Downstream) ask(t *testing.T, request string) (status int, body string) {
	t.Helper()
	w := dial(t, d.URL())
	defer w.Close()
	w.send(request)
	method, _, _ := strings.Cut(request, " ")
	status, body, err := w.read(method)
	if err != nil {
		t.Errorf("%.40q: %v", request, err)
	}
	return status, body
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n" }

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rest waits until nothing is under way.
func (d *Downstream) rest(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
}

// effects is the ids in the ledger, in order.
func (d *Downstream) effects(t *testing.T) []string {
	t.Helper()
	entries, err := d.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i, e := range entries {
		if e.Number != i+1 {
			t.Errorf("entry %d has number %d", i+1, e.Number)
		}
		ids = append(ids, e.EffectID)
	}
	return ids
}

func (d *Downstream) wantEffects(t *testing.T, want ...string) {
	t.Helper()
	if got := d.effects(t); !slices.Equal(got, want) {
		t.Errorf("the ledger has %q, want %q", got, want)
	}
}

// halfPost is a request whose body never ends.
var halfPost = strings.TrimSuffix(post("a", payBody), payBody[5:])

const (
	payBody   = `{"intent":"order-1","amount":100}`
	payAnswer = `{"effect_id":"a","entry":1,"amount":100}`
)

// held is a pause that a test ends.
type held struct {
	waits chan time.Duration // a wait has begun
	end   chan struct{}
}

func holdPauses(d *Downstream) *held {
	h := &held{waits: make(chan time.Duration, 10), end: make(chan struct{})}
	d.pause = func(ctx context.Context, long time.Duration) error {
		h.waits <- long
		select {
		case <-h.end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h
}

// TestDownstreamFaults: what the client sees and what is in the ledger, for each
// fault; and that the second request of the id, without a fault, finds what the
// first one has left.
func TestDownstreamFaults(t *testing.T) {
	tried := map[DownstreamKind]bool{}
	for _, tc := range []struct {
		fault  string
		effect bool // in the ledger after the request
		status string
		sees   func(t *testing.T, w *wire)
	}{
		{"refuse", false, "422", func(_ *testing.T, w *wire) { w.want(422, "{\"error\":\"refused\"}\n") }},
		{"busy", false, "429", func(t *testing.T, w *wire) {
			resp, err := http.ReadResponse(w.r, nil)
			if err != nil || resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" {
				t.Errorf("%+v, %v", resp, err)
			}
		}},
		{"unavailable", false, "503", func(_ *testing.T, w *wire) { w.want(503, "{\"error\":\"unavailable\"}\n") }},
		{"conflict-in-progress", false, "409", func(_ *testing.T, w *wire) { w.want(409, "{\"error\":\"in_progress\"}\n") }},
		{"close-before", false, "none", func(_ *testing.T, w *wire) { w.wantEnd(false) }},
		{"delay:1ms", true, "200", func(_ *testing.T, w *wire) { w.want(200, payAnswer) }},
		{"slow-commit:1ms", true, "200", func(_ *testing.T, w *wire) { w.want(200, payAnswer) }},
		{"commit-then-500", true, "500", func(_ *testing.T, w *wire) { w.want(500, "{\"error\":\"internal\"}\n") }},
		{"commit-then-close", true, "none", func(_ *testing.T, w *wire) { w.wantEnd(false) }},
		{"commit-then-reset", true, "none", func(_ *testing.T, w *wire) { w.wantEnd(true) }},
		{"half-answer", true, "200", func(t *testing.T, w *wire) {
			if status, body, err := w.read("POST"); status != 200 || body != payAnswer[:len(payAnswer)/2] || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d %q %v", status, body, err)
			}
		}},
		{"garbage", true, "none", func(t *testing.T, w *wire) {
			if status, _, err := w.read("POST"); err == nil {
				t.Errorf("it is HTTP: %d", status)
			}
		}},
		{"answer-late:1ms", true, "200", func(_ *testing.T, w *wire) { w.want(200, payAnswer) }},
		{"redirect", true, "307", func(t *testing.T, w *wire) {
			resp, err := http.ReadResponse(w.r, nil)
			if err != nil || resp.StatusCode != http.StatusTemporaryRedirect || resp.Header.Get("Location") != "/redirected/x" {
				t.Errorf("%+v, %v", resp, err)
			}
		}},
		{"endless", true, "200", func(t *testing.T, w *wire) {
			resp, err := http.ReadResponse(w.r, nil)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("%+v, %v", resp, err)
			}
			if n, err := io.CopyN(io.Discard, resp.Body, 3<<20); err != nil {
				t.Errorf("it ended after %d bytes: %v", n, err)
			}
			w.Close()
		}},
		{"big:3000000", true, "200", func(t *testing.T, w *wire) {
			status, body, err := w.read("POST")
			if status != 200 || len(body) != 3000000 || !json.Valid([]byte(body)) || err != nil {
				t.Errorf("%d, %d bytes, %v", status, len(body), err)
			}
		}},
		{"big:10", true, "200", func(_ *testing.T, w *wire) { w.want(200, `{"pad":""}`) }},
	} {
		f, err := ParseDownstreamFault(tc.fault)
		if err != nil {
			t.Fatal(err)
		}
		tried[f.Kind] = true
		for _, ignores := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ignores ids: %v", tc.fault, ignores), func(t *testing.T) {
				d := startDownstream(t, DownstreamOptions{Ignores: ignores, Fault: hitFirst(f)})
				w := dial(t, d.URL())
				w.send(post("a", payBody))
				tc.sees(t, w)
				d.rest(t)
				var want []string
				if tc.effect {
					want = append(want, "a")
				}
				d.wantEffects(t, want...)
				log := d.Requests()
				if len(log) != 1 || log[0].Fault != f.String() || log[0].Committed != tc.effect || log[0].Status != tc.status || log[0].ID != "a" || log[0].Attempt != 1 {
					t.Errorf("logged %+v", log)
				}
				status, body := d.ask(t, get("/effects/a"))
				if status != map[bool]int{true: 200, false: 404}[tc.effect] {
					t.Errorf("looked up: %d %s", status, body)
				}

				if ignores || !tc.effect {
					want = append(want, "a")
				}
				answer := fmt.Sprintf(`{"effect_id":"a","entry":%d,"amount":100}`, len(want))
				if status, body := d.ask(t, post("a", payBody)); status != 200 || body != answer {
					t.Errorf("the second request: %d %s, want %s", status, body, answer)
				}
				d.wantEffects(t, want...)
				// R18: judged on the ledger.
				judged := idem.Reconcile(d.effects(t), []string{"a"})
				if judged.Duplicates != len(want)-1 || judged.Lost != 0 || judged.Unexpected != 0 {
					t.Errorf("%+v", judged)
				}
				report := DownstreamReport{
					Committed: len(want), Distinct: 1, Duplicates: len(want) - 1, Requests: 2, Lookups: 1,
					Faults: map[DownstreamKind]int64{f.Kind: 1},
				}
				if !ignores && tc.effect {
					report.Replayed = 1
				}
				if got := d.Report(); !reflect.DeepEqual(got, report) {
					t.Errorf("counted %+v, want %+v", got, report)
				}
			})
		}
	}
	for _, k := range DownstreamKinds() {
		if !tried[k] {
			t.Errorf("%s is not tried", k)
		}
	}
}

// A redirect that is followed is the same request once more: two effects where ids
// are ignored.
func TestDownstreamRedirectFollowed(t *testing.T) {
	for ignores, want := range map[bool]int{true: 2, false: 1} {
		d := startDownstream(t, DownstreamOptions{Ignores: ignores, Fault: hitFirst(DownstreamFault{Kind: Redirect})})
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL()+"/pay", strings.NewReader(payBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "a")
		resp, err := c.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Request.URL.Path != "/redirected/pay" {
			t.Fatalf("%+v, %v", resp, err)
		}
		resp.Body.Close()
		if got := d.effects(t); len(got) != want {
			t.Errorf("ignores %v: %q", ignores, got)
		}
	}
}

// TestDownstreamWaits: when the effect is in the ledger, seen in the middle of each
// wait, and what becomes of it if the client leaves or the service stops there.
func TestDownstreamWaits(t *testing.T) {
	for _, tc := range []struct {
		kind     DownstreamKind
		during   []string // in the ledger while it waits
		second   string   // what another request of the id gets while it waits
		clientOn []string // in the ledger at the end: the client stays,
		left     []string // it left in the wait,
		stopped  []string // a stop came in the wait
	}{
		{Delay, nil, payAnswer, []string{"a"}, nil, nil},
		{SlowCommit, nil, "{\"error\":\"in_progress\"}\n", []string{"a"}, []string{"a"}, nil},
		{AnswerLate, []string{"a"}, payAnswer, []string{"a"}, []string{"a"}, []string{"a"}},
	} {
		begin := func(t *testing.T, o DownstreamOptions) (*Downstream, *held, *wire) {
			t.Helper()
			var h *held
			o.Fault = hitFirst(DownstreamFault{Kind: tc.kind, Wait: time.Hour})
			d := startDownstream(t, o, func(d *Downstream) { h = holdPauses(d) })
			w := dial(t, d.URL())
			w.send(post("a", payBody))
			if long := <-h.waits; long != time.Hour {
				t.Errorf("it waits %v", long)
			}
			d.wantEffects(t, tc.during...)
			if r := d.Requests(); len(r) != 1 || r[0].Status != StatusPending {
				t.Errorf("logged %+v", r)
			}
			return d, h, w
		}
		t.Run(string(tc.kind)+", the client stays", func(t *testing.T) {
			d, h, w := begin(t, DownstreamOptions{})
			close(h.end)
			w.want(200, payAnswer)
			d.wantEffects(t, tc.clientOn...)
		})
		t.Run(string(tc.kind)+", a second request in the wait", func(t *testing.T) {
			d, h, w := begin(t, DownstreamOptions{})
			if _, body := d.ask(t, post("a", payBody)); body != tc.second {
				t.Errorf("got %q, want %q", body, tc.second)
			}
			close(h.end)
			w.want(200, payAnswer)
			d.wantEffects(t, "a")
		})
		t.Run(string(tc.kind)+", the client leaves", func(t *testing.T) {
			d, h, w := begin(t, DownstreamOptions{})
			w.Close()
			if tc.kind == SlowCommit {
				close(h.end) // nothing else ends it
			}
			d.rest(t)
			d.wantEffects(t, tc.left...)
		})
		t.Run(string(tc.kind)+", a stop in the wait", func(t *testing.T) {
			ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
			d, _, w := begin(t, DownstreamOptions{Ledger: ledger})
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
			w.wantEnd(false)
			r, report := d.Requests()[0], d.Report()
			if tc.stopped == nil && (r.Committed || r.Status != StatusNone || r.Note != "stopped before the commit: no effect" || report.Stopped != 1) ||
				tc.stopped != nil && (!r.Committed || r.Status != StatusNone || report.Stopped != 0) {
				t.Errorf("logged %+v, counted %+v", r, report)
			}
			d = startDownstream(t, DownstreamOptions{Ledger: ledger})
			d.wantEffects(t, tc.stopped...)
		})
	}
}

// The wait of the service itself.
func TestDownstreamPause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := rest(ctx, time.Nanosecond); err != nil {
		t.Error(err)
	}
	cancel()
	if err := rest(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A stop ends a body without end, also where nobody reads it.
func TestDownstreamStopsEndless(t *testing.T) {
	for _, f := range []DownstreamFault{{Kind: Endless}, {Kind: Big, Size: MaxBig}} {
		d := startDownstream(t, DownstreamOptions{Fault: hitFirst(f)})
		w := dial(t, d.URL())
		w.send(post("a", payBody))
		if _, err := w.r.Peek(1); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, w.r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is open")
		}
	}
}

// close-before leaves a body alone that has not been sent.
func TestDownstreamClosesBeforeTheBody(t *testing.T) {
	d := startDownstream(t, DownstreamOptions{Fault: hitFirst(DownstreamFault{Kind: CloseBefore})})
	w := dial(t, d.URL())
	w.send("POST /x HTTP/1.1\r\nHost: h\r\nIdempotency-Key: a\r\nContent-Length: 1000000\r\n\r\n")
	w.wantEnd(false)
	d.wantEffects(t)
}

// Fifty requests of one id at once are one effect; each of them gets its answer, or
// is told that it is being made.
func TestDownstreamHonoursARace(t *testing.T) {
	const crowd = 50
	for ignores, want := range map[bool]int{false: 1, true: crowd} {
		d := startDownstream(t, DownstreamOptions{Ignores: ignores})
		var wg sync.WaitGroup
		begin := make(chan struct{})
		answers := make(chan string, crowd)
		for range crowd {
			w := dial(t, d.URL())
			wg.Go(func() {
				<-begin
				if _, err := io.WriteString(w, post("a", payBody)); err != nil {
					answers <- err.Error()
					return
				}
				status, body, err := w.read("POST")
				answers <- fmt.Sprint(status, " ", body, " ", err)
			})
		}
		close(begin)
		wg.Wait()
		close(answers)
		got := 0
		for a := range answers {
			switch {
			case a == "409 {\"error\":\"in_progress\"}\n <nil>" && !ignores:
			case a == "200 "+payAnswer+" <nil>", ignores && strings.HasPrefix(a, "200 "):
				got++
			default:
				t.Errorf("ignores %v: %s", ignores, a)
			}
		}
		if ids := d.effects(t); len(ids) != want || got == 0 {
			t.Errorf("ignores %v: %d effects, %d answers", ignores, len(ids), got)
		}
		if r := idem.Reconcile(d.effects(t), []string{"a"}); r.Duplicates != want-1 || r.Clean() == ignores {
			t.Errorf("ignores %v: %+v", ignores, r)
		}
	}
}

// The same id with another body is refused: while the first is done, after it, and
// after a restart.
func TestDownstreamOtherBody(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	var h *held
	d := startDownstream(t, DownstreamOptions{Ledger: ledger, Fault: hitFirst(DownstreamFault{Kind: SlowCommit, Wait: time.Hour})},
		func(d *Downstream) { h = holdPauses(d) })
	w := dial(t, d.URL())
	w.send(post("a", payBody))
	<-h.waits
	refused := func(when string) {
		t.Helper()
		if status, body := d.ask(t, post("a", payBody+" ")); status != 422 || body != "{\"error\":\"other_body\"}\n" {
			t.Errorf("%s: %d %s", when, status, body)
		}
	}
	refused("while it is done")
	close(h.end)
	w.want(200, payAnswer)
	refused("after it")
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = startDownstream(t, DownstreamOptions{Ledger: ledger})
	refused("after a restart")
	d.wantEffects(t, "a")
}

// A restart keeps the answers, byte for byte, and the numbers.
func TestDownstreamRestart(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	bodies := map[string]string{
		"a":             payBody,
		`<"&\ é>`:       `{"amount":1.10,"intent":"<&>"}`,
		"not an object": `[1]`,
		"not JSON":      `{"amount`,
		"empty":         ``,
		"exact":         `{"amount":9007199254740993000000000001}`,
		"other types":   `{"amount":"1","intent":7}`,
	}
	answers := map[string]string{}
	for life := range 3 {
		d := startDownstream(t, DownstreamOptions{Ledger: ledger})
		for id, body := range bodies {
			status, answer := d.ask(t, post(id, body))
			if status != 200 || life > 0 && answer != answers[id] {
				t.Errorf("life %d, %s: %d %s, was %s", life, id, status, answer, answers[id])
			}
			answers[id] = answer
		}
		entries, err := d.Ledger()
		if err != nil || len(entries) != len(bodies) {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		for _, e := range entries {
			if e.Answer != answers[e.EffectID] || e.Attempt != 1 || e.At.IsZero() {
				t.Errorf("%+v", e)
			}
			want := map[string][2]string{"a": {"order-1", "100"}, `<"&\ é>`: {"<&>", "1.10"}, "exact": {"", "9007199254740993000000000001"}}[e.EffectID]
			if e.Intent != want[0] || string(e.Amount) != want[1] {
				t.Errorf("%+v", e)
			}
		}
		// The ledger that is shown is the file.
		file, err := os.ReadFile(ledger)
		if _, shown := d.ask(t, get("/ledger")); err != nil || shown != string(file) {
			t.Errorf("shown\n%s\nfile\n%s%v", shown, file, err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// Requests of an id go on counting from the ledger.
	d := startDownstream(t, DownstreamOptions{Ledger: ledger, Ignores: true})
	d.ask(t, post("a", payBody))
	if entries, err := d.Ledger(); err != nil || entries[len(entries)-1].Attempt != 2 {
		t.Errorf("%+v, %v", entries, err)
	}
}

func TestDownstreamLedgerFile(t *testing.T) {
	const line = `{"entry":1,"effect_id":"a","at":"2026-01-02T03:04:05Z","attempt_seq":1,"body_sha256":"x","answer":"{}"}` + "\n"
	for _, tc := range []struct {
		name, file string
		want       string // an error
		left       string // of the file
	}{
		{"empty", "", "", ""},
		{"whole", line, "", line},
		{"torn", line + line[:40], "", line},
		{"torn at the line feed", line + strings.TrimSuffix(line, "\n"), "", line},
		{"torn, and zeros", line + "\x00\x00\x00", "", line},
		{"only torn", line[:40], "", ""},
		{"damaged", "{\n" + line, "line 1: unexpected end of JSON input", "{\n" + line},
		{"a line is missing", strings.Replace(line, `"entry":1`, `"entry":2`, 1), "line 1: it is entry 2", strings.Replace(line, `"entry":1`, `"entry":2`, 1)},
		{"twice the same", line + line, "line 2: it is entry 1", line + line},
		{"another file", strings.Repeat("x", maxLedgerLine), "line 1: it is too long", strings.Repeat("x", maxLedgerLine)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.ndjson")
			if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			seen := 0
			l, torn, err := openEffectLedger(path, func(DownstreamEntry, span) { seen++ })
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v", err)
				}
				// It is not kept from whoever comes to look.
				if _, _, err := openEffectLedger(path, func(DownstreamEntry, span) {}); errors.Is(err, ErrLedgerInUse) {
					t.Error(err)
				}
			} else if err != nil || torn != int64(len(tc.file)-len(tc.left)) || seen != strings.Count(tc.left, "\n") {
				t.Fatalf("%d torn, %d seen, %v", torn, seen, err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != tc.left {
				t.Errorf("left %q, %v", got, err)
			}
			if tc.want != "" {
				return
			}
			e := &DownstreamEntry{EffectID: "b"}
			at, err := l.append(e)
			if err != nil || e.Number != seen+1 {
				t.Errorf("%+v, %v", e, err)
			}
			if got, err := l.entry(at); err != nil || got != *e {
				t.Errorf("%+v, %v; want %+v", got, err, e)
			}
			// A failed write: nobody knows what is in the file.
			if err := l.close(); err != nil {
				t.Error(err)
			}
			for range 2 {
				if _, err := l.append(e); !errors.Is(err, os.ErrClosed) {
					t.Errorf("%v", err)
				}
			}
		})
	}
	if _, _, err := openEffectLedger(t.TempDir(), nil); err == nil {
		t.Error("a directory is opened")
	}
}

// A ledger has one owner; the torn line is said.
func TestDownstreamLedgerOwner(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.ndjson")
	d := startDownstream(t, DownstreamOptions{Ledger: ledger})
	if _, err := NewDownstream(DownstreamOptions{Ledger: ledger}); !errors.Is(err, ErrLedgerInUse) {
		t.Errorf("opened twice: %v", err)
	}
	d.ask(t, post("a", payBody))
	if err := errors.Join(d.Close(t.Context()), d.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ledger, append(readFile(t, ledger), "{"...), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	d = startDownstream(t, DownstreamOptions{Ledger: ledger, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if !strings.Contains(said.String(), "not finished and is cut off") {
		t.Errorf("said %q", said.String())
	}
	d.wantEffects(t, "a")
}

// A ledger that cannot be written makes no effects.
func TestDownstreamLedgerFails(t *testing.T) {
	d := startDownstream(t, DownstreamOptions{})
	d.ledger.broken = errors.New("full")
	if status, _ := d.ask(t, post("a", payBody)); status != 500 {
		t.Errorf("status %d", status)
	}
	if status, _ := d.ask(t, get("/effects/a")); status != 404 {
		t.Errorf("status %d", status)
	}
	d.ledger.broken = nil
	if status, body := d.ask(t, post("a", payBody)); status != 200 || body != payAnswer {
		t.Errorf("%d %s", status, body)
	}
}

func TestDownstreamRequests(t *testing.T) {
	long := strings.Repeat("i", maxEffectID+1)
	with := func(head, body string) string {
		return fmt.Sprintf("POST /x HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}
	for _, tc := range []struct {
		name, pointer, request string
		status                 int
		body                   string // a part of it
		ids                    []string
	}{
		{"any path", "", strings.Replace(post("a", payBody), "/x", "//a/../b?c", 1), 200, payAnswer, []string{"a"}},
		{"PUT", "", strings.Replace(post("a", payBody), "POST", "PUT", 1), 200, payAnswer, []string{"a"}},
		{"PATCH", "", strings.Replace(post("a", payBody), "POST", "PATCH", 1), 200, payAnswer, []string{"a"}},
		{"DELETE", "", "DELETE /effects/a HTTP/1.1\r\nHost: h\r\nIdempotency-Key: a\r\n\r\n", 200, `"entry":1}`, []string{"a"}},
		{"no id", "", with("", payBody), 400, "there is no field Idempotency-Key", nil},
		{"empty id", "", post("", payBody), 400, "is empty", nil},
		{"long id", "", post(long, payBody), 400, "longer than 255", nil},
		{"longest id", "", post(long[1:], payBody), 200, long[1:], []string{long[1:]}},
		{"two ids", "", with("Idempotency-Key: a\r\nIdempotency-Key: b\r\n", payBody), 400, "there 2 times", nil},
		{"no text", "", post("\xff", payBody), 400, "is not text", nil},
		{"amount twice", "", post("a", `{"amount":1,"amount":2}`), 400, "amount is there twice", nil},
		{"long amount", "", post("a", `{"amount":`+strings.Repeat("1", MaxID+1)+`}`), 400, "longer than", nil},
		{"large", "", post("a", strings.Repeat("x", MaxDownstreamBody+1)), 413, "too_large", nil},
		{"largest", "", post("a", strings.Repeat("x", MaxDownstreamBody)), 200, "", []string{"a"}},
		{"pointer", "/meta/id", with("Idempotency-Key: b\r\n", ` {"meta":{"id":"a"}}`), 200, `"effect_id":"a"`, []string{"a"}},
		{"pointer to nothing", "/meta/id", with("", `{"meta":{}}`), 400, "there is no /meta/id", nil},
		{"pointer to a number", "/id", with("", `{"id":1}`), 400, "/id is not a string", nil},
		{"pointer to two", "/id", with("", `{"id":"a","id":"b"}`), 400, "id is there twice", nil},
		{"pointer, no JSON", "/id", with("", `{"id"`), 400, "not JSON", nil},
		{"pointer, no body", "/id", with("", ""), 400, "there is no body", nil},
		{"its own paths", "", strings.Replace(post("a", payBody), "/x", "/ledger", 1), 405, "", nil},
		{"another method", "", "OPTIONS /x HTTP/1.1\r\nHost: h\r\n\r\n", 405, "", nil},
		{"health", "", get("/healthz"), 200, "ok", nil},
		{"nothing there", "", get("/x"), 404, "not_found", nil},
		{"look-up of nothing", "", get("/effects?ref=a"), 404, "not_found", nil},
		{"look-up without an id", "", get("/effects"), 404, "not_found", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := startDownstream(t, DownstreamOptions{EffectPointer: tc.pointer})
			status, body := d.ask(t, tc.request)
			if status != tc.status || !strings.Contains(body, tc.body) || !json.Valid([]byte(body)) {
				t.Errorf("%d %s", status, body)
			}
			d.wantEffects(t, tc.ids...)
		})
	}
	t.Run("another field", func(t *testing.T) {
		d := startDownstream(t, DownstreamOptions{EffectHeader: "x-effect"})
		if status, body := d.ask(t, with("Idempotency-Key: b\r\nX-Effect: a\r\n", payBody)); status != 200 || body != payAnswer {
			t.Errorf("%d %s", status, body)
		}
	})
	t.Run("half a body", func(t *testing.T) {
		d := startDownstream(t, DownstreamOptions{})
		w := dial(t, d.URL())
		w.send(halfPost)
		if err := w.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		w.wantEnd(false)
		d.rest(t)
		d.wantEffects(t)
		if r := d.Requests()[0]; r.Status != StatusNone || !strings.Contains(r.Note, "did not arrive") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a fault that is none", func(t *testing.T) {
		d := startDownstream(t, DownstreamOptions{Fault: hitFirst(DownstreamFault{Kind: "sulk"})})
		if status, _ := d.ask(t, post("a", payBody)); status != 500 {
			t.Error(status)
		}
		d.wantEffects(t)
	})
}

// What is shown: look-ups, by path and by query, the log and the counts.
func TestDownstreamShows(t *testing.T) {
	d := startDownstream(t, DownstreamOptions{Ignores: true, Fault: hitFirst(DownstreamFault{Kind: CommitThen500})})
	const id = "a/b c"
	d.ask(t, post(id, payBody))
	d.ask(t, post(id, payBody))
	line, _, _ := strings.Cut(string(readFile(t, d.ledger.f.Name())), "\n")
	for _, path := range []string{"/effects/a%2Fb%20c", "/effects?ref=a%2Fb+c", "/effects/a/b%20c"} {
		if status, body := d.ask(t, get(path)); status != 200 || body != line+"\n" {
			t.Errorf("%s: %d %s, want the first line, %s", path, status, body, line)
		}
	}
	_, log := d.ask(t, get("/requests"))
	var rows []DownstreamRequest
	for l := range strings.Lines(log) {
		var r DownstreamRequest
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if !reflect.DeepEqual(rows, d.Requests()) || len(rows) != 5 {
		t.Errorf("%s", log)
	}
	for i, want := range []string{
		"POST /x a/b c 1 commit-then-500 true 500", "POST /x a/b c 2 none true 200",
		"GET /effects/a/b c a/b c 0 none false 200", "GET /effects a/b c 0 none false 200", "GET /effects/a/b c a/b c 0 none false 200",
	} {
		r := rows[i]
		if got := fmt.Sprint(r.Method, " ", r.Path, " ", r.ID, " ", r.Attempt, " ", r.Fault, " ", r.Committed, " ", r.Status); got != want || r.Number != int64(i+1) {
			t.Errorf("%d: %s, want %s", r.Number, got, want)
		}
	}
	const counts = `{"committed":2,"distinct":1,"duplicates":1,"requests":2,"lookups":3,"replayed":0,"stopped":0,` +
		`"faults":{"commit-then-500":1},"requests_dropped":0}` + "\n"
	if _, body := d.ask(t, get("/summary")); body != counts {
		t.Errorf("%s, want %s", body, counts)
	}
}

// TestDownstreamBounds: what happens at each.
func TestDownstreamBounds(t *testing.T) {
	t.Run("entries", func(t *testing.T) {
		d := startDownstream(t, DownstreamOptions{Ignores: true}, func(d *Downstream) { d.maxEntries = 2 })
		for i, want := range []int{200, 200, 507, 507} {
			if status, body := d.ask(t, post("a", payBody)); status != want {
				t.Errorf("request %d: %d %s", i, status, body)
			}
		}
		d.wantEffects(t, "a", "a")
	})
	t.Run("entries that are being made count", func(t *testing.T) {
		var h *held
		d := startDownstream(t, DownstreamOptions{Ignores: true, Fault: hitFirst(DownstreamFault{Kind: SlowCommit, Wait: 1})}, func(d *Downstream) {
			d.maxEntries = 1
			h = holdPauses(d)
		})
		w := dial(t, d.URL())
		w.send(post("a", payBody))
		<-h.waits
		if status, _ := d.ask(t, post("a", payBody)); status != 507 {
			t.Error(status)
		}
		close(h.end)
		w.want(200, payAnswer)
	})
	t.Run("ids", func(t *testing.T) {
		d := startDownstream(t, DownstreamOptions{Fault: hitFirst(DownstreamFault{Kind: Refuse})}, func(d *Downstream) { d.maxEntries = 1 })
		for i, want := range []struct {
			id     string
			status int
		}{{"a", 422}, {"b", 507}, {"a", 200}, {"a", 200}} {
			if status, body := d.ask(t, post(want.id, payBody)); status != want.status {
				t.Errorf("request %d: %d %s", i, status, body)
			}
		}
	})
	t.Run("requests", func(t *testing.T) {
		var h *held
		d := startDownstream(t, DownstreamOptions{Fault: hitFirst(DownstreamFault{Kind: SlowCommit, Wait: 1})}, func(d *Downstream) {
			d.maxRequests = 1
			h = holdPauses(d)
		})
		w := dial(t, d.URL())
		w.send(post("a", payBody))
		<-h.waits
		if status, body := d.ask(t, post("b", payBody)); status != 503 || !strings.Contains(body, "too_many_requests") {
			t.Errorf("%d %s", status, body)
		}
		if status, _ := d.ask(t, get("/summary")); status != 200 {
			t.Error("the counts cannot be asked for")
		}
		close(h.end)
		w.want(200, payAnswer)
		d.rest(t)
		if status, body := d.ask(t, post("b", payBody)); status != 200 { // its first one that counts, slow as it is
			t.Errorf("%d %s", status, body)
		}
		d.wantEffects(t, "a", "b")
	})
	t.Run("log", func(t *testing.T) {
		d := startDownstream(t, DownstreamOptions{}, func(d *Downstream) { d.reqs.max = 3 })
		for i := range 8 {
			d.ask(t, post(fmt.Sprint(i), payBody))
		}
		var ids []string
		for _, r := range d.Requests() {
			ids = append(ids, r.ID)
		}
		if !slices.Equal(ids, []string{"5", "6", "7"}) || d.Report().RequestsDropped != 5 {
			t.Errorf("%q, %+v", ids, d.Report())
		}
	})
}

// The handler stands on a server of the caller's too; after Close nothing is taken.
func TestDownstreamHandler(t *testing.T) {
	d, err := NewDownstream(DownstreamOptions{Ledger: filepath.Join(t.TempDir(), "l"), Fault: hitFirst(DownstreamFault{Kind: CommitThenReset})})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	send := func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(payBody))
		if err != nil {
			t.Fatal(err)
		}
		req.GetBody = nil
		req.Header.Set("Idempotency-Key", "a")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := send(); err == nil {
		t.Error("it was answered")
	}
	if err := send(); err != nil {
		t.Error(err)
	}
	d.wantEffects(t, "a")
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := send(); err == nil {
		t.Error("it was answered after Close")
	}
	if n := d.Report().Requests; n != 2 {
		t.Errorf("%d requests", n)
	}
}

// A wait for rest, and a stop, end with their context.
func TestDownstreamImpatience(t *testing.T) {
	here := make(chan struct{})
	d, err := NewDownstream(DownstreamOptions{Ledger: filepath.Join(t.TempDir(), "l"), Fault: func(int, string) DownstreamFault {
		close(here)
		return DownstreamFault{}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	w := dial(t, d.URL())
	w.send(halfPost)
	<-here
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.WaitIdle(over); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := d.Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	w.wantEnd(false)
}

func TestDownstreamOptions(t *testing.T) {
	for _, tc := range []struct {
		o    DownstreamOptions
		want string
	}{
		{DownstreamOptions{}, "needs a ledger"},
		{DownstreamOptions{Ledger: "l", EffectHeader: "A", EffectPointer: "/a"}, "not in both"},
		{DownstreamOptions{Ledger: "l", EffectHeader: "A B"}, "not the name of a field"},
		{DownstreamOptions{Ledger: "l", EffectPointer: "a"}, "does not begin with /"},
	} {
		if err := tc.o.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.o, err)
		}
		if _, err := NewDownstream(tc.o); err == nil {
			t.Errorf("%+v was taken", tc.o)
		}
	}
	if _, err := os.Stat("l"); err == nil {
		t.Error("a ledger was made for bad options")
	}
}
