package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/idemd/idemd/client"
)

const (
	// startTime is how long idemd may take to listen.
	startTime = 20 * time.Second

	// stopTime is how long it may take to stop before it is killed.
	stopTime = 10 * time.Second

	listeningOn = "idemd listening on "
)

// daemon is idemd as a process of its own, on a data directory, life after life.
type daemon struct {
	binary string
	dir    string // its data directory
	log    *os.File
	flags  []string
	wire   *client.Transport

	mu   sync.Mutex
	life life
}

// life is one process.
type life struct {
	cmd   *exec.Cmd
	url   string
	ended chan struct{} // closed when the process is gone
	tail  []string      // of its stderr; to be read when it is gone
}

// now is the current life.
func (d *daemon) now() life {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life
}

// startDaemon starts idemd on a new data directory below dir and waits until it
// listens. It must be closed.
func startDaemon(ctx context.Context, binary, dir string, flags ...string) (*daemon, error) {
	log, err := os.OpenFile(filepath.Join(dir, "idemd.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, precondition("%w", err)
	}
	d := &daemon{binary: binary, dir: filepath.Join(dir, "data"), log: log, flags: flags, wire: client.NewTransport()}
	if err := d.start(ctx); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// start begins a life.
func (d *daemon) start(ctx context.Context) error {
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--data", d.dir, "--chaos", "--log-level", "warn"}, d.flags...)
	cmd := exec.Command(d.binary, args...)
	// What is in the environment for somebody's idemd must not reach this one.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "IDEMD_") })
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return precondition("%w", err)
	}
	if err := cmd.Start(); err != nil {
		return precondition("idemd cannot be started: %w", err)
	}
	l := life{cmd: cmd, ended: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		tail := d.read(stderr, ready)
		_ = cmd.Wait() // how it ended is in ProcessState
		d.mu.Lock()
		d.life.tail = tail
		d.mu.Unlock()
		close(l.ended)
	}()
	d.set(l)
	late := time.NewTimer(startTime)
	defer late.Stop()
	select {
	case l.url = <-ready:
		d.set(l)
		return nil
	case <-l.ended:
		return precondition("idemd ended (%v) before it listened: %s", cmd.ProcessState, d.words())
	case <-late.C:
		return precondition("idemd does not listen after %v", startTime)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *daemon) set(l life) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.tail = d.life.tail
	d.life = l
}

// words are the last ones of the process that is gone.
func (d *daemon) words() string { return strings.Join(d.now().tail, "; ") }

// keepTail is how many lines of stderr are kept for an error.
const keepTail = 5

func (d *daemon) read(stderr io.Reader, ready chan<- string) (tail []string) {
	r := bufio.NewReader(stderr)
	for told := false; ; {
		line, err := r.ReadString('\n')
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			if url, ok := strings.CutPrefix(line, listeningOn); ok && !told {
				told = true
				ready <- url
			}
			_, _ = fmt.Fprintln(d.log, line) // a log that cannot be written stops nobody
			tail = append(tail, brief(line))
			tail = tail[max(0, len(tail)-keepTail):]
		}
		if err != nil {
			return tail
		}
	}
}

// awaitEnd waits until the process is gone.
func (d *daemon) awaitEnd(ctx context.Context) error {
	l := d.now()
	late := time.NewTimer(stopTime)
	defer late.Stop()
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return fmt.Errorf("probe: the process %d does not end", l.cmd.Process.Pid)
	}
}

// kill ends the process by SIGKILL.
func (d *daemon) kill(ctx context.Context) error {
	if err := d.now().cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("probe: %w", err)
	}
	return d.awaitEnd(ctx)
}

// stop asks the process to stop and says so if it did not stop cleanly.
func (d *daemon) stop(ctx context.Context) error {
	if err := d.now().cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if err := d.awaitEnd(ctx); err != nil {
		return err
	}
	if code := d.now().cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("probe: idemd stopped with exit code %d: %s", code, d.words())
	}
	return nil
}

// killed reports whether the process, which is gone, ended by SIGKILL.
func (d *daemon) killed() bool {
	ws, ok := d.now().cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// close ends the process whatever it is doing, cleanly if it lets itself be
// ended so. It does not look at any context: nothing may be left behind.
func (d *daemon) close() {
	if d.now().cmd != nil {
		if d.stop(context.Background()) != nil {
			_ = d.kill(context.Background())
		}
	}
	d.wire.CloseIdleConnections()
	_ = d.log.Close()
}

// get reads a document of the server.
func (d *daemon) get(ctx context.Context, path, accept string) ([]byte, error) {
	return fetch(ctx, d.wire, d.now().url+path, accept, nil)
}

// post sends a document that is to be answered with 200.
func (d *daemon) post(ctx context.Context, path string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.now().url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.wire.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("probe: POST %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("probe: POST %s: status %d", path, resp.StatusCode)
	}
	return nil
}

// maxDocument bounds what is read of one document, in bytes.
const maxDocument = 256 << 20

// fetch reads a document that there must be.
func fetch(ctx context.Context, wire http.RoundTripper, url, accept string, header http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	maps.Copy(req.Header, header)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := wire.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("probe: GET %s: %w", url, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("probe: GET %s: %w", url, err)
	case len(raw) > maxDocument:
		return nil, fmt.Errorf("probe: GET %s: it is longer than %d bytes", url, maxDocument)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("probe: GET %s: status %d", url, resp.StatusCode)
	}
	return raw, nil
}
