package kv

import (
	"errors"
	"fmt"

	"github.com/idemd/idemd/idem"
)

// endCall judges a call once all of its rows have been read; nil is none.
func (in *inspection) endCall(c *callRows, effects, markers *follower) error {
	if c == nil {
		return nil
	}
	if err := errors.Join(in.effectsUpTo(effects, c), in.markersUpTo(markers, c)); err != nil {
		return err
	}
	call := &c.call
	if !in.namespaces[c.t] {
		in.fault(ruleRows, "call %v: it is in the namespace %d, which there is not", call.ID, c.t)
	}
	if !c.request {
		c.damaged = true
		in.fault(ruleRows, "call %v: it has no request", call.ID)
	}
	if c.effects > 1 {
		in.report.MultipleEffects++
		in.fault(ruleEffects, "call %v: it has %d effects", call.ID, c.effects)
	}
	if c.damaged {
		return nil
	}
	if !c.state {
		c.next = makePlain(call)
	}
	in.report.Totals.Add(idem.Change{Write: true, After: call}.Totals())
	if call.Tombstone {
		in.report.Tombstones++
	}
	in.judgeAround(c)
	in.judgeTrail(c)
	in.judgeFields(c)
	return in.judgeKey(c)
}

// judgeAround holds a call against the rows elsewhere that go with its status.
func (in *inspection) judgeAround(c *callRows) {
	call := &c.call
	switch open := !call.Status.Ended(); {
	case open && c.markers == 0:
		in.fault(ruleMarkers, "call %v: it is %s and has no marker", call.ID, call.Status)
	case !open && c.markers > 0:
		in.fault(ruleMarkers, "call %v: it is %s and has a marker", call.ID, call.Status)
	}
	switch e, owed := &c.effect, call.OwesEffect(); {
	case owed && c.effects == 0:
		in.fault(ruleEffects, "call %v: it has succeeded and has no effect", call.ID)
	case !owed && c.effects > 0:
		in.fault(ruleEffects, "call %v: it is %s, its tool's effects are %q, and it has an effect", call.ID, call.Status, call.Effects)
	case c.effects == 1 && !c.noEffect && (e.ID != idem.EffectID(call.ID) || e.Key.Name != call.Key.Name || e.Tool != call.Tool):
		in.fault(ruleEffects, "call %v: its effect %.40q is of another id, key or tool", call.ID, e.ID)
	}
}

func (in *inspection) judgeTrail(c *callRows) {
	call := &c.call
	switch {
	case c.noTrail:
	case c.events != int(c.next):
		in.fault(ruleAudit, "call %v: there are %d events, the state says %d", call.ID, c.events, c.next)
	case c.claims != call.Attempt:
		in.fault(ruleAudit, "call %v: it is at attempt %d after %d claims", call.ID, call.Attempt, c.claims)
	}
}

func (in *inspection) judgeFields(c *callRows) {
	if id := c.call.Rules; !id.IsZero() && !in.rules[id] {
		in.fault(ruleRules, "call %v: its rules %v are not saved", c.call.ID, id)
	}
	for _, m := range c.call.Misfits(int(c.next)) {
		check := ruleFields
		if m.End {
			check = ruleEnds
		}
		in.fault(check, "call %v: it is %s; %s", c.call.ID, c.call.Status, m.Text)
	}
}

// judgeKey looks for the row of a call's key.
func (in *inspection) judgeKey(c *callRows) error {
	call := &c.call
	var id idem.CallID
	readable := true
	found, err := in.s.get(appendIdemKey(nil, c.t, call.Key.Name), func(v []byte) (err error) {
		id, _, err = decodeIdem(v)
		readable = err == nil
		return nil
	})
	switch {
	case err != nil:
		return err
	case !found:
		in.fault(ruleKeys, "call %v: its key has no row", call.ID)
	case !readable || id == call.ID: // readKeys says what cannot be read
	default:
		// Either two calls have this key, or the row is wrong, which readKeys
		// will see.
		other, err := in.nameOf(c.t, id)
		if err != nil {
			return err
		}
		if other.found && other.name == call.Key.Name {
			in.fault(ruleOneCall, "call %v: its key is also the key of call %v", call.ID, id)
		} else {
			in.fault(ruleKeys, "call %v: the row of its key names call %v", call.ID, id)
		}
	}
	return nil
}

// named is the key that a call names.
type named struct {
	found, readable bool
	name            string
}

func (in *inspection) nameOf(t nsid, id idem.CallID) (n named, err error) {
	n.found, err = in.s.get(appendRequestKey(nil, t, id), func(v []byte) error {
		var c idem.Call
		n.readable = decodeRequest(v, &c, false) == nil
		n.name = c.Key.Name
		return nil
	})
	return n, err
}

// compareCounts holds the store's own counts against the scan's.
func (in *inspection) compareCounts() {
	stored, scanned := counters(&in.stored), counters(&in.report.Totals)
	names := []string{"calls", "effects"}
	for _, s := range idem.Statuses {
		names = append(names, string(s))
	}
	for i := range idem.AttemptBuckets {
		names = append(names, fmt.Sprintf("calls with %d attempts", i))
	}
	for i, name := range names {
		if *stored[i] != *scanned[i] {
			in.fault(ruleCounters, "%s: the store counts %d, the scan %d", name, *stored[i], *scanned[i])
		}
	}
}
