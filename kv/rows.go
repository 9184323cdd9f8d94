package kv

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/idemd/idemd/idem"
)

// Values begin with a version. Numbers are varints, strings and byte strings
// follow their length, times are microseconds since 1970.
const (
	namespaceVersion = 1
	idemVersion      = 1
	requestVersion   = 1
	stateVersion     = 1
	stateVersion2    = 2 // with a second byte of flags
	auditVersion     = 1
	effectVersion    = 1
	schemaVersion    = 1
	rulesVersion     = 1
)

// Codes on disk, by position; a new word goes to the end.
var (
	statusCodes  = []idem.Status{"", idem.StatusPending, idem.StatusRunning, idem.StatusHeld, idem.StatusSucceeded, idem.StatusFailed}
	effectsCodes = []idem.Effects{"", idem.EffectsNone, idem.EffectsLocal, idem.EffectsExternal}
	rerunCodes   = []idem.Rerun{"", idem.RerunYes, idem.RerunVerify, idem.RerunHold}
	eventCodes   = []idem.EventName{
		"", // spelled out
		idem.EventCreated, idem.EventClaimed, idem.EventSucceeded, idem.EventFailed, idem.EventHeld, idem.EventRequeued,
		idem.EventRecovered, idem.EventStaleResult, idem.EventResolved, idem.EventExpired,
	}
)

func encodeNamespace(t nsid) []byte {
	w := newWriter(nil, namespaceVersion)
	w.uvarint(uint64(t))
	return w.b
}

func decodeNamespace(v []byte) (nsid, error) {
	r := newReader(v, namespaceVersion)
	n := r.uvarint()
	if n > math.MaxUint32 {
		r.fail()
	}
	return nsid(n), r.done("namespace")
}

type schema struct {
	layout    uint64
	createdAt time.Time
}

func encodeSchema(s schema) []byte {
	w := newWriter(nil, schemaVersion)
	w.uvarint(s.layout)
	w.time(s.createdAt)
	return w.b
}

// decodeSchema reads the layout version even where what follows it is of a
// newer release.
func decodeSchema(v []byte) (schema, error) {
	if len(v) == 0 {
		return schema{}, fmt.Errorf("%w: schema row", errCorrupt)
	}
	r := newReader(v, v[0])
	s := schema{layout: r.uvarint()}
	if r.bad || (v[0] > schemaVersion || s.layout > layoutVersion) {
		return s, ErrNewerFormat
	}
	s.createdAt = r.time()
	return s, r.done("schema")
}

func appendIdem(b []byte, id idem.CallID, fp idem.Fingerprint) []byte {
	b = append(b, idemVersion)
	b = append(b, id[:]...)
	return append(b, fp[:]...)
}

func decodeIdem(v []byte) (id idem.CallID, fp idem.Fingerprint, err error) {
	r := newReader(v, idemVersion)
	r.fixed(id[:])
	r.fixed(fp[:])
	return id, fp, r.done("key")
}

// What a request has.
const (
	requestClient = 1 << iota
	requestSeq
	requestArgs
	requestRules // since layout 2
)

// appendRequest writes what is fixed when a call is created. A tombstone loses
// all that its key's refusal does not need.
func appendRequest(b []byte, c *idem.Call) []byte {
	w := newWriter(b, requestVersion)
	client, seq, args := c.ClientID, c.Seq, c.Args
	if c.Tombstone {
		client, seq, args = nil, nil, nil
	}
	var flags byte
	if client != nil {
		flags |= requestClient
	}
	if seq != nil {
		flags |= requestSeq
	}
	if args != nil {
		flags |= requestArgs
	}
	if !c.Rules.IsZero() {
		flags |= requestRules
	}
	w.byte(flags)
	w.text(c.Key.Name)
	w.text(c.Tool)
	w.time(c.CreatedAt)
	if !c.Rules.IsZero() {
		w.b = append(w.b, c.Rules[:]...)
	}
	if client != nil {
		w.text(*client)
	}
	if seq != nil {
		w.varint(*seq)
	}
	if args != nil {
		w.bytes(args)
	}
	return w.b
}

// decodeRequest fills in the request; the args only where they are asked for.
func decodeRequest(v []byte, c *idem.Call, args bool) error {
	r := newReader(v, requestVersion)
	flags := r.flags(requestClient | requestSeq | requestArgs | requestRules)
	c.Key.Name = r.text()
	c.Tool = r.text()
	c.CreatedAt = r.time()
	if flags&requestRules != 0 {
		r.fixed(c.Rules[:])
	}
	if flags&requestClient != 0 {
		client := r.text()
		c.ClientID = &client
	}
	if flags&requestSeq != 0 {
		seq := r.varint()
		c.Seq = &seq
	}
	switch {
	case flags&requestArgs == 0:
	case args:
		c.Args = r.bytes()
	default:
		r.raw()
	}
	return r.done("request")
}

// What a state has.
const (
	stateOwner = 1 << iota
	stateClaimed
	stateEnded
	stateExpires
	stateFailure
	stateRetryable
	stateResult
	stateTombstone
)

// What a state has since layout 2.
const (
	stateInDoubt = 1 << iota
	stateRetryAfter
	stateSettle
	stateTarget
)

func stateFlags2(c *idem.Call) byte {
	var flags byte
	if c.InDoubt {
		flags = stateInDoubt
	}
	if c.Failure != nil && c.Failure.RetryAfter != 0 {
		flags |= stateRetryAfter
	}
	if c.Settle != 0 {
		flags |= stateSettle
	}
	if c.Target != 0 {
		flags |= stateTarget
	}
	return flags
}

func stateFlags(c *idem.Call) byte {
	var flags byte
	set := func(on bool, bit byte) {
		if on {
			flags |= bit
		}
	}
	set(c.Owner != "", stateOwner)
	set(!c.ClaimedAt.IsZero(), stateClaimed)
	set(!c.EndedAt.IsZero(), stateEnded)
	set(!c.ExpiresAt.IsZero(), stateExpires)
	set(c.Failure != nil, stateFailure)
	set(c.Failure != nil && c.Failure.Retryable, stateRetryable)
	set(c.Result != nil, stateResult)
	set(c.Tombstone, stateTombstone)
	return flags
}

// appendState writes what moves; next is the number of the next event.
func appendState(b []byte, c *idem.Call, next uint32) ([]byte, error) {
	version, more := byte(stateVersion), stateFlags2(c)
	if more != 0 {
		version = stateVersion2
	}
	w := newWriter(b, version)
	w.byte(stateFlags(c))
	if more != 0 {
		w.byte(more)
	}
	writeCode(w, statusCodes, c.Status)
	writeCode(w, effectsCodes, c.Effects)
	writeCode(w, rerunCodes, c.Rerun)
	w.count(c.Revision)
	w.count(c.Attempt)
	w.count(c.Crashes)
	w.uvarint(uint64(next))
	w.varint(c.Deliveries)
	w.time(c.UpdatedAt)
	if c.Owner != "" {
		w.text(c.Owner)
	}
	for _, t := range []time.Time{c.ClaimedAt, c.EndedAt, c.ExpiresAt} {
		if !t.IsZero() {
			w.time(t)
		}
	}
	if c.Failure != nil {
		w.text(c.Failure.Code)
		w.text(c.Failure.Message)
	}
	if more&stateRetryAfter != 0 {
		w.uvarint(uint64(c.Failure.RetryAfter / time.Second))
	}
	if more&stateSettle != 0 {
		w.uvarint(uint64(c.Settle / time.Millisecond))
	}
	if more&stateTarget != 0 {
		w.uvarint(c.Target)
	}
	if c.Result != nil {
		w.bytes(c.Result)
	}
	return w.b, w.err
}

func decodeState(v []byte, c *idem.Call) (next uint32, err error) {
	version := byte(stateVersion)
	if len(v) > 0 && v[0] == stateVersion2 {
		version = stateVersion2
	}
	r := newReader(v, version)
	flags := r.byte()
	var more byte
	if version == stateVersion2 {
		more = r.flags(stateInDoubt | stateRetryAfter | stateSettle | stateTarget)
	}
	c.InDoubt = more&stateInDoubt != 0
	c.Status = readCode(r, statusCodes)
	c.Effects = readCode(r, effectsCodes)
	c.Rerun = readCode(r, rerunCodes)
	c.Revision, c.Attempt, c.Crashes = r.count(), r.count(), r.count()
	n := r.uvarint()
	if n > math.MaxUint32 || c.Status == "" {
		r.fail()
	}
	c.Deliveries = r.varint()
	c.UpdatedAt = r.time()
	if flags&stateOwner != 0 {
		c.Owner = r.text()
	}
	if flags&stateClaimed != 0 {
		c.ClaimedAt = r.time()
	}
	if flags&stateEnded != 0 {
		c.EndedAt = r.time()
	}
	if flags&stateExpires != 0 {
		c.ExpiresAt = r.time()
	}
	if flags&stateFailure != 0 {
		c.Failure = &idem.Failure{Code: r.text(), Message: r.text(), Retryable: flags&stateRetryable != 0}
	}
	if more&stateRetryAfter != 0 {
		after := r.uvarint()
		if after > uint64(idem.MaxRetryAfter/time.Second) || c.Failure == nil {
			r.fail()
		} else {
			c.Failure.RetryAfter = time.Duration(after) * time.Second
		}
	}
	if more&stateSettle != 0 {
		ms := r.uvarint()
		if ms > math.MaxInt64/uint64(time.Millisecond) {
			r.fail()
		}
		c.Settle = time.Duration(ms) * time.Millisecond
	}
	if more&stateTarget != 0 {
		c.Target = r.uvarint()
	}
	if flags&stateResult != 0 {
		c.Result = r.bytes()
	}
	c.Tombstone = flags&stateTombstone != 0
	return uint32(n), r.done("state")
}

// plain reports whether a new call's state is what a call without a state row
// has, so that the row can be left out.
func plain(c *idem.Call, events int) bool {
	return events == 1 && c.Status == idem.StatusPending && c.Revision == 1 && c.Attempt == 0 && c.Crashes == 0 &&
		c.Effects == "" && c.Rerun == "" && c.Deliveries == 1 &&
		c.UpdatedAt.UnixMicro() == c.CreatedAt.UnixMicro() && stateFlags(c) == 0 && stateFlags2(c) == 0
}

// makePlain gives a call the state that goes with a missing state row.
func makePlain(c *idem.Call) (next uint32) {
	c.Status, c.Revision, c.UpdatedAt, c.Deliveries = idem.StatusPending, 1, c.CreatedAt, 1
	return 1
}

const eventDetail = 1 // flag: there is a detail

func appendEvents(b []byte, events []idem.Event) ([]byte, error) {
	w := newWriter(b, auditVersion)
	w.count(len(events))
	for i := range events {
		writeEvent(w, &events[i])
	}
	return w.b, w.err
}

func writeEvent(w *writer, e *idem.Event) {
	var flags byte
	if e.Detail != nil {
		flags = eventDetail
	}
	w.byte(flags)
	code := max(slices.Index(eventCodes, e.Name), 0)
	w.byte(byte(code))
	if code == 0 {
		w.text(string(e.Name))
	}
	w.time(e.At)
	w.count(e.Attempt)
	w.text(e.Owner)
	if e.Detail != nil {
		w.bytes(e.Detail)
	}
}

// decodeEvents appends the events of a row whose first has the number seq,
// those before from left out, until there are limit.
func decodeEvents(dst []idem.Event, v []byte, seq uint32, from, limit int) ([]idem.Event, error) {
	r := newReader(v, auditVersion)
	n := r.count()
	for i := 0; i < n && !r.bad; i++ {
		e := readEvent(r)
		e.Seq = int(seq) + i
		if e.Seq >= from && len(dst) < limit && !r.bad {
			dst = append(dst, e)
		}
	}
	return dst, r.done("audit")
}

func readEvent(r *reader) idem.Event {
	var e idem.Event
	flags := r.flags(eventDetail)
	if e.Name = readCode(r, eventCodes); e.Name == "" {
		e.Name = idem.EventName(r.text())
	}
	e.At = r.time()
	e.Attempt = r.count()
	e.Owner = r.text()
	if flags&eventDetail != 0 {
		e.Detail = r.bytes()
	}
	return e
}

const effectAmount = 1 // flag: there is an amount

// appendEffect writes a row of the ledger. Its id is stored, though it can be
// computed: the ledger must not change when the code does.
func appendEffect(b []byte, e *idem.Effect, name string) []byte {
	w := newWriter(b, effectVersion)
	var flags byte
	if e.Amount != nil {
		flags = effectAmount
	}
	w.byte(flags)
	w.text(e.ID)
	w.text(name)
	w.text(e.Tool)
	w.time(e.CreatedAt)
	if e.Amount != nil {
		w.varint(*e.Amount)
	}
	return w.b
}

func decodeEffect(v []byte) (idem.Effect, error) {
	r := newReader(v, effectVersion)
	flags := r.flags(effectAmount)
	e := idem.Effect{ID: r.text()}
	e.Key.Name = r.text()
	e.Tool = r.text()
	e.CreatedAt = r.time()
	if flags&effectAmount != 0 {
		amount := r.varint()
		e.Amount = &amount
	}
	return e, r.done("effect")
}
