package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"
)

// standIn is a service that stands in for another one while something is tried out:
// the proxy, and the service that a tool calls.
type standIn struct {
	name  string
	serve func(*net.TCPListener) error
	close func(context.Context) error
	sums  func() any // what it has counted, once it is closed
	seed  *uint64    // nil where nothing is drawn
}

// logged runs what has a log, as text on a terminal and as JSON elsewhere.
func logged(con *console, level slog.Level, format string, do func(words *console, log *slog.Logger) error) error {
	handler := serveCmd{LogLevel: level, LogFormat: format}
	terminal := isTerminal(con.stderr)
	w := newLogWriter(con.stderr, slog.New(handler.logHandler(con.stderr, terminal)))
	defer w.close(flushTime)
	words := *con
	words.stderr = w // all words go the same way and stay in order
	return exitQuietly(report(&words, do(&words, slog.New(handler.logHandler(w, terminal)))))
}

// draw makes a seed up where chance has a part and none was given.
func draw(seed *uint64, draws bool) *uint64 {
	if seed == nil && draws {
		s := uint64(rand.Uint32()) // short, and exact in any JSON reader
		seed = &s
	}
	return seed
}

// run serves until the context ends, stops within a time, and writes what was
// counted.
func (s standIn) run(ctx context.Context, con *console, log *slog.Logger, l net.Listener, within time.Duration) error {
	served := make(chan error, 1)
	go func() { served <- s.serve(l.(*net.TCPListener)) }()
	if s.seed != nil {
		con.say("idemd %s seed %d", s.name, *s.seed)
	}
	// Not a log line: scripts wait for it at every level and in every format.
	con.say("idemd %s listening on http://%s", s.name, l.Addr())
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- nil
	}
	timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	if cut := s.close(timeout); cut != nil {
		log.Warn("stopping", "err", cut)
	}
	err = errors.Join(err, <-served)
	b, merr := json.Marshal(s.sums())
	if merr != nil {
		return errors.Join(err, merr)
	}
	return errors.Join(con.print("%s\n", b), err)
}
