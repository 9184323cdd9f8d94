package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate is a reader of the log that is stuck until it is opened.
type gate struct {
	arrived chan struct{} // somebody writes
	once    sync.Once
	open    chan struct{}

	mu  sync.Mutex
	all bytes.Buffer
}

func newGate() *gate { return &gate{arrived: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	g.once.Do(func() { close(g.arrived) })
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all.Write(b)
}

func (g *gate) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all.String()
}

func logTo(out io.Writer) *logWriter {
	return newLogWriter(out, slog.New(slog.NewTextHandler(out, nil)))
}

func TestLogWriter(t *testing.T) {
	g := newGate()
	w := logTo(g)
	line := func(i int) { fmt.Fprintf(w, "line %d\n", i) }
	line(0)
	<-g.arrived
	for i := 1; i <= logLines+7; i++ { // the last 7 find it full
		line(i)
	}
	close(g.open)
	w.close(time.Minute)
	fmt.Fprintln(w, "too late")
	w.close(0) // once more does nothing

	lines := strings.Split(strings.TrimSpace(g.String()), "\n")
	if len(lines) != logLines+2 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, l := range lines[:logLines+1] {
		if want := fmt.Sprintf("line %d", i); l != want {
			t.Fatalf("line %d is %q", i, l)
		}
	}
	if last := lines[logLines+1]; !strings.Contains(last, "dropped") || !strings.HasSuffix(last, "lines=7") {
		t.Errorf("the last line is %q", last)
	}
}

// Once there is room the count is written, and then lines go on.
func TestLogWriterGoesOn(t *testing.T) {
	g := newGate()
	w := logTo(g)
	fmt.Fprintln(w, "first")
	<-g.arrived
	for range logLines + 1 {
		fmt.Fprintln(w, "more")
	}
	close(g.open)
	for !strings.Contains(g.String(), "lines=1\n") {
		time.Sleep(time.Millisecond)
	}
	fmt.Fprintln(w, "after")
	w.close(time.Minute)
	if !strings.HasSuffix(g.String(), "lines=1\nafter\n") {
		t.Errorf("ends with %q", g.String()[max(0, g.all.Len()-200):])
	}
}

func TestLogWriterGivesUp(t *testing.T) {
	g := newGate()
	w := logTo(g)
	fmt.Fprintln(w, "stuck")
	began := time.Now()
	w.close(10 * time.Millisecond)
	if d := time.Since(began); d < 10*time.Millisecond || d > 10*time.Second {
		t.Errorf("gave up after %v", d)
	}
	close(g.open)
	<-w.done
}

// A reader that has gone stops nothing.
func TestLogWriterWithoutReader(t *testing.T) {
	r, out := io.Pipe()
	_ = r.CloseWithError(errors.New("gone"))
	w := logTo(out)
	for range 3 * logLines {
		fmt.Fprintln(w, "line")
	}
	w.close(time.Minute)
	<-w.done
}
