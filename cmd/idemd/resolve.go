package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/idemd/idemd/idem"
)

type resolveCmd struct {
	ID string `arg:"" help:"The held call's id, c_…"`

	// Not from the environment: what is left over there must not decide a call.
	Outcome string `env:"-" required:"" enum:"succeeded,failed,retry" placeholder:"O" help:"What is decided: succeeded, failed, or retry: run it once more."`
	Attempt int    `env:"-" placeholder:"N" help:"The attempt that you looked into, as idemd get shows it; needed where the tool may run again."`
	By      string `env:"-" required:"" placeholder:"NAME" help:"Who decides; goes to the audit trail."`
	Note    string `env:"-" placeholder:"TEXT" help:"Why; goes to the audit trail."`
	Result  string `env:"-" placeholder:"JSON" help:"The result of a call that succeeded."`
	Error   string `env:"-" placeholder:"JSON" help:"The error of a call that failed: {\"code\",\"message\",\"retryable\"}."`

	remote
}

// Help is what the help of this command says on top.
func (*resolveCmd) Help() string {
	return `A call is held when its tool was dispatched, the answer was lost, and the tool may not simply run again. Find out what happened downstream before you decide, and not before the request can be at work there no more: after the tool's time-out and what downstream may take beyond it. retry runs the tool again. It needs --attempt: if the call has been run again since you looked, what you saw says nothing about that, and the decision is refused.`
}

// Run decides the call. It exits with 0 once that is recorded, whatever was
// decided.
func (c *resolveCmd) Run(ctx context.Context, con *console) error {
	path, err := callPath(c.ID)
	if err != nil {
		return err
	}
	switch {
	case c.Result != "" && c.Outcome != string(idem.OutcomeSucceeded):
		return exit(exitUsage, "--result goes with --outcome succeeded")
	case c.Error != "" && c.Outcome != string(idem.OutcomeFailed):
		return exit(exitUsage, "--error goes with --outcome failed")
	case c.Attempt < 0:
		return exit(exitUsage, "--attempt must be positive")
	case c.Attempt == 0 && c.Outcome == string(idem.OutcomeRetry):
		return exit(exitUsage, "--outcome retry needs --attempt: which one did you look into? idemd get shows the last one")
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	a, err := c.send(ctx, question{method: http.MethodPost, path: path + "/resolve", body: body})
	if err != nil {
		e := failed(err, exitUnknown)
		if e.code == exitUnknown {
			e.message += "\nIt is not known whether that was recorded. Look with idemd get, or do it again: a call that is decided says so."
		}
		return e
	}
	if c.JSON {
		if err := con.writeJSON(a); err != nil {
			return err
		}
	}
	call := a.call()
	if call == nil {
		return a.refused(exitUnknown)
	}
	if !c.JSON {
		con.say("%s, call %s", call.Status, plain(call.CallID))
	}
	return nil
}

// body builds the request. The result and the error go out byte for byte as they
// were given.
func (c *resolveCmd) body() ([]byte, error) {
	doc := struct {
		Outcome string `json:"outcome"`
		Attempt int    `json:"attempt,omitempty"`
		By      string `json:"by"`
		Note    string `json:"note,omitempty"`
	}{c.Outcome, c.Attempt, c.By, c.Note}
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	body = body[:len(body)-1] // its brace
	for _, m := range []struct{ name, value string }{{"result", c.Result}, {"error", c.Error}} {
		if m.value == "" {
			continue
		}
		if !json.Valid([]byte(m.value)) { // else it could bring members of its own
			return nil, exit(exitUsage, "--%s is not JSON", m.name)
		}
		body = fmt.Appendf(body, `,"%s":%s`, m.name, strings.TrimSpace(m.value))
	}
	return append(body, '}'), nil
}
