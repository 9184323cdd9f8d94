package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"
)

// keying is how a caller names its intents.
type keying string

const (
	noKey         keying = "none"
	stableKey     keying = "stable"      // of the intent, the same on every try
	keyPerAttempt keying = "per_attempt" // made anew for each try, which names nothing
)

// of is the key of a try, numbered from 1; empty for none.
func (k keying) of(key string, try int) string {
	switch k {
	case stableKey:
		return key
	case keyPerAttempt:
		return fmt.Sprintf("%s-try-%d", key, try)
	default:
		return ""
	}
}

// caller sends what it is told to a service of which nothing is known but its
// address, and takes every answer as [client.Classify] does. It is not a client
// to work with: it can be told to make the mistakes that package client does not
// offer, and it has no contract to go by, so that after a lost answer there is
// nothing to ask before the same request is sent again.
type caller struct {
	url       string
	keyHeader string
	keys      keying
	tries     int           // at most; 1 never tries again
	backoff   time.Duration // before each try but the first
	timeout   time.Duration // of a try
	send      http.RoundTripper
	header    http.Header // goes with every request

	// between, if it is there, runs before each try but the first of an intent.
	between func(ctx context.Context) error
}

// ask asks for an intent until it is done, refused, or the tries are used up.
// What became of it is in the tries; the error is that of ctx.
func (c *caller) ask(ctx context.Context, intent, key string, body []byte) ([]Try, error) {
	var tries []Try
	for n := 1; ; n++ {
		t := c.try(ctx, n, intent, key, body)
		if err := ctx.Err(); err != nil {
			return tries, err
		}
		again := t.Then == string(client.ActionAgain) || t.Then == string(client.ActionAsk)
		switch {
		case !again:
		case n >= c.tries && c.tries == 1:
			t.Then = "give up: it never tries again"
		case n >= c.tries:
			t.Then = "give up"
		case c.keys == noKey:
			t.Then = "again, no key"
		case c.keys == keyPerAttempt:
			t.Then = "again, a new key"
		default:
			t.Then = "again, the same key"
		}
		tries = append(tries, t)
		if !again || n >= c.tries {
			return tries, nil
		}
		if err := rest(ctx, c.backoff); err != nil {
			return tries, err
		}
		if c.between != nil {
			if err := c.between(ctx); err != nil {
				return tries, err
			}
		}
	}
}

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 1 << 20

// try sends one request.
func (c *caller) try(ctx context.Context, n int, intent, key string, body []byte) Try {
	t := Try{Number: n, Intent: intent, Key: c.keys.of(key, n), Request: "POST"}
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		t.Answer, t.Effect, t.Then = err.Error(), idem.DoubtNone, string(client.ActionStop)
		return t
	}
	req.GetBody = nil // else a request that nobody counted may be sent
	req.Header.Set("Content-Type", "application/json")
	maps.Copy(req.Header, c.header)
	if t.Key != "" {
		req.Header.Set(c.keyHeader, t.Key)
	}
	var reading client.Reading
	resp, err := c.send.RoundTrip(req)
	if err == nil {
		var raw []byte
		raw, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		_ = resp.Body.Close()
		if err == nil {
			if reading.Status = resp.StatusCode; resp.StatusCode/100 == 2 && resp.StatusCode != http.StatusAccepted {
				reading.Status = http.StatusOK // other services have other words for done
			}
			t.Status, t.Answer = resp.StatusCode, http.StatusText(resp.StatusCode)
			t.Replayed = resp.Header.Get(replayedHeader) == "true"
			if r := client.ParseRefusal(raw); r != nil {
				reading.Code, reading.Effect, t.Answer = r.Code, r.Effect, string(r.Code)
			}
			if call := client.ParseCall(raw); call != nil {
				reading.Call = call.Status
				if f := call.Error; f != nil {
					reading.Failure, reading.Retryable, reading.Effect = f.Code, f.Retryable, f.Effect
				}
			}
		}
	}
	if err != nil {
		reading.NotSent = errors.Is(err, client.ErrNotSent)
		t.Answer = noAnswer(err)
	}
	v := client.Classify(reading)
	t.Effect, t.Then = v.Effect, string(v.Action)
	if v.Action == client.ActionPoll {
		t.Then = "accepted" // where to ask for it is the service's own matter
	}
	return t
}

// noAnswer says why there is none, in words that do not change from run to run.
func noAnswer(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, client.ErrNotSent):
		return "no connection"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case strings.Contains(err.Error(), "reset"):
		return "no answer: reset"
	default:
		return "no answer: closed"
	}
}

// rest waits, unless ctx is over first.
func rest(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
