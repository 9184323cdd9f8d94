package main

import (
	"context"
	"encoding/json"
	"net/url"
)

type effectsCmd struct {
	listing
}

// Help is what the help of this command says on top.
func (*effectsCmd) Help() string {
	return `A line for each effect, in the order of the calls: its id, the call's id, when it was recorded, the amount, the tool and the key. With --json the server streams the whole ledger, and --timeout is how long it may send nothing. A ledger that is cut short is never taken for a whole one: the exit code is 7.`
}

const pathEffects = "/v1/effects"

var effectsColumns = []int{36, 34, timeColumn, 10, 16}

// Run shows the whole ledger.
func (c *effectsCmd) Run(ctx context.Context, con *console) error {
	head := cells(effectsColumns, "EFFECT", "CALL", "CREATED", "AMOUNT", "TOOL", "KEY")
	return c.show(con, head, effectsRow, func(emit func([]byte) error, flush func() error) error {
		if c.JSON {
			return c.stream(ctx, pathEffects, emit, flush)
		}
		// A person may read the first page for an hour, and no server keeps a
		// stream open for that.
		_, err := c.pages(ctx, pathEffects, "effects", url.Values{}, 0, emit, flush)
		return err
	})
}

func effectsRow(raw []byte) (string, error) {
	var e struct {
		ID        string       `json:"effect_id"`
		CallID    string       `json:"call_id"`
		Key       string       `json:"idem_key"`
		Tool      string       `json:"tool"`
		Amount    *json.Number `json:"amount"`
		CreatedAt string       `json:"created_at"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return "", err
	}
	amount := "-"
	if e.Amount != nil {
		amount = e.Amount.String()
	}
	return cells(effectsColumns, e.ID, e.CallID, e.CreatedAt, amount, e.Tool, e.Key), nil
}
