package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestHints(t *testing.T) {
	const well = `"deliveries":1000,"created":900,"replayed":50,"joined":20,"requeued":10,"conflicts":5,"refused":15,"stale_results":0,"abandoned":0`
	counts := func(change string) string { return strings.NewReplacer(strings.Split(change, "|")...).Replace(well) }
	stats := func(held int, attempts, all string, byTool ...string) string {
		return fmt.Sprintf(`{"calls":1,"effects":1,"by_status":{"pending":1,"held":%d},"attempts":{%s},"since":"x",%s,"by_tool":{%s}}`,
			held, attempts, all, strings.Join(byTool, ","))
	}
	tool := func(name, change string) string { return fmt.Sprintf(`"%s":{%s}`, name, counts(change)) }
	const none = `"0":3,"1":9,"2":0,"10+":0`
	fresh := `"replayed":50|"replayed":0|"joined":20|"joined":0|"requeued":10|"requeued":0|"conflicts":5|"conflicts":0`
	for _, tc := range []struct {
		name string
		doc  string
		want []string // beginnings, in order
	}{
		{"all is well", stats(0, none, well, tool("a", "x|x"), tool("b", "x|x")), nil},
		{"nothing has happened", `{"calls":0,"by_status":{},"attempts":{},"by_tool":{"a":{"deliveries":0}}}`, nil},
		{"held", stats(7, none, well), []string{"7 calls are held"}},
		{"attempts", stats(0, `"1":9,"2":3,"9":1,"10+":2`, well), []string{"6 calls took more than one attempt"}},
		{"refused", stats(0, none, counts(`"refused":15|"refused":200`)), []string{"20% of all deliveries were refused"}},
		{"hardly refused", stats(0, none, counts(`"refused":15|"refused":199`)), nil},
		{"refused, of few", stats(0, none, counts(`"deliveries":1000|"deliveries":99|"refused":15|"refused":99`)), nil},
		{"a key for each try", stats(0, none, well, tool("charge", fresh)), []string{"tool charge: 1000 deliveries and not one"}},
		{"a key for each try, of few", stats(0, none, well, tool("charge", fresh+`|"deliveries":1000|"deliveries":99`)), nil},
		{"one replay", stats(0, none, well, tool("charge", strings.Replace(fresh, `"replayed":0`, `"replayed":1`, 1))), nil},
		{"one join", stats(0, none, well, tool("charge", strings.Replace(fresh, `"joined":0`, `"joined":1`, 1))), nil},
		{"one requeue", stats(0, none, well, tool("charge", strings.Replace(fresh, `"requeued":0`, `"requeued":1`, 1))), nil},
		{"one conflict", stats(0, none, well, tool("charge", strings.Replace(fresh, `"conflicts":0`, `"conflicts":1`, 1))), nil},
		{"only refused", stats(0, none, well, tool("charge", fresh+`|"created":900|"created":0|"refused":15|"refused":1000`)), []string{"tool charge: 100% of its deliveries"}},
		{"stale", stats(0, none, well, tool("charge", `"stale_results":0|"stale_results":2`)), []string{"tool charge: 2 results came after"}},
		{"abandoned", stats(0, none, well, tool("charge", `"abandoned":0|"abandoned":1`)), []string{"tool charge: 1 attempts did not stop"}},
		{"in order", stats(1, `"3":1`, well, tool(`b\u001b`, `"abandoned":0|"abandoned":1`), tool("a", `"stale_results":0|"stale_results":1|"abandoned":0|"abandoned":4`)),
			[]string{"1 calls are held", "1 calls took", "tool a: 1 results", "tool a: 4 attempts", "tool b\ufffd: 1 attempts"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, reply{status: 200, body: tc.doc})
			o := runIdemd(t, "", "stats", "--url", s.URL)
			var got []string
			for line := range strings.Lines(o.stderr) {
				got = append(got, strings.TrimSpace(line))
			}
			ok := o.code == 0 && o.stdout != "" && len(got) == len(tc.want)
			for i := range min(len(got), len(tc.want)) {
				ok = ok && strings.HasPrefix(got[i], "hint: "+tc.want[i])
			}
			if !ok {
				t.Errorf("exit code %d, hints %q, want %q", o.code, got, tc.want)
			}
			runIdemd(t, "", "stats", "--url", s.URL, "--json").want(t, 0, tc.doc+"\n")
		})
	}
}

// Of a tool that keeps no record nothing can be repeated, and nothing is suspected.
func TestHintsOfUnrecordedTools(t *testing.T) {
	const counts = `{"deliveries":1000,"created":1000}`
	stats := reply{status: 200, body: `{"by_tool":{"charge":` + counts + `,"look":` + counts + `}}`}
	for _, tc := range []struct {
		tools reply
		want  []string
	}{
		{reply{status: 200, body: `{"tools":[{"name":"charge","recorded":true},{"name":"look","recorded":false}]}`}, []string{"charge"}},
		{reply{status: 200, body: `{"tools":[{"name":"charge"},{"name":"look"}]}`}, []string{"charge", "look"}},
		{reply{status: 200, body: `[]`}, []string{"charge", "look"}},
		{reply{lose: true}, []string{"charge", "look"}},
	} {
		s := serve(t, stats, tc.tools)
		o := runIdemd(t, "", "stats", "--url", s.URL)
		var got []string
		for line := range strings.Lines(o.stderr) {
			var tool string
			if _, err := fmt.Sscanf(line, "hint: tool %s", &tool); err == nil {
				got = append(got, strings.TrimSuffix(tool, ":"))
			}
		}
		if o.code != 0 || fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: hints of %q, want %q", tc.tools.body, got, tc.want)
		}
	}
}
