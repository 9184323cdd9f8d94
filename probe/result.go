package probe

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/idemd/idemd/idem"
)

// SchemaVersion is the version of [Results] as JSON. It goes up when a member is
// renamed, removed or gets another meaning.
const SchemaVersion = 1

// Results is what a run of the probe found.
type Results struct {
	SchemaVersion int       `json:"schema_version"`
	OK            bool      `json:"ok"` // every scenario is as it was declared
	Scenarios     []*Result `json:"scenarios"`
}

// Numbers are what a scenario is judged by. All but Requests are counted in the
// ledger, by [idem.Reconcile].
type Numbers struct {
	Requests   int `json:"req"`       // requests that ask for the effect, on the wire
	Committed  int `json:"committed"` // effects in the ledger
	Unique     int `json:"uniq"`      // intents with at least one effect
	Duplicates int `json:"dup"`       // effects beyond the first of an intent
	Lost       int `json:"lost"`      // intents without an effect
}

// Result is what became of one scenario.
type Result struct {
	Scenario string  `json:"scenario"`
	On       Subject `json:"on"`
	Policy   string  `json:"policy"`
	Key      string  `json:"key"`
	Numbers
	Shows string `json:"shows"`

	Declared Numbers  `json:"declared"`
	OK       bool     `json:"ok"`
	Differs  []string `json:"differs"` // in what it is not as declared; empty if OK

	Intents []string `json:"intents"`
	Tries   []Try    `json:"tries"`
	Ledger  []string `json:"ledger"` // its lines, as they were written
	Notes   []string `json:"notes"`  // what else was seen

	// requests were counted on the wire; 0: every try that asks for the effect
	// is one.
	requests int
}

// Try is one request of a client on the wire.
type Try struct {
	Number   int        `json:"try"` // of its intent, from 1
	Intent   string     `json:"intent"`
	Key      string     `json:"key"` // as sent; empty if none was
	Request  string     `json:"request"`
	Status   int        `json:"status"` // 0: no answer
	Answer   string     `json:"answer"` // in words: the code of a refusal, or why there is none
	Effect   idem.Doubt `json:"effect"` // what the client knows of the effect after it
	Replayed bool       `json:"replayed"`
	Then     string     `json:"then"` // what the client did next
}

// asks reports whether the try asks for the effect.
func (t Try) asks() bool { return strings.HasPrefix(t.Request, "POST") }

// numbers puts together what was counted on the wire and in the ledger.
func numbers(requests int, r idem.Report) Numbers {
	return Numbers{
		Requests: requests, Committed: r.Committed, Unique: r.Distinct,
		Duplicates: r.Duplicates, Lost: r.Lost,
	}
}

// differences says in what numbers are not as declared.
func differences(declared, measured Numbers) (words []string) {
	for _, n := range []struct {
		name           string
		declared, seen int
	}{
		{"req", declared.Requests, measured.Requests},
		{"committed", declared.Committed, measured.Committed},
		{"uniq", declared.Unique, measured.Unique},
		{"dup", declared.Duplicates, measured.Duplicates},
		{"lost", declared.Lost, measured.Lost},
	} {
		if n.declared != n.seen {
			words = append(words, fmt.Sprintf("%s is %d, declared is %d", n.name, n.seen, n.declared))
		}
	}
	return words
}

// judge counts the ledger and compares it with what was declared. Entries name
// intents, one an effect.
func (r *Result) judge(entries []string) {
	requests := r.requests
	for _, t := range r.Tries {
		if r.requests == 0 && t.asks() {
			requests++
		}
	}
	found := idem.Reconcile(entries, r.Intents)
	r.Numbers = numbers(requests, found)
	r.Differs = append(append([]string{}, differences(r.Declared, r.Numbers)...), r.Differs...)
	if found.Unexpected > 0 {
		r.Differs = append(r.Differs, fmt.Sprintf("%d effects of no intent: %s",
			found.Unexpected, brief(strings.Join(found.UnexpectedIDs, ", "))))
	}
	r.OK = len(r.Differs) == 0
}

// last is the last try; the zero value where there is none.
func (r *Result) last() Try {
	if len(r.Tries) == 0 {
		return Try{}
	}
	return r.Tries[len(r.Tries)-1]
}

// note adds a line of what was seen.
func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// fault adds something that is not as declared, besides the numbers.
func (r *Result) fault(format string, args ...any) {
	r.Differs = append(r.Differs, fmt.Sprintf(format, args...))
}

// readLines reads a file's lines.
func readLines(file string) ([]string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("probe: a ledger: %w", err)
	}
	text := strings.TrimSuffix(string(raw), "\n")
	if text == "" {
		return nil, nil
	}
	return strings.Split(text, "\n"), nil
}

// entriesOf reads which intents the lines of a ledger are about.
func entriesOf(lines []string, field string) (entries []string, err error) {
	_, err = Table{Name: "ledger.ndjson", Field: field}.Read(strings.NewReader(strings.Join(lines, "\n")),
		func(id string) error { entries = append(entries, id); return nil })
	return entries, err
}

// ErrPrecondition means that the probe could not do its work: something that it
// needs is not there. It says nothing about what was to be proved.
var ErrPrecondition = errors.New("probe: a precondition is missing")

// precondition says what is missing.
func precondition(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrPrecondition, fmt.Errorf(format, args...))
}

// number puts tries whose order is chance into one: those that did it before those
// that were given its answer again, those without an answer last.
func number(tries []Try) []Try {
	slices.SortStableFunc(tries, func(a, b Try) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Status, b.Status),
			cmp.Compare(a.Answer, b.Answer), cmp.Compare(a.Then, b.Then))
	})
	for i := range tries {
		tries[i].Number = i + 1
	}
	return tries
}

func place(t Try) int {
	switch {
	case t.Status == 0:
		return 2
	case t.Replayed:
		return 1
	default:
		return 0
	}
}

// brief is the beginning of a text that may be long.
func brief(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
