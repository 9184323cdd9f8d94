package kv

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/idemd/idemd/idem"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("KV_TEST_CHILD"); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(m)
}

// testOptions are for a store in memory, or on any other file system. A misuse
// of the engine is fatal in every test.
func testOptions(fsys vfs.FS, dir string) Options {
	return Options{
		Dir: dir, FS: fsys, Logger: slog.New(slog.DiscardHandler),
		MemTable: 1 << 20, Cache: 8 << 20, Ballast: 1 << 20,
		misuse: func(what string) { panic(what) },
		Exit: func(code int) {
			debug.PrintStack() // nobody expected it
			os.Exit(code)
		},
	}
}

func openOptions(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openMem opens a new store in memory, closed at the end of the test.
func openMem(t testing.TB) *Store {
	t.Helper()
	return openFS(t, vfs.NewMem())
}

func openFS(t testing.TB, fsys vfs.FS) *Store {
	t.Helper()
	s := openOptions(t, testOptions(fsys, "data"))
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// reopen closes a store and opens its directory again.
func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	closeStore(t, s)
	again := openOptions(t, s.opts)
	t.Cleanup(func() { closeStore(t, again) })
	return again
}

// seeded returns random numbers whose seed is printed.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("KV_TEST_SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("KV_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// What the tests submit and run.

var (
	localTool = &idem.Tool{Name: "charge", Effects: idem.EffectsLocal, Rerun: idem.RerunYes}
	otherTool = &idem.Tool{Name: "refund", Effects: idem.EffectsExternal, Rerun: idem.RerunYes}
)

const testWindow = time.Hour

var testStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func keyOf(name string) idem.Key { return idem.Key{Namespace: idem.DefaultNamespace, Name: name} }

func idOf(k idem.Key, n int) idem.CallID {
	at := testStart.Add(time.Duration(n) * time.Millisecond)
	return idem.NewCallID(at, k, [10]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
}

// submit is the n-th call of a test.
func submit(k idem.Key, n int) idem.Transition {
	at := testStart.Add(time.Duration(n) * time.Millisecond)
	return idem.Submit(
		idem.Request{Key: k, Tool: "refund", Args: []byte(`{"amount":100}`), Fingerprint: idem.Fingerprint{1}},
		idem.Admission{ID: idOf(k, n), CreatedAt: at, Now: at},
	)
}

// rulesOf are the i-th of rules that all differ.
func rulesOf(i int) *idem.Rules {
	return &idem.Rules{Ignore: []string{fmt.Sprintf("/memo%d", i)}, Trim: []string{"/order"}}
}

func terms() idem.Terms { return idem.Terms{Now: testStart, Window: testWindow} }

func claim(tool *idem.Tool, lease time.Duration) idem.Transition {
	return idem.Claim(idem.ClaimTerms{Terms: terms(), Owner: "boot/w", Lease: lease, MaxCrashes: 3, Tool: tool})
}

// settling builds a settlement under whatever lease the record names.
func settling(make func(idem.Settlement) idem.Transition) idem.Transition {
	return func(cur *idem.Call) (idem.Change, error) {
		return make(idem.Settlement{Terms: terms(), Lease: idem.LeaseOf(cur)})(cur)
	}
}

func succeed() idem.Transition {
	return settling(func(s idem.Settlement) idem.Transition {
		return idem.Succeed(s, idem.Result{Output: []byte(`{"ok":true}`)})
	})
}

func fail(retryable bool) idem.Transition {
	return settling(func(s idem.Settlement) idem.Transition {
		f := idem.Failure{Code: idem.FailureTool, Message: "no", Retryable: retryable}
		if retryable {
			f.RetryAfter = time.Minute
		}
		return idem.Fail(s, f)
	})
}

func hold() idem.Transition {
	return settling(func(s idem.Settlement) idem.Transition {
		return idem.Hold(s, idem.Failure{Code: idem.FailureLost, Message: "no answer"})
	})
}

// fused is a local tool's call in one change.
func fused(k idem.Key, n int) idem.Transition {
	return idem.Chain(submit(k, n), claim(localTool, time.Hour), succeed())
}

func update(t testing.TB, s *Store, k idem.Key, tr idem.Transition) idem.Change {
	t.Helper()
	ch, err := s.Update(context.Background(), k, tr)
	if err != nil {
		t.Fatalf("update of %v: %v", k, err)
	}
	return ch
}
