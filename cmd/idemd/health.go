package main

import (
	"context"
	"encoding/json"
	"net/http"
)

type healthCmd struct {
	remote
}

// Help is what the help of this command says on top.
func (*healthCmd) Help() string {
	return `Exits with 0 if the server lives and accepts calls, else with 7. Calls that are held are told, and change nothing about that. With --json it writes what /readyz answers.`
}

// Run asks whether the server lives, and whether it accepts calls.
func (c *healthCmd) Run(ctx context.Context, con *console) error {
	stranger := exit(exitUnavailable, "%s answers, and is not idemd; check --url", c.URL)
	a, err := c.send(ctx, question{method: http.MethodGet, path: "/healthz"})
	if err != nil {
		return failed(err, exitUnavailable)
	}
	if a.status != http.StatusOK {
		return exit(exitUnavailable, "%s does not live: status %d", c.URL, a.status)
	}
	if a.healthDoc().Status != "ok" { // any web server may answer 200
		return stranger
	}
	a, err = c.send(ctx, question{method: http.MethodGet, path: "/readyz"})
	if err != nil {
		return failed(err, exitUnavailable)
	}
	if c.JSON {
		if err := con.writeJSON(a); err != nil {
			return err
		}
	}
	if a.status != http.StatusOK {
		why := a.refused(exitUnavailable).message
		return exit(exitUnavailable, "%s lives and accepts no calls: %s", c.URL, why)
	}
	if a.healthDoc().Status != "ready" {
		return stranger
	}
	if c.JSON {
		return nil
	}
	con.say("%s lives and accepts calls", c.URL)
	if n := a.healthDoc().Held; n > 0 {
		con.say("%d calls are held and wait for a decision: idemd list --status held", n)
	}
	return nil
}

// healthDoc is what /healthz or /readyz answers.
type healthDoc struct {
	Status string `json:"status"`
	Held   int64  `json:"held"` // of /readyz; null where it is not known
}

func (a *answer) healthDoc() (doc healthDoc) {
	if json.Unmarshal(a.body, &doc) != nil {
		return healthDoc{}
	}
	return doc
}
