package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Options say what is measured, and how.
type Options struct {
	// Profiles are names of [Profiles]; "all" is all of them.
	Profiles []string

	// Idemd is the program to measure. It is started on new directories, and ended.
	Idemd string

	// Flags are more flags of idemd serve.
	Flags []string

	// Control is the command, with its arguments, that serves the control: it reads
	// an [Answer] from stdin and says where it listens by [SayControl]. It is needed
	// where Idemd is given; with Target it may be left out, and there is no control
	// then.
	Control []string

	// Target is the URL of an idemd that runs already, http://HOST:PORT, to be
	// measured instead. It gets real calls. Nobody else may use it meanwhile, or its counts disagree.
	Target string

	// Engine sends the requests. Default: Vegeta, which sends those of recovery in any
	// case.
	Engine Engine

	// Rate is how many requests a second are sent, whatever the answers: the open
	// model. 0 is a closed loop: each connection sends as soon as it has its answer.
	// Profiles of a fixed number of requests are closed in any case, and recovery is
	// open in any case.
	Rate int

	// Duration is how long each series lasts. Default: 5 s. Too short says little
	// about the rare latencies.
	Duration time.Duration

	// Requests, if not 0, bounds a series instead of Duration.
	Requests int64

	// Connections is how many there are at most. Default: 64.
	Connections int

	// Keys is how many ended calls replay, conflict and poll ask for. Default: 1.
	Keys int

	// Preload is how many ended calls the store has before it is measured, at least.
	// They are made over HTTP, once; all profiles run on the same store then.
	Preload int64

	// Data is a data directory to be used and kept, instead of a new one for each
	// profile. It is made where it is missing.
	Data string

	// Runs is how often each profile is measured, in turns with its control.
	// Default: 1. Noise between runs needs three at least.
	Runs int

	// Warmup is how long requests of the profile are sent before the first series
	// without being counted. Default: none. A store that was just opened gets faster
	// over some seconds, since its buffers grow.
	Warmup time.Duration

	// Timeout is how long an answer may take. Default: 30 s.
	Timeout time.Duration

	// Dir is where data directories are made. Default: that of the system's
	// temporary files. It decides which disk is measured.
	Dir string

	// Command is how to run it again, to be kept with the results.
	Command string

	// Progress, if not nil, is told now and then how far it is. It is called by many
	// goroutines, one at a time, and must not take long.
	Progress func(Progress)
}

// Progress is how far a run is.
type Progress struct {
	Profile string  // or "preload"
	Step    string  // what of it
	Done    float64 // share of the step, 0 to 1
}

const (
	defaultConnections = 64
	defaultDuration    = 5 * time.Second
	defaultTimeout     = 30 * time.Second
	maxConnections     = 10_000
	maxRate            = 1_000_000
	maxKeys            = 10_000
	mostRuns           = 100
)

func (o *Options) defaults() {
	if o.Engine == "" {
		o.Engine = Vegeta
	}
	if o.Duration == 0 && o.Requests == 0 {
		o.Duration = defaultDuration
	}
	if o.Connections == 0 {
		o.Connections = defaultConnections
	}
	if o.Keys == 0 {
		o.Keys = 1
	}
	if o.Runs == 0 {
		o.Runs = 1
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
}

// Validate says everything that is wrong with the options.
func (o Options) Validate() error {
	o.defaults()
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("bench: "+format, args...))
		}
	}
	want(len(o.Profiles) > 0, "no profile")
	for _, name := range o.Profiles {
		known := name == "all" || slices.ContainsFunc(declarations, func(d declaration) bool { return d.name == name })
		want(known, "there is no profile %q", name)
		want(o.Target == "" || name != "recovery", "profile recovery kills a daemon, and must have started it")
	}
	want((o.Idemd == "") != (o.Target == ""), "want either a program or a target")
	want(o.Target != "" || len(o.Control) > 0, "no control")
	want(o.Target == "" || len(o.Flags) == 0 && o.Data == "", "a target has its flags and its data directory already")
	u, err := url.Parse(o.Target)
	want(o.Target == "" || err == nil && *u == url.URL{Scheme: "http", Host: u.Host, Path: u.Path} && u.Host != "" && strings.Trim(u.Path, "/") == "",
		"the target must be http://HOST:PORT")
	want(o.Engine == Vegeta || o.Engine == Bare, "there is no engine %q", o.Engine)
	want(o.Engine == Vegeta || o.Rate == 0, "the bare engine has no schedule; a rate needs vegeta")
	want(o.Rate >= 0 && o.Rate <= maxRate, "the rate must be 0 to %d", maxRate)
	want(o.Connections > 0 && o.Connections <= maxConnections, "the connections must be 1 to %d", maxConnections)
	want(o.Keys > 0 && o.Keys <= maxKeys, "the keys must be 1 to %d", maxKeys)
	want(o.Runs > 0 && o.Runs <= mostRuns, "the runs must be 1 to %d", mostRuns)
	want(o.Duration >= 0 && o.Requests >= 0 && o.Preload >= 0 && o.Warmup >= 0 && o.Timeout > 0, "nothing can be negative, and a time-out must be positive")
	for _, d := range o.chosen() {
		// Without a request to end with, an open series would have no end.
		if a := o.attackOn(d); a.open() && a.rate <= maxRate {
			want(a.all() > 0, "not one request of %s is due in %v", d.name, o.Duration)
		}
	}
	return errors.Join(faults...)
}

// chosen are the profiles that are measured, in order.
func (o *Options) chosen() []declaration {
	var some []declaration
	for _, d := range declarations {
		if slices.Contains(o.Profiles, d.name) || slices.Contains(o.Profiles, "all") && (!d.kill || o.Target == "") {
			some = append(some, d)
		}
	}
	return some
}

// Recording is what a run measured, with the raw latencies.
type Recording struct {
	Results
	histograms map[string]*hdrhistogram.Histogram // by Measurement.Histogram
}

// Save writes results.json and the histograms into a directory that is not there
// yet, or empty. Either all of it is there afterwards, or none.
func (r *Recording) Save(dir string) (err error) {
	dir = filepath.Clean(dir)
	// What is renamed below takes the place of a directory, not of a link to one.
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: %w", err), os.RemoveAll(part))
		}
	}()
	if err = os.Chmod(part, 0o755); err != nil { // what MkdirTemp makes is nobody else's to read
		return err
	}
	for _, p := range r.Profiles {
		for _, m := range slices.Concat(p.Runs, p.Control) {
			h := r.histograms[m.Histogram]
			var log, distribution bytes.Buffer
			if err = writeLog(&log, h, m.Histogram, m.StartedAt, m.Elapsed); err != nil {
				return err
			}
			if err = writeDistribution(&distribution, h); err != nil {
				return err
			}
			file := filepath.Join(part, m.Histogram)
			if err = os.WriteFile(file+".hlog", log.Bytes(), 0o644); err != nil {
				return err
			}
			if err = os.WriteFile(file+".hgrm", distribution.Bytes(), 0o644); err != nil {
				return err
			}
		}
	}
	doc, err := json.MarshalIndent(r.Results, "", "  ")
	if err != nil {
		return err
	}
	if err = os.WriteFile(filepath.Join(part, resultsFile), append(doc, '\n'), 0o644); err != nil {
		return err
	}
	return syscall.Rename(part, dir) // takes the place of an empty directory, which os.Rename does not, and of nothing else
}

// suite is one run.
type suite struct {
	o    Options
	tmp  string
	data string // of all profiles; empty: each has its own
	rec  *Recording
}

// Run measures. Whatever happens, no process, no temporary directory, no
// connection and no goroutine is left; what was measured until then is dropped
// where it does not come to its end. Figures that must not be used are no error:
// their profile says why in Void.
func Run(ctx context.Context, o Options) (rec *Recording, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.defaults()
	o.Target = strings.TrimSuffix(o.Target, "/")
	tmp, err := os.MkdirTemp(o.Dir, "idemd-bench-*")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() {
		if rmErr := os.RemoveAll(tmp); rmErr != nil {
			rec, err = nil, errors.Join(err, fmt.Errorf("bench: %w", rmErr))
		}
	}()
	s := &suite{o: o, tmp: tmp, data: o.Data}
	return s.run(ctx)
}

func (s *suite) run(ctx context.Context) (*Recording, error) {
	disk := s.tmp
	if s.data != "" {
		disk = existing(s.data)
	}
	s.rec = &Recording{
		Results: Results{
			SchemaVersion: SchemaVersion, Commit: s.commit(ctx), StartedAt: time.Now().UTC().Truncate(time.Millisecond),
			Command: s.o.Command, Env: environment(disk), Profiles: []Profile{},
		},
		histograms: make(map[string]*hdrhistogram.Histogram),
	}
	fsync := fsyncMeter{hist: newHistogram()}
	if err := fsync.measure(disk); err != nil {
		return nil, err
	}
	if err := s.preload(ctx); err != nil {
		return nil, err
	}
	for _, d := range s.o.chosen() {
		p, err := s.profile(ctx, d)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		s.rec.Profiles = append(s.rec.Profiles, *p)
	}
	if err := fsync.measure(disk); err != nil {
		return nil, err
	}
	s.rec.Env.Fsync = fsync.quantiles()
	return s.rec, nil
}

// commit is the version that the program says it is.
func (s *suite) commit(ctx context.Context) string {
	if s.o.Idemd == "" {
		return unknown
	}
	out, err := exec.CommandContext(ctx, s.o.Idemd, "version", "--json").Output()
	var v struct{ Version string }
	if err != nil || json.Unmarshal(out, &v) != nil || v.Version == "" {
		return unknown // a program that cannot even be started is found out soon
	}
	return v.Version
}

func (s *suite) progress(profile, step string, done float64) {
	if s.o.Progress != nil {
		s.o.Progress(Progress{profile, step, min(done, 1)})
	}
}

// subject starts what is measured, or names what runs already.
func (s *suite) subject(ctx context.Context, d declaration) (*server, string, error) {
	if s.o.Target != "" {
		return nil, s.o.Target, nil
	}
	data := s.data
	if data == "" {
		data = filepath.Join(s.tmp, d.name)
	}
	listen := "127.0.0.1:0"
	if d.kill {
		var err error
		if listen, err = fixedPort(ctx); err != nil {
			return nil, "", err
		}
	}
	srv, err := startDaemon(ctx, s.o.Idemd, listen, data, s.o.Flags)
	if err != nil {
		return nil, "", err
	}
	return srv, srv.url, nil
}

// fixedPort finds a free port that no outgoing connection gets: one that did
// would connect to itself while nobody listens, and keep the daemon out.
func fixedPort(ctx context.Context) (string, error) {
	const lowest, highest = 20_000, 32_000
	var last error
	for range 100 {
		n, err := rand.Int(rand.Reader, big.NewInt(highest-lowest))
		if err != nil {
			return "", fmt.Errorf("bench: %w", err)
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.FormatInt(lowest+n.Int64(), 10))
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			last = err
			continue
		}
		return addr, l.Close()
	}
	return "", fmt.Errorf("bench: no free port: %w", last)
}

// preloadConnections is how many calls share an fsync while a store is filled.
const preloadConnections = 256

// preload fills the store that all profiles use.
func (s *suite) preload(ctx context.Context) (err error) {
	if s.o.Preload == 0 {
		return nil
	}
	if s.data == "" && s.o.Target == "" {
		s.data = filepath.Join(s.tmp, "preloaded")
	}
	srv, url, err := s.subject(ctx, declarations[0])
	if err != nil {
		return err
	}
	if srv != nil {
		defer func() { err = errors.Join(err, srv.stop()) }()
	}
	ask := newAsker(url)
	defer ask.close()
	before, err := ask.stats(ctx)
	if err != nil {
		return err
	}
	missing := s.o.Preload - before.Calls + before.waiting()
	if missing <= 0 {
		return nil
	}
	a := &attack{base: url, engine: Bare, connections: preloadConnections, requests: missing, timeout: s.o.Timeout}
	w, rec := newWorkload(declarations[0], nil), newRecorder(declarations[0].right, true)
	rec.tick = s.ticker("preload", fmt.Sprintf("%d calls", missing), a)
	if _, err := a.run(ctx, w, rec); err != nil {
		return err
	}
	if rec.good != missing {
		return fmt.Errorf("bench: preload: %d of %d calls were made: %v", rec.good, missing, rec.measurement().Statuses)
	}
	return nil
}

// ticker tells how far a series is, a few times a second.
func (s *suite) ticker(profile, step string, a *attack) func(int64) {
	if s.o.Progress == nil {
		return nil
	}
	began := time.Now()
	var told time.Time
	return func(n int64) {
		now := time.Now()
		if now.Sub(told) < 100*time.Millisecond {
			return
		}
		told = now
		done := now.Sub(began).Seconds() / max(a.duration, time.Millisecond).Seconds()
		if all := a.all(); all > 0 {
			done = float64(n) / float64(all)
		}
		s.progress(profile, step, done)
	}
}

// attackOn says how a profile's series is sent to a server.
func (o *Options) attackOn(d declaration) attack {
	a := attack{
		engine: o.Engine, connections: o.Connections, rate: o.Rate,
		requests: o.Requests, duration: o.Duration, timeout: o.Timeout, workers: manyWorkers,
	}
	if a.requests > 0 {
		a.duration = 0
	}
	if d.requests > 0 {
		a.requests, a.duration, a.rate = d.requests, 0, 0
	}
	if d.connections > 0 {
		a.connections = d.connections
	}
	if d.kill && a.rate == 0 {
		a.rate = recoveryRate
	}
	if a.open() {
		a.engine = Vegeta // bare has no schedule
	}
	return a
}

// profile measures one profile on its own daemon, in turns with its control.
func (s *suite) profile(ctx context.Context, d declaration) (p *Profile, err error) {
	s.progress(d.name, "start", 0)
	if s.data == "" && s.o.Target == "" {
		// All at once they could fill the disk.
		defer func() { err = errors.Join(err, os.RemoveAll(filepath.Join(s.tmp, d.name))) }()
	}
	srv, url, err := s.subject(ctx, d)
	if err != nil {
		return nil, err
	}
	if srv != nil {
		// A kill puts another one in its place.
		defer func() { err = errors.Join(err, srv.stop()) }()
	}
	ask := newAsker(url)
	defer ask.close()
	var pool []known
	if d.keys == knownKeys {
		if pool, err = ask.settle(ctx, s.o.Keys); err != nil {
			return nil, err
		}
	}
	answer, err := ask.sample(ctx, d, pool)
	if err != nil {
		return nil, err
	}
	var control *server
	if len(s.o.Control) > 0 {
		if control, err = startControl(ctx, s.o.Control, *answer); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, control.stop()) }()
	}
	on := s.o.attackOn(d)
	p = &Profile{
		Name: d.name, Engine: string(on.engine), Pace: "closed", Rate: float64(on.rate), Connections: on.connections,
		Duration: on.duration, Preload: s.o.Preload, Runs: []Measurement{}, Control: []Measurement{}, Void: []string{},
	}
	if on.open() {
		p.Pace = "open"
	}
	if err := s.warm(ctx, d, pool, url); err != nil {
		return nil, err
	}
	if control != nil {
		if err := s.warm(ctx, d, pool, control.url); err != nil {
			return nil, err
		}
	}
	for run := 1; run <= s.o.Runs; run++ {
		on.base = url
		step := fmt.Sprintf("run %d of %d", run, s.o.Runs)
		m, faults, err := s.measure(ctx, &on, d, pool, ask, &srv, step)
		if err != nil {
			return nil, err
		}
		m.Histogram = fmt.Sprintf("%s-%d", d.name, run)
		p.Runs, p.Void = append(p.Runs, m.Measurement), append(p.Void, faults...)
		s.rec.histograms[m.Histogram] = m.hist
		if control == nil {
			continue
		}
		on.base = control.url
		quiet := d
		quiet.kill = false
		m, faults, err = s.measure(ctx, &on, quiet, pool, nil, &control, step+", control")
		if err != nil {
			return nil, err
		}
		m.Histogram = fmt.Sprintf("%s-control-%d", d.name, run)
		p.Control, p.Void = append(p.Control, m.Measurement), append(p.Void, faults...)
		s.rec.histograms[m.Histogram] = m.hist
	}
	return p, nil
}

// warm sends requests of the profile that nobody counts.
func (s *suite) warm(ctx context.Context, d declaration, pool []known, url string) error {
	if s.o.Warmup == 0 {
		return nil
	}
	a := s.o.attackOn(d)
	a.base, a.rate, a.requests, a.duration = url, 0, 0, s.o.Warmup
	w, rec := newWorkload(d, pool), newRecorder(d.right, true)
	w.renew = crowd
	rec.tick = s.ticker(d.name, "warm-up", &a)
	_, err := a.run(ctx, w, rec)
	return err
}

// series is a measurement with its latencies.
type series struct {
	Measurement
	hist *hdrhistogram.Histogram
}

// measure sends one series and says what is wrong with it. Without an asker it is
// the control's, which counts nothing.
func (s *suite) measure(ctx context.Context, a *attack, d declaration, pool []known, ask *asker, srv **server, step string) (series, []string, error) {
	w, rec := newWorkload(d, pool), newRecorder(d.right, !a.open())
	rec.timeline = d.kill
	rec.tick = s.ticker(d.name, step, a)
	var before, after *stats
	var err error
	if ask != nil {
		if before, err = ask.atRest(ctx); err != nil {
			return series{}, nil, err
		}
	}
	runtime.GC() // not for the garbage of the last series
	own, its := ownCPU(), (*srv).cpu()
	var crash chan crashed
	if d.kill {
		crash = make(chan crashed, 1)
		half := a.interval() * time.Duration(a.all()) / 2
		go func() { crash <- s.killAndRestart(ctx, *srv, half) }()
	}
	began, err := a.run(ctx, w, rec)
	if d.kill {
		c := <-crash
		if c.server != nil {
			its -= c.cpu
			*srv = c.server
		}
		err = errors.Join(err, c.err)
	}
	if err != nil {
		return series{}, nil, err
	}
	m := rec.measurement()
	m.StartedAt = began.UTC().Truncate(time.Millisecond)
	m.GeneratorCPU = used(own, ownCPU())
	faults := append(saturated(a, m), unfit(d, rec)...)
	m.Attempts = map[string]int64{}
	if ask != nil {
		if after, err = ask.atRest(ctx); err != nil {
			return series{}, nil, err
		}
		faults = append(faults, check(before, after, rec.seen(w))...)
		m.Calls, m.Effects, m.Attempts = after.Calls-before.Calls, after.Effects-before.Effects, minus(after.Attempts, before.Attempts)
	}
	m.ServerCPU = -1
	if *srv != nil {
		if now := (*srv).cpu(); now >= 0 {
			m.ServerCPU = now - its
		}
	}
	for i := range faults {
		faults[i] = step + ": " + faults[i]
	}
	return series{m, rec.hist}, faults, nil
}

// crashed is a daemon after a kill.
type crashed struct {
	server *server // the next life
	cpu    float64 // seconds that the life before used altogether
	err    error
}

// killAndRestart kills the daemon after a while and starts it again, on the same
// directory and at the same address.
func (s *suite) killAndRestart(ctx context.Context, srv *server, after time.Duration) crashed {
	t := time.NewTimer(after)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return crashed{err: ctx.Err()}
	}
	if err := srv.kill(); err != nil {
		return crashed{err: err}
	}
	gone := srv.cmd.ProcessState
	data := s.data
	if data == "" {
		data = filepath.Join(s.tmp, "recovery")
	}
	next, err := startDaemon(ctx, s.o.Idemd, strings.TrimPrefix(srv.url, "http://"), data, s.o.Flags)
	return crashed{next, (gone.UserTime() + gone.SystemTime()).Seconds(), err}
}
