package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
)

type auditCmd struct {
	ID string `arg:"" help:"The call's id, c_…"`

	listing
}

// Help is what the help of this command says on top.
func (*auditCmd) Help() string {
	return `A line for each event, oldest first: its number, the time, what happened, the attempt, who held the lease, and details where there are some.`
}

var auditColumns = []int{4, timeColumn, 12, 7, 22}

// Run shows the audit trail of a call.
func (c *auditCmd) Run(ctx context.Context, con *console) error {
	path, err := callPath(c.ID)
	if err != nil {
		return err
	}
	head := cells(auditColumns, "SEQ", "AT", "EVENT", "ATTEMPT", "OWNER", "DETAIL")
	return c.show(con, head, auditRow, func(emit func([]byte) error, flush func() error) error {
		_, err := c.pages(ctx, path+"/audit", "events", url.Values{}, 0, emit, flush)
		return err
	})
}

func auditRow(raw []byte) (string, error) {
	var e struct {
		Seq     int             `json:"seq"`
		At      string          `json:"at"`
		Event   string          `json:"event"`
		Attempt int             `json:"attempt"`
		Owner   string          `json:"owner"`
		Detail  json.RawMessage `json:"detail"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return "", err
	}
	detail := string(e.Detail)
	if detail == "null" {
		detail = ""
	}
	if e.Owner == "" {
		e.Owner = "-"
	}
	return cells(auditColumns, fmt.Sprint(e.Seq), e.At, e.Event, fmt.Sprint(e.Attempt), e.Owner, detail), nil
}
