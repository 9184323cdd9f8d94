package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

type statsCmd struct {
	remote
}

// Help is what the help of this command says on top.
func (*statsCmd) Help() string {
	return `What looks wrong in the counts is said in words on stderr, without --json. It changes nothing about the exit code.`
}

// Run shows the counts.
func (c *statsCmd) Run(ctx context.Context, con *console) error {
	a, err := c.send(ctx, question{method: http.MethodGet, path: "/stats"})
	if err != nil {
		return failed(err, exitUnavailable)
	}
	if c.JSON {
		if err := con.writeJSON(a); err != nil {
			return err
		}
	}
	if a.status != http.StatusOK {
		return a.refused(exitUnavailable)
	}
	if c.JSON {
		return nil
	}
	lines, err := flatten(a.body)
	if err != nil {
		return a.refused(exitUnavailable)
	}
	if err := con.print("%s", lines); err != nil {
		return err
	}
	var doc statsDoc
	if json.Unmarshal(a.body, &doc) != nil {
		return nil // what it shows is all that can be said about it
	}
	if doc.suspectsKeys() {
		doc.unrecorded = c.unrecorded(ctx)
	}
	for _, hint := range doc.hints() {
		con.say("hint: %s", hint)
	}
	return nil
}

// unrecorded are the tools that keep no record; none where the server does not tell,
// which costs no more than a hint too many.
func (c *statsCmd) unrecorded(ctx context.Context) map[string]bool {
	a, err := c.send(ctx, question{method: http.MethodGet, path: pathTools})
	if err != nil {
		return nil
	}
	var doc struct {
		Tools []struct {
			Name     string `json:"name"`
			Recorded *bool  `json:"recorded"`
		} `json:"tools"`
	}
	if json.Unmarshal(a.body, &doc) != nil {
		return nil
	}
	names := make(map[string]bool)
	for _, t := range doc.Tools {
		names[t.Name] = t.Recorded != nil && !*t.Recorded
	}
	return names
}

// flatten writes an object of numbers and words as lines, in the order of the
// document: a line for each member, and one for all members of an object in it,
// zeros left out.
func flatten(doc []byte) ([]byte, error) {
	var (
		out   bytes.Buffer
		path  []string // names of the members that are open, the first one empty
		name  string
		named bool // the next token is the value of name
		line  []string
	)
	flush := func() {
		if len(line) > 0 {
			fmt.Fprintf(&out, "%-14s %s\n", strings.Join(path[1:], " "), strings.Join(line, " "))
		}
		line = nil
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	for first := true; first || len(path) > 0; first = false {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		switch {
		case tok == json.Delim('{'):
			flush()
			path, named = append(path, name), false
		case tok == json.Delim('}'):
			flush()
			path, named = path[:len(path)-1], false
		case first || tok == json.Delim('['):
			return nil, errors.New("not an object of numbers and words")
		case !named:
			name, named = plain(fmt.Sprint(tok)), true
		default:
			named = false
			switch value := plain(fmt.Sprint(tok)); {
			case len(path) == 1:
				fmt.Fprintf(&out, "%-14s %s\n", name, value)
			case value != "0":
				line = append(line, name+"="+value)
			}
		}
	}
	return out.Bytes(), nil
}
