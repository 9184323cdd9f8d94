package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// readAll reads a table and returns its ids.
func readAll(t Table, text string) (ids []string, rows Rows, err error) {
	if t.Name == "" {
		t.Name = "in"
	}
	rows, err = t.Read(iotest.OneByteReader(strings.NewReader(text)), func(id string) error {
		ids = append(ids, id)
		return nil
	})
	return ids, rows, err
}

func TestTable(t *testing.T) {
	captured := []Condition{{"status", "captured"}}
	for _, tc := range []struct {
		name    string
		table   Table
		text    string
		ids     string // joined by a bar
		skipped int
	}{
		{"idemd's own lines", Table{Ended: true}, `{"effect_id":"e","idem_key":"a","amount":1}` + "\n" + `{"idem_key":"b"}` + "\n", "a|b", 0},
		{"strings, white space, CRLF", Table{Format: FormatNDJSON}, "\r\n \"a\" \r\n\n\"\\u00e9\"\t\r\n", "a|é", 0},
		{"a byte order mark", Table{}, "\xEF\xBB\xBF" + `{"idem_key":"a"}`, "a", 0},
		{"no line feed at the end", Table{}, `{"idem_key":"a"}`, "a", 0},
		{"another member", Table{Field: "order"}, `{"idem_key":"x","order":"a"}`, "a", 0},
		{"a whole number", Table{}, `{"idem_key":12345678901234567890}` + "\n" + `{"idem_key":-1}`, "12345678901234567890|-1", 0},
		{"a pointer", Table{Field: "/data/0/a~1b~0"}, `{"data":[{"a/b~":"a"}]}`, "a", 0},
		{"conditions", Table{Where: []Condition{{"status", "captured"}, {"live", "true"}, {"n", "1.0"}}},
			`{"idem_key":"a","status":"captured","live":true,"n":1.0}` + "\n" + `{"idem_key":"b","status":"captured","live":true,"n":1}` + "\n" + `{"status":"open","live":false,"n":1.0}`, "a", 2},
		{"nothing", Table{}, "", "", 0},
		{"white space", Table{Name: "x"}, " \n\n", "", 0},

		{"CSV", Table{}, "idem_key,amount\na,1\nb,2\n", "a|b", 0},
		{"CSV by its name, whatever it begins with", Table{Name: "x.CSV", Field: "{"}, "{,b\na,1\n", "a", 0},
		{"CSV: quotes, commas, line feeds", Table{}, "amount,\"idem_key\"\r\n1,\"a,\"\"b\"\"\nc\"\r\n\r\n2, d \r\n", "a,\"b\"\nc| d ", 0},
		{"CSV: a byte order mark", Table{}, "\xEF\xBB\xBFidem_key\na\n", "a", 0},
		{"CSV: conditions", Table{Where: captured}, "status,idem_key\ncaptured,a\nopen,b\n\"captured\",c\n,\n", "a|c", 2},
		{"CSV: conditions, all of them", Table{Where: []Condition{{"status", "captured"}, {"live", "yes"}}}, "status,idem_key,live\ncaptured,a,yes\nopen,b,yes\ncaptured,c,no\n", "a", 2},
		{"CSV: a name that begins with a slash", Table{Field: "/id"}, "/id\na\n", "a", 0},
		{"CSV: only names", Table{}, "idem_key\n", "", 0},
		{"CSV: blank lines", Table{}, "\n\r\nidem_key,b\n\na,1\n\n\n", "a", 0},
		{"CSV: one column, and fields of more than one line", Table{}, "\nidem_key\r\n\"a\n\r\nb\"\nc\n", "a\n\nb|c", 0},
		{"surrogate pairs, and what only looks like half of one", Table{Format: FormatNDJSON}, `{"idem_key":"\ud83d\uDE00","x":"\ud83d"}` + "\n" + `"\\ud83d"`, `😀|\ud83d`, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ids, rows, err := readAll(tc.table, tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(ids, "|"); got != tc.ids || rows.Skipped != tc.skipped || rows.Read != len(ids)+tc.skipped {
				t.Errorf("%q, %+v", got, rows)
			}
		})
	}
}

func TestTableRefuses(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	for _, tc := range []struct {
		name         string
		table        Table
		text         string
		line, column int
		reason       string
	}{
		{"no JSON", Table{}, `{"idem_key":"a"}` + "\n\n" + `  {"idem_key":?}` + "\n", 3, 15, "not JSON"},
		{"two documents on a line", Table{}, `{"idem_key":"a"} {"idem_key":"b"}`, 1, 18, "not JSON"},
		{"a last line that is cut off", Table{}, `{"idem_key":"a"}` + "\n" + `{"idem_key":"b`, 2, 14, "may be cut off"},
		{"a stream without its last line feed", Table{Format: FormatNDJSON, Ended: true}, `{"idem_key":"a"}` + "\n" + `{"idem_key":"b"}`, 2, 0, "cut off"},
		{"no such member", Table{}, `{"idem_key":"a"}` + "\n" + `{"idem_kex":"b"}`, 2, 0, "there is no idem_key"},
		{"names are exact", Table{}, `{"Idem_Key":"a"}`, 1, 0, "there is no idem_key"},
		{"null", Table{}, `{"idem_key":null}`, 1, 0, "there is no idem_key"},
		{"empty", Table{}, `{"idem_key":""}`, 1, 0, "empty"},
		{"empty string line", Table{Format: FormatNDJSON}, `""`, 1, 0, "empty"},
		{"a member twice", Table{}, `{"idem_key":"a","idem_key":"b"}`, 1, 0, "idem_key is there twice"},
		{"a number that has several spellings", Table{}, `{"idem_key":1.0}`, 1, 0, "whole number"},
		{"an exponent", Table{}, `{"idem_key":1e3}`, 1, 0, "whole number"},
		{"true", Table{}, `{"idem_key":true}`, 1, 0, "whole number"},
		{"an object", Table{}, `{"idem_key":{}}`, 1, 0, "neither a string nor a number"},
		{"a pointer into nothing", Table{Field: "/a/1"}, `{"a":["x"]}`, 1, 0, "there is no /a/1"},
		{"a pointer with a zero before", Table{Field: "/a/00"}, `{"a":["x"]}`, 1, 0, "there is no /a/00"},
		{"a pointer through a string", Table{Field: "/a/b"}, `{"a":"x"}`, 1, 0, "there is no /a/b"},
		{"an array", Table{}, `["a"]`, 1, 0, "object a line"},
		{"a number", Table{Format: FormatNDJSON}, `1`, 1, 0, "neither an object nor a string"},
		{"no member to choose by", Table{Where: []Condition{{"status", "x"}}}, `{"idem_key":"a"}`, 1, 0, "there is no status"},
		{"a string, and conditions", Table{Format: FormatNDJSON, Where: []Condition{{"status", "x"}}}, `"a"`, 1, 0, "no fields"},
		{"not UTF-8", Table{}, "{\"idem_key\":\"\xFF\"}", 1, 0, "not UTF-8"},
		{"UTF-16", Table{}, "\xFF\xFEi\x00", 1, 0, "UTF-16"},
		{"half a surrogate pair", Table{}, `{"idem_key":"a\ud83d"}`, 1, 0, "idem_key has half a surrogate pair"},
		{"the other half", Table{Format: FormatNDJSON}, `"\uDE00"`, 1, 0, "half a surrogate pair"},
		{"half a pair before a pair", Table{}, `{"idem_key":"\ud83d\ud83d\ude00"}`, 1, 0, "half a surrogate pair"},
		{"half a pair before another escape", Table{}, `{"idem_key":"\ud83d\n"}`, 1, 0, "half a surrogate pair"},
		{"half a pair to choose by", Table{Where: []Condition{{"status", "x"}}}, `{"idem_key":"a","status":"\ud83d"}`, 1, 0, "status has half a surrogate pair"},
		{"a line that is too long", Table{}, `{"idem_key":"a"}` + "\n" + `{"idem_key":"` + long + `"}`, 2, 0, "longer than 1048576 bytes"},
		{"an id that is too long", Table{}, `{"idem_key":"` + long[:MaxID+1] + `"}`, 1, 0, "idem_key is longer than 1024 bytes"},

		{"CSV: nothing", Table{Format: FormatCSV}, "", 1, 0, "no line of column names"},
		{"CSV: no such column", Table{}, "id,amount\na,1\n", 1, 0, `no column "idem_key"; there are id, amount`},
		{"CSV: no column to choose by", Table{Where: []Condition{{"status", "x"}}}, "idem_key\na\n", 1, 0, `no column "status"`},
		{"CSV: a column twice", Table{}, "idem_key,idem_key\na,b\n", 1, 0, "two columns"},
		{"CSV: a short row", Table{}, "idem_key,b\na,1\nb\nc,2\n", 3, 0, "it has 1 fields; the first line has 2"},
		{"CSV: a long row", Table{}, "idem_key\na\nb,c\n", 3, 0, "it has 2 fields"},
		{"CSV: a bare quote", Table{}, "idem_key\na\nb\"c\n", 3, 2, "bare"},
		{"CSV: a quote that does not end", Table{}, "idem_key\na\n\"b\nc\n", 4, 0, "quote"},
		{"CSV: empty", Table{}, "idem_key,b\n,1\n", 2, 0, "empty"},
		{"CSV: a blank line in one column", Table{}, "idem_key\na\n\nb\n", 3, 0, "blank"},
		{"CSV: a blank line after a field of two lines", Table{}, "idem_key\n\"a\nb\"\n\r\nb\n", 4, 0, "blank"},
		{"CSV: a blank line in the end of one column", Table{}, "idem_key\na\n\n", 3, 0, "blank"},
		{"CSV: nothing but a blank line", Table{}, "idem_key\n\n", 2, 0, "blank"},
		{"CSV: not UTF-8", Table{}, "idem_key\na\n\xE9\n", 3, 0, "not UTF-8"},
		{"CSV: a last line that may be cut off", Table{}, "amount,idem_key\n1,a\n2,b", 3, 0, "may be cut off"},
		{"CSV: a record that is too long", Table{}, "idem_key\na\n\"" + long + long[:8192], 3, 0, "longer than 1048576 bytes"},
		{"CSV: an id that is too long", Table{}, "idem_key\n" + long[:MaxID+1] + "\n", 2, 0, "longer than 1024"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := readAll(tc.table, tc.text)
			bad := (*InputError)(nil)
			if !errors.As(err, &bad) {
				t.Fatalf("%v", err)
			}
			if bad.Line != tc.line || tc.column > 0 && bad.Column != tc.column || !strings.Contains(bad.Reason, tc.reason) {
				t.Errorf("%v", err)
			}
			if !strings.HasPrefix(err.Error(), "probe: in: line ") {
				t.Errorf("%v", err)
			}
		})
	}
	if _, _, err := readAll(Table{Format: "xml"}, "x"); err == nil {
		t.Error("a format that there is not")
	}
}

// A line of the longest length is read, and so is a record.
func TestTableAtTheBound(t *testing.T) {
	line := `{"idem_key":"a","x":"` + strings.Repeat("x", MaxLine-24) + `"}` + "\n"
	if len(line) != MaxLine {
		t.Fatal(len(line))
	}
	record := "a," + strings.Repeat("x", MaxLine-3) + "\n"
	for _, text := range []string{line + line, "idem_key,x\n" + record + record} {
		ids := 0
		if _, err := (Table{}).Read(strings.NewReader(text), func(string) error { ids++; return nil }); err != nil || ids != 2 {
			t.Errorf("%d ids, %v", ids, err)
		}
	}
}

// A source that fails is never a shorter table.
func TestTableBroken(t *testing.T) {
	lost := errors.New("the connection is gone")
	for name, text := range map[string]string{
		"before anything":         "",
		"after a line":            `{"idem_key":"a"}` + "\n",
		"within a line":           `{"idem_key":"a"}` + "\n" + `{"idem`,
		"within a line that fits": `{"idem_key":"a"}`,
		"CSV, after a line":       "idem_key\na\n",
		"CSV, within a line":      "idem_key\na",
	} {
		t.Run(name, func(t *testing.T) {
			r := io.MultiReader(strings.NewReader(text), iotest.ErrReader(lost))
			_, err := (Table{}).Read(r, func(string) error { return nil })
			if bad := (*InputError)(nil); !errors.Is(err, lost) || errors.As(err, &bad) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTableProgress(t *testing.T) {
	var told []int
	in := strings.Repeat("\"a\"\n", 2*progressEvery+5)
	_, err := (Table{Format: FormatNDJSON, Progress: func(n int) { told = append(told, n) }}).Read(strings.NewReader(in), func(string) error { return nil })
	if err != nil || !slices.Equal(told, []int{progressEvery, 2 * progressEvery}) {
		t.Errorf("%v, %v", told, err)
	}
}

func TestParseCondition(t *testing.T) {
	if c, err := ParseCondition("a=b=c"); err != nil || c != (Condition{"a", "b=c"}) {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := ParseCondition("a="); err != nil || c != (Condition{"a", ""}) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, s := range []string{"", "a", "=b"} {
		if _, err := ParseCondition(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// Every planted defect is found, and nothing else (R18).
func TestReconciliation(t *testing.T) {
	for _, tc := range []struct {
		name            string
		intents, ledger string
		want            string
		clean           bool
	}{
		{"clean, in another order", "a b c", "c a b", "3 3 3 0[] 0[] 0[]", true},
		{"a duplicate", "a b", "a b a", "2 3 2 1[a] 0[] 0[]", false},
		{"two duplicates of one", "a b", "a a b a", "2 4 2 2[a] 0[] 0[]", false},
		{"a loss", "a b", "b", "2 1 1 0[] 1[a] 0[]", false},
		{"an effect of no intent", "a", "a x x", "1 3 1 0[] 0[] 2[x]", false},
		{"a loss made up for by a duplicate", "a b", "a a", "2 2 1 1[a] 1[b] 0[]", false},
		{"an empty ledger", "a", "", "1 0 0 0[] 1[a] 0[]", false},
		{"nothing at all", "", "", "0 0 0 0[] 0[] 0[]", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewReconciliation(0)
			for _, id := range strings.Fields(tc.intents) {
				if err := r.Expect(id); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range strings.Fields(tc.ledger) {
				if err := r.Commit(id); err != nil {
					t.Fatal(err)
				}
			}
			v := r.Verdict()
			got := fmt.Sprintf("%d %d %d %d%v %d%v %d%v", v.Expected, v.Committed, v.Distinct, v.Duplicates, v.DuplicateIDs, v.Lost, v.LostIDs, v.Unexpected, v.UnexpectedIDs)
			if got != tc.want || v.Clean() != tc.clean {
				t.Errorf("%s, clean %v; want %s", got, v.Clean(), tc.want)
			}
		})
	}
}

func TestReconciliationRefuses(t *testing.T) {
	r := NewReconciliation(2)
	_, err := Table{Name: "in", Format: FormatNDJSON}.Read(strings.NewReader("\"a\"\n\"b\"\n\"a\"\n"), r.Expect)
	if bad := (*InputError)(nil); !errors.As(err, &bad) || bad.Line != 3 || !strings.Contains(bad.Reason, `"a" is there already`) || strings.Contains(bad.Reason, "probe") {
		t.Errorf("%v", err)
	}
	if err := r.Expect("c"); err == nil || !strings.Contains(err.Error(), "more than 2 intents") {
		t.Errorf("%v", err)
	}
	for i := range 3 {
		if err := r.Commit("x"); (err != nil) != (i == 2) {
			t.Errorf("effect %d: %v", i, err)
		}
	}
}

// What is kept in memory is what DefaultMaxRows says. It fails where somebody
// keeps more of a row.
func TestReconciliationMemory(t *testing.T) {
	const n = 50_000
	feed := func(kind string) io.Reader {
		var b bytes.Buffer
		b.WriteString("idem_key,comment\n")
		for i := range n {
			fmt.Fprintf(&b, "%s-%034d,%0200d\n", kind, i, i) // of which only the id is kept
		}
		return &b
	}
	for _, tc := range []struct {
		name            string
		intents, ledger string
		most            int // bytes for an intent and an effect
	}{
		{"matching", "a", "a", 140},
		{"not matching", "a", "b", 190},
	} {
		t.Run(tc.name, func(t *testing.T) {
			intents, ledger := feed(tc.intents), feed(tc.ledger)
			before := heap()
			r := NewReconciliation(0)
			table := Table{Name: "in", Format: FormatCSV}
			if _, err := table.Read(intents, r.Expect); err != nil {
				t.Fatal(err)
			}
			if _, err := table.Read(ledger, r.Commit); err != nil {
				t.Fatal(err)
			}
			if got := (heap() - before) / n; got > tc.most {
				t.Errorf("%d bytes, want at most %d", got, tc.most)
			}
			runtime.KeepAlive(intents)
			runtime.KeepAlive(ledger)
			runtime.KeepAlive(r)
		})
	}
}

// heap is what is in memory and not garbage.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
