package bench

import (
	"strings"
	"testing"
	"time"
)

func shown(rps, p50, p99 float64) Measurement {
	return Measurement{
		Requests: 300, Elapsed: time.Second, Throughput: rps, Statuses: map[string]int{"200": 299, "0": 1},
		Latency: Quantiles{P50: p50, P95: p99, P99: p99, P999: p99, Max: p99}, Calls: 300, Effects: 300, Attempts: map[string]int64{"1": 300},
		GeneratorCPU: 0.5, ServerCPU: 1,
	}
}

func TestScreen(t *testing.T) {
	r := &Results{
		Commit: "abc1234", Env: Env{CPU: "a CPU", Cores: 2, Memory: 8 << 30, Kernel: "a kernel", Go: "go1", FileSystem: "ext4", LoadBefore: -1, Fsync: Quantiles{P50: 250}},
		Profiles: []Profile{
			{Name: "distinct-300", Engine: "vegeta", Pace: "closed", Connections: 20, Void: []string{"run 1: the moon"},
				Runs:    []Measurement{shown(100, 1000, 2000), shown(300, 3000, 6000), shown(200, 2000, 4000)},
				Control: []Measurement{shown(400, 1000, 1000), shown(400, 1000, 1000), shown(400, 1000, 1000)}},
		},
	}
	show := func() string {
		t.Helper()
		var b strings.Builder
		if err := WriteScreen(&b, r); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	want := func(text string, all ...string) {
		t.Helper()
		squeezed := strings.Join(strings.Fields(text), " ")
		for _, s := range all {
			if !strings.Contains(squeezed, s) {
				t.Errorf("no %q in\n%s", s, text)
			}
		}
	}
	want(show(),
		"idemd abc1234 on a CPU, 2 cores, 8.0 GiB, a kernel, go1, ext4", "load average before it: unknown",
		"distinct-300 idemd 200 2.00 4.00 4.00 4.00 4.00 0:3 200:897 900 900 1:900 25%+50%",
		"control 400 1.00 1.00 1.00 1.00 1.00 0:3 200:897 25%+50%",
		"ratio 0.50 2.00 4.00 4.00 4.00 4.00",
		"closed loop over 20 connections, 300 requests. Ratio to the control over 3 runs: rps 0.25 to 0.75, p99 2.00 to 6.00.",
		"VOID: run 1: the moon",
	)
	if strings.Contains(show(), "seed") {
		t.Error("half of the seed's table")
	}
	same := shown(500, 1500, 2500)
	same.Calls, same.Effects = 1, 1
	r.Profiles = append(r.Profiles, Profile{Name: "same", Pace: "closed", Runs: []Measurement{same}},
		Profile{Name: "recovery", Pace: "open", Rate: 500, Duration: 5 * time.Second, Runs: []Measurement{{Requests: 300, Statuses: map[string]int{"200": 150}, Gap: time.Second, ServerCPU: -1}}})
	want(show(),
		"distinct keys 697.9 200.0 1.75 2.00 138.75 4.00 258.16 4.00 300/300 300/300",
		"same key 1975.9 500.0 1.20 1.50 39.36 2.50 112.61 2.50 1/1 1/1", "different machines",
		"500 requests a second whatever the answers", "50.00% of the requests", "was 1000.00 ms", "0%+?",
	)
}
