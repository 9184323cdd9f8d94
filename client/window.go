package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/idemd/idemd/idem"
)

// windows are the windows of the server's tools, as far as they are known.
type windows struct {
	turn chan struct{} // whoever holds it may read, write and ask
	of   map[string]time.Duration
}

func newWindows() windows {
	return windows{turn: make(chan struct{}, 1), of: map[string]time.Duration{}}
}

// handshake checks before the first send that the tool's window covers the
// policy's span (R16). It returns the window; 0 where it cannot be learnt.
func (c *Client) handshake(ctx context.Context, f frozen) (time.Duration, error) {
	p := c.o.Policy
	if p.Tries == 1 && c.o.Journal == nil && !p.RequireWindow {
		return 0, nil // there is no retry to be covered
	}
	window, err := c.window(ctx, f.tool)
	switch {
	case err != nil && p.RequireWindow:
		return 0, &Error{
			Code: CodeWindowUnknown, Key: f.key.HeaderValue(), Effect: idem.DoubtNone, Err: err,
			Message: fmt.Sprintf("the window of the tool %q cannot be learnt, and the policy requires it: %v", f.tool, err),
		}
	case err != nil:
		c.log.LogAttrs(ctx, slog.LevelWarn, "the tool's window cannot be learnt; the retries may outlive it",
			slog.String("key", keyPrefix(f.key.Name)), slog.Duration("span", p.Span()), slog.String("err", err.Error()))
		return 0, nil
	case p.Span() > window:
		return 0, &Error{
			Code: CodeWindowTooShort, Key: f.key.HeaderValue(), Effect: idem.DoubtNone,
			Message: fmt.Sprintf("the policy may retry for %v, and the tool %q remembers a key for %v: a retry could come too late", p.Span(), f.tool, window),
		}
	}
	return window, nil
}

// window is how long the server remembers a key of a tool. It asks once for all
// tools, and again for a tool that was not among them. Nobody waits longer for it,
// others who ask included, than one question may take.
func (c *Client) window(ctx context.Context, tool string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Policy.Timeout)
	defer cancel()
	select {
	case c.windows.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, cause(ctx.Err())
	}
	defer func() { <-c.windows.turn }()
	if w, known := c.windows.of[tool]; known {
		return w, nil
	}
	got, err := c.exchange(ctx, query{path: pathTools}, 0)
	if err != nil {
		return 0, err
	}
	if got.status != http.StatusOK {
		return 0, fmt.Errorf("GET %s: status %d", pathTools, got.status)
	}
	var doc struct {
		Tools []struct{ Name, Window string }
	}
	if json.Unmarshal(got.body, &doc) != nil {
		return 0, fmt.Errorf("GET %s: the answer is not idemd's", pathTools)
	}
	of := make(map[string]time.Duration, len(doc.Tools))
	for _, t := range doc.Tools {
		if w, err := time.ParseDuration(t.Window); err == nil { // none at all is too short for anybody
			of[t.Name] = w
		}
	}
	c.windows.of = of
	w, known := of[tool]
	if !known {
		return 0, errors.New("the server tells no window for it")
	}
	return w, nil
}
