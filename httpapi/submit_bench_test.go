package httpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/idemd/idemd/httpapi"
	"github.com/idemd/idemd/kv"
	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

// BenchmarkSubmit is the whole way of a POST: loopback, HTTP, law, store on a
// real directory, one synced commit for each new call. Control is a handler that
// reads the body, answers fixed bytes and does nothing; absolute figures mean
// little on a shared machine, the ratio to the control of the same run does.
func BenchmarkSubmit(b *testing.B) {
	for _, clients := range []int{1, 20, 64, 300} {
		b.Run(fmt.Sprintf("control/%d", clients), func(b *testing.B) {
			attack(b, serveControl(b), clients, distinctKeys())
		})
		b.Run(fmt.Sprintf("distinct/%d", clients), func(b *testing.B) {
			attack(b, serveReal(b), clients, distinctKeys())
		})
		b.Run(fmt.Sprintf("replay/%d", clients), func(b *testing.B) {
			attack(b, serveReal(b), clients, func() string { return "one-key" })
		})
	}
}

func distinctKeys() func() string {
	var n atomic.Int64
	return func() string { return "key-" + strconv.FormatInt(n.Add(1), 10) }
}

func serveControl(b *testing.B) string {
	answer := bytes.Repeat([]byte("x"), 470)
	r := chi.NewRouter()
	r.Post("/v1/tool-calls", func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(answer)
	})
	srv := &http.Server{Handler: r}
	l := listen(b)
	go func() { _ = srv.Serve(l) }()
	b.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String()
}

func serveReal(b *testing.B) string {
	store, err := kv.Open(kv.Options{Dir: b.TempDir(), Ballast: -1})
	if err != nil {
		b.Fatal(err)
	}
	run, err := runner.New(store, runner.Options{Tools: tool.Samples()})
	if err != nil {
		b.Fatal(err)
	}
	if err := run.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	srv := httpapi.New(run, httpapi.Options{})
	l := listen(b)
	go func() { _ = srv.Serve(l) }()
	b.Cleanup(func() {
		_ = srv.Close()
		run.Stop(b.Context())
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	return l.Addr().String()
}

func listen(b *testing.B) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// attack sends b.N requests over so many connections, each waiting for its
// answer. The client is bare, so that its share of the machine is small.
func attack(b *testing.B, addr string, clients int, key func() string) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range clients {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			in := bufio.NewReaderSize(c, 8<<10)
			for left.Add(-1) >= 0 {
				if err := exchange(c, in, addr, key()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

const benchBody = `{"tool":"charge","args":{"amount":100,"currency":"EUR","customer":"c-1234567","note":"an order of the day"},"client_id":"bench","seq":1}`

func exchange(c net.Conn, in *bufio.Reader, addr, key string) error {
	_, err := fmt.Fprintf(c, "POST /v1/tool-calls HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: %s\r\n"+
		"Content-Type: application/json\r\nPrefer: wait=10\r\nContent-Length: %d\r\n\r\n%s", addr, key, len(benchBody), benchBody)
	if err != nil {
		return err
	}
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 20")) {
			return fmt.Errorf("answer %q", line)
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(v)); err != nil {
				return err
			}
		}
		if len(line) == 0 {
			break
		}
	}
	_, err = in.Discard(length)
	return err
}
