package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// BenchmarkHTTPTools is calls of a tool over HTTP, waited for, each with a key of its
// own: over the daemon's HTTP to a downstream that does nothing. The control asks that
// downstream itself. Everything shares the machine.
func BenchmarkHTTPTools(b *testing.B) {
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"done":true}`)
	}))
	defer down.Close()
	for _, clients := range []int{1, 64} {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
		b.Run(fmt.Sprintf("control/%d", clients), func(b *testing.B) {
			postAll(b, client, clients, down.URL, `{"order_id":"A-1","amount":100}`)
		})
		b.Run(fmt.Sprintf("tool/%d", clients), func(b *testing.B) {
			file := filepath.Join(b.TempDir(), "tools.yaml")
			tools := "version: 1\ntools:\n  - name: refund\n    effects: external\n    timeout: 10s\n    concurrency: 64\n" +
				"    http: {method: POST, url: " + down.URL + ", effect_key: {header: Idempotency-Key, downstream: ignores}, success: [200]}\n"
			if err := os.WriteFile(file, []byte(tools), 0o600); err != nil {
				b.Fatal(err)
			}
			var root struct {
				Serve serveCmd `cmd:""`
			}
			parser, err := kong.New(&root, serveDefaults())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := parser.Parse([]string{"serve", "--data", b.TempDir(), "--listen", "127.0.0.1:0", "--tools", file, "--workers", "64"}); err != nil {
				b.Fatal(err)
			}
			d, err := root.Serve.startDaemon(context.Background(), slog.New(slog.DiscardHandler), func(code int) { panic(code) })
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := d.stop(ctx); err != nil {
					b.Error(err)
				}
			}()
			postAll(b, client, clients, "http://"+d.addr.String()+"/v1/tool-calls", `{"tool":"refund","args":{"order_id":"A-1","amount":100}}`)
		})
		client.CloseIdleConnections()
	}
}

// postAll posts b.N bodies, each with its own key, from so many clients.
func postAll(b *testing.B, client *http.Client, clients int, url, body string) {
	b.Helper()
	b.ReportAllocs()
	var next atomic.Int64
	failed := make(chan error, clients)
	b.ResetTimer()
	for range clients {
		go func() {
			var err error
			for n := next.Add(1); n <= int64(b.N) && err == nil; n = next.Add(1) {
				err = postOne(client, url, body, fmt.Sprintf("key-%d-%d", b.N, n))
			}
			failed <- err
		}()
	}
	for range clients {
		if err := <-failed; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

func postOne(client *http.Client, url, body, key string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.GetBody = nil
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Prefer", "wait=10")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered with %s", resp.Status)
	}
	return nil
}
