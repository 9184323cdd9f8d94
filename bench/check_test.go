package bench

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestCheck plants every disagreement that there can be: answers of success alone
// prove nothing (R18).
func TestCheck(t *testing.T) {
	before := stats{Calls: 1000, Effects: 900, Attempts: map[string]int64{"1": 990, "2": 10}, Deliveries: 5, Created: 5}
	// 100 requests: 60 accepted anew, 20 there before, 5 conflicts, 5 refused, and
	// 10 without an answer, of which 4 were accepted and 3 conflicted.
	s := seen{posts: true, requests: 100, silent: 10, fresh: 60, again: 20, conflict: 5, keys: 70, effects: 1}
	honest := func() stats {
		return stats{Calls: 1064, Effects: 964, Attempts: map[string]int64{"1": 1054, "2": 10}, ByStatus: map[string]int64{"succeeded": 1064},
			Deliveries: 5 + 97, Created: 5 + 64, Replayed: 15, Joined: 5, Conflicts: 8, Refused: 5}
	}
	for _, tc := range []struct {
		name  string
		after func(*stats)
		seen  func(*seen)
		want  string
	}{
		{"they agree", func(*stats) {}, nil, ""},
		{"a call is missing", func(s *stats) { s.Calls, s.Created, s.Effects, s.Attempts["1"] = 1059, 64, 959, 1049 }, nil, "calls: the server counted 59, the answers say 60 to 70"},
		{"a call too many", func(s *stats) { s.Calls, s.Created, s.Effects, s.Attempts["1"] = 1071, 76, 971, 1061 }, nil, "calls: the server counted 71"},
		{"more calls than keys", nil, func(s *seen) { s.keys = 63 }, "calls: the server counted 64, the answers say 60 to 63"},
		// 20 requests were not accepted, each of which may have had a key to itself.
		{"as many new keys as calls", nil, func(s *seen) { s.keys = 84 }, ""},
		{"new keys that are taken for known ones", nil, func(s *seen) { s.keys = 85 }, "calls: the server counted 64, and accepted 65 new keys at least"},
		{"an effect is missing", func(s *stats) { s.Effects-- }, nil, "effects: the server counted 63, the answers say 64"},
		{"an effect too many", func(s *stats) { s.Effects++ }, nil, "effects: the server counted 65"},
		{"effects of a tool that has none", nil, func(s *seen) { s.effects = 0 }, "effects: the server counted 64, the answers say 0"},
		{"a second attempt", func(s *stats) { s.Attempts = map[string]int64{"1": 1053, "2": 11} }, nil, "calls of one attempt: the server counted 63"},
		{"a call without an end", func(s *stats) { s.ByStatus["running"]++; s.Attempts["1"]-- }, nil, "1 calls have no end"},
		{"an end that is not counted", func(s *stats) { s.Attempts["1"]-- }, nil, "ended calls: the server counted 63"},
		{"a delivery too many", func(s *stats) { s.Deliveries += 4; s.Refused += 4 }, nil, "deliveries: the server counted 101, the answers say 90 to 100"},
		{"deliveries are missing", func(s *stats) { s.Deliveries, s.Created = 94, 5+56; s.Refused = 5 }, nil, "deliveries: the server counted 89"},
		{"a delivery of no kind", func(s *stats) { s.Replayed-- }, nil, "deliveries by kind: the server counted 96, the answers say 97"},
		{"created is not calls", func(s *stats) { s.Created--; s.Refused++ }, nil, "created: the server counted 63, the answers say 64"},
		{"a replay is missing", func(s *stats) { s.Replayed--; s.Refused++ }, nil, "replayed and joined: the server counted 19, the answers say 20 to 30"},
		{"a requeue", func(s *stats) { s.Requeued++; s.Conflicts-- }, nil, "requeued: the server counted 1, the answers say 0"},
		{"a conflict is missing", func(s *stats) { s.Conflicts = 4; s.Refused += 4 }, nil, "conflicts: the server counted 4, the answers say 5 to 15"},
		{"a refusal is missing", func(s *stats) { s.Refused--; s.Conflicts++ }, nil, "refused: the server counted 4, the answers say 5 to 15"},
		{"who only asks changes nothing", nil, func(s *seen) { s.posts = false }, "deliveries: the server counted 97, the answers say 0"},
		{"a kill, and its calls are there", func(s *stats) {
			s.Deliveries, s.Created, s.Replayed, s.Joined, s.Conflicts, s.Refused = 1, 1, 0, 0, 0, 0
		},
			func(s *seen) { s.restart = true }, ""},
		{"a kill, and an answered call is gone", func(s *stats) { s.Calls, s.Effects, s.Attempts["1"] = 1059, 959, 1049 },
			func(s *seen) { s.restart = true }, "calls: the server counted 59, the answers say 60 to 70"},
		{"a kill, and an effect is gone", func(s *stats) { s.Effects-- }, func(s *seen) { s.restart = true }, "effects: the server counted 63"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			after, seen := honest(), s
			if tc.after != nil {
				tc.after(&after)
			}
			if tc.seen != nil {
				tc.seen(&seen)
			}
			got := strings.Join(check(&before, &after, seen), "; ")
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// impostor answers as idemd does, and counts as it is told to.
type impostor struct {
	mu     sync.Mutex
	calls  map[string]bool
	counts stats
	lie    func(*stats)
}

func (i *impostor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r.URL.Path == "/stats" {
		c := i.counts
		c.Attempts = map[string]int64{"1": c.Calls}
		if i.lie != nil {
			i.lie(&c)
		}
		_ = json.NewEncoder(w).Encode(c)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	key := r.Header.Get("Idempotency-Key")
	i.counts.Deliveries++
	again := i.calls[key]
	if again {
		i.counts.Replayed++
	} else {
		i.counts.Created++
		i.counts.Calls++
		i.counts.Effects++
	}
	i.calls[key] = true
	w.Header().Set("Idemd-Call-Id", "c_"+key)
	w.Header().Set("Idempotent-Replayed", map[bool]string{true: "true", false: "false"}[again])
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{}`)
}

// TestRunOnTarget runs the suite on a server that may lie about its counts.
func TestRunOnTarget(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(*stats)
		want string
	}{
		{"honest", nil, ""},
		// All of what the first half of a series does is lost.
		{"it forgets calls", func(c *stats) { c.Calls /= 2; c.Attempts["1"] /= 2; c.Effects /= 2 }, "calls: the server counted"},
		{"it has twice the effects", func(c *stats) { c.Effects *= 2 }, "effects: the server counted 200, the answers say 100"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(&impostor{calls: make(map[string]bool), lie: tc.lie})
			defer srv.Close()
			rec, err := Run(t.Context(), Options{
				Profiles: []string{"distinct", "same", "replay", "mixed"}, Target: srv.URL + "/", Requests: 100, Connections: 4, Engine: Bare, Dir: t.TempDir(),
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(rec.Profiles) != 4 {
				t.Fatalf("%d profiles", len(rec.Profiles))
			}
			p := rec.Profiles[0]
			got := strings.Join(p.Void, "; ")
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if tc.lie != nil {
				return
			}
			for i, want := range []Measurement{
				{Requests: 100, Calls: 100, Effects: 100}, {Requests: 300, Calls: 1, Effects: 1}, {Requests: 100, Calls: 90, Effects: 90}, {Requests: 100},
			} {
				p, m := rec.Profiles[i], rec.Profiles[i].Runs[0]
				if m.Requests != want.Requests || m.Calls != want.Calls || m.Effects != want.Effects || m.Attempts["1"] != want.Calls ||
					len(p.Void) > 0 || len(p.Control) > 0 || m.ServerCPU != -1 {
					t.Errorf("%s: %+v %v", p.Name, m, p.Void)
				}
			}
		})
	}
	t.Run("it takes every key for the same", func(t *testing.T) {
		it := &impostor{calls: make(map[string]bool)}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Idempotency-Key", "the only one")
			it.ServeHTTP(w, r)
		}))
		defer srv.Close()
		rec, err := Run(t.Context(), Options{Profiles: []string{"distinct", "mixed"}, Target: srv.URL, Requests: 100, Connections: 4, Engine: Bare, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		for i, keys := range []string{"100", "90"} {
			got, want := strings.Join(rec.Profiles[i].Void, "; "), "run 1 of 1: calls: the server counted 0, and accepted "+keys+" new keys at least"
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
	t.Run("not idemd", func(t *testing.T) {
		srv := httptest.NewServer(http.NotFoundHandler())
		defer srv.Close()
		if _, err := Run(t.Context(), Options{Profiles: []string{"distinct"}, Target: srv.URL, Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("%v", err)
		}
	})
}

// TestRunRefused: a server that refuses some, and counts that honestly, has no
// latencies to be compared: its refusals are among them. So has a control that
// answers something else.
func TestRunRefused(t *testing.T) {
	honest := &impostor{calls: make(map[string]bool)}
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && n.Add(1) == 50 {
			honest.mu.Lock()
			defer honest.mu.Unlock()
			honest.counts.Deliveries++
			honest.counts.Refused++
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		honest.ServeHTTP(w, r)
	}))
	defer srv.Close()
	rec, err := Run(t.Context(), Options{Profiles: []string{"distinct"}, Target: srv.URL, Requests: 100, Connections: 4, Engine: Bare, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(rec.Profiles[0].Void, "; "), "run 1 of 1: 1 of 100 requests were not answered with status 200: 200:99 503:1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s := &suite{o: Options{}}
	a := &attack{base: "http://it", engine: Vegeta, connections: 1, requests: 3, timeout: time.Minute, wire: wireFunc(func(r *http.Request) (*http.Response, error) {
		a := ok(r)
		a.StatusCode = http.StatusNotFound
		return a, nil
	})}
	var control *server
	_, faults, err := s.measure(t.Context(), a, declared(t, "distinct"), nil, nil, &control, "control")
	if got := strings.Join(faults, "; "); err != nil || got != "control: 3 of 3 requests were not answered with status 200: 404:3" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSave writes all or nothing.
func TestSave(t *testing.T) {
	srv := httptest.NewServer(&impostor{calls: make(map[string]bool)})
	defer srv.Close()
	rec, err := Run(t.Context(), Options{Profiles: []string{"distinct"}, Target: srv.URL, Requests: 50, Runs: 2, Command: "bench run", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := rec.Save(dir); err != nil {
		t.Fatal(err)
	}
	back, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(back.Profiles) != 1 || back.Profiles[0].Runs[1].Histogram != "distinct-2" || back.Command != "bench run" || back.SchemaVersion != SchemaVersion {
		t.Errorf("%+v", back.Results)
	}
	h, err := back.latencies(back.Profiles[0].Runs)
	if err != nil || h.TotalCount() != 100 {
		t.Errorf("%v", err)
	}
	if back.Env.Fsync.Max <= 0 || back.Env.Cores < 1 {
		t.Errorf("%+v", back.Env)
	}
	if err := rec.Save(dir); err == nil {
		t.Error("results are replaced")
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	t.Run("into an empty directory", func(t *testing.T) {
		dir := t.TempDir()
		if err := rec.Save(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err != nil {
			t.Error(err)
		}
	})
	t.Run("by a symbolic link", func(t *testing.T) {
		dir := t.TempDir()
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		if err := rec.Save(link); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err != nil {
			t.Error(err)
		}
	})
	t.Run("where a directory is full, or a file is", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, taken := range []string{dir, file} {
			if err := rec.Save(taken); err == nil {
				t.Errorf("%s is replaced", taken)
			}
		}
		if mine, err := os.ReadFile(file); err != nil || string(mine) != "mine" {
			t.Errorf("%q, %v", mine, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%v, %v", left, err)
		}
	})
}

func TestOptions(t *testing.T) {
	fine := func() Options {
		return Options{Profiles: []string{"distinct"}, Idemd: "idemd", Control: []string{"bench"}}
	}
	if err := fine().Validate(); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		name string
		set  func(*Options)
		want string
	}{
		{"no profile", func(o *Options) { o.Profiles = nil }, "no profile"},
		{"unknown profile", func(o *Options) { o.Profiles = []string{"all", "fast"} }, `no profile "fast"`},
		{"nothing to measure", func(o *Options) { o.Idemd = "" }, "want either"},
		{"two things to measure", func(o *Options) { o.Target = "http://it" }, "want either"},
		{"no control", func(o *Options) { o.Control = nil }, "no control"},
		{"target and flags", func(o *Options) { o.Idemd, o.Target, o.Flags = "", "http://it", []string{"--workers=1"} }, "flags"},
		{"target over TLS", func(o *Options) { o.Idemd, o.Target = "", "https://it" }, "http://HOST:PORT"},
		{"target below a path", func(o *Options) { o.Idemd, o.Target = "", "http://it/v1" }, "http://HOST:PORT"},
		{"target without a host", func(o *Options) { o.Idemd, o.Target = "", "http:///" }, "http://HOST:PORT"},
		{"target with a question", func(o *Options) { o.Idemd, o.Target = "", "http://it/?a=b" }, "http://HOST:PORT"},
		{"target to be killed", func(o *Options) { o.Idemd, o.Target, o.Profiles = "", "http://it", []string{"recovery"} }, "kills"},
		{"engine", func(o *Options) { o.Engine = "steam" }, "steam"},
		{"rate", func(o *Options) { o.Rate = maxRate + 1 }, "rate"},
		{"bare at a rate", func(o *Options) { o.Rate, o.Engine = 10, Bare }, "no schedule"},
		{"rate below nothing", func(o *Options) { o.Rate = -1 }, "rate"},
		{"nothing is due", func(o *Options) { o.Rate, o.Duration = 1, 1 }, "not one request"},
		{"nothing is due of a profile with a rate of its own", func(o *Options) { o.Profiles, o.Duration = []string{"recovery"}, 1 }, "not one request of recovery"},
		{"nothing is due of one of all", func(o *Options) { o.Profiles, o.Duration = []string{"all"}, 1 }, "not one request of recovery"},
		{"connections", func(o *Options) { o.Connections = maxConnections + 1 }, "connections"},
		{"keys", func(o *Options) { o.Keys = -1 }, "keys"},
		{"runs", func(o *Options) { o.Runs = mostRuns + 1 }, "runs"},
		{"warm-up", func(o *Options) { o.Warmup = -1 }, "negative"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := fine()
			tc.set(&o)
			if err := o.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v", err)
			}
			if _, err := Run(context.Background(), o); err == nil {
				t.Error("it runs")
			}
		})
	}
}
