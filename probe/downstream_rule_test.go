package probe

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseDownstreamRule(t *testing.T) {
	for s, want := range map[string]DownstreamRule{
		"refuse@all":               {Fault: DownstreamFault{Kind: Refuse}, All: true},
		"commit-then-500@first=2":  {Fault: DownstreamFault{Kind: CommitThen500}, First: 2},
		"slow-commit:1.5s@every=3": {Fault: DownstreamFault{Kind: SlowCommit, Wait: 1500 * time.Millisecond}, Every: 3},
		"big:3000000@rate=0.25":    {Fault: DownstreamFault{Kind: Big, Size: 3000000}, Rate: 0.25},
	} {
		got, err := ParseDownstreamRule(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
		if again, err := ParseDownstreamFault(got.Fault.String()); err != nil || again != got.Fault {
			t.Errorf("%s: %q is read as %+v, %v", s, got.Fault, again, err)
		}
	}
	for s, want := range map[string]string{
		"refuse":             "does not say which requests",
		"@all":               "names no fault",
		"sulk@all":           `unknown fault "sulk"`,
		"none@all":           `unknown fault "none"`,
		"refuse:1s@all":      "takes nothing after a colon",
		"delay@all":          "needs a duration",
		"delay:1@all":        "needs a duration",
		"delay:-1s@all":      "needs a positive duration",
		"big@all":            "needs a number of bytes",
		"big:9@all":          "from 10 to 1073741824 bytes",
		"big:1073741825@all": "from 10 to 1073741824 bytes",
		"busy@all=1":         "first=N, every=N, rate=P or all",
		"busy@first":         "first=N, every=N, rate=P or all",
		"busy@last=1":        "first=N, every=N, rate=P or all",
		"busy@first=x":       "is not a number",
		"busy@first=0":       "one positive number of requests",
		"busy@every=-1":      "is not positive",
		"busy@rate=0":        "one positive number of requests",
		"busy@rate=1":        "not over 0 and below 1",
		"busy@rate=NaN":      "not over 0 and below 1",
	} {
		if r, err := ParseDownstreamRule(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", s, r, err)
		}
	}
	for _, bad := range []DownstreamRule{
		{All: true},
		{Fault: DownstreamFault{Kind: Busy}},
		{Fault: DownstreamFault{Kind: Busy}, All: true, First: 1},
		{Fault: DownstreamFault{Kind: Busy, Wait: 1}, All: true},
		{Fault: DownstreamFault{Kind: Busy, Size: 1}, All: true},
	} {
		if _, err := DownstreamRules(1, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// Which requests of an id are hit, and by which of several rules.
func TestDownstreamRules(t *testing.T) {
	busy, refuse := DownstreamFault{Kind: Busy}, DownstreamFault{Kind: Refuse}
	for _, tc := range []struct {
		rules []DownstreamRule
		want  string // of requests 1 to 6
	}{
		{nil, "------"},
		{[]DownstreamRule{{Fault: busy, First: 2}}, "bb----"},
		{[]DownstreamRule{{Fault: busy, Every: 3}}, "--b--b"},
		{[]DownstreamRule{{Fault: busy, All: true}}, "bbbbbb"},
		{[]DownstreamRule{{Fault: busy, First: 1}, {Fault: refuse, Every: 2}}, "br-r-r"},
		{[]DownstreamRule{{Fault: refuse, Every: 2}, {Fault: busy, All: true}}, "brbrbr"},
	} {
		choose, err := DownstreamRules(1, tc.rules...)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for n := range 6 {
			got += choose(n+1, "a").String()[:1]
		}
		if got = strings.ReplaceAll(got, "n", "-"); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.rules, got, tc.want)
		}
	}
	// A rate: by the seed and nothing else, and near what was asked for.
	draw := func(seed uint64) (drawn string, hits int) {
		choose, err := DownstreamRules(seed, DownstreamRule{Fault: busy, Rate: 0.25})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4000 {
			if choose(i%4+1, fmt.Sprint(i/4)) == busy {
				hits++
				drawn += "b"
			} else {
				drawn += "-"
			}
		}
		return drawn, hits
	}
	if one, _ := draw(1); strings.Count(one, "bbbb")+strings.Count(one, "----") > 900 {
		t.Error("the requests of one id all meet the same")
	}
	one, hits := draw(1)
	again, _ := draw(1)
	other, _ := draw(2)
	if one != again || one == other || hits < 900 || hits > 1100 {
		t.Errorf("%d hits, again the same: %v, another seed the same: %v", hits, one == again, one == other)
	}
}
