package kv

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemd/idemd/idem"
)

var clients = []int{1, 20, 64, 300}

// parallel runs b.N operations on n goroutines and reports calls per second.
func parallel(b *testing.B, n int, op func(i int)) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= b.N {
					return
				}
				op(i)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// openBench opens a store with production's options on a real directory and
// gets it past the small memtables of its first seconds.
func openBench(b *testing.B) *Store {
	b.Helper()
	s, err := Open(Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { closeStore(b, s) })
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := range 200 {
				k := keyOf(fmt.Sprintf("warm-%d-%d", w, i))
				if _, err := s.Update(context.Background(), k, fused(k, w*200+i)); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
	return s
}

// BenchmarkSubmit is the store alone: a local tool's call in one commit, and
// the same call asked for again.
func BenchmarkSubmit(b *testing.B) {
	ctx := context.Background()
	b.Run("distinct", func(b *testing.B) {
		for _, n := range clients {
			b.Run(fmt.Sprint(n), func(b *testing.B) {
				s := openBench(b)
				parallel(b, n, func(i int) {
					k := keyOf(fmt.Sprintf("key-%08d", i*7919%1_000_003))
					if _, err := s.Update(ctx, k, fused(k, 100_000+i)); err != nil {
						panic(err)
					}
				})
			})
		}
	})
	b.Run("replay", func(b *testing.B) {
		for _, n := range clients {
			b.Run(fmt.Sprint(n), func(b *testing.B) {
				s := openBench(b)
				parallel(b, n, func(i int) {
					k := keyOf(fmt.Sprintf("warm-%d-%d", i%64, i/64%200))
					if _, err := s.Update(ctx, k, fused(k, i)); err != nil {
						panic(err)
					}
				})
			})
		}
	})
}

// BenchmarkProbe compares the two ways to look a key up, absent and present, on
// 200 000 keys in the lowest level.
func BenchmarkProbe(b *testing.B) {
	s := openMem(b)
	name := func(i int) string { return fmt.Sprintf("key-%08d", i%200_000*7919%1_000_003) }
	batch := s.db.NewBatch()
	for i := range 200_000 {
		_ = batch.Set(appendIdemKey(nil, 0, name(i)), appendIdem(nil, idOf(keyOf(""), i), [32]byte{}), nil)
	}
	s.commit(batch)
	if err := s.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		what, suffix string
		present      bool
	}{{"absent", ".", false}, {"present", "", true}} {
		b.Run(c.what+"/get", func(b *testing.B) {
			for i := range b.N {
				found, err := s.get(appendIdemKey(nil, 0, name(i)+c.suffix), func(v []byte) error {
					_, _, err := decodeIdem(v)
					return err
				})
				if found != c.present || err != nil {
					b.Fatal(found, err)
				}
			}
		})
		b.Run(c.what+"/iterator", func(b *testing.B) {
			for i := range b.N {
				if _, _, found, err := s.probeIdem(0, name(i)+c.suffix); found != c.present || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}

// BenchmarkDue is one look before a dispatch, with many calls waiting.
func BenchmarkDue(b *testing.B) {
	l := newLive()
	for i := range 100_000 {
		k := keyOf(fmt.Sprint(i))
		ch, _ := submit(k, i)(nil)
		l.apply(ch.After, 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(l.dueNow(1, nil)) != 1 {
			b.Fatal("nothing is due")
		}
	}
}

// TestMemoryStaysFlat compares what the process uses with 100 000 and with a
// million ended calls. It takes minutes: set KV_MEMORY=1, and CGO_ENABLED=0 as
// in what ships, so that the engine's caches are on the heap.
func TestMemoryStaysFlat(t *testing.T) {
	if os.Getenv("KV_MEMORY") == "" {
		t.Skip("set KV_MEMORY=1")
	}
	s, err := Open(Options{Dir: t.TempDir(), Cache: 32 << 20, MemTable: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	var done atomic.Int64
	upTo := func(n int64) memory {
		var wg sync.WaitGroup
		for range 256 {
			wg.Go(func() {
				for i := done.Add(1); i <= n; i = done.Add(1) {
					k := keyOf(fmt.Sprintf("key-%d", i))
					if _, err := s.Update(context.Background(), k, fused(k, int(i))); err != nil {
						panic(err)
					}
				}
			})
		}
		wg.Wait()
		done.Store(n)
		return measure(t)
	}
	small := upTo(100_000)
	large := upTo(1_000_000)
	t.Logf("after 100 000 calls %v, after 1 000 000 %v", small, large)
	if large.heap > small.heap+64<<20 || large.resident > small.resident+64<<20 {
		t.Fatal("it grew by more than 64 MiB")
	}
}

type memory struct{ heap, resident uint64 }

func (m memory) String() string {
	return fmt.Sprintf("heap %d MiB, resident %d MiB", m.heap>>20, m.resident>>20)
}

func measure(t *testing.T) memory {
	t.Helper()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m := memory{heap: stats.HeapAlloc}
	if b, err := os.ReadFile("/proc/self/statm"); err == nil { // Linux
		var size, pages uint64
		if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
			t.Fatal(err)
		}
		m.resident = pages * uint64(os.Getpagesize())
	}
	return m
}

// BenchmarkRead is what a look-up costs, by key, by id, and for each row of a
// list, from tables that are in the cache.
func BenchmarkRead(b *testing.B) {
	const n = 20_000
	s := openMem(b)
	ctx := context.Background()
	key := func(i int) int { return i * 7919 % n }
	for i := range n {
		k := keyOf(fmt.Sprintf("key-%08d", i))
		if _, err := s.Update(ctx, k, fused(k, i)); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.db.Compact(ctx, []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	b.Run("by key", func(b *testing.B) {
		for i := range b.N {
			if _, err := s.CallByKey(ctx, keyOf(fmt.Sprintf("key-%08d", key(i)))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("by id", func(b *testing.B) {
		for i := range b.N {
			k := keyOf(fmt.Sprintf("key-%08d", key(i)))
			if _, err := s.CallByID(ctx, k.Namespace, idOf(k, key(i))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("100 rows of a list", func(b *testing.B) {
		for i := range b.N {
			k := keyOf(fmt.Sprintf("key-%08d", key(i)))
			if _, _, err := s.List(ctx, k.Namespace, idem.Query{Limit: 100, Before: idOf(k, key(i))}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
