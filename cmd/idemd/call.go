package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	randv2 "math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

type callCmd struct {
	Tool string `arg:"" help:"The tool to call."`
	Args string `arg:"" name:"args-json" help:"Its arguments, a JSON object; - reads them from stdin, @FILE from a file."`

	// Not from the environment: a key that is left over there would give one
	// name to every intent.
	// Pointers, since one that is given and empty is a mistake: a variable of a
	// script that is not set.
	Key     *string `env:"-" placeholder:"K" help:"The name of your intent, the same every time you ask for it. This or --key-from is required, but for a tool that keeps no record: this program never makes one up."`
	KeyFrom *string `env:"-" name:"key-from" placeholder:"SCOPE[,TOOL,INTENT]" help:"Derive the key: whose intent it is and which occasion (user-7/order-1234), the tool, and what is wanted, as JSON; cut at the first two commas. With SCOPE alone the intent is what the tool declares to name it, taken from the arguments."`

	Wait    time.Duration `default:"10s" placeholder:"10s" help:"How long to wait for the end, up to 60s; 0 only hands the call in."`
	Retries uint          `default:"0" placeholder:"N" help:"How often to send it again, with the same key, after a lost answer or while the server is unavailable (none)."`

	RetryFailed bool `name:"retry-failed" help:"Let --retries also send it again when the tool failed and the same key may ask again, not before what the tool calls asked for."`

	Journal  string  `placeholder:"FILE" help:"Keep key and request in this file from before they are sent until the outcome is known, and ask first what became of them."`
	ClientID *string `name:"client-id" placeholder:"ID" help:"A name to store with the call."`
	Seq      *int64  `placeholder:"N" help:"A number to store with the call."`

	NewKeyOnRetry bool `env:"-" name:"new-key-on-retry" help:"Make every retry a new intent. It is here to show the damage that this does, and for nothing else."`

	remote
}

// maxRetries is how often the client may send again.
const maxRetries = 999

// maxArgs is how much is read of arguments, in bytes. The server takes less; that it
// refuses more is its word to say, but something that does not end is not read.
const maxArgs = 16 << 20

// noPatience is how long retries may go on: as long as there are any.
const noPatience = 24 * time.Hour

// Help is what the help of this command says on top.
func (*callCmd) Help() string {
	return `The result goes to stdout. After exit code 5 the call may or may not have been made: run the same command again with the same key, which does no harm, or look with find. A tool that failed for certain is exit code 1; one that failed and may have done its work all the same is 5.

--key-from SCOPE asks the server (GET /v1/tools) by which JSON pointers the tool declares its intent, and makes the key of the scope, the tool's name and an object with a member for each pointer: {"/order_id": …}. A pointer to nothing is an error. --key-from SCOPE,TOOL,INTENT asks nobody.

A tool that keeps no record needs no key. Without one nothing is sent again after a lost answer unless the server has said that the tool keeps none.

With retries or a journal it first asks how long the server remembers a key, and refuses to start if they could take longer. After a lost answer it asks for the call by its key before it sends it again.`
}

const noKey = `--key is missing or empty, and only a tool that keeps no record needs none

The key names what you want done, for example order-1234-charge. The server does
the same key only once, so it must come from your intent and be the same every
time you try. A key made up here would be a new one each time, and would protect
nothing. --key-from derives one from the intent.`

const newKeyWarning = `idemd: WARNING: --new-key-on-retry makes every retry a new intent. A retry after a lost
idemd: WARNING: answer will be carried out a second time: charged twice, sent twice. This flag
idemd: WARNING: exists to show that damage. Never use it for anything that matters.`

// Run calls the tool and exits by the state of the call.
func (c *callCmd) Run(ctx context.Context, con *console) error {
	if err := c.checkKeys(); err != nil {
		return err
	}
	if err := checkWait(c.Wait); err != nil {
		return err
	}
	switch {
	case c.Retries > maxRetries:
		return exit(exitUsage, "--retries: at most %d", maxRetries)
	case c.NewKeyOnRetry && c.Journal != "":
		return exit(exitUsage, "--new-key-on-retry and --journal contradict each other: the journal keeps the key")
	case c.NewKeyOnRetry && c.RetryFailed:
		return exit(exitUsage, "--new-key-on-retry and --retry-failed contradict each other: only the same key opens a failed call again")
	}
	args, err := c.args(con)
	if err != nil {
		return err
	}
	key, err := c.key(ctx, con, args)
	if err != nil {
		return err
	}
	r := client.Request{Tool: c.Tool, Args: args, Key: key, NoKey: key == "", ClientID: c.ClientID, Seq: c.Seq, HandIn: true}
	if c.NewKeyOnRetry {
		return c.damage(ctx, con, r)
	}

	p := client.DefaultPolicy()
	p.Tries, p.Wait, p.Total, p.RetryFailed = int(c.Retries)+1, c.Wait, noPatience, c.RetryFailed
	o := client.Options{Policy: p}
	if c.Journal != "" {
		j, err := client.OpenJournal(c.Journal)
		if err != nil {
			return journalExit(err)
		}
		defer func() {
			if n := len(j.Open()); n > 0 {
				con.say("idemd: the journal has %d calls whose outcome is not known; run their commands again", n)
			}
			if err := j.Close(); err != nil {
				con.say("idemd: %v", err)
			}
		}()
		o.Journal = j
	}
	var last client.Try
	o.Observe = func(a client.Answer) { last = a.Try }
	o.Pause = func(ctx context.Context, d time.Duration) error {
		next := "again with the same key"
		switch {
		case r.NoKey:
			next = "again"
		case last.Verdict.Action == client.ActionAsk:
			next = "asking for the call by its key"
		}
		con.say("idemd: try %d: %s; %s", last.Number, tryText(last), next)
		return con.pause(ctx, d)
	}
	of, err := c.client(con, o)
	if err != nil {
		return err
	}
	defer of.Close()
	out, err := of.Call(ctx, r)
	if err != nil {
		return c.explain(con, err)
	}
	return c.show(con, out.Answer)
}

// checkKeys refuses what cannot name an intent, before anything is read or asked.
func (c *callCmd) checkKeys() error {
	switch {
	case c.Key != nil && c.KeyFrom != nil:
		return exit(exitUsage, "--key and --key-from: one of them")
	case c.Key != nil && *c.Key == "", c.Key == nil && c.KeyFrom == nil && (c.Journal != "" || c.NewKeyOnRetry):
		return exit(exitUsage, noKey)
	case c.Key != nil:
		return checkKey("--key", *c.Key)
	case c.KeyFrom != nil && *c.KeyFrom == "":
		return exit(exitUsage, "--key-from: a key needs a scope: whose intent it is")
	case c.KeyFrom != nil && strings.Count(*c.KeyFrom, ",") == 1:
		return exit(exitUsage, "--key-from: want SCOPE or SCOPE,TOOL,INTENT")
	}
	return nil
}

// key is the name of the intent, given or derived; empty where there is none.
func (c *callCmd) key(ctx context.Context, con *console, args json.RawMessage) (string, error) {
	if c.Key != nil {
		return *c.Key, nil
	}
	if c.KeyFrom == nil {
		return "", nil
	}
	parts := strings.SplitN(*c.KeyFrom, ",", 3)
	if len(parts) == 1 {
		intent, err := c.declared(ctx, con, args)
		if err != nil {
			return "", err
		}
		parts = []string{parts[0], c.Tool, string(intent)}
	}
	key, err := idem.KeyFor(parts[0], parts[1], []byte(parts[2]))
	if err != nil {
		return "", exit(exitUsage, "--key-from: %s", message(err))
	}
	return key, nil
}

// declared is the part of the arguments that names the intent, as the tool declares
// it.
func (c *callCmd) declared(ctx context.Context, con *console, args json.RawMessage) (json.RawMessage, error) {
	of, err := c.client(con, client.Options{Policy: client.DefaultPolicy()})
	if err != nil {
		return nil, err
	}
	defer of.Close()
	tool, err := of.Tool(ctx, c.Tool)
	var e *client.Error
	switch {
	case errors.Is(err, idem.ErrNotFound):
		return nil, exit(exitUsage, "--key-from: the server has no tool %s", plain(c.Tool))
	case errors.As(err, &e):
		return nil, exitOf(e, exitUnavailable)
	case err != nil:
		return nil, err
	case len(tool.Intent) == 0:
		return nil, exit(exitUsage, "--key-from: the tool %s does not declare what names its intent; give SCOPE,TOOL,INTENT", plain(c.Tool))
	}
	intent, err := client.IntentOf(args, tool.Intent, tool.Rules)
	if err != nil {
		return nil, exit(exitUsage, "--key-from: %s", message(err))
	}
	return intent, nil
}

// args reads the arguments. They go out byte for byte as they were given, so
// that no number is rounded on the way.
func (c *callCmd) args(con *console) (json.RawMessage, error) {
	var from io.Reader
	if c.Args == "-" {
		from = con.stdin
	} else if file, ok := strings.CutPrefix(c.Args, "@"); ok {
		f, err := os.Open(file)
		if err != nil {
			return nil, exit(exitUsage, "cannot read the arguments: %v", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		from = f
	} else {
		return []byte(c.Args), nil
	}
	args, err := io.ReadAll(io.LimitReader(from, maxArgs+1))
	switch {
	case err != nil:
		return nil, exit(exitUsage, "cannot read the arguments: %v", err)
	case len(args) > maxArgs:
		return nil, exit(exitUsage, "the arguments are over %d MiB", maxArgs>>20)
	}
	return args, nil
}

// damage sends every retry under a new key, as so many clients do. It is not a
// way to use the client, which has none to do this; each request is a call of its
// own to it.
func (c *callCmd) damage(ctx context.Context, con *console, r client.Request) error {
	con.say("%s", newKeyWarning)
	p := client.DefaultPolicy()
	p.Tries, p.Wait = 1, c.Wait
	of, err := c.client(con, client.Options{Policy: p})
	if err != nil {
		return err
	}
	defer of.Close()
	intent, err := idem.ParseKey(idem.DefaultNamespace, r.Key)
	if err != nil {
		return exit(exitUsage, "--key: %s", message(err))
	}
	doubt := false
	for try := uint(0); ; try++ {
		if try > 0 {
			var b [8]byte
			_, _ = rand.Read(b[:]) // it never fails
			fresh := idem.Key{Name: intent.Name[:min(len(intent.Name), 200)] + "-" + hex.EncodeToString(b[:])}
			r.Key = fresh.HeaderValue()
		}
		a, err := of.Submit(ctx, r)
		if err == nil {
			return c.show(con, a)
		}
		again := a.Try.Verdict.Action == client.ActionAgain || a.Try.Verdict.Action == client.ActionAsk
		doubt = doubt || a.Try.Verdict.Effect == idem.DoubtUnknown
		if again && try < c.Retries && ctx.Err() == nil {
			con.say("idemd: try %d: %s; again with A NEW KEY", try+1, tryText(a.Try))
			growing := randv2.N(p.Backoff << min(try, 5))
			if con.pause(ctx, max(growing, min(a.Try.Reading.RetryAfter, p.RetryAfterCap))) == nil {
				continue
			}
		}
		var e *client.Error
		if doubt && errors.As(err, &e) {
			e.Effect = idem.DoubtUnknown
		}
		return c.explain(con, err)
	}
}

// show writes the result, and says how the call stands.
func (c *callCmd) show(con *console, a client.Answer) error {
	call := a.Call
	if c.JSON {
		if err := con.writeDocument(a.Body); err != nil {
			return err
		}
		return exitQuietly(exitCodeOf(call))
	}
	if call.Status == idem.StatusSucceeded {
		if err := con.print("%s\n", call.Result); err != nil {
			return err
		}
	}
	switch {
	case call.Unrecorded:
		con.say("%s, not recorded", call.Status)
	case call.Status.Ended() && a.Replayed:
		con.say("%s, attempt %d, call %s, given again", call.Status, call.Attempt, plain(call.CallID))
	default:
		con.say("%s, attempt %d, call %s", call.Status, call.Attempt, plain(call.CallID))
	}
	if f := call.Error; f != nil {
		con.say("%s", failureText(call))
		switch {
		case !f.InDoubt():
		case f.Retryable:
			con.say("It is not known whether it was done. Ask again with the same key; never ask for it under a new one.")
		default:
			con.say("It is not known whether it was done, and asking again will not tell. Look where the tool has its effect before you do anything else; never ask for it under a new key.")
		}
	}
	return exitQuietly(exitCodeOf(call))
}

// explain turns what came of the tries into an exit code and words.
func (c *callCmd) explain(con *console, err error) error {
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Call != nil && e.Call.Status == idem.StatusFailed { // for good, and in doubt
		return c.show(con, client.Answer{Call: e.Call, Body: e.Body})
	}
	if c.JSON {
		if err := con.writeDocument(e.Body); err != nil {
			return err
		}
	}
	if e.Code == client.CodeJournal {
		return journalExit(err)
	}
	// What ended it says more than that it ended.
	last := e
	if e.Code == client.CodeRetryExhausted {
		errors.As(e.Err, &last)
	}
	why := exitOf(last, exitUnknown)
	if last.Code == client.CodeInterrupted && e.Effect == idem.DoubtNone {
		why.code = exitUnavailable // nothing was sent
	}
	// That the server refuses, or cannot be reached, says nothing about an
	// earlier try whose answer was lost.
	if e.Effect == idem.DoubtUnknown && (why.code == exitUsage || why.code == exitUnavailable) {
		why.code = exitUnknown
	}
	switch {
	case last.Code == idem.CodeMissingKey && e.Effect != idem.DoubtUnknown:
		why.message = noKey
	case why.code == exitUnknown && e.Key == "":
		why.message += "\nIt is not known whether the tool ran. One that keeps no record may be run again."
	case last.Code == idem.CodeOutcomeUnknown:
		why.message += "\nAsking again does not help. Look later with idemd find: the server may find out by itself; else somebody has to, and decides with idemd resolve."
	case e.Effect == idem.DoubtUnknown && why.code == exitNotFound:
		why.message += "\nIt is not known whether the call was made, and asking again will not tell. Look into the ledger before you do anything else."
	case why.code == exitUnknown:
		why.message += "\nIt is not known whether the call was made. Ask again with the same key, or look with idemd find."
	}
	return why
}

// journalExit is a journal that does not take the call; nothing was sent.
func journalExit(err error) error {
	code := exitUsage
	switch {
	case errors.Is(err, client.ErrJournalBytes):
		code = exitConflict
	case errors.Is(err, client.ErrJournalInUse), errors.Is(err, client.ErrJournalFull), errors.Is(err, client.ErrJournalMoved),
		errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG), errors.Is(err, syscall.EIO):
		code = exitUnavailable // it may do at another time
	}
	var e *client.Error
	if errors.As(err, &e) && e.Err != nil {
		err = e.Err
	}
	return exit(code, "--journal: %s", strings.TrimPrefix(err.Error(), "client: "))
}

// tryText is what came of a try, for people.
func tryText(t client.Try) string {
	switch {
	case t.Reading.Code != "":
		return plain(string(t.Reading.Code)) + ": " + plain(t.Error)
	case t.Error != "":
		return plain(t.Error)
	case t.Reading.Call == idem.StatusFailed:
		return t.Verdict.Why
	default:
		return fmt.Sprintf("the answer is not idemd's (status %d)", t.Reading.Status)
	}
}
