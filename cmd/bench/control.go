package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/idemd/idemd/bench"
)

// controlCmd is the handler that does nothing, as a process of its own. It ends
// when its stdin does, so that it never outlives who started it.
type controlCmd struct{}

// Run serves the answer that it reads from stdin.
func (*controlCmd) Run(ctx context.Context, con *console) error {
	answer, err := bench.ReadAnswer(con.stdin)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: controlHandler(answer), ReadHeaderTimeout: 30 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, con.stdin) // until it ends, however it does
		cancel()
	}()
	if err := bench.SayControl(con.stderr, l.Addr().String()); err != nil {
		return errors.Join(err, srv.Close())
	}
	<-ctx.Done()
	err = srv.Close()
	if sErr := <-served; !errors.Is(sErr, http.ErrServerClosed) {
		err = errors.Join(err, sErr)
	}
	return err
}

// controlHandler answers the same to everybody, on the routes that are measured.
func controlHandler(a bench.Answer) http.Handler {
	h := func(w http.ResponseWriter, r *http.Request) {
		// A client that breaks off is nobody's loss here.
		_, _ = io.Copy(io.Discard, r.Body)
		if a.Delay > 0 {
			time.Sleep(a.Delay)
		}
		maps.Copy(w.Header(), a.Header)
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body)
	}
	r := chi.NewRouter()
	r.Post("/v1/tool-calls", h)
	r.Get("/v1/tool-calls/{id}", h)
	return r
}
