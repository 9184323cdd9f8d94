// Command forgetful says that it is idemd, and forgets every key, for tests: what
// judges idemd must find it out. It understands idemd serve --listen 127.0.0.1:0 and
// no other flag.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

type call struct {
	CallID   string          `json:"call_id"`
	Key      string          `json:"idem_key"`
	Tool     string          `json:"tool"`
	Status   string          `json:"status"`
	Attempt  int             `json:"attempt"`
	Result   json.RawMessage `json:"result"`
	EffectID string          `json:"effect_id"`
}

func main() {
	var (
		mu    sync.Mutex
		calls []call
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/tools", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"tools":[{"name":"charge","window":"24h0m0s"}]}`)
	})
	mux.HandleFunc("POST /v1/tool-calls", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n := len(calls) + 1
		c := call{
			CallID: fmt.Sprintf("c_%032x", n), Key: r.Header.Get("Idempotency-Key"), Tool: "charge", Status: "succeeded",
			Attempt: 1, Result: json.RawMessage(`{}`), EffectID: fmt.Sprintf("eff_%032x", n),
		}
		calls = append(calls, c)
		w.Header().Set("Idempotent-Replayed", "false")
		_ = json.NewEncoder(w).Encode(c)
	})
	mux.HandleFunc("GET /v1/tool-calls/by-key", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"not_found","message":"no such call","effect":"none"}}`)
	})
	mux.HandleFunc("GET /v1/tool-calls/{id}/audit", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"events":[{"event":"created"},{"event":"succeeded"}],"next_cursor":null}`)
	})
	mux.HandleFunc("GET /v1/effects", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range calls {
			_ = json.NewEncoder(w).Encode(map[string]string{
				"effect_id": c.EffectID, "call_id": c.CallID, "idem_key": c.Key, "tool": c.Tool,
			})
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	fmt.Fprintf(os.Stderr, "idemd listening on http://%s\n", l.Addr())
	_ = s.Serve(l) // it has ended because it was told to
}
