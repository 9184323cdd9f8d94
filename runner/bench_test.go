package runner_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/runner"
)

// lean is a store that costs next to nothing: no copies, no disk, no checks. Over
// it the runner's own cost shows.
type lean struct {
	idem.Store // nil: nothing else is asked

	mu      sync.Mutex
	calls   map[idem.Key]*idem.Call
	pending map[idem.Key]*idem.Call
}

func (l *lean) Update(_ context.Context, key idem.Key, t idem.Transition) (idem.Change, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch, err := t(l.calls[key])
	if err == nil && ch.Write {
		l.calls[key] = ch.After
		if ch.After.Status == idem.StatusPending {
			l.pending[key] = ch.After
		} else {
			delete(l.pending, key)
		}
	}
	return ch, err
}

func (l *lean) CallByKey(_ context.Context, key idem.Key) (idem.Call, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.calls[key]; c != nil {
		return *c, nil
	}
	return idem.Call{}, idem.ErrNotFound
}

func (l *lean) Due(_ context.Context, limit int, _ ...string) (due []idem.Due, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range l.pending {
		if len(due) == limit {
			break
		}
		due = append(due, idem.Due{ID: c.ID, Key: key, Tool: c.Tool, Status: c.Status, Attempt: c.Attempt})
	}
	return due, nil
}

func (l *lean) Totals(context.Context) (t idem.Totals, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Status[0] = int64(len(l.pending))
	return t, nil
}

func (l *lean) Newest(context.Context) (time.Time, error)     { return time.Time{}, nil }
func (l *lean) Held(context.Context, int) ([]idem.Due, error) { return nil, nil }
func (l *lean) Ready() error                                  { return nil }

// What the runner itself costs for one submission.
func BenchmarkRunnerSubmit(b *testing.B) {
	benches := []struct {
		name    string
		effects idem.Effects
		wait    time.Duration
		replay  bool
	}{
		{"one commit", idem.EffectsLocal, time.Minute, false},
		{"free worker", idem.EffectsNone, time.Minute, false},
		{"receipt", idem.EffectsNone, 0, false},
		{"replay", idem.EffectsLocal, 0, true},
		{"replay, wait", idem.EffectsLocal, time.Minute, true},
	}
	for _, bb := range benches {
		b.Run(bb.name, func(b *testing.B) {
			tool := &idem.Tool{Name: "t", Effects: bb.effects, Rerun: idem.RerunYes, Invoke: succeed}
			r, err := runner.New(&lean{calls: make(map[idem.Key]*idem.Call), pending: make(map[idem.Key]*idem.Call)}, runner.Options{Tools: []*idem.Tool{tool}})
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			if err := r.Start(ctx); err != nil {
				b.Fatal(err)
			}
			defer r.Stop(ctx)
			fp, err := idem.FingerprintOf("t", []byte(`{"n":1}`))
			if err != nil {
				b.Fatal(err)
			}
			sub := idem.Submission{Request: idem.Request{Key: keyOf("k"), Fingerprint: fp, Tool: "t", Args: []byte(`{"n":1}`)}, Wait: bb.wait}
			if _, err := r.Submit(ctx, idem.Submission{Request: sub.Request, Wait: time.Minute}); err != nil {
				b.Fatal(err)
			}
			var n atomic.Int64
			b.SetParallelism(16)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				sub := sub
				for pb.Next() {
					if !bb.replay {
						sub.Request.Key.Name = strconv.FormatInt(n.Add(1), 10)
					}
					if _, err := r.Submit(ctx, sub); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
