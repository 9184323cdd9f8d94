package kv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/idem"
)

// ErrNoStore means that there is no store in the directory.
var ErrNoStore = errors.New("kv: there is no store in this directory")

// Report is what [Inspect] found.
type Report struct {
	Layout    uint64    // version of the layout on disk; 0 where the store was never begun
	CreatedAt time.Time // when the store was begun

	Totals     idem.Totals // counted by the scan, not what the store itself counts
	Keys       int64       // rows that give a key its call
	Markers    int64       // rows that mark a call as being without an end
	Events     int64       // events in all audit trails
	Tombstones int64       // calls of which only the key is remembered

	// MultipleEffects is how many calls have more than one effect.
	MultipleEffects int64

	// Checks are what was checked, always all of it and in the same order.
	Checks []Check
}

// Broken is how many faults were found.
func (r *Report) Broken() int64 {
	var n int64
	for _, c := range r.Checks {
		n += c.Broken
	}
	return n
}

// Check is something that must be true of a store at any time.
type Check struct {
	Name   string // stable
	Rule   string // in words
	Broken int64  // how often it is not so

	// Examples describe the first ten of them, with the ids of the calls. They
	// hold no stored payload; a key only where nothing else names what is wrong.
	Examples []string
}

const maxExamples = 10

// The checks, by position in the report.
const (
	ruleCounters = iota
	ruleMarkers
	ruleKeys
	ruleOneCall
	ruleEffects
	ruleAudit
	ruleEnds
	ruleFields
	ruleRules
	ruleRows
)

func allChecks() []Check {
	return []Check{
		ruleCounters: {Name: "counters", Rule: "the stored counts equal what the scan counts"},
		ruleMarkers:  {Name: "markers", Rule: "every call without an end has a marker, and nothing else has one"},
		ruleKeys:     {Name: "keys", Rule: "every call has the row of its key, and every key's row names a call that names it back"},
		ruleOneCall:  {Name: "one_call", Rule: "no key has two calls"},
		ruleEffects:  {Name: "effects", Rule: "every call that succeeded with a tool that has effects has exactly one effect, and nothing else has one"},
		ruleAudit:    {Name: "audit", Rule: "every audit trail begins with the creation, has no gaps, and has one claim for each attempt"},
		ruleEnds:     {Name: "ends", Rule: "every call with an end has the time of its end and of its expiry, and no other call has"},
		ruleFields:   {Name: "fields", Rule: "the fields of every call fit its status"},
		ruleRules:    {Name: "rules", Rule: "the rules of every call are saved, and all that are saved have the id of what they say"},
		ruleRows:     {Name: "rows", Rule: "every row can be read and belongs to something"},
	}
}

// Progress is how far an inspection is.
type Progress struct {
	Step  string // what is being read: calls, then keys
	Done  int64
	About int64 // how many there are by the store's own count, which may be wrong
}

const (
	progressEvery = 1000 // calls or keys between two reports of progress
	lookUpEvery   = 256  // rows between two looks at the context
)

// Inspect reads a whole store that nobody has open and checks what must be true
// of it at any time. The directory's files stay as they are; only the empty
// lock file is made where it is missing. Of the options, Dir, FS, Logger, Exit,
// MemTable and Cache are used. progress, which may be nil, is told now and then
// how far the scan is.
//
// What was committed and is still in a log is seen as well: it is replayed into
// memory. Beyond that, memory does not grow with the store.
//
// An unsound store is not an error but a Report. Errors: ErrNoStore, ErrInUse,
// ErrNewerFormat, the context's error, what Validate says; any other error
// means that the engine cannot read its files.
func Inspect(ctx context.Context, o Options, progress func(Progress)) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	if progress == nil {
		progress = func(Progress) {}
	}
	s := &Store{opts: o.withDefaults()} // only what reading needs of it
	in := &inspection{
		ctx: ctx, s: s, progress: progress,
		namespaces: map[nsid]bool{0: true}, // the default namespace has no row
		rules:      make(map[idem.RulesID]bool),
		report:     Report{Checks: allChecks()},
	}
	err := s.openReadOnly()
	if err == nil {
		err = in.run()
	}
	if err := errors.Join(err, s.undo()); err != nil {
		return Report{}, err
	}
	return in.report, nil
}

// openReadOnly opens what is there, and makes nothing.
func (s *Store) openReadOnly() error {
	fsys := s.opts.FS
	info, err := fsys.Stat(s.opts.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !info.IsDir():
		return ErrNoStore
	case err != nil:
		return fmt.Errorf("kv: the data directory cannot be looked at: %w", err)
	}
	if s.dir, err = resolve(fsys, s.opts.Dir); err != nil {
		return fmt.Errorf("kv: the data directory cannot be resolved: %w", err)
	}
	files, err := fsys.List(s.dir)
	if err != nil {
		return fmt.Errorf("kv: the data directory cannot be listed: %w", err)
	}
	// Before the lock, which makes its file in whatever directory it is asked for.
	if !slices.ContainsFunc(files, func(name string) bool { return strings.HasPrefix(name, "marker.manifest.") }) {
		return ErrNoStore
	}
	if err := checkFormat(files); err != nil {
		return err
	}
	release, err := reserve(fsys, s.dir)
	if err != nil {
		return err
	}
	s.onClose(func() error { release(); return nil })
	if err := s.lockDirectory(); err != nil {
		return err
	}
	db, err := pebble.Open(s.dir, &pebble.Options{
		ReadOnly:           true,
		FS:                 fsys,
		Lock:               s.dirLock,
		FormatMajorVersion: formatVersion,
		Merger:             countMerger,
		MemTableSize:       uint64(s.opts.MemTable),
		CacheSize:          s.opts.Cache,
		Logger:             engineLog{s, s.opts.Logger},
		// Whoever reads what is damaged gets an error; by default the engine
		// ends the process as well.
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	switch {
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return ErrNoStore
	case err != nil:
		return fmt.Errorf("kv: the store cannot be opened: %w", err)
	}
	s.db = db
	s.onClose(db.Close)
	return nil
}

// inspection is one scan of a store.
type inspection struct {
	ctx      context.Context
	s        *Store
	progress func(Progress)

	namespaces map[nsid]bool // known namespaces
	rules      map[idem.RulesID]bool
	stored     idem.Totals // the store's own count
	report     Report
}

func (in *inspection) run() error {
	for _, step := range []func() error{in.readSchema, in.readCounts, in.readNamespaces, in.readRules, in.readCalls, in.readKeys, in.readStrays} {
		if err := step(); err != nil {
			return err
		}
	}
	in.compareCounts()
	return nil
}

// fault notes that something is not as it must be.
func (in *inspection) fault(check int, format string, args ...any) {
	c := &in.report.Checks[check]
	c.Broken++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, fmt.Sprintf(format, args...))
	}
}

// rows calls each for all keys with a prefix.
func (in *inspection) rows(prefix []byte, each func(it *pebble.Iterator) error) error {
	it, err := in.s.iter(prefix)
	if err != nil {
		return err
	}
	n := 0
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		if n++; n%lookUpEvery == 0 {
			err = in.ctx.Err()
		}
		if err == nil {
			err = each(it)
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

// readSchema refuses what this release does not know, and what is no store of
// ours.
func (in *inspection) readSchema() error {
	found, err := in.s.get(keySchema, func(v []byte) error {
		sc, err := decodeSchema(v)
		in.report.Layout, in.report.CreatedAt = sc.layout, sc.createdAt
		return err
	})
	if err != nil || found {
		return err
	}
	// Where a process died before it had begun its store there is nothing at all.
	it, err := in.s.db.NewIter(nil)
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil || empty {
		return err
	}
	return errors.New("kv: the data directory holds something else")
}

func (in *inspection) readCounts() error {
	_, err := in.s.get(keyCounter, func(v []byte) error {
		var err error
		if in.stored, err = decodeTotals(v); err != nil {
			in.fault(ruleRows, "the row of counts cannot be read")
		}
		return nil
	})
	return err
}

func (in *inspection) readNamespaces() error {
	return in.rows([]byte{prefixNamespace}, func(it *pebble.Iterator) error {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		switch t, err := decodeNamespace(v); {
		case err != nil:
			in.fault(ruleRows, "namespace %.40q: its row cannot be read", it.Key()[1:])
		case in.namespaces[t]:
			in.fault(ruleRows, "namespace %.40q: its number %d is another's", it.Key()[1:], t)
		default:
			in.namespaces[t] = true
		}
		return nil
	})
}

// readRules reads what calls may name. A row that is wrong is there all the same.
func (in *inspection) readRules() error {
	return in.rows([]byte{prefixRules}, func(it *pebble.Iterator) error {
		id, ok := parseRulesKey(it.Key())
		if !ok {
			in.fault(ruleRows, "a row of rules has the key %.80q", it.Key())
			return nil
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if len(in.rules) == idem.MaxSavedRules {
			in.fault(ruleRules, "rules %v: there are more than %d", id, idem.MaxSavedRules)
			return nil
		}
		in.rules[id] = true
		if _, err := decodeRules(v, id); err != nil {
			in.fault(ruleRules, "rules %v: their row cannot be read, or is of another id", id)
		}
		return nil
	})
}

// callRows is what the scan has read of one call.
type callRows struct {
	t    nsid
	call idem.Call
	next uint32 // number of the next event, by the state

	request, state bool // there is such a row
	damaged        bool // one of the two cannot be read: nothing follows from them
	noTrail        bool // nor from the audit trail
	events, claims int
	effects        int // rows
	effect         idem.Effect
	noEffect       bool // the effect's row cannot be read
	markers        int  // rows
}

// readCalls walks over the calls, and at the same time over the effects and the
// markers, which are in the same order: so whatever is missing on either side
// is found without remembering anything.
func (in *inspection) readCalls() error {
	effects, err := in.follow(prefixEffect)
	if err != nil {
		return err
	}
	markers, err := in.follow(prefixMarker)
	if err != nil {
		return errors.Join(err, effects.it.Close())
	}
	return errors.Join(in.walk(effects, markers), effects.it.Close(), markers.it.Close())
}

func (in *inspection) walk(effects, markers *follower) error {
	var cur *callRows
	done := int64(0)
	err := in.rows([]byte{prefixCall}, func(it *pebble.Iterator) error {
		t, id, row, ok := parseScoped(it.Key())
		if !ok || len(row) == 0 {
			in.fault(ruleRows, "a row of a call has the key %.80q", it.Key())
			return nil
		}
		if cur == nil || cur.t != t || cur.call.ID != id {
			if err := in.endCall(cur, effects, markers); err != nil {
				return err
			}
			cur = &callRows{t: t}
			cur.call.ID = id
			if done++; done%progressEvery == 0 {
				in.progress(Progress{Step: "calls", Done: done, About: in.stored.Calls})
			}
		}
		v, err := it.ValueAndErr()
		if err == nil {
			in.addRow(cur, row, v)
		}
		return err
	})
	if err == nil {
		err = in.endCall(cur, effects, markers)
	}
	if err == nil {
		err = errors.Join(in.effectsUpTo(effects, nil), in.markersUpTo(markers, nil))
	}
	in.progress(Progress{Step: "calls", Done: done, About: in.stored.Calls})
	return err
}

// addRow adds a row to its call.
func (in *inspection) addRow(c *callRows, row, v []byte) {
	id := c.call.ID
	seq, isAudit := parseAudit(row)
	switch {
	case len(row) == 1 && row[0] == rowRequest:
		c.request = true
		if decodeRequest(v, &c.call, false) != nil {
			c.damaged = true
			in.fault(ruleRows, "call %v: the row of its request cannot be read", id)
		}
	case len(row) == 1 && row[0] == rowState:
		c.state = true
		var err error
		if c.next, err = decodeState(v, &c.call); err != nil {
			c.damaged = true
			in.fault(ruleRows, "call %v: the row of its state cannot be read", id)
		}
	case isAudit:
		in.addEvents(c, seq, v)
	default:
		in.fault(ruleRows, "call %v: it has a row of an unknown kind, %x", id, row)
	}
}

func (in *inspection) addEvents(c *callRows, seq uint32, v []byte) {
	id := c.call.ID
	events, err := decodeEvents(nil, v, seq, 0, math.MaxInt)
	if err != nil {
		c.noTrail = true
		in.fault(ruleRows, "call %v: the row of its events from %d on cannot be read", id, seq)
		return
	}
	if int(seq) != c.events && !c.noTrail {
		in.fault(ruleAudit, "call %v: event %d comes after %d events", id, seq, c.events)
	}
	for i, e := range events {
		if first := int(seq)+i == 0; first != (e.Name == idem.EventCreated) {
			in.fault(ruleAudit, "call %v: event %d is %q", id, e.Seq, e.Name)
		}
		if e.Name == idem.EventClaimed {
			if c.claims++; e.Attempt != c.claims && !c.noTrail {
				in.fault(ruleAudit, "call %v: claim %d is of attempt %d", id, c.claims, e.Attempt)
			}
		}
	}
	c.events = int(seq) + len(events)
	in.report.Events += int64(len(events))
}

// readKeys walks over the keys and looks for their calls.
func (in *inspection) readKeys() error {
	n := &in.report.Keys
	err := in.rows([]byte{prefixIdem}, func(it *pebble.Iterator) error {
		if *n++; *n%progressEvery == 0 {
			in.progress(Progress{Step: "keys", Done: *n, About: in.stored.Calls})
		}
		k := it.Key()
		if len(k) <= scopeLen {
			in.fault(ruleRows, "the row of a key has the key %q", k)
			return nil
		}
		t, name := scopeOf(k), string(k[scopeLen:])
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		id, _, err := decodeIdem(v)
		if err != nil {
			in.fault(ruleRows, "key %q: its row cannot be read", name)
			return nil
		}
		switch c, err := in.nameOf(t, id); {
		case err != nil:
			return err
		case !c.found:
			in.fault(ruleKeys, "key %q: it names call %v, which there is not", name, id)
		case c.readable && c.name != name:
			in.fault(ruleKeys, "key %q: it names call %v, which has another key", name, id)
		}
		return nil
	})
	in.progress(Progress{Step: "keys", Done: *n, About: in.stored.Calls})
	return err
}

// follower is an iterator that keeps up with the walk over the calls.
type follower struct {
	it *pebble.Iterator
	ok bool
}

func (in *inspection) follow(prefix byte) (*follower, error) {
	it, err := in.s.iter([]byte{prefix})
	if err != nil {
		return nil, err
	}
	return &follower{it, it.First()}, nil
}

// upTo hands on the rows that come before those of a call, which are of no
// call, and those of the call. Nil is the end: all rows are of no call.
func (in *inspection) upTo(f *follower, c *callRows, orphan func(id idem.CallID), own func(rest, v []byte)) error {
	var scope []byte
	if c != nil {
		scope = appendCallKey(nil, c.t, c.call.ID)[1:]
	}
	for n := 1; f.ok; f.ok = f.it.Next() {
		if n++; n%lookUpEvery == 0 && in.ctx.Err() != nil {
			return in.ctx.Err()
		}
		k := f.it.Key()
		_, id, rest, ok := parseScoped(k)
		if !ok {
			in.fault(ruleRows, "a row beside the calls has the key %q", k)
			continue
		}
		v, err := f.it.ValueAndErr()
		if err != nil {
			return err
		}
		order := -1
		if c != nil {
			order = bytes.Compare(k[1:callLen], scope)
		}
		switch {
		case order > 0:
			return nil
		case order == 0:
			own(rest, v)
		default:
			orphan(id)
		}
	}
	return f.it.Error()
}

// effectsUpTo reads the effects of a call, and finds those of no call.
func (in *inspection) effectsUpTo(f *follower, c *callRows) error {
	return in.upTo(f, c,
		func(id idem.CallID) {
			in.report.Totals.Effects++
			in.fault(ruleEffects, "call %v: there is an effect of it, but no call", id)
		},
		func(rest, v []byte) {
			in.report.Totals.Effects++
			c.effects++
			if len(rest) > 0 {
				in.fault(ruleRows, "call %v: the key of its effect goes on with %.80q", c.call.ID, rest)
			}
			var err error
			if c.effect, err = decodeEffect(v); err != nil {
				c.noEffect = true
				in.fault(ruleRows, "call %v: the row of its effect cannot be read", c.call.ID)
			}
		})
}

// markersUpTo does the same for markers.
func (in *inspection) markersUpTo(f *follower, c *callRows) error {
	return in.upTo(f, c,
		func(id idem.CallID) {
			in.report.Markers++
			in.fault(ruleMarkers, "call %v: there is a marker of it, but no call", id)
		},
		func(rest, _ []byte) {
			in.report.Markers++
			c.markers++
			if len(rest) > 0 {
				in.fault(ruleRows, "call %v: the key of its marker goes on with %.80q", c.call.ID, rest)
			}
		})
}

// readStrays looks for rows of no kind that this release knows: whatever lies
// between the prefixes.
func (in *inspection) readStrays() error {
	var from []byte
	known := [][]byte{{prefixNamespace}, {prefixCall}, {prefixEffect}, {prefixIdem}, []byte("m/"), {prefixMarker}, {prefixRules}}
	for _, prefix := range known {
		if err := in.straysIn(from, prefix); err != nil {
			return err
		}
		from = after(prefix)
	}
	// The row of counts is the only one that begins with its letter.
	return errors.Join(in.straysIn(from, keyCounter), in.straysIn(append(bytes.Clone(keyCounter), 0), nil))
}

func (in *inspection) straysIn(from, to []byte) error {
	it, err := in.s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && in.ctx.Err() == nil; ok = it.Next() {
		in.fault(ruleRows, "a row of an unknown kind has the key %.80q", it.Key())
	}
	return errors.Join(in.ctx.Err(), it.Error(), it.Close())
}

// scopeOf is the number of the namespace in a key that is long enough.
func scopeOf(k []byte) nsid { return nsid(binary.BigEndian.Uint32(k[1:scopeLen])) }
