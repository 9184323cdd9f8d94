package bench

import "slices"

// change says how a figure of B differs from that of A, where both are ratios to
// the control of the same run, one for each run.
//
// With a handful of runs nothing is known of how the noise is distributed, so
// ranks decide. Every run of B is divided by every run of A; the median of these
// n·m quotients is the change (the Hodges-Lehmann estimate: one wild run does not
// move it much), and the band is an interval of them in order that covers the
// true change with at least the asked confidence, whatever the distribution (it
// is the Mann-Whitney test, turned round). With five runs each and 99 % it is
// their whole range: B differs only if its every run lies beyond A's every run.
// Where the runs are too few for the confidence there is no band.
type change struct {
	estimate  float64
	low, high float64 // the band
	band      bool
}

func changeOf(a, b []float64, confidence float64) change {
	var quotients []float64
	for _, y := range b {
		for _, x := range a {
			quotients = append(quotients, y/x)
		}
	}
	slices.Sort(quotients)
	c := change{estimate: median(quotients)}
	if k := outside(len(a), len(b), confidence); k > 0 {
		c.low, c.high, c.band = quotients[k-1], quotients[len(quotients)-k], true
	}
	return c
}

// noise is whether the band holds 1, that is, whether the runs allow that
// nothing changed.
func (c change) noise() bool { return c.low <= 1 && 1 <= c.high }

// outside is the place, from 1, of the quotient that begins the band of n and m
// runs; the band ends as many places before the end. 0 if even the whole range
// of the quotients is less than the confidence.
func outside(n, m int, confidence float64) int {
	// The number of quotients below the true change is distributed as the
	// Mann-Whitney U: the band that begins at the k-th misses with P(U < k) on
	// each side. The slack lets 90 % be 90 % in floating point.
	allowed := (1-confidence)/2 + 1e-12
	missed, k := 0.0, 0
	for _, p := range uDistribution(n, m) {
		if missed += p; missed > allowed || k == (n*m+1)/2 {
			break
		}
		k++
	}
	return k
}

// uDistribution is how probable each value of Mann-Whitney's U is, from 0 to n·m,
// where n and m values are drawn from the same distribution.
func uDistribution(n, m int) []float64 {
	if n == 0 || m == 0 {
		return []float64{1}
	}
	// The largest value of all is one of the n with probability n/(n+m), and is
	// then above all m; rows[j] is the distribution for i and j.
	rows := make([][]float64, m+1)
	for j := range rows {
		rows[j] = []float64{1}
	}
	for i := 1; i <= n; i++ {
		for j := 1; j <= m; j++ {
			above, below := rows[j], rows[j-1] // of i-1 and j, of i and j-1
			next := make([]float64, i*j+1)
			for u := range next {
				if u >= j {
					next[u] += above[u-j] * float64(i)
				}
				if u < len(below) {
					next[u] += below[u] * float64(j)
				}
				next[u] /= float64(i + j)
			}
			rows[j] = next
		}
	}
	return rows[m]
}

// runsFor is how many runs of each side give a band of the confidence.
func runsFor(confidence float64) int {
	n := 1
	for outside(n, n, confidence) == 0 {
		n++
	}
	return n
}
