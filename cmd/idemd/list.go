package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/idemd/idemd/idem"
)

type listCmd struct {
	Status string `placeholder:"STATUS" help:"Only calls that are pending, running, held, succeeded or failed."`
	Tool   string `placeholder:"TOOL" help:"Only calls of a tool."`
	// Not from the environment: where call takes its --client-id from there, list
	// would leave out what others did without a word.
	ClientID string `name:"client-id" env:"-" placeholder:"ID" help:"Only calls of a client (never from the environment, where it may be meant for call)."`
	Limit    int    `default:"100" placeholder:"N" help:"How many calls at most (${default})."`
	All      bool   `help:"All of them, however many there are."`

	listing
}

// Help is what the help of this command says on top.
func (*listCmd) Help() string {
	return `A line for each call: its id, when it was created, its status, the attempts begun so far, the tool and the key. EFFECT says of what failed or is held whether it may have been done all the same: none, or unknown. With --json a line is the whole call, for jq:

  idemd list --status failed --all --json | jq -r 'select(.error.retryable) | .idem_key'`
}

var listColumns = []int{34, timeColumn, 9, 7, 7, 16}

// Run lists calls.
func (c *listCmd) Run(ctx context.Context, con *console) error {
	if c.Status != "" && !idem.Status(c.Status).Valid() {
		return exit(exitUsage, "--status: must be one of %v", idem.Statuses)
	}
	if c.Limit < 1 {
		return exit(exitUsage, "--limit: must be at least 1")
	}
	query := url.Values{}
	for name, v := range map[string]string{"status": c.Status, "tool": c.Tool, "client_id": c.ClientID} {
		if v != "" {
			query.Set(name, v)
		}
	}
	limit := c.Limit
	if c.All {
		limit = 0
	}
	more := false
	head := cells(listColumns, "CALL", "CREATED", "STATUS", "ATTEMPT", "EFFECT", "TOOL", "KEY")
	err := c.show(con, head, listRow, func(emit func([]byte) error, flush func() error) (err error) {
		more, err = c.pages(ctx, pathCalls, "calls", query, limit, emit, flush)
		return err
	})
	if err == nil && more {
		con.say("idemd: there are more; --limit or --all shows them")
	}
	return err
}

func listRow(raw []byte) (string, error) {
	var c callDoc
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", err
	}
	effect := "-"
	switch {
	case c.Error == nil:
	case c.Error.InDoubt(), c.Status == idem.StatusHeld:
		effect = string(idem.DoubtUnknown)
	default:
		effect = string(idem.DoubtNone)
	}
	return cells(listColumns, c.CallID, c.CreatedAt, string(c.Status), fmt.Sprint(c.Attempt), effect, c.Tool, c.Key), nil
}
