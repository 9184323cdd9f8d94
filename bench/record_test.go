package bench

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

func recorded(t *testing.T, rec *recorder, some ...outcome) Measurement {
	t.Helper()
	for _, o := range some {
		if err := rec.add(o); err != nil {
			t.Fatal(err)
		}
	}
	return rec.measurement()
}

// TestRecorder/exact: 1 to 1000 ms, once each, have quantiles that can be said
// beforehand.
func TestRecorder(t *testing.T) {
	t.Run("quantiles of known latencies", func(t *testing.T) {
		rec := newRecorder(200, true)
		for i := range 1000 {
			at := time.Duration(i) * time.Second
			recorded(t, rec, outcome{due: at, sent: at, done: at + time.Duration(i+1)*time.Millisecond, status: 200})
		}
		m := rec.measurement()
		// Three significant digits: nothing is off by more than a thousandth.
		for what, pair := range map[string][2]float64{
			"p50": {m.Latency.P50, 500_000}, "p90": {m.Latency.P90, 900_000}, "p95": {m.Latency.P95, 950_000},
			"p99": {m.Latency.P99, 990_000}, "p99.9": {m.Latency.P999, 999_000},
		} {
			if got, want := pair[0], pair[1]; got < want || got > want*1.001 {
				t.Errorf("%s is %v, want %v", what, got, want)
			}
		}
		if m.Latency.Max != 1_000_000 || m.Latency.Mean != 500_500 {
			t.Errorf("max %v, mean %v", m.Latency.Max, m.Latency.Mean)
		}
		if m.Requests != 1000 || m.Elapsed != 1000*time.Second || m.Throughput != 1 {
			t.Errorf("%d in %v: %v a second", m.Requests, m.Elapsed, m.Throughput)
		}
	})
	t.Run("small latencies are exact", func(t *testing.T) {
		rec := newRecorder(200, true)
		for i := range 100 {
			recorded(t, rec, outcome{done: time.Duration(i+1) * time.Microsecond, status: 200})
		}
		q := rec.measurement().Latency
		if q.P50 != 50 || q.P95 != 95 || q.P99 != 99 || q.Max != 100 {
			t.Errorf("%+v", q)
		}
	})
	t.Run("beyond a minute", func(t *testing.T) {
		m := recorded(t, newRecorder(200, true), outcome{done: 90 * time.Second, status: 200})
		if m.Latency.Max != 90e6 || m.Latency.P50 < 60e6 {
			t.Errorf("%+v", m.Latency)
		}
	})
	t.Run("no quantile is above the longest latency", func(t *testing.T) {
		q := recorded(t, newRecorder(200, true), outcome{done: 75_370 * time.Microsecond, status: 200}).Latency
		if q.P50 != 75_370 || q.P999 != q.Max {
			t.Errorf("%+v", q)
		}
	})
	t.Run("from when it was due, not from when it was sent", func(t *testing.T) {
		m := recorded(t, newRecorder(200, false), outcome{due: time.Second, sent: 3 * time.Second, done: 4 * time.Second, status: 200})
		if m.Latency.Max != 3e6 || m.Elapsed != time.Second {
			t.Errorf("%+v", m)
		}
	})
	t.Run("kinds of answers", func(t *testing.T) {
		rec := newRecorder(200, true)
		recorded(t, rec, outcome{done: 1, status: 200}, outcome{done: 2, status: 200, again: true}, outcome{done: time.Second, status: 503},
			outcome{done: 4, err: errors.New("reset")}, outcome{done: 5, status: 409}, outcome{done: 6, status: 202})
		m := rec.measurement()
		if byName64(m.Statuses) != "0:1 200:2 202:1 409:1 503:1" || m.Throughput != 2 {
			t.Errorf("%v, %v a second", m.Statuses, m.Throughput)
		}
		s := rec.seen(newWorkload(declarations[0], nil))
		if s.requests != 6 || s.silent != 1 || s.fresh != 2 || s.again != 1 || s.conflict != 1 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("the longest time without an answer", func(t *testing.T) {
		rec := newRecorder(200, false)
		rec.timeline = true
		m := recorded(t, rec, outcome{done: 5 * time.Second, status: 200}, outcome{done: time.Second, status: 200},
			outcome{done: 2 * time.Second, status: 200}, outcome{done: 3 * time.Second, err: errors.New("refused")})
		if m.Gap != 3*time.Second {
			t.Errorf("%v", m.Gap)
		}
	})
	t.Run("the longest time without an answer, where none comes any more", func(t *testing.T) {
		rec := newRecorder(200, false)
		rec.timeline = true
		refused := outcome{due: 9 * time.Second, sent: 9 * time.Second, done: 10 * time.Second, err: errors.New("refused")}
		m := recorded(t, rec, outcome{done: time.Second, status: 200}, outcome{done: 2 * time.Second, status: 200}, refused)
		if m.Gap != 8*time.Second {
			t.Errorf("%v", m.Gap)
		}
		never := newRecorder(200, false)
		never.timeline = true
		if m := recorded(t, never, outcome{done: time.Second, status: 503}, refused); m.Gap != 10*time.Second {
			t.Errorf("%v", m.Gap)
		}
	})
	t.Run("nobody answers a closed loop", func(t *testing.T) {
		rec := newRecorder(200, true)
		refused := outcome{err: errors.New("refused")}
		for range nobodyAnswers - 1 {
			recorded(t, rec, refused)
		}
		recorded(t, rec, outcome{status: 503}) // somebody does
		for range nobodyAnswers - 1 {
			recorded(t, rec, refused)
		}
		if err := rec.add(refused); !errors.Is(err, errNobodyAnswers) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v", err)
		}
	})
}

func byName64(n map[string]int) string {
	return statuses([]Measurement{{Statuses: n}})
}

// TestSaturation: a generator that does not keep the schedule voids its figures.
func TestSaturation(t *testing.T) {
	a := &attack{rate: 100, requests: 100}
	for _, tc := range []struct {
		name     string
		requests int
		late     int
		by       time.Duration
		want     string
	}{
		{"in time", 100, 0, 0, ""},
		{"one of a hundred", 100, 1, time.Second, ""},
		{"two of a hundred", 100, 2, time.Second, "saturated: 2 of 100"},
		{"late by less than matters", 100, 100, lateAfter, ""},
		{"late by more than matters", 100, 100, lateAfter + 1, "saturated: 100 of 100"},
		{"fewer than asked for", 99, 0, 0, "sent 99 requests of 100"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := newRecorder(200, false)
			for i := range tc.requests {
				o := outcome{due: a.due(int64(i)), sent: a.due(int64(i)), status: 200}
				if i < tc.late {
					o.sent += tc.by
				}
				o.done = o.sent
				recorded(t, rec, o)
			}
			got := strings.Join(saturated(a, rec.measurement()), "; ")
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	t.Run("a closed loop has no schedule", func(t *testing.T) {
		if got := saturated(&attack{requests: 100}, Measurement{Requests: 1, Late: 1}); got != nil {
			t.Error(got)
		}
	})
}

// TestUnfit: latencies of other answers than the right one are no figures of it,
// and those that were cut are none at all.
func TestUnfit(t *testing.T) {
	right := outcome{done: time.Millisecond, status: 202}
	for _, tc := range []struct {
		name string
		d    string
		some []outcome
		want string
	}{
		{"all right", "distinct-202", []outcome{right, right}, ""},
		{"one refused", "distinct-202", []outcome{right, {done: 1, status: 503}}, "1 of 2 requests were not answered with status 202: 202:1 503:1"},
		{"right for another profile", "distinct-202", []outcome{{done: 1, status: 200}}, "not answered with status 202: 200:1"},
		{"one without an answer", "distinct-202", []outcome{right, {done: 1, err: errors.New("reset")}}, "0:1 202:1"},
		{"as long as can be held", "distinct-202", []outcome{{done: time.Minute, status: 202}}, ""},
		{"longer", "distinct-202", []outcome{{done: time.Minute + 1, status: 202}, right}, "1 latencies are above 1m0s"},
		{"recovery loses some", "recovery", []outcome{right, {done: 1, err: errors.New("reset")}}, ""},
		{"recovery, and longer", "recovery", []outcome{{done: time.Hour, status: 200}}, "1 latencies are above 1m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := newRecorder(202, true)
			recorded(t, rec, tc.some...)
			got := strings.Join(unfit(declared(t, tc.d), rec), "; ")
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestHistogramFiles reads back what is written.
func TestHistogramFiles(t *testing.T) {
	h := newHistogram()
	for i := range 1000 {
		if err := h.RecordValue(int64(i+1) * 100); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var log, distribution bytes.Buffer
	if err := errors.Join(writeLog(&log, h, "distinct-1", began, 5*time.Second), writeDistribution(&distribution, h)); err != nil {
		t.Fatal(err)
	}
	back, err := hdrhistogram.NewHistogramLogReader(&log).NextIntervalHistogram()
	if err != nil || back == nil {
		t.Fatal(err)
	}
	if !back.Equals(h) || back.Tag() != "distinct-1" {
		t.Errorf("%d latencies of %q came back", back.TotalCount(), back.Tag())
	}
	if text := distribution.String(); !strings.Contains(text, "Percentile") || !strings.Contains(text, "Total count    =         1000") {
		t.Error(text)
	}
}
