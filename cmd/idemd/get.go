package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

type getCmd struct {
	ID   string        `arg:"" help:"The call's id, c_…"`
	Wait time.Duration `default:"0" placeholder:"10s" help:"How long to wait for the end, up to 60s (not at all)."`

	remote
}

// Run shows the call and exits by its state.
func (c *getCmd) Run(ctx context.Context, con *console) error {
	if err := checkWait(c.Wait); err != nil {
		return err
	}
	return c.look(con, c.Wait, func(of *client.Client) (client.Answer, error) { return of.Get(ctx, c.ID) })
}

// callPath is where a call is found. An id that cannot be one is not sent: the
// path that it would make may mean something else.
func callPath(id string) (string, error) {
	parsed, err := idem.ParseCallID(id)
	if err != nil {
		return "", exit(exitNotFound, "no such call: an id is c_ and 32 hex digits")
	}
	return pathCalls + "/" + parsed.String(), nil
}

// look asks for a call, shows it, and exits by its state.
func (r *remote) look(con *console, wait time.Duration, ask func(*client.Client) (client.Answer, error)) error {
	p := client.DefaultPolicy()
	p.Tries, p.Wait = 1, wait
	of, err := r.client(con, client.Options{Policy: p})
	if err != nil {
		return err
	}
	defer of.Close()
	a, err := ask(of)
	if r.JSON {
		if err := con.writeDocument(a.Body); err != nil {
			return err
		}
	}
	if a.Call == nil {
		var e *client.Error
		if !errors.As(err, &e) {
			return err
		}
		return exitOf(e, exitUnavailable)
	}
	if !r.JSON {
		if err := con.writeCall(a.Call); err != nil {
			return err
		}
	}
	return exitQuietly(exitCodeOf(a.Call))
}

// writeCall writes a call, a member a line; what it does not have is left out.
func (c *console) writeCall(call *callDoc) error {
	lines := [][2]string{
		{"call", call.CallID},
		{"key", call.Key},
		{"tool", call.Tool},
		{"status", string(call.Status)},
		{"attempt", fmt.Sprint(call.Attempt)},
		{"effect", call.EffectID},
		{"created", call.CreatedAt},
		{"updated", call.UpdatedAt},
	}
	if call.ExpiresAt != nil {
		lines = append(lines, [2]string{"expires", *call.ExpiresAt})
	}
	if call.Crashes != 0 {
		lines = append(lines, [2]string{"crashes", fmt.Sprint(call.Crashes)})
	}
	if call.Status == idem.StatusSucceeded {
		lines = append(lines, [2]string{"result", string(call.Result)})
	}
	if call.Error != nil {
		lines = append(lines, [2]string{"error", failureText(call)})
	}
	for _, l := range lines {
		if err := c.print("%-8s %s\n", l[0], plain(l[1])); err != nil {
			return err
		}
	}
	return nil
}
