package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/httpapi"
	"github.com/idemd/idemd/kv"
	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

// gateFS is a disk on which nothing becomes durable while the gate is shut: a
// sync of a log waits for it to open.
type gateFS struct {
	vfs.FS
	mu   sync.Mutex
	shut chan struct{} // nil: open
}

func (g *gateFS) Unwrap() vfs.FS { return g.FS }

func (g *gateFS) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gateFS) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

func (g *gateFS) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

func (g *gateFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return gateFile{f, g}, nil
}

func (g *gateFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, c)
	return g.wrap(name, f, err)
}

func (g *gateFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(from, to, c)
	return g.wrap(to, f, err)
}

type gateFile struct {
	vfs.File
	g *gateFS
}

func (f gateFile) Sync() error     { f.g.pass(); return f.File.Sync() }
func (f gateFile) SyncData() error { f.g.pass(); return f.File.SyncData() }
func (f gateFile) SyncTo(n int64) (bool, error) {
	f.g.pass()
	return f.File.SyncTo(n)
}

// gated is a server over a real store on a disk with a gate, inside a bubble.
type gated struct {
	t       *testing.T
	disk    *gateFS
	handler http.Handler
}

func behindGate(t *testing.T, test func(g *gated)) {
	synctest.Test(t, func(t *testing.T) {
		disk := &gateFS{FS: vfs.NewMem()}
		store, err := kv.Open(kv.Options{Dir: "data", FS: disk, Ballast: -1, MinFree: -1, SlowDisk: time.Hour, SlowGrace: 2 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		run, err := runner.New(store, runner.Options{Tools: tool.Samples()})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has seen that nothing is due: a new call goes straight to a worker
		test(&gated{t: t, disk: disk, handler: httpapi.New(run, httpapi.Options{}).Handler()})
		run.Stop(t.Context())
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// asked is a request under way. Its answer may be read once done is closed.
type asked struct {
	name string
	rec  *httptest.ResponseRecorder
	done chan struct{}
}

func (a *asked) answered() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// ask sends a request and does not wait for its answer. A body makes it a POST.
func (g *gated) ask(name, path, key, body string, header ...string) *asked {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a := &asked{name: name, rec: httptest.NewRecorder(), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		g.handler.ServeHTTP(a.rec, r)
	}()
	return a
}

// get asks and waits.
func (g *gated) get(name, path, key, body string, header ...string) string {
	a := g.ask(name, path, key, body, header...)
	<-a.done
	return a.rec.Body.String()
}

// judge sees to it that no answer has told anything while the gate was shut,
// opens it, and sees to it that all tell it then. Tells holds, for each question,
// what its answer says of the gated commit.
func (g *gated) judge(questions map[*asked]string) {
	g.t.Helper()
	synctest.Wait() // everybody waits for the gate, or has answered
	for a, tells := range questions {
		if a.answered() && (tells == "" || strings.Contains(a.rec.Body.String(), tells)) {
			g.t.Errorf("%s told of what is not durable: %d %s", a.name, a.rec.Code, a.rec.Body)
		}
	}
	g.disk.open()
	for a, tells := range questions {
		<-a.done
		if !strings.Contains(a.rec.Body.String(), tells) || a.rec.Code >= 500 {
			g.t.Errorf("%s does not tell of what is durable: %d %s", a.name, a.rec.Code, a.rec.Body)
		}
	}
}

// While the disk holds a commit up, no route says anything that depends on it,
// be it by the absence of something (R4).
func TestNoRouteRunsAheadOfTheDisk(t *testing.T) {
	const calls = "/v1/tool-calls"
	t.Run("a new call, begun and ended in one commit", func(t *testing.T) {
		behindGate(t, func(g *gated) {
			const k, body = "order-1", `{"tool":"charge","args":{"amount":100}}`
			before := g.get("stats", "/stats", "", "")
			g.disk.close()
			first := g.ask("the call", calls, k, body, "Prefer", "wait=10")
			synctest.Wait()
			if first.answered() {
				t.Fatalf("answered before it was durable: %s", first.rec.Body)
			}
			stats := g.ask("stats", "/stats", "", "")
			synctest.Wait()
			if !stats.answered() || totals(stats.rec.Body.String()) != totals(before) {
				t.Errorf("stats moved ahead of the disk, or wait for it: %s", stats.rec.Body)
			}
			g.judge(map[*asked]string{
				first:                                   `"status":"succeeded"`,
				g.ask("the same again", calls, k, body): `"status":"succeeded"`,
				g.ask("the same again, waiting", calls, k, body, "Prefer", "wait=10"):                    `"status":"succeeded"`,
				g.ask("the key for something else", calls, k, `{"tool":"charge","args":{"amount":101}}`): "idempotency_conflict",
				g.ask("by key", calls+"/by-key/"+k, "", ""):                                              `"status":"succeeded"`,
				g.ask("by key, in a header", calls+"/by-key", k, ""):                                     `"status":"succeeded"`,
				g.ask("list", calls, "", ""):                                                             k,
				g.ask("list of the succeeded", calls+"?status=succeeded", "", ""):                        k,
				g.ask("effects", "/v1/effects", "", ""):                                                  k,
				g.ask("effects, streamed", "/v1/effects", "", "", "Accept", "application/x-ndjson"):      k,
			})
			if after := g.get("stats", "/stats", "", ""); totals(after) == totals(before) {
				t.Errorf("stats do not tell of what is durable: %s", after)
			}
		})
	})

	t.Run("the end of a running call", func(t *testing.T) {
		behindGate(t, func(g *gated) {
			const k, body = "nap-1", `{"tool":"sleep","args":{"seconds":2}}`
			made := g.ask("the call", calls, k, body)
			<-made.done
			id := made.rec.Header().Get("Idemd-Call-Id")
			if id == "" {
				t.Fatal(made.rec.Body)
			}
			synctest.Wait() // its tool runs
			before := g.get("stats", "/stats", "", "")
			g.disk.close()
			waiting := g.ask("a join that waits", calls, k, body, "Prefer", "wait=60")
			polling := g.ask("a look that waits", calls+"/"+id, "", "", "Prefer", "wait=60")
			time.Sleep(3 * time.Second) // in the bubble: the tool has returned, its end is at the gate
			stats := g.ask("stats", "/stats", "", "")
			synctest.Wait()
			if !stats.answered() || totals(stats.rec.Body.String()) != totals(before) {
				t.Errorf("stats moved ahead of the disk, or wait for it: %s", stats.rec.Body)
			}
			none := g.ask("list of the running", calls+"?status=running", "", "")
			synctest.Wait()
			if none.answered() {
				t.Errorf("that the call does not run any more was told: %s", none.rec.Body)
			}
			g.judge(map[*asked]string{
				waiting:                              `"status":"succeeded"`,
				polling:                              `"status":"succeeded"`,
				none:                                 `"calls":[]`,
				g.ask("by id", calls+"/"+id, "", ""): `"status":"succeeded"`,
				g.ask("by key", calls+"/by-key/"+k, "", ""):                       `"status":"succeeded"`,
				g.ask("audit", calls+"/"+id+"/audit", "", ""):                     `"event":"succeeded"`,
				g.ask("list", calls, "", ""):                                      `"status":"succeeded"`,
				g.ask("list of the succeeded", calls+"?status=succeeded", "", ""): k,
				g.ask("the same again", calls, k, body):                           `"status":"succeeded"`,
			})
		})
	})
}

// totals cuts the durable counts out of /stats.
func totals(stats string) string {
	before, _, _ := strings.Cut(stats, `"since"`)
	return before
}
