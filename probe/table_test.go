package probe

import (
	"bytes"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

func TestDetails(t *testing.T) {
	try := func(n int, intent string, replayed bool) Try {
		return Try{
			Number: n, Intent: intent, Key: intent, Request: "POST", Status: 200, Answer: "OK", Effect: idem.DoubtCommitted,
			Replayed: replayed, Then: "done",
		}
	}
	r := &Result{
		Scenario: "race", Policy: "p", Key: "stable", Shows: "what", Differs: []string{"dup is 1, declared is 0"},
		Tries:  []Try{try(1, "a", false), try(2, "a", true), try(3, "a", true)},
		Ledger: []string{"one\x1b[2J line", `{"zwölf":1}`}, Notes: []string{"a note"},
	}
	const head = "race (p, key stable): what\n  NOT AS DECLARED: dup is 1, declared is 0\n"
	const foot = "  ledger, 2 lines\n    one\uFFFD[2J line\n    {\"zwölf\":1}\n  a note\n"
	each := head + `  try  intent  key  request  answer  effect  replay    then
    1  a       a    POST     200 OK  done    -         done
    2  a       a    POST     200 OK  done    replayed  done
    3  a       a    POST     200 OK  done    replayed  done
` + foot
	var b bytes.Buffer
	if err := WriteDetails(&b, []*Result{r}, false); err != nil || b.String() != each {
		t.Errorf("%v\n%s\nwant\n%s", err, b.String(), each)
	}

	// A crowd is shown as one, and verbose shows it all.
	for n := 4; n <= 60; n++ {
		r.Tries = append(r.Tries, try(n, "a", true))
	}
	b.Reset()
	if err := WriteDetails(&b, []*Result{r}, false); err != nil || !strings.Contains(b.String(), "\n  2-60  a ") || strings.Count(b.String(), "\n") != 9 {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	if err := WriteDetails(&b, []*Result{r}, true); err != nil || strings.Count(b.String(), "\n") != 67 {
		t.Errorf("%v\n%s", err, b.String())
	}
	if err := WriteDetails(&failing{}, []*Result{r}, true); err == nil {
		t.Error("nobody says that it cannot be written")
	}
}

type failing struct{}

func (*failing) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

// TestJudge: a result is only good if every number is, and nothing else was seen.
func TestJudge(t *testing.T) {
	tries := []Try{{Intent: "a", Request: "POST"}, {Intent: "a", Request: "GET by key"}, {Intent: "b", Request: "POST"}}
	for _, c := range []struct {
		name    string
		entries []string
		fault   string
		ok      bool
		says    string
	}{
		{"as declared", []string{"a", "b"}, "", true, ""},
		{"doubled", []string{"a", "b", "b"}, "", false, "dup is 1, declared is 0"},
		{"lost", []string{"a"}, "", false, "lost is 1, declared is 0"},
		{"one of nobody", []string{"a", "b", "c"}, "", false, "1 effects of no intent: c"},
		{"something else", []string{"a", "b"}, "the audit is odd", false, "the audit is odd"},
	} {
		r := &Result{Declared: Numbers{Requests: 2, Committed: 2, Unique: 2}, Intents: []string{"a", "b"}, Tries: tries}
		if c.fault != "" {
			r.fault("%s", c.fault)
		}
		r.judge(c.entries)
		if r.OK != c.ok || !strings.Contains(strings.Join(r.Differs, "; "), c.says) {
			t.Errorf("%s: OK %t, %v", c.name, r.OK, r.Differs)
		}
	}
	// What was counted on the wire is believed, not what the client counted.
	r := &Result{Declared: Numbers{Requests: 2, Committed: 2, Unique: 2}, Intents: []string{"a", "b"}, Tries: tries, requests: 4}
	if r.judge([]string{"a", "b"}); r.OK || r.Requests != 4 {
		t.Errorf("%+v", r)
	}
}
