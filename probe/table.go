package probe

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/idemd/idemd/idem"
)

var titles = []string{"scenario", "policy", "key", "req", "committed", "uniq", "dup", "lost", "what it shows"}

// WriteTable writes a line for each scenario, under a line of titles.
func WriteTable(w io.Writer, results []*Result) error {
	rows := [][]string{titles}
	for _, r := range results {
		shows := r.Shows
		if !r.OK {
			shows = "NOT AS DECLARED: " + strings.Join(r.Differs, "; ")
		}
		rows = append(rows, slices.Concat([]string{r.Scenario, r.Policy, r.Key}, r.cells(), []string{shows}))
	}
	return write(w, align(rows, "lllrrrrrl", ""))
}

// WriteList writes what each scenario is declared to give.
func WriteList(w io.Writer, scenarios []Scenario) error {
	rows := [][]string{titles}
	for _, s := range scenarios {
		n := []string{"-", "-", "-", "0", "0"} // what a target is asked for is in its flags
		if s.On != OnTarget {
			n = s.Declared.cells()
		}
		rows = append(rows, slices.Concat([]string{s.Name, s.Policy, s.Key}, n, []string{s.Shows}))
	}
	return write(w, align(rows, "lllrrrrrl", ""))
}

func (n Numbers) cells() []string {
	return []string{
		fmt.Sprint(n.Requests), fmt.Sprint(n.Committed), fmt.Sprint(n.Unique), fmt.Sprint(n.Duplicates), fmt.Sprint(n.Lost),
	}
}

// manyTries is how many tries of one scenario are shown line by line; of more,
// those that are alike are shown together.
const manyTries = 40

// WriteDetails writes every try of each scenario and the lines of its ledger, so
// that nobody has to believe the table. Where a crowd of tries is alike, it is
// shown as one line, unless verbose is set.
func WriteDetails(w io.Writer, results []*Result, verbose bool) error {
	for i, r := range results {
		if i > 0 {
			if err := write(w, "\n"); err != nil {
				return err
			}
		}
		if err := r.write(w, verbose); err != nil {
			return err
		}
	}
	return nil
}

func (r *Result) write(w io.Writer, verbose bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s, key %s): %s\n", r.Scenario, r.Policy, r.Key, r.Shows)
	for _, d := range r.Differs {
		fmt.Fprintf(&b, "  NOT AS DECLARED: %s\n", d)
	}
	rows := [][]string{{"try", "intent", "key", "request", "answer", "effect", "replay", "then"}}
	for _, g := range alike(r.Tries, verbose || len(r.Tries) <= manyTries) {
		rows = append(rows, g.row())
	}
	b.WriteString(align(rows, "rlllllll", "  "))
	fmt.Fprintf(&b, "  ledger, %d %s\n", len(r.Ledger), plural(len(r.Ledger), "line", "lines"))
	for _, line := range r.Ledger {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	return write(w, printable(b.String()))
}

// group is a number of tries that differ in nothing but their number.
type group struct {
	Try
	of int
}

func alike(tries []Try, each bool) (groups []group) {
	for _, t := range tries {
		if n := len(groups); n > 0 && !each {
			last := groups[n-1].Try
			if last.Number = t.Number; last == t {
				groups[n-1].of++
				continue
			}
		}
		groups = append(groups, group{Try: t, of: 1})
	}
	return groups
}

func (g group) row() []string {
	number := fmt.Sprint(g.Number)
	if g.of > 1 {
		number = fmt.Sprintf("%d-%d", g.Number, g.Number+g.of-1)
	}
	answer := g.Answer
	if g.Status != 0 {
		answer = strings.TrimSpace(fmt.Sprint(g.Status, " ", g.Answer))
	}
	replay := "-"
	if g.Replayed {
		replay = "replayed"
	}
	key := g.Key
	if key == "" {
		key = "-"
	}
	return []string{number, g.Intent, key, g.Request, answer, words(g.Effect), replay, g.Then}
}

// words says what is known of an effect.
func words(d idem.Doubt) string {
	switch d {
	case idem.DoubtCommitted:
		return "done"
	case idem.DoubtUnknown:
		return "unknown"
	default:
		return "none"
	}
}

// printable replaces what a terminal would act on: lines of a ledger and answers
// are what others wrote.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

func plural(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// align writes rows in columns, each of them as wide as its widest cell; sides
// has an l or an r for each column.
func align(rows [][]string, sides, indent string) string {
	widths := make([]int, len(sides))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		line.WriteString(indent)
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			blank := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if sides[i] == 'r' {
				line.WriteString(blank + cell)
			} else {
				line.WriteString(cell + blank)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

func write(w io.Writer, s string) error {
	if _, err := io.WriteString(w, s); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}
