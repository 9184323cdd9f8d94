package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemd/idemd/idem"
)

// handshake checks before the first send that the tool's window covers the
// policy's span (R16). It returns the window, 0 where it cannot be learnt or there
// is none, and whether the server says that the tool keeps no record.
func (c *Client) handshake(ctx context.Context, f frozen) (window time.Duration, unrecorded bool, err error) {
	p := c.o.Policy
	if p.Tries == 1 && c.o.Journal == nil && !p.RequireWindow {
		return 0, false, nil // there is no retry to be covered
	}
	t, err := c.tool(ctx, f.tool)
	if err == nil && t.Unrecorded {
		return 0, true, nil // nothing is remembered, and nothing needs to be
	}
	if err == nil && !t.told {
		err = errors.New("the server tells no window for it")
	}
	switch {
	case err != nil && p.RequireWindow:
		return 0, false, &Error{
			Code: CodeWindowUnknown, Key: f.key.HeaderValue(), Effect: idem.DoubtNone, Err: err,
			Message: fmt.Sprintf("the window of the tool %q cannot be learnt, and the policy requires it: %v", f.tool, err),
		}
	case err != nil:
		c.log.LogAttrs(ctx, slog.LevelWarn, "the tool's window cannot be learnt; the retries may outlive it",
			slog.String("key", keyPrefix(f.key.Name)), slog.Duration("span", p.Span()), slog.String("err", err.Error()))
		return 0, false, nil
	case p.Span() > t.Window:
		return 0, false, &Error{
			Code: CodeWindowTooShort, Key: f.key.HeaderValue(), Effect: idem.DoubtNone,
			Message: fmt.Sprintf("the policy may retry for %v, and the tool %q remembers a key for %v: a retry could come too late", p.Span(), f.tool, t.Window),
		}
	}
	return t.Window, false, nil
}
