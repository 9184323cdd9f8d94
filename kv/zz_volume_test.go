package kv
import ("testing";"fmt";"time";"runtime";"github.com/cockroachdb/pebble/v2/vfs")
func TestZZ(t *testing.T){
 o:=testOptions(vfs.NewMem(),"data"); o.MemTable=32<<20; o.Cache=128<<20
 s:=openOptions(t,o)
 const N=300000
 st:=time.Now()
 for n:=range N { k:=keyOf(fmt.Sprint("k",n*7919%N)); update(t,s,k,fused(k,n)) }
 closeStore(t,s); t.Log("filled",time.Since(st))
 runtime.GC(); var a,b runtime.MemStats; runtime.ReadMemStats(&a)
 st=time.Now(); var peak uint64
 r,err:=Inspect(t.Context(),o,func(p Progress){ if p.Done%50000==0 {runtime.ReadMemStats(&b); if b.HeapInuse>peak{peak=b.HeapInuse}} })
 t.Log(time.Since(st),err,r.Broken(),r.Totals.Calls, "base",a.HeapInuse>>20,"peak",peak>>20)
}
