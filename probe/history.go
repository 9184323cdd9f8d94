package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
)

// Effect is a line of idemd's ledger.
type Effect struct {
	EffectID  string    `json:"effect_id"`
	CallID    string    `json:"call_id"`
	Key       string    `json:"idem_key"`
	Tool      string    `json:"tool"`
	Amount    *int64    `json:"amount"`
	CreatedAt time.Time `json:"created_at"`
}

// Ref is where something was read.
type Ref struct {
	Source string `json:"source"`
	Line   int    `json:"line,omitempty"` // from 1; 0 where the source has no lines
}

func (r Ref) String() string {
	if r.Line == 0 {
		return r.Source
	}
	return fmt.Sprintf("%s:%d", r.Source, r.Line)
}

// HistoryRule names what a history must hold to.
type HistoryRule string

// The rules.
const (
	RuleOneEffect  HistoryRule = "one_effect"   // a key has at most one effect, and so has a call (R8)
	RuleNoEffect   HistoryRule = "no_effect"    // nothing happened where everybody was told so, or where the call did not succeed
	RuleLostEffect HistoryRule = "lost_effect"  // whatever succeeded has its effect (R7)
	RuleLostCall   HistoryRule = "lost_call"    // a call that was accepted is there, then and in the end (R4)
	RuleOneCall    HistoryRule = "one_call"     // a key has one call, and a call one key (R2)
	RuleReplay     HistoryRule = "same_bytes"   // an end is shown with the same bytes every time (R3)
	RuleEnd        HistoryRule = "end_is_kept"  // an end for good stays (R9)
	RuleForward    HistoryRule = "goes_forward" // nobody is shown less than what was shown before (R12)
	RuleAudit      HistoryRule = "audit"        // a trail is what the state machine can have written
	RuleEffectID   HistoryRule = "effect_id"    // the effect's id is that of its call (R10)
	RuleTold       HistoryRule = "told_is_so"   // what was told about an end is what the trail ends with
)

// Violation is a rule that a history breaks.
type Violation struct {
	Rule    HistoryRule `json:"rule"`
	Key     string      `json:"idem_key"`
	CallID  string      `json:"call_id,omitempty"`
	Message string      `json:"message"`
	Proof   []Ref       `json:"proof"` // the lines that show it
}

// Findings is what a check found.
type Findings struct {
	Entries, Keys, Effects, Calls int

	// Unfinished is how many calls have no end for good; a history is best
	// checked when nothing is under way.
	Unfinished int

	Total      int         // violations
	Violations []Violation // the first of them, at most as many as HistoryOptions.MaxViolations
}

// Clean reports whether no rule is broken.
func (f *Findings) Clean() bool { return f.Total == 0 }

// HistoryOptions say how a history is read. The zero value takes the defaults.
type HistoryOptions struct {
	// Skew is how much the clocks of two clients may differ: default 0, which
	// is right for clients on one machine. Too low accuses an honest server; too
	// high misses what happened within it. Lines of one client need no clock.
	Skew time.Duration

	// MaxEntries bounds each of entries, effects and trails: default 10 million.
	// A million entries, and an effect and a trail for every fourth, keep 190 MB in
	// memory; a process needs some 550 MB for them, garbage included.
	MaxEntries int

	// MaxViolations is how many are kept, the others are counted: default 10 000.
	MaxViolations int
}

const (
	defaultMaxEntries    = 10_000_000
	defaultMaxViolations = 10_000
)

// maxTrail is the longest line of a dump of audit trails in bytes.
const maxTrail = 64 << 20

// History is what clients were told, and what the server has. Add everything to
// it, then check it once. It is in memory; see HistoryOptions.MaxEntries.
type History struct {
	o        HistoryOptions
	noEffect map[string]bool
	names    names
	sources  []string
	entries  []entry
	effects  []effectRow
	trails   []trailRow
	trailOf  map[name]int32 // by call: where it is in trails
	found    Findings
}

// NewHistory starts an empty history.
func NewHistory(o HistoryOptions) *History {
	if o.MaxEntries <= 0 {
		o.MaxEntries = defaultMaxEntries
	}
	if o.MaxViolations <= 0 {
		o.MaxViolations = defaultMaxViolations
	}
	o.MaxEntries = min(o.MaxEntries, math.MaxInt32-1)
	return &History{o: o, noEffect: make(map[string]bool), names: newNames(), trailOf: make(map[name]int32)}
}

// NoEffect names tools without an effect, which have no row in the ledger. A tool
// that is not named, and of whose promise no trail tells, owes one. It comes
// before the trails of their calls.
func (h *History) NoEffect(tools ...string) {
	for _, tool := range tools {
		h.noEffect[tool] = true
	}
}

// name is a text that is kept once; 0 is the empty one.
type name int32

type names struct {
	ids   map[string]name
	texts []string
}

func newNames() names { return names{ids: map[string]name{"": 0}, texts: []string{""}} }

func (n *names) of(s string) name {
	id, ok := n.ids[s]
	if !ok {
		s = strings.Clone(s)
		id = name(len(n.texts))
		n.ids[s], n.texts = id, append(n.texts, s)
	}
	return id
}

// spot is a Ref in memory.
type spot struct {
	source int32
	line   int32
}

func (h *History) spot(at Ref) spot {
	i := slices.Index(h.sources, at.Source)
	if i < 0 {
		i, h.sources = len(h.sources), append(h.sources, at.Source)
	}
	return spot{int32(i), int32(min(at.Line, math.MaxInt32))}
}

func (h *History) ref(p spot) Ref { return Ref{Source: h.sources[p.source], Line: int(p.line)} }

// entry is an Entry in memory.
type entry struct {
	began, at                       int64 // nanoseconds
	updated                         int64 // nanoseconds; 0 where it is not known
	spot                            spot
	key, call, client, intent, tool name
	attempt                         int32
	result, failure                 [digestLen]byte
	kind                            kind
	status                          int16
	state                           uint8 // position in idem.Statuses, from 1; 0 for none
	code                            refusal
	effect                          doubt
	retryable, digests              bool
}

type kind uint8

const (
	kindTry kind = iota
	kindPost
	kindOutcome
)

// refusal is what matters of a code.
type refusal uint8

const (
	otherCode  refusal = iota
	notFound           // there is no such call
	otherCalls         // the refusal is about a call of somebody else's request, or of another time
)

type doubt uint8

const (
	doubtOther doubt = iota // unknown, committed, or not said
	doubtNone
)

func (e *entry) status2xx() bool { return e.status >= 200 && e.status <= 299 }

func (e *entry) is(s idem.Status) bool { return e.state > 0 && idem.Statuses[e.state-1] == s }

func (e *entry) ended() bool { return e.is(idem.StatusSucceeded) || e.is(idem.StatusFailed) }

// final reports whether it shows an end that nothing opens again.
func (e *entry) final() bool { return e.ended() && !e.retryable }

func (e *entry) shown() string {
	if e.state == 0 {
		return "no call"
	}
	s := fmt.Sprintf("%s, attempt %d", idem.Statuses[e.state-1], e.attempt)
	if e.retryable {
		s += ", retryable"
	}
	return s
}

type effectRow struct {
	spot      spot
	key, call name
}

type trailRow struct {
	spot               spot
	key, call          name
	claims             int32
	end                uint8 // position in idem.Statuses, from 1, of what it ends with; 0 where that cannot be told
	retryable, without bool  // without: the tool has no effect
	tool               bool  // it says which tool that is
}

func (t *trailRow) is(s idem.Status) bool { return t.end > 0 && idem.Statuses[t.end-1] == s }

func stateNumber(s idem.Status) uint8 { return uint8(slices.Index(idem.Statuses[:], s) + 1) }

// errFull says that a bound is reached.
func errFull(what string, limit int) error {
	return fmt.Errorf("probe: there are more than %d %s", limit, what)
}

// AddEntry adds a line of a client's log.
func (h *History) AddEntry(e Entry, at Ref) error {
	if err := e.validate(); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if len(h.entries) >= h.o.MaxEntries {
		return errFull("entries", h.o.MaxEntries)
	}
	n := &h.names
	if e.Intent == "" {
		e.Intent = e.Key
	}
	m := entry{
		at: e.At.UnixNano(), spot: h.spot(at),
		key: n.of(e.Key), call: n.of(e.CallID), client: n.of(e.Client), intent: n.of(e.Intent), tool: n.of(e.Tool),
		attempt: int32(e.Attempt), status: int16(e.Status), retryable: e.Retryable, digests: e.Result != "" && e.Error != "",
		state: stateNumber(e.State),
	}
	switch e.Kind {
	case EntryPost:
		m.kind = kindPost
	case EntryOutcome:
		m.kind = kindOutcome
	}
	if m.kind != kindOutcome {
		m.began = e.Began.UnixNano()
	}
	switch e.Code {
	case idem.CodeNotFound:
		m.code = notFound
	case idem.CodeConflict, idem.CodeKeyExpired:
		m.code = otherCalls
	}
	if e.Effect == idem.DoubtNone {
		m.effect = doubtNone
	}
	if !e.UpdatedAt.IsZero() {
		m.updated = e.UpdatedAt.UnixNano()
	}
	_, _ = hex.Decode(m.result[:], []byte(e.Result)) // validate has done it
	_, _ = hex.Decode(m.failure[:], []byte(e.Error))
	h.entries = append(h.entries, m)
	return nil
}

// AddEffect adds a line of the ledger.
func (h *History) AddEffect(e Effect, at Ref) error {
	if e.Key == "" || e.CallID == "" {
		return errors.New("probe: an effect needs an idem_key and a call_id")
	}
	if len(h.effects) >= h.o.MaxEntries {
		return errFull("effects", h.o.MaxEntries)
	}
	row := effectRow{spot: h.spot(at), key: h.names.of(e.Key), call: h.names.of(e.CallID)}
	h.effects = append(h.effects, row)
	if id, err := idem.ParseCallID(e.CallID); err != nil || e.EffectID != idem.EffectID(id) {
		h.violate(RuleEffectID, row.key, row.call, fmt.Sprintf("the effect's id is %q", shorten(e.EffectID)), row.spot)
	}
	return nil
}

// AddTrail adds a call's audit trail. A second one of the same call is an error.
func (h *History) AddTrail(t Trail, at Ref) error {
	if t.Key == "" || t.CallID == "" {
		return errors.New("probe: an audit trail needs an idem_key and a call_id")
	}
	if len(h.trails) >= h.o.MaxEntries {
		return errFull("audit trails", h.o.MaxEntries)
	}
	call := h.names.of(t.CallID)
	if _, twice := h.trailOf[call]; twice {
		return fmt.Errorf("probe: there are two audit trails of %s", shorten(t.CallID))
	}
	end, fault := walkTrail(t.Events)
	row := trailRow{
		spot: h.spot(at), key: h.names.of(t.Key), call: call, claims: int32(end.claims),
		end: stateNumber(end.status), retryable: end.retryable,
		without: t.Effects == idem.EffectsNone || h.noEffect[t.Tool], tool: t.Tool != "" || t.Effects != "",
	}
	if fault != "" {
		row.end = 0
		h.violate(RuleAudit, row.key, call, fault, row.spot)
	} else if !end.status.Ended() || end.retryable {
		h.found.Unfinished++
	}
	h.trailOf[call] = int32(len(h.trails))
	h.trails = append(h.trails, row)
	return nil
}

// ReadLog adds a client's log, in NDJSON. Members that are not those of [Entry]
// are errors, and in whatever is read here so are two members of one name. Errors:
// *InputError, and those of the reader, wrapped.
func (h *History) ReadLog(source string, r io.Reader) error {
	return readDocs(source, r, MaxLine, false, func(line []byte, at Ref) error {
		var e Entry
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return err
		}
		return h.AddEntry(e, at)
	})
}

// ReadLedger adds a ledger, in NDJSON. ended is as in [Table]. Errors are those
// of ReadLog.
func (h *History) ReadLedger(source string, r io.Reader, ended bool) error {
	return readDocs(source, r, MaxLine, ended, func(line []byte, at Ref) error {
		var e Effect
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		return h.AddEffect(e, at)
	})
}

// ReadAudit adds a dump of audit trails, a [Trail] a line, in NDJSON. Errors are
// those of ReadLog.
func (h *History) ReadAudit(source string, r io.Reader) error {
	return readDocs(source, r, maxTrail, false, func(line []byte, at Ref) error {
		var t Trail
		if err := json.Unmarshal(line, &t); err != nil {
			return err
		}
		return h.AddTrail(t, at)
	})
}

func readDocs(source string, r io.Reader, longest int, ended bool, add func(line []byte, at Ref) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	if head, _ := in.Peek(len(utf8BOM)); string(head) == utf8BOM { // its error comes again
		_, _ = in.Discard(len(utf8BOM))
	}
	l := &ndjson{name: source, r: in, max: longest, ended: ended}
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err = checkJSON(line); err == nil {
			err = checkMembers(line)
		}
		if err == nil {
			err = add(line, Ref{Source: source, Line: l.n})
		}
		if err != nil {
			return l.fault(err)
		}
	}
}

// checkMembers refuses what encoding/json would read though it can mean two
// things: an object with two members of one name, in whatever case, of which it
// takes the last one, and half a surrogate pair. doc is JSON that is sound.
func checkMembers(doc []byte) error {
	if halfPair(doc) {
		return errors.New("there is half a surrogate pair in it, which is no text")
	}
	var (
		names [][]byte // of the members of all objects that are open, outermost first
		open  []int    // where those of each begin
	)
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '{':
			open = append(open, len(names))
		case '}':
			last := len(open) - 1
			names, open = names[:open[last]], open[:last]
		case '"':
			end, escaped := i+1, false
			for ; doc[end] != '"'; end++ {
				if doc[end] == '\\' {
					escaped = true
					end++
				}
			}
			text := doc[i : end+1]
			i = end
			if rest := bytes.TrimLeft(doc[end+1:], " \t\r\n"); len(rest) == 0 || rest[0] != ':' {
				continue // it is a value
			}
			name := text[1 : len(text)-1]
			if escaped {
				var s string
				if err := json.Unmarshal(text, &s); err != nil {
					return err
				}
				name = []byte(s)
			}
			siblings := names[open[len(open)-1]:]
			if slices.ContainsFunc(siblings, func(s []byte) bool { return bytes.EqualFold(s, name) }) {
				return fmt.Errorf("%s is there twice", shorten(string(name)))
			}
			if len(siblings) == maxMembers {
				return fmt.Errorf("an object has more than %d members", maxMembers)
			}
			names = append(names, name)
		}
	}
	return nil
}

// maxMembers bounds the members of one object in a history, which are compared
// with each other.
const maxMembers = 100

func (h *History) violate(rule HistoryRule, key, call name, message string, proof ...spot) {
	h.found.Total++
	if len(h.found.Violations) >= h.o.MaxViolations {
		return
	}
	v := Violation{Rule: rule, Key: h.names.texts[key], CallID: h.names.texts[call], Message: message}
	for _, p := range proof {
		if r := h.ref(p); !slices.Contains(v.Proof, r) {
			v.Proof = append(v.Proof, r)
		}
	}
	h.found.Violations = append(h.found.Violations, v)
}

// CallsWithoutTrail returns the calls that a log or the ledger names and whose
// trail has not been added so far, and their keys.
func (h *History) CallsWithoutTrail() map[string]string {
	calls := make(map[string]string)
	see := func(call, key name) {
		if _, known := h.trailOf[call]; call != 0 && !known {
			calls[h.names.texts[call]] = h.names.texts[key]
		}
	}
	for i := range h.entries {
		see(h.entries[i].call, h.entries[i].key)
	}
	for _, e := range h.effects {
		see(e.call, e.key)
	}
	return calls
}

// Check judges everything that was added, key by key.
func (h *History) Check() Findings {
	// Stable: what follows relies on the order within a client.
	slices.SortStableFunc(h.entries, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	slices.SortStableFunc(h.effects, func(a, b effectRow) int { return cmp.Compare(a.key, b.key) })
	order := make([]int32, len(h.trails))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(h.trails[a].key, h.trails[b].key) })

	h.found.Entries, h.found.Effects, h.found.Calls = len(h.entries), len(h.effects), len(h.trails)
	keyOf := make(map[name]owned)
	perCall := make(map[name]effectRow, len(h.effects))
	entries, effects := h.entries, h.effects
	for len(entries) > 0 || len(effects) > 0 || len(order) > 0 {
		key := name(math.MaxInt32)
		if len(entries) > 0 {
			key = min(key, entries[0].key)
		}
		if len(effects) > 0 {
			key = min(key, effects[0].key)
		}
		if len(order) > 0 {
			key = min(key, h.trails[order[0]].key)
		}
		s := &story{h: h, key: key}
		s.entries, entries = cut(entries, func(e *entry) bool { return e.key == key })
		s.effects, effects = cut(effects, func(e *effectRow) bool { return e.key == key })
		s.trails, order = cut(order, func(i *int32) bool { return h.trails[*i].key == key })
		h.found.Keys++
		s.check(keyOf, perCall)
	}
	return h.found
}

// cut divides a slice after its first elements of a kind.
func cut[T any](all []T, belongs func(*T) bool) (head, rest []T) {
	n := 0
	for n < len(all) && belongs(&all[n]) {
		n++
	}
	return all[:n], all[n:]
}
