package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
	"github.com/idemd/idemd/probe"
)

type checkHistoryCmd struct {
	Client []string `required:"" sep:"none" placeholder:"FILE" help:"A client's log, NDJSON; given again for every other log."`
	Ledger string   `required:"" placeholder:"SOURCE" help:"The ledger: a server's URL, the data directory of a stopped server, or a file of NDJSON."`
	Audit  string   `required:"" placeholder:"SOURCE" help:"The audit trails: a server's URL, the data directory of a stopped server, or a file of NDJSON."`

	// Not from the environment, where what excuses a server may be left over.
	NoEffect   []string      `name:"no-effect" env:"-" placeholder:"TOOL" help:"Tools without an effect, where neither a server nor a data directory tells."`
	Skew       time.Duration `env:"-" default:"0s" placeholder:"0s" help:"How much the clocks of two clients may differ (${default})."`
	Namespace  string        `default:"default" placeholder:"NAME" help:"The namespace to read of a data directory (${default}); a server gives its caller's."`
	MaxEntries int           `default:"10000000" placeholder:"N" help:"The most entries, effects and trails, of each, to hold in memory (${default})."`
	Timeout    time.Duration `default:"5s" placeholder:"5s" help:"How long a server may take for an answer, or send nothing of the ledger."`
	JSON       bool          `name:"json" help:"Write a JSON document."`
}

// Help is what the help of this command says on top.
func (*checkHistoryCmd) Help() string {
	return `Proves from what clients were told, the ledger and the audit trails that every key had one call and at most one effect, that no accepted call and no effect was lost, that every end was shown with the same bytes and stayed, that attempts only counted up, and that every trail is what the state machine can have written. Each violation names the lines that show it.

  idemd check-history --client agent-1.ndjson --client agent-2.ndjson --ledger ./idemd-data --audit ./idemd-data

A line of a log is a try (kind post, find or poll) or what came of an intent in the end (kind outcome), with the members client, intent, idem_key, tool, fingerprint, began, at, try, sent, status, code, effect, call_id, replayed, state, attempt, retryable, updated_at, result_digest, error_digest. A digest is the first 32 hex digits of the SHA-256 of the bytes of result, or of error, as they came. A line of a file of audit trails is {"call_id":…,"idem_key":…,"tool":…,"effects":…,"events":[…]}, with the events that the server shows.

Read a server only when nothing is under way: what ends between two requests looks lost. It is asked once for every call. All is in memory: a million entries, with an effect and a trail for every fourth, take about 550 MB.

Exit codes: 0 no rule is broken, 1 one is, 2 usage or bad input, 7 a source is unavailable or broke off, 75 the data directory is in use.`
}

// Run checks a history and exits with 0 if no rule is broken.
func (c *checkHistoryCmd) Run(ctx context.Context, con *console) error {
	stdin := 0
	for _, s := range append([]string{c.Ledger, c.Audit}, c.Client...) {
		if s == "-" {
			stdin++
		}
	}
	switch {
	case stdin > 1:
		return exit(exitUsage, "only one of the sources can be stdin")
	case c.MaxEntries < 1:
		return exit(exitUsage, "--max-entries: must be at least 1")
	case c.Skew < 0:
		return exit(exitUsage, "--skew: must not be negative")
	}
	h := probe.NewHistory(probe.HistoryOptions{Skew: c.Skew, MaxEntries: c.MaxEntries})
	h.NoEffect(c.NoEffect...)
	for _, s := range c.Client {
		if err := c.readFile(ctx, con, source(s), h.ReadLog); err != nil {
			return err
		}
	}
	// The trails first: what ends before the ledger is read has its effect there.
	if err := c.readAudit(ctx, con, h); err != nil {
		return err
	}
	if err := c.readLedger(ctx, con, h); err != nil {
		return err
	}
	if source(c.Audit).live() {
		if err := c.readUnlisted(ctx, h); err != nil {
			return err
		}
	}
	f := h.Check()
	if f.Entries == 0 {
		return exit(exitUsage, "the logs are empty, so there is nothing to check")
	}
	return con.showFindings(f, c.JSON)
}

func (c *checkHistoryCmd) readLedger(ctx context.Context, con *console, h *probe.History) error {
	s := source(c.Ledger)
	switch {
	case s.live():
		body, err := s.ledger(ctx, c.Timeout)
		if err != nil {
			return err
		}
		defer body.Close()
		return inputError(h.ReadLedger(c.Ledger, interruptible{ctx, body}, true))
	case s.store():
		return storeError(c.Ledger, kv.ReadEffects(ctx, storeOptions(c.Ledger, con), func(e idem.Effect) error {
			if e.Key.Namespace != idem.Namespace(c.Namespace) {
				return nil
			}
			return addError(c.Ledger, h.AddEffect(effectDoc(&e), probe.Ref{Source: c.Ledger}))
		}))
	default:
		return c.readFile(ctx, con, s, func(name string, r io.Reader) error { return h.ReadLedger(name, r, false) })
	}
}

func (c *checkHistoryCmd) readAudit(ctx context.Context, con *console, h *probe.History) error {
	s := source(c.Audit)
	switch {
	case s.live():
		return c.readLiveAudit(ctx, con, h)
	case s.store():
		return storeError(c.Audit, kv.ReadTrails(ctx, storeOptions(c.Audit, con), func(call idem.Call, events []idem.Event) error {
			if call.Key.Namespace != idem.Namespace(c.Namespace) {
				return nil
			}
			t, err := trailDoc(&call, events)
			if err != nil {
				return err
			}
			return addError(c.Audit, h.AddTrail(t, probe.Ref{Source: c.Audit}))
		}))
	default:
		return c.readFile(ctx, con, s, h.ReadAudit)
	}
}

func (c *checkHistoryCmd) readFile(ctx context.Context, con *console, s source, read func(name string, r io.Reader) error) error {
	f, err := s.file(con)
	if err != nil {
		return err
	}
	defer f.Close()
	name := string(s)
	if s == "-" {
		name = "stdin"
	}
	return inputError(read(name, interruptible{ctx, f}))
}

// addError ends the program for a row that cannot be added.
func addError(name string, err error) error {
	if err == nil {
		return nil
	}
	return exit(exitUsage, "%s: %s", name, strings.TrimPrefix(err.Error(), "probe: "))
}

// trailDoc is a stored call's trail as a line of a dump.
func trailDoc(call *idem.Call, events []idem.Event) (probe.Trail, error) {
	t := probe.Trail{CallID: call.ID.String(), Key: call.Key.Name, Tool: call.Tool, Effects: call.Effects}
	for _, e := range events {
		doc := probe.TrailEvent{Seq: e.Seq, At: e.At, Name: e.Name, Attempt: e.Attempt, Owner: e.Owner}
		if e.Detail != nil {
			if err := json.Unmarshal(e.Detail, &doc.Detail); err != nil {
				return t, fmt.Errorf("call %v: event %d: %w", call.ID, e.Seq, err)
			}
		}
		t.Events = append(t.Events, doc)
	}
	return t, nil
}

// readLiveAudit reads the trail of every call that a server lists.
func (c *checkHistoryCmd) readLiveAudit(ctx context.Context, con *console, h *probe.History) error {
	srv, err := source(c.Audit).server(c.Timeout)
	if err != nil {
		return err
	}
	l := &listing{server: srv}
	without, err := toolsWithoutEffect(ctx, l)
	if err != nil {
		return c.liveError(err)
	}
	h.NoEffect(without...)
	progress, done := con.rowsRead("calls")
	defer done()
	n := 0
	_, err = l.pages(ctx, pathCalls, "calls", url.Values{}, 0, func(raw []byte) error {
		var call callDoc
		if json.Unmarshal(raw, &call) != nil || call.CallID == "" || call.Key == "" {
			return errStranger
		}
		if n++; progress != nil {
			progress(n)
		}
		return c.addLiveTrail(ctx, l, h, &call)
	}, func() error { return nil })
	return c.liveError(err)
}

// readUnlisted reads the trails of calls that clients were told of, or that have an
// effect, and that a server does not list: it does not list what has expired.
func (c *checkHistoryCmd) readUnlisted(ctx context.Context, h *probe.History) error {
	srv, err := source(c.Audit).server(c.Timeout)
	if err != nil {
		return err
	}
	l := &listing{server: srv}
	for id, key := range h.CallsWithoutTrail() {
		var own *exitError
		switch err := c.addLiveTrail(ctx, l, h, &callDoc{CallID: id, Key: key}); {
		case errors.As(err, &own) && own.code == exitNotFound: // it is lost, and that is for the check to say
		case err != nil:
			return c.liveError(err)
		}
	}
	return nil
}

func (c *checkHistoryCmd) addLiveTrail(ctx context.Context, l *listing, h *probe.History, call *callDoc) error {
	events, err := liveTrail(ctx, l, call.CallID)
	if err != nil {
		return err
	}
	t := probe.Trail{CallID: call.CallID, Key: call.Key, Tool: call.Tool, Events: events}
	return addError(c.Audit, h.AddTrail(t, probe.Ref{Source: c.Audit}))
}

func (c *checkHistoryCmd) liveError(err error) error {
	if errors.Is(err, errStranger) {
		return exit(exitUnavailable, "%s: %v", c.Audit, err)
	}
	return err
}

// toolsWithoutEffect are those that a server says so of.
func toolsWithoutEffect(ctx context.Context, l *listing) (names []string, err error) {
	a, err := l.send(ctx, question{method: http.MethodGet, path: pathTools})
	if err != nil {
		return nil, failed(err, exitUnavailable)
	}
	if a.status != http.StatusOK {
		return nil, a.refused(exitUnavailable)
	}
	var doc struct {
		Tools []struct {
			Name    string       `json:"name"`
			Effects idem.Effects `json:"effects"`
		} `json:"tools"`
	}
	if json.Unmarshal(a.body, &doc) != nil {
		return nil, errStranger
	}
	for _, t := range doc.Tools {
		if t.Effects == idem.EffectsNone {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// liveTrail reads a call's whole audit trail from a server.
func liveTrail(ctx context.Context, l *listing, id string) (events []probe.TrailEvent, err error) {
	path, err := callPath(id)
	if err != nil {
		return nil, err
	}
	_, err = l.pages(ctx, path+"/audit", "events", url.Values{}, 0, func(raw []byte) error {
		var e probe.TrailEvent
		if json.Unmarshal(raw, &e) != nil {
			return errStranger
		}
		events = append(events, e)
		return nil
	}, func() error { return nil })
	return events, err
}

// findingsDoc is what a check found as JSON.
type findingsDoc struct {
	Clean      bool              `json:"clean"`
	Entries    int               `json:"entries"`
	Keys       int               `json:"keys"`
	Effects    int               `json:"effects"`
	Calls      int               `json:"calls"`
	Unfinished int               `json:"unfinished"`
	Broken     int               `json:"broken"` // violations, of which the first 10 000 follow
	Violations []probe.Violation `json:"violations"`
}

// shownViolations is how many violations are shown to people.
const shownViolations = 20

// showFindings writes what was found and ends with 1 unless that is nothing.
func (c *console) showFindings(f probe.Findings, asJSON bool) error {
	var out bytes.Buffer
	if asJSON {
		doc, err := json.Marshal(findingsDoc{
			f.Clean(), f.Entries, f.Keys, f.Effects, f.Calls, f.Unfinished, f.Total, append([]probe.Violation{}, f.Violations...),
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s\n", doc)
	} else {
		for _, line := range []struct {
			name string
			n    int
		}{{"entries", f.Entries}, {"keys", f.Keys}, {"effects", f.Effects}, {"calls", f.Calls}, {"unfinished", f.Unfinished}, {"broken", f.Total}} {
			fmt.Fprintf(&out, "%-10s %d\n", line.name, line.n)
		}
		shown := f.Violations[:min(len(f.Violations), shownViolations)]
		for i := range shown {
			v := &shown[i]
			fmt.Fprintf(&out, "  %s: key %s", v.Rule, plain(v.Key))
			if v.CallID != "" {
				fmt.Fprintf(&out, ", call %s", plain(v.CallID))
			}
			fmt.Fprintf(&out, ": %s\n", plain(v.Message))
			for _, r := range v.Proof {
				fmt.Fprintf(&out, "    %s\n", plain(r.String()))
			}
		}
		if more := f.Total - len(shown); more > 0 {
			fmt.Fprintf(&out, "  … and %d more\n", more)
		}
	}
	if err := c.print("%s", out.Bytes()); err != nil {
		return err
	}
	if !f.Clean() {
		return exit(exitFailed, "the history breaks the rules %d times", f.Total)
	}
	if !asJSON {
		c.say("idemd: the history holds to every rule")
	}
	return nil
}
