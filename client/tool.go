package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/idemd/idemd/idem"
)

// Tool is what a server tells of a tool, as far as a client has a use for it.
type Tool struct {
	Name string

	// Unrecorded says that no call of it is stored: it needs no key, and may be
	// called again after a lost answer.
	Unrecorded bool

	// Window is how long a key is remembered after the end of its call; 0 where the
	// server does not tell.
	Window time.Duration

	// Intent are JSON pointers to the args that name the intent (see [IntentOf]);
	// empty where the tool names none.
	Intent []string

	// Rules say which differences between args mean nothing to the tool; nil where
	// all count.
	Rules *idem.Rules

	told bool // the window was
}

// tools are the server's tools, as far as they are known.
type tools struct {
	turn chan struct{} // whoever holds it may read, write and ask
	of   map[string]Tool
}

func newTools() tools { return tools{turn: make(chan struct{}, 1), of: map[string]Tool{}} }

var errNoTool = errors.New("the server has no such tool")

// Tool asks once for what a server tells of a tool; what it told before is
// remembered. The error is an *Error: not_found where there is no such tool, and
// nothing was called.
func (c *Client) Tool(ctx context.Context, name string) (Tool, error) {
	ctx, leave, err := c.enter(ctx, "")
	if err != nil {
		return Tool{}, err
	}
	defer leave()
	t, err := c.tool(ctx, name)
	if err == nil {
		return t, nil
	}
	e := &Error{Code: CodeNoAnswer, Message: err.Error(), Effect: idem.DoubtNone, Err: err}
	switch {
	case errors.Is(err, errNoTool):
		e.Code = idem.CodeNotFound
	case errors.Is(err, ErrNotSent):
		e.Code = CodeNotSent
	}
	return Tool{}, e
}

// tool is what the server tells of a tool. It asks once for all tools, and again for
// one that was not among them. Nobody waits longer for it, others who ask included,
// than one question may take.
func (c *Client) tool(ctx context.Context, name string) (Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Policy.Timeout)
	defer cancel()
	select {
	case c.tools.turn <- struct{}{}:
	case <-ctx.Done():
		return Tool{}, cause(ctx.Err())
	}
	defer func() { <-c.tools.turn }()
	if t, known := c.tools.of[name]; known {
		return t, nil
	}
	got, err := c.exchange(ctx, query{path: pathTools}, 0)
	if err != nil {
		return Tool{}, err
	}
	if got.status != http.StatusOK {
		return Tool{}, fmt.Errorf("GET %s: status %d", pathTools, got.status)
	}
	of := parseTools(got.body)
	if of == nil {
		return Tool{}, fmt.Errorf("GET %s: the answer is not idemd's", pathTools)
	}
	c.tools.of = of
	t, known := of[name]
	if !known {
		return Tool{}, errNoTool
	}
	return t, nil
}

// parseTools reads the list of tools; nil where it is none. Older servers tell less:
// what they do not say, a tool does not have, and every tool of theirs is recorded.
func parseTools(body []byte) map[string]Tool {
	var doc struct {
		Tools *[]struct {
			Name     string   `json:"name"`
			Window   string   `json:"window"`
			Recorded *bool    `json:"recorded"`
			Intent   []string `json:"intent"`

			Fingerprint struct{ Ignore, Trim, NFC []string } `json:"fingerprint"`
		} `json:"tools"`
	}
	if json.Unmarshal(body, &doc) != nil || doc.Tools == nil {
		return nil
	}
	of := make(map[string]Tool, len(*doc.Tools))
	for _, d := range *doc.Tools {
		t := Tool{Name: d.Name, Intent: d.Intent, Unrecorded: d.Recorded != nil && !*d.Recorded}
		if rules := idem.Rules(d.Fingerprint); !rules.ID().IsZero() {
			t.Rules = &rules
		}
		if w, err := time.ParseDuration(d.Window); err == nil { // none at all is too short for anybody
			t.Window, t.told = w, true
		}
		of[t.Name] = t
	}
	return of
}
