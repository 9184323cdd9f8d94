package main

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// logLines is how many lines of log may wait for whoever reads them.
	logLines = 1024

	// flushTime is how long an exit waits for them to be written.
	flushTime = time.Second
)

// logWriter stands between the log and stderr: whoever logs never waits for
// whoever reads. When its queue is full, lines are dropped until it is empty
// again, and then counted in the place where they are missing.
type logWriter struct {
	out    io.Writer
	direct *slog.Logger // writes to out, past the queue
	done   chan struct{}

	mu      sync.Mutex
	more    sync.Cond
	queue   [][]byte
	dropped int
	closed  bool
}

// newLogWriter starts to write to out. direct is for what the writer itself has
// to say there.
func newLogWriter(out io.Writer, direct *slog.Logger) *logWriter {
	w := &logWriter{out: out, direct: direct, done: make(chan struct{})}
	w.more.L = &w.mu
	go w.run()
	return w
}

// Write takes one line. It never fails: nobody can do anything about it.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed: // nothing is written any more
	case w.dropped > 0 || len(w.queue) == logLines:
		w.dropped++
	default:
		w.queue = append(w.queue, bytes.Clone(line))
	}
	w.more.Signal()
	return len(line), nil
}

// run writes until the writer is closed and has nothing left.
func (w *logWriter) run() {
	defer close(w.done)
	for {
		line, dropped := w.next()
		switch {
		case line != nil:
			_, _ = w.out.Write(line) // where would one complain?
		case dropped > 0:
			w.direct.Warn("lines of the log were dropped: whoever reads it is too slow", "lines", dropped)
		default:
			return
		}
	}
}

// next waits for a line, or else for how many were dropped; neither is the end.
func (w *logWriter) next() (line []byte, dropped int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) == 0 && w.dropped == 0 && !w.closed {
		w.more.Wait()
	}
	if len(w.queue) > 0 {
		line, w.queue = w.queue[0], w.queue[1:]
		return line, 0
	}
	dropped, w.dropped = w.dropped, 0
	return nil, dropped
}

// close writes what is queued, and gives up after a time: a reader that is stuck
// must not keep the process from ending.
func (w *logWriter) close(patience time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.more.Signal()
	w.mu.Unlock()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-w.done:
	case <-t.C:
	}
}
