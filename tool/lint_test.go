package tool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

func httpSpec(change func(s *Spec)) *Spec {
	s := &Spec{
		Name: "a", Effects: idem.EffectsExternal, Rerun: idem.RerunHold, Timeout: 10 * time.Second,
		Schema: []byte(`{"type":"object","required":["x"]}`),
		HTTP: &HTTP{
			Method: "POST", URL: "https://pay.example/refunds?k=hush", Headers: map[string][]string{"Authorization": {"hush"}},
			EffectKey: EffectKey{Header: "Idempotency-Key"}, Success: []int{201, 200}, Final: []int{400}, Retryable: []int{429},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func commandSpec(change func(s *Spec)) *Spec {
	s := httpSpec(nil)
	s.HTTP = nil
	s.Command = &Command{Argv: []string{"/bin/prog", "hush"}, Env: map[string]string{"ID": "{effect_id}", "A": "hush"}, FinalExit: []int{2, 1}, RetryableExit: []int{75}}
	if change != nil {
		change(s)
	}
	return s
}

func rerun(s *Spec) {
	s.Rerun = idem.RerunYes
	if s.HTTP != nil {
		s.HTTP.EffectKey.Honours = true
	} else {
		s.Command.Honours = true
	}
}

func verified(s *Spec) {
	s.Rerun = idem.RerunVerify
	s.Verify = &Verify{Method: "GET", URL: "https://ask.example/{effect_id}/hush", Found: []int{200}, Absent: []int{404, 410}, Settle: 20 * time.Second}
}

func none(s *Spec) {
	s.Effects, s.Rerun = idem.EffectsNone, idem.RerunYes
	if s.HTTP != nil {
		s.HTTP.EffectKey = EffectKey{}
	}
}

func unrecorded(s *Spec) { none(s); s.Unrecorded = true }

// What is said follows from what is declared.
func TestExplain(t *testing.T) {
	const (
		heldAfter  = "the call is held. Nothing is sent again until a person has decided."
		askedAfter = "the call is held and downstream is asked, as after a kill."
		againAfter = "the call fails as retryable; it runs again when its client asks with the same key, and not before."
		mayAsk     = "the call fails as retryable, and the same key may ask again."
	)
	for _, tc := range []struct {
		name string
		spec *Spec
		want map[string]string // by when: a part of what; "" says that there is no such moment
	}{
		{"http, hold", httpSpec(nil), map[string]string{
			"effect":                  "Outside, where only the other side knows whether it happened: POST to https://pay.example.",
			"sent twice":              "goes in the header Idempotency-Key. It is not declared to be honoured: sent twice, the thing may be done twice.",
			"record":                  "",
			"daemon killed":           "",
			"killed before dispatch":  "While the call waits in the queue nothing was sent: the next start runs it. Once a worker has it, the next start cannot tell whether it was sent",
			"killed after dispatch":   "The next start holds the call. Nothing is sent again until a person has decided.",
			"killed after the answer": "it is held, although there was an answer.",
			"clean stop":              "What does not end in time is broken off and held, as after a kill.",
			"its processes":           "",
			"time-out":                "A connection, but no whole answer after 10s: nobody knows what was done: " + heldAfter,
			"no connection":           "nothing was sent. The call fails as retryable, and the same key may ask again.",
			"answer lost":             "A connection, then reset, closed, half an answer: nobody knows what was done: " + heldAfter,
			"200, 201":                "Done; the call succeeds, and the answer is its result.",
			"400":                     "Not done; the call fails for good, and the same key gets the same answer.",
			"429":                     "Not done; " + mayAsk,
			"any other status":        "Nobody knows what was done (redirects are not followed): " + heldAfter,
			"exit 0":                  "",
			"how often":               "At most once, unless the answer said that nothing was done and its client asks again with the same key, or a person decides so. There is no bound",
			"held":                    "It may have been done or not, and idemd sends nothing for the key any more. Clients get 409 outcome_unknown and stop.",
		}},
		{"http, verify", httpSpec(verified), map[string]string{
			"killed after dispatch":   "The next start holds the call and asks: GET of https://ask.example by the effect id. 200: it succeeds with what was found, also where that is an empty list. 404, 410: it runs again, but that is believed only when 20s have passed since it was held, or since the last start: downstream must never be at work for longer. Any other answer, or none: it stays held",
			"killed after the answer": "it is held, and downstream is asked.",
			"clean stop":              "is broken off and held, as after a kill.",
			"time-out":                askedAfter,
			"no connection":           "The call fails as retryable",
			"answer lost":             askedAfter,
			"any other status":        askedAfter,
			"how often":               "After a lost answer once more only when downstream has said that it was not done, or a person has.",
			"held":                    "idemd sends nothing for the key any more unless downstream says that it was not done.",
		}},
		{"http, verify, time-out of the server", httpSpec(func(s *Spec) { verified(s); s.Timeout, s.Verify.Settle = 0, 0 }), map[string]string{
			"killed after dispatch": "only when two times --tool-timeout have passed",
			"time-out":              "no whole answer after --tool-timeout",
		}},
		{"http, rerun", httpSpec(func(s *Spec) { rerun(s); s.HTTP.Retryable = []int{503, 429} }), map[string]string{
			"sent twice":              "It is declared to be honoured: sent twice, the thing is done once.",
			"killed after dispatch":   "The next start runs it again at once, with the same effect id; after --max-crashes deaths of the daemon that it was part of, it is failed for good (attempts_exhausted), and nobody knows whether it was done.",
			"killed after the answer": "downstream is asked again, and knows the effect id.",
			"clean stop":              "What does not end in time is broken off, and runs again at the next start.",
			"time-out":                againAfter,
			"answer lost":             againAfter,
			"429, 503":                "Not done, or done once and not again by a second request; " + mayAsk,
			"any other status":        againAfter,
			"how often":               "As often as its client asks again with the same key while it fails as retryable, and once for each start that finds it unfinished.",
			"held":                    "Rare: ",
		}},
		{"http, bounds", httpSpec(func(s *Spec) { rerun(s); s.MaxAttempts, s.MaxCrashes, s.Concurrency = 7, 5, 3 }), map[string]string{
			"at a time":             "At most 3 of its calls run; more wait.",
			"killed after dispatch": "after 5 deaths of the daemon",
			"how often":             "Attempt 7 is the last, also after a kill: a failure that could be asked for again is for good then (attempts_exhausted), or the call is held where nobody knows what was done.",
		}},
		{"http, none, bounds", httpSpec(func(s *Spec) { none(s); s.MaxAttempts = 7 }), map[string]string{
			"how often": "is for good then (attempts_exhausted).",
		}},
		{"http, verify, bounds", httpSpec(func(s *Spec) { verified(s); s.MaxAttempts = 7 }), map[string]string{
			"how often": "or the call is held where nobody knows what was done; what downstream does not know of then has failed for good.",
		}},
		{"http, pointer", httpSpec(func(s *Spec) { s.HTTP.EffectKey = EffectKey{Pointer: "/meta/id"} }), map[string]string{"sent twice": "goes in the body at /meta/id."}},
		{"http, URL", httpSpec(func(s *Spec) { s.HTTP.EffectKey, s.HTTP.URL = EffectKey{}, "http://h/{effect_id}" }), map[string]string{"sent twice": "goes in the URL."}},
		{"http, success only", httpSpec(func(s *Spec) { s.HTTP.Final, s.HTTP.Retryable = nil, nil }), map[string]string{"": ""}},
		{"http, none", httpSpec(none), map[string]string{
			"effect":                  "None is declared, so that asking again does no harm: POST to https://pay.example.",
			"sent twice":              "",
			"killed after dispatch":   "The next start runs it again at once; after",
			"killed after the answer": "it is run again.",
			"time-out":                againAfter,
			"any other status":        againAfter,
			"held":                    "Never, but for calls that were begun when it was declared otherwise.",
		}},
		{"http, no record", httpSpec(unrecorded), map[string]string{
			"record":                "None: no call is stored, nothing is replayed.",
			"daemon killed":         "The call is gone",
			"killed after dispatch": "",
			"clean stop":            "What does not end in time is broken off: whoever asked gets 503, and may ask again.",
			"at a time":             "At most as many of its calls as half of --workers run",
			"time-out":              "whoever asked is told that it failed and may ask again; nothing is kept.",
			"no connection":         "Whoever asked is told that it may be asked for again.",
			"200, 201":              "Done; the answer is the result.",
			"400":                   "Not done; whoever asked is told so.",
			"429":                   "Not done; whoever asked is told that it may be asked for again.",
			"how often":             "Once for each request.",
			"held":                  "Never, but for calls that were begun when it was declared otherwise.",
		}},
		{"command, hold", commandSpec(nil), map[string]string{
			"effect":                "a program of this machine, without a shell: /bin/prog.",
			"sent twice":            "goes in the variable ID. It is not declared to be honoured",
			"its processes":         "On Linux a killed daemon takes the program along, elsewhere not. What the program itself had started is left",
			"time-out":              "After 10s the program and all that it has started are killed, save what left its process group; " + heldAfter,
			"it cannot be started":  "Nothing was done: " + mayAsk,
			"no connection":         "",
			"exit 0":                "Done; what it wrote to stdout is the result.",
			"exit 1, 2":             "Not done, for good.",
			"exit 75":               "Not done; " + mayAsk,
			"any other end":         "Another exit code or a signal: nobody knows what was done: " + heldAfter,
			"any other status":      "",
			"killed after dispatch": "The next start holds the call.",
		}},
		{"command, rerun", commandSpec(rerun), map[string]string{
			"killed after the answer": "the program is asked again, and knows the effect id.",
			"any other end":           againAfter,
		}},
		{"command, argument", commandSpec(func(s *Spec) { s.Command.Argv[1] = "--id={effect_id}" }), map[string]string{"sent twice": "goes in argument 1."}},
		{"command, not told", commandSpec(func(s *Spec) { s.Command.Env = nil }), map[string]string{"sent twice": "The program is not told the effect id. It is not declared"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.spec.Validate(); err != nil {
				t.Fatal(err)
			}
			said := make(map[string]string)
			for _, m := range tc.spec.Explain() {
				if _, twice := said[m.When]; twice {
					t.Errorf("%q twice", m.When)
				}
				said[m.When] = m.What
				if strings.Contains(m.When+m.What, "hush") {
					t.Errorf("a secret is shown: %s", m.What)
				}
			}
			for when, want := range tc.want {
				got, there := said[when]
				switch {
				case want == "" && there:
					t.Errorf("%q is said: %s", when, got)
				case !strings.Contains(got, want):
					t.Errorf("%q:\ngot  %s\nwant %s", when, got, want)
				}
			}
			// Whoever holds calls says how they are decided.
			for _, outcome := range []string{"succeeded --by", "failed --by", "retry --attempt N --by"} {
				if got := strings.Contains(said["held"], "idemd resolve ID --outcome "+outcome+" NAME"); got != (tc.spec.Effects == idem.EffectsExternal) {
					t.Errorf("resolve %s: %v", outcome, got)
				}
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for _, tc := range []struct {
		name string
		spec *Spec
		want string // a part of the only one
	}{
		{"none", httpSpec(nil), ""},
		{"none, command", commandSpec(nil), ""},
		{"all is held", httpSpec(func(s *Spec) { s.HTTP.Final, s.HTTP.Retryable = nil, nil }), "every answer but success leaves a call held"},
		{"all is held, command", commandSpec(func(s *Spec) { s.Command.FinalExit, s.Command.RetryableExit = nil, nil }), "every end but exit 0 leaves a call held"},
		{"not held", httpSpec(func(s *Spec) { verified(s); s.HTTP.Final, s.HTTP.Retryable = nil, nil }), ""},
		{"not told", commandSpec(func(s *Spec) { s.Command.Env = nil }), "the program is not told the effect id"},
		{"concurrency", httpSpec(func(s *Spec) { s.Concurrency = 16 }), "concurrency 16 is not below the number of workers (16"},
		{"less concurrency", httpSpec(func(s *Spec) { s.Concurrency = 15 }), ""},
		{"bare credentials", httpSpec(func(s *Spec) { s.HTTP.URL = "http://pay.example/" }), "http.url is plain http to another machine"},
		{"bare credentials, loopback", httpSpec(func(s *Spec) { s.HTTP.URL = "http://127.0.0.1:1/" }), ""},
		{"bare credentials, IPv6", httpSpec(func(s *Spec) { s.HTTP.URL = "http://[::1]:1/" }), ""},
		{"bare credentials, localhost", httpSpec(func(s *Spec) { s.HTTP.URL = "http://localhost:1/" }), ""},
		{"no credentials", httpSpec(func(s *Spec) { s.HTTP.URL, s.HTTP.Headers = "http://pay.example/", nil }), ""},
		{"bare credentials, verify", httpSpec(func(s *Spec) {
			verified(s)
			s.Verify.URL, s.Verify.Headers = "http://h/{effect_id}", map[string][]string{"Authorization": {"hush"}}
		}), "verify.url is plain http to another machine"},
		{"a search", httpSpec(func(s *Spec) { verified(s); s.Verify.URL = "https://h/refunds?ref={effect_id}" }), "verify.url searches for the effect id"},
		{"no search", httpSpec(func(s *Spec) { verified(s); s.Verify.URL = "https://h/refunds/{effect_id}?ref={effect_id}" }), ""},
		{"no schema", httpSpec(func(s *Spec) { s.Schema = nil }), "input_schema allows any object as args: a caller's typing error reaches downstream"},
		{"empty schema", commandSpec(func(s *Spec) { s.Schema = []byte(`{"type":"object","title":"x","properties":{}}`) }), "reaches the program"},
		{"schema, a typing error", httpSpec(func(s *Spec) {
			s.Schema = []byte(`{"type":"object","properties":{"Minimum":{"type":"integer","Minimum":1}}}`)
		}), `input_schema: JSON Schema has no keyword "Minimum", so that it checks nothing`},
		{"schema, a typing error deep inside", httpSpec(func(s *Spec) {
			s.Schema = []byte(`{"type":"object","allOf":[{"$defs":{"a":{"items":{"Pattern":"hush"}}}}]}`)
		}), `no keyword "Pattern"`},
		{"schema, format", httpSpec(func(s *Spec) {
			s.Schema = []byte(`{"type":"object","properties":{"to":{"format":"email"}}}`)
		}), "input_schema: format only says what is meant, and is not checked; use pattern"},
		{"schema, format that is checked", httpSpec(func(s *Spec) {
			s.Schema = []byte(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"to":{"format":"email"}}}`)
		}), ""},
		{"schema, names that are no keywords", httpSpec(func(s *Spec) {
			s.Schema = []byte(`{"type":"object","x-owner":"a","properties":{"format":{"enum":[{"a":1}],"default":{"b":2}}},"patternProperties":{"c":true},"$defs":{"d":{}}}`)
		}), ""},
		{"intent that args have not", httpSpec(func(s *Spec) {
			s.Schema, s.Intent = []byte(`{"type":"object","properties":{"order":{}}}`), []string{"/order/id", "/oder"}
		}), "intent[1] leads to a member of args that input_schema does not name"},
		{"rules that args have not", httpSpec(func(s *Spec) {
			s.Schema, s.Rules = []byte(`{"type":"object","properties":{"a/b":{}}}`), &idem.Rules{Ignore: []string{"/a~1b"}, Trim: []string{"/a"}}
		}), "fingerprint.trim[0] leads to a member"},
		{"schema", httpSpec(func(s *Spec) { s.Schema = []byte(`{"type":"object","additionalProperties":false}`) }), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.spec.Warnings(16)
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if strings.Contains(fmt.Sprint(got), "hush") {
				t.Errorf("a secret is shown: %s", got)
			}
		})
	}
}

// The whole text for one tool, as somebody reads it.
func TestExplainGolden(t *testing.T) {
	var b strings.Builder
	for _, m := range httpSpec(verified).Explain() {
		fmt.Fprintf(&b, "%s: %s\n", m.When, m.What)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "explain.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

// What looks like a variable of a shell is sent as it is.
func TestWarningsDollar(t *testing.T) {
	specs, faults := loadText(t, strings.NewReplacer("{X: y}", "{X: Bearer $TOKEN, Y: $5 $, Z: '${TOKEN}'}").Replace(httpRelations), variables{"TOKEN": "$hush"})
	if faults != nil {
		t.Fatal(faults)
	}
	var got []string
	for _, w := range specs[0].Warnings(16) {
		if strings.Contains(w, "$") {
			got = append(got, w)
		}
	}
	if len(got) != 1 || got[0] != "http.headers.X has a $ before a name, which is sent as it is: write ${NAME} for a variable" {
		t.Errorf("got %q", got)
	}
}
