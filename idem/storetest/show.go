package storetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/idem"
)

// Records are compared as text: a difference is then readable at once, and what
// does not count (nil or empty args, a time's location) does not show.

// showCall shows all of a call but the end of its lease: that decides nothing
// and moves with every renewal, so only its presence is shown.
func showCall(c *idem.Call) string {
	if c == nil {
		return "no call"
	}
	args := "none"
	if len(c.Args) > 0 {
		args = showBytes(c.Args)
	}
	return fmt.Sprintf("%v %q/%q fp %v rules %v tool %q args %s client %s seq %s created %s: revision %d %s attempt %d crashes %d effects %q rerun %q settle %v target %d in doubt %t "+
		"owner %q lease %t updated %s claimed %s ended %s expires %s deliveries %d result %s failure %s tombstone %t",
		c.ID, c.Key.Namespace, c.Key.Name, c.Fingerprint, c.Rules, c.Tool, args, showPtr(c.ClientID), showPtr(c.Seq), showTime(c.CreatedAt),
		c.Revision, c.Status, c.Attempt, c.Crashes, c.Effects, c.Rerun, c.Settle, c.Target, c.InDoubt, c.Owner, !c.LeaseUntil.IsZero(),
		showTime(c.UpdatedAt), showTime(c.ClaimedAt), showTime(c.EndedAt), showTime(c.ExpiresAt),
		c.Deliveries, showBytes(c.Result), showPtr(c.Failure), c.Tombstone)
}

func showEvent(e idem.Event) string {
	return fmt.Sprintf("%d %s %s attempt %d owner %q detail %s", e.Seq, showTime(e.At), e.Name, e.Attempt, e.Owner, showBytes(e.Detail))
}

func showEffect(e *idem.Effect) string {
	if e == nil {
		return "no effect"
	}
	return fmt.Sprintf("%s %v %q/%q tool %q amount %s created %s",
		e.ID, e.CallID, e.Key.Namespace, e.Key.Name, e.Tool, showPtr(e.Amount), showTime(e.CreatedAt))
}

func showDue(d idem.Due) string {
	return fmt.Sprintf("%v %q/%q tool %q %s attempt %d crashes %d owner %q effects %q created %s recovered %t",
		d.ID, d.Key.Namespace, d.Key.Name, d.Tool, d.Status, d.Attempt, d.Crashes, d.Owner, d.Effects,
		showTime(d.CreatedAt), d.Recovered)
}

// showChange shows what a change decided. Its events have no numbers yet.
func showChange(ch idem.Change, err error) string {
	s := fmt.Sprintf("error %v, verdict %v, write %t, lease %v\n  before %s\n  after %s\n  %s",
		err, ch.Verdict, ch.Write, ch.Lease, showCall(ch.Before), showCall(ch.After), showEffect(ch.Effect))
	for _, e := range ch.Events {
		e.Seq = 0
		s += "\n  event " + showEvent(e)
	}
	return s
}

func showTime(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func showBytes(b []byte) string {
	switch {
	case b == nil:
		return "none"
	case len(b) <= 200:
		return fmt.Sprintf("%q", b)
	default:
		return fmt.Sprintf("%d bytes of digest %x", len(b), sha256.Sum256(b))
	}
}

func showPtr[T any](p *T) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%#v", *p)
}

// image reads everything that a store at rest shows, in words. Whether a held
// call was left by an earlier life is nobody's business, so that is left out.
func image(ctx context.Context, s idem.Store) ([]string, error) {
	var lines []string
	for _, ns := range namespaces {
		calls, err := allCalls(ctx, s, ns, idem.Query{Limit: pageSize})
		if err != nil {
			return nil, err
		}
		for _, c := range calls {
			lines = append(lines, "listed "+showCall(&c))
			byID, err := s.CallByID(ctx, ns, c.ID) // which knows the fingerprint
			if err != nil {
				return nil, err
			}
			lines = append(lines, "call "+showCall(&byID))
			events, err := allEvents(ctx, s, ns, c.ID, pageSize)
			if err != nil {
				return nil, err
			}
			for _, e := range events {
				lines = append(lines, fmt.Sprintf("event of %v: %s", c.ID, showEvent(e)))
			}
		}
		effects, err := allEffects(ctx, s, ns, pageSize)
		if err != nil {
			return nil, err
		}
		for _, e := range effects {
			lines = append(lines, "effect "+showEffect(&e))
		}
	}
	waiting, err := queues(ctx, s)
	if err != nil {
		return nil, err
	}
	lines = append(lines, waiting...)
	rules, err := s.Rules(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		lines = append(lines, fmt.Sprintf("rules %v %s", r.ID(), r.Text()))
	}
	newest, err := s.Newest(ctx)
	if err != nil {
		return nil, err
	}
	return append(lines, "newest "+showTime(newest)), nil
}

// queues reads what waits for somebody, and the totals.
func queues(ctx context.Context, s idem.Store) ([]string, error) {
	var lines []string
	due, err := s.Due(ctx, 0)
	if err != nil {
		return nil, err
	}
	for _, d := range due {
		lines = append(lines, "due "+showDue(d))
	}
	held, err := s.Held(ctx, 0)
	if err != nil {
		return nil, err
	}
	for _, d := range held {
		d.Recovered = false
		lines = append(lines, "held "+showDue(d))
	}
	totals, err := s.Totals(ctx)
	if err != nil {
		return nil, err
	}
	return append(lines, fmt.Sprintf("totals %+v", totals)), nil
}

// differ says where two images part, or "".
func differ(want, got []string) string {
	if slices.Equal(want, got) {
		return ""
	}
	for i := range max(len(want), len(got)) {
		w, g := "nothing", "nothing"
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if w != g {
			return fmt.Sprintf("line %d of %d is\n%s\nwant\n%s", i, len(got), g, w)
		}
	}
	return ""
}
