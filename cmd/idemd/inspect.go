package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
)

type inspectCmd struct {
	Dir  string `arg:"" help:"The data directory (what serve has as --data)."`
	JSON bool   `name:"json" help:"Write a JSON document."`
}

// Help is what the help of this command says on top.
func (*inspectCmd) Help() string {
	return `Reads the whole store, counts what is in it, and checks what must be true of it at any time. It changes nothing, and does not start anything that is pending. The server must be stopped: copy the directory of a stopped one if it has to go on.

Exit codes: 0 the store is sound, 1 it is not, or its files cannot be read, 2 there is no store, or one of a newer release, 7 it was interrupted, 74 stdout cannot be written, 75 the directory is in use.`
}

// inspectDoc is the report as JSON, with the members of /stats where they mean
// the same.
type inspectDoc struct {
	Layout          uint64           `json:"layout"`
	CreatedAt       *time.Time       `json:"created_at"`
	Calls           int64            `json:"calls"`
	Effects         int64            `json:"effects"`
	ByStatus        map[string]int64 `json:"by_status"`
	Attempts        map[string]int64 `json:"attempts"`
	Keys            int64            `json:"keys"`
	Markers         int64            `json:"markers"`
	Events          int64            `json:"events"`
	Tombstones      int64            `json:"tombstones"`
	MultipleEffects int64            `json:"multiple_effects"`
	Broken          int64            `json:"broken"`
	Checks          []checkDoc       `json:"checks"`
}

type checkDoc struct {
	Name     string   `json:"name"`
	Rule     string   `json:"rule"`
	Broken   int64    `json:"broken"`
	Examples []string `json:"examples"`
}

// Run inspects a store. It exits with 0 if the store is sound.
func (c *inspectCmd) Run(ctx context.Context, con *console) error {
	o := kv.Options{Dir: c.Dir, Logger: slog.New(slog.NewTextHandler(con.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	progress, done := con.progress()
	r, err := kv.Inspect(ctx, o, progress)
	done()
	switch {
	case errors.Is(err, kv.ErrNoStore):
		return exit(exitUsage, "%s: there is no store", c.Dir)
	case errors.Is(err, kv.ErrNewerFormat):
		return exit(exitUsage, "%s: a newer release wrote this store; inspect it with that one", c.Dir)
	case errors.Is(err, kv.ErrInUse):
		return exit(exitInUse, "%s is in use: stop the server first, or inspect a copy that was made while it was stopped", c.Dir)
	case errors.Is(err, context.Canceled):
		return exit(exitUnavailable, "interrupted")
	case err != nil:
		return exit(exitFailed, "%s cannot be read: %v", c.Dir, err)
	}
	if c.JSON {
		err = con.writeInspection(&r)
	} else {
		err = con.printInspection(&r)
	}
	if err != nil {
		return err
	}
	if n := r.Broken(); n > 0 {
		return exit(exitFailed, "the store is not sound: %d faults", n)
	}
	if !c.JSON {
		con.say("idemd: the store is sound")
	}
	return nil
}

func (c *console) writeInspection(r *kv.Report) error {
	doc := inspectDoc{
		Layout: r.Layout, Calls: r.Totals.Calls, Effects: r.Totals.Effects,
		ByStatus: make(map[string]int64), Attempts: make(map[string]int64),
		Keys: r.Keys, Markers: r.Markers, Events: r.Events, Tombstones: r.Tombstones,
		MultipleEffects: r.MultipleEffects, Broken: r.Broken(),
	}
	if !r.CreatedAt.IsZero() {
		doc.CreatedAt = &r.CreatedAt
	}
	for i, s := range idem.Statuses {
		doc.ByStatus[string(s)] = r.Totals.Status[i]
	}
	for i, n := range r.Totals.Attempts {
		if i > 0 || n > 0 {
			doc.Attempts[idem.AttemptBucket(i)] = n
		}
	}
	for _, check := range r.Checks {
		doc.Checks = append(doc.Checks, checkDoc{check.Name, check.Rule, check.Broken, append([]string{}, check.Examples...)})
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return c.print("%s\n", b)
}

func (c *console) printInspection(r *kv.Report) error {
	var out bytes.Buffer
	line := func(name string, value any) { fmt.Fprintf(&out, "%-16s %v\n", name, value) }
	var statuses, attempts []string
	for i, s := range idem.Statuses {
		if n := r.Totals.Status[i]; n != 0 {
			statuses = append(statuses, fmt.Sprintf("%s=%d", s, n))
		}
	}
	for i, n := range r.Totals.Attempts {
		if n != 0 {
			attempts = append(attempts, fmt.Sprintf("%s=%d", idem.AttemptBucket(i), n))
		}
	}
	if !r.CreatedAt.IsZero() {
		line("created", r.CreatedAt.Format(time.RFC3339))
	}
	line("calls", r.Totals.Calls)
	line("effects", r.Totals.Effects)
	line("by_status", strings.Join(statuses, " "))
	line("attempts", strings.Join(attempts, " "))
	line("keys", r.Keys)
	line("markers", r.Markers)
	line("events", r.Events)
	line("tombstones", r.Tombstones)
	line("multiple_effects", r.MultipleEffects)
	for _, check := range r.Checks {
		if check.Broken == 0 {
			line(check.Name, "ok: "+check.Rule)
			continue
		}
		line(check.Name, fmt.Sprintf("BROKEN %d times: %s", check.Broken, check.Rule))
		for _, e := range check.Examples {
			fmt.Fprintf(&out, "  %s\n", plain(e))
		}
		if n := check.Broken - int64(len(check.Examples)); n > 0 {
			fmt.Fprintf(&out, "  and %d more\n", n)
		}
	}
	return c.print("%s", out.Bytes())
}

// progress shows on a terminal how far an inspection is; anywhere else it says
// nothing. done takes the line away.
func (c *console) progress() (show func(kv.Progress), done func()) {
	if !isTerminal(c.stderr) {
		return nil, func() {}
	}
	var last time.Time
	show = func(p kv.Progress) {
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		fmt.Fprintf(c.stderr, "\r%s: %d of about %d\x1b[K", p.Step, p.Done, p.About)
	}
	return show, func() {
		if !last.IsZero() {
			fmt.Fprint(c.stderr, "\r\x1b[K")
		}
	}
}
