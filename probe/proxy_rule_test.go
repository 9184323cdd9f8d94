package probe

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func newCounter(r Rule, place int) *counter {
	return &counter{Rule: r, place: place, perKey: map[keyDigest]int{}, maxKeys: 3}
}

// meetAll is what the exchanges with these keys meet, "." where nothing.
func meetAll(c *counter, keys ...string) string {
	var b strings.Builder
	for _, k := range keys {
		f, hit, forgotten := c.meet(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}}, k)
		switch {
		case forgotten:
			b.WriteString("f")
		case hit:
			b.WriteString(f.String()[:1])
		default:
			b.WriteString(".")
		}
	}
	return b.String()
}

func TestRuleCounts(t *testing.T) {
	drop := []Fault{{Mode: DropResponse}}
	for _, tc := range []struct {
		name string
		rule Rule
		keys string // one letter each; - is none
		want string
	}{
		{"no limit", Rule{Faults: drop}, "aab-", "dddd"},
		{"the first two", Rule{Faults: drop, First: 2}, "aab-", "dd.."},
		{"the first of each key", Rule{Faults: drop, FirstPerKey: 1}, "aaba-b-", "d.d...."},
		{"the first two of each key", Rule{Faults: drop, FirstPerKey: 2}, "aabaabb", "ddd..d."},
		{"both", Rule{Faults: drop, First: 2, FirstPerKey: 1}, "aabc", "d..."},
		{"too many keys", Rule{Faults: drop, FirstPerKey: 1}, "abcdadc", "dddf.f."},
		{"another method", Rule{Faults: drop, Methods: []string{"GET", "PUT"}}, "a", "."},
		{"another path", Rule{Faults: drop, Path: "/v1"}, "a", "."},
		{"method and path", Rule{Faults: drop, Methods: []string{"GET", "POST"}, Path: "/"}, "a", "d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys := strings.Split(tc.keys, "")
			for i, k := range keys {
				if k == "-" {
					keys[i] = ""
				}
			}
			if got := meetAll(newCounter(tc.rule, 0), keys...); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestRuleDraws(t *testing.T) {
	const n = 10_000
	rule := Rule{Faults: []Fault{{Mode: DropResponse}, {Mode: Reset}, {Mode: HalfBody}}, Rate: 0.3, Seed: 7}
	keys := slices.Repeat([]string{"k"}, n)
	met := meetAll(newCounter(rule, 0), keys...)
	if again := meetAll(newCounter(rule, 0), keys...); again != met {
		t.Error("the same seed met other faults")
	}
	other := rule
	other.Seed = 8
	if meetAll(newCounter(other, 0), keys...) == met {
		t.Error("another seed met the same faults")
	}
	// Both hit: 0.09, unless the rules draw alike.
	second, both := meetAll(newCounter(rule, 1), keys...), 0
	for i := range met {
		if met[i] != '.' && second[i] != '.' {
			both++
		}
	}
	near(t, "both rules", both, 0.09*n)
	for _, mode := range []string{"d", "r", "h"} {
		near(t, mode, strings.Count(met, mode), 0.1*n)
	}
	for pair, want := range map[string]float64{"..": 0.49, "d.": 0.07, "dd": 0.01} { // one after the other
		got := 0
		for i := range n - 1 {
			if met[i:i+2] == pair {
				got++
			}
		}
		near(t, pair, got, want*n)
	}
	all := rule
	all.Rate = 1
	if strings.Contains(meetAll(newCounter(all, 0), keys...), ".") {
		t.Error("rate 1 let one pass")
	}
}

// near allows five standard deviations; the seeds are fixed.
func near(t *testing.T, what string, got int, want float64) {
	t.Helper()
	if d := math.Abs(float64(got) - want); d > 5*math.Sqrt(want) {
		t.Errorf("%s: %d of 10000, want about %.0f", what, got, want)
	}
}

// What does not match changes nothing for what does.
func TestRuleSkipsOthers(t *testing.T) {
	rule := Rule{Faults: []Fault{{Mode: DropResponse}}, Rate: 0.5, Seed: 1, Methods: []string{"POST"}}
	want := meetAll(newCounter(rule, 0), slices.Repeat([]string{"k"}, 50)...)
	c := newCounter(rule, 0)
	got := ""
	for range 50 {
		if _, hit, _ := c.meet(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}}, "k"); hit {
			t.Fatal("a GET was hit")
		}
		got += meetAll(c, "k")
	}
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The first rule that hits decides.
func TestRulesInOrder(t *testing.T) {
	o := newOrigin(t, numbered)
	p := startProxy(t, o.URL,
		Rule{Faults: []Fault{{Mode: Pass}}, Path: "/spared"},
		Rule{Faults: []Fault{{Mode: FailBefore, Status: 503}}, First: 1},
		Rule{Faults: []Fault{{Mode: FailBefore, Status: 504}}, First: 1})
	w := dial(t, p.URL())
	for _, want := range []struct {
		path   string
		status int
	}{{"/spared", 200}, {"/", 503}, {"/spared", 200}, {"/", 504}, {"/", 200}} {
		w.send("GET " + want.path + " HTTP/1.1\r\nHost: h\r\n\r\n")
		if status, _, err := w.read("GET"); status != want.status || err != nil {
			t.Errorf("%s: %d %v, want %d", want.path, status, err, want.status)
		}
	}
}

func TestProxyOptionsRefused(t *testing.T) {
	fault := []Fault{{Mode: Pass}}
	for want, o := range map[string]ProxyOptions{
		`upstream "" is not a URL`:                       {},
		`upstream "127.0.0.1:80" is not a URL`:           {Upstream: "127.0.0.1:80"},
		`upstream "ftp://h" is not a URL`:                {Upstream: "ftp://h"},
		`has more than a scheme, a host and a port`:      {Upstream: "http://h/v1"},
		`a rule needs a fault`:                           {Rules: []Rule{{}}},
		`unknown mode "x"`:                               {Rules: []Rule{{Faults: []Fault{{Mode: "x"}}}}},
		`delay-response needs a positive delay`:          {Rules: []Rule{{Faults: []Fault{{Mode: DelayResponse}}}}},
		`fail-before needs a status from 400 to 599`:     {Rules: []Rule{{Faults: []Fault{{Mode: FailBefore, Status: 200}}}}},
		`mode pass takes no delay`:                       {Rules: []Rule{{Faults: []Fault{{Mode: Pass, Delay: 1}}}}},
		`mode pass takes no status`:                      {Rules: []Rule{{Faults: []Fault{{Mode: Pass, Status: 503}}}}},
		`a number of exchanges is negative`:              {Rules: []Rule{{Faults: fault, First: -1}}},
		`rate 1.5 is not from 0 to 1`:                    {Rules: []Rule{{Faults: fault, Rate: 1.5}}},
		`rate NaN is not from 0 to 1`:                    {Rules: []Rule{{Faults: fault, Rate: math.NaN()}}},
		`method "post" is not in upper case`:             {Rules: []Rule{{Faults: fault, Methods: []string{"post"}}}},
		`path "v1" does not begin with /`:                {Rules: []Rule{{Faults: fault, Path: "v1"}}},
		`more than 256 rules`:                            {Rules: slices.Repeat([]Rule{{Faults: fault}}, 257)},
		`a bound of the proxy is negative`:               {MaxConns: -1},
		"a rule needs a fault\nprobe: a rule needs a fa": {Rules: []Rule{{}, {}}}, // all at once
	} {
		if _, err := NewProxy(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestParseFault(t *testing.T) {
	if f, err := ParseFault("fail-before"); err != nil || f != (Fault{Mode: FailBefore, Status: 503}) {
		t.Error(f, err)
	}
	if f, err := ParseFault("delay-response=600ms"); err != nil || f.Delay != 600*time.Millisecond {
		t.Error(f, err)
	}
	for s, want := range map[string]string{
		"":                   "unknown mode",
		"drop":               "unknown mode",
		"pass=1":             `mode "pass" takes no value`,
		"delay-response":     "needs a positive delay",
		"delay-response=-1s": "needs a positive delay",
		"delay-response=600": "the delay is a duration",
		"fail-before=x":      "the status is a number",
		"fail-before=":       "the status is a number",
		"fail-before=200":    "from 400 to 599",
	} {
		if f, err := ParseFault(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %s", s, f, err, want)
		}
	}
}
