package kv

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// ReadEffects hands every effect of a store that nobody has open to each:
// namespace after namespace, and in the order of the calls within one. An error
// of each ends it. The directory and the options are treated, and memory is used,
// as by [Inspect].
//
// A ledger with a row that cannot be read is an error, never a shorter ledger;
// what else is wrong with a store only Inspect finds. Errors: those of each, and
// those of Inspect.
func ReadEffects(ctx context.Context, o Options, each func(idem.Effect) error) error {
	return readStopped(ctx, o, func(in *inspection, names map[nsid]idem.Namespace) error {
		return in.rows([]byte{prefixEffect}, func(it *pebble.Iterator) error {
			t, id, rest, ok := parseScoped(it.Key())
			ns, known := names[t]
			if !ok || !known || len(rest) > 0 {
				return fmt.Errorf("%w: the key of an effect's row", errCorrupt)
			}
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			e, err := decodeEffect(v)
			if err != nil {
				return err
			}
			e.CallID, e.Key.Namespace = id, ns
			return each(e)
		})
	})
}

// ReadTrails hands every call of a store that nobody has open to each, with its
// whole audit trail, otherwise as [ReadEffects] does. Of the call it gives what
// List does.
func ReadTrails(ctx context.Context, o Options, each func(idem.Call, []idem.Event) error) error {
	return readStopped(ctx, o, func(in *inspection, names map[nsid]idem.Namespace) error {
		var (
			cur     trailRows
			pending bool
		)
		end := func() error {
			if !pending {
				return nil
			}
			if !cur.request {
				return fmt.Errorf("%w: a call without a request", errCorrupt)
			}
			if !cur.state {
				makePlain(&cur.call)
			}
			return each(cur.call, cur.events)
		}
		err := in.rows([]byte{prefixCall}, func(it *pebble.Iterator) error {
			t, id, row, ok := parseScoped(it.Key())
			ns, known := names[t]
			if !ok || !known || len(row) == 0 {
				return fmt.Errorf("%w: the key of a call's row", errCorrupt)
			}
			if !pending || cur.call.ID != id || cur.call.Key.Namespace != ns {
				if err := end(); err != nil {
					return err
				}
				cur, pending = trailRows{call: idem.Call{ID: id, Key: idem.Key{Namespace: ns}}}, true
			}
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			return cur.add(row, v)
		})
		if err != nil {
			return err
		}
		return end()
	})
}

// trailRows is what has been read of a call.
type trailRows struct {
	call           idem.Call
	request, state bool // there is such a row
	events         []idem.Event
}

func (c *trailRows) add(row, v []byte) (err error) {
	seq, isAudit := parseAudit(row)
	switch {
	case len(row) == 1 && row[0] == rowRequest:
		c.request = true
		return decodeRequest(v, &c.call, false)
	case len(row) == 1 && row[0] == rowState:
		c.state = true
		_, err := decodeState(v, &c.call)
		return err
	case isAudit:
		c.events, err = decodeEvents(c.events, v, seq, 0, math.MaxInt)
		return err
	default:
		return fmt.Errorf("%w: a call's row of an unknown kind", errCorrupt)
	}
}

// readStopped opens a store that nobody has open for reading, and gives read the
// names of its namespaces.
func readStopped(ctx context.Context, o Options, read func(in *inspection, names map[nsid]idem.Namespace) error) error {
	if err := o.Validate(); err != nil {
		return err
	}
	s := &Store{opts: o.withDefaults(), namespaces: newNamespaces()} // only what reading needs of it
	in := &inspection{ctx: ctx, s: s, report: Report{Checks: allChecks()}}
	err := s.openReadOnly()
	if err == nil {
		err = in.readSchema()
	}
	if err == nil {
		err = s.loadNamespaces()
	}
	if err == nil {
		names := make(map[nsid]idem.Namespace)
		for ns, t := range s.namespaces.all() {
			names[t] = ns
		}
		err = read(in, names)
	}
	return errors.Join(err, s.undo())
}
