package tool

import (
	"context"
	"math/big"
	"time"

	"github.com/idemd/idemd/idem"
)

const sleepSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["seconds"],
  "properties": {
    "seconds": {"type": "number", "minimum": 0, "maximum": 10}
  }
}`

// sleep takes its time and has no effect: for waits, joins and time-outs.
func sleep() *idem.Tool {
	return &idem.Tool{
		Name:        "sleep",
		Description: "Sample: wait for up to ten seconds.",
		Effects:     idem.EffectsNone,
		Rerun:       idem.RerunYes,
		Schema:      []byte(sleepSchema),
		Check:       mustCheck(sleepSchema),
		Invoke: func(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
			a, err := parseArgs(inv.Args, "seconds")
			if err != nil {
				return idem.Result{}, err
			}
			d, err := a.duration("seconds", 10*time.Second)
			if err != nil {
				return idem.Result{}, err
			}
			if err := pause(ctx, d); err != nil {
				return idem.Result{}, err
			}
			out, err := idem.Canonical([]byte(`{"slept":` + string(a.get("seconds")) + `}`))
			if err != nil {
				return idem.Result{}, errArgs
			}
			return idem.Result{Output: out}, nil
		},
	}
}

// duration gives a number of seconds between 0 and limit, cut to nanoseconds.
func (a args) duration(name string, limit time.Duration) (time.Duration, error) {
	s, err := a.number(name)
	if err != nil {
		return 0, err
	}
	ns := s.Mul(s, big.NewRat(int64(time.Second), 1))
	if ns.Sign() < 0 || ns.Cmp(big.NewRat(int64(limit), 1)) > 0 {
		return 0, errArgs
	}
	return time.Duration(new(big.Int).Quo(ns.Num(), ns.Denom()).Int64()), nil
}

// pause waits, unless the context is over first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
