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
	return con.print("%s", lines)
}

// flatten writes an object of numbers and words as lines, in the order of the
// document: the members' names, then the value.
func flatten(doc []byte) ([]byte, error) {
	var (
		out  bytes.Buffer
		path []string // names of the members that are open
		name string
		key  bool // the next token is a name, not a value
	)
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	for first := true; first || len(path) > 0; first = false {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		switch {
		case tok == json.Delim('{'):
			path, key = append(path, name), true
		case tok == json.Delim('}'):
			path, key = path[:len(path)-1], true
		case first || tok == json.Delim('['):
			return nil, errors.New("not an object of numbers and words")
		case key:
			name, key = fmt.Sprint(tok), false
		default:
			names := append(path[1:len(path):len(path)], name)
			fmt.Fprintf(&out, "%-24s %s\n", plain(strings.Join(names, " ")), plain(fmt.Sprint(tok)))
			key = true
		}
	}
	return out.Bytes(), nil
}
