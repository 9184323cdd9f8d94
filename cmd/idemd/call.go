package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
)

type callCmd struct {
	Tool string `arg:"" help:"The tool to call."`
	Args string `arg:"" name:"args-json" help:"Its arguments, a JSON object; - reads them from stdin, @FILE from a file."`

	// Not from the environment: a key that is left over there would give one
	// name to every intent.
	Key      string        `env:"-" placeholder:"K" help:"The name of your intent, the same every time you ask for it. Required: this program never makes one up."`
	Wait     time.Duration `default:"10s" placeholder:"10s" help:"How long to wait for the end, up to 60s; 0 only hands the call in."`
	Retries  uint          `default:"0" placeholder:"N" help:"How often to try again, with the same key, after a lost answer or while the server is unavailable (none)."`
	ClientID *string       `name:"client-id" placeholder:"ID" help:"A name to store with the call."`
	Seq      *int64        `placeholder:"N" help:"A number to store with the call."`

	remote
}

// Help is what the help of this command says on top.
func (*callCmd) Help() string {
	return `The result goes to stdout. After exit code 5 the call may or may not have been made: run the same command again with the same key, which does no harm, or look with find.`
}

const noKey = `--key is missing or empty

The key names what you want done, for example order-1234-charge. The server does
the same key only once, so it must come from your intent and be the same every
time you try. A key made up here would be a new one each time, and would protect
nothing.`

// Run calls the tool and exits by the state of the call.
func (c *callCmd) Run(ctx context.Context, con *console) error {
	if c.Key == "" {
		return exit(exitUsage, noKey)
	}
	if err := errors.Join(checkKey("--key", c.Key), checkWait(c.Wait)); err != nil {
		return exit(exitUsage, "%v", err)
	}
	body, err := c.body(con)
	if err != nil {
		return err
	}
	// Built once: every try carries the same key and the same bytes.
	q := question{method: http.MethodPost, path: pathCalls, key: c.Key, wait: c.Wait, body: body}

	doubt := false // a try was sent and its answer lost
	for try := uint(0); ; try++ {
		a, err := c.send(ctx, q)
		if a != nil && a.call() != nil {
			return c.show(con, a)
		}
		var why *exitError
		if err != nil {
			why = failed(err, exitUnknown)
		} else {
			why = a.refused(exitUnknown)
		}
		held := a.held()
		doubt = doubt || why.code == exitUnknown && !held
		again := why.code == exitUnavailable || why.code == exitUnknown && !held
		if again && try < c.Retries && ctx.Err() == nil {
			con.say("idemd: try %d: %s; again with the same key", try+1, why.message)
			if con.pause(ctx, max(a.retryAfter(), backoff(try))) == nil {
				continue
			}
		}
		if c.JSON {
			if err := con.writeJSON(a); err != nil {
				return err
			}
		}
		// That the server refuses, or cannot be reached, says nothing about an
		// earlier try whose answer was lost.
		if doubt && (why.code == exitUsage || why.code == exitUnavailable) {
			why.code = exitUnknown
		}
		if held {
			why.message += "\nAsking again does not help. Look later with idemd find: the server may find out by itself; else somebody has to, and decides with idemd resolve."
		} else if why.code == exitUnknown {
			why.message += "\nIt is not known whether the call was made. Ask again with the same key, or look with idemd find."
		}
		return why
	}
}

// body builds the request. The arguments go out byte for byte as they were
// given, so that no number is rounded on the way.
func (c *callCmd) body(con *console) ([]byte, error) {
	args := []byte(c.Args)
	var err error
	if c.Args == "-" {
		args, err = io.ReadAll(con.stdin)
	} else if file, ok := strings.CutPrefix(c.Args, "@"); ok {
		args, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, exit(exitUsage, "cannot read the arguments: %v", err)
	}
	if _, err := idem.Canonical(args); err != nil { // what the server would refuse
		return nil, exit(exitUsage, "the arguments: %s", message(err))
	}
	tool, err := json.Marshal(c.Tool)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"tool":%s,"args":%s`, tool, bytes.TrimSpace(args))
	if c.ClientID != nil {
		id, err := json.Marshal(*c.ClientID)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,"client_id":%s`, id)
	}
	if c.Seq != nil {
		fmt.Fprintf(&b, `,"seq":%d`, *c.Seq)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// show writes the result, and says how the call stands.
func (c *callCmd) show(con *console, a *answer) error {
	call := a.call()
	if c.JSON {
		if err := con.writeJSON(a); err != nil {
			return err
		}
		return exitQuietly(call.exitCode())
	}
	if call.Status == idem.StatusSucceeded {
		if err := con.print("%s\n", call.Result); err != nil {
			return err
		}
	}
	again := ""
	if call.Status.Ended() && a.header.Get("Idempotent-Replayed") == "true" {
		again = ", given again"
	}
	con.say("%s, attempt %d, call %s%s", call.Status, call.Attempt, plain(call.CallID), again)
	if call.Error != nil {
		con.say("%s", call.Error)
	}
	return exitQuietly(call.exitCode())
}

// backoff is how long to wait before trying again, where the server does not
// ask for more: growing, bounded, and not the same for everyone.
func backoff(try uint) time.Duration {
	d := 5 * time.Second
	if try < 4 {
		d = 250 * time.Millisecond << try
	}
	return d/2 + rand.N(d/2)
}
