package bench

import (
	"time"
)

// SchemaVersion is the version of [Results] as JSON. It goes up when a member is
// renamed, removed, or gets another meaning; members may be added without it.
const SchemaVersion = 1

// Results are what one run of the suite measured, in one process, on one machine.
// They are written as results.json, with a histogram of every series beside it.
type Results struct {
	SchemaVersion int       `json:"schema_version"`
	Commit        string    `json:"commit"` // of the program that was measured; "-dirty" behind it if it was
	StartedAt     time.Time `json:"started_at"`
	Command       string    `json:"command"` // how to run it again
	Env           Env       `json:"env"`
	Profiles      []Profile `json:"profiles"`
}

// Env is what the figures depend on beside the program.
type Env struct {
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"` // that the run could use
	Memory     int64   `json:"memory_bytes"`
	Kernel     string  `json:"kernel"`
	Go         string  `json:"go"`
	FileSystem string  `json:"file_system"` // of the data directory
	LoadBefore float64 `json:"load_before"` // load average of the last minute; -1 where there is none

	// Fsync is how long one write and fsync of 4 KiB takes in the data directory,
	// measured in this run before and after the profiles.
	Fsync Quantiles `json:"fsync"`
}

// Profile is one kind of load, measured several times.
type Profile struct {
	Name        string        `json:"name"`        // distinct, same, …
	Engine      string        `json:"engine"`      // what sent the requests: "vegeta" or "bare"
	Pace        string        `json:"pace"`        // "open": at Rate, whatever the answers; "closed": as fast as answers come
	Rate        float64       `json:"rate"`        // requests a second asked for; 0 where closed
	Connections int           `json:"connections"` // at most
	Duration    time.Duration `json:"duration_ns"` // of each series; 0 where Requests bounds it
	Preload     int64         `json:"preload"`     // ended calls in the store before it, at least
	Runs        []Measurement `json:"runs"`        // against idemd
	Control     []Measurement `json:"control"`     // against a handler that answers the same bytes and does nothing; interleaved with Runs

	// Void says why the figures must not be used: the generator was saturated, the
	// server's counts do not agree, some answers were not the right ones (but for
	// recovery), or were later than a histogram holds. Empty where they may.
	Void []string `json:"void"`
}

// Measurement is one series of requests.
type Measurement struct {
	StartedAt  time.Time      `json:"started_at"`
	Elapsed    time.Duration  `json:"elapsed_ns"` // from the first request to the last answer
	Requests   int64          `json:"requests"`
	Throughput float64        `json:"throughput"` // answers of the right kind a second
	Latency    Quantiles      `json:"latency"`    // of all requests, answered or not, from when each was due, in microseconds
	Statuses   map[string]int `json:"statuses"`   // by status code; "0" is no answer
	Histogram  string         `json:"histogram"`  // file name of its .hgrm and .hlog, without the ending; latencies in microseconds

	// What the server counted meanwhile, from /stats; zero for the control.
	Calls    int64            `json:"calls"`
	Effects  int64            `json:"effects"`
	Attempts map[string]int64 `json:"attempts"` // ended calls by their attempts

	// Late is how many requests the generator sent more than 10 ms after they were
	// due. Too many of them void the figures: that was not the load that was asked for.
	Late int64 `json:"late"`

	// Gap is the longest time without an answer of the right kind, from the first
	// request to the last answer, of profile recovery; 0 for the others.
	Gap time.Duration `json:"gap_ns,omitempty"`

	// What the machine was used for: seconds of CPU, in steps of 10 ms for the
	// server; -1 where it cannot be known (a target that was running already, or
	// no /proc).
	GeneratorCPU float64 `json:"generator_cpu_s"`
	ServerCPU    float64 `json:"server_cpu_s"`
}

// Quantiles are microseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}
