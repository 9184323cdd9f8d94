package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
)

// standInRun is a proxy or a downstream that runs in this process.
type standInRun struct {
	url  string
	said []string       // before it listened
	stop func() outcome // ends it; without its stderr
}

// startStandIn returns once the stand-in of that name listens.
func startStandIn(t *testing.T, stdout io.Writer, name string, args ...string) standInRun {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{name}, args...), nil, stdout, w)
		_ = w.Close()
	}()
	p := standInRun{stop: func() outcome { cancel(); return outcome{code: <-code} }}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "idemd "+name+" listening on "); ok {
			p.url = url
			go func() { _, _ = io.Copy(io.Discard, r) }()
			return p
		}
		p.said = append(p.said, lines.Text())
	}
	t.Fatalf("exit code %d: %q", <-code, p.said)
	return p
}
