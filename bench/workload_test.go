package bench

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

func declared(t *testing.T, name string) declaration {
	t.Helper()
	for _, d := range declarations {
		if d.name == name {
			return d
		}
	}
	t.Fatalf("no profile %s", name)
	return declaration{}
}

// requestsOf makes requests from many goroutines.
func requestsOf(w *workload, n int) []request {
	all := make([]request, n)
	var wg sync.WaitGroup
	const hands = 8
	for hand := range hands {
		wg.Go(func() {
			for i := hand; i < n; i += hands {
				all[i] = w.next()
			}
		})
	}
	wg.Wait()
	return all
}

func keysOf(all []request) map[string]int {
	n := make(map[string]int)
	for _, r := range all {
		n[r.key]++
	}
	return n
}

func TestWorkloadKeys(t *testing.T) {
	const n = 4000
	pool := []known{{"k1", "c_1"}, {"k2", "c_2"}}
	for _, d := range declarations {
		t.Run(d.name, func(t *testing.T) {
			w, other := newWorkload(d, pool), newWorkload(d, pool)
			all := requestsOf(w, n)
			keys := keysOf(all)
			size := len(all[0].appendTo(nil, "host"))
			for _, r := range all {
				if r.method == "POST" {
					if _, err := idem.ParseKey(idem.DefaultNamespace, r.key); err != nil {
						t.Fatalf("%q: %v", r.key, err)
					}
				}
				if got := len(r.appendTo(nil, "host")); got != size {
					t.Fatalf("requests of %d and of %d bytes", size, got)
				}
			}
			want := 1
			switch d.keys {
			case newKeys:
				want = n
			case mixedKeys:
				want = n * 9 / 10
			case knownKeys:
				if want = 2; d.get {
					want = 1 // none
				}
			}
			if len(keys) != want {
				t.Errorf("%d keys, want %d", len(keys), want)
			}
			if d.keys != knownKeys {
				if got := w.fresh.Load(); got != int64(want) {
					t.Errorf("it says that it made %d keys", got)
				}
				if _, taken := keys[other.next().key]; taken {
					t.Error("two series share a key")
				}
			}
		})
	}
	t.Run("one key, renewed", func(t *testing.T) {
		w := newWorkload(declared(t, "same"), nil)
		w.renew = 300
		keys := keysOf(requestsOf(w, 900))
		for key, n := range keys {
			if len(keys) != 3 || n != 300 {
				t.Errorf("%d keys, %s %d times", len(keys), key, n)
			}
		}
	})
}

// TestDuplicates/of the last second: what is sent again was made at most a second
// ago, and not always the same.
func TestDuplicates(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := newWorkload(declared(t, "mixed"), nil)
	w.now = func() time.Time { return now }
	made := make(map[string]time.Time)
	ages := make(map[time.Duration]bool)
	duplicates := 0
	for range 5000 {
		now = now.Add(5 * time.Millisecond)
		key := w.next().key
		if at, ok := made[key]; ok {
			duplicates++
			if age := now.Sub(at); age > duplicateOf {
				t.Errorf("%s is %v old", key, age)
			}
			ages[now.Sub(at).Truncate(100*time.Millisecond)] = true
		} else {
			made[key] = now
		}
	}
	if duplicates != 500 || len(ages) < 10 {
		t.Errorf("%d duplicates of ages %v", duplicates, ages)
	}
	t.Run("none is young enough", func(t *testing.T) {
		for range 9 {
			w.next()
		}
		now = now.Add(duplicateOf + time.Millisecond)
		if key := w.next().key; !made[key].IsZero() {
			t.Errorf("%s again", key)
		}
	})
	t.Run("more than are remembered", func(t *testing.T) {
		var r recent
		for i := range int64(len(r.made)) + 10 {
			r.add(i, now)
		}
		for n := range uint64(1000) {
			if key, ok := r.pick(now, n); !ok || key < 10 {
				t.Fatalf("%d, %v", key, ok)
			}
		}
	})
}

func TestProfiles(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range Profiles() {
		if seen[p.Name] || p.About == "" || !isWord(p.Name) {
			t.Errorf("%+v", p)
		}
		// A name and the number of a run are a file; no two may meet.
		if i := strings.LastIndexByte(p.Name, '-'); i >= 0 && seen[p.Name[:i]] {
			if n, err := strconv.Atoi(p.Name[i+1:]); err == nil && n <= mostRuns {
				t.Errorf("%s is a run of another profile", p.Name)
			}
		}
		seen[p.Name] = true
	}
}
