package main

import (
	"context"
	"time"

	"github.com/idemd/idemd/client"
)

type findCmd struct {
	Key  string        `arg:"" help:"The key, as it was given to call."`
	Wait time.Duration `default:"0" placeholder:"10s" help:"How long to wait for the end, up to 60s (not at all)."`

	remote
}

// Run shows the call of the key and exits by its state.
func (c *findCmd) Run(ctx context.Context, con *console) error {
	if err := checkKey("KEY", c.Key); err != nil {
		return err
	}
	if err := checkWait(c.Wait); err != nil {
		return err
	}
	// By header, not by path: a key may hold bytes that servers and proxies
	// change in a path, and would then be another key.
	return c.look(con, c.Wait, func(of *client.Client) (client.Answer, error) { return of.Find(ctx, c.Key) })
}
