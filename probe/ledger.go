package probe

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/idemd/idemd/idem"
)

const (
	// DefaultField is what names the intent in idemd's own ledger.
	DefaultField = "idem_key"

	// DefaultMaxRows bounds each side of a [Reconciliation]. With ids of 36 bytes
	// a million intents with an effect each keep 120 MB in memory, and a million
	// intents and a million effects that do not match 170 MB; a process needs some
	// 350 MB and 700 MB for them, garbage and the verdict included.
	DefaultMaxRows = 10_000_000

	// MaxLine is the longest line of NDJSON, and the longest record of CSV, in
	// bytes.
	MaxLine = 1 << 20

	// MaxID is the longest id of an intent in bytes.
	MaxID = 1024
)

// Format is how a ledger, or a list of intents, is written.
type Format string

const (
	// FormatAuto goes by the end of the source's name (.csv, .ndjson, .jsonl,
	// .json), else by its first byte: NDJSON where that is a brace, else CSV.
	FormatAuto Format = "auto"

	// FormatNDJSON is a JSON object a line. A line may also be a string, which
	// is the id itself. Lines of white space are skipped.
	FormatNDJSON Format = "ndjson"

	// FormatCSV is RFC 4180 with commas and a line of column names. Line feeds
	// alone end lines as well. Blank lines are skipped where there are more columns
	// than one; else they are empty fields, which are errors.
	FormatCSV Format = "csv"
)

// InputError says what is wrong with an input, and where.
type InputError struct {
	Source       string // its name
	Line, Column int    // from 1, in bytes; 0 where there is none
	Reason       string
}

func (e *InputError) Error() string {
	s := "probe: " + e.Source
	if e.Line > 0 {
		s += ": line " + strconv.Itoa(e.Line)
	}
	if e.Column > 0 {
		s += ", column " + strconv.Itoa(e.Column)
	}
	return s + ": " + e.Reason
}

// Condition chooses rows by what one of their fields holds.
type Condition struct {
	Field string // like [Table.Field]
	Value string // the text of a string, or a number, true or false as it is written
}

// ParseCondition reads FIELD=VALUE.
func ParseCondition(s string) (Condition, error) {
	field, value, ok := strings.Cut(s, "=")
	if !ok || field == "" {
		return Condition{}, fmt.Errorf("probe: the condition %q is not FIELD=VALUE", s)
	}
	return Condition{Field: field, Value: value}, nil
}

// Table says how to find the ids of intents in a ledger, or in a list of intents.
type Table struct {
	Name   string // of the source, for errors, and for [FormatAuto]
	Format Format // default FormatAuto

	// Field is the CSV column or the JSON member that names the intent: default
	// [DefaultField]. One that begins with a slash is a JSON pointer, except in
	// CSV.
	Field string

	// Where are conditions that a row must meet, all of them; others are counted
	// and skipped. A row without one of the fields is an error.
	Where []Condition

	// Ended says that the last line must end with a line feed, as idemd's own
	// stream does. CSV is always held to that: nothing else tells a whole last
	// field from one that was cut off. A line of NDJSON tells it by itself.
	Ended bool

	// Progress, which may be nil, is told the rows read so far now and then.
	Progress func(rows int)
}

// progressEvery is how many rows are read between two reports of progress.
const progressEvery = 10_000

// Rows is how much was read.
type Rows struct {
	Read    int // skipped ones included
	Skipped int // that do not meet a condition
}

// Read hands the id of every row that meets the conditions to each, with its
// line. An error of each that is not an [InputError] becomes one of its line.
//
// A source that is cut off is an error as far as that can be seen, never a
// shorter table: one that ends within a row, and one whose reader fails. Errors:
// *InputError, and those of the reader, wrapped.
func (t Table) Read(r io.Reader, each func(id string) error) (Rows, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, err := in.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return Rows{}, t.broken(0, err)
	}
	switch {
	case bytes.HasPrefix(head, []byte("\xFF\xFE")), bytes.HasPrefix(head, []byte("\xFE\xFF")):
		return Rows{}, t.fault(1, 0, "it is written in UTF-16; UTF-8 is read")
	case bytes.HasPrefix(head, []byte(utf8BOM)):
		_, _ = in.Discard(len(utf8BOM)) // it has just been seen
	}
	if t.Field == "" {
		t.Field = DefaultField
	}
	if t.Format == FormatAuto || t.Format == "" {
		t.Format = t.guess(in)
	}
	switch t.Format {
	case FormatNDJSON:
		return t.readLines(in, each)
	case FormatCSV:
		return t.readCSV(in, each)
	default:
		return Rows{}, fmt.Errorf("probe: there is no format %q", t.Format)
	}
}

const utf8BOM = "\xEF\xBB\xBF"

func (t Table) guess(in *bufio.Reader) Format {
	switch strings.ToLower(filepath.Ext(t.Name)) {
	case ".csv":
		return FormatCSV
	case ".ndjson", ".jsonl", ".json":
		return FormatNDJSON
	}
	for n := 1; ; n++ {
		b, err := in.Peek(n)
		if err != nil { // white space only, or too much of it to look at
			return FormatNDJSON
		}
		switch b[n-1] {
		case ' ', '\t', '\r', '\n':
		case '{', '[':
			return FormatNDJSON
		default:
			return FormatCSV
		}
	}
}

func (t Table) fault(line, column int, format string, args ...any) error {
	return &InputError{Source: t.Name, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

func (t Table) broken(line int, err error) error {
	return fmt.Errorf("probe: %s: it broke off after line %d: %w", t.Name, line, err)
}

// take hands on an id.
func (t Table) take(line int, id string, each func(id string) error) error {
	switch {
	case id == "":
		return t.fault(line, 0, "%s is empty", t.Field)
	case len(id) > MaxID:
		return t.fault(line, 0, "%s is longer than %d bytes", t.Field, MaxID)
	case !utf8.ValidString(id):
		return t.fault(line, 0, "%s is not UTF-8", t.Field)
	}
	err := each(id)
	if bad := (*InputError)(nil); err != nil && !errors.As(err, &bad) {
		return t.fault(line, 0, "%s", strings.TrimPrefix(err.Error(), "probe: "))
	}
	return err
}

func (t Table) count(rows *Rows, chosen bool) {
	rows.Read++
	if !chosen {
		rows.Skipped++
	}
	if t.Progress != nil && rows.Read%progressEvery == 0 {
		t.Progress(rows.Read)
	}
}

func (t Table) readLines(in *bufio.Reader, each func(id string) error) (rows Rows, err error) {
	l := &ndjson{name: t.Name, r: in, max: MaxLine, ended: t.Ended}
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		id, chosen, err := t.Row(line)
		if err != nil {
			return rows, l.fault(err)
		}
		t.count(&rows, chosen)
		if chosen {
			if err := t.take(l.n, id, each); err != nil {
				return rows, err
			}
		}
	}
}

// Row takes the id out of one line of NDJSON, which has no white space around it,
// and says whether the row meets the conditions. Errors name no place.
func (t Table) Row(line []byte) (id string, chosen bool, err error) {
	if t.Field == "" {
		t.Field = DefaultField
	}
	if err := checkJSON(line); err != nil {
		return "", false, err
	}
	switch line[0] {
	case '{':
	case '"':
		if len(t.Where) > 0 {
			return "", false, errors.New("it is a string, which has no fields to choose by")
		}
		id, err := scalarText(line, "the id")
		return id, true, err
	case '[':
		return "", false, errors.New("it is an array; an object a line is read")
	default:
		return "", false, errors.New("it is neither an object nor a string")
	}
	for _, c := range t.Where {
		raw, err := memberAt(line, c.Field)
		if err != nil {
			return "", false, err
		}
		v, err := scalarText(raw, c.Field)
		if err != nil || v != c.Value {
			return "", false, err
		}
	}
	raw, err := memberAt(line, t.Field)
	if err != nil {
		return "", false, err
	}
	// 1, 1.0 and 1e0 are one number and three texts, so only whole numbers in
	// plain digits are ids.
	if c := raw[0]; c != '"' && (c == 't' || c == 'f' || bytes.ContainsAny(raw, ".eE")) {
		return "", false, fmt.Errorf("%s is %s; a string or a whole number is an id", t.Field, shorten(string(raw)))
	}
	id, err = scalarText(raw, t.Field)
	return id, true, err
}

// checkJSON says where a line is not JSON.
func checkJSON(line []byte) error {
	if !utf8.Valid(line) {
		return errors.New("it is not UTF-8")
	}
	if json.Valid(line) {
		return nil
	}
	var v json.RawMessage
	return json.Unmarshal(line, &v)
}

// halfPair reports whether JSON that is sound has an escape of half a surrogate
// pair. It is no text: encoding/json reads each of them as U+FFFD, so that ids
// which differ in it would become one.
func halfPair(doc []byte) bool {
	high := false
	for i := 0; i < len(doc); {
		unit := rune(0)
		switch {
		case doc[i] != '\\':
			i++
		case doc[i+1] != 'u':
			i += 2
		default:
			n, _ := strconv.ParseUint(string(doc[i+2:i+6]), 16, 16) // four digits, or it is not JSON
			unit = rune(n)
			i += 6
		}
		low := 0xDC00 <= unit && unit <= 0xDFFF
		if low != high {
			return true
		}
		high = 0xD800 <= unit && unit <= 0xDBFF
	}
	return high
}

// memberAt returns what an object holds under the name of a member, or under a JSON
// pointer. Null counts as absent.
func memberAt(doc []byte, field string) (json.RawMessage, error) {
	path := []string{field}
	if strings.HasPrefix(field, "/") {
		path = strings.Split(field[1:], "/")
		for i, p := range path {
			path[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
		}
	}
	v := json.RawMessage(doc)
	for _, name := range path {
		var err error
		if v, err = memberOf(v, name); err != nil {
			return nil, err
		}
		if v == nil {
			return nil, fmt.Errorf("there is no %s", field)
		}
	}
	return v, nil
}

// memberOf returns a member of an object, or an element of an array; nil where
// there is none.
func memberOf(doc json.RawMessage, name string) (json.RawMessage, error) {
	if doc[0] == '[' {
		var items []json.RawMessage
		if err := json.Unmarshal(doc, &items); err != nil {
			return nil, err
		}
		i, err := strconv.ParseUint(name, 10, 31)
		if err != nil || int(i) >= len(items) || strconv.FormatUint(i, 10) != name {
			return nil, nil
		}
		return notNull(items[i]), nil
	}
	if doc[0] != '{' {
		return nil, nil
	}
	// Not into a map or a struct: of two members with one name they would take
	// either, whichever it is that the writer meant.
	dec := json.NewDecoder(bytes.NewReader(doc))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	var found json.RawMessage
	for seen := false; dec.More(); {
		at, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		if at == name {
			if seen {
				return nil, fmt.Errorf("%s is there twice", name)
			}
			seen, found = true, v
		}
	}
	return notNull(found), nil
}

func notNull(v json.RawMessage) json.RawMessage {
	if string(v) == "null" {
		return nil
	}
	return v
}

// scalarText is the text of a string, and a number, true or false as it is written.
func scalarText(raw json.RawMessage, field string) (string, error) {
	switch raw[0] {
	case '"':
		if halfPair(raw) {
			return "", fmt.Errorf("%s has half a surrogate pair in it, which is no text", field)
		}
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case '{', '[':
		return "", fmt.Errorf("%s is neither a string nor a number", field)
	default:
		return string(raw), nil
	}
}

// shorten keeps a message short.
func shorten(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// ndjson reads NDJSON.
type ndjson struct {
	name  string
	r     *bufio.Reader
	max   int  // bytes of a line
	ended bool // the last line must end with a line feed
	n     int  // the line that was read last, from 1
	open  bool // it has no line feed
	buf   []byte
}

// next returns the next line that is not white space, without white space around
// it, until next is called again. The error is io.EOF at the end.
func (l *ndjson) next() ([]byte, error) {
	for {
		l.buf = l.buf[:0]
		for {
			piece, err := l.r.ReadSlice('\n')
			l.buf = append(l.buf, piece...)
			if len(l.buf) > l.max {
				l.n++
				return nil, l.fault(fmt.Errorf("it is longer than %d bytes", l.max))
			}
			if err == nil {
				break
			}
			if errors.Is(err, io.EOF) {
				if len(l.buf) == 0 {
					return nil, io.EOF
				}
				l.open = true
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return nil, fmt.Errorf("probe: %s: it broke off after line %d: %w", l.name, l.n, err)
			}
		}
		l.n++
		if l.open && l.ended {
			return nil, l.fault(errors.New("it does not end with a line feed, so it is cut off"))
		}
		if line := bytes.Trim(l.buf, " \t\r\n"); len(line) > 0 {
			return line, nil
		}
	}
}

// fault makes an error of the line.
func (l *ndjson) fault(err error) error {
	bad := &InputError{Source: l.name, Line: l.n, Reason: strings.TrimPrefix(err.Error(), "probe: ")}
	if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
		before := len(l.buf) - len(bytes.TrimLeft(l.buf, " \t\r\n"))
		bad.Column, bad.Reason = before+int(at.Offset), "it is not JSON: "+at.Error()
		if l.open {
			bad.Reason += " (it is the last line and does not end with a line feed: the file may be cut off)"
		}
	}
	return bad
}

// meter bounds what a CSV reader may take for one record, and knows the last
// byte and how many lines there were.
type meter struct {
	r     io.Reader
	used  int
	last  byte
	lines int // line feeds
}

// readAhead is what a CSV reader buffers beyond the record.
const readAhead = 4096

var errLong = fmt.Errorf("it is longer than %d bytes; a quote may be missing", MaxLine)

func (m *meter) Read(p []byte) (int, error) {
	if m.used > MaxLine+readAhead {
		return 0, errLong
	}
	n, err := m.r.Read(p)
	if m.used += n; n > 0 {
		m.last = p[n-1]
		m.lines += bytes.Count(p[:n], []byte("\n"))
	}
	return n, err
}

func (t Table) readCSV(in *bufio.Reader, each func(id string) error) (rows Rows, err error) {
	m := &meter{r: in}
	r := csv.NewReader(m)
	r.ReuseRecord = true
	line := 0
	next := 0 // where the record after an only field begins; 0 before there is one
	blank := func() error {
		return t.fault(next, 0, "it is blank: where there is one column, that is an empty field")
	}
	read := func() ([]string, error) {
		m.used = 0
		record, err := r.Read()
		bad := (*csv.ParseError)(nil)
		switch {
		case errors.Is(err, io.EOF) && next > 0 && m.lines >= next:
			return nil, blank()
		case errors.Is(err, io.EOF):
			if m.last != '\n' && m.last != 0 {
				return nil, t.fault(line, 0, "it is the last line and does not end with a line feed, so it may be cut off; if it is whole, add one")
			}
			return nil, io.EOF
		case errors.Is(err, errLong):
			return nil, t.fault(line+1, 0, "%v", err)
		case errors.Is(err, csv.ErrFieldCount):
			at, _ := r.FieldPos(0)
			return nil, t.fault(at, 0, "it has %d fields; the first line has %d", len(record), r.FieldsPerRecord)
		case errors.As(err, &bad):
			return nil, t.fault(bad.Line, bad.Column, "%v", bad.Err)
		case err != nil:
			return nil, t.broken(line, err)
		}
		line, _ = r.FieldPos(0)
		// The reader skips blank lines. That hides nothing where a record has more
		// fields than one; else it is how an effect without an intent is exported.
		if next > 0 && line != next {
			return nil, blank()
		}
		if len(record) == 1 {
			next = line + 1 + strings.Count(record[0], "\n")
		}
		return record, nil
	}

	head, err := read()
	if errors.Is(err, io.EOF) {
		return rows, t.fault(1, 0, "there is no line of column names")
	}
	if err != nil {
		return rows, err
	}
	column := func(name string) (int, error) {
		at := -1
		for i, h := range head {
			if h != name {
				continue
			}
			if at >= 0 {
				return 0, t.fault(1, 0, "there are two columns %q", name)
			}
			at = i
		}
		if at < 0 {
			return 0, t.fault(1, 0, "there is no column %q; there are %s", name, shorten(strings.Join(head, ", ")))
		}
		return at, nil
	}
	where := make([]int, len(t.Where))
	for i, c := range t.Where {
		if where[i], err = column(c.Field); err != nil {
			return rows, err
		}
	}
	field, err := column(t.Field)
	if err != nil {
		return rows, err
	}
	for {
		record, err := read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		chosen := true
		for i, c := range t.Where {
			chosen = chosen && record[where[i]] == c.Value
		}
		t.count(&rows, chosen)
		if chosen {
			// The record's fields are parts of one string that holds all of them.
			if err := t.take(line, strings.Clone(record[field]), each); err != nil {
				return rows, err
			}
		}
	}
}

// Reconciliation collects what was to happen and what did. All of it is in
// memory; see [DefaultMaxRows].
type Reconciliation struct {
	max     int
	index   map[string]int32 // where an intent is in intents
	intents []string
	ledger  []string
}

// NewReconciliation starts an empty one. limit bounds the intents, and the effects:
// 0 is DefaultMaxRows.
func NewReconciliation(limit int) *Reconciliation {
	if limit <= 0 {
		limit = DefaultMaxRows
	}
	limit = min(limit, math.MaxInt32) // what the index can name
	return &Reconciliation{max: limit, index: make(map[string]int32)}
}

// Expect adds an intent that was to happen once. Intents come before effects. An
// intent that is there already is an error: either it was to happen twice, and
// then it is two intents and needs two names, or the list is wrong.
func (r *Reconciliation) Expect(id string) error {
	if _, twice := r.index[id]; twice {
		return fmt.Errorf("probe: the intent %q is there already; two intents need two names", shorten(id))
	}
	if len(r.intents) >= r.max {
		return fmt.Errorf("probe: there are more than %d intents", r.max)
	}
	r.index[id] = int32(len(r.intents))
	r.intents = append(r.intents, id)
	return nil
}

// Commit adds an effect, which names its intent.
func (r *Reconciliation) Commit(id string) error {
	if len(r.ledger) >= r.max {
		return fmt.Errorf("probe: there are more than %d effects", r.max)
	}
	if i, known := r.index[id]; known {
		id = r.intents[i] // so that the text is in memory once
	}
	r.ledger = append(r.ledger, id)
	return nil
}

// Verdict is what a reconciliation found.
type Verdict struct {
	Expected int // intents
	idem.Report
}

// Clean reports whether every intent has exactly one effect and nothing else
// happened (R18).
func (v Verdict) Clean() bool { return v.Report.Clean() && v.Committed == v.Expected }

// Verdict judges what was added. Nothing can be added afterwards: the memory is
// given back.
func (r *Reconciliation) Verdict() Verdict {
	r.index = nil
	v := Verdict{Expected: len(r.intents), Report: idem.Reconcile(r.ledger, r.intents)}
	r.intents, r.ledger = nil, nil
	return v
}
