package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What histograms can hold, in microseconds, with three significant digits. A
// latency beyond it is recorded as the longest one, which voids the figures; Max and
// Mean are exact.
const (
	shortest    = 1
	longest     = int64(time.Minute / time.Microsecond)
	significant = 3
)

// lateAfter is how long after it was due a request may be sent before it is late.
// It is above what a busy machine's timers do to one request
// now and then, and below what would make a 99th percentile worthless.
const lateAfter = 10 * time.Millisecond

// nobodyAnswers is how many requests in a row may have no answer before a closed
// loop is given up: it would go on as fast as connections are refused.
const nobodyAnswers = 1000

var errNobodyAnswers = errors.New("bench: nobody answers")

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(shortest, longest, significant) }

// microseconds rounds a latency to what a histogram holds.
func microseconds(d time.Duration) int64 {
	return min(max(int64((d+time.Microsecond/2)/time.Microsecond), shortest), longest)
}

// outcome is what came of a request. Times count from when the series began.
type outcome struct {
	due, sent, done time.Duration
	status          int  // 0: there is no answer, or not a whole one
	again           bool // Idempotent-Replayed: true
	err             error
}

// recorder takes the outcomes of one series, raw, as they come. It may be used
// by many goroutines.
type recorder struct {
	right    int
	closed   bool
	timeline bool          // keep when right answers came
	tick     func(n int64) // told after every outcome; nil: nobody is

	mu       sync.Mutex
	hist     *hdrhistogram.Histogram
	statuses map[int]int64
	fresh    int64 // calls that were accepted by these requests
	again    int64 // calls that were there before them
	n, good  int64
	late     int64
	cut      int64 // latencies that the histogram cannot hold
	silent   int   // in a row
	sum, max time.Duration
	first    time.Duration // when the first one was sent
	last     time.Duration // when the last answer was there
	goodAt   []time.Duration
	failure  error // the first one without an answer
}

func newRecorder(right int, closed bool) *recorder {
	return &recorder{right: right, closed: closed, hist: newHistogram(), statuses: make(map[int]int64)}
}

// add records an outcome. An error ends the series.
func (r *recorder) add(o outcome) error {
	latency := o.done - o.due
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.hist.RecordValue(microseconds(latency)); err != nil {
		return fmt.Errorf("bench: %w", err) // the range above is not what the histogram has
	}
	if r.n == 0 || o.sent < r.first {
		r.first = o.sent
	}
	r.n++
	r.last = max(r.last, o.done)
	r.sum += latency
	r.max = max(r.max, latency)
	if latency > time.Duration(longest)*time.Microsecond {
		r.cut++
	}
	r.statuses[o.status]++
	if o.sent-o.due > lateAfter {
		r.late++
	}
	switch o.status {
	case r.right:
		r.good++
		if r.timeline {
			r.goodAt = append(r.goodAt, o.done)
		}
	case 0:
		if r.failure == nil {
			r.failure = o.err
		}
	}
	if o.status == 200 || o.status == 202 {
		if o.again {
			r.again++
		} else {
			r.fresh++
		}
	}
	if r.tick != nil {
		r.tick(r.n)
	}
	if r.silent++; o.status != 0 {
		r.silent = 0
	}
	if r.closed && r.silent >= nobodyAnswers {
		return fmt.Errorf("%w: %d requests in a row; the first: %w", errNobodyAnswers, r.silent, r.failure)
	}
	return nil
}

// measurement is what was recorded, without what the server says of it.
func (r *recorder) measurement() Measurement {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := Measurement{
		Requests: r.n, Elapsed: r.last - r.first, Late: r.late, Statuses: make(map[string]int),
		Latency: quantiles(r.hist, r.sum, r.max),
	}
	if m.Elapsed > 0 {
		m.Throughput = float64(r.good) / m.Elapsed.Seconds()
	}
	for status, n := range r.statuses {
		m.Statuses[strconv.Itoa(status)] = int(n)
	}
	if r.timeline {
		m.Gap = longestGap(r.first, r.goodAt, r.last)
	}
	return m
}

// longestGap is the longest time without one of the moments, from the first
// request to the last answer: a server that never comes back has a gap to the end.
func longestGap(first time.Duration, at []time.Duration, last time.Duration) (gap time.Duration) {
	slices.Sort(at)
	before := first
	for _, t := range append(at, last) {
		gap, before = max(gap, t-before), t
	}
	return gap
}

func quantiles(h *hdrhistogram.Histogram, sum, top time.Duration) Quantiles {
	// A bucket's upper edge may be above the longest latency in it.
	highest := max(float64(top)/float64(time.Microsecond), shortest)
	at := func(percentile float64) float64 { return min(float64(h.ValueAtPercentile(percentile)), highest) }
	q := Quantiles{P50: at(50), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9)}
	if n := h.TotalCount(); n > 0 {
		q.Max = float64(top) / float64(time.Microsecond)
		q.Mean = float64(sum) / float64(n) / float64(time.Microsecond)
	}
	return q
}

// writeLog writes a histogram as a log of one interval, which every
// implementation of HdrHistogram reads.
func writeLog(w io.Writer, h *hdrhistogram.Histogram, tag string, began time.Time, took time.Duration) error {
	h.SetTag(tag)
	h.SetStartTimeMs(began.UnixMilli())
	h.SetEndTimeMs(began.Add(took).UnixMilli())
	log := hdrhistogram.NewHistogramLogWriter(w)
	return errors.Join(
		log.OutputComment("[latencies in microseconds, of "+tag+"]"),
		log.OutputLogFormatVersion(),
		log.OutputStartTime(began.UnixMilli()),
		log.OutputLegend(),
		log.OutputIntervalHistogram(h),
	)
}

// ticksPerHalf is how finely a percentile distribution is written: steps for
// each halving of the distance to 100 %.
const ticksPerHalf = 5

// writeDistribution writes a histogram as a percentile distribution, as plotters
// of HdrHistogram read it.
func writeDistribution(w io.Writer, h *hdrhistogram.Histogram) error {
	_, err := h.PercentilesPrint(w, ticksPerHalf, 1)
	return err
}
