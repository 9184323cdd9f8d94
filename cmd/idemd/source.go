package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/kv"
	"github.com/idemd/idemd/probe"
)

// source is where a ledger or an audit trail is read from: a server, the data
// directory of a stopped one, a file, or - for stdin.
type source string

func (s source) live() bool {
	return strings.HasPrefix(string(s), "http://") || strings.HasPrefix(string(s), "https://")
}

// store reports whether it is a directory.
func (s source) store() bool {
	info, err := os.Stat(string(s))
	return !s.live() && s != "-" && err == nil && info.IsDir()
}

// file opens a file, or stdin.
func (s source) file(con *console) (io.ReadCloser, error) {
	if s == "-" {
		return io.NopCloser(con.stdin), nil
	}
	f, err := os.Open(string(s))
	if err != nil {
		return nil, exit(exitUsage, "%v", err)
	}
	return f, nil
}

// server is the server that it names. The path of a ledger may be given as well.
func (s source) server(timeout time.Duration) (server, error) {
	srv := server{URL: strings.TrimSuffix(string(s), pathEffects), Timeout: timeout}
	if timeout <= 0 {
		return srv, exit(exitUsage, "--timeout: must be more than 0")
	}
	if _, err := srv.base(); err != nil {
		return srv, exit(exitUsage, "%s: want http://HOST:PORT", s)
	}
	return srv, nil
}

// ledger opens a server's ledger as NDJSON. A stream that ends too early fails,
// and one of which nobody could know is refused.
func (s source) ledger(ctx context.Context, timeout time.Duration) (io.ReadCloser, error) {
	srv, err := s.server(timeout)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	patience := time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
	l := &liveLedger{ctx: ctx, close: func() { patience.Stop(); cancel(nil) }}
	resp, err := srv.do(ctx, question{method: http.MethodGet, path: pathEffects, accept: mediaLines}) //nolint:bodyclose // liveLedger closes it
	if err != nil {
		defer l.close()
		return nil, failed(l.why(err), exitUnavailable)
	}
	patience.Stop()
	l.body, l.patient = resp.Body, patientReader{resp.Body, patience, timeout}
	if resp.StatusCode != http.StatusOK {
		a, err := readAnswer(resp)
		_ = l.Close()
		if err != nil {
			return nil, failed(err, exitUnavailable)
		}
		return nil, a.refused(exitUnavailable)
	}
	if resp.Header.Get("Content-Type") != mediaLines {
		_ = l.Close()
		return nil, exit(exitUnavailable, "%s: %v", s, errStranger)
	}
	if !tellsItsEnd(resp) {
		_ = l.Close()
		return nil, exit(exitUnavailable, "%s: %s", s, endUnknown)
	}
	return l, nil
}

// liveLedger reads a stream; the time-out is how long it may bring nothing.
type liveLedger struct {
	ctx     context.Context
	body    io.Closer
	patient io.Reader
	close   func()
}

func (l *liveLedger) Read(b []byte) (int, error) {
	n, err := l.patient.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = l.why(err)
	}
	return n, err
}

func (l *liveLedger) why(err error) error {
	if l.ctx.Err() != nil {
		return cause(context.Cause(l.ctx))
	}
	return err
}

func (l *liveLedger) Close() error {
	l.close()
	return l.body.Close()
}

// storeError ends the program for what reading a stopped store gave.
func storeError(dir string, err error) error {
	var own *exitError
	switch {
	case err == nil, errors.As(err, &own):
		return err
	case errors.Is(err, kv.ErrNoStore):
		return exit(exitUsage, "%s: there is no store", dir)
	case errors.Is(err, kv.ErrNewerFormat):
		return exit(exitUsage, "%s: a newer release wrote this store; read it with that one", dir)
	case errors.Is(err, kv.ErrInUse):
		return exit(exitInUse, "%s is in use: give the server's URL instead, or stop it first", dir)
	case errors.Is(err, context.Canceled):
		return exit(exitUnavailable, "interrupted")
	default:
		return exit(exitUnavailable, "%s cannot be read: %v", dir, err)
	}
}

func storeOptions(dir string, con *console) kv.Options {
	return kv.Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(con.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
}

// inputError ends the program for what reading a file or a stream gave.
func inputError(err error) error {
	var (
		own *exitError
		bad *probe.InputError
	)
	switch {
	case err == nil, errors.As(err, &own):
		return err
	case errors.As(err, &bad):
		return exit(exitUsage, "%s", strings.TrimPrefix(plain(bad.Error()), "probe: "))
	default: // what was read so far is not all there is
		return exit(exitUnavailable, "%s", strings.TrimPrefix(plain(err.Error()), "probe: "))
	}
}

// interruptible fails once the context is over.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(b []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	return i.r.Read(b)
}

// effectDoc is an effect as the server shows it.
func effectDoc(e *idem.Effect) probe.Effect {
	return probe.Effect{EffectID: e.ID, CallID: e.CallID.String(), Key: e.Key.Name, Tool: e.Tool, Amount: e.Amount, CreatedAt: e.CreatedAt}
}

// rowsRead shows on a terminal how many rows of something have been read;
// anywhere else it says nothing. done takes the line away.
func (c *console) rowsRead(what string) (show func(rows int), done func()) {
	if !isTerminal(c.stderr) {
		return nil, func() {}
	}
	var last time.Time
	show = func(rows int) {
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		fmt.Fprintf(c.stderr, "\r%s: %d\x1b[K", plain(what), rows)
	}
	return show, func() {
		if !last.IsZero() {
			fmt.Fprint(c.stderr, "\r\x1b[K")
		}
	}
}
