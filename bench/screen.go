package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteScreen writes what was measured for people: one row for idemd and one for
// its control, medians over the runs, and their ratio with its range over the
// runs; latencies in milliseconds.
func WriteScreen(w io.Writer, r *Results) error {
	var b strings.Builder
	e := r.Env
	fmt.Fprintf(&b, "idemd %s on %s, %d cores, %s, %s, %s, %s\n", r.Commit, e.CPU, e.Cores, gigabytes(e.Memory), e.Kernel, e.Go, e.FileSystem)
	fmt.Fprintf(&b, "fsync of 4 KiB in this run: p50 %s ms, p99 %s ms, max %s ms; load average before it: %s\n",
		ms(e.Fsync.P50), ms(e.Fsync.P99), ms(e.Fsync.Max), orUnknown(e.LoadBefore, "%.2f"))
	b.WriteString("Latencies in ms, from when a request was due. CPU is generator's and server's share of all cores.\n")
	if slices.ContainsFunc(r.Profiles, func(p Profile) bool { return len(p.Runs) > 1 }) {
		b.WriteString("Medians over the runs; calls, effects, attempts and statuses are sums.\n")
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "profile\ton\trps\tp50\tp95\tp99\tp99.9\tmax\tstatuses\tcalls\teffects\tattempts\tCPU")
	for _, p := range r.Profiles {
		row(t, p.Name, "idemd", p.Runs, e.Cores, true)
		if len(p.Control) > 0 {
			row(t, "", "control", p.Control, e.Cores, false)
			fmt.Fprint(t, "\tratio")
			for _, of := range figures {
				mid, _, _ := ratio(p, of)
				fmt.Fprintf(t, "\t%s", orNone(mid))
			}
			fmt.Fprintln(t, "\t\t\t\t\t")
		}
	}
	_ = t.Flush() // to a strings.Builder
	b.WriteByte('\n')
	for _, p := range r.Profiles {
		fmt.Fprintf(&b, "%s: %s.%s%s\n", p.Name, load(p), ranges(p), gap(p))
		for _, why := range p.Void {
			fmt.Fprintf(&b, "  VOID: %s\n", why)
		}
	}
	writeSeed(&b, r)
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// figures are the columns that are compared with the control, rps first.
var figures = []func(Measurement) float64{
	func(m Measurement) float64 { return m.Throughput },
	func(m Measurement) float64 { return m.Latency.P50 },
	func(m Measurement) float64 { return m.Latency.P95 },
	func(m Measurement) float64 { return m.Latency.P99 },
	func(m Measurement) float64 { return m.Latency.P999 },
	func(m Measurement) float64 { return m.Latency.Max },
}

func row(w io.Writer, name, on string, runs []Measurement, cores int, counts bool) {
	fmt.Fprintf(w, "%s\t%s\t%s", name, on, number(middle(runs, figures[0])))
	for _, of := range figures[1:] {
		fmt.Fprintf(w, "\t%s", ms(middle(runs, of)))
	}
	fmt.Fprintf(w, "\t%s\t", statuses(runs))
	if counts {
		var calls, effects int64
		attempts := make(map[string]int64)
		for _, m := range runs {
			calls += m.Calls
			effects += m.Effects
			for name, n := range m.Attempts {
				attempts[name] += n
			}
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t", calls, effects, byName(attempts))
	} else {
		fmt.Fprint(w, "\t\t\t")
	}
	share := func(of func(Measurement) float64) string {
		for _, m := range runs {
			if of(m) < 0 {
				return "?"
			}
		}
		return fmt.Sprintf("%.0f%%", 100*middle(runs, func(m Measurement) float64 { return of(m) / (max(m.Elapsed, 1).Seconds() * float64(cores)) }))
	}
	fmt.Fprintf(w, "%s+%s\n", share(func(m Measurement) float64 { return m.GeneratorCPU }), share(func(m Measurement) float64 { return m.ServerCPU }))
}

func load(p Profile) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, ", p.Engine)
	if p.Pace == "open" {
		fmt.Fprintf(&b, "%s requests a second whatever the answers, over at most %d connections", number(p.Rate), p.Connections)
	} else {
		fmt.Fprintf(&b, "closed loop over %d connections", p.Connections)
	}
	if p.Duration > 0 {
		fmt.Fprintf(&b, ", %v", p.Duration)
	} else if len(p.Runs) > 0 {
		fmt.Fprintf(&b, ", %d requests", p.Runs[0].Requests)
	}
	if p.Preload > 0 {
		fmt.Fprintf(&b, ", on a store with %d ended calls", p.Preload)
	}
	return b.String()
}

// gap is what profile recovery has to say.
func gap(p Profile) string {
	var longest time.Duration
	var right, all int
	for _, m := range p.Runs {
		longest = max(longest, m.Gap)
		right += m.Statuses["200"]
		all += int(m.Requests)
	}
	if longest == 0 {
		return ""
	}
	return fmt.Sprintf(" Killed and started again meanwhile: %.2f%% of the requests were answered right, once each and without a retry; the longest time without such an answer was %s ms.",
		100*float64(right)/float64(max(all, 1)), ms(float64(longest)/float64(time.Microsecond)))
}

// ratio is that of each run to its control: the median, and from where to where
// it goes over the runs. It is NaN where there is none.
func ratio(p Profile, of func(Measurement) float64) (mid, least, most float64) {
	var all []float64
	for i := range min(len(p.Runs), len(p.Control)) {
		if under := of(p.Control[i]); under > 0 {
			all = append(all, of(p.Runs[i])/under)
		}
	}
	if len(all) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	return median(all), slices.Min(all), slices.Max(all)
}

// ranges says how far the ratios go from run to run.
func ranges(p Profile) string {
	if len(p.Runs) < 2 || len(p.Control) < 2 {
		return ""
	}
	_, least, most := ratio(p, figures[0])
	_, least99, most99 := ratio(p, figures[3])
	return fmt.Sprintf(" Ratio to the control over %d runs: rps %s to %s, p99 %s to %s.",
		len(p.Runs), orNone(least), orNone(most), orNone(least99), orNone(most99))
}

func orNone(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func middle(runs []Measurement, of func(Measurement) float64) float64 {
	all := make([]float64, len(runs))
	for i, m := range runs {
		all[i] = of(m)
	}
	return median(all)
}

func statuses(runs []Measurement) string {
	sum := make(map[string]int64)
	for _, m := range runs {
		for status, n := range m.Statuses {
			sum[status] += int64(n)
		}
	}
	return byName(sum)
}

func byName[K cmp.Ordered](n map[K]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%v:%d", name, n[name]))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, " ")
}

// ms writes microseconds as milliseconds.
func ms(us float64) string { return strconv.FormatFloat(us/1000, 'f', 2, 64) }

func number(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func gigabytes(n int64) string {
	if n == 0 {
		return "memory unknown"
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func orUnknown(v float64, format string) string {
	if v < 0 {
		return unknown
	}
	return fmt.Sprintf(format, v)
}

// seed is what the service measured that idemd began as: 300 requests, 20 at a
// time.
var seed = []struct {
	name, profile string
	rps           float64
	p50, p95, p99 float64 // milliseconds
	calls         int64
	effects       int64
}{
	{"distinct keys", "distinct-300", 697.9, 1.75, 138.75, 258.16, 300, 300},
	{"same key", "same", 1975.9, 1.20, 39.36, 112.61, 1, 1},
}

// writeSeed writes the seed's table beside ours, where both rows were measured.
func writeSeed(b *strings.Builder, r *Results) {
	ours := make([]*Profile, len(seed))
	for i, row := range seed {
		at := slices.IndexFunc(r.Profiles, func(p Profile) bool { return p.Name == row.profile && len(p.Runs) > 0 })
		if at < 0 {
			return
		}
		ours[i] = &r.Profiles[at]
	}
	b.WriteString("\nThe seed's case, 300 requests, 20 at a time; its figures beside idemd's:\n\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\trps\t\tp50 ms\t\tp95 ms\t\tp99 ms\t\tcalls/effects\t")
	fmt.Fprintln(t, "\tseed\tidemd\tseed\tidemd\tseed\tidemd\tseed\tidemd\tseed\tidemd")
	for i, row := range seed {
		runs := ours[i].Runs
		at := func(of func(Measurement) float64) float64 { return middle(runs, of) }
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.2f\t%s\t%.2f\t%s\t%.2f\t%s\t%d/%d\t%d/%d\n", row.name,
			row.rps, at(func(m Measurement) float64 { return m.Throughput }),
			row.p50, ms(at(func(m Measurement) float64 { return m.Latency.P50 })),
			row.p95, ms(at(func(m Measurement) float64 { return m.Latency.P95 })),
			row.p99, ms(at(func(m Measurement) float64 { return m.Latency.P99 })),
			row.calls, row.effects, runs[0].Calls, runs[0].Effects)
	}
	_ = t.Flush() // to a strings.Builder
	b.WriteString("\nThe two were measured on different machines: compare the shape (tails, calls, effects), not the speed.\n")
}
